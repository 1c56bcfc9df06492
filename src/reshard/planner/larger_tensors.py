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
>>> of_larger = Plan(larger, Route().chain(larger), options)
>>> [[step.kind for step in way.steps] for way in plans_ended_inside(reshard, of_larger)]
[['Slice']]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import lcm, prod
from typing import NamedTuple

from reshard.axis import shards
from reshard.errors import ReshardError
from reshard.network import Network
from reshard.planner.besides import beside_source
from reshard.planner.evened import chain_ended_inside, combined_apart, evened_shapes
from reshard.planner.number_of_parts import overlapped
from reshard.planner.policy import best_plan, is_of_many, shrinks_first
from reshard.planner.route_prices import TimedRoute, has_too_many_pieces
from reshard.plans import Options, Plan
from reshard.plans.ended_inside import ended_inside
from reshard.plans.in_parts import taken_whole
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Chain, Route, Share

NEAR_LARGER, NEAR_LARGER_OF_MANY = 1.03, 1.1
"""Up to so many times what a larger tensor takes a plan takes about as long, and one on many devices: beyond the first
other larger tensors are tried, beyond the second all ways of the tensor itself."""
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
    steps = Route().chain(reshard)
    ways = [] if has_too_many_pieces(steps, MOST_AT_LAST) else [Plan(reshard, steps, options)]
    larger_s = list[float]()
    for larger in evened_shapes(reshard):
        twin = plan_of(replace(reshard, shape=larger), network, options)
        larger_s.append(twin.seconds or 0.0)
        ways += plans_ended_inside(reshard, twin)
        if ways:
            best = best_plan(ways)
            ways = [best_plan([best, *in_own_blocks(best, [timed_as(twin)])])]
            if (ways[0].seconds or 0.0) <= NEAR_LARGER * min(larger_s):
                break
    if not ways or not larger_s:
        return ByLarger(best_plan(ways) if ways else None)
    best = best_plan(ways)
    near = NEAR_LARGER_OF_MANY if is_of_many(reshard.source.mesh) else NEAR_LARGER
    return ByLarger(best, (best.seconds or 0.0) <= near * min(larger_s))


def plans_ended_inside(reshard: Reshard, larger: Plan) -> Iterator[Plan]:
    """The plan of a larger tensor, for one that ends inside it: as it is, and with what it combines combined apart."""
    chains = [share.steps for share in larger.shares if share.steps]
    for variant in dict.fromkeys([tuple(chains), tuple(map(combined_apart, chains))]) if chains else ():
        inside = _nearest_shape(reshard, larger, variant)
        lies_so = ended_inside(reshard.source, inside, reshard.shape) == reshard.source
        for cut_first in (False, True) if not lies_so and _are_cut_first(variant) else (False,):
            with suppress(ReshardError):  # what cannot be made is none
                plan = _ended(reshard, inside, larger, variant, cut_first=cut_first)
                yield _with_its_parts(plan)
                if not plan.beside and len(plan.steps) > len(variant[0]):  # what is put in place in parts as well
                    yield _with_its_parts(overlapped(taken_whole(plan)))


def _ended(
    reshard: Reshard, inside: tuple[int, ...], larger: Plan, chains: Sequence[Chain], *, cut_first: bool
) -> Plan:
    """The plan of a tensor that ends inside a larger one of this shape, whose shares go through these chains.

    Raises:
        ReshardError: where a step cannot be made, or has too many pieces.
    """
    in_parts = larger.parts > 1
    ended = [chain_ended_inside(reshard, inside, steps, in_parts=in_parts, cut_first=cut_first) for steps in chains]
    if any(has_too_many_pieces(steps, MOST_AT_LAST) for steps, _ in ended):
        raise ReshardError("too-large", f"the pieces of {reshard} are too many to list one by one")
    first, last = whole = ended[0].whole if in_parts else (0, 0)
    ways = []
    for steps, _ in ended:  # what the whole tensor does before and after parts is beside nothing
        stop = len(steps) - last
        inner = beside_source(steps[first:stop], larger.options.network)
        ways.append((*steps[:first], *inner, *steps[stop:]))
    beside = tuple(Share(steps, share.parts) for steps, share in zip(ways[1:], larger.beside, strict=False))
    return Plan(reshard, ways[0], larger.options, parts=larger.parts, beside=beside, whole=whole)


def _with_its_parts(plan: Plan) -> Plan:
    """The plan, once what every part goes through is made.

    Raises:
        ReshardError: where that of some part cannot be.
    """
    _ = [stretch.plans_of_parts for stretch in plan.stretches]
    return plan


def _are_cut_first(chains: Sequence[Chain]) -> bool:
    """Whether all chains begin with the same cut of the tiles that devices have, which nothing uses whole later on."""
    cuts = {steps[0].after if steps[0].kind == "Slice" else None for steps in chains}
    keeps_whole = any(step.ring and step.kept for steps in chains for step in steps)
    return len(cuts) == 1 and None not in cuts and not keeps_whole


def _nearest_shape(reshard: Reshard, larger: Plan, chains: Sequence[Chain]) -> tuple[int, ...]:
    """The least shape of which chains of a larger tensor have tiles of one size, and parts where it has some."""
    points = [chain[0].before for chain in chains] + [step.after for chain in chains for step in chain]
    nearest = []
    for dim, (size, most) in enumerate(zip(reshard.shape, larger.shape, strict=True)):
        count = lcm(*(_tiles_of_dim(point, dim) for point in points)) * (
            larger.parts if larger.parts > 1 and larger.parting.dim == dim else 1
        )
        nearest.append(min(-(-size // count) * count, most))
    return tuple(nearest)


def _tiles_of_dim(sharding: Sharding, dim: int) -> int:
    """Into how many blocks of one length a dim is cut."""
    cut = sharding.dims[dim]
    parts = [deal.numbers[0] for deal in cut.deals if deal.kind == "parts"]
    return prod([shards(cut.axes, sharding.mesh.sizes), *parts])


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
                plan = Plan(best.reshard, beside_source(steps, best.options.network), best.options)
                if shrinks_first(plan):
                    limit_s = min(limit_s, plan.seconds or 0.0)
                    yield plan


def timed_as(plan: Plan) -> TimedRoute:
    """The way of a plan's first share, with what the plan takes."""
    middles = tuple([step.after for step in plan.steps[:-1]])
    return TimedRoute(Route(middles, max((step.near for step in plan.steps), default=0)), plan.seconds or 0.0, (), ())
