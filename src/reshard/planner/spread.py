"""Middles in which all devices of a host share what crosses between hosts.

A reshard that changes what hosts hold goes fastest where every device of a host takes as much of what the host
lacks (and gives as much of what others lack) as any other; inside, the fast level then puts it in place.
What a host holds is said by the axes that join hosts.
Where the axes inside a host cut a dim where the axes between hosts of the other end cut it too, some devices
of the host lack everything and some nothing; so such axes, and those that are not used, cut elsewhere in the middle.

By hand, 2 hosts `h` of 2 devices `a`, rows and columns cut by `h` in the source's columns, by `a` in the target's:
one device of each host has all the columns that it needs and the other has none of them.
By way of rows cut by `a`, each takes half of what its host lacks.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(h=2, a=2)
>>> source, target = Sharding.of(mesh, None, "h"), Sharding.of(mesh, None, "a")
>>> print(spread(target, source, (64, 64), 2).text())
[{"a"}, {}]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from reshard.axis import Axis, merged
from reshard.digits import Digit
from reshard.mesh import Mesh
from reshard.sharding import Sharding


class AxisCut(NamedTuple):
    """A part of an axis that cuts a dim."""

    axis: Axis
    start: int
    """The number of parts before the cut."""
    stop: int
    """The number of parts after it."""
    inside: bool
    """Whether it lies inside hosts, not between them."""


def spread(end: Sharding, other: Sharding, shape: Sequence[int], boundary: int) -> Sharding | None:
    """The middle whose hosts hold what those of `end` do, each device a part that `other`'s hosts do not cut.

    Args:
        end: the source or the target.
        other: the opposite end.
        shape: of the whole tensor.
        boundary: devices per host.

    Returns:
        None where there is none, or it is `end` itself.
    """
    sizes = end.mesh.sizes
    end_cuts, other_cuts = all_cuts(end, boundary), all_cuts(other, boundary)
    if end_cuts is None or other_cuts is None:
        return None
    barriers = [[cut for cut in cuts if not cut.inside] for cuts in other_cuts]
    middle = [_firm(cuts, barrier) for cuts, barrier in zip(end_cuts, barriers, strict=True)]
    loose = [cut.axis for cuts, firm in zip(end_cuts, middle, strict=True) for cut in cuts[len(firm) :]]
    loose += end.mesh.parts_within(end.unused_axes(), Digit(1, boundary))
    if not loose:
        return None
    while loose:
        fitting = [
            (cut not in other_cuts[number], _meets(cut, barriers[number]), place, number, cut)
            for place, axis in enumerate(loose)
            for number, cuts in enumerate(middle)
            if shape[number] % (cut := _next(axis, cuts, end.mesh)).stop == 0
        ]
        if not fitting:
            return None
        *_, number, cut = min(fitting)
        middle[number] = [*middle[number], cut]
        loose.remove(cut.axis)
    lists = [merged([cut.axis for cut in cuts], sizes) for cuts in middle]
    dims = tuple(replace(dim, axes=axes) for dim, axes in zip(end.dims, lists, strict=True))
    return None if dims == end.dims else replace(end, dims=dims, replicated=())


def collides(end: Sharding, other: Sharding, boundary: int) -> bool:
    """Whether an axis inside hosts cuts a dim where axes between hosts cut it at the other end."""
    end_cuts, other_cuts = all_cuts(end, boundary), all_cuts(other, boundary)
    if end_cuts is None or other_cuts is None:
        return False
    return any(
        cut.inside and _meets(cut, [barrier for barrier in barriers if not barrier.inside])
        for cuts, barriers in zip(end_cuts, other_cuts, strict=True)
        for cut in cuts
    )


def _firm(cuts: list[AxisCut], barrier: list[AxisCut]) -> list[AxisCut]:
    """The cuts that stay where they are: to the last between hosts, and those after it that meet no barrier."""
    last = max((place for place, cut in enumerate(cuts) if not cut.inside), default=-1)
    meets = (place for place, cut in enumerate(cuts) if place > last and _meets(cut, barrier))
    return cuts[: next(meets, len(cuts))]


@lru_cache(32)  # a plan asks for those of its ends, and of what lies between, several times
def all_cuts(sharding: Sharding, boundary: int) -> list[list[AxisCut]] | None:
    """Per dim its cuts, major to minor; None on one device, or where no split of axes holds what lies inside hosts."""
    mesh = sharding.mesh
    if mesh.is_maximal:
        return None
    cuts_by_dim, hosts = [], Digit(boundary, max(1, mesh.size // boundary))
    for dim in sharding.dims:
        cuts: list[AxisCut] = []
        for axis in dim.axes:
            digit = mesh.digit_of(axis)
            is_inside = boundary % digit.end == 0
            if digit.size > 1 and (is_inside or (digit.stride % boundary == 0 and hosts.end % digit.end == 0)):
                cuts.append(_next(axis, cuts, mesh, inside=is_inside))
                continue
            between = mesh.parts_within([axis], hosts)
            inside = mesh.parts_within([axis], Digit(1, boundary))
            full = mesh.sizes[axis.name]
            if prod(part.size_in(full) for part in (*between, *inside)) != digit.size:
                return None
            for part in (*between, *inside):
                cuts.append(_next(part, cuts, mesh, inside=part in inside))
        cuts_by_dim.append(cuts)
    return cuts_by_dim


def _next(axis: Axis, cuts: list[AxisCut], mesh: Mesh, *, inside: bool = True) -> AxisCut:
    """The cut by an axis, minor to others."""
    start = cuts[-1].stop if cuts else 1
    return AxisCut(axis, start, start * axis.size_in(mesh.sizes[axis.name]), inside)


def _meets(cut: AxisCut, barriers: list[AxisCut]) -> bool:
    return any(cut.start < barrier.stop and barrier.start < cut.stop for barrier in barriers)
