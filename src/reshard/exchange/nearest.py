"""An exchange along a ring in which, of the devices that hold a piece, the nearest sends.

By digits a receiver's replica at its own value sends, or one that a chain of digits leads to, however far along a ring.
Where the source is replicated along a ring, another holder may be nearer, round the end of the receiver's own part of
the ring too: what is needed, and how much is received, stays the same, and fewer links carry it.
Of two that are as near, each sends half of a piece.

By hand, 8 devices on a ring, a vector cut in two by `a` and wanted in four by `b` and then `a`: devices 2 and 3 have
the first half and want the third quarter, of which 4 is the nearest to hold it; 4 and 5 want the second, of 3.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(a=2, b=2, c=2)
>>> ends = [Tiling.of(Sharding.of(mesh, axes), (8,)) for axes in ("a", ("b", "a"))]
>>> exchange = nearest(*ends, Digit(1, 8))
>>> [[piece.sender for piece in exchange.incoming(device)] for device in range(8)]
[[0], [1], [4], [4], [3], [3], [6], [7]]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.digits import Digit, Digits, Positions
from reshard.errors import ReshardError
from reshard.exchange.by_digits import DigitExchange, close_chains, senders_by_round
from reshard.exchange.pieces import Exchange, Piece, PieceTable
from reshard.refinement import refine
from reshard.tiling import Tiling


@dataclass(frozen=True)
class NearestExchange(Exchange):
    """An exchange by digits, with other holders of the same as senders."""

    source: Tiling
    target: Tiling
    by_digits: DigitExchange
    """The same where replicas at the receiver's own value send."""
    ring: Digit
    """The places along the ring, as a digit of the position."""

    @cached_property
    def replicas(self) -> Digits:
        """The digits along the ring on which the source is replicated."""
        common = self.by_digits.common
        roles = zip(common.digits, common.source_roles, strict=True)
        return Digits([digit for digit, role in roles if role is None and digit.lies_in(self.ring)])

    @cached_property
    def _table(self) -> PieceTable:
        table = self.by_digits.table()
        senders, others = nearest_holders(self.ring, self.replicas, table.senders, table.receivers)
        lengths = table.stops - table.starts
        halved = np.flatnonzero((senders != others) & (lengths.max(axis=0, initial=0) > 1))
        starts, stops = table.starts.copy(), table.stops.copy()
        if len(halved):  # across their longest dim
            across = lengths[:, halved].argmax(axis=0), halved
            starts[across] = stops[across] = table.starts[across] + (lengths[across] + 1) // 2
        return PieceTable(
            np.concatenate([senders, others[halved]]),
            np.concatenate([table.receivers, table.receivers[halved]]),
            np.concatenate([table.starts, starts[:, halved]], axis=1),
            np.concatenate([stops, table.stops[:, halved]], axis=1),
            np.zeros(len(senders) + len(halved), dtype=np.int64),
        )

    def table(self) -> PieceTable:
        return self._table

    def _pieces_at(self, positions: Positions, device: int, place: int) -> list[Piece]:
        """The pieces for which the position of a device stands there in a column."""
        if place < 0:
            self._check_device(device)
        table, rows = self._table, np.flatnonzero(positions == place)
        ends = (
            self.source.mesh.device_array[table.senders[rows]],
            self.target.mesh.device_array[table.receivers[rows]],
        )
        sides = np.stack([table.starts[:, rows], table.stops[:, rows]], axis=-1).transpose(1, 0, 2).tolist()
        return [
            Piece(sender, receiver, Box([(low, high) for low, high in box]), 0)
            for sender, receiver, box in zip(*(end.tolist() for end in ends), sides, strict=True)
        ]

    def incoming(self, device: int) -> list[Piece]:
        return self._pieces_at(self._table.receivers, device, _place(self.target, device))

    def outgoing(self, device: int) -> list[Piece]:
        return self._pieces_at(self._table.senders, device, _place(self.source, device))

    @cached_property
    def rounds(self) -> int:
        """As many as the busiest device of a ring sends, or receives: pieces can be put in order so (König 1916)."""
        direct = self.by_digits
        chains = direct.determined_by, direct.gathered
        pieces = pieces_along(
            self.ring, direct.common.digits, *chains, self.replicas, in_halves=direct.largest_piece > 1
        )
        counts = (np.bincount(self.ring.value(end)).max(initial=0) for end in (pieces.senders, pieces.receivers))
        return direct.loose_values * int(max(counts))

    @property
    def piece_shape(self) -> tuple[int, ...]:
        return self.by_digits.piece_shape

    def all_received(self) -> Positions:
        return self.by_digits.all_received()

    def traffic(self) -> tuple[Positions, Positions, Positions]:
        table = self._table
        travels = table.senders != table.receivers
        senders, receivers = (
            tiling.mesh.device_array[column[travels]]
            for tiling, column in ((self.source, table.senders), (self.target, table.receivers))
        )
        return senders, receivers, table.elements[travels]


def nearest(source: Tiling, target: Tiling, ring: Digit) -> NearestExchange:
    """The exchange from one tiling to another on the same devices, each piece from its nearest holder along a ring.

    Raises:
        ReshardError: `bad-step` where the ends have no common digits there, or differ outside the ring.
    """
    same_order = source.mesh.size == target.mesh.size and source.same_order_as(target)
    is_inside = ring.stride > 0 and ring.size > 1 and source.mesh.size % ring.end == 0
    common = (
        refine(source.layout, target.layout, source.shape, [ring.stride, ring.end])
        if same_order and is_inside
        else None
    )
    if common is None or source.classes != target.classes:
        raise ReshardError("bad-step", "only what digits of one mesh say, and of whole values, goes from the nearest")
    roles = zip(common.digits, common.source_roles, common.target_roles, strict=True)
    if any(before != after for digit, before, after in roles if not digit.lies_in(ring)):
        raise ReshardError("bad-step", "the nearest along a ring sends where nothing else changes than along it")
    chains = close_chains(common.digits, common.source_roles, common.target_roles, near=1)
    return NearestExchange(source, target, DigitExchange(source, target, source.mesh, common, *chains), ring)


def nearest_holders(
    ring: Digit, replicas: Digits, senders: Positions, receivers: Positions
) -> tuple[Positions, Positions]:
    """For pieces the nearest to who receives them of those that hold the same along a ring, and another as near.

    Args:
        ring: the places along it.
        replicas: the digits along it on which the source is replicated.
        senders: the position of some holder of each piece.
        receivers: who is to receive it.

    Returns:
        The nearest, and the other one, ahead, where two are as near; else the same again.

    By hand, on a ring of 8 of which 0, 2, 4 and 6 hold the same, and on one of which 0 to 3 do:

    >>> ring, receivers = Digit(1, 8), np.arange(4, 8)
    >>> [holders.tolist() for holders in nearest_holders(ring, Digits.between([2, 8]), 0 * receivers, receivers)]
    [[4, 4, 6, 6], [4, 6, 6, 0]]
    >>> [holders.tolist() for holders in nearest_holders(ring, Digits.between([1, 4]), 0 * receivers, receivers)]
    [[3, 3, 0, 0], [3, 3, 0, 0]]
    """
    offsets = replicas.offsets()
    holders = (senders - offsets[replicas.index_of(senders)])[..., None] + offsets
    ahead = (ring.value(holders) - ring.value(receivers)[..., None]) % ring.size
    hops = np.minimum(ahead, ring.size - ahead)
    is_ahead = 2 * ahead < ring.size
    nearest, other = ((2 * hops + ranks).argmin(axis=-1) for ranks in (is_ahead, ~is_ahead))
    chosen = (np.take_along_axis(holders, which[..., None], axis=-1)[..., 0] for which in (nearest, other))
    return next(chosen), next(chosen)


class AlongRing(NamedTuple):
    """What goes along one ring, at which all other digits are 0."""

    senders: Positions
    receivers: Positions
    parts: NDArray[np.float64]
    """Of a piece: all of it, or half."""


def pieces_along(
    ring: Digit,
    digits: Digits,
    determined_by: tuple[int, ...],
    gathered: tuple[int, ...],
    replicas: Digits,
    *,
    in_halves: bool = True,
) -> AlongRing:
    """The pieces that travel along one ring where the nearest holder sends.

    Args:
        ring: the places along it.
        digits: of the position, of which those that change lie in the ring.
        determined_by: that of `DigitExchange`, where replicas keep the receiver's own value.
        gathered: likewise.
        replicas: the digits in the ring on which the source is replicated.
        in_halves: whether two holders that are as near send half of a piece each, and not one of them all.
    """
    receivers = Digits([ring]).offsets()
    holders = senders_by_round(digits, determined_by, gathered, receivers)
    receivers = np.broadcast_to(receivers, holders.shape).ravel()
    senders, others = nearest_holders(ring, replicas, holders.ravel(), receivers)
    is_halved = (senders != others) & in_halves
    parts = np.concatenate([np.where(is_halved, 0.5, 1.0), np.full(int(is_halved.sum()), 0.5)])
    senders, receivers = np.concatenate([senders, others[is_halved]]), np.concatenate([receivers, receivers[is_halved]])
    travels = senders != receivers
    return AlongRing(senders[travels], receivers[travels], parts[travels])


def _place(tiling: Tiling, device: int) -> int:
    return tiling.mesh.position_of(device) if device in tiling.mesh else -1
