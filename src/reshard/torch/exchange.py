"""One rank's part of an exchange: what it sends, what it receives, what it keeps.

A `Leg` is made once from a move of a plan, by the rank's own coordinates, and run many times.
Per peer there is one message: where it is a single piece that lies contiguous in the tile, the memory of the tile
itself is sent or received into; else its pieces are packed side by side into a buffer.
A packed piece that several peers ask for is packed once.
All is packed before anything is posted, so that where packing fails no peer is left with half of an exchange.
While messages travel, the rank copies what it keeps.

Partial values are combined on arrival, in the order of their senders; every element is combined on one rank, so
the replicas that are gathered from there are equal bit for bit.

Messages go by sends and receives, which take no more ranks than have something to exchange.
On gloo they are faster than all-gather and reduce-scatter too, where the exchange is exactly one of these.
Whoever wants to work while they travel is told of each piece, by a `Watch`.
Types that a backend may refuse travel as bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from reshard.axis import Axis
from reshard.box import Box
from reshard.exchange import DigitExchange, Exchange
from reshard.mesh import Mesh
from reshard.steps import Move

Index = tuple[slice, ...]
Posted = tuple[torch.Tensor, int]
"""The memory of a message, and the peer that it goes to or comes from."""
Finish = Callable[[], torch.Tensor]
"""Waits for messages that are under way, and gives the target tile."""
Post = Callable[[], Finish]
"""Sends messages that are packed on their way."""

CARRIED = frozenset(
    [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
"""Element types that every backend sends; others travel as bytes."""

COMBINE: dict[str, Callable[..., Any]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
"""What combines two partial values, by reduction; avg divides once all are added."""


class Watch(NamedTuple):
    """What is told of the pieces of an exchange, in turn."""

    before_read: Callable[[Index | None], None] | None = None
    """Before a piece of the source tile is sent or kept."""
    after_write: Callable[[torch.Tensor, Index | None], None] | None = None
    """With the target tile, after a piece is in its place; partial values may be added to it later."""


UNWATCHED = Watch()


class Carrier(NamedTuple):
    """What brings messages to others."""

    group: Any
    """A process group that has all ranks of the exchange."""
    batches: bool
    """Whether it takes all messages at once, as NCCL must have them: one by one they might wait in a circle."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a message."""

    box: Box
    """Where it lies in the tensor."""
    index: Index | None
    """Where it lies in the tile; None for the whole tile."""
    shape: tuple[int, ...]
    size: int
    """The number of elements."""


class Message(NamedTuple):
    """What goes to one peer, or comes from it."""

    peer: int
    """A global rank."""
    parts: tuple[Part, ...]
    size: int
    """The number of elements of all parts."""
    start: int | None
    """Where it begins in the buffer, in elements; None where it travels straight from or into the tile."""
    fresh: bool = True
    """Whether it is the first of those that share a place in the buffer."""

    def packed(self) -> Iterator[tuple[int, Part]]:
        """Where each part begins in the message's place in the buffer; nothing where there is no buffer."""
        begin = 0
        for part in () if self.start is None else self.parts:
            yield begin, part
            begin += part.size

    def place_in(self, buffer: torch.Tensor) -> torch.Tensor:
        """Its place in the buffer, if it has one."""
        return buffer if self.start is None else buffer[self.start : self.start + self.size]


@dataclass(frozen=True)
class Leg:
    """One exchange, as one rank takes part in it."""

    source_shape: tuple[int, ...] | None
    """Of the rank's tile before; None where it has none."""
    target_shape: tuple[int, ...] | None
    """Of the rank's tile after; None where it gets none."""
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    kept: tuple[tuple[Part, Part], ...]
    """What the rank has itself: where it goes in the target tile, and where it is in the source tile."""
    reduction: str | None
    classes: int
    """The number of partial values that become one."""
    send_size: int
    """Of the send buffer, in elements."""
    receive_size: int
    """Of the receive buffer, in elements."""
    mesh_dim: int | None
    """The one mesh dim that all messages of all ranks stay within, where there is one."""

    @property
    def sent_size(self) -> int:
        """The number of elements that the rank sends to others."""
        return sum(message.size for message in self.sends)

    @property
    def received_size(self) -> int:
        """The number of elements that the rank receives from others."""
        return sum(message.size for message in self.receives)

    @property
    def buffer_size(self) -> int:
        """The number of elements of both buffers."""
        return self.send_size + self.receive_size

    def pack(
        self,
        tile: torch.Tensor,
        carrier: Carrier | None,
        out: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        watch: Watch = UNWATCHED,
    ) -> Post:
        """Pack the messages; what is given back posts them.

        A message of what a watch computes before it is read is packed later, when its turn to be sent has come.

        Args:
            tile: the rank's source tile, of any strides, its values as they stand in memory.
            carrier: what brings the messages to others; None where there are none.
            out: contiguous memory for the target tile, where given.
            workspace: memory for both buffers, flat and of the tile's dtype, where given.
            watch: what is told of each piece.
        """
        if out is None:
            out = tile.new_empty((0,) if self.target_shape is None else self.target_shape)
        if workspace is None:
            sent = tile.new_empty(self.send_size) if self.send_size else tile
            # One for each message, as the memory of large blocks is mapped and faulted in anew at every call.
            received = [out if message.start is None else tile.new_empty(message.size) for message in self.receives]
        else:
            sent = workspace[: self.send_size]
            received = [message.place_in(workspace[self.send_size :]) for message in self.receives]
        sends = self.sends
        if not tile.is_contiguous():  # nothing is sent from its own memory
            sends, size = _messages({message.peer: message.parts for message in sends}, None)
            sent = tile.new_empty(size)
        incoming = [
            (_memory(message, place, out), message.peer) for message, place in zip(self.receives, received, strict=True)
        ]
        outgoing: Iterable[Posted] = (
            (_memory(message, message.place_in(sent), tile, packs=True), message.peer)
            for message in _announced(sends, watch)
        )
        if watch.before_read is None:
            outgoing = list(outgoing)

        def post() -> Finish:
            sending, receiving = ([], []) if carrier is None else _posted(incoming, outgoing, carrier)
            return partial(self._finish, sending, receiving, tile, out, sent, received, watch)

        return post

    def _finish(
        self,
        sending: list[Any],
        receiving: list[Any],
        tile: torch.Tensor,
        out: torch.Tensor,
        sent: torch.Tensor,
        received: list[torch.Tensor],
        watch: Watch,
    ) -> torch.Tensor:
        """Wait and unpack; tile and send buffer must live until all is sent."""
        self._unpack(tile, out, received, receiving, watch)
        for work in (*sending, *receiving[len(self.receives) :]):
            work.wait()
        del tile, sent
        return out

    def _unpack(
        self, tile: torch.Tensor, out: torch.Tensor, received: list[torch.Tensor], receiving: list[Any], watch: Watch
    ) -> None:
        """Copy what the rank keeps, then put every message in its place, as soon as it is there and in their order."""
        combine = None if self.reduction is None else COMBINE[self.reduction]
        for place, held in self.kept:
            if watch.before_read is not None:
                watch.before_read(held.index)
            _at(out, place.index).copy_(_at(tile, held.index))
            if watch.after_write is not None:
                watch.after_write(out, place.index)
        placed = {place.box for place, _ in self.kept} if combine is not None else set()
        for number, message in enumerate(self.receives):
            if number < len(receiving):
                receiving[number].wait()  # once and no more: gloo would wait for a second message
            for begin, part in message.packed():
                room, value = _at(out, part.index), _inside(received[number], begin, part)
                if combine is None:
                    room.copy_(value)
                elif part.box in placed:
                    combine(room, value, out=room)
                else:
                    room.copy_(value)
                    placed.add(part.box)
            if watch.after_write is not None:
                for part in message.parts:
                    watch.after_write(out, part.index)
        if self.reduction == "avg":
            out /= self.classes


def _announced(messages: Sequence[Message], watch: Watch) -> Iterator[Message]:
    """The messages; before each is taken, what it reads is told."""
    for message in messages:
        if watch.before_read is not None:
            for part in message.parts:
                watch.before_read(part.index)
        yield message


def make_leg(move: Move, rank: int, mesh: Mesh | None) -> Leg:
    """The part of a rank in a move of a plan.

    Args:
        move: one exchange of a step.
        rank: a global rank.
        mesh: the mesh that both ends are on; None where they are on two.
    """
    exchange = move.exchange
    source = exchange.source.box(rank) if rank in exchange.source.mesh else None
    target = exchange.target.box(rank) if rank in exchange.target.mesh else None
    outgoing: dict[int, list[Part]] = {}
    if source is not None:
        for piece in exchange.outgoing(rank):
            if piece.receiver != rank:
                outgoing.setdefault(piece.receiver, []).append(_part(piece.box, source))
    incoming: dict[int, list[Part]] = {}
    kept: list[tuple[Part, Part]] = []
    if target is not None:
        for piece in exchange.incoming(rank):
            part = _part(piece.box, target)
            if piece.sender != rank:
                incoming.setdefault(piece.sender, []).append(part)
            elif source is not None:
                kept.append((part, _part(piece.box, source)))
    source_shape, target_shape = (None if box is None else box.shape for box in (source, target))
    # Each rank begins with another peer: sends go upwards from the rank, receives downwards.
    sends, send_size = _messages(_turned(outgoing, rank), source_shape)
    straight = None if move.reduction else target_shape
    receives, receive_size = _messages(_turned(incoming, rank, -1), straight, shared=False)
    return Leg(
        source_shape,
        target_shape,
        sends,
        receives,
        tuple(kept),
        move.reduction,
        move.classes,
        send_size,
        receive_size,
        None if mesh is None else _line_of(exchange, mesh),
    )


def _turned(parts: Mapping[int, list[Part]], rank: int, sign: int = 1) -> dict[int, list[Part]]:
    """The same by peer, those after the rank first, or those before it."""
    order = sorted(parts, key=lambda peer: (sign * peer < sign * rank, sign * peer))
    return {peer: parts[peer] for peer in order}


def _messages(
    parts: Mapping[int, Sequence[Part]], shape: tuple[int, ...] | None, *, shared: bool = True
) -> tuple[tuple[Message, ...], int]:
    """The messages of some parts per peer, and the size of the buffer for those that are packed.

    Args:
        parts: per peer, in the order in which they are sent.
        shape: of a contiguous tile, whose own memory is used where that can be; None where it cannot.
        shared: whether equal messages may have one place in the buffer.
    """
    messages, end = [], 0
    places: dict[tuple[Box, ...], int] = {}
    for peer, listed in parts.items():
        boxes = tuple(part.box for part in listed)
        size = sum(part.size for part in listed)
        if shape is not None and len(listed) == 1 and _is_contiguous(listed[0], shape):
            messages.append(Message(peer, tuple(listed), size, None))
        elif shared and boxes in places:
            messages.append(Message(peer, tuple(listed), size, places[boxes], fresh=False))
        else:
            messages.append(Message(peer, tuple(listed), size, end))
            places[boxes] = end
            end += size
    return tuple(messages), end


def _part(box: Box, tile: Box) -> Part:
    return Part(box, None if box == tile else box.slices(tile), box.shape, box.size)


def _is_contiguous(part: Part, shape: tuple[int, ...]) -> bool:
    """Whether the part lies in one run of a contiguous tile: at most one dim is cut inside, none to its right."""
    lengths = itertools.dropwhile(lambda pair: pair[0] == 1, zip(part.shape, shape, strict=True))
    return all(length == size for length, size in itertools.islice(lengths, 1, None))


def _line_of(exchange: Exchange, mesh: Mesh) -> int | None:
    """The mesh dim that every message stays within; None where there is none, or it is not plain to see."""
    if not isinstance(exchange, DigitExchange) or not exchange.shares_devices:
        return None
    digits = exchange.common.digits
    moved = [digits[i] for i, j in enumerate(exchange.determined_by) if i != j or i in exchange.gathered]
    for number, (name, _) in enumerate(mesh.axes):
        stride, size = mesh.stride_of(Axis(name))
        if all(stride <= digit.stride and digit.stride * digit.size <= stride * size for digit in moved):
            return number
    return None


def _at(tile: torch.Tensor, index: Index | None) -> torch.Tensor:
    return tile if index is None else tile[index]


def _inside(buffer: torch.Tensor, begin: int, part: Part) -> torch.Tensor:
    return buffer[begin : begin + part.size].view(part.shape)


def _memory(message: Message, place: torch.Tensor, tile: torch.Tensor, *, packs: bool = False) -> torch.Tensor:
    """The contiguous memory that a message is sent from, into which it is packed before, or received into."""
    memory = _at(tile, message.parts[0].index) if message.start is None else place
    for begin, part in message.packed() if packs and message.fresh else ():
        _inside(place, begin, part).copy_(_at(tile, part.index))
    # Not by `view(-1)`, which leaves a single element whatever stride it has, and that has no bytes then.
    return memory if memory.dtype in CARRIED else memory.as_strided((memory.numel(),), (1,)).view(torch.uint8)


def _posted(receives: list[Posted], sends: Iterable[Posted], carrier: Carrier) -> tuple[list[Any], list[Any]]:
    """Post all messages.

    Args:
        receives: where messages come into.
        sends: messages; one that is packed only when it is asked for is so while those before it are on their way.
        carrier: what brings them to others.

    Returns:
        What to wait for, once each: for what is sent, and for what is received, one per message; or, under the
        latter, one for all.
    """
    group = carrier.group
    if carrier.batches:
        operations = [dist.P2POp(dist.irecv, memory, peer, group) for memory, peer in receives]
        operations += [dist.P2POp(dist.isend, memory, peer, group) for memory, peer in sends]
        return [], dist.batch_isend_irecv(operations)
    receiving = [dist.irecv(memory, peer, group) for memory, peer in receives]
    return [dist.isend(memory, peer, group) for memory, peer in sends], receiving
