"""What XLA prints of an HloSharding: `{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}`.

The tensor is cut into `devices=[...]` tiles, here 4 x 1; a further dim counts the copies of each tile.
Then come the devices in the order of the tiles, row-major: either as they are, `devices=[2,2]0,2,1,3`, or as
`<=[2,4]T(1,0)`, the devices 0 to 7 in two rows of four, transposed.
Such a transposition is a list of digits of the device's number, and tiles, iota dims and mesh axes are all factors
of the same numbers, so reading and writing are the cutting and joining of digits:

    <=[2,4]T(1,0)        digits (stride 1, size 4), (stride 4, size 2)
    [4,1 | 2]            dim 0 takes the first, dim 1 none, the copies take the second
    on x=2, y=4          x has stride 4, y has stride 1: `[{"y"}, {}]`

Where no mesh is given, or the digits are no parts of its axes, the sharding is on a fresh mesh with axes a, b, c, …:
one per digit, in the order of the devices, with the devices as they are; and where the devices follow no digits,
one per dim of tiles, with a list of device ids.

>>> from reshard.mesh import Mesh
>>> text = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"
>>> print(read_sharding(text, Mesh.of(x=2, y=4)).text())
[{"y"}, {}]
>>> print(read_sharding(text, None))
#sdy.sharding<mesh<["a"=2, "b"=4]>, [{"b"}, {}]>
>>> write_sharding(Sharding.of(Mesh.of(x=2, y=4), "y", None))
'{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}'
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reshard.axis import Axis
from reshard.checks import LIMIT
from reshard.digits import Digits, Positions, Transposition
from reshard.errors import ReshardError
from reshard.mesh import ENUMERABLE, Mesh
from reshard.notation.grammar import Form, Misread, mentioning, number, parse, placed, rule, shown
from reshard.notation.plain import check_blocks
from reshard.sharding import Sharding

if TYPE_CHECKING:
    from lark import Token

_TUPLE = re.compile(r"\s*(?:sharding\s*=\s*)?\{\s*(?:\{|\})")


class TileAssignment(NamedTuple):
    """A tile assignment as its text has it."""

    shape: tuple[int, ...]
    """How often each dim of the tensor is cut; then the sizes of the subgroups."""
    subgroups: tuple[str, ...]
    """What the devices along the last dims of `shape` hold: `replicated` or `unreduced`."""
    reshaped: tuple[int, ...]
    """The dims of the iota; empty where the devices are listed."""
    order: tuple[int, ...]
    """How the iota is transposed; or the devices."""

    def devices(self) -> Positions:
        """The devices in the order of the tiles."""
        if not self.reshaped:
            return np.array(self.order, dtype=np.int64)
        if prod(self.reshaped) > ENUMERABLE:
            raise ReshardError("too-large", f"{prod(self.reshaped)} devices in no order of digits are too many to list")
        return (self.digits() or Digits()).offsets()

    def digits(self) -> Digits | None:
        """The devices as digits of their number, in the order of the tiles; None where they are no such list."""
        if not self.reshaped:
            return _digits(self.with_copies_sorted(self.devices()))
        iota = Digits.of_sizes(self.reshaped)
        return Digits(iota[place] for place in self.order if iota[place].size > 1)

    def with_copies_sorted(self, numbers: Positions) -> Positions:
        """One number per tile, with those of each tile's copies, whose order says nothing, in ascending order."""
        kinds = [""] * (len(self.shape) - len(self.subgroups)) + list(self.subgroups)
        cut = [(size, kind == "replicated") for size, kind in zip(self.shape, kinds, strict=True) if size > 1]
        order = sorted(range(len(cut)), key=lambda place: cut[place][1])
        moved = numbers.reshape([size for size, _ in cut]).transpose(order)
        rows = np.sort(moved.reshape(-1, prod(size for size, is_copy in cut if is_copy)))
        return rows.reshape(moved.shape).transpose(np.argsort(order)).ravel()


class _XlaRules:
    """What each rule of the grammar stands for, by its name."""

    @rule
    def tiles(self, parts: list[Token]) -> tuple[int, ...]:
        for part in parts:
            if number(part) == 0:
                raise Misread(part, "a dim must be cut into at least 1 tile; found 0")
        return tuple(map(int, parts))

    reshaped = tiles

    @rule
    def iota(self, parts: list[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if len(parts) == 1:
            return self.tiles(parts), (0,)
        reshaped, *order = parts
        numbers = tuple(number(part) for part in order)
        if sorted(numbers) != list(range(len(reshaped))):
            listing = shown(",".join(order))
            problem = f"a transposition of {len(reshaped)} dims must hold each of 0 to {len(reshaped) - 1} once"
            raise Misread(order[0], f"{problem}; found {listing}")
        return reshaped, numbers

    @rule
    def listed(self, parts: list[Token]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (), tuple(number(part) for part in parts)

    @rule
    def last_tile_dim_replicate(self, _: list[Token]) -> list[str]:
        return ["replicated"]

    @rule
    def last_tile_dims(self, parts: list[Token]) -> list[str]:
        for part in parts:
            if part == "manual":
                raise Misread(part, _MANUAL)
        return [str(part) for part in parts]

    @rule
    def tiled(self, parts: list[Any]) -> TileAssignment:
        shape, (reshaped, order) = parts[:2]
        subgroups = tuple(parts[2]) if len(parts) > 2 else ()
        if len(subgroups) > len(shape):
            raise ReshardError("syntax", f"{len(subgroups)} last tile dims are named, but there are {len(shape)} dims")
        tiles, count = _product(shape), _product(reshaped) if reshaped else len(order)
        if tiles != count:
            raise ReshardError("device-ids-count", f"{count} devices are given for {tiles} tiles")
        if not reshaped and len(set(order)) != count:
            twice = Counter(order).most_common(1)[0][0]
            raise ReshardError("duplicate-device-id", f"device {twice} is listed twice")
        return TileAssignment(shape, subgroups, reshaped, order)

    @rule
    def maximal(self, parts: list[Token]) -> int:
        return number(parts[0])

    @rule
    def sharding(self, parts: list[Any]) -> TileAssignment | Token | int:
        kind: TileAssignment | Token | int = parts[0]
        if not isinstance(kind, TileAssignment | int) and kind.type in _REFUSED:
            raise Misread(kind, _REFUSED[kind.type])
        return kind


def _product(sizes: Iterable[int]) -> int:
    """The product of sizes, which must be below 2**62; it is not carried further, for a text may have very many."""
    total = 1
    for size in sizes:
        total *= size
        if total >= LIMIT:
            raise ReshardError("too-large", "there are 2**62 tiles or devices, or more; there must be fewer")
    return total


_MANUAL = "a manual sharding leaves to the program what each device holds, so it cannot be read; found `manual`"
_REFUSED = {"MANUAL": _MANUAL, "UNKNOWN": "an unknown sharding says nothing; found `unknown`"}

FORM = Form(
    name="xla",
    starts=("sharding",),
    words={"NUMBER": "a number", "BLOCK": "metadata in braces"},
    builder=_XlaRules(),
)


def read_sharding(text: str, mesh: Mesh | None, ndim: int | None = None) -> Sharding:
    """A sharding from XLA's text.

    Args:
        text: with or without its braces, and `sharding=` before it.
        mesh: of the same devices; the sharding is on it where its axes can express the text.
        ndim: the number of dims of the tensor, which `{replicated}` and `{unreduced}` do not say.

    Raises:
        ReshardError: `syntax`, `rank-mismatch`, `different-meshes` where the mesh has other devices,
            `bad-argument` where `ndim` is needed, `unknown-mesh` where a mesh is, or the code of the rule that
            is broken.
    """
    if opening := _TUPLE.match(text):
        place = text.index("{", 0, opening.end())
        ending = "; it holds a sharding for every part of a tuple, so give one of those"
        raise placed(text, place, "a tuple sharding begins", ending)
    kind: TileAssignment | Token | int = parse(FORM, "sharding", text)
    mesh = None if mesh is None or mesh.is_empty else mesh
    with mentioning(text):
        if isinstance(kind, int):
            if mesh is not None:
                mesh.position_of(kind)
            return Sharding(Mesh((), (kind,)), ())
        if isinstance(kind, TileAssignment):
            return _tiled(kind, mesh, ndim)
        if ndim is None:
            raise ReshardError("bad-argument", "the text does not say the number of dims; ndim must be given")
        if kind.type == "UNREDUCED" and mesh is None:
            raise ReshardError("unknown-mesh", "the text does not say on which devices; a mesh must be given")
        if mesh is not None and mesh.is_maximal:
            return Sharding(mesh, ())
        names = [name for name, size in mesh.axes if size > 1] if mesh and kind.type == "UNREDUCED" else []
        return Sharding.of(mesh or Mesh(()), *[None] * ndim, unreduced=names)


def _tiled(tiles: TileAssignment, mesh: Mesh | None, ndim: int | None) -> Sharding:
    rank = len(tiles.shape) - len(tiles.subgroups)
    if ndim is not None and rank != ndim:
        raise ReshardError("rank-mismatch", f"the tiles have {rank} dims, the tensor {ndim}")
    if mesh is not None:
        digits = _digits_on(tiles, mesh)
        dealt = None if digits is None else _dealt(digits, tiles.shape)
        named = dealt and _named(dealt, mesh)
        if named:
            return _assembled(mesh, tiles, named)
    return _on_fresh_mesh(tiles)


def _named(dealt: Sequence[Digits], mesh: Mesh) -> list[tuple[Axis, ...]] | None:
    """Digits by the names of a mesh; None where one list of them has none."""
    axes = [mesh.axes_of(digits) for digits in dealt]
    known = [part for part in axes if part is not None]
    return known if len(known) == len(axes) else None


def _on_fresh_mesh(tiles: TileAssignment) -> Sharding:
    """On axes a, b, c, …: a digit each, in the order of the devices; or a dim of tiles each, with device ids."""
    digits = tiles.digits()
    dealt = None if digits is None else _dealt(digits, tiles.shape)
    if dealt is not None:
        mesh = Mesh.of_digits(Digits(itertools.chain(*dealt)))
    else:
        dealt = [Digits((digit,)) for digit in Digits.of_sizes(tiles.shape)]
        cut = Digits(digit for digits in dealt for digit in digits if digit.size > 1)
        mesh = Mesh.of_digits(cut, tuple(tiles.devices().tolist()))
    return _assembled(mesh, tiles, _named(dealt, mesh) or [])


def _assembled(mesh: Mesh, tiles: TileAssignment, axes: Sequence[Sequence[Axis]]) -> Sharding:
    """The sharding, given the axes that cut each dim of the tiles."""
    rank = len(tiles.shape) - len(tiles.subgroups)
    last = zip(tiles.subgroups, axes[rank:], strict=True)
    unreduced = [axis for subgroup, part in last if subgroup == "unreduced" for axis in part]
    return Sharding.of(mesh, *axes[:rank], unreduced=unreduced)


def _digits_on(tiles: TileAssignment, mesh: Mesh) -> Digits | None:
    """The tiles' devices as digits of their position in a mesh; None where they are no such list."""
    count = prod(tiles.shape)
    if count != mesh.size:
        raise ReshardError("different-meshes", f"the text is about {count} devices, mesh {mesh} has {mesh.size}")
    if mesh.device_ids is None and tiles.reshaped:
        return tiles.digits()
    devices = tiles.devices()
    ids = np.array(mesh.devices, dtype=np.int64)
    by_id = np.argsort(ids)
    if not np.array_equal(ids[by_id], np.sort(devices)):
        strange = min(set(devices.tolist()) - set(ids.tolist()))
        raise ReshardError("different-meshes", f"the text is about device {strange}, which is not in mesh {mesh}")
    return _digits(tiles.with_copies_sorted(by_id[np.searchsorted(ids, devices, sorter=by_id)]))


def _digits(numbers: Positions) -> Digits | None:
    """A list of the numbers 0 to D - 1 as digits of the number, major to minor in the list; None where it is none.

    >>> _digits(np.array([0, 2, 1, 3]))
    Digits([Digit(stride=1, size=2), Digit(stride=2, size=2)])
    """
    order = Transposition.of(numbers) if int(numbers.max()) == len(numbers) - 1 else None
    return None if order is None else order.after


def _dealt(digits: Digits, sizes: Sequence[int]) -> list[Digits] | None:
    """Digits in order, cut so that each of `sizes` takes some whole ones; None where they do not divide.

    >>> _dealt(Digits.of_sizes([8]), [2, 1, 4])
    [Digits([Digit(stride=4, size=2)]), Digits([]), Digits([Digit(stride=1, size=4)])]
    """
    order = Transposition(Digits.of_sizes([digit.size for digit in digits]), digits)
    dealt = [order.parts_of(Digits((tile_digit,))) for tile_digit in Digits.of_sizes(sizes)]
    return dealt if [part.size for part in dealt] == list(sizes) else None


def write_sharding(sharding: Sharding, ndim: int | None = None) -> str:
    """XLA's text of a sharding, in the shortest form that XLA itself prints.

    It drops the names, open dims, priorities and explicit replication, which move no element.
    `{replicated}` and `{unreduced}` do not list devices: they mean all of the mesh that they are read with.

    Args:
        sharding: to be written.
        ndim: the number of dims, checked where given.

    Raises:
        ReshardError: `cannot-express` where the form cannot hold the sharding: chunks of chunks, reductions other
            than sum; `rank-mismatch`.

    >>> write_sharding(Sharding.of(Mesh.of(x=2, y=4), "x", None, unreduced="y:(1)2"))
    '{devices=[2,1,2,2]<=[8] last_tile_dims={unreduced, replicated}}'
    """
    check_blocks(sharding, "XLA's form")
    if sharding.reduction != "sum":
        raise ReshardError(
            "cannot-express", f"XLA's form has sums alone, but {sharding.text()} is under {sharding.reduction}"
        )
    if ndim is not None and sharding.ndim not in (None, ndim):
        raise ReshardError("rank-mismatch", f"sharding {sharding.text()} has {sharding.ndim} dims, not {ndim}")
    mesh, layout = sharding.mesh, sharding.layout
    if mesh.is_maximal:
        return f"{{maximal device={mesh.device_at(0)}}}"
    tiles = [layout.shards(dim) for dim in range(len(layout.dims))]
    partial, copies = layout.unreduced.size, layout.copies()
    if prod(tiles) == 1 and 1 in (partial, copies):
        return "{replicated}" if partial == 1 else "{unreduced}"
    digits = Digits(itertools.chain(*layout.cutting, layout.unreduced, layout.free)).joined()
    subgroups = [(name, size) for name, size in (("unreduced", partial), ("replicated", copies)) if size > 1]
    shape = ",".join(map(str, [*tiles, *(size for _, size in subgroups)]))
    names = [name for name, _ in subgroups]
    last = " last_tile_dim_replicate" if names == ["replicated"] else f" last_tile_dims={{{', '.join(names)}}}"
    return f"{{devices=[{shape}]{_listing(digits, mesh, copies)}{last if names else ''}}}"


def _listing(digits: Digits, mesh: Mesh, copies: int) -> str:
    """The devices in the order of digits of their position: as an iota where it is one.

    Among the `copies` of a tile, which come last, devices are in ascending order.
    """
    if mesh.device_ids is not None:
        devices = np.sort(np.array(mesh.device_ids, dtype=np.int64)[digits.offsets()].reshape(-1, copies)).ravel()
        listed = _digits(devices)
        if listed is None:
            return ",".join(map(str, devices.tolist()))
        digits = listed.joined()
    order = sorted(range(len(digits)), key=lambda place: -digits[place].stride)
    sizes = ",".join(str(digits[place].size) for place in order)
    ranks = {place: rank for rank, place in enumerate(order)}
    transposition = ",".join(str(ranks[place]) for place in range(len(digits)))
    return f"<=[{sizes}]" + (f"T({transposition})" if len(digits) > 1 else "")
