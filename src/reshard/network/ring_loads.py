"""What goes along one ring from neighbour to neighbour loads its links with.

A hop takes as long as its fullest link, and the next begins when it is done; but parts of a tensor go one behind the
other, so of many the link that is fullest in all hops together decides.
Every hop has one latency, since both ways go at once.

By hand, a gather of 4 parts on a ring of 4: one whole part goes each way, then half of what is two hops away.

>>> gather = Digits.of_sizes([4]), (0,), (None,)
>>> ring_loads(*gather), least_along(*gather)
(RingLoads(fullest=1.5, hops=(1.0, 0.5)), 1.5)
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from reshard.digits import Digits
from reshard.exchange.ring_flows import CACHED, RingMix, RingUnits

Roles = tuple[int | None, ...]
"""Per digit of the places along a ring, the number of the tensor's digit that it cuts; None where it replicates."""


class RingLoads(NamedTuple):
    """What links carry, in units."""

    fullest: float
    """That of the fullest in all hops together."""
    hops: tuple[float, ...]
    """That of the fullest of each hop."""


@lru_cache(CACHED)
def ring_loads(digits: Digits, before: Roles, after: Roles) -> RingLoads:
    """What a change loads links of a ring with; to be asked for by small numbers (`ring_flows.role_numbers`)."""
    demand = RingUnits.of(digits, before, after).demand()[0]
    if not len(demand.counts):
        return RingLoads(0.0, ())
    carried = RingMix.of(demand).flows(demand.counts).loads()
    return RingLoads(float(carried.sum(axis=0).max()), tuple(carried.max(axis=1).tolist()))


@lru_cache(CACHED)
def least_along(digits: Digits, before: Roles, after: Roles) -> float:
    """What its fullest link carries at the least, and mostly just so, in a fraction of the time."""
    return RingUnits.of(digits, before, after).cut()
