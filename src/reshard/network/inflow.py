"""How fast data come into groups of devices of a network: what bounds the time of any reshard from below.

The devices that agree in some digits of their numbers are a group.
What a group lacks comes in through the links that lead into it, however it goes on from there; so the bytes that it
lacks over the bandwidth of those links are a time that no reshard goes below.
Groups that agree in the digits of all levels are single devices; in those of the levels between hosts, whole hosts;
in the major part of a line, its halves.
All groups of a kind lack as much, so the one with the fewest links counts: on a line that at its end.

By hand, on a line of 4 devices with links of 45e9 bytes/s: one link leads into the first device, and one into the
first two together, half as much for each.

>>> line = Network.preset("tpu-v5e-1x4")
>>> [(group.digits, group.bandwidth) for group in groups_of(line, Mesh.of(x=4))]
[(Digits([Digit(stride=1, size=4)]), 45000000000.0), (Digits([Digit(stride=2, size=2)]), 22500000000.0)]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.digits import Digit, Digits
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.network.level import Level
from reshard.network.traffic import runs

Counted = Mapping[Level, int]
"""Levels in whose digit the devices of a group agree, each with the size of the major part in which they do."""


class DeviceGroup(NamedTuple):
    """Devices that agree in some digits."""

    digits: Digits
    """Of the position."""
    bandwidth: float
    """Bytes/s that come in at the most, per device of the group."""
    latency_s: float
    """Until anything is in."""
    is_switched: bool
    """Whether bytes follow the latency; along a torus they fill it."""

    def seconds(self, received: NDArray[np.float64], launch_s: float) -> NDArray[np.float64]:
        """What it takes at the least until so many bytes, per device of the group, are in; nothing for none."""
        taken = received / self.bandwidth
        taken = taken + self.latency_s if self.is_switched else np.maximum(taken, self.latency_s)
        return np.where(received > 0, taken + launch_s, 0.0)


@lru_cache(256)
def groups_of(network: Network, mesh: Mesh) -> tuple[DeviceGroup, ...]:
    """The groups of devices of a mesh that are worth looking at; single devices first."""
    if mesh.device_ids is not None:  # any device may be at any place
        into = fastest_into(network)
        latency = min((level.latency_s for level in network.levels), default=0.0)
        return (DeviceGroup(Digits.of_sizes([mesh.size]), into, latency, False),)
    groups = []
    outer: list[Level] = []
    for numbers in runs(network.levels):
        levels = [network.levels[number] for number in numbers]
        sizes = [min(level.size, mesh.size // level.stride) for level in levels]  # of what the first devices use
        run = [replace(level, size=size) for level, size in zip(levels, sizes, strict=True) if size > 1]
        whole = {level: level.size for level in outer}
        groups += [_group({**counted, **whole}) for counted in _kinds(run)]
        outer += run
    return tuple(sorted(groups, key=lambda group: -group.digits.size))


def fastest_into(network: Network) -> float:
    """Bytes/s that come into any device at the most: two links of each ring and line, a port of each switch."""
    return sum(level.bandwidth if level.is_switch else level.both_ways for level in network.levels)


def _kinds(run: Sequence[Level]) -> Iterator[Counted]:
    """The parts of levels of one torus, or of one switch, by which groups are told apart."""
    for count in range(len(run), 0, -1):
        for chosen in itertools.combinations(run, count):
            yield {level: level.size for level in chosen}
    for level in run:
        half = Digits((level.digit,)).primes()[0].size
        if half < level.size and not level.is_switch:
            yield {level: half}


def _group(counted: Counted) -> DeviceGroup:
    """The group, with what its links bring into it."""
    return DeviceGroup(
        Digits(Digit(level.stride * (level.size // size), size) for level, size in counted.items()),
        sum(
            (level.both_ways if level.link == "ring" else level.bandwidth) * size / level.size
            for level, size in counted.items()
        ),
        min(level.latency_s for level in counted),
        all(level.is_switch for level in counted),
    )
