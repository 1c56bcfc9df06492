"""How long it takes to plan, without the cache, and to find one device's pieces."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator

import reshard as rs
from bench.timing import Row, medians, within
from reshard.planner import cache_clear

SMALL = rs.Mesh.of(A=4, B=4, C=2, D=2, E=4)
LARGE = rs.Mesh.of(A=16, B=16, C=8, D=8, E=4)


def drawn(mesh: rs.Mesh, rng: random.Random) -> rs.Sharding:
    """A sharding of a matrix: every axis cuts dim 0, dim 1 or none, in any order."""
    names = [name for name, _ in mesh.axes]
    rng.shuffle(names)
    dims: list[list[str]] = [[], []]
    for name in names:
        place = rng.randrange(3)
        if place < 2:
            dims[place].append(name)
    return rs.Sharding.of(mesh, *dims)


def planned(source: rs.Sharding, target: rs.Sharding, shape: tuple[int, int]) -> Callable[[], tuple[int, int]]:
    """A call that plans afresh and asks for what is received and for the bound."""

    def call() -> tuple[int, int]:
        cache_clear()
        plan = rs.plan(source, target, shape, "float32")
        return plan.received_bytes, plan.lower_bound_bytes

    return call


def rows() -> Iterator[Row]:
    """Every figure of planning."""
    for title, mesh, shape, limit in (
        ("256 devices", SMALL, (2048, 2048), 1.0),
        ("65,536 devices", LARGE, (65536, 65536), 2.0),
    ):
        rng = random.Random(0)
        pairs = [(drawn(mesh, rng), drawn(mesh, rng)) for _ in range(100)]
        times = [1e3 * medians([planned(*pair, shape)], 20)[0] for pair in pairs]
        note = f" in the median of 100 pairs, {max(times):.3g} ms at most"
        yield within(f"plan by digits, 5 axes, {title}", statistics.median(times), limit, note)
    one = LARGE
    pieces = (
        ("digits", rs.Sharding.of(one, ("A", "C"), "D"), rs.Sharding.of(one, "A", None), (65536, 65536)),
        ("boxes", rs.Sharding.of(one, ("A", "B"), "C"), rs.Sharding.of(one, "E", ("A", "B")), (1000, 3001)),
    )
    for way, source, target, shape in pieces:
        exchange = rs.plan(source, target, shape).steps[0].moves[0].exchange
        partners = max(len(exchange.incoming(777)), len(exchange.outgoing(777)))
        (time,) = medians([lambda exchange=exchange: (exchange.incoming(777), exchange.outgoing(777))], 100)
        yield within(f"one device's pieces by {way}, {partners} partners, 65,536 devices", 1e3 * time, 1.0)
    for source, target in ((pieces[1][1], pieces[1][2]), (rs.Sharding.of(one, "A"), rs.Sharding.of(one, ("C", "B")))):
        shape = (1000, 3001)[: len(source.dims)]
        (time,) = medians([planned(source, target, shape)], 20)
        yield within(f"plan by boxes, {source.text()} -> {target.text()}, 65,536 devices", 1e3 * time, 50.0)
