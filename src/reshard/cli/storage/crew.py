"""Processes that write one output together: each the tiles of some devices, the first all that is there once.

By hand, 5 devices and 2 processes: the first writes 0, 2 and 4, the other 1 and 3.

>>> class Other(Crew):
...     number, count = 1, 2
>>> ALONE.share([0, 1, 2]), Other().share([0, 1, 2, 3, 4])
([0, 1, 2], [1, 3])
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from reshard.errors import ReshardError

T = TypeVar("T")
STARTED_BY = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE")
"""What `mpiexec` says to the processes that it starts: how many there are."""


class Crew:
    """The processes, of which this is one; alone unless something else says so."""

    number = 0
    count = 1

    def share(self, devices: Sequence[T]) -> list[T]:
        """What of them this one does."""
        return list(devices[self.number :: self.count])

    def all(self, value: Any) -> list[Any]:
        """What each of them has, by its number; all wait for all."""
        return [value]

    def first(self, value: T) -> T:
        """What the first of them has."""
        result: T = self.all(value)[0]
        return result

    def end(self) -> None:
        """End the others, who would wait for this one."""

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """What one of them refuses meanwhile all refuse."""
        refusal: ReshardError | None = None
        try:
            yield
        except ReshardError as error:
            refusal = error
        said = [each for each in self.all(None if refusal is None else (refusal.code, str(refusal))) if each]
        if refusal is not None:
            raise refusal
        if said:
            raise ReshardError(*said[0])


ALONE = Crew()


class MpiCrew(Crew):
    """The ranks of the world of MPI."""

    def __init__(self) -> None:
        """To be made by all of them.

        Raises:
            ReshardError: `missing-extra`.
        """
        from reshard import mpi  # noqa: PLC0415  # the engine loads where there are ranks

        self._world = mpi.World()
        self.number, self.count = self._world.number, self._world.count

    def all(self, value: Any) -> list[Any]:
        """By MPI."""
        return self._world.gathered(value)

    def end(self) -> None:
        """By MPI, once it is said why."""
        traceback.print_exc()
        self._world.end()


def crew_at_hand() -> Crew:
    """The ranks that `mpiexec` started, if it did.

    Raises:
        ReshardError: `missing-extra` where mpi4py is not there.
    """
    counts = [os.environ.get(name, "") for name in STARTED_BY]
    if not any(count.isdigit() and int(count) > 1 for count in counts):
        return ALONE
    try:
        return MpiCrew()
    except ModuleNotFoundError as error:
        raise ReshardError("missing-extra", str(error)) from None
