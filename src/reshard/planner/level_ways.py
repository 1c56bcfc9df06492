"""Ways from source to target that change what one level of a network does at a time, and what each loads.

A level is used by an exchange between devices that differ along it alone, so a chain of such steps says which level
carries how much: an all-to-all on one level loads no other.
What the digits of a level do is one of few things:

    source, target   what they do at that end
    partial          each device along it has partial values, at the source alone
    nothing          all devices along it hold the same
    shared           they cut a part of the tensor that no device has at either end, so that what devices hold alike, or
                     what one of them must pass on, is shared out
    late             what they do at the target, and at the source where that is nothing: what is gathered last
    early            what they do at the source, and at the target where that is nothing: what is sliced first

So where several levels are there the ways are walks through products of these, as many for large levels as for small.
Where axes are parts of a level its digits do one of these all together, or *finely*, each by itself: that is more to go
through, and worth it where what the digits do together leaves some links idle.

By hand, a 4 x 4 torus, columns by x and rows wanted by x, nothing by y: `x` may change at once, which loads its rings
with all; or `y` is shared first, a quarter of the tensor changes along every ring, and `y` gathers.

>>> from reshard.mesh import Mesh
>>> from reshard.network.level import Level
>>> mesh = Mesh.of(x=4, y=4)
>>> network = Network((Level(1, 4, "ring", 1, 0), Level(4, 4, "ring", 1, 0)))
>>> ends = Sharding.of(mesh, None, "x"), Sharding.of(mesh, "x", None)
>>> ways = LevelWays.of(Reshard.of(*ends, (64, 64), "int8"), network, finely=False, along=False)
>>> direct, shared = ways.cheapest((0.9, 0.1)), ways.cheapest((0.1, 0.9))
>>> [sharding.text() for sharding in ways.middles(direct)], ways.loads(direct)
([], array([  0., 512.]))
>>> [sharding.text() for sharding in ways.middles(shared)], ways.loads(shared)
(['[{}, {"x", "y"}]', '[{"x"}, {parts(4), "y"}]'], array([384., 128.]))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, count, product
from math import prod
from operator import getitem
from typing import NamedTuple

import numpy as np

from reshard.axis import merged
from reshard.digits import Digit, Digits, Positions
from reshard.errors import ReshardError
from reshard.mix import Floats
from reshard.network import Network, nested
from reshard.planner.level_moves import NO_CUT, PARTIAL, Roles, level_moves, renumbered
from reshard.planner.policy import SMALL_BYTES
from reshard.planner.tensor_digits import common_digits, dim_cuts, sharding_of_cuts, share_out
from reshard.problem import Reshard
from reshard.sharding import Sharding

PER_STEP = 1e-4
"""What a step costs besides, at prices that make the whole cost 1."""
MOST_STATES, MOST_FINE_STATES = 256, 1024
"""How many states are gone through, and how many where every digit is taken by itself."""
CACHED = 1024
"""Graphs that are kept."""


class LevelGraph(NamedTuple):
    """What digits of positions may do, and what it loads to change it on one level."""

    states: tuple[Roles, ...]
    """The source first, the target last."""
    tiles: Floats
    """Per state, which part of the tensor a tile is."""
    starts: Positions
    """Per step the state before it."""
    stops: Positions
    """Per step the state after it, in ascending order."""
    levels: Positions
    """Per step the level that it loads."""
    level_count: int
    switches: frozenset[int]
    """The numbers of the levels that are switches."""
    seconds: Floats
    """Per step, per byte of the tensor."""
    latencies_s: Floats
    """Likewise the latencies, however little is sent."""


@dataclass(frozen=True)
class LevelWays:
    """The ways of one reshard."""

    reshard: Reshard
    digits: Digits
    """Of the position."""
    by_dim: tuple[tuple[tuple[int, int], ...], ...]
    """Per dim its digits, major to minor: number and size."""
    graph: LevelGraph

    @classmethod
    @lru_cache(16)  # asked for twice in one plan, in the same words, and its numbers are derived but once
    def of(cls, reshard: Reshard, network: Network, *, finely: bool, along: bool) -> LevelWays | None:
        """The ways; None where tiles differ in size, values are partial at the target, or no digits lie in levels.

        Args:
            reshard: what is to be moved.
            network: must reach all devices.
            finely: whether every digit of a level does by itself what it does.
            along: whether what goes along a ring may go from neighbour to neighbour.
        """
        if reshard.source.mesh.size != network.size:
            return None
        network = nested(network, reshard.source.mesh)
        common = common_digits(reshard, [level.stride for level in network.levels[1:]], partial=True)
        if common is None:
            return None
        share_out(common.of_positions, common.by_dim)
        numbers = {end: common.numbers(end) for end in ("source", "target", "shared")}
        partial = [digit for digit in common.of_positions if any(map(digit.lies_in, reshard.source.layout.unreduced))]
        numbers["source"] |= dict.fromkeys(partial, PARTIAL)
        roles = [tuple(map(end.get, common.of_positions)) for end in numbers.values()]
        graph = _graph(network, common.of_positions, *roles, finely=finely, along=along)
        if graph is None:
            return None
        counted = count()
        by_dim = tuple(tuple((next(counted), digit.size) for digit in dim) for dim in common.by_dim)
        return cls(reshard, common.of_positions, by_dim, graph)

    @cached_property
    def _seconds(self) -> Floats:
        """Per step, of the whole tensor; without end where its tiles are larger than those of both ends."""
        graph = self.graph
        size = prod(self.reshard.shape) * self.reshard.dtype.itemsize
        tiles = graph.tiles * size
        fits = tiles <= max(tiles[0], tiles[-1], SMALL_BYTES)
        return np.where(fits[graph.starts] & fits[graph.stops], graph.seconds * size + graph.latencies_s, np.inf)

    @cached_property
    def _costs(self) -> tuple[Floats, Floats]:
        """Per step the seconds that have a price, and what it costs besides: without end where it cannot be taken."""
        is_taken = np.isfinite(self._seconds)
        return np.where(is_taken, self._seconds, 0.0), np.where(is_taken, PER_STEP, np.inf)

    @cached_property
    def _begins(self) -> Positions:
        """Per state the first of the steps that lead to it, or of those that lead further; last how many there are."""
        return np.searchsorted(self.graph.stops, np.arange(len(self.graph.states) + 1))

    def cheapest(self, prices: Sequence[float]) -> tuple[int, ...] | None:
        """The way that costs least where a second of each level has a price, as steps; None where there is no way.

        Args:
            prices: per level; those at which the whole costs about 1.
        """
        graph, begins = self.graph, self._begins
        seconds, besides = self._costs
        costs = seconds * np.asarray(prices, dtype=np.float64)[graph.levels] + besides
        (reached,) = (begins[1:] > begins[:-1]).nonzero()
        first = begins[reached]
        best = np.full(len(graph.states), np.inf)
        best[0] = 0.0
        for _ in graph.states:
            through = best[graph.starts] + costs
            least = np.minimum.reduceat(through, first)
            better = least < best[reached] * (1 - 1e-12)
            if not better.any():
                break
            best[reached[better]] = least[better]
        state, steps = len(graph.states) - 1, list[int]()
        if not np.isfinite(best[state]):
            return None
        while state:
            steps.append(int(begins[state] + through[begins[state] : begins[state + 1]].argmin()))
            state = int(graph.starts[steps[-1]])
        return tuple(steps[::-1])

    def loads(self, path: tuple[int, ...]) -> Floats:
        """Per level the seconds that a way takes."""
        steps = list(path)
        weights, count = self._seconds[steps], self.graph.level_count
        return np.asarray(np.bincount(self.graph.levels[steps], weights, count), dtype=np.float64)

    def middles(self, path: tuple[int, ...], *, apart: bool = False) -> list[Sharding]:
        """What a way passes between its ends.

        Args:
            path: its steps.
            apart: whether a step in which some digits change places and others are gathered is two: done at once, what
                changes places goes to each of those that gather it by itself, which may load links more, or less.
                Through a switch it always is, for that is fewer messages and as many bytes.

        Raises:
            ReshardError: where digits have no names, or dims no such deal.
        """
        return [self._sharding(roles) for roles in self._between(path, apart=apart)]

    def _between(self, path: tuple[int, ...], *, apart: bool = False) -> list[Roles]:
        """The roles that a way passes; `apart` is that of `middles`."""
        graph, passed = self.graph, list[Roles]()
        for step in path:
            before, after = (graph.states[ends[step]] for ends in (graph.starts, graph.stops))
            waiting = tuple([old if new is None else new for old, new in zip(before, after, strict=True)])
            is_two = apart or graph.levels[step] in graph.switches
            if is_two and waiting not in (before, after) and _is_one([waiting]):
                passed.append(waiting)
            passed.append(after)
        return passed[:-1]

    @cached_property
    def _shardings(self) -> dict[Roles, Sharding]:
        """What was passed by ways that were asked for: others pass much of it too."""
        return {}

    def _sharding(self, roles: Roles) -> Sharding:
        if roles not in self._shardings:
            self._shardings[roles] = self._sharding_anew(roles)
        return self._shardings[roles]

    def _sharding_anew(self, roles: Roles) -> Sharding:
        cutting = {role: digit for role, digit in zip(roles, self.digits, strict=True) if role not in NO_CUT}
        source, mesh = self.reshard.source, self.reshard.source.mesh
        dims = [dim_cuts(mesh, [(size, cutting.get(number)) for number, size in dim]) for dim in self.by_dim]
        sharding = sharding_of_cuts(mesh, dims)
        partial = Digits([digit for digit, role in zip(self.digits, roles, strict=True) if role == PARTIAL])
        if not partial:
            return sharding
        unreduced = mesh.axes_of(partial)
        if unreduced is None:
            raise ReshardError("cannot-express", f"no axes are the digits {partial}")
        return replace(sharding, unreduced=merged(unreduced, mesh.sizes), reduction=source.reduction)


@lru_cache(CACHED)
def _graph(
    network: Network, digits: Digits, source: Roles, target: Roles, shared: Roles, *, finely: bool, along: bool
) -> LevelGraph | None:
    """What the digits may do; None where a digit lies in no level, or there is too much that they may do."""
    inside = [[n for n, digit in enumerate(digits) if digit.lies_in(level.digit)] for level in network.levels]
    if sum(map(len, inside)) != len(digits) or not network.levels:
        return None
    choices = [_choices([(source[n], target[n], shared[n]) for n in numbers], finely=finely) for numbers in inside]
    ends = [tuple(tuple(end[n] for n in numbers) for numbers in inside) for end in (source, target)]
    most = MOST_FINE_STATES if finely else MOST_STATES
    if prod(map(len, choices)) > most or not all(map(_is_one, ends)) or ends[0] == ends[1]:
        return None
    first, last = (tuple(listed.index(roles) for listed, roles in zip(choices, end, strict=True)) for end in ends)
    chosen = [first, *(place for place in _places_of_one(choices) if place not in (first, last)), last]
    places = np.array(chosen)
    numbered_states = np.full([len(listed) for listed in choices], -1)  # states by the choices of all levels
    numbered_states[tuple(places.T)] = np.arange(len(chosen))
    shards = np.ones(len(chosen), dtype=np.int64)
    steps: list[tuple[Positions, Positions, Floats, Floats]] = []
    for number, (level, numbers, listed) in enumerate(zip(network.levels, inside, choices, strict=True)):
        sizes = [digits[n].size for n in numbers]
        parts = [prod(size for size, role in zip(sizes, roles, strict=True) if role not in NO_CUT) for roles in listed]
        shards *= np.array(parts)[places[:, number]]
        strides = [digits[n].stride // level.stride for n in numbers]
        choices_alike = tuple(renumbered(*listed))
        digits_alike = tuple(map(Digit, strides, sizes))
        ends_alike = first[number], last[number]
        moves = level_moves(level.at_stride_one(), digits_alike, choices_alike, ends_alike, along)
        alike = np.moveaxis(numbered_states, number, -1).reshape(-1, len(listed))  # but for this level, a row each
        is_state = alike >= 0
        rows, before, after = np.nonzero(is_state[:, :, None] & is_state[:, None, :] & moves.leads)
        taken = moves.seconds[before, after], moves.latencies_s[before, after]
        steps.append((alike[rows, before], alike[rows, after], *taken))
    levels = np.repeat(np.arange(len(steps)), [len(starts) for starts, *_ in steps])
    starts, stops, seconds, latencies_s = (np.concatenate(column) for column in zip(*steps, strict=True))
    tiles = 1 / shards
    latencies_s += network.launch_s * (seconds > 0)
    seconds *= tiles[starts]
    by_stop = np.lexsort((starts, stops))
    starts, stops, levels = (column[by_stop] for column in (starts, stops, levels))
    states = _states(choices, chosen, [n for numbers in inside for n in numbers])
    switches = frozenset(number for number, level in enumerate(network.levels) if level.is_switch)
    timed = seconds[by_stop], latencies_s[by_stop]
    return LevelGraph(states, tiles, starts, stops, levels, len(steps), switches, *timed)


def _states(
    choices: Sequence[Sequence[Roles]], chosen: Sequence[tuple[int, ...]], order: Sequence[int]
) -> tuple[Roles, ...]:
    """The roles of all digits in places that are chosen; `order` has the digits level by level."""
    where = np.argsort(order).tolist()
    listed = [tuple(chain.from_iterable(map(getitem, choices, place))) for place in chosen]
    return tuple([tuple([roles[n] for n in where]) for roles in listed])


def _places_of_one(choices: Sequence[Sequence[Roles]]) -> list[tuple[int, ...]]:
    """The choices of roles of all levels in which no digit of the tensor is cut twice, by their numbers per level.

    >>> _places_of_one([[(0,), (1,)], [(None,), (1,)]])
    [(0, 0), (0, 1), (1, 0)]
    """
    taken: dict[tuple[int, ...], frozenset[int | None]] = {(): frozenset()}
    for listed in choices:
        cut = [(number, frozenset(roles) - NO_CUT) for number, roles in enumerate(listed)]
        taken = {
            (*place, number): digits | own for place, digits in taken.items() for number, own in cut if not digits & own
        }
    return list(taken)


def _choices(roles: Sequence[tuple[int | None, int | None, int | None]], *, finely: bool) -> list[Roles]:
    """What the digits of a level may do, from what each does at the source, at the target, and where it is shared.

    All of them the same, or finely each by itself; no digit of the tensor is cut twice.

    >>> _choices([(0, 1, None), (1, 0, None)], finely=False)
    [(0, 1), (1, 0), (None, None)]
    >>> _choices([(0, 1, None), (1, 0, None)], finely=True)[3:]
    [(0, None), (1, None), (None, 1), (None, 0)]
    """
    listed = [
        tuple(before for before, _, _ in roles),
        tuple(after for _, after, _ in roles),
        tuple(None for _ in roles),
        _settled([(after, before, part) for before, after, part in roles]),
        tuple(before if before == after else None for before, after, _ in roles),
        _settled(roles),
    ]
    if all(part is not None for *_, part in roles):
        listed.append(tuple(part for _, _, part in roles))
    if all(part is not None for before, after, part in roles if before != after or before is None):
        listed.append(
            tuple(before if before == after and before is not None else part for before, after, part in roles)
        )
    if finely:
        listed += product(*(dict.fromkeys((*digit, None)) for digit in roles))
    return [roles for roles in dict.fromkeys(listed) if _is_one([roles])]


def _settled(roles: Sequence[tuple[int | None, int | None, int | None]]) -> Roles:
    """What digits do where each does what it does first, else what it does then, else what is shared out for it.

    >>> _settled([(0, 1, 2), (None, 3, 4), (None, 0, 5)])
    (0, 3, 5)
    """
    taken = {first for first, _, _ in roles}
    return tuple([first if first is not None else part if then in taken else then for first, then, part in roles])


def _is_one(roles_by_level: Sequence[Roles]) -> bool:
    """Whether no digit of the tensor is cut twice."""
    cut = [role for roles in roles_by_level for role in roles if role not in NO_CUT]
    return len(set(cut)) == len(cut)
