"""Choices that stand between two others at the most, decided exactly: for each choice of those the best is known.

A program as a sum of costs: every *end*, a value or an operation, pays for its own choice, and every *link* between two
ends for both of theirs.
An end with one link goes into its neighbour's own cost, one with two into a link between its neighbours, and one
without a choice into all around it, so that nothing is lost; of a train step one end in ten is left.
What went is found again backwards, from what its neighbours have chosen.
Layers that are alike share their arrays, so what is made of the same arrays is made once (`Once`).

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
from collections.abc import Callable, Iterable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from reshard.propagation.nodes import Node, Variable
from reshard.propagation.space import Costs, Numbers
from reshard.propagation.ways import Picks

MOST_COMBINED = 2**18
"""Up to how many choices of an end and its two neighbours together it is eliminated."""

FEW = 2**12
"""Up to how many choices of two ends their link says for each what they pay."""


class Once:
    """Arrays made of others, each made once: of the same arrays comes the same array, and changes when they do.

    By hand, a sum of which one part changes:

    >>> once, first, second = Once(), np.array([1.0]), np.array([2.0])
    >>> total = once.make(np.add, first, second)
    >>> first[:] = 5.0
    >>> once.renew({id(first)}) == {id(first), id(total)}, total
    (True, array([7.]))
    """

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], tuple[Costs, tuple[object, ...]]] = {}
        """By how they are made, and the identities of what they are made of, in the order in which they were."""

    def make(self, how: Callable[..., Costs], *of: Any) -> Costs:
        """What comes of some arrays, by identity, which are kept as long as this is."""
        key = how, *map(id, of)
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = how(*of), of
        return known[0]

    def renew(self, changed: Iterable[int]) -> set[int]:
        """Make anew, where they lie, all arrays made of such as have changed; the identities of these and of all."""
        renewed = set(changed)
        for key, (array, of) in self._made.items():
            if not renewed.isdisjoint(key):
                array[...] = key[0](*of)
                renewed.add(id(array))
        return renewed


class End:
    """A variable or a node, with what each of its choices costs."""

    def __init__(self, what: Variable | Node | None, cost: Costs, choices: Numbers) -> None:
        self.what, self.cost, self.choices = what, cost, choices
        self.links: list[Link] = []
        self.place = 0
        self.copies: tuple[int, ...] = ()
        """The numbers of the ends of the program for which it stands, where its links say which they are between."""

    @property
    def others(self) -> list[End]:
        """The ends across its links."""
        return [link.second if link.first is self else link.first for link in self.links]

    @property
    def key(self) -> tuple[bool, int]:
        """Whether it is an operation, and its number."""
        return isinstance(self.what, Node), -1 if self.what is None else self.what.number


class Link:
    """What two ends pay together.

    Args:
        first: one of them.
        second: the other.
        table: per choice of the first and option of the second.
        picks: the option that each choice of the second wants; each its own unless given.
        times: how often what it says counts.
        once: what makes its arrays.
    """

    def __init__(
        self,
        first: End,
        second: End,
        table: Costs,
        picks: Picks | None = None,
        times: float = 1,
        once: Once | None = None,
    ) -> None:
        self.first, self.second, self.table, self.picks = first, second, table, picks
        self.times = times
        self.pairs: tuple[tuple[int, int], ...] | None = None
        """For which links of the program it stands, by the numbers of their ends; for one where None."""
        self.once = once or Once()
        first.links.append(self)
        second.links.append(self)

    def other(self, end: End) -> End:
        """The end across."""
        return self.second if end is self.first else self.first

    def pairs_from(self, end: End) -> tuple[tuple[int, int], ...] | None:
        """For which links of the program it stands, the number of an end first, and in order."""
        if self.pairs is None:
            return None
        return tuple(sorted(self.pairs if end is self.first else ((b, a) for a, b in self.pairs)))

    def open(self) -> None:
        """Say per choice what is said per option, where that takes little: so messages take fewer steps."""
        if self.picks is not None and self.table.shape[0] * len(self.picks.places) <= FEW:
            self.table, self.picks = self.once.make(_of_all_choices, self.table, self.picks), None

    def seen_from(self, end: End) -> Costs:
        """Per choice of an end and choice of the other, what they pay."""
        return _seen(*self.sides(end))

    def sides(self, end: End) -> tuple[Costs, Picks | None, bool]:
        """Of what that is made: the table, the options of the second's choices, and whether the end is the first."""
        return self.table, self.picks, end is self.first

    def message_of(self, end: End, handed: Costs) -> Costs:
        """What it costs each choice of the other end at the least, where so much is handed over."""
        how = _handed_by_first if end is self.first else _handed_by_second
        return self.once.make(how, self.table, self.picks, handed)


def _least_of_rows(table: Costs) -> Costs:
    return np.asarray(np.minimum.reduce(table, axis=1))


def _least_of_columns(table: Costs, picks: Picks | None) -> Costs:
    least = np.minimum.reduce(table, axis=0)
    return np.asarray(least if picks is None else least[picks.places])


def _handed_by_first(table: Costs, picks: Picks | None, handed: Costs) -> Costs:
    return _least_of_columns(table + handed[:, None], picks)


def _handed_by_second(table: Costs, picks: Picks | None, handed: Costs) -> Costs:
    return _least_of_rows(table + (handed if picks is None else picks.least(handed)))


def _of_all_choices(table: Costs, picks: Picks) -> Costs:
    return np.asarray(table[:, picks.places])


def _seen(table: Costs, picks: Picks | None, is_first: bool) -> Costs:
    table = table if picks is None else table[:, picks.places]
    return table if is_first else table.T


def _sum(*sides: Any) -> Costs:
    """Of links between the same ends what they pay together; three of what is given are of one link."""
    return np.asarray(sum(_seen(*sides[start : start + 3]) for start in range(0, len(sides), 3)))


def _only(*side: Any) -> Costs:
    """What the other's choices pay where there is but one."""
    return np.asarray(_seen(*side)[0])


def _by_way_of(cost: Costs, *sides: Any) -> Costs:
    """What the choices of two ends pay by way of one between them, in its best choice."""
    before, after = np.ascontiguousarray(_seen(*sides[:3])), np.ascontiguousarray(_seen(*sides[3:]))  # in half the time
    arriving = before + cost[:, None]
    return np.asarray(np.minimum.reduce(arriving[:, :, None] + after[:, None, :], axis=0))


class Eliminated(NamedTuple):
    """An end that went, as it stood."""

    end: End
    links: list[Link]

    @property
    def others(self) -> list[End]:
        """Its neighbours."""
        return [link.second if link.first is self.end else link.first for link in self.links]

    @property
    def is_alone(self) -> bool:
        """Whether it costs something whatever others choose, that nothing else tells."""
        return not self.links or len(self.end.choices) == 1

    @property
    def settled(self) -> float:
        """What that is."""
        return float(self.end.cost.min()) if self.is_alone else 0.0

    def best(self, picked: dict[int, int]) -> int:
        """Its best choice, where those of its neighbours are known, by their places."""
        cost = self.end.cost
        for link in self.links:
            if self.end is link.first:
                across = picked[link.second.place]
                cost = cost + link.table[:, across if link.picks is None else link.picks.places[across]]
            else:
                told = link.table[picked[link.first.place]]
                cost = cost + (told if link.picks is None else told[link.picks.places])
        return int(cost.argmin())


def eliminate(ends: Iterable[End]) -> list[Eliminated]:
    """Take out what has two neighbours at the most, until nothing more has; all that went, in that order."""
    waiting = deque(ends)
    gone: dict[End, Eliminated] = {}
    while waiting:
        end = waiting.popleft()
        if end not in gone and _may_go(end):
            gone[end] = _eliminated(end)
            waiting.extend(dict.fromkeys(gone[end].others))
    return list(gone.values())


def _may_go(end: End) -> bool:
    others = end.others
    if len(others) > 1 and len(set(others)) < len(others):
        _merge(end)
        others = end.others
    if len(end.choices) == 1 or len(others) < 2:
        return not end.copies or all(_is_even(link, end) for link in end.links)
    if len(others) > 2 or others[0] is others[1] or (end.copies and not all(_is_own(link, end) for link in end.links)):
        return False
    return len(end.choices) * prod(len(other.choices) for other in others) <= MOST_COMBINED


def _is_own(link: Link, end: End) -> bool:
    """Whether every copy of an end has one of the links for which one stands."""
    return link.pairs is not None and len(link.pairs) == len(end.copies)


def _is_even(link: Link, end: End) -> bool:
    """Whether what an end tells the other of a link is the same for all copies of that, whatever the end chooses."""
    often = len(link.pairs or ())
    return (len(end.choices) == 1 or _is_own(link, end)) and often % len(link.other(end).copies) == 0


def _merge(end: End) -> None:
    """Make one link of those to the same neighbour, or of copies of an end to the same copies of it."""
    to: dict[tuple[End, tuple[tuple[int, int], ...] | None], list[Link]] = {}
    for link, other in zip(end.links, end.others, strict=True):
        to.setdefault((other, link.pairs_from(end)), []).append(link)
    for (_, pairs), links in to.items():
        if len(links) > 1:
            once, other = links[0].once, links[0].other(end)
            table = once.make(_sum, *(side for link in links for side in link.sides(end)))
            _cut(links)
            Link(end, other, table, times=min(link.times for link in links), once=once).pairs = pairs


def _cut(links: Iterable[Link]) -> None:
    for link in links:
        for end in (link.first, link.second):
            end.links.remove(link)


def _eliminated(end: End) -> Eliminated:
    links = list(end.links)
    _cut(links)
    if len(end.choices) == 1:
        for link in links:
            _tell(link, end, link.once.make(_only, *link.sides(end)))
    elif len(links) == 1:
        _tell(links[0], end, links[0].message_of(end, end.cost))
    elif links:
        (before, after), times, once = links, min(link.times for link in links), links[0].once
        table = once.make(_by_way_of, end.cost, *before.sides(end), *after.sides(end))
        pairs, on = before.pairs_from(end), dict(after.pairs_from(end) or ())
        around = None if pairs is None else tuple((there, on[copy]) for copy, there in pairs)
        Link(before.other(end), after.other(end), table, times=times, once=once).pairs = around
    return Eliminated(end, links)


def _tell(link: Link, end: End, message: Costs) -> None:
    """Let the other end of a link pay what an end that goes tells it, so often as a copy has the link."""
    other = link.other(end)
    often = 1 if link.pairs is None else len(link.pairs) // len(other.copies)
    other.cost = link.once.make(np.add, other.cost, message if often == 1 else message * often)
