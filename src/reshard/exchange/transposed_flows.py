"""How devices of two rings change places, that at x, y with that at y, x, so that the fullest link carries least.

Nothing is copied: what one device holds one other needs.
Every way leads along one ring, then all along the other, and the rest along the first; either way round each ring, and
by as many places first as one likes.
The way from x, y depends on how far apart these are, and on nothing else, so that links carry as much at every place
along the diagonal; that to y, x takes the same ways with the rings changed, and half of each goes it backwards.

By hand, on 4 x 4: what goes one place along each ring takes one first, or the other; what goes two, one place along the
first, two along the second, and one more along the first.
Of a tile each link carries half.

>>> flows = transposed_flows(4)
>>> round(float(flows.loads().sum(axis=0).max()), 9), int(flows.hops.max()) + 1
(0.5, 4)
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from reshard.digits import Positions
from reshard.exchange.ring_flows import HOP
from reshard.mix import ChoiceMix, Floats

SHARES = 96
"""In how many equal shares, at most, a tile parts."""
MOST = 8
"""Devices of a ring: on larger ones ways are too many, and too long."""
Moves = tuple[tuple[int, int], ...]
"""Per hop along which ring, 0 or 1, and which way, 1 or -1."""


class TransposedFlows(NamedTuple):
    """What goes from neighbour to neighbour; places are numbered x times the size, plus y."""

    origin: Positions
    """Whose tile it is a part of."""
    senders: Positions
    receivers: Positions
    hops: Positions
    """From 0."""
    low: Floats
    """Which part of the tile it is, from 0 to 1."""
    high: Floats
    size: int
    """Of each ring."""

    def loads(self) -> Floats:
        """Per hop, what links carry in tiles: those onwards and back along the first, then along the second."""
        places, ends = self.size**2, (divmod(numbers, self.size) for numbers in (self.senders, self.receivers))
        ahead = [(stop - start) % self.size for start, stop in zip(*ends, strict=True)]
        kind = np.select([ahead[0] == 1, ahead[0] > 1, ahead[1] == 1], [0, 1, 2], 3)
        links = (self.hops * 4 + kind) * places + self.senders
        carried = np.bincount(links, self.high - self.low, 4 * places * (int(self.hops.max()) + 1))
        return np.asarray(carried.reshape(-1, 4 * places), dtype=np.float64)


def _ways(size: int, apart: int) -> list[Moves]:
    """From 0, so many places apart, to the same changed: three legs, the shorter of equals left out."""
    ways = []
    for onwards, back in product((apart, apart - size), (-apart, size - apart)):
        legs = [[(ring, 1 if count > 0 else -1)] * abs(count) for ring, count in enumerate((onwards, back))]
        for whole, parted in ((legs[1], legs[0]), (legs[0], legs[1])):
            ways += [(*parted[:first], *whole, *parted[first:]) for first in range(len(parted) + 1)]
    return list(dict.fromkeys(ways))


def _turned(moves: Moves) -> Moves:
    """The way of who is as far apart the other way: the rings changed."""
    return tuple([(1 - ring, way) for ring, way in moves])


def _backwards(moves: Moves) -> Moves:
    """The same way from its end, with the rings changed: one of who is as far apart."""
    return tuple([(1 - ring, -way) for ring, way in reversed(moves)])


def _loads(size: int, apart: int, moves: Moves) -> Floats:
    """What links carry, told apart by how far x is ahead of y; those that other ways of the same kind load as one."""
    loads, ahead = np.zeros(size), -apart
    for ring, way in moves:
        begins = -ahead if ring else ahead  # as of the other ring at the place that changes x and y
        loads[(begins - (way < 0)) % size] += 1.0
        ahead += -way if ring else way
    return loads


@lru_cache(64)
def transposed_flows(size: int) -> TransposedFlows:
    """The flows on two rings of a size, 3 at the least."""
    ways = [(apart, moves) for apart in range(1, size // 2 + 1) for moves in _ways(size, apart)]
    weights = [0.25 if 2 * apart == size else 0.5 for apart, _ in ways]  # of two kinds of devices, on four of links
    loads = np.array([weight * _loads(size, *way) for weight, way in zip(weights, ways, strict=True)])
    aparts = np.array([apart for apart, _ in ways])
    firsts = np.flatnonzero(np.diff(aparts, prepend=0))
    mix = ChoiceMix.of(loads, firsts, np.array([HOP * len(moves) for _, moves in ways]))
    columns: list[list[Positions | Floats]] = []
    for apart in range(1, size // 2 + 1):
        shares: dict[Moves, float] = {}
        for part, way in zip(mix.parts.tolist(), mix.ways, strict=True):
            moves = ways[way[apart - 1]][1]
            for each in (moves, _backwards(moves)):
                if 2 * apart == size:
                    for other in (each, _turned(each)):
                        shares[other] = shares.get(other, 0.0) + part / 4
                else:
                    shares[each] = shares.get(each, 0.0) + part / 2
        ends = np.round(np.cumsum([0.0, *shares.values()]) * SHARES) / SHARES
        for moves, low, high in zip(shares, ends, ends[1:], strict=False):
            if low < high:
                columns.append(_along(size, apart, moves, low, high))
                if 2 * apart != size:
                    columns.append(_along(size, size - apart, _turned(moves), low, high))
    origin, senders, receivers, hops, low, high = (np.concatenate(column) for column in zip(*columns, strict=True))
    return TransposedFlows(origin, senders, receivers, hops, low, high, size)


def _along(size: int, apart: int, moves: Moves, low: float, high: float) -> list[Positions | Floats]:
    """A part of the tiles of all devices that are so far apart, along one way."""
    steps = np.zeros((2, len(moves) + 1), dtype=np.int64)
    for hop, (ring, way) in enumerate(moves):
        steps[ring, hop + 1] = way
    x = np.arange(size)[:, None]
    reached = np.cumsum(steps, axis=1)
    places = (x + reached[0]) % size * size + (x + apart + reached[1]) % size
    count, hops = size * len(moves), np.tile(np.arange(len(moves)), size)
    origin = np.repeat(places[:, 0], len(moves))
    return [origin, places[:, :-1].ravel(), places[:, 1:].ravel(), hops, np.full(count, low), np.full(count, high)]
