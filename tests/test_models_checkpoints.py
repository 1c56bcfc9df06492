"""Checkpoints are read as torch and the safetensors package read them, written as these take them, and never half."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import check_mutations, load_safetensors, save_safetensors
from model_layouts import SMALL, megatron, vllm, whole_arrays

import reshard as rs
from reshard.cli import main
from reshard.models.checkpoints.converting import Converting, convert
from reshard.models.checkpoints.layouts import device_files, whole_files
from reshard.models.checkpoints.opening import open_checkpoint


def run(*arguments: object) -> int:
    return main(["checkpoint", *map(str, arguments)])


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.slow)])
def test_a_changed_safetensors_file_is_read_or_refused(count: int, tmp_path: Path) -> None:
    source = tmp_path / "whole"
    source.mkdir()
    save_safetensors(source / "model.safetensors", {"a": np.arange(6.0), "b": np.zeros((2, 3), np.int8)})
    check_mutations(source, "model.safetensors", count, tmp_path / "changed")


def small_checkpoint(folder: Path, family: str = "qwen-moe") -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a small model, in two files with an index."""
    whole = whole_arrays(SMALL[family])
    folder.mkdir()
    names = list(whole)
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    for number, half in enumerate(halves):
        save_safetensors(folder / f"part{number}.safetensors", {name: whole[name] for name in half})
    index = {name: f"part{number}.safetensors" for number, half in enumerate(halves) for name in half}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return whole


@pytest.mark.parametrize("memory", ["1GiB", "200B"])
def test_a_file_per_device_has_what_the_device_keeps(memory: str, tmp_path: Path) -> None:
    """Fused, stacked and padded, as the system's rules say; by slicing whole arrays apart from the package."""
    model = SMALL["qwen-moe"]
    whole = small_checkpoint(tmp_path / "whole")
    for system, held in (
        ("vllm:tp=2,dp=2,ep=on", vllm(model, whole, 2, 2, True)),
        ("megatron:tp=2,pp=2+1,ep=4", megatron(model, whole, 2, [2, 1], 4, 2)),
    ):
        checkpoint = open_checkpoint(tmp_path / "whole")
        files = device_files(checkpoint, rs.Rules.preset(system, model), ())
        out = tmp_path / system.partition(":")[0]
        size = {"1GiB": 1 << 30, "200B": 200}[memory]
        convert(Converting(checkpoint, files, out, size, 2, False, True), lambda count: None)
        for device, buffers in held.items():
            got = load_safetensors(out / f"device-{device:05}.safetensors")
            assert sorted(got) == sorted(buffers)
            assert all(np.array_equal(got[name], array) for name, array in buffers.items())


def test_values_are_cast(tmp_path: Path) -> None:
    import ml_dtypes

    source = tmp_path / "source.safetensors"
    arrays = {"w": np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32), "n": np.arange(3)}
    save_safetensors(source, arrays)
    assert run("convert", source, tmp_path / "out", "--dtype", "bf16", "--memory", "20B") == 0
    data = (tmp_path / "out" / "model.safetensors").read_bytes()
    tensors = open_checkpoint(tmp_path / "out").tensors
    (chunk,) = tensors["w"].chunks
    got = np.frombuffer(data, ml_dtypes.bfloat16, 35, chunk.offset).reshape(5, 7)
    assert np.array_equal(got, arrays["w"].astype(ml_dtypes.bfloat16))
    assert tensors["n"].dtype.name == "int64"


def test_diff_tells_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_safetensors(first, {"same": np.arange(4), "w": np.arange(6.0), "shape": np.zeros(2), "mine": np.zeros(1)})
    save_safetensors(second, {"same": np.arange(4), "w": np.arange(6.0)[::-1].copy(), "shape": np.zeros(3)})
    assert run("diff", first, second) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"mine: only in {first}",
        "shape: shape (2,) and (3,)",
        "w: 6 of 6 elements",
    ]


def test_cost_tells_what_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns of 4 rows are 4 requests for a device alone, rows are one; together they are read once."""
    save_safetensors(tmp_path / "m.safetensors", {"w": np.zeros((4, 8), np.float32)})
    for spec, requests in (("P(None, 'x')", 4), ("P('x')", 1)):
        (tmp_path / "rules.yaml").write_text(f'mesh: {{x: 2}}\nrules:\n  - {{match: w, spec: "{spec}"}}\n')
        assert run("cost", tmp_path / "m.safetensors", "--rules", tmp_path / "rules.yaml", "--json") == 0
        answer = json.loads(capsys.readouterr().out)
        assert [(file["read_bytes"], file["requests"]) for file in answer["files"]] == [(64, requests)] * 2
        assert (answer["read_bytes"], answer["requests"]) == (128, 1)


def killing(*arguments: object) -> None:
    """Run the program that kills conversions."""
    program = [sys.executable, str(Path(__file__).with_name("killed_conversions.py"))]
    answer = subprocess.run([*program, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("count", [5, pytest.param(300, marks=pytest.mark.slow)])
def test_a_conversion_that_is_killed_is_gone_on_with(count: int, tmp_path: Path) -> None:
    """At whatever moment, again and again."""
    killing("rounds", count, tmp_path)


@pytest.mark.heavy
def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    """What is left of a stopped conversion is gone on with for the same source and request alone."""
    small_checkpoint(tmp_path / "whole")
    arguments = ["convert", str(tmp_path / "whole"), str(tmp_path / "out"), "--no-sync"]
    killing("at", 40, *arguments)
    done = (tmp_path / ".out.partial" / "journal-0").read_text().splitlines()
    assert 10 < len(done) < 40
    assert run(*arguments, "--resume", "--to", "dcp") == 1
    assert (tmp_path / ".out.partial" / "journal-0").read_text().splitlines() == done
    checkpoint = open_checkpoint(tmp_path / "whole")
    work = Converting(checkpoint, whole_files(checkpoint, ()), tmp_path / "out", resume=True)
    reads = convert(work, lambda count: None)
    assert 0 < reads.nbytes < checkpoint.nbytes
    assert reads.requests == len(checkpoint.tensors) - len(done)


@pytest.mark.parametrize(
    ("index", "sentence"),
    [
        ({"weight_map": {"a": "../secret.safetensors"}}, "no file of the folder"),
        ({"weight_map": {"a": "/etc/passwd"}}, "no file of the folder"),
        ({"weight_map": {"b": "m.safetensors"}}, "has no tensor 'b', which the index says it has"),
        ({"weight_map": {"a": 3}}, "no file of the folder"),
        ([], "is no index of safetensors files"),
    ],
)
def test_an_index_that_lies_is_refused(
    index: Any, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_safetensors(tmp_path / "m.safetensors", {"a": np.zeros(3)})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert run("show", tmp_path) == 1
    assert sentence in capsys.readouterr().err


def test_an_output_that_is_there_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_safetensors(tmp_path / "m.safetensors", {"a": np.zeros(3)})
    (tmp_path / "out").mkdir()
    assert run("convert", tmp_path / "m.safetensors", tmp_path / "out") == 1
    assert "is already there; the output must be new" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def test_a_name_cannot_write_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        save_safetensors(tmp_path / f"{number}.safetensors", {"a\x1b[2J\nb": np.full(2, number)})
    assert main(["checkpoint", "show", str(tmp_path / "0.safetensors")]) == 0
    assert main(["checkpoint", "diff", *(str(tmp_path / f"{number}.safetensors") for number in range(2))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum("'a\\x1b[2J\\nb'" in line for line in lines) == 2
    assert all(line.isprintable() for line in lines)
