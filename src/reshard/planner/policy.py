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

from collections.abc import Callable, Sequence
from math import prod

from reshard.mesh import Mesh
from reshard.network import Network
from reshard.plans import Plan, counted
from reshard.problem import Reshard


def fewest_bytes(plan: Plan) -> tuple[int, int, int, int]:
    """Fewest bytes on the busiest device, then in all, then fewest steps, then fewest rounds."""
    rounds = counted(plan)
    return *bytes_and_steps(plan), 2**62 if rounds is None else rounds


def bytes_and_steps(plan: Plan) -> tuple[int, int, int]:
    """The same without the rounds, for which pieces are counted one by one."""
    return plan.received_bytes, plan.total_received_bytes, len(plan.steps)


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


def best_plan(plans: list[Plan]) -> Plan:
    """The fastest on their network, or without one that of the fewest bytes; of equal ones that of fewer rounds."""
    alike = _least(plans, bytes_and_steps) if plans[0].options.network is None else _least(plans, _seconds)
    return alike[0] if len(alike) == 1 else min(alike, key=fewest_bytes)


def _least(plans: list[Plan], key: Callable[[Plan], float | tuple[int, ...]]) -> list[Plan]:
    """Those of the least key."""
    keys = [key(plan) for plan in plans]
    least = min(keys)
    return [plan for plan, each in zip(plans, keys, strict=True) if each == least]


def best_first(plans: list[Plan]) -> list[Plan]:
    """The plans by time on their network, then as without one."""
    if len(plans) < 2:
        return plans
    if plans[0].options.network is None:
        return sorted(plans, key=fewest_bytes)
    best = best_plan(plans)
    return [best, *(plan for plan in sorted(plans, key=_seconds) if plan is not best)]


def _seconds(plan: Plan) -> float:
    return plan.seconds or 0.0


def is_small(reshard: Reshard) -> bool:
    """Whether latencies may decide more than bytes."""
    return prod(reshard.shape) * reshard.dtype.itemsize <= SMALL_BYTES


FEW_DEVICES = 256
"""Up to so many devices all ways are looked for, whatever the sizes of tiles."""


def is_of_many(mesh: Mesh) -> bool:
    """Whether devices are too many to look for all ways of tiles that differ in size, and for pieces one by one."""
    return mesh.size > FEW_DEVICES
