"""What all tests share: which engines are here, which must be, and how Hypothesis draws its examples.

Environment:

- `RESHARD_REQUIRE=jax,torch,chromium`: the engines and the browser that must be here.
  Without it a test whose engine is absent is skipped; with it the run fails before its first test.
- `RESHARD_HYPOTHESIS_PROFILE=dev`: fresh random examples on every run.
  The default, `ci`, draws the same examples each time.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil

import hypothesis
import pytest

XLA_FLAGS = (
    "--xla_force_host_platform_device_count=32",  # one process then has 32 devices
    "--xla_cpu_use_fusion_emitters=false",  # what follows partitioning is XLA's own; a program then compiles in a third
    "--xla_backend_optimization_level=0",
)
"""JAX reads them when it is first imported."""
flags = os.environ.get("XLA_FLAGS", "").split()  # a worker of xdist has them from the process that started it
os.environ["XLA_FLAGS"] = " ".join([*flags, *(flag for flag in XLA_FLAGS if flag not in flags)])

ENGINES = {"jax": "jax", "mpi": "mpi4py", "torch": "torch"}
"""The engines that are installed apart, and the package of each; NumPy is always there."""
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""The browser that opens pages; `test_pages.py` is skipped without one."""
OPTIONAL = (*ENGINES, "chromium")

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile(os.environ.get("RESHARD_HYPOTHESIS_PROFILE", "ci"))


def absent_engines() -> tuple[str, ...]:
    absent = [name for name, package in ENGINES.items() if importlib.util.find_spec(package) is None]
    return (*absent, *(() if CHROMIUM and importlib.util.find_spec("playwright") else ("chromium",)))


def complaint_about_required(required: str, absent: tuple[str, ...]) -> str | None:
    """Why the run must not start, given the value of `RESHARD_REQUIRE` and the engines that are absent."""
    names = [name.strip() for name in required.split(",") if name.strip()]
    if unknown := [name for name in names if name not in OPTIONAL]:
        return f"RESHARD_REQUIRE names {', '.join(unknown)}; it may name {', '.join(OPTIONAL)}"
    if missing := [name for name in names if name in absent]:
        return f"RESHARD_REQUIRE asks for {', '.join(missing)}, which is not installed"
    return None


def pytest_configure() -> None:
    if complaint := complaint_about_required(os.environ.get("RESHARD_REQUIRE", ""), absent_engines()):
        raise pytest.UsageError(complaint)


def pytest_report_header() -> str:
    absent = absent_engines()
    present = ["numpy", *(name for name in ENGINES if name not in absent)]
    versions = ", ".join(f"{name} {importlib.metadata.version(ENGINES.get(name, name))}" for name in present)
    browser = f"browser: {CHROMIUM or 'none'}; "
    return f"{browser}engines: {versions}; absent: {', '.join(absent) or 'none'}"
