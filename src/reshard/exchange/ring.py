"""An exchange along a ring, in which each device hands on to its neighbours what others further on lack too.

By digits a receiver's replica at its own value sends, or one that a chain of digits leads to, however far along a ring;
what several lack is sent to each.
Here it comes from the nearest holder behind, or ahead, or a share from each, and is copied on its way
(`reshard.exchange.ring_flows`): what a device needs stays the same, and the fullest link carries as little as it can.
Who hands on what its own tile lacks receives it too, so devices may receive more than they lack.

What goes to neighbours at once is a *hop*, which `Piece.round` counts from 1: a piece that is sent in a later hop is
one that its sender received in the hop before.
What stays on its device is of round 0.
Of what goes to a neighbour in one hop those pieces come first that go furthest, so that what is handed on is its front.

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

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.digits import Digit, Positions
from reshard.errors import ReshardError
from reshard.exchange.pieces import Exchange, Piece, PieceTable, each_pair, overlap_elements
from reshard.exchange.ring_flows import Flags, Flows, KindsAndFlows
from reshard.exchange.ring_roles import MOST_PLACES, RingRoles, change_places
from reshard.exchange.transposed_flows import transposed_flows
from reshard.mesh import ENUMERABLE
from reshard.mix import Floats
from reshard.refinement import Cuts, Refinement, refine
from reshard.tiling import Tiling

FEW_BOXES = 64
"""So many boxes of one unit are never too many to list, where all are full."""


class _Flows(NamedTuple):
    """What goes from one position to another, and how often it has gone on by then."""

    senders: Positions
    receivers: Positions
    elements: Positions
    rounds: Positions


class _Rows(NamedTuple):
    """Pieces of one box on every ring of a kind: what stays, then what goes to neighbours."""

    unit: Positions
    senders: Positions
    """Places along the ring, or on both: those along the first times the size, plus those along the other."""
    receivers: Positions
    rounds: Positions
    low: Floats
    """Which part of the unit it is, from 0 to 1."""
    high: Floats
    is_wanted: Flags

    def alike(self) -> tuple[Positions, Positions]:
        """One row of each share of a unit, and per row which of them is of the same."""
        columns = self.high, self.low, self.unit
        order = np.lexsort(columns)
        begins = np.ones(len(order), dtype=np.bool_)
        begins[1:] = np.any([np.diff(column[order]) != 0 for column in columns], axis=0)
        number = np.empty_like(order)
        number[order] = begins.cumsum() - 1
        return order[begins], number

    @classmethod
    def of(cls, roles: RingRoles, values: Sequence[int]) -> _Rows:
        """Those of rings on which what is fixed has these values."""
        change = KindsAndFlows.of(*roles.numbered(values))
        units, flows = change.units, change.flows_of_units()
        order = _furthest_first(flows)
        stays, place = np.nonzero(units.holds & units.wants)
        columns = _with_what_stays(stays, place, [column[order] for column in flows[:6]])
        unit, senders, receivers, hops, low, high = columns
        return cls(unit, senders, receivers, hops + 1, low, high, units.wants[unit, receivers])

    @classmethod
    def transposed(cls, size: int, units: Positions) -> _Rows:
        """Those of two rings of a size whose devices change places; `units` says per place which one it holds."""
        flows, places = transposed_flows(size), np.arange(size**2)
        stays = places[places // size == places % size]
        columns = _with_what_stays(units[stays], stays, [units[flows.origin], *flows[1:6]])
        unit, senders, receivers, hops, low, high = columns
        wanted = units[receivers % size * size + receivers // size]
        return cls(unit, senders, receivers, hops + 1, low, high, unit == wanted)


def _with_what_stays(unit: Positions, place: Positions, travels: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """The columns of flows, before them units that stay whole at their places, as of hop -1."""
    stays = unit, place, place, 0 * place - 1, 0.0 * place, 0.0 * place + 1.0
    return [np.concatenate(pair) for pair in zip(stays, travels, strict=True)]


@dataclass(frozen=True)
class RingExchange(Exchange):
    """An exchange whose pieces go along a ring from neighbour to neighbour."""

    source: Tiling
    target: Tiling
    common: Refinement
    ring: Digit
    """The places along the ring, as a digit of the position."""
    kept: Tiling | None = None
    """Of tiles that devices have besides: what they hold there is not sent to them, and may be sent from it."""
    across: Digit | None = None
    """The places along another ring, where the devices at x, y of the two change places with those at y, x."""

    @cached_property
    def roles(self) -> RingRoles:
        """What digits along the ring do; where two change places, of no use."""
        common = self.common
        kept = None if self.kept is None else common.kept_roles
        return RingRoles.of(self.ring, common.digits, common.source_roles, common.target_roles, kept)

    @property
    def rings(self) -> tuple[Digit, ...]:
        """The one along which it goes, or both."""
        return (self.ring,) if self.across is None else (self.ring, self.across)

    def _is_inside(self, digit: Digit) -> bool:
        """Whether a digit of the position lies along a ring of the exchange."""
        return any(digit.lies_in(ring) for ring in self.rings)

    @cached_property
    def _sizes(self) -> dict[Hashable, int]:
        """Of the digits of the tensor that units are numbered by."""
        if self.across is None:
            return self.roles.sizes
        pairs = zip(self.common.digits, self.common.source_roles, strict=True)
        return {role: digit.size for digit, role in pairs if self._is_inside(digit)}

    @cached_property
    def _along(self) -> Positions:
        """The positions of one ring, or of one pair of rings, from its first."""
        along = np.arange(self.ring.size) * self.ring.stride
        if self.across is None:
            return along
        return (along[:, None] + np.arange(self.across.size) * self.across.stride).ravel()

    @cached_property
    def _rings(self) -> list[tuple[_Rows, Positions]]:
        """The pieces of every kind of ring, and the first positions of these rings."""
        positions = self.source.mesh.positions
        is_first = self.ring.value(positions) == 0
        if self.across is not None:
            digits = [digit for digit in self.common.digits if self._is_inside(digit)]
            units = np.ravel_multi_index([digit.value(self._along) for digit in digits], tuple(self._sizes.values()))
            rows = _Rows.transposed(self.ring.size, np.asarray(units))
            return [(rows, positions[is_first & (self.across.value(positions) == 0)])]
        firsts = positions[is_first]
        fixed = np.array([digit.value(firsts) for _, digit in self.roles.fixed]).reshape(-1, len(firsts))
        kinds, numbers = np.unique(fixed, axis=1, return_inverse=True)
        of_kinds = [_Rows.of(self.roles, values) for values in kinds.T.tolist()]
        return [(rows, firsts[numbers.ravel() == number]) for number, rows in enumerate(of_kinds)]

    def _corners(self, positions: Positions) -> list[tuple[Positions, Positions, Positions]]:
        """Per dim where boxes begin: by unit, by ring, of which positions are given, and by box of one unit."""
        common, sizes = self.common, self._sizes
        outside = [
            (role, digit.value(positions))
            for digit, role in zip(common.digits, common.target_roles, strict=True)
            if not self._is_inside(digit)
        ]
        cutting = [
            (zip(sizes, _values(tuple(sizes.values())), strict=True), prod(sizes.values())),
            (outside, len(positions)),
            (zip(common.loose, _values(common.loose_sizes), strict=True), prod(common.loose_sizes)),
        ]
        corners = []
        for roles_and_values, count in cutting:
            starts = np.zeros((len(self.target.shape), count), dtype=np.int64)
            for role, value in roles_and_values:
                if isinstance(role, Cuts):
                    starts[role.dim] += value * role.stride
            corners.append(starts)
        return list(zip(*corners, strict=True))

    def _begins(self, units: Positions, positions: Positions) -> Iterator[Positions]:
        """Per dim where boxes begin, some of them behind the end of the tensor: by unit, ring and box of one unit."""
        for of_unit, of_ring, apart in self._corners(positions):
            yield of_unit[units][:, None, None] + of_ring[:, None] + apart

    def _grid(self, rows: _Rows, positions: Positions) -> tuple[int, int, int]:
        """How many rows, rings and boxes of one unit there are.

        Raises:
            ReshardError: `too-large` where these are too many pieces.
        """
        grid = len(rows.unit), len(positions), prod(self.common.loose_sizes)
        if prod(grid) > ENUMERABLE:
            raise ReshardError("too-large", f"{prod(grid)} pieces are too many to list one by one")
        return grid

    def _listed(self, rows: _Rows, positions: Positions) -> tuple[PieceTable, Flags]:
        """The pieces of some rings, of each of which the first position is given; and which of them are wanted."""
        lengths, shape = self.common.lengths, self.target.shape
        grid = self._grid(rows, positions)
        starts, stops = np.zeros((2, len(shape), *grid), dtype=np.int64)
        for dim, begins in enumerate(self._begins(rows.unit, positions)):
            starts[dim] = np.minimum(begins, shape[dim])
            stops[dim] = np.minimum(begins + lengths[dim], shape[dim])
        if len(shape):  # a share of a box is cut across its longest dim
            across = (stops - starts).argmax(axis=0)[None]
            first, last = (np.take_along_axis(ends, across, axis=0) for ends in (starts, stops))
            for ends, bound in zip((starts, stops), (rows.low, rows.high), strict=True):
                np.put_along_axis(ends, across, first + _cut_at(last - first, bound), axis=0)
        row, ring, box = np.nonzero((starts < stops).all(axis=0))
        senders, receivers = (positions[ring] + self._along[places[row]] for places in (rows.senders, rows.receivers))
        starts, stops = (ends[:, row, ring, box] for ends in (starts, stops))
        return PieceTable(senders, receivers, starts, stops, rows.rounds[row]), rows.is_wanted[row]

    def _elements(self, rows: _Rows, positions: Positions) -> Positions:
        """Per row and ring how many elements its pieces have in all boxes, as `_listed` has them.

        Raises:
            ReshardError: `too-large` as that.
        """
        self._grid(rows, positions)
        first_of, row = rows.alike()
        unit, low, high = rows.unit[first_of], rows.low[first_of], rows.high[first_of]
        elements = np.ones((len(unit), len(positions), prod(self.common.loose_sizes)), dtype=np.int64)
        longest = np.ones_like(elements)
        for begins, length, size in zip(
            self._begins(unit, positions), self.common.lengths, self.target.shape, strict=True
        ):
            sizes = np.clip(size - begins, 0, length)
            elements *= sizes
            np.maximum(longest, sizes, out=longest)
        if self.target.shape:  # a share of a box is cut across its longest dim
            elements = elements // longest * (_cut_at(longest, high) - _cut_at(longest, low))
        return np.asarray(elements.sum(axis=-1)[row])

    @cached_property
    def _all(self) -> tuple[PieceTable, Flags]:
        tables, wanted = zip(*(self._listed(*rings) for rings in self._rings), strict=True)
        return PieceTable.joined(tables), np.concatenate(wanted)

    def table(self) -> PieceTable:
        """All pieces, those that pass too."""
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

    def _received_on(self, device: int, *, wanted: bool) -> list[Piece]:
        return self._pieces(self._comes_to(device) & (self._all[1] == wanted))

    def _comes_to(self, device: int) -> Flags:
        """Per piece whether a device keeps or receives it."""
        comes: Flags = self.table().receivers == self._place(self.target, device)
        return comes

    def incoming(self, device: int) -> list[Piece]:
        """As of `Exchange`."""
        return self._received_on(device, wanted=True)

    def passing(self, device: int) -> list[Piece]:
        """As of `Exchange`."""
        return self._received_on(device, wanted=False)

    def taken(self, device: int) -> list[Piece]:
        """As of `Exchange`."""
        return self._pieces(self._comes_to(device))

    def outgoing(self, device: int) -> list[Piece]:
        """As of `Exchange`, in any hop."""
        return self._pieces(self.table().senders == self._place(self.source, device))

    def holder_of(self, piece: Piece) -> int:
        """As of `Exchange`: as far back along the ring as the piece has gone, or who it is cut for on both."""
        position, receiver = (int(self.source.mesh.position_of(device)) for device in piece[:2])
        if self.across is not None:
            for digit, role in zip(self.common.digits, self.common.source_roles, strict=True):
                if isinstance(role, Cuts) and self._is_inside(digit):
                    value = piece.box[role.dim][0] // role.stride % digit.size
                    position += (value - int(digit.value(position))) * digit.stride
            return self.source.mesh.device_at(position)
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
        """The most that any piece goes."""
        return max(int(rows.rounds.max(initial=1)) for rows, _ in self._rings)

    @cached_property
    def rounds(self) -> int:
        """As many in each hop as the busiest device sends, or receives (König 1916)."""
        busiest, size = np.zeros(self.hops + 1, dtype=np.int64), len(self._along)
        for rows, _ in self._rings:
            travels = rows.rounds > 0
            counts = [
                np.bincount(rows.rounds[travels] * size + places[travels], minlength=len(busiest) * size)
                for places in (rows.senders, rows.receivers)
            ]
            busiest = np.maximum(busiest, np.maximum(*counts).reshape(-1, size).max(axis=1))
        return prod(self.common.loose_sizes) * int(busiest.sum())

    @property
    def piece_shape(self) -> tuple[int, ...]:
        """That of a whole unit."""
        return tuple(map(min, self.common.lengths, self.target.shape))

    @cached_property
    def _received(self) -> Positions:
        """What `all_received` gives: of each kind from the pieces of one ring, where those of all are alike.

        They are where boxes end inside the tensor, and where those that do not begin at the same places.
        Engines list the pieces of all rings then, so these must not be too many.
        """
        is_full = self.common.filled(self.target.shape) == 1
        received, along = np.zeros(self.target.mesh.size, dtype=np.int64), self._along
        for rows, firsts in self._rings:
            if not is_full:
                self._grid(rows, firsts)
            ended = [np.zeros_like(firsts)]
            corners = zip(self._corners(firsts), self.common.lengths, self.target.shape, strict=True)
            for (of_unit, of_ring, apart), length, size in corners:
                ended.append(np.where(of_unit.max() + apart.max() + of_ring + length > size, of_ring, -1))
            _, first_of, number = np.unique(ended, axis=1, return_index=True, return_inverse=True)
            travels, elements = rows.rounds > 0, self._elements(rows, firsts[first_of])
            receivers = firsts[first_of] + along[rows.receivers[travels]][:, None]
            np.add.at(received, receivers, elements[travels])
            received[firsts[:, None] + along] = received[firsts[first_of[number.ravel()], None] + along]
        return received

    def all_received(self) -> Positions:
        """As of `Exchange`; what passes counts too."""
        return self._received

    @property
    def is_without_messages(self) -> bool:
        """As of `Exchange`; where a device needs more than it can hold none is listed, unless they may be too many."""
        if prod(self.common.loose_sizes) > FEW_BOXES or self.common.filled(self.target.shape) < 1:
            return super().is_without_messages
        kept = 0 if self.kept is None else overlap_elements(self.kept, self.target)
        return not (self.all_missing() > kept).any() and super().is_without_messages

    def received_on(self, device: int) -> int:
        """As of `Exchange`; what passes counts too."""
        place = self._place(self.target, device)
        return int(self._received[place]) if place >= 0 else 0

    def traffic(self) -> tuple[Positions, Positions, Positions]:
        """As of `Exchange`: what goes from neighbour to neighbour, in all hops."""
        return self._traffic_of(self._flows.rounds > 0)

    def traffic_of_hops(self) -> list[tuple[Positions, Positions, Positions]]:
        """Per hop, what goes to neighbours: as `traffic`, of each pair of devices together."""
        return [self._traffic_of(self._flows.rounds == hop + 1) for hop in range(self.hops)]

    @cached_property
    def _flows(self) -> _Flows:
        """What goes along all rings, all boxes of a piece together."""
        columns = []
        for rows, firsts in self._rings:
            elements = self._elements(rows, firsts)
            row, ring = elements.nonzero()
            senders, receivers = (firsts[ring] + self._along[places[row]] for places in (rows.senders, rows.receivers))
            columns.append((senders, receivers, elements[row, ring], rows.rounds[row]))
        return _Flows(*map(np.concatenate, zip(*columns, strict=True)))

    def _traffic_of(self, chosen: Flags) -> tuple[Positions, Positions, Positions]:
        senders, receivers, elements = each_pair(*(column[chosen] for column in self._flows[:3]))
        return self.source.mesh.device_array[senders], self.target.mesh.device_array[receivers], elements


def _cut_at(sizes: Positions, bounds: Floats) -> Positions:
    """How many of the elements of boxes, by row, ring and box, lie before a part of them, by row."""
    return np.floor(sizes * bounds[:, None, None] + 0.5).astype(np.int64)


def around(source: Tiling, target: Tiling, ring: Digit, kept: Tiling | None = None) -> RingExchange:
    """The exchange from one tiling to another on the same devices, along a ring.

    Args:
        source: what devices have.
        target: what they need.
        ring: the places along it, as a digit of the position.
        kept: of tiles that they have besides.

    Raises:
        ReshardError: `bad-step` where the ends have no common digits there, or differ outside the ring; `too-large`.
    """
    others = (target,) if kept is None else (target, kept)
    same_order = all(source.mesh.size == other.mesh.size and source.same_order_as(other) for other in others)
    is_inside = ring.stride > 0 and ring.size > 2 and source.mesh.size % ring.end == 0
    bounds, beside = [ring.stride, ring.end], None if kept is None else kept.layout
    is_known = same_order and is_inside and all(source.classes == other.classes for other in others)
    common = refine(source.layout, target.layout, source.shape, bounds, beside) if is_known else None
    if common is None:
        raise ReshardError("bad-step", "only what digits of one mesh say, and of whole values, goes along a ring")
    roles = zip(common.digits, common.source_roles, common.target_roles, strict=True)
    if any(before != after for digit, before, after in roles if not digit.lies_in(ring)):
        raise ReshardError("bad-step", "along a ring goes only what changes nowhere else")
    exchange = RingExchange(source, target, common, ring, kept)
    if kept is not None and not exchange.roles.kept:
        raise ReshardError("bad-step", "what devices kept is cut by other digits there, and differs along a ring")
    if exchange.roles.places > MOST_PLACES:
        raise ReshardError("too-large", f"{exchange.roles.places} places of units are too many to find their ways")
    return exchange


def transposed(source: Tiling, target: Tiling, ring: Digit, across: Digit) -> RingExchange:
    """The exchange in which the devices of two rings change places, those at x, y with those at y, x.

    Raises:
        ReshardError: `bad-step` where they do not, or hold the same; `too-large`.
    """
    same_order = source.mesh.size == target.mesh.size and source.same_order_as(target)
    are_inside = all(digit.stride > 0 and source.mesh.size % digit.end == 0 for digit in (ring, across))
    bounds = [ring.stride, ring.end, across.stride, across.end]
    is_known = same_order and are_inside and source.classes == target.classes
    common = refine(source.layout, target.layout, source.shape, bounds) if is_known else None
    if common is None or not change_places(ring, across, common.digits, common.source_roles, common.target_roles):
        raise ReshardError("bad-step", "only whole tiles of devices of two rings of a size change places along them")
    return RingExchange(source, target, common, ring, None, across)


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
