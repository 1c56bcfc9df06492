"""Checkpoints are read as torch and the safetensors package read them, written as these take them, and never half."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import load_safetensors, loaded_by_torch, save_safetensors, saved_by_torch
from model_layouts import SMALL, megatron, vllm, whole_arrays

import reshard as rs
from reshard.cli import main
from reshard.models.checkpoints.opening import open_checkpoint


@pytest.fixture(scope="module")
def distributed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that four ranks of torch saved."""
    pytest.importorskip("torch")
    from torch_ranks import run_ranks

    folder = tmp_path_factory.mktemp("saved") / "dcp"
    run_ranks(saved_by_torch, 4, str(folder))
    return folder


def run(*arguments: object) -> int:
    return main(["checkpoint", *map(str, arguments)])


@pytest.mark.engine
@pytest.mark.heavy
def test_a_distributed_checkpoint_is_what_torch_loads(distributed: Path, tmp_path: Path) -> None:
    """Every tensor bit for bit, under a cap that holds two numbers as well."""
    wanted = loaded_by_torch(str(distributed))
    for memory in ("1GiB", "32B"):
        out = tmp_path / memory
        assert run("convert", distributed, out, "--memory", memory, "--check") == 0
        got = {name: tensor for name, tensor in open_checkpoint(out).tensors.items()}
        assert set(got) == set(wanted)
        data = (out / "model.safetensors").read_bytes()
        for name, tensor in got.items():
            (chunk,) = tensor.chunks
            assert data[chunk.offset : chunk.offset + tensor.nbytes] == wanted[name], name
        assert run("diff", distributed, out) == 0


@pytest.mark.engine
@pytest.mark.heavy
def test_torch_is_not_loaded_to_read_its_checkpoints(distributed: Path) -> None:
    code = (
        "import sys; from reshard.models.checkpoints.opening import open_checkpoint;"
        f"open_checkpoint({str(distributed)!r}); print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/reshard-was-here",)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (pickle.dumps(Evil()), "asks for posix.system, which no checkpoint needs"),
        (pickle.dumps({"a": 1}), "has no state_dict_metadata"),
        (pickle.dumps(open), "asks for io.open, which no checkpoint needs"),
        (b"\x80\x04r\xff\xff\xff\x7f.", "is no pickle that can be read"),
        (b"", "is no pickle that can be read"),
        (b"\x80\x04B\xff\xff\xff\xff.", "is no pickle that can be read"),
    ],
)
def test_a_pickle_that_asks_for_anything_else_is_refused(
    data: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".metadata").write_bytes(data)
    assert run("show", tmp_path) == 1
    assert sentence in capsys.readouterr().err


def mutated(data: bytes, draw: random.Random) -> bytes:
    """A few bytes changed, cut out, or doubled."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(changed))
        kind = draw.random()
        if kind < 0.6:
            changed[at] = draw.randrange(256)
        elif kind < 0.8:
            del changed[at : at + draw.randint(1, 9)]
        else:
            changed[at:at] = changed[at : at + draw.randint(1, 9)]
    return bytes(changed)


def check_mutations(source: Path, file: str, count: int, folder: Path) -> None:
    """Whatever is changed in a file, it is read or refused."""
    shutil.copytree(source, folder)
    data, draw = (source / file).read_bytes(), random.Random(file)
    for _ in range(count):
        (folder / file).write_bytes(mutated(data, draw))
        try:
            checkpoint = open_checkpoint(folder)
        except rs.ReshardError:
            continue
        for tensor in checkpoint.tensors.values():
            assert tensor.nbytes < 10_000


@pytest.mark.engine
@pytest.mark.heavy
@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", [".metadata", "__3_0.distcp"])
def test_a_changed_distributed_checkpoint_is_read_or_refused(
    distributed: Path, file: str, count: int, tmp_path: Path
) -> None:
    check_mutations(distributed, file, count, tmp_path / "changed")


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
        from reshard.models.checkpoints.converting import Converting, convert
        from reshard.models.checkpoints.layouts import device_files

        checkpoint = open_checkpoint(tmp_path / "whole")
        files = device_files(checkpoint, rs.Rules.preset(system, model), None)
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
    """Columns of 4 rows are 4 requests; rows are one."""
    save_safetensors(tmp_path / "m.safetensors", {"w": np.zeros((4, 8), np.float32)})
    for spec, requests in (("P(None, 'x')", 8), ("P('x')", 2)):
        (tmp_path / "rules.yaml").write_text(f'mesh: {{x: 2}}\nrules:\n  - {{match: w, spec: "{spec}"}}\n')
        assert run("cost", tmp_path / "m.safetensors", "--rules", tmp_path / "rules.yaml", "--json") == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["read_bytes"], answer["requests"]) == (128, requests)


@pytest.mark.heavy
def test_a_conversion_that_is_killed_is_gone_on_with(tmp_path: Path) -> None:
    """At whatever moment: nothing has the output's name, and what is resumed is whole."""
    whole = small_checkpoint(tmp_path / "whole")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "reshard", "checkpoint", "convert", tmp_path / "whole", out, "--memory", "2B"]
    for delay in (0.8, 1.1, 1.4):
        process = subprocess.Popen([*map(str, command), "--resume"])
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            break
        assert not out.exists()
    if not out.exists():
        subprocess.run([*map(str, command[:-2]), "--resume"], check=True, capture_output=True)
    got = load_safetensors(out)
    assert sorted(got) == sorted(whole)
    assert all(np.array_equal(got[name], array) for name, array in whole.items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


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
