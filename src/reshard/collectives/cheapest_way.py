"""The cheapest way through a graph that is made while it is walked.

What a state costs at the least from there on says which to look at next (A*): where that never exceeds what is
really left, the first way that reaches the goal is the cheapest.
Of states that promise the same the one that is further on goes first, so that equals are not all looked at.

By hand, from 1 to 10 by adding 1, which costs 1, or doubling, which costs 3: to 5 in ones, then doubled, for 7.

>>> cheapest_way(1, 10, lambda number, _: [(1, number + 1), (3, 2 * number)], lambda number: 0, most_states=100)
([1, 2, 3, 4, 5, 10], True)
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

S = TypeVar("S", bound=Any)  # a state, which can be hashed and compared


def cheapest_way(
    start: S,
    goal: S,
    steps: Callable[[S, int], Iterable[tuple[int, S]]],
    ahead: Callable[[S], int],
    *,
    most_states: int,
    below: int = 2**61,
) -> tuple[list[S], bool]:
    """The states of the cheapest way that costs less than `below`, none if there is none; and whether that is sure.

    Args:
        start: where the way begins.
        goal: where it ends.
        steps: what a step from a state costs and where it leads; those that waste as much as the number given beside
            the state need not be among them.
        ahead: what no way from a state to the goal costs less than.
        most_states: how many are looked at before the search is given up.
        below: what the way must cost less than.
    """
    heap = [(ahead(start), 0, start)]
    reached = {start: (0, start)}
    settled: set[S] = set()
    while heap and heap[0][0] < below:
        promised, minus_cost, state = heapq.heappop(heap)
        if state == goal:
            way = [state]
            while way[-1] != start:
                way.append(reached[way[-1]][1])
            return way[::-1], True
        if state in settled:
            continue
        settled.add(state)
        if len(settled) > most_states:
            return [], False
        for step_cost, after in steps(state, below - promised):
            cost = step_cost - minus_cost
            if after not in reached or cost < reached[after][0]:
                reached[after] = cost, state
                heapq.heappush(heap, (cost + ahead(after), -cost, after))
    return [], True
