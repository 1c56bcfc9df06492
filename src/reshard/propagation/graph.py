"""The values of a program and the operations that make them, checked as they are added.

A value is made once, before it is used, so a program has no cycle.

>>> from reshard.mesh import Mesh
>>> graph = Builder(Mesh.of(x=2))
>>> a = graph.add("input", (), "a", (4, 6), "float32")
>>> graph.add("sum", (a,), "rows", pattern=Pattern.of("ij->i")).shape
(4,)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from reshard.axis import is_prefix, sorted_and_merged
from reshard.checks import expect, integer, listed, shown
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.operations.kinds import Form, kind_of
from reshard.operations.operation import Operation, Value, level_shapes
from reshard.operations.pattern import Pattern
from reshard.sharding import DimSharding, Sharding, checked_shape

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
"""What a value or an operation may be called."""


class Carry(NamedTuple):
    """The values that must be sharded alike for a loop to go round."""

    start: Value
    """What goes in."""
    inside: Value
    """What the body reads."""
    after: Value
    """What the body gives back."""
    last: Value
    """What comes out."""


class Graph:
    """Values and operations, to be read."""

    meshes: Mapping[str, Mesh]
    operations: Sequence[Operation]
    """In the order in which they run: the operation at place n makes the value with number n."""
    without_rule: Counter[str]
    """How often each primitive stands in it that no rule knows; its operands are whole on every device."""
    signature: Any
    """What the engine that it came from knows of its arguments and its results; None for one after another."""

    @property
    def mesh(self) -> Mesh:
        """The first mesh: that of values of which nothing else tells."""
        return next(iter(self.meshes.values()))

    @property
    def values(self) -> list[Value]:
        """All values, in the order in which they are made."""
        return [operation.result for operation in self.operations]

    @property
    def inputs(self) -> list[Value]:
        """The values that are given to the program."""
        return [operation.result for operation in self.operations if operation.name == "input"]

    @property
    def outputs(self) -> list[Value]:
        """The values that it gives back."""
        return [operation.result for operation in self.operations if operation.name == "output"]

    @staticmethod
    def named(name: str, values: Mapping[str, Value]) -> Value:
        """The value of a name.

        Raises:
            ReshardError: `bad-program` where there is none.
        """
        if expect(name, str, "the name of a value") not in values:
            raise ReshardError("bad-program", f"there is no value {shown(name)} in the program")
        return values[name]


class Builder(Graph):
    """A graph that grows, and what was said about the shardings of its values."""

    def __init__(self, mesh: Mesh | Mapping[str, Mesh], *, even_ends: bool = False) -> None:
        meshes = dict(mesh) if isinstance(mesh, Mapping) else {"mesh": mesh}
        for name, each in meshes.items():
            if not NAME.fullmatch(expect(name, str, "the name of a mesh")):
                raise ReshardError("bad-argument", f"the name of a mesh must be a word, got: {shown(name)}")
            expect(each, Mesh, "the mesh of a program")
        if not meshes:
            raise ReshardError("bad-argument", "a program must have a mesh at least")
        self.meshes: dict[str, Mesh] = meshes
        self.operations: list[Operation] = []
        self.annotations: dict[Value, Sharding] = {}
        """What was said about a value's sharding."""
        self.carries: list[Carry] = []
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
        self,
        name: str,
        operands: Iterable[Value],
        result: str | None,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        *,
        pattern: Pattern | None = None,
        sizes: Mapping[str, int] | None = None,
        opaque: bool = False,
        **fields: Any,
    ) -> Value:
        """Add an operation; its result.

        Args:
            name: of the operation.
            operands: values of this program.
            result: the name of the result; one is made up where None.
            shape: of the result; the pattern's unless labels are shifted.
            dtype: of the result; that of the first operand unless given.
            pattern: of the operation.
            sizes: of labels that the operands do not determine.
            opaque: whether the engines may lack the operation; else it must be one of `KINDS`.
            fields: `replicated`, `shifted`, `selected`, `turns` and `attributes` of the `Operation`.

        Raises:
            ReshardError: `bad-program` where a name is taken, an operand is another program's, or the operation is
                not known or not as its kind is; and as `Pattern`.
        """
        operands = tuple(expect(operand, Value, "an operand of a program") for operand in operands)
        if not NAME.fullmatch(expect(name, str, "the name of an operation")):
            raise ReshardError("bad-argument", f"the name of an operation must be a word, got: {shown(name)}")
        kind = kind_of(name, is_opaque=opaque)
        is_end = kind is not None and kind.form is Form.END
        if (pattern is None) != is_end:
            raise ReshardError("bad-program", f"operation {name} must have {'no' if is_end else 'a'} pattern")
        for operand in operands:
            self.check_own(operand)
        if name == "reshard":
            fields["turns"] = self.operations[operands[0].number].turns
        if integer(fields.get("turns", 1), "how often an operation is done") < 0:
            raise ReshardError("bad-argument", f"an operation must be done 0 times or more, got: {fields['turns']}")
        called = self._fresh(name) if result is None else result
        if not NAME.fullmatch(expect(called, str, "the name of a value")):
            raise ReshardError("bad-argument", f"the name of a value must be a word, got: {shown(called)}")
        if called in self._named:
            raise ReshardError("bad-program", f"value {called} is made twice")
        if kind is not None:
            attributes = [key for key, _ in fields.get("attributes", ())]
            kind.check(name, pattern, len(operands), attributes, fields.get("replicated", ()))
        if pattern is not None:
            shape, fields["sizes"] = _solved(called, name, pattern, operands, shape, sizes or {}, fields)
        if dtype is None and operands:
            dtype = operands[0].dtype
        value = Value(called, checked_shape(() if shape is None else shape), dtype_named(dtype), len(self.operations))
        self.operations.append(Operation(name, operands, value, pattern, **fields))
        self._named[called] = value
        return value

    def take_back(self, value: Value) -> None:
        """Undo the last addition."""
        self.operations.pop()
        del self._named[value.name]

    def annotate(self, value: Value, sharding: Sharding) -> None:
        """Say how a value is sharded, besides what was said before.

        Raises:
            ReshardError: `bad-program` where that contradicts what was said before; `rank-mismatch`.
        """
        self.check_own(value)
        expect(sharding, Sharding, f"the sharding of value {value.name}")
        sharding.layout_for(value.shape)
        if sharding.mesh not in self.meshes.values():
            number = len(self.meshes)
            while f"mesh_{number}" in self.meshes:
                number += 1
            self.meshes[f"mesh_{number}"] = sharding.mesh
        before = self.annotations.get(value)
        self.annotations[value] = sharding if before is None else _both(value, before, sharding)

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


def _solved(
    called: str,
    name: str,
    pattern: Pattern,
    operands: tuple[Value, ...],
    shape: Sequence[int] | None,
    sizes: Mapping[str, int],
    fields: Mapping[str, Any],
) -> tuple[tuple[int, ...], tuple[tuple[str, int], ...]]:
    """The shape of an operation's result, which where labels are shifted must be given, and the sizes to keep."""
    if len(operands) != len(pattern.operands):
        raise ReshardError(
            "bad-argument",
            f"value {called}: pattern {pattern} of {name} has {len(pattern.operands)} operands, got {len(operands)}",
        )
    if fields.get("selected") and len(operands) == 2 and operands[1].dtype.kind not in "iu":
        table, rows = (operand.name for operand in operands)
        raise ReshardError("bad-argument", f"value {called}: {rows} must be integers, to select from {table}")
    free = {*fields.get("shifted", ())}
    known = [*free, *fields.get("replicated", ()), *fields.get("selected", ())]
    for label in listed(known, "the labels with a role of their own"):
        if label not in pattern.labels:
            raise ReshardError("bad-argument", f"value {called}: label {shown(label)} is not in {pattern}")
    shapes = [operand.shape for operand in operands] + ([] if shape is None else [checked_shape(shape)])
    try:
        solved = pattern.solve_sizes(level_shapes(pattern, shapes, free), sizes)
    except ReshardError as error:
        raise ReshardError(error.code, f"value {called}: {error}") from None
    result = checked_shape(shape) if shape is not None else pattern.output_shape(solved)
    if not sizes:
        return result, ()
    try:
        pattern.solve_sizes(level_shapes(pattern, [operand.shape for operand in operands] + [result], free), {})
    except ReshardError:
        return result, tuple(solved.items())
    return result, ()


def _both(value: Value, before: Sharding, after: Sharding) -> Sharding:
    """What two shardings of one value say together."""
    both = f"value {value.name} has the shardings {before.text()} and {after.text()}"
    if before.mesh != after.mesh:
        raise ReshardError("bad-program", f"{both} on different meshes")
    if (before.unreduced, before.reduction, before.uneven) != (after.unreduced, after.reduction, after.uneven):
        raise ReshardError("bad-program", f"{both}, which differ in what is unreduced or in their rule for uneven dims")
    dims = []
    for number, (one, other) in enumerate(zip(before.dims, after.dims, strict=True)):
        short, long = sorted((one, other), key=lambda dim: (dim.is_open is False, len(dim.axes)))
        if not is_prefix(short.axes, long.axes) or (not short.is_open and short.axes != long.axes):
            raise ReshardError("bad-program", f"{both}, which contradict each other in dim {number}")
        priorities = [dim.priority or 0 for dim in (one, other) if dim.axes or dim.is_open]
        priority = min(priorities, default=None) if (long.axes or long.is_open) else None
        dims.append(DimSharding(long.axes, long.is_open, priority or None))
    replicated = sorted_and_merged({*before.replicated, *after.replicated}, before.mesh.sizes)
    try:
        return replace(before, dims=tuple(dims), replicated=replicated)
    except ReshardError as error:
        raise ReshardError("bad-program", f"{both}, which contradict each other: {error}") from None
