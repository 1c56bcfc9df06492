"""Messages between ends, forth and back in their order, at once of all that need not wait for one another.

An end hands on what it has gathered after those before it have, so ends to which the longest chains of links are
equally long do it together: they are a *level*.
A sweep is as many steps as there are levels, and comes to what it would come to one end after the other.
All that is said lies in one array; per level arrays of places say where that lies which its ends hear, and where that
goes which they tell.
What the links cost by which a level tells is one array too, filled up to the largest of them, but for large ones.

By hand, a - b - c, where to differ costs 3: a costs 0 or 1, c costs 5 or 0. All take the second choice.

>>> first, middle, last = (End(None, np.array(cost), np.arange(2)) for cost in ([0.0, 1.0], [0.0, 0.0], [5.0, 0.0]))
>>> differ = np.array([[0.0, 3.0], [3.0, 0.0]])
>>> links = Link(first, middle, differ), Link(middle, last, differ)
>>> for place, end in enumerate((first, middle, last)):
...     end.place = place
>>> messages = Messages([first, middle, last])
>>> messages.go(), messages.come_back(), messages.choice()
(None, 1.0, [1, 1, 1])
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate, chain, zip_longest
from math import prod
from typing import NamedTuple

import numpy as np

from reshard.propagation.elimination import End, Link
from reshard.propagation.space import Costs, Numbers
from reshard.propagation.ways import Picks

NOTHING, NEVER, NOWHERE, FREE = range(4)
"""Places in what is said: what no link says, what no choice costs, what nobody hears; then all others."""
LARGE = 2**13
"""From how many choices of two ends on what their link costs is by itself: to fill up others takes more then."""


class Voice(NamedTuple):
    """What an end tells another by a link, and hears from it."""

    end: End
    other: End
    link: Link
    is_first: bool
    """Whether it is that of the first of the ends of the link."""
    heard: range
    """The places of what the end hears, per choice, or per option where the link speaks of these."""
    told: range
    """The places of what it tells."""
    picks: Picks | None
    """The options that choices of the end want, where the link speaks of these."""

    @property
    def table(self) -> Costs:
        """Per choice of the end, or its option, what each choice of the other costs, or its option."""
        return self.link.table if self.is_first else self.link.table.T


class Speaker(NamedTuple):
    """An end with its voices."""

    number: int
    """Of the end among all."""
    costs: range
    """The places of what its choices cost."""
    behind: list[Voice]
    """To those from whom it hears before it hands on."""
    ahead: list[Voice]
    """To those to whom it hands on."""

    @property
    def turned(self) -> Speaker:
        """The same on the way back."""
        return self._replace(behind=self.ahead, ahead=self.behind)


class Stack:
    """What links cost by which voices of a level tell: one array, filled up to the largest; a large one is by itself.

    Args:
        voices: which they are.
        rows: where they stand among all of the level.
        goes: per voice of the level, and choice of who hears it, the place to which it goes.
    """

    def __init__(self, voices: Sequence[Voice], rows: slice | list[int], goes: Numbers) -> None:
        self.voices, self.rows = voices, rows
        self.size = max(len(voice.table) for voice in voices)
        """Of how many choices of an end, or options of it, at most."""
        self.goes = goes[rows, : max(len(voice.told) for voice in voices)]
        self.costs: Costs
        """Per choice of an end or option of it, voice, and choice of who hears it, what the link costs."""
        self._tables = {id(voice.link.table) for voice in voices}

    @property
    def key(self) -> tuple[object, ...]:
        """What stacks have alike that are one, since their links cost the same and change together."""
        return self.size, *self.goes.shape, *((id(voice.link.table), voice.is_first) for voice in self.voices)

    @property
    def _is_a_link(self) -> bool:
        """Whether it is the table of a link, which changes where it lies."""
        return len(self.voices) == 1 and self.voices[0].is_first

    def begin(self) -> None:
        """Stack what the links cost; infinitely much for a choice that an end has not."""
        if self._is_a_link:
            self.costs = self.voices[0].table[:, None]
            return
        self.costs = np.full((self.size, *self.goes.shape), np.inf)
        for column, voice in enumerate(self.voices):
            self.costs[: len(voice.table), column] = 0.0
        self.renew(self._tables)

    def renew(self, changed: Collection[int]) -> None:
        """Stack what those links cost now of which the tables have changed, by their identities."""
        if self._is_a_link or self._tables.isdisjoint(changed):
            return
        for column, voice in enumerate(self.voices):
            if id(voice.link.table) in changed:
                table = voice.table
                self.costs[: table.shape[0], column, : table.shape[1]] = table

    def tell(self, said: Costs, handed: Costs) -> None:
        """Say what comes of what was handed on by the voices of the level."""
        said[self.goes] = np.minimum.reduce(self.costs + handed[self.rows, : self.size].T[:, :, None])

    def decide(self, said: Costs, choices: Numbers) -> None:
        """Say what it costs others that the ends of voices of the level take some choices, or options."""
        said[self.goes] = self.costs[choices[self.rows], np.arange(len(self.goes))]


class MessageLevel:
    """Ends that hand on at once.

    Args:
        speakers: the ends.
        heard: per row, end and choice the place of what it costs, and then of what it hears by each voice.
        goes: per voice ahead, and choice of who hears it, the place to which it goes.
    """

    def __init__(self, speakers: Sequence[Speaker], heard: Numbers, goes: Numbers) -> None:
        self.numbers = [speaker.number for speaker in speakers]
        self.voices = [voice for speaker in speakers for voice in speaker.ahead]
        self._heard = heard
        parts = np.array([(max(len(each.behind), len(each.ahead), 1), len(each.ahead)) for each in speakers])
        part = 1.0 / parts[:, :1]
        self._part = part.repeat(heard.shape[2], axis=1)
        """Per end and choice which part of what it gathers it hands on by a voice."""
        self.kept: list[float] = (1.0 - part[:, 0] * parts[:, 1]).tolist()
        """Per end which part it keeps."""
        rows, columns = list[int](), list[int]()
        for column, (_, _, behind, ahead) in enumerate(speakers):
            rows += range(1 + len(behind), 1 + len(behind) + len(ahead))
            columns += [column] * len(ahead)
            for row, voice in enumerate(chain(behind, ahead), start=1):
                if voice.picks is not None:
                    places = voice.picks.places
                    heard[row, column, : len(places)] = voice.heard.start + places
        self._tellers = np.array(columns, dtype=np.int64)
        """Per voice ahead its end."""
        self._answers = heard[np.array(rows, dtype=np.int64), self._tellers]
        """Per voice ahead, and choice of its end, the place of what it hears."""
        self._picked = [(n, voice.picks) for n, voice in enumerate(self.voices) if voice.picks is not None]
        self.handed = np.zeros((len(self.voices), heard.shape[2]))
        """Per voice and choice of its end what was handed on last."""
        large = [n for n, voice in enumerate(self.voices) if voice.table.size >= LARGE]
        small = [n for n, voice in enumerate(self.voices) if voice.table.size < LARGE]
        self.stacks = [Stack([self.voices[n]], slice(n, n + 1), goes) for n in large]
        if small:
            self.stacks.append(Stack([self.voices[n] for n in small], small if large else slice(None), goes))

    def gathered(self, said: Costs) -> Costs:
        """Per end and choice what it costs with all that it hears."""
        return np.asarray(np.add.reduce(said[self._heard]))

    def hand_on(self, said: Costs) -> Costs:
        """What is gathered, of which a part is handed on by each voice, less what it has said itself."""
        gathered = self.gathered(said)
        if self.voices:
            self.handed = (gathered * self._part).take(self._tellers, axis=0)
            self.handed -= said[self._answers]
            self.tell(said)
        return gathered

    def tell(self, said: Costs) -> None:
        """Say what comes of what was handed on."""
        handed = self.handed
        if self._picked:
            handed = handed.copy()
            for voice, picks in self._picked:
                handed[voice, : len(picks.options)] = picks.least(handed[voice, : len(picks.numbers)])
        for stack in self.stacks:
            stack.tell(said, handed)

    def decide(self, said: Costs, choices: Numbers) -> None:
        """Say what it costs others that ends take some choices."""
        rows = choices[self._tellers]
        for voice, picks in self._picked:
            rows[voice] = picks.places[rows[voice]]
        for stack in self.stacks:
            stack.decide(said, rows)


class Messages:
    """What ends tell one another.

    Args:
        ends: in their order, as their places say; their links are between them.
    """

    def __init__(self, ends: Sequence[End]) -> None:
        levels, size = _levels(ends)
        self._ends = ends
        self._costs = {each.number: each.costs for level in levels for each in level}
        self._ahead = _sweep(levels)
        self._back = _sweep([[speaker.turned for speaker in level] for level in reversed(levels)])
        numbers = [number for level in self._back for number in level.numbers]
        self._last_first = np.argsort(numbers)[::-1]
        """Where in the levels of the way back the ends stand, the last one first."""
        self._kept = np.array([part for level in self._back for part in level.kept])
        self._said = np.zeros(size)
        self._said[NEVER] = np.inf
        self._stacks = dict[tuple[object, ...], Stack]()
        for stack in (stack for level in (*self._ahead, *self._back) for stack in level.stacks):
            first = self._stacks.setdefault(stack.key, stack)
            if first is stack:
                stack.begin()
            stack.costs = first.costs
        self.passed = sum(stack.costs.size for level in (*self._ahead, *self._back) for stack in level.stacks)
        """How many costs of links are gone over, forth and back."""
        self.renew(())

    def renew(self, changed: Collection[int]) -> None:
        """Take what ends cost now, and links of which the tables have changed; what was handed on stays."""
        for number, end in enumerate(self._ends):
            costs = self._costs[number]
            self._said[costs.start : costs.stop] = end.cost
        for stack in self._stacks.values():
            stack.renew(changed)
        self._is_said = False

    def _say(self) -> None:
        """Say what comes of what was handed on by those who come later: what others tell is said anew on the way."""
        if not self._is_said:
            for level in self._back:
                if level.voices:
                    level.tell(self._said)
            self._is_said = True

    def go(self) -> None:
        """Hand on, from the first end to the last."""
        self._say()
        for level in self._ahead:
            level.hand_on(self._said)

    def come_back(self) -> float:
        """Hand on, from the last end to the first; what all keep at the least, which no choices cost less than."""
        least = [np.minimum.reduce(level.hand_on(self._said), axis=1) for level in self._back]
        return sum((np.concatenate(least) * self._kept)[self._last_first].tolist()) if least else 0.0

    def min_marginals(self) -> list[Costs]:
        """Per end what each of its choices costs at the least, by all that it was told."""
        self._say()
        rows = dict[int, Costs]()
        for level in self._back:
            rows.update(zip(level.numbers, level.gathered(self._said), strict=True))
        return [rows[number][: len(end.choices)] for number, end in enumerate(self._ends)]

    def choice(self) -> list[int]:
        """Per end its cheapest choice, one after the other."""
        self._say()
        said, picked = self._said.copy(), dict[int, int]()
        for level in self._ahead:
            choices = level.gathered(said).argmin(axis=1)
            picked.update(zip(level.numbers, choices.tolist(), strict=True))
            if level.voices:
                level.decide(said, choices)
        return [picked[number] for number in range(len(self._ends))]

    def latest(self) -> list[Costs]:
        """What was handed on last, level by level, which stays as it is when more is."""
        return [level.handed for level in (*self._ahead, *self._back)]

    def handed(self, latest: Sequence[Costs]) -> Iterator[tuple[Voice, Costs]]:
        """What was handed on, by each voice."""
        for level, rows in zip((*self._ahead, *self._back), latest, strict=True):
            for voice, handed in zip(level.voices, rows, strict=True):
                yield voice, handed[: len(voice.end.choices)]

    def begin(self, handed: Callable[[Voice], Costs | None]) -> None:
        """Begin with what was handed on elsewhere, if anything was."""
        for level in (*self._ahead, *self._back):
            for row, voice in zip(level.handed, level.voices, strict=True):
                costs = handed(voice)
                if costs is not None:
                    row[: len(costs)] = costs
        self._is_said = False


def _levels(ends: Sequence[End]) -> tuple[list[list[Speaker]], int]:
    """The ends level by level, first those that hear from none before them; and how many places what is said has."""
    size = FREE

    def places(count: int) -> range:
        nonlocal size
        size += count
        return range(size - count, size)

    heard = {
        (id(link), end is link.first): places(link.table.shape[end is link.second])
        for end in ends
        for link in end.links
    }
    depths: dict[int, int] = {}
    levels: list[list[Speaker]] = []
    for number, end in enumerate(ends):
        behind, ahead, depth = list[Voice](), list[Voice](), 0
        for link in end.links:
            is_first = end is link.first
            other = link.second if is_first else link.first
            places_of_both = heard[id(link), is_first], heard[id(link), not is_first]
            voice = Voice(end, other, link, is_first, *places_of_both, None if is_first else link.picks)
            if other.place < end.place:
                behind.append(voice)
                depth = max(depth, 1 + depths[id(other)])
            else:
                ahead.append(voice)
        depths[id(end)] = depth
        if depth == len(levels):
            levels.append([])
        levels[depth].append(Speaker(number, places(len(end.choices)), behind, ahead))
    return levels, size


def _sweep(levels: Sequence[Sequence[Speaker]]) -> list[MessageLevel]:
    """Levels in the order in which they hand on."""
    heard, goes, shapes = list[PaddedRow](), list[PaddedRow](), list[tuple[tuple[int, ...], tuple[int, ...]]]()
    for level in levels:
        most = max(len(each.costs) for each in level)
        voices = [[voice.heard for voice in (*each.behind, *each.ahead)] for each in level]
        rows = list(zip_longest(*voices, fillvalue=range(0)))
        told = [voice.told for each in level for voice in each.ahead]
        widest = max(map(len, told), default=0)
        heard += [PaddedRow(each.costs.start, len(each.costs), most, NEVER) for each in level]
        heard += [PaddedRow(each.start, len(each), most, NOTHING) for row in rows for each in row]
        goes += [PaddedRow(each.start, len(each), widest, NOWHERE) for each in told]
        shapes.append(((1 + len(rows), len(level), most), (len(told), widest)))
    heard_at, goes_to = (_blocks(rows, [both[n] for both in shapes]) for n, rows in enumerate((heard, goes)))
    return [MessageLevel(*each) for each in zip(levels, heard_at, goes_to, strict=True)]


class PaddedRow(NamedTuple):
    """A row of places, one after another from a first one on, and then one place again and again."""

    first: int
    filled: int
    width: int
    beyond: int


def _blocks(rows: Sequence[PaddedRow], shapes: Sequence[tuple[int, ...]]) -> list[Numbers]:
    """Rows one after another as arrays of some shapes."""
    first, filled, width, beyond = np.fromiter(chain.from_iterable(rows), np.int64, 4 * len(rows)).reshape(-1, 4).T
    within = np.arange(width.sum()) - np.repeat(width.cumsum() - width, width)
    places = np.where(within < np.repeat(filled, width), np.repeat(first, width) + within, np.repeat(beyond, width))
    ends = accumulate(map(prod, shapes))
    return [places[end - prod(shape) : end].reshape(shape) for end, shape in zip(ends, shapes, strict=True)]
