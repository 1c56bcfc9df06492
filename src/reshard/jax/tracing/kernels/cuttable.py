"""Which digits of a kernel's grid devices may have parts of, and what of its tensors goes with them.

A digit may be cut where it stands in the block numbers of every result: then what is written at two values of it lies
apart, and a device with some of its values writes its own blocks and no others.
What a device reads is cut along with it where its block numbers have the digit too; any other is whole, and its blocks
are found at the place in the whole grid.
So it may not be cut where

    a result lacks it           all its values write to one block, as those of a dim that is summed
    scratch is handed on        from one place of its axis to the next: `scratch`
    an operand is written       or is the same buffer as a result that lies otherwise
    a place must be known       inside a loop or a branch, or to a kernel that is compiled for an accelerator

By hand, a product of matrices with a grid of (4, 2, 3) blocks over rows, columns and what is summed: the results are
blocks (i, j), so i and j may be cut and k may not; of the left operand with blocks (i, k) a device needs its rows, of
the right one its columns.
The pattern is `(g0_1 w0_0) (g2_1 w0_1), (g2_1 w1_0) (g1_1 w1_1) -> (g0_1 w2_0) (g1_1 w2_1)`, of which all labels but
g0_1 and g1_1 are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from jax._src.pallas.core import Blocked, Element, Squeezed
from jax._src.state.types import ReadEffect, RefEffect

from reshard.jax.tracing.kernels.grids import BlockNumber, GridCuts, GridDigit, block_numbers, digits_of
from reshard.jax.tracing.kernels.scratch import ASKING, OF_THE_DEVICE, equations_in, is_begun_anew
from reshard.operations.pattern import Term


class BlockDim(NamedTuple):
    """A dim of a tensor of a kernel."""

    number: BlockNumber
    digits: tuple[GridDigit, ...] | None
    """Of which its block numbers are made; None where they are anything else."""
    block: int
    """How many elements a block has."""


@dataclass(frozen=True)
class Kernel:
    """A call of a kernel, and which parts of it stand alone.

    Args:
        equation: that calls it.
    """

    equation: Any

    @property
    def mapping(self) -> Any:
        """Its grid, and the blocks of its operands and results."""
        return self.equation.params["grid_mapping"]

    @property
    def whole_operands(self) -> int:
        """How many operands come first that have no blocks: sizes of the grid, and numbers that are read before."""
        return self.mapping.num_dynamic_grid_bounds + self.mapping.num_index_operands

    @property
    def is_plain(self) -> bool:
        """Whether it is interpreted, at one place, of tensors that are one block each."""
        params, mapping = self.equation.params, self.mapping
        is_alone = params["interpret"] is True and params["mesh"] is None and all(size == 1 for size in mapping.grid)
        return is_alone and all(block.has_trivial_window() for block in mapping.block_mappings)

    @cached_property
    def cuts(self) -> GridCuts:
        """The digits of its grid."""
        return self._laid[0]

    @cached_property
    def dims(self) -> list[list[BlockDim]]:
        """Per tensor with blocks, operands first, its dims."""
        return self._laid[1]

    @cached_property
    def _laid(self) -> tuple[GridCuts, list[list[BlockDim]]]:
        cuts = GridCuts(self.mapping.grid)
        dims: list[list[BlockDim]] = [[] for _ in self.mapping.block_mappings]
        for tensor in sorted(range(len(dims)), key=lambda tensor: tensor < self.mapping.num_inputs):  # results first
            block_mapping = self.mapping.block_mappings[tensor]
            numbers = block_numbers(block_mapping.index_map_jaxpr, self.mapping.grid)
            kinds, sizes = block_mapping.block_shape, block_mapping.array_aval.shape
            if len(numbers) != len(sizes):  # of which some say how long a block is
                numbers = [BlockNumber(frozenset(range(len(self.mapping.grid))), None)] * len(sizes)
            dims[tensor] = [_cut_dim(*dim, cuts) for dim in zip(numbers, kinds, sizes, strict=True)]
        return cuts, [_apart(each, cuts) for each in dims]

    @cached_property
    def cut(self) -> frozenset[GridDigit]:
        """The digits that may be cut."""
        params, jaxpr, inputs = self.equation.params, self.equation.params["jaxpr"], self.mapping.num_inputs
        names = {str(equation.primitive) for equation in equations_in(jaxpr)}
        if params["mesh"] is not None or self.mapping.grid_names is not None or names & OF_THE_DEVICE:
            return frozenset()
        operands = jaxpr.invars[: self.mapping.num_index_operands + inputs]
        for effect in jaxpr.effects:
            if not isinstance(effect, RefEffect) or (effect.input in operands and not isinstance(effect, ReadEffect)):
                return frozenset()
        digits = [[dim.digits for dim in dims] for dims in self.dims]
        for operand, result in params["input_output_aliases"]:
            place = operand - self.mapping.num_index_operands
            if place < 0 or digits[place] != digits[inputs + result]:
                return frozenset()
        of_results = [{digit for group in groups for digit in group or ()} for groups in digits[inputs:]]
        common = set.intersection(*of_results) if of_results else set()
        return frozenset(digit for digit in common if digit.size > 1 and self._is_free(digit))

    def _is_free(self, digit: GridDigit) -> bool:
        """Whether no value of a digit knows of another."""
        axis, is_compiled = digit.axis, self.equation.params["interpret"] is not True
        if (self.asked_inside or is_compiled) and digit != self.cuts.of_axis(axis)[0]:
            return False
        return axis not in (self.placed if is_compiled else self.asked_inside) and self._is_independent(axis)

    def _is_independent(self, axis: int) -> bool:
        """Whether scratch hands nothing on along an axis, or the caller says that it may go in any order."""
        if not self.mapping.num_scratch_operands or axis in self.mapping.vmapped_dims:
            return True
        said = getattr(self.equation.params["compiler_params"], "dimension_semantics", None) or ()
        names = [str(getattr(each, "value", each)).lower() for each in said]
        if len(names) == len(self.own_axes) and names[self.own_axes.index(axis)] == "parallel":
            return True
        jaxpr = self.equation.params["jaxpr"]
        inner = {place: 0 for place, other in enumerate(self.own_axes) if other > axis}
        return is_begun_anew(jaxpr, jaxpr.invars[self.mapping.slice_scratch_ops], inner)

    @cached_property
    def own_axes(self) -> list[int]:
        """The axes of the grid that the kernel knows of; those that `vmap` has added come between them."""
        return [axis for axis in range(len(self.mapping.grid)) if axis not in self.mapping.vmapped_dims]

    def asked(self, equations: Any) -> set[int]:
        """The axes along which equations ask for their place."""
        return {self.own_axes[equation.params["axis"]] for equation in equations if str(equation.primitive) in ASKING}

    @cached_property
    def asked_inside(self) -> set[int]:
        """Those along which a kernel asks for its place in a loop or a branch."""
        jaxpr = self.equation.params["jaxpr"]
        outside = {id(equation) for equation in jaxpr.eqns}
        return self.asked(each for each in equations_in(jaxpr) if id(each) not in outside)

    @cached_property
    def placed(self) -> set[int]:
        """The axes along which a device must know its place in the whole grid."""
        told = {axis for dims in self.dims for dim in dims if dim.digits is None for axis in dim.number.axes}
        return told | self.asked(self.equation.params["jaxpr"].eqns)

    def terms(self) -> list[Term]:
        """The terms of the tensors with blocks."""
        return [
            tuple(
                (*(digit.label for digit in dim.digits or ()), f"w{tensor}_{place}") for place, dim in enumerate(dims)
            )
            for tensor, dims in enumerate(self.dims)
        ]


def _cut_dim(number: BlockNumber, kind: Any, size: int, cuts: GridCuts) -> BlockDim:
    """A dim, whose digits are taken where its blocks are one after another without a rest."""
    block = 1 if isinstance(kind, Squeezed) else getattr(kind, "block_size", 0)
    is_plain = isinstance(kind, (Squeezed, Blocked)) or (isinstance(kind, Element) and tuple(kind.padding) == (0, 0))
    digits, values = None, number.values
    if is_plain and values is not None and block and size % block == 0:
        if isinstance(kind, Element):
            values = None if (values % block).any() else values // block
        digits = None if values is None else digits_of(values, sorted(number.axes))
    count = 1
    for digit in digits or ():
        count *= digit.size
    if digits is None or count * block != size or not cuts.take(digits):
        digits = None
    return BlockDim(number, digits, block)


def _apart(dims: Sequence[BlockDim], cuts: GridCuts) -> list[BlockDim]:
    """The dims of a tensor with the digits as they are cut; of a diagonal the first dim alone is."""
    used: set[GridDigit] = set()
    apart = []
    for dim in dims:
        parts = None if dim.digits is None else tuple(part for digit in dim.digits for part in cuts.parts(digit))
        parts = None if parts is None or used & {*parts} else parts
        used |= {*(parts or ())}
        apart.append(dim._replace(digits=parts))
    return apart
