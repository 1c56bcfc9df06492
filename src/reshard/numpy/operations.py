"""What operations do to arrays, by their names.

Elementwise operations are given arrays of one shape; what they make is converted to the dtype of the result.

>>> ELEMENTWISE["select_n"](np.array([False, True]), np.array([1, 2]), np.array([3, 4]))
array([1, 4])
"""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _same(a: Array) -> Array:
    return a


def _sigmoid(a: Array) -> Array:
    return 1 / (1 + np.exp(-a))


def _division(a: Array, b: Array) -> Array:
    """A quotient; that of integers is cut towards zero."""
    return np.trunc(np.divide(a, b)) if a.dtype.kind in "iu" else np.divide(a, b)


def _rounded(a: Array, rounding_method: int = 1) -> Array:
    """The nearest integer; of two the even one, unless the method is 0."""
    return np.rint(a) if rounding_method else np.copysign(np.floor(np.abs(a) + 0.5), a)


def _softmax(a: Array, axis: int) -> Array:
    powers = np.exp(a - a.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


_ONE = "abs cbrt ceil conj cos cosh exp exp2 expm1 floor log log1p sign sin sinh sqrt square tan tanh"
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "relu": lambda a: np.maximum(a, 0),
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "sigmoid": _sigmoid,
    "silu": lambda a: a * _sigmoid(a),
    "erf": np.vectorize(erf, otypes=[float]),
    "integer_pow": lambda a, y: np.power(a, y) if y >= 0 else 1 / np.power(a, -y),
    "round": _rounded,
    "clamp": lambda low, a, high: np.clip(a, low, high),
    "select": np.where,
    "select_n": lambda which, *cases: np.choose(which.astype(np.intp), cases),
    "div": _division,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "rem": np.fmod,
    "pow": np.power,
    "atan2": np.arctan2,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "ne": np.not_equal,
    "less": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "neg": np.negative,
    "is_finite": np.isfinite,
    "imag": np.imag,
    "real": np.real,
    "complex": lambda a, b: a + 1j * b,
    **{name: getattr(np, name) for name in _ONE.split()},
    **dict.fromkeys(("copy", "convert", "cast", "stop_gradient", "transpose", "reshape", "broadcast"), _same),
}
"""What is done element by element."""
_TWO = "add sub mul div rem pow atan2 maximum minimum equal ne less le gt ge and or xor complex"
OPERANDS = dict.fromkeys(_TWO.split(), 2) | dict.fromkeys(("select", "select_n", "clamp"), 3)
"""How many operands they have, where it is not one."""
ATTRIBUTED = ("integer_pow", "round")
"""Those that depend on attributes, which have the names of their arguments."""
WHOLE: dict[str, Callable[..., Any]] = {
    "sort": np.sort,
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
    "softmax": _softmax,
}
"""What needs all elements of one dim."""
COMBINE: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max, "min": np.min, "product": np.prod}
"""Reductions."""


def widened(array: Array, result: np.dtype[Any]) -> Array:
    """An array with which NumPy can contract: as wide as the result, and short floats with 32 bits."""
    if array.dtype.kind in "iu" and result.kind in "iu":
        return array.astype(result)
    return array if array.dtype.isbuiltin == 1 and array.dtype != np.float16 else array.astype(np.float32)
