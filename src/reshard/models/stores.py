"""How a device keeps its tiles: in which buffer, where in it, with its dims in which order.

A *store* is what a rule says of it: the buffer's name, made of what the pattern captured; a number by which tiles are
stacked along a new first dim; a word by which tiles are laid one after another along a dim; the order of the dims.
A *slot* is what comes of it on one device: a box of a tensor, and where in a buffer it lies.
So fused projections, stacked experts, transposed and padded matrices are lists of slots, and none needs a sharding of
its own.

By hand: gate and up of 3 rows each, fused, transposed: up lies behind gate, and its rows are columns.

>>> from reshard.dtypes import dtype_named
>>> whole = Box([(0, 3), (0, 2)])
>>> stores = {word: Store("w13", key=word, order=("gate", "up"), dims=(1, 0)) for word in ("gate", "up")}
>>> held = {word: HeldTensor(store, whole, (3, 2), (3, 2), dtype_named("i64")) for word, store in stores.items()}
>>> slots, buffers = slots_of(held)
>>> slots["up"][0].start, buffers["w13"].shape
((3, 0), (2, 6))
>>> import numpy as np
>>> memory = np.arange(12).reshape(2, 6)
>>> slots["up"][0].view(memory, Box([(1, 3), (0, 2)])).tolist()
[[4, 10], [5, 11]]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from reshard.box import Box
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.tile import Tile


@dataclass(frozen=True, slots=True)
class Store:
    """Where one tensor's tile goes, on whatever device."""

    name: str
    """Of the buffer."""
    stack: int | None = None
    """Its number among those that are stacked; None where none are."""
    key: str | None = None
    """Its word among those that are laid one after another; None where none are."""
    order: tuple[str, ...] = ()
    """The words in their order."""
    dim: int = 0
    """Along which they are laid."""
    groups: int = 1
    """Into how many groups the whole dim is cut, each of which has a part of every word: heads of a query, then their
    key and value, then the next."""
    dims: tuple[int, ...] = ()
    """The tensor's dims in the order in which the buffer has them; () for as they are."""


class HeldTensor(NamedTuple):
    """One tensor's tile on a device, with what places it."""

    store: Store
    tile: Box | Tile
    memory_shape: tuple[int, ...]
    """Of the room for the tile; larger than the tile where it is padded."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    dtype: DType

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def placed_boxes(self) -> list[tuple[Box, tuple[int, ...]]]:
        """The boxes of the tile, each with where it begins in the room."""
        if isinstance(self.tile, Box):
            return [(self.tile, (0,) * self.ndim)]
        corners = ((box, self.tile.owned_place(box)) for box in self.tile.boxes())
        return [(box, tuple(place.start for place in corner)) for box, corner in corners]


class Slot(NamedTuple):
    """A box of a tensor in a buffer."""

    box: Box
    buffer: str
    start: tuple[int, ...]
    """Where it begins in the buffer, per dim of the tensor."""
    stack: int | None
    """Its place in the buffer's first dim, where tiles are stacked."""
    dims: tuple[int, ...]
    """As in `Store`."""

    def view(self, buffer: Any, box: Box) -> Any:
        """The part of a buffer that holds a box within the slot, with the tensor's dims in their order.

        Args:
            buffer: an array of NumPy's or of JAX's, or a tensor of torch's.
            box: of the tensor, inside the slot's.
        """
        part = buffer if self.stack is None else buffer[self.stack]
        if self.dims:
            inverse = tuple(self.dims.index(dim) for dim in range(len(self.dims)))
            part = part.permute(inverse) if hasattr(part, "permute") else part.transpose(inverse)
        return part[(..., *self._slices(box))]

    def corner(self, box: Box) -> tuple[int, ...]:
        """Where a box within the slot begins in the buffer."""
        starts = [part.start for part in self._slices(box)]
        return (
            *(() if self.stack is None else (self.stack,)),
            *(starts[dim] for dim in self.dims or range(len(starts))),
        )

    def _slices(self, box: Box) -> tuple[slice, ...]:
        return tuple(
            slice(low - base + start, high - base + start)
            for (low, high), (base, _), start in zip(box, self.box, self.start, strict=True)
        )


def views(slots: tuple[Slot, ...], buffers: Mapping[str, Any], box: Box) -> Iterator[tuple[Box, Any]]:
    """The parts of buffers that hold a box of a tensor, and where each lies in the tensor.

    Args:
        slots: of the tensor.
        buffers: by name, arrays or tensors.
        box: inside the slots' boxes.
    """
    for slot in slots:
        part = box if len(slots) == 1 else slot.box.intersect(box)
        if not part.is_empty:
            yield part, slot.view(buffers[slot.buffer], part)


class Buffer(NamedTuple):
    """What a device keeps tiles in."""

    shape: tuple[int, ...]
    dtype: DType


def slots_of(held: Mapping[str, HeldTensor]) -> tuple[dict[str, tuple[Slot, ...]], dict[str, Buffer]]:
    """Per tensor the slots of its tile, and the buffers, of one device.

    Args:
        held: per tensor that the device has a tile of, where that lies and how it is kept.

    Raises:
        ReshardError: `bad-argument` where tiles of one buffer would overlap, or do not fit together.
    """
    members: dict[str, list[str]] = {}
    for name, tile in held.items():
        members.setdefault(tile.store.name, []).append(name)
    slots: dict[str, tuple[Slot, ...]] = {}
    buffers: dict[str, Buffer] = {}
    for buffer, names in members.items():
        if len(names) == 1 and held[names[0]].store.stack is None and not held[names[0]].store.order:
            tile = held[names[0]]
            dims = _checked_dims(tile)
            slots[names[0]] = tuple(Slot(box, buffer, start, None, dims) for box, start in tile.placed_boxes)
            buffers[buffer] = Buffer(_ordered(tile.memory_shape, dims), tile.dtype)
        else:
            buffers[buffer] = _joined(buffer, {name: held[name] for name in names}, slots)
    return slots, buffers


def _joined(buffer: str, held: dict[str, HeldTensor], slots: dict[str, tuple[Slot, ...]]) -> Buffer:
    """The slots of tiles that share a buffer, and the buffer."""
    first = next(iter(held.values()))
    dims, order = _checked_dims(first), first.store.order
    numbers = sorted({tile.store.stack for tile in held.values() if tile.store.stack is not None})
    places = {number: place for place, number in enumerate(numbers)}
    layers: dict[int | None, dict[str, str]] = {}
    for name, tile in held.items():
        store = tile.store
        same = (store.order, store.dims, store.dim, tile.dtype, store.stack is None)
        if same != (order, first.store.dims, first.store.dim, first.dtype, not numbers):
            raise ReshardError(
                "bad-argument", f"tensors of buffer {buffer!r} are kept in different ways, as {name!r} is"
            )
        words = layers.setdefault(store.stack, {})
        if (store.key or "") in words:
            twice = words[store.key or ""]
            raise ReshardError("bad-argument", f"tensors {twice!r} and {name!r} would overlap in buffer {buffer!r}")
        words[store.key or ""] = name
    shapes = set()
    for number, words in layers.items():
        missing = [word for word in order if word not in words]
        if missing:
            raise ReshardError("bad-argument", f"buffer {buffer!r} lacks its part {missing[0]!r}")
        names = [words[word] for word in order] if order else list(words.values())
        stack = None if number is None else places[number]
        shapes.add(_laid(buffer, [(name, held[name]) for name in names], stack, slots))
    if len(shapes) > 1:
        raise ReshardError("bad-argument", f"tensors stacked in buffer {buffer!r} have tiles of different shapes")
    shape = _ordered(shapes.pop(), dims)
    return Buffer((len(numbers), *shape) if numbers else shape, first.dtype)


def _laid(
    buffer: str, tiles: list[tuple[str, HeldTensor]], stack: int | None, slots: dict[str, tuple[Slot, ...]]
) -> tuple[int, ...]:
    """Lay tiles one after another; the shape of them all."""
    store = tiles[0][1].store
    dim, rest = store.dim, None
    chunks = {}
    for name, tile in tiles:
        if not 0 <= dim < max(tile.ndim, 1):
            raise ReshardError("bad-argument", f"tensor {name!r} has no dim {dim} to be laid along in {buffer!r}")
        others = tile.memory_shape[:dim] + tile.memory_shape[dim + 1 :]
        if rest not in (None, others):
            raise ReshardError("bad-argument", f"tensor {name!r} does not fit beside the others of buffer {buffer!r}")
        rest = others
        chunks[name] = _chunks(name, tile)
    counts = {len(runs) for runs in chunks.values()}
    if len(counts) > 1:
        raise ReshardError("bad-argument", f"tensors of buffer {buffer!r} have different numbers of groups on a device")
    found: dict[str, list[Slot]] = {name: [] for name, _ in tiles}
    place = 0
    for turn in range(counts.pop()):
        for name, tile in tiles:
            placed, length = chunks[name][turn]
            for box, corner in placed:
                start = tuple(place + low if number == dim else low for number, low in enumerate(corner))
                found[name].append(Slot(box, buffer, start, stack, _checked_dims(tile)))
            place += length
    slots.update({name: tuple(parts) for name, parts in found.items()})
    shape = tiles[0][1].memory_shape
    return (*shape[:dim], place, *shape[dim + 1 :]) if shape else shape


def _chunks(name: str, tile: HeldTensor) -> list[tuple[list[tuple[Box, tuple[int, ...]]], int]]:
    """The placed boxes of a tile's groups, each with the length of its room along the dim of the groups."""
    store, dim = tile.store, tile.store.dim
    if store.groups == 1:
        return [(tile.placed_boxes, tile.memory_shape[dim] if tile.ndim else 1)]
    if not isinstance(tile.tile, Box):
        raise ReshardError("cannot-express", f"the tile of {name!r} is several boxes, which groups cannot hold")
    size, (start, stop) = tile.shape[dim], tile.tile[dim]
    length = size // store.groups
    if size % store.groups or start % length or stop % length:
        raise ReshardError(
            "bad-argument", f"the tile [{start}, {stop}) of {name!r} does not end between groups of {length}"
        )
    ends = tile.tile[:dim], tile.tile[dim + 1 :]
    corner = (0,) * tile.ndim
    return [([(Box([*ends[0], (low, low + length), *ends[1]]), corner)], length) for low in range(start, stop, length)]


def _checked_dims(tile: HeldTensor) -> tuple[int, ...]:
    dims = tile.store.dims
    if dims and sorted(dims) != list(range(tile.ndim)):
        raise ReshardError("bad-argument", f"the order of dims {list(dims)} does not fit a tensor of {tile.ndim} dims")
    return dims


def _ordered(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[dim] for dim in dims) if dims else shape
