"""What does `reshard run` do when a file lies, the disk is full, or somebody stops it? It refuses.

It does so with one sentence and leaves nothing of its output.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tilefiles import command, read_tiles, refused, run

from reshard.cli.storage import folder as folders
from reshard.cli.storage import pieces_by_region
from reshard.errors import ReshardError
from reshard.models.checkpoints.files import FileReader, FileWriter

TARGET = '#sdy.sharding<mesh<["x"=2, "y"=2]>, [{"x"}, {"y"}]>'


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(48, dtype="<f4").reshape(8, 6))
    return path


@pytest.fixture
def tiles(whole: Path) -> Path:
    run(whole, "--target", TARGET, "--out", whole.parent / "tiles")
    return whole.parent / "tiles"


def run_refused(source: Path, *args: object, target: str = TARGET) -> str:
    """A run that is refused leaves the folder as it was."""
    before = sorted(source.parent.iterdir())
    sentence = refused("run", source, "--target", target, "--out", source.parent / "out", *args)
    assert sorted(source.parent.iterdir()) == before
    return sentence


# Inputs that are not what they say.


def test_a_truncated_npy_file_is_refused_wherever_it_ends(whole: Path) -> None:
    data = whole.read_bytes()
    for length in range(len(data)):
        whole.write_bytes(data[:length])
        assert str(whole) in run_refused(whole)
    whole.write_bytes(data + b"\0")
    assert run_refused(whole) == f"{whole} has {len(data) + 1} bytes; its header asks for {len(data)}"


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-8, 6)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (8.0, 6)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 30 + ",)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (8, 6)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (8, 6)}",
        "{'descr': '<U3', 'fortran_order': False, 'shape': (4, 4)}",
        "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (8, 3)}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (8, 6)}",
        "{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (4, 6)}",
        "{'descr': 'no', 'fortran_order': False, 'shape': (8, 6)}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (8, 6), 'more': 1}",
        "[1, 2]",
        "(" * 400,
        "{'descr': __import__('os'), 'fortran_order': False, 'shape': ()}",
        "\0\xff\n",
        "",
    ],
)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_npy_header_that_makes_no_sense_is_refused(header: str, version: int, whole: Path) -> None:
    text = header.encode("latin1")
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    whole.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + size + text + bytes(192))
    assert str(whole) in run_refused(whole)


def test_a_npy_header_cannot_ask_for_much_memory(whole: Path) -> None:
    whole.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b" " * 100)
    assert "is no .npy file" in run_refused(whole)
    whole.write_bytes(b"\x93NUMPY\x09\x00" + whole.read_bytes()[8:])
    assert "version 9.0" in run_refused(whole)


def safetensors(header: Any, data: bytes = bytes(16), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(start: Any = 0, stop: Any = 16, shape: Any = (2, 2), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cannot hold a header"),
        (safetensors({}, length=2**63), "cannot hold a header"),
        (safetensors({}, length=2**64 - 1), "cannot hold a header"),
        (safetensors(b" " * 2**25 + b"{}"), "up to 33554432 are read"),
        (safetensors(b"{"), "no JSON"),
        (safetensors(b"\xff{}"), "no JSON"),
        (safetensors(b"[" * 100_000), "no JSON"),
        (safetensors(b'{"a": 1, "a": 2}'), "a name stands twice"),
        (safetensors([1]), "must be a JSON object"),
        (safetensors({"a": 1}), "no pair of data_offsets"),
        (safetensors({"a": entry("0", 16)}), "no pair of data_offsets"),
        (safetensors({"a": entry(True, 16)}), "no pair of data_offsets"),
        (safetensors({"a": entry(16, 0)}), "out of order"),
        (safetensors({"a": entry(-16, 0)}), "out of order"),
        (safetensors({"a": entry(0, 20)}), "overlap or leave a gap"),
        (safetensors({"a": entry(0, 12)}), "overlap or leave a gap"),
        (safetensors({"a": entry(), "b": entry()}), "overlap or leave a gap"),
        (safetensors({"a": entry(0, 10), "b": entry(8, 16)}), "overlap or leave a gap"),
        (safetensors({"a": entry()}, bytes(15)), "overlap or leave a gap"),
        (safetensors({"a": entry()}, bytes(17)), "overlap or leave a gap"),
        (safetensors({"a": entry(shape=(2, 3))}), "its shape needs 24"),
        (safetensors({"a": entry(shape=(2, -2))}), "no list of sizes"),
        (safetensors({"a": entry(shape="22")}), "no list of sizes"),
        (safetensors({"a": entry(shape=(2**70, 2**70))}), "below 2**62"),
        (safetensors({"a": entry(dtype="F4")}), "is not known"),
        (safetensors({"a": entry(dtype=["F32"])}), "is not known"),
        (safetensors({"a": entry(0, 8, (2,)), "b": entry(8, 16, (2,))}), "--tensor must name one"),
        (safetensors({}, b""), "holds no tensor"),
    ],
)  # fmt: skip
def test_a_safetensors_file_that_lies_is_refused(data: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    assert reason in run_refused(path)


def test_a_truncated_safetensors_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    data = safetensors({"a": entry()})
    for length in range(len(data)):
        path.write_bytes(data[:length])
        run_refused(path)
    path.write_bytes(data)
    assert run_refused(path, "--tensor", "b") == f"{path} holds no tensor 'b', but 1 tensors: 'a'"


def test_what_was_said_of_the_input_must_hold(whole: Path, tiles: Path) -> None:
    for path in (whole, tiles):
        assert run_refused(path, "--dtype", "f64") == f"{path} holds float32 values; they were said to be float64"
        assert "it was said to be (6, 8)" in run_refused(path, "--shape", "6,8")
        assert "--tensor names a tensor of a .safetensors file" in run_refused(path, "--tensor", "w")
    run(whole, "--target", TARGET, "--shape", "8,6", "--dtype", "f32", "--out", whole.parent / "fine")
    assert "not on <" in run_refused(tiles, "--mesh", "x=4")
    assert "lies in the sharding" in run_refused(tiles, "--source", '[{"y"}, {}]')
    run(tiles, "--mesh", "x=2,y=2", "--source", "[[0], [1]]", "--target", "A[I, J]", "--out", whole.parent / "good")


def test_what_is_no_tensor_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("no tensor")
    assert "is no .npy file, no .safetensors file" in run_refused(tmp_path / "a.txt")
    assert "No such file" in run_refused(tmp_path / "b.npy")
    (tmp_path / "folder").mkdir()
    assert "index.json could not be read" in run_refused(tmp_path / "folder")
    os.mkfifo(tmp_path / "pipe.npy")
    assert "neither a file nor a folder" in run_refused(tmp_path / "pipe.npy")
    (tmp_path / "loop.npy").symlink_to(tmp_path / "loop.npy")
    assert "loop.npy could not be read" in run_refused(tmp_path / "loop.npy")
    assert "could not be read" in refused("run", "a\0b", "--target", TARGET, "--out", tmp_path / "out")


# An index and tiles that were tampered with.

CHANGES: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("must have the schema", lambda index: index.update(schema="reshard.tiles/2")),
    ("it lacks 'shape'", lambda index: index.pop("shape")),
    ("it lacks 'crc32'", lambda index: index["tiles"][1].pop("crc32")),
    ("is not that of its sharding", lambda index: index.update(mesh='<["x"=4]>')),
    ("is malformed", lambda index: index.update(mesh=4)),
    ("is malformed", lambda index: index.update(sharding=["x"])),
    ("is malformed", lambda index: index.update(sharding="[{}, {}]")),
    ("is malformed", lambda index: index.update(sharding="nonsense")),
    ("is not that of its sharding", lambda index: index.update(shape=[8, 8])),
    ("is malformed", lambda index: index.update(shape=[8])),
    ("is malformed", lambda index: index.update(shape=[8.5, 6])),
    ("is malformed", lambda index: index.update(shape=[-8, 6])),
    ("is malformed", lambda index: index.update(shape="86")),
    ("dtype 'f3' is not known", lambda index: index.update(dtype="f3")),
    ("they were said to be float64", lambda index: index.update(dtype="float64")),
    ("is malformed", lambda index: index.update(stored="|O8")),
    ("is malformed", lambda index: index.update(stored=["<f4"])),
    ("is not what the index says", lambda index: index.update(stored=">f4")),
    ("is not what the index says", lambda index: index.update(order="F")),
    ("order must be C or F", lambda index: index.update(order="K")),
    ("must be those of the devices", lambda index: index.update(tiles=[])),
    ("is malformed", lambda index: index.update(tiles=[1, 2, 3, 4])),
    ("must be those of the devices", lambda index: index["tiles"].pop()),
    ("must be those of the devices", lambda index: index["tiles"].reverse()),
    ("must be those of the devices", lambda index: index["tiles"][3].update(device=4)),
    ("must be integers", lambda index: index["tiles"][1].update(device=True)),
    ("must be integers", lambda index: index["tiles"][1].update(bytes="200")),
    ("box of device 1", lambda index: index["tiles"][1].update(box=[[0, 4], [0, 3]])),
    ("is malformed", lambda index: index["tiles"][1].update(box=7)),
    ("the index says 201", lambda index: index["tiles"][1].update(bytes=201)),
    ("8 hexadecimal digits", lambda index: index["tiles"][1].update(crc32="0x12")),
    ("the index says 00000000", lambda index: index["tiles"][1].update(crc32="00000000")),
    *(
        ("must be a name in the folder", lambda index, name=name: index["tiles"][1].update(file=name))
        for name in ("../a.npy", "/etc/passwd", "a/b", "..", "", "a\\b", "a\0b", "index.json", 7, None)
    ),
    ("No such file", lambda index: index["tiles"][1].update(file="other.npy")),
    ("the index says", lambda index: index["tiles"][1].update(file="device-0.npy", crc32="00000000")),
]


@pytest.mark.parametrize(("reason", "change"), CHANGES)
def test_an_index_that_was_tampered_with_is_refused(
    reason: str, change: Callable[[dict[str, Any]], object], tiles: Path
) -> None:
    index = json.loads((tiles / "index.json").read_text())
    change(index)
    (tiles / "index.json").write_text(json.dumps(index))
    assert reason in run_refused(tiles)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 1}', "[" * 100_000, "\udc80", "1" * 5000])
def test_an_index_that_is_none_is_refused(text: str, tiles: Path) -> None:
    (tiles / "index.json").write_bytes(text.encode(errors="surrogateescape"))
    assert "index.json" in run_refused(tiles)


def test_tiles_that_were_changed_are_refused(tiles: Path) -> None:
    path = tiles / "device-2.npy"
    data = path.read_bytes()
    for place in (0, 20, len(data) - 1):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert str(path) in run_refused(tiles)
    path.write_bytes(data[:-1])
    assert run_refused(tiles) == f"{path} has {len(data) - 1} bytes; the index says {len(data)}"
    path.unlink()
    assert "No such file" in run_refused(tiles)
    path.symlink_to(tiles / "device-1.npy")
    assert run_refused(tiles) == f"{path} is no plain file"


# An output that cannot be.


@pytest.mark.parametrize("kind", ["folder", "file", "link", "dangling link"])
def test_an_output_that_is_there_is_left_alone(kind: str, whole: Path) -> None:
    out = whole.parent / "out"
    if kind == "folder":
        out.mkdir()
    elif kind == "file":
        out.write_text("mine")
    else:
        out.symlink_to(whole if kind == "link" else whole.parent / "nowhere")
    with mock.patch.object(FileReader, "read_into", side_effect=AssertionError):
        assert run_refused(whole) == f"{out} is already there; the output must be a new folder"


def test_outputs_that_cannot_be_made_are_refused(whole: Path) -> None:
    for out in ("", ".", "/", "..", whole / "below", whole.parent / ("n" * 300), "a\0b"):
        before = sorted(whole.parent.iterdir())
        refused("run", whole, "--target", TARGET, "--out", out)
        assert sorted(whole.parent.iterdir()) == before


def test_folders_above_are_made_and_taken_back(whole: Path) -> None:
    out = whole.parent / "new" / "newer" / "out"
    run(whole, "--target", TARGET, "--out", out)
    assert len(read_tiles(out)) == 4
    with mock.patch.object(FileWriter, "append", side_effect=ReshardError("write-failed", "no")):
        assert refused("run", whole, "--target", TARGET, "--out", whole.parent / "other" / "deep" / "out") == "no"
    assert not (whole.parent / "other").exists()


def test_a_disk_without_room_is_seen_beforehand(whole: Path) -> None:
    with (
        mock.patch.object(folders.shutil, "disk_usage", return_value=mock.Mock(free=1215)),
        mock.patch.object(FileWriter, "append", side_effect=AssertionError),
    ):
        sentence = run_refused(whole)
    assert sentence == f"{whole.parent / 'out'} would need 1216 bytes; 1215 are free on its disk"


# A disk that fails, and a person who stops it, at every moment.


class Failing:
    """Raises at the call of that number, and counts."""

    def __init__(self, call: Callable[..., Any], number: int, error: BaseException) -> None:
        self.call, self.number, self.error, self.count = call, number, error, 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.count += 1
        if self.count == self.number:
            raise self.error
        return self.call(*args, **options)

    def __get__(self, instance: Any, owner: Any) -> Any:
        return lambda *args, **options: self(instance, *args, **options)


PLACES = {
    "append": ("reshard.models.checkpoints.files.FileWriter.append", FileWriter.append),
    "read": ("reshard.models.checkpoints.files.FileReader.read_into", FileReader.read_into),
    "mkdir": ("pathlib.Path.mkdir", Path.mkdir),
    "rename": ("pathlib.Path.rename", Path.rename),
    "index": ("pathlib.Path.write_text", Path.write_text),
}
REDUCTION = '#sdy.sharding<mesh<["x"=2, "y"=2]>, [{}, {"y"}]>'
PARTIAL = ("--mesh", "x=2,y=2", "--source", '[{}, {}], unreduced={"x"}')


@pytest.mark.parametrize("place", ["append", "read", "mkdir", "rename", "index"])
@pytest.mark.parametrize("stops", [False, True])
def test_whenever_it_fails_nothing_is_left(place: str, stops: bool, whole: Path) -> None:
    name, call = PLACES[place]
    before = sorted(whole.parent.iterdir())
    out = whole.parent / "out"
    for number in range(1, 200):
        error = KeyboardInterrupt() if stops else OSError(errno.ENOSPC, "No space left on device")
        if place in ("append", "read") and not stops:
            error = ReshardError("write-failed", "No space left on device")
        failing = Failing(call, number, error)
        with mock.patch(name, failing), mock.patch.object(pieces_by_region, "REGION_BYTES", 60):
            done = command("run", whole, *PARTIAL, "--target", REDUCTION, "--out", out)
        if failing.count < number:
            assert done.status == 0
            break
        assert done.status == (130 if stops else 1), done
        assert ("interrupted" if stops else "No space left on device") in done.err
        assert done.err.count("\n") == 1
        assert sorted(whole.parent.iterdir()) == before
    else:
        pytest.fail("it never ended")
    assert number > 1
    assert len(read_tiles(out)) == 4


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
def test_a_write_that_fails_is_refused_with_its_reason(code: int, whole: Path) -> None:
    class Full(FileWriter):
        def file(self, path: Path) -> Any:
            file = mock.Mock()
            file.write.side_effect = OSError(code, os.strerror(code))
            return file

    with mock.patch("reshard.cli.storage.streaming.FileWriter", Full):
        assert run_refused(whole).endswith(f"could not be written: {os.strerror(code)}")


def test_a_write_that_takes_less_than_it_was_given_goes_on(whole: Path) -> None:
    class Slow(FileWriter):
        def file(self, path: Path) -> Any:
            real = super().file(path)
            return mock.Mock(write=lambda data: real.write(data[:3]))

    with mock.patch("reshard.cli.storage.streaming.FileWriter", Slow):
        run(whole, "--target", TARGET, "--out", whole.parent / "out")
    assert read_tiles(whole.parent / "out")[3].tolist() == np.arange(48).reshape(8, 6)[4:, 3:].tolist()


@pytest.mark.parametrize("number", range(1, 9))
def test_what_is_not_on_disk_as_it_was_written_is_found(number: int, whole: Path) -> None:
    class Wrong(FileWriter):
        count = 0

        def append(self, path: Path, data: Any) -> None:
            Wrong.count += 1
            data = bytearray(data)
            if Wrong.count == number:
                data[-1] ^= 1
            super().append(path, data)

    with mock.patch("reshard.cli.storage.streaming.FileWriter", Wrong):
        sentence = run_refused(whole)
    assert "lacks the header or the size" in sentence or "differs from its source at byte" in sentence


def test_a_piece_that_went_to_the_wrong_place_is_found(whole: Path) -> None:
    original = np.ascontiguousarray
    with mock.patch("reshard.cli.storage.streaming.np.ascontiguousarray", lambda part: original(part[::-1])):
        from reshard.cli.storage import streaming

        check = streaming.check

        def honest(*args: Any) -> None:
            with mock.patch("reshard.cli.storage.streaming.np.ascontiguousarray", original):
                check(*args)

        with mock.patch("reshard.cli.storage.check", honest):
            assert "differs from its source at byte" in run_refused(whole)


# The same with real signals and a real limit, in processes of their own.

SLOWLY = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore them
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from reshard.cli import main
from reshard.models.checkpoints.files import FileWriter
append = FileWriter.append
def slow(self, path, data):
    append(self, path, data)
    print("wrote", path, flush=True)
    time.sleep(20)
FileWriter.append = slow
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("number", "status", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "terminated")],
)
def test_a_signal_in_the_middle_leaves_nothing(number: int, status: int, word: str, whole: Path) -> None:
    args = ["run", str(whole), "--target", TARGET, "--out", str(whole.parent / "out")]
    before = sorted(whole.parent.iterdir())
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("wrote")
    assert sorted(whole.parent.iterdir()) != before
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (status, f"reshard: {word}; what was written so far is removed\n")
    assert sorted(whole.parent.iterdir()) == before


@pytest.mark.heavy
def test_a_limit_on_file_sizes_is_refused_with_its_reason(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1000, 100)))
    script = textwrap.dedent(
        """
        import resource, sys
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        from reshard.cli import main
        sys.exit(main(sys.argv[1:]))
        """
    )
    args = ["run", str(tmp_path / "a.npy"), "--target", TARGET, "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("could not be written: File too large\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


@pytest.mark.heavy
def test_few_open_files_are_enough(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(256))
    script = textwrap.dedent(
        """
        import resource, sys
        from reshard.cli import main
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
        sys.exit(main(sys.argv[1:]) or main([*sys.argv[1:-1], sys.argv[-1] + "2"]))
        """
    )
    args = ["run", str(tmp_path / "a.npy"), "--mesh", "x=64", "--target", '[{"x"}]', "--out", str(tmp_path / "out")]
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(read_tiles(tmp_path / "out2")) == 64
    assert time.monotonic() - start < 30
