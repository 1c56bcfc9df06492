"""Tiles of several boxes and windows, made in parts: where what is stored side by side is not so in the tensor.

A part is a region of the array that a device stores, so that files are written from begin to end.
What a piece gives to a region is looked for at every place at which its elements stand, and read from wherever the
sender keeps them, in the tensor or in an array of its own.

By hand, 8 elements in zigzag over 2 devices: device 0 stores 0, 1, 6, 7, and its third place is made of element 6.

>>> from reshard.tiling import Tiling
>>> from reshard.mesh import Mesh
>>> from reshard.notation import parse_sharding
>>> tile = Tiling.of(parse_sharding('[{zigzag, "x"}]', Mesh.of(x=2)), (8,)).tile(0)
>>> [(str(share.box), share.place) for share in shares(tile, Box([(4, 8)]), Box([(2, 3)]))]
[('[6, 7)', (slice(0, 1, None),))]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.array_tiles import COMBINE, part_of
from reshard.box import Box
from reshard.cli.storage.encoding import Encoding
from reshard.dtypes import identity
from reshard.errors import ReshardError
from reshard.exchange import Piece
from reshard.models.checkpoints.files import FileReader, TileFile
from reshard.tile import Tile


class RegionPart(NamedTuple):
    """What a box gives to a region of an array."""

    box: Box
    """Which part of the tensor."""
    place: tuple[slice, ...]
    """Where it stands in the region."""


class Holdings(NamedTuple):
    """Where senders keep a tensor."""

    encoding: Encoding
    dtype: np.dtype[Any]
    """To read it as."""
    files: dict[int, TileFile]
    tiles: dict[int, Tile]
    """What the file of a device stores, where that is no box of the tensor."""
    blank: frozenset[int]
    """Devices whose tiles are the identity of the reduction, and stand in no file."""
    reduction: str

    def read(self, reader: FileReader, sender: int, box: Box) -> NDArray[Any]:
        """A box of what a sender has."""
        if sender in self.blank:
            return np.full(box.shape, identity(self.reduction, self.dtype), self.dtype)
        if sender in self.tiles:
            box = Box((along.start, along.stop) for along in _place(self.tiles[sender], box))
        array = reader.read_box(self.files[sender], self.encoding.stored_box(box), self.dtype)
        return array.T if self.encoding.fortran else array


def _place(tile: Tile, box: Box) -> tuple[slice, ...]:
    """Where a box lies in an array: where it is owned, or in a border, which a copy of the array takes too."""
    try:
        return tile.owned_place(box)
    except ReshardError:
        return tile.places(box)[0][0]


class Making(NamedTuple):
    """How a tile is made of pieces."""

    pieces: Sequence[Piece]
    reduction: str | None
    """How pieces that meet are combined; None where they do not."""
    classes: int
    fill: str | None
    """The reduction whose identity stands where no piece comes."""


def parts_of_tile(
    tile: Box | Tile, making: Making, holdings: Holdings, reader: FileReader, stored_regions: Iterator[Box]
) -> Iterator[NDArray[Any]]:
    """A tile in parts, in the order in which they lie in its file.

    Args:
        tile: what is stored.
        making: of which pieces.
        holdings: where these are.
        reader: of the files.
        stored_regions: of the array as it lies in the file, one after the other.
    """
    for stored in stored_regions:
        region = Box(reversed(stored)) if holdings.encoding.fortran else stored
        part = np.zeros(region.shape, holdings.dtype)
        if making.fill is not None:
            part[...] = identity(making.fill, holdings.dtype)
        written: set[Box] = set()
        for piece in making.pieces:
            for share in shares(tile, piece.box, region):
                there, values = part_of(part, share.place), holdings.read(reader, piece.sender, share.box)
                if making.reduction is not None and (making.fill is not None or piece.box in written):
                    COMBINE[making.reduction](there, values, out=there)
                else:
                    there[...] = values
            written.add(piece.box)
        if making.reduction == "avg":
            part /= making.classes
        yield np.ascontiguousarray(part.T if holdings.encoding.fortran else part)


def shares(tile: Box | Tile, box: Box, region: Box) -> Iterator[RegionPart]:
    """What a box of the tensor gives to a region of the array of a tile."""
    for place, part in tile.places(box):
        inside = [
            (max(along.start, low), min(along.stop, high)) for along, (low, high) in zip(place, region, strict=True)
        ]
        if all(low < high for low, high in inside):
            starts = [
                begin + (within.start or 0) - along.start
                for (begin, _), within, along in zip(box, part, place, strict=True)
            ]
            yield RegionPart(
                Box((start + low, start + high) for start, (low, high) in zip(starts, inside, strict=True)),
                tuple(slice(low - edge, high - edge) for (low, high), (edge, _) in zip(inside, region, strict=True)),
            )
