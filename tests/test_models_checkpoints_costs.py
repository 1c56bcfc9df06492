"""A conversion reads and holds what was said beforehand, in one process or in several."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from checkpoints import check_mutations, load_safetensors, peak_mib, peak_of_loading, save_safetensors

from reshard.cli import checkpoint_command, main
from reshard.dtypes import dtype_named
from reshard.models.checkpoints import safetensors
from reshard.models.checkpoints.converting import Converting, convert
from reshard.models.checkpoints.files import FileReader, Reads

MPIEXEC = Path(sys.executable).parent / "mpiexec"
FIRST = "device-00000.safetensors"
RULES = """
mesh: {x: 3, y: 2}
rules:
  - match: '(.*)\\.(gate|up)'
    spec: "P('y', 'x')"
    store: {name: '\\1.fused', concat: {key: '\\2', order: [gate, up]}}
  - {match: '(.*)\\.(\\d)', spec: "P(None, 'x')", store: {name: '\\1.stacked', stack: '\\2', transpose: true}}
  - {match: 'rows', spec: "P(('x', 'y'))"}
default: replicated
"""


def run(*arguments: object) -> int:
    return main(["checkpoint", *map(str, arguments)])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(0)
    shapes = {"m.gate": (6, 9), "m.up": (6, 9), "e.0": (5, 12), "e.1": (5, 12), "rows": (13, 4), "n": (7,), "one": ()}
    arrays = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    folder: Path = tmp_path_factory.mktemp("source")
    save_safetensors(folder / "m.safetensors", arrays | {"none": np.zeros((0, 3))})
    (folder / "rules.yaml").write_text(RULES)
    return folder


@pytest.fixture(scope="module")
def forms(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same checkpoint in every form that is there, cut by the rules where it can be."""
    folder = tmp_path_factory.mktemp("forms")
    known = ["tiles", "dcp"]
    for form in known:
        assert run("convert", source, folder / form, "--to", form, "--rules", source / "rules.yaml") == 0
    return {"safetensors": source, **{form: folder / form for form in known}}


@pytest.mark.parametrize(
    ("origin", "target", "memory"),
    [
        *[("safetensors", "safetensors", "1B"), ("safetensors", "dcp", "300B"), ("safetensors", "tiles", "100MiB")],
        *[("dcp", "safetensors", "300B"), ("dcp", "dcp", "100MiB"), ("dcp", "tiles", "1B"), ("dcp", "tiles", "300B")],
        *[("tiles", "safetensors", "100MiB"), ("tiles", "dcp", "1B"), ("tiles", "tiles", "300B")],
    ],
)
def test_what_is_read_was_told(
    origin: str, target: str, memory: str, forms: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes and requests, counted where files are read; the output is the source, whatever the forms."""
    options: list[Any] = ["--to", target, "--memory", memory]
    options += ["--rules", forms["safetensors"] / "rules.yaml"] if target != "safetensors" else []
    assert run("cost", forms[origin], *options, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    counted: list[int] = []
    copy_file_range = os.copy_file_range

    def read(reader: FileReader, path: Path, offset: int, view: memoryview) -> None:
        counted.append(len(view))
        with path.open("rb") as file:
            file.seek(offset)
            view[:] = file.read(len(view))

    def copied(*told: int) -> int:
        if memory == "1B":
            raise OSError(errno.EXDEV, "as between file systems that cannot")
        counted.append(copy_file_range(*told))
        return counted[-1]

    def converted(work: Converting, advance: Any) -> Reads:
        with mock.patch.object(FileReader, "read_into", read), mock.patch.object(os, "copy_file_range", copied):
            return convert(work, advance)

    with mock.patch.object(checkpoint_command, "convert", converted):
        assert run("convert", forms[origin], tmp_path / "out", *options, "--no-sync") == 0
    assert (sum(counted), len(counted)) == (told["read_bytes"], told["requests"])
    assert run("diff", forms["safetensors"], tmp_path / "out") == 0


def drawn_rules(draw: random.Random, shapes: dict[str, tuple[int, ...]]) -> str:
    """Any axes on any dims of a mesh of odd sizes, devices in any order, some buffers transposed."""
    sizes = draw.choice([(2, 3), (5,), (2, 2, 2), (1, 4), (3, 2, 2)])
    axes = dict(zip("xyz", sizes, strict=False))
    lines = [f"mesh: {json.dumps(axes)}", "rules:"]
    for name, shape in shapes.items():
        free = draw.sample(list(axes), len(axes))
        dims = [tuple(free.pop() for _ in range(draw.randint(0, min(2, len(free))))) for _ in shape]
        store = ", store: {transpose: true}" if len(shape) == 2 and draw.random() < 0.5 else ""
        lines.append(f'  - {{match: {name}, spec: "P{tuple(dims)!r}"{store}}}'.replace("P(,)", "P()"))
    return "\n".join(lines)


@pytest.mark.parametrize("count", [8, pytest.param(400, marks=pytest.mark.slow)])
def test_drawn_layouts_go_round(count: int, tmp_path: Path) -> None:
    """From form to form under rules of odd meshes and odd caps; the safetensors package writes and reads the ends."""
    draw = random.Random(count)
    for turn in range(count):
        shapes = {f"t{number}": tuple(draw.choices(range(8), k=draw.randint(0, 3))) for number in range(5)}
        dtypes = {name: draw.choice(["f4", "i1", "f8", "i2"]) for name in shapes}
        arrays = {
            name: np.frombuffer(draw.randbytes(8 * prod(shape) + 8), dtypes[name])[: prod(shape)].reshape(shape).copy()
            for name, shape in shapes.items()
        }
        folder = tmp_path / str(turn)
        folder.mkdir()
        save_safetensors(folder / "start.safetensors", arrays)
        place = folder / "start.safetensors"
        for step in range(3):
            (folder / f"{step}.yaml").write_text(drawn_rules(draw, shapes))
            options = [
                "--to",
                draw.choice(["dcp", "tiles"]),
                "--rules",
                folder / f"{step}.yaml",
                "--no-sync",
                "--check",
            ]
            options += ["--memory", f"{draw.choice([1, 37, 600, 10**6])}B", "--workers", draw.choice([1, 3])]
            assert run("convert", place, folder / str(step), *options) == 0
            place = folder / str(step)
        assert run("convert", place, folder / "end") == 0
        got = load_safetensors(folder / "end")
        assert {name: array.tobytes() for name, array in got.items()} == {n: a.tobytes() for n, a in arrays.items()}
        assert all(got[name].shape == array.shape and got[name].dtype == array.dtype for name, array in arrays.items())


def test_what_a_device_reads_alone_was_told(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the tiles of `e.0`, cut by columns, every one of 5 rows is a request; by hand for the first device."""
    assert run("cost", source, "--rules", source / "rules.yaml", "--json") == 0
    first = json.loads(capsys.readouterr().out)["files"][0]
    sizes = {"gate": 3 * 3, "up": 3 * 3, "e.0": 5 * 4, "e.1": 5 * 4, "rows": 3 * 4, "n": 7, "one": 1}
    assert first["needed_bytes"] == first["read_bytes"] == 4 * sum(sizes.values())
    assert first["requests"] == 3 + 3 + 5 + 5 + 1 + 1 + 1


def blank(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A file of safetensors that takes no room on the disk."""
    header = safetensors.header_of({name: (dtype_named("f32"), shape) for name, shape in shapes.items()}, {})
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + sum(4 * prod(shape) for shape in shapes.values()))


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted otherwise")
def test_little_is_held(tmp_path: Path) -> None:
    """Of 64 MiB no more than 24 beside the package, NumPy included, to any form."""
    blank(tmp_path / "m.safetensors", {str(number): (1024, 2048) for number in range(8)})
    idle = peak_of_loading("reshard")
    assert peak_mib("checkpoint", "convert", tmp_path / "m.safetensors", tmp_path / "dcp", "--to", "dcp") < idle + 24
    assert peak_mib("checkpoint", "convert", tmp_path / "dcp", tmp_path / "out") < idle + 24


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted otherwise")
def test_four_gibibytes_go_under_a_quarter(tmp_path: Path) -> None:
    """Two tensors of 2 GiB, cut by columns for four devices: never more than 256 MiB beside the package."""
    blank(tmp_path / "m.safetensors", {"a": (16384, 32768), "b": (32768, 16384)})
    (tmp_path / "rules.yaml").write_text(
        "mesh: {x: 4}\nrules:\n  - {match: a, spec: \"P(None, 'x')\"}\ndefault: replicated"
    )
    idle = peak_of_loading("reshard")
    rules = "--rules", tmp_path / "rules.yaml"
    held = peak_mib("checkpoint", "convert", tmp_path / "m.safetensors", tmp_path / "out", "--memory", "256MiB", *rules)
    assert held < idle + 256


@pytest.mark.heavy
@pytest.mark.skipif(not MPIEXEC.exists(), reason="there is no mpiexec beside the interpreter")
def test_several_processes_write_one_checkpoint(source: Path, tmp_path: Path) -> None:
    """What any of them refuses all refuse, in one sentence, and nothing is left that waits."""
    program = [str(MPIEXEC), "-n", "2", sys.executable, "-m", "reshard", "checkpoint", "convert", str(source)]
    options = [str(tmp_path / "out"), "--to", "dcp", "--rules", str(source / "rules.yaml"), "--check"]
    answer = subprocess.run([*program, *options], capture_output=True, text=True, check=True, timeout=100)
    assert answer.stdout.count("files of") == 1
    assert run("diff", source, tmp_path / "out") == 0
    again = subprocess.run([*program, *options], capture_output=True, text=True, check=False, timeout=100)
    assert again.returncode
    assert again.stderr.count("is already there; the output must be new") == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tiles": [["../m.safetensors", "m.fused", [[0, 3], [0, 3]], [0, 0], None, []]]}, "lists a tile that is none"),
        ({"tiles": [[FIRST, "rows", [[0, 3], [0, 3]], [0, 0], None, []]]}, "no buffer of float16"),
        ({"dtype": "float32"}, "outside of its buffer"),
        ({"shape": [6, 10], "dtype": "float32", "tiles": []}, "do not cover"),
        ({"shape": "all"}, "says no dtype and shape"),
        ({"shape": [4], "dtype": "float32", "tiles": [[FIRST, "n", [[0, 2], [0, 2]], [0, 0], None, []]]}, "outside of"),
        ({"shape": [7, 1], "dtype": "float32", "tiles": [[FIRST, "n", [[0, 7]], [0], None, []]]}, "outside of"),
    ],
)
def test_an_index_of_tiles_that_lies_is_refused(
    change: dict[str, Any], sentence: str, forms: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(forms["tiles"], tmp_path / "tiles")
    index = json.loads((tmp_path / "tiles" / "tiles.json").read_text())
    tile = [FIRST, "rows", [[0, 4], [0, 9]], [0, 0], None, []]
    index["tensors"] = {"w": {"dtype": "float16", "shape": [4, 9], "tiles": [tile]} | change}
    (tmp_path / "tiles" / "tiles.json").write_text(json.dumps(index))
    assert run("show", tmp_path / "tiles") == 1
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("count", [100, pytest.param(5000, marks=pytest.mark.slow)])
def test_changed_tiles_are_read_or_refused(count: int, forms: dict[str, Path], tmp_path: Path) -> None:
    check_mutations(forms["tiles"], "tiles.json", count, tmp_path / "changed")
