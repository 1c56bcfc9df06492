"""The basis of one mesh axis at a time: the document's chains step for step, and the cheapest against all others."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product
from math import prod
from random import Random

import checkers
import problems
import pytest
from exhaustive import FAMILIES, Space, State

from reshard.collectives.one_axis import one_axis_chain
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.plans import Plan
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Step

KINDS = {"Slice", "AllGather", "AllToAll", "Permute"}


def state_of(sharding: Sharding) -> State:
    return tuple(tuple(axis.name for axis in dim.axes) for dim in sharding.dims)


@cache
def family(name: str) -> tuple[list[Sharding], Space]:
    sizes, shape = FAMILIES[name]
    mesh = Mesh.of(zip(problems.NAMES, sizes, strict=False))
    return list(problems.full_axis_shardings(mesh, len(shape))), Space(dict(mesh.axes), len(shape), prod(shape))


def is_single(before: State, after: State) -> bool:
    """Whether one axis was appended, dropped or moved at the end of a dim, or two neighbours changed places."""
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    shorter = [a[:-1] == b for a, b in changed]
    longer = [a == b[:-1] for a, b in changed]
    if len(changed) == 2:
        moved = {a[-1] for a, b in changed if len(a) > len(b)} == {b[-1] for a, b in changed if len(a) < len(b)}
        return moved and sorted(shorter) == sorted(longer) == [False, True]
    ((a, b),) = changed
    places = [place for place in range(min(len(a), len(b))) if a[place] != b[place]]
    turned = len(a) == len(b) and len(places) == 2 and places[1] - places[0] == 1 and sorted(a) == sorted(b)
    return turned or shorter[0] or longer[0]


def check(name: str, source: Sharding, target: Sharding, *, run: bool) -> None:
    """Both orders are chains of single moves that end in the target; the cheapest is."""
    shape = FAMILIES[name][1]
    reshard = Reshard.of(source, target, shape, "int64")
    chains = [one_axis_chain(reshard, order=order) for order in ("cheapest", "document")]
    for steps in chains:
        assert {step.kind for step in steps} <= KINDS
        states = [state_of(source), *(state_of(step.after) for step in steps)]
        assert all(is_single(before, after) for before, after in pairwise(states)), states
        plan = Plan(reshard, steps)
        if run:
            checkers.check_run(plan)
    least = family(name)[1].costs_from(state_of(source), one_axis=True)[state_of(target)]
    found = sum(step.total_received_bytes for step in chains[0]) // 8, len(chains[0])
    assert found == least, f"{source.text()} -> {target.text()}: {found}, where {least} will do"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_sample_of_a_family(name: str) -> None:
    shardings = family(name)[0]
    for source, target in Random(name).sample(list(product(shardings, shardings)), 40):
        check(name, source, target, run=True)


@pytest.mark.sweep
@pytest.mark.parametrize("name", FAMILIES)
def test_every_pair_of_a_family(name: str) -> None:
    shardings = family(name)[0]
    for source, target in product(shardings, shardings):
        check(name, source, target, run=False)


# The document.


def lists(sharding: Sharding) -> list[list[int]]:
    return [[int(axis.name) for axis in dim.axes] for dim in sharding.dims]


def of_lists(sizes: tuple[int, ...], dims: list[list[int]]) -> Sharding:
    mesh = Mesh.of([(str(number), size) for number, size in enumerate(sizes)])
    return Sharding.of(mesh, *([str(axis) for axis in dim] for dim in dims))


def document(
    sizes: tuple[int, ...], source: list[list[int]], target: list[list[int]]
) -> list[tuple[str, list[list[int]]]]:
    shape = (prod(sizes),) * len(source)
    reshard = Reshard.of(of_lists(sizes, source), of_lists(sizes, target), shape, "int8")
    steps = one_axis_chain(reshard, order="document")
    return [(step.kind, lists(step.after)) for step in steps]


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (2, 6), (4, 3)])
def test_the_transposition_of_the_document(sizes: tuple[int, ...]) -> None:
    assert document(sizes, [[0], [1]], [[1], [0]]) == [
        ("AllGather", [[0], []]),
        ("AllToAll", [[], [0]]),
        ("Slice", [[1], [0]]),
    ]


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2), (2, 3, 2, 5)])
def test_the_four_axes_of_the_document(sizes: tuple[int, ...]) -> None:
    assert document(sizes, [[3, 2], [], [0, 1]], [[0], [1, 2], []]) == [
        ("AllToAll", [[3, 2], [1], [0]]),
        ("AllToAll", [[3], [1, 2], [0]]),
        ("AllGather", [[], [1, 2], [0]]),
        ("AllToAll", [[0], [1, 2], []]),
    ]


def test_the_basis_of_the_document() -> None:
    assert document((2, 3), [[]], [[1]]) == [("Slice", [[1]])]
    assert document((2, 3), [[0]], [[]]) == [("AllGather", [[]])]
    assert document((2, 3), [[0, 1]], [[1]]) == [("Permute", [[1, 0]]), ("AllGather", [[1]])]
    assert document((2, 3), [[0, 1]], [[1, 0]]) == [("Permute", [[1, 0]])]
    assert document((2, 3), [[0], []], [[], [0]]) == [("AllToAll", [[], [0]])]
    assert document((2, 2, 2), [[0], [1, 2]], [[0, 1], [2]]) == [
        ("Permute", [[0], [2, 1]]),
        ("AllToAll", [[0, 1], [2]]),
    ]


# Beyond whole axes.


def test_random_shardings_on_one_mesh() -> None:
    """Sub-axes, sizes that nothing divides, partial values: a chain that holds, or a refusal."""
    held = 0
    for seed in range(400):
        source, target, shape, _ = problems.draw_problem(Random(seed))
        for order in ("cheapest", "document"):
            try:
                steps = one_axis_chain(Reshard.of(source, target, shape, "int64"), order=order)
            except ReshardError as error:
                if error.code != "no-plan":
                    raise
                continue
            checkers.check_run(Plan(Reshard.of(source, target, shape, dtype_named("int64")), steps))
            held += bool(steps)
    assert held > 150


def test_partial_values_are_reduced_first_and_made_last() -> None:
    mesh = Mesh.of(a=2, b=2, c=2)
    source = Sharding.of(mesh, "b", None, unreduced="a")
    target = Sharding.of(mesh, None, "b", unreduced="c")
    steps = one_axis_chain(Reshard.of(source, target, (8, 8), "int64"))
    assert [step.kind for step in steps] == ["AllReduce", "AllToAll", "ToUnreduced"]
    plan: tuple[Step, ...] = Plan(Reshard.of(source, target, (8, 8), dtype_named("int64")), steps).steps
    assert plan[-1].after == target


def test_another_mesh_and_unknown_orders_are_refused() -> None:
    source, target = Sharding.of(Mesh.of(a=4), "a"), Sharding.of(Mesh.of(a=2, b=2), "b")
    with pytest.raises(ReshardError, match="one axis at a time leads to no other mesh") as caught:
        one_axis_chain(Reshard.of(source, target, (8,), "int8"))
    assert caught.value.code == "no-plan"
    with pytest.raises(ReshardError, match="order 'best' must be one of cheapest, document") as caught:
        one_axis_chain(Reshard.of(source, source, (8,), "int8"), order="best")
    assert caught.value.code == "bad-argument"


def test_sub_axes_that_overlap_are_refused() -> None:
    mesh = Mesh.of(a=6)
    with pytest.raises(ReshardError, match="no split of the axes has the parts of both"):
        one_axis_chain(Reshard.of(Sharding.of(mesh, "a:(1)2"), Sharding.of(mesh, "a:(1)3"), (6,), "int8"))
