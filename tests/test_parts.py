"""Whether plans whose steps overlap are right: in parts, by way of middles in blocks, never faster than the bound."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log, prod

import numpy as np
import oracle
import pytest
from checkers import check_chain, check_run, check_tiles
from time_bounds import NETWORKS, pairs

from reshard import Mesh, Network, Plan, ReshardError, Sharding, parse_sharding, plan
from reshard.network import Level
from reshard.numpy.tiles import gather, run
from reshard.planner.relay import relay
from reshard.problem import Reshard

LARGE = (1024, 1024)
SLOW_TO_START = Network((Level(1, 8, "switch", 450e9, 1e-5), Level(8, 16, "switch", 50e9, 1e-4)))
MEAN, WORST = {"hosts 2x4": 1.05, "hosts 4x2": 1.04}, 1.34


@pytest.mark.parametrize("name", MEAN)
def test_hosts_are_near_the_least_time(name: str) -> None:
    """All pairs of shardings by whole axes of 1 MiB, no latency: against the cut, so against any plan."""
    mesh, network = NETWORKS[name]
    ratios = []
    for source, target in pairs(mesh, 1000):
        made = plan(source, target, LARGE, "int8", network=network)
        assert made.seconds is not None
        assert made.lower_bound_seconds
        ratios.append(made.seconds / made.lower_bound_seconds)
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) <= WORST
    assert exp(np.mean([log(ratio) for ratio in ratios])) <= MEAN[name]


def test_plans_in_parts_bring_every_device_its_tile() -> None:
    """Those on hosts, of numbered elements; what devices receive is what is counted."""
    in_parts, woven = 0, 0
    for name in MEAN:
        mesh, network = NETWORKS[name]
        for source, target in pairs(mesh, 1000)[::3]:
            made = plan(source, target, (48, 32), "int64", network=network)
            check_chain(made)
            check_run(made)
            in_parts += made.parts > 1
            woven += any(step.after.is_woven for step in made.steps)
    assert min(in_parts, woven) > 5, (in_parts, woven)


def test_equals_cross_by_hand() -> None:
    """Rows by h go to (g, h): half of the devices of a host lack 32 bytes, half nothing, but every port brings 16.

    Then each device gives 16 bytes to one that has half of its rows; nobody receives more than it lacks.
    """
    mesh, network = NETWORKS["hosts 2x4"]
    source, target = Sharding.of(mesh, "h", None), Sharding.of(mesh, ("g", "h"), None)
    made = plan(source, target, (16, 16), "int8", network=network)
    assert [step.kind for step in made.steps] == ["Exchange", "Exchange"]
    first, second = made.step_seconds or ()
    assert first == 16.0
    assert second == 16 / 9
    assert made.lower_bound_seconds == 16.0
    assert made.relayed_bytes == 0
    many = plan(source, target, LARGE, "int8", network=network)
    assert many.parts == 128
    assert many.seconds == pytest.approx(16.0 * 4096 * (1 + 1 / 9 / 128))
    turned = plan(Sharding.of(mesh, ("h", "g"), None), target, LARGE, "int8", network=network)
    assert turned.lower_bound_seconds == 16.0 * 4096
    assert turned.seconds == pytest.approx(16.0 * 4096, rel=0.02)
    assert turned.relayed_bytes == turned.received_bytes - turned.lower_bound_bytes > 0
    assert plan(turned.source, target, LARGE, "int8").relayed_bytes == 0


def test_middles_hold_what_hosts_hold() -> None:
    """By index arithmetic: a host holds the same in the middles as at the ends, every device its equal part."""
    for name in MEAN:
        mesh, network = NETWORKS[name]
        per_host = network.levels[0].size
        for source, target in pairs(mesh, 1000)[::5]:
            middles = relay(Reshard.of(source, target, (64, 64), "int8"), per_host)
            assert middles is not None, (source, target)
            for end, middle in zip((source, target), middles, strict=True):
                held = [_held(mesh, sharding, per_host) for sharding in (end, middle)]
                np.testing.assert_array_equal(*(side.any(axis=1) for side in held))
                assert set(held[1].sum(axis=(2, 3)).ravel()) == {held[1].any(axis=1)[0].sum() // per_host}


def _held(mesh: Mesh, sharding: Sharding, per_host: int) -> np.ndarray:
    """Per host and device the elements that it holds."""
    tiles = np.zeros((mesh.size, 64, 64), dtype=bool)
    for device in mesh.devices:
        for box in sharding.boxes(device, (64, 64)):
            tiles[device][tuple(slice(*interval) for interval in box)] = True
    return tiles.reshape(-1, per_host, 64, 64)


def test_a_level_that_all_steps_use_is_not_overlapped() -> None:
    """On one switch there is nothing to overlap, and one step of a part waits for that of the part before."""
    mesh = Mesh.of(x=2, y=4)
    flat = Network((Level(1, 8, "switch", 1e9, 0.0),))
    for source, target in (("x", "y"), (("x", "y"), None), (None, "y")):
        ends = Sharding.of(mesh, source, None), Sharding.of(mesh, None, target)
        assert plan(*ends, (64, 64), network=flat).parts == 1


def test_small_tensors_are_moved_whole() -> None:
    """Every part pays its latencies: of 64 x 64 elements one part is best, of large ones many."""
    mesh = Mesh.of(h=2, g=8)
    ends = parse_sharding('[{}, {"h"}]', mesh), parse_sharding('[{"h"}, {}]', mesh)
    parts = [plan(*ends, (size, size), "bf16", network="h100-2x8").parts for size in (64, 8192, 65536)]
    assert parts[0] == 1 < parts[1] < parts[2]


def test_parts_are_written_and_checked() -> None:
    mesh, network = NETWORKS["hosts 2x4"]
    made = plan(Sharding.of(mesh, "h", None), Sharding.of(mesh, None, "h"), LARGE, "int8", network=network)
    assert made.parts > 1
    assert Plan.from_json(made.to_json()) == made
    assert f"in {made.parts} parts, whose steps overlap" in str(made)
    assert made.peak_bytes > replace(made, parts=1).peak_bytes
    assert made.rounds == made.parts * replace(made, parts=1).rounds
    limited = plan(made.source, made.target, LARGE, "int8", network=network, memory_limit=made.peak_bytes)
    assert limited.parts == 1
    for parts in (0, -1, 3):
        with pytest.raises(ReshardError, match="cannot be cut in"):
            replace(made, parts=parts)
    assert plan(made.source, made.target, LARGE, "int8").parts == 1


def test_the_trace_ends_when_the_plan_does() -> None:
    mesh, network = NETWORKS["hosts 2x4"]
    made = plan(Sharding.of(mesh, "h", None), Sharding.of(mesh, None, "h"), LARGE, "int8", network=network)
    bars = [event for event in json.loads(made.to_trace())["traceEvents"] if event["ph"] == "X"]
    assert [bar["tid"] for bar in bars] == list(range(len(made.steps)))
    assert max(bar["ts"] + bar["dur"] for bar in bars) == pytest.approx((made.seconds or 0.0) * 1e6)
    assert bars[1]["ts"] < bars[0]["ts"] + bars[0]["dur"]


def test_small_tiles_may_grow_where_latencies_decide() -> None:
    """64 KiB on 128 devices from rows to columns: 127 messages from each, or a gather of all and a slice.

    Of 16 GiB tiles do not grow.
    """
    mesh = Mesh.of(a=4, b=4, c=8)
    ends = Sharding.of(mesh, ("a", "b", "c"), None), Sharding.of(mesh, None, ("a", "b", "c"))
    for size, grows in ((128, True), (2**16, False)):
        made = plan(*ends, (size, size), "float32", network=SLOW_TO_START)
        tiles = [prod(end.local_shape(made.shape)) for end in (made.source, *(step.after for step in made.steps))]
        assert (max(tiles[1:-1], default=0) > max(tiles[0], tiles[-1])) == grows, made


def test_parts_where_some_dims_are_uneven() -> None:
    """Parts are cut along a dim whose tiles are of one size; where there is none, the tensor goes whole."""
    mesh, network = NETWORKS["hosts 2x4"]
    for shape, least in (((30, 24), 1), ((1001, 64), 2), ((1001, 1003), 1)):
        made = plan(Sharding.of(mesh, "h", None), Sharding.of(mesh, None, None), shape, "int64", network=network)
        assert made.parts >= least
        check_run(made)
    assert oracle.missing(made.source, made.target, made.shape)


RING = Level(1, 6, "ring", 1, 0), Level(6, 6, "ring", 1, 0)
ODD = [
    (  # rings whose places are no digits of the position
        Mesh.of(a=3, b=3, c=4),
        (None, ("b", "c")),
        (("b", "c"), None),
        (144, 144),
        Network(RING),
    ),
    (
        Mesh.of(a=5, b=4),
        ("b:(2)2", ("a", "b:(1)2")),
        (None, ("a", "b:(2)2", "b:(1)2")),
        (20, 40),
        Network((Level(1, 5, "ring", 1, 1e-3), Level(5, 4, "ring", 1, 0))),
    ),
    (  # a way that sends nothing, but copies
        Mesh.of(a=4, b=4),
        (None,),
        ("b:(1)2",),
        (128,),
        Network((Level(1, 4, "ring", 1, 5), Level(4, 4, "ring", 7, 0)), copy_bandwidth=3.0),
    ),
]
"""Meshes and networks whose cuts do not meet, or of odd speeds."""


@pytest.mark.parametrize(("mesh", "before", "after", "shape", "network"), ODD)
def test_odd_meshes_and_networks(
    mesh: Mesh, before: tuple[object, ...], after: tuple[object, ...], shape: tuple[int, ...], network: Network
) -> None:
    check_run(plan(Sharding.of(mesh, *before), Sharding.of(mesh, *after), shape, "int64", network=network))


def test_two_meshes_with_axes_of_one_name() -> None:
    """What is gathered between two points is of one mesh: the middles have axes a and b too, of other sizes."""
    network = Network((Level(1, 2, "switch", 1, 0), Level(2, 2, "switch", 7, 0), Level(4, 3, "switch", 7, 1e-3)))
    source = Sharding.of(Mesh.of(a=6, b=2), ("a:(2)3", "b"), "a:(1)2")
    check_run(plan(source, Sharding.of(Mesh.of(p=4, q=3), "q", None), (47, 60), "int64", network=network))


def test_more_parts_than_an_uncut_dim_has_elements() -> None:
    """An axis of size 1 cuts it in blocks of the whole."""
    mesh = Mesh.of(a=1, b=64)
    network = Network((Level(1, 8, "ring", 7, 0), Level(8, 8, "ring", 7, 1e-3)), launch_s=3.0)
    source = Sharding.of(mesh, "b:(8)8", "a", None, unreduced="b:(1)8")
    made = plan(source, Sharding.of(mesh, "b", None, None), (24, 48, 60), "int64", network=network)
    per_class = [oracle.encoded(made.shape) * number for number in range(8)]
    tiles, received = oracle.partial_tiles(per_class, source), dict[int, int]()
    found = run(made, tiles, received_bytes=received)
    check_tiles(found, oracle.tiles(sum(per_class[1:], per_class[0]), made.target))
    assert received == {device: made.received_bytes_on(device) for device in made.devices}


def test_what_parts_combine_is_counted_part_by_part() -> None:
    """Each device combines whole elements of each part."""
    mesh = Mesh.of(a=3, b=3)
    network = Network((Level(1, 3, "switch", 7, 5), Level(3, 3, "switch", 1, 0)))
    source = Sharding.of(mesh, "a", unreduced="b")
    made = plan(source, Sharding.of(mesh, None), (47,), "int64", network=network)
    assert made.parts > 1
    per_class = [oracle.encoded(made.shape) * number for number in range(3)]
    received = dict[int, int]()
    found = run(made, oracle.partial_tiles(per_class, source), received_bytes=received)
    check_tiles(found, oracle.tiles(sum(per_class[1:], per_class[0]), made.target))
    assert received == {device: made.received_bytes_on(device) for device in made.devices}


def test_a_bound_where_nothing_is_combined() -> None:
    mesh, network = Mesh.of(a=6), Network((Level(1, 3, "ring", 7, 0), Level(3, 2, "ring", 1, 0)))
    source = Sharding.of(mesh, None, None, unreduced="a:(1)3")
    assert plan(source, Sharding.of(mesh, None, None), (2, 0), network=network).lower_bound_seconds == 0


def test_cuts_that_what_stays_partial_is_in() -> None:
    """Nothing is combined inside hosts first where the blocks that they would have are of devices that stay apart."""
    mesh = Mesh.of(a=24)
    links = [(1, 2, 7), (2, 2, 7), (4, 2, 2), (8, 3, 1)]
    network = Network(tuple(Level(stride, size, "ring", speed, 0) for stride, size, speed in links))
    source = Sharding.of(mesh, None, None, unreduced="a:(1)6")
    target = Sharding.of(mesh, None, "a:(1)2", unreduced="a:(2)12")
    made = plan(source, target, (12, 24), "int32", network=network)
    parts = [np.full(made.shape, 10**part, np.int32) for part in range(6)]
    tiles = run(made, oracle.partial_tiles(parts, source))
    np.testing.assert_array_equal(gather(tiles, target, made.shape), sum(parts))
