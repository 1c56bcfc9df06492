"""Where the values of a module before partitioning lie, as far as its text tells.

A value lies as its own instruction says, or as the values do from which it comes element by element, also through
calls, tuples and shard_maps.
A constant lies wherever it is wanted.
"""

from __future__ import annotations

from typing import NamedTuple

from reshard.xla.read.ir import Computation, Definition, Instruction, Module
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


class Whereabouts(NamedTuple):
    """Where a value lies."""

    text: str
    """Of its sharding; nothing where it is not known."""
    why: str = ""
    """Why it is not known."""
    is_free: bool = False
    """Whether it lies wherever it is wanted."""


class _Needed(Exception):  # noqa: N818  # a signal between methods of one class
    """That it must first be known where another value lies."""

    def __init__(self, value: Definition) -> None:
        super().__init__(value)
        self.value = value


class Placing:
    """Where the values of one module lie."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.known: dict[tuple[str, str], Whereabouts] = {}
        """By the names of the computation and of the value in it."""
        self.callers: dict[str, list[Definition]] = {}
        for caller in module.instructions():
            for name in called_by(caller.instruction):
                self.callers.setdefault(name, []).append(caller)
        for computation, instruction in module.instructions():
            self.of(computation, instruction.name)  # in order, so that each finds what it depends on

    def of(self, computation: Computation, name: str) -> Whereabouts:
        """Where a value lies; what that depends on is looked at first, without recursion, for texts are long."""
        value = computation.find(name)
        if value is None:
            return Whereabouts("", f"{name} is not in the text")
        waiting, begun = [value], set[tuple[str, str]]()
        while waiting:
            key = _key(waiting[-1])
            begun.add(key)
            try:
                if key not in self.known:
                    self.known[key] = self._of(waiting[-1])
                waiting.pop()
            except _Needed as needed:
                if _key(needed.value) in begun:
                    self.known[_key(needed.value)] = Whereabouts("", "it comes from itself")
                else:
                    waiting.append(needed.value)
        return self.known[_key(value)]

    def of_element(self, element: Definition) -> Whereabouts:
        """Where an element of a tuple lies there, whatever its own sharding."""
        while True:
            try:
                return self._element(element)
            except _Needed as needed:
                self.of(needed.value.computation, needed.value.instruction.name)

    def _seen(self, computation: Computation, name: str) -> Whereabouts:
        """Where a value lies that another depends on, if that was looked at."""
        value = computation.find(name)
        if value is None:
            return Whereabouts("", f"{name} is not in the text")
        if _key(value) not in self.known:
            raise _Needed(value)
        return self.known[_key(value)]

    def _of(self, value: Definition) -> Whereabouts:
        computation, instruction = value
        opcode, operands, shardings = instruction.opcode, instruction.operands, instruction.shardings
        came = Whereabouts("", f"it comes from {opcode} in line {instruction.line}")
        if opcode in _FREE:
            return Whereabouts("", is_free=True)
        is_reordered = opcode in ("reshape", "transpose")
        if operands and (opcode.startswith("broadcast") or (is_reordered and len(shardings) != 1)):
            operand = self._seen(computation, operands[0])
            if operand.is_free:
                return operand
        if len(shardings) == 1:
            return Whereabouts(shardings[0])
        if opcode == "parameter":
            return self._parameter(value)
        if opcode == "get-tuple-element":
            return self._element(value)
        if opcode in ("call", "fusion"):
            return self._called(instruction, 0)
        if outs := manual_shardings(instruction, "out_shardings"):
            several = Whereabouts("", "it comes from a shard_map of several results")
            return Whereabouts(outs[0]) if len(outs) == 1 else several
        passes = opcode in ELEMENTWISE or target_of(instruction) == "xla.sdy.FuncResultSharding"
        if not passes or not operands:
            return came
        bound = [lies for name in operands if not (lies := self._seen(computation, name)).is_free]
        if not bound:
            return Whereabouts("", is_free=True)
        unknown = next((lies for lies in bound if not lies.text), None)
        if unknown is not None:
            return unknown
        if len({lies.text for lies in bound}) > 1:
            why = f"the operands of {opcode} in line {instruction.line} lie in different shardings"
            return Whereabouts("", why)
        return bound[0]

    def _parameter(self, value: Definition) -> Whereabouts:
        computation, parameter = value
        callers = self.callers.get(computation.name, [])
        if computation.is_entry:
            return Whereabouts("", f"the sharding of parameter {parameter.name} is not told")
        if len(callers) == 1 and callers[0].instruction.opcode in ("call", "fusion"):
            operands, index = callers[0].instruction.operands, parameter.index or 0
            if index < len(operands):
                return self._seen(callers[0].computation, operands[index])
        if len(callers) > 1:
            return Whereabouts("", f"{computation.name} is called from {len(callers)} places")
        return Whereabouts("", f"it comes from parameter {parameter.name} of {computation.name}")

    def _element(self, value: Definition) -> Whereabouts:
        whole, index = value.operand(0), value.instruction.index
        if whole is None or index is None:
            return Whereabouts("", f"it comes from {value.instruction.name}")
        computation, tuple_ = whole
        if index < len(tuple_.shardings):
            return Whereabouts(tuple_.shardings[index])
        if tuple_.opcode in ("tuple", "optimization-barrier") and index < len(tuple_.operands):
            return self._seen(computation, tuple_.operands[index])
        if tuple_.opcode == "call":
            return self._called(tuple_, index)
        if index < len(outs := manual_shardings(tuple_, "out_shardings")):
            return Whereabouts(outs[index])
        return Whereabouts("", f"it comes from {tuple_.opcode} in line {tuple_.line}")

    def _called(self, call: Instruction, index: int) -> Whereabouts:
        names = called_by(call)
        callee = self.module.computations.get(names[0]) if names else None
        root = None if callee is None else callee.root
        if callee is None or root is None:
            return Whereabouts("", f"it comes from {call.opcode} in line {call.line}")
        if index < len(callee.results) and callee.results[index]:
            return Whereabouts(callee.results[index])
        if root.opcode not in ("tuple", "return"):
            return self._seen(callee, root.name)
        if index < len(root.operands):
            return self._seen(callee, root.operands[index])
        return Whereabouts("", f"{callee.name} has no result {index}")


def _key(value: Definition) -> tuple[str, str]:
    return value.computation.name, value.instruction.name


def target_of(instruction: Instruction) -> str:
    """What a custom call calls; nothing of other instructions."""
    return instruction.attributes.get("custom_call_target", "").strip('"')


def manual_shardings(instruction: Instruction, side: str) -> list[str]:
    """The shardings of the arguments or the results of a shard_map."""
    if instruction.opcode == "manual-computation":
        return angles(instruction.attributes.get(side, ""))
    text = instruction.attributes.get("frontend_attributes", "")
    place = text.find(f"xla.sdy.{side}=")
    start = text.find("<[", place) if place >= 0 else -1
    return angles(text[start + 1 : text.find("]>", start) + 2].replace('\\"', '"')) if start >= 0 else []
