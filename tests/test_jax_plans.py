"""A plan in hand on JAX: run as it is, within its memory limit, and written as code."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_hlo import collectives, received_bytes  # noqa: E402
from oracle import tiles as tiles_of  # noqa: E402
from ring_plans import plan_that_keeps_blocks, two_rings_in_blocks  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.digits import Digit  # noqa: E402
from reshard.jax import code_of, named_sharding_of, run  # noqa: E402
from reshard.planner.memory_limit import within_limit  # noqa: E402
from reshard.plans import Options  # noqa: E402
from reshard.problem import Reshard  # noqa: E402
from reshard.steps import Share, Step  # noqa: E402

pytestmark = pytest.mark.engine

GRID, ODD, CUBE = rs.Mesh.of(x=2, y=4), rs.Mesh.of(x=2, y=3), rs.Mesh.of(a=2, b=2, c=2)
EXPLICIT = {
    mesh: jax.make_mesh(
        tuple(mesh.sizes.values()),
        tuple(mesh.sizes),
        axis_types=(AxisType.Explicit,) * len(mesh.sizes),
        devices=jax.devices()[: mesh.size],
    )
    for mesh in (GRID, ODD, CUBE)
}


def sharding(mesh: rs.Mesh, *dims: Any, **more: Any) -> rs.Sharding:
    return rs.Sharding.of(mesh, *dims, **more)


ENDS = {
    "exchange": (sharding(GRID, "y", None), sharding(GRID, "x", "y")),
    "all-to-all": (sharding(GRID, ("x", "y"), None), sharding(GRID, None, ("x", "y"))),
    "turned": (sharding(GRID, "x", "y"), sharding(GRID, "y", "x")),
    "gathered": (sharding(GRID, "x", "y"), sharding(GRID, None, None)),
    "sliced": (sharding(GRID, None, None), sharding(GRID, "y", "x")),
    "axes in part": (sharding(GRID, "y:(1)2", "x"), sharding(GRID, "x", "y:(2)2")),
    "other names": (sharding(GRID, "y", None), sharding(CUBE, "a", ("b", "c"))),
    "by boxes": (sharding(ODD, "x", "y"), sharding(ODD, "y", "x")),
    "three axes": (sharding(CUBE, ("a", "c"), "b"), sharding(CUBE, "b", ("c", "a"))),
}
SHAPE = (24, 48)
ARRAY = np.arange(24 * 48).reshape(SHAPE)


def rare(value: Any) -> Any:
    """A case that only a run of the slow tests goes through, since others are like it."""
    return pytest.param(value, marks=pytest.mark.slow)


def assert_holds(result: Any, target: rs.Sharding, array: Any = ARRAY) -> None:
    """Device by device, against index arithmetic."""
    wanted = tiles_of(array, target)
    places = {device: place for place, device in enumerate(jax.devices())}
    assert len(result.addressable_shards) == len(wanted)
    for shard in result.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), wanted[places[shard.device]])


def along_a_ring(before: Any, after: Any, limit: int | None = None) -> rs.Plan:
    """A plan of one step, in which pieces are handed on along a ring of 8."""
    reshard = Reshard.of(sharding(CUBE, *before), sharding(CUBE, *after), SHAPE, "float32")
    step = Step(reshard, ring=Digit(1, 8), chunks=1 if limit is None else 2)
    return rs.Plan(reshard, (step,), Options(memory_limit=limit))


TORUS = rs.Network(tuple(rs.network.Level(stride, size, "ring", 1, 0) for stride, size in ((1, 4), (4, 2))))
AROUND_8 = rs.Network((rs.network.Level(1, 8, "ring", 1, 0),))
AROUND = {
    "in another order": ((("a", "b"), None), (("b", "a"), None)),
    "through devices that lack none of it": ((("b", "c"), "a"), (("a", "c"), None)),
    "moved": ((None, ("a", "c")), ("c", "b")),
    "changed places": (("a", None), ("b", None)),
    "gathered": ((None, "c"), (None, None)),
}


@pytest.mark.parametrize("name", AROUND)
def test_pieces_are_handed_on_along_a_ring(name: str) -> None:
    plan, array = along_a_ring(*AROUND[name]), ARRAY.astype(np.float32)
    limited, namespace = along_a_ring(*AROUND[name], 1 << 30), dict[str, Any]()
    for given in (plan, limited):
        assert_holds(run(given, array), plan.target, array)
        assert_holds(jax.jit(lambda x, given=given: run(given, x))(array), plan.target, array)
    x = jax.device_put(array, named_sharding_of(plan.source, EXPLICIT[CUBE]))
    sent = collectives(jax.jit(lambda x: run(plan, x)).lower(x).compile().as_text(), 8)
    assert {one.kind for one in sent} == {"collective-permute"}
    assert received_bytes(sent, 8) == plan.steps[0].all_received_bytes().tolist()
    exec(plan.to_code("jax"), namespace)
    assert_holds(jax.jit(lambda x: namespace["reshard"](x, EXPLICIT[CUBE]))(x), plan.target, array)


def test_devices_of_two_rings_change_places() -> None:
    torus = rs.Mesh.of(x=3, y=3)
    reshard = Reshard.of(sharding(torus, "x", "y"), sharding(torus, "y", "x"), SHAPE, "float32")
    step = Step(reshard, ring=Digit(3, 3), across=Digit(1, 3))
    plan, array = rs.Plan(reshard, (step,), Options()), ARRAY.astype(np.float32)
    limited, namespace = replace(plan, options=Options(memory_limit=1 << 30)), dict[str, Any]()
    for given in (plan, replace(plan, parts=2), limited):
        assert_holds(jax.jit(lambda x, given=given: run(given, x))(array), plan.target, array)
    explicit = (AxisType.Explicit,) * 2
    devices = jax.make_mesh((3, 3), ("x", "y"), axis_types=explicit, devices=jax.devices()[:9])
    x = jax.device_put(array, named_sharding_of(plan.source, devices))
    exec(code_of(plan), namespace)
    assert_holds(jax.jit(lambda x: namespace["reshard"](x, devices))(x), plan.target, array)
    sent = collectives(jax.jit(lambda x: run(plan, x)).lower(x).compile().as_text(), 9)
    assert {one.kind for one in sent} == {"collective-permute"}
    assert received_bytes(sent, 9) == step.all_received_bytes().tolist()
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: (run(plan, x) ** 2).sum()))(array), 2 * array)


@pytest.mark.parametrize("plan", [two_rings_in_blocks((21, 18)), plan_that_keeps_blocks(258)], ids=["changed", "kept"])
def test_what_lies_in_blocks_goes_along_rings(plan: rs.Plan) -> None:
    array = np.arange(plan.shape[0] * plan.shape[1], dtype=plan.dtype.name).reshape(plan.shape)
    assert_holds(jax.jit(lambda x: run(plan, x))(array), plan.target, array)


@pytest.mark.parametrize(("before", "after"), [(("a", "b"), (None, "b")), (("b", "a"), (None, None))], ids=str)
def test_axes_need_not_nest_in_hosts(before: Any, after: Any) -> None:
    mesh, array = rs.Mesh.of(a=3, b=4), np.arange(36 * 48, dtype=np.float32).reshape(36, 48)
    levels = rs.network.Level(1, 6, "switch", 9, 0), rs.network.Level(6, 2, "switch", 1, 0)
    plan = rs.plan(sharding(mesh, *before), sharding(mesh, *after), array.shape, "float32", network=rs.Network(levels))
    assert "host" in plan.steps[0].after.mesh.sizes
    explicit = (AxisType.Explicit,) * 2
    devices = jax.make_mesh((3, 4), ("a", "b"), axis_types=explicit, devices=jax.devices()[:12])
    x, namespace = jax.device_put(array, named_sharding_of(plan.source, devices)), dict[str, Any]()
    assert_holds(jax.jit(lambda x: run(plan, x))(x), plan.target, array)
    exec(code_of(plan), namespace)
    assert_holds(jax.jit(lambda x: namespace["reshard"](x, devices))(x), plan.target, array)


def test_ends_whose_meshes_have_no_axes_in_common_are_refused() -> None:
    """Axis q is every third device of six, which no axes of the other mesh are, though one has its size."""
    other = rs.Mesh.of(p=4, q=2, r=3)
    for mesh in (rs.Mesh.of(a=2, b=2, c=3, d=2), rs.Mesh.of(x=2, y=2, z=3, w=2)):
        plan = rs.plan(sharding(mesh, mesh.axes[0][0], None), sharding(other, None, "q"), (8, 8), "float32")
        with pytest.raises(rs.ReshardError, match="on one mesh") as refused:
            run(plan, np.ones((8, 8), np.float32))
        assert refused.value.code == "cannot-express"


def test_the_gradient_and_a_batch_of_what_is_handed_on() -> None:
    plan, array = along_a_ring(*AROUND["moved"]), ARRAY.astype(np.float32)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: (run(plan, x) ** 2).sum()))(array), 2 * array)
    many = np.stack([array, array + 1])
    np.testing.assert_array_equal(jax.jit(jax.vmap(lambda x: run(plan, x)))(many), many)


def test_what_is_handed_on_in_parts_and_in_shares() -> None:
    """Parts of which some go along the ring, and others straight to their receivers."""
    plan, array = along_a_ring(*AROUND["moved"]), ARRAY.astype(np.float32)
    direct = Share((Step(plan.reshard),), 1)
    x = jax.device_put(array, named_sharding_of(plan.source, EXPLICIT[CUBE]))
    for beside in ((), (direct,)):
        in_parts = replace(plan, options=Options(network=AROUND_8), parts=3, beside=beside)
        assert_holds(jax.jit(lambda x, plan=in_parts: run(plan, x))(x), plan.target, array)


def test_planned_along_a_ring() -> None:
    """By `reshard`, where the buffers may be given up, too."""
    ends = sharding(CUBE, None, ("a", "b", "c")), sharding(CUBE, "c", None)
    plan, array = rs.plan(*ends, SHAPE, "float32", network=AROUND_8), ARRAY.astype(np.float32)
    assert any(step.ring for step in plan.steps)
    x = jax.device_put(array, named_sharding_of(ends[0], EXPLICIT[CUBE]))
    assert_holds(jax.jit(lambda x: run(plan, x))(x), ends[1], array)
    target = named_sharding_of(ends[1], EXPLICIT[CUBE])
    assert_holds(rs.jax.reshard(x, target, network=AROUND_8, donate=True), ends[1], array)


def test_nothing_is_handed_on_between_two_meshes() -> None:
    ring = along_a_ring(*AROUND["changed places"])
    other = replace(ring.target, mesh=rs.Mesh.of(a=2, b=2, c=2, device_ids=(7, 6, 5, 4, 3, 2, 1, 0)))
    last = Step(replace(ring.reshard, source=ring.target, target=other))
    plan = rs.Plan(replace(ring.reshard, target=other), (*ring.steps, last), Options())
    with pytest.raises(rs.ReshardError, match="handed on inside one program"):
        run(plan, ARRAY.astype(np.float32))


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("more", [{}, rare({"basis": "collectives"}), rare({"memory_limit": 1 << 30})], ids=str)
def test_a_plan_is_run_as_it_is_and_as_code(name: str, more: dict[str, Any]) -> None:
    source, target = ENDS[name]
    plan = rs.plan(source, target, SHAPE, "float32", **more)
    array = ARRAY.astype(np.float32)
    for result in (run(plan, array), jax.jit(lambda x: run(plan, x))(array)):
        assert_holds(result, target, array)
    namespace: dict[str, Any] = {}
    text = plan.to_code("jax")
    assert "reshard." not in text.replace("jax.sharding", "")
    exec(text, namespace)
    mesh = run(plan, array).sharding.mesh
    assert_holds(jax.jit(lambda x: namespace["reshard"](x, mesh))(array), target, array)


@pytest.mark.parametrize("dtype", [*("bfloat16", "bool"), *(rare(name) for name in ("int8", "complex64", "float16"))])
def test_code_and_loops_for_other_dtypes(dtype: str) -> None:
    source, target = ENDS["exchange"]
    array = (ARRAY % 2).astype(jax.numpy.dtype(dtype))
    plan = rs.plan(source, target, SHAPE, dtype, memory_limit=1 << 30)
    assert_holds(jax.jit(lambda x: run(plan, x))(array), target, array)
    namespace: dict[str, Any] = {}
    exec(code_of(plan), namespace)
    x = jax.device_put(array, NamedSharding(EXPLICIT[GRID], P("y", None)))
    assert_holds(namespace["reshard"](x, EXPLICIT[GRID]), target, array)


@pytest.mark.parametrize("more", [rare({}), {"memory_limit": 1 << 30}, {"network": TORUS}], ids=str)
@pytest.mark.parametrize("target", [("x", "y"), rare((None, "x")), (None, None), rare(("y", None))])
@pytest.mark.parametrize("axes", ["y", ("x", "y")])
def test_sums(axes: Any, target: tuple[Any, ...], more: dict[str, Any]) -> None:
    source, goal = sharding(GRID, None, None, unreduced=axes), sharding(GRID, *target)
    plan = rs.plan(source, goal, SHAPE, "float32", **more)
    named = NamedSharding(EXPLICIT[GRID], P(None, None, unreduced={axes} if axes == "y" else set(axes)))
    parts = 4 if axes == "y" else 8
    tile = ARRAY.astype(np.float32)
    x = jax.make_array_from_single_device_arrays(
        SHAPE, named, [jax.device_put(tile, device) for device in EXPLICIT[GRID].devices.flat]
    )
    assert_holds(run(plan, x), goal, parts * tile)
    namespace: dict[str, Any] = {}
    exec(code_of(plan), namespace)
    assert_holds(jax.jit(lambda x: namespace["reshard"](x, EXPLICIT[GRID]))(x), goal, parts * tile)


@pytest.mark.parametrize("more", [{"basis": "collectives"}, {"memory_limit": 1 << 30}], ids=str)
def test_bases_and_limits(more: dict[str, Any]) -> None:
    test_a_plan_is_run_as_it_is_and_as_code("turned", more)


def test_alternatives_and_a_plan_from_json() -> None:
    from reshard.planner import alternatives

    plan = rs.plan(*ENDS["exchange"], SHAPE, "float32")
    ways = alternatives(plan)
    assert ways
    kinds = set()
    for way in (*ways, rs.Plan.from_json(plan.to_json())):
        array = ARRAY.astype(np.float32)
        assert_holds(run(way, array), way.target, array)
        x = jax.ShapeDtypeStruct(SHAPE, np.float32, sharding=named_sharding_of(way.source))
        compiled = jax.jit(lambda x, way=way: run(way, x)).lower(x).compile().as_text()
        kinds.add(tuple(one.kind for one in collectives(compiled, 8)))
    assert len(kinds) > 1, "each way has collectives of its own"


def test_parts_that_overlap() -> None:
    """On hosts of 4: in parts, by way of middles in blocks, with a gradient, and as code; bytes as told."""
    levels = rs.network.Level(1, 4, "switch", 9, 0), rs.network.Level(4, 2, "switch", 1, 0)
    network, array = rs.Network(levels), ARRAY.astype(np.float32)
    pairs = {
        "gathered": (("x", "y"), None, None, None),
        "in blocks": ("x", None, ("y", "x"), None),
        "turned": (("x", "y"), None, ("y", "x"), None),
    }
    for before, beside, after, behind in pairs.values():
        ends = sharding(GRID, before, beside), sharding(GRID, after, behind)
        plan = rs.plan(*ends, SHAPE, "float32", network=network)
        assert plan.parts > 1
        x = jax.device_put(array, named_sharding_of(ends[0], EXPLICIT[GRID]))
        assert_holds(jax.jit(lambda x, plan=plan: run(plan, x))(x), ends[1], array)
    gradient = jax.jit(jax.grad(lambda x: (run(plan, x) ** 2).sum()))(x)
    np.testing.assert_array_equal(gradient, 2 * array)
    namespace: dict[str, Any] = {}
    exec(plan.to_code("jax"), namespace)
    mesh = run(plan, x).sharding.mesh
    assert_holds(jax.jit(lambda x: namespace["reshard"](x, mesh))(x), ends[1], array)


def test_shares_at_once() -> None:
    """On rings of 2 and 4: parts that take other steps, and the program that is written of them."""
    network = rs.Network(tuple(rs.network.Level(1 if size == 4 else 4, size, "ring", 1, 0) for size in (4, 2)))
    array = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
    namespace: dict[str, Any] = {}
    for before, after in ((("x", None), (None, "x")), (("x", "y"), ("y", None))):
        ends = sharding(GRID, *before), sharding(GRID, *after)
        plan = rs.plan(*ends, array.shape, "float32", network=network)
        assert len(plan.shares) > 1
        x = jax.device_put(array, named_sharding_of(ends[0], EXPLICIT[GRID]))
        result = jax.jit(lambda x, plan=plan: run(plan, x))(x)
        assert_holds(result, ends[1], array)
    exec(plan.to_code("jax"), namespace)
    assert_holds(jax.jit(lambda x: namespace["reshard"](x, result.sharding.mesh))(x), ends[1], array)


def test_between_two_meshes() -> None:
    devices = (9, 3, 12, 1)
    source = sharding(GRID, "x", "y")
    for mesh in (rs.Mesh.of(p=2, q=2, device_ids=devices), rs.Mesh.of(x=2, y=4, device_ids=(7, 6, 5, 4, 3, 2, 1, 0))):
        target = sharding(mesh, mesh.axes[1][0], mesh.axes[0][0])
        plan = rs.plan(source, target, SHAPE, "float32")
        assert_holds(run(plan, ARRAY.astype(np.float32)), target, ARRAY.astype(np.float32))
        with pytest.raises(rs.ReshardError, match="run the plan outside"):
            jax.jit(lambda x, plan=plan: run(plan, x))(ARRAY.astype(np.float32))
        limited = rs.plan(source, target, SHAPE, "float32", memory_limit=1 << 20)
        with pytest.raises(rs.ReshardError, match="on one mesh alone"):
            run(limited, ARRAY.astype(np.float32))


def test_its_gradient_and_a_batch() -> None:
    plan = rs.plan(*ENDS["exchange"], SHAPE, "float32")
    array = ARRAY.astype(np.float32)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: (run(plan, x) ** 2).sum()))(array), 2 * array)
    many = np.stack([array, array + 1])
    np.testing.assert_array_equal(jax.jit(jax.vmap(lambda x: run(plan, x)))(many), many)


REFUSED = {
    "another shape": (lambda plan: run(plan, ARRAY.astype(np.float32)[:8]), "bad-argument", "the plan is for"),
    "another dtype": (lambda plan: run(plan, ARRAY.astype(np.int8)), "bad-argument", "the plan is for"),
    "no array": (lambda plan: run(plan, "x"), "bad-argument", "an array or a number is resharded"),
    "no plan": (lambda plan: run(3, ARRAY), "bad-argument", "what is run"),
    "an array that lies elsewhere": (
        lambda plan: run(plan, run(plan, ARRAY.astype(np.float32))),
        "bad-argument",
        "but the array lies as",
    ),
    "a type that says otherwise": (
        lambda plan: jax.jit(lambda x: run(plan, x))(
            jax.device_put(ARRAY.astype(np.float32), NamedSharding(EXPLICIT[GRID], P("x", "y")))
        ),
        "bad-argument",
        "but the type says",
    ),
    "dims that do not divide": (
        lambda _: run(rs.plan(*ENDS["exchange"], (7, 48), "float32"), np.ones((7, 48), np.float32)),
        "not-divisible",
        "is not divisible",
    ),
    "an engine of no name": (lambda plan: plan.to_code("mpi"), "bad-argument", "code is written for jax or torch"),
    "small floats within little memory": (
        lambda _: run(
            rs.plan(
                *ENDS["exchange"], SHAPE, "bfloat16", memory_limit=rs.plan(*ENDS["exchange"], SHAPE, "bf16").peak_bytes
            ),
            ARRAY.astype(jax.numpy.bfloat16),
        ),
        "no-plan",
        "XLA copies tiles of bfloat16",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_run_is_refused(case: str) -> None:
    call, code, words = REFUSED[case]
    with pytest.raises(rs.ReshardError) as caught:
        call(rs.plan(*ENDS["exchange"], SHAPE, "float32"))
    assert caught.value.code == code
    assert words in str(caught.value)


# The peak


def drawn(seed: int, number: int) -> Iterator[rs.Plan]:
    """Plans with limits between the least that would do and what is free."""
    source = random.Random(seed)
    while number:
        mesh = source.choice([GRID, CUBE, ODD])
        names = list(mesh.sizes)

        def end(names: list[str] = names, mesh: rs.Mesh = mesh) -> rs.Sharding:
            source.shuffle(names)
            dims: list[list[str]] = [[], []]
            for name in names:
                place = source.randrange(3)
                if place < 2:
                    dims[place].append(name)
            return sharding(mesh, *(tuple(dim) or None for dim in dims))

        ends = end(), end()
        shape, dtype = (
            source.choice([(192, 384), (96, 960), (480, 96)]),
            source.choice(["float32", "int32", "complex64"]),
        )
        free = rs.plan(*ends, shape, dtype)
        if not free.steps:
            continue
        try:
            rs.plan(*ends, shape, dtype, memory_limit=1)
        except rs.ReshardError as error:
            least = int(str(error).split("needs ")[1].split()[0])
        room = (free.peak_bytes - least) // source.choice([1, 2, 4])
        plan = rs.plan(*ends, shape, dtype, memory_limit=max(least + room, least + (1 << 12)))
        number -= 1
        yield plan


@pytest.mark.parametrize("seed", [pytest.param(n, marks=() if n < 1 else pytest.mark.slow) for n in range(10)])
def test_the_peak_is_no_more_than_is_stated(seed: int) -> None:
    """Of 10 plans each, by XLA's own account: a lone slice has beside it where its device's part begins."""
    for plan in drawn(seed, 10):
        x = jax.ShapeDtypeStruct(plan.shape, plan.dtype.name, sharding=named_sharding_of(plan.source))
        compiled = jax.jit(lambda x, plan=plan: run(plan, x)).lower(x).compile()
        told = compiled.memory_analysis()
        peak = told.argument_size_in_bytes + told.output_size_in_bytes + told.temp_size_in_bytes
        peak -= told.alias_size_in_bytes
        looked_up = 68 if [step.kind for step in plan.steps] == ["Slice"] else 0
        assert peak <= plan.peak_bytes + looked_up, (plan, peak)
        assert plan.peak_bytes <= plan.options.memory_limit


@pytest.mark.parametrize("name", AROUND)
def test_the_peak_along_a_ring(name: str) -> None:
    """What is handed on is in the buffers of a chunk."""
    before, after = (sharding(CUBE, *dims) for dims in AROUND[name])
    step = Step(Reshard.of(before, after, (192, 960), "float32"), ring=Digit(1, 8))
    free, least = step.peak_bytes, step.peak_bytes_in(step.most_chunks)
    plan = within_limit(rs.Plan(step.reshard, (step,), Options(memory_limit=(free + least) // 2)))
    x = jax.ShapeDtypeStruct(plan.shape, np.float32, sharding=named_sharding_of(before))
    told = jax.jit(lambda x: run(plan, x)).lower(x).compile().memory_analysis()
    peak = told.argument_size_in_bytes + told.output_size_in_bytes + told.temp_size_in_bytes
    assert peak - told.alias_size_in_bytes <= plan.peak_bytes <= plan.options.memory_limit < free


def test_chunks_are_what_keeps_the_peak() -> None:
    """The checker of the peak tells a plan in chunks from the same plan in one go."""
    source, target = ENDS["all-to-all"]
    free = rs.plan(source, target, (512, 512), "float32")
    x = jax.ShapeDtypeStruct(free.shape, np.float32, sharding=named_sharding_of(source))
    tight = rs.plan(source, target, (512, 512), "float32", memory_limit=2 * 512 * 64 * 4 + (1 << 12))

    def temporaries(plan: rs.Plan) -> int:
        return jax.jit(lambda x: run(plan, x)).lower(x).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(tight) < 1 << 12 < 512 * 64 * 4 < temporaries(free)
