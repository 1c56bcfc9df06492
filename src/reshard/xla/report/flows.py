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
>>> [one.name for one in run.collectives], run.before, run.after
(['g'], {(4, 8)}, {(8, 4)})
>>> chain, = find_chains(module)
>>> chain.parameter.name, chain.result, [one.name for one in chain.collectives]
('p', 's', ['g'])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from reshard.xla.read.collectives import REDUCING, kind_of
from reshard.xla.read.ir import Computation, Instruction, Module, Note
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


@dataclass(eq=False, slots=True)
class Run:
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
class Chain:
    """What lies between a parameter and a result."""

    parameter: Instruction
    index: int
    """Which parameter."""
    output: int
    """Which result."""
    result: str
    """The name of the instruction."""
    collectives: list[Instruction]
    dims: tuple[int, ...]
    """Sizes of the result on a device."""


class _Kinds:
    """Which instructions move and which work element by element, fusions by what is in them."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.known: dict[str, tuple[bool, bool]] = {}

    def of(self, one: Instruction) -> tuple[bool, bool]:
        """Whether it only moves data, and whether it does that or works element by element."""
        if one.opcode in ("fusion", "call"):
            inside = [self._within(name) for name in called_by(one)]
            return all(kind[0] for kind in inside) and bool(inside), all(kind[1] for kind in inside) and bool(inside)
        if one.opcode.endswith("-done") and kind_of(one.opcode.removesuffix("-done")) not in (None, *REDUCING):
            return True, True
        return one.opcode in MOVING, one.opcode in MOVING or one.opcode in ELEMENTWISE

    def _within(self, name: str) -> tuple[bool, bool]:
        if name not in self.known:
            self.known[name] = False, False
            inside = self.module.computations.get(name)
            if inside is None:
                return False, False
            moves = works = True
            for one in inside.instructions.values():
                scalar = one.shape is not None and not one.shape.dims
                if one.opcode in _NEUTRAL or scalar:
                    continue
                kind = self.of(one)
                moves, works = moves and kind[0], works and kind[1]
            self.known[name] = moves, works
        return self.known[name]


def is_moved(one: Instruction) -> bool:
    """Whether it is a collective that moves data without combining any."""
    return kind_of(one.opcode) not in (None, *REDUCING)


def find_runs(module: Module) -> list[Run]:
    """All runs, in the order of their first collectives."""
    kinds = _Kinds(module)
    runs = []
    for computation in module.computations.values():
        if any(is_moved(one) for one in computation.instructions.values()):
            runs += _runs_of(computation, kinds)
    return runs


def _runs_of(computation: Computation, kinds: _Kinds) -> list[Run]:
    parent: dict[str, str] = {}

    def top(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    carried: dict[str, str] = {}
    """Of each instruction that carries a collective's data: a member of its run."""
    sources: dict[str, frozenset[str]] = {}
    """Of each instruction that moves data: what that comes from."""
    took: dict[str, set[str]] = {}
    for one in computation.instructions.values():
        moves, collective = kinds.of(one)[0] and one.opcode != "tuple", is_moved(one)
        if not moves and not collective:
            continue
        of_run = [carried[name] for name in one.operands if name in carried]
        if collective:
            parent[one.name] = one.name
            of_run.append(one.name)
        for other in of_run[1:]:
            parent[top(other)] = top(of_run[0])
        if of_run:
            carried[one.name] = of_run[0]
        came = set[str]()
        for name in one.operands:
            found = computation.instructions.get(name)
            if name in sources:
                came |= sources[name] if name not in carried else set()
            elif found is not None and name not in carried and _is_data(found):
                came.add(name)
        if one.opcode == "get-tuple-element" and came:
            came = {one.name}
        sources[one.name] = frozenset(came) if len(came) <= 64 else frozenset(sorted(came)[:64])
        if of_run:
            took.setdefault(of_run[0], set()).update(came)
    runs: dict[str, Run] = {}
    for name in parent:
        runs.setdefault(top(name), Run(computation.name)).collectives.append(computation.instructions[name])
    for member, names in took.items():
        _add_before(runs[top(member)], computation, names)
    _add_after(runs, computation, carried, top)
    return list(runs.values())


def _is_data(one: Instruction) -> bool:
    """Whether it is an array, or a tuple, that is not made of nothing."""
    if one.opcode in _NEUTRAL - {"parameter"}:
        return False
    return one.result.is_tuple or any(shape.dims for shape in one.result.shapes)


def _add_before(run: Run, computation: Computation, names: Iterable[str]) -> None:
    for name in sorted(names):
        one = computation.instructions[name]
        within = one.operands if one.opcode == "fusion" else ()
        found = [computation.instructions[other] for other in within if other in computation.instructions]
        run.before |= {other.shape.dims for other in (one, *found) if other.shape is not None and other.shape.dims}
        run.first = run.first or name


def _add_after(
    runs: dict[str, Run], computation: Computation, carried: dict[str, str], top: Callable[[str], str]
) -> None:
    for one in computation.instructions.values():
        ends = [one] if one.is_root else []
        if one.name not in carried:
            ends = [computation.instructions[name] for name in one.operands if name in carried]
        for end in ends:
            run = runs[top(carried[end.name])] if end.name in carried else None
            if run is not None:
                run.last = one.name
                run.after |= {each.shape.dims for each in (end, one) if each.shape is not None and each.shape.dims}


def find_chains(module: Module) -> list[Chain]:
    """All chains of the entry that have a collective in them; the module notes where there are too many to follow."""
    entry = module.entry
    root = None if entry is None else entry.root
    if entry is None or root is None or not any(is_moved(one) for one in entry.instructions.values()):
        return []
    follower = _Follower(entry, _Kinds(module))
    chains: list[Chain] = []
    for index, name in enumerate(root.operands if root.opcode == "tuple" else [root.name]):
        if follower.steps > _MOST_STEPS:
            problem = f"the chains to results {index} and beyond are not followed: the program is too large"
            module.notes.append(Note(root.line, problem))
            break
        if name in entry.instructions:
            chains += follower.to(entry.instructions[name], index)
    return chains


class _Follower:
    """Follows the chains of one computation from their ends."""

    def __init__(self, entry: Computation, kinds: _Kinds) -> None:
        self.entry = entry
        self.steps = 0
        """Instructions that were gone through so far."""
        self.passes = {name: is_moved(one) or kinds.of(one)[1] for name, one in entry.instructions.items()}
        self.order = {name: place for place, name in enumerate(entry.instructions)}

    def to(self, result: Instruction, output: int) -> list[Chain]:
        """The chains that end in one result."""
        instructions = self.entry.instructions
        seen, stack = {result.name}, [result]
        while stack:
            one = stack.pop()
            for name in one.operands if self.passes[one.name] else ():
                if name not in seen and name in instructions:
                    seen.add(name)
                    stack.append(instructions[name])
        self.steps += len(seen)
        inside = [instructions[name] for name in sorted(seen, key=self.order.__getitem__)]
        if result.shape is None or not any(is_moved(one) for one in inside):
            return []
        parameters = [one for one in inside if one.opcode == "parameter" and one.shape is not None and one.shape.dims]
        self.steps += len(parameters) * len(inside)
        if self.steps > _MOST_STEPS:
            parameters = parameters[: max(1, _MOST_STEPS // len(inside))]
        return [found for one in parameters if (found := self._from(one, inside, result, output)) is not None]

    def _from(
        self, parameter: Instruction, inside: list[Instruction], result: Instruction, output: int
    ) -> Chain | None:
        reached = {parameter.name}
        for one in inside:
            if self.passes[one.name] and not reached.isdisjoint(one.operands):
                reached.add(one.name)
        moved = [one for one in inside if one.name in reached and is_moved(one)]
        if result.name not in reached or not moved or result.shape is None:
            return None
        index = int(parameter.attributes.get("index", "0"))
        return Chain(parameter, index, output, result.name, moved, result.shape.dims)
