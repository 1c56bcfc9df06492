"""How long a plan takes where messages share links and ports as they come, apart from the package's prices.

Messages are fluid: all that are under way share what they cross, each as much as the fullest link or port of its way
allows (max-min fairness), full duplex; when one ends, the others speed up.
Through switches a device begins one message after another, each after its latency, and then all flow.
Along rings and lines a message leaves at once: its head comes one hop further with each latency, its bytes flow behind
as links are free, and it is there once its head is and all bytes have come.
A step is a phase of messages, all hops of an all-gather at once, in chunks without end; the moves of a step follow one
another. A part of the tensor begins a step when the part before, of its share, has done it and it has done the step
before.
What is handed on along a ring is a step for each hop.
Where devices that send to each other have kept as much of all, each message is as much less.
Shares go on evenly: one waits that is further than another with as many parts under way as keep all its steps busy, so
that none runs ahead and leaves links idle later; a share of one step has two parts under way.

Ways are those that the package states: switches from the outermost level in, links the shorter way round, levels of a
torus in every order that has each first as often.
What goes half round a ring parts so that the fullest link carries least, which a solver of linear programs settles.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, pairwise, permutations, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_matrix, hstack

from reshard import Network, Plan
from reshard.digits import Digits
from reshard.exchange import DigitExchange, KeptExchange, RingExchange
from reshard.network import Level
from reshard.network.link_use import stages_of_group
from reshard.network.pricing import _kind
from reshard.refinement import Unreduced

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Stages = tuple[tuple[Level, ...], ...]


WINDOW = 2
"""How many parts are under way for every step of a share."""


class Messages(NamedTuple):
    """What is under way at once: amounts, and which message crosses which link or port."""

    amounts: Floats
    message: Ints
    crossed: Ints


class Phase(NamedTuple):
    """Messages that begin together, after a latency; or that take a latency at least, where they stream."""

    messages: Messages
    delay: float
    least: float = 0.0


@dataclass
class Wires:
    """The links and ports of a network, numbered."""

    network: Network
    bandwidth: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.bandwidth = np.concatenate(
            [np.full(2 * self.network.size, level.bandwidth) for level in self.network.levels]
        )

    def link(self, number: int, way: int, device: Ints) -> Ints:
        """Of a level: the port out (0) or in (1) of devices; or the link that leaves them onwards (0) or back (1)."""
        return (2 * number + way) * self.network.size + device

    def routed(self, senders: Ints, receivers: Ints, amounts: Floats) -> Phase:
        """Messages on their ways: after what the device waits that begins last, and until the last head is there."""
        levels = self.network.levels
        rows: list[tuple[Ints, Ints]] = []
        shares: list[Floats] = []
        begun, head = np.zeros((2, len(senders)))
        total = 0
        torus = [n for n, level in enumerate(levels) if not level.is_switch]
        orders = _orders(torus)
        rings = [n for n in torus if levels[n].link == "ring" and levels[n].size % 2 == 0]
        parted = {number: self._parted(number, senders, receivers, amounts, orders) for number in rings}
        for order, turns in product(orders, product((0, 1), repeat=len(rings))):
            ways = dict(zip(rings, turns, strict=True))
            part = amounts / len(orders)
            for number in rings:
                place, goes_half_round = self._begins(number, senders, receivers, order)
                onwards = np.where(goes_half_round, parted[number][place], 1.0)
                part = part * (onwards if ways[number] == 0 else 1.0 - onwards)
            begun, head = np.zeros((2, len(senders)))
            for message, crossed, begins_s, hop_s in self._ways(senders, receivers, order, ways):
                rows.append((message + total, crossed))
                begun[message] += begins_s
                head[message] += hop_s
            shares.append(part)
            total += len(senders)
        message, crossed = (np.concatenate(column) for column in zip(*rows, strict=True))
        waiting = max(np.bincount(ends, begun).max() for ends in (senders, receivers))
        parts = np.concatenate(shares)
        sent = parts > 0
        kept = sent[message]
        messages = Messages(parts[sent], (np.cumsum(sent) - 1)[message[kept]], crossed[kept])
        return Phase(messages, float(waiting), float(head.max()))

    def _begins(self, number: int, senders: Ints, receivers: Ints, order: Sequence[int]) -> tuple[Ints, NDArray[Any]]:
        """Where messages are before they go along a level, and which then go half round it."""
        levels, run = self.network.levels, _run(self.network.levels, number)
        place = senders.copy()
        for other, level in enumerate(levels):
            before = other in run and list(order).index(other) < list(order).index(number)
            if before or (other > number and other not in run and not level.is_switch):
                place += (level.digit.value(receivers) - level.digit.value(senders)) * level.stride
        digit = levels[number].digit
        goes = 2 * ((digit.value(receivers) - digit.value(senders)) % levels[number].size) == levels[number].size
        for level in levels[number + 1 :]:
            if level.is_switch:
                goes &= level.digit.value(senders) == level.digit.value(receivers)
        return place, goes

    def _parted(
        self, number: int, senders: Ints, receivers: Ints, amounts: Floats, orders: Sequence[Sequence[int]]
    ) -> Floats:
        """Per device how much of what goes half round its ring from there goes onwards, for the fullest link's sake."""
        size, level = self.network.size, self.network.levels[number]
        limits = np.zeros(2 * size)  # less what goes the shorter way
        halves = np.zeros(size)
        for order in orders:
            place, goes = self._begins(number, senders, receivers, order)
            np.add.at(halves, place[goes], amounts[goes] / len(orders))
            for way in range(2):
                for message, crossed, *_ in self._ways(senders, receivers, order, {number: way}):
                    mine = (crossed // size // 2 == number) & ~goes[message]
                    np.add.at(limits, crossed[mine] % (2 * size), -amounts[message[mine]] / len(orders) / 2)
        if not halves.any() or level.size == 2:
            return np.full(size, 0.5)
        devices = np.flatnonzero(halves)
        rows: list[tuple[int, int, float]] = []
        for column, device in enumerate(devices.tolist()):
            first = device - level.digit.value(device) * level.stride
            for hop in range(level.size // 2):
                ahead = first + (level.digit.value(device) + hop) % level.size * level.stride
                behind = first + (level.digit.value(device) - hop) % level.size * level.stride
                rows += [(ahead, column, halves[device]), (size + behind, column, -halves[device])]
                limits[size + behind] -= halves[device]
        where, columns, values = zip(*rows, strict=True)
        busiest = -np.ones(2 * size)
        solved = linprog(
            [*np.zeros(len(devices)), 1.0],
            A_ub=hstack([coo_matrix((values, (where, columns)), (2 * size, len(devices))), busiest[:, None]]),
            b_ub=limits,
            bounds=[*[(0.0, 1.0)] * len(devices), (0.0, None)],
            method="highs",
        )
        parted = np.full(size, 0.5)
        parted[devices] = np.clip(np.round(solved.x[:-1], 9), 0.0, 1.0)
        return parted

    def _ways(
        self, senders: Ints, receivers: Ints, order: Sequence[int], ways: Mapping[int, int]
    ) -> Iterator[tuple[Ints, Ints, float, float]]:
        """Which message crosses what, hop by hop, with what its device waits to begin it, and its head for the hop."""
        levels, place = self.network.levels, senders.copy()
        left = np.arange(len(senders))
        for number in [*range(len(levels))][::-1]:
            if levels[number].is_switch:
                digit = levels[number].digit
                crosses = left[digit.value(place[left]) != digit.value(receivers[left])]
                yield crosses, self.link(number, 0, place[crosses]), levels[number].latency_s, 0.0
                yield crosses, self.link(number, 1, receivers[crosses]), 0.0, 0.0
                left = np.setdiff1d(left, crosses)
                continue
            run = _run(levels, number)
            if number != run[0]:
                continue
            for inner in sorted(run, key=list(order).index):
                yield from self._along(inner, place, receivers, left, ways.get(inner, 0))

    def _along(
        self, number: int, place: Ints, receivers: Ints, left: Ints, way: int
    ) -> Iterator[tuple[Ints, Ints, float, float]]:
        level = self.network.levels[number]
        digit = level.digit
        ahead = (digit.value(receivers[left]) - digit.value(place[left])) % level.size
        if level.link == "line":
            onwards = digit.value(receivers[left]) > digit.value(place[left])
        elif level.link == "one-way-ring":
            onwards = np.ones(len(left), dtype=bool)
        else:
            onwards = (2 * ahead < level.size) | ((2 * ahead == level.size) & (way == 0))
        while True:
            here, there = digit.value(place[left]), digit.value(receivers[left])
            moving = here != there
            if not moving.any():
                return
            movers = left[moving]
            step = np.where(onwards[moving], 1, -1)
            yield movers, self.link(number, 0, place[movers]) + (step < 0) * self.network.size, 0.0, level.latency_s
            place[movers] += ((here[moving] + step) % level.size - here[moving]) * level.stride


def _run(levels: Sequence[Level], number: int) -> list[int]:
    """The levels of one torus that a level is of, outermost first."""
    run = [number]
    for step in (1, -1):
        other = number + step
        while 0 <= other < len(levels) and not levels[other].is_switch:
            run.append(other)
            other += step
    return sorted(run, reverse=True)


def _orders(numbers: list[int]) -> list[tuple[int, ...]]:
    if len(numbers) < 3:
        return list(permutations(numbers))
    rotations = [tuple(numbers[place:] + numbers[:place]) for place in range(len(numbers))]
    return [*rotations, *(order[::-1] for order in rotations)]


def gathered_stages(exchange: Any, network: Network) -> Stages | None:
    """The levels along which all is gathered, to be combined too, or is scattered; None where it is neither."""
    if not isinstance(exchange, DigitExchange) or not exchange.stays or not exchange.gathered:
        return None
    kinds = {_kind(exchange, i) for i in exchange.gathered}
    digits = Digits(sorted((exchange.common.digits[i] for i in exchange.gathered), reverse=True)).joined()
    is_one = kinds in ({"all-gather"}, {"reduce-scatter"}) or _combines_alone(exchange)
    return stages_of_group(network, exchange.source.mesh, digits) if is_one else None


def _combines_alone(exchange: DigitExchange) -> bool:
    """Whether every device gathers all that is combined, and combines it."""
    return all(
        isinstance(exchange.common.source_roles[i], Unreduced) and exchange.common.target_roles[i] is None
        for i in exchange.gathered
    )


def phases(exchange: Any, itemsize: float, wires: Wires) -> list[list[Phase]]:
    """Tracks that go at once, of phases one after another."""
    if isinstance(exchange, KeptExchange) and exchange.lacked_part < 1:  # all that send each other lack as much
        return phases(exchange.whole, itemsize * exchange.lacked_part, wires)
    stages = gathered_stages(exchange, wires.network)
    if stages is not None:
        piece = exchange.largest_piece * exchange.loose_values * itemsize
        return _gathered(stages, piece, wires, backwards=bool(exchange.combined) and not _combines_alone(exchange))
    senders, receivers, elements = exchange.traffic()
    if not len(senders):
        return []
    return [[wires.routed(senders, receivers, elements * itemsize)]]


def tracks_of_steps(plan: Plan, wires: Wires) -> list[list[list[Phase]]]:
    """Those of each move that sends, with what it takes to begin; of a move along a ring those of each hop.

    The moves of a step follow one another, each begun by itself but for those of an all-reduce.
    """
    steps = []
    for step in plan.steps:
        is_begun = False
        for move in step.moves:
            if isinstance(move.exchange, RingExchange):
                steps += _handed_on(move.exchange, plan.dtype.itemsize, wires)
                continue
            launch_s = 0.0 if is_begun and step.kind == "AllReduce" else wires.network.launch_s
            tracks = phases(move.exchange, plan.dtype.itemsize, wires)
            begun = [[first._replace(delay=first.delay + launch_s), *others] for first, *others in tracks]
            steps += [begun] if begun else []
            is_begun |= bool(begun)
    return steps


def _handed_on(exchange: RingExchange, itemsize: float, wires: Wires) -> list[list[list[Phase]]]:
    """A track of one phase per hop, both ways at once."""
    hops = [wires.routed(*ends, elements * itemsize) for *ends, elements in exchange.traffic_of_hops() if len(elements)]
    launch_s = wires.network.launch_s
    return [[[hop._replace(delay=hop.delay + (0.0 if number else launch_s))]] for number, hop in enumerate(hops)]


def _gathered(stages: Stages, piece: float, wires: Wires, *, backwards: bool) -> list[list[Phase]]:
    """An all-gather, hop by hop: outer stages first; of a torus a share for every order of its levels."""
    network = wires.network
    devices = np.arange(network.size)
    steps: list[list[list[Phase]]] = []
    held = piece
    for stage in reversed(stages):
        tracks = []
        if stage[0].is_switch:
            level = stage[0]
            number = next(n for n, one in enumerate(network.levels) if one.stride <= level.stride < one.digit.end)
            size = level.size
            out = [wires.link(number, way, devices) for way in (0, 1)]
            message = np.tile(devices, 2)
            amounts = np.full(len(devices), (size - 1) * held)
            delay = level.latency_s * (size - 1).bit_length()
            tracks.append([Phase(Messages(amounts, message, np.concatenate(out)), delay)])
        else:
            orders = list(permutations(stage))
            shares = [_rings(order, held * share, wires) for order, share in zip(orders, _shares(orders), strict=True)]
            tracks.append([_at_once(shares)])
        for level in stage:
            held *= level.size
        steps.append(tracks)
    if backwards:
        steps = [[track[::-1] for track in tracks] for tracks in steps[::-1]]
    return [[phase for tracks in steps for phase in tracks[0]]]


def _at_once(tracks: Sequence[Sequence[Phase]]) -> Phase:
    """What tracks come to in chunks without end: all under way at once, for as long as the latencies of one take."""
    first, columns = 0, []
    for phase in chain.from_iterable(tracks):
        columns.append(phase.messages._replace(message=phase.messages.message + first))
        first += len(phase.messages.amounts)
    merged = Messages(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    return Phase(merged, 0.0, max(sum(phase.least for phase in track) for track in tracks))


def _shares(orders: Sequence[Sequence[Level]]) -> Floats:
    """How much of an array goes through the levels of a torus in each order, so that the busiest is busy least."""
    levels = orders[0]
    loads = np.zeros((len(levels), len(orders)))
    for column, order in enumerate(orders):
        held = 1.0
        for level in order:
            links = 2 if level.link == "ring" else 1
            loads[levels.index(level), column] = (level.size - 1) * held / links / level.bandwidth
            held *= level.size
    cost = np.array([1.0, *np.zeros(len(orders))])
    limits = np.hstack([-np.ones((len(levels), 1)), loads / loads.max()])  # a solver's tolerance is of ones
    total = np.array([[0.0, *np.ones(len(orders))]])
    solved = linprog(cost, A_ub=limits, b_ub=np.zeros(len(levels)), A_eq=total, b_eq=[1.0], method="highs")
    shares: Floats = solved.x[1:]
    return shares


def _rings(stage: Sequence[Level], held: float, wires: Wires) -> list[Phase]:
    """Along one level after the other, each hop both ways at once."""
    network, devices = wires.network, np.arange(wires.network.size)
    result = []
    for level in stage:
        number = next(n for n, one in enumerate(network.levels) if one.stride <= level.stride < one.digit.end)
        physical = network.levels[number]
        if level != physical:
            raise NotImplementedError("a part of a ring")
        hops = level.hops if level.link == "ring" else level.size - 1
        ways = (0,) if level.link == "one-way-ring" else (0, 1)
        for hop in range(1, hops + 1):
            crossed = []
            both_bring = level.link == "ring" and 2 * hop == level.size  # the same from either side: half each
            for way in ways:
                ends = level.digit.value(devices) != (level.size - 1 if way == 0 else 0)
                going = devices[ends] if level.link == "line" else devices
                crossed.append(wires.link(number, way, going))
            links = np.concatenate(crossed)
            amounts = np.full(len(links), held / 2 if both_bring else held)
            result.append(Phase(Messages(amounts, np.arange(len(links)), links), 0.0, level.latency_s))
        held *= level.size
    return result


def rates(messages: Sequence[tuple[Messages, Floats]], bandwidth: Floats) -> list[Floats]:
    """Of all messages under way the bytes/s that they get, max-min fair."""
    offsets = np.cumsum([0, *(len(one.amounts) for one, _ in messages)])
    remaining = np.concatenate([left for _, left in messages])
    message = np.concatenate([one.message + offset for (one, _), offset in zip(messages, offsets, strict=False)])
    crossed = np.concatenate([one.crossed for one, _ in messages])
    rate = np.zeros(len(remaining))
    waiting = remaining > 0
    room = bandwidth.copy()
    while waiting.any():
        open_rows = waiting[message]
        users = np.bincount(crossed[open_rows], minlength=len(room))
        share = np.where(users > 0, room / np.maximum(users, 1), np.inf)
        tight = share <= share.min() * (1 + 1e-9)
        stopped = np.unique(message[open_rows & tight[crossed]])
        rate[stopped] = share.min()
        waiting[stopped] = False
        rows = np.isin(message, stopped)
        room = np.maximum(room - np.bincount(crossed[rows], rate[message[rows]], len(room)), 0.0)
    return [rate[start:stop] for start, stop in pairwise(offsets)]


class Place(NamedTuple):
    """Where a part of the tensor is."""

    share: int
    part: int
    """Of its share."""
    step: int


@dataclass(eq=False)
class Running:
    """A phase that is under way."""

    owner: tuple[Place, int, int]
    phase: Phase
    left: Floats
    begun: float


def simulated_seconds(plan: Plan, network: Network) -> float:
    """From the first message to the last."""
    if len(plan.stretches) > 1:
        return sum(simulated_seconds(stretch, network) for stretch in plan.stretches)
    wires = Wires(network)
    shares = [tracks_of_steps(of_part, wires) for of_part in plan.plans_by_share]
    counts = [share.parts for share in plan.shares]
    if not any(shares):
        return 0.0
    gone = [0] * len(shares)
    abreast = [2 if len(moves) == 1 and len(shares) > 1 else 1 for moves in shares]
    done: set[Place] = set()
    open_tracks: dict[Place, int] = {}
    running: list[Running] = []
    later: list[tuple[float, int, tuple[Place, int, int]]] = []
    ticket, now = count(), 0.0

    def begin(place: Place) -> None:
        tracks = shares[place.share][place.step]
        open_tracks[place] = len(tracks)
        for number, track in enumerate(tracks):
            heapq.heappush(later, (now + track[0].delay, next(ticket), (place, number, 0)))

    def finish(owner: tuple[Place, int, int]) -> None:
        place, track, phase = owner
        following = shares[place.share][place.step][track][phase + 1 :]
        if following:
            heapq.heappush(later, (now + following[0].delay, next(ticket), (place, track, phase + 1)))
            return
        open_tracks[place] -= 1
        if open_tracks[place]:
            return
        done.add(place)
        following_part = place._replace(part=place.part + abreast[place.share])
        for after in (following_part, place._replace(step=place.step + 1)):
            ready = [after._replace(part=after.part - 1)] if after.part and abreast[after.share] == 1 else []
            ready += [after._replace(step=after.step - 1)] if after.step else []
            exists = after.part < counts[after.share] and after.step < len(shares[after.share])
            if exists and all(one in done for one in ready):
                if after.step:
                    begin(after)
                else:
                    waiting.append(after)
        gone[place.share] += place.step + 1 == len(shares[place.share])
        begin_in_turn()

    waiting = [
        Place(number, part, 0)
        for number, share in enumerate(shares)
        for part in range(min(abreast[number], counts[number]) if share else 0)
    ]

    def begin_in_turn() -> None:
        for place in list(waiting):
            others = zip(gone, shares, counts, strict=True)
            if place.part / counts[place.share] <= min(
                (done + WINDOW * len(moves)) / size for done, moves, size in others if moves
            ):
                waiting.remove(place)
                begin(place)

    begin_in_turn()
    while running or later:  # until the next message ends, or a phase begins or may end
        speeds = rates([(one.phase.messages, one.left) for one in running], wires.bandwidth) if running else []
        due = [later[0][0] - now] if later else []
        for one, speed in zip(running, speeds, strict=True):
            under_way = one.left > 0
            due.append(
                float(np.min(one.left[under_way] / speed[under_way]))
                if under_way.any()
                else one.begun + one.phase.least - now
            )
        span = max(min(due), 0.0)
        now += span
        for one, speed in zip(running, speeds, strict=True):
            one.left = np.maximum(one.left - speed * span, 0.0)
            one.left[one.left < one.phase.messages.amounts * 1e-9] = 0.0
        over = [one for one in running if not one.left.any() and now >= (one.begun + one.phase.least) * (1 - 1e-12)]
        running = [one for one in running if one not in over]
        for one in over:
            finish(one.owner)
        while later and later[0][0] <= now * (1 + 1e-12):
            _, _, owner = heapq.heappop(later)
            phase = shares[owner[0].share][owner[0].step][owner[1]][owner[2]]
            running.append(Running(owner, phase, phase.messages.amounts.copy(), now))
    return now
