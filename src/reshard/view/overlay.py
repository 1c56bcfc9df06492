r"""A grid of regions, with the index of every line at its edge.

Widths and heights are in proportion where that fits, with a `+` at each unit of height.

>>> print("\n".join(draw_overlay([[0, 2, 3], [0, 1, 2]], lambda i, j: "abcd"[2 * i + j], 40, 20)))
  0   1   2
0 +---+---+
  |   |   |
  + a + b +
  |   |   |
2 +---+---+
  | c | d |
3 +---+---+
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from reshard.view.limits import ELLIPSIS, MAX_ALONG, MAX_CELLS, missing, shown


def draw_overlay(cuts: Sequence[Sequence[int]], label: Callable[..., str], max_width: int, max_lines: int) -> list[str]:
    """The lines of a grid.

    Args:
        cuts: for none, one or two dims the indices of its lines, from 0 to its size.
        label: what stands in a region, given its number per dim.
        max_width: columns; a grid that does not fit is not in proportion, and one that still does not leaves
            regions out, which lines at its end say.
        max_lines: lines.
    """
    rank = len(cuts)
    row_cuts, column_cuts = cuts[0] if rank == 2 else [0, 1], cuts[-1] if rank else [0, 1]

    def of_numbers(row: int, column: int) -> str:
        return label(*(row, column)[2 - rank :])

    row_count, column_count = len(row_cuts) - 1, len(column_cuts) - 1
    is_crowded = row_count * column_count > MAX_CELLS
    margin = len(str(row_cuts[-1])) + 1 if rank == 2 else 0
    margin += len(str(column_cuts[-1])) - 1  # the last index stands to the right of its line
    above = 1 if rank else 0
    rows = _DrawnSide(row_cuts, row_count)
    if is_crowded or 2 * row_count + 1 + above > max_lines:
        rows = _DrawnSide(row_cuts, max(1, min(row_count, MAX_ALONG, (max_lines - 3 - above) // 2)))
    limits = [*([] if is_crowded else [column_count]), *range(min(column_count, MAX_ALONG), 0, -1)]
    for limit in limits:
        columns = _DrawnSide(column_cuts, limit)
        widths = [  # that of the widest label or of the index above it
            max(len(str(index)), *(len(_text(of_numbers, row, column)) + 2 for row in rows.entries()))
            for column, index in zip(columns.entries(), columns.lines_at(), strict=False)
        ]
        if sum(widths) + len(widths) + 1 + margin <= max_width:
            break
    heights = [1] * len(rows.entries())
    scaled_rows = [2 * units - 1 for units in rows.units()]
    scaled_columns = [units * (max(widths) + 1) - 1 for units in columns.units()]
    rows_to_scale = rows.limit == row_count and sum(scaled_rows) + row_count + 1 + above <= max_lines
    columns_to_scale = columns.limit == column_count and sum(scaled_columns) + column_count + 1 + margin <= max_width
    grid = _Grid(
        rank,
        rows,
        columns,
        of_numbers,
        scaled_rows if rows_to_scale else heights,
        scaled_columns if columns_to_scale else widths,
        (rows_to_scale or len(set(rows.units())) == 1) and (columns_to_scale or len(set(columns.units())) == 1),
    )
    return [*grid.lines(), *grid.notes()]


@dataclass(frozen=True, slots=True)
class _DrawnSide:
    """The regions of one dim that are drawn."""

    cuts: Sequence[int]
    limit: int
    """How many are drawn, an ellipsis for the others."""

    @property
    def count(self) -> int:
        return len(self.cuts) - 1

    def entries(self) -> list[int | None]:
        return shown(self.count, self.limit)

    def units(self) -> list[int]:
        """The length of each region in the largest unit that measures all."""
        lengths = [stop - start for start, stop in zip(self.cuts, self.cuts[1:], strict=False)]
        unit = gcd(*lengths)
        return [length // unit for length in lengths]

    def lines_at(self) -> list[int]:
        """The index of each line that is drawn."""
        indices = [0]
        for number, after in zip(self.entries(), [*self.entries()[1:], None], strict=True):
            indices.append(self.cuts[number + 1] if number is not None else self.cuts[-1 if after is None else after])
        return indices


@dataclass(frozen=True, slots=True)
class _Grid:
    """What is drawn, and how large."""

    rank: int
    rows: _DrawnSide
    columns: _DrawnSide
    label: Callable[..., str]
    heights: list[int]
    widths: list[int]
    is_to_scale: bool

    def lines(self) -> Iterator[str]:
        """The grid."""
        beside = len(str(self.rows.cuts[-1])) + 1 if self.rank == 2 else 0
        frame = "+" + "+".join("-" * width for width in self.widths) + "+"
        if self.rank:
            places = "".join(
                str(index).ljust(width + 1)
                for index, width in zip(self.columns.lines_at(), [*self.widths, 0], strict=True)
            )
            yield " " * beside + places.rstrip()
        edges = [f"{index} ".rjust(beside) if self.rank == 2 else "" for index in self.rows.lines_at()]
        yield edges[0] + frame
        for row, height, edge in zip(self.rows.entries(), self.heights, edges[1:], strict=True):
            labels = [_text(self.label, row, column) for column in self.columns.entries()]
            for number in range(height):
                bar = "+" if number % 2 else "|"
                texts = labels if number == height // 2 else [""] * len(labels)
                cells = [text.center(width) for text, width in zip(texts, self.widths, strict=True)]
                yield " " * beside + bar + bar.join(cells) + bar
            yield edge + frame

    def notes(self) -> list[str]:
        """What the grid does not show."""
        sides = [self.rows, self.columns][2 - self.rank :]
        drawn = list(enumerate(sides))
        left_out = [f"dim {dim}: {missing(side.count, side.limit)}" for dim, side in drawn if side.limit < side.count]
        if left_out:
            return [f"left out: regions {', '.join(left_out)}, counted from 0"]
        return [] if self.is_to_scale else ["not to scale"]


def _text(label: Callable[..., str], row: int | None, column: int | None) -> str:
    return ELLIPSIS if row is None or column is None else label(row, column)
