"""Which row of choices to look at next: the one that is expected to take least, by bounds and by what was learnt.

Rows are expected to take what their bounds say, until a reshard is planned; from then on all reshards of that term
that are alike, which have the same bounds, are expected to take as long.
Once a price is known, rows that are expected to be no better wait until no others are left; rows whose bounds say so
are dropped.

By hand, two reshards in each of three rows, where the first reshards of the first two rows are alike:

>>> seconds = np.array([[1.0, 1.0, 2.0], [1.0, 2.0, 2.0]])
>>> ranking = Ranking([seconds.sum(axis=0)], seconds, seconds, np.zeros(3))
>>> ranking.next()
(0, 3.0)
>>> ranking.learn(0, 0, 5.0)
>>> ranking.expected(0), ranking.expected(1), ranking.next()
(6.0, 7.0, (2, 6.0))
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard.contraction.bounds import Amounts

SLACK = 1 - 1e-12
"""Bounds in seconds are sums of other numbers than prices are, so they may come out higher by a rounding."""


class Ranking:
    """The rows that wait.

    Args:
        lowest: bounds of the components of a price, the first compared first; that one by `SLACK` lower.
        seconds: per term and row, what its reshard takes at the least.
        alike: per term and row, equal numbers where reshards are alike.
        fixed: per row, what it takes besides.
    """

    def __init__(self, lowest: Sequence[NDArray[Any]], seconds: Amounts, alike: Amounts, fixed: Amounts) -> None:
        self._lowest = lowest
        self._order = np.lexsort(lowest[::-1])
        self._waiting = np.ones(len(self._order), dtype=np.bool_)
        self._seen = np.zeros_like(self._waiting)
        self._place = np.empty_like(self._order)
        self._place[self._order] = np.arange(len(self._order))
        self._least, self._alike, self._fixed = seconds, alike, fixed
        self._expected = seconds.copy()
        self._limit = np.inf

    def next(self) -> tuple[int, float] | None:
        """The row to look at, and what the next best of the others is expected to take; None where none waits."""
        if not self._waiting.any():
            return None
        expected = self._totals()
        hopeful = np.where(expected < self._limit, expected, np.inf)
        if np.isfinite(hopeful).any():
            place = int(hopeful.argmin())
        else:
            fresh = self._waiting & ~self._seen
            place = int((fresh if fresh.any() else self._waiting).argmax())
        expected[place] = np.inf
        return int(self._order[place]), float(expected.min())

    def next_of(self, rows: NDArray[np.bool_]) -> int | None:
        """Of some rows that wait and were not looked at, that which is expected to take least; None where none is."""
        fresh = self._waiting & ~self._seen & rows[self._order]
        if not fresh.any():
            return None
        return int(self._order[np.where(fresh, self._totals(), np.inf).argmin()])

    def least(self) -> float:
        """The first component of a price, at the least, in the rows that wait."""
        return float(self._lowest[0][self._order[self._waiting]].min(initial=np.inf))

    def gain(self) -> float:
        """Which part of the price the best row that waits is expected to save."""
        best = float(self._totals().min())
        return max(0.0, 1 - best / self._limit) if 0 < self._limit < np.inf else 0.0

    def limit_to(self, price: tuple[float, ...]) -> None:
        """Drop the rows that cannot cost less than a price, whose first component is seconds.

        Nor those that take as long, but for a rounding, and are no better in what is compared then.
        """
        self._limit = price[0]
        end = bisect_left(self._order, price, key=self._bounds)
        alike = bisect_left(self._order, price[0] * SLACK**2, hi=end, key=lambda row: self._lowest[0][row])
        worse = [place for place in range(alike, end) if self._bounds(self._order[place])[1:] >= price[1:]]
        self._waiting[end:] = self._waiting[worse] = False

    def _bounds(self, row: int) -> tuple[float, ...]:
        """What no price of a row goes below."""
        return tuple(bound[row] for bound in self._lowest)

    def drop(self, row: int) -> None:
        """Look no more at a row."""
        self._waiting[self._place[row]] = False

    def put_back(self, row: int) -> None:
        """Look at a row again only when all others that are expected to be no better were looked at."""
        self._seen[self._place[row]] = True

    def expected(self, row: int) -> float:
        """What a row is expected to take."""
        return float(self._expected[:, row].sum() + self._fixed[row])

    def expected_of(self, term: int, row: int) -> float:
        """What the reshard of a term is expected to take."""
        return float(self._expected[term, row])

    def learn(self, term: int, row: int, seconds: float) -> None:
        """Expect so much of all reshards of a term that are alike, or less, where less was learnt."""
        known, least = self._expected[term, row], self._least[term, row]
        if known <= least or seconds < known:
            alike = self._alike[term] == self._alike[term, row]
            self._expected[term, alike] = np.maximum(seconds, self._least[term, alike])

    def count(self, rows: NDArray[np.bool_]) -> int:
        """How many of some rows wait."""
        return int(np.count_nonzero(self._waiting & rows[self._order]))

    def _totals(self) -> Amounts:
        """What the rows that wait are expected to take, in the order of their bounds."""
        expected: Amounts = (self._expected.sum(axis=0) + self._fixed)[self._order]
        return np.where(self._waiting, expected, np.inf)
