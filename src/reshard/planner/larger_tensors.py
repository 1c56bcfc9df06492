"""The ways of the next larger tensors, whose dims all axes together divide, for a tensor that ends inside them.

Tiles of such a tensor are of one size, so digits say what its ways move.
All ways of uneven tiles take long to look for, so these come first: what takes about as long as the larger tensor does
is good enough, the more so of many devices.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> mesh, options = Mesh.of(x=2, y=2), Options(Network.preset("h100-4"))
>>> reshard = Reshard.of(Sharding.of(mesh, "x"), Sharding.of(mesh, ("x", "y")), (7,))
>>> larger = replace(reshard, shape=(8,))
>>> is_even(reshard), is_even(larger)
(False, True)
>>> [[step.kind for step in way.steps] for way in ended_inside(reshard, Plan(larger, Route().chain(larger), options))]
[['Slice']]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from reshard.errors import ReshardError
from reshard.network import Network
from reshard.planner.evened import chain_ended_inside, combined_apart, evened_shapes, whole_steps
from reshard.planner.policy import best_plan, is_of_many, shrinks_first
from reshard.planner.route_prices import TimedRoute, has_too_many_pieces
from reshard.plans import Options, Plan
from reshard.problem import Reshard
from reshard.steps import Route, Share

NEAR_LARGER, NEAR_LARGER_OF_MANY = 1.03, 1.1
"""Up to so many times what a larger tensor takes a plan takes about as long, and one on many devices."""
MOST_AT_LAST = 2**18
"""How many pieces are looked at one by one of the few ways that larger tensors go."""
OWN = 4
"""How many ways of a larger tensor are tried in the blocks of a smaller one."""


Searched = tuple[Plan, Sequence[TimedRoute]]
"""A plan, and the ways between its ends that are known."""


def is_even(reshard: Reshard) -> bool:
    """Whether all tiles of an end are as large."""
    return all(tiling.is_even() for tiling in reshard.tilings)


class ByLarger(NamedTuple):
    """What is known of the ways of larger tensors, and of one step."""

    plan: Plan | None
    """The soonest; None where they were not looked for, or have too many pieces."""
    is_near: bool = False
    """Whether it takes about as long as the larger tensors."""


def or_searched(by_larger: ByLarger, search: Callable[[], Searched]) -> Searched:
    """What the ways of larger tensors are, where these are near; else the sooner of these and what is searched for."""
    known = by_larger.plan
    if known is not None and by_larger.is_near:
        return known, []
    try:
        best, timed = search()
    except ReshardError:  # no way has few pieces
        if known is None:
            raise
        return known, []
    return best if known is None else best_plan([known, best]), timed


def as_larger_tensors(
    reshard: Reshard, network: Network, options: Options, plan_of: Callable[[Reshard, Network, Options], Plan]
) -> ByLarger:
    """Of tiles that differ in size the soonest of one step and the ways that larger tensors go."""
    if is_even(reshard):
        return ByLarger(None)
    ways = list[Plan]()
    steps = Route().chain(reshard)
    if not has_too_many_pieces(steps, MOST_AT_LAST):
        ways.append(Plan(reshard, steps, options))
    twins = [plan_of(replace(reshard, shape=larger), network, options) for larger in evened_shapes(reshard)]
    ways += [plan for twin in twins for plan in ended_inside(reshard, twin)]
    if not twins or not ways:
        return ByLarger(best_plan(ways) if ways else None)
    best = best_plan(ways)
    best = best_plan([best, *in_own_blocks(best, map(timed_as, twins))])
    near = NEAR_LARGER_OF_MANY if is_of_many(reshard.source.mesh) else NEAR_LARGER
    return ByLarger(best, (best.seconds or 0.0) <= near * min(twin.seconds or 0.0 for twin in twins))


def ended_inside(reshard: Reshard, larger: Plan) -> Iterator[Plan]:
    """The plan of a larger tensor, for one that ends inside it: as it is, and with what it combines combined apart."""
    chains = [share.steps for share in larger.shares if share.steps]
    for variant in dict.fromkeys([tuple(chains), tuple(map(combined_apart, chains))]) if chains else ():
        with suppress(ReshardError):  # what cannot be made is none
            ended = [chain_ended_inside(reshard, larger.shape, steps) for steps in variant]
            if any(has_too_many_pieces(steps, MOST_AT_LAST) for steps in ended):
                continue
            beside = tuple(Share(steps, share.parts) for steps, share in zip(ended[1:], larger.beside, strict=False))
            whole = whole_steps(reshard, larger.shape, ended[0]) if larger.parts > 1 else (0, 0)
            plan = Plan(reshard, ended[0], larger.options, parts=larger.parts, beside=beside, whole=whole)
            _ = [stretch.plans_of_parts for stretch in plan.stretches]  # made, for not all parts can be
            yield plan


def in_own_blocks(best: Plan, ways: Iterable[TimedRoute]) -> Iterator[Plan]:
    """The plans through the shardings that ways of a larger tensor pass, those first that take that one least.

    Args:
        best: the plan to beat.
        ways: of the larger tensor.
    """
    limit_s = best.seconds or 0.0
    own = [way for way in ways if way.route.middles and not any(middle.is_woven for middle in way.route.middles)]
    for way in sorted(own, key=lambda way: way.seconds)[:OWN]:
        if way.seconds < limit_s:
            with suppress(ReshardError):  # what cannot be made is none
                steps = Route(way.route.middles, way.route.near).chain(best.reshard)
                if has_too_many_pieces(steps):
                    continue
                plan = Plan(best.reshard, steps, best.options)
                if shrinks_first(plan):
                    limit_s = min(limit_s, plan.seconds or 0.0)
                    yield plan


def timed_as(plan: Plan) -> TimedRoute:
    """The way of a plan's first share, with what the plan takes."""
    middles = tuple([step.after for step in plan.steps[:-1]])
    return TimedRoute(Route(middles, max((step.near for step in plan.steps), default=0)), plan.seconds or 0.0, (), ())
