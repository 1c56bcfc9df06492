"""Charts as static SVG: bars with lines across, points, a matrix, a treemap, arcs beside a table.

Every mark has a title that a pointer shows, and every chart stands beside the figures that it draws.
Sizes are pixels; colours of text and lines come from the page's style, so that a dark page has them too.

>>> chart = bars(["0", "1"], {"AllGather": [8, 4]}, str, lines=[LimitLine("bound", 8)])
>>> chart.count("<rect"), "bound 8" in chart  # two bars, and the ground of a name
(3, True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from reshard.drawing.markup import Markup, tag
from reshard.drawing.palette import colour

FigureText = Callable[[float], str]
"""How a figure is written."""

HEIGHT = 220
LEFT, RIGHT, TOP, BOTTOM = 8, 12, 14, 34
"""What is left beside the plot for names."""
NARROW, WIDE = 320, 640
"""The width of a plot of few bars, which a telephone has room for, and of many."""
LETTER = 6.6
"""How wide a letter of a small text is."""


class LimitLine(NamedTuple):
    """A line across a chart: a bound, a limit."""

    name: str
    value: float


class Point(NamedTuple):
    """A point of a chart."""

    name: str
    x: float
    y: float
    chosen: bool = False


class Area(NamedTuple):
    """A part of a treemap."""

    name: str
    size: float
    group: int = 0
    """Those of one group have one colour."""
    note: str = ""


def _svg(title: str, width: float, height: float, *parts: Markup) -> Markup:
    return tag(
        "svg", tag("title", title), *parts, viewBox=f"0 0 {round(width)} {round(height)}", width=round(width),
        height=round(height), role="img", class_="chart",
    )  # fmt: skip


def bars(
    names: Sequence[str],
    stacks: Mapping[str, Sequence[float]],
    text: FigureText,
    *,
    lines: Sequence[LimitLine] = (),
    title: str = "bars",
) -> Markup:
    """A bar per name, of one part per stack, and lines across.

    Args:
        names: below the bars, as many as there is room for.
        stacks: per part, how much of it each bar has.
        text: how a figure is written.
        lines: across all bars.
        title: what it shows.
    """
    totals = [sum(column) for column in zip(*stacks.values(), strict=True)] or [0.0]
    largest = max([*totals, *(line.value for line in lines)], default=0) or 1
    plot = min(max(NARROW, 20 * len(names)), WIDE), HEIGHT - TOP - BOTTOM
    step = plot[0] / max(len(names), 1)
    floor = TOP + plot[1]
    marks = [tag("line", x1=LEFT, x2=LEFT + plot[0], y1=floor, y2=floor, class_="axis")]
    heights = [0.0] * len(names)
    for kind, (part, values) in enumerate(stacks.items()):
        for number, value in enumerate(values):
            tall = plot[1] * value / largest
            if tall > 0:
                top, wide = floor - heights[number] - tall, min(max(step * 0.8, min(step, 1.0)), 90.0)
                says = tag("title", f"{names[number]}: {part} {text(value)}")
                fill = colour(kind, min(len(stacks), 8))
                x = LEFT + number * step + (step - wide) / 2
                marks.append(tag("rect", says, x=x, y=top, width=wide, height=tall, fill=fill))
                heights[number] += tall
    every = max(1, -(-len(names) * 34 // plot[0]), -(-max(map(len, names), default=0) * 7 // max(round(step), 1)))
    for number in range(0, len(names), every):
        x = LEFT + (number + 0.5) * step
        marks.append(tag("text", names[number], x=x, y=floor + 14, class_="small middle"))
    marks += _lines(lines, floor, plot, largest, text)
    below = _legend(list(stacks), plot[0]) if len(stacks) > 1 else []
    return _svg(title, LEFT + plot[0] + RIGHT, HEIGHT + 15 * max(len(below) - 1, 0), *marks, *below)


def _lines(
    lines: Sequence[LimitLine], floor: float, plot: tuple[int, int], largest: float, text: FigureText
) -> list[Markup]:
    """The lines, with names at their left ends that do not stand on one another."""
    marks, last = [], HEIGHT * 2.0
    for line in sorted(lines, key=lambda line: line.value):
        y = floor - plot[1] * line.value / largest
        at = last = min(y + 4, last - 16)
        name = f"{line.name} {text(line.value)}"
        marks.append(tag("line", x1=LEFT, x2=LEFT + plot[0], y1=y, y2=y, class_="limit"))
        marks.append(tag("rect", x=LEFT + 2, y=at - 11, width=LETTER * len(name) + 8, height=15, rx=3, class_="plate"))
        marks.append(tag("text", name, x=LEFT + 6, y=at, class_="small"))
    return marks


def _legend(names: Sequence[str], width: int) -> list[Markup]:
    """Which colour is which part, a group per row."""
    rows: list[list[Markup]] = [[]]
    x = float(LEFT)
    for number, name in enumerate(names):
        wide = 24 + LETTER * len(name)
        if x + wide > LEFT + width and rows[-1]:
            rows.append([])
            x = float(LEFT)
        y = HEIGHT - 11 + 15 * (len(rows) - 1)
        rows[-1].append(tag("rect", x=x, y=y, width=9, height=9, fill=colour(number, min(len(names), 8))))
        rows[-1].append(tag("text", name, x=x + 13, y=y + 8, class_="small"))
        x += wide
    return [tag("g", *row) for row in rows]


def points(
    values: Sequence[Point], x_text: FigureText, y_text: FigureText, axes: tuple[str, str], title: str
) -> Markup:
    """Points with their names, which are best short; those chosen are full, the others rings."""
    largest = max(value.x for value in values) or 1, max(value.y for value in values) or 1
    plot = NARROW - 20, HEIGHT - TOP - BOTTOM
    floor = TOP + plot[1]
    marks = [
        tag("line", x1=LEFT, x2=LEFT + plot[0], y1=floor, y2=floor, class_="axis"),
        tag("line", x1=LEFT, x2=LEFT, y1=TOP, y2=floor, class_="axis"),
        tag("text", f"{axes[0]}, 0 to {x_text(largest[0])}", x=LEFT, y=floor + 16, class_="small"),
        tag("text", f"{axes[1]}, 0 to {y_text(largest[1])}", x=LEFT + 4, y=TOP - 3, class_="small"),
    ]
    taken: list[tuple[float, float]] = []
    centres = [(LEFT + plot[0] * one.x / largest[0], floor - plot[1] * one.y / largest[1]) for one in values]
    for value, (x, y) in zip(values, centres, strict=True):
        says = tag("title", f"{value.name}: {x_text(value.x)}, {y_text(value.y)}")
        marks.append(tag("circle", says, cx=x, cy=y, r=5, class_="chosen" if value.chosen else "other"))
        left = 9 + max(right for right, other in centres if abs(y - other) < 10 and 0 <= right - x < 16)
        while any(abs(y - other) < 10 and abs(left - used) < LETTER * len(value.name) + 6 for used, other in taken):
            left += LETTER * len(value.name) + 6
        taken.append((left, y))
        marks.append(tag("text", value.name, x=left, y=y + 4, class_="small"))
    return _svg(title, LEFT + plot[0] + 60, HEIGHT, *marks)


def matrix(
    names: Sequence[str], values: Sequence[Sequence[float]], text: FigureText, *,
    title: str, borders: Iterable[int] = (), written: bool = False,
) -> Markup:  # fmt: skip
    """Values as the strength of a colour, the largest full; those of 0 are left empty.

    Args:
        names: of the rows and of the columns alike.
        values: a row per name.
        text: how a figure is written.
        title: what it shows.
        borders: before which rows and columns a line is drawn.
        written: whether figures stand in the cells.
    """
    room = max((len(text(value)) for row in values for value in row), default=0) * LETTER if written else 0
    cell = round(room) + 14 if written else max(5, min(26, (NARROW if len(names) <= 16 else 540) // max(len(names), 1)))
    tall = 26 if written else cell
    longest = max(map(len, names), default=0)
    left, top = 10 + 7 * longest, 24
    largest = max((value for row in values for value in row), default=0) or 1
    marks = []
    for number, row in enumerate(values):
        for place, value in enumerate(row):
            says = tag("title", f"{names[number]} to {names[place]}: {text(value)}")
            x, y = left + place * cell, top + number * tall
            strength = 0.12 + 0.88 * value / largest if value else 0.0
            marks.append(
                tag("rect", says, x=x, y=y, width=cell - 0.5, height=tall - 0.5, class_="heat", fill_opacity=strength)
            )
            if written:
                marks.append(tag("rect", x=x + 4, y=y + 5, width=cell - 8.5, height=16, rx=3, class_="plate"))
                marks.append(tag("text", text(value), x=x + cell / 2, y=y + 17, class_="small middle"))
    for number, name in enumerate(names):
        if tall >= 11 or number % (-(-11 // tall)) == 0:
            marks.append(tag("text", name, x=left - 5, y=top + number * tall + tall / 2 + 4, class_="small end"))
    every = max(1, -(-(7 * max(map(len, names), default=0) + 4) // cell))
    marks += [
        tag("text", names[number], x=left + number * cell + cell / 2, y=top - 6, class_="small middle")
        for number in range(0, len(names), every)
    ]
    wide, high = cell * len(names), tall * len(names)
    for border in borders:
        marks.append(
            tag("line", x1=left + border * cell, x2=left + border * cell, y1=top, y2=top + high, class_="host")
        )
        marks.append(
            tag("line", x1=left, x2=left + wide, y1=top + border * tall, y2=top + border * tall, class_="host")
        )
    return _svg(title, left + wide + 4, top + high + 4, *marks)


def treemap(areas: Iterable[Area], text: FigureText, *, title: str, width: int = 820, height: int = 340) -> Markup:
    """Areas as large as what they stand for, the largest first; rows as square as can be.

    The rows are those of Bruls, Huizing and van Wijk, Squarified Treemaps, 2000.
    """
    ordered = sorted((area for area in areas if area.size > 0), key=lambda area: (-area.size, area.name))
    scale = width * height / (sum(area.size for area in ordered) or 1)
    x, y, wide, tall = 0.0, 0.0, float(width), float(height)
    marks: list[Markup] = []
    groups = max((area.group for area in ordered), default=0) + 1
    while ordered:
        side = min(wide, tall)
        row = _row(ordered, side, scale)
        thick = sum(area.size for area in row) * scale / max(side, 1e-9)
        at = 0.0
        for area in row:
            long = area.size * scale / max(thick, 1e-9)
            rect = (x, y + at, thick, long) if wide >= tall else (x + at, y, long, thick)
            marks += _area(area, rect, groups, text)
            at += long
        if wide >= tall:
            x, wide = x + thick, wide - thick
        else:
            y, tall = y + thick, tall - thick
        ordered = ordered[len(row) :]
    return _svg(title, width, height, *marks)


def _row(areas: Sequence[Area], side: float, scale: float) -> Sequence[Area]:
    """As many of the first areas as make a row that is no longer than needed."""

    def worst(count: int) -> float:
        sizes = [area.size * scale for area in areas[:count]]
        thick = sum(sizes) / max(side, 1e-9)
        return max(max(thick * thick / size, size / (thick * thick)) for size in sizes)

    count = 1
    while count < len(areas) and worst(count + 1) <= worst(count):
        count += 1
    return areas[:count]


def _area(area: Area, rect: tuple[float, float, float, float], groups: int, text: FigureText) -> list[Markup]:
    x, y, wide, tall = rect
    says = tag("title", f"{area.name}: {text(area.size)}{area.note and ', ' + area.note}")
    marks = [tag("rect", says, x=x, y=y, width=wide, height=tall, fill=colour(area.group, groups), class_="area")]
    room = int((wide - 22) / LETTER)
    if tall >= 20 and room >= 4:
        name = area.name if len(area.name) <= room else "…" + area.name[-room + 1 :]
        marks.append(tag("rect", x=x + 4, y=y + 3, width=LETTER * len(name) + 8, height=16, rx=3, class_="plate"))
        marks.append(tag("text", name, x=x + 8, y=y + 15, class_="small"))
    return marks


def arcs(count: int, pairs: Iterable[tuple[int, int]], row: int, width: int = 90) -> Markup:
    """Which of so many rows, one below the other, takes what another makes: curves from maker to user."""
    curves = []
    for maker, user in sorted(set(pairs)):
        first, last = (maker + 0.5) * row, (user + 0.5) * row
        reach = width - 4 - min(width - 10, 8 + 7.0 * abs(user - maker) ** 0.5 * 2)
        path = f"M{width},{first:.1f} C{reach:.1f},{first:.1f} {reach:.1f},{last:.1f} {width},{last:.1f}"
        curves.append(tag("path", d=path, class_="arc", data_from=maker, data_to=user))
    return _svg("who takes what another makes", width, count * row, *curves)
