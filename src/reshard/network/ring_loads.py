"""What goes along rings from neighbour to neighbour loads their links with.

A hop takes as long as its fullest link, and the next begins when it is done; but parts of a tensor go one behind the
other, so of many the link that is fullest in all hops together decides.
A hop takes one latency at the least, since both ways go at once.

By hand, a gather of 4 parts on a ring of 4: one whole part goes each way, then half of what is two hops away.

>>> gather = RingRoles(Digits.of_sizes([4]), ("rows",), (None,))
>>> ring_loads(gather), least_along(gather)
(RingLoads(fullest=1.5, hops=(1.0, 0.5)), 1.5)
"""

from __future__ import annotations

from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from reshard.digits import Digits
from reshard.exchange.ring_flows import CACHED, Fixed, KindsAndFlows, RingUnits, Roles
from reshard.exchange.ring_roles import RingRoles
from reshard.exchange.transposed_flows import transposed_flows
from reshard.mix import Floats


class RingLoads(NamedTuple):
    """What links carry, in units."""

    fullest: float
    """That of the fullest in all hops together."""
    hops: tuple[float, ...]
    """That of the fullest of each hop."""

    @classmethod
    def of(cls, carried: Floats) -> RingLoads:
        """Those of what each link carries in each hop, a row per hop."""
        return cls(float(carried.sum(axis=0).max(initial=0.0)), tuple(carried.max(axis=1).tolist()))


def ring_loads(roles: RingRoles) -> RingLoads:
    """What a change loads links of the fullest of its rings with."""
    kinds = [RingLoads.of(KindsAndFlows.of(*roles.numbered(values)).flows.loads()) for values in roles.kinds()]
    hops = zip_longest(*(kind.hops for kind in kinds), fillvalue=0.0)
    return RingLoads(max(kind.fullest for kind in kinds), tuple(map(max, hops)))


def least_along(roles: RingRoles) -> float:
    """What its fullest link carries at the least, and mostly just so, in a fraction of the time."""
    return max(_cut(*roles.numbered(values)) for values in roles.kinds())


@lru_cache(64)
def transposed_loads(size: int) -> RingLoads:
    """What links of two rings of a size carry, in tiles, where their devices change places."""
    return RingLoads.of(transposed_flows(size).loads())


@lru_cache(CACHED)
def _cut(digits: Digits, before: Roles, after: Roles, kept: Roles, fixed: tuple[Fixed, ...]) -> float:
    return RingUnits.of(digits, before, after, kept, fixed).cut()
