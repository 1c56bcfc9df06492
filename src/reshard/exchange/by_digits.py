"""An exchange in closed form: as many permutations of the devices as there are values to gather.

Fix a receiver with digits c, in the refinement of source and target.
For every digit δ of its *sender*, by what δ does in the source:

    cuts a dim, where the target cuts the same by δ'    the sender has c at δ'     determined
    cuts a dim that is local there in the target        all its values are needed  gathered
    is unreduced, where the target is not               all its values are needed  gathered
    replicates                                          any value will do          free

Draw an arrow from the receiver digit δ' to the sender digit δ that it determines.
A digit has at most one arrow in and one out, and its two ends have one size, so arrows form chains and cycles.
A chain starts at a sender digit that nothing determines, free or gathered, and ends at a receiver digit that
determines nothing.
*Close it*: let the end determine the start.
Now each sender digit is determined by a receiver digit of its own size and each receiver digit is used once, so
receiver -> sender is a permutation of the positions, and adding r to the gathered digits gives one permutation
for each of the k values of r, k being the product of their sizes.

**Proof that nothing is moved in vain.** In round r a receiver gets the part of its tile whose gathered digits
are those of the sender, so after k rounds it has each element of its tile once (once per class of unreduced
values).
Let a device hold an element of its own target tile.
Then all digits of that element agree with the device's, in the source and in the target: along a closed chain
every arrow joins equal values, so the start has the value of the end, and round 0 sends the device to itself.
What it holds it therefore takes from itself, all in round 0; what it receives is exactly what it lacks.
In every round each device sends to one: with even dims a device sends as much as it receives.
A digit of a dim that no device has, on either side, changes none of this: a round moves a box for each of its values.

*Near senders.* A free digit may keep the receiver's own value in place of closing its chain: the proof holds as
it stands, since any value of a free digit will do.
Then the receiver digit at the end of the chain determines nothing, and one sender serves all its values, while
others send nothing; worth it where the digit crosses a slow link.

By hand, x=2, y=4, 8 x 8, `[{"y"}, {}] -> [{"x"}, {"y"}]`: y splits into y0, y1; the source cuts dim 0 by y0, y1,
the target cuts dim 0 by x and dim 1 by y0, y1.
The sender's y0 is the receiver's x (determined), y1 is gathered (k = 2), x is free.
The one arrow x -> y0 is a chain from x to y0; closed, the sender's x is the receiver's y0.
Device (x=1, y0=0, y1=1) takes from (0, 1, 1) in round 0 and from (0, 1, 0) in round 1, half a tile each.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=2, y=4)
>>> source, target = Sharding.of(mesh, "y", None), Sharding.of(mesh, "x", "y")
>>> exchange = by_digits(Tiling.of(source, (8, 8)), Tiling.of(target, (8, 8)))
>>> for piece in exchange.incoming(5):
...     print(piece.round, piece.sender, piece.box)
0 3 [6, 8) x [2, 4)
1 2 [4, 6) x [2, 4)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from reshard.box import Box
from reshard.digits import Digits, P, Positions
from reshard.errors import ReshardError
from reshard.exchange.pieces import Exchange, Piece, PieceTable
from reshard.mesh import ENUMERABLE, Mesh
from reshard.refinement import Cuts, Refinement, Role, Unreduced, refine
from reshard.tiling import Tiling


@dataclass(frozen=True)
class DigitExchange(Exchange):
    """The k permutations, from the digits alone."""

    source: Tiling
    target: Tiling
    receivers: Mesh
    """Names the devices of the receiving positions: the source's mesh, or a disjoint target's."""
    common: Refinement
    determined_by: tuple[int, ...]
    """Per digit of the sender, the digit of the receiver that determines it once chains are closed."""
    gathered: tuple[int, ...]
    """The digits of the sender to which the round is added, slowest first."""

    @cached_property
    def spread(self) -> tuple[int, ...]:
        """The digits of the receiver that determine nothing: a sender serves all their values, one after the other.

        There are none unless free digits were kept near.
        """
        return tuple(sorted(set(range(len(self.common.digits))) - set(self.determined_by)))

    @cached_property
    def spread_values(self) -> int:
        """The number of receivers that one sender serves in place of one."""
        return self._at(self.spread).size

    def _at(self, numbers: Iterable[int]) -> Digits:
        return Digits([self.common.digits[i] for i in numbers])

    @property
    def gathered_values(self) -> int:
        """k, the number of permutations."""
        return prod([self.common.digits[i].size for i in self.gathered])

    @property
    def loose_values(self) -> int:
        """The number of boxes that a round moves from one device to another: one but for digits no device has."""
        return prod(self.common.loose_sizes)

    @cached_property
    def combined(self) -> Digits:
        """The gathered digits along which values are unreduced: what arrives is combined, not placed."""
        return self._at(i for i in self.gathered if isinstance(self.common.source_roles[i], Unreduced))

    @cached_property
    def stays(self) -> bool:
        """Whether round 0 sends every device to itself."""
        return self.determined_by == tuple(range(len(self.determined_by))) and self.shares_devices

    @property
    def is_in_groups(self) -> bool:
        """Whether the devices that differ in the gathered digits alone send each other one piece each, of one size."""
        return (
            self.stays
            and self.gathered_values > 1
            and self.is_even
            and self.loose_values == 1
            and self.source.same_order_as(self.target)
        )

    @cached_property
    def one_way(self) -> DigitExchange:
        """The same by devices that receive nothing, where two digits of two values change places; else itself.

        In a permutation whoever receives from another sends too, while those whose digits agree keep what they have and
        rest. They hold what the device beside them lacks, for one of the digits is free: by hand, 2 x 2 devices, rows
        cut by `x` that are to be cut by `y`. Device (0, 1) lacks what (1, 0) and (1, 1) hold, and the latter rests.

        >>> from reshard.mesh import Mesh
        >>> from reshard.sharding import Sharding
        >>> mesh = Mesh.of(x=2, y=2)
        >>> ends = [Tiling.of(Sharding.of(mesh, axis), (4,)) for axis in ("x", "y")]
        >>> swapped = by_digits(*ends)
        >>> [[piece.sender for piece in way.incoming(1)] for way in (swapped, swapped.one_way)]
        [[2], [3]]
        """
        changing = [cycle for cycle in cycles(self.determined_by) if len(cycle) > 1]
        if self.gathered or self.spread or not self.shares_devices or [len(cycle) for cycle in changing] != [2]:
            return self
        free = [i for i in changing[0] if self.common.source_roles[i] is None and self.common.digits[i].size == 2]
        if len(free) != 1:
            return self
        determined_by = tuple(i if i == free[0] else j for i, j in enumerate(self.determined_by))
        return replace(self, determined_by=determined_by)

    @property
    def shares_devices(self) -> bool:
        """Whether the target is on the devices of the source."""
        return self.receivers is self.source.mesh or self.receivers == self.source.mesh

    @cached_property
    def filled(self) -> float:
        """Which part of all blocks the tensor fills: 1 where dims are even."""
        return self.common.filled(self.target.shape)

    @property
    def rounds(self) -> int:
        return self.gathered_values * self.spread_values - self.stays

    @property
    def piece_shape(self) -> tuple[int, ...]:
        return tuple(map(min, self.common.lengths, self.target.shape))

    def all_received(self) -> Positions:
        piece = self.largest_piece * self.loose_values if self.is_even else None
        if piece is None:
            needed = self.target.all_elements * self.combined.size
        else:
            needed = np.full_like(self.target.mesh.positions, piece * self.gathered_values)
        if not self.shares_devices:
            return needed
        if piece is not None and self.stays:
            return needed - piece
        places = self.source.mesh.positions_of(self.target.mesh.device_array)
        keeps = places >= 0  # its own in round 0, in which nothing is turned
        for digit, by in zip(self.common.digits, self.determined_by, strict=True):
            if self.common.digits[by] != digit:
                keeps &= self.common.digits[by].value(places) == digit.value(places)
        return needed - np.where(keeps, self.all_held if piece is None else piece, 0)

    def traffic(self) -> tuple[Positions, Positions, Positions]:
        positions = self.receivers.positions
        self._check_count(self.gathered_values * len(positions))
        senders, starts = self._sources(positions, np.arange(self.gathered_values)[:, None])
        elements = np.ones_like(senders)
        kept = np.ones_like(senders) if self.common.kept_roles else np.zeros_like(senders)
        for dim, (start, offsets, length, size) in enumerate(
            zip(starts, self.loose_offsets, self.common.lengths, self.target.shape, strict=True)
        ):
            along, kept_along = np.zeros_like(elements), np.zeros_like(elements)
            for offset in offsets:
                filled = np.clip(size - start - offset, 0, length)
                along = along + filled
                if self.common.kept_roles:
                    kept_along = kept_along + np.where(self._keeps(positions, dim, start + offset), filled, 0)
            elements, kept = elements * along, kept * kept_along
        elements = elements - kept
        travels = elements > 0
        if self.shares_devices:
            travels &= senders != positions
        receivers = np.broadcast_to(self.receivers.device_array, senders.shape)
        return self.source.mesh.device_array[senders[travels]], receivers[travels], elements[travels]

    def _keeps(self, positions: Positions, dim: int, starts: Positions) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether what begins at these elements of a dim is in tiles that receivers kept, as far as that dim says."""
        keeps = np.ones(starts.shape, dtype=np.bool_)
        for digit, role in zip(self.common.digits, self.common.kept_roles, strict=True):
            if isinstance(role, Cuts) and role.dim == dim:
                keeps = keeps & (starts // role.stride % digit.size == digit.value(positions))
        return keeps

    def table(self) -> PieceTable:
        positions = self.receivers.positions
        self._check_count(self.gathered_values * len(positions) * self.loose_values)
        senders, starts = self._sources(positions, np.arange(self.gathered_values)[:, None])
        grid = (self.gathered_values, len(positions), self.loose_values)
        # where the target is on other devices, or in another order, its own positions are the receivers
        receivers = self.target.mesh.positions_of(self.receivers.device_array)[:, None]
        ends = np.zeros((2, len(self.target.shape), *grid), dtype=np.int64)
        offsets = np.array(list(product(*self.loose_offsets)), dtype=np.int64).T
        for dim, (start, length, size) in enumerate(zip(starts, self.common.lengths, self.target.shape, strict=True)):
            low = np.asarray(start)[..., None] + offsets[dim]
            ends[0, dim], ends[1, dim] = np.minimum(low, size), np.minimum(low + length, size)
        is_filled = (ends[0] < ends[1]).all(axis=0)
        place = self._at(self.spread).index_of(positions)[:, None]
        rounds = np.arange(self.gathered_values)[:, None, None] * self.spread_values + place
        columns = np.asarray(senders)[..., None], receivers, rounds
        sender, receiver, round_ = (np.broadcast_to(column, grid)[is_filled] for column in columns)
        return PieceTable(sender, receiver, ends[0][:, is_filled], ends[1][:, is_filled], round_)

    @property
    def received(self) -> int:
        if not self.is_even:
            return super().received
        return self.largest_piece * self.loose_values * (self.gathered_values - self.stays)

    @property
    def is_without_messages(self) -> bool:
        return not self.total_received if self.is_even else super().is_without_messages

    @property
    def total_received(self) -> int:
        if not self.is_even:
            return super().total_received
        # Round 0 sends a device to itself where digits that determine one another agree.
        fixed_points = self._at(cycle[0] for cycle in cycles(self.determined_by)).size if self.shares_devices else 0
        pieces = self.gathered_values * self.source.mesh.size - fixed_points
        return self.largest_piece * self.loose_values * pieces

    @property
    def missing(self) -> int:
        """In closed form where dims are even: all of the tile, if some digit of it lies elsewhere on some device.

        Chains that are closed join a digit to itself where nothing else does, so then round 0 stays.
        """
        if not self.is_even:
            return super().missing
        return self.target.largest_tile - (self.largest_piece * self.loose_values if self.stays else 0)

    @cached_property
    def _round_steps(self) -> dict[int, int]:
        steps, step = {}, 1
        for i in reversed(self.gathered):
            steps[i] = step
            step *= self.common.digits[i].size
        return steps

    def _sources(self, position: P, number: P) -> tuple[P, list[P]]:
        """Who sends to a position in one of the k permutations, and per dim where what it sends begins."""
        sender = 0 * position
        starts = [sender for _ in self.target.shape]
        for i, digit in enumerate(self.common.digits):
            before, after = self.common.source_roles[i], self.common.target_roles[i]
            value = self.common.digits[self.determined_by[i]].value(position)
            if i in self._round_steps:
                value = (value + number // self._round_steps[i]) % digit.size
                if isinstance(before, Cuts):
                    starts[before.dim] = starts[before.dim] + value * before.stride
            if isinstance(after, Cuts):
                starts[after.dim] = starts[after.dim] + digit.value(position) * after.stride
            sender = sender + value * digit.stride
        return sender, starts

    @cached_property
    def loose_offsets(self) -> list[list[int]]:
        """Per dim, where the boxes of one round begin, counted from the first."""
        offsets = [[0] for _ in self.target.shape]
        for (dim, stride), size in zip(self.common.loose, self.common.loose_sizes, strict=True):
            offsets[dim] = [first + value * stride for first in offsets[dim] for value in range(size)]
        return offsets

    def _boxes(self, corner: tuple[int, ...]) -> list[Box]:
        """What goes from one position to another in one round, from where it begins per dim."""
        lengths, shape = self.common.lengths, self.target.shape
        corners = [corner]
        if self.loose_values > 1:
            each_dim = zip(corner, self.loose_offsets, strict=True)
            corners = list(product(*([start + offset for offset in offsets] for start, offsets in each_dim)))
        boxes = []
        for starts in corners:
            sides = zip(starts, lengths, shape, strict=True)
            intervals = [(start, min(start + length, size)) for start, length, size in sides if start < size]
            if len(intervals) == len(shape):
                boxes.append(Box(intervals))
        return boxes

    def incoming(self, device: int) -> list[Piece]:
        if device not in self.receivers:
            self._check_device(device)
            return []
        self._check_count(self.gathered_values * self.loose_values)
        position, devices, digits = self.receivers.position_of(device), self.source.mesh.devices, self.common.digits
        first, starts = self._sources(position, 0)
        senders = [Partner(first, tuple(starts))]
        for i in self.gathered:
            value, size = digits[self.determined_by[i]].value(position), digits[i].size
            steps = [(value + turn) % size - value for turn in range(size)]
            senders = _moved(senders, steps, digits[i].stride, self.common.source_roles[i])
        place = self._at(self.spread).index_of(position)
        numbered = list(enumerate(senders))
        if self.combined:  # in one order on all devices, so that replicas are equal bit for bit
            numbered.sort(key=lambda pair: self.combined.index_of(pair[1].position))
        return [
            Piece(devices[sender], device, box, number * self.spread_values + place)
            for number, (sender, corner) in numbered
            for box in self._boxes(corner)
        ]

    def outgoing(self, device: int) -> list[Piece]:
        if device not in self.source.mesh:
            self._check_device(device)
            return []
        self._check_count(self.gathered_values * self.loose_values)
        position, devices, digits = self.source.mesh.position_of(device), self.receivers.devices, self.common.digits
        values = {j: digit.value(position) for digit, j in zip(digits, self.determined_by, strict=True)}
        first = sum(value * digits[j].stride for j, value in values.items())
        sender, starts = self._sources(first, 0)
        if sender != position:  # two near senders' digits want different values of one of the receiver's
            return []
        receivers = [Partner(first, tuple(starts))]
        for i in self.gathered:
            j, size = self.determined_by[i], digits[i].size
            steps = [(values[j] - turn) % size - values[j] for turn in range(size)]
            receivers = _moved(receivers, steps, digits[j].stride, self.common.target_roles[j])
        for j in self.spread:
            receivers = _moved(receivers, range(digits[j].size), digits[j].stride, self.common.target_roles[j])
        return [
            Piece(device, devices[receiver], box, turn)
            for turn, (receiver, corner) in enumerate(receivers)
            for box in self._boxes(corner)
        ]

    def _check_count(self, count: int) -> None:
        if count > ENUMERABLE:
            raise ReshardError("too-large", f"{count} pieces are too many to list one by one")


class Partner(NamedTuple):
    """Who sends to a device, or receives from it, in one round."""

    position: int
    corner: tuple[int, ...]
    """Where what goes between them begins, per dim."""


def _moved(partners: list[Partner], steps: Iterable[int], stride: int, role: Role) -> list[Partner]:
    """Each partner with a digit of its position moved by every step, and its corner where the digit cuts a dim."""
    if not isinstance(role, Cuts):
        return [Partner(position + step * stride, corner) for position, corner in partners for step in steps]
    dim, cut = role.dim, role.stride
    return [
        Partner(position + step * stride, (*corner[:dim], corner[dim] + step * cut, *corner[dim + 1 :]))
        for position, corner in partners
        for step in steps
    ]


def senders_by_round(
    digits: Digits, determined_by: tuple[int, ...], gathered: tuple[int, ...], positions: Positions
) -> Positions:
    """The positions that some positions receive from: one row per round, one column per receiver.

    Args:
        digits: of the positions, major to minor.
        determined_by: per digit of the sender the digit of the receiver that determines it.
        gathered: the digits of the sender to which the round is added, slowest first.
        positions: the receivers.

    By hand, on x=2, y=4, gathering y from where x is the receiver's own:

    >>> senders_by_round(Digits.of_sizes([2, 4]), (0, 1), (1,), np.array([0, 5]))
    array([[0, 5],
           [1, 6],
           [2, 7],
           [3, 4]])
    """
    senders: Positions = np.zeros((1, len(positions)), dtype=np.int64)
    for i in gathered:
        rounds = np.arange(digits[i].size, dtype=np.int64)[:, None]
        rotated = (digits[determined_by[i]].value(positions) + rounds) % digits[i].size
        senders = (senders[:, None] + rotated * digits[i].stride).reshape(-1, len(positions))
    for i, j in enumerate(determined_by):
        if i not in gathered:
            senders += digits[j].value(positions) * digits[i].stride
    return senders


Cycle = list[int]
"""Digits of which each determines the next, and the last the first; with near senders any that determine each other."""


def cycles(determined_by: tuple[int, ...]) -> list[Cycle]:
    """The cycles of a permutation; of any other map the digits that arrows join, whichever way they point.

    >>> cycles((2, 1, 0)), cycles((1, 1, 2))
    ([[0, 2], [1]], [[0, 1], [2]])
    """
    name = list(range(len(determined_by)))
    for i, j in enumerate(determined_by):
        name = [name[i] if group == name[j] else group for group in name]
    members: dict[int, Cycle] = {}
    for i, group in enumerate(name):
        members.setdefault(group, []).append(i)
    return list(members.values())


def by_digits(source: Tiling, target: Tiling, near: int = 0, kept: Tiling | None = None) -> DigitExchange | None:
    """The exchange in closed form; None where source and target have no refinement.

    Args:
        source: where the tiles are.
        target: where they go.
        near: where given, a stride of the position: free digits from this stride up keep the receiver's own
            value, so that a replica on the receiver's side sends, even if it then sends more than others do.
        kept: tiles that receivers have besides, which leave their elements out of the traffic.
    """
    layout, receivers = target.layout, source.mesh
    if source.mesh.size != target.mesh.size:
        return None
    if source.mesh.device_ids != target.mesh.device_ids:
        order = target.mesh.order_in(source.mesh)
        transposed = None if order is None else layout.transposed(order)
        if transposed is not None:
            layout = transposed
        elif (source.mesh.positions_of(target.mesh.device_array) < 0).all():
            receivers = target.mesh
        else:
            return None
    common = refine(source.layout, layout, source.shape, [near] if near else [], None if kept is None else kept.layout)
    if common is None:
        return None
    if kept is not None:
        common = common.with_kept_loose()
    determined_by, gathered = close_chains(common.digits, common.source_roles, common.target_roles, near)
    return DigitExchange(source, target, receivers, common, determined_by, gathered)


def close_chains(
    digits: Digits, source_roles: Sequence[Hashable], target_roles: Sequence[Hashable], near: int = 0
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Per sender digit the receiver digit that determines it, and the sender digits that are gathered.

    Args:
        digits: of the positions.
        source_roles: what each does in the source; None where it replicates.
        target_roles: what each does in the target.
        near: that of `by_digits`.

    >>> close_chains(Digits.of_sizes([2, 2]), (Cuts(0, 4), None), (None, Cuts(0, 4)))
    ((1, 0), ())
    """
    homes: dict[Hashable, int] = {role: home for home, role in enumerate(target_roles) if role is not None}
    determined_by = [homes.get(role, -1) for role in source_roles]
    arrows = {home: i for i, home in enumerate(determined_by) if home >= 0}
    gathered = []
    for start, role in enumerate(source_roles):
        if determined_by[start] >= 0:
            continue
        if role is not None:
            gathered.append(start)
        end = start
        stays_near = near and role is None and digits[start].stride >= near
        while end in arrows and not stays_near:
            end = arrows[end]
        determined_by[start] = end
    return tuple(determined_by), tuple(gathered)
