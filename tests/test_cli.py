"""What does each command print, and how does it end? Streams and exit statuses are looked at too.

Most commands run in this process, some in processes of their own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tilefiles import command, refused, run

import reshard as rs
from reshard.cli import COMMANDS
from reshard.cli.arguments import shape_of
from reshard.cli.interrupts import Terminated
from reshard.plans import blocks
from reshard.tables import drawn

MESH = ("--mesh", "x=2,y=4", "--shape", "8,8")
DEMO = Path(__file__).parent.parent / "examples" / "demo.npy"
PLAN = """\
8 x 8 float32 on 8 devices
from  [{"y"}, {}]
to    [{"x"}, {"y"}]

   step      axes  rounds  received   peak  sharding
1  Exchange  x, y       2      32 B  112 B  [{"x"}, {"y"}]

received 32 B on the busiest device, 192 B in all; lower bound 32 B: exact
"""


def printed(*args: object) -> str:
    """What a command prints that must succeed."""
    done = command(*args)
    assert (done.status, done.err) == (0, ""), done
    return done.out


def process(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reshard", *args], capture_output=True, text=True, check=False, **options
    )


# plan


def test_plan_prints_the_plan() -> None:
    assert printed("plan", *MESH, '[{"y"}, {}]', '[{"x"}, {"y"}]') == PLAN


@pytest.mark.parametrize(
    "source", ['[{"y"}, {}]', "[[1], []]", "A[I_y, J]", "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"]
)
@pytest.mark.parametrize(
    "target", ['#sdy.sharding<@m, [{"x"}, {"y"}]>', "[[0], [1]]", "[I_x, J_y]", "{devices=[2,4]<=[8]}"]
)
def test_every_text_form_is_a_sharding(source: str, target: str) -> None:
    assert printed("plan", *MESH, source, target) == PLAN


def test_a_text_with_its_own_mesh_needs_no_other() -> None:
    inline = '#sdy.sharding<mesh<["x"=2, "y"=4]>, [{"y"}, {}]>'
    for ends in ((inline, '[{"x"}, {"y"}]'), ('[{"y"}, {}]', inline), (inline, inline)):
        assert printed("plan", "--shape", "8,8", *ends).startswith('8 x 8 float32 on 8 devices\nfrom  [{"y"}, {}]')
    other = '#sdy.sharding<mesh<["z"=8]>, [{}, {"z"}]>'
    for mesh in ((), ("--mesh", "x=2,y=4")):
        assert 'to    mesh<["z"=8]> [{}, {"z"}]' in printed("plan", *mesh, "--shape", "8,8", inline, other)
    assert 'to    mesh<["z"=8]> [{}, {"z"}]' in printed("plan", *MESH, "--target-mesh", "z=8", "[[], []]", "[[], [0]]")
    assert refused("plan", "--shape", "8,8", "[[], []]", "[[], [0]]").startswith("the text names no mesh")
    assert "is not the given mesh" in refused("plan", *MESH, other, inline)


def test_plan_as_json_is_the_plan() -> None:
    text = printed("plan", *MESH, "--dtype", "bf16", '[{"y"}, {}]', '[{"x"}, {"y"}]', "--json")
    mesh = rs.Mesh.of(x=2, y=4)
    plan = rs.plan(rs.Sharding.of(mesh, "y", None), rs.Sharding.of(mesh, "x", "y"), (8, 8), "bfloat16")
    assert text == plan.to_json() + "\n"
    assert rs.Plan.from_json(text) == plan


def test_plan_says_what_a_device_receives_and_sends() -> None:
    args = ("plan", *MESH, '[{"y"}, {}]', '[{"x"}, {"y"}]', "--device", "5")
    assert printed(*args) == PLAN + (
        "\n"
        "device 5: holds [2, 4) x [0, 8), needs [4, 8) x [2, 4); receives 32 B, lower bound 32 B\n"
        "step 1 Exchange\n"
        "  receives [6, 8) x [2, 4) from device 3, 16 B\n"
        "  receives [4, 6) x [2, 4) from device 2, 16 B\n"
        "  sends [2, 4) x [6, 8) to device 3, 16 B\n"
        "  sends [2, 4) x [4, 6) to device 2, 16 B\n"
    )
    record = json.loads(printed(*args, "--json"))
    exchange = record["device"]["steps"][0]["exchanges"][0]
    assert exchange["receives"][1] == {"from": 2, "box": [[4, 6], [2, 4]], "bytes": 16, "round": 1}
    assert exchange["sends"][1] == {"to": 2, "box": [[2, 4], [4, 6]], "bytes": 16, "round": 1}
    assert rs.Plan.from_json(json.dumps(record)).received_bytes == 32


def test_pieces_of_all_devices_meet() -> None:
    sent, received = set(), set()
    for device in range(8):
        args = ("plan", *MESH, '[{"y"}, {}], unreduced={"x"}', '[{}, {"y"}]', "--device", device, "--json")
        for exchange in json.loads(printed(*args))["device"]["steps"][0]["exchanges"]:
            sent |= {(device, piece["to"], str(piece["box"])) for piece in exchange["sends"]}
            received |= {(piece["from"], device, str(piece["box"])) for piece in exchange["receives"]}
    assert sent == received
    assert sent


def test_plan_of_a_device_that_only_gives_or_only_takes() -> None:
    args = ("plan", "--mesh", "x=2", "--target-mesh", '<["x"=2], devices=[8, 9]>', "--shape", "4", '[{"x"}]', '[{"x"}]')
    assert "device 0: holds [0, 2), needs nothing" in printed(*args, "--device", "0")
    assert "device 9: holds nothing, needs [2, 4)" in printed(*args, "--device", "9")
    assert refused(*args, "--device", "5") == "device 5 is neither in the source nor in the target"
    partial = ("plan", "--mesh", "x=2", "--shape", "4", "[{}]", '[{}], unreduced={"x"}', "--device", "1")
    assert "step 1 ToUnreduced: nothing is sent" in printed(*partial)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("2048,2048", (2048, 2048)),
        ("8", (8,)),
        ("", ()),
        ("()", ()),
        ("(8,)", (8,)),
        ("[2, 3]", (2, 3)),
        ("8 x 4", (8, 4)),
        ("0", (0,)),
    ],
)
def test_shapes_are_read(text: str, shape: tuple[int, ...]) -> None:
    assert shape_of(text) == shape


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8,", None),
        ("8,,8", "sizes joined by commas"),
        ("a", "sizes joined by commas"),
        ("8.0", "sizes joined by commas"),
        ("(8", "sizes joined by commas"),
        ("1_0", "sizes joined by commas"),
        ("٣", "sizes joined by commas"),
        ("-1", "dim 0 has size -1; it must be at least 0"),
        ("9" * 30, "it must be below 2**62"),
        ("9" * 5000, "it must be below 2**62"),
    ],
)
def test_shapes_that_are_none_are_refused(text: str, reason: str | None) -> None:
    if reason is None:
        assert shape_of(text) == (8,)
    else:
        assert reason in refused("plan", "--mesh", "x=2", f"--shape={text}", "[[]]", "[[]]")


def test_scalars_may_be_planned() -> None:
    assert printed("plan", "--mesh", "x=2", "--shape", "", "[]", "[]").startswith("scalar float32 on 2 devices")


# show


def test_show_draws_what_each_device_holds() -> None:
    assert printed("show", "--mesh", "x=2,y=2", "--shape", "2,4", '[{"y"}, {"x"}]') == (
        '"y"=2\n'
        "----------->\n"
        '+-------+-------+  "x"=2 |\n'
        "| 11 12 | 21 22 |        |\n"
        "+-------+-------+        |\n"
        "| 13 14 | 23 24 |        |\n"
        "+-------+-------+        ↓\n"
        "\n"
        "the tensor, and who holds its parts\n"
        "  0   2   4\n"
        "0 +---+---+\n"
        "  | 0 | 2 |\n"
        "1 +---+---+\n"
        "  | 1 | 3 |\n"
        "2 +---+---+\n"
    )
    narrow = printed("show", "--mesh", "x=2,y=2", "--shape", "64,64", '[{"y"}, {"x"}]', "--width", "60", "--lines", "9")
    assert "boxes stand for the elements" in narrow


def test_show_draws_cuts_with_their_period() -> None:
    args = ("show", "--mesh", "x=2", "--target-mesh", "y=3", "--shape", "12", "--cuts", '[{"x"}]', '[{"y"}]')
    assert "period: 6*4 / gcd(6, 4) = 12, the size of the dim" in printed(*args)
    assert "1 1" in printed(*args, "--labels", "coordinates")
    (dim,) = json.loads(printed(*args, "--json"))["dims"]
    assert (dim["size"], dim["period"]) == (12, 12)
    assert [(found["start"], found["stop"]) for found in dim["overlaps"]] == [(0, 4), (4, 6), (6, 8), (8, 12)]


def test_show_as_json_says_where_every_tile_lies() -> None:
    text = printed("show", "--mesh", "x=2,y=2", "--shape", "4,3", '[{"y"}, {}], unreduced={"x"}', "--json")
    assert [tuple(tile.values()) for tile in json.loads(text)["devices"]] == [
        (0, [[0, 2], [0, 3]], 0),
        (1, [[2, 4], [0, 3]], 0),
        (2, [[0, 2], [0, 3]], 1),
        (3, [[2, 4], [0, 3]], 1),
    ]


# run


def test_run_says_what_it_wrote(tmp_path: Path) -> None:
    ends = ("--source", '[{"y"}, {}]', "--target", '[{"x"}, {"y"}]', "--out", tmp_path / "out")
    text = printed("run", DEMO, "--mesh", "x=2,y=4", *ends)
    assert text.startswith(PLAN)
    assert text.endswith(f"8 files of 1280 B in {tmp_path / 'out'}; received 192 B in all; verified\n")
    assert "\n     2  device-2.npy  [0, 4) x [4, 6)  160 B      32 B\n" in text


def test_run_takes_a_whole_file_as_being_on_every_device(tmp_path: Path) -> None:
    record = run(DEMO, "--mesh", "x=2,y=4", "--target", '[{"x"}, {"y"}]', "--out", tmp_path / "out")
    assert record["plan"]["source"] == '#sdy.sharding<mesh<["x"=2, "y"=4]>, [{}, {}]>'
    assert [step["kind"] for step in record["plan"]["steps"]] == ["Slice"]
    assert record["plan"]["received_bytes"] == record["total_received_bytes"] == 0
    elsewhere = ("--target-mesh", '<["z"=2], devices=[8, 9]>', "--target", '[{"z"}, {}]', "--out", tmp_path / "moved")
    record = run(DEMO, "--mesh", "x=2,y=4", *elsewhere)
    assert record["plan"]["received_bytes"] == 128
    assert [tile["file"] for tile in record["tiles"]] == ["device-8.npy", "device-9.npy"]


# How commands end.


def test_misuse_has_a_status_of_its_own() -> None:
    assert_misused()
    assert_misused("no-such-command")
    assert_misused("plan", "[{}]", "[{}]")
    assert_misused("plan", *MESH, "[{}]")
    assert_misused("plan", *MESH, "[{}, {}]", "[{}, {}]", "[{}, {}]")
    assert_misused("plan", *MESH, "[{}, {}]", "[{}, {}]", "--device", "one")
    assert_misused("plan", *MESH, "[{}, {}]", "[{}, {}]", "--jso")
    assert_misused("run", "a.npy", "--target", "[{}]")
    assert_misused("show", *MESH)
    assert_misused("show", *MESH, "[{}, {}]", "--cuts", "[{}, {}]", "[{}, {}]")
    assert_misused("show", *MESH, "--cuts", "[{}, {}]")
    surplus = command("show", *MESH, "[{}, {}]", "--cut")
    assert surplus.status == 2
    assert surplus.err.startswith("usage: reshard show "), surplus.err  # of the command, not of all


def assert_misused(*args: object) -> None:
    done = command(*args)
    assert (done.status, done.out) == (2, ""), done
    assert done.err.startswith("usage: reshard")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("plan", *MESH, '[{"y"}', "[{}, {}]"), 'expected `,`, `]` or a priority such as `p1` at column 7'),
        (("plan", *MESH, '[{"w"}, {}]', "[{}, {}]"), 'axis "w" is not in mesh <["x"=2, "y"=4]>, in [{"w"}, {}]'),
        (("plan", *MESH, "[{}]", "[{}, {}]"), "the sharding has 1 dims, the tensor 2, in [{}]"),
        (("plan", *MESH, "--dtype", "f12", "[{}, {}]", "[{}, {}]"), "dtype 'f12' is not known"),
        (("plan", *MESH, "", "[{}, {}]"), "expected a sharding"),
        (("plan", "--mesh", "x", "--shape", "8", "[{}]", "[{}]"), "expected "),
        (("plan", "--mesh", "x=0", "--shape", "8", "[{}]", "[{}]"), 'axis "x" has size 0'),
        (("show", *MESH, "[{}, {}]", "--target-mesh", "x=2"), "--target-mesh needs a target"),
        (("show", *MESH, "[{}, {}]", "--width", "0"), "max_width must be an integer of at least 1"),
        (("run", "nowhere.npy", "--target", "[{}]", "--out", "o"), "nowhere.npy could not be read: No such file"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_with_one_sentence(args: tuple[str, ...], sentence: str) -> None:
    assert refused(*args).startswith(sentence)


def test_help_of_every_command_has_examples_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("weights.npy", np.zeros((8, 8), "<f4"))
    package = pytest.importorskip("safetensors.numpy")
    package.save_file({"wte": np.zeros((16, 8), "<f4"), "b": np.zeros(3, "<f4")}, "model.safetensors")
    seen = set()
    for name in ((), ("plan",), ("run",), ("show",)):
        text = printed(*name, "--help")
        for line in re.sub(r" \\\n\s+", " ", text).splitlines():
            if line.startswith("  reshard ") and line not in seen:
                seen.add(line)
                printed(*shlex.split(line)[1:])
    assert len(seen) >= 9


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, printed(name, "--help").splitlines())) <= 80


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Terminated(15), MemoryError(), RuntimeError("oops")])
def test_whatever_happens_ends_in_a_sentence(error: BaseException) -> None:
    with mock.patch("reshard.cli.plan_command.make_plan", side_effect=error):
        done = command("plan", *MESH, "[{}, {}]", "[{}, {}]")
    expected = {
        KeyboardInterrupt: (130, "reshard: interrupted\n"),
        Terminated: (143, "reshard: terminated\n"),
        MemoryError: (1, "reshard: there is not enough memory\n"),
        RuntimeError: (1, "reshard: a fault in reshard itself, RuntimeError: oops; python -X dev shows where\n"),
    }
    assert (done.status, done.err) == expected[type(error)]


# Processes of their own.


@pytest.mark.heavy
def test_the_module_is_the_command() -> None:
    done = process("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"reshard {rs.__version__}\n", "")
    done = process("plan", *MESH, '[{"y"}, {}]', '[{"x"}, {"y"}]')
    assert (done.returncode, done.stdout, done.stderr) == (0, PLAN, "")
    assert process("plan").returncode == 2


@pytest.mark.heavy
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_is_no_error_to_speak_of(unbuffered: str) -> None:
    args = [sys.executable, "-m", "reshard", "show", *MESH, "--json", "[{}, {}]"]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(
            args, stdout=pipe, stderr=subprocess.PIPE, check=False, env=os.environ | {"PYTHONUNBUFFERED": unbuffered}
        )
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_output_that_cannot_be_written_is_said() -> None:
    with Path("/dev/full").open("w") as full:
        args = [sys.executable, "-m", "reshard", "show", *MESH, "[{}, {}]"]
        done = subprocess.run(args, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "reshard: standard output could not be read or written: No space left on device\n"


@pytest.mark.heavy
def test_what_an_encoding_lacks_is_escaped() -> None:
    plain = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = process("show", "--mesh", "x=2", "--shape", "2", '[{"x"}]', env=plain)
    assert done.returncode == 0
    done = process("plan", "--mesh", '<["é"=2]>', "--shape", "2", '[{"é"}]', "[{}]", env=plain)
    assert done.returncode == 0
    assert r"\xe9" in done.stdout


@pytest.mark.heavy
def test_plan_loads_no_engine_and_no_tables() -> None:
    script = (
        "import sys; from reshard.cli import main; main(sys.argv[1:]); "
        "print(sorted({'rich', 'jax', 'torch', 'ml_dtypes', 'safetensors'} & set(sys.modules)))"
    )
    args = ["plan", *MESH, '[{"y"}, {}]', '[{"x"}, {"y"}]']
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, check=False)
    assert done.stdout == PLAN + "[]\n"


# On a terminal.


def test_names_of_axes_are_no_markup_of_the_table() -> None:
    mesh = rs.Mesh.of({"[red]": 2, ":smile:": 2})
    plan = rs.plan(rs.Sharding.of(mesh, "[red]"), rs.Sharding.of(mesh, ":smile:"), (8,))
    text = drawn(blocks(plan), width=100)
    assert 'from  [{"[red]"}]' in text
    assert '[{":smile:"}]' in text.splitlines()[6]
    assert "[red], :smile:" in text.splitlines()[6]
    idle = rs.plan(rs.Sharding.of(mesh, "[red]"), rs.Sharding.of(mesh, "[red]"), (8,))
    assert "nothing to do: both are one placement" in drawn(blocks(idle), width=100)


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_terminal_the_plan_is_a_table_and_the_work_has_a_bar(tmp_path: Path) -> None:

    script = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
    args = ["run", str(DEMO), "--mesh", "x=2,y=4", "--target", '[{"x"}, {"y"}]', "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", script, sys.executable, "-m", "reshard", *args],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    assert done.returncode == 0, done
    assert "────" in done.stdout
    assert "verifying" in done.stdout
    assert "verified" in done.stdout


def test_bench_planner_says_how_long_and_how_far_from_the_bound() -> None:
    options = ["bench", "planner", "--mesh", "x=2,y=3", "--shape", "12,12", "--pairs", "20"]
    assert command(*options).out.startswith("20 random pairs of shardings of 12 x 12, mesh x=2,y=3\n")
    figures = command(*options, "--json").record
    assert sum(figures["steps"].values()) == figures["pairs"] == 20
    assert 0 < figures["milliseconds"]["median"] <= figures["milliseconds"]["p99"] <= figures["milliseconds"]["max"]
    assert figures["received_over_bound"] == {"median": 1.0, "max": 1.0}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (("--pairs", "0"), "--pairs must be from 1"),
        (("--mesh", "<[], device_ids=[0]>"), "a mesh with axes"),
        (("--shape", "()"), "a shape with dims"),
    ],
)
def test_bench_planner_refuses(wrong: tuple[str, str], reason: str) -> None:
    assert reason in refused("bench", "planner", *wrong)
