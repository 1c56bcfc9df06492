"""The digits of the devices that two shardings are searched on, and their names.

All that cuts the positions of the devices on either side cuts them here too, and what is left is split into prime
sizes, so a digit is the least that a collective can move.
A state of the search lists digits by number; a `Naming` says it as a sharding again, on the mesh of the source,
on that of the target, or, where digits are no parts of the axes there, on a mesh of the digits themselves.

By hand, x=2, y=4 and `[{"y"}] -> [{"x"}]`: digits 0 = x, 1 and 2 = the halves of y.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=4)
>>> frame = frame_of(Sharding.of(mesh, "y"), Sharding.of(mesh, "x"))
>>> [(digit.stride, digit.size) for digit in frame.digits], frame.source.dims, frame.target.dims
([(4, 2), (2, 2), (1, 2)], ((1, 2),), ((0,),))
>>> print(frame.by_source.sharding(FrameState(((0, 1),), frozenset()), Sharding.of(mesh, "y")).text())
[{"x", "y":(1)2}]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from reshard.axis import Axis, merged, sorted_and_merged
from reshard.collectives.states import DigitLists
from reshard.digits import Digits, nest
from reshard.dim_sharding import DimSharding
from reshard.mesh import Mesh
from reshard.sharding import Sharding


class FrameState(NamedTuple):
    """Which digits, by number, cut each dim, and along which values are unreduced."""

    dims: DigitLists
    unreduced: frozenset[int]


@dataclass(frozen=True)
class Naming:
    """Digits as parts of the axes of a mesh."""

    mesh: Mesh
    axes: tuple[Axis, ...]
    """Per digit."""

    def sharding(self, state: FrameState, like: Sharding) -> Sharding:
        """The sharding whose dims are cut so; reduction and rule for uneven dims are those of another."""
        sizes = self.mesh.sizes
        dims = tuple(DimSharding(merged([self.axes[digit] for digit in stage], sizes)) for stage in state.dims)
        unreduced_axes = sorted_and_merged([self.axes[digit] for digit in state.unreduced], sizes)
        return Sharding(self.mesh, dims, (), unreduced_axes, like.reduction, like.uneven)


@dataclass(frozen=True)
class Frame:
    """The digits of two shardings over the same positions, and what each side does with them."""

    digits: Digits
    """Of the source's positions, major to minor."""
    source: FrameState
    target: FrameState
    by_source: Naming
    """In the order of the source's devices."""
    by_target: Naming
    """In the order of the target's devices."""

    def parts(self, stage: Iterable[int]) -> int:
        """Into how many parts digits cut a dim."""
        return prod(self.digits[digit].size for digit in stage)

    def classes(self, digits: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """The sizes of some digits, ascending, with how many there are of each."""
        sizes = [self.digits[digit].size for digit in digits]
        return tuple((size, sizes.count(size)) for size in sorted(set(sizes)))


def frame_of(source: Sharding, target: Sharding, *, split: bool = True) -> Frame | None:
    """The frame of two shardings over the same devices; None where no digits hold both.

    Args:
        source: one side.
        target: the other; its order of devices may be any transposition of digits of the source's.
        split: whether digits are split into prime sizes.
    """
    is_same_order = target.mesh.same_order_as(source.mesh)
    order = None if is_same_order else target.mesh.order_in(source.mesh)
    if order is None and not is_same_order:
        return None
    layout = target.layout if order is None else target.layout.transposed(order)
    if layout is None:
        return None
    ends = {1, source.mesh.size, *source.layout.used.cuts, *layout.used.cuts, *(order.after.cuts if order else ())}
    if not nest(ends):
        return None
    target_digits = target.mesh.digits if order is None else order.parts_of(target.mesh.digits)
    for cuts in (source.mesh.digits.cuts, target_digits.cuts):
        if nest(ends | cuts):
            ends |= cuts
    digits = Digits.between(ends)
    if split:
        digits = digits.primes()
    by_target = digits if order is None else order.reversed().parts_of(digits)
    first, last = (
        FrameState(
            tuple(_numbers(digits, stage) for stage in side.cutting), frozenset(_numbers(digits, side.unreduced))
        )
        for side in (source.layout, layout)
    )
    return Frame(digits, first, last, _naming(source.mesh, digits), _naming(target.mesh, by_target))


def _numbers(digits: Digits, stage: Digits) -> tuple[int, ...]:
    """The numbers of the digits that make up a stage, major to minor."""
    return tuple(
        number
        for stride, size in stage
        for number, digit in enumerate(digits)
        if stride <= digit.stride < stride * size
    )


@lru_cache(1024)
def _naming(mesh: Mesh, digits: Digits) -> Naming:
    """Digits of a mesh's positions as parts of its axes, or as the axes of a mesh in the same order of devices."""
    axes = mesh.axes_of(digits)
    if axes is None or len(axes) != len(digits):
        mesh = Mesh.of_digits(digits, mesh.device_ids)
        axes = mesh.axes_of(digits) or ()
    return Naming(mesh, axes)
