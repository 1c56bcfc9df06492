"""Equations that move elements and change none: transposes, reshapes, slices, and what puts tensors together.

A dim of which an element of the result is another place of an operand is needed whole.
Where one element of a dim is taken, or put, only the device that has it has anything to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from reshard.jax.tracing.emitter import Emitter, known_number, labels
from reshard.jax.tracing.slices import pick, put
from reshard.operations.pattern import Shape
from reshard.operations.reshapes import reshape_pattern
from reshard.propagation import Value


def transpose(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The dims in another order."""
    return [_transposed(emitter, operands[0], equation.params["permutation"])]


def _transposed(emitter: Emitter, value: Value, order: Sequence[int]) -> Value:
    term, aval = labels(len(value.shape)), emitter.aval(value)
    out = jax.ShapeDtypeStruct([value.shape[dim] for dim in order], aval.dtype)
    return emitter.emit("transpose", [value], [term, tuple(term[dim] for dim in order)], out)


def reshape(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The elements, in the order of some dims, in another shape; dims of size 1 that go or come, too."""
    (value,), order, out = operands, equation.params.get("dimensions"), equation.outvars[0].aval
    if order is not None and str(equation.primitive) == "reshape":
        value = _transposed(emitter, value, order)
    pattern, sizes, whole = reshape_pattern(value.shape, out.shape)
    return [emitter.emit("reshape", [value], pattern.terms, out, sizes=sizes, replicated=whole)]


def broadcast(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A tensor repeated along new dims, and along dims of size 1."""
    out, dims = equation.outvars[0].aval, equation.params["broadcast_dimensions"]
    shape = operands[0].shape
    term = tuple((f"d{new}",) if shape[old] == out.shape[new] else () for old, new in enumerate(dims))
    return [emitter.emit("broadcast", operands, [term, labels(out.ndim)], out)]


def changed(before: Shape, after: Shape) -> tuple[str, ...]:
    """The labels of the dims whose size changes."""
    return tuple(f"d{dim}" for dim, (old, new) in enumerate(zip(before, after, strict=True)) if old != new)


def slices(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The elements between two places, every few.

    One element of a dim is picked where it is; other dims that are cut are needed whole.
    """
    params, out, (value,) = equation.params, equation.outvars[0].aval, operands
    start, stop = (tuple(params[name]) for name in ("start_indices", "limit_indices"))
    step = tuple(params["strides"] or (1,) * len(start))
    ones = [dim for dim, size in enumerate(out.shape) if size == 1 != value.shape[dim]]
    if ones:
        picked = [1 if dim in ones else size for dim, size in enumerate(value.shape)]
        value = pick(emitter, value, start, ones, jax.ShapeDtypeStruct(picked, out.dtype))
        ends = [(0, 1, 1) if dim in ones else end for dim, end in enumerate(zip(start, stop, step, strict=True))]
        start, stop, step = (tuple(part) for part in zip(*ends, strict=True))
    if value.shape == out.shape and ones:
        return [value]
    shifted, attributes = changed(value.shape, out.shape), (("start", start), ("step", step), ("stop", stop))
    return [emitter.emit("slice", [value], [labels(out.ndim)] * 2, out, shifted=shifted, attributes=attributes)]


def pad(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Elements of one value before, after and between those of a tensor."""
    out, config = equation.outvars[0].aval, equation.params["padding_config"]
    value, fill = operands
    shifted = tuple(f"d{dim}" for dim, entry in enumerate(config) if any(entry))
    number = known_number(emitter.program, fill)
    inside = any(gap or min(before, after) < 0 for before, after, gap in config)
    if number is None or inside or fill.dtype.kind not in "iuf":
        terms = [labels(out.ndim), (), labels(out.ndim)]
        return emitter.emit_results("pad_with", equation, operands, terms, shifted=shifted)
    low, high = (tuple(entry[side] for entry in config) for side in (0, 1))
    longer = [dim for dim, entry in enumerate(config) if any(entry)]
    if longer and all(value.shape[dim] == 1 for dim in longer):
        return [put(emitter, value, low, longer, number, out)]
    attributes = (("high", high), ("low", low), ("value", number))
    return [emitter.emit("pad", [value], [labels(out.ndim)] * 2, out, shifted=shifted, attributes=attributes)]


def concatenate(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Tensors one after another along a dim."""
    dim, out = int(equation.params["dimension"]), equation.outvars[0].aval  # NumPy's where a roll made it
    terms = [labels(out.ndim)] * (len(operands) + 1)
    return [emitter.emit("concatenate", operands, terms, out, shifted=(f"d{dim}",), attributes=(("dim", dim),))]


def tile(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A tensor repeated along its dims."""
    before, after = operands[0].shape, equation.outvars[0].aval.shape
    return emitter.emit_results("tile", equation, operands, [labels(len(after))] * 2, shifted=changed(before, after))
