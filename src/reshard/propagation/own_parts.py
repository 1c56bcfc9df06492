"""Parts of what is made of little, made by themselves.

Where a device reads its part of a value that it makes whole, it can make that part anew, element by element, of what
the value is made of.
It does so where it then reads less than the part is: so what reads the part takes it as it is made, and nobody holds it
from where the value is made. Ones at the places of tokens are so, among zeros: of each row a number is read.

By hand, on x = 2, a product of 4 numbers with 8 is 128 B, of which each device reads 64 B, and makes them of 32 B.

>>> from reshard.mesh import Mesh
>>> from reshard.propagation.program import Program
>>> program = Program(Mesh.of(x=2))
>>> whole, cut = Sharding.of(program.mesh, None, None), Sharding.of(program.mesh, None, "x")
>>> a = program.input("a", (4,), "float32", Sharding.of(program.mesh, None))
>>> b = program.input("b", (8,), "float32", Sharding.of(program.mesh, None))
>>> product = program.constrain(program.op("i,j->ij", a, b), whole)
>>> _ = program.output(product, whole, "all"), program.output(product, cut, "part")
>>> placed = program.propagate()
>>> names = lambda placed: [operation.name for operation in placed.operations[2:]]
>>> names(placed), names(with_own_parts(placed))
(['einsum', 'output', 'reshard', 'output'], ['einsum', 'output', 'reshard', 'einsum', 'output'])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from reshard.errors import ReshardError
from reshard.operations.blocks import Block
from reshard.operations.kinds import KindForm
from reshard.operations.operation import Operation, Value
from reshard.operations.sources import sources_first
from reshard.planner import plan as make_plan
from reshard.plans import Plan
from reshard.propagation.fusion import form_of
from reshard.propagation.memory import tile_bytes
from reshard.propagation.placement import Placement
from reshard.sharding import Sharding

BY_ELEMENT = (KindForm.ELEMENTWISE, KindForm.MOVED, KindForm.COUNTED)
"""What makes a part of its result of parts of its operands."""


class _PartRead(NamedTuple):
    """A part of a value of the old placement that is read."""

    value: Value
    sharding: Sharding
    """How it lies then."""
    block: Block | None
    """In which it is read."""


class _Way(NamedTuple):
    """How a device comes by its part of a value."""

    read_bytes: int
    """Of what it reads for it."""
    operands: tuple[_PartRead, ...] | None = None
    """The parts of operands of which it is made; None where it is cut out, or is there."""


def with_own_parts(placed: Placement) -> Placement:
    """The placed program in which parts are made of what is less than they are, and not cut out of what is whole."""
    parts = _Parts(placed)
    if not any(parts.is_made_anew(placed.operations[value.number]) for value in placed.plans):
        return placed
    for operation in placed.operations:
        parts.go_on(operation)
    return parts.placed()


class _Parts:
    """The operations of a placement, as far as they stand, and the parts that are made in it."""

    def __init__(self, old: Placement) -> None:
        self.old = old
        self.operations: list[Operation] = []
        self.shardings: dict[Value, Sharding] = {}
        self.plans: dict[Value, Plan] = {}
        self.now: dict[Value, Value] = {}
        """Per value of the old placement the one here."""
        self.made: dict[_PartRead, Value] = {}
        self.ways: dict[_PartRead, _Way] = {}
        self.names = {value.name for value in old.values}

    def placed(self) -> Placement:
        """The placement."""
        return replace(self.old, operations=tuple(self.operations), shardings=self.shardings, plans=self.plans)

    def is_made_anew(self, operation: Operation) -> bool:
        """Whether it cuts out a part that is to be made of less."""
        plan = self.old.plans.get(operation.result)
        if plan is None or [step.kind for step in plan.steps] != ["Slice"]:
            return False
        (operand,) = operation.operands
        part = _PartRead(operand, self.old.shardings[operation.result], operation.block)
        return self.way(part).operands is not None

    def go_on(self, operation: Operation) -> None:
        """The next operation of the old placement."""
        result, plan = operation.result, self.old.plans.get(operation.result)
        sharding = self.old.shardings[result]
        if self.is_made_anew(operation):
            (operand,) = operation.operands
            self.now[result] = self.part(_PartRead(operand, sharding, operation.block))
            return
        operands = [self.now[operand] for operand in operation.operands]
        self.now[result] = self.add(operation, operands, sharding, result.name)
        if plan is not None:
            self.plans[self.now[result]] = plan

    def add(self, operation: Operation, operands: Sequence[Value], sharding: Sharding, name: str) -> Value:
        """Let an operation stand here; its result."""
        result = Value(name, operation.result.shape, operation.result.dtype, len(self.operations))
        self.operations.append(operation.with_values(tuple(operands), result))
        self.shardings[result] = sharding
        return result

    def way(self, part: _PartRead) -> _Way:
        """How a device comes by its part of a value with the least bytes."""
        for each in sources_first(part, self.ways, lambda each: self._operands_of(each) or ()):
            self.ways[each] = self._way(each)
        return self.ways[part]

    def _way(self, part: _PartRead) -> _Way:
        size, operands = tile_bytes(part.value, part.sharding), self._operands_of(part)
        if operands is not None:
            read_bytes = sum(self.ways[each].read_bytes for each in dict.fromkeys(operands))
            if read_bytes < size:
                return _Way(read_bytes, tuple(operands))
        return _Way(size)

    def _operands_of(self, part: _PartRead) -> list[_PartRead] | None:
        """The parts of operands of which one may be made; None where it may not, or is there."""
        value, sharding, block = part
        maker = self.old.operations[value.number]
        if self.old.shardings[value] == sharding or maker.block != block:
            return None
        operands = _operands(maker, sharding, self.old)
        if operands is None:
            return None
        return [_PartRead(*pair, block) for pair in zip(maker.operands, operands, strict=True)]

    def part(self, part: _PartRead) -> Value:
        """The part of a value."""
        for each in sources_first(part, self.made, lambda each: self.way(each).operands or ()):
            self.made[each] = self._made(each)
        return self.made[part]

    def _made(self, part: _PartRead) -> Value:
        value, sharding, block = part
        held = self.old.shardings[value]
        if held == sharding:
            return self.now[value]
        operands, maker = self.way(part).operands, self.old.operations[value.number]
        name = next(name for number in count(1) if (name := f"{value.name}.{number}") not in self.names)
        self.names.add(name)
        if operands is not None:
            return self.add(maker, [self.made[each] for each in operands], sharding, name)
        whole = self.now[value]
        cut = self.add(Operation("reshard", (whole,), value, block=block), [whole], sharding, name)
        self.plans[cut] = make_plan(held, sharding, value.shape, value.dtype)
        return cut


def _operands(operation: Operation, sharding: Sharding, placed: Placement) -> tuple[Sharding, ...] | None:
    """How the operands lie of which a part of a result is made; None where it is not made element by element."""
    pattern = operation.pattern
    is_other = operation.replicated or operation.shifted or operation.selected or operation.attribute("barrier")
    if pattern is None or form_of(operation) not in BY_ELEMENT or is_other:
        return None
    if any(len(group) > 1 for term in pattern.terms for group in term) or any(dim.is_woven for dim in sharding.dims):
        return None
    cutting = dict(zip(pattern.output, sharding.dims, strict=True))
    held = [placed.shardings[operand] for operand in operation.operands]
    if sharding.unreduced or any(each.unreduced or each.mesh != sharding.mesh for each in held):
        return None
    cuts = [
        tuple(cutting[group] if group else dim for group, dim in zip(term, each.dims, strict=True))
        for each, term in zip(held, pattern.operands, strict=True)
    ]
    try:
        return tuple(replace(each, dims=dims) for each, dims in zip(held, cuts, strict=True))
    except ReshardError:  # what cuts the part cuts another dim of an operand already
        return None
