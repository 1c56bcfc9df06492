"""What every row of a table costs at the least, for all rows at once.

A device receives at least the part of its tile that cannot lie in the tile that it has: as two boxes share in each
dim at most the shorter of their sides, this much follows from the sides alone, whatever the order of the axes.
Unreduced values of p classes that R devices each want combined take R + p - 2 transfers at the least.
The same holds of groups of devices and what comes into them from outside (`reshard.network.inflow`), so that every
part of a network bounds the time from below.
Arithmetic is known exactly.

By hand, `ij,jk->ik` of size 8 each on X=2, from [I, J_X] and [J, K] to [I, K], cut by nothing: A's tile has 64
elements of which 32 are there, so each device receives 32; B and the result cost nothing.

>>> from reshard.mesh import Mesh
>>> from reshard.contraction.tasks import Calculation, dtype_named
>>> from reshard.operations.pattern import Pattern
>>> mesh = Mesh.of(X=2)
>>> product = Calculation.of_einsum(Pattern.of("ij,jk->ik"), {"i": 8, "j": 8, "k": 8}, dtype_named("int8"))
>>> sources = Sharding.of(mesh, None, "X"), Sharding.of(mesh, None, None)
>>> table = Table(Task(product, mesh, sources, Sharding.of(mesh, None, None)))
>>> bounds = Bounds(table)
>>> list(zip(table.rows[:, 0].tolist(), bounds.received.sum(axis=0).tolist(), strict=True))
[(0, 32.0), (1, 48.0), (2, 64.0), (3, 64.0)]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.contraction.goal import Goal
from reshard.contraction.rows import NO_DIM, UNREDUCED, Rows, Table
from reshard.contraction.tasks import Stage, Task
from reshard.digits import Digit, Digits
from reshard.network import Network
from reshard.network.inflow import DeviceGroup, groups_of
from reshard.sharding import Sharding

Amounts = NDArray[np.float64]


def _divides(end: Sharding | None, shape: Sequence[int]) -> bool:
    """Whether an end cuts every dim evenly."""
    return end is None or all(size % end.layout_for(shape).shards(dim) == 0 for dim, size in enumerate(shape))


def _overlap(first: Digit, second: Digit) -> bool:
    """Whether two digits have values in common, wherever their ends are."""
    return first.stride < second.stride * second.size and second.stride < first.stride * first.size


class _Cut(NamedTuple):
    """The sides of tiles, per row, when only some pieces count."""

    devices: int
    """Groups that the pieces tell apart."""
    inside: tuple[bool, ...]
    """Which pieces count."""


class Bounds:
    """Lower bounds of the price of every row of a table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.task: Task = table.task
        self._roles = [table.roles(term) for term in range(len(self.task.ends))]
        self._trips = np.array(self.task.trip_counts, dtype=np.int64)[:, None]

    @cached_property
    def received(self) -> Amounts:
        """Per term and row, bytes that the busiest device receives at the least, on all trips."""
        return self._received(self._every) * self._trips

    @cached_property
    def _every(self) -> _Cut:
        """All pieces count, so that every device is a group by itself."""
        return _Cut(self.task.mesh.size, (True,) * len(self.table.pieces))

    @cached_property
    def is_even(self) -> NDArray[np.bool_]:
        """The rows that cut all labels evenly: there every device receives as much as the bound says."""
        shards = self.table.shards(self.table.rows)
        sizes = np.array([self.task.sizes[label] for label in self.table.labels], dtype=np.int64)
        even: NDArray[np.bool_] = (sizes % shards == 0).all(axis=1)
        return even & _divides(self.task.target, self.task.calculation.shapes[-1])

    @cached_property
    def doing(self) -> list[Rows]:
        """Per term, row and piece: which dim it cuts, `NO_DIM`, or `UNREDUCED` along it."""
        labels, doing = self.table.labels, list[Rows]()
        for term, dims in enumerate(self.task.pattern.terms):
            is_result = term == len(self.task.sources)
            meaning = np.full(1 + len(labels) + len(self.task.waits), NO_DIM, dtype=np.int64)
            for number, label in enumerate(labels):
                holders = [dim for dim, group in enumerate(dims) if label in group]
                meaning[1 + number] = holders[0] if holders else UNREDUCED if is_result else NO_DIM
            for number, wait in enumerate(self.task.waits):
                meaning[1 + len(labels) + number] = UNREDUCED if is_result or term in wait.operands else NO_DIM
            doing.append(meaning[self.table.rows])
        return doing

    @cached_property
    def moved(self) -> NDArray[np.bool_]:
        """Per term and row, whether it must be moved or cut."""
        moved = np.zeros((len(self._roles), len(self.table.rows)), dtype=np.bool_)
        if any(0 in shape for shape in self.task.calculation.shapes):
            return moved
        for term, roles in enumerate(self._roles):
            if roles is not None:
                moved[term] = (self.doing[term] != np.array(roles, dtype=np.int64)).any(axis=1)
        if self.task.target is None:
            moved[-1] = self.received[-1] > 0
        return moved

    @property
    def steps(self) -> Rows:
        """Per row, how often terms must be moved or cut."""
        steps: Rows = (self.moved * self._trips).sum(axis=0)
        return steps

    @cached_property
    def flops(self) -> Amounts:
        """Per row, the operations of the busiest device."""
        return self._counted(self.task.calculation.stages)

    def work(self, goal: Goal) -> Amounts:
        """Per row, what these cost."""
        arithmetic = self.flops * goal.per_flop(self.task.calculation.dtype)
        if not goal.per_touched_byte:
            return arithmetic
        return np.maximum(arithmetic, self._counted(self.task.calculation.touched) * goal.per_touched_byte)

    def _counted(self, stages: Sequence[Stage]) -> Amounts:
        """Per row, what the busiest device does in loops."""
        lengths = self._parts(self.table.shards(self.table.rows))
        total = np.zeros(len(lengths))
        for stage in stages:
            columns = [number for number, label in enumerate(self.table.labels) if label in stage.labels]
            total += stage.operations * lengths[:, columns].prod(axis=1, dtype=np.float64)
        return total * self.task.trip_counts[-1]

    def seconds(self, network: Network) -> tuple[Amounts, Amounts]:
        """Per term and row, seconds that its reshard takes at the least: those of the slowest group of devices.

        And numbers that are equal where reshards are alike: the seconds of all groups, added up.
        """
        bound = np.zeros((len(self._roles), len(self.table.rows)))
        total = np.zeros_like(bound)
        for group in groups_of(network, self.task.mesh):
            cut = self._agreeing(group)
            if cut is None:
                continue
            received = self._received(cut)
            if not all(cut.inside):
                received = np.where(self.is_even, received, 0.0)
            taken = group.seconds(received / (self.task.mesh.size // cut.devices), network.launch_s)
            bound, total = np.maximum(bound, taken), total + taken
        return bound * self._trips, total * self._trips + self.moved

    def _agreeing(self, group: DeviceGroup) -> _Cut | None:
        """The pieces that tell groups of a kind apart; None where one lies on both sides."""
        inside = []
        for piece in self.table.pieces:
            digit_of_piece = self.task.mesh.digit_of(piece)
            inside.append(any(Digits((digit_of_piece,)).within(digit) == (digit_of_piece,) for digit in group.digits))
            if not inside[-1] and any(_overlap(digit_of_piece, digit) for digit in group.digits):
                return None
        devices = prod(size for size, counts in zip(self.table.sizes, inside, strict=True) if counts)
        return _Cut(devices, tuple(inside))

    def _parts(self, shards: Rows) -> Rows:
        sizes = np.array([self.task.sizes[label] for label in self.table.labels], dtype=np.int64)
        lengths: Rows = -(-sizes // shards)
        return lengths

    def _received(self, cut: _Cut) -> Amounts:
        """Per term and row, bytes that a device receives at the least on one trip."""
        shards = self.table.shards(self.table.rows, cut.inside)
        lengths = self._parts(shards)
        sources = [self._of_operand(term, cut, lengths) for term in range(len(self.task.sources))]
        itemsizes = np.array([dtype.itemsize for dtype in self.task.calculation.dtypes])[:, None]
        received: Amounts = np.stack([*sources, self._of_result(cut, lengths)]) * itemsizes
        return received

    def _sides(self, term: int, lengths: Rows) -> Amounts:
        """Per row and dim, the side of a tile in the layout of the row."""
        sides = np.ones((len(lengths), len(self.task.calculation.shapes[term])))
        for dim, (group, size) in enumerate(
            zip(self.task.pattern.terms[term], self.task.calculation.shapes[term], strict=True)
        ):
            is_whole = not self.task.calculation.whole.isdisjoint(group)  # and may have another size than its label
            columns = [self.table.labels.index(label) for label in group]
            sides[:, dim] = size if is_whole and len(group) == 1 else lengths[:, columns].prod(axis=1, dtype=np.float64)
        return sides

    def _end_sides(self, term: int, end: Sharding, cut: _Cut) -> Amounts | None:
        """Per dim, the side of a tile where a term is now or wanted."""
        shape, roles = self.task.calculation.shapes[term], self._roles[term]
        if all(cut.inside):
            return np.array(end.local_shape(shape), dtype=np.float64)
        if roles is None or not _divides(end, shape):
            return None
        shards = [
            prod(
                size
                for size, role, counts in zip(self.table.sizes, roles, cut.inside, strict=True)
                if counts and role == dim
            )
            for dim in range(len(shape))
        ]
        return np.array([-(-size // count) for size, count in zip(shape, shards, strict=True)], dtype=np.float64)

    def _classes(self, cut: _Cut, choices: set[int]) -> Amounts:
        """Per row, the product of the pieces that count and do one of these."""
        classes = np.ones(len(self.table.rows))
        for number, size in enumerate(self.table.sizes):
            if cut.inside[number]:
                classes[np.isin(self.table.rows[:, number], list(choices))] *= size
        return classes

    def _of_operand(self, term: int, cut: _Cut, lengths: Rows) -> Amounts:
        source = self.task.sources[term]
        tiles = self._sides(term, lengths)
        tile = tiles.prod(axis=1)
        held = self._end_sides(term, source, cut)
        if held is None:
            return np.zeros(len(tile))
        moved: Amounts = tile - np.minimum(tiles, held).prod(axis=1)
        waits = {1 + len(self.table.labels) + n for n, wait in enumerate(self.task.waits) if term in wait.operands}
        if any(term in wait.operands and len(wait.operands) > 1 for wait in self.task.waits):
            # what waits with another may become unreduced, for which nothing moves
            if source.unreduced:
                return np.zeros(len(tile))
            moved = np.where(np.isin(self.table.rows, list(waits)).any(axis=1), 0.0, moved)
        if not source.unreduced:
            return moved
        roles = self._roles[term]
        if roles is None:
            return np.zeros(len(tile))
        classes_before = prod(
            s
            for s, role, counts in zip(self.table.sizes, roles, cut.inside, strict=True)
            if counts and role == UNREDUCED
        )
        classes_after = self._classes(cut, waits)
        return np.where(
            classes_before > classes_after,
            self._combined(term, cut, classes_before / classes_after, tile, classes_after),
            moved,
        )

    def _combined(
        self, term: int, cut: _Cut, classes: Amounts, tile: Amounts, classes_after: Amounts | float
    ) -> Amounts:
        """What a device receives where values of so many classes are combined: at least its tile, and its share."""
        numel = float(prod(self.task.calculation.shapes[term]))
        copies = np.maximum(tile * cut.devices / max(numel, 1.0) / classes_after, 1.0)
        share = (copies + classes - 2) * numel * classes_after / cut.devices
        return np.where(self.is_even, np.maximum(tile, share), tile)

    def _of_result(self, cut: _Cut, lengths: Rows) -> Amounts:
        task, labels = self.task, self.table.labels
        term = len(task.sources)
        unreduced = {1 + number for number, label in enumerate(labels) if label in task.pattern.reduced}
        unreduced |= {1 + len(labels) + number for number in range(len(task.waits))}
        classes = self._classes(cut, unreduced)
        tiles = self._sides(term, lengths)
        nothing = np.zeros(len(tiles))
        if task.target is None:
            if task.may_stay_unreduced:
                return nothing
            share = (classes - 1) * (prod(task.calculation.shapes[-1]) / cut.devices)  # scattered over all
            return np.where((classes > 1) & self.is_even, share, nothing)
        target, roles = task.target, self._roles[term]
        target_sides = self._end_sides(term, target, cut)
        if target_sides is None or roles is None:
            return nothing
        classes_after = np.ones(len(tiles))
        becomes_unreduced = np.zeros(len(tiles), dtype=np.bool_)
        for number, (size, role) in enumerate(zip(self.table.sizes, roles, strict=True)):
            if role == UNREDUCED:
                stays = np.isin(self.table.rows[:, number], list(unreduced))
                becomes_unreduced |= ~stays
                if cut.inside[number]:
                    classes_after[stays] *= size
        tile = np.full(len(tiles), target_sides.prod())
        moved = tile - np.minimum(tiles, target_sides).prod(axis=1)
        combined = self._combined(term, cut, classes / classes_after, tile, classes_after)
        return np.where(becomes_unreduced, nothing, np.where(classes > classes_after, combined, moved))
