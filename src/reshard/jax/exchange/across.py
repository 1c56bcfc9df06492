"""Arrays that go to another mesh: other devices, more or fewer, or the same in another order.

The same devices in another order: the source is told by digits of the target's order, the buffers are called by
that name, and one compiled program does the rest, as on one mesh.

Other devices: no one program of XLA holds them all, so three things are done, one after the other:

    cut     one program over the devices that hold pieces of equal shapes: each cuts its own
    send    each piece from its device to the one that needs it, all in one call
    join    one program over the devices whose pieces lie alike: each puts its tile together

What is sent are the pieces of the plan, so every device receives what it lacks and no whole array is ever made.
(`jax.device_put` gathers the array in the memory of the host as soon as one tile is not a tile of the source.)
A piece that is a whole source tile is not cut, and one that is a whole target tile is not joined.
So it is too with the same devices in an order that no digits tell.

`device_put` is called where it does as well: where the tiles are the same and only the devices differ, it sends
buffers as they are; and devices of a CPU have no memory but the host's, where it lets all replicas of a tile share
what it gathered.

>>> import numpy as np
>>> mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
>>> other = jax.make_mesh((1,), ("x",), devices=jax.devices()[-1:])
>>> x = jax.device_put(np.arange(4), NamedSharding(mesh, jax.P("x")))
>>> y = reshard_across(x, NamedSharding(other, jax.P("x")))
>>> y.sharding.mesh == other, y.tolist()
(True, [0, 1, 2, 3])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from itertools import groupby
from math import prod
from operator import add, attrgetter, itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from reshard.box import Box
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.exchange import Exchange
from reshard.jax.exchange.device import Device
from reshard.jax.exchange.lowering import run_on_device
from reshard.jax.exchange.permutations import Starts
from reshard.jax.exchange.rounds import starts_from
from reshard.jax.exchange.stacked import StackedProgram, run_stacked, stacked_program
from reshard.jax.jax_shardings import sharding_of
from reshard.mesh import Mesh
from reshard.notation import parse_sharding, to_xla
from reshard.planner import plan as make_plan
from reshard.plans import Plan
from reshard.sharding import Sharding


def reshard_across(x: jax.Array, target: NamedSharding) -> jax.Array:
    """The array on the devices and in the tiles of the target, which may be on any mesh.

    Args:
        x: an array that is there.
        target: where it goes.

    Raises:
        ReshardError: `different-meshes` where the array or the target is spread over processes and they are not
            on the same devices; `not-divisible`, `rank-mismatch`, or what `reshard.plan` raises.
    """
    shardings = [_on_axes(sharding_of(end, None, x.ndim), x.ndim) for end in (x.sharding, target)]
    for sharding in shardings:
        sharding.check_divisible(x.shape)
    orders = [x.sharding._device_assignment, target._device_assignment]
    devices = tuple(dict.fromkeys((*orders[1], *orders[0])))
    numbers = {device: number for number, device in enumerate(devices)}
    source, goal = (  # device numbers are places in `devices`: only the relative order of two meshes matters
        replace(sharding, mesh=Mesh(sharding.mesh.axes, tuple(numbers[device] for device in order)))
        for sharding, order in zip(shardings, orders, strict=True)
    )
    in_one_process = x.is_fully_addressable and target.is_fully_addressable
    if x.sharding.device_set == target.device_set:
        renamed = _in_order(source)
        if renamed is not None and x.size and x.ndim:
            return _on_same_devices(x, renamed, goal, target)
    elif not in_one_process:
        raise ReshardError(
            "different-meshes",
            f"the array is on {len(orders[0])} devices and the target on other {len(orders[1])}, not all of them in "
            "this process; between processes an array can go to the devices that it is on, in any order",
        )
    if x.size == 0:  # device_put and programs of XLA make tiles of another shape
        dtype_named(x.dtype.name)  # refuses what is no number
        empty, addressable = np.zeros(target.shard_shape(x.shape), x.dtype), target.addressable_devices
        return _assembled(x.shape, target, [jax.device_put(empty, d) for d in orders[1] if d in addressable])
    if in_one_process and not _is_easy(source, goal, devices):
        tiles = {numbers[shard.device]: shard.data for shard in x.addressable_shards}
        for transfer in _transfers(make_plan(source, goal, x.shape, x.dtype.name)):
            tiles = _transferred(transfer, tiles, devices)
        return _assembled(x.shape, target, [tiles[numbers[device]] for device in orders[1]])
    if source.unreduced or goal.unreduced:
        raise ReshardError(
            "cannot-express", f"JAX cannot send unreduced values to devices in this order: {target.mesh}"
        )
    return jax.device_put(x, target)


def run_across(plan: Plan, x: jax.Array, target: NamedSharding) -> jax.Array:
    """The array after a plan between meshes of JAX's devices by their places, which hold it as the plan's source says.

    Raises:
        ReshardError: `different-meshes` where not all devices are of this process.
    """
    if not (x.is_fully_addressable and target.is_fully_addressable):
        raise ReshardError("different-meshes", "a plan between two meshes runs where one process has all their devices")
    devices = tuple(jax.devices())
    numbers = {device: number for number, device in enumerate(devices)}
    tiles = {numbers[shard.device]: shard.data for shard in x.addressable_shards}
    for transfer in _transfers(plan):
        tiles = _transferred(transfer, tiles, devices)
    return _assembled(x.shape, target, [tiles[numbers[device]] for device in target._device_assignment])


def _is_easy(source: Sharding, target: Sharding, devices: tuple[Any, ...]) -> bool:
    """Whether `device_put` is as good: it sends each buffer once, or replicas share what it gathered."""
    if source.unreduced or target.unreduced:
        return False
    if target.layout.copies() == 1:
        return source.layout == target.layout
    return _share_memory(devices)


def _share_memory(devices: tuple[Any, ...]) -> bool:
    """Whether what a device holds is in the host's memory, so that one copy there does for all replicas."""
    return {device.platform for device in devices} == {"cpu"}


def _on_same_devices(x: jax.Array, source: Sharding, goal: Sharding, target: NamedSharding) -> jax.Array:
    """One program over the target's devices in its order, in which both ends are stacked tiles."""
    devices = tuple(target._device_assignment)
    program = _exchanger(devices, source, goal, x.shape, x.dtype.name)
    tiles = run_stacked(program, {shard.device: [shard.data] for shard in x.addressable_shards}, devices)
    return _assembled(x.shape, target, [tiles[device][0] for device in devices if device in tiles])


@lru_cache(256)
def _exchanger(
    devices: tuple[Any, ...], source: Sharding, target: Sharding, shape: tuple[int, ...], dtype: str
) -> StackedProgram:
    plan = make_plan(source, target, shape, dtype)
    return stacked_program(lambda tile: (run_on_device(plan, ("devices",), tile),), devices)


def _in_order(sharding: Sharding) -> Sharding | None:
    """The same placement on a mesh of the devices 0, 1, 2, …; None where their order is no transposition of digits."""
    if not any(dim.axes for dim in sharding.dims) and not sharding.unreduced:
        return replace(sharding, mesh=Mesh(sharding.mesh.axes))
    try:
        renamed = parse_sharding(to_xla(sharding), None, sharding.ndim)
    except ReshardError:  # XLA's text has no unreduced values
        return sharding if sharding.mesh.device_ids is None else None
    return renamed if renamed.mesh.device_ids is None and renamed.mesh.size == sharding.mesh.size else None


def _assembled(shape: tuple[int, ...], target: NamedSharding, tiles: Sequence[Any]) -> jax.Array:
    """The array of these tiles, moved to another kind of memory where the target asks for it."""
    in_memory = target.with_memory_kind(tiles[0].sharding.memory_kind)
    array = jax.make_array_from_single_device_arrays(shape, in_memory, list(tiles))
    return array if in_memory == target else jax.device_put(array, target)


def _on_axes(sharding: Sharding, ndim: int) -> Sharding:
    """A sharding on one device as on a mesh of it."""
    if not sharding.mesh.is_maximal:
        return sharding
    return Sharding.of(Mesh((("device", 1),), sharding.mesh.device_ids), *[None] * ndim)


# What goes where


class Arrival(NamedTuple):
    """A piece that comes into a device's new tile."""

    sender: int
    cut: Box | None
    """What the sender cuts out, counted from the corner of its tile; None for the whole tile."""
    put: Box
    """Where it is put, counted from the corner of the new tile; what comes to one place is added up."""


class MeshTransfer(NamedTuple):
    """One exchange: what every device cuts, and what its new tile is made of."""

    cuts: dict[int, tuple[Box, ...]]
    """Per device the boxes that it cuts; whole tiles are not among them."""
    arrivals: dict[int, tuple[Arrival, ...]]
    """In the order of where they are put."""
    shapes: dict[int, tuple[int, ...]]
    """Per device the shape of its new tile; where arrivals leave something out, that is zeros."""

    @classmethod
    def of(cls, exchange: Exchange) -> MeshTransfer:
        """From the pieces that come to each device."""
        source, target = exchange.source, exchange.target
        cuts: dict[int, set[Box]] = {}
        arrivals, boxes = {}, {device: target.box(device) for device in target.mesh.device_array.tolist()}
        for device, box in boxes.items():
            coming = []
            for piece in exchange.incoming(device):
                tile = source.box(piece.sender)
                cut = None if tile == piece.box else piece.box.within(tile)
                if cut is not None:
                    cuts.setdefault(piece.sender, set()).add(cut)
                coming.append(Arrival(piece.sender, cut, piece.box.within(box)))
            arrivals[device] = tuple(sorted(coming, key=attrgetter("put")))
        shapes = {device: box.shape for device, box in boxes.items()}
        return cls({device: tuple(sorted(boxes_cut)) for device, boxes_cut in cuts.items()}, arrivals, shapes)


@lru_cache(256)
def _transfers(plan: Plan) -> tuple[MeshTransfer, ...]:
    """Those of the plan."""
    return tuple(MeshTransfer.of(move.exchange) for step in plan.steps for move in step.transfers)


# How it gets there


def _transferred(transfer: MeshTransfer, tiles: dict[int, Any], devices: tuple[Any, ...]) -> dict[int, Any]:
    """The new tile of each device: cut, sent, joined."""
    rank = len(next(iter(transfer.shapes.values())))
    tiles = {device: tile if tile.ndim == rank else tile.reshape((1,) * rank) for device, tile in tiles.items()}
    ready: dict[tuple[int, Box | None], Any] = {(device, None): tile for device, tile in tiles.items()}
    cuts = transfer.cuts
    shapes = {number: (tiles[number].shape, *(box.shape for box in boxes)) for number, boxes in cuts.items()}
    cut = _run_alike(
        lambda ordered, group: _cutter(ordered, tuple(cuts[number] for number in group)),
        shapes,
        {number: [tile] for number, tile in tiles.items()},
        devices,
    )
    for number, arrays in cut.items():
        ready |= {(number, box): array for box, array in zip(cuts[number], arrays, strict=True)}
    needed = [(number, arrival[:2]) for number, arrivals in transfer.arrivals.items() for arrival in arrivals]
    moving = [(number, sent) for number, sent in needed if number != sent[0]]
    moved = jax.device_put([ready[sent] for _, sent in moving], [devices[number] for number, _ in moving])
    arrived = {(number, sent): ready[sent] for number, sent in needed} | dict(zip(moving, moved, strict=True))
    results: dict[int, Any] = {}
    patterns: dict[int, Any] = {}
    pieces: dict[int, list[Any]] = {}
    for number, arrivals in transfer.arrivals.items():
        puts, shape = tuple(arrival.put for arrival in arrivals), transfer.shapes[number]
        pieces[number] = [arrived[number, arrival[:2]] for arrival in arrivals]
        if len(puts) == 1 and puts[0].shape == shape:
            (results[number],) = pieces[number]
        elif puts:
            patterns[number] = shape, puts
        else:
            results[number] = jax.device_put(np.zeros(shape, next(iter(tiles.values())).dtype), devices[number])
    joined = _run_alike(lambda ordered, group: _joiner(ordered, *patterns[group[0]]), patterns, pieces, devices)
    return results | {number: tile for number, (tile,) in joined.items()}


def _run_alike(
    program_of: Callable[[tuple[Any, ...], tuple[int, ...]], StackedProgram],
    patterns: dict[int, Any],
    arrays: dict[int, list[Any]],
    devices: tuple[Any, ...],
) -> dict[int, list[Any]]:
    """What each device makes of its arrays, by one program over all devices whose patterns are equal."""
    groups: dict[Any, tuple[int, ...]] = {}
    for number, pattern in patterns.items():
        groups[pattern] = (*groups.get(pattern, ()), number)
    results: dict[int, list[Any]] = {}
    for group in groups.values():
        ordered = tuple(devices[number] for number in group)
        of_group = {devices[number]: arrays[number] for number in group}
        by_device = run_stacked(program_of(ordered, group), of_group, ordered)
        results |= {number: by_device[devices[number]] for number in group}
    return results


@lru_cache(1024)
def _cutter(devices: tuple[Any, ...], boxes: tuple[tuple[Box, ...], ...]) -> StackedProgram:
    """Cuts the boxes of each device out of its tile; all have as many, of the same shapes."""
    starts = np.array([[[low for low, _ in box] for box in device_boxes] for device_boxes in boxes], dtype=np.int64)
    shapes = [box.shape for box in boxes[0]]
    everywhere = np.ones(len(devices), dtype=np.bool_)

    def cut(tile: Any) -> tuple[Any, ...]:
        tables = [Starts(starts[:, number], everywhere) for number in range(len(shapes))]
        corners = starts_from(tables, Device.here(("devices",)))
        return tuple(lax.dynamic_slice(tile, corner, shape) for corner, shape in zip(corners, shapes, strict=True))

    return stacked_program(cut, devices)


@lru_cache(1024)
def _joiner(devices: tuple[Any, ...], shape: tuple[int, ...], puts: tuple[Box, ...]) -> StackedProgram:
    """Puts boxes into a tile, the sum of those that have the same place; elsewhere it is zeros."""
    is_covered = sum(box.size for box in {*puts}) == prod(shape)

    def join(*pieces: Any) -> tuple[Any]:
        tile = lax.empty(shape, pieces[0].dtype) if is_covered else lax.full(shape, 0, pieces[0].dtype)
        for box, alike in groupby(zip(puts, pieces, strict=True), key=itemgetter(0)):
            piece = reduce(add, (piece for _, piece in alike))
            tile = lax.dynamic_update_slice(tile, piece, [low for low, _ in box])
        return (tile,)

    return stacked_program(join, devices)
