"""Regions over some axes of a mesh, which are to give what plain `jit` gives, with no more bytes compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from jax_hlo import busiest_with_loops  # noqa: E402

import reshard as rs  # noqa: E402

pytestmark = pytest.mark.engine


def mesh_of(sizes: tuple[int, ...], order: Any = range(8), kind: Any = AxisType.Auto) -> Any:
    devices = np.array([jax.devices()[number] for number in order]).reshape(sizes)
    return jax.sharding.Mesh(devices, ("x", "y", "z")[: len(sizes)], axis_types=(kind,) * len(sizes))


class Meshes(NamedTuple):
    two: Any
    three: Any
    wide: Any
    permuted: Any
    explicit: Any


MESHES = Meshes(
    mesh_of((4, 2)),
    mesh_of((2, 2, 2)),
    mesh_of((2, 4)),
    mesh_of((4, 2), [3, 1, 0, 2, 7, 6, 5, 4]),
    mesh_of((4, 2), kind=AxisType.Explicit),
)
RING = [(device, (device + 1) % 4) for device in range(4)]


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(sum(shape) + seed).normal(size=shape).astype("float32")


def over(axes: set[str], ins: Any, outs: Any, mesh: Any = MESHES.two, **fields: Any) -> Callable[..., Any]:
    """What makes a region of a body."""
    return lambda body: jax.shard_map(body, mesh=mesh, in_specs=ins, out_specs=outs, axis_names=axes, **fields)


def held_against_jax(function: Any, arguments: Any, specs: Any, mesh: Any = MESHES.two, is_set: bool = False) -> Any:
    """The placement of a function with the values of plain `jit`, what it receives, and what plain `jit` does."""
    at = tuple(NamedSharding(mesh, spec) for spec in specs)
    arrays = [jax.device_put(each, sharding) for each, sharding in zip(arguments, at, strict=True)]
    with jax.set_mesh(mesh) if is_set else nullcontext():
        theirs = jax.jit(function, in_shardings=at).lower(*arguments).compile()
        placed = rs.jax.trace(function, *arguments, in_shardings=at, mesh=mesh).propagate()
    ours = jax.jit(rs.jax.to_jax(placed), in_shardings=at).lower(*arguments).compile()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 2e-4, 1e-4), ours(*arrays), theirs(*arrays))
    return placed, *(busiest_with_loops(program.as_text(), 8) for program in (ours, theirs))


def experts(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """Tokens to their experts and back, manual over experts (x), the features of an expert left (y)."""

    @over({"x"}, (P("x"), P(), P("x"), P("x")), P("x"))
    def run(x: Any, gate: Any, up: Any, down: Any) -> Any:
        weights = jax.nn.softmax(x @ gate)
        chosen = jax.nn.one_hot(jnp.argmax(weights, -1), 4)
        place = ((jnp.cumsum(chosen, 0) * chosen).sum(-1) - 1).astype(int)
        sent = chosen[:, :, None] * jax.nn.one_hot(place, 8)[:, None, :]
        rows = lax.all_to_all(jnp.einsum("td,tec->ecd", x, sent), "x", 0, 1, tiled=True)
        rows = jnp.einsum("ecf,efd->ecd", jax.nn.relu(jnp.einsum("ecd,edf->ecf", rows, up)), down)
        back = lax.all_to_all(rows, "x", 1, 0, tiled=True)
        return jnp.einsum("ecd,tec->td", back, sent * weights[:, :, None])

    return run(x, gate, up, down)


def ring_attention(q: Any, k: Any, v: Any) -> Any:
    """Manual over the sequence (x), batch and heads left (y)."""

    @over({"x"}, (P(None, "x"),) * 3, P(None, "x"))
    def run(q: Any, k: Any, v: Any) -> Any:
        def turn(state: Any, _: None) -> Any:
            k, v, top, total, out = state
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
            now = jnp.maximum(top, scores.max(-1, keepdims=True))
            weights, scale = jnp.exp(scores - now), jnp.exp(top - now)
            total, out = total * scale + weights.sum(-1, keepdims=True), out * scale
            out += jnp.einsum("bhqk,bkhd->bhqd", weights, v)
            return (lax.ppermute(k, "x", RING), lax.ppermute(v, "x", RING), now, total, out), None

        def zeros(*shape: int) -> Any:
            return lax.pcast(jnp.zeros(shape), ("x",), to="varying")

        batch, rows, heads, size = q.shape
        state = (
            k,
            v,
            zeros(batch, heads, rows, 1) - 1e30,
            zeros(batch, heads, rows, 1),
            zeros(batch, heads, rows, size),
        )
        (_, _, _, total, out), _ = lax.scan(turn, state, None, length=4)
        return jnp.swapaxes(out / total, 1, 2)

    return run(q, k, v)


def pipeline(first: Any, second: Any, x: Any) -> Any:
    """Manual over stages (x), the features inside a stage left (y)."""

    @over({"x"}, (P("x"), P("x"), P()), P())
    def run(first: Any, second: Any, x: Any) -> Any:
        stage, count = lax.axis_index("x"), len(x)

        def step(state: Any, turn: Any) -> Any:
            rows, out = state
            rows = jnp.where(stage == 0, x[jnp.minimum(turn, count - 1)], rows)
            rows = jnp.tanh(rows @ first[0]) @ second[0]
            is_last = (stage == 3) & (turn >= 3)
            place = jnp.clip(turn - 3, 0, count - 1)
            out = jnp.where(is_last, lax.dynamic_update_index_in_dim(out, rows, place, 0), out)
            return (lax.ppermute(rows, "x", RING), out), None

        zeros = lax.pcast(jnp.zeros(x.shape), ("x",), to="varying")
        (_, out), _ = lax.scan(step, (zeros[0], zeros), jnp.arange(count + 3))
        return lax.psum(jnp.where(stage == 3, out, 0), "x")

    return run(first, second, x)


def data_step(first: Any, second: Any, x: Any, y: Any) -> Any:
    """A step of training, manual over data (x), the model left (y)."""

    @over({"x"}, (P(), P(), P("x"), P("x")), (P(), P(), P()))
    def run(first: Any, second: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            return ((jnp.tanh(x @ weights[0]) @ weights[1] - y) ** 2).mean()

        weights = tuple(lax.pcast(each, ("x",), to="varying") for each in (first, second))
        value, slopes = jax.value_and_grad(loss)(weights)
        slopes = lax.pmean(slopes, "x")
        return lax.pmean(value, "x"), first - slopes[0] / 8, second - slopes[1] / 8

    return run(first, second, x, y)


def nested(a: Any) -> Any:
    """A region within a region, over a further axis."""

    def inner(b: Any) -> Any:
        return lax.psum(jnp.sin(b), "y") * (1 + lax.axis_index("x"))

    def outer(b: Any) -> Any:
        return (
            jax.shard_map(inner, in_specs=P(None, "y"), out_specs=P(), axis_names={"y"})(b * 2) + lax.psum(b, "x").sum()
        )

    return over({"x"}, P("x"), P("x"), MESHES.three)(outer)(a)


def two_axes(a: Any, w: Any) -> Any:
    @over({"x", "y"}, (P("x", "y"), P()), P("x", "y"), MESHES.three)
    def run(a: Any, w: Any) -> Any:
        rows = lax.ppermute(lax.all_gather(a, ("x", "y"), axis=1), ("x", "y"), [(0, 3), (3, 0), (1, 2), (2, 1)])
        return lax.psum_scatter(rows @ w, ("x", "y"), scatter_dimension=1)

    return run(a, w)


def branches(a: Any, w: Any) -> Any:
    @over({"x"}, (P("x"), P()), P("x"), check_vma=False)
    def run(a: Any, w: Any) -> Any:
        a = lax.cond(lax.axis_index("x") % 2 == 0, lambda a: a @ w, lambda a: a * 2, a)
        return lax.fori_loop(0, 3, lambda turn, a: a / 2 + lax.pmean(a, "x") * turn, a)

    return run(a, w)


@jax.custom_vjp
def squared(x: Any) -> Any:
    return x * x * lax.axis_index("x")


squared.defvjp(lambda x: (squared(x), x), lambda x, slope: (2 * x * slope,))
BORDERS = floats(64, 64)


def rematerialized(a: Any, w: Any) -> Any:
    """The gradient of a checkpoint around a function with a derivative of its own and a constant."""
    layer = jax.checkpoint(lambda a, w: squared(jnp.tanh(jnp.tanh(a @ w) @ BORDERS)))

    def loss(w: Any) -> Any:
        body = lambda a, w: lax.psum(layer(a, w).sum(), "x")  # noqa: E731
        return over({"x"}, (P("x"), P()), P(), check_vma=False)(body)(a, w)

    return jax.grad(loss)(w)


def grouped(a: Any) -> Any:
    def body(a: Any) -> Any:
        far, near = [[0, 2], [1, 3]], [[0, 1], [2, 3]]
        return lax.psum(a, "x", axis_index_groups=near) + lax.all_gather(a, "x", axis_index_groups=far).max(0)

    return over({"x"}, P("x"), P("x"), check_vma=False)(body)(a)


def permuted(a: Any, w: Any, mesh: Any = MESHES.permuted) -> Any:
    body = lambda a, w: lax.ppermute(a @ w, "x", RING) * lax.axis_index("x")  # noqa: E731
    return over({"x"}, (P("x"), P()), P("x"), mesh)(body)(a, w)


def explicit(a: Any, w: Any) -> Any:
    body = lambda a, w: lax.psum(jnp.tanh(jax.sharding.reshard(a @ w, P(None, "y"))), "x")  # noqa: E731
    return over({"x"}, (P("x"), P()), P(), MESHES.explicit)(body)(a, w)


def of_experts(a: Any, w: Any, sizes: Any) -> Any:
    return over({"x"}, (P("x"), P("x"), P("x")), P("x"))(lax.ragged_dot)(a, w, sizes)


def wanted(a: Any, w: Any) -> Any:
    body = lambda a, w: lax.with_sharding_constraint(a @ w, P(None, "y")) * 2  # noqa: E731
    return over({"x"}, (P("x"), P()), P("x"))(body)(a, w)


def combined_in(groups: list[list[int]]) -> Any:
    def combined(a: Any) -> Any:
        return lax.psum(a, "x", axis_index_groups=groups) * lax.pmax(a, "x", axis_index_groups=groups)

    return over({"x"}, P("x"), P("x"), check_vma=False)(combined)


def sent(*pairs: tuple[int, int]) -> Callable[..., Any]:
    return over({"x"}, P("x"), P("x"))(lambda a: lax.ppermute(a, "x", pairs) + a)


def uneven(a: Any, w: Any) -> Any:
    return over({"x"}, (P("x"), P()), P())(lambda a, w: lax.psum(jnp.tanh(a @ w), "x"))(a, w)


def own_rows(a: Any, w: Any) -> Any:
    """The rows of a whole matrix that go with the columns of a device."""
    body = lambda a, w: a @ lax.dynamic_slice(w, (lax.axis_index("x") * 16, 0), (16, 64))  # noqa: E731
    return over({"x"}, (P(None, "x"), P()), P("x"))(body)(a, w)


def slope_of(function: Callable[..., Any], *places: int) -> Callable[..., Any]:
    return jax.grad(lambda *arguments: (function(*arguments) ** 2).sum(), places)


MOE = (floats(64, 16), floats(16, 4), floats(4, 16, 32), floats(4, 32, 16))
MOE_AT = (P("x"), P(), P("x", None, "y"), P("x", "y", None))
QKV, QKV_AT = tuple(floats(2, 16, 4, 8, seed=seed) for seed in range(3)), (P(None, "x", "y"),) * 3
STAGES, STAGES_AT = (
    (floats(4, 16, 32) / 4, floats(4, 32, 16) / 4, floats(6, 8, 16)),
    (P("x", None, "y"), P("x", "y"), P()),
)
TRAINED = (floats(16, 32), floats(32, 16), floats(32, 16), floats(32, 16, seed=1))
A, W, A_AT = floats(16, 64), floats(64, 64), (P("x", "y"), P(None, "y"))
CASES: dict[str, tuple[Any, ...]] = {
    "experts": (experts, MOE, MOE_AT),
    "gradient of experts": (slope_of(experts, 0, 2, 3), MOE, MOE_AT),
    "ring attention": (ring_attention, QKV, QKV_AT),
    "gradient of ring attention": (slope_of(ring_attention, 0, 1, 2), QKV, QKV_AT),
    "pipeline": (pipeline, STAGES, STAGES_AT),
    "gradient of a pipeline": (slope_of(pipeline, 0, 1), STAGES, STAGES_AT),
    "step over data": (data_step, TRAINED, (P(None, "y"), P("y"), P("x"), P("x"))),
    "nested": (nested, (floats(8, 8, 16),), (P("x"),), MESHES.three),
    "two axes": (two_axes, (floats(8, 8, 16), floats(16, 32)), (P("x", "y"), P(None, "z")), MESHES.three),
    "branches and loops": (branches, (A, W), A_AT),
    "rematerialized": (rematerialized, (A, W), A_AT),
    "groups": (grouped, (A,), A_AT[:1]),
    "odd pairs": (combined_in([[2, 1], [0, 3]]), (A,), A_AT[:1]),
    "permuted devices": (permuted, (A, W), A_AT, MESHES.permuted),
    "mesh that is set": (lambda a, w: permuted(a, w, None), (A, W), A_AT, MESHES.permuted, True),
    "explicit": (explicit, (A, W), (P("x"), P(None, "y")), MESHES.explicit, True),
    "rows of experts": (
        of_experts,
        (floats(32, 16), floats(8, 16, 24), np.array([3, 5, 2, 6, 4, 4, 5, 3], "int32")),
        (P("x"), P("x", None, "y"), P("x")),
    ),
    "wanted inside": (wanted, (A, W), A_AT),
    "own rows": (own_rows, (A, W), (P(None, "x"), P(None, "y"))),
    "shift": (sent((0, 1), (1, 2), (2, 3)), (A,), A_AT[:1]),
    "pairs": (sent((0, 1), (1, 0), (2, 3), (3, 2)), (A,), A_AT[:1]),
    "a permutation of no form": (sent((0, 2), (2, 1), (1, 3), (3, 0)), (A,), A_AT[:1]),
    "some of such a permutation": (sent((0, 2), (3, 1)), (A,), A_AT[:1]),
    "one moves, one stays": (sent((0, 1), (3, 3)), (A,), A_AT[:1]),
    "one to one": (sent((1, 3)), (A,), A_AT[:1]),
    "uneven": (uneven, (floats(12, 7), floats(7, 5)), (P("x"), P())),
}


@pytest.mark.parametrize("name", CASES)
def test_a_region_over_some_axes_receives_no_more_than_plain_jit(name: str) -> None:
    placed, ours, theirs = held_against_jax(*CASES[name])
    assert ours <= theirs
    assert not placed.without_rule
    assert not placed.received_inside  # nothing happens that is not known


def doubled(x: Any) -> Any:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    return pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def doubled_in_turns(x: Any) -> Any:
    def kernel(x: Any, out: Any) -> None:
        row = x[...]
        out[...] = lax.fori_loop(0, 2, lambda _, total: total + row, jnp.zeros_like(row))

    rows = pl.BlockSpec((1, x.shape[1]), lambda row: (row, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, shape, grid=x.shape[:1], in_specs=[rows], out_specs=rows, interpret=True)(x)


def called(x: Any) -> Any:
    return jax.pure_callback(lambda x: np.asarray(x) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize(
    ("function", "unknown"), [(called, {"pure_callback": 1}), (doubled, {}), (doubled_in_turns, {})]
)
def test_what_has_no_rule_is_whole_along_the_axes_that_are_left_alone(function: Any, unknown: dict[str, int]) -> None:
    """Of tiles of 2 x 8 a device makes whole rows: it receives the half that it lacks."""
    region = over({"x"}, P("x"), P("x"), check_vma=False)(function)
    x = floats(8, 16)
    placed = rs.jax.trace(region, x, in_shardings=(P("x", "y"),), mesh=MESHES.two).propagate()
    assert placed.without_rule == unknown
    assert placed.received_bytes <= 2 * 8 * 4
    np.testing.assert_allclose(jax.jit(rs.jax.to_jax(placed))(x), x * 2)


def test_a_region_with_what_is_no_dim_is_named() -> None:
    """Rows that go where numbers say: each device sends two of its four to the next."""

    def routed(x: Any) -> Any:
        place = lax.axis_index("x")
        sizes, other = (
            jnp.where(jnp.arange(4) == (place + 1) % 4, 2, 0),
            jnp.where(jnp.arange(4) == (place - 1) % 4, 2, 0),
        )
        numbers = [each.astype("int32") for each in (jnp.zeros(4), sizes, jnp.ones(4), other)]
        return lax.ragged_all_to_all(x, jnp.zeros_like(x), *numbers, axis_name="x")

    x = floats(16, 8)
    region = over({"x"}, P("x"), P("x"), check_vma=False)(routed)
    placed = rs.jax.trace(region, x, in_shardings=(P("x", "y"),), mesh=MESHES.two).propagate()
    assert placed.without_rule == {"ragged_all_to_all": 1}
    assert placed.received_bytes == 4 * 4 * 4  # the other half of its rows
    rows = np.roll(x.reshape(4, 4, 8), 1, 0)
    wanted = np.concatenate([np.zeros((4, 1, 8)), rows[:, :2], np.zeros((4, 1, 8))], 1).reshape(16, 8)
    np.testing.assert_allclose(jax.jit(rs.jax.to_jax(placed))(x), wanted)


KINDS = ("psum", "pmax", "all_gather", "stacked", "psum_scatter", "all_to_all", "ppermute", "ring", "index")


def drawn(seed: int) -> tuple[Any, ...]:
    """A collective over some of some manual axes, with another permutation of the devices each time."""
    rng = np.random.default_rng(seed)
    sizes = [(4, 2), (2, 4), (2, 2, 2)][rng.integers(3)]
    mesh = mesh_of(sizes, rng.permutation(8))
    names = list(mesh.axis_names)
    manual = [str(name) for name in rng.permutation(names)[: rng.integers(1, len(names))]]
    free = next(name for name in names if name not in manual)
    axes: Any = tuple(manual) if rng.random() < 0.5 and len(manual) > 1 else manual[0]
    count = int(np.prod([mesh.shape[axis] for axis in (axes if isinstance(axes, tuple) else (axes,))]))
    kind, dim, shift = KINDS[rng.integers(len(KINDS))], int(rng.integers(2)), int(rng.integers(1, count))
    ring = [(device, (device + shift) % count) for device in range(count)]

    def body(a: Any) -> Any:
        a = jnp.tanh(a)
        if kind == "all_gather":
            return lax.all_gather(a, axes, axis=dim, tiled=True)
        if kind == "stacked":
            return lax.all_gather(a, axes, axis=dim)
        if kind == "psum_scatter":
            return lax.psum_scatter(a, axes, scatter_dimension=dim, tiled=True)
        if kind == "all_to_all":
            return lax.all_to_all(a, axes, dim, 1 - dim, tiled=True)
        if kind == "ppermute":
            return lax.ppermute(a, axes, ring)
        if kind == "ring":
            return lax.fori_loop(0, 3, lambda _, a: a / 2 + lax.ppermute(a, axes, ring), a)
        return a * lax.axis_index(axes) if kind == "index" else {"psum": lax.psum, "pmax": lax.pmax}[kind](a, axes)

    spec = P(tuple(manual)) if rng.random() < 0.7 or len(manual) < 2 else P(*manual[:2])
    at = P(tuple(manual), free) if rng.random() < 0.7 else P(free, tuple(manual))
    region = over(set(manual), spec, P(tuple(manual)), mesh, check_vma=False)
    return lambda a: region(body)(a) * 2, (floats(64, 64),), (at,), mesh


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 120))])
def test_drawn_regions_receive_no_more_than_plain_jit(seed: int) -> None:
    _, ours, theirs = held_against_jax(*drawn(seed))
    assert ours <= theirs
