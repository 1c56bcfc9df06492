"""A sharding with the names taken away: digits of a device's position.

An axis or sub-axis of a mesh is a *digit* of the position: (stride, size), with the value
`position // stride % size`.
`Digits` is a list of them, major to minor: it counts through their product, the last digit fastest.
A dim is cut in *stages*: each cuts what the one before left into blocks of the ceiling of length over parts,
by the digits of the stage.
Shardy and XLA cut a dim in one stage, torch in one stage per axis; both are the same where all divides.

Two layouts over the same positions meet in their *refinement*: the coarsest digits, of the positions and of
every dim, that both respect.
Its cuts are block lengths in a dim and strides in the positions.
A cut inside a digit of one side splits it, and so cuts whatever that digit is tied to; this repeats until
nothing is cut.
Cuts are only added and all divide one another, so it ends, and in the same place whatever the order.
Where two cuts do not divide each other there is no refinement, and boxes must be compared one by one.

**Why not linear layouts.** Triton's are matrices over the bits of a position: all composition is a product of
matrices, and swizzles are matrices too, but every size must be a power of two.
Meshes have axes of 3, 6 and 72 devices and tensors have dims of 11008 elements; a digit takes any size, costs two
numbers whatever its size, and no mesh swizzles its devices.

**Why not shapes with strides.** CuTe maps a coordinate to an offset by nested (shape, stride) pairs, which is a digit
read from the other end: the pair says what a coordinate adds, the digit which coordinate a position has.
That direction composes functions, but it must be inverted to ask who holds an element, and two layouts are compared
by what they compute.
Here positions are read off: a layout whose strides are given has one spelling, two of them have a refinement, and
replication is no stride of 0 but a digit that no dim mentions.

By hand, on positions x=2, y=4 (x has stride 4, y stride 1), for an 8 x 8 tensor that goes from `[{"y"}, {}]`
to `[{"x"}, {"y"}]`:
dim 0 has the blocks 2 (source) and 4 (target); the cut at 4 lies inside y and splits it into (2, 2) and (1, 2),
and that split cuts dim 1, whose blocks of 2 by y are pairs of 4.

>>> x, y = Digits([Digit(4, 2)]), Digits([Digit(1, 4)])
>>> source = Layout(dims=((y,), ()), unreduced=Digits(), positions=8)
>>> target = Layout(dims=((x,), (y,)), unreduced=Digits(), positions=8)
>>> common = refine(source, target, (8, 8))
>>> common.digits
Digits([Digit(stride=4, size=2), Digit(stride=2, size=2), Digit(stride=1, size=2)])
>>> common.source_roles
(None, Cuts(dim=0, stride=4), Cuts(dim=0, stride=2))
>>> common.target_roles
(Cuts(dim=0, stride=4), Cuts(dim=1, stride=4), Cuts(dim=1, stride=2))
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.deal import DealStage, Runs, Weave, held_runs, owned_runs, stored_runs
from reshard.errors import ReshardError
from reshard.tile import Span, Tile

Positions = NDArray[np.int64]
P = TypeVar("P", int, Positions)


def nest(cuts: Iterable[int]) -> bool:
    """Whether one list of factors has all the cuts: in order, each divides the next.

    >>> nest([8, 2, 4]), nest([2, 3])
    (True, False)
    """
    low = 1
    for cut in sorted(cuts):
        if cut % low:
            return False
        low = cut
    return True


class Digit(NamedTuple):
    """A factor of the position: its value is `position // stride % size`."""

    stride: int
    size: int

    @property
    def end(self) -> int:
        """Where the next digit up begins."""
        return self.stride * self.size

    def value(self, position: P) -> P:
        """The digit of one position, or of many."""
        return position // self.stride % self.size


class Digits(tuple[Digit, ...]):
    """Digits major to minor: a stage of a cut, or any other list through whose values positions are counted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Digits({list(self)!r})"

    def __getnewargs__(self) -> tuple[list[Digit]]:
        return (list(self),)

    @classmethod
    def between(cls, cuts: Iterable[int]) -> Digits:
        """The digits that begin and end at strides which nest, from the largest down.

        >>> Digits.between({1, 2, 8})
        Digits([Digit(stride=2, size=4), Digit(stride=1, size=2)])
        """
        return cls([Digit(low, high // low) for high, low in itertools.pairwise(sorted(cuts, reverse=True))])

    @classmethod
    def of_sizes(cls, sizes: Iterable[int]) -> Digits:
        """The digits of these sizes in row-major order: the last counts fastest.

        >>> Digits.of_sizes([2, 4])
        Digits([Digit(stride=4, size=2), Digit(stride=1, size=4)])
        """
        result, stride = [], 1
        for size in reversed(list(sizes)):
            result.append(Digit(stride, size))
            stride *= size
        return cls(reversed(result))

    @property
    def size(self) -> int:
        """The number of values: the product of the sizes."""
        return prod([size for _, size in self]) if self else 1

    @property
    def cuts(self) -> set[int]:
        """The strides at which the digits begin and end."""
        return {cut for digit in self for cut in (digit.stride, digit.end)}

    def joined(self) -> Digits:
        """The one spelling: runs that continue one another are one digit, size 1 is dropped.

        >>> Digits([Digit(4, 2), Digit(1, 4), Digit(16, 1)]).joined()
        Digits([Digit(stride=1, size=8)])
        """
        result: list[Digit] = []
        for digit in self:
            if result and result[-1].stride == digit.stride * digit.size:
                result[-1] = Digit(digit.stride, result[-1].size * digit.size)
            elif digit.size > 1:
                result.append(digit)
        return Digits(result)

    def within(self, other: Digit) -> Digits:
        """The parts that lie inside `other` and that a split of both can hold.

        >>> Digits([Digit(1, 8)]).within(Digit(2, 2))
        Digits([Digit(stride=2, size=2)])
        """
        parts = []
        for digit in self:
            low, high = max(digit.stride, other.stride), min(digit.end, other.end)
            if low < high and nest((digit.stride, low, high, digit.end)) and nest((other.stride, low, high, other.end)):
                parts.append(Digit(low, high // low))
        return Digits(parts)

    def without(self, removed: Iterable[Digit]) -> Digits:
        """What is left when the parts in `removed` are taken out.

        >>> Digits([Digit(1, 8)]).without([Digit(2, 2)])
        Digits([Digit(stride=4, size=2), Digit(stride=1, size=2)])
        """
        remaining = list(self)
        for other in removed:
            split = []
            for digit in remaining:
                for part in Digits((digit,)).within(other):
                    split.append(Digit(part.end, digit.end // part.end))
                    digit = Digit(digit.stride, part.stride // digit.stride)
                split.append(digit)
            remaining = [digit for digit in split if digit.size > 1]
        return Digits(remaining).joined()

    def primes(self) -> Digits:
        """Each digit as digits of prime size.

        >>> Digits([Digit(5, 12)]).primes()
        Digits([Digit(stride=30, size=2), Digit(stride=15, size=2), Digit(stride=5, size=3)])
        """
        result: list[Digit] = []
        for stride, size in self:
            factor = 2
            while size > 1:
                if factor * factor > size:
                    factor = size
                if size % factor == 0:
                    size //= factor
                    result.append(Digit(stride * size, factor))
                else:
                    factor += 1
        return Digits(result)

    def offsets(self) -> Positions:
        """The positions that the digits reach from 0, in the order of their values.

        >>> Digits([Digit(1, 2), Digit(4, 2)]).offsets()
        array([0, 4, 1, 5])
        """
        result: Positions = np.zeros(1, dtype=np.int64)
        for stride, size in self:
            result = (result[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
        return result

    def index_of(self, position: P) -> P:
        """The place of a position, or of many, among the values of the digits."""
        index = position * 0
        for stride, size in self:
            index = index * size + position // stride % size
        return index

    def groups(self, positions: int) -> Positions:
        """So many positions in groups that differ in the digits alone: a row per group, in the order of their values.

        >>> Digits([Digit(1, 2), Digit(4, 2)]).groups(8).tolist()
        [[0, 4, 1, 5], [2, 6, 3, 7]]
        """
        places = np.arange(positions, dtype=np.int64)
        firsts: Positions = places[self.index_of(places) == 0]
        return firsts[:, None] + self.offsets()

    def offset_of(self, index: P) -> P:
        """The position that a value of the digits, or many, reaches from 0."""
        position = index * 0
        for stride, size in reversed(self):
            position = position + index % size * stride
            index = index // size
        return position

    def transposed(self, order: Transposition) -> Digits | None:
        """The same digits of the other number, joined; None where one is no product of digits of the transposition.

        >>> order = Transposition.of(np.array([0, 2, 1, 3]))
        >>> Digits([Digit(1, 2)]).transposed(order)
        Digits([Digit(stride=2, size=2)])
        """
        parts = order.parts_of(self)
        return parts.joined() if parts.size == self.size else None


NO_DIGITS = Digits()


@dataclass(frozen=True, slots=True)
class Transposition:
    """Two numberings of the same things, whose digits are the same in another order."""

    before: Digits
    """The digits of the one number, major to minor."""
    after: Digits
    """The same digits, one by one, of the other."""

    @classmethod
    def of(cls, numbers: Positions) -> Transposition | None:
        """From 0, 1, 2, … to these numbers; None where they follow no digits.

        >>> Transposition.of(np.array([0, 2, 1, 3])).after
        Digits([Digit(stride=1, size=2), Digit(stride=2, size=2)])
        """
        total = len(numbers)
        before: list[Digit] = []
        after: list[Digit] = []
        stride, rebuilt = 1, np.zeros(1, dtype=np.int64)
        while stride < total:
            step = int(numbers[stride])
            along = numbers[::stride]
            wrong = np.flatnonzero(along != np.arange(len(along), dtype=np.int64) * step)
            size = int(wrong[0]) if len(wrong) else len(along)
            if size < 2 or total % (stride * size):
                return None
            rebuilt = (np.arange(size, dtype=np.int64)[:, None] * step + rebuilt[None, :]).ravel()
            before.append(Digit(stride, size))
            after.append(Digit(step, size))
            stride *= size
        return cls(Digits(before[::-1]), Digits(after[::-1])) if np.array_equal(rebuilt, numbers) else None

    def parts_of(self, digits: Digits) -> Digits:
        """The parts of digits of the first number that lie inside one of its own each, as digits of the second."""
        return Digits(
            Digit(after.stride * (part.stride // before.stride), part.size)
            for digit in digits
            for before, after in zip(self.before, self.after, strict=True)
            for part in Digits((digit,)).within(before)
        )

    def reversed(self) -> Transposition:
        """From the second number to the first."""
        pairs = sorted(zip(self.after, self.before, strict=True), reverse=True)
        return Transposition(Digits(after for after, _ in pairs), Digits(before for _, before in pairs))


@dataclass(frozen=True)
class Layout:
    """Which digits of the position cut which dim, and along which the values are unreduced."""

    dims: tuple[tuple[Digits, ...], ...]
    """Per dim, its stages; per stage, its digits, major to minor."""
    unreduced: Digits
    """Digits along which the value is the reduction of what the devices hold."""
    positions: int
    """The number of devices."""
    weaves: tuple[Weave | None, ...] = ()
    """Per dim what else there is to say than stages: none where every tile is one box and all is owned."""

    def weave(self, dim: int) -> Weave | None:
        """What else there is to say of a dim than its stages."""
        return self.weaves[dim] if self.weaves else None

    def owned(self) -> Layout:
        """The layout without its windows."""
        if not self.has_windows:
            return self
        weaves = tuple(None if weave is None else weave.owned() for weave in self.weaves)
        return replace(self, weaves=weaves if any(weaves) else ())

    def dual(self) -> Layout:
        """The layout of the gradient: free and unreduced digits change places, windows are summed or no longer."""
        weaves = tuple(
            weave if weave is None or weave.window is None else replace(weave, window=weave.window.dual())
            for weave in self.weaves
        )
        return replace(self, unreduced=self.free, weaves=weaves)

    @property
    def has_windows(self) -> bool:
        """Whether devices hold other elements than those that they own."""
        return any(weave is not None and weave.window is not None for weave in self.weaves)

    @property
    def is_summed(self) -> bool:
        """Whether values are the sums of what windows hold."""
        return any(weave is not None and weave.window is not None and weave.window.summed for weave in self.weaves)

    def cut_further(self, dim: int, digit: Digit) -> Layout:
        """The layout with every run of a dim cut once more, by one digit."""
        before, stages, after = self.dims[:dim], self.dims[dim], self.dims[dim + 1 :]
        weave = self.weave(dim)
        weaves = self.weaves
        if weave is not None:
            weaves = (*weaves[:dim], weave.then(digit.size), *weaves[dim + 1 :])
        return replace(self, dims=(*before, (*stages, Digits((digit,))), *after), weaves=weaves)

    def shards(self, dim: int) -> int:
        """The number of parts that a dim is cut into."""
        return self.parts[dim]

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Per dim, the number of parts that it is cut into."""
        return tuple(prod([digit.size for stage in stages for digit in stage]) for stages in self.dims)

    @cached_property
    def cutting(self) -> tuple[Digits, ...]:
        """Per dim, the digits of all its stages, major to minor."""
        return tuple(stages[0] if len(stages) == 1 else Digits(itertools.chain(*stages)) for stages in self.dims)

    @cached_property
    def used(self) -> Digits:
        """All digits that the layout names: those that are unreduced, then those that cut a dim."""
        return Digits(itertools.chain(self.unreduced, *self.cutting))

    @cached_property
    def free(self) -> Digits:
        """The digits on which the tensor is replicated, major to minor."""
        return Digits([Digit(1, self.positions)]).without(self.used)

    def copies(self) -> int:
        """The number of devices that hold each tile, of each class of unreduced values."""
        return self.positions // (prod(self.parts) * self.unreduced.size)

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the largest tile: the ceiling of each size over its shards."""
        if self.weaves:
            return tuple(self._longest(dim, size) for dim, size in enumerate(shape))
        return tuple(-(-size // parts) for size, parts in zip(shape, self.parts, strict=True))

    def _longest(self, dim: int, size: int) -> int:
        weave = self.weave(dim)
        if weave is None:
            return -(-size // self.parts[dim])
        return int(stored_runs(weave, size).lengths(self.parts[dim]).max())

    def tile(self, position: int, shape: Sequence[int], *, once: bool = False) -> Box | Tile:
        """What the array of a position holds: a box, or where a dim is woven whatever it is.

        Args:
            position: of the device.
            shape: of the tensor.
            once: whether to ask for an array that holds each element once and in order, and nothing that is padded.
        """
        if not self.weaves:
            return self.box(position, shape)
        spans = []
        for dim, size in enumerate(shape):
            weave, shard = self.weave(dim), self.cutting[dim].index_of(position)
            if weave is None:
                run = self._plain_box(position, (size,), (dim,))
                spans.append(Span(run, run, size))
                continue
            window = weave.window
            if once:
                held = tuple(held_runs(weave, size).of(shard))
                spans.append(Span(held, held, size))
                continue
            stored, owned = stored_runs(weave, size).of(shard), owned_runs(weave, size).of(shard)
            wraps = window is not None and window.edge == "wrap"
            spans.append(Span(tuple(stored), tuple(owned), size, wraps, window is not None and not window.spans))
        return Tile(tuple(spans))

    def box(self, position: int, shape: Sequence[int]) -> Box:
        """Where the tile of a position lies.

        Raises:
            ReshardError: `cannot-express` where it is not one box.
        """
        if not self.weaves:
            return self._plain_box(position, shape, range(len(self.dims)))
        tile = self.tile(position, shape)
        boxes = tile.boxes() if isinstance(tile, Tile) else ()
        if tile.is_empty:
            return Box(
                (size, size) if not length else (0, length) for size, length in zip(shape, tile.shape, strict=True)
            )
        if len(boxes) != 1 or boxes[0].shape != tile.shape:
            problem = f"the tile of position {position} is {len(boxes)} boxes" if len(boxes) > 1 else ""
            problem = problem or f"the tile of position {position} reaches beyond the tensor"
            raise ReshardError("cannot-express", f"{problem}; it must be one box of it")
        return boxes[0]

    def _plain_box(self, position: int, shape: Sequence[int], dims: Sequence[int]) -> Box:
        intervals = []
        for dim, size in zip(dims, shape, strict=True):
            start, stop = 0, size
            for stage in self.dims[dim]:
                index = stage.index_of(position)
                block = -(-(stop - start) // stage.size)
                start, stop = min(start + index * block, stop), min(start + (index + 1) * block, stop)
            intervals.append((start, stop) if start < stop else (size, size))
        return Box(intervals)

    def runs(self, dim: int, size: int, *, held: bool) -> Runs:
        """The elements of a dim that every shard holds, or those that it owns; by shard, empty runs left out.

        What is held for others, where windows are summed, is held by nobody.
        """
        weave = self.weave(dim)
        if weave is not None:
            is_owned = not held or (weave.window is not None and weave.window.summed)
            return owned_runs(weave, size) if is_owned else held_runs(weave, size)
        start, stop = self.blocks(dim, size)
        shard = np.flatnonzero(start < stop)
        return Runs(shard, start[shard], stop[shard])

    def lengths(self, dim: int, size: int, *, held: bool = True) -> Positions:
        """Per shard of a dim, the number of elements that it holds, or owns."""
        if self.weave(dim) is None:
            start, stop = self.blocks(dim, size)
            return stop - start
        return self.runs(dim, size, held=held).lengths(self.parts[dim])

    def intervals(self, dim: int, size: int, positions: Positions) -> tuple[Positions, Positions]:
        """Where the tiles of many positions lie in one dim: starts and stops; an empty one stops where it starts."""
        start, stop = self.blocks(dim, size)
        index = self.cutting[dim].index_of(positions)
        return start[index], stop[index]

    def blocks(self, dim: int, size: int) -> tuple[Positions, Positions]:
        """Where every block of a dim begins and ends, in the order of the digits that cut it; blocks may be empty.

        Raises:
            ReshardError: `cannot-express` where shards are not one block each.
        """
        if self.weave(dim) is not None:
            raise ReshardError("cannot-express", f"the shards of dim {dim} are not one block each")
        start: Positions = np.zeros(1, dtype=np.int64)
        stop: Positions = np.full(1, size, dtype=np.int64)
        for stage in self.dims[dim]:
            index = np.arange(stage.size, dtype=np.int64)
            block = -((start - stop) // len(index))
            low = np.minimum(start[:, None] + index * block[:, None], stop[:, None])
            stop = np.minimum(low + block[:, None], stop[:, None]).ravel()
            start = low.ravel()
        return start, stop

    def bounds(self, shape: Sequence[int], positions: Positions) -> list[tuple[Positions, Positions]]:
        """Per dim, where the tiles of many positions lie."""
        return [self.intervals(dim, size, positions) for dim, size in enumerate(shape)]

    def ties(self, shape: Sequence[int]) -> list[Tie] | None:
        """Which digit cuts a tensor at which element stride; None where the blocks of a dim are not all of one length.

        A dim may end inside its last block, or before it, where it is cut in one stage.
        """
        if self.weaves:
            return self._woven_ties(shape)
        ties: list[Tie] = []
        for dim, (stages, length) in enumerate(zip(self.dims, shape, strict=True)):
            for stage in stages:
                parts = stage.size
                if len(stages) > 1 and length % parts:
                    return None
                length = -(-length // parts)
                stride = max(length, 1) * parts
                for digit in stage:
                    stride //= digit.size
                    ties.append(Tie(dim, digit, stride))
        return ties

    def _woven_ties(self, shape: Sequence[int]) -> list[Tie] | None:
        """The same with the digits of dims that no device has, which a tie says of no digit of the position."""
        ties: list[Tie] = []
        for dim, length in enumerate(shape):
            weave = self.weave(dim) or Weave(tuple(DealStage(stage.size) for stage in self.dims[dim]))
            counts = weave.local_counts(length)
            if counts is None:
                return None
            devices = iter(self.dims[dim])
            for (shards, deal), count in zip(weave.stages, counts, strict=True):
                if len(counts) > 1 and length % (shards * count):
                    return None
                is_given = deal is not None and deal.kind == "blocks"
                length = deal.numbers[0] if deal is not None and is_given else -(-length // (shards * count))
                stride = max(length, 1) * shards * count
                for digit in (Digit(NOWHERE, count), *(next(devices) if shards > 1 else ())):
                    stride //= digit.size
                    ties += [Tie(dim, digit, stride)] if digit.size > 1 else []
        return ties

    def transposed(self, order: Transposition) -> Layout | None:
        """The layout by the other number of the devices; None where a digit is no product of the transposition's."""
        dims = [[stage.transposed(order) for stage in stages] for stages in self.dims]
        unreduced = self.unreduced.transposed(order)
        known = tuple(tuple(stage for stage in stages if stage is not None) for stages in dims)
        if unreduced is None or list(map(len, known)) != list(map(len, dims)):
            return None
        return Layout(known, unreduced, self.positions, self.weaves)


NOWHERE = 0
"""The stride of a digit of a dim that no device has."""


class Tie(NamedTuple):
    """A digit of the position that is a digit of a dim; or a digit of a dim alone, of stride `NOWHERE`."""

    dim: int
    digit: Digit
    stride: int
    """How far apart in the dim the elements are that one step of the digit leads from and to."""


class Cuts(NamedTuple):
    """The role of a digit that cuts a dim."""

    dim: int
    stride: int
    """The element stride in the dim."""


class Unreduced(NamedTuple):
    """The role of a digit along which values are unreduced."""

    stride: int
    """Its stride in the position: unreduced on both sides it is the same digit."""


Role = Cuts | Unreduced | None
"""What a position digit does in a layout; None where it replicates."""


@dataclass(frozen=True, slots=True)
class Refinement:
    """The coarsest digits that two layouts over the same positions both respect."""

    digits: Digits
    """The digits of the position, major to minor; their product is the number of positions."""
    source_roles: tuple[Role, ...]
    """What each digit does in the source."""
    target_roles: tuple[Role, ...]
    """What each digit does in the target."""
    lengths: tuple[int, ...]
    """Per dim, the length of the shortest block: pieces are boxes of these lengths, cut at the end of the dim."""
    loose: tuple[Cuts, ...] = ()
    """Digits of dims above these lengths that no device has on either side, major to minor per dim."""
    loose_sizes: tuple[int, ...] = ()
    """Their sizes."""


def refine(source: Layout, target: Layout, shape: Sequence[int], bounds: Iterable[int] = ()) -> Refinement | None:
    """The refinement of two layouts; None where two cuts do not divide each other.

    Args:
        source: one layout.
        target: the other, over the same positions.
        shape: the sizes of the tensor.
        bounds: strides of the position at which its digits are cut besides.
    """
    source_ties, target_ties = source.ties(shape), target.ties(shape)
    if source_ties is None or target_ties is None:
        return None
    ties = source_ties + target_ties
    cuts: list[set[int]] = [set() for _ in shape]
    strides = {1, source.positions, *(bound for bound in bounds if bound < source.positions)}
    for stride, size in (*source.unreduced, *target.unreduced):
        strides.update((stride, stride * size))
    for dim, (stride, size), element in ties:
        cuts[dim].update((element, element * size))
        if stride != NOWHERE:
            strides.update((stride, stride * size))
    ties = [tie for tie in ties if tie.digit.stride != NOWHERE]
    count = -1
    while count != (count := len(strides) + sum(map(len, cuts))):
        if not (nest(strides) and all(map(nest, cuts))):
            return None
        for dim, (stride, size), element in ties:
            inside = [cut // stride for cut in strides if stride < cut < stride * size]
            cuts[dim].update([element * ratio for ratio in inside])
            inside = [cut // element for cut in cuts[dim] if element < cut < element * size]
            strides.update([stride * ratio for ratio in inside])
    digits = Digits.between(strides)
    source_roles = _roles(digits, source_ties, source.unreduced)
    target_roles = _roles(digits, target_ties, target.unreduced)
    lengths = tuple(min(ends, default=size) for ends, size in zip(cuts, shape, strict=True))
    if not source.weaves and not target.weaves:
        return Refinement(digits, source_roles, target_roles, lengths)
    loose = {Cuts(dim, stride): size for dim, ends in enumerate(cuts) for stride, size in Digits.between(ends)}
    loose = {cut: size for cut, size in loose.items() if cut not in {*source_roles, *target_roles}}
    return Refinement(digits, source_roles, target_roles, lengths, tuple(loose), tuple(loose.values()))


def _roles(digits: Digits, ties: Sequence[Tie], unreduced: Digits) -> tuple[Role, ...]:
    strides = [stride for stride, _ in digits]
    roles: dict[int, Role] = {}
    for dim, (low, size), element in ties:
        if low == NOWHERE:
            continue
        for stride in strides:
            if low <= stride < low * size:
                roles[stride] = Cuts(dim, element * (stride // low))
    for low, size in unreduced:
        roles.update({stride: Unreduced(stride) for stride in strides if low <= stride < low * size})
    return tuple([roles.get(stride) for stride in strides])
