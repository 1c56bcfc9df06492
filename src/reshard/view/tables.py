"""A plan as a table for a terminal, or as plain text for all else.

Both show the same: `Plan` says what stands in a row, here is how it is laid out.
The library that draws the table loads with the first one.

>>> from reshard.mesh import Mesh
>>> from reshard.planner import plan
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=2, y=4)
>>> print(draw_plan(plan(Sharding.of(mesh, "x", "y"), Sharding.of(mesh, "x", None), (8, 8)), width=80))
8 x 8 float32 on 8 devices
from  [{"x"}, {"y"}]
to    [{"x"}, {}]
<BLANKLINE>
    step        axes   rounds   received    peak   sharding
──────────────────────────────────────────────────────────────
1   AllGather   y           3       96 B   192 B   [{"x"}, {}]
<BLANKLINE>
received 96 B on the busiest device, 768 B in all; lower bound 96 B: exact
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.plans import FIGURES, Plan, table_head, table_rows, verdict

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


def draw_plan(plan: Plan, *, width: int) -> str:
    """The table as text of so many columns, without colours."""
    from rich.console import Console  # noqa: PLC0415  # loads with the first table, not with the package

    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(plan_group(plan))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def plan_group(plan: Plan) -> Group:
    """What is printed of a plan: what it is for, its steps, and what it receives against the bound."""
    from rich.console import Group  # noqa: PLC0415  # loads with the first table, not with the package
    from rich.text import Text  # noqa: PLC0415

    headline, source, target = str(plan).split("\n")[:3]
    exact = plan.received_bytes == plan.lower_bound_bytes
    body = plan_table(plan) if plan.steps else Text("nothing to do: both are one placement")
    return Group(
        Text(headline, style="bold"),
        Text(source),
        Text(target),
        Text(),
        body,
        Text(),
        Text(verdict(plan), style="green" if exact and plan.bound_kind == "exact" else ""),
    )


def plan_table(plan: Plan) -> Table:
    """The steps of a plan."""
    from rich import box  # noqa: PLC0415  # loads with the first table, not with the package
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("", *table_head(plan)):
        right = name in FIGURES  # figures stand to the right
        table.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for number, cells in enumerate(table_rows(plan), 1):
        table.add_row(str(number), *map(Text, cells))  # as Text, for brackets are no markup here
    return table
