"""Where the values of a module before partitioning lie, as far as its text tells.

A value lies as its own instruction says, or as the values do from which it comes element by element, also through
calls, tuples and shard_maps.
A constant lies wherever it is wanted.
"""

from __future__ import annotations

from typing import NamedTuple

from reshard.xla.read.ir import Computation, Instruction, Module
from reshard.xla.read.loops import called_by
from reshard.xla.read.scan import angles

ELEMENTWISE = frozenset({
    "abs", "add", "and", "atan2", "cbrt", "ceil", "ceiling", "cosine", "clamp", "compare", "complex", "convert",
    "copy", "count-leading-zeros", "divide", "erf", "exp", "exponential", "exponential-minus-one", "expm1", "floor",
    "imag", "is-finite", "log", "log-plus-one", "log1p", "logistic", "max", "maximum", "min", "minimum", "multiply",
    "negate", "negative", "not", "optimization-barrier", "or", "popcnt", "power", "real", "reduce-precision",
    "remainder", "round-nearest-afz", "round-nearest-even", "rsqrt", "select", "shift-left",
    "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt", "stochastic-convert", "subtract",
    "tan", "tanh", "xor", "cos", "sin"
})  # fmt: skip
"""Instructions whose result lies as their operands do, by HLO's names and StableHLO's."""
_FREE = frozenset(("constant", "iota", "rng", "rng-bit-generator", "partition-id", "replica-id"))


class Lies(NamedTuple):
    """Where a value lies."""

    text: str
    """Of its sharding; nothing where it is not known."""
    why: str = ""
    """Why it is not known."""
    is_free: bool = False
    """Whether it lies wherever it is wanted."""


class _Needed(Exception):  # noqa: N818  # a signal between methods of one class
    """That it must first be known where another value lies."""

    def __init__(self, place: tuple[Computation, str]) -> None:
        super().__init__(place)
        self.place = place


class Places:
    """Where the values of one module lie."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.known: dict[tuple[str, str], Lies] = {}
        self.callers: dict[str, list[tuple[Computation, Instruction]]] = {}
        for computation, instruction in module.instructions():
            for name in called_by(instruction):
                self.callers.setdefault(name, []).append((computation, instruction))
        for computation, instruction in module.instructions():
            self.of(computation, instruction.name)  # in order, so that each finds what it depends on

    def of(self, computation: Computation, name: str) -> Lies:
        """Where a value lies; what that depends on is looked at first, without recursion, for texts are long."""
        waiting: list[tuple[Computation, str]] = [(computation, name)]
        begun: set[tuple[str, str]] = set()
        while True:
            here, label = waiting[-1]
            found = here.find(label)
            if found is None:
                lies = Lies("", f"{label} is not in the text")
            else:
                key = found[0].name, found[1].name
                begun.add(key)
                try:
                    lies = self.known[key] if key in self.known else self._lies_of(*found)
                except _Needed as needed:
                    other = needed.place[0].find(needed.place[1])
                    if other is not None and (other[0].name, other[1].name) in begun:
                        self.known[other[0].name, other[1].name] = Lies("", "it comes from itself")
                    else:
                        waiting.append(needed.place)
                    continue
                self.known[key] = lies
            waiting.pop()
            if not waiting:
                return lies

    def inside(self, computation: Computation, one: Instruction) -> Lies:
        """Where an element of a tuple lies there, whatever its own sharding."""
        while True:
            try:
                return self._element(computation, one)
            except _Needed as needed:
                self.of(*needed.place)

    def _seen(self, computation: Computation, name: str) -> Lies:
        """Where a value lies that another depends on, if that was looked at."""
        found = computation.find(name)
        if found is None:
            return Lies("", f"{name} is not in the text")
        key = found[0].name, found[1].name
        if key not in self.known:
            raise _Needed((computation, name))
        return self.known[key]

    def _lies_of(self, here: Computation, one: Instruction) -> Lies:
        if one.opcode in _FREE:
            return Lies("", is_free=True)
        if one.opcode.startswith("broadcast") and one.operands:
            inside = self._seen(here, one.operands[0])
            if inside.is_free:
                return inside
        if len(one.shardings) == 1:
            return Lies(one.shardings[0])
        if one.opcode == "parameter":
            return self._parameter(here, one)
        if one.opcode == "get-tuple-element":
            return self._element(here, one)
        if one.opcode in ("call", "fusion"):
            return self._called(one, 0)
        if outs := manual_shardings(one, "out_shardings"):
            return Lies(outs[0]) if len(outs) == 1 else Lies("", "it comes from a shard_map of several results")
        if one.opcode in ("reshape", "transpose") and one.operands:
            inside = self._seen(here, one.operands[0])
            return inside if inside.is_free else Lies("", f"it comes from {one.opcode} in line {one.line}")
        passes = target_of(one) == "xla.sdy.FuncResultSharding"
        if not (one.opcode in ELEMENTWISE or passes) or not one.operands:
            return Lies("", f"it comes from {one.opcode} in line {one.line}")
        return self._elementwise(here, one)

    def _elementwise(self, here: Computation, one: Instruction) -> Lies:
        operands = [self._seen(here, name) for name in one.operands]
        bound = [lies for lies in operands if not lies.is_free]
        if not bound:
            return Lies("", is_free=True)
        for lies in bound:
            if not lies.text:
                return lies
        if len({lies.text for lies in bound}) > 1:
            return Lies("", f"the operands of {one.opcode} in line {one.line} lie in different shardings")
        return bound[0]

    def _parameter(self, here: Computation, one: Instruction) -> Lies:
        callers = self.callers.get(here.name, [])
        index = int(one.attributes.get("index", "0"))
        if here.is_entry:
            return Lies("", f"the sharding of parameter {one.name} is not told")
        if len(callers) == 1 and callers[0][1].opcode in ("call", "fusion"):
            computation, caller = callers[0]
            if index < len(caller.operands):
                return self._seen(computation, caller.operands[index])
        if len(callers) > 1:
            return Lies("", f"{here.name} is called from {len(callers)} places")
        return Lies("", f"it comes from parameter {one.name} of {here.name}")

    def _element(self, here: Computation, one: Instruction) -> Lies:
        whole = here.find(one.operands[0]) if one.operands else None
        index = one.attributes.get("index", "")
        if whole is None or not index.isdigit():
            return Lies("", f"it comes from {one.name}")
        place, computation = int(index), whole[0]
        if place < len(whole[1].shardings):
            return Lies(whole[1].shardings[place])
        if whole[1].opcode in ("tuple", "optimization-barrier") and place < len(whole[1].operands):
            return self._seen(computation, whole[1].operands[place])
        if whole[1].opcode == "call":
            return self._called(whole[1], place)
        if place < len(outs := manual_shardings(whole[1], "out_shardings")):
            return Lies(outs[place])
        return Lies("", f"it comes from {whole[1].opcode} in line {whole[1].line}")

    def _called(self, one: Instruction, index: int) -> Lies:
        names = called_by(one)
        inside = self.module.computations.get(names[0]) if names else None
        root = None if inside is None else inside.root
        if inside is None or root is None:
            return Lies("", f"it comes from {one.opcode} in line {one.line}")
        if index < len(inside.results) and inside.results[index]:
            return Lies(inside.results[index])
        if root.opcode in ("tuple", "return"):
            if index < len(root.operands):
                return self._seen(inside, root.operands[index])
            return Lies("", f"{inside.name} has no result {index}")
        return self._seen(inside, root.name)


def target_of(one: Instruction) -> str:
    """What a custom call calls; nothing of other instructions."""
    return one.attributes.get("custom_call_target", "").strip('"')


def manual_shardings(one: Instruction, side: str) -> list[str]:
    """The shardings of the arguments or the results of a shard_map."""
    if one.opcode == "manual-computation":
        return angles(one.attributes.get(side, ""))
    told = one.attributes.get("frontend_attributes", "")
    place = told.find(f"xla.sdy.{side}=")
    start = told.find("<[", place) if place >= 0 else -1
    return angles(told[start + 1 : told.find("]>", start) + 2].replace('\\"', '"')) if start >= 0 else []
