"""Why a plan moves more than any must: where its network is faster so.

By hand, 8 bytes on x=2 from rows to columns: to gather all takes a device 4 bytes where 2 would do, in 6.6 us to start
and 0.6 us for the one message.

>>> from reshard.mesh import Mesh
>>> from reshard.network import Network
>>> from reshard.plans.options import Options
>>> from reshard.plans.plan import Plan
>>> from reshard.problem import Reshard
>>> from reshard.sharding import Sharding
>>> mesh, options = Mesh.of(x=2), Options(Network.preset("h100-2"))
>>> reshard = Reshard.of(Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x"), (4, 2), "int8")
>>> by_way_of_all = Route((Sharding.of(mesh, None, None),)).chain(reshard)
>>> why_more(Plan(reshard, by_way_of_all, options))
'on h100-2 fewer bytes would take 7.2 us'
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from reshard.errors import ReshardError
from reshard.plans.in_parts import of_the_whole
from reshard.plans.table import seconds_text
from reshard.steps import Route

if TYPE_CHECKING:
    from reshard.plans.plan import Plan


def why_more(plan: Plan) -> str:
    """The reason, for people; empty where the plan moves as little as any, or was not free to."""
    network, limit = plan.options.network, plan.options.memory_limit
    if network is None or plan.options.basis != "any" or plan.received_bytes <= plan.lower_bound_bytes:
        return ""
    with suppress(ReshardError):  # what cannot be made is no way with fewer bytes
        leanest = of_the_whole(plan, plan.reshard, Route().chain(plan.reshard), plan.options)
        fits = limit is None or leanest.peak_bytes <= limit
        if fits and leanest.received_bytes < plan.received_bytes:
            name = network.name or "the network"
            return f"on {name} fewer bytes would take {seconds_text(leanest.seconds or 0.0)}"
    return ""
