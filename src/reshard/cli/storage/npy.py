"""The header of a `.npy` file.

>>> len(header_bytes(Encoding.of("float32"), (2, 3)))
128
"""

from __future__ import annotations

import io
import warnings
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy_format

from reshard.checks import checked_shape
from reshard.cli.storage.encoding import Encoding
from reshard.errors import ReshardError, refusing

MAGIC = npy_format.MAGIC_PREFIX
MAX_HEADER = 2**16
"""Bytes in which a header must end, so that one that lies about its length is not believed."""


class Header(NamedTuple):
    """What a `.npy` header says."""

    descr: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int
    """Where the data begins, in bytes."""


def header_bytes(encoding: Encoding, shape: tuple[int, ...]) -> bytes:
    """A header, padded so that the data behind it is aligned."""
    text = io.BytesIO()
    descr = npy_format.dtype_to_descr(encoding.stored)
    npy_format.write_array_header_1_0(text, {"descr": descr, "fortran_order": encoding.fortran, "shape": shape})
    return text.getvalue()


def read_header(path: Path) -> Header:
    """The header of a file, whose size must be what the header says.

    Raises:
        ReshardError: `bad-file`.
    """
    with refusing("bad-file", f"{path} could not be read"), path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        start = file.read(MAX_HEADER)
    try:
        header = _parsed(io.BytesIO(start))
    except MemoryError:
        raise
    except Exception as error:  # the parser behind it evaluates a literal, and fails in many ways
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ReshardError("bad-file", f"{path} is no .npy file: {reason}") from None
    if header.descr.hasobject:
        raise ReshardError("bad-file", f"{path} holds Python objects, which cannot be moved")
    needed = header.offset + prod(header.shape) * header.descr.itemsize
    if size != needed:
        raise ReshardError("bad-file", f"{path} has {size} bytes; its header asks for {needed}")
    return header


def _parsed(file: io.BytesIO) -> Header:
    version = npy_format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ReshardError("bad-file", f"version {version[0]}.{version[1]} of the format is not known")
    # Version 3 differs from 2 in that names of fields may be of any script; elements with fields are refused anyway.
    read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # headers that Python 2 wrote are read like any other
        shape, fortran, descr = read(file)
    return Header(descr, checked_shape([int(size) for size in shape]), fortran and len(shape) > 1, file.tell())
