"""An exchange along a ring, in which each device hands on to its neighbours what others further on lack too.

By digits a receiver's replica at its own value sends, or one that a chain of digits leads to, however far along a ring;
what several lack is sent to each.
Here it comes from the nearest holder behind, or ahead, or a share from each, and is copied on its way
(`reshard.exchange.ring_flows`): what a device needs stays the same, and the fullest link carries as little as it can.
Who hands on what its own tile lacks receives it too, so devices may receive more than they lack.

What goes to neighbours at once is a *hop*, which `Piece.round` counts from 1: a piece that is sent in a later hop is one
that its sender received in the hop before.
What stays on its device is of round 0.
Of what goes to a neighbour in one hop those pieces come first that go furthest, so what is handed on of it is its front.

By hand, 4 devices on a ring, of 8 elements 0 and 1 hold the first half, 2 and 3 the second, and all want all: 2 lacks
what 1 holds beside it, and 0 two hops away; half comes each way, the second by 3, which lacks it too.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(a=2, b=2)
>>> exchange = around(*(Tiling.of(Sharding.of(mesh, axes), (8,)) for axes in ("a", None)), Digit(1, 4))
>>> for piece in exchange.incoming(2):
...     print(piece.round, piece.sender, piece.box)
0 2 [4, 8)
1 1 [0, 2)
2 3 [2, 4)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from reshard.box import Box
from reshard.digits import Digit, Digits, Positions
from reshard.errors import ReshardError
from reshard.exchange.pieces import Exchange, Piece, PieceTable
from reshard.exchange.ring_flows import Flags, Flows, RingUnits, role_numbers, units_and_flows
from reshard.mesh import ENUMERABLE
from reshard.mix import Floats
from reshard.refinement import Cuts, Refinement, Role, refine
from reshard.tiling import Tiling


MOST_PLACES = 1 << 14
"""Of all units of a ring together: what has more of them is not sent along it."""


class RingRoles(NamedTuple):
    """What the digits along a ring do at both ends."""

    digits: Digits
    """Of the places along the ring."""
    before: tuple[Role, ...]
    after: tuple[Role, ...]

    @property
    def cut(self) -> list[Role]:
        """What any of them cuts, in the order in which `RingUnits` numbers it."""
        return [role for role in dict.fromkeys((*self.before, *self.after)) if role is not None]

    @property
    def places(self) -> int:
        """Of all units together."""
        sizes = {
            role: digit.size
            for roles in (self.before, self.after)
            for role, digit in zip(roles, self.digits, strict=True)
        }
        return self.digits.size * prod([size for role, size in sizes.items() if role is not None])

    def units_and_flows(self) -> tuple[RingUnits, Flows]:
        """The units, and how they go."""
        return units_and_flows(self.digits, *role_numbers(self.before, self.after))


class _Rows(NamedTuple):
    """Pieces of one box on every ring: what stays, then what goes to neighbours."""

    unit: Positions
    senders: Positions
    """Places along the ring."""
    receivers: Positions
    rounds: Positions
    bounds: tuple[Floats, Floats]
    """Which part of the unit it is."""


@dataclass(frozen=True)
class RingExchange(Exchange):
    """An exchange whose pieces go along a ring from neighbour to neighbour."""

    source: Tiling
    target: Tiling
    common: Refinement
    ring: Digit
    """The places along the ring, as a digit of the position."""

    @cached_property
    def roles(self) -> RingRoles:
        """What digits along the ring do."""
        common, ring = self.common, self.ring
        columns = zip(common.digits, common.source_roles, common.target_roles, strict=True)
        digits, before, after = zip(*(column for column in columns if column[0].lies_in(ring)), strict=True)
        return RingRoles(Digits(Digit(stride // ring.stride, size) for stride, size in digits), before, after)

    @cached_property
    def _rows(self) -> _Rows:
        units, flows = self.roles.units_and_flows()
        unit, place = np.nonzero(units.holds & units.wants)
        stays = unit, place, place, 0 * place, 0.0 * place, 0.0 * place + 1.0
        columns = flows.unit, flows.senders, flows.receivers, flows.hops + 1, flows.low, flows.high
        travels = [column[_furthest_first(flows)] for column in columns]
        *columns, low, high = (np.concatenate(pair) for pair in zip(stays, travels, strict=True))
        return _Rows(*columns, (low, high))

    def _corners(self, positions: Positions) -> list[tuple[Positions, Positions, Positions]]:
        """Per dim where boxes begin: by unit, by ring, of which positions are given, and by box of one unit."""
        roles = self.roles
        units = roles.units_and_flows()[0]
        outside = [
            (role, digit.value(positions))
            for digit, role in zip(self.common.digits, self.common.target_roles, strict=True)
            if not digit.lies_in(self.ring)
        ]
        cutting = [
            (zip(roles.cut, _values(units.sizes), strict=True), len(units.holds)),
            (outside, len(positions)),
            (zip(self.common.loose, _values(self.common.loose_sizes), strict=True), prod(self.common.loose_sizes)),
        ]
        corners = []
        for roles_and_values, count in cutting:
            starts = np.zeros((len(self.target.shape), count), dtype=np.int64)
            for role, value in roles_and_values:
                if isinstance(role, Cuts):
                    starts[role.dim] += value * role.stride
            corners.append(starts)
        return list(zip(*corners, strict=True))

    def _listed(self, positions: Positions) -> tuple[PieceTable, Positions]:
        """The pieces of some rings, of each of which the first position is given; and the row of each."""
        rows, lengths, shape = self._rows, self.common.lengths, self.target.shape
        grid = len(rows.unit), len(positions), prod(self.common.loose_sizes)
        if prod(grid) > ENUMERABLE:
            raise ReshardError("too-large", f"{prod(grid)} pieces are too many to list one by one")
        starts, stops = np.zeros((2, len(shape), *grid), dtype=np.int64)
        for dim, (of_unit, of_ring, apart) in enumerate(self._corners(positions)):
            begins = of_unit[rows.unit][:, None, None] + of_ring[:, None] + apart
            starts[dim] = np.minimum(begins, shape[dim])
            stops[dim] = np.minimum(begins + lengths[dim], shape[dim])
        if len(shape):  # a share of a box is cut across its longest dim
            across = (stops - starts).argmax(axis=0)[None]
            first, last = (np.take_along_axis(ends, across, axis=0) for ends in (starts, stops))
            for ends, bound in zip((starts, stops), rows.bounds, strict=True):
                cut = first + np.floor((last - first) * bound[:, None, None] + 0.5).astype(np.int64)
                np.put_along_axis(ends, across, cut, axis=0)
        row, ring, box = np.nonzero((starts < stops).all(axis=0))
        senders, receivers = (
            positions[ring] + place[row] * self.ring.stride for place in (rows.senders, rows.receivers)
        )
        corners = (ends[:, row, ring, box] for ends in (starts, stops))
        return PieceTable(senders, receivers, *corners, rows.rounds[row]), row

    @cached_property
    def _all(self) -> tuple[PieceTable, Positions]:
        positions = self.source.mesh.positions
        return self._listed(positions[self.ring.value(positions) == 0])

    def table(self) -> PieceTable:
        return self._all[0]

    def _pieces(self, chosen: Flags) -> list[Piece]:
        """Some pieces of the table."""
        table, numbers = self.table(), np.flatnonzero(chosen)
        ends = (
            self.source.mesh.device_array[table.senders[numbers]],
            self.target.mesh.device_array[table.receivers[numbers]],
        )
        sides = np.stack([table.starts[:, numbers], table.stops[:, numbers]], axis=-1).transpose(1, 0, 2).tolist()
        return [
            Piece(sender, receiver, Box([(low, high) for low, high in box]), number)
            for sender, receiver, box, number in zip(
                *(end.tolist() for end in ends), sides, table.rounds[numbers].tolist(), strict=True
            )
        ]

    def _taken(self, device: int, chosen: Flags | None = None) -> list[Piece]:
        """The pieces that come to a device, of some rows."""
        table, row = self._all
        is_taken = table.receivers == self._place(self.target, device)
        return self._pieces(is_taken if chosen is None else is_taken & chosen[row])

    @cached_property
    def _is_wanted(self) -> Flags:
        """Per row, whether it is of the target tile of who receives it."""
        wanted: Flags = self.roles.units_and_flows()[0].wants[self._rows.unit, self._rows.receivers]
        return wanted

    def incoming(self, device: int) -> list[Piece]:
        return self._taken(device, self._is_wanted)

    def taken(self, device: int) -> list[Piece]:
        return self._taken(device)

    def passing(self, device: int) -> list[Piece]:
        return self._taken(device, ~self._is_wanted)

    def outgoing(self, device: int) -> list[Piece]:
        return self._pieces(self.table().senders == self._place(self.source, device))

    def holder_of(self, piece: Piece) -> int:
        position, receiver = (int(self.source.mesh.position_of(device)) for device in piece[:2])
        place = self.ring.value(position)
        held_at = (place + (place - self.ring.value(receiver)) * max(piece.round - 1, 0)) % self.ring.size
        return self.source.mesh.device_at(position + (held_at - place) * self.ring.stride)

    def _place(self, tiling: Tiling, device: int) -> int:
        """The position of a device in a tiling; none where it is of the other alone."""
        if device not in tiling.mesh:
            self._check_device(device)
            return -1
        return tiling.mesh.position_of(device)

    @property
    def hops(self) -> int:
        return int(self._rows.rounds.max(initial=1))

    @cached_property
    def rounds(self) -> int:
        """As many in each hop as the busiest device of a ring sends, or receives (König 1916)."""
        rows, size = self._rows, self.ring.size
        travels = rows.rounds > 0
        counts = [
            np.bincount(rows.rounds[travels] * size + places[travels], minlength=(self.hops + 1) * size)
            for places in (rows.senders, rows.receivers)
        ]
        busiest = np.maximum(*counts).reshape(-1, size).max(axis=1)
        return prod(self.common.loose_sizes) * int(busiest.sum())

    @property
    def piece_shape(self) -> tuple[int, ...]:
        return tuple(map(min, self.common.lengths, self.target.shape))

    @cached_property
    def _sample(self) -> PieceTable:
        """The pieces of one ring, where those of all are alike; else all."""
        return self._listed(self.target.mesh.positions[:1])[0] if self._is_full else self.table()

    @property
    def _is_full(self) -> bool:
        return self.common.filled(self.target.shape) == 1

    @cached_property
    def _received(self) -> Positions:
        """Per hop and position what comes there, of `_sample`."""
        table = self._sample
        received = np.zeros((self.hops, self.target.mesh.size), dtype=np.int64)
        travels = table.rounds > 0
        np.add.at(received, (table.rounds[travels] - 1, table.receivers[travels]), table.elements[travels])
        return received

    def all_received(self) -> Positions:
        received: Positions = self._received.sum(axis=0)
        places = self.ring.value(self.target.mesh.positions) * self.ring.stride
        return received[places] if self._is_full else received

    def buffered(self, chunks: int) -> int:
        """What a device sends in the first hop, and what comes in two; in no chunks."""
        table, received = self._sample, self._received.max(axis=1)
        is_first = table.rounds == 1
        sent = np.bincount(table.senders[is_first], table.elements[is_first]).max(initial=0)
        return int(sent + received[::2].max() + received[1::2].max(initial=0))

    def received_on(self, device: int) -> int:
        place = self._place(self.target, device)
        return int(self.all_received()[place]) if place >= 0 else 0

    def traffic(self) -> tuple[Positions, Positions, Positions]:
        return self._traffic_of(self.table().rounds > 0)

    def traffic_of_hops(self) -> list[tuple[Positions, Positions, Positions]]:
        """Per hop, what goes to neighbours: as `traffic`, of each pair of devices together."""
        return [self._traffic_of(self.table().rounds == hop + 1) for hop in range(self.hops)]

    def _traffic_of(self, chosen: Flags) -> tuple[Positions, Positions, Positions]:
        table, size = self.table(), self.source.mesh.size
        pairs, numbers = np.unique(table.senders[chosen] * size + table.receivers[chosen], return_inverse=True)
        elements = np.zeros(len(pairs), dtype=np.int64)
        np.add.at(elements, numbers, table.elements[chosen])
        senders, receivers = np.divmod(pairs, size)
        return self.source.mesh.device_array[senders], self.target.mesh.device_array[receivers], elements


def around(source: Tiling, target: Tiling, ring: Digit) -> RingExchange:
    """The exchange from one tiling to another on the same devices, along a ring.

    Raises:
        ReshardError: `bad-step` where the ends have no common digits there, or differ outside the ring; `too-large`.
    """
    same_order = source.mesh.size == target.mesh.size and source.same_order_as(target)
    is_inside = ring.stride > 0 and ring.size > 2 and source.mesh.size % ring.end == 0
    bounds = [ring.stride, ring.end]
    common = refine(source.layout, target.layout, source.shape, bounds) if same_order and is_inside else None
    if common is None or source.classes != target.classes:
        raise ReshardError("bad-step", "only what digits of one mesh say, and of whole values, goes along a ring")
    roles = zip(common.digits, common.source_roles, common.target_roles, strict=True)
    if any(before != after for digit, before, after in roles if not digit.lies_in(ring)):
        raise ReshardError("bad-step", "along a ring goes only what changes nowhere else")
    exchange = RingExchange(source, target, common, ring)
    if exchange.roles.places > MOST_PLACES:
        raise ReshardError("too-large", f"{exchange.roles.places} places of units are too many to find their ways")
    return exchange


def _furthest_first(flows: Flows) -> Positions:
    """An order of what goes from neighbour to neighbour: hop by hop, and of each first what is handed on most often."""
    _, lows = np.unique(flows.low, return_inverse=True)
    is_back = (flows.receivers - flows.senders) % flows.size != 1
    holders = (flows.senders + np.where(is_back, flows.hops, -flows.hops)) % flows.size
    _, ways = np.unique(((flows.unit * flows.size + holders) * 2 + is_back) * len(lows) + lows, return_inverse=True)
    last = np.zeros(len(ways), dtype=np.int64)
    np.maximum.at(last, ways, flows.hops)
    return np.lexsort((lows, flows.unit, -last[ways], flows.hops))


def _values(sizes: tuple[int, ...]) -> tuple[Positions, ...]:
    """The values of digits of these sizes, by their number."""
    return np.unravel_index(np.arange(prod(sizes)), sizes) if sizes else ()
