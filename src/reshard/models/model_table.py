"""What is shown of a plan for a whole model: its templates, its verdict, its figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reshard.models.names import skeleton
from reshard.models.templates import TensorGroup
from reshard.plans.table import seconds_text
from reshard.tables import Passage, Table, bytes_text

if TYPE_CHECKING:
    from reshard.models.model_plan import ModelPlan


@dataclass(frozen=True, slots=True)
class Template:
    """Tensors that are called alike and go the same way."""

    name: str
    """With a star for every number."""
    count: int
    shape: tuple[int, ...]
    dtype: str
    """Of the source, and after an arrow of the target where that is another."""
    source: str
    """The sharding's text."""
    target: str
    received_bytes: int
    """By the device that receives most of them."""
    busiest: int
    """That device."""


def templates_of(plan: ModelPlan) -> tuple[Template, ...]:
    """The tensors by name without numbers, largest first."""
    kinds: dict[Any, list[tuple[TensorGroup, int]]] = {}
    for group in plan.groups:
        types = "/".join(dict.fromkeys(map(str, group.dtypes)))
        texts = group.source.cuts.text(), group.target.cuts.text()
        counts: dict[str, int] = {}
        for member in group.members:
            name = skeleton(plan.names[member])
            counts[name] = counts.get(name, 0) + 1
        for name, count in counts.items():
            key = name, group.source.shape, types.replace("/", " -> "), *texts
            kinds.setdefault(key, []).append((group, count))
    result = []
    for (name, shape, types, source, target), parts in kinds.items():
        received = np.zeros(plan.world, dtype=np.int64)
        for group, count in parts:
            received[group.target.devices] += group.moves.received * (count * group.wire.itemsize)
        count, most = sum(count for _, count in parts), int(received.max(initial=0))
        result.append(Template(name, count, shape, types, source, target, most, int(received.argmax())))
    return tuple(sorted(result, key=lambda template: -template.received_bytes))


def blocks_of(plan: ModelPlan) -> list[Passage]:
    """What is shown of it: its templates, and what it receives against the bound."""
    ends = [set(rules.mesh.devices) for rules in plan.rules]
    shared = len(ends[0] & ends[1])
    relation = "all of them the same" if ends[0] == ends[1] else f"{shared} of them the same" if shared else "others"
    total = sum(tensor.nbytes for tensor in plan.types)
    count = len(plan.names)
    ended = f"from {len(ends[0])} devices to {len(ends[1])}, {relation}"
    title = f"{count} tensor{'s' if count != 1 else ''}, {bytes_text(total)}, {ended}"
    rows = [
        (
            template.name,
            str(template.count),
            " x ".join(map(str, template.shape)) or "scalar",
            template.dtype,
            template.source,
            template.target,
            bytes_text(template.received_bytes),
            str(template.busiest) if template.received_bytes else "",
        )
        for template in plan.templates
    ]
    titles = ("tensors", "count", "shape", "dtype", "from", "to", "received", "busiest")
    return [
        (title, "bold"),
        "",
        Table([titles, *rows], {"count", "received", "busiest"}),
        "",
        (_verdict(plan), "green" if plan.received_bytes == plan.lower_bound_bytes else ""),
        *_casts(plan),
        *_timing(plan),
    ]


def _verdict(plan: ModelPlan) -> str:
    received, busiest = plan.received_bytes, int(plan.all_received_bytes.argmax())
    if received == plan.lower_bound_bytes:
        against = "the lower bound"
    else:
        against = f"the lower bound is {bytes_text(plan.lower_bound_bytes)}"
    count = plan.buckets.total
    return (
        f"received {bytes_text(received)} on the busiest device, {busiest}, {against}; "
        f"{bytes_text(int(plan.all_received_bytes.sum()))} in all; {count} bucket{'s' if count != 1 else ''}, "
        f"at most {bytes_text(plan.in_flight)} in flight"
    )


def _casts(plan: ModelPlan) -> list[Passage]:
    counts: dict[str, int] = {}
    for scaled in plan.scaled:
        block = " x ".join(map(str, scaled.cast.block))
        words = f"cast from {scaled.dtype} to {scaled.cast.dtype} in blocks of {block} at the {scaled.at}"
        counts[words] = counts.get(words, 0) + 1
    return [f"{count} tensor{'s' if count != 1 else ''} {words}" for words, count in counts.items()]


def _timing(plan: ModelPlan) -> list[Passage]:
    if plan.network is None or plan.seconds is None:
        return []
    cut = plan.time_cut
    against = f", {plan.seconds / cut.seconds:.2f} times the least: {cut}" if cut is not None and plan.seconds else ""
    lines: list[Passage] = [f"{seconds_text(plan.seconds)} on {plan.network.name or 'the network'}{against}"]
    if plan.host_bytes is not None:
        received, lacking = map(bytes_text, plan.host_bytes)
        lines.append(f"into the busiest host {received}; {lacking} if each byte came in once")
    return lines


def figures_of(plan: ModelPlan) -> dict[str, Any]:
    """Its figures, for JSON."""
    return {
        "digest": plan.digest,
        "tensors": len(plan.names),
        "in_flight": plan.in_flight,
        "buckets": plan.buckets.total,
        "network": None if plan.network is None else plan.network.name,
        "seconds": plan.seconds,
        "lower_bound_seconds": plan.lower_bound_seconds,
        "time_cut": None if plan.time_cut is None else plan.time_cut.as_dict(),
        "host_bytes": plan.host_bytes,
        "received_bytes": plan.received_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "total_received_bytes": int(plan.all_received_bytes.sum()),
        "templates": [asdict(template) for template in plan.templates],
        "devices": [
            {
                "device": device,
                "received_bytes": int(plan.all_received_bytes[device]),
                "lower_bound_bytes": int(plan.all_lower_bound_bytes[device]),
                "sent_bytes": int(plan.all_sent_bytes[device]),
            }
            for device in plan.devices
        ],
    }
