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
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

import numpy as np

from reshard.box import Box
from reshard.errors import ReshardError
from reshard.layout import Layout
from reshard.sharding import Sharding, checked_shape, with_mesh
from reshard.view.limits import (
    MAX_LINES,
    MAX_WIDTH,
    checked_limits,
    checked_sharding,
    partial_note,
)
from reshard.view.overlay import draw_overlay

MAX_BLOCKS = 2**20
"""Blocks of one dim that are listed at the most."""
MAX_LISTED = 16
"""Blocks, cuts and overlaps of one dim that are written out at the most."""


class Block(NamedTuple):
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


def piece_ranges(
    source: Sharding, target: Sharding, shape: Sequence[int], sender: int, receiver: int
) -> PieceRanges | None:
    """Which indices of a sender's source tile are which of a receiver's target tile; None where they share none.

    Raises:
        ReshardError: `unknown-device`, `rank-mismatch`, `bad-shape`, `too-large`, `bad-argument`.

    >>> mesh = Mesh.of(x=4)
    >>> piece_ranges(Sharding.of(mesh, "x"), Sharding.of(mesh, "x:(2)2"), (8,), sender=3, receiver=1).in_receiver
    Box([(2, 4)])
    """
    source, target = _on_meshes(source, target)
    held, wanted = source.box(sender, shape), target.box(receiver, shape)
    box = held.intersect(wanted)
    if box.is_empty:
        return None
    return PieceRanges(box, _within(box, held), _within(box, wanted))


def overlaps(source: Sharding, target: Sharding, shape: Sequence[int], dim: int) -> list[Overlap]:
    """The intervals of a dim in which one source block meets one target block, in order.

    Raises:
        ReshardError: `rank-mismatch`, `bad-shape`; `too-large` for more than 2**20 blocks; `bad-argument` where
            there is no such dim.

    >>> mesh = Mesh.of(x=2, y=2)
    >>> overlaps(Sharding.of(mesh, "x"), Sharding.of(mesh, ("y", "x")), (4,), 0)[1]
    Overlap(source_block=0, target_block=1, start=1, stop=2)
    """
    return _meet(*_both_blocks(source, target, shape, dim))


def cut_period(source: Sharding, target: Sharding, shape: Sequence[int], dim: int) -> int | None:
    """The length after which the cuts of a dim repeat: S*T / gcd(S, T), for blocks of length S and T.

    It may be longer than the dim, which then ends before anything repeats.
    None where the blocks of a side differ in length other than in the last, and where the dim is empty.

    Raises:
        ReshardError: what `overlaps` raises.

    >>> mesh = Mesh.of(x=2, y=3)
    >>> cut_period(Sharding.of(mesh, "x"), Sharding.of(mesh, ("x", "y")), (20,), 0)    # 10 and 4
    20
    """
    lengths = [_length(blocks) for blocks in _both_blocks(source, target, shape, dim)]
    return lcm(*lengths) if all(lengths) else None


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
    both = [_both_blocks(source, target, sizes, dim) for dim in range(len(sizes))]
    met = [_meet(*blocks) for blocks in both]
    source.layout_for(sizes), target.layout_for(sizes)
    lines: list[str] = []
    if len(sizes) <= 2 and all(sizes):
        owners = tuple(_Owners.of(sharding, sizes, labels) for sharding in (source, target))

        def label(*numbers: int) -> str:
            regions = [overlaps[number] for overlaps, number in zip(met, numbers, strict=True)]
            sides = ([region.source_block for region in regions], [region.target_block for region in regions])
            return " ".join(side.text(blocks) for side, blocks in zip(owners, sides, strict=True))

        cuts = [[0, *(overlap.stop for overlap in overlaps)] for overlaps in met]
        lines += ["each region: who holds it in the source, who in the target"]
        lines += draw_overlay(cuts, label, max_width, max_lines)
        lines += partial_note(source, "in the source each device")
        lines += partial_note(target, "in the target each device")
    for dim, size in enumerate(sizes):
        lines += [""] if lines else []
        lines += _dim_lines(dim, size, both[dim], met[dim])
    return "\n".join(lines)
