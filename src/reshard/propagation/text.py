r"""The text form of a program: its meshes, then one line per value.

    mesh     sdy.mesh @name = <["axis"=size, ...]>
    value    name = operation "pattern" (operands) : dtype[sizes] {role=..., attribute=...} <@name, [...]>

The pattern, the operands, the braces and the sharding stand where there are some; the dtype and the sizes may be left
out where they follow.
`{replicated=b, shifted="a c", selected=v}` name labels, `{turns=48}` says how often a loop does the operation, and
`{opaque}` that no engine need know it; whatever else stands in braces is an attribute.
Lines may stand in any order; `//` begins a comment.
Shardings are in Shardy's notation.

>>> from reshard.propagation.program import Program
>>> program = Program.parse('''
... sdy.mesh @mesh = <["x"=2]>
... b = relu "ij->ij" (a)
... a = input : float32[4, 6] <@mesh, [{"x"}, {?}]>
... ''')
>>> print(program)
sdy.mesh @mesh = <["x"=2]>
a = input : float32[4, 6] <@mesh, [{"x"}, {?}]>
b = relu "ij->ij" (a) : float32[4, 6]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation.grammar import Form, checked_text, parse, placed
from reshard.notation.shardy import read_mesh, read_sharding
from reshard.operations.kinds import KINDS
from reshard.operations.operation import Attribute, Operation, Value
from reshard.operations.pattern import Pattern
from reshard.propagation.graph import Builder, Graph
from reshard.sharding import Sharding

ROLES = ("replicated", "shifted", "selected")
OWN = (*ROLES, "turns", "opaque")
"""What stands in braces and is no attribute, beside the sizes of labels."""
_MESH = re.compile(r"^[ \t]*sdy\.mesh\b[^\r\n]*", re.MULTILINE)


@dataclass
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


class _Builder:
    """What each rule of the grammar stands for."""

    def signed(self, parts: list[Any]) -> int | float:
        text = str(parts[0])
        return int(text) if re.fullmatch(r"[-+]?[0-9]+", text) else float(text)

    def value(self, parts: list[Any]) -> Any:
        if len(parts) == 1 and isinstance(parts[0], str):
            return str(parts[0]).strip('"')
        return parts[0]

    def numbers(self, parts: list[Any]) -> Attribute:
        return tuple(part for part in parts if part is not None)

    def field(self, parts: list[Any]) -> tuple[str, Any]:
        return str(parts[0]), parts[1]

    def flag(self, parts: list[Any]) -> tuple[str, bool]:
        return str(parts[0]), True

    def roles(self, parts: list[Any]) -> tuple[str, Any]:
        return "fields", dict(parts)

    def type(self, parts: list[Any]) -> tuple[str, Any]:
        return "type", (str(parts[0]), tuple(int(part) for part in parts[1:] if part is not None))

    def operands(self, parts: list[Any]) -> tuple[str, Any]:
        return "operands", tuple(str(part) for part in parts if part is not None)

    def pattern(self, parts: list[Any]) -> tuple[str, Any]:
        return "pattern", str(parts[0])[1:-1]

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

    def program(self, parts: list[Line]) -> list[Line]:
        return parts


FORM = Form(
    name="program",
    starts=("program",),
    words={
        "NAME": "a name",
        "STRING": "a text in double quotes",
        "NUMBER": "a size",
        "SIGNED": "a number",
        "SHARDING": "a sharding such as `<@mesh, [{}]>`",
        "_NL": "the end of the line",
    },
    builder=_Builder(),
)


def read_meshes(text: str) -> tuple[dict[str, Mesh], str]:
    """The meshes that a text defines, and the text with blanks in their place.

    Raises:
        ReshardError: `syntax` where there is none, or a name is defined twice; and as `parse_mesh`.
    """
    meshes: dict[str, Mesh] = {}
    for found in _MESH.finditer(checked_text(text)):
        name, mesh = read_mesh(found.group(), whole=text, offset=found.start())
        if name is None or name in meshes:
            raise placed(text, found.start(), f"expected a mesh with a name of its own, such as @mesh_{len(meshes)}")
        meshes[name] = mesh
    if not meshes:
        raise ReshardError("syntax", 'a program must define a mesh, such as `sdy.mesh @mesh = <["x"=2]>`')
    return meshes, _MESH.sub(lambda found: " " * len(found.group()), text)


def read(text: str, graph: Builder) -> None:
    """Add the values of a text to a graph that has the meshes of the text.

    Raises:
        ReshardError: `syntax`, `bad-program` where a value is made twice, is not made, or is made of itself; and
            what operations and shardings raise, with the line and the value.
    """
    lines: list[Line] = parse(FORM, "program", read_meshes(text)[1], whole=text)
    by_name: dict[str, Line] = {}
    for line in lines:
        if line.name in by_name:
            raise placed(text, line.start, f"value {line.name} is made twice", code="bad-program")
        by_name[line.name] = line
    for line in _in_order(lines, by_name, text):
        try:
            value = _add(graph, line)
            if line.sharding is not None:
                sharding, start = line.sharding
                graph.annotate(value, read_sharding(sharding, graph.meshes, whole=text, offset=start))
        except ReshardError as error:
            number = text.count("\n", 0, line.start) + 1
            told = str(error).removeprefix(f"value {line.name}: ")
            raise ReshardError(error.code, f"line {number}, value {line.name}: {told}") from None


def _in_order(lines: list[Line], by_name: dict[str, Line], text: str) -> list[Line]:
    """The lines, each after those of its operands and else as they stand.

    Raises:
        ReshardError: `bad-program` where a value is not made, or is made of itself.
    """
    ordered: list[Line] = []
    done: set[str] = set()
    for first in lines:
        way, waiting = [first], {first.name}
        while way:
            line = way[-1]
            missing = next((name for name in line.operands if name not in done), None)
            if line.name in done or missing is None:
                if line.name not in done:
                    ordered.append(line)
                    done.add(line.name)
                waiting.discard(way.pop().name)
            elif missing not in by_name:
                raise placed(
                    text, line.start, f"value {line.name} is made of {missing}, which is not made", code="bad-program"
                )
            elif missing in waiting:
                raise placed(
                    text, line.start, f"value {line.name} is made of {missing}, which is made of it", code="bad-program"
                )
            else:
                way.append(by_name[missing])
                waiting.add(missing)
    return ordered


def _add(graph: Builder, line: Line) -> Value:
    operands = [graph.value(name) for name in line.operands]
    dtype = None if line.dtype is None else dtype_named(line.dtype)
    for key, value in line.fields.items():
        if isinstance(value, bool) != (key == "opaque"):
            text = "opaque must stand alone" if key == "opaque" else f"attribute {key} must have a value"
            raise ReshardError("bad-program", text)
    if line.pattern is None and line.operation in ("input", "constant"):
        if line.shape is None or operands:
            raise ReshardError("bad-program", f"{line.operation} must have a dtype and sizes, and no operands")
        return graph.add(line.operation, (), line.name, line.shape, dtype, attributes=_attributes(line))
    if line.pattern is None and line.operation in ("reshard", "output"):
        if len(operands) != 1:
            raise ReshardError("bad-program", f"{line.operation} must have one operand, got {len(operands)}")
        if (line.shape is not None and line.shape != operands[0].shape) or dtype not in (None, operands[0].dtype):
            raise ReshardError("bad-program", f"{line.operation} must have the dtype and the sizes of its operand")
        if line.operation == "reshard" and line.sharding is None:
            raise ReshardError("bad-program", "reshard must have a sharding")
        return graph.add(line.operation, operands, line.name, operands[0].shape)
    if line.pattern is None:
        raise ReshardError("bad-program", f'operation {line.operation} must have a pattern, such as "ij->ij"')
    pattern = Pattern.of(line.pattern)
    roles = {role: tuple(str(line.fields.get(role, "")).split()) for role in ROLES}
    shape = line.shape
    if len(operands) == len(pattern.operands) and shape is None and roles["shifted"]:
        raise ReshardError("bad-program", "an operation with shifted labels must say the sizes of its result")
    return graph.add(
        line.operation, operands, line.name, shape, dtype, pattern=pattern, sizes=_sizes(pattern, line), **roles,
        turns=line.fields.get("turns", 1), attributes=_attributes(line),
        opaque="opaque" in line.fields,
    )  # fmt: skip


def _sizes(pattern: Pattern, line: Line) -> dict[str, int]:
    """The sizes of labels that stand in braces: `sizes.a=2`."""
    named = {key.removeprefix("sizes."): value for key, value in line.fields.items() if key.startswith("sizes.")}
    return {label: value for label, value in named.items() if isinstance(value, int)}


def _attributes(line: Line) -> tuple[tuple[str, Attribute], ...]:
    kept = {key: value for key, value in line.fields.items() if key not in OWN and not key.startswith("sizes.")}
    return tuple(sorted(kept.items()))


def write(graph: Graph, shardings: Mapping[Value, Sharding]) -> str:
    """A graph as text, with shardings of some of its values."""
    lines = [f"sdy.mesh @{name} = {mesh}" for name, mesh in graph.meshes.items()]
    names = {mesh: name for name, mesh in reversed([*graph.meshes.items()])}
    for operation in graph.operations:
        value = operation.result
        text = f"{value.name} = {operation.name}"
        if operation.pattern is not None:
            text += f' "{operation.pattern}"'
        if operation.operands or operation.pattern is not None:
            text += f" ({', '.join(operand.name for operand in operation.operands)})"
        text += f" : {value.dtype.name}[{', '.join(map(str, value.shape))}]"
        fields = _fields(operation)
        text += f" {{{', '.join(fields)}}}" if fields else ""
        sharding = shardings.get(value)
        text += "" if sharding is None else f" <@{names[sharding.mesh]}, {sharding.text()}>"
        lines.append(text)
    return "\n".join(lines)


def _fields(operation: Operation) -> list[str]:
    fields = ["opaque"] if operation.name not in KINDS else []
    fields += [f'{role}="{" ".join(getattr(operation, role))}"' for role in ROLES if getattr(operation, role)]
    if operation.turns != 1 and operation.pattern is not None:
        fields.append(f"turns={operation.turns}")
    for key, value in operation.attributes:
        if isinstance(value, tuple):
            fields.append(f"{key}=[{', '.join(map(str, value))}]")
        else:
            number = isinstance(value, float) and not isfinite(value)  # a name unless it has a sign
            fields.append(f'{key}="{value}"' if isinstance(value, str) else f"{key}={value:{'+' * number}}")
    return fields + [f"sizes.{label}={size}" for label, size in operation.sizes]
