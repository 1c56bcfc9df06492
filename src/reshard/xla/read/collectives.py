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
>>> gather, = find_collectives(module)
>>> gather.kind, gather.operand_bytes, gather.result_bytes, gather.group_size, gather.received_bytes
('all-gather', 128, 512, 4, 384)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reshard.xla.read.ir import ArrayShape, Computation, Instruction, Module
from reshard.xla.read.loops import executions
from reshard.xla.read.replica_groups import parse_groups, parse_pairs
from reshard.xla.read.scan import natural

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


def find_collectives(module: Module) -> list[Collective]:
    """Every collective of a module, in the order of the text; what is odd about them joins the module's notes."""
    executed = executions(module)
    collectives = []
    for computation, instruction in module.instructions():
        kind = kind_of(instruction.opcode)
        if kind is None:
            _note_uncounted(module, instruction)
            continue
        if instruction.opcode == f"{kind}-start" and _wraps_collective(module, instruction):
            continue  # counted where it is printed whole
        operands = _operand_shapes(computation, instruction)
        if kind == "ragged-all-to-all":
            operands = operands[:1]  # the others are the buffer that it writes to, offsets and sizes
        results = _result_shapes(instruction, kind)
        result_bytes = sum(shape.bytes for shape in results)
        group, received = _group_and_received(module, instruction, kind, results)
        by_result = {"all-gather": result_bytes // (group or 1), "reduce-scatter": result_bytes * (group or 1)}
        derived = by_result.get(kind, result_bytes)
        operand_bytes = sum(shape.bytes for shape in operands) if operands else derived
        if problem := _contradiction(instruction, kind, group, bool(operands), operand_bytes == derived):
            module.note(instruction.line, f"{instruction.name}: {problem}")
        channel = instruction.attributes.get("channel_id", "")
        collectives.append(
            Collective(
                module.text,
                module.name,
                computation.name,
                instruction.name,
                kind,
                instruction.line,
                natural(channel),
                results[0].dtype if results else "",
                operand_bytes,
                result_bytes,
                group,
                received,
                kind == "ragged-all-to-all" and received is not None,
                *executed[computation.name],
                module.source_of(instruction),
                instruction.attributes.get("op_name", ""),
            )
        )
    return collectives


def _wraps_collective(module: Module, instruction: Instruction) -> bool:
    called = module.computations.get(instruction.attributes.get("calls", "").lstrip("%"))
    return called is not None and any(kind_of(inner.opcode) for inner in called.instructions.values())


def _note_uncounted(module: Module, instruction: Instruction) -> None:
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
    module.note(instruction.line, problem, instruction.name)


def _operand_shapes(computation: Computation, instruction: Instruction) -> tuple[ArrayShape, ...]:
    """The shapes of the operands: as printed, or of the instructions that they name; nothing where one is unknown."""
    if instruction.printed:
        return instruction.printed
    operands = [computation.find(name) for name in instruction.operands]
    if None in operands:
        return ()
    return tuple(shape for operand in operands if operand for shape in operand.instruction.result.shapes)


def _result_shapes(instruction: Instruction, kind: str) -> tuple[ArrayShape, ...]:
    """What it results in, without the operands that the result of a `-start` carries along."""
    result = instruction.result
    if not instruction.opcode.endswith("-start") or not result.is_tuple:
        return result.shapes
    if kind == "all-reduce":
        return result.shapes  # only here the result is that of the operation alone
    if len(result.parts) < 2:
        return ()
    return result.parts[1][: max(len(result.parts[0]), len(instruction.operands))]


def _group_and_received(
    module: Module, instruction: Instruction, kind: str, results: tuple[ArrayShape, ...]
) -> tuple[int | None, int | None]:
    """Devices in the largest group, and bytes that the busiest of them receives; None where that is not known."""
    size = sum(shape.bytes for shape in results)
    for shape in results:
        if not shape.is_known:
            module.note(instruction.line, f"the size of element type {shape.dtype} is not known")
            return None, None
    if kind == "collective-permute":
        text = instruction.attributes.get("source_target_pairs", "")
        pairs = parse_pairs(text)
        if pairs is None or not results:
            module.note(instruction.line, "the pairs of a permute cannot be read", text[:100])
            return None, None
        return len({device for pair in pairs for device in pair}), size * any(a != b for a, b in pairs)
    group = _largest_group(module, instruction, kind)
    if group is None or not results:
        return None, None
    if kind in ("all-gather", "all-to-all"):
        return group, size - size // group
    if kind == "reduce-scatter":
        return group, size * (group - 1)
    if kind == "all-reduce":
        return group, -(-2 * size * (group - 1) // group)
    return group, size * (group > 1)


def _largest_group(module: Module, instruction: Instruction, kind: str) -> int | None:
    """The number of devices in the largest group."""
    text = instruction.attributes.get("replica_groups", "{}")
    groups = parse_groups(text)
    if groups is None:
        module.note(instruction.line, "the replica groups cannot be read", text[:100])
        return None
    per_member, everyone = 1, module.replicas  # devices that a member stands for; members where no group is listed
    if "channel_id" in instruction.attributes and kind not in _GLOBAL_IDS:
        everyone = module.partitions
    elif "channel_id" in instruction.attributes:
        is_flat = instruction.attributes.get("use_global_device_ids") == "true"
        per_member = 1 if is_flat else module.partitions
        everyone = module.replicas * (module.partitions if is_flat else 1)
    if not any(groups) and not module.has_header:
        module.note(instruction.line, "its group is all devices, but the text lacks their number")
        return None
    return max(map(len, filter(None, groups)), default=everyone) * per_member


def _contradiction(instruction: Instruction, kind: str, group: int | None, has_operands: bool, fits: bool) -> str:
    """How operands, result and group contradict each other, as in a damaged text; nothing where they do not."""
    if not has_operands:
        return "its operands are not in the text; their size is derived from the result"
    if kind == "collective-permute" and len(instruction.operands) > 1 and not instruction.result.is_tuple:
        return "only slices move, in place; the whole result is counted"
    if kind == "ragged-all-to-all" or group is None or fits:
        return ""
    return f"operands, result and a group of {group} contradict each other"


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
    by_kind: dict[str, list[Collective]] = {kind: [] for kind in KINDS}
    for collective in collectives:
        by_kind[collective.kind].append(collective)
    return [
        Total(
            kind,
            len(of_kind),
            sum(collective.executions for collective in of_kind),
            sum(collective.operand_bytes * collective.executions for collective in of_kind),
            sum(collective.result_bytes * collective.executions for collective in of_kind),
            sum((collective.received_bytes or 0) * collective.executions for collective in of_kind),
            any(collective.unknown or collective.received_bytes is None for collective in of_kind),
        )
        for kind, of_kind in by_kind.items()
        if of_kind
    ]
