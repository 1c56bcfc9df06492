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
from reshard.tile import Tile

Array = NDArray[Any]
Tiles = dict[int, Array]

COMBINE: dict[str, np.ufunc] = combining(np)
"""What combines two partial values, by reduction; avg divides once all are added."""


def scatter(array: Array, sharding: Sharding) -> Tiles:
    """Cut an array into the tiles of a sharding: one fresh array per device.

    Along unreduced axes the first device holds the value and the others the identity of the reduction (under
    avg all hold the value), so that `gather` gives the array back.
    Where windows are summed the owners hold the value and the borders are zero, as is what windows are padded with.

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
        tile = tiling.layout.tile(position, array.shape)
        is_held_elsewhere = tiling.layout.unreduced.index_of(position) and sharding.reduction != "avg"
        tiles[device] = empty(tile.shape, array.dtype)
        if is_held_elsewhere:
            tiles[device][...] = identity(sharding.reduction, array.dtype)
        elif isinstance(tile, Box):
            tiles[device][...] = _view(array, tile)
        else:
            boxes = tile.owned_boxes() if sharding.is_summed else tile.boxes()
            tiles[device][...] = 0
            combined(tiles[device], tile, ((box, _view(array, box)) for box in boxes), None, 1)
    return tiles


def gather(tiles: Mapping[int, Array], sharding: Sharding, shape: Sequence[int]) -> Array:
    """Put the tiles of a sharding together: the whole array, partial values combined.

    Raises:
        ReshardError: `bad-tiles` where tiles are missing or of a wrong shape or dtype; `rank-mismatch`.
    """
    tiling = Tiling.of(expect(sharding, Sharding, "what tiles are gathered by"), shape)
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
        boxes = (tile,) if isinstance(tile, Box) else tile.owned_boxes()
        for box in boxes if not sharding.is_summed else ():
            part, owned = _view(whole, box), _part(array, tile.owned_place(box))
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
    for step in plan.steps:
        current = _moved(step, current, counts)
    if received_bytes is not None:
        received_bytes.update(counts)
    if plan.steps:
        return current
    target = Tiling.of(plan.target, plan.shape)  # empty tiles may be empty in another dim
    return {device: np.array(tile, order="C").reshape(target.tile(device).shape) for device, tile in current.items()}


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
    tile = exchange.target.tile(device)
    array = empty(tile.shape, next(iter(sources.values())).dtype)
    if move.fill is not None:
        array[...] = identity(move.fill, array.dtype)
    elif exchange.target.layout.has_windows:
        array[...] = 0
    arriving = []
    for piece in exchange.incoming(device):
        sent = _sent(sources[piece.sender], piece.box, exchange.source, piece.sender)
        arriving.append((piece.box, sent))
        counts[device] += sent.nbytes if piece.sender != device else 0
    return combined(array, tile, arriving, move.reduction, move.classes, overlap=move.fill is not None)


def _sent(array: Array, box: Box, tiling: Tiling, sender: int) -> Array:
    """What a device sends of a box: what it owns, or the sum of what its summed window holds of it."""
    tile = tiling.tile(sender)
    if not tiling.layout.is_summed:
        owned: Array = _part(array, tile.owned_place(box))
        return owned
    total = np.zeros(box.shape, array.dtype)
    for place, part in tile.places(box):
        _part(total, part)[...] += _part(array, place)
    return total


def combined(
    array: Array,
    tile: Box | Tile,
    pieces: Iterable[tuple[Box, Array]],
    reduction: str | None,
    classes: int,
    *,
    overlap: bool = False,
) -> Array:
    """The array of a tile, with pieces put in their places.

    Pieces of one box are combined, in their order; where they overlap, each is combined with what stands there.
    """
    written = set()
    for box, piece in pieces:
        for place, part in tile.places(box):
            there, values = _part(array, place), _part(piece, part)
            if reduction is not None and (overlap or box in written):
                COMBINE[reduction](there, values, out=there)
            else:
                there[...] = values
        written.add(box)
    if reduction == "avg":
        array /= classes
    return array


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
    return _part(array, box.slices(within))


def _part(array: Array, slices: tuple[slice, ...]) -> Array:
    """What stands at an index; of a scalar too a view, not its value."""
    index: tuple[Any, ...] = (..., *slices)
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

    What NumPy knows by no name of its own may come as unsigned integers or bytes of its size, unless it is combined.
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
        tile, shape = _plain(tiles[device], f"the tile of device {device}"), tiling.tile(device).shape
        if tile.shape != shape:
            raise ReshardError("bad-tiles", f"the tile of device {device} has shape {tile.shape}; it must be {shape}")
        dtypes.add(tile.dtype)
    planned = None if plan is None else plan.dtype
    is_combined = plan is not None and bool(plan.source.unreduced or plan.target.unreduced)
    if len(dtypes) > 1 or (planned and not all(_holds(dtype, planned, is_combined) for dtype in dtypes)):
        names = ", ".join(sorted(map(str, dtypes)))
        raise ReshardError("bad-tiles", f"tiles must all be of dtype {planned or 'one kind'}, got: {names}")
    return dtypes.pop()
