"""Whether a command runs in many processes at once, as `mpiexec -n 8 reshard …` starts them."""

from __future__ import annotations

import importlib
import os

from reshard.errors import MissingExtraError
from reshard.models.checkpoints.peers import Alone, Peers

SAYS_SO = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")
"""What MPI's starters tell the processes that they start."""


def peers_of_job() -> Peers:
    """The processes that run this command; the engine for MPI loads only where there may be several.

    Raises:
        ReshardError: `missing-extra`.
    """
    if not any(name in os.environ for name in SAYS_SO):
        return Alone()
    try:
        job: Peers = importlib.import_module("reshard.mpi.job").Job()
    except ModuleNotFoundError:
        raise MissingExtraError("mpi4py is not installed: pip install 'reshard[mpi]'") from None
    return job
