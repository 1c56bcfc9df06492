"""The digits of the devices that two shardings are searched on, and their names.

All that cuts the positions of the devices on either side cuts them here too, and what is left is split into prime
sizes, so a digit is the least that a collective can move.
A state of the search lists digits by number; a `Naming` says it as a sharding again, on the mesh of the source,
on that of the target, or, where digits are no parts of the axes there, on a mesh of the digits themselves.

By hand, x=2, y=4 and `[{"y"}] -> [{"x"}]`: digits 0 = x, 1 and 2 = the halves of y.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=4)
>>> frame = frame_of(Sharding.of(mesh, "y"), Sharding.of(mesh, "x"))
>>> [(digit.stride, digit.size) for digit in frame.digits], frame.source, frame.target
([(4, 2), (2, 2), (1, 2)], ((1, 2),), ((0,),))
>>> print(frame.here.sharding(((0, 1),), (), Sharding.of(mesh, "y")).text())
[{"x", "y":(1)2}]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reshard.axis import Axis, merged, sorted_and_merged
from reshard.digits import Digit, Layout, Stage, digit_order, primes
from reshard.mesh import Mesh
from reshard.sharding import DimSharding, Sharding

Entries = tuple[tuple[int, ...], ...]
Order = Sequence[tuple[Digit, int]]
"""Digits of the target's positions, each with its stride in the source's."""


@dataclass(frozen=True)
class Naming:
    """Digits as parts of the axes of a mesh."""

    mesh: Mesh
    axes: tuple[Axis, ...]
    """Per digit."""

    def sharding(self, state: Entries, unreduced: Iterable[int], like: Sharding) -> Sharding:
        """The sharding whose dims are cut so; reduction and rule for uneven dims are those of another."""
        sizes = self.mesh.sizes
        dims = tuple(DimSharding(merged([self.axes[entry] for entry in dim], sizes)) for dim in state)
        partial = sorted_and_merged([self.axes[entry] for entry in unreduced], sizes)
        return Sharding(self.mesh, dims, (), partial, like.reduction, like.uneven)


@dataclass(frozen=True)
class Frame:
    """The digits of two shardings over the same positions, and what each side does with them."""

    digits: tuple[Digit, ...]
    """Of the source's positions, major to minor."""
    source: Entries
    target: Entries
    source_unreduced: frozenset[int]
    target_unreduced: frozenset[int]
    here: Naming
    """In the order of the source's devices."""
    there: Naming
    """In the order of the target's devices."""


def frame_of(source: Sharding, target: Sharding, *, split: bool = True) -> Frame | None:
    """The frame of two shardings over the same devices; None where no digits hold both.

    Args:
        source: one side.
        target: the other; its order of devices may be any transposition of digits of the source's.
        split: whether digits are split into prime sizes.
    """
    order, layout = _relabelled(source, target)
    if layout is None:
        return None
    used = [*_used(source.layout), *_used(layout)]
    ends = {1, source.mesh.size, *(end for digit in used for end in (digit.stride, digit.stride * digit.size))}
    ends.update(end for digit, stride in order for end in (stride, stride * digit.size))
    if not _nest(ends):
        return None
    for more in (_ends(source.mesh, ()), _ends(target.mesh, order)):
        if _nest(ends | more):
            ends |= more
    chain = sorted(ends, reverse=True)
    digits = tuple(
        digit
        for high, low in itertools.pairwise(chain)
        for digit in (primes(Digit(low, high // low)) if split else [Digit(low, high // low)])
    )
    theirs = [Digit(_stride_there(digit, order), digit.size) for digit in digits]
    sides = (source.layout, layout)
    dims = [tuple(_numbers(digits, side.digits_of(dim)) for dim in range(len(side.dims))) for side in sides]
    partial = [frozenset(_numbers(digits, side.unreduced)) for side in sides]
    names = _naming(source.mesh, digits), _naming(target.mesh, theirs)
    return Frame(digits, dims[0], dims[1], partial[0], partial[1], *names)


def _relabelled(source: Sharding, target: Sharding) -> tuple[Order, Layout | None]:
    """How the target's positions lie in the source's, and the target's layout over the source's positions."""
    layout = target.layout
    if source.mesh.size != target.mesh.size:
        return (), None
    if source.mesh.device_ids == target.mesh.device_ids:
        return [(Digit(1, source.mesh.size), 1)], layout
    places = source.mesh.positions_of(target.mesh.device_array)
    order = digit_order(places) if (places >= 0).all() else None
    return (order or ()), None if order is None else layout.relabelled(order)


def _used(layout: Layout) -> list[Digit]:
    return [*layout.unreduced, *(digit for dim in range(len(layout.dims)) for digit in layout.digits_of(dim))]


def _nest(ends: Iterable[int]) -> bool:
    return all(high % low == 0 for low, high in itertools.pairwise(sorted(ends)))


def _ends(mesh: Mesh, order: Order) -> set[int]:
    """Where the axes of a mesh end, as strides of the source's positions."""
    strides = [mesh.stride_of(Axis(name))[0] for name, size in mesh.axes if size > 1]
    found = set()
    for stride in strides:
        inside = [
            there * (stride // old.stride) for old, there in order if old.stride <= stride < old.stride * old.size
        ]
        found.update(inside or [stride])
    return found


def _stride_there(digit: Digit, order: Order) -> int:
    """The stride of a digit of the source's positions in the target's."""
    for old, stride in order:
        if stride <= digit.stride < stride * old.size:
            return old.stride * (digit.stride // stride)
    return digit.stride


def _numbers(digits: Sequence[Digit], stage: Stage) -> tuple[int, ...]:
    """The numbers of the digits that make up a stage, major to minor."""
    return tuple(
        number
        for stride, size in stage
        for number, digit in enumerate(digits)
        if stride <= digit.stride < stride * size
    )


def _naming(mesh: Mesh, digits: Sequence[Digit]) -> Naming:
    """Digits of a mesh's positions as parts of its axes, or as the axes of a mesh in the same order of devices."""
    axes = []
    for digit in digits:
        for name, full_size in mesh.axes:
            stride, _ = mesh.stride_of(Axis(name))
            end = stride * full_size
            inside = stride <= digit.stride and digit.stride * digit.size <= end
            if inside and digit.stride % stride == 0 and end % (digit.stride * digit.size) == 0:
                axes.append(Axis.between(name, end // (digit.stride * digit.size), end // digit.stride, full_size))
                break
    if len(axes) == len(digits):
        return Naming(mesh, tuple(axes))
    ordered = sorted(digits, reverse=True)
    names = {digit: f"d{number}" for number, digit in enumerate(ordered)}
    fresh = Mesh(tuple((names[digit], digit.size) for digit in ordered), mesh.device_ids)
    return Naming(fresh, tuple(Axis(names[digit]) for digit in digits))
