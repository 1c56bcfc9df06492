"""A program once it is placed: what each operation reads and makes, the reshards between, and what they cost.

The bytes received are those of the busiest device over all reshards together; what stands in a loop counts once for
every turn, here and in the seconds.
What a device holds at most, its peak, is counted in `memory.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from reshard.contraction.goal import Goal
from reshard.contraction.prices import BY_BYTES, busiest, moved_by
from reshard.drawing.notebooks import mimebundle
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.operations.operation import Operation, Value
from reshard.plans import Plan
from reshard.plans.chrome_trace import chrome_trace
from reshard.propagation.graph import Graph
from reshard.propagation.lower_bound import LowerBound
from reshard.propagation.memory import Held, held, tile_bytes
from reshard.propagation.placement_page import placement_drawing, placement_page
from reshard.propagation.text import write
from reshard.sharding import Sharding
from reshard.tables import Table, bytes_text, plain

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
    moving_cost: float = 0.0
    """What the reshards cost, one after the other: seconds, or bytes of the busiest device of each.

    Those that hand on from device to device count together.
    """
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

    @cached_property
    def cost(self) -> float:
        """What the goal adds up, reshard by reshard: seconds, or bytes with the work that is weighed in."""
        return self.moving_cost + sum(map(self._worked, self.operations))

    @property
    def bound(self) -> float:
        """What no placement costs less than, in the space that `reshard.propagation.space` states; 0 outside it."""
        least = self.least.cost
        return min(least, self.cost) if least <= self.cost * (1 + PROVED) else 0.0

    @property
    def is_proved(self) -> bool:
        """Whether no placement costs less under the goal."""
        return self.bound >= self.cost * (1 - PROVED)

    @property
    def lower_bound_bytes(self) -> int | None:
        """Bytes that no placement goes below which has no more work, reshard by reshard; None on a network.

        Each as `cost` has it: its busiest device, of an all-reduce the share of every device.
        """
        if self.network is not None:
            return None
        gap = 0 if self.is_proved else int(self.cost - self.bound)
        return max(min(int(self.moving_cost) - gap, self.received_bytes), 0)

    @property
    def lower_bound_seconds(self) -> float | None:
        """Seconds that no placement goes below; None without a network."""
        return None if self.network is None else min(self.bound, self.seconds or 0.0)

    @property
    def seconds(self) -> float | None:
        """What reshards and operations take on the network that it was placed for; None without one."""
        return None if self.network is None else self.cost

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
        proof = f"least {self.goal.title}: {self._gap()}"
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
