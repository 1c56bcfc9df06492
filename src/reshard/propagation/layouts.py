"""Where an operation is computed: its compute layout, and what the reshards around it cost.

A compute layout gives every axis of the mesh to one label of the operation, or to none.
Each operand is brought to its part of the layout; what is summed over a sharded label comes out partial; and the
result is brought to where it is kept.
Layouts are made of the axes that the operation's tensors have for a label already, whole or cut short, and of none;
the one with the lowest price is taken, and of equal ones that with the least work for a device.

By hand, `bd,df->bf` on x=2, y=2, with x on b, y on d in both operands and nothing on the result's f: computed as it
lies, the result is partial along y, and one all-reduce makes it whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum, inf, prod
from typing import NamedTuple

from reshard.axis import Axis, merged, sorted_and_merged
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.planner import plan
from reshard.plans import Plan
from reshard.propagation.graph import Operation
from reshard.propagation.projection import Axes, axes_of, labels_of, shards
from reshard.propagation.rules import Rule, reduction_of, waiting_operands
from reshard.sharding import DimSharding, Sharding

Cost = tuple[float, float, int]
"""Seconds on the network, or bytes received without one; operations of a device; reshards."""
NOTHING: Cost = (0.0, 0.0, 0)
IMPOSSIBLE: Cost = (inf, inf, 0)
MOST_LAYOUTS = 256
"""Where labels could be combined in more ways, only those that one tensor leads are looked at."""


def added(*costs: Cost) -> Cost:
    """The sum of costs, the same in whatever order they are."""
    first, second, third = zip(*costs, strict=True)
    return (fsum(first), fsum(second), sum(third))


class Computed(NamedTuple):
    """An operation in a compute layout."""

    operands: tuple[Sharding, ...]
    """What it reads."""
    result: Sharding
    """What it makes, which may be partial."""
    cost: Cost
    """Of the reshards before and after it, and of its own work."""
    work: Cost
    """Of its own work alone."""


@dataclass
class Pricer:
    """Prices of reshards and of operations on one network, each looked at once."""

    network: Network | None
    uneven: str = "ceil"
    """How dims are cut that their shards do not divide, where nothing says otherwise."""
    _plans: dict[tuple[Sharding, Sharding, tuple[int, ...], DType], Plan | None] = field(default_factory=dict)
    _chosen: dict[tuple[object, ...], Computed] = field(default_factory=dict)
    _shardings: dict[tuple[object, ...], Sharding] = field(default_factory=dict)

    def plan(self, source: Sharding, target: Sharding, shape: tuple[int, ...], dtype: DType) -> Plan | None:
        """The plan of a reshard; None where there is none."""
        key = source, target, shape, dtype
        if key not in self._plans:
            try:
                self._plans[key] = plan(source, target, shape, dtype, network=self.network)
            except ReshardError:  # a reduction without meaning for the dtype, say
                self._plans[key] = None
        return self._plans[key]

    def price(self, source: Sharding, target: Sharding, shape: tuple[int, ...], dtype: DType) -> Cost:
        """What a reshard costs."""
        if source == target:
            return NOTHING
        found = self.plan(source, target, shape, dtype)
        if found is None:
            return IMPOSSIBLE
        return (found.received_bytes if found.seconds is None else found.seconds, 0.0, int(bool(found.steps)))

    def sharding(
        self,
        mesh: Mesh,
        dims: Iterable[Axes],
        unreduced: Iterable[Axis] = (),
        reduction: str = "sum",
        uneven: str | None = None,
    ) -> Sharding:
        """A closed sharding; the same object for the same arguments."""
        key = (mesh, tuple(dims), tuple(unreduced), reduction, uneven or self.uneven)
        if key not in self._shardings:
            built = tuple(DimSharding(merged(axes, mesh.sizes)) for axes in key[1])
            self._shardings[key] = Sharding(
                mesh, () if mesh.is_maximal else built, (), sorted_and_merged(key[2], mesh.sizes), reduction, key[4]
            )
        return self._shardings[key]

    def compute(
        self, operation: Operation, rule: Rule, operands: tuple[Sharding, ...], result: Sharding | None
    ) -> Computed:
        """The cheapest way to compute an operation.

        Args:
            operation: what is computed.
            rule: its rule.
            operands: where they are kept, without open dims.
            result: where it is kept; None where it may stay as it comes out, on the mesh of the first operand.
        """
        dtypes = tuple(value.dtype for value in operation.values)
        key = (rule, operation.name, operation.attribute("value"), dtypes, operands, result)
        if key not in self._chosen:
            self._chosen[key] = self._best(operation, rule, operands, result)
        return self._chosen[key]

    def _best(
        self, operation: Operation, rule: Rule, operands: tuple[Sharding, ...], result: Sharding | None
    ) -> Computed:
        mesh = result.mesh if result is not None else operands[0].mesh
        tensors = (*operands, result)
        if mesh.is_maximal:
            layouts: Iterable[tuple[Axes, ...]] = [((),) * len(rule.sizes)]
        else:
            layouts = Labels(rule, mesh, tensors).layouts
        waits = _waits(operation, [s if s.mesh == mesh else None for s in operands])
        best: Computed | None = None
        for lists in layouts:
            for waiting, unreduced, reduction in waits:
                found = self._computed(operation, rule, mesh, lists, (waiting, unreduced, reduction), operands, result)
                if found is not None and (best is None or found.cost < best.cost):
                    best = found
        if best is None or best.cost[0] == inf:
            raise ReshardError(
                "no-plan",
                f"value {operation.result.name}: its operands cannot be brought to any layout in which it is computed",
            )
        return best

    def _computed(
        self,
        operation: Operation,
        rule: Rule,
        mesh: Mesh,
        lists: tuple[Axes, ...],
        wait: tuple[tuple[int, ...], Axes, str],
        operands: tuple[Sharding, ...],
        result: Sharding | None,
    ) -> Computed | None:
        waiting, unreduced, reduction = wait
        if any(axis.overlaps(other) for axes in lists for axis in axes for other in unreduced):
            return None
        used = []
        for term in range(len(operands)):
            dims = _dims(rule, term, lists, mesh)
            used.append(self.sharding(mesh, dims, unreduced if term in waiting else (), reduction))
        summed = [axis for n, role in enumerate(rule.roles) if role in ("reduced", "selected") for axis in lists[n]]
        made = self.sharding(
            mesh,
            _dims(rule, len(operands), lists, mesh),
            [*summed, *unreduced],
            reduction_of(operation) if summed else reduction,
        )
        work = rule.multiplications / max(prod(shards(axes, mesh.sizes) for axes in lists), 1)
        if self.network is not None and self.network.flops:
            first: Cost = (2 * work / self.network.flops, work, 0)
        else:
            first = (0.0, work, 0)
        costs = [first]
        values = operation.values
        for kept, needed, value in zip(operands, used, values, strict=False):
            costs.append(self.price(kept, needed, value.shape, value.dtype))
        if result is not None:
            costs.append(self.price(made, result, values[-1].shape, values[-1].dtype))
        return Computed(tuple(used), made, added(*costs), first)


class Labels:
    """The axes that each label of an operation may have."""

    def __init__(self, rule: Rule, mesh: Mesh, tensors: Sequence[Sharding | None]) -> None:
        self.rule, self.mesh = rule, mesh
        self.held: list[dict[int, Axes]] = []
        """Per tensor, its labels' axes."""
        for term, sharding in enumerate(tensors):
            here: dict[int, Axes] = {}
            if sharding is not None and sharding.mesh == mesh:
                for group, dim in zip(rule.terms[term], sharding.dims, strict=True):
                    found = labels_of(group, dim.axes, rule.sizes, mesh.sizes)
                    here.update(zip(group, found.lists, strict=True))
            self.held.append(here)

    @cached_property
    def options(self) -> list[list[Axes]]:
        """Per label, every list of axes that a tensor has for it, and its beginnings."""
        options: list[list[Axes]] = []
        for label, role in enumerate(self.rule.roles):
            if role in ("replicated", "shifted"):
                options.append([()])
                continue
            lists: set[Axes] = {here[label] for here in self.held if label in here}
            whole: set[Axes] = (
                {axes[:stop] for axes in lists for stop in range(len(axes) + 1)} if len(lists) != 1 else lists
            )
            options.append(sorted(whole, key=self._rank, reverse=True) or [()])
        return options

    def _rank(self, axes: Axes) -> tuple[object, ...]:
        names = list(self.mesh.sizes)
        return (shards(axes, self.mesh.sizes), [(names.index(a.name), a.start, a.stop) for a in axes])

    @property
    def layouts(self) -> list[tuple[Axes, ...]]:
        """The layouts that can be: no part of an axis twice, and every tensor cut as its labels are."""
        ways = prod(map(len, self.options))
        combined: Iterable[tuple[Axes, ...]] = itertools.product(*self.options) if ways <= MOST_LAYOUTS else self._led()
        found = [lists for lists in combined if self._fits(lists)]
        if not found and ways <= MOST_LAYOUTS:  # the only lists of two labels share an axis
            found = [lists for lists in self._led() if self._fits(lists)]
        return found or [((),) * len(self.rule.sizes)]

    def _led(self) -> Iterable[tuple[Axes, ...]]:
        """Layouts in which the labels of one tensor have what it has, and the others what is left."""
        for leader in self.held:
            lists: list[Axes] = [()] * len(self.rule.sizes)
            taken: list[Axis] = []
            for here in (leader, *self.held):
                for label, axes in here.items():
                    if lists[label] or self.rule.roles[label] in ("replicated", "shifted"):
                        continue
                    if not any(axis.overlaps(other) for axis in axes for other in taken):
                        lists[label] = axes
                        taken += axes
            yield tuple(lists)
        yield ((),) * len(self.rule.sizes)

    def _fits(self, lists: tuple[Axes, ...]) -> bool:
        used = [axis for axes in lists for axis in axes]
        if any(a.overlaps(b) for a, b in itertools.combinations(used, 2)):
            return False
        sizes = self.mesh.sizes
        for term in self.rule.terms:
            for group in term:
                if len(group) < 2 or not any(lists[label] for label in group):
                    continue
                cut = axes_of(group, dict(enumerate(lists)), self.rule.sizes, sizes)
                if shards(cut, sizes) != prod(shards(lists[label], sizes) for label in group):
                    return False
                if any(self.rule.sizes[label] % shards(lists[label], sizes) for label in group):
                    return False
        return True


def _dims(rule: Rule, term: int, lists: tuple[Axes, ...], mesh: Mesh) -> list[Axes]:
    if mesh.is_maximal:
        return []
    by_label = dict(enumerate(lists))
    return [axes_of(group, by_label, rule.sizes, mesh.sizes) if group else () for group in rule.terms[term]]


def _waits(operation: Operation, operands: Sequence[Sharding | None]) -> list[tuple[tuple[int, ...], Axes, str]]:
    """Which operands may stay partial, along which axes and under which reduction; first, none."""
    found: dict[tuple[tuple[int, ...], Axes, str], None] = {((), (), "sum"): None}
    for sharding in operands:
        if sharding is not None and sharding.unreduced:
            for waiting in waiting_operands(operation, sharding.reduction):
                if any(operands[term] is sharding for term in waiting):
                    found[waiting, sharding.unreduced, sharding.reduction] = None
    return list(found)
