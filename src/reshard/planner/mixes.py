"""Shares of a tensor that go different ways at once, so that all levels of a network work.

One chain loads some levels and leaves others idle; a mix of chains loads each with what all of them put there.
The best mix (`network/mix.py`) has prices, which say what a second of a level is worth, and the way that is cheapest at
these prices enters it, until none is worth more than those that are in (Dantzig and Wolfe 1960).
There are as many shares as levels at the most.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from reshard.errors import ReshardError
from reshard.network import Use, busy_seconds, spans_of_uses
from reshard.network.mix import Floats, best_mix
from reshard.planner.level_moves import LevelWays
from reshard.planner.number_of_parts import MOST_PARTS, WORTH
from reshard.planner.route_prices import RoutePrices, TimedRoute
from reshard.plans import Plan
from reshard.plans.parts import Parting
from reshard.steps import Route, Share

TRIED = 24
"""How many ways enter a mix at the most."""
ENOUGH = 0.005
"""A way that makes a mix take less by no more than this is none to look for."""
FAR = 4.0
"""Ways that take so many times the best one are not mixed with it."""
NEGLIGIBLE = 0.01
"""Shares of less than so much of the tensor are left out."""


def with_shares(plan: Plan, timed: Sequence[TimedRoute], *, finely: bool = False) -> Plan:
    """The plan, or one of shares that takes less time.

    Args:
        plan: the best that is known.
        timed: ways between the same ends.
        finely: that of `LevelWays.of`, where it does not lead to too many; and steps apart where they can be.
    """
    network = plan.options.network
    if network is None or plan.options.memory_limit is not None or plan.options.basis != "any" or not plan.seconds:
        return plan
    if not plan.received_bytes:  # no level has anything to do
        return plan
    ways = LevelWays.of(plan.reshard, network, finely=finely) or LevelWays.of(plan.reshard, network)
    if ways is None and not plan.source.unreduced:  # of partial values only what was timed is known
        return plan
    routes = [Route(steps=share.steps) for share in plan.shares]
    busy = [busy_seconds(share.steps, network)[:-1] for share in plan.shares]
    for other in timed:
        if other.seconds < FAR * plan.seconds and other.busy[:-1] not in busy[: len(plan.shares)]:
            routes.append(other.route)
            busy.append(other.busy[:-1])
    prices = RoutePrices.of(plan.reshard, network)
    limit = (plan.seconds - network.call_s) * WORTH  # the start is paid by shares as well
    for route in _worth_taking(ways, np.array(busy), limit, finely=finely) if ways is not None else ():
        with suppress(ReshardError):  # what has no price
            way = prices.timed(route)
            if any(way.busy[:-1]):  # else it takes its time elsewhere, as one that only copies
                routes.append(way.route)
                busy.append(way.busy[:-1])
    mix = best_mix(np.array(busy))
    mixed = [(part, route) for part, route in zip(mix.parts, routes, strict=True) if part >= NEGLIGIBLE]
    if mix.seconds >= limit or [route for _, route in mixed] == routes[:1]:
        return plan
    try:
        return _in_parts(plan, [part for part, _ in mixed], [route for _, route in mixed], prices, limit)
    except ReshardError:  # a way that cannot be made is none
        return plan


def _worth_taking(ways: LevelWays, busy: Floats, limit: float, *, finely: bool) -> list[Route]:
    """The ways on one level at a time that are in the best mix with chains of these loads.

    None where that mix takes longer than a limit.
    """
    loads, paths = busy, list[tuple[int, ...]]()
    mix = best_mix(loads)
    while len(paths) < TRIED:
        path = ways.cheapest(mix.prices.tolist())
        if path is None:
            break
        added = ways.loads(path)
        if added @ mix.prices > 1 - ENOUGH or path in paths:
            break
        paths.append(path)
        loads = np.vstack([loads, added])
        mix = best_mix(loads)
    if mix.seconds >= limit:
        return []
    routes: dict[Route, None] = {}
    for path, part in zip(paths, mix.parts[len(busy) :], strict=True):
        for apart in dict.fromkeys((False, finely)) if part >= NEGLIGIBLE else ():
            with suppress(ReshardError):  # digits without names
                routes[Route(tuple(ways.middles(path, apart=apart)))] = None
    return list(routes)


def _in_parts(plan: Plan, amounts: Sequence[float], routes: Sequence[Route], prices: RoutePrices, limit: float) -> Plan:
    """The plan, or one in which these parts of the tensor go these ways in less time than a limit.

    In as many parts as is best.

    Raises:
        ReshardError: where one of the ways cannot be made.
    """
    unit = Parting.of(plan.shape, dict.fromkeys(point for route in routes for point in prices.points(route))).unit
    best, least = [0] * len(routes), limit
    before = float("inf")
    halves = [Use.together(prices.uses(route, 2), len(prices.network.levels)).busy for route in routes]
    whole, half = np.array([prices.timed(route).busy for route in routes]), np.array(halves)
    grows = 2 * (whole - half)
    waits = np.maximum(whole - grows, 0.0)  # of a part, however small
    for count in (count for count in range(min(unit, MOST_PARTS), 0, -1) if unit % count == 0):
        numbers = _rounded(amounts, count)
        if (np.array(numbers) @ (waits + grows / count)).max() >= least:
            continue
        uses = [prices.uses(route, count) for route, number in zip(routes, numbers, strict=True) if number]
        spans = spans_of_uses(uses, [number for number in numbers if number])
        seconds = max(span[-1][1] for span in spans)
        if seconds < least:
            best, least = numbers, seconds
        if seconds > before:  # fewer parts pay fewer latencies, and overlap less
            break
        before = seconds
    shares = [Share(way.chain(plan.reshard), number) for way, number in zip(routes, best, strict=True) if number]
    if not shares:
        return plan
    shares.sort(key=lambda share: -share.parts)
    return replace(plan, steps=shares[0].steps, parts=sum(best), beside=tuple(shares[1:]), reason="")


def _rounded(amounts: Sequence[float], count: int) -> list[int]:
    """Whole numbers in about these proportions, so many in all.

    >>> _rounded([0.7, 0.3], 4)
    [3, 1]
    """
    wanted = np.array(amounts) / sum(amounts) * count
    numbers = np.floor(wanted).astype(int)
    for place in np.argsort(numbers - wanted)[: count - int(numbers.sum())]:
        numbers[place] += 1
    result: list[int] = numbers.tolist()
    return result
