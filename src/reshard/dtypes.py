"""Element types: their names, their sizes, and what reduces them.

A dtype goes by NumPy's name (`float32`) or the short one that XLA and MLIR print (`f32`).
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

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from reshard.checks import shown
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
    """The least and the largest value of a float that has no infinities."""

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
        bits = 8 * self.itemsize - (self.kind == "i")
        if reduction == "max":
            return -(2**bits) if self.kind == "i" else 0
        return -1 if reduction == "band" and self.kind == "i" else 2**bits - 1


_TABLE = [
    DType("bool", 1, "b"),
    *(DType(f"int{8 * size}", size, "i") for size in (1, 2, 4, 8)),
    *(DType(f"uint{8 * size}", size, "u") for size in (1, 2, 4, 8)),
    *(DType(f"float{8 * size}", size, "f") for size in (2, 4, 8)),
    DType("bfloat16", 2, "f"),
    *(DType(f"float8_{form}", 1, "f") for form in ("e5m2", "e4m3", "e3m4")),
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
        if dtype.name.startswith("float8_"):
            short = ["f8" + dtype.name.removeprefix("float8_"), "f8" + dtype.name.removeprefix("float8_").upper()]
        elif not short:
            short = [f"{prefix}{8 * dtype.itemsize}" for prefix in _PREFIXES[dtype.kind]]
        for name in (dtype.name, *short):
            names[name] = dtype
    return names


DTYPES: dict[str, DType] = _names()
"""Every name that is understood, long and short."""


def dtype_named(value: Any) -> DType:
    """The dtype of that name, or of a NumPy dtype or scalar type.

    Raises:
        ReshardError: `unknown-dtype`.
    """
    if isinstance(value, DType):
        return value
    name = value if isinstance(value, str) else getattr(value, "name", None) or getattr(value, "__name__", None)
    if isinstance(name, str) and name in DTYPES:
        return DTYPES[name]
    known = ", ".join(sorted(DTYPES))
    raise ReshardError("unknown-dtype", f"dtype {shown(value)} is not known; it must be one of {known}")


def identity(reduction: str, dtype: np.dtype[Any]) -> Any:
    """The value that leaves any other as it is under a reduction, as an element of NumPy's dtype.

    Raises:
        ReshardError: `unknown-dtype`, `reduction-dtype`.

    >>> identity("max", np.dtype("int8"))
    np.int8(-128)
    """
    return dtype.type(dtype_named(dtype).identity(reduction))
