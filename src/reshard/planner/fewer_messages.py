"""Ways of fewer messages than others, where latencies decide.

    gather apart    what an exchange would share out is gathered, and sliced then: in an exchange a device sends every
                    other what that needs of it, in messages that wait for one another; a gather goes level by level,
                    or from neighbour to neighbour, in fewer, and a slice takes nothing
    one axis apart  an axis inside hosts changes by itself, first or last: what then crosses between hosts goes to one
                    device of each, not to all
    sliced first    axes that the source does not use cut it, and what is left of it is gathered
    partial values  what is partial is gathered as it is, and combined then, or combined in place and gathered
    few hosts       devices of a host share out what leaves by where it goes (`to_few_hosts`)

By hand, 2 hosts of 2 devices, 1 s a message, from rows by both axes to columns by `y`: every device sends to the three
others, or gathers in its host and between hosts, which is two messages.

>>> from reshard.mesh import Mesh
>>> from reshard.network import Level, Network
>>> from reshard.problem import Reshard
>>> mesh, network = Mesh.of(x=2, y=2), Network((Level(1, 2, "switch", 1e9, 1.0), Level(2, 2, "switch", 1e9, 1.0)))
>>> ends = Sharding.of(mesh, ("x", "y"), None), Sharding.of(mesh, None, "y")
>>> prices = RoutePrices.of(Reshard.of(*ends, (8, 8)), network)
>>> at_once = prices.timed(Route())
>>> for way in map(prices.timed, _gathered_apart([at_once], prices)):
...     print([middle.text() for middle in way.route.middles], round(at_once.seconds), round(way.seconds))
['[{}, {}]'] 3 2
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from reshard.axis import Axis, difference, merged
from reshard.digits import Digit
from reshard.dim_sharding import DimSharding
from reshard.errors import ReshardError
from reshard.planner.candidates import kept_cuts, refined, slow_strides
from reshard.planner.policy import is_small
from reshard.planner.route_prices import RoutePrices, TimedRoute
from reshard.planner.to_few_hosts import to_few_hosts
from reshard.problem import becomes_unreduced
from reshard.sharding import Sharding
from reshard.steps import Route

ABOUT = 1.05
"""Ways that take up to so many times the least are looked at."""
FURTHER = 1.15
"""Ways that take up to so many times what two steps take at the least are seldom made better by an axis apart."""
MUCH_FURTHER = 1.3
"""Likewise by sending to few hosts, which is up to three steps."""
FAR = 1.25
"""Ways that take up to so many times what a step takes at the least are seldom made better by slicing first."""
SOONER = 1e-9
"""By which part of what a step takes a gather must take less."""


def in_fewer_messages(timed: Sequence[TimedRoute], prices: RoutePrices, limit_s: float) -> Iterator[Route]:
    """The ways beside others.

    Args:
        timed: these others, whose steps are known by digits.
        prices: theirs.
        limit_s: what the best of them takes.
    """
    if is_small(prices.reshard) and prices.network.has_switches:
        yield from _gathered_apart(timed, prices)
    yield from one_axis_apart(prices, limit_s)


def one_axis_apart(prices: RoutePrices, limit_s: float) -> Iterator[Route]:
    """The ways by what is an end but for an axis inside hosts, where a limit is far above what two steps take.

    The last axis of a dim lies on another instead, or one that the target does not use cuts it, and is gathered.

    >>> from reshard.mesh import Mesh
    >>> from reshard.network import Network
    >>> from reshard.problem import Reshard
    >>> mesh = Mesh.of(h=2, g=8)
    >>> reshard = Reshard.of(Sharding.of(mesh, "h", "g"), Sharding.of(mesh, None, ("h", "g")), (64, 64))
    >>> for way in one_axis_apart(RoutePrices.of(reshard, Network.preset("h100-2x8")), 1.0):
    ...     print(*(middle.text() for middle in way.middles))
    [{"h", "g"}, {}]
    [{"g"}, {"h"}]
    """
    source, target = prices.ends
    host = _slow_boundary(prices, limit_s / FURTHER)
    if not host or source.mesh != target.mesh or source.is_woven or target.is_woven:
        return
    inside = Digit(1, host)
    middles = [*_of_one_axis(source, (), inside), *_of_one_axis(target, target.unused_axes(), inside)]
    for middle in dict.fromkeys(middles):
        if middle not in prices.ends and prices.of_steps.roles_of(middle) is not None:
            yield Route((middle,))


def few_hosts(prices: RoutePrices, limit_s: float) -> Iterator[Route]:
    """The way on which devices send to few hosts, where a limit is further above that."""
    host = _slow_boundary(prices, limit_s / MUCH_FURTHER)
    if host and _exchange_between(prices, host):
        with suppress(ReshardError):  # digits without names
            middles = to_few_hosts(prices.reshard, host)
            yield from [Route(middles)] if middles else []


def _exchange_between(prices: RoutePrices, boundary: int) -> bool:
    """Whether a digit between hosts cuts one thing at one end and another at the other."""
    ends = [roles.roles for roles in map(prices.of_steps.roles_of, prices.ends) if roles is not None]
    changes = zip(prices.of_steps.digits, *ends, strict=True)
    return any(digit.stride >= boundary and None not in (old, new) and old != new for digit, old, new in changes)


def _slow_boundary(prices: RoutePrices, limit_s: float) -> int:
    """Devices per host, if hosts have a slower level and a limit is no less than what two steps take; else 0."""
    host = next(iter(slow_strides(prices.network)), 0)
    return host if host and prices.least_seconds(2) <= limit_s else 0


def _of_one_axis(sharding: Sharding, more: Sequence[Axis], inside: Digit) -> Iterator[Sharding]:
    """The sharding with the last axis of a dim on another, or with one of others more, if it lies inside a digit."""
    mesh, dims = sharding.mesh, [dim.axes for dim in sharding.dims]
    moving = [(dim, axes[-1]) for dim, axes in enumerate(dims) if axes]
    for home, axis in [*moving, *((None, axis) for axis in more)]:
        rest = [axes[:-1] if dim == home else axes for dim, axes in enumerate(dims)]
        for other in range(len(dims)) if mesh.digit_of(axis).lies_in(inside) else ():
            if other != home:
                cutting = [(*axes, axis) if dim == other else axes for dim, axes in enumerate(rest)]
                yield Sharding(
                    mesh, tuple(DimSharding(merged(axes, mesh.sizes)) for axes in cutting), uneven=sharding.uneven
                )


def sliced_first(prices: RoutePrices, limit_s: float) -> Iterator[Route]:
    """The ways that slice the source by axes that it does not use, and gather then what the target cuts otherwise.

    By those that stay: less is gathered; or by those that the target uses. Through switches, where messages wait for
    one another, and where a limit is far above what a step takes.

    >>> from reshard.mesh import Mesh
    >>> from reshard.network import Network
    >>> from reshard.problem import Reshard
    >>> mesh = Mesh.of(a=2, b=2, c=2)
    >>> reshard = Reshard.of(Sharding.of(mesh, None, "a"), Sharding.of(mesh, ("b", "a"), None), (8, 8))
    >>> for route in sliced_first(RoutePrices.of(reshard, Network.preset("h100-8")), 1.0):
    ...     print(*(middle.text() for middle in route.middles))
    [{"b"}, {"a"}] [{"b"}, {}]
    """
    reshard = prices.reshard
    source, target = prices.ends
    if not prices.by_digits or not prices.network.has_switches:
        return
    if prices.least_seconds(1) * FAR > limit_s or not is_small(reshard):
        return
    if source.mesh != target.mesh or source.is_woven or target.is_woven:
        return
    sizes = source.mesh.sizes
    wanted = difference(source.unused_axes(), target.unused_axes(), sizes)
    sliced = [refined(source, wanted, target, reshard.shape)]
    if sliced[0] is not None:
        kept, used = ([axis for dim in end.dims for axis in dim.axes] for end in (kept_cuts(sliced[0], target), source))
        sliced.append(refined(source, difference(kept, used, sizes), target, reshard.shape))
    for middle in dict.fromkeys(sliced):
        if middle is not None:
            yield Route((middle, kept_cuts(middle, target)))


def gathered_partial(prices: RoutePrices) -> Iterator[Route]:
    """The ways that gather all that the target cuts otherwise before values are combined, or after they are.

    What is gathered as it is may be combined for the target at once, or by all; near replicas send, or any.

    >>> from reshard.mesh import Mesh
    >>> from reshard.network import Network
    >>> from reshard.problem import Reshard
    >>> mesh = Mesh.of(a=2, b=4)
    >>> reshard = Reshard.of(Sharding.of(mesh, "a", unreduced="b"), Sharding.of(mesh, "b"), (8,))
    >>> for route in gathered_partial(RoutePrices.of(reshard, Network.preset("h100-8"))):
    ...     print(*(middle.text() for middle in route.middles))
    [{}], unreduced={"b"}
    [{}], unreduced={"b"}
    [{}], unreduced={"b"} [{}]
    [{}], unreduced={"b"} [{}]
    [{"a"}] [{}]
    [{"a"}] [{}]
    """
    source, target = prices.ends
    if not becomes_unreduced(target, source) or source.mesh != target.mesh or source.is_woven or target.is_woven:
        return
    partial = difference(source.unreduced, becomes_unreduced(target, source), source.mesh.sizes)
    in_place = replace(source, unreduced=partial)
    combined = replace(kept_cuts(source, target), unreduced=partial, reduction=source.reduction)
    waiting = replace(combined, unreduced=source.unreduced, reduction=source.reduction)
    for middles in ((waiting,), (waiting, combined), (in_place, combined)):
        passed = tuple([middle for middle in middles if middle not in prices.ends])
        yield from [Route(passed, near) for near in (0, 1)]


def _gathered_apart(timed: Sequence[TimedRoute], prices: RoutePrices) -> Iterator[Route]:
    """The ways that take about the least, each with all steps put so for which a gather and a slice take less."""
    least = min(way.seconds for way in timed)
    for way in timed:
        points = prices.points(way.route) if way.seconds <= least * ABOUT else ()
        passed: list[Sharding] = []
        for leg in pairwise(points):
            passed += [*_gathered_between(*leg, way.route.near, prices), leg[1]]
        if len(passed) >= len(points) > 0:
            yield Route(tuple(passed[:-1]), way.route.near)


def _gathered_between(before: Sharding, after: Sharding, near: int, prices: RoutePrices) -> tuple[Sharding, ...]:
    """What is gathered between two points of one mesh where that is sooner; else nothing."""
    if before.mesh != after.mesh:
        return ()
    whole = kept_cuts(before, after)
    if whole in (before, after):
        return ()
    at_once, apart = (prices.seconds_through(points, near) for points in ((before, after), (before, whole, after)))
    return (whole,) if apart < at_once * (1 - SOONER) else ()
