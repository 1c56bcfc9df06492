"""Tables, and lines beside them: as plain text, and as a terminal shows them.

Whoever has something to show says it once, as blocks: lines, lines in a style, tables.
`plain` sets the columns of a table under one another; `drawn` does it with rules, folding and colours, by a library
that loads with the first one.

>>> blocks = [("two devices", "bold"), Table([("device", "bytes"), ("first", "8"), ("second", "1024")], {"bytes"})]
>>> print(plain(blocks))
two devices
device  bytes
first       8
second   1024
>>> print(drawn(blocks, width=40))
two devices
device   bytes
──────────────
first        8
second    1024
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import Group


class Table(NamedTuple):
    """Rows of cells, of which the first is the titles."""

    rows: Sequence[Sequence[str]]
    figures: Container[str] = ()
    """The titles of the columns that hold figures, which stand to the right."""

    def lines(self) -> list[str]:
        """The rows as plain text, columns two blanks apart."""
        columns = []
        for column in zip(*self.rows, strict=True):
            width = max(map(len, column))
            columns.append([cell.rjust(width) if column[0] in self.figures else cell.ljust(width) for cell in column])
        return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


Passage = str | tuple[str, str] | Table
"""A line, a line and its style, or a table."""


def plain(blocks: Iterable[Passage]) -> str:
    """The blocks as plain text, without styles."""
    lines: list[str] = []
    for block in blocks:
        lines += block.lines() if isinstance(block, Table) else [block if isinstance(block, str) else block[0]]
    return "\n".join(lines)


def group(blocks: Iterable[Passage]) -> Group:
    """The blocks as a terminal shows them."""
    from rich import box  # noqa: PLC0415  # loads with the first table, not with the package
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    items: list[Text | RichTable] = []
    for block in blocks:
        if not isinstance(block, Table):
            items.append(Text(block) if isinstance(block, str) else Text(*block))
            continue
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        titles, *rows = block.rows
        for title in titles:
            right = title in block.figures
            table.add_column(title, justify="right" if right else "left", no_wrap=right, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))  # as Text, for brackets are no markup here
        items.append(table)
    return Group(*items)


def drawn(blocks: Iterable[Passage], *, width: int | None = None) -> str:
    """What a terminal of so many columns shows, without colours."""
    from rich.console import Console  # noqa: PLC0415  # loads with the first table, not with the package

    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(group(blocks))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def show(blocks: Iterable[Passage]) -> None:
    """Print the blocks on the terminal."""
    from rich.console import Console  # noqa: PLC0415  # loads with the first table, not with the package

    Console().print(group(blocks))


def rate_text(bandwidth: float) -> str:
    """Bytes per second to read.

    >>> rate_text(450e9), rate_text(8)
    ('450 GB/s', '8 bytes/s')
    """
    return f"{bandwidth / 1e9:.4g} GB/s" if bandwidth >= 1e7 else f"{bandwidth:.4g} bytes/s"


def bytes_text(count: int) -> str:
    """A number of bytes to read: exact below 10 KiB and wherever a unit divides it, else to 4 digits.

    >>> bytes_text(96), bytes_text(65536), bytes_text(10**9)
    ('96 B', '64 KiB', '953.7 MiB')
    """
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        size = 1024**power
        if count >= 10 * size or (count >= size and count % size == 0):
            return f"{count // size} {unit}" if count % size == 0 else f"{count / size:.4g} {unit}"
    return f"{count} B"
