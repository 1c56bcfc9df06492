"""The plain table of a placed program: one line per value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.plans.table import bytes_text
from reshard.tables import Table, plain

if TYPE_CHECKING:
    from reshard.propagation.placement import Placement

TITLES = ("value", "made by", "shape", "sharding", "local shape", "received", "why")


def table(placement: Placement) -> str:
    """The values in the order in which they are made, and the figures of the whole."""
    rows = [TITLES]
    for operation in placement.operations:
        value = operation.result
        sharding = placement.shardings[value]
        plan = placement.plans.get(value)
        times = f"{operation.trip_count} x " if operation.trip_count != 1 else ""
        received = "" if plan is None else times + bytes_text(plan.received_bytes)
        kind = operation.name if plan is None or not plan.steps else " + ".join(step.kind for step in plan.steps)
        operands = ", ".join(operand.name for operand in operation.operands)
        rows.append(
            (
                value.name,
                f"{kind}({operands})" if operands else kind,
                " x ".join(map(str, value.shape)) or "scalar",
                sharding.text(),
                " x ".join(map(str, sharding.local_shape(value.shape))) or "scalar",
                received,
                placement.reasons[value.name],
            )
        )
    seconds = "" if placement.seconds is None else f", {placement.seconds * 1e6:.1f} us"
    reshards = "1 reshard" if len(placement.plans) == 1 else f"{len(placement.plans)} reshards"
    figures = (
        f"{reshards}, received {bytes_text(placement.received_bytes)} on the busiest device of each{seconds}; "
        f"peak {bytes_text(placement.peak_bytes)}"
    )
    named = [f"{name} ({count})" for name, count in sorted(placement.without_rule.items())]
    opaque = [f"without a rule, whole on every device: {', '.join(named)}"] if named else []
    return plain([Table(rows), "", figures, *opaque])
