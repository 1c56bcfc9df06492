r"""The text form of a program: its meshes, then one value per line, and blocks with what stands in them in braces.

    mesh     sdy.mesh @name = <["axis"=size, ...]>
    value    name = operation "pattern" (operands) : dtype[sizes] {role=..., attribute=...} <@name, [...]>
    block    loop 12 { ... }    while { ... }    choice { branch { ... } branch { ... } ... }

The pattern, the operands, the braces and the sharding of a value stand where there are some; the dtype and the sizes
may be left out where they follow.
`{replicated=b, shifted="a c", selected=v}` name labels, `{opaque}` says that no engine need know the operation, and
`{tied=a}` that a value is sharded as another is; whatever else stands in braces is an attribute.
The ends of a block stand in it, without a pattern; `loop 12 reverse unroll=2` has all that a loop may say.
Lines may stand in any order; `//` begins a comment.
A sharding is the last thing on its line, and written in Shardy's notation; JAX's specs and torch's placements,
`P("x", None)` and `[Shard(0), Replicate()]`, are read too.

>>> from reshard.propagation.program import Program
>>> program = Program.parse('''
... sdy.mesh @mesh = <["x"=2]>
... out = output (last)
... loop 3 {
...   b = tanh "ij->ij" (c)
...   last = last (b, c)
...   c = carry (a)
... }
... a = input : float32[4, 6] <@mesh, [{"x"}, {?}]>
... ''')
>>> print(program)
sdy.mesh @mesh = <["x"=2]>
a = input : float32[4, 6] <@mesh, [{"x"}, {?}]>
loop 3 {
  c = carry (a) : float32[4, 6]
  b = tanh "ij->ij" (c) : float32[4, 6]
  last = last (b, c) : float32[4, 6]
}
out = output (last) : float32[4, 6]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation import parse_sharding
from reshard.notation.grammar import Form, checked_text, number, parse, placed, rule
from reshard.notation.shardy import read_mesh, read_sharding
from reshard.operations.blocks import Block, Choice, Loop
from reshard.operations.kinds import ENTERING, LEAVING
from reshard.operations.operation import Attribute, Operation, Value
from reshard.operations.pattern import Pattern
from reshard.propagation.builder import Builder, NewValue
from reshard.propagation.graph import Graph, bodies
from reshard.propagation.open_blocks import OpenChoice, add_end, open_choice, open_loop
from reshard.sharding import Sharding

ROLES = ("replicated", "shifted", "selected")
OWN = (*ROLES, "opaque", "tied")
"""What stands in braces and is no attribute, beside the sizes of labels."""
_MESH = re.compile(r"^[ \t]*sdy\.mesh\b[^\r\n]*", re.MULTILINE)


@dataclass(eq=False)
class Line:
    """One value, as its line has it."""

    name: str
    operation: str
    start: int
    """Where the line begins in the text."""
    pattern: str | None = None
    operands: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    fields: dict[str, Attribute] = field(default_factory=dict)
    sharding: tuple[str, int] | None = None
    """Its text and where that begins."""

    @property
    def lines(self) -> list[Line]:
        """Itself."""
        return [self]


@dataclass(eq=False)
class Braces:
    """A block, as the text has it."""

    word: str
    start: int
    """Where it begins in the text."""
    trip_count: int | None
    options: dict[str, int]
    items: list[Line | Braces]

    @property
    def lines(self) -> list[Line]:
        """All that stand in it, and in blocks within."""
        return [line for item in self.items for line in item.lines]


class _ProgramBuilder:
    """What each rule of the grammar stands for."""

    @rule
    def signed(self, parts: list[Any]) -> int | float:
        text = str(parts[0])
        if not re.fullmatch(r"[-+]?[0-9]+", text):
            return float(text)
        return int(text) if len(text) <= 20 else number(parts[0])  # which refuses it

    @rule
    def value(self, parts: list[Any]) -> Any:
        if len(parts) == 1 and isinstance(parts[0], str):
            return str(parts[0]).strip('"')
        return parts[0]

    @rule
    def numbers(self, parts: list[Any]) -> Attribute:
        return tuple(part for part in parts if part is not None)

    @rule
    def field(self, parts: list[Any]) -> tuple[str, Any]:
        return str(parts[0]), parts[1]

    @rule
    def flag(self, parts: list[Any]) -> tuple[str, bool]:
        return str(parts[0]), True

    @rule
    def roles(self, parts: list[Any]) -> tuple[str, Any]:
        return "fields", dict(parts)

    @rule
    def type(self, parts: list[Any]) -> tuple[str, Any]:
        return "type", (str(parts[0]), tuple(number(part) for part in parts[1:] if part is not None))

    @rule
    def operands(self, parts: list[Any]) -> tuple[str, Any]:
        return "operands", tuple(str(part) for part in parts if part is not None)

    @rule
    def pattern(self, parts: list[Any]) -> tuple[str, Any]:
        return "pattern", str(parts[0])[1:-1]

    @rule
    def line(self, parts: list[Any]) -> Line:
        line = Line(str(parts[0]), str(parts[1]), parts[0].start_pos)
        for part in parts[2:]:
            if not isinstance(part, tuple):
                line.sharding = str(part), part.start_pos
            elif part[0] == "type":
                line.dtype, line.shape = part[1]
            else:
                setattr(line, part[0], part[1])
        return line

    @rule
    def option(self, parts: list[Any]) -> tuple[str, int]:
        return str(parts[0]), 1 if len(parts) == 1 else number(parts[1])

    @rule
    def block(self, parts: list[Any]) -> Braces:
        word, count, *rest = parts
        options: dict[str, int] = dict(part for part in rest if isinstance(part, tuple))
        items = [part for part in rest if not isinstance(part, tuple)]
        return Braces(str(word), word.start_pos, None if count is None else number(count), options, items)

    @rule
    def program(self, parts: list[Line | Braces]) -> list[Line | Braces]:
        return parts


FORM = Form(
    name="program",
    starts=("program",),
    words={
        "NAME": "a name",
        "VALUE": "the name of a value",
        "BLOCK": "a block such as `loop 4 {`",
        "STRING": "a text in double quotes",
        "NUMBER": "a size",
        "SIGNED": "a number",
        "SHARDING": "a sharding such as `<@mesh, [{}]>` or `P(None)`",
    },
    builder=_ProgramBuilder(),
)


def read_meshes(text: str) -> tuple[dict[str, Mesh], str]:
    """The meshes that a text defines, and the text with blanks in their place.

    Raises:
        ReshardError: `syntax` where there is none, or a name is defined twice; and as `parse_mesh`.
    """
    meshes: dict[str, Mesh] = {}
    for match in _MESH.finditer(checked_text(text)):
        name, mesh = read_mesh(match.group(), whole=text, offset=match.start())
        if name is None or name in meshes:
            raise placed(text, match.start(), f"expected a mesh with a name of its own, such as @mesh_{len(meshes)}")
        meshes[name] = mesh
    if not meshes:
        raise ReshardError("syntax", 'a program must define a mesh, such as `sdy.mesh @mesh = <["x"=2]>`')
    return meshes, _MESH.sub(lambda match: " " * len(match.group()), text)


def read(text: str, program: Builder) -> None:
    """Add the values of a text to a program that has the meshes of the text.

    Raises:
        ReshardError: `syntax`, `bad-program` where a value is made twice, is not made, or is made of itself; and
            what operations and shardings raise, with the line and the value.
    """
    items: list[Line | Braces] = parse(FORM, "program", read_meshes(text)[1], whole=text)
    names: set[str] = set()
    for line in (line for item in items for line in item.lines):
        if line.name in names:
            raise placed(text, line.start, f"value {line.name} is made twice", code="bad-program")
        names.add(line.name)
    for line in (line for item in items for line in item.lines):
        for name in line.operands:
            if name not in names:
                problem = f"value {line.name} is made of {name}, which is not made"
                raise placed(text, line.start, problem, code="bad-program")
    _read(text, program, items, None)
    for line in (line for item in items for line in item.lines):
        if "tied" in line.fields:
            try:
                program.tie(program.value(line.name), program.value(str(line.fields["tied"])))
            except ReshardError as error:
                raise placed(text, line.start, str(error), code=error.code) from None


def _read(text: str, program: Builder, items: Sequence[Line | Braces], choice: OpenChoice | None) -> None:
    """Add what stands in a block; in a choice, given as it stands open."""
    for item in _in_order(items, text):
        if isinstance(item, Braces):
            with _opened(text, program, item, choice) as block:
                _read(text, program, item.items, block if isinstance(block, OpenChoice) else None)
            continue
        try:
            value = _add(program, item)
            if item.sharding is not None:
                program.annotate(value, _sharding_of(value, *item.sharding, text, program.meshes))
        except ReshardError as error:
            number = text.count("\n", 0, item.start) + 1
            told = str(error).removeprefix(f"value {item.name}: ")
            raise ReshardError(error.code, f"line {number}, value {item.name}: {told}") from None


def _sharding_of(value: Value, said: str, start: int, text: str, meshes: Mapping[str, Mesh]) -> Sharding:
    """The sharding of a value as its line says it."""
    if said.startswith("<"):
        return read_sharding(said, meshes, whole=text, offset=start)
    return parse_sharding(said.partition("//")[0], meshes, len(value.shape))


def _opened(text: str, program: Builder, braces: Braces, choice: OpenChoice | None) -> AbstractContextManager[object]:
    """The block of some braces.

    Raises:
        ReshardError: `syntax` where there is none such.
    """
    word, count, options = braces.word, braces.trip_count, braces.options
    if (word, count is None) in (("loop", False), ("while", True)) and options.keys() <= {"reverse", "unroll"}:
        return open_loop(program, count, bool(options.get("reverse", 0)), options.get("unroll", 1))
    if count is None and not options:
        if word == "choice":
            return open_choice(program)
        if word == "branch" and choice is not None:
            return choice.branch()
    forms = "`loop 4 {`, `while {`, `choice {` or in this `branch {`"
    raise placed(text, braces.start, f"expected {forms}")


def _in_order(items: Sequence[Line | Braces], text: str) -> list[Line | Braces]:
    """What stands in a block, each after what it is made of and else as it stands.

    Raises:
        ReshardError: `bad-program` where a value is made of itself.
    """
    makers = {line.name: item for item in items for line in item.lines}

    def needs(item: Line | Braces) -> Iterator[tuple[Line, str]]:
        return ((line, name) for line in item.lines for name in line.operands if name in makers)

    ordered: dict[Line | Braces, None] = {}
    for first in items:
        way = {first: needs(first)}
        while way:
            item = next(reversed(way))
            line, name = next(way[item], (None, None))
            if line is None or name is None:
                del way[item]
                ordered[item] = None
            elif (makers[name] is item and isinstance(item, Braces)) or makers[name] in ordered:
                continue
            elif makers[name] in way:
                problem = f"value {line.name} is made of {name}, which is made of it"
                raise placed(text, line.start, problem, code="bad-program")
            else:
                way[makers[name]] = needs(makers[name])
    return list(ordered)


def _add(program: Builder, line: Line) -> Value:
    operands = [program.value(name) for name in line.operands]
    dtype = None if line.dtype is None else dtype_named(line.dtype)
    for key, value in line.fields.items():
        if isinstance(value, bool) != (key == "opaque"):
            text = "opaque must stand alone" if key == "opaque" else f"attribute {key} must have a value"
            raise ReshardError("bad-program", text)
    if line.pattern is None and line.operation in ("input", "constant"):
        if line.shape is None or operands:
            raise ReshardError("bad-program", f"{line.operation} must have a dtype and sizes, and no operands")
        return program.add(line.operation, (), NewValue(line.name, line.shape, dtype), attributes=_attributes(line))
    if line.pattern is None and line.operation in ("reshard", "output"):
        if len(operands) != 1:
            raise ReshardError("bad-program", f"{line.operation} must have one operand, got {len(operands)}")
        if (line.shape is not None and line.shape != operands[0].shape) or dtype not in (None, operands[0].dtype):
            raise ReshardError("bad-program", f"{line.operation} must have the dtype and the sizes of its operand")
        if line.operation == "reshard" and line.sharding is None:
            raise ReshardError("bad-program", "reshard must have a sharding")
        return program.add(line.operation, operands, NewValue(line.name, operands[0].shape))
    if line.operation in ENTERING | LEAVING:
        if line.pattern is not None:
            raise ReshardError("bad-program", f"{line.operation} must have no pattern")
        end = add_end(program, line.operation, tuple(operands), line.name)
        if line.shape not in (None, end.shape) or dtype not in (None, end.dtype):
            raise ReshardError("bad-program", f"{line.operation} must have the dtype and the sizes of what it hands on")
        return end
    if line.pattern is None:
        raise ReshardError("bad-program", f'operation {line.operation} must have a pattern, such as "ij->ij"')
    pattern = Pattern.of(line.pattern)
    roles = {role: tuple(str(line.fields.get(role, "")).split()) for role in ROLES}
    shape = line.shape
    if len(operands) == len(pattern.operands) and shape is None and roles["shifted"]:
        raise ReshardError("bad-program", "an operation with shifted labels must say the sizes of its result")
    return program.add(
        line.operation, operands, NewValue(line.name, shape, dtype), opaque="opaque" in line.fields, pattern=pattern,
        sizes=_sizes(line), attributes=_attributes(line), **roles,
    )  # fmt: skip


def _sizes(line: Line) -> tuple[tuple[str, int], ...]:
    """The sizes of labels that stand in braces: `sizes.a=2`."""
    named = ((key.removeprefix("sizes."), value) for key, value in line.fields.items() if key.startswith("sizes."))
    return tuple((label, value) for label, value in named if isinstance(value, int))


def _attributes(line: Line) -> tuple[tuple[str, Attribute], ...]:
    items = line.fields.items()
    return tuple(sorted((key, value) for key, value in items if key not in OWN and not key.startswith("sizes.")))


def write(graph: Graph, shardings: Mapping[Value, Sharding]) -> str:
    """A graph as text, with shardings of some of its values."""
    lines = [f"sdy.mesh @{name} = {mesh}" for name, mesh in graph.meshes.items()]
    names = {mesh: name for name, mesh in reversed([*graph.meshes.items()])}
    inside = bodies(graph.operations)
    tied = {value: other.name for value, other in graph.ties}

    def put(block: Block | None, indent: str) -> None:
        for item in inside.get(block, ()):
            if not isinstance(item, Operation):
                lines.append(f"{indent}{_heading(item)} {{")
                put(item, indent + "  ")
                lines.append(f"{indent}}}")
                continue
            sharding = shardings.get(item.result)
            said = "" if sharding is None else f" <@{names[sharding.mesh]}, {sharding.text()}>"
            lines.append(f"{indent}{_line(item, tied.get(item.result))}{said}")

    put(None, "")
    return "\n".join(lines)


def _heading(block: Block) -> str:
    if not isinstance(block, Loop):
        return "choice" if isinstance(block, Choice) else "branch"
    heading = "while" if block.trip_count is None else f"loop {block.trip_count}"
    return heading + " reverse" * block.reverse + (f" unroll={block.unroll}" if block.unroll != 1 else "")


def _line(operation: Operation, tied: str | None) -> str:
    """An operation, but for what is said about the sharding of its result; with the value that this is tied to."""
    value, is_end = operation.result, operation.name in ENTERING | LEAVING
    text = f"{value.name} = {operation.name}"
    if operation.pattern is not None and not is_end:
        text += f' "{operation.pattern}"'
    if operation.operands or operation.pattern is not None:
        text += f" ({', '.join(operand.name for operand in operation.operands)})"
    text += f" : {value.dtype.name}[{', '.join(map(str, value.shape))}]"
    fields = [*(() if is_end else _fields(operation)), *([] if tied is None else [f'tied="{tied}"'])]
    return text + (f" {{{', '.join(fields)}}}" if fields else "")


def _fields(operation: Operation) -> list[str]:
    fields = ["opaque"] if operation.kind is None else []
    fields += [f'{role}="{" ".join(getattr(operation, role))}"' for role in ROLES if getattr(operation, role)]
    for key, value in operation.attributes:
        if isinstance(value, tuple):
            fields.append(f"{key}=[{', '.join(map(str, value))}]")
        else:
            number = isinstance(value, float) and not isfinite(value)  # a name unless it has a sign
            fields.append(f'{key}="{value}"' if isinstance(value, str) else f"{key}={value:{'+' * number}}")
    return fields + [f"sizes.{label}={size}" for label, size in operation.sizes]
