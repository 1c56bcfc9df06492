"""A move of a plan that has to keep a memory limit: piece by piece in a loop, so that two small buffers do for all.

In a program that is one operation after the other a compiler may make room for every piece at once, and does; the turn
of a loop has one buffer for what is sent and one for what arrives.
All rounds of one shape are one loop, its turns the chunks of each: in a turn a device cuts a chunk out of its source
tile, sends it, and puts what arrives into the tile that the loop hands on.
Along a ring a turn is a chunk's whole way: what arrived is sent on, hop by hop.
A plan counts one buffer of a chunk beside the tiles; so a piece is cut finer here than the plan says, until both
buffers, or four where what arrives is combined with what is there, fit into that one.

By hand: a plan whose pieces are 64 x 8 in 4 chunks counts 16 x 8 elements beside its tiles; here a chunk is 8 x 8, and
a round has 8 turns.

>>> Grid.of((64, 8), 16 * 8 // 2).parts == (((0, 8, 8),), ((0, 8, 1),))
True
>>> Grid.of((7, 2), 6).parts == (((0, 2, 3), (6, 1, 1)), ((0, 2, 1),))
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from reshard.dtypes import identity
from reshard.jax.exchange.device import Device, of_device
from reshard.jax.exchange.joint import run_alone
from reshard.jax.exchange.permutations import Round, lanes_of, rounds_of
from reshard.jax.exchange.rounds import COMBINE, bits_of
from reshard.steps import Move, Step


class DimChunks(NamedTuple):
    """Chunks of one length along a dim of a piece."""

    start: int
    length: int
    times: int


SCALARS = 512
"""Bytes for the numbers that a loop counts and looks up."""


@dataclass(frozen=True)
class Grid:
    """A piece cut into chunks of no more elements than there is room for."""

    parts: tuple[tuple[DimChunks, ...], ...]
    """Per dim: chunks of one length, and what is left, if anything is."""

    @classmethod
    def of(cls, shape: Sequence[int], room: int) -> Grid:
        """Cut along the longest dim, and along the next where that is not enough."""
        chunk = list(shape)
        for dim in sorted(range(len(shape)), key=lambda dim: -shape[dim]):
            if prod(chunk) > room:
                chunk[dim] = _length(shape[dim], max(1, room * chunk[dim] // prod(chunk)))
        parts = []
        for size, length in zip(shape, chunk, strict=True):
            count, rest = divmod(size, length)
            left = [DimChunks(count * length, rest, 1)] if rest else []
            parts.append((DimChunks(0, length, count), *left))
        return cls(tuple(parts))

    def loops(self) -> list[Sequence[DimChunks]]:
        """One per shape of a chunk: per dim its part."""
        return list(product(*self.parts))


def _length(size: int, room: int) -> int:
    """The longest chunk that has room beside what is left over, for a loop of that shape has buffers of its own.

    >>> _length(240, 29), _length(7, 3)
    (24, 2)
    """
    return next(length for length in range(room, 0, -1) if size % length == 0 or length + size % length <= room)


def chunk_elements(step: Step) -> int:
    """The elements of the one chunk that the peak of a step counts beside its tiles."""
    rooms = []
    for move in step.moves:
        longest = max(move.exchange.piece_shape, default=1) or 1
        rooms.append(-(-longest // step.chunks) * (move.exchange.largest_piece // longest))
    return max(rooms, default=1) or 1


def moved_in_chunks(move: Move, room: int, device: Device, tile: jax.Array, kept: jax.Array | None = None) -> jax.Array:
    """The target tile of a device.

    Args:
        move: over the same devices, in any order.
        room: the elements for which buffers beside the tiles have room.
        device: of the target's mesh.
        tile: its source tile.
        kept: the tile that it kept from before, of an exchange along a ring that uses it.
    """
    exchange = move.exchange
    shape = exchange.target.layout.local_shape(exchange.target.shape)
    rounds, devices = rounds_of(exchange), exchange.source.mesh.size
    first = rounds[0] if rounds else None
    if first is not None and len(rounds) == 1 and first.is_local and first.shape == shape:  # a slice is its result
        start = of_device(device.row_of(_table(devices, rounds, "cut")), np.int32(0))
        return lax.dynamic_slice(tile, start, shape, allow_negative_indices=False)
    blank = 0 if move.reduction is None else identity(move.reduction, tile.dtype)
    bits = None if move.reduction else bits_of(tile.dtype)
    whole = lax.full(shape, blank, bits or tile.dtype)
    groups: dict[Any, list[list[Round]]] = {}
    for lane in lanes_of(rounds):
        groups.setdefault((lane[0].shape, len(lane), lane[0].of_kept), []).append(lane)
    looked_up = sum(len(one.shape) * 4 + 1 for one in rounds) * devices * 2
    room = max(room - (SCALARS * len(groups) + looked_up) // tile.dtype.itemsize, room // 2)
    for (_, _, of_kept), alike in groups.items():
        whole = _after(alike, move.reduction, room, device, kept if of_kept and kept is not None else tile, whole)
    whole = lax.bitcast_convert_type(whole, tile.dtype)
    return lax.div(whole, lax.full_like(whole, move.classes)) if move.reduction == "avg" else whole


def _table(devices: int, rounds: Sequence[Round], end: str) -> Any:
    """Per device and round where its box starts, in the tile that it is cut from or put into."""
    table = np.zeros((devices, len(rounds), len(rounds[0].shape)), np.int32)
    for number, one in enumerate(rounds):
        places = one.senders if end == "cut" else one.receivers
        table[places, number] = getattr(one, end)
    return table


def _after(
    lanes: Sequence[Sequence[Round]],
    reduction: str | None,
    room: int,
    device: Device,
    tile: jax.Array,
    whole: jax.Array,
) -> jax.Array:
    """The target tile after lanes of one shape and of as many hops each."""
    devices, shape = device.mesh_size(), lanes[0][0].shape
    cuts = device.row_of(_table(devices, [lane[0] for lane in lanes], "cut"))
    hops = [_Hop.of(rounds, device, keeps=reduction is not None) for rounds in zip(*lanes, strict=True)]
    keeps = any(hop.receiving is not None for hop in hops)
    grid = Grid.of(shape, max(room // (4 if keeps else 2), 1))
    for parts in grid.loops():
        turns = len(lanes) * prod(chunks for *_, chunks in parts)
        loop = _ChunkLoop(parts, cuts, hops, reduction)
        whole = lax.fori_loop(np.int32(0), np.int32(turns), partial(loop.turn, tile), whole)
    return whole


class _Hop(NamedTuple):
    """What becomes of a chunk that is sent, by the number of its lane."""

    sends: Sequence[Callable[[jax.Array], jax.Array]]
    """Per lane what sends a chunk."""
    puts: jax.Array
    """Per lane where this device's box starts in its target tile."""
    receiving: jax.Array | None
    """Per lane whether a box of its tile comes; None where one comes in all."""
    is_put: bool
    """Whether boxes come to any tile, or all to be handed on."""

    @classmethod
    def of(cls, rounds: Sequence[Round], device: Device, *, keeps: bool) -> _Hop:
        """That of rounds of one shape, a lane each."""
        devices = device.mesh_size()
        receives = np.stack([one.receives(devices) for one in rounds], 1)
        return cls(
            [partial(_sent, one, device) for one in rounds],
            device.row_of(_table(devices, rounds, "put")),
            device.row_of(receives) if keeps or not receives.all() else None,
            bool(receives.any()),
        )


def _sent(alike: Round, device: Device, box: jax.Array) -> jax.Array:
    return run_alone(alike.sent(box), device)


class _ChunkLoop(NamedTuple):
    """Chunks of one shape, of lanes of one shape: one cut, and in each hop the permutation by lane and one put."""

    parts: Sequence[DimChunks]
    """Per dim of the pieces."""
    cuts: jax.Array
    """Per lane where this device's box starts in its source tile."""
    hops: Sequence[_Hop]
    """One for what is not handed on."""
    reduction: str | None
    """What combines what comes with what is there."""

    def turn(self, tile: jax.Array, number: jax.Array, whole: jax.Array) -> jax.Array:
        """The target tile after one chunk of one lane."""
        parts = self.parts
        lengths, chunks = [length for _, length, _ in parts], np.int32(prod(count for *_, count in parts))
        lane, place = lax.div(number, chunks), lax.rem(number, chunks)
        offsets = []
        for dim, (start, length, count) in enumerate(parts):
            later = prod(count for *_, count in parts[dim + 1 :])  # the last dim is the fastest
            offsets.append(
                np.int32(start) + lax.rem(lax.div(place, np.int32(later)), np.int32(count)) * np.int32(length)
            )

        def starts(table: jax.Array) -> list[jax.Array]:
            row = of_device(table, lane)
            return [lax.index_in_dim(row, dim, keepdims=False) + offset for dim, offset in enumerate(offsets)]

        source, _ = lax.optimization_barrier((tile, number))  # or its bits are made once, as a tile beside it
        box = lax.bitcast_convert_type(source, whole.dtype)
        box = lax.dynamic_slice(box, starts(self.cuts), lengths, allow_negative_indices=False)
        for hop in self.hops:
            box = hop.sends[0](box) if len(hop.sends) == 1 else lax.switch(lane, hop.sends, box)
            if hop.is_put:
                whole = self._put(hop, lane, box, whole, starts(hop.puts))
        return whole

    def _put(self, hop: _Hop, lane: jax.Array, box: jax.Array, whole: jax.Array, at: Sequence[jax.Array]) -> jax.Array:
        if hop.receiving is not None:
            before = lax.dynamic_slice(whole, at, box.shape, allow_negative_indices=False)
            joined = box if self.reduction is None else COMBINE[self.reduction](before, box)
            box = lax.select(lax.broadcast(of_device(hop.receiving, lane), box.shape), joined, before)
        return lax.dynamic_update_slice(whole, box, at, allow_negative_indices=False)
