"""Honest times: medians of many runs, variants in turn in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the results."""

    what: str
    measured: str
    wanted: str
    """The bound that is aimed at; empty where none is."""
    holds: bool | None
    """Whether it is met; None where no bound is aimed at."""


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def medians(calls: list[Callable[[], object]], runs: int) -> list[float]:
    """The median time of each call in seconds, all of them in turn in every run; the first run is not counted."""
    times = [[seconds(call) for call in calls] for _ in range(runs + 1)][1:]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def within(what: str, value_ms: float, limit_ms: float, note: str = "") -> Row:
    """A time in milliseconds against its limit."""
    return Row(what, f"{value_ms:.3g} ms{note}", f"at most {limit_ms:g} ms", value_ms <= limit_ms)
