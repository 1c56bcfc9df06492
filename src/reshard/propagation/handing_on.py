"""What comes before each block of a running sum, handed on from device to device.

`merging` has it in two exchanges, in which the busiest of p devices receives 2 (p - 1) / p of a row of block sums; of a
row that cannot be cut, p - 1.
What lies before its block each device but the first must receive: one row at the least.
Where each hands on what it got and its own, it receives no more, in p - 1 moves one after another.
No way in fewer is as near: a device that receives one number of a line knows all before its own block, and so can tell
all to none but the next; whoever is to be spared a move makes another receive one number more.

So it is a layout in which what comes before blocks may be computed: the dim along which it runs stays cut, and the
busiest device receives a row for it.
Without a network it is chosen where that and its work cost less, among `MOST_MOVES` moves.
On a network seconds would never choose it, as p - 1 moves of a row take no less than two of (p - 1) / p of one,
whatever a move and a byte take; so there it is none.

By hand, the sums 3, 7, 11, 15 of four blocks: 3 goes to the second, 3 + 7 to the third, 10 + 11 to the last.

>>> from reshard.mesh import Mesh
>>> from reshard.propagation.program import Program
>>> from reshard.sharding import Sharding
>>> program = Program(Mesh.of(x=4))
>>> numbers = program.input("numbers", (8,), "float32", Sharding.of(program.mesh, "x"))
>>> sums = program.output(program.running("cumsum", numbers, 0), Sharding.of(program.mesh, "x"))
>>> placed = program.propagate()
>>> placed.received_bytes, placed.is_proved
(4, True)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from reshard.contraction.compute_layout import ComputeLayout
from reshard.contraction.tasks import Calculation
from reshard.operations.operation import Attribute, Operation, Value
from reshard.operations.pattern import Pattern, Term
from reshard.operations.reaching import windowed
from reshard.propagation.merging import MERGES
from reshard.propagation.space import Pieces
from reshard.propagation.ways import Layouts

if TYPE_CHECKING:
    from reshard.propagation.explicit import PlacedSoFar

MOST_MOVES = 32
"""More are not made one after another."""
OPERATIONS = 2
"""Of every number that is handed on: one to hand it on with what a device has, one to keep what came."""
GATHERING = {"sum": "add", "product": "mul", "max": "maximum", "min": "minimum"}
"""Per reduction, what brings together values of which all but one are its identity: one HLO instruction each, for an
operation of many that reads one operand twice grows with every move where a compiler fuses them."""


def handed_label(operation: Operation) -> str | None:
    """The label along which an operation may be handed on: that of what comes before each block."""
    may_be = operation.name in MERGES and operation.attribute("before") is not None
    return operation.replicated[0] if may_be else None


def with_handing_on(layouts: Layouts, calculation: Calculation, pieces: Pieces, label: str) -> Layouts:
    """Those of the layouts of what comes before blocks that can be, with what they receive and compute.

    Args:
        layouts: of the calculation, among them such as cut the label along which it runs.
        calculation: what is computed.
        pieces: of the axes.
        label: along which it runs.
    """
    labels, place = calculation.pattern.labels, calculation.pattern.labels.index(label)
    sizes, parts = np.array(calculation.sizes, dtype=np.int64), layouts.parts(pieces, len(labels))
    shards = parts[:, place]
    keep = (sizes[place] % shards == 0) & (shards <= 1 + MOST_MOVES)
    tiles = -(-sizes // parts)
    row = np.where(shards > 1, np.delete(tiles, place, axis=1).prod(axis=1, dtype=np.float64), 0.0)
    flops = layouts.flops + OPERATIONS * (shards - 1) * row
    return replace(layouts, flops=flops, received=row * calculation.dtype.itemsize).those(keep)


def is_handed_on(operation: Operation, layout: ComputeLayout) -> bool:
    """Whether an operation is computed in such a layout."""
    label = handed_label(operation)
    return label is not None and bool(layout.axes_of(label))


class HandingOn:
    """The operations that hand on what comes before each block.

    Args:
        placing: where they stand.
        running: what comes before each block.
        layout: in which it is computed.
    """

    def __init__(self, placing: PlacedSoFar, running: Operation, layout: ComputeLayout) -> None:
        assert running.pattern is not None
        label = running.replicated[0]
        self.placing, self.running, self.rows = placing, running, layout.shardings[-1]
        self.term: Term = running.pattern.output
        self.dim, self.shards = self.term.index((label,)), layout.shards(label)
        self.is_reversed = bool(running.attribute("reverse", 0))

    @property
    def flops(self) -> int:
        """Operations of a device on what is handed on."""
        rows = self.rows.local_shape(self.running.result.shape)
        return OPERATIONS * (self.shards - 1) * prod(rows[: self.dim] + rows[self.dim + 1 :])

    def result(self, ends: Value, name: str, reason: str) -> Value:
        """What comes before each block, by a name, of what each comes to."""
        blocks, running = ends.shape[self.dim] // self.shards, self.running
        if blocks == 1:
            before = self._before(ends)
            return self._stand(self._combining("copy", (self.term,), self.term), [before], (name, reason))
        apart = tuple(("shard", "block") if dim == self.dim else group for dim, group in enumerate(self.term))
        sizes = (("shard", self.shards), ("block", blocks))
        along = replace(running, pattern=Pattern((apart,), apart), replicated=("block",), sizes=sizes)
        within = self._stand(along, [ends])
        ran = self._stand(
            replace(along, attributes=tuple(each for each in along.attributes if each[0] != "before")), [ends]
        )
        before = self._before(self._every(ran, blocks))
        by_shard = tuple(("shard",) if dim == self.dim else group for dim, group in enumerate(self.term))
        both = self._combining(MERGES[running.name].combining, (apart, by_shard), apart)
        return self._stand(replace(both, sizes=sizes), [within, before], (name, reason))

    def _before(self, sums: Value) -> Value:
        """What comes before each shard, of what each comes to."""
        order = range(self.shards)[:: -1 if self.is_reversed else 1]
        merge = MERGES[self.running.name]
        before = arrived = self._moved(sums, order[0], order[1])
        for source, target in pairwise(order[1:]):
            arrived = self._moved(self._combined(merge.combining, sums, arrived), source, target)
            before = self._combined(GATHERING[merge.reduction], before, arrived)
        return before

    def _moved(self, sums: Value, source: int, target: int) -> Value:
        """One row in the place of another, the identity in all others: rows so far apart that no other is met."""
        rows, dim = sums.shape[self.dim], self.dim
        low, high, step = [0] * len(sums.shape), [0] * len(sums.shape), [1] * len(sums.shape)
        low[dim], step[dim] = target * rows - source, rows
        high[dim] = (rows - 1) * rows + 1 - rows - low[dim]
        identity = self.running.attribute("before")
        attributes = {"low": tuple(low), "high": tuple(high), "step": tuple(step), "value": identity}
        return self._stand(self._shifting("pad", sums.shape, attributes), [sums])

    def _every(self, ran: Value, blocks: int) -> Value:
        """Of what has run through the blocks of each shard the last."""
        start, step = [0] * len(ran.shape), [1] * len(ran.shape)
        start[self.dim], step[self.dim] = (0 if self.is_reversed else blocks - 1), blocks
        shape = (*ran.shape[: self.dim], self.shards, *ran.shape[self.dim + 1 :])
        attributes = {"start": tuple(start), "stop": ran.shape, "step": tuple(step)}
        return self._stand(self._shifting("slice", shape, attributes), [ran])

    def _shifting(self, name: str, shape: tuple[int, ...], attributes: Mapping[str, Attribute]) -> Operation:
        return replace(
            self.running,
            name=name,
            pattern=Pattern((self.term,), self.term),
            replicated=(),
            shifted=self.running.replicated,
            attributes=tuple(sorted(attributes.items())),
            result=replace(self.running.result, shape=shape),
        )

    def _combining(self, name: str, terms: tuple[Term, ...], output: Term) -> Operation:
        return replace(self.running, name=name, pattern=Pattern(terms, output), replicated=(), attributes=())

    def _combined(self, name: str, left: Value, right: Value) -> Value:
        term = self.term
        both = self._combining(name, (term, term), term)
        return self._stand(replace(both, result=replace(both.result, shape=left.shape)), [left, right])

    def _stand(self, operation: Operation, operands: Sequence[Value], named: tuple[str, str] | None = None) -> Value:
        """Let an operation stand, cut as the rows are, with what it reads beyond its tile."""
        placing, called = self.placing, self.running.result.name
        operation = replace(operation, operands=tuple(operands))
        cut = [*(placing.shardings[operand] for operand in operands), self.rows]
        shapes = [value.shape for value in operation.values]
        assert operation.pattern is not None
        *used, _ = windowed(operation.pattern, operation.reaches, cut, shapes)
        brought = [placing.brought(*pair, f"needed by {called}") for pair in zip(operands, used, strict=True)]
        name, reason = named or (placing.name(called), f"handed on to {called}")
        return placing.add(operation, brought, name, self.rows, reason)
