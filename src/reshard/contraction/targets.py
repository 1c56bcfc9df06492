"""Where a result may go whose place is open: sums are scattered over its dims.

Every device makes a share of the sums, along whatever axes they are: also where all would be told the same along an
axis, as then each combines fewer.
Where some dims are cut evenly by all axes that cut nothing yet, every device receives its share and no more.
Where none are, a device's share depends on the dims that are cut, and the smallest tiles come first.
There, where the busiest device is that of all reshards together, an uneven place may also make up for what operands
bring to some devices and not to others.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from reshard.axis import Axes, Axis, difference, shards
from reshard.contraction.compute_layout import closed_sharding
from reshard.planner.candidates import refinements
from reshard.sharding import Sharding

UNEVEN = 32
"""How many uneven places are tried, besides that everywhere."""
MOST_PLACES = 1024
"""Up to how many ways to cut dims are compared."""


def targets(local: Sharding, shape: tuple[int, ...], *, is_sum: bool = True) -> list[Sharding]:
    """Where a result with sums to be made may go, the most promising place first.

    Args:
        local: the result as it comes out.
        shape: of the whole.
        is_sum: whether what the busiest device receives of each reshard is added up.

    >>> from reshard.mesh import Mesh
    >>> local = Sharding.of(Mesh.of(x=2), None, None, unreduced="x")
    >>> [found.text() for found in targets(local, (5, 6))]
    ['[{}, {"x"}]']
    >>> [found.text() for found in targets(local, (5, 7))]
    ['[{}, {"x"}]', '[{"x"}, {}]', '[{}, {}]']
    >>> summed_along_y = Sharding.of(Mesh.of(x=2, y=2), None, unreduced="y")
    >>> [found.text() for found in targets(summed_along_y, (8,))]
    ['[{"y", "x"}]', '[{"y"}]']
    """
    if not local.unreduced:
        return [local]
    mesh, unreduced = local.mesh, local.unreduced
    used = [*unreduced, *(axis for dim in local.dims for axis in dim.axes)]
    free = difference([Axis(name) for name, size in mesh.axes if size > 1], used, mesh.sizes)
    anywhere = Sharding.of(mesh, *[None] * len(shape))
    scattered = [next(refinements(local, axes, anywhere, shape), None) for axes in ((*unreduced, *free), unreduced)]
    even = [*dict.fromkeys(place for place in scattered if place is not None)]
    is_even = all(size % local.layout.shards(dim) == 0 for dim, size in enumerate(shape))
    if scattered[0] is not None and is_even and (is_sum or all(size % mesh.size == 0 for size in shape)):
        return even
    return [*dict.fromkeys([*even, *_uneven(local, (*unreduced, *free), shape), replace(local, unreduced=())])]


def _uneven(local: Sharding, axes: Sequence[Axis], shape: tuple[int, ...]) -> list[Sharding]:
    """The places with the smallest tiles, where some of these axes cut dims; the rest has no partial values either."""
    sizes = local.mesh.sizes
    places: dict[tuple[Axes, ...], int] = {}
    ways = itertools.product(
        itertools.permutations(axes), itertools.product((*range(len(shape)), None), repeat=len(axes))
    )
    for order, chosen in itertools.islice(ways, MOST_PLACES):
        cut_by = tuple(
            (*dim.axes, *(axis for axis, place in zip(order, chosen, strict=True) if place == number))
            for number, dim in enumerate(local.dims)
        )
        places[cut_by] = prod(-(-size // shards(its_axes, sizes)) for size, its_axes in zip(shape, cut_by, strict=True))
    smallest = sorted(places, key=places.__getitem__)[:UNEVEN]
    return [closed_sharding(local.mesh, cut_by, uneven=local.uneven) for cut_by in smallest]
