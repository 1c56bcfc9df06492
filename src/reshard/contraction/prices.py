"""What things cost: a price, what a reshard takes, and the memo of the planner's answers.

A price is compared component by component: what the goal adds up, if it does, then bytes of the busiest device, bytes
in all, steps, operations.
The busiest device is that of several reshards together: two that keep different devices busy cost less than twice one.

Without a network a reshard is priced by one like it that is known already.
The bytes that devices receive do not depend on the order of the dims, nor on how many uncut dims there are, and grow
with the sizes of dims that are cut evenly.
So a reshard is priced as a smaller one: dims that are cut nowhere are one, and a dim is as long as its cuts need.
A program has thousands of reshards of which a few dozen differ in this.
Partial values are combined in parts, by cuts beside those of both ends.
They are priced so where some dim is long enough for every such cut; a dim that neither divides the number of devices
nor is divided by it stays as it is, so that the smaller reshard has the same cuts to choose from.

By hand, on x = 2, y = 4, `[{"x"}, {}, {}]` to `[{}, {"x"}, {}]` of 16 x 6 x 10 elements is `[{}, {"x"}, {}]` to
`[{}, {}, {"x"}]` of 1 x 2 x 2, 240 times: a device lacks 1 of the 2 elements that it needs, so 240 of 480.

>>> from reshard.dtypes import dtype_named
>>> mesh = Mesh.of(x=2, y=4)
>>> ends = Sharding.of(mesh, "x", None, None), Sharding.of(mesh, None, "x", None)
>>> Prices(Goal(), by_smaller=True).moved(*ends, (16, 6, 10), dtype_named("float32")).price
Price(cost=0.0, received_bytes=960, total_received_bytes=7680, steps=1, flops=0)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import fsum, gcd, inf, lcm, prod
from typing import NamedTuple

import numpy as np

from reshard.axis import Axes, shards
from reshard.contraction.compute_layout import closed_sharding
from reshard.contraction.goal import Goal
from reshard.contraction.tasks import Stage
from reshard.digits import Positions
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.exchange.pieces import some_missing
from reshard.mesh import Mesh
from reshard.network import Network, least_seconds
from reshard.planner import plan
from reshard.planner.evened import evened_shapes
from reshard.planner.likeness import likeness
from reshard.planner.policy import is_of_many
from reshard.plans import Plan
from reshard.problem import Reshard, becomes_unreduced
from reshard.sharding import Sharding
from reshard.tiling import Tiling

ROUNDING = 1e-9
"""More than sums of one and the same seconds in two orders differ by, as a part of them."""
ON_NETWORK = 8
"""How many plans without a network take about as long as one on it."""
WITH_SUMS = 3
"""How many plans that only move data take about as long as one that makes sums, on a network."""
OF_MANY = 4
"""How many plans take about as long as one on many devices, on a network."""


class Ends(NamedTuple):
    """What is to be moved, as a key: a `Reshard` without its checks."""

    source: Sharding
    target: Sharding
    shape: tuple[int, ...]
    dtype: DType


class Price(NamedTuple):
    """What something costs, in the order in which prices are compared."""

    cost: float
    """What the goal adds up: seconds on a network, bytes and weighed operations, or 0 where bytes alone decide."""
    received_bytes: int
    """Of the busiest device."""
    total_received_bytes: int
    steps: int
    flops: int
    """Of the busiest device."""


BY_BYTES = Goal()
NOTHING = Price(0.0, 0, 0, 0, 0)
IMPOSSIBLE = Price(inf, 0, 0, 0, 0)


def added(*prices: Price) -> Price:
    """What things cost one after the other, the same in whatever order they are."""
    costs, received, total, steps, flops = zip(*prices, strict=True)
    return Price(fsum(costs), sum(received), sum(total), sum(steps), sum(flops))


def times(price: Price, trips: int) -> Price:
    """The price of what is done so many times."""
    if trips == 1 or price.cost == inf:
        return price
    cost, received, total, steps, flops = price
    return Price(cost * trips, received * trips, total * trips, steps * trips, flops * trips)


class Tally(NamedTuple):
    """Bytes that devices receive."""

    mesh: Mesh
    received: Positions
    """Per position of the mesh."""


class Moved(NamedTuple):
    """What a reshard takes."""

    price: Price
    tallies: tuple[Tally, ...] = ()
    """What the devices receive, mesh by mesh."""
    share: int = 0
    """Bytes of the busiest device where an all-reduce is counted as if all its devices shared it alike."""


UNMOVED = Moved(NOTHING)
STUCK = Moved(IMPOSSIBLE)


def moved_by(plan: Plan, times_more: int = 1, goal: Goal = BY_BYTES, *, evenly: bool = False) -> Moved:
    """What a plan takes, or one like it of so many times more elements.

    Args:
        plan: it.
        times_more: how many.
        goal: what costs are of.
        evenly: whether an all-reduce costs its share of what all receive, as of many each is combined elsewhere.
    """
    tallies: dict[Mesh, Positions] = {}
    for step in plan.steps:
        if step.moves:
            mesh = step.after.mesh
            tallies[mesh] = tallies.get(mesh, 0) + step.all_received_bytes() * times_more
    received, total = plan.received_bytes * times_more, plan.total_received_bytes * times_more
    share = received_evenly(plan) * times_more
    price = Price(goal.cost(plan.seconds, share if evenly else received), received, total, len(plan.steps), 0)
    return Moved(price, tuple(Tally(mesh, received) for mesh, received in tallies.items()) if total else (), share)


def received_evenly(plan: Plan) -> int:
    """What the busiest device receives, of an all-reduce its share of what all devices do.

    Of fewer elements than devices some device combines each, and receives more than the others; but any may, and of
    several all-reduces each another.
    So a sum of 4 bytes over 8 devices takes 7, and axis by axis, over 2 and then over 4, 4 and 6.
    """
    if len(plan.steps) != 1 or plan.steps[0].kind != "AllReduce":
        return plan.received_bytes
    return -(-plan.total_received_bytes // plan.target.mesh.size)


def busiest(moved: Iterable[tuple[Moved, int]]) -> int:
    """Bytes that the busiest device receives over several reshards, each made so many times, on whatever meshes."""
    moving = [(move, trips) for move, trips in moved if move.tallies and trips]
    if len(moving) < 2:
        return sum(move.price.received_bytes * trips for move, trips in moving)
    tallies = [Tally(tally.mesh, tally.received * trips) for move, trips in moving for tally in move.tallies]
    if len({(tally.mesh.size, tally.mesh.device_ids) for tally in tallies}) == 1:
        return int(np.max(sum(tally.received for tally in tallies)))
    devices = np.unique(np.concatenate([tally.mesh.device_array for tally in tallies]))
    received = np.zeros(len(devices), dtype=np.int64)
    for tally in tallies:
        received[np.searchsorted(devices, tally.mesh.device_array)] += tally.received
    return int(received.max())


def price_of(moved: Sequence[Moved], trips: Sequence[int], flops: int, work: float) -> Price:
    """The price of an operation: its reshards, each made so many times, and what its operations cost."""
    costs = [move.price.cost * count for move, count in zip(moved, trips, strict=True)]
    return Price(
        sum(costs, work),
        busiest(zip(moved, trips, strict=True)),
        sum(move.price.total_received_bytes * count for move, count in zip(moved, trips, strict=True)),
        sum(move.price.steps * count for move, count in zip(moved, trips, strict=True)),
        flops,
    )


def local_flops(stages: Iterable[Stage], parts: Mapping[str, int]) -> int:
    """Operations of a device that has so many indices of every label."""
    return sum(stage.operations * prod(parts[label] for label in stage.labels) for stage in stages)


class Effort:
    """How much one search has asked of the planner, known to others or not.

    It is counted: all who plan the same einsum must come to the same end, which a clock would not give.
    """

    def __init__(self, network: Network | None) -> None:
        self.network = network
        self.spent = 0
        self._most: int | None = None
        self._asked: set[Ends] = set()

    def allow(self, budget: int | None) -> None:
        """From now on so much effort may be made; any where it is None."""
        self._most = None if budget is None else self.spent + budget

    @property
    def is_limited(self) -> bool:
        """Whether a search may have to end before it would."""
        return self._most is not None

    @property
    def is_over(self) -> bool:
        """Whether a search should end with what it has."""
        return self._most is not None and self.spent >= self._most

    def has_asked(self, ends: Ends) -> bool:
        """Whether a reshard was counted."""
        return ends in self._asked

    def ask(self, ends: Ends) -> bool:
        """Count a reshard; whether it is new.

        It counts as many as its tensor has dims, as each may be cut in more ways, times the ways of the network, which
        are more of many devices.
        """
        if ends in self._asked:
            return False
        self._asked.add(ends)
        source, target, shape, _ = ends
        effort = max(len(shape), 1)
        if self.network is not None:
            effort *= ON_NETWORK * (WITH_SUMS if source.unreduced != target.unreduced else 1)
            effort *= OF_MANY if is_of_many(source.mesh) else 1
        self.spent += effort
        return True


class Missing(NamedTuple):
    """Elements that devices do not hold."""

    busiest: int
    """On the device that lacks most."""
    total: int
    """On all devices."""


class Prices:
    """What the planner says of reshards on one network, each asked once.

    Args:
        goal: what is made least.
        by_smaller: whether, without a network, reshards are priced by smaller ones; so where there are many.
        by_larger: whether, on a network of many devices, reshards whose tiles differ in size are priced by the next
            larger ones whose tiles do not, which are planned in a fraction of the time.
        evenly: whether all-reduces cost as `moved_by` says.
    """

    def __init__(self, goal: Goal, *, by_smaller: bool = False, by_larger: bool = False, evenly: bool = False) -> None:
        self.goal, self.evenly = goal, evenly
        self.by_smaller = by_smaller and goal.network is None
        self.by_larger = by_larger and goal.network is not None
        self.refusal: ReshardError | None = None
        """The last one of the planner."""
        self._moved: dict[Ends, Moved] = {}
        self._alike: dict[tuple[Hashable, DType], Ends] = {}
        self._answers: dict[Ends, Plan | ReshardError] = {}
        self._missing: dict[tuple[Sharding, Sharding, tuple[int, ...]], Missing] = {}
        self._combined: dict[tuple[Sharding, Sharding, tuple[int, ...]], int] = {}
        """Elements that arrive at the busiest device at the least, where values are combined."""
        self._tilings: dict[tuple[Sharding, tuple[int, ...]], Tiling] = {}

    def plan(self, source: Sharding, target: Sharding, shape: tuple[int, ...], dtype: DType) -> Plan:
        """The planner's plan.

        Raises:
            ReshardError: of the planner, where it refuses, as for a reduction without meaning for the dtype.
        """
        ends = Ends(source, target, shape, dtype)
        answer = self._answers.get(ends)
        if answer is None:
            try:
                answer = plan(*ends, network=self.goal.network)
            except ReshardError as error:
                self.refusal = answer = error
            self._answers[ends] = answer
        if isinstance(answer, ReshardError):
            raise answer
        return answer

    def moved(self, source: Sharding, target: Sharding, shape: tuple[int, ...], dtype: DType) -> Moved:
        """What a reshard takes."""
        if source is target:
            return UNMOVED
        ends = Ends(source, target, shape, dtype)
        moved = self._moved.get(ends)
        if moved is None:
            moved = self._moved[ends] = UNMOVED if source == target else self._asked(*ends)
        return moved

    def moved_about(self, ends: Ends) -> Moved:
        """The same, or on a network what the first reshard that is alike takes, which may have another plan."""
        moved = self.known(ends)
        if moved is not None or self.goal.network is None:
            return self.moved(*ends)
        key = likeness(ends[:2], ends.shape, ends.dtype.itemsize)
        if key is None:
            return self.moved(*ends)
        first = self._alike.setdefault((key, ends.dtype), ends)
        return self.moved(*first)

    def _asked(self, source: Sharding, target: Sharding, shape: tuple[int, ...], dtype: DType) -> Moved:
        small = smaller(source, target, shape) if self.by_smaller else None
        shape = self._priced_shape(Ends(source, target, shape, dtype))
        try:
            if small is None:
                return moved_by(self.plan(source, target, shape, dtype), goal=self.goal, evenly=self.evenly)
            stands_in = self.plan(small.source, small.target, small.shape, dtype)
            return moved_by(stands_in, small.times_more, self.goal, evenly=self.evenly)
        except ReshardError:
            return STUCK

    def _priced_shape(self, ends: Ends) -> tuple[int, ...]:
        """That of the reshard that is priced in place of one."""
        if not self.by_larger or not is_of_many(ends.source.mesh):
            return ends.shape
        return next(iter(evened_shapes(Reshard.of(*ends))), ends.shape)

    def is_own(self, ends: Ends) -> bool:
        """Whether it is known what a reshard takes, and not from another."""
        return self.known(ends) is not None and (ends.source == ends.target or self._priced_shape(ends) == ends.shape)

    def missing(self, source: Sharding, target: Sharding, shape: tuple[int, ...]) -> Missing:
        """Elements of the target's tiles that lie elsewhere; partial values count as values.

        Planning a reshard on a large mesh takes milliseconds, this microseconds.
        Of a mesh of thousands some devices stand for all: the busiest of these lacks no more than that of all.
        """
        key = source, target, shape
        if key not in self._missing:
            lacking = some_missing(self._tiling(source, shape), self._tiling(target, shape))
            total = int(lacking.sum()) * target.mesh.size // max(len(lacking), 1)
            self._missing[key] = Missing(int(lacking.max(initial=0)), total)
        return self._missing[key]

    def known(self, ends: Ends) -> Moved | None:
        """What a reshard takes, where that was asked already."""
        return UNMOVED if ends.source is ends.target else self._moved.get(ends)

    def least_bytes(self, ends: Ends) -> int:
        """What the busiest device receives at the least: what it lacks.

        Where values of p classes are combined, and R devices want each, that is a tile, and as many transfers as
        R + p - 2 of the tensor make, shared by all devices of both meshes.
        """
        source, target, shape, dtype = ends
        if source is target or target.unreduced:
            return 0
        if not source.unreduced:
            return self.missing(source, target, shape).busiest * dtype.itemsize
        key = source, target, shape
        if key not in self._combined:
            classes, numel = shards(source.unreduced, source.mesh.sizes), prod(shape)
            tile, tiles = prod(target.local_shape(shape)), target.mesh.size
            meshes = (source.mesh, target.mesh)
            devices = tiles if meshes[0] == meshes[1] else len(np.union1d(*(mesh.device_array for mesh in meshes)))
            share = 0
            if tile * prod(shards(dim.axes, target.mesh.sizes) for dim in target.dims) == numel:
                share = (tile * tiles + (classes - 2) * numel) // devices
            self._combined[key] = max(tile, share) if classes > 1 else 0
        return self._combined[key] * dtype.itemsize

    def least_seconds(self, ends: Ends) -> float:
        """What a reshard takes on the network at the least; 0 without one, or where it is not known."""
        if self.goal.network is None or ends.source is ends.target:
            return 0.0
        try:
            return least_seconds(Reshard.of(*ends), self.goal.network)
        except ReshardError:
            return 0.0

    def _tiling(self, sharding: Sharding, shape: tuple[int, ...]) -> Tiling:
        key = (sharding, shape)
        if key not in self._tilings:
            self._tilings[key] = Tiling.of(sharding, shape)
        return self._tilings[key]


class Small(NamedTuple):
    """A reshard that stands for a larger one."""

    source: Sharding
    target: Sharding
    shape: tuple[int, ...]
    times_more: int
    """Elements that the larger one has for each of this one."""


class CutDim(NamedTuple):
    """A dim that is cut at an end."""

    size: int
    begun: int
    """How many axes cut it at the source."""
    ranks: tuple[tuple[int, int, float], ...]
    """What its axes are, those of the source first, so that dims have an order."""
    axes: tuple[Axes, Axes]


def smaller(source: Sharding, target: Sharding, shape: tuple[int, ...]) -> Small | None:
    """The reshard that stands for another without a network; None where there is none."""
    mesh = source.mesh
    is_partial = bool(source.unreduced or target.unreduced)
    if source.is_woven or target.is_woven:  # whose windows and deals are of this size
        return None
    if mesh != target.mesh or mesh.is_maximal or (source.unreduced and becomes_unreduced(source, target)):
        return None
    sizes, names = mesh.sizes, list(mesh.sizes)
    cut: list[CutDim] = []
    free, is_roomy = 1, not is_partial
    for before, after, size in zip(source.dims, target.dims, shape, strict=True):
        parts = lcm(shards(before.axes, sizes), shards(after.axes, sizes))
        room = gcd(size // parts, mesh.size)
        if size == 0:
            return None
        if size % parts or (is_partial and room not in (size // parts, mesh.size)):
            length = size  # uneven: it stays as it is
        else:
            length = parts * (room if is_partial else 1)
            is_roomy |= room == mesh.size
            if not before.axes and not after.axes:
                free *= size
                continue
        free *= size // length
        ranks = tuple((names.index(a.name), a.start, a.stop) for a in (*before.axes, *after.axes))
        cut.append(CutDim(length, len(before.axes), ranks, (before.axes, after.axes)))
    if not is_roomy:
        return None
    cut.sort(key=lambda dim: dim[:3])
    rest = gcd(free, mesh.size) if is_partial else 1
    ends = [
        closed_sharding(mesh, ((), *(dim.axes[n] for dim in cut)), end.unreduced, end.reduction, end.uneven)
        for n, end in enumerate((source, target))
    ]
    return Small(ends[0], ends[1], (rest, *(dim.size for dim in cut)), free // rest)
