"""Programs that went wrong once: odd reshapes, many operands, refused additions, uneven rules, rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from effort import calls_of

import reshard as rs
from reshard import Mesh, ReshardError, Sharding
from reshard.propagation import Program, Value

MESH = Mesh.of(x=2, y=4)


def test_a_reshape_whose_shapes_leave_its_factors_open() -> None:
    program = Program(Mesh.of(x=2, y=2))
    a = program.input("a", (12, 5), "int64", Sharding.of(program.mesh, ("x", "y"), None))
    program.output(program.reshape(a, (10, 6)), result="out")
    assert Program.parse(str(program)).operations == program.operations
    whole = np.arange(60).reshape(12, 5)
    np.testing.assert_array_equal(rs.numpy.run_program(program.propagate(), {"a": whole})["out"], whole.reshape(10, 6))


def test_a_row_by_a_single_number() -> None:
    program = Program(MESH)
    table = program.input("table", (6,), "int64", Sharding.of(MESH, "x"))
    program.output(program.take(table, program.input("row", (), "int32")), result="out")
    found = rs.numpy.run_program(program.propagate(), {"table": np.arange(6), "row": np.int32(4)})
    assert found["out"] == 4


def test_a_number_has_no_dims_to_pad() -> None:
    program = Program(Mesh.of(x=2))
    program.output(program.pad(program.input("a", ()), [], []), result="out")
    assert rs.numpy.run_program(program.propagate(), {"a": np.float32(3)})["out"] == 3


@pytest.mark.parametrize("joined", [True, False])
def test_operations_of_many_operands_take_no_longer(*, joined: bool) -> None:
    program = Program(MESH)
    dims = [("x", "y"), ("y", "x"), (None, "x"), ("x", None), (("x", "y"), None), (None, ("x", "y"))]
    given = [program.input(f"i{n}", (16, 16), "f32", Sharding.of(MESH, *dims[n % 6])) for n in range(12)]
    values = [program.op("ab->ab", value, name="tanh") for value in given]
    if joined:
        program.output(program.op("ab->ab", program.concatenate(values, 0), name="tanh"))
    else:
        program.output(program.op(",".join(["ab"] * 12) + "->ab", *values, name="sum_of_all", opaque=True))
    placed, calls = calls_of(program.propagate)
    assert placed.received_bytes > 0
    assert calls < 220_000


def test_what_is_refused_leaves_nothing_behind() -> None:
    program = Program(MESH)
    wrong = Sharding.of(MESH, "x")
    with pytest.raises(ReshardError, match="has 1 dims"):
        program.input("a", (4, 4), "f32", wrong)
    a = program.input("a", (4, 4))
    with pytest.raises(ReshardError, match="has 1 dims"):
        program.output(a, wrong, "out")
    with pytest.raises(ReshardError, match="has 1 dims"):
        program.reshard(a, wrong, "moved")
    assert [value.name for value in program.values] == ["a"]
    program.output(a, result="out")
    assert program.propagate().received_bytes == 0


def test_equal_reshards_keep_their_names() -> None:
    program = Program(MESH)
    a = program.input("a", (8,), "int64", Sharding.of(MESH, "x"))
    moved = [program.reshard(a, Sharding.of(MESH, None), name) for name in ("one", "two", "three")]
    for value in moved:
        program.output(value, result=f"out_{value.name}")
    placed = program.propagate()
    assert [placed.sharding(value).text() for value in moved] == ["[{}]"] * 3
    assert placed.received_bytes == 4 * 8
    assert all((out == np.arange(8)).all() for out in rs.numpy.run_program(placed, {"a": np.arange(8)}).values())


def test_uneven_dims_are_cut_as_they_were_given() -> None:
    program = Program(MESH)
    given = Sharding.of(MESH, ("x", "y"), uneven="chunk")
    a = program.input("a", (9,), "int64", given)
    out = program.output(program.op("i->i", a, name="neg"), result="out")
    placed = program.propagate()
    assert (placed.sharding(a), placed.sharding(out), placed.received_bytes) == (given, given, 0)
    np.testing.assert_array_equal(rs.numpy.run_program(placed, {"a": np.arange(9)})["out"], -np.arange(9))


def test_on_a_network_the_order_of_lines_has_no_say() -> None:
    text = """sdy.mesh @mesh = <["x"=4, "y"=2]>
i0 = input : int64[1] <@mesh, [{"y", "x", ?}p0]>
i1 = input : int64[1] <@mesh, [{"x"}]>
sub_2 = sub "a,a->a" (i0, i1) : int64[1]
pad_3 = pad "(d0) -> (d0)" (i1) : int64[1] {high=[0], low=[0], value=5}
output_4 = output (sub_2) : int64[1] <@mesh, [{"x", ?}p1], replicated={"y"}>
output_5 = output (pad_3) : int64[1]"""
    mesh, *lines = text.splitlines()
    found = set()
    for turn in range(len(lines)):
        placed = Program.parse("\n".join([mesh, *lines[turn:], *lines[:turn]])).propagate("h100-1x8", 1)
        found.add(tuple((value.name, placed.sharding(value).text()) for value in sorted(placed.values, key=str)))
    assert len({frozenset(one) for one in found}) == 1


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), 1e20, np.float32(1.5), True])
def test_numbers_come_back_from_text(number: float) -> None:
    program = Program(MESH)
    made = program.constant(number, (2,))
    read = Program.parse(str(program)).operations[made.number].attribute("value")
    assert isinstance(read, int | float)
    assert np.array_equal(read, number, equal_nan=True)


def refusals() -> dict[str, Callable[[Program, Value], Any]]:
    """What is refused, by a name."""
    return {
        "concatenate": lambda p, a: p.concatenate([a, p.input("b", (8, 3))], 0),
        "broadcast": lambda p, a: p.broadcast(a, 5, [0, 1]),  # type: ignore[arg-type]
        "dtype": lambda p, a: p.input("b", (2,), None),
        "shape": lambda p, a: p.input("b", 0),  # type: ignore[arg-type]
        "constant": lambda p, a: p.constant("one", (2,)),  # type: ignore[arg-type]
        "pad": lambda p, a: p.pad(a, [0, 1], [0, 0], None),  # type: ignore[arg-type]
        "roles": lambda p, a: p.op("ij->ij", a, replicated=5),  # type: ignore[arg-type]
        "sizes": lambda p, a: p.op("ij->ijz", a, sizes=[2]),  # type: ignore[arg-type]
        "attributes": lambda p, a: p.op("ij->ij", a, attributes=[1]),  # type: ignore[arg-type]
        "attribute": lambda p, a: p.op("ij->ij", a, attributes={"replicated": "i"}),
        "quotes": lambda p, a: p.op("ij->ij", a, attributes={"text": 'a "b"'}),
        "name": lambda p, a: p.op("ij->ij", a, name="input"),
        "two": lambda p, a: p.op("ij,ij->i", a, a, name="sum"),
        "slice": lambda p, a: of_places(p, a, "slice", start=0, stop=(2, 8), step=(1, 1)),
        "slice without steps": lambda p, a: of_places(p, a, "slice", start=(0, 0), stop=(2, 8), step=(0, 1)),
        "slice of another size": lambda p, a: of_places(p, a, "slice", start=(0, 0), stop=(3, 8), step=(1, 1)),
        "pad of a text": lambda p, a: of_places(p, a, "pad", low=(0, 0), high=(0, 0), value="zero"),
        "pad of no step": lambda p, a: of_places(p, a, "pad", low=(0, 0), high=(0, 0), step=(0, 1)),
        "running backwards": lambda p, a: along(p, a, reverse=2),
        "running after a text": lambda p, a: along(p, a, before="zero"),
        "concatenate in no dim": lambda p, a: of_places(p, a, "concatenate", dim=2),
        "iota": lambda p, a: p.op("ij->ij", a, name="iota", attributes={"dim": 5}),
        "pick in no dim": lambda p, a: p.op("ij->1j", a, name="pick", attributes={"dims": (2,), "start": (0,)}),
        "pick nothing": lambda p, a: p.op("ij->1j", a, name="pick", attributes={"dims": (0,), "start": (8,)}),
        "put": lambda p, a: p.op("ij->ij", a, name="put", attributes={"dims": (0,), "start": (0,), "value": 0}),
        "power": lambda p, a: p.op("ij->ij", a, name="integer_pow", attributes={"y": "two"}),
        "round": lambda p, a: p.op("ij->ij", a, name="round", attributes={"rounding_method": 7}),
        "no integer": lambda p, a: p.constant(float("inf"), (2,), "int32"),
        "wide": lambda p, a: p.constant(300, (2,), "int8"),
        "text": lambda p, a: Program.parse(f"{p}\nb = constant : int8[2] {{value=300}}"),
        "value": lambda p, a: p.value([]),  # type: ignore[arg-type]
        "mesh": lambda p, a: Program({"a b": p.mesh}),
        "diagonal": lambda p, a: run(p, p.op("ii->i", a, name="relu")),
        "one": lambda p, a: run(p, p.op("ij->ij", a, name="add")),
        "three": lambda p, a: run(p, p.op("ij,ij,ij->ij", a, a, a, name="add")),
        "inputs": lambda p, a: rs.numpy.run_program(p.propagate(), 5),  # type: ignore[arg-type]
    }


def along(program: Program, a: Value, **attributes: Any) -> Value:
    """A running sum."""
    return program.op("ij->ij", a, name="cumsum", replicated="i", attributes=attributes)


def of_places(program: Program, a: Value, name: str, **attributes: Any) -> Value:
    """An operation by hand whose result has two rows."""
    return program.op("ij->ij", a, name=name, shape=(2, 8), shifted="i", attributes=attributes)


def run(program: Program, value: Value) -> dict[str, Any]:
    """Run a program that gives back a value."""
    program.output(value)
    return rs.numpy.run_program(program.propagate(), {"a": np.ones((8, 8), np.float32)})


@pytest.mark.parametrize("name", list(refusals()))
def test_refusals(name: str) -> None:
    program = Program(MESH)
    with pytest.raises(ReshardError) as refused:
        refusals()[name](program, program.input("a", (8, 8)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_what_a_loop_carries_lies_alike_in_every_turn(trips: int) -> None:
    """Also where what it gives back is tied to something else, and a turn computes it otherwise."""
    program = Program(Mesh.of(x=2, y=2))
    start = program.input("start", (4, 4), "int64", Sharding.of(program.mesh, "x", None))
    steps = program.input("steps", (trips, 4, 4), "int64")
    with program.loop(trips) as loop:
        carry = loop.carry(start)
        after = program.op("ij,ij->ij", carry, loop.element(steps), name="add")
        last = loop.last(carry, program.constrain(after, Sharding.of(program.mesh, None, "y")))
    program.tie(last, start)
    program.output(last, result="out")
    placed = program.propagate()
    assert placed.sharding(carry) == placed.sharding(last) == placed.sharding(start)
    given = {"start": np.arange(16).reshape(4, 4), "steps": np.arange(trips * 16).reshape(trips, 4, 4)}
    wanted = given["start"] + given["steps"].sum(0)
    np.testing.assert_array_equal(rs.numpy.run_program(placed, given)["out"], wanted)
    program.constrain(carry, Sharding.of(program.mesh, "x", "y"))
    program.constrain(last, Sharding.of(program.mesh, "y", "x"))
    with pytest.raises(ReshardError, match="cannot be sharded alike"):
        program.propagate()


def test_a_network_of_one_device() -> None:
    program = Program(Mesh.of(x=1))
    a, b = (program.input(name, (4, 4)) for name in "ab")
    program.output(program.op("ij,jk->ik", a, b))
    for placed in (program.propagate(rs.Network(())), program.search(network=rs.Network(())).best):
        assert (placed.seconds, placed.is_proved) == (0.0, True)


def test_a_search_ties_no_state_whose_end_is_said_otherwise() -> None:
    """Of a program whose result takes the place of an input, but is constrained where it is made."""
    program = Program(Mesh.of(x=3, y=2))
    a, b = program.input("a", (3, 3), "f32", Sharding.of(program.mesh, None, "y")), program.input("b", (3, 3))
    wanted = Sharding.of(program.mesh, None, "x")
    out = program.output(program.constrain(program.op("ij,ij->ij", a, b, name="add"), wanted), result="out")
    best = program.search().best
    assert best.sharding(out) == wanted
    assert best.sharding(a) == Sharding.of(program.mesh, None, "y")


@pytest.mark.parametrize("cut", [("x", None), (None, "x"), (None, None)])
def test_what_is_padded_may_be_empty(cut: tuple[str | None, ...]) -> None:
    program = Program(Mesh.of(x=4))
    a = program.input("a", (0, 3), "float32", Sharding.of(program.mesh, "x", None))
    program.output(program.pad(a, [3, 1], [2, 0], 5), Sharding.of(program.mesh, *cut), result="out")
    made = rs.numpy.run_program(program.propagate(), {"a": np.zeros((0, 3), np.float32)})["out"]
    np.testing.assert_array_equal(made, np.full((5, 4), 5, np.float32))
