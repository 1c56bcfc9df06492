"""Programs that come from a function of JAX: with loops, and with arguments and results that are pytrees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from reshard.axis import Axis, merged
from reshard.jax.tracing.emitter import Local, Region
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.operations.projection import shards
from reshard.propagation import Operation, PlacedProgram, Program, Value
from reshard.sharding import DimSharding, Sharding


class Carry(NamedTuple):
    """The values that must be sharded alike for a loop to go round."""

    start: Value
    """What goes in."""
    inside: Value
    """What the body reads."""
    after: Value
    """What the body gives back."""
    last: Value
    """What comes out."""


class TracedProgram(Program):
    """A program that comes from a function of JAX.

    Attributes:
        without_rule: how often each primitive stands in it that no rule knows; its operands are whole everywhere.
    """

    def __init__(self, mesh: Mesh | dict[str, Mesh]) -> None:
        super().__init__(mesh)
        self.without_rule: Counter[str] = Counter()
        self.carries: list[Carry] = []
        self.in_tree: Any = None
        self.out_tree: Any = None

    def propagate(self, network: Network | str | None = None, until_priority: int | None = None) -> PlacedTrace:
        """As `Program.propagate`, in a second go with what only the first tells.

        The carries of loops are held at the shardings that go around them, and inputs and outputs that are open at
        what divides them, since JAX holds nothing else.
        """
        found = super().propagate(network, until_priority)
        known = {value: found.sharding(carry.inside) for carry in self.carries for value in carry}
        for value in (*self.inputs, *self.outputs):
            known[value] = _divisible(found.sharding(value), value.shape, self.annotations.get(value))
        if self.carries or any(found.sharding(value) != sharding for value, sharding in known.items()):
            held = TracedProgram(self.meshes)
            held.operations, held._named = self.operations, self._named
            held.annotations = {**self.annotations, **known}
            held.without_rule, held.in_tree, held.out_tree = self.without_rule, self.in_tree, self.out_tree
            found = Program.propagate(held, network, until_priority)
        return PlacedTrace(found.placement)


class PlacedTrace(PlacedProgram):
    """A placed program that comes from a function of JAX."""

    @property
    def without_rule(self) -> Counter[str]:
        """How often each primitive stands in it that no rule knows; its operands are whole everywhere."""
        return self.placement.source.without_rule  # type: ignore[attr-defined]  # a TracedProgram

    def table(self) -> str:
        """As of a `PlacedProgram`, and the primitives without a rule."""
        named = [f"{name} ({count})" for name, count in sorted(self.without_rule.items())]
        return super().table() + (f"\nwithout a rule, whole on every device: {', '.join(named)}" if named else "")


def _divisible(sharding: Sharding, shape: tuple[int, ...], given: Sharding | None) -> Sharding:
    """The sharding with the axes that a dim was not given cut back to those that divide it."""
    if sharding.mesh.is_maximal:
        return sharding
    dims = []
    for number, (dim, size) in enumerate(zip(sharding.dims, shape, strict=True)):
        kept: list[Axis] = []
        for axis in dim.axes:
            parts = shards((*kept, axis), sharding.mesh.sizes)
            if size % parts and not (given and axis in given.dims[number].axes):
                break
            kept.append(axis)
        dims.append(DimSharding(merged(kept, sharding.mesh.sizes)))
    return replace(sharding, dims=tuple(dims))


def regions_around(operations: Sequence[Operation], value: Value) -> tuple[Region, ...]:
    """The loops and branches in which a value is made; a reshard is where its operand is."""
    operation = operations[value.number]
    while operation.payload is None and operation.operands:
        operation = operations[operation.operands[0].number]
    return operation.payload.regions if isinstance(operation.payload, Local) else ()
