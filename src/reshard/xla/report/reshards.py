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

from collections.abc import Iterator, Mapping

from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.xla.read.ir import ArrayShape, Computation, Definition, Instruction, Module
from reshard.xla.read.loops import executions
from reshard.xla.read.shardings import read_pair
from reshard.xla.report.figures import OpSite, dtype_of, first_line
from reshard.xla.report.placing import ELEMENTWISE, Placing, Whereabouts, manual_shardings, target_of

_BEFORE = frozenset(("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"))
"""Custom calls that the partitioner takes away."""


UNCHANGED, FREE = "unchanged", "free"
"""What else is found: a constraint that a value meets as it lies, and one on a constant, made wherever it is wanted."""
Finding = OpSite | str


def is_constraint(instruction: Instruction) -> bool:
    """Whether it only says how its operand is to lie."""
    return instruction.opcode in ("sharding-constraint", "reshard") or (
        instruction.opcode == "custom-call" and target_of(instruction) == "Sharding"
    )


def is_before_partitioning(module: Module) -> bool:
    """Whether the shapes are of whole tensors."""
    if module.form == "stablehlo":
        return True
    entry, instructions = module.entry, [instruction for _, instruction in module.instructions()]
    targets = set(map(target_of, instructions))
    if not targets.isdisjoint(_BEFORE) or any(target.startswith("xla.sdy.") for target in targets):
        return True
    if module.is_scheduled or (entry is not None and entry.name.endswith("_spmd")):
        return False
    local = [instruction for instruction in instructions if not instruction.opcode.startswith(("all-", "collective-"))]
    if any(instruction.shardings and instruction.opcode != "parameter" for instruction in local):
        return True
    return entry is not None and len(local) == len(instructions)


class ReshardSearch:
    """Finds the reshards that a module asks for."""

    def __init__(self, module: Module, meshes: Mapping[str, Mesh]) -> None:
        """Take a module before partitioning, and the meshes that its shardings may be on."""
        self.module, self.meshes = module, meshes
        self.executed = executions(module)
        self.placing = Placing(module)

    def findings(self) -> Iterator[Finding]:
        """All that is found, in the order of the text."""
        for computation, instruction in self.module.instructions():
            yield from self._of(computation, instruction)

    def _of(self, computation: Computation, instruction: Instruction) -> Iterator[Finding]:
        """The reshards of the operands of one instruction."""
        opcode, operands, shardings = instruction.opcode, instruction.operands, instruction.shardings
        targets, origin = list(zip(operands, shardings, strict=False)), "operand"
        if is_constraint(instruction) and operands:
            targets, origin = [(operands[0], shardings[0] if shardings else "")], "constraint"
        elif opcode == "manual-computation" or target_of(instruction) == "xla.sdy.GlobalToLocalShape":
            inner = manual_shardings(instruction, "in_shardings")
            targets, origin = list(zip(operands, inner, strict=False)), "constraint"
        elif opcode == "get-tuple-element" and len(shardings) == 1:
            lies = self.placing.of_element(Definition(computation, instruction))
            if lies.is_free or (lies.text and instruction.shape is not None):
                site = self._site(computation, instruction, origin)
                yield self._compared(site, lies, shardings[0], instruction.shape)
            return
        elif opcode in ELEMENTWISE and shardings:
            origin = "constraint" if opcode == "copy" else origin
            targets = [(name, shardings[0]) for name in dict.fromkeys(operands)]
            targets = [pair for pair in targets if _is_alike(computation, instruction, pair[0])]
        elif opcode == "return" and instruction.is_root and not (shardings and operands):
            origin = "result"
            targets = [pair for pair in zip(operands, computation.results, strict=False) if pair[1]]
        elif opcode != "tuple" and (opcode != "while" or len(shardings) != len(operands)):
            if shardings and operands and self._contradicts(computation, instruction):
                why = f"how {opcode} is partitioned between shardings is not told"
                yield self._site(computation, instruction, "operand").unrecognised(why)
            return
        for name, target in targets:
            value = computation.find(name)
            shape = value.instruction.shape if value is not None else None
            if is_constraint(instruction) and shape is None:
                shape = instruction.shape
            site = self._site(computation, instruction, origin)
            yield self._compared(site, self.placing.of(computation, name), target, shape)

    def _site(self, computation: Computation, instruction: Instruction, origin: str) -> OpSite:
        times, unknown = self.executed[computation.name]
        return OpSite(
            origin=origin,
            text=self.module.text,
            module=self.module.name,
            line=instruction.line,
            name=instruction.name,
            place=self.module.source_of(instruction),
            op_name=instruction.attributes.get("op_name", ""),
            executions=times,
            unknown=unknown,
        )

    def _contradicts(self, computation: Computation, instruction: Instruction) -> bool:
        """Whether an operation is no reshard by itself, but its operands lie otherwise than it does."""
        passing = ("get-tuple-element", "custom-call", "call", "parameter", "reduce", "broadcast", "while")
        operands = [operand for name in instruction.operands if (operand := computation.find(name)) is not None]
        return instruction.opcode not in passing and any(
            operand.instruction.shardings not in ((), instruction.shardings) for operand in operands
        )

    def _compared(self, site: OpSite, lies: Whereabouts, wanted: str, shape: ArrayShape | None) -> Finding:
        """The reshard from where a value lies to where it is wanted, if it is one."""
        if lies.is_free:
            return FREE
        if not lies.text or not wanted or shape is None:
            why = lies.why or ("the shape is not told" if wanted else "it does not say which sharding")
            return site.unrecognised(f"to {wanted or 'where'}: {why}")
        if lies.text == wanted:
            return UNCHANGED
        try:
            source, target = read_pair(lies.text, wanted, self.meshes, len(shape.dims))
        except ReshardError as error:
            return site.unrecognised(f"a sharding cannot be read: {first_line(error)}")
        dtype = dtype_of(shape.dtype)
        if dtype is None:
            return site.unrecognised(f"element type {shape.dtype} is not known")
        try:
            is_same = source.mesh.size == target.mesh.size and source.is_equivalent_to(target, shape.dims)
        except ReshardError:
            is_same = False
        return UNCHANGED if is_same else site.reshard(source, target, shape.dims, dtype)


def _is_alike(computation: Computation, instruction: Instruction, operand: str) -> bool:
    """Whether an operand of an elementwise instruction is an array of its shape, and not a tile cut by the program."""
    value = computation.find(operand)
    shape = value.instruction.shape if value is not None else None
    if shape is None or instruction.shape is None or shape.dims != instruction.shape.dims:
        return False  # a scalar among the operands, such as the predicate of a select
    return bool(shape.dims) and not instruction.shardings[0].startswith("{manual")
