"""One rank's part of an exchange under a limit on memory: piece after piece, with the buffers of one chunk.

A plan under a limit counts the tiles before and after and one chunk of a piece.
So the pieces go in rounds, in each of which a rank sends at most one and receives at most one, in slabs of a chunk, and
what is packed and what is received share the chunk: each slab is halved until two of it fit, and a single element
needs no buffer, for its memory is one run anyhow.

By hand, a piece of 4 x 6 elements in 2 chunks: slabs of 4 x 3, a buffer of 12 elements, so each slab goes as two
messages of 2 x 3, packed into 6 elements and received into the other 6.

All ranks go through the same rounds and messages in the same order and a rank waits for both of a turn, so whoever is
furthest behind has all that it waits for: nobody waits in a circle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import Any

import torch

from reshard.box import Box
from reshard.errors import ReshardError
from reshard.exchange import DigitExchange, Exchange, Piece, schedule
from reshard.plans import Plan
from reshard.steps import Move
from reshard.torch.carriers import Parcel
from reshard.torch.exchange import COMBINE, LocalExchange, Post
from reshard.torch.rank_messages import UNWATCHED, TilePart, Watch, as_carried


@dataclass(frozen=True)
class CallTurn:
    """What a rank sends and receives at a time, at most one message each."""

    send: tuple[int, TilePart] | None
    """To whom, and what of the source tile."""
    receive: tuple[int, TilePart] | None
    """From whom, and where in the target tile."""


@dataclass(frozen=True)
class TurnwiseExchange(LocalExchange):
    """One exchange, as one rank takes part in it under a limit on memory; of `sends` and `receives` it has none."""

    turns: tuple[CallTurn, ...] = ()

    def pack(
        self,
        tile: torch.Tensor,
        out: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
        watch: Watch = UNWATCHED,
        kept: torch.Tensor | None = None,
    ) -> Post:
        """Nothing is packed or allocated before it is waited for, so that what waits holds no tile but the source's."""
        return lambda: lambda: self._done(tile, out)

    def _done(self, tile: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        if self.source_shape is not None and tile.shape != self.source_shape:
            tile = tile.reshape(self.source_shape)
        if out is None:
            out = tile.new_empty((0,) if self.target_shape is None else self.target_shape)
        elif self.target_shape is not None:
            out = out.view(self.target_shape)
        if self.fill is not None:
            out.fill_(self.fill)
        for target, source in self.copies:
            out[target.index].copy_(tile[source.index])
        placed = {target.box for target, _ in self.copies}
        buffer = tile.new_empty(self.send_size + self.receive_size)
        sent, received = buffer[: self.send_size], buffer[self.send_size :]
        for turn in self.turns:
            self._take(turn, tile, out, sent, received, placed)
        if self.reduction == "avg":
            out /= self.classes
        return out

    def _take(
        self,
        turn: CallTurn,
        tile: torch.Tensor,
        out: torch.Tensor,
        sent: torch.Tensor,
        received: torch.Tensor,
        placed: Any,
    ) -> None:
        carrier: Any = self.carrier
        incoming, outgoing = [], []
        if turn.receive is not None:
            sender, arriving = turn.receive
            room = out[arriving.index]
            is_first = self.reduction is None or not any(box.contains(arriving.box) for box in placed)
            is_straight = is_first and room.is_contiguous() and out.dtype == tile.dtype
            memory = room if is_straight else received[: arriving.size].view(arriving.shape)
            incoming.append(Parcel(as_carried(memory), sender))
        if turn.send is not None:
            receiver, leaving = turn.send
            source = tile[leaving.index]
            if not source.is_contiguous():
                source = sent[: leaving.size].view(leaving.shape).copy_(source)
            outgoing.append(Parcel(as_carried(source), receiver))
        sending, receiving = carrier.post(incoming, outgoing)
        for work in (*receiving, *sending):
            work.wait()
        if turn.receive is None:
            return
        if not is_first:
            COMBINE[str(self.reduction)](room, memory, out=room)
        elif not is_straight:
            room.copy_(memory)
        if self.reduction is not None:
            placed.add(arriving.box)


def check_limit(plan: Plan) -> None:
    """Refuse a memory limit where pieces are handed on: they come whole, and wait in buffers for their next hop.

    All ranks refuse alike, whatever each of them needs, so that none waits for another.

    Raises:
        ReshardError: `no-plan`.
    """
    if plan.options.memory_limit is not None and any(step.ring for share in plan.shares for step in share.steps):
        raise ReshardError("no-plan", "torch hands on whole pieces along rings, and keeps no memory limit there")


def turnwise(exchange: LocalExchange, move: Move, rank: int, chunks: int) -> TurnwiseExchange:
    """The part of a rank in a move whose pieces go in so many chunks each, one after the other.

    Args:
        exchange: the same part with all messages at once.
        move: what all ranks do.
        rank: a global rank.
        chunks: of a piece.

    Raises:
        ReshardError: `too-large` where the pieces are too many to list.
    """
    boxes = move.exchange
    slab = list(boxes.piece_shape)
    longest = max(range(len(slab)), key=slab.__getitem__)
    slab[longest] = -(-slab[longest] // chunks)
    most = prod(slab)
    tiles = [side.tile(rank, once=True) if rank in side.mesh else None for side in (boxes.source, boxes.target)]
    turns = []
    for pieces in _rounds(boxes):
        leaving = [(piece.receiver, piece.box) for piece in pieces if piece.sender == rank]
        arriving = [(piece.sender, piece.box) for piece in pieces if piece.receiver == rank]
        ends = [
            [
                (peer, TilePart.of(message, tile))
                for peer, box in ours
                for message in _messages(box, longest, slab[longest], most)
                if tile is not None
            ]
            for tile, ours in zip(tiles, (leaving, arriving), strict=True)
        ]
        turns += [CallTurn(send, receive) for send, receive in zip_longest(*ends)]
    sent = [turn.send[1].size for turn in turns if turn.send is not None]
    received = [turn.receive[1].size for turn in turns if turn.receive is not None]
    least = 1 if move.reduction is None else 0  # a single element is packed nowhere, and unpacked where it is combined
    return TurnwiseExchange(
        exchange.source_shape,
        exchange.target_shape,
        copies=exchange.copies,
        reduction=exchange.reduction,
        classes=exchange.classes,
        send_size=max((size for size in sent if size > 1), default=0),
        receive_size=max((size for size in received if size > least), default=0),
        fill=exchange.fill,
        carrier=exchange.carrier,
        turns=tuple(turns),
    )


def _rounds(exchange: Exchange) -> Iterator[Sequence[Piece]]:
    """The pieces that travel, in rounds that are the same for all ranks."""
    pieces = [piece for device in exchange.source.mesh.devices for piece in exchange.outgoing(device)]
    if not isinstance(exchange, DigitExchange):
        yield from schedule(pieces)
        return
    by_round: dict[int, list[Piece]] = {}
    for piece in pieces:
        if piece.sender != piece.receiver:
            by_round.setdefault(piece.round, []).append(piece)
    yield from (by_round[number] for number in sorted(by_round))


def _messages(piece: Box, dim: int, length: int, most: int) -> list[Box]:
    """The boxes in which a piece goes: slabs of a length along a dim, halved until two are `most` elements."""
    start, stop = piece[dim]
    slabs = [_with(piece, dim, low, min(low + length, stop)) for low in range(start, stop, length)]
    return [message for slab in slabs for message in _halves(slab, max(1, most // 2))]


def _halves(box: Box, most: int) -> Iterator[Box]:
    if box.size <= most:
        yield box
        return
    dim = max(range(len(box.shape)), key=box.shape.__getitem__)
    start, stop = box[dim]
    middle = start + (stop - start) // 2
    yield from _halves(_with(box, dim, start, middle), most)
    yield from _halves(_with(box, dim, middle, stop), most)


def _with(box: Box, dim: int, start: int, stop: int) -> Box:
    return Box((start, stop) if number == dim else interval for number, interval in enumerate(box))
