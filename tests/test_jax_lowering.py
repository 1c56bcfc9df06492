"""A plan of any kind as one program of all devices: sub-axes, uneven cuts, boxes, partial values."""

from __future__ import annotations

from functools import partial
from math import prod
from random import Random

import numpy as np
import oracle
import pytest
from problems import Problem, draw_problem, draw_reduction

jax = pytest.importorskip("jax")

from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.jax.lowering import groups_of, run_on_device  # noqa: E402
from reshard.layout import Digit  # noqa: E402
from reshard.plans import Plan  # noqa: E402

pytestmark = pytest.mark.engine

SEEDS = [pytest.param(number, marks=[] if number < 4 else [pytest.mark.slow]) for number in range(24)]


def run(plan: Plan, tiles: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The plan over devices in a row, each tile in the corner of an array of the largest tile's shape."""
    count, names = plan.source.mesh.size, ("devices",)
    mesh = Mesh(np.array(jax.devices()[:count]), names)
    shape = plan.source.local_shape(plan.shape)
    stacked = np.zeros((count, *shape), next(iter(tiles.values())).dtype)
    for place, device in enumerate(plan.source.mesh.devices):
        stacked[(place, *(slice(size) for size in tiles[device].shape))] = tiles[device]
    spec = PartitionSpec("devices")

    def body(given: jax.Array) -> jax.Array:
        return run_on_device(plan, names, given[0])[None]

    program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    result = np.asarray(program(jax.device_put(stacked, NamedSharding(mesh, spec))))
    assert result.shape[1:] == plan.target.local_shape(plan.shape)
    return {
        device: result[(place, *(slice(size) for size in plan.target.box(device, plan.shape).shape))]
        for place, device in enumerate(plan.target.mesh.devices)
    }


def in_one_order(rng: Random, draw: object) -> Problem:
    """A problem over one list of devices that JAX has the dtypes for, with sums alone."""
    while True:
        problem = draw(rng)
        sums = all(end.reduction == "sum" for end in problem[:2])
        if problem.source.mesh.same_order_as(problem.target.mesh) and sums and problem.source.mesh.size > 1:
            wide = {"int64": "int32", "complex128": "complex64", "float64": "float32"}
            return problem._replace(dtype=wide.get(problem.dtype, problem.dtype))


@pytest.mark.parametrize("seed", SEEDS)
def test_moves_put_on_every_device_what_the_oracle_says(seed: int) -> None:
    rng = Random(f"moves {seed}")
    for _ in range(10):
        problem = in_one_order(rng, draw_problem)
        plan = rs.plan(problem.source, problem.target, problem.shape, problem.dtype)
        array = (np.arange(prod(problem.shape)) % 100).reshape(problem.shape).astype(jax.numpy.dtype(problem.dtype))
        found = run(plan, oracle.tiles(array, problem.source))
        for device, tile in oracle.tiles(array, problem.target).items():
            assert found[device].shape == tile.shape, str(problem)
            assert found[device].tobytes() == tile.tobytes(), f"{problem}\n{plan}"


@pytest.mark.parametrize("seed", SEEDS)
def test_partial_values_come_out_as_the_sums_they_stand_for(seed: int) -> None:
    rng = Random(f"sums {seed}")
    for number in range(8):
        problem = in_one_order(rng, draw_reduction)
        plan = rs.plan(problem.source, problem.target, problem.shape, problem.dtype)
        fresh = np.random.default_rng(number)
        classes = [
            fresh.integers(0, 50, problem.shape).astype(problem.dtype)
            for _ in range(oracle.class_count(problem.source))
        ]
        tiles = oracle.partial_tiles(classes, problem.source)
        found = run(plan, tiles)
        right = rs.numpy.run(plan, tiles)
        assert all(np.array_equal(found[device], right[device]) for device in right), f"{problem}\n{plan}"
        value = oracle.values(problem.target, problem.shape, found)
        assert np.array_equal(value, oracle.reduced(classes, problem.source)), str(problem)


def test_groups_are_the_devices_that_differ_in_the_digits_alone() -> None:
    """By hand, on x=2, y=4: along y, along x, along the minor half of y, and all in another order."""
    assert groups_of([Digit(1, 4)], 8) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups_of([Digit(4, 2)], 8) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert groups_of([Digit(1, 2)], 8) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups_of([Digit(1, 4), Digit(4, 2)], 8) == [[0, 4, 1, 5, 2, 6, 3, 7]]
    assert groups_of([Digit(1, 8)], 8) is None


@pytest.mark.parametrize("near", [1, 2, 4])
def test_senders_kept_near_serve_several_receivers(near: int) -> None:
    mesh = rs.Mesh.of(x=2, y=4)
    source, target = rs.Sharding.of(mesh, "y", None), rs.Sharding.of(mesh, "x", "y")
    step = rs.Step("Exchange", source, target, (8, 8), rs.plan(source, target, (8, 8)).dtype, near)
    plan = Plan(source, target, (8, 8), step.dtype, (step,))
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    found = run(plan, oracle.tiles(array, source))
    assert all(np.array_equal(found[device], tile) for device, tile in oracle.tiles(array, target).items())


def test_a_whole_tile_that_changes_place_is_neither_cut_nor_put() -> None:
    mesh = rs.Mesh.of(x=4, y=4)
    plan = rs.plan(rs.Sharding.of(mesh, "x", "y"), rs.Sharding.of(mesh, "y", "x"), (16, 16))
    devices = Mesh(np.array(jax.devices()[:16]), ("devices",))
    spec = PartitionSpec("devices")
    body = partial(run_on_device, plan, ("devices",))
    program = jax.shard_map(body, mesh=devices, in_specs=spec, out_specs=spec, check_vma=False)
    text = str(jax.make_jaxpr(program)(np.zeros((64, 4), np.float32)))
    assert "ppermute" in text
    assert "slice" not in text
