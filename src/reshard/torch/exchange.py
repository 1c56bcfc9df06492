"""One rank's part of an exchange: what it sends, what it receives, what it copies itself.

A `LocalExchange` is made once from a move of a plan, by the rank's own coordinates, and run many times.
Per peer there is one message: where it is a single piece that lies contiguous in the tile, the memory of the tile
itself is sent or received into; else its pieces are packed side by side into a buffer.
A packed piece that several peers ask for is packed once.
Everything is packed before anything is posted: where packing fails, no peer is left with half of an exchange.
While messages travel, the rank copies what it has itself.

Partial values are combined on arrival, in the order of their senders; every element is combined on one rank, so
the replicas that are gathered from there are equal bit for bit.
Where values become partial nothing travels: the rank copies what it holds of them among identities.

Whoever wants to work while messages travel is told of each piece, by a `Watch`.
Types that a backend may refuse travel as bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from reshard.box import Box
from reshard.dtypes import DType, combining
from reshard.steps import Move
from reshard.tile import Tile
from reshard.torch.carriers import Carrier, JointCarrier, Parcel

Finish = Callable[[], torch.Tensor]
"""Waits for messages that are under way, and gives the target tile."""
Post = Callable[[], Finish]
"""Sends messages that are packed on their way."""

CARRIED = frozenset(
    [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
"""Element types that every backend sends; others travel as bytes."""

COMBINE: dict[str, Callable[..., Any]] = combining(torch)
"""What combines two partial values, by reduction; avg divides once all are added."""


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

    @classmethod
    def of(cls, box: Box, tile: Box | Tile) -> TilePart:
        """The part of a tile that lies in a box of the tensor."""
        return cls(box, () if box == tile else tile.places(box)[0][0], box.shape, box.size)

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
        """Where each part begins in the message's place in the buffer; nothing where there is no buffer."""
        begin = 0
        for part in () if self.start is None else self.parts:
            yield begin, part
            begin += part.size

    def place_in(self, buffer: torch.Tensor) -> torch.Tensor:
        """Its place in the buffer, if it has one."""
        return buffer if self.start is None else buffer[self.start : self.start + self.size]

    def memory(self, tile: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """The contiguous memory that it travels from or into, in its place in a buffer or in the tile."""
        return as_carried(tile[self.parts[0].index] if self.start is None else place)

    def pack(self, tile: torch.Tensor, buffer: torch.Tensor, watch: Watch) -> torch.Tensor:
        """The same, with the parts of the tile in their places; what is read is told before."""
        if watch.before_read is not None:
            for part in self.parts:
                watch.before_read(part.index)
        place = self.place_in(buffer)
        for begin, part in self.packed() if self.is_first else ():
            _inside(place, begin, part).copy_(tile[part.index])
        return self.memory(tile, place)


@dataclass(frozen=True)
class LocalExchange:
    """One exchange, as one rank takes part in it."""

    source_shape: tuple[int, ...] | None
    """Of the rank's tile before; None where it has none."""
    target_shape: tuple[int, ...] | None
    """Of the rank's tile after; None where it gets none."""
    sends: tuple[Message, ...] = ()
    receives: tuple[Message, ...] = ()
    copies: tuple[tuple[TilePart, TilePart], ...] = ()
    """What the rank has itself: where it goes in the target tile, and where it is in the source tile."""
    reduction: str | None = None
    classes: int = 1
    """The number of partial values that become one."""
    send_size: int = 0
    """Of the send buffer, in elements."""
    receive_size: int = 0
    """Of the receive buffer, in elements."""
    fill: Any = None
    """What the target tile holds where nothing is copied; None where all of it comes from somewhere."""
    carrier: Carrier | JointCarrier | None = None
    """What brings the messages to others; None where there are none."""

    def pack(
        self,
        tile: torch.Tensor,
        out: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        watch: Watch = UNWATCHED,
    ) -> Post:
        """Pack the messages; what is given back posts them.

        A message of what a watch computes before it is read is packed later, when its turn to be sent has come.

        Args:
            tile: the rank's source tile, of any strides, its values as they stand in memory.
            out: memory for the target tile, where given; of any strides, and where nothing is combined of any dtype.
            workspace: memory for both buffers, flat and of the tile's dtype, where given.
            watch: what is told of each piece.
        """
        if self.source_shape is not None and tile.shape != self.source_shape:  # a scalar, seen as a vector
            tile = tile.reshape(self.source_shape)
        if out is None:
            out = tile.new_empty((0,) if self.target_shape is None else self.target_shape)
        elif self.target_shape is not None:
            out = out.view(self.target_shape)
        receives = self.receives
        if not is_plain(out, tile):  # nothing is received into its own memory
            workspace = None
            receives, _ = _messages({message.peer: message.parts for message in receives}, None, shared=False)
        if workspace is None:
            sent = tile.new_empty(self.send_size) if self.send_size else tile
            # One for each message, as the memory of large blocks is mapped and faulted in anew at every call.
            received = [out if message.start is None else tile.new_empty(message.size) for message in receives]
        else:
            sent = workspace[: self.send_size]
            received = [message.place_in(workspace[self.send_size :]) for message in receives]
        sends = self.sends
        if not tile.is_contiguous():  # nothing is sent from its own memory
            sends, size = _messages({message.peer: message.parts for message in sends}, None)
            sent = tile.new_empty(size)
        pairs = zip(receives, received, strict=True)
        incoming = [Parcel(message.memory(out, place), message.peer) for message, place in pairs]
        outgoing: Iterable[Parcel] = (Parcel(message.pack(tile, sent, watch), message.peer) for message in sends)
        if watch.before_read is None:
            outgoing = list(outgoing)

        def post() -> Finish:
            sending, receiving = ([], []) if self.carrier is None else self.carrier.post(incoming, outgoing)
            return partial(finish, sending, receiving, sent)

        def finish(sending: list[Any], receiving: list[Any], _sent: torch.Tensor) -> torch.Tensor:
            """Tile and send buffer must live until all is sent."""
            self._unpack(tile, out, receives, received, receiving, watch)
            for work in (*sending, *receiving[len(received) :]):
                work.wait()
            return out

        return post

    def _unpack(
        self,
        tile: torch.Tensor,
        out: torch.Tensor,
        receives: Sequence[Message],
        received: list[torch.Tensor],
        receiving: list[Any],
        watch: Watch,
    ) -> None:
        """Copy what the rank has, then put every message in its place, as soon as it is there and in their order."""
        combine = None if self.reduction is None else COMBINE[self.reduction]
        if self.fill is not None:
            out.fill_(self.fill)
        for target, source in self.copies:
            if watch.before_read is not None:
                watch.before_read(source.index)
            out[target.index].copy_(tile[source.index])
            if watch.after_write is not None:
                watch.after_write(out, target.index)
        placed = {target.box for target, _ in self.copies} if combine is not None else set()
        for number, message in enumerate(receives):
            if number < len(receiving):
                receiving[number].wait()  # once and no more: gloo would wait for a second message
            for begin, part in message.packed():
                room, value = out[part.index], _inside(received[number], begin, part)
                if combine is None or (self.fill is None and part.box not in placed):
                    room.copy_(value)
                    placed.add(part.box)
                else:
                    combine(room, value, out=room)
            if watch.after_write is not None:
                for part in message.parts:
                    watch.after_write(out, part.index)
        if self.reduction == "avg":
            out /= self.classes


def is_plain(out: torch.Tensor, tile: torch.Tensor) -> bool:
    """Whether memory for a result is contiguous, and holds values as those of a tile."""
    return out.is_contiguous() and out.dtype == tile.dtype and not out.is_conj() and not out.is_neg()


def local_exchange(move: Move, rank: int, dtype: DType) -> LocalExchange:
    """The part of a rank in a move of a plan, without what carries it; of elements of a dtype.

    What stands for a window holds each of its elements once.
    """
    exchange = move.exchange
    source = exchange.source.tile(rank, once=True) if rank in exchange.source.mesh else None
    target = exchange.target.tile(rank, once=True) if rank in exchange.target.mesh else None
    outgoing: dict[int, list[TilePart]] = {}
    if source is not None:
        for piece in exchange.outgoing(rank):
            if piece.receiver != rank:
                outgoing.setdefault(piece.receiver, []).append(TilePart.of(piece.box, source))
    incoming: dict[int, list[TilePart]] = {}
    copies: list[tuple[TilePart, TilePart]] = []
    if target is not None:
        for piece in exchange.incoming(rank):
            part = TilePart.of(piece.box, target)
            if piece.sender != rank:
                incoming.setdefault(piece.sender, []).append(part)
            elif source is not None:
                copies.append((part, TilePart.of(piece.box, source)))
    source_shape, target_shape = (None if box is None else box.shape for box in (source, target))
    # Each rank begins with another peer: sends go upwards from the rank, receives downwards.
    sends, send_size = _messages(_from_rank(outgoing, rank), source_shape)
    straight = None if move.reduction else target_shape
    receives, receive_size = _messages(_from_rank(incoming, rank, -1), straight, shared=False)
    return LocalExchange(
        source_shape,
        target_shape,
        sends,
        receives,
        tuple(copies),
        move.reduction,
        move.classes,
        send_size,
        receive_size,
        None if move.fill is None else dtype.identity(move.fill),
    )


def _from_rank(parts: Mapping[int, list[TilePart]], rank: int, sign: int = 1) -> dict[int, list[TilePart]]:
    """The same by peer, those after the rank first, or those before it."""
    order = sorted(parts, key=lambda peer: (sign * peer < sign * rank, sign * peer))
    return {peer: parts[peer] for peer in order}


def _messages(
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
        is_straight = shape is not None and len(parts) == 1 and parts[0].is_contiguous_in(shape)
        is_first = is_straight or not shared or boxes not in starts
        if is_first and not is_straight:
            starts[boxes] = end
            end += size
        messages.append(Message(peer, tuple(parts), size, None if is_straight else starts[boxes], is_first))
    return tuple(messages), end


def _inside(buffer: torch.Tensor, begin: int, part: TilePart) -> torch.Tensor:
    return buffer[begin : begin + part.size].view(part.shape)
