"""The device that runs a program, and what it looks up by its place.

All devices run one program, and what differs among them stands in tables of a row per device.

A compiler makes a kernel of every number that it knows, and one of all that are looked up, each in a table of its own.
On CPUs a kernel takes longer to compile than many do to run, so there the parts of a tile that are sent apart, and the
elements that are picked of one value, are cut at places that are looked up, though all devices cut alike.

By hand, a row of 6 in parts of 2, cut by one kernel: what it reads of the row begins at 0, 2 and 4, as tables say.

>>> mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
>>> def body(row):
...     return tuple(Device.here(("x",)).parts(row, 0, (2, 2, 2)))
>>> function = jax.shard_map(body, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
>>> [part.tolist() for part in function(jax.numpy.arange(6))]
[[0, 1], [2, 3], [4, 5]]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from numpy.typing import NDArray

from reshard.digits import Positions


class Device(NamedTuple):
    """The device that runs a program, where all axes of its mesh are manual."""

    names: tuple[str, ...]
    """Of all axes of the mesh, in its order: a permutation by pairs counts in that order whatever is asked."""
    position: Any
    """Its place in the mesh."""

    @classmethod
    def here(cls, names: tuple[str, ...]) -> Device:
        """The one that a program of all runs on."""
        return cls(names, lax.axis_index(names) if names else np.int32(0))

    def mesh_size(self) -> int:
        """The number of devices of its mesh."""
        return prod(lax.axis_size(name) for name in self.names)

    def row_of(self, table: NDArray[Any] | jax.Array) -> jax.Array:
        """Its row of a table with one per device."""
        return of_device(table, self.position)

    def blanked(self, tile: jax.Array, dim: int, lengths: Positions, blank: Any) -> jax.Array:
        """A tile with one value beyond where it ends in a dim; `lengths` says where, per device."""
        inside = lax.broadcasted_iota(np.int32, tile.shape, dim) < self.row_of(lengths.astype(np.int32))
        return lax.select(inside, tile, lax.full_like(tile, blank))

    def parts(self, array: jax.Array, dim: int, lengths: Sequence[int]) -> list[jax.Array]:
        """The parts of an array along a dim, one after another; on CPUs it is looked up where each begins."""
        if not looks_up_places():
            return list(lax.split(array, lengths, dim))
        parts = list[jax.Array]()
        for first, length in zip(accumulate((0, *lengths[:-1])), lengths, strict=True):
            starts = [first if each == dim else 0 for each in range(array.ndim)]
            parts.append(self.part(array, starts, (*array.shape[:dim], length, *array.shape[dim + 1 :])))
        return parts

    def part(self, array: jax.Array, starts: Sequence[int], shape: Sequence[int]) -> jax.Array:
        """The part of an array that begins at some places, which are looked up."""
        place, looked_up = lax.min(self.position, np.int32(1)), list[Any]()
        for start, length, whole in zip(starts, shape, array.shape, strict=True):
            table = np.array([start, start, -1], np.int32)  # without the last a compiler would know what is read
            looked_up.append(np.int32(0) if length == whole else of_device(table, place))
        return lax.dynamic_slice(array, looked_up, shape, allow_negative_indices=False)


def looks_up_places() -> bool:
    """Whether it pays to look up what all devices know: on CPUs, where every kernel takes long to compile."""
    return jax.default_backend() == "cpu"


def of_device(table: NDArray[Any] | jax.Array, place: Any) -> jax.Array:
    """The row of a table that is for the device at a position."""
    return lax.dynamic_index_in_dim(table, place, keepdims=False, allow_negative_indices=False)
