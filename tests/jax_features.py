"""A hundred features of JAX, each a function of a matrix of 16 x 8 that is cut by rows, or by both dims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jax import lax

ROWS, COLUMNS = 16, 8


def looped(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda n, y: y * 0.5 + n, x)


def until(x: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))[1]


def scanned(x: Any) -> Any:
    return lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(COLUMNS), x)[1]


@jax.custom_jvp
def own_jvp(x: Any) -> Any:
    return jnp.sin(x)


own_jvp.defjvps(lambda t, ans, x: t * jnp.cos(x))


@jax.custom_vjp
def own_vjp(x: Any) -> Any:
    return jnp.sin(x)


own_vjp.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * 2 * jnp.cos(x),))


def by_reference(x: Any) -> Any:
    cell = jax.new_ref(x)
    cell[0] = cell[1] * 2
    return cell[...]


def attention(x: Any) -> Any:
    heads = x.reshape(1, ROWS, 2, COLUMNS // 2)
    return jax.nn.dot_product_attention(heads, heads, heads, is_causal=True).reshape(x.shape)


def convolution(x: Any) -> Any:
    kernel = jnp.ones((3, COLUMNS, COLUMNS)) / 9
    return lax.conv_general_dilated(x[None], kernel, (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC"))[0]


def pooled(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (3, 1), (1, 1), "SAME")


def positive(x: Any) -> Any:
    return x.T @ x + COLUMNS * jnp.eye(COLUMNS)


FEATURES: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: (x + 1) * 2 / (x * x + 3) - x**3,
    "comparison and where": lambda x: jnp.where(x > 0, x, -x),
    "clip": lambda x: jnp.clip(x, -0.5, 0.5),
    "exp, log": lambda x: jnp.log1p(jnp.exp(x)),
    "trigonometry": lambda x: jnp.sin(x) + jnp.arctan2(x, 2.0),
    "special functions": lambda x: jsp.special.erf(x) + jsp.special.gammaln(jnp.abs(x) + 1),
    "gelu": jax.nn.gelu,
    "softmax of rows": lambda x: jax.nn.softmax(x, 1),
    "softmax of columns": lambda x: jax.nn.softmax(x, 0),
    "logsumexp": lambda x: jsp.special.logsumexp(x, 0),
    "layer norm": lambda x: (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True) + 1e-5),
    "integers and bits": lambda x: (x.astype(jnp.int32) & 3) ^ 5,
    "casts": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    "complex numbers": lambda x: jnp.abs(x + 1j * x),
    "bool reductions": lambda x: (x > 0).any(0) & (x < 3).all(0),
    "sum": lambda x: x.sum(),
    "mean and variance": lambda x: x.mean(0) + x.var(0),
    "max and min": lambda x: x.max(0) - x.min(0),
    "product": lambda x: jnp.prod(x, 0),
    "norm": jnp.linalg.norm,
    "argmax": lambda x: jnp.argmax(x, 0),
    "argmin": lambda x: jnp.argmin(x, 1),
    "median": lambda x: jnp.median(x, 0),
    "matmul": lambda x: x @ x.T,
    "einsum": lambda x: jnp.einsum("ij,kj,kl->il", x, x, x),
    "batched matmul": lambda x: jnp.matmul(x.reshape(4, 4, 8), x.reshape(4, 8, 4)),
    "outer product": lambda x: jnp.outer(x[:, 0], x[0]),
    "kron": lambda x: jnp.kron(x[:4], x[:2]),
    "transpose": lambda x: x.T,
    "reshape": lambda x: x.reshape(4, 32),
    "broadcast": lambda x: jnp.broadcast_to(x, (3, ROWS, COLUMNS)),
    "squeeze and expand": lambda x: jnp.squeeze(x[:, None], 1)[None],
    "concatenate": lambda x: jnp.concatenate([x, 2 * x]),
    "stack": lambda x: jnp.stack([x, -x], 1),
    "split": lambda x: jnp.split(x, 4)[1],
    "tile": lambda x: jnp.tile(x, (2, 1)),
    "repeat": lambda x: jnp.repeat(x, 2, axis=0),
    "slice": lambda x: x[2:14:3],
    "flip": lambda x: x[::-1],
    "roll": lambda x: jnp.roll(x, 3, 0),
    "pad": lambda x: jnp.pad(x, ((1, 3), (0, 0))),
    "pad by reflection": lambda x: jnp.pad(x, ((2, 2), (0, 0)), mode="reflect"),
    "pad by edges": lambda x: jnp.pad(x, ((2, 2), (0, 0)), mode="edge"),
    "differences": lambda x: jnp.diff(x, axis=0),
    "one row": lambda x: x[3],
    "row that is computed": lambda x: x[jnp.argmax(x[:, 0])],
    "dynamic slice": lambda x: lax.dynamic_slice(x, (jnp.argmax(x[:, 0]), 0), (4, 8)),
    "dynamic update": lambda x: lax.dynamic_update_slice(x, x[:2], (jnp.argmax(x[:, 0]), 0)),
    "take rows": lambda x: x[jnp.array([3, 1, 2])],
    "take along": lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
    "neighbours": lambda x: x[(jnp.arange(ROWS) + 1) % ROWS],
    "windows by gather": lambda x: x[jnp.arange(14)[:, None] + jnp.arange(3)],
    "set": lambda x: x.at[3].set(0.0),
    "set of an inner part": lambda x: x.at[1:-1].set(x[2:] + x[:-2]),
    "applied at": lambda x: x.at[::2].apply(jnp.sin),
    "reduction of two": lambda x: lax.reduce((x, x), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (0,)),
    "add at": lambda x: x.at[jnp.array([1, 1, 2])].add(1.0),
    "segment sum": lambda x: jax.ops.segment_sum(x, jnp.arange(ROWS) // 4, 4),
    "one hot": lambda x: jax.nn.one_hot(jnp.argmax(x, 1), COLUMNS),
    "diagonal": jnp.diagonal,
    "triangle": jnp.tril,
    "iota": lambda x: x + jnp.arange(ROWS)[:, None],
    "linspace and mesh": lambda x: x * jnp.linspace(0, 1, COLUMNS),
    "cumsum": lambda x: jnp.cumsum(x, 0),
    "cumulative maximum": lambda x: lax.cummax(x, 0, reverse=True),
    "cumulative logsumexp": lambda x: lax.cumlogsumexp(x, 0),
    "associative scan": lambda x: lax.associative_scan(jnp.add, x),
    "sort": lambda x: jnp.sort(x, 0),
    "argsort": lambda x: jnp.argsort(x, 0),
    "top k": lambda x: lax.top_k(x.T, 3)[0],
    "approximate top k": lambda x: lax.approx_max_k(x, 2)[0],
    "searchsorted": lambda x: jnp.searchsorted(jnp.arange(8.0), x[:, 0]),
    "histogram": lambda x: jnp.histogram(x, 4, (-2.0, 2.0))[0],
    "fft": lambda x: jnp.abs(jnp.fft.fft(x, axis=0)),
    "real fft": lambda x: jnp.fft.irfft(jnp.fft.rfft(x, axis=1), axis=1),
    "convolution": convolution,
    "pooling": pooled,
    "resize": lambda x: jax.image.resize(x, (8, 8), "linear"),
    "cholesky": lambda x: jnp.linalg.cholesky(positive(x)),
    "solve": lambda x: jnp.linalg.solve(positive(x), x.T),
    "inverse and determinant": lambda x: jnp.linalg.inv(positive(x)) * jnp.linalg.det(positive(x) / 20),
    "eigenvalues": lambda x: jnp.linalg.eigvalsh(positive(x)),
    "singular values": lambda x: jnp.linalg.svd(x, compute_uv=False),
    "qr": lambda x: jnp.abs(jnp.linalg.qr(x)[1]),
    "matrix exponential": lambda x: jsp.linalg.expm(positive(x) / 40),
    "scan": scanned,
    "fori loop": looped,
    "while loop": until,
    "while loops in a batch": jax.vmap(lambda row: lax.while_loop(lambda s: s.sum() < 5, lambda s: s + 0.5, row)),
    "loops of their own lengths": jax.vmap(
        lambda row: lax.fori_loop(0, (jnp.abs(row[0]) * 3).astype(int), lambda n, s: s * 0.5 + n, row)
    ),
    "map": lambda x: lax.map(lambda row: row * row.sum(), x),
    "cond": lambda x: lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, x),
    "switch": lambda x: lax.switch(2, [lambda x: x, lambda x: -x, lambda x: x[::-1]], x),
    "vmap": jax.vmap(lambda row: row @ row),
    "vmap with a sum over it": jax.vmap(lambda row: row / lax.psum(row, "n"), axis_name="n"),
    "grad": jax.grad(lambda x: (jnp.tanh(x) ** 2).sum()),
    "jvp": lambda x: jax.jvp(jnp.sin, (x,), (x,))[1],
    "hessian": lambda x: jax.hessian(lambda row: (row**3).sum())(x[0]),
    "checkpoint": jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum()),
    "own jvp": own_jvp,
    "own vjp": jax.grad(lambda x: own_vjp(x).sum()),
    "attention": attention,
    "random numbers": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    "dropout": lambda x: jnp.where(jax.random.bernoulli(jax.random.key(1), 0.5, x.shape), x, 0),
    "choice of random rows": lambda x: jax.random.permutation(jax.random.key(2), x),
    "barrier": lambda x: lax.optimization_barrier(x * 2),
    "named": jax.named_call(jnp.tanh, name="own"),
    "reference": by_reference,
    "polynomial": lambda x: jnp.polyval(jnp.array([1.0, 2.0, 3.0]), x),
    "interpolation": lambda x: jnp.interp(x, jnp.arange(4.0), jnp.arange(4.0) ** 2),
    "closed-over array": lambda x: x + np.arange(COLUMNS, dtype=np.float32),
    "callback": lambda x: jax.pure_callback(lambda y: np.asarray(y) * 2, jax.ShapeDtypeStruct((16, 8), "float32"), x),
}
