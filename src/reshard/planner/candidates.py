"""Chains of steps that lead from source to target.

The first is the shortest chain, which receives exactly the bound wherever nothing is partial.
Where partial values are combined, another may receive less: scatter the sums where they are, over as many
devices as can share the work, and move the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product

from reshard.axis import Axis, aligned, difference, merged
from reshard.chains import Chain, chain_through, shortest_chain
from reshard.dtypes import DType
from reshard.partial import made_axes
from reshard.sharding import Sharding

IN_PLACE = 16
"""How many ways to scatter in place are tried."""


def candidates(source: Sharding, target: Sharding, shape: tuple[int, ...], dtype: DType) -> Iterator[Chain]:
    """Chains worth comparing, the shortest first.

    Raises:
        ReshardError: as `shortest_chain`.
    """
    yield shortest_chain(source, target, shape, dtype)
    combined = made_axes(target, source)  # partial before and no longer
    if combined:
        for scattered in islice(_scattered(source, combined, target, shape), IN_PLACE):
            yield chain_through((source, scattered, target), shape, dtype)


def _scattered(
    source: Sharding, combined: tuple[Axis, ...], target: Sharding, shape: tuple[int, ...]
) -> Iterator[Sharding]:
    """The source with its partial values combined where they lie, every element on one device.

    The axes that are no longer partial, and those on which the source is replicated, cut the dims further:
    each the dim that it cuts in the target, or any.
    """
    sizes = source.mesh.sizes
    wanted: dict[Axis, int] = {}
    cutting = [
        (axis, number) for number, dim in enumerate(target.dims) for axis in dim.axes if source.mesh == target.mesh
    ]
    parts, _ = aligned([*combined, *source.unused_axes()], [axis for axis, _ in cutting], sizes)
    for part in parts:
        for axis, number in cutting:
            if axis.contains(part):
                wanted[part] = number
    choices = [[wanted[part]] if part in wanted else range(len(shape)) for part in parts]
    left = difference(source.unreduced, combined, sizes)
    for numbers in product(*choices):
        dims = list(source.dims)
        for number, part in zip(numbers, parts, strict=True):
            dims[number] = replace(dims[number], axes=merged([*dims[number].axes, part], sizes))
        found = replace(source, dims=tuple(dims), unreduced=left, replicated=())
        if all(size % found.layout.shards(number) == 0 for number, size in enumerate(shape)):
            yield found
