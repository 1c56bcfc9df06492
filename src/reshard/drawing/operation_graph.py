"""Operations one below the other, with curves from who makes a value to who takes it.

A graph that is drawn as a table keeps its order, is read by its words, and is searched by a field above it.

>>> rows = [GraphRow(["x", "input"]), GraphRow(["y", "add(x)"], takes=[0])]
>>> drawn = graph(("value", "made by"), rows, "operations")
>>> drawn.count("<tr>"), drawn.count("<path"), 'data-from="0"' in drawn
(3, 1, True)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from reshard.drawing.charts import arcs
from reshard.drawing.markup import Markup, tag

ROW = 27
"""The height of a row, in pixels; rows do not wrap."""
MOST_ARCS = 1500
"""The most operations whose curves are drawn."""


class GraphRow(NamedTuple):
    """One operation."""

    cells: Sequence[str]
    takes: Sequence[int] = ()
    """The rows whose values it takes."""
    is_marked: bool = False
    """Whether it is one that the page is about."""


def search_field(name: str) -> Markup:
    """A field whose words the rows of all graphs and tables of this name must hold."""
    return tag("p", tag("input", type="search", placeholder="search", aria_label="search", data_filters=name))


def graph(titles: Sequence[str], rows: Sequence[GraphRow], name: str) -> Markup:
    """Rows with their curves, for a field of this name to search."""
    head = tag("tr", *(tag("th", title, scope="col") for title in titles))
    body = [
        tag("tr", *(tag("td", cell) for cell in row.cells), class_="bold" if row.is_marked else None) for row in rows
    ]
    table = tag("table", tag("thead", head), tag("tbody", *body), data_filtered=name)
    parts = [table] if len(rows) > MOST_ARCS else [_curves(rows), table]
    return tag("div", *parts, class_="scroll graph", tabindex="0")


def _curves(rows: Sequence[GraphRow]) -> Markup:
    pairs: Iterable[tuple[int, int]] = ((maker, user) for user, row in enumerate(rows) for maker in row.takes)
    return tag("div", arcs(len(rows), pairs, ROW), class_="arcs", aria_hidden="true")
