"""Windows that are summed: each owner takes what others hold of its elements, and adds.

It is the transpose of filling windows, piece by piece: what a window took from an owner, the owner takes from the
window.
The ends are the duals of those of the fill, so that where a tensor is replicated the gradient is partial, and each
class of partial values is added by itself.

By hand, 4 elements on 2 devices, each with the other's nearest beside its own two: device 0 owns 0 and 1 and holds a
contribution to 2, device 1 owns 2 and 3 and holds one to 1.

>>> from reshard.exchange.by_boxes import by_boxes
>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> owned = Sharding.of(Mesh.of(x=2), "x")
>>> summed = owned.with_halo({0: (1, 1)}, summed=True)
>>> exchange = overlap_add(Tiling.of(summed, (4,)), Tiling.of(owned, (4,)), by_boxes)
>>> for piece in exchange.incoming(0):
...     print(piece.sender, piece.box)
0 [0, 2)
1 [1, 2)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from reshard.digits import Positions
from reshard.exchange.pieces import Exchange, Piece
from reshard.tiling import Tiling


@dataclass(frozen=True)
class OverlapAdd(Exchange):
    """The pieces of a fill, the other way."""

    source: Tiling
    target: Tiling
    fill: Exchange
    """From the dual of the target to the dual of the source."""

    def incoming(self, device: int) -> list[Piece]:
        pieces = self.fill.outgoing(device)
        return sorted(Piece(piece.receiver, device, piece.box, piece.round) for piece in pieces)

    def outgoing(self, device: int) -> list[Piece]:
        pieces = self.fill.incoming(device)
        return sorted(Piece(device, piece.sender, piece.box, piece.round) for piece in pieces)

    @property
    def rounds(self) -> int:
        return self.fill.rounds

    @property
    def piece_shape(self) -> tuple[int, ...]:
        return self.fill.piece_shape

    def all_received(self) -> Positions:
        received = np.zeros_like(self.target.mesh.positions)
        _, receivers, elements = self.traffic()
        np.add.at(received, self.target.mesh.positions_of(receivers), elements)
        return received

    def traffic(self) -> tuple[Positions, Positions, Positions]:
        receivers, senders, elements = self.fill.traffic()
        return senders, receivers, elements

    def received_elements_on(self, device: int) -> int:
        """How many elements of its own others hold contributions to: it must receive one for each at the least."""
        boxes = [piece.box for piece in self.incoming(device) if piece.sender != device]
        if not boxes:
            return 0
        edges = [np.unique([end for box in boxes for end in box[dim]]) for dim in range(len(boxes[0]))]
        inside = np.zeros([len(ends) - 1 for ends in edges], dtype=np.bool_)
        for box in boxes:
            ends = zip(edges, box, strict=True)
            inside[tuple(slice(*np.searchsorted(places, interval).tolist()) for places, interval in ends)] = True
        cells = np.ix_(*(np.diff(ends) for ends in edges))
        return int((inside * prod(cells, start=np.ones((), np.int64))).sum())


def overlap_add(source: Tiling, target: Tiling, fill: Callable[[Tiling, Tiling], Exchange]) -> OverlapAdd:
    """The exchange from summed windows to their owners.

    Args:
        source: whose windows are summed.
        target: without windows.
        fill: finds the exchange of which it is the transpose.

    Raises:
        ReshardError: as `fill`.
    """
    duals = (replace(end, layout=end.layout.dual()) for end in (target, source))
    return OverlapAdd(source, target, fill(*duals))
