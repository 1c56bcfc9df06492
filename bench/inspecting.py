"""What `inspect` says of training steps, and what following it saves: bytes of compiled programs.

The steps are those of the tests, compiled in a process of 8 devices of a CPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.timing import Row

TESTS = Path(__file__).parent.parent / "tests"
TIMEOUT_S = 1200


def rows() -> Iterator[Row]:
    """One line a step; none without JAX."""
    if importlib.util.find_spec("jax") is None:
        return
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "bench.inspecting"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    for line in done.stdout.splitlines():
        name, received, followed, said, findings, placed = json.loads(line)
        yield Row(
            f"inspect a training step, {name}",
            f"{findings} findings, {said} of {received} B said to be saved, {received - followed} B saved; "
            f"placed by propagate {placed} B",
            "what was said",
            received - followed == said,
        )


def measure() -> None:
    """Print the figures of each step."""
    from jax_steps import STEPS, as_advised, by_constraints, report_of  # noqa: PLC0415  # in the process that has JAX

    for name in STEPS:
        before, after = report_of(name, by_constraints), report_of(name, as_advised)
        said = sum(finding.saved_bytes for finding in before.findings)
        figures = before.received_bytes, after.received_bytes, said, len(before.findings), before.placed_bytes
        print(json.dumps([name, *figures]), flush=True)


if __name__ == "__main__":
    measure()
