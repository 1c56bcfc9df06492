"""A whole model between ranks: in buckets, into memory that stays where it is.

A call begins with an agreement of all ranks of the plan on its digest and the version of the weights; until all have
said the same nothing moves.
Then every rank goes through its buckets in the global order: it packs one and posts its messages, posts the next, and
waits for the older of the two; both together are no larger than the plan's `in_flight`.
All ranks post the lowest bucket that is not done, so nothing waits in a circle.

What is packed, sent and unpacked is found once for the arrays that are handed in, and kept with the communicator.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from reshard.array_tiles import Array, cast_in_blocks, holds, part_of, plain
from reshard.checks import expect, integer
from reshard.dtypes import value_dtype
from reshard.errors import ReshardError
from reshard.models import ModelPlan
from reshard.models.block_scales import CastEnd
from reshard.models.laid_buckets import LaidBucket, LaidPiece, Progress, laid_buckets
from reshard.models.stores import Buffer, Slot, views
from reshard.models.written_views import WrittenView, check_apart
from reshard.mpi.participants import Participants, participants_of

Arrays = Mapping[str, Array]
NamedSlots = Mapping[str, tuple[Slot, ...]]
DEPTH = 2
"""Buckets under way at a time."""


class Copy(NamedTuple):
    """A part of an array that is copied, and cast on the way where the two differ."""

    to: Array
    of: Array


class PackedBucket(NamedTuple):
    """What a rank does for one bucket."""

    packing: list[Copy]
    laid: LaidBucket
    room: Array
    unpacking: list[Copy]


class RankTransfer:
    """One rank's part of a plan, between arrays that it knows."""

    def __init__(
        self, plan: ModelPlan, participants: Participants, handed: dict[str, Array], wanted: dict[str, Array]
    ) -> None:
        """Find what to copy, and make the rooms."""
        self.plan, self.participants = plan, participants
        self.handed, self.wanted = handed, wanted
        device = participants.device
        sources = self._cast("source", (plan.handed_slots(device)[0], handed), plan.source_slots(device))
        cast = {
            slot.buffer
            for tile in plan.casts_at(device, "target")
            for slot in plan.target_slots(device)[0][tile.scaled.name]
        }
        targets = {
            name: np.zeros(buffer.shape, value_dtype(buffer.dtype)) if name in cast else wanted[name]
            for name, buffer in plan.target_slots(device)[1].items()
        }
        self.arrays = sources, targets
        self.slots: tuple[NamedSlots, NamedSlots] = plan.source_slots(device)[0], plan.target_slots(device)[0]
        part = plan.part_of(device)
        self.keeping: list[Copy] = []
        for tensor, box in part.kept():
            name = plan.names[tensor]
            for inner, to in views(self.slots[1][name], targets, box):
                for least, of in views(self.slots[0][name], sources, inner):
                    self.keeping += self._copies(tensor, to[least.slices(inner)], of)
        laid = laid_buckets(plan, part, DEPTH)
        rooms = [np.empty(size, np.uint8) for size in laid.room_bytes]
        self.buckets = []
        for bucket in laid.buckets:
            room = rooms[bucket.room]
            packing, unpacking = (
                [copy for message in messages for piece in message.pieces for copy in self._of(end, piece, room)]
                for end, messages in enumerate((bucket.sends, bucket.receives))
            )
            self.buckets.append(PackedBucket(packing, bucket, room, unpacking))

    def is_for(self, arrays: Arrays, out: Arrays) -> bool:
        """Whether these are the arrays that it was made for."""
        ends = zip((arrays, out), (self.handed, self.wanted), strict=True)
        return all(given.get(name) is array for given, known in ends for name, array in known.items())

    def _copies(self, tensor: int, to: Array, of: Array) -> list[Copy]:
        """A copy between two buffers: of bits, or of values where they are cast."""
        before, after = self.plan.group_of[tensor].dtypes
        if before == after:
            return [Copy(to, of.view(to.dtype))]
        return [Copy(to.view(value_dtype(after)), of.view(value_dtype(before)))]

    def _of(self, end: int, piece: LaidPiece, room: Array) -> list[Copy]:
        """The copies of a piece between its place in a room and its buffers."""
        group = self.plan.group_of[piece.tensor]
        wire, own = group.wire, group.dtypes[end]
        memory = room[piece.start : piece.start + piece.box.size * wire.itemsize]
        copies = []
        for part, view in views(self.slots[end][self.plan.names[piece.tensor]], self.arrays[end], piece.box):
            kinds = (view.dtype, view.dtype) if wire == own else (value_dtype(wire), value_dtype(own))
            within = part_of(memory.view(kinds[0]).reshape(piece.box.shape), part.slices(piece.box))
            held = view.view(kinds[1])
            copies.append(Copy(within, held) if end == 0 else Copy(held, within))
        return copies

    def _cast(
        self,
        end: CastEnd,
        given: tuple[NamedSlots, Arrays],
        made: tuple[NamedSlots, Mapping[str, Buffer]],
        into: Arrays | None = None,
    ) -> dict[str, Array]:
        return cast_in_blocks(self.plan, self.participants.device, end, given, made, into)

    def run(self, progress: Progress | None) -> None:
        """Cast what is cast here, go through the buckets, cast what is cast there."""
        plan, device = self.plan, self.participants.device
        if plan.scaled:
            self._cast("source", (plan.handed_slots(device)[0], self.handed), plan.source_slots(device), self.arrays[0])
        self._exchange(progress)
        if plan.scaled:
            self._cast("target", (self.slots[1], self.arrays[1]), plan.wanted_slots(device), self.wanted)

    def _exchange(self, progress: Progress | None) -> None:
        comm, places = self.participants.comm, self.participants.place_of
        total, done = sum(bucket.laid.nbytes for bucket in self.buckets), 0
        under_way: list[tuple[PackedBucket, list[MPI.Request]]] = []

        def finish() -> None:
            nonlocal done
            bucket, requests = under_way.pop(0)
            MPI.Request.Waitall(requests)
            _run(bucket.unpacking)
            done += bucket.laid.nbytes
            if progress is not None:
                progress(done, total)

        for number, bucket in enumerate(self.buckets):
            if len(under_way) == DEPTH:
                finish()
            room, laid = bucket.room, bucket.laid
            requests = [comm.Irecv(room[m.start : m.stop], places[m.peer]) for m in laid.receives]
            _run(bucket.packing)
            requests += [comm.Isend(room[m.start : m.stop], places[m.peer]) for m in laid.sends]
            under_way.append((bucket, requests))
            if number == 0:
                _run(self.keeping)
        while under_way:
            finish()
        if not self.buckets:
            _run(self.keeping)

    def free(self) -> None:
        """Nothing of MPI is held."""


def _run(copies: list[Copy]) -> None:
    for to, of in copies:
        np.copyto(to, of, casting="unsafe")


def transfer(
    arrays: Arrays,
    plan: ModelPlan,
    comm: MPI.Intracomm | None = None,
    out: Arrays | None = None,
    *,
    version: int = 0,
    progress: Progress | None = None,
) -> dict[str, Array]:
    """Move a model between ranks, by a plan that all of them have.

    A rank is a device of the plan; one that is none of its devices may call too, and does nothing.
    Where an array of `out` shares memory with one of `arrays`, that one is copied first.

    Args:
        arrays: by the names of the source's buffers, those of this rank, as `plan.handed_slots(rank)` says them.
        plan: the same on all ranks.
        comm: whose ranks are the devices; the world where it is not given.
        out: by the names of the target's buffers, what is written; fresh arrays where it is not given.
        version: of the weights; all ranks must say the same.
        progress: told how far this rank is.

    Returns:
        The arrays by buffer, those of `out` where it is given.

    Raises:
        ReshardError: before anything moves, `bad-argument`, `bad-tiles`, `missing-extra` where values are cast that
            NumPy lacks, and `ranks-disagree` where a rank has another plan or version; `exchange-failed`.
    """
    expect(plan, ModelPlan, "what a model is transferred by")
    version = integer(version, "the version of a transfer")
    participants = participants_of(comm, plan.devices)
    if participants is None:
        return {}
    with participants.telling(True):
        local = _prepared(arrays, plan, out, participants)
    participants.agree(f"{plan.digest} {version}", lambda: f"version {version} of the model by plan {plan.digest[:8]}")
    try:
        local.run(progress)
    except MPI.Exception as error:
        reason = error.Get_error_string()
        raise ReshardError("exchange-failed", f"the transfer of version {version} broke off: {reason}") from None
    return dict(local.wanted)


def _prepared(arrays: Arrays, plan: ModelPlan, out: Arrays | None, participants: Participants) -> RankTransfer:
    """What to do, all arrays being checked."""
    device, key = participants.device, ("transfer", plan)
    kept: RankTransfer | None = participants.kept(key)
    if kept is not None and out is not None and kept.is_for(arrays, out):
        return kept
    sources = _checked(arrays, plan.handed_slots(device)[1], "arrays")
    buffers = plan.wanted_slots(device)[1]
    if out is None:
        known = {plan.handed_slots(device)[1][name].dtype.name: array.dtype for name, array in sources.items()}
        targets = {
            name: np.zeros(buffer.shape, known.get(buffer.dtype.name) or value_dtype(buffer.dtype))
            for name, buffer in buffers.items()
        }
    else:
        targets = _checked(out, buffers, "out")
        for name, array in targets.items():
            if not array.flags.writeable:
                raise ReshardError("bad-tiles", f"{name!r} of out cannot be written")
        check_apart(WrittenView.of_array(name, array) for name, array in targets.items() if array.size)
    for name in _overlapping(sources, targets):
        sources[name] = sources[name].copy()
    local = RankTransfer(plan, participants, sources, targets)
    participants.keep(key, local)
    return local


def _overlapping(sources: dict[str, Array], targets: dict[str, Array]) -> list[str]:
    """The sources that may share memory with a target."""
    written = sorted(_extent(array) for array in targets.values() if array.size)
    highest = list(accumulate((stop for _, stop in written), max))
    names = []
    for name, array in sources.items():
        low, high = _extent(array)
        before = bisect_left(written, (high, 0))  # so many begin below its end
        if array.size and before and highest[before - 1] > low:
            names.append(name)
    return names


def _extent(array: Array) -> tuple[int, int]:
    """From which address to which an array has elements, others perhaps between them."""
    steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    start: int = array.ctypes.data
    return start + sum(min(step, 0) for step in steps), start + sum(max(step, 0) for step in steps) + array.itemsize


def _checked(arrays: Arrays, buffers: Mapping[str, Buffer], what: str) -> dict[str, Array]:
    """The arrays of the buffers, if they are as planned.

    Raises:
        ReshardError: `bad-tiles`.
    """
    expect(arrays, Mapping, what)  # type: ignore[type-abstract]
    result = {}
    for name, buffer in buffers.items():
        if not isinstance(arrays.get(name), np.ndarray):
            raise ReshardError("bad-tiles", f"{what} has no array {name!r}")
        array = plain(arrays[name], f"{name!r} of {what}")
        if array.shape != buffer.shape or not holds(array.dtype, buffer.dtype, False):
            raise ReshardError(
                "bad-tiles",
                f"{name!r} of {what} is {array.dtype} of shape {array.shape}; "
                f"it must be {buffer.dtype} of shape {buffer.shape}",
            )
        result[name] = array
    return result
