"""A propagated program made explicit: what each operation reads and makes, the reshards between, and what they cost.

Operations stay in their order.
Before one that reads a value in another sharding than the one it is kept in stands a reshard; a second use of the
same value in the same sharding takes what the first has made.
After one whose result comes out otherwise than it is kept stands another.

The bytes received are those of the busiest device over all reshards together; what stands in a loop counts once for
every turn, here and in the seconds.
A value is held from where it is made to where it is last used, outputs to the end; what is held at most is the peak.

**Two goes.** What leads into a loop, round it and out of it must be sharded alike, and only a first go tells how: the
second is placed around that.
Where a program's inputs and outputs are to be even, those that were left open are held in the second go at what
divides their dims.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any

from reshard.axis import Axis, merged
from reshard.contraction.chooser import Chooser
from reshard.contraction.pairwise import Contracted
from reshard.contraction.prices import busiest, moved_by
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.network import Network, check_reach
from reshard.operations.blocks import Block, around
from reshard.operations.kinds import LEAVING
from reshard.operations.operation import Operation, Value
from reshard.operations.projection import shards
from reshard.plans import Plan
from reshard.plans.chrome_trace import chrome_trace
from reshard.plans.table import bytes_text
from reshard.propagation.builder import Builder
from reshard.propagation.fixpoint import Flow, Net, Origin
from reshard.propagation.graph import Graph
from reshard.propagation.search import search, settle
from reshard.propagation.text import write
from reshard.sharding import DimSharding, Sharding
from reshard.tables import Table, plain


@dataclass(frozen=True)
class Placement(Graph):
    """A program in which every value has its sharding and every reshard is an operation.

    Values keep their names; what a reshard makes is named after its operand.
    """

    meshes: Mapping[str, Mesh]
    operations: tuple[Operation, ...]
    shardings: Mapping[Value, Sharding]
    """Of all values, without open dims."""
    plans: Mapping[Value, Plan]
    """The plan of every reshard, by the value that it makes."""
    work: Mapping[Value, int]
    """Operations of a device in all, by the value that they make."""
    reasons: Mapping[str, str] = field(repr=False)
    """Per name of a value, where its sharding comes from."""
    network: Network | None = None
    """For which it was placed."""
    without_rule: Counter[str] = field(default_factory=Counter)
    signature: Any = None

    @cached_property
    def _by_name(self) -> dict[str, Value]:
        return {value.name: value for value in self.values}

    def value(self, name: Value | str) -> Value:
        """The value of a name, or of the name of a value of the program that was placed.

        Raises:
            ReshardError: `bad-program` where there is none.
        """
        return self.named(name.name if isinstance(name, Value) else name, self._by_name)

    def sharding(self, value: Value | str) -> Sharding:
        """The sharding of a value, given by its name or as it stands in either program.

        Raises:
            ReshardError: `bad-program` where there is no such value.
        """
        return self.shardings[self.value(value)]

    def why(self, value: Value | str) -> str:
        """Where the sharding of a value comes from: per dim the value that it was given to, and on what way it came.

        Raises:
            ReshardError: `bad-program` where there is no such value.
        """
        return self.reasons[self.value(value).name]

    def trip_count(self, value: Value | str) -> int:
        """How often a value is made, as far as the program tells: a loop of unknown length counts as if it ran once.

        Raises:
            ReshardError: `bad-program` where there is no such value.
        """
        return self.operations[self.value(value).number].trip_count

    @cached_property
    def received_bytes(self) -> int:
        """Bytes that the busiest device receives, over all reshards and their trip counts."""
        return busiest((moved_by(plan), self.trip_count(value)) for value, plan in self.plans.items())

    def received(self, value: Value | str) -> int:
        """The bytes that the busiest device receives over the trip count of the reshard that makes a value, or 0."""
        value = self.value(value)
        return self.plans[value].received_bytes * self.trip_count(value) if value in self.plans else 0

    @cached_property
    def seconds(self) -> float | None:
        """What reshards and operations take on the network that it was placed for; None without one."""
        if self.network is None:
            return None
        moved = sum((plan.seconds or 0.0) * self.trip_count(value) for value, plan in self.plans.items())
        rate = self.network.flops
        return moved + (sum(work / rate for work in self.work.values()) if rate else 0.0)

    @cached_property
    def peak_bytes(self) -> int:
        """Bytes that a device holds at most: all values that are still needed, and what a reshard needs besides."""

        def local_bytes(value: Value) -> int:
            return prod(self.shardings[value].local_shape(value.shape)) * value.dtype.itemsize

        last = {value: number for number, operation in enumerate(self.operations) for value in operation.values}
        last.update(dict.fromkeys(self.outputs, len(self.operations)))
        ends: list[list[Value]] = [[] for _ in range(len(self.operations) + 1)]
        for value, number in last.items():
            ends[number].append(value)
        held = peak = 0
        for number, operation in enumerate(self.operations):
            result = operation.result
            held += local_bytes(result)
            more = 0
            if result in self.plans:
                more = max(self.plans[result].peak_bytes - sum(map(local_bytes, operation.values)), 0)
            peak = max(peak, held + more)
            held -= sum(map(local_bytes, ends[number]))
        return peak

    def table(self) -> str:
        """The values with their shapes, shardings, local shapes, communication, and why; then the figures."""
        rows = [("value", "made by", "shape", "sharding", "local shape", "received", "why")]
        for operation in self.operations:
            value, sharding = operation.result, self.shardings[operation.result]
            plan = self.plans.get(value)
            kind = operation.name if plan is None or not plan.steps else " + ".join(step.kind for step in plan.steps)
            operands = ", ".join(operand.name for operand in operation.operands)
            times = f"{operation.trip_count} x " if operation.trip_count != 1 else ""
            rows.append(
                (
                    value.name,
                    f"{kind}({operands})" if operands else kind,
                    " x ".join(map(str, value.shape)) or "scalar",
                    sharding.text(),
                    " x ".join(map(str, sharding.local_shape(value.shape))) or "scalar",
                    "" if plan is None else times + bytes_text(plan.received_bytes),
                    self.reasons[value.name],
                )
            )
        reshards = "1 reshard" if len(self.plans) == 1 else f"{len(self.plans)} reshards"
        received = f"received {bytes_text(self.received_bytes)} on the busiest device"
        seconds = "" if self.seconds is None else f", {self.seconds * 1e6:.1f} us"
        figures = f"{reshards}, {received}{seconds}; peak {bytes_text(self.peak_bytes)}"
        named = [f"{name} ({count})" for name, count in sorted(self.without_rule.items())]
        opaque = [f"without a rule, whole on every device: {', '.join(named)}"] if named else []
        return plain([Table(rows), "", figures, *opaque])

    def to_trace(self) -> str:
        """The reshards one after another as a Chrome trace in JSON, which Perfetto opens.

        Those in a loop stand once, for as long as they take in all.

        Raises:
            ReshardError: `bad-argument` where the program was placed without a network.
        """
        if self.network is None:
            raise ReshardError("bad-argument", "a trace needs the prices of a program placed for a network")
        moving = [(plan, self.trip_count(value)) for value, plan in self.plans.items() if plan.steps]
        steps = [step for plan, _ in moving for step in plan.steps]
        seconds = [second * times for plan, times in moving for second in plan.step_seconds or ()]
        return chrome_trace(steps, seconds, self.mesh.devices)

    def text(self) -> str:
        """The program as text that `Program.parse` reads."""
        return write(self, self.shardings)

    def __str__(self) -> str:
        return self.table()


def place(program: Builder, network: Network | None, until_priority: int | None) -> Placement:
    """Carry the shardings of a program through and place it.

    Raises:
        ReshardError: `bad-network` where a mesh has devices beyond the network; `no-plan` where an operation can be
            computed in no layout.
    """
    for mesh in program.meshes.values() if network is not None else ():
        check_reach(network, mesh)
    net, chooser = Net(program), Chooser(network, is_for_many=True)
    shardings, flows = search(net, chooser, until_priority)
    held = _held(
        program, [_as_said(s, program.annotations.get(v)) for v, s in zip(program.values, shardings, strict=True)]
    )
    if held:
        program = copy(program)
        program.annotations = {**program.annotations, **held}
        net, chooser = Net(program), Chooser(network, is_for_many=True)
        shardings, flows = search(net, chooser, until_priority)
    chains = settle(net, chooser, shardings)
    reasons = [_reason(net, flows, number, sharding) for number, sharding in enumerate(shardings)]
    return explicit(program, net, chooser, shardings, reasons, chains)


def _as_said(sharding: Sharding, said: Sharding | None) -> Sharding:
    """A sharding with the axes along which it was said to be replicated."""
    return replace(sharding, replicated=said.replicated) if said is not None and said.replicated else sharding


def _held(program: Builder, shardings: Sequence[Sharding]) -> dict[Value, Sharding]:
    """What the first go tells the second; nothing where that would say no more."""
    lasts = [operation for operation in program.operations if operation.name == "last"]
    held = {value: shardings[last.operands[1].number] for last in lasts for value in last.values[1:]}
    if program.even_ends:
        for value in (*program.inputs, *program.outputs):
            held[value] = _divisible(shardings[value.number], value.shape, program.annotations.get(value))
    if lasts or any(shardings[value.number] != sharding for value, sharding in held.items()):
        return held
    return {}


def _divisible(sharding: Sharding, shape: tuple[int, ...], said: Sharding | None) -> Sharding:
    """The sharding with the axes that a dim was not given cut back to those that divide it."""
    if sharding.mesh.is_maximal:
        return sharding
    dims = []
    for number, (dim, size) in enumerate(zip(sharding.dims, shape, strict=True)):
        axes: list[Axis] = []
        for axis in dim.axes:
            count = shards((*axes, axis), sharding.mesh.sizes)
            if size % count and not (said and axis in said.dims[number].axes):
                break
            axes.append(axis)
        dims.append(DimSharding(merged(axes, sharding.mesh.sizes)))
    return replace(sharding, dims=tuple(dims))


def explicit(
    program: Builder,
    net: Net,
    chooser: Chooser,
    shardings: Sequence[Sharding],
    reasons: Sequence[str],
    chains: Mapping[int, Contracted] = MappingProxyType({}),
) -> Placement:
    """The placement of a program whose values are kept in given shardings, with a reason for each.

    Einsums of which there is a chain are computed two operands at a time.
    What a block gives back otherwise than it is kept is moved once the block is whole.
    """
    whole_with = {block: operation for operation in program.operations for block in around(operation.block)}
    leaving: dict[Block | None, list[tuple[Operation, Value, Sharding, str]]] = {}
    placing = _Placing(chooser, {value.name for value in program.values})
    for operation, sharding, reason in zip(program.operations, shardings, reasons, strict=True):
        name = operation.result.name
        operands = [placing.places[operand] for operand in operation.operands]
        if operation.name in ("input", "constant"):
            result = placing.add(operation, (), name, sharding, reason)
        elif operation.name == "reshard":
            result = placing.moved(placing.latest(operands[0], sharding), sharding, name, reason)
        elif operation.name in ("output", "carry", "last"):
            why = f"asked for by output {name}" if operation.name == "output" else f"needed by {name}"
            brought = [placing.brought(operand, sharding, why) for operand in operands]
            result = placing.add(operation, brought, name, sharding, reason)
        elif operation.result.number in chains:
            result = placing.contracted(operation, chains[operation.result.number], operands, reason)
        else:
            kept_in = tuple(placing.shardings[operand] for operand in operands)
            trips = net.trip_counts(operation.result.number)
            chosen = chooser.choose(net.calculations[operation.result.number], kept_in, sharding, trips)
            *used, computed = chosen.layout.shardings
            why = f"needed by {name}"
            brought = [placing.brought(*pair, why) for pair in zip(operands, used, strict=True)]
            stays = computed == sharding
            called, says = (name, reason) if stays else (placing.name(name), f"as {name} is computed")
            value = result = placing.add(operation, brought, called, computed, says)
            placing.work[value] = chosen.price.flops
            if operation.name in LEAVING and not stays:
                leaving.setdefault(operation.block, []).append((operation, value, sharding, reason))
            elif not stays:
                result = placing.moved(value, sharding, name, reason)
        placing.places[operation.result] = result
        for block in around(operation.block):
            for end, value, target, reason in leaving.pop(block, ()) if whole_with[block] is operation else ():
                placing.places[end.result] = placing.moved(value, target, end.result.name, reason)
    for value, said in program.annotations.items():
        placing.shardings[placing.places[value]] = _as_said(placing.shardings[placing.places[value]], said)
    return Placement(
        dict(program.meshes), tuple(placing.operations), placing.shardings, placing.plans, placing.work,
        placing.reasons, chooser.network, Counter(program.without_rule), program.signature,
    )  # fmt: skip


class _Placing:
    """The operations of a placement, as far as they stand."""

    def __init__(self, chooser: Chooser, names: set[str]) -> None:
        self.chooser = chooser
        self.names = names
        """Those of the program, and what was made up."""
        self.operations: list[Operation] = []
        self.places: dict[Value, Value] = {}
        """Per value of the program, the one that has its name here."""
        self.shardings: dict[Value, Sharding] = {}
        self.plans: dict[Value, Plan] = {}
        self.work: dict[Value, int] = {}
        self.reasons: dict[str, str] = {}
        self.moves: dict[tuple[Value, Sharding], Value] = {}
        """What a reshard made, by its operand and its target."""

    def add(self, operation: Operation, operands: Sequence[Value], name: str, sharding: Sharding, reason: str) -> Value:
        """Let an operation stand here, on these operands; its result."""
        result = replace(operation.result, name=name, number=len(self.operations))
        self.operations.append(replace(operation, operands=tuple(operands), result=result))
        self.shardings[result], self.reasons[name] = sharding, reason
        return result

    def contracted(self, operation: Operation, way: Contracted, operands: Sequence[Value], reason: str) -> Value:
        """Let the contractions of an einsum stand here, two operands at a time; the result of the last."""
        name = operation.result.name
        products: dict[int, Value] = {}
        for part in way.parts():
            is_last, target, pattern = part is way, part.chosen.target, part.task.pattern
            *used, made = part.chosen.layout.shardings
            inputs = [operands[one] if isinstance(one, int) else products[id(one)] for one in part.inputs]
            brought = [self.brought(*pair, f"needed by {name}") for pair in zip(inputs, used, strict=True)]
            product = replace(
                operation,
                pattern=pattern,
                sizes=tuple((label, size) for label, size in operation.sizes if label in pattern.labels),
                result=replace(operation.result, shape=part.task.calculation.shapes[-1]),
            )
            is_named = is_last and made == target
            why = reason if is_named else f"as {name} is computed"
            value = self.add(product, brought, name if is_named else self.name(name), made, why)
            self.work[value] = part.chosen.price.flops
            if made != target:
                value = self.moved(value, target, name if is_last else self.name(name), reason if is_last else why)
            products[id(part)] = value
        return products[id(way)]

    def moved(self, value: Value, target: Sharding, name: str, reason: str) -> Value:
        """A value in another sharding, by this name unless it was made before."""
        if (value, target) not in self.moves:
            try:
                plan = self.chooser.prices.plan(self.shardings[value], target, value.shape, value.dtype)
            except ReshardError as error:
                text = f"value {value.name} cannot be brought to {target.text()}"
                raise ReshardError("no-plan", text) from error
            reshard = Operation("reshard", (value,), value, block=self.operations[value.number].scope)
            result = self.moves[value, target] = self.add(reshard, (value,), name, target, reason)
            self.plans[result] = plan
        return self.moves[value, target]

    def brought(self, value: Value, target: Sharding, reason: str) -> Value:
        """A value as it is needed: itself, or what a reshard makes of it."""
        return value if self.shardings[value] == target else self.moved(value, target, self.name(value.name), reason)

    def latest(self, value: Value, target: Sharding) -> Value:
        """A value, or what was made of it in that sharding under another name."""
        while (value, target) in self.moves:
            value = self.moves[value, target]
        return value

    def name(self, stem: str) -> str:
        """A name of its own, made of another."""
        numbers = itertools.count(1)
        name = next(name for number in numbers if (name := f"{stem}.{number}") not in self.names)
        self.names.add(name)
        return name


def _reason(net: Net, flows: Sequence[Flow], number: int, sharding: Sharding) -> str:
    """Where the axes of every dim come from, in words."""
    if net.meshes[number].is_maximal:
        return "given"
    reasons = ["unreduced until it is needed whole"] if sharding.unreduced else []
    dims = tuple(dim.axes for dim in sharding.dims)
    whole = [flow for flow in flows if flow.dims[number] == dims]
    for dim, axes in enumerate(dims):
        if axes:
            flow = next((flow for flow in whole or flows if flow.dims[number][dim] == axes), None)
            way = "" if flow is None else " " + _way(net, flow, flow.origins[number][dim][-1])
            reasons.append(f"dim {dim} {{{', '.join(map(str, axes))}}}{way}")
    chosen = "" if whole and len({flow.dims[number] for flow in flows}) == 1 else "; chosen by price"
    return ("; ".join(reasons) or "nothing reaches it") + chosen


def _way(net: Net, flow: Flow, origin: Origin) -> str:
    """On what way axes came, in words."""
    if origin.operation is None:
        return "given" + (f" at priority {origin.priority}" if origin.priority else "")
    operations = net.graph.operations
    priority = f", priority {origin.priority}" if origin.priority else ""
    root = _root(flow, origin)
    via = operations[origin.operation].result.name
    through = "" if root == origin.giver else f" through {operations[origin.giver].result.name}"
    return f"from {operations[root].result.name}{through} by {via}{priority}"


def _root(flow: Flow, origin: Origin) -> int:
    """The value to which the axes were given."""
    passed: dict[Origin, None] = {}
    while origin not in flow.roots and origin.operation is not None and origin not in passed:
        passed[origin] = None
        names = {axis.name for axis in origin.axes}
        earlier = (each for origins in flow.origins[origin.giver].values() for each in origins)
        before = next((each for each in earlier if names & {axis.name for axis in each.axes}), None)
        if before is None:
            break
        origin = before
    root = flow.roots.get(origin, origin.giver)
    flow.roots.update(dict.fromkeys(passed, root))
    return root
