"""Equations that take a band of scores and give none: sums, largest and smallest, products.

A row is summed over the columns that its block sees, and what is outside of them is added; a column is summed over the
rows of each block that sees it, and those sums over the blocks.
Where rows have a number outside that is not zero, it is taken off inside before rows or columns are summed over, and
added for all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from reshard.dtypes import identity
from reshard.jax.tracing.bands.band_blocks import BeyondBand, Blocks, spread
from reshard.jax.tracing.bands.band_values import BandValues, MadeOf, UnseenError, multiplied
from reshard.jax.tracing.bands.planes import REDUCED, Plane, product_dims
from reshard.jax.tracing.evaluation import results_of


class BandEnd(NamedTuple):
    """An equation that takes a tensor of rows and columns and gives none."""

    operand: int
    """Which of its operands has them."""
    plane: Plane
    blocks: Blocks
    over_columns: bool
    """Whether it runs over the columns of a row, or over the rows of a column."""


class BandEnds(BandValues):
    """The values of flat equations in blocks, and the equations that end bands."""

    def end_of(self, equation: Any) -> BandEnd | None:
        """How an equation takes a band of its operand, if it can."""
        name = str(equation.primitive)
        if name in REDUCED:
            run = {*equation.params["axes"]}
            return self._end(equation, 0, run, needs_constant=name != "reduce_sum")
        if name == "dot_general":
            for operand, contracted in enumerate(equation.params["dimension_numbers"][0]):
                end = self._end(equation, operand, {*contracted}, needs_constant=True)
                if end is not None:
                    return end
        return None

    def _end(self, equation: Any, operand: int, run: set[int], *, needs_constant: bool) -> BandEnd | None:
        atom = equation.invars[operand]
        shape = atom.aval.shape
        pairs = [Plane(row, column) for row in range(len(shape)) for column in range(len(shape)) if row != column]
        for plane in sorted(pairs, key=lambda plane: plane.column not in run):  # over columns, if it may be so
            row, column = plane.row or 0, plane.column or 0
            over_columns, is_sum = column in run, str(equation.primitive) in ("reduce_sum", "dot_general")
            if shape[row] != shape[column] or not (over_columns or (row in run and is_sum)):
                continue
            if {row, column} <= run and str(equation.primitive) == "dot_general":
                continue
            need = self.need(atom, plane)
            if need is None or need.band.is_empty or not np.isfinite(need.band).all():
                continue
            if not need.is_constant and (needs_constant or not over_columns):
                continue
            blocks = Blocks.of(shape[row], self.devices, *map(int, need.band))
            scores = self.scores(atom, plane)
            if blocks is not None and all(self.planes.get(made, own) == own for made, own in scores):
                self.planes.update(scores)
                return BandEnd(operand, plane, blocks, over_columns)
        return None

    def end(self, equation: Any, end: BandEnd) -> Any:
        """The result of an equation that ends a band.

        Raises:
            UnseenError: where no rule knows what it takes.
        """
        atom, plane, blocks = equation.invars[end.operand], end.plane, end.blocks
        inside, other = self.inside(atom, plane, blocks), self.outside(atom, plane, blocks)
        self.reads[equation.outvars[0]] = reads = MadeOf(set(), set())
        reads.add(self.sources[atom, plane, blocks])
        if str(equation.primitive) != "dot_general":
            return self._reduced(equation, end, inside, other)
        number = 1 - end.operand
        own = self._beside(equation, end)
        beside = self.inside(equation.invars[number], own, blocks)
        reads.add(self.sources[equation.invars[number], own, blocks])
        return self._product(equation, end, (inside, other), (beside, own))

    def _reduced(self, equation: Any, end: BandEnd, inside: Any, other: BeyondBand) -> Any:
        plane, blocks, ndim = end.plane, end.blocks, equation.invars[0].aval.ndim
        reduction, axes = str(equation.primitive).removeprefix("reduce_"), {*equation.params["axes"]}
        first = axes - {plane.row} if end.over_columns else axes
        place = [dim for dim in range(ndim) if dim not in first].index(plane.row if end.over_columns else plane.column)  # type: ignore[arg-type]
        size = self.block_shape(equation.invars[0].aval.shape, plane, blocks, 1)

        def run(array: Any, dims: Any) -> Any:
            return results_of(equation, [array], {**equation.params, "axes": tuple(sorted(dims))})[0]

        over = [dim + 1 for dim in first]
        if not end.over_columns:
            rest = inside - jax.numpy.asarray(other.constant) if not other.is_zero else inside
            result = blocks.added_columns(run(self._cleared(rest, end, 0), over), place)
            if other.is_zero:
                return result
            everywhere = run(spread([other.constant], size)[0], over).sum(0, dtype=result.dtype)
            return result + jax.numpy.broadcast_to(everywhere, result.shape)
        neutral = identity(reduction, np.dtype(inside.dtype))
        result = run(self._cleared(inside, end, neutral), over)
        if reduction == "sum" and not other.is_zero:
            result = result + run(spread([self.total(other, blocks, ndim)], size)[0], over)
        elif reduction != "sum":
            combine = lax.max if reduction == "max" else lax.min
            result = combine(result, run(spread([other.constant], size)[0], over))
        result = blocks.joined(result, place)
        return run(result, [place]) if plane.row in axes else result

    def _cleared(self, inside: Any, end: BandEnd, neutral: Any) -> Any:
        """What a block sees, one number where there are no columns."""
        visible = np.broadcast_to(end.blocks.inside(inside.ndim, end.plane.column or 0), inside.shape)
        if visible.all():
            return inside
        mask = jax.numpy.asarray(end.blocks.inside(inside.ndim, end.plane.column or 0))
        return lax.select(
            jax.numpy.broadcast_to(mask, inside.shape), inside, lax.full_like(inside, np.array(neutral, inside.dtype))
        )

    @staticmethod
    def _beside(equation: Any, end: BandEnd) -> Plane:
        """Where the other operand of a product has rows and columns."""
        pairs: dict[int, int] = {}
        for dims in equation.params["dimension_numbers"]:
            pairs.update(zip(dims[end.operand], dims[1 - end.operand], strict=True))
        return Plane(*(pairs.get(dim) if dim is not None else None for dim in end.plane))

    def _product(self, equation: Any, end: BandEnd, scores: tuple[Any, BeyondBand], beside: tuple[Any, Plane]) -> Any:
        (inside, other), (factor, own), blocks = scores, beside, end.blocks
        if own.is_whole and not other.is_zero:
            raise UnseenError
        atom, factor_atom = (equation.invars[number] for number in (end.operand, 1 - end.operand))
        free = {dim: place for place, dim in product_dims(equation)[end.operand].items()}
        place = free[end.plane.row if end.over_columns else end.plane.column]  # type: ignore[index]

        def run(left: Any, right: Any) -> Any:
            return multiplied(equation, (left, right) if end.operand == 0 else (right, left))

        constant = (
            None
            if other.is_zero
            else spread([other.constant], self.block_shape(atom.aval.shape, end.plane, blocks, 1))[0]
        )
        rest = self._cleared(inside if constant is None else inside - constant, end, 0)
        result = run(rest, factor)
        if end.over_columns:
            if constant is not None:
                whole = self.read(factor_atom).sum(own.column, keepdims=True, dtype=factor.dtype)
                result = result + run(constant, jax.numpy.broadcast_to(whole, (blocks.count, *whole.shape)))
            return blocks.joined(result, place)
        result = blocks.added_columns(result, place)
        if constant is None:
            return result
        everywhere = run(constant, factor).sum(0, dtype=result.dtype)
        return result + jax.numpy.broadcast_to(everywhere, result.shape)
