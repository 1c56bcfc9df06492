"""Exchanges along a ring, from neighbour to neighbour, against index arithmetic and listed messages."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, product
from random import Random

import numpy as np
import oracle
import pytest
from ring_plans import plans_with_kept
from simulated import simulated_seconds
from time_bounds import pairs

from reshard import Box, Mesh, Network, Plan, ReshardError, Sharding, plan
from reshard.digits import Digit
from reshard.exchange import Piece, RingExchange
from reshard.exchange.ring import around, transposed
from reshard.network import Level, seconds_of
from reshard.numpy.tiles import run
from reshard.plans import Options
from reshard.problem import Reshard
from reshard.steps import Step
from reshard.tiling import Tiling

RINGS = [
    (Mesh.of(a=2, b=2, c=2), Digit(1, 8)),
    (Mesh.of(a=2, b=4), Digit(1, 8)),
    (Mesh.of(a=4, b=2, c=2), Digit(2, 8)),
    (Mesh.of(a=4, b=2), Digit(2, 4)),
    (Mesh.of({"a": 4, "b": 2}, device_ids=(7, 6, 1, 2, 3, 0, 5, 4)), Digit(2, 4)),
    (Mesh.of(o=2, a=3, b=2), Digit(1, 6)),
    (Mesh.of(o=2, a=2, b=3), Digit(1, 6)),
]
"""Meshes of which a ring holds some axes, or parts of them: one ring or several, of neighbours or of every second."""
SHAPES = [(48, 48), (47, 45), (5, 7)]


def ring_steps(mesh: Mesh, ring: Digit, shape: tuple[int, ...], count: int) -> list[Step]:
    """Some steps along a ring between drawn shardings."""
    steps = list[Step]()
    drawn = pairs(mesh, 10**6)
    for source, target in Random(f"{mesh} {ring} {shape}").sample(drawn, min(len(drawn), 200)):
        with suppress(ReshardError):  # what changes elsewhere too
            steps.append(Step(Reshard.of(source, target, shape, "int32"), ring=ring))
    assert len(steps) > 3
    return steps[:count]


def exchange_of(step: Step) -> RingExchange:
    """That of a step along a ring."""
    exchange = step.moves[0].exchange
    assert isinstance(exchange, RingExchange)
    return exchange


def index_of(piece: Piece) -> tuple[slice, ...]:
    """Where a piece lies in the tensor."""
    return tuple(slice(low, high) for low, high in piece.box)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("mesh", "ring"), RINGS)
def test_every_device_gets_what_it_lacks_once(mesh: Mesh, ring: Digit, shape: tuple[int, ...]) -> None:
    """And pieces come from neighbours, that hold them or received them in the hop before."""
    passed = 0
    for step in ring_steps(mesh, ring, shape, 15):
        exchange = exchange_of(step)
        held, wanted = (oracle.holds(end, shape).reshape(-1, *shape) for end in (step.before, step.after))
        taken = {device: exchange.taken(device) for device in mesh.devices}
        for device in mesh.devices:
            position = mesh.position_of(device)
            covered = np.zeros(shape, dtype=np.int64)
            for piece in exchange.incoming(device):
                covered[index_of(piece)] += 1
            assert (covered == wanted[position]).all()
            passing = exchange.passing(device)
            passed += len(passing)
            assert not any(wanted[position][index_of(piece)].any() for piece in passing)
            assert {*exchange.incoming(device), *passing} == set(taken[device])
            assert len({piece.box for piece in taken[device]}) == len(taken[device])
            for piece in taken[device]:
                sender = mesh.position_of(piece.sender)
                apart = (ring.value(sender) - ring.value(position)) % ring.size
                assert sender - ring.value(sender) * ring.stride == position - ring.value(position) * ring.stride
                assert apart in ({0} if piece.round == 0 else {1, ring.size - 1})
                assert held[mesh.position_of(exchange.holder_of(piece))][index_of(piece)].all()
                came = [other.round for other in taken[piece.sender] if other.box == piece.box and other.round]
                assert piece.round < 2 or came == [piece.round - 1]
            received = sum(piece.box.size for piece in taken[device] if piece.round)
            assert exchange.received_on(device) == exchange.all_received()[position] == received
        outgoing = [piece for device in mesh.devices for piece in exchange.outgoing(device)]
        assert set(outgoing) == {piece for pieces in taken.values() for piece in pieces}
        assert len(outgoing) == len(exchange.table().senders)
        assert exchange.hops == max([1, *(piece.round for piece in outgoing)])
    assert passed


@pytest.mark.parametrize(("mesh", "ring"), RINGS)
def test_what_is_handed_on_is_the_front_of_what_came(mesh: Mesh, ring: Digit) -> None:
    """So it need not be packed anew."""
    fronts = 0
    for shape, number in product(SHAPES, range(6)):
        exchange = exchange_of(ring_steps(mesh, ring, shape, 6)[number])
        for device in mesh.devices:
            leaving = exchange.by_hop(piece for piece in exchange.outgoing(device) if piece.receiver != device)
            arriving = exchange.by_hop(piece for piece in exchange.taken(device) if piece.sender != device)
            for onwards, came in zip(leaving[1:], arriving, strict=False):
                for receiver in {piece.receiver for piece in onwards}:
                    boxes = [piece.box for piece in onwards if piece.receiver == receiver]
                    sender = next(piece.sender for piece in came if piece.box == boxes[0])
                    assert sender != receiver
                    assert boxes == [piece.box for piece in came if piece.sender == sender][: len(boxes)]
                    fronts += 1
    assert fronts > 10


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("mesh", "ring"), RINGS)
def test_tiles_and_bytes_are_as_planned(mesh: Mesh, ring: Digit, shape: tuple[int, ...]) -> None:
    array = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    for step in ring_steps(mesh, ring, shape, 40):
        whole, received = Plan(step.reshard, (step,), Options()), dict[int, int]()
        tiles = run(whole, oracle.tiles(array, step.before), received_bytes=received)
        for device, tile in oracle.tiles(array, step.after).items():
            assert (tiles[device] == tile).all()
        assert [received[device] for device in mesh.devices] == step.all_received_bytes().tolist()
        missing = oracle.missing(step.before, step.after, shape)
        assert all(received[device] >= missing[device] * 4 for device in mesh.devices)
        assert Plan.from_json(whole.to_json()) == whole


@pytest.mark.parametrize(("mesh", "ring"), RINGS)
def test_the_price_is_that_of_the_links(mesh: Mesh, ring: Digit) -> None:
    """Hop by hop the fullest, where shares of units are cut to whole elements."""
    if mesh.device_ids is not None:
        return
    levels = [Level(ring.stride, ring.size, "ring", 3.0, 0.25)]
    if ring.stride > 1:
        levels.insert(0, Level(1, ring.stride, "ring", 2.0, 0.5))
    if ring.end < mesh.size:
        levels.append(Level(ring.end, mesh.size // ring.end, "switch", 1.0, 1.0))
    network = Network(tuple(levels))
    for step in ring_steps(mesh, ring, (96, 96), 20):
        seconds = 0.0
        for senders, receivers, elements in exchange_of(step).traffic_of_hops():
            assert len({*zip(senders.tolist(), receivers.tolist(), strict=True)}) == len(elements)
            seconds += elements.max(initial=0) * 4 / 3.0 + (0.25 if len(elements) else 0.0)
        assert seconds_of(step, network) == pytest.approx(seconds + network.launch_s, rel=0.05)


@pytest.mark.parametrize(
    ("sizes", "near"), [({"a": 2, "b": 2, "c": 2}, 0.05), ({"a": 4, "b": 2}, 0.05), ({"a": 2, "b": 2, "c": 3}, 0.06)]
)
def test_plans_take_them_and_run_as_priced(sizes: dict[str, int], near: float) -> None:
    """On a ring of 12 hops of several parts meet on links that the price tells apart, in one plan by 5.5 %."""
    mesh = Mesh.of(sizes)
    network = Network((Level(1, mesh.size, "ring", 1, 0),))
    array = np.arange(96 * 96, dtype=np.int32).reshape(96, 96)
    taken = 0
    for source, target in Random(4).sample(pairs(mesh, 10**6), 40):
        made = plan(source, target, array.shape, "int32", network=network)
        if not any(step.ring for share in made.shares for step in share.steps):
            continue
        taken += 1
        received = dict[int, int]()
        tiles = run(made, oracle.tiles(array, source), received_bytes=received)
        for device, tile in oracle.tiles(array, target).items():
            assert (tiles[device] == tile).all()
        assert max(received.values()) == made.received_bytes == made.lower_bound_bytes + made.relayed_bytes
        large = plan(source, target, (1152, 1152), "int32", network=network)  # whose shares are nearly of one size
        assert simulated_seconds(large, network) == pytest.approx(large.seconds, rel=near)
        assert Plan.from_json(made.to_json()) == made
    assert taken > 4


@pytest.mark.parametrize("shape", [(95, 93), (90, 96)])
def test_uneven_tensors_take_them_too(shape: tuple[int, int]) -> None:
    mesh = Mesh.of(a=2, b=2, c=2)
    network = Network((Level(1, 8, "ring", 1, 0),))
    array = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    taken = 0
    for source, target in Random(5).sample(pairs(mesh, 10**6), 60):
        made = plan(source, target, shape, "int32", network=network)
        taken += any(step.ring for share in made.shares for step in share.steps)
        tiles = run(made, oracle.tiles(array, source))
        for device, tile in oracle.tiles(array, target).items():
            assert (tiles[device] == tile).all()
        assert (made.seconds or 0.0) >= (made.lower_bound_seconds or 0.0) * (1 - 1e-9)
    assert taken > 4


@pytest.mark.parametrize("mesh", [Mesh.of(a=2, b=2), Mesh.of(a=2, b=4)])
def test_what_devices_kept_is_sent_too(mesh: Mesh) -> None:
    for shape in ((9, 8), (16, 24)):
        array = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
        rings = Digit(1, mesh.size), None
        for whole in chain.from_iterable(plans_with_kept(mesh, shape, "int32", 20, ring) for ring in rings):
            received = dict[int, int]()
            tiles = run(whole, oracle.tiles(array, whole.source), received_bytes=received)
            for device, tile in oracle.tiles(array, whole.target).items():
                assert (tiles[device] == tile).all()
            assert received == {device: whole.received_bytes_on(device) for device in mesh.devices}
            assert Plan.from_json(whole.to_json()) == whole


def test_by_hand() -> None:
    """A tensor in two halves on a ring of 4, wanted whole: half of what is lacked comes each way, half of it passes."""
    mesh = Mesh.of(a=2, b=2)
    step = Step(Reshard.of(Sharding.of(mesh, "a"), Sharding.of(mesh, None), (8,), "int8"), ring=Digit(1, 4))
    exchange = exchange_of(step)
    assert exchange.incoming(0) == [
        Piece(0, 0, Box([(0, 4)]), 0),
        Piece(3, 0, Box([(4, 6)]), 1),
        Piece(1, 0, Box([(6, 8)]), 2),
    ]
    assert (exchange.hops, exchange.rounds, exchange.passing(0)) == (2, 2, [])
    quarters = Step(Reshard.of(Sharding.of(mesh, "a"), Sharding.of(mesh, "b"), (8,), "int8"), ring=Digit(1, 4))
    exchange = exchange_of(quarters)
    assert exchange.taken(0) == [Piece(0, 0, Box([(0, 4)]), 0), Piece(3, 0, Box([(4, 6)]), 1)]
    assert exchange.passing(0) == [Piece(3, 0, Box([(4, 6)]), 1)]
    assert exchange.outgoing(0)[1:] == [Piece(0, 3, Box([(2, 4)]), 1), Piece(0, 1, Box([(4, 6)]), 2)]
    assert (exchange.received_on(0), quarters.received_bytes, exchange.missing) == (2, 4, 4)


TORI = [
    (Mesh.of(x=3, y=3), Digit(3, 3), Digit(1, 3), ("x", "y"), ("y", "x")),
    (Mesh.of(x=4, y=4), Digit(4, 4), Digit(1, 4), ("x", "y"), ("y", "x")),
    (Mesh.of(x=4, y=4), Digit(1, 4), Digit(4, 4), (("x", "y"), None), (("y", "x"), None)),
    (Mesh.of(x=5, y=5), Digit(5, 5), Digit(1, 5), ("y", "x"), ("x", "y")),
    (Mesh.of(o=2, x=4, y=4), Digit(4, 4), Digit(1, 4), ("x", ("o", "y")), ("y", ("o", "x"))),
    (Mesh.of(x=4, o=2, y=4), Digit(8, 4), Digit(1, 4), ("x", "y"), ("y", "x")),
    (Mesh.of(a=2, b=2, c=2, d=2), Digit(4, 4), Digit(1, 4), (("a", "d"), ("b", "c")), (("c", "b"), ("d", "a"))),
    (Mesh.of(x=8, y=8), Digit(8, 8), Digit(1, 8), ("x", "y"), ("y", "x")),
]
"""Meshes with two rings, and ends between which their devices change places."""


@pytest.mark.parametrize("shape", [(64, 64), *SHAPES[1:]])
@pytest.mark.parametrize(("mesh", "ring", "across", "before", "after"), TORI)
def test_devices_of_two_rings_change_places(
    mesh: Mesh, ring: Digit, across: Digit, before: tuple[str, str], after: tuple[str, str], shape: tuple[int, int]
) -> None:
    ends = Sharding.of(mesh, *before), Sharding.of(mesh, *after)
    step = Step(Reshard.of(*ends, shape, "int32"), ring=ring, across=across)
    exchange, arrived = exchange_of(step), set[tuple[int, int, Box]]()
    held, wanted = (oracle.holds(end, shape).reshape(-1, *shape) for end in ends)
    for device in mesh.devices:
        covered = np.zeros(shape, dtype=np.int64)
        for piece in exchange.incoming(device):
            covered[index_of(piece)] += 1
        assert (covered == wanted[device]).all()
    outgoing = [piece for device in mesh.devices for piece in exchange.outgoing(device)]
    for sender, receiver, box, hop in sorted(outgoing, key=lambda piece: piece.round):
        apart = [(each.value(receiver) - each.value(sender)) % each.size for each in (ring, across)]
        rest = [end - sum(each.value(end) * each.stride for each in (ring, across)) for end in (sender, receiver)]
        assert rest[0] == rest[1]
        assert (hop == 0) == (apart == [0, 0])
        assert hop == 0 or (0 in apart and sum(apart) in (1, ring.size - 1))
        index = tuple(slice(*side) for side in box)
        assert (hop - 1, sender, box) in arrived if hop > 1 else held[sender][index].all()
        assert held[exchange.holder_of(Piece(sender, receiver, box, hop))][index].all()
        assert (hop, receiver, box) not in arrived
        arrived.add((hop, receiver, box))
    assert {*outgoing} == {piece for device in mesh.devices for piece in exchange.taken(device)}
    array, received = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape), dict[int, int]()
    whole = Plan(step.reshard, (step,), Options())
    tiles = run(whole, oracle.tiles(array, ends[0]), received_bytes=received)
    for device, tile in oracle.tiles(array, ends[1]).items():
        assert (tiles[device] == tile).all()
    assert [received[device] for device in mesh.devices] == step.all_received_bytes().tolist()
    assert all(step.received_bytes_on(device) == received[device] for device in mesh.devices)
    assert step.peak_bytes >= sum(int(end.sum(axis=(1, 2)).max()) for end in (held, wanted)) * 4
    assert Plan.from_json(whole.to_json()) == whole


@pytest.mark.parametrize(
    ("mesh", "levels"),
    [
        (Mesh.of(x=4, y=4), [Level(1, 4, "ring", 1.0, 0.25), Level(4, 4, "ring", 1.0, 0.25)]),
        (Mesh.of(x=4, y=4), [Level(1, 4, "ring", 1.0, 0), Level(4, 4, "ring", 3.0, 0)]),
        (Mesh.of(x=3, y=3), [Level(1, 3, "ring", 2.0, 0), Level(3, 3, "ring", 1.0, 0)]),
        (Mesh.of(x=4, o=2, y=4), [Level(1, 4, "ring", 1, 0), Level(4, 2, "ring", 1, 0), Level(8, 4, "ring", 2, 0)]),
    ],
)
def test_the_price_of_two_rings_is_that_of_their_links(mesh: Mesh, levels: list[Level]) -> None:
    """Of one speed or two, hop by hop."""
    network, rings = Network(tuple(levels)), (levels[-1].digit, levels[0].digit)
    reshard = Reshard.of(Sharding.of(mesh, "x", "y"), Sharding.of(mesh, "y", "x"), (384, 384), "int16")
    step = Step(reshard, ring=rings[0], across=rings[1])
    seconds = network.launch_s
    for senders, receivers, elements in exchange_of(step).traffic_of_hops():
        along = rings[1].value(senders) != rings[1].value(receivers)
        bandwidths = np.where(along, levels[0].bandwidth, levels[-1].bandwidth)
        seconds += (elements * 2 / bandwidths).max() + levels[0].latency_s
    assert seconds_of(step, network) == pytest.approx(seconds, rel=0.05)
    assert simulated_seconds(Plan(reshard, (step,), Options()), network) == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize(("size", "tiles"), [(3, 0.375), (4, 0.5), (5, 0.667), (6, 0.813), (8, 1.125)])
def test_what_changes_places_along_two_rings_takes(size: int, tiles: float) -> None:
    """Of tiles what the fullest link carries, which is the value of a linear program of all routes (1.1 of 8)."""
    network = Network((Level(1, size, "ring", 1, 0), Level(size, size, "ring", 1, 0)))
    mesh, shape = Mesh.of(x=size, y=size), (size * 96 * 8,) * 2
    made = plan(Sharding.of(mesh, "y", "x"), Sharding.of(mesh, "x", "y"), shape, "int8", network=network)
    assert made.steps[0].across is not None
    assert made.seconds == pytest.approx(tiles * (96 * 8) ** 2, rel=0.05)
    small = plan(Sharding.of(mesh, "y", "x"), Sharding.of(mesh, "x", "y"), (size * 192,) * 2, "int8", network=network)
    assert simulated_seconds(small, network) == pytest.approx(small.seconds, rel=0.05)


@pytest.mark.parametrize("shape", [(96, 96), (63, 45)])
def test_plans_let_devices_of_a_torus_change_places_in_parts(shape: tuple[int, int]) -> None:
    """About half a tile on a link, where exchanges along one ring at a time take three quarters."""
    network = Network((Level(1, 4, "ring", 1, 0), Level(4, 4, "ring", 1, 0)))
    mesh, array = Mesh.of(x=4, y=4), np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    made = plan(Sharding.of(mesh, "y", "x"), Sharding.of(mesh, "x", "y"), shape, "int32", network=network)
    assert made.parts > 1
    assert [step.across is None for step in made.steps] == [False]
    assert 0.5 <= made.seconds / (Tiling.of(made.source, shape).largest_tile * 4) < 0.65
    received = dict[int, int]()
    tiles = run(made, oracle.tiles(array, made.source), received_bytes=received)
    for device, tile in oracle.tiles(array, made.target).items():
        assert (tiles[device] == tile).all()
    assert received == {device: made.received_bytes_on(device) for device in mesh.devices}
    assert Plan.from_json(made.to_json()) == made


def test_refused_where_devices_do_not_change_places() -> None:
    mesh, long = Mesh.of(x=4, y=4), Mesh.of(x=9, y=9)
    cubes, uneven = Mesh.of(o=2, x=4, y=4), Mesh.of(x=4, y=2)
    refused = [
        (mesh, ("x", "y"), ("x", "y"), Digit(4, 4), Digit(1, 4)),
        (mesh, ("x", None), ("y", None), Digit(4, 4), Digit(1, 4)),
        (mesh, ("x", "y"), ("y", "x"), Digit(4, 4), Digit(2, 4)),
        (mesh, ("x", "y"), ("y", "x"), Digit(4, 2), Digit(1, 2)),
        (long, ("x", "y"), ("y", "x"), Digit(9, 9), Digit(1, 9)),
        (cubes, ("x", ("o", "y")), (("o", "y"), "x"), Digit(4, 4), Digit(1, 4)),
        (uneven, ("x", "y"), ("y", "x"), Digit(2, 4), Digit(1, 2)),
    ]
    for on, before, after, ring, across in refused:
        ends = Sharding.of(on, *before), Sharding.of(on, *after)
        with pytest.raises(ReshardError, match="of devices of two rings of a size") as caught:
            transposed(*(Tiling.of(end, (72, 72)) for end in ends), ring, across)
        assert caught.value.code == "bad-step"
    reshard = Reshard.of(Sharding.of(mesh, "x", "y"), Sharding.of(mesh, "y", "x"), (72, 72))
    for more in ({"across": Digit(1, 4)}, {"ring": Digit(4, 4), "across": Digit(1, 4), "kept": reshard.source}):
        with pytest.raises(ReshardError, match="change places along two rings") as caught:
            Step(reshard, **more)
        assert caught.value.code == "bad-step"


def test_refusals() -> None:
    mesh = Mesh.of(a=2, b=4)
    ends = [Sharding.of(mesh, *dims) for dims in (("a", None), (None, "a"))]
    partial, whole = Sharding.of(mesh, None, None, unreduced="b"), Sharding.of(mesh, None, None)
    other = Sharding.of(Mesh.of({"a": 2, "b": 4}, device_ids=(1, 0, *range(2, 8))), None, "a")
    refused = [
        (ends[0], ends[1], Digit(1, 4), "what changes nowhere else"),
        (partial, whole, Digit(1, 4), "of whole values"),
        (ends[0], other, Digit(1, 8), "digits of one mesh"),
        *((ends[0], ends[1], Digit(*ring), "digits of one mesh") for ring in ((3, 4), (1, 16), (0, 4), (4, 2))),
    ]
    for source, target, ring, sentence in refused:
        with pytest.raises(ReshardError, match=sentence) as caught:
            Step(Reshard.of(source, target, (48, 48)), ring=ring)
        assert caught.value.code == "bad-step"
        with pytest.raises(ReshardError, match=sentence):
            around(*(Tiling.of(end, (48, 48)) for end in (source, target)), ring)
    long = Mesh.of(a=2**8, b=2**8)
    many = (Sharding.of(long, *dims) for dims in (("a", "b"), ("b", "a")))
    with pytest.raises(ReshardError, match="places of units are too many") as caught:
        Step(Reshard.of(*many, (2**16, 2**16)), ring=Digit(1, long.size))
    assert caught.value.code == "too-large"
    exchange = exchange_of(Step(Reshard.of(*ends, (48, 48)), ring=Digit(1, 8)))
    for of_device in (exchange.incoming, exchange.taken, exchange.passing, exchange.outgoing, exchange.received_on):
        with pytest.raises(ReshardError, match="device 9 is in neither mesh"):
            of_device(9)
