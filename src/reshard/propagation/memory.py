"""What a device holds when: the buffers of a placed program, from the operation that fills each to its last reader.

Operations run in their order, and a buffer is held from the first to the last of those that touch it:

    inputs     are held throughout, by whoever calls the program; where an output has the shape, the dtype and the
               sharding of one, it takes over the buffer, as JAX does with arguments that are donated
    fused      in no buffer is what is computed element by element and read once, in its block, by what computes element
               by element or reduces, nor what is so little work that every reader does it; what it is made of is held
               for that reader
    made       in no buffer are constants, the numbers of places, and what is computed of these alone, element by
               element: every device makes it where it is read
    views      another shape, an output, and what a loop gives back of a carry lie where their operand lies
    in place   elements are written where the elements lay that they are made of, if nobody reads those again
    loops      a turn has the buffers of the turn before; what is read from outside is held to the end, a carry is held
               once, and a stack whole from the first turn on, so too what a gradient needs of every turn
    choices    branches have one memory; what comes out is held from the first on

A reshard needs its source, its target, and what its plan needs between.

By hand, on two devices, `a` of 8 x 4 floats in halves of 64 bytes: `c = tanh(tanh(a))` has no buffer for the inner
value, and lies where `a` lay; a product reads `a` whole, in 128 bytes, and fills 128 with its half of 8 x 8.

>>> from reshard.propagation.program import Program
>>> def peak(lines):
...     head = '''
... sdy.mesh @mesh = <["x"=2]>
... a = input : float32[8, 4] <@mesh, [{"x"}, {}]>
... '''
...     placed = Program.parse(head + lines).propagate()
...     return placed.peak_bytes, placed.peak_values
>>> peak('''
... b = tanh "ij->ij" (a)
... c = tanh "ij->ij" (b)
... d = output (c)
... ''')
(64, (('a', 64),))
>>> peak('''
... b = einsum "ij,kj->ik" (a, a)
... c = output (b) <@mesh, [{"x"}, {}]>
... ''')
(320, (('a.1', 128), ('b', 128), ('a', 64)))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from reshard.operations.blocks import Block, Branch, around
from reshard.operations.operation import Operation, Value
from reshard.plans import Plan
from reshard.propagation.fusion import Fusion
from reshard.sharding import Sharding


class Held(NamedTuple):
    """What a device holds at the moment at which that is most."""

    peak_bytes: int
    number: int
    """Of the operation that runs then."""
    values: tuple[Value, ...]
    """Those in whose buffers it is, the largest first."""
    beside: int
    """What a reshard needs between its source and its target."""
    during: tuple[int, ...]
    """Bytes that a device holds while each operation runs."""


class Life(NamedTuple):
    """When a value is held, by the numbers of operations, both ends included."""

    kept: range
    """As it is kept; empty where it is in no buffer of its own."""
    read: range
    """From its first reader to the last."""


@dataclass(eq=False)
class _Buffer:
    """Memory for a tile."""

    value: Value
    """The first that lies there."""
    size: int
    first: int
    last: int
    """Of the operations that touch it; below `first` where it lies in the buffer of another value."""
    is_given: bool = False
    """Whether it is an input's, which its caller holds."""


def tile_bytes(value: Value, sharding: Sharding) -> int:
    """The bytes of a tile of a value."""
    return prod(sharding.local_shape(value.shape)) * value.dtype.itemsize


def held(operations: Sequence[Operation], shardings: Mapping[Value, Sharding], plans: Mapping[Value, Plan]) -> Held:
    """What a device holds when it holds most.

    Args:
        operations: of a placed program, in the order in which they run.
        shardings: of all values.
        plans: of reshards, by what they make.
    """
    filled = _Filling(operations, shardings).buffers
    change = [0] * (len(operations) + 1)
    for buffer in filled:
        change[buffer.first] += buffer.size
        change[min(buffer.last + 1, len(operations))] -= buffer.size
    best, now, during = Held(0, 0, (), 0, ()), 0, list[int]()
    for number, operation in enumerate(operations):
        now += change[number]
        beside = 0
        if operation.result in plans:
            ends = sum(tile_bytes(value, shardings[value]) for value in operation.values)
            beside = max(plans[operation.result].peak_bytes - ends, 0)
        during.append(now + beside)
        if now + beside > best.peak_bytes:
            best = Held(now + beside, number, (), beside, ())
    buffers = [buffer for buffer in filled if buffer.first <= best.number <= buffer.last]
    buffers.sort(key=lambda buffer: (-buffer.size, buffer.value.number))
    return best._replace(values=tuple(buffer.value for buffer in buffers), during=tuple(during))


def lives(operations: Sequence[Operation], shardings: Mapping[Value, Sharding]) -> list[Life]:
    """Per value when it is held, if none lies where another lay.

    Args:
        operations: of a program, in the order in which they run.
        shardings: of all values.
    """
    return _Filling(operations, shardings).lives


class _Filling:
    """The buffers of a program."""

    def __init__(self, operations: Sequence[Operation], shardings: Mapping[Value, Sharding]) -> None:
        self.operations, self.shardings = operations, shardings
        self.first: dict[Block, int] = {}
        self.last: dict[Block, int] = {}
        for number, operation in enumerate(operations):
            for block in around(operation.block):
                self.first.setdefault(block, number)
                self.last[block] = number
        self.fusion = Fusion(operations)
        self.readers, self.fused = self.fusion.readers, self.fusion.fused
        self.read = self._reads()
        self.of: dict[int, _Buffer] = {}
        """Per value that lies in one, its buffer."""
        self.buffers: list[_Buffer] = []
        for operation in operations:
            if not self.fused[operation.result.number]:
                self._fill(operation)
        self.lives = [self._life(operation) for operation in operations]
        for operation in operations:
            if operation.name == "last":
                self._carry_on(operation)
            elif operation.name == "chosen":
                self._choose(operation)
            elif not self.fused[operation.result.number]:
                self._reuse(operation)
        self._donate()
        self.buffers = [buffer for buffer in self.buffers if buffer.first <= buffer.last]

    def _reads(self) -> list[int]:
        """Per value, the number of the operation that reads it last."""
        read = list(range(len(self.operations)))
        for number in reversed(range(len(self.operations))):
            operation = self.operations[number]
            for operand in operation.operands[:1] if operation.name == "last" else operation.operands:
                source = self.operations[operand.number]
                enclosing = list(around(source.scope))
                at = read[number] if self.fused[number] or self.fusion.is_view(operation) else number
                for block in around(operation.block):
                    if block not in enclosing and not (operation.name == "carry" and block == operation.block):
                        at = max(at, self.last[block])
                read[operand.number] = max(read[operand.number], at)
        return read

    def _fill(self, operation: Operation) -> None:
        """Give a value its buffer."""
        value, number, name = operation.result, operation.result.number, operation.name
        first, last = number, len(self.operations) if name == "output" else self.read[number]
        size = tile_bytes(value, self.shardings[value])
        source = self.of.get(operation.operands[-1].number) if operation.operands else None
        is_view = name == "last" or (name == "output" and source is not None and not source.is_given)
        if source is not None and (is_view or (self.fusion.is_view(operation) and source.size == size)):
            self.of[number] = source
            source.last = max(source.last, last)
            return
        if name in ("stack", "chosen") and operation.block is not None:
            first = self.first[operation.block]
        self.of[number] = _Buffer(value, size, first, last, is_given=name == "input")
        self.buffers.append(self.of[number])

    def _life(self, operation: Operation) -> Life:
        """When a value is held, as long as none takes over the buffer of another."""
        number = operation.result.number
        buffer = self.of.get(number)
        is_own = buffer is not None and buffer.value == operation.result
        last = len(self.operations) if operation.name == "input" else buffer.last if buffer is not None else 0
        kept = range(buffer.first, last + 1) if buffer is not None and is_own else range(0)
        return Life(kept, range(min(self.readers[number], default=number), self.read[number] + 1))

    def _reuse(self, operation: Operation) -> None:
        """Let a result lie where an operand lay, element by element."""
        own = self.of[operation.result.number]
        if own.value != operation.result or not self.fusion.is_in_place(operation):
            return
        for buffer in self._operands(operation):
            block = operation.block if operation.name != "carry" or operation.block is None else operation.block.parent
            if (
                self.operations[buffer.value.number].scope == block
                and not buffer.is_given
                and (buffer.last, buffer.size) == (own.first, own.size)
            ):
                buffer.last -= 1
                return

    def _operands(self, operation: Operation) -> Iterator[_Buffer]:
        """The buffers that are read, element by element, where an operation computes what is fused into it."""
        pending = [*operation.operands]
        while pending:
            operand = pending.pop(0)
            if not self.fused[operand.number]:
                yield self.of[operand.number]
            elif self.fusion.is_in_place(self.operations[operand.number]):
                pending[:0] = self.operations[operand.number].operands

    def _carry_on(self, operation: Operation) -> None:
        """Let what a turn hands to the next be made where the carry lies, if that is not read any more."""
        after, carry = operation.operands
        buffer = self.of.get(after.number)
        if buffer is None or buffer.value.number <= carry.number or buffer.value.number > operation.result.number:
            return
        if self._is_after(buffer, self.read[carry.number]):
            buffer.last = buffer.first - 1

    def _choose(self, operation: Operation) -> None:
        """Let what branches make be made where the one that is picked is to lie."""
        for buffer in [self.of[each.number] for each in operation.operands[1:] if each.number in self.of]:
            block = self.operations[buffer.value.number].scope
            if isinstance(block, Branch) and block.parent == operation.block:
                buffer.last = buffer.first - 1

    def _is_after(self, buffer: _Buffer, read: int) -> bool:
        """Whether a buffer can be one that is read last by an operation."""
        return buffer.first > read or (buffer.first == read and self.fusion.is_in_place(self.operations[read]))

    def _donate(self) -> None:
        """Let outputs take over the buffers of inputs that are like them, first those that none reads any more."""
        outputs: dict[tuple[object, ...], list[_Buffer]] = {}
        for operation in self.operations:
            if operation.name == "output" and not self.of[operation.result.number].is_given:
                outputs.setdefault(self._like(operation.result), []).append(self.of[operation.result.number])
        inputs = [buffer for buffer in self.buffers if buffer.is_given]
        taken: set[int] = set()
        for is_late in (False, True):
            for given in inputs:
                like = outputs.get(self._like(given.value), [])
                own = next((own for own in like if is_late or self._is_after(own, given.last)), None)
                if own is None or id(given) in taken:
                    continue
                like[:] = [other for other in like if other is not own]
                own.last = min(own.last, given.last) if is_late else own.first - 1
                taken.add(id(given))
        for given in inputs:
            given.last = len(self.operations)

    def _like(self, value: Value) -> tuple[object, ...]:
        return value.shape, value.dtype, self.shardings[value]
