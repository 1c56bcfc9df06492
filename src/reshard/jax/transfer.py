"""A whole model between devices of one process, by its plan: in buckets, from device to device.

For a bucket each device packs what it sends into one row per peer and dtype, the rows go from device to device in one
call, and each device puts those that came into its buffers, whose memory it uses again.
A buffer that is one buffer at its goal too, of the same elements, goes with the rows as it is, and is there.
Devices that are alike do so in one program: between two meshes of even tiles a bucket takes three calls.
Two buckets are under way at a time, together no larger than the plan's `in_flight`; before the next is packed, the
oldest must be done.
A buffer that is given up goes as soon as the last bucket that reads it is packed.
What devices do is compiled once per plan; no array is ever in the memory of the host, or whole on a device.

Arrays on one mesh that stay on it need none of that: they go in one program.

>>> from reshard.mesh import Mesh
>>> from reshard.models import Rules, plan_model
>>> rules = Rules.of(Mesh.of(x=1), {}, "replicated")
>>> moved = transfer({0: {"w": jax.numpy.arange(3)}}, plan_model({"w": ((3,), "i32")}, rules, rules))
>>> moved[0]["w"].tolist()
[0, 1, 2]
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, overload
from weakref import WeakKeyDictionary

import jax

from reshard.checks import expect
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.jax.bucket_forms import Line
from reshard.jax.bucket_programs import PlanPrograms
from reshard.jax.exchange.resharding import ArrayTree, reshard
from reshard.jax.jax_shardings import for_leaves
from reshard.jax.slots import NamedArrays, cast_in_blocks
from reshard.models import ModelPlan, Rules, plan_model
from reshard.models.model_planner import IN_FLIGHT

HeldByDevice = dict[int, dict[str, Any]]
"""Per device its buffers by name, each an array on that device."""
DEPTH = 2
"""Buckets under way at a time."""


@overload
def transfer(
    arrays: HeldByDevice,
    target: ModelPlan,
    *,
    in_flight: int = IN_FLIGHT,
    cast: Mapping[str, Any] | None = None,
    donate: bool = False,
) -> HeldByDevice: ...
@overload
def transfer(
    arrays: ArrayTree,
    target: object,
    *,
    in_flight: int = IN_FLIGHT,
    cast: Mapping[str, Any] | None = None,
    donate: bool = False,
) -> ArrayTree: ...
def transfer(
    arrays: object,
    target: object,
    *,
    in_flight: int = IN_FLIGHT,
    cast: Mapping[str, Any] | None = None,
    donate: bool = False,
) -> object:
    """Move a model between devices; every device receives the bytes that it lacks.

    Args:
        arrays: a pytree of arrays; or, for a plan, its buffers: per device of the source, by its place in
            `jax.devices()`, arrays by name that are on that device, as `plan.handed_slots(device)` says them.
        target: a pytree of shardings, of which one may stand for a whole subtree; or a plan by `reshard.plan_model`.
        in_flight: bytes that a device may have under way, sent and received together, where the mesh changes; a plan
            has its own.
        cast: as of `plan_model`, by the path of the array, such as `['layer']['w']`; a plan has its own.
        donate: whether the arrays are given up: their memory is free again as soon as it is read.

    Returns:
        The pytree, laid out anew; or, for a plan, per device of the target its buffers by name.

    Raises:
        ReshardError: `bad-argument`, `bad-tiles` where a buffer is missing, of another shape or elsewhere,
            `different-meshes` where devices are not of this process, `no-plan` where `in_flight` is too small.
    """
    expect(donate, bool, "donate")
    if isinstance(target, ModelPlan):
        return _run(target, _checked(arrays, target), donate)
    leaves, tree = jax.tree.flatten(arrays)
    goals = for_leaves(target, arrays, "the target", " of a transfer", jax.sharding.Sharding)
    if not all(isinstance(leaf, jax.Array) and leaf.is_fully_addressable for leaf in leaves):
        raise ReshardError(
            "different-meshes", "what is transferred must be arrays whose devices are all of this process"
        )
    pairs = zip(leaves, goals, strict=True)
    if cast is None and all(leaf.sharding._device_assignment == goal._device_assignment for leaf, goal in pairs):
        return reshard(arrays, target, donate=donate)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(arrays)]
    moves = tuple(
        ArrayMove(name, leaf.shape, str(leaf.dtype), leaf.sharding, goal)
        for name, leaf, goal in zip(names, leaves, goals, strict=True)
    )
    plan = _plan_of(moves, in_flight, None if cast is None else tuple(cast.items()))
    numbers = {device: number for number, device in enumerate(jax.devices())}
    tiles: HeldByDevice = {}
    for name, leaf in zip(names, leaves, strict=True):
        for shard in leaf.addressable_shards:
            tiles.setdefault(numbers[shard.device], {})[name] = shard.data
    moved = _run(plan, tiles, donate)
    if donate:
        for leaf in leaves:
            leaf.delete()
    results = []
    for name, leaf, goal in zip(names, leaves, goals, strict=True):
        parts = [moved[numbers[device]][name] for device in goal._device_assignment]
        results.append(jax.make_array_from_single_device_arrays(leaf.shape, goal, parts))
    return jax.tree.unflatten(tree, results)


class ArrayMove(NamedTuple):
    """An array of a pytree, and where it goes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    source: jax.sharding.Sharding
    target: jax.sharding.Sharding


@lru_cache(32)
def _plan_of(moves: tuple[ArrayMove, ...], in_flight: int, cast: tuple[tuple[str, Any], ...] | None) -> ModelPlan:
    """The plan for the arrays of a pytree; the same object again, so that what was made for it is there."""
    held, wanted = (
        {move.name: jax.ShapeDtypeStruct(move.shape, move.dtype, sharding=getattr(move, end)) for move in moves}
        for end in ("source", "target")
    )
    return plan_model(
        held, Rules.held_by(held), Rules.held_by(wanted), in_flight=in_flight, cast=None if cast is None else dict(cast)
    )


def _checked(tiles: Any, plan: ModelPlan) -> HeldByDevice:
    """The buffers of every device, if they are those of the plan.

    Raises:
        ReshardError: `bad-tiles`, `different-meshes`.
    """
    devices = jax.devices()
    if max(plan.devices) >= len(devices) or jax.process_count() > 1:
        raise ReshardError("different-meshes", f"a plan for device {max(plan.devices)} needs it in this process")
    if not isinstance(tiles, Mapping):
        raise ReshardError("bad-tiles", "for a plan arrays must be buffers by device and name")
    result: HeldByDevice = {}
    for device in plan.rules[0].mesh.devices:
        held = tiles.get(device)
        result[device] = {}
        for name, buffer in plan.handed_slots(device)[1].items():
            array = held.get(name) if isinstance(held, Mapping) else None
            if not isinstance(array, jax.Array) or array.devices() != {devices[device]}:
                raise ReshardError("bad-tiles", f"buffer {name!r} of device {device} must be an array there")
            if array.shape != buffer.shape or dtype_named(array.dtype) != buffer.dtype:
                raise ReshardError(
                    "bad-tiles",
                    f"buffer {name!r} of device {device} is {array.dtype} of shape {array.shape}; "
                    f"it must be {buffer.dtype} of shape {buffer.shape}",
                )
            result[device][name] = array
    return result


# All devices


_MADE: WeakKeyDictionary[ModelPlan, PlanPrograms] = WeakKeyDictionary()


def _run(plan: ModelPlan, tiles: HeldByDevice, donate: bool) -> HeldByDevice:
    """Go through the buckets."""
    if plan not in _MADE:
        _MADE[plan] = PlanPrograms.of(plan)
    programs, devices = _MADE[plan], jax.devices()
    held = {device: _handed(plan, device, buffers, donate) for device, buffers in tiles.items()}
    results = {number: buffers for alike in programs.fresh for number, buffers in alike.run().items()}
    under_way: list[list[Any]] = []
    buckets = zip(programs.packing, programs.unpacking, programs.whole, programs.last_read, strict=True)
    for packing, unpacking, whole, last_read in buckets:
        if len(under_way) == DEPTH:
            jax.block_until_ready(under_way.pop(0))
        rows: dict[tuple[int, Line], Any] = {}
        for alike in packing:
            rows |= alike.run(held)
        sent = [*rows.values(), *(held[buffer.sender][buffer.name] for buffer in whole)]
        goals = [devices[number] for number in (*(line.peer for _, line in rows), *(each.receiver for each in whole))]
        arrived = jax.device_put(sent, goals)
        coming, complete = dict(zip(rows, arrived, strict=False)), arrived[len(rows) :]
        del rows, sent
        for device, names in last_read.items() if donate else ():
            for name in names:
                held[device].pop(name).delete()
        for buffer, array in zip(whole, complete, strict=True):
            results[buffer.receiver][buffer.target] = array
        under_way.append([*complete, *(done for alike in unpacking for done in alike.run(held, results, coming))])
    if donate:
        for buffers in held.values():
            for array in buffers.values():
                array.delete()
    for device, names in programs.scalars.items():
        results[device] |= {name: results[device][name].reshape(()) for name in names}
    return {device: _wanted(plan, device, buffers) for device, buffers in results.items()}


def _handed(plan: ModelPlan, device: int, buffers: NamedArrays, donate: bool) -> NamedArrays:
    """The buffers of a device as they travel, of what is handed in; what is given up is gone once it is cast."""
    held = dict(buffers)
    if plan.scaled:
        handed = plan.handed_slots(device)[0], buffers
        held = dict(cast_in_blocks(plan, device, "source", handed, plan.source_slots(device)))
    if donate and plan.scaled:
        kept = {id(array) for array in held.values()}
        for array in [array for array in buffers.values() if id(array) not in kept]:
            array.delete()
    for name, array in held.items():
        if array.ndim == 0:  # arrays are stacked along their first dim
            held[name] = array.reshape(1)
            if donate:
                array.delete()
    return held


def _wanted(plan: ModelPlan, device: int, buffers: NamedArrays) -> NamedArrays:
    """The buffers of a device as they are wanted, of what came."""
    if not plan.scaled:
        return buffers
    return cast_in_blocks(plan, device, "target", (plan.target_slots(device)[0], buffers), plan.wanted_slots(device))
