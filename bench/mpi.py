"""The engine for MPI beside what one writes by hand: 4096 x 4096 float32, rows to columns, ranks of one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.timing import Row

SIZE = 4096
TIMEOUT_S = 300
OURS = "rs.mpi.reshard"
SHARED = "tile in a window"
"""By hand, where the tile lies in shared memory before."""


def rows() -> Iterator[Row]:
    """Every way on 4 and 8 ranks; ours against the best by hand, where a tile is private and where it is shared."""
    for ranks in (4, 8):
        times = medians(ranks)
        for name, value in times.items():
            if not name.startswith(OURS):
                yield Row(f"{ranks} ranks, {name}", f"{value:.1f} ms", "", None)
        private = min(value for name, value in times.items() if not name.startswith(OURS) and name != SHARED)
        yield _row(f"{ranks} ranks, {OURS}", times[OURS], private)
        yield _row(f"{ranks} ranks, {OURS} of rs.mpi.empty", times[f"{OURS} of rs.mpi.empty"], times[SHARED])


def _row(what: str, value: float, best: float) -> Row:
    return Row(what, f"{value:.1f} ms", f"at most {best:.1f} ms, the best by hand", value <= 1.05 * best)


def medians(ranks: int) -> dict[str, float]:
    """The median of each way in milliseconds."""
    mpiexec = Path(sys.executable).parent / "mpiexec"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [str(mpiexec), "-n", str(ranks), sys.executable, "-m", "mpi4py", "-m", "bench.mpi_ranks"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, str(SIZE), str(out)], check=True, timeout=TIMEOUT_S, env=environment)
        times: dict[str, float] = json.loads(out.read_text(encoding="utf-8"))
        return times
