"""A tensor in its frame with the devices that hold its tiles, and devices in rows.

By hand, a matrix cut in two by rows, the second half held twice:

>>> tiles = frame_tiles({(((0, 1), (0, 4)),): (0,), (((1, 2), (0, 4)),): (1, 2)})
>>> [(tile.label, tile.badge, tile.title) for tile in tiles]
[('0', '', '[0, 1) x [0, 4): device 0'), ('1 2', '×2', '[1, 2) x [0, 4): devices 1 2')]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TypeVar

from reshard.drawing.markup import Markup, tag
from reshard.drawing.tensor_frame import FrameTile, TensorFrame, content_cells, draw_frame

B = TypeVar("B", bound=Sequence[Sequence[tuple[int, int]]])
"""The boxes of a tile."""

NAMED = 4
"""The most devices that a tile names."""
LISTED = 24
"""The most that its title names."""
CELL = 34
"""The side of a device among devices, in pixels."""
SHOWN = 1024
"""The most devices that are drawn in rows."""


def frame_tiles(tiles: Mapping[B, Sequence[int]], classes: int = 1) -> list[FrameTile]:
    """Tiles with their devices written on them.

    Args:
        tiles: per tile, the boxes that it is made of, who holds it.
        classes: of how many parts each tile is the sum, which its holders share.
    """
    drawn = []
    for number, (boxes, devices) in enumerate(tiles.items()):
        copies = len(devices) // max(classes, 1)
        badges = [f"×{copies}"] if copies > 1 else []
        badges += [f"Σ{classes}"] if classes > 1 else []
        place = " and ".join(box_text(box) for box in boxes) or "nothing"
        who = f"device{'s' if len(devices) > 1 else ''} {named(devices, LISTED)}"
        sums = f"; a part each, {classes} make the value" if classes > 1 else ""
        title = f"{place}: {who}{sums}"
        drawn.append(FrameTile(boxes, named(devices, NAMED), " ".join(badges), title, str(number)))
    return drawn


def named(devices: Sequence[int], most: int) -> str:
    """Some devices, and how many more.

    >>> named([0, 1, 2, 3, 4, 5], 4), named([0, 1], 4)
    ('0 1 2 +3', '0 1')
    """
    if len(devices) <= most:
        return " ".join(map(str, devices))
    return " ".join([*map(str, devices[: most - 1]), f"+{len(devices) - most + 1}"])


def box_text(box: Sequence[tuple[int, int]]) -> str:
    """A box as it prints."""
    return " x ".join(f"[{start}, {stop})" for start, stop in box) or "()"


def cuts_of(boxes: Iterable[Sequence[tuple[int, int]]], ndim: int) -> list[list[int]]:
    """Per dim where boxes begin and end, in order."""
    cuts: list[set[int]] = [set() for _ in range(ndim)]
    for box in boxes:
        for ends, interval in zip(cuts, box, strict=True):
            ends.update(interval)
    return [sorted(ends) for ends in cuts]


def inner_cuts(boxes: Iterable[Sequence[tuple[int, int]]], shape: Sequence[int]) -> list[list[int]]:
    """Per dim where boxes begin and end inside a tensor."""
    pairs = zip(cuts_of(boxes, len(shape)), shape, strict=True)
    return [[cut for cut in points if 0 < cut < size] for points, size in pairs]


def draw_held(shape: Sequence[int], tiles: Mapping[B, Sequence[int]], classes: int, title: str) -> Markup:
    """A tensor whose tiles have a colour each and say who holds them."""
    cuts = inner_cuts((box for boxes in tiles for box in boxes), shape)
    return draw_frame(TensorFrame.of(shape, cuts), content_cells(shape, cuts), frame_tiles(tiles, classes), title)


def draw_devices(axes: Sequence[tuple[str, int]], devices: Sequence[int], title: str) -> Markup:
    """Devices in the rows of a mesh, the last axes to the right; of many the first rows."""
    columns = columns_for([size for _, size in axes], len(devices))
    shown = devices[:SHOWN]
    names = " x ".join(f"{name}={size}" for name, size in axes) or "one device"
    marks = [tag("text", names, x=2, y=12, class_="small")]
    for number, device in enumerate(shown):
        x, y = 2 + number % columns * CELL, 20 + number // columns * CELL
        marks.append(tag("rect", x=x, y=y, width=CELL - 3, height=CELL - 3, rx=3, class_="cell"))
        marks.append(tag("text", str(device), x=x + CELL / 2 - 1.5, y=y + 20, class_="small middle"))
    rows = -(-len(shown) // columns)
    tall = 22 + rows * CELL
    if len(shown) < len(devices):
        marks.append(tag("text", f"and {len(devices) - len(shown)} more", x=2, y=tall + 10, class_="small"))
        tall += 14
    wide = max(columns * CELL + 4, 7 * len(names))
    return tag(
        "svg", tag("title", title), *marks, viewBox=f"0 0 {wide} {tall}", width=wide, height=tall, role="img",
        class_="chart",
    )  # fmt: skip


def columns_for(sizes: Sequence[int], count: int) -> int:
    """In how many columns the devices of a mesh stand: the last axes whole, about as wide as high.

    >>> columns_for([2, 4], 8), columns_for([2, 8, 4, 4], 256), columns_for([1000], 1000), columns_for([], 1)
    (4, 16, 32, 1)
    """
    most = 32 if count <= SHOWN else 128
    columns = 1
    for place in range(len(sizes)):
        wide = prod(sizes[place:])
        if wide <= most and (wide * wide <= 2 * count or place == len(sizes) - 1):
            columns = wide
            break
    else:
        columns = min(most, count)
    return max(columns, 1)
