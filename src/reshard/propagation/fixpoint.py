"""Shardings carried to a fixed point, user priorities outermost.

In a turn every operation next to a change proposes: each of its labels goes on to all tensors that have it, as far
as no tensor says otherwise.
Then every value takes what was proposed to it: only open dims grow, only at their minor end, and never by an axis
that another dim of the value has or that is explicitly replicated.
Proposals of one turn are made from one state, and the order in which a value looks at them is that of what they
say, so neither the order of the operations nor any name has a say in the outcome.

Round i of the priorities sees the dims of priority i and below; what is not yet seen is closed, and its axes are
kept free for it.

Where two proposals exclude each other, the one with more shards is taken, then the one from the larger tensor; that
there was a choice is remembered, and propagation is run again with each annotation in turn ahead of the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

from reshard.axis import Axes, is_prefix, merged, shards, truncated
from reshard.contraction.compute_layout import closed_sharding
from reshard.contraction.tasks import Calculation, Task, calculation_of
from reshard.mesh import Mesh
from reshard.operations.operation import Value
from reshard.operations.projection import axes_of, labels_of, longest_agreed
from reshard.operations.rules import Rule, operation_rule
from reshard.propagation.builder import Builder
from reshard.propagation.fusion import Fusion
from reshard.propagation.leaders import Ahead, Kinds, leaders
from reshard.sharding import Sharding

Sizes = Mapping[str, int]
FEWEST_LEADERS, MOST_LEADERS = 2, 12
"""How often some annotations go ahead, at least and at most."""
MOST_VISITED = 3_000
"""How many operations such runs go through at most."""


class State(NamedTuple):
    """What is known of a value in a round."""

    dims: tuple[Axes, ...]
    opens: tuple[bool, ...]
    kept: Axes
    """Axes that no dim may take: explicitly replicated, partial, or of dims not yet seen."""


class Wish(NamedTuple):
    """What an operation proposes to one dim of one of its tensors."""

    term: int
    dim: int
    axes: Axes
    elements: int
    """Of the largest tensor that has it already."""
    giver: int
    """The number of that tensor among those of the operation."""


class Wishes(NamedTuple):
    """What an operation proposes."""

    wishes: tuple[Wish, ...]
    disagree: bool
    """Whether its tensors disagree about a label."""
    refused: bool
    """Whether a closed dim would have to grow for them to be alike."""


class Growth(NamedTuple):
    """What becomes of a value to which something is proposed."""

    state: State
    number: int
    """Of the state."""
    taken: list[tuple[int, Axes]]
    """Which of what is proposed is taken, in order, and the axes of its dim then."""
    is_disputed: bool
    """Whether some of it excludes the rest."""


class Origin(NamedTuple):
    """Where the axes of a dim came from."""

    axes: Axes
    operation: int | None
    """The number of the operation that carried them; None where they were given."""
    giver: int
    """The number of the value from which they came."""
    priority: int


@dataclass
class Flow:
    """The outcome of propagation."""

    dims: list[tuple[Axes, ...]]
    """Per value, the axes of its dims."""
    origins: list[dict[int, list[Origin]]]
    """Per value and dim, what came from where, in the order in which it came."""
    disputed: set[int] = field(default_factory=set)
    """The numbers of the values of which proposals excluded each other, or whose operations' tensors disagree."""
    refused: bool = False
    """Whether a closed dim did not take what the other tensors of an operation agree on."""
    roots: dict[Origin, int] = field(default_factory=dict)
    """The values to which axes were given, as far as somebody has asked."""


class Net:
    """A graph, made ready to carry shardings."""

    def __init__(self, graph: Builder) -> None:
        self.graph = graph
        self.values = graph.values
        self.meshes = value_meshes(graph)
        firsts: dict[tuple[object, ...], int] = {}
        self._first_of = [firsts.setdefault(op.nameless, number) for number, op in enumerate(graph.operations)]
        """Per operation the number of the first one that says the same, whatever its values are called."""
        rules = {first: operation_rule(graph.operations[first]) for first in firsts.values()}
        self.rules: list[Rule] = [rules[first] for first in self._first_of]
        self.places: list[tuple[int, ...]] = []
        """Per operation, the values of its terms; -1 for one on another mesh than the result."""
        self.neighbours: list[list[int]] = [[] for _ in graph.operations]
        """Per value, the operations that have it."""
        for number, operation in enumerate(graph.operations):
            mesh = self.meshes[number]
            terms = tuple(v.number if self.meshes[v.number] is mesh else -1 for v in operation.values)
            self.places.append(terms)
            for value in {*terms} - {-1}:
                self.neighbours[value].append(number)
        self._of_terms = [itemgetter(*terms) for terms in self.places]
        """Per operation, what takes its terms out of a list of values, of which the last is for other meshes."""
        self.users: list[list[int]] = [[] for _ in graph.operations]
        """Per value, the operations that read it, on whatever mesh."""
        for number, operation in enumerate(graph.operations):
            for operand in {*operation.operands}:
                self.users[operand.number].append(number)
        self._wishes: dict[tuple[int, Any], Wishes] = {}
        """By an operation's rule and the states of its terms."""
        self._growths: dict[tuple[int, ...], Growth] = {}
        """By a value's state and the identities of what is proposed to it."""
        self._rule_ids: dict[Rule, int] = {}
        ids = {first: self._rule_ids.setdefault(rule, len(self._rule_ids)) for first, rule in rules.items()}
        self._rule_of = [ids[first] for first in self._first_of]
        self._state_ids: dict[tuple[State | None, int], int] = {}
        self._dims: dict[int, tuple[Axes, ...]] = {}
        """By the number of a state its axes, one object for all values and runs."""
        self._mesh_ids = {id(mesh): number for number, mesh in enumerate(graph.meshes.values())}

    @cached_property
    def calculations(self) -> list[Calculation]:
        """Per operation what it computes; those that are equal are one."""
        known: dict[int, Calculation] = {}
        equal: dict[Calculation, Calculation] = {}
        for first in self._first_of:
            if first not in known:
                calculation = calculation_of(self.graph.operations[first], self.rules[first])
                known[first] = equal.setdefault(calculation, calculation)
        return [known[first] for first in self._first_of]

    @cached_property
    def fusion(self) -> Fusion:
        """What of its values lies in memory."""
        return Fusion(self.graph.operations)

    @cached_property
    def rules_of_uneven(self) -> frozenset[str]:
        """The rules for uneven dims of all shardings that were given and cut anything."""
        annotations = self.graph.annotations.values()
        return frozenset([sharding.uneven for sharding in annotations if any(dim.axes for dim in sharding.dims)])

    @property
    def uneven(self) -> str:
        """The rule of them all, if it is one."""
        return next(iter(self.rules_of_uneven)) if len(self.rules_of_uneven) == 1 else "ceil"

    def sharding(self, number: int, dims: Sequence[Axes], like: Sharding | None = None) -> Sharding:
        """A value with these axes on its dims, otherwise as another sharding, or as nothing was said."""
        if like is None:
            return closed_sharding(self.meshes[number], tuple(dims), uneven=self.uneven)
        return closed_sharding(self.meshes[number], tuple(dims), like.unreduced, like.reduction, like.uneven)

    def task(self, number: int, shardings: Sequence[Sharding]) -> Task:
        """An operation from where its operands are kept to where its result is."""
        operation, target = self.graph.operations[number], shardings[number]
        sources = tuple(shardings[operand.number] for operand in operation.operands)
        return Task(self.calculations[number], target.mesh, sources, target, True, self.trip_counts(number))

    @cached_property
    def computed(self) -> list[int]:
        """The operations that compute something."""
        return [
            number
            for number, operation in enumerate(self.graph.operations)
            if operation.operands and operation.name not in ("reshard", "output", "carry", "last")
        ]

    @cached_property
    def _trips(self) -> list[int]:
        """Per value how often it is made."""
        return [operation.trip_count for operation in self.graph.operations]

    def trip_counts(self, number: int) -> tuple[int, ...]:
        """How often each operand of an operation is moved where it must be, and last how often the result is made."""
        return tuple(self._trips[value.number] for value in self.graph.operations[number].values)

    @cached_property
    def order(self) -> list[int]:
        """The operations in an order in which no name has a say, nor theirs: by their depth, then by their weights."""
        depths: list[int] = []
        for operation in self.graph.operations:
            depths.append(1 + max((depths[operand.number] for operand in operation.operands), default=0))
        return sorted(range(len(depths)), key=lambda number: (depths[number], self.weights[number]))

    @cached_property
    def weights(self) -> list[int]:
        """Per value, a number made of what surrounds it in the program, and of no name or order."""
        operations = self.graph.operations
        down: list[str] = []
        texts = [repr((rule.terms, rule.sizes, rule.shapes)) for rule in self._rule_ids]
        for operation, rule, mesh in zip(operations, self._rule_of, self.meshes, strict=True):
            annotation = self.graph.annotations.get(operation.result)
            said = "" if annotation is None else _nameless(annotation, list(mesh.sizes))
            inside = [down[operand.number] for operand in operation.operands]
            down.append(_digest(operation.name, texts[rule], said, *inside))
        up = list(down)
        uses: list[list[str]] = [[] for _ in operations]
        for number in reversed(range(len(operations))):
            up[number] = _digest(down[number], *sorted(uses[number]))
            for place, operand in enumerate(operations[number].operands):
                uses[operand.number].append(_digest(str(place), up[number]))
        return [int(text[:12], 16) + 1 for text in up]

    @cached_property
    def kinds(self) -> Kinds:
        """The kinds of its dims."""
        return Kinds(self.graph, self.rules, self.weights)

    def forget(self) -> None:
        """Let go of what runs have looked up."""
        for looked_up in (self._wishes, self._growths, self._state_ids, self._dims):
            looked_up.clear()
        self.__dict__.pop("_blank", None)

    def runs(self, until_priority: int | None) -> list[Flow]:
        """Propagation from all annotations at once; where there is a choice, also with some ahead in turn."""
        flows = [self.run(until_priority)]
        if flows[0].disputed or flows[0].refused:
            most = max(FEWEST_LEADERS, min(MOST_LEADERS, MOST_VISITED // len(self.rules)))
            ahead = leaders(self.graph, self.kinds)[:most]
            flows += [self.run(until_priority, dims) for dims in ahead]
        return flows

    def run(self, until_priority: int | None = None, ahead: Ahead | None = None) -> Flow:
        """Carry what was said about the values to the fixed point of the last round.

        Args:
            until_priority: of the last round; all of them unless given.
            ahead: the dims that are seen, in each round, before all others.
        """
        annotations = {value.number: sharding for value, sharding in self.graph.annotations.items()}
        priorities = sorted({dim.priority or 0 for s in annotations.values() for dim in s.dims} | {0})
        if until_priority is not None:
            priorities = [priority for priority in priorities if priority <= until_priority] or [0]
        turns = (None,) if ahead is None else (ahead, None)
        levels = [(priority, first) for priority in priorities for first in turns]
        states, ids = list(self._blank[0]), list(self._blank[1])
        flow = Flow([], [{} for _ in states])
        for level, first in levels:
            for number, sharding in annotations.items():
                states[number] = self._seen(number, sharding, level, first, states[number], flow)
                ids[number] = self._state_id(states[number], self.meshes[number])
            self._settle(states, ids, {op for value in annotations for op in self.neighbours[value]}, flow, level)
        flow.dims = [self._dims.setdefault(ids[number], state.dims) for number, state in enumerate(states)]
        return flow

    @cached_property
    def _blank(self) -> tuple[list[State], list[int]]:
        """Per value the state of which nothing is known, and its number; last that of one on another mesh."""
        states = [State(((),) * len(v.shape), (True,) * len(v.shape), ()) for v in self.values]
        return states, [*map(self._state_id, states, self.meshes), -1]

    def _seen(
        self, number: int, sharding: Sharding, level: int, first: Ahead | None, state: State, flow: Flow
    ) -> State:
        """The state of an annotated value once its dims up to a level are seen, of that level the first or all."""
        if sharding.mesh.is_maximal:
            return State(state.dims, (False,) * len(state.opens), ())
        dims, opens, kept = list(state.dims), list(state.opens), [*sharding.replicated, *sharding.unreduced]
        for place, dim in enumerate(sharding.dims):
            priority = dim.priority or 0
            if priority > level or (priority == level and first is not None and (number, place) not in first):
                opens[place] = dim.is_open and not dim.axes and priority <= level
                kept += dim.axes
            elif not is_prefix(dim.axes, dims[place]):
                dims[place] = dim.axes
                opens[place] = dim.is_open
                if dim.axes:
                    flow.origins[number][place] = [Origin(dim.axes, None, number, priority)]
            else:
                opens[place] = dim.is_open
        return State(tuple(dims), tuple(opens), tuple(kept))

    def _settle(self, states: list[State], ids: list[int], waiting: Iterable[int], flow: Flow, level: int) -> None:
        dirty = set(waiting)
        while dirty:
            wished: dict[int, list[tuple[Wish, int]]] = {}
            for number in dirty:
                places = self.places[number]
                key = self._rule_of[number], self._of_terms[number](ids)
                asked = self._wishes.get(key)
                if asked is None:
                    terms = [None if v < 0 else states[v] for v in places]
                    asked = self._wishes[key] = wishes(self.rules[number], terms, self.meshes[number].sizes)
                if asked.disagree:
                    flow.disputed.update(v for v in places if v >= 0)
                flow.refused |= asked.refused
                for wish in asked.wishes:
                    wished.setdefault(places[wish.term], []).append((wish, number))
            dirty = set()
            for value, wants in wished.items():
                if self._take(value, states, ids, wants, flow, level):
                    dirty.update(self.neighbours[value])

    def _take(
        self, value: int, states: list[State], ids: list[int], wants: list[tuple[Wish, int]], flow: Flow, level: int
    ) -> bool:
        """Let a value grow by what is proposed to it; whether it did."""
        key = ids[value], *(id(wish) for wish, _ in wants)
        growth = self._growths.get(key)
        if growth is None:
            growth = self._growths[key] = self._growth(value, states[value], [wish for wish, _ in wants])
        if growth.is_disputed:
            flow.disputed.add(value)
        for place, axes in growth.taken:
            wish, number = wants[place]
            giver = self.places[number][wish.giver]
            flow.origins[value].setdefault(wish.dim, []).append(Origin(axes, number, giver, level))
        if growth.taken:
            states[value], ids[value] = growth.state, growth.number
        return bool(growth.taken)

    def _growth(self, value: int, state: State, wished: Sequence[Wish]) -> Growth:
        """What becomes of a value in a state to which something is proposed."""
        sizes = self.meshes[value].sizes
        rank = {name: place for place, name in enumerate(sizes)}
        dims = list(state.dims)
        taken: list[tuple[int, Axes]] = []
        is_disputed = False
        for place in sorted(range(len(wished)), key=lambda place: _order(wished[place], sizes, rank)):
            wish = wished[place]
            present = dims[wish.dim]
            if is_prefix(wish.axes, present):
                continue
            if not is_prefix(present, wish.axes):
                is_disputed = True
                continue
            others = [axis for dim, axes in enumerate(dims) if dim != wish.dim for axis in axes]
            clean = _without_repeats(truncated(wish.axes, [*state.kept, *others], sizes))
            is_disputed |= clean != wish.axes and (
                any(axis.overlaps(other) for axis in wish.axes for other in others)
                or _without_repeats(wish.axes) != wish.axes
            )
            if len(clean) < len(present) or not is_prefix(present, clean) or clean == present:
                continue
            dims[wish.dim] = merged(clean, sizes)
            taken.append((place, dims[wish.dim]))
        grown = state._replace(dims=tuple(dims))
        return Growth(grown, self._state_id(grown, self.meshes[value]), taken, is_disputed)

    def _state_id(self, state: State, mesh: object) -> int:
        return self._state_ids.setdefault((state, self._mesh_ids.get(id(mesh), 0)), len(self._state_ids))


def _without_repeats(axes: Axes) -> Axes:
    """The list up to the first axis that another label of the same dim has already."""
    for place, axis in enumerate(axes):
        if any(axis.overlaps(other) for other in axes[:place]):
            return axes[:place]
    return axes


def _nameless(sharding: Sharding, names: list[str]) -> str:
    """A sharding with numbers for the names of axes."""
    dims = [
        ([(names.index(a.name), a.start, a.stop) for a in dim.axes], dim.is_open, dim.priority) for dim in sharding.dims
    ]
    rest = [
        [(names.index(a.name), a.start, a.stop) for a in axes] for axes in (sharding.replicated, sharding.unreduced)
    ]
    return repr((dims, rest))


def _digest(*texts: str) -> str:
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()


def _order(wish: Wish, sizes: Sizes, rank: Mapping[str, int]) -> tuple[object, ...]:
    axes = [(rank[axis.name], axis.start, axis.stop) for axis in wish.axes]
    return (-shards(wish.axes, sizes), -wish.elements, wish.dim, axes, wish.giver)


def wishes(rule: Rule, states: Sequence[State | None], sizes: Sizes) -> Wishes:
    """What an operation proposes to its tensors.

    Args:
        rule: of the operation.
        states: of its tensors; None for one on another mesh.
        sizes: those of the mesh.
    """
    held: list[list[tuple[Axes, int]]] = [[] for _ in rule.sizes]
    """Per label the axes that tensors have of it, where they have any."""
    rests: set[tuple[int, int]] = set()
    for term, state in enumerate(states):
        if state is None:
            continue
        for dim, (group, axes) in enumerate(zip(rule.terms[term], state.dims, strict=True)):
            if not axes:
                continue
            if len(group) == 1:
                held[group[0]].append((axes, term))
                continue
            labelled = labels_of(group, axes, rule.sizes, sizes)
            for label, own in zip(group, labelled.lists, strict=True):
                if own:
                    held[label].append((own, term))
            if labelled.rest:
                rests.add((term, dim))
    agreed: dict[int, Axes] = dict.fromkeys(range(len(held)), ())
    disagree = False
    for label, lists in enumerate(held):
        if lists:
            agreed[label], apart = longest_agreed([axes for axes, _ in lists])
            disagree |= apart

    def giver_of(label: int) -> tuple[int, int]:
        """The elements of the largest tensor that has what is agreed on, and less than 0 its number."""
        return max((rule.elements[term], -term) for axes, term in held[label] if is_prefix(agreed[label], axes))

    found_wishes, refused = [], False
    for term, state in enumerate(states):
        if state is None:
            continue
        for dim, (group, present) in enumerate(zip(rule.terms[term], state.dims, strict=True)):
            axes = agreed[group[0]] if len(group) == 1 else axes_of(group, agreed, rule.sizes, sizes)
            if not axes or axes == present or (term, dim) in rests or not is_prefix(present, axes):
                continue
            if state.opens[dim]:
                elements, giver = max(giver_of(label) for label in group if agreed[label])
                found_wishes.append(Wish(term, dim, axes, elements, -giver))
            else:
                refused = True
    return Wishes(tuple(found_wishes), disagree, refused)


def value_meshes(graph: Builder) -> list[Mesh]:
    """Per value its mesh: that of its sharding, else of its first operand that has one, else of who reads it first.

    The program's first mesh is that of values of which nothing else tells.
    """
    own = {mesh: mesh for mesh in graph.meshes.values()}
    meshes: list[Mesh | None] = []
    for operation in graph.operations:
        sharding = graph.annotations.get(operation.result)
        around = (meshes[operand.number] for operand in operation.operands)
        meshes.append(own[sharding.mesh] if sharding is not None else next(filter(None, around), None))
    undecided = {number for number, mesh in enumerate(meshes) if mesh is None}
    for operation in reversed(graph.operations):
        for operand in operation.operands:
            if operand.number in undecided:
                meshes[operand.number] = meshes[operation.result.number] or meshes[operand.number]
    return [own[graph.mesh] if mesh is None else mesh for mesh in meshes]


def sharding_of(net: Net, flow: Flow, value: Value) -> Sharding:
    """The sharding of a value that propagation found, as it was given where it was: open dims closed."""
    annotation = net.graph.annotations.get(value)
    mesh = net.meshes[value.number]
    if mesh.is_maximal:
        return Sharding(mesh, ())
    dims = flow.dims[value.number]
    if annotation is None:
        return Sharding.of(mesh, *dims)
    return Sharding.of(
        mesh,
        *dims,
        replicated=annotation.replicated,
        unreduced=annotation.unreduced,
        reduction=annotation.reduction,
        uneven=annotation.uneven,
    )
