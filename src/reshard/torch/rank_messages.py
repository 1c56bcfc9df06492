"""What goes between ranks in an exchange, and where it lies in their tiles and buffers.

Per peer there is one message: where it is a single piece that lies contiguous in the tile, the memory of the tile
itself is sent or received into; else its pieces are packed side by side into a buffer.
A packed piece that several peers ask for is packed once.
Types that a backend may refuse travel as bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from reshard.box import Box
from reshard.tile import Tile

CARRIED = frozenset(
    [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
"""Element types that every backend sends; others travel as bytes."""


def as_carried(memory: torch.Tensor) -> torch.Tensor:
    """Contiguous memory as a backend takes it: as bytes where it may refuse the type."""
    # Not by `view(-1)`, which leaves a single element whatever stride it has, and that has no bytes then.
    return memory if memory.dtype in CARRIED else memory.as_strided((memory.numel(),), (1,)).view(torch.uint8)


class Watch(NamedTuple):
    """What is told of the pieces of an exchange, in turn."""

    before_read: Callable[[tuple[slice, ...]], None] | None = None
    """Before a piece of the source tile is sent or copied."""
    after_write: Callable[[torch.Tensor, tuple[slice, ...]], None] | None = None
    """With the target tile, after a piece is in its place; partial values may be added to it later."""


UNWATCHED = Watch()


@dataclass(frozen=True, slots=True)
class TilePart:
    """A piece of an exchange, in a tile."""

    box: Box
    """Where it lies in the tensor."""
    index: tuple[slice, ...]
    """Where it lies in the tile; () for the whole tile."""
    shape: tuple[int, ...]
    size: int
    """The number of elements."""
    passes: bool = False
    """Whether it comes only to be handed on, and has no place in the tile."""
    is_kept: bool = False
    """Whether it lies not in the tile before but in the plan's first one, which the rank keeps."""

    @classmethod
    def of(cls, box: Box, tile: Box | Tile) -> TilePart:
        """The part of a tile that lies in a box of the tensor."""
        return cls(box, () if box == tile else tile.places(box)[0][0], box.shape, box.size)

    @classmethod
    def passing(cls, box: Box) -> TilePart:
        """What only passes."""
        return cls(box, (), box.shape, box.size, passes=True)

    def read(self, tile: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """What stands there, in the tile before or the first one."""
        return self.within(kept if self.is_kept else tile)

    def within(self, tile: torch.Tensor) -> torch.Tensor:
        """Its place in a tile."""
        return tile[self.index] if self.index else tile

    def packed_at(self, begin: int, buffer: torch.Tensor) -> torch.Tensor:
        """Its place in a flat buffer."""
        return buffer[begin : begin + self.size].view(self.shape)

    def is_contiguous_in(self, shape: tuple[int, ...]) -> bool:
        """Whether it lies in one run of a contiguous tile: at most one dim is cut inside, none to its right."""
        lengths = itertools.dropwhile(lambda pair: pair[0] == 1, zip(self.shape, shape, strict=True))
        return all(length == size for length, size in itertools.islice(lengths, 1, None))


class Message(NamedTuple):
    """What goes to one peer, or comes from it."""

    peer: int
    """A global rank."""
    parts: tuple[TilePart, ...]
    size: int
    """The number of elements of all parts."""
    start: int | None
    """Where it begins in the buffer, in elements; None where it travels straight from or into the tile."""
    is_first: bool = True
    """Whether it is the first of those that share a place in the buffer."""

    def packed(self) -> Iterator[tuple[int, TilePart]]:
        """Where each part of the tile begins in the message's place in the buffer; nothing where there is no buffer."""
        begin = 0
        for part in () if self.start is None else self.parts:
            if not part.passes:
                yield begin, part
            begin += part.size

    def place_in(self, buffer: torch.Tensor) -> torch.Tensor:
        """Its place in the buffer, if it has one."""
        return buffer if self.start is None else buffer[self.start : self.start + self.size]

    def memory(self, tile: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """The contiguous memory that it travels from or into, in its place in a buffer or in the tile."""
        return as_carried(self.parts[0].within(tile) if self.start is None else place)

    def pack(self, tile: torch.Tensor, kept: torch.Tensor, buffer: torch.Tensor, watch: Watch) -> torch.Tensor:
        """The same, with the parts of both tiles in their places; what is read is told before."""
        if watch.before_read is not None:
            for part in self.parts:
                watch.before_read(part.index)
        place = self.place_in(buffer)
        for begin, part in self.packed() if self.is_first else ():
            part.packed_at(begin, place).copy_(part.read(tile, kept))
        return self.memory(tile, place)


class MessageRun(NamedTuple):
    """Some parts of a message of the hop before, one after the other."""

    number: int
    """Of the message, among those received in that hop."""
    parts: range
    """Which parts of it."""
    begin: int
    """Where they begin in it, in elements."""
    size: int
    """The number of elements."""

    def memory(self, messages: Sequence[Message], places: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        """The contiguous memory of these parts, where they were received."""
        message, place = messages[self.number], places[self.number]
        return message.memory(out, place if message.start is None else place[self.begin : self.begin + self.size])


class HandedMessage(NamedTuple):
    """What came in the hop before and goes on to a neighbour: along one ring the front of one message."""

    peer: int
    """A global rank."""
    runs: tuple[MessageRun, ...]

    def memory(self, messages: Sequence[Message], places: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        """The contiguous memory of it all; fresh where there are several runs."""
        memories = [run.memory(messages, places, out) for run in self.runs]
        return memories[0] if len(memories) == 1 else torch.cat([memory.reshape(-1) for memory in memories])


class Hop(NamedTuple):
    """What a rank sends and receives once it has all of the hop before."""

    sends: tuple[HandedMessage, ...]
    receives: tuple[Message, ...]


def messages_to(
    parts_of: Mapping[int, Sequence[TilePart]], shape: tuple[int, ...] | None, *, shared: bool = True
) -> tuple[tuple[Message, ...], int]:
    """The messages of some parts per peer, and the size of the buffer for those that are packed.

    Args:
        parts_of: per peer, in the order in which they are sent.
        shape: of a contiguous tile, whose own memory is used where that can be; None where it cannot.
        shared: whether equal messages may have one place in the buffer.
    """
    messages, end = [], 0
    starts: dict[tuple[Box, ...], int] = {}
    for peer, parts in parts_of.items():
        boxes, size = tuple(part.box for part in parts), sum(part.size for part in parts)
        is_straight = (
            shape is not None
            and len(parts) == 1
            and not (parts[0].passes or parts[0].is_kept)
            and parts[0].is_contiguous_in(shape)
        )
        is_first = is_straight or not shared or boxes not in starts
        if is_first and not is_straight:
            starts[boxes] = end
            end += size
        messages.append(Message(peer, tuple(parts), size, None if is_straight else starts[boxes], is_first))
    return tuple(messages), end


def messages_by_hop(
    parts_of: Sequence[Mapping[int, Sequence[TilePart]]], shape: tuple[int, ...] | None
) -> tuple[list[tuple[Message, ...]], int]:
    """The messages that come in each hop, as `messages_to` has them, and the size of a buffer for every second hop."""
    messages, sizes = zip(*(messages_to(parts, shape, shared=False) for parts in parts_of), strict=True)
    begins = 0, max(sizes[::2])
    hops = [
        tuple(
            message if message.start is None else message._replace(start=message.start + begins[number % 2])
            for message in of_hop
        )
        for number, of_hop in enumerate(messages)
    ]
    return hops, begins[1] + max(sizes[1::2], default=0)


def parts_by_peer(messages: Iterable[Message]) -> dict[int, Sequence[TilePart]]:
    """The parts of each, by peer."""
    return {message.peer: message.parts for message in messages}
