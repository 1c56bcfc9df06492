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
from typing import NamedTuple

import numpy as np

from bench.ranks import TIMEOUT_S, found_by
from bench.timing import Row

MODULE = "bench.prices_ranks"
COUNT, RANKS = 24, 4
APART = 1.3
"""Plans for one reshard are told apart where one takes so many times what the other does, in every turn."""


class Timed(NamedTuple):
    """A plan, in seconds."""

    number: int
    """Of its reshard."""
    predicted: float
    """What it should take."""
    turns: list[float]
    """What it took, turn by turn."""

    @property
    def took(self) -> float:
        """What it took in the median."""
        return statistics.median(self.turns)

    def is_apart_from(self, other: Timed) -> bool:
        """Whether both are for one reshard, and one of them is the faster by far whenever they are timed."""
        ratios = [own / others for own, others in zip(self.turns, other.turns, strict=True)]
        return self.number == other.number and (min(ratios) >= APART or max(ratios) <= 1 / APART)


def measured(engine: str, count: int = COUNT) -> list[Timed]:
    """Every plan that was timed."""
    told = {"engine": engine, "count": count}
    if engine == "torch":
        return [Timed(*plan) for plan in found_by(MODULE, RANKS, told)]
    if engine == "jax":
        flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={RANKS}", "JAX_PLATFORMS": "cpu"}
        return [Timed(*plan) for plan in found_by(MODULE, 1, told, flags)]
    mpiexec = Path(sys.executable).parent / "mpiexec"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        text = json.dumps({**told, "out": str(out)})
        command = [str(mpiexec), "-n", str(RANKS), sys.executable, "-m", "mpi4py", "-m", MODULE, text, "0"]
        subprocess.run(command, check=True, timeout=TIMEOUT_S, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return [Timed(*plan) for plan in json.loads(out.read_text(encoding="utf-8"))]


def rows() -> Iterator[Row]:
    """Per engine how far prices are off, and how often they tell which of two plans is faster."""
    for engine, name in (("torch", "gloo ranks"), ("jax", "JAX CPU devices"), ("mpi", "MPI ranks")):
        if not importlib.util.find_spec({"mpi": "mpi4py"}.get(engine, engine)):
            continue
        plans = measured(engine)
        errors = [abs(plan.predicted / plan.took - 1) for plan in plans]
        ratio = statistics.median(plan.took / plan.predicted for plan in plans)
        what = f"{len(plans)} plans on {RANKS} {name}"
        low, high = (float(np.quantile(errors, part)) for part in (0.25, 0.75))
        figures = f"{statistics.median(errors):.0%} in the median, {low:.0%} to {high:.0%} in the middle half"
        off = f"{figures}; took {ratio:.2f} times the price in the median"
        yield Row(f"error of the price, {what}", off, "at most 20 %", statistics.median(errors) <= 0.2)
        told = [
            (one.predicted < other.predicted) == (one.took < other.took)
            for one, other in combinations(plans, 2)
            if one.is_apart_from(other)
        ]
        yield Row(
            f"the faster of two plans by its price, {what}, pairs {APART} or more apart in every turn",
            f"{sum(told)} of {len(told)}",
            "at least 90 %",
            10 * sum(told) >= 9 * len(told) > 0,
        )
