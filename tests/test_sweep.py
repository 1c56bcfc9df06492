"""Every device gets its tile, and no byte more than it lacks, for every reshard of large families.

The families are all pairs of shardings that use whole axes, of a rank on a mesh, and random reshards of every other
kind.
`make sweep` goes through all of them; `make test` through a sample.
"""

from __future__ import annotations

from itertools import product
from random import Random

import checkers
import oracle
import problems
import pytest
from problems import Problem

from reshard.exchange.by_boxes import by_boxes
from reshard.exchange.by_digits import by_digits
from reshard.mesh import Mesh
from reshard.planner import plan
from reshard.sharding import Sharding
from reshard.tiling import Tiling

FAMILIES: dict[str, tuple[tuple[int, ...], list[tuple[int, ...]]]] = {
    "2x2x2, rank 2": ((2, 2, 2), [(8, 16), (7, 5)]),
    "4x2, rank 2": ((4, 2), [(8, 16), (9, 6)]),
    "2x3, rank 2": ((2, 3), [(6, 12), (5, 7)]),
    "2x3x5, rank 2": ((2, 3, 5), [(30, 30), (12, 31)]),
    "4x2, rank 3": ((4, 2), [(8, 8, 8), (3, 5, 6)]),
}
"""Sizes of the mesh, and shapes: one that all shards divide, one that they do not."""

CHUNKS = 8
"""Into how many tests a family is cut, so that workers can share it."""
RANDOM = 5000
"""How many random reshards the sweep draws."""


def pairs(family: str) -> list[Problem]:
    """All reshards of a family."""
    sizes, shapes = FAMILIES[family]
    shardings = list(problems.full_axis_shardings(Mesh.of(zip(problems.NAMES, sizes, strict=False)), len(shapes[0])))
    return [
        Problem(source, target, shape, "int64") for shape in shapes for source, target in product(shardings, shardings)
    ]


def check(problem: Problem, *, pieces: bool) -> None:
    """The plan, its run, and both forms of the exchange, where they are there; their pieces only where asked for."""
    source, target, shape, _ = problem
    try:
        checkers.check_move(plan(source, target, shape, "int64"))
        sides = [Tiling.of(sharding, shape) for sharding in (source, target)]
        found = [by_digits(*sides), by_boxes(*sides)]
        for exchange in found:
            if exchange is not None and pieces:
                checkers.check_move_exchange(exchange, problem)
            elif exchange is not None:
                checkers.check_received_figures(exchange, oracle.missing(source, target, shape))
    except Exception as error:
        error.add_note(str(problem))
        raise


def test_a_family_is_all_pairs() -> None:
    assert {family: len(pairs(family)) for family in FAMILIES} == {
        "2x2x2, rank 2": 2 * 49**2,
        "4x2, rank 2": 2 * 11**2,
        "2x3, rank 2": 2 * 11**2,
        "2x3x5, rank 2": 2 * 49**2,
        "4x2, rank 3": 2 * 19**2,
    }


@pytest.mark.sweep
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_pair_of_a_family(family: str, chunk: int) -> None:
    for problem in pairs(family)[chunk::CHUNKS]:
        check(problem, pieces=problem.source.mesh.size <= 8)


@pytest.mark.sweep
@pytest.mark.parametrize("chunk", range(2 * CHUNKS))
def test_random_reshards_of_every_kind(chunk: int) -> None:
    for seed in range(chunk, RANDOM, 2 * CHUNKS):
        check(problems.draw_problem(Random(seed)), pieces=True)


# The samples.


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sample_of_a_family(family: str) -> None:
    for problem in Random(family).sample(pairs(family), 30):
        check(problem, pieces=True)


def test_a_sample_of_random_reshards() -> None:
    for seed in range(RANDOM, RANDOM + 200):
        check(problems.draw_problem(Random(seed)), pieces=True)


def test_the_draw_has_every_kind() -> None:
    """What the draw is for: a share of each kind, so that none is left out unseen."""
    drawn = [problems.draw_problem(Random(seed)) for seed in range(RANDOM)]

    def share(kind: object) -> float:
        return sum(map(kind, drawn)) / len(drawn)  # type: ignore[arg-type, call-overload]

    def devices(sharding: Sharding) -> set[int]:
        return set(oracle.coordinates(sharding.mesh))

    assert share(lambda p: not p.shape) > 0.05
    assert share(lambda p: 0 in p.shape) > 0.05
    assert share(lambda p: 1 in p.shape) > 0.05
    assert share(lambda p: p.source.mesh != p.target.mesh) > 0.3
    assert share(lambda p: not devices(p.source) & devices(p.target)) > 0.03
    assert share(lambda p: 0 < len(devices(p.source) & devices(p.target)) < len(devices(p.source))) > 0.03
    assert share(lambda p: p.source.uneven != p.target.uneven) > 0.2
    assert share(lambda p: any(not axis.is_whole for axis in p.source.axes())) > 0.15
    assert share(lambda p: any(size == 1 for _, size in p.source.mesh.axes)) > 0.05
    assert share(lambda p: p.source.mesh.is_maximal or p.target.mesh.is_maximal) > 0.05
    exchanges = [by_digits(Tiling.of(p.source, p.shape), Tiling.of(p.target, p.shape)) for p in drawn]
    assert 0.2 < sum(exchange is None for exchange in exchanges) / len(drawn) < 0.7
    uneven = [exchange for exchange in exchanges if exchange is not None and not exchange.target.is_even()]
    assert len(uneven) / len(drawn) > 0.05
