"""Large reshards that are alike: devices hold and want the same parts of as many elements, however dims lie beneath.

One plan then says what both take.
Even tiles are told by what every digit of the position does at either end: which digit of the elements it is, or that
values are partial along it.
Dims and strides do not matter but for the room that is left to cut tiles further, while bytes decide: where messages
do, ways that take as long may move more or less.

By hand, 2 x 2 devices that gather an axis of rows cut by both, or one that cuts columns:

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=2)
>>> rows, corners, kept = (Sharding.of(mesh, *cut) for cut in ((("x", "y"), None), ("x", "y"), ("x", None)))
>>> likeness((rows, kept), (8192, 8192), 4) == likeness((corners, kept), (8192, 8192), 4)
True
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import gcd, prod

from reshard.planner.number_of_parts import MOST_PARTS
from reshard.planner.policy import SMALL_BYTES
from reshard.problem import Reshard
from reshard.refinement import Cuts, refine
from reshard.sharding import Sharding
from reshard.tiling import Tiling


def likeness(points: Sequence[Sharding], shape: tuple[int, ...], itemsize: float) -> Hashable | None:
    """Equal for ways that are alike, on the same mesh; None of small tensors, and where digits do not say it.

    Args:
        points: both ends, and a middle at the most.
        shape: of the tensor.
        itemsize: bytes of an element.
    """
    mesh = points[0].mesh
    if prod(shape) * itemsize <= SMALL_BYTES or mesh.is_maximal:
        return None
    if any(point.mesh != mesh or point.is_woven for point in points):
        return None
    tilings = [Tiling.of(point, shape) for point in points]
    if not all(tiling.is_even() for tiling in tilings):
        return None
    source, target, *others = [tiling.layout for tiling in tilings]
    digits = refine(source, target, shape, [digit.stride for digit in mesh.digits.primes()], *others)
    if digits is None:
        return None
    numbers: dict[Cuts, int] = {}
    roles = [
        numbers.setdefault(role, len(numbers)) if isinstance(role, Cuts) else role
        for role in (*digits.source_roles, *digits.target_roles, *digits.kept_roles)
    ]
    room = max([gcd(length, MOST_PARTS * mesh.size) for length in digits.lengths], default=1)
    return mesh, digits.digits, tuple(roles), prod(shape), room, tuple([point.reduction for point in points])


def unlike(middles: Sequence[Sharding], reshard: Reshard) -> list[Sharding]:
    """The middles of ways between two ends, the first of those that are alike.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(x=2, y=2)
    >>> whole, *cut = (Sharding.of(mesh, *dims) for dims in ((None, None), ("x", None), (None, "x")))
    >>> partial = Sharding.of(mesh, None, None, unreduced="x")
    >>> [middle.text() for middle in unlike(cut, Reshard.of(partial, whole, (8192, 8192)))]
    ['[{"x"}, {}]']
    """
    kept: dict[Hashable, Sharding] = {}
    for middle in middles:
        key = likeness((reshard.source, reshard.target, middle), reshard.shape, reshard.dtype.itemsize)
        kept.setdefault(middle if key is None else key, middle)
    return list(kept.values())
