"""The engine for PyTorch: DTensors between any placements, in one exchange.

y = reshard.torch.redistribute(x, [Shard(1), Replicate()])     another DTensor, on all ranks
z = reshard.torch.einsum("ij,jk->ik", x, y)                    their product, laid out where that is cheapest
print(reshard.torch.explain(x, [Shard(1), Replicate()]))       what it does, and what torch would do

conversions.py   meshes and placements to ours and back
exchange.py      one rank's part of an exchange, and how it runs
transfer.py      one rank's part of a plan, kept per kind of call
agreement.py     whether all ranks ask for the same
world.py         what is kept for a default process group
redistribute.py  the call itself, its gradient, its asynchronous form
compiled.py      the same inside a graph that torch traces
explanation.py   our plan beside those of torch's planners
planners.py      what torch's planners would do
contraction.py   one rank's part of an einsum, and of its overlap with what it needs
einsum.py        the einsum of DTensors, and its gradients
operations.py    the operations of a program, on the tiles of one rank
programs.py      a placed program as a function of DTensors
"""

from __future__ import annotations

import torch  # noqa: F401  # fails here where PyTorch is not installed

from reshard.torch.conversions import mesh_of, placements_of, sharding_of
from reshard.torch.einsum import einsum
from reshard.torch.explanation import explain
from reshard.torch.programs import to_torch
from reshard.torch.redistribute import redistribute, workspace_size

__all__ = [
    "einsum",
    "explain",
    "mesh_of",
    "placements_of",
    "redistribute",
    "sharding_of",
    "to_torch",
    "workspace_size",
]
