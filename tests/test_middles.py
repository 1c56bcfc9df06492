"""Whether a plan by way of what its ends have in part brings every device its tile, in less time."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import oracle
import pytest
from checkers import check_chain, check_tiles
from sums import drawn
from time_bounds import NETWORKS

from reshard import Mesh, Network, Sharding, plan
from reshard import numpy as engine
from reshard.network import Level
from reshard.planner.joined import joined
from reshard.planner.middles import middles, worth_trying
from reshard.problem import Reshard

RING = Network((Level(1, 16, "ring", 1e9, 1e-6),))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_plans_by_way_of_middles_bring_every_value(name: str, count: int) -> None:
    """By way of all that are worth it where a plan takes very long; by sums of whole numbers, and index arithmetic."""
    mesh, network = NETWORKS[name]
    rng, fresh = Random(f"{name} {count}"), np.random.default_rng(count)
    kinds = set[tuple[bool, bool]]()
    for _ in range(count):
        source, target = drawn(mesh, rng)
        reshard = Reshard.of(source, target, rng.choice(((16, 16), (13, 7), (3, 2))), "int64")
        for way in worth_trying(reshard, network, 1e9):
            legs = [
                plan(*ends, reshard.shape, "int64", network=network) for ends in pairwise((source, way.middle, target))
            ]
            whole = joined(reshard, *legs)
            check_chain(whole)
            parts = [fresh.integers(0, 50, reshard.shape) for _ in range(oracle.class_count(source))]
            check_tiles(engine.run(whole, oracle.partial_tiles(parts, source)), oracle.tiles(sum(parts), target))
            kinds.add((bool(source.unreduced), bool(way.middle.unreduced)))
    assert (True, True) in kinds


def test_middles_by_hand() -> None:
    """What dims have at both ends or at one, partial or combined, or an end cut further."""
    mesh = Mesh.of(a=2, b=4)
    columns, rows = Sharding.of(mesh, None, "b"), Sharding.of(mesh, "b", None)
    assert [middle.text() for middle in middles(columns, rows, (8, 8))] == [
        "[{}, {}]",
        '[{"a"}, {"b"}]',
        '[{}, {"b", "a"}]',
        '[{"b", "a"}, {}]',
        '[{"b"}, {"a"}]',
    ]


def test_no_middles_where_digits_say_nothing_or_little_is_left() -> None:
    mesh = Mesh.of(a=8, b=2)
    whole, rows = Sharding.of(mesh, None), Sharding.of(mesh, "a")
    reshard = Reshard.of(rows, whole, (64,), "int8")
    assert worth_trying(reshard, RING, 1.0)
    assert not worth_trying(reshard, RING, 8e-6)  # the way half round takes as long
    assert not worth_trying(Reshard.of(rows, whole, (0,), "int8"), RING, 1.0)
    permuted = Mesh.of(a=8, b=2, device_ids=[*range(1, 16), 0])
    assert not worth_trying(
        Reshard.of(Sharding.of(permuted, "a"), Sharding.of(permuted, None), (64,), "int8"), RING, 1.0
    )
    assert not worth_trying(Reshard.of(rows, Sharding.of(Mesh.of(c=16), None), (64,), "int8"), RING, 1.0)
    assert not worth_trying(Reshard.of(rows, Sharding.of(mesh, None, unreduced="b"), (64,), "int8"), RING, 1.0)
