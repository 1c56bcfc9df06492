"""From digits of a mesh's positions to digits of device numbers, which is what a network is made of."""

from __future__ import annotations

from functools import lru_cache

from reshard.digits import Digit, Layout, Stage, digit_order
from reshard.mesh import ENUMERABLE, Mesh

Order = tuple[tuple[Digit, int], ...]


@lru_cache(256)
def device_order(mesh: Mesh) -> Order | None:
    """The positions of a mesh as digits, each with its stride in the device numbers.

    None where the numbers are no transposition of digits, or begin where adding the first to the others carries
    from one digit into the next.

    >>> device_order(Mesh.of(x=2, y=2, device_ids=(4, 6, 5, 7)))
    ((Digit(stride=1, size=2), 2), (Digit(stride=2, size=2), 1))
    """
    if mesh.size == 1:
        return ()
    if mesh.device_ids is None:
        return ((Digit(1, mesh.size), 1),)
    if mesh.size > ENUMERABLE:
        return None
    ids = mesh.device_array
    order = digit_order(ids - ids[0]) if (ids >= ids[0]).all() else None
    if order is None or any(stride < 1 for _, stride in order):
        return None
    end = max(stride * digit.size for digit, stride in order)
    return None if int(ids[0]) % end else tuple(order)


def device_stage(mesh: Mesh, positions: Stage) -> Stage | None:
    """Digits of the position as digits of the device number; None where they are none.

    >>> device_stage(Mesh.of(x=2, y=2, device_ids=(0, 2, 1, 3)), (Digit(1, 2),))
    (Digit(stride=2, size=2),)
    """
    if mesh.device_ids is None:
        return positions
    order = device_order(mesh)
    moved = None if order is None else Layout((), positions, mesh.size).relabelled(order)
    return None if moved is None else moved.unreduced
