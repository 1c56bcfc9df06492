"""The bases of named collectives: how long the searches take, and what they save against Shardy's own pass.

Shardy is the copy inside jaxlib; without it only the times are measured.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import reshard as rs
from bench.planning import SMALL
from bench.timing import Row, seconds, within
from reshard.collectives import states
from reshard.collectives.fewest_bytes import fewest_bytes_chain, total_bytes
from reshard.collectives.one_axis import one_axis_chain
from reshard.collectives.weak import weak_graph
from reshard.problem import Reshard

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the reader of Shardy's answers lies with the tests

FAMILIES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "2x2, rank 2": ((2, 2), (16, 16)),
    "2x2x2, rank 2": ((2, 2, 2), (16, 16)),
    "4x2, rank 2": ((4, 2), (16, 16)),
    "4x2x2, rank 2": ((4, 2, 2), (32, 32)),
    "2x3x5, rank 2": ((2, 3, 5), (60, 60)),
    "3x3x2, rank 2": ((3, 3, 2), (36, 36)),
    "2x3x2, rank 3": ((2, 3, 2), (12, 12, 12)),
}
PAIRS = 600
OF_WEAK_GRAPHS = weak_graph, states._steps_of, states._costs, states._ahead, states._behind
"""What is kept of weak graphs."""


def spread(call: Callable[[rs.Sharding, rs.Sharding], object], ndim: int, *, fresh: bool) -> list[float]:
    """The times in milliseconds of 200 pairs on 256 devices, ascending; fresh ones make the weak graph as well."""
    rng = random.Random(ndim)
    times = []
    for _ in range(200):
        pair = (drawn(SMALL, rng, ndim), drawn(SMALL, rng, ndim))
        if fresh:
            for kept in OF_WEAK_GRAPHS:
                kept.cache_clear()
        times.append(1e3 * seconds(lambda pair=pair: call(*pair)))
    return sorted(times)[: -1 if fresh else None]


def drawn(mesh: rs.Mesh, rng: random.Random, ndim: int) -> rs.Sharding:
    """A sharding: every axis cuts one of the dims or none, in any order."""
    names = [name for name, _ in mesh.axes]
    rng.shuffle(names)
    dims: list[list[str]] = [[] for _ in range(ndim)]
    for name in names:
        place = rng.randrange(ndim + 1)
        if place < ndim:
            dims[place].append(name)
    return rs.Sharding.of(mesh, *dims)


def times() -> Iterator[Row]:
    """How long the searches take."""
    for ndim, limit in ((2, 5.0), (3, 30.0)):
        shape = (2048,) * ndim
        for fresh in (False, True):
            found = spread(lambda *ends, shape=shape: fewest_bytes_chain(Reshard.of(*ends, shape)), ndim, fresh=fresh)
            note = f" in the median of {len(found)} pairs, {found[-1]:.3g} ms at most"
            title = f"collectives, rank {ndim}, 5 axes of 256 devices" + (", and its weak graph" if fresh else "")
            yield within(title, statistics.median(found), limit, note)
            if not fresh:
                yield within(f"{title}, 99 of 100", found[int(len(found) * 0.99)], 400.0)
        found = spread(lambda *ends, shape=shape: one_axis_chain(Reshard.of(*ends, shape)), ndim, fresh=False)
        note = f" in the median of {len(found)} pairs, {found[-1]:.3g} ms at most"
        yield Row(
            f"one axis at a time, rank {ndim}, 5 axes of 256 devices",
            f"{statistics.median(found):.3g} ms{note}",
            "",
            None,
        )


def pairs_of(sizes: tuple[int, ...], ndim: int) -> list[tuple[rs.Sharding, rs.Sharding]]:
    """Pairs of shardings that use axes whole: all, or so many drawn at random."""
    mesh = rs.Mesh.of(zip("abcd", sizes, strict=False))
    shardings = list(importlib.import_module("problems").full_axis_shardings(mesh, ndim))
    pairs = [pair for pair in product(shardings, shardings) if pair[0] != pair[1]]
    return pairs if len(pairs) <= PAIRS else random.Random(0).sample(pairs, PAIRS)


def against_shardy() -> Iterator[Row]:
    """How often Shardy's pass receives more, by how much, and how often it ends elsewhere."""
    shardy = importlib.import_module("shardy_pass")
    for name, (sizes, shape) in FAMILIES.items():
        pairs = pairs_of(sizes, len(shape))
        ratios, totals, wrong, proved, steps = [], [0, 0], 0, 0, [0, 0]
        for pair, points in zip(pairs, shardy.shardy_points(pairs, shape), strict=True):
            ours, sure = fewest_bytes_chain(Reshard.of(*pair, shape, "int8"))
            proved += sure
            if points is None or points[-1] != pair[1]:
                wrong += 1
                continue
            theirs = shardy.received(points, shape)
            both = total_bytes(ours), total_bytes(theirs)
            totals = [sum(sums) for sums in zip(totals, both, strict=True)]
            steps = [sum(sums) for sums in zip(steps, (len(ours), len(theirs)), strict=True)]
            ratios.append(both[1] / both[0] if both[0] else 1.0)
        more = sum(ratio > 1 for ratio in ratios)
        yield Row(
            f"Shardy's pass, {name}, {len(pairs)} pairs",
            f"receives more in {100 * more / len(pairs):.0f} %, {totals[1] / totals[0]:.3f} times in all, "
            f"{max(ratios):.2f} times at worst; {steps[1] / steps[0]:.2f} times the steps; wrong end in {wrong}",
            "never less",
            min(ratios) >= 1,
        )
        yield Row(f"proved least, {name}", f"{proved} of {len(pairs)}", "all", proved == len(pairs))


def one_axis() -> Iterator[Row]:
    """What it costs to handle one axis at a time."""
    for name in ("2x2x2, rank 2", "2x3x5, rank 2"):
        sizes, shape = FAMILIES[name]
        sums = [0, 0, 0, 0]
        for pair in pairs_of(sizes, len(shape)):
            reshard = Reshard.of(*pair, shape, "int8")
            chains = [fewest_bytes_chain(reshard)[0]]
            chains += [one_axis_chain(reshard, order=order) for order in ("cheapest", "document")]
            found = [*map(total_bytes, chains), rs.plan(*pair, shape, "int8").total_received_bytes]
            sums = [total + count for total, count in zip(sums, found, strict=True)]
        words = ("collectives", "one axis at a time", "the document's order")
        text = ", ".join(f"{word} {total / sums[3]:.3f}" for word, total in zip(words, sums, strict=False))
        yield Row(f"bytes against the exchange's, {name}", text, "", None)


def rows() -> Iterator[Row]:
    """Every figure of the bases."""
    yield from times()
    yield from one_axis()
    if importlib.util.find_spec("jaxlib"):
        yield from against_shardy()
