"""The least that a chain of collectives receives, by going through all of them: slow, plain, written apart.

A state says per dim which digits of prime size cut it, major to minor, by name.
Every collective from every state is an edge; a Permute leads to every state with as many parts per dim.
Costs are (elements received by all devices, steps); the devices are listed one by one to see whose block changes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations, permutations, product
from math import prod

from reshard.axis import Axis
from reshard.sharding import Sharding

State = tuple[tuple[str, ...], ...]
Cost = tuple[int, int]

FAMILIES = {
    "2x2x2, rank 2": ((2, 2, 2), (16, 16)),
    "4x2, rank 2": ((4, 2), (8, 16)),
    "2x3, rank 2": ((2, 3), (6, 12)),
    "2x3x5, rank 2": ((2, 3, 5), (60, 30)),
    "3x3x2, rank 2": ((3, 3, 2), (18, 36)),
    "2x3x2, rank 3": ((2, 3, 2), (12, 12, 12)),
}
"""Axis sizes of a mesh and the shape of a tensor, all pairs of whose shardings are gone through."""


def prime_parts(axis: Axis, full_size: int) -> list[str]:
    """An axis or a sub-axis as its prime parts, each by the name of the axis and its own ends."""
    start = axis.pre_size or 1
    stop = start * (axis.size or full_size)
    parts = []
    while start < stop:
        prime = next(p for p in range(2, stop + 1) if stop // start % p == 0)
        parts.append(f"{axis.name}:{start}:{prime}")
        start *= prime
    return parts


def state_of(sharding: Sharding) -> State:
    """The state that a sharding is in."""
    sizes = dict(sharding.mesh.axes)
    return tuple(
        tuple(part for axis in dim.axes for part in prime_parts(axis, sizes[axis.name])) for dim in sharding.dims
    )


class Space:
    """Every state over some digits, and what leads from one to another."""

    def __init__(self, digits: Mapping[str, int], ndim: int, elements: int) -> None:
        self.sizes, self.ndim, self.elements = dict(digits), ndim, elements
        self.devices = list(product(*(range(size) for size in self.sizes.values())))
        self.place = {digit: number for number, digit in enumerate(self.sizes)}
        self.states = list(self._all())

    def _all(self) -> Iterator[State]:
        for count in range(len(self.sizes) + 1):
            for chosen in permutations(self.sizes, count):
                for homes in product(range(self.ndim), repeat=count):
                    if list(homes) == sorted(homes):
                        yield tuple(
                            tuple(digit for digit, home in zip(chosen, homes, strict=True) if home == dim)
                            for dim in range(self.ndim)
                        )

    def size(self, digits: tuple[str, ...]) -> int:
        return prod(self.sizes[digit] for digit in digits)

    def tile(self, state: State) -> int:
        return self.elements // prod(map(self.size, state))

    @cache  # noqa: B019 - a space lives as long as its test
    def blocks(self, state: State) -> list[tuple[int, ...]]:
        """Per device the number of its block in every dim."""
        found = []
        for device in self.devices:
            numbers = []
            for dim in state:
                number = 0
                for digit in dim:
                    number = number * self.sizes[digit] + device[self.place[digit]]
                numbers.append(number)
            found.append(tuple(numbers))
        return found

    @cache  # noqa: B019
    def steps(self, state: State) -> list[tuple[State, Cost]]:
        """What one collective makes of a state, and what it costs."""
        return [*self._gathers(state), *self._slices(state), *self._all_to_alls(state), *self._permutes(state)]

    def _gathers(self, state: State) -> Iterator[tuple[State, Cost]]:
        for kept in product(*(range(len(dim) + 1) for dim in state)):
            after = tuple(dim[:count] for dim, count in zip(state, kept, strict=True))
            if after != state:
                yield after, (len(self.devices) * (self.tile(after) - self.tile(state)), 1)

    def _slices(self, state: State) -> Iterator[tuple[State, Cost]]:
        free = [digit for digit in self.sizes if all(digit not in dim for dim in state)]
        for more in self.states:
            if any(more) and all(digit in free for dim in more for digit in dim):
                yield tuple(dim + added for dim, added in zip(state, more, strict=True)), (0, 1)

    def _all_to_alls(self, state: State) -> Iterator[tuple[State, Cost]]:
        """Every dim gives to one other, takes from one other, or neither."""
        for goals in product(range(self.ndim), repeat=self.ndim):
            pairs = [(dim, goal) for dim, goal in enumerate(goals) if goal != dim]
            used = [dim for pair in pairs for dim in pair]
            if pairs and len(set(used)) == len(used):
                for counts in product(*(range(1, len(state[dim]) + 1) for dim, _ in pairs)):
                    dims, moved = list(state), 1
                    for (dim, goal), count in zip(pairs, counts, strict=True):
                        tail = state[dim][len(state[dim]) - count :]
                        dims[dim], dims[goal] = state[dim][: len(state[dim]) - count], state[goal] + tail
                        moved *= self.size(tail)
                    received = self.tile(state) - self.tile(state) // moved
                    yield tuple(dims), (len(self.devices) * received, 1)

    def _permutes(self, state: State) -> Iterator[tuple[State, Cost]]:
        for after in self.states:
            if after != state and list(map(self.size, after)) == list(map(self.size, state)):
                changed = sum(a != b for a, b in zip(self.blocks(state), self.blocks(after), strict=True))
                yield after, (self.tile(state) * changed, 1)

    @cache  # noqa: B019
    def costs_from(self, source: State, *, one_axis: bool = False) -> dict[State, Cost]:
        """The least cost of reaching every state, by Dijkstra; where asked for in the basis of one axis at a time."""
        best: dict[State, Cost] = {source: (0, 0)}
        heap: list[tuple[Cost, State]] = [((0, 0), source)]
        while heap:
            cost, state = heapq.heappop(heap)
            if cost > best[state]:
                continue
            for after, (elements, count) in self.single_steps(state) if one_axis else self.steps(state):
                total = (cost[0] + elements, cost[1] + count)
                if total < best.get(after, (2**62, 0)):
                    best[after] = total
                    heapq.heappush(heap, (total, after))
        return best

    @cache  # noqa: B019
    def single_steps(self, state: State) -> list[tuple[State, Cost]]:
        """The steps that handle one digit, or turn round two in one dim."""
        here = sorted(sum(state, ()))
        found = []
        for after, cost in self.steps(state):
            there = sorted(sum(after, ()))
            places = [
                (d, p) for d, dim in enumerate(state) for p, digit in enumerate(dim) if after[d][p : p + 1] != (digit,)
            ]
            turned = (
                here == there
                and list(map(len, state)) == list(map(len, after))
                and len(places) == 2
                and places[0][0] == places[1][0]
                and places[1][1] - places[0][1] == 1
            )
            one = sum(abs(len(a) - len(b)) for a, b in zip(state, after, strict=True))
            if turned or (one == 1 and here != there) or (one == 2 and here == there):
                found.append((after, cost))
        return found


Partial = tuple[State, frozenset[str]]
"""A state, and the digits along which values are partial."""


class Reducing:
    """The space of states in which values may be partial along some digits; any of them may be reduced at any time."""

    def __init__(self, space: Space) -> None:
        self.space = space

    def steps(self, place: Partial) -> Iterator[tuple[Partial, Cost]]:
        """What one collective makes of a state, and what it costs."""
        state, partial = place
        space = self.space
        held = {digit for dim in state for digit in dim}
        for after, cost in space.steps(state):
            if not partial & {digit for dim in after for digit in dim}:
                yield (after, partial), cost
        free = space.size(tuple(digit for digit in space.sizes if digit not in held | partial))
        tile = space.tile(state) * len(space.devices)
        for count in range(1, len(partial) + 1):
            for chosen in combinations(sorted(partial), count):
                parts, left = space.size(chosen), partial - set(chosen)
                yield (state, left), (tile + tile // free - 2 * tile // (parts * free), 1)
                for more in space.states if free == 1 else ():
                    if sorted(digit for dim in more for digit in dim) == list(chosen):
                        scattered = tuple(dim + added for dim, added in zip(state, more, strict=True))
                        yield (scattered, left), (tile - tile // parts, 1)

    def costs_from(self, source: Partial) -> dict[Partial, Cost]:
        """The least cost of reaching every state, by Dijkstra."""
        best: dict[Partial, Cost] = {source: (0, 0)}
        heap = [((0, 0), 0, source)]
        turn = 0
        while heap:
            cost, _, place = heapq.heappop(heap)
            if cost > best[place]:
                continue
            for after, (elements, count) in self.steps(place):
                total = (cost[0] + elements, cost[1] + count)
                if total < best.get(after, (2**62, 0)):
                    best[after] = total
                    turn += 1
                    heapq.heappush(heap, (total, turn, after))
        return best
