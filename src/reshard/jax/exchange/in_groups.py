"""Moves in which every device keeps its place, as collectives of groups of devices.

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
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from reshard.digits import Digit, Digits
from reshard.exchange import DigitExchange, KeptExchange
from reshard.exchange.kept import Slab
from reshard.jax.exchange.device import Device
from reshard.jax.exchange.joint import DeviceRun, GroupCall
from reshard.jax.exchange.permutations import Starts
from reshard.jax.exchange.rounds import COMBINE, starts_from
from reshard.refinement import Cuts, Role

LARGE_BYTES = 1 << 20
"""From tiles of this size on digits go in turn.

On 8 devices of a CPU that is faster from 64 KiB on; it is later where a collective takes longer to start.
"""


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


def in_groups(exchange: DigitExchange, device: Device, tile: jax.Array, reduction: str) -> DeviceRun:
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


def lacked_in_groups(exchange: KeptExchange, slab: Slab, device: Device, tile: jax.Array, kept: jax.Array) -> DeviceRun:
    """The target tile, of which all members of a group kept the same run of a dim: what they lack goes in groups."""
    (dim, length, lacked), target = slab, exchange.target
    lows = [np.stack([low for low, _ in tiling.all_bounds], 1) for tiling in (target, exchange.kept)]
    is_known = np.ones(target.mesh.size, dtype=np.bool_)
    starts = [Starts(np.maximum(lows[1] - lows[0], 0), is_known), Starts(np.maximum(lows[0] - lows[1], 0), is_known)]
    place, cut = starts_from(starts, device)
    first = place[dim]  # where the run that was kept begins in the target tile
    shorter = lacked.source.layout.local_shape(lacked.source.shape)
    ahead, behind = (lax.slice_in_dim(tile, low, low + shorter[dim], axis=dim) for low in (0, length))
    came = yield from in_groups(lacked, device, _before(first, dim, ahead, behind), "sum")
    own_shape = (*came.shape[:dim], length, *came.shape[dim + 1 :])
    own = lax.dynamic_slice(kept, cut, own_shape, allow_negative_indices=False)
    whole = _before(first, dim, lax.concatenate([came, own], dim), lax.concatenate([own, came], dim))
    return lax.dynamic_update_slice(whole, own, place, allow_negative_indices=False)


def _before(first: Any, dim: int, ahead: jax.Array, behind: jax.Array) -> jax.Array:
    """One array up to a place of a dim, and from there on another."""
    return lax.select(lax.lt(lax.broadcasted_iota(np.int32, ahead.shape, dim), first), ahead, behind)


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
