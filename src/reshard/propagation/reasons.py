"""Why a value is sharded as it is, in words: per dim the value that its axes were given to, and on what way they came.

A placement is made without them: they are read off the runs of propagation once everything is chosen.
Every run keeps, per dim, from which operation and which neighbour the axes came; followed back from neighbour to
neighbour, that ends at the value of which somebody said it.
What no run has was chosen by its price alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from reshard.propagation.fixpoint import Flow, Net, Origin
from reshard.sharding import Sharding


def reason(net: Net, flows: Sequence[Flow], number: int, sharding: Sharding) -> str:
    """Where the axes of every dim come from, in words."""
    if net.meshes[number].is_maximal:
        return "given"
    reasons = ["unreduced until it is needed whole"] if sharding.unreduced else []
    dims = tuple(dim.axes for dim in sharding.dims)
    whole = [flow for flow in flows if flow.dims[number] == dims]
    for dim, axes in enumerate(dims):
        if axes:
            flow = next((flow for flow in whole or flows if flow.dims[number][dim] == axes), None)
            way = "" if flow is None else " " + _way(net, flow, flow.origins[number][dim][-1])
            reasons.append(f"dim {dim} {{{', '.join(map(str, axes))}}}{way}")
    chosen = "" if len(whole) == len(flows) else "; chosen by price"
    return ("; ".join(reasons) or "nothing reaches it") + chosen


def _way(net: Net, flow: Flow, origin: Origin) -> str:
    """On what way axes came, in words."""
    if origin.operation is None:
        return "given" + (f" at priority {origin.priority}" if origin.priority else "")
    operations = net.graph.operations
    priority = f", priority {origin.priority}" if origin.priority else ""
    root = _root(flow, origin)
    via = operations[origin.operation].result.name
    through = "" if root == origin.giver else f" through {operations[origin.giver].result.name}"
    return f"from {operations[root].result.name}{through} by {via}{priority}"


def _root(flow: Flow, origin: Origin) -> int:
    """The value to which the axes were given."""
    passed: dict[Origin, None] = {}
    while origin not in flow.roots and origin.operation is not None and origin not in passed:
        passed[origin] = None
        names = {axis.name for axis in origin.axes}
        earlier = (each for origins in flow.origins[origin.giver].values() for each in origins)
        before = next((each for each in earlier if names & {axis.name for axis in each.axes}), None)
        if before is None:
            break
        origin = before
    root = flow.roots.get(origin, origin.giver)
    flow.roots.update(dict.fromkeys(passed, root))
    return root
