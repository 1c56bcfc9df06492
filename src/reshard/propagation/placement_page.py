"""The page of a placed program: its graph with every sharding and reshard, bytes by operation, memory over time."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from reshard.drawing.charts import LimitLine, bars
from reshard.drawing.markup import Markup, joined, tag
from reshard.drawing.operation_graph import GraphRow, graph, search_field
from reshard.drawing.shell import PageSection, copyable, figure, page
from reshard.errors import ReshardError
from reshard.notation import to_partition_spec
from reshard.plans.plan_page import bytes_of
from reshard.propagation.memory import tile_bytes
from reshard.tables import bytes_text

if TYPE_CHECKING:
    from reshard.propagation.placement import Placement

BARS = 40


def placement_page(placed: Placement) -> str:
    """The text of the page."""
    *_, figures, proof = placed.table().rstrip().splitlines()
    inputs = sum(operation.name == "input" for operation in placed.operations)
    title = f"a program of {len(placed.operations) - inputs} operations on {placed.mesh}"
    sections = [
        PageSection("graph", "Operations, shardings, reshards", _graph(placed)),
        PageSection("bytes", "Bytes by operation", [_bytes(placed)]),
        PageSection("memory", "Memory over time", [_memory(placed)]),
        PageSection(
            "text",
            "As text",
            [
                copyable("every reshard as a call", _calls(placed)),
                copyable("the program, placed", placed.text()),
                copyable("table", placed.table()),
            ],
        ),
    ]
    return page(title, sections, lead=[tag("p", figures), tag("p", proof)])


def _calls(placed: Placement) -> str:
    """Every reshard as a call in JAX, where a spec can say both its ends."""
    lines = []
    for operation in placed.operations:
        plan = placed.plans.get(operation.result)
        if plan is not None and plan.steps:
            with suppress(ReshardError):
                ends = to_partition_spec(plan.target), to_partition_spec(plan.source)
                call = f"rs.jax.reshard({operation.operands[0].name}, {ends[0]}, source={ends[1]})"
                lines.append(f"{operation.result.name} = {call}")
    return "\n".join(lines) or "no reshard"


def placement_drawing(placed: Placement) -> Markup:
    """Bytes and memory, for a notebook."""
    return joined(_bytes(placed), _memory(placed))


def _graph(placed: Placement) -> list[Markup]:
    """A row for each operation, with curves from who makes a value to who takes it."""
    titles = ("value", "made by", "shape", "sharding", "local shape", "received", "tile", "why")
    places = {operation.result: number for number, operation in enumerate(placed.operations)}
    rows = []
    for operation in placed.operations:
        value, sharding = operation.result, placed.shardings[operation.result]
        plan = placed.plans.get(value)
        kind = operation.name if plan is None or not plan.steps else " + ".join(step.kind for step in plan.steps)
        operands = ", ".join(operand.name for operand in operation.operands)
        times = f"{operation.trip_count} × " if operation.trip_count != 1 and plan is not None else ""
        cells = [
            value.name,
            f"{kind}({operands})",
            " x ".join(map(str, value.shape)) or "scalar",
            sharding.text(),
            " x ".join(map(str, sharding.local_shape(value.shape))) or "scalar",
            "" if plan is None else times + bytes_text(plan.received_bytes),
            bytes_text(tile_bytes(value, sharding)),
            placed.reasons[value.name],
        ]
        takes = [places[operand] for operand in operation.operands if operand in places]
        rows.append(GraphRow(cells, takes, plan is not None))
    return [search_field("operations"), graph(titles, rows, "operations")]


def _bytes(placed: Placement) -> Markup:
    """The reshards that receive most."""
    moved = [(value, placed.received(value)) for value, plan in placed.plans.items() if plan.steps]
    largest = sorted(moved, key=lambda pair: (-pair[1], pair[0].number))[:BARS]
    names = [value.name for value, _ in largest]
    drawn = bars(names or ["none"], {"received": [count for _, count in largest] or [0]}, bytes_of, title="received")
    more = f"; the first {BARS} of {len(moved)}" if len(moved) > BARS else ""
    return figure(f"bytes that the busiest device receives in each reshard, over all turns{more}", drawn)


def _memory(placed: Placement) -> Markup:
    """What a device holds while each operation runs."""
    during = placed.held.during
    lines = [] if placed.memory_limit is None else [LimitLine("limit", placed.memory_limit)]
    names = [operation.result.name for operation in placed.operations]
    lines.append(LimitLine("peak", placed.peak_bytes))
    drawn = bars(names, {"held": list(during)}, bytes_of, lines=lines, title="memory of a device over time")
    return figure("bytes that a device holds while each operation runs, in order", drawn)
