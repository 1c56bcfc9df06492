"""Choices that stand between two others at the most, decided exactly: for each choice of those the best is known.

A program as a sum of costs: every *end*, a value or an operation, pays for its own choice, and every *link* between two
ends for both of theirs.
An end with one link goes into its neighbour's own cost, one with two into a link between its neighbours, and one
without a choice into all around it, so that nothing is lost; of a train step one end in ten is left.
What went is found again backwards, from what its neighbours have chosen.

By hand, a - b - c where a and c have two choices each, b costs 0 or 5, and to differ costs 3: without b, a and c pay 0,
or 3 where they differ, or 6 where b would have to cost 5 or differ from both.

>>> first, middle, last = (End(None, np.array(cost), np.arange(2)) for cost in ([0.0, 0.0], [0.0, 5.0], [0.0, 0.0]))
>>> differ = np.array([[0.0, 3.0], [3.0, 0.0]])
>>> links = Link(first, middle, differ), Link(middle, last, differ)
>>> gone = _eliminated(middle)
>>> first.links[0].seen_from(first).tolist()
[[0.0, 3.0], [3.0, 5.0]]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from reshard.propagation.model import Node, Variable
from reshard.propagation.space import Costs, Numbers, Picks

MOST_COMBINED = 2**18
"""Up to how many choices of an end and its two neighbours together it is eliminated."""


class End:
    """A variable or a node, with what each of its choices costs."""

    def __init__(self, what: Variable | Node | None, cost: Costs, choices: Numbers) -> None:
        self.what, self.cost, self.choices = what, cost, choices
        self.links: list[Link] = []
        self.place = 0

    @property
    def key(self) -> tuple[bool, int]:
        """Whether it is an operation, and its number."""
        return isinstance(self.what, Node), -1 if self.what is None else self.what.number


class Link:
    """What two ends pay together, with what both have handed to it.

    Args:
        first: one of them.
        second: the other.
        table: per choice of the first and option of the second.
        picks: the option that each choice of the second wants; each its own unless given.
        times: for how many links of the program it stands.
    """

    def __init__(self, first: End, second: End, table: Costs, picks: Picks | None = None, times: float = 1) -> None:
        self.first, self.second, self.table, self.picks, self.times = first, second, table, picks, times
        self.handed: list[Costs | None] = [None, None]
        """What the first and the second have handed to it last."""
        self._to_first = table.min(axis=1)
        self._to_second = self._spread(table.min(axis=0))
        first.links.append(self)
        second.links.append(self)

    def other(self, end: End) -> End:
        """The end across."""
        return self.second if end is self.first else self.first

    def message_to(self, end: End) -> Costs:
        """What it costs each choice of an end at the least, with what the other has handed over."""
        return self._to_first if end is self.first else self._to_second

    def take(self, end: End, handed: Costs) -> None:
        """What an end has handed to the link; the message to the other follows."""
        self.handed[end is self.second] = handed
        if end is self.first:
            self._to_second = self._spread((self.table + handed[:, None]).min(axis=0))
        else:
            self._to_first = (self.table + (handed if self.picks is None else self.picks.least(handed))).min(axis=1)

    def given(self, end: End, other: int) -> Costs:
        """What it costs each choice of an end where the other's is known."""
        if end is self.first:
            return self.table[:, other if self.picks is None else self.picks.places[other]]
        return self._spread(self.table[other])

    def seen_from(self, end: End) -> Costs:
        """Per choice of an end and choice of the other, what they pay."""
        table = self.table if self.picks is None else self.table[:, self.picks.places]
        return table if end is self.first else table.T

    def _spread(self, costs: Costs) -> Costs:
        """Costs of the options of the second end, per choice."""
        return costs if self.picks is None else np.asarray(costs[self.picks.places])


class Eliminated(NamedTuple):
    """An end that went, as it stood."""

    end: End
    links: list[Link]

    @property
    def settled(self) -> float:
        """What it costs whatever others choose, and nothing else tells."""
        return float(self.end.cost.min()) if not self.links or len(self.end.choices) == 1 else 0.0

    def best(self, picked: dict[int, int]) -> int:
        """Its best choice, where those of its neighbours are known, by their places."""
        cost = self.end.cost.copy()
        for link in self.links:
            cost += link.given(self.end, picked[link.other(self.end).place])
        return int(cost.argmin())


def eliminate(ends: Iterable[End]) -> list[Eliminated]:
    """Take out what has two neighbours at the most, until nothing more has; all that went, in that order."""
    waiting = deque(ends)
    gone: dict[int, Eliminated] = {}
    while waiting:
        end = waiting.popleft()
        if id(end) not in gone and _may_go(end):
            gone[id(end)] = _eliminated(end)
            waiting.extend({id(other): other for link in gone[id(end)].links for other in (link.other(end),)}.values())
    return list(gone.values())


def _may_go(end: End) -> bool:
    _merge(end)
    if len(end.links) < 2 or len(end.choices) == 1:
        return True
    around = [len(link.other(end).choices) for link in end.links]
    return len(around) == 2 and len(end.choices) * around[0] * around[1] <= MOST_COMBINED


def _merge(end: End) -> None:
    """Make one link of those to the same neighbour."""
    if len({id(link.other(end)) for link in end.links}) == len(end.links):
        return
    to: dict[int, list[Link]] = {}
    for link in end.links:
        to.setdefault(id(link.other(end)), []).append(link)
    for links in to.values():
        if len(links) > 1:
            table = np.asarray(sum(link.seen_from(end) for link in links))
            other = links[0].other(end)
            _cut(links)
            Link(end, other, table, times=min(link.times for link in links))


def _cut(links: Iterable[Link]) -> None:
    for link in links:
        for end in (link.first, link.second):
            end.links.remove(link)


def _eliminated(end: End) -> Eliminated:
    links = list(end.links)
    _cut(links)
    if len(end.choices) == 1:
        for link in links:
            other = link.other(end)
            other.cost = other.cost + link.given(other, 0)
    elif len(links) == 1:
        (link,) = links
        other = link.other(end)
        link.take(end, end.cost)
        other.cost = other.cost + link.message_to(other)
    elif links:
        (before, after), times = links, min(link.times for link in links)
        there = before.seen_from(end) + end.cost[:, None]
        table = (there[:, :, None] + after.seen_from(end)[:, None, :]).min(axis=0)
        Link(before.other(end), after.other(end), table, times=times)
    return Eliminated(end, links)
