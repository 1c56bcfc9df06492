"""The ranks of a job that was started by `mpiexec`, as peers that do one thing together."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI


class Job:
    """All ranks of the job."""

    def __init__(self) -> None:
        self.rank: int = MPI.COMM_WORLD.rank
        self.size: int = MPI.COMM_WORLD.size

    def all(self, value: Any) -> list[Any]:
        """What every rank says, in their order; all wait for it."""
        answers: list[Any] = MPI.COMM_WORLD.allgather(value)
        return answers
