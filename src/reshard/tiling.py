"""A tensor of one shape, laid over the devices of a mesh: what exchanges, steps and figures ask of a sharding.

A sharding fits tensors of many shapes; with the shape said once, sizes are numbers, and those that many ask for are
derived once.

By hand, 5 rows on x=2: the first device holds 3 of them, the other 2.

>>> from reshard.mesh import Mesh
>>> tiling = Tiling.of(Sharding.of(Mesh.of(x=2), "x"), (5,))
>>> tiling.largest_tile, tiling.is_even(), tiling.all_elements.tolist()
(3, False, [3, 2])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from reshard.box import Box
from reshard.checks import checked_shape
from reshard.digits import Positions, spread
from reshard.layout import Layout
from reshard.mesh import Mesh
from reshard.sharding import Sharding
from reshard.tile import Tile


@dataclass(frozen=True)
class Tiling:
    """A tensor of one shape, laid over the devices of a mesh."""

    mesh: Mesh
    layout: Layout
    shape: tuple[int, ...]

    @classmethod
    def of(cls, sharding: Sharding, shape: Sequence[int]) -> Tiling:
        """The tiling of a tensor of this shape."""
        shape = checked_shape(shape)
        return cls(sharding.mesh, sharding.layout_for(shape), shape)

    def box(self, device: int) -> Box:
        """Where the tile of a device lies.

        Raises:
            ReshardError: `cannot-express` where it is not one box.
        """
        return self.layout.box(self.mesh.position_of(device), self.shape)

    def tile(self, device: int, *, once: bool = False) -> Box | Tile:
        """What the array of a device holds: a box, or what answers the same questions; `once` as of `Layout.tile`."""
        return self.layout.tile(self.mesh.position_of(device), self.shape, once=once)

    def elements(self, device: int) -> int:
        """The number of elements of the tensor that a device's tile holds; 0 where it has none."""
        if device not in self.mesh:
            return 0
        if self.layout.weaves:
            return int(self.all_elements[self.mesh.position_of(device)])
        return self.box(device).size

    def owned(self) -> Tiling:
        """The same without windows."""
        return replace(self, layout=self.layout.owned())

    def same_order_as(self, other: Tiling) -> bool:
        """Whether both name the same devices in the same order."""
        return self.mesh.same_order_as(other.mesh)

    @cached_property
    def largest_tile(self) -> int:
        """The number of elements of the largest tile."""
        return prod(self.layout.local_shape(self.shape))

    @property
    def classes(self) -> int:
        """The number of classes of unreduced values: how many are combined into one where nothing is unreduced."""
        return self.layout.unreduced.size

    def is_even(self) -> bool:
        """Whether all tiles have one shape."""
        if self.layout.weaves:
            return all(
                size % self.layout.shards(dim) == 0 if weave is None else weave.is_even(size)
                for dim, (size, weave) in enumerate(zip(self.shape, self.layout.weaves, strict=True))
            )
        return not any(size % parts for size, parts in zip(self.shape, self.layout.parts, strict=True))

    @cached_property
    def all_bounds(self) -> list[tuple[Positions, Positions]]:
        """Per dim, where the tile of each position starts and stops."""
        return self.layout.bounds(self.shape, len(self.mesh.positions))

    @cached_property
    def some_bounds(self) -> list[tuple[Positions, Positions]]:
        """The same of the positions that stand for all."""
        return self.layout.bounds(self.shape, spread(self.mesh.size))

    @cached_property
    def all_elements(self) -> Positions:
        """The number of elements of the tensor that the tile at each position holds."""
        sizes = np.ones_like(self.mesh.positions)
        if self.layout.weaves:
            for dim, size in enumerate(self.shape):
                sizes *= self.layout.lengths(dim, size)[self.layout.cutting[dim].index_of(self.mesh.positions)]
            return sizes
        for size, parts, (start, stop) in zip(self.shape, self.layout.parts, self.all_bounds, strict=True):
            sizes *= size if parts == 1 else stop - start
        return sizes
