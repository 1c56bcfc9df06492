"""One of several processes under `jax.distributed`: the same reshards in all, each checks what its devices hold.

python jax_process.py PORT PROCESSES NUMBER SEED
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import lcm
from random import Random
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

LOCAL = 2
"""Devices of each process."""
EAGER, JITTED = 6, 6
"""Random problems of each kind."""


def begin(port: str, processes: int, number: int) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", LOCAL)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, number, initialization_timeout=60)


def draw_mesh(rng: Random, *, ordered: bool, kind: AxisType = AxisType.Auto) -> Mesh:
    """All devices of all processes, or in any order, so that neighbours are of different processes."""
    devices = jax.devices() if ordered else rng.sample(jax.devices(), len(jax.devices()))
    sizes = rng.choice(((2, len(devices) // 2), (len(devices),)))
    return Mesh(np.array(devices).reshape(sizes), ("x", "y")[: len(sizes)], axis_types=(kind,) * len(sizes))


def draw_end(rng: Random, mesh: Mesh) -> NamedSharding:
    homes: list[list[str]] = [[], [], []]
    for name in rng.sample(mesh.axis_names, len(mesh.axis_names)):
        rng.choice(homes).append(name)
    return NamedSharding(mesh, PartitionSpec(*map(tuple, homes[:2])))


def shards(end: NamedSharding, dim: int) -> int:
    entry = end.spec[dim] or ()
    names = entry if isinstance(entry, tuple) else (entry,)
    return int(np.prod([end.mesh.shape[name] for name in names]))


def whole(rng: Random, *ends: NamedSharding) -> np.ndarray[Any, Any]:
    shape = [lcm(*(shards(end, dim) for end in ends)) * rng.choice((1, 2, 3)) for dim in range(2)]
    return np.arange(shape[0] * shape[1], dtype=rng.choice(("float32", "int32", "int8"))).reshape(shape)


def assert_holds(result: jax.Array, target: NamedSharding, array: np.ndarray[Any, Any]) -> int:
    """What the devices of this process hold is what index arithmetic says; how many they are."""
    assert result.sharding.is_equivalent_to(target, array.ndim), (result.sharding, target)
    boxes = target.addressable_devices_indices_map(array.shape)
    assert {shard.device for shard in result.addressable_shards} == set(boxes)
    for shard in result.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), array[boxes[shard.device]])
    return len(boxes)


def eager(rng: Random, reshard: Callable[..., Any]) -> int:
    """From one mesh to another of the same devices, in the same order, in a transposed one, and in any."""
    mesh = draw_mesh(rng, ordered=True)
    turned = Mesh(np.array(jax.devices()).reshape(2, -1).T, ("y", "x"))
    others = [mesh, turned, draw_mesh(rng, ordered=False)]
    checked = 0
    for other in others:
        source, target = draw_end(rng, mesh), draw_end(rng, other)
        array = whole(rng, source, target)
        x = jax.make_array_from_callback(array.shape, source, lambda box, array=array: array[box])
        checked += assert_holds(reshard(x, target), target, array)
    return checked


def jitted(rng: Random, reshard: Callable[..., Any]) -> int:
    kind = rng.choice((AxisType.Auto, AxisType.Explicit))
    mesh = draw_mesh(rng, ordered=rng.random() < 0.5, kind=kind)
    source, target = draw_end(rng, mesh), draw_end(rng, mesh)
    array = whole(rng, source, target)
    x = jax.make_array_from_callback(array.shape, source, lambda box: array[box])
    given = source if kind == AxisType.Auto and rng.random() < 0.5 else None
    y = jax.jit(lambda x: reshard(2 * x, target, given))(x)
    return assert_holds(y, target, 2 * array)


def refused(reshard: Callable[..., Any]) -> str:
    """To the devices of one process alone: the code of the refusal."""
    from reshard import ReshardError

    source = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    target = NamedSharding(Mesh(np.array(jax.devices()[:LOCAL]), ("x",)), PartitionSpec("x"))
    x = jax.make_array_from_callback((8,), source, lambda box: np.arange(8)[box])
    try:
        reshard(x, target)
    except ReshardError as error:
        return error.code
    return "none"


def main(port: str, processes: int, number: int, seed: str) -> None:
    begin(port, processes, number)
    from reshard.jax import reshard

    rng = Random(seed)  # the same in all processes
    checked = sum(eager(rng, reshard) for _ in range(EAGER)) + sum(jitted(rng, reshard) for _ in range(JITTED))
    sys.stdout.write(f"RESULT {checked} {refused(reshard)}\n")
    sys.stdout.flush()
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
