"""How the elements of a tensor lie in files: which type, in which byte order, in which order of the dims.

Tiles are written as `.npy` files, so a type that NumPy lacks is stored as the unsigned integer of its size.
A tensor whose last index runs slowest (Fortran's order) keeps that: its tiles are stored as it is.
Storage then sees the tensor with its dims reversed, and to storage every file is in row-major order.
A scalar is stored as a vector of one element.

>>> import numpy as np
>>> from reshard.box import Box
>>> Encoding.of("bfloat16").stored.str
'<u2'
>>> Encoding.of("float32", fortran=True).stored_box(Box([(0, 2), (4, 8)]))
Box([(4, 8), (0, 2)])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reshard.box import Box
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError


@dataclass(frozen=True, slots=True)
class Encoding:
    """A dtype, and how its elements lie in files."""

    dtype: DType
    stored: np.dtype[Any]
    """What a `.npy` file says: NumPy's type with its byte order, or an unsigned integer of the same size."""
    fortran: bool
    """Whether the first index runs fastest."""

    @classmethod
    def of(cls, dtype: DType | str, *, fortran: bool = False) -> Encoding:
        """The encoding of a dtype in little-endian byte order."""
        dtype = dtype_named(dtype)
        return cls(dtype, _stored(dtype).newbyteorder("<"), fortran)

    def stored_box(self, box: Box) -> Box:
        """A box as it lies in a file: dims in stored order, at least one."""
        lifted = box or Box([(0, 1)])
        return Box(reversed(lifted)) if self.fortran else lifted

    def values(self) -> np.dtype[Any]:
        """The type to calculate with.

        Raises:
            ReshardError: `missing-extra` where that takes the package `ml_dtypes` and it is not there;
                `reduction-dtype` where it is of the other byte order.
        """
        if not _is_lacking(self.dtype):
            return self.stored
        if not self.stored.isnative:
            raise ReshardError("reduction-dtype", f"{self.dtype} values of the other byte order cannot be combined")
        try:
            import ml_dtypes  # noqa: PLC0415  # needed where such values are combined, not to move them
        except ImportError:
            raise ReshardError(
                "missing-extra", f"to combine {self.dtype} values the package ml_dtypes is needed: reshard[safetensors]"
            ) from None
        values: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.dtype.name))
        return values


def _is_lacking(dtype: DType) -> bool:
    """Whether NumPy by itself has no such type; what other packages add to it does not count."""
    return dtype.name == "bfloat16" or dtype.name.startswith("float8_")


def _stored(dtype: DType) -> np.dtype[Any]:
    """NumPy's type of that name, or the unsigned integer of its size."""
    return np.dtype(f"uint{8 * dtype.itemsize}" if _is_lacking(dtype) else dtype.name)


def encoding_of(descr: np.dtype[Any], fortran: bool, said: DType | None, path: object) -> Encoding:
    """The encoding that a `.npy` header gives.

    Args:
        descr: the type in the header.
        fortran: whether the first index runs fastest.
        said: the dtype that the caller knows the elements to be of, if any; it alone can tell a type that NumPy
            lacks, whose files hold plain bytes or unsigned integers.
        path: what to call the file.

    Raises:
        ReshardError: `bad-file`.
    """
    if said is not None and _is_lacking(said):
        if descr.kind == "V" and descr.names is None and descr.subdtype is None and descr.itemsize == said.itemsize:
            return Encoding.of(said, fortran=fortran)
        if descr == _stored(said).newbyteorder(descr.byteorder):
            return Encoding(said, descr, fortran)
    try:
        stored = dtype_named(descr) if descr.kind in "biufc" else None
    except ReshardError:
        stored = None
    if stored is None:
        hint = "; --dtype may say what the bytes are" if descr.kind == "V" and descr.names is None else ""
        raise ReshardError("bad-file", f"{path} holds elements of type {descr}, which cannot be moved{hint}")
    if said is not None and said != stored:
        raise ReshardError("bad-file", f"{path} holds {stored} values; they were said to be {said}")
    return Encoding(stored, descr, fortran)
