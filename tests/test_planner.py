"""What the planner chooses: on networks, without one, under a limit of memory, and what else it knows.

Prices are asked of the package; bytes into hosts, tiles and what devices lack are counted here or by the oracle.
"""

from __future__ import annotations

import copy
import json
import pickle
import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import prod
from random import Random
from typing import Any

import checkers
import numpy as np
import oracle
import problems
import pytest
from numpy.typing import NDArray
from problems import Problem, full_axis_shardings, switches

import reshard as rs
from reshard import numpy as engine
from reshard.digits import Digit
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.exchange import DigitExchange
from reshard.layout import KEPT, Tie
from reshard.mesh import Mesh
from reshard.network import Level, Network, best_cut, host_bound, host_bytes, least_transfers, seconds_of
from reshard.network.pricing import exchange_seconds
from reshard.network.traffic import loads
from reshard.planner import alternatives, plan, soonest
from reshard.planner.candidates import candidates, detours
from reshard.planner.level_ways import LevelWays
from reshard.planner.route_prices import RoutePrices
from reshard.plans import Plan
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Chain, Step, chain_through, chains_of, step_of

INT64 = dtype_named("int64")
"""What the repr of a plan needs."""


def random_sharding(rng: Random, mesh: Mesh) -> Sharding:
    """A sharding of a matrix: each axis cuts dim 0, dim 1 or none, in any order."""
    dims: list[list[str]] = [[], []]
    for name in rng.sample([name for name, _ in mesh.axes], len(mesh.axes)):
        place = rng.randrange(3)
        if place < 2:
            dims[place].append(name)
    return Sharding.of(mesh, *dims)


def priced_chain(steps: Chain, network: Network) -> float:
    return sum(seconds_of(step, network) for step in steps)


def no_dearer(price: float, other: float) -> bool:
    """Up to what sums of floats differ by."""
    return price <= other * (1 + 1e-9) + 1e-18


# Bytes into hosts.


def brute_host_bytes(step: Step, devices_per_host: int) -> list[int]:
    """Bytes into each host, piece by piece."""
    found = [0] * (step.after.mesh.size // devices_per_host)
    for move in step.moves:
        for device in move.exchange.target.mesh.devices:
            for piece in move.exchange.incoming(device):
                if piece.sender // devices_per_host != device // devices_per_host:
                    found[device // devices_per_host] += piece.box.size * step.dtype.itemsize
    return found


def brute_host_bound(source: Sharding, target: Sharding, shape: tuple[int, ...], devices_per_host: int) -> list[int]:
    """Elements that some device of a host needs and none holds."""
    rows = [oracle.holds(sharding, shape) for sharding in (source, target)]
    held, needed = (side.reshape(-1, devices_per_host, prod(shape)).any(axis=1) for side in rows)
    return np.count_nonzero(needed & ~held, axis=1).tolist()


HOSTS: dict[str, tuple[dict[str, int], Network, tuple[int, int]]] = {
    "4x2x2 on two levels": ({"h": 4, "a": 2, "b": 2}, switches((4, 450e9), (4, 50e9)), (16, 32)),
    "4x2x2 on three levels": ({"h": 4, "a": 2, "b": 2}, switches((2, 900e9), (2, 450e9), (4, 50e9)), (32, 16)),
    "4x3": ({"h": 4, "a": 3}, switches((3, 450e9), (4, 50e9)), (12, 24)),
}


def check_hosts(case: str, pairs: int | None) -> None:
    """Some candidate brings into every host what it must have and no more; all pairs, or so many of them."""
    sizes, network, shape = HOSTS[case]
    level = len(network.levels) - 1
    boundary = network.levels[level].stride
    shardings = list(full_axis_shardings(Mesh.of(sizes), 2))
    every = list(product(shardings, shardings))
    for source, target in every if pairs is None else Random(case).sample(every, pairs):
        bound = host_bound(Reshard.of(source, target, shape, "int64"), network, level)
        reshard = Reshard.of(source, target, shape, INT64)
        chains = chains_of(reshard, detours(reshard, [boundary]))
        brought = (sum((host_bytes(step, network, level) for step in steps), np.zeros(4, np.int64)) for steps in chains)
        met = any(np.array_equal(found, bound) for found in brought)
        assert met, f"{source.text()} -> {target.text()}: no candidate brings {bound} into the hosts"


@pytest.mark.parametrize("case", HOSTS)
def test_some_candidate_brings_each_host_its_bound(case: str) -> None:
    check_hosts(case, 120)


@pytest.mark.sweep
@pytest.mark.parametrize("case", HOSTS)
def test_some_candidate_brings_each_host_its_bound_for_every_pair(case: str) -> None:
    check_hosts(case, None)


@pytest.mark.parametrize("case", HOSTS)
def test_plan_and_alternatives_name_what_brings_each_host_its_bound(case: str) -> None:
    sizes, network, shape = HOSTS[case]
    level = len(network.levels) - 1
    shardings = list(full_axis_shardings(Mesh.of(sizes), 2))
    rng = Random(case)
    for _ in range(12):
        source, target = rng.choice(shardings), rng.choice(shardings)
        chosen = plan(source, target, shape, "int64", network=network)
        bound = host_bound(Reshard.of(source, target, shape, "int64"), network, level)
        totals = [
            sum((host_bytes(step, network, level) for step in found.steps), np.zeros(4, np.int64))
            for found in (chosen, *alternatives(chosen))
        ]
        assert any(np.array_equal(total, bound) for total in totals), f"{source.text()} -> {target.text()}"


@pytest.mark.parametrize("case", HOSTS)
def test_host_bytes_and_bound_by_brute_force(case: str) -> None:
    sizes, network, shape = HOSTS[case]
    level = len(network.levels) - 1
    boundary = network.levels[level].stride
    shardings = list(full_axis_shardings(Mesh.of(sizes), 2))
    rng = Random(case)
    for _ in range(40):
        source, target = rng.choice(shardings), rng.choice(shardings)
        odd = (shape[0] - rng.randrange(4), shape[1] - rng.randrange(4))
        bound = host_bound(Reshard.of(source, target, odd, "int64"), network, level)
        assert bound.tolist() == [8 * count for count in brute_host_bound(source, target, odd, boundary)]
        for near in (0, boundary):
            step = Step(Reshard.of(source, target, odd, INT64), near=near)
            assert host_bytes(step, network, level).tolist() == brute_host_bytes(step, boundary)


# The choice on a network.

FAST_HOSTS = Mesh.of(g=4, h=4, a=2, b=4)
"""16 hosts of 8."""


def gathers(source: Sharding, target: Sharding, shape: tuple[int, int]) -> Iterator[Chain]:
    """Gather everything and slice: at once, and axis by axis, the minor of each dim first."""
    whole = Sharding.of(source.mesh, None, None)
    reshard = Reshard.of(source, target, shape, INT64)
    yield chain_through(reshard, whole)
    points, dims = [], [list(dim.axes) for dim in source.dims]
    for axes in dims:
        while axes:
            axes.pop()
            points.append(Sharding.of(source.mesh, *map(tuple, dims)))
    yield chain_through(reshard, *points)


def check_against_flat_and_gather(network: Network, pairs: int) -> None:
    rng, shape = Random(7), (1024, 2048)
    for _ in range(pairs):
        source, target = random_sharding(rng, FAST_HOSTS), random_sharding(rng, FAST_HOSTS)
        price = plan(source, target, shape, "int64", network=network).seconds
        assert price is not None
        others = [plan(source, target, shape, "int64").steps, *gathers(source, target, shape)]
        for name, steps in zip(("the flat exchange", "a gather", "a gather axis by axis"), others, strict=True):
            found = priced_chain(steps, network)
            if network.levels[0].latency_s and name != "the flat exchange":
                continue  # few messages may beat few bytes, but the whole tensor may be more than a device can hold
            assert no_dearer(price, found), f"{source.text()} -> {target.text()}: {price} s, {name} {found} s"


NINE_TO_ONE = {"bytes alone": switches((8, 450e9), (16, 50e9)), "h100-16x8": Network.preset("h100-16x8")}


@pytest.mark.parametrize("name", NINE_TO_ONE)
def test_no_plan_is_dearer_than_the_flat_exchange_or_a_gather(name: str) -> None:
    check_against_flat_and_gather(NINE_TO_ONE[name], 40)


@pytest.mark.sweep
@pytest.mark.parametrize("name", NINE_TO_ONE)
def test_no_plan_of_200_is_dearer_than_the_flat_exchange_or_a_gather(name: str) -> None:
    check_against_flat_and_gather(NINE_TO_ONE[name], 200)


def test_on_hosts_the_plan_crosses_once_and_gathers_inside() -> None:
    mesh = Mesh.of(h=4, a=2)
    network = switches((2, 450e9), (4, 50e9))
    found = plan(Sharding.of(mesh, "h"), Sharding.of(mesh, None), (64,), "int64", network=network)
    assert [(step.kind, step.after.text()) for step in found.steps] == [
        ("Exchange", '[{parts(4), "a"}]'),
        ("Exchange", "[{}]"),
    ]
    # 512 bytes over 4 hosts, each device its half: 3/4 of 256 come in through its port, then as many from beside it
    assert found.step_seconds == pytest.approx((192 / 50e9, 192 / 450e9))
    assert found.seconds == pytest.approx(192 / 50e9 + 192 / 450e9 / 8)  # in 8 parts of an element of each run
    assert found.received_bytes == found.lower_bound_bytes == 384


def test_with_latency_no_plan_is_dearer_than_its_alternatives() -> None:
    rng, shape = Random(3), (256, 256)
    for name in ("h100-16x8", "tpu-v5e-8x16"):
        network = Network.preset(name)
        for _ in range(15):
            source, target = random_sharding(rng, FAST_HOSTS), random_sharding(rng, FAST_HOSTS)
            chosen = plan(source, target, shape, "int64", network=network)
            assert chosen.seconds is not None
            for other in alternatives(chosen):
                assert other.seconds is not None
                assert grows(other) or no_dearer(chosen.seconds, other.seconds), (
                    f"{source.text()} -> {target.text()} on {name}"
                )


def test_with_latency_no_plan_is_dearer_than_its_parts() -> None:
    """A plan's own parts are the plans from its source to a point on its way, and from there to its target."""
    rng, shape = Random(3), (256, 256)
    for name in ("h100-16x8", "tpu-v5e-8x16"):
        network = Network.preset(name)
        for _ in range(15):
            source, target = random_sharding(rng, FAST_HOSTS), random_sharding(rng, FAST_HOSTS)
            chosen = plan(source, target, shape, "int64", network=network)
            for step in chosen.steps[:-1]:
                ends = ((source, step.after), (step.after, target))
                parts = [plan(*pair, shape, "int64", network=network).seconds for pair in ends]
                assert no_dearer(chosen.seconds, sum(parts)), (
                    f"{source.text()} -> {target.text()} on {name} takes {chosen.seconds} s, "
                    f"by way of {step.after.text()} {sum(parts)} s"
                )


def test_with_latency_a_gather_that_saves_messages_comes_first() -> None:
    mesh = Mesh.of(A=4, B=4, C=2, D=4)
    dims = (None, ("B", "A", "D", "C")), (("A", "B"), ("D", "C")), (("A", "C", "B"), "D")
    source, middle, target = (Sharding.of(mesh, *cuts) for cuts in dims)
    direct, first, second = (
        plan(*ends, (2048, 2048), network="h100-16x8")
        for ends in ((source, target), (source, middle), (middle, target))
    )
    assert direct.steps[0].kind == "AllGather"
    assert (direct.seconds or 0) <= ((first.seconds or 0) + (second.seconds or 0)) * (1 + 1e-9)


def test_a_reason_is_there_exactly_where_more_than_the_bound_is_received() -> None:
    rng, shape = Random(5), (256, 256)
    reasons = set()
    for name in ("h100-16x8", "tpu-v5e-8x16"):
        for _ in range(40):
            source, target = random_sharding(rng, FAST_HOSTS), random_sharding(rng, FAST_HOSTS)
            found = plan(source, target, shape, "int64", network=name)
            assert bool(found.reason) == (found.received_bytes > found.lower_bound_bytes), str(found)
            assert found.reason in str(found)
            reasons.add(bool(found.reason))
            assert not plan(source, target, shape, "int64").reason
    assert reasons == {True, False}


def test_what_is_received_though_nothing_is_lacking_is_told() -> None:
    mesh = Mesh.of(x=2)
    whole, cut = Sharding.of(mesh, None), Sharding.of(mesh, "x")
    legs = [Step(Reshard.of(*ends, (8,), "int8")) for ends in ((whole, cut), (cut, whole))]
    text = str(Plan(Reshard.of(whole, whole, (8,), "int8"), tuple(legs)))
    assert "received 4 B on the busiest device, 8 B in all; lower bound 0 B: no device lacks anything" in text


def test_near_senders_cost_what_their_pieces_do() -> None:
    """Also where digits of the exchange lie across those of the levels."""
    rng = Random(1)
    for sizes in ((2, 2, 2), (4, 2), (2, 3, 2), (3, 2, 2), (6, 2)):
        mesh = Mesh.of(zip("abc", sizes, strict=False))
        shardings = list(full_axis_shardings(mesh, 2))
        for links in (("switch", "switch", "switch"), ("ring", "ring", "line"), ("ring", "switch", "line")):
            speeds = {
                name: (link, rng.choice([1e9, 9e9]), rng.choice([0.0, 1e-6]))
                for (name, _), link in zip(mesh.axes, links, strict=False)
            }
            network = Network.of(mesh, speeds)
            for _ in range(120):
                near = rng.choice([0, sizes[-1], mesh.size // sizes[0]])
                step = Step(Reshard.of(rng.choice(shardings), rng.choice(shardings), (48, 48), INT64), near=near)
                exchange = step.moves[0].exchange
                if not isinstance(exchange, DigitExchange) or exchange.stays:
                    continue  # a collective has a formula of its own
                senders, receivers, elements = exchange.traffic()
                listed = loads(network.levels, senders, receivers, elements).seconds(network.levels, 8)
                text = f"{step.before.text()} -> {step.after.text()} near {near} on {network}"
                assert exchange_seconds(exchange, 8, network) == pytest.approx(listed), text


@pytest.mark.parametrize(("waiting", "latency_s"), [((1, 0, 0), 1e-6), ((0, 1, 0), 4e-6), ((0, 0, 1), 6e-6)])
def test_digits_that_lie_across_levels_are_priced_by_all_their_pieces(
    waiting: tuple[int, int, int], latency_s: float
) -> None:
    """On a=2, b=3, c=2: from 6 parts on (b, c) to halves on a, where 3 parts make a half.

    The busiest device takes 6 messages over a, or sends 4 over b, or 1 over c.
    """
    mesh = Mesh.of(a=2, b=3, c=2)
    levels = [
        Level(stride, size, "switch", 1e9, wait * 1e-6)
        for (stride, size), wait in zip(((1, 2), (2, 3), (6, 2)), waiting, strict=True)
    ]
    step = Step(Reshard.of(Sharding.of(mesh, "a", ("b", "c")), Sharding.of(mesh, None, "a"), (48, 48), INT64))
    senders, receivers, elements = step.moves[0].exchange.traffic()
    listed = loads(levels, senders, receivers, elements)
    assert listed.waits_s == pytest.approx(latency_s)
    assert exchange_seconds(step.moves[0].exchange, 8, Network(tuple(levels))) == pytest.approx(
        listed.seconds(levels, 8)
    )


def test_an_exchange_among_five_axes_of_a_torus_changes_one_level_at_a_time() -> None:
    mesh = Mesh.of(A=4, B=4, C=2, D=4, E=4)
    ends = Sharding.of(mesh, ("B", "E", "A"), None), Sharding.of(mesh, "C", ("E", "B", "D", "A"))
    assert (plan(*ends, (9216, 9216), "bf16", network="tpu-v5p-8x8x8").seconds or 0.0) < 26e-6


# Without a network.


def figures(found: Plan) -> tuple[int, int, int, int]:
    return found.received_bytes, found.total_received_bytes, len(found.steps), found.rounds


def known_ways(problem: Problem) -> Iterator[Chain]:
    """The candidates and, on one mesh, the ways through every sharding by whole axes."""
    source, target, shape, dtype = problem
    reshard = Reshard.of(source, target, shape, dtype)
    yield from chains_of(reshard, candidates(reshard))
    if source.mesh == target.mesh and source.dims:
        for middle in full_axis_shardings(source.mesh, len(shape)):
            yield chain_through(reshard, middle)


def test_without_a_network_moves_receive_their_bound() -> None:
    rng = Random(11)
    for _ in range(300):
        problem = problems.draw_problem(rng)
        found = plan(*problem)
        assert found.received_bytes == found.lower_bound_bytes, str(problem)
        assert found.total_received_bytes == found.total_lower_bound_bytes, str(problem)
        assert len(found.steps) <= 1, str(problem)


def test_without_a_network_no_move_known_is_better() -> None:
    """Fewest bytes on the busiest device, fewest in all, fewest steps, fewest rounds."""
    rng = Random(12)
    for _ in range(100):
        problem = problems.draw_problem(rng)
        found = plan(*problem)
        for other in alternatives(found):
            assert figures(found) <= figures(other), f"{problem}\n{other}"


def test_without_a_network_no_candidate_for_a_reduction_is_better() -> None:
    rng = Random(12)
    for problem, found in drawn_plans(rng, problems.draw_reduction, 60):
        for steps in chains_of(found.reshard, candidates(found.reshard)):
            other = Plan(found.reshard, steps)
            assert grows(other) or figures(found) <= figures(other), f"{problem}\n{other}"


def drawn_plans(
    rng: Random, draw: Callable[[Random], Problem], count: int, network: Network | None = None
) -> Iterator[tuple[Problem, Plan]]:
    """Problems with their plans; those that have none are left out, if the refusal says so."""
    for _ in range(count):
        problem = draw(rng)
        try:
            found = plan(*problem, network=network)
        except ReshardError as error:
            if error.code != "no-plan":
                raise
            continue
        yield problem, found


def grows(found: Plan) -> bool:
    """Whether a tile on the way is larger than both ends."""
    tiles = [prod(end.local_shape(found.shape)) for end in (found.source, *(step.after for step in found.steps))]
    return max(tiles[1:-1], default=0) > max(tiles[0], prod(found.target.local_shape(found.shape)))


@pytest.mark.parametrize("draw", [problems.draw_problem, problems.draw_reduction])
@pytest.mark.parametrize("network", [None, switches((4, 9e9), (32, 1e9))])
def test_no_tile_on_the_way_is_larger_than_both_ends(
    draw: Callable[[Random], Problem], network: Network | None
) -> None:
    for problem, found in drawn_plans(Random(13), draw, 60, network):
        assert not grows(found), str(problem)


def test_on_one_mesh_no_way_through_a_third_receives_less() -> None:
    rng = Random(14)
    mesh = Mesh.of(h=2, a=2, b=2)
    shardings = list(full_axis_shardings(mesh, 2))
    for _ in range(25):
        problem = Problem(rng.choice(shardings), rng.choice(shardings), (16, 16), "int64")
        least = figures(plan(*problem))
        for steps in known_ways(problem):
            assert least <= figures(Plan(Reshard.of(*problem[:3], INT64), steps)), str(problem)


# A limit of memory.

NEEDS = re.compile(r"needs (\d+) bytes on a device at the least; memory_limit is (\d+)$")


def named_limit(problem: Problem, limit: int, network: Network | None = None) -> int:
    """What the refusal of a limit names."""
    with pytest.raises(ReshardError) as caught:
        plan(*problem, memory_limit=limit, network=network)
    assert caught.value.code == "no-plan", str(problem)
    match = NEEDS.search(str(caught.value))
    assert match is not None, str(caught.value)
    assert int(match[2]) == limit, str(caught.value)
    return int(match[1])


def check_limits(problem: Problem, network: Network | None = None) -> int:
    """The named limit does and one byte less does not; between it and no limit chunks do; how many chunked plans."""
    free = plan(*problem, network=network)
    if free.peak_bytes == 0:
        return 0
    least = named_limit(problem, 0, network)
    assert 0 < least <= free.peak_bytes, str(problem)
    assert named_limit(problem, least - 1, network) == least, str(problem)
    chunked = 0
    for limit in sorted({least, (least + free.peak_bytes) // 2, free.peak_bytes - 1, free.peak_bytes}):
        if limit < least:
            continue
        found = plan(*problem, memory_limit=limit, network=network)
        checkers.check_chain(found)
        assert found.peak_bytes <= limit, f"{problem} under {limit}"
        same = [step.after for step in found.steps] == [step.after for step in free.steps]
        if same:
            assert found.received_bytes == free.received_bytes, f"{problem} under {limit}"
            chunks = [step.chunks for step in found.steps]
            assert (max(chunks, default=1) > 1) == (limit < free.peak_bytes), f"{problem} under {limit}: {chunks}"
        chunked += any(step.chunks > 1 for step in found.steps)
    return chunked


@pytest.mark.parametrize("draw", [problems.draw_problem, problems.draw_reduction])
def test_a_limit_is_kept_or_the_least_is_named(draw: Callable[[Random], Problem]) -> None:
    chunked = sum(check_limits(problem) for problem, _ in drawn_plans(Random(21), draw, 100))
    assert chunked > 20


def test_a_limit_is_kept_on_a_network() -> None:
    rng, network = Random(22), Network.preset("h100-16x8")
    chunked = sum(
        check_limits(
            Problem(random_sharding(rng, FAST_HOSTS), random_sharding(rng, FAST_HOSTS), (256, 512), "int64"), network
        )
        for _ in range(12)
    )
    assert chunked


def test_a_chunked_plan_runs_and_no_fewer_chunks_would_do() -> None:
    mesh = Mesh.of(x=4, y=2)
    source, target = Sharding.of(mesh, "x", "y"), Sharding.of(mesh, "y", None)
    # tiles of 8 x 16 and 16 x 32, of 8 bytes: 1024 + 4096; pieces of 8 x 16: 1024, in 8 parts of 128
    found = plan(source, target, (32, 32), "int64", memory_limit=5120 + 128)
    assert [(step.kind, step.chunks, step.peak_bytes) for step in found.steps] == [("Exchange", 8, 5248)]
    assert found.rounds == 8 * plan(source, target, (32, 32), "int64").rounds
    checkers.check_move(found)
    assert replace(found.steps[0], chunks=7).peak_bytes > 5248


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.slow)])
def test_the_engine_needs_no_more_than_all_devices_together_are_said_to(count: int) -> None:
    """Peak of one process that holds the tiles of all devices, its source included, against the plan's times devices.

    The plan's peak of a device is the largest over devices, and counts a piece on its way that the engine, which
    copies from tile to tile, does not make; so the sum is an upper bound, but for objects that are no tiles.
    """
    rng, beside = Random(23), 100_000  # bytes of objects that are no tiles
    limited = 0
    for number in range(count):
        mesh = Mesh.of(zip("abc", rng.choice([(8,), (4, 2), (2, 2, 2), (3, 2), (2, 4)]), strict=False))
        partial = number % 3 == 0
        source = problems.draw_sharding(rng, mesh, 2, partial=partial)
        target = problems.draw_sharding(rng, mesh, 2)
        network = None if number % 2 else switches((mesh.size, 1e9))
        found = plan(source, target, (rng.randint(150, 260), rng.randint(150, 260)), "int64", network=network)
        if number % 2:
            with suppress(ReshardError):  # it needs more
                limit = found.peak_bytes * 7 // 8
                found = plan(source, target, found.shape, "int64", network=network, memory_limit=limit)
                limited += 1
        whole = [oracle.encoded(found.shape)] * oracle.class_count(source)
        given = oracle.partial_tiles(whole, source)
        engine.run(found, given)  # what is kept for later runs is no part of the peak
        sizes = sum(tile.nbytes for tile in given.values())
        tracemalloc.start()
        engine.run(found, given)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        claimed = found.peak_bytes * len(found.devices)
        text = f"{found.source.text()} -> {found.target.text()}, {found.shape}"
        if found.steps:
            assert peak + sizes <= claimed + beside, f"{text}: {peak + sizes} bytes, the plan says {claimed}"
            assert peak + sizes > claimed / 8, f"{text}: {peak + sizes} bytes, the plan says {claimed}"
    assert limited >= count // 6


# What else would do.


def check_values(found: Plan, whole: NDArray[Any]) -> None:
    """A run of whole values ends in the tiles of the target, and counts what the plan says."""
    counts: dict[int, int] = {}
    tiles = engine.run(found, oracle.tiles(whole, found.source), received_bytes=counts)
    checkers.check_tiles(tiles, oracle.tiles(whole, found.target))
    assert counts == {device: found.received_bytes_on(device) for device in found.devices}


def outline(found: Plan) -> tuple[tuple[str, Sharding], ...]:
    return tuple((step.kind, step.after) for step in found.steps)


def check_alternatives(found: Plan) -> int:
    """Distinct, to the same target, right, and in order; how many."""
    computed = alternatives.cache_info().misses
    others = alternatives(found)
    assert alternatives.cache_info().misses == computed + 1, "they were computed before they were asked for"
    assert alternatives(found) is others
    outlines = [outline(other) for other in (found, *others)]
    assert len(set(outlines)) == len(outlines), f"{found}\ntwo are alike"
    for other in others:
        assert (other.source, other.target, other.shape, other.dtype) == (
            *(found.source, found.target),
            *(found.shape, found.dtype),
        )
        checkers.check_chain(other)
        assert (other.seconds is None) == (found.seconds is None)
    prices = [other.seconds for other in others if other.seconds is not None]
    assert prices == sorted(prices), f"{found}\nalternatives take {prices}"
    return len(others)


@pytest.mark.parametrize("network", [None, switches((2, 9e9), (4, 1e9)), "h100-1x8"])
def test_alternatives_of_moves(network: Network | str | None) -> None:
    rs.planner.cache_clear()
    rng, known, drawn = Random(31), 0, set()
    mesh = Mesh.of(h=4, a=2)
    shardings = list(full_axis_shardings(mesh, 2))
    for shape in ((16, 8), (7, 5)):
        whole = oracle.encoded(shape)
        for _ in range(20):
            found = plan(rng.choice(shardings), rng.choice(shardings), shape, "int64", network=network)
            if found in drawn:
                continue
            drawn.add(found)
            known += check_alternatives(found)
            for other in (found, *alternatives(found)):
                check_values(other, whole)
    assert known > 10


def test_alternatives_of_reductions() -> None:
    rs.planner.cache_clear()
    rng, known, drawn = Random(32), 0, set()
    for (source, _, shape, dtype), found in drawn_plans(rng, problems.draw_reduction, 60):
        if found in drawn or found.target.unreduced or found.source.reduction == "avg":
            continue
        drawn.add(found)
        known += check_alternatives(found)
        bits = np.random.default_rng(0).integers(0, 2, (oracle.class_count(source), *shape))
        per_class = list(bits.astype(dtype))
        wanted = oracle.tiles(oracle.reduced(per_class, source), found.target)
        for other in (found, *alternatives(found)):
            checkers.check_tiles(engine.run(other, oracle.partial_tiles(per_class, source)), wanted)
    assert known > 10


def test_a_plan_made_by_hand_behaves_as_the_equal_one_of_the_planner() -> None:
    mesh = Mesh.of(x=2, y=4)
    reshard = Reshard.of(Sharding.of(mesh, "y", None), Sharding.of(mesh, "x", "y"), (8, 8), INT64)
    by_hand, planned = Plan(reshard, (Step(reshard),)), plan(reshard.source, reshard.target, (8, 8), INT64)
    assert by_hand == planned
    assert alternatives(by_hand) == alternatives(planned) != ()


def test_problems_of_any_meshes_are_planned_on_a_network() -> None:
    """One device among them, whose sharding has no dims."""
    rng = Random(7)
    for _ in range(200):
        problem = problems.draw_problem(rng)
        devices = max(*problem.source.mesh.devices, *problem.target.mesh.devices) + 1
        found = plan(*problem, network=f"h100-{max(2, -(-devices // 8))}x8")
        checkers.check_chain(found)
    mesh, single = Mesh.of(a=2, b=8), Mesh((), (3,))
    for ends in ((Sharding.of(mesh, "a", "b"), Sharding(single, ())), (Sharding(single, ()), Sharding.of(mesh, "b"))):
        shape = (16, 16)[: len(max(ends[0].dims, ends[1].dims, key=len))]
        assert plan(*ends, shape, network="h100-2x8").seconds


# Near senders.


@pytest.mark.parametrize("shape", [(16, 24), (7, 10)])
def test_near_senders_bring_the_bound_and_the_right_tiles(shape: tuple[int, int]) -> None:
    rng, differ = Random(41), 0
    mesh = Mesh.of(h=4, a=2, b=2)
    shardings = list(full_axis_shardings(mesh, 2))
    for _ in range(60):
        source, target = rng.choice(shardings), rng.choice(shardings)
        near = rng.choice([2, 4])
        step = Step(Reshard.of(source, target, shape, INT64), near=near)
        found = Plan(Reshard.of(source, target, shape, INT64), (step,))
        checkers.check_move_figures(found, oracle.missing(source, target, shape))
        checkers.check_run(found)
        for move in step.moves:
            checkers.check_both_ends(move.exchange)
            checkers.check_pieces(move.exchange, source, target, shape)
            even = Step(Reshard.of(source, target, shape, INT64)).moves[0].exchange
            differ += checkers.all_pieces(even) != checkers.all_pieces(move.exchange)
    assert differ > 5


@pytest.mark.parametrize("shape", [(16, 24), (7, 10)])
def test_a_holder_on_the_receivers_side_sends(shape: tuple[int, int]) -> None:
    """Where every host holds the whole tensor, nothing comes from another."""
    mesh, network = Mesh.of(h=4, a=2, b=2), switches((4, 9e9), (4, 1e9))
    for target in full_axis_shardings(mesh, 2):
        for source in (Sharding.of(mesh, "a", "b"), Sharding.of(mesh, ("b", "a"), None)):
            step = Step(Reshard.of(source, target, shape, INT64), near=4)
            assert not host_bytes(step, network, 1).any(), f"{source.text()} -> {target.text()}"


# Plans as values.


def network_plans() -> Iterator[Plan]:
    rng = Random(51)
    for name in ("h100-16x8", "tpu-v5e-8x16"):
        for _ in range(25):
            ends = random_sharding(rng, FAST_HOSTS), random_sharding(rng, FAST_HOSTS)
            yield plan(*ends, (256, 256), "int64", network=name)


def test_json_and_pickle_keep_near_chunks_seconds_and_reason() -> None:
    mesh = Mesh.of(h=4, a=2)
    chunked = plan(Sharding.of(mesh, "h"), Sharding.of(mesh, "a"), (64,), "int64", memory_limit=384 + 64)
    seen: set[str] = set()
    for found in (*network_plans(), chunked):
        for again in (Plan.from_json(found.to_json()), pickle.loads(pickle.dumps(found))):
            assert again == found
            assert [(step.near, step.chunks) for step in again.steps] == [
                (step.near, step.chunks) for step in found.steps
            ]
            assert (again.seconds, again.step_seconds, again.reason) == (
                *(found.seconds, found.step_seconds),
                found.reason,
            )
        data = json.loads(found.to_json())
        assert (data["seconds"], data["reason"]) == (found.seconds, found.reason)
        seen.update(name for name in ("near", "chunks", "seconds") if any(step[name] for step in data["steps"]))
        seen.update(["many chunks"] if any(step.chunks > 1 for step in found.steps) else [])
        seen.update(["reason"] if found.reason else [])
    assert seen == {"near", "chunks", "many chunks", "seconds", "reason"}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"network": "h100-2x4"},
    {"network": "h100-2x4", "memory_limit": 30_000},
    {"basis": "collectives"},
    {"basis": "one-axis", "network": switches((2, 9e9), (4, 1e9))},
]


def mlir(found: Plan) -> str:
    try:
        return found.to_mlir()
    except ReshardError as refusal:
        return str(refusal)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equal_plans_behave_equally(options: dict[str, Any]) -> None:
    """Pickled, copied or read from JSON, with nothing kept in a cache: alternatives, MLIR, prices, trace."""
    mesh = Mesh.of(h=2, a=4)
    found = plan(Sharding.of(mesh, None, ("h", "a")), Sharding.of(mesh, ("a", "h"), None), (64, 64), "int64", **options)
    ways = alternatives(found)
    text, table, numbers = mlir(found), str(found), (found.seconds, found.step_seconds, found.peak_bytes)
    for again in (
        Plan.from_json(found.to_json()),
        *(pickle.loads(pickle.dumps(found, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)),
        copy.copy(found),
        copy.deepcopy(found),
    ):
        rs.planner.cache_clear()
        assert again is not found
        assert (again, again.options, hash(again)) == (found, found.options, hash(found))
        assert alternatives(again) == ways
        assert [way.to_json() for way in alternatives(again)] == [way.to_json() for way in ways]
        assert (mlir(again), str(again)) == (text, table)
        assert (again.seconds, again.step_seconds, again.peak_bytes) == numbers
        assert again.to_json() == found.to_json()
        if found.seconds is not None:
            assert again.to_trace() == found.to_trace()
        assert set(again.__dict__) >= set(Plan.__dataclass_fields__)


def test_every_cached_figure_of_a_plan_is_a_property_of_it() -> None:
    """Nothing else is kept in a plan: who has its fields has all of it."""
    mesh = Mesh.of(h=2, a=4)
    found = plan(Sharding.of(mesh, "h"), Sharding.of(mesh, "a"), (64,), "int64", network="h100-2x4")
    str(found), found.to_json(), alternatives(found)
    for name in set(found.__dict__) - set(Plan.__dataclass_fields__):
        assert isinstance(getattr(Plan, name), cached_property)


def test_a_plan_as_json_with_other_prices_or_senders_is_read_as_such() -> None:
    mesh = Mesh.of(h=4, a=2)
    found = plan(Sharding.of(mesh, "h"), Sharding.of(mesh, None), (64,), "int64", network=switches((2, 9e9), (4, 1e9)))
    data = json.loads(found.to_json())
    data["seconds"] = 2 * data["seconds"]
    with pytest.raises(ReshardError, match="seconds in the text is not what the plan gives") as caught:
        Plan.from_json(json.dumps(data))
    assert caught.value.code == "bad-plan-text"


def test_equal_networks_share_a_plan_and_others_do_not() -> None:
    mesh = Mesh.of(h=2, a=8)
    ends = Sharding.of(mesh, "h"), Sharding.of(mesh, None)

    def made(network: Network | str | None) -> Plan:
        return plan(*ends, (64,), "int64", network=network)

    assert made("h100-2x8") is made(Network.preset("h100-2x8"))
    assert made("h100-2x8") is made(pickle.loads(pickle.dumps(Network.preset("h100-2x8"))))
    assert made(switches((16, 1e9))) is made(switches((16, 1e9)))
    assert made(switches((16, 1e9))) is not made(switches((16, 2e9)))
    assert made(switches((16, 1e9))).seconds == 2 * made(switches((16, 2e9))).seconds
    assert made(None) is not made(switches((16, 1e9)))
    assert made(None).seconds is None
    assert plan(*ends, (64,), "int64", memory_limit=10**6) is not made(None)
    kept = made("h100-2x8")
    rs.planner.cache_clear()
    assert made("h100-2x8") == kept
    assert made("h100-2x8") is not kept


def test_with_plans_all_is_forgotten_that_is_known_of_what_they_move() -> None:
    mesh = Mesh.of(a=4, b=4)
    ends = Sharding.of(mesh, None, "a", unreduced="b"), Sharding.of(mesh, "a", "b")
    assert plan(*ends, (4096, 8192), "f32", network="tpu-v5e-4x4").lower_bound_seconds
    kept = (LevelWays.of, RoutePrices.of, best_cut, least_transfers, step_of)
    assert all(known.cache_info().currsize for known in kept)
    rs.planner.cache_clear()
    assert not any(known.cache_info().currsize for known in kept)


def test_a_layout_keeps_its_digits_for_few_shapes() -> None:
    layout = Sharding.of(Mesh.of(a=4), "a").layout
    ties = [layout.ties((4 * length,)) for length in range(1, 200)]
    assert len(layout._ties_of) <= KEPT
    assert ties == [[Tie(0, Digit(1, 4), length)] for length in range(1, 200)]


def test_no_other_way_is_looked_for_where_the_first_takes_least(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh.of(a=4, b=4)
    ends = Sharding.of(mesh, ("a", "b"), None), Sharding.of(mesh, "a", None)
    others = Sharding.of(mesh, "a", None), Sharding.of(mesh, None, "a")
    monkeypatch.setattr(soonest, "candidates", lambda *_: pytest.fail("other ways are looked for"))
    rs.planner.cache_clear()
    least = plan(*ends, (2**14, 2**14), "f32", network="tpu-v5e-4x4")
    assert [step.kind for step in least.steps] == ["AllGather"]
    assert least.seconds == pytest.approx(least.lower_bound_seconds, rel=1e-12)
    with pytest.raises(pytest.fail.Exception):
        plan(*others, (2**14, 2**14), "f32", network="tpu-v5e-4x4")


# What is refused.


@pytest.mark.parametrize(
    ("given", "code", "sentence"),
    [
        (
            {"network": "nonsense"},
            "bad-network",
            r"network 'nonsense' must be one of .*, then its sizes, as in h100-2x8",
        ),
        ({"network": "h100-0x8"}, "bad-network", r"network 'h100-0x8' must end in sizes from 1 on, as in h100-2x8"),
        ({"network": 3}, "bad-argument", r"the network of a plan must be .*Network, got: 3"),
        ({"memory_limit": -1}, "bad-argument", r"memory_limit must be at least 0 bytes, got: -1"),
        ({"memory_limit": True}, "bad-argument", r"memory_limit must be an integer, got: True"),
        ({"memory_limit": "x"}, "bad-argument", r"memory_limit must be an integer, got: 'x'"),
        ({"memory_limit": 1.5}, "bad-argument", r"memory_limit must be an integer, got: 1.5"),
        ({"basis": "foo"}, "bad-argument", r"basis 'foo' must be one of any.*"),
        ({"network": "h100-1x4"}, "bad-network", r"device 15 is beyond the 4 devices of h100-1x4"),
        ({"network": switches((8, 1e9))}, "bad-network", r"device 15 is beyond the 8 devices of network"),
    ],
)
def test_refusals(given: dict[str, Any], code: str, sentence: str) -> None:
    mesh = Mesh.of(h=2, a=8)
    with pytest.raises(ReshardError) as caught:
        plan(Sharding.of(mesh, "h"), Sharding.of(mesh, None), (64,), "int64", **given)
    assert caught.value.code == code
    assert re.fullmatch(sentence, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("copy_bandwidth", [None, 1e9])
@pytest.mark.parametrize("launch_s", [0.0, 2e-6])
def test_a_slice_on_a_network_where_plans_take_time_to_start(copy_bandwidth: float | None, launch_s: float) -> None:
    """By hand: no level carries anything, so it takes the start of the plan, and the copy of 4 bytes."""
    level = Level(1, 2, "switch", 1e9, 1e-6)
    network = Network((level,), launch_s=launch_s, call_s=1e-5, copy_bandwidth=copy_bandwidth)
    mesh = Mesh.of(x=2)
    best = plan(Sharding.of(mesh, None), Sharding.of(mesh, "x"), (2,), "float32", network=network)
    assert [step.kind for step in best.steps] == ["Slice"]
    assert best.seconds == pytest.approx(1e-5 + (4e-9 if copy_bandwidth else 0))


@pytest.mark.parametrize(
    ("name", "ends", "shape"),
    [
        ("h100-32x8", ((("B", "D"), "C"), (("D", "C"), "E")), (288, 576)),
        ("h100-32x8", ((("B", "A"), None), (("E", "A", "B", "C"), None)), (2304, 2304)),
        ("h100-32x8", ((None, ("A", "D", "C")), (None, None)), (288, 576)),
        ("tpu-v5e-16x16", (("B", ("C", "E")), ("D", ("B", "A"))), (288, 576)),
    ],
)
def test_what_it_takes_to_start_a_plan_changes_no_choice(name: str, ends: Any, shape: tuple[int, int]) -> None:
    """Every plan pays it once, whatever steps and shares it is made of."""
    mesh, network = Mesh.of(A=4, B=4, C=2, D=2, E=4), Network.preset(name)
    source, target = (Sharding.of(mesh, *dims) for dims in ends)
    plans = [plan(source, target, shape, network=replace(network, call_s=call_s)) for call_s in (0.0, 1e-4)]
    assert plans[0].steps == plans[1].steps
    assert plans[0].beside == plans[1].beside
    assert plans[1].seconds == pytest.approx((plans[0].seconds or 0) + 1e-4)


def test_a_window_far_smaller_than_what_lies_between() -> None:
    """Partial along an axis that cut it: the tile on the way is larger than both ends, and there is no other way."""
    source = Sharding.of(Mesh.of(x=2, y=4), ("x", "y"), None)
    target = rs.parse_sharding('<mesh<["x"=2, "y"=4]>, [{"x", window(0:3, 3:5, pad)}, {}], unreduced={"y"}>')
    made = plan(source, target, (72, 1))
    assert ([step.kind for step in made.steps], made.received_bytes) == (["ToUnreduced", "Exchange"], 8)
    array = np.arange(72, dtype=np.float32)[:, None]
    tiles = engine.run(made, engine.scatter(array, source))
    for x, rows in enumerate((range(3), range(3, 5))):
        summed = sum(tiles[4 * x + y] for y in range(4))
        np.testing.assert_array_equal(summed[: len(rows)], array[rows])
