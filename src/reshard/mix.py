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

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
    ways, levels = loads.shape
    scale = float(loads.max())
    places = range(levels)  # lists: of so few numbers arrays take longer
    table = [
        [*row, *(float(place == number) for place in places), 1.0]
        for number, row in enumerate((loads.T / scale).tolist())
    ]
    basis = list(range(ways, ways + levels))
    worth = [1.0] * ways + [0.0] * (levels + 1)  # of one more of each, at the prices
    for _ in range(64):
        most = max(worth[:-1])
        if most <= 1e-9:
            break
        entering = worth.index(most)
        room = [row[-1] / row[entering] if row[entering] > 1e-12 else inf for row in table]
        leaving = room.index(min(room))
        pivot = table[leaving][entering]
        tight = table[leaving] = [value / pivot for value in table[leaving]]
        for place in places:
            if place != leaving:
                table[place] = _without(table[place], table[place][entering], tight)
        worth = _without(worth, most, tight)
        basis[leaving] = entering
    amounts = np.zeros(ways + levels)
    amounts[basis] = [row[-1] for row in table]
    total = amounts[:ways].sum()
    return Mix(amounts[:ways] / total, np.maximum(-np.array(worth[ways:-1]), 0.0) / scale, scale / total)


def _without(row: Sequence[float], times: float, removed: Sequence[float]) -> list[float]:
    """A row of a table less so many times another."""
    return [value - times * less for value, less in zip(row, removed, strict=True)]
