"""One device's part of a plan for a model: its messages in the global order, and what each consists of.

Per bucket and peer there is one message, of pieces in the order of tensors and of the rows of their tables, which both
ends derive alike; so no header is sent.
The pieces are columns of numbers: a model has more of them than one would make objects of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from reshard.box import Box
from reshard.digits import Positions


class Pieces(NamedTuple):
    """Pieces in columns."""

    tensor: Positions
    """The number of the tensor."""
    row: Positions
    """The row of its table of pieces."""
    peer: Positions
    """The device that it goes to or comes from."""
    nbytes: Positions


class PieceBoxes(Protocol):
    """What knows the boxes of pieces: a plan."""

    def piece_box(self, tensor: int, row: int, part: int | None) -> Box:
        """The box of a part of a piece; of all of it where no part is named."""
        ...


class PeerMessage(NamedTuple):
    """What goes to one peer in one bucket, or comes from it."""

    bucket: int
    peer: int
    start: int
    """The first of its pieces, by their number in the columns."""
    stop: int


class Traffic(NamedTuple):
    """All that a device sends, or all that it receives, in the global order."""

    bucket: Positions
    peer: Positions
    tensor: Positions
    row: Positions
    part: Positions
    boxes: PieceBoxes

    @classmethod
    def of(cls, found: Sequence[Pieces], first: Positions, parts: Positions, boxes: PieceBoxes) -> Traffic:
        """The pieces in order, those of tensors that are cut as their parts."""
        columns = (
            [np.concatenate(column) for column in zip(*found, strict=True)] if found else [np.zeros(0, np.int64)] * 4
        )
        tensor, row, peer, _ = columns
        counts = parts[tensor]
        if (counts > 1).any():
            tensor, row, peer = (np.repeat(column, counts) for column in (tensor, row, peer))
            part = np.arange(len(tensor)) - np.repeat(np.cumsum(counts) - counts, counts)
        else:
            part = np.zeros_like(tensor)
        bucket = first[tensor] + part
        order = np.lexsort((row, part, tensor, peer, bucket))
        return cls(bucket[order], peer[order], tensor[order], row[order], part[order], boxes)

    def messages(self) -> list[PeerMessage]:
        """One per bucket and peer; those of a bucket by the number of the peer."""
        if not len(self.bucket):
            return []
        changes = (np.diff(self.bucket) != 0) | (np.diff(self.peer) != 0)
        starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
        stops = [*starts[1:], len(self.bucket)]
        return [
            PeerMessage(int(self.bucket[start]), int(self.peer[start]), start, stop)
            for start, stop in zip(starts, stops, strict=True)
        ]

    def pieces(self, message: PeerMessage) -> list[tuple[int, Box]]:
        """The tensors and boxes of a message, in order; empty parts are left out."""
        columns = (column[message.start : message.stop].tolist() for column in (self.tensor, self.row, self.part))
        pieces = ((tensor, self.boxes.piece_box(tensor, row, part)) for tensor, row, part in zip(*columns, strict=True))
        return [(tensor, box) for tensor, box in pieces if not box.is_empty]


class DevicePart(NamedTuple):
    """What a device sends, receives and keeps."""

    device: int
    sends: Traffic
    receives: Traffic
    keeps: list[tuple[Positions, int]]
    """Tensors, and the row of a piece of each that the device has itself."""

    @classmethod
    def of(
        cls,
        device: int,
        sends: Sequence[Pieces],
        receives: Sequence[Pieces],
        keeps: list[tuple[Positions, int]],
        first: Positions,
        parts: Positions,
        boxes: PieceBoxes,
    ) -> DevicePart:
        """The part of a device from what it found in the tables."""
        outgoing, incoming = (Traffic.of(found, first, parts, boxes) for found in (sends, receives))
        return cls(device, outgoing, incoming, keeps)

    def kept(self) -> list[tuple[int, Box]]:
        """The tensors and boxes that the device copies from its own tiles."""
        result = []
        for members, row in self.keeps:
            box = self.receives.boxes.piece_box(int(members[0]), row, None)
            result += [(tensor, box) for tensor in members.tolist()]
        return result
