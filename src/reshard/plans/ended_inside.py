"""A tensor that ends inside the blocks of a larger one.

What devices hold of a tensor in blocks of equal length says what they hold of a smaller one in the same blocks, the
last of them cut where the tensor ends.
So the smaller one goes wherever the larger one does, and each step sends what it sends of the larger one, less what is
not there.

By hand, 29 rows and 32 in the same blocks: over 8 devices the next multiple of 8 is 32, and they lie so anyway; over 2
blocks would be of 15, and are of 16.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(a=2, b=4)
>>> [ended_inside(Sharding.of(mesh, axes), (32,), (29,)).text() for axes in (("a", "b"), "a")]
['[{"a", "b"}]', '[{blocks(16), "a"}]']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat

from reshard.axis import Axis, shards
from reshard.deal import Deal
from reshard.dim_sharding import DimSharding
from reshard.sharding import Sharding


def ended_inside(
    sharding: Sharding, larger: Sequence[int], shape: Sequence[int], parts: Sequence[int] | None = None
) -> Sharding:
    """The sharding that holds a tensor of a shape in the blocks in which a sharding holds a larger one.

    Args:
        sharding: of the larger; its dims are cut in blocks at even strides.
        larger: its shape.
        shape: that of the smaller.
        parts: per dim, into how many parts blocks are cut first; whole ones unless given.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(h=2, g=2)
    >>> print(ended_inside(Sharding.of(mesh, ("h", Deal.parts(2), "g")), (16,), (13,)).text())
    [{blocks(8), "h", blocks(2), "g"}]
    """
    sizes = sharding.mesh.sizes
    dims = []
    for dim, before, after, count in zip(sharding.dims, larger, shape, parts or repeat(1), strict=False):
        stages = list(dim.stages("ceil"))
        counts = [shards(axes, sizes) for axes, _ in stages]
        lengths = [-(-length // count) for length in _lengths(stages, counts, before)]
        may_end_inside = len(stages) < 2 or all(deal is not None and deal.kind == "blocks" for _, deal in stages)
        if _lengths(stages, counts, after) == lengths and (may_end_inside or before // count == after):
            dims.append(dim)
            continue
        cuts: list[Axis | Deal] = []
        for (axes, _), length in zip(stages, lengths, strict=True):
            cuts += [Deal.blocks(length), *axes] if axes else []
        dims.append(DimSharding.of(*cuts))
    if tuple(dims) == sharding.dims:
        return sharding
    return replace(sharding, dims=tuple(dims), uneven="ceil")


def _lengths(stages: Sequence[tuple[tuple[Axis, ...], Deal | None]], counts: Sequence[int], length: int) -> list[int]:
    """How long the blocks of every stage are."""
    lengths = []
    for (_, deal), count in zip(stages, counts, strict=True):
        if deal is not None and deal.kind == "blocks":
            length = deal.numbers[0]
        else:
            length = -(-length // (count * (deal.numbers[0] if deal is not None else 1)))
        lengths.append(length)
    return lengths
