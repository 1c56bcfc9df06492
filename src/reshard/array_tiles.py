"""Arrays of NumPy as tiles: what is read of one, what is made of pieces; all that engines of such arrays share.

By hand: two pieces of one box are added, in their order, and a third stands by itself.

>>> boxes = [Box([(0, 2)]), Box([(0, 2)]), Box([(2, 3)])]
>>> arrays = [np.array([1, 2]), np.array([10, 20]), np.array([5])]
>>> combined(np.zeros(3, int), Box([(0, 3)]), zip(boxes, arrays), "sum", 2).tolist()
[11, 22, 5]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.dtypes import DType, combining, identity, value_dtype
from reshard.errors import ReshardError
from reshard.exchange import Exchange
from reshard.models import ModelPlan
from reshard.models.block_scales import CastEnd, ScaledTensor, Slots, cast_buffers, quantised, written_buffers
from reshard.models.stores import Buffer
from reshard.steps import Move
from reshard.tile import Tile
from reshard.tiling import Tiling

Array = NDArray[Any]

COMBINE: dict[str, np.ufunc] = combining(np)
"""What combines two partial values, by reduction; avg divides once all are added."""


def sent_part(array: Array, box: Box, tiling: Tiling, sender: int) -> Array:
    """What a device sends of a box: what it owns, or the sum of what its summed window holds of it."""
    tile = tiling.tile(sender)
    if not tiling.layout.is_summed:
        owned: Array = part_of(array, tile.owned_place(box))
        return owned
    total = np.zeros(box.shape, array.dtype)
    for place, part in tile.places(box):
        part_of(total, part)[...] += part_of(array, place)
    return total


def first_part(exchange: Exchange, device: int, box: Box, array: Array, kept: Array | None) -> Array:
    """What a device sends first of a box, or keeps: of the array of its tile, or of the one that it kept."""
    if kept is not None and exchange.kept is not None and exchange.is_kept(device, box):
        return sent_part(kept, box, exchange.kept, device)
    return sent_part(array, box, exchange.source, device)


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
            there, values = part_of(array, place), part_of(piece, part)
            if reduction is not None and (overlap or box in written):
                COMBINE[reduction](there, values, out=there)
            else:
                there[...] = values
        written.add(box)
    if reduction == "avg":
        array /= classes
    return array


def assembled(
    move: Move, device: int, pieces: Iterable[tuple[Box, Array]], dtype: np.dtype[Any], out: Array | None = None
) -> Array:
    """A device's tile after a move, made of the pieces that come into it, in their order.

    Args:
        move: what brings them.
        device: whose tile it is.
        pieces: their boxes and values.
        dtype: of the tile.
        out: memory for it; fresh memory where it is not given.
    """
    tile = move.exchange.target.tile(device)
    array = empty(tile.shape, dtype) if out is None else out
    if move.fill is not None:
        array[...] = identity(move.fill, array.dtype)
    elif move.exchange.target.layout.has_windows:
        array[...] = 0
    return combined(array, tile, pieces, move.reduction, move.classes, overlap=move.fill is not None)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A fresh array, not filled.

    Raises:
        ReshardError: `too-large` where there is no memory for it.
    """
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):
        raise ReshardError("too-large", f"there is no memory for a tile of shape {shape} of {dtype}") from None


def view_of(array: Array, box: Box, within: Box | None = None) -> Array:
    """The part of an array that a box is; of a scalar too a view, not its value."""
    return part_of(array, box.slices(within))


def part_of(array: Array, slices: tuple[slice, ...]) -> Array:
    """What stands at an index; of a scalar too a view, not its value."""
    index: tuple[Any, ...] = (..., *slices)
    part: Array = array[index]
    return part


def plain(array: Any, what: str) -> Array:
    """The array itself, if it is all values.

    Raises:
        ReshardError: `bad-tiles` where some of it is masked away.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise ReshardError("bad-tiles", f"{what} must not be a masked array; give filled(…) or data")
    return np.asanyarray(array)


@lru_cache(256)
def holds(dtype: np.dtype[Any], planned: DType, is_combined: bool) -> bool:
    """Whether an array of NumPy's dtype is one of the planned values.

    What NumPy knows by no name of its own may come as unsigned integers or bytes of its size, unless it is combined.
    """
    if dtype.itemsize != planned.itemsize:
        return False
    is_raw = dtype.kind in "uV" and planned.name not in np.sctypeDict and not is_combined
    return dtype.name == planned.name or is_raw


def cast_in_blocks(
    plan: ModelPlan,
    device: int,
    end: CastEnd,
    given: tuple[Slots, Mapping[str, Array]],
    made: tuple[Slots, Mapping[str, Buffer]],
    into: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """The buffers of one end of a plan once a device has cast in blocks what it casts there; the others as they are.

    Args:
        plan: of a whole model.
        device: whose buffers they are.
        end: which end.
        given: the slots and the arrays before.
        made: the slots and the buffers after.
        into: memory for all of these; fresh for those that are cast where it is not given.

    Raises:
        ReshardError: `missing-extra` where NumPy lacks a dtype.
    """
    tiles = plan.casts_at(device, end)
    if into is None:
        written = written_buffers(tiles, made[0])
        result = {
            name: np.zeros(buffer.shape, value_dtype(buffer.dtype)) if name in written else given[1][name]
            for name, buffer in made[1].items()
        }
    else:
        result = dict(into)

    def quantise(tile: Array, scaled: ScaledTensor) -> tuple[Array, Array]:
        values = tile.view(value_dtype(scaled.dtype)).astype(np.float32)
        return quantised(values, scaled.cast, np, value_dtype(scaled.cast.dtype), np.float32(scaled.cast.most))

    cast_buffers(tiles, given, (made[0], result), lambda shape, view: np.empty(shape, view.dtype), quantise)
    return result
