"""A propagated program made explicit: what each operation reads and makes, the reshards between, and what they cost.

Operations stay in their order.
Before one that reads a value in another sharding than the one it is kept in stands a reshard; a second use of the
same value in the same sharding takes what the first has made.
After one whose result comes out otherwise than it is kept stands another.

The bytes received are those of the busiest device over all reshards together; what stands in a loop counts once for
every turn, here and in the seconds.
What a device holds at most, its peak, is counted in `memory.py`.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import floor
from typing import Any

from reshard.contraction.chooser import Chooser
from reshard.contraction.goal import Goal
from reshard.contraction.pairwise import Contracted
from reshard.contraction.prices import BY_BYTES, busiest, local_flops, moved_by
from reshard.drawing.notebooks import mimebundle
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.operations.blocks import Block, around
from reshard.operations.kinds import LEAVING
from reshard.operations.operation import Operation, Value
from reshard.operations.reaching import windowed
from reshard.plans import Plan
from reshard.plans.chrome_trace import chrome_trace
from reshard.propagation.builder import Builder
from reshard.propagation.fixpoint import Net
from reshard.propagation.graph import Graph
from reshard.propagation.handing_on import HandingOn, is_handed_on
from reshard.propagation.lower_bound import LowerBound
from reshard.propagation.memory import Held, held, tile_bytes
from reshard.propagation.optimum import Optimum
from reshard.propagation.placement_page import placement_drawing, placement_page
from reshard.propagation.text import write
from reshard.sharding import Sharding
from reshard.tables import Table, bytes_text, plain

WHOLE = 1e-9
"""As a part of them, by how much a sum of whole bytes may miss a whole number."""
PROVED = 1e-7
"""As a part of the cost, by how much a bound may miss what it proves: sums of large numbers round."""

SPANS = re.compile(r"(window\(-?\d+:-?\d+, -?\d+:-?\d+,)(?: -?\d+:-?\d+,){2,}")
"""Of a window the spans, of which a table has the first two."""
NOTHING = LowerBound.known(0.0)
REGION = "shard_map"
"""The operation whose attributes tell what its body receives, by collective."""
LARGEST = 4
"""How many of the values that make the peak a table names."""


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
    touched: Mapping[Value, int] = field(repr=False)
    """Bytes that these read from memory and write there, as `reshard.propagation.fusion` counts them."""
    reasons: Mapping[str, str] = field(repr=False)
    """Per name of a value, where its sharding comes from."""
    goal: Goal = BY_BYTES
    """What was made least."""
    cost: float = 0.0
    """What the goal adds up, reshard by reshard: seconds, or bytes with the work that is weighed in."""
    least: LowerBound = field(default=NOTHING, repr=False, compare=False)
    """What no placement costs less than, once somebody asks."""
    without_rule: Counter[str] = field(default_factory=Counter)
    signature: Any = None
    memory_limit: int | None = None
    """Bytes that a device may hold at most, which are kept."""
    work_limit: int | None = None
    """Operations of a device at most, which are kept."""

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
    def received_inside(self) -> Counter[str]:
        """Bytes that a device receives by each collective in the bodies of regions, which no placement changes."""
        received: Counter[str] = Counter()
        for operation in self.operations:
            for name, count in operation.attributes if operation.name == REGION else ():
                received[name] += count * operation.trip_count if isinstance(count, int) else 0
        return received

    @property
    def network(self) -> Network | None:
        """For which it was placed."""
        return self.goal.network

    @property
    def flops(self) -> int:
        """Operations of the busiest device."""
        return sum(self.work.values())

    @property
    def bound(self) -> float:
        """What no placement costs less than, in the space that `reshard.propagation.space` states."""
        return min(self.least.cost, self.cost)

    @property
    def is_proved(self) -> bool:
        """Whether no placement costs less under the goal."""
        return self.bound >= self.cost * (1 - PROVED)

    @property
    def lower_bound_bytes(self) -> int | None:
        """Bytes that no placement goes below which has no more work, reshard by reshard; None on a network."""
        if self.network is not None:
            return None
        gap = 0 if self.is_proved else int(self.cost - self.bound)
        return max(self.received_bytes - gap, 0)

    @property
    def lower_bound_seconds(self) -> float | None:
        """Seconds that no placement goes below; None without a network."""
        return None if self.network is None else min(self.bound, self.seconds or 0.0)

    @cached_property
    def seconds(self) -> float | None:
        """What reshards and operations take on the network that it was placed for; None without one."""
        if self.network is None:
            return None
        moved = sum((plan.seconds or 0.0) * self.trip_count(value) for value, plan in self.plans.items())
        return moved + sum(map(self._worked, self.operations))

    def _worked(self, operation: Operation) -> float:
        """What the work of a device costs, over the trip count of an operation."""
        flops, touched = self.work.get(operation.result, 0), self.touched.get(operation.result, 0)
        return self.goal.of_work(flops, touched, operation.arithmetic)

    @cached_property
    def schedule_bound_seconds(self) -> float | None:
        """What no schedule of these reshards and operations goes below, each once for all its turns; None without one.

        It is the longest way from operand to result, of the work and of the cuts of reshards, latencies left out.
        Of what a loop repeats all turns of one reshard or operation count, or one turn of all that follow one another.
        """
        if self.network is None:
            return None
        longest: dict[Value, float] = {}
        alone = 0.0
        for operation in self.operations:
            value = operation.result
            moved = self.plans[value].lower_bound_seconds or 0.0 if value in self.plans else 0.0
            every = moved * operation.trip_count + self._worked(operation)
            before = max((longest.get(operand, 0.0) for operand in operation.operands), default=0.0)
            longest[value] = before + every / operation.trip_count
            alone = max(alone, every)
        return max(alone, *longest.values()) if longest else 0.0

    @cached_property
    def held(self) -> Held:
        """What a device holds when it holds most."""
        return held(self.operations, self.shardings, self.plans)

    @property
    def peak_bytes(self) -> int:
        """Bytes that a device holds at most, as `reshard.propagation.memory` counts them."""
        return self.held.peak_bytes

    @property
    def peak_values(self) -> tuple[tuple[str, int], ...]:
        """The values that a device holds then, and the bytes of their tiles, the largest first."""
        return tuple((value.name, tile_bytes(value, self.shardings[value])) for value in self.held.values)

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
                    SPANS.sub(r"\1 ...", sharding.text()),
                    " x ".join(map(str, sharding.local_shape(value.shape))) or "scalar",
                    "" if plan is None else times + bytes_text(plan.received_bytes),
                    self.reasons[value.name],
                )
            )
        reshards = "1 reshard" if len(self.plans) == 1 else f"{len(self.plans)} reshards"
        received = f"received {bytes_text(self.received_bytes)} on the busiest device"
        seconds = "" if self.seconds is None else f", {self.seconds * 1e6:.1f} us"
        figures = f"{reshards}, {received}{seconds}; peak {bytes_text(self.peak_bytes)}{self._largest()}"
        proof = f"least {self.goal.name}: {self._gap()}"
        opaque = []
        for why, counts in (("without a rule", self.without_rule), ("of shifts that are not known", self._unknown)):
            named = [f"{name} ({count}){self._paid_for(name)}" for name, count in sorted(counts.items())]
            opaque += [f"{why}, whole on every device: {', '.join(named)}"] if named else []
        inside = [f"{bytes_text(count)} by {name}" for name, count in self.received_inside.items()]
        opaque += [f"received besides, inside regions: {', '.join(inside)}"] if inside else []
        return plain([Table(rows), "", figures, *opaque, proof])

    @cached_property
    def _unknown(self) -> Counter[str]:
        """How often each operation stands here that shifts elements nobody knows where to."""
        unknown: Counter[str] = Counter()
        for operation in self.operations:
            known = {reached.label for reached in operation.reaches}
            unknown[operation.name] += not known.issuperset(operation.shifted)
        return +unknown

    def _paid_for(self, primitive: str) -> str:
        """What is received for the operands of operations of a name, in words."""
        name = primitive.replace("-", "_")
        operands = {operand for each in self.operations if each.name == name for operand in each.operands}
        received = sum(self.received(operand) for operand in operands)
        return f" for {bytes_text(received)}" if received else ""

    def _largest(self) -> str:
        """The largest values that a device holds when it holds most, in words."""
        largest = self.peak_values[:LARGEST]
        more = len(self.peak_values) - len(largest)
        named = [*(f"{name} {bytes_text(size)}" for name, size in largest), *([f"{more} more"] if more else [])]
        return f" ({', '.join(named)})" if named else ""

    def _gap(self) -> str:
        """How far from the best it may be, in words."""
        if self.is_proved:
            return "proved, no placement has less"
        least = f"{(self.lower_bound_seconds or 0.0) * 1e6:.1f} us"
        if self.lower_bound_bytes is not None:
            least = f"{bytes_text(self.lower_bound_bytes)} received at this work"
        return f"no placement has less than {least}, {1 - self.bound / self.cost:.1%} less in all"

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
        seconds = [  # what overlaps is drawn shorter, one after the other
            second * times * (plan.seconds or 0.0) / (sum(plan.step_seconds) or 1.0)
            for plan, times in moving
            if plan.step_seconds is not None
            for second in plan.step_seconds
        ]
        return chrome_trace(steps, seconds, self.mesh.devices)

    def to_html(self) -> str:
        """The placement as a page: its graph, every reshard, bytes by operation, memory over time."""
        return placement_page(self)

    def text(self) -> str:
        """The program as text that `Program.parse` reads.

        What operations read beyond the edges of tiles follows from them, and is not written.
        """
        windows = {
            operation.result: operation.operands[0]
            for operation in self.operations
            if operation.name == "reshard" and self.shardings[operation.result].has_windows
        }
        operations = (
            replace(operation, operands=tuple(windows.get(operand, operand) for operand in operation.operands))
            for operation in self.operations
            if operation.result not in windows
        )
        return write(replace(self, operations=tuple(operations)), self.shardings)

    def __repr__(self) -> str:
        meshes = ", ".join(map(str, self.meshes.values()))
        counts = f"{len(self.operations)} operations, {len(self.plans)} reshards"
        return f"<Placement on {meshes}: {counts}, {bytes_text(self.received_bytes)} received>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows."""
        return mimebundle(str(self), placement_drawing(self))

    def __str__(self) -> str:
        return self.table()


def _as_said(sharding: Sharding, said: Sharding | None) -> Sharding:
    """A sharding with the axes along which it was said to be replicated."""
    return replace(sharding, replicated=said.replicated) if said is not None and said.replicated else sharding


def explicit(program: Builder, net: Net, chooser: Chooser, best: Optimum, reasons: Sequence[str]) -> Placement:
    """The placement of a program whose values are kept as was chosen, with a reason for each.

    Einsums of which there is a chain are computed two operands at a time.
    What a block gives back otherwise than it is kept is moved once the block is whole.
    """
    shardings = best.shardings
    whole_with = {block: operation for operation in program.operations for block in around(operation.block)}
    leaving: dict[Block | None, list[tuple[Operation, Value, Sharding, str]]] = {}
    placing = PlacedSoFar(chooser, best, {value.name for value in program.values})
    known: dict[tuple[int, int], tuple[list[Sharding], int]] = {}
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
        elif operation.result.number in best.chains:
            result = placing.contracted(operation, best.chains[operation.result.number], operands, reason)
        else:
            layout = best.layouts[operation.result.number]
            calculation = net.calculations[operation.result.number]
            alike = id(layout), id(calculation)
            if alike not in known:
                tensors = windowed(layout.pattern, calculation.reaches, layout.shardings, calculation.shapes)
                parts = layout.largest_parts(calculation.label_sizes)
                known[alike] = tensors, local_flops(calculation.stages, parts)
            (*used, computed), flops = known[alike]
            pairs = zip(operands, used, strict=True)
            brought = [placing.brought(*pair, f"needed by {name}") for pair in pairs]
            stays = computed == sharding
            called, says = (name, reason) if stays else (placing.name(name), f"as {name} is computed")
            if is_handed_on(operation, layout):
                chain = HandingOn(placing, operation, layout)
                value, flops = chain.result(brought[0], called, says), flops + chain.flops
            else:
                value = placing.add(operation, brought, called, computed, says)
            result = value
            trips = net.trip_counts(operation.result.number)[-1]
            placing.work[value] = flops * trips
            ends = list(zip(operation.values, (*used, computed), strict=True))
            touched = sum(tile_bytes(*ends[place]) for place in net.fusion.touched(operation))
            placing.touched[value] = touched * trips
            if operation.name in LEAVING and not stays:
                leaving.setdefault(operation.block, []).append((operation, value, sharding, reason))
            elif not stays:
                result = placing.moved(value, sharding, name, reason)
        placing.places[operation.result] = result
        placing.numbers[result] = operation.result.number
        for block in around(operation.block):
            for end, value, target, reason in leaving.pop(block, ()) if whole_with[block] is operation else ():
                placing.places[end.result] = placing.moved(value, target, end.result.name, reason)
    for value, said in program.annotations.items():
        placing.shardings[placing.places[value]] = _as_said(placing.shardings[placing.places[value]], said)
    cost = best.cost if chooser.goal.is_sum else float(floor(best.cost * (1 + WHOLE)))  # less work is no byte
    return Placement(
        dict(program.meshes), tuple(placing.operations), placing.shardings, placing.plans, placing.work,
        placing.touched, placing.reasons, chooser.goal, cost, best.least, Counter(program.without_rule),
        program.signature,
    )  # fmt: skip


class PlacedSoFar:
    """The operations of a placement, as far as they stand."""

    def __init__(self, chooser: Chooser, best: Optimum, names: set[str]) -> None:
        self.chooser, self.best = chooser, best
        self.names = names
        """Those of the program, and what was made up."""
        self.operations: list[Operation] = []
        self.places: dict[Value, Value] = {}
        """Per value of the program, the one that has its name here."""
        self.numbers: dict[Value, int] = {}
        """Per value here that has the name of one of the program, the number of that."""
        self.shardings: dict[Value, Sharding] = {}
        self.plans: dict[Value, Plan] = {}
        self.work: dict[Value, int] = {}
        self.touched: dict[Value, int] = {}
        self.reasons: dict[str, str] = {}
        self.moves: dict[tuple[Value, Sharding], Value] = {}
        """What a reshard made, by its operand and its target."""

    def add(self, operation: Operation, operands: Sequence[Value], name: str, sharding: Sharding, reason: str) -> Value:
        """Let an operation stand here, on these operands; its result."""
        result = Value(name, operation.result.shape, operation.result.dtype, len(self.operations))
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
            self.touched[value] = sum(map(tile_bytes, (*inputs, value), (*used, made)))
            if made != target:
                value = self.moved(value, target, name if is_last else self.name(name), reason if is_last else why)
            products[id(part)] = value
        return products[id(way)]

    def moved(self, value: Value, target: Sharding, name: str, reason: str) -> Value:
        """A value in another sharding, by this name unless it was made before."""
        if (value, target) not in self.moves:
            source = value
            if value in self.numbers:
                origin = self.best.origins.get((self.numbers[value], target))
                source = value if origin is None else self.brought(value, origin, reason)
            try:
                plan = self.chooser.prices.plan(self.shardings[source], target, value.shape, value.dtype)
            except ReshardError as error:
                text = f"value {value.name} cannot be brought to {target.text()}"
                raise ReshardError("no-plan", text) from error
            reshard = Operation("reshard", (source,), value, block=self.operations[value.number].scope)
            result = self.moves[value, target] = self.add(reshard, (source,), name, target, reason)
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
