"""How much an exchange puts on the busiest link or port of every level.

A piece goes from the outermost level in which sender and receiver differ inwards.
A switch takes it all the way: it loads the sender's port out and the receiver's port in, and no level inside.
Along a ring or a line it loads every link on the shorter way, and goes on inside from there.
Half a ring away both ways are as long; there pieces part so that the fullest link carries as little as can be.
Where several levels of a torus follow one another, its parts take them in different orders: for two levels half
goes by the first and half by the second, so that both links of a device are used.
Through switches the messages of a device follow one another, each after its latency, and then come the bytes; along
rings and lines pieces stream, so there the hops of the farthest take a time that bytes fill.

By hand, on a 4 x 4 grid of lines: from one corner to the other, half of 8 bytes goes along each edge.

>>> from reshard.network.level import Level
>>> levels = (Level(1, 4, "line", 1.0, 1.0), Level(4, 4, "line", 1.0, 1.0))
>>> loads(levels, np.array([0]), np.array([15]), np.array([8]))
Loads(carried=(4.0, 4.0), waits_s=0.0, hops_s=6.0, along=((4.0, 4.0, 4.0), (4.0, 4.0, 4.0)))
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.digits import Positions
from reshard.mix import Floats
from reshard.network.half_round import fullest_of_parted
from reshard.network.level import Level


class Loads(NamedTuple):
    """What an exchange asks of a network."""

    carried: tuple[float, ...]
    """Per level, innermost first, what the busiest link or port carries in one direction."""
    waits_s: float
    """The latencies of all messages that one device sends through switches, or receives: of the slowest device."""
    hops_s: float
    """The latencies of all hops along rings and lines of the piece that goes farthest."""
    along: tuple[tuple[float, ...], ...] = ()
    """Per level what the links carry that are told apart there (`Level.places`); empty where all carry as much."""

    def seconds(self, levels: Sequence[Level], unit_bytes: float) -> float:
        """The time that the busiest level takes."""
        busiest = max((load / level.bandwidth for load, level in zip(self.carried, levels, strict=True)), default=0.0)
        return self.with_latencies(busiest * unit_bytes)

    def with_latencies(self, bytes_s: float) -> float:
        """What bytes take once messages wait for one another, and where hops take longer, these."""
        return self.waits_s + max(self.hops_s, bytes_s)


def runs(levels: Sequence[Level]) -> list[list[int]]:
    """The numbers of the levels from the outermost in: each switch by itself, levels of one torus together.

    >>> runs([Level(1, 4, "ring", 1, 0), Level(4, 4, "line", 1, 0), Level(16, 2, "switch", 1, 0)])
    [[2], [1, 0]]
    """
    numbered = list(enumerate(levels))[::-1]
    groups = groupby(numbered, key=lambda pair: pair[0] if pair[1].is_switch else -1)
    return [[number for number, _ in group] for _, group in groups]


def loads(
    levels: Sequence[Level],
    senders: Positions,
    receivers: Positions,
    amounts: NDArray[Any],
) -> Loads:
    """The loads of pieces on every level.

    Args:
        levels: innermost first.
        senders: the device that each piece leaves.
        receivers: the device that it is for.
        amounts: how much it is.
    """
    return _Tally(levels, len(senders)).of(senders, receivers, amounts)


class _Tally:
    """The pieces that are still under way, and what was carried so far."""

    def __init__(self, levels: Sequence[Level], pieces: int) -> None:
        self.levels = levels
        self.size = prod(level.size for level in levels)
        self.carried = [0.0] * len(levels)
        self.along: list[tuple[float, ...]] = [()] * len(levels)
        self.waits: list[tuple[Positions, Positions, float]] = []  # senders, receivers and latency of a switch
        self.hops_s: Floats = np.zeros(pieces)

    def of(self, senders: Positions, receivers: Positions, amounts: NDArray[Any]) -> Loads:
        places, amounts, origins, hops_s = senders, amounts.astype(np.float64), senders, 0.0
        for numbers in runs(self.levels):
            if not len(places):
                break
            if not self.levels[numbers[0]].is_switch:
                places = self._along(numbers, places, receivers, amounts)
                continue
            digit = self.levels[numbers[0]].digit
            crosses = digit.value(places) != digit.value(receivers)
            if not crosses.any():
                continue
            ends = [array[crosses] for array in (places, receivers)]
            self.carried[numbers[0]] = float(max(np.bincount(end, amounts[crosses]).max() for end in ends))
            self.waits.append((origins[crosses], ends[1], self.levels[numbers[0]].latency_s))
            hops_s, stays = max(hops_s, float(self.hops_s[crosses].max())), ~crosses
            arrays = (places, receivers, amounts, origins, self.hops_s)
            places, receivers, amounts, origins, self.hops_s = (array[stays] for array in arrays)
        hops_s = max(hops_s, float(self.hops_s.max(initial=0.0)))
        return Loads(tuple(self.carried), self._slowest(), hops_s, tuple(self.along))

    def _along(self, numbers: list[int], senders: Positions, receivers: Positions, amounts: Floats) -> Positions:
        """Send all pieces along rings and lines; where they then are."""
        steps = {}
        for number in numbers:
            digit = self.levels[number].digit
            step = digit.value(receivers) - digit.value(senders)
            if step.any():
                steps[number] = step
                self.hops_s += self.levels[number].latency_s * hops_of(self.levels[number], step)
        edges: dict[int, list[Floats]] = {}
        routes = orders(list(steps))
        part = amounts / max(len(routes), 1)
        for route in routes:
            place = senders
            for number in route:
                added = edges_of_pieces(self.levels[number], place, steps[number], part, self.size)
                edges[number] = [a + b for a, b in zip(edges[number], added, strict=True)] if number in edges else added
                place = place + steps[number] * self.levels[number].stride
        for number, directions in edges.items():
            level = self.levels[number]
            passes = passing(level, directions)
            self.carried[number] = fullest_link(level, passes)
            self.along[number] = links_along(level, passes)
        for number, step in steps.items():
            senders = senders + step * self.levels[number].stride
        return senders

    def _slowest(self) -> float:
        """The largest sum of latencies through switches over senders and over receivers."""
        taken = [wait for wait in self.waits if wait[2]]
        if not taken:
            return 0.0
        waits = np.concatenate([np.full(len(senders), latency_s) for senders, _, latency_s in taken])
        ends = [np.concatenate([wait[column] for wait in taken]) for column in (0, 1)]
        return float(max(np.bincount(end, waits).max() for end in ends))


def orders(numbers: list[int]) -> list[list[int]]:
    """Orders in which parts of a piece take levels: every level comes first as often, and before each other one.

    >>> orders([0, 1])
    [[0, 1], [1, 0]]
    """
    rotations = [numbers[place:] + numbers[:place] for place in range(len(numbers))]
    return rotations if len(numbers) < 3 else [*rotations, *(order[::-1] for order in rotations)]


def hops_of(level: Level, step: Positions) -> Positions:
    """How many links pieces pass that go so many places along a level."""
    if level.link == "line":
        return np.abs(step)
    ahead = step % level.size
    return ahead if level.link == "one-way-ring" else np.minimum(ahead, level.size - ahead)


def edges_of_pieces(level: Level, start: Positions, step: Positions, amounts: Floats, size: int) -> list[Floats]:
    """Per direction, by how much the load of a link exceeds that of the link before it, at the device behind it.

    Half of what goes half round a ring goes each way; what does is told last, at the device where it begins.
    """
    start, step, amounts = _alike_together(level, start, step, amounts, size)
    stop = start + step * level.stride
    first = start - level.digit.value(start) * level.stride
    behind = np.concatenate([start, stop, first])  # a piece that wraps round passes the ring's first link too
    signs = ((1.0, -1.0), (-1.0, 1.0))
    loads_of_ways = []
    for (leaving, arriving), (share, wrapped) in zip(signs, _shares(level.link, level.size), strict=False):
        carried = share[step] * amounts  # steps back count from the end of the table
        weights = np.concatenate([carried * leaving, carried * arriving, wrapped[step] * amounts])
        loads_of_ways.append(np.asarray(np.bincount(behind, weights, size), dtype=np.float64))
    if level.link == "ring":
        goes_half_round = 2 * (step % level.size) == level.size
        begins = np.bincount(start[goes_half_round], amounts[goes_half_round], size)
        loads_of_ways.append(np.asarray(begins, dtype=np.float64))
    return loads_of_ways


def _alike_together(
    level: Level, start: Positions, step: Positions, amounts: Floats, size: int
) -> tuple[Positions, Positions, Floats]:
    """Pieces that begin at one device and go as far along a level as one, where there are many."""
    kinds = 2 * level.size - 1
    if len(start) <= kinds * size:
        return start, step, amounts
    together: Floats = np.bincount(start * kinds + (step + (level.size - 1)), amounts, kinds * size).astype(np.float64)
    (numbers,) = together.nonzero()
    start, ahead = np.divmod(numbers, kinds)
    return start, ahead - (level.size - 1), together[numbers]


def passing(level: Level, edges: Sequence[Floats]) -> Floats:
    """By ring or line, direction and link, what passes it; last of rings, by device, what goes half round from there.

    Args:
        level: of rings or lines.
        edges: of all pieces, as `edges_of_pieces` says.
    """
    of_ways: Floats = np.array(edges).reshape(len(edges), -1, level.size, level.stride)
    of_rings = of_ways.transpose(1, 3, 0, 2).reshape(-1, len(edges), level.size)
    of_rings[:, :2].cumsum(axis=2, out=of_rings[:, :2])
    return of_rings


@lru_cache(64)
def passing_of_each(link: str, size: int) -> Floats:
    """The same of one piece, a row for each place where it starts and then each where it ends; directions in a row.

    >>> passing_of_each("line", 2)
    array([[0., 0., 0., 0.],
           [1., 0., 0., 0.],
           [0., 0., 1., 0.],
           [0., 0., 0., 0.]])
    """
    level, (start, stop) = Level(1, size, link, 1.0, 0.0), np.indices((size, size)).reshape(2, -1)
    kinds = np.arange(size * size)
    edges = edges_of_pieces(level, kinds * size + start, stop - start, np.ones(size * size), size**3)
    return passing(level, edges).reshape(size * size, -1)


def fullest_link(level: Level, passes: Floats) -> float:
    """What the fullest link of a level carries, once what goes half round rings is parted as well as can be.

    Args:
        level: of rings or lines.
        passes: of all pieces, as `passing` says.

    By hand, on a ring of 4 from 0 to 2, 1 to 0 and 2, 2 to 1 and 3, 3 to 1: half each way two links carry 3 / 2; with
    all from 0 to 2 by way of 3, and from 3 to 1 by way of 0, every link carries 1.

    >>> ring, start, stop = Level(1, 4, "ring", 1.0, 1.0), np.array([0, 1, 1, 2, 2, 3]), np.array([2, 0, 2, 1, 3, 1])
    >>> fullest_link(ring, passing(ring, edges_of_pieces(ring, start, stop - start, np.ones(6), 4)))
    1.0
    """
    if level.link != "ring" or level.size == 2 or not passes[:, 2].any():
        return float(passes[:, :2].max())
    return fullest_of_parted(passes[:, :2], passes[:, 2])


def links_along(level: Level, passes: Floats) -> tuple[float, ...]:
    """What the links of a line carry that are told apart, each the fullest of its place; empty where none are.

    Args:
        level: of rings or lines.
        passes: of all pieces, as `passing` says.

    By hand, on a line of 4 from 0 to 2 and 3 to 2:

    >>> line, start, stop = Level(1, 4, "line", 1.0, 1.0), np.array([0, 3]), np.array([2, 2])
    >>> links_along(line, passing(line, edges_of_pieces(line, start, stop - start, np.ones(2), 4)))
    (1.0, 1.0, 1.0)
    """
    return tuple(passes.max(axis=(0, 1))[: level.places].tolist()) if level.places > 1 else ()


def steps_along(size: int) -> Positions:
    """Every difference of places along a level, by itself as an index: negative ones count from the end.

    >>> steps_along(3)
    array([ 0,  1,  2, -2, -1])
    """
    return np.concatenate([np.arange(size), np.arange(1 - size, 0)])


@lru_cache(256)
def _shares(link: str, size: int) -> list[tuple[Floats, Floats]]:
    """Per direction, what part of a piece goes that way, and what part round the end: by its step, negative ones too.

    >>> [way[0].tolist() for way in _shares("ring", 4)]
    [[1.0, 1.0, 0.5, 0.0, 1.0, 0.5, 0.0], [0.0, 0.0, 0.5, 1.0, 0.0, 0.5, 1.0]]
    """
    step = steps_along(size)
    ahead = 2 * (step % size)
    forward = np.where(ahead < size, 1.0, np.where(ahead == size, 0.5, 0.0))
    if link == "line":
        forward = np.where(step > 0, 1.0, 0.0)
    if link == "one-way-ring":
        forward = np.ones(len(step))
    ways = [(forward, np.where(step < 0, forward, 0.0)), (1 - forward, np.where(step > 0, 1 - forward, 0.0))]
    return ways[:1] if link == "one-way-ring" else ways
