"""Gathers, scatters and dynamic slices at places that are known before the function runs, as slices and pads.

`x[1:-1]` is a slice, but `x.at[1:-1].set(y)` a scatter at a number, and `x[(arange(n) + 1) % n]` a gather of n rows.
Where the numbers are made of nothing that is given, they are worked out here, and what stands there in their place
reads neighbours as every slice does.

    gather of rows i, i + 1, ...            a slice, or a roll where they go on behind the last at the first
    gather of a few runs                    slices one after another, as of neighbours but for the ends
    gather of rows near to each other       these in another order (`reordering`)
    gather of rows i + j, of few j          slices side by side, or what goes round or stays at the ends
    slice of what is joined                 what is joined of slices
    gather, dynamic slice of one part       a slice
    scatter of one part, or of every few    a pad of it, chosen where it is put, or combined with what is there
    what is turned round and back           the same work from the other end (`turning`)

By hand, of 8 elements:

>>> import jax
>>> from jax.extend.core import Literal
>>> traced = jax.make_jaxpr(lambda x: x[(jax.numpy.arange(8) + 3) % 8])(jax.numpy.zeros(8)).jaxpr
>>> known = KnownPlaces()
>>> print([known.of(equation) for equation in traced.eqns][-1])
a:f32[8] = roll[dims=(0,) shifts=(5,) sizes=(8,)] b
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from operator import le
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from reshard.dtypes import identity
from reshard.jax.tracing.centring import Centred, joined
from reshard.jax.tracing.evaluation import in_place_of, literal_array, numbers_of
from reshard.jax.tracing.joined_parts import Part, Piece, alike, making, part_of, pieces_in, sliced_from
from reshard.jax.tracing.known_rows import MOST_SIDES, rows, sides
from reshard.jax.tracing.turning import Turning
from reshard.operations.pattern import Shape
from reshard.operations.sources import sources_first

MOST_NUMBERS = 1 << 16
"""More numbers are not worked out."""
COMBINED: dict[str, tuple[Callable[..., Any], str]] = {
    "scatter-add": (lax.add, "sum"),
    "scatter-mul": (lax.mul, "product"),
    "scatter-min": (lax.min, "min"),
    "scatter-max": (lax.max, "max"),
}


class Lattice(NamedTuple):
    """The places of a tensor at which a part of it is put."""

    start: tuple[int, ...]
    step: tuple[int, ...]
    shape: tuple[int, ...]
    """How many places per dim."""
    axes: tuple[int, ...]
    """The dims of the part in the order of those of the tensor, last such as that lacks."""

    @classmethod
    def beside(cls, start: Sequence[int], shape: Shape) -> Lattice:
        """Places side by side, of a part that has all dims."""
        return cls(tuple(start), (1,) * len(shape), tuple(shape), tuple(range(len(shape))))

    def is_part(self, whole: Shape) -> bool:
        """Whether they are several in some dim, but not all: single ones are put by the device that has them."""
        return any(1 < size < full for size, full in zip(self.shape, whole, strict=True))

    def spread(self, part: Any, whole: Shape, blank: Any) -> Any:
        """A part at its places in a tensor of one value elsewhere."""
        part = lax.reshape(lax.transpose(part, self.axes), self.shape)
        ends = zip(self.start, self.step, self.shape, whole, strict=True)
        room = [(first, full - first - (size - 1) * apart - 1, apart - 1) for first, apart, size, full in ends]
        return lax.pad(part, lax.full((), blank, part.dtype), room)

    def chosen(self, whole: Any, other: Any) -> Any:
        """A tensor with these places taken from another of its shape."""
        inside: Any = None
        for dim, (first, apart, size) in enumerate(zip(self.start, self.step, self.shape, strict=True)):
            if size == whole.shape[dim]:
                continue
            places = lax.broadcasted_iota(np.int32, whole.shape, dim)
            is_known = (places >= first) & (places < first + (size - 1) * apart + 1)
            if apart > 1:
                is_known &= (places - first) % apart == 0
            inside = is_known if inside is None else inside & is_known
        other = other.astype(whole.dtype)
        return other if inside is None else lax.select(inside, other, whole)


class Near(NamedTuple):
    """A slice that is put near to where it was."""

    source: Any
    """The tensor of which it is."""
    shifts: tuple[int, ...]
    """How far it is put, per dim."""


class Line(NamedTuple):
    """Numbers that rise evenly along one dim, and are alike along others."""

    first: int
    along: int | None
    step: int


def _line(places: Any) -> Line | None:
    """What numbers are, if they are a line; None of others."""
    along = [dim for dim, size in enumerate(places.shape) if size > 1 and (np.diff(places, axis=dim) != 0).any()]
    if len(along) > 1:
        return None
    if not along:
        return Line(int(places.flat[0]), None, 1)
    steps = np.unique(np.diff(places, axis=along[0]))
    return Line(int(places.flat[0]), along[0], int(steps[0])) if len(steps) == 1 and steps[0] > 0 else None


class KnownPlaces:
    """What is known of the numbers in a jaxpr.

    Args:
        most: more numbers than so many are not worked out.
        constants: the variables that are known, with their arrays.
    """

    def __init__(self, most: int = MOST_NUMBERS, constants: Mapping[Any, Any] | None = None) -> None:
        self.most = most
        self.constants = constants or {}
        self.makers: dict[Any, Any] = {}
        """Per variable the equation that makes it."""
        self.numbers: dict[Any, Any] = {}

    def in_slices(self, equation: Any) -> list[Any]:
        """A split or a cut of what is made of others, as slices; any other equation by itself."""
        name, params = str(equation.primitive), equation.params
        if name not in ("split", "pad") or not self.is_made(equation.invars[0]):
            return [equation]
        whole = equation.invars[0].aval.shape
        if name == "pad":
            if any(max(entry) > 0 or entry[2] for entry in params["padding_config"]):
                return [equation]
            start = [-int(low) for low, _, _ in params["padding_config"]]
            return [_slice(equation, equation.outvars[0], start)]
        slices, axis = [], params["axis"]
        for var, first in zip(equation.outvars, accumulate(params["sizes"], initial=0), strict=False):
            slices.append(_slice(equation, var, [first * (dim == axis) for dim in range(len(whole))]))
        return slices

    def of(self, equation: Any) -> Any:
        """An equation, or one that does the same at places that are known."""
        self.makers.update(dict.fromkeys(equation.outvars, equation))
        name = str(equation.primitive)
        if name == "gather":
            return self._gather(equation)
        if name == "dynamic_slice":
            return self._dynamic_slice(equation)
        if name == "dynamic_update_slice":
            return self._dynamic_update(equation)
        if (name == "scatter" and equation.params["update_jaxpr"] is None) or name in COMBINED:
            return self._scatter(equation)
        if name == "concatenate":
            return self._joined(equation)
        if name == "slice":
            return self._part(equation)
        if name == "rev":
            return self._turned_back(equation)
        return equation

    def number(self, atom: Any) -> Any:
        """The integers that a value is, where nothing that is given has a say in them; else None."""
        if not self._is_told(atom):
            for each in sources_first(atom, self.numbers, self._sources):
                self.numbers[each] = None
                sources = self._sources_in(each)
                inside = [self._known(source) for source in sources or ()]
                if sources is not None and all(value is not None for value in inside):
                    maker = self.makers[each]
                    self.numbers.update(zip(maker.outvars, numbers_of(maker, inside), strict=True))
        return self._known(atom)

    def _sources_in(self, atom: Any) -> Sequence[Any] | None:
        """The values of which one may be worked out; None where it may not."""
        maker = self.makers.get(atom)
        return None if maker is None or not _is_small(maker, self.most) else maker.invars

    def _sources(self, atom: Any) -> list[Any]:
        """Those of them that must be worked out before."""
        return [source for source in self._sources_in(atom) or () if not self._is_told(source)]

    def _is_told(self, atom: Any) -> bool:
        """Whether nothing is left to be worked out of a value."""
        return isinstance(atom, Literal) or atom in self.constants or atom in self.numbers

    def _known(self, atom: Any) -> Any:
        """The integers that a value is of which nothing is left to be worked out; None where they are not known."""
        if isinstance(atom, Literal):
            return literal_array(atom)
        if atom in self.constants:
            return np.asarray(self.constants[atom]) if _are_numbers(atom.aval, self.most) else None
        return self.numbers[atom]

    def _gather(self, equation: Any) -> Any:
        table, params = equation.invars[0].aval.shape, equation.params
        numbers, sizes, index = params["dimension_numbers"], params["slice_sizes"], equation.invars[1]
        if numbers.operand_batching_dims or not prod(equation.outvars[0].aval.shape):
            return equation
        if index.aval.ndim == 1 and any(1 < size < full for size, full in zip(sizes, table, strict=True)):
            start = self._start(equation.invars[1], numbers.start_index_map, table, sizes)
            if start is None:
                return equation
            kept = equation.outvars[0].aval.shape
            stop = [first + size for first, size in zip(start, sizes, strict=True)]
            return in_place_of(equation, equation.invars[:1], lambda x: lax.reshape(lax.slice(x, start, stop), kept))
        places = self.number(index) if len(numbers.start_index_map) == 1 and index.aval.shape[-1] == 1 else None
        if places is None:
            return equation
        (dim,), places = numbers.start_index_map, places[..., 0].astype(np.int64)
        batch = [place for place in range(equation.outvars[0].aval.ndim) if place not in numbers.offset_dims]
        if numbers.collapsed_slice_dims != (dim,) or batch != [*range(dim, dim + places.ndim)]:
            return equation
        if any(size != full for place, (size, full) in enumerate(zip(sizes, table, strict=True)) if place != dim):
            return equation
        if places.size == 0 or places.min() < 0 or places.max() >= table[dim]:
            return equation
        if places.ndim == 1:
            return rows(equation, dim, places.tolist(), table)
        if places.ndim == 2 and 1 < min(places.shape) <= MOST_SIDES:
            return sides(equation, dim, places, table)
        return equation

    def _dynamic_slice(self, equation: Any) -> Any:
        table, sizes = equation.invars[0].aval.shape, equation.params["slice_sizes"]
        start = self._clamped(equation.invars[1:], table, sizes)
        if start is None:
            return equation
        stop = [first + size for first, size in zip(start, sizes, strict=True)]
        return in_place_of(equation, equation.invars[:1], lambda x: lax.slice(x, start, stop))

    def _dynamic_update(self, equation: Any) -> Any:
        base, update = (atom.aval.shape for atom in equation.invars[:2])
        start = self._clamped(equation.invars[2:], base, update)
        if start is None or not any(1 < size < full for size, full in zip(update, base, strict=True)):
            return equation
        return self._put_at(equation, 1, Lattice.beside(start, update))

    def _scatter(self, equation: Any) -> Any:
        (base, index, update), name = equation.invars, str(equation.primitive)
        lattice = self._lattice(equation.params["dimension_numbers"], index, update.aval.shape, base.aval.shape)
        if lattice is None:
            return equation
        if name == "scatter":
            return self._put_at(equation, 2, lattice)
        if not lattice.is_part(base.aval.shape):
            return equation
        combining, reduction = COMBINED[name]
        blank = identity(reduction, np.dtype(update.aval.dtype))
        centred = self._centred(update, lattice, base.aval.shape)
        if centred is None:
            return in_place_of(equation, [base, update], lambda x, y: combining(x, lattice.spread(y, x.shape, blank)))
        made, places = centred.function(update), [*centred.sources]
        return in_place_of(
            equation,
            [base, *places],
            lambda x, *arrays: combining(x, lattice.chosen(lax.full_like(x, blank), made(*arrays))),
        )

    def _lattice(self, numbers: Any, index: Any, update: Shape, base: Shape) -> Lattice | None:
        """Where a scatter puts a part, if that is known, and inside."""
        places = None if numbers.operand_batching_dims else self.number(index)
        if places is None or not places.size or not prod(update):
            return None
        batch = [dim for dim in range(len(update)) if dim not in numbers.update_window_dims]
        named, windows = [*numbers.scatter_dims_to_operand_dims], iter(numbers.update_window_dims)
        start, step, shape, axes = [0] * len(base), [1] * len(base), [1] * len(base), list[int]()
        for dim in range(len(base)):
            line = _line(places[..., named.index(dim)].astype(np.int64)) if dim in named else Line(0, None, 1)
            if line is None or (line.along is not None and dim not in numbers.inserted_window_dims):
                return None
            start[dim], step[dim] = line.first, line.step
            axis = None if line.along is None else batch[line.along]
            axis = axis if dim in numbers.inserted_window_dims else next(windows)
            if axis is not None:
                shape[dim] = update[axis]
                axes.append(axis)
        ends = zip(start, shape, step, base, strict=True)
        inside = all(first >= 0 and first + (size - 1) * apart < full for first, size, apart, full in ends)
        rest = [axis for axis in range(len(update)) if axis not in axes]
        is_once = len({*axes}) == len(axes) and all(update[axis] == 1 for axis in rest)
        if not (inside and is_once):
            return None
        return Lattice(tuple(start), tuple(step), tuple(shape), (*axes, *rest))

    def _centred(self, atom: Any, lattice: Lattice, whole: Shape) -> Centred | None:
        """What is put at known places, if it is made of slices and so to be computed there."""
        if isinstance(atom, Literal) or len(atom.aval.shape) != len(whole) or [*lattice.axes] != sorted(lattice.axes):
            return None
        centred = Centred(self.makers, lattice.start, atom.aval.shape, whole, lattice.step)
        return centred if centred.is_made_of_slices(atom) else None

    def _near(self, atom: Any, lattice: Lattice, whole: Shape) -> Near | None:
        """A slice that is put no farther than it is long; None of what is none, or is put elsewhere."""
        sliced = None if {*lattice.step} != {1} else sliced_from(self.makers, atom, whole)
        if sliced is None or [*lattice.axes] != sorted(lattice.axes):
            return None
        source, first = sliced
        shifts = tuple(int(there - here) for there, here in zip(lattice.start, first, strict=True))
        return Near(source, shifts) if all(map(le, map(abs, shifts), lattice.shape)) else None

    def _put_at(self, equation: Any, part: int, lattice: Lattice) -> Any:
        """A part put at its place, computed there where it is made of slices."""
        base, atom = equation.invars[0], equation.invars[part]
        near = self._near(atom, lattice, base.aval.shape)
        if near is not None:
            source, shifts = near
            dims = range(len(shifts))
            return in_place_of(
                equation, [base, source], lambda x, y: lattice.chosen(x, jax.numpy.roll(y, shifts, dims))
            )
        centred = self._centred(atom, lattice, base.aval.shape)
        if centred is None:
            return in_place_of(equation, [base, atom], lambda x, y: lattice.chosen(x, lattice.spread(y, x.shape, 0)))
        made, places = centred.function(atom), [*centred.sources]
        return in_place_of(equation, [base, *places], lambda x, *arrays: lattice.chosen(x, made(*arrays)))

    def _part(self, equation: Any) -> Any:
        """A part of what is joined or added, as what it is made of."""
        (source,), params = equation.invars, equation.params
        if not self.is_made(source) or {*(params["strides"] or (1,))} != {1}:
            return equation
        piece = Piece(source, *(tuple(map(int, params[key])) for key in ("start_indices", "limit_indices")))
        return self._made_of(equation, part_of(self.makers, piece), [source, alike(self.makers, source)])

    def is_made(self, atom: Any) -> bool:
        """Whether a value is joined or added of others, or a part of such."""
        name = "slice"
        while name in ("slice", "split"):
            atom = alike(self.makers, atom)
            maker = None if isinstance(atom, Literal) else self.makers.get(atom)
            if maker is None or not maker.invars:
                return False
            name, atom = str(maker.primitive), maker.invars[0]
        return name in ("concatenate", "add", "add_any")

    def _made_of(self, equation: Any, part: Part | None, known: Sequence[Any]) -> Any:
        """What a part is made of, in place of an equation, where that is anything but what it was known to be."""
        if part is None or all(piece.atom in known for piece in pieces_in(part)):
            return equation
        if isinstance(part, Piece) and part.shape and part.atom.aval.shape:
            return _slice(equation.replace(invars=[part.atom]), equation.outvars[0], part.start)
        return in_place_of(equation, *making(part))

    def _joined(self, equation: Any) -> Any:
        """What is joined, each part computed in all places where all are made of slices, and chosen in its own."""
        parts, whole, dim = equation.invars, equation.outvars[0].aval.shape, int(equation.params["dimension"])
        if any(str(self.makers[part].primitive) in ("concatenate", "rev") for part in parts if part in self.makers):
            part = part_of(self.makers, Piece(equation.outvars[0], (0,) * len(whole), whole), [dim])
            is_flat = isinstance(part, Piece) or (part is not None and all(isinstance(p, Piece) for p in part.parts))
            instead = self._made_of(equation, part if is_flat else None, parts)
            if instead is not equation:
                return instead
        centred = joined(self.makers, parts, dim, whole)
        if centred is None:
            return equation
        sources = [*dict.fromkeys(source for each in centred for source in each.sources)]

        def made(*arrays: Any) -> Any:
            known = dict(zip(sources, arrays, strict=True))
            result = None
            for each, part in zip(centred, parts, strict=True):
                own = each.function(part)(*(known[source] for source in each.sources))
                result = own if result is None else Lattice.beside(each.start, each.shape).chosen(result, own)
            return result

        return in_place_of(equation, sources, made)

    def _turned_back(self, equation: Any) -> Any:
        """What is turned round twice, computed as it lies."""
        (atom,), turning = equation.invars, Turning(self.makers, equation.params["dimensions"])
        if not turning.reaches(atom) or not turning.turns:
            return equation
        return in_place_of(equation, [*turning.sources], turning.function(atom))

    def _start(self, index: Any, dims: Sequence[int], table: Shape, sizes: Sequence[int]) -> list[int] | None:
        """Where a part of some sizes begins that an index names, if it lies inside."""
        places = self.number(index)
        if places is None:
            return None
        start = [0] * len(table)
        for dim, place in zip(dims, places.reshape(-1).tolist(), strict=True):
            start[dim] = place
        inside = all(0 <= first <= full - size for first, full, size in zip(start, table, sizes, strict=True))
        return start if inside else None

    def _clamped(self, atoms: Sequence[Any], table: Shape, sizes: Sequence[int]) -> list[int] | None:
        """Where a part of some sizes begins whose place in every dim is a number."""
        places = [self.number(atom) for atom in atoms]
        if any(place is None for place in places):
            return None
        return [min(max(int(place), 0), full - size) for place, full, size in zip(places, table, sizes, strict=True)]


def _slice(equation: Any, result: Any, start: Sequence[int]) -> Any:
    """A slice of what an equation is of, in place of what it makes."""
    stop = tuple(first + size for first, size in zip(start, result.aval.shape, strict=True))
    params = {"start_indices": tuple(start), "limit_indices": stop, "strides": None}
    return equation.replace(primitive=lax.slice_p, invars=equation.invars[:1], outvars=[result], params=params)


def _is_small(equation: Any, most: int) -> bool:
    """Whether an equation makes so many numbers at most, and nothing else."""
    return not equation.effects and all(_are_numbers(var.aval, most) for var in equation.outvars)


def _are_numbers(aval: Any, most: int) -> bool:
    """Whether a value is so many integers at most."""
    dtype = getattr(aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "iub" and prod(aval.shape) <= most
