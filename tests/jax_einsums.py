"""What the tests of `reshard.jax.einsum` share: arrays of small integers, exact in any order, and what is expected.

What a result should be is NumPy's einsum of the whole arrays; what is moved is counted from the compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_hlo import Collective, collectives, received_bytes

import reshard as rs
from reshard.contraction import EinsumPlan
from reshard.jax import einsum, sharding_of
from reshard.network import Level, Network
from reshard.operations.pattern import Pattern
from reshard.steps import Step

Array = np.ndarray[Any, Any]
KINDS = (AxisType.Explicit, AxisType.Auto)
MATMUL = "ij,jk->ik"
ROWS, COLUMNS, WHOLE = P("x", None), P(None, "x"), P(None, None)
A, B = (np.arange(64, dtype=np.float32).reshape(8, 8) * n % 7 - 3 for n in (3, 5))
PLACES = {"R": WHOLE, "S0": ROWS, "S1": COLUMNS, "P": P(None, None, unreduced={"x"})}


def mesh_of(sizes: Sequence[int], kind: AxisType = AxisType.Explicit, devices: Sequence[Any] | None = None) -> Any:
    chosen = np.array(devices or jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return jax.sharding.Mesh(chosen, ("x", "y", "z")[: len(sizes)], axis_types=(kind,) * len(sizes))


def drawn_values(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> Array:
    return rng.integers(-4, 5, shape).astype(dtype)


def placed(whole: Array, sharding: NamedSharding, rng: np.random.Generator) -> Any:
    """An array on its devices; where it is unreduced they hold random parts of the sum, copies the same one."""
    mesh, cut = sharding.mesh, NamedSharding(sharding.mesh, P(*sharding.spec.partitions))
    axes = [mesh.axis_names.index(name) for name in sharding.spec.unreduced]
    first, *others = np.ndindex(*(mesh.devices.shape[axis] for axis in axes))
    drawn: dict[str, dict[tuple[int, ...], Array]] = {}
    tiles = []
    for coordinates, device in np.ndenumerate(mesh.devices):
        box = cut.devices_indices_map(whole.shape)[device]
        if str(box) not in drawn:
            parts = {part: drawn_values(rng, whole[box].shape, whole.dtype) for part in others}
            drawn[str(box)] = {first: reduce(np.subtract, parts.values(), whole[box]), **parts}
        tiles.append(jax.device_put(drawn[str(box)][tuple(coordinates[axis] for axis in axes)], device))
    return jax.make_array_from_single_device_arrays(whole.shape, sharding, tiles)


def assert_there(result: Any, target: NamedSharding, expected: Array) -> None:
    """The right values on every device; partial ones add up to them."""
    assert result.shape == expected.shape
    assert result.sharding.is_equivalent_to(target, result.ndim), (result.sharding, target)
    assert result.sharding.spec.unreduced == target.spec.unreduced
    cut = NamedSharding(target.mesh, P(*target.spec.partitions)).devices_indices_map(expected.shape)
    classes = int(np.prod([target.mesh.shape[name] for name in target.spec.unreduced]))
    copies = target.mesh.size // classes
    if classes == 1:
        for shard in result.addressable_shards:
            assert np.array_equal(shard.data, expected[cut[shard.device]])
        return
    total, often = np.zeros_like(expected), np.zeros(expected.shape, int)
    for shard in result.addressable_shards:
        total[cut[shard.device]] += np.asarray(shard.data)
        often[cut[shard.device]] += 1
    assert copies >= 1
    assert np.array_equal(total * classes, expected * often)


def found(function: Callable[..., Any], *given: Any) -> list[Collective]:
    return collectives(jax.jit(function).lower(*given).compile().as_text(), given[0].sharding.mesh.size)


def counted(function: Callable[..., Any], *given: Any) -> list[int]:
    return received_bytes(found(function, *given), given[0].sharding.mesh.size)


def plan_of(text: str, given: Sequence[Any], target: NamedSharding | None, **options: Any) -> EinsumPlan:
    ends = [sharding_of(x.sharding, ndim=x.ndim) for x in given]
    wanted = None if target is None else sharding_of(target, ndim=len(Pattern.of(text).output))
    shapes = [x.shape for x in given]
    return rs.einsum(text, *ends, shapes=shapes, dtype=given[0].dtype, target=wanted, **options)


def whole_einsum(text: str, *arrays: Array) -> Array:
    """By NumPy, of a pattern of letters without groups."""
    return np.asarray(np.einsum(text, *arrays))


def spread_evenly(step: Step) -> bool:
    return len(set(step.all_received_bytes().tolist())) == 1


def check(
    text: str, given: Sequence[Any], arrays: Sequence[Array], target: NamedSharding | None, **options: Any
) -> int:
    """In jit: values on every device, and bytes that are the plan's; the bytes of the busiest device."""
    mesh = given[0].sharding.mesh
    is_auto = AxisType.Auto in mesh.axis_types
    sources = [x.sharding for x in given] if is_auto else None
    program = jax.jit(lambda *xs: einsum(text, *xs, target=target, sources=sources, **options))
    compiled = program.lower(*given).compile()
    result = compiled(*given)
    got = received_bytes(collectives(compiled.as_text(), mesh.size), mesh.size)
    assert_there(result, target or result.sharding, whole_einsum(text, *arrays))
    plan = plan_of(text, given, target or result.sharding)
    said = [plan.received_bytes_on(device) for device in plan.target.mesh.devices]
    steps = [step for part in plan.parts() for by in part.plans for step in by.steps]
    if all(spread_evenly(step) for step in steps if step.kind == "AllReduce"):
        assert got == said
    else:
        assert max(got) <= max(said)  # of less than an element per device XLA's all-reduce loads all devices alike
    return max(got)


def loss(a: Any, b: Any) -> Any:
    """Of JAX's own product."""
    return ((a @ b) ** 2).sum()


def network_of(bandwidth: float, flops: float | None, latency_s: float = 0.0) -> Network:
    return Network((Level(1, 4, "ring", bandwidth, latency_s),), flops=flops)
