"""Who sends what to whom: the one interface to an exchange, however its senders were found.

A `Piece` is a box that one device takes from another, or from itself.
An `Exchange` tells the pieces that come into a device and those that go out of it from that device's own
coordinates; nothing here is a table of all pairs of devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from reshard.box import Box
from reshard.digits import NO_DIGITS, Digits, Layout, Positions
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.sharding import Sharding, checked_shape


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

    @property
    def elements(self) -> Positions:
        """The number of elements of each piece."""
        sizes: Positions = (self.stops - self.starts).prod(axis=0)
        return sizes


@dataclass(frozen=True)
class Tiling:
    """A tensor of one shape, laid over the devices of a mesh."""

    mesh: Mesh
    layout: Layout
    shape: tuple[int, ...]

    @classmethod
    def of(cls, sharding: Sharding, shape: Sequence[int]) -> Tiling:
        """The tiling of a tensor of this shape."""
        return cls(sharding.mesh, sharding.layout_for(shape), checked_shape(shape))

    def box(self, device: int) -> Box:
        """Where the tile of a device lies."""
        return self.layout.box(self.mesh.position_of(device), self.shape)

    def elements(self, device: int) -> int:
        """The number of elements of a device's tile; 0 where it has none."""
        return self.box(device).size if device in self.mesh else 0

    def same_order_as(self, other: Tiling) -> bool:
        """Whether both name the same devices in the same order."""
        return self.mesh.same_order_as(other.mesh)

    @property
    def classes(self) -> int:
        """The number of classes of unreduced values: how many are combined into one where nothing is unreduced."""
        return self.layout.unreduced.size

    def is_even(self) -> bool:
        """Whether all tiles have one shape."""
        return all(size % self.layout.shards(dim) == 0 for dim, size in enumerate(self.shape))

    @cached_property
    def all_bounds(self) -> list[tuple[Positions, Positions]]:
        """Per dim, where the tile of each position starts and stops."""
        return self.layout.bounds(self.shape, self.mesh.positions)

    @cached_property
    def all_elements(self) -> Positions:
        """The number of elements of the tile at each position."""
        sizes = np.ones_like(self.mesh.positions)
        for start, stop in self.all_bounds:
            sizes *= stop - start
        return sizes


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
    for (low, high), (start, stop) in zip(source.all_bounds, target.all_bounds, strict=True):
        if not same_order:
            low, high = low[places], high[places]
        shared *= np.maximum(np.minimum(stop, high) - np.maximum(start, low), 0)
    return shared


class Exchange(ABC):
    """Every device of the target gets its tile from devices of the source.

    Where the source is unreduced along digits that the target is not, pieces of one box arrive from every class of
    values and are combined.
    """

    source: Tiling
    target: Tiling
    class_digits: ClassDigits = ONE_CLASS
    """The digits along which values stay unreduced, where no other digits of the exchange say so."""

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

    @property
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

        Pieces that stay on their device and empty ones are left out; the order is any.

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
        return PieceTable(
            self.source.mesh.positions_of(np.array([piece.sender for piece in pieces], dtype=np.int64)),
            self.target.mesh.positions_of(np.array([piece.receiver for piece in pieces], dtype=np.int64)),
            *ends.transpose(2, 1, 0),
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

    def received_on(self, device: int) -> int:
        """The number of elements that a device receives from others."""
        return sum(piece.box.size for piece in self.incoming(device) if piece.sender != device)

    def _check_device(self, device: int) -> None:
        if device not in self.source.mesh and device not in self.target.mesh:
            raise ReshardError("unknown-device", f"device {device} is in neither mesh of the exchange")
