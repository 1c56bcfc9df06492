"""Torch's distributed checkpoints: what is written is what `dcp.load` takes, on other meshes, optimizers and all."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import check_mutations, load_into_trained, loaded_by_torch, save_safetensors, saved_by_torch

from reshard.cli import main
from reshard.models.checkpoints.opening import open_checkpoint

pytestmark = [pytest.mark.engine, pytest.mark.heavy]
RULES = """
mesh: {x: 3, y: 2}
rules:
  - {match: '.*\\.0\\.weight', spec: "P('y', 'x')"}
  - {match: '.*\\.1\\.weight', spec: "P(('x', 'y'))"}
  - {match: '.*\\.1\\.bias', spec: "P('x')"}
default: replicated
"""


@pytest.fixture(scope="module")
def distributed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that four ranks of torch saved; beside it one of a trained model and its optimizer."""
    pytest.importorskip("torch")
    from torch_ranks import run_ranks

    folder = tmp_path_factory.mktemp("saved") / "dcp"
    run_ranks(saved_by_torch, 4, str(folder))
    return folder


@pytest.fixture(scope="module")
def trained(distributed: Path) -> Path:
    """What four ranks saved of a model under FSDP and TP, and of its optimizer."""
    return distributed.with_name("dcp-trained")


def run(*arguments: object) -> int:
    return main(["checkpoint", *map(str, arguments)])


def test_a_distributed_checkpoint_is_what_torch_loads(distributed: Path, tmp_path: Path) -> None:
    """Every tensor bit for bit, under a cap that holds two numbers as well."""
    wanted = loaded_by_torch(str(distributed))
    for memory in ("1GiB", "32B"):
        out = tmp_path / memory
        assert run("convert", distributed, out, "--memory", memory, "--check") == 0
        got = open_checkpoint(out).tensors
        assert set(got) == set(wanted)
        data = (out / "model.safetensors").read_bytes()
        for name, tensor in got.items():
            (chunk,) = tensor.chunks
            assert data[chunk.offset : chunk.offset + tensor.nbytes] == wanted[name], name
        assert run("diff", distributed, out) == 0


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


@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", [".metadata", "__3_0.distcp"])
def test_a_changed_distributed_checkpoint_is_read_or_refused(
    distributed: Path, file: str, count: int, tmp_path: Path
) -> None:
    check_mutations(distributed, file, count, tmp_path / "changed")


def test_torch_loads_what_is_written_into_a_sharded_state(trained: Path, tmp_path: Path) -> None:
    """On six devices that never were, whole, and by way of tiles: bit for bit on every rank, steps and rates too."""
    from torch_ranks import run_ranks

    (tmp_path / "rules.yaml").write_text(RULES)
    rules = "--rules", tmp_path / "rules.yaml"
    assert run("convert", trained, tmp_path / "six", "--to", "dcp", *rules, "--check", "--memory", "100B") == 0
    assert run("convert", trained, tmp_path / "whole", "--to", "dcp", "--workers", 2) == 0
    assert run("diff", trained, tmp_path / "six") == 0
    names = sorted(path.name for path in (tmp_path / "six").iterdir())
    assert names == [".metadata", *(f"__{rank}_0.distcp" for rank in range(6))]
    folders = [str(tmp_path / name) for name in ("six", "whole")]
    assert run_ranks(load_into_trained, 4, *folders) == [[]] * 4


def test_what_an_optimizer_keeps_lies_where_its_parameter_does(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES.replace("match: '", "match: 'model"))
    assert run("convert", trained, tmp_path / "six", "--to", "dcp", "--rules", tmp_path / "rules.yaml") == 0
    tensors = open_checkpoint(tmp_path / "six").tensors
    boxes = {name: sorted(chunk.box for chunk in tensor.chunks) for name, tensor in tensors.items()}
    for layer, count in (("0.weight", 6), ("1.weight", 5), ("1.bias", 3)):
        assert len(boxes[f"model.{layer}"]) == count
        for state in ("exp_avg", "exp_avg_sq"):
            assert boxes[f"optim.state.{layer}.{state}"] == boxes[f"model.{layer}"]


def test_tiles_of_a_trained_model_go_back(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    assert run("convert", trained, tmp_path / "tiles", "--rules", tmp_path / "rules.yaml", "--check") == 0
    assert run("diff", trained, tmp_path / "tiles") == 0
    assert run("convert", tmp_path / "tiles", tmp_path / "back", "--to", "dcp") == 0
    assert run("diff", trained, tmp_path / "back") == 0


def test_items_are_zips_with_right_sums(tmp_path: Path) -> None:
    """As Python's own reader of zips checks them; and a cast is loaded as torch casts."""
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp

    arrays = {"w": np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32), "n": np.arange(3)}
    save_safetensors(tmp_path / "m.safetensors", arrays)
    out = tmp_path / "out"
    assert run("convert", tmp_path / "m.safetensors", out, "--to", "dcp", "--dtype", "w=bf16", "--memory", "40B") == 0
    state = {"w": torch.zeros(5, 7, dtype=torch.bfloat16), "n": torch.zeros(3, dtype=torch.int64)}
    dcp.load(state, checkpoint_id=out, no_dist=True)
    assert torch.equal(state["w"], torch.from_numpy(arrays["w"]).bfloat16())
    assert state["n"].tolist() == [0, 1, 2]
    for info in dcp.FileSystemReader(out).read_metadata().storage_data.values():
        data = (out / info.relative_path).read_bytes()[info.offset : info.offset + info.length]
        assert zipfile.ZipFile(io.BytesIO(data)).testzip() is None


@pytest.mark.parametrize("to", ["dcp", "tiles"])
def test_a_rank_may_have_a_part_of_gate_and_one_of_up(to: str, tmp_path: Path) -> None:
    """Two boxes of one tensor, which torch does not save: written so that it loads them."""
    experts = np.arange(2 * 20 * 6, dtype=np.float32).reshape(2, 20, 6)
    save_safetensors(tmp_path / "m.safetensors", {"experts.gate_up_proj": experts, "n": np.arange(3)})
    (tmp_path / "rules.yaml").write_text(
        "mesh: {tp: 4}\nrules: [{match: '.*gate_up_proj', spec: packed_colwise}]\ndefault: replicated\n"
    )
    out = tmp_path / to
    rules = "--rules", tmp_path / "rules.yaml"
    assert run("convert", tmp_path / "m.safetensors", out, "--to", to, "--check", *rules) == 0
    assert run("diff", tmp_path / "m.safetensors", out) == 0
    if to == "dcp":
        torch = pytest.importorskip("torch")
        from torch.distributed import checkpoint

        state = {"experts.gate_up_proj": torch.zeros(2, 20, 6)}
        checkpoint.load(state, checkpoint_id=str(out), no_dist=True)
        assert np.array_equal(state["experts.gate_up_proj"].numpy(), experts)
    else:
        tile = open_checkpoint(out / "device-00001.safetensors").tensors["experts.gate_up_proj"]
        assert tile.shape == (2, 6, 6)  # 3-5 of gate, 13-15 of up
