"""An exchange of any kind as rounds of `ppermute`, each of boxes of one shape.

In a round a device cuts a box out of its source tile, sends it, and puts what arrives into its target tile.
All devices run one program, so where a box is cut and put is looked up by the device's position, except where it is the
same for all: then it is a static slice, and the whole tile is no slice at all.
Where one box is a device's whole target tile, it is the result as it arrives; boxes that lie side by side in an
order that is known, or that are two, are joined in one go.

Devices may have nothing to receive in a round, yet the program puts a box on them too.
It is put where they have received nothing so far and later will; where there is no such place, what was there is
put back.

**Hops.** Along a ring what came in one hop is sent on in the next, as it came; what only passes is put nowhere.
All that goes between the same devices in a hop is sent in one row.

**One loop.** A compiler makes a kernel of every cut and every put whose place is looked up.
Many rounds of one shape are therefore a loop with one of each, in which the number of the round chooses the
permutation; it is the same on all devices, so all take part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import accumulate, chain, groupby, pairwise
from math import prod
from operator import attrgetter, mod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from reshard.box import Box
from reshard.digits import Positions
from reshard.dtypes import combining, identity
from reshard.exchange import Exchange
from reshard.jax.exchange.device import Device, of_device
from reshard.jax.exchange.joint import DeviceRun, GroupCall, run_alone
from reshard.jax.exchange.permutations import Round, Starts, box_at, rounds_of

COMBINE: dict[str, Callable[..., jax.Array]] = combining(jax.numpy)
"""What combines two unreduced values, by reduction; avg divides once all are added."""
MANY_ROUNDS = 8
"""More rounds than these are a loop: fewer run faster one by one, more take too long to compile."""


def in_rounds(
    exchange: Exchange, device: Device, tile: jax.Array, *, reduction: str | None, kept: jax.Array | None = None
) -> DeviceRun:
    """The target tile of a device, round by round.

    Args:
        exchange: over the same devices, in any order.
        device: of the target's mesh.
        tile: its source tile.
        reduction: what combines boxes that arrive at one place; None where no two do.
        kept: the tile that it kept from before, of an exchange along a ring that uses it.
    """
    combine = reduction is not None
    blank = 0 if reduction is None else identity(reduction, tile.dtype)
    devices = exchange.source.mesh.size
    shape = exchange.target.layout.local_shape(exchange.target.shape)
    rounds = rounds_of(exchange)
    tiles = [tile if kept is None or not round_.of_kept else kept for round_ in rounds]
    cuts = [round_.cuts(devices) for round_ in rounds]
    if len(rounds) == 1 and rounds[0].shape == shape and rounds[0].receives(devices).all():
        (at,) = starts_from(cuts, device)
        return (yield from rounds[0].sent(_cut(tiles[0], at, shape)))
    if not combine and 0 < len(rounds) <= MANY_ROUNDS and _cover(rounds, devices, shape):
        slots = _slots(rounds, devices, shape)
        puts = [] if slots else [round_.puts(devices) for round_ in rounds]
        where = starts_from([*cuts, *puts], device)
        arrived: dict[int, jax.Array] = {}
        for call in chain(*_calls(rounds)):
            arrived |= yield from _received(rounds, call, tiles, where, arrived)
        boxes = [arrived[number] for number in range(len(rounds))]
        return _joined(boxes, *slots, device) if slots else _overwritten(boxes, where[len(rounds) :], shape)
    puts, must_keep = _places(rounds, devices, shape, combine=combine)
    where = starts_from([*cuts, *puts], device)
    if combine and len(rounds) == 1 and rounds[0].is_local and _is_in_line(rounds[0], shape):
        box = _cut(tile, where[0], rounds[0].shape)
        if len(rounds[0].receivers) < devices:
            box = _box_if(device.row_of(rounds[0].receives(devices)), box, lax.full_like(box, blank))
        return _amid(box, where[1], shape, blank)
    whole = lax.full(shape, blank, tile.dtype)
    arrived = {}
    for calls in _calls(rounds):
        if len(calls) > MANY_ROUNDS and not combine and not rounds[calls[0][0]].hop:
            of_loop = slice(calls[0][0], calls[-1][0] + 1)
            loop = _RoundLoop(rounds[of_loop], cuts[of_loop], puts[of_loop], any(must_keep[of_loop]))
            whole = loop.run(device, tiles[calls[0][0]], whole)
            continue
        for call in calls:
            arrived |= yield from _received(rounds, call, tiles, where, arrived)
            for number in call:
                round_, at, box = rounds[number], where[len(rounds) + number], arrived[number]
                receives = round_.receives(devices)
                if not receives.any():
                    continue
                if combine or must_keep[number]:
                    before = _cut(whole, at, round_.shape)
                    if not receives.all():
                        otherwise = lax.full_like(box, blank) if combine else before
                        box = _box_if(device.row_of(receives), box, otherwise)
                    box = box if reduction is None else COMBINE[reduction](before, box)
                whole = lax.dynamic_update_slice(whole, box, at, allow_negative_indices=False)
        if rounds[calls[0][0]].hop:
            whole = lax.optimization_barrier(whole)  # or what is put back is sought in all that was put before
    return whole


def _calls(rounds: Sequence[Round]) -> list[list[list[int]]]:
    """The numbers of rounds that are sent as one: of a hop those between the same devices; by hop, or else by shape."""

    def runs(numbers: Iterable[int], key: Callable[[Round], Any]) -> list[list[int]]:
        return [list(run) for _, run in groupby(numbers, key=lambda number: key(rounds[number]))]

    by_hop = runs(range(len(rounds)), lambda round_: round_.hop or (round_.shape, round_.of_kept))
    return [runs(run, attrgetter("pairs")) if rounds[run[0]].hop else [[number] for number in run] for run in by_hop]


def _received(
    rounds: Sequence[Round],
    numbers: Sequence[int],
    tiles: Sequence[jax.Array],
    where: Sequence[Sequence[Any]],
    arrived: Mapping[int, jax.Array],
) -> Generator[GroupCall, jax.Array, dict[int, jax.Array]]:
    """By their numbers the boxes that a device receives in rounds between the same devices, sent in one row."""
    boxes = []
    for number in numbers:
        source = rounds[number].handed_on
        boxes.append(_cut(tiles[number], where[number], rounds[number].shape) if source is None else arrived[source])
    if len(boxes) == 1:
        return {numbers[0]: (yield from rounds[numbers[0]].sent(boxes[0]))}
    row = lax.concatenate([lax.reshape(box, (box.size,)) for box in boxes], 0)
    row = yield from rounds[numbers[0]].sent(row)
    bounds = pairwise(accumulate((box.size for box in boxes), initial=0))
    parts = [lax.slice(row, (first,), (stop,)) for first, stop in bounds]
    return {number: lax.reshape(part, rounds[number].shape) for number, part in zip(numbers, parts, strict=True)}


def _cover(rounds: Sequence[Round], devices: int, shape: tuple[int, ...]) -> bool:
    """Whether the boxes of all rounds are of one shape, which divides that of every device's tile, and fill it."""
    size = rounds[0].shape
    if any(round_.shape != size or not round_.receives(devices).all() for round_ in rounds):
        return False
    return len(rounds) * prod(size) == prod(shape) and not any(map(mod, shape, size))


def _slots(rounds: Sequence[Round], devices: int, shape: tuple[int, ...]) -> tuple[int, Positions] | None:
    """The dim along which boxes that cover tiles lie side by side, and per round and device the place there.

    None where dims are several, or where the order of boxes differs among the devices and they are more than two.
    """
    size, count = rounds[0].shape, len(rounds)
    dims = [dim for dim in range(len(shape)) if size[dim] != shape[dim]]
    if len(dims) != 1:
        return None
    slots = np.zeros((count, devices), dtype=np.int64)
    for number, round_ in enumerate(rounds):
        slots[number, round_.receivers] = round_.put[:, dims[0]] // size[dims[0]]
    return (dims[0], slots) if count == 2 or (slots == slots[:, :1]).all() else None


def _joined(boxes: Sequence[jax.Array], dim: int, slots: Positions, device: Device) -> jax.Array:
    """The boxes side by side, each in its place: nothing is filled before, nothing written twice."""
    if (slots == slots[:, :1]).all():
        return lax.concatenate([boxes[number] for number in np.argsort(slots[:, 0])], dim)
    size = boxes[0].shape  # of two, chosen place by place: one kernel for all that are alike, which a row is not
    seen = (*size[:dim], 2, *size[dim:])
    first, second = (lax.broadcast_in_dim(box, seen, [n + (n >= dim) for n in range(len(size))]) for box in boxes)
    place_of_first = lax.broadcast(device.row_of(slots[0].astype(np.int32)), seen)
    is_first = lax.eq(lax.broadcasted_iota(np.int32, seen, dim), place_of_first)
    return lax.reshape(lax.select(is_first, first, second), (*size[:dim], 2 * size[dim], *size[dim + 1 :]))


def _overwritten(boxes: Sequence[jax.Array], at: Sequence[Sequence[Any]], shape: tuple[int, ...]) -> jax.Array:
    """The boxes in their places, written over the first, which is put everywhere before.

    A tile of zeros would be made where the program begins, for nothing comes before it, and held from there on.
    """
    whole = _repeated_in(boxes[0], shape)
    for box, start in zip(boxes[1:], at[1:], strict=True):
        whole = lax.dynamic_update_slice(whole, box, start, allow_negative_indices=False)
    return whole


def _repeated_in(box: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """A tile of the same box side by side in all dims."""
    for dim, (length, whole) in enumerate(zip(box.shape, shape, strict=True)):
        if length != whole:
            spread = (*box.shape[:dim], whole // length, *box.shape[dim:])
            repeated = lax.broadcast_in_dim(box, spread, [n + (n >= dim) for n in range(box.ndim)])
            box = lax.reshape(repeated, (*box.shape[:dim], whole, *box.shape[dim + 1 :]))
    return box


def _is_in_line(round_: Round, shape: tuple[int, ...]) -> bool:
    """Whether its boxes are put where whole boxes lie side by side from the beginning of a tile."""
    lengths = np.array(round_.shape, np.int64)
    return bool(lengths.all() and not (shape % lengths).any() and not (round_.put % lengths).any())


def _amid(box: jax.Array, at: Sequence[Any], shape: tuple[int, ...], blank: Any) -> jax.Array:
    """A box at its place in a tile that is blank elsewhere, made element by element.

    So compilers make it where it is read; a tile of blanks into which a box is written is held, and often copied,
    from where blanks are first made.
    """
    for dim, (length, whole) in enumerate(zip(box.shape, shape, strict=True)):
        if length != whole:
            spread = (*box.shape[:dim], whole // length, *box.shape[dim:])
            filled = lax.broadcast_in_dim(box, spread, [n + (n >= dim) for n in range(box.ndim)])
            is_there = lax.broadcasted_iota(np.int32, spread, dim) == lax.div(at[dim], np.int32(length))
            filled = lax.select(is_there, filled, lax.full_like(filled, blank))
            box = lax.reshape(filled, (*box.shape[:dim], whole, *box.shape[dim + 1 :]))
    return box


class _RoundLoop(NamedTuple):
    """Boxes of one shape put into a tile, one by one: one cut, one put, and the permutation by its number."""

    rounds: Sequence[Round]
    cuts: Sequence[Starts]
    puts: Sequence[Starts]
    must_keep: bool
    """Whether devices that receive nothing in a round put back what was there."""

    def run(self, device: Device, tile: jax.Array, whole: jax.Array) -> jax.Array:
        """The whole tile after all rounds."""
        cut, put = (
            device.row_of(np.stack([starts.table for starts in ends], 1).astype(np.int32))
            for ends in (self.cuts, self.puts)
        )
        devices = len(self.cuts[0].table)
        receives = device.row_of(np.stack([round_.receives(devices) for round_ in self.rounds], 1))
        sends = [lambda box, sent=round_.sent: run_alone(sent(box), device) for round_ in self.rounds]

        def after(number: Any, whole: jax.Array) -> jax.Array:
            box = lax.dynamic_slice(tile, of_device(cut, number), self.rounds[0].shape, allow_negative_indices=False)
            box, at = lax.switch(number, sends, box), of_device(put, number)
            if self.must_keep:
                before = lax.dynamic_slice(whole, at, box.shape, allow_negative_indices=False)
                box = _box_if(of_device(receives, number), box, before)
            return lax.dynamic_update_slice(whole, box, at, allow_negative_indices=False)

        return lax.fori_loop(0, len(self.rounds), after, whole)


def _box_if(condition: jax.Array, box: jax.Array, otherwise: jax.Array) -> jax.Array:
    return lax.select(lax.broadcast(condition, box.shape), box, otherwise)


def _cut(tile: jax.Array, at: Sequence[Any], shape: tuple[int, ...]) -> jax.Array:
    if shape == tile.shape:
        return tile
    if all(isinstance(start, np.int32) for start in at):
        return lax.slice(tile, at, [start + length for start, length in zip(at, shape, strict=True)])
    return lax.dynamic_slice(tile, at, shape, allow_negative_indices=False)


def bits_of(dtype: Any) -> Any:
    """The integers whose bits travel in place of values of a dtype; None where the values do.

    A backend without arithmetic on small floats turns them into larger ones to send them, and sends twice the bytes.
    """
    small = jax.numpy.issubdtype(dtype, jax.numpy.floating) and dtype.itemsize < 4
    return np.dtype(f"uint{8 * dtype.itemsize}") if small else None


def starts_from(tables: Sequence[Starts], device: Device) -> list[list[Any]]:
    """Per table the start of the device's box, one per dim: a number where it is the same for all, else looked up.

    Equal columns are looked up once, and each in a table of its own: of one table of all, every column would be another
    kernel.
    """
    columns: dict[bytes, None] = {}
    rows: list[list[Any]] = []  # of numbers, and of columns that are to be looked up
    for table, is_known in tables:
        row: list[Any] = []
        for column in table.T:
            values = column[is_known]
            if len(values) == 0 or (values == values[0]).all():
                row.append(np.int32(values[0] if len(values) else 0))  # as those looked up: JAX mixes no two types
            else:
                row.append(np.where(is_known, column, values[0]).astype(np.int32).tobytes())
                columns[row[-1]] = None
        rows.append(row)
    looked_up = {
        column: lax.reshape(device.row_of(np.frombuffer(column, dtype=np.int32)[:, None]), ()) for column in columns
    }
    return [[looked_up[start] if isinstance(start, bytes) else start for start in row] for row in rows]


def _places(
    rounds: Sequence[Round], devices: int, shape: tuple[int, ...], *, combine: bool
) -> tuple[list[Starts], list[bool]]:
    """Per round where its boxes are put, on devices that receive none too; and whether what was there must stay."""
    puts = [round_.puts(devices) for round_ in rounds]
    must_keep = [False] * len(rounds)
    if combine or all(starts.is_known.all() for starts in puts):
        return puts, must_keep
    coming: list[list[tuple[int, ...]]] = [[] for _ in range(devices)]
    for table, is_known in puts:
        for position in np.flatnonzero(is_known).tolist():
            coming[position].append(tuple(table[position].tolist()))
    filled: list[list[Box]] = [[] for _ in range(devices)]
    for number, (round_, (table, is_known)) in enumerate(zip(rounds, puts, strict=True)):
        if not is_known.any():
            continue
        usual = table[is_known][0].tolist()
        idle = np.flatnonzero(~is_known).tolist()
        harmless = [_harmless(round_.shape, shape, filled[d], [usual, *coming[d]]) for d in idle]
        must_keep[number] = None in harmless
        if not must_keep[number] and idle:
            table[idle] = harmless
            is_known[idle] = True
        for position in np.flatnonzero(round_.receives(devices)).tolist():
            filled[position].append(box_at(table[position].tolist(), round_.shape))
            coming[position].pop(0)
    return puts, must_keep


def _harmless(
    size: tuple[int, ...], shape: tuple[int, ...], filled: Sequence[Box], candidates: Iterable[Sequence[int]]
) -> list[int] | None:
    """Where a box may be put on a device without touching what is there; None where no candidate will do."""
    for start in candidates:
        at = [min(low, whole - length) for low, whole, length in zip(start, shape, size, strict=True)]
        box = box_at(at, size)
        if all(box.intersect(other).is_empty for other in filled):
            return at
    return None
