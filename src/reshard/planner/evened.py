"""Ways for a tensor whose tiles differ in size, from those of the next larger one whose tiles do not.

On a network the ways that take least lead through shardings of equal tiles, of which most is known in closed form.
A tensor a little smaller goes the same ways: between the ends it lies in blocks of the larger one's lengths, and ends
inside one of them, so that what each step sends is what the larger tensor sends, less what is not there.
Where the blocks of an end are of other lengths, a step before or after puts the few elements in place that lie in
others.

By hand, 30 rows by `a` and by `b` are those of a tensor of 32: by both they lie in blocks of 4, the last of which has
two; by `a` alone they lie in blocks of 15, not of 16, so one row goes to the other device of `a` first.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(a=2, b=4)
>>> evened_shapes(Reshard.of(Sharding.of(mesh, ("a", "b")), Sharding.of(mesh, "a"), (30,)))
[(32,)]
>>> leaving = Reshard.of(Sharding.of(mesh, "a"), Sharding.of(mesh, None), (30,))
>>> larger = Reshard.of(leaving.source, leaving.target, (32,))
>>> [step.after.text() for step in chain_ended_inside(leaving, (32,), chain_through(larger)).steps]
['[{blocks(16), "a"}]', '[{}]']
"""

from __future__ import annotations

from itertools import pairwise
from math import lcm, prod
from typing import NamedTuple

from reshard.axis import Axis, difference
from reshard.errors import ReshardError
from reshard.planner.candidates import kept_cuts, refined
from reshard.plans.ended_inside import ended_inside
from reshard.problem import Reshard, becomes_unreduced
from reshard.sharding import Sharding
from reshard.steps import Chain, Step, chain_through, step_of

MOST = 1.5
"""How many times as large the larger tensor may be."""
LONGER = 1.1
"""How many times as long a dim may be that all axes together divide."""


def evened_shapes(reshard: Reshard) -> list[tuple[int, ...]]:
    """The next larger shapes whose dims all axes together divide; none that are much larger.

    Dims that are short, as those of size 1, are divided by what cuts them alone; where values are combined, which all
    may share that do so, dims that are longer are divided by all as well.
    Last comes the shape in which every dim that an end cuts is divided by what cuts it alone: fewer elements lie in
    other blocks there, and fewer ways lead through it.
    """
    if reshard.source.is_woven or reshard.target.is_woven:
        return []
    devices, (before, after) = reshard.source.mesh.size, (tiling.layout for tiling in reshard.tilings)
    cuts = [lcm(*parts) for parts in zip(before.parts, after.parts, strict=True)]

    def evened(longer: float, *, nearest: bool = False) -> tuple[int, ...]:
        shape = []
        for size, cut in zip(reshard.shape, cuts, strict=True):
            by_all, by_these = (-(-size // count) * count for count in (lcm(cut, devices), cut))
            shape.append(by_all if by_all <= size * longer and not (nearest and cut > 1) else by_these)
        return tuple(shape)

    shapes = [evened(LONGER), *([evened(MOST)] if reshard.source.unreduced else []), evened(LONGER, nearest=True)]
    least = prod(reshard.shape)
    return [shape for shape in dict.fromkeys(shapes) if least < prod(shape) <= least * MOST]


class Ended(NamedTuple):
    """The chain of a tensor that ends inside a larger one."""

    steps: Chain
    whole: tuple[int, int]
    """How many of the first and of the last steps put in place what lies in other blocks."""


def chain_ended_inside(
    reshard: Reshard, larger: tuple[int, ...], steps: Chain, *, in_parts: bool = False, cut_first: bool = False
) -> Ended:
    """The chain of a larger tensor, for one that ends inside it.

    Args:
        reshard: of the smaller.
        larger: the shape of the larger.
        steps: its chain.
        in_parts: whether it goes in parts, once it lies in blocks of the larger's: these are kept then.
        cut_first: whether what lies in other blocks is put in place by the first step, once it is cut.

    Raises:
        ReshardError: where a step cannot be made.
    """
    points = [steps[0].before, *(step.after for step in steps)][cut_first:]
    middles = [ended_inside(point, larger, reshard.shape) for point in points]
    near = [step.near for step in steps[cut_first:]]
    chain = chain_through(reshard, *middles, near=(0, *near, 0))
    larger_steps = dict(zip(pairwise(middles), steps[cut_first:], strict=True))
    kept = middles[0] if in_parts or middles[0] == reshard.source else None
    leads = middles[0] != reshard.source and [step.after for step in chain[:1]] == [middles[0]]
    follows = middles[-1] != reshard.target and [step.before for step in chain[-1:]] == [middles[-1]]
    along = tuple([_along_rings(step, larger_steps.get((step.before, step.after)), kept) for step in chain])
    return Ended(along, (int(leads), int(follows)))


def combined_apart(steps: Chain) -> Chain:
    """The chain with each step in two that combines values for all that hold some: a part each, which is gathered then.

    Where blocks are of one length that takes as long, and else every device would have a message from every other.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(a=4)
    >>> summed = Reshard.of(Sharding.of(mesh, None, unreduced="a"), Sharding.of(mesh, None), (8,))
    >>> [step.kind for step in combined_apart(chain_through(summed))]
    ['ReduceScatter', 'AllGather']
    """
    apart: list[Step] = []
    for step in steps:
        combined = becomes_unreduced(step.after, step.before)
        may_scatter = combined and not step.after.is_woven and step.before.mesh == step.after.mesh
        scattered = _scattered(step, combined) if may_scatter else None
        apart += [step] if scattered is None else chain_through(step.reshard, scattered)
    return tuple(apart)


def _scattered(step: Step, combined: tuple[Axis, ...]) -> Sharding | None:
    """Where all combine a part each: the end of the step cut further, or its start where the end keeps not its cuts."""
    before, after, sizes = step.before, step.after, step.after.mesh.sizes
    if kept_cuts(before, after).dims != before.dims:
        return refined(before, combined, after, step.shape)
    spare = difference(combined, [axis for dim in after.dims for axis in dim.axes], sizes)
    return refined(after, spare, before, step.shape)


def _along_rings(step: Step, larger: Step | None, kept: Sharding | None) -> Step:
    """The step along the rings of that of the larger tensor, if it has any; as it is where no digits say it.

    Args:
        step: of the smaller.
        larger: the same of the larger.
        kept: the first tiles of the smaller that lie as those of the larger do; None where it has none to keep.
    """
    if larger is None or larger.ring is None:
        return step
    try:
        kept = None if larger.kept is None else kept
        return step_of(step.reshard, ring=larger.ring, kept=kept, across=larger.across)
    except ReshardError:
        return step
