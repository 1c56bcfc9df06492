"""Two checkpoints side by side: which tensors one has alone, and which differ."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reshard.box import Box
from reshard.models.checkpoints.copying import slabs
from reshard.models.checkpoints.files import FileReader
from reshard.models.checkpoints.stored import Checkpoint, raw_dtype


class Difference(NamedTuple):
    """How a tensor differs."""

    name: str
    what: str


def differences(first: Checkpoint, second: Checkpoint, cap: int) -> list[Difference]:
    """All tensors that are not the same in both, bit for bit, by name.

    Raises:
        ReshardError: `bad-file`.
    """
    result = []
    for name in sorted({*first.tensors, *second.tensors}):
        one, other = first.tensors.get(name), second.tensors.get(name)
        if one is None or other is None:
            result.append(Difference(name, f"only in {(first if other is None else second).path}"))
            continue
        if one.shape != other.shape:
            result.append(Difference(name, f"shape {one.shape} and {other.shape}"))
            continue
        if one.dtype != other.dtype:
            result.append(Difference(name, f"dtype {one.dtype} and {other.dtype}"))
            continue
        count = 0
        with FileReader() as reader:
            for box in slabs(one.shape, one.dtype.itemsize, max(cap // 4, 1)):
                pair = [np.empty(box.shape, raw_dtype(one.dtype)) for _ in range(2)]
                for tensor, values in zip((one, other), pair, strict=True):
                    tensor.read_into(values, box, reader)
                count += int(np.count_nonzero(pair[0] != pair[1]))
        if count:
            result.append(Difference(name, f"{count} of {Box.whole(one.shape).size} elements"))
    return result
