"""Orbax's checkpoints, read and written through tensorstore, without JAX.

A folder has `_METADATA`, which says by what keys each leaf of a tree is reached, and for every array a *zarr*: a small
text with shape, dtype and the shape of chunks, and the chunks, each packed by itself.
All lie in one database of keys, `manifest.ocdbt` with what it refers to, or as plain files.
A chunk is read and written whole: what is wanted of it makes no difference.

By hand, columns 2 and 3 of 4 x 4 numbers of 4 bytes in chunks of 2 x 3 touch all four chunks: 96 bytes for 32.

>>> tensor = ArrayTensor(dtype_named("f32"), (4, 4), (2, 3), {})
>>> tensor.reads(Box([(0, 4), (2, 4)]))
Reads(requests=4, nbytes=96)
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.checks import checked_shape
from reshard.dtypes import DType, dtype_named, value_dtype
from reshard.errors import MissingExtraError, ReshardError, refusing
from reshard.models.checkpoints.device_tiles import json_of
from reshard.models.checkpoints.files import FileReader, Reads, TileFile
from reshard.models.checkpoints.stored import Checkpoint, ItemPlace, is_inside, raw_dtype

METADATA = "_METADATA"
MANIFEST = "manifest.ocdbt"
MOST_PACKED = 2**15
"""No chunk is packed to less than a part of so many of its bytes: what zstandard does at the most."""
SMALL_CHUNK = 2**20
"""Bytes of a chunk that are made room for whatever files say."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""What glibc calls them."""
KEPT_BYTES = 2**16
"""Larger blocks are given back."""
LEAVES = ("jax.Array", "np.ndarray", "scalar")
"""What is kept as an array."""


def tensorstore() -> Any:
    """The package that reads and writes zarrs.

    Raises:
        ReshardError: `missing-extra`.
    """
    try:
        import tensorstore as package  # noqa: PLC0415  # loads with the first array
    except ModuleNotFoundError:
        raise MissingExtraError("tensorstore is not installed: pip install 'reshard[orbax]'") from None
    return package


def give_memory_back() -> None:
    """Have the C library give large blocks back as they are freed, for all of the process.

    By itself glibc keeps what tensorstore's threads free, as much again as is held; elsewhere this does nothing.
    """
    adjust = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if adjust is not None:
        adjust(MMAP_THRESHOLD, KEPT_BYTES)
        adjust(TRIM_THRESHOLD, KEPT_BYTES)


def spec_of(folder: Path, name: str, zarr: str, is_database: bool) -> dict[str, Any]:
    """How tensorstore calls an array."""
    store = _store(folder, is_database)
    store["path"] = f"{name}/" if is_database else f"{store['path']}{name}/"
    return {"driver": zarr, "kvstore": store}


def _store(folder: Path, is_database: bool) -> dict[str, Any]:
    place = {"driver": "file", "path": f"{folder.absolute()}/"}
    return {"driver": "ocdbt", "base": place} if is_database else place


@dataclass(frozen=True)
class ArrayTensor:
    """A tensor in chunks that are packed."""

    dtype: DType
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    """The shape of each."""
    spec: Mapping[str, Any] = field(repr=False)

    @cached_property
    def _array(self) -> Any:
        package = tensorstore()
        try:
            return package.open(self.spec, context=context(True), open=True, read=True).result()
        except ValueError as error:
            raise _refusal(self.spec, error) from None

    @property
    def nbytes(self) -> int:
        """Of all elements."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def chunk_count(self) -> int:
        """Into how many parts it is cut."""
        return self.reads(Box.whole(self.shape)).requests

    @property
    def inner_dims(self) -> set[int]:
        """The dim along which elements lie side by side."""
        return {len(self.shape) - 1}

    @property
    def grid(self) -> tuple[int, ...]:
        """The shape of parts that are best read whole."""
        return self.chunk

    @property
    def key(self) -> Any:
        """Alike for tensors that are read alike."""
        return self.dtype, self.shape, self.chunk

    def read_into(self, view: NDArray[Any], box: Box, reader: FileReader) -> None:
        """Fill an array, of the box's shape and any strides, with a box of the tensor.

        Raises:
            ReshardError: `bad-file`.
        """
        reader.count(self.reads(box))
        try:
            values = np.asarray(self._array[(..., *box.slices())].read().result())
        except ValueError as error:
            raise _refusal(self.spec, error) from None
        view[...] = values.view(raw_dtype(self.dtype))

    def reads(self, box: Box) -> Reads:
        """What reading a box takes: all of every chunk that it touches."""
        if box.is_empty:
            return Reads()
        count = prod(-(-stop // size) - start // size for (start, stop), size in zip(box, self.chunk, strict=True))
        return Reads(count, count * prod(self.chunk) * self.dtype.itemsize)


def context(sync: bool) -> Any:
    """What arrays share: no cache, few files at a time, and whether files are brought to the disk itself."""
    return tensorstore().Context(
        {
            "cache_pool": {"total_bytes_limit": 0},
            "data_copy_concurrency": {"limit": 2},
            "file_io_concurrency": {"limit": 4},
            "file_io_sync": sync,
        }
    )


def _refusal(spec: Mapping[str, Any], error: Exception) -> ReshardError:
    store = spec["kvstore"]
    place = store.get("base", store)["path"]
    return ReshardError("bad-file", f"{store['path']} of {place} could not be read: {str(error)[:300]}")


def read(folder: Path) -> Checkpoint:
    """What a folder holds.

    Raises:
        ReshardError: `bad-file`, `missing-extra`.
    """
    path = folder / METADATA
    said = json_of(path)
    tree = said.get("tree_metadata") if isinstance(said, dict) else None
    if not isinstance(tree, dict):
        raise ReshardError("bad-file", f"{path} is no tree of arrays")
    with refusing("bad-file", f"{folder} could not be read"):
        files = tuple(sorted(file for file in folder.rglob("*") if file.is_file()))
        size = sum(file.stat().st_size for file in files)
    is_database, zarr = (folder / MANIFEST).is_file(), "zarr3" if said.get("use_zarr3") is True else "zarr"
    package = tensorstore()
    try:
        store = package.KvStore.open(_store(folder, is_database), context=context(True)).result()
    except ValueError as error:
        raise ReshardError("bad-file", f"{folder} could not be read: {str(error)[:300]}") from None
    tensors, trees = {}, {}
    others: dict[str, ItemPlace | None] = {}
    for leaf in tree.values():
        keys, kind = _keys(leaf, path)
        name = ".".join(map(str, keys))
        if kind in LEAVES:
            if not is_inside(name):
                raise ReshardError("bad-file", f"{path} puts a leaf into {name!r}, which is no folder of its own")
            trees[name] = keys
            tensors[name] = _tensor(store, spec_of(folder, name, zarr, is_database), size)
        elif kind not in ("None", "Dict", "List", "Tuple"):
            others[name] = None
    return Checkpoint(folder, "orbax", tensors, files, others, trees)


def _keys(leaf: Any, path: Path) -> tuple[tuple[str | int, ...], str]:
    """By what a leaf is reached, and what it is."""
    keys = leaf.get("key_metadata") if isinstance(leaf, dict) else None
    value = leaf.get("value_metadata") if isinstance(leaf, dict) else None
    if not isinstance(keys, list) or not isinstance(value, dict):
        raise ReshardError("bad-file", f"{path} has a leaf that is none")
    listing: list[str | int] = []
    for key in keys:
        said = key.get("key") if isinstance(key, dict) else None
        if not isinstance(said, str):
            raise ReshardError("bad-file", f"{path} has a leaf without keys")
        is_number = key.get("key_type") == 1 and said.isdecimal() and len(said) < 10
        listing.append(int(said) if is_number else said)
    return tuple(listing), str(value.get("value_type"))


def _tensor(store: Any, spec: dict[str, Any], folder_bytes: int) -> ArrayTensor:
    """An array, its sizes being held against those of files before anything is made room for."""
    zarr3 = spec["driver"] == "zarr3"
    name = spec["kvstore"]["path"].rstrip("/").rpartition("/")[2]
    try:
        data = store.read(f"{name}/{'zarr.json' if zarr3 else '.zarray'}").result()
        said = json.loads(data.value) if data.state == "value" and len(data.value) < SMALL_CHUNK else None
    except (ValueError, RecursionError) as error:
        raise _refusal(spec, error) from None
    said = said if isinstance(said, dict) else {}
    grid = said.get("chunk_grid")
    if zarr3:
        grid = grid.get("configuration") if isinstance(grid, dict) else None
        chunk = grid.get("chunk_shape") if isinstance(grid, dict) else None
    else:
        chunk = said.get("chunks")
    shape, dtype = said.get("shape"), said.get("data_type" if zarr3 else "dtype")
    if not isinstance(shape, list) or not isinstance(chunk, list) or not isinstance(dtype, str):
        raise ReshardError("bad-file", f"{name} of {spec['kvstore']} says no shape, chunks and dtype")
    if dtype.startswith(">"):
        raise ReshardError("bad-file", f"{name} of {spec['kvstore']} is of dtype {dtype}, whose bytes are in reverse")
    sizes, parts, ours = checked_shape(shape), checked_shape(chunk), dtype_named(dtype)
    if len(sizes) != len(parts) or 0 in parts:
        raise ReshardError("bad-file", f"{name} of {spec['kvstore']} has chunks {chunk} for the shape {shape}")
    if prod(parts) * ours.itemsize > max(SMALL_CHUNK, MOST_PACKED * folder_bytes):
        raise ReshardError("bad-file", f"{name} has chunks {chunk}; its folder of {folder_bytes} bytes cannot hold one")
    return ArrayTensor(ours, sizes, parts, spec)


class ArrayWriter:
    """Writes parts of arrays, which are there already."""

    def __init__(self, folder: Path, sync: bool) -> None:
        self.folder, self._context = folder, context(sync)
        self._arrays: dict[Path, Any] = {}

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._arrays.clear()

    def _array(self, path: Path) -> Any:
        if path not in self._arrays:
            self._arrays.clear()
            spec = spec_of(self.folder, str(path), "zarr", True)
            try:
                self._arrays[path] = tensorstore().open(spec, context=self._context, open=True).result()
            except ValueError as error:
                raise ReshardError("write-failed", f"{path} could not be written: {str(error)[:300]}") from None
        return self._arrays[path]

    def write_box(self, file: TileFile, box: Box, values: NDArray[Any]) -> None:
        """Write a part of an array.

        Raises:
            ReshardError: `write-failed`.
        """
        array = self._array(file.path)
        try:
            array[(..., *box.slices())].write(values.view(array.dtype.numpy_dtype)).result()
        except (ValueError, OSError) as error:
            raise ReshardError("write-failed", f"{file.path} could not be written: {str(error)[:300]}") from None

    def write_at(self, path: Path, offset: int, data: memoryview | bytes) -> None:
        """Arrays have no places for bytes."""
        raise NotImplementedError

    def read_box(self, file: TileFile, box: Box, dtype: np.dtype[Any]) -> NDArray[Any]:
        """A part of an array as it is now.

        Raises:
            ReshardError: `bad-file`.
        """
        try:
            return np.asarray(self._array(file.path)[(..., *box.slices())].read().result()).view(dtype)
        except ValueError as error:
            raise ReshardError("bad-file", f"{file.path} could not be read: {str(error)[:300]}") from None

    def sync(self, path: Path) -> None:
        """Every part that is written is on the disk, where that is wanted."""

    def create(self, name: str, shape: tuple[int, ...], chunk: tuple[int, ...], dtype: DType) -> None:
        """Make an array.

        Raises:
            ReshardError: `write-failed`, `cannot-express`.
        """
        spec = spec_of(self.folder, name, "zarr", True)
        spec["metadata"] = {"shape": shape, "chunks": chunk, "compressor": {"id": "zstd", "level": 1}}
        spec["create"] = True
        package = tensorstore()
        try:
            spec["dtype"] = package.dtype(value_dtype(dtype)).name
            package.open(spec, context=self._context, fill_value=None).result()
        except (ValueError, TypeError) as error:
            raise ReshardError("write-failed", f"array {name!r} could not be made: {str(error)[:300]}") from None


def metadata_of(trees: Mapping[str, tuple[str | int, ...]]) -> bytes:
    """What says by what keys each array is reached."""
    tree = {
        str(tuple(map(str, keys))): {
            "key_metadata": [{"key": str(key), "key_type": 1 if isinstance(key, int) else 2} for key in keys],
            "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False},
        }
        for keys in trees.values()
    }
    said = {
        "tree_metadata": tree,
        "use_ocdbt": True,
        "use_zarr3": False,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }
    return json.dumps(said).encode()
