"""Whether tensors that are handed in are as a plan says, and can be read and written piece by piece.

A DTensor says itself where its tile lies; where that is elsewhere than the plan has it, the bytes would go astray.
Tensors that are written must not lie on each other: what came last would stand in both.
Two that are the same view of the same memory may, as tied weights are: both get the same values.

>>> memory = torch.zeros(6)
>>> check_apart({"a": memory[:4], "b": memory[4:], "tied": memory[:4]})
>>> check_apart({"a": memory[:4], "b": memory[3:]})
Traceback (most recent call last):
    ...
reshard.errors.ReshardError: 'a' and 'b' of out lie on each other in memory
>>> check_apart({"even": memory[::2], "odd": memory[1::2]})
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from reshard.box import Box
from reshard.errors import ReshardError
from reshard.models import ModelPlan
from reshard.notation.described import described
from reshard.sharding import Sharding

MOST_WORK = 10**4
"""That NumPy may spend on whether two views share an element; beyond it they are taken as apart."""


class _View(NamedTuple):
    """What of the memory a tensor is, in bytes; nothing is read."""

    start: int
    stop: int
    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> _View:
        """That of a tensor with elements."""
        size = tensor.element_size()
        strides = tuple(stride * size for stride in tensor.stride())
        extent = sum((length - 1) * stride for length, stride in zip(tensor.shape, strides, strict=True))
        start = tensor.data_ptr()
        return cls(start, start + extent + size, name, tuple(tensor.shape), strides, size)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "data": (self.start, True),
            "shape": self.shape,
            "strides": self.strides,
            "typestr": f"|V{self.itemsize}",
        }

    def is_on(self, other: _View) -> bool:
        """Whether they share an element and are not the same view."""
        if self._replace(name="") == other._replace(name=""):
            return False
        try:
            return np.shares_memory(np.asarray(self), np.asarray(other), MOST_WORK)  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return False


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
        planned = (tile,) if isinstance(tile, Box) else tile.boxes()
        ends = [[box for box in boxes if not box.is_empty] for boxes in (said.boxes(device, shape), planned)]
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


def check_apart(tensors: Mapping[str, torch.Tensor]) -> None:
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
        view = _View.of(name, tensor)
        if any(not stride and length > 1 for length, stride in zip(view.shape, view.strides, strict=True)):
            raise ReshardError("bad-tiles", f"{name!r} of out is expanded: its elements share memory")
        views.append(view)
    reaching: list[_View] = []
    for view in sorted(views):
        reaching = [other for other in reaching if other.stop > view.start]
        for other in reaching:
            if view.is_on(other):
                raise ReshardError("bad-tiles", f"{other.name!r} and {view.name!r} of out lie on each other in memory")
        reaching.append(view)
