"""Processes that write one output together: each the tiles of some devices, the first all that is there once.

By hand, 3 devices and one process: it writes all; of two the second would write device 1.

>>> share(Alone(), [0, 1, 2])
[0, 1, 2]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from reshard.errors import ReshardError
from reshard.models.checkpoints.peers import Alone, Peers

__all__ = ["Alone", "Peers", "agreed", "share"]

T = TypeVar("T")


def share(peers: Peers, things: Sequence[T]) -> list[T]:
    """What of them this process does."""
    return list(things[peers.rank :: peers.size])


@contextmanager
def agreed(peers: Peers) -> Iterator[None]:
    """What goes wrong meanwhile on one of them goes wrong on all; all wait at the end.

    Raises:
        ReshardError: of any of them; `exchange-failed` where another one failed otherwise.
    """
    try:
        yield
    except Exception as error:  # whatever it is, the others must hear of it
        peers.all((error.code if isinstance(error, ReshardError) else "exchange-failed", str(error)))
        raise
    for failure in peers.all(None):
        if failure is not None:
            raise ReshardError(*failure)
