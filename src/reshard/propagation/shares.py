"""How a reshard that several share is divided among them, so that the bound is high.

For every value each use pays a part of what it is brought there for, all of them together no more than the whole.
Any such division gives a bound, since reshards obey the triangle inequality: a tree of them is no cheaper than parts of
the direct ones.
The best division has those pay who have the value brought to them: so parts move there, step by step, as the cheapest
choice under the last division says (a subgradient method; the steps shrink).
On the way every division has a choice of its own, and the best of them is where the search begins.

By hand: of two uses one wants a value as it is kept, and the other pays 6 to have it moved. Divided evenly the bound
counts 3; a step moves all to the second, and it counts 6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from reshard.propagation.dual import Dual, Handed, Picked, Shares
from reshard.propagation.model import Model
from reshard.propagation.nodes import sharing

TURNS, FEW_TURNS = 20, 8
"""How often messages go forth and back at first, and after each step, at most."""
LEAST_TURNS, MOST_AT_ONCE = 2, 1e9
"""How often they do so at the least, and over how many costs of links they go at a time, at most, beyond that.

The first also between all choices until likely ones are known.
"""
STEP = 0.5
"""Which part of what is paid the first step moves; the later ones less, by the root of their number."""
WIDE = 5e6
"""Over more costs of links messages go forth and back seldom, and then between likely choices only."""
LIKELY = 32
"""How many choices of a value or an operation are likely ones."""


class Bounded:
    """A model with the best bound so far, and the division and the messages under which it holds.

    Where values have hundreds of options, as on meshes of three axes, most steps look at those alone that the first one
    makes likely, in a tenth of the time; so they lead to choices, and to a division, and to a bound only with `finish`.

    Args:
        model: the program.
        most: over how many costs of links messages may go, in all.
    """

    def __init__(self, model: Model, most: float = inf) -> None:
        self.model, self.shares, self._most = model, even_shares(model), most
        self.bound = self._highest = -np.inf
        self._whole = self._dual = Dual(model, self.shares)
        self.is_wide = self._whole.swept > WIDE
        """Whether most steps look at likely choices alone."""
        self._latest, self._steps = self.shares, 0
        self._choice, self._messages = Picked({}, {}), self._whole.latest()

    @property
    def handed(self) -> Handed:
        """What was handed on in these messages."""
        return self._whole.handed(self._messages)

    @property
    def is_spent(self) -> bool:
        """Whether messages have gone over as many costs as they may."""
        return sum({id(dual): dual.passed for dual in (self._whole, self._dual)}.values()) >= self._most

    def step(self, is_late: Callable[[], bool]) -> Picked:
        """Move shares to where the latest choice pays, and pass messages; the choice that comes of it."""
        if self._steps:
            self._latest = moved(self.model, self._latest, self._choice, STEP / self._steps**0.5)
        if self._steps == 1 and self.is_wide:
            self._dual = Dual(self.model, self._latest, likely=self._whole.likeliest(LIKELY))
            self._highest = -np.inf
        elif self._steps:
            self._dual.divide(self._latest)
        if self.is_wide and not self._steps:
            turns = LEAST_TURNS
        else:
            turns = TURNS if self._steps == int(self.is_wide) else FEW_TURNS
        self._dual.run(min(turns, self._most_turns), lambda: is_late() or self.is_spent)
        self._steps += 1
        self._choice = self._dual.choice()
        self._keep()
        return self._choice

    def finish(self, is_late: Callable[[], bool]) -> float:
        """The bound of all choices, where the latest steps looked at likely ones, by the division that was the best."""
        if self._dual is not self._whole:
            self._dual, self._highest, self._latest = self._whole, self.bound, self.shares
            self._whole.divide(self.shares)
            self._whole.run(min(FEW_TURNS, self._most_turns), lambda: is_late() or self.is_spent)
            self._keep()
        return self.bound

    @property
    def _most_turns(self) -> int:
        """How often messages go between all choices, at most, where they go over very many costs."""
        return max(LEAST_TURNS, int(MOST_AT_ONCE / max(self._dual.swept, 1)))

    def _keep(self) -> None:
        """Take over the latest bound, if it is higher, with its division and messages."""
        if self._dual.bound > self._highest:
            self._highest, self.shares = self._dual.bound, self._latest
            if self._dual is self._whole:
                self.bound, self._messages = self._highest, self._whole.latest()


def even_shares(model: Model) -> Shares:
    """An even part for all who use a value."""
    variables = {id(edge.variable): edge.variable for node in model.nodes for edge in node.uses}.values()
    return {edge.key: 1.0 / len(uses) for variable in variables for uses in sharing(variable) for edge in uses}


def moved(model: Model, shares: Shares, choice: Picked, part: float = 1.0) -> Shares:
    """Shares moved, by a part of them or wholly, to those who have a value brought to them under a choice.

    So the bound grows where it is a choice of least cost under these shares: a step along a subgradient.
    """
    options, layouts = choice
    after = dict(shares)
    for variable in model.distinct:
        if len(variable.uses) < 2:
            continue
        row = options[id(variable)]
        for uses in sharing(variable):
            paid = {
                edge.key: float(edge.table.bound[row, edge.picks.listed[layouts[edge.node.number]]]) * edge.times
                for edge in uses
            }
            total = sum(paid.values())
            if total > 0:
                after.update((key, (1 - part) * shares[key] + part * cost / total) for key, cost in paid.items())
    return after


def of_kinds(alike: Model, tied: Shares, classes: Sequence[int]) -> Shares:
    """The shares of those who use values of a kind, as they are where values of a class are kept alike."""
    edges = (edge for node in alike.nodes for edge in node.uses)
    return {edge.key: tied.get(edge.key._replace(value=classes[edge.variable.number]), 0.0) for edge in edges}
