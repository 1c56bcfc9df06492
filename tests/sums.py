"""Partial values that are drawn, and plans that combine them on networks."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import oracle
from numpy.typing import NDArray

from reshard import Mesh, Sharding, plan
from reshard.plans import Plan


def drawn(mesh: Mesh, rng: Random) -> tuple[Sharding, Sharding]:
    """Every axis on either dim, on none, or partial in the source."""
    ends = []
    for is_source in (True, False):
        dims: list[list[str]] = [[], []]
        unreduced = []
        for axis in rng.sample(list(mesh.sizes), len(mesh.sizes)):
            where = rng.random()
            if is_source and where < 0.5:
                unreduced.append(axis)
            elif where < 0.8:
                dims[rng.randrange(2)].append(axis)
        ends.append(Sharding.of(mesh, *dims, unreduced=unreduced))
    return ends[0], ends[1]


def small_sums(count: int, seed: int) -> Iterator[tuple[Plan, dict[int, NDArray[Any]]]]:
    """Plans of small tensors on networks of 8 devices, even and uneven, with tiles whose sums depend on the order."""
    rng, fresh = Random(seed), np.random.default_rng(seed)
    while count:
        mesh = Mesh.of(**dict(zip("abc", rng.choice([(2, 2, 2), (2, 4), (4, 2), (8,)]), strict=False)))
        source, target = drawn(mesh, rng)
        if source.unreduced:
            count -= 1
            network = rng.choice(["h100-8", "h100-2x4", "tpu-v5e-2x4", "tpu-v4p-2x2x2"])
            shape = rng.choice([(8, 8), (5, 12)])
            made = plan(source, target, shape, "float32", network=network)
            parts = [fresh.random(shape, np.float32) for _ in range(oracle.class_count(source))]
            yield made, oracle.partial_tiles(parts, source)
