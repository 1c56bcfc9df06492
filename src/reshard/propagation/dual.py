"""What no placement costs less than: messages between values and operations.

Every operation is tied to its operands and its result by what a reshard costs at the least, and every reshard that
several may share is divided among them, so that the sum of all is a bound.
In turns, forth and back through the program, every value and every operation gathers what its neighbours cost for each
of its choices and hands it on evenly (sequential tree-reweighted message passing, Kolmogorov 2006).
The bound holds whenever it stops; on a chain it is the optimum.
On the way each takes its cheapest choice, given those before it, which is where the search for a choice begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from reshard.propagation.elimination import Eliminated, End, Link, Once, eliminate
from reshard.propagation.model import Model
from reshard.propagation.nodes import EdgeKey, Node, Variable
from reshard.propagation.space import Costs, Numbers
from reshard.propagation.ways import Picks


class Picked(NamedTuple):
    """A choice for all values and operations."""

    options: dict[int, int]
    """Per variable, by identity."""
    layouts: dict[int, int]
    """Per operation, by its number."""


class Dual:
    """Messages of a model.

    Args:
        model: the program.
        shares: per use of a value, by its key, which part of a reshard it pays; all of it unless given.
        exact: whether what is known of prices counts, so that choices are better and the bound is none.
        within: per variable the options, and per operation the layouts, that are looked at; all unless given.
    """

    def __init__(
        self, model: Model, shares: Shares | None = None, *, exact: bool = False, within: Within | None = None
    ) -> None:
        ends = _ends(model, shares or {}, within, exact=exact)
        for place, end in enumerate(ends):
            end.place = place
        gone = eliminate(ends)
        places = {each.end.place for each in gone}
        left = (end for end in ends if end.place not in places)
        self._settle(gone, left, sum(each.settled for each in gone))

    def _settle(self, gone: list[Eliminated], ends: Iterable[End], settled: float) -> None:
        """Pass messages between the ends that are left, in their order.

        Args:
            gone: what is decided exactly.
            ends: what is left.
            settled: what all costs that is decided by itself.
        """
        self.gone, self.settled, self.bound = gone, settled, -np.inf
        self.ends = sorted(ends, key=lambda end: end.place)
        self.links = list({id(link): link for end in self.ends for link in end.links}.values())
        for link in self.links:
            link.open()
        self.before = [[link for link in end.links if link.other(end).place < end.place] for end in self.ends]
        self.after = [[link for link in end.links if link.other(end).place > end.place] for end in self.ends]

    def run(self, turns: int, is_late: Callable[[], bool] = lambda: False, tolerance: float = 1e-4) -> None:
        """Pass messages forth and back, until little changes or it is late."""
        around = list(zip(self.ends, self.before, self.after, strict=True))
        for turn in range(turns):
            for end, before, after in around:
                _push(end, after, before)
            bound = self.settled
            for end, before, after in reversed(around):
                total = _push(end, before, after)
                if len(after) > len(before) or not before:
                    bound += float(total.min()) * (1.0 - len(before) / max(len(after), 1))
            grown = bound - self.bound
            self.bound = max(self.bound, bound)
            if (turn > 2 and grown < tolerance * abs(self.bound)) or is_late():
                break

    def begin(self, before: Dual) -> None:
        """Begin with what was handed on in messages of the same operations, or of such that are kept alike."""
        known: dict[tuple[object, object], tuple[Link, int]] = {}
        for link in before.links:
            known[link.first.key, link.second.key] = link, 0
            known[link.second.key, link.first.key] = link, 1
        for link in self.links:
            ends = link.first, link.second
            like, turned = known.get((ends[0].key, ends[1].key), (None, 0))
            for place, end in enumerate(ends):
                handed = None if like is None else like.handed[place ^ turned]
                if like is not None and handed is not None and len(handed) == len(end.choices):
                    link.take(end, handed * (link.times / like.times))

    def choice(self) -> Picked:
        """Per variable its option, per operation its layout: the cheapest, one after the other."""
        picked: dict[int, int] = {}
        for end, before, after in zip(self.ends, self.before, self.after, strict=True):
            cost = end.cost.copy()
            for link in before:
                cost += link.given(end, picked[link.other(end).place])
            for link in after:
                cost += link.message_to(end)
            picked[end.place] = int(cost.argmin())
        for gone in reversed(self.gone):
            picked[gone.end.place] = gone.best(picked)
        options, layouts = {}, {}
        for end in (*self.ends, *(gone.end for gone in self.gone)):
            chosen = int(end.choices[picked[end.place]])
            if isinstance(end.what, Node):
                layouts[end.what.number] = chosen
            else:
                options[id(end.what)] = chosen
        return Picked(options, layouts)


Shares = dict[EdgeKey, float]
"""Per use of a value, by its key, which part of a reshard it pays; all uses of a value together pay no more than it."""


class Within(NamedTuple):
    """A part of the choices."""

    domains: dict[int, Numbers]
    """Per variable its options, by identity."""
    layouts: dict[int, Numbers]
    """Per operation its layouts, by number."""


def _ends(model: Model, shares: Shares, within: Within | None, *, exact: bool) -> list[End]:
    """The values and operations of a model in their order, linked by what reshards cost."""
    ends: dict[int, End] = {}
    tables: dict[tuple[object, ...], Costs] = {}
    free: dict[int, Costs] = {}
    alike: dict[bytes, Costs] = {}
    once = Once()

    def end_of(variable: Variable) -> End:
        end = ends.get(id(variable))
        if end is None:
            domain = variable.domain if within is None else within.domains[id(variable)]
            if variable.rent is None:
                cost = free.setdefault(len(domain), np.zeros(len(domain)))
            else:
                cost = variable.rent[domain]
            end = ends[id(variable)] = End(variable, cost, domain)
        return end

    for node in model.nodes:
        choices = np.arange(len(node.layouts)) if within is None else within.layouts[node.number]
        around = [end_of(edge.variable) for edge in node.uses]
        cost = node.cost
        if within is not None:
            cost = cost[choices]
            cost = alike.setdefault(cost.tobytes(), cost)
        own = ends[id(node)] = End(node, cost, choices)
        around += [end_of(edge.variable) for edge in node.makes]
        for edge, end in zip(node.edges, around, strict=True):
            picks = edge.picks if within is None else Picks(edge.picks.numbers[choices])
            scale = float(edge.times)
            if not edge.is_result:
                scale *= shares.get(edge.key, 1.0)
            pair = (id(end.choices), id(picks)) if within is None else (end.choices.tobytes(), picks.options.tobytes())
            known = edge.table.price if exact else edge.table.bound
            key = id(known), *pair, edge.is_result, scale
            if key not in tables:
                tables[key] = cut(known, end.choices, picks, scale, is_result=edge.is_result)
            Link(end, own, tables[key], picks, edge.variable.count, once)
    for variable in model.variables:  # those that nothing reads
        end_of(variable)
    return list(ends.values())


def cut(known: Costs, choices: Numbers, picks: Picks, scale: float, *, is_result: bool) -> Costs:
    """Per choice of a value and option that layouts want of it, or make it in, what that costs."""
    rows, columns = (picks.options, choices) if is_result else (choices, picks.options)
    costs = known[rows[:, None], columns] * scale
    return np.ascontiguousarray(costs.T if is_result else costs)


def _push(end: End, ahead: list[Link], behind: list[Link]) -> Costs:
    """Gather what the links of an end say, and hand it on evenly, so much of it to those ahead; all of it.

    What those behind are told they hear on the way back.
    """
    total = end.cost.copy()
    for link in behind:
        total += link.message_to(end)
    said_ahead = [link.message_to(end) for link in ahead]
    for said in said_ahead:
        total += said
    part = 1.0 / max(len(ahead), len(behind), 1)
    handed = total if part == 1.0 else total * part
    for link, said in zip(ahead, said_ahead, strict=True):
        link.take(end, handed - said)
    return total
