"""Tiles as devices keep them: a file of safetensors for each, and an index that says where in them every tensor lies.

A device's file holds its buffers, in which tiles may be fused, stacked and transposed; a *slot* says which box of which
tensor lies where in a buffer.

By hand, the second of two stacked matrices of 2 x 3, transposed in its buffer of 2 x 3 x 2: neighbours of a row are 2
apart, those of a column 1, and it begins behind the first.

>>> buffer = Buffer((2, 3, 2), dtype_named("f32"))
>>> tile = tile_at(Path("a"), 100, buffer, Slot(Box([(0, 2), (0, 3)]), "w", (0, 0), 1, (1, 0)))
>>> tile.offset, tile.strides
(124, (1, 2))
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reshard.box import Box
from reshard.checks import checked_shape
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError, refusing
from reshard.models.checkpoints import safetensors
from reshard.models.checkpoints.files import TileFile, row_major
from reshard.models.checkpoints.stored import TILES, Checkpoint, StoredTensor, is_inside
from reshard.models.stores import Buffer, Slot

MAX_INDEX = 2**28
"""Bytes of an index that are read at the most."""


def tile_at(path: Path, place: int, buffer: Buffer, slot: Slot) -> TileFile:
    """Where a slot of a buffer lies, the buffer's data beginning at a place in a file."""
    along = row_major(buffer.shape)
    start = 0 if slot.stack is None else slot.stack * along[0]
    inner = along[slot.stack is not None :]
    dims = slot.dims or tuple(range(len(slot.box)))
    strides = tuple(inner[dims.index(dim)] for dim in range(len(dims)))
    start += sum(first * stride for first, stride in zip(slot.start, strides, strict=True))
    is_plain = strides == row_major(slot.box.shape)
    return TileFile(path, place + start * buffer.dtype.itemsize, slot.box, None if is_plain else strides)


def json_of(path: Path) -> Any:
    """What a file of JSON says; None where it is none.

    Raises:
        ReshardError: `bad-file` where it cannot be read.
    """
    with refusing("bad-file", f"{path} could not be read"), path.open("rb") as file:
        data = file.read(MAX_INDEX + 1)
    try:
        return json.loads(data) if len(data) <= MAX_INDEX else None
    except (ValueError, RecursionError):
        return None


def read(folder: Path) -> Checkpoint:
    """What a folder of tiles holds.

    Raises:
        ReshardError: `bad-file`.
    """
    path = folder / TILES
    index = json_of(path)
    listing = index.get("tensors") if isinstance(index, dict) and index.get("version") == 1 else None
    if not isinstance(listing, dict):
        raise ReshardError("bad-file", f"{path} is no index of tiles")
    files: dict[Path, dict[str, safetensors.TensorEntry]] = {}
    tensors = {}
    for name, said in listing.items():
        what = f"{path} on {name!r}"
        if not isinstance(said, dict) or not isinstance(said.get("tiles"), list):
            raise ReshardError("bad-file", f"{what} lists no tiles")
        if not isinstance(said.get("dtype"), str) or not isinstance(said.get("shape"), list):
            raise ReshardError("bad-file", f"{what} says no dtype and shape")
        shape, dtype = checked_shape(said["shape"]), dtype_named(said["dtype"])
        chunks = tuple(_chunk(tile, folder, files, dtype, what) for tile in said["tiles"])
        tensors[name] = StoredTensor(dtype, shape, chunks)
    return Checkpoint(folder, "tiles", tensors, (path, *files))


def _chunk(
    said: Any, folder: Path, files: dict[Path, dict[str, safetensors.TensorEntry]], dtype: DType, what: str
) -> TileFile:
    """Where a tile lies, which must be inside its buffer."""
    if not isinstance(said, list) or len(said) != 6 or not is_inside(said[0]):
        raise ReshardError("bad-file", f"{what} lists a tile that is none")
    file, name, intervals, start, stack, dims = said
    path = folder / file
    if path not in files:
        files[path] = safetensors.read_entries(path)
    entry = files[path].get(name) if isinstance(name, str) else None
    if entry is None or entry.dtype != dtype:
        raise ReshardError("bad-file", f"{what} lists a tile in {name!r} of {file}, which is no buffer of {dtype}")
    slot = Slot(_box(intervals, what), name, _numbers(start, what), stack, _numbers(dims, what))
    order = slot.dims or tuple(range(len(slot.box)))
    inner = entry.shape[stack is not None :]
    if (
        not len(slot.start) == len(slot.box) == len(inner) == len(order)
        or sorted(order) != list(range(len(order)))
        or (stack is not None and (type(stack) is not int or not 0 <= stack < (*entry.shape, 0)[0]))
        or any(slot.start[dim] + slot.box.shape[dim] > inner[place] for place, dim in enumerate(order))
    ):
        raise ReshardError("bad-file", f"{what} lists a tile that lies outside of its buffer {name!r} of {file}")
    return tile_at(path, entry.offset, Buffer(entry.shape, entry.dtype), slot)


def _numbers(said: Any, what: str) -> tuple[int, ...]:
    if not isinstance(said, list) or not all(type(number) is int and 0 <= number < 2**62 for number in said):
        raise ReshardError("bad-file", f"{what} has places that are no numbers")
    return tuple(said)


def _box(said: Any, what: str) -> Box:
    pairs = [_numbers(pair, what) for pair in said] if isinstance(said, list) else []
    if not isinstance(said, list) or not all(len(pair) == 2 and pair[0] <= pair[1] for pair in pairs):
        raise ReshardError("bad-file", f"{what} has a box that is none")
    return Box((low, high) for low, high in pairs)
