"""The digits of a tensor's dims that digits of the position cut at both ends, and middles that they spell.

By hand, 8 rows by `h` and then by `g`, wanted by `g`: of the three digits of size 2 the first is cut by both.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(h=2, g=2)
>>> digits = common_digits(Reshard.of(Sharding.of(mesh, ("h", "g")), Sharding.of(mesh, "g"), (8,)), [2])
>>> [(digit.size, digit.source, digit.target) for digit in digits.by_dim[0]]
[(2, Digit(stride=2, size=2), Digit(stride=1, size=2)), (2, Digit(stride=1, size=2), None), (2, None, None)]
>>> Sharding.of(mesh, dim_cuts(mesh, [(2, None), (2, Digit(1, 2)), (2, None)])).text()
'[{parts(2), "g"}]'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from reshard.axis import Axis
from reshard.deal import Deal
from reshard.digits import Digit, Digits
from reshard.dim_sharding import DimSharding
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.problem import Reshard
from reshard.refinement import Cuts, Refinement, refine
from reshard.sharding import Sharding
from reshard.tiling import Tiling


@dataclass(slots=True)
class TensorDigit:
    """A digit of a dim, and the digits of the position that cut it."""

    size: int
    source: Digit | None
    target: Digit | None
    shared: Digit | None = None
    """In middles, where no end that counts cuts it."""


class CommonDigits(NamedTuple):
    """What both ends are made of."""

    of_positions: Digits
    by_dim: list[list[TensorDigit]]
    """Per dim its digits, major to minor: those that position digits cut, and what is left between them."""

    def numbers(self, side: str) -> dict[Digit, int]:
        """Per digit of the position, the number of the tensor's digit that it cuts on a side of `TensorDigit`."""
        numbered = enumerate(digit for dim in self.by_dim for digit in dim)
        return {cut_by: number for number, digit in numbered if (cut_by := getattr(digit, side)) is not None}

    def sharding(self, mesh: Mesh, cutting: Mapping[Digit, int]) -> Sharding:
        """The sharding in which digits of the position cut those of the tensor with these numbers.

        Raises:
            ReshardError: where digits have no names, or dims no such deal.
        """
        cut_by = {number: digit for digit, number in cutting.items()}
        numbers = count()
        dims = [[(digit.size, cut_by.get(next(numbers))) for digit in dim] for dim in self.by_dim]
        return sharding_of_cuts(mesh, [dim_cuts(mesh, dim) for dim in dims])


def common_digits(reshard: Reshard, strides: Iterable[int], *, partial: bool = False) -> CommonDigits | None:
    """The digits of both ends; None where there are none in common, tiles differ in size, or values are partial.

    Args:
        reshard: on one mesh of consecutive devices, else there are none.
        strides: of the position, at which its digits are cut besides.
        partial: whether values may be partial at the source.
    """
    source, target = reshard.source, reshard.target
    mesh = source.mesh
    if mesh != target.mesh or mesh.device_ids is not None or target.unreduced or (source.unreduced and not partial):
        return None
    sides = Tiling.of(source, reshard.shape), Tiling.of(target, reshard.shape)
    if not all(side.is_even() for side in sides) or any(side.layout.has_windows for side in sides):
        return None
    common = refine(sides[0].layout, sides[1].layout, reshard.shape, strides)
    by_dim = None if common is None else _by_dim(common, reshard.shape)
    return None if common is None or by_dim is None else CommonDigits(common.digits, by_dim)


def _by_dim(common: Refinement, shape: Sequence[int]) -> list[list[TensorDigit]] | None:
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


def share_out(digits: Iterable[Digit], dims: list[list[TensorDigit]]) -> None:
    """Split off a part of the tensor for every digit of the position, as far as there is room."""
    for digit in digits:
        rooms = [
            (free.size, -dim, place)
            for dim, listed in enumerate(dims)
            for place, free in enumerate(listed)
            if free.source is None and free.target is None and free.shared is None and free.size % digit.size == 0
        ]
        if rooms:
            _, dim, place = max(rooms)
            rest = TensorDigit(dims[-dim][place].size // digit.size, None, None)
            dims[-dim][place : place + 1] = [TensorDigit(digit.size, None, None, digit), rest]


def dim_cuts(mesh: Mesh, digits: Iterable[tuple[int, Digit | None]]) -> tuple[Axis | Deal, ...]:
    """The axes that cut a dim, with the parts between them that no device has.

    Args:
        mesh: whose axes they are.
        digits: of the dim, major to minor: how large, and cut by which digit of the position, if by any.

    Raises:
        ReshardError: `cannot-express` where no axes are such a digit.
    """
    cuts: list[Axis | Deal] = []
    parts = 1
    for size, cutting in digits:
        if cutting is None:
            parts *= size
            continue
        axes = mesh.axes_of(Digits((cutting,)))
        if axes is None:
            raise ReshardError("cannot-express", f"no axes are the digit {cutting}")
        if parts > 1:
            cuts.append(Deal.parts(parts))
            parts = 1
        cuts += axes
    return tuple(cuts)


def sharding_of_cuts(mesh: Mesh, dims: Iterable[Sequence[Axis | Deal]]) -> Sharding:
    """The sharding whose dims are cut so, as `dim_cuts` says it.

    Raises:
        ReshardError: where dims have no such deal.
    """
    return Sharding(mesh, tuple([DimSharding.of(*cuts).merged(mesh.sizes) for cuts in dims]))
