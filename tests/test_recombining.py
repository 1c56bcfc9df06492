"""The best of a part of all choices, against all of them one by one."""

from __future__ import annotations

import random
from itertools import combinations, product

import numpy as np
import pytest

import reshard as rs
from reshard.contraction.chooser import Chooser
from reshard.contraction.goal import Goal
from reshard.propagation import deciding
from reshard.propagation.deciding import decided
from reshard.propagation.descent import Descent
from reshard.propagation.dual import Picked
from reshard.propagation.elimination import End, Link
from reshard.propagation.fixpoint import Net
from reshard.propagation.model import Model
from reshard.propagation.recombining import along, between, recombine

MESH = rs.Mesh.of(x=2, y=2)


def drawn_ends(seed: int) -> tuple[list[End], list[tuple[int, int, np.ndarray]]]:
    """Some ends, linked at random, with whole costs."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, rng.integers(4, 8))
    ends = [End(None, rng.integers(0, 9, size).astype(float), np.arange(size)) for size in sizes]
    links = []
    for first, second in combinations(range(len(ends)), 2):
        if rng.random() < 0.6:
            table = rng.integers(0, 9, (sizes[first], sizes[second])).astype(float)
            links.append((first, second, table))
            Link(ends[first], ends[second], table)
    return ends, links


def paid(ends: list[np.ndarray], links: list[tuple[int, int, np.ndarray]], choice: tuple[int, ...]) -> float:
    own = sum(cost[number] for cost, number in zip(ends, choice, strict=True))
    return float(own + sum(table[choice[first], choice[second]] for first, second, table in links))


@pytest.mark.parametrize("seed", range(30))
def test_what_hangs_together_is_decided_at_its_least(seed: int) -> None:
    ends, links = drawn_ends(seed)
    costs = [end.cost.copy() for end in ends]
    picked = decided(ends, [0] * len(ends))
    least = min(paid(costs, links, choice) for choice in product(*(range(len(cost)) for cost in costs)))
    assert paid(costs, links, tuple(picked[place] for place in range(len(costs)))) == least


@pytest.mark.parametrize("seed", range(30))
def test_what_is_held_is_never_worse(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "MOST_TOGETHER", 8)
    ends, links = drawn_ends(seed)
    costs = [end.cost.copy() for end in ends]
    held = tuple(random.Random(seed).randrange(len(cost)) for cost in costs)
    picked = decided(ends, held)
    assert paid(costs, links, tuple(picked[place] for place in range(len(costs)))) <= paid(costs, links, held)


def small_model() -> Model:
    """Two products of one value, and their sum."""
    program = rs.Program(MESH)
    x = program.input("x", (16, 8), "float32", rs.Sharding.of(MESH, "x", "y"))
    weights = [program.input(name, (8, 32), "float32", rs.Sharding.of(MESH, "y", None)) for name in "ab"]
    first, second = (program.op("ij,jk->ik", x, each) for each in weights)
    program.output(program.op("ik,ik->ik", first, second, name="add"), rs.Sharding.of(MESH, None, "x"))
    net = Net(program)
    return Model(net, net.runs(None), Chooser(Goal.of("balanced")))


def drawn_choice(model: Model, rng: random.Random) -> Picked:
    options = {id(variable): int(rng.choice(variable.domain)) for variable in model.variables}
    return Picked(options, {node.number: rng.randrange(len(node.layouts)) for node in model.nodes})


@pytest.mark.parametrize("seed", range(12))
def test_of_two_choices_the_best_of_what_each_does_where_is_taken(seed: int) -> None:
    """As cheap as the best of all that take each value, and each operation, from one or the other."""
    model, rng = small_model(), random.Random(seed)
    one, other = drawn_choice(model, rng), drawn_choice(model, rng)
    keys, numbers = list(one.options), list(one.layouts)
    least = min(
        Descent(
            model,
            {key: (one, other)[at].options[key] for key, at in zip(keys, taken, strict=False)},
            {number: (one, other)[at].layouts[number] for number, at in zip(numbers, taken[len(keys) :], strict=True)},
        ).total()
        for taken in product((0, 1), repeat=len(keys) + len(numbers))
    )
    chosen = Descent(model, *one)
    recombine(chosen, between(chosen, other))
    assert chosen.cost == pytest.approx(chosen.total())
    assert chosen.cost == pytest.approx(least)


@pytest.mark.parametrize("seed", range(12))
def test_along_an_axis_the_others_stay(seed: int) -> None:
    model = small_model()
    chosen = Descent(model, *drawn_choice(model, random.Random(seed)))
    before, cost = dict(chosen.options), chosen.cost
    recombine(chosen, along(chosen, {MESH: [1]}))
    assert chosen.cost <= cost
    assert chosen.cost == pytest.approx(chosen.total())
    for variable in chosen.variables:
        if not variable.follows:  # what nothing reads is kept as it is made
            doing = variable.options.doing
            assert doing[chosen.options[id(variable)], 0] == doing[before[id(variable)], 0]
