"""The closed list of steps: each leads from one sharding to another and knows what that costs.

    Slice          every device has its target tile already; nothing is sent
    Permute        whole tiles change places
    AllGather      axes leave the dims: tiles are joined
    AllToAll       axes move from dim to dim
    ReduceScatter  unreduced axes move to the dims: partial values are combined where they are needed
    AllReduce      unreduced axes leave: partial values are combined, and everybody gets the result
    Exchange       any other way from sharding to sharding
    ToUnreduced    replicated or sharded axes become unreduced; nothing is sent

All that communicate are the exchange of `reshard.exchange`; a name says that it is exactly that collective.
A `Step` is checked when it is built: its name must be the right one, so a plan made of steps is a proof.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=4)
>>> step = Step(Reshard.of(Sharding.of(mesh, "x", "y"), Sharding.of(mesh, "x", None), (8, 8), "f32"))
>>> step.kind, step.rounds, step.received_bytes
('AllGather', 3, 96)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from reshard.axis import Axis, aligned, sorted_and_merged
from reshard.checks import LIMIT, expect, shown
from reshard.digits import Digit, Positions
from reshard.dtypes import DType
from reshard.errors import ReshardError
from reshard.exchange import (
    DigitExchange,
    Exchange,
    OverlapAdd,
    Piece,
    combine_then_gather,
    overlap_elements,
)
from reshard.problem import Reshard, becomes_unreduced
from reshard.refinement import Role, Unreduced
from reshard.sharding import Sharding
from reshard.tiling import Tiling

KINDS = ("Slice", "Permute", "AllGather", "AllToAll", "ReduceScatter", "AllReduce", "Exchange", "ToUnreduced")
"""Every kind of step."""
UNNAMED = ""
CACHED = 4096
"""Steps that are kept."""


class Move(NamedTuple):
    """One exchange of a step, and how what arrives for one box is combined."""

    exchange: Exchange
    reduction: str | None
    """None where every element arrives once."""
    classes: int
    """The number of unreduced values that are combined into one."""
    fill: str | None = None
    """The reduction whose identity stands where no piece comes; None where pieces cover every tile.

    Where pieces are combined too, each is combined with what stands there, for they overlap.
    """

    @property
    def one_way(self) -> Move:
        """The same where devices that would rest send in place of those that receive, if there are such.

        See `DigitExchange.one_way`; what works on both at once, as the ranks of gloo, is then done sooner.
        """
        exchange = self.exchange
        return self._replace(exchange=exchange.one_way) if isinstance(exchange, DigitExchange) else self


@dataclass(frozen=True)
class Contributions(Exchange):
    """Where values become unreduced: the box that a device keeps of its tile, if it keeps any; nothing is sent."""

    source: Tiling
    target: Tiling
    keeps_all: bool
    """Whether every device keeps what it has, as under avg; else the first of those that have the same."""
    rounds = 0
    piece_shape = ()

    def incoming(self, device: int) -> list[Piece]:
        """What the device has itself, where it keeps it."""
        position, tile = self.source.mesh.position_of(device), self.source.tile(device)
        is_first = all(digit.value(position) == 0 for digit in _newly_unreduced(self.source, self.target))
        boxes = [box for box in tile.owned_boxes() if not box.is_empty]
        return [Piece(device, device, box, 0) for box in boxes if is_first or self.keeps_all]

    outgoing = incoming

    def all_received(self) -> Positions:
        """Nothing."""
        return np.zeros_like(self.target.mesh.positions)

    def traffic(self) -> tuple[Positions, Positions, Positions]:
        """None."""
        return (np.zeros(0, np.int64),) * 3


class ReshardWork:
    """What a step and a plan have of the reshard that they do; pickled by their fields, without what these derive."""

    reshard: Reshard
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""
        return self.reshard.shape

    @property
    def dtype(self) -> DType:
        """Of its elements."""
        return self.reshard.dtype


@dataclass(frozen=True)
class Step(ReshardWork):
    """One step of a plan.

    Rules, in the order checked:
        bad-argument: every field is of its kind, `near` at least 0 and `chunks` at least 1
        too-large: the tiles of all devices together can be counted
        bad-step: a step of this kind leads from `before` to `after`; no one step does where values become unreduced
            along some axes while others move, nor along a ring where anything changes outside it, or is combined, nor
            where devices keep tiles of partial values, with windows, or on another mesh
    """

    reshard: Reshard
    """What the step moves, and from where to where."""
    kind: str = UNNAMED
    """One of `KINDS`; given empty, the right one takes its place."""
    near: int = 0
    """The stride of the position from which on a replica at the receiver's own value sends; 0 for even shares.
    Where it is 1, replicas also combine partial values each by itself."""
    chunks: int = 1
    """In how many parts, along its longest dim, a piece goes one after the other."""
    ring: Digit | None = None
    """The places along a ring of the network, as a digit of the position, along which devices hand on to their
    neighbours what others further on need; None for the senders that `near` says."""
    kept: Sharding | None = None
    """Of tiles that devices still have from before the step, as well as those of `before`: what a device holds there is
    not sent to it, and along a ring may be sent from it."""
    across: Digit | None = None
    """The places along another ring, where the devices at x, y of both change places with those at y, x, along both."""

    def __post_init__(self) -> None:
        expect(self.reshard, Reshard, "what a step does")
        if not 0 <= expect(self.near, int, "near") < LIMIT or not 1 <= expect(self.chunks, int, "chunks") < LIMIT:
            raise ReshardError("bad-argument", "near must be at least 0, chunks at least 1, and both below 2**62")
        if self.ring is not None:
            expect(self.ring, Digit, "the ring of a step")
        if self.kept is not None:
            expect(self.kept, Sharding, "what is kept in a step")
        if self.across is not None:
            expect(self.across, Digit, "the other ring of a step")
            if self.ring is None or self.kept is not None:
                raise ReshardError("bad-step", "devices change places along two rings, whatever they kept")
        if expect(self.kind, str, "the kind of a step", "bad-step") != UNNAMED and self.kind not in KINDS:
            raise ReshardError("bad-step", f"a step must be one of {', '.join(KINDS)}, got: {shown(self.kind)}")
        ends = self.reshard.tilings
        for tiling in ends:
            devices = tiling.layout.positions
            elements = max(tiling.largest_tile * devices * ends[0].classes, prod(self.shape))
            if elements * self.dtype.itemsize >= LIMIT:
                raise ReshardError(
                    "too-large", f"shape {self.shape} of {self.dtype} on {devices} devices is beyond 2**62 bytes"
                )
        if becomes_unreduced(self.before, self.after):
            if self.kept is not None:
                raise ReshardError("bad-step", "where values become partial nothing is sent that devices could keep")
            _check_to_unreduced(self.before, self.after, *ends)
            kind = "ToUnreduced"
        else:
            kind = _kind_of(self._exchanges)
        if self.kind == UNNAMED:
            object.__setattr__(self, "kind", kind)
        elif self.kind != kind:
            raise ReshardError(
                "bad-step", f"{self.before.text()} -> {self.after.text()} is a step of kind {kind}, not {self.kind}"
            )

    @property
    def before(self) -> Sharding:
        """The sharding that the step starts from."""
        return self.reshard.source

    @property
    def after(self) -> Sharding:
        """The sharding that the step leads to."""
        return self.reshard.target

    @cached_property
    def _exchanges(self) -> tuple[Exchange, ...]:
        kept = None if self.kept is None else Tiling.of(self.kept, self.shape)
        return combine_then_gather(*self.reshard.tilings, self.near, self.ring, kept, self.across)

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """The exchanges that do it, in order; none for ToUnreduced."""
        if self.kind == "ToUnreduced":
            return ()
        classes = self.reshard.tilings[0].classes // self.reshard.tilings[1].classes
        first, *rest = self._exchanges
        if isinstance(first, OverlapAdd):
            return (Move(first, "sum", 1, fill="sum"),)
        if self.after.is_summed:
            return (Move(first, None, 1, fill="sum"),)
        reduction = self.before.reduction if classes > 1 else None
        return (Move(first, reduction, classes), *(Move(exchange, None, 1) for exchange in rest))

    @property
    def transfers(self) -> tuple[Move, ...]:
        """What engines run, in order: the moves; for ToUnreduced, what every device keeps."""
        reduction = self.after.reduction
        contributions = Contributions(*self.reshard.tilings, keeps_all=reduction == "avg")
        return self.moves or (Move(contributions, None, 1, fill=reduction),)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes whose part changes, by their names in `before` (in `after`, where that has another mesh)."""
        return _changed_axes(self.before, self.after)

    @cached_property
    def rounds(self) -> int:
        """The number of rounds in which a device sends and receives at most one piece.

        Raises:
            ReshardError: `too-large` where the pieces are too many to list.
        """
        return self.chunks * sum(move.exchange.rounds for move in self.moves)

    @cached_property
    def received_bytes(self) -> int:
        """Bytes that the busiest device receives from others."""
        if len(self.moves) == 1:
            return self.moves[0].exchange.received * self.dtype.itemsize
        return int(self.all_received_bytes().max(initial=0)) if self.moves else 0

    @cached_property
    def total_received_bytes(self) -> int:
        """Bytes that all devices together receive from others."""
        return sum(move.exchange.total_received for move in self.moves) * self.dtype.itemsize

    def received_bytes_on(self, device: int) -> int:
        """Bytes that one device receives from others.

        Raises:
            ReshardError: `unknown-device`.
        """
        if device not in self.before.mesh and device not in self.after.mesh:
            raise ReshardError("unknown-device", f"device {device} is in neither mesh of the step")
        exchanges = [move.exchange for move in self.moves if device in move.exchange.target.mesh]
        return sum(exchange.received_on(device) for exchange in exchanges) * self.dtype.itemsize

    def all_received_bytes(self) -> Positions:
        """Per position of the mesh of `after`, the bytes that its device receives from others."""
        total = np.zeros_like(self.after.mesh.positions)
        for move in self.moves:
            total += move.exchange.all_received() * self.dtype.itemsize
        return total

    @property
    def peak_bytes(self) -> int:
        """Bytes that a device needs at most: tiles before and after, a refined tile between, one chunk of a piece.

        Each is the largest over the devices, so their sum may be a little more than any device needs.
        """
        return self.peak_bytes_in(self.chunks)

    def peak_bytes_in(self, chunks: int) -> int:
        """What `peak_bytes` would be with pieces in so many chunks."""
        return (
            sum(tiling.largest_tile for tiling in self.reshard.tilings) * self.dtype.itemsize
            + self.between_bytes
            + self.buffer_bytes_in(chunks)
        )

    @property
    def between_bytes(self) -> int:
        """Bytes of the refined tile between two moves."""
        return sum(move.exchange.target.largest_tile for move in self.moves[:-1]) * self.dtype.itemsize

    def buffer_bytes_in(self, chunks: int) -> int:
        """Bytes of the largest piece, or of one of its chunks."""
        pieces = []
        for move in self.moves if self.kind != "Slice" else ():
            longest = max(move.exchange.piece_shape, default=1)
            pieces.append(-(-longest // chunks) * (move.exchange.largest_piece // max(longest, 1)))
        return max(pieces, default=0) * self.dtype.itemsize

    @property
    def most_chunks(self) -> int:
        """The number of chunks beyond which they get no smaller: the longest dim of a piece."""
        return max((longest for move in self.moves for longest in move.exchange.piece_shape), default=1) or 1


@lru_cache(CACHED)
def step_of(
    reshard: Reshard,
    near: int = 0,
    ring: Digit | None = None,
    kept: Sharding | None = None,
    across: Digit | None = None,
) -> Step:
    """The one step between these ends; kept, for chains that are compared have many steps in common.

    Raises:
        ReshardError: as `Step`.
    """
    return Step(reshard, near=near, ring=ring, kept=kept, across=across)


def _kind_of(exchanges: tuple[Exchange, ...]) -> str:
    """The collective that the exchanges are; Exchange where they are no other."""
    first, last = exchanges[0], exchanges[-1]
    if first.source.layout.weaves or last.target.layout.weaves:
        adds = isinstance(first, OverlapAdd) or first.source.classes != last.target.classes
        return "Slice" if not adds and first.is_without_messages else "Exchange"
    if isinstance(first, DigitExchange) and first.stays and first.gathered_values == 1:
        return "Slice"
    may_stay = not isinstance(first, DigitExchange) or not first.is_even or 0 in first.target.shape
    if may_stay and first.source.classes == last.target.classes and first.is_without_messages:
        return "Slice"
    if len(exchanges) == 2:
        same_dims = first.source.layout.dims == last.target.layout.dims
        return "AllReduce" if same_dims and first.source.same_order_as(last.target) else "Exchange"
    if not isinstance(first, DigitExchange):
        moves_tiles = first.source.classes == first.target.classes and _same_blocks(first.source, first.target)
        return "Permute" if moves_tiles else "Exchange"
    if first.gathered_values == 1 and _local_shape(first.source) == _local_shape(first.target):
        return "Permute"
    if not first.stays or not first.source.same_order_as(first.target):
        return "Exchange"
    roles = zip(first.common.source_roles, first.common.target_roles, strict=True)
    changes = {_change(before, after) for before, after in roles if before != after}
    return changes.pop() if len(changes) == 1 else "Exchange"


def _same_blocks(before: Tiling, after: Tiling) -> bool:
    """Whether both cut every dim at the same places, for as many devices: then whole tiles change places."""
    layouts = before.layout, after.layout
    return layouts[0].positions == layouts[1].positions and all(
        layouts[0].shards(dim) == layouts[1].shards(dim)
        and all(map(np.array_equal, layouts[0].blocks(dim, size), layouts[1].blocks(dim, size)))
        for dim, size in enumerate(before.shape)
    )


def _local_shape(tiling: Tiling) -> tuple[int, ...]:
    return tiling.layout.local_shape(tiling.shape)


def _change(before: Role, after: Role) -> str:
    """The collective that changes the role of a digit so."""
    if isinstance(before, Unreduced):
        return "AllReduce" if after is None else "ReduceScatter"
    return "Exchange" if before is None else "AllGather" if after is None else "AllToAll"


def _check_to_unreduced(before: Sharding, after: Sharding, *tilings: Tiling) -> None:
    """Refuse where a device would need anything but its own tile."""
    text = f"{before.text()} -> {after.text()}"
    if not tilings[0].same_order_as(tilings[1]) or (
        tilings[0].layout.unreduced and before.reduction != after.reduction
    ):
        raise ReshardError("bad-step", f"{text} moves values while they become partial")
    if tilings[0].layout.unreduced.without(tilings[1].layout.unreduced):
        raise ReshardError("bad-step", f"{text} combines values while others become partial")
    if after.reduction == "avg" and tilings[0].layout.dims != tilings[1].layout.dims:
        raise ReshardError("no-plan", f"{text} would make parts partial under avg; only whole values can be")
    contributed, whole = tilings[0].all_elements.copy(), tilings[1].all_elements
    inside = overlap_elements(tilings[0], tilings[1]) == contributed
    for digit in _newly_unreduced(*tilings):
        contributed[digit.value(before.mesh.positions) > 0] = 0
    becoming = tilings[1].layout.unreduced.without(tilings[0].layout.unreduced)
    group = before.mesh.positions - becoming.offsets()[becoming.index_of(before.mesh.positions)]
    sums = np.zeros_like(contributed)
    np.add.at(sums, group, contributed)
    complete = after.reduction == "avg" or np.array_equal(sums[group], whole)
    if not complete or not np.all(inside | (contributed == 0)):
        raise ReshardError("bad-step", f"{text} moves values while they become partial")


def _newly_unreduced(before: Tiling, after: Tiling) -> list[Digit]:
    """The digits that are unreduced after and replicated before."""
    return [part for digit in after.layout.unreduced for part in before.layout.free.within(digit)]


def _changed_axes(before: Sharding, after: Sharding) -> tuple[Axis, ...]:
    if before.mesh != after.mesh:
        return tuple(Axis(name) for name, _ in after.mesh.axes)
    sizes = before.mesh.sizes
    roles: list[dict[Axis, tuple[int, int]]] = []
    used = [[axis for dim in s.dims for axis in dim.axes] + list(s.unreduced) for s in (before, after)]
    cut = aligned(used[0], used[1], sizes)
    for sharding, pieces in zip((before, after), cut, strict=True):
        places: dict[Axis, tuple[int, int]] = {}
        lists = [*(dim.axes for dim in sharding.dims), sharding.unreduced]
        for number, axes in enumerate(lists):
            inside = [piece for axis in axes for piece in pieces if axis.contains(piece)]
            shards = 1  # into which the axes major to this one cut the dim
            for piece in inside:
                places[piece] = (number, shards if number < len(sharding.dims) else 0)
                shards *= piece.size_in(sizes[piece.name])
        roles.append(places)
    pairs = zip(before.dims, after.dims, strict=False)
    woven = {n for n, (one, other) in enumerate(pairs) if (one.deals, one.window) != (other.deals, other.window)}
    changed = [
        axis
        for axis in dict.fromkeys([*roles[0], *roles[1]])
        if roles[0].get(axis) != roles[1].get(axis) or roles[1][axis][0] in woven
    ]
    return sorted_and_merged(changed, sizes)
