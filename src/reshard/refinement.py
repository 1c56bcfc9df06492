"""Where two layouts meet: the coarsest digits that both respect.

Two layouts over the same positions meet in their *refinement*: the coarsest digits, of the positions and of
every dim, that both respect.
Its cuts are block lengths in a dim and strides in the positions.
A cut inside a digit of one side splits it, and so cuts whatever that digit is tied to; each cut is handed on so,
once.
Cuts are only added and all divide one another, so it ends, and in the same place whatever the order.
Where two cuts do not divide each other there is no refinement, and boxes must be compared one by one.

By hand, on positions x=2, y=4 (x has stride 4, y stride 1), for an 8 x 8 tensor that goes from `[{"y"}, {}]`
to `[{"x"}, {"y"}]`:
dim 0 has the blocks 2 (source) and 4 (target); the cut at 4 lies inside y and splits it into (2, 2) and (1, 2),
and that split cuts dim 1, whose blocks of 2 by y are pairs of 4.

>>> from reshard.digits import Digit
>>> x, y = Digits([Digit(4, 2)]), Digits([Digit(1, 4)])
>>> source = Layout(dims=((y,), ()), unreduced=Digits(), positions=8)
>>> target = Layout(dims=((x,), (y,)), unreduced=Digits(), positions=8)
>>> common = refine(source, target, (8, 8))
>>> common.digits
Digits([Digit(stride=4, size=2), Digit(stride=2, size=2), Digit(stride=1, size=2)])
>>> common.source_roles
(None, Cuts(dim=0, stride=4), Cuts(dim=0, stride=2))
>>> common.target_roles
(Cuts(dim=0, stride=4), Cuts(dim=1, stride=4), Cuts(dim=1, stride=2))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from reshard.digits import Digits, nest
from reshard.layout import NOWHERE, Layout, Tie


class Cuts(NamedTuple):
    """The role of a digit that cuts a dim."""

    dim: int
    stride: int
    """The element stride in the dim."""


class Unreduced(NamedTuple):
    """The role of a digit along which values are unreduced."""

    stride: int
    """Its stride in the position: unreduced on both sides it is the same digit."""


Role = Cuts | Unreduced | None
"""What a position digit does in a layout; None where it replicates."""


@dataclass(frozen=True, slots=True)
class Refinement:
    """The coarsest digits that two layouts over the same positions both respect."""

    digits: Digits
    """The digits of the position, major to minor; their product is the number of positions."""
    source_roles: tuple[Role, ...]
    """What each digit does in the source."""
    target_roles: tuple[Role, ...]
    """What each digit does in the target."""
    lengths: tuple[int, ...]
    """Per dim, the length of the shortest block: pieces are boxes of these lengths, cut at the end of the dim."""
    loose: tuple[Cuts, ...] = ()
    """Digits of dims above these lengths that no device has on either side, major to minor per dim."""
    loose_sizes: tuple[int, ...] = ()
    """Their sizes."""
    kept_roles: tuple[Role, ...] = ()
    """What each digit does in a third layout, where there is one."""

    def with_kept_loose(self) -> Refinement:
        """The same with the cuts of the third layout that are of no digit of the others among the loose ones."""
        of_ends = {*self.source_roles, *self.target_roles}
        sizes = dict(zip(self.loose, self.loose_sizes, strict=True))
        for digit, role in zip(self.digits, self.kept_roles, strict=True):
            if isinstance(role, Cuts) and role not in of_ends:
                sizes[role] = digit.size
        return replace(self, loose=tuple(sizes), loose_sizes=tuple(sizes.values()))

    def filled(self, shape: Sequence[int]) -> float:
        """Which part of all blocks a tensor fills: 1 where dims are even."""
        ends = list(self.lengths)
        sizes = [digit.size for digit in self.digits]
        roles = *self.source_roles, *self.target_roles, *self.loose
        for role, size in zip(roles, (*sizes, *sizes, *self.loose_sizes), strict=True):
            if isinstance(role, Cuts):
                ends[role.dim] = max(ends[role.dim], role.stride * size)
        return prod(shape) / max(prod(ends), 1)


def refine(
    source: Layout, target: Layout, shape: Sequence[int], bounds: Iterable[int] = (), kept: Layout | None = None
) -> Refinement | None:
    """The refinement of two layouts; None where two cuts do not divide each other.

    Args:
        source: one layout.
        target: the other, over the same positions.
        shape: the sizes of the tensor.
        bounds: strides of the position at which its digits are cut besides.
        kept: a third layout over the same positions, which the digits respect too.
    """
    layouts = (source, target) if kept is None else (source, target, kept)
    ties_of = [layout.ties(shape) for layout in layouts]
    if None in ties_of:
        return None
    cuts: list[set[int]] = [set() for _ in shape]
    strides = {1, source.positions, *(bound for bound in bounds if bound < source.positions)}
    for digit in (digit for layout in layouts for digit in layout.unreduced):
        strides |= {digit.stride, digit.end}
    ties = [tie for listed in ties_of for tie in listed or ()]
    for dim, (stride, size), element in ties:
        cuts[dim] |= {element, element * size}
        if stride != NOWHERE:
            strides |= {stride, stride * size}
    if not _handed_on(strides, cuts, ties):
        return None
    digits = Digits.between(strides)
    roles = [_roles(digits, listed or [], layout.unreduced) for listed, layout in zip(ties_of, layouts, strict=True)]
    lengths = tuple([min(ends, default=size) for ends, size in zip(cuts, shape, strict=True)])
    kept_roles = () if kept is None else roles[2]
    if not any(layout.weaves for layout in layouts):
        return Refinement(digits, roles[0], roles[1], lengths, kept_roles=kept_roles)
    loose = {Cuts(dim, stride): size for dim, ends in enumerate(cuts) for stride, size in Digits.between(ends)}
    loose = {cut: size for cut, size in loose.items() if cut not in {role for of_layout in roles for role in of_layout}}
    return Refinement(digits, roles[0], roles[1], lengths, tuple(loose), tuple(loose.values()), kept_roles)


def _handed_on(strides: set[int], cuts: Sequence[set[int]], ties: Sequence[Tie]) -> bool:
    """Whether all nest once every cut inside a digit has been handed on to what it is tied to; both sets grow."""
    runs = [  # where a digit of at least two parts begins and ends, in the position and in its dim
        (stride, stride * size, cuts[dim], element, element * size)
        for dim, (stride, size), element in ties
        if stride != NOWHERE and size > 3
    ]
    count = 0
    while count != (count := len(strides) + sum(map(len, cuts))):
        for low, high, ends, start, stop in runs:
            for cut in strides:
                if low < cut < high:
                    if cut % low or high % cut:
                        return False
                    ends.add(start * (cut // low))
            for cut in ends:
                if start < cut < stop:
                    if cut % start or stop % cut:
                        return False
                    strides.add(low * (cut // start))
    return nest(strides) and all(map(nest, cuts))


def _roles(digits: Digits, ties: Sequence[Tie], unreduced: Digits) -> tuple[Role, ...]:
    roles: dict[int, Role] = dict.fromkeys([stride for stride, _ in digits])
    for dim, (low, size), element in ties:
        if low != NOWHERE:
            high = low * size
            for stride in roles:
                if low <= stride < high:
                    roles[stride] = Cuts(dim, element * (stride // low))
    for digit in unreduced:
        roles.update({stride: Unreduced(stride) for stride in roles if digit.stride <= stride < digit.end})
    return tuple(roles.values())
