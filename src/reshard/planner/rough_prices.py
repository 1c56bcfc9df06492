"""What one step takes about, of a tensor that all cuts divide, and what it takes at the least: told before it is made.

By what digits do (`step_prices`).
There partial values are one more dim, cut by the axes along which they are partial: to combine them is to gather it.

By hand, 16 bytes on a ring of 16 cut by all devices, gathered along the inner 2, then whole: one hop of 1 us, and 8.

>>> from reshard.mesh import Mesh
>>> from reshard.network.level import Level
>>> mesh, network = Mesh.of(a=8, b=2), Network((Level(1, 16, "ring", 1e9, 1e-6),))
>>> cut, pairs, whole = Sharding.of(mesh, ("a", "b")), Sharding.of(mesh, "a"), Sharding.of(mesh, None)
>>> tensor = RoughTensor(Reshard.of(cut, whole, (16,), "int8"), network)
>>> [round(leg.least_seconds() * 1e6) for leg in (tensor.leg(cut, pairs), tensor.leg(cut, whole))]
[1, 8]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf, prod
from typing import NamedTuple

from reshard.digits import Digit
from reshard.dim_sharding import DimSharding
from reshard.errors import ReshardError
from reshard.network import Network
from reshard.planner.candidates import slow_strides
from reshard.planner.route_prices import RoutePrices, timed_routes
from reshard.planner.step_prices import DigitRoles, StepPrices
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Route


class Leg(NamedTuple):
    """One step of a tensor that all cuts divide."""

    prices: StepPrices
    before: DigitRoles
    after: DigitRoles
    strides: Sequence[int]
    """Within which replicas may send, as `Step.near`."""

    def is_about(self, seconds: float) -> bool:
        """Whether few plans take much less than that: two starts, if they take long, or all hops, and bytes.

        Half round a ring at the most. Of collectives on one level the bytes are known with the hops, which so count
        twice: these are seldom to be done sooner.
        """
        network = self.prices.network
        hops_s = hops_seconds(_changed(self.prices, self.before, self.after), network)
        least_s = self.prices.least_seconds(self.before, self.after, 2 if network.launch_s else 1)
        if max(least_s, hops_s) >= seconds:
            return True
        return bool(hops_s) and hops_s + max(self.least_busy(), default=0.0) >= seconds

    def does_nest(self) -> bool:
        """Whether the cuts of both ends nest, so that digits say what is sent."""
        return self.prices.least_busy(self.before, self.after) is not None

    def least_seconds(self) -> float:
        """What it takes about at the least."""
        return about_least_seconds(self.prices, self.before, self.after)

    def least_busy(self) -> tuple[float, ...]:
        """What levels do at the least; endless where digits do not say it."""
        return self.prices.least_busy(self.before, self.after) or (inf,)

    def seconds(self) -> float:
        """What it takes; endless where digits do not say it."""
        uses = [self.prices.use(self.before, self.after, near) for near in self.strides]
        return min([use.seconds for use in uses if use is not None], default=inf)


class RoughTensor:
    """The next larger tensor that all cuts divide, of as many bytes."""

    def __init__(self, reshard: Reshard, network: Network) -> None:
        mesh = reshard.source.mesh
        self.mesh, self.digits, self.network = mesh, mesh.digits.primes(), network
        self.shape = tuple([-(-size // mesh.size) * mesh.size for size in reshard.shape])
        self.itemsize = reshard.dtype.itemsize * prod(reshard.shape) / prod(self.shape)
        self.hosts = slow_strides(network)
        self._of_values: dict[Sharding, Sharding] = {}

    def leg(self, source: Sharding, target: Sharding) -> Leg | None:
        """One step; None where digits do not say what they do at its ends."""
        shape, ends = self.shape, (source, target)
        if source.unreduced:
            shape = (prod([self.mesh.digit_of(axis).size for axis in source.unreduced]), *shape)
            ends = self._with_values(source), self._with_values(target)
        prices = StepPrices.of(self.digits, shape, self.itemsize, self.network)
        before, after = map(prices.roles_of, ends)
        if before is None or after is None:
            return None
        return Leg(prices, before, after, (0, *self.hosts) if source.unused_axes() else (0,))

    def _with_values(self, sharding: Sharding) -> Sharding:
        """With one dim more, of the partial values of which one is made."""
        if sharding not in self._of_values:
            dims = (DimSharding(sharding.unreduced), *sharding.dims)
            self._of_values[sharding] = Sharding(self.mesh, dims)
        return self._of_values[sharding]


def made_seconds(reshard: Reshard, network: Network) -> float:
    """What one step takes as it is made, replicas of a host sending or not; endless where it cannot be made.

    By hand, 6 bytes cut in 3 parts and then in 2, 1 us a message: a device that has nothing of its half gets 2 bytes of
    it from one other and 1 from a second, in 2 us.

    >>> from reshard.mesh import Mesh
    >>> from reshard.network.level import Level
    >>> mesh, network = Mesh.of(a=2, b=3), Network((Level(1, 6, "switch", 1e9, 1e-6),))
    >>> reshard = Reshard.of(Sharding.of(mesh, "b"), Sharding.of(mesh, "a"), (6,), "int8")
    >>> round(made_seconds(reshard, network) * 1e6)
    2
    """
    steps = [Route((), stride) for stride in (0, *slow_strides(network))]
    with suppress(ReshardError):  # what cannot be made is none
        return min([way.seconds for way in timed_routes(RoutePrices.of(reshard, network), steps)])
    return inf


def hops_seconds(digits: Iterable[Digit], network: Network) -> float:
    """What hops take to all places along these digits of the position on rings and lines; half round a ring at most."""
    listed, seconds = list(digits), 0.0
    for level in network.levels:
        if not level.is_switch:
            end = level.stride * level.size
            hops = sum(
                [digit.end - digit.stride for digit in listed if level.stride <= digit.stride < end >= digit.end]
            )
            most = level.size // 2 if level.link == "ring" else level.size - 1
            seconds += min(hops // level.stride, most) * level.latency_s
    return seconds


def about_least_seconds(prices: StepPrices, before: DigitRoles, after: DigitRoles) -> float:
    """What a step takes at the least, but for what replicas nearby save: hops of all that changes, or bytes."""
    changed = _changed(prices, before, after)
    if not changed:  # a slice
        return 0.0
    return max(hops_seconds(changed, prices.network), prices.least_seconds(before, after, 1))


def _changed(prices: StepPrices, before: DigitRoles, after: DigitRoles) -> list[Digit]:
    """The digits of the position that no longer cut what they did."""
    ends = zip(prices.digits, before.roles, after.roles, strict=True)
    return [digit for digit, old, new in ends if old is not None and old != new]
