"""The engine for MPI: a rank's tile as an array of NumPy, between any shardings, without a framework.

tile = reshard.mpi.reshard(tile, source, target, shape)          on all ranks of both meshes
tile = reshard.mpi.run(plan, tile)                                a plan that was made before
out = reshard.mpi.transfer(arrays, model_plan, version=step)      a whole model, into memory that stays where it is
tile = reshard.mpi.empty(source, shape, "f32")                    a tile that the ranks of a host read by themselves
network, fit = reshard.mpi.calibrate(mesh)                        what messages and plans cost between these ranks

A device of a mesh is a rank of the communicator.
Start programs by `mpiexec -n 8 python -m mpi4py program.py`: then a rank that fails ends all of them, which wait for it
otherwise.

tile_calls.py     `reshard`, `run`: the calls, what they check and what is kept of them
local_moves.py    one rank's part of a plan: what it sends, receives, and puts together
subarrays.py      parts of arrays as datatypes, so that nothing is packed
shared_tiles.py   tiles in memory that the ranks of a host share
participants.py   the ranks that a call is made by: what they have agreed on, what is kept for them
job.py            the ranks of a command that `mpiexec` started
calibration.py    `calibrate`: the network of the ranks at hand
transfer.py       `transfer`: a whole model, by its plan
"""

from __future__ import annotations

try:
    import mpi4py  # noqa: F401
except ModuleNotFoundError:  # an ImportError for `from reshard import mpi`, with the way out
    raise ModuleNotFoundError("mpi4py is not installed: pip install 'reshard[mpi]'", name="mpi4py") from None

from reshard.mpi.calibration import calibrate
from reshard.mpi.shared_tiles import empty
from reshard.mpi.tile_calls import reshard, run
from reshard.mpi.transfer import transfer

__all__ = ["calibrate", "empty", "reshard", "run", "transfer"]
