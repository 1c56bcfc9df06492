"""A sharding with the names taken away: which digits of a device's position cut which dim.

A dim is cut in *stages*: each cuts what the one before left into blocks of the ceiling of length over parts,
by the digits of the stage.
Shardy and XLA cut a dim in one stage, torch in one stage per axis; both are the same where all divides.

>>> from reshard.digits import Digit, Digits
>>> x, y = Digits([Digit(4, 2)]), Digits([Digit(1, 4)])
>>> rows = Layout(dims=((x,), ()), unreduced=Digits(), positions=8)
>>> rows.local_shape((8, 8)), rows.box(6, (8, 8)), rows.free
((4, 8), Box([(4, 8), (0, 8)]), Digits([Digit(stride=1, size=4)]))
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from reshard.box import Box
from reshard.deal import DealStage, Runs, Weave, held_runs, owned_runs, stored_runs
from reshard.digits import Digit, Digits, Positions, Transposition
from reshard.errors import ReshardError
from reshard.tile import Span, Tile

NOWHERE = 0
"""The stride of a digit of a dim that no device has."""
KEPT = 16
"""Of how many shapes a layout keeps which digit cuts which dim."""


class Tie(NamedTuple):
    """A digit of the position that is a digit of a dim; or a digit of a dim alone, of stride `NOWHERE`."""

    dim: int
    digit: Digit
    stride: int
    """How far apart in the dim the elements are that one step of the digit leads from and to."""


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
        return bool(self.weaves) and any(weave is not None and weave.window is not None for weave in self.weaves)

    @property
    def is_summed(self) -> bool:
        """Whether values are the sums of what windows hold."""
        return self.has_windows and any(
            weave is not None and weave.window is not None and weave.window.summed for weave in self.weaves
        )

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
        return tuple([-(-size // parts) for size, parts in zip(shape, self.parts, strict=True)])

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

    def intervals(self, dim: int, size: int, positions: Positions | int) -> tuple[Positions, Positions]:
        """Where the tiles of many positions lie in one dim: starts and stops; an empty one stops where it starts.

        Of positions or, given a number, of so many from 0.
        """
        start, stop = self.blocks(dim, size)
        cutting = self.cutting[dim]
        if len(start) == 1:
            shape = (positions,) if isinstance(positions, int) else positions.shape
            return np.broadcast_to(start, shape), np.broadcast_to(stop, shape)
        index = cutting.index_of_all(positions) if isinstance(positions, int) else cutting.index_of(positions)
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

    def bounds(self, shape: Sequence[int], positions: Positions | int) -> list[tuple[Positions, Positions]]:
        """Per dim, where the tiles of many positions lie."""
        return [self.intervals(dim, size, positions) for dim, size in enumerate(shape)]

    def ties(self, shape: Sequence[int]) -> list[Tie] | None:
        """Which digit cuts a tensor at which element stride; None where the blocks of a dim are not all of one length.

        A dim may end inside its last block, or before it, where it is cut in one stage.
        """
        key, known = tuple(shape), self._ties_of
        try:
            return known[key]
        except KeyError:
            ties = self._woven_ties(shape) if self.weaves else self._plain_ties(shape)
            if len(known) >= KEPT:
                known.clear()
            known[key] = ties
            return ties

    @cached_property
    def _ties_of(self) -> dict[tuple[int, ...], list[Tie] | None]:
        """By shape, the last that were asked for: each step from or to a tiling asks."""
        return {}

    def _plain_ties(self, shape: Sequence[int]) -> list[Tie] | None:
        """The same where nothing is dealt."""
        ties: list[Tie] = []
        for dim, (stages, length) in enumerate(zip(self.dims, shape, strict=True)):
            for stage in stages:
                parts = self.parts[dim] if len(stages) == 1 else stage.size
                if len(stages) > 1 and length % parts:
                    return None
                length = -(-length // parts)
                stride = max(length, 1)
                for digit in reversed(stage):
                    ties.append(Tie(dim, digit, stride))
                    stride *= digit.size
        return ties

    def _woven_ties(self, shape: Sequence[int]) -> list[Tie] | None:
        """The same where blocks are dealt, with digits of dims that no device has: a tie of no digit of a position."""
        ties: list[Tie] = []
        for dim, length in enumerate(shape):
            weave = self.weave(dim) or Weave(tuple(DealStage(stage.size) for stage in self.dims[dim]))
            blocks = weave.local_blocks(length)
            if blocks is None:
                return None
            devices = iter(self.dims[dim])
            for (shards, _), (count, block) in zip(weave.stages, blocks, strict=True):
                stride = max(block, 1) * shards * count
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
