"""A whole model between devices of one process, by its plan: in buckets, from device to device.

For a bucket each device packs what it sends into one row of bytes per peer, the rows go from device to device in one
call, and each device puts those that came into its buffers, whose memory it uses again.
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

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, overload
from weakref import WeakKeyDictionary

import jax
from jax import lax
from jax import numpy as jnp

from reshard.box import Box
from reshard.checks import expect
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.jax.conversions import for_leaves
from reshard.jax.exchange.resharding import ArrayTree, reshard
from reshard.jax.slots import NamedArrays, cast_in_blocks, kind_of, put, taken
from reshard.models import ModelPlan, Rules, plan_model
from reshard.models.laid_buckets import LaidBucket, laid_buckets
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
    wanted = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=goal)
        for name, leaf, goal in zip(names, leaves, goals, strict=True)
    }
    ends = (Rules.held_by(tensors) for tensors in (dict(zip(names, leaves, strict=True)), wanted))
    plan = plan_model(wanted, *ends, in_flight=in_flight, cast=cast)
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


# What a device does


class Packing(NamedTuple):
    """What a device does before a bucket travels."""

    names: tuple[str, ...]
    """Of the buffers that it reads."""
    pack: Callable[..., Any]
    """Rows of bytes from these."""
    peers: tuple[int, ...]
    """Whom each goes to."""
    last_read: tuple[str, ...]
    """The buffers that it reads for the last time."""


class Unpacking(NamedTuple):
    """What a device does once a bucket is there."""

    read: tuple[str, ...]
    """Of the buffers that are copied on the device itself."""
    written: tuple[str, ...]
    unpack: Callable[..., Any]
    """What is written anew, from what is read, what is written and the rows that came; and a number, to wait for."""
    peers: tuple[int, ...]
    """Whom each row comes from."""


class DeviceWork(NamedTuple):
    """All that a device does, by the number of the bucket; what it has itself comes with the first."""

    packing: dict[int, Packing]
    unpacking: dict[int, Unpacking]
    fresh: Callable[[], NamedArrays]
    """The buffers of the target, of zeros."""


_MADE: WeakKeyDictionary[ModelPlan, dict[int, DeviceWork]] = WeakKeyDictionary()


class _WorkOfDevice:
    """Makes the work of one device."""

    def __init__(self, plan: ModelPlan, device: int) -> None:
        self.plan, self.device = plan, device
        self.slots = plan.source_slots(device)[0], plan.target_slots(device)[0]
        self.buffers = plan.target_slots(device)[1]

    def work(self) -> DeviceWork:
        part = self.plan.part_of(self.device)
        buckets = laid_buckets(self.plan, part, DEPTH, all_of_plan=True).buckets
        kept = part.kept()
        packing = {number: self._packing(bucket) for number, bucket in enumerate(buckets) if bucket.sends}
        unpacking = {}
        for number, bucket in enumerate(buckets or [LaidBucket(0, 0, [], [])]):
            own = kept if number == 0 else []
            if bucket.receives or own:
                unpacking[number] = self._unpacking(bucket, own)
        seen: set[str] = set()
        for number in sorted(packing, reverse=True):  # what is copied on the device is read after the first bucket
            names = [name for name in packing[number].names if name not in seen]
            seen.update(names)
            kept_names = set(unpacking[0].read) if number == 0 and 0 in unpacking else set()
            packing[number] = packing[number]._replace(last_read=tuple(n for n in names if n not in kept_names))
        return DeviceWork(packing, unpacking, jax.jit(self._zeros, out_shardings=self._here()))

    def _here(self) -> Any:
        return jax.sharding.SingleDeviceSharding(jax.devices()[self.device])

    def _zeros(self) -> NamedArrays:
        return {name: jnp.zeros(buffer.shape, kind_of(buffer.dtype)) for name, buffer in self.buffers.items()}

    def _packing(self, bucket: LaidBucket) -> Packing:
        names = self._buffers_of(0, [piece.tensor for message in bucket.sends for piece in message.pieces])

        def pack(buffers: NamedArrays) -> list[Any]:
            rows = []
            for message in bucket.sends:
                pieces, end = [], message.start
                for tensor, box, start in message.pieces:
                    pieces += [jnp.zeros(start - end, jnp.uint8)] if start > end else []
                    pieces.append(_as_bytes(self._read(tensor, box, buffers)))
                    end = start + box.size * self.plan.group_of[tensor].wire.itemsize
                rows.append(jnp.concatenate([*pieces, jnp.zeros(message.stop - end, jnp.uint8)]))
            return rows

        return Packing(names, jax.jit(pack), tuple(message.peer for message in bucket.sends), ())

    def _unpacking(self, bucket: LaidBucket, kept: list[tuple[int, Box]]) -> Unpacking:
        own = [tensor for tensor, _ in kept]
        read = self._buffers_of(0, own)
        written = self._buffers_of(1, own + [piece.tensor for m in bucket.receives for piece in m.pieces])

        def unpack(held: NamedArrays, targets: NamedArrays, rows: list[Any]) -> tuple[NamedArrays, Any]:
            targets = dict(targets)
            for tensor, box in kept:
                self._write(tensor, box, self._read(tensor, box, held), targets)
            for message, row in zip(bucket.receives, rows, strict=True):
                for tensor, box, start in message.pieces:
                    wire, first = self.plan.group_of[tensor].wire, start - message.start
                    piece = _from_bytes(row[first : first + box.size * wire.itemsize], wire).reshape(box.shape)
                    self._write(tensor, box, piece, targets)
            return targets, jnp.zeros((), jnp.uint8)

        return Unpacking(read, written, jax.jit(unpack, donate_argnums=1), tuple(m.peer for m in bucket.receives))

    def _buffers_of(self, end: int, tensors: list[int]) -> tuple[str, ...]:
        slots = (slot for tensor in tensors for slot in self.slots[end][self.plan.names[tensor]])
        return tuple(dict.fromkeys(slot.buffer for slot in slots))

    def _read(self, tensor: int, box: Box, buffers: NamedArrays) -> Any:
        """A piece as it travels."""
        piece = taken(self.slots[0][self.plan.names[tensor]], buffers, box)
        return piece.astype(kind_of(self.plan.group_of[tensor].wire))

    def _write(self, tensor: int, box: Box, piece: Any, buffers: NamedArrays) -> None:
        """Put a piece that travelled in its place."""
        piece = piece.astype(kind_of(self.plan.group_of[tensor].dtypes[1]))
        buffers |= put(piece, self.slots[1][self.plan.names[tensor]], buffers, box)


def _as_bytes(piece: Any) -> Any:
    if piece.dtype == jnp.bool_:
        return piece.astype(jnp.uint8).reshape(-1)
    if jnp.issubdtype(piece.dtype, jnp.complexfloating):
        piece = jnp.stack([piece.real, piece.imag], -1)
    return lax.bitcast_convert_type(piece, jnp.uint8).reshape(-1)


def _from_bytes(row: Any, dtype: DType) -> Any:
    kind = kind_of(dtype)
    if dtype.kind == "b":
        return row.astype(kind)
    if dtype.kind == "c":
        parts = lax.bitcast_convert_type(row.reshape(-1, 2, dtype.itemsize // 2), jnp.finfo(kind).dtype)
        return lax.complex(parts[:, 0], parts[:, 1])
    return lax.bitcast_convert_type(row.reshape(-1, dtype.itemsize) if dtype.itemsize > 1 else row, kind)


# All devices


def _run(plan: ModelPlan, tiles: HeldByDevice, donate: bool) -> HeldByDevice:
    """Go through the buckets."""
    if plan not in _MADE:
        _MADE[plan] = {device: _WorkOfDevice(plan, device).work() for device in plan.devices}
    work, devices = _MADE[plan], jax.devices()
    held = {device: _handed(plan, device, buffers, donate) for device, buffers in tiles.items()}
    results = {device: work[device].fresh() for device in plan.rules[1].mesh.devices}
    under_way: list[list[Any]] = []
    for number in range(max(plan.buckets.total, 1)):
        if len(under_way) == DEPTH:
            jax.block_until_ready(under_way.pop(0))
        rows: dict[tuple[int, int], Any] = {}
        for device, mine in work.items():
            packing = mine.packing.get(number)
            if packing is not None:
                packed = packing.pack({name: held[device][name] for name in packing.names})
                rows |= {(device, peer): row for peer, row in zip(packing.peers, packed, strict=True)}
                for name in packing.last_read if donate else ():
                    held[device].pop(name).delete()
        arrived = jax.device_put(list(rows.values()), [devices[peer] for _, peer in rows])
        coming = dict(zip(rows, arrived, strict=True))
        del rows
        finished = []
        for device, mine in work.items():
            unpacking = mine.unpacking.get(number)
            if unpacking is not None:
                ends = (held.get(device, {}), unpacking.read), (results[device], unpacking.written)
                read, written = ({name: buffers[name] for name in names} for buffers, names in ends)
                fresh, done = unpacking.unpack(read, written, [coming[peer, device] for peer in unpacking.peers])
                results[device].update(fresh)
                finished.append(done)
        under_way.append(finished)
    if donate:
        for buffers in held.values():
            for array in buffers.values():
                array.delete()
    return {device: _wanted(plan, device, buffers) for device, buffers in results.items()}


def _handed(plan: ModelPlan, device: int, buffers: NamedArrays, donate: bool) -> NamedArrays:
    """The buffers of a device as they travel, of what is handed in; what is given up is gone once it is cast."""
    given = plan.handed_slots(device)[0], buffers
    held = dict(cast_in_blocks(plan, device, "source", given, plan.source_slots(device)))
    if donate and plan.scaled:
        kept = {id(array) for array in held.values()}
        for array in [array for array in buffers.values() if id(array) not in kept]:
            array.delete()
    return held


def _wanted(plan: ModelPlan, device: int, buffers: NamedArrays) -> NamedArrays:
    """The buffers of a device as they are wanted, of what came."""
    return cast_in_blocks(plan, device, "target", (plan.target_slots(device)[0], buffers), plan.wanted_slots(device))
