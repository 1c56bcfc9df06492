"""Element types: their names, their sizes, and what reduces them.

A dtype goes by NumPy's name (`float32`, `half`, `<f4`), the short one that XLA and MLIR print (`f32`), or torch's
(`torch.float`, which is float32, where NumPy's and Python's `float` is float64); or it is an engine's own object.
Integers of 2 and 4 bits count a byte each, as NumPy, JAX and torch keep them in memory.
Types that NumPy lacks (`bfloat16`, the 8-bit floats) need the package `ml_dtypes` only where values are
combined; to move them their size is enough.

By hand, what changes nothing under a maximum is the least that a type has: -128 of eight bits with a sign, minus
infinity of bfloat16, and -448 of the 8-bit floats that have no infinity.

>>> dtype_named("bf16").name, dtype_named("bf16").itemsize
('bfloat16', 2)
>>> [dtype_named(name).identity("max") for name in ("int8", "bf16", "f8e4m3fn")]
[-128, -inf, -448.0]
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np

from reshard.checks import shown, suggested
from reshard.errors import ReshardError

REDUCTIONS: dict[str, str] = {
    "sum": "iufc",
    "avg": "fc",
    "product": "iufc",
    "max": "biuf",
    "min": "biuf",
    "band": "biu",
    "bor": "biu",
    "bxor": "biu",
}
"""The closed set of reductions, each with the kinds of dtype it is defined on."""
_COMBINING = {
    "sum": "add",
    "avg": "add",
    "product": "multiply",
    "max": "maximum",
    "min": "minimum",
    "band": "bitwise_and",
    "bor": "bitwise_or",
    "bxor": "bitwise_xor",
}
"""What NumPy calls the function that a reduction combines two values by, and others after NumPy."""


def combining(namespace: Any) -> dict[str, Any]:
    """By reduction, the function of a namespace like NumPy's that combines two values; avg divides once all are added.

    >>> combining(np)["max"](2, 3)
    np.int64(3)
    """
    return {reduction: getattr(namespace, name) for reduction, name in _COMBINING.items()}


@dataclass(frozen=True, slots=True)
class DType:
    """An element type by name, size and kind."""

    name: str
    """NumPy's name, or that of `ml_dtypes`."""
    itemsize: int
    """Bytes per element."""
    kind: str
    """NumPy's letter: b bool, i integer, u unsigned, f float, c complex, V bytes without arithmetic."""
    finite_range: tuple[float, float] | None = None
    """The least and the largest value of a float that has no infinities, or of an integer of fewer bits than bytes."""

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def check_reduction(self, reduction: str) -> None:
        """Refuse a reduction that has no meaning for this type.

        Raises:
            ReshardError: `reduction-dtype`.
        """
        if self.kind not in REDUCTIONS[reduction]:
            raise ReshardError("reduction-dtype", f"{reduction} is not defined for values of dtype {self.name}")

    def holds(self, number: Any) -> bool:
        """Whether something is a number that values of this type can be, be it rounded.

        >>> dtype_named("int8").holds(300), dtype_named("int8").holds(3.0), dtype_named("f8e5m2").holds(0.3)
        (False, True, True)
        """
        if not isinstance(number, int | float):
            return False
        if self.kind == "b":
            return number in (0, 1)
        if self.kind in "iu":
            return self.identity("max") <= number <= self.identity("min") and number == int(number)
        return isinstance(number, float) or abs(number) < 2**1023

    def identity(self, reduction: str) -> bool | int | float:
        """The value that leaves any other as it is under a reduction.

        Raises:
            ReshardError: `reduction-dtype`.
        """
        self.check_reduction(reduction)
        least, largest = self.finite_range or (-inf, inf)
        if reduction in ("sum", "avg", "bor", "bxor"):
            if self.kind == "f" and least > 0:
                raise ReshardError("reduction-dtype", f"{reduction} has no identity among values of dtype {self.name}")
            return 0
        if reduction == "product":
            return 1
        if self.kind == "b":
            return reduction != "max"
        if self.kind == "f":
            return least if reduction == "max" else largest
        if self.finite_range is not None:
            least, largest = int(least), int(largest)
            return least if reduction == "max" else -1 if reduction == "band" and least else largest
        bits = 8 * self.itemsize - (self.kind == "i")
        if reduction == "max":
            return -(2**bits) if self.kind == "i" else 0
        return -1 if reduction == "band" and self.kind == "i" else 2**bits - 1


_TABLE = [
    DType("bool", 1, "b"),
    *(DType(f"int{8 * size}", size, "i") for size in (1, 2, 4, 8)),
    *(DType(f"uint{8 * size}", size, "u") for size in (1, 2, 4, 8)),
    *(DType(f"int{bits}", 1, "i", (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)) for bits in (2, 4)),
    *(DType(f"uint{bits}", 1, "u", (0, 2**bits - 1)) for bits in (2, 4)),
    *(DType(f"float{8 * size}", size, "f") for size in (2, 4, 8)),
    DType("bfloat16", 2, "f"),
    *(DType(f"float8_{form}", 1, "f") for form in ("e5m2", "e4m3", "e3m4")),
    DType("float4_e2m1fn", 1, "f", (-6.0, 6.0)),
    DType("float8_e4m3fn", 1, "f", (-448.0, 448.0)),
    DType("float8_e4m3b11fnuz", 1, "f", (-30.0, 30.0)),
    DType("float8_e4m3fnuz", 1, "f", (-240.0, 240.0)),
    DType("float8_e5m2fnuz", 1, "f", (-57344.0, 57344.0)),
    DType("float8_e8m0fnu", 1, "f", (2.0**-127, 2.0**127)),
    DType("complex64", 8, "c"),
    DType("complex128", 16, "c"),
]
_SHORT = {"bool": "i1 pred bool_", "bfloat16": "bf16", "complex64": "c64", "complex128": "c128"}
_PREFIXES = {"i": ("i", "s"), "u": ("u", "ui"), "f": ("f",)}


def _names() -> dict[str, DType]:
    names: dict[str, DType] = {}
    for dtype in _TABLE:
        short = _SHORT.get(dtype.name, "").split()
        width, _, form = dtype.name.removeprefix("float").partition("_")
        if form:
            short = [f"f{width}{form}", f"f{width}{form.upper()}"]
        elif not short:
            bits = dtype.name.removeprefix("u").removeprefix("int").removeprefix("float")
            short = [f"{prefix}{bits}" for prefix in _PREFIXES[dtype.kind]]
        for name in (dtype.name, *short):
            names[name] = dtype
    return names


DTYPES: dict[str, DType] = _names()
"""Every name that is understood, long and short."""


_TORCH = {"half": "float16", "float": "float32", "double": "float64", "cfloat": "complex64", "cdouble": "complex128"}
_TORCH |= {"short": "int16", "int": "int32", "long": "int64"}
"""Torch's other names; behind `torch.` they mean these, whatever NumPy calls so."""
_OF_NUMPY = re.compile(r"[<>=|][A-Za-z][0-9]{1,2}|[a-z]{4,}")
"""What NumPy is asked for: a byte order with letter and bytes, or a word; `i8` alone is eight bits, not eight bytes."""


def dtype_named(value: Any) -> DType:
    """The dtype of that name, or of a dtype or scalar type of NumPy, JAX, torch or Python.

    Raises:
        ReshardError: `unknown-dtype`.

    >>> [dtype_named(name).name for name in ("<f4", "half", float, "torch.float", "i4", "torch.bfloat16")]
    ['float32', 'float16', 'float64', 'float32', 'int4', 'bfloat16']
    """
    if isinstance(value, DType):
        return value
    name = value if isinstance(value, str) else _name_of(value)
    if isinstance(name, str):
        if name.startswith("torch."):
            name = name.removeprefix("torch.")
            name = _TORCH.get(name, name)
        dtype = DTYPES.get(name) or DTYPES.get(_numpys_name(name))
        if dtype is not None:
            return dtype
    known = ", ".join(sorted(DTYPES)) + suggested(name, DTYPES)
    raise ReshardError("unknown-dtype", f"dtype {shown(value)} is not known; it must be one of {known}")


def _name_of(value: Any) -> str | None:
    """What an object that stands for a dtype calls itself."""
    if isinstance(value, np.dtype):
        return _name_of_numpys(value)
    if type(value).__module__ == "torch":
        return str(value)
    for word in ("name", "__name__"):
        name = getattr(value, word, None)
        if isinstance(name, str):
            return name
    return None


@lru_cache(256)
def _name_of_numpys(dtype: np.dtype[Any]) -> str:
    """What NumPy calls a dtype of its own, which it works out each time."""
    return dtype.name


def _numpys_name(name: str) -> str:
    """The full name of what NumPy knows by a name; nothing where it knows none."""
    if not _OF_NUMPY.fullmatch(name):
        return ""
    try:
        return str(np.dtype(name).name)
    except (TypeError, ValueError):
        return ""


def widest(dtypes: Iterable[DType]) -> DType:
    """In what arithmetic on values of several types is done.

    >>> widest(map(dtype_named, ("f8e4m3fn", "bf16"))).name
    'bfloat16'
    """
    return max(dtypes, key=lambda dtype: dtype.itemsize)


def identity(reduction: str, dtype: np.dtype[Any]) -> Any:
    """The value that leaves any other as it is under a reduction, as an element of NumPy's dtype.

    Raises:
        ReshardError: `unknown-dtype`, `reduction-dtype`.

    >>> identity("max", np.dtype("int8"))
    np.int8(-128)
    """
    return dtype.type(dtype_named(dtype).identity(reduction))


def value_dtype(dtype: DType) -> np.dtype[Any]:
    """NumPy's dtype of that name, of the package `ml_dtypes` where NumPy has none.

    Raises:
        ReshardError: `missing-extra`.
    """
    try:
        return np.dtype(dtype.name)
    except TypeError:
        try:
            import ml_dtypes  # noqa: PLC0415  # needed for these values alone
        except ImportError:
            raise ReshardError(
                "missing-extra", f"for values of {dtype} the package ml_dtypes is needed: reshard[safetensors]"
            ) from None
        values: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype.name))
        return values
