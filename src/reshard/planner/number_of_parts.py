"""In how many parts a tensor goes through the steps of a plan, so that steps on different levels overlap.

More parts overlap better, and each pays its latencies: with a seconds of bytes beside the busiest level and b seconds
of latencies of a part on it, about √(a / b) parts take least: from there it goes to more and to fewer while they take
less.

By hand, between hosts 4 s, inside 4 s, no latency: of 2 parts the first takes 2 + 2 s and the second 2 s more.

>>> from reshard.mesh import Mesh
>>> from reshard.network import Level, Network
>>> from reshard.plans import Options
>>> from reshard.problem import Reshard
>>> from reshard.sharding import Sharding
>>> from reshard.steps import chain_through
>>> mesh, network = Mesh.of(h=2, g=2), Network((Level(1, 2, "switch", 2, 0), Level(2, 2, "switch", 1, 0)))
>>> both, g, none = (Sharding.of(mesh, axes) for axes in (("g", "h"), "g", None))
>>> reshard = Reshard.of(both, none, (16,), "int8")
>>> plan = Plan(reshard, chain_through(reshard, g), Options(network))
>>> [(way.parts, way.seconds) for way in (plan, overlapped(plan))]
[(1, 8.0), (4, 5.0)]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import isqrt

from reshard.network import busy_seconds, overlapped_seconds
from reshard.plans import Plan
from reshard.steps import Share

MOST_PARTS = 128
"""More parts gain less than 1 % where latencies do not count."""
FOLLOWED_FIRST = 16
"""So many parts are followed to choose their number; the plan that is chosen must take less with all followed."""
WORTH = 0.99
"""In parts a plan must take less than so much of what it takes whole."""


def overlapped(plan: Plan) -> Plan:
    """The plan in as many parts as it takes least in; as it is where that is not worth it, or a limit must be kept."""
    network, limit = plan.options.network, plan.options.memory_limit
    if network is None or limit is not None or plan.options.basis != "any":
        return plan
    if sum(1 + (step.ring is not None) for step in plan.steps if step.moves and step.kind != "Slice") < 2:
        return plan
    alone, busiest = sum(plan.step_seconds or ()), max(busy_seconds(plan.steps, network))
    if busiest >= alone * WORTH:
        return plan
    unit = plan.parting.unit
    waits = overlapped_seconds([Share(plan.steps, 2**60)], network, 1) / 2**60  # of one part, on the busiest level
    best = isqrt(int((alone - busiest) / waits)) if waits * MOST_PARTS**2 > alone - busiest else MOST_PARTS
    counts = [count for count in range(2, min(unit, MOST_PARTS) + 1) if unit % count == 0]
    if not counts:
        return plan

    def seconds(place: int) -> float:
        return overlapped_seconds([Share(plan.steps, counts[place])], network, FOLLOWED_FIRST)

    place, least = least_around(max(bisect_right(counts, best) - 1, 0), len(counts), seconds)
    if least >= alone * WORTH:
        return plan
    in_parts = replace(plan, parts=counts[place])
    return in_parts if (in_parts.seconds or 0.0) < (plan.seconds or 0.0) else plan


def least_around(place: int, count: int, seconds: Callable[[int], float]) -> tuple[int, float]:
    """The place, of so many, to which less and less time leads from one, up and then down, and what it takes.

    Where hops are a floor under bytes, more parts than are reckoned with may take no longer, or fewer.

    >>> least_around(3, 5, [4.0, 1.0, 2.0, 3.0, 3.0].__getitem__)
    (1, 1.0)
    """
    known = cache(seconds)
    for turn in (1, -1):
        while 0 <= place + turn < count and known(place + turn) < known(place):
            place += turn
    return place, known(place)
