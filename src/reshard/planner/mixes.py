"""Shares of a tensor that go different ways at once, so that all levels of a network work.

One chain loads some levels and leaves others idle; a mix of chains loads each with what all of them put there.
The best mix (`mix.py`) has prices, which say what a second of a level is worth, and the way that is cheapest at
these prices enters it, until none is worth more than those that are in (Dantzig and Wolfe 1960).
There are as many shares as levels at the most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import chain, combinations, product

import numpy as np

from reshard.digits import Positions
from reshard.errors import ReshardError
from reshard.mix import Floats, GrowingMix, best_mix
from reshard.network import Use, spans_of_uses, uses_of
from reshard.planner.level_ways import LevelWays
from reshard.planner.number_of_parts import FOLLOWED_FIRST, MOST_PARTS, WORTH, least_around
from reshard.planner.policy import is_small
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
SAME = 1e-9
"""Times that differ by no more than so much of them are the same."""
NEGLIGIBLE = 0.01
"""Shares of less than so much of the tensor are left out."""


def with_shares(plan: Plan, timed: Sequence[TimedRoute], *, finely: bool = False, along: bool = False) -> Plan:
    """The plan, or one of shares that takes less time.

    Args:
        plan: the best that is known.
        timed: ways between the same ends.
        finely: that of `LevelWays.of`, where it does not lead to too many.
        along: likewise.
    """
    network = plan.options.network
    if network is None or plan.options.memory_limit is not None or plan.options.basis != "any" or not plan.seconds:
        return plan
    prices = RoutePrices.of(plan.reshard, network)
    # the start is paid by shares as well; more shares and parts must be worth it
    limit = (plan.seconds - network.call_s) * (WORTH if plan.parts == 1 else 1.0)
    if not any(step.received_bytes for share in plan.shares for step in share.steps):  # no level has anything to do
        return plan
    is_large, is_partial = not is_small(plan.reshard), bool(plan.source.unreduced)
    ways = LevelWays.of(plan.reshard, network, finely=True, along=along) if finely else None
    if is_large or not is_partial:  # small partial values go by what was timed alone
        ways = ways or LevelWays.of(plan.reshard, network, finely=False, along=along)  # as the candidates ask
    if ways is None and not is_partial:
        return plan
    if is_large and ways is not None and limit <= (plan.lower_bound_seconds or 0.0):
        return plan
    routes = [Route(steps=share.steps) for share in plan.shares]
    uses = [Use.together(uses_of(share.steps, network), network) for share in plan.shares]
    busy = [_with_fill(use.busy[:-1], use.seconds) for use in uses]
    for other in timed:
        if other.seconds < FAR * plan.seconds and all(other.busy[:-1] != use.busy[:-1] for use in uses):
            routes.append(other.route)
            busy.append(_with_fill(other.busy[:-1], other.seconds))
    for share in plan.shares if along else ():  # whose ways are not looked for once more
        with suppress(ReshardError):
            way = prices.timed(Route(tuple([step.after for step in share.steps[:-1]])))
            for other in prices.timed_along(way):
                routes.append(other.route)
                busy.append(_with_fill(other.busy[:-1], other.seconds))
    places = [level.places for level in network.levels]
    for route in _worth_taking(ways, places, np.array(busy), limit) if ways is not None else ():
        with suppress(ReshardError):  # what has no price
            way = prices.timed(route)
            for each in (way, *(prices.timed_along(way) if along else ())):
                if any(each.busy[:-1]):  # else it takes its time elsewhere, as one that only copies
                    routes.append(each.route)
                    busy.append(_with_fill(each.busy[:-1], each.seconds))
    mix = best_mix(np.array(busy))
    mixed = [(part, route) for part, route in zip(mix.parts, routes, strict=True) if part >= NEGLIGIBLE]
    if mix.seconds >= limit or [route for _, route in mixed] == routes[:1]:
        return plan
    try:
        worth = mix.prices / mix.prices.sum()
        return _in_parts(plan, [part for part, _ in mixed], [route for _, route in mixed], prices, limit, worth)
    except ReshardError:  # a way that cannot be made is none
        return plan


def _with_fill(busy: Sequence[float], seconds: float) -> list[float]:
    """What a way loads, and of a part what it takes before its busiest level begins and after it is done.

    >>> _with_fill([64.0, 128.0], 256.0)
    [65.0, 129.0]
    """
    fill = (seconds - max(busy)) / MOST_PARTS
    return [level + fill for level in busy]


def _worth_taking(ways: LevelWays, places: Sequence[int], busy: Floats, limit: float) -> list[Route]:
    """The ways on one level at a time that are in the best mix with chains of these loads.

    Each as it is, and with steps apart where they can be; none where that mix takes longer than a limit.
    """
    growing, paths = GrowingMix(busy.shape[1], float(busy.max())), list[tuple[int, ...]]()
    growing.add(busy)
    mix = growing.best()
    first_places = np.cumsum([0, *places[:-1]])  # a way on one level at a time is taken to load all links of a line
    prices = np.ones(len(places))  # first what takes least step by step, which is done soonest after its busiest
    while len(paths) < TRIED:
        path = ways.cheapest((prices + prices.sum() / MOST_PARTS).tolist())
        if path is None or path in paths:
            break
        alone = ways.loads(path)
        if not alone.any():  # it takes its time elsewhere, as one that only copies
            break
        added = np.repeat(_with_fill(alone.tolist(), alone.sum()), places)
        if paths and added @ mix.prices > 1 - ENOUGH:
            break
        paths.append(path)
        growing.add(added[None])
        mix = growing.best()
        prices = np.add.reduceat(mix.prices, first_places)
    if mix.seconds >= limit:
        return []
    routes: dict[Route, None] = {}
    for path, part in zip(paths, mix.parts[len(busy) :], strict=True):
        for apart in (False, True) if part >= NEGLIGIBLE else ():
            with suppress(ReshardError):  # digits without names
                routes[Route(tuple(ways.middles(path, apart=apart)))] = None
    return list(routes)


def _in_parts(
    plan: Plan, amounts: Sequence[float], routes: Sequence[Route], prices: RoutePrices, limit: float, worth: Floats
) -> Plan:
    """The plan, or one in which these parts of the tensor go these ways in less time than a limit.

    In as many parts as is best; `worth` is that of `_least_seconds`.

    Raises:
        ReshardError: where one of the ways cannot be made.
    """
    halves = [Use.together(prices.uses(route, 2), prices.network) for route in routes]
    whole, half = (np.array([[*use.busy, use.seconds] for use in uses]) for uses in (map(prices.timed, routes), halves))
    grows = 2 * (whole - half)
    waits = np.maximum(whole - grows, 0.0)  # of a part, however small
    if min(whole[:, -1].min(), _least_seconds(waits, grows, worth)) >= limit * (1 + SAME):
        return plan
    unit = Parting.of(plan.shape, dict.fromkeys(point for route in routes for point in prices.points(route))).unit
    counts = [count for count in range(min(unit, MOST_PARTS), 0, -1) if unit % count == 0]
    rounded = [_rounded(amounts, count, waits + grows / count) for count in counts]

    def seconds(place: int) -> float:
        numbers, about = rounded[place]
        if about >= limit:
            return about
        uses = [prices.uses(route, counts[place]) for route, number in zip(routes, numbers, strict=True) if number]
        spans = spans_of_uses(uses, [number for number in numbers if number], FOLLOWED_FIRST)
        return max(span[-1][1] for span in spans)

    soonest = min(range(len(counts)), key=lambda place: rounded[place][1])
    place, least = least_around(soonest, len(counts), seconds)
    best = rounded[place][0] if least < limit else []
    shares = [Share(prices.chain(way), number) for way, number in zip(routes, best, strict=False) if number]
    if not shares:
        return plan
    shares.sort(key=lambda share: -share.parts)
    shared = replace(plan, steps=shares[0].steps, parts=sum(best), beside=tuple(shares[1:]))
    return shared if (shared.seconds or 0.0) < (plan.seconds or 0.0) else plan


def _least_seconds(waits: Floats, grows: Floats, worth: Floats) -> float:
    """What ways take at the least in two parts or more, one behind the other, whatever part goes which way.

    What is busiest is busy at least as long as what all levels are in the mean.

    Args:
        waits: per way, how long each level is busy with a part, however small; last how long that takes step by step.
        grows: the same of the whole without these.
        worth: per level, how much it counts in the mean.

    By hand, one level 1 s for each part and 4 s in all, of two parts 2 + 4 s:

    >>> _least_seconds(np.array([[1.0, 1.0]]), np.array([[4.0, 4.0]]), np.array([1.0]))
    6.0
    """
    counts = np.arange(2.0, MOST_PARTS + 1)[:, None]
    parts = waits + grows / counts[:, None]
    fill = parts[..., -1] - parts[..., :-1].max(axis=-1)
    busiest = counts * (parts[..., : len(worth)] @ worth)
    return float((busiest.min(axis=1) + fill.min(axis=1)).min())


def _rounded(amounts: Sequence[float], count: int, part: Floats) -> tuple[list[int], float]:
    """Whole numbers, so many in all, in about these proportions, of all ways or of some: those that take least.

    Args:
        amounts: in all any number.
        count: how many parts there are.
        part: per way, how long each level is busy with one part; last how long that takes step after step.

    Returns:
        The numbers, and what they take.

    By hand, of 4 parts 1 s each on one level, or 3 s each on another; or with 9 s elsewhere before these:

    >>> _rounded([0.75, 0.25], 4, np.array([[1.0, 0.0, 1.0], [0.0, 3.0, 3.0]]))
    ([3, 1], 3.0)
    >>> _rounded([0.75, 0.25], 4, np.array([[1.0, 0.0, 1.0], [0.0, 3.0, 12.0]]))
    ([4, 0], 4.0)
    """
    rows = np.concatenate(list(_near(amounts, count)))
    fill = part[:, -1] - part[:, :-1].max(axis=1)
    seconds = (rows @ part[:, :-1]).max(axis=1) + ((rows > 0) * fill).max(axis=1)
    least = int(seconds.argmin())
    return rows[least].tolist(), float(seconds[least])


def _near(amounts: Sequence[float], count: int) -> Iterator[Positions]:
    """Whole numbers, so many in all, in about these proportions, of all or of some.

    >>> [rows.tolist() for rows in _near([0.75, 0.25], 4)]
    [[[4, 0], [0, 4]], [[2, 2], [3, 1], [4, 0]]]
    """
    ways = len(amounts)
    yield count * np.eye(ways, dtype=np.int64)
    for some in chain.from_iterable(combinations(range(ways), number) for number in range(2, ways + 1)):
        scale = count / sum(amounts[way] for way in some)
        least = [max(int(amounts[way] * scale) - 1, 0) for way in some]
        added = _in_all(count - sum(least), len(some))
        rows = np.zeros((len(added), ways), dtype=np.int64)
        rows[:, some] = added + least
        yield rows


@lru_cache(64)
def _in_all(total: int, count: int) -> Positions:
    """Every list of so many whole numbers that are so many in all.

    >>> _in_all(2, 2).tolist()
    [[0, 2], [1, 1], [2, 0]]
    """
    listed = (numbers for numbers in product(range(total + 1), repeat=count - 1) if sum(numbers) <= total)
    return np.array([(*numbers, total - sum(numbers)) for numbers in listed], dtype=np.int64)
