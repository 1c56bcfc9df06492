"""Plan a reshard: candidates, and a policy that chooses among them.

    planning.py         `plan`, and `alternatives` of a plan
    soonest.py          the plan that takes the least time on a network
    candidates.py       ways that lead from source to target
    route_prices.py     what a way takes on a network before it is a chain of steps
    step_prices.py      what one step takes, from what digits do before and after it
    rough_prices.py     what one step takes about and at the least, told before it is made
    level_ways.py       ways that change what one level of a network does at a time
    level_moves.py      what such a change asks of its level
    held_by_hosts.py    what hosts hold, as axes between them cut it
    by_hosts.py         middles on a mesh of hosts, where axes do not nest in these
    spread.py           middles in which all devices of a host share what crosses between hosts
    fewer_messages.py   ways of fewer messages, where latencies decide
    besides.py          steps beside the tiles that devices have from before
    joined.py           two plans as one, by way of an end that is cut further
    middles.py          middles that the ends have in part, by a rough price
    to_few_hosts.py     middles from which devices send to few hosts, each much at once
    better_legs.py      a plan whose parts are planned anew
    number_of_parts.py  in how many parts the steps of a plan overlap best
    policy.py           which is best: fewest bytes, then steps, then rounds; or the least time on a network
    memory_limit.py     a limit on what a device holds at once

**Why not one search.** Without a network the exchange of `reshard.exchange` is optimal as it stands: one step
receives exactly the bound, so there is nothing to search.
Where that does not hold, with unreduced values and on networks, the ways that do better are few and of a kind, and
each is written down as a candidate; planning stays below a millisecond.
A compiler that has no free exchange asks for a basis: that is a search, and a room of its own (`collectives`).

By hand, 2048 x 2048 float32 on 256 devices, each with 64 KiB in the target, of which it holds nothing:

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(D=2, Y=8, X=4, T=4)
>>> source = Sharding.of(mesh, "D", ("X", "Y"))
>>> target = Sharding.of(mesh, None, ("D", "Y", "X", "T"))
>>> plan(source, target, (2048, 2048), "float32").received_bytes
65536
"""

from __future__ import annotations

from reshard.planner.planning import alternatives, cache_clear, plan
from reshard.planner.soonest import CACHED_PLANS
from reshard.plans import BASES

__all__ = ["BASES", "CACHED_PLANS", "alternatives", "cache_clear", "plan"]
