"""Rows and columns: the two dims of a tensor of scores that number the same places, followed from equation to equation.

Scores of a sequence against itself have a dim of the places that ask and one of the places that are asked.
In what they are made of, and in what is made of them, these dims stand elsewhere or are lacking, where a tensor is
repeated along them.

By hand, of 4 x 4 scores into which a mask of 4 columns is repeated:

>>> import jax
>>> traced = jax.make_jaxpr(lambda m: jax.lax.broadcast_in_dim(m, (2, 4, 4), (2,)))(jax.numpy.zeros(4)).jaxpr
>>> operand_planes(traced.eqns[0], Plane(1, 2))
[Plane(row=None, column=0)]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src.core import Var
from jax.extend.core import Literal
from jax.sharding import NamedSharding

from reshard.jax.tracing.equations import ELEMENTWISE

INLINED = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
"""Calls that are taken apart to see what goes through them, and the parameter that has the jaxpr."""
REDUCED = ("reduce_sum", "reduce_max", "reduce_min")
RESHAPED = ("reshape", "squeeze", "expand_dims")


def number_kind(dtype: Any) -> str:
    """NumPy's letter for numbers of a dtype; none for what are no numbers, as random keys."""
    return "" if dtype is None or jax.numpy.issubdtype(dtype, jax.dtypes.extended) else np.dtype(dtype).kind


class Plane(NamedTuple):
    """The dims of a tensor that are rows and columns; None where it is repeated along them."""

    row: int | None
    column: int | None

    @property
    def is_whole(self) -> bool:
        """Whether the tensor has both."""
        return self.row is not None and self.column is not None


NOWHERE = Plane(None, None)
AtomInPlane = tuple[Any, Plane]
"""A value, and which of its dims are rows and columns."""


class Flat(NamedTuple):
    """The equations of a jaxpr and of what it calls, one after another."""

    equations: list[Any]
    constants: dict[Any, Any]
    """The variables that are known, with their arrays."""
    results: list[Any]


def flattened(jaxpr: Any, consts: Iterable[Any]) -> Flat:
    """A jaxpr with its calls taken apart, as far as these say nothing about shardings.

    Args:
        jaxpr: of any function.
        consts: its constants.
    """
    flat = Flat([], dict(zip(jaxpr.constvars, consts, strict=True)), [])

    def add(inner: Any, names: dict[Any, Any], *, is_called: bool) -> list[Any]:
        def renamed(atom: Any) -> Any:
            return atom if isinstance(atom, Literal) else names.get(atom, atom)

        for equation in inner.eqns:
            operands = [renamed(atom) for atom in equation.invars]
            called = inlined(equation)
            if called is not None:
                body, constants = (called.jaxpr, called.consts) if hasattr(called, "consts") else (called, ())
                known = {var: Var(var.aval) for var in body.constvars}
                flat.constants.update(zip(known.values(), constants, strict=True))
                results = add(body, known | dict(zip(body.invars, operands, strict=True)), is_called=True)
                names.update(zip(equation.outvars, results, strict=True))
                continue
            if is_called:
                names.update((var, Var(var.aval)) for var in equation.outvars)
            flat.equations.append(equation.replace(invars=operands, outvars=[renamed(var) for var in equation.outvars]))
        return [renamed(atom) for atom in inner.outvars]

    flat.results.extend(add(jaxpr, {}, is_called=False))
    return flat


def inlined(equation: Any) -> Any:
    """The jaxpr that an equation calls, if it does no more than call it."""
    name, params = str(equation.primitive), equation.params
    if name not in INLINED or equation.effects:
        return None
    asked = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
    return None if any(isinstance(sharding, NamedSharding) for sharding in asked) else params[INLINED[name]]


def operand_planes(equation: Any, plane: Plane) -> list[Plane] | None:
    """Where rows and columns of the result stand in each operand; None where no rule tells it."""
    name, params, out = str(equation.primitive), equation.params, equation.outvars[0].aval
    if name in ELEMENTWISE:
        shapes = [atom.aval.shape for atom in equation.invars]
        return (
            [_repeated(plane, shape, out.shape) for shape in shapes] if {*map(len, shapes)} <= {0, out.ndim} else None
        )
    if name == "broadcast_in_dim":
        places, shape = params["broadcast_dimensions"], equation.invars[0].aval.shape
        source = {place: dim for dim, place in enumerate(places) if shape[dim] == out.shape[place]}
        return [_moved(plane, source), *[NOWHERE] * (len(equation.invars) - 1)]
    if name == "transpose":
        return [_moved(plane, dict(enumerate(params["permutation"])))]
    if name in RESHAPED and (name != "reshape" or params["dimensions"] is None):
        moved = _moved(plane, _kept(equation.invars[0].aval.shape, out.shape))
        return [moved] if all((a is None) == (b is None) for a, b in zip(plane, moved, strict=True)) else None
    if name in REDUCED:
        left = [dim for dim in range(equation.invars[0].aval.ndim) if dim not in params["axes"]]
        return [_moved(plane, dict(enumerate(left)))]
    if name == "dot_general":
        return [_moved(plane, source) for source in product_dims(equation)]
    return None


def operands_in_planes(makers: Mapping[Any, Any], pair: AtomInPlane) -> list[AtomInPlane]:
    """The operands of which a value is made, with their rows and columns; none of one that no rule knows."""
    maker = makers.get(pair[0])
    planes = None if maker is None else operand_planes(maker, pair[1])
    pairs = [] if planes is None else zip(maker.invars, planes, strict=True)  # type: ignore[union-attr]
    return [(atom, plane) for atom, plane in pairs if not isinstance(atom, Literal)]


def product_dims(equation: Any) -> tuple[dict[int, int], dict[int, int]]:
    """Per operand of a product, by the dims of the result those that they are."""
    ((left, right), (left_batch, right_batch)) = equation.params["dimension_numbers"]
    sources: tuple[dict[int, int], dict[int, int]] = ({}, {})
    free = []
    for number, (contracted, batch) in enumerate(((left, left_batch), (right, right_batch))):
        sources[number].update(enumerate(batch))
        ndim = equation.invars[number].aval.ndim
        free += [(number, dim) for dim in range(ndim) if dim not in contracted and dim not in batch]
    for place, (number, dim) in enumerate(free, len(left_batch)):
        sources[number][place] = dim
    return sources


def _repeated(plane: Plane, shape: tuple[int, ...], result: tuple[int, ...]) -> Plane:
    """The plane of an operand that is repeated along dims of size 1."""
    return Plane(*(dim if shape and dim is not None and shape[dim] == result[dim] else None for dim in plane))


def _moved(plane: Plane, source: dict[int, int]) -> Plane:
    return Plane(*(None if dim is None else source.get(dim) for dim in plane))


def _kept(before: tuple[int, ...], after: tuple[int, ...]) -> dict[int, int]:
    """By the dims after a reshape those before it of which they are all, and nothing else."""
    strides = {(prod(before[dim + 1 :]), size): dim for dim, size in enumerate(before) if size > 1}
    pairs = ((dim, strides.get((prod(after[dim + 1 :]), size))) for dim, size in enumerate(after))
    return {dim: source for dim, source in pairs if source is not None}
