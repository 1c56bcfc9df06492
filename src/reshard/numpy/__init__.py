"""The engine in one process: devices are keys of a dictionary, tiles are NumPy arrays.

tiles.py         `scatter`, `run` and `gather`: a plan moves tiles
halo.py          `halo`: tiles with a border
einsum.py        `einsum`: tiles are moved and contracted
verbs.py         what NumPy does with arrays, for the interpreter of operations
programs.py      `run_program`: a placed program, operation by operation
transfer.py      `transfer`: a whole model, by its plan
"""

from __future__ import annotations

from reshard.array_tiles import COMBINE
from reshard.dtypes import identity
from reshard.numpy.einsum import einsum
from reshard.numpy.halo import halo
from reshard.numpy.programs import run_program
from reshard.numpy.tiles import gather, run, scatter
from reshard.numpy.transfer import transfer

__all__ = ["COMBINE", "einsum", "gather", "halo", "identity", "run", "run_program", "scatter", "transfer"]
