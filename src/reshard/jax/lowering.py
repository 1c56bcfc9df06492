"""A plan as what one device does, inside a `shard_map` over the whole mesh.

Every move of a plan is lowered by what its exchange is:

| exchange | becomes |
|---|---|
| an AllReduce | `psum` |
| in digits, every device its own sender in round 0 | one `all_gather`, `all_to_all` or `psum_scatter` of groups |
| any other | rounds of `ppermute`: `reshard.jax.rounds` |

**Groups.** Where every sender digit is determined by the receiver's own, the k devices that differ in the gathered
digits alone send each other one piece each: a collective of that group, whatever the axes are called, so sub-axes
need no mesh of their own.
A tile is then an array with one dim per digit: a source tile by the digits that the target cuts, a target tile by
the digits that are gathered.
So packing and unpacking are a transposition each, which is no copy where the digits are the outermost already.

By hand, 8 x 8 on y=4, `[{"y"}, {}] -> [{}, {"y"}]`: a source tile of 2 x 8 is seen as (2, y, 2) and packed as
(y, 2, 2); after the all-to-all the first dim counts senders, and (y, 2, 2) is a target tile of 8 x 2 as it stands.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import numpy as np
from jax import lax

from reshard.exchange import DigitExchange, Tiling
from reshard.jax.rounds import COMBINE, in_rounds, of_device, starts_from
from reshard.layout import PARTIAL, Digit, Role, index_of, offsets, without
from reshard.numpy import identity
from reshard.plans import Plan
from reshard.steps import Move, Step

Names = tuple[str, ...]
"""The axes of the mesh, all of them in its order: a permutation by pairs counts in that order whatever is asked."""
GROUP_REDUCTIONS: dict[str, Callable[..., jax.Array]] = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}
"""Reductions that are one collective."""


def run_on_device(plan: Plan, names: Names, tile: jax.Array) -> jax.Array:
    """The target tile of a device, from its source tile, where all axes of the mesh are manual.

    Args:
        plan: what to do, over the same devices; in several orders only where nothing is reduced.
        names: the axes of the target's mesh, in its order.
        tile: the source tile.
    """
    local_shape = plan.target.local_shape(plan.shape)
    if 0 in plan.shape:
        return lax.full(local_shape, 0, tile.dtype)
    dtype, bits = tile.dtype, _moved_as(plan)
    tile = lax.bitcast_convert_type(tile, bits) if bits else tile
    place = lax.axis_index(names) if names else np.int32(0)
    for step in plan.steps:
        tile = _after(step, names, place, tile)
    return lax.reshape(lax.bitcast_convert_type(tile, dtype) if bits else tile, local_shape)


def _moved_as(plan: Plan) -> Any:
    """The dtype whose bits travel in place of the values; None for the values themselves.

    A backend without arithmetic on small floats turns them into larger ones to send them, and sends twice the bytes.
    """
    combines = any(move.reduction is not None for step in plan.steps for move in step.moves)
    small = plan.dtype.kind == "f" and plan.dtype.itemsize < 4
    return None if combines or not small else np.dtype(f"uint{8 * plan.dtype.itemsize}")


def _after(step: Step, names: Names, place: Any, tile: jax.Array) -> jax.Array:
    if step.kind == "ToUnreduced":
        return _to_unreduced(step, place, tile)
    if step.kind == "AllReduce":
        before, after = (sharding.layout_for(step.shape) for sharding in (step.before, step.after))
        digits = without(before.unreduced, after.unreduced)
        return _reduced(step.before.reduction, tile, names, groups_of(digits, before.positions))
    for move in step.moves:
        if len(move.exchange.target.shape) != tile.ndim:  # of a scalar, seen as a vector
            tile = lax.reshape(tile, (1,))
        tile = _moved(move, names, place, tile)
    return tile


def _moved(move: Move, names: Names, place: Any, tile: jax.Array) -> jax.Array:
    exchange = move.exchange
    if (
        isinstance(exchange, DigitExchange)
        and exchange.stays
        and exchange.gathered_values > 1
        and exchange.source.same_order_as(exchange.target)
        and exchange.source.is_even()
        and exchange.target.is_even()
    ):
        return _in_groups(exchange, names, place, tile, move.reduction or "sum")
    return in_rounds(exchange, names, place, tile, reduction=move.reduction)


def _reduced(reduction: str, tile: jax.Array, names: Names, groups: list[list[int]] | None) -> jax.Array:
    """What the members of each group hold, combined."""
    if reduction in GROUP_REDUCTIONS:
        return GROUP_REDUCTIONS[reduction](tile, names, axis_index_groups=groups)
    parts = lax.all_gather(tile, names, axis_index_groups=groups)
    return lax.reduce(parts, identity(reduction, parts.dtype), COMBINE[reduction], [0])


def groups_of(digits: Sequence[Digit], positions: int) -> list[list[int]] | None:
    """The devices that differ in the digits alone, in the order of their values; None where that is all, in order.

    >>> groups_of([Digit(1, 2), Digit(4, 2)], 8)
    [[0, 4, 1, 5], [2, 6, 3, 7]]
    """
    members = offsets(tuple(digits))
    places = np.arange(positions, dtype=np.int64)
    firsts = places[index_of(tuple(digits), places) == 0]
    groups: list[list[int]] = (firsts[:, None] + members).tolist()
    return None if groups == [places.tolist()] else groups


def _in_groups(exchange: DigitExchange, names: Names, place: Any, tile: jax.Array, reduction: str) -> jax.Array:
    """The target tile, where every device keeps its place: one collective between a packing and an unpacking."""
    digits, piece = exchange.common.digits, exchange.piece_shape
    before, after = exchange.common.source_roles, exchange.common.target_roles
    cut = [i for i, role in enumerate(after) if role != before[i] and _cuts(role)]
    parts, now = _own_values(exchange, cut, place, tile)
    packed = [i for i in now if i in exchange.gathered]
    order = [i for i in exchange.gathered if i not in packed] + packed
    groups = groups_of([digits[i] for i in order], exchange.source.mesh.size)
    sizes = [digits[i].size for i in order]
    partial = [i for i in order if not _cuts(before[i])]

    if not packed:
        parts = lax.reshape(lax.all_gather(parts, names, axis_index_groups=groups), (*sizes, *parts.shape))
        now = [*order, *now]
    else:
        if order != packed or len({(after[i] or (0,))[0] for i in packed}) > 1:  # not one run of dims as they stand
            wanted = [*order, *(-1 - dim for dim in range(len(piece)))]
            parts = lax.transpose(parts, [now.index(i) for i in wanted if i in now])
            parts = lax.broadcast_in_dim(parts, (*sizes, *piece), [n for n, i in enumerate(wanted) if i in now])
            now = wanted
        first = now.index(order[0])
        rest = parts.shape[:first], parts.shape[first + len(order) :]
        parts = lax.reshape(parts, (*rest[0], prod(sizes), *rest[1]))
        if len(partial) == len(order) and reduction == "sum":
            parts = lax.transpose(parts, [first, *(dim for dim in range(parts.ndim) if dim != first)])
            parts = lax.psum_scatter(parts, names, axis_index_groups=groups, tiled=True)  # of parts in one run: faster
            return lax.reshape(parts, piece)
        parts = _exchanged(parts, names, first, groups)
        parts = lax.reshape(parts, (*rest[0], *sizes, *rest[1]))
    if partial:
        for i in partial:  # pair by pair: what some backends do much faster than a reduction along a dim
            dim = now.index(i)
            values = (lax.index_in_dim(parts, n, dim, keepdims=False) for n in range(digits[i].size))
            parts = functools.reduce(COMBINE[reduction], values)
            now.remove(i)
    wanted, shape = _seen_by([i for i in order if i not in partial], before, digits, piece)
    parts = lax.transpose(parts, [now.index(i) for i in wanted])
    return lax.reshape(parts, [prod(shape[low:high]) for low, high in _runs(wanted)])


def _own_values(
    exchange: DigitExchange, cut: Sequence[int], place: Any, tile: jax.Array
) -> tuple[jax.Array, list[int]]:
    """The source tile seen by the digits that cut it, but of those that it replicates the device's own value."""
    digits = exchange.common.digits
    now, shape = _seen_by(cut, exchange.common.target_roles, digits, exchange.piece_shape)
    parts = lax.reshape(tile, shape)
    for i in cut:
        if i not in exchange.gathered:
            value = lax.rem(lax.div(place, np.int32(digits[i].stride)), np.int32(digits[i].size))
            parts = lax.dynamic_index_in_dim(parts, value, now.index(i), keepdims=False, allow_negative_indices=False)
            now.remove(i)
    return parts, now


def _exchanged(parts: jax.Array, names: Names, dim: int, groups: list[list[int]] | None) -> jax.Array:
    """Part number j along a dim, sent to member number j of the group; what comes in stands in the same order.

    Of an array whose first dim is split XLA may lay out each part in another way and then refuse them, so there
    the parts are seen as lists, which lie in one way alone.
    """
    if dim:
        return lax.all_to_all(parts, names, dim, dim, axis_index_groups=groups, tiled=True)
    shape = parts.shape
    listed = lax.reshape(parts, (prod(shape),))
    return lax.reshape(lax.all_to_all(listed, names, 0, 0, axis_index_groups=groups, tiled=True), shape)


def _cuts(role: Role) -> bool:
    """Whether a digit of this role cuts a dim."""
    return role is not None and role[0] != PARTIAL


def _seen_by(
    cut: Sequence[int], roles: Sequence[Role], digits: Sequence[Digit], piece: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The dims of a tile seen by the digits that cut it: who each is (-1 - dim for what is left), and its size."""
    who: list[int] = []
    for dim in range(len(piece)):
        who += sorted(
            (i for i in cut if (roles[i] or (PARTIAL,))[0] == dim), key=lambda i: -(roles[i] or (PARTIAL, 0))[1]
        )
        who.append(-1 - dim)
    return who, [digits[i].size if i >= 0 else piece[-1 - i] for i in who]


def _runs(who: Sequence[int]) -> list[tuple[int, int]]:
    """Where the dims of a tile begin and end in `_seen_by`."""
    return list(itertools.pairwise([0, *(n + 1 for n, i in enumerate(who) if i < 0)]))


def _to_unreduced(step: Step, place: Any, tile: jax.Array) -> jax.Array:
    """The tile where the device is the one that keeps it, zeros elsewhere; nothing is sent.

    A tile smaller than the largest fills a corner of its array; what is beyond is zeros too, and falls off the end.
    """
    before, after = (Tiling.of(sharding, step.shape) for sharding in (step.before, step.after))
    devices = before.mesh.device_array.tolist()
    rank = len(step.shape)
    starts, sizes = np.zeros((len(devices), rank), np.int64), np.zeros((len(devices), rank), np.int64)
    keeps = np.zeros(len(devices), np.bool_)
    for number, device in enumerate(devices):
        box = step.contribution(device)
        keeps[number] = box is not None and not box.is_empty
        if box is not None and keeps[number]:
            starts[number] = [low - base for (low, _), (base, _) in zip(box, after.box(device), strict=True)]
            sizes[number] = box.shape
    at, ends = starts_from([(starts, keeps), (sizes, keeps)], place)
    mine = lax.broadcast(of_device(keeps, place), tile.shape)
    for dim, end in enumerate(ends):
        if not isinstance(end, np.int32) or end != tile.shape[dim]:
            mine = mine & (lax.broadcasted_iota(np.int32, tile.shape, dim) < end)
    tile = lax.select(mine, tile, lax.full_like(tile, 0))
    shape = after.layout.local_shape(step.shape)
    if shape == tile.shape:
        return tile
    room = [max(size, int(low) + length) for size, low, length in zip(shape, starts.max(0), tile.shape, strict=True)]
    whole = lax.dynamic_update_slice(lax.full(room, 0, tile.dtype), tile, at, allow_negative_indices=False)
    return lax.slice(whole, [0] * rank, shape)
