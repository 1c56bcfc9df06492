"""From digits of a mesh's positions to digits of device numbers, which is what a network is made of."""

from __future__ import annotations

from functools import lru_cache

from reshard.digits import Digits, Transposition
from reshard.mesh import ENUMERABLE, Mesh


@lru_cache(256)
def device_order(mesh: Mesh) -> Transposition | None:
    """The positions of a mesh as digits of the device numbers.

    None where the numbers are no transposition of digits, or begin where adding the first to the others carries
    from one digit into the next.

    >>> device_order(Mesh.of(x=2, y=2, device_ids=(4, 6, 5, 7))).after
    Digits([Digit(stride=1, size=2), Digit(stride=2, size=2)])
    """
    if mesh.device_ids is None or mesh.size == 1:
        return Transposition(Digits.of_sizes([mesh.size]), Digits.of_sizes([mesh.size]))
    if mesh.size > ENUMERABLE:
        return None
    ids = mesh.device_array
    order = Transposition.of(ids - ids[0]) if (ids >= ids[0]).all() else None
    return None if order is None or int(ids[0]) % max(digit.end for digit in order.after) else order


def device_digits(mesh: Mesh, positions: Digits) -> Digits | None:
    """Digits of the position as digits of the device number; None where they are none.

    >>> device_digits(Mesh.of(x=2, y=2, device_ids=(0, 2, 1, 3)), Digits.of_sizes([2]))
    Digits([Digit(stride=2, size=2)])
    """
    if mesh.device_ids is None:
        return positions
    order = device_order(mesh)
    return None if order is None else positions.transposed(order)
