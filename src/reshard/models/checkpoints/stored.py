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
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.models.checkpoints.files import FileReader, Reads, TileFile

INDEX = "model.safetensors.index.json"
TILES = "tiles.json"
"""The files that say where tensors lie: whole ones, and tiles on devices."""


def is_inside(name: object) -> bool:
    """Whether something is the name of a file in the folder itself.

    >>> [is_inside(name) for name in ("a.bin", "../a", "/etc/passwd", "", "..", 3)]
    [True, False, False, False, False, False]
    """
    if not isinstance(name, str) or name in ("", ".", "..") or "\0" in name:
        return False
    return PurePosixPath(name).name == name


class ReadableTensor(Protocol):
    """A tensor on disk, in whatever form."""

    @property
    def dtype(self) -> DType:
        """Of its elements."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""
        ...

    @property
    def nbytes(self) -> int:
        """Of all elements."""
        ...

    @property
    def chunk_count(self) -> int:
        """Into how many parts it is cut."""
        ...

    @property
    def inner_dims(self) -> set[int]:
        """The dims along which elements lie side by side, in one file or another."""
        ...

    @property
    def grid(self) -> tuple[int, ...] | None:
        """The shape of parts that are best read whole; None where any part will do."""
        ...

    @property
    def key(self) -> Any:
        """Alike for tensors that are read alike."""
        ...

    def read_into(self, view: NDArray[Any], box: Box, reader: FileReader) -> None:
        """Fill an array, of the box's shape and any strides, with a box of the tensor."""
        ...

    def reads(self, box: Box) -> Reads:
        """What reading a box takes."""
        ...


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in files."""

    dtype: DType
    shape: tuple[int, ...]
    chunks: tuple[TileFile, ...]
    """Disjoint, in any order; they cover it."""

    def __post_init__(self) -> None:
        whole = Box.whole(self.shape)
        if not all(len(chunk.box) == len(whole) and whole.contains(chunk.box) for chunk in self.chunks):
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

    @property
    def chunk_count(self) -> int:
        """Into how many parts it is cut."""
        return len(self.chunks)

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
            reader.fill(view[index], chunk, part)

    def reads(self, box: Box) -> Reads:
        """What reading a box takes."""
        requests = sum(chunk.runs(part).run_count for chunk, part in self.meeting(box))
        return Reads(requests, box.size * self.dtype.itemsize)

    @property
    def inner_dims(self) -> set[int]:
        """The dims along which elements lie side by side, in one file or another."""
        return {chunk.inner_dim for chunk in self.chunks}

    @property
    def grid(self) -> None:
        """Any part is as good to read as another."""
        return

    @property
    def key(self) -> Any:
        """Alike for tensors that are read alike."""
        return self.dtype, self.shape, tuple((chunk.box, chunk.strides) for chunk in self.chunks)


def raw_dtype(dtype: DType) -> np.dtype[Any]:
    """The unsigned type in which elements are moved as they are."""
    return np.dtype({1: "u1", 2: "u2", 4: "u4", 8: "u8"}.get(dtype.itemsize, f"V{dtype.itemsize}"))


class ItemPlace(NamedTuple):
    """A part of a file."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True)
class Checkpoint:
    """What a folder or a file holds."""

    path: Path
    form: str
    """safetensors, dcp, orbax or tiles."""
    tensors: Mapping[str, ReadableTensor]
    files: tuple[Path, ...]
    """All that it lies in."""
    others: Mapping[str, ItemPlace | None] = field(default_factory=dict)
    """By name what is there beside tensors, and where it lies if it can be carried over as it is."""
    tree: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    """By name the keys that lead to it, where names were made of such."""

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())
