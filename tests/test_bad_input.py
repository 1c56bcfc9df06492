"""Each bad input that once ended in a traceback, a hang or a wrong value is refused in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard as rs
from reshard.cli import main
from reshard.notation import parse_module
from reshard.xla.report import inspect_texts

GRID = rs.Mesh.of(x=2, y=2)
ROWS, COLUMNS = rs.Sharding.of(GRID, "x"), rs.Sharding.of(GRID, "y")
PLAN = rs.plan(ROWS, COLUMNS, (8,), "float32")
DIGITS = "9" * 5000
LARGE = 2**63


def tiles(value: Any) -> dict[int, Any]:
    return dict.fromkeys(range(4), value)


def rank(number: int) -> rs.Sharding:
    return rs.Sharding.of(GRID, "x", *[None] * (number - 1))


def renumbered(text: str) -> str:
    """The JSON of a plan with a number of 5,000 digits."""
    return text.replace('"shape": [\n  8\n ]', f'"shape": [\n  {DIGITS}\n ]').replace("[8]", f"[{DIGITS}]")


MESH_LINE = 'sdy.mesh @m = <["x"=2]>\n'
UNFINISHED = f'{MESH_LINE}x = input : f32[8]\n  <@m [{{"x"}}]>\n'
PADDED = f'{MESH_LINE}x = input : f32[] <@m, []>\ny = pad "->" (x) {{low=1, high=1}}\n'
BAD: list[tuple[str, Callable[[], Any], str, str]] = [
    ("a wrong token on a continuation line", lambda: rs.Program.parse(UNFINISHED),
     "syntax", "line 2, value x: expected `,` at 3:7, found `[`"),
    ("the same in a sharding", lambda: rs.parse_sharding('[{"x"},\n {"y"} !]', GRID), "syntax", "at 2:8, found `!`"),
    ("the same in a module", lambda: parse_module('module {\n sdy.mesh @m =\n <["x"=2\n !]>\n}'), "syntax", "at 4:2"),
    *((f"{len(DIGITS)} digits in {form}", lambda form=form: rs.parse_sharding(form.format(DIGITS), GRID, 1),
       "too-large", "it must be below 2**63")
      for form in ('[{{"x":(1){}}}]', "{{devices=[{}]<=[2]}}", "[[{}]]", "S({})R", "f32[{}@x]", '[{{"x"}}p{}]')),
    *((f"{len(DIGITS)} digits in {form}", lambda form=form: rs.parse_mesh(form.format(DIGITS)), "too-large", "2**63")
      for form in ("x={}", '<["x"={}]>', "Mesh('x': {})", "DeviceMesh((x={}), 'cpu')", '<["x"=1], device_ids=[{}]>')),
    ("digits in a plan", lambda: rs.Plan.from_json(renumbered(PLAN.to_json())), "bad-plan-text", "a plan must be JSON"),
    ("digits in a shape", lambda: rs.plan(ROWS, COLUMNS, (10**4900,)), "too-large", "about 4900 digits"),
    ("a device from 2**63 on", lambda: rs.Mesh.of({"x": 2}, device_ids=[0, LARGE]), "too-large", f"device id {LARGE}"),
    ("a device in a mesh's text", lambda: rs.parse_mesh(f'<["x"=2], device_ids=[0, {LARGE}]>'), "too-large", "2**63"),
    ("a device in XLA's text", lambda: rs.parse_sharding(f"{{maximal device={LARGE}}}"), "too-large", f"{LARGE}"),
    ("a device asked for", lambda: ROWS.box(LARGE, (8,)), "unknown-device", f"device {LARGE} is not in mesh"),
    ("65 dims of NumPy's 64", lambda: rs.numpy.run(rs.plan(rank(65), rank(65), (2,) * 65), tiles(np.zeros(2))),
     "bad-tiles", "the tile of device 0 has shape (2,)"),
    ("65 dims for 64", lambda: rs.numpy.scatter(np.zeros((1,) * 64), rank(65)), "rank-mismatch", "has 65 dims"),
    ("padding a scalar", lambda: rs.Program.parse(PADDED),
     "bad-argument", "pad must have 0 integers as low, got: 1"),
    ("a halo of a scalar", lambda: rs.Sharding.of(GRID).with_halo({0: (1, 1)}), "rank-mismatch", "dim 0 has a window"),
    *((f"tiles of {dtype}", lambda dtype=dtype: rs.numpy.run(PLAN, tiles(np.zeros(4, dtype))), "bad-tiles",
       "tiles must all be of dtype float32, got: ") for dtype in ("int32", "uint32", "V4", "S4", "float64", "O")),
    ("masked tiles", lambda: rs.numpy.run(PLAN, tiles(np.ma.masked_array(np.zeros(4, "f4"), mask=[1, 0, 0, 0]))),
     "bad-tiles", "must not be a masked array"),
    ("a masked array", lambda: rs.numpy.scatter(np.ma.masked_array(np.zeros(8), mask=[1] + [0] * 7), ROWS),
     "bad-tiles", "must not be a masked array"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "code", "words"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_it_is_refused_with_a_code(call: Callable[[], Any], code: str, words: str) -> None:
    with pytest.raises(rs.ReshardError) as caught:
        call()
    assert caught.value.code == code
    assert words in str(caught.value)
    assert len(str(caught.value)) <= 1200


LONG = ["x" * 100_000, ["a"] * 50_000, {"k": "v" * 5000}, np.zeros(100_000)]


@pytest.mark.parametrize("value", LONG, ids=["text", "list", "mapping", "array"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda value: rs.Sharding.of(GRID, value),
        lambda value: rs.plan(ROWS, COLUMNS, (8,), value),
        lambda value: rs.plan(ROWS, COLUMNS, (8,), network=value),
        rs.Mesh.of,
        lambda value: rs.parse_sharding(value, GRID),
        lambda value: rs.einsum(value, ROWS, shapes=[(8,)]),
    ],
    ids=["sharding", "dtype", "network", "mesh", "text", "einsum"],
)
def test_a_sentence_has_an_end(ask: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(rs.ReshardError) as caught:
        ask(value)
    assert len(str(caught.value)) <= 1200


@pytest.mark.parametrize("count", ["8²", "٣", "-1", "8.0", DIGITS])
def test_a_number_of_partitions_that_is_none_spoils_itself_alone(count: str) -> None:
    text = (
        f"HloModule jit_f, num_partitions={count}\n\nENTRY main {{\n  p = f32[8] parameter(0)\n"
        "  ROOT r = f32[64] all-gather(p), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}\n}\n"
    )
    report = inspect_texts([("text", text)])
    assert "num_partitions is no number of at least 1" in str(report)
    assert [one.received_bytes for one in report.collectives] == [224]


def test_a_surrogate_in_an_index_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 4), "f4"))
    folder = tmp_path / "tiles"
    assert main(["run", str(tmp_path / "a.npy"), "--mesh", "x=2", "--target", "P('x')", "--out", str(folder)]) == 0
    index = json.loads((folder / "index.json").read_text())
    for name, value in (("file", "\ud800.npy"), ("crc32", "\ud800")):
        tile = index["tiles"][0] | {name: value}
        (folder / "index.json").write_text(json.dumps(index | {"tiles": [tile, *index["tiles"][1:]]}))
        capsys.readouterr()
        assert main(["run", str(folder), "--target", "P()", "--out", str(tmp_path / "out")]) == 1
        sentence = capsys.readouterr().err
        assert sentence.startswith("reshard: ")
        assert sentence.count("\n") == 1
        assert "a fault in reshard itself" not in sentence
    (folder / "index.json").write_text(json.dumps(index | {"mesh": '<["\ud800"=2]>'}))
    assert main(["run", str(folder), "--target", "P()", "--out", str(tmp_path / "out")]) == 1


def test_an_interrupt_while_modules_load_is_no_traceback() -> None:
    script = """
import builtins, sys
plain = builtins.__import__
def interrupted(name, *rest):
    if name.startswith("reshard.cli"):
        raise KeyboardInterrupt
    return plain(name, *rest)
builtins.__import__ = interrupted
from reshard.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
