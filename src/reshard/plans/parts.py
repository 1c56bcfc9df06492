"""A tensor in equal parts, each of which goes through all steps of a plan by itself.

Where steps use different levels of a network, one part can be in the second step while the next is in the first.
A part is made so that it is a tensor like the whole, under the same shardings: along one dim, every run of every tile,
at the source, at the target and between, is a multiple of some unit; each part has its share of every unit.
So a device cuts its tile without asking anybody, and a part takes the steps of the plan, with fewer elements.

By hand, 8 elements cut over 2 devices, then wanted everywhere: runs are of 4 and 8 elements, the unit is 4; of two
parts the first has elements 0, 1, 4 and 5.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> from reshard.steps import shortest_chain
>>> mesh = Mesh.of(x=2)
>>> reshard = Reshard.of(Sharding.of(mesh, "x"), Sharding.of(mesh, None), (8,))
>>> parting = Parting.of(reshard, shortest_chain(reshard))
>>> parting
Parting(dim=0, unit=4)
>>> import numpy as np
>>> [parting.cut(np.arange(8), 2, number).tolist() for number in range(2)]
[[0, 1, 4, 5], [2, 3, 6, 7]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import gcd
from typing import Any, NamedTuple

from reshard.layout import Layout
from reshard.problem import Reshard
from reshard.steps import Step

Joined = Callable[[list[Any], int], Any]
"""Puts arrays one after the other in a dim: the `concatenate` of an engine."""


class Parting(NamedTuple):
    """Where tiles may be cut in parts."""

    dim: int
    unit: int
    """Elements of the dim of which all runs are multiples."""

    @classmethod
    def of(cls, reshard: Reshard, steps: Iterable[Step]) -> Parting:
        """The dim with the largest unit; a unit of 1 where there is none."""
        layouts = [end.layout_for(reshard.shape) for end in (reshard.source, *(step.after for step in steps))]
        units = [
            (gcd(*(_unit(layout, dim, size) for layout in layouts)), -dim) for dim, size in enumerate(reshard.shape)
        ]
        unit, dim = max(units, default=(1, 0))
        return cls(-dim, max(unit, 1))

    def shape(self, shape: tuple[int, ...], parts: int) -> tuple[int, ...]:
        """The shape of one of so many parts of the whole tensor."""
        return tuple(size // parts if dim == self.dim else size for dim, size in enumerate(shape))

    def cut(self, tile: Any, parts: int, number: int) -> Any:
        """What a part has of a tile of any engine."""
        before, size, after = tile.shape[: self.dim], tile.shape[self.dim], tile.shape[self.dim + 1 :]
        share = self.unit // parts
        whole = tile.reshape((*before, size // self.unit, parts, share, *after))
        part = whole[(slice(None),) * (self.dim + 1) + (number,)]
        return part.reshape((*before, size // parts, *after))

    def joined(self, tiles: Sequence[Any], concatenate: Joined) -> Any:
        """The tile that the parts make up."""
        parts, (before, size, after) = len(tiles), self._split(tiles[0])
        share = self.unit // parts
        rows = [tile.reshape((*before, size // share, share, *after)) for tile in tiles]
        return concatenate(rows, self.dim + 1).reshape((*before, size * parts, *after))

    def _split(self, tile: Any) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
        return tuple(tile.shape[: self.dim]), tile.shape[self.dim], tuple(tile.shape[self.dim + 1 :])


def _unit(layout: Layout, dim: int, size: int) -> int:
    """The greatest number of elements of which all runs of a dim are multiples; 1 where tiles differ in size."""
    weave = layout.weave(dim)
    if weave is None:
        return size // layout.shards(dim) if size and size % layout.shards(dim) == 0 else 1
    deals = [stage.deal for stage in weave.stages if stage.deal is not None]
    if any(deal.kind not in ("parts", "cycles") or len(deal.numbers) != 1 for deal in deals):
        return 1  # such deals say how many elements there are
    if not weave.is_even(size):
        return 1
    runs = layout.runs(dim, size, held=True)
    return gcd(*runs.start.tolist(), *runs.stop.tolist())
