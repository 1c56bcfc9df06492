"""What does `inspect` find in texts? Dumps of programs that were compiled once, and texts written for one question.

The programs: `loop` reshards there and back in a scan of 7 turns, `remat` goes from P('y', None, 'x') to
P(None, ('x', 'y'), None) on x=4, y=2, `kinds` is a shard_map with every kind of collective, `async` has those that
begin and end apart.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tilefiles import command, refused

import reshard as rs
from reshard import tables
from reshard.xla.read.loops import executions
from reshard.xla.read.reading import read_text
from reshard.xla.read.replica_groups import parse_groups, parse_pairs
from reshard.xla.report import ProgramEnd, ProgramEnds, Report, inspect_paths, inspect_texts
from reshard.xla.report.sections import blocks

DATA = Path(__file__).parent / "data" / "inspect"
NAMES = sorted(path.name for path in DATA.iterdir())
XYZ = rs.Mesh.of(x=4, y=2)


def text_of(name: str) -> str:
    return (DATA / name).read_text()


def inspected(*names: str) -> Report:
    return inspect_texts([(name, text_of(name)) for name in names])


# Collectives.


def test_collectives_that_begin_and_end_apart() -> None:
    found = [
        (one.name, one.kind, one.operand_bytes, one.result_bytes, one.group_size, one.received_bytes, one.is_bound)
        for one in inspected("async.txt").collectives
    ]
    assert found == [
        ("ag-start", "all-gather", 512, 1024, 2, 512, False),
        ("ar-start", "all-reduce", 512, 512, 8, 896, False),
        ("cp-start", "collective-permute", 512, 512, 3, 512, False),
        ("rs-start", "reduce-scatter", 512, 128, 4, 384, False),
        ("cb", "collective-broadcast", 512, 512, 4, 512, False),
        ("ar0", "all-reduce", 512, 512, 8, 896, False),  # a channel, and no global ids: replicas times partitions
        ("ar1", "all-reduce", 512, 512, 1, 0, False),  # no channel: among replicas, of which there is one
        ("ra", "ragged-all-to-all", 512, 512, 8, 512, True),
    ]


def test_a_wrapped_collective_is_counted_once() -> None:
    text = """HloModule m, num_partitions=8
%wrapped (p: f32[16,8]) -> f32[4,8] {
  %p = f32[16,8]{1,0} parameter(0)
  ROOT %rs = f32[4,8]{1,0} reduce-scatter(%p), channel_id=9, replica_groups=[2,4]<=[8], use_global_device_ids=true
}
ENTRY %main (x: f32[16,8]) -> f32[4,8] {
  %x = f32[16,8]{1,0} parameter(0)
  %s = ((f32[16,8]{1,0}), f32[4,8]{1,0}, s32[]) async-start(%x), calls=%wrapped
  ROOT %d = f32[4,8]{1,0} async-done(%s)
}
"""
    for head in ("async", "reduce-scatter"):
        (one,) = inspect_texts([("t", text.replace("async", head))]).collectives
        assert (one.kind, one.operand_bytes, one.result_bytes, one.received_bytes) == ("reduce-scatter", 512, 128, 384)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{{0,1,2},{3}}", ((0, 1, 2), (3,))),
        ("[2,2]<=[4]", ((0, 1), (2, 3))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[2,4]<=[2,2,2]T(1,0,2)", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("{}", ()),
        ("mesh['a'=2,'b'=4] {'a'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=4] {'b'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=2,'b'=4] {'a','b':(1)2}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['a'=4,'b'=1,'c'=2], device_ids=([2,4]T(1,0)) {'a'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>", ((0, 1), (2, 3))),
        ("dense<0> : tensor<1x1xi64>", ((0,),)),
        ("dense<[[0, 1, 2], [3, -1, -1]]> : tensor<2x3xi64>", ((0, 1, 2), (3,))),
        ("mesh['a'=2] {'b'}", None),
        ("mesh['a'=4] {'a':(3)2}", None),
        ("[3,2]<=[8]", None),
        ("[2,2]<=[2,2]T(0,0)", None),
        ("{{0,1", None),
        ("all of them", None),
    ],
)
def test_spellings_of_replica_groups(text: str, groups: object) -> None:
    assert parse_groups(text) == groups


def test_pairs_must_be_pairs() -> None:
    assert parse_pairs("{{0,1},{1,0}}") == ((0, 1), (1, 0))
    assert parse_pairs("{{0,1,2}}") is None


def test_a_kind_that_is_not_known_is_named() -> None:
    text = """HloModule m, num_partitions=2
ENTRY %e (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %a = f32[8]{0} all-shuffle(%p), channel_id=1, replica_groups={{0,1}}
  %b = q7[8]{0} all-to-all(%a), channel_id=2, replica_groups={{0,1}}
  %c = f32[8]{0} collective-permute(%a), channel_id=2, source_target_pairs=nonsense
  ROOT %d = f32[8]{0} all-gather(%b), channel_id=1, replica_groups=<3>, dimensions={0}
}
"""
    report = inspect_texts([("t", text)])
    problems = {one.line: one.problem for one in report.remarks}
    assert problems[4] == "all-shuffle names groups of devices but is no collective that is known"
    assert problems[5] == "the size of element type q7 is not known"
    assert problems[6] == "the pairs of a permute cannot be read"
    assert problems[7] == "the replica groups cannot be read"
    assert [one.received_bytes for one in report.collectives] == [None, None, None]
    assert all(total.is_least for total in report.totals)


# Loops.


def test_collectives_in_a_loop_are_multiplied() -> None:
    report = inspected("loop.txt")
    assert [one.executions for one in report.collectives] == [7, 7, 7, 7, 1, 1]
    sums = {one.kind: (one.instructions, one.executions, one.received_bytes) for one in report.totals}
    assert sums == {"all-to-all": (3, 15, 15 * 576), "collective-permute": (3, 15, 15 * 1152)}
    assert {one.source for one in report.collectives} == {"program.py:28", "program.py:29", ""}


def test_a_trip_count_is_read_off_the_counter() -> None:
    for name in ("loop.txt", "loop.before.txt", "loop.mlir"):
        text = re.sub(r', backend_config=\{"dynamic.*', "", text_of(name))
        assert "known_trip_count" not in text
        (module,) = read_text(text).modules
        assert {often.times for often in executions(module).values()} == {1, 7, 8}
        assert not any(often.unknown for often in executions(module).values())


@pytest.mark.parametrize(
    ("change", "times"),
    [
        (("constant(7)", "constant(20)"), 20),
        (("direction=LT", "direction=LE"), 8),
        (("s32[] constant(1)", "s32[] constant(2)"), 4),
        (("constant(0)", "constant(3)"), 4),
        (("direction=LT", "direction=NE"), None),
        (("s32[] add(", "s32[] multiply("), None),
    ],
)
def test_counters_that_differ(change: tuple[str, str], times: int | None) -> None:
    text = re.sub(r', backend_config=\{"dynamic.*', "", text_of("loop.txt"))
    assert change[0] in text
    (module,) = read_text(text.replace(*change)).modules
    often = executions(module)["region_0.1_spmd"]
    assert often == ((times, "") if times else (1, "the trip count of the loop in line 155 is not told"))


def test_a_computation_that_calls_itself_ends() -> None:
    text = "HloModule m\n%a (p: f32[]) -> f32[] {\n  ROOT %b = f32[] call(%c), to_apply=%a\n}\n"
    (module,) = read_text(text).modules
    assert executions(module)["a"].unknown == "it calls itself"


# Warnings.


def test_every_wording_of_the_warning() -> None:
    report = inspected("warnings.log")
    rows = [(one.line, one.times, one.shape, one.received_bytes, one.lower_bound_bytes) for one in report.warnings]
    assert rows == [
        (1, 3, (16, 16, 16), 14336, 1792),
        (2, 1, None, None, None),
        (3, 1, None, None, None),
        (8, 1, (16, 16, 16), 14336, 1792),
    ]
    assert [one.ratio for one in report.warnings[:2]] == [8.0, 8.0]
    assert report.warnings[0].call == "rs.jax.reshard(x, P(None, ('a', 'b'), None), source=P('b', None, 'a'))"
    assert report.warnings[3].call == "rs.jax.reshard(x, P(None, ('y', 'x'), None), source=P('x', None, 'y'))"
    (odd,) = report.unrecognised
    assert odd.line == 4
    assert odd.why.startswith("from {devices=[1,1,2,2]<=[4] last_tile_dim_replicate} to {devices=[2,2]<=[2,2]T(1,0) ")
    assert not report.remarks


def test_a_mesh_names_the_axes_of_a_log() -> None:
    found = inspect_texts([("log", text_of("warnings.log"))], mesh=XYZ).warnings[0]
    assert found.call == "rs.jax.reshard(x, P(None, ('x', 'y'), None), source=P('y', None, 'x'))"


def test_a_warning_is_joined_with_the_program_it_is_about() -> None:
    report = inspected("warnings.log", "remat.mlir", "remat.txt")
    first = report.warnings[0]
    assert (first.place, first.shape, first.is_rounded) == ("program.py:34", (16, 16, 16), False)
    assert (first.received_bytes, first.collectives) == (14336, ("all-gather", "all-gather.1"))
    (asked,) = report.reshards
    assert asked.warned
    assert asked.call == "rs.jax.reshard(x, P(None, ('x', 'y'), None), source=P('y', None, 'x'))"


@pytest.mark.parametrize("stop", [60, 110, 160, 190, 215, 240, 300])
def test_a_warning_that_is_cut_is_named(stop: int) -> None:
    line = text_of("warnings.log").splitlines()[0][:stop]
    report = inspect_texts([("log", line)])
    assert len(report.warnings) + len(report.unrecognised) + len(report.remarks) + (stop <= 60) >= 1


# Reshards and chains.


def test_reshards_of_a_text_before_partitioning() -> None:
    report = inspected("loop.txt", "loop.before.txt")
    rows = [
        (one.line, one.source.text(), one.target.text(), one.executions, one.received_bytes, one.lower_bound_bytes)
        for one in report.reshards
    ]
    ab, ba = '[{"a"}, {"b"}]', '[{"b"}, {"a"}]'
    assert rows == [(40, ba, ab, 7, 1728, 1152), (42, ab, ba, 7, 1728, 1152), (55, ab, ba, 1, 1728, 1152)]
    assert [one.ratio for one in report.reshards] == [1.5, 1.5, 1.5]
    assert (report.unchanged, report.free) == (8, 2)
    assert not report.unrecognised


def test_reshards_of_a_lowered_module() -> None:
    report = inspected("loop.mlir")
    (one,) = report.reshards
    assert (one.line, one.place, one.executions) == (26, "program.py:28", 7)
    assert (one.source.text(), one.target.text()) == ('[{"y"}, {"x"}]', '[{"x"}, {"y"}]')
    (unknown,) = report.unrecognised
    assert unknown.why.endswith("it comes from parameter iterArg_0 of body of line 7")
    (remat,) = inspected("remat.mlir").reshards
    assert (remat.received_bytes, remat.known_by, remat.ratio) == (14336, "branch", 8.0)


def test_collectives_of_a_lowered_shard_map() -> None:
    rows = [
        (one.kind, one.operand_bytes, one.result_bytes, one.group_size) for one in inspected("kinds.mlir").collectives
    ]
    assert rows == [
        ("all-gather", 2048, 8192, 4),
        ("all-reduce", 8192, 8192, 2),
        ("reduce-scatter", 8192, 2048, 4),
        ("all-to-all", 2048, 2048, 8),
        ("collective-permute", 2048, 2048, 8),
        ("all-to-all", 2048, 2048, 2),
        ("all-reduce", 2048, 2048, 8),
    ]


def test_a_chain_whose_end_is_not_told_is_unrecognised() -> None:
    report = inspected("remat.txt")
    (one,) = report.unrecognised
    assert (one.origin, one.collectives, one.received_bytes) == ("chain", ("all-gather", "all-gather.1"), 14336)
    assert one.why.endswith("the sharding of result 0, broadcast_add_fusion, is not told")
    known = ProgramEnds(results=(ProgramEnd((16, 16, 16), rs.Sharding.of(XYZ, None, ("x", "y"), None)),))
    (chain,) = inspect_texts([("t", text_of("remat.txt"))], mesh=XYZ, ends={"t": known}).chains
    assert (chain.received_bytes, chain.lower_bound_bytes) == (14336, 1792)
    assert chain.source == rs.Sharding.of(XYZ, "y", None, "x")


def test_sub_axes_make_a_call_of_shardings() -> None:
    line = "W [SPMD] Involuntary full rematerialization. The compiler cannot go from sharding {devices=[2,1,4]<=[8] "
    line += "last_tile_dim_replicate} to {devices=[1,8]<=[8]} efficiently for HLO operation %p = f32[8,8]{1,0} add(%a)."
    (found,) = inspect_texts([("log", line)], mesh=rs.Mesh.of(z=8)).warnings
    assert found.call.startswith('rs.jax.reshard(x, rs.parse_sharding(\'#sdy.sharding<mesh<["z"=8]>')
    assert found.source.text() == '[{"z":(1)2}, {}]'


# Texts that are cut or damaged.


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_text_is_read_up_to_the_cut(name: str) -> None:
    text = text_of(name)
    whole = inspect_texts([(name, text)])
    lines = text.splitlines(keepends=True)
    for count in range(1, len(lines)):
        report = inspect_texts([(name, "".join(lines[:count]))])
        before = [one.name for one in whole.collectives if one.line <= count]
        assert [one.name for one in report.collectives] == before or name.endswith(".mlir")
        stops = [part.stopped for part in report.parts if part.stopped]
        if name.endswith(".txt") and count < len(lines) - 1:
            assert len(stops) == 1, count
            assert stops[0].startswith(f"line {count}: the text ends"), count


def test_where_a_text_stops_is_said() -> None:
    lines = text_of("loop.txt").splitlines(keepends=True)
    (part,) = inspect_texts([("t", "".join(lines[:100]))]).parts
    assert part.stopped == "line 100: the text ends within computation region_0.1_spmd"
    text = "".join(lines[:100]) + lines[100][:30]
    report = inspect_texts([("t", text)])
    assert [(one.line, one.problem) for one in report.remarks] == [(101, "the line is cut within a shape")]
    (part,) = inspect_texts([("t", "".join(text_of("loop.mlir").splitlines(keepends=True)[:12]))]).parts
    assert part.stopped == "line 12: the text ends within the region of line 12"


def test_a_text_whose_beginning_is_lost() -> None:
    lines = text_of("loop.txt").splitlines(keepends=True)
    report = inspect_texts([("t", "".join(lines[95:]))])
    assert [one.name for one in report.collectives] == [
        one.name for one in inspected("loop.txt").collectives if one.line > 95
    ]
    assert report.remarks[0].problem == "the instruction stands in no computation"


def mutated(text: str, seed: int) -> str:
    rng = random.Random(seed)
    kind = rng.randrange(4)
    if kind == 0:
        return text[: rng.randrange(len(text))]
    if kind == 1:
        return text[rng.randrange(len(text)) :]
    if kind == 2:
        return "\n".join(line for line in text.split("\n") if rng.random() > 0.2)
    data = bytearray(text.encode())
    for _ in range(rng.choice([1, 10, 100])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return data.decode("utf-8", "replace")


@settings(max_examples=250)
@given(st.sampled_from(NAMES), st.integers(0, 2**32), st.integers(0, 2**32), st.booleans())
def test_damaged_texts_make_a_report(name: str, seed: int, other: int, twice: bool) -> None:
    text = mutated(text_of(name), seed)
    if twice and text:
        text = mutated(text, other)
    report = inspect_texts([("t", text)])
    assert str(report)
    assert json.loads(report.to_json())["schema"] == 1


@settings(max_examples=100)
@given(st.text(alphabet='{}[]()<>",=%#:01 \nafHloModue.xyz@-', max_size=200))
def test_any_text_makes_a_report(text: str) -> None:
    for head in ("", "HloModule m\nENTRY %e {\n", "module @m {\nfunc.func public @main(", "%a = f32[8] all-gather("):
        assert isinstance(str(inspect_texts([("t", head + text)])), str)


# The command line.


def test_inspect_reads_files_and_prints_tables() -> None:
    done = command("inspect", DATA / "loop.txt", DATA / "loop.before.txt")
    assert (done.status, done.err) == (0, "")
    assert "all-to-all all-to-all.3  " in done.out
    assert "1728 B on the busiest device by all-to-all.3, collective-permute; lower bound 1152 B, 1.50" in done.out
    assert "instead   rs.jax.reshard(x, P('a', 'b'), source=P('b', 'a'))" in done.out


def test_inspect_prints_json() -> None:
    done = command("inspect", DATA / "warnings.log", "--json", "--mesh", "x=4,y=2")
    record = done.record
    assert set(record) >= {"schema", "parts", "collectives", "totals", "warnings", "chains", "reshards", "unrecognised"}
    first = record["warnings"][0]
    assert (first["received_bytes"], first["lower_bound_bytes"], first["ratio"]) == (14336, 1792, 8.0)
    assert first["call"].endswith("source=P('y', None, 'x'))")
    assert rs.parse_sharding(first["source"]) == rs.Sharding.of(XYZ, "y", None, "x")


@pytest.mark.parametrize("args", [(), ("-",)])
def test_inspect_reads_standard_input(args: tuple[str, ...]) -> None:
    given = io.TextIOWrapper(io.BytesIO(b"hello \xff\n" + text_of("async.txt").encode()))
    with mock.patch("sys.stdin", given):
        done = command("inspect", *args, "--json")
    assert len(done.record["collectives"]) == 8
    assert done.record["not_understood"][0]["problem"] == "the line belongs to nothing that is known"


def test_inspect_reads_a_dump_folder(tmp_path: Path) -> None:
    for stage, name in {
        "before_optimizations": "loop.before.txt",
        "0001.spmd-partitioner.after_shardy-xla.before_spmd-partitioning": "loop.before.txt",
        "cpu_after_optimizations": "loop.txt",
    }.items():
        (tmp_path / f"module_0010.jit_loop.{stage}.txt").write_text(text_of(name))
    (tmp_path / "module_0010.jit_loop.cpu_after_optimizations-buffer-assignment.txt").write_text("BufferAssignment:")
    (tmp_path / "module_0010.jit_loop.fusion.ir-no-opt.ll").write_text("; ModuleID")
    (tmp_path / "train.log").write_text(text_of("warnings.log"))
    report = inspect_paths([str(tmp_path)])
    assert len(report.collectives) == 6
    assert [one.received_bytes for one in report.reshards] == [1728, 1728, 1728]
    assert len(report.warnings) == 4
    assert [one.problem for one in report.remarks] == ["2 files are not read: .ll, .txt"]


def test_inspect_refuses_what_is_not_there(tmp_path: Path) -> None:
    assert refused("inspect", tmp_path / "none.txt").endswith("none.txt cannot be read: No such file or directory")
    assert refused("inspect", tmp_path).endswith("holds no text of XLA's: no module and no log")


def test_reading_texts_loads_no_engine() -> None:
    code = f"""
import sys
from reshard.xla.report import inspect_paths
print(len(inspect_paths([{str(DATA / "loop.txt")!r}]).collectives), *{{"jax", "torch"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "6\n"


@pytest.mark.parametrize("name", NAMES)
def test_tables_for_a_terminal_hold_the_same(name: str) -> None:
    report = inspected(name)
    drawn = tables.drawn(blocks(report), width=400)
    for one in report.collectives:
        assert one.name in drawn
    for found in (*report.reshards, *report.warnings):
        assert found.call in drawn


def test_shardys_own_collectives_are_reshards() -> None:
    text = """module @m {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> tensor<8x8xf32> {
    %0 = sdy.all_gather [{}, {"y"}] %arg0 out_sharding=<@mesh, [{"x"}, {}]> : tensor<8x8xf32>
    %1 = sdy.all_slice [{}, {"y"}] %0 out_sharding=<@mesh, [{"x"}, {"y"}]> : tensor<8x8xf32>
    return %1 : tensor<8x8xf32>
  }
}
"""
    report = inspect_texts([("t", text)])
    rows = [(one.line, one.source.text(), one.target.text(), one.lower_bound_bytes) for one in report.reshards]
    assert rows == [(4, '[{"x"}, {"y"}]', '[{"x"}, {}]', 96), (5, '[{"x"}, {}]', '[{"x"}, {"y"}]', 0)]
    assert (report.collectives, report.remarks, report.parts[0].stopped) == ([], [], "")


def test_a_branch_may_run_or_not() -> None:
    text = """HloModule m, num_partitions=2
%a (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %r = f32[8]{0} all-to-all(%p), channel_id=1, replica_groups={{0,1}}, dimensions={0}
}
%b (q: f32[8]) -> f32[8] {
  ROOT %q = f32[8]{0} parameter(0)
}
ENTRY %e (i: s32[], x: f32[8]) -> f32[8] {
  %i = s32[] parameter(0)
  %x = f32[8]{0} parameter(1)
  ROOT %c = f32[8]{0} conditional(%i, %x, %x), branch_computations={%a, %b}
}
"""
    report = inspect_texts([("t", text)])
    (one,) = report.collectives
    assert (one.executions, one.unknown, one.channel_id) == (1, "which branch of line 12 runs is not told", 1)
    assert report.totals[0].is_least


def test_a_run_begins_at_the_element_of_a_tuple() -> None:
    from reshard.xla.report.flows import find_runs

    text = """HloModule m, num_partitions=2
ENTRY %e (p: (s32[], f32[4,8])) -> f32[8,8] {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %c = f32[4,8]{0,1} copy(%x)
  %g = f32[8,8]{0,1} all-gather(%c), channel_id=1, replica_groups=[1,2]<=[2], use_global_device_ids=true
  %h = f32[8,8]{0,1} collective-permute(%g), channel_id=2, source_target_pairs={{0,1},{1,0}}
  %t = f32[8,8]{0,1} tanh(%h)
  ROOT %k = f32[8,8]{0,1} collective-permute(%t), channel_id=3, source_target_pairs={{0,1},{1,0}}
}
"""
    runs = find_runs(read_text(text).modules[0])
    assert [[one.name for one in run.collectives] for run in runs] == [["g", "h"], ["k"]]
    assert [(run.first, run.last, run.before, run.after) for run in runs] == [
        ("x", "t", {(4, 8)}, {(8, 8)}),
        ("t", "k", {(8, 8)}, {(8, 8)}),
    ]


def test_colors_are_no_part_of_a_text() -> None:
    colored = "\n".join(f"\x1b[1;32m{line}\x1b[0m" for line in text_of("loop.txt").split("\n"))
    assert inspect_texts([("loop.txt", colored)]) == inspected("loop.txt")
    assert inspected("loop.txt").collectives


def test_hlo_behind_a_prefix_is_named() -> None:
    text = "\n".join(f"I1121 01:02:03.004 pass.cc:5] {line}" for line in text_of("loop.txt").split("\n"))
    report = inspect_texts([("t", text)])
    assert not report.collectives
    assert len(report.remarks) == 1 + len(inspected("loop.txt").collectives)
    assert {one.problem for one in report.remarks} == {"HLO behind the beginning of a log's line is not read"}


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    for data in (gzip.compress(text_of("loop.txt").encode()), bytes(range(256)) * 9, bytes(5000)):
        (tmp_path / "x.txt").write_bytes(data)
        assert refused("inspect", tmp_path / "x.txt").endswith("is no text; what is compressed must be unpacked first")


# What is worth a line


def test_findings_are_above_their_bound_and_the_most_bytes_first() -> None:
    report = inspected("loop.txt", "loop.before.txt", "remat.txt", "remat.mlir", "warnings.log")
    findings = report.findings
    assert findings
    assert all(finding.ratio > 1.05 for finding in findings)
    saved = [finding.saved_bytes for finding in findings]
    assert saved == sorted(saved, reverse=True)
    loop = next(finding for finding in findings if finding.executions == 7)
    assert loop.saved_bytes == 7 * (1728 - 1152)
    assert len({finding.collectives for finding in findings if finding.collectives}) == len(
        [finding for finding in findings if finding.collectives]
    ), "no collective is counted twice"


WHOLE = """HloModule whole, num_partitions=4
ENTRY %e (p: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0), sharding={replicated}
  ROOT %c = f32[8,8]{1,0} copy(%p), sharding={devices=[1,1,4]<=[4] last_tile_dim_replicate}
}"""


def test_whole_to_whole_is_no_advice() -> None:
    assert "instead" not in str(inspect_texts([("whole", WHOLE)]))


SUMS = """HloModule m, num_partitions=4
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
cut {
  v = f32[8,8] parameter(0)
  i = s32[] parameter(1)
  zero = s32[] constant(0)
  n = f32[8,8] negate(v)
  ROOT s = f32[2,8] dynamic-slice(n, i, zero), dynamic_slice_sizes={2,8}
}
ENTRY e {
  p = f32[8,8] parameter(0)
  q = f32[8,8] parameter(1)
  i = s32[] parameter(2)
  whole = f32[8,8] all-reduce(p), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add
  part = f32[8,8] all-reduce(q), channel_id=2, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add
  both = (f32[8,8], f32[8]) all-reduce(p, q), channel_id=3, replica_groups={{0,1},{2,3}}, to_apply=add, PAIRS
  first = f32[8,8] get-tuple-element(both), index=0
  f = f32[2,8] fusion(part, i), kind=kLoop, calls=cut
  g = f32[2,8] fusion(first, i), kind=kLoop, calls=cut
  second = f32[8] get-tuple-element(both), index=1
  ROOT t = (f32[8,8], f32[2,8], f32[2,8], f32[8]) tuple(whole, f, g, second)
}""".replace("PAIRS", "use_global_device_ids=true")


def test_all_reduces_are_judged_by_what_is_made_of_them() -> None:
    report = inspect_texts([("sums", SUMS)])
    judged = {one.name: (one.received_bytes, one.lower_bound_bytes) for one in report.sums}
    # of both parts of `both` 2 devices sum: 256 and 32 bytes; of the first a quarter is used, the second is whole
    assert judged == {"whole": (384, 384), "part": (384, 192), "both": (288, 64 + 32)}
    assert [one.name for one in report.sum_findings] == ["part", "both"]
    assert "192 B by a reduce-scatter" in str(report)
    assert report.worst_ratio == 1, "what compilers mend by themselves fails nothing"


def test_compiled_text_alone_is_told_apart_from_clean() -> None:
    assert "compiled text alone" in str(inspected("remat.txt"))
    assert "compiled text alone" not in str(inspected("remat.txt", "remat.mlir"))


def test_names_that_were_invented_are_said_to_be() -> None:
    warnings = [("log", text_of("warnings.log").splitlines()[0])]
    assert "invented, since no text has those of the mesh: give --mesh NAME=4,NAME=2" in str(inspect_texts(warnings))
    assert "invented" not in str(inspect_texts(warnings, mesh=XYZ))


def test_a_program_that_the_derivative_makes_takes_no_call() -> None:
    log = text_of("warnings.log").replace('op_name="', 'op_name="transpose(jvp(f))/')
    found = inspect_texts([("log", log)], mesh=XYZ).findings[0]
    assert found.stands.startswith("nowhere: it is made by the derivative")


def test_lines_of_a_programs_own_log_are_passed_over() -> None:
    own = "".join(f"step {number} loss 0.5 {{x}} = f(y)\n" for number in range(5000))
    report = inspect_texts([("log", own + text_of("warnings.log"))], mesh=XYZ)
    assert len(report.warnings) == 4
    assert "step 1" not in str(report)
    assert "not understood" not in str(report)


def test_a_file_that_cannot_be_read_spoils_itself_alone(tmp_path: Path) -> None:
    (tmp_path / "module_0001.jit_loop.before_optimizations.txt").write_text(text_of("loop.before.txt"))
    (tmp_path / "module_0001.jit_loop.cpu_after_optimizations.txt").write_text(text_of("loop.txt"))
    (tmp_path / "core.log").write_bytes(bytes(range(256)) * 40 + b"\0" * 5000)
    (tmp_path / "odd.log").write_text("HloModule m, num_partitions=" + "9" * 5000 + "\n%p = f32[" + "8" * 5000 + "]")
    os.mkfifo(tmp_path / "pipe.log")
    report = inspect_paths([str(tmp_path)])
    assert len(report.collectives) == 6
    assert any("core.log" in note.text for note in report.remarks)


def test_a_pipe_without_a_writer_does_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    assert "nothing of XLA's was recognised" in refused("inspect", tmp_path / "pipe.log")


def test_nothing_recognised_is_no_success() -> None:
    given = io.TextIOWrapper(io.BytesIO(b"epoch 1\nepoch 2\n"))
    with mock.patch("sys.stdin", given):
        assert "nothing of XLA's was recognised" in refused("inspect")


def test_a_ratio_above_which_to_fail() -> None:
    paths = (DATA / "loop.txt", DATA / "loop.before.txt")
    assert command("inspect", *paths, "--fail-above", "1.6").status == 0
    done = command("inspect", *paths, "--fail-above", "1.4")
    assert (done.status, "instead" in done.out) == (1, True)
    assert done.err == "reshard: 1.50 times its bound is received, more than 1.4\n"
