"""Two shardings laid over each other: where their cuts fall, and who sends what to whom.

Along a dim, the cuts of the source and those of the target divide it into the intervals in which one source block
meets one target block.
With source blocks of length S and target blocks of length T, both cut at every multiple of S*T / gcd(S, T), the
least common multiple, so this *period* is the length after which the cuts of a long dim repeat.
What a sender has for a receiver is one such interval per dim.

By hand, 12 elements on 2 devices that go to 3, S = 6 and T = 4: the source cuts at 6, the target at 4 and 8.

>>> from reshard.mesh import Mesh
>>> source, target = Sharding.of(Mesh.of(x=2), "x"), Sharding.of(Mesh.of(y=3), "y")
>>> for overlap in overlaps(source, target, (12,), 0):
...     print(*overlap)
0 0 0 4
0 1 4 6
1 1 6 8
1 2 8 12
>>> cut_period(source, target, (12,), 0)
12

The same for the ranges of (k, l, u, v) in d1(m, n)[k, l] = d2(p, q)[u, v]: a K x L tensor on an M x N mesh, from
`[{"m"}, {"n"}]` to `[{"n"}, {"m"}]`.

>>> mesh = Mesh.of(m=2, n=3)
>>> source, target = Sharding.of(mesh, "m", "n"), Sharding.of(mesh, "n", "m")
>>> piece = piece_ranges(source, target, (12, 12), sender=1, receiver=3)    # m=0, n=1 to p=1, q=0
>>> print(piece.in_sender, "->", piece.in_receiver)
[0, 4) x [2, 4) -> [0, 4) x [0, 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, NamedTuple

import numpy as np

from reshard.box import Box
from reshard.checks import checked_shape
from reshard.digits import Digits
from reshard.errors import ReshardError
from reshard.exchange.pieces import block_overlaps
from reshard.layout import Layout
from reshard.sharding import Sharding, with_mesh
from reshard.view.limits import MAX_LINES, MAX_WIDTH, checked_limits, checked_sharding, partial_note
from reshard.view.overlay import draw_overlay

MAX_BLOCKS = 2**20
"""Blocks of one dim that are listed at the most."""
MAX_OWNERS = 4
"""Devices that are named in a region at the most."""
MAX_LISTED = 16
"""Blocks, cuts and overlaps of one dim that are written out at the most."""


class DimBlock(NamedTuple):
    """A part of a dim that a sharding keeps together, and that is not empty."""

    number: int
    """Its place among the parts of the dim, the empty ones counted."""
    start: int
    stop: int


class Overlap(NamedTuple):
    """Where a source block meets a target block."""

    source_block: int
    """The number of the block among the parts into which the source cuts the dim."""
    target_block: int
    """The same in the target."""
    start: int
    """The first element of the dim that is in both."""
    stop: int
    """The first after those."""


@dataclass(frozen=True, slots=True)
class PieceRanges:
    """The elements that a sender's tile and a receiver's tile share."""

    box: Box
    """In the tensor."""
    in_sender: Box
    """In the sender's source tile."""
    in_receiver: Box
    """In the receiver's target tile."""


@dataclass(frozen=True, slots=True)
class _Cuts:
    """How one sharding cuts one dim."""

    layout: Layout
    dim: int
    size: int
    """The size of the dim."""
    blocks: list[DimBlock]
    """The parts that are not empty, in order."""
    length: int
    """The length of every block, the last of which may be shorter; 0 where they differ or there is none."""

    @classmethod
    def of(cls, sharding: Sharding, shape: Sequence[int], dim: Any) -> _Cuts:
        """The cuts, from the boxes of the sharding."""
        layout = sharding.layout_for(shape)
        if not isinstance(dim, int | np.integer) or not 0 <= dim < len(shape):
            raise ReshardError("bad-argument", f"shape {tuple(shape)} has no dim {dim!r}")
        dim, size = int(dim), int(shape[dim])
        shards = layout.shards(dim)
        if shards > MAX_BLOCKS:
            raise ReshardError("too-large", f"dim {dim} is cut into {shards} blocks; {MAX_BLOCKS} can be listed")
        starts, stops = (ends.tolist() for ends in layout.blocks(dim, size))
        ranges = zip(range(shards), starts, stops, strict=True)
        blocks = [DimBlock(number, start, stop) for number, start, stop in ranges if start < stop]
        length = blocks[0].stop if blocks else 0
        is_common = all(
            start == place * length and stop - start <= length for place, (_, start, stop) in enumerate(blocks)
        )
        return cls(layout, dim, size, blocks, length if is_common else 0)

    @property
    def is_numbered(self) -> bool:
        """Whether no empty part stands before one that is not empty."""
        return all(block.number == place for place, block in enumerate(self.blocks))

    def summary(self) -> str:
        """The number and the lengths of the blocks."""
        lengths = [block.stop - block.start for block in self.blocks]
        shards = self.layout.shards(self.dim)
        empty = f"; {shards - len(lengths)} of {shards} empty" if shards > len(lengths) else ""
        count = f"{len(lengths)} block{'s' * (len(lengths) > 1)} of "
        if not self.length:
            listed = ", ".join(map(str, lengths[:MAX_LISTED])) + (", ..." if len(lengths) > MAX_LISTED else "")
            return f"{count}{listed}{empty}"
        last = f", the last of {lengths[-1]}" if lengths[-1] < self.length else ""
        return f"{count}{self.length}{last}{empty}"


def piece_ranges(
    source: Sharding, target: Sharding, shape: Sequence[int], sender: int, receiver: int
) -> PieceRanges | None:
    """Which indices of a sender's source tile are which of a receiver's target tile; None where they share none.

    Raises:
        ReshardError: `unknown-device`, `rank-mismatch`, `bad-shape`, `too-large`, `bad-argument`.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(x=4)
    >>> piece_ranges(Sharding.of(mesh, "x"), Sharding.of(mesh, "x:(2)2"), (8,), sender=3, receiver=1).in_receiver
    Box([(2, 4)])
    """
    source, target = _on_meshes(source, target)
    sent_from, placed_in = source.box(sender, shape), target.box(receiver, shape)
    box = sent_from.intersect(placed_in)
    if box.is_empty:
        return None
    return PieceRanges(box, box.within(sent_from), box.within(placed_in))


def overlaps(source: Sharding, target: Sharding, shape: Sequence[int], dim: int) -> list[Overlap]:
    """The intervals of a dim in which one source block meets one target block, in order.

    Raises:
        ReshardError: `rank-mismatch`, `bad-shape`; `too-large` for more than 2**20 blocks; `bad-argument` where
            there is no such dim.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(x=2, y=2)
    >>> overlaps(Sharding.of(mesh, "x"), Sharding.of(mesh, ("y", "x")), (4,), 0)[1]
    Overlap(source_block=0, target_block=1, start=1, stop=2)
    """
    return _meet(*_both_cuts(source, target, shape, dim))


def cut_period(source: Sharding, target: Sharding, shape: Sequence[int], dim: int) -> int | None:
    """The length after which the cuts of a dim repeat: S*T / gcd(S, T), for blocks of length S and T.

    It may be longer than the dim, which then ends before anything repeats.
    None where the blocks of a side differ in length other than in the last, and where the dim is empty.

    Raises:
        ReshardError: what `overlaps` raises.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(x=2, y=3)
    >>> cut_period(Sharding.of(mesh, "x"), Sharding.of(mesh, ("x", "y")), (20,), 0)    # 10 and 4
    20
    """
    return _period(*_both_cuts(source, target, shape, dim))


def draw_cuts(
    source: Sharding,
    target: Sharding,
    shape: Sequence[int],
    *,
    labels: str = "devices",
    max_width: int = MAX_WIDTH,
    max_lines: int = MAX_LINES,
) -> str:
    """The tensor with the cuts of both shardings, then for every dim its blocks, period, cuts and overlaps.

    A tensor of one or two dims is drawn as a grid of regions, with the indices at which it is cut.
    In each region stand the devices that hold it in the source, and behind them those that hold it in the target;
    devices that hold the same are joined by `/`.
    Blocks are counted from 0, those that are empty too.

    Args:
        source: who holds what before.
        target: who holds what after.
        shape: the shape of the tensor.
        labels: `devices` names a device by its number, `coordinates` by its place along each axis of its mesh,
            counted from 1, as in 23.
        max_width: columns of the picture; one that does not fit leaves out regions and says so.
        max_lines: lines of the picture.

    Raises:
        ReshardError: `rank-mismatch`, `bad-shape`; `too-large` for more than 2**20 blocks; `bad-argument`.

    >>> from reshard.mesh import Mesh
    >>> print(draw_cuts(Sharding.of(Mesh.of(x=2), "x"), Sharding.of(Mesh.of(y=3), "y"), (6,)))
    each region: who holds it in the source, who in the target
    0           2     3     4           6
    +-----------+-----+-----+-----------+
    |    0 0    | 0 1 | 1 1 |    1 2    |
    +-----------+-----+-----+-----------+
    <BLANKLINE>
    dim 0, size 6
      source: 2 blocks of 3
      target: 3 blocks of 2
      period: 3*2 / gcd(3, 2) = 6, the size of the dim
      cuts: 2 target, 3 source, 4 target
      [0, 2): source block 0, target block 0
      [2, 3): source block 0, target block 1
      [3, 4): source block 1, target block 1
      [4, 6): source block 1, target block 2
    """
    source, target = _on_meshes(source, target)
    checked_limits(max_width, max_lines)
    if labels not in ("devices", "coordinates"):
        raise ReshardError("bad-argument", f"labels must be devices or coordinates, got: {labels!r}")
    sizes = checked_shape(shape)
    owners = [_Owners.of(sharding, sizes, labels) for sharding in (source, target)]
    dim_cuts = [_both_cuts(source, target, sizes, dim) for dim in range(len(sizes))]
    meetings = [_meet(*cuts) for cuts in dim_cuts]

    def label(*numbers: int) -> str:
        regions = [along[number] for along, number in zip(meetings, numbers, strict=True)]
        blocks = ([region.source_block for region in regions], [region.target_block for region in regions])
        return " ".join(side.text(numbers) for side, numbers in zip(owners, blocks, strict=True))

    lines: list[str] = []
    if len(sizes) <= 2 and all(sizes):
        lines.append("each region: who holds it in the source, who in the target")
        lines += draw_overlay(
            [[0, *(overlap.stop for overlap in along)] for along in meetings], label, max_width, max_lines
        )
    lines += partial_note(source, "in the source each device") + partial_note(target, "in the target each device")
    for dim, cuts in enumerate(dim_cuts):
        lines += ["", *_dim_lines(dim, *cuts, meetings[dim])] if lines else _dim_lines(dim, *cuts, meetings[dim])
    return "\n".join(lines)


def draw_holders(
    sharding: Sharding, shape: Sequence[int], *, max_width: int = MAX_WIDTH, max_lines: int = MAX_LINES
) -> str:
    """The tensor with the devices that hold each part of it; those that hold the same are joined by `/`.

    A tensor of one or two dims is drawn as a grid, with the indices at which it is cut; of others, and where a tile
    is several boxes, the tiles are listed.

    Raises:
        ReshardError: as `draw_cuts`.

    >>> from reshard.mesh import Mesh
    >>> print(draw_holders(Sharding.of(Mesh.of(x=2, y=2), "x", None), (4, 4)))
      0     4
    0 +-----+
      | 0/1 |
    2 +-----+
      | 2/3 |
    4 +-----+
    """
    checked_limits(max_width, max_lines)
    sizes = checked_shape(shape)
    if checked_sharding(sharding).is_woven or len(sizes) > 2 or not all(sizes):
        tiles = sharding.tiles(sizes)
        lines = [f"{' and '.join(map(str, boxes)) or 'nothing'}: {'/'.join(map(str, devices))}"
                 for boxes, devices in list(tiles.items())[:max_lines]]  # fmt: skip
        return "\n".join([*lines, *([f"{len(tiles) - len(lines)} more tiles"] if len(lines) < len(tiles) else [])])
    owners = _Owners.of(sharding, sizes, "devices")
    cuts = [_Cuts.of(sharding, sizes, dim) for dim in range(len(sizes))]

    def label(*numbers: int) -> str:
        return owners.text([cut.blocks[number].number for cut, number in zip(cuts, numbers, strict=True)])

    ends = [[0, *(block.stop for block in cut.blocks)] for cut in cuts]
    return "\n".join(draw_overlay(ends, label, max_width, max_lines))


@dataclass(frozen=True, slots=True)
class _Owners:
    """Names the devices that hold a tile, given the number of its block in each dim."""

    sharding: Sharding
    layout: Layout
    free: Digits
    """The digits of the position that cut no dim: they run over the devices that hold a tile."""
    by_coordinates: bool

    @classmethod
    def of(cls, sharding: Sharding, shape: Sequence[int], labels: str) -> _Owners:
        """The owners under one sharding."""
        layout = sharding.layout_for(shape)
        free = replace(layout, unreduced=Digits()).free
        return cls(sharding, layout, free, labels == "coordinates" and bool(sharding.mesh.axes))

    def text(self, blocks: Sequence[int]) -> str:
        """The names, joined."""
        copies = self.free.size
        named = copies if copies <= MAX_OWNERS else MAX_OWNERS - 1
        first = sum(digits.offset_of(number) for digits, number in zip(self.layout.cutting, blocks, strict=True))
        names = [self._name(first + self.free.offset_of(copy)) for copy in range(named)]
        return "/".join(names + ([f"+{copies - named}"] if named < copies else []))

    def _name(self, position: int) -> str:
        mesh = self.sharding.mesh
        device = mesh.device_at(position)
        if not self.by_coordinates:
            return str(device)
        return ("," if max(mesh.sizes.values()) > 9 else "").join(str(along + 1) for along in mesh.coordinates(device))


def _on_meshes(source: Sharding, target: Sharding) -> tuple[Sharding, Sharding]:
    checked_sharding(source), checked_sharding(target)
    return with_mesh(source, target.mesh), with_mesh(target, source.mesh)


def _both_cuts(source: Sharding, target: Sharding, shape: Sequence[int], dim: int) -> tuple[_Cuts, _Cuts]:
    source, target = _on_meshes(source, target)
    return _Cuts.of(source, shape, dim), _Cuts.of(target, shape, dim)


def _meet(source: _Cuts, target: _Cuts) -> list[Overlap]:
    """Where the blocks of two sides meet."""
    columns = block_overlaps(source.layout, target.layout, source.dim, source.size)
    return list(map(Overlap, *(column.tolist() for column in columns[:4])))


def _period(source: _Cuts, target: _Cuts) -> int | None:
    return lcm(source.length, target.length) or None


def _dim_lines(dim: int, source: _Cuts, target: _Cuts, meetings: list[Overlap]) -> list[str]:
    """What is said about one dim."""
    size, period = source.size, _period(source, target)
    if len(meetings) < 2:
        whole = "nothing to cut" if not meetings else "not cut"
        return [f"dim {dim}, size {size}: {whole}"]
    lines = [f"dim {dim}, size {size}", f"  source: {source.summary()}", f"  target: {target.summary()}"]
    if period is None:
        sides = " and ".join(name for name, side in (("source", source), ("target", target)) if not side.length)
        lines.append(f"  period: none, as blocks of the {sides} differ in length")
    else:
        remark = "the size of the dim"
        if period != size:
            remark = "longer than the dim" if period > size else "after which the cuts repeat"
        a, b = source.length, target.length
        lines.append(f"  period: {a}*{b} / gcd({a}, {b}) = {period}, {remark}")
    repeats = period is not None and period < size and source.is_numbered and target.is_numbered
    listed = [overlap for overlap in meetings if not repeats or overlap.start < (period or size)]
    lines.append(f"  cuts: {_cut_list(listed, source, target)}")
    lines += [
        f"  [{start}, {stop}): source block {ours}, target block {theirs}"
        for ours, theirs, start, stop in listed[:MAX_LISTED]
    ]
    if len(listed) > MAX_LISTED:
        lines.append(f"  left out: {len(listed) - MAX_LISTED} further overlaps, up to {listed[-1].stop}")
    if repeats and period is not None:
        steps = f"source block + {period // source.length}, target block + {period // target.length}"
        lines.append(f"  and so on up to {size}: every {period} further on, {steps}")
    return lines


def _cut_list(listed: list[Overlap], source: _Cuts, target: _Cuts) -> str:
    """The indices between the overlaps that are listed, and after the last where the dim goes on."""
    source_starts = {block.start for block in source.blocks}
    target_starts = {block.start for block in target.blocks}
    stops = [overlap.stop for overlap in listed if overlap.stop < source.size]
    texts = [
        f"{stop} {'both' if stop in source_starts & target_starts else 'source' if stop in source_starts else 'target'}"
        for stop in stops[:MAX_LISTED]
    ]
    return ", ".join(texts + (["..."] if len(stops) > MAX_LISTED else []))
