"""Whether plans take what their prices say when messages share links and ports as they come."""

from __future__ import annotations

from random import Random

import pytest
from problems import switches
from simulated import simulated_seconds
from time_bounds import NETWORKS, pairs

from reshard import Mesh, Network, Plan, Sharding, plan
from reshard.network import Level
from reshard.network.level import LINKS
from reshard.network.traffic import loads
from reshard.plans import Options
from reshard.problem import Reshard
from reshard.steps import Step, chain_through

NEAR = 0.05


def check_price(made: Plan, network: Network) -> None:
    """So near, and no faster than the bound."""
    found = simulated_seconds(made, network)
    assert made.seconds is not None
    assert found >= (made.lower_bound_seconds or 0.0) * (1 - 1e-6), made
    assert 1 - NEAR <= found / made.seconds <= 1 + NEAR, f"{found} for {made}"


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_prices_are_what_a_simulation_takes(name: str, count: int) -> None:
    mesh, network = NETWORKS[name]
    for source, target in Random(count).sample(pairs(mesh, 1000), count):
        check_price(plan(source, target, (512, 512), "int8", network=network), network)


@pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_prices_hold_where_axes_do_not_nest_in_hosts(count: int) -> None:
    mesh, network = Mesh.of(data=3, model=4), switches((6, 9e9), (2, 1e9))
    for source, target in Random(count).sample(pairs(mesh, 1000), count):
        made = plan(source, target, (360, 720), "int8", network=network)
        if made.received_bytes:
            check_price(made, network)


def test_latencies_are_waited_for() -> None:
    """By hand: two parts of two steps, 1 s each of bytes and 1 s of latency: the last begins at 4 and ends at 6."""
    mesh = Mesh.of(h=2, g=2)
    network = Network((Level(1, 2, "switch", 4, 1.0), Level(2, 2, "switch", 2, 1.0)))
    made = plan(Sharding.of(mesh, ("g", "h")), Sharding.of(mesh, None), (16,), "int8", network=network)
    steps = chain_through(made.reshard, Sharding.of(mesh, "g"))
    parts = Plan(made.reshard, steps, made.options, parts=2)
    assert parts.seconds == pytest.approx(simulated_seconds(parts, network))
    assert parts.seconds == pytest.approx(2 + 2 + 2)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_an_all_to_all_takes_as_long_in_pieces(link: str, size: int) -> None:
    """Whether hops take longer or bytes, along one level and along one of a torus."""
    alone = Network((Level(1, size, link, 1e9, 1e-6),))
    grid = Network((Level(1, 3, "ring", 1e9, 1e-6), Level(3, size, link, 1e9, 1e-6)))
    for network, mesh in ((alone, Mesh.of(a=size)), (grid, Mesh.of(a=size, b=3))):
        for side in (size, 24 * size, 240 * size):
            step = Step(Reshard.of(Sharding.of(mesh, "a", None), Sharding.of(mesh, None, "a"), (side, side), "int8"))
            assert step.kind == "AllToAll"
            made = Plan(step.reshard, (step,), Options(network))
            pieces = loads(network.levels, *step.moves[0].exchange.traffic())
            assert pieces.seconds(network.levels, 1) == pytest.approx(made.seconds)
            assert simulated_seconds(made, network) == pytest.approx(made.seconds)


def small_problem(rng: Random) -> tuple[Sharding, Sharding, tuple[int, int], Network]:
    """On a ring or a line, a torus, or hosts along them; of bytes that take a fraction of the latencies, or more."""
    links = [link for link in LINKS if link != "switch"]
    sizes = rng.choice([[rng.randint(2, 8)], [rng.randint(2, 4), rng.randint(2, 4)], [2, rng.randint(3, 6)]])
    is_of_hosts, levels, stride = rng.random() < 0.5, list[Level](), 1
    for number, size in enumerate(sizes):
        link = "switch" if is_of_hosts and number < len(sizes) - 1 else rng.choice(links)
        levels.append(Level(stride, size, link, 9e9 if link == "switch" else 1e9, 1e-6))
        stride *= size
    mesh = Mesh.of(zip("ab", sizes[::-1], strict=False))
    ends = []
    for partial in (rng.random() < 0.3, False):
        dims: tuple[list[str], ...] = ([], [], [])
        for axis in rng.sample(list(mesh.sizes), len(sizes)):
            dims[rng.randrange(3)].append(axis)
        ends.append(Sharding.of(mesh, *dims[:2], unreduced=tuple(dims[2]) if partial else ()))
    return *ends, (rng.choice([1, 2, 8, 30]) * stride, rng.choice([1, 4, 20]) * stride), Network(tuple(levels))


@pytest.mark.parametrize("seed", range(8))
def test_small_plans_on_rings_and_lines_take_what_they_say(seed: int) -> None:
    rng, sent = Random(seed), 0
    for _ in range(30):
        source, target, shape, network = small_problem(rng)
        made = plan(source, target, shape, "int8", network=network)
        if made.received_bytes:
            sent += 1
            check_price(made, network)
    assert sent > 10


def test_a_hundred_thousand_devices() -> None:
    """Permutations and exchanges of 131,072 devices, of which each message is on its way."""
    mesh = Mesh.of(h=1024, g=128)
    network = Network((Level(1, 128, "switch", 9e9, 1e-6), Level(128, 1024, "switch", 1e9, 1e-6)))
    ends = (
        (Sharding.of(mesh, ("h", "g"), None), Sharding.of(mesh, ("g", "h"), None)),
        (Sharding.of(mesh, "g", "h:(1)4"), Sharding.of(mesh, "g", "h:(2)4")),
    )
    for source, target in ends:
        made = plan(source, target, (2**18, 2**18), "int8", network=network)
        whole = Plan(made.reshard, made.steps, made.options)
        assert all(step.rounds <= 64 for step in whole.steps)
        check_price(whole, network)


@pytest.mark.parametrize("name", ["h100-2x4", "h100-4x2", "tpu-v5e-4x4", "tpu-v5p-2x2x4"])
def test_sums_of_which_replicas_do_a_share(name: str) -> None:
    """Whoever holds the same values combines a share of them too, across hosts as well."""
    network = Network.preset(name)
    mesh = Mesh.of(dict(zip("abc", [level.size for level in network.levels][::-1], strict=False)))
    for axis in mesh.sizes:
        ends = Sharding.of(mesh, None, None, unreduced=axis), Sharding.of(mesh, None, None)
        reshard = Reshard.of(*ends, (4096, 4096), "float32")
        at_once = Plan(reshard, (Step(reshard),), Options(network))
        assert at_once.steps[0].kind == "AllReduce"
        check_price(at_once, network)
        made = plan(*ends, (4096, 4096), "float32", network=network)
        check_price(made, network)
        assert (made.seconds or 0.0) <= (at_once.seconds or 0.0)


def test_sums_inside_hosts_that_hold_the_same_stay_there() -> None:
    """Of 64 MiB a device gets three quarters from its own host, to combine and then to gather."""
    mesh = Mesh.of(h=2, g=4)
    ends = Sharding.of(mesh, None, None, unreduced="g"), Sharding.of(mesh, None, None)
    made = plan(*ends, (4096, 4096), "float32", network="h100-2x4")
    assert [step.kind for step in made.steps] == ["ReduceScatter", "AllGather"]
    assert made.received_bytes == 2 * 3 * (64 << 20) // 4
