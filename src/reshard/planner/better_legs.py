"""A plan whose legs are planned anew: what is cheapest whole need not be cheapest in parts.

Where messages wait, the candidates between two ends do not hold those between an end and a point on the way:
two steps may be one exchange, and an exchange a chain of collectives.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from reshard.errors import ReshardError
from reshard.network import Network
from reshard.planner.besides import beside_source
from reshard.planner.candidates import at_once, candidates, collectives, level_strides
from reshard.planner.fewer_messages import one_axis_apart
from reshard.planner.policy import best_plan, shrinks_first
from reshard.planner.rough_prices import about_least_seconds
from reshard.planner.route_prices import RoutePrices, TimedRoute, fastest, timed_routes
from reshard.plans import Options, Plan
from reshard.problem import Reshard
from reshard.steps import Route

SETTLED = ("Slice", "AllGather", "AllToAll")
"""Steps that no other chain takes the place of."""
SPLIT = 1.6
"""A step that takes up to so many times the least is seldom better in several."""
CACHED = 1024
"""How many legs are kept."""


def with_better_legs(plan: Plan) -> Plan:
    """The plan, with every leg from or to an end for which a cheaper way is known put right, until none is left.

    It stays as it is without latencies, or where its tiles would grow or its memory limit not be kept.
    """
    network, limit = plan.options.network, plan.options.memory_limit
    if plan.options.basis != "any" or network is None or not any(level.latency_s for level in network.levels):
        return plan
    better = plan
    while (improved := _with_one_better_leg(better, network)) is not None:
        better = improved
    return better if (shrinks_first(better) if limit is None else better.peak_bytes <= limit) else plan


def _with_one_better_leg(plan: Plan, network: Network) -> Plan | None:
    """The plan with the first leg replaced for which a cheaper one is known; None where there is none."""
    for start, stop in _legs(len(plan.steps)):
        steps = plan.steps[start:stop]
        if len(steps) == 1 and steps[0].kind in SETTLED:
            continue
        reshard = replace(plan.reshard, source=steps[0].before, target=steps[-1].after)
        seconds = sum((plan.step_seconds or ())[start:stop])
        try:
            if _is_about_least(reshard, network, seconds, is_step=len(steps) == 1):
                continue
            timed = _ways(reshard, network, is_step=len(steps) == 1)
        except ReshardError:  # the one step has pieces too many to be priced
            continue
        if min(way.seconds for way in timed) < seconds * (1 - 1e-9):
            leg = best_plan(list(fastest(timed, RoutePrices.of(reshard, network), Options(network))))
            chain = beside_source((*plan.steps[:start], *leg.steps, *plan.steps[stop:]), network)
            improved = replace(plan, steps=chain)  # of the tiles that a leg begins with it keeps nothing here
            if sum(improved.step_seconds or ()) < sum(plan.step_seconds or ()) * (1 - 1e-9):
                return improved
    return None


def _is_about_least(reshard: Reshard, network: Network, seconds: float, *, is_step: bool) -> bool:
    """Whether a leg takes so little that no other is looked for, by hops of all that changes and bytes along rings.

    Replicas nearby may save hops, so of several steps that is so only where the one from end to end takes no less.
    """
    prices = RoutePrices.of(reshard, network)
    if network.has_switches:
        return False
    before, after = map(prices.of_steps.roles_of, prices.ends) if prices.by_digits else (None, None)
    if before is None or after is None:
        return False
    if seconds > about_least_seconds(prices.of_steps, before, after) * (SPLIT if is_step else 1.0):
        return False
    return is_step or prices.timed(Route()).seconds >= seconds * (1 - 1e-9)


def _legs(count: int) -> list[tuple[int, int]]:
    """Every part of a chain from its start or to its end, the whole left out.

    >>> _legs(3)
    [(0, 1), (1, 3), (0, 2), (2, 3)]
    """
    return [leg for place in range(1, count) for leg in ((0, place), (place, count))]


@lru_cache(CACHED)
def _ways(reshard: Reshard, network: Network, *, is_step: bool) -> list[TimedRoute]:
    """The candidates, their legs as they are.

    Between points that one step joins: that step, near replicas sending or not, and the collectives, or an axis inside
    hosts apart, unless no way of two starts can take less.
    """
    prices = RoutePrices.of(reshard, network)
    if not is_step:
        return timed_routes(prices, at_once(prices) or candidates(reshard, network))
    steps = [Route((), near) for near in (0, *level_strides(network))]
    timed = timed_routes(prices, steps)
    if prices.least_seconds(2) >= min(way.seconds for way in timed):
        return timed
    others = one_axis_apart(prices, min(way.seconds for way in timed)) if prices.by_digits else ()
    return timed_routes(prices, [*steps, *collectives(prices), *others])


cache_clear = _ways.cache_clear
"""Forget the legs."""
