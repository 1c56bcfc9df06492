"""DTensor's redistribute against ours and against a bare exchange of the missing boxes, on gloo in one run.

Every configuration is a set of processes of its own: so many ranks, one allocator setting.
`bench.redistribute_ranks` is what they run.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from operator import truediv

from bench.ranks import TIMEOUT_S, found_by
from bench.timing import Row, within

CASES = (
    "S0 S1 -> S1 S0",
    "S0 S0 -> S0 S1",
    "S0 S0 -> S1 S1",
    "S0 S0 -> R S0",
    "R S0 -> S0 S0",
    "R S0 -> S0 R",
    "S0 R -> R S0",
    "S1 R -> S0 R",
    "S0 S1 -> R R",
)
MESHES = {4: (2, 2), 8: (2, 4)}
SIDES = (2048, 4096)
"""Of square matrices of float32: 16 and 64 MiB."""
ALLOCATORS = {
    "glibc as it is": {},
    "glibc keeping large blocks": {
        "MALLOC_MMAP_THRESHOLD_": "4294967296",
        "MALLOC_TRIM_THRESHOLD_": "4294967296",
        "MALLOC_TOP_PAD_": "268435456",
    },
}
"""As it is, glibc gives blocks of 32 MiB and more back to the system, and every fresh one is faulted in again."""
AS_IT_IS, KEEPING = ALLOCATORS
RUNS = ((4, SIDES, AS_IT_IS), (8, SIDES, AS_IT_IS), (8, SIDES[1:], KEEPING))
"""Ranks, sides of the matrices, allocator."""
WANTED = 1.1


def measured(
    ranks: int,
    sides: Sequence[int] = SIDES,
    cases: Sequence[str] = CASES,
    allocator: str = AS_IT_IS,
    budget_s: float = 2.0,
) -> dict[int, dict[str, dict[str, list[float]]]]:
    """Per side and case the seconds of each variant, round by round, of the slowest rank.

    Args:
        ranks: how many processes.
        sides: of the square matrices.
        cases: from placements to placements.
        allocator: one of `ALLOCATORS`.
        budget_s: how long a case goes on with the variants that are near the fastest.
    """
    told = {"mesh": MESHES[ranks], "sides": list(sides), "cases": list(cases), "budget_s": budget_s}
    found = found_by("bench.redistribute_ranks", ranks, told, ALLOCATORS[allocator])
    return {int(side): times for side, times in found.items()}


def rows() -> Iterator[Row]:
    """What Python alone takes; every case on 4 and 8 ranks; and what torch takes over the bare exchange."""
    if not importlib.util.find_spec("torch"):
        return
    yield from calls()
    for ranks, sides, allocator in RUNS:
        for side, times in measured(ranks, sides, allocator=allocator).items():
            yield from rows_of(f"{ranks} ranks, {side * side * 4 // 2**20} MiB, {allocator}", times)


def calls() -> Iterator[Row]:
    """Cold plans and warm calls, on rank 0 of a world whose collectives send nothing."""
    command = [sys.executable, "-m", "bench.redistribute_calls"]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    found = json.loads(process.stdout)
    ours, greedy, min_cost = (found["plans_ms"][name] for name in ("reshard", "greedy", "min-cost"))
    title = "plan placements on 2 x 8 x 4 x 4 ranks, 3 dims, the median of 30 new pairs"
    yield within(title, ours, 1.0, f"; torch's greedy {greedy:.3g} ms, its min-cost {min_cost:.3g} ms")
    for case, times in found["calls_us"].items():
        yield Row(
            f"redistribute {case}, nothing sent, a call whose plan is known",
            f"{times['reshard']:.3g} us, torch's {times['torch']:.3g} us",
            "at most torch's",
            times["reshard"] <= times["torch"],
        )


def rows_of(where: str, found: dict[str, dict[str, list[float]]]) -> Iterator[Row]:
    """The rows of one configuration: a case each, then each variant over the bare exchange."""
    over_bare: dict[str, list[float]] = {}
    for case, times in found.items():
        medians = {name: statistics.median(column) for name, column in times.items()}
        bare = min(medians[name] for name in medians if name.startswith("bare"))
        for name, median in medians.items():
            if not name.startswith("bare"):
                over_bare.setdefault(name, []).append(median / bare)
        fastest = min((name for name in medians if name != "reshard"), key=lambda name: medians[name])
        ratio = statistics.median(map(truediv, times["reshard"], times[fastest]))  # round by round
        listed = ", ".join(f"{name} {1e3 * median:.3g}" for name, median in medians.items())
        yield Row(
            f"redistribute {case}, {where}",
            f"{ratio:.2f} times {fastest}, the fastest of the others; {listed} ms",
            f"at most {WANTED} times",
            ratio <= WANTED,
        )
    for name, ratios in over_bare.items():
        spread = f"{min(ratios):.2g} / {statistics.median(ratios):.2g} / {max(ratios):.2g}"
        yield Row(f"{name} over the bare exchange, {where}, min / median / max", f"{spread} times", "", None)
