"""Every collective of a module: how large it is, among how many devices, and what each of them receives.

What a device receives, of n bytes in its result and g devices in its group, by the least that any algorithm moves:

    all-gather, all-to-all      n (g - 1) / g
    reduce-scatter              n (g - 1)
    all-reduce                  2 n (g - 1) / g
    collective-permute          n, where its pair is no device with itself
    collective-broadcast        n, but not the first of a group
    ragged-all-to-all           at most n: the sizes are data

An asynchronous pair is counted at its `-start`, whose result holds the operands too.

>>> from reshard.xla.read.reading import read_text
>>> module = read_text('''HloModule m, num_partitions=8
... ENTRY %e (p: f32[4,8]) -> f32[16,8] {
...   %p = f32[4,8]{1,0} parameter(0)
...   ROOT %g = f32[16,8]{1,0} all-gather(%p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true
... }''').modules[0]
>>> one, = find_collectives(module)
>>> one.kind, one.operand_bytes, one.result_bytes, one.group_size, one.received_bytes
('all-gather', 128, 512, 4, 384)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reshard.xla.read.ir import Computation, Instruction, Module, Note, Shape
from reshard.xla.read.loops import executions
from reshard.xla.read.replica_groups import Groups, parse_groups, parse_pairs

KINDS = (
    "all-gather",
    "all-to-all",
    "all-reduce",
    "reduce-scatter",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
"""All that are counted."""
REDUCING = ("all-reduce", "reduce-scatter")
"""Those that combine values."""
_GLOBAL_IDS = ("all-gather", "all-reduce", "reduce-scatter")
"""Those whose groups may list replicas while partitions take part all the same."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective instruction."""

    text: str
    """The file where it stands."""
    module: str
    computation: str
    name: str
    kind: str
    """One of `KINDS`."""
    line: int
    channel_id: int | None
    """None where the text gives none."""
    dtype: str
    operand_bytes: int
    """On each device."""
    result_bytes: int
    """On each device."""
    group_size: int | None
    """Devices in the largest group; None where the text does not tell."""
    received_bytes: int | None
    """By the busiest device in one execution."""
    is_bound: bool
    """Whether it receives at most that, depending on data."""
    executions: int
    """How often it runs; at the least, where `unknown` says so."""
    unknown: str
    """Why it may run more often or not at all; nothing where it does not."""
    source: str
    """`file:line`; nothing where the text does not tell."""
    op_name: str
    """What the program calls it."""


def kind_of(opcode: str) -> str | None:
    """The kind of collective that an opcode is or begins; None for any other."""
    base = opcode.removesuffix("-start")
    return base if base in KINDS else None


def find_collectives(module: Module, text: str = "") -> list[Collective]:
    """Every collective of a module, in the order of the text; what is odd about them joins the module's notes."""
    runs = executions(module)
    found = []
    for computation, instruction in module.instructions():
        kind = kind_of(instruction.opcode)
        if kind is None:
            _note_others(module, instruction)
            continue
        if instruction.opcode == f"{kind}-start" and _inner(module, instruction):
            continue  # counted where it is printed whole
        often = runs[computation.name]
        operands = operand_shapes(computation, instruction)
        if kind == "ragged-all-to-all" and operands:
            operands = operands[:1]  # the others are the buffer that it writes to, offsets and sizes
        results = result_shapes(instruction, kind, len(instruction.operands))
        group, received, bound = _moved(module, instruction, kind, results)
        operand_bytes = sum(shape.bytes for shape in operands) if operands else _derived(kind, results, group)
        _check(module, instruction, kind, operands, results, group)
        found.append(
            Collective(
                text,
                module.name,
                computation.name,
                instruction.name,
                kind,
                instruction.line,
                _channel(instruction),
                results[0].dtype if results else "",
                operand_bytes,
                sum(shape.bytes for shape in results),
                group,
                received,
                bound,
                often.times,
                often.unknown,
                module.source_of(instruction),
                instruction.attributes.get("op_name", ""),
            )
        )
    return found


def _channel(instruction: Instruction) -> int | None:
    text = instruction.attributes.get("channel_id", "")
    return int(text) if text.isdigit() and len(text) < 19 else None


def _inner(module: Module, instruction: Instruction) -> bool:
    inside = module.computations.get(instruction.attributes.get("calls", "").lstrip("%"))
    return inside is not None and any(kind_of(one.opcode) for one in inside.instructions.values())


def _note_others(module: Module, instruction: Instruction) -> None:
    """Name what looks like a collective and is none that is counted."""
    attributes, opcode = instruction.attributes, instruction.opcode
    if opcode.endswith(("-done", "-update")) and kind_of(opcode.rpartition("-")[0]):
        return
    if opcode in ("send", "recv"):
        problem = f"{opcode} moves data from point to point, which is not counted"
    elif opcode.startswith(("async-", "send-", "recv-")):
        return
    elif "replica_groups" in attributes or "source_target_pairs" in attributes:
        problem = f"{opcode} names groups of devices but is no collective that is known"
    else:
        return
    module.notes.append(Note(instruction.line, problem, instruction.name))


def operand_shapes(computation: Computation, instruction: Instruction) -> tuple[Shape, ...]:
    """The shapes of the operands: as printed, or of the instructions that they name; nothing where one is unknown."""
    if instruction.printed:
        return instruction.printed
    shapes: list[Shape] = []
    for name in instruction.operands:
        found = computation.find(name)
        if found is None:
            return ()
        shapes += found[1].result.shapes
    return tuple(shapes)


def result_shapes(instruction: Instruction, kind: str, operands: int) -> tuple[Shape, ...]:
    """What it results in, without the operands that the result of a `-start` carries along."""
    result = instruction.result
    if not instruction.opcode.endswith("-start") or not result.is_tuple:
        return result.shapes
    if kind == "all-reduce":
        return result.shapes  # only here the result is that of the operation alone
    if len(result.parts) < 2:
        return ()
    first = result.parts[0]
    return result.parts[1][: max(len(first), operands)]


def _ranks(module: Module, instruction: Instruction, kind: str) -> tuple[Groups | None, int]:
    """The groups, and how many devices each of their members stands for."""
    text = instruction.attributes.get("replica_groups", "{}")
    groups = parse_groups(text)
    if groups is None:
        module.notes.append(Note(instruction.line, "the replica groups cannot be read", text[:100]))
        return None, 1
    has_channel = "channel_id" in instruction.attributes
    flattened = instruction.attributes.get("use_global_device_ids") == "true"
    each, total = 1, module.replicas
    if has_channel and kind in _GLOBAL_IDS:
        each = 1 if flattened else module.partitions
        total = module.replicas * module.partitions if flattened else module.replicas
    elif has_channel:
        total = module.partitions
    groups = tuple(group for group in groups if group)
    if groups:
        return groups, each
    if not module.has_header:
        module.notes.append(Note(instruction.line, "its group is all devices, but the text lacks their number", ""))
        return None, 1
    return (tuple(range(total)),), each


def _moved(
    module: Module, instruction: Instruction, kind: str, results: tuple[Shape, ...]
) -> tuple[int | None, int | None, bool]:
    """Group size, bytes that the busiest device receives, and whether that is only a limit."""
    size = sum(shape.bytes for shape in results)
    for shape in results:
        if not shape.is_known:
            module.notes.append(Note(instruction.line, f"the size of element type {shape.dtype} is not known", ""))
            return None, None, False
    if kind == "collective-permute":
        text = instruction.attributes.get("source_target_pairs", "")
        pairs = parse_pairs(text)
        if pairs is None or not results:
            module.notes.append(Note(instruction.line, "the pairs of a permute cannot be read", text[:100]))
            return None, None, False
        return len({device for pair in pairs for device in pair}), size * any(a != b for a, b in pairs), False
    groups, each = _ranks(module, instruction, kind)
    if groups is None or not results:
        return None, None, False
    count = max(len(group) for group in groups) * each
    if kind in ("all-gather", "all-to-all"):
        return count, size - size // count, False
    if kind == "reduce-scatter":
        return count, size * (count - 1), False
    if kind == "all-reduce":
        return count, -(-2 * size * (count - 1) // count), False
    return count, size * (count > 1), kind == "ragged-all-to-all"


def _derived(kind: str, results: tuple[Shape, ...], group: int | None) -> int:
    """The bytes of the operands from those of the result, where the text has lost them."""
    size = sum(shape.bytes for shape in results)
    if kind == "all-gather":
        return size // (group or 1)
    return size * (group or 1) if kind == "reduce-scatter" else size


def _check(
    module: Module,
    instruction: Instruction,
    kind: str,
    operands: tuple[Shape, ...],
    results: tuple[Shape, ...],
    group: int | None,
) -> None:
    """Note where operands, result and group contradict each other, as in a damaged text."""
    if not operands:
        problem = "its operands are not in the text; their size is derived from the result"
    elif kind == "collective-permute" and len(instruction.operands) > 1 and not instruction.result.is_tuple:
        problem = "only slices move, in place; the whole result is counted"
    elif kind == "ragged-all-to-all":
        return
    elif group is not None and _derived(kind, results, group) != sum(shape.bytes for shape in operands):
        problem = f"operands, result and a group of {group} contradict each other"
    else:
        return
    module.notes.append(Note(instruction.line, f"{instruction.name}: {problem}", ""))


@dataclass(frozen=True, slots=True)
class Total:
    """What the collectives of one kind come to, executions counted."""

    kind: str
    instructions: int
    executions: int
    operand_bytes: int
    result_bytes: int
    received_bytes: int
    is_least: bool
    """Whether there may be more: a loop whose trip count is not told, or a size that is not."""


def totals(collectives: Iterable[Collective]) -> list[Total]:
    """One total per kind that occurs, in the order of `KINDS`."""
    listed = list(collectives)
    result = []
    for kind in KINDS:
        those = [one for one in listed if one.kind == kind]
        if those:
            result.append(
                Total(
                    kind,
                    len(those),
                    sum(one.executions for one in those),
                    sum(one.operand_bytes * one.executions for one in those),
                    sum(one.result_bytes * one.executions for one in those),
                    sum((one.received_bytes or 0) * one.executions for one in those),
                    any(one.unknown or one.received_bytes is None for one in those),
                )
            )
    return result
