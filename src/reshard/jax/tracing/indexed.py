"""Gathers and scatters: rows and elements that indices name, where the tensor that they point into is sharded.

By hand, `gather` of rows of a table `[v, d]` at `[b, s]`: the pattern is `v d, b s 1 -> b s d` with v selected.
A device with the rows 8 to 15 takes the rows that it has and zeros for the others, so the result is partial.
Where several dims are named, `x[i, j]`, it is the device that has the element in all of them.
Its gradient is a `scatter-add`: indices `[b, s]` and updates `[b, s, d]` give `[v, d]`, partial where b or s is
sharded, and a device with the rows 8 to 15 adds up what is for them.
A scatter that writes has all indices and updates on every device, which writes what is for its own rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from reshard.dtypes import identity
from reshard.jax.tracing.emitter import Emitter, evaluated, known_number, labels
from reshard.operations.interpreter import Extents
from reshard.operations.pattern import Shape, Term
from reshard.propagation import Program, Value


def simplified(program: Program, equation: Any, indices: Value, table: Shape, windows: Shape) -> tuple[Any, Value]:
    """The dimension numbers and the indices without those that say nothing.

    In `x[arange(b), i]` the first index only counts, which says what a batching dim of the table says: there every
    index meets its own; likewise in `x[i, arange(b), j]`, where two are left.
    Where a window takes a whole dim and is pushed inside, it begins at the first element.
    """
    numbers = equation.params["dimension_numbers"]
    inside = equation.params["mode"] in (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS)
    window_dims, gone, named, batching, places = (list(dims) for dims in tuple(numbers)[:5])
    parts = _joined(program, indices, len(named))
    if parts is None:
        return numbers, indices
    window_sizes = _window_sizes(numbers, windows, len(table))
    pairs = list(zip(batching, places, strict=True))
    telling: list[tuple[int, Value]] = []
    for dim, index in zip(named, parts, strict=True):
        begins = inside and dim not in gone and window_sizes[dim] == table[dim]
        counted = None if index is None else _counted_dim(program, index)
        if index is None:
            if not begins:
                return numbers, indices
        elif not telling and dim == named[-1]:  # one index must stay
            telling.append((dim, index))
        elif (
            counted is not None
            and dim in gone
            and table[dim] == index.shape[counted]
            and counted not in dict(pairs).values()
        ):
            pairs.append((dim, counted))
        elif not begins:
            telling.append((dim, index))
    if not 0 < len(telling) < max(2, len(named)):
        return numbers, indices
    rows, left = zip(*telling, strict=True)
    index = left[0] if len(left) == 1 else program.concatenate(left, len(indices.shape) - 1)
    batching, places = [dim for dim, _ in sorted(pairs)], [place for _, place in sorted(pairs)]
    gone = [dim for dim in gone if dim not in batching]
    return type(numbers)(tuple(window_dims), tuple(gone), rows, tuple(batching), tuple(places)), index


def _joined(program: Program, indices: Value, count: int) -> list[Value | None] | None:
    """What so many indices are joined of, those that are the same everywhere as None; None where nothing is joined."""
    operation = program.operations[indices.number]
    if operation.name == "concatenate" and len(operation.operands) == count:
        return [*operation.operands]
    if operation.name == "put" and operation.attribute("dims") == (len(indices.shape) - 1,):
        parts: list[Value | None] = [None] * count
        parts[operation.attribute("start")[0]] = operation.operands[0]
        return parts
    return None


def _window_sizes(numbers: Any, windows: Shape, ndim: int) -> list[int]:
    """How many elements an index takes of every dim of the table."""
    window_dims, gone, _, batching = tuple(numbers)[:4]
    sizes = iter([windows[dim] for dim in window_dims])
    return [1 if dim in gone or dim in batching else next(sizes) for dim in range(ndim)]


def _counted_dim(program: Program, value: Value) -> int | None:
    """The dim along which the elements of a value are its own numbers."""
    operation = program.operations[value.number]
    name, pattern = operation.name, operation.pattern
    if name == "iota":
        return int(operation.attribute("dim"))
    if name in ("broadcast", "reshape", "copy", "cast") and pattern is not None:
        inside = _counted_dim(program, operation.operands[0])
        group = () if inside is None else pattern.operands[0][inside]
        return pattern.output.index(group) if len(group) == 1 and group in pattern.output else None
    if name == "select_n" and len(operation.operands) == 3:  # what is below zero counts from the end
        test, number, _ = operation.operands
        if known_number(program, test) == 0:
            return _counted_dim(program, number)
        comparison = program.operations[test.number]
        compares = comparison.name == "less" and comparison.operands[0] == number
        if compares and known_number(program, comparison.operands[1]) == 0:
            return _counted_dim(program, number)
    return None


class Places(NamedTuple):
    """Which dims of a table, of the indices into it and of the windows that they name run over the same index."""

    table: Term
    indices: Term
    windows: Term
    whole: tuple[str, ...]
    """The labels of which every device needs all, beside those that the indices alone have."""
    batch: tuple[int, ...]
    """The dims of the windows that the indices have too."""
    named: tuple[int, ...]
    """The dims of the table that indices name, in their order."""
    taken: tuple[int, ...]
    """How many elements an index takes of each of those."""
    rows: tuple[int, ...]
    """Those of which it takes one element, so that the device that has it can give it."""
    numbers: Any
    """The dimension numbers of the primitive."""

    @classmethod
    def of(cls, program: Program, equation: Any, table: Shape, indices: Value, windows: Shape) -> tuple[Places, Value]:
        """The places of a gather or of a scatter, whose dimension numbers are alike, and the indices that tell them."""
        numbers, indices = simplified(program, equation, indices, table, windows)
        window_dims, gone, named, batching, index_batching = tuple(numbers)[:5]
        index_term = list(labels(len(indices.shape), "i"))
        index_term[-1] = () if len(named) == 1 else ("k",)
        whole = [] if len(named) == 1 else ["k"]
        window_term = list(labels(len(windows), "w"))
        batch = tuple(dim for dim in range(len(windows)) if dim not in window_dims)
        for place, dim in enumerate(batch):
            window_term[dim] = index_term[place]
        table_term: Term = ()
        rows, places = [], iter(window_dims)
        for dim, size in enumerate(table):
            label, window_dim = f"t{dim}", None
            if dim in batching:
                label = f"i{index_batching[batching.index(dim)]}"
            elif dim not in gone:
                window_dim = next(places)
            if dim in named and (window_dim is None or windows[window_dim] == 1 != size):
                rows.append(dim)
                if window_dim is not None:
                    window_term[window_dim] = ()
            elif window_dim is not None and windows[window_dim] == size and dim not in named:
                window_term[window_dim] = (label,)
            elif dim not in batching:
                whole += [label] if window_dim is None else [label, f"w{window_dim}"]
            table_term += ((label,),)
        sizes = _window_sizes(numbers, windows, len(table))
        taken = tuple(sizes[dim] for dim in named)
        terms = table_term, tuple(index_term), tuple(window_term)
        return cls(*terms, tuple(whole), batch, tuple(named), taken, tuple(rows), numbers), indices

    def cut(self, tile: Shape, table: Shape) -> bool:
        """Whether a tile lacks some of the rows."""
        return any(tile[dim] != table[dim] for dim in self.rows)

    def limits(self, table: Shape) -> Any:
        """Per dim that indices name the last place that has all that is taken."""
        return np.array([table[dim] - taken for dim, taken in zip(self.named, self.taken, strict=True)], np.int32)

    def bounds(self, extents: Extents, term: int) -> tuple[Any, ...]:
        """Per dim that indices name where the tile of a term begins, and how many elements it has."""
        bounds = extents.start, extents.length
        return tuple(jax.numpy.stack([bound(term, dim) for dim in self.named]) for bound in bounds)


def gather(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Elements or rows that indices name: an embedding, or one element per row.

    A dim of which an index names one element is selected; one of which it takes more is whole.
    """
    params, out = equation.params, equation.outvars[0].aval
    sizes, table = params["slice_sizes"], operands[0].shape
    places, indices = Places.of(emitter.program, equation, table, operands[1], out.shape)
    passed = {dim for dim, group in enumerate(places.table) if group in places.windows and sizes[dim] == table[dim]}

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        tile = tiles[0]
        taken = tuple(tile.shape[dim] if dim in passed else size for dim, size in enumerate(sizes))
        changed = {"slice_sizes": taken, "dimension_numbers": places.numbers}
        if places.cut(tile.shape, table):
            return _rows_here(equation, changed, extents, tiles, places, table)
        return evaluated(equation, **changed)(extents, tiles)

    selected = tuple(places.table[dim][0] for dim in places.rows)
    terms = [places.table, places.indices, places.windows]
    return [emitter.emit("gather", [operands[0], indices], terms, out, run, selected=selected, replicated=places.whole)]


def _rows_here(
    equation: Any, changed: dict[str, Any], extents: Extents, tiles: Sequence[Any], places: Places, table: Shape
) -> Any:
    """The rows that the tile of a table has, zeros for the others; what lies outside of the table is the first's."""
    (tile, indices), mode = tiles, equation.params["mode"]
    (start, length), limits = places.bounds(extents, 0), places.limits(table)
    indices = lax.convert_element_type(indices, np.int32)
    if mode == lax.GatherScatterMode.CLIP:
        indices = jax.numpy.clip(indices, 0, limits)
    in_table = ((indices >= 0) & (indices <= limits)).all(-1)
    in_tile = in_table & ((indices >= start) & (indices < start + length)).all(-1)
    local = jax.numpy.where(in_tile[..., None], indices - start, 0)
    rows = evaluated(equation, **changed, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)(extents, (tile, local))

    def spread(mask: Any) -> Any:
        return lax.broadcast_in_dim(mask, rows.shape, places.batch)

    rows = lax.select(spread(in_tile), rows, lax.full_like(rows, 0))
    if mode != lax.GatherScatterMode.FILL_OR_DROP:
        return rows
    outside = spread(~in_table & (start == 0).all())
    return lax.select(outside, lax.full_like(rows, equation.params["fill_value"]), rows)


COMBINED = {
    "scatter-add": ("sum", "add"),
    "scatter-sub": ("sum", "add"),
    "scatter-mul": ("product", "mul"),
    "scatter-min": ("min", "minimum"),
    "scatter-max": ("max", "maximum"),
}
"""Scatters that combine what meets: the reduction, and the operation of two; what is taken from nothing is added."""


def combining_scatter(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Rows added, or combined otherwise, at places that indices name: the gradient of a gather, segments.

    What is scattered into nothing is an operation of its own, partial where the indices are sharded; a device combines
    the rows that it has.
    The tensor with which it is combined comes after it, unless that is nothing.
    """
    out = equation.outvars[0].aval
    base, indices, updates = operands
    places, indices = Places.of(emitter.program, equation, base.shape, indices, updates.shape)
    reduction, combining = COMBINED[str(equation.primitive)]
    nothing = identity(reduction, np.dtype(out.dtype))

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        blank = lax.broadcast(_once_there(tiles[1], nothing), extents.shapes[-1])
        return _scattered(equation, extents, (blank, *tiles), places)

    name = str(equation.primitive).replace("-", "_")
    terms = [places.indices, places.windows, places.table]
    scattered = emitter.emit(name, [indices, updates], terms, out, run, replicated=places.whole, reduction=reduction)
    if known_number(emitter.program, base) == nothing:
        return [scattered]
    return [emitter.emit(combining, [base, scattered], [labels(out.ndim)] * 3, out)]


def _once_there(updates: Any, number: Any) -> Any:
    """A number that is known when updates are, of their dtype.

    What depends on nothing a compiler may make first, and a tile of it would be held until it is needed.
    """
    number = jax.numpy.asarray(number, updates.dtype)
    if not updates.size or not jax.numpy.issubdtype(updates.dtype, np.floating):
        return number
    first = lax.reshape(lax.slice(lax.stop_gradient(updates), (0,) * updates.ndim, (1,) * updates.ndim), ())
    bits = lax.bitcast_convert_type(first, np.dtype(f"uint{8 * first.dtype.itemsize}"))
    return lax.select((bits & 1) > 1, first, number)  # which no compiler of graphs sees is never so


def scatter(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Rows written at places that indices name, by devices that have all indices and all that is written.

    A function may be applied to what is there instead, and what is written counts nothing.
    """
    base, indices, updates = operands
    places, indices = Places.of(emitter.program, equation, base.shape, indices, updates.shape)
    table_labels = {label for group in places.table for label in group}
    alone = {label for group in places.indices for label in group} - table_labels

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        return _scattered(equation, extents, tiles, places)

    return [
        emitter.emit(
            "scatter",
            [base, indices, updates],
            [places.table, places.indices, places.windows, places.table],
            equation.outvars[0].aval,
            run,
            replicated=tuple(sorted({*places.whole, *alone})),
        )
    ]


def _scattered(equation: Any, extents: Extents, tiles: Sequence[Any], places: Places) -> Any:
    """What is scattered into the rows that a tile has."""
    (base, indices, updates), full = tiles, equation.outvars[0].aval.shape
    if not places.cut(base.shape, full):
        return evaluated(equation, dimension_numbers=places.numbers)(extents, tiles)
    indices = lax.convert_element_type(indices, np.int32)
    if equation.params["mode"] == lax.GatherScatterMode.CLIP:
        indices = jax.numpy.clip(indices, 0, places.limits(full))
    indices = indices - places.bounds(extents, len(extents.shapes) - 1)[0]
    drop = lax.GatherScatterMode.FILL_OR_DROP
    run = evaluated(equation, dimension_numbers=places.numbers, mode=drop)
    if prod(indices.shape[:-1]) == 1:
        index, updates, is_here = _kept_inside(base, indices, updates, places)
        result = run(extents, (base, index, updates))
        applies = str(equation.primitive) == "scatter" and equation.params["update_jaxpr"] is not None
        return lax.select(lax.broadcast(is_here, base.shape), result, base) if applies else result
    beyond = np.array([base.shape[dim] for dim in places.named], np.int32)  # the end, where it is dropped
    indices = jax.numpy.where(indices < 0, beyond, indices)
    return run(extents, (base, indices, updates))


def _kept_inside(base: Any, index: Any, updates: Any, places: Places) -> tuple[Any, Any, Any]:
    """One row for another device as a row of what is here already, and whether it is for this one.

    Of a single row XLA makes slices, and where the tile is a slice itself it takes one beyond the end from beside it.
    """
    nearest = jax.numpy.clip(index, 0, places.limits(base.shape))
    window_sizes = _window_sizes(places.numbers, updates.shape, base.ndim)
    gathering = lax.GatherDimensionNumbers(*tuple(places.numbers)[:5])
    old = lax.gather(base, nearest, gathering, window_sizes, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)
    is_here = (index == nearest).all()
    return nearest, lax.select(lax.broadcast(is_here, updates.shape), updates, old), is_here
