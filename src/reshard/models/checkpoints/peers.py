"""The processes that write one output together, and what they tell each other: that all went well, or what did not.

By hand, 3 devices and one process: it writes all; of two the second would write device 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from reshard.errors import ReshardError

T = TypeVar("T")


class Peers(Protocol):
    """Processes that do the same, each with a number."""

    @property
    def rank(self) -> int:
        """The number of this one."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def all(self, value: Any) -> list[Any]:
        """What every one of them says, in the order of their numbers; all wait for it."""
        ...


class Alone:
    """A process by itself."""

    rank, size = 0, 1

    def all(self, value: Any) -> list[Any]:
        """What it says itself."""
        return [value]


@contextmanager
def agreed(peers: Peers) -> Iterator[None]:
    """What goes wrong meanwhile on one of them goes wrong on all, as the first of these says it; all wait at the end.

    Raises:
        ReshardError: of any of them; `exchange-failed` where another one failed otherwise.
    """
    try:
        yield
    except Exception as error:  # whatever it is, the others must hear of it
        code = error.code if isinstance(error, ReshardError) else "exchange-failed"
        peers.all((code, str(error) or type(error).__name__))
        raise
    for failure in peers.all(None):
        if failure is not None:
            raise ReshardError(*failure)


def share(peers: Peers, things: Sequence[T]) -> list[T]:
    """What of them this process does, where each does every so manyth.

    >>> share(Alone(), [0, 1, 2])
    [0, 1, 2]
    """
    return list(things[peers.rank :: peers.size])


def dealt(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Numbers of things dealt to so many, the largest first, each to the one that has least; ascending for each.

    >>> dealt([5, 1, 4, 2], 2)
    [[0, 1], [2, 3]]
    """
    loads, hands = [0] * count, [list[int]() for _ in range(count)]
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        least = loads.index(min(loads))
        loads[least] += sizes[number]
        hands[least].append(number)
    return [sorted(hand) for hand in hands]
