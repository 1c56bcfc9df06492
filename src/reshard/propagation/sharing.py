"""Choices looked at again with reshards shared.

Tables of single operations do not see that two operations may read one and the same reshard of a value.
Here the program is priced with equal reshards made once, and changed as long as that lowers the price: one value to
another of its candidates, two that are made of the same value, or a part of the program to what one run of propagation
says there.
Of all changes the best is made first, so that no order has a say.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from reshard.contraction.chooser import Chooser
from reshard.contraction.prices import IMPOSSIBLE, NOTHING, Price, added, arithmetic, times
from reshard.errors import ReshardError
from reshard.propagation.conflicts import preferences
from reshard.propagation.fixpoint import Flow, Net
from reshard.sharding import Sharding

MOST_PRICED = 200_000
"""How many operations are priced again at most, in all tries together."""
Change = dict[int, int]
"""The candidates of the values that a change gives others."""


class Need(NamedTuple):
    """A reshard of a value."""

    value: int
    """Its number."""
    source: Sharding
    target: Sharding


def improved(
    net: Net, chooser: Chooser, found: Sequence[Sequence[Sharding]], flows: Sequence[Flow], chosen: Sequence[Sharding]
) -> list[Sharding]:
    """The choice after the last change that lowers the price of the program."""
    variables = [number for number, some in enumerate(found) if len(some) > 1]
    if not variables or not _shares(net):
        return list(chosen)
    liked = preferences(net, found, variables)
    runs = [_choice_of(flow, found, net) for flow in flows]
    state = _State(net, chooser, chosen)
    budget = max(MOST_PRICED // len(found), 1)
    while budget > 0:
        here = tuple(some.index(sharding) for some, sharding in zip(found, state.chosen, strict=True))
        moves = list(itertools.islice(_moves(net, found, runs, variables, here), budget))
        budget -= len(moves)
        best_price, best = (state.cost, 0), Change()
        for move in moves:
            likes = sum(liked[value][choice] - liked[value][here[value]] for value, choice in move.items())
            price = state.cost_with({value: found[value][choice] for value, choice in move.items()}), likes
            if price < best_price or (best and price == best_price and _before(move, best, here)):
                best_price, best = price, move
        if not best:
            break
        state.change({value: found[value][choice] for value, choice in best.items()})
    return state.chosen


def _before(one: Change, other: Change, here: tuple[int, ...]) -> bool:
    """Whether the choice after one change comes before that after another."""
    places = sorted({*one, *other})
    return [one.get(n, here[n]) for n in places] < [other.get(n, here[n]) for n in places]


class _State:
    """A choice, what each operation costs in it, and which reshards it needs."""

    def __init__(self, net: Net, chooser: Chooser, chosen: Sequence[Sharding]) -> None:
        self.net, self.chooser, self.chosen = net, chooser, list(chosen)
        self.having: list[list[int]] = [[] for _ in chosen]
        """Per value, the operations that have it, on whatever mesh."""
        for number, operation in enumerate(net.graph.operations):
            for value in {value.number for value in operation.values}:
                self.having[value].append(number)
        self.parts = [_part(net, chooser, number, self.chosen) for number in range(len(chosen))]
        self.uses = Counter(need for part in self.parts for need in part.needs)
        """Per reshard, how many operations need it."""
        self.cost = self.total()

    def total(self) -> Price:
        moved = [self.reshard(need) for need in self.uses]
        return added(NOTHING, *(part.cost for part in self.parts), *moved)

    def reshard(self, need: Need) -> Price:
        operation = self.net.graph.operations[need.value]
        moved = self.chooser.prices.moved(need.source, need.target, operation.result.shape, operation.result.dtype)
        return times(moved.price, operation.trip_count)

    def touched(self, changes: Mapping[int, Sharding]) -> list[tuple[int, _Part]]:
        """The operations that have one of the values, as they are after a change."""
        before = {value: self.chosen[value] for value in changes}
        for value, sharding in changes.items():
            self.chosen[value] = sharding
        numbers = {number for value in changes for number in self.having[value]}
        parts = [(number, _part(self.net, self.chooser, number, self.chosen)) for number in numbers]
        for value, sharding in before.items():
            self.chosen[value] = sharding
        return parts

    def cost_with(self, changes: Mapping[int, Sharding]) -> Price:
        """What the program costs after a change: only what the change touches is priced."""
        more: list[Price] = []
        less: list[Price] = []
        needed: Counter[Need] = Counter()
        for number, part in self.touched(changes):
            more.append(part.cost)
            less.append(self.parts[number].cost)
            needed.update(part.needs)
            needed.subtract(self.parts[number].needs)
        for need, count in needed.items():
            before = self.uses.get(need, 0)
            if before == 0 < count:
                more.append(self.reshard(need))
            elif 0 < before == -count:
                less.append(self.reshard(need))
        if any(cost.seconds == inf for cost in more):
            return IMPOSSIBLE
        if self.cost.seconds == inf:  # of which nothing can be taken away
            return _State(self.net, self.chooser, [changes.get(n, one) for n, one in enumerate(self.chosen)]).cost
        change = added(NOTHING, *more, *(times(cost, -1) for cost in less))
        return added(self.cost, change)

    def change(self, changes: Mapping[int, Sharding]) -> None:
        for number, part in self.touched(changes):
            self.uses.subtract(self.parts[number].needs)
            self.uses.update(part.needs)
            self.parts[number] = part
        self.uses = +self.uses
        for value, sharding in changes.items():
            self.chosen[value] = sharding
        self.cost = self.total()


class _Part(NamedTuple):
    """One operation in a choice."""

    cost: Price
    """Of its work, and of the reshard after it."""
    needs: tuple[Need, ...]
    """The reshards before it."""


def _part(net: Net, chooser: Chooser, number: int, chosen: Sequence[Sharding]) -> _Part:
    operation = net.graph.operations[number]
    if not operation.operands:
        return _Part(NOTHING, ())
    result = chosen[number]
    kept = tuple(chosen[operand.number] for operand in operation.operands)
    cost = NOTHING
    needed: tuple[Sharding, ...] = (result,)
    if operation.name not in ("reshard", "output"):
        try:
            trips = net.trip_counts(number)
            computed = chooser.choose(net.calculations[number], kept, result, trips)
        except ReshardError:
            return _Part(IMPOSSIBLE, ())
        *used, made = computed.layout.shardings
        needed = tuple(used)
        after = chooser.prices.moved(made, result, operation.result.shape, operation.result.dtype)
        cost = added(arithmetic(computed.price.flops, chooser.network), times(after.price, trips[-1]))
    numbers = [operand.number for operand in operation.operands]
    reshards = map(Need, numbers, kept, needed)
    needs = dict.fromkeys(need for need in reshards if need.source != need.target)
    return _Part(cost, tuple(needs))


def shared_cost(net: Net, chooser: Chooser, chosen: Sequence[Sharding]) -> Price:
    """What the program costs when equal reshards of a value are made once."""
    return _State(net, chooser, chosen).cost


def _shares(net: Net) -> bool:
    """Whether a value is used twice."""
    used = [operand.number for operation in net.graph.operations for operand in {*operation.operands}]
    return len(used) > len(set(used))


def _choice_of(flow: Flow, found: Sequence[Sequence[Sharding]], net: Net) -> tuple[int, ...]:
    """The candidates that a run of propagation had."""
    choice = []
    for number, some in enumerate(found):
        dims = [tuple(dim.axes) for dim in some[0].dims]
        wanted = list(flow.dims[number])
        if dims != wanted:
            wished = net.sharding(number, wanted, some[0])
            choice.append(some.index(wished) if wished in some else 0)
        else:
            choice.append(0)
    return tuple(choice)


def _moves(
    net: Net,
    found: Sequence[Sequence[Sharding]],
    runs: Sequence[tuple[int, ...]],
    variables: Sequence[int],
    here: tuple[int, ...],
) -> Iterator[Change]:
    """The changes that are tried, each once."""
    seen: set[tuple[tuple[int, int], ...]] = set()
    for run in runs:
        other = [value for value in variables if run[value] != here[value]]
        for part in (set(other), *_parts(net, other)):
            move = {value: run[value] for value in sorted(part)}
            key = tuple(move.items())
            if move and key not in seen:
                seen.add(key)
                yield move
    for value in variables:
        for choice in range(len(found[value])):
            if choice != here[value]:
                yield {value: choice}
    for one, two in _pairs(net, set(variables)):
        for first, second in itertools.product(range(len(found[one])), range(len(found[two]))):
            if first != here[one] and second != here[two]:
                yield {one: first, two: second}


def _pairs(net: Net, variables: set[int]) -> Iterator[tuple[int, int]]:
    """Values that are made of one and the same, which may share a reshard of it."""
    users: dict[int, set[int]] = {}
    for number, operation in enumerate(net.graph.operations):
        for operand in operation.operands:
            users.setdefault(operand.number, set()).add(number)
    ways = [itertools.combinations(sorted(some & variables), 2) for some in users.values()]
    for pair, _ in itertools.groupby(heapq.merge(*ways)):
        yield pair


def _parts(net: Net, values: Sequence[int]) -> Iterator[set[int]]:
    """The values, in groups that operations connect."""
    left = set(values)
    while left:
        part, edge = set[int](), [left.pop()]
        while edge:
            value = edge.pop()
            part.add(value)
            near = {other for op in net.neighbours[value] for other in net.places[op]} & left
            left -= near
            edge += near
        yield part
