"""Where a result may go whose place is open: sums are scattered over its dims.

Where some dims are cut evenly by all axes that a sum is made along, every device receives its share and no more.
Where none are, a device's share depends on the dims that are cut, and the smallest tiles come first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from reshard.axis import Axis, merged
from reshard.planner.candidates import refinements
from reshard.sharding import Sharding

UNEVEN = 2
"""How many uneven places are tried, besides that everywhere."""
MOST_PLACES = 1024
"""Up to how many ways to cut dims are compared."""


def targets(local: Sharding, shape: tuple[int, ...]) -> list[Sharding]:
    """Where a result with sums to be made may go, the most promising place first.

    >>> from reshard.mesh import Mesh
    >>> local = Sharding.of(Mesh.of(x=2), None, None, unreduced="x")
    >>> [found.text() for found in targets(local, (5, 6))]
    ['[{}, {"x"}]']
    >>> [found.text() for found in targets(local, (5, 7))]
    ['[{}, {"x"}]', '[{"x"}, {}]', '[{}, {}]']
    """
    if not local.unreduced:
        return [local]
    anywhere = Sharding.of(local.mesh, *[None] * len(shape))
    even = next(refinements(local, local.unreduced, anywhere, shape), None)
    if even is not None:
        return [even]
    return [*_uneven(local, shape), replace(local, unreduced=())]


def _uneven(local: Sharding, shape: tuple[int, ...]) -> list[Sharding]:
    """The places with the smallest tiles; a dim is cut into no more parts than it has elements."""
    sizes = local.mesh.sizes
    axes = [(axis, axis.size_in(sizes[axis.name])) for axis in local.unreduced]
    now = [local.layout.shards(dim) for dim in range(len(shape))]
    found: list[tuple[int, tuple[int, ...]]] = []
    for dims in itertools.islice(itertools.product(range(len(shape)), repeat=len(axes)), MOST_PLACES):
        shards = list(now)
        for dim, (_, size) in zip(dims, axes, strict=True):
            shards[dim] *= size
        if all(parts <= max(size, held) for size, parts, held in zip(shape, shards, now, strict=True)):
            found.append((prod(-(-size // parts) for size, parts in zip(shape, shards, strict=True)), dims))
    return [_cut(local, [axis for axis, _ in axes], dims) for _, dims in sorted(found)[:UNEVEN]]


def _cut(local: Sharding, axes: Sequence[Axis], places: Sequence[int]) -> Sharding:
    """The sharding with each axis cutting a dim instead of keeping partial values apart."""
    dims = list(local.dims)
    for axis, place in zip(axes, places, strict=True):
        dims[place] = replace(dims[place], axes=merged([*dims[place].axes, axis], local.mesh.sizes))
    return replace(local, dims=tuple(dims), unreduced=(), replicated=())
