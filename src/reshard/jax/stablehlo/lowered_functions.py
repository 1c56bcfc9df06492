"""Operations of StableHLO as functions of JAX: those that lower to them.

A row takes the operation and gives the function of its operands.
Operands that are one known number come as they are, not as traced values, so that a function may look at them.

By hand, `stablehlo.compare LT` of two values is `lax.lt`, which lowers to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src.lax.lax import eq_to_p, le_to_p, lt_to_p
from jax._src.lax.windowed_reductions import _select_and_scatter_add
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from reshard.dtypes import identity
from reshard.errors import ReshardError
from reshard.jax.stablehlo.mlir_attributes import (
    ArrayFunction,
    constant_array,
    integer,
    integers,
    maker,
    padding,
    said,
    type_of,
    word,
)
from reshard.jax.stablehlo.sorts import sort

_ONE_BY_ONE = """
abs=abs add=add and=bitwise_and atan2=atan2 cbrt=cbrt ceil=ceil clamp=clamp complex=complex
count_leading_zeros=clz cosine=cos divide=div exponential=exp exponential_minus_one=expm1 floor=floor imag=imag
is_finite=is_finite log=log log_plus_one=log1p logistic=logistic maximum=max minimum=min multiply=mul negate=neg
not=bitwise_not or=bitwise_or popcnt=population_count power=pow real=real remainder=rem rsqrt=rsqrt select=select
shift_left=shift_left shift_right_arithmetic=shift_right_arithmetic shift_right_logical=shift_right_logical sign=sign
sine=sin sqrt=sqrt subtract=sub tan=tan tanh=tanh xor=bitwise_xor
"""
_CHLO = """
acos=acos acosh=acosh asin=asin asinh=asinh atan=atan atanh=atanh bessel_i1e=bessel_i1e conj=conj cosh=cosh
digamma=digamma erf=erf erf_inv=erf_inv erfc=erfc lgamma=lgamma next_after=nextafter polygamma=polygamma sinh=sinh
square=square tan=tan zeta=zeta
"""
_TRUTH = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}
"""What arithmetic is on truth values."""
COMPARISONS = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}
TOTAL_ORDER = {"EQ": eq_to_p, "LT": lt_to_p, "LE": le_to_p}
REDUCTIONS: dict[str, tuple[ArrayFunction, ArrayFunction, str]] = {
    "add": (lax.reduce_sum, lax.add, "sum"),
    "multiply": (lax.reduce_prod, lax.mul, "product"),
    "maximum": (lax.reduce_max, lax.max, "max"),
    "minimum": (lax.reduce_min, lax.min, "min"),
    "or": (lax.reduce_or, lax.bitwise_or, "bor"),
    "and": (lax.reduce_and, lax.bitwise_and, "band"),
    "xor": (lax.reduce_xor, lax.bitwise_xor, "bxor"),
}
"""By the one operation of the region: what reduces dims, what combines two, and the name of the reduction."""
RUNNING = {"add": lax.cumsum, "multiply": lax.cumprod, "maximum": lax.cummax, "minimum": lax.cummin}
SCATTERS = {
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "maximum": lax.scatter_max,
    "minimum": lax.scatter_min,
    "": lax.scatter,
}


# What regions say


def region_function(block: ir.Block) -> ArrayFunction:
    """What a region makes of numbers, as JAX computes it."""

    def run(*arrays: Any) -> Any:
        known: dict[Any, Any] = dict(zip(block.arguments, arrays, strict=True))
        *body, end = block.operations
        for op in body:
            results = function_of(op.operation)(*(known[operand] for operand in op.operands))
            known.update(zip(op.results, results if len(op.results) > 1 else [results], strict=True))
        results = [known[operand] for operand in end.operands]
        return results[0] if len(results) == 1 else results

    return run


def called(op: ir.Operation) -> ArrayFunction:
    """What a function that a region calls makes of numbers."""
    module = op
    while module.parent is not None:
        module = module.parent
    name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
    (block,) = ir.SymbolTable(module)[name].regions[0].blocks
    return region_function(block)


def combined_by(op: ir.Operation, number: int = 0) -> str | None:
    """The operation by which a region combines its two arguments; "" where it gives the second; else None."""
    (block,) = op.regions[number].blocks
    *body, end = block.operations
    if len(block.arguments) != 2:
        return None
    if not body and end.operands[0] == block.arguments[1]:
        return ""
    if len(body) != 1 or [*end.operands] != [*body[0].results] or {*body[0].operands} != {*block.arguments}:
        return None
    name = body[0].operation.name.removeprefix("stablehlo.")
    return _TRUTH.get(name, name) if type_of(block.arguments[0]).dtype == bool else name


def _is_nothing(init: Any, reduction: str) -> bool:
    """Whether a number is known and changes nothing."""
    return not isinstance(init, jax.core.Tracer) and bool(init == identity(reduction, np.dtype(init.dtype)))


# Operations


def constant(op: ir.Operation) -> ArrayFunction:
    """Its elements."""
    array, aval = constant_array(op), type_of(op.results[0])
    return lambda: lax.full(aval.shape, array, aval.dtype) if array.ndim == 0 else array


def arithmetic(name: str, op: ir.Operation) -> ArrayFunction:
    """What is done element by element; on truth values addition is `or`, as StableHLO has it."""
    if type_of(op.operands[0]).dtype == bool:
        name = _TRUTH.get(name, name)
    return getattr(lax, _names(_ONE_BY_ONE)[name])


def compare(op: ir.Operation) -> ArrayFunction:
    """A comparison; in total order zeros and what is no number have places of their own."""
    direction = word(op, "comparison_direction")
    if word(op, "compare_type") != "TOTALORDER" or type_of(op.operands[0]).dtype.kind in "biu":
        return COMPARISONS[direction]
    name = {"GT": "LT", "GE": "LE", "NE": "EQ"}.get(direction, direction)
    in_order: ArrayFunction = TOTAL_ORDER[name].bind
    if direction == "NE":
        return lambda left, right: lax.bitwise_not(in_order(left, right))
    return in_order if name == direction else lambda left, right: in_order(right, left)


def dot_general(op: ir.Operation) -> ArrayFunction:
    """A contraction."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    contracted = [*numbers.lhs_contracting_dimensions], [*numbers.rhs_contracting_dimensions]
    batch = [*numbers.lhs_batching_dimensions], [*numbers.rhs_batching_dimensions]
    return partial(
        lax.dot_general,
        dimension_numbers=(contracted, batch),
        precision=_precision(op),
        preferred_element_type=type_of(op.results[0]).dtype,
    )


def dot(op: ir.Operation) -> ArrayFunction:
    """A product of matrices or vectors: over the last dim of the first, and the first of the second."""
    last = len(type_of(op.operands[0]).shape) - 1
    return partial(
        lax.dot_general,
        dimension_numbers=(([last], [0]), ([], [])),
        precision=_precision(op),
        preferred_element_type=type_of(op.results[0]).dtype,
    )


def _precision(op: ir.Operation) -> Any:
    names = [str(entry) for entry in said(op, "precision_config") or ()]
    words = [name.rpartition(" ")[2].rstrip(">") for name in names]
    return tuple(lax.Precision[word] for word in words) if {*words} - {"DEFAULT"} else None


def reduce(op: ir.Operation) -> ArrayFunction:
    """Dims combined by what the region says."""
    dims, count, name = integers(op, "dimensions"), len(op.results), combined_by(op)
    if name in REDUCTIONS:
        whole, two, reduction = REDUCTIONS[name]

        def run(array: Any, init: Any) -> Any:
            reduced = whole(array, dims)
            return reduced if _is_nothing(init, reduction) else two(reduced, lax.broadcast(init, reduced.shape))

        return run
    if (best := _finds_place(op)) is not None:
        return lambda array, places, *_: (
            (lax.reduce_max if best == "GT" else lax.reduce_min)(array, dims),
            (lax.argmax if best == "GT" else lax.argmin)(array, dims[0], places.dtype),
        )
    combine = region_function(op.regions[0].blocks[0])
    if count == 1:
        return lambda array, init: lax.reduce(array, init, combine, dims)
    return lambda *arrays: lax.reduce(arrays[:count], arrays[count:], lambda a, b: tuple(combine(*a, *b)), dims)


_PLACE_OF_BEST = ["compare", "compare", "or", "compare", "compare", "and", "or", "select", "select"]


def _finds_place(op: ir.Operation) -> str | None:
    """Which comparison finds the best, where a reduction is that of JAX which finds its first place."""
    if len(op.results) != 2:
        return None
    (block,) = op.regions[0].blocks
    *body, _ = (each.operation for each in block.operations)
    counted = maker(op.operands[1])
    if counted is None or counted.name != "stablehlo.iota":
        return None
    if [each.name.removeprefix("stablehlo.") for each in body] != _PLACE_OF_BEST:
        return None
    directions = [word(each, "comparison_direction") for each in body if each.name == "stablehlo.compare"]
    alike = directions[1:] == ["NE", "EQ", "LT"] and (integer(counted, "iota_dimension"),) == integers(op, "dimensions")
    return directions[0] if alike and directions[0] in ("GT", "LT") else None


def reduce_window(op: ir.Operation) -> ArrayFunction:
    """What goes over a tensor with a window; where that reaches from the first element, a running sum."""
    ndim = len(type_of(op.operands[0]).shape)
    window = integers(op, "window_dimensions")
    ones, room = (1,) * ndim, padding(op, ndim)
    names = "window_strides", "base_dilations", "window_dilations"
    strides, base, dilations = (integers(op, name, ones) for name in names)
    name = combined_by(op)
    shape = type_of(op.operands[0]).shape
    long = [dim for dim in range(ndim) if window[dim] != 1]
    if name in RUNNING and len(long) == 1 and strides == base == dilations == ones:
        (dim,) = long
        ends = room[dim], (shape[dim] - 1, 0)
        if window[dim] == shape[dim] and ends[0] in (ends[1], ends[1][::-1]) and sum(map(sum, room)) == sum(ends[1]):
            reduction, run = REDUCTIONS[name][2], partial(RUNNING[name], axis=dim, reverse=ends[0] != ends[1])
            return lambda array, init: run(array) if _is_nothing(init, reduction) else windowed(array, init)
    combine: Any = REDUCTIONS[name][1] if name in REDUCTIONS else region_function(op.regions[0].blocks[0])

    def windowed(array: Any, init: Any) -> Any:
        return lax.reduce_window(array, init, combine, window, strides, room, base, dilations)

    return windowed


def select_and_scatter(op: ir.Operation) -> ArrayFunction:
    """The gradient of a pooling: what comes for a window is added where that has its largest or least element."""
    (block,) = op.regions[0].blocks
    first, *_ = (each.operation for each in block.operations)
    compares = combined_by(op) == "compare" and [*first.operands] == [*block.arguments]
    chosen = {"GE": lax.ge_p, "LE": lax.le_p}.get(word(first, "comparison_direction")) if compares else None
    if chosen is None or combined_by(op, 1) != "add":
        raise ReshardError("cannot-express", "a gradient of windows must add to their largest or least elements")
    ndim = len(type_of(op.operands[0]).shape)
    window, strides = (integers(op, name, (1,) * ndim) for name in ("window_dimensions", "window_strides"))
    room = padding(op, ndim)

    def scattered(array: Any, source: Any, init: Any) -> Any:
        added = _select_and_scatter_add(source, array, chosen, window, strides, room)
        return added if _is_nothing(init, "sum") else lax.add(added, lax.broadcast(init, added.shape))

    return scattered


def gather(op: ir.Operation) -> ArrayFunction:
    """Rows or elements that indices name; those outside count as the nearest."""
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    of_jax = lax.GatherDimensionNumbers(
        tuple(numbers.offset_dims),
        tuple(numbers.collapsed_slice_dims),
        tuple(numbers.start_index_map),
        tuple(numbers.operand_batching_dims),
        tuple(numbers.start_indices_batching_dims),
    )
    sizes, place = integers(op, "slice_sizes"), numbers.index_vector_dim
    return lambda table, indices: lax.gather(
        table, _vectors_last(indices, place), of_jax, sizes, mode=lax.GatherScatterMode.CLIP
    )


def _vectors_last(indices: Any, place: int) -> Any:
    """Indices with the dim of their vectors at the end."""
    if place == indices.ndim:
        return lax.reshape(indices, (*indices.shape, 1))
    return jax.numpy.moveaxis(indices, place, -1)


def scatter(op: ir.Operation) -> ArrayFunction:
    """Rows written, or combined, where indices say; those outside are dropped."""
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    of_jax = lax.ScatterDimensionNumbers(
        tuple(numbers.update_window_dims),
        tuple(numbers.inserted_window_dims),
        tuple(numbers.scattered_dims_to_operand_dims),
        tuple(numbers.input_batching_dims),
        tuple(numbers.scatter_indices_batching_dims),
    )
    run = SCATTERS.get(combined_by(op) or "") if combined_by(op) is not None else None
    if run is None:
        raise ReshardError("cannot-express", "a scatter must write, or combine by one operation")
    flags = {name: bool(integer(op, name)) for name in ("indices_are_sorted", "unique_indices")}
    place, mode = numbers.index_vector_dim, lax.GatherScatterMode.FILL_OR_DROP
    return lambda base, indices, updates: run(base, _vectors_last(indices, place), updates, of_jax, mode=mode, **flags)


def convolution(op: ir.Operation) -> ArrayFunction:
    """A convolution; where its window is reversed, of the kernel reversed."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    of_jax = lax.ConvDimensionNumbers(
        (numbers.input_batch_dimension, numbers.input_feature_dimension, *numbers.input_spatial_dimensions),
        (
            numbers.kernel_output_feature_dimension,
            numbers.kernel_input_feature_dimension,
            *numbers.kernel_spatial_dimensions,
        ),
        (numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions),
    )
    dims = len(numbers.input_spatial_dimensions)
    ones = (1,) * dims
    reversed_dims = [
        dim
        for dim, flag in zip(
            numbers.kernel_spatial_dimensions, integers(op, "window_reversal", (0,) * dims), strict=True
        )
        if flag
    ]
    run = partial(
        lax.conv_general_dilated,
        window_strides=integers(op, "window_strides", ones),
        padding=padding(op, dims),
        lhs_dilation=integers(op, "lhs_dilation", ones),
        rhs_dilation=integers(op, "rhs_dilation", ones),
        dimension_numbers=of_jax,
        feature_group_count=integer(op, "feature_group_count", 1),
        batch_group_count=integer(op, "batch_group_count", 1),
        precision=_precision(op),
        preferred_element_type=type_of(op.results[0]).dtype,
    )
    return lambda left, right: run(left, lax.rev(right, reversed_dims) if reversed_dims else right)


def pad(op: ir.Operation) -> ArrayFunction:
    """Elements before, after and between those of a tensor."""
    names = "edge_padding_low", "edge_padding_high", "interior_padding"
    config = list(zip(*(integers(op, name) for name in names), strict=True))
    return lambda array, fill: lax.pad(array, fill, config)


def fft(op: ir.Operation) -> ArrayFunction:
    """A transform of the last dims."""
    return partial(lax.fft, fft_type=lax.FftType[word(op, "fft_type")], fft_lengths=integers(op, "fft_length"))


def triangular_solve(op: ir.Operation) -> ArrayFunction:
    """A system with a triangular matrix."""
    turned = word(op, "transpose_a")
    return partial(
        lax.linalg.triangular_solve,
        left_side=bool(integer(op, "left_side")),
        lower=bool(integer(op, "lower")),
        unit_diagonal=bool(integer(op, "unit_diagonal")),
        transpose_a=turned in ("TRANSPOSE", "ADJOINT"),
        conjugate_a=turned == "ADJOINT",
    )


def cholesky(op: ir.Operation) -> ArrayFunction:
    """The factor of a matrix, of which only the triangle that is named is read."""
    if integer(op, "lower"):
        return partial(lax.linalg.cholesky, symmetrize_input=False)
    raise ReshardError("cannot-express", "a Cholesky factor must be the lower one")


def _shape(op: ir.Operation) -> tuple[int, ...]:
    return tuple(type_of(op.results[0]).shape)


def _names(text: str) -> dict[str, str]:
    return dict(entry.split("=") for entry in text.split())


FUNCTIONS: dict[str, Callable[[ir.Operation], ArrayFunction]] = {
    "func.call": called,
    **{f"stablehlo.{name}": partial(arithmetic, name) for name in _names(_ONE_BY_ONE)},
    **{f"chlo.{name}": partial(lambda function, op: function, getattr(lax, of)) for name, of in _names(_CHLO).items()},
    "chlo.top_k": lambda op: partial(lax.top_k, k=integer(op, "k")),
    "stablehlo.bitcast_convert": lambda op: partial(lax.bitcast_convert_type, new_dtype=type_of(op.results[0]).dtype),
    "stablehlo.broadcast_in_dim": lambda op: partial(
        lax.broadcast_in_dim, shape=_shape(op), broadcast_dimensions=integers(op, "broadcast_dimensions")
    ),
    "stablehlo.cholesky": cholesky,
    "stablehlo.compare": compare,
    "stablehlo.concatenate": lambda op: lambda *arrays: lax.concatenate(arrays, integer(op, "dimension")),
    "sdy.constant": constant,
    "stablehlo.constant": constant,
    "stablehlo.convert": lambda op: partial(lax.convert_element_type, new_dtype=type_of(op.results[0]).dtype),
    "stablehlo.convolution": convolution,
    "stablehlo.dot": dot,
    "stablehlo.dot_general": dot_general,
    "stablehlo.dynamic_slice": lambda op: (
        lambda array, *starts: lax.dynamic_slice(
            array, starts, integers(op, "slice_sizes"), allow_negative_indices=False
        )
    ),
    "stablehlo.dynamic_update_slice": lambda op: (
        lambda array, part, *starts: lax.dynamic_update_slice(array, part, starts, allow_negative_indices=False)
    ),
    "stablehlo.fft": fft,
    "stablehlo.gather": gather,
    "stablehlo.iota": lambda op: (
        lambda: lax.broadcasted_iota(type_of(op.results[0]).dtype, _shape(op), integer(op, "iota_dimension"))
    ),
    "stablehlo.pad": pad,
    "stablehlo.reduce": reduce,
    "stablehlo.reduce_precision": lambda op: partial(
        lax.reduce_precision,
        exponent_bits=integer(op, "exponent_bits"),
        mantissa_bits=integer(op, "mantissa_bits"),
    ),
    "stablehlo.reduce_window": reduce_window,
    "stablehlo.reshape": lambda op: partial(lax.reshape, new_sizes=_shape(op)),
    "stablehlo.reverse": lambda op: partial(lax.rev, dimensions=integers(op, "dimensions")),
    "stablehlo.round_nearest_afz": lambda op: partial(lax.round, rounding_method=lax.RoundingMethod.AWAY_FROM_ZERO),
    "stablehlo.round_nearest_even": lambda op: partial(lax.round, rounding_method=lax.RoundingMethod.TO_NEAREST_EVEN),
    "stablehlo.scatter": scatter,
    "stablehlo.select_and_scatter": select_and_scatter,
    "stablehlo.slice": lambda op: partial(
        lax.slice,
        start_indices=integers(op, "start_indices"),
        limit_indices=integers(op, "limit_indices"),
        strides=integers(op, "strides"),
    ),
    "stablehlo.sort": sort,
    "stablehlo.transpose": lambda op: partial(lax.transpose, permutation=integers(op, "permutation")),
    "stablehlo.triangular_solve": triangular_solve,
}
"""By the name of the operation, its function."""


def function_of(op: ir.Operation) -> ArrayFunction:
    """The function of JAX that an operation is.

    Raises:
        ReshardError: `cannot-express` where there is none.
    """
    if op.name not in FUNCTIONS:
        raise ReshardError("cannot-express", "no program can hold this operation")
    return FUNCTIONS[op.name](op)


def jaxpr_of(op: ir.Operation, operands: Sequence[Any]) -> Any:
    """The jaxpr of an operation: of the operands that are traced, given by their types, with the numbers among them.

    Raises:
        ReshardError: `cannot-express`.
    """
    function = function_of(op)
    traced = [operand for operand in operands if isinstance(operand, jax.ShapeDtypeStruct)]

    def run(*arrays: Any) -> Any:
        rest = iter(arrays)
        return function(*(next(rest) if isinstance(each, jax.ShapeDtypeStruct) else each for each in operands))

    try:
        return jax.make_jaxpr(run)(*traced)
    except (TypeError, ValueError, NotImplementedError) as error:
        if isinstance(error, ReshardError):
            raise
        raise ReshardError("cannot-express", f"JAX has no such operation: {error}") from None
