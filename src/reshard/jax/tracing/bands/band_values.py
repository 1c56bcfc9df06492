"""What a jaxpr computes inside of a band and outside of it, value by value, as it is asked for.

The band comes from masks (`masks`), the blocks from the band (`band_blocks`).
A value inside is computed of values inside; a tensor that has not both rows and columns is cut into blocks where it is
read.
What is known outside follows the same equations with one number per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from reshard.jax.tracing.bands.band_blocks import BeyondBand, Blocks, spread
from reshard.jax.tracing.bands.masks import NEVER, Band, Facts
from reshard.jax.tracing.bands.planes import (
    NOWHERE,
    REDUCED,
    RESHAPED,
    AtomInPlane,
    Flat,
    Plane,
    operand_planes,
    operands_in_planes,
)
from reshard.jax.tracing.equations import ELEMENTWISE
from reshard.jax.tracing.evaluation import results_of
from reshard.operations.sources import sources_first

MOVED = ("broadcast_in_dim", "transpose", "convert_element_type", "copy", "copy_p", "stop_gradient", *RESHAPED)
"""Primitives of which every element is one of the operand."""
LINEAR = ("add", "add_any", "sub", "neg", "mul", "div", "reduce_sum", *MOVED)
"""Primitives of which the sum over columns follows from the sums of their operands, if one at most is no constant."""

ABSORBING = {"mul": 0.0, "add": -np.inf, "add_any": -np.inf}
"""By the name of a primitive the number that stays what it is, whatever finite number is beside it."""


class UnseenError(Exception):
    """A value that no rule knows in blocks."""


class Need(NamedTuple):
    """What a band must have at the least for a value to be known outside of it."""

    band: Band
    is_constant: bool
    """Whether it is one number per row there."""
    number: float | None = None
    """The one number that it is everywhere outside, where that is known before the function runs."""
    is_absorbed: bool = False
    """Whether it is that number because whatever is beside it is finite."""


class MadeOf(NamedTuple):
    """What a value in blocks is made of."""

    whole: set[Any]
    """Values that are read whole."""
    scores: set[Any]
    """Products of rows and columns of which a band is made."""

    def add(self, other: MadeOf) -> None:
        """All of another too."""
        self.whole.update(other.whole)
        self.scores.update(other.scores)


class BandValues:
    """The values of flat equations in blocks.

    Args:
        flat: the equations.
        devices: of the mesh.
    """

    def __init__(self, flat: Flat, devices: int) -> None:
        self.facts, self.devices, self.constants = Facts(flat), devices, flat.constants
        self.makers = self.facts.makers
        self.planes: dict[Any, Plane] = {}
        """Per product of rows and columns which dims are taken as rows, and which as columns."""
        self.needs: dict[tuple[Any, Plane], Need | None] = {}
        self.made_of: dict[tuple[Any, Plane], frozenset[tuple[Any, Plane]]] = {}
        self.reads: dict[Any, MadeOf] = {}
        """Per result of an equation that ends a band what it is made of."""

    def begin(self, read: Callable[[Any], Any]) -> None:
        """Forget all arrays; others are read so."""
        self.read = read
        self.arrays: dict[tuple[Any, Plane, Blocks], Any] = {}
        self.others: dict[tuple[Any, Plane, Blocks], BeyondBand] = {}
        self.sources: dict[tuple[Any, Plane, Blocks], MadeOf] = {}

    # What is known of a value outside of a band

    def need(self, atom: Any, plane: Plane) -> Need | None:
        """The band outside of which a value is known."""
        if isinstance(atom, Literal):
            number = np.asarray(atom.val)
            return Need(NEVER, True, float(number) if number.ndim == 0 and number.dtype.kind in "iuf" else None)
        maker = self.makers.get(atom)
        if plane == NOWHERE and maker is not None and str(maker.primitive) in MOVED:
            return self.need(maker.invars[0], NOWHERE)
        if plane.column is None:
            return Need(NEVER, is_constant=True)
        if plane.row is None:
            return Need(NEVER, is_constant=False)
        for pair in sources_first((atom, plane), self.needs, self._whole_operands):
            self.needs[pair] = self._need(self.makers.get(pair[0]), pair[1])
        return self.needs[atom, plane]

    def _whole_operands(self, pair: AtomInPlane) -> list[AtomInPlane]:
        """The operands of which a value is made that have rows and columns."""
        return [each for each in operands_in_planes(self.makers, pair) if each[1].is_whole]

    def scores(self, atom: Any, plane: Plane) -> frozenset[tuple[Any, Plane]]:
        """The products of rows and columns that a value is made of, with their rows and columns."""
        if not plane.is_whole:
            return frozenset()
        for pair in sources_first((atom, plane), self.made_of, self._whole_operands):
            operands, maker = self._whole_operands(pair), self.makers.get(pair[0])
            is_product = maker is not None and str(maker.primitive) == "dot_general" and not operands
            own = [pair] if is_product else []
            self.made_of[pair] = frozenset(own).union(*(self.made_of[each] for each in operands))
        return self.made_of[atom, plane]

    def _need(self, maker: Any, plane: Plane) -> Need | None:
        planes = None if maker is None else operand_planes(maker, plane)
        if planes is None:
            return None
        name = str(maker.primitive)
        chosen = self.chosen(maker, planes)
        if chosen is not None:
            number, band = chosen
            need = self.need(maker.invars[number], planes[number])
            return None if need is None else need._replace(band=band.join(need.band))
        if name == "dot_general" and not any(each.is_whole for each in planes):
            return Need(NEVER, is_constant=False)
        needs = [self.need(*pair) for pair in zip(maker.invars, planes, strict=True)]
        absorbing = ABSORBING.get(name)
        for need in needs:
            if need is not None and absorbing is not None and need.number == absorbing:
                return need._replace(is_absorbed=True)
        first = needs[0] if needs else None
        if first is not None and first.is_absorbed and first.number == -np.inf and name in ("sub", "exp"):
            return first if name == "sub" else first._replace(number=0.0)
        band, constants = NEVER, []
        for need in needs:
            if need is None:
                return None
            band = band.join(need.band)
            constants.append(need.is_constant)
        if all(constants) and name != "dot_general":
            if first is None or first.number is None or name not in MOVED:
                return Need(band, is_constant=True)
            same = float(np.array(first.number).astype(maker.outvars[0].aval.dtype))
            return Need(band, True, same, first.is_absorbed)
        factors = {"mul": constants, "div": [True, constants[-1]]}.get(name, [])
        if name not in LINEAR or factors.count(False) > (name == "mul"):
            return None
        return Need(band, is_constant=False)

    def chosen(self, maker: Any, planes: Sequence[Plane]) -> tuple[int, Band] | None:
        """Of a choice by a mask the operand that is taken outside of a band, and the band."""
        if str(maker.primitive) != "select_n" or len(maker.invars) != 3:
            return None
        facets = self.facts.of(maker.invars[0], planes[0])
        pairs = [(band.width, number, band) for number, band in ((1, facets.nonzero), (2, facets.zero))]
        width, number, band = min(pairs)
        return (number, band) if np.isfinite(width) else None

    # Inside

    def inside(self, atom: Any, plane: Plane, blocks: Blocks) -> Any:
        """A value in blocks; what it is in columns that there are not is anything.

        Raises:
            UnseenError: where no rule knows it.
        """
        if isinstance(atom, Literal):
            return jax.numpy.asarray(self.read(atom))
        key = atom, plane, blocks
        if key not in self.arrays:
            self.sources[key] = MadeOf(set(), set())
            self.arrays[key] = self._inside(atom, plane, blocks, self.sources[key])
        return self.arrays[key]

    def _inside(self, atom: Any, plane: Plane, blocks: Blocks, sources: MadeOf) -> Any:
        shape = atom.aval.shape
        if not plane.is_whole:
            sources.whole.add(atom)
            if plane.row is not None:
                return blocks.in_blocks(self.read(atom), plane.row)
            if plane.column is not None:
                return blocks.columns(self.read(atom), plane.column)
            return jax.numpy.broadcast_to(self.read(atom), (blocks.count, *shape)) if shape else self.read(atom)
        maker = self.makers.get(atom)
        numbers = self.facts.known.numbers.get(atom) if maker is None else None
        if numbers is not None and plane.row is not None and plane.column is not None:
            return jax.numpy.asarray(blocks.cut(numbers, plane.row, plane.column))
        if maker is None:
            raise UnseenError
        size = self.block_shape(shape, plane, blocks)
        if str(maker.primitive) == "iota":
            dim, dtype = maker.params["dimension"], maker.params["dtype"]
            if dim in plane:
                return blocks.places(size, dim + 1, dtype, of_columns=dim == plane.column)
            return lax.broadcasted_iota(dtype, size, dim + 1)
        planes = operand_planes(maker, plane)
        if planes is None or len(maker.outvars) > 1:
            raise UnseenError
        operands = []
        for source, own in zip(maker.invars, planes, strict=True):
            operands.append(self.inside(source, own, blocks))
            if not isinstance(source, Literal):
                sources.add(self.sources[source, own, blocks])
        if str(maker.primitive) == "dot_general" and not any(each.is_whole for each in planes):
            sources.scores.add(atom)
        return made_in_blocks(maker, operands, size)

    @staticmethod
    def block_shape(shape: Sequence[int], plane: Plane, blocks: Blocks, seen: int | None = None) -> tuple[int, ...]:
        """That of a tensor in blocks."""
        sizes = {plane.row: blocks.rows, plane.column: blocks.seen if seen is None else seen}
        return (blocks.count, *(sizes.get(dim, size) for dim, size in enumerate(shape)))

    # Outside

    def outside(self, atom: Any, plane: Plane, blocks: Blocks) -> BeyondBand:
        """What a value is in the columns that a block does not see.

        Raises:
            UnseenError: where no rule knows it.
        """
        if isinstance(atom, Literal):
            return BeyondBand(jax.numpy.asarray(self.read(atom)), None, is_zero=not np.any(atom.val))
        key = atom, plane, blocks
        if key not in self.others:
            self.others[key] = self._outside(atom, plane, blocks)
        return self.others[key]

    def _outside(self, atom: Any, plane: Plane, blocks: Blocks) -> BeyondBand:
        if plane.column is None:
            return BeyondBand(self.inside(atom, plane, blocks), None)
        if plane.row is None:
            whole = lax.expand_dims(self.read(atom), (0,))
            return BeyondBand(None, self._left(whole, self.inside(atom, plane, blocks), plane.column, blocks))
        maker = self.makers[atom]
        planes, need = operand_planes(maker, plane), self.need(atom, plane)
        if planes is None or need is None:
            raise UnseenError
        chosen, size = self.chosen(maker, planes), self.block_shape(atom.aval.shape, plane, blocks, 1)
        if need.number is not None:
            return BeyondBand(lax.full(size, need.number, atom.aval.dtype), None, is_zero=not need.number)
        if chosen is not None:
            number, _ = chosen
            return self.outside(maker.invars[number], planes[number], blocks)
        if str(maker.primitive) == "dot_general":
            return BeyondBand(None, self._product_outside(maker, planes, blocks, size))
        parts = [self.outside(*pair, blocks) for pair in zip(maker.invars, planes, strict=True)]
        if all(part.constant is not None for part in parts):
            return BeyondBand(made_in_blocks(maker, [part.constant for part in parts], size), None)
        summed = str(maker.primitive) in ("mul", "div")  # of which one is a factor of all columns
        totals = [
            part.constant if summed and part.constant is not None else self.total(part, blocks, len(size) - 1)
            for part in parts
        ]
        return BeyondBand(None, made_in_blocks(maker, totals, size))

    @staticmethod
    def total(part: BeyondBand, blocks: Blocks, ndim: int) -> Any:
        """The sum over the columns outside."""
        if part.constant is None:
            return part.total
        constant = jax.numpy.asarray(part.constant)
        return constant * blocks.unseen(ndim + 1, constant.dtype)

    @staticmethod
    def _left(whole: Any, seen: Any, column: int, blocks: Blocks) -> Any:
        """The sum over all columns without those that a block sees."""
        everything = whole.sum(column + 1, keepdims=True, dtype=whole.dtype)
        return everything - seen.sum(column + 1, keepdims=True, dtype=whole.dtype)

    def _product_outside(self, maker: Any, planes: Sequence[Plane], blocks: Blocks, size: Sequence[int]) -> Any:
        """The sums of products of rows with columns: the products with the sums of the columns."""
        operands = []
        for source, own in zip(maker.invars, planes, strict=True):
            part = self.outside(source, own, blocks)
            operands.append(part.constant if own.column is None else self.total(part, blocks, source.aval.ndim))
        return made_in_blocks(maker, operands, size)


def made_in_blocks(maker: Any, operands: Sequence[Any], size: Sequence[int]) -> Any:
    """An equation of tensors that have their blocks first."""
    name, params = str(maker.primitive), maker.params
    if name in ELEMENTWISE:
        return results_of(maker, spread(operands, size))[0]
    if name == "dot_general":
        return multiplied(maker, operands)
    (operand,) = operands[:1]
    if not operand.ndim:
        return spread([operand], size)[0]
    if name == "broadcast_in_dim":
        places = (0, *(dim + 1 for dim in params["broadcast_dimensions"]))
        return lax.broadcast_in_dim(operand, tuple(size), places)
    if name == "transpose":
        return lax.transpose(operand, (0, *(dim + 1 for dim in params["permutation"])))
    if name in RESHAPED:
        return lax.reshape(operand, tuple(size))
    if name in REDUCED:
        changed = {**params, "axes": tuple(axis + 1 for axis in params["axes"])}
        return results_of(maker, [operand], changed)[0]
    raise UnseenError


def multiplied(equation: Any, operands: Sequence[Any]) -> Any:
    """A product of tensors that have their blocks first."""
    contracted, batch = (
        tuple(tuple(dim + 1 for dim in dims) for dims in pair) for pair in equation.params["dimension_numbers"]
    )
    numbers = contracted, tuple((0, *dims) for dims in batch)
    return results_of(equation, operands, {**equation.params, "dimension_numbers": numbers})[0]
