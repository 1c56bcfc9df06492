"""Processes that measure together, one per rank: all are told the same, and the first gives what was found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TIMEOUT_S = 600
"""For each rank, once those before it have ended."""


def found_by(module: str, ranks: int, told: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Any:
    """What the module gives, run by so many processes; see `bench.redistribute_ranks.run_rank`.

    Args:
        module: its name.
        ranks: how many processes.
        told: what they are told; it goes through JSON, and so does what comes back.
        environment: variables on top of those that are set.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        text = json.dumps({**told, "ranks": ranks, "store": str(Path(folder) / "store"), "out": str(out)})
        variables = {**os.environ, **(environment or {}), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        commands = [[sys.executable, "-m", module, text, str(rank)] for rank in range(ranks)]
        processes = [subprocess.Popen(command, env=variables) for command in commands]
        try:
            codes = [process.wait(TIMEOUT_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            raise RuntimeError(f"the ranks ended with {codes}")
        return json.loads(out.read_text(encoding="utf-8"))
