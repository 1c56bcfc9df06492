"""How far plans on networks are from the least time that a cut proves."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, log
from typing import NamedTuple

import reshard as rs
from bench.timing import Row
from reshard.axis import Axis
from reshard.network import Network

MESHES: dict[str, list[dict[str, int]]] = {
    "h100-32x8": [{"h": 32, "g": 8}, {"a": 4, "b": 8, "c": 8}, {"a": 16, "b": 16}],
    "gb200-nvl72-4x72": [{"h": 4, "g": 72}, {"a": 4, "b": 8, "c": 9}, {"a": 4, "b": 72}],
    "tpu-v5e-16x16": [{"x": 16, "y": 16}, {"a": 4, "b": 4, "c": 16}, {"a": 16, "b": 2, "c": 8}],
    "tpu-v5p-8x8x8": [{"x": 8, "y": 8, "z": 8}, {"a": 8, "b": 64}, {"a": 4, "b": 2, "c": 64}],
}
"""Axes of the devices of each network."""
ASTRIDE: dict[str, list[dict[str, int]]] = {
    "gb200-nvl72-4x72": [{"data": 18, "model": 16}, {"data": 9, "model": 32}, {"data": 6, "model": 48}],
}
"""Axes that do not nest in hosts."""
EVEN, UNEVEN = (9216 * 64, 9216 * 32), (9216 * 64 - 5, 9216 * 32 - 7)
"""Large enough that latencies do not decide."""
ODD = (128257, 30011)
"""Of which tiles are far from those of the next tensor that all axes divide: a vocabulary by a prime."""
PAIRS, FEW = 300, 60
KINDS = 4
"""How many kinds of plan are told apart, those that are furthest in all."""


def drawn(mesh: rs.Mesh, rng: random.Random, *, partial: bool = False) -> rs.Sharding:
    """Every axis on either dim, on none, or partial."""
    dims: list[list[str]] = [[], []]
    unreduced = []
    for axis in rng.sample(list(mesh.sizes), len(mesh.sizes)):
        where = rng.random()
        if partial and where < 0.3:
            unreduced.append(axis)
        elif where < 0.8:
            dims[rng.randrange(2)].append(axis)
    return rs.Sharding.of(mesh, *dims, unreduced=unreduced)


class Drawn(NamedTuple):
    """A pair of which something must cross, planned."""

    kind: str
    """The steps of the plan's first share."""
    is_whole: bool
    """Whether no axis is a part of a level."""
    ratio: float
    """How many times the least the plan takes."""


def ratios(
    network: Network,
    shape: tuple[int, int],
    count: int,
    *,
    partial: bool = False,
    meshes: Mapping[str, Sequence[dict[str, int]]] = MESHES,
) -> list[Drawn]:
    """So many pairs of which something must cross."""
    rng = random.Random(f"{network.name} {shape} {partial}")
    found: list[Drawn] = []
    edges = {level.stride for level in network.levels}
    while len(found) < count:
        mesh = rs.Mesh.of(rng.choice(meshes[network.name]))
        source, target = drawn(mesh, rng, partial=partial), drawn(mesh, rng)
        if partial and not source.unreduced:
            continue
        plan = rs.plan(source, target, shape, "bf16", network=network)
        if plan.lower_bound_seconds and plan.seconds:
            kind = " + ".join(step.kind for step in plan.steps)
            strides = {mesh.digit_of(Axis(name)).stride for name in mesh.sizes}
            found.append(Drawn(kind, strides <= edges, plan.seconds / plan.lower_bound_seconds))
    return found


def geomean(values: list[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, values)) / len(values))


def rows() -> Iterator[Row]:
    """Plans against cuts, on even shapes, uneven ones, and where values are combined."""
    for name in MESHES:
        network = Network.preset(name)
        for what, shape, partial in (
            ("even", EVEN, False),
            ("uneven", UNEVEN, False),
            ("odd", ODD, False),
            ("partial", EVEN, True),
        ):
            found = ratios(network, shape, PAIRS if what == "even" else FEW, partial=partial)
            values = [pair.ratio for pair in found]
            mean = geomean(values)
            figures = (
                f"{mean:.3f} times the least in the geometric mean, {statistics.median(values):.3f} in the median, "
                f"{max(values):.3g} at most, {sum(ratio < 1.01 for ratio in values) / len(values):.0%} within 1 %"
            )
            wanted, holds = ("at most 1.10", mean <= 1.1) if what == "even" else ("", None)
            yield Row(f"plans on {name}, {len(values)} {what} pairs of {shape[0]} x {shape[1]}", figures, wanted, holds)
            if what == "even":
                by_kind: dict[str, list[float]] = defaultdict(list)
                for pair in found:
                    by_kind[pair.kind].append(pair.ratio)
                furthest = sorted(by_kind.items(), key=lambda item: -sum(map(log, item[1])))[:KINDS]
                kinds = [f"{kind}: {len(some)} pairs, {geomean(some):.3f}" for kind, some in furthest]
                yield Row(f"the kinds of plan furthest from it, {name}", "; ".join(kinds), "", None)
                for is_whole, which in ((True, "that are whole levels"), (False, "that are parts of levels")):
                    some = [pair.ratio for pair in found if pair.is_whole == is_whole]
                    told = f"{geomean(some):.3f} times, {len(some)} pairs"
                    yield Row(f"of these the pairs on axes {which}, {name}", told, "", None)
        whole = replace(network, levels=tuple(replace(level, latency_s=0.0) for level in network.levels), launch_s=0.0)
        values = [pair.ratio for pair in ratios(whole, EVEN, FEW)]
        yield Row(f"the same without latencies, {name}, {FEW} pairs", f"{geomean(values):.3f} times", "", None)
        if name in ASTRIDE:
            values = [pair.ratio for pair in ratios(network, EVEN, FEW, meshes=ASTRIDE)]
            figures = f"{geomean(values):.3f} times, {max(values):.3g} at most"
            yield Row(f"{FEW} pairs on axes that do not nest in hosts, {name}", figures, "", None)
