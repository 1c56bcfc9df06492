"""Another order of axes, with tiles of the same size, that would move nothing.

Who wants tiles of a size often does not care which axes cut them.
A device holds all of its target tile where every dim of the target begins with the axes that cut it in the source, and
goes on with axes that are free there; so such a target is put together, dim by dim, from axes of the right sizes.

By hand, on x=2, y=2: from `[{"x"}, {}]` to `[{"y"}, {"x"}]` every device lacks something; but `[{"x"}, {"y"}]` has
tiles of the same size and is cut out of what each device holds.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=2)
>>> reshard = Reshard.of(Sharding.of(mesh, "x", None), Sharding.of(mesh, "y", "x"), (8, 8))
>>> print(order_that_is_free(reshard).text())
[{"x"}, {"y"}]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod

from reshard.axis import Axis
from reshard.dim_sharding import DimSharding
from reshard.exchange import find_exchange
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.tiling import Tiling

MOST_AXES = 10
"""On meshes of more axes nothing is looked for."""


def order_that_is_free(reshard: Reshard) -> Sharding | None:
    """A sharding with tiles of the target's size that every device can cut out of what it holds; None for none.

    Args:
        reshard: of whole axes on one mesh, every tile one box, nothing unreduced; for any other there is no answer.
    """
    source, target = reshard.source, reshard.target
    mesh, sizes = source.mesh, source.mesh.sizes
    if not all(dim == DimSharding(dim.axes, dim.is_open, dim.priority) for end in (source, target) for dim in end.dims):
        return None
    cutting = [axis for end in (source, target) for dim in end.dims for axis in dim.axes]
    is_plain = mesh == target.mesh and not (source.unreduced or target.unreduced or mesh.is_maximal)
    if not is_plain or len(mesh.axes) > MOST_AXES or not all(axis.is_whole for axis in cutting):
        return None
    held = [[axis.name for axis in dim.axes] for dim in source.dims]
    counts = [
        (prod(sizes[name] for name in names), prod(sizes[axis.name] for axis in dim.axes))
        for names, dim in zip(held, target.dims, strict=True)
    ]
    if any(wanted % has for has, wanted in counts):
        return None
    used = {name for names in held for name in names}
    free = [(name, size) for name, size in mesh.axes if name not in used and size > 1]
    further = next(_given_out([wanted // has for has, wanted in counts], free), None)
    if further is None:
        return None
    dims = [DimSharding(tuple(map(Axis, [*names, *more]))) for names, more in zip(held, further, strict=True)]
    candidate = Sharding(mesh, tuple(dims), uneven=target.uneven)
    same_size = candidate.local_shape(reshard.shape) == target.local_shape(reshard.shape)
    tilings = Tiling.of(source, reshard.shape), Tiling.of(candidate, reshard.shape)
    return candidate if same_size and find_exchange(*tilings).missing == 0 else None


def _given_out(factors: Sequence[int], free: Sequence[tuple[str, int]]) -> Iterator[list[list[str]]]:
    """Ways to give axes to dims, each of which needs so large a product."""
    if not factors:
        yield []
        return
    for count in range(len(free) + 1):
        for chosen in combinations(free, count):
            if prod(size for _, size in chosen) == factors[0]:
                rest = [axis for axis in free if axis not in chosen]
                yield from ([[name for name, _ in chosen], *others] for others in _given_out(factors[1:], rest))
