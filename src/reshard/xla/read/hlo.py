"""Reads HLO text, line by line: what `compiled.as_text()` prints and `--xla_dump_to` writes.

HLO text has one instruction per line, so a line that is damaged costs that line and no other.
Operands may be printed with their shapes or without, names with `%` or without.

>>> module = Module("hlo", "", 1)
>>> reader = HloReader(module)
>>> for number, line in enumerate(["ENTRY %main (p: f32[8]) -> f32[8] {", "  %p = f32[8]{0} parameter(0)", "}"], 1):
...     reader.read(line, number)
>>> reader.finish(4)
>>> [(parsed.name, parsed.opcode, str(parsed.shape)) for _, parsed in module.instructions()]
[('p', 'parameter', 'f32[8]')]
"""

from __future__ import annotations

import re
from functools import lru_cache

from reshard.errors import ReshardError
from reshard.notation import parse_mesh
from reshard.xla.read.ir import ArrayShape, Computation, Instruction, Module, Result
from reshard.xla.read.scan import closing, fields, natural, split
from reshard.xla.read.shardings import mesh_texts, parts_of

INSTRUCTION = re.compile(r"\s*(ROOT\s+)?%?([A-Za-z_][^\s=%(){},]*)\s=\s+(?=[(a-z])")
"""How the line of an instruction begins."""
_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([A-Za-z_][^\s=%(){},]*)\s*(?:\(.*)?\{\s*(?:/\*.*)?$")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")
_SHAPE = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\]")
_ARRAY = re.compile(r"[a-z][a-z0-9]*\[[\d,<= ?]*\](?:\{[^{}]*\})?")
_TABLES = {"FileNames", "FunctionNames", "FileLocations", "StackFrames"}
_ROW = re.compile(r"\s*(\d+)\s+(.*)")
_NEEDED = re.compile(
    r"(?:sharding|calls|to_apply|body|condition|branch_computations|true_computation|false_computation|index"
    r"|called_computations|replica_groups|source_target_pairs|channel_id|direction|custom_call_target)="
)
_METADATA = {
    "op_name": re.compile(r'op_name="((?:[^"\\]|\\.)*)"'),
    "source": re.compile(r'source_file="((?:[^"\\]|\\.)*)"(?:\s+source_line=(\d+))?'),
    "location": re.compile(r"stack_frame_id=(\d+)"),
}


class HloReader:
    """Takes the lines of one module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.open: Computation | None = None
        """The computation that the next instruction stands in."""
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
            self.open = None
        elif (head := INSTRUCTION.match(line)) is not None:
            self._instruction(line, number, head)
        elif text.endswith("{") and (begun := _COMPUTATION.match(text)) is not None:
            self._begin(begun.group(2), number, is_entry=bool(begun.group(1)))
        else:
            self.module.note(number, "the line is no part of HLO text", line)

    def finish(self, number: int) -> None:
        """The text has ended, at the line of that number."""
        module = self.module
        module.lines = number - module.line
        if self.open is not None:
            module.stopped = f"the text ends within computation {self.open.name}"
        elif module.entry is None:
            module.stopped = "the text ends before an ENTRY computation"
        module.locations |= _locations(self.rows)

    def _begin(self, name: str, number: int, *, is_entry: bool) -> Computation:
        if self.open is not None:
            self.module.note(number, f"computation {self.open.name} is not closed", name)
        if name in self.module.computations:
            self.module.note(number, f"computation {name} stands a second time", name)
            name = f"{name}@{number}"
        self.open = computation = self.module.computations[name] = Computation(name, number, is_entry)
        return computation

    def _instruction(self, line: str, number: int, head: re.Match[str]) -> None:
        computation = self.open
        if computation is None:
            computation = self._begin("", number, is_entry=False)
            self.module.note(number, "the instruction stands in no computation", line)
        instruction = _read_instruction(line, number, head)
        if isinstance(instruction, str):
            self.module.note(number, instruction, line)
            return
        if instruction.name in computation.instructions:
            self.module.note(number, f"{instruction.name} stands a second time", line)
            instruction.name = f"{instruction.name}@{number}"
        computation.instructions[instruction.name] = instruction


def _read_header(module: Module, text: str, number: int) -> None:
    attributes = fields(text.removeprefix("HloModule").strip())
    module.name = next(iter(attributes), "")
    module.is_scheduled = attributes.get("is_scheduled") == "true"
    for key, name in (("partitions", "num_partitions"), ("replicas", "replica_count")):
        value = attributes.get(name, "1")
        if 0 < (count := natural(value) or 0) < 10**9:
            setattr(module, key, count)
        else:
            module.note(number, f"{name} is no number of at least 1", value)
    for name, said in mesh_texts(attributes.get("frontend_attributes", "")):
        try:
            module.meshes[name] = parse_mesh(said[said.find("<") : said.find(">") + 1])
        except ReshardError:
            module.note(number, "a mesh cannot be read", said)


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
        elements = [read_result(element) for element in split(text[1:-1])]
        if None in elements:
            return None
        return Result(tuple(element.shapes for element in elements if element is not None), True)
    shape = _SHAPE.match(text)
    if shape is None or _ARRAY.fullmatch(text) is None:
        return None
    sizes = [size.strip().removeprefix("<=") for size in shape.group(2).split(",")] if shape.group(2).strip() else []
    if not all(size.isdigit() and len(size) < 19 for size in sizes):
        return None
    return Result.array(ArrayShape(shape.group(1), tuple(map(int, sizes))))


def _read_instruction(line: str, number: int, head: re.Match[str]) -> Instruction | str:
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
    printed: tuple[ArrayShape, ...] = ()
    if name == "parameter":
        attributes["index"] = inside.strip() if inside.strip().isdigit() and len(inside) < 9 else "0"
    elif name == "constant":
        attributes["value"] = inside if len(inside) < 32 else ""
    elif inside:
        operands, printed = _operands(inside)
    if "replica_groups" in attributes and "device_ids" in attributes:
        attributes["replica_groups"] += f", device_ids={attributes['device_ids']}"
    if (start := rest.find("metadata=")) >= 0:
        attributes |= metadata_of(rest[start:])
    return Instruction(
        head.group(2),
        name,
        result,
        operands,
        number,
        attributes,
        parts_of(attributes.get("sharding", "")),
        bool(head.group(1)),
        printed,
    )


def _operands(inside: str) -> tuple[tuple[str, ...], tuple[ArrayShape, ...]]:
    """Their names, and their shapes where they are printed."""
    if "[" not in inside and "(" not in inside and '"' not in inside:
        if "/*" not in inside:
            return tuple([operand.strip().lstrip("%") for operand in inside.split(",")]), ()
        return tuple(operand.lstrip("%") for operand in split(inside)), ()
    names: list[str] = []
    shapes: list[ArrayShape] = []
    for operand in split(inside):
        shape, _, name = operand.rpartition(" ")
        names.append(name.lstrip("%"))
        result = read_result(shape) if shape else None
        shapes += result.shapes if result else ()
    return tuple(names), tuple(shapes)


def metadata_of(text: str) -> dict[str, str]:
    """What an instruction's metadata tell of the program: `op_name`, `source`, and `location`, a stack frame.

    >>> metadata_of('metadata={op_name="jit(f)/add" source_file="f.py" source_line=3}')
    {'op_name': 'jit(f)/add', 'source': 'f.py:3'}
    """
    matches = {key: match for key, pattern in _METADATA.items() if (match := pattern.search(text)) is not None}
    return {key: ":".join(filter(None, match.groups())) for key, match in matches.items()}


def _locations(rows: dict[str, dict[str, str]]) -> dict[str, str]:
    """The source line of every stack frame."""

    def number(table: str, row: str, key: str) -> str:
        match = re.search(rf"{key}=(\d+)", rows.get(table, {}).get(row, ""))
        return match.group(1) if match else ""

    result = {}
    for frame in rows.get("StackFrames", {}):
        place = number("StackFrames", frame, "file_location_id")
        file = rows.get("FileNames", {}).get(number("FileLocations", place, "file_name_id"), "").strip('"')
        if file:
            result[frame] = f"{file}:{number('FileLocations', place, 'line')}"
    return result
