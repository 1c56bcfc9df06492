"""One program over devices that have their own arrays: of one shape on all, stacked along the first dim.

>>> double = stacked_program(lambda tile: (tile * 2,), tuple(jax.devices()[:1]))
>>> device = jax.devices()[0]
>>> run_stacked(double, {device: [jax.numpy.arange(2)]}, (device,))[device][0].tolist()
[0, 2]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec

STACKED = PartitionSpec("devices")
StackedProgram = Callable[..., tuple[Any, ...]]
"""Over the devices of a flat mesh, from arrays stacked along their first dim to such arrays."""


@lru_cache(256)
def flat_mesh(devices: tuple[Any, ...]) -> JaxMesh:
    """The mesh of these devices along one axis."""
    return JaxMesh(np.array(devices, dtype=object), ("devices",))


def stacked_program(
    body: StackedProgram, devices: tuple[Any, ...], donate_argnums: tuple[int, ...] = ()
) -> StackedProgram:
    """What a device does, compiled for all of them at once."""
    mapped = jax.shard_map(body, mesh=flat_mesh(devices), in_specs=STACKED, out_specs=STACKED, check_vma=False)
    return jax.jit(mapped, donate_argnums=donate_argnums)


def stacked(arrays: list[Any], devices: tuple[Any, ...]) -> jax.Array:
    """Arrays of one shape, of those of the devices that this process has, as one."""
    shape = (arrays[0].shape[0] * len(devices), *arrays[0].shape[1:])
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(flat_mesh(devices), STACKED), arrays)


def run_stacked(
    program: StackedProgram, arrays: dict[Any, list[Any]], devices: tuple[Any, ...], *first: jax.Array
) -> dict[Any, list[Any]]:
    """What the program makes on each device of its arrays, of which this process has some.

    Args:
        program: of all the devices.
        arrays: per device of this process.
        devices: all of them, in their order.
        first: what is stacked already and goes before.
    """
    alike = zip(*(arrays[device] for device in devices if device in arrays), strict=True)
    with jax.set_mesh(flat_mesh(devices)):  # another that is set would be taken for that of the program
        outputs = program(*first, *(stacked(list(of_devices), devices) for of_devices in alike))
    results = [{shard.device: shard.data for shard in result.addressable_shards} for result in outputs]
    return {device: [of_devices[device] for of_devices in results] for device in arrays}
