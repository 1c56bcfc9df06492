"""A sharding with the names taken away: digits of a device's position.

An axis or sub-axis of a mesh is a *digit* of the position: (stride, size), with the value
`position // stride % size`.
`Digits` is a list of them, major to minor: it counts through their product, the last digit fastest.

**Why not linear layouts.** Triton's are matrices over the bits of a position: all composition is a product of
matrices, and swizzles are matrices too, but every size must be a power of two.
Meshes have axes of 3, 6 and 72 devices and tensors have dims of 11008 elements; a digit takes any size, costs two
numbers whatever its size, and no mesh swizzles its devices.

**Why not shapes with strides.** CuTe maps a coordinate to an offset by nested (shape, stride) pairs, which is a digit
read from the other end: the pair says what a coordinate adds, the digit which coordinate a position has.
That direction composes functions, but it must be inverted to ask who holds an element, and two layouts are compared
by what they compute.
Here positions are read off: a layout whose strides are given has one spelling, two of them have a refinement, and
replication is no stride of 0 but a digit that no dim mentions.

By hand, on positions x=2, y=4: x has stride 4, y stride 1, and position 6 = 1 * 4 + 2.

>>> x, y = Digit(4, 2), Digit(1, 4)
>>> x.value(6), y.value(6), Digits([y, x]).index_of(6)
(1, 2, 5)
>>> Digits([x, y]).joined()
Digits([Digit(stride=1, size=8)])
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
P = TypeVar("P", int, Positions)
SAMPLED = 4096
"""How many positions stand for all of more."""
TABLED = 1024
"""Values of digits are kept as a table where they are no more."""


@lru_cache(64)
def spread(size: int) -> Positions:
    """So many positions, or `SAMPLED` of them evenly spread, where figures of every one would take too long.

    >>> len(spread(3000)), spread(1 << 40)[[0, 1, -1]].tolist()
    (3000, [0, 268501008, 1099511627775])
    """
    positions: Positions = np.unique(np.linspace(0, size - 1, min(size, SAMPLED)).astype(np.int64))
    positions.flags.writeable = False
    return positions


def nest(cuts: Iterable[int]) -> bool:
    """Whether one list of factors has all the cuts: in order, each divides the next.

    >>> nest([8, 2, 4]), nest([2, 3])
    (True, False)
    """
    low = 1
    for cut in sorted(cuts):
        if cut % low:
            return False
        low = cut
    return True


class Digit(NamedTuple):
    """A factor of the position: its value is `position // stride % size`."""

    stride: int
    size: int

    @property
    def end(self) -> int:
        """Where the next digit up begins."""
        return self.stride * self.size

    def value(self, position: P) -> P:
        """The digit of one position, or of many."""
        stride, size = self
        if stride & (stride - 1) or size & (size - 1):
            return position // stride % size
        return position >> (stride.bit_length() - 1) & (size - 1)  # the same of powers of two, and far faster

    def lies_in(self, other: Digit) -> bool:
        """Whether it is a part of another.

        >>> [Digit(2, size).lies_in(Digit(1, 8)) for size in (4, 8)]
        [True, False]
        """
        return other.stride <= self.stride and self.end <= other.end


class Digits(tuple[Digit, ...]):
    """Digits major to minor: a stage of a cut, or any other list through whose values positions are counted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Digits({list(self)!r})"

    def __getnewargs__(self) -> tuple[list[Digit]]:
        return (list(self),)

    @classmethod
    def between(cls, cuts: Iterable[int]) -> Digits:
        """The digits that begin and end at strides which nest, from the largest down.

        >>> Digits.between({1, 2, 8})
        Digits([Digit(stride=2, size=4), Digit(stride=1, size=2)])
        """
        return cls([Digit(low, high // low) for high, low in itertools.pairwise(sorted(cuts, reverse=True))])

    @classmethod
    def of_sizes(cls, sizes: Iterable[int]) -> Digits:
        """The digits of these sizes in row-major order: the last counts fastest.

        >>> Digits.of_sizes([2, 4])
        Digits([Digit(stride=4, size=2), Digit(stride=1, size=4)])
        """
        result, stride = [], 1
        for size in reversed(list(sizes)):
            result.append(Digit(stride, size))
            stride *= size
        return cls(reversed(result))

    @property
    def size(self) -> int:
        """The number of values: the product of the sizes."""
        return prod([size for _, size in self]) if self else 1

    @property
    def cuts(self) -> set[int]:
        """The strides at which the digits begin and end."""
        return {cut for digit in self for cut in (digit.stride, digit.end)}

    def joined(self) -> Digits:
        """The one spelling: runs that continue one another are one digit, size 1 is dropped.

        >>> Digits([Digit(4, 2), Digit(1, 4), Digit(16, 1)]).joined()
        Digits([Digit(stride=1, size=8)])
        """
        result: list[Digit] = []
        for digit in self:
            if result and result[-1].stride == digit.stride * digit.size:
                result[-1] = Digit(digit.stride, result[-1].size * digit.size)
            elif digit.size > 1:
                result.append(digit)
        return Digits(result)

    def within(self, other: Digit) -> Digits:
        """The parts that lie inside `other` and that a split of both can hold.

        >>> Digits([Digit(1, 8)]).within(Digit(2, 2))
        Digits([Digit(stride=2, size=2)])
        """
        common = []
        for digit in self:
            low, high = max(digit.stride, other.stride), min(digit.end, other.end)
            if low < high and nest((digit.stride, low, high, digit.end)) and nest((other.stride, low, high, other.end)):
                common.append(Digit(low, high // low))
        return Digits(common)

    def without(self, removed: Iterable[Digit]) -> Digits:
        """What is left when the parts in `removed` are taken out.

        >>> Digits([Digit(1, 8)]).without([Digit(2, 2)])
        Digits([Digit(stride=4, size=2), Digit(stride=1, size=2)])
        """
        remaining = list(self)
        for other in removed if self else ():
            split = []
            for digit in remaining:
                for part in Digits((digit,)).within(other):
                    split.append(Digit(part.end, digit.end // part.end))
                    digit = Digit(digit.stride, part.stride // digit.stride)
                split.append(digit)
            remaining = [digit for digit in split if digit.size > 1]
        return Digits(remaining).joined()

    def primes(self) -> Digits:
        """Each digit as digits of prime size.

        >>> Digits([Digit(5, 12)]).primes()
        Digits([Digit(stride=30, size=2), Digit(stride=15, size=2), Digit(stride=5, size=3)])
        """
        result: list[Digit] = []
        for stride, size in self:
            factor = 2
            while size > 1:
                if factor * factor > size:
                    factor = size
                if size % factor == 0:
                    size //= factor
                    result.append(Digit(stride * size, factor))
                else:
                    factor += 1
        return Digits(result)

    def offsets(self) -> Positions:
        """The positions that the digits reach from 0, in the order of their values.

        >>> Digits([Digit(1, 2), Digit(4, 2)]).offsets()
        array([0, 4, 1, 5])
        """
        strides, sizes = [stride for stride, _ in self], tuple([size for _, size in self])
        is_tabled = bool(self) and prod(sizes) <= TABLED
        result: Positions = np.array(strides) @ _values(sizes) if is_tabled else np.zeros(1, dtype=np.int64)
        for stride, size in () if is_tabled else self:
            result = np.add.outer(result, np.arange(size, dtype=np.int64) * stride).ravel()
        return result

    def index_of(self, position: P) -> P:
        """The place of a position, or of many, among the values of the digits."""
        index = position * 0
        for digit in self:
            index = index * digit.size + digit.value(position)
        return index

    def index_of_all(self, positions: int) -> Positions:
        """The place of each of so many positions among the values of the digits.

        >>> Digits((Digit(1, 2), Digit(4, 2))).index_of_all(8).tolist()
        [0, 2, 0, 2, 1, 3, 1, 3]
        """
        if any(positions % digit.end for digit in self):
            return self.index_of(np.arange(positions, dtype=np.int64))
        index: Positions = np.zeros(positions, dtype=np.int64)
        weight = self.size
        for stride, size in self:
            weight //= size
            by_digit = index.reshape(-1, size, stride)
            by_digit += np.arange(0, size * weight, weight)[:, None]
        return index

    def groups(self, positions: int) -> Positions:
        """So many positions in groups that differ in the digits alone: a row per group, in the order of their values.

        >>> Digits([Digit(1, 2), Digit(4, 2)]).groups(8).tolist()
        [[0, 4, 1, 5], [2, 6, 3, 7]]
        """
        places = np.arange(positions, dtype=np.int64)
        firsts: Positions = places[self.index_of(places) == 0]
        return firsts[:, None] + self.offsets()

    def offset_of(self, index: P) -> P:
        """The position that a value of the digits, or many, reaches from 0."""
        position = index * 0
        for stride, size in reversed(self):
            position = position + index % size * stride
            index = index // size
        return position

    def transposed(self, order: Transposition) -> Digits | None:
        """The same digits of the other number, joined; None where one is no product of digits of the transposition.

        >>> order = Transposition.of(np.array([0, 2, 1, 3]))
        >>> Digits([Digit(1, 2)]).transposed(order)
        Digits([Digit(stride=2, size=2)])
        """
        parts = order.parts_of(self)
        return parts.joined() if parts.size == self.size else None


@lru_cache(256)
def _values(sizes: tuple[int, ...]) -> Positions:
    """A column for each list of values of digits of these sizes, the last fastest."""
    values: Positions = np.indices(sizes, dtype=np.int64).reshape(len(sizes), -1)
    return values


NO_DIGITS = Digits()


@dataclass(frozen=True, slots=True)
class Transposition:
    """Two numberings of the same things, whose digits are the same in another order."""

    before: Digits
    """The digits of the one number, major to minor."""
    after: Digits
    """The same digits, one by one, of the other."""

    @classmethod
    def of(cls, numbers: Positions) -> Transposition | None:
        """From 0, 1, 2, … to these numbers; None where they follow no digits.

        >>> Transposition.of(np.array([0, 2, 1, 3])).after
        Digits([Digit(stride=1, size=2), Digit(stride=2, size=2)])
        """
        total = len(numbers)
        before: list[Digit] = []
        after: list[Digit] = []
        stride, rebuilt = 1, np.zeros(1, dtype=np.int64)
        while stride < total:
            step = int(numbers[stride])
            along = numbers[::stride]
            wrong = np.flatnonzero(along != np.arange(len(along), dtype=np.int64) * step)
            size = int(wrong[0]) if len(wrong) else len(along)
            if size < 2 or total % (stride * size):
                return None
            rebuilt = (np.arange(size, dtype=np.int64)[:, None] * step + rebuilt[None, :]).ravel()
            before.append(Digit(stride, size))
            after.append(Digit(step, size))
            stride *= size
        return cls(Digits(before[::-1]), Digits(after[::-1])) if np.array_equal(rebuilt, numbers) else None

    def parts_of(self, digits: Digits) -> Digits:
        """The parts of digits of the first number that lie inside one of its own each, as digits of the second."""
        return Digits(
            Digit(after.stride * (part.stride // before.stride), part.size)
            for digit in digits
            for before, after in zip(self.before, self.after, strict=True)
            for part in Digits((digit,)).within(before)
        )

    def reversed(self) -> Transposition:
        """From the second number to the first."""
        pairs = sorted(zip(self.after, self.before, strict=True), reverse=True)
        return Transposition(Digits(after for after, _ in pairs), Digits(before for _, before in pairs))
