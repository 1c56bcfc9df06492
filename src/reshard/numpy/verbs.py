"""What NumPy does with arrays, for the interpreter of operations.

>>> VERBS.elementwise["select_n"](np.array([False, True]), np.array([1, 2]), np.array([3, 4]))
array([1, 4])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erf
from typing import Any

import numpy as np

from reshard.array_tiles import COMBINE, Array
from reshard.dtypes import identity
from reshard.operations.interpreter import Verbs, functions
from reshard.operations.kinds import KindForm
from reshard.operations.pattern import Shape


def _widened(array: Array, dtype: np.dtype[Any]) -> Array:
    """An array that NumPy can sum up: integers as wide as the result, short floats with 32 bits."""
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        return array.astype(dtype)
    return array if array.dtype.isbuiltin == 1 and array.dtype != np.float16 else array.astype(np.float32)


def _einsum(arrays: Sequence[Array], labels: Sequence[Sequence[int]], output: Sequence[int], dtype: str) -> Array:
    wide = [_widened(array, np.dtype(dtype)) for array in arrays]
    terms: list[Any] = [part for pair in zip(wide, labels, strict=True) for part in pair]
    return np.asarray(np.einsum(*terms, output))


def _reduce(reduction: str, array: Array, dims: Shape) -> Array:
    blank = identity(reduction, array.dtype)
    return np.asarray(COMBINE[reduction].reduce(_widened(array, array.dtype), axis=dims, initial=blank))


def _sigmoid(a: Array) -> Array:
    return 1 / (1 + np.exp(-a))


def _quotient(a: Array, b: Array) -> Array:
    """A quotient; that of integers is cut towards zero."""
    return (a - np.fmod(a, b)) // b if np.result_type(a, b).kind in "iu" else np.divide(a, b)


def _rounded(a: Array, rounding_method: int = 1) -> Array:
    """The nearest integer; of two the even one, unless the method is 0."""
    return np.rint(a) if rounding_method else np.copysign(np.floor(np.abs(a) + 0.5), a)


def _softmax(a: Array, dim: int) -> Array:
    if not a.size:
        return a
    powers = np.exp(a - a.max(dim, keepdims=True))
    return np.asarray(powers / powers.sum(dim, keepdims=True))


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "clamp": lambda low, a, high: np.minimum(np.maximum(a, low), high),
    "complex": lambda a, b: a + 1j * b,
    "div": _quotient,
    "erf": np.vectorize(erf, otypes=[float]),
    "integer_pow": lambda a, y: np.power(a, y) if y >= 0 else 1 / np.power(a, -y),
    "relu": lambda a: np.maximum(a, 0),
    "round": _rounded,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "select_n": lambda which, *cases: np.choose(which.astype(np.intp), cases),
    "sigmoid": _sigmoid,
    "silu": lambda a: a * _sigmoid(a),
    "stop_gradient": lambda a: a,
}
"""What NumPy has under no name."""
ALONG: dict[str, Callable[..., Any]] = {
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
    "cumlogsumexp": np.logaddexp.accumulate,
    "softmax": _softmax,
}
"""The same of what goes along a dim."""

VERBS = Verbs(
    reshape=np.reshape,
    transpose=np.transpose,
    broadcast=np.broadcast_to,
    cast=lambda array, dtype: np.ascontiguousarray(np.asarray(array).astype(dtype, copy=False)),
    einsum=_einsum,
    reduce=_reduce,
    slice=lambda array, start, stop, step: array[tuple(map(slice, start, stop, step))],
    pad=lambda array, low, high, value: np.pad(array, list(zip(low, high, strict=True)), constant_values=value),
    flip=np.flip,
    concatenate=np.concatenate,
    rows=lambda table, numbers: table[numbers],
    element=lambda array, dim, place: np.take(array, [place], dim),
    where=np.where,
    full=lambda like, shape, value: np.full(shape, value, like.dtype),
    count=lambda like, shape, dim: np.broadcast_to(np.indices(shape, sparse=True)[dim], shape),
    number=lambda array: array.astype(np.int64),
    elementwise=functions(KindForm.ELEMENTWISE, np, ELEMENTWISE),
    along=functions(KindForm.ALONG, np, ALONG),
)
