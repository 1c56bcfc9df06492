"""What no placement costs less than: messages between values and operations.

Every operation is tied to its operands and its result by what a reshard costs at the least, and every reshard that
several may share is divided among them, so that the sum of all is a bound.
In turns, forth and back through the program, every value and every operation gathers what its neighbours cost for each
of its choices and hands it on evenly (sequential tree-reweighted message passing, Kolmogorov 2006).
The bound holds whenever it stops; on a chain it is the optimum.
On the way each takes its cheapest choice, given those before it, which is where the search for a choice begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from reshard.propagation.model import Edge, Model, Node, Variable
from reshard.propagation.space import Costs, Numbers, Picks


class Dual:
    """Messages of a model.

    Args:
        model: the program.
        shares: per use of a value, which part of a reshard it pays.
        exact: whether what is known of prices counts, so that choices are better and the bound is none.
        within: per variable the options, and per operation the layouts, that are looked at; all unless given.
    """

    def __init__(
        self, model: Model, shares: dict[int, float] | None = None, *, exact: bool = False, within: Within | None = None
    ) -> None:
        ends: dict[int, _End] = {}
        cuts: dict[tuple[int, bytes, bytes, bool], Costs] = {}

        def end_of(variable: Variable) -> _End:
            end = ends.get(id(variable))
            if end is None:
                domain = variable.domain if within is None else within.domains[id(variable)]
                cost = np.zeros(len(domain)) if variable.rent is None else variable.rent[domain]
                end = ends[id(variable)] = _End(variable, cost, domain)
            return end

        for node in model.nodes:
            choices = np.arange(len(node.layouts)) if within is None else within.layouts[node.number]
            around = [end_of(edge.variable) for edge in node.uses]
            own = ends[id(node)] = _End(node, node.cost[choices], choices)
            around += [end_of(edge.variable) for edge in node.makes]
            for edge, end in zip(node.edges, around, strict=True):
                picks = edge.picks if within is None else Picks(edge.picks.numbers[choices])
                table = edge.table.price if exact else edge.table.bound
                key = id(table), end.choices.tobytes(), picks.options.tobytes(), edge.is_result
                if key not in cuts:
                    pair = (picks.options, end.choices) if edge.is_result else (end.choices, picks.options)
                    cut = table[np.ix_(*pair)]
                    cuts[key] = np.ascontiguousarray(cut.T if edge.is_result else cut)
                scale = float(edge.times)
                if not edge.is_result:
                    scale *= (shares or {}).get(id(edge), 1.0)
                link = _Link(picks, cuts[key] * scale if scale != 1 else cuts[key], end, own, edge)
                end.links.append(link)
                own.links.append(link)
        for variable in model.variables:  # those that nothing reads
            end_of(variable)
        self.ends = list(ends.values())
        for place, end in enumerate(self.ends):
            end.place = place
        for end in self.ends:
            end.before = [link for link in end.links if link.other(end).place < end.place]
            end.after = [link for link in end.links if link.other(end).place > end.place]
        self.bound = -np.inf

    def run(self, turns: int, is_late: Callable[[], bool] = lambda: False, tolerance: float = 1e-4) -> None:
        """Pass messages forth and back, until little changes or it is late."""
        for turn in range(turns):
            for end in self.ends:
                end.push(end.after, end.before)
            bound = 0.0
            for end in reversed(self.ends):
                bound += end.push(end.before, end.after)
            grown = bound - self.bound
            self.bound = max(self.bound, bound)
            if (turn > 2 and grown < tolerance * abs(self.bound)) or is_late():
                break

    def begin(self, tied: Dual, classes: Sequence[int]) -> None:
        """Begin with what was handed on where operations are kept alike."""
        known = {
            (end.what.number, link.variable.what.number, link.place): link
            for end in tied.ends
            if isinstance(end.what, Node)
            for link in end.links
        }
        for end in self.ends:
            if isinstance(end.what, Variable):
                continue
            for link in end.links:
                like = known.get((classes[end.what.number], classes[link.variable.what.number], link.place))
                if like is not None:
                    for other, handed in zip((link.variable, link.node), like.handed, strict=True):
                        if handed is not None:
                            link.take(other, handed / like.times)

    def choice(self) -> tuple[dict[int, int], dict[int, int]]:
        """Per variable its option, per operation its layout: the cheapest, one after the other."""
        picked: dict[int, int] = {}
        for end in self.ends:
            cost = end.cost.copy()
            for link in end.before:
                cost += link.given(end, picked[id(link.other(end))])
            for link in end.after:
                cost += link.message_to(end)
            picked[id(end)] = int(cost.argmin())
        options = {id(e.what): int(e.choices[picked[id(e)]]) for e in self.ends if isinstance(e.what, Variable)}
        layouts = {e.what.number: int(e.choices[picked[id(e)]]) for e in self.ends if isinstance(e.what, Node)}
        return options, layouts


class Within(NamedTuple):
    """A part of the choices."""

    domains: dict[int, Numbers]
    """Per variable its options, by identity."""
    layouts: dict[int, Numbers]
    """Per operation its layouts, by number."""


class _End:
    """A variable or a node."""

    def __init__(self, what: Variable | Node, cost: Costs, choices: Numbers) -> None:
        self.what, self.cost, self.choices = what, cost, choices
        self.links: list[_Link] = []
        self.before: list[_Link] = []
        self.after: list[_Link] = []
        self.place = 0

    def push(self, ahead: list[_Link], behind: list[_Link]) -> float:
        """Gather what the links say, and hand it on to those ahead; the least of what is kept."""
        total = self.cost.copy()
        said = [(link, link.message_to(self)) for link in self.links]
        for _, message in said:
            total += message
        part = 1.0 / max(len(ahead), len(behind), 1)
        handed = total * part
        for link in behind:
            link.take(self, -link.message_to(self))
        for link in ahead:
            link.take(self, handed - link.message_to(self))
        return float(total.min()) * (1.0 - part * len(ahead))


class _Link:
    """A link between a variable and a node, with what both have handed to it."""

    def __init__(self, picks: Picks, table: Costs, variable: _End, node: _End, edge: Edge) -> None:
        self.picks, self.table, self.variable, self.node = picks, table, variable, node
        self.place, self.times = edge.place, edge.variable.count
        self.handed: list[Costs | None] = [None, None]
        """What the variable and the node have handed to it last."""
        self._to_variable = table.min(axis=1)
        self._to_node: Costs = table.min(axis=0)[picks.places]

    def other(self, end: _End) -> _End:
        return self.node if end is self.variable else self.variable

    def message_to(self, end: _End) -> Costs:
        return self._to_variable if end is self.variable else self._to_node

    def take(self, end: _End, handed: Costs) -> None:
        """What an end has handed to the link; the message to the other follows."""
        picks = self.picks
        self.handed[end is self.node] = handed
        if end is self.variable:
            self._to_node = (self.table + handed[:, None]).min(axis=0)[picks.places]
        else:
            least = picks.least(handed)
            self._to_variable = (self.table + least).min(axis=1)

    def given(self, end: _End, other: int) -> Costs:
        """What it costs each choice of an end where the other's is known."""
        if end is self.variable:
            return self.table[:, self.picks.places[other]]
        return np.asarray(self.table[other][self.picks.places])


def even_shares(model: Model) -> dict[int, float]:
    """An even part for all who use a value."""
    return {id(edge): 1.0 / len(edge.variable.uses) for node in model.nodes for edge in node.uses}
