"""All ways to give the axes of a mesh to the labels of a pattern, as rows of a table of numbers.

The axes are cut into pieces: wherever an operand, the target, a label or a level of the network has a cut, and
further into prime sizes as long as the table stays short.
A choice says of one piece what it does:

    0                 nothing: all compute the same along it
    1 + number        it cuts the label of that number
    1 + labels + i    operand i stays unreduced along it

A row has one choice per piece; in which order several pieces cut one label is left open.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from reshard.axis import Axis, pieces
from reshard.contraction.layouts import ComputeLayout
from reshard.digits import Digit, primes
from reshard.mesh import Mesh
from reshard.operations.pattern import Group, Pattern
from reshard.sharding import Sharding

Numbers = NDArray[np.int64]
Ends = tuple[list[list[Axis]] | None, ...]
MOST_ROWS = 2**14
"""How many rows a table may have; pieces are joined until it has no more."""
MOST_ORDERS = 16
"""Up to how many combinations of the orders of all labels are tried."""
ALL_ORDERS = 3
"""Up to how many pieces of one label are tried in all orders; more only in those that a term has."""


@dataclass(frozen=True)
class Problem:
    """What is to be computed, from where to where."""

    pattern: Pattern
    mesh: Mesh
    """On which it is computed."""
    sources: tuple[Sharding, ...]
    """Where the operands are."""
    target: Sharding | None
    """Where the result is wanted; None where that is open."""
    sizes: Mapping[str, int]
    """Of the labels."""
    may_stay_partial: bool = False
    """Whether, where no target is given, sums over cut labels may be left to the next operation."""

    @cached_property
    def ends(self) -> tuple[Sharding | None, ...]:
        """Per term its sharding, where it has one on the mesh of the computation."""
        return tuple(end if end is not None and end.mesh == self.mesh else None for end in (*self.sources, self.target))

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the operands, and last of the result."""
        return tuple(self.pattern.shape_of(term, self.sizes) for term in self.pattern.terms)

    @property
    def uneven(self) -> str:
        """The rule by which labels are cut: that of the operands, where they have one."""
        rules = {source.uneven for source in self.sources}
        return rules.pop() if len(rules) == 1 else "ceil"

    def keeps_partial(self, operand: int) -> bool:
        """Whether an operand may stay unreduced: sums may, others where elements only change places."""
        source = self.sources[operand]
        return bool(source.unreduced) and (source.reduction == "sum" or self.pattern.is_rearrangement)


class Table:
    """The pieces of the axes, and every row of choices that makes a compute layout."""

    def __init__(self, problem: Problem, boundaries: Iterable[int] = ()) -> None:
        self.problem = problem
        self.labels = problem.pattern.labels
        self.cuts = _cuts(problem, boundaries)
        self.pieces = self._pieces()
        self.choices = [self._choices(piece) for piece in self.pieces]
        self.ends = self._shortened()
        sizes = problem.mesh.sizes
        self.sizes = tuple(piece.size_in(sizes[piece.name]) for piece in self.pieces)
        self.rows = self._valid(_product(self.choices))

    def _pieces(self) -> tuple[Axis, ...]:
        sizes = self.problem.mesh.sizes
        return tuple(
            piece
            for name, size in self.problem.mesh.axes
            if size > 1
            for piece in pieces(Axis(name), self.cuts[name][0] | self.cuts[name][1], sizes)
        )

    def _shortened(self) -> Ends:
        """Join pieces that nothing asks for, then leave out what no term does, until the rows are few."""
        while prod(map(len, self.choices)) > MOST_ROWS:
            name = max(self.cuts, key=lambda name: len(self.cuts[name][1]))
            if not self.cuts[name][1]:
                break
            self.cuts[name][1].remove(max(self.cuts[name][1]))
            self.pieces = self._pieces()
            self.choices = [self._choices(piece) for piece in self.pieces]
        ends = self._ends()
        while prod(map(len, self.choices)) > MOST_ROWS:
            number = max(range(len(self.choices)), key=lambda number: len(self.choices[number]))
            used = self._used(self.pieces[number], ends)
            fewer = [choice for choice in self.choices[number] if choice == 0 or choice in used]
            self.choices[number] = fewer if len(fewer) < len(self.choices[number]) else self.choices[number][:-1]
        return ends

    def _choices(self, piece: Axis) -> list[int]:
        """What a piece may do."""
        problem, found = self.problem, [0]
        for number, label in enumerate(self.labels):
            if problem.sizes[label] > 1 and label not in problem.pattern.repeated:
                found.append(1 + number)
        for operand, source in enumerate(problem.sources):
            is_partial = source.mesh == problem.mesh and any(axis.contains(piece) for axis in source.unreduced)
            if is_partial and problem.keeps_partial(operand):
                found.append(1 + len(self.labels) + operand)
        return found

    def _used(self, piece: Axis, ends: Ends) -> set[int]:
        """What a piece does in some term."""
        found: set[int] = set()
        for term, dims in zip(self.problem.pattern.terms, ends, strict=True):
            for group, parts in zip(term, dims or [], strict=False):
                if piece in parts:
                    found.update(1 + self.labels.index(label) for label in group)
        return found | {choice for choice in self._choices(piece) if choice > len(self.labels)}

    def _ends(self) -> Ends:
        """Per term, per dim, the pieces that cut it where it is now, or where it is wanted; None where not known."""
        sizes = self.problem.mesh.sizes
        cuts = {name: required | fine for name, (required, fine) in self.cuts.items()}
        return tuple(
            None
            if end is None
            else [[piece for axis in dim.axes for piece in pieces(axis, cuts[axis.name], sizes)] for dim in end.dims]
            for end in self.problem.ends
        )

    def roles(self, term: int) -> list[int] | None:
        """Per piece, which dim of a term it cuts where the term is now or wanted; -1 none, -2 unreduced along it.

        None where the term is not known, or is cut where no piece ends.
        """
        end, dims = self.problem.ends[term], self.ends[term]
        if end is None or dims is None:
            return None
        found = [-1] * len(self.pieces)
        for dim, parts in enumerate(dims):
            for part in parts:
                if part not in self.pieces:
                    return None
                found[self.pieces.index(part)] = dim
        for number, piece in enumerate(self.pieces):
            if any(axis.contains(piece) for axis in end.unreduced):
                found[number] = -2
            elif any(axis.overlaps(piece) for axis in end.unreduced):
                return None
        return found

    def _valid(self, rows: Numbers) -> Numbers:
        """The rows that are compute layouts: the labels of every group are cut from the major end, evenly."""
        shards = self.shards(rows)
        keep = np.ones(len(rows), dtype=np.bool_)
        for group in {group for term in self.problem.pattern.terms for group in term if len(group) > 1}:
            labels = [label for label in group if self.problem.sizes[label] != 1]
            full = np.ones(len(rows), dtype=np.bool_)
            for label in labels if len(labels) > 1 else ():
                parts, size = shards[:, self.labels.index(label)], self.problem.sizes[label]
                keep &= (parts == 1) | (full & (size % parts == 0))
                full &= parts == size
        return rows[keep]

    def shards(self, rows: Numbers, inside: Sequence[bool] | None = None) -> Numbers:
        """Per row and label, the number of parts that it is cut into, by all pieces or by those that count."""
        found = np.ones((len(rows), len(self.labels)), dtype=np.int64)
        for number, size in enumerate(self.sizes):
            if inside is None or inside[number]:
                for label in range(len(self.labels)):
                    found[rows[:, number] == 1 + label, label] *= size
        return found

    def layouts(self, row: Sequence[int]) -> Iterator[ComputeLayout]:
        """The compute layouts of a row: its pieces in every order that is worth trying."""
        given: list[list[Axis]] = [[] for _ in self.labels]
        partial: list[list[Axis]] = [[] for _ in self.problem.sources]
        for piece, choice in zip(self.pieces, row, strict=True):
            if choice > len(self.labels):
                partial[choice - len(self.labels) - 1].append(piece)
            elif choice:
                given[choice - 1].append(piece)
        orders = [self._orders(label, parts) for label, parts in zip(self.labels, given, strict=True)]
        kept = tuple(map(tuple, partial))
        reductions = [self.problem.sources[number].reduction for number, axes in enumerate(kept) if axes]
        for axes in _together(orders):
            yield ComputeLayout(
                self.problem.mesh,
                self.problem.pattern,
                axes,
                kept,
                reductions[0] if reductions else "sum",
                self.problem.uneven,
            )

    def _orders(self, label: str, parts: list[Axis]) -> list[tuple[Axis, ...]]:
        """The orders in which pieces may cut a label, that of the mesh first."""
        if len(parts) < 2:
            return [tuple(parts)]
        lines = [
            dim_pieces
            for term, dims in zip(self.problem.pattern.terms, self.ends, strict=True)
            for group, dim_pieces in zip(term, dims or [], strict=False)
            if label in group
        ]
        if len(parts) <= ALL_ORDERS:
            return [order for order in itertools.permutations(parts) if _is_natural(order, lines)]
        found = [tuple(parts)]
        for line in lines:
            first = [piece for piece in line if piece in parts]
            rest = [piece for piece in parts if piece not in first]
            found += [(*first, *rest), (*rest, *first)]
        return list(dict.fromkeys(found))


def _together(orders: list[list[tuple[Axis, ...]]]) -> Iterable[tuple[tuple[Axis, ...], ...]]:
    """An order for every label: all combinations, or, where these are many, the first of each, then the second."""
    if prod(map(len, orders)) <= MOST_ORDERS:
        return itertools.product(*orders)
    most = max(map(len, orders))
    return [tuple(one[number % len(one)] for one in orders) for number in range(most)]


def _is_natural(order: Sequence[Axis], lines: list[list[Axis]]) -> bool:
    """Whether pieces of one axis stand as they do in it, but where a term has them otherwise, or only one of them."""
    for major, minor in itertools.combinations(order, 2):
        if major.name == minor.name and major.start > minor.start:
            held = [line for line in lines if major in line or minor in line]
            if all(minor in line[: line.index(major)] for line in held if major in line) and all(
                major in line for line in held
            ):
                return False
    return True


def _product(choices: list[list[int]]) -> Numbers:
    grids = np.meshgrid(*[np.array(one, dtype=np.int64) for one in choices], indexing="ij")
    return np.stack([grid.ravel() for grid in grids], axis=1) if grids else np.zeros((1, 0), dtype=np.int64)


def _cuts(problem: Problem, boundaries: Iterable[int]) -> dict[str, tuple[set[int], set[int]]]:
    """Per axis, the cuts that something asks for, and those that make the pieces prime; all divide one another."""
    sizes = problem.mesh.sizes
    cuts: dict[str, tuple[set[int], set[int]]] = {name: (set(), set()) for name in sizes}

    def add(name: str, cut: int) -> None:
        ends = cuts[name][0] | {1, sizes[name]}
        if all(cut % end == 0 or end % cut == 0 for end in ends) and 1 < cut < sizes[name]:
            cuts[name][0].add(cut)

    for end in problem.ends:
        for axis in end.axes() if end else ():
            add(axis.name, axis.start)
            add(axis.name, axis.stop_in(sizes[axis.name]))
    for term, end in zip(problem.pattern.terms, problem.ends, strict=True):
        for group, dim in zip(term, end.dims if end else (), strict=False):
            for name, cut in _label_cuts(group, dim.axes, problem):
                add(name, cut)
    for name, size in problem.mesh.axes:
        inner = problem.mesh.stride_of(Axis(name))[0]
        for boundary in boundaries:
            if boundary % inner == 0 and size % (boundary // inner) == 0:
                add(name, size // (boundary // inner))
        for low, high in itertools.pairwise(sorted({1, size, *cuts[name][0]})):
            for digit in primes(Digit(1, high // low)):
                if 1 < high // digit.stride < high and digit.stride > 1:
                    cuts[name][1].add(high // digit.stride)
    return cuts


def _label_cuts(group: Group, axes: Iterable[Axis], problem: Problem) -> Iterator[tuple[str, int]]:
    """Where the axes of a dim are cut by the ends of its labels."""
    sizes = problem.mesh.sizes
    lengths = [problem.sizes[label] for label in group if problem.sizes[label] > 1]
    for axis in axes:
        place, size = axis.start, axis.size_in(sizes[axis.name])
        while lengths and size > 1:
            part = gcd(size, lengths[0])
            if part == 1:
                return
            place, size = place * part, size // part
            lengths[0] //= part
            if lengths[0] == 1:
                del lengths[0]
            if size > 1:
                yield axis.name, place
