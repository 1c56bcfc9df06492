"""The page of a whole model's plan: its tensors by bytes, its templates, what each device and host receives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from reshard.digits import Positions
from reshard.drawing.charts import Area, LimitLine, treemap
from reshard.drawing.markup import Markup, tag
from reshard.drawing.operation_graph import search_field
from reshard.drawing.shell import PageSection, figure, page, passages
from reshard.models.names import skeleton
from reshard.plans.plan_page import SentBytes, bytes_of, host_figure, received_figure, traffic_figure
from reshard.plans.player_data import hosts_of
from reshard.tables import plain

if TYPE_CHECKING:
    from reshard.models.model_plan import ModelPlan

MOST_HOSTS = 16
"""Between more hosts figures are not written out."""
AREAS = 300
"""The most areas of the treemap; the rest is one."""


def model_page(plan: ModelPlan) -> str:
    """The text of the page."""
    title, _, templates, _, *verdict = plan.blocks()
    devices = np.array(plan.devices, dtype=np.int64)
    received = {"received": plan.all_received_bytes[devices]}
    listed = tag("div", passages([templates]), data_filtered="templates")
    bound = [LimitLine("bound", plan.lower_bound_bytes)]
    sections = [
        PageSection("tensors", "Tensors by bytes", [model_drawing(plan)]),
        PageSection("templates", "Templates", [search_field("templates"), listed]),
        PageSection("traffic", "Who sends to whom", _traffic(plan, devices)),
        PageSection("bytes", "Bytes per device", [received_figure(received, devices, bound)]),
    ]
    return page(plain([title]), sections, lead=[passages(verdict)])


def _traffic(plan: ModelPlan, devices: Positions) -> list[Markup]:
    """From device to device; between hosts too, where the network tells them apart."""
    sent, hosts = SentBytes(*plan.traffic), hosts_of(plan.network, devices)
    drawn = [traffic_figure(sent, devices, hosts)]
    if hosts is not None and max(hosts) < MOST_HOSTS:
        drawn.append(host_figure(sent, devices, hosts))
    return drawn


def model_drawing(plan: ModelPlan) -> Markup:
    """The tensors as areas."""
    drawn = treemap(_areas(plan), bytes_of, title="tensors by bytes")
    return figure("tensors by bytes; colours tell how they are cut before and after", drawn)


def _areas(plan: ModelPlan) -> Iterator[Area]:
    """Tensors that are called alike, as areas of one colour where they are cut alike before and after."""
    sizes: dict[tuple[str, str], int] = {}
    for group in plan.groups:
        cut = f"{group.source.cuts.text()} → {group.target.cuts.text()}"
        for member in group.members:
            key = skeleton(plan.names[member]).removesuffix(".weight"), cut
            sizes[key] = sizes.get(key, 0) + plan.types[member].nbytes
    cuts = {cut: number for number, cut in enumerate(sorted({cut for _, cut in sizes}))}
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    for (name, cut), size in largest[:AREAS]:
        yield Area(name, size, cuts[cut], cut)
    if rest := sum(size for _, size in largest[AREAS:]):
        yield Area(f"{len(largest) - AREAS} more", rest, 0)
