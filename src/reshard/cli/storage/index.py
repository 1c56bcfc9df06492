r"""The index of a folder of tiles: a small JSON file that says what the tiles are and how to check them.

    {
     "schema": "reshard.tiles/1",
     "mesh": "<[\"x\"=2]>",
     "sharding": "#sdy.sharding<mesh<[\"x\"=2]>, [{\"x\"}]>",     Shardy's notation
     "shape": [8],                                               of the whole tensor
     "dtype": "bfloat16",
     "stored": "<u2",                                            the type in the headers of the tiles
     "order": "C",                                               F where the first index runs fastest
     "tiles": [
      {"device": 0, "file": "device-0.npy", "box": [[0, 4]], "bytes": 136, "crc32": "1f2e3d4c"},
      ...                                                        a device each, in the order of the mesh
     ]
    }

A tile of several boxes has `boxes`, in the order in which they are stored, in place of `box`.
Bytes and checksum (CRC-32, as zip and gzip have it) are of the whole file, its header included.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reshard.box import Box
from reshard.checks import checked_shape
from reshard.cli.storage.encoding import Encoding, encoding_of
from reshard.cli.storage.npy import read_header
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError, refusing
from reshard.models.checkpoints.files import TileFile
from reshard.notation import parse_mesh, parse_sharding
from reshard.sharding import Sharding
from reshard.tile import Tile

NAME = "index.json"
SCHEMA = "reshard.tiles/1"
"""Names the form of the index; it changes when a reader of the old form would be wrong."""
MAX_BYTES = 2**26
"""Bytes of an index that are read at the most."""


@dataclass(frozen=True, slots=True)
class TileEntry:
    """One tile."""

    device: int
    file: str
    """The name of its file in the folder."""
    tile: Box | Tile
    """Where it lies in the tensor."""
    size: int
    """Bytes of the file."""
    crc32: int
    """Of the file."""
    received_bytes: int = field(default=0, compare=False)
    """What the device took from others while the tile was written; no index keeps it."""


@dataclass(frozen=True, slots=True)
class FolderIndex:
    """What a folder of tiles holds."""

    sharding: Sharding
    shape: tuple[int, ...]
    encoding: Encoding
    entries: tuple[TileEntry, ...]
    """A device each, in the order of the mesh."""

    def to_json(self) -> str:
        """The text of the index."""
        record = {
            "schema": SCHEMA,
            "mesh": str(self.sharding.mesh),
            "sharding": str(self.sharding),
            "shape": list(self.shape),
            "dtype": self.encoding.dtype.name,
            "stored": self.encoding.stored.str,
            "order": "F" if self.encoding.fortran else "C",
        }
        head = json.dumps(record, indent=1).removesuffix("\n}")
        tiles = ",\n".join("  " + json.dumps(tile_record(entry)) for entry in self.entries)
        return f'{head},\n "tiles": [\n{tiles}\n ]\n}}\n'


def tile_record(entry: TileEntry) -> dict[str, Any]:
    """A tile as it stands in the index."""
    return {
        "device": entry.device,
        "file": entry.file,
        **_where(entry.tile),
        "bytes": entry.size,
        "crc32": f"{entry.crc32:08x}",
    }


def _where(tile: Box | Tile) -> dict[str, Any]:
    return {"box": tile} if isinstance(tile, Box) else {"boxes": list(tile.boxes())}


def read_index(folder: Path) -> FolderIndex:
    """The index of a folder, checked in itself; the tiles are not looked at.

    Raises:
        ReshardError: `bad-file`.
    """
    path = folder / NAME
    with refusing("bad-file", f"{path} could not be read"):
        if not stat.S_ISREG(path.stat().st_mode):
            raise ReshardError("bad-file", f"{path} is no file")
        if path.stat().st_size > MAX_BYTES:
            raise ReshardError("bad-file", f"{path} has more than {MAX_BYTES} bytes")
        text = path.read_bytes()
    try:
        record = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise ReshardError("bad-file", f"{path} is no JSON: {error}") from None
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA:
        raise ReshardError("bad-file", f"{path} must have the schema {SCHEMA!r}, got: {schema!r}")
    try:
        return _checked(record)
    except (ReshardError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ReshardError("bad-file", f"{path} is malformed: {reason}") from None


def _checked(record: dict[str, Any]) -> FolderIndex:
    """The index that a record gives; ValueError and its kin where it contradicts itself."""
    sharding, shape = parse_sharding(record["sharding"]), checked_shape(record["shape"])
    if parse_mesh(record["mesh"]) != sharding.mesh:
        raise ValueError(f"its mesh {record['mesh']} is not that of its sharding")
    if sharding.mesh.is_empty:
        raise ValueError("its mesh has no devices")
    if record["order"] not in ("C", "F"):
        raise ValueError(f"order must be C or F, got: {record['order']!r}")
    if not re.fullmatch(r"[<>|][biufc][0-9]{1,2}", record["stored"]):
        raise ValueError(f"stored must be a type as NumPy writes it, such as <f4, got: {record['stored']!r}")
    stored = np.dtype(record["stored"])
    encoding = encoding_of(stored, record["order"] == "F", dtype_named(record["dtype"]), "it")
    layout, devices = sharding.layout_for(shape), sharding.mesh.device_array.tolist()
    tiles = record["tiles"]
    if not isinstance(tiles, list) or [tile["device"] for tile in tiles] != devices:
        raise ValueError("its tiles must be those of the devices of its mesh, in that order")
    entries = [_entry(tile, layout.tile(position, shape)) for position, tile in enumerate(tiles)]
    return FolderIndex(sharding, shape, encoding, tuple(entries))


def _entry(record: dict[str, Any], tile: Box | Tile) -> TileEntry:
    """A tile as a record gives it, where its sharding has it."""
    device, name, size, crc32 = record["device"], record["file"], record["bytes"], record["crc32"]
    if type(device) is not int or type(size) is not int or size < 0:
        raise ValueError("device and bytes of a tile must be integers")
    if not isinstance(name, str) or name in ("", ".", "..", NAME) or re.search(r"[/\\\x00\ud800-\udfff]", name):
        raise ValueError(f"the file of device {device} must be a name in the folder, got: {name!r}")
    if not isinstance(crc32, str) or not re.fullmatch(r"[0-9a-f]{8}", crc32):
        raise ValueError(f"the crc32 of device {device} must be 8 hexadecimal digits, got: {crc32!r}")
    (where, expected), *_ = _where(tile).items()
    told = [record[where]] if where == "box" else record[where]
    boxes = [Box((start, stop) for start, stop in box) for box in told]
    if boxes != ([expected] if where == "box" else expected):  # in the text 4.0 equals 4
        raise ValueError(f"the box of device {device} is not that of its sharding")
    return TileEntry(device, name, tile, size, int(crc32, 16))


def tile_files(entries: Iterable[TileEntry], encoding: Encoding, folder: Path) -> dict[int, TileFile]:
    """Where each device's elements lie, every file's size and header checked; of several boxes as one array.

    Raises:
        ReshardError: `bad-file` where a file is missing, is a link, or is not what the index says.
    """
    files = {}
    for entry in entries:
        path = folder / entry.file
        with refusing("bad-file", f"{path} could not be read"):
            status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise ReshardError("bad-file", f"{path} is no plain file")
        if status.st_size != entry.size:
            raise ReshardError("bad-file", f"{path} has {status.st_size} bytes; the index says {entry.size}")
        header = read_header(path)
        expected = (encoding.stored, entry.tile.shape, encoding.fortran and len(entry.tile.shape) > 1)
        if (header.descr, header.shape, header.fortran) != expected:
            raise ReshardError("bad-file", f"the header of {path} is not what the index says")
        box = entry.tile if isinstance(entry.tile, Box) else Box.whole(entry.tile.shape)
        files[entry.device] = TileFile(path, header.offset, encoding.stored_box(box))
    return files
