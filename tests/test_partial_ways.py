"""Whether partial values come out combined where plans for networks combine them inside hosts first, and in parts."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from random import Random

import numpy as np
import oracle
import pytest
from simulated import simulated_seconds
from sums import drawn, small_sums
from time_bounds import NETWORKS

from reshard import Mesh, Network, Sharding, parse_sharding, plan
from reshard import numpy as engine
from reshard.network import Level
from reshard.planner import cache_clear


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_values_come_out_combined(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By sums of whole numbers; small tensors here take the ways that only large ones are worth looking for."""
    monkeypatch.setattr("reshard.planner.soonest.is_small", lambda reshard: False)
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


def test_replicas_that_combine_by_themselves_are_equal_to_the_bit() -> None:
    by_themselves = 0
    for made, tiles in small_sums(400, seed=7):
        by_themselves += any(step.near == 1 for step in made.steps)
        results: dict[object, set[bytes]] = {}
        for device, tile in engine.run(made, tiles).items():
            results.setdefault(made.target.box(device, made.shape), set()).add(tile.tobytes())
        assert all(len(values) == 1 for values in results.values()), made
    assert by_themselves > 50


def test_small_values_are_combined_in_half_the_messages() -> None:
    """By hand: 2 hops of 1 us half round a ring of 4, in place of as many to scatter and as many to gather."""
    network = Network((Level(1, 4, "ring", 1e9, 1e-6), Level(4, 2, "ring", 1e9, 1e-6)))
    mesh = Mesh.of(x=2, y=4)
    source = Sharding.of(mesh, "x", None, unreduced="y")
    made = plan(source, Sharding.of(mesh, "x", None), (4, 8), "float32", network=network)
    assert [(step.kind, step.near) for step in made.steps] == [("AllReduce", 1)]
    assert made.seconds == pytest.approx(2e-6)
    assert made.received_bytes == 3 * 64
    moved = plan(source, Sharding.of(mesh, None, "x"), (4, 8), "float32", network=network)
    apart = plan(Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x"), (4, 8), "float32", network=network)
    assert moved.seconds == pytest.approx(made.seconds + apart.seconds)
    large = plan(source, Sharding.of(mesh, "x", None), (2**10, 2**10), "float32", network=network)
    assert [step.near for step in large.steps if step.kind == "AllReduce"] in ([], [0])
    limited = plan(source, Sharding.of(mesh, "x", None), (4, 8), "float32", network=network, memory_limit=10**6)
    assert all(step.near != 1 for step in limited.steps)


def test_uneven_sums_on_axes_astride_of_hosts_are_planned() -> None:
    """Axes of 6, 4 and 12 on hosts of 72 devices: the larger tensor goes by a mesh of hosts, and is scattered there."""
    mesh = Mesh.of(a=6, b=4, c=12)
    source, target = Sharding.of(mesh, None, None, unreduced=("a", "b", "c")), Sharding.of(mesh, "c", ("a", "b"))
    made = plan(source, target, (27099, 67838), "bf16", network="gb200-nvl72-4x72")
    assert made.lower_bound_seconds is not None
    assert made.seconds is not None
    assert made.lower_bound_seconds <= made.seconds <= 1.3 * made.lower_bound_seconds


@pytest.mark.parametrize("name", ["h100-2x4", "tpu-v5e-4x4", "tpu-v5p-4x4x4"])
def test_no_sum_is_sooner_in_place_and_then_moved(name: str) -> None:
    """A third sharding, that of the source with all summed, makes nothing cheaper."""
    sizes = {"h100-2x4": (2, 4), "tpu-v5e-4x4": (4, 4), "tpu-v5p-4x4x4": (4, 4, 4)}[name]
    mesh = Mesh.of(**dict(zip("abc", sizes, strict=False)))
    rng = Random(name)
    for _ in range(40):
        source, target = drawn(mesh, rng)
        shape, middle = (rng.choice([288, 1152]), 288), replace(source, unreduced=())
        ends = (source, target), (source, middle), (middle, target)
        whole, *legs = (plan(*each, shape, "float32", network=name).seconds or 0.0 for each in ends)
        assert whole <= sum(legs) * (1 + 1e-6), (source, target, shape)


@pytest.mark.parametrize(
    ("sizes", "ends"),
    [
        # along a row lie a2 and a part of a0, with a1 between them
        ((64, 2, 2), ((("a1",), ()), ("a0", "a2"), (("a1", "a2"), ("a0",)))),
        ((4, 4, 16), ((("a0",), ("a1",)), ("a2",), (("a0",), ("a1", "a2")))),
        ((16, 16), (((), ()), ("a0", "a1"), (("a0",), ("a1",)))),
    ],
)
def test_all_links_of_a_torus_scatter(sizes: tuple[int, ...], ends: tuple[tuple[tuple[str, ...], ...], ...]) -> None:
    mesh = Mesh.of({f"a{number}": size for number, size in enumerate(sizes)})
    dims, unreduced, wanted = ends
    source, target = Sharding.of(mesh, *dims, unreduced=unreduced), Sharding.of(mesh, *wanted)
    made = plan(source, target, (9216 * 16, 9216 * 8), "bf16", network=Network.preset("tpu-v5e-16x16"))
    assert (made.seconds or 0.0) <= 1.06 * (made.lower_bound_seconds or 0.0)


@pytest.mark.parametrize(
    ("axes", "shape", "ends", "received"),
    [
        # two heads on four devices: each combines 2 of 8 rows of both, 48 numbers, and two get 24 of a head
        ({"x": 4}, (8, 2, 4), ('[{}, {}, {}], unreduced={"x"}', '[{}, {"x"}, {}]'), 72 * 4),
        # one row for one device: each combines a quarter of it
        ({"x": 4}, (1, 8), ('[{}, {}], unreduced={"x"}', '[{"x"}, {}]'), 12 * 4),
        # five rows, of which two for the first device: each combines 10 numbers, and it gets 12 more
        ({"x": 4}, (5, 8), ('[{}, {}], unreduced={"x"}', '[{"x"}, {}]'), 42 * 4),
        # rows go where they are wanted at once where that is nearly even
        ({"x": 4}, (1001, 8), ('[{}, {}], unreduced={"x"}', '[{"x"}, {}]'), 3 * 251 * 8 * 4),
    ],
)
def test_tiles_that_are_not_equal_are_combined_in_equal_parts(
    axes: dict[str, int], shape: tuple[int, ...], ends: tuple[str, str], received: int
) -> None:
    source, target = (parse_sharding(text, Mesh.of(axes)) for text in ends)
    made = plan(source, target, shape, "int32")
    assert made.received_bytes == received
    parts = [
        np.arange(prod(shape), dtype=np.int32).reshape(shape) + np.int32(number)
        for number in range(oracle.class_count(source))
    ]
    tiles = engine.run(made, oracle.partial_tiles(parts, source))
    for device, tile in oracle.tiles(sum(parts), target).items():
        np.testing.assert_array_equal(tiles[device], tile)
