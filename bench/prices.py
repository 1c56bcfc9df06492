"""What plans should take on a network that was fitted to the machine at hand, beside what they took there."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np

from bench.ranks import TIMEOUT_S, found_by
from bench.timing import Row

MODULE = "bench.prices_ranks"
COUNT, RANKS = 12, 4
APART = 1.3
"""Plans for one reshard are told apart where one takes so many times what the other does."""


def measured(engine: str, count: int = COUNT) -> list[tuple[int, float, float]]:
    """Per plan the number of its reshard, what it should take and what it took, in seconds."""
    told = {"engine": engine, "count": count}
    if engine == "torch":
        return [(number, *seconds) for number, *seconds in found_by(MODULE, RANKS, told)]
    if engine == "jax":
        flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={RANKS}", "JAX_PLATFORMS": "cpu"}
        return [(number, *seconds) for number, *seconds in found_by(MODULE, 1, told, flags)]
    mpiexec = Path(sys.executable).parent / "mpiexec"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        text = json.dumps({**told, "out": str(out)})
        command = [str(mpiexec), "-n", str(RANKS), sys.executable, "-m", "mpi4py", "-m", MODULE, text, "0"]
        subprocess.run(command, check=True, timeout=TIMEOUT_S, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return [(number, *seconds) for number, *seconds in json.loads(out.read_text(encoding="utf-8"))]


def rows() -> Iterator[Row]:
    """Per engine how far prices are off, and how often they tell which of two plans is faster."""
    for engine, name in (("torch", "gloo ranks"), ("jax", "JAX CPU devices"), ("mpi", "MPI ranks")):
        if not importlib.util.find_spec({"mpi": "mpi4py"}.get(engine, engine)):
            continue
        found = measured(engine)
        errors = [abs(predicted / took - 1) for _, predicted, took in found]
        ratio = statistics.median(took / predicted for _, predicted, took in found)
        what = f"{len(found)} plans on {RANKS} {name}"
        low, high = (float(np.quantile(errors, part)) for part in (0.25, 0.75))
        figures = f"{statistics.median(errors):.0%} in the median, {low:.0%} to {high:.0%} in the middle half"
        off = f"{figures}; took {ratio:.2f} times the price in the median"
        yield Row(f"error of the price, {what}", off, "at most 20 %", statistics.median(errors) <= 0.2)
        apart = [
            (one[1] < other[1]) == (one[2] < other[2])
            for one, other in combinations(found, 2)
            if one[0] == other[0] and not 1 / APART < one[2] / other[2] < APART
        ]
        share = sum(apart) / len(apart) if apart else 1.0
        yield Row(
            f"the faster of two plans by its price, {what}, {len(apart)} pairs {APART} or more apart",
            f"{share:.0%}",
            "at least 90 %",
            share >= 0.9,
        )
