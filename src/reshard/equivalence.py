"""Whether two shardings, named however, put the same elements on the same devices.

Where both list the devices in one order their digits mostly tell; else tiles are compared one by one.

>>> from reshard.digits import Digit, Digits
>>> x, y = Digits([Digit(2, 2)]), Digits([Digit(1, 2)])
>>> rows, columns = (Layout(dims, Digits(), 4) for dims in (((x,), (y,)), ((y,), (x,))))
>>> same_by_digits(rows, rows, (4, 4)), same_by_digits(rows, columns, (4, 4)), same_by_digits(rows, columns, (1, 1))
(True, False, None)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reshard.digits import Positions
from reshard.layout import Layout
from reshard.refinement import refine
from reshard.tile import Span, Tile


def same_by_digits(ours: Layout, theirs: Layout, shape: Sequence[int]) -> bool | None:
    """Whether two layouts of devices in one order give each the same tiles; None where digits do not tell."""
    common = refine(ours, theirs, shape)
    if common is not None and common.source_roles == common.target_roles:
        return True
    is_even = all(size and size % (ours.shards(dim) * theirs.shards(dim)) == 0 for dim, size in enumerate(shape))
    if common is not None and is_even and not ours.weaves and not theirs.weaves:
        return False
    is_plain = 0 not in shape and not (ours.has_windows or theirs.has_windows)
    if is_plain and ours.local_shape(shape) != theirs.local_shape(shape):
        return False  # the largest tiles are not alike
    return None


def same_placement(layouts: tuple[Layout, Layout], devices: tuple[Positions, Positions], shape: Sequence[int]) -> bool:
    """Whether two layouts over devices in some order give each the same tiles, unreduced over the same devices."""
    orders = [np.argsort(ids) for ids in devices]
    if not np.array_equal(devices[0][orders[0]], devices[1][orders[1]]):
        return False
    if layouts[0].is_summed != layouts[1].is_summed:
        return False
    boxes = _numbered_tiles(layouts, orders, shape) if any(layout.weaves for layout in layouts) else []
    for layout, positions in zip(layouts, orders, strict=True) if not boxes else ():
        bounds = layout.bounds(shape, positions)
        box = np.stack([edge for pair in bounds for edge in pair] or [np.zeros_like(positions)], axis=1)
        box[np.logical_or.reduce([start >= stop for start, stop in bounds], axis=0) if bounds else slice(0)] = -1
        boxes.append(box)
    if not np.array_equal(boxes[0], boxes[1]):
        return False
    classes = [
        _labels(np.stack([*boxes[0].T, *(digit.value(positions) for digit in layout.unreduced)], axis=1))
        for layout, positions in zip(layouts, orders, strict=True)
    ]
    both = _labels(np.stack(classes, axis=1))
    return int(both.max()) == int(classes[0].max()) == int(classes[1].max())


def _numbered_tiles(layouts: Sequence[Layout], orders: Sequence[Positions], shape: Sequence[int]) -> list[Positions]:
    """Per layout the tiles at some positions by numbers that are equal where what they store and own is equal."""
    numbers: dict[object, int] = {}
    columns = []
    for layout, positions in zip(layouts, orders, strict=True):
        keys: list[object] = []
        for tile in (layout.tile(position, shape) for position in positions.tolist()):
            spans = tile.spans if isinstance(tile, Tile) else tuple(Span((run,), (run,), run[1]) for run in tile)
            keys.append(None if tile.is_empty else tuple(map(_stored, spans)))
        columns.append(np.array([[numbers.setdefault(key, len(numbers))] for key in keys], dtype=np.int64))
    return columns


def _stored(span: Span) -> tuple[object, ...]:
    """What a device has of a dim; beyond the ends it has what it goes round to, or nothing."""
    goes_round = span.wraps and any(start < 0 or stop > span.size for start, stop in span.stored)
    return span.stored, span.owned, goes_round


def _labels(rows: Positions) -> Positions:
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
