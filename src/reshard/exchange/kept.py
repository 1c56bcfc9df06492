"""An exchange less what its receivers still have of tiles from before.

On the way to its target a tensor often lies in pieces that cross slow links once, and a device has besides these what
it began with.
What it holds there is not sent to it once more: who sends, and in which pieces, is that of the exchange without it, and
every piece is what is left of it.

Where digits say all, what is left is the same part of every piece: of a digit of the tensor that neither end gives to
devices, and that the tiles from before are cut by, every device has one value and lacks the others.

By hand, 2 x 2 devices, rows cut by `h`, that crossed to columns by `g`, and are wanted whole: of the 4 elements of the
other's columns a device has the 2 in its own rows.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(h=2, g=2)
>>> ends = ("h", None), (None, "g"), (None, None)
>>> rows, columns, whole = (Tiling.of(Sharding.of(mesh, *dims), (4, 2)) for dims in ends)
>>> exchange = beside_kept(by_digits(columns, whole), rows)
>>> for piece in exchange.incoming(0):
...     print(piece.sender, piece.box)
0 [0, 4) x [0, 1)
0 [0, 2) x [1, 2)
1 [2, 4) x [1, 2)
>>> exchange.received, exchange.lacked_part
(2, 0.5)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from reshard.box import Box
from reshard.digits import Digit, Positions
from reshard.errors import ReshardError
from reshard.exchange.by_digits import DigitExchange, by_digits
from reshard.exchange.pieces import Exchange, Piece, PieceTable, each_pair, most_pieces, overlap_elements
from reshard.refinement import Role
from reshard.tiling import Tiling


class Slab(NamedTuple):
    """Of target tiles that come in groups, what devices kept: one of the equal runs of a dim, the same in a group."""

    dim: int
    length: int
    """Of a run."""
    lacked: DigitExchange
    """The exchange of what is lacked, as of a tensor that has not the kept runs."""


@dataclass(frozen=True)
class KeptExchange(Exchange):
    """An exchange whose receivers have some of it from before."""

    source: Tiling
    target: Tiling
    whole: Exchange
    """The exchange were nothing kept."""
    kept: Tiling = field()
    near: int = 0
    """That of `whole`."""

    @cached_property
    def by_units(self) -> DigitExchange | None:
        """The exchange in units of which devices kept all or nothing, and these left out of what it sends.

        None where digits do not say these.
        """
        if not isinstance(self.whole, DigitExchange):
            return None
        return by_digits(self.source, self.target, self.near, self.kept)

    @cached_property
    def lacked_part(self) -> float:
        """Which part of every full piece is sent, where that is the same of all; 1 where digits do not say it."""
        if self.by_units is None:
            return 1.0
        common = self.by_units.common
        return lacked_part(common.digits, common.source_roles, common.target_roles, common.kept_roles)

    @property
    def _lacks_alike(self) -> bool:
        """Whether the same part of every piece is sent, and all pieces are full."""
        return self.lacked_part < 1 and self.is_even and self.kept.is_even()

    @cached_property
    def slab(self) -> Slab | None:
        """What is kept of every target tile, where that is one run of a dim and the exchange is in groups."""
        whole, runs = self.whole, round(1 / (1 - self.lacked_part)) if self.lacked_part < 1 else 1
        tilings = self.source, self.kept, self.target
        if runs == 1 or not isinstance(whole, DigitExchange) or not whole.is_in_groups:
            return None
        if not self._lacks_alike or any(tiling.layout.weaves for tiling in tilings):
            return None
        partly = []
        for dim, (before, kept, after) in enumerate(zip(*(tiling.all_bounds for tiling in tilings), strict=True)):
            low, high = np.maximum(kept[0], after[0]), np.minimum(kept[1], after[1])
            if (low > after[0]).any() or (high < after[1]).any():
                partly.append((dim, all(map(np.array_equal, before, after))))
        if [is_whole for _, is_whole in partly] != [True]:  # or the source has but a part of the runs
            return None
        dim, length = partly[0][0], self.target.layout.local_shape(self.target.shape)[partly[0][0]] // runs
        shape = list(self.target.shape)
        shape[dim] = shape[dim] // runs * (runs - 1)
        source, target = (replace(tiling, shape=tuple(shape)) for tiling in (self.source, self.target))
        lacked = by_digits(source, target)
        return None if lacked is None or not lacked.is_in_groups else Slab(dim, length, lacked)

    def _left(self, piece: Piece) -> list[Piece]:
        """What is sent of a piece, as its receiver has some of it."""
        boxes = _left_of([piece.box], self.kept.tile(piece.receiver).boxes())
        return [piece._replace(box=box, round=0) for box in boxes]

    def _staying(self, device: int) -> list[Piece]:
        """What a device takes from the tile that it kept."""
        kept = self.kept.tile(device).boxes()
        held = [needed.intersect(box) for needed in self.target.tile(device).boxes() for box in kept]
        return [Piece(device, device, box, 0) for box in _left_of(held, self.source.tile(device).boxes())]

    def _pieces(self, device: int, pieces: Iterable[Piece]) -> list[Piece]:
        """What is left of a device's pieces, and what stays with it."""
        travelling, own = list[Piece](), list[Piece]()
        for piece in pieces:
            if piece.sender == piece.receiver:
                own.append(piece._replace(round=0))
            else:
                travelling += self._left(piece)
        return [*own, *(self._staying(device) if device in self.target.mesh else []), *travelling]

    def incoming(self, device: int) -> list[Piece]:
        """As of `Exchange`."""
        return self._pieces(device, self.whole.incoming(device))

    def outgoing(self, device: int) -> list[Piece]:
        """As of `Exchange`."""
        return self._pieces(device, self.whole.outgoing(device))

    def table(self) -> PieceTable:
        """As of `Exchange`."""
        if self.kept.layout.weaves:
            return super().table()
        whole = self.whole.table()
        stays = [piece for device in self.target.mesh.devices for piece in self._staying(device)]
        positions = self.target.mesh.positions_of(np.array([piece.receiver for piece in stays], dtype=np.int64))
        ends = np.array([piece.box for piece in stays], dtype=np.int64).reshape(len(stays), len(self.target.shape), 2).T
        own = whole.rows(whole.senders == whole.receivers)
        held = PieceTable(positions, positions, ends[0], ends[1], positions)
        table = PieceTable.joined([own, held, self._travelling])
        return table._replace(rounds=np.zeros_like(table.senders))

    @cached_property
    def _travelling(self) -> PieceTable:
        """The pieces that go from one device to another."""
        if self.kept.layout.weaves:
            table = super().table()
            return table.rows(table.senders != table.receivers)
        whole = self.whole.table()
        return PieceTable.joined(_without(whole.rows(whole.senders != whole.receivers), self.kept))

    def traffic(self) -> tuple[Positions, Positions, Positions]:
        """As of `Exchange`."""
        if self.by_units is not None:
            return self.by_units.traffic()
        sent = self._travelling
        senders, receivers, elements = each_pair(sent.senders, sent.receivers, sent.elements)
        return self.source.mesh.device_array[senders], self.target.mesh.device_array[receivers], elements

    @cached_property
    def rounds(self) -> int:
        """The largest number of pieces that one device sends to others or receives from them."""
        return most_pieces(self._travelling.senders, self._travelling.receivers)

    @property
    def piece_shape(self) -> tuple[int, ...]:
        """That of a piece were nothing kept."""
        return self.whole.piece_shape

    @cached_property
    def all_held(self) -> Positions:
        """As of `Exchange`, in the tile that was kept too."""
        if self._lacks_alike:
            lacked: Positions = np.rint(self.whole.all_missing() * self.lacked_part).astype(np.int64)
            return self.target.all_elements - lacked
        besides = overlap_elements(self.kept, self.target) - _shared(self.kept, self.target, self.source)
        held: Positions = self.whole.all_held + besides
        return held

    def all_received(self) -> Positions:
        """As of `Exchange`."""
        return self.all_missing()

    @property
    def is_without_messages(self) -> bool:
        """As of `Exchange`."""
        return self.whole.is_without_messages if self._lacks_alike else not self.total_received


def _shared(*tilings: Tiling) -> Positions:
    """Per position, how many elements are in its tile of every tiling; each element is in one shard of each."""
    first, shared = tilings[0], np.ones_like(tilings[0].mesh.positions)
    for dim, size in enumerate(first.shape):
        runs = [tiling.layout.runs(dim, size, held=True) for tiling in tilings]
        cuts = np.unique(np.concatenate([[0, size], *(end for of_tiling in runs for end in of_tiling[1:])]))
        cells, asked = np.zeros_like(cuts[:-1]), np.zeros_like(shared)
        for tiling, (shard, start, _) in zip(tilings, runs, strict=True):
            order, count = np.argsort(start), tiling.layout.parts[dim]
            cells = cells * count + shard[order][np.searchsorted(start[order], cuts[:-1], "right") - 1]
            asked = asked * count + tiling.layout.cutting[dim].index_of(first.mesh.positions)
        keys, numbers = np.unique(cells, return_inverse=True)
        lengths = np.zeros(len(keys) + 1, dtype=np.int64)  # last that of no cells
        np.add.at(lengths, numbers, np.diff(cuts))
        places = np.searchsorted(keys, asked)
        is_known = np.append(keys, -1)[places] == asked
        shared *= lengths[np.where(is_known, places, len(keys))]
    return shared


def _left_of(boxes: Sequence[Box], held: Iterable[Box]) -> Sequence[Box]:
    """What is left of boxes once others are taken out; no empty boxes."""
    boxes = [box for box in boxes if not box.is_empty]
    for box in held:
        boxes = [left for each in boxes for left in each.without(box)]
    return boxes


def _without(pieces: PieceTable, held: Tiling) -> list[PieceTable]:
    """What is left of pieces once their receivers' tiles are taken out, as `Box.without`; no empty boxes."""
    positions = pieces.receivers
    starts, stops, tables = pieces.starts.copy(), pieces.stops.copy(), list[PieceTable]()
    inside = [
        np.clip([low[positions], high[positions]], start, stop)
        for (low, high), start, stop in zip(held.all_bounds, starts, stops, strict=True)
    ]
    meets = np.ones(len(positions), dtype=np.bool_)
    for low, high in inside:
        meets &= low < high
    tables.append(pieces.rows(~meets & (starts < stops).all(axis=0)))
    for dim, (low, high) in enumerate(inside):
        for start, stop in ((starts[dim], low), (high, stops[dim])):
            first, last = starts.copy(), stops.copy()
            first[dim], last[dim] = start, stop
            tables.append(pieces._replace(starts=first, stops=last).rows(meets & (start < stop)))
        starts[dim], stops[dim] = low, high
    return tables


def lacked_part(digits: Sequence[Digit], before: Sequence[Role], after: Sequence[Role], kept: Sequence[Role]) -> float:
    """Which part of every piece is lacked where devices have tiles from before; 1 where it is not the same of all.

    Args:
        digits: of the position, as small as any of the roles tells them apart.
        before: what each does where the exchange begins.
        after: what each does where it ends.
        kept: what each does in the tiles from before.

    >>> from reshard.refinement import Cuts
    >>> digits = [Digit(2, 2), Digit(1, 2)]
    >>> lacked_part(digits, (None, Cuts(1, 1)), (None, None), (Cuts(0, 2), None))
    0.5
    """
    of_ends, values = {*before, *after}, 1
    for digit, role, start, goal in zip(digits, kept, before, after, strict=True):
        if role is None or role == goal:
            continue
        if role in of_ends or start != goal:  # else those who send to each other lack the same
            return 1.0
        values *= digit.size
    return 1.0 - 1.0 / values if values > 1 else 1.0


def beside_kept(whole: Exchange, kept: Tiling, near: int = 0) -> KeptExchange:
    """An exchange less what its receivers have of other tiles.

    Args:
        whole: the exchange.
        kept: these tiles, on the same devices in the same order.
        near: what the exchange was found with.

    Raises:
        ReshardError: `bad-step` where that is not so, where values are partial or tiles have windows, or where tiles
            of several boxes are compared one by one.
    """
    tilings = whole.source, whole.target, kept
    is_plain = not any(tiling.layout.unreduced or tiling.layout.has_windows for tiling in tilings)
    size, target = whole.target.mesh.size, whole.target
    same_order = all(other.mesh.size == size and target.same_order_as(other) for other in tilings)
    if is_plain and same_order:
        exchange = KeptExchange(whole.source, whole.target, whole, kept, near)
        if exchange.by_units is not None or not any(tiling.layout.weaves for tiling in tilings):
            return exchange
    raise ReshardError("bad-step", "what devices kept is used on one mesh, of whole values in tiles that are plain")
