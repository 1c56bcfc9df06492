"""Ways that gather first what an exchange would share out, and slice then, where latencies decide.

In an exchange a device sends every other what that needs of it, in messages that wait for one another; a gather goes
level by level, or from neighbour to neighbour, in fewer, and what is sliced then takes nothing.
Of the ways that are known only those are looked at that take about the least.

By hand, 2 hosts of 2 devices, 1 s a message, from rows by both axes to columns by `y`: every device sends to the three
others, or gathers in its host and between hosts, which is two messages.

>>> from reshard.mesh import Mesh
>>> from reshard.network import Level, Network
>>> from reshard.problem import Reshard
>>> mesh, network = Mesh.of(x=2, y=2), Network((Level(1, 2, "switch", 1e9, 1.0), Level(2, 2, "switch", 1e9, 1.0)))
>>> ends = Sharding.of(mesh, ("x", "y"), None), Sharding.of(mesh, None, "y")
>>> prices = RoutePrices.of(Reshard.of(*ends, (8, 8)), network)
>>> at_once = prices.timed(Route())
>>> for way in map(prices.timed, gathered_apart([at_once], prices)):
...     print([middle.text() for middle in way.route.middles], round(at_once.seconds), round(way.seconds))
['[{}, {}]'] 3 2
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from reshard.planner.candidates import kept_cuts
from reshard.planner.route_prices import RoutePrices, TimedRoute
from reshard.sharding import Sharding
from reshard.steps import Route

ABOUT = 1.05
"""Ways that take up to so many times the least are looked at."""
SOONER = 1e-9
"""By which part of what a step takes a gather must take less."""


def gathered_apart(timed: Sequence[TimedRoute], prices: RoutePrices) -> Iterator[Route]:
    """The ways that take about the least, each with all steps put so for which a gather and a slice take less.

    Args:
        timed: ways whose steps are known by digits.
        prices: theirs.
    """
    least = min(way.seconds for way in timed)
    for way in timed:
        points = prices.points(way.route) if way.seconds <= least * ABOUT else ()
        passed: list[Sharding] = []
        for leg in pairwise(points):
            passed += [*_gathered_between(*leg, way.route.near, prices), leg[1]]
        if len(passed) >= len(points) > 0:
            yield Route(tuple(passed[:-1]), way.route.near)


def _gathered_between(before: Sharding, after: Sharding, near: int, prices: RoutePrices) -> tuple[Sharding, ...]:
    """What is gathered between two points where that is sooner; else nothing."""
    whole = kept_cuts(before, after)
    if whole in (before, after):
        return ()
    at_once, apart = (prices.seconds_through(points, near) for points in ((before, after), (before, whole, after)))
    return (whole,) if apart < at_once * (1 - SOONER) else ()
