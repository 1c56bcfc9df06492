"""Laws: cover, equivalence, duals and transposes, composition, round trips, the cache of plans.

Placements are compared with the oracle's.
"""

from __future__ import annotations

import copy
import gc
import json
import pickle
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import FrozenInstanceError, replace
from itertools import permutations, product
from math import prod
from random import Random
from threading import Barrier
from typing import Any

import checkers
import hypothesis.strategies as st
import numpy as np
import oracle
import problems
import pytest
import strategies
from hypothesis import assume, given, settings
from numpy.typing import NDArray

import reshard
from reshard import numpy as engine
from reshard.axis import Axis, refined_mesh
from reshard.box import Box
from reshard.digits import Digit, Digits, Transposition
from reshard.dim_sharding import DimSharding
from reshard.dtypes import DTYPES, DType
from reshard.errors import CODES, ReshardError
from reshard.exchange import Piece
from reshard.garbage import MANY, uncollected
from reshard.layout import Layout
from reshard.mesh import Mesh
from reshard.planner import CACHED_PLANS, cache_clear, plan
from reshard.plans import Options, Plan
from reshard.problem import Reshard
from reshard.refinement import Cuts, Refinement, Unreduced
from reshard.sharding import Sharding
from reshard.steps import Step
from reshard.tiling import Tiling

Array = NDArray[Any]


# Where things lie.


@given(st.data())
def test_tiles_are_those_of_the_oracle(data: st.DataObject) -> None:
    sharding = data.draw(strategies.shardings())
    shape = data.draw(strategies.shapes(len(sharding.dims)))
    runs = oracle.ranges(sharding, shape)
    assert list(runs) == list(sharding.mesh.devices)
    layout = sharding.layout_for(shape)
    positions = sharding.mesh.positions
    bounds = layout.bounds(shape, positions)
    for position, (device, dims) in enumerate(runs.items()):
        box = sharding.box(device, shape)
        assert box.shape == tuple(map(len, dims))
        expected = [(run.start, run.stop) if run else (size, size) for run, size in zip(dims, shape, strict=True)]
        assert box == Box(expected)
        found = [(int(start[position]), int(stop[position])) for start, stop in bounds]
        assert all(range(*interval) == run for interval, run in zip(found, dims, strict=True))
        assert sharding.mesh.device_at(position) == device
        assert sharding.mesh.coordinates(device) == tuple(oracle.coordinates(sharding.mesh)[device].values())


@given(st.data())
def test_tiles_cover_the_tensor_evenly(data: st.DataObject) -> None:
    """Every element is held by as many devices as any other, in every class of partial values."""
    sharding = data.draw(strategies.shardings())
    shape = data.draw(strategies.shapes(len(sharding.dims)))
    copies = sharding.layout_for(shape).copies()
    classes = np.array(list(oracle.classes(sharding).values()))
    for number in range(oracle.class_count(sharding)):
        assert (oracle.holds(sharding, shape)[classes == number].sum(axis=0) == copies).all()
    parts = prod(sharding.layout_for(shape).shards(dim) for dim in range(len(shape)))
    assert copies * parts * oracle.class_count(sharding) == sharding.mesh.size


@given(st.data())
def test_the_local_shape_is_that_of_the_largest_tile(data: st.DataObject) -> None:
    sharding = data.draw(strategies.shardings())
    shape = data.draw(strategies.shapes(len(sharding.dims)))
    runs = oracle.ranges(sharding, shape).values()
    assert sharding.local_shape(shape) == tuple(max(len(dims[dim]) for dims in runs) for dim in range(len(shape)))
    even = all(len({len(dims[dim]) for dims in runs}) == 1 for dim in range(len(shape)))
    divides = all(size % sharding.layout.shards(dim) == 0 for dim, size in enumerate(shape))
    assert Tiling.of(sharding, shape).is_even() is divides
    assert even or not divides
    if divides:
        sharding.check_divisible(shape)
    else:
        with pytest.raises(ReshardError) as refusal:
            sharding.check_divisible(shape)
        assert refusal.value.code == "not-divisible"


@given(st.data())
def test_scattered_and_gathered(data: st.DataObject) -> None:
    sharding = data.draw(strategies.shardings())
    shape = data.draw(strategies.shapes(len(sharding.dims), most=7))
    integral = sharding.reduction in ("band", "bor", "bxor")
    array = oracle.encoded(shape).astype("int16" if integral else "float64")
    tiles = engine.scatter(array, sharding)
    back = engine.gather(tiles, sharding, shape)
    assert (back.shape, back.dtype, back.tolist()) == (array.shape, array.dtype, array.tolist())
    assert np.array_equal(oracle.values(sharding, shape, tiles), array)
    assert not any(np.shares_memory(tile, array) for tile in tiles.values())
    assert all(tile.flags.writeable and tile.flags.c_contiguous for tile in tiles.values())


# Equivalence.


def same_placement(rng: Random, sharding: Sharding) -> Sharding:
    """The same placement under other names: axes cut further, in another order, on devices listed accordingly."""
    mesh = sharding.mesh
    parts = list(refined_mesh(sharding.axes(), mesh.sizes))
    names = {part: f"q{number}" for number, part in enumerate(parts)}
    places = oracle.coordinates(mesh)
    rng.shuffle(parts)
    sizes = [part.size_in(mesh.sizes[part.name]) for part in parts]
    where = {tuple(oracle.part_value(part, mesh, place) for part in parts): device for device, place in places.items()}
    ids = [where[values] for values in product(*map(range, sizes))]
    there = Mesh.of(zip([names[part] for part in parts], sizes, strict=True), device_ids=ids)

    def renamed(axes: Iterable[Axis]) -> list[str]:
        return [names[part] for axis in axes for part in sorted(parts, key=lambda p: p.start) if axis.contains(part)]

    return Sharding.of(
        there,
        *(renamed(dim.axes) for dim in sharding.dims),
        unreduced=renamed(sharding.unreduced),
        reduction=sharding.reduction,
        uneven=sharding.uneven,
    )


@given(st.data())
def test_a_sharding_is_equivalent_to_itself_under_other_names(data: st.DataObject) -> None:
    sharding = data.draw(strategies.shardings(uneven=["ceil"]))
    shape = data.draw(strategies.shapes(len(sharding.dims)))
    other = same_placement(data.draw(st.randoms(use_true_random=False)), sharding)
    assert oracle.placement(sharding, shape) == oracle.placement(other, shape)
    assert sharding.is_equivalent_to(sharding, shape)
    assert sharding.is_equivalent_to(other, shape)
    assert other.is_equivalent_to(sharding, shape)


@given(st.data())
def test_equivalent_shardings_need_no_step(data: st.DataObject) -> None:
    sharding = data.draw(strategies.shardings(uneven=["ceil"], reductions=["sum", "max"]))
    shape = data.draw(strategies.shapes(len(sharding.dims)))
    other = same_placement(data.draw(st.randoms(use_true_random=False)), sharding)
    found = plan(sharding, other, shape, "float32")
    assert (found.steps, found.received_bytes, found.total_received_bytes, found.rounds) == ((), 0, 0, 0)
    assert (found.lower_bound_bytes, found.total_lower_bound_bytes) == (0, 0)
    assert {found.received_bytes_on(device) for device in found.devices} == {0}
    assert {found.lower_bound_bytes_on(device) for device in found.devices} == {0}


def beside(data: st.DataObject, first: Sharding, **options: Any) -> Sharding:
    """A second sharding of the same rank: on the same mesh, the same devices, or any."""
    mesh = data.draw(st.sampled_from([first.mesh, Mesh.of(a=first.mesh.size, device_ids=first.mesh.devices)]))
    if data.draw(st.integers(0, 3)) == 0:
        mesh = data.draw(strategies.meshes())
    return data.draw(strategies.shardings(mesh, ndim=len(first.dims), **options))


@settings(max_examples=400)
@given(st.data())
def test_equivalence_agrees_with_brute_force(data: st.DataObject) -> None:
    first = data.draw(strategies.shardings(strategies.meshes(most_devices=12)))
    second = beside(data, first)
    shape = data.draw(strategies.shapes(len(first.dims), most=5))
    placements = [oracle.placement(sharding, shape) for sharding in (first, second)]
    alike = first.reduction == second.reduction or not (first.unreduced and second.unreduced)
    ones = all(oracle.class_count(sharding) == 1 for sharding in (first, second))
    expected = placements[0] == placements[1] and (alike or ones)
    assert first.is_equivalent_to(second, shape) is expected
    assert second.is_equivalent_to(first, shape) is expected


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (1, 4)])
def test_equivalence_of_every_pair_on_small_meshes(shape: tuple[int, int]) -> None:
    shardings = [
        sharding
        for mesh in (
            Mesh.of(a=4),
            Mesh.of(a=2, b=2),
            Mesh.of(a=2, b=2, device_ids=(0, 2, 1, 3)),
            Mesh.of(a=2, b=2, device_ids=(3, 1, 0, 2)),
        )
        for sharding in problems.full_axis_shardings(mesh, 2)
    ]
    shardings += [replace(sharding, uneven="chunk") for sharding in shardings if len(sharding.mesh.axes) > 1]
    held = [oracle.placement(sharding, shape) for sharding in shardings]
    for (first, mine), (second, theirs) in product(zip(shardings, held, strict=True), repeat=2):
        assert first.is_equivalent_to(second, shape) is (mine == theirs), (first, second)


# Duals and transposes.


@given(st.data())
def test_the_dual_changes_replicated_and_partial(data: st.DataObject) -> None:
    sharding = data.draw(strategies.shardings(reductions=["sum"]))
    dual = sharding.dual()
    assert dual.dims == sharding.dims
    ones = [Axis(name) for name, size in sharding.mesh.axes if size == 1]
    assert sorted(map(str, (*dual.unreduced, *ones))) == sorted(map(str, {*sharding.unused_axes(), *ones}))
    back = dual.dual()
    assert back.replicated == ()
    assert back.unreduced == tuple(axis for axis in sharding.unreduced if axis not in ones)
    shape = data.draw(strategies.shapes(len(sharding.dims)))
    assert back.is_equivalent_to(sharding, shape)


KINDS_ACROSS = {"AllGather": ["ReduceScatter"], "Slice": ["ToUnreduced"], "AllToAll": ["AllToAll"]}
"""What the one step of a plan becomes, whatever the shardings around it."""
WITHOUT_COPIES = {"Permute": ["Permute"], "Exchange": ["Exchange"]}
"""What it becomes where nothing is replicated, on either side."""


@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 2), (2, 3)], ids=str)
def test_a_transposed_step_is_of_the_kind_across(sizes: tuple[int, ...]) -> None:
    mesh = Mesh.of(zip(problems.NAMES, sizes, strict=False))
    shardings = list(problems.full_axis_shardings(mesh, 2))
    seen = set()
    for source, target in product(shardings, repeat=2):
        made = plan(source, target, (24, 24), "float32")
        back = made.transpose()
        there = back.transpose()
        assert (back.source, back.target) == (target.dual(), source.dual())
        assert (there.source, there.target) == (source, target)
        kinds, across = ([step.kind for step in each.steps] for each in (made, back))
        if not kinds:
            assert across == []
        elif len(kinds) == 1:
            copies = source.unused_axes() or target.unused_axes()
            expected = KINDS_ACROSS.get(kinds[0]) or (None if copies else WITHOUT_COPIES[kinds[0]])
            if expected:
                seen.add(kinds[0])
                assert across == expected, (source, target)
                assert [step.kind for step in there.steps] == kinds, (source, target)
                assert made.total_received_bytes == back.total_received_bytes == there.total_received_bytes
                assert made.received_bytes == back.received_bytes == there.received_bytes
    assert seen >= {*KINDS_ACROSS, "Permute"}


def consistent_tiles(rng: Random, sharding: Sharding, shape: tuple[int, ...]) -> dict[int, Array]:
    """Tiles of random integers that a tensor of this sharding can have: replicas agree, partial values are any."""
    values = [
        np.array([rng.randint(-9, 9) for _ in range(prod(shape))], dtype=np.int64).reshape(shape)
        for _ in range(oracle.class_count(sharding))
    ]
    return oracle.partial_tiles(values, sharding)


def inner(first: dict[int, Array], second: dict[int, Array]) -> int:
    """The sum over devices of the products of two tiles: of a tensor and one of its dual, the true inner product."""
    assert set(first) == set(second)
    return sum(int((first[device] * second[device]).sum()) for device in first)


def check_adjoint(made: Plan, rng: Random) -> None:
    """<A x, y> == <x, At y>, where y is a tensor of the dual of the target."""
    back = made.transpose()
    assert (back.source, back.target) == (made.target.dual(), made.source.dual())
    x = consistent_tiles(rng, made.source, made.shape)
    y = consistent_tiles(rng, back.source, made.shape)
    assert inner(x, consistent_tiles(rng, back.target, made.shape)) is not None
    forward, backward = engine.run(made, x), engine.run(back, y)
    assert inner(forward, y) == inner(x, backward)
    values = oracle.values(made.source, made.shape, x), oracle.values(back.source, made.shape, y)
    assert inner(forward, y) == int((values[0] * values[1]).sum())


@settings(max_examples=150)
@given(st.data())
def test_a_transposed_plan_is_the_adjoint(data: st.DataObject) -> None:
    source = data.draw(strategies.shardings(strategies.meshes(most_devices=12), reductions=["sum"]))
    target = beside(data, source, reductions=["sum"])
    shape = data.draw(strategies.shapes(len(source.dims), most=5))
    check_adjoint(plan(source, target, shape, "int64"), data.draw(st.randoms(use_true_random=False)))


def test_random_transposed_plans_are_adjoints() -> None:
    done = 0
    for seed in range(400):
        source, target, shape, _ = problems.draw_reduction(Random(seed))
        if source.reduction == target.reduction == "sum" and not source.mesh.is_maximal and not target.mesh.is_maximal:
            check_adjoint(plan(source, target, shape, "int64"), Random(seed))
            done += 1
    assert done > 100


# Composition.


@settings(max_examples=150)
@given(st.data())
def test_by_way_of_a_third_is_no_less(data: st.DataObject) -> None:
    """Two plans in a row give the tiles of the direct one, which receives no more on any device."""
    source = data.draw(strategies.shardings(strategies.meshes(most_devices=16), unreduced=False))
    middle, target = (beside(data, source, unreduced=False) for _ in range(2))
    shape = data.draw(strategies.shapes(len(source.dims), most=6))
    ends = [(source, middle), (middle, target), (source, target)]
    first, second, direct = (plan(*pair, shape, "int64") for pair in ends)
    tiles = oracle.tiles(oracle.encoded(shape), source)
    found = engine.run(second, engine.run(first, tiles))
    checkers.check_tiles(found, engine.run(direct, tiles))
    checkers.check_tiles(found, oracle.tiles(oracle.encoded(shape), target))

    def received(made: Plan, device: int) -> int:
        return made.received_bytes_on(device) if device in made.devices else 0

    for device in {*first.devices, *second.devices, *direct.devices}:
        if device in target.mesh:
            assert received(direct, device) <= received(first, device) + received(second, device), f"device {device}"


@given(st.data())
def test_steps_of_two_plans_make_one(data: st.DataObject) -> None:
    source = data.draw(strategies.shardings(strategies.meshes(most_devices=16), unreduced=False))
    middle, target = (beside(data, source, unreduced=False) for _ in range(2))
    shape = data.draw(strategies.shapes(len(source.dims), most=6))
    assume({*middle.mesh.devices} <= {*source.mesh.devices, *target.mesh.devices})
    first, second = plan(source, middle, shape, "int64"), plan(middle, target, shape, "int64")
    assume(first.steps and second.steps)
    both = Plan(Reshard.of(source, target, shape, first.dtype), first.steps + second.steps)
    checkers.check_chain(both)
    checkers.check_run(both)
    checkers.check_peak(both)
    assert both.rounds == first.rounds + second.rounds
    assert both.total_received_bytes == first.total_received_bytes + second.total_received_bytes
    assert both.received_bytes == max(both.received_bytes_on(device) for device in both.devices)


def test_a_plan_by_way_of_other_devices() -> None:
    """Two devices hand their tensor to two others, who hand it back: all four receive."""
    near, far = Sharding.of(Mesh.of(x=2), "x"), Sharding.of(Mesh.of(x=2, device_ids=(7, 5)), None)
    there, back = plan(near, far, (4,), "int64"), plan(far, near, (4,), "int64")
    both = Plan(Reshard.of(near, near, (4,), there.dtype), there.steps + back.steps)
    assert both.devices == (0, 1, 5, 7)
    assert [both.received_bytes_on(device) for device in both.devices] == [16, 16, 32, 32]
    assert (both.received_bytes, both.total_received_bytes) == (32, 96)
    checkers.check_run(both)


# Values.


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans of every kind, on meshes with names of any kind."""
    odd = draw(st.booleans())
    source = draw(strategies.shardings(strategies.meshes(most_devices=12, odd_names=odd), reductions=["sum", "max"]))
    mesh = source.mesh if draw(st.booleans()) else draw(strategies.meshes(most_devices=12))
    target = draw(strategies.shardings(mesh, ndim=len(source.dims), reductions=["sum", "max"]))
    shape = draw(strategies.shapes(len(source.dims), most=6))
    return plan(source, target, shape, draw(st.sampled_from(["int8", "bf16", "float32", "uint64"])))


@given(plans())
def test_a_plan_as_json_is_read_back(made: Plan) -> None:
    text = made.to_json()
    back = Plan.from_json(text)
    assert back == made
    assert back.to_json() == text
    given_text = json.loads(text)
    assert (given_text["received_bytes"], given_text["rounds"]) == (made.received_bytes, made.rounds)
    assert Plan.from_json(json.dumps(given_text)) == made


NAMES: dict[str, Any] = {
    thing.__name__: thing
    for thing in (
        *(Axis, Box, Cuts, DimSharding, Digit, Digits, DType, Layout, Mesh, Options, Piece),
        *(Plan, Refinement, Reshard, Sharding, Step, Tiling, Unreduced),
    )
}


def check_value(value: Any) -> None:
    """One spelling, no changes, and the same again by pickle, copy and repr."""
    copies = [copy.copy(value), copy.deepcopy(value)]
    copies += [pickle.loads(pickle.dumps(value, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    if not re.search(r"<|\.\.\.", repr(value)):  # of what is made of much a repr tells, and makes nothing
        copies.append(eval(repr(value), NAMES))
    for other in copies:
        assert type(other) is type(value)
        assert other == value
        assert hash(other) == hash(value)
        assert repr(other) == repr(value)
        assert str(other) == str(value)
    if hasattr(value, "__dataclass_fields__"):
        with pytest.raises((FrozenInstanceError, AttributeError)):
            setattr(value, next(iter(value.__dataclass_fields__)), None)


@given(plans())
def test_every_value_is_the_same_again(made: Plan) -> None:
    assert made.received_bytes >= 0  # what is derived is not in the way
    check_value(made)
    for step in made.steps:
        check_value(step)
        for move in step.moves:
            check_value(move.exchange.target)
    for sharding in (made.source, made.target):
        check_value(sharding)
        check_value(sharding.mesh)
        check_value(sharding.layout)
        check_value(Tiling.of(sharding, made.shape))
        check_value(sharding.box(sharding.mesh.device_at(0), made.shape))
        for dim in sharding.dims:
            check_value(dim)
        for axis in sharding.axes():
            check_value(axis)
    check_value(made.dtype)


def test_further_values_are_the_same_again() -> None:
    for value in (Mesh.of(), Mesh.of(device_ids=(4,)), Mesh.of({"a b": 2}), Box(), Digit(2, 3)):
        check_value(value)
    check_value(Piece(0, 1, Box([(0, 1)]), 2))
    check_value(Sharding(Mesh.of(device_ids=(4,)), ()))
    for dtype in DTYPES.values():
        check_value(dtype)
    refusal = pickle.loads(pickle.dumps(ReshardError("bad-shape", "a shape")))
    assert (refusal.code, str(refusal), type(refusal)) == ("bad-shape", "a shape", ReshardError)
    assert all(refusal == refusal.lower() and not sentence.endswith(".") for refusal, sentence in CODES.items())


@given(st.data())
def test_unlike_values_are_unlike(data: st.DataObject) -> None:
    sharding = data.draw(strategies.shardings())
    mesh = sharding.mesh
    others: list[Any] = [
        replace(sharding, uneven="chunk" if sharding.uneven == "ceil" else "ceil"),
        replace(sharding, dims=(*sharding.dims, DimSharding())),
        replace(sharding, dims=(*sharding.dims, DimSharding((), True))),
        replace(sharding, mesh=Mesh((*mesh.axes, ("new", 2)))),
        None,
        str(sharding),
    ]
    assert all(sharding != other for other in others)
    assert len({sharding, *others}) == len(others) + 1


# Order of devices.


@pytest.mark.parametrize("factors", [(2, 3), (4, 2), (2, 2, 3), (6, 4), (2, 3, 5), (1, 4, 1, 3)], ids=str)
def test_orders_that_are_transpositions_of_digits(factors: tuple[int, ...]) -> None:
    for seed in range(20):
        ids = problems.transposed(Random(seed), factors)
        places = np.argsort(ids)
        order = Transposition.of(places)
        assert order is not None
        pairs = zip(order.before, order.after, strict=True)
        rebuilt = sum(before.value(np.arange(len(ids))) * after.stride for before, after in pairs)
        assert np.array_equal(rebuilt, places)
        assert order.before.size == order.after.size == len(ids)
        assert order.reversed().reversed() == order


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_orders_by_brute_force(count: int) -> None:
    """An order is a transposition of digits where some factorisation of the count has it, and else none."""
    found = {
        tuple(np.argsort(problems.transposed_to(order, factors)).tolist())
        for factors in problems.factorisations(count)
        for order in permutations(range(len(factors)))
    }
    for ids in permutations(range(count)):
        assert (Transposition.of(np.array(ids)) is not None) is (ids in found), ids


# The cache of plans.


def questions(count: int) -> Iterator[tuple[Sharding, Sharding, tuple[int, ...]]]:
    for seed in range(count):
        source, target, shape, _ = problems.draw_problem(Random(seed))
        yield source, target, shape


def in_threads(work: Callable[[int], Any], threads: int = 8) -> list[Any]:
    """What each of several threads finds that start at the same moment."""
    start = Barrier(threads)

    def begin(number: int) -> Any:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads)))


def test_much_that_was_made_at_work_counts_as_old() -> None:
    """It is not gone through soon after; a full collection finds what of it is garbage."""

    class Ring:
        """Which holds itself."""

        def __init__(self) -> None:
            self.own = self

    gc.collect()
    with uncollected():
        kept = [[number] for number in range(MANY)]
        ring = weakref.ref(Ring())
    assert not gc.get_count()[0] > len(kept) // 2
    gc.collect(1)
    assert ring() is not None
    gc.collect()
    assert ring() is None


def test_garbage_is_collected_again_after_the_last_at_work() -> None:
    """Who leaves first does not disturb who came later, and threads that come and go leave all as it was."""
    first, second = uncollected(), uncollected()
    with ExitStack() as later:
        with first:
            later.enter_context(second)
        assert not gc.isenabled()
    assert gc.isenabled()

    def come_and_go(_: int) -> None:
        for _ in range(1000):
            with uncollected():
                pass

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(come_and_go)
    finally:
        sys.setswitchinterval(interval)
    assert gc.isenabled()


def test_threads_share_one_cache() -> None:
    """Eight threads ask the same questions, each in an order of its own, and read every figure of shared plans."""
    asked = list(questions(60))
    cache_clear()
    expected = [figures(plan(*question)) for question in asked]
    cache_clear()

    def ask(number: int) -> list[Any]:
        order = Random(number).sample(range(len(asked)), len(asked))
        found = {i: figures(plan(*asked[i])) for i in order}
        return [found[i] for i in range(len(asked))]

    for found in in_threads(ask):
        assert found == expected


def figures(made: Plan) -> tuple[Any, ...]:
    bytes_ = (made.received_bytes, made.total_received_bytes, made.lower_bound_bytes, made.total_lower_bound_bytes)
    return (*bytes_, made.peak_bytes, made.rounds, made.bound_kind, hash(made), [step.kind for step in made.steps])


def test_a_plan_is_made_once() -> None:
    mesh = Mesh.of(x=4)
    cache_clear()
    ends = Sharding.of(mesh, "x"), Sharding.of(mesh, None)
    first = plan(*ends, (8,), "float32")
    assert plan(*ends, [8], "f32") is first
    assert plan(*ends, (np.int64(8),), np.dtype("float32")) is first
    assert plan(*ends, (8,)) is first
    assert plan(*ends, (8,), "float64") is not first
    assert plan(*ends, (12,)) is not first
    assert plan(*ends[::-1], (8,)) is not first
    cache_clear()
    assert plan(*ends, (8,)) is not first
    assert plan(*ends, (8,)) == first


def test_the_cache_is_bounded() -> None:
    mesh = Mesh.of(x=2)
    ends = Sharding.of(mesh, "x"), Sharding.of(mesh, None)
    cache_clear()
    first = plan(*ends, (2,))
    for size in range(3, CACHED_PLANS + 4):
        plan(*ends, (size,))
    assert plan(*ends, (CACHED_PLANS + 3,)) is plan(*ends, (CACHED_PLANS + 3,))
    assert plan(*ends, (2,)) is not first
    cache_clear()


def test_the_version_and_the_names() -> None:
    assert reshard.__version__.count(".") == 2
    assert all(hasattr(reshard, name) for name in reshard.__all__)
