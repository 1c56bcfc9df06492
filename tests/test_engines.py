"""Engines load on first use, and one that is absent says which extra brings it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ENGINES

import reshard as rs

WITHOUT_ENGINE = """
import sys
sys.modules["{package}"] = None  # what the import system takes for a package that is not there
import reshard
try:
    reshard.{name}
except reshard.ReshardError as refusal:
    print(refusal.code, refusal)
"""


@pytest.mark.parametrize(("name", "package"), ENGINES.items())
def test_an_absent_engine_names_its_extra(name: str, package: str, tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINE.format(name=name, package=package)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("missing-extra ")
    assert f"reshard[{name}]" in process.stdout


def test_a_module_of_stablehlo_asks_for_jax(tmp_path: Path) -> None:
    statement = WITHOUT_ENGINE.format(name="jax", package="jax").replace(
        "reshard.jax", "reshard.Program.from_stablehlo('module {}')"
    )
    process = subprocess.run(
        [sys.executable, "-c", statement], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert process.stdout.startswith("missing-extra "), process.stderr
    assert "reshard[jax]" in process.stdout


def test_a_name_that_is_no_engine_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="tensorflow"):
        rs.tensorflow  # noqa: B018


@pytest.mark.parametrize(("name", "package"), ENGINES.items())
def test_an_absent_engine_is_not_there_to_imports(name: str, package: str, tmp_path: Path) -> None:
    statement = f"""
import sys
sys.modules["{package}"] = None
import reshard
assert not hasattr(reshard, "{name}")
try:
    from reshard import {name}
except ImportError as error:
    print(error)
"""
    process = subprocess.run(
        [sys.executable, "-c", statement], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert process.stdout == f"{package} is not installed: pip install 'reshard[{name}]'\n", process.stderr


TYPED = """
import reshard as rs
reveal_type(rs.jax.reshard)
reveal_type(rs.jax.inspect)
reveal_type(rs.torch.redistribute)
reveal_type(rs.numpy.run)
reveal_type(rs.plan)
"""


@pytest.mark.slow
def test_a_type_checker_sees_the_engines(tmp_path: Path) -> None:
    """Functions, not Any; reading both engines takes mypy half a minute."""
    (tmp_path / "use.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--python-version", "3.11", "--follow-imports", "silent", "use.py"]
    environment = os.environ | {"MYPYPATH": str(Path(rs.__file__).parents[1])}
    process = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    revealed = [line.partition("Revealed type is ")[2] for line in process.stdout.splitlines() if "Revealed" in line]
    assert len(revealed) == 5, process.stdout
    assert all(text.startswith(('"def (', '"Overload(')) for text in revealed), revealed
