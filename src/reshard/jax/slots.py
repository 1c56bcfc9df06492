"""Boxes of tensors in the buffers of a device of JAX: read, and put in their places; and casts in blocks.

>>> slot = Slot(Box([(0, 2), (0, 2)]), "w", (1, 0), None, ())
>>> buffers = put(jnp.ones((2, 2)), (slot,), {"w": jnp.zeros((3, 2))}, slot.box)
>>> buffers["w"].tolist(), taken((slot,), buffers, Box([(1, 2), (0, 2)])).tolist()
([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]], [[1.0, 1.0]])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from reshard.box import Box
from reshard.dtypes import DType
from reshard.models import ModelPlan
from reshard.models.block_scales import CastEnd, Slots, cover, quantised, written_buffers
from reshard.models.stores import Buffer, Slot, views

NamedArrays = dict[str, Any]


def kind_of(dtype: DType) -> Any:
    """JAX's dtype."""
    return jnp.dtype(dtype.name)


def taken(slots: tuple[Slot, ...], buffers: Mapping[str, Any], box: Box) -> Any:
    """A box of a tensor."""
    pieces = list(views(slots, buffers, box))
    if len(pieces) == 1:
        return pieces[0][1]
    whole = jnp.zeros(box.shape, pieces[0][1].dtype)
    for part, value in pieces:
        whole = whole.at[part.slices(box)].set(value)
    return whole


def put(values: Any, slots: tuple[Slot, ...], buffers: Mapping[str, Any], box: Box) -> NamedArrays:
    """The buffers with a box of a tensor in its place."""
    result = dict(buffers)
    for slot in slots:
        part = box if len(slots) == 1 else slot.box.intersect(box)
        if part.is_empty:
            continue
        value = values[part.slices(box)]
        value = value.transpose(slot.dims) if slot.dims else value
        corner = slot.corner(part)
        value = value.reshape((1,) * (len(corner) - value.ndim) + value.shape)  # of one layer of a stack
        result[slot.buffer] = lax.dynamic_update_slice(result[slot.buffer], value, corner)
    return result


def cast_in_blocks(
    plan: ModelPlan,
    device: int,
    end: CastEnd,
    given: tuple[Slots, NamedArrays],
    made: tuple[Slots, Mapping[str, Buffer]],
) -> NamedArrays:
    """The buffers of one end of a plan once a device has cast in blocks what it casts there; the others as they are.

    Args:
        plan: of a whole model.
        device: whose buffers they are.
        end: which end.
        given: the slots and the arrays before.
        made: the slots and the buffers after.
    """
    tiles = [tile for tile in plan.casts_at(device, end) if not tile.box.is_empty]
    written = written_buffers(plan.casts_at(device, end), made[0])

    def cast(arrays: NamedArrays, most: Any) -> NamedArrays:
        result = {name: jnp.zeros(made[1][name].shape, kind_of(made[1][name].dtype)) for name in sorted(written)}
        for number, (scaled, box) in enumerate(tiles):
            values = taken(given[0][scaled.name], arrays, box).astype(jnp.float32)
            elements, scales = quantised(values, scaled.cast, jnp, kind_of(scaled.cast.dtype), most[number])
            result = put(elements, made[0][scaled.name], result, box)
            result = put(scales, made[0][scaled.scales], result, cover(box, scaled.cast.block))
        return result

    if not written:
        return given[1]
    # the largest values are handed in, for a compiler divides by a constant as it likes
    most = jnp.array([tile.scaled.cast.most for tile in tiles], jnp.float32)
    where = jax.sharding.SingleDeviceSharding(jax.devices()[device])
    read = {slot.buffer for tile in tiles for slot in given[0][tile.scaled.name]}
    arrays = {name: given[1][name] for name in sorted(read)}
    fresh = jax.jit(cast, out_shardings=where)(arrays, jax.device_put(most, where))
    return {name: fresh[name] if name in fresh else given[1][name] for name in made[1]}
