"""The same search with every sharding listed: for digits of different sizes.

With digits of one size, Permutes can be moved along a chain and joined, so one is enough (`labelled`).
Digits of sizes 2 and 3 do not allow that: 2 of 3 parts and 3 of 2 parts are the same number of parts, but what is
gathered from their end is not.
Two Permutes may then be less than one, and the search must know every sharding by its digits.
That is done where there are few.

>>> sharding_count(3, 2), sharding_count(8, 2)
(49, 876809)
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from math import comb, perm

import numpy as np

from reshard.collectives.states import State, Tables, Task, allowed_of, digits_in
from reshard.collectives.weak import FAR, STEP_LIMIT, Numbers

Place = tuple[State, bool]
"""A state, and whether partial values are still to be reduced."""
SHARDINGS = 2000
"""More shardings than this are not listed."""
CELLS = 2_000_000
"""Nor are more than this many blocks, counted per device and sharding."""


def sharding_count(digits: int, ndim: int) -> int:
    """How many shardings there are of so many digits over so many dims."""
    return sum(perm(digits, count) * comb(count + ndim - 1, ndim - 1) for count in range(digits + 1))


def few(task: Task) -> bool:
    """Whether all shardings can be listed."""
    count = sharding_count(len(task.digit_classes), task.graph.ndim)
    return count <= SHARDINGS and count * task.device_count <= CELLS


def search_listed(task: Task, tables: Tables, best: int, limit: int) -> tuple[list[Place], bool]:
    """The cheapest chain of states that costs less than `best`, none if there is none; and whether that is sure.

    Each state comes with whether partial values are still to be reduced; until they are, no Permute is tried.
    """
    lists = _Lists(task)
    first: Place = task.source, bool(task.pending)
    heap: list[tuple[int, int, Place]] = [(int(tables.ahead_pending[tables.source_node]), 0, first)]
    came: dict[Place, tuple[int, Place]] = {first: (0, first)}
    closed: set[Place] = set()
    while heap and heap[0][0] < best:
        total, minus, place = heapq.heappop(heap)
        if place in closed:
            continue
        if place == (task.target, False):
            return _back(came, place), True
        closed.add(place)
        if len(closed) > limit:
            return [], False
        for cost, after, node in _after(task, tables, lists, place, best - total):
            reached = cost - minus
            if reached < came.get(after, (FAR, place))[0]:
                ahead = tables.ahead_pending if after[1] else tables.ahead
                came[after] = (reached, place)
                heapq.heappush(heap, (reached + int(ahead[node]), -reached, after))
    return [], True


def _back(came: dict[Place, tuple[int, Place]], place: Place) -> list[Place]:
    chain = [place]
    while came[chain[-1]][1] != chain[-1]:
        chain.append(came[chain[-1]][1])
    return chain[::-1]


def _after(task: Task, tables: Tables, lists: _Lists, place: Place, slack: int) -> Iterator[tuple[int, Place, int]]:
    """The steps from a state that waste less than the slack: cost, the state after, and its node."""
    (state, pending), node = place, task.node_of(place[0])
    layer = 2 if pending else 0
    for extra, there in tables.edges_of(node, layer):
        if extra >= slack:
            break
        cost = int(tables.costs_of(layer)[node, there])
        for symbolic in tables.apply(state, tables.change(node, there), pending):
            for after in _named(symbolic):
                yield cost, (after, pending), there
    if pending:
        for cost, symbolic, there in tables.reduced(state, node):
            for after in _named(symbolic):
                yield cost, (after, False), there
        return
    units = tables.units[node]
    if task.permute_units(units) * STEP_LIMIT + 1 < slack:
        states, codes = lists.at(tables, node)
        kept = np.count_nonzero(codes == codes[states.index(state)], axis=1)
        received = (units - units * kept // codes.shape[1]) * STEP_LIMIT + 1
        for number in np.flatnonzero((received < slack) & (kept < codes.shape[1])).tolist():
            yield int(received[number]), (states[number], False), node


def _named(state: State) -> Iterator[State]:
    """The state with its blanks filled in every way."""
    blanks = [entry for dim in state for entry in dim if entry < 0]
    held = {entry for dim in state for entry in dim if entry >= 0}
    for chosen in itertools.product(*(digits_in(allowed_of(entry)) for entry in blanks)):
        if len({*chosen, *held}) == len(chosen) + len(held):
            names = iter(chosen)
            yield tuple(tuple(next(names) if entry < 0 else entry for entry in dim) for dim in state)


class _Lists:
    """Per node its states, and the number of the block that each device has in each of them."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.values = np.indices([task.size_of(digit) for digit in range(len(task.digit_classes))], dtype=np.int64)
        self.values = self.values.reshape(len(task.digit_classes), -1)
        self.found: dict[int, tuple[list[State], Numbers]] = {}

    def at(self, tables: Tables, node: int) -> tuple[list[State], Numbers]:
        """The states at a node, with a row of block numbers for each."""
        if node not in self.found:
            empty: State = ((),) * self.task.graph.ndim
            nothing = self.task.node_of(empty)
            change = tables.change(nothing, node)
            symbolic = tables.apply(empty, change) if change.grown else iter([empty])
            states = [state for option in symbolic for state in _named(option)]
            self.found[node] = states, np.array([self._codes(state) for state in states])
        return self.found[node]

    def _codes(self, state: State) -> Numbers:
        code = np.zeros(self.values.shape[1], dtype=np.int64)
        for dim in state:
            for entry in dim:
                code = code * self.task.size_of(entry) + self.values[entry]
        return code
