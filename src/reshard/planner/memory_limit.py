"""A limit on the bytes that a device needs at once: kept by sending pieces in chunks, or refused.

>>> from reshard.mesh import Mesh
>>> from reshard.plans import Options
>>> from reshard.problem import Reshard
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=2)
>>> reshard = Reshard.of(Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x"), (8, 8))
>>> plan = Plan(reshard, (Step(reshard),), Options(memory_limit=300))
>>> plan.peak_bytes, least_peak_bytes(plan), within_limit(plan).steps[0].chunks
(320, 272, 2)
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from reshard.plans import Plan
from reshard.steps import Step


def within_limit(plan: Plan) -> Plan | None:
    """The plan with as many chunks as its memory limit asks for; None where no number of chunks is enough."""
    limit = plan.options.memory_limit
    if limit is None or plan.peak_bytes <= limit:
        return plan
    if least_peak_bytes(plan) > limit:
        return None
    steps: list[Step] = []
    for step, beside in zip(plan.steps, _beside(plan), strict=True):
        counts = range(step.chunks, step.most_chunks + 1)
        chunks = counts[bisect_left(counts, -(limit - beside), key=lambda count: -step.peak_bytes_in(count))]
        before = steps[-1].after if steps else plan.source
        reshard = replace(step.reshard, source=before)
        steps.append(step if chunks == step.chunks else replace(step, reshard=reshard, chunks=chunks))
    return replace(plan, steps=tuple(steps))


def least_peak_bytes(plan: Plan) -> int:
    """The bytes that a device needs at most with as many chunks as there can be: the smallest limit that will do."""
    needs = [step.peak_bytes_in(max(step.most_chunks, step.chunks)) for step in plan.steps]
    source = plan.reshard.tilings[0].largest_tile * plan.dtype.itemsize
    return max([source, *(need + beside for need, beside in zip(needs, _beside(plan), strict=True))])


def _beside(plan: Plan) -> list[int]:
    """What a device holds beside each step: its source tile, once the first step is done."""
    source = plan.reshard.tilings[0].largest_tile * plan.dtype.itemsize
    return [source if number else 0 for number in range(len(plan.steps))]
