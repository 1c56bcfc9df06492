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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import inf, prod
from typing import NamedTuple

from reshard.axis import Axis
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.operations.operation import Operation
from reshard.operations.projection import Axes, axes_of, labels_of, shards
from reshard.operations.rules import COMBINED, Rule, reduction_of, waiting_operands
from reshard.propagation.prices import ROUNDING, Cost, Prices, added, times
from reshard.sharding import Sharding

Held = dict[int, Axes]
"""The axes of labels in one tensor."""
MOST_LAYOUTS = 256
"""Where labels could be combined in more ways, only those that one tensor leads are looked at."""


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


class ComputeLayout(NamedTuple):
    """The axes of the labels, and what follows from them."""

    axes: Axes
    """Of all labels."""
    summed: Axes
    """Of labels that are combined, along which the result comes out partial."""
    dims: tuple[list[Axes], ...]
    """Per tensor."""
    whole: tuple[Sharding, ...]
    """What each operand is brought to where none stays partial."""
    made: Sharding
    """What the result then comes out as."""
    work: Cost
    """Of one turn."""


@dataclass
class Pricer(Prices):
    """Prices of operations too, each looked at once."""

    _chosen: dict[tuple[object, ...], Computed] = field(default_factory=dict)
    _layouts: dict[tuple[object, ...], list[ComputeLayout]] = field(default_factory=dict)
    _held: dict[tuple[Rule, int, Sharding], Held] = field(default_factory=dict)

    @property
    def priced(self) -> int:
        """How many operations were looked at, each in one way to keep what it has."""
        return len(self._chosen)

    def compute(
        self,
        operation: Operation,
        rule: Rule,
        operands: tuple[Sharding, ...],
        result: Sharding | None,
        turns: tuple[int, ...],
    ) -> Computed:
        """The cheapest way to compute an operation.

        Args:
            operation: what is computed.
            rule: its rule.
            operands: where they are kept, without open dims.
            result: where it is kept; None where it may stay as it comes out, on the mesh of the first operand.
            turns: how often each operand is moved where it must be, and last how often the result is made.
        """
        dtypes = tuple(value.dtype for value in operation.values)
        key = (rule, operation.name, operation.attribute("value"), dtypes, operands, result, turns)
        found = self._chosen.get(key)
        if found is None:
            found = self._chosen[key] = self._best(operation, rule, operands, result, turns)
        return found

    def _best(
        self,
        operation: Operation,
        rule: Rule,
        operands: tuple[Sharding, ...],
        result: Sharding | None,
        turns: tuple[int, ...],
    ) -> Computed:
        mesh = result.mesh if result is not None else operands[0].mesh
        waits = _waits(operation, [s if s.mesh == mesh else None for s in operands])
        best: Computed | None = None
        for layout in self._layouts_of(operation, rule, mesh, (*operands, result)):
            for wait in waits:
                most = inf if best is None else best.cost[0]
                found = self._computed(operation, mesh, layout, wait, operands, result, turns, most)
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
        mesh: Mesh,
        layout: ComputeLayout,
        wait: tuple[tuple[int, ...], Axes, str],
        operands: tuple[Sharding, ...],
        result: Sharding | None,
        turns: tuple[int, ...],
        most: float,
    ) -> Computed | None:
        """The operation in a layout; None where that cannot be, or costs more seconds or bytes than `most`."""
        waiting, unreduced, reduction = wait
        if unreduced and any(axis.overlaps(other) for axis in layout.axes for other in unreduced):
            return None
        values = operation.values
        used, made = layout.whole, layout.made
        if unreduced:
            used = tuple(
                self.sharding(mesh, layout.dims[term], unreduced, reduction) if term in waiting else one
                for term, one in enumerate(used)
            )
            combined = reduction_of(operation) if layout.summed else reduction
            made = self.sharding(mesh, layout.dims[-1], (*layout.summed, *unreduced), combined)
        work = times(layout.work, turns[-1])
        costs, spent = [work], work[0]
        for kept, needed, value, count in zip(operands, used, values, turns, strict=False):
            if kept is not needed:
                cost = times(self.price(kept, needed, value.shape, value.dtype), count)
                costs.append(cost)
                spent += cost[0]
                if spent > (1 + ROUNDING) * most:
                    return None
        if result is not None and made is not result:
            costs.append(times(self.price(made, result, values[-1].shape, values[-1].dtype), turns[-1]))
        return Computed(used, made, added(*costs), work)

    def _layouts_of(
        self, operation: Operation, rule: Rule, mesh: Mesh, tensors: Sequence[Sharding | None]
    ) -> list[ComputeLayout]:
        """The layouts in which an operation on these tensors may be computed."""
        combines = reduction_of(operation)

        def remembered(labels: object, make: Callable[[], list[tuple[Axes, ...]]]) -> list[ComputeLayout]:
            key = rule, combines, mesh, labels
            found = self._layouts.get(key)
            if found is None:
                found = self._layouts[key] = [self._layout(rule, combines, mesh, lists) for lists in make()]
            return found

        if mesh.is_maximal:
            return remembered((), lambda: [((),) * len(rule.sizes)])
        labels = Labels(rule, mesh, [self._held_by(rule, mesh, term, one) for term, one in enumerate(tensors)])
        found: list[ComputeLayout] = []
        if prod(map(len, labels.options)) <= MOST_LAYOUTS:
            found = remembered(tuple(labels.options), labels.combined)
        # the only lists of two labels may share an axis, and then no combination can be
        return found or remembered(tuple(tuple(here.items()) for here in labels.held), labels.led)

    def _held_by(self, rule: Rule, mesh: Mesh, term: int, sharding: Sharding | None) -> Held:
        """What the labels have in a tensor."""
        if sharding is None or sharding.mesh != mesh:
            return {}
        key = rule, term, sharding
        if key not in self._held:
            held: dict[int, Axes] = {}
            for group, dim in zip(rule.terms[term], sharding.dims, strict=True):
                held.update(zip(group, labels_of(group, dim.axes, rule.sizes, mesh.sizes).lists, strict=True))
            self._held[key] = held
        return self._held[key]

    def _layout(self, rule: Rule, combines: str, mesh: Mesh, lists: tuple[Axes, ...]) -> ComputeLayout:
        by_label = dict(enumerate(lists))
        dims = tuple(
            [axes_of(group, by_label, rule.sizes, mesh.sizes) if group else () for group in term if not mesh.is_maximal]
            for term in rule.terms
        )
        summed = [axis for role, axes in zip(rule.roles, lists, strict=True) if role in COMBINED for axis in axes]
        work = rule.multiplications / max(prod(shards(axes, mesh.sizes) for axes in lists), 1)
        seconds = 2 * work / self.network.flops if self.network is not None and self.network.flops else 0.0
        whole = tuple(self.sharding(mesh, term) for term in dims[:-1])
        made = self.sharding(mesh, dims[-1], summed, combines if summed else "sum")
        return ComputeLayout(tuple(itertools.chain(*lists)), tuple(summed), dims, whole, made, (seconds, work, 0))


class Labels:
    """The axes that each label of an operation may have."""

    def __init__(self, rule: Rule, mesh: Mesh, held: Sequence[Held]) -> None:
        self.rule, self.mesh, self.held = rule, mesh, held

    @cached_property
    def options(self) -> list[tuple[Axes, ...]]:
        """Per label, every list of axes that a tensor has for it, and its beginnings."""
        options: list[tuple[Axes, ...]] = []
        for label, role in enumerate(self.rule.roles):
            if role in ("replicated", "shifted"):
                options.append(((),))
                continue
            lists = {here[label] for here in self.held if label in here}
            options.append(_beginnings(frozenset(lists), self.mesh) if len(lists) > 1 else (*lists,) or ((),))
        return options

    def combined(self) -> list[tuple[Axes, ...]]:
        """The combinations that can be: no part of an axis twice, and every tensor cut as its labels are."""
        return [lists for lists in itertools.product(*self.options) if self._fits(lists)]

    def led(self) -> list[tuple[Axes, ...]]:
        """The layouts that can be in which one tensor leads; that without any axis where there is none."""
        return [lists for lists in self._led() if self._fits(lists)] or [((),) * len(self.rule.sizes)]

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


@lru_cache(4096)
def _beginnings(lists: frozenset[Axes], mesh: Mesh) -> tuple[Axes, ...]:
    """The lists and whatever begins one, those that cut most first."""
    names = list(mesh.sizes)

    def rank(axes: Axes) -> tuple[object, ...]:
        return (shards(axes, mesh.sizes), [(names.index(a.name), a.start, a.stop) for a in axes])

    found = {axes[:stop] for axes in lists for stop in range(len(axes) + 1)}
    return tuple(sorted(found, key=rank, reverse=True))


def _waits(operation: Operation, operands: Sequence[Sharding | None]) -> list[tuple[tuple[int, ...], Axes, str]]:
    """Which operands may stay partial, along which axes and under which reduction; first, none."""
    found: dict[tuple[tuple[int, ...], Axes, str], None] = {((), (), "sum"): None}
    for sharding in operands:
        if sharding is not None and sharding.unreduced:
            for waiting in waiting_operands(operation, sharding.reduction):
                if any(operands[term] is sharding for term in waiting):
                    found[waiting, sharding.unreduced, sharding.reduction] = None
    return list(found)
