"""All-reduces, judged by what is made of their results.

Where a device uses a part of the sum alone, a reduce-scatter brings it that part for half of the bytes: p devices with
n bytes each receive 2 n (p - 1) / p by an all-reduce, and n (p - 1) / p by a reduce-scatter.
Compilers for GPUs and TPUs make the one of the other; XLA on a CPU does not.
A result that is used whole is at its bound.

By hand: 4 devices sum 8 x 8 floats and each keeps 2 rows: 2 x 256 x 3 / 4 = 384 bytes are received, 192 would do.

>>> from reshard.xla.read.collectives import find_collectives
>>> from reshard.xla.read.reading import read_text
>>> module, = read_text('''HloModule m, num_partitions=4
... add {
...   a = f32[] parameter(0)
...   b = f32[] parameter(1)
...   ROOT c = f32[] add(a, b)
... }
... ENTRY e {
...   p = f32[8,8] parameter(0)
...   i = s32[] parameter(1)
...   zero = s32[] constant(0)
...   r = f32[8,8] all-reduce(p), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add
...   ROOT s = f32[2,8] dynamic-slice(r, i, zero), dynamic_slice_sizes={2,8}
... }''').modules
>>> [(each.name, each.received_bytes, each.lower_bound_bytes) for each in judged(module, find_collectives(module))]
[('r', 384, 192)]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

from reshard.xla.read.collectives import Collective
from reshard.xla.read.ir import Computation, Instruction, Module
from reshard.xla.read.loops import called_by
from reshard.xla.report.placing import ELEMENTWISE

PASSING = ELEMENTWISE | {"bitcast", "bitcast-convert", "reshape", "transpose", "get-tuple-element"}
"""What may as well be done after a slice as before it."""
_MOST_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class JudgedSum:
    """An all-reduce, and the least that what is made of it needs."""

    text: str
    module: str
    line: int
    name: str
    place: str
    op_name: str
    executions: int
    group: int
    """How many devices sum."""
    received_bytes: int
    """By a device, at a time."""
    lower_bound_bytes: int

    @property
    def ratio(self) -> float:
        """What is received, against the bound."""
        return self.received_bytes / self.lower_bound_bytes if self.lower_bound_bytes else 1.0

    @property
    def saved_bytes(self) -> int:
        """What could be saved, in all executions."""
        return (self.received_bytes - self.lower_bound_bytes) * self.executions

    def as_dict(self) -> dict[str, Any]:
        """It for programs."""
        return {name: getattr(self, name) for name in (*self.__slots__, "ratio", "saved_bytes")}


def judged(module: Module, collectives: Iterable[Collective]) -> list[JudgedSum]:
    """The all-reduces of a partitioned module whose bytes are known."""
    uses, sums = _Uses(module), []
    for collective in collectives:
        group, received = collective.group_size, collective.received_bytes
        if collective.kind != "all-reduce" or not group or not received:
            continue
        computation = module.computations[collective.computation]
        instruction = computation.instructions[collective.name]
        least = 0
        for index, part in enumerate(instruction.result.parts):
            size = sum(shape.bytes for shape in part)
            elements = sum(prod(shape.dims) for shape in part)
            needed = uses.needed(computation, instruction, elements, index if instruction.result.is_tuple else None)
            whole = 2 * size * (group - 1) // group
            least += min(whole, size * needed // max(elements, 1) * (group - 1))
        sums.append(
            JudgedSum(
                *(collective.text, collective.module, collective.line, collective.name, collective.source),
                *(collective.op_name, collective.executions, group, received, min(least, received)),
            )
        )
    return sums


class _Uses:
    """What is made of values: how many of their elements a device goes on with."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.users: dict[str, dict[str, list[Instruction]]] = {}
        """By the names of a computation and of a value in it."""
        for computation, instruction in module.instructions():
            for name in instruction.operands:
                self.users.setdefault(computation.name, {}).setdefault(name, []).append(instruction)
        self.steps = 0

    def needed(self, computation: Computation, value: Instruction, elements: int, index: int | None = None) -> int:
        """The most elements that one slice of a value has, if slices are all that is made of it; else all elements."""
        self.steps += 1
        users = self.users.get(computation.name, {}).get(value.name, [])
        if value.is_root or not users or self.steps > _MOST_STEPS:
            return elements
        most = 0
        for user in users:
            if user.opcode == "get-tuple-element" and index is not None:
                if user.index == index:
                    most = max(most, self.needed(computation, user, elements))
            elif user.opcode in ("dynamic-slice", "slice") and user.operands[:1] == (value.name,):
                most = max(most, *(prod(shape.dims) for shape in user.result.shapes))
            elif user.opcode in PASSING and user.opcode != "get-tuple-element":
                most = max(most, self.needed(computation, user, elements))
            elif user.opcode == "fusion":
                most = max(most, self._needed_inside(computation, user, value, elements))
            else:
                return elements
        return min(most, elements)

    def _needed_inside(self, outside: Computation, fusion: Instruction, value: Instruction, elements: int) -> int:
        """What a fusion makes of one of its operands; where it only passes it on, what is made of the fusion."""
        called = [self.module.computations.get(name) for name in called_by(fusion)]
        if len(called) != 1 or called[0] is None:
            return elements
        most = 0
        for parameter in called[0].parameters():
            place = parameter.index
            if place is None or place >= len(fusion.operands) or fusion.operands[place] != value.name:
                continue
            inside = self.needed(called[0], parameter, elements)
            root = called[0].root
            same = root is not None and root.shape is not None and prod(root.shape.dims) == elements
            only_passed = inside == elements and same and root is not None and root.opcode in PASSING
            most = max(most, self.needed(outside, fusion, elements) if only_passed else inside)
        return most
