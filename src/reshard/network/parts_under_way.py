"""How long chains of steps take whose parts are under way at once.

Turns of all parts share links and ports as fluids do: on each level all messages that are under way get as much of it,
whatever they get elsewhere.
A part begins a turn once the part before it has done that turn, and it the turn before.
Until its bytes flow, and where hops take longer than these, a turn holds no link.
Shares go on evenly: one waits that is further than another with as many parts under way as keep all its turns busy;
a share of one turn has two parts under way.
Of more parts than are followed the others add what the busiest level takes for them, or the longest turn, which is
seldom more than they take.

By hand, 2 s on one level and then 2 s on another, in two parts: the second part begins as the first changes levels.

>>> on_first, on_second = (LinkFlow(0.0, 0.0, busy, busy) for busy in ((2.0, 0.0), (0.0, 2.0)))
>>> uses = [Use(2.0, flow.busy, ((flow,),)) for flow in (on_first, on_second)]
>>> spans_of_uses([uses], [2])
[[(0.0, 4.0), (2.0, 6.0)]]

Where both steps take the same level, they share it from 2 s on, until both are done at 6 s:

>>> spans_of_uses([[uses[0], uses[0]]], [2])
[[(0.0, 6.0), (2.0, 8.0)]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate
from math import inf

import numpy as np

from reshard.network.use import LinkFlow, LinkTurn, Use, seconds_of_turn

FOLLOWED = 128
"""So many parts are followed, as many as a planner takes."""
CACHED = 256
"""Chains in parts whose spans are kept."""
WINDOW = 2
"""How many parts of a share are under way for each of its turns, before it waits for other shares."""
AT_ONCE = 1 + 1e-12
"""Times of which one is no more than so many times the other are one."""
NEARLY = 1 + 1e-9
"""What is no more than so many times another is no larger."""
TINY = 1e-300

TimeSpan = tuple[float, float]


def spans_of_uses(
    uses: Sequence[Sequence[Use]], parts: Sequence[int], followed: int = FOLLOWED
) -> list[list[TimeSpan]]:
    """Per share and step, when the first part begins it and the last has done it, in seconds.

    Args:
        uses: per share, what its steps take of one part.
        parts: per share, how many go that way.
        followed: how many parts are followed at the most, at least one of each share.

    By hand, 4 parts of which 2 are followed: the others add 2 s each.

    >>> flow = LinkFlow(0.0, 0.0, (2.0,), (1.0,))
    >>> spans_of_uses([[Use(2.0, (2.0, 0.0), ((flow,),))]], [4], followed=2)
    [[(0.0, 8.0)]]
    """
    shares = tuple([tuple([turn for use in chain for turn in use.turns]) for chain in uses])
    few = _scaled(parts, followed)
    spans: Sequence[Sequence[TimeSpan]] = _spans_of_turns(shares, few)
    if sum(parts) > sum(few):
        added_s = _busiest_s(shares, parts) - _busiest_s(shares, few)
        spans = [[(start, end + added_s) for start, end in of_share] for of_share in spans]
    return [_of_steps(chain, of_turns) for chain, of_turns in zip(uses, spans, strict=True)]


@lru_cache(CACHED)
def _spans_of_turns(shares: tuple[tuple[LinkTurn, ...], ...], parts: tuple[int, ...]) -> list[list[TimeSpan]]:
    """The same of turns, all parts followed."""
    if len(shares) == 1 and _is_apart(shares[0]):
        return [_in_turn(shares[0], parts[0])]
    return _UnderWay(shares, parts).spans()


forget_spans = _spans_of_turns.cache_clear
"""Forget how long parts take."""


def _of_steps(uses: Sequence[Use], spans: Sequence[TimeSpan]) -> list[TimeSpan]:
    """The spans of steps from those of their turns; what sends nothing begins as the next does, or the last ends."""
    listed, number, end = list[TimeSpan](), 0, 0.0
    for use in uses:
        start = spans[number][0] if number < len(spans) else end
        number += len(use.turns)
        end = spans[number - 1][1] if number else 0.0
        listed.append((start, end))
    return listed


def _scaled(parts: Sequence[int], most: int) -> tuple[int, ...]:
    """About so many in all in the same proportions, at least one of each; the same where they are no more.

    >>> _scaled([96, 31, 1], 16), _scaled([3, 1], 16)
    ((12, 4, 1), (3, 1))
    """
    total = sum(parts)
    return tuple(parts if total <= most else [max(round(count * most / total), 1) for count in parts])


def _is_apart(turns: Sequence[LinkTurn]) -> bool:
    """Whether no two turns hold one link."""
    used = [{place for flow in turn for place, busy in enumerate(flow.busy) if busy} for turn in turns]
    return sum(map(len, used)) == len(set().union(*used))


def _in_turn(turns: Sequence[LinkTurn], count: int) -> list[TimeSpan]:
    """The spans of turns that wait for nothing but one another: each part is behind the last at the longest.

    >>> flow = LinkFlow(0.0, 0.0, (2.0,), (1.0,))
    >>> _in_turn([(flow,), (flow, flow), (flow,)], 2)
    [(0.0, 4.0), (2.0, 10.0), (6.0, 12.0)]
    """
    seconds = [seconds_of_turn(turn) for turn in turns]
    ends = list(accumulate(seconds))
    longest = accumulate(seconds, max)
    return [(end - own, end + (count - 1) * most) for end, own, most in zip(ends, seconds, longest, strict=True)]


def _busiest_s(shares: Sequence[Sequence[LinkTurn]], parts: Sequence[int]) -> float:
    """What the busiest level takes for so many parts, or the longest turn of a share."""
    levels, longest = [0.0], 0.0
    for turns, count in zip(shares, parts, strict=True):
        flows = [flow.busy for turn in turns for flow in turn]
        if flows:
            of_share = [count * sum(level) for level in zip(*flows, strict=True)]
            levels = of_share if len(levels) == 1 else list(map(sum, zip(levels, of_share, strict=True)))
            in_turn = count * max(map(seconds_of_turn, turns))
            longest = max(longest, in_turn / _abreast(turns, shares))
    return max(*levels, longest)


def _abreast(turns: Sequence[LinkTurn], shares: Sequence[Sequence[LinkTurn]]) -> int:
    """How many parts of a share are in one turn at once."""
    return 2 if len(turns) == 1 and len(shares) > 1 else 1


def _that_decide(flows: Sequence[LinkFlow]) -> list[int]:
    """The places of which each has more or larger messages of some flow than any other: all others are done no later.

    By hand, the links of a line of 4 in an all-to-all: most go through the middle.

    >>> _that_decide([LinkFlow(0.0, 0.0, (3.0, 4.0, 3.0, 0.0), (3.0, 4.0, 3.0, 0.0))])
    [1]
    """
    messages = np.array([flow.messages for flow in flows])
    seconds = np.array([flow.busy for flow in flows]) / np.maximum(messages, TINY)  # of a message
    places = np.arange(messages.shape[1])
    is_less = np.ones((len(places), len(places)), dtype=bool)
    for values in (messages, seconds):
        is_less &= (values[:, :, None] <= values[:, None, :] * NEARLY).all(axis=0)
    is_less &= ~is_less.T | (places[:, None] > places)  # of those that are alike the first counts
    return [place for place in places.tolist() if messages[:, place].any() and not is_less[place].any()]


@dataclass(slots=True, eq=False)
class _Flowing:
    """A flow that waits or is under way."""

    flow: LinkFlow
    share: int
    turn: int
    number: int
    """Of the flow, in its turn."""
    reasons: int = 0
    """How many reasons there are that it is not over: places that it holds, and its least time; 0 before it flows."""


class _UnderWay:
    """Parts on their way, and how far they are.

    Of each place it is known how many messages share it, and by a clock how much each of them got so far; a flow is
    done there once the clock is as much further as one of its messages takes alone.
    """

    def __init__(self, shares: Sequence[Sequence[LinkTurn]], parts: Sequence[int]) -> None:
        self.shares, self.parts = shares, parts
        self.sending = [number for number, turns in enumerate(shares) if turns]
        self.abreast = [_abreast(turns, shares) for turns in shares]
        self.begun = [[0] * len(turns) for turns in shares]
        self.done = [[0] * len(turns) for turns in shares]
        self.starts_s = [[0.0] * len(turns) for turns in shares]
        self.ends_s = [[0.0] * len(turns) for turns in shares]
        flows = [flow for turns in shares for turn in turns for flow in turn]
        self.places = _that_decide(flows) if flows else []
        self.messages = [0.0] * len(self.places)
        self.clocks_s = [0.0] * len(self.places)
        self.held: list[list[tuple[float, int, _Flowing]]] = [[] for _ in self.places]  # until when, by the clock
        self.waiting = list[tuple[float, int, _Flowing]]()  # until when
        self.count = 0  # of what ever waited, so that of what is at once the first is first
        self.now_s = 0.0

    def spans(self) -> list[list[TimeSpan]]:
        """Per share and turn, when the first part begins it and the last has done it."""
        self._begin(self.sending)
        while self._go_on():
            further = self._further()
            if further:
                self._begin(further)
        return [list(zip(starts, ends, strict=True)) for starts, ends in zip(self.starts_s, self.ends_s, strict=True)]

    def _begin(self, further: Sequence[int]) -> None:
        """Begin what need not wait for other parts, of shares in which one is further than before, or for shares."""
        shares, parts = self.shares, self.parts
        behind = [(self.done[number][-1] + WINDOW * len(shares[number])) / parts[number] for number in self.sending]
        pace = min(behind, default=0.0)
        for share in self.sending:
            begun, done, count, most = self.begun[share], self.done[share], parts[share], self.abreast[share]
            for turn in range(len(begun)) if share in further else (0,):
                while begun[turn] < count and begun[turn] - done[turn] < most:
                    if (begun[turn] >= done[turn - 1]) if turn else (begun[0] / count > pace):
                        break
                    if not begun[turn]:
                        self.starts_s[share][turn] = self.now_s
                    begun[turn] += 1
                    flow = shares[share][turn][0]
                    self._wait(flow.wait_s, _Flowing(flow, share, turn, 0))

    def _wait(self, seconds: float, flowing: _Flowing) -> None:
        self.count += 1
        heappush(self.waiting, (self.now_s + seconds, self.count, flowing))

    def _go_on(self) -> bool:
        """Let time go on until a flow leaves a place, or need not wait longer; whether there is one."""
        span = self.waiting[0][0] - self.now_s if self.waiting else inf
        for held, clock_s, count in zip(self.held, self.clocks_s, self.messages, strict=True):
            if held and (held[0][0] - clock_s) * count < span:
                span = (held[0][0] - clock_s) * count
        if span == inf:
            return False
        for place, held in enumerate(self.held):
            if held:
                self.clocks_s[place] += span / self.messages[place]
        self.now_s += span
        return True

    def _further(self) -> list[int]:
        """Go on with what is over by now; the shares of which a turn is done."""
        over = list[_Flowing]()
        for place, held in enumerate(self.held):
            limit = self.clocks_s[place] * AT_ONCE
            while held and held[0][0] <= limit:
                _, _, flowing = heappop(held)
                self.messages[place] -= flowing.flow.messages[self.places[place]]
                flowing.reasons -= 1
                if not flowing.reasons:
                    over.append(flowing)
            if not held:
                self.messages[place] = self.clocks_s[place] = 0.0
        while self.waiting and self.waiting[0][0] <= self.now_s * AT_ONCE:
            _, _, flowing = heappop(self.waiting)
            if flowing.reasons:
                flowing.reasons -= 1
            else:
                self._hold(flowing)
            if not flowing.reasons:
                over.append(flowing)
        further = list[int]()
        for flowing in over:
            share, turn, number = flowing.share, flowing.turn, flowing.number + 1
            flows = self.shares[share][turn]
            if number < len(flows):
                self._wait(flows[number].wait_s, _Flowing(flows[number], share, turn, number))
            else:
                self.done[share][turn] += 1
                self.ends_s[share][turn] = self.now_s
                further.append(share)
        return further

    def _hold(self, flowing: _Flowing) -> None:
        """Let bytes flow."""
        flow = flowing.flow
        for number, place in enumerate(self.places):
            if flow.busy[place]:
                count = flow.messages[place]
                self.messages[number] += count
                self.count += 1
                heappush(self.held[number], (self.clocks_s[number] + flow.busy[place] / count, self.count, flowing))
                flowing.reasons += 1
        if flow.least_s > max(flow.busy):  # else it is over no sooner anyway
            self._wait(flow.least_s, flowing)
            flowing.reasons += 1
