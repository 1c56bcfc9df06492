"""The search among labelled shardings: which digit of the devices cuts which dim, at which place.

A state says per dim which digits cut it, major to minor.
Collectives work at the minor end: a gather drops digits there, an all-to-all moves them to the end of another dim
in their order, a slice appends digits that are free.
A Permute leads from any state to any other of the same cuts, so it joins a chain that starts at the source with one
that ends at the target.

**Both ends at once.** Chains grow from the source forward, and from the target backward, where a gather appends
and a slice drops.
Two that meet at one node of the weak graph make a whole: without a Permute where they agree, else with one.

**Free digits have no names.** Which of the free digits a slice takes need not be known until the two chains meet.
So an appended digit is a *blank*, and carries only which digits it may be: all but those that are held just then.
Going backward, the digits that a gather frees are blanks in the same way.

**What the Permute costs.** At each place of a dim the one digit goes out and another comes in.
These links make paths and cycles of digits, and the devices whose tile stays are those on which every path and
every cycle has one value: the more of them are closed to cycles, the fewer devices receive.
A path with a blank at an end is closed by filling the blank with its other end.

By hand, digits x y z of size 2, one dim, from `x` to `y z`, and the tile of four parts as the measure:
slicing first y makes `x y`, and the links x-y, y-z are one path that leaves 1/4 of the devices as they are.
Slicing a blank b makes `x b`, with links x-y and b-z; with b = z the second is a cycle, and 1/2 stay.

>>> from reshard.collectives.weak import weak_graph
>>> task = Task(weak_graph(8, ((2, 3),), 1), (0, 0, 0), source=((0,),), target=((1, 2),), shape=(8,))
>>> states, proved = search(task, 1000)
>>> [state for state, _ in states], proved
([((0,),), ((0, 2),), ((1, 2),)], True)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reshard.collectives.listed import few, search_listed
from reshard.collectives.meeting import Meeting, agree, filled, meet
from reshard.collectives.states import State, Tables, Task
from reshard.collectives.weak import FAR, STEP_LIMIT


class Visit(NamedTuple):
    """A chain that has reached a state."""

    cost: int
    state: State
    node: int
    pending: bool
    """Whether partial values are still to be reduced; only going forward."""
    previous: Visit | None

    def chain(self) -> list[Visit]:
        """All visits, this one first."""
        return [self, *(self.previous.chain() if self.previous else [])]


@dataclass
class Found:
    """The best chain so far."""

    cost: int = FAR
    states: list[tuple[State, bool]] = field(default_factory=list)
    """From source to target, each with whether partial values are still to be reduced."""
    doubt: int = FAR
    """No chain that was passed over costs less than this."""


def search(task: Task, limit: int) -> tuple[list[tuple[State, bool]], bool]:
    """The cheapest chain of states from source to target, one step apart, and whether none is cheaper.

    Each state comes with whether partial values are still to be reduced.
    """
    tables = Tables(task)
    run = _Search(task, tables)
    for ceiling in (tables.permute_bound + 1, 2 * tables.permute_bound + STEP_LIMIT, FAR):
        run.found.cost, run.work = ceiling, 0
        done = run.explore(limit)
        if run.found.states or not done:
            break
    found = run.found
    one_size = len(task.graph.classes) == 1
    if done and found.cost <= found.doubt and (one_size or found.cost <= tables.two_permutes):
        return found.states, True
    if not few(task):
        return found.states, False
    states, sure = search_listed(task, tables, found.cost, limit)
    return states or found.states, sure and (one_size or not task.pending)


@dataclass
class Side:
    """The chains that grow from one end."""

    heap: list[tuple[int, int, int, Visit]] = field(default_factory=list)
    """What they can come to at the least, their cost, negative, and their turn."""
    seen: dict[tuple[State, bool], int] = field(default_factory=dict)
    """The least cost of reaching each state."""
    met: dict[int, list[Visit]] = field(default_factory=dict)
    """Per node the chains that the other end may be joined to."""
    visits: int = 0

    def push(self, expected: int, turn: int, visit: Visit) -> None:
        """Keep a chain if it reaches its state for less than those before."""
        key = (visit.state, visit.pending)
        if visit.cost < self.seen.get(key, FAR):
            self.seen[key] = visit.cost
            heapq.heappush(self.heap, (expected, -visit.cost, turn, visit))


class _Search:
    """Chains from both ends, and the best that two of them have made."""

    def __init__(self, task: Task, tables: Tables) -> None:
        self.task, self.tables = task, tables
        self.found = Found()
        self.work = 0

    def explore(self, limit: int) -> bool:
        """Grow chains from both ends in turn, the most promising first; False where the limit was reached."""
        task, tables = self.task, self.tables
        first = Visit(0, task.source, tables.source_node, bool(task.pending), None)
        last = Visit(0, task.target, tables.target_node, False, None)
        sides = Side(), Side()
        sides[0].push(int(tables.ahead_pending[first.node]), 0, first)
        sides[1].push(int(tables.behind_permuted[last.node]), 0, last)
        sides[1].met[last.node] = [last]  # a chain without a Permute may be one that grows forward only
        while self.work <= limit:
            live = [side for side in (0, 1) if sides[side].heap and sides[side].heap[0][0] < self.found.cost]
            if not live:
                return True
            number = min(live, key=lambda side: sides[side].visits)
            side, other = sides[number], sides[1 - number]
            total, _, _, visit = heapq.heappop(side.heap)
            if side.seen[visit.state, visit.pending] < visit.cost:
                continue
            side.visits += 1
            if not visit.pending:
                self._meet(visit, other.met.get(visit.node, ()), number)
                if visit is not last:
                    side.met.setdefault(visit.node, []).append(visit)
            for expected, after in self._next(visit, total, number):
                self.work += 1
                side.push(expected, self.work, after)
        return False

    def _next(self, visit: Visit, total: int, side: int) -> Iterator[tuple[int, Visit]]:
        """The chains one step longer, each with the cost that it can come to at the least."""
        layer = 2 if visit.pending else side
        for extra, node in self.tables.edges_of(visit.node, layer):
            if total + extra >= self.found.cost:
                break
            cost = int(
                self.tables.costs_of(layer)[visit.node, node] if side == 0 else self.tables.costs[node, visit.node]
            )
            for state in self.tables.apply(visit.state, self.tables.change(visit.node, node), visit.pending):
                yield total + extra, Visit(visit.cost + cost, state, node, visit.pending, visit)
        if visit.pending:
            for cost, state, node in self.tables.reduced(visit.state, visit.node):
                total = visit.cost + cost + int(self.tables.ahead[node])
                if total < self.found.cost:
                    yield total, Visit(visit.cost + cost, state, node, False, visit)

    def _meet(self, visit: Visit, others: Sequence[Visit], side: int) -> None:
        """Put a chain together with those of the other side at its node, where that is cheaper than the best."""
        units = self.tables.units[visit.node]
        least = self.task.permute_units(units) * STEP_LIMIT + 1
        for other in others:
            cost = visit.cost + other.cost
            if cost >= self.found.cost:
                continue
            self.work += 1
            first, last = (visit, other) if side == 0 else (other, visit)
            if cost + least >= self.found.cost and not agree(first.state, last.state):
                continue
            meeting = meet(self.task, first.state, last.state, units)
            total = cost + (meeting.units * STEP_LIMIT + 1 if meeting.units else 0)
            bound = cost + (meeting.bound * STEP_LIMIT + 1 if meeting.bound else 0)
            states = self._states(first, last, meeting) if total < self.found.cost else []
            if states:
                self.found.cost, self.found.states = total, states
            if bound < total or (total < self.found.cost and not states):
                self.found.doubt = min(self.found.doubt, bound)

    def _states(self, first: Visit, last: Visit, meeting: Meeting) -> list[tuple[State, bool]]:
        """The whole chain with its blanks filled; none where they cannot be."""
        if not meeting.here:
            return []
        visits = first.chain()
        here = filled([visit.state for visit in visits], meeting.here)
        there = filled([visit.state for visit in last.chain()], meeting.there)
        if not here or not there:
            return []
        begun = [(state, visit.pending) for state, visit in zip(here, visits, strict=True)]
        return [*reversed(begun), *((state, False) for state in there[meeting.here == meeting.there :])]
