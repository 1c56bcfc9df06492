"""What steps cost on a network, in seconds.

An exchange by digits takes what its pattern does (`link_use.py`), with less in each piece where devices kept as much of
all; what goes along a ring takes its hops, and any other exchange what the pieces take that are sent.
Chunks are waited for, unlike rounds, so latencies count in each.
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
from dataclasses import replace
from functools import lru_cache
from math import prod

from reshard.box import is_one_run
from reshard.exchange import DigitExchange, Exchange, KeptExchange, RingExchange
from reshard.exchange.by_boxes import BoxExchange
from reshard.network.formulas import stage_timings
from reshard.network.link_use import (
    stages_of_group,
    unlike_piece_loads,
    unnamed,
    use_of_loads,
    use_of_pattern,
    use_of_rings,
    use_of_stages,
)
from reshard.network.networks import Network, check_reach
from reshard.network.parts_under_way import FOLLOWED, forget_spans, spans_of_uses
from reshard.network.patterns import Pattern, kind_of
from reshard.network.ring_loads import ring_loads, transposed_loads
from reshard.network.traffic import loads
from reshard.network.use import LinkFlow, Use, turns_of_hops
from reshard.steps import Share, Step

NEARLY = 0.99
"""Where a tensor fills so much of its blocks, all are taken for whole ones."""
LISTED = 2**14
"""So many pieces that differ in size are looked at one by one; of more all are taken together that are alike."""
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


def overlapped_seconds(shares: Sequence[Share], network: Network, followed: int = FOLLOWED) -> float:
    """Seconds in which a tensor goes through chains of steps in equal parts, one behind the other, all chains at once.

    Steps that use the same links or ports share them (`parts_under_way.py`), and every part pays its latencies.

    By hand, two steps of 4 s each on different levels, in two parts: 2 + 2 s for the first, 2 s more for the second.

    >>> from reshard.mesh import Mesh
    >>> from reshard.network.level import Level
    >>> from reshard.problem import Reshard
    >>> from reshard.sharding import Sharding
    >>> from reshard.steps import chain_through
    >>> mesh, network = Mesh.of(h=2, g=2), Network((Level(1, 2, "switch", 2, 0), Level(2, 2, "switch", 1, 0)))
    >>> both, g, none = (Sharding.of(mesh, axes) for axes in (("g", "h"), "g", None))
    >>> steps = chain_through(Reshard.of(both, none, (16,), "int8"), g)
    >>> [overlapped_seconds([Share(steps, parts)], network) for parts in (1, 2, 4)]
    [8.0, 6.0, 5.0]
    """
    return max(spans[-1][1] for spans in overlapped_spans(shares, network, followed))


def overlapped_spans(
    shares: Sequence[Share], network: Network, followed: int = FOLLOWED
) -> list[list[tuple[float, float]]]:
    """Per share and step of such chains, when the first part begins it and the last has done it, in seconds."""
    parts = sum(share.parts for share in shares)
    uses = [uses_of(share.steps, network, parts) for share in shares]
    return spans_of_uses(uses, [share.parts for share in shares], followed)


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
        use = use.after_alone(alone_s)
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


def forget_steps() -> None:
    """Forget what steps cost, alone and in parts."""
    _use_of_step.cache_clear()
    forget_spans()


def listed_pieces(steps: Sequence[Step]) -> int:
    """How many pieces are looked at one by one to price steps: those that are found box by box."""
    exchanges = [move.exchange for step in steps for move in step.moves]
    wholes = [exchange.whole if isinstance(exchange, KeptExchange) else exchange for exchange in exchanges]
    return sum([exchange.pieces for exchange in wholes if isinstance(exchange, BoxExchange)])


def use_at_most(step: Step, network: Network) -> Use:
    """What a step does not take longer than, without a look at its pieces: as if one link had all, one after another.

    By hand, 6 rows cut in 3 by the first axis, wanted in 2 by the second: of 4 pieces for 3 devices each, 12 in all, a
    message takes 1 s, and the 12 elements that travel take 1 s each.

    >>> from reshard.mesh import Mesh
    >>> from reshard.network.level import Level
    >>> from reshard.problem import Reshard
    >>> from reshard.sharding import Sharding
    >>> mesh, network = Mesh.of(x=3, y=2), Network((Level(1, 6, "switch", 1, 1),))
    >>> step = Step(Reshard.of(Sharding.of(mesh, "x"), Sharding.of(mesh, "y"), (6,), "int8"))
    >>> listed_pieces([step]), step.total_received_bytes, use_at_most(step, network).seconds, seconds_of(step, network)
    (12, 12, 24.0, 5.0)
    """
    latency_s = sum(level.latency_s * (1 if level.is_switch else level.size) for level in network.levels)
    slowest = min(level.bandwidth for level in network.levels)
    seconds = step.total_received_bytes / slowest + listed_pieces([step]) * latency_s
    whole_s = seconds + network.launch_s * len(step.moves)
    busy = (seconds,) * network.places
    return Use(
        whole_s, (*busy, network.launch_s), ((LinkFlow(whole_s - seconds, 0.0, busy, (1.0,) * network.places),),)
    )


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
        use = _use_of_its_pattern(exchange, itemsize, network)
        if use is not None:
            return use
        unlike = (
            unlike_piece_loads(exchange, network)
            if exchange.gathered_values * exchange.source.mesh.size > LISTED
            else None
        )
        if unlike is not None:
            return use_of_loads(unlike, itemsize, network, exchange.largest_piece * itemsize)
    if isinstance(exchange, RingExchange):
        return _use_of_ring_exchange(exchange, itemsize, network)
    if isinstance(exchange, KeptExchange) and isinstance(exchange.whole, DigitExchange):
        pieces, part = exchange.whole.gathered_values * exchange.source.mesh.size, exchange.lacked_part
        use = _use_of_its_pattern(exchange.whole, itemsize * part, network) if part < 1 else None
        if use is not None:
            return use
        if pieces > LISTED:  # too many to look at one by one
            return _use_of_exchange(exchange.whole, itemsize * part, network)
    senders, receivers, elements = exchange.traffic()
    if not len(senders):
        return Use.of_nothing(network)
    return use_of_loads(
        loads(network.levels, senders, receivers, elements), itemsize, network, float(elements.max()) * itemsize
    )


def _use_of_its_pattern(exchange: DigitExchange, itemsize: float, network: Network) -> Use | None:
    """What an exchange takes whose pieces all are as the largest; None where they are not, and no formula holds."""
    sent_bytes = exchange.largest_piece * exchange.loose_values * itemsize  # of one round
    meshes = unnamed(exchange.source.mesh), unnamed(exchange.receivers)
    return use_of_pattern(_pattern(exchange), meshes, sent_bytes, network, is_even=exchange.filled >= NEARLY)


def _pattern(exchange: DigitExchange) -> Pattern:
    kinds = tuple([_kind(exchange, number) for number in exchange.gathered])
    return Pattern.of(exchange.common.digits, exchange.determined_by, exchange.gathered, kinds)


def _kind(exchange: DigitExchange, number: int) -> str | None:
    """The collective that a gathered digit is part of."""
    return kind_of(exchange.common.source_roles[number], exchange.common.target_roles[number])


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
    together = use_of_loads(loads(network.levels, *exchange.traffic()), itemsize, network, 1.0)
    alone = replace(network, launch_s=0.0)
    uses = [use_of_loads(hop, itemsize, alone, max(hop.carried) * itemsize) for hop in hops if any(hop.carried)]
    turns = turns_of_hops([use.turns[0][0] for use in uses], together.turns[0][0].busy)
    return Use.started(sum([use.seconds for use in uses]), together.busy[:-1], turns, network)


def _all_reduce_use(step: Step, itemsize: float, network: Network) -> Use | None:
    """A reduce-scatter and an all-gather in each group; None where the groups do not lie on levels, or replicas share.

    Where every device combines by itself all tiles are gathered: as many bytes as they have, in half the messages.

    >>> from reshard.mesh import Mesh
    >>> from reshard.network.level import Level
    >>> from reshard.problem import Reshard
    >>> from reshard.sharding import Sharding
    >>> mesh, network = Mesh.of(x=4), Network((Level(1, 4, "switch", 1e9, 1e-6),))
    >>> reshard = Reshard.of(Sharding.of(mesh, None, unreduced="x"), Sharding.of(mesh, None), (1000,), "f32")
    >>> [round(seconds_of(Step(reshard, near=near), network) * 1e6, 3) for near in (0, 1)], 4 + 2 * 3, 2 + 4 * 3
    ([10.0, 14.0], 10, 14)
    """
    exchange, *after = [move.exchange for move in step.moves]
    if not isinstance(exchange, DigitExchange):
        return None
    if any(isinstance(other, DigitExchange) and other.gathered_values > exchange.combined.size for other in after):
        return None  # replicas of what is combined do a share of it too
    check_reach(network, step.before.mesh)
    stages = stages_of_group(network, step.before.mesh, exchange.combined)
    if stages is None:
        return None
    tile = prod(step.before.local_shape(step.shape)) * itemsize
    if not tile:
        return Use.of_nothing(network)
    times, gathered = (1, tile * exchange.combined.size) if len(step.moves) == 1 else (2, tile)
    return use_of_stages(stage_timings(stages, gathered), stages, network, times)
