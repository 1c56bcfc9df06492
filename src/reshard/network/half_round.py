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

from reshard.mix import Floats, best_mix

SAME = 1e-9
"""Loads that differ by no more than so much of them are the same."""


def fullest_of_parted(carried: Floats, halfway: Floats) -> float:
    """What the fullest link of any ring carries, once what goes half round is parted as well as can be.

    Args:
        carried: by ring, direction and link, with half of each piece each way.
        halfway: by ring and device what begins there and goes half round the ring.
    """
    passing = np.swapaxes(halfway @ _passed(halfway.shape[1]).each, 0, 1)
    fixed = carried - passing / 2
    besides = _besides(fixed, passing, halfway)
    most = _least(fixed, halfway, besides)
    fuller = np.nonzero(carried.max(axis=(1, 2)) > most * (1 + SAME))[0]
    if len(fuller):
        room = most * (1 + SAME)
        most_in_all = np.minimum(np.minimum(room - besides.one, 2 * room - besides.two), halfway.sum(axis=1))
        tables = (table[fuller] for table in (room - fixed, passing, halfway, most_in_all.T))
        fuller = fuller[~_have_room(*tables)]
    for ring in fuller.tolist():
        most = max(most, _parted(carried[ring].ravel(), halfway[ring], most))
    return most


class _Passed(NamedTuple):
    """Which links pieces pass that go half round a ring, by the device where they begin."""

    each: Floats
    """By direction, device and link."""
    either: Floats
    """By device, and by link onwards and link backwards: whether it passes one of the two in any case."""
    neither: Floats
    """By direction, device and two links: whether it passes none of them."""


@lru_cache(64)
def _passed(size: int) -> _Passed:
    """That of a ring of so many devices.

    >>> _passed(4).each[0].tolist()
    [[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0]]
    """
    onwards = (np.arange(size)[None, :] - np.arange(size)[:, None]) % size < size // 2
    each = np.stack([onwards, ~onwards])
    either = (each[0][:, :, None] & each[1][:, None, :]).reshape(size, -1)
    neither = ~(each[:, :, :, None] | each[:, :, None, :]).reshape(2, size, -1)
    return _Passed(each.astype(np.float64), either.astype(np.float64), neither.astype(np.float64))


class _Besides(NamedTuple):
    """By direction and ring, how much more links carry at the least than all that goes half round that way.

    What takes them in any case, less what passes none of them; of those links of which that is most.
    """

    one: Floats
    """Of one link."""
    two: Floats
    """Of two together."""


def _besides(fixed: Floats, passing: Floats, halfway: Floats) -> _Besides:
    one = (fixed + passing).max(axis=2).T - halfway.sum(axis=1)
    both = np.swapaxes(fixed[:, :, :, None] + fixed[:, :, None, :], 0, 1).reshape(2, len(halfway), -1)
    return _Besides(one, (both - halfway @ _passed(halfway.shape[1]).neither).max(axis=2))


def _least(fixed: Floats, halfway: Floats, besides: _Besides) -> float:
    """What some link carries in any case.

    Args:
        fixed: by ring, direction and link, what takes it in any case.
        halfway: that of `fullest_of_parted`.
        besides: of these.
    """
    taken = (fixed[:, 0, :, None] + fixed[:, 1, None, :]).reshape(len(halfway), -1)
    either = taken + halfway @ _passed(halfway.shape[1]).either
    whole = halfway.sum(axis=1)
    three = (besides.one + besides.two[::-1]).max(axis=0) + whole
    four = besides.two.sum(axis=0) + whole
    return float(max(fixed.max(), either.max() / 2, three.max() / 3, four.max() / 4))


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
    onwards, backwards = _passed(size).each
    moved = np.hstack([onwards, -backwards]) * halfway[:, None] / 2
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
