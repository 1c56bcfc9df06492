"""Borders in JAX are those of index arithmetic, and their gradients; nothing but borders is in the compiled program."""

from __future__ import annotations

from typing import Any

import dealt
import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402
from jax_hlo import collectives, received_bytes  # noqa: E402

import reshard as rs  # noqa: E402

pytestmark = pytest.mark.engine

P = PartitionSpec
CASES = [
    ((8,), P("x"), (16, 3), {0: (1, 2)}),
    ((8,), P("x"), (16,), {0: (5, 3)}),
    ((4,), P(None, "x"), (3, 8), {1: (2, 0), 0: (1, 1)}),
    ((2, 4), P("y", "x"), (8, 6), {0: (1, 1), 1: (1, 2)}),
    ((2, 4), P(("x", "y")), (16,), {0: (2, 2)}),
    ((2, 4), P(("y", "x")), (8,), {0: (9, 0)}),
    ((2, 4), P("y"), (8, 2), {0: (1, 1)}),
]


def placed(shape: tuple[int, ...], spec: Any, size: tuple[int, ...], axis_type: Any = AxisType.Auto) -> Any:
    """An array of numbers on a mesh."""
    names = ("x", "y")[: len(shape)]
    mesh = jax.make_mesh(shape, names, (axis_type,) * len(shape), devices=jax.devices()[: int(np.prod(shape))])
    return jax.device_put(np.arange(1.0, np.prod(size) + 1).reshape(size), NamedSharding(mesh, spec))


@pytest.mark.parametrize(
    ("mesh", "spec", "size", "widths", "edge"),
    [
        pytest.param(*case, edge, marks=[pytest.mark.slow] if (number + shift) % 2 else [])
        for number, case in enumerate(CASES)
        for shift, edge in enumerate(["wrap", "pad"])
    ],
)
def test_every_device_stores_its_window(mesh: Any, spec: Any, size: Any, widths: Any, edge: str) -> None:
    x = placed(mesh, spec, size)
    sharding = rs.jax.sharding_of(x.sharding, None, x.ndim).with_halo(widths, edge)
    expected = dealt.cut(np.asarray(x), sharding)
    found = rs.jax.halo(x, widths, edge)
    assert found.sharding.is_equivalent_to(x.sharding, x.ndim)
    for shard in found.addressable_shards:
        assert np.array_equal(np.asarray(shard.data), expected[shard.device.id]), shard.device
    weights = np.random.default_rng(0).integers(0, 9, found.shape).astype(x.dtype)
    seen: set[int] = set()
    places = {shard.device.id: shard.index for shard in found.addressable_shards}
    once = {}
    for device, index in places.items():  # replicas of one window count once
        key = hash(str(index))
        once[device] = weights[index] * (key not in seen)
        seen.add(key)
    total = dealt.whole_sum(sharding, size, once)
    placement = x.sharding
    gradient = jax.grad(lambda x: (rs.jax.halo(x, widths, edge, placement) * weights).sum())(x)
    assert np.array_equal(np.asarray(gradient), total)


@pytest.mark.parametrize(("mesh", "spec", "size", "widths"), [CASES[1], CASES[2], CASES[3]])
def test_only_borders_are_in_the_program(mesh: Any, spec: Any, size: Any, widths: Any) -> None:
    x = placed(mesh, spec, size)
    devices = int(np.prod(mesh))
    program = jax.jit(lambda x: rs.jax.halo(x, widths, "wrap", placement))
    placement = x.sharding
    found = collectives(program.lower(x).compile().as_text(), devices)
    assert {one.kind for one in found} <= {"collective-permute"}
    sharding = rs.jax.sharding_of(placement, None, x.ndim)
    plan = rs.plan(sharding, sharding.with_halo(widths, "wrap"), size, "float32")
    assert max(received_bytes(found, devices)) == plan.lower_bound_bytes


def test_it_works_in_explicit_jit_and_is_refused_where_nothing_is_known() -> None:
    x = placed((8,), P("x"), (16,), AxisType.Explicit)
    with jax.set_mesh(x.sharding.mesh):
        found = jax.jit(lambda x: rs.jax.halo(x, {0: (1, 1)}))(x)
    assert np.array_equal(np.asarray(found), np.asarray(rs.jax.halo(x, {0: (1, 1)})))
    y = placed((8,), P("x"), (16,))
    for make, code in (
        (lambda: jax.jit(lambda y: rs.jax.halo(y, {0: (1, 1)}))(y), "unknown-mesh"),
        (lambda: rs.jax.halo(y, {0: (1, -1)}), "bad-window"),
        (lambda: rs.jax.halo(y, {1: (1, 1)}), "rank-mismatch"),
        (lambda: rs.jax.halo(jnp.ones(3), {0: (1, 1)}), "bad-argument"),
    ):
        with pytest.raises(rs.ReshardError) as refusal:
            make()
        assert refusal.value.code == code
