"""Programs: the sharding document's examples by section; values against plain NumPy; figures, texts, refusals."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
from effort import calls_of
from programs import conflicting, generate, odd, place_as, reference

from reshard import Mesh, ReshardError, Sharding, parse_sharding
from reshard.cli import main
from reshard.numpy import run_program
from reshard.propagation import Placement, Program


def dims(placed: Placement, name: str) -> str:
    return placed.sharding(name).text()


# The sections of the document on representing shardings.


def test_basic_structure() -> None:
    mesh = Mesh.of(x=2, y=4, z=2)
    program = Program(mesh)
    program.output(program.input("a", (4, 8), sharding=Sharding.of(mesh, "x", ("z", "y"))))
    assert program.propagate().sharding("a").local_shape((4, 8)) == (2, 1)


def test_open_and_closed_dimensions() -> None:
    mesh = Mesh.of(x=2, y=4, z=2)
    program = Program(mesh)
    a = program.input("a", (4, 8), sharding=parse_sharding('[{"x"}, {"z", ?}]', mesh))
    b = program.input("b", (4, 8), sharding=parse_sharding('[{?}, {"z", "y", ?}]', mesh))
    c = program.input("c", (4, 8), sharding=parse_sharding("[{}, {?}]", mesh))
    d = program.op("ij,ij->ij", a, b, name="add", result="d")
    program.output(program.op("ij,ij->ij", d, c, name="add", result="e"))
    placed = program.propagate()
    assert dims(placed, "a") == '[{"x"}, {"z", "y"}]'
    assert dims(placed, "b") == '[{"x"}, {"z", "y"}]'
    assert dims(placed, "c") == '[{}, {"z", "y"}]'
    assert dims(placed, "e") == '[{"x"}, {"z", "y"}]'
    assert placed.received_bytes == 0


def test_explicitly_replicated_axes() -> None:
    mesh = Mesh.of(x=2, y=4, z=2)
    program = Program(mesh)
    a = program.input("a", (4, 8), sharding=parse_sharding('[{"x"}, {?}], replicated={"y"}', mesh))
    b = program.input("b", (4, 8), sharding=parse_sharding('[{?}, {"z", "y"}]', mesh))
    c = program.op("ij,ij->ij", a, b, name="add", result="c")
    program.output(c)
    placed = program.propagate()
    assert dims(placed, "a") == '[{"x"}, {"z"}], replicated={"y"}'
    assert dims(placed, "c") == '[{"x"}, {"z", "y"}]'


def test_explicitly_replicated_sub_axes() -> None:
    mesh = Mesh.of(x=2, y=8, z=2)
    program = Program(mesh)
    a = program.input("a", (4, 8), sharding=parse_sharding('[{"x"}, {?}], replicated={"y":(2)2}', mesh))
    b = program.input("b", (4, 8), sharding=parse_sharding('[{?}, {"y"}]', mesh))
    program.output(program.op("ij,ij->ij", a, b, name="add"))
    assert dims(program.propagate(until_priority=9), "a") == '[{"x"}, {"y":(1)2}], replicated={"y":(2)2}'


def test_explicit_replication_is_said_and_comes_back() -> None:
    text = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
a = input : float32[8, 8] <@mesh, [{"x"}, {?}], replicated={"y"}>
b = input : float32[8, 8] <@mesh, [{}, {"x", "y":(1)2}], replicated={"y":(2)2}>
c = add "ij,ij->ij" (a, b)
out = output (c) <@mesh, [{?}, {?}], replicated={"y"}>
"""
    placed = Program.parse(text).propagate()
    assert dims(placed, "out").endswith('replicated={"y"}')
    for name, said in (("a", 'replicated={"y"}'), ("b", 'replicated={"y":(2)2}'), ("out", 'replicated={"y"}')):
        [line] = [line for line in placed.text().splitlines() if line.startswith(f"{name} = ")]
        [row] = [row for row in placed.table().splitlines() if row.split(" ")[0] == name]
        assert said in line
        assert said in row
    again = Program.parse(placed.text())
    assert str(again) == placed.text()
    assert again.propagate().text() == placed.text()
    arrays = {name: np.arange(64, dtype="float32").reshape(8, 8) + n for n, name in enumerate("ab")}
    assert np.array_equal(run_program(placed, arrays)["out"], arrays["a"] + arrays["b"])


def test_axis_splitting_motivation() -> None:
    mesh = Mesh.of(x=4)
    program = Program(mesh)
    a = program.input("a", (8,), sharding=Sharding.of(mesh, "x"))
    program.output(program.reshape(a, (2, 4), result="b"))
    placed = program.propagate()
    assert dims(placed, "b") == '[{"x":(1)2}, {"x":(2)2}]'
    assert placed.plans == {}
    array = np.arange(8.0, dtype="float32")
    [result] = run_program(placed, {"a": array}).values()
    assert np.array_equal(result, array.reshape(2, 4))


def test_axis_splitting_representation() -> None:
    mesh = Mesh.of(x=2, y=8, z=2)
    program = Program(mesh)
    a = program.input("a", (4, 8), sharding=parse_sharding('[{"x"}, {"y":(2)2}]', mesh))
    program.output(program.transpose(a, (1, 0), result="b"), result="out")
    placed = program.propagate(until_priority=9)
    assert dims(placed, "out") == '[{"y":(2)2}, {"x"}]'
    assert placed.sharding("b").local_shape((8, 4)) == (4, 2)


def test_multiple_logical_meshes() -> None:
    first, second = Mesh.of(a=4, b=2), Mesh.of(x=2, y=2, z=2)
    program = Program({"mesh_0": first, "mesh_1": second})
    a = program.input("a", (8, 4), sharding=Sharding.of(first, "b", None))
    same = program.reshard(a, Sharding.of(second, "z", None), result="same")
    other = program.reshard(a, Sharding.of(second, ("z", "?"), ("y", "?")), result="other")
    b = program.input("b", (8, 4), sharding=Sharding.of(first, ("b", "?"), ("a", "?")))
    c = program.op("ij,ij->ij", other, b, name="add", result="c")
    program.output(program.op("ij,ij->ij", c, same, name="add"), result="out")
    placed = program.propagate(until_priority=9)
    assert placed.plans[placed.value("same")].steps == ()
    assert dims(placed, "c") == '[{"z"}, {"y"}]'  # the axes of b, which is on the other mesh, do not cross
    assert placed.sharding("c").mesh == second
    assert dims(placed, "b") == '[{"b"}, {"a"}]'
    arrays = {name: np.arange(32.0, dtype="float32").reshape(8, 4) + n for n, name in enumerate("ab")}
    assert np.array_equal(run_program(placed, arrays)["out"], 2 * arrays["a"] + arrays["b"])


PRIORITIES = """
sdy.mesh @mesh = <["data"=2, "model"=2]>
x = input : float32[16, 8] <@mesh, [{"data"}, {?}]>
w1 = input : float32[8, 32] <@mesh, [{"data", ?}p2, {"model"}p1]>
w2 = input : float32[32, 8] <@mesh, [{"model"}p1, {"data", ?}p2]>
h = einsum "bd,df->bf" (x, w1)
a = relu "bf->bf" (h)
y = einsum "bf,fd->bd" (a, w2)
out = output (y)
"""


def test_priorities() -> None:
    program = Program.parse(PRIORITIES)
    batch, megatron, zero = (program.propagate(until_priority=level) for level in range(3))
    assert [dims(batch, name) for name in ("w1", "a", "y")] == ["[{}, {}]", '[{"data"}, {}]', '[{"data"}, {}]']
    assert [dims(megatron, name) for name in ("w1", "a", "w2")] == [
        '[{}, {"model"}]',
        '[{"data"}, {"model"}]',
        '[{"model"}, {}]',
    ]
    assert [dims(zero, name) for name in ("w1", "a", "w2", "y")] == [
        '[{"data"}, {"model"}]',
        '[{"data"}, {"model"}]',
        '[{"model"}, {"data"}]',
        '[{"data"}, {}]',
    ]
    assert batch.received_bytes == 0
    assert megatron.received_bytes == 8 * 8 * 4  # the all-reduce of y along model: half a tile twice
    gathers = 2 * 4 * 16 * 4  # each weight's other half along data
    assert zero.received_bytes == megatron.received_bytes + gathers
    assert program.propagate().cost <= zero.cost
    assert "priority 1" in zero.why("h")


def test_a_lower_priority_open_dim_is_not_overridden() -> None:
    mesh = Mesh.of(w=2, x=2, z=2)
    program = Program(mesh)
    a = program.input("a", (8, 8), sharding=parse_sharding('[{"x", ?}p1, {"z", ?}p2]', mesh))
    b = program.input("b", (8, 8), sharding=parse_sharding('[{"w", ?}, {?}]', mesh))
    program.output(program.op("ij,ij->ij", a, b, name="add", result="c"))
    placed = program.propagate(until_priority=9)
    assert dims(placed, "a") == '[{"x"}, {"z"}]'
    assert dims(placed, "b") == '[{"w"}, {"z"}]'


def test_dimension_sharding_divisibility() -> None:
    mesh = Mesh.of(x=8, y=2, z=3)
    program = Program(mesh)
    a = program.input("a", (7, 3, 8), sharding=Sharding.of(mesh, "x", "y", "z"))
    b = program.op("ijk->ijk", a, name="tanh", result="b")
    program.output(program.reshape(b, (21, 8), result="c"), result="out")
    placed = program.propagate(until_priority=9)
    assert dims(placed, "b") == '[{"x"}, {"y"}, {"z"}]'
    assert placed.sharding("b").local_shape((7, 3, 8)) == (1, 2, 3)
    assert dims(placed, "c") == '[{}, {"z"}]'  # 7 is not cut to single elements by 8, and 8 does not divide it
    array = np.linspace(0, 1, 168, dtype="float32").reshape(7, 3, 8)
    assert np.allclose(run_program(placed, {"a": array})["out"], np.tanh(array).reshape(21, 8))


# What a placed program says and does.


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 40), marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("make", [generate, conflicting, odd])
def test_values_and_bytes_device_by_device(make: object, seeds: range) -> None:
    for seed in seeds:
        program = make(seed)  # type: ignore[operator]
        placed = program.propagate("h100-1x4" if program.mesh.size == 4 and seed % 2 else None)
        if sum(np.prod(value.shape) for value in placed.values) > 400_000:
            continue
        rng = np.random.default_rng(seed)
        arrays = {value.name: rng.integers(-2, 3, value.shape).astype("float64") for value in program.inputs}
        arrays = {name: array.astype("float32") for name, array in arrays.items()}
        counted: dict[str, int] = {}
        found = run_program(placed, arrays, received_bytes=counted)
        for name, array in reference(program, arrays).items():
            assert np.allclose(found[name], array, rtol=1e-3, atol=1e-3), (seed, name)
        assert counted == {value.name: placed.received(value) for value in placed.plans}
        by_device = Counter[int]()
        for value, plan in placed.plans.items():
            for device in plan.devices:
                by_device[device] += plan.received_bytes_on(device) * placed.trip_count(value)
        assert placed.received_bytes == max(by_device.values(), default=0)


def test_a_placement_is_a_value_of_its_own() -> None:
    program = Program(Mesh.of(x=2))
    a = program.input("a", (4,), "float32", Sharding.of(program.mesh, "x"))
    program.output(a, Sharding.of(program.mesh, None), "out")
    placed = program.propagate()
    text, names = placed.text(), [value.name for value in placed.values]
    program.output(program.op("i->i", a, name="tanh"))
    program.constrain(a, Sharding.of(program.mesh, "x"))
    assert (placed.text(), [value.name for value in placed.values]) == (text, names)
    assert [value.name for value in (*placed.inputs, *placed.outputs)] == ["a", "out"]
    assert not any(hasattr(placed, verb) for verb in ("input", "op", "constrain", "output", "propagate", "annotate"))
    with pytest.raises(FrozenInstanceError):
        placed.operations = ()  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(placed))
    assert again == placed
    assert (again.text(), again.table(), again.received_bytes) == (text, placed.table(), placed.received_bytes)


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 60), marks=pytest.mark.slow)], ids=["few", "many"])
def test_given_shardings_are_kept(seeds: range) -> None:
    for seed in seeds:
        program = conflicting(seed)
        placed = program.propagate()
        for value, given in program.annotations.items():
            for wanted, found in zip(given.dims, placed.sharding(value).dims, strict=True):
                assert found.axes[: len(wanted.axes)] == wanted.axes or (wanted.is_open and len(wanted.axes) > 0)
                assert wanted.is_open or found.axes == wanted.axes


def test_every_operation_reads_what_its_layout_needs() -> None:
    program = Program.parse(PRIORITIES)
    placed = program.propagate()
    assert Program.parse(placed.text()).propagate().text() == placed.text()
    assert (
        place_as(program, {v.name: placed.sharding(v) for v in program.values}).received_bytes == placed.received_bytes
    )


def test_what_several_operations_need_whole_is_gathered_once() -> None:
    program = Program(Mesh.of(x=4))
    a = program.input("a", (64,), "float32", Sharding.of(program.mesh, "x"))
    shifted = program.slice(program.pad(program.slice(a, (0,), (60,)), (2,), (2,)), (4,), (64,))
    program.output(program.op("i->i", shifted, name="exp"), Sharding.of(program.mesh, None))
    assert program.propagate().received_bytes == 48 * 4  # for the first of them; the output then is whole already


def test_shifted_selected_and_whole_labels() -> None:
    mesh = Mesh.of(x=2, y=2)
    program = Program(mesh)
    table = program.input("table", (100, 8), sharding=Sharding.of(mesh, "x", ("?",)))  # too large to gather
    rows = program.input("rows", (4, 6), "int32", Sharding.of(mesh, "y", None))
    e = program.take(table, rows, result="e")
    s = program.slice(e, (0, 1, 0), (4, 5, 8), result="s")
    p = program.pad(s, (0, 0, 0), (0, 2, 0), fill=3, result="p")
    c = program.concatenate([p, e], 1, result="c")
    o = program.op("abc->abc", c, name="sort", replicated="c", result="o")
    program.output(o, result="out")
    placed = program.propagate(until_priority=0)
    assert program.propagate().received_bytes <= placed.received_bytes // 2
    assert [dims(placed, name) for name in ("e.1", "e", "c")] == [
        '[{"y"}, {}, {}], unreduced={"x"}',
        '[{"y"}, {}, {}]',
        '[{"y"}, {}, {}]',
    ]
    rng = np.random.default_rng(0)
    arrays = {
        "table": rng.normal(size=(100, 8)).astype("float32"),
        "rows": rng.integers(0, 100, (4, 6)).astype("int32"),
    }
    taken = arrays["table"][arrays["rows"]]
    padded = np.pad(taken[:, 1:5], ((0, 0), (0, 2), (0, 0)), constant_values=3)
    assert np.array_equal(run_program(placed, arrays)["out"], np.sort(np.concatenate([padded, taken], 1), -1))


def test_reductions_wait_and_reshards_are_shared() -> None:
    mesh = Mesh.of(x=4)
    program = Program(mesh)
    a = program.input("a", (8, 16), sharding=Sharding.of(mesh, None, "x"))
    w1, w2 = (program.input(name, (16, 8), sharding=Sharding.of(mesh, "x", None)) for name in ("w1", "w2"))
    both = program.op("ij,ij->ij", program.op("ij,jk->ik", a, w1), program.op("ij,jk->ik", a, w2), name="add")
    program.output(program.op("ij->ij", both, name="tanh"), Sharding.of(mesh, None, None))
    placed = program.propagate()
    assert [op.name for op in placed.operations].count("reshard") <= 2  # scattered, for less work, then gathered
    assert placed.received_bytes == 2 * 3 * 8 * 8 // 4 * 4  # one all-reduce of 8 x 8, not two
    program = Program(mesh)
    a = program.input("a", (8, 16), sharding=Sharding.of(mesh, None, "x"))
    for name in ("b", "c"):
        value = program.op("ij->ij", a, name="tanh", result=name)
        program.constrain(value, Sharding.of(mesh, "x", None))
        program.output(value)
    placed = program.propagate()
    assert [op.name for op in placed.operations].count("reshard") <= 2


def test_max_is_combined_by_max() -> None:
    mesh = Mesh.of(x=4)
    program = Program(mesh)
    a = program.input("a", (6, 8), sharding=Sharding.of(mesh, None, "x"))
    program.output(program.op("ij->i", a, name="max", result="m"), Sharding.of(mesh, None), result="out")
    placed = program.propagate()
    assert dims(placed, "m.1") == '[{}], unreduced=max{"x"}'
    array = -np.arange(48, dtype="float32").reshape(6, 8)
    assert np.array_equal(run_program(placed, {"a": array})["out"], array.max(1))


def test_peak_counts_what_is_still_needed() -> None:
    mesh = Mesh.of(x=2)
    program = Program(mesh)
    a = program.input("a", (8, 4), sharding=Sharding.of(mesh, "x", None))
    b = program.op("ij->ij", a, name="tanh")
    program.output(b)
    program.output(program.op("ij->ij", b, name="tanh"))
    assert program.propagate().peak_bytes == 2 * 4 * 4 * 4  # two tiles of 4 x 4 at once


def test_a_network_prices_it_in_seconds() -> None:
    placed = Program.parse(PRIORITIES).propagate("h100-1x4")
    assert placed.seconds is not None
    assert placed.seconds > 0
    assert json.loads(placed.to_trace())["traceEvents"]
    with pytest.raises(ReshardError, match="a trace needs the prices"):
        Program.parse(PRIORITIES).propagate().to_trace()


@pytest.mark.slow
def test_ten_thousand_operations_take_no_more_than_what_is_distinct() -> None:
    mesh = Mesh.of(data=8, model=8)
    program = Program(mesh)
    h = program.input("x", (512, 1024), "bf16", Sharding.of(mesh, ("data", "?"), "?"))
    for layer in range(1500):
        up = program.input(f"up{layer}", (1024, 4096), "bf16", Sharding.of(mesh, "?", ("model", "?")))
        down = program.input(f"down{layer}", (4096, 1024), "bf16")
        a = program.op("bf->bf", program.op("bd,df->bf", h, up), name="relu")
        h = program.op("bd,bd->bd", program.op("bf,fd->bd", a, down), h, name="add")
        program.op("bd->b", h, name="sum", result=f"norm{layer}")
    program.output(h)
    assert len(program.operations) > 10_000
    placed, calls = calls_of(program.propagate)
    assert calls < 11_000_000
    assert dims(placed, "down1499") == '[{"model"}, {}]'


# Texts and refusals.


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 60), marks=pytest.mark.slow)], ids=["few", "many"])
def test_text_parses_back(seeds: range) -> None:
    for seed in seeds:
        program = (generate if seed % 2 else conflicting)(seed)
        assert str(Program.parse(str(program))) == str(program)
        placed = program.propagate()
        assert str(Program.parse(placed.text())) == placed.text()


HEAD = 'sdy.mesh @mesh = <["x"=2]>\n'
BAD_TEXTS = [
    ('a = relu "i->i" (b)\nb = relu "i->i" (a)', "bad-program", "value b is made of a, which is made of it at 3:1"),
    ('a = input : f32[4] <@mesh, [{"y"}]>', "unknown-axis", 'line 2, value a: axis "y" is not in mesh'),
    ('a = input : f32[4]\nb = einsum "ij->i" (a)', "rank-mismatch", "line 3, value b: operand 0 of ij->i has 2 dims"),
    ('a = input : f32[4, 5]\nb = einsum "ij,ji->i" (a, a)', "bad-shape", "line 3, value b: dim 0 of operand 1"),
    ("a = input f32[4]", "syntax", "found `f32`"),
    ("a = input : f32[4] <@other, [{}]>", "unknown-mesh", "line 2, value a: the text refers to the mesh `@other`"),
    ('b = relu "i->i" (c)', "bad-program", "value b is made of c, which is not made at 2:1"),
    ("a = input : f32[4]\na = input : f32[4]", "bad-program", "value a is made twice at 3:1"),
    ("a = input : f39[4]", "unknown-dtype", "line 2, value a: dtype 'f39' is not known"),
    ("a = input : f32[4]\nb = relu (a)", "bad-program", "line 3, value b: operation relu must have a pattern"),
    ("a = input : f32[4]\nb = reshard (a)", "bad-program", "line 3, value b: reshard must have a sharding"),
    ("a = input", "bad-program", "line 2, value a: input must have a dtype and sizes"),
    ('a = input : f32[4] <@mesh, [{"x"}, {}]>', "rank-mismatch", "line 2, value a: sharding"),
    (
        'a = input : f32[4, 2]\nb = input : f32[3]\nc = take "v d, r -> r d" (a, b) {selected=v}',
        "bad-argument",
        "line 4, value c: b must be integers, to select from a",
    ),
    (
        "a = input : f32[4]\nloop 2 {\nb = carry (a)\n}",
        "bad-program",
        "carry b must be given back by its loop once",
    ),
]


@pytest.mark.parametrize(
    ("text", "code", "sentence"), BAD_TEXTS, ids=[f"{n}-{row[1]}" for n, row in enumerate(BAD_TEXTS)]
)
def test_bad_texts_are_refused(text: str, code: str, sentence: str) -> None:
    with pytest.raises(ReshardError) as caught:
        Program.parse(HEAD + text)
    assert caught.value.code == code
    assert sentence in str(caught.value)


def test_shardings_of_values_are_said_in_any_form() -> None:
    program = Program(Mesh.of(x=2, y=4))
    a = program.input("a", (8, 8), "f32", "P('x', None)")
    b = program.output(
        program.reshard(program.constrain(a, '[{"x"}, {?}]'), "S(0)R"), Sharding.of(Mesh.of(z=8), "z", None)
    )
    assert [program.annotations[value].text() for value in (a, b)] == ['[{"x"}, {}]', '[{"z"}, {}]']
    for said, code in (
        (3, "bad-argument"),
        (None, "bad-argument"),
        ("[{q}", "syntax"),
        ('<@m, [{"x"}, {}]>', "unknown-mesh"),
    ):
        with pytest.raises(ReshardError) as refusal:
            program.reshard(a, said)
        assert refusal.value.code == code
    assert len(program.operations) == 3


def test_contradictions_are_refused() -> None:
    mesh = Mesh.of(x=2, y=2)
    program = Program(mesh)
    a = program.input("a", (4, 4), sharding=Sharding.of(mesh, "x", None))
    with pytest.raises(ReshardError, match=r"value a has the shardings .* contradict each other in dim 0") as caught:
        program.constrain(a, Sharding.of(mesh, "y", None))
    assert caught.value.code == "bad-program"
    program.constrain(a, Sharding.of(mesh, "?", "?"))
    assert program.annotations[a].text() == '[{"x"}, {}]'
    other = Program(mesh)
    other.input("a", (4, 4))
    for made in (Program(mesh), other):  # one has a value of that name, shape and dtype
        with pytest.raises(ReshardError, match="value a is not of this program") as caught:
            made.output(a)
        assert caught.value.code == "bad-program"
    with pytest.raises(ReshardError, match="value a is made twice"):
        program.input("a", (4,))
    with pytest.raises(ReshardError, match="must keep the number of elements"):
        program.reshape(a, (3, 5))
    with pytest.raises(ReshardError, match="until_priority"):
        program.propagate(until_priority=-1)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "layer.txt"
    file.write_text(PRIORITIES, encoding="utf-8")
    placed = Program.parse(PRIORITIES).propagate()
    assert main(["propagate", str(file)]) == 0
    assert capsys.readouterr().out == placed.table() + "\n"
    assert main(["propagate", str(file), "--text", "--until-priority", "0"]) == 0
    assert capsys.readouterr().out == Program.parse(PRIORITIES).propagate(until_priority=0).text() + "\n"
    assert main(["propagate", str(file), "--why", "h"]) == 0
    assert capsys.readouterr().out.startswith('h [{"data"}, {"model"}]: dim 0 {"data"} from x by h')
    assert main(["propagate", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["received_bytes"] == placed.received_bytes
    assert main(["propagate", str(tmp_path / "none")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert main(["propagate", str(file), "--why", "nobody"]) == 1
    assert "there is no value 'nobody'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('P("x", None)', '[{"x"}, {}]'),
        ("PartitionSpec(('y', 'x'))  // major to minor", '[{"y", "x"}, {}]'),
        ("[Replicate(), Shard(dim=1)]", '[{}, {"y"}], uneven=chunk'),
        ("(Shard(0), Replicate())", '[{"x"}, {}], uneven=chunk'),
        ('[{}, {"y"}]', '[{}, {"y"}]'),
        ('#sdy.sharding<@mesh, [{"x"}, {?}]>', '[{"x"}, {?}]'),
    ],
)
def test_the_shardings_of_a_text_may_be_those_of_jax_and_torch(written: str, read: str) -> None:
    """Beside values whose names begin as these do."""
    lines = ['sdy.mesh @mesh = <["x"=2, "y"=3]>', f"Shard = input : float32[6, 6] {written}"]
    program = Program.parse("\n".join([*lines, 'P = tanh "ij->ij" (Shard)', "out = output (P)"]))
    assert program.annotations[program.value("Shard")].text() == read
    assert str(Program.parse(str(program))) == str(program)


def test_a_sharding_that_is_none_is_told_with_its_line() -> None:
    lines = ['sdy.mesh @mesh = <["x"=2]>', 'a = input : float32[6, 6] P("z")', "out = output (a)"]
    with pytest.raises(ReshardError, match=r'^line 2, value a: axis "z" is not in mesh'):
        Program.parse("\n".join(lines))
