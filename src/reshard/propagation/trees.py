"""What reshards of a value cost, and the cheapest way to make all that is wanted of it.

What is wanted may be made of what another wants, so the reshards of a value are a tree, grown by the nearest first.

By hand, a value kept in option 0 and wanted in 1 and 2: to 1 costs 2, to 2 costs 5, from 1 on to 2 only 1.

>>> costs = np.array([[0.0, 2.0, 5.0], [2.0, 0.0, 1.0], [5.0, 1.0, 0.0]])
>>> table = Table(costs, costs, is_own=True)
>>> tree(table, 0, [1, 2]), tree_cost(table, 0, [1, 2])
([(0, 1), (1, 2)], 3.0)
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from reshard.propagation.space import Costs

BARRED = 1000.0
"""How many times the dearest reshard of a value costs one that cannot be."""


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
        self.free, self.rent = self, np.zeros((1, 1))
        """The table without rents, and what holding costs besides."""
        self.is_known = False
        """Whether there is nothing to ask the planner about."""

    def rented(self, rent: Costs) -> Table:
        """The table where what a reshard holds, from an option to another, costs so much besides."""
        table = Table(self.bound + rent, self.price + rent, is_own=self.is_own)
        table.free, table.rent, table.asked = self, rent, set(self.asked)
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
    return sum(float(table.price[pair]) for pair in tree(table, kept, wanted))


def tree(table: Table, kept: int, wanted: Iterable[int]) -> list[tuple[int, int]]:
    """The reshards that make all that is wanted, from where to where: the nearest first."""
    price = table.price
    if not table.is_own:
        return [(kept, option) for option in wanted]
    left = [option for option in wanted if option != kept]
    near = {option: (float(price[kept, option]), kept) for option in left}
    pairs = []
    while near:
        option = min(near, key=lambda each: near[each][0])
        pairs.append((near.pop(option)[1], option))
        for other, (cost, _) in near.items():
            if price[option, other] < cost:
                near[other] = float(price[option, other]), option
    return pairs
