"""Plans where axes of a mesh do not nest in the hosts of a network."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import oracle
import pytest
from problems import draw_sharding, switches

import reshard as rs
from reshard.network import host_bytes
from reshard.planner import plan

HOSTS_OF_SIX = switches((6, 900e9), (2, 20e9))
MESHES = (rs.Mesh.of(data=3, model=4), rs.Mesh.of(a=3, b=2, c=2), rs.Mesh.of(a=4, b=3))


def goes_by_hosts(made: rs.Plan) -> bool:
    """Whether a tensor lies on a mesh of hosts on its way."""
    return any("host" in step.after.mesh.sizes for share in made.shares for step in share.steps)


@pytest.mark.parametrize("partial", [False, True])
def test_every_device_has_its_tile(partial: bool) -> None:
    rng, by_hosts = random.Random(int(partial)), 0
    for _ in range(30):
        mesh, shape = rng.choice(MESHES), (rng.choice((36, 48, 50)), rng.choice((72, 96, 500)))
        source = draw_sharding(rng, mesh, 2, partial=partial)
        target = draw_sharding(rng, mesh, 2)
        made = plan(source, target, shape, "int64", network=HOSTS_OF_SIX)
        assert made.seconds is not None
        assert made.lower_bound_seconds is not None
        assert made.seconds >= made.lower_bound_seconds * (1 - 1e-9)
        parts = [
            np.arange(shape[0] * shape[1]).reshape(shape) * (number + 1) for number in range(oracle.class_count(source))
        ]
        tiles: Any = rs.numpy.run(made, oracle.partial_tiles(parts, source))
        for device, wanted in oracle.tiles(oracle.reduced(parts, source), target).items():
            np.testing.assert_array_equal(tiles[device], wanted)
        by_hosts += goes_by_hosts(made)
    assert by_hosts


@pytest.mark.parametrize(("model", "data"), [(16, 18), (32, 9), (48, 6)])
def test_weights_cross_to_each_host_once(model: int, data: int) -> None:
    """As they are gathered along `data` before a layer, with a `model` axis that is no part of 72 devices."""
    mesh, network = rs.Mesh.of(data=data, model=model), rs.Network.preset("gb200-nvl72-4x72")
    source, target = rs.Sharding.of(mesh, "data", "model"), rs.Sharding.of(mesh, None, "model")
    made = plan(source, target, (36864, 27648), "bf16", network=network)
    lacking = 3 / 4 * 36864 * 27648 * 2
    assert (made.seconds or 0.0) <= 1.7 * (made.lower_bound_seconds or 0.0)
    for step in made.steps:
        assert host_bytes(step, network, 1).max() <= lacking * 1.34


def test_what_is_partial_is_combined_in_groups_of_hosts() -> None:
    mesh, network = rs.Mesh.of(data=6, model=48), rs.Network.preset("gb200-nvl72-4x72")
    source, target = rs.Sharding.of(mesh, "data", None, unreduced="model"), rs.Sharding.of(mesh, "data", "model")
    made = plan(source, target, (36864, 27648), "bf16", network=network)
    assert (made.seconds or 0.0) <= 1.3 * (made.lower_bound_seconds or 0.0)
