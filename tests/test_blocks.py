"""Loops and choices: built by hand and read from text, on every engine, against plain NumPy; their texts; refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from blocks import CASES, MESH, array

import reshard as rs
from reshard import ReshardError, Sharding
from reshard.propagation import Program, Value


def assert_right(results: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert results.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
        assert results[name].shape == np.shape(value)


@pytest.mark.parametrize("name", CASES)
def test_blocks_compute_what_numpy_does(name: str) -> None:
    program, arrays, wanted = CASES[name]()
    placed = program.propagate()
    counts: dict[str, int] = {}
    assert_right(rs.numpy.run_program(placed, arrays, received_bytes=counts), wanted)
    if name == "scanned":
        assert sum(counts.values()) == placed.received_bytes > 0
    for text in (str(program), placed.text()):
        read = Program.parse(text)
        assert str(read) == text
        assert_right(rs.numpy.run_program(read.propagate(), arrays), wanted)
    assert Program.parse(placed.text()).propagate().text() == placed.text()
    assert Program.parse(placed.text()).propagate().received_bytes == placed.received_bytes


@pytest.mark.engine
@pytest.mark.parametrize("name", CASES)
def test_blocks_compute_the_same_in_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    program, arrays, wanted = CASES[name]()
    even = Program.parse(str(program))
    even.even_ends = True
    if name in ("scanned", "awaited", "branched"):  # whose inputs are cut unevenly: let them come whole
        whole = [Sharding.of(MESH, *[None] * len(value.shape)) for value in even.values]
        for value in (*even.inputs, *even.outputs):
            even.annotations[value] = whole[value.number]
    function = jax.jit(rs.jax.to_jax(even.propagate()))
    results = function(*(arrays[value.name] for value in even.inputs))
    results = results if isinstance(results, tuple) else (results,)
    assert_right({value.name: np.asarray(result) for value, result in zip(even.outputs, results, strict=True)}, wanted)


def test_what_goes_round_is_sharded_alike() -> None:
    placed = CASES["scanned"]()[0].propagate()
    ends = [operation for operation in placed.operations if operation.name in ("carry", "last")]
    for end in ends:
        assert len({placed.sharding(value) for value in end.values}) == 1
    assert [op.trip_count for op in ends] == [3, 1, 3, 1]


def test_a_reshard_of_what_comes_from_around_is_done_once() -> None:
    program = Program(MESH)
    w = program.input("w", (8, 8), "float32", Sharding.of(MESH, "x", None))
    x = program.input("x", (8, 8), "float32", Sharding.of(MESH, "x", None))
    with program.loop(9) as loop:
        h = loop.carry(x)
        out = loop.last(h, program.constrain(program.op("ij,jk->ik", h, w), Sharding.of(MESH, "x", None)))
    program.output(out)
    placed = program.propagate()
    (moved,) = (value for value, plan in placed.plans.items() if plan.steps)
    assert placed.operations[moved.number].operands[0].name == "w"
    assert placed.trip_count(moved) == 1
    text = placed.text().splitlines()
    assert text.index("loop 9 {") > next(n for n, line in enumerate(text) if line.startswith(f"{moved.name} = reshard"))


def test_what_a_block_gives_back_is_moved_once_the_block_is_whole() -> None:
    program = Program(MESH)
    a = program.input("a", (4, 6), "float32", Sharding.of(MESH, "x", None))
    with program.loop(2) as loop:
        h = loop.carry(a)
        stack = program.constrain(loop.stack(h), Sharding.of(MESH, None, None, ("y", "x")))
        with program.loop(3) as inner:  # of which nothing is read
            program.constrain(inner.stack(h), Sharding.of(MESH, "y", None, None))
            inner.stack(h)
        last = loop.last(h, program.op("ij->ij", h, name="neg"))
    program.output(stack, result="stack")
    program.output(last, result="last")
    start = array(4, 6)
    assert_right(rs.numpy.run_program(program.propagate(), {"a": start}), {"stack": [start, -start], "last": start})


def refused(build: Callable[[Program, Value], Any]) -> ReshardError:
    program = Program(MESH)
    a = program.input("a", (4,))
    with pytest.raises(ReshardError) as caught:
        build(program, a)
    assert program.block is None
    program.output(a, result="out")
    assert rs.numpy.run_program(program.propagate(), dict.fromkeys("a", array(4)))["out"].shape == (4,)
    return caught.value


def build_carry_outside(program: Program, a: Value) -> None:
    with program.loop(2) as loop:
        h = loop.carry(a)
        loop.last(h, h)
    program.output(h)


def build_carry_of_inside(program: Program, a: Value) -> None:
    with program.loop(2) as loop:
        loop.carry(program.op("i->i", a, name="neg"))


def build_two_lasts(program: Program, a: Value) -> None:
    with program.loop(2) as loop:
        h = loop.carry(a)
        loop.last(h, h)
        loop.last(h, h)


def build_no_last(program: Program, a: Value) -> None:
    with program.loop(2) as loop:
        loop.carry(a)


def build_short_element(program: Program, a: Value) -> None:
    with program.loop(3) as loop:
        loop.element(a)


def build_stack_of_unknown_length(program: Program, a: Value) -> None:
    with program.loop() as loop:
        loop.stack(a)


def build_endless(program: Program, a: Value) -> None:
    with program.loop() as loop:
        h = loop.carry(a)
        loop.last(h, h)


def build_other_shape(program: Program, a: Value) -> None:
    with program.loop(2) as loop:
        loop.last(loop.carry(a), program.input("b", (3,)))


def build_last_of_no_carry(program: Program, a: Value) -> None:
    with program.loop(2) as loop:
        loop.last(a, a)


def build_outside_of_branches(program: Program, a: Value) -> None:
    with program.choice():
        program.op("i->i", a, name="neg")


def build_too_few_branches(program: Program, a: Value) -> None:
    with program.choice() as choice:
        with choice.branch():
            pass
        choice.chosen(program.constant(0, (), "int32"), a, a)


def build_other_branch(program: Program, a: Value) -> None:
    with program.choice() as choice:
        with choice.branch():
            b = program.op("i->i", a, name="neg")
        with choice.branch():
            pass
        choice.chosen(program.constant(0, (), "int32"), a, b)


def build_float_pick(program: Program, a: Value) -> None:
    with program.choice() as choice:
        with choice.branch():
            pass
        choice.chosen(program.constant(0, ()), a)


def build_own_result(program: Program, a: Value) -> None:
    with program.loop(2) as loop:
        h = loop.carry(a)
        program.op("i->i", loop.last(h, h), name="neg")


def build_reshard_of_own_result(program: Program, a: Value) -> None:
    with program.loop(2) as loop:
        program.reshard(loop.stack(a), Sharding.of(MESH, None, None))


def build_by_hand(program: Program, a: Value) -> None:
    with program.loop(2):
        program.op("i->i", a, name="carry")


def build_of_outer_inside(program: Program, a: Value) -> None:
    with program.loop(2) as outer, program.loop(3):
        outer.stack(a)


def build_after_the_end(program: Program, a: Value) -> None:
    with program.loop(2) as loop:
        pass
    with program.loop(3):
        loop.stack(a)


def build_branch_after_the_end(program: Program, a: Value) -> None:
    with program.choice() as choice:
        pass
    with choice.branch():
        program.op("i->i", a, name="neg")


def build_branch_in_branch(program: Program, a: Value) -> None:
    with program.choice() as choice, choice.branch(), choice.branch():
        program.op("i->i", a, name="neg")


def build_two_numbers(program: Program, a: Value) -> None:
    with program.choice() as choice:
        with choice.branch():
            pass
        for name in ("m", "n"):
            choice.chosen(program.input(name, (), "int32"), a)


def build_while_a_fraction(program: Program, a: Value) -> None:
    with program.loop() as loop:
        loop.test(program.constant(0.5, ()))


def build_two_tests(program: Program, a: Value) -> None:
    with program.loop() as loop:
        loop.test(program.constant(1, (), "int32"))
        loop.test(program.constant(1, (), "int32"))


def build_counted_test(program: Program, a: Value) -> None:
    with program.loop(2) as loop:
        loop.test(program.constant(1, (), "int32"))


def build_read_test(program: Program, a: Value) -> None:
    with program.loop() as loop:
        more = loop.test(program.constant(0, (), "int32"))
    program.output(more)


def build_half(program: Program, a: Value) -> None:
    with program.loop(2) as loop:
        loop.carry(a)
        program.propagate()


def build_odd_order(program: Program, a: Value) -> None:
    with program.loop(2, reverse="no"):  # type: ignore[arg-type]
        pass


def build_output_inside(program: Program, a: Value) -> None:
    with program.loop(2):
        program.output(a)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (build_carry_outside, "is made in a block and read outside of it"),
        (build_carry_of_inside, "is made in a block and read outside of it"),
        (build_two_lasts, "must be given back by its loop once"),
        (build_no_last, "must be given back by its loop once"),
        (build_short_element, "must have 3 elements in dim 0"),
        (build_stack_of_unknown_length, "must stand in a loop with a trip count"),
        (build_endless, "must have one test"),
        (build_other_shape, "must have one shape and dtype"),
        (build_last_of_no_carry, "is no carry of this loop"),
        (build_outside_of_branches, "must stand in its branches"),
        (build_too_few_branches, "a choice of 1 branches gives 2 results"),
        (build_other_branch, "is made in a block and read outside of it"),
        (build_float_pick, "must be one integer"),
        (build_own_result, "is what a block gives back, and read within it"),
        (build_reshard_of_own_result, "is what a block gives back, and read within it"),
        (build_by_hand, "carry is an end of a block"),
        (build_of_outer_inside, "must stand in it, and in no block within"),
        (build_after_the_end, "must stand in it, and in no block within"),
        (build_branch_after_the_end, "must stand in it, and in no block within"),
        (build_branch_in_branch, "must stand in it, and in no block within"),
        (build_two_numbers, "a choice must go by one number, got: m, n"),
        (build_while_a_fraction, "must be one integer, to tell whether there is a turn"),
        (build_two_tests, "must have one test"),
        (build_counted_test, "must stand in a loop without a trip count"),
        (build_read_test, "is the test of a loop, which alone reads it"),
        (build_half, "in which a loop or a choice stands open cannot be placed"),
        (build_odd_order, "reverse must be"),
        (build_output_inside, "an output must stand outside of loops and choices"),
    ],
    ids=lambda row: row.__name__.removeprefix("build_") if callable(row) else "",
)
def test_blocks_that_cannot_be_are_refused(build: Callable[[Program, Value], Any], sentence: str) -> None:
    assert sentence in str(refused(build))


HEAD = 'sdy.mesh @mesh = <["x"=2]>\na = input : f32[2]\n'
BAD_TEXTS = [
    ("loop {\n}", "expected `loop 4 {`"),
    ("branch {\n}", "expected `loop 4 {`"),
    ("choice reverse {\n}", "expected `loop 4 {`"),
    ("loop 2 {\nb = carry (a)\nc = last (b, b)", "found the end"),
    ('loop 2 {\nb = carry "i->i" (a)\nc = last (b, b)\n}', "line 4, value b: carry must have no pattern"),
    ("b = carry (a)", "line 3, value b: carry must stand in a loop"),
    ("loop 2 {\nb = carry (c)\nc = last (b, b)\n}", "value c is made of b, which is made of it at 5:1"),
    ("loop 2 {\nb = carry (a)\nc = last (b, b)\n}\nd = output (b)", "line 7, value d: value b is made in a block"),
    ("loop 2 {\nb = carry (a) : f32[3]\nc = last (b, b)\n}", "line 4, value b: carry must have the dtype"),
]


@pytest.mark.parametrize(("text", "sentence"), BAD_TEXTS, ids=[f"{n}" for n, _ in enumerate(BAD_TEXTS)])
def test_bad_texts_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(ReshardError) as caught:
        Program.parse(HEAD + text)
    assert sentence in str(caught.value)
