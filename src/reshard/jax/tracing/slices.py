"""Slices at a place: one element of a dim, and slices that a number names, of tensors that are sharded there.

By hand, element 5 of a dim of 8 over two devices: the second has elements 4 to 7 and gives its element 1, the first
gives zero, so the result is partial.
Written there, the second replaces its element 1, and the first leaves its tile as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax
import numpy as np
from jax import lax

from reshard.jax.tracing.emitter import Emitter, labels
from reshard.operations.interpreter import Extents
from reshard.operations.pattern import Shape, Term
from reshard.propagation import Value


def pick(emitter: Emitter, value: Value, start: Sequence[int], dims: Sequence[int], out: Any) -> Value:
    """One element of each of some dims; the device that has it gives it, the others zeros."""
    terms = [labels(out.ndim), _without(labels(out.ndim), dims)]
    attributes = (("dims", tuple(dims)), ("start", tuple(start[dim] for dim in dims)))
    selected = tuple(f"d{dim}" for dim in dims)
    return emitter.emit("pick", [value], terms, out, selected=selected, attributes=attributes)


def put(emitter: Emitter, value: Value, start: Sequence[int], dims: Sequence[int], fill: float, out: Any) -> Value:
    """One element of each of some dims among others that are all alike, by the device in whose tile it lies."""
    result, places = labels(out.ndim), tuple(start[dim] for dim in dims)
    attributes = (("dims", tuple(dims)), ("start", places), ("value", fill))
    return emitter.emit("put", [value], [_without(result, dims), result], out, attributes=attributes)


def dynamic_slice(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A slice whose place is computed.

    A dim that it takes whole stays as it is; of one of which it takes some elements each device gives those that it
    has, and zeros for the others.
    """
    out, sizes = equation.outvars[0].aval, equation.params["slice_sizes"]
    value, term = operands[0], labels(equation.outvars[0].aval.ndim)
    cut = [dim for dim, (size, full) in enumerate(zip(sizes, value.shape, strict=True)) if size != full]
    result = tuple(
        group if dim not in cut else () if sizes[dim] == 1 else (f"u{dim}",) for dim, group in enumerate(term)
    )

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        tile, starts = tiles[0], list(tiles[1:])
        for dim in cut:
            starts[dim] = _clamped(starts[dim], value.shape[dim] - sizes[dim])
        return _taken(extents, tile, starts, [dim for dim in cut if tile.shape[dim] != value.shape[dim]], sizes)

    return [
        emitter.emit(
            "dynamic_slice",
            operands,
            [term, *[()] * len(sizes), result],
            out,
            run,
            replicated=tuple(f"u{dim}" for dim in cut if sizes[dim] != 1),
            selected=tuple(f"d{dim}" for dim in cut),
        )
    ]


def _taken(extents: Extents, tile: Any, starts: list[Any], dims: Sequence[int], sizes: Shape) -> Any:
    """A slice of a tile, zeros for what lies on another device in some dims."""
    masks, shape = [], list(extents.shapes[-1])
    for dim in dims:
        start = starts[dim] - extents.start(0, dim)
        places = lax.iota(np.int32, sizes[dim]) + start
        starts[dim] = start if sizes[dim] == 1 else np.int32(0)
        if sizes[dim] > 1:
            tile, shape[dim] = jax.numpy.take(tile, places, dim, mode="clip"), sizes[dim]
        inside = (places >= 0) & (places < extents.length(0, dim))
        masks.append(lax.broadcast_in_dim(inside, [sizes[dim] if d == dim else 1 for d in range(len(shape))], [dim]))
    if len({np.result_type(start) for start in starts}) > 1:
        starts = [lax.convert_element_type(start, np.int32) for start in starts]
    part = lax.dynamic_slice(tile, starts, shape, allow_negative_indices=False)
    return jax.numpy.where(reduce(operator.and_, masks), part, lax.full_like(part, 0)) if masks else part


def dynamic_update_slice(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A tensor with a part of it replaced; every device replaces what of it lies in its tile."""
    out, update = equation.outvars[0].aval, operands[1].shape
    cut = [dim for dim, (size, full) in enumerate(zip(update, out.shape, strict=True)) if size != full]
    term = labels(out.ndim)
    part_term = tuple(
        (() if update[dim] == 1 else (f"u{dim}",)) if dim in cut else term[dim] for dim in range(out.ndim)
    )

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        tile, part, *starts = tiles
        masks = []
        for dim in cut:
            size, local_size = update[dim], tile.shape[dim]
            if local_size == out.shape[dim]:
                continue
            start = _clamped(starts[dim], out.shape[dim] - size) - extents.start(0, dim)
            window = min(size, local_size)
            starts[dim] = _clamped(start, local_size - window)
            places = lax.iota(np.int32, window) + (starts[dim] - start)
            part = jax.numpy.take(part, places, dim, mode="clip")
            inside = (places >= 0) & (places < size)
            masks.append(lax.broadcast_in_dim(inside, [window if d == dim else 1 for d in range(out.ndim)], [dim]))
        if masks:
            starts = [lax.convert_element_type(start, np.int32) for start in starts]
            old = lax.dynamic_slice(tile, starts, part.shape, allow_negative_indices=False)
            part = jax.numpy.where(reduce(operator.and_, masks), part, old)
        return lax.dynamic_update_slice(tile, part, starts, allow_negative_indices=False)

    whole = tuple(f"u{dim}" for dim in cut if update[dim] != 1)
    terms = [term, part_term, *[()] * out.ndim, term]
    return [emitter.emit("dynamic_update_slice", operands, terms, out, run, replicated=whole)]


def _clamped(start: Any, most: int) -> Any:
    """Where a slice begins that is to begin inside."""
    return lax.clamp(np.int32(0), lax.convert_element_type(start, np.int32), np.int32(most))


def _without(term: Term, ones: Sequence[int]) -> Term:
    return tuple(() if dim in ones else group for dim, group in enumerate(term))
