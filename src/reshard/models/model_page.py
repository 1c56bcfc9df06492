"""The page of a whole model's plan: its tensors by bytes, its templates, what each device and host receives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from reshard.drawing.charts import Area, LimitLine, treemap
from reshard.drawing.markup import Markup, tag
from reshard.drawing.shell import PageSection, figure, page, passages
from reshard.models.names import skeleton
from reshard.plans.plan_page import SentBytes, bytes_of, received_figure, traffic_figure
from reshard.plans.player_data import hosts_of
from reshard.tables import plain

if TYPE_CHECKING:
    from reshard.models.model_plan import ModelPlan

AREAS = 300
"""The most areas of the treemap; the rest is one."""


def model_page(plan: ModelPlan) -> str:
    """The text of the page."""
    title, _, templates, _, *verdict = plan.blocks()
    devices = np.array(plan.devices, dtype=np.int64)
    hosts = hosts_of(plan.network, devices)
    received = {"received": plan.all_received_bytes[devices]}
    sections = [
        PageSection("tensors", "Tensors by bytes", [model_drawing(plan)]),
        PageSection("templates", "Templates", [_search(), tag("div", passages([templates]), id="templates-table")]),
        PageSection("traffic", "Who sends to whom", [traffic_figure(SentBytes(*plan.traffic), devices, hosts)]),
        PageSection("bytes", "Bytes per device",
                [received_figure(received, devices, [LimitLine("bound", plan.lower_bound_bytes)])]),
    ]  # fmt: skip
    return page(plain([title]), sections, lead=[passages(verdict)])


def model_drawing(plan: ModelPlan) -> Markup:
    """The tensors as areas."""
    drawn = treemap(_areas(plan), bytes_of, title="tensors by bytes")
    return figure("tensors by bytes; colours tell how they are cut at the source", drawn)


def _search() -> str:
    return tag("p", tag("input", type="search", placeholder="search", aria_label="search templates",
                        data_filters="templates-table"))  # fmt: skip


def _areas(plan: ModelPlan) -> Iterator[Area]:
    """Tensors that are called alike, as areas of one colour where they are cut alike."""
    sizes: dict[tuple[str, str], int] = {}
    for group in plan.groups:
        cut = group.source.cuts.text()
        for member in group.members:
            key = skeleton(plan.names[member]), cut
            sizes[key] = sizes.get(key, 0) + plan.types[member].nbytes
    cuts = {cut: number for number, cut in enumerate(sorted({cut for _, cut in sizes}))}
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    for (name, cut), size in largest[:AREAS]:
        yield Area(name, size, cuts[cut], cut)
    if rest := sum(size for _, size in largest[AREAS:]):
        yield Area(f"{len(largest) - AREAS} more", rest, 0)
