"""A priced chain of steps as a trace that Perfetto and `chrome://tracing` open.

One row shows the steps one after another; below it each device has a row of its own, on which a step is as long as
the device's share of it: what it receives over what the busiest device receives.
Of many devices only the busiest are shown.
Where steps overlap each has a row of its own, and devices have none.
Times are microseconds from the start of the first step.

>>> from reshard.mesh import Mesh
>>> from reshard.problem import Reshard
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=2)
>>> step = Step(Reshard.of(Sharding.of(mesh, "x"), Sharding.of(mesh, None), (8,)))
>>> events = json.loads(chrome_trace([step], [0.002], mesh.devices))["traceEvents"]
>>> [(event["tid"], event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
[(0, '1 AllGather', 0.0, 2000.0), (1, '1 AllGather', 0.0, 2000.0), (2, '1 AllGather', 0.0, 2000.0)]
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from reshard.errors import ReshardError
from reshard.plans.table import counted
from reshard.steps import Share, Step

SHOWN_DEVICES = 16
"""The most devices that have rows of their own."""

Event = dict[str, Any]


def chrome_trace(
    steps: Iterable[Step],
    step_seconds: Iterable[float],
    devices: Sequence[int],
) -> str:
    """The steps as a JSON text in the trace event format.

    Args:
        steps: in the order in which they run.
        step_seconds: how long each takes.
        devices: those that take part; at most 16 of them, those that receive most, have rows.

    Raises:
        ReshardError: `bad-argument` where there is not one time of at least 0 for each step, or a device is in no
            step.
    """
    steps = tuple(steps)
    seconds = tuple(step_seconds)
    ends = _ends(seconds, len(steps))
    received = _received(steps, devices)
    ranked = sorted(range(len(devices)), key=lambda row: (-sum(received[row]), row))[:SHOWN_DEVICES]
    shown = sorted(ranked)
    hidden = len(devices) - len(shown)
    title = "steps" + (f", {hidden} devices not shown" if hidden else "")
    events = [_named("process_name", 0, "reshard"), *_row(0, title)]
    numbered = enumerate(zip(steps, [0, *ends], ends, strict=False), 1)
    spans = [(f"{number} {step.kind}", start, end) for number, (step, start, end) in numbered]
    for step, (name, start, end), time in zip(steps, spans, seconds, strict=True):
        events.append(_complete(0, name, start, end, _figures(step) | {"seconds": time}))
    for tid, row in enumerate(shown, 1):
        events += _row(tid, f"device {devices[row]}")
        for step, (name, start, end), count in zip(steps, spans, received[row], strict=True):
            if count:
                stop = start + (end - start) * count // max(step.received_bytes, 1)
                events.append(_complete(tid, name, start, stop, {"received_bytes": count}))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, indent=1)


def overlapped_trace(shares: Sequence[Share], spans: Sequence[Sequence[tuple[float, float]]]) -> str:
    """A row for each step of each share, from when the first part begins it to when the last has done it.

    Args:
        shares: of the parts of a tensor.
        spans: per share and step, when it begins and ends.
    """
    events, row = [_named("process_name", 0, "reshard")], 0
    for number, (share, steps) in enumerate(zip(shares, spans, strict=True), 1):
        of = f"share {number}, " if len(shares) > 1 else ""
        for place, (step, span) in enumerate(zip(share.steps, steps, strict=True), 1):
            start, end = (round(moment * 1e9) for moment in span)
            events += _row(row, f"{of}step {place}")
            events.append(_complete(row, f"{place} {step.kind}", start, end, _figures(step) | {"parts": share.parts}))
            row += 1
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, indent=1)


def _ends(seconds: Sequence[float], count: int) -> list[int]:
    """When each step ends, in whole nanoseconds."""
    if len(seconds) != count:
        raise ReshardError("bad-argument", f"{len(seconds)} times are given for {count} steps")
    total, ends = 0.0, []
    for number, time in enumerate(seconds, 1):
        try:
            valid = math.isfinite(time) and time >= 0
        except TypeError:
            valid = False
        if not valid:
            raise ReshardError("bad-argument", f"step {number} takes {time!r} seconds; it must be 0 or more")
        total += time
        ends.append(round(total * 1e9))
    return ends


def _received(steps: Sequence[Step], devices: Sequence[int]) -> list[list[int]]:
    """Per device, the bytes that it receives in each step."""
    meshes = {mesh for step in steps for mesh in (step.before.mesh, step.after.mesh)}
    for device in devices:
        if steps and not any(device in mesh for mesh in meshes):
            raise ReshardError("bad-argument", f"device {device} is in no step")
    received = [
        dict(zip(step.after.mesh.devices, step.all_received_bytes().tolist(), strict=True))
        if step.received_bytes
        else {}
        for step in steps
    ]
    return [[by_device.get(device, 0) for by_device in received] for device in devices]


def _figures(step: Step) -> Event:
    return {
        "axes": ", ".join(map(str, step.axes)),
        "rounds": counted(step),
        "received_bytes": step.received_bytes,
        "total_received_bytes": step.total_received_bytes,
        "peak_bytes": step.peak_bytes,
        "before": step.before.text(),
        "after": step.after.text(),
    }


def _named(what: str, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": 0, "tid": tid, "name": what, "args": {"name": name}}


def _row(tid: int, name: str) -> list[Event]:
    order = {"ph": "M", "pid": 0, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}
    return [_named("thread_name", tid, name), order]


def _complete(tid: int, name: str, start: int, end: int, args: Event) -> Event:
    """An event with its beginning and its length; from nanoseconds to microseconds."""
    return {
        "ph": "X",
        "pid": 0,
        "tid": tid,
        "name": name,
        "cat": "step",
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": args,
    }
