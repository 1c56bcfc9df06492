"""A plan as text: the table that `print` shows, and its parts for other tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.errors import ReshardError
from reshard.sharding import Sharding
from reshard.steps import Step

if TYPE_CHECKING:
    from reshard.plans.plan import Plan

FIGURES = ("rounds", "received", "peak", "time")
"""The columns of a table that hold figures."""


def table_head(plan: Plan) -> list[str]:
    """The titles of the columns of a table of the plan; time is there where the plan has prices."""
    return ["step", "axes", "rounds", "received", "peak", *([] if plan.seconds is None else ["time"]), "sharding"]


def table_rows(plan: Plan) -> list[list[str]]:
    """Per step what a table shows of it, under `table_head`."""
    return [
        [
            step.kind,
            ", ".join(
                axis.name if axis.is_whole else f"{axis.name}:({axis.pre_size}){axis.size}" for axis in step.axes
            ),
            rounds_text(step),
            bytes_text(step.received_bytes),
            bytes_text(step.peak_bytes),
            *([] if seconds is None else [seconds_text(seconds)]),
            short(step.after, plan.source),
        ]
        for step, seconds in zip(plan.steps, plan.step_seconds or [None] * len(plan.steps), strict=True)
    ]


def rounds_text(item: Plan | Step) -> str:
    """The number of rounds; `many` where the pieces are too many to list."""
    rounds = counted(item)
    return "many" if rounds is None else str(rounds)


def seconds_text(seconds: float) -> str:
    """A time to read, to 3 digits.

    >>> seconds_text(0.0000123), seconds_text(2.5)
    ('12.3 us', '2.5 s')
    """
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def verdict(plan: Plan) -> str:
    """One line, or two: what the plan receives, against the bound; what it takes, where it has prices; and why."""
    time = "" if plan.seconds is None else f"takes {seconds_text(plan.seconds)}"
    second = "; ".join(part for part in (time, plan.reason) if part)
    return _against_bound(plan) + (f"\n{second}" if second else "")


def _against_bound(plan: Plan) -> str:
    received, bound = plan.received_bytes, plan.lower_bound_bytes
    text = f"received {bytes_text(received)} on the busiest device, {bytes_text(plan.total_received_bytes)} in all"
    if plan.bound_kind == "exact":
        return f"{text}; lower bound {bytes_text(bound)}: " + (
            "exact" if received == bound else f"{received / bound:.2f} times"
        )
    if plan.bound_kind == "unreduced":
        return f"{text}; the target is partial, so no bound is stated"
    total = plan.total_lower_bound_bytes
    times = plan.total_received_bytes / max(total, 1)
    return f"{text}; with partial values at least {bytes_text(total)} in all: {times:.2f} times"


def short(sharding: Sharding, beside: Sharding) -> str:
    """A sharding's text, with its mesh only where another stands beside it."""
    return sharding.text() if sharding.mesh == beside.mesh else f"mesh{sharding.mesh} {sharding.text()}"


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


def _devices(source: Sharding, target: Sharding) -> str:
    counts = (source.mesh.size, target.mesh.size)
    if (source.mesh.device_ids is None and target.mesh.device_ids is None) or source.mesh == target.mesh:
        return f"{max(counts)} device{'s' if max(counts) != 1 else ''}"
    return f"{counts[0]} devices to {counts[1]} devices"


def counted(item: Plan | Step) -> int | None:
    """The rounds; None where the pieces are too many to list."""
    try:
        return item.rounds
    except ReshardError:
        return None


def table(plan: Plan) -> str:
    """The plan as a table that a person can read aloud."""
    lines = [
        f"{' x '.join(map(str, plan.shape)) or 'scalar'} {plan.dtype} on {_devices(plan.source, plan.target)}",
        f"from  {short(plan.source, plan.target)}",
        f"to    {short(plan.target, plan.source)}",
        "",
    ]
    rows = [["", *table_head(plan)]]
    rows += [[str(number), *cells] for number, cells in enumerate(table_rows(plan), 1)]
    right = {column for column, title in enumerate(rows[0]) if title in FIGURES}
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows if plan.steps else []:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines += [*([""] if plan.steps else ["nothing to do: both are one placement", ""]), verdict(plan)]
    return "\n".join(lines)
