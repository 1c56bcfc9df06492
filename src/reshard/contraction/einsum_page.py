"""The page of a contraction: where it is computed, every reshard that it needs, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reshard.contraction.formula import comparison_table, tensor_text
from reshard.drawing.charts import LimitLine, bars
from reshard.drawing.held_tiles import draw_held
from reshard.drawing.markup import Markup, joined, tag
from reshard.drawing.shell import PageSection, copyable, figure, page, passages
from reshard.plans.plan_page import NOTEBOOK_DEVICES, before_and_after, received_figure
from reshard.plans.player_data import received_by_step
from reshard.plans.table import blocks, seconds_text

if TYPE_CHECKING:
    from reshard.contraction.einsum_plan import EinsumPlan


def einsum_page(plan: EinsumPlan, others: Sequence[EinsumPlan]) -> str:
    """The text of the page.

    Args:
        plan: what is shown.
        others: other ways to compute it, best first.
    """
    head, *_, verdict = str(plan).split("\n\n")
    title, *lines = head.splitlines()
    sections = [PageSection("bytes", "What it costs", _costs(plan))]
    for turn, part in enumerate(plan.parts(), 1):
        step = f"{turn}. " if len(list(plan.parts())) > 1 else ""
        for number, (term, moved) in enumerate(zip(part.pattern.terms, part.plans, strict=True)):
            is_result = number == len(part.operands)
            name = "result" if is_result else f"operand {number + 1}"
            text = tensor_text("C" if is_result else chr(ord("A") + number), term, moved.target)
            heading = f"{step}{name.capitalize()}, to {text}"
            sections.append(
                PageSection(f"t{turn}-{number}", heading, [*before_and_after(moved), passages(blocks(moved)[4:])])
            )
    table = passages([comparison_table([plan, *others])])
    sections.append(PageSection("alternatives", "All layouts, best first", [table]))
    json = plan.to_json()
    sections.append(PageSection("text", "As text", [copyable("table", str(plan)), copyable("JSON", json)]))
    return page(title, sections, lead=[tag("p", line) for line in (*lines, *verdict.splitlines())])


def einsum_drawing(plan: EinsumPlan) -> Markup | None:
    """Every tensor where it is computed with, before and after where it moves; None where the devices are too many."""
    if plan.layout.mesh.size > NOTEBOOK_DEVICES:
        return None
    drawings = []
    for part in plan.parts():
        for number, (term, moved) in enumerate(zip(part.pattern.terms, part.plans, strict=True)):
            name = "C" if number == len(part.operands) else chr(ord("A") + number)
            if moved.steps:
                drawings += before_and_after(moved)
                continue
            classes = moved.target.layout_for(moved.shape).unreduced.size
            title = f"{tensor_text(name, term, moved.target)}, which stays as it is"
            drawings.append(figure(title, draw_held(moved.shape, moved.target.tiles(moved.shape), classes, title)))
    return joined(*drawings)


def _costs(plan: EinsumPlan) -> list[Markup]:
    """Bytes per tensor and device; on a network, seconds too."""
    devices = np.array(plan.layout.mesh.device_array)
    devices.sort()
    stacks = {}
    for turn, part in enumerate(plan.parts(), 1):
        for number, moved in enumerate(part.plans):
            name = "result" if number == len(part.operands) else f"operand {number + 1}"
            columns = received_by_step(moved.steps, devices)
            if columns:
                stacks[f"{turn}. {name}"] = np.sum(columns, axis=0)
    bound = _received_bound(plan, devices.tolist())
    drawn = [received_figure(stacks, devices, [] if bound is None else [LimitLine("bound", bound)])]
    if plan.network is not None:
        times = {"time": [plan.communication_seconds or 0.0, plan.arithmetic_seconds or 0.0]}
        chart = bars(["communication", "arithmetic"], times, seconds_text, title="seconds")
        drawn.append(figure("seconds of a device, one after the other or overlapped", chart))
    return [tag("div", *drawn, class_="row")]


def _received_bound(plan: EinsumPlan, devices: Sequence[int]) -> int | None:
    """What some device receives at the least where these tensors move so; None where a reshard has no bound.

    A device lacks parts of several tensors, so its bounds add up; those of different devices do not.
    """
    moves = [moved for part in plan.parts() for moved in part.plans]
    if any(moved.steps and moved.bound_kind == "unreduced" for moved in moves):
        return None
    sums = [sum(moved.lower_bound_bytes_on(device) for moved in moves) for device in devices]
    return max([*sums, *(moved.lower_bound_bytes for moved in moves)])
