"""What an exchange by digits puts on every level of a network, from the digits alone.

In such an exchange every digit of the sender is a digit of the receiver, or takes all its values.
So each is a *variable*: the sender's place is some of them, the receiver's place others, all values equally often.
What a level carries depends on the variables that its own digits are, however many devices there are:

    a switch       a device sends all that it sends through its port, but for what agrees with it along the level
    rings, lines   one piece for each value of the variables along the level, as many times as the others have values;
                   where other digits of the place are the same variables, links there carry different pieces

By hand, on a torus of 4 x 4, from every (x, y) to (y, x), half of each piece along x first: along x the four of one y
then meet at one device, 1 + 1/2 halves over each of its two links; those that come along x last part likewise.

>>> torus = (Level(1, 4, "ring", 1.0, 1.0), Level(4, 4, "ring", 1.0, 1.0))
>>> digit_loads(torus, Digits([Digit(4, 4), Digit(1, 4)]), (1, 0), ())
Loads(carried=(0.75, 0.75), waits_s=0.0, hops_s=4.0, along=((), ()))

Where pieces differ in size, how much each is follows from the variables too: dim by dim a table by those that cut it.
By hand, 3 elements on 4 devices through one switch, wanted by all: of each of the first three the others take one.

>>> switch, lengths = (Level(1, 4, "switch", 1.0, 1.0),), LetteredTable(np.array([1, 1, 1, 0]), [1])
>>> digit_loads(switch, Digits([Digit(1, 4)]), (0,), (0,), [lengths])
Loads(carried=(3.0,), waits_s=3.0, hops_s=0.0, along=((),))
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.digits import Digit, Digits, Positions, nest
from reshard.mix import Floats
from reshard.network.lettered_tables import LetteredTable, summed_by
from reshard.network.level import Level
from reshard.network.traffic import (
    Loads,
    edges_of_pieces,
    fullest_link,
    hops_of,
    links_along,
    orders,
    passing,
    passing_of_each,
    runs,
)

CACHED = 4096
"""Levels along which pieces go that are kept, with what their links carry, and means of what pieces pass."""
TABLED = 32
"""Of rings and lines of up to so many devices it is a table what pieces pass."""


class LevelDigit(NamedTuple):
    """A digit of the device number, and the variables that it is."""

    level: int
    digit: Digit
    sender: int
    """Of who sends: the variable."""
    receiver: int
    """Of who receives; the variable of the same number as the place."""


def digit_loads(
    levels: Sequence[Level],
    digits: Digits,
    determined_by: Sequence[int],
    gathered: Sequence[int],
    lengths: Sequence[LetteredTable] = (),
) -> Loads | None:
    """The loads of an exchange, in pieces; None where digits and levels do not nest, or a switch follows a torus.

    Args:
        levels: innermost first.
        digits: of the device number, all of it.
        determined_by: per digit of the sender the digit of the receiver that it is.
        gathered: the digits of the sender that take all values in place of that one.
        lengths: whose product is what each piece counts, one unless given; by digits of the receiver, numbered as
            above, and those that are gathered, numbered after all these. The hops are those of pieces that are empty
            too.
    """
    begun = _begun(levels, digits, determined_by, gathered, lengths)
    if begun is None:
        return None
    pieces, order = begun
    if not order:
        return Loads((0.0,) * len(levels), 0.0, 0.0)
    carried, along, hops_s = [0.0] * len(levels), list[tuple[float, ...]]([()] * len(levels)), 0.0
    for run in order:
        if levels[run[0]].is_switch:
            carried[run[0]] = pieces.on_switch(run[0])
            continue
        for number, (load, links) in pieces.on_torus(run).items():
            carried[number], along[number] = load, links
        hops_s = pieces.farthest(run)
    waits_s = max(end.longest for end in pieces.ends)
    return Loads(tuple(carried), waits_s, hops_s, tuple(along))


def least_carried(
    levels: Sequence[Level], digits: Digits, determined_by: Sequence[int], gathered: Sequence[int]
) -> tuple[float, ...]:
    """What links and ports carry at the least that are told apart (`Level.places`), level by level, innermost first.

    Links of one place carry so much in the mean; nothing is known where `digit_loads` knows nothing, of which the
    arguments are.

    By hand, the module's example: along the four rings of x go 16 pieces, on which steps are 0, 1, 2 and 3 as often, so
    they pass 0, 1, 2 and 1 of the 32 links, both ways counted.

    >>> torus = (Level(1, 4, "ring", 1.0, 1.0), Level(4, 4, "ring", 1.0, 1.0))
    >>> least_carried(torus, Digits([Digit(4, 4), Digit(1, 4)]), (1, 0), ())
    (0.5, 0.5)
    """
    begun = _begun(levels, digits, determined_by, gathered)
    carried = [[0.0] * level.places for level in levels]
    if begun is not None:
        pieces, order = begun
        for number in (number for run in order for number in run):
            is_switch = levels[number].is_switch
            carried[number] = [pieces.on_switch(number)] if is_switch else pieces.mean_on_links(number)
    return tuple([load for loads in carried for load in loads])


def _places(
    levels: Sequence[Level], digits: Digits, determined_by: Sequence[int], gathered: Sequence[int]
) -> tuple[list[LevelDigit], list[int]] | None:
    """The digits, split where levels begin, and whatever is one variable with a split one likewise.

    Besides, per digit the variable of its first part, and last their number.
    """
    strides, ends = [level.stride for level in levels], [level.stride * level.size for level in levels]
    ratios: list[set[int]] = []
    for low, size in digits:
        inside = [stride for stride in strides if low < stride < low * size]
        if any(stride % low for stride in inside):
            return None
        ratios.append({1, size, *(stride // low for stride in inside)})
    if any(len(cuts) > 2 for cuts in ratios):
        tied = [(i, j) for i, j in enumerate(determined_by) if i != j and i not in gathered]
        while any(ratios[i] != ratios[j] for i, j in tied):
            for i, j in tied:
                ratios[i] = ratios[j] = ratios[i] | ratios[j]
        if not all(map(nest, ratios)):
            return None
    first = list(accumulate([len(cuts) - 1 for cuts in ratios], initial=0))
    places = []
    for i, (digit, cuts) in enumerate(zip(digits, ratios, strict=True)):
        sender = first[-1] + first[i] if i in gathered else first[determined_by[i]]
        is_split = len(cuts) > 2
        split = [Digit(digit.stride * ratio, size) for ratio, size in Digits.between(cuts)] if is_split else [digit]
        for number, part in enumerate(split if len(cuts) > 1 else ()):
            level = bisect_right(strides, part.stride) - 1
            if level < 0 or part.stride >= ends[level]:
                return None
            places.append(LevelDigit(level, part, sender + number, first[i] + number))
    return places, first


def _by_variables(
    tables: Sequence[LetteredTable], places: Sequence[LevelDigit], first: Sequence[int]
) -> list[LetteredTable]:
    """Tables by digits as tables by the variables that these are split into, which `first` numbers as `_places`."""
    sizes, digits = {place.receiver: place.digit.size for place in places}, len(first) - 1
    by_variables = []
    for values, letters in tables:
        variables = [
            (letter // digits * first[-1] + part, sizes[part])
            for letter in letters
            for part in range(first[letter % digits], first[letter % digits + 1])
        ]
        by_variables.append(LetteredTable(values.reshape([size for _, size in variables]), [v for v, _ in variables]))
    return by_variables


@dataclass
class _Side:
    """Who sends, or who receives: the device that waits for most."""

    known: set[int]
    """The variables that its place is; the others take all values."""
    left: float
    """Its pieces that no switch has taken yet, where it may have any."""
    waited: float = 0.0
    """The latencies of those that were taken, of a device that has some left."""
    longest: float = 0.0
    """The latencies of all pieces of one device, where switches take all."""


class _Stream(NamedTuple):
    """Pieces that go along a level."""

    digits: Digits
    """Where each goes, as `_passes` says, by the values of variables."""
    amounts: Floats | float
    """Of each, or of every one."""


def _fullest_of(level: Level, lines: int, streams: Sequence[_Stream]) -> tuple[float, tuple[float, ...]]:
    """What the busiest link of a level carries, and those that are told apart; arguments are those of `_passes`."""
    pieces = [stream.digits.offsets() for stream in streams]
    amounts = [np.broadcast_to(stream.amounts, len(each)) for stream, each in zip(streams, pieces, strict=True)]
    passes = _passes(level, lines, np.concatenate(pieces), np.concatenate(amounts))
    return fullest_link(level, passes), links_along(level, passes)


_fullest_of_alike = lru_cache(CACHED)(_fullest_of)
"""The same of streams whose pieces are all as large, which is kept."""


def _passes(level: Level, lines: int, pieces: Positions, amounts: Floats) -> Floats:
    """What `passing` says of pieces along so many rings or lines.

    Args:
        level: whose values have stride 1.
        lines: how many there are.
        pieces: where each goes: the line, the place where it starts and the one where it ends, as one number.
        amounts: of each.
    """
    if level.size <= TABLED:
        together = np.bincount(pieces, amounts, lines * level.size**2).reshape(lines, -1)
        return np.asarray(together @ passing_of_each(level.link, level.size)).reshape(lines, -1, level.size)
    start, stop = np.divmod(pieces, level.size)
    edges = edges_of_pieces(level, start, stop - level.digit.value(start), amounts, lines * level.size)
    return passing(level, edges)


@lru_cache(CACHED)
def _mean_passing(level: Level, starts: Digits, stops: Digits) -> list[float]:
    """Per place of links, how many pieces pass one each way, of one piece for each value of digits in the mean.

    Times the number of devices along the level; of a line the way that most go.

    By hand, on a line of 4 from every device to every other: 3 of 16 pass the first link onwards.

    >>> ends = Digits([Digit(1, 4), Digit(0, 4)]), Digits([Digit(0, 4), Digit(1, 4)])
    >>> _mean_passing(Level(1, 4, "line", 1.0, 1.0), *ends)
    [0.75, 1.0, 0.75]
    """
    start, stop = starts.offsets(), stops.offsets()
    if level.link != "line":
        return [float(hops_of(level, stop - start).mean()) / (2 if level.link == "ring" else 1)]
    links = np.arange(level.size - 1)[:, None]
    passed = [((low <= links) & (links < high)).mean(axis=1) for low, high in ((start, stop), (stop, start))]
    fuller = np.maximum(*passed) * level.size
    return np.asarray(fuller[: level.places]).tolist() if level.places > 1 else [float(fuller.max())]


def _tied(along: set[int], reached: Sequence[tuple[int, ...]]) -> list[int]:
    """The digits elsewhere whose variable, on some route, is one along a level, or of a digit that is so tied.

    Args:
        along: the variables along the level.
        reached: per digit elsewhere the variable that it is by then, on each route.

    >>> _tied({0}, [(3, 1), (0, 1), (4, 5)])
    [0, 1]
    """
    tied: list[int] = []
    while len(tied) != len(
        tied := [number for number, variables in enumerate(reached) if not along.isdisjoint(variables)]
    ):
        along = along.union(*[reached[number] for number in tied])
    return tied


def _begun(
    levels: Sequence[Level],
    digits: Digits,
    determined_by: Sequence[int],
    gathered: Sequence[int],
    lengths: Sequence[LetteredTable] = (),
) -> tuple[_Pieces, list[list[int]]] | None:
    """The pieces where they begin, and the levels that they pass, as `runs` says; None as `digit_loads`."""
    split = _places(levels, digits, determined_by, gathered)
    if split is None:
        return None
    places, first = split
    touched = {place.level for place in places if place.sender != place.receiver}
    order = [[number for number in run if number in touched] for run in runs(levels)]
    order = [run for run in order if run]
    if any(not levels[run[0]].is_switch for run in order[:-1]):
        return None
    if lengths:
        return _UnlikePieces(levels, places, _by_variables(lengths, places, first)), order
    return _Pieces(levels, places), order


class _Pieces:
    """The pieces that are still under way: those that agree along the levels that were passed."""

    def __init__(self, levels: Sequence[Level], places: list[LevelDigit]) -> None:
        self.levels, self.places = levels, places
        self.size = {variable: place.digit.size for place in places for variable in (place.sender, place.receiver)}
        self.same_as = {variable: variable for variable in self.size}
        """Per variable the one that stands for all that it must agree with."""
        self.ends = [
            _Side(known, prod(size for variable, size in self.size.items() if variable not in known))
            for known in ({place.sender for place in places}, {place.receiver for place in places})
        ]

    def on_switch(self, number: int) -> float:
        """What the busiest port of a level carries; what agrees along it goes on."""
        places = [place for place in self.places if place.level == number]
        load, latency_s = 0.0, self.levels[number].latency_s
        same_as = self.same_as
        pairs = [(same_as[place.sender], same_as[place.receiver]) for place in places]
        pairs = [(sender, receiver) for sender, receiver in pairs if sender != receiver]
        for end in self.ends:
            known = {same_as[variable] for variable in end.known}
            is_open = [not {sender, receiver} <= known for sender, receiver in pairs]
            kept = end.left / prod(self.size[a] for (a, _), one in zip(pairs, is_open, strict=True) if one)
            load = max(load, end.left - kept if all(is_open) else end.left)
            if not all(is_open):  # on some devices nothing agrees
                end.longest = max(end.longest, end.waited + end.left * latency_s)
            end.waited += (end.left - kept) * latency_s
            end.longest, end.left = max(end.longest, end.waited), kept
        for place in places:
            a, b = self.same_as[place.sender], self.same_as[place.receiver]
            if a != b:
                self.same_as = {variable: b if other == a else other for variable, other in self.same_as.items()}
        return load

    def on_torus(self, run: Sequence[int]) -> dict[int, tuple[float, tuple[float, ...]]]:
        """What the busiest link of each level of a torus carries, and those that are told apart."""
        same_as = self.same_as
        moved = {place.level for place in self.places if same_as[place.sender] != same_as[place.receiver]}
        routes = orders([number for number in run if number in moved])
        return {
            number: self._on_links(number, Counter(frozenset(route[: route.index(number)]) for route in routes))
            for number in run
            if number in moved
        }

    def mean_on_links(self, number: int) -> list[float]:
        """What links of a level that are told apart carry in the mean; of a line the way that most go."""
        sides = self._strides_along(number)
        variables = {**sides[0], **sides[1]}
        starts, stops = (Digits([Digit(side.get(v, 0), self.size[v]) for v in variables]) for side in sides)
        pieces = prod([self.size[variable] for variable in {*self.same_as.values()}])
        each = pieces / prod([place.digit.size for place in self.places])
        return [share * each for share in _mean_passing(self.levels[number].at_stride_one(), starts, stops)]

    def _strides_along(self, number: int) -> tuple[dict[int, int], dict[int, int]]:
        """Of who sends and of who receives, by variable, the stride of its values along a level."""
        strides: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for place in self.places:
            if place.level == number:
                stride = place.digit.stride // self.levels[number].stride
                for side, variable in zip(strides, (place.sender, place.receiver), strict=True):
                    standing = self.same_as[variable]
                    side[standing] = side.get(standing, 0) + stride
        return strides

    def _on_links(self, number: int, befores: Counter[frozenset[int]]) -> tuple[float, tuple[float, ...]]:
        """What the busiest link of a level carries, and those that are told apart.

        Args:
            number: of the level.
            befores: the levels along which pieces have gone already, and how many routes there are of each kind.
        """
        level, same_as = self.levels[number].at_stride_one(), self.same_as
        own = [place for place in self.places if place.level == number]
        elsewhere = [place for place in self.places if place.level != number]
        reached = [
            [same_as[place.receiver if place.level in before else place.sender] for place in elsewhere]
            for before in befores
        ]
        along = {same_as[v] for place in own for v in (place.sender, place.receiver)}
        tied = _tied(along | self._telling(), list(zip(*reached, strict=True)))
        lines = Digits.of_sizes([elsewhere[where].digit.size for where in tied])
        starts, stops = self._strides_along(number)
        own_strides = {v: starts.get(v, 0) * level.size + stops.get(v, 0) for v in {**starts, **stops}}
        variables, streams = {*same_as.values()}, list[_Stream]()
        for count, now in zip(befores.values(), reached, strict=True):
            strides = own_strides.copy()
            for where, line in zip(tied, lines, strict=True):
                strides[now[where]] = strides.get(now[where], 0) + line.stride * level.size**2
            together = self._together(list(strides), variables.difference(strides, now))
            digits = Digits([Digit(stride, self.size[v]) for v, stride in strides.items()])
            streams.append(_Stream(digits, together * (count / befores.total())))
        return self._fullest(level, lines.size, streams)

    def _fullest(self, level: Level, lines: int, streams: Sequence[_Stream]) -> tuple[float, tuple[float, ...]]:
        """What `_on_links` says, from what goes along so many lines; what is alike on other levels is known then."""
        unit = max(float(stream.amounts) for stream in streams)
        alike = sorted(_Stream(Digits(sorted(digits)), amount / unit) for digits, amount in streams)
        fullest, along = _fullest_of_alike(level, lines, tuple(alike))
        return fullest * unit, tuple([load * unit for load in along])

    def _telling(self) -> set[int]:
        """The variables that say how large a piece is."""
        return set()

    def _together(self, kept: Sequence[int], others: Iterable[int]) -> Floats | float:
        """How much the pieces are that agree in some variables, by their values, once others took all of theirs."""
        return prod([self.size[variable] for variable in others])

    def farthest(self, run: Sequence[int]) -> float:
        """The latencies of all hops of the piece that goes farthest along a torus."""
        steps: list[tuple[Level, dict[int, int]]] = []
        for number in run:
            if self.levels[number].latency_s:
                starts, stops = self._strides_along(number)
                apart = {v: stops.get(v, 0) - starts.get(v, 0) for v in {**starts, **stops}}
                steps.append((self.levels[number], {v: stride for v, stride in apart.items() if stride}))
        levels_of = Counter([v for _, apart in steps for v in apart])
        shared = [v for v, count in levels_of.items() if count > 1]
        hops_s = np.zeros((1,) * len(shared))
        for level, apart in steps:
            here = [v for v in shared if v in apart]
            own = [v for v in apart if v not in here]
            step = Digits([Digit(apart[v], self.size[v]) for v in (*here, *own)]).offsets()
            hops = hops_of(level, step).reshape(*[self.size[v] if v in apart else 1 for v in shared], -1).max(axis=-1)
            hops_s = hops_s + level.latency_s * hops
        return float(hops_s.max())


class _UnlikePieces(_Pieces):
    """The same where pieces differ in size."""

    def __init__(self, levels: Sequence[Level], places: list[LevelDigit], lengths: Sequence[LetteredTable]) -> None:
        super().__init__(levels, places)
        self.lengths = lengths
        """Of variables; their product is how much a piece is."""
        moved = {v for place in places if place.sender != place.receiver for v in (place.sender, place.receiver)}
        self.relevant = moved.union(*(letters for _, letters in lengths))
        """The variables that say how large a piece is, or whether it goes anywhere."""
        self.waits: list[Floats] = [np.zeros(1), np.zeros(1)]
        """Of who sends, and of who receives, the latencies so far by the variables that are known."""

    def on_switch(self, number: int) -> float:
        before = [self._left(end.known) for end in self.ends]
        for place in self.places:
            if place.level == number:
                a, b = self.same_as[place.sender], self.same_as[place.receiver]
                self.same_as = {variable: b if other == a else other for variable, other in self.same_as.items()}
        load = 0.0
        for side, (end, (amounts, messages)) in enumerate(zip(self.ends, before, strict=True)):
            still_amounts, still_messages = self._left(end.known)
            load = max(load, float((amounts - still_amounts).max()))
            self.waits[side] = self.waits[side] + (messages - still_messages) * self.levels[number].latency_s
            end.longest = float(self.waits[side].max())
        return load

    def _left(self, known: set[int]) -> tuple[Floats, Floats]:
        """What one device has still under way, and in how many messages, by the variables that are its place."""
        place = sorted(known & self.relevant)
        standing = {self.same_as[variable]: variable for variable in place}
        others = {self.same_as[v] for v in self.size if v not in known}.difference(standing)
        names = {v: v if v in known else standing.get(self.same_as[v], self.same_as[v]) for v in self.size}
        agrees: NDArray[np.bool_] = np.ones((1,) * len(place), dtype=np.bool_)
        for axis, variable in enumerate(place):
            other = place.index(standing[self.same_as[variable]])
            if other != axis:
                agrees = agrees & np.eye(self.size[variable], dtype=np.bool_).reshape(
                    [self.size[variable] if n in (axis, other) else 1 for n in range(len(place))]
                )
        amounts, messages = (summed_by(tables, names, place, others, self.size) * agrees for tables in self._counted())
        return amounts, messages

    def _counted(self) -> tuple[list[LetteredTable], list[LetteredTable]]:
        """The tables as they are, and as those of what is not empty."""
        filled = [LetteredTable((values > 0).astype(np.float64), letters) for values, letters in self.lengths]
        return [LetteredTable(values.astype(np.float64), letters) for values, letters in self.lengths], filled

    def _fullest(self, level: Level, lines: int, streams: Sequence[_Stream]) -> tuple[float, tuple[float, ...]]:
        return _fullest_of(level, lines, streams)

    def _telling(self) -> set[int]:
        return {self.same_as[variable] for _, letters in self.lengths for variable in letters}

    def _together(self, kept: Sequence[int], others: Iterable[int]) -> Floats | float:
        together = summed_by(self._counted()[0], self.same_as, kept, others, self.size)
        return np.broadcast_to(together, [self.size[variable] for variable in kept]).ravel()
