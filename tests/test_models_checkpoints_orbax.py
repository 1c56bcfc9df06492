"""Orbax's checkpoints: what orbax saves is read as it is, and what is written orbax restores, on other meshes too."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import check_mutations, load_safetensors, peak_mib, peak_of_loading, save_safetensors

from reshard.box import Box
from reshard.cli import main
from reshard.models.checkpoints.files import FileReader, Reads
from reshard.models.checkpoints.opening import open_checkpoint
from reshard.models.checkpoints.stored import raw_dtype

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]
RULES = """
mesh: {a: 3, b: 2}
rules:
  - {match: '.*\\.w', spec: "P('b', 'a')"}
  - {match: '.*\\.b', spec: "P('a')"}
default: replicated
"""


def saved_tree() -> dict[str, Any]:
    """Cut in two dims, in one, in none; a list, a scalar."""
    jax = pytest.importorskip("jax")
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    draw = np.random.default_rng(0)
    weight = jax.device_put(draw.standard_normal((8, 6)).astype("f4"), NamedSharding(mesh, PartitionSpec("x", "y")))
    bias = jax.device_put(jax.numpy.arange(6, dtype="bfloat16"), NamedSharding(mesh, PartitionSpec("y")))
    return {"layer": {"w": weight, "b": bias}, "list": [np.ones(3), np.zeros((), np.int32)], "step": np.asarray(5)}


@pytest.fixture(scope="module", params=[True, False], ids=["database", "files"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What orbax saved, into a database or as plain files."""
    checkpoints = pytest.importorskip("orbax.checkpoint")
    folder: Path = tmp_path_factory.mktemp("saved") / "orbax"
    with checkpoints.PyTreeCheckpointer(use_ocdbt=request.param) as checkpointer:
        checkpointer.save(folder, saved_tree())
    return folder


def run(*arguments: object) -> int:
    return main(["checkpoint", *map(str, arguments)])


@pytest.mark.parametrize("memory", ["1GiB", "144B"])
def test_what_orbax_saves_is_read(saved: Path, memory: str, tmp_path: Path) -> None:
    assert run("convert", saved, tmp_path / "out", "--check", "--memory", memory) == 0
    assert run("diff", saved, tmp_path / "out") == 0
    wanted, got = saved_tree(), load_safetensors_as_raw(tmp_path / "out")
    assert set(got) == {"layer.w", "layer.b", "list.0", "list.1", "step"}
    pairs = [("layer.w", wanted["layer"]["w"]), ("layer.b", wanted["layer"]["b"]), ("step", wanted["step"])]
    for name, value in [*pairs, ("list.0", wanted["list"][0]), ("list.1", wanted["list"][1])]:
        assert got[name] == np.asarray(value).tobytes()


def test_memory_that_holds_no_chunk_is_refused(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("convert", saved, tmp_path / "out", "--memory", "143B") == 1
    assert "has chunks that take 144 bytes of memory; 143 are allowed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def load_safetensors_as_raw(folder: Path) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in load_safetensors(folder).items()}


def test_what_is_written_orbax_restores(saved: Path, tmp_path: Path) -> None:
    """As it is, and into arrays on another mesh; the chunks are the tiles of the rules."""
    import jax
    import orbax.checkpoint
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    (tmp_path / "rules.yaml").write_text(RULES)
    assert run("convert", saved, tmp_path / "dcp", "--to", "dcp") == 0
    out = tmp_path / "out"
    assert run("convert", tmp_path / "dcp", out, "--to", "orbax", "--rules", tmp_path / "rules.yaml", "--check") == 0
    six = orbax.checkpoint.StandardCheckpointer().restore(out)
    assert run("convert", saved, tmp_path / "nested", "--to", "orbax", "--memory", "288B", "--workers", 2) == 0
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(8), ("z",))
    wanted = saved_tree()
    abstract = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, PartitionSpec())),
        wanted,
    )
    rows = NamedSharding(mesh, PartitionSpec("z"))
    abstract["layer"]["w"] = jax.ShapeDtypeStruct((8, 6), "float32", sharding=rows)
    restored = orbax.checkpoint.StandardCheckpointer().restore(tmp_path / "nested", abstract)
    assert restored["layer"]["w"].sharding == rows
    jax.tree.map(np.testing.assert_array_equal, restored, wanted)
    jax.tree.map(np.testing.assert_array_equal, six, wanted)
    chunks = {name: tensor.grid for name, tensor in open_checkpoint(out).tensors.items()}
    assert (chunks["layer.w"], chunks["layer.b"]) == ((4, 2), (2,))


def test_chunks_are_counted_whole(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row of two chunks of 4 x 3 reads 96 bytes for 24; told beforehand, and counted."""
    tensor = open_checkpoint(saved).tensors["layer.w"]
    row = Box([(1, 2), (0, 6)])
    assert tensor.reads(row) == Reads(2, 96)
    with FileReader() as reader:
        tensor.read_into(np.empty((1, 6), raw_dtype(tensor.dtype)), row, reader)
        assert reader.reads == Reads(2, 96)
    (tmp_path / "rules.yaml").write_text(
        RULES.replace("{a: 3, b: 2}", "{x: 8}").replace("P('b', 'a')", "P('x')").replace("P('a')", "P()")
    )
    assert run("cost", saved, "--rules", tmp_path / "rules.yaml", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    others = answer["bytes"] - 8 * 6 * 4
    assert [file["read_bytes"] for file in answer["files"]] == [96 + others] * 8
    assert answer["read_bytes"] == answer["bytes"]


def test_metadata_that_lies_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorstore")
    save_safetensors(tmp_path / "m.safetensors", {"w": np.arange(6.0).reshape(2, 3)})
    assert run("convert", tmp_path / "m.safetensors", tmp_path / "good", "--to", "orbax") == 0
    said = json.loads((tmp_path / "good" / "_METADATA").read_text())
    lies: list[tuple[Any, str]] = [
        ("../../m", "which is no folder of its own"),
        ("absent", "says no shape, chunks and dtype"),
        (3, "a leaf without keys"),
    ]
    for key, sentence in lies:
        leaf = {"key_metadata": [{"key": key, "key_type": 2}], "value_metadata": {"value_type": "jax.Array"}}
        (tmp_path / "good" / "_METADATA").write_text(json.dumps(said | {"tree_metadata": {"x": leaf}}))
        assert run("show", tmp_path / "good") == 1
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("chunks", [2**40, 2**20], "cannot hold one"),
        ("chunks", [0, 3], "has chunks [0, 3] for the shape"),
        ("shape", [2**70, 3], "must be below 2**62"),
        ("dtype", ">f8", "whose bytes are in reverse"),
        ("dtype", 8, "says no shape, chunks and dtype"),
    ],
)
def test_an_array_that_lies_is_refused(
    field: str, value: Any, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = plain_array(tmp_path)
    said = json.loads((folder / "w" / ".zarray").read_text())
    (folder / "w" / ".zarray").write_text(json.dumps(said | {field: value}))
    assert run("show", folder) == 1
    assert sentence in capsys.readouterr().err


def plain_array(folder: Path) -> Path:
    """A checkpoint of plain files, made by tensorstore alone."""
    tensorstore = pytest.importorskip("tensorstore")
    root = folder / "plain"
    store = {"driver": "file", "path": f"{root}/w/"}
    spec = {"driver": "zarr", "kvstore": store, "metadata": {"shape": [4, 6], "chunks": [2, 3], "dtype": "<f4"}}
    tensorstore.open(spec, create=True).result().write(np.arange(24, dtype="f4").reshape(4, 6)).result()
    leaf = {"key_metadata": [{"key": "w", "key_type": 2}], "value_metadata": {"value_type": "np.ndarray"}}
    (root / "_METADATA").write_text(json.dumps({"tree_metadata": {"('w',)": leaf}, "use_ocdbt": False}))
    return root


@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", ["_METADATA", "w/.zarray", "w/0.0"])
def test_a_changed_checkpoint_of_orbax_is_read_or_refused(file: str, count: int, tmp_path: Path) -> None:
    check_mutations(plain_array(tmp_path), file, count, tmp_path / "changed")


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted otherwise")
def test_memory_is_kept_both_ways(tmp_path: Path) -> None:
    """192 MiB that do not pack well, cut by columns for four devices, within 64 MiB beside the packages."""
    values = np.random.default_rng(0).integers(0, 2**32, (6144, 8192), np.uint32)
    save_safetensors(tmp_path / "m.safetensors", {"w": values})
    (tmp_path / "rules.yaml").write_text("mesh: {x: 4}\nrules:\n  - {match: w, spec: \"P(None, 'x')\"}")
    idle = peak_of_loading("tensorstore", "reshard.cli.checkpoint_command")
    options = "--memory", "64MiB", "--no-sync", "--rules", tmp_path / "rules.yaml"
    held = peak_mib("checkpoint", "convert", tmp_path / "m.safetensors", tmp_path / "out", "--to", "orbax", *options)
    assert held < idle + 64
    assert peak_mib("checkpoint", "convert", tmp_path / "out", tmp_path / "back", *options[:-2]) < idle + 64
    assert (tmp_path / "back" / "model.safetensors").stat().st_size > values.nbytes
