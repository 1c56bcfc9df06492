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
from heapq import heapify, heappop, heappush
from math import prod
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
    """Along a dim for each of them, and the last for its own choices."""


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
        self._of: dict[int, list[Together]] = {place: [] for place in self._sizes}
        links: dict[int, Link] = {}
        for end in ends:
            self._put(Together((end.place,), end.cost))
            links.update((id(link), link) for link in end.links)
        for link in links.values():
            places, costs = (link.first.place, link.second.place), link.seen_from(link.first)
            self._put(Together(places, costs) if places[0] < places[1] else Together(places[::-1], costs.T))

    def decided(self) -> dict[int, int]:
        """Per place the choice."""
        picked: dict[int, int] = {}
        gone: list[Gone] = []
        waiting = [(self._size(place), place) for place in self._of]
        heapify(waiting)
        while waiting:
            size, place = heappop(waiting)
            if place not in self._of:
                continue
            now = self._size(place)
            if now > size:
                heappush(waiting, (now, place))
                continue
            touched = self._around(place)
            if now <= MOST_TOGETHER:
                gone.append(self._without(place))
            else:
                held = max((place, *touched), key=lambda each: (len(self._around(each)), self._sizes[each], each))
                touched = {place, *self._around(held)} - {held}
                picked[held] = self._hold(held)
            for each in touched:
                heappush(waiting, (self._size(each), each))
        for place, around, paid in reversed(gone):
            picked[place] = int(paid[tuple(picked[each] for each in around)].argmin())
        return picked

    def _around(self, place: int) -> set[int]:
        """The neighbours of an end."""
        return {each for together in self._of[place] for each in together.places if each != place}

    def _size(self, place: int) -> int:
        """How many choices there are of an end and its neighbours together."""
        return self._sizes[place] * prod(self._sizes[each] for each in self._around(place))

    def _put(self, together: Together) -> None:
        for place in together.places:
            self._of[place].append(together)

    def _take(self, place: int) -> list[Together]:
        """All that an end pays, which goes."""
        taken = self._of.pop(place)
        for together in taken:
            for each in together.places:
                if each != place:
                    self._of[each] = [other for other in self._of[each] if other is not together]
        return taken

    def _without(self, place: int) -> Gone:
        """Take an end out, its neighbours paying for its best choice."""
        taken = self._take(place)
        around = tuple(sorted({each for together in taken for each in together.places} - {place}))
        axes = {each: axis for axis, each in enumerate((*around, place))}
        total = np.zeros([self._sizes[each] for each in axes])
        for places, costs in taken:
            order = sorted(range(len(places)), key=lambda axis: axes[places[axis]])
            shape = [1] * len(axes)
            for each in places:
                shape[axes[each]] = self._sizes[each]
            total += costs.transpose(order).reshape(shape)
        if around:
            self._put(Together(around, np.asarray(np.minimum.reduce(total, axis=-1))))
        return Gone(place, around, total)

    def _hold(self, place: int) -> int:
        """Hold an end as it is; its choice."""
        choice = self._held[place]
        for places, costs in self._take(place):
            rest = tuple(each for each in places if each != place)
            if rest:
                self._put(Together(rest, np.asarray(costs.take(choice, axis=places.index(place)))))
        return choice
