"""What no choice costs less than, found when it is first asked for.

Of a program of which much is alike the bound is that of the whole, which takes a tenth of the time of a placement, and
whoever only runs the program never asks.
Until then it holds what it is found of; a copy of it is only the number.

>>> bound = LowerBound(lambda: 6 * 7.0)
>>> bound.cost, bound.cost
(42.0, 42.0)
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from reshard.garbage import uncollected


class LowerBound:
    """A bound to be found.

    Args:
        find: what finds it, once.
        let_go: what takes apart, after that or where nobody has asked, what it is found of.
    """

    def __init__(self, find: Callable[[], float], let_go: Callable[[], None] | None = None) -> None:
        self._find: Callable[[], float] | None = find
        self._let_go = let_go
        self._cost = 0.0
        self._lock = RLock()

    @classmethod
    def known(cls, cost: float) -> LowerBound:
        """One that is found."""
        return cls(lambda: cost)

    @property
    def cost(self) -> float:
        """What no choice costs less than."""
        with self._lock:
            if self._find is not None:
                with uncollected():
                    self._cost, self._find = max(self._find(), 0.0), None
                    self._end()
            return self._cost

    def _end(self) -> None:
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go()

    def __del__(self) -> None:
        self._end()

    def __reduce__(self) -> tuple[Callable[[float], LowerBound], tuple[float]]:
        return LowerBound.known, (self.cost,)
