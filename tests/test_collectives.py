"""The search for collectives finds the chain that receives least, and every chain that it gives holds.

Least is what `exhaustive` finds, which goes through all chains and is written apart.
`make sweep` compares all pairs of the families; `make test` a sample.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod
from random import Random

import checkers
import exhaustive
import numpy as np
import problems
import pytest
from effort import calls_of
from exhaustive import Reducing, Space, prime_parts, state_of

from reshard import numpy as engine
from reshard.axis import Axis
from reshard.collectives.fewest_bytes import COLLECTIVES, fewest_bytes_chain, total_bytes
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.planner import plan
from reshard.plans import Plan
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Step

FAMILIES = {
    **exhaustive.FAMILIES,
    "2x2x2, rank 3": ((2, 2, 2), (8, 8, 8)),
    "6x2, rank 2": ((6, 2), (12, 12)),
}
"""Sizes of the mesh, and a shape that all shards divide."""
Chain = tuple[Step, ...]


def mesh_of(sizes: tuple[int, ...]) -> Mesh:
    return Mesh.of(zip(problems.NAMES, sizes, strict=False))


@cache
def family(name: str) -> tuple[list[Sharding], Space]:
    """The shardings of a family, and the space of all states that sub-axes of prime size make."""
    sizes, shape = FAMILIES[name]
    mesh = mesh_of(sizes)
    digits = {part: int(part.split(":")[2]) for axis, size in mesh.axes for part in prime_parts(Axis(axis), size)}
    return list(problems.full_axis_shardings(mesh, len(shape))), Space(digits, len(shape), prod(shape))


def check_chain(steps: Chain, source: Sharding, target: Sharding, shape: tuple[int, ...]) -> None:
    """The steps are a plan of collectives, and the engine gives every device its tile and counts what they say."""
    assert {step.kind for step in steps} <= set(COLLECTIVES)
    checkers.check_run(Plan(Reshard.of(source, target, shape, dtype_named("int64")), steps))


def figures(steps: Chain) -> tuple[int, int]:
    return total_bytes(steps), len(steps)


def check_least(name: str, source: Sharding, target: Sharding, *, run: bool) -> None:
    shape = FAMILIES[name][1]
    steps, proved = fewest_bytes_chain(Reshard.of(source, target, shape, "int8"))
    assert proved, f"{source.text()} -> {target.text()} is not proved"
    least = family(name)[1].costs_from(state_of(source))[state_of(target)]
    assert figures(steps) == least, f"{source.text()} -> {target.text()}: {figures(steps)}, where {least} will do"
    for step in steps:
        assert step.total_received_bytes == by_formula(step), f"{step.kind} {step.before.text()} -> {step.after.text()}"
    if run:
        check_chain(fewest_bytes_chain(Reshard.of(source, target, shape, "int64"))[0], source, target, shape)


def by_formula(step: Step) -> int:
    """What a step receives in all, by the formula of its kind; what a Permute does is left to the engine's count."""
    devices, size = step.before.mesh.size, step.dtype.itemsize
    tiles = [side.local_shape(step.shape) for side in (step.before, step.after)]
    before, after = (prod(tile) * size for tile in tiles)
    moved = prod(max(b // a, 1) for a, b in zip(*tiles, strict=True))  # parts that leave the dims
    formulas = {
        "Slice": 0,
        "AllGather": devices * (after - before),
        "AllToAll": devices * (before - before // moved),
    }
    return formulas.get(step.kind, step.total_received_bytes)


def check_all_to_alls_are_portable(steps: Chain) -> None:
    """Every dim gives the end of its list to one other, in its order, or takes such an end, or stays."""
    for step in steps:
        if step.kind == "AllToAll":
            before, after = state_of(step.before), state_of(step.after)
            given = [a[len(b) :] for a, b in zip(before, after, strict=True) if len(a) > len(b)]
            taken = [b[len(a) :] for a, b in zip(before, after, strict=True) if len(a) < len(b)]
            assert sorted(given) == sorted(taken)
            assert all(a[: len(b)] == b[: len(a)] for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_least_on_a_sample_of_a_family(name: str) -> None:
    shardings = family(name)[0]
    for source, target in Random(name).sample(list(product(shardings, shardings)), 60):
        check_least(name, source, target, run=True)
        check_all_to_alls_are_portable(fewest_bytes_chain(Reshard.of(source, target, FAMILIES[name][1], "int8"))[0])


@pytest.mark.sweep
@pytest.mark.parametrize("name", FAMILIES)
def test_least_on_every_pair_of_a_family(name: str) -> None:
    shardings = family(name)[0]
    for source, target in product(shardings, shardings):
        check_least(name, source, target, run=len(FAMILIES[name][0]) == 2)


def draw_cut(rng: Random, digits: list[str], ndim: int) -> tuple[tuple[str, ...], ...]:
    """A state over some of the digits, in any order."""
    dims: list[list[str]] = [[] for _ in range(ndim)]
    for digit in rng.sample(digits, rng.randint(0, len(digits))):
        rng.choice(dims).append(digit)
    return tuple(map(tuple, dims))


def named(mesh: Mesh, state: tuple[tuple[str, ...], ...]) -> Sharding:
    """The sharding of a state: a digit `a:2:3` is the sub-axis of size 3 below 2 of axis a."""
    whole = dict(mesh.axes)
    dims = []
    for dim in state:
        parts = [digit.split(":") for digit in dim]
        dims.append(
            [Axis.between(name, int(start), int(start) * int(size), whole[name]) for name, start, size in parts]
        )
    return Sharding.of(mesh, *dims)


@pytest.mark.parametrize("name", ["4x2, rank 2", "6x2, rank 2"])
def test_least_between_sub_axes(name: str) -> None:
    rng = Random(name)
    mesh, space = mesh_of(FAMILIES[name][0]), family(name)[1]
    for _ in range(150):
        source, target = (named(mesh, draw_cut(rng, list(space.sizes), 2)) for _ in range(2))
        check_least(name, source, target, run=True)


@pytest.mark.parametrize(
    ("sizes", "partial"), [((2, 2, 2), "a"), ((2, 2, 2), "ab"), ((2, 2, 2), "c"), ((2, 3, 5), "b"), ((2, 3, 2), "ab")]
)
def test_least_with_partial_values(sizes: tuple[int, ...], partial: str) -> None:
    mesh, rng = mesh_of(sizes), Random(f"{sizes}{partial}")
    shape = (prod(sizes) ** 2,) * 2
    space = Reducing(Space(dict(mesh.axes), 2, prod(shape)))
    shardings = list(problems.full_axis_shardings(mesh, 2))

    def state(sharding: Sharding) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(axis.name for axis in dim.axes) for dim in sharding.dims)

    sources = [s for s in shardings if not set(partial) & {name for dim in state(s) for name in dim}]
    for source in rng.sample(sources, min(6, len(sources))):
        costs = space.costs_from((state(source), frozenset(partial)))
        for target in rng.sample(shardings, 12):
            start = Sharding.of(mesh, *(dim.axes for dim in source.dims), unreduced=tuple(partial))
            steps, _ = fewest_bytes_chain(Reshard.of(start, target, shape, "int8"))
            assert figures(steps) == costs[state(target), frozenset()], f"{start.text()} -> {target.text()}"


def chain_or_none(source: Sharding, target: Sharding, shape: tuple[int, ...], dtype: str) -> Chain | None:
    """The chain; None where it is refused because no collectives lead there."""
    try:
        return fewest_bytes_chain(Reshard.of(source, target, shape, dtype))[0]
    except ReshardError as error:
        if error.code != "no-plan":
            raise
        return None


def test_random_moves_end_in_their_target() -> None:
    refused = Counter[bool]()
    for seed in range(400):
        problem = problems.draw_problem(Random(seed))
        steps = chain_or_none(problem.source, problem.target, problem.shape, "int64")
        if steps is None:
            chunked = "chunk" in (problem.source.uneven, problem.target.uneven)
            refused[problem.source.mesh.size == problem.target.mesh.size and not chunked] += 1
            continue
        check_chain(steps, problem.source, problem.target, problem.shape)
    assert not refused[True], "refused, though devices are as many and dims are cut in one stage"


def test_random_reductions_end_in_their_target() -> None:
    """The tensor that the target holds is the tensor that the source holds, whatever is partial on either side."""
    held = 0
    for seed in range(300):
        source, target, shape, dtype = problems.draw_reduction(Random(seed))
        steps = chain_or_none(source, target, shape, dtype)
        if steps is None:
            continue
        whole = np.random.default_rng(seed).integers(0, 2, shape).astype(dtype)
        plan = Plan(Reshard.of(source, target, shape, dtype), steps)
        tiles = engine.run(plan, engine.scatter(whole, source))
        assert np.array_equal(engine.gather(tiles, target, shape), whole), f"{source} -> {target}"
        held += 1
    assert held > 200


# By hand.


def kinds(source: Sharding, target: Sharding, shape: tuple[int, ...]) -> list[tuple[str, str, int]]:
    steps, _ = fewest_bytes_chain(Reshard.of(source, target, shape, "int8"))
    return [(step.kind, step.after.text(), step.total_received_bytes) for step in steps]


def test_two_small_moves_instead_of_a_permute() -> None:
    mesh = mesh_of((2, 2, 2))
    found = kinds(Sharding.of(mesh, None, ("a", "b", "c")), Sharding.of(mesh, ("a", "b"), None), (8, 8))
    assert found == [("AllToAll", '[{"a", "b", "c"}, {}]', 56), ("AllGather", '[{"a", "b"}, {}]', 64)]


def test_slicing_the_axis_that_need_not_move() -> None:
    mesh = mesh_of((2, 2, 2))
    found = kinds(Sharding.of(mesh, None, "a"), Sharding.of(mesh, None, ("b", "c")), (8, 8))
    assert found == [("Slice", '[{}, {"a", "c"}]', 0), ("Permute", '[{}, {"b", "c"}]', 64)]


def test_another_order_of_devices_costs_nothing_where_the_source_is_replicated() -> None:
    mesh, other = Mesh.of(a=2, b=2), Mesh.of(a=2, b=2, device_ids=(0, 3, 1, 2))
    found = kinds(Sharding.of(mesh, None, None), Sharding.of(other, "a", "b"), (4, 4))
    assert found == [("Slice", '[{"a"}, {"b"}]', 0)]


def test_another_order_of_devices_by_one_permute() -> None:
    mesh, other = Mesh.of(a=2, b=2), Mesh.of(a=2, b=2, device_ids=(0, 2, 1, 3))
    ends = Sharding.of(mesh, ("a", "b")), Sharding.of(other, ("a", "b"))
    steps, _ = fewest_bytes_chain(Reshard.of(*ends, (8,), "int8"))
    assert [(step.kind, step.total_received_bytes) for step in steps] == [("Permute", 4)]


def test_an_order_of_devices_whose_digits_do_not_hold_the_axis() -> None:
    """The order is made of digits of 3, 2 and 2; an axis of 2 at the end ends inside the 3, so whole tiles move."""
    mesh, other = Mesh.of(a=6, b=2), Mesh.of(a=6, b=2, device_ids=(0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11))
    source, target = Sharding.of(mesh, "b"), Sharding.of(other, "b")
    checkers.check_move(plan(source, target, (4,), "int64"))
    steps, _ = fewest_bytes_chain(Reshard.of(source, target, (4,), "int64"))
    check_chain(steps, source, target, (4,))


def test_other_devices() -> None:
    mesh, other = Mesh.of(a=2, b=2), Mesh.of(a=2, b=2, device_ids=(7, 6, 5, 4))
    source, target = Sharding.of(mesh, "a", None), Sharding.of(other, None, "b")
    steps, _ = fewest_bytes_chain(Reshard.of(source, target, (4, 4), "int64"))
    check_chain(steps, source, target, (4, 4))
    assert Counter(step.kind for step in steps)["Permute"] == 1


def test_sub_axes_that_no_split_holds_together() -> None:
    mesh = Mesh.of(a=6)
    source, target = Sharding.of(mesh, "a:(1)2"), Sharding.of(mesh, "a:(1)3")
    steps, proved = fewest_bytes_chain(Reshard.of(source, target, (6,), "int64"))
    assert ([step.kind for step in steps], proved) == (["AllGather", "Slice"], False)
    check_chain(steps, source, target, (6,))


def test_a_dim_that_its_parts_do_not_divide() -> None:
    mesh = Mesh.of(a=2, b=2)
    source, target = Sharding.of(mesh, ("a", "b"), None), Sharding.of(mesh, "b", "a")
    steps, proved = fewest_bytes_chain(Reshard.of(source, target, (5, 4), "int64"))
    assert ([step.kind for step in steps], proved) == (["AllGather", "Slice"], False)
    check_chain(steps, source, target, (5, 4))


def test_partial_values_are_scattered_where_they_lie() -> None:
    mesh = mesh_of((2, 2))
    found = kinds(Sharding.of(mesh, None, unreduced="a"), Sharding.of(mesh, "a"), (8,))
    assert found == [
        ("Slice", '[{"b"}], unreduced={"a"}', 0),
        ("ReduceScatter", '[{"b", "a"}]', 8),
        ("Permute", '[{"a", "b"}]', 4),
        ("AllGather", '[{"a"}]', 8),
    ]


def test_to_partial_values() -> None:
    mesh = mesh_of((2, 2))
    found = kinds(Sharding.of(mesh, "a", "b"), Sharding.of(mesh, None, "b", unreduced="a"), (4, 4))
    assert found == [("ToUnreduced", '[{}, {"b"}], unreduced={"a"}', 0)]


def test_tensors_of_many_dims_take_no_more_calls_than_there_are_ways_to_cut_them() -> None:
    mesh = Mesh.of(x=2, y=2, z=2)
    ends = (Sharding.of(mesh, *axes) for axes in (("x", "y", *[None] * 9), (*[None] * 9, "y", "x")))
    (chain, is_proved), calls = calls_of(lambda: fewest_bytes_chain(Reshard.of(*ends, (2,) * 11, "int8")))
    assert [step.kind for step in chain] == ["AllToAll"]
    assert is_proved
    assert calls < 10**6  # there are 364 nodes; 4**11 rows are looked at in over eight million


def test_nothing_to_do() -> None:
    sharding = Sharding.of(mesh_of((2, 2)), "a")
    also_replicated = replace(sharding, replicated=(Axis("b"),))
    assert fewest_bytes_chain(Reshard.of(sharding, also_replicated, (8,), "int8")) == ((), True)


def test_other_numbers_of_devices_are_refused() -> None:
    source, target = Sharding.of(Mesh.of(a=4), "a"), Sharding.of(Mesh.of(a=2), "a")
    with pytest.raises(ReshardError, match="no chain of collectives leads from") as caught:
        fewest_bytes_chain(Reshard.of(source, target, (8,), "int8"))
    assert caught.value.code == "no-plan"


def test_the_budget_is_kept_and_the_chain_still_holds() -> None:
    mesh = mesh_of((4, 4, 2, 2))
    source = Sharding.of(mesh, ("a", "b"), "c", "d")
    target = Sharding.of(mesh, ("d", "c"), ("b", "a"), None)
    for budget in (0, 5, 50, 500):
        steps, proved = fewest_bytes_chain(Reshard.of(source, target, (64, 64, 64), "int64"), budget=budget)
        if budget == 5:
            check_chain(steps, source, target, (64, 64, 64))
        assert steps[-1].after == target
        assert not proved or budget > 5


# Against Shardy's own pass.


@pytest.mark.engine
@pytest.mark.parametrize("name", FAMILIES)
def test_never_more_than_shardy(name: str) -> None:
    pytest.importorskip("jaxlib")
    from shardy_pass import received, shardy_points

    shape, shardings = FAMILIES[name][1], family(name)[0]
    pairs = Random(name).sample(list(product(shardings, shardings)), 120)
    wrong = 0
    for (source, target), points in zip(pairs, shardy_points(pairs, shape), strict=True):
        if points is None or points[-1] != target:
            wrong += 1
            continue
        ours, theirs = fewest_bytes_chain(Reshard.of(source, target, shape, "int8"))[0], received(points, shape)
        assert figures(ours) <= figures(theirs), f"{source.text()} -> {target.text()}"
    assert wrong < 6, f"Shardy ends elsewhere in {wrong} of {len(pairs)}"
