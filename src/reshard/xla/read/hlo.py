"""Reads HLO text, line by line: what `compiled.as_text()` prints and `--xla_dump_to` writes.

HLO text has one instruction per line, so a line that is damaged costs that line and no other.
Operands may be printed with their shapes or without, names with `%` or without.

>>> module = Module("hlo", "", 1)
>>> reader = HloReader(module)
>>> for number, line in enumerate(["ENTRY %main (p: f32[8]) -> f32[8] {", "  %p = f32[8]{0} parameter(0)", "}"], 1):
...     reader.read(line, number)
>>> reader.finish(4)
>>> [(one.name, one.opcode, str(one.shape)) for _, one in module.instructions()]
[('p', 'parameter', 'f32[8]')]
"""

from __future__ import annotations

import re
from functools import lru_cache

from reshard.errors import ReshardError
from reshard.notation import parse_mesh
from reshard.xla.read.ir import Computation, Instruction, Module, Note, Result, Shape
from reshard.xla.read.scan import closing, excerpt, fields, inner, split

INSTRUCTION = re.compile(r"\s*(ROOT\s+)?%?([A-Za-z_][^\s=%(){},]*)\s=\s+(?=[(a-z])")
"""How the line of an instruction begins."""
_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([A-Za-z_][^\s=%(){},]*)\s*(?:\(.*)?\{\s*(?:/\*.*)?$")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")
_SHAPE = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\]")
_ARRAY = re.compile(r"[a-z][a-z0-9]*\[[\d,<= ?]*\](?:\{[^{}]*\})?")
_TABLES = {"FileNames", "FunctionNames", "FileLocations", "StackFrames"}
_ROW = re.compile(r"\s*(\d+)\s+(.*)")
_MESHES = re.compile(r"([A-Za-z_][\w.$]*|\"[^\"]*\")\s*=\s*#sdy\.mesh")
_NEEDED = re.compile(
    r"(?:sharding|calls|to_apply|body|condition|branch_computations|true_computation|false_computation|index"
    r"|called_computations|replica_groups|source_target_pairs|channel_id|direction|custom_call_target)="
)
_SOURCE = re.compile(r'source_file="((?:[^"\\]|\\.)*)"(?:\s+source_line=(\d+))?')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')


class HloReader:
    """Takes the lines of one module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.here: Computation | None = None
        self.table: str = ""
        self.rows: dict[str, dict[str, str]] = {}

    def read(self, line: str, number: int) -> None:
        """One line, with its number in the text."""
        text = line.strip()
        if text.startswith("HloModule"):
            _read_header(self.module, text, number)
        elif not text or text.startswith(("//", "#")):
            self.table = self.table if text else ""
        elif text in _TABLES:
            self.table = text
        elif self.table and (row := _ROW.fullmatch(text)):
            self.rows.setdefault(self.table, {})[row.group(1)] = row.group(2)
        elif text.startswith("}"):
            self.here = None
        elif (found := INSTRUCTION.match(line)) is not None:
            self._instruction(line, number, found)
        elif text.endswith("{") and (begun := _COMPUTATION.match(text)) is not None:
            self._begin(begun.group(2), number, is_entry=bool(begun.group(1)))
        else:
            self._note(number, "the line is no part of HLO text", line)

    def finish(self, number: int) -> None:
        """The text has ended, at the line of that number."""
        module = self.module
        module.lines = number - module.line
        if self.here is not None:
            module.stopped = f"the text ends within computation {self.here.name}"
        elif module.entry is None:
            module.stopped = "the text ends before an ENTRY computation"
        module.locations |= _locations(self.rows)

    def _begin(self, name: str, number: int, *, is_entry: bool) -> None:
        if self.here is not None:
            self._note(number, f"computation {self.here.name} is not closed", name)
        if name in self.module.computations:
            self._note(number, f"computation {name} stands a second time", name)
            name = f"{name}@{number}"
        self.here = self.module.computations[name] = Computation(name, number, is_entry)

    def _instruction(self, line: str, number: int, head: re.Match[str]) -> None:
        if self.here is None:
            self._begin("", number, is_entry=False)
            self._note(number, "the instruction stands in no computation", line)
        made = _made(line, number, head)
        if isinstance(made, str):
            self._note(number, made, line)
            return
        here = self.here
        if here is None:
            return
        if made.name in here.instructions:
            self._note(number, f"{made.name} stands a second time", line)
            made.name = f"{made.name}@{number}"
        here.instructions[made.name] = made

    def _note(self, number: int, problem: str, line: str) -> None:
        self.module.notes.append(Note(number, problem, excerpt(line)))


def _read_header(module: Module, text: str, number: int) -> None:
    parts = fields(text.removeprefix("HloModule").strip())
    module.name = next(iter(parts), "")
    module.is_scheduled = parts.get("is_scheduled") == "true"
    for key, name in (("partitions", "num_partitions"), ("replicas", "replica_count")):
        if (value := parts.get(name, "1")).isdigit() and 0 < int(value[:10]) < 10**9:
            setattr(module, key, int(value))
        else:
            module.notes.append(Note(number, f"{name} is no number of at least 1", excerpt(value)))
    meshes = parts.get("frontend_attributes", "")
    for found in _MESHES.finditer(meshes):
        stop = closing(meshes, meshes.find("<", found.end())) if "<" in meshes[found.end() :] else -1
        end = meshes.find(">", stop) + 1 if stop >= 0 else 0
        text = meshes[found.end() : end or None].replace('\\"', '"')
        try:
            module.meshes[found.group(1).strip('"')] = parse_mesh(text[text.find("<") : text.find(">") + 1])
        except ReshardError:
            module.notes.append(Note(number, "a mesh cannot be read", excerpt(text)))


@lru_cache(1024)
def read_result(text: str) -> Result | None:
    """What the text of a shape says; None where it is none.

    >>> [str(shape) for shape in read_result("((f32[8]{0}), f32[2,4]{1,0:T(8,128)}, u32[])").shapes]
    ['f32[8]', 'f32[2,4]', 'u32[]']
    """
    text = text.strip()
    if text.startswith("("):
        if not text.endswith(")"):
            return None
        parts = [read_result(part) for part in split(text[1:-1])]
        if any(part is None for part in parts):
            return None
        return Result(tuple(part.shapes for part in parts if part is not None), True)
    found = _ARRAY.fullmatch(text)
    shape = _SHAPE.match(text)
    if found is None or shape is None:
        return None
    sizes = [size.strip().removeprefix("<=") for size in shape.group(2).split(",")] if shape.group(2).strip() else []
    if not all(size.isdigit() and len(size) < 19 for size in sizes):
        return None
    return Result.array(Shape(shape.group(1), tuple(map(int, sizes))))


def _made(line: str, number: int, head: re.Match[str]) -> Instruction | str:
    """The instruction of a line, or why there is none."""
    start = head.end()
    stop = closing(line, start) if line[start] == "(" else line.find(" ", start)
    if stop < 0:
        return "the line is cut within a shape"
    result = read_result(line[start:stop])
    if result is None:
        return "the shape cannot be read"
    opcode = _OPCODE.match(line, stop)
    if opcode is None:
        return "no opcode follows the shape"
    end = closing(line, opcode.end() - 1)
    if end < 0:
        return "the line is cut within its operands"
    if line[end - 1] != ")":
        return "the brackets of the operands do not match"
    name = opcode.group(1)
    inside, rest = line[opcode.end() : end - 1], line[end:]
    attributes = fields(rest.lstrip(" ,")) if _NEEDED.search(rest) else {}
    operands: tuple[str, ...] = ()
    printed: tuple[Shape, ...] = ()
    if name == "parameter":
        attributes["index"] = inside.strip() if inside.strip().isdigit() and len(inside) < 9 else "0"
    elif name == "constant":
        attributes["value"] = inside if len(inside) < 32 else ""
    elif inside:
        operands, printed = _operands(inside)
    _add_origin(attributes, rest)
    return Instruction(
        head.group(2),
        name,
        result,
        operands,
        number,
        attributes,
        _shardings(attributes.get("sharding", "")),
        bool(head.group(1)),
        printed,
    )


def _operands(inside: str) -> tuple[tuple[str, ...], tuple[Shape, ...]]:
    """Their names, and their shapes where they are printed."""
    if "[" not in inside and "(" not in inside and '"' not in inside:
        if "/*" not in inside:
            return tuple([part.strip().lstrip("%") for part in inside.split(",")]), ()
        return tuple(part.lstrip("%") for part in split(inside)), ()
    names: list[str] = []
    shapes: list[Shape] = []
    for part in split(inside):
        shape, _, name = part.rpartition(" ")
        names.append(name.lstrip("%"))
        found = read_result(shape) if shape else None
        shapes += found.shapes if found else ()
    return tuple(names), tuple(shapes)


def _add_origin(attributes: dict[str, str], rest: str) -> None:
    if "replica_groups" in attributes and "device_ids" in attributes:
        attributes["replica_groups"] += f", device_ids={attributes['device_ids']}"
    at = rest.find("metadata=")
    if at < 0:
        return
    if (frame := _FRAME.search(rest, at)) is not None:
        attributes["location"] = frame.group(1)
    elif (source := _SOURCE.search(rest, at)) is not None:
        attributes["source"] = ":".join(part for part in source.groups() if part)
    if (op := _OP_NAME.search(rest, at)) is not None:
        attributes["op_name"] = op.group(1)


def _shardings(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    return tuple(split(inner(text))) if re.match(r"\{\s*\{", text) else (text,)


def _locations(rows: dict[str, dict[str, str]]) -> dict[str, str]:
    """The source line of every stack frame."""

    def number(table: str, row: str, key: str) -> str:
        found = re.search(rf"{key}=(\d+)", rows.get(table, {}).get(row, ""))
        return found.group(1) if found else ""

    result = {}
    for frame in rows.get("StackFrames", {}):
        place = number("StackFrames", frame, "file_location_id")
        file = rows.get("FileNames", {}).get(number("FileLocations", place, "file_name_id"), "").strip('"')
        if file:
            result[frame] = f"{file}:{number('FileLocations', place, 'line')}"
    return result
