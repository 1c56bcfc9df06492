"""The weak graph: how many parts every dim is cut into, and nothing of which devices hold which.

A node says per dim how many digits of each size cut it; an edge is one collective, with what it receives.
A chain of collectives walks along edges here, a Permute stays where it is, so a distance here is never more than
the chain costs: it guides the search among shardings, where there are thousands of them for one node.

A cost is one integer that orders by bytes and then by steps: `units * STEP_LIMIT + steps`.
A unit is so small that all costs are whole: with D devices the tile of a node of P parts has D * D / P units, so
a unit is the tensor over D * D on each device.

By hand, on 4 devices of two digits of size 2, for a matrix: nodes (dim 0, dim 1) from (1, 1) to (4, 1) and (1, 4),
and the tile of (2, 1) has 16 / 2 = 8 units.
To gather it costs 16 - 8 = 8 units, to move the cut to dim 1 costs 8 - 8 / 2 = 4.

>>> graph = weak_graph(4, ((2, 2),), 2)
>>> start, end = graph.index[(1, 0)], graph.index[(0, 1)]
>>> graph.units[start], divmod(int(graph.costs[start, end]), STEP_LIMIT)
(np.int64(8), (4, 1))
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

STEP_LIMIT = 64
"""Chains are shorter than this, so that steps never count for a unit."""
FAR = 2**61
"""The cost of what cannot be reached."""
NODES = 1100
"""Larger graphs are not built: their edges would be too many to hold."""


@dataclass(frozen=True)
class WeakGraph:
    """Nodes, their tiles, and the cost of the one collective between any two."""

    classes: tuple[tuple[int, int], ...]
    """The sizes of digits, ascending, with how many there are of each."""
    ndim: int
    nodes: Numbers
    """A row per node: per dim and per class of digit sizes, how many digits of the class cut the dim."""
    index: dict[tuple[int, ...], int]
    """The row of each node."""
    parts: Numbers
    """Per node and dim, the number of parts."""
    units: Numbers
    """Per node, the units of its tile."""
    costs: Numbers
    """From node to node, units and a step; `FAR` where it takes more than one collective."""

    def allowed(self, shape: Sequence[int]) -> NDArray[np.bool_]:
        """The nodes that cut every dim of a shape evenly."""
        divides: NDArray[np.bool_] = (np.array(shape, dtype=np.int64) % self.parts == 0).all(axis=1)
        return divides


def node_count(classes: Sequence[tuple[int, int]], ndim: int) -> int:
    """How many nodes a graph has.

    >>> [node_count(((2, 8),), ndim) for ndim in (2, 3, 4)]
    [45, 165, 495]
    """
    return prod(comb(count + ndim, ndim) for _, count in classes)


@lru_cache(8)
def weak_graph(devices: int, classes: tuple[tuple[int, int], ...], ndim: int) -> WeakGraph:
    """The graph of so many devices, of which digits of these sizes may cut so many dims."""
    per_class = [_shares(count, ndim) for _, count in classes]
    rows = [tuple(counts[dim] for dim in range(ndim) for counts in chosen) for chosen in itertools.product(*per_class)]
    nodes = np.array(rows, dtype=np.int64).reshape(len(rows), ndim * len(classes))
    sizes = np.array([size for size, _ in classes], dtype=np.int64)
    parts = (sizes ** nodes.reshape(len(rows), ndim, len(classes))).prod(axis=2, dtype=np.int64)
    units = devices * devices // parts.prod(axis=1, dtype=np.int64)
    costs = _costs(nodes.reshape(len(rows), ndim, len(classes)), sizes, units)
    return WeakGraph(classes, ndim, nodes, {row: i for i, row in enumerate(rows)}, parts, units, costs)


def _shares(count: int, ndim: int) -> list[tuple[int, ...]]:
    """How many of so many digits may cut each dim, in order: bars among the digits part the dims, and what is left.

    >>> _shares(2, 2)
    [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
    """
    bars = itertools.combinations(range(count + ndim), ndim)
    return [tuple(after - before - 1 for before, after in itertools.pairwise((-1, *row))) for row in bars]


def _costs(nodes: Numbers, sizes: Numbers, units: Numbers) -> Numbers:
    """The cost of every pair: what grows everywhere is a slice, what shrinks a gather, what moves an all-to-all."""
    change = (nodes[None] - nodes[:, None]).astype(np.int8)
    grows, shrinks = (change >= 0).all(axis=(2, 3)), (change <= 0).all(axis=(2, 3))
    costs = np.full((len(nodes), len(nodes)), FAR, dtype=np.int64)
    costs[shrinks] = ((units[None] - units[:, None]) * STEP_LIMIT)[shrinks]
    costs[grows] = 0
    codes = (change.astype(np.int64) * 64 ** np.arange(len(sizes))).sum(axis=3)
    ordered = np.sort(codes, axis=2)
    one_way = np.all(np.all(change >= 0, axis=3) | np.all(change <= 0, axis=3), axis=2)
    moves = one_way & (ordered == -ordered[:, :, ::-1]).all(axis=2) & ~grows
    before, after = np.nonzero(moves)
    moved = (sizes ** np.maximum(change[before, after], 0).sum(axis=1)).prod(axis=1, dtype=np.int64)
    costs[before, after] = (units[before] - units[before] // moved) * STEP_LIMIT
    costs[costs < FAR] += 1
    np.fill_diagonal(costs, FAR)
    return costs


def distances(costs: Numbers, start: Numbers) -> Numbers:
    """The least costs of reaching each node's best end: `start` holds what an end costs at each node.

    `costs[i, j]` leads from i to j, and distances run from i; its transpose turns them round.
    """
    nearest = start
    while True:
        nearer = np.minimum(nearest, (costs + nearest[None]).min(axis=1))
        if np.array_equal(nearer, nearest):
            return nearest
        nearest = np.minimum(nearer, FAR)
