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

>>> task = SearchTask(8, ((2, 3),), (0, 0, 0), source=((0,),), target=((1, 2),), shape=(8,))
>>> stops, is_proved = search(task, 1000)
>>> [stop.state for stop in stops], is_proved
([((0,),), ((0, 2),), ((1, 2),)], True)
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from reshard.collectives.listed import few, search_listed
from reshard.collectives.meeting import Meeting, agree, filled, meet
from reshard.collectives.states import SearchTask, Stop, Tables, Visit
from reshard.collectives.weak import FAR, STEP_LIMIT


def search(task: SearchTask, limit: int, *, is_first_enough: bool = False) -> tuple[list[Stop], bool]:
    """The cheapest chain of states from source to target, one step apart, and whether none is cheaper.

    Args:
        task: from where to where.
        limit: how many chains are made and joined, at most.
        is_first_enough: whether the first chain will do, which seldom is not the cheapest; nothing is proved then.
    """
    tables = Tables(task)
    growth = _FromBothEnds(task, tables, is_first_enough=is_first_enough)
    for ceiling in (tables.permute_bound + 1, 2 * tables.permute_bound + STEP_LIMIT, FAR):
        growth.cost, growth.work = ceiling, 0
        is_finished = growth.explore(limit)
        if growth.stops or not is_finished:
            break
    if is_first_enough and growth.stops:
        return growth.stops, False
    has_one_size = len(task.classes) == 1
    if is_finished and growth.cost <= growth.doubt and (has_one_size or growth.cost <= tables.two_permutes):
        return growth.stops, True
    if not few(task):
        return growth.stops, False
    stops, is_sure = search_listed(task, tables, growth.cost, limit)
    return stops or growth.stops, is_sure and (has_one_size or not task.pending)


@dataclass
class Side:
    """The chains that grow from one end."""

    heap: list[tuple[int, int, int, Visit]] = field(default_factory=list)
    """What they can come to at the least, their cost, negative, and when they were made."""
    least_costs: dict[Stop, int] = field(default_factory=dict)
    """Of reaching each state."""
    meeting_points: dict[int, list[Visit]] = field(default_factory=dict)
    """Per node the chains that those of the other end may be joined to."""
    visits: int = 0

    def push(self, expected: int, number: int, visit: Visit) -> None:
        """Keep a chain if it reaches its state for less than those before."""
        if visit.cost < self.least_costs.get(visit.stop, FAR):
            self.least_costs[visit.stop] = visit.cost
            heapq.heappush(self.heap, (expected, -visit.cost, number, visit))


class _FromBothEnds:
    """Chains from both ends, and the best that two of them have made."""

    def __init__(self, task: SearchTask, tables: Tables, *, is_first_enough: bool) -> None:
        self.task, self.tables, self.is_first_enough = task, tables, is_first_enough
        self.cost = FAR
        """Of the best chain so far."""
        self.stops: list[Stop] = []
        """Those of the best chain, from source to target."""
        self.doubt = FAR
        """No chain that was passed over costs less than this."""
        self.work = 0
        """How many chains were made and joined."""

    def explore(self, limit: int) -> bool:
        """Grow chains from both ends in turn, the most promising first; False where that ended before it was proved."""
        task, tables = self.task, self.tables
        first = Visit(0, Stop(task.source, bool(task.pending)), tables.source_node, None)
        last = Visit(0, Stop(task.target, False), tables.target_node, None)
        sides = Side(), Side()
        sides[0].push(int(tables.ahead_pending[first.node]), 0, first)
        sides[1].push(int(tables.behind_permuted[last.node]), 0, last)
        sides[1].meeting_points[last.node] = [last]  # a chain without a Permute may be one that grows forward only
        while self.work <= limit and not (self.stops and self.is_first_enough):
            live = [side for side in (0, 1) if sides[side].heap and sides[side].heap[0][0] < self.cost]
            if not live:
                return True
            number = min(live, key=lambda side: sides[side].visits)
            side, opposite = sides[number], sides[1 - number]
            expected, _, _, visit = heapq.heappop(side.heap)
            if side.least_costs[visit.stop] < visit.cost:
                continue
            side.visits += 1
            if not visit.stop.is_pending:
                self._meet(visit, opposite.meeting_points.get(visit.node, ()), number)
                if visit is not last:
                    side.meeting_points.setdefault(visit.node, []).append(visit)
            for waste, after in tables.steps(visit, self.cost - expected, backward=number == 1):
                self.work += 1
                side.push(expected + waste, self.work, after)
        return False

    def _meet(self, visit: Visit, opposite: Sequence[Visit], side: int) -> None:
        """Put a chain together with those of the other side at its node, where that is cheaper than the best."""
        units = self.tables.units[visit.node]
        least_permute = self.task.permute_units(units) * STEP_LIMIT + 1
        for partner in opposite:
            cost = visit.cost + partner.cost
            if cost >= self.cost:
                continue
            self.work += 1
            first, last = (visit, partner) if side == 0 else (partner, visit)
            if cost + least_permute >= self.cost and not agree(first.stop.state, last.stop.state):
                continue
            most = (self.cost - cost - 1) / STEP_LIMIT
            meeting = meet(self.task, first.stop.state, last.stop.state, units, most)
            total = cost + (meeting.units * STEP_LIMIT + 1 if meeting.units else 0)
            bound = cost + (meeting.bound * STEP_LIMIT + 1 if meeting.bound else 0)
            stops = self._joined(first, last, meeting) if total < self.cost else []
            if stops:
                self.cost, self.stops = total, stops
            if bound < total or (total < self.cost and not stops):
                self.doubt = min(self.doubt, bound)

    def _joined(self, first: Visit, last: Visit, meeting: Meeting) -> list[Stop]:
        """The whole chain with its blanks filled; none where they cannot be."""
        if not meeting.from_source:
            return []
        visits = first.chain()
        begun = filled([visit.stop.state for visit in visits], meeting.from_source)
        ended = filled([visit.stop.state for visit in last.chain()], meeting.from_target)
        if not begun or not ended:
            return []
        stops = [Stop(state, visit.stop.is_pending) for state, visit in zip(begun, visits, strict=True)]
        is_one = meeting.from_source == meeting.from_target
        return [*reversed(stops), *(Stop(state, False) for state in ended[is_one:])]
