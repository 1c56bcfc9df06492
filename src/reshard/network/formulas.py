"""What collectives cost on one level, from the bytes and the level alone.

V is always the bytes of the gathered array: what each device has after an all-gather, what it has before a
reduce-scatter, and what the n devices of the group hold together around an all-to-all.
w is the bandwidth in one direction, W = 2 w that of a link both ways, and a the latency of a hop.

    bytes part         ring            one-way ring    line                   switch
    all-gather         (n-1)/n V / W   (n-1)/n V / w   (n-1)/n V / w          (n-1)/n V / w
    reduce-scatter     the same
    all-reduce         twice that
    all-to-all         V / (4W)        (n-1)/(2n) V/w  ⌊n/2⌋⌈n/2⌉/n² V / w    (n-1)/n² V / w

    hops               ring            one-way ring    line                   switch
    all-gather         ⌊n/2⌋           n-1             n-1                    ⌈log2 n⌉
    all-to-all         ⌊n/2⌋           n-1             n-1                    n-1

The all-to-all of an odd ring takes (n² - 1) / n² of that.

On rings and lines data stream from neighbour to neighbour while the first of them are on their way, so the latencies of
all hops of the farthest message are a floor under the bytes that links carry, not an addend.
Through a switch messages follow one another, each after its latency: a per hop plus the bytes.
What is exchanged in pieces is priced by the same two rules (`traffic.py`).

Sources: "How to Scale Your Model" (Austin et al. 2025), chapter "Sharded matrices and how to multiply them", for
rings and the floor (it counts what a device has already among what it receives: V / W); Chan, Heimlich, Purkayastha,
van de Geijn, "Collective communication: theory, practice, and experience" (2007), for switches.

>>> level = Level(1, 4, "ring", 45e9, 1e-6)
>>> round(all_gather(level, 34e6) * 1e6), round(3 / 4 * 34e6 / 90e9 * 1e6)
(283, 283)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, combinations
from math import prod
from typing import NamedTuple

from reshard.network.level import Level


class Timing(NamedTuple):
    """What a collective takes, told apart."""

    wait_s: float
    """Latencies of messages through switches, before bytes flow."""
    hops_s: float
    """Latencies of hops along rings and lines, while bytes flow."""
    bytes_s: float
    """What the bytes take on the busiest link or port."""

    @property
    def seconds(self) -> float:
        """All of it.

        >>> Timing(1.0, 2.0, 3.0).seconds, Timing(1.0, 3.0, 2.0).seconds
        (4.0, 4.0)
        """
        return self.wait_s + max(self.hops_s, self.bytes_s)


def all_gather(level: Level, gathered_bytes: float) -> float:
    """Seconds until each of n devices, with V / n bytes at first, has all V.

    On a two-way ring every hop brings 2 V / n bytes, V / n from each side, at W = 2 w, and (n - 1) / 2 hops are needed,
    of an even ring the last one for half from each side: (n - 1) / n V / W.
    On a one-way ring or a line a device at the end receives n - 1 shards through one link.
    Through a switch: recursive doubling, ⌈log2 n⌉ messages and (n - 1) / n V through each port (Chan et al. 2007).

    >>> one_way, line = Level(1, 4, "one-way-ring", 45e9, 1e-6), Level(1, 4, "line", 45e9, 1e-6)
    >>> [round(all_gather(level, 36e6) * 1e6) for level in (one_way, line)], 3 * 9 / 45e-3
    ([600, 600], 600.0)
    """
    return gather_timing([level], gathered_bytes).seconds


def gather_timing(levels: Sequence[Level], gathered_bytes: float) -> Timing:
    """What an all-gather takes over one level, or over several of a torus at once.

    >>> gather_timing([Level(1, 4, "switch", 1.0, 1.0)], 8)
    Timing(wait_s=2.0, hops_s=0.0, bytes_s=6.0)
    """
    level = levels[0]
    if level.is_switch:
        bytes_s = (level.size - 1) / level.size * gathered_bytes / level.bandwidth
        return Timing(level.latency_s * _log2(level.size), 0.0, bytes_s)
    floor = sum([level.latency_s * level.hops for level in levels])
    return Timing(0.0, floor, gathered_bytes * _seconds_per_gathered_byte(tuple(levels)))


def all_gather_together(levels: Sequence[Level], gathered_bytes: float) -> float:
    """Seconds of an all-gather over several levels of a torus at once: max(Σ hops · a, (n - 1) / n V / Σ W) on rings.

    The array is cut in shares that go through the levels in different orders, so that all links are busy
    ("How to Scale Your Model": the bandwidth grows by the number of axes, the latencies of all hops add up).
    Where links are fewer or slower along some levels, these may be busy longest: the devices that agree along them
    lack all but their part of V, and only those links lead to them.

    >>> levels = [Level(1, 4, "ring", 45e9, 1e-6), Level(4, 4, "ring", 45e9, 1e-6)]
    >>> all_gather_together(levels, 1024) * 1e6, round(all_gather_together(levels, 8.4e6) * 1e6, 1)
    (4.0, 43.8)

    On lines of 2 and of 4 devices, the one in the corner has two links for the 7/8 that it lacks:

    >>> grid = [Level(1, 2, "line", 45e9, 0.0), Level(2, 4, "line", 45e9, 0.0)]
    >>> round(all_gather_together(grid, 8e6) * 1e6, 2), round(7e6 / (2 * 45e9) * 1e6, 2)
    (77.78, 77.78)
    """
    return gather_timing(levels, gathered_bytes).seconds


@lru_cache(256)
def _seconds_per_gathered_byte(levels: tuple[Level, ...]) -> float:
    """What all that devices lack takes, whichever of the levels lead to it."""
    devices = prod(level.size for level in levels)
    subsets = chain.from_iterable(combinations(levels, count) for count in range(1, len(levels) + 1))
    return max(_gather_share(subset, devices) for subset in subsets)


def _gather_share(levels: Sequence[Level], devices: int) -> float:
    """Seconds per gathered byte for what devices lack that agree along these levels of a torus."""
    parts = prod(level.size for level in levels)
    rate = sum(level.both_ways if level.link == "ring" else level.bandwidth for level in levels)
    return (parts - 1) / rate / devices


@lru_cache(256)
def gather_loads(levels: tuple[Level, ...]) -> tuple[tuple[float, float], ...]:
    """Per level of a torus the seconds of its links for a gathered byte, and in how many of the largest messages.

    Of two levels so much goes along either first that both are busy as long, where that can be; of three or more each
    is taken to be last for as much.
    A hop brings what a device has so far from either side, along a ring of two half of it.

    By hand, of 8 shards on lines of 4 and of 2, 5/6 go along the longer first: 3 messages of 5/6 and 3 of 2 · 1/6 along
    that, one of 4 · 5/6 and one of 1/6 along the other, 3.5 shards on both.

    >>> lines = Level(1, 4, "line", 1.0, 0.0), Level(4, 2, "line", 1.0, 0.0)
    >>> [(round(seconds * 8, 6), round(messages, 6)) for seconds, messages in gather_loads(lines)]
    [(3.5, 4.2), (3.5, 1.05)]
    """
    devices, sizes = prod(level.size for level in levels), [level.size for level in levels]
    halves = [2 if level.size == 2 and level.link == "ring" else 1 for level in levels]
    if len(levels) == 2:
        each = [(level.size - 1) / (level.both_ways if level.link == "ring" else level.bandwidth) for level in levels]
        both = each[0] * (sizes[1] - 1) + each[1] * (sizes[0] - 1)
        first = min(max((each[0] * sizes[1] - each[1]) / both, 0.0), 1.0)
        last = [sizes[1] * (1.0 - first), sizes[0] * first]  # shards that go along a level when it is the last
        seconds = [
            alone * sum(shards) / devices for alone, *shards in zip(each, (first, 1.0 - first), last, strict=True)
        ]
        largest = [max(shards) / devices for shards in zip((first, 1.0 - first), last, strict=True)]
    else:
        seconds = [_seconds_per_gathered_byte(levels)] * len(levels)
        largest = [1.0 / (size * len(levels)) for size in sizes]
    amounts = [alone * level.bandwidth for alone, level in zip(seconds, levels, strict=True)]
    messages = [half * amount / most for half, amount, most in zip(halves, amounts, largest, strict=True)]
    return tuple(zip(seconds, messages, strict=True))


def reduce_scatter(level: Level, partial_bytes: float) -> float:
    """Seconds until each of n devices has the sum of one n-th of their V partial bytes.

    The transpose of the all-gather: the same messages run backwards, and are added instead of copied.
    """
    return all_gather(level, partial_bytes)


def all_reduce(level: Level, partial_bytes: float) -> float:
    """Seconds until each of n devices has the sum of all V partial bytes: a reduce-scatter, then an all-gather.

    >>> round(all_reduce(Level(1, 4, "ring", 45e9, 1e-6), 524288) * 1e6, 2)
    8.74
    """
    return reduce_scatter(level, partial_bytes) + all_gather(level, partial_bytes)


def all_to_all(level: Level, total_bytes: float) -> float:
    """Seconds until each of n devices has sent 1 / n of its V / n bytes to each.

    On a two-way ring a piece of V / n² travels n / 4 hops on average; n² pieces share 2 n links, each V / 8 at w:
    a quarter of V / W ("How to Scale Your Model"), and 1 / n² of that less where n is odd.
    One way round the average is (n - 1) / 2 hops over n links.
    On a line the link in the middle carries all that goes from one half to the other.
    Through a switch each port carries n - 1 of the n pieces of its device; directly, so after n - 1 latencies.

    >>> ring, line = Level(1, 4, "ring", 45e9, 0.0), Level(1, 4, "line", 45e9, 0.0)
    >>> [round(all_gather(level, 36e6) / all_to_all(level, 36e6), 9) for level in (ring, line)]
    [3.0, 3.0]
    """
    n, w = level.size, level.bandwidth
    if level.is_switch:
        return level.latency_s * (n - 1) + (n - 1) / n**2 * total_bytes / w
    share = {"ring": (n * n - n % 2) / (8 * n * n), "one-way-ring": (n - 1) / (2 * n)}.get(
        level.link, (n // 2) * ((n + 1) // 2) / n**2
    )
    return max(level.latency_s * level.hops, share * total_bytes / w)


def broadcast(level: Level, sent_bytes: float) -> float:
    """Seconds until all n devices have the V bytes of one; also of its transpose, a reduction to one device.

    In a pipeline of small parts every device sends on what it receives, so V passes each link or port once
    (Chan et al. 2007); two-way rings and all else that could divide the work count as a pipeline too.
    """
    if level.is_switch:
        return level.latency_s * _log2(level.size) + sent_bytes / level.bandwidth
    return max(level.latency_s * level.hops, sent_bytes / level.bandwidth)


def stage_timings(stages: Iterable[Sequence[Level]], gathered_bytes: float) -> list[Timing]:
    """What an all-gather, or a reduce-scatter backwards, takes over levels of several speeds, stage by stage.

    The outermost level goes first, while shards are small, and the innermost last, with all V; levels of one
    torus go together.
    Stages add up: a fused collective costs what its stages cost as steps of their own.

    Args:
        stages: what is gathered over at once, innermost first: one switch level, or levels of a torus.
        gathered_bytes: V.

    Returns:
        Of each stage, innermost first.

    By hand: 16 devices on 2 hosts; between hosts each gathers its eighth of 16 MB, half of it from outside, so
    1 MB; then the 7 others of a host give 14 MB.

    >>> inside, outside = Level(1, 8, "switch", 450e9, 0.0), Level(8, 2, "switch", 50e9, 0.0)
    >>> [timing.seconds for timing in stage_timings([[inside], [outside]], 16e6)] == [14e6 / 450e9, 1e6 / 50e9]
    True
    """
    timings, shards = list[Timing](), gathered_bytes
    for levels in stages:
        timings.append(gather_timing(levels, shards))
        for level in levels:
            shards /= level.size
    return timings


def _log2(size: int) -> int:
    return (size - 1).bit_length()
