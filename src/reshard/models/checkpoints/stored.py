"""What a checkpoint holds: tensors by name, each as boxes that lie in files.

A *chunk* is a box of a tensor in row-major order in one place of one file.
Formats differ in how they say it; once read, all are chunks, and a piece of a tensor is read from those that meet it.

>>> from reshard.dtypes import dtype_named
>>> chunk = TileFile(Path("a"), 8, Box([(0, 2), (0, 3)])), TileFile(Path("b"), 0, Box([(2, 4), (0, 3)]))
>>> tensor = StoredTensor(dtype_named("f32"), (4, 3), chunk)
>>> [(str(chunk.path), box) for chunk, box in tensor.meeting(Box([(1, 3), (0, 1)]))]
[('a', Box([(1, 2), (0, 1)])), ('b', Box([(2, 3), (0, 1)]))]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.models.checkpoints.files import FileReader, TileFile, bytes_of, run_count, runs_of


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in files."""

    dtype: DType
    shape: tuple[int, ...]
    chunks: tuple[TileFile, ...]
    """Disjoint, in any order; they cover it."""

    def __post_init__(self) -> None:
        whole = Box.whole(self.shape)
        if not all(whole.contains(chunk.box) for chunk in self.chunks):
            raise ReshardError("bad-file", f"a chunk lies outside of its tensor of shape {self.shape}")
        if sum(chunk.box.size for chunk in self.chunks) != whole.size or self._overlap():
            raise ReshardError("bad-file", f"the chunks do not cover a tensor of shape {self.shape} once")

    def _overlap(self) -> bool:
        """Whether two chunks share an element: by rows, as chunks that begin alike are few."""
        if len(self.chunks) < 2 or not self.shape:
            return len(self.chunks) > 1
        boxes = sorted((chunk.box for chunk in self.chunks if not chunk.box.is_empty), key=tuple)
        active: list[Box] = []
        for box in boxes:
            active = [other for other in active if other[0][1] > box[0][0]]
            if any(not other.intersect(box).is_empty for other in active):
                return True
            active.append(box)
        return False

    @property
    def nbytes(self) -> int:
        """Of all elements."""
        return Box.whole(self.shape).size * self.dtype.itemsize

    def meeting(self, box: Box) -> Iterator[tuple[TileFile, Box]]:
        """The chunks that hold a part of a box, each with that part."""
        for chunk in self.chunks:
            part = chunk.box.intersect(box)
            if not part.is_empty:
                yield chunk, part

    def read_into(self, view: NDArray[Any], box: Box, reader: FileReader) -> None:
        """Fill an array, of the box's shape and any strides, with a box of the tensor.

        Raises:
            ReshardError: `bad-file`.
        """
        for chunk, part in self.meeting(box):
            index: tuple[Any, ...] = (..., *part.slices(box))
            place = view[index]
            if place.flags.c_contiguous and run_count(part, chunk.box) == 1:
                _, starts = runs_of(_lifted(part), _lifted(chunk.box))
                reader.read_into(chunk.path, chunk.offset + int(starts[0]) * self.dtype.itemsize, bytes_of(place))
            else:
                lifted = TileFile(chunk.path, chunk.offset, _lifted(chunk.box))
                place[...] = reader.read_box(lifted, _lifted(part), view.dtype).reshape(part.shape)

    def requests(self, box: Box) -> int:
        """How many parts of files a box is read in."""
        return sum(run_count(_lifted(part), _lifted(chunk.box)) for chunk, part in self.meeting(box))


def _lifted(box: Box) -> Box:
    return box or Box([(0, 1)])


def raw_dtype(dtype: DType) -> np.dtype[Any]:
    """The unsigned type in which elements are moved as they are."""
    return np.dtype({1: "u1", 2: "u2", 4: "u4", 8: "u8"}.get(dtype.itemsize, f"V{dtype.itemsize}"))


@dataclass(frozen=True)
class Checkpoint:
    """What a folder or a file holds."""

    path: Path
    form: str
    """safetensors or dcp."""
    tensors: Mapping[str, StoredTensor]
    others: tuple[str, ...] = ()
    """The names of what is there beside tensors, which is not moved."""
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())
