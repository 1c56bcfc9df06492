"""The best of a part of all choices, with reshards shared as they are.

A part names for some values the options, and for some operations the layouts, that are looked at; all else stays as it
is chosen.
Where parts are small, all that hangs together is decided at once (`deciding.py`), so that what gains nothing value by
value is found: of several choices the best of what each does where (`between`), and what a program does along one axis
of the mesh (`along`).

What a value is brought to, all who want it share.
So of a value that several use a choice is how it is kept and in which options it is there besides; it pays for the
tree of these, and who wants one of them pays nothing, and cannot want another that several might.

By hand, x has 4 x 4 numbers of 4 bytes, cut by rows; two products, each with 4 x 64 weights cut by columns, want all of
the weights where they go by rows, 512 bytes each, or all of x where they go by columns, 32 bytes for both.

>>> from reshard.contraction.chooser import Chooser
>>> from reshard.contraction.goal import Goal
>>> from reshard.propagation.fixpoint import Net
>>> from reshard.propagation.model import Model
>>> from reshard.propagation.program import Program
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=2)
>>> program = Program(mesh)
>>> x = program.input("x", (4, 4), "float32", Sharding.of(mesh, "x", None))
>>> for name in "ab":
...     weights = program.input(name, (4, 64), "float32", Sharding.of(mesh, None, "x"))
...     product = program.op("ij,jk->ik", x, weights)
>>> net = Net(program)
>>> model = Model(net, net.runs(None), Chooser(Goal.of("bytes")))
>>> def choice(cut_by):
...     options = {id(variable): int(variable.domain[0]) for variable in model.variables}
...     return Picked(options, {node.number: 1 + "ijk".index(cut_by) for node in model.nodes})
>>> chosen = Descent(model, *choice("i"))
>>> recombine(chosen, between(chosen, choice("k")))
True
>>> sorted(chosen.layouts.values())
[3, 3]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Any, NamedTuple

import numpy as np

from reshard.mesh import Mesh
from reshard.propagation.deciding import decided
from reshard.propagation.descent import Descent
from reshard.propagation.dual import Picked
from reshard.propagation.elimination import End, Link, Once
from reshard.propagation.nodes import Edge, Node, Variable
from reshard.propagation.space import Costs, Numbers, Pieces
from reshard.propagation.trees import Table
from reshard.propagation.waiting import IDENTICAL
from reshard.propagation.ways import Picks

MOST_STATES = 16
"""How many choices of a value are looked at of how it is kept and in what else it is there, where that can be."""


class PartOfChoices(NamedTuple):
    """A part of the choices; what it does not name stays as it is."""

    options: Mapping[int, Numbers]
    """Per variable, by identity, the options that are looked at."""
    layouts: Mapping[int, Numbers]
    """Per operation, by its number, the layouts that are looked at."""


class ValueState(NamedTuple):
    """A choice of a value."""

    kept: int
    """The option in which it is kept."""
    there: tuple[frozenset[int], ...]
    """Per kind of its reshards the options in which it is there for all who want it so."""


def recombine(chosen: Descent, part: PartOfChoices) -> bool:
    """Take the best choices of a part if that is cheaper; whether it is."""
    return _Problem(chosen, part).improve()


def between(chosen: Descent, other: Picked) -> PartOfChoices:
    """What a choice and another have."""
    return PartOfChoices(
        *(
            {key: np.array([mine[key], choice]) for key, choice in theirs.items() if choice != mine[key]}
            for mine, theirs in ((chosen.options, other.options), (chosen.layouts, other.layouts))
        )
    )


def along(chosen: Descent, free: Mapping[Mesh, Sequence[int]]) -> PartOfChoices:
    """What differs from a choice only in what some pieces of meshes do."""
    model, options_of, layouts = chosen.model, dict[int, Numbers](), dict[int, Numbers]()
    known: dict[tuple[object, ...], Numbers] = {}

    def same(what: tuple[object, ...], rows: Numbers, own: Numbers, pieces: Pieces) -> Numbers:
        """The numbers of the rows in which all other pieces do the same as in one."""
        key = *what, own.tobytes()
        if key not in known:
            fixed = [number for number in range(len(pieces.all)) if number not in free.get(pieces.mesh, ())]
            known[key] = np.flatnonzero((rows[:, fixed] == own[fixed]).all(axis=1))
        return known[key]

    for variable in chosen.variables:
        options, domain = variable.options, variable.domain
        own = options.doing[chosen.options[id(variable)]]
        options_of[id(variable)] = domain[same((id(options), id(domain)), options.doing[domain], own, options.pieces)]
    for node in model.nodes:
        rows, result = node.layouts.rows, node.makes[0].variable
        if model.net.graph.operations[node.number].name in IDENTICAL:
            layouts[node.number] = np.flatnonzero(np.isin(rows, options_of[id(result)]))
        else:
            own = rows[chosen.layouts[node.number]]
            layouts[node.number] = same((id(rows), id(result.options.pieces)), rows, own, result.options.pieces)
    return PartOfChoices(options_of, layouts)


class _Problem:
    """A part of the choices as ends and links.

    Args:
        chosen: a choice.
        part: the choices that are looked at.
    """

    def __init__(self, chosen: Descent, part: PartOfChoices) -> None:
        self._chosen = chosen
        self._layouts: dict[int, Numbers] = {}
        """Of operations of which several are looked at."""
        self._uses: dict[int, list[tuple[Edge, Picks]]] = {}
        """Per variable, by identity, the uses that may want it in several options, and what their layouts want."""
        self._known: dict[tuple[object, ...], Any] = {}
        """What is made once for all that is alike, by what it is made of."""
        self._once = Once()
        self._ends: list[End] = []
        self._held: list[int] = []
        self._values: dict[int, _Value] = {}
        self._nodes = [node for node in chosen.model.nodes if self._is_open(node, part)]
        variables = {id(v): v for v in chosen.variables if len(part.options.get(id(v), ())) > 1}
        for node in self._nodes:
            for edge in node.uses:
                picks = self._picks(edge)
                if len(picks.options) > 1:
                    self._uses.setdefault(id(edge.variable), []).append((edge, picks))
                    variables[id(edge.variable)] = edge.variable
            variables.update((id(edge.variable), edge.variable) for edge in node.makes)
        for variable in variables.values():
            value = self._values[id(variable)] = self._value(variable, part.options.get(id(variable)))
            self._add(value.end, value.states.all.index(value.states.now))
        for node in self._nodes:
            self._add_node(node)

    def improve(self) -> bool:
        """Take the best choices if that is cheaper; whether it is."""
        picked = decided(self._ends, self._held)
        options: dict[int, int] = {}
        layouts: dict[int, int] = {}
        nodes: list[Node] = []
        for value in self._values.values():
            kept = value.states.kept[picked[value.end.place]]
            if kept != value.states.now.kept:
                options[id(value.variable)] = kept
                nodes += [edge.node for edge in (*value.variable.makers, *value.variable.uses)]
        for node, end in zip(self._nodes, self._ends[len(self._values) :], strict=True):
            layout = int(end.choices[picked[end.place]])
            if layout != self._chosen.layouts[node.number]:
                layouts[node.number] = layout
                nodes.append(node)
        return bool(nodes) and self._chosen.try_change(options, layouts, nodes)

    def _add(self, end: End, held: int) -> None:
        self._ends.append(end)
        self._held.append(held)

    def _is_open(self, node: Node, part: PartOfChoices) -> bool:
        """Whether several layouts of an operation are looked at."""
        layouts, own = part.layouts.get(node.number), self._chosen.layouts[node.number]
        if layouts is None or (len(layouts) < 2 and own in layouts):
            return False
        self._layouts[node.number] = layouts if own in layouts else np.append(layouts, own)
        return True

    def _picks(self, edge: Edge) -> Picks:
        """In which options the layouts that are looked at want a value, or make it."""
        layouts = self._layouts[edge.node.number]
        key = id(edge.picks), id(layouts)
        if key not in self._known:
            self._known[key] = Picks(edge.picks.numbers[layouts])
        picks: Picks = self._known[key]
        return picks

    def _value(self, variable: Variable, options: Numbers | None) -> _Value:
        """A value with its states, and what it costs in each."""
        own = self._chosen.options[id(variable)]
        kept = (own,) if options is None else tuple(options.tolist())
        kept = kept if own in kept else (*kept, own)
        wants = self._wants(variable)
        key = kept, own, *((id(table), times, each) for (table, times), each in wants.items())
        if key not in self._known:
            self._known[key] = States.of(kept, own, wants)
        states: States = self._known[key]
        cost = states.cost if variable.rent is None else states.cost + variable.rent[states.kept]
        for edge in variable.makers:
            if edge.node.number not in self._layouts:
                made = edge.picks.listed[self._chosen.layouts[edge.node.number]]
                cost = cost + edge.table.price[made, states.kept] * edge.times
        return _Value(variable, End(variable, cost, np.arange(len(states.all))), states)

    def _wants(self, variable: Variable) -> dict[tuple[Table, float], Wants]:
        """Per kind of reshards of a value in which options it is wanted."""
        counts = {kind: {**own} for kind, own in self._chosen.wanted[id(variable)].items()}
        now = {kind: frozenset(own) for kind, own in counts.items()}
        may: dict[tuple[Table, float], set[int]] = {kind: set() for kind in counts}
        several: dict[tuple[Table, float], set[int]] = {kind: set() for kind in counts}
        for edge, picks in self._uses.get(id(variable), ()):
            kind, options = (edge.table, edge.times), picks.options.tolist()
            counts[kind][edge.picks.listed[self._chosen.layouts[edge.node.number]]] -= 1
            several[kind].update(may[kind].intersection(options))
            may[kind].update(options)
        wants: dict[tuple[Table, float], Wants] = {}
        for kind, own in counts.items():
            anyway = frozenset([option for option, count in own.items() if count > 0])
            wants[kind] = Wants(now[kind], anyway, frozenset(several[kind]) - anyway)
        return wants

    def _add_node(self, node: Node) -> None:
        """The end of an operation, with its links."""
        layouts = self._layouts[node.number]
        key = id(node.cost), id(layouts)
        if key not in self._known:
            self._known[key] = node.cost[layouts]
        end = End(node, self._known[key], layouts)
        self._add(end, int((layouts == self._chosen.layouts[node.number]).argmax()))
        self._link(end, ((edge, self._picks(edge)) for edge in node.makes))
        for edge in {id(edge.variable): edge for edge in node.uses}.values():
            self._link(end, (pair for pair in self._uses.get(id(edge.variable), ()) if pair[0].node is node))

    def _link(self, end: End, edges: Iterable[tuple[Edge, Picks]]) -> None:
        """Link an operation to values."""
        for edge, picks in edges:
            value = self._values[id(edge.variable)]
            key = id(value.states), id(edge.table), edge.times, id(picks), edge.is_result
            if key not in self._known:
                self._known[key] = value.states.moving(edge, picks.options)
            Link(value.end, end, self._known[key], picks, once=self._once)


class Wants(NamedTuple):
    """In which options a value is wanted, in reshards of one kind."""

    now: frozenset[int]
    """As it is chosen."""
    anyway: frozenset[int]
    """By uses of which only one layout is looked at."""
    several: frozenset[int]
    """In others, by several uses in some of their layouts."""


class States:
    """The states of a value, and of all that are alike."""

    def __init__(self, states: list[ValueState], now: ValueState, wants: Mapping[tuple[Table, float], Wants]) -> None:
        self.all, self.now = states, now
        self.kept = [each.kept for each in states]
        self._wants, self._kinds = wants, list(wants)
        self.cost = np.zeros(len(states))
        """What the reshards cost in each that make all that is there."""
        for place, (table, times) in enumerate(self._kinds):
            if any(each.there[place] for each in states):
                self.cost += np.array([table.all_from(each.kept, each.there[place]) for each in states]) * times
        self._there: dict[int, Numbers] = {}
        """Per kind, by its place, and state, the options from which others are made."""

    @classmethod
    def of(cls, kept: Sequence[int], own: int, wants: Mapping[tuple[Table, float], Wants]) -> States:
        """The states of a value.

        Args:
            kept: the options in which it may be kept.
            own: that in which it is.
            wants: per kind of its reshards in which options it is wanted.
        """
        kinds = list(wants)
        anyway = [each.anyway for each in wants.values()]
        free = [(place, option) for place, each in enumerate(wants.values()) for option in sorted(each.several)]
        now = tuple((place, option) for place, option in free if option in wants[kinds[place]].now)

        def with_these(subset: tuple[tuple[int, int], ...]) -> list[frozenset[int]]:
            if not subset:
                return anyway
            return [each | {option for at, option in subset if at == place} for place, each in enumerate(anyway)]

        def state(option: int, subset: list[frozenset[int]]) -> ValueState:
            pairs = zip(kinds, subset, strict=True)
            there = [each - {option} if table.is_own and option in each else each for (table, _), each in pairs]
            return ValueState(option, tuple(there))

        besides = [*map(with_these, _subsets(free, len(kept))), with_these(now)]
        states = list(dict.fromkeys(state(option, there) for there in besides for option in kept))
        return cls(states, state(own, besides[-1]), wants)

    def moving(self, edge: Edge, options: Numbers) -> Costs:
        """Per state and option what it costs to bring the value there, or to where it is kept from how it is made."""
        if edge.is_result:
            return np.asarray(edge.table.price[options, np.array(self.kept)[:, None]] * edge.times)
        kind = edge.table, edge.times
        place = self._kinds.index(kind)
        if place not in self._there:
            self._there[place] = self._there_of(place)
        prices = np.minimum.reduce(edge.table.price[self._there[place][:, :, None], options], axis=1) * edge.times
        _, anyway, several = self._wants[kind]
        for column, option in enumerate(options.tolist()):
            if option in anyway or option in several:
                is_own = edge.table.is_own
                there = (option in each.there[place] or (is_own and option == each.kept) for each in self.all)
                prices[:, column] = [0.0 if is_there else np.inf for is_there in there]
        return prices

    def _there_of(self, place: int) -> Numbers:
        """Per state from which options others are made, in reshards of a kind: one row as long as the other."""
        if not self._kinds[place][0].is_own:
            return np.array(self.kept)[:, None]
        there = [(each.kept, *each.there[place]) for each in self.all]
        most = max(map(len, there))
        return np.array([(*each, *each[:1] * (most - len(each))) for each in there])


class _Value(NamedTuple):
    """A value of a part."""

    variable: Variable
    end: End
    states: States


def _subsets(free: Sequence[tuple[int, int]], times: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """The subsets of what may be there besides, the small ones first, as long as there are few, so many times."""
    count = 0
    for size in range(len(free) + 1):
        count += comb(len(free), size) * times
        if size > 1 and count > MOST_STATES:
            return
        yield from combinations(free, size)
