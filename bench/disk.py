"""`reshard run` on a large file, as a process of its own: its time and its resident memory."""

from __future__ import annotations

import os
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
        process = subprocess.Popen(
            [sys.executable, "-m", "reshard", *command, "--out", str(Path(folder) / "out")], stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        took = time.perf_counter() - start
        resident = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**20
        done = "" if os.waitstatus_to_exitcode(status) == 0 else ", and it FAILED"
        yield Row(
            "reshard run, 2 GiB, rows to columns, written and verified",
            f"{resident:.0f} MiB resident, {took:.1f} s{done}",
            "at most 512 MiB resident",
            resident <= 512 and not done,
        )
