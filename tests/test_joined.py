"""Whether two plans, one after the other, are one that brings every device its tile."""

from __future__ import annotations

from random import Random

import pytest
from checkers import check_chain, check_run
from time_bounds import NETWORKS, pairs

from reshard import Mesh, Plan, Sharding, plan
from reshard.planner.joined import finer, joined
from reshard.problem import Reshard

SHAPES = ((64, 64), (61, 35), (253, 381))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_joined_plans_bring_every_tile_in_no_more_than_the_sum(name: str, count: int) -> None:
    """By way of each end cut further; numbered elements, by index arithmetic."""
    mesh, network = NETWORKS[name]
    rng, drawn = Random(f"{name} {count}"), list[Plan]()
    for source, target in rng.sample(pairs(mesh, 1000), count):
        shape = rng.choice(SHAPES)
        for middle in [*finer(source, target, shape), *finer(target, source, shape)]:
            legs = [plan(*ends, shape, "int64", network=network) for ends in ((source, middle), (middle, target))]
            whole = joined(Reshard.of(source, target, shape, "int64"), *legs)
            check_chain(whole)
            check_run(whole)
            if min(leg.parts for leg in legs) == 1:
                assert (whole.seconds or 0.0) <= sum(leg.seconds or 0.0 for leg in legs) * (1 + 1e-9)
            drawn.append(whole)
    assert any(whole.parts > 1 for whole in drawn) or count < 40


def test_ends_are_cut_further_by_hand() -> None:
    """As the other end has it, or in even parts, or in uneven ones: 10 rows in 8 are five times two."""
    mesh = Mesh.of(a=2, b=4)
    rows, columns = Sharding.of(mesh, "a", None), Sharding.of(mesh, None, "b")
    assert [middle.text() for middle in finer(rows, columns, (8, 8))] == ['[{"a"}, {"b"}]', '[{"a", "b"}, {}]']
    assert [middle.text() for middle in finer(columns, rows, (6, 6))] == ['[{"a"}, {"b"}]']
    whole = Sharding.of(mesh, None)
    assert [middle.text() for middle in finer(whole, whole, (10,))] == ['[{"a", "b"}]']
    assert not finer(Sharding.of(mesh, None, unreduced="a"), whole, (6,))
