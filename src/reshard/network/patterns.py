"""Who sends to whom in an exchange by digits, without what makes no difference to its price.

Two exchanges of different axes, dims and sizes put the same on a network where the sender's place is made of the
receiver's in the same way.
So a `Pattern` has no names and no elements, and digits that always go together are one: what it asks of a network is
worked out once, whatever tensors follow it.

By hand, 8 devices in three digits of 2; the first is gathered, the others of the sender are those of the receiver, and
so are one digit of 4:

>>> Pattern.of(Digits.of_sizes([2, 2, 2]), (0, 1, 2), (0,), ("all-gather",))
Pattern(digits=Digits([Digit(stride=4, size=2), Digit(stride=1, size=4)]), determined_by=(0, 1), gathered=(0,), \
kind='all-gather')
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from reshard.digits import Digit, Digits
from reshard.refinement import Cuts, Role

CACHED = 4096
"""Patterns that are kept."""


class Pattern(NamedTuple):
    """Who sends to whom."""

    digits: Digits
    """Of the position, all of it, major to minor."""
    determined_by: tuple[int, ...]
    """That of `DigitExchange`."""
    gathered: tuple[int, ...]
    """That of `DigitExchange`."""
    kind: str
    """The collective that the gathered digits are part of; empty where they are of several, or of none."""

    @classmethod
    @lru_cache(CACHED)
    def of(
        cls,
        digits: Digits,
        determined_by: tuple[int, ...],
        gathered: tuple[int, ...],
        kinds: tuple[str | None, ...],
    ) -> Pattern:
        """The pattern of an exchange.

        Args:
            digits: of the position, all of it, major to minor.
            determined_by: per digit of the sender the digit of the receiver that it is.
            gathered: the digits of the sender that take all values in place of that one.
            kinds: per gathered digit the collective that it is part of.
        """
        is_gathered = [number in gathered for number in range(len(digits))]
        goes_on = _going_on(determined_by, is_gathered)
        first = [number for number in range(len(digits)) if not number or not goes_on[number - 1]]
        place = {number: where for where, number in enumerate(first)}
        joined = []
        for start, stop in zip(first, [*first[1:], len(digits)], strict=False):  # no digits have one end
            high, low = digits[start], digits[stop - 1]
            joined.append(low if stop == start + 1 else Digit(low.stride, high.stride * high.size // low.stride))
        kind = kinds[0] if len(set(kinds)) == 1 else ""
        return cls(
            Digits(joined),
            tuple([place[determined_by[number]] for number in first]),
            tuple([place[number] for number in first if is_gathered[number]]),
            kind or "",
        )

    @property
    def stays(self) -> bool:
        """Whether every device sends to itself in round 0."""
        return self.determined_by == tuple(range(len(self.determined_by)))

    @property
    def gathered_digits(self) -> Digits:
        """The digits that take all values."""
        return Digits([self.digits[i] for i in self.gathered])


def _going_on(determined_by: Sequence[int], is_gathered: Sequence[bool]) -> list[bool]:
    """Per digit but the last, whether it and the next can be one: where both go, they go side by side."""
    count = len(determined_by)
    goes_on = [
        determined_by[i + 1] == determined_by[i] + 1 and is_gathered[i] == is_gathered[i + 1] for i in range(count - 1)
    ]
    is_settled = not any(goes_on)
    while not is_settled:
        is_settled = True
        for sender, receiver in enumerate(determined_by):
            for place, other in ((sender, receiver), (sender - 1, receiver - 1)):
                # the pair that the receiver's digit makes with its neighbour, and that of the sender's
                if not 0 <= other < count - 1:
                    continue
                both = 0 <= place < count - 1 and goes_on[place] and goes_on[other]
                if goes_on[other] and not both:
                    goes_on[other] = False
                    is_settled = False
                if 0 <= place < count - 1 and goes_on[place] and not both:
                    goes_on[place] = False
                    is_settled = False
    return goes_on


def kind_of(before: Role, after: Role) -> str | None:
    """The collective that a gathered digit is part of, from what it does before and after."""
    if not isinstance(before, Cuts):
        return "reduce-scatter" if isinstance(after, Cuts) else None
    return "all-gather" if after is None else "all-to-all" if isinstance(after, Cuts) else None
