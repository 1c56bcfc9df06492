"""Whether uneven tensors on thousands of devices are planned in little time, with figures that are those of pieces."""

from __future__ import annotations

from collections import Counter
from math import prod
from random import Random

import numpy as np
import pytest
from effort import calls_of

from reshard import Mesh, Network, ReshardError, Sharding, einsum, plan
from reshard.exchange import DigitExchange, find_exchange
from reshard.network import Level, crossing, dim_crossing
from reshard.network.crossing import Sides, crossing_by_boxes
from reshard.network.link_use import unlike_piece_loads
from reshard.network.traffic import Loads, loads
from reshard.planner import cache_clear
from reshard.tiling import Tiling

SIZES = ((2, 4), (4, 4), (2, 3, 4), (2, 2, 2), (4, 2, 4), (8, 4), (3, 3, 2))
POD = {"pod": ("switch", 50e9, 5e-6), "host": ("switch", 50e9, 5e-6), "chip": ("switch", 450e9, 1e-6)}


def drawn_levels(rng: Random, size: int, links: tuple[str, ...]) -> tuple[Level, ...]:
    """Levels inside switches, rings or lines inside those."""
    levels: list[Level] = []
    stride, is_switch = 1, False
    while stride < size:
        part = rng.choice([n for n in range(2, size // stride + 1) if size // stride % n == 0])
        is_switch = is_switch or rng.random() < 0.5
        link = "switch" if is_switch else rng.choice(links)
        levels.append(Level(stride, part, link, rng.choice((1.0, 2.0, 9.0)), rng.choice((0.5, 1.0, 3.0))))
        stride *= part
    return tuple(levels)


def drawn_ends(rng: Random, mesh: Mesh, dims: int) -> tuple[Sharding, Sharding]:
    """Axes in any order on any dim, or on none; at the source some partial."""
    ends = []
    for may_be_partial in (1, 0):
        places: list[list[str]] = [[] for _ in range(dims + 2)]
        for axis in rng.sample(list(mesh.sizes), len(mesh.sizes)):
            places[rng.randrange(dims + 1 + may_be_partial)].append(axis)
        ends.append(Sharding.of(mesh, *places[:dims], unreduced=places[dims + 1]))
    return ends[0], ends[1]


def drawn_tilings(rng: Random) -> tuple[Tiling, Tiling]:
    mesh = Mesh.of(dict(zip("abc", rng.choice(SIZES), strict=False)))
    shape = tuple(rng.randint(1, 40) for _ in range(rng.choice((1, 2, 3))))
    source, target = drawn_ends(rng, mesh, len(shape))
    return Tiling.of(source, shape), Tiling.of(target, shape)


@pytest.mark.parametrize("most_values", [dim_crossing.MOST_VALUES, 8])
@pytest.mark.parametrize("count", [80, pytest.param(1000, marks=pytest.mark.slow)])
def test_what_crosses_is_the_same_dim_by_dim_and_device_by_device(
    count: int, most_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dim_crossing, "MOST_VALUES", most_values)
    rng = Random(count)
    counted = 0
    for _ in range(count):
        sides = Sides(*drawn_tilings(rng), 2)
        network = Network(drawn_levels(rng, sides.source.mesh.size, ("ring", "line")))
        members = [
            np.array([[True] * level.size, *([rng.random() < 0.5 for _ in range(level.size)] for _ in range(3))])
            for level in network.levels
        ]
        monkeypatch.setattr(crossing, "FEW_INCIDENCES", 2**62)
        by_device = crossing_by_boxes(sides, network, members)
        ends = sides.source, sides.target
        by_dim = dim_crossing.crossing_by_dims(ends, sides.classes, np.int64, network, members)
        counted += by_dim is not None
        assert by_dim is None or (by_dim * 2 == by_device).all()
    assert counted > count / 2


def loads_of_ports(exchange: DigitExchange, levels: tuple[Level, ...]) -> Loads:
    """What goes through switches, piece by piece: through that of the outermost level in which two devices differ."""
    carried = [Counter[tuple[int, int]]() for _ in levels]
    waits = Counter[tuple[int, int]]()
    for device in exchange.target.mesh.devices:
        for piece in exchange.incoming(device):
            differ = [
                n for n, level in enumerate(levels) if level.digit.value(piece.sender) != level.digit.value(device)
            ]
            for end, name in enumerate((piece.sender, device)) if differ else ():
                carried[differ[-1]][end, name] += piece.box.size
                waits[end, name] += levels[differ[-1]].latency_s
    fullest = tuple(float(max(ports.values(), default=0)) for ports in carried)
    return Loads(fullest, max(waits.values(), default=0.0), 0.0)


@pytest.mark.parametrize("count", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_pieces_that_differ_in_size_put_on_links_what_they_do_one_by_one(count: int) -> None:
    """Hops of pieces that are empty count too, so there may be more of them."""
    rng = Random(count)
    counted = by_ports = 0
    while counted < count:
        source, target = drawn_tilings(rng)
        try:
            exchange = find_exchange(source, target, rng.choice((0, 0, 4)))
        except ReshardError:
            continue
        levels = drawn_levels(rng, source.mesh.size, ("ring", "line", "one-way-ring"))
        together = unlike_piece_loads(exchange, Network(levels)) if isinstance(exchange, DigitExchange) else None
        if not isinstance(exchange, DigitExchange) or together is None:
            continue
        counted += 1
        senders, receivers, elements = exchange.traffic()
        known = [loads(levels, senders, receivers, elements)] if len(senders) else []
        if all(level.is_switch for level in levels) and exchange.loose_values == 1:
            known.append(loads_of_ports(exchange, levels))
            by_ports += 1
        for apart in known:
            assert together.carried == pytest.approx(apart.carried)
            assert together.waits_s == pytest.approx(apart.waits_s)
            assert together.hops_s >= apart.hops_s
    assert by_ports > count / 10


def pod_of(count: int) -> tuple[Mesh, Network]:
    mesh = Mesh.of(pod=count // 64, host=8, chip=8)
    return mesh, Network.of(mesh, POD)


@pytest.mark.parametrize(
    ("devices", "ends", "most_calls"),
    [
        (4096, (("pod", ("chip", "host")), (("host", "pod"), "chip")), 700_000),
        (4096, (("host", "chip"), ("chip", None)), 500_000),
        (4096, ((None, ("pod", "host")), (None, "chip")), 700_000),
        (65536, (("pod", "host"), (None, "pod")), 500_000),
        (65536, ((("chip", "host"), None), (None, ("chip", "host", "pod"))), 500_000),
    ],
)
def test_plans_on_many_devices_take_little_and_are_right(
    devices: int, ends: tuple[tuple[object, ...], ...], most_calls: int
) -> None:
    """Those of 65,536 devices were refused, with 63 million pairs of tiles."""
    mesh, network = pod_of(devices)
    source, target = (Sharding.of(mesh, *dims) for dims in ends)
    shape = (devices * 4 + 37, devices * 4 + 1)
    cache_clear()
    made, calls = calls_of(lambda: plan(source, target, shape, "bf16", network=network))
    assert calls < most_calls
    assert made.seconds is not None
    assert made.lower_bound_seconds is not None
    assert 0 < made.lower_bound_seconds <= made.seconds < 40 * made.lower_bound_seconds + 1e-3
    assert made.steps[0].before == source
    assert made.steps[-1].after == target
    for device in (0, devices - 1, devices // 2 + 3):
        pieces = made.steps[-1].moves[-1].exchange.incoming(device)
        assert sum(piece.box.size for piece in pieces) == target.box(device, shape).size


@pytest.mark.parametrize("lengths", [(65536, 8192, 28672), (65537, 8191, 28001)], ids=["even", "uneven"])
@pytest.mark.slow
def test_a_product_on_many_devices_ends_with_the_best_found(lengths: tuple[int, int, int]) -> None:
    """By what is counted and not timed, so that all who plan it come to the same end; uneven ones took minutes."""
    mesh, network = pod_of(4096)
    operand = Sharding.of(mesh, ("pod", "host"), "chip")
    shapes = [lengths[:2], lengths[1:]]
    product, calls = calls_of(
        lambda: einsum("ij,jk->ik", operand, operand, target=operand, shapes=shapes, dtype="bf16", network=network)
    )
    assert calls < 40_000_000
    assert not product.is_proved
    assert product.seconds is not None
    assert 2 * prod(lengths) / 4096 / 1e18 < product.seconds < 1e-3
