"""How many bytes must come into some devices, or leave them, whatever the plan.

An element must come in where one of the devices needs it and none of them holds it.
Of a value that is combined from several, the devices hold it where they hold all its parts; if not, at least one value
of its size must come in.
It must leave where a device outside needs it and those outside do not hold it.

The devices are a product of parts, one of each level of a network.
With digits that lie within levels each, every question is then a product over levels, of whether the values that an
element has in a level are in the part of it: `any` of the devices that hold it, or `all`.
Sums of products over the digits of the tensor are contractions, so no element and no device is looked at.
Elsewhere the tensor is divided into cells along all cuts of both ends, and cells are counted dim by dim
(`dim_crossing.py`), or where they are few, or digits do not lie within levels, devices are compared with them.

By hand, 4 elements on a line of 4, cut by it, that are wanted everywhere: the first two devices hold two elements and
lack two; as many must leave them.

>>> from reshard.mesh import Mesh
>>> from reshard.network.level import Level
>>> from reshard.sharding import Sharding
>>> mesh, network = Mesh.of(x=4), Network((Level(1, 4, "line", 1, 0),))
>>> sides = Sides(Tiling.of(Sharding.of(mesh, "x"), (4,)), Tiling.of(Sharding.of(mesh, None), (4,)), 1)
>>> parts = [np.array([[True] * 4, [True, True, False, False]])]
>>> crossing_by_digits(sides, sides.placed_on(network), parts).tolist()
[[0, 2], [0, 2]]
>>> crossing_by_boxes(sides, network, parts).tolist()
[[0, 2], [0, 2]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import chain
from math import lcm, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.checks import LIMIT
from reshard.digits import NO_DIGITS, Digits, Positions
from reshard.exchange import class_digits
from reshard.exchange.pieces import ClassDigits
from reshard.layout import Layout
from reshard.network.dim_crossing import Members, crossing_by_dims, is_by_dims
from reshard.network.lettered_tables import LetteredTable, contracted
from reshard.network.networks import Network
from reshard.network.numbers import device_digits, device_order
from reshard.refinement import Refinement, Role, Unreduced, refine
from reshard.tiling import Tiling

Crossing = NDArray[Any]
"""Bytes that come in (first row) and leave (second), by the number of the part of each level."""
FEW_INCIDENCES = 2**15
"""Up to so many devices times cells these are compared as soon as dims are."""
LITTLE = 1.1
"""How many times as large a tensor is that is a little larger, at the most."""


class PlacedDigit(NamedTuple):
    """A digit of the position that lies within a level."""

    number: int
    """In the refinement."""
    stride: int
    """Of the level's values."""
    size: int


class Placed(NamedTuple):
    """The common refinement of both ends and of the levels."""

    common: Refinement
    levels: tuple[tuple[PlacedDigit, ...], ...]
    """Per level the digits that lie within it, major to minor."""
    firsts: tuple[int, ...]
    """Per level the value of its digit at the first device."""


@dataclass(frozen=True)
class Holding:
    """Which cells the devices of one end have: a tensor along all cuts of both ends, by the value that stays partial.

    A device has the shard of each dim that its digits say, so devices are first gathered by shards, and cells follow
    dim by dim.

    By hand, 3 elements on 2 x 2 devices, by `x` at the source, by `y` at the target: either cuts them at 2, and devices
    0 and 1 hold the first two.

    >>> from reshard.mesh import Mesh
    >>> from reshard.sharding import Sharding
    >>> mesh = Mesh.of(x=2, y=2)
    >>> sides = Sides(*(Tiling.of(Sharding.of(mesh, axis), (3,)) for axis in "xy"), 1)
    >>> sides.held.devices.tolist(), sides.held.shards, sides.held.any_of(np.eye(4, dtype=np.bool_)).tolist()
    ([[[[0, 1], [2, 3]]]], (array([[0, 1]]),), [[[True, True, False, False], [False, False, True, True]]])
    """

    devices: Positions
    """Their positions, by the value that is combined, that which stays partial, the shard of each dim, and then all
    that have these."""
    shards: tuple[Positions, ...]
    """Per dim the shards that have each interval, a column each; -1 for none."""

    @classmethod
    def of(
        cls, tiling: Tiling, combined: Digits, staying: Digits, intervals: Sequence[Positions], *, held: bool
    ) -> Holding:
        """The cells of an end.

        Args:
            tiling: the end.
            combined: the digits along which values are combined.
            staying: those along which they stay partial.
            intervals: per dim where cells begin and stop.
            held: that of `Layout.runs`.
        """
        digits, positions = (combined, staying, *tiling.layout.cutting), tiling.mesh.positions
        order = np.argsort(Digits(chain(*digits)).index_of(positions), kind="stable")
        shards = []
        for dim, (size, cuts) in enumerate(zip(tiling.shape, intervals, strict=True)):
            runs = tiling.layout.runs(dim, size, held=held)
            has = np.zeros((tiling.layout.parts[dim], max(1, len(cuts) - 1)), dtype=np.bool_)
            first, last = (np.searchsorted(cuts, edges).tolist() for edges in (runs.start, runs.stop))
            for shard, low, high in zip(runs.shard.tolist(), first, last, strict=True):
                has[shard, low:high] = True
            counts = has.sum(axis=0)
            place, shard_of = np.nonzero(has.T)
            having = np.full((max(1, counts.max()), len(counts)), -1)
            having[np.arange(len(place)) - np.repeat(counts.cumsum() - counts, counts), place] = shard_of
            shards.append(having)
        return cls(order.reshape(*[each.size for each in digits], -1), tuple(shards))

    def any_of(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """What some of the devices have that are chosen: by the value that is combined, cell, and row.

        Args:
            chosen: a row for each choice, by position.
        """
        rows_last = np.ascontiguousarray(np.moveaxis(self.packed(chosen), 0, -1))
        return np.unpackbits(rows_last, axis=-1, count=len(chosen)).view(np.bool_)

    def packed(self, chosen: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """What `any_of` says, eight rows in a byte, by these, value and cell."""
        has = np.bitwise_or.reduce(np.packbits(chosen, axis=0)[:, self.devices], axis=-1)
        for axis, shards in enumerate(self.shards, 3):
            has = np.concatenate([has, np.zeros_like(has.take([0], axis))], axis)  # the last, -1, is no shard
            has = reduce(np.bitwise_or, (has.take(each, axis) for each in shards))
        return np.asarray(has.reshape(*has.shape[:2], -1))


@dataclass(frozen=True)
class Sides:
    """Where the elements of a tensor are, and where they are wanted."""

    source: Tiling
    target: Tiling
    itemsize: int

    @cached_property
    def classes(self) -> ClassDigits:
        """The digits along which values stay partial."""
        return class_digits(self.source, self.target)

    @cached_property
    def combined(self) -> Digits:
        """The digits of the source along which values are combined."""
        return self.source.layout.unreduced.without(self.classes.source)

    @cached_property
    def intervals(self) -> list[Positions]:
        """Per dim, where all tiles of both ends begin or stop."""
        cuts = []
        for dim, size in enumerate(self.source.shape):
            runs = self.source.layout.runs(dim, size, held=False), self.target.layout.runs(dim, size, held=True)
            edges = np.unique(np.concatenate([[0, size], *(edge for run in runs for edge in (run.start, run.stop))]))
            cuts.append(edges[(edges >= 0) & (edges <= size)])
        return cuts

    @cached_property
    def cell_bytes(self) -> Positions:
        """Bytes of every cell."""
        cells = np.full(self.classes.source.size, self.itemsize, dtype=np.int64)
        for cuts in self.intervals:
            lengths = np.diff(cuts) if len(cuts) > 1 else np.zeros(1, dtype=np.int64)  # without elements it is one cell
            cells = np.multiply.outer(cells, lengths)
        return cells.ravel()

    @cached_property
    def held(self) -> Holding:
        """The cells that the devices of the source have."""
        return Holding.of(self.source, self.combined, self.classes.source, self.intervals, held=False)

    @cached_property
    def wanted(self) -> Holding:
        """Those that the devices of the target need."""
        return Holding.of(self.target, NO_DIGITS, self.classes.target, self.intervals, held=True)

    @property
    def incidences(self) -> int:
        """The number of devices times that of cells."""
        cells = prod(max(1, len(cuts) - 1) for cuts in self.intervals) * self.classes.source.size
        return max(1, cells * (self.source.mesh.size + self.target.mesh.size))

    def is_countable(self, network: Network, most: int) -> bool:
        """Whether what crosses can be told: dim by dim, or by so many devices times cells at the most."""
        return self.incidences <= most or is_by_dims((self.source, self.target), network)

    @cached_property
    def evened(self) -> Sides | None:
        """Those of the next larger tensor whose tiles are of one size; None where that is no little larger."""
        source, target, shape = self.source, self.target, self.source.shape
        counts = map(lcm, source.layout.parts, target.layout.parts)
        larger = tuple(-(-size // count) * count for size, count in zip(shape, counts, strict=True))
        if source.layout.weaves or target.layout.weaves or prod(larger) > prod(shape) * LITTLE:
            return None
        return Sides(replace(source, shape=larger), replace(target, shape=larger), self.itemsize)

    def placed_on(self, network: Network) -> Placed | None:
        """The digits of both ends within the levels of a network.

        None where tiles differ in size, have windows, or ends and levels have no common digits.
        """
        source, target = self.source, self.target
        layout, order = _in_order(source, target), device_order(source.mesh)
        if layout is None or order is None or layout.has_windows or source.layout.has_windows:
            return None
        if not (source.is_even() and target.is_even()):
            return None
        levels = Digits(level.digit for level in network.levels)
        levels = levels if source.mesh.device_ids is None else order.reversed().parts_of(levels)
        bounds = {cut for cut in levels.cuts if 1 < cut < source.mesh.size}
        common = refine(source.layout, layout, source.shape, sorted(bounds))
        if common is None:
            return None
        inside: list[list[PlacedDigit]] = [[] for _ in network.levels]
        for number, common_digit in enumerate(common.digits):
            parts = device_digits(source.mesh, Digits((common_digit,)))
            places = [n for n, level in enumerate(network.levels) if parts and parts.within(level.digit) == parts]
            if parts is None or len(parts) != 1 or not places:
                return None
            stride = parts[0].stride // network.levels[places[0]].stride
            inside[places[0]].append(PlacedDigit(number, stride, common_digit.size))
        first = 0 if source.mesh.device_ids is None else source.mesh.device_ids[0]
        return Placed(
            common,
            tuple(tuple(sorted(digits, key=lambda digit: -digit.stride)) for digits in inside),
            tuple(level.digit.value(first) for level in network.levels),
        )


def _in_order(source: Tiling, target: Tiling) -> Layout | None:
    """The layout of the target over the positions of the source; None where it is none."""
    if source.mesh.device_ids == target.mesh.device_ids and source.mesh.size == target.mesh.size:
        return target.layout
    order = target.mesh.order_in(source.mesh)
    return None if order is None else target.layout.transposed(order)


def integers_for(sides: Sequence[Sides]) -> type:
    """A type for as many bytes as several tensors have: integers of any size where numbers of 64 bits are too small."""
    total = sum(prod(side.source.shape) * side.classes.source.size * side.itemsize for side in sides)
    return np.int64 if total < LIMIT else object


def crossing_by_digits(sides: Sides, placed: Placed, members: Members) -> Crossing:
    """The bytes that must cross, from the digits.

    Args:
        sides: the two ends.
        placed: their digits on the network.
        members: per level its parts.
    """
    roles = placed.common.source_roles, placed.common.target_roles
    kept = {role for role in roles[1] if role is not None}
    combined = {n for n, role in enumerate(roles[0]) if isinstance(role, Unreduced) and role not in kept}
    sizes: dict[Role, int] = {}
    for number, digit in enumerate(placed.common.digits):
        homes = [roles[1][number], *([] if number in combined else [roles[0][number]])]
        sizes |= {role: digit.size for role in homes if role is not None}
    letters = {role: len(members) + place for place, role in enumerate(sizes)}
    each = prod(sides.source.shape) * sides.classes.source.size // prod(sizes.values()) * sides.itemsize
    integers = integers_for([sides])
    tables = []
    for digits, first, rows in zip(placed.levels, placed.firsts, members, strict=True):
        values = np.full(1, first)
        for _, stride, size in digits:
            values = (values[:, None] + np.arange(size) * stride).ravel()
        tables.append(rows[:, values].reshape(len(rows), *(size for _, _, size in digits)))
    crossing = []
    for comes_in in (True, False):
        has, wants = [], []
        for place, (digits, table) in enumerate(zip(placed.levels, tables, strict=True)):
            here, there = ([side[placed_digit.number] for placed_digit in digits] for side in roles)
            parts = tuple(n for n, placed_digit in enumerate(digits, 1) if placed_digit.number in combined)
            has.append(_projected(table, place, here, letters, parts=parts, comes_in=comes_in))
            wants.append(_projected(table, place, there, letters, parts=(), comes_in=comes_in))
        asked = wants if comes_in else has
        count = len(members)
        missing = _summed(asked, sizes, letters, count, integers) - _summed(
            [*has, *wants], sizes, letters, count, integers
        )
        crossing.append(missing * each)
    return np.array(crossing)


def _projected(
    table: NDArray[np.bool_],
    place: int,
    roles: Sequence[Role],
    letters: Mapping[Role, int],
    *,
    parts: tuple[int, ...],
    comes_in: bool,
) -> LetteredTable:
    """Whether any device of a part holds an element, of all the values that it is combined from; or only these do."""
    free = tuple(n for n, role in enumerate(roles, 1) if role is None and n not in parts)
    first, second = (np.any, np.all) if comes_in else (np.all, np.any)
    held = first(table, axis=free, keepdims=True) if free else table
    held = second(held, axis=parts, keepdims=True) if parts else held
    left = [n for n in range(1, table.ndim) if n not in free + parts]
    held = held.reshape(len(table), *(table.shape[n] for n in left))
    return LetteredTable(held.astype(np.float64), [place, *(letters[roles[n - 1]] for n in left)])


def _summed(
    factors: Sequence[LetteredTable],
    sizes: Mapping[Role, int],
    letters: Mapping[Role, int],
    levels: int,
    integers: type,
) -> Any:
    """The number of elements of which all factors hold, by the parts of levels, as `integers_for` says."""
    used = {letter for _, dims in factors for letter in dims}
    unasked = prod(size for role, size in sizes.items() if letters[role] not in used)
    total = contracted(factors, levels)
    return np.rint(total).astype(np.int64).astype(integers) * unasked


def crossing_by_boxes(sides: Sides, network: Network, members: Members) -> Crossing:
    """The bytes that must cross, from what is held and needed of every cell.

    Args:
        sides: the two ends.
        network: whose levels `members` divides.
        members: per level its parts.
    """
    if sides.incidences > FEW_INCIDENCES:
        integers = integers_for([sides])
        elements = crossing_by_dims((sides.source, sides.target), sides.classes, integers, network, members)
        if elements is not None:
            return np.array(elements * sides.itemsize)
    chosen = np.indices([len(rows) for rows in members]).reshape(len(members), -1)
    inside = []
    for tiling in (sides.source, sides.target):
        devices = tiling.mesh.device_array
        rows: NDArray[np.bool_] = np.ones((chosen.shape[1], tiling.mesh.size), dtype=np.bool_)
        for level, parts, numbers in zip(network.levels, members, chosen, strict=True):
            rows &= parts[numbers][:, level.digit.value(devices)]
        inside.append(rows)
    crossing = []
    for comes_in in (True, False):
        holding, wanting = (rows if comes_in else ~rows for rows in inside)
        has_all = np.bitwise_and.reduce(sides.held.packed(holding), axis=1)
        missing = _summed_by_row(sides.wanted.packed(wanting)[:, 0] & ~has_all, sides.cell_bytes)[: len(wanting)]
        crossing.append(missing.reshape([len(rows) for rows in members]))
    return np.array(crossing)


def _summed_by_row(bits: NDArray[np.uint8], weights: Positions) -> Positions:
    """Per row, eight in a byte, the sum of the weights of its columns.

    >>> _summed_by_row(np.packbits([[1, 0, 1], [0, 1, 1]], axis=0), np.array([1, 10, 100]))[:2]
    array([101, 110])
    """
    every = [np.einsum("nc,c->n", bits & (128 >> bit) != 0, weights) for bit in range(8)]  # no integer for each truth
    return np.stack(every, axis=-1).reshape(-1)
