"""A plan as the blocks that `print` and a terminal show, and numbers to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.errors import ReshardError
from reshard.network import seconds_of
from reshard.plans.free_order import order_that_is_free
from reshard.sharding import Sharding
from reshard.steps import Step
from reshard.tables import Passage, Table, bytes_text

if TYPE_CHECKING:
    from reshard.plans.plan import Plan

FIGURES = ("rounds", "received", "peak", "time")
"""The columns of a table that hold figures."""


def blocks(plan: Plan) -> list[Passage]:
    """What is shown of a plan: what it is for, its steps, and what it receives against the bound."""
    titles = ["", "step", "axes", "rounds", "received", "peak", *([] if plan.seconds is None else ["time"]), "sharding"]
    rows = [
        [
            f"{number}.{place}" if plan.beside else str(place),
            step.kind,
            ", ".join(
                axis.name if axis.is_whole else f"{axis.name}:({axis.pre_size}){axis.size}" for axis in step.axes
            ),
            rounds_text(step),
            bytes_text(step.received_bytes),
            bytes_text(step.peak_bytes),
            *([] if plan.options.network is None else [seconds_text(seconds_of(step, plan.options.network))]),
            short(step.after, plan.source),
        ]
        for number, share in enumerate(plan.shares, 1)
        for place, step in enumerate(share.steps, 1)
    ]
    is_exact = plan.bound_kind == "exact" and plan.received_bytes == plan.lower_bound_bytes
    shape = " x ".join(map(str, plan.shape)) or "scalar"
    return [
        (f"{shape} {plan.dtype} on {_devices(plan.source, plan.target)}", "bold"),
        f"from  {short(plan.source, plan.target)}",
        f"to    {short(plan.target, plan.source)}",
        "",
        Table([titles, *rows], FIGURES) if rows else "nothing to do: both are one placement",
        "",
        (_verdict(plan), "green" if is_exact else ""),
    ]


def rounds_text(item: Plan | Step) -> str:
    """The number of rounds; `many` where the pieces are too many to list."""
    rounds = counted(item)
    return "many" if rounds is None else str(rounds)


MOSTLY_LATENCY = 100
"""How many times the least a plan takes of which there is no more to say: the least is of bytes, not of messages."""


def seconds_text(seconds: float) -> str:
    """A time to read, to 3 digits.

    >>> seconds_text(0.0000123), seconds_text(2.5)
    ('12.3 us', '2.5 s')
    """
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _verdict(plan: Plan) -> str:
    """What the plan receives, against the bound; what it takes, where it has prices, and why; what may be better."""
    counts = " and ".join(str(share.parts) for share in plan.shares)
    at_once = f"{counts} of {len(plan.shares)} shares at once" if plan.beside else "whose steps overlap"
    first, last = plan.whole
    whole = [f" after step {first}"] if first else []
    whole += [" before the last step" if last == 1 else f" before the last {last} steps"] if last else []
    parts = f" in {plan.parts} parts{' and'.join(whole)}, {at_once}" if plan.parts > 1 else ""
    time = "" if plan.seconds is None else f"takes {seconds_text(plan.seconds)}{parts}{_against_least(plan)}"
    second = "; ".join(part for part in (time, plan.reason) if part)
    lines = [_against_bound(plan), second]
    sent = plan.sent_bytes
    if sent is not None and sent != plan.received_bytes:
        lines.append(f"sent {bytes_text(sent)} by the busiest device")
    if plan.received_bytes and (free := order_that_is_free(plan.reshard)) is not None:
        lines.append(f"{free.text()} has tiles of the same size and would move nothing")
    return "\n".join(filter(None, lines))


def _against_least(plan: Plan) -> str:
    """How many times the least time it is, and what proves that."""
    proof = plan.time_transfers or plan.time_cut
    if proof is None or not plan.seconds:
        return ""
    times = plan.seconds / proof.seconds
    if times >= MOSTLY_LATENCY:
        return f", nearly all of it latency: {proof} is {seconds_text(proof.seconds)}"
    return f", {times:.2f} times the least: {proof}"


def _against_bound(plan: Plan) -> str:
    received, bound = plan.received_bytes, plan.lower_bound_bytes
    text = f"received {bytes_text(received)} on the busiest device, {bytes_text(plan.total_received_bytes)} in all"
    if plan.bound_kind == "exact":
        beyond = f"{received / bound:.2f} times" if bound else "no device lacks anything"
        return f"{text}; lower bound {bytes_text(bound)}: {'exact' if received == bound else beyond}"
    if plan.bound_kind == "unreduced":
        return f"{text}; the target is partial, so no bound is stated"
    total = plan.total_lower_bound_bytes
    times = plan.total_received_bytes / max(total, 1)
    return f"{text}; with partial values at least {bytes_text(total)} in all: {times:.2f} times"


def short(sharding: Sharding, beside: Sharding) -> str:
    """A sharding's text, with its mesh only where another stands beside it."""
    return sharding.text() if sharding.mesh == beside.mesh else f"mesh{sharding.mesh} {sharding.text()}"


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
