"""Whether tensors whose tiles differ in size go the ways of those next larger whose tiles do not, and arrive whole."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from checkers import check_chain, check_run
from ring_plans import plan_that_keeps_blocks
from simulated import simulated_seconds
from time_bounds import NETWORKS, pairs

from reshard import Mesh, Network, Plan, ReshardError, Sharding, plan
from reshard.deal import Deal
from reshard.network.level import Level
from reshard.planner.evened import evened_shapes
from reshard.planner.larger_tensors import plans_ended_inside
from reshard.plans.device_memory import memory_by_step
from reshard.plans.ended_inside import ended_inside
from reshard.plans.parts import Parting
from reshard.problem import Reshard
from reshard.tiling import Tiling

SHAPES = ((61, 35), (253, 381), (45, 49), (509, 127))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_every_device_gets_its_tile(name: str, count: int) -> None:
    """Numbered elements, by index arithmetic; what devices receive is what is counted."""
    mesh, network = NETWORKS[name]
    rng = Random(f"{name} {count}")
    in_parts, stretches = 0, 0
    for source, target in rng.sample(pairs(mesh, 1000), count):
        made = plan(source, target, rng.choice(SHAPES), "int64", network=network)
        check_chain(made)
        check_run(made)
        in_parts += made.parts > 1
        stretches += len(made.stretches) > 1
        assert Plan.from_json(made.to_json()) == made
        assert made.relayed_bytes == made.received_bytes - made.lower_bound_bytes >= 0
    assert in_parts or count < 60
    assert stretches or count < 60 or "hosts" not in name


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_prices_are_what_a_simulation_takes(name: str, count: int) -> None:
    """Within 5 %, and 2 % more for parts that are not quite of one size, of which the simulation takes the largest."""
    mesh, network = NETWORKS[name]
    for source, target in Random(count).sample(pairs(mesh, 1000), count):
        made = plan(source, target, (509, 510), "int8", network=network)
        found = simulated_seconds(made, network)
        assert made.seconds is not None
        assert (made.lower_bound_seconds or 0.0) * (1 - 1e-6) <= found
        assert 0.95 <= found / made.seconds <= (1.05 if made.parts == 1 else 1.07), f"{found} for {made}"


def test_parts_and_blocks_by_hand() -> None:
    """30 rows by x=2 lie in 15 and 15; in blocks of 16 one row goes over first, and of 2 parts one has 16, one 14."""
    mesh = Mesh.of(x=2, y=4)
    by_x = ended_inside(Sharding.of(mesh, "x"), (32,), (30,))
    assert by_x.text() == '[{blocks(16), "x"}]'
    assert [by_x.local_shape((30,)), by_x.box(4, (30,)).shape] == [(16,), (14,)]
    inner = ended_inside(Sharding.of(mesh, ("y", Deal.parts(2), "x")), (32,), (30,))
    assert inner.text() == '[{blocks(8), "y", blocks(2), "x"}]'
    tiles = [Tiling.of(inner, (30,)).tile(device) for device in (3, 7)]
    assert [[tuple(box[0]) for box in tile.boxes()] for tile in tiles] == [[(24, 26), (28, 30)], [(26, 28)]]
    parting = Parting.of((30,), [by_x, Sharding.of(mesh, None)])
    assert [parting.shape((30,), 2, number) for number in range(2)] == [(16,), (14,)]
    assert parting.of_part(by_x, (30,), (14,), 2).text() == '[{blocks(8), "x"}]'


def test_what_the_whole_tensor_does_is_said_and_checked() -> None:
    """The last step puts columns in place that lie in other blocks; the parts end before it."""
    mesh, network = NETWORKS["hosts 2x4"]
    made = plan(Sharding.of(mesh, "h", "g"), Sharding.of(mesh, "g", "h"), (63, 45), "int64", network=network)
    assert made.whole == (0, 1)
    assert "parts before the last step, whose" in str(made)
    assert [stretch.parts > 1 for stretch in made.stretches] == [True, False]
    assert sum(stretch.seconds or 0.0 for stretch in made.stretches) == pytest.approx(made.seconds)
    for whole in ((2, 2), (-1, 0), (1,), (0, 0)):
        with pytest.raises(ReshardError, match=r"no two counts|part before step|cannot be cut in"):
            replace(made, whole=whole)


def test_parts_that_cannot_be_made_are_no_plan() -> None:
    """A larger tensor goes along rings in 13 parts, whose blocks no digits say for one that ends inside it."""
    mesh, network = Mesh.of(A=4, B=4, C=2, D=2, E=4), Network.preset("tpu-v5e-16x16")
    reshard = Reshard.of(
        Sharding.of(mesh, ("E", "C"), "A"), Sharding.of(mesh, ("D", "B", "A"), "C"), (16383, 16385), "float32"
    )
    larger = [
        plan(reshard.source, reshard.target, shape, "float32", network=network) for shape in evened_shapes(reshard)
    ]
    assert any(step.ring is not None for made in larger for share in made.shares for step in share.steps)
    assert any(made.parts > 1 for made in larger)
    for made in larger:
        for ended in plans_ended_inside(reshard, made):
            assert ended.received_bytes >= ended.lower_bound_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tpu-v5e-16x16", "h100-32x8"])
def test_uneven_tensors_take_about_what_even_ones_do(name: str) -> None:
    """Of 60 pairs of large tensors, in the geometric mean: within 15 % of those that all axes divide."""
    network, mesh, rng = Network.preset(name), Mesh.of(a=4, b=8, c=8), Random(name)
    ratios = []
    while len(ratios) < 60:
        ends = []
        for _ in range(2):
            axes, cut, left = rng.sample("abc", 3), rng.randint(0, 2), rng.randint(0, 1)
            ends.append(Sharding.of(mesh, axes[:cut], axes[cut : cut + left]))
        shapes = (2**19, 2**18), (2**19 - 5, 2**18 - 7)
        even, uneven = (plan(*ends, shape, "bf16", network=network).seconds for shape in shapes)
        if even and uneven:
            ratios.append(uneven / even)
    assert np.exp(np.mean(np.log(ratios))) <= 1.15


@pytest.mark.parametrize(
    ("network", "axes", "ends", "shape", "most_s"),
    [
        ("gb200-nvl72-4x72", {"a": 4, "b": 8, "c": 9}, ((("b", "a"), None), ("a", None)), (16384, 53248), 0.65e-3),
        ("tpu-v5p-8x8x8", {"x": 8, "y": 8, "z": 8}, (("z", ("y", "x")), (("y", "z"), "x")), (151936, 5120), 48e-6),
    ],
    ids=["by 9", "by 512"],
)
def test_even_tensors_that_not_all_axes_divide_go_the_ways_of_larger_ones(
    network: str, axes: dict[str, int], ends: tuple[tuple[Any, ...], ...], shape: tuple[int, ...], most_s: float
) -> None:
    """They took 0.96 ms, and 68 us, since what no axis divides was cut by no axis on the way."""
    source, target = (Sharding.of(Mesh.of(axes), *dims) for dims in ends)
    made = plan(source, target, shape, "bf16", network=network)
    assert made.lower_bound_seconds is not None
    assert made.seconds is not None
    assert made.lower_bound_seconds <= made.seconds < most_s
    assert Plan.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("axes", "ends", "shape"),
    [
        ({"a": 2, "b": 4}, ((None, "a"), (None, None)), (65, 129)),
        ({"a": 2, "b": 4}, ((None, "a"), ("a", None)), (65, 251)),
        ({"a": 4, "b": 2}, (("b", None), (None, "b")), (131, 43)),
    ],
)
def test_parts_use_what_lies_in_blocks_of_a_larger_tensor(
    axes: dict[str, int], ends: tuple[tuple[str | None, ...], ...], shape: tuple[int, int]
) -> None:
    """Along a ring, where each device keeps its tile, once a first step has put the few elements in place."""
    mesh = Mesh.of(axes)
    network = Network((Level(1, axes["b"], "ring", 1, 0), Level(axes["b"], axes["a"], "ring", 1, 0)))
    made = plan(*(Sharding.of(mesh, *end) for end in ends), shape, "int64", network=network)
    assert made.whole[0] == 1
    assert {step.kept for share in made.shares for step in share.steps} == {None, made.steps[0].after}
    check_run(made)
    assert Plan.from_json(made.to_json()) == made
    with pytest.raises(ReshardError, match="which are not") as caught:
        Plan(made.reshard, next(share.steps for share in made.shares if any(step.kept for step in share.steps)))
    assert caught.value.code == "broken-chain"


@pytest.mark.parametrize(
    ("ends", "shape"),
    [
        ((("z", "x"), ("x", ("z", "y"))), (128257, 30011)),
        (((None, ("z", "y")), (None, ("z", "x"))), (402056, 65537)),
        ((("z", ("x", "y")), (("y", "z"), "x")), (128257, 30011)),
        ((("z", "y"), ("y", ("z", "x"))), (402056, 65537)),
    ],
)
def test_few_elements_lie_in_blocks_of_other_lengths(
    ends: tuple[tuple[str | tuple[str, ...] | None, ...], ...], shape: tuple[int, int]
) -> None:
    """65,537 by 64 are 1,025, and 1,032 of a tensor that 512 devices divide: two fifths would lie elsewhere."""
    mesh, network = Mesh.of(x=8, y=8, z=8), Network.preset("tpu-v5p-8x8x8")
    larger = tuple(-(-size // 512) * 512 for size in shape)
    uneven, even = (plan(*(Sharding.of(mesh, *end) for end in ends), each, network=network) for each in (shape, larger))
    assert uneven.seconds <= even.seconds * 1.1


def test_what_parts_begin_with_counts_until_it_is_used() -> None:
    """Rows 0 to 129 and 130 to 256 by `a`, of 43 int32 each, while the third step is under way."""
    memories = memory_by_step(plan_that_keeps_blocks(257))
    assert [memory["begun with, kept"].tolist() for memory in memories] == [
        [0] * 4,
        [0] * 4,
        [130 * 43 * 4, 130 * 43 * 4, 127 * 43 * 4, 127 * 43 * 4],
        [0] * 4,
    ]
