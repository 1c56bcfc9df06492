"""What a reshard costs, told by one like it that is known already.

The bytes that devices receive do not depend on the order of the dims, nor on how many uncut dims there are, and grow
with the sizes of dims that are cut evenly.
So a reshard is priced as a smaller one: dims that are cut nowhere are one, and a dim is as long as its cuts need.
A program has thousands of reshards of which a few dozen differ in this.

Partial values are combined in parts, by cuts beside those of both ends.
They are priced so where some dim is long enough for every such cut; a dim that neither divides the number of devices
nor is divided by it stays as it is, so that the smaller reshard has the same cuts to choose from.
Values that are partial along one axis and shall be along another are priced by way of whole ones.

By hand, on x = 2, y = 4, `[{"x"}, {}, {}]` to `[{}, {"x"}, {}]` of 16 x 6 x 10 elements is `[{}, {"x"}, {}]` to
`[{}, {}, {"x"}]` of 1 x 2 x 2, 240 times: a device lacks 1 of the 2 elements that it needs, so 240 of 480.

>>> from reshard.dtypes import dtype_named
>>> mesh = Mesh.of(x=2, y=4)
>>> ends = Sharding.of(mesh, "x", None, None), Sharding.of(mesh, None, "x", None)
>>> Prices(None).price(*ends, (16, 6, 10), dtype_named("float32"))
(960, 0.0, 1)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import fsum, gcd, inf, lcm
from typing import NamedTuple

from reshard.axis import Axis, merged, sorted_and_merged
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.operations.projection import Axes, shards
from reshard.planner import plan
from reshard.plans import Plan
from reshard.sharding import DimSharding, Sharding, becomes_unreduced

Cost = tuple[float, float, int]
"""Seconds on the network, or bytes received without one; operations of a device; reshards."""
ROUNDING = 1e-9
"""More than sums of one and the same costs in two orders differ by, as a part of them."""
NOTHING: Cost = (0.0, 0.0, 0)
IMPOSSIBLE: Cost = (inf, inf, 0)


def added(*costs: Cost) -> Cost:
    """The sum of costs, the same in whatever order they are."""
    first, second, third = zip(*costs, strict=True)
    return (fsum(first), fsum(second), sum(third))


def times(cost: Cost, turns: int) -> Cost:
    """The cost of what is done so many times."""
    return cost if turns == 1 or cost[0] == inf else (cost[0] * turns, cost[1] * turns, cost[2] * turns)


class Cut(NamedTuple):
    """A dim that is cut at an end."""

    size: int
    begun: int
    """How many axes cut it at the source."""
    ranks: tuple[tuple[int, int, float], ...]
    """What its axes are, those of the source first, so that dims have an order."""
    axes: tuple[Axes, Axes]


class Small(NamedTuple):
    """A reshard that stands for a larger one."""

    source: Sharding
    target: Sharding
    shape: tuple[int, ...]
    scale: int
    """How many times more elements the larger one has."""


@dataclass
class Prices:
    """Prices of reshards on one network, each looked at once."""

    network: Network | None
    uneven: str = "ceil"
    """How dims are cut that their shards do not divide, where nothing says otherwise."""
    _prices: dict[tuple[Sharding, Sharding, tuple[int, ...], DType], Cost] = field(default_factory=dict)
    _plans: dict[tuple[Sharding, Sharding, tuple[int, ...], DType], Plan | None] = field(default_factory=dict)
    _shardings: dict[tuple[object, ...], Sharding] = field(default_factory=dict)

    def plan(self, source: Sharding, target: Sharding, shape: tuple[int, ...], dtype: DType) -> Plan | None:
        """The plan of a reshard; None where there is none."""
        key = source, target, shape, dtype
        if key not in self._plans:
            try:
                self._plans[key] = plan(source, target, shape, dtype, network=self.network)
            except ReshardError:  # a reduction without meaning for the dtype, say
                self._plans[key] = None
        return self._plans[key]

    def price(self, source: Sharding, target: Sharding, shape: tuple[int, ...], dtype: DType) -> Cost:
        """What a reshard costs."""
        if source is target:
            return NOTHING
        key = source, target, shape, dtype
        found = self._prices.get(key)
        if found is None:
            found = self._prices[key] = self._priced(*key)
        return found

    def _priced(self, source: Sharding, target: Sharding, shape: tuple[int, ...], dtype: DType) -> Cost:
        if source == target:
            return NOTHING
        if source.unreduced and becomes_unreduced(source, target):
            whole = replace(target, unreduced=())
            return added(self.price(source, whole, shape, dtype), self.price(whole, target, shape, dtype))
        small = self._small(source, target, shape) or Small(source, target, shape, 1)
        found = self.plan(small.source, small.target, small.shape, dtype)
        if found is None:
            return IMPOSSIBLE
        cost = found.received_bytes * small.scale if found.seconds is None else found.seconds
        return (cost, 0.0, int(bool(found.steps)))

    def _small(self, source: Sharding, target: Sharding, shape: tuple[int, ...]) -> Small | None:
        """The reshard that stands for another; on a network, where latency does not grow, one of as many elements."""
        mesh = source.mesh
        partial = bool(source.unreduced or target.unreduced)
        if mesh != target.mesh or mesh.is_maximal:
            return None
        sizes, names = mesh.sizes, list(mesh.sizes)
        cut: list[Cut] = []
        free, roomy = 1, not partial
        for before, after, size in zip(source.dims, target.dims, shape, strict=True):
            parts = lcm(shards(before.axes, sizes), shards(after.axes, sizes))
            room = gcd(size // parts, mesh.size)
            if size == 0:
                return None
            if size % parts or (partial and room not in (size // parts, mesh.size)):
                kept = size  # uneven: it stays as it is
            else:
                kept = parts * (room if partial else 1)
                roomy |= room == mesh.size
                if not before.axes and not after.axes:
                    free *= size
                    continue
            free *= size // kept
            ranks = tuple((names.index(a.name), a.start, a.stop) for a in (*before.axes, *after.axes))
            cut.append(Cut(kept, len(before.axes), ranks, (before.axes, after.axes)))
        if not roomy:
            return None
        cut.sort(key=lambda dim: dim[:3])
        rest = free if self.network is not None else gcd(free, mesh.size) if partial else 1
        ends = [
            self.sharding(mesh, [(), *(dim.axes[n] for dim in cut)], end.unreduced, end.reduction, end.uneven)
            for n, end in enumerate((source, target))
        ]
        return Small(ends[0], ends[1], (rest, *(dim.size for dim in cut)), free // rest)

    def sharding(
        self,
        mesh: Mesh,
        dims: Iterable[Axes],
        unreduced: Iterable[Axis] = (),
        reduction: str = "sum",
        uneven: str | None = None,
    ) -> Sharding:
        """A closed sharding; the same object for the same arguments."""
        key = (mesh, tuple(dims), tuple(unreduced), reduction, uneven or self.uneven)
        if key not in self._shardings:
            built = tuple(DimSharding(merged(axes, mesh.sizes)) for axes in key[1])
            self._shardings[key] = Sharding(
                mesh, () if mesh.is_maximal else built, (), sorted_and_merged(key[2], mesh.sizes), reduction, key[4]
            )
        return self._shardings[key]
