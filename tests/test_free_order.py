"""What a plan says beside its bound: what is sent, and which order of axes would move nothing."""

from __future__ import annotations

import random
from itertools import permutations, product

import reshard as rs
from reshard.plans.free_order import order_that_is_free
from reshard.problem import Reshard

MESH = rs.Mesh.of(x=2, y=3, z=2)


def all_shardings() -> list[rs.Sharding]:
    """Every way to cut two dims by whole axes."""
    found = {}
    for order in permutations(MESH.sizes):
        for places in product((0, 1, None), repeat=3):
            dims = [[name for name, place in zip(order, places, strict=True) if place == dim] for dim in (0, 1)]
            found[rs.Sharding.of(MESH, *dims)] = None
    return list(found)


def test_the_order_that_is_free_is_found_where_there_is_one() -> None:
    every, rng, shape, found = all_shardings(), random.Random(0), (24, 36), 0
    for _ in range(60):
        source, target = rng.choices(every, k=2)
        free = order_that_is_free(Reshard.of(source, target, shape))
        alike = [other for other in every if other.local_shape(shape) == target.local_shape(shape)]
        exists = any(rs.plan(source, other, shape).received_bytes == 0 for other in alike)
        assert (free is not None) == exists
        if free is not None:
            found += 1
            assert free in alike
            assert rs.plan(source, free, shape).received_bytes == 0
    assert 10 < found < 60


def test_a_table_names_the_order_that_is_free() -> None:
    mesh = rs.Mesh.of(x=2, y=2)
    plan = rs.plan(rs.Sharding.of(mesh, "x", None), rs.Sharding.of(mesh, "y", "x"), (8, 8))
    assert str(plan).endswith('[{"x"}, {"y"}] has tiles of the same size and would move nothing')
    assert "would move" not in str(rs.plan(plan.source, rs.Sharding.of(mesh, "x", "y"), (8, 8)))


def test_sent_bytes_are_those_of_the_busiest_sender() -> None:
    rng = random.Random(1)
    every = all_shardings()
    for _ in range(40):
        shape = rng.choice(((24, 36), (5, 7)))
        plan = rs.plan(*rng.choices(every, k=2), shape, "int8")
        sent = [
            sum(
                piece.box.size
                for step in plan.steps
                for move in step.moves
                for piece in move.exchange.outgoing(device)
                if piece.receiver != device
            )
            for device in range(12)
        ]
        assert plan.sent_bytes == max(sent)
    uneven = rs.plan(rs.Sharding.of(rs.Mesh.of(x=4), "x"), rs.Sharding.of(rs.Mesh.of(x=4), None), (5,), "int8")
    assert (uneven.sent_bytes, uneven.received_bytes) == (6, 5)
    assert "sent 6 B by the busiest device" in str(uneven)
