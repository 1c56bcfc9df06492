"""torch's reprs of placements, specs and meshes, as pasted from code or a log.

    (Shard(dim=0), Replicate())   [S(0), R]   S(0)P(sum)   [_StridedShard(dim=0, sf=2), Shard(dim=0)]
    DTensorSpec(mesh=DeviceMesh((dp=2, tp=4), 'cpu', stride=(4, 1)), placements=(Shard(dim=0), Replicate()), …)
    DeviceMesh((dp=2, tp=4), 'cpu', stride=(4, 1))   DeviceMesh('cuda', [[0, 1], [2, 3]], mesh_dim_names=('dp', 'tp'))

Placements say, per mesh dim, what it does to the tensor; which dims the tensor has must be said beside them.
Torch cuts a dim in chunks of chunks, one mesh dim after the other from left to right, so what is read is
`uneven="chunk"`.
Another order it spells in two ways, and both are read: as an order beside the placements, or as a `_StridedShard`,
whose split factor is the number of parts into which mesh dims to its right have cut the dim before it.
A printed mesh is read as the ranks 0, 1, 2, … in order; strides that are not those of that order are refused.

By hand, 8 rows on a mesh of 2 x 2: `[Shard(0), Shard(0)]` gives the ranks rows 0-1, 2-3, 4-5, 6-7, and
`[_StridedShard(0, split_factor=2), Shard(0)]` rows 0-1, 4-5, 2-3, 6-7: the second mesh dim is the major one.

>>> _, record = read_sharding("[_S(0, 2), S(0)]")
>>> cuts_of(record, (2, 2), 1)
[[MeshDimCut(mesh_dim=1, parts=1), MeshDimCut(mesh_dim=0, parts=1)]]

A `_StridedShard` to whose right nothing cuts its dim interleaves rows: it is `Deal.parts` of that number, each of which
the mesh dim cuts by itself; so does one behind an order that is said beside.
One whose split factor is no product of what its right has cut is refused.

>>> print(sharding_of(read_sharding("[S(0), _S(0, 2)]").record, Mesh.of(x=2, y=2), 1).text())
[{"x", parts(2), "y"}], uneven=chunk
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple

from reshard.checks import shown
from reshard.deal import Deal
from reshard.dim_sharding import DimSharding
from reshard.dtypes import REDUCTIONS
from reshard.errors import ReshardError
from reshard.foreign import PARTIAL, REPLICATE, SHARD, MeshRecord, PlacedRecord, PlacementRecord, PlacementsRecord
from reshard.mesh import Mesh
from reshard.notation.grammar import Form, Misread, number, parse, rule
from reshard.notation.literals import Nested, Skipped, nested_of, unquoted
from reshard.sharding import Sharding

if TYPE_CHECKING:
    from lark import Token


class _Shape(NamedTuple):
    sizes: tuple[int, ...]


class _Order(NamedTuple):
    cuts: tuple[tuple[int, tuple[int, ...]], ...]


class _MeshDims(NamedTuple):
    """Sizes of a mesh, and names where it has them."""

    sizes: tuple[int, ...]
    names: tuple[str, ...] = ()


class _Ordered(NamedTuple):
    """A shard, and the turn in which its mesh dim cuts the dim, from 0 on."""

    placement: PlacementRecord
    turn: int
    token: Token
    """Of the turn."""


class _Stride(NamedTuple):
    token: Token | None
    numbers: tuple[int, ...]


class _AxisNames(NamedTuple):
    names: tuple[str, ...]


class MeshDimCut(NamedTuple):
    """A mesh dim that cuts a dim."""

    mesh_dim: int
    parts: int = 1
    """Into how many parts what is there is divided before, each of which is cut by itself."""


class PrintedPlacements(NamedTuple):
    """What a text says: for how many dims, where it says so, and which placements."""

    ndim: int | None
    record: PlacementsRecord | PlacedRecord


class _PlacementRules:
    """What each rule of the grammar stands for, by its name."""

    @rule
    def shard(self, parts: list[Token]) -> PlacementRecord:
        return PlacementRecord(SHARD, _signed(parts[-1]))

    @rule
    def strided_shard(self, parts: list[Token]) -> PlacementRecord:
        dim, factor = (_signed(part) for part in parts if part.type == "NUMBER")
        return PlacementRecord(SHARD, dim, factor)

    @rule
    def replicate(self, parts: list[Token]) -> PlacementRecord:
        del parts
        return PlacementRecord(REPLICATE)

    @rule
    def partial(self, parts: list[Token]) -> PlacementRecord:
        token = parts[-1]
        word = unquoted(token) if token.type == "QUOTED" else str(token) if token.type == "WORD" else "sum"
        if word not in REDUCTIONS:
            problem = f"{word[:24]!r} is no reduction"
            raise Misread(token, problem, f"; it must be one of {', '.join(REDUCTIONS)}", code="unknown-reduction")
        return PlacementRecord(PARTIAL, reduction=word)

    @rule
    def ordered(self, parts: list[Any]) -> _Ordered:
        return _Ordered(parts[0], _signed(parts[1]), parts[1])

    @rule
    def run(self, parts: list[PlacementRecord | _Ordered]) -> PlacementsRecord:
        placements = tuple(part.placement if isinstance(part, _Ordered) else part for part in parts)
        if not any(isinstance(part, _Ordered) for part in parts):
            return PlacementsRecord(placements)
        cuts: dict[int, dict[int, int]] = {}
        for mesh_dim, part in enumerate(parts):
            shard, turn, token = part if isinstance(part, _Ordered) else (part, 0, None)
            if shard.kind == SHARD and mesh_dim != cuts.setdefault(shard.dim, {}).setdefault(turn, mesh_dim):
                problem = f"dim {shard.dim} is cut twice in turn {turn}"
                raise ReshardError("syntax", problem) if token is None else Misread(token, problem)
        return PlacementsRecord(
            placements, tuple((dim, tuple(by_turn[turn] for turn in sorted(by_turn))) for dim, by_turn in cuts.items())
        )

    @rule
    def listing(self, parts: list[PlacementRecord]) -> PlacementsRecord:
        return PlacementsRecord(tuple(parts))

    @rule
    def skipped(self, parts: list[Any]) -> Skipped:
        del parts
        return Skipped()

    @rule
    def shape(self, parts: list[Token]) -> _Shape:
        return _Shape(tuple(map(_signed, parts)))

    @rule
    def cut(self, parts: list[Token]) -> tuple[int, tuple[int, ...]]:
        dim, *mesh_dims = (_signed(part) for part in parts if part.type == "NUMBER")
        return dim, tuple(mesh_dims)

    @rule
    def order(self, parts: list[tuple[int, tuple[int, ...]]]) -> _Order:
        return _Order(tuple(parts))

    @rule
    def placed(self, parts: list[Any]) -> PrintedPlacements:
        meshes, placements = _of_kind(parts, MeshRecord), _of_kind(parts, PlacementsRecord)
        if len(meshes) != 1 or len(placements) != 1:
            raise Misread(parts[0], "a DTensorSpec stands", "; it must have one mesh and one list of placements")
        shapes, orders = _of_kind(parts, _Shape), _of_kind(parts, _Order)
        strided = any(placement.split_factor != 1 for placement in placements[0].placements)
        order = orders[0].cuts if orders and not strided else None
        record = PlacedRecord(meshes[0], PlacementsRecord(placements[0].placements, order))
        return PrintedPlacements(len(shapes[0].sizes) if shapes else None, record)

    @rule
    def brief(self, parts: list[Any]) -> PrintedPlacements:
        (shape,), (run,) = _of_kind(parts, _Shape), _of_kind(parts, PlacementsRecord)
        return PrintedPlacements(len(shape.sizes), run)

    @rule
    def mesh_dim(self, parts: list[Token]) -> _MeshDims:
        return _MeshDims((_signed(parts[1]),), (str(parts[0]),))

    @rule
    def sizes(self, parts: list[Token]) -> _MeshDims:
        return _MeshDims(tuple(map(_signed, parts)))

    @rule
    def stride(self, parts: list[Token]) -> _Stride:
        return _Stride(parts[0] if parts else None, tuple(map(_signed, parts)))

    @rule
    def names(self, parts: list[Token]) -> _AxisNames:
        return _AxisNames(tuple(map(unquoted, parts)))

    @rule
    def nested(self, parts: list[Any]) -> Nested:
        inner = [part for part in parts if isinstance(part, Nested)]
        if inner and not isinstance(parts[0], Nested):  # tensor([...], dtype=...)
            return inner[0]
        return nested_of([part if isinstance(part, Nested) else _signed(part) for part in parts])

    @rule
    def mesh(self, parts: list[Any]) -> MeshRecord:
        dims, arrays, names = _of_kind(parts, _MeshDims), _of_kind(parts, Nested), _of_kind(parts, _AxisNames)
        sizes = tuple(size for dim in dims for size in dim.sizes) if dims else arrays[0].shape if arrays else None
        titles = names[0].names if names else tuple(name for dim in dims for name in dim.names)
        if sizes is None or (titles and len(titles) != len(sizes)):
            raise Misread(parts[0], "a DeviceMesh stands", "; it must have sizes, with a name for each or none")
        ranks = arrays[0].numbers if arrays else None
        for stride in _of_kind(parts, _Stride):
            if ranks is None and stride.numbers != _row_major(sizes):
                ending = f"; ranks are read as 0, 1, 2, … in order, whose strides are {_row_major(sizes)}"
                raise Misread(stride.token or parts[0], "strides of another order stand", ending, code="cannot-express")
        return MeshRecord(tuple(zip(titles or _untitled(len(sizes)), sizes, strict=True)), ranks)

    @rule
    def sharding(self, parts: list[PlacementsRecord | PrintedPlacements]) -> PrintedPlacements:
        read = parts[0]
        return read if isinstance(read, PrintedPlacements) else PrintedPlacements(None, read)


def _signed(token: Token) -> int:
    return -number(token, 1) if token.startswith("-") else number(token)


def _of_kind(parts: Sequence[Any], kind: type[Any]) -> list[Any]:
    return [part for part in parts if isinstance(part, kind)]


def _row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(sizes[place + 1 :]) for place in range(len(sizes)))


def _untitled(count: int) -> tuple[str, ...]:
    return tuple(f"dim_{place}" for place in range(count))


FORM = Form(
    name="placements",
    starts=("sharding", "mesh"),
    words={
        "SHARD": "`Shard(`",
        "STRIDED_SHARD": "`_StridedShard(`",
        "REPLICATE": "`Replicate(`",
        "PARTIAL": "`Partial(`",
        "BRIEF": "`Spec(`",
        "SPEC": "`DTensorSpec(`",
        "MESH": "`DeviceMesh(`",
        "META": "`TensorMeta(`",
        "SIZE": "`torch.Size(`",
        "CUT": "`ShardOrderEntry(`",
        "TENSOR": "`tensor(`",
        "DETAIL": "`Mesh`",
        "DIM_IS": "`dim=`",
        "FACTOR_IS": "`sf=`",
        "OP_IS": "`reduce_op=`",
        "MESH_IS": "`mesh=`",
        "PLACEMENTS_IS": "`placements=`",
        "META_IS": "`tensor_meta=`",
        "SHAPE_IS": "`shape=`",
        "ORDER_IS": "`shard_order=`",
        "MESH_DIMS_IS": "`mesh_dims=`",
        "STRIDE_IS": "`stride=`",
        "NAMES_IS": "`mesh_dim_names=`",
        "KEY": "a keyword",
        "NAME": "the name of a mesh dim",
        "NUMBER": "a number",
        "QUOTED": "a name in quotes",
        "WORD": "a word",
    },
    builder=_PlacementRules(),
)


def read_sharding(text: str) -> PrintedPlacements:
    """What placements, or a spec of torch, say.

    Raises:
        ReshardError: `syntax`, `unknown-reduction`, `cannot-express`.
    """
    printed: PrintedPlacements = parse(FORM, "sharding", text)
    return printed


def read_mesh(text: str) -> MeshRecord:
    """The mesh that a repr of torch's prints.

    Raises:
        ReshardError: `syntax`; `cannot-express` where its strides are not those of ranks in order.
    """
    record: MeshRecord = parse(FORM, "mesh", text)
    return record


def cuts_of(record: PlacementsRecord, sizes: Sequence[int], ndim: int) -> list[list[MeshDimCut]]:
    """Per dim the mesh dims that cut it, major to minor, in the order given or out of the split factors.

    Read from the right, each mesh dim goes where those already placed before it make up its split factor.
    Where none is placed yet, the factor is a number of parts that it interleaves.

    Args:
        record: one placement per mesh dim, with dims counted from the left.
        sizes: of the mesh dims.
        ndim: the number of dims of the tensor.

    Raises:
        ReshardError: `cannot-express` where a shard is strided as no order of mesh dims is.
    """
    placements = record.placements
    if record.order is not None:
        cuts = [dict(record.order).get(dim, ()) for dim in range(ndim)]
        cutting = [[place for place, p in enumerate(placements) if (p.kind, p.dim) == (SHARD, d)] for d in range(ndim)]
        if len(record.order) > ndim or any(sorted(cut) != own for cut, own in zip(cuts, cutting, strict=True)):
            problem = f"the order {shown(dict(record.order))} is not one of the mesh dims in {text_of(placements)}"
            raise ReshardError("bad-argument", problem)
        for cut in cuts:  # there is an order for itself, so a strided shard interleaves what is cut before it
            is_strided = [placements[mesh_dim].split_factor != 1 for mesh_dim in cut]
            if any(is_strided[:-1]) or (any(is_strided) and list(cut) != sorted(cut)):
                problem = f"strided shards of {text_of(placements)} are no order of mesh dims"
                raise ReshardError("cannot-express", problem)
        return [[MeshDimCut(mesh_dim, placements[mesh_dim].split_factor) for mesh_dim in cut] for cut in cuts]
    lists: list[list[MeshDimCut]] = [[] for _ in range(ndim)]
    for mesh_dim, placement in reversed(list(enumerate(placements))):
        if placement.kind != SHARD:
            continue
        interleaved = lists[placement.dim]
        products = list(itertools.accumulate((one.parts * sizes[one.mesh_dim] for one in interleaved), mul, initial=1))
        if placement.split_factor in products:
            interleaved.insert(products.index(placement.split_factor), MeshDimCut(mesh_dim))
            continue
        if interleaved or placement.split_factor < 1:
            problem = f"placement {repr_of(placement)} in {text_of(placements)} interleaves rows"
            raise ReshardError("cannot-express", f"{problem} as no order of mesh dims does")
        interleaved.append(MeshDimCut(mesh_dim, placement.split_factor))
    return lists


def shards_of(cuts: Sequence[Sequence[MeshDimCut]], sizes: Sequence[int]) -> Mapping[int, PlacementRecord]:
    """By mesh dim the shard, strided where it interleaves parts, or mesh dims to its right cut its dim before it.

    >>> {mesh_dim: repr_of(shard) for mesh_dim, shard in shards_of([(MeshDimCut(1), MeshDimCut(0))], (2, 2)).items()}
    {1: 'Shard(dim=0)', 0: '_StridedShard(dim=0, sf=2)'}
    """
    return {
        mesh_dim: PlacementRecord(
            SHARD, dim, parts * prod(p * sizes[major] for major, p in cut[:place] if major > mesh_dim)
        )
        for dim, cut in enumerate(cuts)
        for place, (mesh_dim, parts) in enumerate(cut)
    }


def sharding_of(record: PlacementsRecord, mesh: Mesh, ndim: int, on: Mesh | None = None) -> Sharding:
    """What placements mean on a mesh.

    Args:
        record: one placement per axis of the mesh.
        mesh: what they are on.
        ndim: the number of dims of the tensor.
        on: the mesh of the sharding, where it is to have further axes, along which all is replicated.

    Raises:
        ReshardError: `bad-argument` where there is not one per mesh dim, `rank-mismatch` where one names a dim that
            is not there, `unknown-reduction`, `cannot-express` where reductions are mixed, or a shard is strided as
            no order of axes is.
    """
    names, sizes = list(mesh.sizes), list(mesh.sizes.values())
    on_one = mesh.is_maximal and all(placement.kind == REPLICATE for placement in record.placements)
    if len(record.placements) != len(names) and not on_one:
        shown = text_of(record.placements)
        problem = f"{len(record.placements)} placements {shown} are given for a mesh of {len(names)} dims"
        raise ReshardError("bad-argument", problem)
    counted = PlacementsRecord(tuple(_counted(placement, ndim) for placement in record.placements), record.order)
    partial = {place: p.reduction for place, p in enumerate(counted.placements) if p.kind == PARTIAL}
    reductions = sorted(set(partial.values()))
    if len(reductions) > 1:
        problem = f"partial values under {' and '.join(reductions)} at once are not supported"
        raise ReshardError("cannot-express", problem)
    if mesh.is_maximal and on is None:
        return Sharding(mesh, ())
    dims = [
        [item for mesh_dim, parts in cut for item in (*([Deal.parts(parts)] if parts > 1 else []), names[mesh_dim])]
        for cut in cuts_of(counted, sizes, ndim)
    ]
    unreduced = [names[place] for place in partial]
    return Sharding.of(on or mesh, *dims, unreduced=unreduced, reduction=(reductions or ["sum"])[0], uneven="chunk")


def _counted(placement: PlacementRecord, ndim: int) -> PlacementRecord:
    """The placement with its dim counted from the left."""
    if placement.kind == PARTIAL and placement.reduction not in REDUCTIONS:
        problem = f"reduction {placement.reduction} must be one of {', '.join(REDUCTIONS)}"
        raise ReshardError("unknown-reduction", problem)
    if placement.kind != SHARD:
        return placement
    if not -ndim <= placement.dim < ndim:
        problem = f"placement {str_of(placement)} names a dim that a tensor of {ndim} has not"
        raise ReshardError("rank-mismatch", problem)
    return PlacementRecord(SHARD, placement.dim % ndim, placement.split_factor)


def text_of(placements: Sequence[PlacementRecord]) -> str:
    """Placements as they stand in a sentence: `[S(0), R]`."""
    return f"[{', '.join(map(str_of, placements))}]"


def str_of(placement: PlacementRecord) -> str:
    """A placement as torch's `str`: `S(0)`."""
    if placement.kind == REPLICATE:
        return "R"
    if placement.kind == PARTIAL:
        return f"P({placement.reduction})"
    strided = placement.split_factor != 1
    return f"_S({placement.dim}, {placement.split_factor})" if strided else f"S({placement.dim})"


def repr_of(placement: PlacementRecord) -> str:
    """A placement as torch's `repr`: `Shard(dim=0)`."""
    if placement.kind == REPLICATE:
        return "Replicate()"
    if placement.kind == PARTIAL:
        return f"Partial({placement.reduction})"
    strided = placement.split_factor != 1
    shard = f"_StridedShard(dim={placement.dim}, sf={placement.split_factor})"
    return shard if strided else f"Shard(dim={placement.dim})"


def write_sharding(sharding: Sharding) -> str:
    """The placements of a sharding, one per axis of its mesh, as torch prints them; the mesh is not part of them.

    Raises:
        ReshardError: `cannot-express` where the sharding has sub-axes, or dims that torch's chunks of chunks may cut
            at other places.

    >>> write_sharding(Sharding.of(Mesh.of(x=2, y=4), None, "x", unreduced="y"))
    '(Shard(dim=1), Partial(sum))'
    >>> write_sharding(Sharding.of(Mesh.of(x=2, y=2), ("y", "x"), uneven="chunk"))
    '(_StridedShard(dim=0, sf=2), Shard(dim=0))'
    """
    used = [*(axis for dim in sharding.dims for axis in dim.axes), *sharding.unreduced]
    for axis in used:
        if not axis.is_whole:
            raise ReshardError("cannot-express", f"placements have no sub-axes, but {sharding.text()} uses {axis}")
    if sharding.uneven == "ceil" and any(len(dim.axes) > 1 for dim in sharding.dims):
        problem = f"placements cut in chunks of chunks, but {sharding.text()} in blocks of the ceiling"
        problem += "; give uneven='chunk' where its axes divide the dim"
        raise ReshardError("cannot-express", problem)
    places = {name: place for place, name in enumerate(sharding.mesh.sizes)}
    cuts = [
        [MeshDimCut(places[axis.name], parts_before(dim, place)) for place, axis in enumerate(dim.axes)]
        for dim in sharding.dims
    ]
    by_mesh_dim = dict(shards_of(cuts, list(sharding.mesh.sizes.values())))
    by_mesh_dim |= {places[a.name]: PlacementRecord(PARTIAL, reduction=sharding.reduction) for a in sharding.unreduced}
    records = tuple(by_mesh_dim.get(place, PlacementRecord(REPLICATE)) for place in range(len(places) or 1))
    if sharding.is_woven:
        read = sharding_of(PlacementsRecord(records), sharding.mesh, len(sharding.dims))
        if replace(read, uneven=sharding.uneven).layout != sharding.layout:
            sharding.check_plain("placements, but for parts of one mesh dim each,")
    placements = list(map(repr_of, records))
    return f"({', '.join(placements)}{',' if len(placements) == 1 else ''})"


def parts_before(dim: DimSharding, place: int) -> int:
    """Into how many parts a dim is divided before an axis cuts each of them; 1 where it is not."""
    return next((d.numbers[0] for d in dim.deals if (d.place, d.kind, len(d.numbers)) == (place, "parts", 1)), 1)


def write_mesh(mesh: Mesh) -> str:
    """A mesh as torch prints it: names, sizes and strides, from which ranks are told only where they are in order.

    Raises:
        ReshardError: `cannot-express` where the devices are not 0, 1, 2, …, or there are no axes.

    >>> write_mesh(Mesh.of(dp=2, tp=4))
    "DeviceMesh((dp=2, tp=4), 'cpu', stride=(4, 1))"
    """
    if mesh.device_ids is not None or not mesh.axes:
        raise ReshardError("cannot-express", f"torch prints no ranks of a mesh, but {mesh} has an order of its own")
    named = ", ".join(f"{name}={size}" for name, size in mesh.axes)
    return f"DeviceMesh(({named}), 'cpu', stride={_row_major(list(mesh.sizes.values()))})"
