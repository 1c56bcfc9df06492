"""Which boxes an exchange of any kind sends in which round: each round one permutation, of boxes of one shape.

**One unit.** A round costs every device a whole box, whether it has one to send or not, so rounds of many shapes
in which few devices take part are dear.
Pieces are then cut into boxes of one shape, per dim the greatest common divisor of their lengths.

By hand, a transposition on 2 x 3: source tiles of 3 x 2 in a 6 x 6 tensor, target tiles of 2 x 3; boxes have the
shapes 2 x 2, 2 x 1, 1 x 2 and 1 x 1, and in six rounds every device handles 4 + 2 + 2 + 2 + 2 + 1 = 13 elements.
In boxes of 1 x 1 there are six rounds too, and 6 elements.

**Hops.** Along a ring a box goes from neighbour to neighbour, and what a device hands on is what came to it in the hop
before.
Boxes of one shape whose ways never meet at a device are a *lane*, which is a round in each hop: from the second on its
boxes are those that came in its round before, as they are, so that nobody looks up which.

By hand, a ring of 4 on which 0 and 1 hold the first half of 8, 2 and 3 the second, and all want all: of the half that a
device lacks half comes from each side, two hops for who is away from its holders.

>>> from reshard.digits import Digit
>>> from reshard.exchange.ring import around
>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> from reshard.tiling import Tiling
>>> mesh = Mesh.of(a=2, b=2)
>>> ends = (Tiling.of(Sharding.of(mesh, axes), (8,)) for axes in ("a", None))
>>> for number, each in enumerate(rounds_of(around(*ends, Digit(1, 4)))):
...     print(number, each.hop, each.shape, each.pairs, each.handed_on)
0 0 (4,) ((0, 0), (1, 1), (2, 2), (3, 3)) None
1 1 (2,) ((0, 3), (1, 2), (2, 1), (3, 0)) None
2 2 (2,) ((0, 1), (1, 0), (2, 3), (3, 2)) 1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby, product
from math import gcd, prod
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from reshard.box import Box
from reshard.digits import Positions
from reshard.exchange import DigitExchange, Exchange, Piece, RingExchange, schedule
from reshard.exchange.by_digits import senders_by_round
from reshard.jax.exchange.joint import DeviceRun, GroupCall
from reshard.tile import Tile

Flags = NDArray[np.bool_]


class Starts(NamedTuple):
    """Where the box of each device starts."""

    table: NDArray[Any]
    """One row per position, one column per dim."""
    is_known: Flags
    """Per position whether it has a box: else any start will do."""

    @classmethod
    def of(cls, devices: int, positions: Positions, starts: Positions) -> Starts:
        """Of some of so many devices."""
        table = np.zeros((devices, starts.shape[1]), dtype=np.int64)
        is_known = np.zeros(devices, dtype=np.bool_)
        table[positions], is_known[positions] = starts, True
        return cls(table, is_known)


class Round(NamedTuple):
    """One box from each sender to one receiver; all of one shape."""

    shape: tuple[int, ...]
    senders: Positions
    """Positions in the target, each at most once."""
    receivers: Positions
    """Positions, in the order of `senders`."""
    cut: Positions
    """Per pair where the box starts in the sender's tile, unless it is handed on; one column per dim."""
    put: Positions
    """Per pair where the box starts in the receiver's tile, if it is wanted there."""
    is_wanted: Flags
    """Per pair whether the box is part of the receiver's tile: else it comes to be handed on alone."""
    hop: int = 0
    """From 1 along a ring, where rounds of one hop between the same devices are sent as one."""
    handed_on: int | None = None
    """The number of the round whose boxes are sent on as they came; None where boxes are cut out of tiles."""
    of_kept: bool = False
    """Whether boxes are cut out of the tiles that devices kept from before, and not of source tiles."""

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Senders and receivers."""
        return tuple(zip(self.senders.tolist(), self.receivers.tolist(), strict=True))

    @property
    def is_local(self) -> bool:
        """Whether nothing is sent."""
        return bool((self.senders == self.receivers).all())

    def sent(self, box: jax.Array) -> DeviceRun:
        """The box that a device receives, from the one that it sends."""
        if self.is_local:
            return box
        return (yield GroupCall("ppermute", self.pairs, box))

    def cuts(self, devices: int) -> Starts:
        """Where boxes are cut, of so many devices."""
        return Starts.of(devices, self.senders, self.cut)

    def puts(self, devices: int) -> Starts:
        """Where boxes are put, of so many devices."""
        return Starts.of(devices, self.receivers[self.is_wanted], self.put[self.is_wanted])

    def receives(self, devices: int) -> Flags:
        """Per position, of so many, whether its device receives a box of its tile."""
        return np.isin(np.arange(devices), self.receivers[self.is_wanted])


def rounds_of(exchange: Exchange) -> list[Round]:
    """The rounds of an exchange over the same devices, in any order; those in which nothing is sent come first.

    Where every round is a permutation of all devices, boxes that stay on their device go with it.
    """
    is_woven = bool(exchange.source.layout.weaves or exchange.target.layout.weaves)
    in_one_order = exchange.source.same_order_as(exchange.target) and not is_woven
    if exchange.is_even and isinstance(exchange, DigitExchange) and not exchange.spread and in_one_order:
        return _permutations(exchange)
    devices = exchange.target.mesh.device_array.tolist()
    pieces = [piece for device in devices for piece in exchange.incoming(device)]
    if isinstance(exchange, RingExchange):
        return _along_ring(exchange, pieces, [piece for device in devices for piece in exchange.passing(device)])
    pieces = _side_by_side(exchange, pieces) if is_woven else pieces
    return [*_staying(exchange, pieces), *(_round(exchange, of_round) for of_round in _travelling(pieces))]


def _staying(exchange: Exchange, pieces: Sequence[Piece]) -> list[Round]:
    """The rounds of boxes that stay on their device: of its source tile, then of the one that it kept."""
    of_tiles = [
        [piece for piece in pieces if exchange.is_kept(piece.sender, piece.box) == of_kept] for of_kept in (False, True)
    ]
    return [_round(exchange, each) for some in of_tiles for each in schedule(some, one_shape=True, staying=True)]


def _permutations(exchange: DigitExchange) -> list[Round]:
    positions = exchange.source.mesh.positions
    held, goal = np.zeros((2, len(positions), len(exchange.target.shape)), np.int64)
    for starts, tiling in ((held, exchange.source), (goal, exchange.target)):
        for dim, (start, _) in enumerate(tiling.all_bounds):
            starts[:, dim] = start
    rounds = []
    for senders in senders_by_round(exchange.common.digits, exchange.determined_by, exchange.gathered, positions):
        start = np.maximum(held[senders], goal)
        is_wanted = np.ones_like(positions, dtype=np.bool_)
        rounds.append(Round(exchange.piece_shape, senders, positions, start - held[senders], start - goal, is_wanted))
    return rounds


def _side_by_side(exchange: Exchange, pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces, cut where what is one box in the tensor does not lie side by side at an end."""
    ends = (exchange.source, "sender"), (exchange.target, "receiver")
    for tiling, end in ends:
        if not (tiling.layout.has_windows or tiling.layout.is_summed):
            continue
        tiles = {device: tiling.tile(device) for device in tiling.mesh.devices}
        pieces = [
            piece._replace(box=box)
            for piece in pieces
            for tile in [tiles[getattr(piece, end)]]
            for box in (tile.boxes_of(piece.box) if isinstance(tile, Tile) else [piece.box])
        ]
    return list(pieces)


def _travelling(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """The pieces that travel, in rounds of one shape; in boxes of one unit where devices then handle fewer elements."""
    sent = [piece for piece in pieces if piece.sender != piece.receiver]
    rounds = schedule(sent, one_shape=True)
    if len({piece.box.shape for piece in sent}) < 2:
        return rounds
    unit = [gcd(*lengths) for lengths in zip(*(piece.box.shape for piece in sent), strict=True)]
    busy: Counter[tuple[int, bool]] = Counter()
    for piece in sent:
        busy[piece.sender, False] += piece.box.size
        busy[piece.receiver, True] += piece.box.size
    handled = max(busy.values())  # as many rounds as the busiest device has units
    if 4 * (handled // prod(unit)) > 5 * len(rounds) or handled >= sum(alike[0].box.size for alike in rounds):
        return rounds
    return schedule(
        piece._replace(box=box_at(start, unit))
        for piece in sent
        for start in product(*(range(low, high, length) for (low, high), length in zip(piece.box, unit, strict=True)))
    )


def _along_ring(exchange: RingExchange, coming: Sequence[Piece], passing: Sequence[Piece]) -> list[Round]:
    """The rounds of boxes that stay, and those of each lane, hop by hop; those of the same pairs side by side."""
    rounds = _staying(exchange, coming)
    wanted, lanes = (
        {*coming},
        _lanes(exchange, _ways(exchange, [piece for piece in (*coming, *passing) if piece.round])),
    )
    numbers = dict[int, int]()
    for hop in range(exchange.hops):
        of_hop = {
            lane: _round(exchange, pieces, wanted, numbers.get(lane))
            for lane, ways in enumerate(lanes)
            if (pieces := sorted(way[hop] for way in ways if hop < len(way)))
        }
        in_order = sorted(of_hop, key=lambda lane: of_hop[lane].pairs)
        numbers = {lane: len(rounds) + number for number, lane in enumerate(in_order)}
        rounds += [of_hop[lane] for lane in in_order]
    return rounds


Way = list[Piece]
"""A box on its way along a ring, hop by hop."""


def _ways(exchange: RingExchange, pieces: Sequence[Piece]) -> list[Way]:
    """All ways that pieces go along rings: by shape, then those that begin onwards, the longest first."""
    following = {(piece.sender, piece.box, piece.round): piece for piece in pieces if piece.round > 1}
    ways = [[piece] for piece in pieces if piece.round == 1]
    for way in ways:
        while (piece := following.get((way[-1].receiver, way[-1].box, way[-1].round + 1))) is not None:
            way.append(piece)
    mesh = exchange.target.mesh

    def order(way: Way) -> tuple[Any, ...]:
        sender, receiver = (mesh.position_of(device) for device in way[0][:2])
        ahead = [(ring.value(receiver) - ring.value(sender)) % ring.size for ring in exchange.rings]
        return way[0].box.shape, exchange.is_kept(way[0].sender, way[0].box), ahead, -len(way), way[0]

    return sorted(ways, key=order)


def _lanes(exchange: RingExchange, ways: Iterable[Way]) -> list[list[Way]]:
    """Ways in lanes, each in the first in which no device then sends or receives two boxes in a hop.

    Boxes of a lane are of one shape, and cut out of source tiles, or out of those that were kept.
    """
    lanes: list[list[Way]] = []
    for _, alike in groupby(ways, key=lambda way: (way[0].box.shape, exchange.is_kept(way[0].sender, way[0].box))):
        busy: list[set[tuple[int, int, bool]]] = []
        first = len(lanes)
        for way in alike:
            ends = {(piece.round, *end) for piece in way for end in ((piece.sender, False), (piece.receiver, True))}
            number = next((number for number, taken in enumerate(busy) if ends.isdisjoint(taken)), len(busy))
            if number == len(busy):
                busy.append(set())
                lanes.append([])
            busy[number] |= ends
            lanes[first + number].append(way)
    return lanes


def _round(
    exchange: Exchange, pieces: Sequence[Piece], wanted: Collection[Piece] | None = None, handed_on: int | None = None
) -> Round:
    """Pieces of one shape; along a ring `wanted` are those of target tiles."""
    source, target, of_kept = exchange.source, exchange.target, False
    if handed_on is None and exchange.kept is not None and exchange.is_kept(pieces[0].sender, pieces[0].box):
        source, of_kept = exchange.kept, True
    is_wanted = np.array([wanted is None or piece in wanted for piece in pieces], dtype=np.bool_)

    def starts(tiles: Iterable[Box | Tile | None]) -> Positions:
        """Where boxes start in tiles, of those that are given."""
        rows = np.zeros((len(pieces), len(target.shape)), dtype=np.int64)
        for row, piece, tile in zip(rows, pieces, tiles, strict=True):
            if tile is not None:
                row[:] = [along.start for along in tile.places(piece.box)[0][0]]
        return rows

    return Round(
        pieces[0].box.shape,
        target.mesh.positions_of(np.array([piece.sender for piece in pieces])),
        target.mesh.positions_of(np.array([piece.receiver for piece in pieces])),
        starts(source.tile(piece.sender) if handed_on is None else None for piece in pieces),
        starts(target.tile(piece.receiver) if into else None for piece, into in zip(pieces, is_wanted, strict=True)),
        is_wanted,
        0 if wanted is None else pieces[0].round,
        handed_on,
        of_kept,
    )


def lanes_of(rounds: Sequence[Round]) -> list[list[Round]]:
    """The rounds, those together in which the same boxes are handed on."""
    lanes: list[list[Round]] = []
    lane_of_round: list[list[Round]] = []
    for round_ in rounds:
        if round_.handed_on is None:
            lanes.append([])
        lane_of_round.append(lanes[-1] if round_.handed_on is None else lane_of_round[round_.handed_on])
        lane_of_round[-1].append(round_)
    return lanes


def box_at(start: Sequence[int], size: Sequence[int]) -> Box:
    """The box of a size that begins somewhere."""
    return Box((low, low + length) for low, length in zip(start, size, strict=True))
