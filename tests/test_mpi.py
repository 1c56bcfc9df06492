"""Ranks of MPI hold what the NumPy engine says, bit for bit, and end together where one of them fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reshard import cli

pytest.importorskip("mpi4py")

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

TESTS = Path(__file__).parent
MPIEXEC = Path(sys.executable).parent / "mpiexec"
ON_FOUR = [
    "moves",
    "reductions",
    "sums_of_replicas",
    "parts",
    "rings",
    "windows_and_deals",
    "shared_tiles",
    "elements_of_few_bits",
    "memory",
    "rooms",
    "strips",
    "calibration",
    "other_communicators",
    "refusals",
    "transfers_refused",
    "casts_in_blocks",
]


def run_ranks(
    names: list[str], size: int, folder: Path, variables: dict[str, str] | None = None, program: str = "mpi_features.py"
) -> subprocess.CompletedProcess[str]:
    """Start so many ranks, whose program writes what is wrong to `wrong.json` in a folder."""
    command = [str(MPIEXEC), "-n", str(size), sys.executable, "-m", "mpi4py", str(TESTS / program)]
    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), str(TESTS)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | (variables or {})
    return subprocess.run(
        [*command, str(folder / "wrong.json"), *names],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def wrong_features(
    names: list[str], size: int, folder: Path, variables: dict[str, str] | None = None, program: str = "mpi_features.py"
) -> dict[str, list[str]]:
    """What the ranks find wrong, by feature."""
    process = run_ranks(names, size, folder, variables, program)
    assert process.returncode == 0, process.stdout + process.stderr
    wrong: dict[str, list[str]] = json.loads((folder / "wrong.json").read_text())
    return wrong


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What four ranks find wrong with each feature; MPICH takes them for those of two hosts."""
    return wrong_features(ON_FOUR, 4, tmp_path_factory.mktemp("ranks"), {"MPIR_CVAR_NUM_CLIQUES": "2"})


@pytest.mark.parametrize("name", ON_FOUR)
def test_feature(name: str, wrong: dict[str, list[str]]) -> None:
    assert not wrong[name], "\n".join(wrong[name][:5])


def test_small_models_on_eight_ranks(tmp_path: Path) -> None:
    found = wrong_features(["models"], 8, tmp_path)["models"]
    assert not found, "\n".join(found[:5])


def test_ranks_of_two_rings_change_places(tmp_path: Path) -> None:
    found = wrong_features(["two_rings"], 9, tmp_path)["two_rings"]
    assert not found, "\n".join(found[:5])


def test_shared_tiles_on_one_host(tmp_path: Path) -> None:
    found = wrong_features(["shared_tiles", "memory", "rings"], 4, tmp_path)
    assert not any(found.values()), found


@pytest.mark.slow
def test_all_on_one_host(tmp_path: Path) -> None:
    found = wrong_features(ON_FOUR, 4, tmp_path)
    assert not any(found.values()), found


def test_a_rank_that_fails_ends_all(tmp_path: Path) -> None:
    process = run_ranks(["one_rank_fails"], 2, tmp_path)
    assert process.returncode != 0
    assert "RuntimeError: a rank fails" in process.stderr
    assert not (tmp_path / "wrong.json").exists()


def mpi_run(size: int, *words: str) -> subprocess.CompletedProcess[str]:
    """`reshard run` by so many processes."""
    command = [str(MPIEXEC), "-n", str(size), sys.executable, "-m", "reshard", "run", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_processes_share_the_files_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder is that of one process, what is printed too; a refusal is said once, and nothing is left."""
    np.save(tmp_path / "whole.npy", np.arange(70, dtype=np.float32).reshape(10, 7))
    words = ["--mesh", "x=2,y=3", "--source", '[{"y"}, {}]', "--target", '[{"x"}, {"y"}]']
    outs = {
        name: [str(tmp_path / "whole.npy"), *words, "--out", str(tmp_path / name)] for name in ("alone", "together")
    }
    assert cli.main(["run", *outs["alone"]]) == 0
    together = mpi_run(3, *outs["together"])
    assert together.returncode == 0, together.stderr
    assert together.stdout == capsys.readouterr().out.replace("/alone", "/together")
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in outs]
    assert files[0] == files[1]
    again = mpi_run(2, *outs["together"])
    assert again.returncode == 1
    assert again.stderr.count("is already there") == 1
    (tmp_path / "alone" / "device-4.npy").write_bytes(b"broken")
    broken = mpi_run(2, str(tmp_path / "alone"), "--target", "[{}, {}]", "--out", str(tmp_path / "third"))
    assert broken.returncode == 1
    assert "device-4.npy" in broken.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "together", "whole.npy"]


@pytest.mark.slow
def test_more_elements_than_an_int_counts(tmp_path: Path) -> None:
    found = wrong_features(["many_elements"], 2, tmp_path)
    assert not found["many_elements"], found["many_elements"]
