"""What comes before each block of a running sum, handed on from device to device.

`merging` has it in two exchanges, in which the busiest of p devices receives 2 (p - 1) / p of a row of block sums; of a
row that cannot be cut, p - 1.
What lies before its block each device but the first must receive: one row at the least.
Where each hands on what it got and its own, it receives no more, in p - 1 moves one after another.
No way in fewer is as near: a device that receives one number of a line knows all before its own block, and so can tell
all to none but the next; whoever is to be spared a move makes another receive one number more.

So bytes ask for the chain and time never does, as p - 1 moves of a row take no less than two of (p - 1) / p of one,
whatever a move and a byte take.
It is a way to write a placement that is chosen, and is taken where the goal is bytes and the busiest device receives
less in all.

By hand, the sums 3, 7, 11, 15 of four blocks: 3 goes to the second, 3 + 7 to the third, 10 + 11 to the last.

>>> from reshard.mesh import Mesh
>>> from reshard.propagation.program import Program
>>> program = Program(Mesh.of(x=4))
>>> numbers = program.input("numbers", (8,), "float32", Sharding.of(program.mesh, "x"))
>>> sums = program.output(program.running("cumsum", numbers, 0), Sharding.of(program.mesh, "x"))
>>> [program.propagate(goal=goal).received_bytes for goal in ("balanced", "bytes")]
[12, 4]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from reshard.operations.operation import Attribute, Operation, Value
from reshard.operations.pattern import Pattern, Term
from reshard.operations.reaching import windowed
from reshard.propagation.merging import MERGES
from reshard.sharding import Sharding

if TYPE_CHECKING:
    from reshard.propagation.builder import Builder
    from reshard.propagation.placement import PlacedSoFar

MOST_MOVES = 32
"""More are not made one after another."""
GATHERING = {"sum": "add", "product": "mul", "max": "maximum", "min": "minimum"}
"""Per reduction, what brings together values of which all but one are its identity: one HLO instruction each, for an
operation of many that reads one operand twice grows with every move where a compiler fuses them."""


class BlockEnds(NamedTuple):
    """The operations of a running sum between what has run in each block and what comes before it."""

    slicing: Operation
    """The last of every block."""
    joining: Operation
    """The same without the dim of what is in a block."""
    running: Operation
    """What comes before each."""
    dim: int
    """Along which it runs."""

    @property
    def term(self) -> Term:
        """The labels of the dims, each by itself."""
        return () if self.running.pattern is None else self.running.pattern.output

    def shards(self, held: Sharding) -> int:
        """How many devices hand on where what has run in blocks lies so; 1 where none can."""
        shape = self.slicing.operands[0].shape
        if held.mesh.is_maximal or held.unreduced or held.has_windows or held.dims[self.dim + 1].axes:
            return 1
        if any(each.deals for each in held.dims):
            return 1
        shards = held.layout_for(shape).shards(self.dim)
        return shards if shape[self.dim] % shards == 0 and shards <= 1 + MOST_MOVES else 1


def block_ends(program: Builder) -> dict[Value, BlockEnds]:
    """The running sums of a program that can be handed on, by the slices of what has run in blocks."""
    operations = program.operations
    users = Counter(operand for operation in operations for operand in operation.operands)
    sums: dict[Value, BlockEnds] = {}
    for running in operations:
        if running.name not in MERGES or running.attribute("before") is None or running.pattern is None:
            continue
        joining = operations[running.operands[0].number]
        slicing = operations[joining.operands[0].number] if joining.name == "reshape" else joining
        between = slicing.result, joining.result
        if slicing.name != "slice" or any(users[value] > 1 or value in program.annotations for value in between):
            continue
        shape, dim = slicing.result.shape, running.pattern.output.index((running.replicated[0],))
        if (*shape[: dim + 1], *shape[dim + 2 :]) == joining.result.shape and shape[dim + 1] == 1:
            sums[slicing.result] = BlockEnds(slicing, joining, running, dim)
    return sums


class HandingOn:
    """What takes the place of operations in a placement that hands on."""

    def __init__(self, placing: PlacedSoFar, program: Builder) -> None:
        self.placing, self.sums = placing, block_ends(program)
        self.taken: dict[Value, BlockEnds] = {}

    def takes(self, operation: Operation) -> bool:
        """Whether an operation stands in it otherwise; what comes before each block stands where it is handed on."""
        ends, placing = self.sums.get(operation.result), self.placing
        if ends is not None and ends.shards(placing.shardings[placing.places[operation.operands[0]]]) > 1:
            self.taken |= {each.result: ends for each in (ends.slicing, ends.joining, ends.running)}
        taken = self.taken.get(operation.result)
        if taken is not None and operation is taken.running:
            placing.places[operation.result] = _Chain(placing, taken).result()
        return taken is not None


class _Chain:
    """The operations that hand on what comes before each block."""

    def __init__(self, placing: PlacedSoFar, ends: BlockEnds) -> None:
        self.placing, self.ends, self.dim = placing, ends, ends.dim
        self.own = placing.places[ends.slicing.operands[0]]
        self.held = placing.shardings[self.own]
        self.rows = replace(self.held, dims=self.held.dims[: self.dim + 1] + self.held.dims[self.dim + 2 :])
        self.shards = ends.shards(self.held)
        self.is_reversed = bool(ends.running.attribute("reverse", 0))

    def result(self) -> Value:
        """What comes before each block, where the block lies."""
        last = self._stand(self.ends.slicing, [self.own])
        ends = self._stand(self.ends.joining, [last])
        blocks = ends.shape[self.dim] // self.shards
        if blocks == 1:
            return self._named(self._before(ends))
        apart = tuple(("shard", "block") if dim == self.dim else group for dim, group in enumerate(self.ends.term))
        sizes = (("shard", self.shards), ("block", blocks))
        along = replace(self.ends.running, pattern=Pattern((apart,), apart), replicated=("block",), sizes=sizes)
        within = self._stand(along, [ends])
        ran = self._stand(
            replace(along, attributes=tuple(each for each in along.attributes if each[0] != "before")), [ends]
        )
        before = self._before(self._every(ran, blocks))
        by_shard = tuple(("shard",) if dim == self.dim else group for dim, group in enumerate(self.ends.term))
        combining = MERGES[self.ends.running.name].combining
        both = replace(self._combining(combining, (apart, by_shard), apart), sizes=sizes)
        return self._named(self._stand(both, [within, before]))

    def _before(self, sums: Value) -> Value:
        """What comes before each shard, of what each comes to."""
        order = range(self.shards)[:: -1 if self.is_reversed else 1]
        merge = MERGES[self.ends.running.name]
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
        identity = self.ends.running.attribute("before")
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
        term, running = self.ends.term, self.ends.running
        return replace(
            running,
            name=name,
            pattern=Pattern((term,), term),
            replicated=(),
            shifted=running.replicated,
            attributes=tuple(sorted(attributes.items())),
            result=replace(running.result, shape=shape),
        )

    def _combining(self, name: str, terms: tuple[Term, ...], output: Term) -> Operation:
        return replace(self.ends.running, name=name, pattern=Pattern(terms, output), replicated=(), attributes=())

    def _combined(self, name: str, left: Value, right: Value) -> Value:
        term = self.ends.term
        both = self._combining(name, (term, term), term)
        return self._stand(replace(both, result=replace(both.result, shape=left.shape)), [left, right])

    def _named(self, value: Value) -> Value:
        """The result under the name that it has in the program."""
        term, running = self.ends.term, self.ends.running
        copied = replace(running, name="copy", pattern=Pattern((term,), term), replicated=(), attributes=())
        return self._stand(copied, [value], running.result.name)

    def _stand(self, operation: Operation, operands: Sequence[Value], name: str | None = None) -> Value:
        """Let an operation stand, cut as the rows are; what it reads beyond its tile is brought."""
        placing, called = self.placing, self.ends.running.result.name
        operation = replace(operation, operands=tuple(operands), block=self.ends.running.block)
        made = self.held if operation.result == self.ends.slicing.result else self.rows
        cut = [*(placing.shardings[operand] for operand in operands), made]
        shapes = [value.shape for value in operation.values]
        assert operation.pattern is not None
        *used, _ = windowed(operation.pattern, operation.reaches, cut, shapes)
        brought = [placing.brought(*pair, f"needed by {called}") for pair in zip(operands, used, strict=True)]
        value = placing.add(operation, brought, name or placing.name(called), made, f"handed on to {called}")
        placing.work[value] = prod(made.local_shape(value.shape)) * operation.trip_count
        return value
