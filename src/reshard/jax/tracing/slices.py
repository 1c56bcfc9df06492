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

from reshard.jax.tracing.emitter import Emitter, Here, Run, Shape, labels
from reshard.operations.pattern import Term
from reshard.propagation import Value


def pick(emitter: Emitter, value: Value, start: Sequence[int], ones: Sequence[int], out: Any) -> Value:
    """One element of each of some dims; the device that has it gives it, the others zeros."""
    result, at = labels(out.ndim), tuple(start[dim] for dim in ones)
    terms, run = [result, _without(result, ones)], picking(ones, at, value.shape)
    attributes = (("dims", tuple(ones)), ("start", at))
    selected = tuple(f"d{dim}" for dim in ones)
    return emitter.emit("pick", [value], terms, out, run, selected=selected, attributes=attributes)


def picking(dims: Sequence[int], start: Sequence[int], shape: Shape) -> Run:
    """What a device does where one element of each of some dims is picked from a tensor."""
    at = {dim: np.int32(place) for dim, place in zip(dims, start, strict=True)}
    return lambda here, tiles: _picked(here, tiles[0], at, here.shapes[-1], shape)


def put(emitter: Emitter, value: Value, start: Sequence[int], dims: Sequence[int], fill: float, out: Any) -> Value:
    """One element of each of some dims among others that are all alike, by the device in whose tile it lies."""
    result, at = labels(out.ndim), tuple(start[dim] for dim in dims)
    terms, run = [_without(result, dims), result], putting(dims, at, fill)
    attributes = (("dims", tuple(dims)), ("start", at), ("value", fill))
    return emitter.emit("put", [value], terms, out, run, attributes=attributes)


def putting(dims: Sequence[int], start: Sequence[int], fill: float) -> Run:
    """What a device does where one element of each of some dims is put among others."""

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        (tile,), shape = tiles, here.shapes[-1]
        places = zip(dims, start, strict=True)
        mine = [lax.broadcasted_iota(np.int32, shape, dim) + here.start(1, dim) == place for dim, place in places]
        spread = lax.broadcast_in_dim(tile, shape, range(len(shape)))
        return lax.select(reduce(operator.and_, mine), spread, lax.full(shape, fill, tile.dtype))

    return run


def counting(dim: int, dtype: Any) -> Run:
    """What a device does where numbers count along a dim."""

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        first = lax.convert_element_type(here.start(1, dim), dtype)
        return lax.broadcasted_iota(dtype, here.shapes[-1], dim) + first

    return run


def dynamic_slice(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A slice whose place is computed.

    A dim that it takes whole stays as it is, one of which it takes one element is selected, others are needed whole.
    """
    out, sizes = equation.outvars[0].aval, equation.params["slice_sizes"]
    value, term = operands[0], labels(equation.outvars[0].aval.ndim)
    cut = [dim for dim, (size, most) in enumerate(zip(sizes, value.shape, strict=True)) if size != most]
    ones = [dim for dim in cut if sizes[dim] == 1]

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        tile, starts = tiles[0], list(tiles[1:])
        at = {dim: lax.clamp(*_limits(starts[dim], value.shape[dim] - 1)) for dim in ones}
        return _picked(here, tile, at, here.shapes[-1], value.shape, starts)

    return [
        emitter.emit(
            "dynamic_slice",
            operands,
            [term, *[()] * len(sizes), _without(term, ones)],
            out,
            run,
            shifted=tuple(f"d{dim}" for dim in cut if dim not in ones),
            selected=tuple(f"d{dim}" for dim in ones),
        )
    ]


def _picked(here: Here, tile: Any, at: dict[int, Any], sizes: Shape, shape: Shape, starts: Sequence[Any] = ()) -> Any:
    """A slice of a tile, zeros where it lies on another device in one of some dims."""
    found = list(starts) or [np.int32(0)] * tile.ndim
    mine: Any = None
    for dim, place in at.items():
        found[dim] = place
        if tile.shape[dim] != shape[dim]:
            found[dim] = lax.convert_element_type(place, np.int32) - here.start(0, dim)
            inside = (found[dim] >= 0) & (found[dim] < here.length(0, dim))
            mine = inside if mine is None else mine & inside
    if len({np.result_type(start) for start in found}) > 1:
        found = [lax.convert_element_type(start, np.int32) for start in found]
    made = lax.dynamic_slice(tile, found, sizes, allow_negative_indices=False)
    return made if mine is None else lax.select(lax.broadcast(mine, made.shape), made, lax.full_like(made, 0))


def dynamic_update_slice(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A tensor with a part of it replaced; every device replaces what of it lies in its tile."""
    out, update = equation.outvars[0].aval, operands[1].shape
    cut = [dim for dim, (size, most) in enumerate(zip(update, out.shape, strict=True)) if size != most]
    term = labels(out.ndim)
    given = tuple((() if update[dim] == 1 else (f"u{dim}",)) if dim in cut else term[dim] for dim in range(out.ndim))

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        tile, part, *starts = tiles
        masks = []
        for dim in cut:
            size, own = update[dim], tile.shape[dim]
            if own == out.shape[dim]:
                continue
            start = lax.clamp(*_limits(starts[dim], out.shape[dim] - size)) - here.start(0, dim)
            window = min(size, own)
            starts[dim] = lax.clamp(*_limits(start, own - window))
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
    terms = [term, given, *[()] * out.ndim, term]
    return [emitter.emit("dynamic_update_slice", operands, terms, out, run, replicated=whole)]


def _limits(start: Any, most: int) -> tuple[Any, Any, Any]:
    """The arguments of a clamp of where a slice begins."""
    return np.int32(0), lax.convert_element_type(start, np.int32), np.int32(most)


def _without(term: Term, ones: Sequence[int]) -> Term:
    return tuple(() if dim in ones else group for dim, group in enumerate(term))
