"""What reshards of a value cost, and the cheapest way to make all that is wanted of it.

What is wanted may be made of what another wants, so the reshards of a value are a tree: the cheapest one from how it
is kept.

By hand, a value kept in option 0 and wanted in 1 and 2: to 1 costs 2, to 2 costs 5, from 1 on to 2 only 1.

>>> costs = np.array([[0.0, 2.0, 5.0], [2.0, 0.0, 1.0], [5.0, 1.0, 0.0]])
>>> table = Table(costs, costs, is_own=True)
>>> tree(table, 0, [1, 2]), tree_cost(table, 0, [1, 2])
([(0, 1), (1, 2)], 3.0)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from reshard.propagation.space import Costs

BARRED = 1000.0
"""How many times the dearest reshard of a value costs one that cannot be."""

MOST_KNOWN = 4096
"""Of how many layouts and options a table keeps what was read out of it, at most."""


Read = tuple[frozenset[int] | None, int | None, *tuple[object, ...]]
"""What is read out of prices: from which options on, and to which one, each None where it may be all, and what else."""


class Table:
    """What reshards of a value cost from each of its options to each of those in which it may be wanted."""

    def __init__(self, bound: Costs, price: Costs, *, is_own: bool) -> None:
        self.is_own = is_own
        """Whether what is wanted is an option of the value, not one on another mesh."""
        barred = np.isinf(bound)
        if barred.any():
            bound[barred] = BARRED * max(1.0, float(bound[~barred].max(initial=0.0)))
        self.bound = bound
        self.price = np.where(barred, bound, price)
        self.asked: set[tuple[int, int]] = set()
        self.trees: dict[tuple[int, frozenset[int]], float] = {}
        """What it costs to make all that is wanted of how the value is kept."""
        self.known: dict[Read, Costs] = {}
        """What has been read out of the prices for the layouts of operations."""
        self.rent = np.zeros((1, 1))
        """What holding costs besides."""
        self._free: Table | None = None
        self.is_known = False
        """Whether there is nothing to ask the planner about."""

    @property
    def free(self) -> Table:
        """The table without rents."""
        return self._free or self

    def all_from(self, kept: int, wanted: frozenset[int]) -> float:
        """What it takes to make all that is wanted of how the value is kept, as a tree."""
        key = kept, wanted
        cost = self.trees.get(key)
        if cost is None:
            cost = self.trees[key] = tree_cost(self, kept, sorted(wanted))
        return cost

    def remember(self, key: Read, costs: Costs) -> Costs:
        """Keep what was read out of the prices as long as they are these."""
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
        self.known[key] = costs
        return costs

    def learn(self, source: int, target: int, price: float) -> None:
        """What a reshard costs is known; what that is no part of stays."""
        self.price[source, target] = price
        self.trees = {
            (kept, wanted): cost
            for (kept, wanted), cost in self.trees.items()
            if target not in wanted or (source != kept and source not in wanted)
        }
        self.known = {
            key: costs
            for key, costs in self.known.items()
            if (key[0] is not None and source not in key[0]) or (key[1] is not None and key[1] != target)
        }

    def rented(self, rent: Costs) -> Table:
        """The table where what a reshard holds, from an option to another, costs so much besides."""
        table = Table(self.bound + rent, self.price + rent, is_own=self.is_own)
        table._free, table.rent, table.asked = self, rent, set(self.asked)
        return table

    def barred(self) -> Table:
        """The table of what can be in no other option than that in which it is kept."""
        dear = BARRED * max(1.0, float(self.bound.max(initial=0.0)))
        bound = np.where(np.eye(*self.bound.shape, dtype=np.bool_), 0.0, dear)
        table = Table(bound, bound, is_own=self.is_own)
        table.is_known = True
        return table


def tree_cost(table: Table, kept: int, wanted: Iterable[int]) -> float:
    """What it takes to make all that is wanted, each of how the value is kept or of what was made before."""
    return float(sum(table.price.item(pair) for pair in tree(table, kept, wanted)))


def tree(table: Table, kept: int, wanted: Iterable[int]) -> list[tuple[int, int]]:
    """The reshards that make all that is wanted, from where to where, those first of which others are made."""
    if not table.is_own:
        return [(kept, option) for option in wanted]
    ends = [kept, *(option for option in wanted if option != kept)]
    if len(ends) <= 2:
        return [(kept, option) for option in ends[1:]]
    parents = arborescence(table.price[np.ix_(ends, ends)].tolist())
    order = [0]
    for before in order:  # which grows
        order += [end for end in range(1, len(ends)) if parents[end] == before]
    return [(ends[parents[end]], ends[end]) for end in order[1:]]


def arborescence(costs: Sequence[Sequence[float]]) -> list[int]:
    """Per node that from which it is reached, all of them from node 0 on, for the least in sum.

    Each is reached from its nearest; nodes that so go round in a ring count as one, which is entered where the detour
    is least (Chu and Liu 1965, Edmonds 1967).

    By hand, from 0 to 2 it is far, from 1 to 2 and back it is near: 0 to 1 to 2.

    >>> arborescence([[0, 4, 6], [4, 0, 1], [6, 1, 0]])
    [0, 0, 1]
    """
    count = len(costs)
    parents = [0, *(min(set(range(count)) - {end}, key=lambda n: (costs[n][end], n)) for end in range(1, count))]
    ring = _ring(parents)
    if not ring:
        return parents
    rest = [end for end in range(count) if end not in ring]
    entries = {n: min(ring, key=lambda end: costs[n][end] - costs[parents[end]][end]) for n in rest}
    exits = {end: min(ring, key=lambda n: costs[n][end]) for end in rest}
    joined = [[*(costs[n][end] for end in rest), costs[n][e] - costs[parents[e]][e]] for n, e in entries.items()]
    joined.append([*(costs[exits[end]][end] for end in rest), 0.0])
    into = arborescence(joined)
    for place, end in enumerate(rest[1:], start=1):
        parents[end] = exits[end] if into[place] == len(rest) else rest[into[place]]
    entered_from = rest[into[-1]]
    parents[entries[entered_from]] = entered_from
    return parents


def _ring(parents: Sequence[int]) -> list[int]:
    """Nodes that are reached from one another and not from node 0, if there are any."""
    for start in range(1, len(parents)):
        passed, end = [start], parents[start]
        while end and end not in passed:
            passed.append(end)
            end = parents[end]
        if end:
            return passed[passed.index(end) :]
    return []
