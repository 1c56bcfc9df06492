"""How what devices of a ring lack goes along it from those that hold it, so that the fullest link carries least.

A unit is what the same devices hold and the same devices lack.
Between a device that holds it and the next one that does is a *gap*: who lacks it there takes it from the holder behind
up to some device, and from the one ahead beyond; each hands it on to its neighbour, so no link carries it twice.
Where a gap is parted may be chosen for every share of a unit, so what comes from behind is its first part: all of it
to some, less to those further on, nothing to others.

The best shares are a mix of ways (`reshard.mix`), each of which parts every gap in one place.
Where a second of each link has a price, the cheapest way parts each gap by itself where that costs least; so ways are
added until none is cheaper than their mix.
Turns of the ring that leave all that is held and lacked as it is, and its mirror image, take links to links that may
as well carry the same; so few are told apart.

By hand, on a ring of 4: what 0 alone holds, or what 0 and 1 hold, goes half each way to all that lack it.

>>> lacks = np.array([[False, True, True, True], [False, False, True, True]])
>>> demand = Demand(~lacks, lacks, np.array([1, 1]))
>>> [RingMix.of(demand.part([unit])).from_behind().tolist() for unit in range(2)]
[[0.0, 0.5, 0.5, 0.5], [0.0, 0.0, 0.5, 0.5]]
>>> RingMix.of(demand.part([1])).flows(demand.counts[1:]).loads().tolist()
[[0.0, 0.5, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.5]]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.digits import Digits, Positions
from reshard.mix import ChoiceMix, Floats

Flags = NDArray[np.bool_]

HOP = 1e-6
"""What a hop more costs besides, as a part of all, so that of ways that load links alike the nearest is taken."""
SHARES = 24
"""In how many equal shares, at most, what is alike parts."""
CACHED = 4096
"""Changes along a ring whose flows are kept."""
CACHED_UNITS = 256
"""Changes whose units are kept."""


class Demand(NamedTuple):
    """What devices of a ring hold and lack."""

    holds: Flags
    """Per unit and place along the ring, no two units alike; some device holds each."""
    lacks: Flags
    """Per unit and place whether it is to get there; nobody lacks what it holds."""
    counts: Positions
    """Per unit how many there are of it, each of one size."""

    def part(self, units: Sequence[int]) -> Demand:
        """Some units of it."""
        chosen = list(units)
        return Demand(self.holds[chosen], self.lacks[chosen], self.counts[chosen])


class Flows(NamedTuple):
    """What goes from neighbour to neighbour."""

    unit: Positions
    senders: Positions
    """Places along the ring."""
    receivers: Positions
    hops: Positions
    """From 0: what is sent in a later hop is what the sender received in the hop before."""
    low: Floats
    """Which part of the unit it is, from 0 to 1."""
    high: Floats
    counts: Positions
    """Of the demand, per unit."""
    size: int
    """Of the ring."""

    @classmethod
    def of(cls, columns: Sequence[NDArray[Any]], counts: Positions, size: int) -> Flows:
        """Those of such columns, from the unit to how much of it."""
        unit, senders, receivers, hops, low, high = columns
        return cls(unit, senders, receivers, hops, low, high, counts, size)

    def loads(self) -> Floats:
        """Per hop, what links carry in units: those onwards from each place, then those back from each place."""
        is_back = (self.receivers - self.senders) % self.size != 1
        links = self.hops * 2 * self.size + is_back * self.size + self.senders
        length = 2 * self.size * (int(self.hops.max(initial=-1)) + 1)
        carried = np.bincount(links, (self.high - self.low) * self.counts[self.unit], length)
        return np.asarray(carried.reshape(-1, 2 * self.size), dtype=np.float64)


class _Events(NamedTuple):
    """Who holds and who lacks each unit, gap by gap: a holder, and who lacks it up to the next."""

    unit: Positions
    place: Positions
    is_holder: Flags
    behind: Positions
    """How far the holder behind is; 0 for itself."""
    ahead: Positions
    """How far the next holder is; 0 for a holder."""
    first: Positions
    """The events at which gaps begin."""
    gaps: Positions
    """Per event the number of its gap."""
    size: int
    """Of the ring."""

    @classmethod
    def of(cls, demand: Demand) -> _Events:
        """Those of a demand."""
        units, size = demand.holds.shape
        turned = (demand.holds.argmax(axis=1)[:, None] + np.arange(size)) % size  # a holder first
        rows = np.arange(units)[:, None]
        holds, lacks = demand.holds[rows, turned], demand.lacks[rows, turned]
        places = np.arange(size)
        behind = places - np.maximum.accumulate(np.where(holds, places, 0), axis=1)
        ahead = np.minimum.accumulate(np.where(holds, places, size)[:, ::-1], axis=1)[:, ::-1] - places
        unit, at = np.nonzero(holds | lacks)
        place, behind, ahead = (table[unit, at] for table in (turned, behind, ahead))
        is_holder = holds[unit, at]
        return cls(unit, place, is_holder, behind, ahead, np.flatnonzero(is_holder), np.cumsum(is_holder) - 1, size)

    @property
    def following(self) -> Positions:
        """How far the next holder is from who lacks it next; 0 where nobody does before that holder."""
        return np.append(np.where(self.is_holder, 0, self.ahead)[1:], 0)

    def chains(self, from_behind: Flags) -> Flows:
        """Whole units on their way, where it is said who takes them from behind; counted once each."""
        starts = self.first
        holders = self.place[starts]
        next_holders = (holders + np.maximum.reduceat(self.behind + self.ahead, starts)) % self.size
        onwards = np.maximum.reduceat(self.behind * from_behind, starts)
        back = np.maximum.reduceat(self.ahead * ~(from_behind | self.is_holder), starts)
        lengths = np.concatenate([onwards, back])
        chain = np.repeat(np.arange(len(lengths)), lengths)
        hops = np.arange(len(chain)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        way = np.where(chain < len(starts), 1, -1)
        senders = (np.concatenate([holders, next_holders])[chain] + way * hops) % self.size
        receivers, none = (senders + way) % self.size, np.zeros(len(chain))
        unit = self.unit[starts][chain % max(len(starts), 1)]
        return Flows(unit, senders, receivers, hops, none, none + 1.0, np.ones(len(unit), dtype=np.int64), self.size)


class _Symmetry(NamedTuple):
    """What leaves a demand as it is."""

    period: int
    """Turns by so many places."""
    turned: Positions
    """Per unit the one that it becomes by such a turn."""
    mirrored: Positions | None
    """Per unit the one that it becomes in the mirror image, in which places count down; None where that is another."""

    @classmethod
    def of(cls, demand: Demand) -> _Symmetry:
        """That of a demand."""
        (holds, lacks), size = demand[:2], demand.holds.shape[1]
        own = _keys(holds, lacks)
        order = np.argsort(own)

        def image(*tables: Flags) -> Positions | None:
            """Per unit the one that is held and lacked so; None where there is none, or of another count."""
            others = _keys(*tables)
            places = np.argsort(others)
            if not np.array_equal(own[order], others[places]):
                return None
            units = np.empty_like(order)
            units[places] = order
            return units if np.array_equal(demand.counts[units], demand.counts) else None

        mirrored = image(holds[:, ::-1], lacks[:, ::-1])
        for period in (count for count in range(1, size) if size % count == 0):
            turn = (np.arange(size) - period) % size
            turned = image(holds[:, turn], lacks[:, turn])
            if turned is not None:
                return cls(period, turned, mirrored)
        return cls(size, np.arange(len(own)), mirrored)

    def orbits(self, size: int) -> tuple[Positions, Positions]:
        """Per link onwards and per link back, by the place that it leaves or leads to, the number of those alike."""
        links = np.arange(size)
        back = (size - 2 - links) % self.period if self.mirrored is not None else self.period + links % self.period
        return links % self.period, back

    def evened(self, shares: Floats) -> Floats:
        """Shares from behind, the mean of those that are alike."""
        total, image, count = shares, shares, shares.shape[1] // self.period
        for _ in range(count - 1):
            image = np.roll(image[self.turned], -self.period, axis=1)
            total = total + image
        mean: Floats = total / count
        return mean if self.mirrored is None else (mean + 1.0 - mean[self.mirrored][:, ::-1]) / 2


def _keys(holds: Flags, lacks: Flags) -> NDArray[np.bytes_]:
    """One key per unit."""
    packed = np.ascontiguousarray(np.packbits(np.concatenate([holds, lacks], axis=1), axis=1))
    return packed.view(f"S{packed.shape[1]}")[:, 0]


class RingMix(NamedTuple):
    """Ways along a ring, and how much of all goes each."""

    events: _Events
    symmetry: _Symmetry
    mix: ChoiceMix
    """In which each gap chooses the event that is the last to take from behind."""

    @classmethod
    def of(cls, demand: Demand) -> RingMix:
        """The best there is, of a demand in which something is lacked."""
        events, symmetry = _Events.of(demand), _Symmetry.of(demand)
        slower = HOP * np.maximum(events.behind, events.following)
        return cls(
            events, symmetry, ChoiceMix.of(_loads_of_places(events, symmetry, demand.counts), events.first, slower)
        )

    def from_behind(self) -> Floats:
        """Per event, how much of the unit comes from the holder behind; nothing to holders."""
        events = self.events
        numbers = np.arange(len(events.unit))
        shares = np.zeros((int(events.unit[-1]) + 1, events.size))
        for part, way in zip(self.mix.parts.tolist(), self.mix.ways, strict=True):
            shares[events.unit, events.place] += part * (numbers <= way[events.gaps])
        evened = self.symmetry.evened(shares)[events.unit, events.place]
        return np.where(events.is_holder, 0.0, np.round(evened * SHARES) / SHARES)

    def flows(self, counts: Positions) -> Flows:
        """What goes from neighbour to neighbour, of units of which there are so many."""
        events, shares = self.events, self.from_behind()
        bounds = np.unique(np.concatenate([[0.0, 1.0], shares])).tolist()
        wholes = [events.chains((shares >= high) & ~events.is_holder) for high in bounds[1:]]
        pairs = zip(wholes, pairwise(bounds), strict=True)
        parts = [whole._replace(low=whole.low + low, high=whole.high - 1 + high) for whole, (low, high) in pairs]
        columns = [np.concatenate(column) for column in zip(*(part[:6] for part in parts), strict=True)]
        return Flows.of(columns, counts, events.size)


def _loads_of_places(events: _Events, symmetry: _Symmetry, counts: Positions) -> Floats:
    """Per event, what links that are told apart carry for its gap where it is the last that takes from behind."""
    size, links = events.size, np.arange(events.size)
    ends = events.place - events.behind, np.append(events.place[1:], 0)
    onwards, back = (
        (links - start[:, None]) % size < length[:, None]
        for start, length in zip(ends, (events.behind, events.following), strict=True)
    )
    orbits = symmetry.orbits(size)
    of_orbit = [numbers[:, None] == np.arange(max(map(np.max, orbits)) + 1) for numbers in orbits]
    carried = onwards @ of_orbit[0].astype(np.float64) + back @ of_orbit[1].astype(np.float64)
    return np.asarray(carried * (counts[events.unit] / sum(table[:, 0].sum() for table in of_orbit))[:, None])


Roles = tuple[int | None, ...]
"""Per digit of the places along a ring, the number of the tensor's digit that it cuts; None where it replicates."""


class Fixed(NamedTuple):
    """What a digit elsewhere cuts, and so all devices of a ring hold alike."""

    number: int
    """Of the tensor's digit."""
    size: int
    value: int


class RingUnits(NamedTuple):
    """The units of a tensor along a ring whose digits change what they do, each numbered by what the digits cut."""

    sizes: tuple[int, ...]
    """Of the digits of the tensor that are cut at either end, in the order of their numbers."""
    holds: Flags
    """Per unit and place along the ring."""
    wants: Flags
    """Likewise, what the target has there."""

    @classmethod
    @lru_cache(CACHED_UNITS)  # what is least is asked for before what goes along
    def of(
        cls,
        digits: Digits,
        before: Roles,
        after: Roles,
        kept: Roles = (),
        fixed: tuple[Fixed, ...] = (),
    ) -> RingUnits:
        """The units.

        Args:
            digits: of the places along the ring.
            before: per digit the number of the tensor's digit that it cuts; None where it replicates.
            after: likewise at the target.
            kept: likewise of a tile that all devices have besides; () where they have none.
            fixed: what else cuts that tile.

        By hand, 4 on a ring, cut by the outer digit and wanted by the inner:

        >>> units = RingUnits.of(Digits.of_sizes([2, 2]), (0, None), (None, 0))
        >>> units.holds.astype(int).tolist(), units.wants.astype(int).tolist()
        ([[1, 1, 0, 0], [0, 0, 1, 1]], [[1, 0, 1, 0], [0, 1, 0, 1]])
        """
        ends = [before, after, kept] if kept else [before, after]
        known = {number: size for number, size, _ in fixed}
        known |= {
            role: digit.size for roles in ends for role, digit in zip(roles, digits, strict=True) if role is not None
        }
        sizes = tuple([known[number] for number in range(len(known))])
        values = np.unravel_index(np.arange(prod(sizes)), sizes) if sizes else ()
        places = np.arange(digits.size)
        tables = []
        for roles in ends:
            table = np.ones((prod(sizes), digits.size), dtype=np.bool_)
            for role, digit in zip(roles, digits, strict=True):
                if role is not None:
                    table &= values[role][:, None] == digit.value(places)
            tables.append(table)
        for number, _, value in fixed:
            tables[2] &= (values[number] == value)[:, None]
        return cls(sizes, tables[0] | tables[2] if kept else tables[0], tables[1])

    def cut(self) -> float:
        """What the fullest link carries at the least, in units.

        Half of what devices side by side lack and none of them holds: two links lead there.
        """
        size, places = self.holds.shape[1], np.arange(self.holds.shape[1])
        first_holder, first_to_lack = (
            _next(table) - places for table in (self.holds, self.wants & ~self.holds)
        )  # from each place on, itself included
        row, place = np.nonzero(first_to_lack < first_holder)
        begins, ends = (table[row, place] for table in (first_to_lack, first_holder))
        begun, ended = (np.bincount(place * (size + 1) + at, minlength=size * (size + 1)) for at in (begins, ends))
        lacking = (begun - ended).reshape(size, size + 1)  # so many places more than one
        return float(lacking.cumsum(axis=1).max(initial=0)) / 2

    def demand(self) -> tuple[Demand, Positions, Positions]:
        """The demand, of those that something lacks: which units these are, and of which kind in it each is."""
        lacks = self.wants & ~self.holds
        moved = np.flatnonzero(lacks.any(axis=1))
        keys = _keys(self.holds[moved], lacks[moved])
        _, firsts, kinds, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        return Demand(self.holds[moved[firsts]], lacks[moved[firsts]], counts), moved, kinds


def _next(table: Flags) -> Positions:
    """Per row and place the next that is so, from that place on; beyond the end those at the start once more."""
    size = table.shape[1]
    twice = np.where(np.concatenate([table, table], axis=1), np.arange(2 * size), 2 * size)
    return np.asarray(np.minimum.accumulate(twice[:, ::-1], axis=1)[:, ::-1][:, :size])


class KindsAndFlows(NamedTuple):
    """The units of a change along a ring that something lacks, and what goes from neighbour to neighbour."""

    units: RingUnits
    moved: Positions
    """Which units these are."""
    kinds: Positions
    """Of which kind each of them is."""
    flows: Flows
    """Of kinds, that count for all units of one."""

    @classmethod
    @lru_cache(CACHED)  # asked for by those who price a change and by those who make it
    def of(cls, digits: Digits, before: Roles, after: Roles, kept: Roles, fixed: tuple[Fixed, ...]) -> KindsAndFlows:
        """Those of a change, as of `RingUnits.of`; to be asked for by small numbers."""
        units = RingUnits.of(digits, before, after, kept, fixed)
        demand, moved, kinds = units.demand()
        if len(moved):
            return cls(units, moved, kinds, RingMix.of(demand).flows(demand.counts))
        none = list(np.zeros((6, 0), dtype=np.int64))
        return cls(units, moved, kinds, Flows.of(none, demand.counts, digits.size))

    def flows_of_units(self) -> Flows:
        """The same for each unit by itself."""
        flows, counts = self.flows, self.flows.counts
        alike = self.moved[np.argsort(self.kinds, kind="stable")]
        times = counts[flows.unit]
        rows = np.repeat(np.arange(len(times)), times)
        ranks = np.arange(len(rows)) - np.repeat(np.cumsum(times) - times, times)
        units = alike[(np.cumsum(counts) - counts)[flows.unit[rows]] + ranks]
        once = np.ones(len(self.units.holds), dtype=np.int64)
        return Flows.of([units, *(column[rows] for column in flows[1:6])], once, flows.size)
