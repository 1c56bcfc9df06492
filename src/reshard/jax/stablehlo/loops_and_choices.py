"""Loops and branches of StableHLO, as blocks of the program.

A `while` that compares a counter with a constant has a trip count.
Where such a loop takes part n of a tensor in turn n, or writes it, that is what a scan was lowered to, and it becomes
an element or a stack again; from the last to the first too.
Both show only once the body has been read, so the loop is read a second time with what was learnt.

By hand, `while i < 12` with i from 0 by steps of 1 runs 12 times, and `dynamic_slice %w, %i, 0` of a `12×4` tensor
that the loop hands on as it is takes an element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jaxlib.mlir import ir

from reshard.jax.stablehlo.mlir_attributes import constant_array, integers, is_constant, maker, type_of, word
from reshard.jax.tracing.emitter import known_number
from reshard.operations.blocks import Block, around
from reshard.propagation import Program, Value
from reshard.propagation.open_blocks import OpenLoop

if TYPE_CHECKING:
    from reshard.jax.stablehlo.modules import Known, Reading

FORWARD, BACKWARD = False, True


class Counter(NamedTuple):
    """What counts the turns of a loop."""

    place: int
    """Of its carries."""
    start: int
    step: int
    trip_count: int


class Learnt(NamedTuple):
    """What a body shows about its loop."""

    reverse: bool = FORWARD
    stacks: frozenset[int] = frozenset()
    """The carries that only take one part in every turn."""


@dataclass
class Stack:
    """In the place of a carry that only takes one part in every turn."""

    shape: tuple[int, ...]
    part: Value | None = None
    """What it takes in this turn."""


@dataclass
class CountedLoop:
    """A loop with a trip count, while its body is read."""

    program: Program
    loop: OpenLoop
    block: Block
    counter: Counter
    count: Value
    """The carry that counts."""
    reverse: bool
    taken: set[bool] = field(default_factory=set)
    """The directions in which parts were asked for."""

    def direction(self, place: Value) -> bool | None:
        """In which direction a number goes through all turns: forward from 0, or backward to 0."""
        line = self._line(place)
        if line is None:
            return None
        start, step = line[0] + line[1] * self.counter.start, line[1] * self.counter.step
        ways = {(0, 1): FORWARD, (self.counter.trip_count - 1, -1): BACKWARD}
        return ways.get((start, step))

    def _line(self, value: Value) -> tuple[int, int] | None:
        """A number as a + b times the counter."""
        if value == self.count:
            return 0, 1
        number = known_number(self.program, value)
        if number is not None:
            return int(number), 0
        operation = self.program.operations[value.number]
        if operation.name in ("copy", "cast", "broadcast", "reshape"):
            return self._line(operation.operands[0])
        if operation.name == "select_n":  # what is below zero counts from the end, and this is never
            test = self.program.operations[operation.operands[0].number]
            asks = test.name == "less" and test.operands[0] == operation.operands[1]
            asks = asks and known_number(self.program, test.operands[1]) == 0
            return self._line(operation.operands[1]) if asks else None
        if operation.name not in ("add", "sub"):
            return None
        left, right = (self._line(operand) for operand in operation.operands)
        if left is None or right is None:
            return None
        sign = 1 if operation.name == "add" else -1
        return left[0] + sign * right[0], left[1] + sign * right[1]

    def takes(self, whole: Sequence[int], part: Sequence[int], place: Value) -> bool:
        """Whether all turns together go through dim 0, one part each, in the direction of the loop."""
        if not whole or whole[0] != self.counter.trip_count or [*part] != [1, *whole[1:]]:
            return False
        direction = self.direction(place)
        if direction is not None:
            self.taken.add(direction)
        return direction is self.reverse

    def element(self, operands: Sequence[Value], sizes: Sequence[int]) -> Value | None:
        """What a slice takes, where that is the part of this turn of a value from around the loop."""
        whole, place = operands[0], operands[1] if len(operands) > 1 else None
        inside = self.block in around(self.program.operations[whole.number].scope)
        if place is None or inside or self.program.block != self.block:
            return None
        if not self.takes(whole.shape, sizes, place):
            return None
        return self.program.reshape(self.loop.element(whole), tuple(sizes))


def while_loop(reading: Reading, op: ir.Operation, operands: Sequence[Value], known: Known) -> list[Any]:
    """A loop that goes on as long as its first region says so."""
    test, body = (region.blocks[0] for region in op.regions)
    counter = _counter(reading, test, body, operands, known)
    if counter is None:
        return _asking(reading, test, body, operands, known)
    learnt, before = Learnt(), reading.state()
    while True:
        try:
            return _counted(reading, body, operands, known, counter, learnt)
        except _Relearnt as more:
            learnt = more.learnt
            reading.restore(before)


class _Relearnt(Exception):  # noqa: N818  # no error: the loop is to be read again
    def __init__(self, learnt: Learnt) -> None:
        super().__init__()
        self.learnt = learnt


def _asking(reading: Reading, test: ir.Block, body: ir.Block, operands: Sequence[Value], known: Known) -> list[Value]:
    """A loop that asks before each turn whether there is one."""
    with reading.program.loop() as loop:
        carries = [loop.carry(start) for start in operands]
        (more,) = reading.block(test, carries, known)
        loop.test(more)
        after = reading.block(body, carries, known)
        return [loop.last(*pair) for pair in zip(carries, after, strict=True)]


def _counted(
    reading: Reading, body: ir.Block, operands: Sequence[Value], known: Known, counter: Counter, learnt: Learnt
) -> list[Value]:
    """A loop with a trip count; what it hands on as it is, is read from around it."""
    program = reading.program
    ends = [*_end(body).operands]
    kept = {place for place, argument in enumerate(body.arguments) if ends[place] == argument}
    with program.loop(counter.trip_count, reverse=learnt.reverse) as loop:
        assert program.block is not None  # the loop that was just opened
        state: list[Any] = [
            start if place in kept else Stack(start.shape) if place in learnt.stacks else loop.carry(start)
            for place, start in enumerate(operands)
        ]
        frame = CountedLoop(program, loop, program.block, counter, state[counter.place], learnt.reverse)
        first = len(program.operations)
        reading.loops.append(frame)
        try:
            after: list[Any] = reading.block(body, state, known)
        finally:
            reading.loops.pop()
        open_places = [place for place in range(len(state)) if place not in kept | learnt.stacks]
        ended_once = [place for place in open_places if after.count(after[place]) == 1 and state[place] not in after]
        more = [place for place in ended_once if _is_stack(frame, state[place], after[place], first)]
        relearnt = Learnt(learnt.reverse or frame.taken == {BACKWARD}, learnt.stacks.union(more))
        if relearnt != learnt:
            raise _Relearnt(relearnt)
        results: list[Value] = []
        for place, begun in enumerate(state):
            if place in kept:
                results.append(begun)
            elif isinstance(begun, Stack):
                part = after[place].part
                results.append(loop.stack(program.reshape(part, begun.shape[1:])))
            else:
                results.append(loop.last(begun, after[place]))
        return results


def _is_stack(frame: CountedLoop, carry: Value, after: Value, first: int) -> bool:
    """Whether what becomes of a carry is itself with the part of this turn written, and nothing else asks for it."""
    program = frame.program
    writes = program.operations[after.number]
    if writes.name != "dynamic_update_slice" or writes.operands[0] != carry or writes.block != frame.block:
        return False
    others = [operation for operation in program.operations[first:] if operation is not writes]
    if any(value in operation.operands for operation in others for value in (carry, after)):
        return False
    return frame.takes(carry.shape, writes.operands[1].shape, writes.operands[2])


def _counter(
    reading: Reading, test: ir.Block, body: ir.Block, operands: Sequence[Value], known: Known
) -> Counter | None:
    """What counts the turns, where the condition compares it with a constant."""
    asks = maker(_end(test).operands[0])
    if asks is None or asks.name != "stablehlo.compare":
        return None
    ends = _end(body).operands

    def number(value: ir.Value[Any]) -> int | None:
        """The whole number that a value always is."""
        if type_of(value).shape or type_of(value).dtype.kind not in "iu":
            return None
        op, constant = maker(value), None
        if value in known:
            constant = known_number(reading.program, known[value])
        elif isinstance(value, ir.BlockArgument):
            place = value.arg_number
            constant = known_number(reading.program, operands[place]) if ends[place] == body.arguments[place] else None
        elif op is not None and is_constant(op):
            constant = constant_array(op).item()
        return None if constant is None else int(constant)

    direction = word(asks, "comparison_direction")
    mirrored = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}.get(direction, direction)
    for (count, limit), asked in ((asks.operands, direction), ([*asks.operands][::-1], mirrored)):
        stop = number(limit)
        if not isinstance(count, ir.BlockArgument) or count.owner != test or stop is None:
            continue
        place = count.arg_number
        start, adds = known_number(reading.program, operands[place]), maker(ends[place])
        if start is None or adds is None:
            continue
        name, own = adds.name, body.arguments[place]
        values = [*adds.operands]
        if name == "stablehlo.add" and values[1:] == [own]:
            values.reverse()
        if name not in ("stablehlo.add", "stablehlo.subtract") or values[0] != own:
            continue
        step = number(values[1])
        if step is not None:
            step = step if name == "stablehlo.add" else -step
            turns = _turns(int(start), step, stop, asked)
            return None if turns is None else Counter(place, int(start), step, turns)
    return None


def _turns(start: int, step: int, stop: int, asked: str) -> int | None:
    """How often a counter is on the right side of a number.

    >>> _turns(0, 1, 12, "LT"), _turns(0, 5, 12, "LE"), _turns(9, -1, 0, "GE"), _turns(0, 2, 12, "NE")
    (12, 3, 10, 6)
    """
    if asked == "NE" and step and (stop - start) % step == 0 and (stop - start) // step >= 0:
        return (stop - start) // step
    rises = asked in ("LT", "LE")
    if asked not in ("LT", "LE", "GT", "GE") or (step <= 0 if rises else step >= 0):
        return None
    room = stop - start if rises else start - stop
    return max(0, -(-(room + (asked in ("LE", "GE"))) // abs(step)))


def choice(reading: Reading, op: ir.Operation, operands: Sequence[Value], known: Known) -> list[Value]:
    """One of several branches; of `if` the first is that of what is true, of `case` the last is that of the rest."""
    blocks, number = [region.blocks[0] for region in op.regions], operands[0]
    if op.name == "stablehlo.if":
        blocks.reverse()
    elif not _is_inside(maker(op.operands[0])):
        last = np.int32(len(blocks) - 1)
        of_rest = jax.make_jaxpr(lambda n: lax.select(n < 0, last, n))(reading.aval(number))
        (number,) = reading.closed(of_rest, [number])
    with reading.program.choice() as open_choice:
        results = []
        for block in blocks:
            with open_choice.branch():
                results.append([reading.copy(value) for value in reading.block(block, (), known)])
        return [open_choice.chosen(number, *of) for of in zip(*results, strict=True)]


def _is_inside(op: ir.Operation | None) -> bool:
    """Whether the number that an operation makes cannot be below zero: a truth value, or what was brought inside."""
    if op is None or op.name not in ("stablehlo.convert", "stablehlo.clamp"):
        return False
    least = maker(op.operands[0])
    if op.name == "stablehlo.convert":
        return bool(type_of(op.operands[0]).dtype == bool)
    return least is not None and is_constant(least) and bool(constant_array(least) >= 0)


def sliced(reading: Reading, op: ir.Operation, operands: Sequence[Any]) -> list[Any] | None:
    """What a slice at a place, or an update, is in the loop that is being read: an element, or a stack."""
    if isinstance(operands[0], Stack):
        return [Stack(operands[0].shape, operands[1])]
    if op.name != "stablehlo.dynamic_slice" or not reading.loops:
        return None
    element = reading.loops[-1].element(operands, integers(op, "slice_sizes"))
    return None if element is None else [element]


def _end(block: ir.Block) -> ir.Operation:
    """The operation that says what a region gives back."""
    *_, end = block.operations
    return end.operation
