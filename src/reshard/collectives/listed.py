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

import itertools
from collections.abc import Iterator
from math import comb, perm, prod

import numpy as np

from reshard.collectives.cheapest_way import cheapest_way
from reshard.collectives.states import DigitLists, SearchTask, Stop, Tables, Visit, allowed_of, digits_in
from reshard.collectives.weak import STEP_LIMIT, Numbers

SHARDINGS = 2000
"""More shardings than this are not listed."""
CELLS = 2_000_000
"""Nor are more than this many blocks, counted per device and sharding."""


def sharding_count(digits: int, ndim: int) -> int:
    """How many shardings there are of so many digits over so many dims."""
    return sum(perm(digits, count) * comb(count + ndim - 1, ndim - 1) for count in range(digits + 1))


def few(task: SearchTask) -> bool:
    """Whether all shardings can be listed."""
    count = sharding_count(len(task.digit_classes), len(task.shape))
    positions = prod(map(task.size_of, range(len(task.digit_classes))))
    return count <= SHARDINGS and count * positions <= CELLS


def search_listed(task: SearchTask, tables: Tables, best: int, limit: int) -> tuple[list[Stop], bool]:
    """The cheapest chain of states that costs less than `best`, none if there is none; and whether that is sure.

    Until all that is pending is reduced, no Permute is tried.
    """
    lists = _Lists(task)

    def ahead(stop: Stop) -> int:
        return int((tables.ahead_pending if stop.is_pending else tables.ahead)[task.node_of(stop.state)])

    return cheapest_way(
        Stop(task.source, bool(task.pending)),
        Stop(task.target, False),
        lambda stop, slack: _after(task, tables, lists, stop, slack),
        ahead,
        most_states=limit,
        below=best,
    )


def _after(task: SearchTask, tables: Tables, lists: _Lists, stop: Stop, slack: int) -> Iterator[tuple[int, Stop]]:
    """The steps from a state that waste less than the slack: what each costs, and where it leads."""
    node = task.node_of(stop.state)
    for _, visit in tables.steps(Visit(0, stop, node, None), slack):
        for state in _named(visit.stop.state):
            yield visit.cost, Stop(state, visit.stop.is_pending)
    if stop.is_pending:
        return
    units = tables.units[node]
    if task.permute_units(units) * STEP_LIMIT + 1 < slack:
        states, codes = lists.at(tables, node)
        staying = np.count_nonzero(codes == codes[states.index(stop.state)], axis=1)
        costs = (units - units * staying // codes.shape[1]) * STEP_LIMIT + 1
        for number in np.flatnonzero((costs < slack) & (staying < codes.shape[1])).tolist():
            yield int(costs[number]), Stop(states[number], False)


def _named(state: DigitLists) -> Iterator[DigitLists]:
    """The state with its blanks filled in every way."""
    blanks = [entry for dim in state for entry in dim if entry < 0]
    held = {entry for dim in state for entry in dim if entry >= 0}
    for chosen in itertools.product(*(digits_in(allowed_of(entry)) for entry in blanks)):
        if len({*chosen, *held}) == len(chosen) + len(held):
            names = iter(chosen)
            yield tuple(tuple(next(names) if entry < 0 else entry for entry in dim) for dim in state)


class _Lists:
    """Per node its states, and the number of the block that each device has in each of them."""

    def __init__(self, task: SearchTask) -> None:
        self.task = task
        digits = range(len(task.digit_classes))
        values = np.indices([task.size_of(digit) for digit in digits], dtype=np.int64)
        self.values = dict(zip(digits, values.reshape(len(digits), -1), strict=True))
        self.known: dict[int, tuple[list[DigitLists], Numbers]] = {}

    def at(self, tables: Tables, node: int) -> tuple[list[DigitLists], Numbers]:
        """The states at a node, with a row of block numbers for each."""
        if node not in self.known:
            empty: DigitLists = ((),) * len(self.task.shape)
            nothing = self.task.node_of(empty)
            change = tables.change(nothing, node)
            symbolic = tables.apply(empty, change, tables.blanks(empty)) if change.grown else [empty]
            states = [state for option in symbolic for state in _named(option)]
            self.known[node] = states, np.array([self.task.block_numbers(state, self.values) for state in states])
        return self.known[node]
