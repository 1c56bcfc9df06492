"""Prices of reshards against the figures of their plans, and of what stands in loops."""

from __future__ import annotations

import json
import random
from collections import Counter
from math import prod

import numpy as np
import pytest

from reshard import Axis, Mesh, Network, ReshardError, Sharding, parse_sharding, plan
from reshard.contraction.goal import Goal
from reshard.contraction.prices import Prices, moved_by
from reshard.dtypes import dtype_named
from reshard.network import Level, seconds_of
from reshard.planner.route_prices import RoutePrices
from reshard.problem import Reshard
from reshard.propagation import Program
from reshard.steps import Route, step_of

MESHES = ({"a": 8, "b": 8}, {"a": 2, "b": 2}, {"a": 2, "b": 3}, {"a": 2, "b": 4}, {"a": 2, "b": 2, "c": 2}, {"a": 6})
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 64, 128, 192, 4096)


def sharding(rng: random.Random, mesh: Mesh, ndim: int, *, partial: bool) -> Sharding:
    """Every axis, or each of two parts of it, on any dim, on none, or partial."""
    axes: list[Axis] = []
    for name, size in mesh.sizes.items():
        in_two = size in (4, 6, 8) and rng.random() < 0.3
        axes += [Axis(name, 1, 2), Axis(name, 2, size // 2)] if in_two else [Axis(name)]
    rng.shuffle(axes)
    dims: list[list[Axis]] = [[] for _ in range(ndim)]
    unreduced = []
    for axis in axes:
        where = rng.random()
        if partial and where < 0.15:
            unreduced.append(axis)
        elif where < 0.7:
            dims[rng.randrange(ndim)].append(axis)
    return Sharding.of(mesh, *dims, unreduced=unreduced)


def test_a_price_is_the_figure_of_the_plan() -> None:
    by_another = Counter[bool]()
    for seed in range(1500):
        rng = random.Random(seed)
        mesh = Mesh.of(rng.choice(MESHES))
        shape = tuple(rng.choice(SIZES) for _ in range(rng.randint(1, 4)))
        source = sharding(rng, mesh, len(shape), partial=rng.random() < 0.5)
        target = sharding(rng, mesh, len(shape), partial=rng.random() < 0.3)
        dtype = dtype_named(rng.choice(["float32", "bf16"]))
        prices = Prices(Goal(), by_smaller=True)
        moved = prices.moved(source, target, shape, dtype)
        made = plan(source, target, shape, dtype)
        assert moved.price == moved_by(made).price or source == target, seed
        for ours, theirs in zip(moved.tallies, moved_by(made).tallies, strict=True):
            assert np.array_equal(ours.received, theirs.received), seed
        known = {tuple(key[2]) for key in prices._answers}
        by_another[known != {shape}] += 1
    assert by_another[True] > 1000


def test_a_price_on_a_network_is_the_time_of_the_plan() -> None:
    network = Network.preset("h100-2x4")
    for seed in range(60):
        rng = random.Random(seed)
        mesh = Mesh.of(rng.choice([{"a": 2, "b": 4}, {"a": 2, "b": 2, "c": 2}]))
        shape = tuple(rng.choice([16, 64, 256]) for _ in range(rng.randint(1, 3)))
        source = sharding(rng, mesh, len(shape), partial=rng.random() < 0.3)
        target = sharding(rng, mesh, len(shape), partial=False)
        moved = Prices(Goal(network)).moved(source, target, shape, dtype_named("float32"))
        seconds = plan(source, target, shape, "float32", network=network).seconds
        assert moved.price.cost == pytest.approx(seconds, rel=1e-9), seed


LOOP = """
sdy.mesh @mesh = <["x"=2]>
outside = input : float32[4, 64, 8] <@mesh, [{}, {"x"}, {}]>
start = input : float32[64, 8] <@mesh, [{}, {"x"}]>
loop TURNS {
  inside = tanh "ij->ij" (start) : float32[64, 8] <@mesh, [{}, {"x"}]>
  sum = einsum "kij,ij->ij" (outside, inside) : float32[64, 8]
  sums = stack (sum)
}
out = output (sums)
"""


def test_a_price_by_digits_is_that_of_the_step() -> None:
    """What digits say of a step, before one is made: its seconds, and whether it is one collective."""
    rng, told = random.Random(9), Counter[bool]()
    for number in range(400):
        mesh = Mesh.of(**rng.choice(MESHES))
        source, target = (sharding(rng, mesh, 2, partial=False) for _ in range(2))
        reshard = Reshard.of(source, target, (rng.choice(SIZES), rng.choice(SIZES)))
        link = ("ring", "line", "switch")[number % 3]
        network = Network((Level(1, mesh.size, link, 1e9, 1e-6),), launch_s=1e-6)
        prices = RoutePrices.of(reshard, network)
        legs, is_one = prices.uses_between(prices.ends), prices.is_one_collective()
        if legs is not None:
            steps, direct = prices.chain(Route()), step_of(reshard)
            seconds = sum(seconds_of(step, network) for step in steps)
            assert sum(use.seconds for _, use in legs) == pytest.approx(seconds), reshard
            assert seconds <= seconds_of(direct, network) * (1 + 1e-9)
            assert is_one in (None, direct.kind in ("AllGather", "Slice", "Permute")), reshard
            told[is_one is not None] += 1
    assert told[True] > 100


def test_what_stands_in_a_loop_counts_for_every_turn() -> None:
    """A tensor of four times the size is moved once, outside of the loop, or the small one in every turn."""
    for turns, moved, received in ((1, "inside", 64 * 8 * 4 // 4), (10, "outside", 64 * 8 * 4)):
        program = Program.parse(LOOP.replace("TURNS", str(turns)))
        assert str(Program.parse(str(program))) == str(program)
        placed = program.propagate()
        [move] = [operation for operation in placed.operations if operation.name == "reshard"]
        assert move.operands[0].name == moved
        assert placed.received_bytes == received
        assert Program.parse(placed.text()).propagate().received_bytes == received


def test_a_stack_is_not_gathered_before_the_loop_that_takes_it_apart() -> None:
    text = """
sdy.mesh @mesh = <["x"=4]>
weights = input : float32[12, 64, 64] <@mesh, [{}, {"x"}, {}]>
start = input : float32[256, 64] <@mesh, [{"x"}, {}]>
loop 12 {
  h = carry (start)
  w = element (weights)
  y = einsum "bd,df->bf" (h, w) <@mesh, [{"x"}, {}]>
  last = last (y, h)
}
out = output (last)
"""
    placed = Program.parse(text).propagate()
    [(moved, made)] = [(value, one) for value, one in placed.plans.items() if one.steps]
    assert placed.operations[moved.number].operands[0].name in ("w", "w.1")
    assert placed.received_bytes == 12 * made.received_bytes == 12 * 64 * 64 * 4 * 3 // 4
    fast = Program.parse(text).propagate("h100-1x4")  # where one large gather is faster than twelve small ones
    assert fast.received_bytes == placed.received_bytes


def test_trip_counts_are_in_seconds_trace_and_table() -> None:
    text = """
sdy.mesh @mesh = <["x"=4]>
a = input : float32[64, 4096] <@mesh, [{}, {"x"}]>
loop TURNS {
  b = copy "ij->ij" (a) <@mesh, [{}, {"x"}]>
  c = copy "ij->ij" (b) <@mesh, [{"x"}, {}]>
}
out = output (a)
"""
    once, often = (Program.parse(text.replace("TURNS", str(turns))).propagate("h100-1x4") for turns in (1, 48))
    assert once.seconds is not None
    assert often.seconds == pytest.approx(48 * once.seconds)
    assert often.received_bytes == 48 * once.received_bytes == 48 * prod((64, 4096)) // 4 * 3 // 4 * 4
    lengths = [
        sum(event.get("dur", 0) for event in json.loads(one.to_trace())["traceEvents"] if event["tid"] == 0)
        for one in (once, often)
    ]
    assert lengths[1] == pytest.approx(48 * lengths[0], rel=1e-3)
    assert "48 x 192 KiB" in often.table()


@pytest.mark.parametrize("turns", [-1, 1.5, "two"])
def test_wrong_trip_counts_are_refused(turns: object) -> None:
    program = Program(Mesh.of(x=2))
    with pytest.raises(ReshardError, match="loop") as refused, program.loop(turns):  # type: ignore[arg-type]
        pass
    assert refused.value.code == "bad-argument"


def test_what_is_left_to_gain_by_a_mix_may_be_a_rounding() -> None:
    """Ways of nearly equal loads on a torus are mixed without a division by nothing, which numpy would warn of."""
    mesh = Mesh.of(x=2, y=2, z=2, w=2)
    ends = ('[{"x", "z", "y"}, {"w"}], uneven=chunk', '[{"w"}, {"z", "y"}], uneven=chunk')
    source, target = (parse_sharding(text, mesh) for text in ends)
    with np.errstate(divide="raise", invalid="raise"):
        made = plan(source, target, (16, 7), "bf16", network="tpu-v5e-4x4")
    assert made.seconds
