"""Slices, pads, rolls, reversals, concatenations and running sums of dims that are cut: right, by borders alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from test_operations import engine, run_on

import reshard as rs
from reshard import Mesh, Sharding
from reshard.contraction.goal import BALANCE
from reshard.operations.reaching import windowed
from reshard.propagation import Placement, Program, Value
from reshard.propagation.merging import MERGES

Array = Any
MESHES = [Mesh.of(x=8), Mesh.of(x=2, y=4), Mesh.of(x=3), Mesh.of(x=2, y=2), Mesh.of(x=3, y=2), Mesh.of(x=1)]


class Drawn:
    """A program of shifts drawn at random, with what NumPy makes of whole arrays."""

    def __init__(self, seed: int, meshes: Sequence[Mesh] = MESHES) -> None:
        self.random, self.numbers = Random(seed), np.random.default_rng(seed)
        self.mesh = self.random.choice(meshes)
        self.program = Program(self.mesh)
        axes = list(self.mesh.sizes)
        self.cut = self.random.choice([axes[0], axes[-1], tuple(axes), tuple(axes[::-1])])
        self.inputs: dict[str, Array] = {}
        self.columns = self.random.randint(1, 5)
        value, array = self.given(self.random.randint(1, 40))
        for _ in range(self.random.choice([1, 1, 2])):
            if len(array):
                value, array = self.random.choice(STEPS)(self, value, array)
        end = self.rows
        if len(array) and self.random.random() < 0.3:
            value, array = combined(self, value, array)
            end = Sharding.of(self.mesh, *[None] * array.ndim)
        self.expected = array
        self.program.output(value, end, "out")

    @property
    def rows(self) -> Sharding:
        return Sharding.of(self.mesh, self.cut, None)

    def given(self, rows: int) -> tuple[Value, Array]:
        name = f"in{len(self.inputs)}"
        self.inputs[name] = self.numbers.normal(size=(rows, self.columns)).astype(np.float32)
        return self.program.input(name, (rows, self.columns), "float32", self.rows), self.inputs[name]


def sliced(drawn: Drawn, value: Value, array: Array) -> tuple[Value, Array]:
    first, last = sorted(drawn.random.choices(range(len(array) + 1), k=2))
    step = drawn.random.randint(1, 3)
    start, stop = (first, 0), (last, drawn.columns)
    return drawn.program.slice(value, start, stop, (step, 1)), array[first:last:step]


def padded(drawn: Drawn, value: Value, array: Array) -> tuple[Value, Array]:
    low = drawn.random.randint(-len(array), 8)
    high = drawn.random.randint(-min(len(array), len(array) + low), 8)
    kept = array[max(-low, 0) : len(array) - max(-high, 0)]
    widths = [(max(low, 0), max(high, 0)), (0, 0)]
    return drawn.program.pad(value, (low, 0), (high, 0), 2.5), np.pad(kept, widths, constant_values=2.5)


def rolled(drawn: Drawn, value: Value, array: Array) -> tuple[Value, Array]:
    shift = drawn.random.randint(-50, 50)
    if drawn.random.random() < 0.5:
        return drawn.program.roll(value, (shift,), (0,)), np.roll(array, shift, 0)
    size = drawn.random.randint(0, 2 * len(array))
    places = (np.arange(size) - shift) % len(array)
    return drawn.program.roll(value, (shift,), (0,), (size,)), array[places]


def reversed_(drawn: Drawn, value: Value, array: Array) -> tuple[Value, Array]:
    return drawn.program.reverse(value, (0,)), array[::-1]


def concatenated(drawn: Drawn, value: Value, array: Array) -> tuple[Value, Array]:
    other, more = drawn.given(drawn.random.randint(1, 20))
    parts = drawn.random.choice([[0, 1], [1, 0], [0, 1, 0], [0, 0]])
    arrays = np.concatenate([(array, more)[part] for part in parts])
    return drawn.program.concatenate([(value, other)[part] for part in parts], 0), arrays


def running(drawn: Drawn, value: Value, array: Array) -> tuple[Value, Array]:
    name, function = drawn.random.choice(list(RUNNING.items()))
    if drawn.random.random() < 0.5:
        return drawn.program.running(name, value, 0), function(array, axis=0)
    return drawn.program.running(name, value, 0, reverse=True), function(array[::-1], axis=0)[::-1]


def combined(drawn: Drawn, value: Value, array: Array) -> tuple[Value, Array]:
    """All rows in one, each device first its own of them."""
    name = drawn.random.choice(["sum", "max", "min", "einsum", "take"])
    if name == "einsum":
        return drawn.program.op("ij,ik->jk", value, value), array.T @ array
    if name == "take":
        rows = drawn.numbers.integers(0, len(array), 3)
        drawn.inputs["numbers"] = rows
        numbers = drawn.program.input("numbers", (3,), "int64", Sharding.of(drawn.mesh, None))
        return drawn.program.take(value, numbers), array[rows]
    return drawn.program.op("ij->j", value, name=name), getattr(np, name)(array, axis=0)


STEPS: list[Callable[[Drawn, Value, Array], tuple[Value, Array]]] = [
    sliced, padded, rolled, reversed_, concatenated, running,
]  # fmt: skip
RUNNING: dict[str, Callable[..., Array]] = {
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
    "cumlogsumexp": np.logaddexp.accumulate,
}


def check(drawn: Drawn, placed: Placement, out: Array) -> None:
    assert out.shape == drawn.expected.shape
    np.testing.assert_allclose(out, drawn.expected, rtol=1e-4, atol=1e-5)


def test_drawn_programs_are_right_and_receive_what_they_lack() -> None:
    seen = 0
    for seed in range(50):
        drawn = Drawn(seed)
        placed = drawn.program.propagate(goal="bytes")
        counts: dict[str, int] = {}
        check(drawn, placed, rs.numpy.run_program(placed, drawn.inputs, received_bytes=counts)["out"])
        for value, plan in placed.plans.items():
            assert counts[value.name] == plan.received_bytes
            assert plan.source.unreduced or plan.received_bytes == plan.lower_bound_bytes
        seen += any(sharding.has_windows for sharding in placed.shardings.values())
    assert seen > 25


@pytest.mark.engine
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_drawn_programs_on_the_tiles_of_other_engines(name: str) -> None:
    verbs = engine(name)
    for seed in range(100, 104):
        drawn = Drawn(seed)
        placed = drawn.program.propagate(goal="bytes")
        check(drawn, placed, run_on(verbs, placed, drawn.inputs)["out"])


@pytest.mark.slow
def test_many_drawn_programs() -> None:
    for seed in range(1000, 3000):
        drawn = Drawn(seed)
        placed = drawn.program.propagate(goal="bytes")
        check(drawn, placed, rs.numpy.run_program(placed, drawn.inputs)["out"])


def placed_rows(build: Callable[[Program, Value], Value], rows: int = 16, out: Sequence[Any] = ("x",)) -> Placement:
    program = Program(Mesh.of(x=4))
    value = program.input("a", (rows,), "float32", Sharding.of(program.mesh, "x"))
    program.output(build(program, value), Sharding.of(program.mesh, *out), "out")
    return program.propagate(goal="bytes")


@pytest.mark.parametrize(
    ("build", "window", "received"),
    [
        (lambda p, a: p.roll(a, (1,), (0,)), "window(-1:3, 3:7, 7:11, 11:15, wrap)", 4),
        (lambda p, a: p.roll(a, (5,), (0,)), "window(-5:-1, -1:3, 3:7, 7:11, wrap)", 16),
        (lambda p, a: p.pad(a, (-2,), (2,)), "window(2:6, 6:10, 10:14, 14:18, pad)", 8),
        (lambda p, a: p.reverse(a, (0,)), "window(12:16, 8:12, 4:8, 0:4, pad)", 16),
        (lambda p, a: p.slice(a, (4,), (12,)), "window(4:6, 6:8, 8:10, 10:12, pad)", 8),
    ],
)
def test_what_is_read_beyond_the_edges_by_hand(build: Any, window: str, received: int) -> None:
    placed = placed_rows(build)
    (told,) = [sharding.text() for sharding in placed.shardings.values() if sharding.has_windows]
    assert told == f'[{{"x", {window}}}]'
    assert placed.received_bytes == received
    assert placed.is_proved


@pytest.mark.parametrize("name", ["sum", "max"])
def test_what_is_cut_unevenly_is_combined_where_it_lies(name: str) -> None:
    placed = placed_rows(lambda p, a: p.op("i->", p.slice(a, (1,), (16,)), name=name), out=())
    assert placed.received_bytes == 4 + 3 * 4  # a border, and what the three others have combined
    assert 'unreduced={"x"}' in str(placed) or 'unreduced=max{"x"}' in str(placed)


def test_of_a_tensor_that_every_device_has_nothing_moves() -> None:
    program = Program(Mesh.of(x=4))
    value = program.input("a", (16,), "float32", Sharding.of(program.mesh, None))
    program.output(program.roll(value, (3,), (0,)), Sharding.of(program.mesh, "x"), "out")
    assert program.propagate(goal="bytes").received_bytes == 0


def test_a_reach_that_nobody_knows_stays_whole_and_is_named() -> None:
    moving = {"name": "mine", "shifted": ["i"], "opaque": True, "shape": (16,)}
    placed = placed_rows(lambda p, a: p.op("i->i", a, **moving))
    assert placed.received_bytes == 12 * 4
    assert "of shifts that are not known, whole on every device: mine (1) for 48 B" in str(placed)


def test_nothing_of_something() -> None:
    placed = placed_rows(lambda p, a: p.roll(a, (4,), (0,), (0,)), out=(None,))
    assert rs.numpy.run_program(placed, {"a": np.ones(16, np.float32)})["out"].shape == (0,)


def test_on_a_network() -> None:
    program = Program(Mesh.of(x=2, y=4))
    rows = Sharding.of(program.mesh, ("x", "y"))
    value = program.input("a", (1 << 20,), "float32", rows)
    program.output(program.roll(value, (3,), (0,)), rows, "out")
    placed = program.propagate(network="h100-2x4")
    assert placed.received_bytes == 12
    assert placed.seconds is not None
    assert "window(-3:131069, 131069:262141, ... wrap)" in str(placed)


def running_sums(
    mesh: Mesh, cut: Sequence[Any], name: str = "cumsum", *, size: int = 48, reverse: bool = False
) -> tuple[Program, Array]:
    program, shape = Program(mesh), (size, 16)[: len(cut)]
    rows = Sharding.of(mesh, *cut)
    program.output(program.running(name, program.input("a", shape, "float32", rows), 0, reverse=reverse), rows, "out")
    return program, np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("goal", "network"), [("bytes", None), ("balanced", None), (None, "h100-1x4")])
def test_a_running_sum_by_hand(goal: str | None, network: str | None) -> None:
    """Handed on a device receives what comes before its block; where seconds count, the sums of the three others."""
    placed = running_sums(Mesh.of(x=4), ["x"])[0].propagate(network, goal=goal)
    moving = [plan for plan in placed.plans.values() if plan.steps and plan.received_bytes]
    assert (placed.received_bytes, len(moving)) == ((4, 3) if network is None else (3 * 4, 1))
    if network is None:
        assert placed.is_proved
        assert placed.cost == pytest.approx(4 + (placed.flops / BALANCE if goal == "balanced" else 0))


@pytest.mark.parametrize("seed", range(12))
def test_what_is_before_each_element(seed: int) -> None:
    """All sums without the element itself, from either end, also of dims that do not divide."""
    random = Random(seed)
    name, reverse, mesh = random.choice([*RUNNING]), random.random() < 0.5, random.choice(MESHES)
    shape, program = (random.randint(1, 40), random.randint(1, 3)), Program(mesh)
    rows = Sharding.of(mesh, "x", None)
    given = program.input("a", shape, "float64", rows)
    program.output(program.running(name, given, 0, reverse=reverse, before=True), rows, "out")
    array = np.random.default_rng(seed).normal(size=shape)
    ran = RUNNING[name](array[::-1] if reverse else array, axis=0)
    first = np.full((1, shape[1]), given.dtype.identity(MERGES[name].reduction))
    before = np.concatenate([first, ran[:-1]])[:: -1 if reverse else 1]
    out = rs.numpy.run_program(program.propagate(), {"a": array})
    np.testing.assert_allclose(out["out"], before, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shards", [33, 34])
def test_a_long_way_is_not_gone_one_by_one(shards: int) -> None:
    """Up to 32 moves are made one after another; of more devices all receive less than two rows in two exchanges."""
    mesh = Mesh.of(x=shards)
    program = Program(mesh)
    rows = Sharding.of(mesh, "x", None)
    program.output(program.running("cumsum", program.input("a", (4 * shards, shards), "float32", rows), 0), rows)
    row = 4 * shards
    assert program.propagate().received_bytes == (row if shards <= 33 else 2 * row * (shards - 1) // shards)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("mesh", "cut", "name", "size"),
    [
        (Mesh.of(x=8), ["x", None], "cumsum", 48),
        (Mesh.of(x=8), ["x", None], "cumlogsumexp", 45),
        (Mesh.of(x=4, y=2), ["x", "y"], "cumlogsumexp", 48),
        (Mesh.of(x=2, y=4), [("y", "x"), None], "cummax", 48),
        (Mesh.of(x=2, y=2, z=2), [("x", "z"), None], "cumprod", 48),
        (Mesh.of(x=3), ["x"], "cummin", 47),
    ],
)
def test_what_runs_is_handed_on_with_no_byte_too_much(
    mesh: Mesh, cut: list[Any], name: str, size: int, reverse: bool
) -> None:
    program, array = running_sums(mesh, cut, name, size=size, reverse=reverse)
    placed = program.propagate(goal="bytes")
    rows = Sharding.of(mesh, *cut).local_shape(array.shape)
    assert placed.received_bytes == 4 * (rows[1] if len(rows) > 1 else 1)
    expected = RUNNING[name](array[::-1], axis=0)[::-1] if reverse else RUNNING[name](array, axis=0)
    for goal in ("bytes", "balanced"):
        out = rs.numpy.run_program(program.propagate(goal=goal), {"a": array})["out"]
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_what_runs_in_a_loop_is_handed_on_in_every_turn() -> None:
    mesh = Mesh.of(x=4)
    program, rows = Program(mesh), Sharding.of(mesh, "x")
    start = program.input("start", (16,), "float32", rows)
    with program.loop(3) as loop:
        turn = loop.carry(start)
        sums = program.op("i->i", program.running("cumsum", turn, 0), name="sin")
        end = loop.last(turn, sums)
    program.output(end, rows, "out")
    placed = program.propagate(goal="bytes")
    assert placed.received_bytes == 3 * 4
    array = expected = np.arange(16, dtype=np.float32) / 16
    for _ in range(3):
        expected = np.sin(np.cumsum(expected))
    np.testing.assert_allclose(rs.numpy.run_program(placed, {"start": array})["out"], expected, rtol=1e-5)


@pytest.mark.parametrize("cut", ["x", None])
@pytest.mark.parametrize(("low", "high", "step"), [(3, 2, 2), (-3, 6, 4), (9, -10, 3)])
def test_a_pad_of_which_every_so_many_th_is_taken(cut: str | None, low: int, high: int, step: int) -> None:
    program, array = Program(Mesh.of(x=4)), np.arange(1, 17, dtype=np.float32)
    value = program.input("a", (16,), "float32", Sharding.of(program.mesh, cut))
    kept = np.pad(array[max(-low, 0) : 16 - max(-high, 0)], (max(low, 0), max(high, 0)), constant_values=7)[::step]
    attributes = {"low": (low,), "high": (high,), "step": (step,), "value": 7}
    result = program.op("i->i", value, name="pad", shape=kept.shape, shifted="i", attributes=attributes)
    program.output(result, Sharding.of(program.mesh, "x"), "out")
    assert np.array_equal(rs.numpy.run_program(program.propagate(goal="bytes"), {"a": array})["out"], kept)


def test_partial_values_are_shifted_before_they_are_summed() -> None:
    program = Program(Mesh.of(x=2, y=4))
    value = program.input("a", (16, 8), "float32", Sharding.of(program.mesh, "y", "x"))
    sums = program.op("ij->i", value, name="sum")
    program.output(program.roll(sums, (1,), (0,)), Sharding.of(program.mesh, ("y", "x")), "out")
    placed = program.propagate(goal="bytes")
    array = np.arange(128, dtype=np.float32).reshape(16, 8)
    np.testing.assert_allclose(rs.numpy.run_program(placed, {"a": array})["out"], np.roll(array.sum(1), 1))


def test_a_text_is_read_back_with_its_reaches() -> None:
    text = """
    sdy.mesh @mesh = <["x"=4]>
    a = input : float32[16, 3] <@mesh, [{"x"}, {}]>
    b = blur "s c -> s c" (a) : float32[14, 3] {opaque, shifted="s", reach_0_s=[3, 1, 1, 0, 1]}
    c = output (b) <@mesh, [{"x"}, {}]>
    """
    program = Program.parse(text)
    assert str(Program.parse(str(program))) == str(program)
    placed = program.propagate(goal="bytes")
    assert placed.received_bytes == 2 * 3 * 4
    again = Program.parse(placed.text()).propagate(goal="bytes")
    assert again.received_bytes == placed.received_bytes


def test_windows_of_an_operation_follow_the_tile_of_the_result() -> None:
    program = Program(Mesh.of(x=2))
    value = program.input("a", (8,), "float32")
    program.slice(value, (1,), (7,), (2,))
    operation = program.operations[-1]
    rows = Sharding.of(program.mesh, "x")
    ends = windowed(operation.pattern, operation.reaches, [rows, rows], [(8,), (3,)])
    assert [end.text() for end in ends] == ['[{"x", window(1:4, 5:6, pad)}]', '[{"x"}]']
