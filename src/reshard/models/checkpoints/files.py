"""Reading and writing parts of files by plain calls, so that a tensor is never mapped and never whole in memory.

A `TileFile` holds the elements of one box in row-major order.
A smaller box in it is a number of *runs*, parts of the file without a gap, all of one length: as many as there
are indices in the dims before the last one that the smaller box does not span.

By hand, the box of rows 1 and 2 and columns 2 and 3 in a file of 4 rows of 4: two runs of two elements.

>>> length, starts = runs_of(Box([(1, 3), (2, 4)]), Box([(0, 4), (0, 4)]))
>>> length, starts.tolist()
(2, [6, 10])
"""

from __future__ import annotations

import contextlib
import errno
from collections import OrderedDict
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.errors import ReshardError, refusing

OPEN_FILES = 100
"""Files that are held open at a time, of each of those read and those written."""


@dataclass(frozen=True, slots=True, eq=False)
class TileFile:
    """A file, or the part of one, that holds a box of a tensor; equal to itself alone, so that it hashes at once."""

    path: Path
    offset: int
    """Where the first element begins, in bytes."""
    box: Box
    """What it holds, in row-major order, in the stored order of the dims."""


def run_dims(box: Box, within: Box) -> int:
    """The number of leading dims whose every index begins a run of a box in a file that holds `within`."""
    shape, full = box.shape, within.shape
    dim = len(shape)
    while dim and shape[dim - 1] == full[dim - 1]:
        dim -= 1
    return max(dim - 1, 0)


def runs_of(box: Box, within: Box) -> tuple[int, NDArray[np.int64]]:
    """How a box lies in a file that holds `within`: the length of its runs, and where each begins, in elements."""
    dim = run_dims(box, within)
    starts = np.zeros(1, dtype=np.int64)
    stride = prod(within.shape)
    for number, ((start, stop), (base, end)) in enumerate(zip(box, within, strict=True)):
        stride //= max(end - base, 1)
        along = np.arange(start - base, stop - base if number < dim else start - base + 1, dtype=np.int64) * stride
        starts = (starts[:, None] + along).ravel()
    return prod(box.shape[dim:]), starts


def run_count(box: Box, within: Box) -> int:
    """The number of runs, without listing them."""
    return prod(box.shape[: run_dims(box, within)])


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


class FileReader(_OpenFiles):
    """Reads parts of files."""

    def read_into(self, path: Path, offset: int, view: memoryview) -> None:
        """Fill a part of memory from a place in a file.

        Raises:
            ReshardError: `bad-file` where the file cannot be read or ends too soon.
        """
        try:
            file = self.file(path)
            file.seek(offset)
            done = 0
            while done < len(view):
                count = file.readinto(view[done:])
                if not count:
                    raise ReshardError("bad-file", f"{path} ends at byte {offset + done}, inside its data")
                done += count
        except OSError as error:
            raise ReshardError("bad-file", f"{path} could not be read: {error.strerror or error}") from None

    def read_box(self, file: TileFile, box: Box, dtype: np.dtype[Any]) -> NDArray[Any]:
        """A part of what a file holds, run by run.

        Raises:
            ReshardError: `bad-file`.
        """
        array = np.empty(box.shape, dtype)
        data, itemsize = bytes_of(array), dtype.itemsize
        length, starts = runs_of(box, file.box)
        for number, start in enumerate(starts.tolist()):
            run = data[number * length * itemsize : (number + 1) * length * itemsize]
            self.read_into(file.path, file.offset + start * itemsize, run)
        return array


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
