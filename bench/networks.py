"""How long it takes to plan on a network, without the cache, and what the choice saves."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator

import numpy as np

import reshard as rs
from bench.planning import SMALL, drawn
from bench.timing import Row, medians, within
from reshard.collectives import fewest_bytes
from reshard.exchange import ring_flows
from reshard.network import Level, Network, digit_loads, link_use, ring_loads, seconds_of
from reshard.network.patterns import Pattern
from reshard.planner import cache_clear, level_moves, level_ways
from reshard.steps import chain_through

SHAPE, LARGE = (2048, 2048), (16384, 16384)
"""Of 16 MiB, where latencies decide, and of 1 GiB, where bytes do."""
PATTERNS = (
    fewest_bytes._search,
    ring_loads._cut,
    ring_flows.RingUnits.of,
    ring_flows.KindsAndFlows.of,
    link_use.piece_loads,
    link_use.stages_of_group,
    link_use._least_carried,
    link_use._stages_of_pattern,
    digit_loads._fullest_of_alike,
    digit_loads._mean_passing,
    Pattern.of,
    level_ways._graph,
    level_moves._load,
    level_moves._load_of_collective,
    level_moves.level_moves,
)
"""What is kept of digits: of chains of collectives, and of patterns of exchanges, whatever tensors follow them."""
HOSTS = rs.Mesh.of(A=4, B=4, C=2, D=4)
"""16 hosts of 8 devices."""
NINE_TO_ONE = Network((Level(1, 8, "switch", 450e9, 0.0), Level(8, 16, "switch", 50e9, 0.0)), name="16x8")
"""Bandwidths alone, as those of h100-16x8."""
WITH_LATENCY = Network.preset("h100-16x8")


def planned(
    source: rs.Sharding, target: rs.Sharding, network: Network, shape: tuple[int, int] = SHAPE, *, cold: bool
) -> Callable[[], float | None]:
    """A call that plans afresh; where it is cold, what is known of the digits is forgotten too."""

    def call() -> float | None:
        cache_clear()
        if cold:
            for kept in PATTERNS:
                kept.cache_clear()
        return rs.plan(source, target, shape, "float32", network=network).seconds

    return call


def seconds(source: rs.Sharding, target: rs.Sharding, network: Network) -> float:
    """What the chosen plan takes."""
    return rs.plan(source, target, SHAPE, "float32", network=network).seconds or 0.0


def savings(network: Network) -> Iterator[Row]:
    """How many times as much the flat exchange and a gather take, over 200 pairs of which the plan sends something."""
    rng = random.Random(0)
    ratios: dict[str, list[float]] = {"the flat exchange": [], "a gather, then a slice": []}
    while len(ratios["the flat exchange"]) < 200:
        source, target = drawn(HOSTS, rng), drawn(HOSTS, rng)
        ours = seconds(source, target, network)
        if not ours:
            continue
        whole = rs.Sharding.of(HOSTS, None, None)
        flat = rs.plan(source, target, SHAPE, "float32")
        gather = chain_through(flat.reshard, whole)
        for name, steps in zip(ratios, (flat.steps, gather), strict=True):
            ratios[name].append(sum(seconds_of(step, network) for step in steps) / ours)
    for name, found in ratios.items():
        low, middle, high = (float(np.quantile(found, part)) for part in (0, 0.5, 0.9))
        figures = f"{middle:.3g} in the median, {high:.3g} at the 90th percentile, {max(found):.3g} at most"
        what = f"{name} against the plan, {network.name}, 200 pairs"
        yield Row(what, f"times as long: {figures}; {low:.3g} at least", "at least 1", low >= 1 - 1e-9)


def triangles(network: Network) -> Row:
    """Of 300 random triples, how often the way by a third sharding is cheaper, and by how much."""
    rng = random.Random(1)
    excess = []
    for _ in range(300):
        first, second, third = (drawn(HOSTS, rng) for _ in range(3))
        around = seconds(first, second, network) + seconds(second, third, network)
        direct = seconds(first, third, network)
        if direct > around * (1 + 1e-9):
            excess.append(direct / around)
    size = f"; {statistics.median(excess):.3g} times in the median, {max(excess):.3g} at most" if excess else ""
    what = f"triples where a third sharding makes it cheaper, {network.name}"
    return Row(what, f"{len(excess)} of 300{size}", "", None)


def rows() -> Iterator[Row]:
    """Every figure of planning on networks."""
    for name in ("h100-32x8", "tpu-v5e-16x16"):
        network, rng = Network.preset(name), random.Random(0)
        pairs = [(drawn(SMALL, rng), drawn(SMALL, rng)) for _ in range(200)]
        for shape, count, cold in ((SHAPE, 200, True), (SHAPE, 200, False), (LARGE, 100, True), (LARGE, 100, False)):
            times = [1e3 * medians([planned(*pair, network, shape, cold=cold)], 5)[0] for pair in pairs[:count]]
            size = "16 MiB" if shape == SHAPE else "1 GiB"
            what = f"plan {size} on {name}, 5 axes, {'new patterns' if cold else 'patterns priced before'}"
            yield within(f"{what}, the median of {count} pairs", statistics.median(times), 5.0)
            yield within(f"{what}, the 99th percentile", float(np.quantile(times, 0.99)), 50.0)
    for network in (NINE_TO_ONE, WITH_LATENCY):
        yield from savings(network)
    for network in (NINE_TO_ONE, WITH_LATENCY):
        yield triangles(network)
