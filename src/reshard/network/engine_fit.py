"""A network fitted to an engine: what its messages cost, and what its plans take besides.

Three things are measured, in turn:

    one medium   whether levels carry at the same time: where all devices send along every level at once and that takes
                 as long as one level after the other, as between ranks that share a machine's memory, one switch joins
                 them all
    messages     latency and bandwidth of every level (`calibration`)
    chains       a few steps of several kinds and sizes, and pairs of them: what it takes to start a plan and a step,
                 what messages and bytes take there, how fast a device copies its tiles before and after, and how
                 long devices wait until all that begin a collective are there
    work         products and sums of squares of floats on all devices at once: operations and bytes of memory a second

Chains are fitted by factors of what they are made of, so what levels are to one another stays as it was measured.

By hand, an engine that takes 1 ms to start a step, and twice as long for a byte as bare messages do:

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=2)
>>> network = Network((Level(1, 4, "switch", 1e9, 0.0),))
>>> slow = replace(network, levels=tuple(replace(level, bandwidth=5e8) for level in network.levels), launch_s=1e-3)
>>> timings = [(steps, sum(seconds_of(step, slow) for step in steps)) for steps in chains_to_time(mesh)]
>>> found = fitted_to_chains(network, timings)
>>> round(found.launch_s, 6), round(found.levels[0].bandwidth), found.copy_bandwidth
(0.001, 500000000, None)
>>> round(found.call_s, 9), round(found.meet_s, 9)
(0.0, 0.0)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from math import inf, log2
from random import Random
from statistics import median

from reshard.mesh import Mesh
from reshard.network.calibration import Calibration, Timer, fit_line, least_relative, neighbours
from reshard.network.level import Level
from reshard.network.networks import Network
from reshard.network.pricing import busy_seconds, copied_elements, meetings, seconds_of
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Chain, Step

WorkTimer = Callable[[int], float]
"""The side of squares -> seconds."""

SHARED_BYTES = 1 << 20
"""What is sent along levels, one and all."""
WHOLE_BYTES = tuple(2**power for power in range(12, 25, 4))
"""About what the tensors have of which chains are timed, and what a device has after a gather: 4 KiB to 16 MiB."""
PASSES = 6
"""How often all chains are timed, in turn, each time in another order: what ran before is not the chain."""
NEGLIGIBLE = 1e-15
"""Seconds per copied byte below which copies do not count."""
LEAST = 0.05
"""Of what bare messages take for a byte; where copies tell all of it, this much is left."""
ITEMSIZE = 4
PRODUCT_SIDES, SUM_SIDES = (64, 128, 256, 512), (128, 256, 512, 1024)
"""Of the squares that are multiplied and added."""


def fitted_to_engine(
    guess: Network,
    mesh: Mesh,
    time_exchange: Timer,
    time_chain: Callable[[Chain], float],
    *,
    sizes: Sequence[int],
    repeats: int,
) -> tuple[Network, Calibration]:
    """The network of an engine's devices, and how well messages alone are predicted.

    Args:
        guess: its levels.
        mesh: of all its devices.
        time_exchange: as that of `Network.calibrate`; a device may be in several pairs.
        time_chain: seconds that the engine takes once for steps of zeros of float32; the shortest time counts.
        sizes: bytes of messages.
        repeats: how often each message is measured.

    Raises:
        ReshardError: as `Network.calibrate`.
    """
    if _is_one_medium(guess, time_exchange, repeats):
        guess = replace(guess, levels=(Level(1, guess.size, "switch", 1e9, 1e-6),))
    network, fit = guess.calibrate(time_exchange, sizes=sizes, repeats=repeats)
    chains = chains_to_time(mesh)
    fastest = dict.fromkeys(chains, inf)
    for number in range(PASSES):
        for steps in Random(number).sample(chains, len(chains)):  # the same order on all ranks
            fastest[steps] = min(fastest[steps], time_chain(steps))
    return fitted_to_chains(network, list(fastest.items())), fit


def fitted_to_work(network: Network, time_product: WorkTimer, time_sum: WorkTimer) -> Network:
    """The network with what its devices compute and read and write a second, all at once.

    Args:
        network: of the devices.
        time_product: seconds for a product of two squares of float32 of a side.
        time_sum: the same for their sum, which reads two and writes one.

    By hand, a millisecond to start, 2 operations for each of side^3 elements at 2 GHz, 12 bytes for each of side^2:

    >>> product_s = {side: 1e-3 + 2 * side**3 / 2e9 for side in PRODUCT_SIDES}
    >>> fitted = fitted_to_work(Network(()), product_s.__getitem__, lambda side: 12 * side**2 / 5e9)
    >>> round(fitted.flops), round(fitted.memory_bandwidth)
    (2000000000, 5000000000)
    """
    flops = _per_second([2 * side**3 for side in PRODUCT_SIDES], [_least(time_product, side) for side in PRODUCT_SIDES])
    touched = _per_second(
        [3 * ITEMSIZE * side**2 for side in SUM_SIDES], [_least(time_sum, side) for side in SUM_SIDES]
    )
    return replace(network, flops=flops, memory_bandwidth=touched)


def _least(timer: WorkTimer, side: int) -> float:
    return min(timer(side) for _ in range(PASSES))


def _per_second(amounts: Sequence[float], times: Sequence[float]) -> float | None:
    """How much of something is done a second; None where more takes no longer."""
    _, per_unit = fit_line(amounts, times)
    return 1 / per_unit if per_unit > 0 else None


def _is_one_medium(guess: Network, time_exchange: Timer, repeats: int) -> bool:
    """Whether all levels at once take nearly as long as one after the other."""
    if len(guess.levels) < 2:
        return False
    alone = [neighbours(guess.levels, number) for number in range(len(guess.levels))]
    together = tuple(chain.from_iterable(alone))
    times = [
        [time_exchange(number, SHARED_BYTES, pairs) for number, pairs in (*enumerate(alone), (0, together))]
        for _ in range(repeats)
    ]
    *single, all_at_once = (float(median(column)) for column in zip(*times, strict=True))
    return all_at_once > (sum(single) + max(single)) / 2


def chains_to_time(mesh: Mesh) -> list[Chain]:
    """Steps of several kinds and sizes, and pairs of them.

    Gathers of rows and of columns, all-to-alls, both, a gather and a slice, over all axes and over the last; where
    there are several axes, also whole tiles that change places, and an exchange.
    Sides are powers of two times the number of devices, as most dims are: engines copy others more slowly.

    >>> [[step.kind for step in steps] for steps in chains_to_time(Mesh.of(x=2))[:5]]
    [['AllGather'], ['AllGather'], ['AllToAll'], ['AllToAll', 'AllGather'], ['AllGather', 'Slice']]
    >>> sorted({chain[0].shape[0] for chain in chains_to_time(Mesh.of(x=2, y=3))})
    [24, 96, 384, 1536]
    """
    names = tuple(name for name, size in mesh.sizes.items() if size > 1)
    if not names:
        return []
    whole = Sharding.of(mesh, None, None)
    chains: dict[Chain, None] = {}
    for n_bytes in WHOLE_BYTES:
        side = mesh.size * 2 ** max(round(log2((n_bytes // ITEMSIZE) ** 0.5 / mesh.size)), 0)
        for axes in (names, names[-1:]):
            rows, columns = Sharding.of(mesh, axes, None), Sharding.of(mesh, None, axes)
            ways = [(rows, whole), (columns, whole), (rows, columns), (rows, columns, whole), (rows, whole, columns)]
            if len(axes) > 1:
                ways += [(rows, Sharding.of(mesh, cut, None)) for cut in (axes[::-1], axes[-1:])]
            for passed in ways:
                legs = (Reshard.of(*ends, (side, side), "float32") for ends in pairwise(passed))
                chains[tuple(map(Step, legs))] = None
    return list(chains)


def fitted_to_chains(network: Network, timings: Sequence[tuple[Chain, float]]) -> Network:
    """The network with what starts plans and steps, what meeting takes, and how fast tiles are copied.

    All latencies are changed by one factor, and all bandwidths by one.

    Args:
        network: as messages alone say.
        timings: chains of steps, with their seconds.
    """
    if not timings:
        return network
    bare = replace(network, launch_s=0.0, copy_bandwidth=None, call_s=0.0, meet_s=0.0)
    at_once = replace(bare, levels=tuple(replace(level, latency_s=0.0) for level in network.levels))
    amounts = []
    for steps, _ in timings:
        sent_s, bare_s = (sum(seconds_of(step, price) for step in steps) for price in (at_once, bare))
        copied = ITEMSIZE * sum(map(copied_elements, steps))
        starts = busy_seconds(steps, replace(at_once, launch_s=1.0))[-1]
        met = sum(map(meetings, steps))
        amounts.append((1.0, starts, met, bare_s - sent_s, copied, sent_s))
    call_s, launch_s, meet_s, waiting, per_copied_byte, sending = least_relative(amounts, [time for _, time in timings])
    levels = tuple(
        replace(level, latency_s=level.latency_s * waiting, bandwidth=level.bandwidth / max(sending, LEAST))
        for level in network.levels
    )
    copy_bandwidth = 1 / per_copied_byte if per_copied_byte > NEGLIGIBLE else None
    found = replace(network, levels=levels, copy_bandwidth=copy_bandwidth)
    return replace(found, launch_s=launch_s, call_s=call_s, meet_s=meet_s)
