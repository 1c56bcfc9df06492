"""Scores of which only a band counts, in blocks of rows, each with the columns that its rows can see.

A sequence of n places is cut into blocks of b rows; where column - row is between low and high, the rows of block I see
columns I b + low to I b + b - 1 + high: T = b + high - low of them, which are parts of blocks beside it.
A tensor of rows and columns is so `[blocks, ..., b, ..., T, ...]`, one of columns alone `[blocks, ..., T, ...]`, and
what moves between devices that hold blocks is the parts of their neighbours.

Outside of the band every row has one number, the mask's, and what becomes of it: `BeyondBand.constant`.
Where that is not one number, as before a mask is put on, its sum over the columns outside may still be known, as the
sum of products with a row is the product with a sum: `BeyondBand.total`.
So nothing is left out that an unmasked row, or one that is masked everywhere, would have had.

By hand, 8 places in blocks of 4, of which a row sees itself and the two before: T = 6 columns for each block.

>>> import jax.numpy as jnp
>>> blocks = Blocks(8, 2, -2, 0)
>>> blocks.columns(jnp.arange(1, 9), 0)
Array([[0, 0, 1, 2, 3, 4],
       [3, 4, 5, 6, 7, 8]], dtype=int32)
>>> blocks.added_columns(jnp.ones((2, 6), int), 0)
Array([1, 1, 2, 2, 1, 1, 1, 1], dtype=int32)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import jax
import numpy as np
from jax import lax

MOST_TIMES = 4
"""A block sees at most so many times as many columns as it has rows."""
MOST_OF_ALL = 0.75
"""And at most this share of all."""


@dataclass(frozen=True)
class Blocks:
    """How a sequence is cut."""

    size: int
    """Of the sequence."""
    count: int
    low: int
    """Of the band: from which difference of column and row."""
    high: int
    """And to which."""

    @classmethod
    def of(cls, size: int, devices: int, low: int, high: int) -> Blocks | None:
        """As many blocks as devices, or fewer where a block would see too many columns; None where that is no gain."""
        most = gcd(size, devices)
        for count in range(most, 1, -1):
            blocks = cls(size, count, max(low, 1 - size), min(high, size - 1))
            if most % count == 0 and 0 < blocks.seen <= min(MOST_TIMES * blocks.rows, MOST_OF_ALL * size):
                return blocks
        return None

    @property
    def rows(self) -> int:
        """How many rows a block has."""
        return self.size // self.count

    @property
    def seen(self) -> int:
        """How many columns it sees."""
        return self.rows + self.high - self.low

    def inside(self, ndim: int, column: int) -> Any:
        """Which columns that blocks see there are, in the shape of a tensor of so many dims."""
        places = np.arange(self.count)[:, None] * self.rows + self.low + np.arange(self.seen)
        shape = [self.seen if dim == column + 1 else self.count if dim == 0 else 1 for dim in range(ndim)]
        return ((places >= 0) & (places < self.size)).reshape(shape)

    def unseen(self, ndim: int, dtype: Any) -> Any:
        """How many columns each block does not see."""
        count = self.size - self.inside(2, 0).sum(1)
        return count.astype(np.int32).reshape((self.count, *[1] * (ndim - 1))).astype(dtype)

    def in_blocks(self, array: Any, dim: int) -> Any:
        """A tensor with its blocks first, and the places of a block where the sequence was."""
        shape = array.shape
        apart = lax.reshape(array, (*shape[:dim], self.count, self.rows, *shape[dim + 1 :]))
        return lax.transpose(apart, (dim, *(each for each in range(apart.ndim) if each != dim)))

    def joined(self, array: Any, dim: int) -> Any:
        """A tensor that has its blocks first as one sequence."""
        order = [*range(1, dim + 1), 0, *range(dim + 1, array.ndim)]
        turned = lax.transpose(array, order)
        return lax.reshape(turned, (*turned.shape[:dim], self.size, *turned.shape[dim + 2 :]))

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """Of which blocks the columns that a block sees are parts: how far they are from it, from where to where."""
        first, last = self.low // self.rows, (self.rows - 1 + self.high) // self.rows
        for away in range(first, last + 1):
            ends = self.low - away * self.rows, self.rows + self.high - away * self.rows
            yield away, max(ends[0], 0), min(ends[1], self.rows)

    def columns(self, array: Any, dim: int) -> Any:
        """The columns that each block sees, zeros where there are none."""
        blocks, pieces = self.in_blocks(array, dim), []
        for away, start, stop in self.parts():
            piece = lax.slice_in_dim(blocks, start, stop, axis=dim + 1)
            pieces.append(_moved(piece, -away))
        return lax.concatenate(pieces, dim + 1) if len(pieces) > 1 else pieces[0]

    def added_columns(self, array: Any, dim: int) -> Any:
        """The sums over all blocks of what each has of a column that it sees."""
        total, first = None, 0
        for away, start, stop in self.parts():
            piece = lax.slice_in_dim(array, first, first + stop - start, axis=dim + 1)
            room = [(0, 0, 0)] * array.ndim
            room[dim + 1] = (start, self.rows - stop, 0)
            piece = lax.pad(_moved(piece, away), np.zeros((), array.dtype), room)
            total, first = piece if total is None else lax.add(total, piece), first + stop - start
        return self.joined(total, dim)

    def places(self, shape: Sequence[int], dim: int, dtype: Any, *, of_columns: bool) -> Any:
        """The numbers of rows, or of the columns that are seen, in a tensor with its blocks first."""
        blocks = lax.broadcasted_iota(dtype, shape, 0) * np.array(self.rows, dtype)
        return blocks + lax.broadcasted_iota(dtype, shape, dim) + np.array(self.low if of_columns else 0, dtype)

    def cut(self, numbers: Any, row: int, column: int) -> Any:
        """What blocks see of numbers that are known; where there are no columns, of others."""
        places = np.arange(self.count)[:, None] * self.rows + self.low + np.arange(self.seen)
        moved = np.moveaxis(numbers, (row, column), (0, 1))
        rows = moved.reshape(self.count, self.rows, *moved.shape[1:])
        seen = np.stack([each[:, np.clip(place, 0, self.size - 1)] for each, place in zip(rows, places, strict=True)])
        return np.moveaxis(seen, (1, 2), (row + 1, column + 1))


def _moved(array: Any, by: int) -> Any:
    """Blocks so many places later, zeros where none come from."""
    if not by:
        return array
    return lax.pad(array, np.zeros((), array.dtype), [(by, -by, 0), *[(0, 0, 0)] * (array.ndim - 1)])


@dataclass(frozen=True)
class BeyondBand:
    """What a tensor is in the columns that a block does not see."""

    constant: Any
    """Per row, with one column; None where it is not the same in all of them."""
    total: Any
    """The sum over them; None where it is that of the constant."""
    is_zero: bool = False


def spread(arrays: Sequence[Any], shape: Sequence[int]) -> list[Any]:
    """Arrays of the same dims repeated to one shape; numbers too."""
    return [jax.numpy.broadcast_to(array, tuple(shape)) for array in arrays]
