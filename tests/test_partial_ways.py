"""Whether partial values come out combined where plans for networks combine them inside hosts first, and in parts."""

from __future__ import annotations

from random import Random

import numpy as np
import oracle
import pytest
from simulated import simulated_seconds
from time_bounds import NETWORKS

from reshard import Mesh, Network, Sharding, plan
from reshard import numpy as engine
from reshard.network import Level
from reshard.planner import cache_clear


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


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_values_come_out_combined(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By sums of whole numbers; small tensors here take the ways that only large ones are worth looking for."""
    monkeypatch.setattr("reshard.planner.planning.SMALL_BYTES", 0)
    cache_clear()
    mesh, network = NETWORKS[name]
    rng, fresh = Random(f"{name} {count}"), np.random.default_rng(count)
    in_parts = 0
    while count:
        source, target = drawn(mesh, rng)
        if not source.unreduced:
            continue
        count -= 1
        made = plan(source, target, (64, 96), "int64", network=network)
        parts = [fresh.integers(0, 50, made.shape) for _ in range(oracle.class_count(source))]
        received: dict[int, int] = {}
        tiles = engine.run(made, oracle.partial_tiles(parts, source), received_bytes=received)
        for device, tile in oracle.tiles(sum(parts), target).items():
            np.testing.assert_array_equal(tiles[device], tile)
        assert max(received.values()) == made.received_bytes
        assert (made.lower_bound_seconds or 0.0) <= (made.seconds or 0.0) * (1 + 1e-9)
        in_parts += made.parts > 1
    cache_clear()
    assert in_parts


def test_inside_hosts_first_by_hand() -> None:
    """64 KiB of parts on 2 hosts of 4: 48 KiB at 9 inside, then 8 KiB at 1 from each device, in parts at once."""
    network = Network((Level(1, 4, "switch", 9, 0), Level(4, 2, "switch", 1, 0)))
    mesh = Mesh.of(h=2, g=4)
    source, target = Sharding.of(mesh, None, unreduced=("h", "g")), Sharding.of(mesh, ("h", "g"))
    made = plan(source, target, (2**16,), "int8", network=network)
    assert [step.after.text() for step in made.steps] == ['[{parts(2), "g"}], unreduced={"h"}', '[{"h", "g"}]']
    assert made.step_seconds == (3 * 2**14 / 9, 2**13)
    assert made.parts == 128
    assert made.seconds == pytest.approx(2**13 * (1 + 6 / 9 / 128))
    assert made.lower_bound_seconds == 2**13
    assert simulated_seconds(made, network) == pytest.approx(made.seconds, rel=0.05)


def test_in_every_host_alike_by_hand() -> None:
    """64 KiB of parts in both of 2 hosts of 4: in each host 48 KiB at 9, or in one, with 8 KiB at 1 to the other.

    Half of the tensor each way takes 3/4 of the time of the better one.
    """
    network = Network((Level(1, 4, "switch", 9, 0), Level(4, 2, "switch", 1, 0)))
    mesh = Mesh.of(h=2, g=4)
    source, target = Sharding.of(mesh, None, unreduced="g"), Sharding.of(mesh, "g")
    made = plan(source, target, (2**14,), "float32", network=network)
    assert [[(step.kind, step.near) for step in share.steps] for share in made.shares] == [
        [("ReduceScatter", 1)],
        [("Exchange", 0)],
    ]
    assert made.seconds == pytest.approx(0.75 * 3 * 2**14 / 9, rel=0.03)
    assert simulated_seconds(made, network) == pytest.approx(made.seconds, rel=0.05)
    parts = [np.random.default_rng(part).normal(size=made.shape).astype(np.float32) for part in range(4)]
    tiles = engine.run(made, oracle.partial_tiles(parts, source))
    for device, tile in oracle.tiles(np.sum(parts, axis=0), target).items():
        np.testing.assert_allclose(tiles[device], tile, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(tiles[device], tiles[(device + 4) % 8])  # replicas to the bit
