"""Steps as MLIR text: in the collectives of Shardy's `sdy` dialect, or in those of MLIR's `shard` dialect.

The `sdy` text is about whole tensors: each operation names the axes that it takes from dims or puts there, and the
sharding that comes out.
The `shard` text is about tiles: each operation has the local types, and names mesh axes by number.
What both can say is a closed list of collectives, each of which works at the minor end of a dim's axes:

    all_gather          axes leave the minor ends of dims
    all_slice           axes come to the minor ends of dims, along which the tensor was replicated
    all_to_all          axes go from the minor end of one dim to that of another, several pairs of dims at a time
    collective_permute  whole tiles change places
    reduce_scatter      unreduced axes come to the minor ends of dims
    all_reduce          unreduced axes leave

A step that is no such collective, as an Exchange is not, is refused; moves that meet in a dim take one all_to_all
after another, which may send more than the step did.

Shardy's verifier takes the `sdy` text, and its pass `sdy-convert-global-to-local` lowers it where tiles are even.
Beware of that pass in jaxlib 0.10.2: it does not know the operations that make values partial, and a permutation that
moves a part of an axis goes to the wrong devices.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=4)
>>> reshard = Reshard.of(Sharding.of(mesh, ("x", "y"), None), Sharding.of(mesh, "x", "y"), (16, 8))
>>> print(write_sdy(reshard, [Step(reshard)]), end="")
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @reshard(%arg0: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>})\
 -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) {
    %0 = sdy.all_to_all [{"y"}: 0->1] %arg0 out_sharding=<@mesh, [{"x"}, {"y"}]> : tensor<16x8xf32>
    return %0 : tensor<16x8xf32>
  }
}
>>> print(write_shard(reshard, [Step(reshard)]), end="")
module {
  shard.grid @mesh(shape = 2x4)
  // [[0, 1], []] -> [[0], [1]]
  func.func @reshard(%arg0: tensor<2x8xf32>) -> tensor<8x2xf32> {
    %0 = shard.all_to_all %arg0 on @mesh grid_axes = [1] split_axis = 1 concat_axis = 0 :\
 tensor<2x8xf32> -> tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import NamedTuple

from reshard.axis import Axes, Axis, aligned, common_prefix, difference, merged, sorted_and_merged
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation import to_mlir_list
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Step


class DimMove(NamedTuple):
    """Axes that an all_to_all takes from one dim to another."""

    axes: Axes
    source: int
    target: int


class MlirOperation(NamedTuple):
    """One operation: its name without the dialect, where it leads, and the axes that it works on."""

    name: str
    after: Sharding
    lists: tuple[Axes, ...] = ()
    """Per dim the axes that leave or come; only where the operation works on dims."""
    moves: tuple[DimMove, ...] = ()
    """Of an all_to_all."""
    axes: Axes = ()
    """Of an operation that works on no dim."""
    reduction: str = "sum"
    idle: bool = False
    """Of a permutation that only changes how axes of size 1 are named."""


class _NoOne(Exception):  # noqa: N818 - an answer inside this module, not an error that leaves it
    """Why a step is not a sequence of these operations, and whether those of another plan could be."""

    def __init__(self, reason: str, *, is_hopeless: bool = False) -> None:
        super().__init__(reason)
        self.is_hopeless = is_hopeless


def write_sdy(reshard: Reshard, steps: Sequence[Step]) -> str:
    """An MLIR module whose one function takes the steps, in the collectives of the `sdy` dialect.

    It is written as MLIR prints it.
    Max and min are written as Shardy writes them since July 2026; earlier versions read sums alone.

    Args:
        reshard: from the function's argument to its result.
        steps: from source to target; none where both are one placement.

    Raises:
        ReshardError: `no-plan` where a step is no collective of the dialect, or a mesh, a reduction or an uneven dim
            is none that the dialect knows; the sentence says which.
    """
    source, target, shape = reshard.source, reshard.target, reshard.shape
    ends = [source, target, *(sharding for step in steps for sharding in (step.before, step.after))]
    for sharding in ends:
        sharding.check_plain("a module of MLIR")
        _check_sdy(sharding, shape)
    meshes = list(dict.fromkeys(sharding.mesh for sharding in ends))
    names = {mesh: "mesh" + (f"_{number}" if number else "") for number, mesh in enumerate(meshes)}
    kind = _tensor(shape, reshard.dtype)

    closed = any(step.kind == "ToUnreduced" for step in steps)  # whose operation wants dims that are letter-equal

    def sharding_text(sharding: Sharding) -> str:
        if closed:
            dims = tuple(replace(dim, is_open=False, priority=None) for dim in sharding.dims)
            sharding = replace(sharding, dims=dims)
        return f"<@{names[sharding.mesh]}, {replace(sharding, uneven='ceil').text()}>"

    lines: list[str] = []
    value = "%arg0"
    for operation in _operations(steps, "sdy"):
        arguments = _sdy_arguments(operation)
        out = f"out_sharding={sharding_text(operation.after)}"
        lines.append(f"%{len(lines)} = sdy.{operation.name} {arguments}{value} {out} : {kind}")
        value = f"%{len(lines) - 1}"
    attributes = [f"{kind} {{sdy.sharding = #sdy.sharding{sharding_text(end)}}}" for end in (source, target)]
    head = [f"sdy.mesh @{name} = {mesh}" for mesh, name in names.items()]
    return _module(head, f"(%arg0: {attributes[0]}) -> ({attributes[1]})", [*lines, f"return {value} : {kind}"])


def write_shard(reshard: Reshard, steps: Sequence[Step]) -> str:
    """An MLIR module whose one function takes the steps on one device's tile, in the `shard` dialect.

    An operation of that dialect works on one dim, or on one pair of dims, so a step may be several of them.

    Args:
        reshard: between the tensors whose tiles are the function's argument and its result.
        steps: from source to target; none where both are one placement.

    Raises:
        ReshardError: `no-plan` where a step has no operation in the dialect, among them all that permute whole tiles
            or make values partial; where axes are used in part; where devices are out of order. `not-divisible`
            where tiles are uneven.
    """
    source, target, shape, dtype = reshard.source, reshard.target, reshard.shape, reshard.dtype
    mesh = source.mesh
    for sharding in (source, target, *(step.after for step in steps)):
        sharding.check_plain("a module of MLIR")
        _check_shard(sharding, mesh)
        sharding.check_divisible(shape)
    number = {name: place for place, (name, _) in enumerate(mesh.axes)}
    local = list(source.local_shape(shape))
    lines: list[str] = []
    value, kind = "%arg0", _tensor(local, dtype)
    for operation in _operations(steps, "shard"):
        for text, axes, grown, cut in _shard_operations(operation):
            size = prod(mesh.sizes[axis.name] for axis in axes)
            if grown is not None:
                local[grown] *= size
            if cut is not None:
                local[cut] //= size
            grid = f"on @mesh grid_axes = {[number[axis.name] for axis in axes]}"
            before, kind = kind, _tensor(local, dtype)
            lines.append(f"%{len(lines)} = shard.{operation.name} {value} {grid}{text} : {before} -> {kind}")
            value = f"%{len(lines) - 1}"
    ends = [_tensor(sharding.local_shape(shape), dtype) for sharding in (source, target)]
    grid = "x".join(str(size) for _, size in mesh.axes)
    lists = [to_mlir_list(replace(sharding, unreduced=(), reduction="sum")) for sharding in (source, target)]
    head = [f"shard.grid @mesh(shape = {grid})", f"// {lists[0]} -> {lists[1]}"]
    return _module(head, f"(%arg0: {ends[0]}) -> {ends[1]}", [*lines, f"return {value} : {kind}"])


def _module(head: Iterable[str], signature: str, body: Iterable[str]) -> str:
    lines = [*head, f"func.func @reshard{signature} {{", *(f"  {line}" for line in body), "}"]
    return "\n".join(["module {", *(f"  {line}" for line in lines), "}"]) + "\n"


def _tensor(shape: Iterable[int], dtype: DType) -> str:
    """The type of a tensor.

    >>> from reshard.dtypes import dtype_named
    >>> _tensor((2, 3), dtype_named("bfloat16")), _tensor((), dtype_named("bool")), _tensor((4,), dtype_named("c64"))
    ('tensor<2x3xbf16>', 'tensor<i1>', 'tensor<4xcomplex<f32>>')
    """
    name, bits = dtype.name, 8 * dtype.itemsize
    if name.startswith("float8_"):
        element = "f8" + name.removeprefix("float8_").upper()
    else:
        words = {"b": "i1", "i": f"i{bits}", "u": f"ui{bits}", "f": f"f{bits}", "c": f"complex<f{bits // 2}>"}
        element = "bf16" if name == "bfloat16" else words[dtype.kind]
    return "tensor<" + "x".join([*map(str, shape), element]) + ">"


def _operations(steps: Sequence[Step], dialect: str) -> list[MlirOperation]:
    result: list[MlirOperation] = []
    for number, step in enumerate(steps, 1):
        try:
            operations = operations_of(step)
            if dialect == "shard":
                _check_names(operations)
        except _NoOne as reason:
            raise ReshardError(
                "no-plan",
                f"step {number}, {step.kind} from {step.before.text()} to {step.after.text()}, cannot be written in "
                f"the {dialect} dialect: {reason}"
                + ("" if reason.is_hopeless else '; a plan in the basis "collectives" can be written'),
            ) from None
        result += operations
    return result


def _check_names(operations: Iterable[MlirOperation]) -> None:
    for operation in operations:
        if operation.name == "collective_permute" and not operation.idle:
            raise _NoOne("it has no operation that permutes whole tiles", is_hopeless=True)
        if operation.name.endswith("_to_unreduced"):
            raise _NoOne("it has no operation that makes values partial", is_hopeless=True)


def _check_sdy(sharding: Sharding, shape: tuple[int, ...]) -> None:
    mesh = sharding.mesh
    if mesh.device_ids is not None and mesh.axes and max(mesh.device_ids) >= mesh.size:
        raise ReshardError(
            "no-plan", f"mesh {mesh} cannot be written in the sdy dialect, which knows meshes of all devices alone"
        )
    if sharding.uneven != "ceil" and not sharding.is_equivalent_to(replace(sharding, uneven="ceil"), shape):
        raise ReshardError(
            "no-plan",
            f"{sharding.text()} cuts shape {shape} in chunks of chunks, which the sdy dialect does not know",
        )
    if sharding.unreduced and sharding.reduction not in ("sum", "max", "min"):
        raise ReshardError(
            "no-plan",
            f"{sharding.text()} cannot be written in the sdy dialect, which reduces by sum, max and min alone",
        )


def _check_shard(sharding: Sharding, mesh: Mesh) -> None:
    if sharding.mesh != mesh or mesh.device_ids is not None or not mesh.axes:
        raise ReshardError(
            "no-plan",
            f"mesh {sharding.mesh} cannot be written in the shard dialect, whose grid is one mesh in the order 0, 1, 2",
        )
    for axis in sharding.axes():
        if not axis.is_whole and axis not in sharding.replicated:
            raise ReshardError(
                "no-plan", f"sub-axis {axis} cannot be written in the shard dialect, whose axes are whole"
            )


# What the operations are told in the sdy dialect.


def _sdy_arguments(operation: MlirOperation) -> str:
    """What stands between the name and the operand."""
    word = "" if operation.reduction == "sum" else f"{operation.reduction} "
    if operation.moves:
        moves = [f"{_braced(axes)}: {source}->{target}" for axes, source, target in operation.moves]
        return f"[{', '.join(moves)}] "
    if operation.axes:
        return f"{word}{_braced(operation.axes)} "
    return f"{word}[{', '.join(map(_braced, operation.lists))}] " if operation.lists else ""


def _braced(axes: Iterable[Axis]) -> str:
    return "{" + ", ".join(map(str, axes)) + "}"


# What they are told in the shard dialect.

_SHARD_REDUCTIONS = {"avg": "average", "band": "bitwise_and", "bor": "bitwise_or", "bxor": "bitwise_xor"}
_SHARD_WORDS = {"all_gather": "gather_axis", "all_slice": "slice_axis", "reduce_scatter": "scatter_dim"}


def _shard_operations(operation: MlirOperation) -> list[tuple[str, Axes, int | None, int | None]]:
    """Per operation what follows the axes, the axes, the dim that grows, and the dim that is cut."""
    word = _SHARD_REDUCTIONS.get(operation.reduction, operation.reduction)
    reduction = "" if word == "sum" else f" reduction = {word}"
    if operation.moves:
        return [
            (f" split_axis = {target} concat_axis = {source}", axes, source, target)
            for axes, source, target in operation.moves
        ]
    if operation.name == "all_reduce":
        return [(reduction, operation.axes, None, None)]
    result = []
    for dim, axes in enumerate(operation.lists):
        if axes:
            grown, cut = (dim, None) if operation.name == "all_gather" else (None, dim)
            result.append((f"{reduction} {_SHARD_WORDS[operation.name]} = {dim}", axes, grown, cut))
    return result


# Steps as collectives: what changes in the axis lists says which.


def operations_of(step: Step) -> list[MlirOperation]:
    """The operations that a step is.

    Axes of size 1, which cut nothing, may stand in the way of the axis lists; then they leave before the step and
    come back after it, in permutations that send nothing.
    """
    try:
        return _direct(step.kind, step.before, step.after)
    except _NoOne:
        before, after = _without_units(step.before), _without_units(step.after)
        if before == step.before and after == step.after:
            raise
        leaves = [MlirOperation("collective_permute", before, idle=True)] if before != step.before else []
        comes = [MlirOperation("collective_permute", step.after, idle=True)] if after != step.after else []
        return [*leaves, *(_direct(step.kind, before, after) if before != after else []), *comes]


def _without_units(sharding: Sharding) -> Sharding:
    sizes = sharding.mesh.sizes
    lists = [merged([axis for axis in dim.axes if axis.size_in(sizes[axis.name]) > 1], sizes) for dim in sharding.dims]
    return (
        _with_axes(sharding, lists) if any(a != b.axes for a, b in zip(lists, sharding.dims, strict=True)) else sharding
    )


def _with_axes(sharding: Sharding, lists: Iterable[Axes]) -> Sharding:
    """The sharding with other axes in its dims, none of them replicated, and no priorities."""
    dims = [replace(dim, axes=axes, priority=None) for dim, axes in zip(sharding.dims, lists, strict=True)]
    return replace(sharding, dims=tuple(dims), replicated=())


def _direct(kind: str, before: Sharding, after: Sharding) -> list[MlirOperation]:
    if kind == "Exchange":
        raise _NoOne("it is no collective but an exchange of pieces")
    if kind == "Permute":
        return [_permute(before, after)]
    if before.mesh != after.mesh:
        raise _NoOne(f"it leads from mesh {before.mesh} to mesh {after.mesh}", is_hopeless=True)
    if kind == "ToUnreduced":
        return _to_unreduced(before, after)
    if kind == "AllToAll":
        _same_unreduced(before, after)
        return _all_to_alls(before, after)
    reduced = difference(before.unreduced, after.unreduced, before.mesh.sizes)
    if kind in ("AllReduce", "ReduceScatter"):
        if difference(after.unreduced, before.unreduced, before.mesh.sizes):
            raise _NoOne("the values become partial along other axes", is_hopeless=True)
        comes = _tails(before, after, "come to")
        if kind == "AllReduce":
            if any(comes):
                raise _NoOne("the axes of a dim change")
            return [MlirOperation("all_reduce", after, axes=reduced, reduction=before.reduction)]
        if set(_set_of(comes, before)) != set(reduced):
            raise _NoOne("the axes that come to the dims are not those that were unreduced")
        return [MlirOperation("reduce_scatter", after, comes, reduction=before.reduction)]
    _same_unreduced(before, after)
    if kind == "AllGather":
        return [MlirOperation("all_gather", after, _tails(after, before, "leave"))]
    return [MlirOperation("all_slice", after, _tails(before, after, "come to"))]


def _same_unreduced(before: Sharding, after: Sharding) -> None:
    if before.unreduced != after.unreduced:
        raise _NoOne("the unreduced axes are others", is_hopeless=True)


def _tails(short: Sharding, long: Sharding, verb: str) -> tuple[Axes, ...]:
    """Per dim, the axes of `long` that follow those of `short`."""
    sizes = short.mesh.sizes
    tails = []
    for number, (few, many) in enumerate(zip(short.dims, long.dims, strict=True)):
        tail = difference(many.axes, few.axes, sizes)
        if merged([*few.axes, *tail], sizes) != many.axes:
            raise _NoOne(f"the axes that {verb} dim {number} are not its most minor ones")
        tails.append(tail)
    return tuple(tails)


def _set_of(lists: Iterable[Axes], sharding: Sharding) -> Axes:
    return sorted_and_merged([axis for axes in lists for axis in axes], sharding.mesh.sizes)


def _permute(before: Sharding, after: Sharding) -> MlirOperation:
    if before.mesh.axes != after.mesh.axes:
        raise _NoOne(f"it leads from mesh {before.mesh} to mesh {after.mesh}", is_hopeless=True)
    counts = [[sharding.layout.shards(dim) for dim in range(len(sharding.dims))] for sharding in (before, after)]
    if counts[0] != counts[1]:
        raise _NoOne("a dim is cut into another number of parts")
    if before.unreduced or after.unreduced:
        raise _NoOne("a permutation does not look at unreduced axes", is_hopeless=True)
    return MlirOperation("collective_permute", after)


def _to_unreduced(before: Sharding, after: Sharding) -> list[MlirOperation]:
    sizes = before.mesh.sizes
    if after.reduction != "sum":
        raise _NoOne(f"values become partial under sum alone, not under {after.reduction}", is_hopeless=True)
    newly_unreduced = difference(after.unreduced, before.unreduced, sizes)
    leaves = _tails(after, before, "leave")
    from_dims = _set_of(leaves, before)
    from_copies = difference(newly_unreduced, from_dims, sizes)
    if difference(from_dims, newly_unreduced, sizes) or difference(before.unreduced, after.unreduced, sizes):
        raise _NoOne("an axis that leaves does not become unreduced")
    result = []
    middle = after
    if from_copies and from_dims:
        unreduced = sorted_and_merged([*before.unreduced, *from_dims], sizes)
        middle = replace(after, replicated=(), unreduced=unreduced)
    if from_dims:
        result.append(MlirOperation("sharded_to_unreduced", middle, leaves))
    if from_copies:
        result.append(MlirOperation("replicated_to_unreduced", after, axes=from_copies))
    return result


def _all_to_alls(before: Sharding, after: Sharding) -> list[MlirOperation]:
    """Moves from minor end to minor end, each piece once; as many at a time as have dims of their own."""
    sizes = before.mesh.sizes
    settled = [list(common_prefix(a.axes, b.axes)) for a, b in zip(before.dims, after.dims, strict=True)]
    outs, ins = (
        [difference(dim.axes, prefix, sizes) for dim, prefix in zip(sharding.dims, settled, strict=True)]
        for sharding in (before, after)
    )
    cut = aligned(list(chain.from_iterable(outs)), list(chain.from_iterable(ins)), sizes)
    if set(cut[0]) != set(cut[1]):
        raise _NoOne("the axes that leave the dims are not those that come to them")
    leaving, missing = (
        [[piece for axis in axes for piece in pieces if axis.contains(piece)] for axes in lists]
        for lists, pieces in zip((outs, ins), cut, strict=True)
    )
    result: list[MlirOperation] = []
    while any(missing):
        moves = _next_moves(leaving, missing)
        if not moves:
            raise _NoOne("an axis that moves is not at the minor end of its dim, or its place is not")
        moved = []
        for axes, source, target in moves:
            del leaving[source][-len(axes) :]
            del missing[target][: len(axes)]
            settled[target] += axes
            moved.append(DimMove(merged(axes, sizes), source, target))
        lists = [merged([*prefix, *rest], sizes) for prefix, rest in zip(settled, leaving, strict=True)]
        reached = _with_axes(after, lists) if any(missing) else after
        result.append(MlirOperation("all_to_all", reached, moves=tuple(moved)))
    return result


def _next_moves(leaving: list[list[Axis]], missing: list[list[Axis]]) -> list[DimMove]:
    """The moves that can be made now, no dim in two of them, the longest run of axes in each."""
    moves: list[DimMove] = []
    for source, tail in enumerate(leaving):
        for target, need in enumerate(missing):
            used = {dim for move in moves for dim in move[1:]}
            if leaving[target] or used & {source, target}:
                continue
            runs = [n for n in range(1, len(tail) + 1) if tail[-n:] == need[:n]]
            if runs:
                moves.append(DimMove(tuple(tail[-max(runs) :]), source, target))
    return moves
