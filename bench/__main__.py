"""Run the benchmarks and write them into bench/RESULTS.md.

python -m bench [planning] [networks] [bases] [engine] [disk] [contraction] [programs] [redistribute]
    [contraction_jax] [contraction_torch] [resharding_jax] [models] [mpi] [shifts] [transfer]
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import reshard as rs
from bench import (
    bases,
    contraction,
    contraction_jax,
    contraction_torch,
    disk,
    engine,
    models,
    mpi,
    networks,
    planning,
    programs,
    redistribute,
    resharding_jax,
    shifts,
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
    "mpi": mpi.rows,
    "shifts": shifts.rows,
    "transfer": transfer.rows,
}
RESULTS = Path(__file__).parent / "RESULTS.md"


def machine() -> str:
    """What the figures were measured on."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return (
        f"{platform.machine()} with {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, reshard {rs.__version__} at {commit.stdout.strip() or 'no commit'}"
    )


def main(names: list[str]) -> int:
    """Run the groups of these names, or all; 2 where a name is unknown."""
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        print(f"no group {unknown[0]}; there are {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    lines = ["# Results", "", f"Measured by `make bench` on {machine()}.", "Times gate nothing; counts are tests.", ""]
    for name in names or GROUPS:
        lines += [f"## {name}", "", "| what | measured | aimed at | |", "| --- | --- | --- | --- |"]
        for row in GROUPS[name]():
            mark = {True: "holds", False: "MISSED", None: ""}[row.holds]
            lines.append(f"| {row.what.replace('|', '/')} | {row.measured} | {row.wanted} | {mark} |")
            print(f"{row.what}: {row.measured}  {row.wanted}  {mark}", flush=True)
        lines.append("")
    if not names:
        RESULTS.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return 0


sys.exit(main(sys.argv[1:]))
