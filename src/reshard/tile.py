"""A tile of several boxes: where what the array of a device holds lies in its tensor.

In each dim an array holds runs of the tensor one after the other, so a tile is the product of the runs of its dims.
Nearly every tile is one `Box`; a `Tile` answers the same questions where it is more, or where a window wraps or is
padded, so that an element may lie at several places of the array, and places of the array in no element.

By hand, 8 elements on 2 devices with a border of 1 that goes round: device 0 stores 7, 0-3, 4.

>>> tile = Tile((Span(((-1, 5),), ((0, 4),), 8, wraps=True),))
>>> tile.shape, tile.boxes()
((6,), (Box([(7, 8)]), Box([(0, 5)])))
>>> tile.places(Box([(6, 8)])), tile.owned_place(Box([(0, 4)]))
([((slice(0, 1, None),), (slice(1, 2, None),))], (slice(1, 5, None),))
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from reshard.box import Box
from reshard.errors import ReshardError

Interval = tuple[int, int]


class Span(NamedTuple):
    """What an array holds of one dim, in order."""

    stored: tuple[Interval, ...]
    """The runs; below 0 and beyond the size they go round, or hold nothing of the tensor."""
    owned: tuple[Interval, ...]
    """Those that the device owns."""
    size: int
    """The number of elements of the dim."""
    wraps: bool = False
    has_borders: bool = False
    """Whether each stored run is one that is owned, in the same order, with a border around it."""

    @property
    def length(self) -> int:
        """The number of elements of the array."""
        return sum(stop - start for start, stop in self.stored)

    def inside(self) -> list[Interval]:
        """The stored runs as runs of the tensor."""
        runs: list[Interval] = []
        for start, stop in self.stored:
            for turn in self._turns(start, stop):
                low, high = max(start - turn, 0), min(stop - turn, self.size)
                runs += [(low, high)] if low < high else []
        return runs

    def indices(self) -> list[int]:
        """Per place of the array, which element of the tensor it holds; -1 for none."""
        elements = [place for start, stop in self.stored for place in range(start, stop)]
        if self.wraps and self.size:
            return [place % self.size for place in elements]
        return [place if 0 <= place < self.size else -1 for place in elements]

    def places(self, start: int, stop: int) -> list[tuple[slice, slice]]:
        """Where the elements of an interval lie in the array, and which of them."""
        places, offset = [], 0
        for first, last in self.stored:
            for turn in self._turns(first, last):
                low, high = max(start + turn, first), min(stop + turn, last)
                if low < high:
                    base = start + turn
                    places.append((slice(offset + low - first, offset + high - first), slice(low - base, high - base)))
            offset += last - first
        return places

    def runs_of(self, start: int, stop: int) -> list[Interval]:
        """An interval, cut into runs that lie side by side in the array, each where it comes first.

        >>> Span(((-1, 5),), ((0, 2),), 4, wraps=True).runs_of(2, 4)
        [(3, 4), (2, 3)]
        """
        runs: list[Interval] = []
        for _, part in self.places(start, stop):
            left = [(start + part.start, start + part.stop)]
            for low, high in runs:
                sides = [side for begin, end in left for side in ((begin, min(end, low)), (max(begin, high), end))]
                left = [(begin, end) for begin, end in sides if begin < end]
            runs += left
        return runs

    def owned_place(self, start: int, stop: int) -> slice:
        """Where an interval that is owned lies in the array.

        Raises:
            ReshardError: `bad-window` where the window leaves a part of it out.
        """
        offset = 0
        for (first, last), core in zip(self.stored, self.owned if self.has_borders else self.stored, strict=True):
            if core[0] <= start and stop <= core[1]:
                return slice(offset + start - first, offset + stop - first)
            offset += last - first
        raise ReshardError("bad-window", f"a window that leaves out a part of the owned [{start}, {stop}) is no source")

    def _turns(self, start: int, stop: int) -> range:
        """How far to move the tensor to find it under a run."""
        if not self.wraps or not self.size:
            return range(1)
        return range(start // self.size * self.size, stop, self.size)


@dataclass(frozen=True, slots=True)
class Tile:
    """What the array of a device holds."""

    spans: tuple[Span, ...]
    """Per dim."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        return tuple(span.length for span in self.spans)

    @property
    def size(self) -> int:
        """The number of elements of the array."""
        return prod(self.shape)

    @property
    def is_empty(self) -> bool:
        """Whether it holds no element."""
        return self.size == 0

    def boxes(self) -> tuple[Box, ...]:
        """The boxes of the tensor that it holds, in the order in which they are stored, the last dim fastest."""
        return tuple(map(Box, product(*(span.inside() for span in self.spans))))

    def owned_boxes(self) -> tuple[Box, ...]:
        """The boxes that the device owns."""
        return tuple(map(Box, product(*(span.owned for span in self.spans))))

    def places(self, box: Box) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """Where the elements of a box lie in the array: an index there each, and which part of the box it is."""
        each = [span.places(*interval) for span, interval in zip(self.spans, box, strict=True)]
        return [(tuple(there for there, _ in way), tuple(part for _, part in way)) for way in product(*each)]

    def boxes_of(self, box: Box) -> list[Box]:
        """A box, cut into those that lie side by side in the array, each where it comes first."""
        if box.is_empty:
            return [box]
        return [
            Box(runs) for runs in product(*(span.runs_of(*ends) for span, ends in zip(self.spans, box, strict=True)))
        ]

    def owned_place(self, box: Box) -> tuple[slice, ...]:
        """Where a box that the device owns lies in the array.

        Raises:
            ReshardError: `bad-window` where a window leaves out a part of it.
        """
        return tuple(span.owned_place(*interval) for span, interval in zip(self.spans, box, strict=True))
