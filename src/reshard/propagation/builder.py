"""How a program grows: operations are checked as they are added.

A value is made once, before it is used and where its user can read it, so a program has no cycle.

>>> from reshard.mesh import Mesh
>>> program = Builder(Mesh.of(x=2))
>>> a = program.add("input", (), NewValue("a", (4, 6), "float32"))
>>> program.add("sum", (a,), NewValue(), pattern=Pattern.of("ij->i")).shape
(4,)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from reshard.axis import is_prefix, sorted_and_merged
from reshard.checks import checked_shape, expect, listed, shown
from reshard.dim_sharding import DimSharding
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation import as_mesh, as_sharding
from reshard.operations.attributes import check_attributes
from reshard.operations.blocks import Block, Branch, Choice, Loop, around
from reshard.operations.kinds import ENTERING, LEAVING
from reshard.operations.operation import Operation, Value
from reshard.operations.pattern import Pattern, Shape
from reshard.propagation.graph import Graph
from reshard.sharding import Sharding

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
"""What a value or an operation may be called."""


class NewValue(NamedTuple):
    """What is said of the result of an operation before it is made."""

    name: str | None = None
    """One is made up where None."""
    shape: Sequence[int] | None = None
    """Without one that of the pattern, if no labels are shifted."""
    dtype: Any = None
    """Without one that of the first operand."""


class Builder(Graph):
    """A graph that grows, and what was said about the shardings of its values."""

    def __init__(self, mesh: Any, *, even_ends: bool = False) -> None:
        meshes = dict(mesh) if isinstance(mesh, Mapping) else {"mesh": mesh}
        for name in meshes:
            if not NAME.fullmatch(expect(name, str, "the name of a mesh")):
                raise ReshardError("bad-argument", f"the name of a mesh must be a word, got: {shown(name)}")
        if not meshes:
            raise ReshardError("bad-argument", "a program must have a mesh at least")
        self.meshes: dict[str, Mesh] = {name: as_mesh(each) for name, each in meshes.items()}
        self.operations: list[Operation] = []
        self.annotations: dict[Value, Sharding] = {}
        """What was said about a value's sharding."""
        self.ties: list[tuple[Value, Value]] = []
        self.block: Block | None = None
        """In which operations are added now."""
        self._blocks = 0
        self.without_rule: Counter[str] = Counter()
        self.signature: Any = None
        self.even_ends = even_ends
        self._named: dict[str, Value] = {}

    def value(self, name: str) -> Value:
        """The value of a name.

        Raises:
            ReshardError: `bad-program` where there is none.
        """
        return self.named(name, self._named)

    def add(
        self, name: str, operands: Iterable[Value], result: NewValue, *, opaque: bool = False, **fields: Any
    ) -> Value:
        """Add an operation; its result.

        Args:
            name: of the operation.
            operands: values of this program.
            result: what does not follow from the operands.
            opaque: whether the engines may lack the operation; else it must be one of `KINDS`.
            fields: others of the `Operation`; of `sizes` those that the operands do not determine.

        Raises:
            ReshardError: `bad-program` where a name is taken, an operand is another program's, or the operation is
                not known or not as its kind is; and as `Pattern`.
        """
        operands = tuple(expect(operand, Value, "an operand of a program") for operand in operands)
        if not NAME.fullmatch(expect(name, str, "the name of an operation")):
            raise ReshardError("bad-argument", f"the name of an operation must be a word, got: {shown(name)}")
        for operand in operands:
            self.check_own(operand)
        called = self._fresh(name) if result.name is None else result.name
        if not NAME.fullmatch(expect(called, str, "the name of a value")):
            raise ReshardError("bad-argument", f"the name of a value must be a word, got: {shown(called)}")
        if called in self._named:
            raise ReshardError("bad-program", f"value {called} is made twice")
        dtype = operands[0].dtype if result.dtype is None and operands else dtype_named(result.dtype)
        shape = None if result.shape is None else checked_shape(result.shape)
        value = Value(called, shape or (), dtype, len(self.operations))
        operation = Operation(name, operands, value, block=self._place_of(name, operands), **fields)
        operation.check_kind(is_opaque=opaque)
        if operation.pattern is not None:
            operation = _solved(operation, operation.pattern, shape)
        if operation.attributes:
            check_attributes(operation)
        self.operations.append(operation)
        self._named[called] = operation.result
        return operation.result

    @contextmanager
    def within(self, block: Block) -> Iterator[None]:
        """Let operations stand in a block meanwhile; what is added to one that is refused is taken back."""
        before, count = self.block, len(self.operations)
        self.block = block
        try:
            yield
        except BaseException:
            self.take_back(count)
            raise
        finally:
            self.block = before

    def new_block(self) -> tuple[int, Loop | Branch | None]:
        """A number for a block that is to stand where operations do now, and the block around it.

        Raises:
            ReshardError: `bad-program` in a choice, which has branches only.
        """
        if isinstance(self.block, Choice):
            raise ReshardError("bad-program", "what a choice picks must stand in its branches")
        self._blocks += 1
        return self._blocks - 1, self.block

    def _place_of(self, name: str, operands: Sequence[Value]) -> Block | None:
        """The block in which an operation is added now: that of the operand for a reshard, none for what has none.

        Raises:
            ReshardError: `bad-program` where an operand cannot be read there.
        """
        if not operands and name != "output":
            return None
        if name == "output" and self.block is not None:
            raise ReshardError("bad-program", "an output must stand outside of loops and choices")
        if isinstance(self.block, Choice) and name != "chosen":
            raise ReshardError("bad-program", "what a choice picks must stand in its branches")
        for place, operand in enumerate(operands):
            reader = self.block.parent if self.block is not None and name in ENTERING else self.block
            if isinstance(self.block, Choice) and place:
                reader = Branch(self.block, place - 1)
            maker = self.operations[operand.number]
            if maker.scope is not None and maker.scope not in around(reader):
                raise ReshardError("bad-program", f"value {operand.name} is made in a block and read outside of it")
            if maker.name == "test":
                raise ReshardError("bad-program", f"value {operand.name} is the test of a loop, which alone reads it")
            if maker.name in LEAVING and maker.block is not None and maker.block in around(self.block):
                raise ReshardError(
                    "bad-program", f"value {operand.name} is what a block gives back, and read within it"
                )
        return self.operations[operands[0].number].scope if name == "reshard" else self.block

    def take_back(self, count: int) -> None:
        """Undo all additions but so many."""
        for operation in self.operations[count:]:
            del self._named[operation.result.name]
            self.annotations.pop(operation.result, None)
        del self.operations[count:]
        self.ties = [pair for pair in self.ties if all(self._named.get(value.name) is value for value in pair)]

    def drop_unread(self) -> None:
        """Leave out what no output reads; inputs, the ends of blocks and what has an effect stay."""
        lasting = {"input", "output"} | ENTERING | LEAVING
        read: set[Value] = set()
        for operation in reversed(self.operations):
            if operation.name in lasting or operation.result in read or operation.attribute("effect"):
                read.update((operation.result, *operation.operands))
        kept = [operation for operation in self.operations if operation.result in read]
        if len(kept) == len(self.operations):
            return
        values = [each.result for each in kept]
        renumbered = {each: Value(each.name, each.shape, each.dtype, number) for number, each in enumerate(values)}
        operations = [
            each.with_values(tuple([renumbered[value] for value in each.operands]), renumbered[each.result])
            for each in kept
        ]
        self.put(operations, renumbered)

    def put(self, operations: list[Operation], values: Mapping[Value, Value]) -> None:
        """Let other operations stand instead, with what was said of values that are others now."""
        self.operations = operations
        self.annotations = {values[each]: said for each, said in self.annotations.items() if each in values}
        self.ties = [(values[a], values[b]) for a, b in self.ties if a in values and b in values]
        self._named = {operation.result.name: operation.result for operation in operations}

    def annotate(self, value: Value, sharding: object) -> None:
        """Say how a value is sharded, besides what was said before.

        Args:
            value: of this program.
            sharding: in any form that `as_sharding` takes; a text may name a mesh of the program, and what has no mesh
                is on the first.

        Raises:
            ReshardError: `bad-program` where that contradicts what was said before; `rank-mismatch`; and as
                `as_sharding`.
        """
        self.check_own(value)
        known = self.meshes if isinstance(sharding, str) else next(iter(self.meshes.values()), None)
        sharding = as_sharding(sharding, known, len(value.shape))
        sharding.check_plain("a value of a program")
        sharding.layout_for(value.shape)
        if sharding.mesh not in self.meshes.values():
            number = len(self.meshes)
            while f"mesh_{number}" in self.meshes:
                number += 1
            self.meshes[f"mesh_{number}"] = sharding.mesh
        before = self.annotations.get(value)
        self.annotations[value] = sharding if before is None else _both(value, before, sharding)

    def tie(self, value: Value, other: Value) -> None:
        """Let two values take the same sharding, as a parameter and what becomes of it.

        Raises:
            ReshardError: `bad-program` where they have not one shape and dtype, or are another program's.
        """
        self.check_own(value)
        self.check_own(other)
        if (value.shape, value.dtype) != (other.shape, other.dtype):
            raise ReshardError("bad-program", f"{value.name} and {other.name} must have one shape and dtype to be tied")
        self.ties.append((value, other))

    def check_own(self, value: Value) -> None:
        """Refuse what is no value of this program.

        Raises:
            ReshardError: `bad-argument`, `bad-program`.
        """
        expect(value, Value, "an operand of a program")
        if self._named.get(value.name) is not value:
            raise ReshardError("bad-program", f"value {value.name} is not of this program")

    def _fresh(self, stem: str) -> str:
        number = len(self.operations)
        while f"{stem}_{number}" in self._named:
            number += 1
        return f"{stem}_{number}"


def _solved(operation: Operation, pattern: Pattern, shape: tuple[int, ...] | None) -> Operation:
    """The operation with the shape of its result, and the sizes of labels if the shapes do not tell them."""
    operands, name = operation.operands, operation.result.name
    if len(operands) != len(pattern.operands):
        counts = f"{len(pattern.operands)} operands, got {len(operands)}"
        raise ReshardError("bad-argument", f"value {name}: pattern {pattern} of {operation.name} has {counts}")
    if operation.selected and len(operands) == 2 and operands[1].dtype.kind not in "iu":
        table, rows = (operand.name for operand in operands)
        raise ReshardError("bad-argument", f"value {name}: {rows} must be integers, to select from {table}")
    roles = [*operation.shifted, *operation.replicated, *operation.selected]
    for label in listed(roles, "the labels with a role of their own"):
        if label not in pattern.labels:
            raise ReshardError("bad-argument", f"value {name}: label {shown(label)} is not in {pattern}")
    shapes, sizes = tuple(operand.shape for operand in operands), dict(operation.sizes)
    told = shapes if shape is None else (*shapes, shape)
    try:
        if sizes:
            solved = pattern.solve_sizes(told, sizes, operation.shifted)
        else:
            solved = _sizes_told(pattern, told, operation.shifted)
    except ReshardError as error:
        raise ReshardError(error.code, f"value {name}: {error}") from None
    if shape is not None and not sizes:
        return operation
    shape = pattern.output_shape(solved) if shape is None else shape
    if sizes:
        try:
            pattern.solve_sizes([*shapes, shape], {}, operation.shifted)
            sizes = {}
        except ReshardError:
            sizes = solved
    return replace(operation, result=replace(operation.result, shape=shape), sizes=tuple(sizes.items()))


@lru_cache(4096)
def _sizes_told(pattern: Pattern, shapes: tuple[Shape, ...], shifted: tuple[str, ...]) -> dict[str, int]:
    """The sizes of labels that shapes alone tell: of operations that are alike they are worked out once."""
    return pattern.solve_sizes(shapes, {}, shifted)


def _both(value: Value, before: Sharding, after: Sharding) -> Sharding:
    """What two shardings of one value say together."""
    both = f"value {value.name} has the shardings {before.text()} and {after.text()}"
    if before.mesh != after.mesh:
        raise ReshardError("bad-program", f"{both} on different meshes")
    if (before.unreduced, before.reduction, before.uneven) != (after.unreduced, after.reduction, after.uneven):
        raise ReshardError("bad-program", f"{both}, which differ in what is unreduced or in their rule for uneven dims")
    dims = []
    for number, pair in enumerate(zip(before.dims, after.dims, strict=True)):
        short, long = sorted(pair, key=lambda dim: (dim.is_open is False, len(dim.axes)))
        if not is_prefix(short.axes, long.axes) or (not short.is_open and short.axes != long.axes):
            raise ReshardError("bad-program", f"{both}, which contradict each other in dim {number}")
        priorities = [dim.priority or 0 for dim in pair if dim.axes or dim.is_open]
        priority = min(priorities, default=None) if (long.axes or long.is_open) else None
        dims.append(DimSharding(long.axes, long.is_open, priority or None))
    replicated = sorted_and_merged({*before.replicated, *after.replicated}, before.mesh.sizes)
    try:
        return replace(before, dims=tuple(dims), replicated=replicated)
    except ReshardError as error:
        raise ReshardError("bad-program", f"{both}, which contradict each other: {error}") from None
