"""What JAX's own calls take, `reshard` takes: odd arrays, odd targets, odd places to be called from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.experimental.layout import Format, Layout  # noqa: E402
from jax.extend.core import jaxpr_as_fun  # noqa: E402
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_hlo import collectives, received_bytes  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.jax import reshard  # noqa: E402

pytestmark = pytest.mark.engine

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
ARRAY = np.arange(64, dtype=np.float32).reshape(8, 8)
HEADS = np.arange(2 * 16 * 4 * 32, dtype=np.float32).reshape(2, 16, 4, 32)


def mesh_of_types(*types: AxisType, sizes: tuple[int, int] = (2, 4)) -> Any:
    devices = jax.devices()[: sizes[0] * sizes[1]]
    return jax.make_mesh(sizes, ("x", "y"), axis_types=types, devices=devices)


AUTO_MESH, EXPLICIT_MESH, MIXED_MESH = (
    mesh_of_types(*types) for types in ((AUTO, AUTO), (EXPLICIT, EXPLICIT), (EXPLICIT, AUTO))
)
LINE = jax.make_mesh((8,), ("tp",), axis_types=(AUTO,), devices=jax.devices()[:8])


def on(mesh: Any, *spec: Any, **more: Any) -> NamedSharding:
    return NamedSharding(mesh, P(*spec), **more)


def put(mesh: Any, *spec: Any, array: Any = ARRAY) -> Any:
    return jax.device_put(array, on(mesh, *spec))


def assert_holds(result: Any, target: NamedSharding, values: Any) -> None:
    """Device by device, against NumPy's slices."""
    assert result.sharding.is_equivalent_to(target, result.ndim), result.sharding
    for shard in result.addressable_shards:
        wanted = values[target.devices_indices_map(values.shape)[shard.device]]
        np.testing.assert_array_equal(np.asarray(shard.data), wanted)


def moved(function: Callable[..., Any], *arguments: Any) -> int:
    """Bytes that the busiest device receives in the compiled program."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    return max(received_bytes(collectives(text, 8), 8))


@pytest.mark.parametrize("mesh", [AUTO_MESH, EXPLICIT_MESH], ids=["auto", "explicit"])
@pytest.mark.parametrize("committed", [False, True])
def test_an_array_that_a_function_closes_over_is_a_constant(mesh: Any, committed: bool) -> None:
    table = put(mesh, "y") if committed else jnp.asarray(ARRAY)
    with jax.set_mesh(mesh):
        assert_holds(jax.jit(lambda: reshard(table, P("x", "y")))(), on(mesh, "x", "y"), ARRAY)
        assert moved(lambda: reshard(table, P("x", "y"))) == 0
    assert_holds(jax.jit(lambda: reshard(jnp.asarray(ARRAY), on(mesh, "x")))(), on(mesh, "x"), ARRAY)


def test_a_table_in_the_middle_of_a_gradient_and_a_scan() -> None:
    table = jnp.asarray(ARRAY)

    def loss(x: Any) -> Any:
        return (x * reshard(table, on(AUTO_MESH, "x", "y"))).sum()

    assert_holds(jax.jit(jax.grad(loss))(put(AUTO_MESH, "x", "y")), on(AUTO_MESH, "x", "y"), ARRAY)
    turns = jax.jit(lambda x: jax.lax.scan(lambda c, _: (c + reshard(table, on(AUTO_MESH, "x")), None), x, None, 3)[0])
    np.testing.assert_array_equal(turns(put(AUTO_MESH, "x")), 4 * ARRAY)


@pytest.mark.parametrize("size", [1, 4, 7, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 5, 9, 13))])
@pytest.mark.parametrize("said", [False, True])
def test_dims_that_their_shards_do_not_divide(size: int, said: bool) -> None:
    array = np.arange(8.0 * size, dtype=np.float32).reshape(8, size)
    x = put(AUTO_MESH, "x", array=array)
    source = on(AUTO_MESH, "x") if said else None

    def function(x: Any) -> Any:
        y = reshard(x * 2, on(AUTO_MESH, None, ("y", "x")), source)
        return y + 1, y.sum(1)

    result, sums = jax.jit(function)(x)
    np.testing.assert_array_equal(result, 2 * array + 1)
    np.testing.assert_array_equal(sums, 2 * array.sum(1))
    slope = jax.jit(jax.grad(lambda x: (reshard(x, on(AUTO_MESH, None, "y"), source) ** 2).sum()))(x)
    np.testing.assert_array_equal(slope, 2 * array)


def test_fewer_heads_than_devices() -> None:
    def function(k: Any) -> Any:
        return reshard(k * 2, on(LINE, None, None, "tp", None)).sum((1, 2))

    np.testing.assert_allclose(jax.jit(function)(HEADS), 2 * HEADS.sum((1, 2)), rtol=1e-6)
    text = jax.jit(lambda k: reshard(k, on(LINE, None, None, "tp")) * 2).lower(HEADS).compile().as_text()
    assert "f32[2,16,1,32]" in text, "no device computes more than one head"


def test_a_dim_that_is_left_to_xla() -> None:
    x, open_rows = put(AUTO_MESH, "x", "y"), P(P.UNCONSTRAINED, None)
    for source in (None, on(AUTO_MESH, "x", "y")):
        result = jax.jit(lambda x, s=source: reshard(x, on(AUTO_MESH, *open_rows), s))(x)
        assert_holds(result, on(AUTO_MESH, "x"), ARRAY)
        assert moved(lambda x, s=source: reshard(x, on(AUTO_MESH, *open_rows), s), x) == 4 * 8 * 4 - 4 * 2 * 4
    assert_holds(reshard(x, on(AUTO_MESH, *open_rows)), on(AUTO_MESH, "x"), ARRAY)
    assert_holds(reshard(x, P(P.UNCONSTRAINED, "x")), on(AUTO_MESH, None, "x"), ARRAY)
    assert_holds(reshard(put(EXPLICIT_MESH, "x", "y"), P(P.UNCONSTRAINED)), on(EXPLICIT_MESH, "x"), ARRAY)


def test_none_among_the_leaves() -> None:
    result = reshard([put(AUTO_MESH, "x"), None], on(AUTO_MESH, "y"))
    assert_holds(result[0], on(AUTO_MESH, "y"), ARRAY)
    assert result[1] is None
    same = reshard({"a": put(AUTO_MESH, "x"), "b": None}, {"a": on(AUTO_MESH, "y"), "b": None})
    assert same["b"] is None
    with pytest.raises(rs.ReshardError, match="the target of a reshard must be"):
        reshard([put(AUTO_MESH, "x")], [None])


@pytest.mark.parametrize("mesh", [AUTO_MESH, EXPLICIT_MESH], ids=["auto", "explicit"])
def test_keys(mesh: Any) -> None:
    keys = jax.random.split(jax.random.key(0), (8, 4))
    x = jax.device_put(keys, on(mesh, "y"))
    target = on(mesh, "x", "y")
    with jax.set_mesh(mesh):
        results = [reshard(x, target), jax.jit(lambda x: reshard(x, target))(x)]
    results.append(reshard(x, rs.jax.sharding_of(target, ndim=2)))
    for result in results:
        assert result.dtype == keys.dtype
        assert result.sharding.is_equivalent_to(target, 2)
        for shard in result.addressable_shards:
            index = target.devices_indices_map(keys.shape)[shard.device]
            np.testing.assert_array_equal(jax.random.key_data(shard.data), jax.random.key_data(keys)[index])


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize("mesh", [AUTO_MESH, EXPLICIT_MESH], ids=["auto", "explicit"])
def test_integers_of_less_than_a_byte(mesh: Any, name: str) -> None:
    array = jnp.asarray(ARRAY.astype(np.int8) % 2).astype(name)
    x = jax.device_put(array, on(mesh, "y"))
    for result in (reshard(x, on(mesh, "x", "y")), jax.jit(lambda x: reshard(x, on(mesh, "x", "y")))(x)):
        assert result.dtype == array.dtype
        assert_holds(result, on(mesh, "x", "y"), np.asarray(array))


@pytest.mark.parametrize("source", [(), ("x", "y"), ("y",), (("y", "x"),)])
@pytest.mark.parametrize("target", [(), ("x", "y"), (None, "y"), ("y", "x"), (("x", "y"),)])
def test_axes_of_both_kinds(source: tuple[Any, ...], target: tuple[Any, ...]) -> None:
    x, goal = put(MIXED_MESH, *source), on(MIXED_MESH, *target)
    with jax.set_mesh(MIXED_MESH):
        result = jax.jit(lambda x: reshard(x * 2, goal))(x)
    assert_holds(result, goal, 2 * ARRAY)


def test_a_gradient_over_axes_of_both_kinds() -> None:
    x = put(MIXED_MESH, "x", "y")
    with jax.set_mesh(MIXED_MESH):
        slope = jax.jit(jax.grad(lambda x: (reshard(x, P("y", "x")) ** 2).sum()))(x)
    np.testing.assert_array_equal(slope, 2 * ARRAY)


@pytest.mark.parametrize("mesh", [AUTO_MESH, EXPLICIT_MESH], ids=["auto", "explicit"])
@pytest.mark.parametrize("said", [False, True])
def test_inside_a_shard_map_over_some_axes(mesh: Any, said: bool) -> None:
    x = put(mesh, "x", "y")

    def body(tile: Any) -> Any:
        assert tile.shape == (4, 8)
        return reshard(tile * 2, P("y", None), P(None, "y") if said else None) + 1

    with jax.set_mesh(mesh):
        inner = jax.shard_map(body, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
        result = jax.jit(inner)(x)
        assert_holds(result, on(mesh, ("x", "y")), 2 * ARRAY + 1)
        if said or mesh is EXPLICIT_MESH:  # of a tile of 1 x 8 a device has a quarter
            found = collectives(jax.jit(inner).lower(x).compile().as_text(), 8)  # JAX gathers around such a shard_map
            assert [max(received_bytes([one], 8)) for one in found if one.kind == "all-to-all"] == [3 * 2 * 4]
        outer = jax.shard_map(lambda t: reshard(t, P("x")), in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
        with pytest.raises(rs.ReshardError, match='over axis "x" a device sees its own tile alone'):
            jax.jit(outer)(x)


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_under_the_older_way_to_set_a_mesh() -> None:
    with AUTO_MESH:
        assert_holds(jax.jit(lambda x: reshard(x, P("x", "y")))(ARRAY), on(AUTO_MESH, "x", "y"), ARRAY)
        assert_holds(reshard(ARRAY, P("x", "y")), on(AUTO_MESH, "x", "y"), ARRAY)


@pytest.mark.parametrize("place", [0, 3, 11])
def test_to_one_device(place: int) -> None:
    device = jax.devices()[place]
    result = reshard(put(AUTO_MESH, "x", "y"), SingleDeviceSharding(device))
    assert result.sharding == SingleDeviceSharding(device)
    np.testing.assert_array_equal(result, ARRAY)
    assert reshard(ARRAY, SingleDeviceSharding(device)).sharding == SingleDeviceSharding(device)


def test_an_order_of_memory() -> None:
    target = Format(Layout((1, 0)), on(AUTO_MESH, "y"))
    x = put(AUTO_MESH, "x", "y")
    result = reshard(x, target)
    assert result.format.layout.major_to_minor == (1, 0)
    assert_holds(result, on(AUTO_MESH, "y"), ARRAY)
    assert_holds(jax.jit(lambda x: reshard(x, target))(x), on(AUTO_MESH, "y"), ARRAY)
    with pytest.raises(rs.ReshardError, match="must say where"):
        reshard(x, Format())


@pytest.mark.parametrize("mesh", [AUTO_MESH, EXPLICIT_MESH], ids=["auto", "explicit"])
def test_the_kind_of_memory_is_kept(mesh: Any) -> None:
    target = on(mesh, "y", memory_kind="pinned_host")
    for result in (
        jax.jit(lambda x: reshard(x, target))(put(mesh, "x", "y")),
        reshard(put(mesh, "x", "y"), target),
    ):
        assert result.sharding.memory_kind == "pinned_host"
        assert_holds(result, target, ARRAY)


def test_a_switch_of_axis_types_inside() -> None:
    mesh = mesh_of_types(EXPLICIT, EXPLICIT, sizes=(2, 2))
    auto, x = mesh.abstract_mesh.update_axis_types({"x": AUTO, "y": AUTO}), put(mesh, "x", "y")

    def function(x: Any) -> Any:
        y = x * 2
        with jax.sharding.use_abstract_mesh(auto):
            y = reshard(y, P(None, None))
            z = y @ y.T
        return reshard(z, P("x", None))

    with jax.set_mesh(mesh):
        jitted = jax.jit(function)
        evaluated = jaxpr_as_fun(jitted.trace(x).jaxpr)
        for result in (jitted(x), evaluated(x)[0], jax.jit(evaluated)(x)[0]):
            assert_holds(result, on(mesh, "x"), 4 * ARRAY @ ARRAY.T)


@pytest.mark.parametrize("mesh", [AUTO_MESH, EXPLICIT_MESH], ids=["auto", "explicit"])
def test_without_jit(mesh: Any) -> None:
    x = put(mesh, "x", "y")
    with jax.disable_jit():
        assert_holds(reshard(x, on(mesh, "y")), on(mesh, "y"), ARRAY)
        assert_holds(jax.jit(lambda x: reshard(x, on(mesh, "y")))(x), on(mesh, "y"), ARRAY)


def test_a_pytree_is_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {number: put(AUTO_MESH, "x", array=np.full((8, 4 * number), number, np.float32)) for number in range(1, 6)}
    compiled: list[Any] = []
    monkeypatch.setattr(
        "reshard.jax.exchange.primitive.jax.jit", lambda *a, jit=jax.jit, **k: compiled.append(a) or jit(*a, **k)
    )
    result = reshard(tree, on(AUTO_MESH, None, "y"))
    assert len(compiled) == 1
    for number, array in result.items():
        assert_holds(array, on(AUTO_MESH, None, "y"), np.full((8, 4 * number), number, np.float32))


def test_what_is_donated_is_gone() -> None:
    kept, given = (put(AUTO_MESH, "x", "y", array=ARRAY + number) for number in range(2))
    assert_holds(reshard(kept, on(AUTO_MESH, "y", "x")), on(AUTO_MESH, "y", "x"), ARRAY)
    assert not kept.is_deleted()
    assert_holds(reshard(given, on(AUTO_MESH, "y", "x"), donate=True), on(AUTO_MESH, "y", "x"), ARRAY + 1)
    assert given.is_deleted()
    with pytest.raises(rs.ReshardError, match="donate"):
        reshard(kept, on(AUTO_MESH, "y"), donate=1)
