"""Moving a tensor from files to files: exchange by exchange, region by region, device by device.

A `TileTransfer` is one exchange of a plan, or what takes its place where nothing is sent; it ends in a set of files,
and a plan of several is run through files in between.
`parts` makes the tiles of a transfer from the files of its source, in the order in which they lie in their files.
`write` appends what it yields; `check` reads what was written and compares it with what `parts` yields anew.
So each element is compared with those that it was made of, where values are combined too: the same values,
combined in the same order, are the same bits.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard.array_tiles import combined
from reshard.box import Box
from reshard.cli.storage import pieces_by_region
from reshard.cli.storage.encoding import Encoding
from reshard.cli.storage.index import TileEntry, tile_files
from reshard.cli.storage.npy import header_bytes
from reshard.cli.storage.several_boxes import Holdings, Making, parts_of_tile
from reshard.dtypes import identity
from reshard.errors import ReshardError
from reshard.exchange import Exchange, Piece
from reshard.models.checkpoints.files import FileReader, FileWriter, TileFile, bytes_of
from reshard.plans import Plan
from reshard.tile import Tile
from reshard.tiling import Tiling

CALL_BYTES = 2**13
"""Bytes that could be read in the time that the call for one run takes."""
CACHE_BYTES = 2**26
"""Bytes of regions of source files that are kept in memory at the most."""

Advance = Callable[[int], None]
"""Is told how many bytes more are done."""


@dataclass(frozen=True)
class TensorFiles:
    """A tensor on disk: where the tile of every device is."""

    encoding: Encoding
    files: Mapping[int, TileFile]
    """Per device; one file may be that of many."""
    blank: frozenset[int] = frozenset()
    """Devices whose tiles are the identity of the reduction, and stand in no file."""
    reduction: str = "sum"
    tiles: Mapping[int, Tile] = field(default_factory=dict)
    """Per device of several boxes what its file stores."""

    @classmethod
    def of_tiles(cls, entries: Collection[TileEntry], encoding: Encoding, folder: Path) -> TensorFiles:
        """Of a folder of tiles.

        Raises:
            ReshardError: `bad-file`.
        """
        tiles = {entry.device: entry.tile for entry in entries if isinstance(entry.tile, Tile)}
        return cls(encoding, tile_files(entries, encoding, folder), tiles=tiles)


@dataclass(frozen=True)
class TileTransfer:
    """The tiles of a target, and what each is made of."""

    target: Tiling
    incoming: Callable[[int], Iterable[Piece]]
    """The pieces that come into a device, in the order in which they are combined."""
    reduction: str | None = None
    """How pieces of one box are combined; None where no two are of one box."""
    classes: int = 1
    """The number of partial values that are combined into one."""
    fill: str | None = None
    """The reduction whose identity stands where no piece comes; None where pieces cover every tile."""
    only: tuple[int, ...] | None = None
    """The devices whose tiles this process makes; None for all."""

    @property
    def devices(self) -> list[int]:
        """Who receives, in the order of the mesh."""
        devices: list[int] = self.target.mesh.device_array.tolist()
        return devices if self.only is None else list(self.only)

    @property
    def calculates(self) -> bool:
        """Whether it needs to know what the elements mean."""
        return self.reduction is not None or self.fill is not None


def transfers_of(plan: Plan) -> list[TileTransfer]:
    """The transfers that run a plan, at least one."""
    target = Tiling.of(plan.target, plan.shape)
    transfers: list[TileTransfer] = []
    for step in plan.steps:
        transfers += [
            TileTransfer(move.exchange.target, partial(_from_holders, move.exchange), *move[1:])
            for move in step.transfers
        ]
        # A scalar may be moved as a vector of one element, but is a scalar in the end.
        transfers[-1] = replace(transfers[-1], target=Tiling.of(step.after, step.shape))
    return transfers or [TileTransfer(target, lambda device: pieces_of(target, device, device))]


def _from_holders(exchange: Exchange, device: int) -> list[Piece]:
    """What comes into a device, each piece from who has it in its files: nobody hands it on."""
    pieces = exchange.incoming(device)
    if exchange.hops > 1:
        pieces = [piece._replace(sender=exchange.holder_of(piece)) for piece in pieces]
    return pieces


def pieces_of(target: Tiling, device: int, sender: int) -> list[Piece]:
    """The tile of a device, taken from one sender."""
    return [Piece(sender, device, box, 0) for box in target.tile(device).boxes() if not box.is_empty]


def parts(transfer: TileTransfer, source: TensorFiles, dtype: np.dtype[Any]) -> Iterator[tuple[int, NDArray[Any], int]]:
    """The tiles of a transfer, in parts.

    Every device's parts come in the order in which they lie in its file.

    Args:
        transfer: what to make.
        source: of what.
        dtype: the type of the parts.

    Yields:
        A device, a part of its tile as a contiguous array that is only to be read, and how many bytes of what it is
        made of came from others.
    """
    if source.tiles or transfer.target.layout.weaves:
        yield from _parts_of_several_boxes(transfer, source, dtype)
        return
    encoding = source.encoding
    elements = max(1, pieces_by_region.REGION_BYTES // dtype.itemsize)

    def incoming(device: int) -> Iterator[Piece]:
        for piece in transfer.incoming(device):
            yield piece._replace(box=encoding.stored_box(piece.box))

    def tile(device: int) -> Box:
        return encoding.stored_box(transfer.target.box(device))

    with FileReader() as reader, np.errstate(all="ignore"):
        for pieces in pieces_by_region.piece_tables(transfer.devices, tile, incoming):
            for region in pieces_by_region.regions(pieces.hull(), elements):
                sources = RegionReader(source, region, dtype, reader)
                receipts = list(pieces.within(region))
                sources.expect(piece for _, _, arriving in receipts for piece in arriving)
                for device, part, arriving in receipts:
                    received = sum(box.size for sender, box in arriving if sender != device)
                    yield device, _combined(transfer, part, arriving, sources), received * dtype.itemsize


def _parts_of_several_boxes(
    transfer: TileTransfer, source: TensorFiles, dtype: np.dtype[Any]
) -> Iterator[tuple[int, NDArray[Any], int]]:
    """The same, device by device: what lies side by side in a file may be anywhere in the tensor."""
    encoding, elements = source.encoding, max(1, pieces_by_region.REGION_BYTES // dtype.itemsize)
    holdings = Holdings(encoding, dtype, dict(source.files), dict(source.tiles), source.blank, source.reduction)
    with FileReader() as reader, np.errstate(all="ignore"):
        for device in transfer.devices:
            tile, pieces = transfer.target.tile(device), list(transfer.incoming(device))
            received = sum(piece.box.size for piece in pieces if piece.sender != device) * dtype.itemsize
            making = Making(pieces, transfer.reduction, transfer.classes, transfer.fill)
            stored = pieces_by_region.regions(encoding.stored_box(Box.whole(tile.shape)), elements)
            for part in parts_of_tile(tile, making, holdings, reader, stored):
                yield device, part, received
                received = 0


def _combined(transfer: TileTransfer, part: Box, pieces: list[tuple[int, Box]], sources: RegionReader) -> NDArray[Any]:
    """A part of a tile, made of its pieces."""
    if len(pieces) == 1 and pieces[0][1] == part and transfer.classes == 1:
        return np.ascontiguousarray(sources.read(*pieces[0]))
    tile: NDArray[Any] = np.empty(part.shape, sources.dtype)
    if transfer.fill is not None:
        tile[...] = identity(transfer.fill, sources.dtype)
    arriving = ((box, sources.read(sender, box)) for sender, box in pieces)
    return combined(tile, part, arriving, transfer.reduction, transfer.classes)


@dataclass
class RegionReader:
    """Reads pieces of one region: by themselves, or as views of all that a file holds of the region.

    A file is read in one go where its pieces together would take longer, that is, where they are many or in
    short runs.
    """

    source: TensorFiles
    region: Box
    dtype: np.dtype[Any]
    reader: FileReader
    at_once: set[TileFile] = field(default_factory=set)
    """Files of which all that lies in the region is read."""
    cache: OrderedDict[TileFile, tuple[Box, NDArray[Any]]] = field(default_factory=OrderedDict)
    """What has been read so."""
    cached_bytes: int = 0

    def expect(self, pieces: Iterable[tuple[int, Box]]) -> None:
        """Choose how to read, knowing all that will be asked for."""
        costs: dict[TileFile, int] = {}
        for sender, box in pieces:
            if sender not in self.source.blank:
                file = self.source.files[sender]
                cost = box.size * self.dtype.itemsize + file.runs(box).run_count * CALL_BYTES
                costs[file] = costs.get(file, 0) + cost
        for file, cost in costs.items():
            if file.box.intersect(self.region).size * self.dtype.itemsize < cost:
                self.at_once.add(file)

    def read(self, sender: int, box: Box) -> NDArray[Any]:
        """A piece, perhaps a view of what is kept."""
        if sender in self.source.blank:
            return np.full(box.shape, identity(self.source.reduction, self.dtype), self.dtype)
        file = self.source.files[sender]
        if file not in self.at_once:
            return self.reader.read_box(file, box, self.dtype)
        if file not in self.cache:
            whole = file.box.intersect(self.region)
            self.cached_bytes += whole.size * self.dtype.itemsize
            while self.cache and self.cached_bytes > CACHE_BYTES:
                self.cached_bytes -= self.cache.popitem(last=False)[1][1].nbytes
            self.cache[file] = whole, self.reader.read_box(file, whole, self.dtype)
        self.cache.move_to_end(file)
        within, array = self.cache[file]
        return array[box.slices(within)]


def write(
    transfer: TileTransfer, source: TensorFiles, dtype: np.dtype[Any], folder: Path, advance: Advance
) -> dict[int, TileEntry]:
    """Write the tiles of a transfer into a folder, a file per device.

    Raises:
        ReshardError: `write-failed`, and `bad-file` where the source cannot be read.
    """
    digits = len(str(max(transfer.target.mesh.devices)))
    entries = {}
    with FileWriter() as writer:
        for device in transfer.devices:
            tile = transfer.target.tile(device)
            header, name = header_bytes(source.encoding, tile.shape), f"device-{device:0{digits}d}.npy"
            writer.append(folder / name, header)
            entries[device] = TileEntry(device, name, tile, len(header), zlib.crc32(header))
        for device, part, part_received in parts(transfer, source, dtype):
            entry, data = entries[device], bytes_of(part)
            writer.append(folder / entry.file, data)
            size, received_bytes = entry.size + len(data), entry.received_bytes + part_received
            entries[device] = replace(
                entry, size=size, crc32=zlib.crc32(data, entry.crc32), received_bytes=received_bytes
            )
            advance(len(data))
    return entries


def check(
    transfer: TileTransfer,
    source: TensorFiles,
    dtype: np.dtype[Any],
    folder: Path,
    entries: Mapping[int, TileEntry],
    advance: Advance,
) -> None:
    """Read every file that was written and compare it, with its checksum and with what it was made of.

    Raises:
        ReshardError: `verify-failed`, and `bad-file` where the source cannot be read.
    """
    sizes, sums = {}, {}
    with FileReader() as reader:
        for device, entry in entries.items():
            path, header = folder / entry.file, header_bytes(source.encoding, entry.tile.shape)
            if _read_back(reader, path, 0, len(header)).tobytes() != header or path.stat().st_size != entry.size:
                raise ReshardError("verify-failed", f"{path} lacks the header or the size that was written")
            sizes[device], sums[device] = len(header), zlib.crc32(header)
        for device, part, _ in parts(transfer, source, dtype):
            path, expected = folder / entries[device].file, bytes_of(part)
            read_back = _read_back(reader, path, sizes[device], len(expected))
            wrong = np.flatnonzero(read_back != np.frombuffer(expected, np.uint8))
            if len(wrong):
                place = sizes[device] + int(wrong[0])
                raise ReshardError("verify-failed", f"{path} differs from its source at byte {place}")
            sums[device] = zlib.crc32(read_back.data, sums[device])
            sizes[device] += len(expected)
            advance(len(expected))
    for device, entry in entries.items():
        if (sizes[device], sums[device]) != (entry.size, entry.crc32):
            path = folder / entry.file
            raise ReshardError("verify-failed", f"{path} is not what was written: its checksum differs")


def _read_back(reader: FileReader, path: Path, offset: int, count: int) -> NDArray[np.uint8]:
    data = np.empty(count, np.uint8)
    try:
        reader.read_into(path, offset, data.data)
    except ReshardError as error:
        raise ReshardError("verify-failed", f"what was written cannot be read back: {error}") from None
    return data
