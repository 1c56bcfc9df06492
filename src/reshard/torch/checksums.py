"""Whether a model has arrived: sums that add up over any tiling, of what was sent and of what is there.

The sum of a tensor is that of its elements' bits, each times an odd number that its place gives, modulo 2^64; so the
sums of tiles add up to it, however they are cut, and an element at another's place changes it.
Of the source the first holder of each tile counts; of the target every holder does, and the sum must be that of the
source times the number of copies.
Values that are cast are summed as they travel, and what is no number as nothing.

By hand, the elements 5, 6, 7 of one byte: 5 * 1 + 6 * 3 + 7 * 5 = 58; as tiles of 2 and 1, 23 + 35.

>>> box, values = Box([(0, 3)]), torch.tensor([5, 6, 7], dtype=torch.uint8)
>>> tile_sum(values, box, (3,)), tile_sum(values[:2], Box([(0, 2)]), (3,)), tile_sum(values[2:], Box([(2, 3)]), (3,))
(58, 23, 35)
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
import torch.distributed as dist

from reshard.box import Box
from reshard.errors import ReshardError
from reshard.models import ModelPlan
from reshard.models.stores import views

CHUNK = 1 << 20
"""Elements whose places are counted at a time."""
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
NAMED = 3
"""How many tensors a sentence names."""


def tile_sum(values: torch.Tensor, box: Box, shape: tuple[int, ...]) -> int:
    """The sum of a part of a tensor, as a signed number of 64 bits.

    Args:
        values: of the part.
        box: where it lies.
        shape: of the tensor.
    """
    if not values.numel():
        return 0
    if values.element_size() == 16:
        values = torch.view_as_real(values).reshape(*values.shape[:-1], -1) if values.dim() else values.reshape(1)
        return tile_sum(values, Box([*box[:-1], (2 * box[-1][0], 2 * box[-1][1])]), (*shape[:-1], 2 * shape[-1]))
    bits = values.contiguous().view(BITS[values.element_size()]).reshape(values.shape or (1,))
    ends, sizes = box or Box([(0, 1)]), shape or (1,)
    strides = [2 * prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    step = max(1, CHUNK // max(1, prod(bits.shape[1:])))
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for low in range(0, bits.shape[0], step):
        part = bits[low : low + step]
        places = torch.ones((), dtype=torch.int64, device=bits.device)
        for dim, (start, stride) in enumerate(zip((first for first, _ in ends), strides, strict=True)):
            first = start + low if dim == 0 else start
            numbers = torch.arange(first, first + part.shape[dim], device=bits.device) * stride
            places = places + numbers.reshape(-1, *[1] * (len(sizes) - dim - 1))
        total += (part.to(torch.int64) * places).sum()
    return int(total)


def check_arrival(
    plan: ModelPlan, rank: int, sources: Mapping[str, torch.Tensor], targets: Mapping[str, torch.Tensor]
) -> None:
    """Refuse a target that is not what the source was; all ranks of the plan must call it.

    Args:
        plan: what was done.
        rank: this one.
        sources: its buffers of the source.
        targets: its buffers of the target.

    Raises:
        ReshardError: `verify-failed` on all of them.
    """
    sums = torch.zeros((2, len(plan.names)), dtype=torch.int64)
    for end, (buffers, slots) in enumerate(
        ((sources, plan.source_slots(rank)[0]), (targets, plan.target_slots(rank)[0]))
    ):
        for number, name in enumerate(plan.names):
            group = plan.group_of[number]
            place = group.source.position_of.get(rank) if end == 0 else None
            if name not in slots or (end == 0 and (place is None or group.moves.number[place])):
                continue
            for slot in slots[name]:
                for box, view in views((slot,), buffers, slot.box):
                    wire = view.to(getattr(torch, group.wire.name)).contiguous()
                    if group.dtypes[0] != group.dtypes[1]:  # a cast may change the bits of what is no number
                        bits = wire.view(BITS[group.wire.itemsize])
                        wire = bits.masked_fill(wire.to(torch.float64).isnan(), 0)
                    sums[end, number] += tile_sum(wire, box, group.source.shape)
    total = _added_up(plan, rank, sums)
    copies = torch.tensor(
        [len(plan.group_of[number].target.layout.free.offsets()) for number in range(len(plan.names))]
    )
    wrong = (total[0] * copies != total[1]).nonzero().flatten().tolist()
    if wrong:
        names = ", ".join(repr(plan.names[number]) for number in wrong[:NAMED])
        more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        raise ReshardError("verify-failed", f"{names}{more} did not arrive as sent, or replicas of the source differ")


def _added_up(plan: ModelPlan, rank: int, sums: torch.Tensor) -> torch.Tensor:
    """The sums of all ranks of a plan."""
    if len(plan.devices) == 1:
        return sums
    if len(plan.devices) == dist.get_world_size():
        dist.all_reduce(sums)
        return sums
    first, *others = plan.devices
    if rank != first:
        dist.send(sums, first)
        dist.recv(sums, first)
        return sums
    received = torch.empty_like(sums)
    for other in others:
        dist.recv(received, other)
        sums += received
    for other in others:
        dist.send(sums, other)
    return sums
