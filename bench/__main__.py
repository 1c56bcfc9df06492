"""Run the benchmarks, all or those that are named, and write each into its section of bench/RESULTS.md.

python -m bench [planning] [networks] [bases] [engine] [disk] [contraction] [programs] [redistribute]
    [contraction_jax] [contraction_torch] [resharding_jax] [models] [mpi] [shifts] [transfer] [time]
    [inspecting] [prices]
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import numpy as np

import reshard as rs
from bench import (
    bases,
    contraction,
    contraction_jax,
    contraction_torch,
    disk,
    engine,
    inspecting,
    models,
    mpi,
    networks,
    planning,
    prices,
    programs,
    redistribute,
    resharding_jax,
    shifts,
    time,
    transfer,
)
from bench.timing import Row

GROUPS: dict[str, Callable[[], Iterator[Row]]] = {
    "planning": planning.rows,
    "networks": networks.rows,
    "bases": bases.rows,
    "engine": engine.rows,
    "disk": disk.rows,
    "contraction": contraction.rows,
    "programs": programs.rows,
    "redistribute": redistribute.rows,
    "contraction_jax": contraction_jax.rows,
    "contraction_torch": contraction_torch.rows,
    "resharding_jax": resharding_jax.rows,
    "models": models.rows,
    "time": time.rows,
    "mpi": mpi.rows,
    "prices": prices.rows,
    "shifts": shifts.rows,
    "transfer": transfer.rows,
    "inspecting": inspecting.rows,
}
RESULTS = Path(__file__).parent / "RESULTS.md"
HEAD = """# Results

Each section is written by the command that it names. Times gate nothing; counts are tests."""


def machine() -> str:
    """What the figures were measured on."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return (
        f"{platform.machine()} with {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, reshard {rs.__version__} at {commit.stdout.strip() or 'no commit'}"
    )


def pace() -> float:
    """How long a million additions of Python take, in ms, the median of five times: a host that others use varies."""
    times = []
    for _ in range(5):
        start = perf_counter()
        total = 0
        for number in range(1_000_000):
            total += number
        times.append(1e3 * (perf_counter() - start))
    return statistics.median(times)


def section(name: str) -> str:
    """A group's rows as a table, shown as they come."""
    before = pace()
    lines = ["| what | measured | aimed at | |", "| --- | --- | --- | --- |"]
    for row in GROUPS[name]():
        mark = {True: "holds", False: "MISSED", None: ""}[row.holds]
        lines.append(f"| {row.what.replace('|', '/')} | {row.measured} | {row.wanted} | {mark} |")
        print(f"{row.what}: {row.measured}  {row.wanted}  {mark}", flush=True)
    paces = f"A million additions of Python took {before:.0f} ms before it and {pace():.0f} ms after it."
    return "\n".join([f"Measured by `python -m bench {name}` on {machine()}. {paces}", "", *lines])


def sections_of(text: str) -> dict[str, str]:
    """The text under each heading of a page of results."""
    headed = (part.partition("\n") for part in text.split("\n## ")[1:])
    return {name.strip(): body.strip() for name, _, body in headed}


def main(names: list[str]) -> int:
    """Run the groups of these names, or all, each into its section of the results; 2 where a name is unknown."""
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        print(f"no group {unknown[0]}; there are {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    for name in names or GROUPS:
        measured = section(name)
        sections = {**sections_of(RESULTS.read_text(encoding="utf-8")), name: measured}
        parts = [HEAD, *(f"## {group}\n\n{sections[group]}" for group in GROUPS if group in sections)]
        RESULTS.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return 0


sys.exit(main(sys.argv[1:]))
