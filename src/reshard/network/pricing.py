"""What steps cost on a network, in seconds.

A collective over digits that lie on levels is priced by its formula, stage by stage: all-gather, reduce-scatter
and all-reduce over any parts of levels, all-to-all over one level.
Every other exchange is priced by the traffic of its pieces: the busiest link or port of the busiest level, and
the latencies of all messages that one device sends or receives, one after another.
Rounds are not waited for, so bytes count in total and not round by round; chunks are, so latencies count in each.
A slice, and what only becomes partial, costs nothing but copies in memory, where a network says what these take.
A chain may take a tensor in parts, one behind the other, so that steps on different levels overlap.

>>> from reshard.mesh import Mesh
>>> from reshard.problem import Reshard
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(X=4, Y=4, Z=4)
>>> network = Network.preset("tpu-v4p-4x4x4")
>>> before, after = Sharding.of(mesh, "X", "Y"), Sharding.of(mesh, None, "Y")
>>> step = Step(Reshard.of(before, after, (1024, 4096), "bf16"))
>>> print(step.kind, round(seconds_of(step, network) * 1e6, 1), "us")
AllGather 17.5 us
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from reshard.box import is_one_run
from reshard.digits import Digit, Digits, Positions
from reshard.errors import ReshardError
from reshard.exchange import DigitExchange, Exchange, RingExchange
from reshard.exchange.by_digits import senders_by_round
from reshard.mesh import ENUMERABLE, Mesh
from reshard.network.digit_loads import digit_loads, least_carried
from reshard.network.formulas import all_to_all, staged_all_gather
from reshard.network.level import Level
from reshard.network.networks import Network
from reshard.network.numbers import device_digits
from reshard.network.patterns import Pattern, kind_of
from reshard.network.ring_loads import RingLoads, ring_loads, transposed_loads
from reshard.network.traffic import Loads, loads, runs
from reshard.steps import Share, Step

CACHED = 4096
"""Patterns of exchanges whose loads are kept."""
NEARLY = 0.99
"""Where a tensor fills so much of its blocks, all are taken for whole ones."""
CACHED_STEPS = 1024
"""Steps whose prices are kept."""


def seconds_of(step: Step, network: Network) -> float:
    """Seconds that a step takes.

    Args:
        step: of any kind.
        network: must reach all devices of the step.

    Raises:
        ReshardError: `bad-network` where a device is beyond the network, `too-large`.
    """
    return _use_of_step(step, network, 1).seconds


class Use(NamedTuple):
    """How long something takes, and for how much of it each level is busy, or each link of a line."""

    seconds: float
    busy: tuple[float, ...]
    """Per level the seconds of its busiest link or port, of each that is told apart (`Level.places`), with the
    latencies; last those in which steps start. In all of them those in which a device copies, and neither sends nor
    starts anything."""

    @classmethod
    def of_nothing(cls, network: Network) -> Use:
        """That of what sends nothing."""
        return cls(0.0, (0.0,) * (network.places + 1))

    def times(self, count: int) -> Use:
        """So many of it, one after another."""
        return Use(self.seconds * count, tuple(busy * count for busy in self.busy))

    @classmethod
    def together(cls, uses: Sequence[Use], network: Network) -> Use:
        """One after another."""
        if len(uses) == 1:
            return uses[0]
        if not uses:
            return cls.of_nothing(network)
        busy = zip(*(use.busy for use in uses), strict=True)
        return cls(sum(use.seconds for use in uses), tuple(map(sum, busy)))


def overlapped_seconds(shares: Sequence[Share], network: Network) -> float:
    """Seconds in which a tensor goes through chains of steps in equal parts, one behind the other, all chains at once.

    What is busiest of all levels decides, since steps that use the same links or ports wait for one another; before it
    has begun, and after it is done, a part takes the steps that it takes elsewhere.
    Every part pays its latencies.

    By hand, two steps of 4 s each on different levels, in two parts: 2 + 2 s for the first, 2 s more for the second.

    >>> from reshard.mesh import Mesh
    >>> from reshard.problem import Reshard
    >>> from reshard.sharding import Sharding
    >>> from reshard.steps import chain_through
    >>> mesh, network = Mesh.of(h=2, g=2), Network((Level(1, 2, "switch", 2, 0), Level(2, 2, "switch", 1, 0)))
    >>> both, g, none = (Sharding.of(mesh, axes) for axes in (("g", "h"), "g", None))
    >>> steps = chain_through(Reshard.of(both, none, (16,), "int8"), g)
    >>> [overlapped_seconds([Share(steps, parts)], network) for parts in (1, 2, 4)]
    [8.0, 6.0, 5.0]
    """
    return max(spans[-1][1] for spans in overlapped_spans(shares, network))


def overlapped_spans(shares: Sequence[Share], network: Network) -> list[list[tuple[float, float]]]:
    """Per share and step of such chains, when the first part begins it and the last has done it, in seconds."""
    parts = sum(share.parts for share in shares)
    uses = [uses_of(share.steps, network, parts) for share in shares]
    return spans_of_uses(uses, [share.parts for share in shares])


def spans_of_uses(uses: Sequence[Sequence[Use]], parts: Sequence[int]) -> list[list[tuple[float, float]]]:
    """The same where it is known what every step takes.

    Args:
        uses: per share, what its steps take of one part.
        parts: per share, how many go that way.
    """
    busy = [[sum(level) for level in zip(*(use.busy for use in chain), strict=True)] for chain in uses]
    busiest = max(
        sum(count * level for count, level in zip(parts, levels, strict=True)) for levels in zip(*busy, strict=True)
    )
    spans = []
    for chain, levels in zip(uses, busy, strict=True):
        ends = list(accumulate((use.seconds for use in chain), initial=0.0))
        behind = busiest - max(levels)
        spans.append([(start, end + behind) for start, end in pairwise(ends)])
    return spans


def busy_seconds(steps: Sequence[Step], network: Network) -> tuple[float, ...]:
    """How long links and ports are busy in all steps, of the whole tensor, as `Use` tells them apart; last starts."""
    return tuple(map(sum, zip(*(use.busy for use in uses_of(steps, network)), strict=True)))


def uses_of(steps: Sequence[Step], network: Network, parts: int = 1) -> list[Use]:
    """What one of so many equal parts of a tensor takes in each step.

    Raises:
        ReshardError: as `seconds_of`.
    """
    return [_use_of_step(step, network, parts) for step in steps]


@lru_cache(CACHED_STEPS)
def _use_of_step(step: Step, network: Network, parts: int) -> Use:
    """What one of so many equal parts of a tensor takes in a step."""
    share = step.dtype.itemsize / (step.chunks * parts)  # each is an exchange of its own, of so much of every element
    use = _all_reduce_use(step, share, network) if step.kind == "AllReduce" else None
    if use is None:
        uses = [_use_of_exchange(move.exchange, share, network) for move in step.moves]
        use = Use.together(uses, network)
    alone_s = 0.0  # nothing else goes on meanwhile
    if network.copy_bandwidth is not None:
        alone_s += copied_elements(step) * share / network.copy_bandwidth
    if network.meet_s:
        alone_s += meetings(step) * network.meet_s
    if alone_s:
        use = Use(use.seconds + alone_s, tuple(busy + alone_s for busy in use.busy))
    return use if step.chunks == 1 else use.times(step.chunks)


def meetings(step: Step) -> int:
    """How many doublings of devices begin something together in a step.

    The devices of a group meet once, however much they send each other, since all of it is one collective.
    Rounds are a permutation of all devices each, and all meet in each.

    By hand, on 2 x 4 devices: a gather along the axis of 4 is two doublings; a permutation of all 8 is three, and an
    exchange in two rounds six.

    >>> from reshard.mesh import Mesh
    >>> from reshard.problem import Reshard
    >>> from reshard.sharding import Sharding
    >>> mesh = Mesh.of(x=2, y=4)
    >>> ends = [("xy", "x"), ("xy", "yx"), ("xy", "y")]
    >>> moves = [[Sharding.of(mesh, tuple(axes)) for axes in pair] for pair in ends]
    >>> [meetings(Step(Reshard.of(*pair, (8,)))) for pair in moves]
    [2, 3, 6]
    """
    exchanges = [move.exchange for move in step.moves if move.exchange.largest_piece]
    if step.kind == "AllReduce":
        return sum(_doublings(first.combined.size) for first in exchanges[:1] if isinstance(first, DigitExchange))
    total = 0
    for exchange in exchanges:
        if isinstance(exchange, DigitExchange) and exchange.is_in_groups:
            total += _doublings(exchange.gathered_values)
        else:
            devices = len({*step.before.mesh.devices, *step.after.mesh.devices})
            total += exchange.rounds * _doublings(devices)
    return total


def _doublings(devices: int) -> int:
    return (devices - 1).bit_length()


def copied_elements(step: Step) -> int:
    """What a device copies by itself in a step.

    It keeps what its new tile has of the old one; pieces that are no whole tile are packed before they go; and where
    they do not lie in one run of the new tile, that is put in order when all have come.
    What is packed out of strips counts twice.
    A slice copies what is left, out of strips twice as well.

    By hand, of 4 x 4 elements on 2 devices: a gather of rows keeps 8; one of columns puts 16 in order besides; from
    columns to rows 4 are kept, and 8 in one run packed, and as they come as strips 8 put in order.

    >>> from reshard.mesh import Mesh
    >>> from reshard.problem import Reshard
    >>> from reshard.sharding import Sharding
    >>> mesh = Mesh.of(x=2)
    >>> rows, columns, whole = (Sharding.of(mesh, *dims) for dims in (("x", None), (None, "x"), (None, None)))
    >>> moves = (rows, whole), (columns, whole), (columns, rows)
    >>> [copied_elements(Step(Reshard.of(*ends, (4, 4)))) for ends in moves]
    [8, 24, 20]
    """
    before, after = (sharding.local_shape(step.shape) for sharding in (step.before, step.after))
    piece = tuple(map(min, before, after))
    received = step.received_bytes // step.dtype.itemsize
    kept, times = max(prod(after) - received, 0), 1 if is_one_run(piece, before) else 2
    if not received:
        return kept * times
    packed = 0 if piece == before else max(prod(after), received) * times
    return kept + packed + (0 if is_one_run(piece, after) else prod(after))


forget_steps = _use_of_step.cache_clear
"""Forget what steps cost."""


def exchange_seconds(exchange: Exchange, itemsize: float, network: Network) -> float:
    """Seconds that one exchange takes.

    Args:
        exchange: who sends what to whom.
        itemsize: bytes per element.
        network: must reach all its devices.

    Raises:
        ReshardError: `bad-network`, `too-large`.
    """
    return _use_of_exchange(exchange, itemsize, network).seconds


def _use_of_exchange(exchange: Exchange, itemsize: float, network: Network) -> Use:
    for mesh in (exchange.source.mesh, exchange.target.mesh):
        check_reach(network, mesh)
    if exchange.largest_piece == 0:
        return Use.of_nothing(network)
    if isinstance(exchange, DigitExchange):
        if exchange.rounds == 0:
            return Use.of_nothing(network)
        sent_bytes = exchange.largest_piece * exchange.loose_values * itemsize  # of one round
        meshes = unnamed(exchange.source.mesh), unnamed(exchange.receivers)
        use = use_of_pattern(_pattern(exchange), meshes, sent_bytes, network, is_even=exchange.filled >= NEARLY)
        if use is not None:
            return use
    if isinstance(exchange, RingExchange):
        return _use_of_ring_exchange(exchange, itemsize, network)
    senders, receivers, elements = exchange.traffic()
    if not len(senders):
        return Use.of_nothing(network)
    return _use_of_loads(loads(network.levels, senders, receivers, elements), itemsize, network)


def use_of_pattern(
    pattern: Pattern, meshes: tuple[Mesh, Mesh], sent_bytes: float, network: Network, *, is_even: bool = True
) -> Use | None:
    """What an exchange of a pattern takes.

    Args:
        pattern: in which something is sent.
        meshes: of those that send, and of those that receive, as one axis each: patterns know no names.
        sent_bytes: what goes from one device to one other in one round.
        network: must reach all devices.
        is_even: whether all pieces are of one size.

    Returns:
        The use; None where pieces differ in size and the exchange is no collective that has a formula.

    Raises:
        ReshardError: `too-large`.
    """
    source, receivers = meshes
    shared = receivers is source or receivers == source
    stages = _stages_of(network, source, pattern) if pattern.kind and shared else None
    if stages is None:
        if not is_even:
            return None
        carried = piece_loads(network, source, receivers, pattern.digits, pattern.determined_by, pattern.gathered)
        return _use_of_loads(carried, sent_bytes, network)
    gathered_bytes = sent_bytes * pattern.gathered_digits.size
    if pattern.kind != "all-to-all":
        return _use_of_stages(staged_all_gather(stages, gathered_bytes), stages, network)
    return _use_of_stages(all_to_all(stages[0][0], gathered_bytes * pattern.gathered_digits.size), stages, network)


def use_of_rings(rings: Sequence[Digit], carried: RingLoads, unit_bytes: float, network: Network) -> Use | None:
    """What hops along rings take; None where one is no level of a network, or their links are of several kinds.

    Args:
        rings: the places along each, as a digit of the device number.
        carried: what links of any carry, in units.
        unit_bytes: of a unit.
        network: must reach all devices.
    """
    busy = busy_along(rings, carried.fullest * unit_bytes, len(carried.hops), network)
    if busy is None:
        return None
    level = next(level for level in network.levels if level.digit == rings[0])
    seconds = sum(carried.hops) * unit_bytes / level.bandwidth + len(carried.hops) * level.latency_s
    return Use(seconds + network.launch_s, (*busy, network.launch_s))


def busy_along(rings: Sequence[Digit], carried_bytes: float, hops: int, network: Network) -> tuple[float, ...] | None:
    """What `Use.busy` says of levels where the fullest link of rings carries so much; None as `use_of_rings`."""
    used = [level for level in network.levels if level.digit in rings and level.link == "ring"]
    if len(used) != len(rings) or len({(level.bandwidth, level.latency_s) for level in used}) > 1:
        return None
    seconds = carried_bytes / used[0].bandwidth + hops * used[0].latency_s
    return tuple([seconds * (level in used) for level in network.levels for _ in range(level.places)])


def _use_of_ring_exchange(exchange: RingExchange, itemsize: float, network: Network) -> Use:
    """That of an exchange along a ring, hop by hop where the ring is no level, or the tensor fills not all blocks."""
    common, mesh = exchange.common, exchange.source.mesh
    if mesh.device_ids is None and common.filled(exchange.target.shape) >= NEARLY:
        carried = ring_loads(exchange.roles) if exchange.across is None else transposed_loads(exchange.ring.size)
        unit_bytes = prod(common.lengths) * prod(common.loose_sizes) * itemsize
        use = use_of_rings(exchange.rings, carried, unit_bytes, network)
        if use is not None:
            return use
    hops = [loads(network.levels, *traffic) for traffic in exchange.traffic_of_hops()]
    together = _use_of_loads(loads(network.levels, *exchange.traffic()), itemsize, network)
    seconds = sum(hop.seconds(network.levels, itemsize) for hop in hops)
    return Use(seconds + network.launch_s, together.busy)


def least_busy(pattern: Pattern, mesh: Mesh, sent_bytes: float, network: Network) -> tuple[float, ...]:
    """What `Use.busy` says of levels at the least, in a fraction of the time; latencies of pieces are left out.

    Args:
        pattern: in which something is sent.
        mesh: of those that send, and of those that receive.
        sent_bytes: what goes from one device to one other in one round.
        network: must reach all devices.
    """
    if pattern.kind and _stages_of(network, mesh, pattern) is not None:
        use = use_of_pattern(pattern, (mesh, mesh), sent_bytes, network)
        return (0.0,) * network.places if use is None else use.busy[:-1]
    bandwidths = [level.bandwidth for level in network.levels for _ in range(level.places)]
    carried = _least_carried(network, mesh, pattern)
    return tuple([load * sent_bytes / bandwidth for load, bandwidth in zip(carried, bandwidths, strict=True)])


@lru_cache(CACHED)
def _least_carried(network: Network, mesh: Mesh, pattern: Pattern) -> tuple[float, ...]:
    """What links and ports carry at the least, in pieces."""
    digits = _numbered(mesh, pattern.digits)
    if digits is None:
        return (0.0,) * network.places
    return least_carried(network.levels, digits, pattern.determined_by, pattern.gathered)


@lru_cache(256)
def unnamed(mesh: Mesh) -> Mesh:
    """The devices of a mesh, whatever its axes."""
    return Mesh((("devices", mesh.size),), mesh.device_ids)


def _pattern(exchange: DigitExchange) -> Pattern:
    kinds = tuple([_kind(exchange, number) for number in exchange.gathered])
    return Pattern.of(exchange.common.digits, exchange.determined_by, exchange.gathered, kinds)


def _use_of_loads(carried: Loads, unit_bytes: float, network: Network) -> Use:
    latency = carried.latency_s
    busy = [
        load * unit_bytes / level.bandwidth + latency if load else 0.0
        for number, level in enumerate(network.levels)
        for load in (carried.along and carried.along[number]) or [carried.carried[number]] * level.places
    ]
    return Use(carried.seconds(network.levels, unit_bytes) + network.launch_s, (*busy, network.launch_s))


def _use_of_stages(seconds: float, stages: tuple[tuple[Level, ...], ...], network: Network) -> Use:
    """Of a collective, whose levels all are busy as long as it takes, by some stage of it."""
    used = [part for stage in stages for part in stage]
    busy = [
        seconds if any(level.stride <= part.stride < level.stride * level.size for part in used) else 0.0
        for level in network.levels
        for _ in range(level.places)
    ]
    return Use(seconds + network.launch_s, (*busy, network.launch_s))


@lru_cache(256)
def check_reach(network: Network, mesh: Mesh) -> None:
    """Refuse a mesh that has devices beyond a network, as `bad-network`."""
    last = mesh.size - 1 if mesh.device_ids is None else max(mesh.device_ids)
    if last >= network.size:
        name = network.name or "network"
        raise ReshardError("bad-network", f"device {last} is beyond the {network.size} devices of {name}")


def _all_reduce_use(step: Step, itemsize: float, network: Network) -> Use | None:
    """A reduce-scatter and an all-gather in each group; None where the groups do not lie on levels.

    Where every device combines by itself all tiles are gathered: as many bytes as they have, in half the messages.

    >>> from reshard.mesh import Mesh
    >>> from reshard.problem import Reshard
    >>> from reshard.sharding import Sharding
    >>> mesh, network = Mesh.of(x=4), Network((Level(1, 4, "switch", 1e9, 1e-6),))
    >>> reshard = Reshard.of(Sharding.of(mesh, None, unreduced="x"), Sharding.of(mesh, None), (1000,), "f32")
    >>> [round(seconds_of(Step(reshard, near=near), network) * 1e6, 3) for near in (0, 1)], 4 + 2 * 3, 2 + 4 * 3
    ([10.0, 14.0], 10, 14)
    """
    exchange = step.moves[0].exchange
    if not isinstance(exchange, DigitExchange):
        return None
    check_reach(network, step.before.mesh)
    stages = _stages(network, step.before.mesh, exchange.combined)
    if stages is None:
        return None
    tile = prod(step.before.local_shape(step.shape)) * itemsize
    if not tile:
        return Use.of_nothing(network)
    times, gathered = (1, tile * exchange.combined.size) if len(step.moves) == 1 else (2, tile)
    return _use_of_stages(times * staged_all_gather(stages, gathered), stages, network)


@lru_cache(CACHED)
def _stages_of(network: Network, mesh: Mesh, pattern: Pattern) -> tuple[tuple[Level, ...], ...] | None:
    """The stages by which a collective has a formula; None where it is none, or does not lie on levels."""
    stages = _stages(network, mesh, pattern.gathered_digits) if pattern.stays else None
    if stages is None or pattern.kind != "all-to-all":
        return stages
    if len(stages) > 1 or len(stages[0]) > 1 or not (stages[0][0].is_switch or stages[0][0] in network.levels):
        return None
    return stages


def _kind(exchange: DigitExchange, number: int) -> str | None:
    """The collective that a gathered digit is part of."""
    return kind_of(exchange.common.source_roles[number], exchange.common.target_roles[number])


@lru_cache(CACHED)
def _stages(network: Network, mesh: Mesh, positions: Digits) -> tuple[tuple[Level, ...], ...] | None:
    """The parts of levels that a group uses, innermost first; those of one torus together.

    None where the group is no product of parts of levels, or is no ring of its own where links lead one way.
    """
    digits = device_digits(mesh, positions)
    if digits is None:
        return None
    used: list[list[Level]] = []
    for level in network.levels:
        parts = Digits(sorted(digits.within(level.digit), reverse=True)).joined()
        if level.is_switch and parts:
            parts = Digits([Digit(parts[-1].stride, parts.size)])
        if level.link == "one-way-ring" and not all(map(level.is_closed_for, parts)):
            return None
        used.append([level.part(part) for part in reversed(parts)])
    if prod(part.size for parts in used for part in parts) != positions.size:
        return None
    stages: list[tuple[Level, ...]] = []
    for numbers in reversed(runs(network.levels)):
        ordered = [used[number] for number in reversed(numbers) if used[number]]
        if all(len(parts) == 1 for parts in ordered):
            ordered = [[part for parts in ordered for part in parts]]
        else:  # parts of one ring share its links, so they follow one another
            ordered = [[part] for parts in ordered for part in parts]
        stages += [tuple(stage) for stage in ordered if stage]
    return tuple(stages)


@lru_cache(CACHED)
def piece_loads(
    network: Network,
    source: Mesh,
    receivers: Mesh,
    digits: Digits,
    determined_by: tuple[int, ...],
    gathered: tuple[int, ...],
) -> Loads:
    """The loads of an exchange of a pattern whose pieces are all of one size, in pieces."""
    shared = receivers is source or receivers == source
    numbered = _numbered(source, digits) if shared else None
    if numbered:
        in_closed_form = digit_loads(network.levels, numbered, determined_by, gathered)
        if in_closed_form is not None:
            return in_closed_form
    k = prod(digits[i].size for i in gathered)
    if k * digits.size > ENUMERABLE:
        raise ReshardError("too-large", f"{k} rounds of {source.size} devices are too many to list one by one")
    positions = digits.offsets()
    senders = senders_by_round(digits, determined_by, gathered, positions).ravel()
    positions = np.broadcast_to(positions, (k, len(positions))).ravel()
    if shared:
        travels = senders != positions
        senders, positions = senders[travels], positions[travels]
    if not len(senders):
        return Loads((0.0,) * len(network.levels), 0.0)
    return loads(network.levels, _names(source, senders), _names(receivers, positions), np.ones(len(senders)))


def _numbered(mesh: Mesh, digits: Digits) -> Digits | None:
    """Digits of the position as one digit of the device number each; None where one is none."""
    if mesh.device_ids is None:
        return digits
    parts = [device_digits(mesh, Digits((digit,))) or () for digit in digits]
    return Digits([part for listed in parts for part in listed]) if all(len(listed) == 1 for listed in parts) else None


def _names(mesh: Mesh, positions: Positions) -> Positions:
    """The devices at positions."""
    return positions if mesh.device_ids is None else mesh.device_array[positions]
