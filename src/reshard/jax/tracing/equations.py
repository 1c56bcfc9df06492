"""What an equation of a jaxpr is in a program: a pattern, and what one device does.

A rule takes the equation and its operands and adds operations: which dims run over the same index, and which labels
are reduced, needed whole, shifted or selected.
What only moves elements, or names their places, is an operation of the table, which the interpreter computes.
With any other stands the primitive itself, evaluated on tiles, for it may say more than the table holds: a precision,
an accuracy, the dtype in which products are summed.

By hand, `dot_general` of `[b, i, j]` and `[b, k, j]` over j with batch dims 0: the pattern is
`b0 l1 c0, b0 r1 c0 -> b0 l1 r1`, and a device contracts its tiles as they are.

A primitive without a rule has all its operands whole on every device, and is counted in `Program.without_rule`.
What only moves elements is in `rearranging`, products in `products`, what numbers point at in `indexed` and `slices`,
convolutions and pooling in `windows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import accumulate
from math import gcd
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src.state.discharge import discharge_state
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from reshard.jax.contraction.einsum_primitive import as_contraction
from reshard.jax.tracing.dims_of_devices import ByPlace, PlacedValue, first_of_alike
from reshard.jax.tracing.effects import done_once
from reshard.jax.tracing.emitter import Emitter, labels, whole, within
from reshard.jax.tracing.indexed import COMBINED, combining_scatter, gather, scatter
from reshard.jax.tracing.kernels import Kernel, as_function, on_parts
from reshard.jax.tracing.products import dot_general
from reshard.jax.tracing.ragged import ragged_dot, takes
from reshard.jax.tracing.rearranging import broadcast, concatenate, pad, reshape, reverse, roll, slices, tile, transpose
from reshard.jax.tracing.reordering import reorder
from reshard.jax.tracing.sampling import KEYS, counts, gamma, random_bits
from reshard.jax.tracing.slices import dynamic_slice, dynamic_update_slice
from reshard.jax.tracing.turning import RUNNING
from reshard.jax.tracing.windows import convolution, windows
from reshard.operations.pattern import Shape
from reshard.propagation import Value

PrimitiveRule = Callable[[Emitter, Any, Sequence[Value]], list[Value]]

NAMES = {
    "add_any": "add",
    "copy_p": "copy",
    "eq": "equal",
    "logistic": "sigmoid",
    "lt": "less",
    "max": "maximum",
    "min": "minimum",
    "mul": "einsum",
}
"""Operations whose name in a program is another."""
ATTRIBUTES = ("y", "rounding_method")
"""Parameters of elementwise primitives that stand with the operation, so that it can be done elsewhere too."""
_ONE_BY_ONE = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt ceil clamp
clz complex conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor
ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p logistic lt lt_to max min mul
mulhi ne neg nextafter not or philox2x32 philox4x32 polygamma population_count pow real reduce_precision
regularized_incomplete_beta rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin
sinh sqrt square stop_gradient sub tan tanh threefry2x32 threefry4x32 xor zeta
"""
ELEMENTWISE = frozenset(_ONE_BY_ONE.split())
"""Primitives that make every element from those at its place."""


def elementwise(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Every element from those at its place; one of another size is several in a last dim, and those are together."""
    out = equation.outvars[0].aval
    if any(len(operand.shape) > out.ndim or (operand.shape and len(operand.shape) < out.ndim) for operand in operands):
        ends = [labels(len(operands[0].shape)), labels(out.ndim)]
        together = max(ends, key=len)[-1]
        return emitter.emit_results("bitcast_convert_type", equation, operands, ends, replicated=together)
    terms = [*(within(operand.shape, out.shape) for operand in operands), labels(out.ndim)]
    name = str(equation.primitive)
    if name == "convert_element_type":
        floats = operands[0].dtype.kind == np.dtype(out.dtype).kind == "f" or "bfloat16" in str(out.dtype)
        name = "convert" if floats and operands[0].dtype.kind == "f" else "cast"
    attributes = tuple((key, int(equation.params[key])) for key in ATTRIBUTES if key in equation.params)
    return emitter.emit_results(NAMES.get(name, name), equation, operands, terms, attributes=attributes)


REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "product"}


def reduction(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The dims that go are combined; where the name is none of the four reductions, by devices that have them all."""
    (operand,) = operands
    term, reduced = labels(len(operand.shape)), equation.params["axes"]
    result = tuple(group for dim, group in enumerate(term) if dim not in reduced)
    name = str(equation.primitive)
    if operand.dtype.kind == "b":
        name = {"reduce_or": "reduce_max", "reduce_and": "reduce_min"}.get(name, name)
    name = REDUCTIONS.get(name, name)
    return emitter.emit_results(name, equation, operands, [term, result])


def along(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """What needs all of some dims at once, and leaves the others alone: sorts, running sums, reversals, transforms."""
    params, term = equation.params, labels(len(operands[0].shape))
    if "fft_lengths" in params:
        dims: Sequence[int] = range(len(term) - len(params["fft_lengths"]), len(term))
    else:
        keys = ("axis", "dimension", "operand_axis", "reduction_dimension")
        dims = params.get("dimensions") or (next((params[key] for key in keys if key in params), -1) % len(term),)
    alike = all(var.aval.shape == operands[0].shape for var in equation.outvars)
    result = term if alike else tuple(("n" + group[0],) if dim in dims else group for dim, group in enumerate(term))
    whole = {term[dim][0] for dim in dims} | {result[dim][0] for dim in dims}
    name = str(equation.primitive)
    if len(operands) > 1:  # something else than what the plain name says
        name += "_together"
    terms = [*[term] * len(operands), result]
    return emitter.emit_results(name, equation, operands, terms, replicated=tuple(sorted(whole)))


def running(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Running sums, products, extremes, in blocks."""
    name, params = str(equation.primitive), equation.params
    return [emitter.program.running(name, operands[0], params["axis"], reverse=params["reverse"])]


def running_before(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """What comes before each element, likewise."""
    name, axis, is_reversed = (equation.params[key] for key in ("name", "axis", "reverse"))
    return [emitter.program.running(name, operands[0], axis, reverse=is_reversed, before=True)]


def best(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The k largest elements of a dim: of blocks of it, then of those, where that is fewer."""
    k, axis, (operand,) = equation.params["k"], equation.params["axis"], operands
    blocks = gcd(operand.shape[axis], emitter.program.mesh.size)
    if blocks < 2 or k * blocks >= operand.shape[axis]:
        return along(emitter, equation, operands)
    function = partial(best_of_blocks, blocks=blocks, k=k, axis=axis)
    return emitter.closed(jax.make_jaxpr(function)(emitter.aval(operand)), operands)


def best_of_blocks(values: Any, *, blocks: int, k: int, axis: int) -> list[Any]:
    """The k largest elements and their places; of equal ones the first."""
    shape, length = values.shape, values.shape[axis] // blocks
    apart = lax.reshape(values, (*shape[:axis], blocks, length, *shape[axis + 1 :]))
    largest, places = lax.top_k(apart, k, axis=axis + 1)
    places = places + lax.broadcasted_iota(places.dtype, places.shape, axis) * length
    together = (*shape[:axis], blocks * k, *shape[axis + 1 :])
    largest, which = lax.top_k(lax.reshape(largest, together), k, axis=axis)
    return [largest, jax.numpy.take_along_axis(lax.reshape(places, together), which, axis, mode="promise_in_bounds")]


def iota(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Numbers along a dim, which every device makes for itself."""
    out, dim = equation.outvars[0].aval, equation.params["dimension"]
    terms = [(), labels(out.ndim)]
    return [emitter.emit("iota", [emitter.literal(np.int32(0))], terms, out, attributes=(("dim", dim),))]


def matrices(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """What takes matrices as a whole; the dims that all tensors have before those are left alone."""
    shapes = [value.shape for value in operands] + [var.aval.shape for var in equation.outvars]
    leading = min(len(operands[0].shape) - 2, *map(len, shapes))
    batch = next((dim for dim in range(leading) if len({shape[dim] for shape in shapes}) > 1), max(leading, 0))
    return whole(emitter, equation, operands, batch)


def ragged_products(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Those of rows with the operands of their groups, or sums per group; others are whole."""
    return (ragged_dot if takes(equation) else opaque)(emitter, equation, operands)


def kernels(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Kernels over blocks, of which devices may each have some; what is interpreted without any is as it stands."""
    kernel = Kernel(equation)
    if kernel.is_plain:
        return emitter.closed(as_function(kernel), operands)
    return on_parts(emitter, kernel, operands) if kernel.cut else opaque(emitter, equation, operands)


def reduction_of_any_kind(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Tensors combined together by any function, each with what it begins with, by devices that have all of a dim."""
    count, dims = len(operands) // 2, equation.params["dimensions"]
    term = labels(len(operands[0].shape))
    result = tuple(group for dim, group in enumerate(term) if dim not in dims)
    terms = [*[term] * count, *[()] * count, result]
    whole_labels = tuple(term[dim][0] for dim in dims)
    return emitter.emit_results("reduce", equation, operands, terms, replicated=whole_labels)


def calls_back(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """What Python does with effects: once for a program, and on each device of a region."""
    if isinstance(emitter, ByPlace):
        return opaque(emitter, equation, operands)
    emitter.program.without_rule[str(equation.primitive)] += 1
    return done_once(emitter, equation, operands)


def opaque(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A primitive that no rule knows: every device has all of its operands and makes all of its results."""
    emitter.program.without_rule[str(equation.primitive)] += 1
    return whole(emitter, equation, operands)


def apart(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """What devices do each by themselves, for every place in the dims of their axes, as the rule of one place says."""
    inner, axes, sizes = (equation.params[key] for key in ("equation", "axes", "sizes"))
    places: Any = [PlacedValue(value, own) for value, own in zip(operands, axes, strict=True)]
    return equation_values(ByPlace(emitter, dict(sizes)), inner, places)


# Primitives that are made of others


def place_of(best: Callable[..., Any], values: Any, *, axes: Shape, index_dtype: Any) -> Any:
    """The first place at which the largest element stands, or the smallest: two reductions, which may be partial."""
    (axis,), shape = axes, values.shape
    if values.dtype == np.bool_:
        values = values.astype(np.uint8)
    others = [dim for dim in range(values.ndim) if dim != axis]
    is_best = (values == lax.broadcast_in_dim(best(values, axes), shape, others)) | (values != values)
    places = lax.broadcasted_iota(index_dtype, shape, axis)
    return lax.reduce_min(lax.select(is_best, places, lax.full_like(places, shape[axis] - 1)), axes)


def split(value: Any, *, sizes: Shape, axis: int) -> list[Any]:
    """A tensor in parts along a dim."""
    ends = zip(accumulate(sizes), sizes, strict=True)
    return [lax.slice_in_dim(value, stop - size, stop, axis=axis) for stop, size in ends]


def stack(*values: Any, axis: int) -> Any:
    """Tensors side by side in a new dim: each with that dim of size 1, one after another."""
    shape = values[0].shape
    return lax.concatenate([lax.reshape(value, (*shape[:axis], 1, *shape[axis:])) for value in values], axis)


def unstack(value: Any, *, axis: int) -> list[Any]:
    """The tensors that stand side by side in a dim."""
    return [lax.index_in_dim(value, number, axis, keepdims=False) for number in range(value.shape[axis])]


def over_batch(reduce: Callable[[Any, Shape], Any], *values: Any, axes: Shape, **_: Any) -> list[Any]:
    """What is combined along an axis that `vmap` has made a dim."""
    return [reduce(value, axes) for value in values]


def symmetric_product(a: Any, c: Any, *, alpha: float, beta: float, **_: Any) -> Any:
    """A matrix times its transpose, and another: both halves are computed."""
    product = jax.numpy.matmul(a, a.mT, precision=lax.Precision.HIGHEST)
    return alpha * product + beta * c


def of_sparse(name: str) -> Callable[..., Any]:
    """What JAX computes of sparse arrays, as it says itself in operations of dense ones."""

    def function(*arrays: Any, **params: Any) -> Any:
        module = import_module(f"jax.experimental.sparse.{name.split('_', maxsplit=1)[0]}")
        return getattr(module, f"_{name}_impl")(*arrays, **params)

    return function


def in_others(equation: Any) -> Any:
    """The jaxpr of the function of JAX that is an equation's."""
    function = partial(FUNCTIONS[str(equation.primitive)], **equation.params)
    return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in equation.invars))


SPARSE = """
bcoo_dot_general bcoo_dot_general_sampled bcoo_extract bcoo_fromdense bcoo_sort_indices bcoo_spdot_general
bcoo_sum_duplicates bcoo_todense bcoo_transpose bcsr_dot_general bcsr_extract bcsr_fromdense bcsr_todense
coo_fromdense coo_matmat coo_matvec coo_todense csr_fromdense csr_matmat csr_matvec csr_todense
"""
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "random_bits": random_bits,
    "argmax": partial(place_of, lax.reduce_max),
    "argmin": partial(place_of, lax.reduce_min),
    **dict.fromkeys(["empty", "empty2"], lambda dtype, shape=(), **_: lax.full(shape, 0, dtype)),
    "psum": partial(over_batch, lax.reduce_sum),
    "pmax": partial(over_batch, lax.reduce_max),
    "pmin": partial(over_batch, lax.reduce_min),
    "broadcast_to": lambda value, shape: lax.broadcast_in_dim(value, shape, range(value.ndim)),
    "reciprocal": lambda value, **_: 1 / value,
    "split": split,
    "symmetric_product": symmetric_product,
    "stack": stack,
    "unstack": unstack,
    **{name: of_sparse(name) for name in SPARSE.split()},
}
"""By the name of the primitive, what is the same in others, of its operands and its parameters."""


def without_references(equation: Any) -> Any:
    """The jaxpr of what runs on references of its own: of values, from those that go in to those that are left."""
    params, inside = equation.params, [var.aval.inner_aval for var in equation.params["jaxpr"].invars]
    closed = discharge_state(ClosedJaxpr(params["jaxpr"], ()))

    def run(*arrays: Any) -> list[Any]:
        known = iter(arrays)
        ends = zip(params["is_initialized"], inside, strict=True)
        values = [next(known) if has_value else lax.full(aval.shape, 0, aval.dtype) for has_value, aval in ends]
        return jaxpr_as_fun(closed)(*values)[-len(inside) :]

    return jax.make_jaxpr(run)(*(jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in equation.invars))


MADE_OF_OTHERS: dict[str, Callable[[Any], Any]] = {
    "einsum_by_plan": as_contraction,
    "run_state": without_references,
    **dict.fromkeys(FUNCTIONS, in_others),
}
"""By the name of the primitive, the jaxpr that takes the place of an equation."""

WINDOWS = """
reduce_window reduce_window_max reduce_window_min reduce_window_sum select_and_gather_add select_and_scatter_add
"""
MATRICES = """
cholesky cholesky_update eig eigh geqrf geqp3 hessenberg householder_product lu lu_pivots_to_permutation ormqr qr schur
svd triangular_solve tridiagonal tridiagonal_solve
"""
ALONG = "sort approx_top_k fft"
RULES: dict[str, PrimitiveRule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys([*REDUCTIONS, "reduce_and", "reduce_or", "reduce_xor"], reduction),
    **dict.fromkeys(ALONG.split(), along),
    **dict.fromkeys(RUNNING, running),
    "running_before": running_before,
    "top_k": best,
    **dict.fromkeys(["reshape", "squeeze", "expand_dims"], reshape),
    "dot_general": dot_general,
    "transpose": transpose,
    "broadcast_in_dim": broadcast,
    "iota": iota,
    "slice": slices,
    "pad": pad,
    "rev": reverse,
    "roll": roll,
    "reorder": reorder,
    "concatenate": concatenate,
    "tile": tile,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "gather": gather,
    **dict.fromkeys(COMBINED, combining_scatter),
    "reduce": reduction_of_any_kind,
    "scatter": scatter,
    "conv_general_dilated": convolution,
    "ragged_dot_general": ragged_products,
    "pallas_call": kernels,
    **dict.fromkeys(WINDOWS.split(), windows),
    **dict.fromkeys(MATRICES.split(), matrices),
    "iota_2x32_shape": counts,
    **dict.fromkeys(KEYS.split(), whole),
    "random_gamma": gamma,
    **dict.fromkeys(["debug_callback", "debug_print", "io_callback"], calls_back),
    "apart": apart,
    "first_of_alike": first_of_alike,
}
"""By the name of the primitive. Calls and loops are in `reshard.jax.tracing`."""


def equation_values(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The results of an equation, by its rule."""
    return RULES.get(str(equation.primitive), opaque)(emitter, equation, operands)
