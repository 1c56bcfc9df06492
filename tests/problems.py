"""Reshards to hold the package to: drawn by a seed, and all that one mesh allows.

A draw mixes what is easy to get wrong: sub-axes used interleaved and in reverse, axes of size 1, sizes that nothing
divides, dims of size 0 and 1, scalars, both rules for uneven dims, other factors of the same devices, other orders,
meshes that share some devices or none, one device alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations_with_replacement, pairwise, permutations
from math import prod
from random import Random
from typing import NamedTuple

from reshard.axis import Axis
from reshard.mesh import Mesh
from reshard.network import Level, Network
from reshard.sharding import Sharding

FACTORS = (
    *((1,), (2,), (3,), (5,), (6,), (8,), (12,), (16,), (24,)),
    *((2, 2), (4, 2), (2, 3), (3, 2), (6, 2), (4, 4), (3, 3), (1, 4), (8, 3), (4, 6), (2, 12)),
    *((2, 2, 2), (2, 3, 2), (4, 1, 3), (2, 2, 3), (2, 4, 3), (2, 3, 5), (1, 1, 2), (2, 2, 2, 2), (2, 1, 2, 3)),
)
"""Sizes of axes; at most 30 devices."""
NAMES = "abcd"

EXACT = (
    ("sum", "int32"),
    ("sum", "int64"),
    ("sum", "complex128"),
    ("avg", "float64"),
    ("avg", "float32"),
    ("product", "int64"),
    ("max", "int16"),
    ("max", "float32"),
    ("min", "uint8"),
    ("min", "bool"),
    ("band", "uint16"),
    ("bor", "int8"),
    ("bxor", "uint32"),
    ("bxor", "bool"),
)
"""Reductions with dtypes under which small integers stay exact whatever the order."""


class Problem(NamedTuple):
    """A tensor and where it goes."""

    source: Sharding
    target: Sharding
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}, {self.shape} {self.dtype}"


def switches(*sizes_and_speeds: tuple[int, float], latency_s: float = 0.0) -> Network:
    """Switches, innermost first."""
    levels, stride = [], 1
    for size, bandwidth in sizes_and_speeds:
        levels.append(Level(stride, size, "switch", bandwidth, latency_s))
        stride *= size
    return Network(tuple(levels))


def divisors(n: int) -> list[int]:
    """The divisors of n, 1 and n among them."""
    return [d for d in range(1, n + 1) if n % d == 0]


@cache
def factorisations(n: int) -> tuple[tuple[int, ...], ...]:
    """All ways to write n as a product of sizes of at least 2, in order."""
    if n == 1:
        return ((),)
    return tuple((first, *rest) for first in divisors(n)[1:] for rest in factorisations(n // first))


def full_axis_shardings(mesh: Mesh, ndim: int) -> Iterator[Sharding]:
    """Every sharding of a rank that uses axes whole: all choices and all orders of axes, per dim."""
    names = [name for name, _ in mesh.axes]
    for count in range(len(names) + 1):
        for chosen in permutations(names, count):
            for ends in combinations_with_replacement(range(count + 1), ndim - 1):
                cuts = [0, *ends, count]
                yield Sharding.of(mesh, *(chosen[a:b] for a, b in pairwise(cuts)))


def split_axis(rng: Random, name: str, size: int) -> list[Axis]:
    """An axis, whole or cut into parts at random, major to minor."""
    cuts = [1]
    while rng.random() < 0.8 and cuts[-1] < size:
        steps = [step for step in range(2, size // cuts[-1] + 1) if size // cuts[-1] % step == 0]
        cuts.append(cuts[-1] * rng.choice(steps))
    if cuts[-1] != size:
        cuts.append(size)
    if len(cuts) <= 2:
        return [Axis(name)]
    return [Axis(name, a, b // a) for a, b in pairwise(cuts)]


def draw_sharding(rng: Random, mesh: Mesh, ndim: int, *, partial: bool = False, reduction: str = "sum") -> Sharding:
    """A sharding with whole axes and sub-axes in any order; where asked for with unreduced axes as well."""
    if mesh.is_maximal:
        return Sharding(mesh, ())
    rule = "chunk" if rng.random() < 0.3 else "ceil"
    parts = [part for name, size in mesh.axes for part in split_axis(rng, name, size)]
    rng.shuffle(parts)
    homes: list[list[Axis]] = [[] for _ in range(ndim)]
    unreduced: list[Axis] = []
    places = [*homes, *homes, *([unreduced] * 2 if partial else []), []]
    for part in parts:
        rng.choice(places).append(part)
    return Sharding.of(mesh, *homes, unreduced=unreduced, reduction=reduction, uneven=rule)


def draw_mesh(rng: Random) -> Mesh:
    """A mesh of at most 30 devices: in the usual order, in another, or over a part of the world."""
    factors = rng.choice(FACTORS)
    count = prod(factors)
    axes = zip(NAMES, factors, strict=False)
    kind = rng.random()
    if kind < 0.6:
        return Mesh.of(axes)
    if kind < 0.7:
        return Mesh.of(device_ids=(rng.randrange(9),))
    start = 0 if kind < 0.85 else rng.randrange(20)
    return Mesh.of(axes, device_ids=rng.sample(range(start, start + count + (0 if kind < 0.9 else 4)), count))


def transposed(rng: Random, factors: tuple[int, ...]) -> list[int]:
    """The numbers of devices in an order that is a random transposition of the digits of a mesh."""
    return transposed_to(rng.sample(range(len(factors)), len(factors)), factors)


def transposed_to(order: Sequence[int], factors: tuple[int, ...]) -> list[int]:
    """The numbers of devices when the digits of a mesh are listed in another order, the last fastest."""
    strides = [prod(factors[place + 1 :]) for place in range(len(factors))]
    ids = [0]
    for place in order:
        ids = [device + value * strides[place] for device in ids for value in range(factors[place])]
    return ids


def other_mesh(rng: Random, mesh: Mesh) -> Mesh:
    """A mesh beside a given one: the same, the same devices otherwise, or devices that are partly or all others."""
    kind = rng.random()
    if kind < 0.45:
        return mesh
    same_count = [factors for factors in FACTORS if prod(factors) == mesh.size]
    ids = list(mesh.device_ids or range(mesh.size))
    if not same_count:
        return draw_mesh(rng)
    factors = rng.choice(same_count)
    axes = list(zip("pqrs", factors, strict=False))
    if kind < 0.6:
        return Mesh.of(axes, device_ids=ids)
    if kind < 0.7:
        return Mesh.of(axes, device_ids=[ids[place] for place in transposed(rng, factors)])
    if kind < 0.75:
        return Mesh.of(axes, device_ids=rng.sample(ids, len(ids)))
    if kind < 0.82:  # devices of which none is shared
        return Mesh.of(axes, device_ids=[max(ids) + 1 + device for device in range(len(ids))])
    if kind < 0.9:  # devices of which some are shared
        return Mesh.of(axes, device_ids=[device + len(ids) // 2 for device in ids])
    return draw_mesh(rng)


def draw_shape(rng: Random, sides: tuple[Sharding, Sharding], ndim: int) -> tuple[int, ...]:
    """Sizes that the shards divide, or any, 0 and 1 among them; about 2,000 elements at most."""
    most = {0: 1, 1: 60, 2: 26, 3: 9, 4: 5}[ndim]
    sizes = []
    for dim in range(ndim):
        counts = [
            prod(axis.size or dict(side.mesh.axes)[axis.name] for axis in side.dims[dim].axes)
            for side in sides
            if side.dims
        ]
        whole = [size for size in range(1, most + 1) if all(size % count == 0 for count in counts)]
        nested = [size for size in range(1, most + 1) if any(size % count == 0 for count in counts)]
        kind = rng.random()
        if kind < 0.5 and whole:
            sizes.append(rng.choice(whole))
        elif kind < 0.7 and nested:
            sizes.append(rng.choice(nested))
        elif kind < 0.8:
            sizes.append(rng.randrange(2))
        else:
            sizes.append(rng.randint(2, most) if most > 1 else 1)
    return tuple(sizes)


def draw_problem(rng: Random) -> Problem:
    """A move: nothing is partial."""
    ndim = rng.choice((0, 1, 1, 2, 2, 2, 2, 3, 3, 4))
    mesh = draw_mesh(rng)
    source = draw_sharding(rng, mesh, ndim)
    target = draw_sharding(rng, other_mesh(rng, mesh), ndim)
    if rng.random() < 0.5:
        source, target = target, source
    shape = draw_shape(rng, (source, target), ndim)
    return Problem(source, target, shape, rng.choice(("int8", "bfloat16", "float32", "int64", "complex128")))


def draw_reduction(rng: Random) -> Problem:
    """A reshard with partial values before, after, or both, by one reduction and for the most part on one mesh."""
    ndim = rng.choice((0, 1, 1, 2, 2, 2, 3))
    reduction, dtype = rng.choice(EXACT)
    mesh = draw_mesh(rng)
    there = mesh if rng.random() < 0.7 else other_mesh(rng, mesh)
    source = draw_sharding(rng, mesh, ndim, partial=rng.random() < 0.85, reduction=reduction)
    target = draw_sharding(rng, there, ndim, partial=rng.random() < 0.5, reduction=reduction)
    return Problem(source, target, draw_shape(rng, (source, target), ndim), dtype)
