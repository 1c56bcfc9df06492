"""Attention in a window, by its mask: a band of the scores is computed, with the values and gradients of all."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402
from jax.extend.core import jaxpr_as_fun  # noqa: E402
from jax_bands import BANDS, FEATURES, SIZE, WHOLE  # noqa: E402
from jax_hlo import collectives, received_bytes  # noqa: E402

import reshard as rs  # noqa: E402
from reshard.jax.tracing.bands.banding import in_bands  # noqa: E402
from reshard.jax.tracing.bands.masks import EVERYWHERE, Band, Facts  # noqa: E402
from reshard.jax.tracing.bands.planes import Plane, flattened  # noqa: E402

pytestmark = pytest.mark.engine
WITH_GRADIENT = ["causal, a large number", "capped"]


def arrays(seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=(SIZE, FEATURES)), jnp.float32) for _ in range(3)]


def loss_of(function: Any) -> Any:
    """The value and the gradients of a sum in which no two elements count alike."""

    def loss(*given: Any) -> Any:
        results = jax.tree.leaves(function(*given))
        return sum((result * jnp.cos(jnp.arange(result.size)).reshape(result.shape)).sum() for result in results)

    return jax.value_and_grad(loss, (0, 1, 2))


def check_same(function: Any, devices: int, *, is_banded: bool, tolerance: float = 2e-4) -> None:
    closed = jax.make_jaxpr(function)(*arrays())
    banded = in_bands(closed, devices)
    assert (banded is not closed) == is_banded
    both = jax.jit(lambda *given: [jaxpr_as_fun(each)(*given) for each in (banded, closed)])
    for own, theirs in zip(*both(*arrays()), strict=True):
        expected = np.asarray(theirs, np.float64)
        scale = 1 + np.nan_to_num(abs(expected)).max()
        np.testing.assert_allclose(np.asarray(own, np.float64), expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if number % 3 == 1 else [pytest.mark.slow]) for number, name in enumerate(BANDS)],
)
def test_a_band_has_the_values_of_all(name: str) -> None:
    check_same(BANDS[name], 8, is_banded=True, tolerance=3e-2 if name == "halves" else 2e-4)


@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_and_its_gradients(name: str) -> None:
    check_same(loss_of(BANDS[name]), 4, is_banded=True)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3, 4, 6, 8, 32])
@pytest.mark.parametrize("name", BANDS)
def test_all_gradients(name: str, devices: int) -> None:
    """A mask that is handed to a scan has what is kept of each turn for the gradient, which is whole."""
    tolerance = 3e-2 if name == "halves" else 2e-4
    banded = in_bands(closed := jax.make_jaxpr(loss_of(BANDS[name]))(*arrays()), devices) is not closed
    assert banded or name == "the mask made before a scan" or devices == 2
    check_same(loss_of(BANDS[name]), devices, is_banded=banded, tolerance=tolerance)


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_not_known_to_be_a_band_stays_whole(name: str) -> None:
    closed = jax.make_jaxpr(WHOLE[name])(*arrays())
    assert in_bands(closed, 8) is closed


def test_drawn_masks_are_true_where_they_are_said_to_be() -> None:
    rng, size, known = np.random.default_rng(0), 12, 0
    i, j = np.arange(size)[:, None], np.arange(size)[None, :]
    names = ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"]

    def drawn_mask(depth: int) -> Any:
        if not depth or rng.random() < 0.3:
            name, (a, b, c, d) = names[rng.integers(6)], rng.integers(-3, 4, 4).tolist()
            shape = rng.integers(4)
            if shape == 0:
                return lambda i, j: getattr(jnp, name)(abs(i - j + c), 3 + d)
            if shape == 1:
                return lambda i, j: getattr(jnp, name)(jnp.maximum(a * i - a * j, c), jnp.minimum(i - j + d, j - i))
            return lambda i, j: getattr(jnp, name)(a * i + c, d - j * (b if shape == 2 else -a))
        kind, left, right, choice = rng.integers(4), *(drawn_mask(depth - 1) for _ in range(3))
        if kind == 0:
            return lambda i, j: left(i, j) & right(i, j)
        if kind == 1:
            return lambda i, j: left(i, j) | right(i, j)
        if kind == 2:
            return lambda i, j: ~left(i, j)
        return lambda i, j: jnp.where(choice(i, j), left(i, j), right(i, j))

    def everywhere(mask: Any) -> Any:
        return mask(jnp.arange(size)[:, None], jnp.arange(size)) & jnp.ones((size, size), bool)

    for _ in range(40):
        mask = drawn_mask(3)
        closed = jax.make_jaxpr(partial(everywhere, mask))()
        facets = Facts(flattened(closed.jaxpr, closed.consts)).of(closed.jaxpr.outvars[0], Plane(0, 1))
        is_true = np.asarray(mask(i, j)) & np.ones((size, size), bool)
        known += facets.nonzero != EVERYWHERE
        for band, where in zip(facets, (is_true, ~is_true), strict=True):
            away = (j - i)[where]
            assert not away.size or (band.low <= away.min() and away.max() <= band.high)
    assert known > 15


def test_what_a_mask_says_of_its_diagonals() -> None:
    def facts(function: Any) -> Any:
        closed = jax.make_jaxpr(function)(jnp.ones((2, 8), bool))
        flat = flattened(closed.jaxpr, closed.consts)
        return Facts(flat).of(flat.results[0], Plane(1, 2)).nonzero

    i, j = np.arange(8)[:, None], np.arange(8)
    assert facts(lambda p: (jnp.arange(8)[:, None] - jnp.arange(8) < 3) & p[:, None]) == (-2, float("inf"))
    assert facts(lambda p: jnp.asarray(abs(i - j) < 3) & p[:, None]) == Band(-2, 2)
    assert facts(lambda p: p[:, None] & p[:, :, None]) == EVERYWHERE


@pytest.mark.parametrize(
    ("function", "least"),
    [
        (lambda q, k, v: jax.nn.dot_product_attention(q, k, v, local_window_size=(15, 0)), 2 * 15 * 2 * 8 * 4),
        pytest.param(
            jax.grad(
                lambda q, k, v: (jax.nn.dot_product_attention(q, k, v, local_window_size=(15, 0)) ** 2).sum(), (0, 1, 2)
            ),
            4 * 15 * 2 * 8 * 4,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["values", "gradients"],
)
def test_only_borders_move(function: Any, least: int) -> None:
    """The keys and the values of 15 places, of 2 heads of 8 floats; for the gradients what flows back to them too."""
    mesh = jax.make_mesh((8,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:8])
    end = jax.NamedSharding(mesh, jax.P(None, "x"))
    rng = np.random.default_rng(0)
    given = [rng.normal(size=(1, 256, 2, 8)).astype(np.float32) for _ in range(3)]
    placed = rs.jax.trace(function, *given, in_shardings=end, out_shardings=end, mesh=mesh).propagate(goal="bytes")
    run = jax.jit(rs.jax.to_jax(placed), in_shardings=(end,) * 3, out_shardings=end)
    compiled = run.lower(*given).compile()
    busiest = max(received_bytes(collectives(compiled.as_text(), 8), 8))
    assert least < busiest == placed.received_bytes <= 1.1 * least
    results = compiled(*(jax.device_put(array, end) for array in given))
    for own, theirs in zip(jax.tree.leaves(results), jax.tree.leaves(function(*given)), strict=True):
        np.testing.assert_allclose(own, theirs, rtol=1e-4, atol=1e-5)


def test_random_keys_beside_a_mask() -> None:
    """Keys are no numbers, chosen or known or handed to a scan as they may be."""
    outside = jax.random.key(7)

    def function(q: Any, k: Any, v: Any) -> Any:
        keys = jnp.where(jnp.arange(SIZE)[:, None] == jnp.arange(SIZE), outside, jax.random.key(1))
        near = abs(jnp.arange(SIZE)[:, None] - jnp.arange(SIZE)) < 2

        def layer(h: Any, key: Any) -> Any:
            weights = jax.nn.softmax(jnp.where(near, h @ k.T, -jnp.inf))
            noise = jax.random.uniform(key, h.shape) + jax.random.uniform(jax.random.fold_in(outside, 1), h.shape)
            return weights @ v + noise, None

        return jax.lax.scan(layer, q, jax.random.split(outside, 2))[0] + jax.random.uniform(keys[0, 0], q.shape)

    check_same(function, 8, is_banded=True)
