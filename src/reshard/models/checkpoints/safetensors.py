"""The header of a `.safetensors` file: eight bytes that give its length, then JSON, then the data without gaps.

The format is that of the package of the same name, which is not needed to read it.
Its order of bytes is little-endian, its order of elements row-major.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from reshard.checks import checked_shape
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError, refusing

MAX_HEADER = 2**25
"""Bytes of JSON that are read at the most."""

_SHORT = "BOOL U8 I8 U16 I16 U32 I32 U64 I64 F16 BF16 F32 F64 C64"
_FLOAT8 = {"E4M3": "e4m3fn", "E5M2": "e5m2", "E8M0": "e8m0fnu", "E4M3FNUZ": "e4m3fnuz", "E5M2FNUZ": "e5m2fnuz"}
DTYPES = {name: dtype_named(name.lower()) for name in _SHORT.split()}
DTYPES |= {f"F8_{name}": dtype_named(f"float8_{form}") for name, form in _FLOAT8.items()}
"""By the format's names."""
NAMES = {dtype.name: name for name, dtype in DTYPES.items()}
"""The format's names, by ours."""


class TensorEntry(NamedTuple):
    """One tensor of a file."""

    dtype: DType
    shape: tuple[int, ...]
    offset: int
    """Where its data begins in the file, in bytes."""


def read_entry(path: Path, name: str | None) -> TensorEntry:
    """One tensor of a file, by its name; the only one where none is given.

    Raises:
        ReshardError: `bad-file` where the file is malformed or has no such tensor; `bad-argument` where a name is
            needed.
    """
    header, data_start, data_size = _read_json(path)
    spans = _spans(path, header, data_size)
    if name is None:
        if len(spans) != 1:
            raise ReshardError("bad-argument", f"{path} holds {_named(spans)}; --tensor must name one")
        (name,) = spans
    if name not in spans:
        raise ReshardError("bad-file", f"{path} holds no tensor {name!r}, but {_named(spans)}")
    return _entry(path, name, header[name], spans[name], data_start)


def read_entries(path: Path) -> dict[str, TensorEntry]:
    """All tensors of a file, by name.

    Raises:
        ReshardError: `bad-file` where the file is malformed.
    """
    header, data_start, data_size = _read_json(path)
    spans = _spans(path, header, data_size)
    return {name: _entry(path, name, header[name], span, data_start) for name, span in spans.items()}


def header_of(tensors: Mapping[str, tuple[DType, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """The header of a file that holds tensors one after another, in their order.

    Raises:
        ReshardError: `cannot-express` where the format has no such dtype.

    >>> header_of({"w": (dtype_named("f32"), (2, 3))}, {})[8:]
    b'{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}       '
    """
    record: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    place = 0
    for name, (dtype, shape) in tensors.items():
        if dtype.name not in NAMES:
            raise ReshardError("cannot-express", f"safetensors has no dtype for {dtype}, of tensor {name!r}")
        size = prod(shape) * dtype.itemsize
        record[name] = {"dtype": NAMES[dtype.name], "shape": list(shape), "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(record, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _spans(path: Path, header: Mapping[str, Any], data_size: int) -> dict[str, tuple[int, int]]:
    """Where each tensor lies in the data, which they fill without a gap."""
    spans = {key: _span(path, key, value) for key, value in header.items() if key != "__metadata__"}
    ordered = [(0, 0), *sorted(spans.values()), (data_size, data_size)]
    for (_, stop), (start, _) in pairwise(ordered):
        if start != stop:
            raise ReshardError(
                "bad-file",
                f"tensors in {path} overlap or leave a gap: one ends at byte {stop}, the next begins at {start}",
            )
    return spans


def _entry(path: Path, name: str, record: dict[str, Any], span: tuple[int, int], data_start: int) -> TensorEntry:
    said = record.get("dtype")
    dtype = DTYPES.get(said) if isinstance(said, str) else None
    if dtype is None:
        raise ReshardError("bad-file", f"tensor {name!r} of {path} is of dtype {said!r}, which is not known")
    start, stop = span
    entry = TensorEntry(dtype, _shape(path, name, record), data_start + start)
    needed = prod(entry.shape) * entry.dtype.itemsize
    if stop - start != needed:
        raise ReshardError("bad-file", f"tensor {name!r} of {path} has {stop - start} bytes; its shape needs {needed}")
    return entry


def _read_json(path: Path) -> tuple[dict[str, Any], int, int]:
    """The header, where the data begins, and how many bytes of it there are."""
    with refusing("bad-file", f"{path} could not be read"), path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ReshardError("bad-file", f"{path} has {size} bytes, which cannot hold a header of {length}")
        if length > MAX_HEADER:
            raise ReshardError("bad-file", f"{path} has a header of {length} bytes; up to {MAX_HEADER} are read")
        text = file.read(length)
    try:
        header = json.loads(text.decode(), object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        raise ReshardError("bad-file", f"the header of {path} is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise ReshardError("bad-file", f"the header of {path} must be a JSON object")
    return header, 8 + length, size - 8 - length


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a name stands twice")
    return record


def _span(path: Path, name: str, record: Any) -> tuple[int, int]:
    """Where a tensor begins and ends in the data."""
    span = record.get("data_offsets") if isinstance(record, dict) else None
    if not isinstance(span, list) or len(span) != 2 or not all(type(end) is int for end in span):
        raise ReshardError("bad-file", f"tensor {name!r} of {path} has no pair of data_offsets")
    start, stop = span
    if not 0 <= start <= stop:
        raise ReshardError("bad-file", f"tensor {name!r} of {path} has the data_offsets {span}, which are out of order")
    return start, stop


def _shape(path: Path, name: str, record: dict[str, Any]) -> tuple[int, ...]:
    shape = record.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ReshardError("bad-file", f"tensor {name!r} of {path} has the shape {shape!r}, which is no list of sizes")
    return checked_shape(shape)


def _named(tensors: Mapping[str, Any]) -> str:
    """The names of a file's tensors, of the first few."""
    names = [repr(name) for name in list(tensors)[:5]]
    return f"{len(tensors)} tensors: {', '.join(names)}{', ...' if len(tensors) > 5 else ''}" if names else "no tensor"
