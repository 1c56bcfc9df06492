"""Loops and choices of a program, while they stand open.

What is added to the program meanwhile stands inside; what goes in and out are the ends of the block, which its verbs
add.

By hand, Horner's rule: y -> y * x + c, once for each of three coefficients c, gives (3x + 2) x + 1 from y = 0.

>>> import numpy as np
>>> import reshard as rs
>>> program = rs.Program(rs.Mesh.of(d=2))
>>> x = program.input("x", (4,), "float32", rs.Sharding.of(program.mesh, "d"))
>>> coefficients = program.input("coefficients", (3,), "float32")
>>> with program.loop(3) as loop:
...     y = loop.carry(program.constant(0, (4,)))
...     c = loop.element(coefficients)
...     after = program.op("i,->i", program.op("i,i->i", y, x), c, name="add")
...     y = loop.last(y, after)
>>> out = program.output(y, result="out")
>>> values = {"x": np.arange(4, dtype="float32"), "coefficients": np.array([3, 2, 1], "float32")}
>>> rs.numpy.run_program(program.propagate(), values)["out"]
array([ 1.,  6., 17., 34.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from reshard.checks import expect, integer
from reshard.errors import ReshardError
from reshard.operations.blocks import Block, Branch, Choice, Loop
from reshard.operations.kinds import KINDS
from reshard.operations.operation import Value
from reshard.operations.pattern import Pattern, Term
from reshard.propagation.builder import Builder, NewValue


class OpenLoop:
    """A loop to which operations are added.

    A loop without a trip count goes on as long as its test, one integer, is not zero; it has no elements and no stacks.
    """

    def __init__(self, program: Builder, loop: Loop) -> None:
        self._program, self._loop = program, loop

    def carry(self, start: Value, result: str | None = None) -> Value:
        """What a turn begins with: at first `start`, then what `last` is given."""
        return self._add("carry", (start,), result)

    def element(self, whole: Value, result: str | None = None) -> Value:
        """What a turn takes of a value: its part at the number of the turn, in dim 0.

        Raises:
            ReshardError: `bad-program` where dim 0 is not as long as the loop.
        """
        return self._add("element", (whole,), result)

    def last(self, carry: Value, after: Value, result: str | None = None) -> Value:
        """What the loop gives back of a carry: what `after`, with which the next turn begins, is in the end.

        Raises:
            ReshardError: `bad-program` where `carry` is no carry of this loop, or `after` is not like it.
        """
        return self._add("last", (after, carry), result)

    def stack(self, value: Value, result: str | None = None) -> Value:
        """What the turns have made, one after another in a new dim 0."""
        return self._add("stack", (value,), result)

    def test(self, number: Value, result: str | None = None) -> Value:
        """Whether there is a turn, asked before each of what it would begin with; nothing reads what this gives.

        Raises:
            ReshardError: `bad-program` where `number` is not one integer, or the loop has a trip count.
        """
        return self._add("test", (number,), result)

    def _add(self, name: str, operands: tuple[Value, ...], result: str | None) -> Value:
        _check_open(self._program, self._loop)
        return add_end(self._program, name, operands, result)


class OpenChoice:
    """A choice to which branches are added."""

    def __init__(self, program: Builder, choice: Choice) -> None:
        self._program, self.choice, self.branches = program, choice, 0

    @contextmanager
    def branch(self) -> Iterator[None]:
        """The next branch.

        Raises:
            ReshardError: `bad-program` where the choice does not stand open.
        """
        _check_open(self._program, self.choice)
        branch = Branch(self.choice, self.branches)
        self.branches += 1
        with self._program.within(branch):
            yield

    def chosen(self, number: Value, *results: Value, result: str | None = None) -> Value:
        """What the branch has made that a number picks: the first result where it is 0, the next where it is 1.

        A number below 0 picks the first branch, one that is too large the last.

        Raises:
            ReshardError: `bad-program` where the results are not one of each branch, and alike.
        """
        _check_open(self._program, self.choice)
        return add_end(self._program, "chosen", (number, *results), result)


@contextmanager
def open_loop(program: Builder, trip_count: int | None, reverse: bool = False, unroll: int = 1) -> Iterator[OpenLoop]:
    """A loop of a program, which is whole once this is left.

    Raises:
        ReshardError: `bad-argument`; `bad-program` where a carry is not given back once, or nothing says when a loop
            without a trip count ends.
    """
    if trip_count is not None and integer(trip_count, "the trip count of a loop") < 0:
        raise ReshardError("bad-argument", f"a loop must run 0 times or more, got: {trip_count}")
    if integer(unroll, "unroll") < 1:
        raise ReshardError("bad-argument", f"unroll must be at least 1, got: {unroll}")
    expect(reverse, bool, "reverse")
    loop, first = Loop(*program.new_block(), trip_count, reverse, unroll), len(program.operations)
    with program.within(loop):
        yield OpenLoop(program, loop)
        ends = [operation for operation in program.operations[first:] if operation.block == loop]
        carries = [operation.result for operation in ends if operation.name == "carry"]
        if trip_count is None and sum(operation.name == "test" for operation in ends) != 1:
            raise ReshardError("bad-program", "a loop without a trip count must have one test")
        for carry in carries:
            if sum(operation.name == "last" and operation.operands[1] == carry for operation in ends) != 1:
                raise ReshardError("bad-program", f"carry {carry.name} must be given back by its loop once")


@contextmanager
def open_choice(program: Builder) -> Iterator[OpenChoice]:
    """A choice of a program, which is whole once this is left.

    Raises:
        ReshardError: `bad-program` where what comes out is not one of each branch.
    """
    choice, first = OpenChoice(program, Choice(*program.new_block())), len(program.operations)
    with program.within(choice.choice):
        yield choice
        numbers = set()
        for operation in program.operations[first:]:
            results = len(operation.operands) - 1
            if operation.block == choice.choice:
                if results != choice.branches or not results:
                    raise ReshardError("bad-program", f"a choice of {choice.branches} branches gives {results} results")
                numbers.add(_origin(program, operation.operands[0]).name)
        if len(numbers) > 1:
            raise ReshardError("bad-program", f"a choice must go by one number, got: {', '.join(sorted(numbers))}")


def _check_open(program: Builder, block: Block) -> None:
    """Refuse to add to a block that is closed, or in which another stands open.

    Raises:
        ReshardError: `bad-program`.
    """
    if program.block != block:
        raise ReshardError(
            "bad-program", "what is added to a loop or a choice must stand in it, and in no block within"
        )


def _is_number(value: Value) -> bool:
    """Whether a value is one integer or truth value, which can tell how a program goes on."""
    return not value.shape and value.dtype.kind in "biu"


def _origin(program: Builder, value: Value) -> Value:
    """What a value was before it was moved."""
    while (operation := program.operations[value.number]).name == "reshard":
        (value,) = operation.operands
    return value


def add_end(program: Builder, name: str, operands: tuple[Value, ...], result: str | None) -> Value:
    """Add an end to the block that stands open; its result.

    Raises:
        ReshardError: `bad-program` where it cannot be one.
    """
    for operand in operands:
        program.check_own(operand)
    block = program.block
    if not isinstance(block, Choice if name == "chosen" else Loop):
        raise ReshardError("bad-program", f"{name} must stand in a {'choice' if name == 'chosen' else 'loop'}")
    KINDS[name].check_operands(name, len(operands))
    value, shape = operands[-1], operands[-1].shape
    turn: Term = ()
    if isinstance(block, Loop) and name in ("element", "stack"):
        turn, count = (("turn",),), block.trip_count
        if count is None:
            raise ReshardError("bad-program", f"{name} must stand in a loop with a trip count")
        if name == "element" and shape[:1] != (count,):
            raise ReshardError("bad-program", f"{value.name} of {shape} must have {count} elements in dim 0")
        shape = shape[1:] if name == "element" else (count, *shape)
    if name == "last":
        carry = program.operations[value.number]
        if carry.name != "carry" or carry.block != block:
            raise ReshardError("bad-program", f"{value.name} is no carry of this loop")
    if name in ("chosen", "test") and not _is_number(operands[0]):
        what = "pick a branch" if name == "chosen" else "tell whether there is a turn"
        raise ReshardError("bad-program", f"{operands[0].name} must be one integer, to {what}")
    if name == "test" and isinstance(block, Loop) and block.trip_count is not None:
        raise ReshardError("bad-program", "a test must stand in a loop without a trip count")
    for operand in operands[name == "chosen" : -1]:
        if (operand.shape, operand.dtype) != (value.shape, value.dtype):
            raise ReshardError("bad-program", f"{operand.name} and {value.name} must have one shape and dtype")
    term = tuple((f"d{dim}",) for dim in range(len(value.shape) - (name == "element")))
    terms = [(*turn, *term) if name == "element" else term for _ in operands]
    if name == "chosen":
        terms[0] = ()
    pattern = Pattern(tuple(terms), (*turn, *term) if name == "stack" else term)
    replicated = ("turn",) if turn else ()
    return program.add(name, operands, NewValue(result, shape, value.dtype), pattern=pattern, replicated=replicated)
