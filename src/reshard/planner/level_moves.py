"""What it asks of one level of a network that its digits change what they do.

What digits do is a list of roles: which digit of the tensor each cuts, or that values are partial along it, or nothing.
Roles that are alike but for their numbers ask the same, on levels that are alike, so each is asked for once.

By hand, a switch of 4 at 1 byte/s: of a tile that each device has a quarter of the others are gathered, three bytes per
byte; of one that is partial three quarters come, a quarter from each.

>>> level, digits = Level(1, 4, "switch", 1, 0), (Digit(1, 4),)
>>> moves = level_moves(level, digits, ((0,), (PARTIAL,), (None,)), (0, 2), along=False)
>>> float(moves.seconds[0, 2]), float(moves.seconds[1, 0]), bool(moves.leads[0, 1])
(3.0, 0.75, False)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.digits import Digit, Digits, Positions
from reshard.exchange.ring_roles import MOST_PLACES, RingRoles
from reshard.mix import Floats
from reshard.network import Level
from reshard.network.digit_loads import digit_loads
from reshard.network.formulas import all_gather, all_to_all
from reshard.network.ring_loads import least_along

CACHED = 1024
"""Changes of what all digits of a level do, and collectives, that are kept."""
CACHED_LOADS = 8192
"""Changes of what digits of a level do that are kept."""

Roles = tuple[int | None, ...]
"""Per digit of the position, the number of the tensor's digit that it cuts, or `PARTIAL`."""
PARTIAL = -1
"""Of digits along which values are partial."""
NO_CUT = frozenset((None, PARTIAL))
"""What digits do that cut nothing."""


class LevelLoad(NamedTuple):
    """What a change of roles asks of its level."""

    seconds: float
    """Per byte of a tile."""
    latency_s: float


class LevelMoves(NamedTuple):
    """What changes of roles ask of their level, per choice of roles before and after."""

    leads: NDArray[np.bool_]
    """Whether one step leads there."""
    seconds: Floats
    """Per byte of a tile."""
    latencies_s: Floats


@lru_cache(CACHED)
def level_moves(
    level: Level, digits: tuple[Digit, ...], choices: tuple[Roles, ...], ends: tuple[int, int], along: bool
) -> LevelMoves:
    """What it takes that digits of a level change from any choice of roles to any other.

    None lead on from the last, unless that is the first too.

    Levels and roles that are alike but for their numbers have one answer, so it is asked for by the smallest.
    """
    kinds, (first, last) = _kinds_of_pairs(choices), ends
    if first != last:
        kinds[last] = kinds[first, first]
    _, places, numbers = np.unique(kinds, return_index=True, return_inverse=True)
    loads = []
    for place in places.tolist():
        before, after = (choices[number] for number in divmod(place, len(choices)))
        loads.append(None if before == after else _load(level, digits, *renumbered(before, after), along))
    columns = zip(*[(load is not None, *(load or (0.0, 0.0))) for load in loads], strict=True)
    return LevelMoves(*(np.array(column)[numbers.reshape(kinds.shape)] for column in columns))


def _kinds_of_pairs(choices: Sequence[Roles]) -> Positions:
    """Per choice before and after a number, the same for changes that are alike but for the numbers of roles.

    >>> _kinds_of_pairs([(0,), (1,), (None,)]).tolist()
    [[0, 3, 9], [3, 0, 9], [5, 5, 11]]
    """
    roles = np.array([[PARTIAL - 1 if role is None else role for role in choice] for choice in choices])
    count = roles.shape[1]
    no_cuts, places = -np.minimum(roles, 0), np.arange(count)  # which of them, or 0
    is_same = roles[:, None, :, None] == roles[:, None]
    origins = np.where(is_same.any(axis=2), is_same.argmax(axis=2), count)  # where a role was before, or nowhere
    origins = np.where(no_cuts, count + no_cuts, origins)
    return np.asarray(origins @ (count + 3) ** places * 3**count + (no_cuts @ 3**places)[:, None])


def renumbered(*lists: Roles) -> list[Roles]:
    """The same roles by numbers in the order in which they come.

    >>> renumbered((7, None), (None, 7)), renumbered((3, 5), (5, 3))
    ([(0, None), (None, 0)], [(0, 1), (1, 0)])
    """
    numbers: dict[int | None, int | None] = {None: None, PARTIAL: PARTIAL}
    return [tuple([numbers.setdefault(role, len(numbers) - 2) for role in roles]) for roles in lists]


@lru_cache(CACHED_LOADS)
def _load(level: Level, digits: tuple[Digit, ...], before: Roles, after: Roles, along: bool) -> LevelLoad | None:
    """What it takes that digits of a level change what they do; None where no step is known."""
    if PARTIAL in before or PARTIAL in after:
        return _load_of_partial(level, digits, before, after)
    if not along:
        return _load_at_own_value(level, digits, before, after)
    at_own_value, roles = _load(level, digits, before, after, False), RingRoles(Digits(digits), before, after)
    if at_own_value is not None and (roles.is_one_collective or not at_own_value.seconds):
        return at_own_value
    known = at_own_value, _load_along(level, roles)
    return min(filter(None, known), key=lambda load: load.seconds, default=None)


def _load_along(level: Level, roles: RingRoles) -> LevelLoad | None:
    """The same where it goes along a ring from neighbour to neighbour."""
    if level.link != "ring" or level.size < 3 or roles.places > MOST_PLACES:
        return None
    held = prod([digit.size for digit, role in zip(roles.digits, roles.before, strict=True) if role is not None])
    each = held * level.size / roles.places  # of a tile, what a unit is
    return LevelLoad(least_along(roles) * each / level.bandwidth, level.size // 2 * level.latency_s)


def _load_at_own_value(level: Level, digits: tuple[Digit, ...], before: Roles, after: Roles) -> LevelLoad | None:
    """The same where of replicas that at the receiver's own value sends."""
    changes = [(digit, old, new) for digit, old, new in zip(digits, before, after, strict=True) if old != new]
    if not {new for _, _, new in changes}.isdisjoint([role for role in before if role is not None]):
        return _load_of_pieces(level, digits, before, after)
    tile, seconds, latency_s = 1.0, 0.0, 0.0
    moved, gathered = list[Digit](), list[Digit]()
    for digit, old, new in changes:
        if old is None:
            tile /= digit.size
        else:
            (gathered if new is None else moved).append(digit)
    for group, is_gather in ((moved, False), (gathered, True)):
        if group:
            load = _load_of_collective(level, tuple(group), is_gather)
            if load is None:
                return None
            if is_gather:
                tile *= prod([digit.size for digit in group])
            seconds += load.seconds * tile
            latency_s += load.latency_s
    return LevelLoad(seconds, latency_s)


@lru_cache(CACHED)
def _load_of_collective(level: Level, digits: tuple[Digit, ...], is_gather: bool) -> LevelLoad | None:
    """What one all-to-all of tiles over digits of a level takes, or one all-gather to such tiles; None likewise."""
    joined = Digits(sorted(digits, reverse=True)).joined()
    if len(joined) > 1 or (level.link == "one-way-ring" and not level.is_closed_for(joined[0])):
        return None
    part = level.part(joined[0])
    if is_gather:
        return LevelLoad(all_gather(part.at_once(), 1.0), all_gather(part, 0.0))
    return LevelLoad(all_to_all(part.at_once(), float(part.size)), all_to_all(part, 0.0))


def _load_of_partial(level: Level, digits: Sequence[Digit], before: Roles, after: Roles) -> LevelLoad | None:
    """The same where values are partial: nothing else changes while they are combined, and none become so.

    What is combined is scattered; where all have it then, it is gathered.
    """
    changes = [(digit, old, new) for digit, old, new in zip(digits, before, after, strict=True) if old != new]
    combined = [(digit, new) for digit, old, new in changes if old == PARTIAL]
    if 0 < len(combined) < len(changes) or any(new == PARTIAL for _, _, new in changes):
        return None
    if not combined:
        moving = [n for n, role in enumerate(before) if role != PARTIAL]
        ends = (tuple([end[n] for n in moving]) for end in (before, after))
        return _load_at_own_value(level, tuple([digits[n] for n in moving]), *ends)
    if not {new for _, new in combined if new is not None}.isdisjoint(before):
        return None
    tile, seconds, latency_s = 1.0, 0.0, 0.0
    scattered = tuple([digit for digit, new in combined if new is not None])
    everywhere = tuple([digit for digit, new in combined if new is None])
    for group, times in ((scattered, 1), (everywhere, 2)):
        load = _load_of_collective(level, group, True) if group else LevelLoad(0.0, 0.0)
        if load is None:
            return None
        seconds += times * load.seconds * tile
        latency_s += times * load.latency_s
        tile /= prod([digit.size for digit in group])
    return LevelLoad(seconds, latency_s)


def _load_of_pieces(level: Level, digits: Sequence[Digit], before: Roles, after: Roles) -> LevelLoad | None:
    """The same where digits change places, so that devices send different amounts to different ones."""
    if None in before or None in after:
        return None
    places = Digits([Digit(digit.stride // level.stride, digit.size) for digit in digits])
    determined_by = [after.index(role) if role in after else place for place, role in enumerate(before)]
    gathered = [place for place, role in enumerate(before) if role not in after]
    carried = digit_loads((level.at_stride_one(),), places, determined_by, gathered)
    if carried is None:
        return None
    each = 1.0 / prod(digits[place].size for place in gathered)
    return LevelLoad(carried.carried[0] * each / level.bandwidth, carried.waits_s + carried.hops_s)
