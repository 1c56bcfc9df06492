"""A plan of any kind as one program of all devices: sub-axes, uneven cuts, boxes, partial values."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from random import Random
from typing import Any

import numpy as np
import oracle
import pytest
from problems import Problem, draw_problem, draw_reduction
from sums import small_sums
from time_bounds import pairs

jax = pytest.importorskip("jax")

from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
from jax_hlo import collectives, received_bytes  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.digits import Digit, Digits  # noqa: E402
from reshard.jax.exchange import in_groups, rounds  # noqa: E402
from reshard.jax.exchange.in_groups import groups_of  # noqa: E402
from reshard.jax.exchange.lowering import run_on_device  # noqa: E402
from reshard.network.pricing import meetings  # noqa: E402
from reshard.plans import Options, Plan  # noqa: E402
from reshard.problem import Reshard  # noqa: E402
from reshard.steps import Step  # noqa: E402

pytestmark = pytest.mark.engine

SEEDS = [pytest.param(number, marks=[] if number < 2 else [pytest.mark.slow]) for number in range(24)]


def run(plan: Plan, tiles: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The plan over devices in the target's order, each tile in the corner of an array of the largest tile's shape."""
    shape = plan.source.local_shape(plan.shape)
    stacked = np.zeros((plan.source.mesh.size, *shape), next(iter(tiles.values())).dtype)
    for place, device in enumerate(plan.target.mesh.devices):
        stacked[(place, *(slice(size) for size in tiles[device].shape))] = tiles[device]
    result = np.asarray(program_of(plan)(stacked))
    assert result.shape[1:] == plan.target.local_shape(plan.shape)
    return {
        device: result[(place, *(slice(size) for size in plan.target.box(device, plan.shape).shape))]
        for place, device in enumerate(plan.target.mesh.devices)
    }


def program_of(plan: Plan) -> Any:
    """From source tiles to target tiles, both stacked."""
    names = ("devices",)
    mesh = Mesh(np.array(jax.devices()[: plan.source.mesh.size]), names)
    spec = PartitionSpec("devices")

    def body(given: jax.Array) -> jax.Array:
        return run_on_device(plan, names, given[0])[None]

    program = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(program, in_shardings=NamedSharding(mesh, spec))


@pytest.mark.parametrize("reduction", ["sum", "avg", "product", "max", "min"])
def test_short_floats_become_unreduced(reduction: str) -> None:
    """Their bits may travel in their place, but no reduction has its identity there; a sum has zero."""
    mesh = rs.Mesh.of(x=2, y=2, z=2)
    target = rs.Sharding.of(mesh, "x", None, unreduced="y", reduction=reduction)
    plan = rs.plan(rs.Sharding.of(mesh, "x", None), target, (5, 3), "bf16")
    tiles = oracle.tiles(np.arange(-7, 8).reshape(5, 3).astype(jax.numpy.bfloat16), plan.source)
    expected, unreduced = rs.numpy.run(plan, tiles), run(plan, tiles)
    for device, tile in expected.items():
        np.testing.assert_array_equal(unreduced[device], tile)


def test_replicas_that_combine_by_themselves_are_equal_to_the_bit() -> None:
    """Whatever the order in which each device receives values."""
    by_themselves = 0
    for plan, tiles in small_sums(40, seed=3):
        by_themselves += any(step.near == 1 for step in plan.steps)
        expected, results = rs.numpy.run(plan, tiles), dict[object, set[bytes]]()
        for device, tile in run(plan, tiles).items():
            np.testing.assert_allclose(tile, expected[device], rtol=1e-5)
            results.setdefault(plan.target.box(device, plan.shape), set()).add(tile.tobytes())
        assert all(len(values) == 1 for values in results.values()), plan
    assert by_themselves > 5


def test_values_become_partial_whoever_combines() -> None:
    """A step that moves nothing combines nothing either."""
    mesh = rs.Mesh.of(x=2, y=4)
    reshard = Reshard.of(rs.Sharding.of(mesh, None), rs.Sharding.of(mesh, None, unreduced="y"), (8,), "f32")
    plan = Plan(reshard, (Step(reshard, near=1),), Options())
    tiles = oracle.tiles(np.arange(8, dtype=np.float32), plan.source)
    expected, found = rs.numpy.run(plan, tiles), run(plan, tiles)
    for device, tile in expected.items():
        np.testing.assert_array_equal(found[device], tile)


def assert_runs(plan: Plan) -> None:
    """Every device gets what the oracle says."""
    array = np.arange(prod(plan.shape), dtype=np.float32).reshape(plan.shape)
    found = run(plan, oracle.tiles(array, plan.source))
    for device, tile in oracle.tiles(array, plan.target).items():
        np.testing.assert_array_equal(found[device], tile, err_msg=f"{device}\n{plan}")


def test_uneven_tiles_go_in_parts() -> None:
    """Hosts of 4 and rings: parts of units that the dim ends in, shares of them, and steps that the whole takes."""
    mesh = rs.Mesh.of(x=2, y=4)
    hosts = rs.Network((rs.network.Level(1, 4, "switch", 9, 0), rs.network.Level(4, 2, "switch", 1, 0)))
    rings = rs.Network((rs.network.Level(1, 4, "ring", 1, 0), rs.network.Level(4, 2, "ring", 1, 0)))
    ends = {
        "gathered": (hosts, (("x", "y"), None), (None, None), 1),
        "turned": (hosts, (("x", "y"), None), (("y", "x"), None), 1),
        "moved": (hosts, ("x", "y"), ("y", "x"), 2),
        "in shares": (rings, ("x", None), (None, "x"), 2),
    }
    for network, before, after, stretches in ends.values():
        plan = rs.plan(rs.Sharding.of(mesh, *before), rs.Sharding.of(mesh, *after), (37, 45), "f32", network=network)
        assert plan.parts > 1
        assert len(plan.stretches) >= stretches
        assert_runs(plan)
    assert len(plan.shares) > 1


RINGS = [
    (rs.Mesh.of(a=2, b=2, c=2), Digit(1, 8)),
    (rs.Mesh.of(o=2, a=3), Digit(1, 6)),
    (rs.Mesh.of(a=2, b=2, c=2), Digit(1, 4)),
    (rs.Mesh.of(a=2, b=4), Digit(1, 4)),
    (rs.Mesh.of(a=2, b=2, c=2), Digit(2, 4)),
]
"""Meshes of which a ring holds all axes, some, or parts of them."""


@pytest.mark.parametrize("seed", SEEDS[:8])
@pytest.mark.parametrize(("mesh", "ring"), RINGS)
def test_neighbours_along_a_ring_hand_on_what_the_plan_says(mesh: rs.Mesh, ring: Digit, seed: int) -> None:
    """Drawn pairs, of even and uneven tensors, whole and within a memory limit: tiles and bytes, device by device."""
    rng = Random(f"{mesh} {ring} {seed}")
    shapes = [(48, 48), (47, 30), (5, 96), (24, 12)]
    for source, target in rng.sample(drawn := pairs(mesh, 10**6), len(drawn)):
        shape, dtype = rng.choice(shapes), rng.choice(["float32", "int8", "bfloat16", "bool", "complex64"])
        with suppress(rs.ReshardError):  # what changes elsewhere too
            step = Step(Reshard.of(source, target, shape, dtype), ring=ring)
            if step.moves[0].exchange.hops > 1:
                break
    array = np.random.default_rng(seed).integers(0, 99, shape).astype(jax.numpy.dtype(dtype))
    tiles, expected = oracle.tiles(array, source), oracle.tiles(array, target)
    plan = Plan(step.reshard, (step,), Options())
    limited = replace(plan, steps=(replace(step, chunks=rng.choice([1, 2, 5])),), options=Options(memory_limit=1 << 30))
    for given in (plan, limited):
        arrived = run(given, tiles)
        for device, tile in expected.items():
            np.testing.assert_array_equal(arrived[device], tile, err_msg=f"{device} {given}")
    stacked = jax.ShapeDtypeStruct((mesh.size, *source.local_shape(shape)), array.dtype)
    sent = collectives(program_of(plan).lower(stacked).compile().as_text(), mesh.size)
    assert received_bytes(sent, mesh.size) == step.all_received_bytes().tolist()
    assert len(sent) <= sum(one.hop > 0 for one in rounds_in(plan))


@pytest.mark.parametrize("shape", [(48, 48), (47, 30)])
@pytest.mark.parametrize(("mesh", "ring"), [*RINGS[:3], (RINGS[0][0], None), (RINGS[2][0], None)])
def test_devices_use_what_they_kept_from_before(mesh: rs.Mesh, ring: Digit | None, shape: tuple[int, ...]) -> None:
    """Of drawn plans of two steps the second cuts boxes out of the first tiles, of which nothing comes once more."""
    rng, drawn = Random(f"{mesh} {ring} {shape}"), pairs(mesh, 10**6)
    while True:
        kept, (middle, target) = rng.choice(drawn)[0], rng.choice(drawn)
        with suppress(rs.ReshardError):  # what changes elsewhere too
            last = Step(Reshard.of(middle, target, shape, "int32"), ring=ring, kept=kept)
            exchange = last.moves[0].exchange
            sent = [piece for device in range(mesh.size) for piece in exchange.outgoing(device) if piece.round < 2]
            if any(exchange.is_kept(piece.sender, piece.box) for piece in sent):
                break
    first = Step(replace(last.reshard, source=kept, target=middle))
    array = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    for chunks, limit in ((1, None), (2, 1 << 30)):
        steps = first, replace(last, chunks=chunks)
        arrived = run(
            Plan(replace(last.reshard, source=kept), steps, Options(memory_limit=limit)), oracle.tiles(array, kept)
        )
        for device, tile in oracle.tiles(array, target).items():
            np.testing.assert_array_equal(arrived[device], tile)


BESIDE = [
    (rs.Mesh.of(h=2, g=4), ("h", None, None), (None, "g", None), (None, None, None)),
    (rs.Mesh.of(h=4, g=2), (None, "h", None), (None, None, "g"), (None, None, None)),
    (rs.Mesh.of(h=4, g=2), ("h", None, None), (None, "g", None), (None, None, "g")),
    (rs.Mesh.of(a=2, b=2, c=2), ("a", "b", None), (None, ("b", "c"), None), (None, "b", None)),
]
"""What devices kept, where a tensor is, and where it goes: in groups that kept the same."""


@pytest.mark.parametrize(("mesh", "kept", "middle", "target"), BESIDE)
def test_members_of_groups_that_kept_the_same_send_the_rest_at_once(
    mesh: rs.Mesh, kept: tuple[Any, ...], middle: tuple[Any, ...], target: tuple[Any, ...]
) -> None:
    points = [rs.Sharding.of(mesh, *dims) for dims in (kept, middle, target)]
    array = np.arange(16 * 24 * 8, dtype=np.int32).reshape(16, 24, 8)
    last = Step(Reshard.of(points[1], points[2], array.shape, "int32"), kept=points[0])
    first = Step(replace(last.reshard, source=points[0], target=points[1]))
    plan = Plan(replace(last.reshard, source=points[0]), (first, last), Options())
    arrived = run(plan, oracle.tiles(array, points[0]))
    for device, tile in oracle.tiles(array, points[2]).items():
        np.testing.assert_array_equal(arrived[device], tile)
    alone = Plan(last.reshard, (Step(last.reshard),), Options())
    sent = [
        collectives(program_of(each).lower(stacked_shape(each)).compile().as_text(), mesh.size)
        for each in (plan, replace(plan, reshard=first.reshard, steps=(first,)), alone)
    ]
    assert received_bytes(sent[0], mesh.size) == [plan.received_bytes_on(device) for device in mesh.devices]
    assert len(sent[0]) - len(sent[1]) == len(sent[2])


def test_all_that_goes_one_way_in_a_hop_is_sent_as_one() -> None:
    """On a ring of 8 cut by its outermost axis, who lacks boxes of two kinds of devices takes them in one row."""
    mesh = rs.Mesh.of(a=4, b=2)
    reshard = Reshard.of(rs.Sharding.of(mesh, None, ("b", "a")), rs.Sharding.of(mesh, None, "b"), (48, 48), "f32")
    step = Step(reshard, ring=Digit(1, 8))
    plan = Plan(reshard, (step,), Options())
    text = program_of(plan).lower(jax.ShapeDtypeStruct((8, 48, 6), np.float32)).compile().as_text()
    assert len(collectives(text, 8)) <= 2 * step.moves[0].exchange.hops


def test_partial_values_are_combined_inside_hosts_first() -> None:
    """By way of blocks with a stride that are partial between hosts, in parts."""
    mesh = rs.Mesh.of(x=2, y=4)
    hosts = rs.Network((rs.network.Level(1, 4, "switch", 9, 0), rs.network.Level(4, 2, "switch", 1, 0)))
    source = rs.Sharding.of(mesh, None, None, unreduced=("x", "y"))
    plan = rs.plan(source, rs.Sharding.of(mesh, ("x", "y"), None), (64, 8), "int32", network=hosts)
    assert plan.parts > 1
    assert plan.steps[0].after.is_woven
    assert plan.steps[0].after.unreduced
    tiles = {device: np.random.default_rng(device).integers(0, 9, (64, 8), np.int32) for device in range(8)}
    right, found = rs.numpy.run(plan, tiles), run(plan, tiles)
    assert all(np.array_equal(found[device], right[device]) for device in right)


def rounds_in(plan: Plan) -> list[rounds.Round]:
    """Those in which something is sent."""
    (move,) = (move for step in plan.steps for move in step.moves)
    return [one for one in rounds.rounds_of(move.exchange) if not one.is_local]


def in_one_order(rng: Random, draw: object) -> Problem:
    """A problem over one list of devices that JAX has the dtypes for."""
    while True:
        problem = draw(rng)
        if problem.source.mesh.same_order_as(problem.target.mesh) and problem.source.mesh.size > 1:
            wide = {"int64": "int32", "complex128": "complex64", "float64": "float32"}
            return problem._replace(dtype=wide.get(problem.dtype, problem.dtype))


@pytest.mark.parametrize("seed", SEEDS)
def test_moves_put_on_every_device_what_the_oracle_says(seed: int) -> None:
    rng = Random(f"moves {seed}")
    for _ in range(10):
        problem = in_one_order(rng, draw_problem)
        plan = rs.plan(problem.source, problem.target, problem.shape, problem.dtype)
        array = (np.arange(prod(problem.shape)) % 100).reshape(problem.shape).astype(jax.numpy.dtype(problem.dtype))
        found = run(plan, oracle.tiles(array, problem.source))
        for device, tile in oracle.tiles(array, problem.target).items():
            assert found[device].shape == tile.shape, str(problem)
            assert found[device].tobytes() == tile.tobytes(), f"{problem}\n{plan}"


@pytest.mark.parametrize("seed", SEEDS)
def test_partial_values_come_out_as_what_they_stand_for(seed: int) -> None:
    rng = Random(f"sums {seed}")
    for number in range(8):
        problem = in_one_order(rng, draw_reduction)
        is_avg = "avg" in (problem.source.reduction, problem.target.reduction)
        try:
            plan = rs.plan(problem.source, problem.target, problem.shape, problem.dtype)
        except rs.ReshardError:
            assert is_avg, str(problem)  # parts of an average cannot be partial
            continue
        fresh = np.random.default_rng(number)
        classes = [
            fresh.integers(0, 50, problem.shape).astype(problem.dtype)
            for _ in range(oracle.class_count(problem.source))
        ]
        tiles = oracle.partial_tiles(classes, problem.source)
        found, right = run(plan, tiles), rs.numpy.run(plan, tiles)
        compare = np.allclose if is_avg else np.array_equal  # XLA multiplies where others divide
        assert all(compare(found[device], right[device]) for device in right), f"{problem}\n{plan}"
        value = oracle.values(problem.target, problem.shape, found)
        assert compare(value, oracle.reduced(classes, problem.source)), str(problem)


@pytest.mark.parametrize(
    ("sizes", "shape", "reduction", "shares"),
    [
        ((4, 2), (6,), "sum", 2),
        ((4, 6), (12,), "max", 6),
        ((4, 6), (3, 7), "min", 3),
        ((4, 2), (3,), "sum", 1),
        ((2, 4), (8,), "sum", 1),
        ((8, 2), (), "sum", 1),
    ],
    ids=str,
)
def test_copies_share_an_all_reduce(
    sizes: tuple[int, int], shape: tuple[int, ...], reduction: str, shares: int
) -> None:
    """By hand: of p parts in c copies a share of 1/c takes 2 (p - 1) / p, and (c - 1) / c of the whole come after."""
    mesh = rs.Mesh.of(x=sizes[0], y=sizes[1])
    dims = [None] * len(shape)
    source = rs.Sharding.of(mesh, *dims, unreduced="x", reduction=reduction)
    plan = rs.plan(source, rs.Sharding.of(mesh, *dims), shape, "float32")
    assert [step.kind for step in plan.steps] == ["AllReduce"]
    classes = [np.arange(prod(shape), dtype=np.float32).reshape(shape) * (3 - n) for n in range(sizes[0])]
    found = run(plan, oracle.partial_tiles(classes, source))
    assert all(np.array_equal(tile, oracle.reduced(classes, source)) for tile in found.values())
    moved = collectives(program_of(plan).lower(stacked_shape(plan)).compile().as_text(), mesh.size)
    share = prod(shape) * 4 // shares
    assert [one.kind for one in moved] == ["all-reduce", "all-gather"][: 1 + (shares > 1)]
    received = 2 * share * (sizes[0] - 1) // sizes[0] + (shares - 1) * share
    assert received_bytes(moved, mesh.size) == [received] * mesh.size
    assert received <= plan.received_bytes
    if prod(shape) % mesh.size == 0:
        assert received == plan.received_bytes


def test_groups_are_the_devices_that_differ_in_the_digits_alone() -> None:
    """By hand, on x=2, y=4: along y, along x, along the minor half of y, and all in another order."""
    assert groups_of(Digits([Digit(1, 4)]), 8) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups_of(Digits([Digit(4, 2)]), 8) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert groups_of(Digits([Digit(1, 2)]), 8) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups_of(Digits([Digit(1, 4), Digit(4, 2)]), 8) == [[0, 4, 1, 5, 2, 6, 3, 7]]
    assert groups_of(Digits([Digit(1, 8)]), 8) is None


IN_TURN = {
    "a gather along both dims": (("x", "y", "z"), (None, None, None), "all-gather all-gather"),
    "a gather of rows alone": ((("z", "x"), None, "y"), (None, None, "y"), "all-gather"),
    "a gather of columns alone": (("x", ("y", "z"), None), ("x", None, None), "all-gather"),
    "to tiles with two holders": ((None, ("z", "x"), None), ("x", None, None), "all-to-all all-gather"),
    "to the last dim": (("y", ("z", "x"), None), (None, None, "z"), "all-to-all all-gather all-gather"),
    "from the last dim": (("y", None, ("z", "x")), (None, "z", None), "all-to-all all-gather all-gather"),
    "sums made whole": (("y", "z", None, "x"), (None, None, None), "reduce-scatter all-gather all-gather"),
    "sums to rows": ((None, None, "y", "x"), ("x", None, None), "reduce-scatter all-gather"),
}
"""On x=2, y=2, z=2, where a tensor of rank 3 is, a fourth entry for what is unreduced; where it goes; what does it."""


@pytest.mark.parametrize("name", IN_TURN)
def test_large_tiles_take_collectives_in_turn_for_the_same_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (*before, partial_), after, kinds = ((*IN_TURN[name][0], None)[:4], *IN_TURN[name][1:])
    mesh = rs.Mesh.of(x=2, y=2, z=2)
    source = rs.Sharding.of(mesh, *before, unreduced=partial_ or ())
    plan = rs.plan(source, rs.Sharding.of(mesh, *after), (8, 16, 24), "float32")
    (step,) = plan.steps
    moved = {}
    for limit in (0, 1 << 20):
        monkeypatch.setattr(in_groups, "LARGE_BYTES", limit)
        moved[limit] = collectives(program_of(plan).lower(stacked_shape(plan)).compile().as_text(), mesh.size)
        assert received_bytes(moved[limit], mesh.size) == [plan.received_bytes_on(device) for device in mesh.devices]
    assert [one.kind for one in moved[0]] == kinds.split()
    assert len(moved[1 << 20]) == len(step.moves)


@pytest.mark.parametrize("seed", range(3))
def test_devices_meet_as_often_as_prices_say(seed: int) -> None:
    rng, mesh = Random(seed), rs.Mesh.of(x=2, y=2, z=2)
    counted = []
    for _ in range(6):
        source, target = (
            rs.Sharding.of(
                mesh, *([axis for axis, home in zip("zxy", homes, strict=True) if home == dim] for dim in (0, 1))
            )
            for homes in (rng.choices([None, 0, 1], k=3) for _ in range(2))
        )
        plan = rs.plan(source, target, (8, 16), "float32")
        moved = collectives(program_of(plan).lower(stacked_shape(plan)).compile().as_text(), mesh.size)
        counted.append(sum((one.members - 1).bit_length() for one in moved))
        assert counted[-1] == sum(map(meetings, plan.steps)), (source, target)
    assert max(counted) > 2


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.slow), *SEEDS[1:]])  # the first draws many sums
def test_collectives_in_turn_give_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_groups, "LARGE_BYTES", 0)
    test_moves_put_on_every_device_what_the_oracle_says(seed + 200)
    test_partial_values_come_out_as_what_they_stand_for(seed + 200)


@pytest.mark.parametrize("near", [1, 2, 4])
def test_senders_kept_near_serve_several_receivers(near: int) -> None:
    mesh = rs.Mesh.of(x=2, y=4)
    source, target = rs.Sharding.of(mesh, "y", None), rs.Sharding.of(mesh, "x", "y")
    reshard = rs.plan(source, target, (8, 8)).reshard
    plan = Plan(reshard, (Step(reshard, "Exchange", near),))
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    found = run(plan, oracle.tiles(array, source))
    assert all(np.array_equal(found[device], tile) for device, tile in oracle.tiles(array, target).items())


def test_a_whole_tile_that_changes_place_is_neither_cut_nor_put() -> None:
    mesh = rs.Mesh.of(x=4, y=4)
    plan = rs.plan(rs.Sharding.of(mesh, "x", "y"), rs.Sharding.of(mesh, "y", "x"), (16, 16))
    devices = Mesh(np.array(jax.devices()[:16]), ("devices",))
    spec = PartitionSpec("devices")
    body = partial(run_on_device, plan, ("devices",))
    program = jax.shard_map(body, mesh=devices, in_specs=spec, out_specs=spec, check_vma=False)
    text = str(jax.make_jaxpr(program)(np.zeros((64, 4), np.float32)))
    assert "ppermute" in text
    assert "slice" not in text


TURNED = {
    (2, 3): 6,  # in six shapes there are as many, of 13 units in all
    (3, 4): 12,
    (2, 5): 10,
    (3, 5): 15,
}
"""Transpositions of meshes whose sides do not nest, and the boxes of one unit that the busiest device handles."""


@pytest.mark.parametrize("sizes", TURNED)
def test_pieces_of_many_shapes_travel_in_boxes_of_one_unit(sizes: tuple[int, int]) -> None:
    mesh, side = rs.Mesh.of(x=sizes[0], y=sizes[1]), 2 * prod(sizes)
    plan = rs.plan(rs.Sharding.of(mesh, "x", "y"), rs.Sharding.of(mesh, "y", "x"), (side, side), "float32")
    sent = rounds_in(plan)
    assert {one.shape for one in sent} == {(2, 2)}
    assert len(sent) == TURNED[sizes]
    assert len(sent) * 4 * 4 == plan.lower_bound_bytes  # 4 elements of 4 bytes: the bound, in full rounds
    assert_runs(plan)
    found = collectives(program_of(plan).lower(stacked_shape(plan)).compile().as_text(), mesh.size)
    assert received_bytes(found, mesh.size) == [plan.lower_bound_bytes_on(device) for device in mesh.devices]


def stacked_shape(plan: Plan) -> Any:
    return jax.ShapeDtypeStruct((plan.source.mesh.size, *plan.source.local_shape(plan.shape)), np.float32)


def test_pieces_without_a_common_unit_stay_whole() -> None:
    """In units of one element they would be 221 rounds."""
    mesh = rs.Mesh.of(x=2, y=3)
    plan = rs.plan(rs.Sharding.of(mesh, "x", "y"), rs.Sharding.of(mesh, "y", "x"), (37, 35), "float32")
    assert len(rounds_in(plan)) == 12
    assert_runs(plan)


MANY = {
    "permutations": ({"x": 2, "y": 2, "z": 8}, (None, "z", ("y", "x")), (("y", "z"), None, "x"), (16, 8, 8), 16),
    "boxes, and some that stay": ({"x": 3, "y": 5}, ("x", "y"), ("y", "x"), (30, 30), 15),
    "uneven tiles": ({"x": 12}, ("x", None), (None, "x"), (22, 24), 11),
}


@pytest.mark.parametrize("name", MANY)
def test_many_rounds_are_a_loop_that_sends_each_permutation_once(name: str) -> None:
    axes, before, after, shape, count = MANY[name]
    mesh = rs.Mesh.of(axes)
    plan = rs.plan(rs.Sharding.of(mesh, *before), rs.Sharding.of(mesh, *after), shape, "float32")
    assert len(rounds_in(plan)) == count
    assert_runs(plan)
    text = program_of(plan).lower(stacked_shape(plan)).compile().as_text()
    assert " while(" in text
    found = collectives(text, mesh.size)
    assert [one.kind for one in found] == ["collective-permute"] * count
    assert received_bytes(found, mesh.size) == [plan.lower_bound_bytes_on(device) for device in mesh.devices]


@pytest.mark.parametrize("seed", SEEDS)
def test_loops_of_a_few_rounds_give_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MANY_ROUNDS", 1)
    test_moves_put_on_every_device_what_the_oracle_says(seed + 100)


@pytest.mark.parametrize("seed", SEEDS)
def test_devices_in_any_order_run_one_program(seed: int) -> None:
    rng = Random(f"orders {seed}")
    for _ in range(6):
        problem = in_one_order(rng, draw_problem)
        order = tuple(rng.sample(range(problem.target.mesh.size), problem.target.mesh.size))
        meshes = [replace(end.mesh, device_ids=ids) for end, ids in ((problem.source, order), (problem.target, None))]
        source, target = (replace(end, mesh=one) for end, one in zip(problem[:2], meshes, strict=True))
        assert_runs(rs.plan(source, target, problem.shape, "float32"))
