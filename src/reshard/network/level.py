"""A level of a network: a digit of the device number, and the links along it.

    switch         every device has a port of this bandwidth in each direction; any two are one hop apart
    ring           a link to each of two neighbours, the last device next to the first, both directions at once
    one-way-ring   a link to the next device only
    line           a ring that is open: no link between the last device and the first

>>> level = Level(stride=4, size=4, link="ring", bandwidth=45e9, latency_s=1e-6)
>>> level.both_ways, level.hops
(90000000000.0, 2)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from reshard.digits import Digit
from reshard.errors import ReshardError

LINKS = ("switch", "ring", "one-way-ring", "line")
"""Every kind of link."""
CACHED = 1024
"""Parts of levels that are kept."""
TOLD_APART = 16
"""Lines of more devices are busy as their fullest link is, all along."""


@dataclass(frozen=True, slots=True)
class Level:
    """Devices that differ in one digit of their number, and what joins them.

    Rules, in the order checked; each is refused as `bad-network`:
        stride and size are integers, the stride at least 1 and the size at least 2
        link is one of `LINKS`
        bandwidth is finite and above 0, latency_s finite and at least 0
    """

    stride: int
    """How far apart the numbers of neighbours are."""
    size: int
    """The number of devices along it."""
    link: str
    """One of `LINKS`."""
    bandwidth: float
    """Bytes/s in one direction: of a link to a neighbour, or of a device's port to a switch."""
    latency_s: float
    """Seconds per hop, however little is sent: before the bytes through a switch, while they stream along a torus."""

    def __post_init__(self) -> None:
        for name, value, least in (("stride", self.stride, 1), ("size", self.size, 2)):
            if not is_integer(value) or value < least:
                raise ReshardError(
                    "bad-network", f"a level has {name} {value!r}; it must be an integer from {least} on"
                )
        if self.link not in LINKS:
            raise ReshardError("bad-network", f"link {self.link!r} must be one of {', '.join(LINKS)}")
        if not is_number(self.bandwidth) or self.bandwidth <= 0:
            raise ReshardError("bad-network", f"a level has bandwidth {self.bandwidth!r}; it must be above 0 bytes/s")
        if not is_number(self.latency_s) or self.latency_s < 0:
            raise ReshardError("bad-network", f"a level has latency {self.latency_s!r} s; it must be at least 0")

    def __str__(self) -> str:
        return f"{self.link} of {self.size}, {self.bandwidth / 1e9:.4g} GB/s, {self.latency_s * 1e6:.3g} us"

    @property
    def digit(self) -> Digit:
        """The digit of the device number."""
        return Digit(self.stride, self.size)

    @property
    def is_switch(self) -> bool:
        """Whether any two devices are one hop apart."""
        return self.link == "switch"

    @property
    def both_ways(self) -> float:
        """Bytes/s of a link in both directions together: the W of formulas for rings."""
        return self.bandwidth * 2

    @property
    def hops(self) -> int:
        """How many hops apart two devices are at most."""
        return {"switch": 1, "ring": self.size // 2}.get(self.link, self.size - 1)

    @property
    def places(self) -> int:
        """How many of its links are told apart: those of a line by where they are, for its ends carry less; else 1."""
        return self.size - 1 if self.link == "line" and self.size <= TOLD_APART else 1

    def is_closed_for(self, digit: Digit) -> bool:
        """Whether a group that uses this part of the digit reaches around the ring."""
        return digit.stride * digit.size == self.stride * self.size

    def part(self, digit: Digit) -> Level:
        """What a group sees that uses only a part of the digit.

        A switch serves any group at its full bandwidth.
        Along a ring the members of such a group are some links apart, and the groups between them use the same
        links, so each has its share of the bandwidth; a group that does not reach around a two-way ring is a line.

        >>> print(Level(1, 8, "ring", 8e9, 1e-6).part(Digit(2, 4)))
        ring of 4, 4 GB/s, 2 us
        >>> print(Level(1, 8, "ring", 8e9, 1e-6).part(Digit(1, 4)))
        line of 4, 8 GB/s, 1 us
        """
        return _part(self, digit)

    def at_stride_one(self) -> Level:
        """The same between devices whose numbers follow one another."""
        return self if self.stride == 1 else _with(self, stride=1)

    def at_once(self) -> Level:
        """The same without latency."""
        return _with(self, latency_s=0.0) if self.latency_s else self


@lru_cache(CACHED)
def _with(level: Level, **fields: Any) -> Level:
    return replace(level, **fields)


@lru_cache(CACHED)
def _part(level: Level, digit: Digit) -> Level:
    if digit == level.digit:
        return level
    if level.is_switch:
        return replace(level, stride=digit.stride, size=digit.size)
    apart = digit.stride // level.stride
    return Level(
        digit.stride,
        digit.size,
        level.link if level.is_closed_for(digit) else "line",
        level.bandwidth / apart,
        level.latency_s * apart,
    )


def is_integer(value: Any) -> bool:
    """Whether it is an integer, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a finite number, and no truth value."""
    return not isinstance(value, bool) and isinstance(value, int | float | np.number) and bool(np.isfinite(value))
