"""A choice for a whole program, in shardings and compute layouts; and what it pays for, operation by operation.

A search chooses by numbers (`descent.py`), which mean something in their model alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from reshard.contraction.compute_layout import ComputeLayout
from reshard.contraction.pairwise import Contracted
from reshard.propagation.descent import Descent
from reshard.propagation.lower_bound import LowerBound
from reshard.propagation.model import SAME, Model
from reshard.propagation.nodes import Variable
from reshard.propagation.trees import tree
from reshard.propagation.waiting import IDENTICAL
from reshard.propagation.ways import compute_layout
from reshard.sharding import Sharding


class Numbered(NamedTuple):
    """A choice in numbers."""

    options: list[int]
    """Per value."""
    layouts: Mapping[int, int]
    """Per operation, by its number."""

    def by_variable(self, variables: Sequence[Variable]) -> dict[int, int]:
        """The option of the variable of each value, by its identity."""
        return {id(variable): option for variable, option in zip(variables, self.options, strict=True)}


class Optimum(NamedTuple):
    """A choice for a whole program."""

    shardings: list[Sharding]
    """Per value."""
    layouts: Mapping[int, ComputeLayout]
    """Per operation that computes, by its number."""
    origins: Mapping[tuple[int, Sharding], Sharding]
    """Per value, by its number, and sharding in which it is wanted, that from which it is brought there."""
    cost: float
    """Of what the goal adds up, reshard by reshard."""
    least: LowerBound
    """What no choice costs less than."""
    picked: Numbered
    """The choice in numbers of the model."""
    chains: Mapping[int, Contracted] = MappingProxyType({})
    """Per operation that is contracted two operands at a time, by its number."""

    @property
    def bound(self) -> float:
        """What no choice costs less than, found when it is first asked for."""
        return self.least.cost


def explained(model: Model, best: Descent, least: LowerBound, classes: Sequence[int] | None = None) -> Optimum:
    """A choice in shardings and compute layouts.

    Args:
        model: the program, or what is alike in it.
        best: the choice.
        least: what no choice costs less than.
        classes: per operation the number of the first one of those that are computed alike; its own unless given.
    """
    net = model.net
    for variable, wanted in _only_output(best):  # what only an output reads is made where that wants it
        kept, cost = best.options[id(variable)], best.cost
        best.keep(variable, wanted)
        if best.cost > cost * (1 + SAME):
            best.keep(variable, kept)
    shardings = [model.sharding(number, best.options[id(variable)]) for number, variable in enumerate(model.variables)]
    layouts: dict[int, ComputeLayout] = {}
    known: dict[tuple[int, int], ComputeLayout] = {}
    for node in model.nodes:
        operation = net.graph.operations[node.number]
        if operation.name in IDENTICAL:
            continue
        key = id(node.layouts), best.layouts[node.number]
        if key not in known:
            known[key] = compute_layout(
                net.calculations[node.number],
                model.pieces[net.meshes[node.number]],
                node.layouts,
                best.layouts[node.number],
                model.along(operation),
                net.uneven,
            )
        layouts[node.number] = known[key]
    numbers = best.layouts
    if classes is not None:
        layouts = {number: layouts[first] for number, first in enumerate(classes) if first in layouts}
        numbers = {number: numbers[first] for number, first in enumerate(classes) if first in numbers}
    picked = Numbered([best.options[id(variable)] for variable in model.variables], dict(numbers))
    return Optimum(shardings, layouts, _origins(best), best.cost, least, picked)


def _only_output(best: Descent) -> Iterator[tuple[Variable, int]]:
    """The values that nothing but an output reads, and the option in which it wants them, where they may have it."""
    for node in best.model.nodes:
        for edge in node.uses if best.model.net.graph.operations[node.number].name == "output" else ():
            variable, result = edge.variable, edge.node.makes[0].variable
            is_alike = result.options is variable.options  # else they lie on two meshes
            wanted = best.options[id(result)]
            if is_alike and len(variable.uses) == 1 and variable.makers and wanted in variable.domain:
                yield variable, wanted


def _origins(best: Descent) -> dict[tuple[int, Sharding], Sharding]:
    """As `Optimum.origins`."""
    origins: dict[tuple[int, Sharding], Sharding] = {}
    model, alike = best.model, dict[tuple[int, int], list[int]]()
    for number, variable in enumerate(model.variables):
        alike.setdefault((id(variable), model.read_as[number]), []).append(number)
    for variable in best.variables:
        for (table, _, value), wants in best.wants(variable).items():
            for before, after in tree(table, best.options[id(variable)], sorted(wants)):
                if table.is_own and before != best.options[id(variable)]:
                    for number in alike[id(variable), value]:
                        pair = [model.sharding(number, option) for option in (after, before)]
                        origins[number, pair[0]] = pair[1]
    return origins


def descent_of(model: Model, best: Optimum) -> Descent:
    """A choice in numbers again, to be asked what it pays for, or changed."""
    return Descent(model, best.picked.by_variable(model.variables), dict(best.picked.layouts))


def paid_for(descent: Descent, numbers: Collection[int]) -> dict[int, float]:
    """Of some operations, what would be saved without each: its work, and reshards that no other shares."""
    return {node.number: descent.paid(node) for node in descent.model.nodes if node.number in numbers}


def asked_for(descent: Descent) -> dict[int, tuple[Sharding, float]]:
    """Per value that nothing but an output reads, and is kept otherwise: where that wants it, what that costs.

    None that is kept as another is.
    """
    model, alike = descent.model, Counter(map(id, descent.model.variables))
    return {
        variable.number: (model.sharding(variable.number, wanted), descent.shared(variable))
        for variable, wanted in _only_output(descent)
        if wanted != descent.options[id(variable)] and alike[id(variable)] == 1
    }


def origins_without(descent: Descent, numbers: Collection[int]) -> Mapping[tuple[int, Sharding], Sharding]:
    """As `Optimum.origins`, where some operations want nothing any more that others might be brought from."""
    for node in descent.model.nodes:
        if node.number in numbers:
            descent.want(node, -1)
    return _origins(descent)
