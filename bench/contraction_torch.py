"""Products of DTensors: ours beside torch's own on 4 gloo ranks, in one run.

Torch's is its matrix product, followed by its redistribute where that leaves the result elsewhere.
`bench.contraction_torch_ranks` is what the ranks run.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Iterator, Sequence
from operator import truediv
from typing import Any

from bench.ranks import found_by
from bench.timing import Row

Case = tuple[tuple[int, ...], str, int]
"""Mesh, placements of both operands and of the result, side of the square matrices of float32."""
RANKS = 4
LINE, SQUARE = (4,), (2, 2)
CASES: tuple[Case, ...] = (
    (LINE, "S0 @ R -> S0", 2048),
    (LINE, "S0 @ S0 -> S0", 2048),
    (LINE, "S1 @ S1 -> S1", 2048),
    (LINE, "S0 @ S1 -> S1", 2048),
    (LINE, "S1 @ S0 -> S0", 2048),
    (LINE, "S1 @ S0 -> R", 2048),
    (SQUARE, "S0 S1 @ S0 S1 -> S0 S1", 2048),
    (SQUARE, "S1 S0 @ S1 S0 -> S0 S1", 2048),
    (SQUARE, "S0 S0 @ S1 S1 -> S1 S0", 2048),
    (LINE, "S0 @ S0 -> S0", 4096),
)
WANTED = 1.1
MANY = 2.0
"""Where torch receives so many times our bytes, ours is to be faster."""


def measured(cases: Sequence[Case] = CASES, budget_s: float = 2.0) -> list[dict[str, Any]]:
    """Per case the seconds of each variant, round by round, of the slowest rank, and the bytes of the busiest rank."""
    told = {"cases": cases, "budget_s": budget_s}
    found: list[dict[str, Any]] = found_by("bench.contraction_torch_ranks", RANKS, told)
    return found


def rows() -> Iterator[Row]:
    """A row per case."""
    if not importlib.util.find_spec("torch") or not importlib.util.find_spec("pytest"):
        return
    for one in measured():
        ours, theirs = one["received"]
        ratio = statistics.median(map(truediv, one["times"]["reshard"], one["times"]["torch"]))  # round by round
        many = ours > 0 and theirs >= MANY * ours
        times = ", ".join(f"{name} {1e3 * statistics.median(column):.3g}" for name, column in one["times"].items())
        yield Row(
            f"product {one['case']}, side {one['side']}, {RANKS} ranks",
            f"{ratio:.2f} times torch's; {times} ms; received {ours / 2**20:.3g} MiB, torch's {theirs / 2**20:.3g} MiB",
            "faster than torch's" if many else f"at most {WANTED} times",
            ratio < 1 if many else ratio <= WANTED,
        )
