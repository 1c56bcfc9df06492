"""Ways along rings that gather last, or first, with all that is idle taking part.

A gather takes least where every device gives what nobody else does: a target, or what it is sliced from, is gathered
from itself cut further by all axes that it does not use; and a source that is sliced by all that it does not use gives
what is gathered first.
Axes are put in the order in which the other end has them, so that most lies where it is wanted already.
`candidates` puts them in the order of the mesh, which on rings is often as good, and gathers for the target alone.
What lies apart on a ring is gathered by links that all between use too, so one way leaves those axes out between whose
places others lie that the target uses.
From the sliced source the chain of collectives that receives least is another than from the source: what devices held
alike then changes places too, in one permute.

By hand, rows by `c` and `b` wanted by `c` and `d`: sliced by all they are gathered to `c`, and sliced by `d`; or what
is wanted is gathered last along `b`, as the source has it, and `a`, which the candidates have first.

>>> from reshard.mesh import Mesh
>>> from reshard.network import Network
>>> from reshard.problem import Reshard
>>> mesh = Mesh.of(a=2, b=2, c=2, d=2)
>>> reshard = Reshard.of(Sharding.of(mesh, ("c", "b")), Sharding.of(mesh, ("c", "d")), (16,))
>>> for route in gathered_last(RoutePrices.of(reshard, Network.preset("tpu-v5e-4x4")), 1.0):
...     print(*(middle.text() for middle in route.middles))
[{"c", "b", "d", "a"}] [{"c"}]
[{"c"}]
[{"c", "d", "b", "a"}]
[{"c", "b", "a", "d"}] [{"c", "d", "a", "b"}]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from reshard.digits import Digit
from reshard.dim_sharding import DimSharding
from reshard.planner.candidates import collectives, kept_cuts, refined
from reshard.planner.rough_prices import hops_seconds
from reshard.planner.route_prices import RoutePrices
from reshard.refinement import Cuts, Role
from reshard.sharding import Sharding
from reshard.steps import Route

TRIED = 2
"""How many of the ways are tried, those first that may take least."""
FAR_SOONER = 1.75
"""How many times less than a limit it is to take to move what is sliced and to gather it, in hops and bytes alone."""


def gathered_last(prices: RoutePrices, limit_s: float) -> Iterator[Route]:
    """The ways, those left out that are known to take about as long as a limit."""
    source, target = prices.ends
    if not prices.by_digits or prices.network.has_switches:
        return
    if source.mesh != target.mesh or source.is_woven or target.is_woven:
        return
    shape = prices.reshard.shape
    for gathered in _worth_gathering(prices, limit_s)[:TRIED]:
        end, beside = (source, target) if gathered is None else (gathered, source)
        if gathered is not None:
            yield from _gathered_near(prices, gathered)
        finer = refined(end, end.unused_axes(), beside, shape, in_order=True)
        if finer is None or (gathered == target and finer == refined(end, end.unused_axes(), beside, shape)):
            continue  # the latter is among the candidates
        middles = (finer, kept_cuts(finer, target) if gathered is None else gathered)
        passed = tuple([middle for middle in middles if middle not in prices.ends])
        yield Route(passed)
        if gathered is None:
            yield Route(passed[1:])  # of fewer hops, where replicas are near
    yield from _by_collectives(prices, limit_s)


def _gathered_near(prices: RoutePrices, gathered: Sharding) -> Iterator[Route]:
    """The way that gathers last along axes alone between whose neighbours on a ring no others lie that are used."""
    mesh, unused = gathered.mesh, gathered.unused_axes()
    used = [mesh.digit_of(axis) for dim in gathered.dims for axis in dim.axes]
    near = tuple([axis for axis in unused if not _lies_apart(mesh.digit_of(axis), used, prices)])
    if 0 < len(near) < len(unused):
        finer = refined(gathered, near, prices.ends[0], prices.reshard.shape, in_order=True)
        if finer is not None:
            yield Route(tuple([middle for middle in (finer, gathered) if middle not in prices.ends]))


def _lies_apart(digit: Digit, used: Sequence[Digit], prices: RoutePrices) -> bool:
    """Whether a digit that is used lies inside one on its level."""
    level = next((level.digit for level in prices.network.levels if digit.lies_in(level.digit)), digit)
    return any(other.lies_in(level) and other.stride < digit.stride for other in used)


def _by_collectives(prices: RoutePrices, limit_s: float) -> Iterator[Route]:
    """The chain of collectives from the source sliced by all, unless nothing is gathered last.

    Where hops of what moves and the gather take far less than a limit: to find the chain takes long.
    """
    source, target = prices.ends
    sliced = refined(source, source.unused_axes(), target, prices.reshard.shape)
    before, after = (None if end is None else prices.of_steps.roles_of(end) for end in (sliced, target))
    if sliced is None or before is None or after is None or None not in after.roles:
        return
    if _least_s(prices, before.roles, after.roles) * FAR_SOONER < limit_s:
        rest = RoutePrices.of(replace(prices.reshard, source=sliced), prices.network)
        for route in collectives(rest):
            if route.steps is None and route.middles:
                yield Route((sliced, *route.middles))


def _worth_gathering(prices: RoutePrices, limit_s: float) -> list[Sharding | None]:
    """To what may be gathered in less time than a limit, about, what takes least first; None of the sliced source."""
    target = prices.ends[1]
    before, after = (roles.roles for roles in map(prices.of_steps.roles_of, prices.ends) if roles is not None)
    alike = [new if old in (None, new) else None for old, new in zip(before, after, strict=True)]
    least: list[tuple[float, tuple[DimSharding, ...] | None]] = [(_least_gather_s(prices, alike), None)]
    least += [(_least_s(prices, before, roles), dims) for dims, roles in _coarser(target, after, prices)]
    worth = sorted([way for way in least if way[0] < limit_s], key=lambda way: way[0])
    return [None if dims is None else replace(target, dims=dims, replicated=()) for _, dims in worth]


def _coarser(
    sharding: Sharding, roles: Sequence[Role], prices: RoutePrices
) -> Iterator[tuple[tuple[DimSharding, ...], Sequence[Role]]]:
    """A sharding as it is, and with a dim that its last axis cuts no more, or that is whole; with its roles."""
    yield sharding.dims, roles
    for dim, cutting in enumerate(sharding.dims):
        for count in sorted({len(cutting.axes) - 1, 0}) if cutting.axes else ():
            dropped = [sharding.mesh.digit_of(axis) for axis in cutting.axes[count:]]
            dims = (*sharding.dims[:dim], replace(cutting, axes=cutting.axes[:count]), *sharding.dims[dim + 1 :])
            digits = zip(prices.of_steps.digits, roles, strict=True)
            yield dims, [None if any(map(digit.lies_in, dropped)) else role for digit, role in digits]


def _least_s(prices: RoutePrices, before: Sequence[Role], after: Sequence[Role]) -> float:
    """What it takes about, at the least, where digits change what they cut, and then all is gathered that some cut."""
    changes = zip(prices.of_steps.digits, before, after, strict=True)
    moved = [digit for digit, old, new in changes if None not in (old, new) and old != new]
    return hops_seconds(moved, prices.network) + _least_gather_s(prices, after)


def _least_gather_s(prices: RoutePrices, roles: Sequence[Role]) -> float:
    """What it takes about, at the least, to gather what all digits cut to what these roles cut."""
    digits = list(zip(prices.of_steps.digits, roles, strict=True))
    idle = [digit for digit, role in digits if role is None]
    elements = prod(prices.reshard.shape) / prod([digit.size for digit, role in digits if isinstance(role, Cuts)])
    lacked = elements * (1 - 1 / prod([digit.size for digit in idle]))
    rate = sum([level.both_ways for level in prices.network.levels])
    return max(hops_seconds(idle, prices.network), lacked * prices.reshard.dtype.itemsize / rate)
