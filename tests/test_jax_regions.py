"""Regions in which devices move data themselves, products of groups, and other primitives that JAX runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.experimental.custom_partitioning import custom_partitioning  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_hlo import collectives, received_bytes  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.propagation import Placement  # noqa: E402

pytestmark = pytest.mark.engine
MESH = rs.Mesh.of(x=4, y=2)
SIZES = np.array([3, 0, 7, 5, 2, 4], "int32")


def devices() -> Any:
    return jax.make_mesh((4, 2), ("x", "y"), (AxisType.Auto,) * 2, devices=jax.devices()[:8])


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")


def placed_as(function: Callable[..., Any], arguments: Any, ins: Any, outs: Any = None) -> Placement:
    """The placement of a function, which gives what the function gives."""
    placed = rs.jax.trace(function, *arguments, in_shardings=ins, out_shardings=outs, mesh=MESH).propagate()
    ours, theirs = jax.jit(rs.jax.to_jax(placed))(*arguments), jax.jit(function)(*arguments)
    jax.tree.map(lambda mine, wanted: np.testing.assert_allclose(mine, wanted, 2e-4, 1e-4), ours, theirs)
    assert not placed.without_rule
    return placed


def region(body: Callable[..., Any], ins: Any, outs: Any, **fields: Any) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        return jax.shard_map(body, mesh=devices(), in_specs=ins, out_specs=outs, **fields)(*arguments)

    return run


def ring_attention(q: Any, k: Any, v: Any) -> Any:
    """Keys and values go round the devices of x, and every device sees all of them in turn."""

    def body(q: Any, k: Any, v: Any) -> Any:
        def turn(state: Any, _: None) -> Any:
            k, v, top, total, out = state
            scores = q @ k.T
            now = jnp.maximum(top, scores.max(-1, keepdims=True))
            weights, scale = jnp.exp(scores - now), jnp.exp(top - now)
            total, out = total * scale + weights.sum(-1, keepdims=True), out * scale + weights @ v
            around = [(device, (device + 1) % 4) for device in range(4)]
            return (lax.ppermute(k, "x", around), lax.ppermute(v, "x", around), now, total, out), None

        def zeros(*shape: int) -> Any:
            return lax.pcast(jnp.zeros(shape), ("x",), to="varying")

        rows = q.shape[0]
        state = (k, v, zeros(rows, 1) - 1e30, zeros(rows, 1), zeros(*q.shape))
        (_, _, _, total, out), _ = lax.scan(turn, state, None, length=4)
        return out / total

    return region(body, (P("x"),) * 3, P("x"))(q, k, v)


def embedding(table: Any, ids: Any) -> Any:
    """Rows of a table that is cut by them."""

    def body(table: Any, ids: Any) -> Any:
        here = ids - lax.axis_index("x") * len(table)
        rows = table[jnp.clip(here, 0, len(table) - 1)]
        return lax.psum(jnp.where(((here >= 0) & (here < len(table)))[:, None], rows, 0), "x")

    return region(body, (P("x", None), P("y")), P("y", None))(table, ids)


IDS = np.arange(8, dtype="int32") * 2 % 16
QKV = tuple(floats(16, 4) + n for n in range(3))
REGIONS: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "a sum": (region(lambda a: lax.psum(a, "x"), P("x", "y"), P(None, "y")), (floats(8, 8),), (P("x"),)),
    "between others": (
        lambda a: jnp.tanh(region(lambda a: lax.psum(a, "x") * lax.axis_index("y"), P("x", "y"), P(None, "y"))(a * 2)),
        (floats(8, 8),),
        (P("x"),),
    ),
    "ring attention": (ring_attention, QKV, (P("x"), P("x"), None)),
    "its gradient": (
        jax.value_and_grad(lambda *qkv: (ring_attention(*qkv) ** 2).sum(), (0, 1, 2)),
        QKV,
        (P("x"), P("x"), None),
    ),
    "an all-to-all": (
        region(lambda a: lax.all_to_all(a, "x", 1, 0, tiled=True), P("x", None), P(None, "x")),
        (floats(8, 8),),
        (P("x"),),
    ),
    "two axes at once": (
        region(
            lambda a: lax.psum_scatter(lax.all_gather(a, ("x", "y"), tiled=True), ("x", "y"), tiled=True),
            P(("x", "y")),
            P(("x", "y")),
        ),
        (floats(8, 8),),
        (P("y"),),
    ),
    "an axis left to the compiler": (
        region(lambda a: lax.psum(a @ a.T, "x"), P(None, "x"), P(), axis_names={"x"}),
        (floats(8, 8),),
        (P("y"),),
    ),
    "a choice": (
        region(lambda a: lax.cond(a.sum() > 0, lambda a: a * 2, lambda a: a, a), P("x"), P("x")),
        (floats(8, 8),),
        (P("y"),),
    ),
    "gathered inside": (
        region(lambda a: lax.all_gather(a, "x", tiled=True), P("x"), P(), check_vma=False),
        (floats(8, 8),),
        (P("x"),),
    ),
    "an embedding": (embedding, (floats(16, 8), IDS), (P("x"), None)),
}


@pytest.mark.parametrize("name", REGIONS)
def test_a_region_runs_on_tiles_as_it_states(name: str) -> None:
    placed_as(*REGIONS[name])


def test_what_a_region_wants_is_all_that_moves() -> None:
    assert placed_as(*REGIONS["ring attention"]).received_bytes == 0  # keys and values go round inside
    assert placed_as(*REGIONS["an embedding"]).is_proved
    rows = rs.jax.trace(REGIONS["a sum"][0], floats(8, 8), in_shardings=(P("y"),), mesh=MESH).propagate()
    assert rows.received_bytes == 8 * 8 * 4 // 8  # of a tile of 2 x 4 a device has half, or none


INSIDE: dict[str, tuple[Callable[..., Any], Any, dict[str, int]]] = {
    "psum": (lambda a: lax.psum(a, "x"), P(None, "y"), {"psum": 2 * 64 * 3 // 4}),
    "all_gather": (lambda a: lax.all_gather(a, "x", axis=1), P("x"), {"all_gather": 64 * 3}),
    "psum_scatter": (lambda a: lax.psum_scatter(a, "x", tiled=True), P("x", "y"), {"reduce_scatter": 64 * 3 // 4}),
    "all_to_all": (lambda a: lax.all_to_all(a, "x", 0, 0, tiled=True), P("x", "y"), {"all_to_all": 64 * 3 // 4}),
    "ppermute": (lambda a: lax.ppermute(a, "x", [(0, 1), (1, 2)]), P("x", "y"), {"ppermute": 64}),
    "pmax": (lambda a: lax.pmax(a, ("x", "y")), P(), {"pmax": 2 * 64 * 7 // 8}),
    "nothing": (lambda a: a * 2, P("x", "y"), {}),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_a_region_receives_inside_is_told(name: str) -> None:
    """As the compiled program of plain `jit` receives."""
    body, outs, wanted = INSIDE[name]
    function, x = region(body, P("x", "y"), outs, check_vma=False), floats(16, 8)
    at = NamedSharding(devices(), P("x", "y"))
    placed = rs.jax.trace(function, x, in_shardings=(at,), mesh=devices()).propagate()
    assert placed.received_inside == wanted
    assert placed.received_bytes == 0
    compiled = jax.jit(function, in_shardings=at).lower(x).compile().as_text()
    assert max(received_bytes(collectives(compiled, 8), 8)) == sum(wanted.values())
    assert ("inside regions" in placed.table()) == bool(wanted)


def test_loops_multiply_what_a_region_receives() -> None:
    """Four turns of keys and values, of tiles of 4 x 4."""
    placed = placed_as(*REGIONS["ring attention"])
    assert placed.received_inside == {"ppermute": 4 * 2 * 64}

    def often(a: Any) -> Any:
        body = region(lambda a: lax.psum(a, "x") / 4 + a, P("x"), P("x"))
        return lax.fori_loop(0, 5, lambda _, a: body(a), a)

    placed = placed_as(often, (floats(8, 8),), (P("x"),))
    assert placed.received_inside == {"psum": 5 * 2 * 64 * 3 // 4}


def test_an_axis_of_a_region_may_be_in_parts() -> None:
    def function(a: Any) -> Any:
        return region(lambda a: a * (1 + lax.axis_index("x")), P("x"), P("x"))(a)

    placed_as(function, (floats(4, 8),), (rs.Sharding.of(MESH, None, "x:(1)2"),))


def test_gradients_go_through_regions() -> None:
    table = floats(16, 8)
    placed = rs.jax.trace(lambda table: embedding(table, IDS), table, in_shardings=(P("x"),), mesh=MESH).propagate()
    ours, theirs = (
        jax.jit(jax.grad(lambda table: (function(table) ** 2).sum()))(table)  # noqa: B023
        for function in (rs.jax.to_jax(placed), lambda table: embedding(table, IDS))
    )
    np.testing.assert_allclose(ours, theirs, 1e-5)


# Products of rows with operands of their groups


@pytest.mark.parametrize(
    "ins",
    [(P("x"), None, None), (None, P("y"), None), (P("x", None), P("y"), None), (P(None, "x"), P(None, "x"), None)],
    ids=["rows", "groups", "both", "contracted"],
)
def test_rows_and_groups_of_products_stay_where_they_are(ins: Any) -> None:
    arguments = floats(24, 8), floats(6, 8, 5), SIZES

    def loss(rows: Any, weights: Any, sizes: Any) -> Any:
        return (lax.ragged_dot(rows, weights, sizes) ** 2).sum()

    placed_as(lax.ragged_dot, arguments, ins)
    placed_as(jax.value_and_grad(loss, (0, 1)), arguments, ins)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sizes_of_few_bits_are_added_up(dtype: str) -> None:
    """Which JAX itself does not: it adds them up in as few bits."""
    rows, weights, sizes = floats(304, 8), floats(6, 8, 4), np.array([100, 60, 40, 50, 20, 34], dtype)
    program = rs.jax.trace(lax.ragged_dot, rows, weights, sizes, in_shardings=(P("x", None), P("y"), None), mesh=MESH)
    groups = np.split(rows, np.cumsum(sizes.astype(int))[:-1])
    expected = np.concatenate([group @ weight for group, weight in zip(groups, weights, strict=True)])
    ours = jax.jit(rs.jax.to_jax(program.propagate()))(rows, weights, sizes)
    np.testing.assert_allclose(ours, expected, 1e-4, 1e-4)


def test_what_is_no_number_stays_with_its_group() -> None:
    rows = floats(24, 8)
    rows[0] = np.inf
    placed_as(lax.ragged_dot, (rows, np.abs(floats(6, 8, 5)), SIZES), (None, P("y"), None))


def test_references_from_outside_are_refused() -> None:
    outside = jax.new_ref(jnp.ones((8, 8)))
    with pytest.raises(rs.ReshardError, match="a reference from outside") as refusal:
        rs.jax.trace(lambda a: a * outside[...], floats(8, 8), mesh=MESH)
    assert refusal.value.code == "cannot-express"


def test_experts_that_are_cut_are_not_gathered() -> None:
    arguments = floats(32, 64), floats(8, 64, 64), np.array([3, 5, 2, 6, 4, 4, 5, 3], "int32")
    placed = placed_as(lax.ragged_dot, arguments, (None, P("x"), None), P("x"))
    weights = floats(8, 64, 64).nbytes * 3 // 4
    assert placed.received_bytes < weights // 4


# Others


def references(a: Any) -> Any:
    held, total = jax.new_ref(jnp.zeros_like(a)), jax.new_ref(jnp.zeros(a.shape[1:]))
    held[...] = a
    held[0] = a[1]

    def turn(number: Any, state: Any) -> Any:
        total[...] += held[number]
        return state

    lax.fori_loop(0, a.shape[0], turn, 0)
    return held[...] * total[...]


@custom_partitioning
def partitioned(a: Any) -> Any:
    return jnp.sin(a)


partitioned.def_partition(
    partition=lambda mesh, args, result: (mesh, jnp.sin, result.sharding, (args[0].sharding,)),
    infer_sharding_from_operands=lambda _mesh, args, _result: args[0].sharding,
    sharding_rule="i j -> i j",
)


@pytest.mark.parametrize(
    ("function", "received"),
    [
        (lambda a: partitioned(a) + 1, 0),
        (lambda a: jax.device_put(a, NamedSharding(devices(), P(None, "x"))) * 2, 0),
        (jax.vmap(lambda a: a / lax.psum(a, "i"), axis_name="i"), 24),
        (jax.vmap(lambda a: a - lax.pmax(a, "i"), axis_name="i"), 24),
        (lambda a: lax.approx_max_k(a, 3)[0], 0),
        (references, None),
    ],
    ids=["partitioned", "put", "sum of a batch", "extreme of a batch", "approximate", "references"],
)
def test_what_has_no_operation_of_its_own_stays_cut(function: Callable[..., Any], received: int | None) -> None:
    placed = placed_as(function, (floats(8, 8),), (P("x"),))
    assert received is None or placed.received_bytes == received


def routed(mesh: Any) -> Any:
    """Rows of each of 4 groups that go to others, as numbers of the group say."""
    cut = jax.P("e")

    def function(x: Any, *places: Any) -> Any:
        def on_tiles(x: Any, *places: Any) -> Any:
            room = jnp.full((16, *x.shape[1:]), -1, x.dtype)
            return lax.ragged_all_to_all(x, room, *(each[0] for each in places), axis_name="e")

        on_mesh = jax.shard_map(on_tiles, mesh=mesh, in_specs=cut, out_specs=cut, check_vma=False)
        return on_mesh(jnp.tanh(x), *places)

    return function


def test_a_ragged_all_to_all_goes_where_its_numbers_say() -> None:
    """On CPUs, which have no such collective, in equal parts; elsewhere lowered as the collective that it was."""
    mesh = jax.make_mesh((4, 2), ("e", "x"), (jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:8])
    rng, ends = np.random.default_rng(0), (jax.NamedSharding(mesh, jax.P("e")),) * 5
    sizes = rng.integers(0, 3, (4, 2, 4)).transpose(0, 2, 1).reshape(4, 8)  # two slices to each, of at most two rows
    starts = rng.integers(0, 7, (4, 8))
    received = sizes.reshape(4, 4, 2).transpose(1, 0, 2).reshape(4, 8)
    at = (np.cumsum(received, 1) - received).reshape(4, 4, 2).transpose(1, 0, 2).reshape(4, 8)
    x = rng.normal(size=(32, 4)).astype(np.float32)
    arrays = [x, *(numbers.astype(np.int32) for numbers in (starts, sizes, at, received))]
    placed = rs.jax.trace(routed(mesh), *arrays, in_shardings=ends, mesh=mesh).propagate()
    assert placed.received_bytes == 0
    assert not placed.without_rule
    expected = np.full((4, 16, 4), -1, np.float32)
    for sender, tile in enumerate(np.tanh(x).reshape(4, 8, 4)):
        for number in range(8):
            count, first, place = (table[sender, number] for table in (sizes, starts, at))
            rows = tile[first : first + count]
            expected[number // 2, place : place + len(rows)] = rows
    function = rs.jax.to_jax(placed)
    found = jax.jit(function)(*map(jax.device_put, arrays, ends))
    np.testing.assert_allclose(found, expected.reshape(64, 4), rtol=1e-6)
    traced = [jax.jit(each, in_shardings=ends).trace(*arrays) for each in (function, routed(mesh))]
    lowered = [each.lower(lowering_platforms=("tpu",)).as_text() for each in traced]
    calls = [re.findall(r"@ragged_all_to_all\(.*?\) (\{.*)", text) for text in lowered]
    assert len(calls[0]) == 1
    assert calls[0] == calls[1]
