"""Random reshards that JAX can hold: whole axes, sizes that the shards divide."""

from __future__ import annotations

from math import lcm, prod
from random import Random
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

MESHES = ((2, 4), (2, 2, 2), (4, 4), (2, 4, 4), (2, 3), (6,), (32,), (3, 2, 2), (2, 1, 4))
DTYPES = ("float32", "int32", "bfloat16", "int8", "bool", "float16", "complex64", "uint16")
NAMES = ("x", "y", "z")


class Problem(NamedTuple):
    source: NamedSharding
    target: NamedSharding
    array: np.ndarray[Any, Any]

    def there(self) -> jax.Array:
        return jax.device_put(self.array, self.source)

    def __str__(self) -> str:
        return f"{self.source} -> {self.target.spec}, {self.array.shape} {self.array.dtype}"


def draw_spec(rng: Random, names: tuple[str, ...], ndim: int) -> PartitionSpec:
    """Every axis on some dim, or with probability 1/4 on none, in random order."""
    homes: list[list[str]] = [[] for _ in range(ndim + 1)]
    for name in rng.sample(names, len(names)):
        rng.choice(homes).append(name)
    return PartitionSpec(*(tuple(home) or None for home in homes[:ndim]))


def shards(spec: PartitionSpec, dim: int, mesh: Any) -> int:
    entry = spec[dim]
    names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
    return prod(mesh.shape[name] for name in names)


def values(rng: Random, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Small integers, all bits of which any dtype but bool holds."""
    fresh = np.random.default_rng(rng.randrange(2**32))
    return fresh.integers(0, 2 if dtype == "bool" else 100, shape).astype(jax.numpy.dtype(dtype))


def draw_problem(rng: Random, kind: AxisType, *, ndim: int = 3, dtypes: tuple[str, ...] = DTYPES) -> Problem:
    sizes = rng.choice(MESHES)
    devices = jax.devices()[: prod(sizes)]
    if rng.random() < 0.25:
        devices = rng.sample(devices, len(devices))
    mesh = Mesh(np.array(devices).reshape(sizes), NAMES[: len(sizes)], axis_types=(kind,) * len(sizes))
    ends = [draw_spec(rng, mesh.axis_names, ndim) for _ in range(2)]
    shape = tuple(lcm(*(shards(end, dim, mesh) for end in ends)) * rng.choice((1, 1, 2, 3)) for dim in range(ndim))
    if prod(shape) > 60_000:
        return draw_problem(rng, kind, ndim=ndim, dtypes=dtypes)
    array = values(rng, shape, rng.choice(dtypes))
    return Problem(NamedSharding(mesh, ends[0]), NamedSharding(mesh, ends[1]), array)
