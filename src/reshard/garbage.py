"""Work whose objects are nearly all kept: garbage collection would go through them often, and find nothing.

It is one switch for all threads: who comes first turns it off, who leaves last turns it on again.

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


class _Switch:
    """How many are at work, and whether garbage was collected before the first of them."""

    def __init__(self) -> None:
        self.lock = RLock()  # what a collection finalizes may come here too
        self.inside = 0
        self.was_on = False


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
                gc.enable()
