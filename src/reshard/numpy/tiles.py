"""Tiles of all devices in one process: cut, moved by a plan, put together.

It moves exactly the pieces of the plan, each copied once from the sender's tile into the receiver's, and can
count what every device received.

>>> from reshard.mesh import Mesh
>>> from reshard.planner import plan
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

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.checks import expect
from reshard.dtypes import DType, combining, dtype_named, identity
from reshard.errors import ReshardError
from reshard.exchange import Tiling
from reshard.plans import Plan
from reshard.sharding import Sharding
from reshard.steps import Move, Step

Array = NDArray[Any]
Tiles = dict[int, Array]

COMBINE: dict[str, np.ufunc] = combining(np)
"""What combines two partial values, by reduction; avg divides once all are added."""


def scatter(array: Array, sharding: Sharding) -> Tiles:
    """Cut an array into the tiles of a sharding: one fresh array per device.

    Along unreduced axes the first device holds the value and the others the identity of the reduction (under
    avg all hold the value), so that `gather` gives the array back.

    Raises:
        ReshardError: `rank-mismatch`, `reduction-dtype`, `too-large`.
    """
    array = _plain(array, "what is scattered")
    expect(sharding, Sharding, "what an array is scattered by")
    tiling = Tiling.of(sharding, array.shape)
    if sharding.unreduced:
        dtype_named(array.dtype).check_reduction(sharding.reduction)
    tiles = {}
    for position, device in enumerate(sharding.mesh.device_array.tolist()):
        part = _view(array, tiling.layout.box(position, array.shape))
        is_held_elsewhere = tiling.layout.unreduced.index_of(position) and sharding.reduction != "avg"
        tiles[device] = empty(part.shape, array.dtype)
        tiles[device][...] = identity(sharding.reduction, array.dtype) if is_held_elsewhere else part
    return tiles


def gather(tiles: Mapping[int, Array], sharding: Sharding, shape: Sequence[int]) -> Array:
    """Put the tiles of a sharding together: the whole array, partial values combined.

    Raises:
        ReshardError: `bad-tiles` where tiles are missing or of a wrong shape or dtype; `rank-mismatch`.
    """
    tiling = Tiling.of(expect(sharding, Sharding, "what tiles are gathered by"), shape)
    dtype = _check_tiles(tiles, tiling, None)
    whole = empty(tiling.shape, dtype)
    free = tiling.layout.free
    partial = tiling.layout.unreduced
    positions = [p for p in range(sharding.mesh.size) if free.index_of(p) == 0]
    for position in sorted(positions, key=partial.index_of):
        tile = tiles[sharding.mesh.device_at(position)]
        part = _view(whole, tiling.layout.box(position, tiling.shape))
        if partial.index_of(position) == 0:
            part[...] = tile
        else:
            COMBINE[sharding.reduction](part, tile, out=part)
    if partial and sharding.reduction == "avg":
        whole /= tiling.classes
    return whole


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
    for step in plan.steps:
        current = _moved(step, current, counts)
    if received_bytes is not None:
        received_bytes.update(counts)
    if plan.steps:
        return current
    target = Tiling.of(plan.target, plan.shape)  # empty tiles may be empty in another dim
    return {device: np.array(tile, order="C").reshape(target.box(device).shape) for device, tile in current.items()}


def _moved(step: Step, tiles: Tiles, counts: dict[int, int]) -> Tiles:
    lifted = len(step.transfers[0].exchange.target.shape) != len(step.shape)
    if lifted:
        tiles = {device: tile.reshape(1) for device, tile in tiles.items()}
    for move in step.transfers:
        devices = move.exchange.target.mesh.device_array.tolist()
        tiles = {device: _received(move, device, tiles, counts) for device in devices}
    return {device: tile.reshape(()) for device, tile in tiles.items()} if lifted else tiles


def _received(move: Move, device: int, sources: Tiles, counts: dict[int, int]) -> Array:
    """One device's tile, made of the pieces that come into it."""
    exchange = move.exchange
    box = exchange.target.box(device)
    tile = empty(box.shape, next(iter(sources.values())).dtype)
    if move.fill is not None:
        tile[...] = identity(move.fill, tile.dtype)
    arriving = []
    for piece in exchange.incoming(device):
        sent = _view(sources[piece.sender], piece.box, exchange.source.box(piece.sender))
        arriving.append((piece.box, sent))
        counts[device] += sent.nbytes if piece.sender != device else 0
    return combined(tile, box, arriving, move.reduction, move.classes)


def combined(tile: Array, box: Box, pieces: Iterable[tuple[Box, Array]], reduction: str | None, classes: int) -> Array:
    """The tile of a box, with pieces put in their places; those of one box are combined, in their order."""
    written = set()
    for place, piece in pieces:
        part = _view(tile, place, box)
        if place in written and reduction is not None:
            COMBINE[reduction](part, piece, out=part)
        else:
            part[...] = piece
            written.add(place)
    if reduction == "avg":
        tile /= classes
    return tile


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A fresh array, not filled.

    Raises:
        ReshardError: `too-large` where there is no memory for it.
    """
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):
        raise ReshardError("too-large", f"there is no memory for a tile of shape {shape} of {dtype}") from None


def _view(array: Array, box: Box, within: Box | None = None) -> Array:
    """The part of an array that a box is; of a scalar too a view, not its value."""
    index: tuple[Any, ...] = (..., *box.slices(within))
    part: Array = array[index]
    return part


def _plain(array: Any, what: str) -> Array:
    """The array itself, if it is all values.

    Raises:
        ReshardError: `bad-tiles` where some of it is masked away.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise ReshardError("bad-tiles", f"{what} must not be a masked array; give filled(…) or data")
    return np.asanyarray(array)


def _holds(dtype: np.dtype[Any], planned: DType, is_combined: bool) -> bool:
    """Whether an array of NumPy's dtype is one of the planned values.

    What NumPy knows by no name of its own may come as unsigned integers or bytes of the same size, unless it is combined.
    """
    if dtype.itemsize != planned.itemsize:
        return False
    is_raw = dtype.kind in "uV" and planned.name not in np.sctypeDict and not is_combined
    return dtype.name == planned.name or is_raw


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
        tile, box = _plain(tiles[device], f"the tile of device {device}"), tiling.box(device)
        if tile.shape != box.shape:
            raise ReshardError(
                "bad-tiles", f"the tile of device {device} has shape {tile.shape}; it must be {box.shape}"
            )
        dtypes.add(tile.dtype)
    planned = None if plan is None else plan.dtype
    is_combined = plan is not None and bool(plan.source.unreduced or plan.target.unreduced)
    if len(dtypes) > 1 or (planned and not all(_holds(dtype, planned, is_combined) for dtype in dtypes)):
        names = ", ".join(sorted(map(str, dtypes)))
        raise ReshardError("bad-tiles", f"tiles must all be of dtype {planned or 'one kind'}, got: {names}")
    return dtypes.pop()
