"""A propagated program made explicit: what each operation reads and makes, the reshards between, and what they cost.

Operations stay in their order.
Before one that reads a value in another sharding than the one it is kept in stands a reshard; a second use of the
same value in the same sharding takes what the first has made.
After one whose result comes out otherwise than it is kept stands another.

The bytes received are those of the busiest device in each reshard, added up; what stands in a loop counts once for
every turn, here and in the seconds.
A value is held from where it is made to where it is last used, outputs to the end; what is held at most is the peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from reshard.errors import ReshardError
from reshard.network import Network
from reshard.operations.operation import Value
from reshard.plans import Plan
from reshard.plans.trace import chrome_trace
from reshard.propagation.conflicts import add_made, cheapest
from reshard.propagation.fixpoint import Flow, Net, Origin
from reshard.propagation.graph import Graph
from reshard.propagation.layouts import Pricer
from reshard.propagation.listing import table
from reshard.propagation.search import search
from reshard.propagation.sharing import improved
from reshard.sharding import Sharding


@dataclass
class Placement:
    """A graph with every sharding and every reshard, and its figures."""

    source: Graph
    """What was placed."""
    graph: Graph
    """Every value of it is annotated, without open dims."""
    network: Network | None
    plans: dict[Value, Plan]
    """By the value that the reshard makes."""
    work: dict[Value, float]
    """Operations of a device in all turns, by the value that they make."""
    reasons: dict[str, str] = field(repr=False)
    """Per name of a value, where its sharding comes from."""

    def why(self, value: Value) -> str:
        """Where the sharding of a value comes from."""
        return self.reasons[value.name]

    @cached_property
    def received_bytes(self) -> int:
        """Over all reshards, the bytes that the busiest device receives."""
        return sum(self.received(value) for value in self.plans)

    def received(self, value: Value) -> int:
        """The bytes that the busiest device receives in all turns of the reshard that makes a value."""
        return self.plans[value].received_bytes * self.turns(value)

    def turns(self, value: Value) -> int:
        """How often a value is made."""
        return self.graph.operations[value.number].turns

    @cached_property
    def seconds(self) -> float | None:
        """Of reshards and operations; None without a network."""
        if self.network is None:
            return None
        moved = sum((plan.seconds or 0.0) * self.turns(value) for value, plan in self.plans.items())
        rate = self.network.flops
        return moved + (sum(2 * work / rate for work in self.work.values()) if rate else 0.0)

    def local_bytes(self, value: Value) -> int:
        """The bytes of a device's largest tile."""
        return prod(self.graph.annotations[value].local_shape(value.shape)) * value.dtype.itemsize

    @cached_property
    def peak_bytes(self) -> int:
        """What a device holds at most."""
        operations = self.graph.operations
        last = {v: n for n, operation in enumerate(operations) for v in operation.values}
        for operation in operations:
            if operation.name == "output":
                last[operation.result] = len(operations)
        ends: list[list[Value]] = [[] for _ in range(len(operations) + 1)]
        for value, number in last.items():
            ends[number].append(value)
        held = peak = 0
        for number, operation in enumerate(operations):
            result = operation.result
            held += self.local_bytes(result)
            more = 0
            if result in self.plans:
                both = self.local_bytes(operation.operands[0]) + self.local_bytes(result)
                more = max(self.plans[result].peak_bytes - both, 0)
            peak = max(peak, held + more)
            held -= sum(map(self.local_bytes, ends[number]))
        return peak

    def table(self) -> str:
        """One line per value."""
        return table(self)

    def to_trace(self) -> str:
        """The reshards, one after another, as a Chrome trace; those in a loop stand once, as long as all turns take.

        Raises:
            ReshardError: `bad-argument` without a network.
        """
        if self.network is None:
            raise ReshardError("bad-argument", "a trace needs the prices of a program placed for a network")
        moving = [(plan, self.turns(value)) for value, plan in self.plans.items() if plan.steps]
        steps = [step for plan, _ in moving for step in plan.steps]
        seconds = [second * turns for plan, turns in moving for second in plan.step_seconds or ()]
        return chrome_trace(steps, seconds, self.graph.mesh.devices)


def place(source: Graph, network: Network | None, until_priority: int | None) -> Placement:
    """Carry the shardings of a graph through and place it.

    Raises:
        ReshardError: `no-plan` where an operation can be computed in no layout.
    """
    net, pricer = Net(source), Pricer(network, _uneven(source))
    chosen, looked = search(net, pricer, until_priority)
    reasons = [_reason(net, looked, number, sharding) for number, sharding in enumerate(chosen)]
    return placed(net, pricer, chosen, reasons)


def _uneven(graph: Graph) -> str:
    """The rule for uneven dims of all shardings that were given and cut anything, if it is one."""
    rules = {sharding.uneven for sharding in graph.annotations.values() if any(dim.axes for dim in sharding.dims)}
    return rules.pop() if len(rules) == 1 else "ceil"


def place_as(source: Graph, kept: Mapping[str, Sharding], network: Network | None = None) -> Placement:
    """The placement of a graph whose shardings come from elsewhere, by the names of the values.

    Partial results may still wait where that is cheaper.

    Raises:
        ReshardError: `no-plan` where an operation can be computed in no layout.
    """
    net, pricer = Net(source), Pricer(network)
    found = [
        [
            pricer.sharding(
                kept[value.name].mesh,
                [dim.axes for dim in kept[value.name].dims],
                kept[value.name].unreduced,
                kept[value.name].reduction,
                kept[value.name].uneven,
            )
        ]
        for value in source.values
    ]
    add_made(net, pricer, found)
    chosen = improved(net, pricer, found, (), cheapest(net, pricer, found))
    return placed(net, pricer, chosen, ["from elsewhere"] * len(chosen))


def placed(net: Net, pricer: Pricer, kept: Sequence[Sharding], reasons: Sequence[str]) -> Placement:
    """The placement of a graph whose values are kept in given shardings."""
    source = net.graph
    graph = Graph(dict(source.meshes))
    made: dict[Value, Value] = {}
    moved: dict[tuple[Value, Sharding], Value] = {}
    plans: dict[Value, Plan] = {}
    work: dict[Value, float] = {}
    said: dict[str, str] = {}
    names = {value.name for value in source.values}

    def named(stem: str) -> str:
        number = 1
        while f"{stem}.{number}" in names:
            number += 1
        names.add(f"{stem}.{number}")
        return f"{stem}.{number}"

    def reshard(value: Value, target: Sharding, name: str, reason: str) -> Value:
        key = value, target
        if key not in moved:
            plan = pricer.plan(graph.annotations[value], target, value.shape, value.dtype)
            if plan is None:
                raise ReshardError("no-plan", f"value {value.name} cannot be brought to {target.text()}")
            result = graph.add("reshard", (value,), name, value.shape)
            graph.annotate(result, target)
            plans[result], moved[key], said[name] = plan, result, reason
        return moved[key]

    for operation, rule, sharding, reason in zip(source.operations, net.rules, kept, reasons, strict=True):
        value = operation.result
        said[value.name] = reason
        if operation.name in ("input", "constant"):
            new = graph.repeat(operation, (), value.name)
            graph.annotate(new, sharding)
            made[value] = new
            continue
        operands = tuple(made[operand] for operand in operation.operands)
        if operation.name == "reshard":
            start = operands[0]
            while (start, sharding) in moved:  # made already under another name
                start = moved[start, sharding]
            made[value] = reshard(start, sharding, value.name, reason)
            continue
        if operation.name == "output":
            if graph.annotations[operands[0]] != sharding:
                asked = f"asked for by output {value.name}"
                operands = (reshard(operands[0], sharding, named(operands[0].name), asked),)
            new = graph.repeat(operation, operands, value.name)
            graph.annotate(new, sharding)
            made[value] = new
            continue
        kept_in = tuple(graph.annotations[v] for v in operands)
        computed = pricer.compute(operation, rule, kept_in, sharding, net.turns(value.number))
        used = []
        for operand, needed in zip(operands, computed.operands, strict=True):
            if graph.annotations[operand] == needed:
                used.append(operand)
            else:
                used.append(reshard(operand, needed, named(operand.name), f"needed by {value.name}"))
        stays = computed.result == sharding
        new = graph.repeat(operation, used, value.name if stays else named(value.name))
        graph.annotate(new, computed.result)
        work[new] = computed.cost[1]
        if not stays:
            said[new.name] = f"as {value.name} is computed"
        made[value] = new if stays else reshard(new, sharding, value.name, reason)
    for value, given in source.annotations.items():
        if given.replicated:
            here = graph.value(value.name)
            graph.annotations[here] = replace(graph.annotations[here], replicated=given.replicated)
    return Placement(source, graph, pricer.network, plans, work, said)


def _reason(net: Net, flows: Sequence[Flow], number: int, sharding: Sharding) -> str:
    """Where the axes of every dim come from, in words."""
    if net.meshes[number].is_maximal:
        return "given"
    parts = ["partial until it is needed whole"] if sharding.unreduced else []
    dims = tuple(dim.axes for dim in sharding.dims)
    whole = [flow for flow in flows if flow.dims[number] == dims]
    for dim, axes in enumerate(dims):
        if axes:
            flow = next((flow for flow in whole or flows if flow.dims[number][dim] == axes), None)
            source = "" if flow is None else " " + _trace(net, flow, number, dim, flow.origins[number][dim][-1])
            parts.append(f"dim {dim} {{{', '.join(map(str, axes))}}}{source}")
    chosen = "" if whole and len({flow.dims[number] for flow in flows}) == 1 else "; chosen by price"
    return ("; ".join(parts) or "nothing reaches it") + chosen


def _trace(net: Net, flow: Flow, number: int, dim: int, origin: Origin) -> str:
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
    way: dict[Origin, None] = {}
    here = origin
    while here not in flow.roots and here.operation is not None and here not in way:
        way[here] = None
        names = {axis.name for axis in here.axes}
        ones = (one for ones in flow.origins[here.giver].values() for one in ones)
        before = next((one for one in ones if names & {axis.name for axis in one.axes}), None)
        if before is None:
            break
        here = before
    root = flow.roots.get(here, here.giver)
    flow.roots.update(dict.fromkeys(way, root))
    return root
