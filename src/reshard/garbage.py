"""Work whose objects are nearly all kept: garbage collection would go through them often, and find nothing.

It is one switch for all threads: who comes first turns it off, who leaves last turns it on again.
Much that is there then counts as old, as if two collections had found it in use: to go through it twice, soon after,
would find nothing either.
A full collection finds what of it is garbage by then.

>>> import gc
>>> with uncollected():
...     gc.isenabled()
False
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

MANY, MOST_AGED = 2**10, 2**18
"""From how many new objects on they are taken for old, and how many at most between two full collections."""


class _Switch:
    """How many are at work, and whether garbage was collected before the first of them."""

    def __init__(self) -> None:
        self.lock = RLock()  # what a collection finalizes may come here too
        self.inside = 0
        self.was_on = False
        self.aged, self.collections = 0, 0
        """How many objects were taken for old since so many full collections."""

    def age(self) -> None:
        """Take all objects for old; none where somebody keeps some out of collections, which would end that."""
        full, young = gc.get_stats()[-1]["collections"], gc.get_count()[0]
        if full != self.collections:
            self.aged, self.collections = 0, full
        if MANY <= young <= MOST_AGED - self.aged and not gc.get_freeze_count():
            self.aged += young
            gc.freeze()
            gc.unfreeze()


_SWITCH = _Switch()


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile; a decorator too."""
    with _SWITCH.lock:
        if not _SWITCH.inside:
            _SWITCH.was_on = gc.isenabled()
            gc.disable()
        _SWITCH.inside += 1
    try:
        yield
    finally:
        with _SWITCH.lock:
            _SWITCH.inside -= 1
            if not _SWITCH.inside and _SWITCH.was_on:
                _SWITCH.age()
                gc.enable()
