"""The least time that combining values takes, by all transfers together.

A cut counts what crosses in one direction, so of an all-reduce it sees that values come in, or that they leave.
Both must be, one after the other.
Let devices be grouped in blocks. An element that no block has all values of is whole in some block first; until then
every other value that it is made of has left a block, and afterwards all other blocks that need it receive.
So with values in `p` blocks, and `r` blocks that need the element, at least

    p + r - 2    transfers lead from block to block, and one more where no block that needs it has a value

Elements are moved whole, and all transfers together take their bytes over the capacity between all blocks.
Where one block has all values this counts what the others lack, which cuts do as well.

By hand, 4 devices on a ring with two-way links of one byte/s hold parts of 64 bytes that all want: 3 transfers to
combine and 3 to spread, of 64 bytes each, over 8 links; a cut says 64 bytes into one device by 2 links.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> mesh, network = Mesh.of(x=4), Network((Level(1, 4, "ring", 1, 0),))
>>> summed = Reshard.of(Sharding.of(mesh, None, unreduced="x"), Sharding.of(mesh, None), (64,), "int8")
>>> transfers = least_transfers(summed, network)
>>> print(transfers)
384 B between 4 blocks at 8 bytes/s
>>> transfers.seconds, transfers.blocks(network).tolist()
(48.0, [0, 1, 2, 3])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import inf, prod
from typing import Any

import numpy as np

from reshard.digits import Digit, Digits, Positions
from reshard.network.crossing import Placed, Sides
from reshard.network.least_time import best_cut
from reshard.network.level import Level
from reshard.network.networks import Network, check_reach
from reshard.problem import Reshard
from reshard.refinement import Role, Unreduced
from reshard.tables import bytes_text, rate_text
from reshard.tiling import Tiling

CACHED = 1024
"""Reshards whose transfers are kept."""
MOST_DIGITS = 8
"""Of more digits only the outermost tell blocks apart one by one."""
FURTHER = 3
"""Where tiles differ in size, in how many ways blocks are told apart and counted box by box."""
MOST_BY_BOXES = 2**28
"""Blocks times values times cells that are compared box by box."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """Blocks of devices, the bytes that must go from block to block in all, and the capacity for these."""

    digits: Digits
    """Of the device number; where they agree devices are in one block."""
    transferred_bytes: int
    """Of all transfers together, at the least."""
    bandwidth: float
    """Bytes/s of all links and ports together that lead from block to block."""

    @property
    def seconds(self) -> float:
        """What no plan goes below."""
        return self.transferred_bytes / self.bandwidth

    def blocks(self, network: Network) -> Positions:
        """The number of the block of every device."""
        return self.digits.index_of(np.arange(network.size))

    def as_dict(self) -> dict[str, Any]:
        """The fields and the seconds, as JSON keeps them."""
        return {
            "digits": [list(digit) for digit in self.digits],
            "transferred_bytes": self.transferred_bytes,
            "bandwidth": self.bandwidth,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        return f"{bytes_text(self.transferred_bytes)} between {self.digits.size} blocks at {rate_text(self.bandwidth)}"


@lru_cache(CACHED)
def least_transfers(reshard: Reshard, network: Network) -> Transfers | None:
    """The transfers that take longest, of those tried; None where no values are combined, or no bound is known.

    Args:
        reshard: what is to be moved. Of values that are partial then, which may be combined on the way
            all the same, and of windows that are summed, no bound is known.
        network: must reach all devices.

    Raises:
        ReshardError: `bad-network`.
    """
    for end in (reshard.source, reshard.target):
        check_reach(network, end.mesh)
    source, target = (Tiling.of(end, reshard.shape) for end in (reshard.source, reshard.target))
    if not source.layout.unreduced or source.layout.is_summed or target.layout.unreduced:
        return None
    sides = Sides(source, target, reshard.dtype.itemsize)
    larger = sides if sides.placed_on(network) is not None else sides.evened
    placed = None if larger is None else larger.placed_on(network)
    if larger is None or placed is None:
        return None
    counted = sorted(_by_digits(larger, placed, network), key=lambda transfers: -transfers.seconds)
    if larger is not sides:
        counted = [_by_boxes(sides, transfers) for transfers in counted[:FURTHER]] if _is_countable(sides) else []
    return max(counted, key=lambda transfers: transfers.seconds, default=None)


def least_seconds(reshard: Reshard, network: Network, enough_s: float = inf) -> float:
    """Seconds that no plan goes below: those of the best cut, or of the transfers where these take longer.

    0 where nothing must move, and where no bound is known; `enough_s` is that of `best_cut`.

    Raises:
        ReshardError: `bad-network`.
    """
    cut = best_cut(reshard, network, enough_s)
    transfers = None if cut is None else least_transfers(reshard, network)
    return max([proof.seconds for proof in (cut, transfers) if proof is not None], default=0.0)


def _by_digits(sides: Sides, placed: Placed, network: Network) -> Iterator[Transfers]:
    """Those between blocks that some digits tell apart, some of them of values that are combined."""
    before, after = placed.common.source_roles, placed.common.target_roles
    combined = {n for n, role in enumerate(before) if isinstance(role, Unreduced) and role not in after}
    level_digits = zip(network.levels, placed.levels, strict=True)
    digits = {n: Digit(level.stride * stride, size) for level, inside in level_digits for n, stride, size in inside}
    elements = prod(sides.source.shape) * sides.classes.source.size
    numbers = sorted(digits, key=lambda n: -digits[n].stride)[:MOST_DIGITS]
    for count in range(1, len(numbers) + 1):
        for chosen in combinations(numbers, count):
            values = prod(digits[n].size for n in chosen if n in combined)
            if values == 1:
                continue
            receivers = prod(digits[n].size for n in chosen if after[n] is None)
            tied = [(before[n], after[n], digits[n].size) for n in chosen if n not in combined]
            meeting = elements // _apart(tied)
            telling = Digits(digits[n] for n in chosen)
            moved = (values + receivers - 1) * elements - meeting
            yield Transfers(telling, moved * sides.itemsize, _bandwidth(network, telling))


def _apart(tied: Sequence[tuple[Role, Role, int]]) -> int:
    """Of how many elements one has a block that holds a value of it and needs it.

    Args:
        tied: per digit what it cuts at the source and at the target, and its size: its value says of an element's place
            along both of them what it is.

    By hand, what changes places with another has its own place at both where these are alike, one time in four:

    >>> rows, columns = Unreduced(1), Unreduced(2)
    >>> _apart([(rows, columns, 4), (columns, rows, 4)]), _apart([(rows, rows, 4), (columns, None, 4)])
    (4, 1)
    """
    groups: list[set[Role]] = []
    apart = 1
    for before, after, size in tied:
        if before is None or after is None:
            continue
        met = [group for group in groups if group & {before, after}]
        joined = {before, after}.union(*met)
        apart *= size ** (len(joined) - 1 - sum(len(group) - 1 for group in met))
        groups = [joined, *(group for group in groups if group not in met)]
    return apart


@lru_cache(CACHED)
def _bandwidth(network: Network, digits: Digits) -> float:
    """Bytes/s of all links and ports between blocks."""
    total, inside = 0.0, np.ones(1, dtype=np.int64)
    for number, level in enumerate(network.levels):
        blocks = _within(digits, level).index_of(np.arange(level.size))
        inside = np.multiply.outer(np.bincount(blocks), inside).ravel()  # devices of a block among those joined so far
        if level.is_switch:
            joined = prod(lower.size for lower in network.levels[: number + 1])
            groups = network.size // joined
            total += level.bandwidth * groups * int(np.minimum(inside, joined - inside).sum())
            continue
        forward, backward = blocks != np.roll(blocks, -1), blocks != np.roll(blocks, 1)
        if level.link == "line":
            forward[-1] = backward[0] = False
        links = int(forward.sum()) + (0 if level.link == "one-way-ring" else int(backward.sum()))
        total += level.bandwidth * links * (network.size // level.size)
    return total


def _within(digits: Digits, level: Level) -> Digits:
    """Those of a level, as digits of its values."""
    own = (digit for digit in digits if level.stride <= digit.stride < level.digit.end)
    return Digits(Digit(digit.stride // level.stride, digit.size) for digit in own)


def _is_countable(sides: Sides) -> bool:
    return sides.incidences * sides.combined.size <= MOST_BY_BOXES


def _by_boxes(sides: Sides, transfers: Transfers) -> Transfers:
    """The same between the same blocks, counted cell by cell.

    Where blocks have different numbers of values of an element, as many as have most are all that must send.
    """
    count, values = transfers.digits.size, sides.combined.size
    blocks = (transfers.digits.index_of(side.mesh.device_array) for side in (sides.source, sides.target))
    source, target = (block == np.arange(count)[:, None] for block in blocks)
    held, needed = sides.held.any_of(source), sides.wanted.any_of(target)[0]
    has = held.sum(axis=0)
    most, receivers = has.max(axis=-1), needed.sum(axis=-1)
    whole = (has == values) & needed
    apart = -(-values // np.maximum(most, 1)) - 1 + receivers - (needed & (has > 0)).any(axis=-1)
    moved = np.where(most == values, receivers - whole.sum(axis=-1), np.where(receivers > 0, apart, 0))
    return replace(transfers, transferred_bytes=int(moved @ sides.cell_bytes))
