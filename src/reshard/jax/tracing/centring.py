"""Stencils over a whole tensor: what is computed of slices and put inside, computed in place and chosen there.

`u.at[1:-1].set(u[2:] + u[:-2])` has a sum of n - 2 rows, whose tiles lie otherwise than those of n rows: what each
device adds up is read from one side, and what it puts comes from the other.
Over all n rows, row i of the sum is row i + 1 of u and row i - 1, so one row comes from each side, and what is put is
where it is; the rows at the ends, which are not put, are computed of what goes round, and dropped.

What is joined of a middle and two ends, each computed of slices, is so too: three sums of whole tensors, of which
each is chosen where it is joined.
So is what is joined of slices that are all as far from where they are joined, going round: with x of 8 elements
`concatenate([-x[4:], x[:4]])` is a roll by 4, of which the first half is negated.
What is put at every second place, of slices of every second element, is computed at all places too.

By hand, of 8 elements of which 6 are put: the sum is of two rolls of 8.

>>> import jax
>>> from reshard.jax.tracing.known_places import KnownPlaces
>>> traced = jax.make_jaxpr(lambda u: u.at[1:-1].set(u[2:] + u[:-2]))(jax.numpy.zeros(8)).jaxpr
>>> known = KnownPlaces()
>>> last = [known.of(equation) for equation in traced.eqns][-1]
>>> str(last.params["jaxpr"]).count("_roll_static"), len(last.invars)
(2, 1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import Literal

from reshard.jax.tracing.evaluation import results_of
from reshard.jax.tracing.rewriting import Rewriting
from reshard.operations.pattern import Shape

_ONE_BY_ONE = """
abs add add_any and atan2 cbrt ceil clamp convert_element_type copy cos cosh div eq erf exp exp2 expm1 floor ge gt
integer_pow is_finite le log log1p logistic lt max min mul ne neg not or pow rem round rsqrt select_n sign sin sinh
sqrt square sub tan tanh xor
"""
ELEMENTWISE = frozenset(_ONE_BY_ONE.split())
"""Primitives that make every element from those at its place, whatever the shape."""
LARGEST_SHARE = 2
"""What is put is centred where the whole is less than so many times as large in every dim."""


NEAR = 16
"""Slices that are joined are near each other where all that they are moved is so small a part of the dim."""
MOST_JOINED = 3
"""Of so many joined parts at most each is computed in all places."""


class Centred(Rewriting):
    """A value that is put inside a tensor, as a function of whole tensors.

    Args:
        makers: per variable the equation that makes it.
        start: where it is put, per dim.
        shape: of it.
        whole: the shape of the tensor.
        step: how far its elements are put apart, per dim; side by side unless given.
    """

    def __init__(
        self,
        makers: Mapping[Any, Any],
        start: Sequence[int],
        shape: Shape,
        whole: Shape,
        step: Sequence[int] | None = None,
    ) -> None:
        super().__init__(makers)
        self.start, self.shape, self.whole = start, shape, whole
        self.step = tuple(step or (1,) * len(whole))
        self.slices = 0
        self.farthest = 0
        """How far at most what a slice takes is from where it is put."""
        self.shifts: set[Shape] = set()
        """How far each is, going round."""

    def is_made_of_slices(self, atom: Any) -> bool:
        """Whether a value is computed element by element of slices of whole tensors, and so worth it."""
        sides = zip(self.shape, self.step, self.whole, strict=True)
        small = all(full < LARGEST_SHARE * size * apart for size, apart, full in sides)
        return small and self.reaches(atom) and self.slices > 1

    def operands_of(self, maker: Any, result: Any) -> Iterable[Any] | None:
        """What a slice is taken of is a source."""
        if result.aval.shape != tuple(self.shape):
            return None
        name, first = str(maker.primitive), _first(maker, result, self.step)
        if first is not None:
            (source,) = maker.invars
            if source.aval.shape == tuple(self.whole):
                self.sources[source] = None
                self.slices += 1
                apart = [place - begin for place, begin in zip(self.start, first, strict=True)]
                self.farthest = max(self.farthest, *map(abs, apart))
                self.shifts.add(tuple(by % size for by, size in zip(apart, self.whole, strict=True)))
                return ()
        if name == "broadcast_in_dim":
            return maker.invars if maker.invars[0].aval.shape == () else None
        return maker.invars if name in ELEMENTWISE else None

    def anew(self, maker: Any, result: Any, sources: Mapping[Any, Any], value_of: Callable[[Any], Any]) -> Any:
        """What an equation makes, in the places of the whole."""
        name, first = str(maker.primitive), _first(maker, result, self.step)
        if first is not None and maker.invars[0] in sources:
            return self._rolled(sources[maker.invars[0]], first)
        operands = [value_of(operand) for operand in maker.invars]
        if name == "broadcast_in_dim":
            return lax.broadcast(operands[0], self.whole)
        if name not in ("clamp", "select_n"):
            operands = [lax.broadcast(operand, self.whole) if operand.ndim == 0 else operand for operand in operands]
        return results_of(maker, operands)[0]

    def _rolled(self, array: Any, first: Sequence[int]) -> Any:
        """A whole tensor in which what a slice takes stands where it is put."""
        for dim, (there, here) in enumerate(zip(self.start, first, strict=True)):
            if there != here:
                array = jax.numpy.roll(array, (there - here) % self.whole[dim], dim)
        return array


def _first(maker: Any, result: Any, step: Shape) -> Sequence[int] | None:
    """Where a part of a tensor begins that an equation takes, with elements so far apart; None of anything else."""
    name, params = str(maker.primitive), maker.params
    if name == "slice" and tuple(params["strides"] or (1,) * result.aval.ndim) == step:
        return tuple(params["start_indices"])
    if name == "split" and {*step} <= {1}:
        before = params["sizes"][: maker.outvars.index(result)]
        return tuple(sum(before) * (dim == params["axis"]) for dim in range(result.aval.ndim))
    return None


def joined(makers: Mapping[Any, Any], parts: Sequence[Any], dim: int, whole: Shape) -> list[Centred] | None:
    """Parts that lie one after another in a dim, as functions of whole tensors; None where that is not worth it.

    It is where one part is nearly all, computed of slices, and the others reach no farther; where all are computed of
    slices that are as far from where they are joined; and where they are slices joined not far from where they were.
    """
    start, centred = 0, []
    for part in parts:
        if isinstance(part, Literal):
            return None
        place = [start if each == dim else 0 for each in range(len(whole))]
        centred.append(Centred(makers, place, part.aval.shape, whole))
        start += part.aval.shape[dim]
    if not 1 < len(parts) <= MOST_JOINED:
        return None
    main = max(range(len(parts)), key=lambda number: parts[number].aval.shape[dim])
    is_large = centred[main].is_made_of_slices(parts[main])
    if not all(each.reaches(part) for each, part in zip(centred, parts, strict=True)):
        return None
    if _is_near(makers, parts, dim, whole):
        return centred
    if all(each.slices for each in centred) and len(set().union(*(each.shifts for each in centred))) == 1:
        is_computed = any(_first(makers[part], part, (1,) * len(whole)) is None for part in parts)
        return centred if is_computed else None  # else it is but a roll
    return centred if is_large and all(each.farthest <= centred[main].farthest for each in centred) else None


def _is_near(makers: Mapping[Any, Any], parts: Sequence[Any], dim: int, whole: Shape) -> bool:
    """Whether slices are joined near to where they were, all but the longest no farther than they are long."""
    start, shifts, lengths = 0, [], []
    for part in parts:
        first = None if part not in makers else _first(makers[part], part, (1,) * len(whole))
        if first is None:
            return False
        shifts.append(start - first[dim])
        lengths.append(part.aval.shape[dim])
        start += lengths[-1]
    pairs = sorted(zip(lengths, shifts, strict=True))[:-1]
    moved = sum({*map(abs, shifts)})
    is_roll = len({shift % whole[dim] for shift in shifts}) == 1
    return not is_roll and moved * NEAR <= whole[dim] and all(abs(shift) <= length for length, shift in pairs)
