"""What no placement costs less than, of a program of which much is alike: what goes, goes from all copies at once.

Operations of a class have alike layouts, and read values that may be kept alike.
Values of a kind are those that operations of the same classes read and make at the same places (`ties.py`); so a
program is few *ends*, each with many copies, and links between them, each of which says between which copies it stands.
What can be decided exactly (`elimination.py`) is so for all copies of an end at once: where each has one link of its
own to each of two neighbours, or where what it tells a neighbour is the same for all copies of that.
Two links become one where they are between the same copies: what a layer reads and what it makes may be copies of
one another, and stay apart.
Of what is left every copy passes messages, since layers are not alike in what they are told: a few turns forth and
back go through all of a stack, where messages of a class would go on by one layer a turn.

By hand, of a hundred operations in a row, each on halves of what the one before has made: all is free.

>>> from reshard.contraction.chooser import Chooser
>>> from reshard.contraction.goal import Goal
>>> from reshard.mesh import Mesh
>>> from reshard.propagation.fixpoint import Net
>>> from reshard.propagation.program import Program
>>> from reshard.propagation.shares import even_shares
>>> from reshard.propagation.ties import classes_of, kinds_of
>>> program = Program(Mesh.of(x=2))
>>> value = program.input("x", (4,), "float32")
>>> for _ in range(100):
...     value = program.op("i->i", value, name="exp")
>>> net = Net(program)
>>> model = Model(net, net.runs(None), Chooser(Goal.of("bytes")))
>>> classes = classes_of(model)
>>> alike = model.tied(classes, kinds_of(model, classes))
>>> copies = CopiedDual(model, alike, classes, even_shares(alike))
>>> copies.run(4)
>>> model.bound_of(copies.bound)
0.0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reshard.propagation.dual import Dual, Shares, cut
from reshard.propagation.elimination import End, Link, Once, eliminate
from reshard.propagation.model import Model
from reshard.propagation.nodes import EdgeKey, Variable, sharing
from reshard.propagation.space import Costs


class CopiedDual(Dual):
    """Messages of a program of which much is alike.

    Args:
        model: the program.
        alike: the same where operations of a class are computed alike, and values of a kind are kept alike.
        classes: per operation the number of the first one of its class.
        shares: per use of a value of a kind, by its key, which part of a reshard it pays, beside the others.
    """

    def __init__(self, model: Model, alike: Model, classes: Sequence[int], shares: Shares) -> None:
        order = {number: place for place, number in enumerate(model.net.order)}
        ends = _linked(alike, _pairs(model, alike, classes), shares)
        gone = {id(each.end): each for each in eliminate(ends)}
        copies: dict[int, dict[int, End]] = {}
        for end in ends:
            if id(end) not in gone:
                copies[id(end)] = {number: End(end.what, end.cost, end.choices) for number in end.copies}
                for number, copy in copies[id(end)].items():
                    copy.place = 2 * order[number] + isinstance(end.what, Variable)  # made by what stands before it
        for link in {id(link): link for end in ends if id(end) in copies for link in end.links}.values():
            link.open()
            for first, second in link.pairs or ():
                ends_of_copy = copies[id(link.first)][first], copies[id(link.second)][second]
                Link(*ends_of_copy, link.table, link.picks, once=link.once)
        for end in ends:
            end.links.clear()
        settled = sum(each.settled * len(each.end.copies) for each in gone.values())
        self._settle([], (end for alike in copies.values() for end in alike.values()), settled)


def _linked(model: Model, pairs: Mapping[EdgeKey, tuple[tuple[int, int], ...]], shares: Shares) -> list[End]:
    """The kinds of values and the classes of operations, linked by what reshards cost."""
    ends: dict[int, End] = {}
    parts: dict[EdgeKey, float] = {}
    costs: dict[int, Costs] = {}
    tables: dict[tuple[object, ...], Costs] = {}
    once = Once()
    for variable in {id(variable): variable for variable in model.variables}.values():
        size = len(variable.domain)
        ends[id(variable)] = End(variable, costs.setdefault(size, np.zeros(size)), variable.domain)
        ends[id(variable)].copies = variable.copies
        for uses in sharing(variable):
            parts.update(_parts(variable, pairs, {edge.key: shares[edge.key] for edge in uses}))
    for node in model.nodes:
        own = ends[id(node)] = End(node, node.cost, np.arange(len(node.layouts)))
        for edge in node.edges:
            end, scale = ends[id(edge.variable)], edge.often * parts.get(edge.key, 1.0)
            key = id(edge.table), id(end.choices), id(edge.picks), edge.is_result, scale
            if key not in tables:
                tables[key] = cut(edge.table.bound, end.choices, edge.picks, scale, is_result=edge.is_result)
            Link(end, own, tables[key], edge.picks, once=once).pairs = pairs[edge.key]
            own.copies += tuple(number for _, number in pairs[edge.key] if edge.is_result)
        own.cost = node.cost / len(own.copies)
    return list(ends.values())


def _parts(variable: Variable, pairs: Mapping[EdgeKey, tuple[tuple[int, int], ...]], shares: Shares) -> Shares:
    """Shares of those who use a value, raised or lowered so that together they pay all of a reshard of it."""
    often = {key: len(pairs[key]) / len(variable.copies) for key in shares}
    total = sum(share * often[key] for key, share in shares.items())
    return {key: share / total if total else 1.0 / sum(often.values()) for key, share in shares.items()}


def _pairs(model: Model, alike: Model, classes: Sequence[int]) -> dict[EdgeKey, tuple[tuple[int, int], ...]]:
    """Per edge of what is alike, by its key, the numbers of the values and of the operations that it is between."""
    pairs: dict[EdgeKey, list[tuple[int, int]]] = {}
    for number, operation in enumerate(model.net.graph.operations):
        for place, value in enumerate(operation.values if operation.operands else ()):
            key = EdgeKey(classes[number], place, alike.variables[value.number].number)
            pairs.setdefault(key, []).append((model.variables[value.number].number, number))
    return {key: tuple(each) for key, each in pairs.items()}
