"""Signals that ask a program to stop, as exceptions, so that what it has begun is taken back.

SIGINT is a `KeyboardInterrupt` in Python already; here SIGTERM and SIGHUP become one too.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

ASKING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask to stop."""


class Terminated(KeyboardInterrupt):
    """A signal other than SIGINT asked to stop.

    Attributes:
        status: the exit status that a shell reports for that signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


def _raise(number: int, frame: FrameType | None) -> None:
    del frame
    raise Terminated(number)


def raised() -> AbstractContextManager[None]:
    """While inside, SIGTERM and SIGHUP raise `Terminated`, unless the process was told to ignore them."""
    return _handled([number for number in ASKING[1:] if signal.getsignal(number) is signal.SIG_DFL], _raise)


def held() -> AbstractContextManager[None]:
    """While inside, signals that ask to stop are ignored: for the moments that must not be cut short."""
    return _handled(ASKING, signal.SIG_IGN)


@contextmanager
def _handled(numbers: Iterable[signal.Signals], handler: Any) -> Iterator[None]:
    """While inside, signals go to a handler, where the main thread asks for it."""
    changed = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            changed[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in changed.items():
            if previous is not None:
                signal.signal(number, previous)
