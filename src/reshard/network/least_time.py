"""The least time that any plan takes on a network, with a cut that proves it.

Take some devices. The bytes that one of them needs and none of them holds must come in, each at least once, however
they are routed, copied or combined; so they take at least their number over the capacity of what leads in.
The same holds outwards, of what is needed outside and held only inside.
A `Cut` names the devices, the bytes and the capacity, and whoever has the boxes of the two shardings can count both
anew: `docs/time.md` has the twenty lines that do.

The devices of a cut are products of parts of levels: single devices, unions of hosts, arcs of a torus.
The capacity of what leads into them is that of

    rings, lines   every link that enters
    a switch       in each group that it joins the ports of the devices inside, or those of the devices outside,
                   whichever are fewer

Where a program that routes everything at once as well as can be (no latency, bytes that divide without end) is solved
beside it, the best cut of this kind is nearly always its value.

By hand, `[{"h"}, {}] -> [{}, {"h"}]` on 2 hosts of 4, 16 x 16 bytes, ports of 9 bytes/s inside and of 1 outside: a host
holds half of the rows, needs half of the columns, and lacks half of these, 64 bytes, for which it has four ports.

>>> from reshard.mesh import Mesh
>>> from reshard.network.level import Level
>>> from reshard.problem import Reshard
>>> from reshard.sharding import Sharding
>>> mesh, network = Mesh.of(h=2, g=4), Network((Level(1, 4, "switch", 9, 0), Level(4, 2, "switch", 1, 0)))
>>> reshard = Reshard.of(Sharding.of(mesh, "h", None), Sharding.of(mesh, None, "h"), (16, 16), "int8")
>>> cut = best_cut(reshard, network)
>>> print(cut)
64 B into 4 devices at 4 bytes/s
>>> cut.seconds, cut.devices(network).tolist()
(16.0, [0, 1, 2, 3])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.digits import Digits, Positions
from reshard.errors import ReshardError
from reshard.network.crossing import (
    Crossing,
    Placed,
    Sides,
    crossing_by_boxes,
    crossing_by_digits,
    integers_for,
)
from reshard.network.dim_crossing import Members, is_by_dims
from reshard.network.level import Level
from reshard.network.networks import Network, check_reach
from reshard.problem import Reshard
from reshard.tables import bytes_text, rate_text
from reshard.tiling import Tiling

CACHED = 1024
"""Reshards whose cuts are kept."""
FEW = 4
"""Up to this size all parts of a level are tried that can count."""
MOST_IN_RUNS = 32
"""Up to this size all runs along a ring or a line are tried."""
MOST_BOTH_WAYS = 2**24
"""Up to so many devices times cells cuts are found by boxes too where digits of a larger tensor lead to some."""
MOST_IN_PRIMES = 256
"""Up to this size parts are tried by the prime factors of a level's digits, above it by the digits that tiles have."""
SAME = 1e-9
"""Cuts that differ by no more than so much of them take the same."""
FURTHER = 3
"""How many cuts are compared box by box besides the longest of a tensor a little larger."""
FEW_BY_DIMS = 64
"""So many cuts are always compared where they can be dim by dim."""
MOST_BY_DIGITS, MOST_BY_BOXES = 4096, 2**28
"""Cuts that are compared in closed form; cuts times devices times cells that are, box by box."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Devices, the bytes that must come into them or leave them, and the capacity for these."""

    members: tuple[tuple[int, ...], ...]
    """Per level, innermost first, the values of its digit that the devices have: all products of them."""
    comes_in: bool
    """Whether the bytes come into the devices; else they leave them."""
    crossing_bytes: int
    """Bytes that must cross, each counted once."""
    bandwidth: float
    """Bytes/s of all links and ports together that lead across."""

    @property
    def seconds(self) -> float:
        """What no plan goes below."""
        return self.crossing_bytes / self.bandwidth

    def devices(self, network: Network) -> Positions:
        """The numbers of the devices, ascending."""
        numbers: Positions = np.zeros(1, dtype=np.int64)
        for level, values in zip(network.levels, self.members, strict=True):
            numbers = (numbers[:, None] + np.array(values, dtype=np.int64) * level.stride).ravel()
        return np.sort(numbers)

    def as_dict(self) -> dict[str, Any]:
        """The fields and the seconds, as JSON keeps them."""
        return {
            "members": [list(values) for values in self.members],
            "comes_in": self.comes_in,
            "crossing_bytes": self.crossing_bytes,
            "bandwidth": self.bandwidth,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        count = prod(map(len, self.members))
        devices = "one device" if count == 1 else f"{count} devices"
        way = "into" if self.comes_in else "out of"
        return f"{bytes_text(self.crossing_bytes)} {way} {devices} at {rate_text(self.bandwidth)}"


@lru_cache(CACHED)
def best_cut(reshard: Reshard, network: Network, enough_s: float = inf) -> Cut | None:
    """The cut that takes longest, of those tried; None where nothing must cross, or no bound is known.

    Args:
        reshard: what is to be moved. Of values that are partial then, which may be combined on the way
            all the same, and of windows that are summed, no bound is known.
        network: must reach all devices.
        enough_s: once a cut takes so many seconds no other is looked for.

    Raises:
        ReshardError: `bad-network`.
    """
    for end in (reshard.source, reshard.target):
        check_reach(network, end.mesh)
    source, target = (Tiling.of(end, reshard.shape) for end in (reshard.source, reshard.target))
    if not network.levels or source.layout.is_summed or target.layout.unreduced:
        return None
    return best_common_cut([Sides(source, target, reshard.dtype.itemsize)], network, enough_s=enough_s)


class _Digits(NamedTuple):
    """What says in closed form what crosses."""

    sides: Sides
    """Those that were asked for, or those of a tensor a little larger."""
    placed: Placed

    @classmethod
    def of(cls, side: Sides, larger: Sides | None, network: Network) -> _Digits | None:
        """The digits of `larger`; None where it has none, or tiles are too many to compare a cut box by box."""
        if larger is None or (larger is not side and not side.is_countable(network, MOST_BY_BOXES)):
            return None
        placed = larger.placed_on(network)
        return None if placed is None else cls(larger, placed)


def best_common_cut(
    sides: Sequence[Sides], network: Network, devices: Sequence[int] = (), enough_s: float = inf
) -> Cut | None:
    """The cut that takes longest, of those tried, where several tensors cross at once.

    What must cross is the sum over the tensors, for no byte of one serves another.

    Args:
        sides: per tensor; of equal ones one stands for all, with all their bytes as its `itemsize`.
        network: must reach all devices.
        devices: the parts that have these are tried too: the device, its host, …
        enough_s: that of `best_cut`.

    Returns:
        The cut; None where nothing must cross, or tiles are too many to list.
    """
    exactly = [_Digits.of(side, side, network) for side in sides]
    nearly = [digits or _Digits.of(side, side.evened, network) for side, digits in zip(sides, exactly, strict=True)]
    strides = [[1, level.size] for level in network.levels]
    for digits in nearly:
        for inside, level in zip(digits.placed.levels if digits is not None else (), strides, strict=False):
            level += [digit.stride for digit in inside]
    lengths = tuple(tuple(sorted(set(level))) for level in strides)
    boxes = sum(side.incidences for side, digits in zip(sides, exactly, strict=True) if digits is None)
    if nearly == exactly:
        tried = [exactly]
    elif boxes > MOST_BOTH_WAYS and all(nearly):
        tried = [nearly]
    else:
        tried = [exactly, nearly]  # more cuts by digits, and the last devices by boxes
    cuts = [_best_common_cut(sides, known, network, lengths, tuple(devices), enough_s) for known in tried]
    return max(filter(None, cuts), key=lambda cut: cut.seconds, default=None)


def _best_common_cut(
    sides: Sequence[Sides],
    known: Sequence[_Digits | None],
    network: Network,
    lengths: tuple[tuple[int, ...], ...],
    devices: tuple[int, ...],
    enough_s: float,
) -> Cut | None:
    """The same of tensors of which some have digits; `lengths` are per level those of the runs that are tried."""
    incidences = sum(side.incidences for side, digits in zip(sides, known, strict=True) if digits is None)
    budget = min(MOST_BY_DIGITS, MOST_BY_BOXES // incidences) if incidences else MOST_BY_DIGITS
    if all(
        digits or is_by_dims((side.source, side.target), network) for side, digits in zip(sides, known, strict=True)
    ):
        budget = max(budget, FEW_BY_DIMS)
    if not budget:
        return None
    cut = _longest_cut(sides, known, network, _parts_of_levels(network, lengths, not incidences, budget, devices))
    return cut if cut is None or incidences else _with_better_runs(cut, sides, known, network, enough_s)


def _with_better_runs(
    cut: Cut,
    sides: Sequence[Sides],
    known: Sequence[_Digits | None],
    network: Network,
    enough_s: float,
) -> Cut:
    """The cut with all runs tried along one ring or line after another, until none of them makes it take longer.

    Where digits part a ring, the devices that lack most may be all between one holder and the next, which is no run
    whose length is a digit's.
    """
    levels = [n for n, level in enumerate(network.levels) if not level.is_switch and FEW < level.size <= MOST_IN_RUNS]
    untried = levels.copy()
    while untried and cut.seconds < enough_s:
        number = untried.pop(0)
        parts = _with_all_runs(network, cut.members, number)
        longer = _longest_cut(sides, known, network, parts)
        if longer is not None and longer.seconds > cut.seconds * (1 + SAME):
            cut, untried = longer, [other for other in levels if other != number]
    return cut


def _longest_cut(
    sides: Sequence[Sides], known: Sequence[_Digits | None], network: Network, parts: _LevelParts
) -> Cut | None:
    """The cut that takes longest of all products of parts; None as `best_common_cut`."""
    crossing: Crossing = np.zeros((2, *parts.bandwidth.shape), dtype=integers_for(sides))
    evened = []
    try:
        for side, digits in zip(sides, known, strict=True):
            if digits is None:
                crossing = crossing + crossing_by_boxes(side, network, parts.members)
                continue
            added = crossing_by_digits(digits.sides, digits.placed, parts.members)
            crossing = crossing + added
            evened += [] if digits.sides is side else [(side, added)]
        few = not all(side.is_countable(network, MOST_BOTH_WAYS) for side, _ in evened)
        chosen = _longest(crossing.astype(np.float64) / parts.bandwidth, 1 if few else 1 + FURTHER)
        exact = {place: _exact(place, crossing[place], evened, network, parts.members) for place in chosen}
    except ReshardError:  # tiles that are too many to list
        return None
    place = max(exact, key=lambda place: exact[place] / parts.bandwidth[place[1:]], default=None)
    if place is None or not exact[place]:
        return None
    values = tuple(tuple(np.flatnonzero(rows[i]).tolist()) for rows, i in zip(parts.members, place[1:], strict=True))
    return Cut(values, place[0] == 0, exact[place], float(parts.bandwidth[place[1:]]))


def _longest(seconds: NDArray[np.float64], count: int) -> list[tuple[int, ...]]:
    """The places of the cuts that take longest."""
    order = np.argsort(-seconds, axis=None, kind="stable")[:count]
    places = zip(*(index.tolist() for index in np.unravel_index(order, seconds.shape)), strict=True)
    return [place for place in places if seconds[place] > 0]


def _exact(
    place: tuple[int, ...],
    crossing_bytes: int,
    evened: Sequence[tuple[Sides, Crossing]],
    network: Network,
    members: Members,
) -> int:
    """The bytes that cross a cut, those of larger tensors replaced by what crosses of those that are asked for."""
    own = [rows[[number]] for rows, number in zip(members, place[1:], strict=True)]
    counted = (int(crossing_by_boxes(side, network, own)[place[0]].sum()) - int(added[place]) for side, added in evened)
    return int(crossing_bytes) + sum(counted)


class _LevelParts(NamedTuple):
    """Parts of every level, whose products are the cuts that are tried."""

    members: tuple[NDArray[np.bool_], ...]
    """Per level, a row for each part: which values of its digit are in it; the first row has all."""
    bandwidth: NDArray[np.float64]
    """Bytes/s into every product of parts; without end for all devices."""


@lru_cache(256)
def _parts_of_levels(
    network: Network, strides: tuple[tuple[int, ...], ...], is_even: bool, budget: int, devices: tuple[int, ...] = ()
) -> _LevelParts:
    """The parts of levels to try, at most so many products of them, and what leads into each product.

    What some devices have of a level is tried beyond that number; `is_even` is that of `_parts`.
    """
    for positions in (16, 8, 4, 3, 2, 1):
        parts = [
            _parts(level, cuts, positions, is_even=is_even) for level, cuts in zip(network.levels, strides, strict=True)
        ]
        if prod(map(len, parts)) <= budget:
            break
    for level, rows in zip(network.levels, parts, strict=True):
        own = (tuple(value == level.digit.value(device) for value in range(level.size)) for device in devices)
        rows += [row for row in dict.fromkeys(own) if row not in rows]
    members = tuple(np.array(rows, dtype=np.bool_) for rows in parts)
    bandwidth = _bandwidth(network, members)
    bandwidth[(0,) * len(members)] = np.inf
    return _LevelParts(members, bandwidth)


@lru_cache(1024)
def _with_all_runs(network: Network, chosen: tuple[tuple[int, ...], ...], number: int) -> _LevelParts:
    """Along one level all runs, along the others what is chosen."""
    members = []
    for place, (level, values) in enumerate(zip(network.levels, chosen, strict=True)):
        rows = np.isin(np.arange(level.size), values)[None, :]
        if place == number:
            rows = _runs(level)
        members.append(rows)
    return _LevelParts(tuple(members), _bandwidth(network, members))


@lru_cache(256)
def _runs(level: Level) -> NDArray[np.bool_]:
    """All runs along a ring or a line but the whole: a row for each, which values are in it."""
    arcs = np.array(list(_arcs(level, range(1, level.size), level.size, level.size)))
    runs: NDArray[np.bool_] = (np.arange(level.size) - arcs[:, :1]) % level.size < arcs[:, 1:]
    return runs


def _parts(level: Level, strides: tuple[int, ...], positions: int, *, is_even: bool = True) -> list[tuple[bool, ...]]:
    """The parts of a level, each as which values are in it; all of it first.

    Of a small level, all runs along a ring or a line, and all parts of a switch; of a larger one runs of few lengths,
    and of a switch those that agree in some digits and those that do not.
    Where all tiles are of one size, a ring is alike from one value of its outermost digit to the next.

    >>> [sum(part) for part in _parts(Level(1, 8, "line", 1, 0), (1, 4, 8), 2)]
    [8, 1, 1, 1, 2, 2, 2, 4, 4]
    """
    size, values = level.size, np.arange(level.size)
    rows = {(True,) * size: None}
    if size <= FEW and positions > 2:
        if level.is_switch:
            chosen = [np.array(row) for row in product((True, False), repeat=size)]
        else:
            arcs = [(values - start) % size < count for count in range(1, size) for start in range(size)]
            chosen = arcs if level.link != "line" else [row for row in arcs if np.ptp(np.flatnonzero(row)) < row.sum()]
        rows |= {tuple(row.tolist()): None for row in chosen if row.any()}
        return list(rows)
    digits = Digits.between(strides)
    if size <= MOST_IN_PRIMES:
        digits = digits.primes()
    cuts = sorted({cut for digit in digits for cut in (digit.stride, digit.end)})
    if not level.is_switch:
        period = strides[-2] if is_even and level.link != "line" else size
        chosen = [(values - start) % size < count for start, count in _arcs(level, cuts[:-1], period, positions)]
        return list(rows | {tuple(row.tolist()): None for row in chosen})
    for low, high in ((low, high) for high in cuts for low in cuts if low < high):
        count = high // low
        first = [0, count - 1, 1, *range(2, count - 1)][: max(positions, 1)]
        chosen = [values // low % count == value for value in first if value < count]
        chosen += [~row for row in chosen[:2] if low > 1]  # the few that have what the others of a host lack
        rows |= {tuple(row.tolist()): None for row in chosen}
    return list(rows)


def _arcs(level: Level, lengths: Sequence[int], period: int, positions: int) -> Iterator[tuple[int, int]]:
    """Where runs along a ring or a line begin, within a period, and how long they are.

    They may begin inside digits of the position: where parts of a ring all act by themselves, what lies around the end
    of one has as few links as what lies inside, and lacks more.

    >>> list(_arcs(Level(1, 16, "ring", 1, 0), (1, 4), 4, 2))
    [(0, 1), (2, 1), (0, 4), (2, 4)]
    """
    step = -(-period // max(positions, 1))
    for length in lengths:
        last = level.size - length
        starts = [last, *range(0, min(period, last + 1), step)] if level.link == "line" else range(0, period, step)
        yield from ((start, length) for start in starts)


def _bandwidth(network: Network, members: Sequence[NDArray[np.bool_]]) -> NDArray[np.float64]:
    """Bytes/s into every product of parts, or out of it."""

    def along(number: int, figures: Any) -> NDArray[np.float64]:
        return np.asarray(figures, dtype=np.float64).reshape([-1 if n == number else 1 for n in range(len(members))])

    sizes = [along(number, rows.sum(axis=1)) for number, rows in enumerate(members)]
    total = np.zeros([len(rows) for rows in members])
    for number, level in enumerate(network.levels):
        inner, outer = (prod(part, start=np.ones_like(total)) for part in (sizes[:number], sizes[number + 1 :]))
        if level.is_switch:
            inside = inner * sizes[number]
            joined = prod(lower.size for lower in network.levels[: number + 1])
            total += level.bandwidth * outer * np.minimum(inside, joined - inside)
            continue
        total += level.bandwidth * outer * inner * along(number, _entering(level, members[number]))
    return total


def _entering(level: Level, rows: NDArray[np.bool_]) -> Positions:
    """How many links of a ring or a line lead into each of some parts of it."""
    forward, backward = (rows & ~np.roll(rows, step, axis=1) for step in (1, -1))
    if level.link == "line":
        forward[:, 0] = backward[:, -1] = False
    links = forward if level.link == "one-way-ring" else np.hstack([forward, backward])
    entering: Positions = links.sum(axis=1)
    return entering
