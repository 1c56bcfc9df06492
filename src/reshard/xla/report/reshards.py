"""The reshards that a text before partitioning asks for: lowered modules, and HLO whose shapes are of whole tensors.

A reshard is a value that lies in one known sharding and is wanted in another:

    constraint   `sharding_constraint`, `custom_call @Sharding`, a `copy` with a sharding, the arguments of a shard_map
    operand      an elementwise instruction that is to lie in another sharding than its operand, a tuple, a loop
    result       what the module returns, against what its results are declared to be

Where a value lies is what its own instruction says, or that of the values from which it comes elementwise.
A constant lies wherever it is wanted.
Where the text does not tell, as after a contraction before propagation, the end is listed as unrecognised.
"""

from __future__ import annotations

from dataclasses import dataclass

from reshard.errors import ReshardError
from reshard.sharding import Sharding
from reshard.xla.read.ir import Computation, Instruction, Module, Shape
from reshard.xla.read.loops import executions
from reshard.xla.read.shardings import Reader, joined
from reshard.xla.report.figures import Reshard, Unrecognised, dtype_of
from reshard.xla.report.placing import ELEMENTWISE, Lies, Places, manual_shardings, target_of

_BEFORE = frozenset(("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"))
"""Custom calls that the partitioner takes away."""


@dataclass(slots=True)
class Findings:
    """What a module asks for."""

    reshards: list[Reshard]
    unrecognised: list[Unrecognised]
    unchanged: int = 0
    """Constraints that a value meets as it lies."""
    free: int = 0
    """Constraints on constants."""


def is_constraint(instruction: Instruction) -> bool:
    """Whether it only says how its operand is to lie."""
    return instruction.opcode in ("sharding-constraint", "reshard") or (
        instruction.opcode == "custom-call" and target_of(instruction) == "Sharding"
    )


def is_before_partitioning(module: Module) -> bool:
    """Whether the shapes are of whole tensors."""
    if module.form == "stablehlo":
        return True
    entry = module.entry
    targets = {target_of(one) for _, one in module.instructions()}
    if any(target in _BEFORE or target.startswith("xla.sdy.") for target in targets):
        return True
    if module.is_scheduled or (entry is not None and entry.name.endswith("_spmd")):
        return False
    return any(
        one.shardings and one.opcode != "parameter" and not one.opcode.startswith(("all-", "collective-"))
        for _, one in module.instructions()
    ) or (
        entry is not None
        and not any(one.opcode.startswith(("all-", "collective-")) for _, one in module.instructions())
    )


def find_reshards(module: Module, text: str, reader: Reader) -> Findings:
    """All reshards that a module asks for.

    Args:
        module: one before partitioning.
        text: what to call the text where it stands.
        reader: of its shardings.
    """
    return _Search(module, text, reader).run()


class _Search:
    def __init__(self, module: Module, text: str, reader: Reader) -> None:
        self.module, self.text, self.reader = module, text, reader
        self.runs = executions(module)
        self.found = Findings([], [])
        self.places = Places(module)

    def run(self) -> Findings:
        for computation, one in self.module.instructions():
            if is_constraint(one) and one.operands:
                self._compare(computation, one, one.operands[0], one.shardings, "constraint")
            elif one.opcode == "manual-computation" or target_of(one) == "xla.sdy.GlobalToLocalShape":
                for operand, wanted in zip(one.operands, manual_shardings(one, "in_shardings"), strict=False):
                    self._compare(computation, one, operand, (wanted,), "constraint")
            elif one.opcode == "tuple" and one.shardings:
                for operand, wanted in zip(one.operands, one.shardings, strict=False):
                    self._compare(computation, one, operand, (wanted,), "operand")
            elif one.opcode == "while" and one.shardings and len(one.shardings) == len(one.operands):
                for operand, wanted in zip(one.operands, one.shardings, strict=True):
                    self._compare(computation, one, operand, (wanted,), "operand")
            elif one.opcode == "get-tuple-element" and len(one.shardings) == 1:
                lies = self.places.inside(computation, one)
                self._compare(computation, one, one.name, one.shardings, "operand", only_told=True, lies=lies)
            elif one.shardings and (one.opcode in ELEMENTWISE):
                for operand in dict.fromkeys(one.operands):
                    self._operand(computation, one, operand)
            elif one.shardings and one.operands:
                self._judge(computation, one)
            elif one.opcode == "return" and one.is_root:
                for operand, wanted in zip(one.operands, computation.results, strict=False):
                    if wanted:
                        self._compare(computation, one, operand, (wanted,), "result")
        return self.found

    def _operand(self, computation: Computation, one: Instruction, operand: str) -> None:
        found = computation.find(operand)
        if found is None or found[1].shape is None or one.shape is None or found[1].shape.dims != one.shape.dims:
            return  # a scalar among the operands, such as the predicate of a select
        if not one.shape.dims or one.shardings[0].startswith("{manual"):
            return  # the same everywhere; or a tile, which the program has cut by itself
        kind = "constraint" if one.opcode == "copy" else "operand"
        self._compare(computation, one, operand, one.shardings, kind)

    def _judge(self, computation: Computation, one: Instruction) -> None:
        """Name an operation that is no reshard by itself, but whose operands lie otherwise than it does."""
        if one.opcode in ("get-tuple-element", "custom-call", "call", "parameter", "reduce", "broadcast", "while"):
            return
        for operand in one.operands:
            found = computation.find(operand)
            if found is not None and found[1].shardings and found[1].shardings != one.shardings:
                self._unrecognised(
                    one, "operand", computation, f"how {one.opcode} is partitioned between shardings is not told"
                )
                return

    # What is found.

    def _compare(
        self,
        computation: Computation,
        one: Instruction,
        operand: str,
        wanted: tuple[str, ...],
        origin: str,
        *,
        only_told: bool = False,
        lies: Lies | None = None,
    ) -> None:
        """List the reshard of an operand, if it is one."""
        lies = lies or self.places.of(computation, operand)
        found = computation.find(operand)
        shape = found[1].shape if found is not None else None
        if is_constraint(one) and shape is None:
            shape = one.shape
        if lies.is_free:
            self.found.free += 1
            return
        if not lies.text or not wanted or shape is None:
            if not only_told:
                why = lies.why or ("the shape is not told" if wanted else "it does not say which sharding")
                self._unrecognised(one, origin, computation, f"to {wanted[0] if wanted else 'where'}: {why}")
            return
        if lies.text == wanted[0]:
            self.found.unchanged += 1
            return
        try:
            source, target = (self.reader.read(text, len(shape.dims)) for text in (lies.text, wanted[0]))
        except ReshardError as error:
            self._unrecognised(one, origin, computation, f"a sharding cannot be read: {_first_line(error)}")
            return
        self._add(computation, one, joined(source, target), shape, origin)

    def _add(
        self,
        computation: Computation,
        one: Instruction,
        ends: tuple[Sharding, Sharding],
        shape: Shape,
        origin: str,
    ) -> None:
        source, target = ends
        dtype = dtype_of(shape.dtype)
        if dtype is None:
            self._unrecognised(one, origin, computation, f"element type {shape.dtype} is not known")
            return
        try:
            same = source.mesh.size == target.mesh.size and source.is_equivalent_to(target, shape.dims)
        except ReshardError:
            same = False
        if same:
            self.found.unchanged += 1
            return
        often = self.runs[computation.name]
        self.found.reshards.append(
            Reshard(
                origin,
                self.text,
                self.module.name,
                one.line,
                one.name,
                source,
                target,
                shape.dims,
                dtype,
                executions=often.times,
                unknown=often.unknown,
                place=self.module.source_of(one),
                op_name=one.attributes.get("op_name", ""),
            )
        )

    def _unrecognised(self, one: Instruction, origin: str, computation: Computation, why: str) -> None:
        often = self.runs[computation.name]
        self.found.unrecognised.append(
            Unrecognised(
                origin,
                self.text,
                self.module.name,
                one.line,
                one.name,
                why,
                executions=often.times,
                place=self.module.source_of(one),
            )
        )


def _first_line(error: ReshardError) -> str:
    return str(error).partition("\n")[0]
