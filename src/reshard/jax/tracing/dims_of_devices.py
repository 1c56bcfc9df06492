"""What `vmap` is to make of primitives along an axis of devices where JAX has no rule, or one that is dearer.

| primitive | along an axis that is a dim |
|---|---|
| `own_along` | of a dim of all devices the place of each: that dim itself |
| `alike_along` | a result that is said to be the same on all: each device has it, so nothing moves |
| `apart` | what no rule knows: for each place by itself, with its own dims whole and the axes as they are |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching

from reshard.jax.tracing.emitter import Emitter, TileFunction, labels
from reshard.jax.tracing.known_rows import ROLL
from reshard.jax.tracing.reordering import REORDER
from reshard.operations.interpreter import Extents
from reshard.operations.pattern import Shape, Term
from reshard.propagation import Value

Values = Sequence[Any]

own_p = Primitive("own_along")
own_p.def_abstract_eval(lambda x, **_: x.update(shape=x.shape[1:]))


def _own(axis: Any, operands: Values, dims: Values, *, name: str) -> tuple[Any, Any]:
    (x,), (dim,) = operands, dims
    if axis.name == name:
        return x, 0
    if dim is None:
        return own_p.bind(x, name=name), None
    x = jnp.moveaxis(x, dim, -1)
    return own_p.bind(x, name=name), x.ndim - 2


def among_devices(function: Callable[[Any], Any], x: Any, axes: Sequence[str]) -> Any:
    """What devices get of a function of the values of all, which are rows in the order of some axes."""
    own = x.shape
    for axis in reversed(axes):
        x = lax.all_gather(x, axis)
    sizes = x.shape[: len(axes)]
    results = function(lax.reshape(x, (prod(sizes), *own)))
    results = lax.reshape(results, (*sizes, *results.shape[1:]))
    for axis in axes:
        results = own_p.bind(results, name=axis)
    return results


def in_groups(function: Callable[[Any], Any], groups: Sequence[Sequence[int]], name: str, rows: Any) -> Any:
    """What devices get of a collective over an axis of this name, each group by itself."""
    places = np.array(groups)
    apart = lax.reshape(rows_at(rows, places.ravel().tolist()), (*places.shape, *rows.shape[1:]))
    results = jax.vmap(jax.vmap(function, axis_name=name))(apart)
    return rows_at(lax.reshape(results, (len(rows), *results.shape[2:])), np.argsort(places.ravel()).tolist())


def sent(x: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """The rows of x where they go to; zeros where nothing comes."""
    count, sources = len(x), {target: source for source, target in perm}
    shifts = {target - source for target, source in sources.items()}
    if not sources:
        return lax.full_like(x, 0)
    if len(shifts) == 1 and len(sources) == count - abs(*shifts):
        (shift,) = shifts
        nothing = [(0, 0, 0)] * (x.ndim - 1)
        return lax.pad(x, np.zeros((), x.dtype), [(shift, -shift, 0), *nothing])
    return rows_at(x, [sources.get(target, -1) for target in range(count)])


def rows_at(x: Any, places: Sequence[int]) -> Any:
    """The rows of x in another order, zeros for places below 0; as a roll where it is one."""
    count = len(x)
    shifts = {(target - source) % count for target, source in enumerate(places)}
    if len(shifts) == 1 and min(places) >= 0:
        (shift,) = shifts
        return ROLL.bind(x, dims=(0,), shifts=(shift,), sizes=(count,)) if shift else x
    return REORDER.bind(x, dim=0, places=tuple(places))


def _rolled(_: Any, operands: Values, places: Values, **params: Any) -> tuple[Any, Any]:
    (x,), (place,) = operands, places
    if place is None:
        return ROLL.bind(x, **params), None
    x = jnp.moveaxis(x, place, -1)
    return ROLL.bind(x, **params), x.ndim - 1


def _reordered(_: Any, operands: Values, batched: Values, **params: Any) -> tuple[Any, Any]:
    (x,), (batch,) = operands, batched
    if batch is None:
        return REORDER.bind(x, **params), None
    x = jnp.moveaxis(x, batch, -1)
    return REORDER.bind(x, **params), x.ndim - 1


ROLL.def_abstract_eval(lambda x, **_: x)
batching.fancy_primitive_batchers[ROLL] = _rolled
batching.fancy_primitive_batchers[REORDER] = _reordered
batching.fancy_primitive_batchers[own_p] = _own

alike_p = Primitive("alike_along")
alike_p.def_abstract_eval(lambda x, **_: x)
first_p = Primitive("first_of_alike")
first_p.def_abstract_eval(lambda x: x.update(shape=x.shape[1:]))


def _alike(axis_data: Any, operands: Values, dims: Values, *, axis: str) -> tuple[Any, Any]:
    (x,), (dim,) = operands, dims
    if axis_data.name != axis:
        return alike_p.bind(x, axis=axis), dim
    return x if dim is None else first_p.bind(jnp.moveaxis(x, dim, 0)), None


def _first(_: Any, operands: Values, dims: Values) -> tuple[Any, Any]:
    (x,), (dim,) = operands, dims
    if dim is None:
        return first_p.bind(x), None
    x = jnp.moveaxis(x, dim, -1)
    return first_p.bind(x), x.ndim - 2


batching.fancy_primitive_batchers[alike_p] = _alike
batching.fancy_primitive_batchers[first_p] = _first


def first_of_alike(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """What is the same on all devices of an axis, as each has it."""
    out = equation.outvars[0].aval
    last = labels(out.ndim)

    def run(_: Extents, tiles: Values) -> Any:
        return lax.index_in_dim(tiles[0], 0, 0, keepdims=False)

    return [emitter.emit("alike", operands, [(("m",), *last), last], out, run, joined=("m",))]


apart_p = Primitive("apart")
apart_p.multiple_results = True


def _avals(*_: Any, equation: Any, axes: Any, sizes: Any) -> list[Any]:
    del axes
    leading = tuple(size for _, size in sizes)
    return [jax.core.ShapedArray((*leading, *var.aval.shape), var.aval.dtype) for var in equation.outvars]


apart_p.def_abstract_eval(_avals)


def _apart(axis: Any, operands: Values, dims: Values, *, equation: Any, axes: Any, sizes: Any) -> tuple[Any, Any]:
    """One more axis along which devices do something by themselves."""
    if all(dim is None for dim in dims):
        return apart_p.bind(*operands, equation=equation, axes=axes, sizes=sizes), [None] * len(equation.outvars)
    fronted = [x if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims, strict=True)]
    axes = tuple(own if dim is None else (axis.name, *own) for own, dim in zip(axes, dims, strict=True))
    results = apart_p.bind(*fronted, equation=equation, axes=axes, sizes=((axis.name, axis.size), *sizes))
    return results, [0] * len(results)


batching.fancy_primitive_batchers[apart_p] = _apart


class PlacedValue(NamedTuple):
    """A value as one place in its first dims has it."""

    value: Value
    axes: tuple[str, ...]
    """Whose dims stand before its own."""

    @property
    def shape(self) -> Shape:
        """Of its own dims."""
        return self.value.shape[len(self.axes) :]

    @property
    def dtype(self) -> Any:
        """Of its elements."""
        return self.value.dtype


class ByPlace(Emitter):
    """What adds an operation for every place in the dims of some axes."""

    def __init__(self, emitter: Emitter, sizes: Mapping[str, int]) -> None:
        """To the program of another."""
        super().__init__(emitter.program)
        self.under, self.axes = emitter, sizes

    def emit(
        self,
        name: str,
        operands: Sequence[Any],
        terms: Sequence[Term],
        aval: Any,
        run: TileFunction | None = None,
        joined: tuple[str, ...] = (),
        **fields: Any,
    ) -> Value:
        """Add an operation that every place does by itself, whose dims may be cut by any axes."""
        places = [each if isinstance(each, PlacedValue) else PlacedValue(each, ()) for each in operands]
        own = [*(place.axes for place in places), tuple(self.axes)]
        all_terms = [(*((f"m_{axis}",) for axis in axes), *term) for axes, term in zip(own, terms, strict=True)]
        whole = jax.ShapeDtypeStruct((*self.axes.values(), *aval.shape), aval.dtype)
        by_place = None if run is None else partial(_by_place, run, own)
        values = [place.value for place in places]
        return self.under.emit(name, values, all_terms, whole, by_place, joined, **fields)

    def literal(self, value: Any) -> Value:
        """A value that is known."""
        return self.under.literal(value)


class _Own:
    """Where tiles lie in their own dims."""

    def __init__(self, extents: Any, axes: Sequence[Sequence[str]]) -> None:
        self.extents, self.skipped = extents, [*map(len, axes)]
        self.shapes = [shape[skip:] for shape, skip in zip(extents.shapes, self.skipped, strict=True)]

    def start(self, term: int, dim: int) -> Any:
        """Where the tile begins in its tensor."""
        return self.extents.start(term, dim + self.skipped[term])


def _by_place(run: TileFunction, axes: Sequence[Sequence[str]], extents: Extents, tiles: Values) -> Any:
    """What a device does for each place that it has; mostly it is one."""
    own: Any = _Own(extents, axes)
    *ins, order = axes
    if all(size == 1 for x, names in zip(tiles, ins, strict=True) for size in x.shape[: len(names)]):
        tile = run(own, [lax.reshape(x, x.shape[len(names) :]) for x, names in zip(tiles, ins, strict=True)])
        return lax.expand_dims(tile, range(len(order)))

    def at_one(*operands: Any) -> Any:
        return run(own, operands)

    for name in reversed(order):
        at_one = jax.vmap(at_one, in_axes=tuple(0 if name in names else None for names in ins))
    return at_one(*tiles)
