"""How often each computation runs when its module runs once.

The trip count of a `while` is what XLA notes of it, `known_trip_count`, or is read off a counter: it starts at a
constant, a constant is added on every trip, and the loop goes on while it is below another.
Where neither is there, the loop is counted once and is said to be unknown.

>>> from reshard.xla.read.reading import read_text
>>> module = read_text('''HloModule m
... %b (p: f32[]) -> f32[] {
...   ROOT %p = f32[] parameter(0)
... }
... ENTRY %e (x: f32[]) -> f32[] {
...   %x = f32[] parameter(0)
...   ROOT %w = f32[] while(%x), condition=%c, body=%b, backend_config={"known_trip_count":{"n":"7"}}
... }''').modules[0]
>>> executions(module)["b"]
Executions(times=7, unknown='')
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from reshard.xla.read.ir import Computation, Definition, Instruction, Module

_TRIPS = re.compile(r'known_trip_count\\?"?\s*:?\s*\{\s*\\?"?n\\?"?\s*:\s*\\?"?(\d{1,18})')
_CALLED = ("calls", "to_apply", "branch_computations", "true_computation", "false_computation", "called_computations")
_CALLING = frozenset((*_CALLED, "branch"))
_PASSED = ("copy", "bitcast", "convert", "reshape")
_MOST = 2**62


class Executions(NamedTuple):
    """How often a computation runs."""

    times: int
    """At the least, where something is unknown."""
    unknown: str = ""
    """Why the count may not hold; nothing where it does."""


class _Callee(NamedTuple):
    """A computation that another runs."""

    name: str
    times: Fraction
    """In one execution of the other."""
    unknown: str = ""


class _Loop(NamedTuple):
    """A `while`, as far as the text tells."""

    trip_count: int | None = None
    counter: int | None = None
    """Which of its values counts the trips, from 0 on in steps of 1."""


def executions(module: Module) -> dict[str, Executions]:
    """How often each computation runs, by its name; one that nothing calls runs once."""
    loops = {
        definition.instruction: _loop_of(module, definition)
        for definition in module.instructions()
        if definition.instruction.opcode == "while"
    }
    around = {_called_as(instruction, "body"): loop for instruction, loop in loops.items()}
    calls: dict[str, list[_Callee]] = {name: [] for name in module.computations}
    callers: dict[str, int] = dict.fromkeys(calls, 0)
    for definition in module.instructions():
        name = definition.computation.name
        for callee in _calls_of(module, definition, loops.get(definition.instruction), around.get(name)):
            if callee.name in callers:
                calls[name].append(callee)
                callers[callee.name] += 1
    totals: dict[str, Fraction] = {name: Fraction(0 if count else 1) for name, count in callers.items()}
    reasons: dict[str, str] = dict.fromkeys(calls, "")
    ready = [name for name, count in callers.items() if not count]
    counted: dict[str, Executions] = {}
    while ready:
        name = ready.pop()
        counted[name] = Executions(min(int(totals[name]), _MOST), reasons[name])
        for called, times, unknown in calls[name]:
            totals[called] += totals[name] * times
            reasons[called] = reasons[called] or unknown or reasons[name]
            callers[called] -= 1
            if not callers[called]:
                ready.append(called)
    return {name: counted.get(name) or Executions(1, "it calls itself") for name in calls}


def called_by(instruction: Instruction) -> list[str]:
    """The computations that an instruction runs, those of a loop aside."""
    names: list[str] = []
    if _CALLING.isdisjoint(instruction.attributes):
        return names
    for key in _CALLED:
        value = instruction.attributes.get(key, "")
        names += [name.strip().lstrip("%") for name in value.strip("{}").split(",") if name.strip()]
    return names + [value for key, value in instruction.attributes.items() if key.rstrip("'") == "branch"]


def _called_as(loop: Instruction, role: str) -> str:
    return loop.attributes.get(role, "").lstrip("%")


def _calls_of(module: Module, definition: Definition, loop: _Loop | None, around: _Loop | None) -> list[_Callee]:
    """What an instruction runs, a loop or another, that stands in the body of a loop or in none.

    A choice by a counter from 0 in steps of 1 that has a branch for every trip of the loop runs each of them once.
    """
    instruction, names = definition.instruction, called_by(definition.instruction)
    if loop is not None:
        count, unknown = loop.trip_count, f"the trip count of the loop in line {instruction.line} is not told"
        times = (1, 1) if count is None else (count, count + 1)
        called = [_called_as(instruction, role) for role in ("body", "condition")]
        pairs = zip(called, times, strict=True)
        return [_Callee(name, Fraction(n), unknown if count is None else "") for name, n in pairs if name]
    if instruction.opcode not in ("conditional", "case", "if") and "branch" not in instruction.attributes:
        return [_Callee(name, Fraction(1)) for name in names]
    counter = around.counter if around is not None and around.trip_count == len(names) else None
    if counter is not None and names:
        chosen_by = _passed(definition.operand(0))
        operation, operands = _unfused(module, chosen_by)
        if operation is not None and operation.opcode == "clamp" and len(operands) == 3:
            chosen_by = operands[1]
        if operation is not None and _value_of_loop(chosen_by) == counter:
            return [_Callee(name, Fraction(1, len(names))) for name in names]
    return [_Callee(name, Fraction(1), f"which branch of line {instruction.line} runs is not told") for name in names]


def _loop_of(module: Module, loop: Definition) -> _Loop:
    """What XLA notes of a loop, and what follows where its condition compares one of its values with a constant."""
    attributes = loop.instruction.attributes
    noted = _TRIPS.search(attributes.get("backend_config", ""))
    trip_count = None if noted is None else int(noted.group(1))
    condition, body = (module.computations.get(_called_as(loop.instruction, role)) for role in ("condition", "body"))
    comparison, operands = _unfused(module, None if condition is None else condition.result(0))
    direction = "" if comparison is None else comparison.attributes.get("direction", "")
    if body is None or comparison is None or comparison.opcode != "compare" or len(operands) != 2:
        return _Loop(trip_count)
    if direction not in ("LT", "LE", "GT", "GE"):
        return _Loop(trip_count)
    low, high = operands if direction in ("LT", "LE") else operands[::-1]
    value, limit = _value_of_loop(low), _constant(high)
    if value is None or limit is None:
        return _Loop(trip_count)
    start, step = _constant(_initial(loop, value)), _step(module, body, value)
    if trip_count is None and start is not None and step is not None and step > 0:
        trip_count = max(0, -(-(limit + (direction in ("LE", "GE")) - start) // step))
    return _Loop(trip_count, value if (start, step) == (0, 1) else None)


def _initial(loop: Definition, value: int) -> Definition | None:
    """What a value of the loop is before its first trip."""
    if len(loop.instruction.operands) == 1 and (whole := _passed(loop.operand(0))) is not None:
        if whole.instruction.opcode == "tuple" and value < len(whole.instruction.operands):
            return whole.operand(value)
        if whole.instruction.result.is_tuple:
            return None
    return loop.operand(value)


def _step(module: Module, body: Computation, value: int) -> int | None:
    """What a trip adds to a value of the loop."""
    addition, operands = _unfused(module, _passed(body.result(value)))
    if addition is None or addition.opcode != "add" or len(operands) != 2:
        return None
    for before, step in (operands, operands[::-1]):
        if _value_of_loop(before) == value:
            return _constant(step)
    return None


def _passed(definition: Definition | None) -> Definition | None:
    """Past what only passes a number on."""
    for _ in range(16):
        if definition is None or definition.instruction.opcode not in _PASSED or not definition.instruction.operands:
            return definition
        definition = definition.operand(0)
    return None


def _constant(definition: Definition | None) -> int | None:
    definition = _passed(definition)
    if definition is None or definition.instruction.opcode != "constant":
        return None
    value = definition.instruction.attributes.get("value", "")
    return int(value) if re.fullmatch(r"-?\d{1,18}", value) else None


def _value_of_loop(definition: Definition | None) -> int | None:
    """Which of a loop's values is defined in its body or condition; None where it is none."""
    definition = _passed(definition)
    if definition is None:
        return None
    instruction = definition.instruction
    if instruction.opcode == "parameter" and not instruction.result.is_tuple:
        return instruction.index
    if instruction.opcode == "get-tuple-element":
        whole = definition.operand(0)
        return instruction.index if whole is not None and whole.instruction.opcode == "parameter" else None
    return None


def _unfused(module: Module, definition: Definition | None) -> tuple[Instruction | None, list[Definition | None]]:
    """What is computed and of what, where it is alone in a fusion too: then the constants stand in there."""
    if definition is None:
        return None, []
    instruction = root = definition.instruction
    operands = [definition.computation.find(name) for name in instruction.operands]
    if instruction.opcode in ("fusion", "call"):
        called = [module.computations.get(name) for name in called_by(instruction)]
        result = called[0].result(0) if called and called[0] is not None else None
        if result is None:
            return None, []
        root, outside, operands = result.instruction, operands, []
        for name in root.operands:
            inside = _passed(result.computation.find(name))
            opcode, index = ("", None) if inside is None else (inside.instruction.opcode, inside.instruction.index)
            if opcode == "constant":
                operands.append(inside)
            elif opcode == "parameter" and index is not None and index < len(outside):
                operands.append(outside[index])
            else:
                return None, []
    return root, operands
