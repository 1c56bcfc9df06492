"""The solver of small programs against the prices of plans, and against going through all layouts."""

from __future__ import annotations

import itertools
import random
from math import inf

import drawn_programs
import milp
import pytest

import reshard as rs


@pytest.mark.parametrize("seed", range(6))
def test_moves_cost_what_plans_receive(seed: int) -> None:
    rng = random.Random(seed)
    axes = rng.choice(((2, 2), (2, 4), (4, 2, 2)))
    shape = tuple(rng.choice((16, 32, 48)) for _ in range(rng.randint(1, 3)))
    mesh = rs.Mesh.of(dict(zip("xyz", axes, strict=False)))
    moves = milp.moves_of(axes, shape)

    def sharding(state: milp.State) -> rs.Sharding:
        dims = [["xyz"[n] for n in names] for names in moves.cut(state)]
        return rs.Sharding.of(mesh, *dims, unreduced=["xyz"[n] for n, at in enumerate(state) if at == milp.PARTIAL])

    for _ in range(40):
        source, target = (rng.choice(moves.states) for _ in range(2))
        price = moves.prices[moves.number[source], moves.number[target]]
        if price < inf:
            plan = rs.plan(sharding(source), sharding(target), shape, "float32")
            assert 4 * price <= plan.received_bytes <= 1.1 * 4 * price


def brute_force(description: milp.Description) -> float:
    """The least cost, by going through all layouts of all operations, and all ways to where at most two are wanted."""
    itemsize, axes = 4, description.axes
    options = [milp.Layouts(description, step, frozenset()).work for step in description.steps]
    least = inf
    for layouts in itertools.product(*options):
        work = sum(works[layout] for works, layout in zip(options, layouts, strict=True))
        cost = work / milp.WORK_PER_BYTE
        for value, shape in description.shapes.items():
            moves = milp.moves_of(axes, shape)
            made = description.inputs.get(value) or next(
                states[-1] for step, states in zip(description.steps, layouts, strict=True) if step.result == value
            )
            wanted = {
                states[n]
                for step, states in zip(description.steps, layouts, strict=True)
                for n, operand in enumerate(step.operands)
                if operand == value
            }
            wanted |= {state for result, state in description.outputs if result == value and state is not None}
            prices = moves.prices * itemsize
            ends = [moves.number[state] for state in wanted]
            cost += min(prices[moves.number[made], k] + sum(prices[k, end] for end in ends) for k in range(len(prices)))
        least = min(least, cost)
    return least


@pytest.mark.parametrize("seed", range(5))
def test_finds_what_going_through_all_finds(seed: int) -> None:
    rng = random.Random(seed)
    drawn = drawn_programs.Drawn(rng, {"x": 2, "y": 2})
    drawn.itemsize = 4
    x = drawn.input(16, 32)
    value = drawn.op("product", "ij,jk->ik", x, drawn.input(32, 16))
    added = drawn.op("each", "ij,i->ij", value, drawn.input(16), name="mul")
    for one in (value, added):
        drawn.description.outputs.append((one, drawn.state((16, 16))))
    answer = milp.best(drawn.description)
    assert answer.is_optimal
    assert answer.cost == pytest.approx(brute_force(drawn.description), rel=1e-5)
