"""What an exchange, a schedule, a plan and an engine must keep to, as checks that any test can call.

Each raises an AssertionError that names the device.
What is right is asked of the oracle; of the package only what it claims.
`test_checkers` shows that each catches what is broken on purpose.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import Any

import numpy as np
import oracle
from numpy.typing import NDArray
from problems import Problem

from reshard import numpy as engine
from reshard.exchange import DigitExchange, Exchange, Piece
from reshard.plans import Plan
from reshard.sharding import Sharding

Array = NDArray[Any]
Run = Callable[..., dict[int, Array]]


def check_tiles(found: Mapping[int, Array], expected: Mapping[int, Array]) -> None:
    """Every device has its tile and no device has another: keys, shapes, dtypes and values."""
    assert sorted(found) == sorted(expected), f"devices {sorted(found)} have tiles, not {sorted(expected)}"
    for device, tile in expected.items():
        ours = found[device]
        assert isinstance(ours, np.ndarray), f"device {device} has no array"
        assert ours.shape == tile.shape, f"device {device} has a tile of {ours.shape}, not {tile.shape}"
        assert ours.dtype == tile.dtype, f"device {device} has a tile of {ours.dtype}, not {tile.dtype}"
        assert ours.tobytes() == tile.tobytes(), f"device {device} has other values than {tile}"


# An exchange between two shardings of one shape.


@lru_cache(1)
def all_pieces(exchange: Exchange) -> dict[int, list[Piece]]:
    """What comes into every device of the target; kept, for every check of an exchange asks."""
    return {device: exchange.incoming(device) for device in exchange.target.mesh.devices}


def check_pieces(exchange: Exchange, source: Sharding, target: Sharding, shape: tuple[int, ...]) -> None:
    """Every device gets each element of its tile once, from one who holds it, and gets nothing else.

    Where partial values are combined: once from every class that it combines, and two devices that stay apart
    combine none in common.
    """
    held, numbers = oracle.holds(source, shape), oracle.classes(source)
    rows = {device: row for row, device in enumerate(oracle.ranges(source, shape))}
    ratio = oracle.class_count(source) // oracle.class_count(target)
    grid = np.arange(prod(shape)).reshape(shape)
    met: dict[int, set[int]] = defaultdict(set)
    for device, wanted in zip(oracle.ranges(target, shape), oracle.holds(target, shape), strict=True):
        arrived = np.zeros((oracle.class_count(source), prod(shape)), dtype=np.int64)
        for piece in all_pieces(exchange)[device]:
            assert piece.receiver == device, f"device {device} is told of a piece for device {piece.receiver}"
            assert not piece.box.is_empty, f"device {device} gets an empty piece from {piece.sender}"
            elements = grid[(..., *(slice(start, stop) for start, stop in piece.box))].ravel()
            assert len(elements) == piece.box.size, f"device {device} gets {piece.box}, outside the tensor"
            has = held[rows[piece.sender]][elements].all()
            assert has, f"device {device} gets {piece.box} from {piece.sender}, who does not hold it"
            np.add.at(arrived[numbers[piece.sender]], elements, 1)
        assert not arrived[:, ~wanted].any(), f"device {device} gets elements outside its tile"
        assert (arrived.sum(axis=0) == wanted * ratio).all(), f"device {device} lacks elements or gets some twice"
        assert arrived.max(initial=0) <= 1, f"device {device} gets elements of one class twice"
        met[oracle.classes(target)[device]].update(np.flatnonzero(arrived.any(axis=1)).tolist())
    assert sum(map(len, met.values())) == len(set().union(*met.values())), "a class of partial values is combined twice"


def check_both_ends(exchange: Exchange) -> None:
    """What goes out of all senders is what comes into all receivers, piece by piece and round by round."""
    arriving = Counter(piece for pieces in all_pieces(exchange).values() for piece in pieces)
    leaving = Counter(piece for device in exchange.source.mesh.devices for piece in exchange.outgoing(device))
    assert arriving == leaving, f"sent and not received: {leaving - arriving}, the reverse: {arriving - leaving}"
    senders = set(exchange.source.mesh.devices)
    for device in exchange.target.mesh.devices:
        if device not in senders:
            assert not exchange.outgoing(device), f"device {device} sends but is not in the source"


def check_received(exchange: Exchange, missing: Mapping[int, int]) -> None:
    """Every device receives what it lacks, by its pieces and by every figure of the exchange."""
    devices = list(exchange.target.mesh.devices)
    bound = [missing[device] for device in devices]
    for device, lacks in zip(devices, bound, strict=True):
        comes = sum(piece.box.size for piece in all_pieces(exchange)[device] if piece.sender != device)
        assert comes == lacks, f"device {device} receives {comes} elements and lacks {lacks}"
        assert exchange.received_on(device) == lacks, f"device {device} lacks {lacks} elements, the figure differs"
    check_received_figures(exchange, missing)


def check_received_figures(exchange: Exchange, missing: Mapping[int, int]) -> None:
    """The figures of all devices at once, and those of the busiest and of all together."""
    bound = [missing[device] for device in exchange.target.mesh.devices]
    assert exchange.all_received().tolist() == bound, f"{exchange.all_received()} is received, {bound} are lacking"
    assert exchange.all_missing().tolist() == bound, f"{exchange.all_missing()} is claimed, {bound} are lacking"
    assert (exchange.received, exchange.total_received) == (max(bound), sum(bound)), "the sums of what is received"
    assert (exchange.missing, exchange.total_missing) == (max(bound), sum(bound)), "the sums of what is lacking"


def check_traffic(exchange: Exchange) -> None:
    """The table of what goes from device to device holds what travels, and no more."""
    travelling: Counter[tuple[int, int]] = Counter()
    for pieces in all_pieces(exchange).values():
        for piece in pieces:
            if piece.sender != piece.receiver:
                travelling[piece.sender, piece.receiver] += piece.box.size
    listed: Counter[tuple[int, int]] = Counter()
    for sender, receiver, elements in zip(*(column.tolist() for column in exchange.traffic()), strict=True):
        assert elements > 0, f"device {sender} sends nothing to {receiver}, and it is listed"
        listed[sender, receiver] += elements
    assert listed == travelling, f"listed {listed - travelling} too much, {travelling - listed} too little"


def check_largest_piece(exchange: Exchange) -> None:
    """No piece is longer than the longest in any dim, nor larger than the largest."""
    longest = exchange.piece_shape
    for device, pieces in all_pieces(exchange).items():
        for piece in pieces:
            fits = all(length <= most for length, most in zip(piece.box.shape, longest, strict=True))
            assert fits, f"device {device} gets {piece.box}, the longest are {longest}"
            assert piece.box.size <= exchange.largest_piece, f"device {device} gets {piece.box}, the largest is less"


def check_permutations(exchange: DigitExchange, shape: tuple[int, ...]) -> None:
    """In every round a device sends at most once and receives at most once; with even dims exactly once.

    What a device holds already it takes from itself, in the first round.
    """
    rounds: dict[int, list[Piece]] = defaultdict(list)
    for device, pieces in all_pieces(exchange).items():
        for piece in pieces:
            rounds[piece.round].append(piece)
            assert piece.sender != device or piece.round == 0, f"device {device} keeps a piece in round {piece.round}"
    assert set(rounds) <= set(range(exchange.gathered_values)), f"there are no rounds {sorted(rounds)}"
    kept = all(piece.sender == piece.receiver for piece in rounds[0])
    full = all(shape) and exchange.source.is_even() and exchange.target.is_even()
    if full:
        assert exchange.rounds == exchange.gathered_values - kept, f"{exchange.rounds} rounds are claimed"
    for number, pieces in rounds.items():
        for ends in ([piece.sender for piece in pieces], [piece.receiver for piece in pieces]):
            assert len(set(ends)) == len(ends), f"a device is twice in round {number}: {ends}"
            assert not full or len(ends) == exchange.source.mesh.size, f"a device is left out of round {number}"


def degrees(pieces: Iterable[Piece]) -> tuple[int, int]:
    """The most pieces that a device sends to others, and the most that one receives from them."""
    ends = [[(piece.sender, piece.receiver) for piece in pieces if piece.sender != piece.receiver]]
    return tuple(max(Counter(end[side] for end in ends[0]).values(), default=0) for side in (0, 1))  # type: ignore[return-value]


def check_round_count(exchange: Exchange) -> None:
    """As many rounds as the largest number of pieces that a device sends or receives."""
    largest = max(degrees(piece for pieces in all_pieces(exchange).values() for piece in pieces))
    assert exchange.rounds == largest, f"{exchange.rounds} rounds are claimed for {largest} pieces"


def check_dealing(exchange: Exchange, source: Sharding, shape: tuple[int, ...]) -> None:
    """No device sends more than the even share of the most wanted source tile, and one piece.

    Own copies are not counted.
    The share of a tile is what devices that do not hold it ask of it, over the number of its holders.
    """
    numbers, sent = oracle.classes(source), Counter[int]()
    tile_of = {device: (runs, numbers[device]) for device, runs in oracle.ranges(source, shape).items()}
    holders = Counter(tile_of.values())
    asked: Counter[Any] = Counter()
    largest = 0
    for pieces in all_pieces(exchange).values():
        for piece in pieces:
            if piece.sender != piece.receiver:
                sent[piece.sender] += piece.box.size
                asked[tile_of[piece.sender]] += piece.box.size
                largest = max(largest, piece.box.size)
                own = tile_of.get(piece.receiver) == tile_of[piece.sender]
                assert not own, f"device {piece.receiver} asks {piece.sender} for a part of its own tile"
    best = max((count / holders[tile] for tile, count in asked.items()), default=0)
    for device, count in sent.items():
        assert count <= best + largest, f"device {device} sends {count}; {best} and a piece of {largest} are enough"


def check_schedule(rounds: list[list[Piece]], pieces: Iterable[Piece], *, one_shape: bool = False) -> None:
    """All that travels goes once, each round is a matching, and there are no more rounds than the degree asks for."""
    travelling = [piece for piece in pieces if piece.sender != piece.receiver]
    assert Counter(piece for turn in rounds for piece in turn) == Counter(travelling), "pieces are lost, new or twice"
    for number, turn in enumerate(rounds):
        assert turn, f"round {number} is empty"
        for ends in ([piece.sender for piece in turn], [piece.receiver for piece in turn]):
            assert len(set(ends)) == len(ends), f"a device is twice in round {number}: {ends}"
        assert not one_shape or len({piece.box.shape for piece in turn}) == 1, f"round {number} has several shapes"
    groups = [travelling]
    if one_shape:
        ordered = sorted(travelling, key=lambda piece: piece.box.shape)
        groups = [list(group) for _, group in groupby(ordered, key=lambda piece: piece.box.shape)]
    wanted = sum(max(degrees(group)) for group in groups)
    assert len(rounds) == wanted, f"{len(rounds)} rounds, where {wanted} are enough"


def check_move_exchange(exchange: Exchange, problem: Problem) -> None:
    """All that holds for an exchange without partial values."""
    source, target, shape, _ = problem
    check_pieces(exchange, source, target, shape)
    check_both_ends(exchange)
    check_received(exchange, oracle.missing(source, target, shape))
    check_largest_piece(exchange)
    check_traffic(exchange)
    if isinstance(exchange, DigitExchange):
        check_permutations(exchange, shape)
    else:
        check_round_count(exchange)
        check_dealing(exchange, source, shape)


# A plan, and an engine that runs it.


def check_chain(plan: Plan) -> None:
    """The steps lead from the source to the target, for one shape and dtype; without steps both are one placement."""
    here = plan.source
    for number, step in enumerate(plan.steps, 1):
        assert step.before == here, f"step {number} starts at {step.before}, not at {here}"
        assert (step.shape, step.dtype) == (plan.shape, plan.dtype), f"step {number} is for {step.shape} {step.dtype}"
        here = step.after
    if plan.steps:
        assert here == plan.target, f"the plan ends at {here}, not at {plan.target}"
    else:
        ends = [oracle.placement(sharding, plan.shape) for sharding in (plan.source, plan.target)]
        assert ends[0] == ends[1], "the plan does nothing, but source and target are two placements"


def check_move_figures(plan: Plan, missing: Mapping[int, int]) -> None:
    """Every device of a move receives its bound; so the busiest and all together."""
    size = plan.dtype.itemsize
    assert plan.bound_kind == "exact", f"the bound is {plan.bound_kind}"
    assert list(plan.devices) == sorted(missing), f"the plan is about {plan.devices}, not {sorted(missing)}"
    for device, lacks in missing.items():
        figures = (plan.received_bytes_on(device), plan.lower_bound_bytes_on(device))
        assert figures == (lacks * size,) * 2, f"device {device} lacks {lacks * size} bytes, the plan says {figures}"
    most, total = max(missing.values()) * size, sum(missing.values()) * size
    assert (plan.received_bytes, plan.lower_bound_bytes) == (most, most), f"the busiest device lacks {most} bytes"
    assert (plan.total_received_bytes, plan.total_lower_bound_bytes) == (total, total), f"{total} bytes are lacking"


def check_peak(plan: Plan) -> None:
    """A device that keeps its source tile and holds its target tile needs no more than the plan says."""
    tiles = [oracle.ranges(sharding, plan.shape) for sharding in (plan.source, plan.target)]
    if plan.steps:
        for device in plan.devices:
            needed = sum(prod(map(len, side[device])) for side in tiles if device in side) * plan.dtype.itemsize
            assert needed <= plan.peak_bytes, f"device {device} needs {needed} bytes, the peak is {plan.peak_bytes}"


def check_run(plan: Plan, run: Run = engine.run) -> None:
    """An engine brings every device of a move its tile, leaves what it was given, and counts what the plan says.

    The plan must be for a dtype of 8 bytes, whose elements are numbered.
    """
    array = oracle.encoded(plan.shape)
    given = {device: tile.copy() for device, tile in oracle.tiles(array, plan.source).items()}
    counts: dict[int, int] = {}
    found = run(plan, given, received_bytes=counts)
    check_tiles(given, oracle.tiles(array, plan.source))
    check_tiles(found, oracle.tiles(array, plan.target))
    for device, tile in found.items():
        shared = device in given and np.shares_memory(tile, given[device])
        assert not shared, f"device {device} was given back the memory that it handed in"
    claimed = {device: plan.received_bytes_on(device) for device in plan.devices}
    assert counts == claimed, f"the engine counts {counts}, the plan says {claimed}"


def check_move(plan: Plan) -> None:
    """All that holds for the plan of a move of 8-byte elements."""
    check_chain(plan)
    check_move_figures(plan, oracle.missing(plan.source, plan.target, plan.shape))
    check_peak(plan)
    check_run(plan)
