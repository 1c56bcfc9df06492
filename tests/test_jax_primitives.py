"""Primitives that few functions use have rules: random draws, functions applied at places, sparse arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from jax.experimental import sparse  # noqa: E402
from jax.experimental.layout import Layout, with_layout_constraint  # noqa: E402
from jax_hlo import busiest_with_loops  # noqa: E402

import reshard as rs  # noqa: E402

pytestmark = pytest.mark.engine

ROWS, COLUMNS = 16, 8


def key(impl: str | None = None) -> Any:
    return jax.random.key(3, impl=impl)


def largest_row(x: Any) -> Any:
    return jnp.argmax(x[:, 0])


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "gamma": lambda x: jax.random.gamma(key(), jnp.abs(x) + 0.1),
    "gamma, uneven": lambda x: jax.random.gamma(key(), jnp.abs(x[:13, :7]) + 0.1),
    "gamma of many keys": lambda x: jax.vmap(jax.random.gamma)(jax.random.split(key(), ROWS), jnp.abs(x) + 1),
    "gamma of another generator": lambda x: jax.random.gamma(key("rbg"), jnp.abs(x) + 1),
    "dirichlet": lambda x: jax.random.dirichlet(key(), jnp.abs(x) + 1),
    "bits of a generator": lambda x: x + jax.random.uniform(key("rbg"), x.shape),
    "bits of another": lambda x: x + jax.random.uniform(key("threefry4x32"), x.shape),
    "applied at a row": lambda x: x.at[5].apply(jnp.cos),
    "applied at a row that is computed": lambda x: x.at[largest_row(x)].apply(jnp.cos),
    "applied twice": lambda x: x.at[jnp.array([4, 4]) + largest_row(x)].apply(lambda row: row * 2),
    "applied beyond the end": lambda x: x.at[largest_row(x) + ROWS].apply(jnp.cos),
    "wider elements": lambda x: lax.bitcast_convert_type(x.astype(jnp.bfloat16).reshape(ROWS, -1, 2), jnp.uint32),
    "narrower elements": lambda x: lax.bitcast_convert_type(x, jnp.uint8).astype(jnp.float32),
    "symmetric product": lambda x: lax.linalg.symmetric_product(x, jnp.ones((ROWS, ROWS)), symmetrize_output=True),
    "linear call": lambda x: jax.custom_derivatives.linear_call(
        lambda scale, v: v * scale, lambda scale, g: g * scale, 2.0, x
    ),
    "layout constraint": lambda x: with_layout_constraint(x * 2, Layout((0, 1))),
    "sparse by dense": lambda x: sparse.BCOO.fromdense(jnp.eye(ROWS), nse=ROWS) @ x,
    "sparse rows by dense": lambda x: sparse.BCSR.fromdense(x, nse=x.size) @ x.T,
    "sparse and back": lambda x: sparse.BCOO.fromdense(x, nse=x.size).todense(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_primitive(name: str) -> None:
    function = FUNCTIONS[name]
    mesh = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    end = jax.NamedSharding(mesh, jax.P("x"))
    x = jax.device_put(np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32), end)
    plain = jax.jit(function).lower(x).compile()
    placed = rs.jax.trace(function, x, out_shardings=plain.output_shardings, mesh=mesh).propagate(goal="bytes")
    assert not placed.without_rule
    ours = jax.jit(rs.jax.to_jax(placed)).lower(x).compile()
    np.testing.assert_allclose(ours(x), jax.jit(function)(np.asarray(x)), rtol=1e-5, atol=1e-5)
    assert busiest_with_loops(ours.as_text(), 4) <= busiest_with_loops(plain.as_text(), 4)
