"""An exchange less what its receivers still have of tiles from before.

On the way to its target a tensor often lies in pieces that cross slow links once, and a device has besides these what it
began with.
What it holds there is not sent to it once more: who sends, and in which pieces, is that of the exchange without it, and
every piece is what is left of it.

Where digits say all, what is left is the same part of every piece: of a digit of the tensor that neither end gives to
devices, and that the tiles from before are cut by, every device has one value and lacks the others.

By hand, 2 x 2 devices, rows cut by `h`, that crossed to columns by `g`, and are wanted whole: of the 4 elements of the
other's columns a device has the 2 in its own rows.

>>> from reshard.exchange.by_digits import by_digits
>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(h=2, g=2)
>>> rows, columns, whole = (Tiling.of(Sharding.of(mesh, *dims), (4, 2)) for dims in (("h", None), (None, "g"), (None, None)))
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
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from reshard.box import Box
from reshard.digits import Digit, Positions
from reshard.errors import ReshardError
from reshard.exchange.by_digits import DigitExchange
from reshard.exchange.pieces import Exchange, Piece, PieceTable
from reshard.refinement import Role, refine
from reshard.tile import Tile
from reshard.tiling import Tiling


@dataclass(frozen=True)
class KeptExchange(Exchange):
    """An exchange whose receivers have some of it from before."""

    source: Tiling
    target: Tiling
    kept: Tiling = field()
    whole: Exchange
    """The exchange were nothing kept."""

    @cached_property
    def lacked_part(self) -> float:
        """Which part of every piece is sent, where that is the same of all; 1 where digits do not say it."""
        if not isinstance(self.whole, DigitExchange) or not (self.is_even and self.kept.is_even()):
            return 1.0
        layouts = self.source.layout, self.target.layout
        common = refine(*layouts, self.target.shape, kept=self.kept.layout)
        if common is None:
            return 1.0
        return lacked_part(common.digits, common.source_roles, common.target_roles, common.kept_roles)

    def is_kept(self, device: int, box: Box) -> bool:
        """As of `Exchange`."""
        return bool(_left_of([box], _boxes(self.source, device)))

    def _left(self, piece: Piece) -> list[Piece]:
        """What is sent of a piece, as its receiver has some of it."""
        boxes = _left_of([piece.box], _boxes(self.kept, piece.receiver))
        return [piece._replace(box=box, round=0) for box in boxes]

    def _staying(self, device: int) -> list[Piece]:
        """What a device takes from the tile that it kept."""
        kept = _boxes(self.kept, device)
        held = [needed.intersect(box) for needed in _boxes(self.target, device) for box in kept]
        return [Piece(device, device, box, 0) for box in _left_of(held, _boxes(self.source, device))]

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

    @property
    def _is_woven(self) -> bool:
        """Whether some tiles are several boxes."""
        return any(tiling.layout.weaves for tiling in (self.source, self.target, self.kept))

    def table(self) -> PieceTable:
        """As of `Exchange`."""
        if self._is_woven:
            return super().table()
        whole = self.whole.table()
        positions = self.target.mesh.positions
        travels = whole.senders != whole.receivers
        own = PieceTable(*(column[..., ~travels] for column in whole))
        bounds = [np.array(tiling.all_bounds).reshape(-1, 2, len(positions)) for tiling in (self.kept, self.target)]
        starts, stops = np.maximum(*(ends[:, 0] for ends in bounds)), np.minimum(*(ends[:, 1] for ends in bounds))
        held = PieceTable(positions, positions, starts, stops, np.zeros_like(positions))
        tables = [
            own,
            *_without(held, self.source),
            *_without(PieceTable(*(column[..., travels] for column in whole)), self.kept),
        ]
        table = PieceTable(*(np.concatenate(columns, axis=-1) for columns in zip(*tables, strict=True)))
        return table._replace(rounds=np.zeros_like(table.senders))

    @cached_property
    def _sent(self) -> tuple[Positions, Positions, Positions]:
        """Positions of sender and receiver and the elements of every piece that travels."""
        table = self.table()
        travels = table.senders != table.receivers
        return table.senders[travels], table.receivers[travels], table.elements[travels]

    def traffic(self) -> tuple[Positions, Positions, Positions]:
        """As of `Exchange`."""
        senders, receivers, elements = self._sent
        size, device_array = self.target.mesh.size, self.source.mesh.device_array
        pairs, numbers = np.unique(senders * size + receivers, return_inverse=True)
        moved = np.zeros(len(pairs), dtype=np.int64)
        np.add.at(moved, numbers, elements)
        senders, receivers = np.divmod(pairs, size)
        return device_array[senders], device_array[receivers], moved

    @cached_property
    def rounds(self) -> int:
        """The largest number of pieces that one device sends to others or receives from them."""
        return max(int(np.bincount(column).max(initial=0)) for column in self._sent[:2])

    @property
    def piece_shape(self) -> tuple[int, ...]:
        """That of a piece were nothing kept."""
        return self.whole.piece_shape

    @cached_property
    def all_held(self) -> Positions:
        """As of `Exchange`, in the tile that was kept too."""
        if self.lacked_part < 1:
            lacked = self.whole.all_missing() * self.lacked_part
            return self.target.all_elements - np.rint(lacked).astype(np.int64)
        if self._is_woven:
            received = np.zeros_like(self.target.mesh.positions)
            np.add.at(received, *self._sent[1:])
            return self.target.all_elements - received
        elements = np.ones_like(self.target.mesh.positions)
        besides = np.ones_like(elements)
        tilings = self.source, self.kept, self.target
        for held, kept, needed in zip(*(tiling.all_bounds for tiling in tilings), strict=True):
            start, stop = np.maximum(kept[0], needed[0]), np.minimum(kept[1], needed[1])
            elements *= np.maximum(stop - start, 0)
            besides *= np.maximum(np.minimum(stop, held[1]) - np.maximum(start, held[0]), 0)
        held_elements: Positions = self.whole.all_held + elements - besides
        return held_elements

    def all_received(self) -> Positions:
        """As of `Exchange`."""
        return self.all_missing()

    @property
    def is_without_messages(self) -> bool:
        """As of `Exchange`."""
        return not self.total_received


def _boxes(tiling: Tiling, device: int) -> Sequence[Box]:
    """What a device's tile is."""
    tile = tiling.tile(device)
    return tile.boxes() if isinstance(tile, Tile) else [tile]


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
    tables.append(_some(pieces, starts, stops, ~meets & (starts < stops).all(axis=0)))
    for dim, (low, high) in enumerate(inside):
        for start, stop in ((starts[dim], low), (high, stops[dim])):
            first, last = starts.copy(), stops.copy()
            first[dim], last[dim] = start, stop
            tables.append(_some(pieces, first, last, meets & (start < stop)))
        starts[dim], stops[dim] = low, high
    return tables


def _some(pieces: PieceTable, starts: Positions, stops: Positions, chosen: np.ndarray) -> PieceTable:
    return PieceTable(
        pieces.senders[chosen], pieces.receivers[chosen], starts[:, chosen], stops[:, chosen], pieces.rounds[chosen]
    )


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
    for digit, role, goal in zip(digits, kept, after, strict=True):
        if role is None or role == goal:
            continue
        if role in of_ends:
            return 1.0
        values *= digit.size
    return 1.0 - 1.0 / values if values > 1 else 1.0


def beside_kept(whole: Exchange, kept: Tiling) -> KeptExchange:
    """An exchange less what its receivers have of other tiles.

    Raises:
        ReshardError: `bad-step` where values are partial or tiles have windows, or are on other devices or in another order.
    """
    tilings = whole.source, whole.target, kept
    is_plain = not any(tiling.layout.unreduced or tiling.layout.has_windows for tiling in tilings)
    if not is_plain or not all(
        whole.target.mesh.size == other.mesh.size and whole.target.same_order_as(other) for other in tilings
    ):
        raise ReshardError(
            "bad-step", "what devices kept is used of whole values without windows alone, and on one mesh"
        )
    return KeptExchange(whole.source, whole.target, kept, whole)
