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
from contextlib import suppress
from dataclasses import replace

from reshard.digits import Digit, Digits
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.planner.held_by_hosts import held_by_hosts
from reshard.planner.spread import all_cuts
from reshard.planner.tensor_digits import TensorDigit, common_digits, dim_cuts, sharding_of_cuts
from reshard.problem import Reshard
from reshard.sharding import Sharding


def relay(reshard: Reshard, boundary: int) -> tuple[Sharding, Sharding] | None:
    """The middle that hosts leave from and the one that they arrive in; None where there are none.

    Args:
        reshard: on one mesh of consecutive devices, nothing partial.
        boundary: devices per host.
    """
    inside = Digits((Digit(1, boundary),)).primes()
    mesh = reshard.source.mesh
    if not all(tiling.is_even() for tiling in reshard.tilings):
        return None
    nested = (common_digits(ends, [boundary]) for ends in _less_and_less(reshard, boundary))
    common = next(filter(None, nested), None)
    if common is None or not _share(common.by_dim, inside, boundary):
        return None
    try:
        dims = common.by_dim
        return _middle(mesh, dims, boundary, leaves=True), _middle(mesh, dims, boundary, leaves=False)
    except ReshardError:  # no names for a digit, or no such deal
        return None


def _less_and_less(reshard: Reshard, boundary: int) -> Iterator[Reshard]:
    """Both ends; and for where their digits do not nest, what hosts hold of one of them, or of both.

    >>> mesh = Mesh.of(h=2, g=6)
    >>> ends = Sharding.of(mesh, ("h", "g"), None), Sharding.of(mesh, ("g", "h"), None)
    >>> [middle.text() for middle in relay(Reshard.of(*ends, (24, 12)), 6)]
    ['[{"h"}, {"g"}]', '[{parts(6), "h"}, {"g"}]']
    """
    yield reshard
    with suppress(ReshardError):
        source, target = (_of_hosts(end, boundary) for end in (reshard.source, reshard.target))
        if source is not None and target is not None:
            yield replace(reshard, target=target)
            yield replace(reshard, source=source)
            yield replace(reshard, source=source, target=target)


def _of_hosts(end: Sharding, boundary: int) -> Sharding | None:
    """What hosts hold: the sharding without its cuts by axes inside them; None where no split of axes says it.

    Raises:
        ReshardError: where dims have no such deal.
    """
    cuts_of_dims = None if end.is_woven or end.unreduced else all_cuts(end, boundary)
    if cuts_of_dims is None:
        return None
    mesh = end.mesh  # cuts are of axes split where hosts end
    held = [held_by_hosts(mesh, [cut.axis for cut in cuts], boundary) for cuts in cuts_of_dims]
    return sharding_of_cuts(mesh, [dim_cuts(mesh, cuts) for cuts in held])


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
