"""How operations may be computed: layouts as arrays of the numbers of options.

A row says of every piece what it does: nothing, cut a label, or leave operands that wait unreduced along it.
In each order of the pieces a row is a layout where all its tensors have the option that follows.

By hand, `ij,jk->ik` on x = 2 with all dims of 2, nothing unreduced: x cuts i, or k, or nothing.

>>> from reshard.contraction.tasks import dtype_named
>>> from reshard.mesh import Mesh
>>> from reshard.operations.pattern import Pattern
>>> pieces = Pieces(Mesh.of(x=2), [])
>>> product = Calculation.of_einsum(Pattern.of("ij,jk->ik"), {"i": 2, "j": 2, "k": 2}, dtype_named("float32"))
>>> options = Options(pieces, (2, 2))
>>> layouts = layouts_of(product, pieces, [options] * 3, [Along(frozenset(), "sum")] * 3)
>>> layouts.rows[:, 0].tolist(), layouts.flops.tolist()
([0, 1, 3], [16.0, 8.0, 8.0])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.axis import Axis
from reshard.contraction.compute_layout import ComputeLayout
from reshard.contraction.tasks import Calculation, Wait
from reshard.propagation.space import Costs, Numbers, Options, Pieces, rows_of

MOST_LAYOUTS = 4096
"""How many layouts of an operation are looked at; beyond, the smallest pieces go with the one before."""

MOST_ROWS = 64
"""Of how many kinds of operations the rows are kept."""

MOST_PARTS = 1024
"""Of how many parts of the layouts of an operation what they want is kept."""


class Picks:
    """The options that the layouts of an operation want of a tensor."""

    def __init__(self, picks: Numbers) -> None:
        self.numbers = picks
        """Per layout, the number of the option."""
        self.listed: list[int] = picks.tolist()
        """The same, as Python's numbers."""
        self.are_several = len({*self.listed}) > 1
        """Whether layouts want different options."""
        self._parts: dict[tuple[int, ...], Picks] = {}

    @cached_property
    def _counts(self) -> Numbers:
        return np.bincount(self.numbers)

    @cached_property
    def options(self) -> Numbers:
        """Each option once."""
        return self._counts.nonzero()[0]

    @cached_property
    def places(self) -> Numbers:
        """Which of them each layout wants."""
        return self.options.searchsorted(self.numbers)

    def of(self, layouts: tuple[int, ...]) -> Picks:
        """The options that some of the layouts want."""
        part = self._parts.get(layouts)
        if part is None:
            if len(self._parts) >= MOST_PARTS:
                self._parts.clear()
            part = self._parts[layouts] = Picks(self.numbers[list(layouts)])
        return part

    def forget(self) -> None:
        """Let go of these."""
        self._parts.clear()

    @cached_property
    def order(self) -> Numbers:
        """The layouts in the order of their options."""
        return self.numbers.argsort(kind="stable")

    @cached_property
    def starts(self) -> Numbers:
        """Per option where its layouts begin there."""
        counts = self._counts[self.options]
        return np.asarray(counts.cumsum() - counts)

    def least(self, costs: Costs) -> Costs:
        """Per option the least of what layouts cost that want it."""
        return np.asarray(np.minimum.reduceat(costs[self.order], self.starts))


@dataclass(frozen=True)
class Layouts:
    """How an operation may be computed."""

    used: tuple[Numbers, ...]
    """Per operand, the number of the option in which each layout wants it."""
    made: Numbers
    """The number of the option in which the result comes out."""
    flops: Costs
    """Operations of a device on one trip."""
    rows: Numbers
    """Per layout and piece what it does: 0 nothing, 1 + label, 1 + labels + wait."""
    orders: Numbers
    """Per layout the number of the order in which pieces stand."""
    received: Costs | None = None
    """Bytes that the busiest device receives within the operation on one trip, beside its operands; none where None."""

    def __len__(self) -> int:
        return len(self.made)

    @cached_property
    def picks(self) -> tuple[Picks, ...]:
        """Per operand, and last of the result, the options that layouts want; of those that are one array, one."""
        tensors = (*self.used, self.made)
        of_array = {id(numbers): Picks(numbers) for numbers in tensors}
        return tuple([of_array[id(numbers)] for numbers in tensors])

    def parts(self, pieces: Pieces, labels: int) -> Numbers:
        """Per layout and label the number of parts that it is cut into."""
        return _shards(self.rows, pieces, labels)

    def those(self, keep: NDArray[np.bool_]) -> Layouts:
        """Some of them."""
        received = None if self.received is None else self.received[keep]
        used = tuple(each[keep] for each in self.used)
        return Layouts(used, self.made[keep], self.flops[keep], self.rows[keep], self.orders[keep], received)


class Along(NamedTuple):
    """Along what a value may be unreduced."""

    pieces: frozenset[int]
    reduction: str


def _waits(calculation: Calculation, waiting: Sequence[Along]) -> list[Wait]:
    """The operands that may wait together, those of the reduction of the result."""
    reduction = waiting[-1][1]
    return [
        wait
        for wait in calculation.waits
        if wait.reduction == reduction and any(waiting[n][1] == reduction and waiting[n][0] for n in wait.operands)
    ]


def layouts_of(
    calculation: Calculation, pieces: Pieces, tensors: Sequence[Options], waiting: Sequence[Along]
) -> Layouts:
    """The layouts of a calculation.

    Args:
        calculation: what is computed.
        pieces: of the axes.
        tensors: the options of the operands, and last of the result.
        waiting: of the same.
    """
    pattern, labels, sizes = calculation.pattern, calculation.pattern.labels, calculation.sizes
    waits = _waits(calculation, waiting)
    groups = [
        tuple(number for number in map(labels.index, group) if sizes[number] > 1)
        for group in {group for term in pattern.terms for group in term if len(group) > 1}
    ]
    meanings = _meanings(calculation, tensors, waits)
    firsts: dict[tuple[int, bytes], int] = {}
    alike = zip(map(id, tensors), (meaning.tobytes() for meaning in meanings), strict=True)
    first_of = [firsts.setdefault(key, number) for number, key in enumerate(alike)]
    """Per tensor the number of the first one that each row leaves in the same option."""
    options_of: dict[int, list[Numbers]] = {first: [] for first in firsts.values()}
    used_rows, used_shards, used_orders = [], [], []
    choices = tuple(map(tuple, _choices(calculation, pieces, waits, waiting)))
    for order, rows, shards in _rows_by_order(pieces, choices, len(labels), tuple(groups), sizes if groups else ()):
        numbers = {first: tensors[first].find(meanings[first][rows], order) for first in options_of}
        is_known = np.minimum.reduce(list(numbers.values())) >= 0
        for first, each in numbers.items():
            options_of[first].append(each[is_known])
        used_rows.append(rows[is_known])
        used_shards.append(shards[is_known])
        used_orders.append(np.full(len(used_rows[-1]), order, dtype=np.int64))
    flops = _flops(calculation, -(-np.array(sizes, dtype=np.int64) // np.concatenate(used_shards)))
    columns = {first: np.concatenate(each) for first, each in options_of.items()}
    *used, made = (columns[first] for first in first_of)
    return Layouts(tuple(used), made, flops, np.concatenate(used_rows), np.concatenate(used_orders))


@lru_cache(MOST_ROWS)
def _rows_by_order(
    pieces: Pieces,
    choices: tuple[tuple[int, ...], ...],
    labels: int,
    groups: tuple[tuple[int, ...], ...],
    sizes: tuple[int, ...],
) -> list[tuple[int, Numbers, Numbers]]:
    """By the number of an order of the pieces the rows that are others in it, and per row and label its parts.

    Args:
        pieces: of the axes.
        choices: per piece what it may do.
        labels: how many there are.
        groups: the labels of each dim that has several.
        sizes: of all labels, if any dim has several.
    """
    rows = rows_of(choices)
    shards = _shards(rows, pieces, labels)
    is_even = _is_even(rows, shards, sizes, groups)
    rows, shards = rows[is_even], shards[is_even]
    ordered = []
    for order, line in enumerate(pieces.orders):
        which = _differ(rows, line, groups) if order else np.ones(len(rows), dtype=np.bool_)
        for grouped in groups:
            which &= _follow(rows[:, list(line)], grouped)
        if not order or which.any():
            ordered.append((order, rows[which], shards[which]))
    return ordered


def _choices(
    calculation: Calculation, pieces: Pieces, waits: Sequence[Wait], waiting: Sequence[Along]
) -> list[list[int]]:
    """Per piece what it may do: nothing, cut a label, those first that it cuts evenly, or have operands wait."""
    pattern, labels, along = calculation.pattern, calculation.pattern.labels, waiting[-1].pieces
    sizes = calculation.sizes
    cuttable = [1 + n for n, label in enumerate(labels) if sizes[n] > 1 and label not in calculation.whole]
    kept = [n for n in cuttable if labels[n - 1] not in pattern.reduced]
    choices = []
    for piece, size in enumerate(pieces.sizes.tolist()):
        own = cuttable if piece in along else kept
        cutting = [n for n in own if sizes[n - 1] % size == 0] + [n for n in own if sizes[n - 1] % size]
        held = [
            1 + len(labels) + number
            for number, wait in enumerate(waits)
            if piece in along and any(piece in waiting[n].pieces for n in wait.operands)
        ]
        choices.append([0, *cutting, *held])
    while prod(map(len, choices)) > MOST_LAYOUTS:
        longest = max(range(len(choices)), key=lambda n: len(choices[n]))
        choices[longest] = choices[longest][:-1]
    return choices


def _shards(rows: Numbers, pieces: Pieces, labels: int) -> Numbers:
    """Per row and label the number of parts that it is cut into."""
    cuts = rows[:, :, None] == np.arange(1, 1 + labels)
    return np.asarray(np.where(cuts, pieces.sizes[:, None], 1).prod(axis=1))


def _is_even(
    rows: Numbers, shards: Numbers, sizes: Sequence[int], groups: Sequence[Sequence[int]]
) -> NDArray[np.bool_]:
    """The rows in which the labels of a dim are cut evenly, those major to another to the end."""
    keep = np.ones(len(rows), dtype=np.bool_)
    for grouped in groups:
        full = np.ones(len(rows), dtype=np.bool_)
        for number in grouped:
            parts = shards[:, number]
            keep &= (parts == 1) | (full & (sizes[number] % parts == 0))
            full &= parts == sizes[number]
    return keep


def _meanings(calculation: Calculation, tensors: Sequence[Options], waits: Sequence[Wait]) -> list[Numbers]:
    """Per tensor, and choice of a piece, what the piece does there."""
    pattern, labels, last = calculation.pattern, calculation.pattern.labels, len(tensors) - 1
    meanings = []
    for number, (term, options) in enumerate(zip(pattern.terms, tensors, strict=True)):
        combined = options.roles - 1
        dims = {name: 1 + dim for dim in reversed(range(len(term))) for name in term[dim]}
        if number == last:
            dims |= dict.fromkeys(pattern.reduced, combined)
        holding = [combined if number == last or number in wait.operands else 0 for wait in waits]
        meanings.append(np.array([0, *(dims.get(name, 0) for name in labels), *holding], dtype=np.int64))
    return meanings


def _flops(calculation: Calculation, parts: Numbers) -> Costs:
    """Per row of how many indices a device has of each label, its operations."""
    flops = np.zeros(len(parts))
    for stage in calculation.stages:
        columns = [number for number, label in enumerate(calculation.pattern.labels) if label in stage.labels]
        flops += stage.operations * parts[:, columns].prod(axis=1, dtype=np.float64)
    return flops


def compute_layout(
    calculation: Calculation,
    pieces: Pieces,
    layouts: Layouts,
    number: int,
    waiting: Sequence[Along],
    uneven: str,
) -> ComputeLayout:
    """A layout by its number, as the chooser has it."""
    labels = calculation.pattern.labels
    row, order = layouts.rows[number].tolist(), pieces.orders[int(layouts.orders[number])]
    waits = _waits(calculation, waiting)
    axes = [tuple(pieces.all[piece] for piece in order if row[piece] == 1 + number) for number in range(len(labels))]
    unreduced: list[list[Axis]] = [[] for _ in calculation.pattern.operands]
    reduction = calculation.reduction
    for piece, choice in enumerate(row):
        if choice > len(labels):
            wait = waits[choice - len(labels) - 1]
            reduction = wait.reduction
            for operand in wait.operands:
                unreduced[operand].append(pieces.all[piece])
    return ComputeLayout(pieces.mesh, calculation.pattern, tuple(axes), tuple(map(tuple, unreduced)), reduction, uneven)


def _differ(rows: Numbers, order: Sequence[int], groups: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    """The rows in which pieces that cut the same dim stand otherwise in an order than in that of the mesh."""
    dims = np.arange(rows.max(initial=0) + 1)  # what cuts a dim of several labels cuts the first
    for group in reversed([group for group in groups if group]):
        dims[[1 + number for number in group if number < len(dims) - 1]] = 1 + group[0]
    doing = dims[rows]
    differ = np.zeros(len(rows), dtype=np.bool_)
    for place, first in enumerate(order):
        for second in order[place + 1 :]:
            if first > second:
                differ |= (doing[:, first] == doing[:, second]) & (doing[:, first] != 0)
    return differ


def _follow(rows: Numbers, group: Sequence[int]) -> NDArray[np.bool_]:
    """The rows in which the pieces of the labels of a dim stand as the labels do."""
    follow = np.ones(len(rows), dtype=np.bool_)
    last = np.full(len(rows), -1)
    for number in group:
        cut_by = rows == 1 + number
        is_cut = cut_by.any(axis=1)
        if rows.shape[1]:
            follow &= ~is_cut | (cut_by.argmax(axis=1) > last)
            last = np.where(is_cut, rows.shape[1] - 1 - cut_by[:, ::-1].argmax(axis=1), last)
    return follow
