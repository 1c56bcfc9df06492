"""When the steps of a plan begin and end on the network that it was made for.

By hand, 8 bytes on x=2 to all at a byte a second: each device receives 4.

>>> from reshard.mesh import Mesh
>>> from reshard.network import Level
>>> from reshard.plans.options import Options
>>> from reshard.plans.plan import Plan
>>> from reshard.problem import Reshard
>>> from reshard.sharding import Sharding
>>> from reshard.steps import step_of
>>> mesh, network = Mesh.of(x=2), Network((Level(1, 2, "switch", 1, 0),))
>>> reshard = Reshard.of(Sharding.of(mesh, "x"), Sharding.of(mesh, None), (8,), "int8")
>>> spans(Plan(reshard, (step_of(reshard),), Options(network)))
[[(0.0, 4.0)]]
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from reshard.errors import ReshardError
from reshard.network import Network, overlapped_spans, spans_of_uses, uses_of
from reshard.plans.chrome_trace import chrome_trace, overlapped_trace

if TYPE_CHECKING:
    from reshard.plans.plan import Plan


def spans(plan: Plan) -> list[list[tuple[float, float]]]:
    """Per share and step, when the first part begins it and the last has done it, in seconds; on a network."""
    listed: list[list[tuple[float, float]]] = [[] for _ in plan.shares]
    network, start = plan.options.network, 0.0
    for stretch in plan.stretches:
        if stretch.parts > 1 and network is not None:
            added_by_share = _spans_of_parts(stretch, network)
        else:
            ends = list(accumulate(stretch.step_seconds or (), initial=0.0))
            added_by_share = [list(pairwise(ends))] * len(listed)
        for known, added in zip(listed, added_by_share, strict=True):
            known += [(start + begins, start + ends) for begins, ends in added]
        start = max((known[-1][1] for known in listed if known), default=0.0)
    return listed


def _spans_of_parts(plan: Plan, network: Network) -> list[list[tuple[float, float]]]:
    """The same where all steps are taken part by part.

    Where values are combined and gathered at once a part may be combined in other tiles than the whole.
    """
    if not any(step.kind == "Exchange" and len(step.moves) > 1 for share in plan.shares for step in share.steps):
        return overlapped_spans(plan.shares, network)
    uses = [uses_of(of_share.steps, network) for of_share in plan.plans_by_share]
    return spans_of_uses(uses, [share.parts for share in plan.shares])


def trace(plan: Plan) -> str:
    """As `Plan.to_trace`.

    Raises:
        ReshardError: `bad-argument` where the plan was made without a network.
    """
    if plan.step_seconds is None:
        raise ReshardError("bad-argument", "a trace needs the prices of a plan made for a network")
    if plan.parts == 1:
        return chrome_trace(plan.steps, plan.step_seconds, plan.devices)
    return overlapped_trace(plan.shares, plan.spans)
