"""Columns of small integers as text that a browser unpacks.

The numbers of a column stand one after another in 16 bits each, in 32 where one needs them, the columns one after
another; all of it is deflated and written in base 64.
What repeats from device to device, as rounds and senders do, so takes nearly no room: 1,024 devices times 100 rounds
are about 0.2 MB, and 1.9 as text.

>>> packed = pack([[0, 1, 2], [7, 7, -1]])
>>> packed["bytes"], packed["count"], unpack(packed)
(2, 3, [[0, 1, 2], [7, 7, -1]])
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

SMALL, LARGE = 2**15, 2**31


def pack(columns: Sequence[ArrayLike]) -> dict[str, Any]:
    """Columns of equal length, of integers from -1 on; `data` holds them, the other fields say how."""
    table = np.array([np.asarray(column, dtype=np.int64) for column in columns]).reshape(len(columns), -1)
    width = 2 if table.max(initial=0) < SMALL else 4
    if table.max(initial=0) >= LARGE:
        raise OverflowError("a column holds numbers of more than 31 bits")
    data = zlib.compress(table.astype("<i2" if width == 2 else "<i4").tobytes(), 9)
    return {
        "bytes": width,
        "count": table.shape[1],
        "columns": len(columns),
        "data": base64.b64encode(data).decode("ascii"),
    }


def unpack(packed: dict[str, Any]) -> list[list[int]]:
    """The columns; what the browser does, for tests."""
    data = zlib.decompress(base64.b64decode(packed["data"]))
    table = np.frombuffer(data, dtype="<i2" if packed["bytes"] == 2 else "<i4")
    columns: list[list[int]] = table.reshape(packed["columns"], packed["count"]).tolist()
    return columns
