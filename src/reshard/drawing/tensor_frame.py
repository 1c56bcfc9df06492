"""Where a box of a tensor of any rank lies in a drawing of two dims.

Dims that nothing cuts are left out, but for the last ones where fewer than two are cut.
Those that are left alternate from the last on: across, down, across, down.
Of the dims that run one way the last is drawn to scale, and those before it as layers: once per cell between two of
its cuts the drawing of those after it, a gap between them.

By hand, 4 x 4 x 8 with dim 0 cut at 2 and dim 2 at 4: dim 1 is left out, dim 2 runs across, dim 0 down.

>>> frame = TensorFrame.of((4, 4, 8), [(2,), (), (4,)])
>>> frame.across, frame.down, frame.left_out
((2,), (0,), (1,))
>>> frame.rects([(0, 2), (0, 4), (4, 8)])
[Rect(x=0.5, y=0.0, width=0.5, height=0.5)]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import NamedTuple

from reshard.drawing.markup import Markup, tag
from reshard.drawing.palette import colour

Lists = Sequence[Sequence[int]]

GAP = 0.06
"""Between two layers, as a part of a layer."""
LAYERS = 16
"""The most layers of a dim; the cells of one with more share them."""
CELLS = 32
"""The most cells of a dim that have a colour of their own."""
DRAWN = 1024
"""The most tiles that are drawn one by one."""
FINE = 4
"""A tile that is no wider or higher, in pixels, has no outline: lines alone would be seen."""


class Rect(NamedTuple):
    """A rectangle, as parts of the whole drawing."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class TensorFrame:
    """A drawing of a tensor: which dims run where, and where layers begin."""

    shape: tuple[int, ...]
    across: tuple[int, ...]
    """The dims that run to the right, the last to scale."""
    down: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]
    """Per dim where its layers begin and the last ends; for dims to scale, its two ends."""

    @classmethod
    def of(cls, shape: Sequence[int], cuts: Sequence[Iterable[int]]) -> TensorFrame:
        """The frame of a tensor that is cut at these places per dim."""
        inner = [sorted({cut for cut in points if 0 < cut < size}) for points, size in zip(cuts, shape, strict=True)]
        ndim = len(shape)
        cut = [dim for dim in range(ndim) if inner[dim]]
        uncut = [dim for dim in range(ndim) if not inner[dim]]
        shown = sorted([*cut, *uncut[::-1][: max(2 - len(cut), 0)]], reverse=True)
        across, down = tuple(shown[::2][::-1]), tuple(shown[1::2][::-1])
        scaled = {*across[-1:], *down[-1:]}
        layers = tuple(
            (0, shape[dim]) if dim in scaled else (0, *coarse(inner[dim], LAYERS - 1), shape[dim])
            for dim in range(ndim)
        )
        return cls(tuple(shape), across, down, layers)

    @property
    def left_out(self) -> tuple[int, ...]:
        """The dims that are not drawn."""
        return tuple(dim for dim in range(len(self.shape)) if dim not in (*self.across, *self.down))

    def rects(self, box: Sequence[tuple[int, int]]) -> list[Rect]:
        """Where a box lies, as parts of the drawing; one rectangle for each layer that it reaches."""
        return [
            Rect(left, top, right - left, bottom - top)
            for top, bottom in self._spans(self.down, box)
            for left, right in self._spans(self.across, box)
        ]

    def _spans(self, dims: tuple[int, ...], box: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
        spans = [(0.0, 1.0)]
        for dim in dims:
            (start, stop), size = box[dim], max(self.shape[dim], 1)
            if dim == dims[-1]:
                parts = [(start / size, stop / size)]
            else:
                layers = self.layers[dim]
                count = len(layers) - 1
                step = 1 / (count + GAP * (count - 1))
                parts = [
                    (number * step * (1 + GAP), number * step * (1 + GAP) + step)
                    for number in range(count)
                    if start < layers[number + 1] and stop > layers[number]
                ]
            spans = [
                (low + (high - low) * first, low + (high - low) * last) for low, high in spans for first, last in parts
            ]
        return spans

    def aspect(self) -> float:
        """Height over width, neither more than four times the other."""
        sides = []
        for dims in (self.down, self.across):
            layers = prod(len(self.layers[dim]) - 1 for dim in dims[:-1])
            sides.append(layers * (self.shape[dims[-1]] if dims else 1))
        if not self.down:
            return 0.25
        return min(max(sides[0] / max(sides[1], 1), 0.4), 1.6)


class FrameTile(NamedTuple):
    """A tile of a tensor, and what stands in it."""

    boxes: Sequence[Sequence[tuple[int, int]]]
    label: str
    """Which devices hold it."""
    badge: str = ""
    """How often it is held, or how many parts it is the sum of."""
    title: str = ""
    """What a pointer that rests on it is told."""
    key: str = ""
    """By which a script finds it."""


def coarse(points: Sequence[int], most: int) -> list[int]:
    """At most so many of some points, evenly chosen.

    >>> coarse([1, 2, 3, 4, 5, 6], 2), coarse([1, 2], 2)
    ([3, 6], [1, 2])
    """
    if len(points) <= most:
        return list(points)
    return [points[(number + 1) * len(points) // most - 1] for number in range(most)] if most else []


def content_cells(shape: Sequence[int], cuts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Per dim where contents of a colour of their own begin, and where the last ends; in all at most 1,024."""
    most = CELLS
    lists = [[0, *coarse(points, most - 1), size] for points, size in zip(cuts, shape, strict=True)]
    while prod(len(ends) - 1 for ends in lists) > CELLS**2:
        most //= 2
        lists = [[0, *coarse(points, most - 1), size] for points, size in zip(cuts, shape, strict=True)]
    return lists


def draw_frame(frame: TensorFrame, contents: Lists, tiles: Sequence[FrameTile], title: str, width: int = 300) -> Markup:
    """A tensor in its frame: contents in colours, tiles as outlines with their devices.

    Args:
        frame: which dims run where.
        contents: per dim where colours begin, and where the last ends.
        tiles: of more than `DRAWN` the first so many have outlines.
        title: what it shows, for those who do not see it.
        width: of the drawing, in pixels.
    """
    height = round(width * frame.aspect())
    parts = [_content(frame, contents, width, height)] if all(frame.shape) else []
    for tile in tiles[:DRAWN]:
        rects = [rect for box in tile.boxes for rect in frame.rects(box)]
        rects = [rect for rect in rects if min(rect.width * width, rect.height * height) > FINE]
        outlines = [_rect(rect, width, height, class_="tile") for rect in rects]
        if not rects:
            continue
        large = max(rects, key=lambda rect: (rect.width * rect.height, -rect.y, -rect.x))
        parts.append(
            tag(
                "g",
                *([tag("title", tile.title)] if tile.title else []),
                *outlines,
                *_label(tile, large, width, height),
                data_tile=tile.key or None,
            )
        )
    return tag(
        "svg", tag("title", title), *parts, viewBox=f"-1 -1 {width + 2} {height + 2}", width=width + 2,
        height=height + 2, role="img", class_="frame",
    )  # fmt: skip


def _content(frame: TensorFrame, contents: Lists, width: int, height: int) -> Markup:
    boxes: list[list[tuple[int, int]]] = [[]]
    for ends in contents:
        boxes = [[*box, pair] for box in boxes for pair in pairwise(ends)]
    fields = []
    for number, box in enumerate(boxes):
        fill = colour(number, len(boxes))
        fields += [_rect(rect, width, height, fill=fill) for rect in frame.rects(box)]
    return tag("g", *fields, class_="contents")


def _rect(rect: Rect, width: int, height: int, **attributes: str) -> Markup:
    return tag(
        "rect", x=rect.x * width, y=rect.y * height, width=rect.width * width, height=rect.height * height, **attributes
    )


def _label(tile: FrameTile, rect: Rect, width: int, height: int) -> list[Markup]:
    """Which devices, in the middle, and the badge in the corner, where there is room."""
    across, tall = rect.width * width, rect.height * height
    middle = rect.x * width + across / 2, rect.y * height + tall / 2
    parts = []
    text = tile.label if 7.4 * len(tile.label) + 6 <= across else tile.label.partition(" ")[0]
    if tall >= 13 and 7.4 * len(text) + 4 <= across:
        wide = 7.4 * len(text) + 6
        parts.append(tag("rect", x=middle[0] - wide / 2, y=middle[1] - 8, width=wide, height=16, rx=3, class_="plate"))
        parts.append(tag("text", text, x=middle[0], y=middle[1] + 4, class_="mono middle"))
    if tile.badge and tall >= 34 and 7 * len(tile.badge) + 8 <= across:
        wide, right = 7 * len(tile.badge) + 8, rect.x * width + across - 3
        top = rect.y * height + 3
        parts.append(tag("rect", x=right - wide, y=top, width=wide, height=15, rx=7, class_="badge"))
        parts.append(tag("text", tile.badge, x=right - wide / 2, y=top + 11, class_="small middle badge-text"))
    return parts


def content_colours(contents: Lists) -> list[str]:
    """The colour of every content cell, the last dim fastest."""
    count = prod(len(ends) - 1 for ends in contents)
    return [colour(number, count) for number in range(count)]
