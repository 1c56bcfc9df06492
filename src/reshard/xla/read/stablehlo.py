"""Reads lowered modules: StableHLO with Shardy's or XLA's shardings, what `lowered.as_text()` prints.

MLIR's printer puts one operation on a line and opens a region at the end of one, so this too goes line by line.
A region becomes a computation; an operation of several results is taken apart by `get-tuple-element`s named `0#1`.

>>> module = Module("stablehlo", "", 1)
>>> reader = StableReader(module)
>>> for number, line in enumerate('''sdy.mesh @m = <["x"=2]>
... func.func public @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}]>}) -> tensor<8xf32> {
...   %0 = sdy.sharding_constraint %arg0 <@m, [{}]> : tensor<8xf32>
...   return %0 : tensor<8xf32>
... }'''.splitlines(), 1):
...     reader.read(line, number)
>>> reader.finish(6)
>>> [(operation.opcode, *operation.shardings) for _, operation in module.instructions()]
[('parameter', '<@m, [{"x"}]>'), ('sharding-constraint', '<@m, [{}]>'), ('return',)]
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

from reshard.errors import ReshardError
from reshard.notation import parse_mesh
from reshard.xla.read.ir import ArrayShape, Computation, Instruction, Module, Result
from reshard.xla.read.scan import angle, angles, closing, natural, split

OPERATION = re.compile(
    r"\s*(?:(%[\w#:$.\-]+(?:\s*,\s*%[\w#:$.\-]+)*)\s*=\s*)?\"?([a-z_]\w*(?:\.\w+)+|return|call)\"?(?=[\s(<])"
)
"""How the line of an operation begins."""
_TYPE = re.compile(
    r"tensor<((?:(?:\d+|\?)x)*)([A-Za-z]\w*(?:<\w+>)?)(?:,[^<>]*(?:<[^<>]*>)?)?>|(!?[\w.]+<[^<>]*>|!?[A-Za-z][\w.]*)"
)
_VALUE = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_MESH = re.compile(r"sdy\.mesh\s+@(\"[^\"]*\"|[\w.$]+)\s*=")
_SDY = re.compile(r"sdy\.sharding\s*=\s*#sdy\.sharding(<)")
_XLA = re.compile(r"mhlo\.sharding\s*=\s*\"((?:[^\"\\]|\\.)*)\"")
_LOC_LINE = re.compile(r"\s*(#loc\d*)\s*=\s*loc\((.*)\)\s*$")
_FILE = re.compile(r"\"((?:[^\"\\]|\\.)*)\":(\d+)(?::\d+)?")
_LOC_PART = re.compile(r"#loc\d*|\"(?:[^\"\\]|\\.)*\":\d+")
_PARTITIONS = re.compile(r"mhlo\.num_(partitions|replicas)\s*=\s*(\d{1,9})\b")
_FUNCTION = re.compile(r"func\.func\s+(?:(public|private|nested)\s+)?@(\"[^\"]*\"|[\w.$\-]+)\s*\(")
_WHILE_ARGUMENT = re.compile(r"(%[\w$.\-]+)\s*=\s*(%[\w$.\-]+(?:#\d+)?)")
_SILENT = re.compile(r"\s*(?:\}|\^|#|//|module\b|builtin\.module\b|\{-#|#-\}|cond\b|do\b|reducer\b|\()")
_DENSE = r"\s*=\s*(dense<.*?>\s*:\s*tensor<[^<>]*>)"
_ATTRIBUTES = {
    "replica_groups": ("", re.compile("replica_groups" + _DENSE)),
    "source_target_pairs": ("", re.compile("source_target_pairs" + _DENSE)),
    "channel_id": ("", re.compile(r"channel_handle<handle = (\d+)")),
    "custom_call_target": ("custom-call", re.compile(r"@([\w.$]+)")),
    "to_apply": ("call", re.compile(r"@(\"[^\"]*\"|[\w.$\-]+)")),
    "direction": ("compare", re.compile(r"^\s*([A-Z]{2})\b")),
    "value": ("constant", re.compile(r"dense<([^<>\"]{1,31})>")),
}
"""By HLO's name of an attribute: the operation that has it, or any, and how it is printed."""


@dataclass(slots=True)
class _Open:
    """A brace that is open."""

    computation: Computation | None
    """What is read within it; None for a module."""
    what: str
    """What it belongs to."""
    owner: Instruction | None = None
    """The operation whose region it is."""
    bound: list[str] = field(default_factory=list)
    """Names of values that the next region of the operation begins with."""


class StableReader:
    """Takes the lines of one module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.open: list[_Open] = []
        self.waiting: _Open | None = None
        """A `while` whose regions follow on lines of their own."""
        self.locations: dict[str, str] = {}
        self.was_closed = False

    def read(self, line: str, number: int) -> None:
        """One line, with its number in the text."""
        text = line.strip()
        if (location := _LOC_LINE.fullmatch(line)) is not None:
            self.locations[location.group(1)] = location.group(2)
            return
        if not text or text.startswith(("//", "#")):
            return
        if re.match(r"(?:builtin\.)?module\b", text):
            self._module(text)
        elif text.startswith("sdy.mesh"):
            self._mesh(text, number)
        elif (function := _FUNCTION.search(text)) is not None:
            self._function(text, number, function)
        elif text.startswith("}"):
            self._close(text, number)
        elif text.startswith(("cond {", "cond{")) and self.waiting is not None:
            self._region("condition", number, self.waiting)
        elif text.startswith("^"):
            self._block(text, number)
        elif text.startswith(("reducer(", "(")) and text.endswith("{"):
            self.open.append(_Open(Computation("", number), "a region"))
        elif (operation := OPERATION.match(line)) is not None:
            self._operation(line, number, operation)
        elif not _SILENT.match(line):
            self.module.note(number, "the line is no operation that can be read", line)

    def finish(self, number: int) -> None:
        """The text has ended, at the line of that number."""
        self.module.lines = number - self.module.line
        if self.open:
            self.module.stopped = f"the text ends within {self.open[-1].what}"
        elif not self.was_closed:
            self.module.stopped = "the text ends before a function"
        for _, operation in self.module.instructions():
            location = operation.attributes.get("location")
            if location is not None and location not in self.module.locations:
                self.module.locations[location] = self._source_line(location)

    # What stands around operations.

    def _module(self, text: str) -> None:
        name = re.match(r"(?:builtin\.)?module\s+@(\"[^\"]*\"|[\w.$\-]+)", text)
        self.module.name = name.group(1).strip('"') if name else self.module.name
        for kind, count in _PARTITIONS.findall(text):
            setattr(self.module, kind, max(int(count), 1))
        if text.endswith("{"):
            self.open.append(_Open(None, f"module {self.module.name}"))

    def _mesh(self, text: str, number: int) -> None:
        head = _MESH.match(text)
        try:
            if head is None:
                raise ReshardError("syntax", "no mesh")
            start = max(text.find("<", head.end(1)), 0)
            self.module.meshes[head.group(1).strip('"')] = parse_mesh(text[start : angle(text, start)])
        except ReshardError:
            self.module.note(number, "a mesh cannot be read", text)

    def _function(self, text: str, number: int, head: re.Match[str]) -> None:
        name = head.group(2).strip('"')
        computation = self._computation(name, number, None)
        computation.is_entry = name == "main"
        stop = closing(text, head.end() - 1)
        if stop < 0:
            self.module.note(number, "the line is cut within a function's arguments", text)
            return
        self._parameters(computation, text[head.end() : stop - 1], number)
        arrow = text.find("->", stop)
        if arrow >= 0:
            results = text[arrow + 2 :].strip()
            stop = closing(results, 0) if results.startswith("(") else 0
            texts = split(results[1 : stop - 1]) if stop > 0 else [] if stop else [results.removesuffix("{")]
            computation.results = tuple(map(_sharding_of, texts))
        if text.endswith("{"):
            self.open.append(_Open(computation, f"function @{name}"))

    def _parameters(self, computation: Computation, text: str, number: int) -> None:
        for index, argument in enumerate(split(text)):
            name, _, kind = argument.partition(":")
            result = read_types(kind)
            if not name.strip().startswith("%") or not result:
                self.module.note(number, "an argument cannot be read", argument)
                continue
            attributes = {"index": str(index), **_location_of(kind)}
            sharding = _sharding_of(kind)
            label = name.strip().lstrip("%")
            computation.instructions[label] = Instruction(
                label, "parameter", Result.array(result[0]), (), number, attributes, (sharding,) if sharding else ()
            )

    def _computation(self, name: str, number: int, parent: Computation | None) -> Computation:
        label = name
        while label in self.module.computations:
            label += "'"
        computation = self.module.computations[label] = Computation(label, number, parent=parent)
        return computation

    def _region(self, role: str, number: int, holder: _Open) -> None:
        owner = holder.owner
        region = self._computation(f"{role} of line {owner.line if owner else number}", number, self._innermost())
        if owner is not None:
            attributes = dict(owner.attributes)
            while role in attributes:
                role += "'"
            attributes[role] = region.name
            owner.attributes = attributes
            for index, name in enumerate(holder.bound):
                shape = owner.result.parts[index][0] if index < len(owner.result.parts) else ArrayShape("token", ())
                region.instructions[name] = Instruction(
                    name, "parameter", Result.array(shape), (), number, {"index": str(index)}
                )
        self.open.append(_Open(region, f"the region of line {number}", owner, holder.bound))

    def _close(self, text: str, number: int) -> None:
        if not self.open:
            self.module.note(number, "a brace closes that was never opened", text)
            return
        closed = self.open.pop()
        owner = closed.owner
        if text.startswith(("} do {", "} do{")):
            self._region("body", number, closed)
        elif text.endswith("{"):
            self._region("branch", number, closed)
        elif owner is not None:
            if owner.opcode != "while":
                self._type(owner, text, number)
            owner.attributes = {**_location_of(text), **owner.attributes}
        self.was_closed = self.was_closed or not self.open or closed.what.startswith("function")

    def _block(self, text: str, number: int) -> None:
        computation = self._innermost()
        start = text.find("(")
        stop = closing(text, start) if start >= 0 else -1
        if computation is not None and stop > 0:
            self._parameters(computation, text[start + 1 : stop - 1], number)

    # Operations.

    def _operation(self, line: str, number: int, head: re.Match[str]) -> None:
        computation = self._innermost()
        if computation is None:
            computation = self._computation("", number, None)
            self.open.append(_Open(computation, "a function whose beginning is not there"))
            self.module.note(number, "the operation stands in no function", line)
        dialect, _, name = head.group(2).replace("_", "-").rpartition(".")
        if dialect == "sdy" and name.startswith(("all-", "collective-", "reduce-", "sharded-", "replicated-")):
            name = "reshard"  # Shardy's own collectives say what comes out and not who takes part
        rest = line[head.end() :].rstrip()
        opens = rest.endswith("{")
        rest = rest[: _cut_location(rest)]
        attributes = _location_of(line) | _attributes(name, rest)
        operands = tuple(value.lstrip("%") for value in _VALUE.findall(rest.rpartition(" : ")[0] or rest))
        bound: list[str] = []
        if name == "while":
            pairs = _WHILE_ARGUMENT.findall(rest)
            bound, operands = [pair[0].lstrip("%") for pair in pairs], tuple(pair[1].lstrip("%") for pair in pairs)
        elif name == "manual-computation":
            stop = closing(rest, rest.find("(")) if "(" in rest else 0
            operands = tuple(value.lstrip("%") for value in _VALUE.findall(rest[: max(stop, 0)]))
        operation = Instruction("", name, Result((), False), operands, number, attributes, _constraint(name, rest))
        if name == "return":
            operation.is_root, operation.name = True, f"return of line {number}"
            computation.instructions[operation.name] = operation
            return
        self._name(computation, operation, head.group(1) or "")
        if opens:
            self._open_region(operation, rest, number)
            return
        self._type(operation, rest, number)
        if name == "while":
            self.waiting = _Open(None, "a while", operation, bound)

    def _open_region(self, operation: Instruction, rest: str, number: int) -> None:
        if operation.opcode == "manual-computation":
            start = rest.rfind("(%")
            stop = closing(rest, start) if start >= 0 else -1
            self._region("calls", number, _Open(None, "", operation))
            region = self.module.computations[operation.attributes["calls"]]
            self._parameters(region, rest[start + 1 : stop - 1] if stop > 0 else "", number)
        else:
            role = "branch" if operation.opcode in ("case", "if") else "to_apply"
            self._region(role, number, _Open(None, "", operation))

    def _name(self, computation: Computation, operation: Instruction, text: str) -> None:
        """Give an operation the names of its results."""
        label, _, count = text.partition(",")[0].strip().lstrip("%").partition(":")
        label = label or f"line {operation.line}"
        operation.name = label
        computation.instructions[label] = operation
        for index in range(natural(count[:6]) or 0):
            element = f"{label}#{index}"
            computation.instructions[element] = Instruction(
                element, "get-tuple-element", Result((), False), (label,), operation.line, {"index": str(index)}
            )

    def _type(self, operation: Instruction, text: str, number: int) -> None:
        """Give an operation the shapes of its results, from the type at the end of its text."""
        text = text[: _cut_location(text)]
        _, colon, types = text.rpartition(" : ")
        before, arrow, after = (types if colon else "").partition("->")
        shapes = read_types(after if arrow else before)
        if shapes is None or (not colon and operation.name and not operation.name.startswith("line ")):
            self.module.note(number, f"the type of {operation.opcode} cannot be read", text)
            shapes = ()
        if arrow:
            operation.printed = read_types(before) or ()
        computation = self._innermost()
        instructions = {} if computation is None else computation.instructions
        is_tuple = bool(shapes) and f"{operation.name}#0" in instructions
        operation.result = Result(tuple((shape,) for shape in (shapes if is_tuple else shapes[:1])), is_tuple)
        for index, shape in enumerate(shapes if is_tuple else ()):
            if (element := instructions.get(f"{operation.name}#{index}")) is not None:
                element.result = Result.array(shape)

    def _innermost(self) -> Computation | None:
        """The computation that is open."""
        return next((brace.computation for brace in reversed(self.open) if brace.computation is not None), None)

    def _source_line(self, location: str) -> str:
        """The source line of a location: the innermost file that it names."""
        seen: set[str] = set()
        waiting = [location]
        while waiting:
            text = waiting.pop()
            if text.startswith('"') and (file := _FILE.match(text)) is not None:
                return f"{file.group(1)}:{file.group(2)}"
            named = self.locations.get(text, "") if text.startswith("#") else text
            if text not in seen and named:
                seen.add(text)
                waiting += [inner for inner in reversed(_LOC_PART.findall(named)) if inner != text]
        return ""


@lru_cache(4096)
def read_types(text: str) -> tuple[ArrayShape, ...] | None:
    """The shapes of types with commas between them, in brackets or not; None where one is none.

    >>> [str(shape) for shape in read_types("(tensor<4x8xbf16>, tensor<f32>, tensor<2xcomplex<f32>>)")]
    ['bf16[4,8]', 'f32[]', 'c64[2]']
    """
    shapes = []
    for match in _TYPE.finditer(text):
        tensor_sizes, element, other = match.groups()
        if other:
            if other.startswith(("!", "tuple", "token")):
                shapes.append(ArrayShape("token", ()))
            continue
        sizes = tensor_sizes.split("x")[:-1]
        if any(size == "?" or len(size) > 18 for size in sizes):
            return None
        shapes.append(ArrayShape(_dtype(element), tuple(map(int, sizes))))
    return tuple(shapes) if shapes or "()" in text else None


def _dtype(name: str) -> str:
    """HLO's name of MLIR's element type."""
    if name == "i1":
        return "pred"
    if integer := re.fullmatch(r"(ui|i)(\d+)", name):
        return {"ui": "u", "i": "s"}[integer.group(1)] + integer.group(2)
    if complex_of := re.fullmatch(r"complex<f(\d{1,3})>", name):
        return f"c{2 * int(complex_of.group(1))}"
    return name.lower()


def _sharding_of(text: str) -> str:
    """The sharding in the attributes of an argument or a result; nothing where there is none."""
    if (shardy := _SDY.search(text)) is not None:
        return text[shardy.start(1) : angle(text, shardy.start(1))]
    return xla.group(1).replace('\\"', '"') if (xla := _XLA.search(text)) is not None else ""


def _constraint(name: str, rest: str) -> tuple[str, ...]:
    if name in ("sharding-constraint", "reshard"):
        start = rest.find("<")
        return (rest[start : angle(rest, start)],) if start >= 0 else ()
    if name == "custom-call" or "mhlo.sharding" in rest or "sdy.sharding" in rest:
        if (values := re.search(r"sdy\.sharding\s*=\s*#sdy\.sharding_per_value<\[", rest)) is not None:
            return tuple(angles(rest[values.end() : closing(rest, values.end() - 1)]))
        sharding = _sharding_of(rest)
        return (sharding,) if sharding else ()
    return ()


def _attributes(name: str, rest: str) -> dict[str, str]:
    """What an operation says of itself, under HLO's names."""
    attributes: dict[str, str] = {}
    for key, (of, pattern) in _ATTRIBUTES.items():
        if of in ("", name) and (match := pattern.search(rest)) is not None:
            attributes[key] = match.group(1).strip('"')
    if "use_global_device_ids" in rest:
        attributes["use_global_device_ids"] = "true"
    for side in ("in_shardings", "out_shardings") if name == "manual-computation" else ():
        if (start := re.search(rf"{side}=\[", rest)) is not None:
            stop = closing(rest, start.end() - 1)
            attributes[side] = rest[start.end() : stop - 1] if stop > 0 else ""
    return attributes


def _cut_location(text: str) -> int:
    """Where the location at the end of a line begins."""
    place = text.rfind(" loc(")
    return place if place >= 0 and text.endswith(")") else len(text)


def _location_of(text: str) -> dict[str, str]:
    place = text.rfind("loc(")
    if place < 0:
        return {}
    stop = closing(text, place + 3)
    return {"location": text[place + 4 : stop - 1 if stop > 0 else None]}
