"""Parts of arrays as datatypes of MPI: a message is read where it lies and written where it belongs.

Elements travel as bytes, whatever they mean, so that the last dim of an array counts them.
Parts of one message are in the order that both its ends derive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
from mpi4py import MPI

from reshard.box import run_size
from reshard.exchange import Piece
from reshard.mpi.participants import MOST_ROOM_BYTES

NOTHING = np.zeros(1, np.uint8)
LEAST_PACKED_BYTES = 2**14
"""Of a piece that is worth a copy in Python before it is sent; MPI copies smaller ones by itself."""
LEAST_STRIP_BYTES, MOST_STRIPS = 2**11, 2**10
"""Of a message that MPI reads in strips: between ranks of a host one call of the system reads no more than so many.
On two processors 64 MiB between 4 ranks take 40 ms in messages of 1365 strips, 16 ms of 1024, and 20 ms packed."""


def subarrays(shape: tuple[int, ...], parts: Sequence[tuple[slice, ...]], itemsize: int) -> MPI.Datatype:
    """The parts of a contiguous array, none of them empty, one after the other.

    Args:
        shape: of the array.
        parts: an index each, of slices with both ends or of all of a dim.
        itemsize: bytes per element.
    """
    types = [_subarray(shape, part, itemsize) for part in parts]
    if len(types) == 1:
        return types[0].Commit()
    joined = MPI.Datatype.Create_struct([1] * len(types), [0] * len(types), types).Commit()
    for datatype in types:
        datatype.Free()
    return joined


def runs_of(runs: Sequence[tuple[int, int]]) -> MPI.Datatype:
    """Bytes of a buffer in runs, of each where it starts and how long it is; those that follow one another as one."""
    joined: list[tuple[int, int]] = []
    for start, nbytes in runs:
        if joined and sum(joined[-1]) == start:
            start, nbytes = joined[-1][0], joined.pop()[1] + nbytes
        joined.append((start, nbytes))
    starts, lengths = zip(*joined, strict=True)
    return MPI.Datatype.Create_struct(list(lengths), list(starts), [MPI.BYTE] * len(joined)).Commit()


def _subarray(shape: tuple[int, ...], part: tuple[slice, ...], itemsize: int) -> MPI.Datatype:
    ends = [index.indices(size) for index, size in zip(part, shape, strict=True)]
    *sizes, last = shape or (1,)
    *starts, first = [start for start, _, _ in ends] or [0]
    *lengths, length = [stop - start for start, stop, _ in ends] or [1]
    return MPI.BYTE.Create_subarray(
        [*sizes, last * itemsize], [*lengths, length * itemsize], [*starts, first * itemsize]
    )


def memory_of(array: Any) -> Any:
    """A contiguous array as bytes, for MPI knows not all types of elements; some memory where there is nothing."""
    if array is None or not array.size:
        return NOTHING
    return array.reshape(prod(array.shape)).view("u1")


def is_packed_sooner(sent: Iterable[tuple[int, Piece]], shape: tuple[int, ...], itemsize: int) -> bool:
    """Whether pieces of a tile, each with the other rank, are packed sooner than MPI goes through their strips."""
    nbytes, strips, is_thin = 0, Counter[int](), False
    for peer, piece in sent:
        size, run = piece.box.size * itemsize, run_size(piece.box.shape, shape) * itemsize
        if run < size:
            nbytes += size
            if size >= LEAST_PACKED_BYTES:
                strips[peer] += size // run
                is_thin = is_thin or run < LEAST_STRIP_BYTES
    return (is_thin or max(strips.values(), default=0) > MOST_STRIPS) and nbytes <= MOST_ROOM_BYTES
