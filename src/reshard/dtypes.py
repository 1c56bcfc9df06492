"""Element types: their names, their sizes, and what reduces them.

A dtype goes by NumPy's name (`float32`) or the short one that XLA and MLIR print (`f32`).
Types that NumPy lacks (`bfloat16`, the 8-bit floats) need the package `ml_dtypes` only where values are
combined; to move them their size is enough.

>>> dtype_named("bf16").name, dtype_named("bf16").itemsize
('bfloat16', 2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True)
class DType:
    """An element type by name, size and kind."""

    name: str
    """NumPy's name, or that of `ml_dtypes`."""
    itemsize: int
    """Bytes per element."""
    kind: str
    """NumPy's letter: b bool, i integer, u unsigned, f float, c complex, V bytes without arithmetic."""

    def __str__(self) -> str:
        return self.name

    def check_reduction(self, reduction: str) -> None:
        """Refuse a reduction that has no meaning for this type.

        Raises:
            ReshardError: `reduction-dtype`.
        """
        if self.kind not in REDUCTIONS[reduction]:
            raise ReshardError("reduction-dtype", f"{reduction} is not defined for values of dtype {self.name}")


_TABLE = [
    DType("bool", 1, "b"),
    *(DType(f"int{8 * size}", size, "i") for size in (1, 2, 4, 8)),
    *(DType(f"uint{8 * size}", size, "u") for size in (1, 2, 4, 8)),
    *(DType(f"float{8 * size}", size, "f") for size in (2, 4, 8)),
    DType("bfloat16", 2, "f"),
    *(
        DType(f"float8_{form}", 1, "f")
        for form in ("e4m3fn", "e5m2", "e4m3", "e3m4", "e4m3b11fnuz", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")
    ),
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
