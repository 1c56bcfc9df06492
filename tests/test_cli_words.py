"""The command line takes the words that its users have: reprs, networks in files, programs wherever they stand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import reshard as rs
from reshard.cli import COMMANDS, main
from reshard.network import FAMILIES, Network

PLAN = ("plan", "--mesh", "x=2,y=4", "--shape", "8,8")
MODULE = """\
I0000 compiling
module @jit_f attributes {mhlo.num_partitions = 8 : i32} {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func public @main(%arg0: tensor<64x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, \
%arg1: tensor<128x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) -> tensor<64x256xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : \
(tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
    return %0 : tensor<64x256xf32>
  }
}
step 1 done
"""


def json_of(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_reprs_are_taken_and_a_printed_mesh_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    expected = json_of(capsys, *PLAN, '[{"x"}, {}]', '[{}, {"x"}]')
    for mesh, source, target in (
        ("x=2,y=4", "P('x', None)", "P(None, 'x')"),
        ("Mesh('x': 2, 'y': 4)", "P('x')", "float32[8,8@x]"),
        ("DeviceMesh((x=2, y=4), 'cuda', stride=(4, 1))", "P('x')", "P(None, ('x',))"),
    ):
        assert main(["plan", "--mesh", mesh, "--shape", "8,8", source, target, "--json"]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out) == expected
        assert ("a printed mesh does not say its devices" in err) == ("Mesh" in mesh)
    received = json_of(capsys, *PLAN, "[Shard(0), Replicate()]", "S(1)R")["received_bytes"]
    assert received == expected["received_bytes"]


def test_a_type_says_the_shape_and_the_dtype(capsys: pytest.CaptureFixture[str]) -> None:
    mesh = ("plan", "--mesh", "x=2,y=4")
    expected = json_of(capsys, *PLAN, "--dtype", "bf16", "P('x')", "P(None, 'x')")
    assert json_of(capsys, *mesh, "bf16[8@x,8]", "P(None, 'x')") == expected
    assert json_of(capsys, *mesh, "--shape", "bfloat16[8,8]", "P('x')", "P(None, 'x')") == expected
    assert main([*mesh, "--shape", "8,4", "f32[8@x,8]", "P('y')"]) == 1
    assert "the shape is (8, 4), but a type says (8, 8)" in capsys.readouterr().err
    assert main([*mesh, "P('x')", "P('y')"]) == 2
    assert "the shape must be given, as --shape 2048,512 or in a type" in capsys.readouterr().err


def test_json_holds_what_every_option_adds(capsys: pytest.CaptureFixture[str]) -> None:
    ends = "P('y')", "P('x', 'y')"
    options = ("--device", "5", "--alternatives", "--explain-xla", "--mlir", "sdy")
    record = json_of(capsys, *PLAN, *ends, *options)
    assert record["device"]["device"] == 5
    assert [way["schema"] for way in record["alternatives"]] == [record["schema"]] * len(record["alternatives"])
    assert set(record["xla"]) == {"branch", "collectives", "why"}
    assert record["mlir"].startswith("sdy.mesh") or "sdy" in record["mlir"]
    assert rs.Plan.from_json(json.dumps(record)).received_bytes == record["received_bytes"]


def test_networks_are_listed_described_and_read_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["networks"]) == 0
    listing = capsys.readouterr().out
    assert all(family in listing for family in FAMILIES)
    assert max(map(len, listing.splitlines())) <= 80
    assert [record["family"] for record in json_of(capsys, "networks")] == list(FAMILIES)
    assert main(["networks", "h200-2x8"]) == 0
    described = capsys.readouterr().out
    assert "switch of 8, 450 GB/s" in described
    assert "float8 1979" in described
    assert max(map(len, described.splitlines())) <= 80
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(json_of(capsys, "networks", "h200-2x8") | {"name": "mine"}))
    assert Network.named(str(path)) == Network.named(path)
    ends = ("--mesh", "h=2,g=8", "--shape", "64,64", "P(None, 'h')", "P('h', None)", "--network", str(path))
    assert json_of(capsys, "plan", *ends)["network"]["name"] == "mine"
    path.write_text('{"levels": [{"stride": 1}]}')
    for network, sentence in (
        (str(path), "described wrongly"),
        ("h10-2x8", "did you mean h100"),
        ("no/such", "cannot be"),
    ):
        assert main(["networks", network]) == 1
        assert sentence in capsys.readouterr().err


def test_a_command_that_was_probably_meant_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["netwroks"]) == 2
    assert "'netwroks' is no command; did you mean 'networks'" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS)
    assert "memory-limit" in script


def test_bash_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for words, expected in ((["reshard", "net"], "networks"), (["reshard", "plan", "--memo"], "--memory-limit")):
        line = f'COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _reshard; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", script + line], capture_output=True, text=True, check=False)
        assert done.stdout.strip() == expected, done.stderr


@pytest.mark.engine
def test_programs_are_found_in_logs_folders_and_standard_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("jax")
    log = tmp_path / "dump" / "train.log"
    log.parent.mkdir()
    log.write_text(MODULE)
    for path in (log, log.parent):
        assert json_of(capsys, "propagate", str(path))["received_bytes"] == 0
    plans = json_of(capsys, "einsum", "--file", str(log))
    assert [plan["received_bytes"] for plan in plans] == [0]
    (log.parent / "more.mlir").write_text(MODULE)
    assert main(["propagate", str(log.parent)]) == 1
    assert "holds 2 modules; one must be named" in capsys.readouterr().err
    log.write_bytes(b"\x00\x01\x02")
    assert main(["propagate", str(log)]) == 1
    assert "is no text" in capsys.readouterr().err
    piped = subprocess.run(
        [sys.executable, "-m", "reshard", "propagate", "-", "--json"],
        input=MODULE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(piped.stdout)["received_bytes"] == 0, piped.stderr


@pytest.mark.engine
@pytest.mark.slow
def test_calibrate_writes_a_network_that_plans_take(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    path = tmp_path / "here.json"
    command = [sys.executable, "-m", "reshard", "calibrate", "--mesh", "x=4", "--repeats", "1", "--out", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    network = Network.read(path)
    assert [level.size for level in network.levels] == [4]
    ends = rs.Sharding.of(rs.Mesh.of(x=4), "x"), rs.Sharding.of(rs.Mesh.of(x=4), None)
    assert rs.plan(*ends, (64,), network=path).seconds is not None
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "is already there" in again.stderr
