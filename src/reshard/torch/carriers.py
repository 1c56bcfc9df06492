"""What brings the messages of a rank to others: a process group, and whether it takes them one by one or as a batch.

Messages go by sends and receives, which take no more ranks than have something to exchange.
On gloo they are faster than all-gather and reduce-scatter too, where the exchange is exactly one of these.
NCCL must have all messages at once: one by one they might wait in a circle.
All of a group may have to open such a batch, so it goes over the smallest group that has all messages, that of one
mesh dim; one by one they go over the default group, whose connections are in use anyway.

Torch's own tools count collectives and see no sends, so what runs in torch's stead goes as one all-to-all of a group
that has all messages: that of one mesh dim, or the default group where the mesh has all of its ranks.
All ranks of it join, those too that have nothing to send.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from reshard.axis import Axis
from reshard.errors import ReshardError
from reshard.exchange import DigitExchange, Exchange, KeptExchange, RingExchange
from reshard.mesh import Mesh


class Parcel(NamedTuple):
    """What is sent or received."""

    memory: torch.Tensor
    peer: int
    """The rank that it goes to or comes from."""


class Carrier(NamedTuple):
    """What brings messages to others."""

    group: Any
    """A process group that has all ranks of the exchange."""
    batches: bool
    """Whether it takes all messages at once."""

    def post(self, receives: Sequence[Parcel], sends: Iterable[Parcel]) -> tuple[list[Any], list[Any]]:
        """Post all messages; one that is packed only when it is asked for is so while those before it are on their way.

        Returns:
            What to wait for, once each: for what is sent, and for what is received, one per message; or, under the
            latter, one for all.
        """
        if self.batches:
            operations = [dist.P2POp(dist.irecv, memory, peer, self.group) for memory, peer in receives]
            operations += [dist.P2POp(dist.isend, memory, peer, self.group) for memory, peer in sends]
            return [], dist.batch_isend_irecv(operations) if operations else []
        receiving = [dist.irecv(memory, peer, self.group) for memory, peer in receives]
        return [dist.isend(memory, peer, self.group) for memory, peer in sends], receiving


class JointCarrier(NamedTuple):
    """An all-to-all of a group, in which each message is the part between two ranks."""

    group: Any
    ranks: tuple[int, ...]
    """Of the group, in its order."""
    device_type: str

    def post(self, receives: Sequence[Parcel], sends: Iterable[Parcel]) -> tuple[list[Any], list[Any]]:
        """Post it, also where nothing is sent and nothing received, for the others cannot without this rank.

        Returns:
            As of a `Carrier`; what is received has one work for all.
        """
        outgoing = {parcel.peer: parcel.memory.reshape(-1) for parcel in sends}
        incoming = {parcel.peer: parcel.memory for parcel in receives}
        arriving, leaving = (
            [parts[rank].numel() if rank in parts else 0 for rank in self.ranks] for parts in (incoming, outgoing)
        )
        memories = [*outgoing.values(), *incoming.values()]
        dtype = memories[0].dtype if memories else torch.uint8
        nothing = torch.empty(0, dtype=dtype, device=memories[0].device if memories else self.device_type)
        sent = torch.cat([nothing, *(outgoing[rank] for rank in self.ranks if rank in outgoing)])
        received = nothing.new_empty(sum(arriving))
        work = dist.all_to_all_single(received, sent, arriving, leaving, group=self.group, async_op=True)
        parts = dict(zip(self.ranks, torch.split(received, arriving), strict=True))
        return [], [_Arrival(work, sent, [(memory, parts[rank]) for rank, memory in incoming.items()])]


class _Arrival(NamedTuple):
    """What is received together."""

    work: Any
    sent: torch.Tensor
    """Lives until all is sent."""
    places: list[tuple[torch.Tensor, torch.Tensor]]
    """The memory of each message, and where it arrives."""

    def wait(self) -> None:
        self.work.wait()
        for memory, arrived in self.places:
            memory.copy_(arrived.view(memory.shape))


def joint_carrier_for(exchange: Exchange, mesh: DeviceMesh | None, ours: Mesh | None) -> JointCarrier | None:
    """An all-to-all for an exchange between tensors on one mesh; None where nothing travels, or no group has its ranks.

    Args:
        exchange: what all ranks of the mesh do.
        mesh: that of torch.
        ours: the same as it is here; None where the ends are on two.
    """
    if mesh is None or ours is None or exchange.total_received == 0:
        return None
    mesh_dim = 0 if mesh.ndim == 1 else line_of(exchange, ours)
    if mesh_dim is not None:
        group: Any = mesh.get_group(mesh_dim)
    elif ours.size == dist.get_world_size():
        group = dist.group.WORLD
    else:
        return None
    return JointCarrier(group, tuple(dist.get_process_group_ranks(group)), mesh.device_type)


def carrier_for(exchange: Exchange, mesh: DeviceMesh | None, ours: Mesh | None, device_type: str) -> Carrier:
    """What carries the messages of an exchange between tensors on devices of a type.

    Args:
        exchange: of which this rank has messages.
        mesh: the mesh of torch that this rank sends from; None where it only receives.
        ours: the mesh that both ends are on; None where they are on two.
        device_type: such as `cpu`.

    Raises:
        ReshardError: `exchange-failed` where no backend carries tensors on such devices.
    """
    mesh_dim = None if mesh is None or ours is None else line_of(exchange, ours)
    try:
        if mesh is not None and mesh_dim is not None and _batches(group := mesh.get_group(mesh_dim), device_type):
            return Carrier(group, batches=True)
        return Carrier(dist.group.WORLD, _batches(dist.group.WORLD, device_type))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ReshardError("exchange-failed", f"no messages go between devices of {device_type}: {reason}") from None


def _batches(group: Any, device_type: str) -> bool:
    return bool(group._get_backend(torch.device(device_type)).supports_coalescing)


def line_of(exchange: Exchange, mesh: Mesh) -> int | None:
    """The mesh dim that every message stays within; None where there is none, or it is not plain to see."""
    if isinstance(exchange, KeptExchange):  # whose messages are those without what was kept, or fewer
        exchange = exchange.whole
    if isinstance(exchange, RingExchange):
        moved = list(exchange.rings)
    elif isinstance(exchange, DigitExchange) and exchange.shares_devices:
        digits = exchange.common.digits
        moved = [digits[i] for i, j in enumerate(exchange.determined_by) if i != j or i in exchange.gathered]
    else:
        return None
    for mesh_dim, (name, _) in enumerate(mesh.axes):
        line = mesh.digit_of(Axis(name))
        if all(digit.lies_in(line) for digit in moved):
            return mesh_dim
    return None
