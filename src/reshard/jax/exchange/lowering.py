"""A plan as what one device does, inside a `shard_map` over the whole mesh.

Every move of a plan is lowered by what its exchange is:

| exchange | becomes |
|---|---|
| an AllReduce by sum, max or min | `psum`, `pmax` or `pmin` of a share, then `all_gather` where there are shares |
| in digits, every device its own sender in round 0 | `all_gather`, `all_to_all` or `psum_scatter` of groups |
| any other, along a ring too | rounds of `ppermute`: `permutations.py`, `rounds.py` |
| any, of a plan with a memory limit | loops of chunks: `chunked.py` |

**Groups.** Where every sender digit is determined by the receiver's own, the k devices that differ in the gathered
digits alone send each other one piece each: a collective of that group, whatever the axes are called, so sub-axes
need no mesh of their own.
A tile is then an array with one dim per digit: a source tile by the digits that the target cuts, a target tile by
the digits that are gathered.
So packing and unpacking are a transposition each, which is no copy where the digits are the outermost already.

By hand, 8 x 8 on y=4, `[{"y"}, {}] -> [{}, {"y"}]`: a source tile of 2 x 8 is seen as (2, y, 2) and packed as
(y, 2, 2); after the all-to-all the first dim counts senders, and (y, 2, 2) is a target tile of 8 x 2 as it stands.

**In turn.** One collective of all gathered digits is the fewest messages, but copies much: a part that several
members need once for each of them, and a tile whose parts arrive in another order as a whole.
So large tiles take up to three, of fewer digits each: those that the target cuts are exchanged, the others gathered,
the outermost of the tile last, so that it is complete as it arrives.
The bytes are the same: of p g parts, (p - 1) are received first and then (g - 1) p, together p g - 1.

By hand, 8 x 8 on x=2, y=2, `[{"x"}, {"y"}] -> [{}, {}]`: all four tiles of 4 x 4 come as (x, y, 4, 4), of which
(x, 4, y, 4) must be made; in turn (y, 4, 4) comes first, of which (4, y, 4) is made, half as much to copy, and two
of these are (x, 4, 8), the tile as it stands.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Generator, Sequence
from math import prod
from typing import NamedTuple

import jax
import numpy as np
from jax import lax

from reshard.digits import Digit, Digits
from reshard.exchange import DigitExchange
from reshard.jax.exchange.chunked import chunk_elements, moved_in_chunks
from reshard.jax.exchange.device import Device, of_device
from reshard.jax.exchange.joint import CallKind, DeviceRun, GroupCall, run_alone
from reshard.jax.exchange.repeated_places import added, repeated
from reshard.jax.exchange.rounds import COMBINE, bits_of, in_rounds
from reshard.plans import Plan
from reshard.refinement import Cuts, Role
from reshard.steps import Move, Step, step_of

GROUP_REDUCTIONS: dict[str, CallKind] = {"sum": "psum", "max": "pmax", "min": "pmin"}
"""Reductions that are one collective."""
LARGE_BYTES = 1 << 20
"""From tiles of this size on digits go in turn.

On 8 devices of a CPU that is faster from 64 KiB on; it is later where a collective takes longer to start.
"""


def run_on_device(plan: Plan, names: tuple[str, ...], tile: jax.Array) -> jax.Array:
    """The target tile of a device, from its source tile, where all axes of the mesh are manual.

    Args:
        plan: what to do, over the same devices; in several orders only where nothing is reduced.
        names: the axes of the target's mesh, in its order.
        tile: the source tile.
    """
    device = Device.here(names)
    return run_alone(on_device(plan, device, tile), device)


def on_device(plan: Plan, device: Device, tile: jax.Array) -> DeviceRun:
    """The same, call by call: what `run_together` takes of several plans."""
    local_shape = plan.target.local_shape(plan.shape)
    if 0 in plan.shape:
        return lax.full(local_shape, 0, tile.dtype)
    if plan.options.memory_limit is not None:
        return lax.reshape((yield from _in_bounded_memory(plan, device, tile)), local_shape)
    if plan.parts > 1:
        for stretch in plan.stretches:
            tile = yield from (_in_parts if stretch.parts > 1 else on_device)(stretch, device, tile)
        return lax.reshape(tile, local_shape)
    transfers = [move for step in plan.steps for move in step.transfers]
    combines = any(move.reduction or move.fill not in (None, "sum") for move in transfers)  # zero is so in bits too
    dtype, bits = tile.dtype, None if combines else bits_of(tile.dtype)
    tile = lax.bitcast_convert_type(tile, bits) if bits else tile
    tiles = {plan.source: tile}
    for step in plan.steps:
        tile = yield from _after(step, device, tile, None if step.kept is None else tiles[step.kept])
        tiles[step.after] = tile
    return lax.reshape(lax.bitcast_convert_type(tile, dtype) if bits else tile, local_shape)


def _in_parts(plan: Plan, device: Device, tile: jax.Array) -> DeviceRun:
    """The target tile, its parts moved by calls that do not wait for one another."""
    parts = []
    for number, of_part in enumerate(plan.plans_of_parts):
        part = yield from on_device(of_part, device, plan.parting.cut(tile, plan.parts, number, lax.concatenate))
        parts.append(part)
    return plan.parting.joined(parts, lax.concatenate)


def _in_bounded_memory(plan: Plan, device: Device, tile: jax.Array) -> DeviceRun:
    """The target tile, each move in a loop of chunks, so that the peak is what the plan says."""
    tiles = {plan.source: tile}
    for step in plan.steps:
        room = chunk_elements(step)
        kept = None if step.kept is None else tiles[step.kept]
        for move in step.transfers:
            if len(move.exchange.target.shape) != tile.ndim:  # of a scalar, seen as a vector
                tile = lax.reshape(tile, (1,))
            if step.moves:
                tile = moved_in_chunks(move, room, device, added(move.exchange.source, device, tile), kept)
                tile = repeated(move.exchange.target, device, tile)
            else:
                tile = yield from _moved(move, device, tile)
        tile = tiles[step.after] = tile if step.shape else lax.reshape(tile, ())
    return tile


def _after(step: Step, device: Device, tile: jax.Array, kept: jax.Array | None) -> DeviceRun:
    if step.near == 1 and _combines_in_rounds(step):  # each device in another order: replicas would not be equal
        step = step_of(step.reshard)
    if step.kind == "AllReduce" and step.before.reduction in GROUP_REDUCTIONS:
        return (yield from _all_reduced(step, device, tile))
    for move in step.transfers:
        if len(move.exchange.target.shape) != tile.ndim:  # of a scalar, seen as a vector
            tile = lax.reshape(tile, (1,))
        tile = yield from _moved(move, device, tile, kept)
    return tile if step.shape else lax.reshape(tile, ())


def _combines_in_rounds(step: Step) -> bool:
    if not step.moves or step.moves[0].reduction is None:
        return False
    exchange = step.moves[0].exchange
    is_in_groups = isinstance(exchange, DigitExchange) and exchange.is_in_groups
    return not is_in_groups and not exchange.target.layout.has_windows


def _moved(move: Move, device: Device, tile: jax.Array, kept: jax.Array | None = None) -> DeviceRun:
    exchange = move.exchange
    if isinstance(exchange, DigitExchange) and exchange.is_in_groups:
        tile = yield from _in_groups(exchange, device, tile, move.reduction or "sum")
    else:
        tile = added(exchange.source, device, tile)
        tile = yield from in_rounds(exchange, device, tile, reduction=move.reduction or move.fill, kept=kept)
        tile = repeated(exchange.target, device, tile)
    return lax.div(tile, lax.full_like(tile, move.classes)) if move.reduction == "avg" else tile


def _all_reduced(step: Step, device: Device, tile: jax.Array) -> DeviceRun:
    """What the members of each group hold, combined.

    Of more than two parts each is sent less often where the c devices that hold the same one combine a share of the
    tile each and then gather them: p parts of n bytes in c copies are n (p c + p - 2) / (p c) received bytes, and
    2 n (p - 1) / p were all combined by every device.
    """
    before, after = (sharding.layout_for(step.shape) for sharding in (step.before, step.after))
    parts = before.unreduced.without(after.unreduced)
    shared = Digits()
    if parts.size > 2:
        for digit in before.free.primes():
            if tile.size % (shared.size * digit.size) == 0:
                shared = Digits((*shared, digit))
    combine, groups = GROUP_REDUCTIONS[step.before.reduction], groups_of(parts, before.positions)
    if not shared:
        return (yield GroupCall(combine, groups, tile))
    number = device.row_of(shared.index_of(np.arange(before.positions)).astype(np.int32))
    share = of_device(lax.reshape(tile, (shared.size, tile.size // shared.size)), number)
    share = yield GroupCall(combine, groups, share)
    shares = yield GroupCall("all_gather", groups_of(shared, before.positions), share)
    return lax.reshape(shares, tile.shape)


def groups_of(digits: Digits, positions: int) -> list[list[int]] | None:
    """The devices that differ in the digits alone, in the order of their values; None where that is all, in order.

    >>> groups_of(Digits([Digit(1, 2), Digit(4, 2)]), 8)
    [[0, 4, 1, 5], [2, 6, 3, 7]]
    """
    groups: list[list[int]] = digits.groups(positions).tolist()
    return None if groups == [list(range(positions))] else groups


class _Parts(NamedTuple):
    """A tile seen by digits."""

    array: jax.Array
    dims: list[int]
    """Per dim of the array the number of a digit, or -1 - dim for what is left of a dim of the tile."""

    def seen_by(self, order: Sequence[int]) -> _Parts:
        """The same with its dims in another order, which may name others too."""
        order = [i for i in order if i in self.dims]
        return _Parts(lax.transpose(self.array, [self.dims.index(i) for i in order]), order)


def _in_groups(exchange: DigitExchange, device: Device, tile: jax.Array, reduction: str) -> DeviceRun:
    """The target tile, where every device keeps its place: collectives between a packing and an unpacking."""
    digits, before, after = exchange.common.digits, exchange.common.source_roles, exchange.common.target_roles
    cut = [i for i, role in enumerate(after) if role != before[i] and isinstance(role, Cuts)]
    parts = _own_values(exchange, cut, device, tile)
    packed = [i for i in parts.dims if i in exchange.gathered]
    gathered = [i for i in exchange.gathered if i not in packed]
    cutting = [i for i in exchange.gathered if isinstance(before[i], Cuts)]
    order, _ = _seen_by(cutting, before, digits, exchange.piece_shape)
    stages = [[*gathered, *packed]]
    if prod(exchange.piece_shape) * exchange.gathered_values * tile.dtype.itemsize >= LARGE_BYTES:
        outer = list(itertools.takewhile(gathered.__contains__, order))
        stages = [packed, [i for i in gathered if i not in outer], outer]
    for stage in filter(None, stages):
        groups = groups_of(Digits(digits[i] for i in stage), exchange.source.mesh.size)
        if packed and stage is stages[0]:
            parts = yield from _exchanged(exchange, stage, groups, parts, reduction)
        else:
            if order == [*stage, *(i for i in order if i in parts.dims)]:
                parts = parts.seen_by(order)
            array = yield GroupCall("all_gather", groups, parts.array)
            array = lax.reshape(array, (*(digits[i].size for i in stage), *parts.array.shape))
            parts = _combined(exchange, stage, _Parts(array, [*stage, *parts.dims]), reduction)
    return lax.reshape(parts.seen_by(order).array, exchange.target.layout.local_shape(exchange.target.shape))


def _own_values(exchange: DigitExchange, cut: Sequence[int], device: Device, tile: jax.Array) -> _Parts:
    """The source tile seen by the digits that cut it, but of those that it replicates the device's own value."""
    digits = exchange.common.digits
    dims, shape = _seen_by(cut, exchange.common.target_roles, digits, exchange.piece_shape)
    array = lax.reshape(tile, shape)
    for i in cut:
        if i not in exchange.gathered:
            value = lax.rem(lax.div(device.position, np.int32(digits[i].stride)), np.int32(digits[i].size))
            array = lax.dynamic_index_in_dim(array, value, dims.index(i), keepdims=False, allow_negative_indices=False)
            dims.remove(i)
    return _Parts(array, dims)


def _exchanged(
    exchange: DigitExchange,
    stage: Sequence[int],
    groups: list[list[int]] | None,
    parts: _Parts,
    reduction: str,
) -> Generator[GroupCall, jax.Array, _Parts]:
    """Parts by the digits of the members of a group, each sent to its member, and unreduced values combined."""
    digits, piece, after = exchange.common.digits, exchange.piece_shape, exchange.common.target_roles
    sizes = [digits[i].size for i in stage]
    if not set(stage) <= set(parts.dims) or len({_dim(after[i]) for i in stage}) > 1:  # not one run of dims
        dims = [*stage, *(-1 - dim for dim in range(len(piece)))]
        parts = parts.seen_by(dims)
        parts = _Parts(lax.broadcast_in_dim(parts.array, (*sizes, *piece), [dims.index(i) for i in parts.dims]), dims)
    first = parts.dims.index(stage[0])
    low, high = parts.array.shape[:first], parts.array.shape[first + len(stage) :]
    array = lax.reshape(parts.array, (*low, prod(sizes), *high))
    dims = list(parts.dims)
    is_combined = all(_dim(exchange.common.source_roles[i]) is None for i in stage)
    if is_combined and reduction == "sum":
        array = lax.transpose(array, [first, *(dim for dim in range(array.ndim) if dim != first)])
        array = yield GroupCall("psum_scatter", groups, array)
        return _Parts(lax.reshape(array, piece), [i for i in dims if i not in stage])
    array = lax.reshape((yield GroupCall("all_to_all", groups, array, first)), (*low, *sizes, *high))
    return _combined(exchange, stage, _Parts(array, dims), reduction)


def _combined(exchange: DigitExchange, stage: Sequence[int], parts: _Parts, reduction: str) -> _Parts:
    """Parts with the unreduced values of a stage combined."""
    array, dims = parts.array, list(parts.dims)
    for i in stage:
        if _dim(exchange.common.source_roles[i]) is None:
            # Pair by pair: what some backends do much faster than a reduction along a dim.
            count = exchange.common.digits[i].size
            values = (lax.index_in_dim(array, n, dims.index(i), keepdims=False) for n in range(count))
            array = functools.reduce(COMBINE[reduction], values)
            dims.remove(i)
    return _Parts(array, dims)


def _dim(role: Role) -> int | None:
    """The dim that a digit of this role cuts."""
    return role.dim if isinstance(role, Cuts) else None


def _seen_by(
    cut: Sequence[int], roles: Sequence[Role], digits: Sequence[Digit], piece: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The dims of a tile seen by the digits that cut it: who each is (-1 - dim for what is left), and its size."""
    who: list[int] = []
    for dim in range(len(piece)):
        cutting = [(-role.stride, i) for i, role in enumerate(roles) if isinstance(role, Cuts) and role.dim == dim]
        who += [i for _, i in sorted(cutting) if i in cut]
        who.append(-1 - dim)
    return who, [digits[i].size if i >= 0 else piece[-1 - i] for i in who]
