"""Exchanges less what devices kept: nothing comes that a device had before, and all that it had not."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

import numpy as np
import oracle
import problems
import pytest

import reshard as rs
from reshard.exchange import KeptExchange, Piece
from reshard.plans import Options
from reshard.problem import Reshard
from reshard.steps import Step, step_of

GATHERS = [
    (rs.Mesh.of(h=2, g=8), "h100-2x8", ("h", None), (None, None)),
    (rs.Mesh.of(h=2, g=8), "h100-2x8", ("h", None), (None, "h")),
    (rs.Mesh.of(h=4, g=8), "h100-4x8", (None, "h"), ("h", None)),
    (rs.Mesh.of(h=4, g=72), "gb200-nvl72-4x72", ("h", None), (None, None)),
]
"""Where hosts hold other parts, which every device of a host has: axes that only cross them."""


def drawn_triples(seed: int, count: int) -> list[tuple[rs.Sharding, rs.Sharding, rs.Sharding, tuple[int, ...], int]]:
    """What devices have, where the tensor is meanwhile, where it goes, its shape, and which senders are near."""
    rng, triples = Random(seed), []
    while len(triples) < count:
        mesh = problems.draw_mesh(rng)
        if mesh.size == 1:
            continue
        kept, middle, target = (problems.draw_sharding(rng, mesh, 2) for _ in range(3))
        if rng.random() < 0.3:
            axis = rng.choice(list(mesh.sizes))
            deal = rng.choice([rs.Deal.parts(2), rs.Deal.blocks(3), rs.Deal.blocks(8)])
            middle = rs.Sharding.of(mesh, (deal, axis), None)
        shape = (rng.choice((1, 6, 7, 24, 32)), rng.choice((3, 8, 16, 29)))
        triples.append((kept, middle, target, shape, rng.choice((0, 0, 1, 2))))
    return triples


def steps_beside(seed: int, count: int) -> list[tuple[Reshard, Step, Step]]:
    """What two steps do together, and the steps: the second sends less than were nothing kept."""
    steps = []
    for kept, middle, target, shape, near in drawn_triples(seed, count):
        reshard = Reshard.of(kept, target, shape, "int32")
        with suppress(rs.ReshardError):  # tiles of several boxes that no digits say
            last = step_of(replace(reshard, source=middle), near, kept=kept)
            if last.total_received_bytes < step_of(last.reshard, near).total_received_bytes:
                steps.append((reshard, step_of(replace(reshard, target=middle)), last))
    return steps


def elements(sharding: rs.Sharding, shape: tuple[int, ...]) -> dict[int, set[int]]:
    """Per device the numbers of the elements that it holds."""
    tiles = rs.numpy.scatter(oracle.encoded(shape), sharding)
    return {device: set(tile.ravel().tolist()) for device, tile in tiles.items()}


@pytest.mark.parametrize("seed", range(4))
def test_devices_receive_what_they_lack_of_both(seed: int) -> None:
    found = steps_beside(seed, 150)
    assert len(found) > 20
    for reshard, first, last in found:
        plan = rs.Plan(reshard, (first, last), Options())
        numbers, received = oracle.encoded(reshard.shape), dict[int, int]()
        tiles = rs.numpy.run(plan, oracle.tiles(numbers.astype(np.int32), plan.source))
        for device, tile in oracle.tiles(numbers, plan.target).items():
            np.testing.assert_array_equal(tiles[device], tile, err_msg=f"{device} of {plan!r}")
        kept, held, needed = (elements(end, plan.shape) for end in (plan.source, last.before, last.after))
        for device in plan.source.mesh.devices:
            received[device] = 4 * len(needed[device] - held[device] - kept[device])
        assert received == {device: last.received_bytes_on(device) for device in received}
        assert last.all_received_bytes().tolist() == [received[device] for device in plan.target.mesh.devices]
        assert Step(last.reshard, near=last.near, kept=last.kept) == last
        assert rs.Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("seed", range(2))
def test_all_say_the_same_of_who_sends_what(seed: int) -> None:
    """Pieces as their receivers, their senders and the table have them; the traffic is that of pieces that travel."""
    for _, _, last in steps_beside(seed + 100, 100):
        (move,) = last.moves
        exchange = move.exchange
        assert isinstance(exchange, KeptExchange)
        devices = exchange.target.mesh.devices
        coming = sorted(piece for device in devices for piece in exchange.incoming(device))
        assert coming == sorted(piece for device in devices for piece in exchange.outgoing(device))
        table = exchange.table()
        boxes = np.stack([table.starts, table.stops], -1).transpose(1, 0, 2).tolist()
        listed = [
            Piece(devices[sender], devices[receiver], rs.Box(map(tuple, box)), 0)
            for sender, receiver, box in zip(table.senders.tolist(), table.receivers.tolist(), boxes, strict=True)
        ]
        assert sorted(listed) == coming
        sent: dict[tuple[int, int], int] = {}
        for piece in coming:
            if piece.sender != piece.receiver:
                pair = piece.sender, piece.receiver
                sent[pair] = sent.get(pair, 0) + piece.box.size
        traffic = zip(*(column.tolist() for column in exchange.traffic()), strict=True)
        assert {(sender, receiver): elements for sender, receiver, elements in traffic} == sent
        busiest = max((sum(end == device for pair in sent for end in pair[:1]) for device in devices), default=0)
        assert busiest <= exchange.rounds
        for piece in coming:
            assert exchange.is_kept(piece.sender, piece.box) <= (piece.sender == piece.receiver)


@pytest.mark.parametrize(("mesh", "network", "before", "after"), GATHERS)
def test_hosts_gather_inside_only_what_they_lack(
    mesh: rs.Mesh, network: str, before: tuple[str | None, ...], after: tuple[str | None, ...]
) -> None:
    """What crosses hosts once is gathered inside, less what all devices of a host have: the bound in bytes and time."""
    ends = rs.Sharding.of(mesh, *before), rs.Sharding.of(mesh, *after)
    plan = rs.plan(*ends, (9216 * 64, 9216 * 32), "bf16", network=network)
    assert plan.received_bytes == plan.lower_bound_bytes
    assert plan.seconds is not None
    assert plan.lower_bound_seconds is not None
    assert plan.lower_bound_seconds <= plan.seconds <= 1.03 * plan.lower_bound_seconds
    assert plan.source in [step.kept for share in plan.shares for step in share.steps]


def test_uneven_tensors_keep_as_even_ones_do() -> None:
    """65 x 21 on a ring of two by two: in blocks of 34 rows, of which half is kept."""
    ring = rs.network.Level(1, 2, "ring", 1, 0)
    network, mesh = rs.Network((ring, replace(ring, stride=2))), rs.Mesh.of(x=2, y=2)
    plan = rs.plan(rs.Sharding.of(mesh, None, "x"), rs.Sharding.of(mesh, "x", None), (65, 21), "int64", network=network)
    assert any(step.kept is not None and step.ring is None for step in plan.steps)
    assert (plan.seconds or 0.0) <= 1.25 * (plan.lower_bound_seconds or 0.0)


def test_what_all_kept_is_not_sent() -> None:
    """Of a mesh under another name too, as long as devices stand in one order."""
    mesh, line = rs.Mesh.of(x=2, y=2), rs.Mesh.of(x=4)
    reshard = Reshard.of(rs.Sharding.of(mesh, None, "y"), rs.Sharding.of(mesh, None, None), (8, 8), "f32")
    step = Step(reshard, kept=rs.Sharding.of(line, None, None))
    assert (step.kind, step.total_received_bytes) == ("Slice", 0)


@pytest.mark.parametrize(
    "kept",
    [
        rs.Sharding.of(rs.Mesh.of(x=2, y=2), None, None, unreduced="x"),
        rs.Sharding.of(rs.Mesh.of([("x", 2), ("y", 2)], device_ids=[0, 2, 1, 3]), "x", None),
        rs.Sharding.of(rs.Mesh.of(x=2), "x", None),
        rs.Sharding.of(rs.Mesh.of(x=2, y=2), "x", None, None),
    ],
)
def test_what_cannot_be_kept_is_refused(kept: rs.Sharding) -> None:
    mesh = rs.Mesh.of(x=2, y=2)
    reshard = Reshard.of(rs.Sharding.of(mesh, None, "y"), rs.Sharding.of(mesh, None, None), (8, 8), "f32")
    with pytest.raises(rs.ReshardError) as caught:
        Step(reshard, kept=kept)
    assert caught.value.code in ("bad-step", "rank-mismatch")


def test_nothing_is_kept_where_values_become_partial() -> None:
    mesh = rs.Mesh.of(x=2, y=2)
    ends = rs.Sharding.of(mesh, None, None), rs.Sharding.of(mesh, None, None, unreduced="x")
    with pytest.raises(rs.ReshardError, match="become partial"):
        Step(Reshard.of(*ends, (8, 8), "f32"), kept=rs.Sharding.of(mesh, "y", None))
