"""A kernel on a device: the same kernel over fewer blocks.

A device that has some values of a digit runs over these, and finds its blocks where they are in its tiles, so the
index maps stay as they are, from the place in its own grid.
Where an operand is whole, or the kernel asks where it is, the place in the whole grid is meant: then what each axis
begins with is handed in before all operands, as numbers that a kernel may read before it runs.
An axis of which digits in the middle are cut is as many axes here.

By hand, a grid of (8, 4) of which a device has the blocks 2 and 3 of the first axis: its grid is (2, 4), its first
place (0, 0), and a kernel that asks for its program id there is told 0 + 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src.interpreters.partial_eval import trace_to_jaxpr_dynamic
from jax._src.linear_util import wrap_init
from jax._src.pallas.core import MemoryRef, MemorySpace
from jax._src.pallas.hlo_interpreter import kernel_to_hlo_jaxpr
from jax._src.pallas.primitives import uninitialized_value
from jax.experimental.pallas import num_programs, program_id
from jax.extend.core import ClosedJaxpr

from reshard.jax.tracing.emitter import Emitter, labels
from reshard.jax.tracing.evaluation import results_of, values_of
from reshard.jax.tracing.kernels.cuttable import Kernel
from reshard.jax.tracing.kernels.grids import GridDigit
from reshard.jax.tracing.kernels.scratch import ASKING
from reshard.operations.interpreter import Extents
from reshard.propagation import Value


def on_parts(emitter: Emitter, kernel: Kernel, operands: Sequence[Value]) -> list[Value]:
    """The results of a kernel, of whose grid devices may have parts."""
    inputs, first = kernel.mapping.num_inputs, kernel.whole_operands
    terms = kernel.terms()
    wholes = [labels(len(value.shape), f"p{number}_") for number, value in enumerate(operands[:first])]
    cut = {digit.label for digit in kernel.cut}
    results = []
    for number, var in enumerate(kernel.equation.outvars):
        pattern = [*wholes, *terms[:inputs], terms[inputs + number]]
        used = {label for term in pattern for group in term for label in group}
        sizes = {digit.label: digit.size for digit in _digits(kernel) if digit.label in used}
        results.append(
            emitter.emit(
                "pallas_call",
                operands,
                pattern,
                var.aval,
                _on_tiles(kernel, number),
                sizes=tuple(sizes.items()),
                replicated=tuple(sorted(used - cut)),
            )
        )
    return results


def as_function(kernel: Kernel) -> ClosedJaxpr:
    """What a kernel computes that is interpreted at one place, without references."""
    mapping = kernel.mapping
    jaxpr, consts, scratch = kernel_to_hlo_jaxpr(kernel.equation.params["jaxpr"], (), mapping)

    def run(*operands: Any) -> list[Any]:
        rooms = [*kernel.equation.params["out_avals"], *scratch]
        blank = [uninitialized_value(room.shape, room.dtype) for room in rooms]
        for operand, result in kernel.equation.params["input_output_aliases"]:
            blank[result] = operands[operand]

        def results(equation: Any, operands: Sequence[Any]) -> list[Any]:
            is_place = str(equation.primitive) == "program_id"
            return [np.int32(0)] if is_place else results_of(equation, operands)

        values = values_of(ClosedJaxpr(jaxpr, consts), [*operands, *blank], results)
        first = mapping.num_index_operands + mapping.num_inputs
        return values[first : first + mapping.num_outputs]

    avals = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in kernel.equation.invars]
    return jax.make_jaxpr(run)(*avals)


def _digits(kernel: Kernel) -> list[GridDigit]:
    return [digit for axis in range(len(kernel.mapping.grid)) for digit in kernel.cuts.of_axis(axis)]


def _on_tiles(kernel: Kernel, number: int) -> Callable[[Extents, Sequence[Any]], Any]:
    """One result of a kernel, from tiles."""

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        counts: dict[GridDigit, int] = {}
        starts: dict[GridDigit, Any] = {}
        last = len(extents.shapes) - 1
        for place, dim in enumerate(kernel.dims[kernel.mapping.num_inputs + number]):
            local, start = extents.shapes[-1][place], extents.start(last, place)
            stride = prod(digit.size for digit in dim.digits or ()) * dim.block
            for digit in dim.digits or ():  # only the first that is not single in the tile may be cut
                stride //= digit.size
                counts[digit] = max(local // stride, 1)
                starts[digit] = start // stride % digit.size
                local = min(local, stride)
        return LocalKernel.of(kernel, counts, starts).run(tiles)[number]

    return run


@dataclass(frozen=True)
class LocalAxis:
    """An axis of the grid of a device."""

    axis: int
    """Of the whole grid."""
    size: Any
    stride: int
    start: Any
    """The place in the whole grid is this, and so many strides as the place here says."""
    is_cut: bool


@dataclass(frozen=True)
class LocalKernel:
    """A kernel over the blocks of one device."""

    kernel: Kernel
    counts: dict[GridDigit, int]
    """Of each digit how many values the device has."""
    axes: tuple[LocalAxis, ...]
    """Of the grid here."""

    @classmethod
    def of(cls, kernel: Kernel, counts: dict[GridDigit, int], starts: dict[GridDigit, Any]) -> LocalKernel:
        """The part with so many values of each digit, from a first one on."""
        axes = []
        for axis, size in enumerate(kernel.mapping.grid):
            digits = kernel.cuts.of_axis(axis)
            own = [LocalAxis(axis, size, 1, 0, False)]
            if any(counts.get(digit, digit.size) != digit.size for digit in digits):
                own = []
                for digit in digits:
                    count, is_cut = counts.get(digit, digit.size), counts.get(digit, digit.size) != digit.size
                    start = starts[digit] * digit.stride if is_cut else 0
                    if own and not is_cut:  # all of it, below what is there
                        above = own.pop()
                        own.append(LocalAxis(axis, above.size * count, digit.stride, above.start, above.is_cut))
                    else:
                        own.append(LocalAxis(axis, count, digit.stride, start, is_cut))
            axes += own
        return cls(kernel, counts, tuple(axes))

    @property
    def asks(self) -> bool:
        """Whether the place in the whole grid must be known."""
        return any(axis.is_cut and axis.axis in self.kernel.placed for axis in self.axes)

    def run(self, tiles: Sequence[Any]) -> list[Any]:
        """The results of the kernel."""
        equation, mapping = self.kernel.equation, self.kernel.mapping
        params, before = dict(equation.params), self.kernel.whole_operands
        operands = list(tiles)
        grid = tuple(axis.size for axis in self.axes)
        if len(grid) == len(mapping.grid) and not self.asks:
            params["grid_mapping"] = mapping.replace(grid=grid, block_mappings=self._blocks(mapping.block_mappings))
        else:
            starts = [lax.convert_element_type(axis.start, np.int32) for axis in self.axes]
            operands.insert(before, lax.concatenate([lax.reshape(start, (1,)) for start in starts], 0))
            params["grid_mapping"] = self._renumbered(grid)
            params["jaxpr"] = self._told(params["grid_mapping"])
            later = mapping.num_index_operands
            params["input_output_aliases"] = tuple(
                (operand + (operand >= later), result) for operand, result in params["input_output_aliases"]
            )
        results = params["grid_mapping"].block_mappings[mapping.num_inputs :]
        params["out_avals"] = tuple(
            jax.core.ShapedArray(block.array_aval.shape, block.array_aval.dtype) for block in results
        )
        return results_of(equation, operands, params)

    def _blocks(self, block_mappings: Sequence[Any]) -> tuple[Any, ...]:
        """Those of the tensors, as large as their tiles."""
        blocks = []
        for dims, block_mapping in zip(self.kernel.dims, block_mappings, strict=True):
            whole = block_mapping.array_aval
            shape = [
                size if not dim.digits else dim.block * prod(self.counts.get(digit, digit.size) for digit in dim.digits)
                for size, dim in zip(whole.shape, dims, strict=True)
            ]
            blocks.append(block_mapping.replace(array_aval=jax.core.ShapedArray(tuple(shape), whole.dtype)))
        return tuple(blocks)

    # Where places in the whole grid are told

    @property
    def _starts(self) -> Any:
        """What says where each axis begins, as the kernel sees it."""
        return MemoryRef(jax.core.ShapedArray((len(self.axes),), np.dtype(np.int32)), MemorySpace.INDEX).get_ref_aval()

    def _renumbered(self, grid: tuple[Any, ...]) -> Any:
        """The grid of the device with what says where it begins, after all other numbers that are read before."""
        mapping = self.kernel.mapping
        count, own = len(mapping.grid), len(grid)
        avals = (*[jax.core.ShapedArray((), np.dtype(np.int32))] * own, *mapping.index_map_avals[count:], self._starts)

        def index_map(old: ClosedJaxpr, dims: Sequence[Any]) -> Callable[..., list[Any]]:
            def run(*arguments: Any) -> list[Any]:
                places, rest, starts = arguments[:own], arguments[own:-1], arguments[-1]
                here, there = (values_of(old, [*self._global(places, at), *rest]) for at in (None, starts))
                return [mine if dim.digits else theirs for dim, mine, theirs in zip(dims, here, there, strict=True)]

            return run

        blocks = [
            block.replace(index_map_jaxpr=_traced(index_map(block.index_map_jaxpr, dims), avals, block.index_map_jaxpr))
            for block, dims in zip(self._blocks(mapping.block_mappings), self.kernel.dims, strict=True)
        ]
        return mapping.replace(
            grid=grid,
            block_mappings=tuple(blocks),
            index_map_avals=avals,
            index_map_tree=jax.tree.structure((tuple(range(len(avals))), {})),
            num_index_operands=mapping.num_index_operands + 1,
            vmapped_dims=tuple(number for number, axis in enumerate(self.axes) if axis.axis in mapping.vmapped_dims),
        )

    def _global(self, places: Sequence[Any], starts: Any) -> list[Any]:
        """The places in the whole grid, or as if every axis began with 0."""
        whole: list[Any] = [0] * len(self.kernel.mapping.grid)
        for number, (axis, place) in enumerate(zip(self.axes, places, strict=True)):
            told = place * np.int32(axis.stride) if axis.stride > 1 else place
            if starts is not None and axis.is_cut:
                told = told + starts[number]
            whole[axis.axis] = whole[axis.axis] + told
        return whole

    def _told(self, mapping: Any) -> Any:
        """The kernel, which is told where it is in the whole grid."""
        old, own = self.kernel.equation.params["jaxpr"], self.kernel.own_axes
        place = self.kernel.mapping.num_index_operands
        here = [number for number in range(len(self.axes)) if number not in mapping.vmapped_dims]

        def run(*refs: Any) -> list[Any]:
            starts, rest = refs[place], [*refs[:place], *refs[place + 1 :]]

            def results(equation: Any, operands: Sequence[Any]) -> list[Any]:
                name = str(equation.primitive)
                if name not in ASKING:
                    return results_of(equation, operands)
                axis = own[equation.params["axis"]]
                numbers = [number for number in here if self.axes[number].axis == axis]
                if name == "num_programs":  # of an axis of which only a run tells the size
                    return [num_programs(here.index(numbers[0]))]
                places = [
                    program_id(here.index(number)) if number in numbers else 0 for number in range(len(self.axes))
                ]
                return [self._global(places, starts)[axis]]

            return values_of(ClosedJaxpr(old, ()), rest, results)

        avals = [var.aval for var in old.invars]
        with mapping.trace_env():
            return _traced(run, [*avals[:place], self._starts, *avals[place:]], ClosedJaxpr(old, ())).jaxpr


def _traced(function: Callable[..., Any], avals: Sequence[Any], like: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr of a function of such arguments, in place of another."""
    jaxpr, _, consts = trace_to_jaxpr_dynamic(wrap_init(function, debug_info=like.jaxpr.debug_info), avals)
    return ClosedJaxpr(jaxpr, consts)
