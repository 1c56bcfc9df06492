"""What a tensor is read from: a file that holds it whole, or a folder of tiles with its index."""

from __future__ import annotations

import stat
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reshard.box import Box
from reshard.cli.storage import npy
from reshard.cli.storage.encoding import Encoding, encoding_of
from reshard.cli.storage.index import NAME, FolderIndex, TileEntry, read_index
from reshard.cli.storage.streaming import Advance, TensorFiles
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.models.checkpoints import safetensors
from reshard.models.checkpoints.files import FileReader, TileFile
from reshard.models.checkpoints.peers import Alone, Peers, share
from reshard.sharding import Sharding
from reshard.tiling import Tiling

CHUNK_BYTES = 2**24
"""Bytes that are read at a time to check a file."""


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor on disk, its header or index read."""

    path: Path
    shape: tuple[int, ...]
    encoding: Encoding
    offset: int = 0
    """Where the first element begins in a file that holds the whole tensor."""
    index: FolderIndex | None = None
    """That of a folder."""

    def tensor_files(self, sharding: Sharding) -> TensorFiles:
        """Where the tile of every device is; a whole file is taken as cut by the sharding.

        Along unreduced axes the first device of a whole file has the value and the others the identity of the
        reduction; under avg all have the value.

        Raises:
            ReshardError: `bad-file` where a tile in a folder is not what the index says; `too-large`.
        """
        if self.index is not None:
            return TensorFiles.of_tiles(self.entries, self.encoding, self.path)
        whole = TileFile(self.path, self.offset, self.encoding.stored_box(Box.whole(self.shape)))
        tiling = Tiling.of(sharding, self.shape)
        devices = sharding.mesh.device_array.tolist()
        blank = [
            device
            for position, device in enumerate(devices)
            if sharding.reduction != "avg" and tiling.layout.unreduced.index_of(position)
        ]
        return TensorFiles(self.encoding, dict.fromkeys(devices, whole), frozenset(blank), sharding.reduction)

    @property
    def entries(self) -> tuple[TileEntry, ...]:
        """The tiles of a folder; none of a file."""
        return () if self.index is None else self.index.entries

    def check_sums(self, advance: Advance, peers: Peers | None = None) -> None:
        """Read this process's share of a folder's files and compare their checksums with those in the index.

        Raises:
            ReshardError: `bad-file`.
        """
        with FileReader() as reader:
            for entry in share(peers or Alone(), self.entries):
                path, checksum = self.path / entry.file, 0
                buffer = np.empty(min(entry.size, CHUNK_BYTES), np.uint8).data
                for start in range(0, entry.size, CHUNK_BYTES):
                    chunk = buffer[: entry.size - start]
                    reader.read_into(path, start, chunk)
                    checksum = zlib.crc32(chunk, checksum)
                    advance(len(chunk))
                if checksum != entry.crc32:
                    raise ReshardError(
                        "bad-file", f"{path} has the checksum {checksum:08x}; the index says {entry.crc32:08x}"
                    )


def open_input(path: Path, tensor: str | None, dtype: DType | None, shape: tuple[int, ...] | None) -> Input:
    """A tensor on disk.

    Args:
        path: a `.npy` file, a `.safetensors` file, or a folder with an index.
        tensor: the name of one tensor of a `.safetensors` file.
        dtype: what the elements must be, if that is known.
        shape: what the shape must be, if that is known.

    Raises:
        ReshardError: `bad-file` where it is none of these, or is malformed, or of another shape or dtype;
            `bad-argument` where a tensor is named that is not needed, or not named where it is.
    """
    try:
        mode = path.stat().st_mode
        start = b""
        if stat.S_ISREG(mode):
            with path.open("rb") as file:
                start = file.read(len(npy.MAGIC))
    except (OSError, ValueError) as error:
        raise ReshardError(
            "bad-file", f"{path} could not be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ReshardError("bad-file", f"{path} is neither a file nor a folder")
    is_named = path.suffix == ".safetensors" and start != npy.MAGIC
    if tensor is not None and not is_named:
        raise ReshardError("bad-argument", f"--tensor names a tensor of a .safetensors file; {path} is none")
    if stat.S_ISDIR(mode):
        index = read_index(path)
        source = Input(path, index.shape, index.encoding, index=index)
    elif is_named:
        entry = safetensors.read_entry(path, tensor)
        source = Input(path, entry.shape, Encoding.of(entry.dtype), entry.offset)
    elif start == npy.MAGIC or path.suffix == ".npy":
        header = npy.read_header(path)
        source = Input(path, header.shape, encoding_of(header.descr, header.fortran, dtype, path), header.offset)
    else:
        raise ReshardError("bad-file", f"{path} is no .npy file, no .safetensors file and no folder with an {NAME}")
    if dtype is not None and source.encoding.dtype != dtype:
        raise ReshardError("bad-file", f"{path} holds {source.encoding.dtype} values; they were said to be {dtype}")
    if shape is not None and source.shape != shape:
        raise ReshardError("bad-file", f"{path} holds a tensor of shape {source.shape}; it was said to be {shape}")
    return source
