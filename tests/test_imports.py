"""What does `import reshard` load? The standard library and NumPy, nothing else.

The import contracts in pyproject.toml read the source; here a fresh process is asked what it really loaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPORT = """
import json, sys
at_start = set(sys.modules)
{statement}
loaded = {{
    name.partition(".")[0]
    for name, module in sys.modules.items()
    if name not in at_start and getattr(module, "__file__", None)  # compiled NumPy registers names without a file
}}
print(json.dumps(sorted(loaded - sys.stdlib_module_names)))
"""


def loaded_by(statement: str, folder: Path) -> set[str]:
    """Run a statement in a fresh process; return the top-level packages it loads beside the standard library."""
    # A folder of its own, for `python -c` looks for modules where it starts.
    process = subprocess.run(
        [sys.executable, "-c", REPORT.format(statement=statement)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return set(json.loads(process.stdout))


def test_import_loads_nothing_beside_the_standard_library_and_numpy(tmp_path: Path) -> None:
    loaded = loaded_by("import reshard", tmp_path)
    assert "reshard" in loaded
    assert loaded <= {"reshard", "numpy"}


@pytest.mark.parametrize(
    ("statement", "package"),
    [("import lark", "lark"), ("import rich.table", "rich"), ("import numpy", "numpy")],
)
def test_a_package_that_is_loaded_is_seen(statement: str, package: str, tmp_path: Path) -> None:
    assert package in loaded_by(statement, tmp_path)


def test_nothing_is_loaded_before_it_is_used(tmp_path: Path) -> None:
    """So `import reshard` and `reshard --version` take less than NumPy's own start."""
    assert loaded_by("import reshard", tmp_path) == {"reshard"}
    version = "import contextlib, reshard.cli\nwith contextlib.redirect_stdout(None): reshard.cli.main(['--version'])"
    assert loaded_by(version, tmp_path) == {"reshard"}
    assert loaded_by("import reshard; reshard.plan", tmp_path) == {"numpy", "reshard"}


def test_benchmarks_load() -> None:
    """They reach into what is kept of patterns, under names that no other test says."""
    process = subprocess.run(
        [sys.executable, "-m", "bench", "nothing"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2, process.stderr
    assert "there are planning, networks" in process.stdout + process.stderr
