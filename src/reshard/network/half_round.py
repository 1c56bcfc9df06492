"""How what goes half round a ring parts, so that the fullest link carries as little as can be.

Half a ring away both ways are as long, so of a piece any part may go onwards and the rest backwards.
However pieces part, the fullest link carries as much as

    any link                        carries in any case
    one onwards, one backwards      carry in the mean: what takes them in any case, and what takes one of the two
    one or two each way             must carry so that nothing is left: no more goes a way than they carry of it, and
                                    what passes none of them

These do not always suffice, so it is checked that as much does.
Let what goes onwards from a device be what heights rise from there to the next: then what a link can carry bounds how
much heights differ half a ring apart, and shortest paths are heights that keep all bounds (Bellman and Ford).
In all a middling amount goes onwards, of those that leave nothing over.
Where no such heights are found the best mix of ways to part decides (`mix.py`).

By hand, on a ring of 4, from 0 to 2 and from 1 to 3: both take the link from 1 to 2 or else that from 0 to 3, so one of
these carries 1, which is what half of each puts on both.

>>> halves = np.array([[[0.5, 1.0, 0.5, 0.0], [0.5, 0.0, 0.5, 1.0]]])
>>> fullest_of_parted(halves, np.array([[1.0, 1.0, 0.0, 0.0]]))
1.0
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.digits import Positions
from reshard.mix import Floats, best_mix

MOST_PAIRS = 64
"""Up to how many devices of a ring all pairs of its links are looked at, else those that are near or opposite alone.

What these say of all others is less, so that the best mix decides more often.
"""
SAME = 1e-9
"""Loads that differ by no more than so much of them are the same."""
IN_ANY_CASE = np.array(
    [
        [1.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 1.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 1.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 1.0, 0.0],
        [0.0, 0.0, 0.0, 1.0, 1.0],
        [0.0, 0.0, 1.0, 0.0, 1.0],
    ]
)
"""By kind of sums, which add up to what one, two, two times three and four links carry together in any case.

The sums of a ring are, of any links:
    what takes one in any case
    what takes one onwards, one backwards, or either in any case
    one way, then the other: what takes one in any case or may, less half of all that goes half round
    likewise: what takes two in any case, less what passes none of them, and half of all more
"""


def fullest_of_parted(carried: Floats, halfway: Floats) -> float:
    """What the fullest link of any ring carries, once what goes half round is parted as well as can be.

    Args:
        carried: by ring, direction and link, with half of each piece each way.
        halfway: by ring and device what begins there and goes half round the ring.
    """
    links, table = carried.reshape(len(carried), -1), _passed(halfway.shape[1])
    sums = np.concatenate([links, halfway], axis=1) @ table.sums
    greatest = np.maximum.reduceat(sums, table.begins, axis=1)
    fixed, either, three, others, four = (greatest @ IN_ANY_CASE).max(axis=0).tolist()
    most = float(max(fixed, either / 2, three / 3, others / 3, four / 4))
    room = most * (1 + SAME)
    fuller = (links.max(axis=1) > room).nonzero()[0]
    if len(fuller):
        halves = halfway[fuller]
        passing = (halves @ table.each).reshape(len(fuller), 2, -1)
        whole = halves.sum(axis=1, keepdims=True)
        least = greatest[fuller] + whole / 2  # but for what goes half round that way
        most_in_all = np.minimum(np.minimum(room + whole - least[:, 2:4], 2 * room + whole - least[:, 4:]), whole)
        fuller = fuller[~_have_room(room - carried[fuller] + passing / 2, passing, halves, most_in_all)]
    for ring in fuller.tolist():
        most = max(most, _parted(carried[ring].ravel(), halfway[ring], most))
    return most


class _Passed(NamedTuple):
    """Which links pieces pass that go half round a ring, by the device where they begin.

    Links onwards come first, then links backwards.
    """

    each: Floats
    """By device and link."""
    sums: Floats
    """By link, and then by device, and sum, how much what the link carries with half of each piece each way, and what
    begins at the device and goes half round, count in the sum; sums in the order of `IN_ANY_CASE`."""
    begins: Positions
    """Where each kind of sums begins."""


@lru_cache(64)
def _passed(size: int) -> _Passed:
    """That of a ring of so many devices.

    >>> _passed(4).each[:, :4].tolist()
    [[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0]]
    """
    goes_onwards = (np.arange(size)[None, :] - np.arange(size)[:, None]) % size < size // 2
    passes = np.hstack([goes_onwards, ~goes_onwards])
    each, own = passes.astype(np.float64), np.eye(2 * size)
    fixed = np.vstack([own, -each / 2])
    one = np.vstack([own, each / 2 - 0.5])
    steps = np.arange(size) if size <= MOST_PAIRS else np.array([0, 1, size // 2])
    first = np.repeat(np.arange(size), len(steps))
    then = (first + np.tile(steps, size)) % size
    either = fixed[:, first] + fixed[:, then + size]
    either[2 * size :] += passes[:, first] & passes[:, then + size]
    kinds = [fixed, either, one[:, :size], one[:, size:]]
    is_once = (first <= then) | (size > MOST_PAIRS)
    for way in (slice(0, size), slice(size, None)):
        pair = fixed[:, way][:, first[is_once]] + fixed[:, way][:, then[is_once]]
        passed = passes[:, way][:, first[is_once]] | passes[:, way][:, then[is_once]]
        pair[2 * size :] -= ~passed - 0.5
        kinds.append(pair)
    return _Passed(each, np.hstack(kinds), np.cumsum([0, *(kind.shape[1] for kind in kinds[:-1])]))


def _have_room(room: Floats, passing: Floats, halfway: Floats, most_in_all: Floats) -> NDArray[np.bool_]:
    """Of which rings it is found that all that goes half round has room.

    Args:
        room: by ring, direction and link.
        passing: likewise, what can pass it.
        halfway: that of `fullest_of_parted`.
        most_in_all: by ring and direction, what can go that way.
    """
    size = halfway.shape[1]
    half = size // 2
    in_all = (most_in_all[:, :1] + halfway.sum(axis=1, keepdims=True) - most_in_all[:, 1:]) / 2  # onwards
    opposite = np.arange(half - 1, half - 1 + size) % size  # the link onwards before what is half a ring on
    highest = room[:, 0, opposite]  # by device, how much higher what is half a ring on can be
    lowest = passing[:, 0, opposite] - room[:, 1, np.arange(-1, size - 1)]
    high = np.minimum(highest[:, :half], in_all - lowest[:, half:])
    low = np.maximum(lowest[:, :half], in_all - highest[:, half:])
    rises = np.concatenate([halfway, halfway], axis=1)
    climbs = rises.cumsum(axis=1) - rises
    below = SAME * in_all
    heights = np.zeros(halfway.shape)
    for _ in range(size):
        turns = np.concatenate([heights - in_all, heights], axis=1)
        heights = (np.minimum.accumulate(turns - climbs, axis=1) + climbs)[:, size:]
        turns = np.concatenate([heights, heights + in_all], axis=1)
        heights = np.minimum.accumulate(turns[:, ::-1], axis=1)[:, : size - 1 : -1]
        near, far = heights[:, :half], heights[:, half:]
        lower = np.concatenate([np.minimum(near, far - low), np.minimum(far, near + high)], axis=1)
        fits: NDArray[np.bool_] = (lower >= heights - below).all(axis=1)
        if fits.all():
            break
        heights = lower
    return fits


def _parted(carried: Floats, halfway: Floats, enough: float) -> float:
    """What the fullest link of a ring carries at the least; no less than enough.

    At any prices of links there is a cheapest way to part; the best mix of such ways has prices, in the end those of a
    linear program.

    Args:
        carried: per direction and link, with half of each piece each way.
        halfway: per device what begins there and goes half round the ring.
        enough: what some link carries in any case.

    By hand, on a ring of 6 where the bounds of the module say 7 / 3:

    >>> onwards, backwards = [1.0, 0.5, 2.0, 1.5, 2.0, 0.5], [2.5, 1.0, 1.5, 3.0, 0.5, 2.0]
    >>> round(_parted(np.array([*onwards, *backwards]), np.array([1.0, 0.0, 1.0, 0.0, 1.0, 0.0]), 7 / 3), 9)
    2.4
    """
    size = len(halfway)
    moved = _passed(size).each * np.repeat([1.0, -1.0], size) * halfway[:, None] / 2
    moved = moved[moved.any(axis=1)]
    may_bind = carried + np.abs(moved).sum(axis=0) > enough * (1 + SAME)
    moved = np.hstack([moved[:, may_bind], np.zeros((len(moved), 1))])
    evenly = np.append(carried[may_bind], enough)
    ways = [evenly]
    while True:
        mix = best_mix(np.array(ways))
        if mix.seconds <= enough * (1 + SAME):
            return enough
        added = evenly + np.where(moved @ mix.prices < 0, 1.0, -1.0) @ moved
        if added @ mix.prices >= 1 - SAME or len(ways) > 4 * size:
            return float(mix.seconds)
        ways.append(added)
