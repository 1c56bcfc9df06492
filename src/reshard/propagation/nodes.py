"""What a model is made of: variables with options, nodes with layouts, and an edge for each tensor of an operation.

A *variable* is a value, or several that must be kept alike; a *node* is an operation, or several that are computed
alike; an *edge* says in which option of a variable each layout of a node wants it, and what it costs to bring it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.propagation.space import Costs, Numbers, Options
from reshard.propagation.trees import Table
from reshard.propagation.ways import Layouts, Picks


class Rent(NamedTuple):
    """What it costs to hold a byte of a value."""

    kept: float = 0.0
    """As the value is kept."""
    wanted: float = 0.0
    """As it is brought to where it is wanted."""
    made: float = 0.0
    """As it comes out, before it is brought to where it is kept."""


class Besides(NamedTuple):
    """What holding and computing cost besides what the goal says."""

    rents: Mapping[int, Rent] = MappingProxyType({})
    """Per number of a value; holding others is free."""
    per_flop: float = 0.0
    """For an operation of a device."""


@dataclass(eq=False)
class Variable:
    """A value, or several that are kept alike."""

    number: int
    """Of the first of the values."""
    options: Options
    domain: Numbers
    """The options that it may have."""
    table: Table
    count: int = 1
    """How many values it stands for."""
    copies: tuple[int, ...] = ()
    """The numbers of these, where they are more than one."""
    rent: Costs | None = None
    """Per option what it costs to hold it; nothing where None."""
    uses: list[Edge] = field(default_factory=list)
    makers: list[Edge] = field(default_factory=list)

    @property
    def follows(self) -> bool:
        """Whether nothing reads it and it may be kept as it is made, as an output of which nothing is said."""
        return not self.uses and len(self.makers) == 1 and len(self.domain) > 1

    @cached_property
    def passes(self) -> bool:
        """Whether it goes from one operation to one other, and holding it is free."""
        if len(self.uses) != 1 or len(self.makers) != 1 or self.rent is not None:
            return False
        maker, reader = self.makers[0], self.uses[0]
        return maker.table is reader.table and maker.node is not reader.node


@dataclass(eq=False)
class Node:
    """An operation."""

    number: int
    layouts: Layouts
    cost: Costs
    """Per layout, its work."""
    uses: list[Edge] = field(default_factory=list)
    """To its operands."""
    makes: list[Edge] = field(default_factory=list)
    """To its result; to several where it stands for operations whose results may be kept apart."""

    @property
    def edges(self) -> list[Edge]:
        """All of them."""
        return [*self.uses, *self.makes]


class Sharing(NamedTuple):
    """What uses have in common that share reshards: those to one option are one."""

    table: Table
    times: float
    """How often they happen."""
    value: int
    """The number of what is read: a variable is several values where these must be kept alike."""


class EdgeKey(NamedTuple):
    """What names an edge."""

    operation: int
    place: int
    """Of the value among the tensors of the operation."""
    value: int


class Edge:
    """Between an operation and one of its tensors."""

    def __init__(
        self,
        node: Node,
        place: int,
        variable: Variable,
        wanted: Options,
        table: Table,
        picks: Picks,
        often: float,
        value: int,
        *,
        is_result: bool,
    ) -> None:
        self.node, self.place, self.variable, self.wanted = node, place, variable, wanted
        self.table, self.picks = table, picks
        self.often, self.is_result = often, is_result
        self.times = often * variable.count
        """How often a reshard is made, of all values that are kept alike."""
        self.sharing = Sharing(table, self.times, value)
        self.key = EdgeKey(node.number, place, variable.number)

    @cached_property
    def may_stay(self) -> NDArray[np.bool_]:
        """Per layout whether the variable may be kept as that has it."""
        return np.isin(self.picks.numbers, self.variable.domain)

    def brought(self, there: frozenset[int]) -> Costs:
        """Per layout what it takes to bring an operand where that wants it, from the nearest of some options."""
        key = there, None, self.picks, self.times
        costs = self.table.known.get(key)
        if costs is None:
            rows = self.table.price[list(there)][:, self.picks.numbers]
            costs = self.table.remember(key, np.minimum.reduce(rows) * self.times)
        return costs

    def moved(self, kept: int) -> Costs:
        """Per layout what it takes to bring the result from how that makes it to an option."""
        key = None, kept, self.picks, self.times
        costs = self.table.known.get(key)
        if costs is None:
            costs = self.table.remember(key, self.table.price[self.picks.numbers, kept] * self.times)
        return costs

    def between(self, domain: Numbers) -> Costs:
        """Per option of some and option that layouts want, or make, what reshards between them cost."""
        key = None, None, domain.tobytes(), self.picks, self.times, self.is_result
        costs = self.table.known.get(key)
        if costs is None:
            rows, columns = (self.picks.options, domain) if self.is_result else (domain, self.picks.options)
            prices = self.table.price[rows[:, None], columns] * self.times
            costs = self.table.remember(key, np.ascontiguousarray(prices.T if self.is_result else prices))
        return costs


def sharing(variable: Variable) -> Iterable[list[Edge]]:
    """The uses of a variable, those of one value together, which may share reshards of it."""
    uses: dict[int, list[Edge]] = {}
    for edge in variable.uses:
        uses.setdefault(edge.sharing.value, []).append(edge)
    return uses.values()
