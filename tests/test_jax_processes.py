"""Reshards between processes under `jax.distributed`, with gloo on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

SCRIPT = Path(__file__).parent / "jax_process.py"
PROCESSES = 2
DEVICES, EAGER, JITTED = 2, 6, 6
"""Of each process; random problems, the eager ones each in three orders."""
LIMIT_S = 120


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def run_processes(seed: str) -> list[str]:
    """What each process says at its end."""
    given = os.environ.get("XLA_FLAGS", "").split()
    flags = " ".join(flag for flag in given if "host_platform_device_count" not in flag)
    environment = {**os.environ, "XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "3"}
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), port, str(PROCESSES), str(number), seed],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    try:
        said = [process.communicate(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, complaint) in zip(processes, said, strict=True):
        assert process.returncode == 0, complaint[-3000:]
    return [next(line for line in out.splitlines() if line.startswith("RESULT")) for out, _ in said]


def test_every_process_holds_its_tiles() -> None:
    """Every process checks its own devices; to a part of the processes an array does not go."""
    for said in run_processes("processes 0"):
        _, checked, code = said.split()
        assert int(checked) == DEVICES * (3 * EAGER + JITTED)
        assert code == "different-meshes"
