"""Functions of plain `jax.numpy` that between them use every primitive that a trace must know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Arrays = tuple[np.ndarray[Any, Any], ...]


def floats(*shapes: tuple[int, ...]) -> Callable[[], Arrays]:
    def draw() -> Arrays:
        rng = np.random.default_rng(sum(map(len, shapes)) + len(shapes))
        return tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)

    return draw


def with_ints(shape: tuple[int, ...], limit: int, *shapes: tuple[int, ...]) -> Callable[[], Arrays]:
    def draw() -> Arrays:
        rng = np.random.default_rng(limit)
        given = [rng.integers(0, limit, shape).astype(np.int32)]
        return (*(rng.normal(size=one).astype(np.float32) for one in shapes), *given)

    return draw


def attention(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, w) for w in (wq, wk, wv))
    scores = jnp.einsum("bshk,bthk->bhst", q, k) / np.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhst,bthk->bshk", weights, v)


def embedding_loss(table: Any, w: Any, ids: Any) -> Any:
    x = table[ids]
    logits = jax.nn.log_softmax(x @ w)
    return -jnp.take_along_axis(logits, ids[..., None] % w.shape[1], axis=-1).mean()


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return 2 * x


doubled.defvjp(lambda x: (2 * x, None), lambda _, g: (3 * g,))  # a derivative that tells itself apart


def stack(x: Any, w: Any) -> Any:
    def layer(h: Any, one: Any) -> tuple[Any, Any]:
        h = jnp.tanh(h @ one) + h
        return h, h.sum()

    return lax.scan(layer, x, w)


def nested_scan(x: Any) -> Any:
    def outer(carry: Any, row: Any) -> tuple[Any, Any]:
        inner, parts = lax.scan(lambda c, _: (jnp.sin(c) + row, c[0]), carry, None, length=2)
        return inner, parts

    return lax.scan(outer, x[0], x, reverse=True)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], Arrays]]] = {
    "matmul": (lambda a, b: a @ b, floats((8, 16), (16, 24))),
    "batched": (lambda a, b: jnp.einsum("bij,bkj->bki", a, b), floats((4, 8, 16), (4, 24, 16))),
    "attention": (attention, floats((4, 8, 16), (16, 4, 8), (16, 4, 8), (16, 4, 8))),
    "mean and variance": (
        lambda a: (a - a.mean(-1, keepdims=True)) / jnp.sqrt(a.var(-1) + 1)[:, None],
        floats((8, 16)),
    ),
    "max min product": (lambda a: (a.max(0), a.min(1), a.prod(0), jnp.abs(a).max()), floats((8, 16))),
    "logsumexp": (lambda a: jax.nn.logsumexp(a, axis=1), floats((8, 16))),
    "any all": (lambda a: ((a > 0).any(0), (a > 0).all(1)), floats((8, 16))),
    "reshape": (
        lambda a: (a.reshape(8, 4, 4), a.reshape(-1), a.reshape(4, 2, 16), lax.reshape(a, (4, 32), (1, 0))),
        floats((8, 16)),
    ),
    "split heads": (lambda a: jnp.swapaxes(a.reshape(8, 4, 4, 4), 1, 2).reshape(8, 4, 16), floats((8, 4, 16))),
    "broadcast": (lambda a, b: a[:, None] * b[None] + a.sum(), floats((8, 16), (4, 16))),
    "slice": (lambda a: (a[2:6], a[:, ::3], a[:, 1], a[::-1]), floats((8, 16))),
    "dynamic slice": (
        lambda a, i: lax.dynamic_slice(a, (i[0], 0), (2, 16)) + lax.dynamic_index_in_dim(a, i[1], 0),
        with_ints((2,), 6, (8, 16)),
    ),
    "dynamic update": (
        lambda a, b, i: lax.dynamic_update_slice(a, b, (0, i[0])),
        with_ints((1,), 8, (8, 16), (8, 4)),
    ),
    "concatenate": (lambda a, b: jnp.concatenate([a, b, a], axis=1), floats((8, 16), (8, 4))),
    "rotate half": (
        lambda a: jnp.concatenate([-a[..., 8:], a[..., :8]], -1) * jnp.cos(jnp.arange(16.0)),
        floats((8, 16)),
    ),
    "pad": (lambda a: (jnp.pad(a, ((1, 2), (0, 0))), lax.pad(a, 1.0, ((0, 0, 1), (-1, 0, 0)))), floats((8, 16))),
    "select clamp": (lambda a: jnp.where(a > 0, jnp.clip(a, 0.1, 0.5), -a), floats((8, 16))),
    "convert": (lambda a: a.astype(jnp.bfloat16).astype(jnp.float32) + (a > 0).astype(jnp.int32), floats((8, 16))),
    "iota": (lambda a: a * jnp.arange(8.0)[:, None] + lax.broadcasted_iota(jnp.float32, (8, 16), 1), floats((8, 16))),
    "captured": (lambda a: a + jnp.asarray(np.arange(128.0, dtype=np.float32).reshape(8, 16)), floats((8, 16))),
    "cumulative": (lambda a: (jnp.cumsum(a, 0), lax.cummax(a, 1), jnp.cumprod(a, 1)), floats((8, 16))),
    "argmax sort top": (
        lambda a: (a.argmax(1), jnp.sort(a, 0), jnp.argsort(a, 1), lax.top_k(a, 2)),
        floats((8, 16)),
    ),
    "one number put": (lambda a: (a[0].at[3].set(1.0), a[:, 0].at[-1].set(a[0, 1])), floats((8, 16))),
    "embedding": (lambda t, i: t[i], with_ints((4, 6), 24, (24, 16))),
    "embedding outside": (lambda t, i: jnp.take(t, i, axis=0), with_ints((4, 6), 30, (24, 16))),
    "embedding clipped": (lambda t, i: jnp.take(t, i, axis=0, mode="clip"), with_ints((4, 6), 30, (24, 16))),
    "columns": (lambda t, i: jnp.take(t, i, axis=1), with_ints((4,), 16, (24, 16))),
    "one per row": (lambda a, i: jnp.take_along_axis(a, i[:, None], 1), with_ints((8,), 16, (8, 16))),
    "scatter add": (lambda a, b, i: a.at[i].add(b), with_ints((4,), 24, (24, 16), (4, 16))),
    "scatter add outside": (lambda b, i: jnp.zeros((24, 16)).at[i].add(b), with_ints((4,), 30, (4, 16))),
    "loss": (embedding_loss, with_ints((4, 8), 24, (24, 16), (16, 40))),
    "jit inside": (lambda a: jax.jit(jax.nn.relu)(a) + jax.nn.gelu(a) + jax.checkpoint(jnp.sin)(a), floats((8, 16))),
    "own derivative": (doubled, floats((8, 16))),
    "scan": (stack, floats((8, 16), (3, 16, 16))),
    "nested scan": (nested_scan, floats((4, 16))),
    "choice": (lambda a: lax.cond(a[0, 0] > 0, jnp.sin, lambda b: b - b.sum(0), a) + a, floats((8, 16))),
    "own reduction": (
        lambda a: a + lax.reduce(a / 9, np.float32(0), lambda b, c: b + c + b * c, (1,))[:, None],
        floats((8, 16)),
    ),
}
GRADIENTS = (
    "matmul", "attention", "mean and variance", "max min product", "logsumexp", "reshape", "split heads", "broadcast",
    "slice", "dynamic slice", "concatenate", "rotate half", "pad", "select clamp", "convert", "cumulative", "embedding",
    "columns", "one per row", "scatter add", "loss", "jit inside", "own derivative", "scan", "nested scan", "choice",
    "own reduction",
)  # fmt: skip
"""Those of which a gradient is taken, in their floating-point arguments."""


def scalar(function: Callable[..., Any]) -> Callable[..., Any]:
    """A number that depends on all floating-point results."""

    def total(*args: Any) -> Any:
        leaves = [leaf for leaf in jax.tree.leaves(function(*args)) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
        return sum(((leaf * jnp.cos(leaf)).sum() for leaf in leaves), jnp.float32(0))

    return total
