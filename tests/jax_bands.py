"""Functions of JAX with masks that are true near the diagonal only, in the spellings that people use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

SIZE, FEATURES = 96, 5


def rows() -> Any:
    return jnp.arange(SIZE)[:, None]


def columns() -> Any:
    return jnp.arange(SIZE)[None, :]


def near(width: int = 9) -> Any:
    return (rows() - columns() < width) & (rows() >= columns())


def divided(scores: Any) -> Any:
    exponents = jnp.exp(scores - scores.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


def by_logarithm(scores: Any) -> Any:
    return jnp.exp(scores - jax.nn.logsumexp(scores, -1, keepdims=True))


def attention(mask: Any = near, fill: float = -jnp.inf, softmax: Any = jax.nn.softmax, before: Any = None) -> Any:
    def function(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("qd,kd->qk", q, k)
        scores = before(scores) if before else scores
        return softmax(jnp.where(mask() if callable(mask) else mask, scores, fill)) @ v

    return function


def with_given(function: Callable[[Any], Any]) -> Any:
    """A mask of which a part is given."""
    return lambda q, k, v: attention(near() & function(v[:, 0]), -1e9)(q, k, v)


def in_layers(q: Any, k: Any, v: Any) -> Any:
    mask = near()
    return lax.scan(lambda x, _: (x + attention(mask)(x, k, v), None), q, None, 2)[0]


def twice(q: Any, k: Any, v: Any) -> Any:
    return attention(lambda: near(5))(q + attention(lambda: rows() >= columns(), -1e9)(q, k, v), k, v)


def library(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.reshape(1, SIZE, 1, FEATURES) for x in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, local_window_size=(4, 3)).reshape(SIZE, FEATURES)


def neighbours(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(jnp.where(near(), -((q[:, None] - k) ** 2).sum(-1), -jnp.inf)) @ v


def in_halves(q: Any, k: Any, v: Any) -> Any:
    return attention(fill=-1e9)(*(x.astype(jnp.bfloat16) for x in (q, k, v))).astype(jnp.float32)


BANDS: dict[str, Callable[..., Any]] = {
    "causal, minus infinity": attention(),
    "causal, a large number": attention(fill=-1e9),
    "both sides, of arrays": attention(
        np.tril(np.ones((SIZE, SIZE), bool), 3) & np.triu(np.ones((SIZE, SIZE), bool), -7)
    ),
    "a distance": attention(lambda: abs(rows() - columns()) < 6),
    "of triangles of numbers": attention(
        lambda: jnp.tril(jnp.ones((SIZE, SIZE))) * jnp.triu(jnp.ones((SIZE, SIZE)), -5) > 0
    ),
    "the other way round": attention(lambda: ~((rows() - columns() >= 9) | (columns() > rows()))),
    "of smallest and largest": attention(
        lambda: (jnp.minimum(rows() - columns(), 20) < 9) & (jnp.maximum(columns() - rows(), -3) <= 0)
    ),
    "below the diagonal": attention(lambda: (columns() < rows() - 3) & (columns() >= rows() - 11), -1e9),
    "in chunks": attention(lambda: (rows() // 12 == columns() // 12) | (abs(rows() - columns()) < 3)),
    "divided by hand": attention(softmax=divided),
    "by logarithms": attention(softmax=by_logarithm),
    "numbers that go with the distance": attention(before=lambda s: s - 0.1 * (rows() - columns()).astype(jnp.float32)),
    "added, minus infinity": lambda q, k, v: jax.nn.softmax(q @ k.T + jnp.where(near(), 0, -jnp.inf)) @ v,
    "capped": attention(fill=-2e38, before=lambda s: 50 * jnp.tanh(s / 50)),
    "rows that see nothing": attention(lambda: near() & (rows() != 40) & (rows() > 3), -1e9),
    "rows that see nothing, minus infinity": attention(lambda: near() & (rows() != 40)),
    "padding": with_given(lambda x: x[None] > -0.5),
    "segments": with_given(lambda x: (x > 0.5).cumsum()[:, None] == (x > 0.5).cumsum()),
    "without a softmax": lambda q, k, v: jnp.where(near(), q @ k.T, 0) @ v,
    "without a softmax, another number": lambda q, k, v: jnp.where(near(), q @ k.T, 2.5) @ v,
    "sums of rows": lambda q, k, v: jnp.where(near(), q @ k.T, 2.5).sum(1, keepdims=True) * v,
    "sums of columns": lambda q, k, v: jnp.where(near(), q @ k.T, 1.5).sum(0)[:, None] * v,
    "neighbours by their distance": neighbours,
    "in a function of its own": jax.jit(attention()),
    "a band and a triangle": twice,
    "the mask made before a scan": in_layers,
    "the library's": library,
    "halves": in_halves,
}
WHOLE: dict[str, Callable[..., Any]] = {
    "weights are given back": lambda q, k, v: (p := jax.nn.softmax(jnp.where(near(), q @ k.T, -1e9)), p @ v),
    "added, a large number": lambda q, k, v: jax.nn.softmax(q @ k.T + jnp.where(near(), 0, -1e9)) @ v,
    "a triangle": attention(lambda: rows() >= columns()),
    "nearly all": attention(lambda: abs(rows() - columns()) < 70),
    "a width that is given": lambda q, k, v: attention(lambda: rows() - columns() < v[0, 0])(q, k, v),
    "mixed with all": attention(lambda: near() | (columns() == 0)),
}
