"""An exchange by comparing boxes, for all that has no common digits.

Per dim, the overlaps of source blocks and target blocks are one list of intervals, in order: both block numbers
only grow along it.
A target tile consists of the products of its intervals; each comes from one source tile.
All holders of a source tile hold the same, so the choice of senders separates by source tile:
a device that holds its own piece takes it; the rest is dealt to the holders in the order of the receivers,
so that holder h gives what begins in its share [h, h + 1) x ceil(asked / holders).
A holder so sends at most its share and the rest of one piece: at most (elements asked of the tile by others /
holders) + one piece, and nothing can do better than (asked / holders) for the busiest.

The dealing is arithmetic on whole arrays, restricted to the source tiles in question: those below the device's
target tile for what comes in, its own source tile for what goes out.

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
from numpy.typing import NDArray

from reshard.box import Box
from reshard.errors import ReshardError
from reshard.exchange.pieces import Exchange, Piece, Tiling, overlap_elements
from reshard.layout import Positions, Stage, index_of, offsets
from reshard.mesh import ENUMERABLE


class Overlaps(NamedTuple):
    """The intervals of a dim in which one source block meets one target block, in order."""

    source: Positions
    """The number of the source block."""
    target: Positions
    """The number of the target block."""
    start: Positions
    stop: Positions

    def part(self, source: slice, target: slice) -> Overlaps:
        """Those of a run of source blocks and a run of target blocks; a slice without ends is all."""
        low, high = 0, len(self.start)
        for numbers, run in ((self.source, source), (self.target, target)):
            if run.start is not None:
                low = max(low, int(np.searchsorted(numbers, run.start, "left")))
                high = min(high, int(np.searchsorted(numbers, run.stop, "left")))
        return Overlaps(*(column[low : max(low, high)] for column in self))


EVERY = slice(None)


class Table(NamedTuple):
    """Pieces as columns: positions of sender and receiver, number of elements, and the overlap in every dim."""

    sender: Positions
    receiver: Positions
    own: NDArray[np.bool_]
    elements: Positions
    cells: Positions
    """Per dim and piece, the number of its overlap in `parts`."""
    parts: tuple[Overlaps, ...]

    def box(self, row: int) -> Box:
        """The box of one piece."""
        return Box(
            (int(part.start[cell[row]]), int(part.stop[cell[row]]))
            for cell, part in zip(self.cells, self.parts, strict=True)
        )


@dataclass(frozen=True)
class BoxExchange(Exchange):
    """Senders dealt per source tile."""

    source: Tiling
    target: Tiling
    combined: Stage
    """Digits of the source whose partial values are combined on the receiver."""
    classes: tuple[Stage, Stage]
    """Digits of source and of target along which partial values stay apart: equal values belong together."""

    @property
    def kept(self) -> tuple[Stage, Stage]:
        return self.classes

    @cached_property
    def overlaps(self) -> tuple[Overlaps, ...]:
        """Per dim, where source and target blocks meet."""
        return tuple(_overlaps(self.source, self.target, dim) for dim in range(len(self.target.shape)))

    @cached_property
    def _holders(self) -> Positions:
        """What to add to a tile's first holder to reach all of them."""
        return offsets(self.source.layout.free_digits())

    @cached_property
    def _places(self) -> Positions:
        """Per position of the target, the position of its device in the source, or -1."""
        return self.source.mesh.positions_of(self.target.mesh.device_array)

    def _table(self, source: Sequence[slice], target: Sequence[slice], copies: Positions, classes: Positions) -> Table:
        """Every piece between runs of source blocks and runs of target blocks, per dim.

        Where source tiles have several holders, all that is asked of a tile must be included: the deal depends
        on it.

        Args:
            source: per dim, source blocks.
            target: per dim, target blocks.
            copies: what to add to a target tile's first position to reach its holders.
            classes: numbers of the classes of partial values that stay apart.
        """
        parts = tuple(map(Overlaps.part, self.overlaps, source, target))
        counts = [len(part.start) for part in parts]
        grid = np.indices(counts).reshape(len(parts), prod(counts))
        first, receiver, elements = np.zeros((3, grid.shape[1]), dtype=np.int64)
        elements += 1
        for dim, (part, cell) in enumerate(zip(parts, grid, strict=True)):
            first += _block_offsets(self.source.layout.digits_of(dim), part.source)[cell]
            receiver += _block_offsets(self.target.layout.digits_of(dim), part.target)[cell]
            elements *= (part.stop - part.start)[cell]
        combined = offsets(self.combined)
        shape = (len(first), len(copies), len(classes), len(combined))
        if prod(shape) > ENUMERABLE:
            raise ReshardError("too-large", f"{prod(shape)} pieces are too many to list one by one")
        kept = [offsets(digits)[classes] for digits in self.kept]
        receivers = receiver[:, None, None, None] + copies[:, None, None] + kept[1][:, None]
        holders = first[:, None, None, None] + kept[0][:, None] + combined
        rows = np.repeat(np.arange(len(first)), prod(shape[1:]))
        return self._dealt(
            Table(
                np.broadcast_to(holders, shape).ravel(),
                np.broadcast_to(receivers, shape).ravel(),
                np.zeros(len(rows), dtype=np.bool_),
                elements[rows],
                grid[:, rows],
                parts,
            )
        )

    def _dealt(self, table: Table) -> Table:
        """The table with the sender of every piece in place of the first holder of its tile."""
        places = self._places[table.receiver]
        base = places - sum(digit.value(places) * digit.stride for digit in self.source.layout.free_digits())
        own = (places >= 0) & (base == table.sender)
        sender = np.where(own, places, table.sender)
        others = np.flatnonzero(~own)
        if len(self._holders) > 1 and len(others):
            order = others[np.lexsort((table.receiver[others], table.sender[others]))]
            tiles, sizes = table.sender[order], table.elements[order]
            begins = np.flatnonzero(np.concatenate(([True], tiles[1:] != tiles[:-1])))
            group = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(tiles)))
            before = np.cumsum(sizes) - sizes
            before -= before[begins][group]
            share = np.maximum(-(-np.add.reduceat(sizes, begins) // len(self._holders)), 1)
            sender[order] += self._holders[before // share[group]]
        return table._replace(sender=sender, own=own)

    def incoming(self, device: int) -> list[Piece]:
        if device not in self.target.mesh:
            self._check_device(device)
            return []
        position = self.target.mesh.position_of(device)
        layout = self.target.layout
        target = _runs(self.target, position)
        source = [_span(part.part(EVERY, run).source) for part, run in zip(self.overlaps, target, strict=True)]
        if len(self._holders) == 1:
            copy = sum(digit.value(position) * digit.stride for digit in layout.free_digits())
            klass = index_of(self.kept[1], position)
            table = self._table(source, target, np.array([copy]), np.array([klass]))
        else:
            table = self._table(source, [EVERY] * len(target), *self._everyone)
        return self._pieces(table, np.flatnonzero(table.receiver == position))

    def outgoing(self, device: int) -> list[Piece]:
        if device not in self.source.mesh:
            self._check_device(device)
            return []
        position = self.source.mesh.position_of(device)
        table = self._table(_runs(self.source, position), [EVERY] * len(self.overlaps), *self._everyone)
        return self._pieces(table, np.flatnonzero(table.sender == position))

    @cached_property
    def _everyone(self) -> tuple[Positions, Positions]:
        """All copies and all classes of a target tile."""
        classes = prod(digit.size for digit in self.kept[1])
        return offsets(self.target.layout.free_digits()), np.arange(classes, dtype=np.int64)

    def _pieces(self, table: Table, rows: Positions) -> list[Piece]:
        senders, receivers = self.source.mesh.devices, self.target.mesh.devices
        return [
            Piece(senders[int(table.sender[row])], receivers[int(table.receiver[row])], table.box(row), 0)
            for row in rows
        ]

    @cached_property
    def _all(self) -> Table:
        every = [EVERY] * len(self.overlaps)
        return self._table(every, every, *self._everyone)

    @property
    def rounds(self) -> int:
        """The largest number of pieces that one device sends to others or receives from them."""
        others = ~self._all.own
        degrees = [np.bincount(column[others]) for column in (self._all.sender, self._all.receiver)]
        return max(int(degree.max(initial=0)) for degree in degrees)

    @property
    def largest_piece(self) -> int:
        return prod(int((part.stop - part.start).max(initial=0)) for part in self.overlaps)

    def all_sent(self) -> Positions:
        """Per position of the source, the number of elements that its device sends to others."""
        others = ~self._all.own
        sent = np.zeros(self.source.mesh.size, dtype=np.int64)
        np.add.at(sent, self._all.sender[others], self._all.elements[others])
        return sent

    def all_received(self) -> Positions:
        needed = self.target.all_elements * prod(digit.size for digit in self.combined)
        return needed - overlap_elements(self.source, self.target, self.kept)


def by_boxes(source: Tiling, target: Tiling, combined: Stage = (), kept: tuple[Stage, Stage] = ((), ())) -> BoxExchange:
    """The exchange by comparing boxes; always there, for devices and blocks that can be listed.

    Args:
        source: where the tiles are.
        target: where they go.
        combined: digits of the source whose partial values are combined on the receiver.
        kept: digits of source and target along which partial values stay apart.

    Raises:
        ReshardError: `too-large`.
    """
    blocks = [tiling.layout.shards(dim) for tiling in (source, target) for dim in range(len(source.shape))]
    devices = max(source.mesh.size, target.mesh.size)
    if max([devices, *blocks]) > ENUMERABLE:
        raise ReshardError("too-large", f"boxes of {devices} devices are too many to compare")
    return BoxExchange(source, target, combined, kept)


def _overlaps(source: Tiling, target: Tiling, dim: int) -> Overlaps:
    size = target.shape[dim]
    edges = [tiling.layout.blocks(dim, size) for tiling in (source, target)]
    cuts = np.unique(np.concatenate([[0, size], *edges[0], *edges[1]]))
    start, stop = cuts[:-1], cuts[1:]
    first, second = (np.searchsorted(stops, start, "right") for _, stops in edges)
    return Overlaps(first, second, start, stop)


def _block_offsets(digits: Stage, numbers: Positions) -> Positions:
    """The positions, other digits being 0, at which the blocks of these numbers lie."""
    result = np.zeros_like(numbers)
    for stride, size in reversed(digits):
        numbers, value = np.divmod(numbers, size)
        result += value * stride
    return result


def _runs(tiling: Tiling, position: int) -> list[slice]:
    """Per dim, the one block in which a position's tile lies."""
    numbers = [index_of(tiling.layout.digits_of(dim), position) for dim in range(len(tiling.shape))]
    return [slice(number, number + 1) for number in numbers]


def _span(numbers: Positions) -> slice:
    return slice(int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else slice(0, 0)
