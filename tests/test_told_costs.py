"""What is told of a placement: its cost is that of what is moved and computed, reshard by reshard."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from reshard import Mesh, Program, Sharding
from reshard.contraction.prices import received_evenly
from reshard.numpy import run_program
from reshard.operations.operation import Value
from reshard.propagation.placement import Placement

AXES = ({"x": 2, "y": 2}, {"x": 2, "y": 3}, {"x": 4}, {"x": 5}, {"x": 3})
SIZES = (2, 3, 4, 5, 6, 7, 12)
DRAWN = 24


def counted(placed: Placement) -> float:
    """What the busiest device of each reshard receives, and what a device computes, as it is weighed."""
    received = sum(received_evenly(plan) * placed.trip_count(value) for value, plan in placed.plans.items())
    return received + (placed.flops / 2000 if placed.goal.name == "balanced" else 0.0)


def looping(mesh: Mesh, start: str, weights: str, end: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> Program:
    """A product by the same weights in every turn of a loop of one."""
    program = Program(mesh)
    x = program.input("x", shapes[0], "float32", start)
    w = program.input("w", shapes[1], "float32", weights)
    with program.loop(1) as loop:
        y = loop.carry(x)
        y = loop.last(y, program.op("ab,bc->ac", y, w))
    program.output(y, end)
    return program


def test_a_carry_and_what_a_loop_gives_back_are_moved_apart() -> None:
    """By hand: all of 5 numbers, 20 B, either go to all devices before the loop, or in it and again behind it."""
    mesh = Mesh.of(x=2, y=2)
    program = looping(mesh, '[{"x"}, {"y"}]', "[{}, {}]", "[{}, {}]", ((5, 1), (1, 1)))
    placed = program.propagate(goal="bytes")
    assert placed.cost == counted(placed) == 20


def test_a_loop_of_weights_in_rows_is_proved() -> None:
    """By hand: 7 x 7 weights go from rows to columns, 24 B, and 4 x 7 numbers are gathered in the turn, 96 B."""
    mesh = Mesh.of(x=7)
    program = looping(mesh, "[{}, {}]", '[{"x"}, {}]', "[{}, {}]", ((4, 7), (7, 7)))
    placed = program.propagate(goal="bytes")
    assert placed.is_proved
    assert placed.cost == counted(placed) == 120


def test_tied_values_are_moved_apart() -> None:
    """Two inputs that are sharded alike, and both wanted whole: 8 B of each."""
    program = Program(Mesh.of(x=2))
    both = [program.input(name, (4,), "float32", '[{"x"}]') for name in "ab"]
    program.tie(*both)
    for value in both:
        program.output(value, "[{}]")
    placed = program.propagate(goal="bytes")
    assert placed.is_proved
    assert placed.cost == counted(placed) == 16


def test_what_a_loop_takes_apart_is_moved_once_for_all_who_want_it() -> None:
    """Rows are wanted in halves by the turns of a loop and by what stands behind it."""
    mesh = Mesh.of(x=2)
    program = Program(mesh)
    start = program.input("start", (6, 4), "float32", '[{}, {"x"}]')
    rows = program.input("rows", (2, 4), "float32", '[{"x"}, {}]')
    with program.loop(2) as loop:
        total = loop.carry(start)
        total = loop.last(total, program.op("ab,b->ab", total, loop.element(rows), name="add"))
    program.output(total, '[{}, {"x"}]')
    program.output(program.op("ab->ab", rows, name="exp"), '[{}, {"x"}]')
    placed = program.propagate(goal="bytes")
    assert placed.is_proved
    assert placed.cost == counted(placed) == 8


def test_a_reshard_that_two_products_of_one_operation_share_is_told_once() -> None:
    """`v` is gathered for a sum and for the first of two products: 16 B, and 16 B for what comes of that."""
    program = Program(Mesh.of(x=3))
    v = program.input("v", (5,), "float32", '[{"x"}]')
    whole = program.input("whole", (5,), "float32", "[{}]")
    columns = program.input("columns", (5, 5), "float32", '[{}, {"x"}]')
    last = program.input("last", (5, 12), "float32", "[{}, {}]")
    program.output(program.op("a,a->a", v, whole, name="add"), "[{}]")
    program.output(program.op("a,ay,yz->z", v, columns, last), '[{"x"}]')
    placed = program.propagate()
    assert placed.cost == pytest.approx(counted(placed))
    assert placed.cost < 32.1


def three(goal: str, shapes: Sequence[tuple[int, ...]], starts: Sequence[object], end: object, order: str) -> Placement:
    """Three matrices in a row and a function of their product; in an order by hand, or in none."""
    program = Program(starts[0].mesh if isinstance(starts[0], Sharding) else Mesh.of(x=4))
    a, b, c = (program.input(name, *given) for name, *given in zip("abc", shapes, ["float32"] * 3, starts, strict=True))
    if order == "left":
        product = program.op("ik,kl->il", program.op("ij,jk->ik", a, b), c)
    elif order == "right":
        product = program.op("ij,jl->il", a, program.op("jk,kl->jl", b, c))
    else:
        product = program.op("ij,jk,kl->il", a, b, c)
    program.output(program.op("il->il", product, name="exp"), end)
    return program.propagate(goal=goal)


def test_three_matrices_cost_what_the_cheapest_order_does() -> None:
    """By hand: 6 sums over four devices are 36 B; all at once there are 12, 72 B, which was called proved."""
    given = ((12, 6), (6, 8), (8, 1)), ("[{}, {}]", '[{}, {"x"}]', '[{"x"}, {}]'), "[{}, {}]"
    placed = three("bytes", *given, "")
    assert placed.cost == counted(placed) == three("bytes", *given, "right").cost == 36
    a, b, c = (np.random.default_rng(0).random(shape) for shape in given[0])
    values = {name: value.astype("float32") for name, value in zip("abc", (a, b, c), strict=True)}
    (result,) = run_program(placed, values).values()
    np.testing.assert_allclose(result, np.exp(a @ b @ c), rtol=1e-4)


@pytest.mark.parametrize("goal", ["bytes", "balanced"])
def test_no_order_of_three_matrices_costs_less_than_the_bound(goal: str) -> None:
    proved = 0
    for seed in range(DRAWN):
        drawn = Drawn(seed, steps=0)
        sizes = [drawn.rng.choice(SIZES) for _ in range(4)]
        shapes = list(pairwise(sizes))
        starts, end = [drawn.sharding(shape) for shape in shapes], drawn.sharding((sizes[0], sizes[3]))
        placed = three(goal, shapes, starts, end, "")
        proved += placed.is_proved
        for order in ("left", "right"):
            other = three(goal, shapes, starts, end, order).cost
            assert placed.bound <= other * (1 + 1e-9), (seed, order)
            assert placed.cost <= other * (1 + 1e-9), (seed, order)
    assert proved > DRAWN / 8


def test_of_four_operands_no_bound_is_told() -> None:
    """Of whose orders only some are tried."""
    program = Program(Mesh.of(x=2))
    given = [program.input(name, (4, 4), "float32", '[{"x"}, {}]') for name in "abcd"]
    program.output(program.op("ij,jk,kl,lm->im", *given), '[{"x"}, {}]')
    placed = program.propagate(goal="bytes")
    assert placed.cost > 0
    assert placed.bound == placed.lower_bound_bytes == 0


class Drawn:
    """A program of a few operations, drawn; what nothing reads is given back."""

    def __init__(self, seed: int, steps: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.mesh = Mesh.of(self.rng.choice(AXES))
        self.program = Program(self.mesh)
        self.made: list[Value] = []
        first = self.given(self.rng.choice(SIZES), self.rng.choice(SIZES))
        for _ in range(self.rng.randint(1, 4) if steps is None else steps):
            first = self.step(self.rng.choice([first, *self.made[-2:]]))
        read = {value for operation in self.program.operations for value in operation.operands}
        for value in self.made:
            if value not in read:
                self.program.output(value, self.sharding(value.shape))

    def sharding(self, shape: tuple[int, ...]) -> Sharding:
        """Every axis on any dim that is long enough, or on none."""
        dims: list[list[str]] = [[] for _ in shape]
        left = list(shape)
        for axis in self.rng.sample(list(self.mesh.sizes), len(self.mesh.sizes)):
            dim = self.rng.randrange(len(shape))
            if self.rng.random() < 0.75 and left[dim] >= self.mesh.sizes[axis]:
                dims[dim].append(axis)
                left[dim] //= self.mesh.sizes[axis]
        return Sharding.of(self.mesh, *dims)

    def given(self, *shape: int) -> Value:
        return self.program.input(f"in{len(self.program.operations)}", shape, "float32", self.sharding(shape))

    def step(self, x: Value) -> Value:
        """A product of two, three or four, a loop, or a sum with a value that is read before."""
        program, (rows, columns), kind = self.program, x.shape, self.rng.randrange(5)
        sizes = [self.rng.choice(SIZES) for _ in range(3)]
        if kind == 0:
            y = program.op("ab,bc->ac", x, self.given(columns, sizes[0]))
        elif kind == 1:
            y = program.op("ab,bc,cd->ad", x, self.given(columns, sizes[0]), self.given(*sizes[:2]))
        elif kind == 2:
            y = program.op(
                "ab,ac,cd,d->bd", x, self.given(rows, sizes[0]), self.given(*sizes[:2]), self.given(sizes[1])
            )
        elif kind == 3:
            with program.loop(turns := self.rng.choice((1, 2, 3))) as loop:
                carry = loop.carry(x)
                element = loop.element(self.given(turns, columns))
                y = program.op("ab,b->ab", program.op("ab,bc->ac", carry, self.given(columns, columns)), element)
                y = loop.last(carry, y)
        else:
            alike = [value for value in self.made if value.shape == x.shape and value is not x]
            y = program.op("ab,ab->ab", x, self.rng.choice(alike or [x]), name="mul")
        self.made.append(y)
        return y


@pytest.mark.parametrize("goal", ["bytes", "balanced"])
def test_costs_are_those_of_what_is_moved_and_computed(goal: str) -> None:
    for seed in range(DRAWN):
        placed = Drawn(seed).program.propagate(goal=goal)
        assert placed.cost == pytest.approx(counted(placed), rel=1e-9), seed
        assert placed.bound <= placed.cost, seed
        assert placed.lower_bound_bytes is not None
        assert placed.lower_bound_bytes <= placed.received_bytes, seed
