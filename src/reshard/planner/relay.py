"""Middles in which all devices of a host share what crosses between hosts, in blocks where whole axes do not do.

What crosses goes from a device to the one with the same number in another host, an equal part by every port:
first a host spreads what it has over its devices, then equals cross, then a host spreads what came.
The two middles hold what hosts hold at the source and at the target.
Inside, both are cut alike, by digits of the tensor that no axis between hosts cuts on either side.
So a middle may be many blocks with a stride: a target cut by an axis inside hosts and then by one between them is held
by a host in as many parts as the first has devices.

By hand, hosts `h` of 2 devices `g`, 8 rows by `h`, wanted by `g` and then by `h`: host 0 wants rows 0, 1, 4 and 5, of
which device 0 wants 0 and 1, and has them; device 1 wants 4 and 5, which come through its port alone.
By way of half of each block, both ports bring one row.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(h=2, g=2)
>>> reshard = Reshard.of(Sharding.of(mesh, "h"), Sharding.of(mesh, ("g", "h")), (8,))
>>> [middle.text() for middle in relay(reshard, 2)]
['[{"h", parts(2), "g"}]', '[{parts(2), "h", "g"}]']
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from reshard.axis import Axis
from reshard.deal import Deal
from reshard.digits import Digit, Digits
from reshard.errors import ReshardError
from reshard.exchange import Tiling
from reshard.mesh import Mesh
from reshard.problem import Reshard
from reshard.refinement import Cuts, Refinement, refine
from reshard.sharding import Sharding


@dataclass(slots=True)
class TensorDigit:
    """A digit of a dim, and the digits of the position that cut it."""

    size: int
    source: Digit | None
    target: Digit | None
    shared: Digit | None = None
    """In both middles, where no axis between hosts cuts it."""


def relay(reshard: Reshard, boundary: int) -> tuple[Sharding, Sharding] | None:
    """The middle that hosts leave from and the one that they arrive in; None where there are none.

    Args:
        reshard: on one mesh of consecutive devices, nothing partial.
        boundary: devices per host.
    """
    source, target = reshard.source, reshard.target
    mesh = source.mesh
    if mesh != target.mesh or mesh.device_ids is not None or source.unreduced or target.unreduced:
        return None
    sides = Tiling.of(source, reshard.shape), Tiling.of(target, reshard.shape)
    if not all(side.is_even() for side in sides) or any(side.layout.has_windows for side in sides):
        return None
    common = refine(sides[0].layout, sides[1].layout, reshard.shape, [boundary])
    dims = None if common is None else _tensor_digits(common, reshard.shape)
    inside = Digits((Digit(1, boundary),)).primes()
    if dims is None or not _share(dims, inside, boundary):
        return None
    try:
        return _middle(mesh, dims, boundary, leaves=True), _middle(mesh, dims, boundary, leaves=False)
    except ReshardError:  # no names for a digit, or no such deal
        return None


def _tensor_digits(common: Refinement, shape: tuple[int, ...]) -> list[list[TensorDigit]] | None:
    """Per dim its digits, major to minor: those that position digits cut, and what is left between them."""
    cutting: dict[Cuts, TensorDigit] = {}
    for roles, side in ((common.source_roles, "source"), (common.target_roles, "target")):
        for role, digit in zip(roles, common.digits, strict=True):
            if isinstance(role, Cuts):
                setattr(cutting.setdefault(role, TensorDigit(digit.size, None, None)), side, digit)
    dims = []
    for dim, size in enumerate(shape):
        digits, length = [], size
        for cut in sorted((cut for cut in cutting if cut.dim == dim), key=lambda cut: -cut.stride):
            end = cut.stride * cutting[cut].size
            if not end or length % end:
                return None
            digits += [TensorDigit(length // end, None, None), cutting[cut]]
            length = cut.stride
        dims.append([digit for digit in (*digits, TensorDigit(length, None, None)) if digit.size > 1])
    return dims


def _share(dims: list[list[TensorDigit]], inside: Digits, boundary: int) -> bool:
    """Give every digit inside hosts to a digit of the tensor that hosts do not cut; whether all have one.

    Those that cut such a digit at the source stay there, then those at the target; the others go where there is room.
    """
    left = list(inside)
    for side in ("source", "target"):
        for digits in dims:
            for digit in digits:
                cutting = getattr(digit, side)
                if not _is_free(digit, boundary) or digit.shared or cutting is None:
                    continue
                parts = Digits((cutting,)).primes()
                if all(part in left for part in parts):
                    digit.shared = cutting
                    left = [part for part in left if part not in parts]
    for part in left:
        rooms = [
            (digit.size, -dim, place)
            for dim, digits in enumerate(dims)
            for place, digit in enumerate(digits)
            if _is_free(digit, boundary) and digit.shared is None and digit.size % part.size == 0
        ]
        if not rooms:
            return False
        _, dim, place = max(rooms)
        whole = dims[-dim][place]
        rest = replace(whole, size=whole.size // part.size)
        if whole.source or whole.target:  # parts of what cuts it, which no side needs here
            rest = TensorDigit(rest.size, None, None)
        dims[-dim][place : place + 1] = [TensorDigit(part.size, None, None, part), rest]
    return True


def _is_free(digit: TensorDigit, boundary: int) -> bool:
    return all(side is None or side.stride < boundary for side in (digit.source, digit.target))


def _middle(mesh: Mesh, dims: list[list[TensorDigit]], boundary: int, *, leaves: bool) -> Sharding:
    """The sharding whose hosts hold what those of one end do, cut inside as is shared."""
    return Sharding.of(mesh, *(tuple(_listed(mesh, digits, boundary, leaves=leaves)) for digits in dims))


def _listed(mesh: Mesh, digits: list[TensorDigit], boundary: int, *, leaves: bool) -> Iterator[Axis | Deal]:
    """The axes of a dim, with the parts between them that no device has."""
    parts = 1
    for digit in digits:
        end = digit.source if leaves else digit.target
        cutting = end if end is not None and end.stride >= boundary else digit.shared
        if cutting is None:
            parts *= digit.size
            continue
        axes = mesh.axes_of(Digits((cutting,)))
        if axes is None:
            raise ReshardError("cannot-express", f"no axes are the digit {cutting}")
        if parts > 1:
            yield Deal.parts(parts)
            parts = 1
        yield from axes
