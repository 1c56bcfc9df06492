"""The best of a part of all choices, with reshards shared as they are.

A part names for some values the options, and for some operations the layouts, that are looked at; all else stays as it
is chosen.
Where parts are small, all that hangs together is decided at once (`deciding.py`), so that what gains nothing value by
value is found: of several choices the best of what each does where (`between`), and what a program does along one axis
of the mesh (`along`).

What a value is brought to, all who want it share.
So of a value that several use a choice is how it is kept and in which options it is there besides; it pays for the
tree of these, and who wants one of them pays nothing, and cannot want another that several might.
What goes from one operation to one other is shared with nobody, and is kept as is cheapest between their layouts.
Of two parts one after the other much is the same: which choices values have is kept whatever these cost (`_states`),
and what they cost as long as prices stay (`Table.known`).

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
from functools import lru_cache
from itertools import chain, combinations
from math import comb
from typing import NamedTuple

import numpy as np

from reshard.mesh import Mesh
from reshard.propagation.deciding import decided
from reshard.propagation.descent import Descent
from reshard.propagation.dual import Picked
from reshard.propagation.elimination import End, Link, Once
from reshard.propagation.nodes import Edge, Node, Sharing, Variable
from reshard.propagation.space import Costs, Numbers, Pieces
from reshard.propagation.waiting import IDENTICAL
from reshard.propagation.ways import Picks

MOST_KNOWN = 4096
"""Of how many values that are not alike the choices are kept."""
MOST_STATES = 16
"""How many choices of a value are looked at of how it is kept and in what else it is there, where that can be."""


class PartOfChoices(NamedTuple):
    """A part of the choices; what it does not name stays as it is."""

    options: Mapping[int, tuple[int, ...]]
    """Per variable, by identity, the options that are looked at."""
    layouts: Mapping[int, tuple[int, ...]]
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
            {key: (mine[key], choice) for key, choice in theirs.items() if choice != mine[key]}
            for mine, theirs in ((chosen.options, other.options), (chosen.layouts, other.layouts))
        )
    )


def along(chosen: Descent, free: Mapping[Mesh, Sequence[int]]) -> PartOfChoices:
    """What differs from a choice only in what some pieces of meshes do."""
    model, options_of, layouts = chosen.model, dict[int, tuple[int, ...]](), dict[int, tuple[int, ...]]()
    known: dict[tuple[object, ...], tuple[int, ...]] = {}

    def same(
        what: tuple[object, ...], rows: Numbers, own: Numbers, pieces: Pieces, names: Numbers | None = None
    ) -> tuple[int, ...]:
        """The numbers of the rows in which all other pieces do the same as in one, or their names."""
        key = *what, own.tobytes()
        if key not in known:
            fixed = [number for number in range(len(pieces.all)) if number not in free.get(pieces.mesh, ())]
            is_same = (rows[:, fixed] == own[fixed]).all(axis=1)
            known[key] = tuple((np.flatnonzero(is_same) if names is None else names[is_same]).tolist())
        return known[key]

    for variable in chosen.variables:
        options, domain = variable.options, variable.domain
        own = options.doing[chosen.options[id(variable)]]
        key = id(options), id(domain)
        options_of[id(variable)] = same(key, options.doing[domain], own, options.pieces, domain)
    for node in model.nodes:
        rows, result = node.layouts.rows, node.makes[0].variable
        if model.net.graph.operations[node.number].name in IDENTICAL:
            layouts[node.number] = tuple(np.flatnonzero(np.isin(rows, options_of[id(result)])).tolist())
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
        self._layouts: dict[int, tuple[int, ...]] = {}
        """Of operations of which several are looked at."""
        self._uses: dict[int, list[tuple[Edge, Picks]]] = {}
        """Per variable, by identity, the uses that may want it in several options, and what their layouts want."""
        self._reads: dict[int, dict[int, list[tuple[Edge, Picks]]]] = {}
        """The same, per operation by its number."""
        self._works: dict[tuple[int, tuple[int, ...]], Costs] = {}
        """What the work of operations costs, made once for all that are alike."""
        self._once = Once()
        self._ends: list[End] = []
        self._held: list[int] = []
        self._values: dict[int, _Value] = {}
        self._passed: list[_PassedValue] = []
        self._nodes = [node for node in chosen.model.nodes if self._is_open(node, part)]
        variables = {id(v): v for v in chosen.variables if len(part.options.get(id(v), ())) > 1}
        for node in self._nodes:
            reads = self._reads[node.number] = {}
            for edge in node.uses:
                picks, key = self._picks(edge), id(edge.variable)
                if picks.are_several:
                    if not edge.variable.passes:
                        self._uses.setdefault(key, []).append((edge, picks))
                        reads.setdefault(key, []).append((edge, picks))
                    variables[key] = edge.variable
            for edge in node.makes:
                variables[id(edge.variable)] = edge.variable
        for variable in variables.values():
            kept = self._kept(variable, part)
            if variable.passes:
                self._passed.append(_PassedValue(variable, variable.makers[0], variable.uses[0], kept))
            else:
                value = self._values[id(variable)] = self._value(variable, kept)
                self._add(value.end, value.states.held)
        nodes = {node.number: self._add_node(node) for node in self._nodes}
        for passed in self._passed:
            self._pass(passed, nodes)

    def improve(self) -> bool:
        """Take the best choices if that is cheaper; whether it is."""
        picked = decided(self._ends, self._held)
        options: dict[int, int] = {}
        layouts: dict[int, int] = {}
        nodes: list[Node] = []
        for node, end in zip(self._nodes, self._ends[len(self._values) :], strict=True):
            layout = self._layouts[node.number][picked[end.place]]
            if layout != self._chosen.layouts[node.number]:
                layouts[node.number] = layout
                nodes.append(node)
        kept = [(value.variable, value.states.all[picked[value.end.place]].kept) for value in self._values.values()]
        for passed in self._passed:
            made, read = (
                layouts.get(edge.node.number, self._chosen.layouts[edge.node.number])
                for edge in (passed.maker, passed.reader)
            )
            kept.append((passed.variable, passed.best(made, read)))
        for variable, option in kept:
            if option != self._chosen.options[id(variable)]:
                options[id(variable)] = option
                nodes += [edge.node for edge in (*variable.makers, *variable.uses)]
        return bool(nodes) and self._chosen.try_change(options, layouts, nodes)

    def _add(self, end: End, held: int) -> None:
        self._ends.append(end)
        self._held.append(held)

    def _is_open(self, node: Node, part: PartOfChoices) -> bool:
        """Whether several layouts of an operation are looked at."""
        layouts, own = part.layouts.get(node.number), self._chosen.layouts[node.number]
        if layouts is None or (len(layouts) < 2 and own in layouts):
            return False
        self._layouts[node.number] = layouts if own in layouts else (*layouts, own)
        return True

    def _picks(self, edge: Edge) -> Picks:
        """In which options the layouts that are looked at want a value, or make it."""
        return edge.picks.of(self._layouts[edge.node.number])

    def _kept(self, variable: Variable, part: PartOfChoices) -> tuple[int, ...]:
        """The options in which it is looked at that a value is kept."""
        own = self._chosen.options[id(variable)]
        kept = part.options.get(id(variable), ())
        return kept if own in kept else (*kept, own)

    def _value(self, variable: Variable, kept: tuple[int, ...]) -> _Value:
        """A value with its states, and what it costs in each."""
        own = self._chosen.options[id(variable)]
        wants = self._wants(variable)
        kinds = tuple(wants)
        states = _states(kept, own, tuple([(table.is_own, each) for (table, *_), each in wants.items()]))
        cost = states.nothing
        for part in states.costs(kinds):
            cost = part if cost is states.nothing else self._once.make(np.add, cost, part)
        if variable.rent is not None:
            cost = cost + variable.rent[states.kept]
        for edge in variable.makers:
            if edge.node.number not in self._layouts:
                made = edge.picks.listed[self._chosen.layouts[edge.node.number]]
                cost = cost + edge.table.price[made, states.kept] * edge.times
        return _Value(variable, End(variable, cost, states.numbers), states, kinds)

    def _wants(self, variable: Variable) -> dict[Sharing, Wants]:
        """Per kind of reshards of a value in which options it is wanted."""
        wants: dict[Sharing, Wants] = {}
        uses = self._uses.get(id(variable), ())
        for kind, wanted in self._chosen.wanted[id(variable)].items():
            counts, may, several = dict(wanted), set[int](), set[int]()
            for edge, picks in uses:
                if edge.sharing == kind:
                    counts[edge.picks.listed[self._chosen.layouts[edge.node.number]]] -= 1
                    several.update(may.intersection(picks.listed))
                    may.update(picks.listed)
            anyway = frozenset([option for option, count in counts.items() if count > 0]) if may else frozenset(wanted)
            wants[kind] = Wants(frozenset(wanted), anyway, frozenset(several - anyway))
        return wants

    def _pass(self, passed: _PassedValue, nodes: Mapping[int, End]) -> None:
        """Let those two operations, or the one of them of which several layouts are looked at, pay for a value."""
        made, read = passed.maker.node.number, passed.reader.node.number
        maker, reader = nodes.get(made), nodes.get(read)
        chosen, layouts = self._chosen.layouts, self._layouts
        costs = passed.costs(layouts.get(made) or (chosen[made],), layouts.get(read) or (chosen[read],))
        if maker is not None and reader is not None:
            Link(maker, reader, costs, once=self._once)
        elif maker is not None:
            maker.cost = maker.cost + costs[:, 0]
        elif reader is not None:
            reader.cost = reader.cost + costs[0]

    def _add_node(self, node: Node) -> End:
        """The end of an operation, with its links to values."""
        layouts = self._layouts[node.number]
        key = id(node.cost), layouts
        if key not in self._works:
            self._works[key] = node.cost[list(layouts)]
        end = End(node, self._works[key], _numbers(len(layouts)))
        self._add(end, layouts.index(self._chosen.layouts[node.number]))
        self._link(end, ((edge, self._picks(edge)) for edge in node.makes if not edge.variable.passes))
        self._link(end, chain.from_iterable(self._reads[node.number].values()))
        return end

    def _link(self, end: End, edges: Iterable[tuple[Edge, Picks]]) -> None:
        """Link an operation to values."""
        for edge, picks in edges:
            value = self._values[id(edge.variable)]
            Link(value.end, end, value.states.moving(edge, picks, value.kinds), once=self._once)


class Wants(NamedTuple):
    """In which options a value is wanted, in reshards of one kind."""

    now: frozenset[int]
    """As it is chosen."""
    anyway: frozenset[int]
    """By uses of which only one layout is looked at."""
    several: frozenset[int]
    """In others, by several uses in some of their layouts."""


class States:
    """The states of a value, and of all that are alike.

    Args:
        kept: the options in which it may be kept.
        own: that in which it is.
        wants: per kind of its reshards whether these make options of its own, and in which it is wanted.
    """

    def __init__(self, kept: tuple[int, ...], own: int, wants: tuple[tuple[bool, Wants], ...]) -> None:
        anyway = [each.anyway for _, each in wants]
        free = [(place, option) for place, (_, each) in enumerate(wants) for option in sorted(each.several)]
        now = tuple((place, option) for place, option in free if option in wants[place][1].now)

        def with_these(subset: tuple[tuple[int, int], ...]) -> list[frozenset[int]]:
            if not subset:
                return anyway
            return [each | {option for at, option in subset if at == place} for place, each in enumerate(anyway)]

        def state(option: int, there: list[frozenset[int]]) -> ValueState:
            pairs = zip(wants, there, strict=True)
            apart = [each - {option} if is_own and option in each else each for (is_own, _), each in pairs]
            return ValueState(option, tuple(apart))

        besides = map(with_these, dict.fromkeys((*_subsets(free, len(kept)), now)))
        self.all = list(dict.fromkeys([state(option, there) for there in besides for option in kept]))
        self.held = self.all.index(state(own, with_these(now)))
        """The place of that in which it is."""
        self.kept: Numbers = np.array([each.kept for each in self.all])
        self.numbers = _numbers(len(self.all))
        self.nothing = np.zeros(len(self.all))
        self._shared = [each.anyway | each.several for _, each in wants]
        """Per kind the options that are there for all who want them so, or are not, by the state."""
        self._sources = [self._sources_of(place, is_own) for place, (is_own, _) in enumerate(wants)]
        """Per kind and state the options from which others are made."""
        self._known_sharing: dict[tuple[int, int, bool], Costs] = {}

    def _sources_of(self, place: int, is_own: bool) -> Numbers:
        if not is_own or not self._shared[place]:
            return self.kept[:, None]
        there = [(each.kept, *each.there[place]) for each in self.all]
        most = max(map(len, there))
        return np.array([(*each, *each[:1] * (most - len(each))) for each in there])

    def costs(self, kinds: Sequence[Sharing]) -> Iterator[Costs]:
        """What the reshards cost in each state that make all that is there, kind by kind."""
        for place, (table, times, _) in enumerate(kinds):
            if self._shared[place]:
                key = None, None, self, place, times
                costs = table.known.get(key)
                if costs is None:
                    trees = [table.all_from(each.kept, each.there[place]) for each in self.all]
                    costs = table.remember(key, np.array(trees) * times)
                yield costs

    def moving(self, edge: Edge, picks: Picks, kinds: Sequence[Sharing]) -> Costs:
        """Per state and layout what it costs to bring the value where that wants it, or from how that makes it."""
        place = -1 if edge.is_result else kinds.index(edge.sharing)
        key = None, None, self, place, picks, edge.times
        costs = edge.table.known.get(key)
        if costs is None:
            price, options = edge.table.price, picks.numbers
            if edge.is_result:
                prices = price[options, self.kept[:, None]]
            elif self._sources[place].shape[1] == 1:
                prices = price[self._sources[place], options]
            else:
                prices = np.minimum.reduce(price[self._sources[place][:, :, None], options], axis=1)
            prices *= edge.times
            shared = frozenset[int]() if edge.is_result else self._shared[place]
            for column, option in enumerate(picks.listed if shared else ()):
                if option in shared:
                    prices[:, column] = self._sharing(place, option, is_own=edge.table.is_own)
            costs = edge.table.remember(key, prices)
        return costs

    def _sharing(self, place: int, option: int, *, is_own: bool) -> Costs:
        """Per state what it costs one who wants an option that is there for all, or cannot be."""
        key = place, option, is_own
        if key not in self._known_sharing:
            there = (option in each.there[place] or (is_own and option == each.kept) for each in self.all)
            self._known_sharing[key] = np.array([0.0 if is_there else np.inf for is_there in there])
        return self._known_sharing[key]


_states = lru_cache(MOST_KNOWN)(States)
"""The states of values, one object for all that are alike, whatever anything costs."""


class _Value(NamedTuple):
    """A value of a part."""

    variable: Variable
    end: End
    states: States
    kinds: tuple[Sharing, ...]
    """Of its reshards."""


class _PassedValue(NamedTuple):
    """A value of a part that one operation makes and one reads: no end, but what these two pay together."""

    variable: Variable
    maker: Edge
    """To what makes it."""
    reader: Edge
    """To what reads it."""
    kept: tuple[int, ...]
    """The options in which it may be kept."""

    def costs(self, made: tuple[int, ...], read: tuple[int, ...]) -> Costs:
        """Per layout of what makes it and layout of what reads it, what they pay, kept as is cheapest then."""
        table, before, after = self.reader.table, self.maker.picks.of(made), self.reader.picks.of(read)
        key = None, None, before, self.kept, after, self.maker.times, self.reader.times
        costs = table.known.get(key)
        if costs is None:
            price, kept = table.price, np.array(self.kept)
            moved = price[before.numbers[:, None], kept] * self.maker.times
            brought = price[kept[:, None], after.numbers] * self.reader.times
            is_one = len(self.kept) == 1
            costs = moved + brought if is_one else np.minimum.reduce(moved[:, :, None] + brought, axis=1)
            table.remember(key, costs)
        return costs

    def best(self, made: int, read: int) -> int:
        """The option in which it is kept at the least cost between two layouts."""
        if len(self.kept) == 1:
            return self.kept[0]
        price, before, after = self.reader.table.price, self.maker.picks.listed[made], self.reader.picks.listed[read]
        times, again = self.maker.times, self.reader.times
        return min(self.kept, key=lambda kept: price.item(before, kept) * times + price.item(kept, after) * again)


@lru_cache(MOST_KNOWN)
def _numbers(count: int) -> Numbers:
    return np.arange(count)


def _subsets(free: Sequence[tuple[int, int]], times: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """The subsets of what may be there besides, the small ones first, as long as there are few, so many times."""
    count = 0
    for size in range(len(free) + 1):
        count += comb(len(free), size) * times
        if size > 1 and count > MOST_STATES:
            return
        yield from combinations(free, size)
