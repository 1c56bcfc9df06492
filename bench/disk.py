"""`reshard run` on a large file, as a process of its own: its time and its resident memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.timing import Row

ROWS, COLUMNS = 16384, 32768
MEASURED = """
import sys
from pathlib import Path
from reshard.cli import main
status = main(sys.argv[1:])
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(peak.split()[1], file=sys.stderr)
sys.exit(status)
"""
"""Prints the most memory that was resident, in KiB; Linux alone says it."""


def rows() -> Iterator[Row]:
    """2 GiB of float32, rows to columns on 8 devices."""
    with tempfile.TemporaryDirectory() as folder:
        free = shutil.disk_usage(folder).free
        if free < 6 * 2**30:
            yield Row(
                "reshard run, 2 GiB", "not run: less than 6 GiB of disk are free", "at most 512 MiB resident", None
            )
            return
        path = Path(folder) / "large.npy"
        whole = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(ROWS, COLUMNS))
        for start in range(0, ROWS, 512):
            whole[start : start + 512] = np.arange(start * COLUMNS, (start + 512) * COLUMNS).reshape(512, COLUMNS)
        whole.flush()
        del whole
        command = ["run", str(path), "--mesh", "x=2,y=4", "--source", '[{"x","y"}, {}]', "--target", '[{}, {"y","x"}]']
        start = time.perf_counter()
        process = subprocess.run(
            [sys.executable, "-c", MEASURED, *command, "--out", str(Path(folder) / "out")],
            capture_output=True,
            text=True,
            check=False,
        )
        took = time.perf_counter() - start
        done = "" if process.returncode == 0 else f", and it FAILED: {process.stderr.strip()}"
        resident = 0 if done else int(process.stderr.split()[-1]) / 1024
        yield Row(
            "reshard run, 2 GiB, rows to columns, written and verified",
            f"{resident:.0f} MiB resident, {took:.1f} s{done}",
            "at most 512 MiB resident",
            resident <= 512 and not done,
        )
