"""A tensor in regions small enough to be in memory, and the pieces of an exchange that lie in each.

A region is a run of the tensor in row-major order: one index in some leading dims, an interval in the next one, and
all of the rest.
So what a file holds of a region is a run of that file, and regions in their order run through every file from its
begin to its end: whatever the two shardings, files are read and written in long runs.
Copying tile by tile has no such order: a tile of one column, cut out of a file of rows, is one element per run.

>>> [str(region) for region in regions(Box([(0, 4), (0, 6)]), 12)]
['[0, 2) x [0, 6)', '[2, 4) x [0, 6)']
>>> [str(region) for region in regions(Box([(0, 2), (0, 6)]), 4)]
['[0, 1) x [0, 3)', '[0, 1) x [3, 6)', '[1, 2) x [0, 3)', '[1, 2) x [3, 6)']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.digits import Positions
from reshard.exchange import Piece

REGION_BYTES = 2**24
"""Bytes of a region at the most."""
PIECES_AT_ONCE = 2**17
"""Pieces that are held in memory at the most, beside those of one device."""


def regions(box: Box, elements: int) -> Iterator[Box]:
    """A box in regions of up to so many elements, in row-major order; none where it is empty."""
    if box.is_empty:
        return
    shape = box.shape
    inner = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    split = next((dim for dim, size in enumerate(inner) if size <= elements), len(shape) - 1)
    start, stop = box[split]
    intervals = -(-(stop - start) // max(1, elements // inner[split]))
    step = -(-(stop - start) // intervals)
    along = [(low, min(low + step, stop)) for low in range(start, stop, step)]
    outer = [range(low, high) for low, high in box[:split]]
    for leading in product(*outer):
        for interval in along:
            yield Box([*((index, index + 1) for index in leading), interval, *box[split + 1 :]])


@dataclass(frozen=True, slots=True)
class Pieces:
    """What comes into some devices, as a table, a row each: sender, number of the device, starts, stops.

    The rows of a device stand together and in the order in which its pieces arrive.
    """

    devices: tuple[int, ...]
    boxes: Positions
    """Per device, the starts and then the stops of its tile."""
    rows: Positions

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return int(self.boxes.shape[1]) // 2

    def hull(self) -> Box:
        """The smallest box around all tiles that are not empty."""
        full = self.boxes[(self.boxes[:, : self.ndim] < self.boxes[:, self.ndim :]).all(axis=1)]
        if not len(full):
            return Box([(0, 0)] * self.ndim)
        return Box(
            zip(full[:, : self.ndim].min(axis=0).tolist(), full[:, self.ndim :].max(axis=0).tolist(), strict=True)
        )

    def within(self, region: Box) -> Iterator[tuple[int, Box, list[tuple[int, Box]]]]:
        """Per device whose tile has a part in a region: the device, the part, and the pieces of it with senders."""
        low, high = np.array(list(region), dtype=np.int64).T
        tiles, has_part = _clipped(self.boxes, low, high)
        clipped, arrives = _clipped(self.rows[:, 2:], low, high)
        rows, clipped = self.rows[arrives], clipped[arrives]
        ends = np.searchsorted(rows[:, 1], np.arange(len(self.devices) + 1))
        for number in np.flatnonzero(has_part).tolist():
            begin, end = int(ends[number]), int(ends[number + 1])
            senders = rows[begin:end, 0].tolist()
            boxes = [_box(row) for row in clipped[begin:end].tolist()]
            yield self.devices[number], _box(tiles[number].tolist()), list(zip(senders, boxes, strict=True))


def piece_tables(
    devices: Sequence[int], tile: Callable[[int], Box], incoming: Callable[[int], Iterable[Piece]]
) -> Iterator[Pieces]:
    """The pieces that come into all devices, in tables of bounded size.

    Args:
        devices: who receives.
        tile: where the tile of a device lies.
        incoming: its pieces, boxes of as many dims.
    """
    names: list[int] = []
    boxes: list[Positions] = []
    tables: list[Positions] = []
    count = 0
    for device in devices:
        box = np.array(list(tile(device)), dtype=np.int64)
        rows = [
            (piece.sender, len(names), *(start for start, _ in piece.box), *(stop for _, stop in piece.box))
            for piece in incoming(device)
        ]
        names.append(device)
        boxes.append(box.T.ravel())
        tables.append(np.array(rows, dtype=np.int64).reshape(len(rows), 2 + box.size))
        count += len(rows)
        if count >= PIECES_AT_ONCE:
            yield Pieces(tuple(names), np.stack(boxes), np.concatenate(tables))
            names, boxes, tables, count = [], [], [], 0
    if names:
        yield Pieces(tuple(names), np.stack(boxes), np.concatenate(tables))


def _clipped(boxes: Positions, low: Positions, high: Positions) -> tuple[Positions, NDArray[np.bool_]]:
    """What lies between `low` and `high` of each box, and whether that is anything."""
    ndim = len(low)
    start, stop = np.maximum(boxes[:, :ndim], low), np.minimum(boxes[:, ndim:], high)
    return np.concatenate([start, stop], axis=1), np.all(start < stop, axis=1)


def _box(row: list[int]) -> Box:
    ndim = len(row) // 2
    return Box(zip(row[:ndim], row[ndim:], strict=True))
