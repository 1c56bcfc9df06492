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

from dataclasses import replace

from reshard.axis import Axis
from reshard.digits import Digit, Digits
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.planner.spread import all_cuts
from reshard.planner.tensor_digits import TensorDigit, common_digits, dim_cuts, sharding_of_cuts
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.tiling import Tiling


def relay(reshard: Reshard, boundary: int) -> tuple[Sharding, Sharding] | None:
    """The middle that hosts leave from and the one that they arrive in; None where there are none.

    Args:
        reshard: on one mesh of consecutive devices, nothing partial.
        boundary: devices per host.
    """
    common = common_digits(reshard, [boundary])
    inside = Digits((Digit(1, boundary),)).primes()
    mesh = reshard.source.mesh
    if common is not None and not _share(common.by_dim, inside, boundary):
        return None
    try:
        if common is None:
            return _by_a_free_dim(reshard, boundary)
        dims = common.by_dim
        return _middle(mesh, dims, boundary, leaves=True), _middle(mesh, dims, boundary, leaves=False)
    except ReshardError:  # no names for a digit, or no such deal
        return None


def _by_a_free_dim(reshard: Reshard, boundary: int) -> tuple[Sharding, Sharding] | None:
    """Middles cut inside hosts along a dim that hosts cut at neither end: then digits inside need not nest.

    Raises:
        ReshardError: where dims have no such deal.

    >>> mesh = Mesh.of(h=2, g=6)
    >>> ends = Sharding.of(mesh, ("h", "g"), None), Sharding.of(mesh, ("g", "h"), None)
    >>> [middle.text() for middle in relay(Reshard.of(*ends, (24, 12)), 6)]
    ['[{"h"}, {"g"}]', '[{parts(6), "h"}, {"g"}]']
    """
    source, target, shape = reshard.source, reshard.target, reshard.shape
    mesh, ends = source.mesh, (source, target)
    if mesh != target.mesh or mesh.device_ids is not None or any(end.unreduced or end.is_woven for end in ends):
        return None
    cuts_of_ends = [all_cuts(end, boundary) for end in ends]
    inside = mesh.parts_within([Axis(name) for name in mesh.sizes], Digit(1, boundary))
    if None in cuts_of_ends or not all(Tiling.of(end, shape).is_even() for end in ends):
        return None
    free = [
        (size, -dim)
        for dim, size in enumerate(shape)
        if size % boundary == 0 and all(cut.inside for cuts in cuts_of_ends if cuts is not None for cut in cuts[dim])
    ]
    if not free:
        return None
    middles = []
    for cuts in cuts_of_ends:
        digits = [
            [(cut.stop // cut.start, None if cut.inside else mesh.digit_of(cut.axis)) for cut in listed]
            for listed in cuts or ()
        ]
        dims = [dim_cuts(mesh, listed) for listed in digits]
        dims[-max(free)[1]] = tuple(inside)
        middles.append(sharding_of_cuts(mesh, dims))
    return middles[0], middles[1]


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
    dims_cut = []
    for digits in dims:
        ends = ((digit.size, digit.source if leaves else digit.target, digit.shared) for digit in digits)
        cut = [(size, end if end is not None and end.stride >= boundary else shared) for size, end, shared in ends]
        dims_cut.append(dim_cuts(mesh, cut))
    return sharding_of_cuts(mesh, dims_cut)
