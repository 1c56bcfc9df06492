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
from reshard.planner import plan as make_plan
from reshard.plans import Plan
from reshard.propagation.fusion import form_of
from reshard.propagation.memory import tile_bytes
from reshard.propagation.placement import Placement
from reshard.sharding import Sharding

BY_ELEMENT = (KindForm.ELEMENTWISE, KindForm.MOVED, KindForm.COUNTED)
"""What makes a part of its result of parts of its operands."""


class _Way(NamedTuple):
    """How a device comes by its part of a value."""

    read_bytes: int
    """Of what it reads for it."""
    operands: tuple[Sharding, ...] | None = None
    """How the operands lie of which it is made; None where it is cut out, or is there."""


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
        self.made: dict[tuple[Value, Sharding, Block | None], Value] = {}
        """Per value of the old placement, how it lies and the block in which it is read, its part."""
        self.ways: dict[tuple[Value, Sharding, Block | None], _Way] = {}
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
        return self.way(operand, self.old.shardings[operation.result], operation.block).operands is not None

    def go_on(self, operation: Operation) -> None:
        """The next operation of the old placement."""
        result, plan = operation.result, self.old.plans.get(operation.result)
        sharding = self.old.shardings[result]
        if self.is_made_anew(operation):
            (operand,) = operation.operands
            self.now[result] = self.part(operand, sharding, operation.block)
            return
        operands = [self.now[operand] for operand in operation.operands]
        self.now[result] = self.add(operation, operands, sharding, result.name)
        if plan is not None:
            self.plans[self.now[result]] = plan

    def add(self, operation: Operation, operands: Sequence[Value], sharding: Sharding, name: str) -> Value:
        """Let an operation stand here; its result."""
        result = replace(operation.result, name=name, number=len(self.operations))
        self.operations.append(replace(operation, operands=tuple(operands), result=result))
        self.shardings[result] = sharding
        return result

    def way(self, value: Value, sharding: Sharding, block: Block | None) -> _Way:
        """How a device comes by its part of a value, where it is read in a block, with the least bytes."""
        if (value, sharding, block) not in self.ways:
            self.ways[value, sharding, block] = self._way(value, sharding, block)
        return self.ways[value, sharding, block]

    def _way(self, value: Value, sharding: Sharding, block: Block | None) -> _Way:
        held, size = self.old.shardings[value], tile_bytes(value, sharding)
        if held == sharding:
            return _Way(size)
        maker = self.old.operations[value.number]
        if maker.block == block and (operands := _operands(maker, sharding, self.old)) is not None:
            pairs = dict.fromkeys(zip(maker.operands, operands, strict=True))
            read_bytes = sum(self.way(*pair, block).read_bytes for pair in pairs)
            if read_bytes < size:
                return _Way(read_bytes, operands)
        return _Way(size)

    def part(self, value: Value, sharding: Sharding, block: Block | None) -> Value:
        """The part of a value."""
        if self.old.shardings[value] == sharding:
            return self.now[value]
        if (value, sharding, block) not in self.made:
            operands, maker = self.way(value, sharding, block).operands, self.old.operations[value.number]
            name = next(name for number in count(1) if (name := f"{value.name}.{number}") not in self.names)
            self.names.add(name)
            if operands is None:
                whole = self.now[value]
                part = self.add(Operation("reshard", (whole,), value, block=block), [whole], sharding, name)
                self.plans[part] = make_plan(self.old.shardings[value], sharding, value.shape, value.dtype)
            else:
                pairs = zip(maker.operands, operands, strict=True)
                part = self.add(maker, [self.part(*pair, block) for pair in pairs], sharding, name)
            self.made[value, sharding, block] = part
        return self.made[value, sharding, block]


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
