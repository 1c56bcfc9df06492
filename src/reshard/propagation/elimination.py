"""The choice with the least sum of tables, by variable elimination.

Every table has a cost for each choice of a few variables.
Variables are taken out one by one, the one with the fewest neighbours first: the tables that have it are added, and
for every choice of its neighbours its best is kept, as a new table over them.
Going back, each variable takes its best for what the later ones have taken.
Where a new table would have more than `LARGEST_TABLE` entries, a variable is held at its first choice instead, and at
the end all are improved one at a time.

>>> a = CostTable((0,), {(0,): Ranked(1.0, 0, 0, 0, 0, 0), (1,): Ranked(0.0, 0, 0, 0, 0, 0)})
>>> costs = {(x, y): Ranked(3.0 * (x == y), 0, 0, 0, 0, 0) for x in (0, 1) for y in (0, 1)}
>>> both = CostTable((0, 1), costs)
>>> sorted(least([a, both], {0: 2, 1: 2}, [1, 2]).items())
[(0, 1), (1, 0)]
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from math import fsum, prod
from operator import add
from typing import NamedTuple

import numpy as np

from reshard.contraction.prices import ROUNDING

LARGEST_TABLE = 4096
SMALL_TABLE = 64
"""Fewer entries are added one by one."""


class Ranked(NamedTuple):
    """A price, nothing in it below 0, and a number that tells choices of equal price apart by what they are."""

    seconds: float
    received_bytes: int
    total_received_bytes: int
    steps: int
    flops: int
    rank: int


Costs = dict[tuple[int, ...], Ranked]
"""By the choices of some variables."""


class CostTable(NamedTuple):
    """What the choices of some variables cost; all keys are there, in order, the last variable fastest."""

    scope: tuple[int, ...]
    """The variables, in the order of a key."""
    costs: Costs


def least(tables: Sequence[CostTable], counts: Mapping[int, int], weights: Sequence[int]) -> dict[int, int]:
    """Per variable its choice in the least sum.

    Args:
        tables: what is added.
        counts: per variable, how many choices it has.
        weights: per variable, a number that decides which of two goes first where nothing else does.
    """
    elimination = _Elimination(tables, counts, weights)
    chosen = elimination.run()
    if elimination.held:
        _improve(tables, counts, chosen)
    return chosen


class _Elimination:
    """The tables that are left, and how the variables that are gone are found again."""

    def __init__(self, tables: Sequence[CostTable], counts: Mapping[int, int], weights: Sequence[int]) -> None:
        self.counts, self.weights = counts, weights
        self.tables: dict[int, CostTable] = {}
        self.having: dict[int, list[int]] = {value: [] for value in counts}
        """Per variable that is left, the tables that have it."""
        self.fresh = itertools.count()
        self.held: set[int] = set()
        for table in tables:
            self.put(table)

    def put(self, table: CostTable) -> None:
        number = next(self.fresh)
        self.tables[number] = table
        for value in table.scope:
            self.having[value].append(number)

    def take(self, value: int) -> list[CostTable]:
        """The tables that have a variable, no longer among those that are left."""
        taken = [self.tables.pop(number) for number in self.having.pop(value)]
        for other in {other for scope, _ in taken for other in scope if other in self.having}:
            self.having[other] = [number for number in self.having[other] if number in self.tables]
        return taken

    def near(self, value: int) -> tuple[int, ...]:
        """The variables that share a table with one."""
        others = {other for number in self.having[value] for other in self.tables[number][0]} - {value}
        return tuple(sorted(others, key=lambda other: (self.weights[other], other)))

    def entries(self, value: int) -> int:
        """The size of the table that would take the place of a variable."""
        return prod(self.counts[other] for other in self.near(value))

    def run(self) -> dict[int, int]:
        chosen: dict[int, int] = {}
        ways: list[tuple[int, tuple[int, ...], dict[tuple[int, ...], int]]] = []
        sizes = {value: self.entries(value) for value in self.having}
        queue = [(size, self.weights[value], value) for value, size in sizes.items()]
        heapq.heapify(queue)
        while self.having:
            size, _, value = heapq.heappop(queue)
            if value not in self.having or size != sizes[value]:
                continue
            if size * self.counts[value] > LARGEST_TABLE:
                heapq.heappush(queue, (size, self.weights[value], value))
                value = max(self.having, key=lambda other: (len(self.having[other]), self.weights[other], other))
                near = self.near(value)
                chosen[value] = 0
                self.hold(value)
            else:
                near = self.near(value)
                ways.append((value, near, self.fold(value, near)))
            for other in near:
                sizes[other] = self.entries(other)
                heapq.heappush(queue, (sizes[other], self.weights[other], other))
        for value, near, best in reversed(ways):
            chosen[value] = best[tuple(chosen[other] for other in near)]
        return chosen

    def hold(self, value: int) -> None:
        """Take a variable out at its first choice."""
        self.held.add(value)
        for scope, table in self.take(value):
            at = scope.index(value)
            kept = {(*key[:at], *key[at + 1 :]): cost for key, cost in table.items() if key[at] == 0}
            self.put(CostTable((*scope[:at], *scope[at + 1 :]), kept))

    def fold(self, value: int, near: tuple[int, ...]) -> dict[tuple[int, ...], int]:
        """Take a variable out; its best choice for every choice of its neighbours."""
        taken = self.take(value)
        place = {other: n for n, other in enumerate((*near, value))}
        parts = [(part, [place[other] for other in scope]) for scope, part in taken]
        counts = [self.counts[other] for other in (*near, value)]
        best: dict[tuple[int, ...], int] = {}
        costs_of: Costs = {}
        for choice, worth in zip(itertools.product(*map(range, counts[:-1])), _worth(parts, counts), strict=True):
            costs = [_sum([part[tuple([(*choice, own)[n] for n in at])] for part, at in parts]) for own in worth]
            least = min(range(len(costs)), key=costs.__getitem__)
            best[choice], costs_of[choice] = worth[least], costs[least]
        self.put(CostTable(near, costs_of))
        return best


def _worth(parts: Sequence[tuple[Costs, list[int]]], counts: Sequence[int]) -> Iterable[Sequence[int]]:
    """For every choice of all variables but the last, those of the last that may have the least sum.

    Seconds, or bytes where nothing takes any, are summed roughly, all at once; what is not near the least need not be
    summed exactly.
    """
    if prod(counts) < SMALL_TABLE:
        return itertools.repeat(range(counts[-1]), prod(counts[:-1]))
    total = np.zeros(counts)
    for part, at in parts:
        costs = np.fromiter((cost.seconds or cost.received_bytes for cost in part.values()), float, len(part))
        order = sorted(range(len(at)), key=at.__getitem__)
        shape = [counts[n] if n in at else 1 for n in range(len(counts))]
        total += costs.reshape([counts[n] for n in at]).transpose(order).reshape(shape)
    near = total <= (1 + ROUNDING) * total.min(axis=-1, keepdims=True)
    return [row.nonzero()[0].tolist() for row in near.reshape(-1, counts[-1])]


def _improve(tables: Sequence[CostTable], counts: Mapping[int, int], chosen: dict[int, int]) -> None:
    """Change one variable at a time, as long as that lowers the sum."""
    around: dict[int, list[CostTable]] = {value: [] for value in counts}
    for scope, table in tables:
        for value in scope:
            around[value].append(CostTable(scope, table))

    def cost(value: int, choice: int) -> Ranked:
        return _sum(
            [
                table[tuple([choice if other == value else chosen[other] for other in scope])]
                for scope, table in around[value]
            ]
        )

    changed = True
    while changed:
        changed = False
        for value, count in counts.items():
            costs = [cost(value, choice) for choice in range(count)]
            if min(costs) < costs[chosen[value]]:
                chosen[value], changed = costs.index(min(costs)), True


def _sum(costs: Sequence[Ranked]) -> Ranked:
    if len(costs) == 1:
        return costs[0]
    if len(costs) == 2:  # one addition rounds as fsum does
        return Ranked(*map(add, *costs))
    seconds, *counts = zip(*costs, strict=True) if costs else ((), (), (), (), (), ())
    return Ranked(fsum(seconds), *map(sum, counts))
