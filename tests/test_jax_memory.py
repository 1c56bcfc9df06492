"""What a device holds at most, held against what XLA allots to compiled programs, on 8 devices.

Buffers of different sizes leave holes, and what XLA makes again where it is read is not held: so they differ, by up to
24 % here, and by 5 % in the median.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax_functions import embedding_loss  # noqa: E402
from llama import Sizes, layer, shardings, step  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.jax import to_jax, trace  # noqa: E402

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore:Some donated buffers")]
MESH = rs.Mesh.of(data=2, model=4)
SIZES = Sizes(batch=8, sequence=256, features=256, heads=8, groups=4, head=32, hidden=1024)
LAYERS = 4
NEAR = 0.25
"""How far from XLA's the peak may be, as a part of it."""


def floats(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, np.dtype(np.float32))


WEIGHTS = {name: floats(*sizes) for name, sizes in SIZES.shapes.items()}
STACKED = {name: floats(LAYERS, *sizes) for name, sizes in SIZES.shapes.items()}
TENSOR, BATCH = shardings(MESH)
FULLY, _ = shardings(MESH, fully="data")
IN_LAYERS = {name: rs.Sharding(MESH, (rs.DimSharding(), *one.dims)) for name, one in TENSOR.items()}
MLP = floats(2048, 512), floats(512, 2048), floats(2048, 512)
ROWS = rs.Sharding.of(MESH, ("data", "model"), None)
COLUMNS, ROWS_OF_MODEL = rs.Sharding.of(MESH, "?", "model"), rs.Sharding.of(MESH, "model", "?")


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    return jax.nn.gelu(x @ w1) @ w2


def descent(x: Any, w1: Any, w2: Any) -> Any:
    loss, slopes = jax.value_and_grad(lambda weights: (mlp(x, *weights) ** 2).mean())((w1, w2))
    return loss, (w1 - 0.1 * slopes[0], w2 - 0.1 * slopes[1])


def adam(weights: Any, first: Any, second: Any, x: Any) -> Any:
    loss, slopes = jax.value_and_grad(lambda weights: (layer(weights, x) ** 2).mean())(weights)
    first = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, first, slopes)
    second = jax.tree.map(lambda a, b: 0.99 * a + 0.01 * b * b, second, slopes)
    weights = jax.tree.map(lambda a, b, c: a - 0.01 * b / (jnp.sqrt(c) + 1e-8), weights, first, second)
    return loss, (weights, first, second)


def layers(each: Callable[..., Any]) -> Callable[..., Any]:
    def gradient(weights: Any, x: Any) -> Any:
        def loss(weights: Any, x: Any) -> Any:
            return (lax.scan(lambda h, one: (each(one, h), None), x, weights)[0] ** 2).mean()

        return jax.value_and_grad(loss)(weights, x)

    return gradient


def branches(a: Any) -> Any:
    return lax.cond(a[0, 0] > 0, lambda b: jnp.sin(b) @ b.T @ b, lambda b: b - b.sum(0), a) + a


CASES: dict[str, tuple[Callable[..., Any], Any, Any, Any]] = {
    "mlp": (mlp, MLP, (rs.Sharding.of(MESH, "data", "?"), COLUMNS, None), None),
    "gathered weights": (mlp, MLP, (ROWS, ROWS, ROWS), None),
    "descent": (
        descent,
        MLP,
        (rs.Sharding.of(MESH, "data", "?"), COLUMNS, ROWS_OF_MODEL),
        (None, (COLUMNS, ROWS_OF_MODEL)),
    ),
    "choice": (branches, (floats(1024, 512),), (rs.Sharding.of(MESH, "data", "model"),), None),
    "layer": (layer, (WEIGHTS, floats(*SIZES.x)), (TENSOR, BATCH), None),
    "loss": (
        jax.value_and_grad(embedding_loss, (0, 1)),
        (floats(4096, 256), floats(256, 4096), jax.ShapeDtypeStruct((16, 128), np.int32)),
        (rs.Sharding.of(MESH, None, "model"), rs.Sharding.of(MESH, None, "model"), rs.Sharding.of(MESH, "data", None)),
        None,
    ),
    "step": (step, (WEIGHTS, floats(*SIZES.x)), (TENSOR, BATCH), (None, (TENSOR, BATCH))),
    "fully sharded step": (step, (WEIGHTS, floats(*SIZES.x)), (FULLY, BATCH), (None, (FULLY, BATCH))),
    "adam": (adam, (WEIGHTS,) * 3 + (floats(*SIZES.x),), (*(TENSOR,) * 3, BATCH), (None, (TENSOR,) * 3)),
    "scan": (layers(layer), (STACKED, floats(*SIZES.x)), (IN_LAYERS, BATCH), (None, IN_LAYERS)),
    "scan, made again": (
        layers(jax.checkpoint(layer)),
        (STACKED, floats(*SIZES.x)),
        (IN_LAYERS, BATCH),
        (None, IN_LAYERS),
    ),
}
FEW = ("mlp", "descent", "choice", "layer", "loss")
"""Of which the others are like larger ones."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in CASES])
def test_the_peak_is_near_what_xla_needs(name: str) -> None:
    function, arguments, given, asked = CASES[name]
    placed = trace(function, *arguments, in_shardings=given, out_shardings=asked, mesh=MESH).propagate()
    made = to_jax(placed)
    every = tuple(range(len(arguments)))
    jitted = jax.jit(made, in_shardings=made.in_shardings, out_shardings=made.out_shardings, donate_argnums=every)
    told = jitted.lower(*arguments).compile().memory_analysis()
    needed = (
        told.temp_size_in_bytes + told.argument_size_in_bytes + told.output_size_in_bytes - told.alias_size_in_bytes
    )
    assert abs(placed.peak_bytes / needed - 1) < NEAR, (placed.peak_bytes, needed, placed.peak_values[:8])


def test_rows_are_added_into_blanks_that_are_made_when_they_come() -> None:
    """By hand: six hidden tiles of 64 x 1024 are held for the gradient, 1.5 MiB; the table's gradient takes 4 MiB."""

    def gradient(table: Any, weights: Any, tokens: Any) -> Any:
        def loss(table: Any) -> Any:
            x = table[tokens]
            for _ in range(6):
                x = x + jnp.tanh(x @ weights) @ weights.T
            return (x**2).sum()

        return jax.grad(loss)(table)

    mesh = rs.Mesh.of(data=2)
    arguments = floats(16384, 64), floats(64, 1024), jax.ShapeDtypeStruct((128,), np.dtype(np.int32))
    given = rs.Sharding.of(mesh, None, None), rs.Sharding.of(mesh, None, None), rs.Sharding.of(mesh, "data")
    rows = rs.Sharding.of(mesh, "data", None)
    made = to_jax(trace(gradient, *arguments, in_shardings=given, out_shardings=rows, mesh=mesh).propagate())
    compiled = jax.jit(made, in_shardings=made.in_shardings).lower(*arguments).compile()
    assert 4 << 20 <= compiled.memory_analysis().temp_size_in_bytes < 9 << 19
    table, weights = (
        jnp.asarray(np.random.default_rng(0).normal(size=each.shape) / 8, np.float32) for each in arguments[:2]
    )
    tokens = jnp.arange(128, dtype=np.int32) % 50
    np.testing.assert_allclose(made(table, weights, tokens), gradient(table, weights, tokens), rtol=1e-4, atol=1e-3)
