"""What ways from source to target take on a network, before they are chains of steps.

Most of many are only compared, so no step of theirs is made: what it takes follows from what digits do (`step_prices`).
Where that is not so (tiles that differ in size, partial values, windows, devices in another order) steps are made, and
these are priced.

By hand, 4 rows of 4 bytes on 2 x 2 devices, from rows to columns by `x`; one byte/s through every port: two bytes of
each row go to the other device, 2 rows a device; by way of the whole tensor it takes 8 to gather, then nothing.

>>> from reshard.mesh import Mesh
>>> from reshard.network import Level
>>> mesh, network = Mesh.of(x=2, y=2), Network((Level(1, 4, "switch", 1, 0),))
>>> rows, columns, whole = (Sharding.of(mesh, *dims) for dims in (("x", None), (None, "x"), (None, None)))
>>> prices = RoutePrices.of(Reshard.of(rows, columns, (4, 4), "int8"), network)
>>> [prices.timed(route).seconds for route in (Route(), Route((whole,)))]
[4.0, 8.0]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import pairwise
from math import inf, sqrt
from typing import NamedTuple

from reshard.errors import ReshardError
from reshard.network import Network, Use, check_reach, listed_pieces, use_at_most, uses_of
from reshard.planner.besides import keeping
from reshard.planner.policy import is_of_many, is_small, shrinks_between
from reshard.planner.step_prices import AlongRing, StepPrices
from reshard.plans import Options, Plan
from reshard.problem import Reshard
from reshard.refinement import refine
from reshard.sharding import Sharding
from reshard.steps import Chain, Route, Step, chain_through, shortest_chain, step_of

TIE = 1e-12
"""Routes whose times differ by less are compared by what they receive."""
MOST_PIECES = 2**16
"""On many devices ways are left out with more pieces to look at one by one."""
VERY_MANY = 2**40
"""One of so many parts takes next to nothing but latencies."""
MANY = 3
"""From so many plans on that need not be made it is worth telling whether one moves as little as any."""


class TimedRoute(NamedTuple):
    """A route, and what it takes."""

    route: Route
    seconds: float
    """One step after another, but for what a plan pays once to start."""
    busy: tuple[float, ...]
    """Per level; last the starts of steps."""
    between: tuple[int, ...]
    """The elements of the largest tile where a step ends, the last left out."""


class RoutePrices:
    """What routes of one reshard take on a network."""

    def __init__(self, reshard: Reshard, network: Network) -> None:
        self.reshard, self.network = reshard, network
        self.ends = reshard.source, reshard.target
        for end in self.ends:
            check_reach(network, end.mesh)
        digits = reshard.source.mesh.digits.primes()
        self.of_steps = StepPrices.of(digits, reshard.shape, reshard.dtype.itemsize, network)
        self._timed: dict[Route, TimedRoute] = {}
        self.is_of_patterns = network.copy_bandwidth is None and not network.meet_s
        """Whether it does not matter what is sent, nor in which groups."""
        self.by_digits = self.is_of_patterns and all(self.of_steps.roles_of(end) is not None for end in self.ends)

    @classmethod
    @lru_cache(64)  # asked for by whoever finds routes and by whoever compares them, of legs and rests in between
    def of(cls, reshard: Reshard, network: Network) -> RoutePrices:
        """The prices, kept while they are asked for.

        Raises:
            ReshardError: `bad-network`.
        """
        return cls(reshard, network)

    @cached_property
    def bytes_decide(self) -> bool:
        """Whether latencies count little, and what bytes take at the least is known in closed form."""
        before, after = (tiling.layout for tiling in self.reshard.tilings)
        return not is_small(self.reshard) and refine(before, after, self.reshard.shape) is not None

    def timed(self, route: Route) -> TimedRoute:
        """What a route takes.

        Raises:
            ReshardError: as `Route.chain`, and `too-large`.
        """
        try:
            return self._timed[route]
        except KeyError:
            way = self._timed[route] = self._time(route)
            return way

    def timed_along(self, way: TimedRoute) -> list[TimedRoute]:
        """The same along rings, and where devices keep their first tiles besides, if links carry less then."""
        if way.route.along or not self.by_digits or way.route.steps is not None:
            return []
        routes = [way.route._replace(along=True, keeps=keeps) for keeps in (False, True)]
        rings = map(self._rings, routes)
        is_other = (
            any(ring is not None and (ring.uses_kept or not keeps) for ring in each) for keeps, each in enumerate(rings)
        )
        return [self.timed(route) for route, is_taken in zip(routes, is_other, strict=True) if is_taken]

    def _rings(self, route: Route) -> list[AlongRing | None]:
        """Per step, along which ring it goes."""
        states = [roles for point in self.points(route) if (roles := self.of_steps.roles_of(point)) is not None]
        kept = states[0] if route.keeps else None
        legs = ((before, after) for before, after in pairwise(states) if before.roles != after.roles)
        return [self.of_steps.ring_of(*leg, route.near, kept) for leg in legs]

    def chain(self, route: Route) -> Chain:
        """The steps of a route.

        Raises:
            ReshardError: as `Route.chain`.
        """
        steps = route.chain(self.reshard)
        if route.steps is not None or not self.is_of_patterns:
            return steps
        return tuple([self._as_priced(step, route) for step in steps])

    def _as_priced(self, step: Step, route: Route) -> Step:
        """A step of a route along a ring, or beside what devices kept, where that is what it is priced as."""
        source = self.ends[0]
        if step.before is source and not route.along:  # which has nothing else from before
            return step
        before, after, held = map(self.of_steps.roles_of, (step.before, step.after, source))
        if before is None or after is None or held is None:
            return keeping(step, source, self.network)
        along = None
        if route.along and self.by_digits:
            along = self.of_steps.ring_of(before, after, step.near, held if route.keeps else None)
        if along is not None:
            ring, *others = along.rings
            kept = source if along.uses_kept else None
            return step_of(step.reshard, ring=ring, kept=kept, across=others[0] if others else None)
        if self.of_steps.lacked_part(before, after, held) < 1:
            return step_of(step.reshard, step.near, kept=source)
        return step

    def points(self, route: Route) -> tuple[Sharding, ...]:
        """What it passes, both ends too."""
        middles = route.middles if route.steps is None else [step.after for step in route.steps[:-1]]
        return (self.ends[0], *middles, self.ends[1])

    def uses(self, route: Route, parts: int) -> list[Use]:
        """What one of so many parts of the tensor takes in each step.

        Raises:
            ReshardError: as `timed`.
        """
        legs = self._legs(route, parts)
        if legs is None:
            return uses_or_most(self.chain(route), self.network, parts)
        return [use for _, use in legs]

    def least_seconds_in_parts(self, way: TimedRoute) -> float:
        """What a way takes at the least in two parts or more, one behind the other, were latencies to hold links too.

        Endless where halves take longer than the whole, for more parts pay as many latencies more each.
        What a step takes is a latency and what grows with the bytes at least as fast as between a half and the whole.
        So k parts take a + b / k for the first and (k - 1) (c + d / k) on the busiest level for the others, which is
        least at k = √((b - d) / c).

        By hand, steps of 4 s each on two levels, without latencies: one part takes 8 / k s, the others 4 (k - 1) / k,
        never less than 4 s together.

        >>> from reshard.mesh import Mesh
        >>> from reshard.network import Level
        >>> mesh, network = Mesh.of(h=2, g=2), Network((Level(1, 2, "switch", 2, 0), Level(2, 2, "switch", 1, 0)))
        >>> both, g, none = (Sharding.of(mesh, axes) for axes in (("g", "h"), "g", None))
        >>> prices = RoutePrices.of(Reshard.of(both, none, (16,), "int8"), network)
        >>> prices.least_seconds_in_parts(prices.timed(Route((g,))))
        4.0
        """
        half = Use.together(self.uses(way.route, 2), self.network)
        if half.seconds + max(half.busy) >= way.seconds:
            return inf
        grows, least = 2 * (way.seconds - half.seconds), 0.0
        for whole_busy, half_busy in zip(way.busy, half.busy, strict=True):
            busy_grows = 2 * (whole_busy - half_busy)
            waits, rest = max(whole_busy - busy_grows, 0.0), max(grows - busy_grows, 0.0)
            others = 2 * sqrt(waits * rest) if rest > 4 * waits else 2 * waits + rest / 2
            least = max(least, way.seconds - rest - waits + others)
        return least

    def _time(self, route: Route) -> TimedRoute:
        legs = self._legs(route)
        if legs is None:
            chain = self.chain(route)
            uses = uses_or_most(chain, self.network)
            between = tuple(step.reshard.tilings[1].largest_tile for step in chain[:-1])
        else:
            uses, between = [use for _, use in legs], tuple(elements for elements, _ in legs[:-1])
        whole = Use.together(uses, self.network)
        return TimedRoute(route, whole.seconds, whole.busy, between)

    def _legs(self, route: Route, parts: int = 1) -> list[tuple[int, Use]] | None:
        points = self.points(route)
        ways = {"along": route.along, "keeps": route.keeps}
        return self.uses_between(points, route.near, parts, **ways) if route.steps is None else None

    def uses_between(
        self, points: Sequence[Sharding], near: int = 0, parts: int = 1, *, along: bool = False, keeps: bool = False
    ) -> list[tuple[int, Use]] | None:
        """Per step from point to point, the elements of a tile then, and what one of so many parts of the tensor takes.

        Between partial values steps are made; None where digits do not say the rest.
        """
        if not self.is_of_patterns or not any(map(self.of_steps.roles_of, points)):
            return None
        legs: list[tuple[int, Use]] = []
        kept = self.of_steps.roles_of(points[0])
        for source, target in pairwise(points):
            if source.unreduced:
                chain = shortest_chain(replace(self.reshard, source=source, target=target), near)
                sizes = [step.reshard.tilings[1].largest_tile for step in chain]
                legs += zip(sizes, uses_or_most(chain, self.network, parts), strict=True)
                continue
            before, after = self.of_steps.roles_of(source), self.of_steps.roles_of(target)
            if before is None or after is None:
                return None
            if before.roles != after.roles:
                use = self.of_steps.use(before, after, near, parts, along=along, keeps=keeps, kept=kept)
                if use is None:
                    return None
                legs.append((after.elements, use))
        return legs

    def seconds_through(self, points: Sequence[Sharding], near: int = 0) -> float:
        """What it takes from point to point; endless where digits do not say it."""
        legs = self.uses_between(points, near)
        return inf if legs is None else sum(use.seconds for _, use in legs)

    def least_seconds(self, starts: int) -> float:
        """What ways with so many steps that send take at the least, one after another; 0 where digits do not say it."""
        source, target = map(self.of_steps.roles_of, self.ends) if self.by_digits else (None, None)
        return 0.0 if source is None or target is None else self.of_steps.least_seconds(source, target, starts)

    def may_part(self, timed: Iterable[TimedRoute], limit_s: float) -> bool:
        """Whether a tensor that goes in parts, or in shares, by ways that are timed may take less than a limit.

        One start more than the soonest of them takes however little it sends, and no less than all bytes take.
        """
        if not self.by_digits:
            return True
        launch_s = self.network.launch_s
        if self.least_seconds(1) >= limit_s or 2 * launch_s >= limit_s:
            return False
        latencies = (sum([use.seconds for use in self.uses(way.route, VERY_MANY)]) for way in timed)
        return not launch_s or any(launch_s + latency_s < limit_s for latency_s in latencies)

    def is_one_collective(self) -> bool | None:
        """Whether one AllGather, Slice or Permute leads to the target; None where digits do not say it."""
        source, target = map(self.of_steps.roles_of, self.ends)
        return None if source is None or target is None else self.of_steps.is_one_collective(source, target)

    def seconds_to_gather(self, lengths: Sequence[int]) -> float | None:
        """What it takes to gather the source up to blocks of these lengths, at which its digits begin.

        None where digits do not say it.
        """
        source = self.of_steps.roles_of(self.ends[0]) if self.by_digits else None
        use = None if source is None else self.of_steps.use(source, self.of_steps.gathered(source, lengths))
        return None if use is None else use.seconds

    def seconds_to(self, middle: Sharding) -> float:
        """What it takes to get from the source to a sharding, step by step.

        Raises:
            ReshardError: as `timed`.
        """
        chain = chain_through(Reshard(self.ends[0], middle, self.reshard.shape, self.reshard.dtype))
        return sum(use.seconds for use in uses_or_most(chain, self.network))


def uses_or_most(chain: Chain, network: Network, parts: int = 1) -> list[Use]:
    """What one of so many parts takes in each step; on many devices more where pieces are too many to look at.

    Raises:
        ReshardError: as `uses_of`.
    """
    if has_too_many_pieces(chain):
        return [use_at_most(step, network) for step in chain]
    return uses_of(chain, network, parts)


def has_too_many_pieces(steps: Sequence[Step], most: int = MOST_PIECES) -> bool:
    """Whether devices are many and pieces that must be looked at one by one are more than those of one way of many."""
    return bool(steps) and is_of_many(steps[0].before.mesh) and listed_pieces(steps) > most


def timed_routes(prices: RoutePrices, routes: Iterable[Route]) -> list[TimedRoute]:
    """The routes whose tiles do not grow on the way, with what they take; those that cannot be made left out.

    Raises:
        ReshardError: where the first cannot be made.
    """
    timed: list[TimedRoute] = []
    for number, route in enumerate(dict.fromkeys(routes)):
        try:
            way = prices.timed(route)
        except ReshardError:
            if not number:
                raise
            continue
        if shrinks_between(prices.reshard, way.between, prices.network):
            timed.append(way)
    return timed


def fastest(timed: Sequence[TimedRoute], prices: RoutePrices, options: Options) -> Iterator[Plan]:
    """The plans of the routes that take least, where several take as long of all of these.

    Not of those that can be no better than one of them.

    >>> from reshard.mesh import Mesh
    >>> mesh, network = Mesh.of(x=2), Network.preset("h100-2")
    >>> reshard = Reshard.of(Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x"), (4, 4))
    >>> prices = RoutePrices.of(reshard, network)
    >>> [plan.steps[0].kind for plan in fastest(timed_routes(prices, [Route()]), prices, Options(network))]
    ['AllToAll']
    """
    ordered = sorted(timed, key=lambda way: way.seconds)
    while ordered:
        least = ordered[0].seconds
        count = bisect_right(ordered, least * (1 + TIE), key=lambda way: way.seconds)
        plans = list(_leanest(ordered[:count], prices, options))
        if plans:
            yield from plans
            return
        del ordered[0]


def _leanest(ways: Sequence[TimedRoute], prices: RoutePrices, options: Options) -> Iterator[Plan]:
    """The plans of ways that take as long, those of fewest steps first.

    Once one moves as little as any plan, none of more steps is better, nor one that does the same on every level.
    """
    waiting = sorted(ways, key=lambda way: len(way.between))
    while waiting:
        way = waiting.pop(0)
        try:
            plan = Plan(prices.reshard, prices.chain(way.route), options)
        except ReshardError:  # a way that cannot be made is none
            continue
        yield plan
        others = [other for other in waiting if len(other.between) < len(plan.steps)]
        others = [other for other in others if (other.busy, other.between) != (way.busy, way.between)]
        if len(waiting) - len(others) >= MANY and _moves_least(plan):
            waiting = others


def _moves_least(plan: Plan) -> bool:
    """Whether no plan moves less, to any device or to all."""
    if plan.total_received_bytes > plan.total_lower_bound_bytes:
        return False
    return plan.received_bytes <= plan.lower_bound_bytes
