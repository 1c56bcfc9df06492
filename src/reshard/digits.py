"""A sharding with the names taken away: digits of a device's position.

An axis or sub-axis of a mesh is a *digit* of the position: (stride, size), with the value
`position // stride % size`.
A dim is cut in *stages*: each cuts what the one before left into blocks of the ceiling of length over parts,
by the digits of the stage, major to minor.
Shardy and XLA cut a dim in one stage, torch in one stage per axis; both are the same where all divides.

Two layouts over the same positions meet in their *refinement*: the coarsest digits, of the positions and of
every dim, that both respect.
Its cuts are block lengths in a dim and strides in the positions.
A cut inside a digit of one side splits it, and so cuts whatever that digit is tied to; this repeats until
nothing is cut.
Cuts are only added and all divide one another, so it ends, and in the same place whatever the order.
Where two cuts do not divide each other there is no refinement, and boxes must be compared one by one.

By hand, on positions x=2, y=4 (x has stride 4, y stride 1), for an 8 x 8 tensor that goes from `[{"y"}, {}]`
to `[{"x"}, {"y"}]`:
dim 0 has the blocks 2 (source) and 4 (target); the cut at 4 lies inside y and splits it into (2, 2) and (1, 2),
and that split cuts dim 1, whose blocks of 2 by y are pairs of 4.

>>> source = Layout(dims=(((Digit(1, 4),),), ()), unreduced=(), positions=8)
>>> target = Layout(dims=(((Digit(4, 2),),), ((Digit(1, 4),),)), unreduced=(), positions=8)
>>> common = refine(source, target, (8, 8))
>>> common.digits
(Digit(stride=4, size=2), Digit(stride=2, size=2), Digit(stride=1, size=2))
>>> common.source_roles, common.target_roles
((None, (0, 4), (0, 2)), ((0, 4), (1, 4), (1, 2)))
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box

Positions = NDArray[np.int64]
P = TypeVar("P", int, Positions)
Role = tuple[int, int] | None
"""What a position digit does: cut a dim at an element stride (dim, stride), hold partial values
(`PARTIAL`, position stride), or nothing: replicate."""
PARTIAL = -1
"""Stands for a dim in the role of a digit along which values are unreduced."""


class Digit(NamedTuple):
    """A factor of the position: its value is `position // stride % size`."""

    stride: int
    size: int

    def value(self, position: P) -> P:
        """The digit of one position, or of many."""
        return position // self.stride % self.size


Stage = tuple[Digit, ...]


def joined(digits: Iterable[Digit]) -> Stage:
    """Digits major to minor in their one spelling: runs that continue one another are one, size 1 is dropped.

    >>> joined([Digit(4, 2), Digit(1, 4), Digit(16, 1)])
    (Digit(stride=1, size=8),)
    """
    result: list[Digit] = []
    for digit in digits:
        if result and result[-1].stride == digit.stride * digit.size:
            result[-1] = Digit(digit.stride, result[-1].size * digit.size)
        elif digit.size > 1:
            result.append(digit)
    return tuple(result)


def within(digits: Stage, other: Digit) -> list[Digit]:
    """The parts of `digits` that lie inside `other` and that a split of both can hold, major first.

    >>> within((Digit(1, 8),), Digit(2, 2))
    [Digit(stride=2, size=2)]
    """
    parts = []
    for stride, size in digits:
        low, high = max(stride, other.stride), min(stride * size, other.stride * other.size)
        chain = [stride, low, high, stride * size]
        outer = [other.stride, low, high, other.stride * other.size]
        if low < high and all(b % a == 0 for ends in (chain, outer) for a, b in itertools.pairwise(ends)):
            parts.append(Digit(low, high // low))
    return parts


def without(digits: Stage, removed: Stage) -> Stage:
    """What is left of `digits` when the parts in `removed` are taken out; major first.

    >>> without((Digit(1, 8),), (Digit(2, 2),))
    (Digit(stride=4, size=2), Digit(stride=1, size=2))
    """
    left = list(digits)
    for other in removed:
        remaining = []
        for digit in left:
            inside = within((digit,), other)
            if not inside:
                remaining.append(digit)
                continue
            (part,) = inside
            top = part.stride * part.size
            remaining.append(Digit(top, digit.stride * digit.size // top))
            remaining.append(Digit(digit.stride, part.stride // digit.stride))
        left = [digit for digit in remaining if digit.size > 1]
    return joined(left)


def primes(digit: Digit) -> list[Digit]:
    """The digit as digits of prime size, major first.

    >>> primes(Digit(5, 12))
    [Digit(stride=30, size=2), Digit(stride=15, size=2), Digit(stride=5, size=3)]
    """
    result: list[Digit] = []
    left, factor = digit.size, 2
    while left > 1:
        if factor * factor > left:
            factor = left
        if left % factor == 0:
            left //= factor
            result.append(Digit(digit.stride * left, factor))
        else:
            factor += 1
    return result


def offsets(digits: Stage) -> Positions:
    """The positions that the digits reach from 0, in the order of their values, the last digit fastest.

    >>> offsets((Digit(1, 2), Digit(4, 2)))
    array([0, 4, 1, 5])
    """
    result: Positions = np.zeros(1, dtype=np.int64)
    for stride, size in digits:
        result = (result[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return result


def index_of(digits: Stage, position: P) -> P:
    """The place of a position, or of many, among the values of the digits, the last digit fastest."""
    index = position * 0
    for stride, size in digits:
        index = index * size + position // stride % size
    return index


@dataclass(frozen=True)
class Layout:
    """Which digits of the position cut which dim, and which hold partial values."""

    dims: tuple[tuple[Stage, ...], ...]
    """Per dim, its stages; per stage, its digits, major to minor."""
    unreduced: Stage
    """Digits along which the value is the reduction of what the devices hold."""
    positions: int
    """The number of devices."""

    def shards(self, dim: int) -> int:
        """The number of parts that a dim is cut into."""
        return self.parts[dim]

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Per dim, the number of parts that it is cut into."""
        return tuple(prod(digit.size for stage in stages for digit in stage) for stages in self.dims)

    def copies(self) -> int:
        """The number of devices that hold each tile, of each class of partial values."""
        return self.positions // (prod(self.parts) * prod(digit.size for digit in self.unreduced))

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the largest tile: the ceiling of each size over its shards."""
        return tuple(-(-size // parts) for size, parts in zip(shape, self.parts, strict=True))

    def box(self, position: int, shape: Sequence[int]) -> Box:
        """Where the tile of a position lies."""
        intervals = []
        for stages, size in zip(self.dims, shape, strict=True):
            start, stop = 0, size
            for stage in stages:
                index, parts = 0, 1
                for stride, digit_size in stage:
                    index = index * digit_size + position // stride % digit_size
                    parts *= digit_size
                block = -(-(stop - start) // parts)
                start, stop = min(start + index * block, stop), min(start + (index + 1) * block, stop)
            intervals.append((start, stop) if start < stop else (size, size))
        return Box(intervals)

    def intervals(self, dim: int, size: int, positions: Positions) -> tuple[Positions, Positions]:
        """Where the tiles of many positions lie in one dim: starts and stops; an empty one stops where it starts."""
        start, stop = self.blocks(dim, size)
        index = index_of(self.digits_of(dim), positions)
        return start[index], stop[index]

    def blocks(self, dim: int, size: int) -> tuple[Positions, Positions]:
        """Where every block of a dim begins and ends, in the order of the digits that cut it; blocks may be empty."""
        start: Positions = np.zeros(1, dtype=np.int64)
        stop: Positions = np.full(1, size, dtype=np.int64)
        for stage in self.dims[dim]:
            index = np.arange(prod(digit.size for digit in stage), dtype=np.int64)
            block = -((start - stop) // len(index))
            low = np.minimum(start[:, None] + index * block[:, None], stop[:, None])
            stop = np.minimum(low + block[:, None], stop[:, None]).ravel()
            start = low.ravel()
        return start, stop

    def digits_of(self, dim: int) -> Stage:
        """The digits that cut a dim, major to minor."""
        return tuple(digit for stage in self.dims[dim] for digit in stage)

    def free_digits(self) -> Stage:
        """The digits on which the tensor is replicated, major to minor."""
        used = sorted([*self.unreduced, *(digit for dim in range(len(self.dims)) for digit in self.digits_of(dim))])
        ends = [1, *(digit.stride * digit.size for digit in used)]
        starts = [*(digit.stride for digit in used), self.positions]
        gaps = [Digit(low, high // low) for low, high in zip(ends, starts, strict=True)]
        return joined(reversed(gaps))

    def bounds(self, shape: Sequence[int], positions: Positions) -> list[tuple[Positions, Positions]]:
        """Per dim, where the tiles of many positions lie."""
        return [self.intervals(dim, size, positions) for dim, size in enumerate(shape)]

    def element_strides(self, dim: int, size: int) -> list[tuple[Digit, int]] | None:
        """Each digit of a dim with its element stride; None where the blocks are not all of one length.

        A dim may end inside its last block, or before it, where it is cut in one stage.
        """
        result: list[tuple[Digit, int]] = []
        length = size
        for number, stage in enumerate(self.dims[dim]):
            parts = prod(digit.size for digit in stage)
            if length % parts and (number or len(self.dims[dim]) > 1):
                return None
            length = -(-length // parts)
            stride = max(length, 1) * parts
            for digit in stage:
                stride //= digit.size
                result.append((digit, stride))
        return result

    def relabelled(self, order: Sequence[tuple[Digit, int]]) -> Layout | None:
        """The layout over other positions.

        Args:
            order: the positions as digits of this layout's, each with its stride in the new positions.

        Returns:
            None where a digit of this layout is no product of digits in `order`.
        """

        def moved(stage: Stage) -> Stage | None:
            result: list[Digit] = []
            for digit in stage:
                end = digit.stride * digit.size
                for old, stride in sorted(order, reverse=True):
                    low, high = max(old.stride, digit.stride), min(old.stride * old.size, end)
                    if low < high:
                        nests = old.stride * old.size % high == 0 and end % high == 0
                        if not nests or low % old.stride or high % low or low % digit.stride:
                            return None
                        result.append(Digit(stride * (low // old.stride), high // low))
            return joined(result)

        dims = tuple(tuple(moved(stage) for stage in stages) for stages in self.dims)
        unreduced = moved(self.unreduced)
        if unreduced is None or any(stage is None for stages in dims for stage in stages):
            return None
        checked = tuple(tuple(stage for stage in stages if stage is not None) for stages in dims)
        return Layout(checked, unreduced, self.positions)


@dataclass(frozen=True, slots=True)
class Refinement:
    """The coarsest digits that two layouts over the same positions both respect."""

    digits: tuple[Digit, ...]
    """The digits of the position, major to minor; their product is the number of positions."""
    source_roles: tuple[Role, ...]
    """What each digit does in the source."""
    target_roles: tuple[Role, ...]
    """What each digit does in the target."""
    lengths: tuple[int, ...]
    """Per dim, the length of the shortest block: pieces are boxes of these lengths, cut at the end of the dim."""


Tie = tuple[int, Digit, int]
"""A digit tied to a dim: (dim, position digit, element stride)."""


def refine(source: Layout, target: Layout, shape: Sequence[int], bounds: Iterable[int] = ()) -> Refinement | None:
    """The refinement of two layouts; None where two cuts do not divide each other.

    Args:
        source: one layout.
        target: the other, over the same positions.
        shape: the sizes of the tensor.
        bounds: strides of the position at which its digits are cut besides.
    """
    source_ties, target_ties = _ties(source, shape), _ties(target, shape)
    if source_ties is None or target_ties is None:
        return None
    ties = source_ties + target_ties
    cuts: list[set[int]] = [set() for _ in shape]
    strides = {1, source.positions, *(bound for bound in bounds if bound < source.positions)}
    for stride, size in (*source.unreduced, *target.unreduced):
        strides.update((stride, stride * size))
    for dim, (stride, size), element in ties:
        strides.update((stride, stride * size))
        cuts[dim].update((element, element * size))
    count = -1
    while count != (count := len(strides) + sum(map(len, cuts))):
        if not (_divide(strides) and all(map(_divide, cuts))):
            return None
        for dim, (stride, size), element in ties:
            inside = [cut // stride for cut in strides if stride < cut < stride * size]
            cuts[dim].update([element * ratio for ratio in inside])
            inside = [cut // element for cut in cuts[dim] if element < cut < element * size]
            strides.update([stride * ratio for ratio in inside])
    chain = sorted(strides, reverse=True)
    digits = tuple(Digit(low, high // low) for high, low in itertools.pairwise(chain))
    return Refinement(
        digits,
        _roles(digits, source_ties, source.unreduced),
        _roles(digits, target_ties, target.unreduced),
        tuple(min(lengths, default=size) for lengths, size in zip(cuts, shape, strict=True)),
    )


def _ties(layout: Layout, shape: Sequence[int]) -> list[Tie] | None:
    ties: list[Tie] = []
    for dim, size in enumerate(shape):
        strides = layout.element_strides(dim, size)
        if strides is None:
            return None
        ties += [(dim, digit, element) for digit, element in strides]
    return ties


def _divide(cuts: set[int]) -> bool:
    chain = sorted(cuts)
    return not any(high % low for low, high in itertools.pairwise(chain))


def _roles(digits: Sequence[Digit], ties: Sequence[Tie], unreduced: Stage) -> tuple[Role, ...]:
    roles: dict[int, Role] = {}
    for dim, (stride, size), element in ties:
        for digit in digits:
            if stride <= digit.stride < stride * size:
                roles[digit.stride] = (dim, element * (digit.stride // stride))
    for stride, size in unreduced:
        for digit in digits:
            if stride <= digit.stride < stride * size:
                roles[digit.stride] = (PARTIAL, digit.stride)
    return tuple(roles.get(digit.stride) for digit in digits)


def digit_order(places: Positions) -> list[tuple[Digit, int]] | None:
    """A permutation of positions as a transposition of digits, each with its new stride; None if it is none.

    >>> digit_order(np.array([0, 2, 1, 3]))
    [(Digit(stride=1, size=2), 2), (Digit(stride=2, size=2), 1)]
    """
    total = len(places)
    order: list[tuple[Digit, int]] = []
    stride, rebuilt = 1, np.zeros(1, dtype=np.int64)
    while stride < total:
        step = int(places[stride])
        along = places[::stride]
        expected = np.arange(len(along), dtype=np.int64) * step
        wrong = np.flatnonzero(along != expected)
        size = int(wrong[0]) if len(wrong) else len(along)
        if size < 2 or total % (stride * size):
            return None
        rebuilt = (np.arange(size, dtype=np.int64)[:, None] * step + rebuilt[None, :]).ravel()
        order.append((Digit(stride, size), step))
        stride *= size
    return order if np.array_equal(rebuilt, places) else None
