"""What the digits along a ring do at both ends of an exchange, which says who holds and who lacks what along it.

By hand, 4 devices on a ring of which the outer digit cuts a dim in two, then nothing does: two units, of half a tensor.

>>> roles = RingRoles.of(Digit(1, 4), Digits.of_sizes([2, 2]), ("rows", None), (None, None))
>>> roles.sizes, roles.places, roles.is_one_collective
({'rows': 2}, 8, False)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from reshard.digits import Digit, Digits
from reshard.exchange.ring_flows import Fixed, Roles
from reshard.exchange.transposed_flows import MOST

MOST_PLACES = 1 << 14
"""Of all units of a ring together: what has more of them is not sent along it."""


MOST_KINDS = 16
"""Of rings that differ in what their devices hold: of more of them what is held besides is left out."""


class RingRoles(NamedTuple):
    """What the digits along a ring do at both ends, and in a tile that devices have besides."""

    digits: Digits
    """Of the places along the ring."""
    before: tuple[Hashable, ...]
    """Per digit the digit of the tensor that it cuts; None where it replicates."""
    after: tuple[Hashable, ...]
    kept: tuple[Hashable, ...] = ()
    """Where there is no such tile, nothing."""
    fixed: tuple[tuple[Hashable, Digit], ...] = ()
    """What digits of the position elsewhere cut in that tile, which is cut nowhere else."""

    @classmethod
    def of(
        cls,
        ring: Digit,
        digits: Digits,
        before: Sequence[Hashable],
        after: Sequence[Hashable],
        kept: Sequence[Hashable] | None = None,
    ) -> RingRoles:
        """Those of digits of the position, of which none outside the ring changes what it does.

        A tile that devices have besides is left out where something is cut by other digits there than at the ends,
        and by none of the ring's, for then each device would hold other parts of it; and where rings are of too many
        kinds.
        """
        inside = [number for number, digit in enumerate(digits) if digit.lies_in(ring)]
        along = Digits([Digit(digits[n].stride // ring.stride, digits[n].size) for n in inside])
        roles = cls(along, tuple([before[n] for n in inside]), tuple([after[n] for n in inside]))
        if kept is None:
            return roles
        elsewhere = {role: n for n, role in enumerate(before) if role is not None and n not in inside}
        others = [(n, role) for n, role in enumerate(kept) if role is not None and elsewhere.get(role) != n]
        if any(role in elsewhere for _, role in others):
            return roles
        fixed = tuple([(role, digits[n]) for n, role in others if n not in inside])
        keeping = roles._replace(kept=tuple([kept[n] for n in inside]), fixed=fixed)
        return keeping if prod(map(len, keeping._values())) <= MOST_KINDS else roles

    @property
    def sizes(self) -> dict[Hashable, int]:
        """Of what any of them cuts, in the order in which `RingUnits` numbers it."""
        ends = [(end, self.digits) for end in (self.before, self.after, self.kept) if end]
        pairs = [pair for end, digits in ends for pair in zip(end, digits, strict=True)]
        return {role: digit.size for role, digit in (*pairs, *self.fixed) if role is not None}

    @property
    def is_one_collective(self) -> bool:
        """Whether of what no two hold alike all is gathered, or all that changes exchanged.

        Then links carry no less any way.
        """
        changes = [(old, new) for old, new in zip(self.before, self.after, strict=True) if old != new]
        is_gather = all(new is None for _, new in changes)
        is_exchange = {new for _, new in changes}.isdisjoint((None, *self.before))
        return not self.kept and None not in self.before and (is_gather or is_exchange)

    @property
    def places(self) -> int:
        """Of all units together."""
        return self.digits.size * prod(self.sizes.values())

    def numbered(self, values: Sequence[int] = ()) -> tuple[Digits, Roles, Roles, Roles, tuple[Fixed, ...]]:
        """What `KindsAndFlows` are asked by, where what is fixed has these values."""
        numbers = {role: number for number, role in enumerate(self.sizes)}
        before, after, kept = (tuple(map(numbers.get, end)) for end in (self.before, self.after, self.kept))
        pairs = zip(self.fixed, values, strict=True)
        fixed = tuple([Fixed(numbers[role], digit.size, value) for (role, digit), value in pairs])
        return self.digits, before, after, kept, fixed

    def _values(self) -> list[range]:
        """Per digit that is fixed those of its values that make a difference to what links carry."""
        cut = {*self.before, *self.after}
        return [range(digit.size if role in cut else 1) for role, digit in self.fixed]

    def kinds(self) -> list[tuple[int, ...]]:
        """The values of what is fixed on rings that differ in what they carry."""
        return list(product(*self._values()))


def change_places(
    ring: Digit, across: Digit, digits: Digits, before: Sequence[Hashable], after: Sequence[Hashable]
) -> bool:
    """Whether the digits of two rings cut what those of the other did, each another, and no others change."""
    if ring.size != across.size or not 2 < ring.size <= MOST or ring.lies_in(across) or across.lies_in(ring):
        return False
    numbers = {digit: number for number, digit in enumerate(digits)}
    for number, (stride, size) in enumerate(digits):
        inside = next((pair for pair in ((ring, across), (across, ring)) if digits[number].lies_in(pair[0])), None)
        if inside is None:
            if before[number] != after[number]:
                return False
            continue
        partner = numbers.get(Digit(stride // inside[0].stride * inside[1].stride, size))
        if partner is None or before[number] is None or before[number] != after[partner]:
            return False
    return True
