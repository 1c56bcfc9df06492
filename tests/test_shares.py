"""Whether the shares of a plan, which go different ways at once, end where they must and take what is said."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log
from random import Random

import numpy as np
import oracle
import pytest
from simulated import simulated_seconds
from time_bounds import NETWORKS, least_seconds, pairs

from reshard import Mesh, Network, Plan, ReshardError, Sharding, plan
from reshard import numpy as engine
from reshard.mix import GrowingMix, Mix, best_mix
from reshard.network import Level
from reshard.planner.candidates import candidates
from reshard.planner.mixes import with_shares
from reshard.planner.route_prices import RoutePrices, timed_routes
from reshard.problem import Reshard
from reshard.steps import Share, chain_through

RINGS = Network((Level(1, 4, "ring", 1, 0), Level(4, 4, "ring", 1, 0)))
GRID = Mesh.of(x=4, y=4)


def check_run(made: Plan, seed: int) -> None:
    """Every device has its tile, device by device, and received what the plan says."""
    rng = np.random.default_rng(seed)
    whole = rng.integers(-99, 99, made.shape).astype(made.dtype.name)
    held = {device: whole[np.ix_(*runs)] for device, runs in oracle.ranges(made.source, made.shape).items()}
    counts: dict[int, int] = {}
    tiles = engine.run(made, held, received_bytes=counts)
    for device, runs in oracle.ranges(made.target, made.shape).items():
        np.testing.assert_array_equal(tiles[device], whole[np.ix_(*runs)])
    assert max(counts.values()) == made.received_bytes
    assert sum(counts.values()) == made.total_received_bytes
    assert all(made.received_bytes_on(device) == count for device, count in counts.items())
    assert made.received_bytes >= made.lower_bound_bytes


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_every_device_gets_its_tile(name: str, count: int) -> None:
    mesh, network = NETWORKS[name]
    shared = 0
    for seed, (source, target) in enumerate(Random(count).sample(pairs(mesh, 1000), count)):
        made = plan(source, target, (64, 128), "int16", network=network)
        check_run(made, seed)
        shared += len(made.shares) > 1
        assert Plan.from_json(made.to_json()) == made
    assert shared or count < 40


def test_by_hand() -> None:
    """Columns by x to rows by x, on rings of 4: 2^17 s along x; or shared over y 9/16 of it, and 1/4 along x.

    A quarter of what is gathered along y devices have from before.
    Of p that is shared y takes 9/16 p and x 1 - 3/4 p: 16 / 21 of it, 3/7 of 2^17 s.
    """
    made = plan(Sharding.of(GRID, None, "x"), Sharding.of(GRID, "x", None), (1024, 1024), "int8", network=RINGS)
    assert [(step.kind, step.after.text()) for step in made.steps] == [
        ("Exchange", '[{"x", "y"}, {}]'),
        ("Exchange", '[{"x"}, {}]'),
    ]
    assert made.steps[1].kept == made.source
    (beside,) = made.beside
    assert [step.kind for step in beside.steps] == ["AllToAll"]
    assert abs((made.parts - beside.parts) / made.parts - 16 / 21) < 1 / made.parts
    assert made.seconds == pytest.approx(2**17 * 3 / 7, rel=0.05)
    assert simulated_seconds(made, RINGS) == pytest.approx(made.seconds, rel=0.05)
    check_run(made, 0)


def test_the_best_mix_is_that_of_a_linear_program() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        loads = rng.random((rng.integers(1, 9), rng.integers(1, 4))) * (rng.random() < 0.5) + rng.integers(0, 2)
        loads[~loads.any(axis=1)] = 1.0
        mix = best_mix(loads)
        check_mix(mix, loads)
        assert (loads @ mix.prices).min() == pytest.approx(1)


def check_mix(mix: Mix, loads: np.ndarray) -> None:
    """Hold a mix against the linear program of HiGHS."""
    from scipy.optimize import linprog

    ways, levels = loads.shape
    solved = linprog(
        [1.0, *np.zeros(ways)],
        A_ub=np.hstack([-np.ones((levels, 1)), loads.T]),
        b_ub=np.zeros(levels),
        A_eq=[[0.0, *np.ones(ways)]],
        b_eq=[1.0],
    )
    assert mix.seconds == pytest.approx(solved.fun)
    assert (mix.parts @ loads).max() == pytest.approx(solved.fun)
    assert mix.parts.sum() == pytest.approx(1)


def test_a_mix_grows_where_many_links_are_as_full_as_one_another() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        loads = rng.integers(0, 3, (rng.integers(2, 27), rng.integers(2, 33))).astype(float)
        loads[~loads.any(axis=1)] = 1.0
        growing = GrowingMix(loads.shape[1], float(loads.max()))
        for count, way in enumerate(loads, start=1):
            growing.add(way[None])
            check_mix(growing.best(), loads[:count])


def test_a_plan_along_rings_all_of_whose_links_are_as_full() -> None:
    mesh = Mesh.of(a=16, b=8, c=2)
    source, target = Sharding.of(mesh, ("a", "b"), "c"), Sharding.of(mesh, None, ("b", "a"))
    made = plan(source, target, (131072, 262144), "bfloat16", network="tpu-v5e-16x16")
    assert made.seconds == pytest.approx(15.076e-3, rel=1e-3)


def test_what_is_said_of_shares() -> None:
    made = plan(Sharding.of(GRID, None, "x"), Sharding.of(GRID, "x", None), (64, 64), "int8", network=RINGS)
    assert "of 2 shares at once" in str(made)
    record = json.loads(made.to_json())
    assert [share["parts"] for share in record["beside"]] == [share.parts for share in made.beside]
    one = replace(made, beside=())
    old = json.loads(one.to_json())
    del old["beside"]
    assert Plan.from_json(json.dumps(old)) == one
    rows = [event["name"] for event in json.loads(made.to_trace())["traceEvents"] if event["ph"] == "X"]
    assert rows == ["1 Exchange", "2 Exchange", "1 AllToAll"]
    record["beside"][0]["steps"][0]["received_bytes"] += 1
    with pytest.raises(
        ReshardError, match="received_bytes of step 1 of share 1 in the text is not what the plan gives"
    ):
        Plan.from_json(json.dumps(record))


def test_hosts_of_six_spread_what_crosses_along_another_dim() -> None:
    """Rows by h and g, wanted by g and h: 6 and 2 do not nest with 2 and 6, so all six ports share columns, or rows.

    Of 720 x 144 bytes a host lacks half of its 51,840: 4,320 s through each of six ports at 1 byte/s.
    """
    mesh = Mesh.of(h=2, g=6)
    network = Network((Level(1, 6, "switch", 9, 0), Level(6, 2, "switch", 1, 0)))
    made = plan(Sharding.of(mesh, ("h", "g")), Sharding.of(mesh, ("g", "h")), (720,), "int8", network=network)
    assert (made.seconds or 0.0) < 1.04 * (made.lower_bound_seconds or 0.0)  # a permutation takes twice the least
    check_run(made, 0)
    ends = Sharding.of(mesh, ("h", "g"), None), Sharding.of(mesh, ("g", "h"), None)
    made = plan(*ends, (720, 144), "int8", network=network)
    assert [step.after.text() for step in made.steps[:2]] == ['[{"h"}, {"g"}]', '[{parts(6), "h"}, {"g"}]']
    assert made.lower_bound_seconds == 4320
    assert made.seconds == pytest.approx(4320, rel=0.01)
    check_run(made, 0)


def test_mlir_says_that_it_takes_the_whole_tensor_one_way() -> None:
    ends = Sharding.of(GRID, "y", "x"), Sharding.of(GRID, None, "y")
    made = plan(*ends, (64, 128), "int16", network=RINGS)
    assert made.beside
    said, module = made.to_mlir().split("\n", 1)
    assert said.startswith("// the whole tensor, step by step; the plan takes it in ")
    assert said.endswith(f"{sum(share.parts for share in made.beside)} of them by other steps")
    assert module == replace(made, beside=(), parts=1).to_mlir()


def test_what_is_refused() -> None:
    made = plan(Sharding.of(GRID, None, "x"), Sharding.of(GRID, "x", None), (64, 64), "int8", network=RINGS)
    with pytest.raises(ReshardError, match="of 2 parts 2 cannot go through other steps"):
        replace(made, parts=2, beside=(Share(made.steps, 2),))
    with pytest.raises(ReshardError, match="the steps end at"):
        replace(made, beside=(Share(made.steps[:1], 1),))
    other = chain_through(replace(made.reshard, shape=(64, 128)))
    with pytest.raises(ReshardError, match="for another shape"):
        replace(made, beside=(Share(other, 1),))


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_plans_are_near_the_linear_program(name: str) -> None:
    """Of large tensors; what a program of small ones takes, times as many bytes."""
    mesh, network = NETWORKS[name]
    ratios = []
    for source, target in pairs(mesh, 100):
        priced = plan(source, target, (2**14, 2**14), "int8", network=network).seconds
        assert priced is not None
        ratios.append(priced / 2**20 / least_seconds(source, target, network))
    assert exp(np.mean([log(ratio) for ratio in ratios])) <= 1.07


def test_axes_that_part_a_ring_go_by_another_placement() -> None:
    """Rings of 16 in arcs of 4: by all in columns first it takes 1.25 times the least, where most ways take 2."""
    mesh = Mesh.of(a=4, b=4, c=16)
    ends = Sharding.of(mesh, "c", "a"), Sharding.of(mesh, "a", ("b", "c"))
    middle = Sharding.of(mesh, None, ("a", "c", "b"))
    seconds = [
        plan(*pair, (2**19, 2**18), "bf16", network="tpu-v5e-16x16").seconds or 0.0
        for pair in (ends, (ends[0], middle), (middle, ends[1]))
    ]
    made = plan(*ends, (2**19, 2**18), "bf16", network="tpu-v5e-16x16")
    assert seconds[0] <= (seconds[1] + seconds[2]) * (1 + 1e-9)
    assert seconds[0] <= 1.4 * (made.lower_bound_seconds or 0.0)  # 1.25 but for latencies
    by_columns = replace(made, steps=chain_through(made.reshard, middle))
    assert (made.seconds or 0.0) < (by_columns.seconds or 0.0)
    small = Reshard.of(*ends, (64, 1024), "int16")
    for middles in ([middle], [step.after for step in made.steps[:-1]]):
        check_run(Plan(small, chain_through(small, *middles), made.options), 0)


PARTED = Mesh.of(a=4, b=2, c=2)
"""`RINGS` with the inner ring in two axes."""


def test_axes_that_part_a_ring_change_one_by_one() -> None:
    """Together they take 1.35 times the least; a large tensor is planned so without being asked."""
    ends, taken = (Sharding.of(PARTED, ("a", "c"), "b"), Sharding.of(PARTED, "c", "a")), 1.26
    whole = plan(*ends, (512, 256), "int8", network=RINGS)
    prices = RoutePrices.of(whole.reshard, RINGS)
    made = with_shares(whole, timed_routes(prices, candidates(whole.reshard, RINGS)), finely=True)
    for way in (made, plan(*ends, (2**14, 2**14), "int8", network=RINGS)):
        assert way.seconds is not None
        assert way.lower_bound_seconds is not None
        assert way.seconds <= taken * way.lower_bound_seconds
    direct = Plan(whole.reshard, chain_through(whole.reshard), whole.options)
    assert taken * (direct.lower_bound_seconds or 0.0) < (direct.seconds or 0.0)
    assert simulated_seconds(made, RINGS) == pytest.approx(made.seconds, rel=0.05)
    check_run(made, 0)
    assert Plan.from_json(made.to_json()) == made


def test_a_gather_waits_for_what_changes_places() -> None:
    """Over `b` all need what comes along `a`; at once it comes to each by itself, and takes 3.375 times the least."""
    mesh = Mesh.of(a=4, b=4, c=4)
    network = Network((Level(1, 4, "ring", 1, 0), Level(4, 16, "ring", 1, 0)))
    made = plan(Sharding.of(mesh, None, ("c", "a")), Sharding.of(mesh, "c", "a"), (256, 256), "int8", network=network)
    at_once = Plan(made.reshard, chain_through(made.reshard), made.options)
    assert (at_once.seconds or 0.0) > 3.3 * (made.lower_bound_seconds or 0.0)
    assert (made.seconds or 0.0) < 2.6 * (made.lower_bound_seconds or 0.0)
    check_run(replace(made, parts=2), 0)


@pytest.mark.parametrize(("size", "taken"), [(4, 1.02), (8, 1.2)])
def test_what_changes_places_along_two_lines(size: int, taken: float) -> None:
    """Halves of lines first, by the links in the middle, then what lies in each, by the others; at once 1.5, 1.66."""
    mesh = Mesh.of(x=size, y=size)
    network = Network((Level(1, size, "line", 1, 0), Level(size, size, "line", 1, 0)))
    for dims in ((("x", "y"), ("y", "x")), ((("x", "y"), None), (("y", "x"), None))):
        made = plan(*(Sharding.of(mesh, *end) for end in dims), (2**11, 2**11), "int8", network=network)
        assert (made.seconds or 0.0) <= taken * (made.lower_bound_seconds or 0.0)
        at_once = Plan(made.reshard, chain_through(made.reshard), made.options)
        assert (at_once.seconds or 0.0) >= 1.5 * (made.lower_bound_seconds or 0.0)
        assert simulated_seconds(made, network) == pytest.approx(made.seconds, rel=0.05)
        check_run(replace(made, parts=2), 0)


def test_what_goes_half_round_a_ring_parts_for_the_fullest_link() -> None:
    """Columns by x and z to rows by x, columns by z: half of each pair each way takes 1.5 times what a cut proves."""
    mesh, network = NETWORKS["torus 2x2x4"]
    ends = Sharding.of(mesh, None, ("x", "z")), Sharding.of(mesh, "x", "z")
    made = plan(*ends, (2**9, 2**9), "int8", network=network)
    assert made.seconds is not None
    assert made.seconds <= 1.04 * (made.lower_bound_seconds or 0.0)
    assert least_seconds(*ends, network) == pytest.approx((made.lower_bound_seconds or 0.0) / 2**10)
    assert simulated_seconds(made, network) == pytest.approx(made.seconds, rel=0.05)
    check_run(made, 0)


@pytest.mark.parametrize(
    ("source", "target", "taken"),
    [(("c", None), (("b", "c"), None), 1.04), ((None, ("b", "a")), (None, ("c", "b", "a")), 1.56)],
)
def test_what_digits_do_at_one_end_is_shared_where_the_other_end_does_it(
    source: tuple, target: tuple, taken: float
) -> None:
    """One of `b` and `c` cuts at one end what the other cuts at the other; it lies elsewhere meanwhile."""
    ends = Sharding.of(PARTED, *source), Sharding.of(PARTED, *target)
    for shape in ((512, 256), (2**14, 2**14)):
        made = plan(*ends, shape, "int8", network=RINGS)
        assert (made.seconds or 0.0) <= taken * (made.lower_bound_seconds or 0.0)
        assert simulated_seconds(made, RINGS) == pytest.approx(made.seconds, rel=0.05)
