"""What every row of choices costs at the least, for all rows at once.

A device receives at least the part of its tile that cannot lie in the tile that it has: as two boxes share in each
dim at most the shorter of their sides, this much follows from the sides alone, whatever the order of the axes.
Partial values of p classes that R devices each want combined take R + p - 2 transfers at the least.
The same holds of groups of devices (`groups.py`) and what comes into them from outside, so that every part of a
network bounds the time from below.
Arithmetic is known exactly.

By hand, `ij,jk->ik` of size 8 each on X=2, from [I, J_X] and [J, K] to [I, K], cut by nothing: A's tile has 64
elements of which 32 are there, so each device receives 32; B and the result cost nothing.

>>> from reshard.mesh import Mesh
>>> mesh, pattern = Mesh.of(X=2), Pattern.of("ij,jk->ik")
>>> sources = Sharding.of(mesh, None, "X"), Sharding.of(mesh, None, None)
>>> problem = Problem(pattern, mesh, sources, Sharding.of(mesh, None, None), {"i": 8, "j": 8, "k": 8})
>>> table = Table(problem)
>>> bounds = Bounds(table)
>>> list(zip(table.rows[:, 0].tolist(), bounds.received.sum(axis=0).tolist(), strict=True))
[(0, 32.0), (1, 48.0), (2, 64.0), (3, 64.0)]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.contraction.choices import Numbers, Problem, Table
from reshard.contraction.paths import pair_pattern, paths_of
from reshard.digits import Digit, within
from reshard.network import Network
from reshard.network.inflow import Group, groups_of
from reshard.operations.pattern import Pattern
from reshard.sharding import Sharding

Amounts = NDArray[np.float64]
Stages = Sequence[tuple[frozenset[str], int]]
"""What is computed one after the other: loops over these labels, with so many operations on each element."""


def stages_of(pattern: Pattern, sizes: Mapping[str, int]) -> Stages:
    """Per contraction of two tensors, or of all that there are, its loop over all labels that it reads.

    Each element takes a multiplication, and an addition where anything is summed.

    >>> stages = stages_of(Pattern.of("ij,jk->ik"), {"i": 2, "j": 2, "k": 2})
    >>> [(sorted(labels), operations) for labels, operations in stages]
    [(['i', 'j', 'k'], 2)]
    """
    if len(pattern.operands) < 3:
        return (_stage(pattern),)
    found, terms = [], list(pattern.operands)
    for pair in paths_of(pattern, sizes)[0]:
        part = pair_pattern(terms, pair, pattern.output)
        found.append(_stage(part))
        terms = [*(term for place, term in enumerate(terms) if place not in pair), part.output]
    return tuple(found)


def _stage(pattern: Pattern) -> tuple[frozenset[str], int]:
    sums = any(pattern.role(label) in ("summed", "contracted") for label in pattern.labels)
    read = frozenset(label for label in pattern.labels if pattern.role(label) != "broadcast")
    return read, len(pattern.operands) - 1 + sums


def _divides(end: Sharding | None, shape: Sequence[int]) -> bool:
    """Whether an end cuts every dim evenly."""
    return end is None or all(size % end.layout_for(shape).shards(dim) == 0 for dim, size in enumerate(shape))


def _overlap(one: Digit, other: Digit) -> bool:
    """Whether two digits have values in common, wherever their ends are."""
    return one.stride < other.stride * other.size and other.stride < one.stride * one.size


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
        self.problem: Problem = table.problem
        self.stages = stages_of(self.problem.pattern, self.problem.sizes)
        self._roles = [table.roles(term) for term in range(len(self.problem.ends))]

    @cached_property
    def received(self) -> Amounts:
        """Per term and row, elements that the busiest device receives at the least."""
        return self._received(self._every)

    @cached_property
    def _every(self) -> _Cut:
        """All pieces count, so that every device is a group by itself."""
        return _Cut(self.problem.mesh.size, (True,) * len(self.table.pieces))

    @cached_property
    def is_even(self) -> NDArray[np.bool_]:
        """The rows that cut all labels evenly: there every device receives as much as the bound says."""
        shards = self.table.shards(self.table.rows)
        sizes = np.array([self.problem.sizes[label] for label in self.table.labels], dtype=np.int64)
        even: NDArray[np.bool_] = (sizes % shards == 0).all(axis=1)
        return even & _divides(self.problem.target, self.problem.shapes[-1])

    @cached_property
    def moved(self) -> NDArray[np.bool_]:
        """Per term and row, whether it must be moved or cut."""
        found = np.zeros((len(self._roles), len(self.table.rows)), dtype=np.bool_)
        labels = self.table.labels
        if 0 in self.problem.sizes.values():
            return found
        for term, (dims, roles) in enumerate(zip(self.problem.pattern.terms, self._roles, strict=True)):
            if roles is None:
                continue
            is_result = term == len(self.problem.sources)
            meaning = np.full(1 + len(labels) + len(self.problem.sources), -1, dtype=np.int64)
            for number, label in enumerate(labels):
                held = [dim for dim, group in enumerate(dims) if label in group]
                meaning[1 + number] = held[0] if held else -2 if is_result else -1
            for operand in range(len(self.problem.sources)):
                meaning[1 + len(labels) + operand] = -2 if is_result or operand == term else -1
            found[term] = (meaning[self.table.rows] != np.array(roles, dtype=np.int64)).any(axis=1)
        if self.problem.target is None:
            found[-1] = self.received[-1] > 0
        return found

    @property
    def steps(self) -> Numbers:
        """Per row, how many terms must be moved or cut."""
        found: Numbers = self.moved.sum(axis=0)
        return found

    @cached_property
    def flops(self) -> Amounts:
        """Per row, the operations of the busiest device."""
        parts = self._parts(self.table.shards(self.table.rows))
        total = np.zeros(len(parts))
        for labels, operations in self.stages:
            columns = [number for number, label in enumerate(self.table.labels) if label in labels]
            total += operations * parts[:, columns].prod(axis=1, dtype=np.float64)
        return total

    def seconds(self, network: Network, itemsize: int) -> tuple[Amounts, Amounts]:
        """Per term and row, seconds that its reshard takes at the least: those of the slowest group of devices.

        And numbers that are equal where reshards are alike: the seconds of all groups, added up.
        """
        bound = np.zeros((len(self._roles), len(self.table.rows)))
        total = np.zeros_like(bound)
        for group in groups_of(network, self.problem.mesh):
            cut = self._agreeing(group)
            if cut is None:
                continue
            is_every = all(cut.inside)
            received = self.received if is_every else np.where(self.is_even, self._received(cut), 0.0)
            bytes_in = received * itemsize / (self.problem.mesh.size // cut.devices)
            taken = bytes_in / group.bandwidth
            taken = taken + group.latency_s if group.is_switched else np.maximum(taken, group.latency_s)
            taken = np.where(received > 0, taken + network.launch_s, 0.0)
            bound, total = np.maximum(bound, taken), total + taken
        return bound, total + self.moved

    def _agreeing(self, group: Group) -> _Cut | None:
        """The pieces that tell groups of a kind apart; None where one lies on both sides."""
        inside = []
        for piece in self.table.pieces:
            own = Digit(*self.problem.mesh.stride_of(piece))
            inside.append(any(within((own,), digit) == [own] for digit in group.digits))
            if not inside[-1] and any(_overlap(own, digit) for digit in group.digits):
                return None
        devices = prod(size for size, counts in zip(self.table.sizes, inside, strict=True) if counts)
        return _Cut(devices, tuple(inside))

    def _parts(self, shards: Numbers) -> Numbers:
        sizes = np.array([self.problem.sizes[label] for label in self.table.labels], dtype=np.int64)
        parts: Numbers = -(-sizes // shards)
        return parts

    def _received(self, cut: _Cut) -> Amounts:
        shards = self.table.shards(self.table.rows, cut.inside)
        parts = self._parts(shards)
        sources = [self._of_operand(term, cut, parts) for term in range(len(self.problem.sources))]
        return np.stack([*sources, self._of_result(cut, parts, shards)])

    def _sides(self, term: int, parts: Numbers) -> Amounts:
        """Per row and dim, the side of a tile in the layout of the row."""
        columns = [[self.table.labels.index(label) for label in group] for group in self.problem.pattern.terms[term]]
        sides = [parts[:, group].prod(axis=1, dtype=np.float64) for group in columns]
        return np.stack(sides, axis=1) if sides else np.ones((len(parts), 0))

    def _end_sides(self, term: int, end: Sharding, cut: _Cut) -> Amounts | None:
        """Per dim, the side of a tile where a term is now or wanted."""
        shape, roles = self.problem.shapes[term], self._roles[term]
        if all(cut.inside):
            return np.array(end.local_shape(shape), dtype=np.float64)
        if roles is None or not _divides(end, shape):
            return None
        parts = [
            prod(
                size
                for size, role, counts in zip(self.table.sizes, roles, cut.inside, strict=True)
                if counts and role == dim
            )
            for dim in range(len(shape))
        ]
        return np.array([-(-size // part) for size, part in zip(shape, parts, strict=True)], dtype=np.float64)

    def _classes(self, cut: _Cut, choices: set[int]) -> Amounts:
        """Per row, the product of the pieces that count and do one of these."""
        found = np.ones(len(self.table.rows))
        for number, size in enumerate(self.table.sizes):
            if cut.inside[number]:
                found[np.isin(self.table.rows[:, number], list(choices))] *= size
        return found

    def _of_operand(self, term: int, cut: _Cut, parts: Numbers) -> Amounts:
        source = self.problem.sources[term]
        tiles = self._sides(term, parts)
        tile = tiles.prod(axis=1)
        here = self._end_sides(term, source, cut)
        if here is None:
            return np.zeros(len(tile))
        moved: Amounts = tile - np.minimum(tiles, here).prod(axis=1)
        if not source.unreduced:
            return moved
        roles = self._roles[term]
        if roles is None:
            return np.zeros(len(tile))
        before = prod(
            s for s, role, counts in zip(self.table.sizes, roles, cut.inside, strict=True) if counts and role == -2
        )
        kept = self._classes(cut, {1 + len(self.table.labels) + term})
        return np.where(before > kept, self._combined(term, cut, before / kept, tile, kept), moved)

    def _combined(self, term: int, cut: _Cut, classes: Amounts, tile: Amounts, kept: Amounts | float) -> Amounts:
        """What a device receives where values of so many classes are combined: at least its tile, and its share."""
        numel = float(prod(self.problem.shapes[term]))
        copies = np.maximum(tile * cut.devices / max(numel, 1.0) / kept, 1.0)
        share = (copies + classes - 2) * numel * kept / cut.devices
        return np.where(self.is_even, np.maximum(tile, share), tile)

    def _of_result(self, cut: _Cut, parts: Numbers, shards: Numbers) -> Amounts:
        problem, labels = self.problem, self.table.labels
        term = len(problem.sources)
        output = {label for group in problem.pattern.output for label in group}
        partial = {1 + number for number, label in enumerate(labels) if label not in output}
        partial |= {1 + len(labels) + operand for operand in range(term)}
        classes = self._classes(cut, partial)
        tiles = self._sides(term, parts)
        nothing = np.zeros(len(tiles))
        if problem.target is None:
            if problem.may_stay_partial:
                return nothing
            tile = tiles.prod(axis=1) / classes
            return np.where((classes > 1) & self.is_even, self._combined(term, cut, classes, tile, 1.0), nothing)
        target, roles = problem.target, self._roles[term]
        there = self._end_sides(term, target, cut)
        if there is None or roles is None:
            return nothing
        kept = np.ones(len(tiles))
        made = np.zeros(len(tiles), dtype=np.bool_)
        for number, (size, role) in enumerate(zip(self.table.sizes, roles, strict=True)):
            if role == -2:
                stays = np.isin(self.table.rows[:, number], list(partial))
                made |= ~stays
                if cut.inside[number]:
                    kept[stays] *= size
        tile = np.full(len(tiles), there.prod())
        moved = tile - np.minimum(tiles, there).prod(axis=1)
        combined = self._combined(term, cut, classes / kept, tile, kept)
        return np.where(made, nothing, np.where(classes > kept, combined, moved))
