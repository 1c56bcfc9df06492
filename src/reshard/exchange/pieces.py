"""Who sends what to whom: the one interface to an exchange, however its senders were found.

A `Piece` is a box that one device takes from another, or from itself.
An `Exchange` tells the pieces that come into a device and those that go out of it from that device's own
coordinates; nothing here is a table of all pairs of devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.deal import Runs
from reshard.digits import NO_DIGITS, SAMPLED, Digits, Positions
from reshard.errors import ReshardError
from reshard.layout import Layout
from reshard.mesh import ENUMERABLE
from reshard.tiling import Tiling


class Piece(NamedTuple):
    """A box of the tensor that the receiver takes from the sender; the same device where nothing travels."""

    sender: int
    receiver: int
    box: Box
    round: int
    """Which round moves it, where the exchange is in rounds; else 0."""


class PieceTable(NamedTuple):
    """Every piece of an exchange in columns, those that stay on their device too; empty ones are left out.

    The order of the rows is the same in every process.
    """

    senders: Positions
    """Positions of the source."""
    receivers: Positions
    """Positions of the target."""
    starts: Positions
    """Per dim and piece, where its box starts."""
    stops: Positions
    rounds: Positions
    """Which round moves it, as of `Piece`."""

    @property
    def elements(self) -> Positions:
        """The number of elements of each piece."""
        sizes: Positions = (self.stops - self.starts).prod(axis=0)
        return sizes

    def rows(self, chosen: NDArray[np.bool_]) -> PieceTable:
        """Some of the pieces, as flags say."""
        return PieceTable(*(column[..., chosen] for column in self))

    @classmethod
    def joined(cls, tables: Iterable[PieceTable]) -> PieceTable:
        """The pieces of several tables, at least one."""
        return cls(*(np.concatenate(columns, axis=-1) for columns in zip(*tables, strict=True)))


def each_pair(senders: Positions, receivers: Positions, elements: Positions) -> tuple[Positions, Positions, Positions]:
    """What goes from position to position, once for each pair.

    >>> [column.tolist() for column in each_pair(*np.array([[1, 0, 1], [2, 2, 2], [5, 6, 7]]))]
    [[0, 1], [2, 2], [6, 12]]
    """
    count = int(receivers.max(initial=0)) + 1
    pairs, numbers = np.unique(senders * count + receivers, return_inverse=True)
    together = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(together, numbers, elements)
    return *np.divmod(pairs, count), together


def most_pieces(*ends: Positions) -> int:
    """The largest number of pieces that one device sends or receives, of their senders and receivers."""
    return max(int(np.bincount(end).max(initial=0)) for end in ends)


class ClassDigits(NamedTuple):
    """The digits along which values stay unreduced: where they are equal, the values are of one class."""

    source: Digits = NO_DIGITS
    target: Digits = NO_DIGITS


ONE_CLASS = ClassDigits()


def overlap_elements(source: Tiling, target: Tiling, classes: ClassDigits = ONE_CLASS) -> Positions:
    """Per position of the target, how many elements of the tile there its device holds in the source.

    Args:
        source: what the devices have.
        target: what they need.
        classes: what is of another class is not held.
    """
    places = source.mesh.positions_of(target.mesh.device_array)
    same_order = source.same_order_as(target)
    shared: Positions = np.ones(len(places), dtype=np.int64)
    if not same_order:
        alike = classes.source.index_of(places) == classes.target.index_of(target.mesh.positions)
        shared[(places < 0) | ~alike] = 0
    if source.layout.weaves or target.layout.weaves:
        for dim, size in enumerate(target.shape):
            numbers = (
                source.layout.cutting[dim].index_of(np.maximum(places, 0)),
                target.layout.cutting[dim].index_of(target.mesh.positions),
            )
            shared *= block_overlaps(source.layout, target.layout, dim, size).shared(*numbers)
        return shared
    for dim, ((low, high), (start, stop)) in enumerate(zip(source.all_bounds, target.all_bounds, strict=True)):
        if source.layout.parts[dim] == target.layout.parts[dim] == 1:
            shared *= target.shape[dim]
            continue
        if not same_order:
            low, high = low[places], high[places]
        shared *= _common_lengths((low, high), (start, stop))
    return shared


def some_missing(source: Tiling, target: Tiling) -> Positions:
    """Per position of the target how many elements of its tile the device there lacks; of many, some stand for all.

    The busiest of these lacks no more than that of all.
    """
    if not source.same_order_as(target) or source.layout.weaves or target.layout.weaves:
        return target.all_elements - overlap_elements(source, target)
    needed = shared = np.ones(1, dtype=np.int64)
    for before, after in zip(source.some_bounds, target.some_bounds, strict=True):
        needed = needed * (after[1] - after[0])
        shared = shared * _common_lengths(before, after)
    return needed - shared


def _common_lengths(before: tuple[Positions, Positions], after: tuple[Positions, Positions]) -> Positions:
    """Per position, how much two intervals have in common, each given by starts and stops."""
    lengths: Positions = np.maximum(np.minimum(before[1], after[1]) - np.maximum(before[0], after[0]), 0)
    return lengths


class Overlaps(NamedTuple):
    """The intervals of a dim in which a run that a source shard owns meets one that a target shard holds, in order."""

    source: Positions
    """The number of the source shard."""
    target: Positions
    """The number of the target shard."""
    start: Positions
    stop: Positions
    is_sorted: bool = True
    """Whether both numbers only grow along it."""

    def part(self, source: slice, target: slice) -> Overlaps:
        """Those of a run of source shards and a run of target shards; a slice without ends is all."""
        if not self.is_sorted:
            inside = np.ones(len(self.start), dtype=np.bool_)
            for numbers, run in ((self.source, source), (self.target, target)):
                if run.start is not None:
                    inside &= (run.start <= numbers) & (numbers < run.stop)
            return self._at(inside)
        low, high = 0, len(self.start)
        for numbers, run in ((self.source, source), (self.target, target)):
            if run.start is not None:
                first, stop = numbers.searchsorted((run.start, run.stop)).tolist()
                low, high = max(low, first), min(high, stop)
        return self._at(slice(low, max(low, high)))

    def _at(self, rows: slice | NDArray[Any]) -> Overlaps:
        return Overlaps(self.source[rows], self.target[rows], self.start[rows], self.stop[rows], self.is_sorted)

    def shared(self, source: Positions, target: Positions) -> Positions:
        """For many pairs of shards, how many elements both have."""
        if not len(self.start):
            return np.zeros_like(source)
        count = max(int(self.target.max()), int(target.max(initial=0))) + 1
        keys, row = np.unique(self.source * count + self.target, return_inverse=True)
        elements = np.zeros(len(keys), dtype=np.int64)
        np.add.at(elements, row.reshape(-1), self.stop - self.start)
        asked = source * count + target
        place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
        return np.where(keys[place] == asked, elements[place], 0)


def block_overlaps(source: Layout, target: Layout, dim: int, size: int) -> Overlaps:
    """Where what source shards own meets what target shards hold in a dim.

    Raises:
        ReshardError: `too-large`.
    """
    if source.weave(dim) is None and target.weave(dim) is None:
        edges = [layout.blocks(dim, size) for layout in (source, target)]
        cuts = np.unique(np.concatenate([[0, size], *edges[0], *edges[1]]))
        start, stop = cuts[:-1], cuts[1:]
        first, second = (np.searchsorted(stops, start, "right") for _, stops in edges)
        return Overlaps(first, second, start, stop)
    owned, held = source.runs(dim, size, held=False), target.runs(dim, size, held=True)
    order = np.argsort(owned.start, kind="stable")
    owned = Runs(*(column[order] for column in owned))
    first = np.searchsorted(owned.stop, held.start, "right")
    count = np.maximum(np.searchsorted(owned.start, held.stop, "left") - first, 0)
    if int(count.sum()) > ENUMERABLE:
        raise ReshardError("too-large", f"{int(count.sum())} overlaps in dim {dim} are too many to list one by one")
    row = np.repeat(np.arange(len(count)), count)
    number = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    start, stop = np.maximum(owned.start[number], held.start[row]), np.minimum(owned.stop[number], held.stop[row])
    order = np.lexsort((held.shard[row], start))
    return Overlaps(owned.shard[number], held.shard[row], start, stop, is_sorted=False)._at(order)


class Exchange(ABC):
    """Every device of the target gets its tile from devices of the source.

    Where the source is unreduced along digits that the target is not, pieces of one box arrive from every class of
    values and are combined.
    """

    source: Tiling
    target: Tiling
    class_digits: ClassDigits = ONE_CLASS
    """The digits along which values stay unreduced, where no other digits of the exchange say so."""
    kept: Tiling | None = None
    """Of tiles that devices have besides those of the source, where pieces may be of these."""

    @abstractmethod
    def incoming(self, device: int) -> list[Piece]:
        """The pieces that make up the device's target tile, its own included; empty boxes are left out.

        Raises:
            ReshardError: `unknown-device` where the device is neither in the source nor in the target.
        """

    @abstractmethod
    def outgoing(self, device: int) -> list[Piece]:
        """The pieces that the device's source tile gives, to itself included; empty boxes are left out.

        Raises:
            ReshardError: `unknown-device` where the device is neither in the source nor in the target.
        """

    def taken(self, device: int) -> list[Piece]:
        """All pieces that come to a device, those too that it only hands on, and what it keeps.

        Those from one device are in the order in which `outgoing` of that one has them.

        Raises:
            ReshardError: as `incoming`.
        """
        return self.incoming(device)

    def passing(self, device: int) -> list[Piece]:
        """The pieces that come to a device to be handed on alone: its target tile lacks none of them.

        Raises:
            ReshardError: as `incoming`.
        """
        self._check_device(device)
        return []

    @property
    def hops(self) -> int:
        """How often pieces are handed on, and once more: where it is more than 1, `Piece.round` counts hops from 1.

        What is sent in a later hop is a piece that its sender received in the hop before.
        Of what `outgoing` sends to one device in a hop, what that hands on comes first, in the order in which it does.
        """
        return 1

    def by_hop(self, pieces: Iterable[Piece]) -> list[list[Piece]]:
        """The pieces of each hop, in their order; what stays on its device is with those of the first."""
        hops: list[list[Piece]] = [[] for _ in range(self.hops)]
        for piece in pieces:
            hops[max(piece.round, 1) - 1 if len(hops) > 1 else 0].append(piece)
        return hops

    def holds(self, device: int, box: Box) -> bool:
        """Whether a box lies in a device's source tile."""
        parts = [held.intersect(box) for held in self.source.tile(device).boxes()]
        return sum(part.size for part in parts if not part.is_empty) == box.size

    def is_kept(self, device: int, box: Box) -> bool:
        """Whether what a device has of a box is not in its source tile, but in the one that it kept."""
        return self.kept is not None and not self.holds(device, box)

    def holder_of(self, piece: Piece) -> int:
        """The device whose source tile has a piece: its sender, unless that only hands it on."""
        return piece.sender

    @cached_property
    def is_even(self) -> bool:
        """Whether all tiles of the source are of one shape, and all of the target."""
        return self.source.is_even() and self.target.is_even()

    @property
    @abstractmethod
    def rounds(self) -> int:
        """The number of rounds, in each of which a device sends and receives at most one piece."""

    @property
    @abstractmethod
    def piece_shape(self) -> tuple[int, ...]:
        """Per dim the length of the longest piece."""

    @property
    def largest_piece(self) -> int:
        """The number of elements of the largest piece, or a little more."""
        return prod(self.piece_shape)

    @abstractmethod
    def all_received(self) -> Positions:
        """Per position of the target, the number of elements that its device receives from others."""

    @abstractmethod
    def traffic(self) -> tuple[Positions, Positions, Positions]:
        """All that goes from one device to another: senders, receivers (both as devices), elements.

        Once for each pair of devices; pieces that stay on their device and empty ones are left out; the order is any.

        Raises:
            ReshardError: `too-large` where the pieces are too many to list.
        """

    def table(self) -> PieceTable:
        """All pieces at once.

        Raises:
            ReshardError: `too-large` where the pieces are too many to list.
        """
        pieces = [piece for device in self.target.mesh.devices for piece in self.incoming(device)]
        ends = np.array([piece.box for piece in pieces], dtype=np.int64).reshape(-1, len(self.target.shape), 2)
        starts, stops = ends.transpose(2, 1, 0)
        return PieceTable(
            self.source.mesh.positions_of(np.array([piece.sender for piece in pieces], dtype=np.int64)),
            self.target.mesh.positions_of(np.array([piece.receiver for piece in pieces], dtype=np.int64)),
            starts,
            stops,
            np.array([piece.round for piece in pieces], dtype=np.int64),
        )

    @cached_property
    def all_held(self) -> Positions:
        """Per position of the target, the number of elements of its tile that its device holds in the source."""
        return overlap_elements(self.source, self.target, self.class_digits)

    def all_missing(self) -> Positions:
        """Per position of the target, the number of elements that its device needs and does not hold."""
        return self.target.all_elements - self.all_held

    @property
    def missing(self) -> int:
        """The largest number of elements that a device needs and does not hold: the lower bound of a move."""
        return int(self.all_missing().max())

    @property
    def total_missing(self) -> int:
        """The number of elements that all devices together need and do not hold."""
        return int(self.all_missing().sum())

    @property
    def received(self) -> int:
        """The largest number of elements that a device receives from others."""
        return int(self.all_received().max())

    @property
    def total_received(self) -> int:
        """The number of elements that all devices together receive from others."""
        return int(self.all_received().sum())

    @property
    def is_without_messages(self) -> bool:
        """Whether no device receives anything from others."""
        if self.target.mesh.size > SAMPLED and some_missing(self.source, self.target).any():
            return False
        return not self.total_received

    def received_on(self, device: int) -> int:
        """The number of elements that a device receives from others."""
        return sum(piece.box.size for piece in self.taken(device) if piece.sender != device)

    def _check_device(self, device: int) -> None:
        if device not in self.source.mesh and device not in self.target.mesh:
            raise ReshardError("unknown-device", f"device {device} is in neither mesh of the exchange")
