"""How XLA's SPMD partitioner goes from one sharding to another: its branches, in its order, as a table and a judge.

The partitioner's `ReshardNoCache` looks at two arrays of devices, one per sharding: an axis per dim of the tensor,
as long as the dim has tiles, and, where tiles are held more than once, a last axis for the copies.
It asks one question after another about the shapes and the orders of the two arrays and takes the first branch that
says yes; some branches lead part of the way and ask again.
Where nothing fits, every device gathers the whole tensor and cuts its tile from it, and the log says "Involuntary
full rematerialization".

`BRANCHES` is the table; `explain` goes through it for one pair.

    branches.py        the branches
    device_arrays.py   the arrays, and what the partitioner does to them
    routes.py          the questions, in their order

It is a model of XLA's rules and no run of XLA: it needs none, and it says why.
The tests hold it against what XLA compiles.

It holds for dims that their shard counts divide; uneven ones take the same branches and exchange edges besides.

By hand, mesh x=2, y=4, `[{"x"}, {}] -> [{"y"}, {"x"}]`: the arrays are 2x1x4 and 4x2.
They differ in shape, so no permute; they differ in rank, so no all-to-all.
The source has copies, and 2x1 divides 4x2: each device cuts a 4x2 tile out of its own, and a permute puts the tiles
in order.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=2, y=4)
>>> taken = explain(Sharding.of(mesh, "x", None), Sharding.of(mesh, "y", "x"), (8, 8))
>>> taken.branch.name, taken.collectives, taken.communication
('slice', ('collective-permute',), 'collective-permute')
>>> print(taken.why)
the source is replicated, and its 2x1 tiles can be cut further into 4x2; a permute then sets the order of devices
>>> explain(Sharding.of(Mesh.of(x=2, y=3), "x", "y"), Sharding.of(Mesh.of(x=2, y=3), "y", "x"), (6, 6)).branch.name
'full gather'
"""

from __future__ import annotations

from reshard.xla.partitioner.branches import BRANCHES, COMMUNICATIONS, Branch
from reshard.xla.partitioner.routes import TakenBranch, explain

__all__ = ["BRANCHES", "COMMUNICATIONS", "Branch", "TakenBranch", "explain"]
