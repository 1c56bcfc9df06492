"""One rank's part of an exchange: what it sends, what it receives, what it copies itself.

A `LocalExchange` is made once from a move of a plan, by the rank's own coordinates, and run many times.
Per peer there is one message: where it is a single piece that lies contiguous in the tile, the memory of the tile
itself is sent or received into; else its pieces are packed side by side into a buffer.
A packed piece that several peers ask for is packed once.
Everything is packed before anything is posted: where packing fails, no peer is left with half of an exchange.
While messages travel, the rank copies what it has itself.

Along a ring messages go in hops, from neighbour to neighbour.
What is handed on of a message is its front, so it is sent from where it was received: the tile itself, or a buffer that
is used again two hops later.
A hop is posted once all of the one before it is there, and what that brought is put in its place meanwhile.

Partial values are combined on arrival, in the order of their senders; every element is combined on one rank, so
the replicas that are gathered from there are equal bit for bit.
Where values become partial nothing travels: the rank copies what it holds of them among identities.

Whoever wants to work while messages travel is told of each piece, by a `Watch`.
Types that a backend may refuse travel as bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from reshard.box import Box
from reshard.dtypes import DType, combining
from reshard.exchange import Piece
from reshard.steps import Move
from reshard.tile import Tile
from reshard.torch.carriers import Carrier, JointCarrier, Parcel

Finish = Callable[[], torch.Tensor]
"""Waits for messages that are under way, and gives the target tile."""
FinishHop = Callable[[], "torch.Tensor | FinishHop"]
"""Waits for messages of one hop, and gives the target tile after the last; else what waits for the next hop, which is
then under way."""
Post = Callable[[], Finish]
"""Sends messages that are packed on their way."""
PostHop = Callable[[], FinishHop]
"""The same of the first hop."""

CARRIED = frozenset(
    [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
"""Element types that every backend sends; others travel as bytes."""

COMBINE: dict[str, Callable[..., Any]] = combining(torch)
"""What combines two partial values, by reduction; avg divides once all are added."""


def ended(finish: FinishHop) -> torch.Tensor:
    """The target tile, once all hops are waited for."""
    result = finish()
    while not isinstance(result, torch.Tensor):
        result = result()
    return result


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
        return (kept if self.is_kept else tile)[self.index]

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
        return as_carried(tile[self.parts[0].index] if self.start is None else place)

    def pack(self, tile: torch.Tensor, kept: torch.Tensor, buffer: torch.Tensor, watch: Watch) -> torch.Tensor:
        """The same, with the parts of both tiles in their places; what is read is told before."""
        if watch.before_read is not None:
            for part in self.parts:
                watch.before_read(part.index)
        place = self.place_in(buffer)
        for begin, part in self.packed() if self.is_first else ():
            _inside(place, begin, part).copy_(part.read(tile, kept))
        return self.memory(tile, place)


class Run(NamedTuple):
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


class HandedOn(NamedTuple):
    """What came in the hop before and goes on to a neighbour: along one ring the front of one message."""

    peer: int
    """A global rank."""
    runs: tuple[Run, ...]

    def memory(self, messages: Sequence[Message], places: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        """The contiguous memory of it all; fresh where there are several runs."""
        memories = [run.memory(messages, places, out) for run in self.runs]
        return memories[0] if len(memories) == 1 else torch.cat([memory.reshape(-1) for memory in memories])


class Hop(NamedTuple):
    """What a rank sends and receives once it has all of the hop before."""

    sends: tuple[HandedOn, ...]
    receives: tuple[Message, ...]


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
    later: tuple[Hop, ...] = ()
    """The hops after the first; all ranks have as many."""

    @property
    def has_messages(self) -> bool:
        """Whether it sends or receives any."""
        return any([self.sends, self.receives, *(messages for hop in self.later for messages in hop)])

    def pack(
        self,
        tile: torch.Tensor,
        out: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        watch: Watch = UNWATCHED,
        kept: torch.Tensor | None = None,
    ) -> PostHop:
        """Pack the messages; what is given back posts them.

        A message of what a watch computes before it is read is packed later, when its turn to be sent has come.

        Args:
            tile: the rank's source tile, of any strides, its values as they stand in memory.
            out: memory for the target tile, where given; of any strides, and where nothing is combined of any dtype.
            workspace: memory for both buffers, flat and of the tile's dtype, where given.
            watch: what is told of each piece.
            kept: the rank's first tile in the plan, where it is read too.
        """
        if self.source_shape is not None and tile.shape != self.source_shape:  # a scalar, seen as a vector
            tile = tile.reshape(self.source_shape)
        if out is None:
            out = tile.new_empty((0,) if self.target_shape is None else self.target_shape)
        elif self.target_shape is not None:
            out = out.view(self.target_shape)
        hops, receive_size = [Hop((), self.receives), *self.later], self.receive_size
        if not is_plain(out, tile):  # nothing is received into its own memory
            workspace = None
            received, receive_size = _received([_parts_of(hop.receives) for hop in hops], None)
            hops = [hop._replace(receives=messages) for hop, messages in zip(hops, received, strict=True)]
        first = tile if kept is None else kept
        sends, sent, room = self.sends, None, None
        if workspace is not None:
            sent, room = workspace[: self.send_size], workspace[self.send_size :]
        elif self.later:
            room = tile.new_empty(receive_size)
        if not tile.is_contiguous():  # nothing is sent from its own memory
            sends, send_size = _messages(_parts_of(sends), None)
            sent = tile.new_empty(send_size)
        elif sent is None:
            sent = tile.new_empty(self.send_size)

        def place_of(message: Message) -> torch.Tensor:
            if message.start is None:
                return out
            # Without a room each has its own, as the memory of large blocks is mapped and faulted in at every call.
            return tile.new_empty(message.size) if room is None else message.place_in(room)

        outgoing: Iterable[Parcel] = (Parcel(message.pack(tile, first, sent, watch), message.peer) for message in sends)
        if watch.before_read is None:
            outgoing = list(outgoing)
        places = [[place_of(message) for message in hop.receives] for hop in hops]
        return partial(_Running(self, tile, first, out, sent, hops, places, watch).post, 0, outgoing)


class _Running(NamedTuple):
    """An exchange with the memory of a call, which lives until all is sent."""

    exchange: LocalExchange
    tile: torch.Tensor
    kept: torch.Tensor
    out: torch.Tensor
    sent: torch.Tensor
    """Where messages are packed."""
    hops: list[Hop]
    places: list[list[torch.Tensor]]
    """Per hop where each message is received."""
    watch: Watch

    def post(self, number: int, outgoing: Iterable[Parcel]) -> FinishHop:
        """Send the messages of a hop on their way."""
        pairs = zip(self.hops[number].receives, self.places[number], strict=True)
        incoming = [Parcel(message.memory(self.out, place), message.peer) for message, place in pairs]
        carrier = self.exchange.carrier
        sending, receiving = ([], []) if carrier is None else carrier.post(incoming, outgoing)
        return partial(self.finish, number, outgoing, sending, receiving)

    def finish(
        self, number: int, _outgoing: Iterable[Parcel], sending: list[Any], receiving: list[Any]
    ) -> torch.Tensor | FinishHop:
        """Wait for a hop; the target tile after the last one, else what waits for the next.

        What goes out must live until it is sent.
        """
        if number == 0:
            self._copy()
        if number + 1 == len(self.hops):
            self._unpack(number, receiving)
            for work in (*sending, *receiving[len(self.places[number]) :]):
                work.wait()
            return self.out
        for work in (*receiving, *sending):
            work.wait()
        messages, places = self.hops[number].receives, self.places[number]
        following = self.post(
            number + 1,
            [Parcel(handed.memory(messages, places, self.out), handed.peer) for handed in self.hops[number + 1].sends],
        )
        self._unpack(number, [])
        return following

    def _copy(self) -> None:
        """Copy what the rank has itself."""
        out, watch = self.out, self.watch
        if self.exchange.fill is not None:
            out.fill_(self.exchange.fill)
        for target, source in self.exchange.copies:
            if watch.before_read is not None:
                watch.before_read(source.index)
            out[target.index].copy_(source.read(self.tile, self.kept))
            if watch.after_write is not None:
                watch.after_write(out, target.index)

    def _unpack(self, number: int, receiving: list[Any]) -> None:
        """Put every message of a hop in its place, as soon as it is there and in their order."""
        exchange, out, watch = self.exchange, self.out, self.watch
        combine = None if exchange.reduction is None else COMBINE[exchange.reduction]
        placed = {target.box for target, _ in exchange.copies} if combine is not None else set()
        for turn, (message, place) in enumerate(zip(self.hops[number].receives, self.places[number], strict=True)):
            if turn < len(receiving):
                receiving[turn].wait()  # once and no more: gloo would wait for a second message
            for begin, part in message.packed():
                room, value = out[part.index], _inside(place, begin, part)
                if combine is None or (exchange.fill is None and part.box not in placed):
                    room.copy_(value)
                    placed.add(part.box)
                else:
                    combine(room, value, out=room)
            if watch.after_write is not None:
                for part in message.parts:
                    if not part.passes:
                        watch.after_write(out, part.index)
        if exchange.reduction == "avg":
            out /= exchange.classes


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

    def source_part(box: Box, source: Box | Tile) -> TilePart:
        if exchange.kept is None or not exchange.is_kept(rank, box):
            return TilePart.of(box, source)
        return replace(TilePart.of(box, exchange.kept.tile(rank)), is_kept=True)

    outgoing: dict[int, list[TilePart]] = {}
    sent = [] if source is None else exchange.outgoing(rank)
    leaving = exchange.by_hop(piece for piece in sent if piece.receiver != rank)
    if source is not None:
        for piece in leaving[0]:
            outgoing.setdefault(piece.receiver, []).append(source_part(piece.box, source))
    incoming: list[dict[int, list[TilePart]]] = [{} for _ in range(exchange.hops)]
    copies: list[tuple[TilePart, TilePart]] = []
    if target is not None:
        passing = set(exchange.passing(rank))
        for parts, arriving in zip(incoming, exchange.by_hop(exchange.taken(rank)), strict=True):
            for piece in arriving:
                part = TilePart.passing(piece.box) if piece in passing else TilePart.of(piece.box, target)
                if piece.sender != rank:
                    parts.setdefault(piece.sender, []).append(part)
                elif source is not None:
                    copies.append((part, source_part(piece.box, source)))
    source_shape, target_shape = (None if box is None else box.shape for box in (source, target))
    # Each rank begins with another peer: sends go upwards from the rank, receives downwards.
    sends, send_size = _messages(_from_rank(outgoing, rank), source_shape)
    straight = None if move.reduction else target_shape
    received, receive_size = _received([_from_rank(parts, rank, -1) for parts in incoming], straight)
    later = [
        Hop(_handed_on(pieces, before), messages)
        for pieces, before, messages in zip(leaving[1:], received, received[1:], strict=False)
    ]
    return LocalExchange(
        source_shape,
        target_shape,
        sends,
        received[0],
        tuple(copies),
        move.reduction,
        move.classes,
        send_size,
        receive_size,
        None if move.fill is None else dtype.identity(move.fill),
        later=tuple(later),
    )


def _handed_on(pieces: Iterable[Piece], received: Sequence[Message]) -> tuple[HandedOn, ...]:
    """What is handed on of the messages of the hop before, to each peer."""
    where = {
        part.box: (number, place, begin)
        for number, message in enumerate(received)
        for place, (part, begin) in enumerate(
            zip(message.parts, itertools.accumulate((part.size for part in message.parts), initial=0), strict=False)
        )
    }
    runs_to: dict[int, list[Run]] = {}
    for piece in pieces:
        number, place, begin = where[piece.box]
        runs = runs_to.setdefault(piece.receiver, [])
        if runs and runs[-1].number == number and runs[-1].parts.stop == place:
            last = runs.pop()
            runs.append(last._replace(parts=range(last.parts.start, place + 1), size=last.size + piece.box.size))
        else:
            runs.append(Run(number, range(place, place + 1), begin, piece.box.size))
    return tuple(HandedOn(peer, tuple(runs)) for peer, runs in runs_to.items())


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


def _received(
    parts_of: Sequence[Mapping[int, Sequence[TilePart]]], shape: tuple[int, ...] | None
) -> tuple[list[tuple[Message, ...]], int]:
    """The messages that come in each hop, as of `_messages`, and the size of a buffer that every second hop shares."""
    messages, sizes = zip(*(_messages(parts, shape, shared=False) for parts in parts_of), strict=True)
    begins = 0, max(sizes[::2])
    hops = [
        tuple(
            message if message.start is None else message._replace(start=message.start + begins[number % 2])
            for message in of_hop
        )
        for number, of_hop in enumerate(messages)
    ]
    return hops, begins[1] + max(sizes[1::2], default=0)


def _parts_of(messages: Iterable[Message]) -> dict[int, Sequence[TilePart]]:
    """The parts of each, by peer."""
    return {message.peer: message.parts for message in messages}


def _inside(buffer: torch.Tensor, begin: int, part: TilePart) -> torch.Tensor:
    return buffer[begin : begin + part.size].view(part.shape)
