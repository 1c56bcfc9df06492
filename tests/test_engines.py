"""Engines load on first use, and one that is absent says which extra brings it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import reshard as rs

WITHOUT_ENGINE = """
import sys
sys.modules["{name}"] = None  # what the import system takes for a package that is not there
import reshard
try:
    reshard.{name}
except reshard.ReshardError as refusal:
    print(refusal.code, refusal)
"""


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_an_absent_engine_names_its_extra(name: str, tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINE.format(name=name)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("missing-extra ")
    assert f"reshard[{name}]" in process.stdout


def test_a_module_of_stablehlo_asks_for_jax(tmp_path: Path) -> None:
    statement = WITHOUT_ENGINE.format(name="jax").replace("reshard.jax", "reshard.Program.from_stablehlo('module {}')")
    process = subprocess.run(
        [sys.executable, "-c", statement], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert process.stdout.startswith("missing-extra "), process.stderr
    assert "reshard[jax]" in process.stdout


def test_a_name_that_is_no_engine_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="tensorflow"):
        rs.tensorflow  # noqa: B018
