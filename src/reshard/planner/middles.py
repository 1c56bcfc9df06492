"""Middles by way of which two plans may take less than one: what the ends have in part, told by a rough price.

What takes least from end to end is sometimes known only to and from what each dim has of the one end or of the other.
Few tensors have such a middle, and to plan two legs takes as long as to plan two tensors, so a price comes first that
takes little to tell: each leg in one step (`rough_prices`).
Where cuts do not nest, as those by axes of 3 and of 4, no digits tell it, and the steps are priced as they are made.

By hand, 16 bytes on a ring of 16, partial on pairs of neighbours, cut by the eight pairs and wanted whole: to combine
takes one hop of 1 us and to gather 8 of them, in either order 9 us; cut further by pairs what is combined is halved.

>>> from reshard.mesh import Mesh
>>> from reshard.network.level import Level
>>> mesh, network = Mesh.of(a=8, b=2), Network((Level(1, 16, "ring", 1e9, 1e-6),))
>>> ends = Sharding.of(mesh, "a", unreduced="b"), Sharding.of(mesh, None)
>>> [middle.text() for middle in middles(*ends, (16,))]
['[{}], unreduced={"b"}', '[{"a"}]', '[{"a", "b"}]']
>>> reshard = Reshard.of(*ends, (16,), "int8")
>>> [way.middle.text() for way in worth_trying(reshard, network, 1e-4)]
['[{"a"}]', '[{}], unreduced={"b"}']
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice, product
from math import inf, prod
from operator import add, attrgetter
from typing import Any, NamedTuple

from reshard.axis import Axis, common_prefix, difference
from reshard.dim_sharding import DimSharding
from reshard.network import Network
from reshard.planner.candidates import refinements
from reshard.planner.policy import may_grow, shrinks_between
from reshard.planner.rough_prices import Leg, RoughTensor, made_seconds
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.tiling import Tiling

SOONER = 1.1
"""How many times less than the best plan a middle is to take by its rough price."""
NEAR, NEAR_PARTIAL = 1.4, 1.3
"""Up to so many times what few plans take much less than a plan has no middles, and where values are partial."""
FAR_SOONER = 1.6
"""The same where that price is often too low: of uneven tiles, and where values are partial no longer."""
TRIED, TRIED_ANYWAY = 2, 4
"""How many middles of a reshard are worth two plans, and how many are where any is."""
FURTHER = 2
"""How many ways to cut an end further are looked at beside each end."""


class TimedMiddle(NamedTuple):
    """A middle, and what a plan is to take more for it to be tried."""

    middle: Sharding
    seconds: float


def middles(source: Sharding, target: Sharding, shape: tuple[int, ...]) -> list[Sharding]:
    """What every dim has at the one end, at the other, at both or at one but for an axis, and ends cut further.

    With partial values as they are, or combined. Both ends are on one mesh, are not woven, and the target is not
    partial.
    """
    ends = (source, target)
    cuts = (_cuts_between(*(dim.axes for dim in dims)) for dims in zip(source.dims, target.dims, strict=True))
    of_both = [placed for axes in product(*cuts) if (placed := _cut_by(axes, target)) is not None]
    partial = [replace(middle, **_partial_as(source, middle)) for middle in of_both] if source.unreduced else []
    waiting, unused = (*source.unreduced, *source.unused_axes()), target.unused_axes()
    further = [
        middle
        for end, axes, beside in (
            (source, waiting, target),
            (source, waiting, source),
            (target, unused, source),
            (target, unused, target),
        )
        for middle in islice(refinements(end, axes, beside, shape, evenly=False), FURTHER)
    ]
    every = dict.fromkeys([*partial, *of_both, *further])
    return [middle for middle in every if middle not in ends]


def worth_trying(reshard: Reshard, network: Network, seconds: float, *, anyway: bool = False) -> list[TimedMiddle]:
    """The middles that take less than a plan by their rough price, a few, those first that take least.

    None whose tiles are larger than those of both ends, small ones apart where there are latencies.
    Where values are partial on some of them, one of these is among them, and one of the others.

    Args:
        reshard: what is to be moved.
        network: that it goes over.
        seconds: that the plan takes.
        anyway: whether the plan is so far from the least that a price above its own is no reason to leave a middle out.
    """
    if not _may_have_middles(reshard):
        return []
    source, target, tensor = reshard.source, reshard.target, RoughTensor(reshard, network)
    direct = tensor.leg(source, target)
    if direct is None or direct.is_about(seconds / (NEAR_PARTIAL if source.unreduced else NEAR)):
        return []
    is_exact = not source.unreduced and all(tiling.is_even() for tiling in reshard.tilings)
    growing_on = network if may_grow(network) else None
    is_told = direct.does_nest()
    timed: list[TimedMiddle] = []
    for middle in middles(source, target, reshard.shape):
        if is_told:
            limit_s = inf if anyway else seconds / (SOONER if is_exact or middle.unreduced else FAR_SOONER)
            needed_s = SOONER * _seconds_of(tensor.leg(source, middle), tensor.leg(middle, target), limit_s)
            is_worth = needed_s < limit_s * SOONER
        else:
            needed_s = _made_seconds(reshard, middle, network, seconds)
            is_worth = needed_s < seconds
        if is_worth and shrinks_between(reshard, [Tiling.of(middle, reshard.shape).largest_tile], growing_on):
            timed.append(TimedMiddle(middle, needed_s))
    timed.sort(key=attrgetter("seconds"))
    of_each_kind = {bool(way.middle.unreduced): way for way in reversed(timed)}.values()
    tried = TRIED_ANYWAY if anyway else TRIED
    return sorted(list(dict.fromkeys([*of_each_kind, *timed]))[:tried], key=attrgetter("seconds"))


def _may_have_middles(reshard: Reshard) -> bool:
    """Whether both ends are on one mesh and not woven, what is partial is combined, and there is anything to move."""
    source, target = reshard.source, reshard.target
    is_plain = source.mesh == target.mesh and not source.mesh.is_maximal and not source.is_woven and not target.is_woven
    return is_plain and not target.unreduced and bool(prod(reshard.shape))


def _seconds_of(first: Leg | None, rest: Leg | None, limit_s: float) -> float:
    """What two steps take; endless where that is a limit or more, which what they do at the least may show."""
    if first is None or rest is None:
        return inf
    if first.least_seconds() + rest.least_seconds() >= limit_s:
        return inf
    least = list(map(add, first.least_busy(), rest.least_busy()))
    if max(least, default=0.0) >= limit_s:
        return inf
    first_s = first.seconds()
    if first_s + max(rest.least_busy(), default=0.0) >= limit_s:
        return inf
    return first_s + rest.seconds()


def _made_seconds(reshard: Reshard, middle: Sharding, network: Network, limit_s: float) -> float:
    """The same of two steps as they are made, which takes longer to tell."""
    first_s = made_seconds(replace(reshard, target=middle), network)
    return inf if first_s >= limit_s else first_s + made_seconds(replace(reshard, source=middle), network)


def _cuts_between(before: tuple[Axis, ...], after: tuple[Axis, ...]) -> Iterable[tuple[Axis, ...]]:
    """What a dim may be cut by on the way."""
    return dict.fromkeys([before, after, common_prefix(before, after), before[:-1], after[:-1]])


def _cut_by(axes: Sequence[tuple[Axis, ...]], target: Sharding) -> Sharding | None:
    """The sharding whose dims are cut by these axes; None where an axis would cut twice."""
    names = [axis.name for cutting in axes for axis in cutting]
    if len(set(names)) < len(names):
        return None
    return Sharding(target.mesh, tuple(map(DimSharding, axes)), uneven=target.uneven)


def _partial_as(source: Sharding, middle: Sharding) -> dict[str, Any]:
    """How a middle is partial where it still has the partial values of a source, but for those that cut it."""
    cutting = [axis for dim in middle.dims for axis in dim.axes]
    unreduced = difference(source.unreduced, cutting, source.mesh.sizes)
    return {"unreduced": unreduced, "reduction": source.reduction}
