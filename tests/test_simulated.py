"""Whether plans take what their prices say when messages share links and ports as they come."""

from __future__ import annotations

from random import Random

import pytest
from problems import switches
from simulated import simulated_seconds
from time_bounds import NETWORKS, pairs

from reshard import Mesh, Network, Plan, Sharding, plan
from reshard.network import Level
from reshard.steps import chain_through

NEAR = 0.05


def check_price(made: Plan, network: Network) -> None:
    """Within 5 %, and no faster than the bound."""
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
