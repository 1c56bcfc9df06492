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
>>> [(one.opcode, *one.shardings) for _, one in module.instructions()]
[('parameter', '<@m, [{"x"}]>'), ('sharding-constraint', '<@m, [{}]>'), ('return',)]
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

from reshard.errors import ReshardError
from reshard.notation import parse_mesh
from reshard.xla.read.ir import Computation, Instruction, Module, Note, Result, Shape
from reshard.xla.read.scan import angle, angles, closing, excerpt, split

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
        if (found := _LOC_LINE.fullmatch(line)) is not None:
            self.locations[found.group(1)] = found.group(2)
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
            self._note(number, "the line is no operation that can be read", line)

    def finish(self, number: int) -> None:
        """The text has ended, at the line of that number."""
        self.module.lines = number - self.module.line
        if self.open:
            inner = self.open[-1]
            self.module.stopped = f"the text ends within {inner.what}"
        elif not self.was_closed:
            self.module.stopped = "the text ends before a function"
        used = {one.attributes["location"] for _, one in self.module.instructions() if "location" in one.attributes}
        for place in used:
            self.module.locations[place] = self._located(place)

    # What stands around operations.

    def _module(self, text: str) -> None:
        found = re.match(r"(?:builtin\.)?module\s+@(\"[^\"]*\"|[\w.$\-]+)", text)
        self.module.name = found.group(1).strip('"') if found else self.module.name
        for kind, count in _PARTITIONS.findall(text):
            setattr(self.module, kind, max(int(count), 1))
        if text.endswith("{"):
            self.open.append(_Open(None, f"module {self.module.name}"))

    def _mesh(self, text: str, number: int) -> None:
        found = _MESH.match(text)
        try:
            if found is None:
                raise ReshardError("syntax", "no mesh")
            start = max(text.find("<", found.end(1)), 0)
            self.module.meshes[found.group(1).strip('"')] = parse_mesh(text[start : angle(text, start)])
        except ReshardError:
            self._note(number, "a mesh cannot be read", text)

    def _function(self, text: str, number: int, found: re.Match[str]) -> None:
        name = found.group(2).strip('"')
        made = self._computation(name, number, None)
        made.is_entry = name == "main"
        stop = closing(text, found.end() - 1)
        if stop < 0:
            self._note(number, "the line is cut within a function's arguments", text)
            return
        for index, part in enumerate(split(text[found.end() : stop - 1])):
            self._parameter(made, part, index, number)
        arrow = text.find("->", stop)
        if arrow >= 0:
            made.results = tuple(_sharding_of(part) for part in _result_texts(text[arrow + 2 :]))
        if text.endswith("{"):
            self.open.append(_Open(made, f"function @{name}"))

    def _parameter(self, here: Computation, text: str, index: int, number: int) -> None:
        name, _, kind = text.partition(":")
        result = read_types(kind)
        if not name.strip().startswith("%") or not result:
            self._note(number, "an argument cannot be read", text)
            return
        attributes = {"index": str(index), **_location_of(kind)}
        sharding = _sharding_of(kind)
        label = name.strip().lstrip("%")
        here.instructions[label] = Instruction(
            label, "parameter", Result.array(result[0]), (), number, attributes, (sharding,) if sharding else ()
        )

    def _computation(self, name: str, number: int, parent: Computation | None) -> Computation:
        label = name
        while label in self.module.computations:
            label += "'"
        made = self.module.computations[label] = Computation(label, number, parent=parent)
        return made

    def _region(self, role: str, number: int, holder: _Open) -> None:
        owner = holder.owner
        parent = self._here()
        made = self._computation(f"{role} of line {owner.line if owner else number}", number, parent)
        if owner is not None:
            attributes = dict(owner.attributes)
            while role in attributes:
                role += "'"
            attributes[role] = made.name
            owner.attributes = attributes
            for index, name in enumerate(holder.bound):
                shape = owner.result.parts[index][0] if index < len(owner.result.parts) else Shape("token", ())
                made.instructions[name] = Instruction(
                    name, "parameter", Result.array(shape), (), number, {"index": str(index)}
                )
        self.open.append(_Open(made, f"the region of line {number}", owner, holder.bound))

    def _close(self, text: str, number: int) -> None:
        if not self.open:
            self._note(number, "a brace closes that was never opened", text)
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
        here = self._here()
        start = text.find("(")
        stop = closing(text, start) if start >= 0 else -1
        if here is not None and stop > 0:
            for index, part in enumerate(split(text[start + 1 : stop - 1])):
                self._parameter(here, part, index, number)

    # Operations.

    def _operation(self, line: str, number: int, head: re.Match[str]) -> None:
        here = self._here()
        if here is None:
            here = self._computation("", number, None)
            self.open.append(_Open(here, "a function whose beginning is not there"))
            self._note(number, "the operation stands in no function", line)
        dialect, _, name = head.group(2).replace("_", "-").rpartition(".")
        if dialect == "sdy" and name.startswith(("all-", "collective-", "reduce-", "sharded-", "replicated-")):
            name = "reshard"  # Shardy's own collectives say what comes out and not who takes part
        rest = line[head.end() :].rstrip()
        opens = rest.endswith("{")
        rest = rest[: _cut_location(rest)]
        attributes = _location_of(line)
        attributes |= _attributes(name, rest)
        operands = tuple(found.lstrip("%") for found in _VALUE.findall(_before_type(rest)))
        bound: list[str] = []
        if name == "while":
            pairs = _WHILE_ARGUMENT.findall(rest)
            bound, operands = [pair[0].lstrip("%") for pair in pairs], tuple(pair[1].lstrip("%") for pair in pairs)
        elif name == "manual-computation":
            stop = closing(rest, rest.find("(")) if "(" in rest else 0
            operands = tuple(found.lstrip("%") for found in _VALUE.findall(rest[: max(stop, 0)]))
        made = Instruction("", name, Result((), False), operands, number, attributes, _constraint(name, rest))
        if name == "return":
            made.is_root, made.name = True, f"return of line {number}"
            here.instructions[made.name] = made
            return
        self._name(here, made, head.group(1) or "", number)
        if opens:
            self._open_region(made, bound, rest, number)
            return
        self._type(made, rest, number)
        if name == "while":
            self.waiting = _Open(None, "a while", made, bound)

    def _open_region(self, made: Instruction, bound: list[str], rest: str, number: int) -> None:
        if made.opcode == "manual-computation":
            where = rest.rfind("(%")
            stop = closing(rest, where) if where >= 0 else -1
            self._region("calls", number, _Open(None, "", made))
            for index, part in enumerate(split(rest[where + 1 : stop - 1]) if stop > 0 else []):
                self._parameter(self.module.computations[made.attributes["calls"]], part, index, number)
        else:
            self._region("to_apply" if made.opcode not in ("case", "if") else "branch", number, _Open(None, "", made))

    def _name(self, here: Computation, made: Instruction, text: str, number: int) -> None:
        """Give an operation the names of its results."""
        names = [part.strip().lstrip("%") for part in text.split(",")] if text else []
        label, _, count = names[0].partition(":") if names else (f"line {number}", "", "")
        made.name = label
        here.instructions[label] = made
        many = int(count) if count.isdigit() and len(count) < 6 else 0
        for index in range(many):
            part = f"{label}#{index}"
            here.instructions[part] = Instruction(
                part, "get-tuple-element", Result((), False), (label,), number, {"index": str(index)}
            )

    def _type(self, made: Instruction, text: str, number: int) -> None:
        """Give an operation the shapes of its results, from the type at the end of its text."""
        text = text[: _cut_location(text)]
        place = text.rfind(" : ")
        found = text[place + 3 :] if place >= 0 else ""
        head, arrow, tail = found.partition("->")
        shapes = read_types(tail if arrow else head)
        if shapes is None or (place < 0 and made.name and not made.name.startswith("line ")):
            self._note(number, f"the type of {made.opcode} cannot be read", text)
            shapes = ()
        if arrow:
            made.printed = read_types(head) or ()
        here = self._here()
        parts = [f"{made.name}#{index}" for index in range(len(shapes))]
        is_tuple = here is not None and parts[:1] != [] and parts[0] in here.instructions
        made.result = Result(tuple((shape,) for shape in (shapes if is_tuple else shapes[:1])), is_tuple)
        for part, shape in zip(parts if is_tuple and here is not None else [], shapes, strict=False):
            if here is not None and part in here.instructions:
                here.instructions[part].result = Result.array(shape)

    def _here(self) -> Computation | None:
        return next((one.computation for one in reversed(self.open) if one.computation is not None), None)

    def _located(self, text: str) -> str:
        """The source line of a location: the innermost file that it names."""
        seen: set[str] = set()
        waiting = [text]
        while waiting:
            part = waiting.pop()
            if part.startswith('"') and (file := _FILE.match(part)) is not None:
                return f"{file.group(1)}:{file.group(2)}"
            named = self.locations.get(part, "") if part.startswith("#") else part
            if part not in seen and named:
                seen.add(part)
                waiting += [found for found in reversed(_LOC_PART.findall(named)) if found != part]
        return ""

    def _note(self, number: int, problem: str, line: str) -> None:
        self.module.notes.append(Note(number, problem, excerpt(line)))


@lru_cache(4096)
def read_types(text: str) -> tuple[Shape, ...] | None:
    """The shapes of types with commas between them, in brackets or not; None where one is none.

    >>> [str(shape) for shape in read_types("(tensor<4x8xbf16>, tensor<f32>, tensor<2xcomplex<f32>>)")]
    ['bf16[4,8]', 'f32[]', 'c64[2]']
    """
    shapes = []
    for found in _TYPE.finditer(text):
        if found.group(3):
            if found.group(3).startswith(("!", "tuple", "token")):
                shapes.append(Shape("token", ()))
            continue
        sizes = found.group(1).split("x")[:-1]
        if any(size == "?" or len(size) > 18 for size in sizes):
            return None
        shapes.append(Shape(_dtype(found.group(2)), tuple(map(int, sizes))))
    return tuple(shapes) if shapes or "()" in text else None


def _dtype(name: str) -> str:
    """HLO's name of MLIR's element type."""
    if name == "i1":
        return "pred"
    if found := re.fullmatch(r"(ui|i)(\d+)", name):
        return {"ui": "u", "i": "s"}[found.group(1)] + found.group(2)
    if found := re.fullmatch(r"complex<f(\d{1,3})>", name):
        return f"c{2 * int(found.group(1))}"
    return name.lower()


def _sharding_of(text: str) -> str:
    """The sharding in the attributes of an argument or a result; nothing where there is none."""
    if (found := _SDY.search(text)) is not None:
        return text[found.start(1) : angle(text, found.start(1))]
    return found.group(1).replace('\\"', '"') if (found := _XLA.search(text)) is not None else ""


def _constraint(name: str, rest: str) -> tuple[str, ...]:
    if name in ("sharding-constraint", "reshard"):
        start = rest.find("<")
        return (rest[start : angle(rest, start)],) if start >= 0 else ()
    if name == "custom-call" or "mhlo.sharding" in rest or "sdy.sharding" in rest:
        if (values := re.search(r"sdy\.sharding\s*=\s*#sdy\.sharding_per_value<\[", rest)) is not None:
            return tuple(angles(rest[values.end() : closing(rest, values.end() - 1)]))
        found = _sharding_of(rest)
        return (found,) if found else ()
    return ()


def _attributes(name: str, rest: str) -> dict[str, str]:
    result: dict[str, str] = {}
    for key, kind in (("replica_groups", "replica_groups"), ("source_target_pairs", "source_target_pairs")):
        if (found := re.search(rf"{kind}\s*=\s*(dense<.*?>\s*:\s*tensor<[^<>]*>)", rest)) is not None:
            result[key] = found.group(1)
    if (found := re.search(r"channel_handle<handle = (\d+)", rest)) is not None:
        result["channel_id"] = found.group(1)
    if "use_global_device_ids" in rest:
        result["use_global_device_ids"] = "true"
    if name == "custom-call" and (found := re.search(r"@([\w.$]+)", rest)) is not None:
        result["custom_call_target"] = found.group(1)
    if name == "call" and (found := re.search(r"@(\"[^\"]*\"|[\w.$\-]+)", rest)) is not None:
        result["to_apply"] = found.group(1).strip('"')
    if name == "compare" and (found := re.match(r"\s*([A-Z]{2})\b", rest)) is not None:
        result["direction"] = found.group(1)
    if name == "constant" and (found := re.search(r"dense<([^<>\"]{1,31})>", rest)) is not None:
        result["value"] = found.group(1)
    for side in ("in_shardings", "out_shardings") if name == "manual-computation" else ():
        if (found := re.search(rf"{side}=\[", rest)) is not None:
            stop = closing(rest, found.end() - 1)
            result[side] = rest[found.end() : stop - 1] if stop > 0 else ""
    return result


def _before_type(rest: str) -> str:
    place = rest.rfind(" : ")
    return rest if place < 0 else rest[:place]


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


def _result_texts(text: str) -> list[str]:
    text = text.strip()
    if text.startswith("("):
        stop = closing(text, 0)
        return split(text[1 : stop - 1]) if stop > 0 else []
    return [text.removesuffix("{").strip()]
