"""Which axes are partial on both sides of a reshard, and which become so.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=4)
>>> before, after = Sharding.of(mesh, unreduced=("x", "y:(1)2")), Sharding.of(mesh, unreduced="y")
>>> print(*kept_axes(before, after), *made_axes(before, after))
"y":(1)2 "y":(2)2
"""

from __future__ import annotations

from math import prod

from reshard.axis import Axis, difference, sorted_and_merged
from reshard.digits import Digit, within
from reshard.mesh import Mesh
from reshard.sharding import Sharding


def kept_axes(before: Sharding, after: Sharding) -> tuple[Axis, ...]:
    """The unreduced axes of `after` along which the values are partial already, by the same reduction.

    Where the devices stand in another order there is no telling which they are: then all, if there are as many
    classes before as after, or none.
    """
    if not before.unreduced or not after.unreduced or before.reduction != after.reduction:
        return ()
    partial = before.layout.unreduced
    if not before.mesh.same_order_as(after.mesh):
        counts = [prod(digit.size for digit in digits) for digits in (partial, after.layout.unreduced)]
        return after.unreduced if counts[0] == counts[1] else ()
    pieces = [piece for axis in after.unreduced for digit in partial for piece in parts_within(axis, digit, after.mesh)]
    return sorted_and_merged(pieces, after.mesh.sizes)


def made_axes(before: Sharding, after: Sharding) -> tuple[Axis, ...]:
    """The unreduced axes of `after`, of more than one device, along which the values are not partial yet."""
    if not after.unreduced:
        return ()
    sizes = after.mesh.sizes
    made = difference(after.unreduced, kept_axes(before, after), sizes)
    return tuple(axis for axis in made if axis.size_in(sizes[axis.name]) > 1)


def parts_within(axis: Axis, digit: Digit, mesh: Mesh) -> list[Axis]:
    """The part of an axis that lies in a digit of the position, where a split of both has it.

    >>> from reshard.mesh import Mesh
    >>> print(*parts_within(Axis("y"), Digit(1, 2), Mesh.of(x=2, y=4)))
    "y":(2)2
    """
    stride, size = mesh.stride_of(axis)
    full_size = mesh.sizes[axis.name]
    end = stride * size * axis.start  # of the whole axis
    parts = within((Digit(stride, size),), digit)
    return [Axis.between(axis.name, end // (part.stride * part.size), end // part.stride, full_size) for part in parts]
