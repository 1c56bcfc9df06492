"""Half-open boxes: where a tile lies in its tensor.

A `Box` is one interval `(start, stop)` per dim, as a tuple, so it compares, hashes and prints as one.
A tile that holds nothing in a dim of size n lies at `(n, n)` there: an empty box has one spelling per dim.

>>> tile = Box([(0, 4), (2, 8)])
>>> tile.shape, tile.size
((4, 6), 24)
>>> tile.intersect(Box([(2, 6), (0, 3)]))
Box([(2, 4), (2, 3)])
>>> Box([(2, 4), (2, 3)]).slices(tile)
(slice(2, 4, None), slice(0, 1, None))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod


class Box(tuple[tuple[int, int], ...]):
    """One half-open interval per dim; the box of a scalar has none and holds one element."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Box({list(self)!r})"

    def __str__(self) -> str:
        return " x ".join(f"[{start}, {stop})" for start, stop in self) or "scalar"

    def __getnewargs__(self) -> tuple[list[tuple[int, int]]]:
        return (list(self),)

    @classmethod
    def whole(cls, shape: Iterable[int]) -> Box:
        """The box of the whole tensor.

        >>> Box.whole((2, 3))
        Box([(0, 2), (0, 3)])
        """
        return cls((0, size) for size in shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements per dim."""
        return tuple(stop - start for start, stop in self)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(stop - start for start, stop in self)

    @property
    def is_empty(self) -> bool:
        """Whether it holds no element."""
        return any(start >= stop for start, stop in self)

    def intersect(self, other: Box) -> Box:
        """The elements in both; where there are none, a box with an empty interval."""
        return Box(
            (low, max(low, min(a_stop, b_stop)))
            for (a_start, a_stop), (b_start, b_stop) in zip(self, other, strict=True)
            for low in (max(a_start, b_start),)
        )

    def without(self, other: Box) -> list[Box]:
        """Boxes of the elements that are not in another, dim by dim what lies before it and behind it.

        >>> Box([(0, 4), (0, 4)]).without(Box([(1, 4), (2, 4)]))
        [Box([(0, 1), (0, 4)]), Box([(1, 4), (0, 2)])]
        """
        both = self.intersect(other)
        if self.is_empty or both.is_empty:
            return [] if self.is_empty else [self]
        boxes, sides = list[Box](), list(self)
        for dim, (low, high) in enumerate(both):
            start, stop = sides[dim]
            for side in ((start, low), (high, stop)):
                if side[0] < side[1]:
                    boxes.append(Box([*sides[:dim], side, *sides[dim + 1 :]]))
            sides[dim] = (low, high)
        return boxes

    def contains(self, other: Box) -> bool:
        """Whether every element of `other` is in this box."""
        return other.is_empty or all(
            a_start <= b_start and b_stop <= a_stop
            for (a_start, a_stop), (b_start, b_stop) in zip(self, other, strict=True)
        )

    def within(self, tile: Box) -> Box:
        """The same elements, counted from the corner of a tile.

        >>> Box([(2, 4), (2, 3)]).within(Box([(0, 4), (2, 8)]))
        Box([(2, 4), (0, 1)])
        """
        return Box((start - base, stop - base) for (start, stop), (base, _) in zip(self, tile, strict=True))

    def slices(self, tile: Box | None = None) -> tuple[slice, ...]:
        """Index of this box in an array that holds a tile (the whole tensor if not given)."""
        return tuple(slice(start, stop) for start, stop in (self if tile is None else self.within(tile)))

    def boxes(self) -> tuple[Box, ...]:
        """The boxes of the tensor that an array of this one holds: itself."""
        return (self,)

    owned_boxes = boxes

    def places(self, box: Box) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """Where the elements of a box lie in an array of this one: its index there, and which part of the box it is."""
        return [(box.slices(self), (slice(None),) * len(box))]

    def owned_place(self, box: Box) -> tuple[slice, ...]:
        """Index of a box that is owned in an array of this one."""
        return box.slices(self)


def is_one_run(piece: Sequence[int], tile: Sequence[int]) -> bool:
    """Whether a piece of a tile, both given by their shapes, lies in memory without gaps, the last dim fastest.

    >>> [is_one_run(piece, (4, 6)) for piece in [(2, 6), (1, 3), (2, 3)]]
    [True, True, False]
    """
    return run_size(piece, tile) == prod(piece)


def run_size(piece: Sequence[int], tile: Sequence[int]) -> int:
    """How many elements of a piece of a tile, both given by their shapes, lie in memory without a gap between them.

    >>> [run_size(piece, (4, 6)) for piece in [(2, 6), (1, 3), (2, 3)]]
    [12, 3, 3]
    """
    size = 1
    for part, whole in zip(reversed(piece), reversed(tile), strict=True):
        size *= part
        if part != whole:
            break
    return min(size, prod(piece))
