r"""A report of `reshard inspect` as tables for a terminal.

What stands in them is what `print` of the report shows; here is how it is laid out.

>>> from reshard.xla.report import inspect_texts
>>> text = "HloModule m, num_partitions=2\nENTRY e {\n  p = f32[4] parameter(0)\n}\n"
>>> print(draw_report(inspect_texts([("m.txt", text)]), width=60))
read
<BLANKLINE>
text    module   form                  lines   devices
──────────────────────────────────────────────────────
m.txt   m        before partitioning       4         2
<BLANKLINE>
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.xla.report import Report
from reshard.xla.report.sections import FIGURES, MOST_ROWS, sections

if TYPE_CHECKING:
    from rich.console import Group


def draw_report(report: Report, *, width: int) -> str:
    """The tables as text of so many columns, without colours."""
    from rich.console import Console  # noqa: PLC0415  # loads with the first table, not with the package

    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(report_group(report))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def report_group(report: Report) -> Group:
    """What is printed of a report: a title and a table or lines per section."""
    from rich import box  # noqa: PLC0415  # loads with the first table, not with the package
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    parts: list[Text | Table] = []
    for section in sections(report):
        parts += [Text(section.title, style="bold"), Text()]
        if section.rows:
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
            for title in section.head:
                right = title in FIGURES
                table.add_column(title, justify="right" if right else "left", no_wrap=right, overflow="fold")
            for row in section.rows[:MOST_ROWS]:
                table.add_row(*map(Text, row))  # as Text, for brackets are no markup here
            parts += [table, Text()]
        if len(section.rows) > MOST_ROWS:
            parts.append(Text(f"… and {len(section.rows) - MOST_ROWS} more; --json has them all"))
        parts += [Text(f"  {line}") for line in section.lines]
        parts += [Text()] if section.lines else []
    return Group(*parts)
