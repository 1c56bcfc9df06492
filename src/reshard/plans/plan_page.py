"""The page of a plan: what moves, who sends to whom, what it costs, and what else would do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from reshard.digits import Positions
from reshard.drawing.charts import LimitLine, Point, bars, matrix, points
from reshard.drawing.held_tiles import frame_tiles, inner_cuts
from reshard.drawing.markup import Markup, joined, tag
from reshard.drawing.shell import PageSection, copyable, figure, page, passages
from reshard.drawing.tensor_frame import DRAWN, TensorFrame, content_cells, draw_frame
from reshard.errors import ReshardError
from reshard.notation import to_mlir_list, to_named, to_partition_spec, to_placements, to_xla
from reshard.plans.device_memory import memory_by_step
from reshard.plans.player_data import host_level, hosts_of, player_data, received_by_step
from reshard.plans.table import blocks, counted, seconds_text
from reshard.sharding import Sharding
from reshard.tables import Table, bytes_text, plain

if TYPE_CHECKING:
    from reshard.plans.plan import Plan

DRAWN_DEVICES = 64
"""Of more devices, charts show runs of neighbours as one."""
COPIED_JSON = 60_000
"""A plan whose JSON has more letters is not written out on its page."""

NOTEBOOK_DEVICES = 256
"""Of more devices a notebook shows text alone."""

WRITERS: dict[str, Callable[[Sharding], str]] = {
    "Shardy": str,
    "JAX": to_partition_spec,
    "torch": to_placements,
    "XLA": to_xla,
    "named axes": to_named,
    "MLIR's shard dialect": to_mlir_list,
}


def plan_page(plan: Plan, alternatives: Iterable[Plan] = ()) -> str:
    """The text of the page.

    Args:
        plan: what is shown.
        alternatives: what it is compared with.
    """
    title, source, target, *_, verdict = blocks(plan)
    sections = [
        PageSection("player", "The plan, frame by frame", [player(plan)]),
        PageSection("frames", "The tensor before and after", before_and_after(plan)),
        PageSection("traffic", "Who sends to whom", [_traffic(plan)]),
        PageSection(
            "bytes",
            "Bytes, memory and time" if plan.seconds else "Bytes and memory",
            [tag("div", _received(plan), _memory(plan), *_device_memory(plan), *_time(plan), class_="row")],
        ),
        PageSection("alternatives", "What else would do", [_alternatives(plan, list(alternatives))]),
        PageSection("steps", "Steps", [passages(blocks(plan)[4:5])]),
        PageSection("text", "As text", _texts(plan)),
    ]
    lead = [passages([source, target, verdict])]
    return page(plain([title]), sections, lead=lead, data=player_data(plan), scripts=("plan_model.js", "player.js"))


def player(plan: Plan) -> Markup:
    """The buttons, and where the script draws."""
    buttons = [
        tag("button", text, type="button", id=name, title=says)
        for name, text, says in (
            ("first", "|<", "to the source (Home)"),
            ("back", "<", "back (←)"),
            ("play", "play", "play or pause (space)"),
            ("forward", ">", "forward (→)"),
            ("last", ">|", "to the target (End)"),
        )
    ]
    scrub = tag("input", type="range", id="scrub", min=0, max=0, value=0, aria_label="frame of the plan")
    controls = tag("div", *buttons, scrub, tag("div", id="state", role="status", aria_live="polite"), class_="controls")
    keys = tag("p", "Space plays, ← and → step, Home and End leap; in the mesh arrows go from device to device and "
               "Enter picks one. ", _legend(plan), class_="faint")  # fmt: skip
    views = tag("div", tag("div", id="mesh"), tag("div", id="panel", aria_live="polite"), class_="row")
    return tag("div", controls, views, keys, class_="player")


def _legend(plan: Plan) -> str:
    """What a cell shows, and what the frames leave out."""
    parts = ""
    if plan.parts > 1:
        others = plan.parts - plan.shares[0].parts
        beside = f", {others} of them by other steps, which the table has" if others else ""
        parts = f" Frames show the whole tensor; it goes in {plan.parts} parts, whose steps overlap{beside}."
    return _cells_legend(plan) + parts


def _cells_legend(plan: Plan) -> str:
    if len(plan.devices) > DRAWN_DEVICES:
        return "A cell is a device, filled by how much of its bytes has come."
    colours = "A cell is a device, and in it the tensor: colours tell where in the source data lie"
    hosts = "; lines part hosts" if host_level(plan.options.network) is not None else ""
    return f"{colours}, pale is what it held before the step{hosts}."


def before_and_after(plan: Plan) -> list[Markup]:
    """Both ends in the tensor's frame."""
    ends = [plan.source.tiles(plan.shape), plan.target.tiles(plan.shape)]
    cuts = inner_cuts((box for tiles in ends for boxes in tiles for box in boxes), plan.shape)
    frame = TensorFrame.of(plan.shape, cuts)
    contents = content_cells(plan.shape, inner_cuts((box for boxes in ends[0] for box in boxes), plan.shape))
    drawings = []
    for name, sharding, tiles in zip(("before", "after"), (plan.source, plan.target), ends, strict=True):
        classes = sharding.layout_for(plan.shape).unreduced.size
        drawn = draw_frame(frame, contents, frame_tiles(tiles, classes), f"the tensor {name}", width=440)
        more = f"; {len(tiles)} tiles, outlines of the first {DRAWN}" if len(tiles) > DRAWN else ""
        drawings.append(tag("div", figure(f"{name}: {sharding.text()}{more}", drawn), class_=name))
    return [tag("p", _says_frame(frame), class_="faint"), tag("div", *drawings, class_="row")]


def plan_drawing(plan: Plan) -> Markup | None:
    """Both ends in the tensor's frame, for a notebook; None where the devices are too many."""
    return None if len(plan.devices) > NOTEBOOK_DEVICES else joined(*before_and_after(plan))


def _says_frame(frame: TensorFrame) -> str:
    """Which dims run where, in words."""
    ways = [("to the right", frame.across), ("down", frame.down)]
    parts = [f"dim {' and '.join(map(str, dims))} runs {way}" for way, dims in ways if dims]
    if frame.left_out:
        parts.append(f"dim {', '.join(map(str, frame.left_out))} is whole everywhere")
    text = "; ".join(parts) or "a scalar"
    return f"{text[0].upper()}{text[1:]}. Numbers are devices, ×2 is held twice, Σ2 is the sum of two parts."


def _traffic(plan: Plan) -> Markup:
    """The bytes of all steps from each device to each."""
    try:
        parts = [move.exchange.traffic() for step in plan.steps for move in step.moves]
    except ReshardError as error:
        return tag("p", f"The messages are too many to add up: {error}.")
    empty = np.zeros((3, 0), dtype=np.int64)
    senders, receivers, elements = np.concatenate([empty, *map(np.array, parts)], axis=1)
    devices = np.array(plan.devices, dtype=np.int64)
    sums = SentBytes(senders, receivers, elements * plan.dtype.itemsize)
    return traffic_figure(sums, devices, hosts_of(plan.options.network, devices))


class SentBytes(NamedTuple):
    """Bytes from device to device, in columns."""

    senders: Positions
    receivers: Positions
    amounts: Positions


def traffic_figure(traffic: SentBytes, devices: Positions, hosts: list[int] | None) -> Markup:
    """Bytes from each device to each; from host to host, or run to run, where devices are many.

    Args:
        traffic: all that is sent.
        devices: that there are, in ascending order.
        hosts: per device its host, where hosts are known.
    """
    groups, names = _groups(devices, hosts)
    sums = np.zeros((len(names), len(names)), dtype=np.int64)
    places = [groups[np.searchsorted(devices, ends)] for ends in (traffic.senders, traffic.receivers)]
    np.add.at(sums, tuple(places), traffic.amounts)
    many = len(devices) > DRAWN_DEVICES
    borders = [n for n in range(1, len(devices)) if hosts[n] != hosts[n - 1]] if hosts and not many else []
    ends = (
        "device to device" if not many else "host to host" if names[0].startswith("host") else "run to run of devices"
    )
    return figure(
        f"bytes from {ends}: rows send, columns receive; all that is sent",
        matrix(names, sums.tolist(), bytes_of, title=f"bytes from {ends}", borders=borders),
    )


def host_figure(traffic: SentBytes, devices: Positions, hosts: Sequence[int]) -> Markup:
    """Bytes from each host to each, written out.

    Args:
        traffic: all that is sent.
        devices: that there are, in ascending order.
        hosts: per device its host.
    """
    numbers = np.array(hosts, dtype=np.int64)
    sums = np.zeros((max(hosts) + 1, max(hosts) + 1), dtype=np.int64)
    places = [numbers[np.searchsorted(devices, ends)] for ends in (traffic.senders, traffic.receivers)]
    np.add.at(sums, tuple(places), traffic.amounts)
    names = [f"host {number}" for number in range(len(sums))]
    drawn = matrix(names, sums.tolist(), bytes_of, title="bytes from host to host", written=True)
    return figure("bytes from host to host: rows send, columns receive; on the diagonal what stays inside", drawn)


def _groups(devices: Positions, hosts: list[int] | None) -> tuple[Positions, list[str]]:
    """Per device the number of its row in a chart, and the names of the rows."""
    if len(devices) <= DRAWN_DEVICES:
        return np.arange(len(devices)), [str(device) for device in devices.tolist()]
    if hosts is not None and max(hosts) < 2 * DRAWN_DEVICES:
        return np.array(hosts, dtype=np.int64), [f"host {number}" for number in range(max(hosts) + 1)]
    size = -(-len(devices) // DRAWN_DEVICES)
    groups = np.arange(len(devices)) // size
    return groups, [str(devices[number * size]) for number in range(int(groups.max()) + 1)]


def received_figure(stacks: Mapping[str, Positions], devices: Positions, lines: Sequence[LimitLine]) -> Markup:
    """What each device receives, in parts, with bounds.

    Args:
        stacks: per part, the bytes of each device.
        devices: in ascending order.
        lines: across.
    """
    drawn = _device_bars(stacks, devices, lines, "bytes received")
    bound = "; the bound is that of the device that lacks most" if lines else ""
    return figure(f"bytes received, {_each(devices)}{bound}", drawn)


def _device_bars(stacks: Mapping[str, Positions], devices: Positions, lines: Sequence[LimitLine], title: str) -> Markup:
    """A bar per device, in parts; of many devices one per run of neighbours."""
    groups, names = _groups(devices, None)
    columns = {}
    for part, column in stacks.items():
        largest = np.zeros(len(names), dtype=np.int64)
        np.maximum.at(largest, groups, column)
        columns[part] = largest.tolist()
    return bars(names, columns or {"nothing": [0] * len(names)}, bytes_of, lines=lines, title=title)


def _each(devices: Positions) -> str:
    many = len(devices) > DRAWN_DEVICES
    return "the most of a run of neighbours, named by the first" if many else "device by device"


def _received(plan: Plan) -> Markup:
    """What each device receives, step by step, with the bound."""
    devices = np.array(plan.devices, dtype=np.int64)
    columns = enumerate(received_by_step(plan.steps, devices), 1)
    stacks = {f"{number} {plan.steps[number - 1].kind}": column for number, column in columns}
    lines = [] if plan.bound_kind == "unreduced" else [LimitLine("bound", plan.lower_bound_bytes)]
    return received_figure(stacks, devices, lines)


def _memory(plan: Plan) -> Markup:
    """What a device holds at most in each step, with the limit."""
    steps = [f"{number} {step.kind}" for number, step in enumerate(plan.steps, 1)]
    peaks = [step.peak_bytes for step in plan.steps]
    limit = plan.options.memory_limit
    whole = prod(plan.shape) * plan.dtype.itemsize
    lines = [LimitLine("whole tensor", whole)] if whole <= 4 * max(peaks, default=1) else []
    lines += [] if limit is None else [LimitLine("limit", limit)]
    drawn = bars(steps or ["nothing"], {"peak": peaks or [0]}, bytes_of, lines=lines, title="memory of a device")
    return figure("bytes of the largest tiles and pieces, step by step, without the source tile that is kept", drawn)


def _device_memory(plan: Plan) -> list[Markup]:
    """What each device needs in each step, part by part, all steps on one scale, with the limit."""
    devices = np.array(plan.devices, dtype=np.int64)
    memories = memory_by_step(plan)
    most = max((int(np.sum(list(memory.values()), axis=0).max(initial=0)) for memory in memories if memory), default=0)
    limit = plan.options.memory_limit
    lines = [LimitLine("most", most), *([] if limit is None else [LimitLine("limit", limit)])]
    drawings = []
    for number, (step, memory) in enumerate(zip(plan.steps, memories, strict=True), 1):
        caption = f"bytes needed in step {number}, {step.kind}, {_each(devices)}"
        title = f"memory of each device in step {number}"
        drawings.append(figure(caption, _device_bars(memory, devices, lines, title)))
    return drawings


def _time(plan: Plan) -> list[Markup]:
    """What each step takes and the plan in all, with the least that any takes; nothing without a network."""
    if plan.step_seconds is None or plan.seconds is None:
        return []
    names = [*(f"{number} {step.kind}" for number, step in enumerate(plan.steps, 1)), "the plan"]
    least = plan.lower_bound_seconds
    lines = [] if least is None else [LimitLine("least", least)]
    drawn = bars(names, {"time": [*plan.step_seconds, plan.seconds]}, seconds_text, lines=lines, title="time")
    parts = f", overlapped in {plan.parts} parts" if plan.parts > 1 else ""
    return [figure(f"time of each step by itself, and of the plan{parts}; no plan takes less than the line", drawn)]


def _alternatives(plan: Plan, others: Sequence[Plan]) -> Markup:
    """Plans as points, and their figures."""
    has_time = all(way.seconds is not None for way in (plan, *others))
    ways = [plan, *(other for other in others if other.steps != plan.steps)]

    def across(way: Plan) -> float:
        return float(way.seconds or 0) if has_time else float(counted(way) or 0)

    marks = [Point(str(number), across(way), way.received_bytes, way is plan) for number, way in enumerate(ways, 1)]
    x_text = seconds_text if has_time else _number
    drawn = points(marks, x_text, bytes_of, ("time" if has_time else "rounds", "received"), "plans compared")
    titles = ["", "steps", "received", "peak", "time" if has_time else "rounds"]
    rows = [
        [mark.name, " + ".join(step.kind for step in way.steps) or "nothing", bytes_text(way.received_bytes),
         bytes_text(way.peak_bytes), x_text(mark.x)]
        for way, mark in zip(ways, marks, strict=True)
    ]  # fmt: skip
    table = passages([Table([titles, *rows], ("received", "peak", "time", "rounds"))])
    return joined(figure("the full point, 1, is this plan; the table names all", drawn), table)


def _texts(plan: Plan) -> list[Markup]:
    """The ends in every form that has them, and the plan."""
    parts = []
    for name, writer in WRITERS.items():
        try:
            parts.append(copyable(name, f"{writer(plan.source)}\n{writer(plan.target)}"))
        except ReshardError:  # this form cannot say it
            continue
    parts.append(copyable("Python", _code(plan)))
    with suppress(ReshardError):  # where steps are no collectives
        parts.append(copyable("MLIR, sdy", plan.to_mlir()))
    text = plan.to_json()
    if len(text) <= COPIED_JSON:
        parts.append(copyable("JSON", text))
    return parts


def _code(plan: Plan) -> str:
    ends = [
        f"{name} = rs.parse_sharding({str(end)!r})" for name, end in (("source", plan.source), ("target", plan.target))
    ]
    network = plan.options.network
    named = f", network={network.name!r}" if network is not None and network.name else ""
    call = f"plan = rs.plan(source, target, shape={plan.shape}, dtype={plan.dtype.name!r}{named})"
    return "\n".join(["import reshard as rs", *ends, call, "print(plan)"])


def bytes_of(value: float) -> str:
    """Bytes as charts write them."""
    return bytes_text(int(value))


def _number(value: float) -> str:
    return f"{value:g}"
