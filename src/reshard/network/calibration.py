"""Latency and bandwidth of a level from timings: t = latency + bytes / bandwidth.

Errors count relative to the time that was measured, since timings scatter by a part of themselves and a large
message must not drown the small ones that tell the latency.
Timings that are far off, as when something else ran, lose weight (Huber 1964).

>>> line = fit_line([1e3, 1e4, 1e5, 1e6], [2e-6, 1.1e-5, 1.01e-4, 1.001e-3])
>>> round(line[0] * 1e6, 6), round(1 / line[1] / 1e9, 6)
(1.0, 1.0)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard.digits import Digits
from reshard.errors import ReshardError
from reshard.network.level import Level, is_number

Pairs = Sequence[tuple[int, int]]
"""Senders with their receivers."""
Timer = Callable[[int, int, Pairs], float]
"""(level, n_bytes, pairs) -> seconds."""

SIZES = tuple(2**power for power in range(10, 27, 2))
"""Bytes that are sent to measure a level: 1 KiB to 64 MiB."""
TURNS = 20
"""How often weights are computed anew."""
FAR = 1.345
"""Beyond this many spreads a timing loses weight: 95 % as good as least squares where errors are normal."""


@dataclass(frozen=True, slots=True)
class LevelFit:
    """What was found for one level, and how well it predicts timings that it has not seen."""

    latency_s: float
    bandwidth: float
    r2: float
    """The part of the variance of the logarithms of held-out timings that is explained; 1 is all."""
    median_relative_error: float
    """Of the held-out timings."""
    largest_relative_error: float
    """Of the held-out timings."""
    held_out: tuple[tuple[int, float, float], ...]
    """Per held-out size: bytes, seconds measured, seconds predicted."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """One fit per level, innermost first."""

    levels: tuple[LevelFit, ...]

    def __str__(self) -> str:
        rows = ["level      latency        bandwidth     r2  median error  largest error"]
        rows += [
            f"{number:5}  {fit.latency_s * 1e6:8.2f} us  {fit.bandwidth / 1e9:10.3f} GB/s  {fit.r2:5.3f}"
            f"  {fit.median_relative_error:11.1%}  {fit.largest_relative_error:12.1%}"
            for number, fit in enumerate(self.levels)
        ]
        return "\n".join(rows)


def fitted(levels: Sequence[Level], time_exchange: Timer, sizes: Sequence[int], repeats: int) -> Calibration:
    """Measure every level and fit it.

    Raises:
        ReshardError: `bad-argument`, `bad-network`.
    """
    if len(set(sizes)) < 6 or min(sizes) < 1 or repeats < 1:
        raise ReshardError("bad-argument", f"at least 6 sizes and 1 repeat are needed, got: {sizes!r}, {repeats!r}")
    fits = []
    for number in range(len(levels)):
        pairs = neighbours(levels, number)
        times = [median(_timed(time_exchange, number, size, pairs) for _ in range(repeats)) for size in sorted(sizes)]
        fits.append(fit_level(number, sorted(sizes), times))
    return Calibration(tuple(fits))


def neighbours(levels: Sequence[Level], number: int) -> Pairs:
    """All devices, each with the next along a level: as in an exchange, every link or port carries one message.

    Whatever ports have in common, as devices that are threads of one machine have its memory, is then in the figures.

    >>> neighbours([Level(1, 2, "switch", 1e9, 0), Level(2, 3, "ring", 1e9, 0)], 1)
    ((0, 2), (1, 3), (2, 4), (3, 5), (4, 0), (5, 1))
    """
    level = levels[number]
    devices = sorted(Digits(level.digit for level in levels).offsets().tolist())
    nexts = ((device, (level.digit.value(device) + 1) % level.size - level.digit.value(device)) for device in devices)
    return tuple((device, device + step * level.stride) for device, step in nexts if step > 0 or level.link != "line")


def fit_level(number: int, sizes: Sequence[int], times: Sequence[float]) -> LevelFit:
    """The fit of one level; every third size, from the second on, is held out to judge it."""
    timings = list(zip(sizes, times, strict=True))
    fitted_to = [timing for place, timing in enumerate(timings) if place % 3 != 1]
    latency_s, per_byte = fit_line([size for size, _ in fitted_to], [time for _, time in fitted_to])
    if per_byte <= 0:
        raise ReshardError("bad-network", f"timings of level {number} do not grow with the bytes sent")
    judged = tuple((size, time, latency_s + per_byte * size) for size, time in timings[1::3])
    errors = [abs(predicted - time) / time for _, time, predicted in judged]
    return LevelFit(latency_s, 1 / per_byte, _r2(judged), median(errors), max(errors), judged)


def fit_line(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """Latency (at least 0) and seconds per byte, by least squares of relative errors, far timings down-weighted."""
    latency_s, per_byte = least_relative([[1.0, size] for size in sizes], times)
    return latency_s, per_byte


def least_relative(amounts: Sequence[Sequence[float]], times: Sequence[float]) -> list[float]:
    """What one of each amount takes, at least 0 of all but the last, by least squares of relative errors.

    Args:
        amounts: per timing how much it has of everything.
        times: in seconds.
    """
    time = np.array(times, dtype=float)
    rows = np.array(amounts, dtype=float) / time[:, None]
    weight: NDArray[Any] = np.ones(len(time))
    answer: NDArray[Any] = np.zeros(rows.shape[1])
    for _ in range(TURNS):
        answer = _least_squares(rows * weight[:, None], weight)
        errors = np.abs(rows @ answer - 1)
        spread = max(1.4826 * float(np.median(errors)), 1e-12)
        weight = np.sqrt(np.minimum(1.0, FAR * spread / np.maximum(errors, 1e-300)))
    factors: list[float] = answer.tolist()
    return factors


def _least_squares(rows: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """The best factors, those that would be below 0 left out one by one; the last may be."""
    scale = np.where(rows.any(axis=0), np.abs(rows).max(axis=0, initial=0.0), 1.0)
    kept = list(range(rows.shape[1]))
    while True:
        factors: NDArray[Any] = np.zeros(rows.shape[1])
        factors[kept] = np.linalg.lstsq(rows[:, kept] / scale[kept], values, rcond=None)[0] / scale[kept]
        least = min(kept[:-1], key=lambda column: factors[column] * scale[column], default=-1)
        if least < 0 or factors[least] >= 0:
            return factors
        kept.remove(least)


def _r2(judged: Sequence[tuple[int, float, float]]) -> float:
    measured = np.log([time for _, time, _ in judged])
    predicted = np.log([guess for _, _, guess in judged])
    spread = float(((measured - measured.mean()) ** 2).sum())
    return 1 - float(((measured - predicted) ** 2).sum()) / spread if spread else 0.0


def _timed(time_exchange: Timer, level: int, n_bytes: int, pairs: Pairs) -> float:
    seconds: Any = time_exchange(level, n_bytes, pairs)
    if not is_number(seconds) or seconds <= 0:
        raise ReshardError("bad-argument", f"time_exchange gave {seconds!r} for level {level}; it must be above 0 s")
    return float(seconds)
