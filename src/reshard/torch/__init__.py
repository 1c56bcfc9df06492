"""The engine for PyTorch: DTensors between any placements, in one exchange.

y = reshard.torch.redistribute(x, [Shard(1), Replicate()])     another DTensor, on all ranks
z = reshard.torch.einsum("ij,jk->ik", x, y)                    their product, laid out where that is cheapest
print(reshard.torch.explain(x, [Shard(1), Replicate()]))       what it does, and what torch would do

From a call down to the wire:

redistribute.py    the call itself, its gradient, its asynchronous form
graph_operator.py  the same as one operator in a graph that torch traces
redistribution.py  what one rank does for a source and a target, kept per kind of call
stand_ins.py       what torch leaves partial beyond plain reductions, as maps around one of these
lifting.py         parts of meshes, seen from the whole
local_plan.py      one rank's part of a plan: its part of every exchange, one after another
exchange.py        one rank's part of an exchange: what is packed, copied, unpacked and combined
turns.py           the same under a limit on memory, piece after piece
carriers.py        the process groups that messages go by

Beside it:

dtensor_specs.py   meshes, placements and specs to ours and back
world.py           what is kept for a default process group
agreement.py       whether all ranks ask for the same
planned.py         a plan that was made before, run as it is
table_code.py      a plan as a function of torch alone
installing.py      plans under DTensor's own redistribution
calibration.py     a network fitted to the ranks at hand
comparison.py      our plan beside those of torch's planners
planners.py        what torch's planners would do

On top of it:

einsum.py          the einsum of DTensors, and its gradients
einsum_operator.py the same as one operator in a graph
local_einsum.py    what one rank does for it, kept per kind of call
contraction.py     one rank's part of an einsum, and of its overlap with what it needs
reshard_tile.py    `reshard`: local tensors between shardings that no placements say
halo.py            `halo`: windows around tiles, and their gradients
sliding.py         operations that reach over the edge of a tile: rolls, convolutions
running_sums.py    running sums
padding.py         pads, of a constant or of the tensor itself
pooling.py         the largest and the average of windows
transfer.py        `transfer`: a whole model, by its plan
under_way.py       a transfer that its caller waits for by bucket
block_casts.py     casts in blocks that share a scale
checksums.py       whether it has arrived
programs.py        a placed program as a function of DTensors
verbs.py           what torch does with tensors, for the interpreter of operations
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ModuleNotFoundError:  # an ImportError for `from reshard import torch`, with the way out
    raise ModuleNotFoundError("torch is not installed: pip install 'reshard[torch]'", name="torch") from None

from reshard.torch.calibration import calibrate
from reshard.torch.comparison import explain
from reshard.torch.dtensor_specs import mesh_of, placements_of, sharding_of
from reshard.torch.einsum import einsum
from reshard.torch.halo import halo
from reshard.torch.installing import Installation, install, uninstall
from reshard.torch.padding import pad
from reshard.torch.planned import run
from reshard.torch.pooling import avg_pool, max_pool
from reshard.torch.programs import to_torch
from reshard.torch.redistribute import redistribute, workspace_size
from reshard.torch.reshard_tile import reshard
from reshard.torch.running_sums import cumsum
from reshard.torch.sliding import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    flip,
    roll,
)
from reshard.torch.table_code import code_of
from reshard.torch.transfer import transfer, version_of

__all__ = [
    "Installation",
    "avg_pool",
    "calibrate",
    "code_of",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cumsum",
    "einsum",
    "explain",
    "flip",
    "halo",
    "install",
    "max_pool",
    "mesh_of",
    "pad",
    "placements_of",
    "redistribute",
    "reshard",
    "roll",
    "run",
    "sharding_of",
    "to_torch",
    "transfer",
    "uninstall",
    "version_of",
    "workspace_size",
]
