"""Small programs whose dims no axis divides: no bound above what is possible, and costs that are those of the reshards.

Drawn programs are placed as they are and with shardings that are wanted besides, which no placement may need: what
then costs less, the first may not have called proved.
"""

from __future__ import annotations

import random

import pytest

from reshard import Mesh, Program, Sharding, parse_sharding
from reshard.contraction.prices import received_evenly
from reshard.operations.operation import Value
from reshard.propagation.placement import Placement

AXES = ({"x": 2, "y": 2}, {"x": 2, "y": 3}, {"x": 4}, {"x": 6}, {"x": 5}, {"x": 3})
SIZES = (2, 3, 5, 6, 7, 12)
DRAWN, VARIANTS = 40, 4
Recipe = list[tuple[str, tuple[int, ...], tuple[int, ...], Sharding | None]]
"""Per value a pattern, or none for inputs, its operands, its shape, and where it must be."""


def drawn_sharding(rng: random.Random, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    """Every axis on any dim, or on none, but none that leaves a device of the dim without elements."""
    dims: list[list[str]] = [[] for _ in shape]
    left = list(shape)
    for axis in rng.sample(list(mesh.sizes), len(mesh.sizes)):
        dim = rng.randrange(len(shape))
        if rng.random() < 0.75 and left[dim] >= mesh.sizes[axis]:
            dims[dim].append(axis)
            left[dim] //= mesh.sizes[axis]
    return Sharding.of(mesh, *dims)


def drawn(seed: int) -> tuple[Mesh, Recipe, random.Random]:
    """A few products, sums and maps, one after the other or apart; the results that nothing reads are outputs."""
    rng = random.Random(seed)
    mesh = Mesh.of(rng.choice(AXES))
    recipe: Recipe = []

    def given(shape: tuple[int, ...]) -> int:
        recipe.append(("", (), shape, drawn_sharding(rng, mesh, shape)))
        return len(recipe) - 1

    given((rng.choice(SIZES), rng.choice(SIZES)))
    for _ in range(rng.randint(1, 4)):
        first = rng.choice(range(len(recipe))[-3:])
        shape = recipe[first][2]
        if len(shape) == 2 and rng.random() < 0.6:
            size = rng.choice(SIZES)
            recipe.append(("ab,bz->az", (first, given((shape[1], size))), (shape[0], size), None))
        elif len(shape) == 2:
            recipe.append(rng.choice([("ab->b", (first,), shape[1:], None), ("ab->ba", (first,), shape[::-1], None)]))
        else:
            recipe.append(("a,a->a", (first, given(shape)), shape, None))
    read = {operand for _, operands, *_ in recipe for operand in operands}
    for number, (pattern, operands, shape, _) in enumerate(recipe):
        if pattern and number not in read:
            recipe[number] = pattern, operands, shape, drawn_sharding(rng, mesh, shape)
    return mesh, recipe, rng


def placed(mesh: Mesh, recipe: Recipe, goal: str, wanted: dict[int, Sharding]) -> Placement:
    program = Program(mesh)
    values: list[Value] = []
    for number, (pattern, operands, shape, sharding) in enumerate(recipe):
        if not pattern:
            values.append(program.input(f"in{number}", shape, "float32", sharding))
            continue
        values.append(program.op(pattern, *map(values.__getitem__, operands)))
        if number in wanted:
            program.constrain(values[-1], wanted[number])
        if sharding is not None:
            program.output(values[-1], sharding)
    return program.propagate(goal=goal)


def in_turn(placement: Placement) -> int:
    """What the busiest device of each reshard receives, added up."""
    return sum(received_evenly(plan) for plan in placement.plans.values())


@pytest.mark.parametrize("goal", ["bytes", "balanced"])
def test_no_bound_is_above_what_another_placement_has(goal: str) -> None:
    proved = 0
    for seed in range(DRAWN):
        mesh, recipe, rng = drawn(seed)
        first = placed(mesh, recipe, goal, {})
        made = [number for number, (pattern, *_) in enumerate(recipe) if pattern]
        proved += first.is_proved
        assert first.lower_bound_bytes is not None
        for _ in range(VARIANTS):
            asked = rng.sample(made, rng.randint(1, len(made)))
            wanted = {number: drawn_sharding(rng, mesh, recipe[number][2]) for number in asked}
            other = placed(mesh, recipe, goal, wanted)
            assert first.bound <= other.cost * (1 + 1e-6) + 0.5 * (goal == "bytes"), (seed, wanted)
            if goal == "bytes":
                assert first.lower_bound_bytes <= in_turn(other), (seed, wanted)
    assert proved > DRAWN / 4


@pytest.mark.parametrize("goal", ["bytes", "balanced"])
def test_costs_are_those_of_the_reshards(goal: str) -> None:
    """What is chosen again for an operation alone takes along what others were to be made of."""
    for seed in range(1000, 1000 + DRAWN):
        mesh, recipe, _ = drawn(seed)
        placement = placed(mesh, recipe, goal, {})
        work = placement.flops / 2000 if goal == "balanced" else 0.0
        assert placement.cost == pytest.approx(in_turn(placement) + work, rel=1e-6, abs=0.5), seed


def test_what_another_was_to_be_made_of_is_not_gathered_for_nothing() -> None:
    """By hand: rows are gathered in halves, 48 B, for both; columns likewise, and 4 and 40 B to where these go."""
    mesh = Mesh.of(x=6)
    program = Program(mesh)
    rows = program.input("rows", (5, 6), "float32", '[{"x"}, {}]')
    columns = program.input("columns", (6, 12), "float32", parse_sharding('[{}, {"x":(2)3, "x":(1)2}]', mesh))
    program.output(program.op("ab->b", rows), '[{"x"}]')
    program.output(program.op("ab,bz->az", rows, columns), '[{}, {"x"}]')
    placement = program.propagate(goal="bytes")
    assert placement.received_bytes <= 140
    assert placement.cost == in_turn(placement)


def test_a_result_need_not_be_made_where_an_output_wants_it() -> None:
    """One device wants all of a sum over five: combined on all of them it receives 84 B, on it alone 192."""
    program = Program(Mesh.of(x=5))
    rows = program.input("rows", (6, 12), "float32", '[{"x"}, {}]')
    column = program.input("column", (6, 1), "float32", '[{}, {"x"}]')
    program.output(program.op("ab,az->bz", rows, column), '[{}, {"x"}]')
    assert program.propagate(goal="bytes").received_bytes <= 92


def test_an_axis_is_cut_at_the_length_of_a_short_label() -> None:
    """Two columns are added up by two groups of three devices, each its own."""
    program = Program(Mesh.of(x=6))
    columns = program.input("columns", (6, 2), "float32", "[{}, {}]")
    program.output(program.op("ab->b", columns, result="sums"))
    placement = program.propagate()
    assert placement.is_proved
    assert placement.sharding("sums").text() == '[{"x":(1)2}]'
    assert placement.flops == 6


@pytest.mark.parametrize(("size", "cut", "wanted"), [(6, 3, 2), (15, 5, 3), (12, 6, 4)])
def test_an_axis_that_is_cut_where_cuts_do_not_nest_is_cut_no_further(size: int, cut: int, wanted: int) -> None:
    """What is said in parts that are no pieces of an axis is no option of pieces, and moving it costs what it does."""
    program = Program(Mesh.of(x=size))
    x = program.input("x", (60, 4), "float32", f'[{{"x":(1){cut}}}, {{}}]')
    program.output(x, f'[{{"x":(1){wanted}}}, {{}}]')
    placement = program.propagate(goal="bytes")
    assert placement.cost == placement.received_bytes > 0
