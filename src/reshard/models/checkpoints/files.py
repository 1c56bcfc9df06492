"""Reading and writing parts of files by plain calls, so that a tensor is never mapped and never whole in memory.

A `TileFile` holds the elements of one box, in row-major order or with strides of its own.
A smaller box in it is a number of *runs*, parts of the file without a gap, all of one length: as many as there
are indices in the dims outside of those that lie one behind the other.

By hand, the box of rows 1 and 2 and columns 2 and 3 in a file of 4 rows of 4: two runs of two elements.
Where the file has the tensor's columns as its rows, they begin elsewhere.

>>> whole, part = Box([(0, 4), (0, 4)]), Box([(1, 3), (2, 4)])
>>> runs = TileFile(Path("a"), 0, whole).runs(part)
>>> runs.length, list(runs.starts())
(2, [6, 10])
>>> runs = TileFile(Path("a"), 0, whole, (1, 4)).runs(part)
>>> runs.order, runs.length, list(runs.starts())
((1, 0), 2, [9, 13])
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from itertools import product
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.errors import ReshardError, refusing

OPEN_FILES = 100
"""Files that are held open at a time, of each of those read and those written."""


class FileRuns(NamedTuple):
    """How a box lies in a file."""

    order: tuple[int, ...]
    """The dims as the file has them, major to minor."""
    length: int
    """Elements of a run."""
    first: int
    """Where the first run begins, in elements."""
    outer: tuple[tuple[int, int], ...]
    """Size and stride of each dim whose every index begins a run, major to minor."""

    @property
    def run_count(self) -> int:
        """How many there are."""
        return prod(size for size, _ in self.outer) if self.length else 0

    def starts(self) -> Iterator[int]:
        """Where each begins, in elements."""
        if not self.outer:
            yield from (self.first,) if self.length else ()
            return
        for steps in product(*(range(0, size * stride, stride) for size, stride in self.outer)):
            yield self.first + sum(steps)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array whose last dim lies without a gap, in elements.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True, eq=False)
class TileFile:
    """A file, or the part of one, that holds a box of a tensor; equal to itself alone, so that it hashes at once."""

    path: Path
    offset: int
    """Where the first element begins, in bytes."""
    box: Box
    """What it holds."""
    strides: tuple[int, ...] | None = None
    """Per dim how far apart neighbours are, in elements; None where they lie in row-major order without a gap."""

    @property
    def inner_dim(self) -> int:
        """The dim whose elements lie side by side; -1 where there is none."""
        if self.strides is None:
            return len(self.box) - 1
        strides = self.strides
        return min(range(len(strides)), key=lambda dim: (strides[dim], -dim), default=-1)

    def runs(self, box: Box) -> FileRuns:
        """How a box, inside the one that it holds, lies in it."""
        shape = box.shape
        strides = row_major(self.box.shape) if self.strides is None else self.strides
        order = tuple(range(len(shape)))
        if self.strides is not None:
            order = tuple(sorted(order, key=lambda dim: -strides[dim]))
        if 0 in shape:
            return FileRuns(order, 0, 0, ())
        length, inner = 1, len(order)
        while inner and (shape[order[inner - 1]] == 1 or strides[order[inner - 1]] == length):
            length *= shape[order[inner - 1]]
            inner -= 1
        outer = tuple((shape[dim], strides[dim]) for dim in order[:inner] if shape[dim] > 1)
        first = sum((low - base) * stride for (low, _), (base, _), stride in zip(box, self.box, strides, strict=True))
        return FileRuns(order, length, first, outer)


def bytes_of(array: NDArray[Any]) -> memoryview:
    """The bytes of a contiguous array, in its memory."""
    return array.reshape(-1).view(np.uint8).data


class _OpenFiles:
    """Open files by path; the one that was used longest ago is closed when there are too many."""

    mode = "rb"

    def __init__(self) -> None:
        self._files: OrderedDict[Path, FileIO] = OrderedDict()
        self._limit = OPEN_FILES

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        while self._files:
            with contextlib.suppress(OSError):
                self._files.popitem()[1].close()

    def file(self, path: Path) -> FileIO:
        """The open file of a path."""
        if path not in self._files:
            while len(self._files) >= self._limit:
                self._files.popitem(last=False)[1].close()
            try:
                self._files[path] = FileIO(path, self.mode)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                    raise
                self._limit = max(1, len(self._files) // 2)
                return self.file(path)
        self._files.move_to_end(path)
        return self._files[path]

    def close(self) -> None:
        """Close all."""
        while self._files:
            self._files.popitem()[1].close()


@dataclass(frozen=True, slots=True)
class Reads:
    """What reading takes."""

    requests: int = 0
    """Parts of files."""
    nbytes: int = 0
    """In them, with what is not wanted."""

    def __add__(self, other: Reads) -> Reads:
        return Reads(self.requests + other.requests, self.nbytes + other.nbytes)


class FileReader(_OpenFiles):
    """Reads parts of files, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = self.nbytes = 0

    @property
    def reads(self) -> Reads:
        """What was read."""
        return Reads(self.requests, self.nbytes)

    def count(self, reads: Reads) -> None:
        """Note what was read by other means."""
        self.requests += reads.requests
        self.nbytes += reads.nbytes

    def read_into(self, path: Path, offset: int, view: memoryview) -> None:
        """Fill a part of memory from a place in a file.

        Raises:
            ReshardError: `bad-file` where the file cannot be read or ends too soon.
        """
        self.count(Reads(1, len(view)))
        try:
            file, done = self.file(path), 0
            file.seek(offset)
            while done < len(view):
                count = file.readinto(view[done:])
                if not count:
                    raise ReshardError("bad-file", f"{path} ends at byte {offset + done}, inside its data")
                done += count
        except OSError as error:
            raise ReshardError("bad-file", f"{path} could not be read: {error.strerror or error}") from None

    def fill(self, view: NDArray[Any], file: TileFile, box: Box) -> None:
        """Fill an array, of a box's shape and any strides, with that part of what a file holds, run by run.

        Raises:
            ReshardError: `bad-file`.
        """
        runs = file.runs(box)
        ordered = view.transpose(runs.order)
        data = ordered if ordered.flags.c_contiguous else np.empty(ordered.shape, view.dtype)
        memory, size = bytes_of(data), runs.length * view.itemsize
        for number, start in enumerate(runs.starts()):
            self.read_into(file.path, file.offset + start * view.itemsize, memory[number * size : (number + 1) * size])
        if data is not ordered:
            ordered[...] = data

    def read_box(self, file: TileFile, box: Box, dtype: np.dtype[Any]) -> NDArray[Any]:
        """A part of what a file holds, as a new array.

        Raises:
            ReshardError: `bad-file`.
        """
        array = np.empty(box.shape, dtype)
        self.fill(array, file, box)
        return array


class TileWriter(_OpenFiles):
    """Writes tiles into files of a folder that are there already, at their places."""

    mode = "r+b"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._can_take = hasattr(os, "copy_file_range")

    def write_at(self, path: Path, offset: int, data: memoryview | bytes) -> None:
        """Write at a place in a file.

        Raises:
            ReshardError: `write-failed`.
        """
        view, done = memoryview(data), 0
        try:
            file = self.file(self.folder / path)
            file.seek(offset)
            while done < len(view):
                done += file.write(view[done:]) or 0
        except OSError as error:
            raise ReshardError("write-failed", f"{path} could not be written: {error.strerror or error}") from None

    def take(self, reader: FileReader, there: TileFile, file: TileFile, box: Box, itemsize: int) -> bool:
        """Have the system copy a part of a file that was read to where it is wanted, past this process.

        Args:
            reader: of the file that has it.
            there: the file that has it.
            file: where it is wanted.
            box: a part of both.
            itemsize: bytes per element.

        Returns:
            Whether it is there; else nothing may be said of its place, and reading and writing tells why.
        """
        here, runs = file.runs(box), there.runs(box)
        if not self._can_take or here.order != runs.order or not here.run_count == runs.run_count == 1:
            return False
        done, nbytes = 0, box.size * itemsize
        starts = there.offset + runs.first * itemsize, file.offset + here.first * itemsize
        try:
            ends = reader.file(there.path).fileno(), self.file(self.folder / file.path).fileno()
            while done < nbytes:
                count = os.copy_file_range(*ends, nbytes - done, starts[0] + done, starts[1] + done)
                if not count:
                    return False
                done += count
        except OSError:  # not every two file systems have it
            self._can_take = False
            return False
        reader.count(Reads(1, nbytes))
        return True

    def write_box(self, file: TileFile, box: Box, values: NDArray[Any]) -> None:
        """Write a part of what a file holds, run by run.

        Raises:
            ReshardError: `write-failed`.
        """
        runs = file.runs(box)
        memory = bytes_of(np.ascontiguousarray(values.transpose(runs.order)))
        size = runs.length * values.itemsize
        for number, start in enumerate(runs.starts()):
            self.write_at(file.path, file.offset + start * values.itemsize, memory[number * size : (number + 1) * size])

    def read_box(self, file: TileFile, box: Box, dtype: np.dtype[Any]) -> NDArray[Any]:
        """A part of what a file holds now.

        Raises:
            ReshardError: `bad-file`.
        """
        with FileReader() as reader:
            source = TileFile(self.folder / file.path, file.offset, file.box, file.strides)
            return reader.read_box(source, box, dtype)

    def sync(self, path: Path) -> None:
        """Have what was written to a file on the disk itself.

        Raises:
            ReshardError: `write-failed`.
        """
        with refusing("write-failed", f"{path} could not be written"):
            os.fsync(self.file(self.folder / path).fileno())


class FileWriter(_OpenFiles):
    """Appends to files."""

    mode = "ab"

    def append(self, path: Path, data: memoryview | bytes) -> None:
        """Write at the end of a file, which is made if it is not there.

        Raises:
            ReshardError: `write-failed`.
        """
        view = memoryview(data)
        try:
            file = self.file(path)
            done = 0
            while done < len(view):
                done += file.write(view[done:]) or 0
        except OSError as error:
            raise ReshardError("write-failed", f"{path} could not be written: {error.strerror or error}") from None

    def close(self) -> None:
        """Close all.

        Raises:
            ReshardError: `write-failed`.
        """
        with refusing("write-failed", "the output could not be written"):
            super().close()
