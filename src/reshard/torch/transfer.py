"""A whole model between ranks: in buckets, into memory that stays where it is, nothing allocated after the first call.

A call begins with an agreement of all ranks of the plan on the plan's digest and the version of the weights; until all
have said the same nothing moves.
Then every rank goes through its buckets in the global order: it packs and posts one, posts the next, and waits for the
older of the two.
A rank posts the lowest bucket that is not done as soon as those before it are, so the ranks of the lowest bucket of all
have all posted it, and nothing waits in a circle.
Both buckets together are no larger than the plan's `in_flight`.

Where all ranks take part and most have something for most, a bucket is one all-to-all; else each message goes alone.

A caller need not wait for all of it: see `under_way`.

Copies are made by views that are kept with the plan, for as long as the same memory is handed in: one call of torch to
pack a bucket, one to unpack it.
Each tensor that is written is marked with the version it has, and with none while it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, overload
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from reshard.checks import expect, integer
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.models import ModelPlan
from reshard.models.device_part import DevicePart
from reshard.models.laid_buckets import LaidBucket, LaidMessage, LaidPiece, Progress, laid_buckets
from reshard.models.stores import Buffer, views
from reshard.torch.agreement import Statement, digest_of
from reshard.torch.block_casts import BlockCasts
from reshard.torch.carriers import Carrier, Parcel
from reshard.torch.checksums import check_arrival
from reshard.torch.dtensor_specs import dtype_of
from reshard.torch.handed_tensors import check_laid, check_strided, check_written
from reshard.torch.under_way import DEPTH, UNDER_WAY, Bucket, Copies, TransferUnderWay
from reshard.torch.world import World, current_world

Tensors = Mapping[str, torch.Tensor]
MARK = "reshard_version"
"""The attribute of a tensor that says which version it holds; None while it is being written."""


class LocalTransfer(NamedTuple):
    """One rank's part of a plan, between memory that it knows."""

    casts: tuple[BlockCasts, BlockCasts]
    """From what is handed in to what is sent, and from what arrives to what is wanted; mostly the same."""
    addresses: tuple[int, ...]
    """Of all that is handed in, and all that is wanted."""
    keeping: Copies
    """What the rank has itself."""
    buckets: list[Bucket]
    last_bucket: dict[str, int]
    """By tensor, the number of the last bucket that brings some of it; -1 where none does."""

    def is_for(self, state_dict: Tensors, out: Tensors) -> bool:
        """Whether these are the tensors that it was made for, and where they were."""
        addresses = iter(self.addresses)
        for tensors, known in ((state_dict, self.casts[0].before), (out, self.casts[1].after)):
            for name, tensor in known.items():
                held = tensors.get(name)
                held = getattr(held, "_local_tensor", held)
                if held is not tensor or tensor.data_ptr() != next(addresses):
                    return False
        return True


_KEPT: WeakKeyDictionary[ModelPlan, LocalTransfer] = WeakKeyDictionary()
"""By plan, what was made for the memory that was last handed in."""


@overload
def transfer(
    state_dict: Tensors,
    plan: ModelPlan,
    out: Tensors | None = None,
    *,
    version: int = 0,
    progress: Progress | None = None,
    verify: bool = False,
    async_op: Literal[False] = False,
) -> dict[str, torch.Tensor]: ...
@overload
def transfer(
    state_dict: Tensors,
    plan: ModelPlan,
    out: Tensors | None = None,
    *,
    version: int = 0,
    progress: Progress | None = None,
    verify: bool = False,
    async_op: bool,
) -> dict[str, torch.Tensor] | TransferUnderWay: ...
def transfer(
    state_dict: Tensors,
    plan: ModelPlan,
    out: Tensors | None = None,
    *,
    version: int = 0,
    progress: Progress | None = None,
    verify: bool = False,
    async_op: bool = False,
) -> dict[str, torch.Tensor] | TransferUnderWay:
    """Move a model between the ranks of the default process group, by a plan that all of them have.

    A rank is a device of the plan; one that is none of its devices may call too, and does nothing.
    Where a tensor of `out` shares memory with one of `state_dict`, that one is copied first.
    After an error the tensors of `out` are marked: `version_of(out)` is None until a transfer is done.

    Args:
        state_dict: by the names of the source's buffers, this rank's tensors, or DTensors, whose local tensors count.
        plan: the same on all ranks.
        out: by the names of the target's buffers, what is written; fresh tensors where it is not given.
        version: of the weights; all ranks must say the same.
        progress: told how far this rank is.
        verify: whether to compare sums over all that was sent with sums over what is there; all ranks must say the
            same.
        async_op: whether to come back once all ranks have agreed and the first buckets are under way; what comes
            back is waited for by bucket, by tensor or as a whole. Until then `state_dict` must not change.

    Returns:
        The tensors by buffer, those of `out` where it is given; or what to wait for, which gives them.

    Raises:
        ReshardError: before anything moves, `bad-argument`, `bad-tiles`, `ranks-disagree` where a rank has another plan
            or version, and `exchange-failed` where one does not come in time; `exchange-failed` too where one goes, and
            `verify-failed`.
    """
    expect(plan, ModelPlan, "what a model is transferred by")
    version = integer(version, "the version of a transfer")
    expect(verify, bool, "verify")
    expect(async_op, bool, "async_op")
    world = current_world()
    if world.rank not in plan.devices:
        nothing = TransferUnderWay([], Copies([], []), dict.fromkeys(plan.names, -1), dict, None)
        return nothing if async_op else {}
    local = _prepared_or_refused(state_dict, plan, out, world)
    words = f"version {version} of the model by plan {plan.digest[:8]}{', verified' if verify else ''}"
    statement = Statement(plan.devices, digest_of(plan.digest, version, verify), words)
    casting, uncasting = local.casts
    targets = uncasting.after
    for tensor in targets.values():
        setattr(tensor, MARK, None)
    world.check(statement, "always")
    with torch.no_grad():
        casting.run()

    def finish() -> dict[str, torch.Tensor]:
        if verify:
            check_arrival(plan, world.rank, casting.after, uncasting.before)
        uncasting.run()
        for tensor in targets.values():
            setattr(tensor, MARK, version)
        return dict(targets) if out is None else {name: out[name] for name in targets}

    handle = TransferUnderWay(local.buckets, local.keeping, local.last_bucket, finish, progress)
    return handle if async_op else handle.wait() or {}


def version_of(tensors: Tensors) -> int | None:
    """The version that all tensors of a state dict were last written with; None where a transfer broke off or differs.

    >>> version_of({"w": torch.zeros(2)}) is None
    True
    """
    versions = {getattr(_local(tensor), MARK, None) for tensor in tensors.values()}
    return versions.pop() if len(versions) == 1 else None


def _local(tensor: Any) -> torch.Tensor:
    """A tensor itself, or the local one of a DTensor."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def _prepared_or_refused(state_dict: Tensors, plan: ModelPlan, out: Tensors | None, world: World) -> LocalTransfer:
    """What to do; where that is nothing, the other ranks of the plan are told why before the error is raised."""
    try:
        if UNDER_WAY:
            raise ReshardError("bad-argument", "a transfer is still under way; wait for it before the next")
        with torch.no_grad():
            return _prepared(state_dict, plan, out, world.rank)
    except Exception as error:  # whatever it is, the others are not to wait for this rank
        if len(plan.devices) > 1:
            world.agreement.refuse(plan.devices, f"{getattr(error, 'code', type(error).__name__)}: {error}")
        raise


def _prepared(state_dict: Tensors, plan: ModelPlan, out: Tensors | None, rank: int) -> LocalTransfer:
    """What to do, all tensors being checked."""
    kept = _KEPT.get(plan)
    if kept is not None and out is not None and kept.is_for(state_dict, out):
        return kept
    sources = _checked(state_dict, plan.handed_slots(rank)[1], "state_dict")
    check_laid(state_dict, plan, 0, rank)
    device = next((tensor.device for tensor in sources.values()), None)
    buffers = plan.wanted_slots(rank)[1]
    if out is None:
        targets = {
            name: torch.zeros(buffer.shape, dtype=getattr(torch, buffer.dtype.name), device=device)
            for name, buffer in buffers.items()
        }
    else:
        targets = _checked(out, buffers, "out")
        check_laid(out, plan, 1, rank)
        check_written(targets)
    written = {tensor.untyped_storage().data_ptr() for tensor in targets.values() if tensor.numel()}
    sources = {
        name: tensor.clone() if tensor.numel() and tensor.untyped_storage().data_ptr() in written else tensor
        for name, tensor in sources.items()
    }
    device = device or next((tensor.device for tensor in targets.values()), torch.device("cpu"))
    casts = (
        BlockCasts.from_handed(plan, rank, sources, device),
        BlockCasts.into_wanted(plan, rank, targets, device),
    )
    local = _Maker(plan, rank, casts, device).local()
    _KEPT[plan] = local
    return local


def _checked(tensors: Tensors, buffers: Mapping[str, Buffer], what: str) -> dict[str, torch.Tensor]:
    """The tensors of the buffers, if they are as planned.

    Raises:
        ReshardError: `bad-tiles`.
    """
    expect(tensors, Mapping, what)  # type: ignore[type-abstract]
    result = {}
    for name, buffer in buffers.items():
        tensor = _local(tensors.get(name))
        if not isinstance(tensor, torch.Tensor):
            raise ReshardError("bad-tiles", f"{what} has no tensor {name!r}")
        check_strided(name, tensor, what)
        if tuple(tensor.shape) != buffer.shape or dtype_of(tensor.dtype) != buffer.dtype:
            raise ReshardError(
                "bad-tiles",
                f"{name!r} of {what} is {dtype_of(tensor.dtype)} of shape {tuple(tensor.shape)}; "
                f"it must be {buffer.dtype} of shape {buffer.shape}",
            )
        result[name] = tensor
    return result


class _Maker:
    """Makes one rank's part of a plan."""

    def __init__(
        self,
        plan: ModelPlan,
        rank: int,
        casts: tuple[BlockCasts, BlockCasts],
        device: torch.device,
    ) -> None:
        self.plan, self.casts, self.device = plan, casts, device
        self.slots = casts[0].slots[1], casts[1].slots[0]
        self.tensors = casts[0].after, casts[1].before
        self.part: DevicePart = plan.part_of(rank)

    def local(self) -> LocalTransfer:
        """All of it."""
        keeping = Copies([], [])
        for tensor, box in self.part.kept():
            name = self.plan.names[tensor]
            for part, to in views(self.slots[1][name], self.tensors[1], box):
                for inner, of in views(self.slots[0][name], self.tensors[0], part):
                    keeping.add(to[inner.slices(part)], of)
        together = _goes_together(self.plan)
        laid = laid_buckets(self.plan, self.part, DEPTH, all_of_plan=together)
        rooms = [torch.empty(size, dtype=torch.uint8, device=self.device) for size in laid.room_bytes]
        buckets = []
        for bucket in laid.buckets:
            packing, unpacking = Copies([], []), Copies([], [])
            room = rooms[bucket.room]
            for end, messages, copies in ((0, bucket.sends, packing), (1, bucket.receives, unpacking)):
                for message in messages:
                    for piece in message.pieces:
                        self._copy(end, piece, room, copies)
            post = _all_to_all(bucket, room) if together else self._messages(bucket, room)
            buckets.append(Bucket(bucket.number, packing, post, unpacking, bucket.nbytes))
        ends = self.casts[0].before, self.casts[1].after
        addresses = tuple(tensor.data_ptr() for tensors in ends for tensor in tensors.values())
        last_bucket = dict.fromkeys(self.plan.names, -1)
        for bucket in laid.buckets:
            for message in bucket.receives:
                last_bucket |= {self.plan.names[piece.tensor]: bucket.number for piece in message.pieces}
        return LocalTransfer(self.casts, addresses, keeping, buckets, last_bucket)

    def _copy(self, end: int, piece: LaidPiece, room: torch.Tensor, copies: Copies) -> None:
        """The copies of a piece between its place in a room and its buffers."""
        wire: DType = self.plan.group_of[piece.tensor].wire
        memory = room[piece.start : piece.start + piece.box.size * wire.itemsize]
        place = memory.view(getattr(torch, wire.name)).view(piece.box.shape)
        for part, view in views(self.slots[end][self.plan.names[piece.tensor]], self.tensors[end], piece.box):
            within = place[part.slices(piece.box)]
            copies.add(*((within, view) if end == 0 else (view, within)))

    def _messages(self, bucket: LaidBucket, room: torch.Tensor) -> Callable[[], tuple[list[Any], list[Any]]]:
        """What sends a bucket message by message."""
        group: Any = dist.group.WORLD
        carrier = Carrier(group, bool(group._get_backend(self.device).supports_coalescing))
        sends, receives = (
            [Parcel(room[message.start : message.stop], message.peer) for message in messages]
            for messages in (bucket.sends, bucket.receives)
        )
        return lambda: carrier.post(receives, sends)


def _goes_together(plan: ModelPlan) -> bool:
    """Whether a bucket goes as one all-to-all: where the plan has all ranks, and most have something for most."""
    ranks = len(plan.devices)
    return ranks > 1 and ranks == dist.get_world_size() and 2 * len(plan.traffic[0]) >= ranks * (ranks - 1)


def _all_to_all(bucket: LaidBucket, room: torch.Tensor) -> Callable[[], tuple[list[Any], list[Any]]]:
    """What sends a bucket as one all-to-all of all ranks, those too that have nothing in it."""
    (sent, leaving), (received, arriving) = (
        _in_one(messages, room, dist.get_world_size()) for messages in (bucket.sends, bucket.receives)
    )
    return lambda: ([], [dist.all_to_all_single(received, sent, arriving, leaving, async_op=True)])


def _in_one(messages: list[LaidMessage], room: torch.Tensor, ranks: int) -> tuple[torch.Tensor, list[int]]:
    """The memory of messages that lie one after the other, and the bytes of each rank."""
    sizes = [0] * ranks
    for message in messages:
        sizes[message.peer] = message.stop - message.start
    start = messages[0].start if messages else 0
    return room[start : start + sum(sizes)], sizes
