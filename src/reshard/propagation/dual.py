"""What no placement costs less than: messages between values and operations.

Every operation is tied to its operands and its result by what a reshard costs at the least, and every reshard that
several may share is divided among them, so that the sum of all is a bound.
In turns, forth and back through the program, every value and every operation gathers what its neighbours cost for each
of its choices and hands it on evenly (sequential tree-reweighted message passing, Kolmogorov 2006).
The bound holds whenever it stops; on a chain it is the optimum.
On the way each takes its cheapest choice, given those before it, which is where the search for a choice begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from reshard.propagation.elimination import Eliminated, End, Link, Once, eliminate
from reshard.propagation.messages import Messages, Voice
from reshard.propagation.model import Model
from reshard.propagation.nodes import Edge, EdgeKey, Node, Variable
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
        likely: of some values and operations, by their keys, the choices that are looked at: the bound is of these.
    """

    def __init__(
        self, model: Model, shares: Shares | None = None, *, exact: bool = False, likely: Likely | None = None
    ) -> None:
        self._once, self._divided = Once(), list[Divided]()
        ends = _ends(model, shares or {}, self._once, None if exact else self._divided, likely or {})
        for place, end in enumerate(ends):
            end.place = place
        gone = eliminate(ends)
        self._alone = [each for each in gone if each.is_alone]
        places = {each.end.place for each in gone}
        left = (end for end in ends if end.place not in places)
        self._settle(gone, left, sum(each.settled for each in self._alone))

    def _settle(self, gone: list[Eliminated], ends: Iterable[End], settled: float) -> None:
        """Pass messages between the ends that are left, in their order.

        Args:
            gone: what is decided exactly.
            ends: what is left.
            settled: what all costs that is decided by itself.
        """
        self.gone, self.settled, self.bound = gone, settled, -np.inf
        self.ends = sorted(ends, key=lambda end: end.place)
        for link in {id(link): link for end in self.ends for link in end.links}.values():
            link.open()
        self._messages = Messages(self.ends)
        for end in self.ends:
            end.links.clear()
        self.passed = 0
        """How many costs of links messages have gone over."""

    @property
    def swept(self) -> int:
        """Over how many costs of links messages go, forth and back."""
        return self._messages.passed

    def divide(self, shares: Shares) -> None:
        """Divide reshards otherwise; what was handed on in messages stays.

        What is eliminated stays so, and of the tables on the way those are made anew that come of changed ones.
        """
        changed = set[int]()
        for number, (edge, costs, share, table) in enumerate(self._divided):
            if shares[edge.key] != share:
                np.multiply(costs, edge.times * shares[edge.key], out=table)
                self._divided[number] = Divided(edge, costs, shares[edge.key], table)
                changed.add(id(table))
        self._messages.renew(self._once.renew(changed))
        self.settled, self.bound = sum(each.settled for each in self._alone), -np.inf

    def run(self, turns: int, is_late: Callable[[], bool] = lambda: False, tolerance: float = 1e-4) -> None:
        """Pass messages forth and back, until little changes or it is late."""
        for turn in range(turns):
            self._messages.go()
            bound = self.settled + self._messages.come_back()
            self.passed += self._messages.passed
            grown = bound - self.bound
            self.bound = max(self.bound, bound)
            if (turn > 2 and grown < tolerance * abs(self.bound)) or is_late():
                break

    def latest(self) -> list[Costs]:
        """What was handed on last in messages, as they have it."""
        return self._messages.latest()

    def handed(self, latest: Sequence[Costs]) -> Handed:
        """What was handed on in messages, as these had it."""
        return {
            (voice.end.key, voice.other.key): (handed, voice.link.times)
            for voice, handed in self._messages.handed(latest)
        }

    def begin(self, before: Handed) -> None:
        """Begin with what was handed on in messages of the same operations, or of such that are kept alike."""

        def handed(voice: Voice) -> Costs | None:
            costs, times = before.get((voice.end.key, voice.other.key), (None, 1.0))
            if costs is None or len(costs) != len(voice.end.choices):
                return None
            return costs * (voice.link.times / times)

        self._messages.begin(handed)

    def likeliest(self, most: int) -> Likely:
        """Of what messages go between the choices that cost least by them, so many at most of each."""
        return {
            end.key: end.choices[np.sort(costs.argsort(kind="stable")[:most])]
            for end, costs in zip(self.ends, self._messages.min_marginals(), strict=True)
        }

    def choice(self) -> Picked:
        """Per variable its option, per operation its layout: the cheapest, one after the other."""
        picked = {end.place: choice for end, choice in zip(self.ends, self._messages.choice(), strict=True)}
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


Likely = dict[tuple[bool, int], Numbers]
"""Per value or operation, by its key, some of its choices."""


Handed = dict[tuple[tuple[bool, int], tuple[bool, int]], tuple[Costs, float]]
"""Per end, and the end across a link, by their keys, what it has handed to that last, and how often that counts."""


class Divided(NamedTuple):
    """What a use of a value pays of a reshard that others share."""

    edge: Edge
    costs: Costs
    """Of all of it."""
    share: float
    table: Costs
    """Of its share."""


def _ends(model: Model, shares: Shares, once: Once, divided: list[Divided] | None, likely: Likely) -> list[End]:
    """The values and operations of a model in their order, linked by what reshards cost.

    Args:
        model: the program.
        shares: per use of a value, which part of a reshard it pays; all of it unless given.
        once: what makes arrays of others.
        divided: to be filled with what is shared; where None, what is known of prices counts, and no bound.
        likely: of some ends the choices that are looked at.
    """
    ends: dict[int, End] = {}
    tables: dict[tuple[object, ...], Costs] = {}
    free: dict[int, Costs] = {}

    def end_of(variable: Variable) -> End:
        end = ends.get(id(variable))
        if end is None:
            domain = likely.get((False, variable.number), variable.domain)
            if variable.rent is None:
                cost = free.setdefault(len(domain), np.zeros(len(domain)))
            else:
                cost = variable.rent[domain]
            end = ends[id(variable)] = End(variable, cost, domain)
        return end

    for node in model.nodes:
        around = [end_of(edge.variable) for edge in node.uses]
        layouts = likely.get((True, node.number))
        every = np.arange(len(node.layouts))
        own = End(node, node.cost, every) if layouts is None else End(node, node.cost[layouts], layouts)
        ends[id(node)] = own
        around += [end_of(edge.variable) for edge in node.makes]
        for edge, end in zip(node.edges, around, strict=True):
            picks = edge.picks if layouts is None else edge.picks.of(tuple(layouts.tolist()))
            share = 1.0 if edge.is_result else shares.get(edge.key, 1.0)
            scale = edge.times * share
            if divided is not None and not edge.is_result and len(edge.variable.uses) > 1:
                whole = id(edge.table.bound), id(end.choices), id(picks)
                if whole not in tables:
                    tables[whole] = cut(edge.table.bound, end.choices, picks, 1.0, is_result=False)
                divided.append(Divided(edge, tables[whole], share, tables[whole] * scale))
                Link(end, own, divided[-1].table, picks, edge.variable.count, once)
                continue
            known = edge.table.price if divided is None else edge.table.bound
            key = id(known), id(end.choices), id(picks), edge.is_result, scale
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
