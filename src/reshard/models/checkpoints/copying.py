"""One tensor brought from where it is read to all places that want a part of it.

It goes through memory in *slabs*, boxes of it: a slab is read once, and every target takes its part.
They come row by row, so that what is read and what is written are few long runs; where a file has other dims innermost,
they are blocks that have a long side along both.
A slab that lies alike in one file before and in one after is copied by the system: that takes half the processor time
of reading and writing it, and next to nothing where a file system lets files share what is alike.

By hand, a tensor of 3 x 4 numbers of 4 bytes under a cap of 20 bytes: a row at a time; under one of 8, half a row.
In blocks for two orders, 16 bytes are 2 x 2.

>>> [len(list(slabs((3, 4), 4, cap))) for cap in (100, 32, 20, 8)]
[1, 2, 3, 6]
>>> block_shape((3, 4), 4, 16, (0,))
(2, 2)
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from itertools import product
from math import isqrt, prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.dtypes import DType, value_dtype
from reshard.errors import ReshardError
from reshard.models.checkpoints.files import FileReader, Reads, TileFile, TileWriter, bytes_of
from reshard.models.checkpoints.stored import ReadableTensor, StoredTensor, raw_dtype

ReportBytes = Callable[[int], None]


class TileTarget(NamedTuple):
    """Where a box of a tensor is wanted."""

    file: TileFile
    """Its path is from the folder that is written."""
    dtype: DType
    crc_at: tuple[int, ...] = ()
    """Where in the file the sum of its bytes stands, as zips have it; only of what lies in row-major order."""


class TargetWriter(Protocol):
    """What writes the parts of targets."""

    def write_box(self, file: TileFile, box: Box, values: NDArray[Any]) -> None:
        """Write a part of a target."""
        ...

    def read_box(self, file: TileFile, box: Box, dtype: np.dtype[Any]) -> NDArray[Any]:
        """A part of a target as it is now."""
        ...

    def sync(self, path: Path) -> None:
        """Have what was written of a target on the disk itself."""
        ...

    def write_at(self, path: Path, offset: int, data: memoryview | bytes) -> None:
        """Write bytes at a place."""
        ...


class TensorCopy(NamedTuple):
    """A tensor, and all that is wanted of it."""

    name: str
    source: ReadableTensor
    targets: tuple[TileTarget, ...]
    grid: tuple[int, ...] | None = None
    """The shape of the blocks in which targets must be written; None where any will do."""

    @property
    def nbytes(self) -> int:
        """That are written."""
        return sum(target.file.box.size * target.dtype.itemsize for target in self.targets)

    @property
    def key(self) -> Any:
        """Alike for those that cost the same."""
        targets = tuple((target.file.box, target.file.strides, target.dtype) for target in self.targets)
        return self.source.key, targets, self.grid

    def slabs(self, cap: int) -> Iterator[Box]:
        """Boxes that cover the tensor, each of at most so many bytes, or one element or one block of the grid."""
        shape = self.source.shape
        itemsize = max([self.source.dtype.itemsize, *(target.dtype.itemsize for target in self.targets)])
        if self.grid is not None:
            return blocks(shape, self.grid)
        ordered = any(target.crc_at for target in self.targets)
        grid = self.source.grid
        if grid is not None:
            rows = (grid[:1] + shape[1:]) if prod(grid[:1] + shape[1:]) * itemsize <= cap else grid
            if rows != grid or not ordered:
                return blocks(shape, tuple(max(size, 1) for size in rows))
        orders = {target.file.inner_dim for target in self.targets} | self.source.inner_dims
        inner = () if ordered else tuple(sorted(orders - {len(shape) - 1}))
        if inner and prod(shape) * itemsize > cap:
            return blocks(shape, block_shape(shape, itemsize, cap, inner))
        return slabs(shape, itemsize, cap)

    def parts(self, slab: Box) -> Iterator[tuple[int, Box]]:
        """The targets that want a part of a slab, by number, each with that part."""
        for number, target in enumerate(self.targets):
            part = target.file.box.intersect(slab)
            if not part.is_empty:
                yield number, part

    def copy(self, cap: int, reader: FileReader, writer: TargetWriter, advance: ReportBytes) -> None:
        """Bring it to its targets.

        Args:
            cap: bytes of a slab; about three times as much is held.
            reader: what files are read by.
            writer: what targets are written by.
            advance: told of bytes that are written.

        Raises:
            ReshardError: `bad-file`, `write-failed`.
        """
        sums = [0] * len(self.targets)
        for slab in self.slabs(cap):
            if self._is_taken(slab, reader, writer):
                advance(slab.size * self.source.dtype.itemsize)
                continue
            values = self._read(slab, reader)
            for number, part in self.parts(slab):
                target = self.targets[number]
                wanted = self._wanted(values, slab, part, target)
                writer.write_box(target.file, part, wanted)
                if target.crc_at:
                    sums[number] = zlib.crc32(bytes_of(np.ascontiguousarray(wanted)), sums[number])
                advance(wanted.nbytes)
        for target, total in zip(self.targets, sums, strict=True):
            for place in target.crc_at:
                writer.write_at(target.file.path, place, total.to_bytes(4, "little"))

    def check(self, cap: int, reader: FileReader, writer: TargetWriter) -> None:
        """Read back what was written, and compare it with the source once more.

        Raises:
            ReshardError: `verify-failed`, `bad-file`.
        """
        for slab in self.slabs(cap):
            values = self._read(slab, reader)
            for number, part in self.parts(slab):
                target = self.targets[number]
                wanted = self._wanted(values, slab, part, target)
                if not np.array_equal(writer.read_box(target.file, part, raw_dtype(target.dtype)), wanted):
                    raise ReshardError("verify-failed", f"{self.name!r} in {target.file.path} differs from its source")

    def _is_taken(self, slab: Box, reader: FileReader, writer: TargetWriter) -> bool:
        """Whether the only target has a slab straight from the only chunk that holds it, as it lies there."""
        if len(self.targets) > 1 or not isinstance(writer, TileWriter) or not isinstance(self.source, StoredTensor):
            return False
        file, dtype, crc_at = self.targets[0]
        chunks = [chunk for chunk, part in self.source.meeting(slab) if part == slab]
        if crc_at or dtype != self.source.dtype or not chunks or not file.box.contains(slab):
            return False
        return writer.take(reader, chunks[0], file, slab, dtype.itemsize)

    def _read(self, slab: Box, reader: FileReader) -> NDArray[Any]:
        values = np.empty(slab.shape, raw_dtype(self.source.dtype))
        self.source.read_into(values, slab, reader)
        return values

    def _wanted(self, values: NDArray[Any], slab: Box, part: Box, target: TileTarget) -> NDArray[Any]:
        """A part of a slab, as a target has it."""
        index: tuple[Any, ...] = (..., *part.slices(slab))
        return cast(values[index], self.source.dtype, target.dtype)

    def reads(self, cap: int) -> Reads:
        """What reading it takes."""
        return sum((self.source.reads(slab) for slab in self.slabs(cap)), Reads())


def cast(values: NDArray[Any], source: DType, target: DType) -> NDArray[Any]:
    """Elements as those of another type, both as unsigned numbers of their size."""
    if source == target:
        return values
    return np.ascontiguousarray(values).view(value_dtype(source)).astype(value_dtype(target)).view(raw_dtype(target))


def slabs(shape: tuple[int, ...], itemsize: int, cap: int) -> Iterator[Box]:
    """Boxes of a tensor in its order, each in one run and of at most so many bytes, or one element."""
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


def block_shape(shape: tuple[int, ...], itemsize: int, cap: int, inner: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of blocks of at most so many bytes, or one element, with a long side along the last dim and others.

    Args:
        shape: of the tensor.
        itemsize: bytes of an element.
        cap: bytes of a block.
        inner: the dims besides the last along which blocks shall be long.
    """
    sizes, left = [1] * len(shape), max(cap // itemsize, 1)
    long = [*inner, len(shape) - 1]
    for number, dim in enumerate(long):
        side = left if number == len(long) - 1 else max(isqrt(left), 1)
        sizes[dim] = max(min(shape[dim], side), 1)
        left //= sizes[dim]
    for dim in [*inner, *reversed(range(len(shape)))]:
        grown = max(min(shape[dim], left * sizes[dim]), 1)
        left = left * sizes[dim] // grown
        sizes[dim] = grown
    return tuple(sizes)


def blocks(shape: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[Box]:
    """A tensor's boxes between the lines of a grid."""
    steps = [
        [(start, min(start + size, whole)) for start in range(0, whole, max(size, 1))]
        for whole, size in zip(shape, sizes, strict=True)
    ]
    return (Box(box) for box in product(*steps))
