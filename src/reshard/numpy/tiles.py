"""Tiles of all devices in one process: cut, moved by a plan, put together.

It moves exactly the pieces of the plan, each copied once from the sender's tile into the receiver's, and can
count what every device received.

>>> from reshard.mesh import Mesh
>>> from reshard.planner import plan
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=2)
>>> rows, columns = Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x")
>>> tiles = scatter(np.arange(4).reshape(2, 2), rows)
>>> counts = {}
>>> tiles = run(plan(rows, columns, (2, 2), "int64"), tiles, received_bytes=counts)
>>> tiles[1].tolist(), counts
([[1], [3]], {0: 8, 1: 8})
>>> gather(tiles, columns, (2, 2)).tolist()
[[0, 1], [2, 3]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from reshard.array_tiles import (
    COMBINE,
    Array,
    assembled,
    combined,
    empty,
    first_part,
    holds,
    part_of,
    plain,
    view_of,
)
from reshard.box import Box
from reshard.checks import checked_shape, expect
from reshard.dtypes import dtype_named, identity
from reshard.errors import ReshardError
from reshard.exchange import RingExchange
from reshard.notation import as_sharding
from reshard.plans import Plan
from reshard.steps import Move, Step
from reshard.tile import Tile
from reshard.tiling import Tiling

Tiles = dict[int, Array]


def scatter(array: Array, sharding: Any) -> Tiles:
    """Cut an array into the tiles of a sharding: one fresh array per device.

    Along unreduced axes the first device holds the value and the others the identity of the reduction (under
    avg all hold the value), so that `gather` gives the array back.
    Where windows are summed the owners hold the value and the borders are zero, as is what windows are padded with.

    Args:
        array: the whole.
        sharding: whatever says one with its mesh, as `rs.plan` takes it.

    Raises:
        ReshardError: `rank-mismatch`, `reduction-dtype`, `too-large`, or as `rs.plan` for the sharding.
    """
    array = plain(array, "what is scattered")
    sharding = as_sharding(sharding, None, array.ndim)
    tiling = Tiling.of(sharding, array.shape)
    if sharding.unreduced:
        dtype_named(array.dtype).check_reduction(sharding.reduction)
    tiles = {}
    for position, device in enumerate(sharding.mesh.device_array.tolist()):
        tile = tiling.layout.tile(position, array.shape)
        is_held_elsewhere = tiling.layout.unreduced.index_of(position) and sharding.reduction != "avg"
        tiles[device] = empty(tile.shape, array.dtype)
        if is_held_elsewhere:
            tiles[device][...] = identity(sharding.reduction, array.dtype)
        elif isinstance(tile, Box):
            tiles[device][...] = view_of(array, tile)
        else:
            boxes = tile.owned_boxes() if sharding.is_summed else tile.boxes()
            tiles[device][...] = 0
            combined(tiles[device], tile, ((box, view_of(array, box)) for box in boxes), None, 1)
    return tiles


def gather(tiles: Mapping[int, Array], sharding: Any, shape: Sequence[int]) -> Array:
    """Put the tiles of a sharding together: the whole array, partial values combined.

    Raises:
        ReshardError: `bad-tiles` where tiles are missing or of a wrong shape or dtype; `rank-mismatch`.
    """
    shape = checked_shape(shape)
    sharding = as_sharding(sharding, None, len(shape))
    tiling = Tiling.of(sharding, shape)
    dtype = _check_tiles(tiles, tiling, None)
    whole = empty(tiling.shape, dtype)
    if sharding.is_summed:
        whole[...] = 0
    free = tiling.layout.free
    partial = tiling.layout.unreduced
    positions = [p for p in range(sharding.mesh.size) if free.index_of(p) == 0]
    for position in sorted(positions, key=partial.index_of):
        array = tiles[sharding.mesh.device_at(position)]
        tile = tiling.layout.tile(position, tiling.shape)
        for box in tile.owned_boxes() if not sharding.is_summed else ():
            part, owned = view_of(whole, box), part_of(array, tile.owned_place(box))
            if partial.index_of(position) == 0:
                part[...] = owned
            else:
                COMBINE[sharding.reduction](part, owned, out=part)
        if isinstance(tile, Tile) and sharding.is_summed:
            _add_windows(whole, array, tile)
    if partial and sharding.reduction == "avg":
        whole /= tiling.classes
    return whole


def _add_windows(whole: Array, array: Array, tile: Tile) -> None:
    """Add what a summed window holds to the whole tensor; what is padded is left out."""
    indices = [np.array(span.indices(), dtype=np.int64) for span in tile.spans]
    inside = np.ix_(*(np.flatnonzero(index >= 0) for index in indices))
    np.add.at(whole, np.ix_(*(index[index >= 0] for index in indices)), array[inside])


def run(plan: Plan, tiles: Mapping[int, Array], *, received_bytes: dict[int, int] | None = None) -> Tiles:
    """Run a plan: from the tiles of its source to those of its target, fresh arrays that share no memory with them.

    Args:
        plan: what to do.
        tiles: per device of the source its tile; they are left as they are.
        received_bytes: filled with the bytes that each device received from others, where given.

    Raises:
        ReshardError: `bad-tiles` where tiles are missing, or of another shape or dtype than the plan's.
    """
    expect(plan, Plan, "what is run")
    if received_bytes is not None:
        expect(received_bytes, dict, "received_bytes")
    _check_tiles(tiles, Tiling.of(plan.source, plan.shape), plan)
    counts = dict.fromkeys(plan.devices, 0)
    current = {device: np.asarray(tiles[device]) for device in plan.source.mesh.device_array.tolist()}
    for stretch in plan.stretches:
        if stretch.parts > 1:
            current = _in_parts(stretch, current, counts)
            continue
        first = current
        for step in stretch.steps:
            current = _moved(step, current, first, counts)
    if received_bytes is not None:
        received_bytes.update(counts)
    if plan.steps:
        return current
    target = Tiling.of(plan.target, plan.shape)  # empty tiles may be empty in another dim
    return {device: np.array(tile, order="C").reshape(target.tile(device).shape) for device, tile in current.items()}


def _in_parts(plan: Plan, tiles: Tiles, counts: dict[int, int]) -> Tiles:
    """The target tiles, one equal part of the tensor after the other."""
    moved: list[Tiles] = []
    for number, of_part in enumerate(plan.plans_of_parts):
        part = {device: plan.parting.cut(tile, plan.parts, number, np.concatenate) for device, tile in tiles.items()}
        first = part
        for step in of_part.steps:
            part = _moved(step, part, first, counts)
        moved.append(part)
    return {device: plan.parting.joined([part[device] for part in moved], np.concatenate) for device in moved[0]}


def _moved(step: Step, tiles: Tiles, kept: Tiles, counts: dict[int, int]) -> Tiles:
    """The tiles after a step, from those before it and those of the plan's source, which devices keep."""
    lifted = len(step.transfers[0].exchange.target.shape) != len(step.shape)
    if lifted:
        tiles = {device: tile.reshape(1) for device, tile in tiles.items()}
    for move in step.transfers:
        devices = move.exchange.target.mesh.device_array.tolist()
        if isinstance(move.exchange, RingExchange):
            tiles = _handed_on(move, move.exchange, tiles, kept, counts)
        else:
            tiles = {device: _received(move, device, tiles, kept, counts) for device in devices}
    return {device: tile.reshape(()) for device, tile in tiles.items()} if lifted else tiles


def _received(move: Move, device: int, sources: Tiles, kept: Tiles, counts: dict[int, int]) -> Array:
    """One device's tile, made of the pieces that come into it."""
    arriving = []
    for piece in move.exchange.incoming(device):
        sent = first_part(move.exchange, piece.sender, piece.box, sources[piece.sender], kept.get(piece.sender))
        arriving.append((piece.box, sent))
        counts[device] += sent.nbytes if piece.sender != device else 0
    return assembled(move, device, arriving, next(iter(sources.values())).dtype)


def _handed_on(move: Move, exchange: RingExchange, sources: Tiles, kept: Tiles, counts: dict[int, int]) -> Tiles:
    """All devices' tiles after a move along a ring: what is handed on is what came in the hop before."""
    dtype, devices = next(iter(sources.values())).dtype, exchange.target.mesh.device_array.tolist()
    arrived: dict[tuple[int, Box, int], Array] = {}
    for piece in sorted(chain.from_iterable(map(exchange.taken, devices)), key=lambda piece: piece.round):
        sender, box = piece.sender, piece.box
        if piece.round > 1:
            part = arrived[sender, box, piece.round - 1]
        else:
            part = first_part(exchange, sender, box, sources[sender], kept.get(sender))
        arrived[piece.receiver, box, piece.round] = part
        counts[piece.receiver] += part.nbytes if sender != piece.receiver else 0
    tiles = {}
    for device in devices:
        parts = ((piece.box, arrived[device, piece.box, piece.round]) for piece in exchange.incoming(device))
        tiles[device] = assembled(move, device, parts, dtype)
    return tiles


def _check_tiles(tiles: Mapping[int, Array], tiling: Tiling, plan: Plan | None) -> np.dtype[Any]:
    """Refuse tiles that are not those of the tiling; their dtype.

    Raises:
        ReshardError: `bad-tiles`.
    """
    if not isinstance(tiles, Mapping):
        raise ReshardError("bad-tiles", f"tiles must be a mapping from device to array, got: {type(tiles).__name__}")
    dtypes = set()
    for device in tiling.mesh.device_array.tolist():
        if device not in tiles:
            raise ReshardError("bad-tiles", f"the tile of device {device} is missing")
        tile, shape = plain(tiles[device], f"the tile of device {device}"), tiling.tile(device).shape
        if tile.shape != shape:
            raise ReshardError("bad-tiles", f"the tile of device {device} has shape {tile.shape}; it must be {shape}")
        dtypes.add(tile.dtype)
    planned = None if plan is None else plan.dtype
    is_combined = plan is not None and bool(plan.source.unreduced or plan.target.unreduced)
    if len(dtypes) > 1 or (planned and not all(holds(dtype, planned, is_combined) for dtype in dtypes)):
        names = ", ".join(sorted(map(str, dtypes)))
        raise ReshardError("bad-tiles", f"tiles must all be of dtype {planned or 'one kind'}, got: {names}")
    return dtypes.pop()
