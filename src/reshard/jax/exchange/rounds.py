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
from itertools import groupby, product
from math import gcd, prod
from operator import mod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from numpy.typing import NDArray

from reshard.box import Box
from reshard.digits import Positions
from reshard.dtypes import combining, identity
from reshard.exchange import DigitExchange, Exchange, Piece, schedule
from reshard.exchange.by_digits import senders_by_round
from reshard.jax.exchange.joint import DeviceRun, GroupCall, run_alone
from reshard.tile import Tile

COMBINE: dict[str, Callable[..., jax.Array]] = combining(jax.numpy)
"""What combines two unreduced values, by reduction; avg divides once all are added."""
MANY_ROUNDS = 8
"""More rounds than these are a loop: fewer run faster one by one, more take too long to compile."""


class Device(NamedTuple):
    """The device that runs a program, where all axes of its mesh are manual."""

    names: tuple[str, ...]
    """Of all axes of the mesh, in its order: a permutation by pairs counts in that order whatever is asked."""
    position: Any
    """Its place in the mesh."""

    @classmethod
    def here(cls, names: tuple[str, ...]) -> Device:
        """The one that a program of all runs on."""
        return cls(names, lax.axis_index(names) if names else np.int32(0))

    def mesh_size(self) -> int:
        """The number of devices of its mesh."""
        return prod(lax.axis_size(name) for name in self.names)

    def row_of(self, table: NDArray[Any] | jax.Array) -> jax.Array:
        """Its row of a table with one per device."""
        return of_device(table, self.position)

    def blanked(self, tile: jax.Array, dim: int, lengths: Positions, blank: Any) -> jax.Array:
        """A tile with one value beyond where it ends in a dim; `lengths` says where, per device."""
        inside = lax.broadcasted_iota(np.int32, tile.shape, dim) < self.row_of(lengths.astype(np.int32))
        return lax.select(inside, tile, lax.full_like(tile, blank))


class Starts(NamedTuple):
    """Where the box of each device starts."""

    table: NDArray[Any]
    """One row per position, one column per dim."""
    is_known: NDArray[np.bool_]
    """Per position whether it has a box: else any start will do."""

    @classmethod
    def of(cls, devices: int, positions: Positions, starts: Positions) -> Starts:
        """Of some of so many devices."""
        table = np.zeros((devices, starts.shape[1]), dtype=np.int64)
        is_known = np.zeros(devices, dtype=np.bool_)
        table[positions], is_known[positions] = starts, True
        return cls(table, is_known)


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

    def sent(self, box: jax.Array) -> DeviceRun:
        """The box that a device receives, from the one that it sends."""
        if self.is_local:
            return box
        pairs = zip(self.senders.tolist(), self.receivers.tolist(), strict=True)
        return (yield GroupCall("ppermute", tuple(pairs), box))

    def receives(self, devices: int) -> NDArray[np.bool_]:
        """Per position, of so many, whether its device receives a box."""
        return np.isin(np.arange(devices), self.receivers)


def rounds_of(exchange: Exchange) -> list[Round]:
    """The rounds of an exchange over the same devices, in any order; those in which nothing is sent come first.

    Where every round is a permutation of all devices, boxes that stay on their device go with it.
    """
    is_woven = bool(exchange.source.layout.weaves or exchange.target.layout.weaves)
    in_one_order = exchange.source.same_order_as(exchange.target) and not is_woven
    if exchange.is_even and isinstance(exchange, DigitExchange) and not exchange.spread and in_one_order:
        return _permutations(exchange)
    mesh = exchange.target.mesh
    pieces = [piece for device in mesh.device_array.tolist() for piece in exchange.incoming(device)]
    pieces = _side_by_side(exchange, pieces) if is_woven else pieces
    rounds = [*schedule(pieces, one_shape=True, staying=True), *_travelling(pieces)]
    return [_round(exchange, of_round) for of_round in rounds]


def _permutations(exchange: DigitExchange) -> list[Round]:
    positions = exchange.source.mesh.positions
    held, goal = np.zeros((2, len(positions), len(exchange.target.shape)), np.int64)
    for starts, tiling in ((held, exchange.source), (goal, exchange.target)):
        for dim, (start, _) in enumerate(tiling.all_bounds):
            starts[:, dim] = start
    rounds = []
    for senders in senders_by_round(exchange.common.digits, exchange.determined_by, exchange.gathered, positions):
        start = np.maximum(held[senders], goal)
        rounds.append(Round(exchange.piece_shape, senders, positions, start - held[senders], start - goal))
    return rounds


def _side_by_side(exchange: Exchange, pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces, cut where what is one box in the tensor does not lie side by side at an end."""
    ends = (exchange.source, "sender"), (exchange.target, "receiver")
    for tiling, end in ends:
        if not (tiling.layout.has_windows or tiling.layout.is_summed):
            continue
        tiles = {device: tiling.tile(device) for device in tiling.mesh.devices}
        pieces = [
            piece._replace(box=box)
            for piece in pieces
            for tile in [tiles[getattr(piece, end)]]
            for box in (tile.boxes_of(piece.box) if isinstance(tile, Tile) else [piece.box])
        ]
    return list(pieces)


def _travelling(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """The pieces that travel, in rounds of one shape; in boxes of one unit where devices then handle fewer elements."""
    sent = [piece for piece in pieces if piece.sender != piece.receiver]
    rounds = schedule(sent, one_shape=True)
    if len({piece.box.shape for piece in sent}) < 2:
        return rounds
    unit = [gcd(*lengths) for lengths in zip(*(piece.box.shape for piece in sent), strict=True)]
    busy: Counter[tuple[int, bool]] = Counter()
    for piece in sent:
        busy[piece.sender, False] += piece.box.size
        busy[piece.receiver, True] += piece.box.size
    handled = max(busy.values())  # as many rounds as the busiest device has units
    if 4 * (handled // prod(unit)) > 5 * len(rounds) or handled >= sum(alike[0].box.size for alike in rounds):
        return rounds
    return schedule(
        piece._replace(box=_box(start, unit))
        for piece in sent
        for start in product(*(range(low, high, length) for (low, high), length in zip(piece.box, unit, strict=True)))
    )


def _round(exchange: Exchange, pieces: Sequence[Piece]) -> Round:
    source, target = exchange.source, exchange.target

    def starts(tiles: Iterable[Box | Tile]) -> Positions:
        places = [tile.places(piece.box)[0][0] for piece, tile in zip(pieces, tiles, strict=True)]
        rows = [[along.start for along in place] for place in places]
        return np.array(rows, np.int64).reshape(len(pieces), len(target.shape))

    return Round(
        pieces[0].box.shape,
        target.mesh.positions_of(np.array([piece.sender for piece in pieces])),
        target.mesh.positions_of(np.array([piece.receiver for piece in pieces])),
        starts(source.tile(piece.sender) for piece in pieces),
        starts(target.tile(piece.receiver) for piece in pieces),
    )


def in_rounds(exchange: Exchange, device: Device, tile: jax.Array, *, reduction: str | None) -> DeviceRun:
    """The target tile of a device, round by round.

    Args:
        exchange: over the same devices, in any order.
        device: of the target's mesh.
        tile: its source tile.
        reduction: what combines boxes that arrive at one place; None where no two do.
    """
    combine = reduction is not None
    blank = 0 if reduction is None else identity(reduction, tile.dtype)
    devices = exchange.source.mesh.size
    shape = exchange.target.layout.local_shape(exchange.target.shape)
    rounds = rounds_of(exchange)
    cuts = [Starts.of(devices, round_.senders, round_.cut) for round_ in rounds]
    if len(rounds) == 1 and rounds[0].shape == shape and len(rounds[0].receivers) == devices:
        (at,) = starts_from(cuts, device)
        return (yield from rounds[0].sent(_cut(tile, at, shape)))
    if not combine and 0 < len(rounds) <= MANY_ROUNDS and _cover(rounds, devices, shape):
        slots = _slots(rounds, devices, shape)
        puts = [] if slots else [Starts.of(devices, round_.receivers, round_.put) for round_ in rounds]
        boxes, where = [], starts_from([*cuts, *puts], device)
        for round_, at in zip(rounds, where[: len(rounds)], strict=True):
            boxes.append((yield from round_.sent(_cut(tile, at, round_.shape))))
        return _joined(boxes, *slots, device) if slots else _overwritten(boxes, where[len(rounds) :], shape)
    puts, must_keep = _places(rounds, devices, shape, combine=combine)
    where = starts_from([*cuts, *puts], device)
    if combine and len(rounds) == 1 and rounds[0].is_local and _is_in_line(rounds[0], shape):
        box = _cut(tile, where[0], rounds[0].shape)
        if len(rounds[0].receivers) < devices:
            box = _box_if(device.row_of(rounds[0].receives(devices)), box, lax.full_like(box, blank))
        return _amid(box, where[1], shape, blank)
    whole = lax.full(shape, blank, tile.dtype)
    for _, alike in groupby(range(len(rounds)), key=lambda number: rounds[number].shape):
        numbers = list(alike)
        if len(numbers) > MANY_ROUNDS and not combine:
            of_loop = slice(numbers[0], numbers[-1] + 1)
            loop = _RoundLoop(rounds[of_loop], cuts[of_loop], puts[of_loop], any(must_keep[of_loop]))
            whole = loop.run(device, tile, whole)
            continue
        for number in numbers:
            round_, at = rounds[number], where[len(rounds) + number]
            box = yield from round_.sent(_cut(tile, where[number], round_.shape))
            if combine or must_keep[number]:
                before = _cut(whole, at, round_.shape)
                if len(round_.receivers) < devices:
                    receives = device.row_of(round_.receives(devices))
                    box = _box_if(receives, box, lax.full_like(box, blank) if combine else before)
                box = box if reduction is None else COMBINE[reduction](before, box)
            whole = lax.dynamic_update_slice(whole, box, at, allow_negative_indices=False)
    return whole


def _cover(rounds: Sequence[Round], devices: int, shape: tuple[int, ...]) -> bool:
    """Whether the boxes of all rounds are of one shape, which divides that of every device's tile, and fill it."""
    size = rounds[0].shape
    if any(round_.shape != size or len(round_.receivers) != devices for round_ in rounds):
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
    first, second = boxes
    in_order = lax.broadcast(device.row_of(slots[0] == 0), first.shape)
    return lax.concatenate([lax.select(in_order, first, second), lax.select(in_order, second, first)], dim)


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
        sends = [lambda box, sent=round_.sent: run_alone(sent(box), device.names) for round_ in self.rounds]

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


def of_device(table: NDArray[Any] | jax.Array, place: Any) -> jax.Array:
    """The row of a table that is for the device at a position."""
    return lax.dynamic_index_in_dim(table, place, keepdims=False, allow_negative_indices=False)


def starts_from(tables: Sequence[Starts], device: Device) -> list[list[Any]]:
    """Per table the start of the device's box, one per dim: a number where it is the same for all, else looked up.

    Tables are looked up together, equal columns once.
    """
    columns: dict[bytes, int] = {}
    rows: list[list[Any]] = []  # of numbers, and of columns that are to be looked up
    for table, is_known in tables:
        row: list[Any] = []
        for column in table.T:
            values = column[is_known]
            if len(values) == 0 or (values == values[0]).all():
                row.append(np.int32(values[0] if len(values) else 0))  # as those looked up: JAX mixes no two types
            else:
                row.append(np.where(is_known, column, values[0]).astype(np.int32).tobytes())
                columns.setdefault(row[-1], len(columns))
        rows.append(row)
    if not columns:
        return rows
    looked_up_row = device.row_of(np.stack([np.frombuffer(column, dtype=np.int32) for column in columns], axis=1))
    looked_up = {column: lax.index_in_dim(looked_up_row, number, keepdims=False) for column, number in columns.items()}
    return [[looked_up[start] if isinstance(start, bytes) else start for start in row] for row in rows]


def _places(
    rounds: Sequence[Round], devices: int, shape: tuple[int, ...], *, combine: bool
) -> tuple[list[Starts], list[bool]]:
    """Per round where its boxes are put, on devices that receive none too; and whether what was there must stay."""
    puts = [Starts.of(devices, round_.receivers, round_.put) for round_ in rounds]
    must_keep = [False] * len(rounds)
    if combine or all(starts.is_known.all() for starts in puts):
        return puts, must_keep
    coming: list[list[tuple[int, ...]]] = [[] for _ in range(devices)]
    for table, is_known in puts:
        for position in np.flatnonzero(is_known).tolist():
            coming[position].append(tuple(table[position].tolist()))
    filled: list[list[Box]] = [[] for _ in range(devices)]
    for number, (round_, (table, is_known)) in enumerate(zip(rounds, puts, strict=True)):
        usual = table[is_known][0].tolist()
        idle = np.flatnonzero(~is_known).tolist()
        harmless = [_harmless(round_.shape, shape, filled[d], [usual, *coming[d]]) for d in idle]
        must_keep[number] = None in harmless
        if not must_keep[number] and idle:
            table[idle] = harmless
            is_known[idle] = True
        for position in np.flatnonzero(round_.receives(devices)).tolist():
            filled[position].append(_box(table[position].tolist(), round_.shape))
            coming[position].pop(0)
    return puts, must_keep


def _harmless(
    size: tuple[int, ...], shape: tuple[int, ...], filled: Sequence[Box], candidates: Iterable[Sequence[int]]
) -> list[int] | None:
    """Where a box may be put on a device without touching what is there; None where no candidate will do."""
    for start in candidates:
        at = [min(low, whole - length) for low, whole, length in zip(start, shape, size, strict=True)]
        box = _box(at, size)
        if all(box.intersect(other).is_empty for other in filled):
            return at
    return None


def _box(start: Sequence[int], size: Sequence[int]) -> Box:
    return Box((low, low + length) for low, length in zip(start, size, strict=True))
