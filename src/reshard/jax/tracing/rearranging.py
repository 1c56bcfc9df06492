"""Equations that move elements and change none: transposes, reshapes, slices, and what puts tensors together.

A dim of which an element of the result is another place of an operand is needed whole.
Where one element of a dim is taken, or put, only the device that has it has anything to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from reshard.jax.tracing.emitter import Emitter, known_number
from reshard.jax.tracing.slices import pick, put
from reshard.jax.tracing.windows import spaced
from reshard.propagation import Value


def transpose(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The dims in another order."""
    (value,) = operands
    return [emitter.like(value, emitter.program.transpose(value, equation.params["permutation"]))]


def reshape(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The elements, in the order of some dims, in another shape; dims of size 1 that go or come, too."""
    (value,), order = operands, equation.params.get("dimensions")
    if order is not None and str(equation.primitive) == "reshape":
        value = emitter.like(value, emitter.program.transpose(value, order))
    return [emitter.like(value, emitter.program.reshape(value, equation.outvars[0].aval.shape))]


def broadcast(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A tensor repeated along new dims, and along dims of size 1."""
    value, shape = operands[0], equation.outvars[0].aval.shape
    return [emitter.like(value, emitter.program.broadcast(value, shape, equation.params["broadcast_dimensions"]))]


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
    return [emitter.like(value, emitter.program.slice(value, start, stop, step))]


def pad(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Elements of one value before, after and between those of a tensor."""
    out, config = equation.outvars[0].aval, equation.params["padding_config"]
    value, fill = operands
    number = known_number(emitter.program, fill)
    if number is None or any(gap for _, _, gap in config) or fill.dtype.kind not in "iuf":
        return [spaced(emitter, equation, operands)]
    low, high = (tuple(int(entry[side]) for entry in config) for side in (0, 1))
    longer = [dim for dim, entry in enumerate(config) if any(entry)]
    if longer and all(value.shape[dim] == 1 for dim in longer) and min(*low, *high) >= 0:
        return [put(emitter, value, low, longer, number, out)]
    return [emitter.like(value, emitter.program.pad(value, low, high, number))]


def concatenate(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Tensors one after another along a dim."""
    joined = emitter.program.concatenate(operands, equation.params["dimension"])
    return [emitter.like(operands[0], joined)]


def roll(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A tensor that goes round in some dims."""
    (value,), params = operands, equation.params
    return [emitter.like(value, emitter.program.roll(value, params["shifts"], params["dims"], params["sizes"]))]


def reverse(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Dims from the last element to the first."""
    (value,) = operands
    return [emitter.like(value, emitter.program.reverse(value, equation.params["dimensions"]))]


def tile(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A tensor repeated along its dims, which it goes round."""
    (value,), sizes = operands, equation.outvars[0].aval.shape
    longer = [dim for dim, (before, after) in enumerate(zip(value.shape, sizes, strict=True)) if before != after]
    shifts = [0] * len(longer)
    return [emitter.like(value, emitter.program.roll(value, shifts, longer, [sizes[dim] for dim in longer]))]
