"""Shares of a tensor that go different ways at once, so that all levels of a network work.

One chain loads some levels and leaves others idle; a mix of chains loads each with what all of them put there.
The best mix is a small linear program: of ways with loads a (seconds per level, of the whole tensor) maximise the sum
of x where Σ a x ≤ 1 on every level; the tensor then takes 1 / Σ x seconds.
Its prices say what a second of a level is worth, and the way that is cheapest at these prices enters it, until none is
worth more than those that are in (Dantzig and Wolfe 1960).
There are as many shares as levels at the most.

By hand, two ways that load one level for 3 s each, and one that loads both for 2 s: one third each takes 5 / 3 s, half
of each of the first two 1.5 s.

>>> best_mix(np.array([[3.0, 0.0], [0.0, 3.0], [2.0, 2.0]])).parts
array([0.5, 0.5, 0. ])
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf, prod
from typing import NamedTuple

import numpy as np

from reshard.errors import ReshardError
from reshard.network import Use, busy_seconds, spans_of_uses
from reshard.network.traffic import Floats
from reshard.planner.level_moves import LevelWays
from reshard.planner.number_of_parts import MOST_PARTS, WORTH
from reshard.planner.policy import SMALL_BYTES
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


class Mix(NamedTuple):
    """How much of a tensor goes each way."""

    parts: Floats
    """Per way the part of the tensor."""
    prices: Floats
    """Per level, what a second of it is worth: in all 1 for what the whole tensor takes."""
    seconds: float


def best_mix(loads: Floats) -> Mix:
    """The mix of ways whose busiest level is busy least.

    Args:
        loads: per way and level the seconds that the whole tensor takes; every way loads something.
    """
    ways, levels = loads.shape
    scale = float(loads.max())
    places = range(levels)  # lists: of so few numbers arrays take longer
    table = [
        [*row, *(float(place == number) for place in places), 1.0]
        for number, row in enumerate((loads.T / scale).tolist())
    ]
    basis = list(range(ways, ways + levels))
    worth = [1.0] * ways + [0.0] * (levels + 1)  # of one more of each, at the prices
    for _ in range(64):
        most = max(worth[:-1])
        if most <= 1e-9:
            break
        entering = worth.index(most)
        room = [row[-1] / row[entering] if row[entering] > 1e-12 else inf for row in table]
        leaving = room.index(min(room))
        pivot = table[leaving][entering]
        tight = table[leaving] = [value / pivot for value in table[leaving]]
        for place in places:
            if place != leaving:
                table[place] = _without(table[place], table[place][entering], tight)
        worth = _without(worth, most, tight)
        basis[leaving] = entering
    amounts = np.zeros(ways + levels)
    amounts[basis] = [row[-1] for row in table]
    total = amounts[:ways].sum()
    return Mix(amounts[:ways] / total, np.maximum(-np.array(worth[ways:-1]), 0.0) / scale, scale / total)


def _without(row: Sequence[float], times: float, removed: Sequence[float]) -> list[float]:
    """A row of a table less so many times another."""
    return [value - times * less for value, less in zip(row, removed, strict=True)]


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
    limit = (plan.seconds - network.call_s) * WORTH  # the start is paid by shares as well
    are_bytes_many = prod(plan.shape) * plan.dtype.itemsize > SMALL_BYTES  # else the bound, without latencies, is low
    if are_bytes_many and (plan.lower_bound_seconds or 0.0) >= limit:
        return plan
    ways = LevelWays.of(plan.reshard, network, finely=True) if finely else None
    ways = ways or LevelWays.of(plan.reshard, network)  # as the candidates ask, so that it is known
    if ways is None and not plan.source.unreduced:  # of partial values only what was timed is known
        return plan
    routes = [Route(steps=share.steps) for share in plan.shares]
    busy = [busy_seconds(share.steps, network)[:-1] for share in plan.shares]
    for other in timed:
        if other.seconds < FAR * plan.seconds and other.busy[:-1] not in busy[: len(plan.shares)]:
            routes.append(other.route)
            busy.append(other.busy[:-1])
    prices = RoutePrices.of(plan.reshard, network)
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

    None where that mix takes longer than a limit: where the cheapest way costs c at the prices of a mix, no mix takes
    less than c times as long (Farley 1990).
    """
    loads, paths = busy, list[tuple[int, ...]]()
    mix = best_mix(loads)
    while len(paths) < TRIED:
        path = ways.cheapest(mix.prices.tolist())
        if path is None:
            break
        added = ways.loads(path)
        cost = float(added @ mix.prices)
        if cost > 1 - ENOUGH or path in paths:
            break
        if mix.seconds * (cost - ENOUGH) >= limit:
            return []
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
