"""Gathers and scatters: what indices name, where the tensor that they point into is sharded.

By hand, `gather` of rows of a table `[v, d]` at `[b, s]`: the pattern is `v d, b s 1 -> b s d` with v selected.
A device with the rows 8 to 15 takes the rows that it has and zeros for the others, so the result is partial.
Its gradient is a `scatter-add`: indices `[b, s]` and updates `[b, s, d]` give `[v, d]`, partial where b or s is
sharded, and a device with the rows 8 to 15 adds up what is for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from reshard.jax.emitter import Emitter, Here, Shape, evaluated, labels
from reshard.propagation import Program, Value


def gather(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Elements or rows that indices name: an embedding, or one element per row.

    The dim that the indices name is selected; where they name several, or take more than one element at once,
    those dims are whole.
    """
    params, out = equation.params, equation.outvars[0].aval
    numbers, sizes, table = params["dimension_numbers"], params["slice_sizes"], operands[0].shape
    single = len(numbers.start_index_map) == 1
    batch = [dim for dim in range(out.ndim) if dim not in numbers.offset_dims]
    whole: list[str] = []
    passed: set[int] = set()
    index_term = list(labels(len(operands[1].shape), "i"))
    index_term[-1] = () if single else ("k",)
    whole += [] if single else ["k"]
    term, result, offsets = [], list(labels(out.ndim, "r")), iter(numbers.offset_dims)
    for place, dim in enumerate(batch):
        result[dim] = index_term[place]
    selected: tuple[str, ...] = ()
    for dim, size in enumerate(table):
        label = f"o{dim}"
        if dim in numbers.operand_batching_dims:
            at = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(dim)]
            label = f"i{at}"
        elif dim in numbers.collapsed_slice_dims:
            if single and dim in numbers.start_index_map:
                selected = (label,)
            else:
                whole.append(label)
        else:
            at = next(offsets)
            if sizes[dim] == size and dim not in numbers.start_index_map:
                result[at] = (label,)
                passed.add(dim)
            else:
                whole += [label, f"r{at}"]
        term.append((label,))

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        tile, indices = tiles
        taken = tuple(tile.shape[dim] if dim in passed else size for dim, size in enumerate(sizes))
        changed = evaluated(equation, slice_sizes=taken)
        dim = numbers.start_index_map[0] if numbers.start_index_map else 0
        if not selected or tile.shape[dim] == table[dim]:
            return changed(here, tiles)
        return _rows_here(equation, here, tile, indices, batch, table[dim], taken)

    terms = [tuple(term), tuple(index_term), tuple(result)]
    return [emitter.emit("gather", operands, terms, out, run, selected=selected, replicated=tuple(whole))]


def _rows_here(
    equation: Any, here: Here, tile: Any, indices: Any, batch: Sequence[int], full: int, taken: Shape
) -> Any:
    """The rows that the tile of a table has, zeros for the others; what lies outside of the table is the first's."""
    dim, mode = equation.params["dimension_numbers"].start_index_map[0], equation.params["mode"]
    first, own = here.start(0, dim), tile.shape[dim]
    asked = lax.convert_element_type(indices, np.int32)
    if mode == lax.GatherScatterMode.CLIP:
        asked = lax.clamp(np.int32(0), asked, np.int32(full - 1))
    inside = (asked >= 0) & (asked < full)
    mine = inside & (asked >= first) & (asked < first + own)
    at = lax.select(mine, asked - first, lax.full_like(asked, 0))
    made = evaluated(equation, slice_sizes=taken, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)(here, (tile, at))

    def spread(mask: Any) -> Any:
        return lax.broadcast_in_dim(lax.squeeze(mask, [mask.ndim - 1]), made.shape, batch)

    made = lax.select(spread(mine), made, lax.full_like(made, 0))
    if mode != lax.GatherScatterMode.FILL_OR_DROP:
        return made
    outside = spread(~inside & (first == 0))
    return lax.select(outside, lax.full_like(made, _fill(equation.params["fill_value"], made.dtype)), made)


def _fill(given: Any, dtype: Any) -> Any:
    """What stands for a row outside of a table, where nothing else is said."""
    if given is not None:
        return given
    if jax.numpy.issubdtype(dtype, np.inexact):
        return np.nan
    if dtype == np.bool_:
        return True
    limits = np.iinfo(dtype)
    return limits.min if np.issubdtype(dtype, np.signedinteger) else limits.max


def scatter_add(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Rows added at places that indices name: what the gradient of a gather is.

    What is scattered into zeros is an operation of its own, partial where the indices are sharded; a device adds up
    the rows that it has.
    The tensor that it is added to comes after it, unless that is zero.
    """
    params, out = equation.params, equation.outvars[0].aval
    base, indices, updates = operands
    numbers = params["dimension_numbers"]
    single = len(numbers.scatter_dims_to_operand_dims) == 1
    index_term = list(labels(len(indices.shape), "i"))
    index_term[-1] = () if single else ("k",)
    whole = [] if single else ["k"]
    update_term = list(labels(len(updates.shape), "u"))
    scattered = [dim for dim in range(len(updates.shape)) if dim not in numbers.update_window_dims]
    for place, dim in enumerate(scattered):
        update_term[dim] = index_term[place]
    windows = iter(numbers.update_window_dims)
    result = []
    row: int | None = None
    for dim, size in enumerate(out.shape):
        label = f"o{dim}"
        if dim in numbers.operand_batching_dims:
            label = f"i{numbers.scatter_indices_batching_dims[numbers.operand_batching_dims.index(dim)]}"
        elif dim in numbers.inserted_window_dims:
            if single and dim in numbers.scatter_dims_to_operand_dims:
                row = dim
            else:
                whole.append(label)
        else:
            at = next(windows)
            if updates.shape[at] == size and dim not in numbers.scatter_dims_to_operand_dims:
                update_term[at] = (label,)
            else:
                whole += [label, f"u{at}"]
        result.append((label,))

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        at, shape = tiles[0], here.shapes[-1]
        zeros = lax.full(shape, 0, out.dtype)
        if row is None or shape[row] == out.shape[row]:
            return evaluated(equation)(here, (zeros, *tiles))
        at = lax.convert_element_type(at, np.int32)
        if params["mode"] == lax.GatherScatterMode.CLIP:
            at = lax.clamp(np.int32(0), at, np.int32(out.shape[row] - 1))
        at = at - here.start(2, row)
        at = lax.select(at < 0, lax.full_like(at, shape[row]), at)  # beyond the end, where it is dropped
        return evaluated(equation, mode=lax.GatherScatterMode.FILL_OR_DROP)(here, (zeros, at, tiles[1]))

    made = emitter.emit(
        "scatter_add",
        [indices, updates],
        [tuple(index_term), tuple(update_term), tuple(result)],
        out,
        run,
        replicated=tuple(whole),
        reduction="sum",
    )
    if _is_zero(emitter.program, base):
        return [made]
    term = labels(out.ndim)
    return [emitter.emit("add", [base, made], [term] * 3, out, lambda here, tiles: lax.add(tiles[0], tiles[1]))]


def _is_zero(program: Program, value: Value) -> bool:
    operation = program.operations[value.number]
    while operation.name in ("broadcast", "copy", "convert"):
        operation = program.operations[operation.operands[0].number]
    return operation.name == "constant" and operation.attribute("value") == 0
