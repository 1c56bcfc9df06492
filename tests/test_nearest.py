"""Exchanges in which the nearest holder along a ring sends, against index arithmetic and listed messages."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from random import Random

import numpy as np
import oracle
import pytest
from reshard.exchange.nearest import nearest
from simulated import simulated_seconds
from time_bounds import pairs

from reshard import Mesh, Network, Plan, ReshardError, Sharding, plan
from reshard.digits import Digit
from reshard.network import Level, seconds_of
from reshard.network.pricing import _use_of_loads
from reshard.network.traffic import loads
from reshard.numpy.tiles import run
from reshard.problem import Reshard
from reshard.steps import Step
from reshard.tiling import Tiling

RINGS = [
    (Mesh.of(a=2, b=2, c=2), Digit(1, 8)),
    (Mesh.of(a=2, b=4), Digit(1, 8)),
    (Mesh.of(a=4, b=2, c=2), Digit(2, 8)),
    (Mesh.of(o=2, a=3, b=2), Digit(1, 6)),
    (Mesh.of(o=2, a=2, b=3), Digit(1, 6)),
]
"""Meshes of which a ring holds some axes, or parts of them."""
SHAPE = (48, 48)


def nearest_steps(mesh: Mesh, ring: Digit, count: int) -> list[Step]:
    """Some steps between drawn shardings in which the nearest sends."""
    steps = list[Step]()
    drawn = pairs(mesh, 10**6)
    for source, target in Random(f"{mesh} {ring}").sample(drawn, min(len(drawn), 200)):
        with suppress(ReshardError):  # what changes elsewhere too
            steps.append(Step(Reshard.of(source, target, SHAPE, "int8"), ring=ring))
    assert len(steps) > 3
    return steps[:count]


@pytest.mark.parametrize(("mesh", "ring"), RINGS)
def test_every_device_gets_what_it_lacks_once_and_from_the_nearest(mesh: Mesh, ring: Digit) -> None:
    for step in nearest_steps(mesh, ring, 12):
        exchange = step.moves[0].exchange
        held, wanted = (oracle.holds(end, SHAPE).reshape(-1, *SHAPE) for end in (step.before, step.after))
        sent = {device: set[object]() for device in range(mesh.size)}
        for device in range(mesh.size):
            received = np.zeros(SHAPE, dtype=np.int64)
            for piece in exchange.incoming(device):
                box = tuple(slice(low, high) for low, high in piece.box)
                received[box] += 1
                holders = [other for other in range(mesh.size) if held[other][box].all()]
                ahead = {
                    other: (ring.value(other) - ring.value(device)) % ring.size
                    for other in holders
                    if other - ring.value(other) * ring.stride == device - ring.value(device) * ring.stride
                }
                hops = {other: min(places, ring.size - places) for other, places in ahead.items()}
                assert hops[piece.sender] == min(hops.values())
                sent[piece.sender].add(piece)
            assert (received == wanted[device]).all()
            assert exchange.received_on(device) == oracle.missing(step.before, step.after, SHAPE)[device]
        for device in range(mesh.size):
            assert set(exchange.outgoing(device)) == sent[device]
        assert exchange.rounds == max(
            sum(piece.sender != piece.receiver for piece in pieces)
            for of_device in (exchange.incoming, exchange.outgoing)
            for pieces in map(of_device, range(mesh.size))
        )


@pytest.mark.parametrize(("mesh", "ring"), RINGS)
def test_the_price_along_the_ring_is_that_of_all_messages(mesh: Mesh, ring: Digit) -> None:
    levels = [Level(ring.stride, ring.size, "ring", 3.0, 0.25)]
    if ring.stride > 1:
        levels.insert(0, Level(1, ring.stride, "ring", 2.0, 0.5))
    if ring.end < mesh.size:
        levels.append(Level(ring.end, mesh.size // ring.end, "switch", 1.0, 1.0))
    network = Network(tuple(levels))
    for step in nearest_steps(mesh, ring, 20):
        listed = _use_of_loads(loads(network.levels, *step.moves[0].exchange.traffic()), 1.0, network)
        assert seconds_of(step, network) == pytest.approx(listed.seconds)


@pytest.mark.parametrize("sizes", [{"a": 2, "b": 2, "c": 2}, {"a": 4, "b": 2}, {"a": 2, "b": 2, "c": 3}])
def test_plans_take_them_and_run_as_priced(sizes: dict[str, int]) -> None:
    mesh = Mesh.of(sizes)
    network = Network((Level(1, mesh.size, "ring", 1, 0),))
    array = np.arange(96 * 96, dtype=np.int32).reshape(96, 96)
    taken = 0
    for source, target in Random(4).sample(pairs(mesh, 10**6), 40):
        made = plan(source, target, array.shape, "int32", network=network)
        if not any(step.ring for share in made.shares for step in share.steps):
            continue
        taken += 1
        tiles = run(made, oracle.tiles(array, source))
        for device, tile in oracle.tiles(array, target).items():
            assert (tiles[device] == tile).all()
        assert simulated_seconds(made, network) == pytest.approx(made.seconds, rel=0.05)
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


def test_what_changes_elsewhere_goes_from_no_nearest() -> None:
    mesh = Mesh.of(a=2, b=4)
    ends = [Sharding.of(mesh, *dims) for dims in (("a", None), (None, "a"))]
    with pytest.raises(ReshardError, match="where nothing else changes") as refused:
        Step(Reshard.of(*ends, SHAPE), ring=Digit(1, 4))
    assert refused.value.code == "bad-step"
    partial = Sharding.of(mesh, None, None, unreduced="b")
    with pytest.raises(ReshardError, match="of whole values"):
        Step(Reshard.of(partial, Sharding.of(mesh, None, None), SHAPE), ring=Digit(1, 4))
    for size, source in product((4, 16), ends):
        with pytest.raises(ReshardError, match=r"the nearest|of whole values"):
            nearest(*(Tiling.of(end, SHAPE) for end in (source, Sharding.of(Mesh.of(x=8), "x", None))), Digit(3, size))
