"""A mesh, drawn with what each of its devices holds.

The last axis runs to the right and the one before it downwards; every axis before those stacks what is drawn so
far downwards once more.
To the right of the cells a bar with an arrow spans one run of each downward axis.
An axis that is alone runs downwards where it cuts a dim other than the last, and to the right otherwise, so that
the tiles of a matrix lie as they lie in the matrix.

By hand, 2 x 4 on x=2, y=2 with `[{"y"}, {"x"}]`: device (x=0, y=1) holds row 2 and the columns 1 and 2.

>>> from reshard.mesh import Mesh
>>> print(draw_contents(Sharding.of(Mesh.of(x=2, y=2), "y", "x"), (2, 4)))
"y"=2
----------->
+-------+-------+  "x"=2 |
| 11 12 | 21 22 |        |
+-------+-------+        |
| 13 14 | 23 24 |        |
+-------+-------+        ↓
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from reshard.axis import Axis, quote
from reshard.checks import checked_shape
from reshard.errors import ReshardError
from reshard.sharding import Sharding
from reshard.tile import Tile
from reshard.view.limits import (
    ELLIPSIS,
    MAX_ALONG,
    MAX_CELLS,
    MAX_ELEMENTS,
    MAX_LINES,
    MAX_WIDTH,
    checked_limits,
    checked_sharding,
    missing,
    partial_note,
    shown,
)

ARROW = "----------->"
DOWN = "↓"
EMPTY = "(empty)"
PADDED = "."
"""What stands where a window reaches beyond the tensor."""
SMALL = 16
"""Where devices are left out, tiles of up to so many elements may be drawn with them, larger ones as boxes."""

Cell = list[str | list[str]]
"""What stands in a cell: lines, and rows of elements that are yet to be aligned."""
Item = list[Cell] | str | None
"""A part of a drawing: a row of cells, a line between two grids, or None for the line that frames a row."""


def draw_contents(
    sharding: Sharding,
    shape: Sequence[int],
    values: ArrayLike | None = None,
    *,
    order: Sequence[str] | None = None,
    max_width: int = MAX_WIDTH,
    max_lines: int = MAX_LINES,
) -> str:
    """The mesh of a sharding with the elements that each device holds.

    Elements are labelled by their index, counted from 1: 23 is row 2, column 3; where a size is over 9, `2,3`.
    A tile of several boxes is drawn as it is stored, one run after the other, and `.` stands for what is padded.
    A tile of more than two dims is drawn as its matrices, each under its leading indices, counted from 1 too.
    Where device ids are given, each cell names its device.
    A drawing that would be too large shows boxes in place of elements (`[0:512, 512:1024]`, Python's slices,
    counted from 0), and where that is too large leaves devices out; a line below the drawing says so.
    Limits too small for any drawing are exceeded.

    Args:
        sharding: who holds what.
        shape: the shape of the tensor.
        values: what to write for each element, an array of that shape.
        order: the names of all axes as they are drawn, the last to the right; the mesh's order if not given.
        max_width: columns of text.
        max_lines: lines of text, not counting those below the drawing.

    Raises:
        ReshardError: `rank-mismatch`, `bad-shape`, `too-large`; `unknown-axis` for a name in `order`;
            `bad-argument`.

    >>> from reshard.mesh import Mesh
    >>> print(draw_contents(Sharding.of(Mesh.of(x=2), "x", None), (1024, 1024)))
    +--------------------+  "x"=2 |
    | [0:512, 0:1024]    |        |
    +--------------------+        |
    | [512:1024, 0:1024] |        |
    +--------------------+        ↓
    <BLANKLINE>
    boxes stand for the elements: start:stop per dim, counted from 0
    """
    layout = checked_sharding(sharding).layout_for(shape)
    checked_limits(max_width, max_lines)
    sizes, axes = checked_shape(shape), sharding.mesh.sizes
    text_of = _labels(sizes) if values is None else _texts(values, sizes)
    scene = _Scene(sharding, sizes, text_of, *_directions(sharding, order), dict.fromkeys(axes, MAX_CELLS))
    scenes = [scene, scene.turned()] if len(axes) == 1 else [scene]
    tile = prod(layout.local_shape(sizes))
    if sharding.mesh.size <= MAX_CELLS:
        kinds = [False, True] if sharding.mesh.size * tile <= MAX_ELEMENTS else [True]
        for drawing in [replace(turn, as_boxes=as_boxes) for as_boxes in kinds for turn in scenes]:
            if _fits(lines := drawing.render(), max_width, max_lines):
                return "\n".join(lines + drawing.notes())
    tall = next((turn for turn in scenes if turn.down), scene)
    kinds = [True] if tile > SMALL else [False, True]
    fitted = [replace(tall, as_boxes=as_boxes).fitted(max_width, max_lines) for as_boxes in kinds]
    largest = max(fitted, key=_Scene.drawn)
    return "\n".join(largest.render() + largest.notes())


def _directions(sharding: Sharding, order: Any) -> tuple[str | None, tuple[str, ...]]:
    """The axis that runs to the right, and those that run downwards, the outermost first."""
    sizes = sharding.mesh.sizes
    names: tuple[Any, ...] = tuple(sizes)
    if order is not None:
        names = tuple(order) if isinstance(order, Iterable) else ()
        unknown = [name for name in names if isinstance(name, str) and name not in sizes]
        if unknown:
            raise ReshardError("unknown-axis", f"axis {quote(unknown[0])} is not in mesh {sharding.mesh}")
        if len(names) != len(sizes) or any(name not in names for name in sizes):
            raise ReshardError(
                "bad-argument", f"order must name every axis of mesh {sharding.mesh} once, got: {order!r}"
            )
    if not names:
        return None, ()
    cuts_last = any(dim.axes for dim in sharding.dims[-1:])
    if len(names) == 1 and not cuts_last and any(dim.axes for dim in sharding.dims):
        return None, names
    return names[-1], names[:-1]


def _labels(shape: tuple[int, ...]) -> Callable[[tuple[int, ...]], str]:
    separator = "," if max(shape, default=0) > 9 else ""
    return lambda index: separator.join(str(i + 1) for i in index) or "()"


def _texts(values: ArrayLike, shape: tuple[int, ...]) -> Callable[[tuple[int, ...]], str]:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ReshardError("bad-argument", f"values must be an array: {error}") from None
    if array.shape != shape:
        raise ReshardError("bad-argument", f"values have shape {array.shape}; they must have the tensor's, {shape}")

    def text(index: tuple[int, ...]) -> str:
        value: Any = array[index]
        value = value.item() if isinstance(value, np.generic) else value
        plain = f"{value:g}" if isinstance(value, float) else str(value)
        return plain if plain.isascii() and plain.isprintable() else ascii(plain)[1:-1]

    return text


def _fits(lines: list[str], max_width: int, max_lines: int) -> bool:
    return len(lines) <= max_lines and max(map(len, lines)) <= max_width


@dataclass(frozen=True, slots=True)
class _Scene:
    """What is drawn, which axis runs where, and how much of it."""

    sharding: Sharding
    shape: tuple[int, ...]
    text_of: Callable[[tuple[int, ...]], str]
    """What to write for the element at an index."""
    right: str | None
    """The axis that runs to the right."""
    down: tuple[str, ...]
    """The axes that run downwards: the last in the rows of a grid, those before it from grid to grid."""
    limits: dict[str, int]
    """Per axis, how many of its entries are drawn."""
    as_boxes: bool = False
    """Whether boxes stand for the elements."""

    def turned(self) -> _Scene:
        """The one axis in the other direction."""
        if self.right is None:
            return replace(self, right=self.down[0], down=())
        return replace(self, right=None, down=(self.right,))

    def limited(self, limits: dict[str, int]) -> _Scene:
        """The same with other limits for some axes."""
        return replace(self, limits={**self.limits, **limits})

    def entries(self, name: str) -> list[int | None]:
        """The entries of an axis that are drawn."""
        return shown(self.sharding.mesh.sizes[name], self.limits[name])

    def stride(self, name: str) -> int:
        """How far apart the positions of neighbours along an axis are."""
        return self.sharding.mesh.digit_of(Axis(name)).stride

    def cell(self, position: int) -> Cell:
        """What stands in the cell of a position."""
        mesh = self.sharding.mesh
        tile = self.sharding.layout_for(self.shape).tile(position, self.shape)
        named: Cell = [] if mesh.device_ids is None else [f"device {mesh.device_at(position)}"]
        if tile.is_empty:
            return [*named, EMPTY]
        if self.as_boxes:
            return [*named, *(f"[{', '.join(f'{start}:{stop}' for start, stop in box)}]" for box in tile.boxes())]
        if isinstance(tile, Tile):
            return [*named, *_elements([span.indices() for span in tile.spans], self.text_of)]
        return [*named, *_elements([range(start, stop) for start, stop in tile], self.text_of)]

    def items(self) -> tuple[list[Item], dict[str, int]]:
        """The drawing from above to below, and for each downward axis the number of items in its first run."""
        runs: dict[str, int] = {}

        def row(start: int | None) -> list[Cell]:
            if self.right is None:
                return [[ELLIPSIS] if start is None else self.cell(start)]
            stride = self.stride(self.right)
            return [
                [ELLIPSIS] if start is None or along is None else self.cell(start + along * stride)
                for along in self.entries(self.right)
            ]

        def stack(down: tuple[str, ...], start: int) -> list[Item]:
            if not down:
                return [None, row(start), None]
            name, *inner = down
            items: list[Item] = [] if inner else [None]
            for along in self.entries(name):
                at = None if along is None else start + along * self.stride(name)
                if not inner:
                    items += [row(at), None]
                    continue
                items += [""] if items and len(inner) > 1 else []
                items += [ELLIPSIS] if at is None else stack(tuple(inner), at)
            runs.setdefault(name, len(items))
            return items

        return stack(self.down, 0), runs

    def render(self) -> list[str]:
        """The lines of the drawing."""
        items, runs = self.items()
        rows = [item for item in items if isinstance(item, list)]
        pad = max(
            (len(text) for row in rows for cell in row for line in cell if isinstance(line, list) for text in line),
            default=0,
        )
        widths = [max(len(_line(line, pad)) for row in rows for line in row[column]) for column in range(len(rows[0]))]
        frame = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
        lines: list[str] = []
        ends = [0]
        for item in items:
            if isinstance(item, list):
                for number in range(max(map(len, item))):
                    texts = [_line(cell[number], pad) if number < len(cell) else "" for cell in item]
                    lines.append(
                        "| " + " | ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)) + " |"
                    )
            else:
                lines.append(frame if item is None else item)
            ends.append(len(lines))
        for name in reversed(self.down):  # beside what its first run spans, a bar
            end, width, label = ends[runs[name]], max(len(frame), len(lines[0])), self._label(name)
            bars = [f"{label} |", *[" " * len(label) + " |"] * (end - 2), " " * len(label) + " " + DOWN]
            bars += [" " * len(bars[0])] * (len(lines) - end)
            lines = [f"{line.ljust(width)}  {bar}" for line, bar in zip(lines, bars, strict=True)]
        above = [] if self.right is None else [self._label(self.right), ARROW]
        return above + [line.rstrip() for line in lines]

    def _label(self, name: str) -> str:
        return f"{quote(name)}={self.sharding.mesh.sizes[name]}"

    def drawn(self) -> int:
        """The number of devices that are drawn."""
        return prod(min(size, self.limits[name]) for name, size in self.sharding.mesh.axes)

    def fitted(self, max_width: int, max_lines: int) -> _Scene:
        """The same with such limits that the drawing fits, or nearly does where nothing fits."""
        sizes = self.sharding.mesh.sizes
        fewest = 2 if prod(min(sizes[name], 2) for name in self.down) <= MAX_ALONG else 1
        scene = self.limited(dict.fromkeys(sizes, fewest))
        if self.right is not None:
            for limit in range(min(sizes[self.right], MAX_ALONG), 0, -1):
                scene = scene.limited({self.right: limit})
                if limit == 1 or max(map(len, scene.render())) <= max_width:
                    break
        for limit in range(min(max((sizes[name] for name in self.down), default=1), MAX_ALONG), 0, -1):
            scene = scene.limited(dict.fromkeys(self.down, limit))
            rows = prod(len(scene.entries(name)) for name in self.down)
            cells = rows * (1 if self.right is None else len(scene.entries(self.right)))
            if cells <= MAX_CELLS and 2 * rows < max_lines and _fits(scene.render(), max_width, max_lines):
                break
        return scene

    def notes(self) -> list[str]:
        """The lines below the drawing."""
        sizes = self.sharding.mesh.sizes
        left_out = [
            f"{quote(name)} {missing(size, limit)}"
            for name, size in sizes.items()
            if (limit := self.limits[name]) < size
        ]
        notes = partial_note(self.sharding, "each device")
        if self.as_boxes:
            notes.append("boxes stand for the elements: start:stop per dim, counted from 0")
        if left_out:
            notes.append(
                f"left out: {', '.join(left_out)}; {self.drawn()} of {self.sharding.mesh.size} devices are drawn"
            )
        return ["", *notes] if notes else []


def _elements(indices: Sequence[Sequence[int]], text_of: Callable[[tuple[int, ...]], str]) -> Cell:
    """The lines of a tile, each a list of elements or the heading of a matrix.

    Args:
        indices: per dim which elements are stored, in order; -1 where nothing of the tensor is.
        text_of: what to write for an element.
    """

    def text(index: tuple[int, ...]) -> str:
        return PADDED if -1 in index else text_of(index)

    lines: Cell = []
    for leading in product(*indices[:-2]):
        if leading:
            lines.append(f"-- {','.join(PADDED if i < 0 else str(i + 1) for i in leading)} --")
        for last in product(*indices[-2:-1]):
            lines.append([text((*leading, *last, *index)) for index in product(*indices[-1:])])
    return lines


def _line(line: str | list[str], pad: int) -> str:
    return line if isinstance(line, str) else " ".join(text.rjust(pad) for text in line)
