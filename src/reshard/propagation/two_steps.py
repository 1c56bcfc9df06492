"""Reshards that go in two steps: what waits is combined where it is, then moved; or moved to where it can wait.

By hand, on three axes of 2, where any reshard is said to cost 1: what waits along x and is cut by y is combined where
it is in one step, and combined and cut by z in two.

>>> from reshard.mesh import Mesh
>>> from reshard.propagation.space import Option, Pieces
>>> options = Options(Pieces(Mesh.of(x=2, y=2, z=2), []), (4,), waiting=[0])
>>> waiting, *combined = (options.numbers[Option(*each)] for each in ((((1,),), (0,)), (((1,),),), (((2,),),)))
>>> in_steps(options, 1 - np.eye(len(options.all)))[waiting, combined].tolist()
[1.0, 2.0]
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from reshard.propagation.space import Costs, Options

MOST_AT_ONCE = 2**18
"""Over how many ways between pairs of options the least is taken at once."""


def in_steps(options: Options, cost: Costs) -> Costs:
    """Costs of pairs where what waits otherwise in another place goes in two steps.

    What is combined on the way is combined where it is, then moved; what becomes unreduced along a piece that does
    not cut last in its dim is moved first to where it does.
    """
    kinds: dict[tuple[int, ...], list[int]] = {}
    for number, option in enumerate(options.all):
        kinds.setdefault(option.unreduced, []).append(number)
    is_in_place = options.nested & ~np.array([option.has_windows for option in options.all], dtype=np.bool_)
    cost = cost.copy()
    for before, after in itertools.permutations(kinds, 2):
        rows, columns = np.array(kinds[before])[:, None], np.array(kinds[after])
        if {*after} < {*before}:
            stays, direct = is_in_place[rows, columns], cost[rows, columns]
            least = _by_way_of(np.where(stays, direct, np.inf), cost[columns[:, None], columns])
            cost[rows, columns] = np.where(stays, direct, least)
        elif {*before} < {*after}:
            is_last = _cut_last(options, {*after} - {*before})[rows[:, 0]]
            first = cost[rows[~is_last], rows[is_last][:, 0]]
            cost[rows[~is_last], columns] = _by_way_of(first, cost[rows[is_last], columns])
    return cost


def _by_way_of(first: Costs, second: Costs) -> Costs:
    """Per row of the one and column of the other the least by way of anything between; infinite where nothing is."""
    count = max(1, MOST_AT_ONCE // max(second.size, 1))
    parts = (first[start : start + count, :, None] + second for start in range(0, len(first), count))
    return np.concatenate([np.zeros((0, second.shape[1])), *(part.min(axis=1, initial=np.inf) for part in parts)])


def _cut_last(options: Options, pieces: set[int]) -> NDArray[np.bool_]:
    """Per option whether in every dim some pieces stand behind all others, or cut it not at all."""
    is_last = np.ones(len(options.all), dtype=np.bool_)
    for lists, which in options.cuts:
        others = [sum(piece not in pieces for piece in cut_by) for cut_by in lists]
        is_behind = [pieces.isdisjoint(cut_by[:count]) for cut_by, count in zip(lists, others, strict=True)]
        is_last &= np.array(is_behind, dtype=np.bool_)[which]
    return is_last
