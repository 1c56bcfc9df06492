"""Signals that ask a program to stop, as exceptions, so that what it has begun is taken back.

SIGINT is a `KeyboardInterrupt` in Python already; here SIGTERM and SIGHUP become one too.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

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


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """While inside, SIGTERM and SIGHUP raise `Terminated`, unless the process was told to ignore them."""
    changed = {}
    if threading.current_thread() is threading.main_thread():
        for number in ASKING[1:]:
            if signal.getsignal(number) is signal.SIG_DFL:
                changed[number] = signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in changed.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """While inside, signals that ask to stop are ignored: for the moments that must not be cut short."""
    changed = {}
    if threading.current_thread() is threading.main_thread():
        for number in ASKING:
            changed[number] = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in changed.items():
            if handler is not None:
                signal.signal(number, handler)
