"""Parts of arrays as datatypes of MPI: a message is read where it lies and written where it belongs.

Elements travel as bytes, whatever they mean, so that the last dim of an array counts them.
Parts of one message are in the order that both its ends derive.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from mpi4py import MPI


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
    """A contiguous array as bytes, for MPI knows not all types of elements."""
    return array.reshape(prod(array.shape)).view("u1")
