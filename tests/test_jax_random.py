"""Random reshards inside jit: what every device holds, what it received by our own HLO, and the derivatives."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402
from jax_hlo import Collective, collectives, received_bytes  # noqa: E402
from jax_problems import Problem, draw_problem, draw_spec  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.jax import reshard, sharding_of  # noqa: E402
from reshard.plans import Plan  # noqa: E402

pytestmark = pytest.mark.engine

BATCH = 10
BATCHES = [pytest.param(number, marks=[] if number < 6 else [pytest.mark.slow]) for number in range(30)]
WAYS = ("explicit", "source=", "asked")
"""How the source is known: from the type, from `source=`, or by XLA."""

LISTED = {
    "Slice": set(),
    "Permute": {"collective-permute"},
    "AllGather": {"all-gather"},
    "AllToAll": {"all-to-all"},
    "ReduceScatter": {"reduce-scatter"},
    "AllReduce": {"all-reduce"},
    "Exchange": {"collective-permute", "all-to-all", "all-gather"},
}
"""The collectives that a kind of step stands for; of those of an Exchange it is one kind alone."""


def plan_of(source: NamedSharding, target: NamedSharding, shape: tuple[int, ...], dtype: object) -> Plan:
    return rs.plan(sharding_of(source, ndim=len(shape)), sharding_of(target, ndim=len(shape)), shape, dtype)


def assert_listed(found: list[Collective], plan: Plan) -> None:
    """No collective that the plan does not list, and one for each step that is named as one."""
    kinds = [one.kind for one in found]
    assert set(kinds) <= set().union(*(LISTED[step.kind] for step in plan.steps), set()), f"{kinds}\n{plan}"
    assert len(set(kinds)) <= len(plan.steps)
    if all(step.kind not in ("Exchange", "Slice") for step in plan.steps):
        assert len(kinds) == len(plan.steps)


def assert_bound(found: list[Collective], plan: Plan) -> None:
    """Every device receives its lower bound."""
    devices = plan.target.mesh.devices
    assert received_bytes(found, len(devices)) == [plan.lower_bound_bytes_on(device) for device in devices], plan


def assert_same(result: jax.Array, right: jax.Array) -> None:
    """Bit for bit on every device."""
    there = {shard.device: np.asarray(shard.data) for shard in right.addressable_shards}
    assert len(there) == len(result.addressable_shards)
    for shard in result.addressable_shards:
        assert np.asarray(shard.data).tobytes() == there[shard.device].tobytes()
        assert shard.data.shape == there[shard.device].shape


@pytest.mark.parametrize("batch", BATCHES)
def test_every_device_holds_its_tile_and_received_its_bound(batch: int) -> None:
    rng = Random(4000 + batch)
    for number in range(BATCH):
        way = WAYS[number % 3]
        problem = draw_problem(rng, AxisType.Explicit if way == "explicit" else AxisType.Auto)
        x, target = problem.there(), problem.target
        source = problem.source if way == "source=" else None
        program = jax.jit(lambda x, t=target, s=source: reshard(x, t, s)).lower(x).compile()
        result = program(x)
        assert_same(result, jax.device_put(problem.array, target))
        assert result.sharding.is_equivalent_to(target, x.ndim), str(problem)
        plan = plan_of(problem.source, target, x.shape, x.dtype)
        found = collectives(program.as_text(), target.mesh.size)
        assert_listed(found, plan)
        assert_bound(found, plan)


GRADIENTS = [pytest.param(number, marks=[] if number < 1 else [pytest.mark.slow]) for number in range(5)]


@pytest.mark.parametrize("batch", GRADIENTS)
def test_derivatives_are_those_of_jax_and_move_what_the_plan_back_lists(batch: int) -> None:
    rng = Random(5000 + batch)
    for number in range(BATCH if batch else BATCH // 2):
        problem = draw_problem(rng, AxisType.Explicit, dtypes=("float32",))
        if number % 2:
            check_batched_derivative(rng, problem)
        else:
            check_derivative(rng, problem)


def check_derivative(rng: Random, problem: Problem) -> None:
    x, target = problem.there(), problem.target
    weights = jax.device_put(np.float32(rng.random()) * problem.array + 1, target)
    found = [
        jax.jit(jax.grad(lambda x, to=to: (weights * to(x, target) ** 3).sum()))(x)
        for to in (reshard, jax.sharding.reshard)
    ]
    assert_same(*found)
    second = [
        jax.jit(lambda x, to=to: jax.jvp(jax.grad(lambda x: (weights * to(x, target) ** 3).sum()), (x,), (x,))[1])(x)
        for to in (reshard, jax.sharding.reshard)
    ]
    assert_same(*second)
    back = jax.jit(lambda x, given: jax.vjp(lambda x: reshard(x, target), x)[1](given)[0]).lower(x, weights).compile()
    plan = plan_of(target, problem.source, x.shape, x.dtype)
    collected = collectives(back.as_text(), target.mesh.size)
    assert_listed(collected, plan)
    assert_bound(collected, plan)


def check_batched_derivative(rng: Random, problem: Problem) -> None:
    """The first dim is a batch, sharded as in the source, on both ends."""
    mesh = problem.source.mesh
    names = mesh.axis_names
    batch, rest = names[0], names[1:]
    ends = [draw_spec(rng, rest, 2) for _ in range(2)]
    array = np.arange(mesh.size**3 // 1 if mesh.size < 9 else mesh.size**2 * 32, dtype=np.float32) % 97
    array = array.reshape(mesh.shape[batch] * 1, -1, mesh.size)
    array = array[:, : array.shape[1] // mesh.size * mesh.size]
    source, target = (NamedSharding(mesh, PartitionSpec(batch, *end)) for end in ends)
    inner = NamedSharding(mesh, ends[1])
    x = jax.device_put(array, source)
    weights = jax.device_put(array + 1, target)

    def mapped(to: object) -> object:
        return jax.vmap(lambda x: to(x, inner))

    found = [
        jax.jit(jax.grad(lambda x, to=to: (weights * mapped(to)(x) ** 2).sum()))(x)
        for to in (reshard, jax.sharding.reshard)
    ]
    assert_same(*found)
    for ends_, function, given in (
        ((source, target), mapped(reshard), (x,)),
        ((target, source), lambda x, g: jax.vjp(mapped(reshard), x)[1](g)[0], (x, weights)),
    ):
        plan = plan_of(*ends_, x.shape, x.dtype)
        collected = collectives(jax.jit(function).lower(*given).compile().as_text(), mesh.size)
        assert_listed(collected, plan)
        assert_bound(collected, plan)
