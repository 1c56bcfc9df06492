"""In which diagonals a mask can be true: facts about numbers that are made of places, carried through a jaxpr.

A number that is made of the places of its row and its column by adding is known as such, and so is the larger or the
smaller of two; where two are compared, the difference of column and row tells where the answer can be yes, and where
it can be no.
What is both, either, not, chosen or multiplied has its facts from those of its parts; what nobody knows can be yes and
no anywhere.
What is made of nothing that is given and is small is looked at.

By hand, a row sees itself and the two columns before: column - row is -2, -1 or 0.

>>> import jax, jax.numpy as jnp
>>> from reshard.jax.tracing.bands.planes import flattened
>>> def near(padding):
...     rows, columns = jnp.arange(8)[:, None], jnp.arange(8)
...     return (rows - columns < 3) & (columns <= rows) & padding
>>> closed = jax.make_jaxpr(near)(jnp.ones(8, bool))
>>> flat = flattened(closed.jaxpr, closed.consts)
>>> Facts(flat).of(flat.results[0], Plane(0, 1))
Facets(nonzero=Band(low=-2, high=0), zero=Band(low=-inf, high=inf))
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, inf
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal

from reshard.jax.tracing.bands.planes import (
    NOWHERE,
    AtomInPlane,
    Flat,
    Plane,
    number_kind,
    operand_planes,
    operands_in_planes,
)
from reshard.jax.tracing.known_places import KnownPlaces
from reshard.operations.sources import sources_first

MOST_LOOKED_AT = 1 << 20
"""So many numbers are worked out where their equations alone tell nothing."""
_SAME = """
broadcast_in_dim convert_element_type copy copy_p expand_dims reshape squeeze stop_gradient transpose
"""
SAME = frozenset(_SAME.split())
"""Primitives whose result is what their operand is, elsewhere."""
SUMMED = {*SAME, "neg", "add", "sub", "mul"}
"""Of which a number may be so many times its row and its column."""
FOLLOWED = {*SAME, "neg", "abs", "not", "and", "mul", "or", "select_n", "ne", "gt", "eq"}
"""Whose result is zero, or not, as operands are."""
COMPARED = {"lt", "le", "gt", "ge", "eq", "ne"}
TOLD = FOLLOWED | COMPARED
"""Of whose result a rule tells where it is zero."""


class Band(NamedTuple):
    """Diagonals: from and to which difference of column and row."""

    low: float
    high: float

    def meet(self, other: Band) -> Band:
        """Those of both."""
        return Band(max(self.low, other.low), min(self.high, other.high))

    def join(self, other: Band) -> Band:
        """Those of either, and what is between."""
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        return Band(min(self.low, other.low), max(self.high, other.high))

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return self.low > self.high

    @property
    def width(self) -> float:
        """How many there are beside the first."""
        return self.high - self.low


EVERYWHERE, NEVER = Band(-inf, inf), Band(inf, -inf)


class Facets(NamedTuple):
    """Where a number, or a truth value, can be what."""

    nonzero: Band
    zero: Band


UNKNOWN = Facets(EVERYWHERE, EVERYWHERE)


class Affine(NamedTuple):
    """A number that is so many times its row, so many times its column and a constant."""

    row: float
    column: float
    constant: float

    def plus(self, other: Affine, sign: int = 1) -> Affine:
        """The sum of two, or their difference."""
        return Affine(*(one + sign * more for one, more in zip(self, other, strict=True)))

    def below(self, *, strictly: bool) -> Band:
        """Where it is below zero, or not above it."""
        if self.row or self.column:
            if self.row != -self.column:
                return EVERYWHERE
            end = -self.constant / self.column
            if self.column > 0:
                return Band(-inf, ceil(end) - 1 if strictly else floor(end))
            return Band(floor(end) + 1 if strictly else ceil(end), inf)
        return EVERYWHERE if self.constant < 0 or (self.constant == 0 and not strictly) else NEVER

    def negated(self) -> Affine:
        """The same below zero."""
        return Affine(-self.row, -self.column, -self.constant)


class Extreme(NamedTuple):
    """The largest of some numbers, or the smallest."""

    is_largest: bool
    of: tuple[Affine, ...]


class Facts:
    """What is known of the values of flat equations."""

    def __init__(self, flat: Flat) -> None:
        self.makers = {var: equation for equation in flat.equations for var in equation.outvars}
        self.known = KnownPlaces(MOST_LOOKED_AT)
        self.known.makers = self.makers
        for var, value in flat.constants.items():
            if number_kind(getattr(value, "dtype", None)) in set("iub"):
                self.known.numbers[var] = np.asarray(value)
        self.facets: dict[AtomInPlane, Facets] = {}
        self._affines: dict[AtomInPlane, Affine | None] = {}

    def of(self, atom: Any, plane: Plane) -> Facets:
        """On which diagonals a value can be other than zero, and where it can be zero."""
        if isinstance(atom, Literal):
            return Facets(EVERYWHERE, NEVER) if atom.val else Facets(NEVER, EVERYWHERE)
        for pair in sources_first((atom, plane), self.facets, self._parts):
            self.facets[pair] = self._of(*pair)
        return self.facets[atom, plane]

    def _parts(self, pair: AtomInPlane) -> list[AtomInPlane]:
        """Of which values' facts those of a value are made."""
        return operands_in_planes(self.makers, pair) if self._name(pair[0]) in FOLLOWED else []

    def _terms(self, pair: AtomInPlane) -> list[AtomInPlane]:
        """Of which values one is a sum, or a multiple, where it may be so many times its row and its column."""
        atom, plane = pair
        if self._name(atom) not in SUMMED or plane == NOWHERE or not _is_exact(atom):
            return []
        return operands_in_planes(self.makers, pair)

    def _name(self, atom: Any) -> str:
        """That of the primitive that makes a value; none of what is given."""
        maker = self.makers.get(atom)
        return "" if maker is None else str(maker.primitive)

    def _of(self, atom: Any, plane: Plane) -> Facets:
        maker = self.makers.get(atom)
        facets = UNKNOWN if maker is None else self._made(maker, plane)
        return self._seen(atom, plane) if facets == UNKNOWN and plane.is_whole else facets

    def _made(self, maker: Any, plane: Plane) -> Facets:
        name, planes = str(maker.primitive), operand_planes(maker, plane)
        if planes is None or name not in TOLD:
            return UNKNOWN
        if name in COMPARED:
            return self._compared(name, maker.invars, planes)
        operands = [self.of(*pair) for pair in zip(maker.invars, planes, strict=True)]
        first = operands[0]
        if name in (*SAME, "neg", "abs"):
            cut_off = maker.outvars[0].aval.dtype.kind in "iu" and maker.invars[0].aval.dtype.kind not in "iub"
            return first._replace(zero=EVERYWHERE) if cut_off else first
        if name == "not" and maker.outvars[0].aval.dtype == bool:
            return Facets(first.zero, first.nonzero)
        if name in ("and", "mul"):
            return Facets(first.nonzero.meet(operands[1].nonzero), first.zero.join(operands[1].zero))
        if name == "or":
            return Facets(first.nonzero.join(operands[1].nonzero), first.zero.meet(operands[1].zero))
        if name == "select_n" and len(operands) == 3:
            no, yes = operands[1:]
            parts = (yes.nonzero.meet(first.nonzero), no.nonzero.meet(first.zero))
            others = (yes.zero.meet(first.nonzero), no.zero.meet(first.zero))
            return Facets(parts[0].join(parts[1]), others[0].join(others[1]))
        return UNKNOWN

    def _compared(self, name: str, atoms: Sequence[Any], planes: Sequence[Plane]) -> Facets:
        left, right = (self.extreme(*pair) for pair in zip(atoms, planes, strict=True))
        if left is not None and right is not None:
            if name in ("eq", "ne"):
                if len(left.of) != 1 or len(right.of) != 1:
                    return UNKNOWN
                difference = left.of[0].plus(right.of[0], -1)
                both = [each.below(strictly=False) for each in (difference, difference.negated())]
                same = Facets(both[0].meet(both[1]), EVERYWHERE)
                return same if name == "eq" else Facets(same.zero, same.nonzero)
            strictly = name in ("lt", "gt")
            low, high = (left, right) if name in ("lt", "le") else (right, left)
            return Facets(_below(low, high, strictly=strictly), _below(high, low, strictly=not strictly))
        if name in ("ne", "gt", "eq") and isinstance(atoms[1], Literal) and not atoms[1].val:
            number = self.of(atoms[0], planes[0])
            if name == "eq":
                return Facets(number.zero, number.nonzero)
            return number if name == "ne" else Facets(number.nonzero, EVERYWHERE)
        return UNKNOWN

    def extreme(self, atom: Any, plane: Plane) -> Extreme | None:
        """A value as the largest or the smallest of such numbers."""
        maker = None if isinstance(atom, Literal) else self.makers.get(atom)
        name = "" if maker is None else str(maker.primitive)
        if maker is not None and _is_exact(atom) and name in ("abs", "max", "min", *SAME):
            planes = operand_planes(maker, plane)
            if planes is not None and name in SAME:
                return self.extreme(maker.invars[0], planes[0])
            if planes is not None:
                parts = [self.affine(*pair) for pair in zip(maker.invars, planes, strict=True)]
                known = tuple(part for part in parts if part is not None)
                if len(known) == len(parts):
                    return Extreme(name != "min", known if name != "abs" else (known[0], known[0].negated()))
        single = self.affine(atom, plane)
        return None if single is None else Extreme(True, (single,))

    def affine(self, atom: Any, plane: Plane) -> Affine | None:
        """A value as so many times its row and its column, if it is, and if no step on the way is too large."""
        if isinstance(atom, Literal):
            return Affine(0, 0, np.asarray(atom.val).item()) if _is_integer(atom) else None
        for pair in sources_first((atom, plane), self._affines, self._terms):
            self._affines[pair] = self._small_affine(*pair)
        return self._affines[atom, plane]

    def _small_affine(self, atom: Any, plane: Plane) -> Affine | None:
        affine = self._affine(atom, plane) if _is_exact(atom) else None
        if affine is None:
            return None
        largest = (abs(affine.row) + abs(affine.column)) * max((1, *atom.aval.shape)) + abs(affine.constant)
        return affine if largest < (1 << 31 if number_kind(atom.aval.dtype) == "i" else 1 << 24) else None

    def _affine(self, atom: Any, plane: Plane) -> Affine | None:
        maker = self.makers.get(atom)
        if maker is None or plane == NOWHERE:
            return self._line(atom, plane)
        name, params = str(maker.primitive), maker.params
        if name == "iota":
            places = {plane.row: Affine(1, 0, 0), plane.column: Affine(0, 1, 0)}
            return places.get(params["dimension"])
        planes = operand_planes(maker, plane) if name in SUMMED else None
        if planes is None:
            return self._line(atom, plane)
        parts = [self.affine(*pair) for pair in zip(maker.invars, planes, strict=True)]
        if parts[0] is None or None in parts:
            return self._line(atom, plane)
        if name in SAME:
            return parts[0]
        if name == "neg":
            return parts[0].negated()
        if name in ("add", "sub") and parts[1] is not None:
            return parts[0].plus(parts[1], 1 if name == "add" else -1)
        if name == "mul" and parts[1] is not None:
            for one, other in (parts, parts[::-1]):
                if not other.row and not other.column:  # type: ignore[union-attr]  # neither is None
                    return Affine(*(number * other.constant for number in one))  # type: ignore[union-attr]
        return self._line(atom, plane)

    def _line(self, atom: Any, plane: Plane) -> Affine | None:
        """Numbers that are known, and grow evenly with their row and their column."""
        numbers = self.known.number(atom)
        if numbers is None or not numbers.size:
            return None
        numbers = numbers.astype(np.int64)
        first, steps = int(numbers.flat[0]), [0, 0]
        expected: Any = np.int64(first)
        for place, dim in enumerate(plane):
            if dim is not None and numbers.shape[dim] > 1:
                steps[place] = int(np.take(numbers, 1, dim).flat[0]) - first
                shape = [size if each == dim else 1 for each, size in enumerate(numbers.shape)]
                expected = expected + steps[place] * np.arange(numbers.shape[dim]).reshape(shape)
        return Affine(steps[0], steps[1], first) if (numbers == expected).all() else None

    def _seen(self, atom: Any, plane: Plane) -> Facets:
        """Those of numbers that are known."""
        numbers = self.known.number(atom)
        if numbers is None or plane.row is None or plane.column is None:
            return UNKNOWN
        moved = np.moveaxis(numbers != 0, (plane.row, plane.column), (0, 1)).reshape(
            *(numbers.shape[dim] for dim in (plane.row, plane.column)), -1
        )
        return Facets(*(_diagonals(mask) for mask in (moved.any(-1), (~moved).any(-1))))


def _is_exact(atom: Any) -> bool:
    """Whether sums of places are what they are in integers."""
    kind, size = number_kind(atom.aval.dtype), max((1, *atom.aval.shape))
    most = {"f": 1 << 20, "i": 1 << 28}
    return size < most.get(kind, 0) and atom.aval.dtype.itemsize >= 4


def _is_integer(literal: Any) -> bool:
    """Whether a literal is one integer."""
    number = np.asarray(literal.val)
    return number.ndim == 0 and number.dtype.kind in "iuf" and bool(np.isfinite(number)) and number == np.round(number)


def _diagonals(mask: Any) -> Band:
    rows, columns = np.nonzero(mask)
    return Band(int((columns - rows).min()), int((columns - rows).max())) if rows.size else NEVER


def _below(low: Extreme, high: Extreme, *, strictly: bool) -> Band:
    """Where one can be below another: the largest of some where all are, the smallest where any is."""
    bands = []
    for number in high.of:
        each = [part.plus(number, -1).below(strictly=strictly) for part in low.of]
        bands.append(_together(each, all_hold=low.is_largest or len(each) == 1))
    return _together(bands, all_hold=not high.is_largest or len(bands) == 1)


def _together(bands: Sequence[Band], *, all_hold: bool) -> Band:
    result = bands[0]
    for band in bands[1:]:
        result = result.meet(band) if all_hold else result.join(band)
    return result
