"""A whole model moved in one process: what every device holds before, by buffer, and what it holds after.

Each message is packed from its sender's buffers by what the sender's part of the plan says, and unpacked into its
receiver's by what the receiver's says; the two must agree to the byte.
So this shows that a plan is right, and is what other engines are compared with.

>>> from reshard.mesh import Mesh
>>> from reshard.models import Rules, plan_model
>>> mesh = Mesh.of(x=2)
>>> plan = plan_model({"w": ((2, 2), "i64")}, Rules.of(mesh, {}, ("x",)), Rules.of(mesh, {}, (None, "x")))
>>> tiles = {device: {"w": np.array([[2 * device, 2 * device + 1]])} for device in range(2)}
>>> transfer(tiles, plan)[1]["w"].tolist()
[[1], [3]]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard.array_tiles import cast_in_blocks
from reshard.box import Box
from reshard.checks import expect
from reshard.dtypes import DType, value_dtype
from reshard.errors import ReshardError
from reshard.models import ModelPlan
from reshard.models.block_scales import Slots
from reshard.models.stores import Buffer, views

Buffers = dict[str, NDArray[Any]]


def transfer(
    tiles: Mapping[int, Mapping[str, NDArray[Any]]], plan: ModelPlan, *, received_bytes: dict[int, int] | None = None
) -> dict[int, Buffers]:
    """Move a model: from the buffers of every device of the source to fresh ones of every device of the target.

    Args:
        tiles: per device its buffers by name, as `plan.handed_slots(device)` says them; they are left as they are.
        plan: what to do.
        received_bytes: filled with the bytes that each device received from others, where given.

    Raises:
        ReshardError: `bad-tiles` where a buffer is missing or of another shape or size of elements; `missing-extra`
            where values are cast that NumPy lacks.
    """
    expect(plan, ModelPlan, "what a model is transferred by")
    if not isinstance(tiles, Mapping):
        raise ReshardError("bad-tiles", "tiles must be buffers by device and name")
    senders, receivers = (list(rules.mesh.devices) for rules in plan.rules)
    sources = {device: plan.source_slots(device) for device in senders}
    held = {device: _handed(tiles.get(device), plan, device) for device in senders}
    under_way: dict[tuple[int, int, int], NDArray[np.uint8]] = {}
    for device in senders:
        sends = plan.part_of(device).sends
        for message in sends.messages():
            packed = [
                _packed(plan, tensor, box, sources[device][0], held[device]) for tensor, box in sends.pieces(message)
            ]
            under_way[message.bucket, device, message.peer] = np.concatenate(packed)
    kinds = _kinds(plan, held, sources)
    result: dict[int, Buffers] = {}
    for device in receivers:
        part = plan.part_of(device)
        slots, buffers = plan.target_slots(device)
        result[device] = {name: np.zeros(buffer.shape, kinds(buffer.dtype)) for name, buffer in buffers.items()}
        for tensor, box in part.kept():
            piece = _packed(plan, tensor, box, sources[device][0], held[device])
            _unpack(plan, tensor, box, slots, result[device], piece, kinds)
        count = 0
        for message in part.receives.messages():
            arrived, place = under_way.pop((message.bucket, message.peer, device)), 0
            count += arrived.nbytes
            for tensor, box in part.receives.pieces(message):
                length = box.size * plan.group_of[tensor].wire.itemsize
                _unpack(plan, tensor, box, slots, result[device], arrived[place : place + length], kinds)
                place += length
            if place != len(arrived):
                raise ReshardError("bad-tiles", f"device {device} expects {place} bytes, not {len(arrived)}")
        result[device] = _wanted(result[device], plan, device)
        if received_bytes is not None:
            received_bytes[device] = count
    if under_way:
        raise ReshardError("bad-tiles", f"{len(under_way)} messages of the plan have nobody who receives them")
    return result


def _handed(given: Mapping[str, NDArray[Any]] | None, plan: ModelPlan, device: int) -> Buffers:
    """The buffers of the source as they travel, made of what is handed in.

    Raises:
        ReshardError: `bad-tiles`; `missing-extra`.
    """
    slots, handed = plan.handed_slots(device)
    checked = _checked(given, handed, device)
    return cast_in_blocks(plan, device, "source", (slots, checked), plan.source_slots(device))


def _wanted(moved: Buffers, plan: ModelPlan, device: int) -> Buffers:
    """The buffers of the target, made of what came."""
    return cast_in_blocks(plan, device, "target", (plan.target_slots(device)[0], moved), plan.wanted_slots(device))


def _kinds(plan: ModelPlan, held: Mapping[int, Buffers], sources: Mapping[int, tuple[Slots, dict[str, Buffer]]]) -> Any:
    """NumPy's dtype of a dtype: that of the arrays handed in, where they have it."""
    known: dict[str, np.dtype[Any]] = {}
    for device, buffers in held.items():
        for name, array in buffers.items():
            known.setdefault(sources[device][1][name].dtype.name, array.dtype)

    def kind(dtype: DType) -> np.dtype[Any]:
        if dtype.name not in known:
            known[dtype.name] = value_dtype(dtype)
        return known[dtype.name]

    return kind


def _checked(buffers: Mapping[str, NDArray[Any]] | None, wanted: Mapping[str, Buffer], device: int) -> Buffers:
    """The buffers of a device, if they are those of the plan.

    Raises:
        ReshardError: `bad-tiles`.
    """
    if not isinstance(buffers, Mapping):
        raise ReshardError("bad-tiles", f"the buffers of device {device} are missing")
    result = {}
    for name, buffer in wanted.items():
        if name not in buffers:
            raise ReshardError("bad-tiles", f"buffer {name!r} of device {device} is missing")
        array = np.asarray(buffers[name])
        if array.shape != buffer.shape or array.dtype.itemsize != buffer.dtype.itemsize:
            raise ReshardError(
                "bad-tiles",
                f"buffer {name!r} of device {device} is {array.dtype} of shape {array.shape}; "
                f"it must be {buffer.dtype} of shape {buffer.shape}",
            )
        result[name] = array
    return result


def _packed(plan: ModelPlan, tensor: int, box: Box, slots: Slots, buffers: Buffers) -> NDArray[np.uint8]:
    """A piece as it travels: its bytes, cast where that makes them fewer."""
    group = plan.group_of[tensor]
    piece = np.empty(box.shape, buffers[slots[plan.names[tensor]][0].buffer].dtype)
    for part, view in views(slots[plan.names[tensor]], buffers, box):
        _part(piece, part, box)[...] = view
    if group.wire != group.dtypes[0]:
        piece = piece.view(value_dtype(group.dtypes[0])).astype(value_dtype(group.wire))
    return np.ascontiguousarray(piece).reshape(-1).view(np.uint8)


def _unpack(
    plan: ModelPlan, tensor: int, box: Box, slots: Slots, buffers: Buffers, data: NDArray[np.uint8], kinds: Any
) -> None:
    """Put a piece that travelled in its place, cast where that makes its bytes more."""
    group = plan.group_of[tensor]
    if group.wire == group.dtypes[1]:
        piece = data.view(kinds(group.wire)).reshape(box.shape)
    else:
        piece = data.view(value_dtype(group.wire)).astype(value_dtype(group.dtypes[1])).reshape(box.shape)
    for part, view in views(slots[plan.names[tensor]], buffers, box):
        view[...] = _part(piece, part, box).view(view.dtype)


def _part(piece: NDArray[Any], part: Box, box: Box) -> NDArray[Any]:
    """The part of a piece that is in a smaller box."""
    index: tuple[Any, ...] = (..., *part.slices(box))
    view: NDArray[Any] = piece[index]
    return view
