"""How a dim is dealt to its shards where a shard is not one block of it, and what a device holds around its own.

A dim is cut in stages, major to minor.
A plain stage cuts every run of the dim into as many blocks as it has shards, and gives each shard one.
A `Deal` says otherwise:

    parts(k), parts(4, 1, 1)  the run is first cut into k parts, or into parts of these sizes, each of which is cut by
                              itself: torch's interleaved shards, Megatron's fused weights
    cycles(k)                 blocks are dealt in turn, k to each shard, the last ones short
    blocks(b)                 blocks of b elements are dealt in turn for as long as there are any: ScaLAPACK
    zigzag                    two blocks for each shard, the second ones from the end: causal attention
    offsets(0, 5, 8)          one block for each shard, which begins and ends at these places: MLIR

So a shard *owns* several runs of a dim, and a tile, the product of the runs of its dims, is several boxes.
It is stored as one array: in each dim the runs one after the other.

A `Window` says what a shard *holds*: every run that it owns with a border of others' elements, or a window of its own.
At the ends of the tensor the window is clipped, goes round (`wrap`), or goes on over what is filled (`pad`).
A window is *summed* where its elements count as contributions to be added up by their owners: the gradient of a fill.

**Why numbers of blocks.** What a shard owns follows from its number among the shards of the dim alone, never from the
device: axes may be reordered, devices renumbered, and a `Weave` stays as it is.

By hand, 20 elements in 2 parts over 3 shards: the parts are cut at 4 and 8, so shard 1 owns 4-7 and 14-17.
Dealt in 2 cycles the blocks are of 4: shard 1 owns 4-7 and 16-19, shard 2 only 8-11.

>>> parts = Weave((DealStage(1, Deal.parts(2)), DealStage(3)))
>>> cycles = Weave((DealStage(3, Deal.cycles(2)),))
>>> owned_runs(parts, 20).of(1), owned_runs(cycles, 20).of(1), owned_runs(cycles, 20).of(2)
([(4, 8), (14, 18)], [(4, 8), (16, 20)], [(8, 12)])
>>> stored_runs(Weave((DealStage(2),), Window(1, 2, "wrap")), 8).of(0)
[(-1, 6)]
>>> held_runs(Weave((DealStage(2),), Window(1, 2, "wrap")), 8).of(0)
[(0, 6), (7, 8)]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.checks import all_of, expect, integer, listed, shown
from reshard.errors import ReshardError

Indices = NDArray[np.int64]

DEALS = ("parts", "cycles", "blocks", "zigzag", "offsets")
EDGES = ("clip", "wrap", "pad")
"""What a window does at the ends of the tensor."""
LARGEST = 2**62
MOST_RUNS = 2**22
"""More runs of one dim are not listed."""
CACHED = 256


@dataclass(frozen=True, slots=True)
class Deal:
    """How the blocks of a dim are dealt to the shards of the axes behind it.

    Rules, in the order checked:
        bad-deal: the kind is one of `DEALS`, its numbers are as many and as large as it wants

    >>> print(Deal.parts(2), Deal.parts(4, 1, 1), Deal.zigzag(), Deal.offsets(0, 5, 8))
    parts(2) parts(4, 1, 1) zigzag offsets(0, 5, 8)
    """

    kind: str
    """One of `DEALS`."""
    numbers: tuple[int, ...] = ()
    """How many parts, or their sizes; how many cycles; how long blocks are; where blocks begin and end."""
    place: int = 0
    """How many axes of the dim stand before it."""

    def __post_init__(self) -> None:
        if expect(self.kind, str, "the kind of a deal", "bad-deal") not in DEALS:
            raise ReshardError("bad-deal", f"a deal must be one of {', '.join(DEALS)}, got: {shown(self.kind)}")
        all_of(self.numbers, int, "the numbers of a deal", "bad-deal")
        if expect(self.place, int, "the place of a deal", "bad-deal") < 0:
            raise ReshardError("bad-deal", f"{self} stands at the place {self.place}; it must be at least 0")
        if any(not 0 <= number < LARGEST for number in self.numbers):
            raise ReshardError("bad-deal", f"the numbers of {self} must be at least 0 and below 2**62")
        problem = self._problem()
        if problem:
            raise ReshardError("bad-deal", f"{self} must have {problem}")

    def _problem(self) -> str:
        count, least = len(self.numbers), min(self.numbers, default=0)
        if self.kind == "zigzag":
            return "no numbers" if count else ""
        if self.kind == "offsets":
            rises = all(low <= high for low, high in pairwise(self.numbers))
            return "" if count > 1 and self.numbers[0] == 0 and rises else "two or more places that rise from 0"
        if self.kind == "parts" and count > 1:
            return "" if least > 0 else "parts of at least one element"
        if count != 1:
            return "one number"
        wanted = 1 if self.kind == "blocks" else 2
        return "" if least >= wanted else f"a number of at least {wanted}"

    def __str__(self) -> str:
        return self.kind + (f"({', '.join(map(str, self.numbers))})" if self.numbers else "")

    @classmethod
    def parts(cls, *numbers: int) -> Deal:
        """So many parts, or parts of these sizes, each cut by itself by the axes behind."""
        return cls("parts", _integers(numbers))

    @classmethod
    def cycles(cls, count: int) -> Deal:
        """So many blocks to each shard, dealt in turn; all are as long as the first, but for the last ones."""
        return cls("cycles", _integers([count]))

    @classmethod
    def blocks(cls, length: int) -> Deal:
        """Blocks of so many elements, dealt in turn for as long as there are any."""
        return cls("blocks", _integers([length]))

    @classmethod
    def zigzag(cls) -> Deal:
        """Two blocks to each shard: the first ones in order, the second ones in reverse."""
        return cls("zigzag")

    @classmethod
    def offsets(cls, *places: int) -> Deal:
        """One block to each shard, from one of these places to the next: one more than there are shards."""
        return cls("offsets", _integers(places))


def _integers(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(integer(number, "a number of a deal", "bad-deal") for number in numbers)


@dataclass(frozen=True, slots=True)
class Window:
    """What a shard holds of a dim: more, or other, than it owns.

    Rules, in the order checked:
        bad-window: widths are at least 0 and one is more, or there are spans, each of which begins before it ends;
            an empty one is (0, 0); the edge is one of `EDGES`

    >>> print(Window(1, 2), Window(1, 1, "wrap", summed=True), Window(spans=((0, 5), (3, 8))))
    halo(1, 2) halo(1, 1, wrap, summed) window(0:5, 3:8)
    """

    low: int = 0
    """How many elements before each run that is owned."""
    high: int = 0
    """How many after it."""
    edge: str = "clip"
    """What happens at the ends of the tensor: one of `EDGES`."""
    spans: tuple[tuple[int, int], ...] = ()
    """In place of widths the window of every shard, by its number: where it begins and ends, perhaps outside."""
    summed: bool = False
    """Whether the value is the sum of what all windows hold."""

    def __post_init__(self) -> None:
        for width in (self.low, self.high):
            if not 0 <= expect(width, int, "the width of a halo", "bad-window") < LARGEST:
                raise ReshardError(
                    "bad-window", f"the width of a halo must be at least 0 and below 2**62, got: {width}"
                )
        if expect(self.edge, str, "the edge of a window", "bad-window") not in EDGES:
            raise ReshardError(
                "bad-window", f"the edge of a window must be one of {', '.join(EDGES)}, got: {self.edge}"
            )
        expect(self.summed, bool, "summed", "bad-window")
        for span in all_of(self.spans, tuple, "the spans of a window", "bad-window"):
            numbers = all_of(span, int, "a span of a window", "bad-window")
            if len(numbers) != 2 or not -LARGEST < numbers[0] <= numbers[1] < LARGEST:
                raise ReshardError("bad-window", f"a span must be (start, stop) with start <= stop, got: {shown(span)}")
            if numbers[0] == numbers[1] != 0:
                raise ReshardError("bad-window", f"the empty span {shown(span)} must be written (0, 0)")
        if bool(self.spans) == bool(self.low or self.high):
            raise ReshardError("bad-window", "a window must have spans, or a width above 0, and not both")

    def __str__(self) -> str:
        words = ([] if self.edge == "clip" else [self.edge]) + (["summed"] if self.summed else [])
        spans = [f"{start}:{stop}" for start, stop in self.spans]
        numbers = spans or [str(self.low), str(self.high)]
        return f"{'window' if spans else 'halo'}({', '.join(numbers + words)})"

    def dual(self) -> Window:
        """The window of the gradient: summed where this is not."""
        return replace(self, summed=not self.summed)

    @classmethod
    def of(cls, spans: Iterable[Iterable[int]], edge: str = "clip") -> Window:
        """The window of every shard, from loose input."""
        pairs = [tuple(integer(end, "the end of a span", "bad-window") for end in listed(s, "a span")) for s in spans]
        return cls(edge=edge, spans=tuple((0, 0) if len({*pair}) == 1 else pair for pair in pairs))  # type: ignore[misc]


class DealStage(NamedTuple):
    """A stage of the cut of a dim."""

    shards: int
    """Into how many shards it cuts."""
    deal: Deal | None = None
    """How; None for one block to each."""


class LocalBlocks(NamedTuple):
    """The blocks of a run that a shard gets."""

    number: int
    length: int
    """Of each, unless the dim ends in it."""


@dataclass(frozen=True, slots=True)
class Weave:
    """What the shards of a dim own and hold, by their numbers."""

    stages: tuple[DealStage, ...]
    """Major to minor; those of one shard that deal nothing are left out."""
    window: Window | None = None

    def then(self, shards: int) -> Weave:
        """The weave with every run cut once more."""
        return Weave((*self.stages, DealStage(shards)), self.window)

    def owned(self) -> Weave | None:
        """The weave without its window; None where nothing is left to say."""
        return Weave(self.stages) if any(stage.deal for stage in self.stages) else None

    def local_blocks(self, size: int) -> list[LocalBlocks] | None:
        """Per stage, the blocks of each run that a shard gets; None where blocks do not lie at even strides.

        The dim may end inside a block where it is cut in one stage, or where all blocks are of given lengths.
        """
        kinds = [stage.deal.kind if stage.deal else "" for stage in self.stages]
        if self.window or "zigzag" in kinds or "offsets" in kinds:
            return None
        may_end_inside = len(kinds) == 1 or set(kinds) == {"blocks"}
        listed: list[LocalBlocks] = []
        for stage, kind in zip(self.stages, kinds, strict=True):
            numbers = stage.deal.numbers if stage.deal else (1,)
            if len(numbers) > 1:
                return None
            if kind == "blocks":
                blocks = LocalBlocks(-(-size // (numbers[0] * stage.shards)) or 1, numbers[0])
            else:
                blocks = LocalBlocks(numbers[0], -(-size // (stage.shards * numbers[0])))
            if size != blocks.length * blocks.number * stage.shards and (listed or not may_end_inside):
                return None
            listed.append(blocks)
            size = blocks.length
        return listed

    def is_even(self, size: int) -> bool:
        """Whether all shards own runs of the same lengths and hold nothing else."""
        if self.window:
            return False
        for stage in self.stages:
            kind, numbers = (stage.deal.kind, stage.deal.numbers) if stage.deal else ("", ())
            if kind == "offsets" or len(numbers) > 1:
                return False
            count = 2 if kind == "zigzag" else (numbers or (1,))[0]
            pieces = stage.shards * count
            if size % pieces:
                return False
            size = count if kind == "blocks" else size // pieces
            if kind == "blocks" and len(self.stages) > 1:
                return False
        return True


class Runs(NamedTuple):
    """Runs of a dim by the shards that have them: sorted by shard, in the order in which they are stored."""

    shard: Indices
    start: Indices
    stop: Indices

    def of(self, shard: int) -> list[tuple[int, int]]:
        """The runs of one shard."""
        low, high = np.searchsorted(self.shard, (shard, shard + 1)).tolist()
        return list(zip(self.start[low:high].tolist(), self.stop[low:high].tolist(), strict=True))

    def lengths(self, shards: int) -> Indices:
        """Per shard, the number of elements of its runs."""
        total = np.zeros(shards, dtype=np.int64)
        np.add.at(total, self.shard, self.stop - self.start)
        return total


@lru_cache(CACHED)
def owned_runs(weave: Weave, size: int) -> Runs:
    """What every shard of a dim of so many elements owns; empty runs are left out.

    Runs that go on are one, but for those with a border of their own.

    Raises:
        ReshardError: `bad-shape` where the dim is not of the size that parts or offsets add up to; `too-large`.
    """
    runs = _blocks(weave, size)
    if weave.window:
        return runs
    goes_on = (runs.shard[1:] == runs.shard[:-1]) & (runs.start[1:] == runs.stop[:-1])
    first, last = np.append(True, ~goes_on), np.append(~goes_on, True)
    return Runs(runs.shard[first], runs.start[first], runs.stop[last]) if len(runs.shard) else runs


def _blocks(weave: Weave, size: int) -> Runs:
    """What every shard owns, a run for each of its blocks."""
    shard, start, stop = np.zeros(1, np.int64), np.zeros(1, np.int64), np.full(1, size, np.int64)
    for stage in weave.stages:
        owner, low, high = _dealt(stage, start, stop)
        shard = (shard[:, None] * stage.shards + owner).ravel()
        start, stop = low.ravel(), high.ravel()
        lasting = start < stop
        shard, start, stop = shard[lasting], start[lasting], stop[lasting]
    if not weave.stages and not size:
        shard, start, stop = np.zeros((3, 0), np.int64)
    order = np.lexsort((start, shard))
    return Runs(shard[order], start[order], stop[order])


def _dealt(stage: DealStage, start: Indices, stop: Indices) -> tuple[Indices, Indices, Indices]:
    """Per block in a row of every run: the shard that owns it, where it begins and where it ends."""
    shards, deal = stage
    kind, numbers = (deal.kind, deal.numbers) if deal else ("cycles", (1,))
    longest = int((stop - start).max(initial=0))
    if kind == "offsets" or len(numbers) > 1:
        return _placed(stage, start, stop)
    each = 2 if kind == "zigzag" else numbers[0]
    count = -(-longest // each) if kind == "blocks" else shards * each
    if count * len(start) > MOST_RUNS:
        raise ReshardError("too-large", f"{count * len(start)} runs of {deal or 'a dim'} are too many to list")
    number = np.arange(count, dtype=np.int64)
    owner = np.minimum(number, 2 * shards - 1 - number) if kind == "zigzag" else number % shards
    length = np.full(len(start), numbers[0]) if kind == "blocks" else -((start - stop) // max(count, 1))
    low = np.minimum(start[:, None] + number * length[:, None], stop[:, None])
    high = np.minimum(low + length[:, None], stop[:, None])
    return np.broadcast_to(owner, low.shape), low, high


def _placed(stage: DealStage, start: Indices, stop: Indices) -> tuple[Indices, Indices, Indices]:
    """The same for parts and blocks whose places are given."""
    shards, deal = stage
    assert deal is not None  # only deals have numbers
    places = np.array(deal.numbers if deal.kind == "offsets" else (0, *deal.numbers), dtype=np.int64)
    places = places if deal.kind == "offsets" else np.cumsum(places)
    if deal.kind == "offsets" and len(places) != shards + 1:
        raise ReshardError("bad-deal", f"{deal} has places for {len(places) - 1} shards; there are {shards}")
    for length in set((stop - start).tolist()):
        if length != places[-1]:
            raise ReshardError("bad-shape", f"{deal} is for {places[-1]} elements; there are {length}")
    low, high = start[:, None] + places[:-1], start[:, None] + places[1:]
    owner = np.arange(shards) if deal.kind == "offsets" else np.zeros(len(places) - 1, np.int64)
    return np.broadcast_to(owner, low.shape), low, high


@lru_cache(CACHED)
def stored_runs(weave: Weave, size: int) -> Runs:
    """What the array of every shard holds of a dim, in order: the runs that it owns, or the windows around them.

    Windows that wrap or are padded may begin below 0 and end beyond the size.

    Raises:
        ReshardError: as `owned_runs`; `bad-window` where there are not as many spans as shards.
    """
    window = weave.window
    if window is None or not size:
        return owned_runs(weave, size)
    if window.spans:
        shards = int(np.prod([stage.shards for stage in weave.stages], dtype=np.int64))
        if len(window.spans) != shards:
            raise ReshardError("bad-window", f"{window} has {len(window.spans)} spans; there are {shards} shards")
        spans = np.array(window.spans, dtype=np.int64)
        runs = Runs(np.arange(shards), spans[:, 0], spans[:, 1])
    else:
        blocks = _blocks(weave, size)
        runs = Runs(blocks.shard, blocks.start - window.low, blocks.stop + window.high)
    if window.edge == "clip":
        runs = Runs(runs.shard, np.clip(runs.start, 0, size), np.clip(runs.stop, 0, size))
    lasting = runs.start < runs.stop
    return Runs(*(column[lasting] for column in runs))


def check_held(weave: Weave, size: int) -> None:
    """Refuse windows that leave out a part of what their shards own: these elements would be nowhere.

    Raises:
        ReshardError: `bad-window`; and as `stored_runs`.
    """
    stored_runs(weave, size)
    if weave.window is None or not weave.window.spans:
        return
    spans, owned = np.array(weave.window.spans, dtype=np.int64), owned_runs(weave, size)
    inside = (spans[owned.shard, 0] <= owned.start) & (owned.stop <= spans[owned.shard, 1])
    for shard, start, stop in zip(*(column[~inside].tolist() for column in owned), strict=True):
        raise ReshardError(
            "bad-window", f"{weave.window} leaves out a part of [{start}, {stop}), which shard {shard} owns: no source"
        )


@lru_cache(CACHED)
def held_runs(weave: Weave, size: int) -> Runs:
    """Which elements of a dim every shard holds: each once, in order.

    Raises:
        ReshardError: as `stored_runs`.
    """
    runs = stored_runs(weave, size)
    if weave.window is None or not size:
        return runs
    if weave.window.edge == "wrap":
        turns = turns_of(runs, size)
        row = np.repeat(np.arange(len(turns.number)), turns.number)
        base = turns.base[row] + (np.arange(len(row)) - np.repeat(np.cumsum(turns.number) - turns.number, turns.number))
        base = base * size
        runs = Runs(runs.shard[row], runs.start[row] - base, runs.stop[row] - base)
    runs = Runs(runs.shard, np.clip(runs.start, 0, size), np.clip(runs.stop, 0, size))
    lasting = runs.start < runs.stop
    order = np.lexsort((runs.start[lasting], runs.shard[lasting]))
    return _united(Runs(*(column[lasting][order] for column in runs)))


class Turns(NamedTuple):
    """How often each run that wraps goes round: from which turn, and through how many."""

    base: Indices
    number: Indices


def turns_of(runs: Runs, size: int) -> Turns:
    """The turns of runs through a dim of so many elements; turn 0 is the tensor itself.

    Raises:
        ReshardError: `too-large`.
    """
    base = runs.start // size
    count = -(-runs.stop // size) - base
    if int(count.sum()) > MOST_RUNS:
        raise ReshardError("too-large", f"windows that go round {int(count.max())} times are too wide to list")
    return Turns(base, count)


def _united(runs: Runs) -> Runs:
    """Runs of one shard that meet or overlap as one."""
    meets = (runs.shard[1:] == runs.shard[:-1]) & (runs.start[1:] <= runs.stop[:-1])
    if not meets.any():
        return runs
    united: list[list[int]] = []
    for shard, start, stop in zip(*(column.tolist() for column in runs), strict=True):
        if united and united[-1][0] == shard and start <= united[-1][2]:
            united[-1][2] = max(united[-1][2], stop)
        else:
            united.append([shard, start, stop])
    return Runs(*np.array(united, dtype=np.int64).T)
