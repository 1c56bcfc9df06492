"""Where a tensor of a model lies: on which devices of the world, and how it is cut over them.

A *site* is a sharding with its devices taken apart from its cuts: the cuts of a tensor are the same on every stage of a
pipeline, and only the devices differ.
So what goes from one site to another is found once for all pairs of sites that are cut alike, and a table of positions
becomes one of devices by looking them up.

A dim may be cut as if it were longer: a vocabulary of 10 words that is padded to 16 and cut over 4 devices has blocks
of 4, 4, 2 and 0 words, where one of 10 has blocks of 3.

>>> from reshard.digits import Digits
>>> layout = PaddedLayout(((Digits.of_sizes([4]),),), Digits(), 4, padded=(16,))
>>> [layout.box(position, (10,)) for position in range(4)]
[Box([(0, 4)]), Box([(4, 8)]), Box([(8, 10)]), Box([(10, 10)])]
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from reshard.box import Box
from reshard.digits import Positions, Transposition
from reshard.layout import Layout, Tie
from reshard.mesh import Mesh
from reshard.sharding import Sharding
from reshard.tile import Tile
from reshard.tiling import Tiling


@dataclass(frozen=True)
class PaddedLayout(Layout):
    """A layout whose dims are cut as if they had other sizes, at least their own."""

    padded: tuple[int, ...] = ()
    """Per dim, the size that is cut."""

    def box(self, position: int, shape: Sequence[int]) -> Box:
        """Where the tile of a position lies; what is beyond the tensor belongs to no tile."""
        whole = super().box(position, self.padded)
        ends = [(start, min(stop, size)) for (start, stop), size in zip(whole, shape, strict=True)]
        return Box(
            (start, stop) if start < stop else (size, size) for (start, stop), size in zip(ends, shape, strict=True)
        )

    def blocks(self, dim: int, size: int) -> tuple[Positions, Positions]:
        """Where every block of a dim begins and ends."""
        start, stop = super().blocks(dim, self.padded[dim])
        return np.minimum(start, size), np.minimum(stop, size)

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the memory for a tile, what is padded included."""
        return super().local_shape(self.padded)

    def ties(self, shape: Sequence[int]) -> list[Tie] | None:
        """None: its blocks are not those of the shape, so boxes are compared."""
        return None

    def transposed(self, order: Transposition) -> Layout | None:
        """The layout by the other number of the devices."""
        plain = Layout(self.dims, self.unreduced, self.positions).transposed(order)
        return plain and PaddedLayout(plain.dims, plain.unreduced, plain.positions, padded=self.padded)


@dataclass(frozen=True, eq=False)
class Site:
    """Where tensors of one shape lie; equal to itself alone, as whoever makes sites makes each once."""

    shape: tuple[int, ...]
    cuts: Sharding
    """How they are cut, on a mesh that numbers the site's devices from 0."""
    padded: tuple[int, ...] | None
    """The sizes that are cut, where they are not the shape."""
    devices: Positions
    """The device at each position."""
    family: Hashable
    """Sites of one family share no device, unless they are on the same."""
    place: Hashable
    """Which of the family's it is on; the same for all shapes."""

    @cached_property
    def layout(self) -> Layout:
        """The cuts without names."""
        plain = self.cuts.layout_for(self.shape)
        if self.padded is None or self.padded == self.shape:
            return plain
        return PaddedLayout(plain.dims, plain.unreduced, plain.positions, padded=self.padded)

    @cached_property
    def sharding(self) -> Sharding:
        """The sharding, on a mesh of the site's devices; padding cuts it elsewhere than it says."""
        mesh = Mesh(self.cuts.mesh.axes, tuple(self.devices.tolist()))
        return replace(self.cuts, mesh=mesh)

    @cached_property
    def position_of(self) -> dict[int, int]:
        """The position of each device."""
        return {device: position for position, device in enumerate(self.devices.tolist())}

    def box(self, device: int) -> Box:
        """Where the tile of a device lies.

        Raises:
            ReshardError: `cannot-express` where it is not one box.
        """
        return self.layout.box(self.position_of[device], self.shape)

    def tile(self, device: int) -> Box | Tile:
        """What a device holds: a box, or several in one array.

        Raises:
            ReshardError: `cannot-express` where a window makes it another array than of its boxes.
        """
        return self.box(device) if self.cuts.has_windows else self.layout.tile(self.position_of[device], self.shape)

    def memory_shape(self, device: int) -> tuple[int, ...]:
        """The shape of a device's memory for its tile: the tile's own, unless it is padded to the largest."""
        is_padded = isinstance(self.layout, PaddedLayout)
        return self.layout.local_shape(self.shape) if is_padded else self.tile(device).shape

    def tiling(self, mesh: Mesh) -> Tiling:
        """The tiling on a mesh of as many devices."""
        return Tiling(mesh, self.layout, self.shape)

    @cached_property
    def holders(self) -> tuple[Positions, Positions]:
        """Per position, the first that holds the same tile, and its number among those that do."""
        number = self.layout.free.index_of(np.arange(len(self.devices), dtype=np.int64))
        return np.arange(len(number)) - self.layout.free.offsets()[number], number
