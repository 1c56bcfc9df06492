"""What a text of XLA's says, in one form: HLO and StableHLO become the same computations of instructions.

Opcodes have HLO's spelling (`all-gather`), and a value of several parts is taken apart by `get-tuple-element`.
A region of StableHLO is a computation that sees the names of the one around it.

>>> shape, = Result.array(ArrayShape("f32", (24, 12))).shapes
>>> shape.bytes, str(shape)
(1152, 'f32[24,12]')
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from reshard.dtypes import DTYPES
from reshard.mesh import Mesh
from reshard.xla.read.scan import excerpt, natural

_BITS = {"s4": 4, "u4": 4, "i4": 4, "ui4": 4, "s2": 2, "u2": 2, "i2": 2, "ui2": 2, "s1": 1, "u1": 1, "f4e2m1fn": 4}
_BITS |= {"token": 0, "opaque": 0}


class ArrayShape(NamedTuple):
    """An array's element type, as the text has it, and its sizes."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """How large it is; 0 for an element type that is not known."""
        bits = 8 * DTYPES[self.dtype].itemsize if self.dtype in DTYPES else _BITS.get(self.dtype.lower(), 0)
        return -(-bits * prod(self.dims) // 8)

    @property
    def is_known(self) -> bool:
        """Whether the element type has a known size."""
        return self.dtype in DTYPES or self.dtype.lower() in _BITS

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


class Result(NamedTuple):
    """What an instruction results in."""

    parts: tuple[tuple[ArrayShape, ...], ...]
    """One part, or one per element of a tuple; the arrays of a nested tuple stand side by side."""
    is_tuple: bool

    @classmethod
    def array(cls, shape: ArrayShape) -> Result:
        """A single array."""
        return cls(((shape,),), False)

    @property
    def shapes(self) -> tuple[ArrayShape, ...]:
        """All arrays."""
        return tuple(shape for part in self.parts for shape in part)


@dataclass(eq=False, slots=True)
class Instruction:
    """One instruction."""

    name: str
    opcode: str
    """In HLO's spelling."""
    result: Result
    operands: tuple[str, ...]
    """Names of instructions of the same computation, or of one around it."""
    line: int
    """Where it stands in its text, from 1."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """What else is said of it, as text."""
    shardings: tuple[str, ...] = ()
    """The text of its sharding; of a tuple's, one text per part."""
    is_root: bool = False
    """Whether it is what its computation results in."""
    printed: tuple[ArrayShape, ...] = ()
    """The shapes of the operands, where the text gives them."""

    @property
    def shape(self) -> ArrayShape | None:
        """Of the one array that it results in; None of a tuple."""
        return None if self.result.is_tuple or not self.result.parts else self.result.parts[0][0]

    @property
    def index(self) -> int | None:
        """Of a parameter its place, of an element its place in the tuple; None where that is no number."""
        return natural(self.attributes.get("index", "0" if self.opcode == "parameter" else ""))


@dataclass(eq=False, slots=True)
class Computation:
    """Instructions, each after its operands."""

    name: str
    line: int
    is_entry: bool = False
    parent: Computation | None = None
    """The computation around it, whose names it sees."""
    instructions: dict[str, Instruction] = field(default_factory=dict)
    results: tuple[str, ...] = ()
    """The texts of the shardings that its results are declared to have; `` where one has none."""

    def find(self, name: str) -> Definition | None:
        """The instruction of that name, here or in a computation around."""
        computation: Computation | None = self
        while computation is not None:
            if name in computation.instructions:
                return Definition(computation, computation.instructions[name])
            computation = computation.parent
        return None

    @property
    def root(self) -> Instruction | None:
        """What it results in; None where the text was cut before it."""
        return next((last for last in reversed(self.instructions.values()) if last.is_root), None)

    def result(self, index: int) -> Definition | None:
        """One of its results; None where the text does not have it."""
        root = self.root
        if root is None or root.opcode not in ("return", "tuple"):
            return None if root is None else Definition(self, root)
        return Definition(self, root).operand(index)

    def parameters(self) -> list[Instruction]:
        """Its parameters in order."""
        parameters = [instruction for instruction in self.instructions.values() if instruction.opcode == "parameter"]
        return sorted(parameters, key=lambda parameter: parameter.index or 0)


class Definition(NamedTuple):
    """An instruction and the computation where it stands, in which its operands are named."""

    computation: Computation
    instruction: Instruction

    def operand(self, index: int) -> Definition | None:
        """The definition of an operand; None where the text does not have it."""
        operands = self.instruction.operands
        return self.computation.find(operands[index]) if index < len(operands) else None


class Note(NamedTuple):
    """Something that was not understood."""

    text: str
    """The file where it stands, or what else the text is called."""
    line: int
    problem: str
    excerpt: str = ""


@dataclass(eq=False, slots=True)
class Module:
    """One module of a text."""

    form: str
    """`hlo` or `stablehlo`."""
    name: str
    line: int
    computations: dict[str, Computation] = field(default_factory=dict)
    partitions: int = 1
    replicas: int = 1
    has_header: bool = True
    """Whether the text has the line that says so much."""
    is_scheduled: bool = False
    meshes: dict[str, Mesh] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    lines: int = 0
    """How many lines it has."""
    stopped: str = ""
    """Where the text ends in the middle of the module; nothing where it is whole."""
    locations: dict[str, str] = field(default_factory=dict)
    """The source line of each location that instructions refer to."""
    text: str = ""
    """What the text that holds it is called."""

    @property
    def entry(self) -> Computation | None:
        """The computation where it begins."""
        return next((computation for computation in self.computations.values() if computation.is_entry), None)

    def instructions(self) -> Iterator[Definition]:
        """All instructions."""
        for computation in self.computations.values():
            for instruction in computation.instructions.values():
                yield Definition(computation, instruction)

    def note(self, line: int, problem: str, text: str = "") -> None:
        """Note what was not understood, with the beginning of its text."""
        self.notes.append(Note(self.text, line, problem, excerpt(text)))

    def source_of(self, instruction: Instruction) -> str:
        """The source line that it comes from, as `file:line`; nothing where the text does not tell."""
        return self.locations.get(instruction.attributes.get("location", ""), "") or instruction.attributes.get(
            "source", ""
        )
