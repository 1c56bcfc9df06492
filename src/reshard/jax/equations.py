"""What an equation of a jaxpr is in a program: a pattern, and what one device does.

A rule takes the equation and its operands and adds operations: which dims run over the same index, and which labels
are reduced, needed whole, shifted or selected.
With every operation stands the primitive itself, evaluated on tiles: what names sizes (reshape, broadcast, iota,
slices) is given those of the tile, and what names places (iota, and `reshard.jax.indexed`) counts from where the tile
begins.

By hand, `dot_general` of `[b, i, j]` and `[b, k, j]` over j with batch dims 0: the pattern is
`b0 l1 c0, b0 r1 c0 -> b0 l1 r1`, and a device contracts its tiles as they are.

A primitive without a rule has all its operands whole on every device, and is counted in `Emitter.without_rule`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from reshard.jax.emitter import Emitter, Here, Shape, evaluated, labels, within
from reshard.jax.indexed import gather, scatter_add
from reshard.propagation import Value
from reshard.propagation.reshapes import reshape_pattern

Rule = Callable[[Emitter, Any, Sequence[Value]], list[Value]]

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
_ONE_BY_ONE = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex
conj convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma
igammac imag integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not or polygamma
population_count pow real reduce_precision regularized_incomplete_beta rem round rsqrt select_n shift_left
shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta
"""
ELEMENTWISE = frozenset(_ONE_BY_ONE.split())
"""Primitives that make every element from those at its place."""


def elementwise(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Every element from those at its place."""
    (out,) = (var.aval for var in equation.outvars)
    terms = [*(within(operand.shape, out.shape) for operand in operands), labels(out.ndim)]
    name = str(equation.primitive)
    if name == "convert_element_type":
        floats = operands[0].dtype.kind == np.dtype(out.dtype).kind == "f" or "bfloat16" in str(out.dtype)
        name = "convert" if floats and operands[0].dtype.kind == "f" else "cast"
    return [emitter.emit(NAMES.get(name, name), operands, terms, out, evaluated(equation))]


def dot_general(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A contraction: batch dims first in the result, then what is left of both operands."""
    (contracted, batch) = equation.params["dimension_numbers"]
    terms: list[list[str]] = [
        [f"{side}{dim}" for dim in range(len(operand.shape))] for side, operand in zip("lr", operands, strict=True)
    ]
    for kind, pairs in (("b", batch), ("c", contracted)):
        for number, (left, right) in enumerate(zip(*pairs, strict=True)):
            terms[0][left] = terms[1][right] = f"{kind}{number}"
    free = [label for term in terms for label in term if label[0] in "lr"]
    result = [f"b{number}" for number in range(len(batch[0]))] + free
    named = [tuple((label,) for label in term) for term in (*terms, result)]
    return [emitter.emit("einsum", operands, named, equation.outvars[0].aval, evaluated(equation))]


REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "product"}


def reduction(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The dims that go are combined; where the name is none of the four reductions, by devices that have them all."""
    (operand,) = operands
    term, gone = labels(len(operand.shape)), equation.params["axes"]
    kept = tuple(group for dim, group in enumerate(term) if dim not in gone)
    name = str(equation.primitive)
    if operand.dtype.kind == "b":
        name = {"reduce_or": "reduce_max", "reduce_and": "reduce_min"}.get(name, name)
    name = REDUCTIONS.get(name, name)
    return [emitter.emit(name, operands, [term, kept], equation.outvars[0].aval, evaluated(equation))]


def along(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """What needs all of some dims at once, and leaves the others alone: sorts, running sums, reversals."""
    params, term = equation.params, labels(len(operands[0].shape))
    dims = params.get("dimensions") or (params.get("axis", params.get("dimension", params.get("operand_axis", -1))),)
    whole = tuple(term[dim][0] for dim in dims)
    alike = all(var.aval.shape == operands[0].shape for var in equation.outvars)
    single = not equation.primitive.multiple_results
    name = str(equation.primitive)
    if params.get("reverse") or len(operands) > 1:  # something else than what the plain name says
        name += "_back" if params.get("reverse") else "_together"
    return [
        emitter.emit(
            name,
            operands,
            [term] * (len(operands) + 1),
            var.aval,
            evaluated(equation, None if single else number),
            replicated=whole if alike else (),
            shifted=() if alike else whole,
        )
        for number, var in enumerate(equation.outvars)
    ]


def transpose(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The dims in another order."""
    term = labels(len(operands[0].shape))
    moved = tuple(term[dim] for dim in equation.params["permutation"])
    return [emitter.emit("transpose", operands, [term, moved], equation.outvars[0].aval, evaluated(equation))]


def reshape(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The elements in their order in another shape; dims of size 1 that go or come, too."""
    out = equation.outvars[0].aval
    pattern, sizes, whole = reshape_pattern(operands[0].shape, out.shape)

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        return lax.reshape(tiles[0], here.shapes[-1])

    return [emitter.emit("reshape", operands, pattern.terms, out, run, sizes=sizes, replicated=whole)]


def broadcast(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A tensor repeated along new dims, and along dims of size 1."""
    out, dims = equation.outvars[0].aval, equation.params["broadcast_dimensions"]
    shape = operands[0].shape
    term = tuple((f"d{at}",) if shape[own] == out.shape[at] else () for own, at in enumerate(dims))

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        return lax.broadcast_in_dim(tiles[0], here.shapes[-1], dims)

    return [emitter.emit("broadcast", operands, [term, labels(out.ndim)], out, run)]


def iota(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Numbers along a dim, which every device makes for itself."""
    out, dim = equation.outvars[0].aval, equation.params["dimension"]

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        first = lax.convert_element_type(here.start(1, dim), out.dtype)
        return lax.broadcasted_iota(out.dtype, here.shapes[-1], dim) + first

    return [emitter.emit("iota", [emitter.literal(np.int32(0))], [(), labels(out.ndim)], out, run)]


def changed(before: Shape, after: Shape) -> tuple[str, ...]:
    """The labels of the dims whose size changes."""
    return tuple(f"d{dim}" for dim, (one, other) in enumerate(zip(before, after, strict=True)) if one != other)


def slices(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The elements between two places, every few."""
    params, out = equation.params, equation.outvars[0].aval
    start, stop = params["start_indices"], params["limit_indices"]
    return [_slice(emitter, operands[0], out, start, stop, params["strides"] or (1,) * len(start))]


def _slice(emitter: Emitter, value: Value, out: Any, start: Shape, stop: Shape, step: Shape) -> Value:
    kept = [one == other for one, other in zip(value.shape, out.shape, strict=True)]

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        ends = [local if same else end for local, same, end in zip(tiles[0].shape, kept, stop, strict=True)]
        return lax.slice(tiles[0], start, ends, step)

    return emitter.emit(
        "slice",
        [value],
        [labels(out.ndim)] * 2,
        out,
        run,
        shifted=changed(value.shape, out.shape),
        attributes=(("start", tuple(start)), ("step", tuple(step)), ("stop", tuple(stop))),
    )


def split(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A tensor in parts along a dim: slices."""
    dim, found, place = equation.params["axis"], [], 0
    for var in equation.outvars:
        start, stop = [0] * var.aval.ndim, list(var.aval.shape)
        start[dim], stop[dim] = place, place + stop[dim]
        place = stop[dim]
        found.append(_slice(emitter, operands[0], var.aval, tuple(start), tuple(stop), (1,) * var.aval.ndim))
    return found


def pad(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Elements of one value before, after and between those of a tensor."""
    out, config = equation.outvars[0].aval, equation.params["padding_config"]
    value, fill = operands
    shifted = tuple(f"d{dim}" for dim, entry in enumerate(config) if any(entry))
    known = emitter.program.operations[fill.number]
    plain = (
        known.name == "constant" and fill.dtype.kind in "iuf" and not any(gap or min(a, b) < 0 for a, b, gap in config)
    )
    if not plain:
        terms = [labels(out.ndim), (), labels(out.ndim)]
        return [emitter.emit("pad_with", operands, terms, out, evaluated(equation), shifted=shifted)]
    low, high = (tuple(entry[side] for entry in config) for side in (0, 1))
    number = known.attribute("value")

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        return lax.pad(tiles[0], lax.full((), number, out.dtype), config)

    attributes = (("high", high), ("low", low), ("value", number))
    return [emitter.emit("pad", [value], [labels(out.ndim)] * 2, out, run, shifted=shifted, attributes=attributes)]


def concatenate(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Tensors one after another along a dim."""
    out, dim = equation.outvars[0].aval, equation.params["dimension"]
    terms = [labels(out.ndim)] * (len(operands) + 1)
    return [
        emitter.emit(
            "concatenate", operands, terms, out, evaluated(equation), shifted=(f"d{dim}",), attributes=(("dim", dim),)
        )
    ]


def dynamic_slice(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A slice whose place is computed; a dim that it takes whole stays as it is."""
    out, sizes = equation.outvars[0].aval, equation.params["slice_sizes"]
    value, term = operands[0], labels(equation.outvars[0].aval.ndim)

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        return lax.dynamic_slice(tiles[0], tiles[1:], here.shapes[-1])

    terms = [term, *[()] * len(sizes), term]
    return [emitter.emit("dynamic_slice", operands, terms, out, run, shifted=changed(value.shape, out.shape))]


def dynamic_update_slice(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A tensor with a part of it replaced."""
    out, term = equation.outvars[0].aval, labels(equation.outvars[0].aval.ndim)
    shifted = changed(operands[1].shape, out.shape)
    terms = [term, term, *[()] * out.ndim, term]
    return [emitter.emit("dynamic_update_slice", operands, terms, out, evaluated(equation), shifted=shifted)]


def opaque(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A primitive that no rule knows: every device has all of its operands and makes all of its results."""
    emitter.without_rule[str(equation.primitive)] += 1
    given = list(operands) or [emitter.literal(np.int32(0))]
    terms = [labels(len(value.shape), f"a{number}_") for number, value in enumerate(given)]
    single = not equation.primitive.multiple_results
    found = []
    for number, var in enumerate(equation.outvars):
        result = labels(var.aval.ndim, "r")
        run = evaluated(equation, None if single else number)
        found.append(
            emitter.emit(
                str(equation.primitive).replace("-", "_"),
                given,
                [*terms, result],
                var.aval,
                run if operands else lambda here, _, run=run: run(here, ()),  # type: ignore[misc]
                replicated=tuple(group[0] for term in (*terms, result) for group in term),
            )
        )
    return found


RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys([*REDUCTIONS, "reduce_and", "reduce_or", "reduce_xor", "argmax", "argmin"], reduction),
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort", "rev", "top_k"], along),
    **dict.fromkeys(["reshape", "squeeze", "expand_dims"], reshape),
    "dot_general": dot_general,
    "transpose": transpose,
    "broadcast_in_dim": broadcast,
    "iota": iota,
    "slice": slices,
    "split": split,
    "pad": pad,
    "concatenate": concatenate,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "gather": gather,
    "scatter-add": scatter_add,
}
"""By the name of the primitive. Calls and loops are in `reshard.jax.tracing`."""


def equation_values(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The results of an equation, by its rule."""
    return RULES.get(str(equation.primitive), opaque)(emitter, equation, operands)
