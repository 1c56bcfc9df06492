"""Networks: what levels are, what collectives and exchanges cost on them, and what must come into a host.

The printed values of "How to Scale Your Model" and of nccl-tests are held to by name; routes, hosts and triangles are
counted one by one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, groupby, permutations, product
from math import prod
from operator import mul
from random import Random

import numpy as np
import problems
import pytest
from scipy.optimize import linprog

from reshard.deal import Deal
from reshard.digits import Digit, Digits
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.exchange import DigitExchange, Exchange, find_exchange
from reshard.exchange.by_digits import senders_by_round
from reshard.mesh import Mesh
from reshard.network import (
    Level,
    Network,
    exchange_seconds,
    formulas,
    host_bound,
    host_bytes,
    seconds_of,
)
from reshard.network.digit_loads import digit_loads, least_carried
from reshard.network.link_use import piece_loads
from reshard.network.patterns import Pattern
from reshard.network.traffic import loads
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Step
from reshard.tiling import Tiling

CUBE = Mesh.of(X=4, Y=4, Z=4)
BF16 = dtype_named("bf16")


def step(before: Sharding, after: Sharding, shape: tuple[int, ...], dtype: str = "bf16") -> Step:
    return Step(Reshard.of(before, after, shape, dtype_named(dtype)))


# printed values, less what a device has already: those of rings count it among what it receives


def test_all_gather_over_one_axis_of_a_v4p_cube_takes_23_us() -> None:
    # 2BD / (W Y) with B = 1024, D = 4096, W = 9e10, Y = 4; of the 4 shards 3 are received
    gather = step(Sharding.of(CUBE, "X", "Y"), Sharding.of(CUBE, None, "Y"), (1024, 4096))
    assert gather.kind == "AllGather"
    assert seconds_of(gather, Network.preset("tpu-v4p-4x4x4")) == pytest.approx(3 / 4 * 23e-6, rel=0.02)


def test_all_gather_over_two_axes_of_a_v4p_cube_takes_46_us() -> None:
    # 2BD / (2W); of the 16 shards 15 are received
    gather = step(Sharding.of(CUBE, "X", "Y"), Sharding.of(CUBE, None, None), (1024, 4096))
    assert seconds_of(gather, Network.preset("tpu-v4p-4x4x4")) == pytest.approx(15 / 16 * 46e-6, rel=0.02)


# The third value of that exercise, 190 us for an all-reduce over Z of [B_X, D_Y] {U_Z}, is left out: 4BD / W divides
# by the bandwidth alone, but a device reduces only the BD / (X Y) elements that it holds, which gives 11.7 us.


def test_all_reduce_of_a_tile_takes_twice_its_bytes() -> None:
    partial = Sharding.of(CUBE, "X", "Y", unreduced="Z")
    reduce = step(partial, Sharding.of(CUBE, "X", "Y"), (1024, 4096))
    assert reduce.kind == "AllReduce"
    expected = 3 / 4 * 4 * 1024 * 4096 / (4 * 4 * 9e10)
    assert seconds_of(reduce, Network.preset("tpu-v4p-4x4x4")) == pytest.approx(expected, rel=1e-9)


def test_all_gather_of_256_bytes_over_an_axis_of_4_takes_2_hops() -> None:
    gather = step(Sharding.of(CUBE, "X"), Sharding.of(CUBE, None), (128,))
    assert seconds_of(gather, Network.preset("tpu-v4p-4x4x4")) == pytest.approx(2e-6)


def test_all_gather_on_v5e_takes_377_us_around_and_560_us_along_a_line() -> None:
    ring, line = (Level(1, 4, link, 4.5e10, 1e-6) for link in ("ring", "line"))
    assert formulas.all_gather(ring, 34e6) == pytest.approx(3 / 4 * 377e-6, rel=0.005)
    assert formulas.all_gather(line, 4 * 8.4e6) == pytest.approx(560e-6, rel=0.005)
    assert Network.preset("tpu-v5e-4x4").levels[0] == line  # no axis below 16 is closed


def test_corner_to_corner_of_a_v5e_4x4_takes_188_us_which_fill_6_us_of_latency() -> None:
    here, there = (Sharding(Mesh.of(device_ids=(device,)), ()) for device in (0, 15))
    move, small = (step(here, there, (size,), "int8") for size in (17_000_000, 17_000))
    assert seconds_of(move, Network.preset("tpu-v5e-4x4")) == pytest.approx(188e-6, rel=0.01)
    assert seconds_of(small, Network.preset("tpu-v5e-4x4")) == pytest.approx(6e-6)


def test_a_v5e_link_is_bound_by_latency_below_45_kb() -> None:
    level = Network.preset("tpu-v5e-16x16").levels[0]
    assert level.bandwidth * level.latency_s == pytest.approx(45e3)
    below, at, above = (formulas.all_gather(level, 16 * shard) for shard in (1e3, 45e3, 90e3))
    assert below == at == pytest.approx(8e-6)
    assert above == pytest.approx(15 / 16 * 16e-6)


@pytest.mark.parametrize("n", [2, 3, 8, 72])
def test_bus_bandwidth_factors(n: int) -> None:
    # per collective, time * bandwidth over the bytes of one device's larger buffer
    level, size = Level(1, n, "switch", 1e9, 0.0), 1e6
    assert formulas.all_reduce(level, size) * 1e9 / size == pytest.approx(2 * (n - 1) / n)
    assert formulas.reduce_scatter(level, size) * 1e9 / size == pytest.approx((n - 1) / n)
    assert formulas.all_gather(level, size) * 1e9 / size == pytest.approx((n - 1) / n)
    assert formulas.all_to_all(level, size * n) * 1e9 / size == pytest.approx((n - 1) / n)
    assert formulas.broadcast(level, size) * 1e9 / size == pytest.approx(1)  # a reduction to one device is the same


# formulas


@pytest.mark.parametrize("n", [2, 4, 8, 16, 64])
def test_on_a_ring_all_but_a_share_comes_by_both_links(n: int) -> None:
    level = Level(1, n, "ring", 4.5e10, 0.0)
    assert formulas.all_gather(level, 9e10) == pytest.approx((n - 1) / n)
    assert formulas.reduce_scatter(level, 9e10) == pytest.approx((n - 1) / n)
    assert formulas.all_reduce(level, 9e10) == pytest.approx(2 * (n - 1) / n)
    assert formulas.all_to_all(level, 9e10) == pytest.approx(1 / 4)


@pytest.mark.parametrize("link", ["switch", "ring", "one-way-ring", "line"])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_an_all_to_all_is_the_traffic_of_its_pieces(link: str, n: int) -> None:
    pairs = [pair for pair in product(range(n), repeat=2) if pair[0] != pair[1]]
    senders, receivers = np.array(pairs).T
    level = Level(1, n, link, 1e9, 0.0)
    traffic = loads((level,), senders, receivers, np.ones(len(pairs)))
    assert traffic.seconds((level,), 1e6) == pytest.approx(formulas.all_to_all(level, n * n * 1e6))


def test_a_gather_over_hosts_goes_outside_first() -> None:
    mesh = Mesh.of(host=2, device=8)
    network = Network.of(mesh, host=("switch", 50e9, 0), device=("switch", 450e9, 0))
    gather = step(Sharding.of(mesh, ("host", "device")), Sharding.of(mesh, None), (2**20,), "int8")
    outside = step(Sharding.of(mesh, ("device", "host")), Sharding.of(mesh, "device"), (2**20,), "int8")
    inside = step(Sharding.of(mesh, "device"), Sharding.of(mesh, None), (2**20,), "int8")
    parts = seconds_of(outside, network) + seconds_of(inside, network)
    assert seconds_of(gather, network) == pytest.approx(parts) == pytest.approx(2**16 / 50e9 + 7 * 2**17 / 450e9)


def test_a_boundary_inside_an_axis() -> None:
    mesh = Mesh.of(x=16)
    network = Network.of(mesh, {"x:(1)2": ("switch", 50e9, 0), "x:(2)8": ("switch", 450e9, 0)})
    assert [level.digit for level in network.levels] == [Digit(1, 8), Digit(8, 2)]
    gather = step(Sharding.of(mesh, "x"), Sharding.of(mesh, None), (2**20,), "int8")
    assert seconds_of(gather, network) == pytest.approx(2**16 / 50e9 + 7 * 2**17 / 450e9)


def test_groups_on_parts_of_a_ring() -> None:
    # 8 around a ring of 1 GB/s: neighbours are a line; every second one a ring on half of every link
    mesh, network = Mesh.of(a=2, b=2, c=2), Network((Level(1, 8, "ring", 1e9, 1e-6),))
    source = Sharding.of(mesh, ("c", "b", "a"))
    prices = [
        seconds_of(step(source, target, (8_000_000,), "int8"), network)
        for target in (Sharding.of(mesh, "c"), Sharding.of(mesh, ("c", "b")))
    ]
    assert prices == pytest.approx([3 / 4 * 8e6 / 2 / 1e9, 2e6 / 2 / 2 / (1e9 / 4)])
    line = step(Sharding.of(mesh, ("a", "b", "c")), Sharding.of(mesh, "a"), (8_000_000,), "int8")
    assert seconds_of(line, network) == pytest.approx(3 / 4 * 4e6 / 1e9)
    middle = step(Sharding.of(mesh, "b"), Sharding.of(mesh, None), (8_000_000,), "int8")
    assert seconds_of(middle, network) == pytest.approx(1 / 2 * 8e6 / (1e9 / 2))


def test_a_group_that_does_not_reach_around_a_one_way_ring_is_priced_by_its_pieces() -> None:
    mesh, network = Mesh.of(a=2, b=4), Network((Level(1, 8, "one-way-ring", 1e9, 0),))
    gather = step(Sharding.of(mesh, "b"), Sharding.of(mesh, None), (4,), "int8")
    pieces = list(zip(*gather.moves[0].exchange.traffic(), strict=True))
    assert seconds_of(gather, network) == pytest.approx(counted(network, pieces)[0][0] / 1e9)


def test_devices_in_another_order_are_found_on_their_levels() -> None:
    plain, turned = Mesh.of(x=2, y=4), Mesh.of(y=4, x=2, device_ids=[4 * x + y for y in range(4) for x in range(2)])
    network = Network.of(plain, x=("switch", 1e9, 0), y=("ring", 1e9, 0))
    assert Network.of(turned, y=("ring", 1e9, 0), x=("switch", 1e9, 0)).levels[::-1] == network.levels
    prices = []
    for mesh in (plain, turned):
        steps = [
            step(Sharding.of(mesh, "x", "y"), Sharding.of(mesh, "x", None), (64, 64)),
            step(Sharding.of(mesh, "x", "y"), Sharding.of(mesh, "y", "x"), (64, 64)),
        ]
        prices.append([seconds_of(found, network) for found in steps])
    assert prices[0] == pytest.approx(prices[1])


def test_nothing_sent_costs_nothing_but_copies() -> None:
    mesh = Mesh.of(x=2, y=4)
    network = Network.of(mesh, x=("switch", 1e9, 1e-6), y=("switch", 1e9, 1e-6))
    slices = step(Sharding.of(mesh, "x"), Sharding.of(mesh, ("x", "y")), (1000,), "int8")
    partial = step(Sharding.of(mesh, None), Sharding.of(mesh, None, unreduced="x"), (1000,), "float32")
    empty = step(Sharding.of(mesh, "x"), Sharding.of(mesh, "y"), (0,), "int8")
    assert [seconds_of(found, network) for found in (slices, partial, empty)] == [0, 0, 0]
    assert seconds_of(slices, replace(network, copy_bandwidth=1e9)) == pytest.approx(125 / 1e9)


# traffic, counted link by link

NETWORKS = {
    "flat": Network((Level(1, 16, "switch", 1.0, 0.5),)),
    "hosts": Network((Level(1, 4, "switch", 9.0, 0.1), Level(4, 4, "switch", 1.0, 1.0))),
    "three deep": Network(
        (Level(1, 2, "switch", 9.0, 0.1), Level(2, 4, "switch", 3.0, 1.0), Level(8, 2, "switch", 1, 4))
    ),
    "hosts first": Network((Level(4, 4, "switch", 9.0, 0.1), Level(1, 4, "switch", 1.0, 1.0))),
    "ring": Network((Level(1, 16, "ring", 1.0, 0.5),)),
    "torus": Network((Level(1, 4, "ring", 1.0, 0.5), Level(4, 4, "line", 2.0, 0.25))),
    "cube": Network(
        (Level(1, 2, "line", 1.0, 0.5), Level(2, 2, "ring", 1.0, 0.5), Level(4, 4, "one-way-ring", 2.0, 1))
    ),
    "slices": Network((Level(1, 4, "ring", 1, 1), Level(4, 2, "line", 1, 1), Level(8, 2, "switch", 0.1, 9))),
    "ring of hosts": Network((Level(1, 4, "switch", 9.0, 0.1), Level(4, 4, "ring", 1.0, 1.0))),
}


def hop(level: Level, device: int, way: int) -> int:
    place = level.digit.value(device)
    return device + ((place + way) % level.size - place) * level.stride


def ways(level: Level, here: int, there: int) -> list[int]:
    """The directions of the shortest ways along a ring or a line."""
    step = level.digit.value(there) - level.digit.value(here)
    if level.link == "line":
        return [1 if step > 0 else -1]
    if level.link == "one-way-ring":
        return [1]
    ahead = step % level.size
    return [1] * (2 * ahead <= level.size) + [-1] * (2 * ahead >= level.size)


def counted(network: Network, pieces: list[tuple[int, int, float]]) -> tuple[list[float], float, float]:
    """Per level what the busiest link or port carries, the latencies that the slowest device waits for, those of hops.

    Through switches messages follow one another; along rings and lines the piece that goes farthest counts.
    """
    carried: list[dict[tuple[int, object], float]] = [defaultdict(float) for _ in network.levels]
    waits: dict[tuple[int, object], float] = defaultdict(float)
    farthest = 0.0
    torus = groupby(reversed(list(enumerate(network.levels))), key=lambda pair: pair[1].is_switch or pair[0] < 0)
    stretches = [(is_switch, [number for number, _ in group]) for is_switch, group in torus]
    for sender, receiver, amount in pieces:
        here, hops, latency = sender, 0.0, 0.0
        for is_switch, numbers in stretches:
            differ = [
                n for n in numbers if network.levels[n].digit.value(here) != network.levels[n].digit.value(receiver)
            ]
            if is_switch and differ:  # the outermost comes first
                carried[differ[0]][here, "out"] += amount
                carried[differ[0]][receiver, "in"] += amount
                latency = network.levels[differ[0]].latency_s
                here = receiver
                break
            if not is_switch:
                here, hops = walked(network, list(permutations(differ)), here, receiver, amount, carried, hops)
        assert here == receiver
        farthest = max(farthest, hops)
        for end in ("out", "in"):
            waits[sender if end == "out" else receiver, end] += latency
    busiest = [fullest(level, loaded) for level, loaded in zip(network.levels, carried, strict=True)]
    return busiest, max(waits.values()), farthest


def fullest(level: Level, loaded: dict[tuple[int, object], float]) -> float:
    """What the fullest link or port carries where what may go either way parts as well as a solver can."""
    either = {here: amount for (here, way), amount in loaded.items() if way == "either"}
    ends = {end: amount for end, amount in loaded.items() if end[1] != "either"}
    rows: dict[tuple[int, object], dict[int, float]] = {end: {} for end in ends}
    fixed = defaultdict(float, ends)
    for column, (start, amount) in enumerate(either.items()):
        for way in (1, -1):
            here = start
            for _ in range(level.size // 2):
                rows.setdefault((here, way), {})[column] = way * amount
                fixed[here, way] += 0.0 if way == 1 else amount
                here = hop(level, here, way)
    if not either:
        return max(ends.values(), default=0.0)
    solved = linprog(
        [*np.zeros(len(either)), 1.0],
        A_ub=[[*(row.get(column, 0.0) for column in range(len(either))), -1.0] for row in rows.values()],
        b_ub=[-fixed[end] for end in rows],
        bounds=[*[(0.0, 1.0)] * len(either), (0.0, None)],
    )
    assert solved.status == 0
    return float(solved.fun)


def walked(network, orders, sender, receiver, amount, carried, hops):  # type: ignore[no-untyped-def]
    here = sender
    for number, order in enumerate(orders):
        here = sender
        for level_number in order:
            level = network.levels[level_number]
            directions, start = ways(level, here, receiver), here
            if len(directions) == 2:
                carried[level_number][start, "either"] += amount / len(orders)
            for way in directions:
                here = start
                while level.digit.value(here) != level.digit.value(receiver):
                    if len(directions) == 1:
                        carried[level_number][here, way] += amount / len(orders)
                    here = hop(level, here, way)
                    hops += level.latency_s * (number == 0 and way == directions[0])
    return here, hops


@pytest.mark.parametrize("name", NETWORKS)
def test_loads_are_those_of_every_piece_on_its_way(name: str) -> None:
    network = NETWORKS[name]
    rng = Random(name)
    for count in (1, 3, 40):
        pieces = [(*rng.sample(range(network.size), 2), float(rng.randint(1, 9))) for _ in range(count)]
        found = loads(network.levels, *(np.array(column) for column in zip(*pieces, strict=True)))
        carried, waits, farthest = counted(network, pieces)
        assert found.carried == pytest.approx(carried)
        assert (found.waits_s, found.hops_s) == pytest.approx((waits, farthest))


def test_the_traffic_of_an_exchange_is_its_pieces() -> None:
    rng = Random(5)
    kinds: set[str] = set()
    for _ in range(150):
        source, target, shape, _ = problems.draw_problem(rng)
        exchange = find_exchange(Tiling.of(source, shape), Tiling.of(target, shape))
        senders, receivers, elements = exchange.traffic()
        listed = sorted(zip(senders.tolist(), receivers.tolist(), elements.tolist(), strict=True))
        pieces = [piece for device in target.mesh.devices for piece in exchange.incoming(device)]
        assert listed == sorted((p.sender, p.receiver, p.box.size) for p in pieces if p.sender != p.receiver)
        kinds.add(type(exchange).__name__ + ("" if source.layout.copies() > 1 else ", one copy"))
    assert len(kinds) == 4


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("sizes", [(4, 4), (2, 4, 2), (2, 2, 2, 2)])
def test_loads_from_digits_are_those_of_every_piece(name: str, sizes: tuple[int, ...]) -> None:
    network, mesh = NETWORKS[name], Mesh.of(zip("abcd", sizes, strict=False))
    shardings = list(problems.full_axis_shardings(mesh, 2))
    for source, target in Random(1).sample(list(product(shardings, shardings)), 60):
        exchange = find_exchange(Tiling.of(source, (16, 16)), Tiling.of(target, (16, 16)))
        assert isinstance(exchange, DigitExchange)
        expected = loads(network.levels, *exchange.traffic())
        kinds = (None,) * len(exchange.gathered)
        pattern = Pattern.of(exchange.common.digits, exchange.determined_by, exchange.gathered, kinds)
        digits, meshes = (pattern.digits, pattern.determined_by, pattern.gathered), (source.mesh, exchange.receivers)
        found = piece_loads(network, *meshes, *digits)
        assert np.multiply(found.carried, exchange.largest_piece) == pytest.approx(expected.carried)
        assert (found.waits_s, found.hops_s) == pytest.approx((expected.waits_s, expected.hops_s))


def test_loads_from_digits_are_those_of_every_piece_where_digits_lie_across_levels() -> None:
    rng = Random(3)
    in_closed_form = 0
    for _ in range(250):
        sizes = [rng.choice([2, 2, 3, 4, 6]) for _ in range(rng.randint(1, 3))]
        kinds = rng.choice([["switch"], ["ring", "line", "one-way-ring"], ["switch", "ring", "line"]])
        strides = list(accumulate(sizes, mul, initial=1))
        levels = [
            Level(n, size, rng.choice(kinds), 1.0, rng.choice([0.0, 1.0]))
            for n, size in zip(strides[:-1], sizes, strict=True)
        ]
        primes = [digit.size for digit in Digits.of_sizes(sizes[::-1]).primes()]
        if rng.random() < 0.5:
            rng.shuffle(primes)
        while len(primes) > 1 and rng.random() < 0.5:
            place = rng.randrange(len(primes) - 1)
            primes[place : place + 2] = [primes[place] * primes[place + 1]]
        digits = Digits.of_sizes(primes)
        determined_by = list(range(len(primes)))
        for size in set(primes):
            alike = [place for place, other in enumerate(primes) if other == size]
            for place, other in zip(alike, rng.sample(alike, len(alike)), strict=True):
                determined_by[place] = other
        gathered = tuple(place for place in determined_by if rng.random() < 0.3)
        near = rng.randrange(len(primes))  # one sender may serve several receivers
        determined_by[near] = near if near not in gathered else determined_by[near]
        loads_found = digit_loads(levels, digits, determined_by, gathered)
        if loads_found is None:
            continue
        in_closed_form += 1
        senders = senders_by_round(digits, tuple(determined_by), gathered, np.arange(strides[-1])).ravel()
        receivers = np.resize(np.arange(strides[-1]), senders.shape)
        travels = senders != receivers
        expected = loads(levels, senders[travels], receivers[travels], np.ones(travels.sum()))
        assert loads_found.carried == pytest.approx(expected.carried)
        assert (loads_found.waits_s, loads_found.hops_s) == pytest.approx((expected.waits_s, expected.hops_s))
        places = [
            load
            for number, level in enumerate(levels)
            for load in (loads_found.along and loads_found.along[number])
            or [loads_found.carried[number]] * level.places
        ]
        least = least_carried(levels, digits, determined_by, gathered)
        assert all(low <= load * (1 + 1e-9) for low, load in zip(least, places, strict=True))
    assert in_closed_form > 150


# prices as a distance


@pytest.mark.parametrize("sizes", [(2, 2), (4, 2), (2, 2, 2)])
def test_bytes_obey_the_triangle_inequality_on_a_flat_network(sizes: tuple[int, ...]) -> None:
    mesh = Mesh.of(zip("abc", sizes, strict=False))
    network = Network((Level(1, mesh.size, "switch", 1e9, 0.0),))
    shardings = list(problems.full_axis_shardings(mesh, 2))
    price = np.array([[seconds_of(step(a, b, (8, 16), "int8"), network) for b in shardings] for a in shardings])
    by_way_of = price[:, :, None] + price[None, :, :]
    assert (price[:, None, :] <= by_way_of * (1 + 1e-12)).all()
    received = [[step(a, b, (8, 16), "int8").received_bytes / 1e9 for b in shardings] for a in shardings]
    assert price == pytest.approx(np.array(received))


def test_more_bytes_or_slower_links_never_cost_less() -> None:
    mesh = Mesh.of(a=4, b=4)
    shardings = list(problems.full_axis_shardings(mesh, 2))
    for network in NETWORKS.values():
        slower = Network(
            tuple(
                replace(level, bandwidth=level.bandwidth / 2, latency_s=level.latency_s * 2) for level in network.levels
            )
        )
        for source, target in Random(2).sample(list(product(shardings, shardings)), 30):
            small, large = (step(source, target, shape) for shape in ((16, 16), (32, 16)))
            assert seconds_of(small, network) <= seconds_of(large, network) <= seconds_of(large, slower)


# hosts


def held(sharding: Sharding, shape: tuple[int, ...], device: int) -> set[tuple[int, ...]]:
    if device not in sharding.mesh:
        return set()
    return set(product(*(range(*interval) for interval in sharding.box(device, shape))))


def counted_bound(
    network: Network, level: int, source: Sharding, target: Sharding, shape: tuple[int, ...]
) -> list[int]:
    below = network.levels[:level]
    hosts: dict[tuple[int, ...], list[int]] = {}
    for device in range(network.size):
        hosts.setdefault(tuple(found.digit.value(device) for found in reversed(network.levels[level:])), []).append(
            device
        )
    assert all(len(devices) == prod(found.size for found in below) for devices in hosts.values())
    return [
        len(
            set().union(*(held(target, shape, device) for device in hosts[key]))
            - set().union(*(held(source, shape, device) for device in hosts[key]))
        )
        for key in sorted(hosts)
    ]


def test_a_hosts_bound_is_what_it_needs_and_lacks() -> None:
    rng = Random(7)
    network = Network((Level(1, 4, "switch", 1, 0), Level(4, 2, "switch", 1, 0), Level(8, 8, "switch", 1, 0)))
    drawn = 0
    while drawn < 120:
        source, target, shape, _ = problems.draw_problem(rng)
        if max(*source.mesh.devices, *target.mesh.devices) >= network.size or prod(shape) > 600:
            continue
        drawn += 1
        for level in range(4):
            bound = host_bound(Reshard.of(source, target, shape, "int16"), network, level)
            assert bound.tolist() == [2 * n for n in counted_bound(network, level, source, target, shape)]
            exchange = find_exchange(Tiling.of(source, shape), Tiling.of(target, shape))
            assert (host_bytes(exchange, network, level, "int16") >= bound).all()


def test_a_host_that_has_all_parts_of_a_sum_needs_nothing() -> None:
    mesh = Mesh.of(x=2, y=2)
    network = Network.of(mesh, x=("switch", 1, 0), y=("switch", 9, 0))
    whole = Sharding.of(mesh, None)
    for axes, bound in (("x", [8, 8]), ("y", [0, 0]), (("x", "y"), [8, 8])):
        partial = Sharding.of(mesh, None, unreduced=axes)
        assert host_bound(Reshard.of(partial, whole, (8,), "int8"), network, 1).tolist() == bound
        assert host_bound(Reshard.of(partial, partial, (8,), "int8"), network, 1).tolist() == [0, 0]
    with pytest.raises(ReshardError, match="where values become partial"):
        host_bound(Reshard.of(whole, Sharding.of(mesh, None, unreduced="x"), (8,), "int8"), network, 1)


def test_gathering_outside_first_brings_each_host_its_bound() -> None:
    mesh = Mesh.of(host=4, device=2)
    network = Network.of(mesh, host=("switch", 1, 0), device=("switch", 9, 0))
    source, target = Sharding.of(mesh, ("device", "host")), Sharding.of(mesh, None)
    steps = [step(source, Sharding.of(mesh, "device"), (64,)), step(Sharding.of(mesh, "device"), target, (64,))]
    brought = sum(host_bytes(found, network, 1) for found in steps)
    assert brought.tolist() == host_bound(Reshard.of(source, target, (64,), "bf16"), network, 1).tolist() == [96] * 4
    assert host_bytes(step(source, target, (64,)), network, 1).tolist() == [192] * 4


@lru_cache(1)
def boxes() -> Exchange:
    """3 rows over 2 devices do not nest with 3 over 3."""
    mesh = Mesh.of(x=2, y=3)
    return find_exchange(Tiling.of(Sharding.of(mesh, "x"), (6,)), Tiling.of(Sharding.of(mesh, "y"), (6,)))


def test_an_exchange_by_boxes_is_priced_by_its_pieces() -> None:
    assert not isinstance(boxes(), DigitExchange)
    network = Network((Level(1, 3, "switch", 10.0, 0.0), Level(3, 2, "switch", 1.0, 0.0)))
    pieces = list(zip(*boxes().traffic(), strict=True))
    carried, *_ = counted(network, pieces)
    assert exchange_seconds(boxes(), 4, network) == pytest.approx(4 * max(carried[0] / 10, carried[1]))


def test_what_several_boxes_send_to_one_device_is_one_message() -> None:
    """By hand, 7 rows dealt one by one to 2 devices, then the first 4 to one of them: each sends two that lie apart."""
    mesh, network = Mesh.of(x=2), Network((Level(1, 2, "switch", 1e9, 1e-6),))
    dealt, halves = (Sharding.of(mesh, (deal, "x")) for deal in (Deal.blocks(1), Deal.offsets(0, 4, 7)))
    exchange = find_exchange(Tiling.of(dealt, (7,)), Tiling.of(halves, (7,)))
    senders, receivers, elements = exchange.traffic()
    assert sorted(zip(senders.tolist(), receivers.tolist(), elements.tolist(), strict=True)) == [(0, 1, 2), (1, 0, 2)]
    assert exchange_seconds(exchange, 1, network) == pytest.approx(1e-6 + 2e-9)


def test_every_chunk_waits_for_its_messages() -> None:
    mesh, network = Mesh.of(x=8), Network((Level(1, 8, "switch", 1e9, 1e-6),), launch_s=2e-6)
    step = Step(Reshard.of(Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x"), (64, 64), dtype_named("int64")))
    whole, parted = seconds_of(step, network), seconds_of(replace(step, chunks=4), network)
    without_wait = Network((Level(1, 8, "switch", 1e9, 0.0),))
    moving = seconds_of(step, without_wait)
    assert seconds_of(replace(step, chunks=4), without_wait) == pytest.approx(moving)
    assert parted - moving == pytest.approx(4 * (whole - moving))
