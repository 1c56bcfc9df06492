"""What hosts hold of a tensor: how axes between them cut a dim, those inside left out.

A host is so many consecutive devices.
All parts that an axis inside hosts makes are in every host, so it cuts nothing there; but where it cuts a dim before an
axis between hosts does, what a host holds lies in as many pieces.

By hand, hosts `h` of 2 devices `g`: by `h` and then by `g` a host holds a half, the other way round the half of each
half.

>>> mesh = Mesh.of(h=2, g=2)
>>> for names in "hg", "gh":
...     print(held_by_hosts(mesh, [Axis(name) for name in names], 2))
[(2, Digit(stride=2, size=2))]
[(2, None), (2, Digit(stride=2, size=2))]
"""

from __future__ import annotations

from collections.abc import Iterable

from reshard.axis import Axis
from reshard.digits import Digit
from reshard.errors import ReshardError
from reshard.mesh import Mesh


def held_by_hosts(mesh: Mesh, axes: Iterable[Axis], host: int) -> list[tuple[int, Digit | None]]:
    """How hosts cut a dim that axes cut, major to minor: in parts that every host has all of, and in those that differ.

    It is what `dim_cuts` takes; parts behind the last that differ are left out.

    Args:
        mesh: of consecutive devices.
        axes: that cut the dim, major to minor.
        host: devices per host.

    Raises:
        ReshardError: `cannot-express` where an axis lies neither inside hosts nor between them.
    """
    digits = mesh.digits_of(axes)
    if not all(digit.end <= host or digit.stride % host == 0 for digit in digits):
        raise ReshardError("cannot-express", f"axes of {mesh} lie neither inside hosts of {host} nor between them")
    cuts = [(digit.size, None if digit.end <= host else digit) for digit in digits]
    while cuts and cuts[-1][1] is None:
        cuts.pop()
    return cuts
