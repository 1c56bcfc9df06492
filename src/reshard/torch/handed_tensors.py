"""Whether tensors that are handed in are as a plan says, and can be read and written piece by piece.

A DTensor says itself where its tile lies; where that is elsewhere than the plan has it, the bytes would go astray.

>>> memory = torch.zeros(6)
>>> check_written({"a": memory[:4], "b": memory[4:], "tied": memory[:4]})
>>> check_written({"a": memory[:4], "b": memory[3:]})
Traceback (most recent call last):
    ...
reshard.errors.ReshardError: 'a' and 'b' of out lie on each other in memory
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from reshard.errors import ReshardError
from reshard.models import ModelPlan
from reshard.models.written_views import WrittenView, check_apart
from reshard.notation.described import described
from reshard.sharding import Sharding


def check_strided(name: str, tensor: torch.Tensor, what: str) -> None:
    """Refuse a tensor that has no memory of its elements.

    Raises:
        ReshardError: `bad-tiles`.
    """
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        kind = "on the meta device" if tensor.device.type == "meta" else f"{tensor.layout}".removeprefix("torch.")
        raise ReshardError("bad-tiles", f"{name!r} of {what} is {kind}; its elements must lie in memory")


def check_laid(tensors: Mapping[str, Any], plan: ModelPlan, end: int, device: int) -> None:
    """Refuse DTensors whose tile on a device is not the one that a plan has there.

    Those that are kept under another name, or with others in one buffer, are taken as they are.

    Args:
        tensors: by the names of buffers; those that are no DTensors say nothing.
        plan: what to do.
        end: 0 for its source, 1 for its target.
        device: the rank.

    Raises:
        ReshardError: `bad-tiles`.
    """
    live = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
    if not live:
        return
    slots = plan.target_slots(device)[0] if end else plan.source_slots(device)[0]
    for name, ruled in zip(plan.names, plan.ruled[end], strict=True):
        is_plain = all(slot.buffer == name and slot.stack is None for slot in slots.get(name, ()))
        said = _said_by(live[name]) if name in live and name in slots and is_plain else None
        if said is None:
            continue
        shape, tile = tuple(live[name].shape), ruled.site.tile(device)
        ends = [[box for box in boxes if not box.is_empty] for boxes in (said.boxes(device, shape), tile.boxes())]
        if said.unreduced or shape != ruled.site.shape or ends[0] != ends[1]:
            raise ReshardError(
                "bad-tiles",
                f"{name!r} of {'out' if end else 'state_dict'} is a DTensor of shape {shape} laid as {said.text()}; "
                f"on rank {device} the plan has {ruled.site.sharding.text()} of shape {ruled.site.shape} elsewhere",
            )


def _said_by(tensor: Any) -> Sharding | None:
    """The sharding of a DTensor; None where its mesh or its placements have none."""
    with suppress(ReshardError):
        return described([tensor], [None])[0].sharding
    return None


def check_written(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse tensors that cannot be written, or lie on themselves or on each other.

    Raises:
        ReshardError: `bad-tiles`.
    """
    views = []
    for name, tensor in tensors.items():
        if not tensor.numel():
            continue
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            raise ReshardError("bad-tiles", f"{name!r} of out is of inference mode, in which alone it can be written")
        if tensor.is_conj() or tensor.is_neg():
            raise ReshardError("bad-tiles", f"{name!r} of out is a conjugate or negative of what lies in memory")
        size = tensor.element_size()
        strides = (stride * size for stride in tensor.stride())
        views.append(WrittenView.of(name, tensor.data_ptr(), tensor.shape, strides, size))
    check_apart(views)
