r"""Casts in blocks that share a scale: which end casts, so that one device has the whole of a block.

A cast `f8e4m3fn/128x128` makes of a matrix elements of 8 bits, and for every block of 128 x 128 of them one float32,
`NAME_scale_inv`: the block's largest absolute value over the largest that the dtype has; an element times its block's
scale is about what it was.
Where no cut of the source goes through a block, every holder of a tile casts it before it is sent, and its scales
travel as a tensor of their own, cut as the tile is: half the bytes.
Where one does, the tensor travels as it is and whoever receives it casts it, if no cut of the target goes through a
block either; else nobody has the whole of a block, and the cast is refused.

By hand, blocks of 2 x 2 of 4 rows, cut into 2 and into 4: only the first two hold whole blocks.

>>> from reshard.mesh import Mesh
>>> from reshard.models.ruleset import Rules
>>> sites = [Rules.of(Mesh.of(x=parts), {}, ("x",)).ruled("w", (4, 4)).site for parts in (2, 4)]
>>> [is_whole(site, (2, 2)) for site in sites]
[True, False]
>>> scales_of(sites[0], (2, 2)).box(1)
Box([(1, 2), (0, 2)])
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from reshard.box import Box
from reshard.checks import shown
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.models.catalogue import TensorType
from reshard.models.rule import Rule
from reshard.models.ruleset import Ruled, Rules
from reshard.models.sites import Site
from reshard.models.stores import Slot, views

SUFFIX = "_scale_inv"
"""What is put behind a tensor's name to name its scales."""
SCALE = dtype_named("f32")
CastEnd = Literal["source", "target"]


class BlockCast(NamedTuple):
    """A cast in blocks, as it is asked for."""

    dtype: DType
    block: tuple[int, ...]

    @property
    def most(self) -> float:
        """The largest value of the dtype."""
        return 0.0 if self.dtype.finite_range is None else self.dtype.finite_range[1]

    @classmethod
    def read(cls, text: Any) -> BlockCast | None:
        """The cast of a text as `f8e4m3fn/128x128`; None of what has no blocks.

        Raises:
            ReshardError: `bad-argument`, `unknown-dtype`.
        """
        if not isinstance(text, str) or "/" not in text:
            return None
        name, _, sizes = text.partition("/")
        if not re.fullmatch("[1-9][0-9]{0,8}(x[1-9][0-9]{0,8})*", sizes):
            raise ReshardError("bad-argument", f"a cast in blocks must be as f8e4m3fn/128x128, got: {shown(text)}")
        dtype = dtype_named(name)
        if dtype.finite_range is None or dtype.kind not in "fV":
            raise ReshardError("bad-argument", f"blocks are scaled into floats without infinities, not {dtype}")
        return cls(dtype, tuple(map(int, sizes.split("x"))))


class ScaledTensor(NamedTuple):
    """A tensor of a plan that one of its ends casts in blocks."""

    name: str
    dtype: DType
    """Before it is cast."""
    cast: BlockCast
    at: CastEnd
    """Which end casts; only from the source do scales travel."""

    @property
    def scales(self) -> str:
        """The name of its scales."""
        return self.name + SUFFIX


def is_whole(site: Site, block: tuple[int, ...]) -> bool:
    """Whether no cut of a tensor goes through a block."""
    for dim, size in enumerate(block):
        start, stop = site.layout.blocks(dim, site.shape[dim])
        is_empty = start >= stop
        inside = (start % size != 0) | ((stop % size != 0) & (stop < site.shape[dim]))
        if (inside & ~is_empty).any():
            return False
    return True


def blocks_in(sizes: Iterable[int], block: tuple[int, ...]) -> tuple[int, ...]:
    """How many blocks there are along every dim."""
    return tuple(-(-size // part) for size, part in zip(sizes, block, strict=True))


def cover(box: Box, block: tuple[int, ...]) -> Box:
    """The blocks that a box has a part of."""
    return Box((low // part, -(-high // part)) for (low, high), part in zip(box, block, strict=True))


def scales_of(site: Site, block: tuple[int, ...]) -> Site:
    """Where the scales of a tensor lie that is cut between blocks: each where its block is."""
    padded = None if site.padded is None else blocks_in(site.padded, block)
    return replace(site, shape=blocks_in(site.shape, block), padded=padded)


class CastPlaces(NamedTuple):
    """What a cast in blocks makes of a plan's tensor."""

    travels: DType
    """The dtype that is sent."""
    scaled: ScaledTensor
    scales: TensorType


def cast_places(
    name: str, tensor: TensorType, cast: BlockCast, source: Rules, target: Rules, known: dict[Any, CastEnd]
) -> CastPlaces:
    """Which end casts a tensor.

    Args:
        name: of the tensor.
        tensor: its shape and dtype.
        cast: what is asked for.
        source: the rules of the source.
        target: the rules of the target, which say where its scales go.
        known: what was found before, by sites.

    Raises:
        ReshardError: `bad-argument` where a cut goes through a block at both ends, or scales are not put where their
            blocks are.
    """
    scales = TensorType(blocks_in(tensor.shape, cast.block), SCALE)
    before, after = (rules.ruled(name, tensor.shape).site for rules in (source, target))
    wanted = target.ruled(name + SUFFIX, scales.shape).site
    key = id(before), id(after), id(wanted), cast
    if key not in known:
        known[key] = _end(name, cast.block, before, after, wanted)
    scaled = ScaledTensor(name, tensor.dtype, cast, known[key])
    return CastPlaces(cast.dtype if scaled.at == "source" else tensor.dtype, scaled, scales)


def _end(name: str, block: tuple[int, ...], before: Site, after: Site, wanted: Site) -> CastEnd:
    at: CastEnd = "source" if is_whole(before, block) else "target"
    if at == "target" and not is_whole(after, block):
        raise ReshardError(
            "bad-argument", f"{name!r} is cut inside blocks of {shown(block)} at both ends, so none could scale them"
        )
    for device in after.devices.tolist():
        box = after.box(device)
        if box.is_empty:
            continue
        own = wanted.box(device) if device in wanted.position_of else Box([(0, 0)] * len(block))
        covered = cover(box, block)
        if own.intersect(covered) != covered or (at == "target" and own != covered):
            raise ReshardError(
                "bad-argument",
                f"{name + SUFFIX!r} must be where its blocks are: device {device} has {own}, its blocks {covered}",
            )
    return at


def ruled_scales(scaled: ScaledTensor, tensor: Ruled, known: dict[Any, Site]) -> Ruled:
    """Where scales lie at the source that makes them, each tensor's in a buffer of their own."""
    key = id(tensor.site), scaled.cast.block
    if key not in known:
        known[key] = scales_of(tensor.site, scaled.cast.block)
    rule = Rule(re.escape(scaled.scales))
    match = rule.pattern.fullmatch(scaled.scales)
    assert match is not None  # a name matches itself
    return Ruled(known[key], rule, match)


Slots = Mapping[str, tuple[Slot, ...]]


class CastTile(NamedTuple):
    """What a device casts of one tensor."""

    scaled: ScaledTensor
    box: Box


def written_buffers(tiles: Iterable[CastTile], slots: Slots) -> set[str]:
    """The buffers that casts of these tiles write: those of their elements and of their scales.

    Args:
        tiles: that a device casts.
        slots: of the buffers after.
    """
    names = [key for tile in tiles for key in (tile.scaled.name, tile.scaled.scales)]
    return {slot.buffer for name in names for slot in slots.get(name, ())}


def cast_buffers(
    tiles: Iterable[CastTile],
    given: tuple[Slots, Mapping[str, Any]],
    made: tuple[Slots, Mapping[str, Any]],
    gather: Callable[[tuple[int, ...], Any], Any],
    quantise: Callable[[Any, ScaledTensor], tuple[Any, Any]],
) -> None:
    """Cast tiles from some buffers into others, and put their scales beside them.

    Args:
        tiles: whose boxes consist of whole blocks.
        given: the slots and the buffers that are read.
        made: those that are written.
        gather: memory for a tile of a shape, of the dtype of a view of it.
        quantise: gives the elements of a tile, as `quantised` does, and the scales.
    """
    for scaled, box in tiles:
        if box.is_empty:
            continue
        tile = None
        for part, view in views(given[0][scaled.name], given[1], box):
            tile = gather(box.shape, view) if tile is None else tile
            tile[part.slices(box)] = view
        elements, scales = quantise(tile, scaled)
        covered = cover(box, scaled.cast.block)
        for name, whole, values in ((scaled.name, box, elements), (scaled.scales, covered, scales)):
            for part, view in views(made[0][name], made[1], whole):
                there = view if view.dtype == values.dtype else view.view(values.dtype)
                there[...] = values[part.slices(whole)]


def quantised(values: Any, cast: BlockCast, array: Any, kind: Any, most: Any) -> tuple[Any, Any]:
    """The elements and the scales of blocks that begin with the values.

    Args:
        values: of float32.
        cast: the blocks.
        array: the module of arrays, NumPy's or JAX's.
        kind: its dtype for the elements.
        most: the largest value of that, as a float32.

    >>> import ml_dtypes
    >>> import numpy as np
    >>> cast = BlockCast(dtype_named("f8e4m3fn"), (1, 2))
    >>> values, kind = np.array([[7, 14, 0]], np.float32), ml_dtypes.float8_e4m3fn
    >>> elements, scales = quantised(values, cast, np, kind, np.float32(448))
    >>> elements.astype(float).tolist(), scales.tolist()
    ([[224.0, 448.0, 0.0]], [[0.03125, 1.0]])
    """
    counts = blocks_in(values.shape, cast.block)
    pads = [(0, count * part - size) for count, part, size in zip(counts, cast.block, values.shape, strict=True)]
    shape = [size for pair in zip(counts, cast.block, strict=True) for size in pair]
    parts = array.abs(array.pad(values, pads)).reshape(shape)
    largest = parts.max(axis=tuple(range(1, len(shape), 2)))
    scales = array.where(largest > 0, largest / most, array.float32(1))
    spread = scales
    for dim, part in enumerate(cast.block):
        spread = array.repeat(spread, part, axis=dim)
    spread = spread[tuple(slice(0, size) for size in values.shape)]
    return array.clip(values / spread, -most, most).astype(kind), scales
