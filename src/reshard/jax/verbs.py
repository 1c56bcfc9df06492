"""What JAX does with arrays, for the interpreter of operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from reshard.dtypes import identity
from reshard.jax.tracing.emitter import is_key
from reshard.operations.interpreter import Verbs, functions
from reshard.operations.kinds import KindForm
from reshard.operations.pattern import Shape

REDUCE: dict[str, Callable[..., Any]] = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min, "product": jnp.prod}


def _einsum(arrays: Sequence[Any], labels: Sequence[Sequence[int]], output: Sequence[int], dtype: str) -> Any:
    terms = [part for pair in zip(arrays, labels, strict=True) for part in pair]
    return jnp.einsum(*terms, output)


def _reduce(reduction: str, array: Any, dims: Shape) -> Any:
    return REDUCE[reduction](array, axis=dims, initial=identity(reduction, array.dtype))


def _pad(array: Any, low: Shape, high: Shape, value: Any) -> Any:
    return lax.pad(array, lax.full((), value, array.dtype), [(*ends, 0) for ends in zip(low, high, strict=True)])


def _quotient(a: Any, b: Any) -> Any:
    """A quotient; that of integers is cut towards zero."""
    dtype = jnp.result_type(a, b)
    return lax.div(a.astype(dtype), b.astype(dtype)) if jnp.issubdtype(dtype, jnp.integer) else jnp.divide(a, b)


_OF_LAX = "clamp complex erf integer_pow rsqrt select_n stop_gradient"
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **{name: getattr(lax, name) for name in _OF_LAX.split()},
    "div": _quotient,
    "relu": lambda a: jnp.maximum(a, 0),
    "round": lambda a, rounding_method=1: lax.round(a, lax.RoundingMethod(rounding_method)),
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
}
"""What `jax.numpy` has under no name."""

VERBS = Verbs(
    reshape=lax.reshape,
    transpose=lax.transpose,
    broadcast=jnp.broadcast_to,
    cast=lambda array, dtype: array if is_key(array.dtype) else array.astype(dtype),
    einsum=_einsum,
    reduce=_reduce,
    slice=lax.slice,
    pad=_pad,
    flip=lax.rev,
    concatenate=lax.concatenate,
    rows=lambda table, numbers: table[numbers],
    element=lambda array, dim, place: lax.dynamic_slice_in_dim(array, place, 1, dim),
    where=jnp.where,
    full=lambda like, shape, value: lax.full(shape, value, like.dtype),
    count=lambda like, shape, dim: lax.broadcasted_iota("int32", shape, dim),
    number=lambda array: array,
    elementwise=functions(KindForm.ELEMENTWISE, jnp, ELEMENTWISE),
    along=functions(KindForm.ALONG, lax, {"softmax": jax.nn.softmax}),
)
