"""Borders in JAX are those of index arithmetic, and their gradients; nothing but borders is in the compiled program."""

from __future__ import annotations

from typing import Any

import dealt
import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402
from jax_hlo import collectives, received_bytes  # noqa: E402
from test_tiles import drawn_reshard  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.jax.exchange.lowering import run_on_device  # noqa: E402

pytestmark = pytest.mark.engine

P = PartitionSpec
CASES = [
    ((8,), P("x"), (16, 3), {0: (1, 2)}),
    ((8,), P("x"), (16,), {0: (5, 3)}),
    ((4,), P(None, "x"), (3, 8), {1: (2, 0), 0: (1, 1)}),
    ((2, 4), P("y", "x"), (8, 6), {0: (1, 1), 1: (1, 2)}),
    ((2, 4), P(("x", "y")), (16,), {0: (2, 2)}),
    ((2, 4), P(("y", "x")), (8,), {0: (9, 0)}),
    ((2, 4), P("y"), (8, 2), {0: (1, 1)}),
]


def placed(shape: tuple[int, ...], spec: Any, size: tuple[int, ...], axis_type: Any = AxisType.Auto) -> Any:
    """An array of numbers on a mesh."""
    names = ("x", "y")[: len(shape)]
    mesh = jax.make_mesh(shape, names, (axis_type,) * len(shape), devices=jax.devices()[: int(np.prod(shape))])
    return jax.device_put(np.arange(1.0, np.prod(size) + 1).reshape(size), NamedSharding(mesh, spec))


@pytest.mark.parametrize(
    ("mesh", "spec", "size", "widths", "edge"),
    [
        pytest.param(*case, edge, marks=[pytest.mark.slow] if (number + shift) % 2 else [])
        for number, case in enumerate(CASES)
        for shift, edge in enumerate(["wrap", "pad"])
    ],
)
def test_every_device_stores_its_window(mesh: Any, spec: Any, size: Any, widths: Any, edge: str) -> None:
    x = placed(mesh, spec, size)
    sharding = rs.jax.sharding_of(x.sharding, None, x.ndim).with_halo(widths, edge)
    expected = dealt.cut(np.asarray(x), sharding)
    found = rs.jax.halo(x, widths, edge)
    assert found.sharding.is_equivalent_to(x.sharding, x.ndim)
    for shard in found.addressable_shards:
        assert np.array_equal(np.asarray(shard.data), expected[shard.device.id]), shard.device
    weights = np.random.default_rng(0).integers(0, 9, found.shape).astype(x.dtype)
    seen: set[int] = set()
    places = {shard.device.id: shard.index for shard in found.addressable_shards}
    once = {}
    for device, index in places.items():  # replicas of one window count once
        key = hash(str(index))
        once[device] = weights[index] * (key not in seen)
        seen.add(key)
    total = dealt.whole_sum(sharding, size, once)
    placement = x.sharding
    gradient = jax.grad(lambda x: (rs.jax.halo(x, widths, edge, placement) * weights).sum())(x)
    assert np.array_equal(np.asarray(gradient), total)


@pytest.mark.parametrize(("mesh", "spec", "size", "widths"), [CASES[1], CASES[2], CASES[3]])
def test_only_borders_are_in_the_program(mesh: Any, spec: Any, size: Any, widths: Any) -> None:
    x = placed(mesh, spec, size)
    devices = int(np.prod(mesh))
    program = jax.jit(lambda x: rs.jax.halo(x, widths, "wrap", placement))
    placement = x.sharding
    found = collectives(program.lower(x).compile().as_text(), devices)
    assert {one.kind for one in found} <= {"collective-permute"}
    sharding = rs.jax.sharding_of(placement, None, x.ndim)
    plan = rs.plan(sharding, sharding.with_halo(widths, "wrap"), size, "float32")
    assert max(received_bytes(found, devices)) == plan.lower_bound_bytes


UNEVEN = [
    ((8,), P("x"), (29,), {0: (1, 2)}),
    ((8,), P("x"), (5, 2), {0: (2, 1)}),
    ((8,), P("x"), (5,), {0: (7, 2)}),
    ((4, 2), P("x", "y"), (7, 5), {0: (1, 2), 1: (1, 1)}),
    ((2, 4), P(("y", "x"), None), (13, 3), {0: (3, 0), 1: (1, 4)}),
    ((3,), P("x"), (10,), {0: (0, 5)}),
]


@pytest.mark.parametrize(
    ("mesh", "spec", "size", "widths", "edge"),
    [
        pytest.param(*case, edge, marks=[] if (number, edge) in [(0, "clip"), (2, "wrap"), (3, "pad")] else [slow])
        for slow in [pytest.mark.slow]
        for number, case in enumerate(UNEVEN)
        for edge in ["wrap", "pad", "clip"]
    ],
)
def test_uneven_tiles_store_their_windows_and_zeros(mesh: Any, spec: Any, size: Any, widths: Any, edge: str) -> None:
    names, devices = ("x", "y")[: len(mesh)], int(np.prod(mesh))
    placement = NamedSharding(
        jax.make_mesh(mesh, names, (AxisType.Auto,) * len(mesh), devices=jax.devices()[:devices]), spec
    )
    owned = rs.jax.sharding_of(placement, None, len(size))
    sharding, array = owned.with_halo(widths, edge), np.arange(1.0, np.prod(size) + 1).reshape(size)
    expected = dealt.cut(array, sharding)
    fill = jax.jit(lambda x: rs.jax.halo(x, widths, edge, placement))
    found = fill(array)
    weights = np.random.default_rng(0).integers(1, 9, found.shape).astype(found.dtype)
    total, seen = np.zeros(size), set()
    numbers = dealt.cut(np.arange(array.size).reshape(size), sharding)
    for shard in found.addressable_shards:
        window = expected[shard.device.id]
        filled = np.pad(window, [(0, long - own) for long, own in zip(shard.data.shape, window.shape, strict=True)])
        assert np.array_equal(np.asarray(shard.data), filled), shard.device
        if str(shard.index) in seen:
            continue
        seen.add(str(shard.index))
        cut = tuple(slice(0, own) for own in window.shape)
        stored = window != 0  # where the window is padded it has no element
        np.add.at(total.reshape(-1), numbers[shard.device.id][stored], weights[shard.index][cut][stored])
    gradient = jax.jit(jax.grad(lambda x: (rs.jax.halo(x, widths, edge, placement) * weights).sum()))(array)
    assert np.array_equal(np.asarray(gradient), total)
    moved = collectives(fill.lower(array).compile().as_text(), devices)
    assert {one.kind for one in moved} <= {"collective-permute"}
    plan = rs.plan(owned, sharding, size, found.dtype.name)
    assert max(received_bytes(moved, devices)) == plan.lower_bound_bytes


def test_it_works_in_explicit_jit_and_is_refused_where_nothing_is_known() -> None:
    x = placed((8,), P("x"), (16,), AxisType.Explicit)
    with jax.set_mesh(x.sharding.mesh):
        found = jax.jit(lambda x: rs.jax.halo(x, {0: (1, 1)}))(x)
    assert np.array_equal(np.asarray(found), np.asarray(rs.jax.halo(x, {0: (1, 1)})))
    y = placed((8,), P("x"), (16,))
    for make, code in (
        (lambda: jax.jit(lambda y: rs.jax.halo(y, {0: (1, 1)}))(y), "unknown-mesh"),
        (lambda: rs.jax.halo(y, {0: (1, -1)}), "bad-window"),
        (lambda: rs.jax.halo(y, {1: (1, 1)}), "rank-mismatch"),
        (lambda: rs.jax.halo(jnp.ones(3), {0: (1, 1)}), "bad-argument"),
    ):
        with pytest.raises(rs.ReshardError) as refusal:
            make()
        assert refusal.value.code == code


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ('[{zigzag, "x"}, {}]', '[{"x"}, {}]'),
        ('[{"x"}, {}]', '[{}, {"x"}]'),
        ('[{}, {"x"}]', '[{zigzag, "x"}, {}]'),
        ('[{blocks(2), "x"}, {}]', '[{parts(4), "x"}, {}]'),
    ],
)
def test_tiles_of_several_boxes_side_by_side(source: str, target: str) -> None:
    mesh, shape = rs.Mesh.of(x=4), (32, 8)
    ends = [rs.parse_sharding(text, mesh) for text in (source, target)]
    array = np.arange(1.0, 257.0).reshape(shape).astype(np.float32)
    stacked = [side_by_side(dealt.cut(array, end), end) for end in ends]
    found = rs.jax.reshard_tiles(stacked[0], *ends)
    assert np.array_equal(np.asarray(found), stacked[1])
    gradient = jax.grad(lambda x: (rs.jax.reshard_tiles(x, *ends) * stacked[1]).sum())(stacked[0])
    assert np.array_equal(np.asarray(gradient), stacked[0])
    program = jax.jit(lambda x: rs.jax.reshard_tiles(x, *ends)).lower(stacked[0]).compile()
    received = received_bytes(collectives(program.as_text(), 4), 4)
    assert max(received) == rs.plan(*ends, shape, "float32").lower_bound_bytes


def side_by_side(tiles: dict[int, Any], sharding: rs.Sharding) -> Any:
    """Tiles in the order of the devices along the dim that is cut."""
    return np.concatenate(list(tiles.values()), axis=next(n for n, dim in enumerate(sharding.dims) if dim.axes))


def test_uneven_tiles_are_not_side_by_side() -> None:
    zigzag = rs.parse_sharding('[{zigzag, "x"}]', rs.Mesh.of(x=4))
    with pytest.raises(rs.ReshardError, match=r'the source \[\{zigzag, "x"\}\] cuts shape \(9,\) into uneven tiles'):
        rs.jax.reshard_tiles(jnp.ones(9), zigzag, zigzag)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 60, 120])
def test_drawn_tiles_of_several_boxes_and_windows(first: int) -> None:
    done = 0
    for seed in range(first, first + 60):
        source, target, shape = drawn_reshard(seed)
        plan = rs.plan(source, target, shape, "float32")
        if source.mesh != target.mesh or 0 in shape or not plan.steps:
            continue
        names, devices = tuple(source.mesh.sizes), source.mesh.device_array.tolist()
        grid = np.array(jax.devices()[: len(devices)]).reshape(tuple(source.mesh.sizes.values()))
        array = np.arange(1.0, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
        held, expected = dealt.cut(array, source), dealt.cut(array, target)
        tiles = np.zeros((len(devices), *source.local_shape(shape)), np.float32)
        for number, device in enumerate(devices):
            tiles[(number, *map(slice, held[device].shape))] = np.maximum(held[device], 0)

        def moved(x: Any, plan: rs.Plan = plan, names: tuple[str, ...] = names) -> Any:
            return run_on_device(plan, names, x[0])[None]

        on_mesh = jax.shard_map(
            moved, mesh=jax.sharding.Mesh(grid, names), in_specs=P(names), out_specs=P(names), check_vma=False
        )
        found = np.asarray(jax.jit(on_mesh)(tiles))
        for number, device in enumerate(devices):
            stored = found[(number, *map(slice, expected[device].shape))]
            inside = expected[device] > 0  # what is padded is anything
            assert np.array_equal(stored[inside], expected[device][inside]), f"seed {seed}: device {device}"
        done += 1
    assert done > 20
