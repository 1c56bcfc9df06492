"""JAX's own `reshard`, `with_sharding_constraint` and `device_put` with plans under them: what they give and move.

Every case is what JAX gives without plans: values on every device, sharding, type and derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import device_put  # noqa: E402  # imported before anything is patched
from jax.experimental.layout import Format, Layout  # noqa: E402
from jax.lax import with_sharding_constraint as constrained  # noqa: E402
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax.sharding import reshard as own_reshard  # noqa: E402
from jax_hlo import collectives, received_bytes  # noqa: E402

from reshard.jax import patched  # noqa: E402

pytestmark = pytest.mark.engine

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
ARRAY = np.arange(144, dtype=np.float32).reshape(12, 12)


def mesh_of(kind: AxisType, *sizes: int, first: int = 0) -> Any:
    count = int(np.prod(sizes))
    names = ("x", "y", "z")[: len(sizes)]
    return jax.make_mesh(sizes, names, axis_types=(kind,) * len(sizes), devices=jax.devices()[first : first + count])


AUTO_MESH, EXPLICIT_MESH = mesh_of(AUTO, 2, 3), mesh_of(EXPLICIT, 2, 3)
SPECS = {
    "whole": P(None, None),
    "rows": P("x", None),
    "columns": P(None, "y"),
    "both": P("x", "y"),
    "turned": P("y", "x"),
    "all rows": P(("x", "y"), None),
    "all columns": P(None, ("y", "x")),
}
PAIRS = [(a, b) for a in SPECS for b in SPECS if a != b]
SAMPLED = [pytest.param(*pair, marks=() if place % 4 == 1 else pytest.mark.slow) for place, pair in enumerate(PAIRS)]


def on(mesh: Any, spec: P, **more: Any) -> NamedSharding:
    return NamedSharding(mesh, spec, **more)


def put(mesh: Any, spec: P, array: Any = ARRAY) -> Any:
    return device_put(array, on(mesh, spec))


def assert_same(result: Any, wanted: Any) -> None:
    """Of one sharding and type, and on every device the same."""
    assert result.sharding == wanted.sharding
    assert jax.typeof(result) == jax.typeof(wanted)
    assert result.committed == wanted.committed
    for mine, own in zip(result.addressable_shards, wanted.addressable_shards, strict=True):
        assert (mine.device, mine.index) == (own.device, own.index)
        np.testing.assert_array_equal(np.asarray(mine.data), np.asarray(own.data))


def most_received(function: Any, x: Any) -> int:
    return max(received_bytes(collectives(function.lower(x).compile().as_text(), 6), 6))


def lacking(source: str, target: str) -> int:
    """The bytes that the busiest of the six devices needs and does not hold, by index arithmetic."""
    maps = [on(AUTO_MESH, SPECS[name]).devices_indices_map(ARRAY.shape) for name in (source, target)]
    most = 0
    for device in maps[0]:
        held, needed = (np.zeros(ARRAY.shape, bool) for _ in maps)
        held[maps[0][device]], needed[maps[1][device]] = True, True
        most = max(most, int((needed & ~held).sum()) * 4)
    return most


# Programs


@pytest.mark.parametrize(("source", "target"), SAMPLED)
def test_reshard_in_a_program(source: str, target: str) -> None:
    x, goal = put(EXPLICIT_MESH, SPECS[source]), on(EXPLICIT_MESH, SPECS[target])
    function = jax.jit(lambda x: own_reshard(x, goal))
    wanted, before = function(x), most_received(function, x)  # compiled before
    with patched() as patches:
        assert_same(function(x), wanted)
        assert most_received(function, x) == lacking(source, target)
    assert patches.planned > 0
    assert not patches.handed_back
    assert most_received(function, x) == before, "and JAX's own program is there again"


@pytest.mark.parametrize(("source", "target"), SAMPLED)
def test_a_constraint_in_a_program(source: str, target: str) -> None:
    x, goal = put(AUTO_MESH, SPECS[source]), on(AUTO_MESH, SPECS[target])
    function = jax.jit(lambda x: constrained(x, goal), out_shardings=goal)
    wanted = function(x)
    with patched() as patches:
        assert_same(function(x), wanted)
        assert most_received(function, x) == lacking(source, target)
    assert patches.planned > 0
    assert not patches.handed_back


# Arrays that are there

EAGER: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "reshard": (EXPLICIT_MESH, own_reshard),
    "constraint": (AUTO_MESH, constrained),
    "device_put": (AUTO_MESH, device_put),
    "device_put, typed": (EXPLICIT_MESH, device_put),
}


@pytest.mark.parametrize(("source", "target"), PAIRS[::9])
@pytest.mark.parametrize("name", EAGER)
def test_arrays_that_are_there(name: str, source: str, target: str) -> None:
    mesh, call = EAGER[name]
    x, goal = put(mesh, SPECS[source]), on(mesh, SPECS[target])
    wanted = call(x, goal)
    with patched() as patches:
        assert_same(call(x, goal), wanted)
    assert (patches.planned, patches.handed_back) == (1, {})


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize(
    "case", ["other devices", "more devices", "another order", "one device", "a device", "other axes", "format"]
)
def test_device_put_to_anywhere(case: str, typed: bool) -> None:
    kind = EXPLICIT if typed else AUTO
    x = put(EXPLICIT_MESH if typed else AUTO_MESH, SPECS["both"])
    reverse = jax.sharding.Mesh(np.array(jax.devices()[:6])[::-1].reshape(2, 3), ("x", "y"), axis_types=(kind,) * 2)
    target = {
        "other devices": on(mesh_of(kind, 2, 2, first=3), P("y", "x")),
        "more devices": on(mesh_of(kind, 4, 3), P("y", "x")),
        "another order": on(reverse, P("x", "y")),
        "one device": SingleDeviceSharding(jax.devices()[7]),
        "a device": jax.devices()[2],
        "other axes": on(mesh_of(kind, 3, 2), P("x", "y")),
        "format": Format(Layout((1, 0)), on(AUTO_MESH, SPECS["turned"])),
    }[case]
    wanted = device_put(x, target)
    with patched():
        result = device_put(x, target)
    assert_same(result, wanted)
    assert result.format == wanted.format


def test_device_put_of_trees_copies_and_donations() -> None:
    tree = {"a": put(AUTO_MESH, SPECS["both"]), "b": [ARRAY, 3.0, put(AUTO_MESH, SPECS["rows"])]}
    goal = on(AUTO_MESH, P())
    wanted = device_put(tree, goal)
    with patched():
        jax.tree.map(assert_same, device_put(tree, goal), wanted)
        jax.tree.map(
            assert_same, device_put({"a": tree["a"]}, {"a": on(AUTO_MESH, P("y"))}), {"a": put(AUTO_MESH, P("y"))}
        )
        for spec in (SPECS["turned"], SPECS["columns"], SPECS["whole"]):
            given = put(AUTO_MESH, SPECS["both"])
            moved = device_put(given, on(AUTO_MESH, spec), donate=True)
            assert_same(moved, put(AUTO_MESH, spec))
            assert given.is_deleted()


# What surrounds a call

ROUND: dict[str, Callable[[Any, Any], Callable[[Any], Any]]] = {
    "derivative": lambda move, _: jax.grad(lambda x: (move(x) ** 2).sum()),
    "second derivative": lambda move, _: jax.grad(lambda x: jax.grad(lambda x: (move(x) ** 3).sum())(x).sum()),
    "jvp": lambda move, _: lambda x: jax.jvp(move, (x,), (x,))[1],
    "loop": lambda move, back: lambda x: jax.lax.scan(lambda c, _: (back(move(c)) + 1, None), x, None, length=3)[0],
    "choice": lambda move, _: lambda x: jax.lax.cond(x.sum() > 0, move, lambda x: move(x + 1), x),
    "remat": lambda move, _: jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(move(x)))(x).sum()),
    "nested jit": lambda move, _: lambda x: jax.jit(move)(x * 2),
    "custom derivative": lambda move, _: jax.grad(lambda x: _doubled(move(x)).sum()),
    "there and back": lambda move, back: lambda x: back(move(x) * 2) + x,
    "while": lambda move, back: lambda x: jax.lax.while_loop(lambda c: c.sum() < 1e5, lambda c: back(move(c)) * 2, x),
}


@jax.custom_jvp
def _doubled(x: Any) -> Any:
    return 2 * x


@_doubled.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return 2 * primals[0], 3 * tangents[0]


CALLS = {"explicit": (EXPLICIT_MESH, own_reshard), "auto": (AUTO_MESH, constrained)}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("name", ROUND)
def test_transformations(name: str, kind: str) -> None:
    mesh, call = CALLS[kind]
    x, target, source = put(mesh, SPECS["both"]), on(mesh, SPECS["turned"]), on(mesh, SPECS["both"])
    function = jax.jit(ROUND[name](lambda x: call(x, target), lambda x: call(x, source)))
    with jax.set_mesh(mesh):
        wanted = function(x)
    with jax.set_mesh(mesh), patched() as patches:
        result = function(x)
        assert patches.planned > 0
    np.testing.assert_allclose(np.asarray(result), np.asarray(wanted), rtol=1e-5)
    if kind == "explicit":
        assert_same(result, wanted)


@pytest.mark.parametrize("kind", CALLS)
def test_batches(kind: str) -> None:
    mesh, call = CALLS[kind]
    many = np.stack([ARRAY, ARRAY + 1])
    x = device_put(many, on(mesh, P(None, "x", "y")))
    function = jax.jit(jax.vmap(lambda x: call(x, on(mesh, SPECS["turned"]))))
    wanted = function(x)
    with patched():
        np.testing.assert_array_equal(np.asarray(function(x)), np.asarray(wanted))


ODD_VALUES = {
    "keys": jax.random.split(jax.random.key(0), (12, 12)),
    "int4": jnp.asarray(ARRAY % 7).astype(jnp.int4),
    "bool": jnp.asarray(ARRAY % 2 == 0),
    "bfloat16": jnp.asarray(ARRAY).astype(jnp.bfloat16),
    "complex": jnp.asarray(ARRAY + 1j),
}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("name", ODD_VALUES)
def test_values_of_other_kinds(name: str, kind: str) -> None:
    mesh, call = CALLS[kind]
    x, goal = put(mesh, SPECS["both"], ODD_VALUES[name]), on(mesh, SPECS["turned"])
    function = jax.jit(lambda x: call(x, goal), out_shardings=goal)
    wanted = function(x)
    with patched():
        result = function(x)
    assert result.sharding == wanted.sharding
    assert result.dtype == wanted.dtype
    read = jax.random.key_data if name == "keys" else np.asarray
    np.testing.assert_array_equal(read(result), read(wanted))


# What is left to JAX, and what is refused


def test_open_dims_and_uneven_ones() -> None:
    x = put(AUTO_MESH, SPECS["both"])
    for spec in (P(P.UNCONSTRAINED, "y"), P(None, P.UNCONSTRAINED)):
        function = jax.jit(lambda x, spec=spec: constrained(x * 2, on(AUTO_MESH, spec)))
        wanted = np.asarray(function(x))
        with patched():
            np.testing.assert_array_equal(np.asarray(function(x)), wanted)
    uneven = jax.jit(lambda x: constrained(x[:, :5], on(AUTO_MESH, P("x", "y"))).sum(0))
    wanted = np.asarray(uneven(x))
    with patched():
        np.testing.assert_array_equal(np.asarray(uneven(x)), wanted)


def test_inside_a_shard_map_over_some_axes() -> None:
    x = put(AUTO_MESH, SPECS["both"])
    with jax.set_mesh(AUTO_MESH):
        inner = jax.shard_map(
            lambda tile: constrained(tile * 2, P("y", None)), in_specs=P("x"), out_specs=P("x"), axis_names={"x"}
        )
        function = jax.jit(inner)
        wanted = np.asarray(function(x))
        with patched() as patches:
            np.testing.assert_array_equal(np.asarray(function(x)), wanted)
        assert patches.handed_back == {"inside a shard_map XLA tells nobody where a value lies": 1}


REFUSED = {
    "an uneven dim": lambda: jax.jit(lambda x: own_reshard(x[:5], on(EXPLICIT_MESH, P("x"))))(
        put(EXPLICIT_MESH, SPECS["whole"])
    ),
    "another order of devices": lambda: constrained(
        put(AUTO_MESH, SPECS["both"]),
        on(jax.sharding.Mesh(np.array(jax.devices()[:6])[::-1].reshape(2, 3), ("x", "y")), P("x", "y")),
    ),
    "an axis that is not there": lambda: constrained(put(AUTO_MESH, SPECS["both"]), P("q")),
    "no mesh": lambda: constrained(jnp.ones(8), P("x")),
    "a type that says otherwise": lambda: jax.jit(lambda x: constrained(x, on(EXPLICIT_MESH, SPECS["turned"])))(
        put(EXPLICIT_MESH, SPECS["both"])
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_stay_in_jaxs_own_words(case: str) -> None:
    with pytest.raises(Exception, match=r".") as wanted:
        REFUSED[case]()
    with pytest.raises(type(wanted.value)) as refused, patched():
        REFUSED[case]()
    assert str(refused.value) == str(wanted.value)


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    yield
    x = put(EXPLICIT_MESH, SPECS["both"])
    goal = on(EXPLICIT_MESH, SPECS["turned"])
    assert most_received(jax.jit(lambda x: own_reshard(x, goal)), x) > lacking("both", "turned")


def test_one_inside_another_and_one_that_fails(nothing_is_left: None) -> None:
    x, goal = put(EXPLICIT_MESH, SPECS["both"]), on(EXPLICIT_MESH, SPECS["turned"])
    with patched() as outer:
        with patched() as inner:
            own_reshard(x, goal)
        own_reshard(x * 2, goal)
    assert inner.planned == 1
    assert outer.planned <= 1
    with pytest.raises(ZeroDivisionError), patched():
        raise ZeroDivisionError
