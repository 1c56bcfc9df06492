"""How data flows through the collectives of a partitioned module.

A *run* is a set of collectives with nothing but moves of data between them: copies, slices, concatenations, fusions of
those.
It is what became of one reshard, and begins and ends at instructions that compute.
A *chain* is all that lies between a parameter of the entry and a result, where nothing on the way does more than move
data or work on it element by element; so the parameter in its sharding and the result in its own are the ends.

All-reduces and reduce-scatters combine values, so they are in no run and no chain.

>>> from reshard.xla.read.reading import read_text
>>> module = read_text('''HloModule m, num_partitions=2
... ENTRY %e (p: f32[4,8]) -> f32[8,4] {
...   %p = f32[4,8]{1,0} parameter(0), sharding={devices=[2,1]<=[2]}
...   %g = f32[8,8]{1,0} all-gather(%p), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true
...   ROOT %s = f32[8,4]{1,0} slice(%g), slice={[0:8], [0:4]}
... }''').modules[0]
>>> run, = find_runs(module)
>>> [collective.name for collective in run.collectives], run.before, run.after
(['g'], {(4, 8)}, {(8, 4)})
>>> chain, = find_chains(module)
>>> chain.parameter.name, chain.result, [collective.name for collective in chain.collectives]
('p', 's', ['g'])
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from reshard.xla.read.collectives import REDUCING, kind_of
from reshard.xla.read.ir import Computation, Instruction, Module
from reshard.xla.read.loops import called_by
from reshard.xla.report.placing import ELEMENTWISE

MOVING = frozenset({
    "bitcast", "bitcast-convert", "concatenate", "convert", "copy", "copy-done", "copy-start", "dynamic-slice",
    "dynamic-update-slice", "get-tuple-element", "optimization-barrier", "pad", "reshape", "reverse", "slice",
    "transpose", "tuple", "gather"
})  # fmt: skip
"""Instructions that only move data, or change its element type."""
_NEUTRAL = frozenset(("constant", "iota", "parameter", "partition-id", "replica-id", "broadcast"))
_MOST_STEPS = 1_000_000
"""Instructions that are gone through in search of chains."""
_MOST_ORIGINS = 64
"""Of what one instruction carries, as many as are told apart."""


@dataclass(eq=False, slots=True)
class CollectiveRun:
    """Collectives with only moves of data between them."""

    computation: str
    collectives: list[Instruction] = field(default_factory=list)
    before: set[tuple[int, ...]] = field(default_factory=set)
    """The sizes of what comes in."""
    after: set[tuple[int, ...]] = field(default_factory=set)
    """The sizes of what goes out, and of what is made of it at once."""
    first: str = ""
    """Names of what comes in."""
    last: str = ""
    """Names of what takes it."""


@dataclass(eq=False, slots=True)
class ParameterChain:
    """What lies between a parameter and a result."""

    parameter: Instruction
    output: int
    """Which result."""
    result: str
    """The name of the instruction."""
    collectives: list[Instruction]
    dims: tuple[int, ...]
    """Sizes of the result on a device."""


class _Work(IntEnum):
    """What an instruction does to values; what is made of several does the least of theirs."""

    COMPUTES = 0
    IS_ELEMENTWISE = 1
    """It does no more than move data or work on it element by element."""
    ONLY_MOVES = 2


class _Works:
    """What each instruction of a module does, fusions by what is in them."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.of_computations: dict[str, _Work] = {}

    def of(self, instruction: Instruction) -> _Work:
        """What one does."""
        opcode = instruction.opcode
        if opcode in ("fusion", "call"):
            return min(map(self._of_computation, called_by(instruction)), default=_Work.COMPUTES)
        if opcode in MOVING or (opcode.endswith("-done") and _moves_data(opcode.removesuffix("-done"))):
            return _Work.ONLY_MOVES
        return _Work.IS_ELEMENTWISE if opcode in ELEMENTWISE else _Work.COMPUTES

    def _of_computation(self, name: str) -> _Work:
        if name not in self.of_computations:
            self.of_computations[name] = _Work.COMPUTES  # what it is to itself, where it calls itself
            computation = self.module.computations.get(name)
            if computation is not None:
                works = [
                    self.of(instruction)
                    for instruction in computation.instructions.values()
                    if instruction.opcode not in _NEUTRAL and (instruction.shape is None or instruction.shape.dims)
                ]
                self.of_computations[name] = min(works, default=_Work.ONLY_MOVES)
        return self.of_computations[name]


def _moves_data(opcode: str) -> bool:
    return kind_of(opcode) not in (None, *REDUCING)


def is_moved(instruction: Instruction) -> bool:
    """Whether it is a collective that moves data without combining any."""
    return _moves_data(instruction.opcode)


def find_runs(module: Module) -> list[CollectiveRun]:
    """All runs, in the order of their first collectives."""
    works = _Works(module)
    return [
        run
        for computation in module.computations.values()
        if any(map(is_moved, computation.instructions.values()))
        for run in _RunSearch(computation, works).runs()
    ]


class _RunSearch:
    """Finds the runs of one computation: collectives are united where data of the one reaches the other."""

    def __init__(self, computation: Computation, works: _Works) -> None:
        self.computation = computation
        self.instructions = computation.instructions
        self.united_with: dict[str, str] = {}
        """Of each collective, another of its run, or itself."""
        self.carries: dict[str, str] = {}
        """Of each instruction that carries a collective's data: a member of its run."""
        self.inputs: dict[str, set[str]] = {}
        """Of a member of a run: names of what comes in there."""
        sources: dict[str, frozenset[str]] = {}
        """Of each instruction that moves data: what that comes from."""
        for instruction in self.instructions.values():
            is_collective = is_moved(instruction)
            if is_collective or (works.of(instruction) is _Work.ONLY_MOVES and instruction.opcode != "tuple"):
                sources[instruction.name] = self._unite(instruction, is_collective, sources)

    def _unite(
        self, instruction: Instruction, is_collective: bool, sources: dict[str, frozenset[str]]
    ) -> frozenset[str]:
        """Unite the runs whose data an instruction carries; what else it carries comes from."""
        members = [self.carries[name] for name in instruction.operands if name in self.carries]
        if is_collective:
            self.united_with[instruction.name] = instruction.name
            members.append(instruction.name)
        for member in members[1:]:
            self.united_with[self._first_of(member)] = self._first_of(members[0])
        origins = set[str]()
        for name in instruction.operands:
            if name in self.carries:
                continue
            if name in sources:
                origins |= sources[name]
            elif name in self.instructions and _is_data(self.instructions[name]):
                origins.add(name)
        if instruction.opcode == "get-tuple-element" and origins:
            origins = {instruction.name}
        if members:
            self.carries[instruction.name] = members[0]
            self.inputs.setdefault(members[0], set()).update(origins)
        return frozenset(origins if len(origins) <= _MOST_ORIGINS else sorted(origins)[:_MOST_ORIGINS])

    def _first_of(self, member: str) -> str:
        """The one collective that stands for a run."""
        while self.united_with[member] != member:
            self.united_with[member] = self.united_with[self.united_with[member]]
            member = self.united_with[member]
        return member

    def runs(self) -> list[CollectiveRun]:
        runs: dict[str, CollectiveRun] = {}
        for name in self.united_with:
            run = runs.setdefault(self._first_of(name), CollectiveRun(self.computation.name))
            run.collectives.append(self.instructions[name])
        for member, names in self.inputs.items():
            run = runs[self._first_of(member)]
            for name in sorted(names):
                source = self.instructions[name]
                fused = source.operands if source.opcode == "fusion" else ()
                run.before |= _sizes(source, *(self.instructions[n] for n in fused if n in self.instructions))
                run.first = run.first or name
        for instruction in self.instructions.values():
            ends = [instruction] if instruction.is_root else []
            if instruction.name not in self.carries:
                ends = [self.instructions[name] for name in instruction.operands if name in self.carries]
            for end in ends:
                if end.name in self.carries:
                    run = runs[self._first_of(self.carries[end.name])]
                    run.last = instruction.name
                    run.after |= _sizes(end, instruction)
        return list(runs.values())


def _sizes(*instructions: Instruction) -> set[tuple[int, ...]]:
    """The sizes of the arrays among the results."""
    shapes = [instruction.shape for instruction in instructions]
    return {shape.dims for shape in shapes if shape is not None and shape.dims}


def _is_data(instruction: Instruction) -> bool:
    """Whether it is an array, or a tuple, that is not made of nothing."""
    if instruction.opcode in _NEUTRAL - {"parameter"}:
        return False
    return instruction.result.is_tuple or any(shape.dims for shape in instruction.result.shapes)


def find_chains(module: Module) -> list[ParameterChain]:
    """All chains of the entry that have a collective in them; the module notes where there are too many to follow."""
    entry = module.entry
    root = None if entry is None else entry.root
    if entry is None or root is None or not any(map(is_moved, entry.instructions.values())):
        return []
    search = _ChainSearch(entry, _Works(module))
    chains: list[ParameterChain] = []
    for output, name in enumerate(root.operands if root.opcode == "tuple" else [root.name]):
        if search.steps > _MOST_STEPS:
            problem = f"the chains to results {output} and beyond are not followed: the program is too large"
            module.note(root.line, problem)
            break
        if name in entry.instructions:
            chains += search.to(entry.instructions[name], output)
    return chains


class _ChainSearch:
    """Follows the chains of one computation from their ends."""

    def __init__(self, entry: Computation, works: _Works) -> None:
        self.entry = entry
        self.steps = 0
        """Instructions that were gone through so far."""
        self.passes = {
            name: is_moved(instruction) or works.of(instruction) >= _Work.IS_ELEMENTWISE
            for name, instruction in entry.instructions.items()
        }
        self.order = {name: place for place, name in enumerate(entry.instructions)}

    def to(self, result: Instruction, output: int) -> list[ParameterChain]:
        """The chains that end in one result."""
        instructions = self.entry.instructions
        reaching, stack = {result.name}, [result]
        while stack:
            instruction = stack.pop()
            for name in instruction.operands if self.passes[instruction.name] else ():
                if name not in reaching and name in instructions:
                    reaching.add(name)
                    stack.append(instructions[name])
        self.steps += len(reaching)
        within = [instructions[name] for name in sorted(reaching, key=self.order.__getitem__)]
        if result.shape is None or not any(map(is_moved, within)):
            return []
        parameters = [value for value in within if value.opcode == "parameter" and _sizes(value)]
        self.steps += len(parameters) * len(within)
        if self.steps > _MOST_STEPS:
            parameters = parameters[: max(1, _MOST_STEPS // len(within))]
        chains = []
        for parameter in parameters:
            reached = {parameter.name}
            for instruction in within:
                if self.passes[instruction.name] and not reached.isdisjoint(instruction.operands):
                    reached.add(instruction.name)
            moved = [instruction for instruction in within if instruction.name in reached and is_moved(instruction)]
            if result.name in reached and moved:
                chains.append(ParameterChain(parameter, output, result.name, moved, result.shape.dims))
        return chains
