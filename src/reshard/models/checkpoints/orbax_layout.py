"""Orbax's checkpoints as they are written: an array for every tensor, in chunks that devices keep.

With rules a chunk is a device's tile, so that a device that loads it reads what it keeps and no more; without, and
where a tile is larger than what may be held, chunks are cut further.

>>> cut((100, 8), 4, 1600)
(50, 8)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from reshard.box import Box
from reshard.errors import ReshardError
from reshard.models.checkpoints.copying import TileTarget
from reshard.models.checkpoints.files import TileFile
from reshard.models.checkpoints.layouts import Cast, CreatedArray, WrittenFiles, placed_tensors, written_dtype
from reshard.models.checkpoints.orbax import METADATA, metadata_of, tensorstore
from reshard.models.checkpoints.stored import Checkpoint, is_inside

if TYPE_CHECKING:  # rules load where they are read
    from reshard.models.ruleset import Rules


def orbax_arrays(checkpoint: Checkpoint, rules: Rules | None, casts: Sequence[Cast], cap: int) -> WrittenFiles:
    """An array for every tensor.

    Args:
        checkpoint: what is written anew.
        rules: where devices keep tensors, which are the chunks; None for chunks up to the cap.
        casts: what floats are written as.
        cap: bytes of a chunk.

    Raises:
        ReshardError: as `Rules.ruled` and `written_dtype`; `missing-extra`; `cannot-express` for a name of no array.
    """
    tensorstore()
    written = WrittenFiles("orbax")
    placed = {} if rules is None else placed_tensors(checkpoint, rules)
    trees = {}
    for name, tensor in checkpoint.tensors.items():
        dtype = written_dtype(name, tensor.dtype, casts)
        chunk = tensor.shape
        if name in placed:
            site = placed[name].site
            shapes = {site.box(device).shape for device in site.position_of}
            chunk = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        keys = checkpoint.tree.get(name, (name,))
        array = ".".join(map(str, keys))
        if not is_inside(array) or array in written.arrays:
            raise ReshardError("cannot-express", f"{array!r} is no name of an array of its own in orbax's form")
        trees[name] = keys
        chunk = cut(tuple(max(size, 1) for size in chunk), max(dtype.itemsize, tensor.dtype.itemsize), cap)
        written.arrays[array] = CreatedArray(tensor.shape, chunk, dtype)
        written.grids[name] = chunk
        written.targets[name] = [TileTarget(TileFile(Path(array), 0, Box.whole(tensor.shape)), dtype)]
    written.indexes[METADATA] = metadata_of(trees)
    return written


def cut(shape: tuple[int, ...], itemsize: int, cap: int) -> tuple[int, ...]:
    """A shape halved along its first dims until it has at most so many bytes, or one element."""
    sizes = list(shape)
    while prod(sizes) * itemsize > cap and max(sizes, default=1) > 1:
        dim = next(dim for dim, size in enumerate(sizes) if size > 1)
        sizes[dim] = -(-sizes[dim] // 2)
    return tuple(sizes)
