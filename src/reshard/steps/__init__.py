"""The steps of which plans are made, and the shortest chains of them.

step.py    the closed list of steps: what each does to a sharding, and what it costs
chains.py  the fewest steps from one sharding to another, where one will not do

Eight names and one machine: every step that communicates is the exchange of `reshard.exchange`, and a name is what
it happens to be, so none of them needs a cost or an engine of its own.

>>> from reshard.mesh import Mesh
>>> from reshard.problem import Reshard
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=2)
>>> for source, target in ((("x",), ()), ((), ("x",))):
...     ends = (Sharding.of(mesh, axes) for axes in (source, target))
...     print(*(step.kind for step in shortest_chain(Reshard.of(*ends, (8,)))))
AllGather
Slice
"""

from __future__ import annotations

from reshard.steps.chains import (
    Chain,
    Route,
    Share,
    chain_through,
    chains_of,
    keeping_nothing,
    reshard_of_chain,
    shortest_chain,
)
from reshard.steps.step import KINDS, UNNAMED, Move, ReshardWork, Step, step_of

__all__ = [
    "KINDS",
    "UNNAMED",
    "Chain",
    "Move",
    "ReshardWork",
    "Route",
    "Share",
    "Step",
    "chain_through",
    "chains_of",
    "keeping_nothing",
    "reshard_of_chain",
    "shortest_chain",
    "step_of",
]
