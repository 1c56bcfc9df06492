"""The operations of a module as rows: what each is made of, how it lies, what it receives, and what is found there.

A program has more operations than anyone reads.
Where they are too many, those stay that tell something: parameters and results, what has a sharding, what sends, what
is found; a value that is taken through operations which are left out is taken from where it came from.

>>> from reshard.xla.report.report import inspect_texts
>>> report = inspect_texts([("p", '''HloModule p, num_partitions=4
... ENTRY %e (p: f32[2,8]) -> f32[8,8] {
...   %p = f32[2,8]{1,0} parameter(0), sharding={devices=[4,1]<=[4]}
...   %n = f32[2,8]{1,0} negate(%p)
...   ROOT %g = f32[8,8]{1,0} all-gather(%n), channel_id=1, replica_groups=[1,4]<=[4], use_global_device_ids=true
... }''')])
>>> for row in operation_rows(report, report.modules[0], most=2):
...     print(row.name, row.made, row.received, row.takes, row.is_told_of)
p parameter() None () False
g all-gather(n) 192 (0,) True
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from reshard.xla.read.collectives import Collective
from reshard.xla.read.ir import Definition, Instruction, Module

if TYPE_CHECKING:
    from reshard.xla.report.report import Report

MOST_TAKEN = 6
"""The most rows that one is drawn to take, where operations between are left out."""


class OperationRow(NamedTuple):
    """One operation."""

    name: str
    computation: str
    line: int
    opcode: str
    made: str
    """What it is and of what."""
    shape: str
    sharding: str
    """As the text has it; nothing where it has none."""
    received: int | None
    """By the busiest device in one execution; None where it sends nothing or that is not known."""
    runs: int
    found: tuple[int, ...]
    """The numbers of the findings that are about it, from 1."""
    sends_for: tuple[int, ...]
    """The numbers of the findings for which it sends."""
    place: str
    """`file:line` in the program; nothing where the text does not tell."""
    why: str
    """Why it cannot be said from where to where it moves data; nothing where it can."""
    takes: tuple[int, ...]
    """The rows whose values it takes."""

    @property
    def is_told_of(self) -> bool:
        """Whether the report says something about it."""
        return bool(self.found or self.sends_for or self.received)


def operation_rows(report: Report, module: Module, most: int) -> list[OperationRow]:
    """The operations of a module, those of its entry first, each computation in the order of its text.

    Args:
        report: what was found in it.
        module: one of the report's.
        most: of more operations only those that tell something are kept, and of these the first so many.
    """
    inner = _inner(module)
    facts = _Facts(report, module)
    shown = [definition for definition in module.instructions() if definition.computation.name not in inner]
    if len(shown) > most:
        shown = sorted(filter(facts.is_telling, shown), key=lambda one: not facts.is_found(one.instruction))[:most]
        shown.sort(key=lambda one: one.instruction.line)
    shown.sort(key=lambda one: not one.computation.is_entry)
    origins = _origins(module, {definition.instruction: number for number, definition in enumerate(shown)})
    return [facts.row(definition, origins[definition.instruction]) for definition in shown]


def _inner(module: Module) -> set[str]:
    """The computations that are the inside of one operation: of a fusion, and what a reduction does with two values."""
    inner = set()
    for _, instruction in module.instructions():
        called = {"fusion": "calls", "call": ""}.get(instruction.opcode, "to_apply")
        inner.add(instruction.attributes.get(called, "").removeprefix("%"))
    return inner


def _origins(module: Module, places: dict[Instruction, int]) -> dict[Instruction, tuple[int, ...]]:
    """Per instruction the rows from which its operands come, through what is left out."""
    passed: dict[Instruction, tuple[int, ...]] = {}
    taken: dict[Instruction, tuple[int, ...]] = {}
    for computation, instruction in module.instructions():
        rows: dict[int, None] = {}
        for operand in filter(None, map(computation.find, instruction.operands)):
            rows |= dict.fromkeys(passed.get(operand.instruction, ()))
        taken[instruction] = tuple(rows)[:MOST_TAKEN]
        place = places.get(instruction)
        passed[instruction] = taken[instruction] if place is None else (place,)
    return taken


class _Facts:
    """What a report says of the instructions of one module."""

    def __init__(self, report: Report, module: Module) -> None:
        self.module = module
        self.collectives = {
            (one.computation, one.name): one
            for one in report.collectives
            if (one.text, one.module) == (module.text, module.name)
        }
        self.found: dict[tuple[str, int] | str, list[int]] = defaultdict(list)
        """By name and line; those of a log by name alone."""
        self.sends_for: dict[str, list[int]] = defaultdict(list)
        logs = {part.text for part in report.parts if part.form == "log"}
        for number, finding in enumerate(report.findings, 1):
            for name in finding.collectives:
                if finding.module == module.name:
                    self.sends_for[name].append(number)
            if finding.text == module.text:
                self.found[finding.name, finding.line].append(number)
            elif finding.text in logs:
                self.found[finding.name.removeprefix("%")].append(number)
        self.unknown = {
            (site.name, site.line): site.why for site in report.unrecognised if site.text == module.text and site.why
        }

    def found_at(self, instruction: Instruction) -> tuple[int, ...]:
        """The findings about an instruction."""
        return (*self.found.get((instruction.name, instruction.line), ()), *self.found.get(instruction.name, ()))

    def is_found(self, instruction: Instruction) -> bool:
        """Whether a finding is about it."""
        return bool(self.found_at(instruction) or self.sends_for.get(instruction.name))

    def is_telling(self, definition: Definition) -> bool:
        """Whether it is worth a row where rows are scarce."""
        computation, instruction = definition
        return (
            self.is_found(instruction)
            or bool(instruction.shardings)
            or (instruction.opcode == "parameter" and computation.is_entry)
            or (instruction.is_root and computation.is_entry)
            or (computation.name, instruction.name) in self.collectives
        )

    def row(self, definition: Definition, takes: tuple[int, ...]) -> OperationRow:
        """It as a row."""
        computation, instruction = definition
        sent: Collective | None = self.collectives.get((computation.name, instruction.name))
        return OperationRow(
            name=instruction.name,
            computation=computation.name,
            line=instruction.line,
            opcode=instruction.opcode,
            made=f"{instruction.opcode}({', '.join(instruction.operands)})",
            shape=" ".join(map(str, instruction.result.shapes)),
            sharding=" ".join(instruction.shardings),
            received=None if sent is None else sent.received_bytes,
            runs=1 if sent is None else sent.executions,
            found=self.found_at(instruction),
            sends_for=tuple(self.sends_for.get(instruction.name, ())),
            place=self.module.source_of(instruction),
            why=self.unknown.get((instruction.name, instruction.line), ""),
            takes=takes,
        )
