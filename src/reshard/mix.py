"""How much of what is to be sent goes each of several ways, so that what is busiest is busy least.

The best mix is a small linear program: of ways with loads a (seconds per level, or per link, of the whole) maximise the
sum of x where Σ a x ≤ 1 on every one; the whole then takes 1 / Σ x seconds.
Its prices say what a second of each is worth.

By hand, two ways that load one level for 3 s each, and one that loads both for 2 s: one third each takes 5 / 3 s, half
of each of the first two 1.5 s.

>>> best_mix(np.array([[3.0, 0.0], [0.0, 3.0], [2.0, 2.0]])).parts
array([0.5, 0.5, 0. ])
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_TURNS = 64
"""How often what is taken may change in one solution."""
MOST_WAYS, NEARLY = 48, 1e-3
"""Of what chooses: a way that is cheaper than the mix by no more is not added, nor more than so many."""
NOTHING = 1e-12
"""What is no larger counts as 0."""


class Mix(NamedTuple):
    """How much of a tensor goes each way."""

    parts: Floats
    """Per way the part of the tensor."""
    prices: Floats
    """Per level, what a second of it is worth: in all 1 for what the whole tensor takes."""
    seconds: float


def best_mix(loads: Floats) -> Mix:
    """The mix of ways whose busiest level is busy least.

    Args:
        loads: per way and level the seconds that the whole tensor takes; every way loads something.
    """
    growing = GrowingMix(loads.shape[1], float(loads.max()))
    growing.add(loads)
    return growing.best()


class GrowingMix:
    """The best mix of ways, to which others may be added: it goes on from the mix without them (a revised simplex)."""

    def __init__(self, levels: int, scale: float) -> None:
        """Without any way.

        Args:
            levels: how many there are.
            scale: about the seconds of a way.
        """
        self.scale = scale
        self.loads = np.zeros((0, levels))
        self._inverse = np.eye(levels)  # of the loads of what is taken: ways, and what levels have left
        self._amounts = np.ones(levels)
        self._taken = np.arange(-levels, 0)  # per row the way, or a level by its number from the end
        self._prices = np.zeros(levels)

    def add(self, loads: Floats) -> None:
        """Add ways, by what they load."""
        self.loads = np.concatenate([self.loads, loads / self.scale])

    def best(self) -> Mix:
        """The best mix of the ways there are."""
        for _ in range(MOST_TURNS):
            worth = 1.0 - self.loads @ self._prices  # of one more of each way, at the prices
            way, level = int(worth.argmax()), int(self._prices.argmin())
            if max(worth[way], -self._prices[level]) <= 1e-9:
                break
            is_way = worth[way] >= -self._prices[level]
            column = self._inverse @ self.loads[way] if is_way else self._inverse[:, level].copy()
            if column.max() <= NOTHING:  # what is left to gain is a rounding
                break
            room = np.full(len(column), inf)
            np.divide(self._amounts, column, out=room, where=column > NOTHING)
            row = int(np.where(room <= room.min() + NOTHING, column, -inf).argmax())  # small divisors carry errors far
            self._inverse[row] /= column[row]
            self._amounts[row] = room[row]
            column[row] = 0.0  # of the others
            self._inverse -= column[:, None] * self._inverse[row]
            self._amounts -= column * room[row]
            self._prices = self._prices + (worth[way] if is_way else -self._prices[level]) * self._inverse[row]
            self._taken[row] = way if is_way else level - len(column)
        amounts, ways = np.zeros(len(self.loads)), self._taken >= 0
        amounts[self._taken[ways]] = self._amounts[ways]
        total = float(amounts.sum())
        return Mix(amounts / total, np.maximum(self._prices, 0.0) / self.scale, self.scale / total)


class ChoiceMix(NamedTuple):
    """The best mix where each of several things goes one of its own ways, or a share of it each of some."""

    ways: list[NDArray[np.int64]]
    """Per way of them all together, the choice of each."""
    parts: Floats
    fullest: float
    """What is loaded most."""

    @classmethod
    def of(cls, loads: Floats, firsts: NDArray[np.int64], slower: Floats) -> ChoiceMix:
        """The mix, up to `NEARLY`.

        At prices each thing takes what costs it least, and that is the cheapest way of them all.

        Args:
            loads: per choice, those of one thing after those of another, and per link.
            firsts: where the choices of each begin.
            slower: per choice, by what part it costs more besides.

        By hand, two things that may go one way or another each, which load one link or another:

        >>> ChoiceMix.of(np.eye(2)[[0, 1, 0, 1]], np.array([0, 2]), np.zeros(4)).fullest
        1.0
        """
        things = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, len(loads))))

        def cheapest(prices: Floats) -> tuple[NDArray[np.int64], float]:
            """What each takes, and what they cost."""
            costs = loads @ prices * (1 + slower)
            least = np.minimum.reduceat(costs, firsts)
            chosen = np.flatnonzero(costs == least[things])
            return chosen[np.unique(things[chosen], return_index=True)[1]], float(least.sum())

        ways = [cheapest(np.ones(loads.shape[1]))[0]]
        carried = loads[ways[0]].sum(axis=0)
        growing = GrowingMix(len(carried), float(carried.max()))
        growing.add(carried[None])
        mix = growing.best()
        while carried.max() > carried.mean() * (1 + NEARLY) and len(ways) < MOST_WAYS:  # else the shortest, and even
            way, cost = cheapest(mix.prices)
            if cost >= 1 - NEARLY:
                break
            ways.append(way)
            growing.add(loads[way].sum(axis=0)[None])
            mix = growing.best()
        return cls(ways, mix.parts, mix.seconds)
