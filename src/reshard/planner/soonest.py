"""The plan that takes the least time on a network.

Candidates come first, then what is like them: along rings, in fewer messages, with axes placed anew, with what is
partial combined by itself, in shares; and on rings what is gathered last.
Further ways come after these, where the best so far is far from the least, and take its place only if they are sooner.
A tensor of uneven tiles goes the ways of the next larger one too that has none, and last one of even tiles that not all
axes divide.
Before that come plans by way of an end that is cut further (`joined`).

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(h=2, g=2)
>>> reshard = Reshard.of(Sharding.of(mesh, ("h", "g")), Sharding.of(mesh, None), (8,), "float32")
>>> network = Network.preset("h100-1x4")
>>> [step.kind for step in fastest_plan(reshard, network, Options(network)).steps]
['AllGather']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import inf

from reshard.errors import ReshardError
from reshard.network import Network, least_seconds
from reshard.planner import better_legs
from reshard.planner.candidates import at_once, candidates
from reshard.planner.evened import evened_shapes
from reshard.planner.fewer_messages import few_hosts, gathered_partial, in_fewer_messages, sliced_first
from reshard.planner.gathered_last import gathered_last
from reshard.planner.joined import finer, going_on, joined
from reshard.planner.larger_tensors import (
    Searched,
    as_larger_tensors,
    in_own_blocks,
    is_even,
    or_searched,
    plans_ended_inside,
    timed_as,
)
from reshard.planner.likeness import unlike
from reshard.planner.middles import worth_trying
from reshard.planner.mixes import with_shares
from reshard.planner.number_of_parts import WORTH, overlapped
from reshard.planner.placed_anew import FAR, MIXED, parts_a_ring, placed_anew
from reshard.planner.policy import best_plan, is_small, may_grow
from reshard.planner.route_prices import (
    TIE,
    RoutePrices,
    TimedRoute,
    fastest,
    timed_routes,
    uses_or_most,
)
from reshard.plans import Options, Plan
from reshard.problem import Reshard
from reshard.refinement import refine
from reshard.sharding import Sharding
from reshard.steps import Chain, Route
from reshard.tiling import Tiling

NEAR = 1.1
"""Up to so many times the least a plan is near it."""
HANDED_ON = 3
"""What goes along rings from neighbour to neighbour is to gain more than so many steps half round one."""
NEARLY = 1.02
"""Up to so many times the least nothing goes along rings from neighbour to neighbour."""
CLOSE = 1.2
"""Up to so many times the least no middle of another kind is looked for."""
HOPELESS = 8
"""Large plans that take so many times the least are hopelessly far from it."""
HOPELESS_UNEVEN = 1.7
"""The same where partial values have uneven tiles, of whose middles a rough price says little."""
COMBINED = 2
"""How many ways to combine values are tried with all ways to move them then."""
CACHED_PLANS = 1024
"""Plans that are kept; the one that was used longest ago makes room."""


@lru_cache(CACHED_PLANS)
def fastest_plan(reshard: Reshard, network: Network, options: Options) -> Plan:
    """The plan that takes least on a network, its steps overlapped, its legs as good as any, in shares."""

    def searched() -> Searched:
        best, timed = _fastest_between(reshard, network, options)
        best = _gathered_partial(_by_middles(_by_finer_ends(best, timed), timed), timed)
        is_as_good = not is_even(reshard) or not _is_far_from_least(best, RoutePrices.of(reshard, network))
        return best if is_as_good else _by_larger_tensors(best), timed

    return or_searched(as_larger_tensors(reshard, network, options, fastest_plan), searched)[0]


@lru_cache(CACHED_PLANS)
def _fastest_between(reshard: Reshard, network: Network, options: Options) -> Searched:
    """The same of ways that are not made of two plans, and the ways between these ends that are known."""

    def searched() -> Searched:
        known, timed = _fastest_of_candidates(reshard, network, options)
        best = _by_further_ways(known, timed)
        return best if is_even(reshard) else _by_larger_tensors(best), timed

    return or_searched(as_larger_tensors(reshard, network, options, _fastest_whole), searched)


def _fastest_leg(reshard: Reshard, network: Network, options: Options, *, by_middles: bool = False) -> Plan:
    """The same, and of ways that gather partial values; of two plans only if middles are asked for."""
    best, timed = _fastest_between(reshard, network, options)
    return _gathered_partial(_by_middles(best, timed, further=False) if by_middles else best, timed)


def _gathered_partial(best: Plan, timed: Sequence[TimedRoute]) -> Plan:
    """The plan, or a sooner one that gathers small partial values; last, for it takes the place of what led further."""
    reshard, network = best.reshard, best.options.network
    if network is None or not best.seconds or not reshard.source.unreduced:
        return best
    if not is_small(reshard) or not may_grow(network):
        return best
    prices = RoutePrices.of(reshard, network)
    return _sooner(gathered_partial(prices), best, timed, prices)


def _fastest_whole(reshard: Reshard, network: Network, options: Options) -> Plan:
    return _fastest_between(reshard, network, options)[0]


def _by_larger_tensors(best: Plan) -> Plan:
    """The plan, or a sooner one by the ways of a larger tensor whose dims all axes together divide."""
    reshard, options, network = best.reshard, best.options, best.options.network
    if network is None:
        return best
    for larger in evened_shapes(reshard):
        twin, ways = _fastest_of_candidates(replace(reshard, shape=larger), network, options)
        further = _by_further_ways(twin, ways)
        twins = dict.fromkeys([twin, further, _by_finer_ends(further, ways)])
        for way in twins:  # what ends inside it decides
            best = best_plan([best, *plans_ended_inside(reshard, way)])
        best = best_plan([best, *in_own_blocks(best, [*map(timed_as, twins), *ways])])
    return best


def _by_finer_ends(best: Plan, timed: Sequence[TimedRoute]) -> Plan:
    """The plan, or a sooner one by way of an end that is cut further by all axes that it does not use.

    Looked for where a plan is far from the least; of even tiles only large ones that are whole values, on rings and
    lines, for else the other ways are as good. Timed are the ways that are known.
    """
    reshard, network = best.reshard, best.options.network
    if network is None or not best.seconds or reshard.target.unreduced:
        return best
    is_seldom_sooner = reshard.source.unreduced or all(level.is_switch for level in network.levels)
    if is_even(reshard) and (is_seldom_sooner or is_small(reshard)):
        return best
    if not is_small(reshard) and best.seconds <= NEAR * (best.lower_bound_seconds or 0.0):
        return best
    source, target, shape = reshard.source, reshard.target, reshard.shape
    return _by_way_of(dict.fromkeys([*finer(source, target, shape), *finer(target, source, shape)]), best, timed)


def _by_middles(best: Plan, timed: Sequence[TimedRoute], *, further: bool = True) -> Plan:
    """The plan, or a sooner one by way of a middle that is worth two plans. Timed are the ways that are known.

    Further, the legs of a plan that is hopelessly far from the least have such middles too.
    """
    network, seconds = best.options.network, best.seconds or 0.0
    if network is None or not seconds or not RoutePrices.of(best.reshard, network).is_of_patterns:
        return best
    if not is_small(best.reshard) and seconds <= CLOSE * (best.lower_bound_seconds or 0.0):
        return best
    for way in worth_trying(best.reshard, network, seconds - network.call_s, anyway=_is_hopeless(best)):
        if _is_hopeless(best) or way.seconds < (best.seconds or 0.0) - network.call_s:
            best = _by_way_of([way.middle], best, timed, by_middles=further and _is_hopeless(best))
    return best


def _by_way_of(
    middles: Iterable[Sharding], best: Plan, timed: Sequence[TimedRoute], *, by_middles: bool = False
) -> Plan:
    """The plan, or a sooner one of two by way of one of these middles.

    Timed are the ways that are known; `by_middles` is that of `_fastest_leg`.
    """
    reshard, options, network = best.reshard, best.options, best.options.network
    if network is None:
        return best
    prices = RoutePrices.of(reshard, network)
    for middle in middles:
        with suppress(ReshardError):  # what cannot be made is none
            to_middle, from_middle = replace(reshard, target=middle), replace(reshard, source=middle)
            limit_s = (best.seconds or 0.0) + network.call_s  # a call both pay, and joined once
            least_rest_s = least_seconds(from_middle, network)
            if least_rest_s + least_seconds(to_middle, network) >= limit_s:
                continue
            first = _fastest_leg(to_middle, network, options, by_middles=by_middles)
            limit_s -= first.seconds or 0.0
            if least_rest_s >= limit_s:
                continue
            rest = _fastest_leg(from_middle, network, options, by_middles=by_middles)
            if (rest.seconds or 0.0) < limit_s:
                more = _others(timed, going_on([share.steps for share in first.shares], rest), prices)
                along = _is_worth_handing_on(best, prices)
                best = _best_of(more, prices, options, best, timed, along=along)
                best = best_plan([best, joined(reshard, first, rest)])
    return best


def _fastest_of_candidates(reshard: Reshard, network: Network, options: Options) -> tuple[Plan, Sequence[TimedRoute]]:
    """That of the candidates and those like them alone, and the ways that it was chosen among."""
    prices = RoutePrices.of(reshard, network)
    direct = prices.timed(Route())
    if _is_least(direct, prices):
        return Plan(reshard, prices.chain(direct.route), options), [direct]
    routes = at_once(prices)
    timed = timed_routes(prices, routes or candidates(reshard, network))
    best = _best_of(timed, prices, options)
    along = _is_worth_handing_on(best, prices)
    if along:
        more = [other for way in timed for other in prices.timed_along(way)]
        best, timed = _best_of(more, prices, options, best, timed, along=True), [*timed, *more]
    seconds = best.seconds or 0.0
    if not routes and seconds and prices.by_digits:
        best = _sooner(in_fewer_messages(timed, prices, seconds), best, timed, prices)
    if prices.by_digits and parts_a_ring(reshard, network) and seconds > FAR * (best.lower_bound_seconds or 0.0):
        more = _others(timed, placed_anew(prices, seconds * MIXED, along=along), prices)
        if more:
            more += [other for way in more for other in prices.timed_along(way)] if along else []
            best, timed = _best_of(more, prices, options, best, timed, along=along), [*timed, *more]
    is_of_boxes = bool(reshard.source.unreduced) and _is_of_boxes(timed, reshard)
    if reshard.source.unreduced and (is_small(reshard) or is_of_boxes or _is_far_from_least(best, prices)):
        count = COMBINED if is_of_boxes or not is_small(reshard) else 1
        more = _others(timed, _moved_by_themselves(timed, prices, options, best.seconds or 0.0, count), prices)
        best = _best_of(more, prices, options, best, timed)
    if not along and _is_far_from_least(best, prices):
        best = with_shares(best, timed, finely=True)
    return best, timed


def _by_further_ways(best: Plan, timed: Sequence[TimedRoute]) -> Plan:
    """The plan, or one by ways that are worth looking for where it is far from the least; timed are those known."""
    reshard, options, network = best.reshard, best.options, best.options.network
    if network is None or not best.seconds:
        return best
    prices = RoutePrices.of(reshard, network)
    if prices.by_digits:
        best = _sooner(few_hosts(prices, best.seconds), best, timed, prices)
    best = _sooner(sliced_first(prices, best.seconds or 0.0), best, timed, prices)
    if may_grow(network):
        best = _sooner(gathered_last(prices, (best.seconds or 0.0) - network.call_s), best, timed, prices, legs=False)
    seconds, more = best.seconds or 0.0, list[Route]()
    if reshard.source.unreduced and (is_small(reshard) or _is_far_from_least(best, prices)):
        count = 1 if is_small(reshard) else COMBINED
        more = _moved_by_themselves(timed, prices, options, seconds, count, soonest=True)
    others = _others(timed, more, prices) if more else []
    return _best_of(others, prices, options, best, timed) if others else best


def _sooner(
    routes: Iterable[Route], best: Plan, timed: Sequence[TimedRoute], prices: RoutePrices, *, legs: bool = True
) -> Plan:
    """The best plan, or that of a route which takes less whole; `legs` is that of `_best_of`."""
    limit_s, further = (best.seconds or 0.0) - prices.network.call_s, list(routes)
    more = [way for way in _others(timed[:1], further, prices) if way.seconds < limit_s] if further else []
    return _best_of(more, prices, best.options, best, timed, legs=legs) if more else best


def _others(timed: Sequence[TimedRoute], routes: Iterable[Route], prices: RoutePrices) -> list[TimedRoute]:
    """Routes with what they take, those left out that are known already or cannot be made."""
    return timed_routes(prices, [*(way.route for way in timed), *routes])[len(timed) :]


def _is_of_boxes(timed: Sequence[TimedRoute], reshard: Reshard) -> bool:
    """Whether some steps go box by box, in more messages than where tiles are even and cuts nest."""
    before, after = (tiling.layout for tiling in reshard.tilings)
    middles = dict.fromkeys(middle for way in timed for middle in way.route.middles)
    tilings = (*reshard.tilings, *(Tiling.of(middle, reshard.shape) for middle in middles))
    return not all(tiling.is_even() for tiling in tilings) or refine(before, after, reshard.shape) is None


def _is_least(way: TimedRoute, prices: RoutePrices) -> bool:
    """Whether no way takes less than one, as far as that is known in closed form."""
    reshard, network = prices.reshard, prices.network
    if not way.seconds or network.launch_s or not prices.bytes_decide:  # of starts the least seconds say nothing
        return not way.seconds
    return way.seconds <= least_seconds(reshard, network) * (1 + TIE)


def _is_far_from_least(plan: Plan, prices: RoutePrices) -> bool:
    """Whether bytes decide, and what they take is far from the least, where that is known in closed form."""
    return prices.bytes_decide and (plan.seconds or 0.0) > NEAR * (plan.lower_bound_seconds or 0.0)


def _is_hopeless(plan: Plan) -> bool:
    """Whether a large tensor takes so many times the least that its ways can hardly be the right ones."""
    reshard = plan.reshard
    times = HOPELESS_UNEVEN if reshard.source.unreduced and not is_even(reshard) else HOPELESS
    return not is_small(reshard) and (plan.seconds or 0.0) > times * (plan.lower_bound_seconds or 0.0)


def _is_worth_handing_on(plan: Plan, prices: RoutePrices) -> bool:
    """Whether there are rings, and a plan is further from the least than by three steps half round a ring."""
    network = prices.network
    hops_s = [level.size // 2 * level.latency_s for level in network.levels if level.link == "ring" and level.size > 2]
    most_s = (plan.seconds or 0.0) - network.call_s - HANDED_ON * max(hops_s, default=inf)  # a call every plan pays
    near_s = most_s / NEARLY
    if not prices.by_digits or most_s <= 0 or prices.least_seconds(1) >= near_s:
        return False
    return least_seconds(plan.reshard, network, near_s) < near_s


def _moved_by_themselves(
    timed: Sequence[TimedRoute],
    prices: RoutePrices,
    options: Options,
    limit_s: float,
    count: int,
    *,
    soonest: bool = False,
) -> list[Route]:
    """Ways that combine partial values first, and then go as a tensor goes that is combined already.

    They are combined at so many places, where the way on is soonest that is known, and small tensors where they are; or
    where that is soonest with what the rest takes at the least. Unless one step after another takes as long as a limit
    then, if the tensor is small.
    """
    leading: dict[Sharding, dict[Route, None]] = {}
    for way in sorted(timed, key=lambda way: way.seconds):
        for number, middle in enumerate(way.route.middles):
            if not middle.unreduced:
                leading.setdefault(middle, {})[Route(way.route.middles[:number], way.route.near)] = None
                break
    reshard, network = prices.reshard, prices.network
    in_place = [middle for middle in leading if middle.dims == reshard.source.dims and is_small(reshard)]
    distinct = unlike(list(leading), reshard)
    places = [*distinct[:count], *in_place]
    chains: dict[Sharding, list[Chain]] = {}
    least_s: dict[Sharding, float] = {}
    for middle in distinct if soonest else dict.fromkeys(places):
        rest_s = RoutePrices.of(replace(reshard, source=middle), network).least_seconds(1)
        made = [first.chain(replace(reshard, target=middle)) for first in leading[middle]]
        timed_chains = [(rest_s + sum(use.seconds for use in uses_or_most(chain, network)), chain) for chain in made]
        kept = [(seconds, chain) for seconds, chain in timed_chains if seconds < limit_s or not is_small(reshard)]
        if kept:
            chains[middle], least_s[middle] = [chain for _, chain in kept], min(seconds for seconds, _ in kept)
    if soonest:
        ordered = sorted(least_s, key=lambda middle: least_s[middle])
        places = [middle for middle in ordered[:count] if middle not in places]
    routes: list[Route] = []
    for middle in dict.fromkeys(places):
        if middle in chains:
            routes += going_on(chains[middle], fastest_plan(replace(reshard, source=middle), network, options))
    return routes


def cache_clear() -> None:
    """Forget the plans that take the least time."""
    fastest_plan.cache_clear()
    _fastest_between.cache_clear()


def _best_of(
    timed: Sequence[TimedRoute],
    prices: RoutePrices,
    options: Options,
    known: Plan | None = None,
    beside: Sequence[TimedRoute] = (),
    *,
    along: bool = False,
    legs: bool = True,
) -> Plan:
    """The plan of one of these routes, or of shares of them, that takes least.

    Args:
        timed: the routes.
        prices: theirs.
        options: of the plan.
        known: the best plan of other routes, where there are any.
        beside: these others.
        along: that of `with_shares`.
        legs: whether those of the best route are planned anew.
    """
    known_s = inf if known is None else (known.seconds or 0.0)
    least = min((way.seconds for way in timed), default=inf)
    plans = [] if known is None else [known]
    if least <= known_s * (1 + TIE):
        plans += fastest(timed, prices, options)
    if not plans:
        raise ReshardError("too-large", f"no way is known for {prices.reshard} whose pieces can be listed")
    if not prices.may_part([*beside, *timed], min(least, known_s)):
        return best_plan(plans)
    best = best_plan([*plans, *_in_parts(timed, prices, options, known_s)])
    if legs and best is not known:
        best = _with_better_legs(best)
    shared = with_shares(best, [*beside, *timed], along=along, finely=along and prices.bytes_decide)
    return _with_better_legs(shared) if legs and shared is not best else shared


def _with_better_legs(plan: Plan) -> Plan:
    """A plan of one part with its legs planned anew, then in parts; any other as it is."""
    return overlapped(better_legs.with_better_legs(plan)) if plan.parts == 1 else plan


def _in_parts(timed: Sequence[TimedRoute], prices: RoutePrices, options: Options, limit_s: float) -> Iterator[Plan]:
    """The plans in parts that overlap, but for those that cannot be faster than the best whole one, or a limit."""
    least = min([limit_s, *(way.seconds for way in timed)])
    for way in timed:
        busiest = max(way.busy)
        if busiest > least or busiest >= way.seconds * WORTH:
            continue
        if prices.least_seconds_in_parts(way) < min(least, way.seconds * WORTH):
            plan = overlapped(Plan(prices.reshard, prices.chain(way.route), options))
            if plan.parts > 1:
                least = min(least, plan.seconds or 0.0)
                yield plan
