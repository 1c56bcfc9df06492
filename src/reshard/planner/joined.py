"""Two plans as one: to a sharding on the way, and on from there.

What takes least from end to end is often known only between one end and the other cut further by axes that it does not
use: devices that hold the same then send what differs, and devices that are to hold the same take a part each, which
they gather.
So each leg is planned as any tensor is, and the legs are joined.

By hand, columns by `a` wanted by `b`, whatever `a` does: all four devices have one part each on the way.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(a=2, b=2)
>>> columns, rows = Sharding.of(mesh, None, "a"), Sharding.of(mesh, "b", None)
>>> [middle.text() for middle in finer(columns, rows, (8, 8))]
['[{"b"}, {"a"}]']
"""

from __future__ import annotations

from collections.abc import Sequence

from reshard.planner.besides import beside_source
from reshard.planner.candidates import refined
from reshard.plans import Plan
from reshard.plans.in_parts import taken_whole
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Chain, Route, Share, keeping_nothing


def finer(end: Sharding, other: Sharding, shape: tuple[int, ...]) -> list[Sharding]:
    """An end cut further by all axes that it does not use: as the other end has it, or in even parts, or uneven ones.

    Nothing where there are none, where it is woven, or where values are partial.
    """
    if end.mesh != other.mesh or end.is_woven or other.is_woven or end.unreduced:
        return []
    axes = end.unused_axes()
    ways = ((other, True), (end, True), (other, False))
    cut_further = [refined(end, axes, beside, shape, evenly=evenly) for beside, evenly in ways]
    return [middle for middle in dict.fromkeys(cut_further) if middle is not None and middle not in (end, other)]


def joined(reshard: Reshard, first: Plan, rest: Plan) -> Plan:
    """One plan after the other: of one all shares and parts, of the other the steps of the whole.

    Raises:
        ReshardError: where they do not make one.
    """
    if rest.parts > 1:  # what its parts keep is there once the whole tensor has been led to them
        led = taken_whole(first).steps
        parted, chains = rest, [(*led, *share.steps) for share in rest.shares]
        whole = (len(led) + rest.whole[0], rest.whole[1])
    else:
        ending = _endings(rest)[0]
        parted, chains = first, [(*share.steps, *ending) for share in first.shares]
        chains = chains if first.parts > 1 else [beside_source(steps, first.options.network) for steps in chains]
        whole = (first.whole[0], first.whole[1] + len(ending))
    beside = tuple(Share(steps, share.parts) for steps, share in zip(chains[1:], parted.beside, strict=True))
    whole = whole if parted.parts > 1 else (0, 0)
    return Plan(reshard, chains[0], parted.options, parts=parted.parts, beside=beside, whole=whole)


def going_on(chains: Sequence[Chain], rest: Plan) -> list[Route]:
    """Chains to where a plan begins, each with every share of that plan behind it."""
    network = rest.options.network
    return [Route(steps=beside_source((*chain, *steps), network)) for steps in _endings(rest) for chain in chains]


def _endings(rest: Plan) -> list[Chain]:
    """The steps of all shares of a plan, where it is the end of another."""
    return [tuple(map(keeping_nothing, share.steps)) for share in rest.shares]
