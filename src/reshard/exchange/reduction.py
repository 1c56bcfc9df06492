"""Unreduced values: combine every element on one device, then gather.

A digit along which the source is unreduced is gathered as any other, but what arrives is combined, not placed.
Were that done into the target itself, each of its R replicas would combine the same elements.
So the target is refined by *all* digits on which it is replicated, so that every element has one home among its
R holders: p classes of values arrive there, p - 1 of them from others where the home holds one itself;
then the replicas gather from each other, R - 1 copies of each element.
That is R + p - 2 transfers per element, or one more, and replicas are equal bit for bit.

**The bound.** With p classes and R copies an element costs at least R + p - 2 transfers: each transfer joins two
devices, and p holders of different parts together with R holders of the result, of which one may be in both,
must be joined.
Where no device of the target holds a part of the element, none is in both, and it costs one more.

By hand, a vector of 4 on x=2, unreduced over x, to replicated: R = p = 2.
Device 0 combines elements 0 and 1, device 1 the others (2 received each), then they exchange halves (2 more):
4 = 2 (p - 1) / p times the tensor, the ring's figure for an all-reduce.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=2)
>>> source = Tiling.of(Sharding.of(mesh, None, unreduced="x"), (4,))
>>> target = Tiling.of(Sharding.of(mesh, None), (4,))
>>> [exchange.received for exchange in combine_then_gather(source, target)]
[2, 2]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from reshard.deal import check_held
from reshard.digits import NO_DIGITS, Digit
from reshard.errors import ReshardError
from reshard.exchange.by_boxes import by_boxes
from reshard.exchange.by_digits import by_digits
from reshard.exchange.kept import beside_kept
from reshard.exchange.overlap_add import overlap_add
from reshard.exchange.pieces import ClassDigits, Exchange, block_overlaps
from reshard.exchange.ring import around, transposed
from reshard.layout import Layout
from reshard.refinement import refine
from reshard.tiling import Tiling


def find_exchange(source: Tiling, target: Tiling, near: int = 0) -> Exchange:
    """The exchange from one tiling to another, by digits where they have a refinement, else by boxes.

    Classes that the target does not keep apart are combined on every device that gets them.

    Args:
        source: where the tiles are.
        target: where they go.
        near: where given, a stride of the device number: replicas within the receiver's run of so many send first.

    Raises:
        ReshardError: `no-plan` where the target is unreduced along what the source is not, or has windows where the
            source sums them; `bad-window` where those of the source leave out what they own; `too-large`.
    """
    if source.layout.is_summed:
        if target.layout.has_windows:
            raise ReshardError("no-plan", "an exchange cannot sum windows into windows at once")
        return overlap_add(source, target, find_exchange)
    for weave, size in zip(source.layout.weaves, source.shape, strict=False):
        if weave is not None:
            check_held(weave, size)
    staying = target.layout.unreduced
    same_order = source.same_order_as(target) or not staying
    combined = source.layout.unreduced.without(staying) if same_order else NO_DIGITS
    if source.classes != target.classes * combined.size:
        raise ReshardError("no-plan", "an exchange cannot make values partial along digits where they were not")
    exchange = by_digits(source, target, near) if same_order else None
    return exchange or by_boxes(source, target, combined, class_digits(source, target), near)


def class_digits(source: Tiling, target: Tiling) -> ClassDigits:
    """The digits along which values stay unreduced.

    They are the same digits where the devices stand in one order; else the classes go by their number.
    """
    staying = target.layout.unreduced
    same_order = source.same_order_as(target) or not staying
    return ClassDigits(staying if same_order else source.layout.unreduced, staying)


def combine_then_gather(
    source: Tiling,
    target: Tiling,
    near: int = 0,
    ring: Digit | None = None,
    kept: Tiling | None = None,
    across: Digit | None = None,
) -> tuple[Exchange, ...]:
    """The exchanges that take unreduced values to the target: into a refined target, and from there.

    Where the target has one copy of each tile, or keeps all classes apart, one exchange does it.
    Where `near` is 1 every replica combines by itself, from the values nearest to it: more bytes, on nearer links.
    Where a ring is given, nothing is combined, and pieces go along it from neighbour to neighbour (`around`);
    where two are given, devices of both change places (`transposed`).
    What devices kept from before is not sent to them (`beside_kept`); nothing is combined then either.
    """
    if ring is not None:
        along = around(source, target, ring, kept) if across is None else transposed(source, target, ring, across)
        return (along,)
    if kept is not None:
        return (beside_kept(find_exchange(source, target, near), kept, near),)
    if target.layout.copies() == 1 or source.classes == target.classes or source.layout.is_summed:
        return (find_exchange(source, target, near),)
    if near == 1 and source.same_order_as(target) and refine(source.layout, target.layout, target.shape) is not None:
        return (find_exchange(source, target, near),)
    if target.layout.has_windows:
        raise ReshardError("no-plan", "an exchange cannot combine partial values and fill windows at once")
    if not target.shape:  # a scalar is a vector of one element
        source, target = (
            replace(tiling, shape=(1,), layout=replace(tiling.layout, dims=((),))) for tiling in (source, target)
        )
    choices = [(find_exchange(source, home, near), home) for home in _homes(source, target)]
    combine, home = min(choices, key=lambda choice: (choice[0].received, choice[0].total_received))
    return combine, find_exchange(home, target, near)


def _homes(source: Tiling, target: Tiling) -> Iterator[Tiling]:
    """Refinements of the target in which every element has one holder.

    A digit that cuts a dim in the source cuts it here too, in the same order, so that homes hold parts of
    what they combine; the rest go, all together, to one dim after the other, then each where it divides best.
    """
    free = target.layout.free
    roles: dict[Digit, tuple[int, int]] = {}
    if source.same_order_as(target):
        for dim in range(len(source.shape)):
            for order, digit in enumerate(source.layout.cutting[dim]):
                for part in free.within(digit):
                    roles[part] = (dim, order)
    placed = sorted(roles, key=lambda digit: (roles[digit], -digit.stride))
    rest = free.without(placed).primes()
    seen = set()
    for favourite in [None, *range(len(target.shape))]:
        layout = target.layout
        for digit in placed:
            layout = layout.cut_further(roles[digit][0], digit)
        for digit in rest:
            dim = _roomiest(layout, target.shape, digit) if favourite is None else favourite
            layout = layout.cut_further(dim, digit)
        if layout not in seen:
            seen.add(layout)
            yield replace(target, layout=layout)


def _roomiest(layout: Layout, shape: Sequence[int], digit: Digit) -> int:
    """The dim with the longest tile among those that the digit divides, or among all."""
    tile = layout.local_shape(shape)
    even = [size % (layout.shards(dim) * digit.size) == 0 for dim, size in enumerate(shape)]
    return max(range(len(shape)), key=lambda dim: (even[dim], tile[dim]))


def total_bound(source: Tiling, target: Tiling) -> int:
    """The least number of elements that all devices together must receive to reduce and place every element.

    Per element R + p - 2 with R copies in the target and p classes of unreduced values, and one more where no
    device of the target holds a part; per class that stays apart.

    Raises:
        ReshardError: `too-large` where the tiles are too many to look for such devices.
    """
    classes, copies = source.classes // target.classes, target.layout.copies()
    return prod(target.shape) * target.classes * (copies + classes - 1) - _held_elements(source, target)


def _held_elements(source: Tiling, target: Tiling) -> int:
    """How many elements some device of the target holds a part of in the source, summed over kept classes."""
    devices = target.mesh.device_array
    places = source.mesh.positions_of(devices)
    shared = np.flatnonzero(places >= 0)
    volume = np.ones(len(shared), dtype=np.int64)
    keys = [digit.value(shared) for digit in target.layout.unreduced]
    for dim, size in enumerate(target.shape):
        numbers = [
            tiling.layout.cutting[dim].index_of(at) for tiling, at in ((source, places[shared]), (target, shared))
        ]
        volume *= block_overlaps(source.layout, target.layout, dim, size).shared(*numbers)
        keys += numbers
    if not keys:
        return 1 if len(shared) else 0
    _, first = np.unique(np.stack(keys, axis=1)[volume > 0], axis=0, return_index=True)
    return int(volume[volume > 0][first].sum())
