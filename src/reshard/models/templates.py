"""What goes from one site to another, found once for all tensors that agree in it.

Tensors of one shape, dtype, source and target are a *group*, and groups whose sites are cut alike share their *moves*:
pieces by positions, of which a group's devices are looked up.
Where a tile has several holders, each repetition of a group takes the next of them: repetition n takes holder
(n + first) mod R, so that layers and experts load all replicas alike.

By hand: two of three tensors whose rows lie whole on devices 0 and 1 go to device 2, the first from 0, the next from 1.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> ends = [Sharding.of(Mesh.of(x=2), None), Sharding.of(Mesh.of(x=1), None)]
>>> source, target = (Site((4,), end, None, np.array(at), 0, 0) for end, at in zip(ends, [[0, 1], [2]]))
>>> moves = moves_between(source, target, np.array([-1]))
>>> [moves.senders(np.array([turn])).tolist() for turn in range(3)]
[[[0]], [[1]], [[0]]]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.digits import Positions
from reshard.dtypes import DType
from reshard.exchange import Exchange, PieceTable, find_exchange
from reshard.mesh import Mesh
from reshard.models.sites import Site

EVERY = slice(None)


@dataclass(frozen=True, eq=False)
class Moves:
    """The pieces from one site to another, by positions, as they are where the first holder begins."""

    exchange: Exchange
    base: Positions
    """Per position of the source, the first that holds the same tile."""
    number: Positions
    """Per position of the source, its number among those."""
    offsets: Positions
    """What to add to the first holder to reach each."""

    @cached_property
    def table(self) -> PieceTable:
        """All pieces."""
        return self.exchange.table()

    @cached_property
    def stays(self) -> NDArray[np.bool_]:
        """Which pieces a device takes from itself."""
        meshes = self.exchange.source.mesh, self.exchange.target.mesh
        places = meshes[0].positions_of(meshes[1].device_array)
        return np.asarray(self.table.senders == places[self.table.receivers])

    @property
    def replicas(self) -> int:
        """How many devices hold each tile of the source."""
        return len(self.offsets)

    @cached_property
    def received(self) -> Positions:
        """Per position of the target, the elements that come from others."""
        return self._summed(self.table.receivers, len(self.exchange.target.mesh.devices))

    @cached_property
    def sent(self) -> Positions:
        """Per position of the source, the elements that go to others."""
        return self._summed(self.table.senders, len(self.exchange.source.mesh.devices))

    @cached_property
    def missing(self) -> Positions:
        """Per position of the target, the elements that it lacks: counted from boxes alone, not from pieces."""
        return self.exchange.all_missing()

    def _summed(self, positions: Positions, count: int) -> Positions:
        sizes = np.where(self.stays, 0, self.table.elements)
        return np.bincount(positions, sizes, count).astype(np.int64)

    def senders(self, turns: Positions, rows: Positions | slice = EVERY) -> Positions:
        """Who sends some pieces, in each of some turns: a row per turn."""
        senders = self.table.senders[rows]
        turned = self.base[senders] + self.offsets[(self.number[senders] + turns[:, None]) % self.replicas]
        return np.where(self.stays[rows], senders, turned)

    def sent_in(self, first: int, count: int) -> Positions:
        """Per position of the source, the elements that go to others in so many turns from the first on."""
        replicas = self.replicas
        by_holder = np.zeros((len(self.base), replicas), dtype=np.int64)
        by_holder[self.base, self.number] = self.sent
        whole, rest = divmod(count, replicas)
        total = np.repeat(by_holder.sum(axis=1)[:, None] * whole, replicas, axis=1)
        if rest:
            sums = np.concatenate([np.zeros((len(by_holder), 1), np.int64), by_holder, by_holder], axis=1).cumsum(
                axis=1
            )
            last = (np.arange(replicas) - first) % replicas + replicas
            total += sums[:, last + 1] - sums[:, last + 1 - rest] if rest <= replicas else 0
        return total[self.base, self.number]

    def box(self, row: int, part: int = 0, parts: int = 1) -> Box:
        """The box of a piece, or of one of the parts that it is cut into along its longest dim."""
        box = Box(zip(self.table.starts[:, row].tolist(), self.table.stops[:, row].tolist(), strict=True))
        if parts == 1:
            return box
        shape = box.shape
        dim = shape.index(max(shape))
        low, length = box[dim][0], shape[dim]
        cut = (low + length * part // parts, low + length * (part + 1) // parts)
        return Box([*box[:dim], cut, *box[dim + 1 :]])

    def largest_part(self, parts: int) -> tuple[int, int]:
        """The most elements that a device receives, and sends, of one part of all pieces."""
        lengths = self.table.stops - self.table.starts
        longest = lengths.max(axis=0, initial=1)
        sizes = np.where(self.stays, 0, self.table.elements // np.maximum(longest, 1) * -(-longest // parts))
        ends = self.table.receivers, self.table.senders
        return tuple(int(np.bincount(end, sizes).max(initial=0)) for end in ends)  # type: ignore[return-value]

    @cached_property
    def most(self) -> tuple[int, int]:
        """The most elements that a device receives, and sends, of one tensor."""
        return int(self.received.max(initial=0)), int(self.sent.max(initial=0))

    @cached_property
    def rows_into(self) -> dict[int, Positions]:
        """Per position of the target, the rows of the pieces that come into it."""
        return _rows_by(self.table.receivers)

    @cached_property
    def rows_from(self) -> dict[int, Positions]:
        """Per position of the source, the rows of the pieces that leave it for others, in turn 0."""
        travels = np.flatnonzero(~self.stays)
        return {place: travels[rows] for place, rows in _rows_by(self.table.senders[travels]).items()}


def _rows_by(positions: Positions) -> dict[int, Positions]:
    if not len(positions):
        return {}
    order = np.argsort(positions, kind="stable")
    found, starts = np.unique(positions[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True))


def moves_between(source: Site, target: Site, places: Positions | None) -> Moves:
    """What goes from one site to another.

    Args:
        source: where the tensor is.
        target: where it goes.
        places: per position of the target, the position of its device in the source, or -1; None where they share none.
    """
    count = len(source.devices)
    beyond = np.arange(count, count + len(target.devices))
    ids = beyond if places is None else np.where(places >= 0, places, beyond)
    meshes = Mesh((("a", count),)), Mesh((("a", len(ids)),), tuple(ids.tolist()))
    exchange = find_exchange(source.tiling(meshes[0]), target.tiling(meshes[1]))
    return Moves(exchange, *source.holders, source.layout.free.offsets())


@dataclass(eq=False)
class TensorGroup:
    """Tensors that agree in shape, dtypes, source and target."""

    source: Site
    target: Site
    dtypes: tuple[DType, DType]
    """Of the source, and of the target."""
    moves: Moves
    members: list[int] = field(default_factory=list)
    """The numbers of the tensors."""
    first: int = 0
    """The holder that the first repetition takes."""

    @property
    def wire(self) -> DType:
        """What travels: the smaller of the two."""
        return min(self.dtypes, key=lambda dtype: dtype.itemsize)

    def turns(self) -> Positions:
        """Per member, the holder that it takes."""
        return (np.arange(len(self.members)) + self.first) % self.moves.replicas

    def by_turn(self, members: Positions) -> list[tuple[int, Positions]]:
        """The members, as an array, by the turn that they have."""
        turns = self.turns()
        return [(int(turn), members[turns == turn]) for turn in np.unique(turns)]
