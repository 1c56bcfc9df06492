"""What one step takes on a network, from what the digits of the devices do before and after.

A sharding is one role per digit, and what a step takes follows from the roles (`network/patterns.py`), so no step is
made; whatever ways pass between the same roles, of any two ends of the tensor, ask but once.

By hand, 4 rows of 4 bytes on 2 x 2 devices, from rows to columns by `x`; one byte/s through every port: two bytes of
each row go to the other device, 2 rows a device.

>>> from reshard.mesh import Mesh
>>> from reshard.network import Level
>>> mesh, network = Mesh.of(x=2, y=2), Network((Level(1, 4, "switch", 1, 0),))
>>> prices = StepPrices(mesh.digits.primes(), (4, 4), 1, network)
>>> rows, columns = (prices.roles_of(Sharding.of(mesh, *dims)) for dims in (("x", None), (None, "x")))
>>> rows.roles, prices.use(rows, columns).seconds
((Cuts(dim=0, stride=2), None), 4.0)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

from reshard.axis import Axis
from reshard.digits import Digit, Digits, nest
from reshard.exchange.by_digits import close_chains
from reshard.exchange.kept import lacked_part
from reshard.exchange.ring_roles import MOST_PLACES, RingRoles, change_places
from reshard.layout import NOWHERE, Tie
from reshard.mesh import Mesh
from reshard.network import Network, Use, busy_along, least_busy, unnamed, use_of_pattern, use_of_rings
from reshard.network.patterns import Pattern, kind_of
from reshard.network.ring_loads import RingLoads, least_along, ring_loads, transposed_loads
from reshard.refinement import Cuts, Role
from reshard.sharding import Sharding
from reshard.tiling import Tiling

SOONER = 1e-9
"""By which part of what a step takes it must take less to have other senders."""


class DigitRoles(NamedTuple):
    """A sharding as what the digits of the devices do."""

    roles: tuple[Role, ...]
    """Per digit."""
    cuts: tuple[frozenset[int], ...]
    """Per dim, the element strides at which its digits begin and end."""
    elements: int
    """Of every tile."""


class DimRoles(NamedTuple):
    """What digits of the devices do in one dim."""

    roles: list[tuple[int, Cuts]]
    """The numbers of those that cut it, and how."""
    cuts: frozenset[int]
    """The element strides at which they begin and end."""
    shards: int
    """Into how many parts they cut it."""


class Sending(NamedTuple):
    """Who sends to whom in a step, and how much."""

    pattern: Pattern
    elements: int
    """What goes from one device to one other in one round; 0 where nothing is sent."""


class AlongRing(NamedTuple):
    """A step along a ring, or along two whose devices change places."""

    rings: tuple[Digit, ...]
    roles: RingRoles | None
    """Of the digits along one."""
    unit_bytes: float
    least_busy: tuple[float, ...]
    """What `Use.busy` says of levels at the least."""

    @property
    def uses_kept(self) -> bool:
        """Whether what devices kept is used."""
        return self.roles is not None and bool(self.roles.kept)

    def carried(self) -> RingLoads:
        """What links carry, in units."""
        return transposed_loads(self.rings[0].size) if self.roles is None else ring_loads(self.roles)


class StepPrices:
    """What steps between even shardings of one tensor take on a network."""

    def __init__(self, digits: Digits, shape: tuple[int, ...], itemsize: float, network: Network) -> None:
        self.digits, self.shape, self.itemsize, self.network = digits, shape, itemsize, network
        self.meshes = (unnamed(Mesh((("devices", digits.size),))),) * 2
        self.nothing = Use.of_nothing(network)
        self._chains = [set[int]() for _ in shape]
        self._parts: dict[Digit, tuple[tuple[int, int, int], ...] | None] = {}
        self._roles: dict[Sharding, DigitRoles | None] = {}
        self._dims: dict[tuple[Mesh, int, tuple[Axis, ...]], DimRoles | None] = {}
        self._sendings: dict[tuple[tuple[Role, ...], tuple[Role, ...], int], Sending | None] = {}
        self._uses: dict[tuple[Sending, float], Use] = {}
        self._rings_of: dict[tuple[Any, ...], AlongRing | None] = {}

    @classmethod
    @lru_cache(16)  # the legs of a plan are of the same tensor
    def of(cls, digits: Digits, shape: tuple[int, ...], itemsize: float, network: Network) -> StepPrices:
        """The prices, kept while they are asked for.

        Args:
            digits: of the position, all of it, as small as they are told apart.
            shape: of the tensor.
            itemsize: bytes of an element.
            network: must reach all devices.
        """
        return cls(digits, shape, itemsize, network)

    def roles_of(self, sharding: Sharding) -> DigitRoles | None:
        """What digits do in a sharding; None where they do not say all."""
        try:
            return self._roles[sharding]
        except KeyError:
            roles = self._roles[sharding] = self._digit_roles(sharding)
            return roles

    def gathered(self, roles: DigitRoles, lengths: Sequence[int]) -> DigitRoles:
        """The roles once every dim is gathered up to blocks of these lengths, at which digits begin."""
        cuts = tuple(
            [frozenset(cut for cut in ends if cut >= length) for ends, length in zip(roles.cuts, lengths, strict=True)]
        )
        kept = [role if isinstance(role, Cuts) and role.stride >= lengths[role.dim] else None for role in roles.roles]
        return DigitRoles(tuple(kept), cuts, prod(lengths))

    def use(
        self,
        before: DigitRoles,
        after: DigitRoles,
        near: int = 0,
        parts: int = 1,
        *,
        along: bool = False,
        keeps: bool = False,
        kept: DigitRoles | None = None,
    ) -> Use | None:
        """What the step takes, of one of so many parts of the tensor; `near` is that of `Step`.

        `along` and `keeps` are those of `Route`, which say when what devices kept from before is used along rings.
        None where the cuts of both ends do not nest, or the stride does not with digits.

        Raises:
            ReshardError: `too-large`.
        """
        sending = self._sending(before, after, near)
        if sending is None:
            return None
        if not sending.elements:
            return self.nothing
        ring = self.ring_of(before, after, near, kept if keeps else None) if along else None
        if ring is not None:
            return self._use_along(ring, parts)
        return self._use_of(sending, parts / self.lacked_part(before, after, kept))

    def lacked_part(self, before: DigitRoles, after: DigitRoles, kept: DigitRoles | None) -> float:
        """Which part of every piece is sent to devices that kept tiles; 1 where digits do not say it."""
        if kept is None or kept.roles == before.roles:
            return 1.0
        cuts = [ends | others for ends, others in zip(after.cuts, kept.cuts, strict=True)]
        if not all(map(self._do_nest, range(len(self.shape)), before.cuts, cuts)):
            return 1.0
        return lacked_part(self.digits, before.roles, after.roles, kept.roles)

    def ring_of(
        self, before: DigitRoles, after: DigitRoles, near: int = 0, kept: DigitRoles | None = None
    ) -> AlongRing | None:
        """The ring along which all changes, if its links carry less from neighbour to neighbour; None without one."""
        ends = (before.roles, after.roles, near, None if kept is None else kept.roles)
        if ends not in self._rings_of:
            self._rings_of[ends] = self._ring_anew(before, after, near, kept)
        return self._rings_of[ends]

    def _ring_anew(self, before: DigitRoles, after: DigitRoles, near: int, kept: DigitRoles | None) -> AlongRing | None:
        plain = None if kept is None else self.ring_of(before, after, near)
        sending = self._sending(before, after, near)
        if sending is None or not sending.elements:
            return None
        along = self._along(before, after, kept) or (self._transposed(before, after) if kept is None else None)
        if along is None:
            return plain
        most = max(self._use_of(sending, 1).busy if plain is None else plain.least_busy)
        return along if max(along.least_busy) < most * (1 - SOONER) else plain

    @cached_property
    def _rings(self) -> list[Digit]:
        """Those of the network along which neighbours hand on, and whose places are digits of the position."""
        rings = [level.digit for level in self.network.levels if level.link == "ring" and level.size > 2]
        return [ring for ring in rings if prod(digit.size for digit in self.digits if digit.lies_in(ring)) == ring.size]

    def _ring_of_change(self, before: DigitRoles, after: DigitRoles) -> Digit | None:
        """The ring along which all changes."""
        changed = [digit for digit, old, new in zip(self.digits, before.roles, after.roles, strict=True) if old != new]
        whole = (ring for ring in self._rings if all(digit.lies_in(ring) for digit in changed))
        return next(whole, None) if changed else None

    def _along(self, before: DigitRoles, after: DigitRoles, kept: DigitRoles | None) -> AlongRing | None:
        """What goes along a ring; None where none is used better, units are too many, or what is kept is of no use."""
        ring, ends = self._ring_of_change(before, after), (after,) if kept is None else (after, kept)
        cuts = [frozenset[int]().union(*(end.cuts[dim] for end in ends)) for dim in range(len(self.shape))]
        if ring is None or not all(map(self._do_nest, range(len(self.shape)), before.cuts, cuts)):
            return None
        roles = RingRoles.of(ring, self.digits, before.roles, after.roles, None if kept is None else kept.roles)
        if roles.places > MOST_PLACES or roles.is_one_collective or (kept is not None and not roles.kept):
            return None
        free = prod([size for role, size in roles.sizes.items() if role not in roles.after])
        unit_bytes = after.elements * self.itemsize / free
        busy = busy_along((ring,), least_along(roles) * unit_bytes, 0, self.network)
        return None if busy is None else AlongRing((ring,), roles, unit_bytes, busy)

    def _transposed(self, before: DigitRoles, after: DigitRoles) -> AlongRing | None:
        """What goes where the devices of two rings change places."""
        for ring, across in combinations(self._rings, 2):
            if change_places(ring, across, self.digits, before.roles, after.roles):
                tile_bytes = float(after.elements * self.itemsize)
                fullest = transposed_loads(ring.size).fullest
                busy = busy_along((ring, across), fullest * tile_bytes, 0, self.network)
                return None if busy is None else AlongRing((ring, across), None, tile_bytes, busy)
        return None

    def _use_along(self, along: AlongRing, parts: int) -> Use:
        use = use_of_rings(along.rings, along.carried(), along.unit_bytes / parts, self.network)
        return self.nothing if use is None else use

    def _use_of(self, sending: Sending, parts: float) -> Use:
        key = sending, parts
        if key not in self._uses:
            sent_bytes = sending.elements * (self.itemsize / parts)
            use = use_of_pattern(sending.pattern, self.meshes, sent_bytes, self.network)
            self._uses[key] = self.nothing if use is None else use
        return self._uses[key]

    def least_busy(self, before: DigitRoles, after: DigitRoles, *, along: bool = False) -> tuple[float, ...] | None:
        """What `Use.busy` of the step says of levels at the least; None as `use`."""
        sending = self._sending(before, after)
        if sending is None:
            return None
        if not sending.elements:
            return self.nothing.busy[:-1]
        direct = least_busy(sending.pattern, self.meshes[0], float(sending.elements * self.itemsize), self.network)
        ring = self.ring_of(before, after) if along else None
        return direct if ring is None else ring.least_busy

    def least_seconds(self, before: DigitRoles, after: DigitRoles, starts: int) -> float:
        """What so many steps that send take together at the least, one after another.

        Each has a start and a latency, and together they bring what a device, or a host, needs and does not hold.

        By hand, of the module's example with 1 s to start and 2 s a message: 2 · (1 + 2) and 4 bytes in 4 s.

        >>> from reshard.mesh import Mesh
        >>> from reshard.network import Level
        >>> mesh, network = Mesh.of(x=2, y=2), Network((Level(1, 4, "switch", 1, 2),), launch_s=1)
        >>> prices = StepPrices(mesh.digits.primes(), (4, 4), 1, network)
        >>> rows, columns = (prices.roles_of(Sharding.of(mesh, *dims)) for dims in (("x", None), (None, "x")))
        >>> prices.least_seconds(rows, columns, 2)
        10.0
        """
        levels = self.network.levels
        least_latency_s = min((level.latency_s for level in levels), default=0.0)
        latency_s, bytes_s = least_latency_s, 0.0
        for number, level in enumerate(levels):
            if number and not level.is_switch:
                continue
            lacked = self._lacked_elements(before, after, level.stride) * self.itemsize
            if lacked:
                rate = sum(outer.bandwidth if outer.is_switch else outer.both_ways for outer in levels[number:])
                bytes_s = max(bytes_s, lacked / (level.stride * rate))
                latency_s = max(latency_s, min(outer.latency_s for outer in levels[number:]))
        latency_s += (starts - 1) * least_latency_s
        of_messages = latency_s + bytes_s if all(level.is_switch for level in levels) else max(latency_s, bytes_s)
        return starts * self.network.launch_s + of_messages

    def _lacked_elements(self, before: DigitRoles, after: DigitRoles, boundary: int) -> float:
        """What devices that differ inside a stride alone need and do not hold, where they hold least of it.

        0 where the cuts of both ends do not nest, so that it is not known.
        """
        if not all(map(self._do_nest, range(len(self.shape)), before.cuts, after.cuts)):
            return 0.0
        outside = [number for number, digit in enumerate(self.digits) if digit.stride >= boundary]
        held, needed = (
            {role: self.digits[number] for number in outside if (role := end.roles[number]) is not None}
            for end in (before, after)
        )
        size = prod(self.shape)
        of_needed = prod([digit.size for digit in needed.values()])
        if any(role in needed and needed[role] != digit for role, digit in held.items()):
            return size / of_needed
        overlap = of_needed * prod([digit.size for role, digit in held.items() if role not in needed])
        return size / of_needed - size / overlap

    def is_one_collective(self, before: DigitRoles, after: DigitRoles) -> bool | None:
        """Whether the step is an AllGather, a Slice or a Permute; None where the cuts of both ends do not nest."""
        sending = self._sending(before, after)
        if sending is None or not after.elements:
            return None
        if sending.pattern.gathered:
            changes = [(old, new) for old, new in zip(before.roles, after.roles, strict=True) if old != new]
            return sending.pattern.stays and all(old is not None and new is None for old, new in changes)
        return sending.pattern.stays or self._shards(before) == self._shards(after)

    def _shards(self, roles: DigitRoles) -> list[int]:
        """Per dim, the number of parts that it is cut into."""
        shards = [1] * len(self.shape)
        for digit, role in zip(self.digits, roles.roles, strict=True):
            if isinstance(role, Cuts):
                shards[role.dim] *= digit.size
        return shards

    def _sending(self, before: DigitRoles, after: DigitRoles, near: int = 0) -> Sending | None:
        ends = (before.roles, after.roles, near)
        if ends not in self._sendings:
            self._sendings[ends] = self._sending_anew(before, after, near)
        return self._sendings[ends]

    def _sending_anew(self, before: DigitRoles, after: DigitRoles, near: int) -> Sending | None:
        if not all(map(self._do_nest, range(len(self.shape)), before.cuts, after.cuts)):
            return None
        if near and any(digit.stride < near < digit.end for digit in self.digits):
            return None
        determined_by, gathered = close_chains(self.digits, before.roles, after.roles, near)
        kinds = tuple([kind_of(before.roles[number], after.roles[number]) for number in gathered])
        pattern = Pattern.of(self.digits, determined_by, gathered, kinds)
        if not gathered and pattern.stays:
            return Sending(pattern, 0)
        return Sending(pattern, after.elements // prod([self.digits[number].size for number in gathered]))

    def _do_nest(self, dim: int, cuts: frozenset[int], others: frozenset[int]) -> bool:
        """Whether all cuts of a dim nest, which most do with all before them."""
        chain = self._chains[dim]
        for ends in (cuts, others):
            if not ends <= chain and nest(chain | ends):
                chain |= ends
        return (cuts <= chain and others <= chain) or nest(cuts | others)

    def _parts_of(self, digit: Digit) -> tuple[tuple[int, int, int], ...] | None:
        """The digits that make up one of another list: their numbers, strides in it and sizes; None where none do."""
        if digit not in self._parts:
            parts, left = [], digit.size
            for number, (stride, size) in enumerate(self.digits):
                ratio, rest = divmod(stride, digit.stride)
                if 0 < ratio < digit.size and not rest and left % size == 0:
                    parts.append((number, ratio, size))
                    left //= size
            self._parts[digit] = tuple(parts) if left == 1 else None
        return self._parts[digit]

    def _digit_roles(self, sharding: Sharding) -> DigitRoles | None:
        mesh, shape = sharding.mesh, self.shape
        if (
            mesh.device_ids is not None
            or mesh.size != self.meshes[0].size
            or sharding.unreduced
            or sharding.has_windows
        ):
            return None
        if mesh.is_maximal:
            return DigitRoles((), (frozenset(),) * len(shape), prod(shape))
        dims = self._dims_by_blocks(sharding) if not sharding.is_woven else self._woven_dims(sharding)
        roles: list[Role] = [None] * len(self.digits)
        cuts: list[frozenset[int]] = []
        shards = 1
        for dim in dims:
            if dim is None:
                return None
            for number, role in dim.roles:
                roles[number] = role
            cuts.append(dim.cuts)
            shards *= dim.shards
        return DigitRoles(tuple(roles), tuple(cuts), prod(shape) // shards)

    def _dims_by_blocks(self, sharding: Sharding) -> Iterator[DimRoles | None]:
        """Per dim what digits do there, where each shard has one block."""
        for number, dim in enumerate(sharding.dims):
            key = sharding.mesh, number, dim.axes
            if key not in self._dims:
                digits = [sharding.mesh.digit_of(axis) for axis in dim.axes]
                self._dims[key] = self._dim_roles(_ties_of_dim(number, self.shape[number], digits))
            yield self._dims[key]

    def _woven_dims(self, sharding: Sharding) -> Iterator[DimRoles | None]:
        """The same where blocks are dealt."""
        ties = sharding.layout.ties(self.shape) if Tiling.of(sharding, self.shape).is_even() else None
        for number in range(len(self.shape)):
            yield self._dim_roles(None if ties is None else [tie for tie in ties if tie.dim == number])

    def _dim_roles(self, ties: Sequence[Tie] | None) -> DimRoles | None:
        """The same of a dim that digits cut so; None where it is not cut evenly, or by other digits."""
        if ties is None:
            return None
        roles, cuts, shards = list[tuple[int, Cuts]](), set[int](), 1
        for dim, digit, element in ties:
            cuts.update((element, element * digit.size))
            if digit.stride == NOWHERE:
                continue
            parts = self._parts_of(digit)
            if parts is None:
                return None
            shards *= digit.size
            for number, ratio, count in parts:
                step = element * ratio
                roles.append((number, Cuts(dim, step)))
                cuts.update((step, step * count))
        return DimRoles(roles, frozenset(cuts), shards)


def _ties_of_dim(dim: int, length: int, digits: Sequence[Digit]) -> list[Tie] | None:
    """At which element strides digits cut a dim; None where they do not cut it evenly."""
    shards = prod([size for _, size in digits])
    if length % shards:
        return None
    ties, stride = list[Tie](), length // shards or 1
    for digit in reversed(digits):
        if digit.size > 1:
            ties.append(Tie(dim, digit, stride))
            stride *= digit.size
    return ties
