"""An exchange by comparing boxes, for all that has no common digits.

Per dim, the overlaps of source blocks and target blocks are one list of intervals, in order: both block numbers
only grow along it, unless blocks are dealt in turns or windows overlap.
A target tile consists of the products of its intervals; each comes from one source tile.
All holders of a source tile hold the same, so the choice of senders separates by source tile:
a device that holds its own piece takes it, and the rest is dealt to the holders in turn, largest piece first.
Every H deals give each of H holders a piece, and no holder's next piece is larger than any other's last, so two
holders differ by at most one piece: the busiest sends at most (elements asked of the tile by others / H) + one
piece, and nothing can do better than the first term.

A *cell* is a source tile meeting a target tile.
All of the target tile's R holders ask for the same box, so within a cell only two counts are needed: how many
deals came before it, and which of its R holders take their own.
Hence a device's pieces follow from the cells of the source tiles in question: those below the device's target
tile for what comes in, its own source tile for what goes out.

By hand, 6 rows from 3 devices to the first 2 of them: the cuts 2, 4 meet the cut 3, and rows 2 and 3, which
device 1 holds, go to devices 0 and 1.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> source, target = Sharding.of(Mesh.of(x=3), "x"), Sharding.of(Mesh.of(x=2), "x")
>>> exchange = by_boxes(Tiling.of(source, (6,)), Tiling.of(target, (6,)))
>>> for piece in exchange.incoming(1):
...     print(piece.sender, piece.box)
1 [3, 4)
2 [4, 6)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from reshard.box import Box
from reshard.digits import NO_DIGITS, Digits, Positions
from reshard.errors import ReshardError
from reshard.exchange.pieces import (
    ONE_CLASS,
    ClassDigits,
    Exchange,
    Overlaps,
    Piece,
    PieceTable,
    block_overlaps,
    each_pair,
    most_pieces,
)
from reshard.mesh import ENUMERABLE
from reshard.tiling import Tiling

EVERY = slice(None)


class Cells(NamedTuple):
    """Source tiles meeting target tiles, sorted by source tile, then largest first."""

    holder: Positions
    """The first position that holds the source tile."""
    receiver: Positions
    """The first position that needs the target tile."""
    elements: Positions
    """The size of the box that they share."""
    overlap: Positions
    """Per dim and cell, the number of the interval in `parts`."""
    parts: tuple[Overlaps, ...]
    before: Positions
    """The number of pieces of the same source tile that are dealt before those of the cell."""
    own: Positions
    """Sorted, cell * R + copy: the copies of target tiles whose device holds the source tile itself."""

    def boxes(self, cells: Positions) -> list[Box]:
        """The boxes that the two tiles of these cells share."""
        if not self.parts:
            return [Box()] * len(cells)
        columns = [
            zip(part.start[number].tolist(), part.stop[number].tolist(), strict=True)
            for part, number in zip(self.parts, self.overlap[:, cells], strict=True)
        ]
        return list(map(Box, zip(*columns, strict=True)))


@dataclass(frozen=True)
class BoxExchange(Exchange):
    """Senders dealt per source tile."""

    source: Tiling
    target: Tiling
    combined: Digits
    """Digits of the source whose values are combined on the receiver."""
    class_digits: ClassDigits
    near: int = 0
    """Where given, devices whose numbers agree when divided by it serve each other first."""

    @cached_property
    def overlaps(self) -> tuple[Overlaps, ...]:
        """Per dim, where source and target blocks meet."""
        layouts = self.source.layout, self.target.layout
        return tuple(block_overlaps(*layouts, dim, size) for dim, size in enumerate(self.target.shape))

    @property
    def pieces(self) -> int:
        """The number of pieces, those too that stay on their device; as many are listed to price them."""
        cells = prod([len(overlaps.start) for overlaps in self.overlaps])
        return cells * self.class_digits.source.size * self.combined.size * self.target.layout.copies()

    @cached_property
    def _holders(self) -> Positions:
        """What to add to a source tile's first position to reach all that hold it."""
        return self.source.layout.free.offsets()

    @cached_property
    def _copies(self) -> Positions:
        """What to add to a target tile's first position to reach all that need it."""
        return self.target.layout.free.offsets()

    @cached_property
    def _classes(self) -> Positions:
        """What to add to reach each class of values that stay unreduced: in the source, in the target."""
        return np.stack([digits.offsets() for digits in self.class_digits])

    @cached_property
    def _combined(self) -> Positions:
        """What to add to a source tile's first position to reach all whose values are combined."""
        return self.combined.offsets()

    @cached_property
    def _source_places(self) -> Positions:
        """Per position of the target, the position of its device in the source, or -1."""
        return self.source.mesh.positions_of(self.target.mesh.device_array)

    @cached_property
    def _target_places(self) -> Positions:
        """Per position of the source, the position of its device in the target, or -1."""
        return self.target.mesh.positions_of(self.source.mesh.device_array)

    def _cells(self, source: Sequence[slice], target: Sequence[slice]) -> Cells:
        """The cells of runs of source blocks and of target blocks, per dim.

        Where source tiles have several holders, all target blocks must be in the runs: the deal depends on them.
        """
        parts = tuple(map(Overlaps.part, self.overlaps, source, target))
        counts = [len(part.start) for part in parts]
        classes, combined = self._classes, self._combined
        shape = (prod(counts), classes.shape[1], len(combined))
        if prod(shape) > ENUMERABLE:
            raise ReshardError("too-large", f"{prod(shape)} pairs of tiles are too many to list one by one")
        grid = np.indices(counts).reshape(len(parts), prod(counts))
        holder, receiver, elements = np.zeros((3, shape[0]), dtype=np.int64)
        elements += 1
        for dim, (part, cell) in enumerate(zip(parts, grid, strict=True)):
            holder += self.source.layout.cutting[dim].offset_of(part.source)[cell]
            receiver += self.target.layout.cutting[dim].offset_of(part.target)[cell]
            elements *= (part.stop - part.start)[cell]
        rows = np.repeat(np.arange(shape[0]), prod(shape[1:]))
        holders = np.broadcast_to(holder[:, None, None] + classes[0][:, None] + combined, shape).ravel()
        receivers = np.broadcast_to(receiver[:, None, None] + classes[1][:, None], shape).ravel()
        order = np.lexsort((receivers, -elements[rows], holders))
        rows = rows[order]
        return self._dealt(holders[order], receivers[order], elements[rows], grid[:, rows], parts)

    def _dealt(
        self,
        holder: Positions,
        receiver: Positions,
        elements: Positions,
        overlap: Positions,
        parts: tuple[Overlaps, ...],
    ) -> Cells:
        """The cells with what the deal needs: who takes its own, and how many deals come before each cell."""
        nothing = np.zeros(0, dtype=np.int64)
        if len(self._holders) == 1 or not len(holder):
            return Cells(holder, receiver, elements, overlap, parts, np.zeros_like(holder), nothing)
        starts = np.concatenate(([True], holder[1:] != holder[:-1]))
        tile = np.cumsum(starts) - 1
        places = self._target_places[holder[starts][:, None] + self._holders]
        tiles, _ = np.nonzero(places >= 0)
        places = places[places >= 0]
        copies = self.target.layout.free.index_of(places)
        bases = places - self._copies[copies]
        keys = tile * self.target.mesh.size + receiver
        order = np.argsort(keys)
        own_keys = tiles * self.target.mesh.size + bases
        keys = keys[order]
        low, high = keys.searchsorted(own_keys), keys.searchsorted(own_keys, "right")
        row = np.repeat(np.arange(len(low)), high - low)
        cells = order[np.arange(len(row)) + np.repeat(high - np.cumsum(high - low), high - low)]
        own = np.sort(cells * len(self._copies) + copies[row])
        dealt = len(self._copies) - np.bincount(own // len(self._copies), minlength=len(holder))
        before = np.cumsum(dealt) - dealt
        return Cells(holder, receiver, elements, overlap, parts, before - before[starts][tile], own)

    def _senders(self, cells: Cells, cell: Positions, copy: Positions) -> Positions:
        """The position that sends the box of a cell to a copy of its target tile, for many of them."""
        if len(self._holders) == 1:
            return cells.holder[cell]
        if self.near:
            return self._near_senders(cells)[cell, copy]
        key = cell * len(self._copies)
        own_before = cells.own.searchsorted(key + copy)
        is_own = np.append(cells.own, -1)[own_before] == key + copy
        rank = copy - (own_before - cells.own.searchsorted(key))
        dealt = cells.holder[cell] + self._holders[(cells.before[cell] + rank) % len(self._holders)]
        return np.where(is_own, self._source_places[cells.receiver[cell] + self._copies[copy]], dealt)

    def _near_senders(self, cells: Cells) -> Positions:
        """The senders to all copies of all cells, dealt among the holders on the receiver's side if there are any."""
        holders = np.unique(cells.holder)[:, None] + self._holders
        tile = np.repeat(np.searchsorted(holders[:, 0], cells.holder), len(self._copies))
        receivers = (cells.receiver[:, None] + self._copies).ravel()
        sides = [tiling.mesh.device_array // self.near for tiling in (self.source, self.target)]
        side = sides[1][receivers]
        count = int(max(sides[0].max(), sides[1].max())) + 1
        keys = (np.arange(len(holders))[:, None] * count + sides[0][holders]).ravel()
        order = np.argsort(keys, kind="stable")
        low, high = (np.searchsorted(keys[order], tile * count + side, end) for end in ("left", "right"))
        alone = low == high  # no holder on that side: all holders of the tile take their turns
        low, high = (
            np.where(alone, tile * len(self._holders), low),
            np.where(alone, (tile + 1) * len(self._holders), high),
        )
        places = self._source_places[receivers]
        bases = places - self._holders[self.source.layout.free.index_of(places)]
        holds = (places >= 0) & (bases == holders[tile, 0])
        group = (tile * (count + 1) + np.where(alone, count, side)) * 2 + holds
        order_dealt = np.lexsort((-np.repeat(cells.elements, len(self._copies)), group))
        starts = np.flatnonzero(np.diff(group[order_dealt], prepend=-1))
        rank = np.empty_like(order_dealt)
        rank[order_dealt] = np.arange(len(rank)) - np.repeat(starts, np.diff(starts, append=len(rank)))
        dealt = holders.ravel()[order][low + rank % (high - low)]
        senders: Positions = np.where(holds, places, dealt)
        return senders.reshape(len(cells.holder), len(self._copies))

    def incoming(self, device: int) -> list[Piece]:
        if device not in self.target.mesh:
            self._check_device(device)
            return []
        position = self.target.mesh.position_of(device)
        target = _runs(self.target, position)
        source = [_span(part.part(EVERY, run).source) for part, run in zip(self.overlaps, target, strict=True)]
        cells = self._cells(source, target if len(self._holders) == 1 else [EVERY] * len(target))
        copy = self.target.layout.free.index_of(position)
        mine = np.flatnonzero(cells.receiver == position - self._copies[copy])
        senders = self._senders(cells, mine, np.full_like(mine, copy))
        names = self.source.mesh.devices
        values = self.combined.index_of(senders).tolist()  # what is combined comes in their order on all devices
        rows = zip(values, senders.tolist(), cells.boxes(mine), strict=True)
        in_order = sorted([(value, Piece(names[sender], device, box, 0)) for value, sender, box in rows])
        return [piece for _, piece in in_order]

    def outgoing(self, device: int) -> list[Piece]:
        if device not in self.source.mesh:
            self._check_device(device)
            return []
        position = self.source.mesh.position_of(device)
        cells = self._cells(_runs(self.source, position), [EVERY] * len(self.overlaps))
        cell, copy = self._cell_copies(cells)
        mine = self._senders(cells, cell, copy) == position
        receivers = cells.receiver[cell[mine]] + self._copies[copy[mine]]
        names = self.target.mesh.devices
        pairs = zip(receivers.tolist(), cells.boxes(cell[mine]), strict=True)
        return sorted([Piece(device, names[receiver], box, 0) for receiver, box in pairs])

    def _cell_copies(self, cells: Cells) -> tuple[Positions, Positions]:
        """Every cell with the number of each copy of its target tile."""
        if len(cells.holder) * len(self._copies) > ENUMERABLE:
            count = len(cells.holder) * len(self._copies)
            raise ReshardError("too-large", f"{count} pieces are too many to list one by one")
        cell, copy = np.indices((len(cells.holder), len(self._copies))).reshape(2, -1)
        return cell, copy

    def _travelling(self) -> tuple[Positions, Positions, Positions]:
        """Every piece that goes from one device to another: positions of sender and receiver, elements.

        A large table, so it is not kept.
        """
        cells = self._cells([EVERY] * len(self.overlaps), [EVERY] * len(self.overlaps))
        cell, copy = self._cell_copies(cells)
        sender, receiver = self._senders(cells, cell, copy), cells.receiver[cell] + self._copies[copy]
        travels = sender != self._source_places[receiver]
        return sender[travels], receiver[travels], cells.elements[cell][travels]

    def traffic(self) -> tuple[Positions, Positions, Positions]:
        sender, receiver, elements = self._travelling()
        if self.source.layout.weaves or self.target.layout.weaves:  # else a tile is one box
            sender, receiver, elements = each_pair(sender, receiver, elements)
        return self.source.mesh.device_array[sender], self.target.mesh.device_array[receiver], elements

    def table(self) -> PieceTable:
        cells = self._cells([EVERY] * len(self.overlaps), [EVERY] * len(self.overlaps))
        cell, copy = self._cell_copies(cells)
        receivers = cells.receiver[cell] + self._copies[copy]
        ends = np.zeros((2, len(cells.parts), len(cell)), dtype=np.int64)
        for dim, (part, number) in enumerate(zip(cells.parts, cells.overlap[:, cell], strict=True)):
            ends[0, dim], ends[1, dim] = part.start[number], part.stop[number]
        return PieceTable(self._senders(cells, cell, copy), receivers, ends[0], ends[1], np.zeros_like(receivers))

    @property
    def rounds(self) -> int:
        """The largest number of pieces that one device sends to others or receives from them."""
        sender, receiver, _ = self._travelling()
        return most_pieces(sender, receiver)

    @property
    def piece_shape(self) -> tuple[int, ...]:
        return tuple(int((part.stop - part.start).max(initial=0)) for part in self.overlaps)

    def all_received(self) -> Positions:
        needed = self.target.all_elements * self.combined.size
        return needed - self.all_held

    def received_on(self, device: int) -> int:
        if device not in self.target.mesh:
            self._check_device(device)
            return 0
        position = self.target.mesh.position_of(device)
        return int(self.target.all_elements[position]) * self.combined.size - int(self.all_held[position])


def by_boxes(
    source: Tiling, target: Tiling, combined: Digits = NO_DIGITS, classes: ClassDigits = ONE_CLASS, near: int = 0
) -> BoxExchange:
    """The exchange by comparing boxes; always there, for devices and blocks that can be listed.

    Args:
        source: where the tiles are.
        target: where they go.
        combined: digits of the source whose values are combined on the receiver.
        classes: the digits along which values stay unreduced.
        near: where given, devices whose numbers agree when divided by it serve each other first.

    Raises:
        ReshardError: `too-large`.
    """
    blocks = [tiling.layout.shards(dim) for tiling in (source, target) for dim in range(len(source.shape))]
    devices = max(source.mesh.size, target.mesh.size)
    if max([devices, *blocks]) > ENUMERABLE:
        raise ReshardError("too-large", f"boxes of {devices} devices are too many to compare")
    return BoxExchange(source, target, combined, classes, near)


def _runs(tiling: Tiling, position: int) -> list[slice]:
    """Per dim, the one block in which a position's tile lies."""
    numbers = (digits.index_of(position) for digits in tiling.layout.cutting)
    return [slice(number, number + 1) for number in numbers]


def _span(numbers: Positions) -> slice:
    return slice(int(numbers.min()), int(numbers.max()) + 1) if len(numbers) else slice(0, 0)
