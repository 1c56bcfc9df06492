"""One rank's part of a plan: what it sends, receives and puts together, made once from its own coordinates.

Where every piece lies at one place of the tile before and of the tile after, messages go from tile to tile by
datatypes: by one Alltoallw where most ranks talk with most, else by sends and receives, which cost nothing for those
that have nothing to say to each other.
Large pieces that are thin strips of the tile before, or many, are packed, if a buffer may be kept: MPI takes up to
fifteen times as long to go through these while it sends. Wide ones it copies from tile to tile, once instead of twice.
What is summed before it is sent, or combined once it is there, has a buffer of its own size; so has what comes twice
into a window.
Ranks whose tiles are shared with this one send it nothing: it reads these.
Along a ring messages go in hops: all that comes has a buffer, that of every second hop the same, and what is handed on
is sent from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from reshard.array_tiles import Array, assembled, first_part, part_of, sent_part
from reshard.box import Box
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.exchange import Piece, RingExchange
from reshard.mpi.participants import Participants
from reshard.mpi.subarrays import is_packed_sooner, memory_of, runs_of, subarrays
from reshard.plans import Plan
from reshard.steps import Move
from reshard.tile import Tile
from reshard.tiling import Tiling

TAG = 0


@dataclass(frozen=True)
class MessageEnd:
    """All that one rank sends in a move, or receives."""

    pieces: dict[int, list[Piece]]
    """By the other rank, in the order in which it has them too."""
    types: dict[int, MPI.Datatype]
    room_bytes: int | None
    """Of the buffer that messages are packed into, one after the other; None where they lie in the tile."""
    starts: dict[Piece, int]
    """Where each piece begins in the buffer, in bytes."""

    @classmethod
    def of(
        cls,
        pieces: Iterable[tuple[int, Piece]],
        shape: tuple[int, ...],
        place_of: Callable[[Box], tuple[slice, ...]] | None,
        itemsize: int,
    ) -> MessageEnd:
        """The messages of some pieces.

        Args:
            pieces: each with the other rank.
            shape: of the tile.
            place_of: where a box lies in it; None where messages have a buffer.
            itemsize: bytes per element.
        """
        by_peer: dict[int, list[Piece]] = {}
        for peer, piece in pieces:
            by_peer.setdefault(peer, []).append(piece)
        types, starts, end = {}, {}, 0
        for peer, parts in by_peer.items():
            if place_of is not None:
                types[peer] = subarrays(shape, [place_of(piece.box) for piece in parts], itemsize)
                continue
            first = end
            for piece in parts:
                starts[piece] = end
                end += piece.box.size * itemsize
            types[peer] = runs_of([(first, end - first)])
        return cls(by_peer, types, None if place_of is not None else end, starts)

    @classmethod
    def handed_on(cls, pieces: Iterable[Piece], came: MessageEnd, itemsize: int) -> MessageEnd:
        """The messages of pieces that came in the hop before, where they lie: along one ring the front of one of those.

        Args:
            pieces: in the order in which they go.
            came: the messages of that hop, in their buffer.
            itemsize: bytes per element.
        """
        starts = {piece.box: start for piece, start in came.starts.items()}
        by_peer: dict[int, list[Piece]] = {}
        for piece in pieces:
            by_peer.setdefault(piece.receiver, []).append(piece)
        types = {
            peer: runs_of([(starts[part.box], part.box.size * itemsize) for part in parts])
            for peer, parts in by_peer.items()
        }
        return cls(by_peer, types, None, {})

    def free(self) -> None:
        """Give the datatypes back."""
        for datatype in self.types.values():
            datatype.Free()


class Hop(NamedTuple):
    """What is under way at once; of most moves all."""

    sends: MessageEnd
    receives: MessageEnd
    wanted: list[Piece]
    """What comes into the tile with it, in the order in which it is combined; with the first what is kept too."""


class PieceCopy(NamedTuple):
    """A piece that is read where it lies."""

    piece: Piece
    place: tuple[slice, ...]
    """In the tile after."""
    of: tuple[slice, ...] | None
    """In the tile before; None where that is summed first."""
    part: tuple[slice, ...]
    """What of it is wanted."""
    shape: tuple[int, ...]
    """Of the tile before."""


class LocalMove:
    """One rank's part of a move."""

    def __init__(self, move: Move, participants: Participants, dtype: DType, *, keeps_rooms: bool) -> None:
        """Find the messages; `keeps_rooms` says whether buffers stay for the next call."""
        self.keeps_rooms = keeps_rooms
        exchange, device = move.exchange, participants.device
        self.move, self.participants = move, participants
        source = _tile_of(exchange.source, device)
        self.target = _tile_of(exchange.target, device)
        outgoing = [] if source is None else exchange.outgoing(device)
        self.incoming = [] if self.target is None else exchange.incoming(device)
        taken = self.incoming if self.target is None or exchange.hops == 1 else exchange.taken(device)
        leaving = exchange.by_hop(piece for piece in outgoing if piece.receiver != device)
        arriving = exchange.by_hop(piece for piece in taken if piece.sender != device)
        sent = [(piece.receiver, piece) for piece in leaving[0]]
        shape = () if source is None else source.shape
        is_summed = exchange.source.layout.is_summed
        of_source = [piece for _, piece in sent if not exchange.is_kept(device, piece.box)]
        is_packed = len(of_source) < len(sent) or (keeps_rooms and is_packed_sooner(sent, shape, dtype.itemsize))
        self.sent_places = (
            {} if source is None or is_summed else {piece: source.owned_place(piece.box) for piece in of_source}
        )
        sends = MessageEnd.of(
            sent,
            shape,
            None if source is None or is_packed or is_summed else source.owned_place,
            dtype.itemsize,
        )
        self.hops: list[Hop] = []
        for number, (pieces, wanted) in enumerate(zip(arriving, exchange.by_hop(self.incoming), strict=True)):
            receives = MessageEnd.of(
                [(piece.sender, piece) for piece in pieces],
                () if self.target is None else self.target.shape,
                self._place if self.is_straight else None,
                dtype.itemsize,
            )
            if number:
                sends = MessageEnd.handed_on(leaving[number], self.hops[-1].receives, dtype.itemsize)
            self.hops.append(Hop(sends, receives, wanted))

    @cached_property
    def is_straight(self) -> bool:
        """Whether what arrives lies at one place of the tile, and stands there as it came."""
        target = self.target
        is_put_together = self.move.reduction is not None or self.move.fill is not None
        if target is None or is_put_together or self._is_of_several_tiles:
            return False
        return all(len(target.places(piece.box)) == 1 for piece in self.incoming)

    @property
    def _is_of_several_tiles(self) -> bool:
        """Whether what comes is handed on, or stays of a tile from before."""
        return isinstance(self.move.exchange, RingExchange) or self.move.exchange.kept is not None

    def _place(self, box: Box) -> tuple[slice, ...]:
        target: Any = self.target
        place: tuple[slice, ...] = target.places(box)[0][0]
        return place

    @cached_property
    def is_all_written(self) -> bool:
        """Whether something comes into every element of the tile."""
        return not self.move.exchange.target.layout.has_windows

    @cached_property
    def is_dense(self) -> bool:
        """Whether most ranks talk with most."""
        try:
            return self.move.exchange.hops == 1 and 2 * self.move.exchange.rounds >= len(self.participants.devices)
        except ReshardError:  # too many pieces to count
            return False

    @cached_property
    def peers(self) -> set[int]:
        """The devices that this one has messages from, or for."""
        return {device for hop in self.hops for end in hop[:2] for device in end.types}

    @property
    def room_bytes(self) -> int:
        """Of all buffers: that of what is packed, and of what is received in every second hop one."""
        received = [hop.receives.room_bytes or 0 for hop in self.hops]
        return (self.hops[0].sends.room_bytes or 0) + max(received[::2]) + max(received[1::2], default=0)

    @cached_property
    def copies_in_turn(self) -> list[PieceCopy]:
        """The pieces that come into a straight move, those of the next ranks first: not all ranks read one memory."""
        participants, exchange, copies = self.participants, self.move.exchange, []
        own = participants.place_of[participants.device]
        count = len(participants.devices)
        for piece in sorted(self.incoming, key=lambda piece: (participants.place_of[piece.sender] - own) % count):
            if self.target is not None:
                place, part = self.target.places(piece.box)[0]
                tile = exchange.source.tile(piece.sender)
                of = None if exchange.source.layout.is_summed else tile.owned_place(piece.box)
                copies.append(PieceCopy(piece, place, of, part, tile.shape))
        return copies

    @cached_property
    def _all_to_all(self) -> list[tuple[list[int], list[int], list[MPI.Datatype]]]:
        """What Alltoallw is told of either end, but for the memory."""
        devices = self.participants.devices
        return [
            (
                [int(device in end.types) for device in devices],
                [0] * len(devices),
                [end.types.get(device, MPI.BYTE) for device in devices],
            )
            for end in self.hops[0][:2]
        ]

    def run(
        self,
        tile: Array | None,
        dtype: np.dtype[Any],
        out: Array | None = None,
        near: Mapping[int, Any] | None = None,
        kept: Array | None = None,
    ) -> Array | None:
        """The tile after the move.

        Args:
            tile: before it, contiguous; None on a rank that has none.
            dtype: of all.
            out: memory for it.
            near: by device, the memory of tiles that this rank can read, whose ranks read its tile too; None where no
                rank reads another's.
            kept: the rank's first tile in the plan.
        """
        if self._is_of_several_tiles:  # what is handed on is not in the tile of who hands it on
            near = None
        if not self.is_straight:
            pieces = self._arriving(tile, kept, dtype, near)
            if self.target is not None:
                return assembled(self.move, self.participants.device, pieces, dtype, out)
            for _ in pieces:  # nothing comes, but what is sent must go
                pass
            return None
        array = out
        if out is None or not self.is_all_written:
            array = assembled(self.move, self.participants.device, (), dtype, out)
        requests = []
        if near is None or not self.peers <= near.keys():
            requests = self._posted(self.hops[0], self._leaving(tile, kept, dtype, near), array, near)
        if array is not None:
            for piece, place, of, part, shape in self.copies_in_turn:
                values = self._at_hand(piece.sender, shape, tile, dtype, near)
                if values is not None:
                    part_of(array, place)[...] = part_of(self._sent(values, piece, of), part)
        if requests:
            MPI.Request.Waitall(requests)
        return array

    def _arriving(
        self, tile: Array | None, kept: Array | None, dtype: np.dtype[Any], near: Mapping[int, Any] | None
    ) -> Iterator[tuple[Box, Array]]:
        """What comes into the tile, hop by hop; the next hop is under way while what came is put in its place."""
        memory, room = self._leaving(tile, kept, dtype, near), self._received_room(0)
        requests = self._posted(self.hops[0], memory, room, near)
        for number, hop in enumerate(self.hops):
            MPI.Request.Waitall(requests)
            memory = room
            if number + 1 < len(self.hops):
                room = self._received_room(number + 1)
                requests = self._posted(self.hops[number + 1], memory, room, near)
            for piece in hop.wanted:
                shape = self.move.exchange.source.tile(piece.sender).shape
                values = self._at_hand(piece.sender, shape, tile, dtype, near)
                if values is None:
                    start = hop.receives.starts[piece]
                    came = memory[start : start + piece.box.size * dtype.itemsize]
                    yield piece.box, came.view(dtype).reshape(piece.box.shape)
                else:
                    yield piece.box, first_part(self.move.exchange, piece.sender, piece.box, values, kept)

    def _at_hand(
        self,
        device: int,
        shape: tuple[int, ...],
        tile: Array | None,
        dtype: np.dtype[Any],
        near: Mapping[int, Any] | None,
    ) -> Array | None:
        """The tile of a device before the move: that of the rank itself, or one that it reads; None for others."""
        if device == self.participants.device:
            return tile
        if near is None or device not in near:
            return None
        held: Array = near[device].view(dtype).reshape(shape)
        return held

    def _sent(self, values: Any, piece: Piece, of: tuple[slice, ...] | None) -> Array:
        """What is sent of a piece, of a tile that lies at hand."""
        return (
            sent_part(values, piece.box, self.move.exchange.source, piece.sender) if of is None else part_of(values, of)
        )

    def _room(self, use: str, nbytes: int) -> Array:
        return self.participants.room(use, nbytes) if self.keeps_rooms else np.empty(nbytes, np.uint8)

    def _received_room(self, hop: int) -> Array:
        return self._room(f"received {hop % 2}", self.hops[hop].receives.room_bytes or 0)

    def _leaving(
        self, tile: Array | None, kept: Array | None, dtype: np.dtype[Any], near: Mapping[int, Any] | None
    ) -> Array | None:
        """What is sent first: the tile, or a buffer, in which nothing is packed for those that read the tile."""
        sends = self.hops[0].sends
        if sends.room_bytes is None:
            return tile
        room = self._room("sent", sends.room_bytes)
        if tile is None:
            return room
        for piece, start in sends.starts.items():
            if near is not None and piece.receiver in near:
                continue
            place = room[start : start + piece.box.size * dtype.itemsize].view(dtype).reshape(piece.box.shape)
            of = self.sent_places.get(piece)
            if of is not None:
                place[...] = part_of(tile, of)
            else:
                place[...] = first_part(self.move.exchange, piece.sender, piece.box, tile, kept)
        return room

    def _posted(
        self, hop: Hop, sent: Array | None, received: Array | None, near: Mapping[int, Any] | None
    ) -> list[MPI.Request]:
        """What to wait for."""
        comm, places = self.participants.comm, self.participants.place_of
        memories = memory_of(sent), memory_of(received)
        if self.is_dense and near is None:
            sends, receives = self._all_to_all
            comm.Alltoallw([memories[0], *sends], [memories[1], *receives])
            return []
        requests = [
            comm.Irecv([memories[1], 1, datatype], places[peer], TAG)
            for peer, datatype in hop.receives.types.items()
            if near is None or peer not in near
        ]
        requests += [
            comm.Isend([memories[0], 1, datatype], places[peer], TAG)
            for peer, datatype in hop.sends.types.items()
            if near is None or peer not in near
        ]
        return requests


def _tile_of(tiling: Tiling, device: int) -> Box | Tile | None:
    return tiling.tile(device) if device in tiling.mesh else None


class RankPlan:
    """One rank's part of a plan."""

    def __init__(self, plan: Plan, participants: Participants) -> None:
        """Without a message.

        Raises:
            ReshardError: `no-plan` where the plan has a limit on memory that buffers would break; `too-large`.
        """
        self.plan, self.device, self.participants = plan, participants.device, participants
        self.keeps_rooms = plan.options.memory_limit is None
        self.digest = hashlib.blake2b(plan.to_json().encode(), digest_size=16).hexdigest()
        """The same on all ranks that run the same plan."""
        self.dtype: np.dtype[Any] | None = None
        """Of the tile that was last found to be one of the plan's."""
        self.moves: list[LocalMove] = []
        self.of_parts: list[RankPlan] = []
        """Of every part where the tensor goes in parts; equal ones are one."""
        self.of_stretches: list[RankPlan] = []
        """Of every stretch, where there are several."""
        try:
            if len(plan.stretches) > 1:
                self.of_stretches = [RankPlan(stretch, participants) for stretch in plan.stretches]
            elif plan.parts > 1:
                distinct = {id(of_part): of_part for of_part in plan.plans_of_parts}
                by_plan = {key: RankPlan(of_part, participants) for key, of_part in distinct.items()}
                self.of_parts = [by_plan[id(of_part)] for of_part in plan.plans_of_parts]
            for step in plan.steps if plan.parts == 1 else ():
                self.moves += [
                    LocalMove(move, participants, plan.dtype, keeps_rooms=self.keeps_rooms) for move in step.transfers
                ]
            self.source_shape, self.target_shape = (
                None if tile is None else tile.shape
                for tile in (_tile_of(Tiling.of(end, plan.shape), self.device) for end in (plan.source, plan.target))
            )
            self._check_limit()
            self.is_one_move = (
                len(self.moves) == 1
                and self.moves[0].move.exchange.source.shape == plan.shape == self.moves[0].move.exchange.target.shape
            )
        except ReshardError:
            self.free()
            raise

    def _check_limit(self) -> None:
        """Refuse buffers beyond the plan's limit."""
        limit = self.plan.options.memory_limit
        shapes = [self.source_shape, *(None if move.target is None else move.target.shape for move in self.moves)]
        sizes = [0 if shape is None else prod(shape) * self.plan.dtype.itemsize for shape in shapes]
        held = zip(sizes, sizes[1:], self.moves, strict=False)
        need = max((before + after + move.room_bytes for before, after, move in held), default=0)
        if limit is not None and need > limit:
            raise ReshardError(
                "no-plan", f"MPI combines values as they come: rank {self.device} needs {need} bytes, not {limit}"
            )

    def run(
        self,
        tile: Array | None,
        dtype: np.dtype[Any],
        out: Array | None = None,
        near: Mapping[int, Any] | None = None,
    ) -> Array | None:
        """The tile of the target, in fresh memory or in `out`; see `LocalMove.run`."""
        if self.is_one_move:
            return self.moves[0].run(tile, dtype, out, near, tile)
        for number, stretch in enumerate(self.of_stretches, 1):
            is_last = number == len(self.of_stretches)
            tile = stretch.run(tile, dtype, out if is_last else None, near if number == 1 else None)
        if self.of_stretches:
            return tile
        if self.of_parts:
            return self._in_parts(tile, dtype, out)
        kept = tile
        for number, move in enumerate(self.moves):
            target = move.target
            if tile is not None and number == 0 and move.move.exchange.source.shape != self.plan.shape:
                tile = tile.reshape(1)  # a scalar moved as a vector
            memory = None
            if target is not None and number + 1 < len(self.moves) and self.keeps_rooms:
                nbytes = prod(target.shape) * dtype.itemsize
                memory = self.participants.room(f"tile {number % 2}", nbytes).view(dtype).reshape(target.shape)
            elif target is not None and out is not None and number + 1 == len(self.moves):
                memory = out.reshape(target.shape)
            tile = move.run(tile, dtype, memory, near if number == 0 else None, kept)
        if self.target_shape is None:
            return None
        if out is not None:
            if not self.moves:
                out[...] = np.reshape(tile, out.shape)  # type: ignore[arg-type]
            return out
        copied = tile if self.moves else np.array(tile, order="C")
        return np.reshape(copied, self.target_shape)  # type: ignore[arg-type]

    def _in_parts(self, tile: Array | None, dtype: np.dtype[Any], out: Array | None) -> Array | None:
        """The tile, one equal part of the tensor after the other."""
        parting, count, moved = self.plan.parting, self.plan.parts, []
        for number, of_part in enumerate(self.of_parts):
            part = None if tile is None else np.ascontiguousarray(parting.cut(tile, count, number, np.concatenate))
            moved.append(of_part.run(part, dtype))
        if self.target_shape is None:
            return None
        joined: Array = parting.joined(moved, np.concatenate)
        if out is None:
            return joined
        out[...] = joined
        return out

    def free(self) -> None:
        """Give the datatypes back."""
        for nested in {id(nested): nested for nested in (*self.of_parts, *self.of_stretches)}.values():
            nested.free()
        for end in (end for move in self.moves for hop in move.hops for end in hop[:2]):
            end.free()
