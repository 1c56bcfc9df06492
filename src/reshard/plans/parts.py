"""A tensor in equal parts, each of which goes through all steps of a plan by itself.

Where steps use different levels of a network, one part can be in the second step while the next is in the first.
A part is made so that it is a tensor like the whole, under the same shardings: along one dim, every run of every tile,
at the source, at the target and between, is a multiple of some unit; each part has its share of every unit.
So a device cuts its tile without asking anybody, and a part takes the steps of the plan, with fewer elements.
The last unit may be cut short where the dim ends; then the last parts have less of it.

By hand, 8 elements cut over 2 devices, then wanted everywhere: runs are of 4 and 8 elements, the unit is 4; of two
parts the first has elements 0, 1, 4 and 5.
Of 7 elements the second part has 2, 3 and 6.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2)
>>> parting = Parting.of((8,), [Sharding.of(mesh, "x"), Sharding.of(mesh, None)])
>>> parting
Parting(dim=0, unit=4)
>>> import numpy as np
>>> [[parting.cut(np.arange(size), 2, number, np.concatenate).tolist() for number in range(2)] for size in (8, 7)]
[[[0, 1, 4, 5], [2, 3, 6, 7]], [[0, 1, 4, 5], [2, 3, 6]]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import gcd
from typing import Any, NamedTuple

from reshard.plans.ended_inside import ended_inside
from reshard.sharding import Sharding
from reshard.tiling import Tiling

Joined = Callable[[list[Any], int], Any]
"""Puts arrays one after the other in a dim: the `concatenate` of an engine."""


class Parting(NamedTuple):
    """Where tiles may be cut in parts."""

    dim: int
    unit: int
    """Elements of the dim of which all runs are multiples, but for those that end with it."""

    @classmethod
    def of(cls, shape: tuple[int, ...], points: Iterable[Sharding], parts: int = 1) -> Parting:
        """The dim with the largest unit; a unit of 1 where there is none.

        Args:
            shape: of the whole tensor.
            points: where it is, from the first to the last.
            parts: into how many parts units must be cut, where any can.
        """
        listed = list(points)
        units = [gcd(*(_unit(point, dim, shape) for point in listed)) for dim in range(len(shape))]
        least = 1 if all(Tiling.of(point, shape).is_even() for point in listed) else parts  # even parts of what is even
        units = [unit or max(-(-size // least) * least, 1) for unit, size in zip(units, shape, strict=True)]
        _, unit, dim = max(((unit % parts == 0, unit, -dim) for dim, unit in enumerate(units)), default=(True, 1, 0))
        return cls(-dim, unit)

    def shape(self, shape: tuple[int, ...], parts: int, number: int = 0) -> tuple[int, ...]:
        """The shape of one of so many parts of the whole tensor; the first is the largest."""
        if not shape:
            return shape
        units, rest = divmod(shape[self.dim], self.unit)
        share = self.unit // parts
        length = units * share + min(max(rest - number * share, 0), share)
        return (*shape[: self.dim], length, *shape[self.dim + 1 :])

    def of_part(self, sharding: Sharding, shape: tuple[int, ...], of_part: tuple[int, ...], parts: int) -> Sharding:
        """How a part lies where the whole lies so.

        Args:
            sharding: of the whole.
            shape: that of the whole.
            of_part: that of the part.
            parts: how many there are.
        """
        if sharding.mesh.is_maximal:
            return sharding
        return ended_inside(sharding, shape, of_part, [parts if dim == self.dim else 1 for dim in range(len(shape))])

    def cut(self, tile: Any, parts: int, number: int, concatenate: Joined) -> Any:
        """What a part has of a tile of any engine."""
        before, size, after = self._split(tile)
        share, (units, rest) = self.unit // parts, divmod(size, self.unit)
        at_dim = (slice(None),) * self.dim
        last = tile[(*at_dim, slice(units * self.unit, size))] if rest else None
        whole = tile[(*at_dim, slice(0, units * self.unit))] if rest else tile
        whole = whole.reshape((*before, units, parts, share, *after))
        part = whole[(*at_dim, slice(None), number)].reshape((*before, units * share, *after))
        if last is None:
            return part
        return concatenate([part, last[(*at_dim, slice(number * share, (number + 1) * share))]], self.dim)

    def joined(self, tiles: Sequence[Any], concatenate: Joined) -> Any:
        """The tile that the parts make up."""
        parts, (before, _, after) = len(tiles), self._split(tiles[0])
        share, at_dim = self.unit // parts, (slice(None),) * self.dim
        size = sum(tile.shape[self.dim] for tile in tiles)
        units, rest = divmod(size, self.unit)
        whole = [tile[(*at_dim, slice(0, units * share))] if rest else tile for tile in tiles]
        rows = [tile.reshape((*before, units, share, *after)) for tile in whole]
        joined = concatenate(rows, self.dim + 1).reshape((*before, units * self.unit, *after))
        if not rest:
            return joined
        return concatenate([joined, *(tile[(*at_dim, slice(units * share, None))] for tile in tiles)], self.dim)

    def _split(self, tile: Any) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
        return tuple(tile.shape[: self.dim]), tile.shape[self.dim], tuple(tile.shape[self.dim + 1 :])


def _unit(sharding: Sharding, dim: int, shape: tuple[int, ...]) -> int:
    """What all runs of a dim are multiples of; 1 where blocks do not lie so, 0 where nothing cuts it."""
    if sharding.mesh.is_maximal:
        return 0
    layout, size = sharding.layout, shape[dim]
    weave = layout.weave(dim)
    if weave is None:
        shards = layout.shards(dim)
        if shards == 1:
            return 0
        in_chunks = sharding.uneven == "chunk" and any(len(stages) > 1 for stages in layout.dims)
        return -(-size // shards) if size and (size % shards == 0 or not in_chunks) else 1
    blocks = weave.local_blocks(size)
    return blocks[-1].length if blocks else 1
