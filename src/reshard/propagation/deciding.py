"""Choices that stand between many others, decided exactly while few of each are looked at.

What stands between two others at the most goes first (`elimination.py`).
Of what is left, one end after the other goes into a table of all its neighbours, that of the smallest table first, so
that nothing is lost; where even that is too large, an end that many hang on is held as it is, and all others are the
best beside it.

By hand, four ends in a ring and both ways across, so that each has three neighbours, where to be alike costs 1: two of
the six pairs must be.

>>> from itertools import combinations
>>> ends = [End(None, np.zeros(2), np.arange(2)) for _ in range(4)]
>>> links = [Link(*pair, np.eye(2)) for pair in combinations(ends, 2)]
>>> sorted(decided(ends, [0, 0, 0, 0]).values())
[0, 0, 1, 1]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from heapq import heapify, heappop, heappush
from math import prod
from operator import add
from typing import NamedTuple

import numpy as np

from reshard.propagation.elimination import End, Link, eliminate
from reshard.propagation.space import Costs

MOST_TOGETHER = 2**15
"""Up to how many choices of an end and its neighbours together are looked at."""


class Together(NamedTuple):
    """What several ends pay together."""

    places: tuple[int, ...]
    """Theirs, in order."""
    costs: Costs
    """Along one dim per end."""


class Gone(NamedTuple):
    """An end that went, with what it and its neighbours pay."""

    place: int
    around: tuple[int, ...]
    """The places of its neighbours."""
    paid: Costs
    """Along a dim for its own choices, and then one for each of them."""


def decided(ends: Sequence[End], held: Sequence[int]) -> dict[int, int]:
    """Per place of an end its choice, where all together cost least, beside those that are held.

    Args:
        ends: to be decided; their links go.
        held: per end the choice with which it is held where it has to be.
    """
    for place, end in enumerate(ends):
        end.place = place
    first = eliminate(ends)
    places = {each.end.place for each in first}
    left = [end for end in ends if end.place not in places]
    picked = _Tables(left, held).decided()
    for end in left:
        end.links.clear()
    for each in reversed(first):
        picked[each.end.place] = each.best(picked)
    return picked


class _Tables:
    """Tables of the ends that are left.

    Args:
        ends: that are left.
        held: per place of an end the choice with which it is held where it has to be.
    """

    def __init__(self, ends: Iterable[End], held: Sequence[int]) -> None:
        self._held = held
        self._sizes = {end.place: len(end.choices) for end in ends}
        self._of: dict[int, dict[int, Together]] = {place: {} for place in self._sizes}
        """What each end pays, by identity."""
        self._around: dict[int, set[int]] = {place: set() for place in self._sizes}
        """The neighbours of each end."""
        links: dict[int, Link] = {}
        for end in ends:
            self._put((end.place,), end.cost)
            for link in end.links:
                links[id(link)] = link
        for link in links.values():
            places, costs = (link.first.place, link.second.place), link.seen_from(link.first)
            if places[0] < places[1]:
                self._put(places, costs)
            else:
                self._put(places[::-1], costs.T)

    def decided(self) -> dict[int, int]:
        """Per place the choice."""
        picked: dict[int, int] = {}
        gone: list[Gone] = []
        sizes = {place: self._size(place) for place in self._of}
        """Of all that are left."""
        waiting = [(size, place) for place, size in sizes.items()]
        heapify(waiting)
        while waiting:
            size, place = heappop(waiting)
            if sizes.get(place) != size:
                continue
            around = self._around[place]
            if size <= MOST_TOGETHER:
                gone.append(self._without(place))
                left = place
            else:
                left = max((place, *around), key=lambda each: (len(self._around[each]), self._sizes[each], each))
                around = self._around[left]
                picked[left] = self._hold(left)
            del sizes[left]
            for each in around:
                size = self._size(each)
                if size != sizes[each]:
                    sizes[each] = size
                    heappush(waiting, (size, each))
        for end in reversed(gone):
            beside: tuple[slice | int, ...] = (slice(None), *(picked[each] for each in end.around))
            picked[end.place] = int(end.paid[beside].argmin())
        return picked

    def _size(self, place: int) -> int:
        """How many choices there are of an end and its neighbours together."""
        return self._sizes[place] * prod(map(self._sizes.__getitem__, self._around[place]))

    def _put(self, places: tuple[int, ...], costs: Costs) -> None:
        together = Together(places, costs)
        for place in places:
            self._of[place][id(together)] = together
            around = self._around[place]
            around.update(places)
            around.discard(place)

    def _take(self, place: int) -> list[Together]:
        """All that an end pays, which goes."""
        taken = self._of.pop(place)
        for key, together in taken.items():
            for each in together.places:
                if each != place:
                    del self._of[each][key]
        for each in self._around[place]:
            self._around[each].discard(place)
        return list(taken.values())

    def _without(self, place: int) -> Gone:
        """Take an end out, its neighbours paying for its best choice."""
        around = tuple(sorted(self._around[place]))
        parts = []
        for places, costs in self._take(place):
            own = places.index(place)
            part = costs.transpose(own, *range(own), *range(own + 1, len(places))) if own else costs
            if len(places) <= len(around):
                part = part.reshape(self._sizes[place], *[self._sizes[n] if n in places else 1 for n in around])
            parts.append(part)
        paid = reduce(add, parts)  # own choices first: their least is taken so in a fifth of the time
        if around:
            self._put(around, np.minimum.reduce(paid))
        return Gone(place, around, paid)

    def _hold(self, place: int) -> int:
        """Hold an end as it is; its choice."""
        choice = self._held[place]
        for places, costs in self._take(place):
            rest = tuple(each for each in places if each != place)
            if rest:
                self._put(rest, np.asarray(costs.take(choice, axis=places.index(place))))
        return choice
