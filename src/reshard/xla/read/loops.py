"""How often each computation runs when its module runs once.

The trip count of a `while` is what XLA notes of it, `known_trip_count`, or is read off a counter: it starts at a
constant, a constant is added on every turn, and the loop goes on while it is below another.
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

from reshard.xla.read.ir import Computation, Instruction, Module

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


def executions(module: Module) -> dict[str, Executions]:
    """How often each computation runs, by its name; one that nothing calls runs once."""
    calls: dict[str, list[tuple[str, Fraction, str]]] = {name: [] for name in module.computations}
    callers: dict[str, int] = dict.fromkeys(calls, 0)
    turns = _turns(module)
    for computation, instruction in module.instructions():
        for called, count, unknown in _calls(module, computation, instruction, turns.get(computation.name)):
            if called in callers:
                calls[computation.name].append((called, count, unknown))
                callers[called] += 1
    totals: dict[str, Fraction] = dict.fromkeys(calls, Fraction(0))
    reasons: dict[str, str] = dict.fromkeys(calls, "")
    ready = [name for name, count in callers.items() if not count]
    found: dict[str, Executions] = {}
    totals |= dict.fromkeys(ready, Fraction(1))
    while ready:
        name = ready.pop()
        found[name] = Executions(min(int(totals[name]), _MOST), reasons[name])
        for called, count, unknown in calls[name]:
            totals[called] += totals[name] * count
            reasons[called] = reasons[called] or unknown or reasons[name]
            callers[called] -= 1
            if not callers[called]:
                ready.append(called)
    return {name: found.get(name) or Executions(1, "it calls itself") for name in calls}


def called_by(instruction: Instruction) -> list[str]:
    """The computations that an instruction runs, those of a loop aside."""
    names: list[str] = []
    if _CALLING.isdisjoint(instruction.attributes):
        return names
    for key in _CALLED:
        value = instruction.attributes.get(key, "")
        names += [name.strip().lstrip("%") for name in value.strip("{}").split(",") if name.strip()]
    return names + [value for key, value in instruction.attributes.items() if key.rstrip("'") == "branch"]


Turns = tuple[int, int]
"""Of the body of a loop that counts from 0 by 1: which of its values counts, and how often it runs."""


def _turns(module: Module) -> dict[str, Turns]:
    """The turns of the bodies of loops, where the text tells."""
    found = {}
    for here, loop in module.instructions():
        count = _count(module, here, loop) if loop.opcode == "while" else None
        trips = trip_count(module, here, loop) if count is not None else None
        if count is not None and trips and (count.start, count.step) == (0, 1):
            found[loop.attributes["body"].lstrip("%")] = count.value, trips
    return found


def _calls(
    module: Module, here: Computation, instruction: Instruction, turns: Turns | None
) -> list[tuple[str, Fraction, str]]:
    """What an instruction runs, how often, and why that may not hold.

    A choice by the counter of the loop around it that has a branch for every turn runs each of them once.
    """
    attributes = instruction.attributes
    if instruction.opcode != "while":
        names = called_by(instruction)
        chosen = instruction.opcode in ("conditional", "case", "if") or "branch" in attributes
        if chosen and turns is not None and len(names) == turns[1] and _chooser(module, here, instruction) == turns[0]:
            return [(name, Fraction(1, turns[1]), "") for name in names]
        why = f"which branch of line {instruction.line} runs is not told" if chosen else ""
        return [(name, Fraction(1), why) for name in names]
    trips = trip_count(module, here, instruction)
    why = "" if trips is not None else f"the trip count of the loop in line {instruction.line} is not told"
    loops = [(attributes.get("body", "").lstrip("%"), 1 if trips is None else trips)]
    loops.append((attributes.get("condition", "").lstrip("%"), 1 if trips is None else trips + 1))
    return [(name, Fraction(count), why) for name, count in loops if name]


def _chooser(module: Module, here: Computation, choice: Instruction) -> int | None:
    """Which of the loop's values chooses the branch, clamped to the branches there are or not."""
    place = _through(here.find(choice.operands[0])) if choice.operands else None
    found = None if place is None else _unfused(module, place)
    if found is None or place is None:
        return None
    name = found[1][1] if found[0].opcode == "clamp" and len(found[1]) == 3 else choice.operands[0]
    return None if name.startswith("=") else _counter(here, name)


def trip_count(module: Module, here: Computation, loop: Instruction) -> int | None:
    """How often the body of a `while` runs; None where the text does not tell."""
    if (noted := _TRIPS.search(loop.attributes.get("backend_config", ""))) is not None:
        return int(noted.group(1))
    count = _count(module, here, loop)
    if count is None or count.start is None or count.step is None or count.step < 1:
        return None
    return max(0, -(-(count.limit - count.start) // count.step))


class _Count(NamedTuple):
    """How a loop counts, as far as the text tells."""

    value: int
    """Which of the loop's values counts."""
    start: int | None
    step: int | None
    limit: int
    """What the counter stays below."""


def _count(module: Module, here: Computation, loop: Instruction) -> _Count | None:
    condition = module.computations.get(loop.attributes.get("condition", "").lstrip("%"))
    body = module.computations.get(loop.attributes.get("body", "").lstrip("%"))
    root = None if condition is None else _result(condition, 0)
    compared = None if condition is None or root is None else _compared(module, condition, root)
    if body is None or compared is None:
        return None
    value, limit = compared
    return _Count(value, _constant(*_initial(here, loop, value)), _step(module, body, value), limit)


Place = tuple[Computation, Instruction]


def _result(computation: Computation, index: int) -> Place | None:
    """One result of a computation."""
    root = computation.root
    if root is None:
        return None
    if root.opcode in ("return", "tuple"):
        return computation.find(root.operands[index]) if index < len(root.operands) else None
    return computation, root


def _through(place: Place | None) -> Place | None:
    """Past what only passes a number on."""
    for _ in range(16):
        if place is None or place[1].opcode not in _PASSED or not place[1].operands:
            return place
        place = place[0].find(place[1].operands[0])
    return None


def _constant(here: Computation | None, name: str | None) -> int | None:
    place = _through(here.find(name)) if here is not None and name is not None else None
    if place is None or place[1].opcode != "constant":
        return None
    value = place[1].attributes.get("value", "")
    return int(value) if re.fullmatch(r"-?\d{1,18}", value) else None


def _counter(here: Computation, name: str) -> int | None:
    """Which of the loop's values a name is; None where it is none."""
    place = _through(here.find(name))
    if place is None:
        return None
    instruction = place[1]
    if instruction.opcode == "parameter" and not instruction.result.is_tuple:
        return int(instruction.attributes.get("index", "0"))
    if instruction.opcode == "get-tuple-element" and instruction.operands:
        whole = here.find(instruction.operands[0])
        index = instruction.attributes.get("index", "")
        return int(index) if whole and whole[1].opcode == "parameter" and index.isdigit() else None
    return None


def _unfused(module: Module, place: Place) -> tuple[Instruction, list[str]] | None:
    """An operation and the names of its operands outside, where it is alone in a fusion too."""
    instruction = place[1]
    if instruction.opcode not in ("fusion", "call"):
        return instruction, list(instruction.operands)
    called = [module.computations.get(name) for name in called_by(instruction)]
    inside = called[0] if called else None
    root = None if inside is None else _result(inside, 0)
    if inside is None or root is None:
        return None
    outside = []
    for name in root[1].operands:
        found = _through(inside.find(name))
        if found is None or found[1].opcode not in ("parameter", "constant"):
            return None
        if found[1].opcode == "constant":
            outside.append(f"={found[1].attributes.get('value', '')}")
            continue
        index = int(found[1].attributes.get("index", "0"))
        if index >= len(instruction.operands):
            return None
        outside.append(instruction.operands[index])
    return root[1], outside


def _number(here: Computation, name: str) -> int | None:
    if name.startswith("="):
        return int(name[1:]) if re.fullmatch(r"-?\d{1,18}", name[1:]) else None
    return _constant(here, name)


def _compared(module: Module, condition: Computation, root: Place) -> tuple[int, int] | None:
    """The counter and the number that it must stay below."""
    found = _unfused(module, root)
    if found is None or found[0].opcode != "compare" or len(found[1]) != 2:
        return None
    direction = found[0].attributes.get("direction", "")
    left, right = found[1] if direction in ("LT", "LE") else found[1][::-1]
    if direction not in ("LT", "LE", "GT", "GE") or left.startswith("="):
        return None
    counter, limit = _counter(condition, left), _number(condition, right)
    if counter is None or limit is None:
        return None
    return counter, limit + (direction in ("LE", "GE"))


def _initial(here: Computation, loop: Instruction, counter: int) -> tuple[Computation | None, str | None]:
    if len(loop.operands) == 1 and (whole := _through(here.find(loop.operands[0]))) is not None:
        if whole[1].opcode == "tuple" and counter < len(whole[1].operands):
            return whole[0], whole[1].operands[counter]
        if whole[1].result.is_tuple:
            return None, None
    return (here, loop.operands[counter]) if counter < len(loop.operands) else (None, None)


def _step(module: Module, body: Computation, counter: int) -> int | None:
    """What a turn adds to the counter."""
    place = _through(_result(body, counter))
    found = None if place is None else _unfused(module, place)
    if found is None or found[0].opcode != "add" or len(found[1]) != 2:
        return None
    for value, step in (found[1], found[1][::-1]):
        if not value.startswith("=") and _counter(body, value) == counter:
            return _number(body, step)
    return None
