"""What is to be written: files of buffers, and of which boxes of which tensors each buffer consists.

Without rules a buffer is a tensor, and files hold tensors up to a size.
With rules each device has a file of the buffers that it keeps, fused, stacked and transposed as its rules say.
Either way a buffer is written from front to back in slabs, which are boxes of it that lie in one run.

By hand, a buffer of 3 x 4 numbers of 4 bytes under a cap of 20 bytes: a row at a time; under one of 8, half a row.

>>> [len(list(slabs((3, 4), 4, cap))) for cap in (100, 32, 20, 8)]
[1, 2, 3, 6]
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.dtypes import DType, value_dtype
from reshard.errors import ReshardError
from reshard.models.checkpoints.files import FileReader
from reshard.models.checkpoints.stored import Checkpoint, StoredTensor, raw_dtype
from reshard.models.ruleset import Rules
from reshard.models.stores import HeldTensor, Slot, Store, slots_of

SHARD_BYTES = 5 * 10**9
"""Of a file that holds tensors, about: what published checkpoints have."""


class BufferPart(NamedTuple):
    """A box of a tensor in a buffer."""

    name: str
    tensor: StoredTensor
    slot: Slot

    @property
    def place(self) -> Box:
        """Where it lies in the buffer."""
        slot = self.slot
        dims = slot.dims or tuple(range(len(slot.box)))
        shape = slot.box.shape
        intervals = [(slot.start[dim], slot.start[dim] + shape[dim]) for dim in dims]
        return Box(intervals if slot.stack is None else [(slot.stack, slot.stack + 1), *intervals])

    def fill(self, slab: NDArray[Any], where: Box, reader: FileReader, dtype: DType) -> None:
        """Read what of the part lies in a slab into it.

        Raises:
            ReshardError: `bad-file`.
        """
        place, slot = self.place, self.slot
        shared = place.intersect(where)
        if shared.is_empty:
            return
        dims = slot.dims or tuple(range(len(slot.box)))
        inner = list(zip(shared, place, strict=True))[slot.stack is not None :]
        intervals = dict(zip(dims, inner, strict=True))
        box = Box(
            (base + low - start, base + high - start)
            for dim, (base, _) in enumerate(slot.box)
            for (low, high), (start, _) in (intervals[dim],)
        )
        index: tuple[Any, ...] = (..., *shared.slices(where))
        view = slab[index]
        if slot.stack is not None:
            view = view[0]
        if slot.dims:
            view = view.transpose([dims.index(dim) for dim in range(len(dims))])
        if dtype == self.tensor.dtype:
            self.tensor.read_into(view, box, reader)
            return
        values = np.empty(box.shape, raw_dtype(self.tensor.dtype))
        self.tensor.read_into(values, box, reader)
        cast = values.view(value_dtype(self.tensor.dtype)).astype(value_dtype(dtype))
        view[...] = cast.view(raw_dtype(dtype))


class WrittenBuffer(NamedTuple):
    """A buffer of a file."""

    dtype: DType
    shape: tuple[int, ...]
    parts: tuple[BufferPart, ...]

    @property
    def nbytes(self) -> int:
        """Of all elements."""
        return prod(self.shape) * self.dtype.itemsize

    def slabs(self, cap: int, reader: FileReader) -> Iterator[NDArray[Any]]:
        """Its elements from front to back, as arrays of at most so many bytes, or one element.

        Raises:
            ReshardError: `bad-file`.
        """
        size = max([self.dtype.itemsize, *(part.tensor.dtype.itemsize for part in self.parts)])
        places = [(part, part.place) for part in self.parts]
        for where in slabs(self.shape, size, cap):
            slab = np.empty(where.shape, raw_dtype(self.dtype))
            covered = 0
            for part, place in places:
                shared = place.intersect(where)
                if not shared.is_empty:
                    covered += shared.size
                    if shared.size < slab.size and covered == shared.size:
                        slab[...] = 0  # what no part covers is padding
                    part.fill(slab, where, reader, self.dtype)
            if not covered:
                slab[...] = 0
            yield slab


Files = dict[str, dict[str, WrittenBuffer]]
"""By file, its buffers by name."""


def slabs(shape: tuple[int, ...], itemsize: int, cap: int) -> Iterator[Box]:
    """Boxes of a buffer in its order, each in one run and of at most so many bytes, or one element."""
    if prod(shape) * itemsize <= cap or not shape:
        if prod(shape):
            yield Box.whole(shape)
        return
    inner = prod(shape[1:]) * itemsize
    rows = max(1, cap // inner)
    for start in range(0, shape[0], rows):
        stop = min(start + rows, shape[0])
        for box in slabs(shape[1:], itemsize, cap) if inner > cap else [Box.whole(shape[1:])]:
            yield Box([(start, stop), *box])


def whole_files(checkpoint: Checkpoint, dtype: DType | None, shard_bytes: int = SHARD_BYTES) -> Files:
    """Files that hold whole tensors, each up to a size."""
    shards: list[dict[str, WrittenBuffer]] = [{}]
    size = 0
    for name, tensor in checkpoint.tensors.items():
        whole = Box.whole(tensor.shape)
        slot = Slot(whole, name, (0,) * len(tensor.shape), None, ())
        buffer = WrittenBuffer(_target_dtype(tensor.dtype, dtype), tensor.shape, (BufferPart(name, tensor, slot),))
        if shards[-1] and size + buffer.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = buffer
        size += buffer.nbytes
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    count = len(shards)
    return {f"model-{number:05}-of-{count:05}.safetensors": shard for number, shard in enumerate(shards, 1)}


def device_files(checkpoint: Checkpoint, rules: Rules, dtype: DType | None) -> Files:
    """A file for every device of the rules, with the buffers that it keeps.

    Raises:
        ReshardError: as `Rules.ruled` and `slots_of`.
    """
    ruled = {name: rules.ruled(name, tensor.shape) for name, tensor in checkpoint.tensors.items()}
    stores: dict[str, Store] = {name: entry.store() for name, entry in ruled.items()}
    files: Files = {}
    for device in sorted(rules.mesh.devices):
        held = {}
        for name, entry in ruled.items():
            if device in entry.site.position_of:
                tensor, site = checkpoint.tensors[name], entry.site
                target = _target_dtype(tensor.dtype, dtype)
                held[name] = HeldTensor(stores[name], site.box(device), site.memory_shape(device), tensor.shape, target)
        slots, buffers = slots_of(held)
        parts: dict[str, list[BufferPart]] = {name: [] for name in buffers}
        for name, listing in slots.items():
            for slot in listing:
                if not slot.box.is_empty:
                    parts[slot.buffer].append(BufferPart(name, checkpoint.tensors[name], slot))
        files[f"device-{device:05}.safetensors"] = {
            name: WrittenBuffer(buffer.dtype, buffer.shape, tuple(parts[name])) for name, buffer in buffers.items()
        }
    return files


def _target_dtype(dtype: DType, wanted: DType | None) -> DType:
    """What elements are written as: floats of two bytes and more as the dtype wanted, all else as they are."""
    if wanted is None or dtype.kind != "f" or dtype.itemsize < 2:
        return dtype
    return wanted


def read_costs(files: Files) -> list[tuple[str, int, int]]:
    """Per file the bytes that are read for it, and in how many requests.

    Raises:
        ReshardError: `too-large` never; what `StoredTensor` refuses.
    """
    known: dict[Any, int] = {}
    result = []
    for file, buffers in files.items():
        size = requests = 0
        for buffer in buffers.values():
            for part in buffer.parts:
                key = part.slot.box, tuple(chunk.box for chunk in part.tensor.chunks)
                if key not in known:
                    known[key] = part.tensor.requests(part.slot.box)
                requests += known[key]
                size += part.slot.box.size * part.tensor.dtype.itemsize
        result.append((file, size, requests))
    return result


def check_dtype(files: Files) -> None:
    """Refuse a cast before anything is written, where NumPy lacks the values.

    Raises:
        ReshardError: `missing-extra`.
    """
    pairs = {
        (part.tensor.dtype, buffer.dtype)
        for buffers in files.values()
        for buffer in buffers.values()
        for part in buffer.parts
    }
    for source, target in pairs:
        if source != target:
            if target.kind != "f":
                raise ReshardError("bad-argument", f"values of {source} cannot be written as {target}")
            value_dtype(source)
            value_dtype(target)
