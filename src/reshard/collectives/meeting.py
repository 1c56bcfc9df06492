"""Two chains put together: blanks are filled so that the Permute between them receives little.

At each place of a dim the Permute puts one digit for another.
These links make paths and cycles of digits, and the devices whose tile stays are those on which every path and
every cycle has one value: of a path of n links between digits of size p one device in p**n, of a cycle one in
p**(n - 1).
A path with a blank at an end is closed to a cycle by filling the blank with its other end.

By hand, digits x y z of size 2 in one dim: from `x y` to `y z` the links x-y and y-z are one path, and 1/4 of the
devices stay.
From `x b` with a blank b the links are x-y and b-z; with b = z the second is a cycle, and 1/2 stay.

>>> from reshard.collectives.states import blank
>>> task = SearchTask(8, ((2, 3),), (0, 0, 0), source=((0,),), target=((1, 2),), shape=(8,))
>>> meet(task, ((0, 1),), ((1, 2),), 16).units
12
>>> filled_in = meet(task, ((0, blank(0b110, 0)),), ((1, 2),), 16)
>>> filled_in.units, filled_in.from_source
(8, ((0, 2),))
"""

from __future__ import annotations

import itertools
from math import inf, prod
from typing import NamedTuple

import numpy as np

from reshard.collectives.states import DigitLists, SearchTask, allowed_of, digits_in


class Meeting(NamedTuple):
    """Two chains put together: their last states with blanks filled, and the units that the Permute receives."""

    units: int
    bound: int
    """Units that no filling of the blanks gets below."""
    from_source: DigitLists
    """The last state from the source; without dims where no filling is allowed."""
    from_target: DigitLists


def meet(task: SearchTask, from_source: DigitLists, from_target: DigitLists, units: int, most: float = inf) -> Meeting:
    """Fill the blanks of two states at one node so that the Permute between them receives little.

    Args:
        task: what is searched.
        from_source: the last state of the chain from the source.
        from_target: that of the chain from the target.
        units: of a tile.
        most: a Permute that receives as many units is of no use, so that no blank is filled for it.
    """
    before, after = [entry for dim in from_source for entry in dim], [entry for dim in from_target for entry in dim]
    aligned = len(task.classes) == 1 or all(
        task.class_of(a) == task.class_of(b) for a, b in zip(before, after, strict=True)
    )
    bound = task.permute_units(units)
    if aligned:
        paths = _paths(before, after)
        bound = units - units // _apart(task, before, after, *paths)
        if bound and bound >= most:
            return Meeting(bound, bound, (), ())
        _close(before, after, paths[0])
    if not (_fill(before) and _fill(after)):
        return Meeting(units, bound, (), ())
    cuts = [list(itertools.accumulate(map(len, dims), initial=0)) for dims in (from_source, from_target)]
    first, last = (
        tuple(tuple(flat[a:b]) for a, b in itertools.pairwise(ends))
        for flat, ends in zip((before, after), cuts, strict=True)
    )
    if aligned:
        return Meeting(units - units // _apart(task, before, after, *_paths(before, after)), bound, first, last)
    staying, total = _staying(task, first, last)
    return Meeting(units - units * staying // total, bound, first, last)


def _paths(before: list[int], after: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """The places that make a path, and those that make a cycle, where each digit that arrives leaves at the next."""
    places = {entry: place for place, entry in enumerate(before) if entry >= 0}
    arrived = {entry for entry in after if entry >= 0}
    starts = [place for place, entry in enumerate(before) if entry < 0 or entry not in arrived]
    seen: set[int] = set()

    def walk(place: int) -> list[int]:
        walked = [place]
        seen.add(place)
        while after[place] >= 0 and (place := places.get(after[place], -1)) >= 0 and place not in seen:
            seen.add(place)
            walked.append(place)
        return walked

    paths = [walk(place) for place in starts]
    return paths, [walk(place) for place in range(len(before)) if place not in seen]


def _apart(
    task: SearchTask, before: list[int], after: list[int], paths: list[list[int]], cycles: list[list[int]]
) -> int:
    """One device in so many keeps its tile, if every path that has a blank at an end is closed."""
    apart = 1
    for path in paths:
        closed = before[path[0]] < 0 or after[path[-1]] < 0
        apart *= task.size_of(before[path[0]]) ** (len(path) - closed)
    for cycle in cycles:
        apart *= task.size_of(before[cycle[0]]) ** (len(cycle) - 1)
    return apart


def _close(before: list[int], after: list[int], paths: list[list[int]]) -> None:
    """Close the paths that have a blank at an end, where the blank may be what closes it."""
    used = {entry for entry in (*before, *after) if entry >= 0}
    for path in paths:
        first, last = before[path[0]], after[path[-1]]
        if first < 0 and last < 0:
            both = allowed_of(first) & allowed_of(last)
            spare = next((digit for digit in digits_in(both) if digit not in used), None)
            if spare is not None:
                before[path[0]] = after[path[-1]] = spare
                used.add(spare)
        elif first < 0 and allowed_of(first) >> last & 1:
            before[path[0]] = last
        elif last < 0 and allowed_of(last) >> first & 1:
            after[path[-1]] = first


def _fill(entries: list[int]) -> bool:
    """Fill the blanks that are left in place, those with the least choice first; whether that can be."""
    used = {entry for entry in entries if entry >= 0}
    blanks = [place for place, entry in enumerate(entries) if entry < 0]
    for place in sorted(blanks, key=lambda place: allowed_of(entries[place]).bit_count()):
        choice = next((digit for digit in digits_in(allowed_of(entries[place])) if digit not in used), None)
        if choice is None:
            return False
        entries[place] = choice
        used.add(choice)
    return True


def _staying(task: SearchTask, before: DigitLists, after: DigitLists) -> tuple[int, int]:
    """How many devices in how many keep their tile, counted one by one: for digits of different sizes in turn."""
    digits = sorted({entry for state in (before, after) for dim in state for entry in dim})
    values = dict(zip(digits, np.indices([task.size_of(digit) for digit in digits], dtype=np.int64), strict=True))
    same = task.block_numbers(before, values) == task.block_numbers(after, values)
    return int(np.count_nonzero(same)), prod(task.size_of(digit) for digit in digits)


def agree(from_source: DigitLists, from_target: DigitLists) -> bool:
    """Whether blanks can be filled, one by one, so that the two states are one."""
    for before, after in zip(from_source, from_target, strict=True):
        for a, b in zip(before, after, strict=True):
            if a >= 0 and b >= 0:
                if a != b:
                    return False
            elif (a < 0 <= b and not allowed_of(a) >> b & 1) or (b < 0 <= a and not allowed_of(b) >> a & 1):
                return False
    return True


def filled(states: list[DigitLists], last: DigitLists) -> list[DigitLists]:
    """The states of a chain, the last first, with blanks filled as they are in the last; none if that fails.

    A blank that a state has and the one after it has not was dropped: a digit that is free there fills it.
    """
    result = [last]
    for now, before in itertools.pairwise(states):
        dims = _moved_back(before, now, result[-1])
        if dims is None:
            return []
        taken = {entry for dim in dims for entry in dim if entry >= 0}
        final = []
        for dim in dims:
            entries = list(dim)
            for place, entry in enumerate(entries):
                if entry < 0:
                    spare = [digit for digit in digits_in(allowed_of(entry)) if digit not in taken]
                    if not spare:
                        return []
                    entries[place] = spare[0]
                    taken.add(spare[0])
            final.append(tuple(entries))
        result.append(tuple(final))
    return result


def _moved_back(before: DigitLists, now: DigitLists, done: DigitLists) -> DigitLists | None:
    """The state before a step, with what the filled state after it says of its blanks."""
    dims = list(done)
    gained = [dim for dim in range(len(now)) if len(now[dim]) > len(before[dim])]
    for dim in gained:
        dims[dim] = done[dim][: len(before[dim])]
    for dim in range(len(now)):
        if len(now[dim]) < len(before[dim]):
            tail = before[dim][len(now[dim]) :]
            if gained:  # it was moved: find where to
                goal = next((goal for goal in gained if now[goal][len(before[goal]) :] == tail), None)
                if goal is None:
                    return None
                gained.remove(goal)
                tail = done[goal][len(before[goal]) :]
            dims[dim] = done[dim] + tail
    return tuple(dims)
