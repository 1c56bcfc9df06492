"""From a tile of the result of an operation to the part of its operand that it is made of.

An element of the result at index o of a dim is made of the elements o · stride − low + t · dilation of the operand, for
t = 0 … kernel − 1: that is a convolution, a pooling, a roll, a slice, a pad, a reversal.
So a run [first, last) of the result needs, with a stride above 0,

    [first · stride − low, (last − 1) · stride − low + (kernel − 1) · dilation + 1)

and what lies outside of the operand goes round or is filled.
Where an element of the result is any one element of the operand, a run needs all from the first to the last of these.
Where the elements of the operand are spread, as a transposed convolution has them, that is a run of places of which
every `spread`-th is one of them.

By hand, a kernel of 3 over 7 elements padded by 1, on 3 devices: each owns 3, 3 and 1, and needs one more on each side.

>>> from reshard.mesh import Mesh
>>> rows = Sharding.of(Mesh.of(x=3), "x")
>>> window_for({0: Reach(kernel=3, low=1)}, rows, rows, (7,)).text()
'[{"x", window(-1:4, 2:7, 5:8, pad)}]'
>>> window_for({0: Reach(low=2, edge="wrap")}, rows, rows, (7,)).text()  # roll by 2
'[{"x", window(-2:1, 1:4, 4:5, wrap)}]'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reshard.checks import checked_shape, expect
from reshard.deal import EDGES, LARGEST, Window
from reshard.errors import ReshardError
from reshard.layout import Layout
from reshard.sharding import Sharding


@dataclass(frozen=True, slots=True)
class Reach:
    """Which elements of a dim of the operand an element of the result is made of.

    Rules, in the order checked:
        bad-argument: all are integers below 2**31, kernel, dilation and spread at least 1, stride not 0
        bad-window: the edge is `clip`, `wrap` or `pad`
        bad-argument: places are integers below 2**31
    """

    kernel: int = 1
    """How many."""
    stride: int = 1
    """How far apart those of neighbours in the result are; -1 reverses."""
    dilation: int = 1
    """How far apart those of one element are."""
    low: int = 0
    """How many elements before its own the first of the result begins: the padding, or the shift of a roll."""
    edge: str = "pad"
    """What is beyond the ends of the operand."""
    spread: int = 1
    """How far apart the elements of the operand stand where the kernel goes over it; nothing is between them."""
    places: tuple[int, ...] = ()
    """Per element of the result the one element that it is, below 0 for none; where given, nothing else counts."""

    def __post_init__(self) -> None:
        for name in ("kernel", "stride", "dilation", "low", "spread"):
            if abs(expect(getattr(self, name), int, f"the {name} of a reach")) >= 2**31:
                raise ReshardError("bad-argument", f"the {name} of a reach must be below 2**31")
        if min(self.kernel, self.dilation, self.spread) < 1 or not self.stride:
            raise ReshardError(
                "bad-argument", f"a reach must have kernel, dilation and spread above 0, and a stride, got: {self}"
            )
        if expect(self.edge, str, "the edge of a reach", "bad-window") not in EDGES:
            raise ReshardError("bad-window", f"the edge of a reach must be one of {', '.join(EDGES)}, got: {self.edge}")
        for place in expect(self.places, tuple, "the places of a reach"):
            if abs(expect(place, int, "a place of a reach")) >= 2**31:
                raise ReshardError("bad-argument", "the places of a reach must be below 2**31")

    def of(self, first: int, last: int) -> tuple[int, int]:
        """The run of the operand that a run of the result is made of.

        >>> Reach(kernel=3, stride=2, dilation=2, low=1).of(4, 6), Reach(kernel=3, low=2, spread=2).of(4, 6)
        ((7, 14), (1, 3))
        """
        if self.places:
            known = [place for place in self.places[first:last] if place >= 0]
            return (min(known), max(known) + 1) if known else (0, 0)
        if first >= last:
            return (0, 0)
        ends = sorted((first * self.stride - self.low, (last - 1) * self.stride - self.low))
        low, high = ends[0], ends[1] + (self.kernel - 1) * self.dilation + 1
        return -(-low // self.spread), -(-high // self.spread)

    def window(self, layout: Layout, dim: int, size: int) -> Window:
        """What the shards of a dim of the result are made of, each a run of the operand.

        Where the operand is reversed and nothing is clipped, a shard counts as long as the longest: so the last element
        of its window is that of which its first is made.

        Raises:
            ReshardError: `cannot-express` where shards are not one block each; `too-large`.
        """
        starts, stops = layout.blocks(dim, size)
        if self.stride < 0 and self.edge != "clip":
            stops = np.where(stops > starts, starts + (stops - starts).max(initial=0), stops)
        spans = [self.of(*run) for run in zip(starts.tolist(), stops.tolist(), strict=True)]
        if max((abs(end) for span in spans for end in span), default=0) >= LARGEST:
            raise ReshardError("too-large", f"the windows of {self} are beyond 2**62")
        return Window.of([span if span[0] < span[1] else (0, 0) for span in spans], self.edge)


def window_for(operation: Mapping[int, Reach], operand: Sharding, result: Sharding, sizes: Sequence[int]) -> Sharding:
    """Where the operand of an operation must be, for every device to make its tile of the result.

    Args:
        operation: per dim in which an element of the result is made of others than its own, which.
        operand: where the operand is; in the other dims it stays there.
        result: where the result is wanted, on the same mesh; in the dims of the operation its cut is taken.
        sizes: of the result.

    Raises:
        ReshardError: `rank-mismatch`, `different-meshes`, `bad-shape`, `bad-argument`; `cannot-express` where the
            result deals a dim of the operation in turns or holds windows of it.
    """
    sizes = checked_shape(sizes)
    expect(operand, Sharding, "where the operand is")
    layout = expect(result, Sharding, "where the result is").layout_for(sizes)
    if operand.mesh != result.mesh:
        raise ReshardError("different-meshes", f"the operand is on {operand.mesh}, the result on {result.mesh}")
    if len(operand.dims) != len(sizes):
        raise ReshardError("rank-mismatch", f"{operand.text()} has {len(operand.dims)} dims, the result {len(sizes)}")
    dims = list(operand.dims)
    for dim, reach in expect(operation, dict, "an operation").items():
        if not 0 <= expect(dim, int, "a dim of an operation") < len(sizes):
            raise ReshardError("rank-mismatch", f"dim {dim} is none of {len(sizes)} dims")
        expect(reach, Reach, "what an operation reaches")
        dims[dim] = replace(result.dims[dim], window=reach.window(layout, dim, sizes[dim]))
    return replace(operand, dims=tuple(dims), uneven=result.uneven)
