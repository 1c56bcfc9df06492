"""An exchange of any kind as rounds of `ppermute`, each of boxes of one shape.

In a round a device cuts a box out of its source tile, sends it, and puts what arrives into its target tile.
All devices run one program, so where a box is cut and put is looked up by the device's position, in one table of
all rounds, except where it is the same for all: then it is a static slice, and the whole tile is no slice at all.
Where one box is a device's whole target tile, it is the result as it arrives; boxes that lie side by side in an
order that is known, or that are two, are joined in one go.

Devices may have nothing to receive in a round, yet the program puts a box on them too.
It is put where they have received nothing so far and later will; where there is no such place, what was there is
put back.

**One unit.** A round costs every device a whole box, whether it has one to send or not, so rounds of many shapes
in which few devices take part are dear.
Pieces are then cut into boxes of one shape, per dim the greatest common divisor of their lengths.

By hand, a transposition on 2 x 3: source tiles of 3 x 2 in a 6 x 6 tensor, target tiles of 2 x 3; boxes have the
shapes 2 x 2, 2 x 1, 1 x 2 and 1 x 1, and in six rounds every device handles 4 + 2 + 2 + 2 + 2 + 1 = 13 elements.
In boxes of 1 x 1 there are six rounds too, and 6 elements.

**One loop.** A compiler makes a kernel of every cut and every put whose place is looked up.
Many rounds of one shape are therefore a loop with one of each, in which the number of the round chooses the
permutation; it is the same on all devices, so all take part in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby, product
from math import gcd, prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from numpy.typing import NDArray

from reshard.box import Box
from reshard.digits import Positions
from reshard.dtypes import identity
from reshard.exchange import DigitExchange, Exchange, Piece, schedule
from reshard.exchange.by_digits import senders_by_round

COMBINE: dict[str, Callable[..., jax.Array]] = {
    "sum": lax.add,
    "avg": lax.add,
    "product": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "band": lax.bitwise_and,
    "bor": lax.bitwise_or,
    "bxor": lax.bitwise_xor,
}
"""What combines two partial values, by reduction; avg divides once all are added."""
Starts = tuple[NDArray[Any], NDArray[np.bool_]]
"""Per position where its box starts, one column per dim; and whether it has one: else any place will do."""


MANY_ROUNDS = 8
"""More rounds than these are a loop: fewer run faster one by one, more take too long to compile."""


class Round(NamedTuple):
    """One box from each sender to one receiver; all of one shape."""

    shape: tuple[int, ...]
    senders: Positions
    """Positions in the target, each at most once."""
    receivers: Positions
    """Positions, in the order of `senders`."""
    cut: Positions
    """Per pair where the box starts in the sender's tile: one row per pair, one column per dim."""
    put: Positions
    """Per pair where the box starts in the receiver's tile."""

    @property
    def is_local(self) -> bool:
        """Whether nothing is sent."""
        return bool((self.senders == self.receivers).all())


def rounds_of(exchange: Exchange) -> list[Round]:
    """The rounds of an exchange over the same devices, in any order; those in which nothing is sent come first.

    Where every round is a permutation of all devices, boxes that stay on their device go with it.
    """
    even = exchange.source.is_even() and exchange.target.is_even()
    if even and isinstance(exchange, DigitExchange) and not exchange.spread and _in_one_order(exchange):
        return _permutations(exchange)
    mesh = exchange.target.mesh
    pieces = [piece for device in mesh.device_array.tolist() for piece in exchange.incoming(device)]
    return [_round(exchange, turn) for turn in [*_staying(pieces), *_travelling(pieces)]]


def _in_one_order(exchange: Exchange) -> bool:
    return exchange.source.same_order_as(exchange.target)


def _permutations(exchange: DigitExchange) -> list[Round]:
    positions = exchange.source.mesh.positions
    ends = [np.zeros((len(positions), len(tiling.shape)), np.int64) for tiling in (exchange.source, exchange.target)]
    for end, tiling in zip(ends, (exchange.source, exchange.target), strict=True):
        for dim, (start, _) in enumerate(tiling.all_bounds):
            end[:, dim] = start
    common = exchange.common
    rounds = []
    for senders in senders_by_round(common.digits, exchange.determined_by, exchange.gathered, positions):
        start = np.maximum(ends[0][senders], ends[1])
        rounds.append(Round(exchange.piece_shape, senders, positions, start - ends[0][senders], start - ends[1]))
    return rounds


def _staying(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """The pieces that stay on their device, in as few turns of one shape as can be."""
    turns: dict[tuple[tuple[int, ...], int], list[Piece]] = {}
    count: dict[tuple[tuple[int, ...], int], int] = {}
    for piece in pieces:
        if piece.sender == piece.receiver:
            key = piece.box.shape, piece.sender
            count[key] = number = count.get(key, -1) + 1
            turns.setdefault((piece.box.shape, number), []).append(piece)
    return list(turns.values())


def _travelling(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """The pieces that travel, in turns of one shape; in boxes of one unit where devices then handle fewer elements."""
    sent = [piece for piece in pieces if piece.sender != piece.receiver]
    turns = schedule(sent, one_shape=True)
    if len({piece.box.shape for piece in sent}) < 2:
        return turns
    unit = [gcd(*lengths) for lengths in zip(*(piece.box.shape for piece in sent), strict=True)]
    busy: Counter[tuple[int, bool]] = Counter()
    for piece in sent:
        busy[piece.sender, False] += piece.box.size
        busy[piece.receiver, True] += piece.box.size
    handled = max(busy.values())  # as many rounds as the busiest device has units
    if 4 * (handled // prod(unit)) > 5 * len(turns) or handled >= sum(turn[0].box.size for turn in turns):
        return turns
    return schedule(box for piece in sent for box in _cut_into(unit, piece))


def _cut_into(unit: Sequence[int], piece: Piece) -> list[Piece]:
    starts = product(*(range(low, high, length) for (low, high), length in zip(piece.box, unit, strict=True)))
    return [piece._replace(box=_box(start, unit)) for start in starts]


def _round(exchange: Exchange, turn: Sequence[Piece]) -> Round:
    source, target = exchange.source, exchange.target

    def offsets(base: Box, box: Box) -> list[int]:
        return [low - start for (low, _), (start, _) in zip(box, base, strict=True)]

    rank = len(target.shape)
    cut = [offsets(source.box(piece.sender), piece.box) for piece in turn]
    put = [offsets(target.box(piece.receiver), piece.box) for piece in turn]
    return Round(
        turn[0].box.shape,
        target.mesh.positions_of(np.array([piece.sender for piece in turn])),
        target.mesh.positions_of(np.array([piece.receiver for piece in turn])),
        np.array(cut, dtype=np.int64).reshape(len(turn), rank),
        np.array(put, dtype=np.int64).reshape(len(turn), rank),
    )


def in_rounds(
    exchange: Exchange, names: tuple[str, ...], place: Any, tile: jax.Array, *, reduction: str | None
) -> jax.Array:
    """The target tile of a device, round by round.

    Args:
        exchange: over the same devices, in any order.
        names: the axes of the target's mesh, in its order.
        place: the position of the device there.
        tile: its source tile.
        reduction: what combines boxes that arrive at one place; None where no two do.
    """
    combine = reduction is not None
    blank = 0 if reduction is None else identity(reduction, tile.dtype)
    devices = exchange.source.mesh.size
    shape = exchange.target.layout.local_shape(exchange.target.shape)
    rounds = rounds_of(exchange)
    cuts = [_at(devices, one.senders, one.cut) for one in rounds]
    if len(rounds) == 1 and rounds[0].shape == shape and len(rounds[0].receivers) == devices:
        (at,) = starts_from(cuts, place)
        return _sent(rounds[0], names, _cut(tile, at, shape))
    slots = None if combine or len(rounds) > MANY_ROUNDS else _slots(rounds, devices, shape)
    if slots is not None:
        boxes = [
            _sent(one, names, _cut(tile, at, one.shape))
            for one, at in zip(rounds, starts_from(cuts, place), strict=True)
        ]
        return _joined(boxes, slots[0], slots[1], place)
    puts, kept = _places(rounds, devices, shape, combine=combine)
    where = starts_from([*cuts, *puts], place)
    whole = lax.full(shape, blank, tile.dtype)
    for _, alike in groupby(range(len(rounds)), key=lambda number: rounds[number].shape):
        numbers = list(alike)
        if len(numbers) > MANY_ROUNDS and not combine:
            those = slice(numbers[0], numbers[-1] + 1)
            held = any(kept[those])
            whole = _in_loop(rounds[those], cuts[those], puts[those], names, place, tile, whole, keep=held)
            continue
        for number in numbers:
            one, at = rounds[number], where[len(rounds) + number]
            box = _sent(one, names, _cut(tile, where[number], one.shape))
            if combine or kept[number]:
                before = _cut(whole, at, one.shape)
                if len(one.receivers) < devices:
                    here = of_device(_receives(one, devices), place)
                    box = _box_if(here, box, lax.full_like(box, blank) if combine else before)
                box = box if reduction is None else COMBINE[reduction](before, box)
            whole = lax.dynamic_update_slice(whole, box, at, allow_negative_indices=False)
    return whole


def _slots(rounds: Sequence[Round], devices: int, shape: tuple[int, ...]) -> tuple[int, Positions] | None:
    """The dim along which the boxes of all rounds lie side by side, and per round and device the place there.

    None where they do not, or where their order differs among the devices and they are more than two.
    """
    size, count = rounds[0].shape, len(rounds)
    dims = [dim for dim in range(len(shape)) if size[dim] != shape[dim]]
    if len(dims) != 1 or size[dims[0]] * count != shape[dims[0]]:
        return None
    if any(one.shape != size or len(one.receivers) != devices for one in rounds):
        return None
    slots = np.zeros((count, devices), dtype=np.int64)
    for number, one in enumerate(rounds):
        slots[number, one.receivers] = one.put[:, dims[0]] // size[dims[0]]
    return (dims[0], slots) if count == 2 or (slots == slots[:, :1]).all() else None


def _joined(boxes: Sequence[jax.Array], dim: int, slots: Positions, place: Any) -> jax.Array:
    """The boxes side by side, each in its place: nothing is filled before, nothing written twice."""
    if (slots == slots[:, :1]).all():
        return lax.concatenate([boxes[number] for number in np.argsort(slots[:, 0])], dim)
    first, second = boxes
    in_order = lax.broadcast(of_device(slots[0] == 0, place), first.shape)
    return lax.concatenate([lax.select(in_order, first, second), lax.select(in_order, second, first)], dim)


def _in_loop(
    rounds: Sequence[Round],
    cuts: Sequence[Starts],
    puts: Sequence[Starts],
    names: tuple[str, ...],
    place: Any,
    tile: jax.Array,
    whole: jax.Array,
    *,
    keep: bool,
) -> jax.Array:
    """Boxes of one shape put into a tile, one by one: one cut, one put, and the permutation by its number.

    `keep`: whether devices that receive nothing in a round put back what was there.
    """
    cut, put = (of_device(np.stack([starts for starts, _ in one], 1).astype(np.int32), place) for one in (cuts, puts))
    devices = len(cuts[0][0])
    here = of_device(np.stack([_receives(one, devices) for one in rounds], 1), place)
    sends = [partial(_sent, one, names) for one in rounds]

    def after(number: Any, whole: jax.Array) -> jax.Array:
        box = lax.dynamic_slice(tile, of_device(cut, number), rounds[0].shape, allow_negative_indices=False)
        box, at = lax.switch(number, sends, box), of_device(put, number)
        if keep:
            before = lax.dynamic_slice(whole, at, box.shape, allow_negative_indices=False)
            box = _box_if(of_device(here, number), box, before)
        return lax.dynamic_update_slice(whole, box, at, allow_negative_indices=False)

    return lax.fori_loop(0, len(rounds), after, whole)


def _sent(one: Round, names: tuple[str, ...], box: jax.Array) -> jax.Array:
    if one.is_local:
        return box
    return lax.ppermute(box, names, list(zip(one.senders.tolist(), one.receivers.tolist(), strict=True)))


def _receives(one: Round, devices: int) -> NDArray[np.bool_]:
    """Per position whether its device receives a box."""
    found = np.zeros(devices, dtype=np.bool_)
    found[one.receivers] = True
    return found


def _box_if(chosen: jax.Array, box: jax.Array, other: jax.Array) -> jax.Array:
    return lax.select(lax.broadcast(chosen, box.shape), box, other)


def _cut(tile: jax.Array, at: Sequence[Any], shape: tuple[int, ...]) -> jax.Array:
    if shape == tile.shape:
        return tile
    if all(isinstance(start, np.int32) for start in at):
        return lax.slice(tile, at, [start + length for start, length in zip(at, shape, strict=True)])
    return lax.dynamic_slice(tile, at, shape, allow_negative_indices=False)


def _at(devices: int, positions: Positions, starts: Positions) -> Starts:
    table = np.zeros((devices, starts.shape[1]), dtype=np.int64)
    known = np.zeros(devices, dtype=np.bool_)
    table[positions], known[positions] = starts, True
    return table, known


def bits_of(dtype: Any) -> Any:
    """The integers whose bits travel in place of values of a dtype; None where the values do.

    A backend without arithmetic on small floats turns them into larger ones to send them, and sends twice the bytes.
    """
    small = jax.numpy.issubdtype(dtype, jax.numpy.floating) and dtype.itemsize < 4
    return np.dtype(f"uint{8 * dtype.itemsize}") if small else None


def of_device(table: NDArray[Any] | jax.Array, place: Any) -> jax.Array:
    """The row of a table that is for the device at a position."""
    return lax.dynamic_index_in_dim(table, place, keepdims=False, allow_negative_indices=False)


def starts_from(tables: Sequence[Starts], place: Any) -> list[list[Any]]:
    """Per table the start of the device's box, one per dim: a number where it is the same for all, else looked up.

    Tables are looked up together, equal columns once.
    """
    columns: dict[bytes, int] = {}
    found: list[list[Any]] = []
    for table, known in tables:
        row: list[Any] = []
        for column in table.T:
            values = column[known]
            if len(values) == 0 or (values == values[0]).all():
                row.append(np.int32(values[0] if len(values) else 0))  # as those looked up: JAX mixes no two types
            else:
                key = np.where(known, column, values[0]).astype(np.int32).tobytes()
                row.append(_Looked(columns.setdefault(key, len(columns))))
        found.append(row)
    if not columns:
        return found
    rows = np.stack([np.frombuffer(key, dtype=np.int32) for key in columns], axis=1)
    mine = of_device(rows, place)
    values = [lax.index_in_dim(mine, number, keepdims=False) for number in range(len(columns))]
    return [[values[start.column] if isinstance(start, _Looked) else start for start in row] for row in found]


class _Looked(NamedTuple):
    """Stands for a start until the table is looked up."""

    column: int


def _places(
    rounds: Sequence[Round], devices: int, shape: tuple[int, ...], *, combine: bool
) -> tuple[list[Starts], list[bool]]:
    """Per round where its boxes are put, on devices that receive none too; and whether what was there must stay."""
    tables = [_at(devices, one.receivers, one.put) for one in rounds]
    kept = [False] * len(rounds)
    if combine or all(known.all() for _, known in tables):
        return tables, kept
    coming: list[list[tuple[int, ...]]] = [[] for _ in range(devices)]
    for table, known in tables:
        for device in np.flatnonzero(known).tolist():
            coming[device].append(tuple(table[device].tolist()))
    sizes = [one.shape for one in rounds]
    done: list[list[Box]] = [[] for _ in range(devices)]
    for number, (table, known) in enumerate(tables):
        usual = table[known][0].tolist()
        idle = np.flatnonzero(~known).tolist()
        found = [_harmless(sizes[number], shape, done[d], [usual, *coming[d]]) for d in idle]
        kept[number] = None in found
        if not kept[number] and idle:
            table[idle] = found
            known[idle] = True
        for device in np.flatnonzero(np.isin(np.arange(devices), rounds[number].receivers)).tolist():
            done[device].append(_box(table[device].tolist(), sizes[number]))
            coming[device].pop(0)
    return tables, kept


def _harmless(
    size: tuple[int, ...], shape: tuple[int, ...], done: Sequence[Box], candidates: Iterable[Sequence[int]]
) -> list[int] | None:
    """Where a box may be put on a device without touching what is there; None where no candidate will do."""
    for start in candidates:
        at = [min(low, whole - length) for low, whole, length in zip(start, shape, size, strict=True)]
        box = _box(at, size)
        if all(box.intersect(other).is_empty for other in done):
            return at
    return None


def _box(start: Sequence[int], size: Sequence[int]) -> Box:
    return Box((low, low + length) for low, length in zip(start, size, strict=True))
