"""How long what is sent in a pattern keeps links and ports busy.

A collective over digits that lie on levels takes what its formula says, stage by stage: all-gather, reduce-scatter
and all-reduce over any parts of levels, all-to-all over one level.
Every other pattern takes what its pieces do: the busiest link or port of the busiest level, after the latencies of all
messages that one device sends or receives through switches, one after another; along rings and lines no less than the
hops of the piece that goes farthest.
Rounds are not waited for, so bytes count in total and not round by round.
What pieces put on links is worked out once for a pattern, whatever tensors follow it.

By hand, 2 hosts of 2 devices, 200 bytes/s through a port inside a host and 100 between hosts; 100 bytes are sent.
An all-gather inside hosts takes half a second there; where devices 1 and 2 swap, it goes between hosts and takes one.

>>> from reshard.mesh import Mesh
>>> network = Network((Level(1, 2, "switch", 200, 0), Level(2, 2, "switch", 100, 0)))
>>> digits, devices = Digits.of_sizes([2, 2]), Mesh.of(devices=4)
>>> patterns = Pattern.of(digits, (0, 1), (1,), ("all-gather",)), Pattern.of(digits, (1, 0), (), ())
>>> for pattern in patterns:
...     print(use_of_pattern(pattern, (devices, devices), 100, network)[:2])
(0.5, (0.5, 0.0, 0.0))
(1.0, (0.0, 1.0, 0.0))
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from operator import mul

import numpy as np

from reshard.digits import Digit, Digits, Positions
from reshard.errors import ReshardError
from reshard.exchange.by_digits import DigitExchange, senders_by_round
from reshard.mesh import ENUMERABLE, Mesh
from reshard.network.digit_loads import digit_loads, least_carried
from reshard.network.formulas import Timing, gather_loads, stage_timings
from reshard.network.lettered_tables import LetteredTable
from reshard.network.level import Level
from reshard.network.networks import Network
from reshard.network.numbers import device_digits
from reshard.network.patterns import Pattern
from reshard.network.ring_loads import RingLoads
from reshard.network.traffic import Loads, loads, orders, runs
from reshard.network.use import LinkFlow, LinkTurn, Use
from reshard.refinement import Cuts

CACHED = 4096
"""Patterns of exchanges whose loads are kept."""


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
    stages = _stages_of_pattern(network, source, pattern) if shared else None
    if stages is None:
        if not is_even:
            return None
        carried = piece_loads(network, source, receivers, pattern.digits, pattern.determined_by, pattern.gathered)
        return use_of_loads(carried, sent_bytes, network, sent_bytes)
    gathered_bytes = sent_bytes * pattern.gathered_digits.size
    return use_of_stages(stage_timings(stages, gathered_bytes), stages, network)


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
    own = carried.fullest / (sum(carried.hops) or 1.0)  # of what a hop puts on its fullest link, the link of all hops
    used = [own * (level.digit in rings) for level in network.levels for _ in range(level.places)]
    messages = [rate / level.bandwidth * part for rate, part in zip(_messages_of_a_byte(network), used, strict=True)]
    turns, seconds = list[LinkTurn](), 0.0
    for hop in carried.hops:
        bytes_s = hop * unit_bytes / level.bandwidth
        least_s = max(level.latency_s, bytes_s)
        turns.append((LinkFlow(0.0, least_s, tuple([bytes_s * part for part in used]), tuple(messages)),))
        seconds += least_s
    return Use.started(seconds, busy, turns, network)


def busy_along(rings: Sequence[Digit], carried_bytes: float, hops: int, network: Network) -> tuple[float, ...] | None:
    """What `Use.busy` says of levels where the fullest link of rings carries so much; None as `use_of_rings`."""
    used = [level for level in network.levels if level.digit in rings and level.link == "ring"]
    if len(used) != len(rings) or len({(level.bandwidth, level.latency_s) for level in used}) > 1:
        return None
    seconds = max(carried_bytes / used[0].bandwidth, hops * used[0].latency_s)
    return tuple([seconds * (level in used) for level in network.levels for _ in range(level.places)])


def least_busy(pattern: Pattern, mesh: Mesh, sent_bytes: float, network: Network) -> tuple[float, ...]:
    """What `Use.busy` says of levels at the least, in a fraction of the time; latencies of pieces are left out.

    Args:
        pattern: in which something is sent.
        mesh: of those that send, and of those that receive.
        sent_bytes: what goes from one device to one other in one round.
        network: must reach all devices.
    """
    if pattern.kind and _stages_of_pattern(network, mesh, pattern) is not None:
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


def use_of_loads(carried: Loads, unit_bytes: float, network: Network, piece_bytes: float) -> Use:
    """Of pieces that put so much on links; the largest is of `piece_bytes`."""
    flows = [
        load * unit_bytes / level.bandwidth
        for number, level in enumerate(network.levels)
        for load in (carried.along and carried.along[number]) or [carried.carried[number]] * level.places
    ]
    busy = [carried.with_latencies(bytes_s) if bytes_s else 0.0 for bytes_s in flows]
    rates = [rate / piece_bytes for rate in _messages_of_a_byte(network)]
    flow = LinkFlow(carried.waits_s, carried.hops_s, tuple(flows), tuple(map(mul, flows, rates)))
    return Use.started(carried.seconds(network.levels, unit_bytes), busy, [(flow,)], network)


@lru_cache(64)
def _messages_of_a_byte(network: Network) -> list[float]:
    """Per place, in how many messages a piece of a byte crosses it in a second.

    It goes in as many as the levels of a torus have orders, and along a ring of two half each way.

    >>> ring, line = Level(1, 2, "ring", 3.0, 0.0), Level(2, 2, "line", 5.0, 0.0)
    >>> _messages_of_a_byte(Network((ring, line)))
    [12.0, 10.0]
    """
    torus = [number for number, level in enumerate(network.levels) if not level.is_switch]
    ways = max(len(orders(torus)), 1)
    return [
        level.bandwidth * ways * (2 if level.size == 2 and level.link == "ring" else 1)
        for level in network.levels
        for _ in range(level.places)
    ]


def use_of_stages(
    timings: Sequence[Timing], stages: tuple[tuple[Level, ...], ...], network: Network, times: int = 1
) -> Use:
    """Of a collective, so many times; its levels all are busy as long as it takes, by some stage of it.

    Args:
        timings: of each stage, innermost first.
        stages: the parts of levels that each uses.
        network: that of these levels.
        times: how often it goes through them, each time in a turn.
    """
    flows = []
    for timing, stage in zip(timings, stages, strict=True):
        shares, messages = _places_of_stage(network, stage)
        flows.append(
            LinkFlow(timing.wait_s, timing.hops_s, tuple([timing.bytes_s * share for share in shares]), messages)
        )
    seconds = sum([timing.seconds for timing in timings]) * times
    used = map(any, zip(*(flow.messages for flow in flows), strict=True))
    return Use.started(seconds, [seconds * is_used for is_used in used], [tuple(flows[::-1])] * times, network)


@lru_cache(CACHED)
def _places_of_stage(network: Network, stage: tuple[Level, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per place how much of the time of the busiest a stage of a gather takes there, and in how many messages."""
    of_parts = ((1.0, 1.0),) if stage[0].is_switch else gather_loads(stage)
    busiest = max(seconds for seconds, _ in of_parts)
    listed = list[tuple[float, float]]()
    for level in network.levels:
        here = [
            (seconds / busiest, messages)
            for part, (seconds, messages) in zip(stage, of_parts, strict=True)
            if level.stride <= part.stride < level.stride * level.size
        ]
        listed += [here[0] if here else (0.0, 0.0)] * level.places
    shares, messages = zip(*listed, strict=True)
    return shares, messages


@lru_cache(CACHED)
def _stages_of_pattern(network: Network, mesh: Mesh, pattern: Pattern) -> tuple[tuple[Level, ...], ...] | None:
    """The stages by which a collective has a formula; None where it is none, or does not lie on levels."""
    is_gather = pattern.stays and pattern.kind in ("all-gather", "reduce-scatter")
    return stages_of_group(network, mesh, pattern.gathered_digits) if is_gather else None


@lru_cache(CACHED)
def stages_of_group(network: Network, mesh: Mesh, positions: Digits) -> tuple[tuple[Level, ...], ...] | None:
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
        return Loads((0.0,) * len(network.levels), 0.0, 0.0)
    return loads(network.levels, _names(source, senders), _names(receivers, positions), np.ones(len(senders)))


def unlike_piece_loads(exchange: DigitExchange, network: Network) -> Loads | None:
    """The loads of an exchange whose pieces differ in size, in elements; None as `digit_loads`, or on other devices."""
    numbered = _numbered(exchange.source.mesh, exchange.common.digits) if exchange.shares_devices else None
    if numbered is None:
        return None
    lengths = _piece_lengths(exchange)
    return digit_loads(network.levels, numbered, exchange.determined_by, exchange.gathered, lengths)


def _piece_lengths(exchange: DigitExchange) -> list[LetteredTable]:
    """Per dim how long pieces are there, by digits as `digit_loads` numbers them.

    By hand, 5 rows on 4 devices, 2 each, of which all devices want every second half of the columns:

    >>> from reshard.mesh import Mesh
    >>> from reshard.exchange.by_digits import by_digits
    >>> from reshard.sharding import Sharding
    >>> from reshard.tiling import Tiling
    >>> mesh = Mesh.of(x=2, y=4)
    >>> ends = [Tiling.of(Sharding.of(mesh, *dims), (5, 6)) for dims in (("y", None), (None, "x"))]
    >>> [(table.values.tolist(), table.letters) for table in _piece_lengths(by_digits(*ends))]
    [([2, 2, 1, 0], [3]), (3, [])]
    """
    common, tables = exchange.common, list[LetteredTable]()
    for dim, (length, size) in enumerate(zip(common.lengths, exchange.target.shape, strict=True)):
        starts, letters = np.zeros((), dtype=np.int64), list[int]()
        for i, digit in enumerate(common.digits):
            cuts = [(len(common.digits) + i, common.source_roles[i])] if i in exchange.gathered else []
            for letter, role in (*cuts, (i, common.target_roles[i])):
                if isinstance(role, Cuts) and role.dim == dim:
                    starts = np.add.outer(starts, np.arange(digit.size) * role.stride)
                    letters.append(letter)
        offsets = exchange.loose_offsets[dim]
        lengths = np.sum([np.clip(size - starts - offset, 0, length) for offset in offsets], axis=0)
        if lengths.min() == lengths.max():
            lengths, letters = lengths.max(), []
        tables.append(LetteredTable(np.asarray(lengths), letters))
    return tables


def _numbered(mesh: Mesh, digits: Digits) -> Digits | None:
    """Digits of the position as one digit of the device number each; None where one is none."""
    if mesh.device_ids is None:
        return digits
    parts = [device_digits(mesh, Digits((digit,))) or () for digit in digits]
    return Digits([part for listed in parts for part in listed]) if all(len(listed) == 1 for listed in parts) else None


def _names(mesh: Mesh, positions: Positions) -> Positions:
    """The devices at positions."""
    return positions if mesh.device_ids is None else mesh.device_array[positions]


@lru_cache(256)
def unnamed(mesh: Mesh) -> Mesh:
    """The devices of a mesh, whatever its axes."""
    return Mesh((("devices", mesh.size),), mesh.device_ids)
