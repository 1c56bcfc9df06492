"""Gathers, scatters and slices of one element: what a number names, where the tensor that it points into is sharded.

By hand, `gather` of rows of a table `[v, d]` at `[b, s]`: the pattern is `v d, b s 1 -> b s d` with v selected.
A device with the rows 8 to 15 takes the rows that it has and zeros for the others, so the result is partial.
Its gradient is a `scatter-add`: indices `[b, s]` and updates `[b, s, d]` give `[v, d]`, partial where b or s is
sharded, and a device with the rows 8 to 15 adds up what is for them.
A scatter that writes has all indices and updates on every device, which writes what is for its own rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from reshard.jax.emitter import Emitter, Here, Shape, evaluated, known_number, labels
from reshard.numpy import identity
from reshard.patterns import Term
from reshard.propagation import Program, Value


def simplified(program: Program, equation: Any, indices: Value, table: Shape, windows: Shape) -> tuple[Any, Value]:
    """The dimension numbers and the indices without those that say nothing.

    In `x[arange(b), i]` the first index only counts, which says what a batching dim of the table says: there every
    index meets its own.
    Where a window takes a whole dim and is pushed inside, it begins at the first element.
    """
    numbers = equation.params["dimension_numbers"]
    inside = equation.params["mode"] in (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS)
    window_dims, gone, named, batching, places = (list(dims) for dims in tuple(numbers)[:5])
    made = program.operations[indices.number]
    if made.name != "concatenate" or len(made.operands) != len(named):
        return numbers, indices
    sizes = iter([windows[dim] for dim in window_dims])
    taken = [1 if dim in gone or dim in batching else next(sizes) for dim in range(len(table))]
    pairs = list(zip(batching, places, strict=True))
    left: list[tuple[int, Value]] = []
    for dim, part in zip(named, made.operands, strict=True):
        at = _counted_dim(program, part)
        if not left and dim == named[-1]:  # one index must be left
            left.append((dim, part))
        elif at is not None and dim in gone and table[dim] == part.shape[at] and at not in dict(pairs).values():
            pairs.append((dim, at))
        elif not (inside and dim not in gone and taken[dim] == table[dim]):
            left.append((dim, part))
    if len(left) != 1:
        return numbers, indices
    ((row, part),) = left
    batching, places = [dim for dim, _ in sorted(pairs)], [at for _, at in sorted(pairs)]
    gone = [dim for dim in gone if dim not in batching]
    return type(numbers)(tuple(window_dims), tuple(gone), (row,), tuple(batching), tuple(places)), part


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
        asked = program.operations[test.number]
        if asked.name == "less" and asked.operands[0] == number and known_number(program, asked.operands[1]) == 0:
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
    row: int | None
    """The one dim of the table that indices name and of which they take one element; None where there is no such."""

    @classmethod
    def of(cls, numbers: Any, table: Shape, indices: Shape, windows: Shape) -> Places:
        """The places of a gather or of a scatter, whose dimension numbers are alike."""
        window_dims, gone, named, batching, index_batching = tuple(numbers)[:5]
        index_term = list(labels(len(indices), "i"))
        index_term[-1] = () if len(named) == 1 else ("k",)
        whole = [] if len(named) == 1 else ["k"]
        window_term = list(labels(len(windows), "w"))
        batch = tuple(dim for dim in range(len(windows)) if dim not in window_dims)
        for place, dim in enumerate(batch):
            window_term[dim] = index_term[place]
        table_term: Term = ()
        row, places = None, iter(window_dims)
        for dim, size in enumerate(table):
            label, at = f"t{dim}", None
            if dim in batching:
                label = f"i{index_batching[batching.index(dim)]}"
            elif dim not in gone:
                at = next(places)
            if dim in named and len(named) == 1 and (at is None or windows[at] == 1 != size):
                row = dim
                if at is not None:
                    window_term[at] = ()
            elif at is not None and windows[at] == size and dim not in named:
                window_term[at] = (label,)
            elif dim not in batching:
                whole += [label] if at is None else [label, f"w{at}"]
            table_term += ((label,),)
        return cls(table_term, tuple(index_term), tuple(window_term), tuple(whole), batch, row)


def gather(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Elements or rows that indices name: an embedding, or one element per row.

    The dim that the indices name is selected; where they name several, or take more than one element at once,
    those dims are whole.
    """
    params, out = equation.params, equation.outvars[0].aval
    sizes, table = params["slice_sizes"], operands[0].shape
    numbers, indices = simplified(emitter.program, equation, operands[1], table, out.shape)
    places = Places.of(numbers, table, indices.shape, out.shape)
    passed = {dim for dim, group in enumerate(places.table) if group in places.windows and sizes[dim] == table[dim]}

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        tile = tiles[0]
        taken = tuple(tile.shape[dim] if dim in passed else size for dim, size in enumerate(sizes))
        changed = {"slice_sizes": taken, "dimension_numbers": numbers}
        if places.row is None or tile.shape[places.row] == table[places.row]:
            return evaluated(equation, **changed)(here, tiles)
        return _rows_here(equation, changed, here, tiles, places, table[places.row])

    selected = () if places.row is None else places.table[places.row]
    terms = [places.table, places.indices, places.windows]
    return [emitter.emit("gather", [operands[0], indices], terms, out, run, selected=selected, replicated=places.whole)]


def _rows_here(
    equation: Any, changed: dict[str, Any], here: Here, tiles: Sequence[Any], places: Places, full: int
) -> Any:
    """The rows that the tile of a table has, zeros for the others; what lies outside of the table is the first's."""
    dim, mode = places.row or 0, equation.params["mode"]
    tile, indices = tiles
    first, own = here.start(0, dim), here.length(0, dim)
    asked = lax.convert_element_type(indices, np.int32)
    if mode == lax.GatherScatterMode.CLIP:
        asked = lax.clamp(np.int32(0), asked, np.int32(full - 1))
    inside = (asked >= 0) & (asked < full)
    mine = inside & (asked >= first) & (asked < first + own)
    at = lax.select(mine, asked - first, lax.full_like(asked, 0))
    made = evaluated(equation, **changed, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)(here, (tile, at))

    def spread(mask: Any) -> Any:
        return lax.broadcast_in_dim(lax.squeeze(mask, [mask.ndim - 1]), made.shape, places.batch)

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


COMBINED: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "scatter-add": ("sum", lax.add),
    "scatter-mul": ("product", lax.mul),
    "scatter-min": ("min", lax.min),
    "scatter-max": ("max", lax.max),
}
"""Scatters that combine what meets, and how."""


def combining_scatter(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Rows added, or combined otherwise, at places that indices name: the gradient of a gather, segments.

    What is scattered into nothing is an operation of its own, partial where the indices are sharded; a device combines
    the rows that it has.
    The tensor with which it is combined comes after it, unless that is nothing.
    """
    out = equation.outvars[0].aval
    base, indices, updates = operands
    numbers, indices = simplified(emitter.program, equation, indices, base.shape, updates.shape)
    places = Places.of(numbers, base.shape, indices.shape, updates.shape)
    reduction, combine = COMBINED[str(equation.primitive)]
    nothing = identity(reduction, np.dtype(out.dtype))

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        return _scattered(equation, numbers, here, (lax.full(here.shapes[-1], nothing, out.dtype), *tiles), places.row)

    name = str(equation.primitive).replace("-", "_")
    terms = [places.indices, places.windows, places.table]
    made = emitter.emit(name, [indices, updates], terms, out, run, replicated=places.whole, reduction=reduction)
    if known_number(emitter.program, base) == nothing:
        return [made]
    term = labels(out.ndim)
    name = {"sum": "add", "product": "mul", "min": "minimum", "max": "maximum"}[reduction]
    return [emitter.emit(name, [base, made], [term] * 3, out, lambda here, tiles: combine(*tiles))]


def scatter(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Rows written at places that indices name, by devices that have all indices and all that is written."""
    base, indices, updates = operands
    numbers, indices = simplified(emitter.program, equation, indices, base.shape, updates.shape)
    places = Places.of(numbers, base.shape, indices.shape, updates.shape)
    kept = {label for group in places.table for label in group}
    alone = {label for group in places.indices for label in group} - kept

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        return _scattered(equation, numbers, here, tiles, places.row)

    return [
        emitter.emit(
            str(equation.primitive).replace("-", "_"),
            [base, indices, updates],
            [places.table, places.indices, places.windows, places.table],
            equation.outvars[0].aval,
            run,
            replicated=tuple(sorted({*places.whole, *alone})),
        )
    ]


def _scattered(equation: Any, numbers: Any, here: Here, tiles: Sequence[Any], row: int | None) -> Any:
    """What is scattered into the rows that a tile has."""
    (base, at, updates), mode = tiles, equation.params["mode"]
    full = equation.outvars[0].aval.shape
    if row is None or base.shape[row] == full[row]:
        return evaluated(equation, dimension_numbers=numbers)(here, tiles)
    at = lax.convert_element_type(at, np.int32)
    if mode == lax.GatherScatterMode.CLIP:
        at = lax.clamp(np.int32(0), at, np.int32(full[row] - 1))
    at = at - here.start(len(here.shapes) - 1, row)
    at = lax.select(at < 0, lax.full_like(at, base.shape[row]), at)  # beyond the end, where it is dropped
    drop = lax.GatherScatterMode.FILL_OR_DROP
    return evaluated(equation, dimension_numbers=numbers, mode=drop)(here, (base, at, updates))


# Slices


def pick(emitter: Emitter, value: Value, start: Sequence[int], ones: Sequence[int], out: Any) -> Value:
    """One element of each of some dims; the device that has it gives it, the others zeros."""
    attributes = (("dims", tuple(ones)), ("start", tuple(start[dim] for dim in ones)))

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        return _picked(here, tiles[0], {dim: np.int32(start[dim]) for dim in ones}, here.shapes[-1], value.shape)

    result = _without(labels(out.ndim), ones)
    selected = tuple(f"d{dim}" for dim in ones)
    terms = [labels(out.ndim), result]
    return emitter.emit("pick", [value], terms, out, run, selected=selected, attributes=attributes)


def put(emitter: Emitter, value: Value, place: Sequence[int], dims: Sequence[int], fill: float, out: Any) -> Value:
    """One element of each of some dims among others that are all alike, by the device in whose tile it lies."""
    attributes = (("dims", tuple(dims)), ("start", tuple(place[dim] for dim in dims)), ("value", fill))

    def run(here: Here, tiles: Sequence[Any]) -> Any:
        shape = here.shapes[-1]
        mine = [lax.broadcasted_iota(np.int32, shape, dim) + here.start(1, dim) == place[dim] for dim in dims]
        spread = lax.broadcast_in_dim(tiles[0], shape, range(len(shape)))
        return lax.select(reduce(operator.and_, mine), spread, lax.full(shape, fill, out.dtype))

    result = labels(out.ndim)
    return emitter.emit("put", [value], [_without(result, dims), result], out, run, attributes=attributes)


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
