"""Which of several plans for one reshard is best: without a network by bytes, on one by time.

>>> from reshard.mesh import Mesh
>>> from reshard.problem import Reshard
>>> from reshard.sharding import Sharding
>>> from reshard.steps import Step
>>> mesh = Mesh.of(x=2, y=2)
>>> reshard = Reshard.of(Sharding.of(mesh, ("x", "y")), Sharding.of(mesh, "x"), (8,), "int8")
>>> fewest_bytes(Plan(reshard, (Step(reshard),)))
(2, 8, 1, 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from reshard.network import Network
from reshard.plans import Plan, counted, seconds_text
from reshard.problem import Reshard


def fewest_bytes(plan: Plan) -> tuple[int, int, int, int]:
    """Fewest bytes on the busiest device, then in all, then fewest steps, then fewest rounds."""
    rounds = counted(plan)
    return plan.received_bytes, plan.total_received_bytes, len(plan.steps), 2**62 if rounds is None else rounds


SMALL_BYTES = 64 << 20
"""On a network a tile of this size may stand between, though both ends are smaller: where latencies decide."""


def shrinks_first(plan: Plan) -> bool:
    """Whether no tile between is larger than the larger of the two ends, small ones on a network apart."""
    between = [step.reshard.tilings[1] for step in plan.steps[:-1]]
    return shrinks_between(plan.reshard, [tiling.largest_tile for tiling in between], plan.options.network)


def shrinks_between(reshard: Reshard, largest_tiles: Sequence[int], network: Network | None) -> bool:
    """The same of a way whose tiles between have so many elements."""
    largest = max(largest_tiles, default=0)
    if not largest or (network is not None and largest <= SMALL_BYTES // reshard.dtype.itemsize):
        return True
    return largest <= max(tiling.largest_tile for tiling in reshard.tilings)


def may_grow(network: Network) -> bool:
    """Whether small tiles may be larger on the way than at both ends: where there are latencies."""
    return any(level.latency_s for level in network.levels)


def best_first(plans: list[Plan]) -> list[Plan]:
    """The plans by time on their network, then as without one."""
    network = plans[0].options.network if plans else None
    if len(plans) < 2 or network is None:
        return sorted(plans, key=fewest_bytes) if len(plans) > 1 else plans
    ordered = sorted(plans, key=lambda plan: plan.seconds or 0.0)
    fastest = [plan for plan in ordered if plan.seconds == ordered[0].seconds]
    best = fastest[0] if len(fastest) == 1 else min(fastest, key=fewest_bytes)
    slower = [plan for plan in ordered if plan is not best]
    return [best, *slower]


def explained(plan: Plan, leanest: Plan) -> Plan:
    """The plan with the reason why it moves more than the bound, where that is that its network is faster so.

    Args:
        plan: on a network.
        leanest: the plan that moves least.
    """
    if plan.reason or plan.received_bytes <= max(plan.lower_bound_bytes, leanest.received_bytes):
        return plan
    name = plan.options.network.name if plan.options.network is not None else ""
    time = seconds_text(leanest.seconds or 0.0)
    return replace(plan, reason=f"on {name or 'the network'} fewer bytes would take {time}")


def is_small(reshard: Reshard) -> bool:
    """Whether latencies may decide more than bytes."""
    return prod(reshard.shape) * reshard.dtype.itemsize <= SMALL_BYTES
