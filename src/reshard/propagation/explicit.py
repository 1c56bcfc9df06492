"""A propagated program made explicit, with the reshards that its choices ask for.

Operations stay in their order.
Before one that reads a value in another sharding than the one it is kept in stands a reshard; a second use of the
same value in the same sharding takes what the first has made.
After one whose result comes out otherwise than it is kept stands another.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from reshard.contraction.chooser import Chooser
from reshard.contraction.compute_layout import closed_sharding
from reshard.contraction.pairwise import Contracted
from reshard.contraction.prices import busiest, local_flops, moved_by, received_evenly
from reshard.errors import ReshardError
from reshard.operations.blocks import Block, around
from reshard.operations.kinds import LEAVING
from reshard.operations.operation import Operation, Value
from reshard.operations.reaching import windowed
from reshard.plans import Plan
from reshard.propagation.builder import Builder
from reshard.propagation.fixpoint import Net
from reshard.propagation.handing_on import HandingOn, is_handed_on
from reshard.propagation.memory import tile_bytes
from reshard.propagation.placement import Placement
from reshard.propagation.solution import Optimum
from reshard.sharding import Sharding


def _as_said(sharding: Sharding, said: Sharding | None) -> Sharding:
    """A sharding with the axes along which it was said to be replicated."""
    return replace(sharding, replicated=said.replicated) if said is not None and said.replicated else sharding


def _without_ones(sharding: Sharding) -> Sharding:
    """A sharding without its axes of one device, by which nothing is cut."""
    mesh = sharding.mesh
    if mesh.is_maximal or sharding.is_woven or 1 not in mesh.sizes.values():
        return sharding
    lists = [*(dim.axes for dim in sharding.dims), sharding.unreduced]
    *dims, unreduced = [tuple([axis for axis in axes if axis.size_in(mesh.sizes[axis.name]) > 1]) for axes in lists]
    return closed_sharding(mesh, tuple(dims), unreduced, sharding.reduction, sharding.uneven)


def explicit(program: Builder, net: Net, chooser: Chooser, best: Optimum, reasons: Sequence[str]) -> Placement:
    """The placement of a program whose values are kept as was chosen, with a reason for each.

    Einsums of which there is a chain are computed two operands at a time.
    What a block gives back otherwise than it is kept is moved once the block is whole.
    """
    shardings = best.shardings
    whole_with = {block: operation for operation in program.operations for block in around(operation.block)}
    leaving: dict[Block | None, list[tuple[Operation, Value, Sharding, str]]] = {}
    placing = PlacedSoFar(chooser, net, best, {value.name for value in program.values})
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
            result = placing.computed(operation, operands, sharding, reason)
            if placing.shardings[result] != sharding:
                if operation.name in LEAVING:
                    leaving.setdefault(operation.block, []).append((operation, result, sharding, reason))
                else:
                    result = placing.moved(result, sharding, name, reason)
        placing.places[operation.result] = result
        placing.numbers[result] = operation.result.number
        for block in around(operation.block):
            for end, value, target, reason in leaving.pop(block, ()) if whole_with[block] is operation else ():
                placing.places[end.result] = placing.moved(value, target, end.result.name, reason)
    for value, said in program.annotations.items():
        placing.shardings[placing.places[value]] = _as_said(placing.shardings[placing.places[value]], said)
    return Placement(
        dict(program.meshes), tuple(placing.operations), placing.shardings, placing.plans, placing.work,
        placing.touched, placing.reasons, chooser.goal, placing.moving_cost(), best.least,
        Counter(program.without_rule), program.signature,
    )  # fmt: skip


class PlacedSoFar:
    """The operations of a placement, as far as they stand."""

    def __init__(self, chooser: Chooser, net: Net, best: Optimum, names: set[str]) -> None:
        self.chooser, self.net, self.best = chooser, net, best
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
        self.made: dict[tuple[Value, Sharding], Value] = {}
        """What was made first, by the same, but for axes of one device: other names for it move nothing."""
        self.handed_on: list[set[Value]] = []
        """Of what is handed on from device to device, what its reshards make."""
        self._known: dict[tuple[int, int], tuple[list[Sharding], int]] = {}
        """By layout and calculation, where a device's operands and result are, windows and all, and its operations."""

    def add(self, operation: Operation, operands: Sequence[Value], name: str, sharding: Sharding, reason: str) -> Value:
        """Let an operation stand here, on these operands; its result."""
        result = Value(name, operation.result.shape, operation.result.dtype, len(self.operations))
        self.operations.append(operation.with_values(tuple(operands), result))
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

    def computed(self, operation: Operation, operands: Sequence[Value], sharding: Sharding, reason: str) -> Value:
        """Let an operation stand here as it was chosen to be computed; by its own name where that is its sharding."""
        name, number = operation.result.name, operation.result.number
        layout, calculation = self.best.layouts[number], self.net.calculations[number]
        alike = id(layout), id(calculation)
        if alike not in self._known:
            tensors = windowed(layout.pattern, calculation.reaches, layout.shardings, calculation.shapes)
            parts = layout.largest_parts(calculation.label_sizes)
            self._known[alike] = tensors, local_flops(calculation.stages, parts)
        (*used, output), flops = self._known[alike]
        brought = [self.brought(*pair, f"needed by {name}") for pair in zip(operands, used, strict=True)]
        called, says = (name, reason) if output == sharding else (self.name(name), f"as {name} is computed")
        if is_handed_on(operation, layout):
            chain, before = HandingOn(self, operation, layout), len(self.operations)
            value, flops = chain.result(brought[0], called, says), flops + chain.flops
            self.handed_on.append(self.plans.keys() & {each.result for each in self.operations[before:]})
        else:
            value = self.add(operation, brought, called, output, says)
        trips = self.net.trip_counts(number)[-1]
        self.work[value] = flops * trips
        ends = list(zip(operation.values, (*used, output), strict=True))
        self.touched[value] = sum(tile_bytes(*ends[place]) for place in self.net.fusion.touched(operation)) * trips
        return value

    def moving_cost(self) -> float:
        """As `Placement.moving_cost`."""
        moving = [(value, plan, self.operations[value.number].trip_count) for value, plan in self.plans.items()]
        if self.chooser.goal.network is not None:
            return sum((plan.seconds or 0.0) * trips for _, plan, trips in moving)
        together = set[Value]().union(*self.handed_on)
        in_turn = sum(received_evenly(plan) * trips for value, plan, trips in moving if value not in together)
        at_once = [
            busiest((moved_by(plan), trips) for value, plan, trips in moving if value in values)
            for values in self.handed_on
        ]
        return float(in_turn + sum(at_once))

    def moved(self, value: Value, target: Sharding, name: str, reason: str) -> Value:
        """A value in another sharding, by this name unless it was made before."""
        if (value, target) not in self.moves:
            plain = _without_ones(target)
            source = self.made.get((value, plain), value)
            if source is value and value in self.numbers:
                number = self.numbers[value]
                origin = self.best.origins.get((number, target)) or self.best.origins.get((number, plain))
                source = value if origin is None else self.brought(value, origin, reason)
            try:
                plan = self.chooser.prices.plan(self.shardings[source], target, value.shape, value.dtype)
            except ReshardError as error:
                text = f"value {value.name} cannot be brought to {target.text()}"
                raise ReshardError("no-plan", text) from error
            reshard = Operation("reshard", (source,), value, block=self.operations[value.number].scope)
            result = self.moves[value, target] = self.add(reshard, (source,), name, target, reason)
            self.plans[result] = plan
            self.made.setdefault((value, plain), result)
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
