"""Middles in which the axes of a mesh stand anywhere, for where axes part a ring.

What one level carries is known in closed form where a level's digits change at once; where axes are parts of a ring,
an exchange along one of them loads links that the others' do too, and by way of a third placement less may meet there.
There are 49 placements of three axes on two dims, so they are looked at only where a plan is far from the least time.

By hand, a ring of 4 in two axes: `[{"a"}, {}]` may go by each other placement of both.

>>> from reshard.mesh import Mesh
>>> from reshard.network.level import Level
>>> mesh, network = Mesh.of(a=2, b=2), Network((Level(1, 4, "ring", 1, 0),))
>>> ends = Sharding.of(mesh, "a", None), Sharding.of(mesh, None, "a")
>>> prices = RoutePrices.of(Reshard.of(*ends, (64, 64), "int8"), network)
>>> sorted(middle.text() for way in placed_anew(prices, 1e4) for middle in way.middles)[:4]
['[{"a", "b"}, {}]', '[{"a"}, {"b"}]', '[{"b", "a"}, {}]', '[{"b"}, {"a"}]']
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, permutations, product

from reshard.axis import Axis
from reshard.mesh import Mesh
from reshard.network import Network, Use
from reshard.planner.policy import is_small
from reshard.planner.route_prices import RoutePrices
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Route

MOST_AXES, MOST_DIMS = 3, 2
"""Beyond these there are too many placements."""
FAR = 1.35
"""Plans that take so many times the least are far from it."""
MIXED = 1.25
"""Ways that take no longer than so many times such a plan may be of use as a share of it."""


def parts_a_ring(reshard: Reshard, network: Network) -> bool:
    """Whether an axis begins inside a ring or a line, bytes decide, and placements are few enough to try."""
    mesh = reshard.source.mesh
    if mesh != reshard.target.mesh or len(mesh.sizes) > MOST_AXES or len(reshard.shape) > MOST_DIMS:
        return False
    if is_small(reshard):
        return False
    axes = [mesh.digit_of(Axis(name)) for name in mesh.sizes]
    levels = [level.digit for level in network.levels]
    if not all(any(axis.lies_in(level) for level in levels) for axis in axes):
        return False  # an axis over several levels goes in parts, which no placement of whole axes says
    rings = [level.digit for level in network.levels if not level.is_switch]
    return any(ring.stride < axis.stride < ring.end for ring in rings for axis in axes)


def placed_anew(prices: RoutePrices, limit_s: float, *, along: bool = False) -> list[Route]:
    """The ways by one placement that keep no level busy as long as a limit.

    Only those whose tiles are no larger than those of both ends, and whose steps are known by digits.
    """
    source, target = prices.ends
    sizes = [roles.elements for roles in map(prices.of_steps.roles_of, prices.ends) if roles is not None]
    routes = []
    for middle in _placements(source.mesh, len(prices.reshard.shape)) if prices.by_digits else ():
        roles = prices.of_steps.roles_of(middle)
        if middle in (source, target) or roles is None or roles.elements > max(sizes):
            continue
        if _is_sooner((source, middle, target), prices, limit_s, along=along):
            routes.append(Route((middle,)))
    return routes


def _is_sooner(points: Sequence[Sharding], prices: RoutePrices, limit_s: float, *, along: bool) -> bool:
    """Whether the steps from point to point are known by digits, and keep no level busy as long as a limit.

    What they do at the least is known sooner, so it is asked first.
    """
    busy: list[tuple[float, ...]] = []
    for before, after in pairwise(map(prices.of_steps.roles_of, points)):
        least = None if before is None or after is None else prices.of_steps.least_busy(before, after, along=along)
        if least is None:
            return False
        busy.append(least)
    for number, leg in enumerate(pairwise(points)):
        if max(map(sum, zip(*busy, strict=True))) >= limit_s:
            return False
        uses = prices.uses_between(leg, along=along)
        if uses is None:
            return False
        busy[number] = Use.together([use for _, use in uses], prices.network).busy[:-1]
    return max(map(sum, zip(*busy, strict=True))) < limit_s


@lru_cache(64)
def _placements(mesh: Mesh, rank: int) -> tuple[Sharding, ...]:
    """Every axis on any dim or on none, those of a dim in any order."""
    names = list(mesh.sizes)
    listed = [
        Sharding.of(mesh, *(tuple(name for name in order if homes[name] == dim) for dim in range(rank)))
        for chosen in product((None, *range(rank)), repeat=len(names))
        for homes in [dict(zip(names, chosen, strict=True))]
        for order in permutations(names)
    ]
    return tuple(dict.fromkeys(listed))
