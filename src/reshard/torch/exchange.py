"""One rank's part of an exchange: what it sends, what it receives, what it copies itself.

A `LocalExchange` is made once from a move of a plan, by the rank's own coordinates, and run many times.
Per peer there is one message (`rank_messages.py`).
Everything is packed before anything is posted: where packing fails, no peer is left with half of an exchange.
While messages travel, the rank copies what it has itself.

Along a ring messages go in hops, from neighbour to neighbour.
What is handed on of a message is its front, so it is sent from where it was received: the tile itself, or a buffer that
is used again two hops later.
A hop is posted once all of the one before it is there, and what that brought is put in its place meanwhile.

Partial values are combined on arrival, in an order that is the same on all ranks that combine the same ones, so that
replicas are equal bit for bit.
Where values become partial nothing travels: the rank copies what it holds of them among identities.

Whoever wants to work while messages travel is told of each piece, by a `Watch`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch

from reshard.box import Box
from reshard.dtypes import DType, combining
from reshard.exchange import Piece
from reshard.steps import Move
from reshard.tile import Tile
from reshard.torch.carriers import Carrier, JointCarrier, Parcel
from reshard.torch.rank_messages import (
    UNWATCHED,
    HandedMessage,
    Hop,
    Message,
    MessageRun,
    TilePart,
    Watch,
    messages_by_hop,
    messages_to,
    parts_by_peer,
)

Finish = Callable[[], torch.Tensor]
"""Waits for messages that are under way, and gives the target tile."""
FinishHop = Callable[[], "torch.Tensor | FinishHop"]
"""Waits for messages of one hop, and gives the target tile after the last; else what waits for the next hop, which is
then under way."""
Post = Callable[[], Finish]
"""Sends messages that are packed on their way."""
PostHop = Callable[[], FinishHop]
"""The same of the first hop."""

COMBINE: dict[str, Callable[..., Any]] = combining(torch)
"""What combines two partial values, by reduction; avg divides once all are added."""


def ended(finish: FinishHop) -> torch.Tensor:
    """The target tile, once all hops are waited for."""
    result = finish()
    while not isinstance(result, torch.Tensor):
        result = result()
    return result


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
    copied_after: int = 0
    """After how many messages the rank combines what it has itself; 0 unless other ranks combine the same values."""

    @cached_property
    def hops(self) -> Sequence[Hop]:
        """All hops, the first with what is received in it."""
        return Hop((), self.receives), *self.later

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
        sends, send_size, hops, receive_size = self.sends, self.send_size, self.hops, self.receive_size
        if out is None:
            out = tile.new_empty((0,) if self.target_shape is None else self.target_shape)
        elif self.target_shape is not None:
            out = out.view(self.target_shape)
            if not is_plain(out, tile):  # nothing is received into its own memory
                workspace = None
                received, receive_size = messages_by_hop([parts_by_peer(hop.receives) for hop in hops], None)
                hops = [hop._replace(receives=messages) for hop, messages in zip(hops, received, strict=True)]
        first = tile if kept is None else kept
        sent = room = None
        if workspace is not None:
            sent, room = workspace[:send_size], workspace[send_size:]
        elif self.later:
            room = tile.new_empty(receive_size)
        if not tile.is_contiguous():  # nothing is sent from its own memory
            sends, send_size = messages_to(parts_by_peer(sends), None)
            sent = None
        if sent is None:
            sent = tile.new_empty(send_size) if send_size else tile

        def place_of(message: Message) -> torch.Tensor:
            if message.start is None:
                return out
            # Without a room each has its own, as the memory of large blocks is mapped and faulted in at every call.
            return tile.new_empty(message.size) if room is None else message.place_in(room)

        outgoing: Iterable[Parcel] = (Parcel(message.pack(tile, first, sent, watch), message.peer) for message in sends)
        if watch.before_read is None:
            outgoing = list(outgoing)
        places = [[place_of(message) for message in hop.receives] for hop in hops]
        return partial(_Running(self, tile, first, out, sent, hops, places, watch, set()).post, 0, outgoing)


class _Running(NamedTuple):
    """An exchange with the memory of a call, which lives until all is sent."""

    exchange: LocalExchange
    tile: torch.Tensor
    kept: torch.Tensor
    out: torch.Tensor
    sent: torch.Tensor
    """Where messages are packed."""
    hops: Sequence[Hop]
    places: list[list[torch.Tensor]]
    """Per hop where each message is received."""
    watch: Watch
    placed: set[Box]
    """Where something stands with which what comes then is combined."""

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
        if self.exchange.fill is not None and number == 0:
            self.out.fill_(self.exchange.fill)
        if number == self.exchange.copied_after == 0:
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
        for target, source in self.exchange.copies:
            if self.watch.before_read is not None:
                self.watch.before_read(source.index)
            self._put(target, source.read(self.tile, self.kept))
            if self.watch.after_write is not None:
                self.watch.after_write(self.out, target.index)

    def _unpack(self, number: int, receiving: list[Any]) -> None:
        """Put every message of a hop in its place, as soon as it is there and in their order."""
        exchange, out, watch = self.exchange, self.out, self.watch
        for turn, (message, place) in enumerate(zip(self.hops[number].receives, self.places[number], strict=True), 1):
            if turn <= len(receiving):
                receiving[turn - 1].wait()  # once and no more: gloo would wait for a second message
            for begin, part in message.packed():
                self._put(part, part.packed_at(begin, place))
            if watch.after_write is not None:
                for part in message.parts:
                    if not part.passes:
                        watch.after_write(out, part.index)
            if turn == exchange.copied_after:
                self._copy()
        if exchange.reduction == "avg":
            out /= exchange.classes

    def _put(self, part: TilePart, value: torch.Tensor) -> None:
        """Put a part in its place, or combine it with what stands there."""
        room, reduction = part.within(self.out), self.exchange.reduction
        if reduction is None or (self.exchange.fill is None and part.box not in self.placed):
            room.copy_(value)
            self.placed.add(part.box)
        else:
            COMBINE[reduction](room, value, out=room)


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
    keeps_order, copied_after = move.reduction is not None and exchange.target.layout.copies() > 1, 0
    if target is not None:
        passing = set(exchange.passing(rank))
        for parts, arriving in zip(incoming, exchange.by_hop(exchange.taken(rank)), strict=True):
            for piece in arriving:
                part = TilePart.passing(piece.box) if piece in passing else TilePart.of(piece.box, target)
                if piece.sender != rank:
                    parts.setdefault(piece.sender, []).append(part)
                elif source is not None:
                    copied_after = len(parts) if keeps_order and not copies else copied_after
                    copies.append((part, source_part(piece.box, source)))
    source_shape, target_shape = (None if box is None else box.shape for box in (source, target))
    # Each rank begins with another peer: sends go upwards from the rank, receives downwards, unless order matters.
    sends, send_size = messages_to(_from_rank(outgoing, rank), source_shape)
    if not keeps_order:
        incoming = [_from_rank(parts, rank, -1) for parts in incoming]
    received, receive_size = messages_by_hop(incoming, None if move.reduction else target_shape)
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
        copied_after=copied_after,
    )


def _handed_on(pieces: Iterable[Piece], received: Sequence[Message]) -> tuple[HandedMessage, ...]:
    """What is handed on of the messages of the hop before, to each peer."""
    where = {
        part.box: (number, place, begin)
        for number, message in enumerate(received)
        for place, (part, begin) in enumerate(
            zip(message.parts, itertools.accumulate((part.size for part in message.parts), initial=0), strict=False)
        )
    }
    runs_to: dict[int, list[MessageRun]] = {}
    for piece in pieces:
        number, place, begin = where[piece.box]
        runs = runs_to.setdefault(piece.receiver, [])
        if runs and runs[-1].number == number and runs[-1].parts.stop == place:
            last = runs.pop()
            runs.append(last._replace(parts=range(last.parts.start, place + 1), size=last.size + piece.box.size))
        else:
            runs.append(MessageRun(number, range(place, place + 1), begin, piece.box.size))
    return tuple(HandedMessage(peer, tuple(runs)) for peer, runs in runs_to.items())


def _from_rank(parts: Mapping[int, list[TilePart]], rank: int, sign: int = 1) -> dict[int, list[TilePart]]:
    """The same by peer, those after the rank first, or those before it."""
    order = sorted(parts, key=lambda peer: (sign * peer < sign * rank, sign * peer))
    return {peer: parts[peer] for peer in order}
