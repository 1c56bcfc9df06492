"""All ways to give the axes of a mesh to the labels of a calculation, as rows of a table of numbers.

The axes are cut into pieces: wherever an operand, the target, a label or a level of the network has a cut, and
further into prime sizes as long as the table stays short.
A row says of every piece what it does:

    0                 nothing: all compute the same along it
    1 + number        it cuts the label of that number
    1 + labels + w    the operands that wait together by the number w stay unreduced along it

In which order several pieces cut one label is left open.

A table of what the tensors have is shorter: no cut but theirs, a label is cut as in some tensor or as that begins,
and what is unreduced may stay so.
Where even that is long, there is a row per tensor: with what it does, and what the others do with the pieces that it
leaves free.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from reshard.axis import Axis, pieces
from reshard.contraction.compute_layout import ComputeLayout
from reshard.contraction.tasks import Task
from reshard.digits import Digit, Digits
from reshard.operations.pattern import Group

Rows = NDArray[np.int64]
MOST_ROWS = 2**14
"""How many rows a table may have; pieces are joined until it has no more."""
MOST_LED = 256
"""Up to how many rows a table of what the tensors have combines all that they do."""
MOST_ORDERS = 16
"""Up to how many combinations of the orders of all labels are tried."""
ALL_ORDERS = 3
"""Up to how many pieces of one label are tried in all orders; more only in those that a term has."""
NO_DIM, UNREDUCED = -1, -2
"""What a piece does in a term where it cuts no dim."""


class Table:
    """The pieces of the axes, and every row that makes a compute layout.

    Args:
        task: what is to be computed.
        boundaries: strides of positions at which a network has levels.
        is_led: whether pieces do only what they do in some tensor.
    """

    def __init__(self, task: Task, boundaries: Iterable[int] = (), *, is_led: bool = False) -> None:
        self.task = task
        self.labels = task.pattern.labels
        self.cuts = _cuts(task, boundaries, is_fine=not is_led)
        self.pieces = self._pieces()
        self.choices = [self._choices(piece) for piece in self.pieces]
        self.is_led = is_led
        if is_led:
            self.ends = self._ends()
            self.choices = [self._led_choices(*pair) for pair in zip(self.pieces, self.choices, strict=True)]
        else:
            self.ends = self._shortened()
        self.sizes = tuple(piece.size_in(task.mesh.sizes[piece.name]) for piece in self.pieces)
        is_long = is_led and prod(map(len, self.choices)) > MOST_LED
        rows = self._led() if is_long else _product(self.choices)
        self.rows = self._valid(self._begun(rows) if is_led and not is_long else rows)
        if is_led and not len(self.rows):
            self.rows = np.zeros((1, len(self.pieces)), dtype=np.int64)

    def _pieces(self) -> tuple[Axis, ...]:
        sizes = self.task.mesh.sizes
        return tuple(
            piece
            for name, size in self.task.mesh.axes
            if size > 1
            for piece in pieces(Axis(name), self.cuts[name][0] | self.cuts[name][1], sizes)
        )

    def _shortened(self) -> tuple[list[list[Axis]] | None, ...]:
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
        """What a piece may do.

        A label of size 1 that is a dim by itself is cut where not all is even: one device has it, and may be the one
        that lacks least.
        """
        task, choices = self.task, [0]
        grouped = {label for term in task.pattern.terms for group in term if len(group) > 1 for label in group}
        for number, label in enumerate(self.labels):
            size = task.sizes[label]
            is_cuttable = size > 1 or (size == 1 and not task.is_even and label not in grouped)
            if is_cuttable and label not in task.calculation.whole:
                choices.append(1 + number)
        for number, wait in enumerate(task.waits):
            waiting = [task.ends[operand] for operand in wait.operands]
            if any(
                end is not None
                and end.reduction == wait.reduction
                and any(axis.contains(piece) for axis in end.unreduced)
                for end in waiting
            ):
                choices.append(1 + len(self.labels) + number)
        return choices

    def _used(self, piece: Axis, ends: tuple[list[list[Axis]] | None, ...]) -> set[int]:
        """What a piece does in some term."""
        used: set[int] = set()
        for term, dims in zip(self.task.pattern.terms, ends, strict=True):
            for group, cut_by in zip(term, dims or [], strict=False):
                if piece in cut_by:
                    used.update(1 + self.labels.index(label) for label in group)
        return used | {choice for choice in self._choices(piece) if choice > len(self.labels)}

    def _led_choices(self, piece: Axis, choices: list[int]) -> list[int]:
        """What a piece does in some tensor, or nothing; that is left out where all agree on a label of the result."""
        used = self._used(piece, self.ends)
        if len(used) == 1:
            number = min(used) - 1
            label = self.labels[number] if number < len(self.labels) else ""
            agree = all(
                dims is None
                or any(piece in cut_by for group, cut_by in zip(term, dims, strict=False) if label in group)
                for term, dims in zip(self.task.pattern.terms, self.ends, strict=True)
                if any(label in group for group in term)
            )
            if agree and 1 + number in choices and any(label in group for group in self.task.pattern.output):
                return [1 + number]
        return [choice for choice in choices if choice == 0 or choice in used]

    def _begun(self, rows: Rows) -> Rows:
        """The rows in which every label that is a dim by itself is cut as some tensor has it, or begins to."""
        places = {piece: number for number, piece in enumerate(self.pieces)}
        keep = np.ones(len(rows), dtype=np.bool_)
        for number, label in enumerate(self.labels):
            lines = self._lines(label)
            if any(len(group) > 1 for term in self.task.pattern.terms for group in term if label in group):
                continue
            numbered = [[1 << places[piece] for piece in line if piece in places] for line in lines]
            begun = {sum(bits[:stop]) for bits in [[], *numbered] for stop in range(len(bits) + 1)}
            cut_by = ((rows == 1 + number) * (1 << np.arange(len(self.pieces)))).sum(axis=1)
            keep &= np.isin(cut_by, list(begun))
        return rows[keep]

    def _lines(self, label: str) -> list[list[Axis]]:
        """The pieces that cut the dims of a label, major to minor, in an order that no term decides."""
        lines = [
            cut_by
            for term, dims in zip(self.task.pattern.terms, self.ends, strict=True)
            for group, cut_by in zip(term, dims or [], strict=False)
            if label in group
        ]
        return sorted(lines, key=lambda line: list(map(str, line)))

    def _led(self) -> Rows:
        """Per term a row in which pieces do what they do there, else what they do in the first other term that says."""
        by_term = [
            {
                piece: next(choice for choice in self.choices[self.pieces.index(piece)] if choice in own)
                for group, cut_by in zip(term, dims or [], strict=False)
                for piece in cut_by
                if (
                    own := {1 + self.labels.index(label) for label in group} & {*self.choices[self.pieces.index(piece)]}
                )
            }
            for term, dims in zip(self.task.pattern.terms, self.ends, strict=True)
        ]
        rows = [[0] * len(self.pieces)]
        for leader in by_term:
            said = {piece: choice for other in reversed((leader, *by_term)) for piece, choice in other.items()}
            rows.append([said.get(piece, 0) for piece in self.pieces])
            waiting = [max(choices) if max(choices) > len(self.labels) else 0 for choices in self.choices]
            rows.append([wait or choice for wait, choice in zip(waiting, rows[-1], strict=True)])
        return np.unique(np.array(rows, dtype=np.int64), axis=0)

    def _ends(self) -> tuple[list[list[Axis]] | None, ...]:
        sizes = self.task.mesh.sizes
        cuts = {name: required | fine for name, (required, fine) in self.cuts.items()}
        return tuple(
            None
            if end is None
            else [[piece for axis in dim.axes for piece in pieces(axis, cuts[axis.name], sizes)] for dim in end.dims]
            for end in self.task.ends
        )

    def roles(self, term: int) -> list[int] | None:
        """Per piece, which dim of a term it cuts where the term is now or wanted, `NO_DIM`, or `UNREDUCED` along it.

        None where the term is not known, or is cut where no piece ends.
        """
        end, dims = self.task.ends[term], self.ends[term]
        if end is None or dims is None:
            return None
        roles = [NO_DIM] * len(self.pieces)
        for dim, cut_by in enumerate(dims):
            for piece in cut_by:
                if piece not in self.pieces:
                    return None
                roles[self.pieces.index(piece)] = dim
        for number, piece in enumerate(self.pieces):
            if any(axis.contains(piece) for axis in end.unreduced):
                roles[number] = UNREDUCED
            elif any(axis.overlaps(piece) for axis in end.unreduced):
                return None
        return roles

    def _valid(self, rows: Rows) -> Rows:
        """The rows that are compute layouts: labels of a group are cut from the major end, evenly; one reduction."""
        shards = self.shards(rows)
        keep = np.ones(len(rows), dtype=np.bool_)
        for group in {group for term in self.task.pattern.terms for group in term if len(group) > 1}:
            labels = [label for label in group if self.task.sizes[label] != 1]
            full = np.ones(len(rows), dtype=np.bool_)
            for label in labels if len(labels) > 1 else ():
                parts, size = shards[:, self.labels.index(label)], self.task.sizes[label]
                keep &= (parts == 1) | (full & (size % parts == 0))
                full &= parts == size
        waits = self.task.waits
        for first, second in itertools.combinations(range(len(waits)), 2):
            if waits[first].reduction != waits[second].reduction:
                asked = [(rows == 1 + len(self.labels) + number).any(axis=1) for number in (first, second)]
                keep &= ~(asked[0] & asked[1])
        return rows[keep]

    def shards(self, rows: Rows, inside: Sequence[bool] | None = None) -> Rows:
        """Per row and label, the number of parts that it is cut into, by all pieces or by those that count."""
        shards = np.ones((len(rows), len(self.labels)), dtype=np.int64)
        for number, size in enumerate(self.sizes):
            if inside is None or inside[number]:
                for label in range(len(self.labels)):
                    shards[rows[:, number] == 1 + label, label] *= size
        return shards

    def row_of(self, layout: ComputeLayout) -> int:
        """The row of a layout, or -1 where pieces are too large for it."""
        doing = [
            *((1 + number, axes) for number, axes in enumerate(layout.axes)),
            *(
                (1 + len(self.labels) + number, layout.unreduced[wait.operands[0]])
                for number, wait in enumerate(self.task.waits)
            ),
        ]
        row = [
            next((choice for choice, axes in doing if any(axis.contains(piece) for axis in axes)), 0)
            for piece in self.pieces
        ]
        places = np.flatnonzero((self.rows == np.array(row, dtype=np.int64)).all(axis=1))
        return int(places[0]) if len(places) else -1

    def layouts(self, row: Sequence[int]) -> Iterator[ComputeLayout]:
        """The compute layouts of a row: its pieces in every order that is worth trying."""
        task = self.task
        by_label: list[list[Axis]] = [[] for _ in self.labels]
        unreduced: list[list[Axis]] = [[] for _ in task.sources]
        reduction = task.calculation.reduction
        for piece, choice in zip(self.pieces, row, strict=True):
            if choice > len(self.labels):
                wait = task.waits[choice - len(self.labels) - 1]
                reduction = wait.reduction
                for operand in wait.operands:
                    unreduced[operand].append(piece)
            elif choice:
                by_label[choice - 1].append(piece)
        orders = [self._orders(label, its_pieces) for label, its_pieces in zip(self.labels, by_label, strict=True)]
        for axes in _together(orders):
            yield ComputeLayout(task.mesh, task.pattern, axes, tuple(map(tuple, unreduced)), reduction, task.uneven)

    def _orders(self, label: str, its_pieces: list[Axis]) -> list[tuple[Axis, ...]]:
        """The orders in which pieces may cut a label, that of the mesh first."""
        if len(its_pieces) < 2:
            return [tuple(its_pieces)]
        lines = self._lines(label)
        if self.is_led:
            held = [tuple(piece for piece in line if piece in its_pieces) for line in lines]
            return list(dict.fromkeys(line for line in held if len(line) == len(its_pieces))) or [tuple(its_pieces)]
        if len(its_pieces) <= ALL_ORDERS:
            return [order for order in itertools.permutations(its_pieces) if _is_natural(order, lines)]
        orders = [tuple(its_pieces)]
        for line in lines:
            first = [piece for piece in line if piece in its_pieces]
            rest = [piece for piece in its_pieces if piece not in first]
            orders += [(*first, *rest), (*rest, *first)]
        return list(dict.fromkeys(orders))


def _together(orders: list[list[tuple[Axis, ...]]]) -> Iterable[tuple[tuple[Axis, ...], ...]]:
    """An order for every label: all combinations, or, where these are many, the first of each, then the second."""
    if prod(map(len, orders)) <= MOST_ORDERS:
        return itertools.product(*orders)
    longest = max(map(len, orders))
    return [tuple(of_label[number % len(of_label)] for of_label in orders) for number in range(longest)]


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


def _product(choices: list[list[int]]) -> Rows:
    grids = np.meshgrid(*[np.array(of_piece, dtype=np.int64) for of_piece in choices], indexing="ij")
    return np.stack([grid.ravel() for grid in grids], axis=1) if grids else np.zeros((1, 0), dtype=np.int64)


def _cuts(task: Task, boundaries: Iterable[int], *, is_fine: bool) -> dict[str, tuple[set[int], set[int]]]:
    """Per axis, the cuts that something asks for, and those that make the pieces prime; all divide one another."""
    sizes = task.mesh.sizes
    cuts: dict[str, tuple[set[int], set[int]]] = {name: (set(), set()) for name in sizes}

    def add(name: str, cut: int) -> None:
        ends = cuts[name][0] | {1, sizes[name]}
        if all(cut % end == 0 or end % cut == 0 for end in ends) and 1 < cut < sizes[name]:
            cuts[name][0].add(cut)

    for end in task.ends:
        for axis in end.axes() if end else ():
            add(axis.name, axis.start)
            add(axis.name, axis.stop_in(sizes[axis.name]))
    for term, end in zip(task.pattern.terms, task.ends, strict=True):
        for group, dim in zip(term, end.dims if end else (), strict=False):
            for name, cut in _label_cuts(group, dim.axes, task):
                add(name, cut)
    for name, size in task.mesh.axes if is_fine else ():
        inner = task.mesh.digit_of(Axis(name)).stride
        for boundary in boundaries:
            if boundary % inner == 0 and size % (boundary // inner) == 0:
                add(name, size // (boundary // inner))
        for low, high in itertools.pairwise(sorted({1, size, *cuts[name][0]})):
            for digit in Digits([Digit(1, high // low)]).primes():
                if 1 < high // digit.stride < high and digit.stride > 1:
                    cuts[name][1].add(high // digit.stride)
    return cuts


def _label_cuts(group: Group, axes: Iterable[Axis], task: Task) -> Iterator[tuple[str, int]]:
    """Where the axes of a dim are cut by the ends of its labels."""
    sizes = task.mesh.sizes
    lengths = [task.sizes[label] for label in group if task.sizes[label] > 1]
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
