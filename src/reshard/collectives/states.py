"""Shardings as lists of numbered digits, what a collective makes of them, and tables of what is left to pay.

A `DigitLists` says per dim which digits of the devices cut it, major to minor.
A digit that is yet to be chosen is a *blank*: a negative number that carries its class and what it may be.
`Tables` holds, for one task, the weak distances from every node to the target and from the source, and so how much
every step wastes: its cost, and what is left after it, less what was left before.

By hand, 4 devices of digits 0 and 1, one dim, from `0` to `1`: the weak graph has no way to go, a slice can only
append a blank that is not 0.

>>> task = SearchTask(4, ((2, 2),), (0, 0), ((0,),), ((1,),), (8,))
>>> tables = Tables(task)
>>> change = tables.change(task.node_of(((0,),)), task.node_of(((0, 1),)))
>>> [[[entry if entry >= 0 else bin(allowed_of(entry)) for entry in dim] for dim in state]
...  for state in tables.apply(((0,),), change, tables.blanks(((0,),)))]
[[[0, '0b10']]]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.collectives.weak import FAR, STEP_LIMIT, Numbers, WeakGraph, distances, weak_graph

DigitLists = tuple[tuple[int, ...], ...]
"""Per dim its digits, major to minor: a number from 0, or a blank below 0."""
CACHED, CACHED_STEPS, CACHED_BOUNDS = 65536, 2048, 128
"""Differences of nodes that are kept, nodes whose steps are, and nodes whose distances from all others are."""
CLASS_BITS = 5


def blank(allowed: int, size_class: int) -> int:
    """A digit of a class that is yet to be chosen among those of a bit mask."""
    return -(allowed << CLASS_BITS | size_class) - 1


def allowed_of(entry: int) -> int:
    """The bit mask of what a blank may be."""
    return (-entry - 1) >> CLASS_BITS


def digits_in(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    return (digit for digit in range(mask.bit_length()) if mask >> digit & 1)


class Stop(NamedTuple):
    """Where a chain has come to."""

    state: DigitLists
    is_pending: bool
    """Whether values are still to be reduced."""


class Visit(NamedTuple):
    """A chain that has reached a state."""

    cost: int
    stop: Stop
    """Values are still to be reduced only going forward."""
    node: int
    previous: Visit | None

    def chain(self) -> list[Visit]:
        """All visits, this one first."""
        return [self, *(self.previous.chain() if self.previous else [])]


class DigitChange(NamedTuple):
    """What one collective does to the dims: one of the three."""

    grown: tuple[DigitLists, ...] = ()
    """Ways to append: per dim the classes of what is appended."""
    dropped: tuple[int, ...] = ()
    """Per dim, how many digits leave its end."""
    moved: tuple[tuple[tuple[int, int, int], ...], ...] = ()
    """Ways to move: (from dim, to dim, how many digits)."""
    classes: DigitLists = ()
    """Per dim, the classes of what leaves its end, sorted."""


@dataclass(frozen=True)
class SearchTask:
    """From where to where: digits of the devices are numbers, and their sizes fall into classes."""

    devices: int
    """How many there are in all; the digits searched on may be fewer."""
    classes: tuple[tuple[int, int], ...]
    """The sizes of the digits, ascending, with how many there are of each."""
    digit_classes: tuple[int, ...]
    """The class of each digit."""
    source: DigitLists
    target: DigitLists
    shape: tuple[int, ...]
    pending: int = 0
    """Digits along which the source is unreduced and the target is not, as a bit mask."""

    @property
    def graph(self) -> WeakGraph:
        """The weak graph of the devices and the dims; it is not kept here, for tasks are kept and graphs are large."""
        return weak_graph(self.devices, self.classes, len(self.shape))

    def class_of(self, entry: int) -> int:
        """The class of a digit or a blank."""
        return self.digit_classes[entry] if entry >= 0 else (-entry - 1) & ((1 << CLASS_BITS) - 1)

    @cached_property
    def class_masks(self) -> tuple[int, ...]:
        """Per class, its digits as a bit mask."""
        return tuple(
            sum(1 << digit for digit, other in enumerate(self.digit_classes) if other == number)
            for number in range(len(self.classes))
        )

    def size_of(self, entry: int) -> int:
        """The size of a digit or a blank."""
        return self.classes[self.class_of(entry)][0]

    def block_numbers(self, state: DigitLists, values: Mapping[int, Numbers]) -> Numbers:
        """Per device the number of its block, by the values of its digits; states at one node of the graph compare."""
        number = 0 * next(iter(values.values()))
        for entry in itertools.chain(*state):
            number = number * self.size_of(entry) + values[entry]
        return number

    def node_of(self, state: DigitLists) -> int:
        """Where a state lies in the weak graph."""
        classes = range(len(self.classes))
        counts = [[self.class_of(entry) for entry in dim] for dim in state]
        return self.graph.index[tuple(dim.count(number) for dim in counts for number in classes)]

    def permute_units(self, units: int) -> int:
        """What any Permute of tiles receives at the least."""
        return units - units // _least_moved(self.classes)


class NodeBounds:
    """What is left to pay at the least from every node of a weak graph, and the steps that lead on."""

    def __init__(
        self, devices: int, classes: tuple[tuple[int, int], ...], ndim: int, left: Numbers, *, backward: bool = False
    ) -> None:
        self.graph = devices, classes, ndim
        self.left = left
        """Per node; `FAR` where no chain may lead."""
        self.backward = backward
        self._left: list[int] = left.tolist()
        self._steps: dict[int, list[tuple[int, int, int, DigitChange]]] = {}

    def steps(self, node: int) -> list[tuple[int, int, int, DigitChange]]:
        """The steps from a node, the least wasteful first: how much they waste, to where, what they cost and do."""
        if node not in self._steps:
            left, own = self._left, self._left[node]
            steps = _steps_of(*self.graph, node, self.backward)
            self._steps[node] = sorted(
                [(cost + left[near] - own, near, cost, change) for near, cost, change in steps if left[near] < FAR]
            )
        return self._steps[node]


@lru_cache(CACHED_BOUNDS)
def _costs(devices: int, classes: tuple[tuple[int, int], ...], shape: tuple[int, ...]) -> Numbers:
    """The costs of the weak graph between nodes that cut a shape evenly."""
    graph = weak_graph(devices, classes, len(shape))
    keep = graph.allowed(shape)
    return np.where(keep[:, None] & keep[None], graph.costs, FAR)


def _only(nodes: int, node: int) -> Numbers:
    """Nothing at one node, and no way to end at another."""
    ends = np.full(nodes, FAR, dtype=np.int64)
    ends[node] = 0
    return ends


@lru_cache(CACHED_BOUNDS)
def _ahead(devices: int, classes: tuple[tuple[int, int], ...], shape: tuple[int, ...], target: int) -> NodeBounds:
    """What is left to pay to a node, which is asked for by all searches that end there."""
    costs = _costs(devices, classes, shape)
    return NodeBounds(devices, classes, len(shape), distances(costs, _only(len(costs), target)))


@lru_cache(CACHED_BOUNDS)
def _behind(
    devices: int, classes: tuple[tuple[int, int], ...], shape: tuple[int, ...], source: int
) -> tuple[Numbers, NodeBounds]:
    """What is left to pay from every node back to one, and the same with a Permute on the way."""
    costs = _costs(devices, classes, shape)
    return _behind_from(devices, classes, shape, _only(len(costs), source))


def _behind_from(
    devices: int, classes: tuple[tuple[int, int], ...], shape: tuple[int, ...], start: Numbers
) -> tuple[Numbers, NodeBounds]:
    """The same where it is known what each node costs to start from."""
    back, graph = _costs(devices, classes, shape).T, weak_graph(devices, classes, len(shape))
    behind = distances(back, start)
    permuted = distances(back, np.minimum(behind + _least_permutes(graph), FAR))
    return behind, NodeBounds(devices, classes, len(shape), permuted, backward=True)


def _least_permutes(graph: WeakGraph) -> Numbers:
    """Per node, what a Permute of its tiles costs at the least."""
    least: Numbers = (graph.units - graph.units // _least_moved(graph.classes)) * STEP_LIMIT + 1
    return least


@lru_cache(CACHED_BOUNDS)
def _least_moved(classes: tuple[tuple[int, int], ...]) -> int:
    """The smallest size of a digit: a Permute leaves at most one device in so many its tile."""
    return min((size for size, _ in classes), default=1)


class Tables:
    """What the searches for one task look up."""

    def __init__(self, task: SearchTask) -> None:
        self.task = task
        graph, weak = task.graph, (task.devices, task.classes, task.shape)
        self.units: list[int] = graph.units.tolist()
        self.source_node, self.target_node = task.node_of(task.source), task.node_of(task.target)
        forward = pending = _ahead(*weak, self.target_node)
        self.ahead = forward.left
        if task.pending:
            costs, keep = _costs(*weak), graph.allowed(task.shape)
            spacious = self._has_room(keep)
            self.reduce = np.where(spacious[:, None] & keep[None], _reductions(task), FAR)
            room = np.where(spacious, 0, FAR)
            inside = np.minimum(costs + room[:, None] + room[None], FAR)
            ends = (self.reduce + self.ahead[None]).min(axis=1)
            left = distances(inside, np.minimum(ends, FAR))
            pending = NodeBounds(task.devices, task.classes, len(task.shape), left)
            before = distances(inside.T, _only(len(costs), self.source_node))
            start = np.minimum((self.reduce.T + before[None]).min(axis=1), FAR)
            behind, backward = _behind_from(*weak, start)
        else:
            behind, backward = _behind(*weak, self.source_node)
        self.ahead_pending, self.behind_permuted = pending.left, backward.left
        self._layers = forward, backward, pending
        least = _least_permutes(graph)
        self.permute_bound = int((behind + graph.units * STEP_LIMIT + 1 + self.ahead).min())
        self.two_permutes = int((behind + 2 * least + self.ahead).min())

    def _has_room(self, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The nodes that leave the pending digits unused."""
        graph = self.task.graph
        used = graph.nodes.reshape(len(graph.nodes), graph.ndim, -1).sum(axis=1)
        spare = [
            count - (self.task.pending & mask).bit_count()
            for (_, count), mask in zip(graph.classes, self.task.class_masks, strict=True)
        ]
        roomy: NDArray[np.bool_] = keep & (used <= np.array(spare)).all(axis=1)
        return roomy

    def change(self, before: int, after: int) -> DigitChange:
        """What leads from node to node."""
        return _change_between(self.task.graph, before, after)

    def blanks(self, state: DigitLists, pending: bool = False, only: int = -1) -> list[int]:
        """Per class, a digit that is free in a state, of some; of those of partial values only where none are left."""
        held = self.task.pending if pending else 0
        for dim in state:
            for entry in dim:
                if entry >= 0:
                    held |= 1 << entry
        free = only & ~held
        return [blank(mask & free, number) for number, mask in enumerate(self.task.class_masks)]

    def apply(self, state: DigitLists, change: DigitChange, blanks: Sequence[int]) -> list[DigitLists]:
        """The states that a change makes of a state.

        Args:
            state: what is changed.
            change: what is done to it.
            blanks: what is appended, per class.
        """
        if change.classes and len(blanks) > 1 and not self._are_at_ends(state, change.classes):
            return []
        if change.grown:
            return [
                tuple(
                    [
                        (*dim, *[blanks[number] for number in more]) if more else dim
                        for dim, more in zip(state, added, strict=True)
                    ]
                )
                for added in change.grown
            ]
        if change.dropped:
            ends = zip(state, change.dropped, strict=True)
            return [tuple([dim[: len(dim) - count] if count else dim for dim, count in ends])]
        states = []
        for moves in change.moved:
            dims = list(state)
            for origin, goal, count in moves:
                dims[goal] = dims[goal] + dims[origin][len(dims[origin]) - count :]
                dims[origin] = dims[origin][: len(dims[origin]) - count]
            states.append(tuple(dims))
        return states

    def _are_at_ends(self, state: DigitLists, classes: DigitLists) -> bool:
        """Whether digits of these classes end the dims, in any order."""
        class_of = self.task.class_of
        return all(
            tuple(sorted(map(class_of, dim[len(dim) - len(ending) :]))) == ending
            for dim, ending in zip(state, classes, strict=True)
            if ending
        )

    def steps(self, visit: Visit, slack: int, *, backward: bool = False) -> Iterator[tuple[int, Visit]]:
        """The chains one step longer that waste less than the slack, each with what it wastes."""
        state, is_pending = visit.stop
        layer = 2 if is_pending else int(backward)  # forward, backward with a Permute on the way, among partial values
        blanks = self.blanks(state, is_pending)
        for waste, node, cost, change in self._layers[layer].steps(visit.node):
            if waste >= slack:
                break
            for after in self.apply(state, change, blanks):
                yield waste, Visit(visit.cost + cost, Stop(after, is_pending), node, visit)
        if not is_pending:
            return
        costs = self.reduce[visit.node]
        blanks = self.blanks(state, only=self.task.pending)
        for node in np.flatnonzero(costs < FAR).tolist():  # all partial values are reduced
            cost = int(costs[node])
            waste = cost + int(self.ahead[node] - self.ahead_pending[visit.node])
            reduced = [state] if node == visit.node else self.apply(state, self.change(visit.node, node), blanks)
            for after in reduced if waste < slack else ():
                yield waste, Visit(visit.cost + cost, Stop(after, False), node, visit)


@lru_cache(CACHED_STEPS)
def _steps_of(
    devices: int, classes: tuple[tuple[int, int], ...], ndim: int, node: int, backward: bool
) -> list[tuple[int, int, DigitChange]]:
    """The steps of the weak graph from a node, or to it: the other node, the cost, and what leads to the other."""
    graph = weak_graph(devices, classes, ndim)
    costs = graph.costs[:, node] if backward else graph.costs[node]
    near = np.flatnonzero(costs < FAR)
    ends = zip(near.tolist(), costs[near].tolist(), strict=True)
    return [(after, cost, _change_between(graph, node, after)) for after, cost in ends]


def _change_between(graph: WeakGraph, before: int, after: int) -> DigitChange:
    rows = (graph.nodes[after] - graph.nodes[before]).reshape(graph.ndim, -1).tolist()
    return _change_of(tuple(map(tuple, rows)))


def _orders(counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The ways to put so many digits of each class in a row."""
    if not any(counts):
        yield ()
    for number, count in enumerate(counts):
        if count:
            for rest in _orders((*counts[:number], count - 1, *counts[number + 1 :])):
                yield (number, *rest)


@lru_cache(CACHED)
def _change_of(rows: tuple[tuple[int, ...], ...]) -> DigitChange:
    """A difference of nodes, per dim and class, as what is done to the digits."""
    flat = [number for row in rows for number in row]
    if min(flat) >= 0:
        orders = [list(_orders(row)) for row in rows]
        return DigitChange(grown=tuple(itertools.product(*orders)))
    classes = tuple(tuple(number for number, count in enumerate(row) for _ in range(-count)) for row in rows)
    if max(flat) <= 0:
        return DigitChange(dropped=tuple(map(len, classes)), classes=classes)
    losers = [dim for dim, row in enumerate(rows) if min(row) < 0]
    winners = [dim for dim, row in enumerate(rows) if max(row) > 0]
    pairings = [
        tuple((origin, goal, len(classes[origin])) for origin, goal in zip(losers, goals, strict=True))
        for goals in itertools.permutations(winners)
        if all(
            rows[goal] == tuple(-count for count in rows[origin]) for origin, goal in zip(losers, goals, strict=True)
        )
    ]
    return DigitChange(moved=tuple(pairings), classes=classes)


def _reductions(task: SearchTask) -> Numbers:
    """The costs of reducing all that is partial: scattered over the dims where nothing is free, or for all to have."""
    graph = task.graph
    nodes = graph.nodes.reshape(len(graph.nodes), graph.ndim, -1)
    used = nodes.sum(axis=1)
    counts = np.array([count for _, count in graph.classes])
    sizes = np.array([size for size, _ in graph.classes])
    wanted = np.array([(task.pending & mask).bit_count() for mask in task.class_masks])
    change = nodes[None] - nodes[:, None]
    full = (used + wanted == counts).all(axis=1)
    scatters = full[:, None] & (change >= 0).all(axis=(2, 3)) & (change.sum(axis=2) == wanted).all(axis=2)
    parts = int((sizes**wanted).prod())
    costs = np.full((len(nodes), len(nodes)), FAR, dtype=np.int64)
    scattered = (graph.units - graph.units // parts) * STEP_LIMIT + 1
    costs = np.where(scatters, scattered[:, None], costs)
    free = (sizes ** np.maximum(counts - wanted - used, 0)).prod(axis=1)
    everywhere = graph.units + graph.units // free - 2 * graph.units // (free * parts)
    costs[np.diag_indices(len(nodes))] = everywhere * STEP_LIMIT + 1
    return costs
