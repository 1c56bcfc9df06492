"""Functions of JAX that shift, slide or run along a dim that is cut, with what some device must receive by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

DEVICES = 8


class Case(NamedTuple):
    """A function of arrays, with how they lie."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    specs: tuple[tuple[str | None, ...], ...]
    """Per array the axis of each dim."""
    result: tuple[str | None, ...] | None = ()
    """That of the result; as the first array unless given, None where it may lie anywhere."""
    least: int | None = None
    """Bytes that some device must receive, by hand."""
    axes: tuple[int, ...] = (DEVICES,)
    """Of the mesh."""


def cases() -> dict[str, Case]:
    """All of them, by name."""
    rows, row = ((1024, 64),), (("x", None),)
    image, lying = (4, 256, 32, 8), (None, "x", None, None)
    numbers = ("NHWC", "HWIO", "NHWC")

    def conv(x: Any, w: Any, stride: int = 1, padding: Any = "SAME", **how: Any) -> Any:
        strides = (stride,) * (x.ndim - 2)
        names = numbers if x.ndim == 4 else ("NHC", "HIO", "NHC")
        return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=names, **how)

    def convolved(function: Callable[..., Any], kernel: int, least: int | None = None, **how: Any) -> Case:
        weight = (kernel, kernel, how.pop("features", 8), 8)
        return Case(function, (image, weight), (lying, (None,) * 4), lying, least, **how)

    def loss_of(function: Callable[..., Any], *numbers: int) -> Callable[..., Any]:
        return jax.grad(lambda *arrays: (function(*arrays) ** 2).sum(), numbers or 0)

    def pool(x: Any, size: int, stride: int, what: Any = lax.max, start: float = -jnp.inf) -> Any:
        return lax.reduce_window(x, start, what, (1, size, size, 1), (1, stride, stride, 1), "SAME")

    def pipeline(x: Any, w: Any) -> Any:
        return lax.scan(lambda x, _: (jnp.roll(jnp.tanh(jnp.einsum("sbd,sde->sbe", x, w)), 1, 0), None), x, None, 8)[0]

    def attention(q: Any, k: Any, v: Any) -> Any:
        places = jnp.arange(q.shape[0])
        near = (places[:, None] >= places) & (places[:, None] - places < 64)
        scores = jnp.where(near, jnp.einsum("sd,td->st", q, k), -1e9)
        return jnp.einsum("st,td->sd", jax.nn.softmax(scores), v)

    def stencil(u: Any) -> Any:
        return u.at[1:-1].set(u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2]))

    def laplacian(u: Any) -> Any:
        return sum(jnp.roll(u, by, dim) for by in (1, -1) for dim in (0, 1)) - 4 * u

    def rotated(x: Any) -> Any:
        low, high = jnp.split(x, 2, axis=0)
        return jnp.concatenate([-high, low], axis=0)

    def recurrence(x: Any) -> Any:
        decay = jnp.full_like(x, 0.5)
        return lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (decay, x))[1]

    batch = ((32, 1024),), ((None, "x"),)
    vocabulary = Case(lambda x: x, ((32, 4096),), ((None, "x"),), (None, None))
    return {
        "roll by 1": Case(lambda x: jnp.roll(x, 1, 0), rows, row, least=256),
        "roll by 200, over tiles of 128": Case(lambda x: jnp.roll(x, 200, 0), rows, row, least=32768),
        "gradient of a roll": Case(loss_of(lambda x: jnp.roll(x, 3, 0) * x), rows, row),
        "roll of a small tensor": Case(lambda x: jnp.roll(x, 1, 0), ((64, 32),), row, least=128),
        "roll of both dims": Case(
            lambda x: jnp.roll(x, (1, 2), (0, 1)), ((64, 32),), (("x", "y"),), least=4 * (32 // 2 + 16 * 2), axes=(4, 2)
        ),
        "pipeline by roll in a scan": Case(
            pipeline, ((8, 16, 64), (8, 64, 64)), (("x", None, None),) * 2, least=8 * 16 * 64 * 4
        ),
        "differences of neighbours": Case(lambda x: jnp.diff(x, axis=0), rows, row, None, least=896 * 256),  # whole
        "gradient by central differences": Case(lambda x: jnp.gradient(x, axis=0), rows, row, least=512),
        "sum over an odd number of rows": Case(lambda x: (jnp.diff(x, axis=0) ** 2).sum(), rows, row, None, 256 + 4),
        "largest of an odd number of rows": Case(lambda x: x[1:].max(0), rows, row, (None,), 256 + 448),
        "product over an odd number of rows": Case(
            lambda x, y: x[1:].T @ y[1:], ((1024, 64),) * 2, (("x", None),) * 2, (None, None)
        ),
        "stencil update": Case(stencil, ((4096, 64),), row, least=512),
        "stencil update, 10 times": Case(
            lambda u: lax.fori_loop(0, 10, lambda _, u: stencil(u), u), ((4096, 64),), row, least=5120
        ),
        "stencil that goes round, two dims": Case(
            laplacian, ((512, 512),), (("x", "y"),), least=2 * 4 * (128 + 256), axes=(4, 2)
        ),
        "border that goes round": Case(lambda x: jnp.pad(x, ((1, 1), (0, 0)), mode="wrap"), rows, row, None),
        "pad by 4 on both sides": Case(lambda x: jnp.pad(x, ((4, 4), (0, 0))), rows, row, None),
        "inner rows": Case(lambda x: x[8:-8], rows, row),
        "every second row": Case(lambda x: x[::2], rows, row, least=0),
        "every second row, of pairs": Case(lambda x: x[::2] + x[1::2], rows, row, least=0),
        "reversal": Case(lambda x: x[::-1], rows, row, least=32768),
        "two tensors one after another": Case(
            lambda x, y: jnp.concatenate([x, y]), ((1024, 64),) * 2, (("x", None),) * 2
        ),
        "halves turned round": Case(rotated, rows, row, least=32768),
        "convolution 3 x 3": convolved(conv, 3, 2 * 4 * 32 * 8 * 4),
        "convolution 9 x 9": convolved(conv, 9, 8 * 4 * 32 * 8 * 4),
        "convolution 81, wider than a tile": Case(
            conv, ((4, 256, 8), (81, 8, 8)), ((None, "x", None), (None,) * 3), least=80 * 4 * 8 * 4
        ),
        "convolution 3 x 3, stride 2": convolved(partial(conv, stride=2), 3, 4 * 32 * 8 * 4),
        "convolution 3 x 3, dilation 2": convolved(partial(conv, rhs_dilation=(2, 2)), 3, 4 * 4 * 32 * 8 * 4),
        "convolution 4 x 4, even": convolved(conv, 4, 3 * 4 * 32 * 8 * 4),
        "convolution 3 x 3 by channel": convolved(
            partial(conv, feature_group_count=8), 3, 2 * 4 * 32 * 8 * 4, features=1
        ),
        "convolution transposed, 2": convolved(
            partial(conv, padding=((1, 2), (1, 2)), lhs_dilation=(2, 2)), 3, 4 * 32 * 8 * 4
        ),
        "convolution of rows and columns": Case(
            conv,
            (image, (3, 3, 8, 8)),
            ((None, "x", "y", None), (None,) * 4),
            least=4 * 8 * 4 * (2 * 17 + 64),
            axes=(4, 2),
        ),
        "causal convolution": Case(
            partial(conv, padding=((3, 0),)), ((4, 256, 8), (4, 8, 8)), ((None, "x", None), (None,) * 3), least=384
        ),
        "gradient of a convolution, image": convolved(loss_of(conv), 3),
        "gradient of a convolution, kernel": convolved(loss_of(conv, 1), 3)._replace(result=None),
        "gradient of a convolution, stride 2": convolved(loss_of(partial(conv, stride=2)), 3),
        "pooling by maximum 3, stride 2": Case(lambda x: pool(x, 3, 2), (image,), (lying,)),
        "pooling by maximum 2": Case(lambda x: pool(x, 2, 2), (image,), (lying,), least=0),
        "pooling by average 3": Case(lambda x: pool(x, 3, 1, lax.add, 0.0), (image,), (lying,), least=8192),
        "gradient of a pooling 3": Case(loss_of(lambda x: pool(x, 3, 2)), (image,), (lying,)),
        "running sum": Case(lambda x: jnp.cumsum(x, 0), rows, row, least=256),
        "running product": Case(lambda x: jnp.cumprod(x, 0), rows, row, least=256),
        "running maximum": Case(lambda x: lax.cummax(x, 0), rows, row, least=256),
        "running logarithm of sums": Case(lambda x: lax.cumlogsumexp(x, 0), rows, row, least=256),
        "running sum from behind": Case(lambda x: lax.cumsum(x, 0, reverse=True), rows, row, least=256),
        "running sum of what is before": Case(
            lambda x: jnp.cumsum(jnp.pad(x, ((1, 0), (0, 0)))[:-1], 0), rows, row, least=256
        ),
        "what is before a running product": Case(
            lambda x: jnp.concatenate([jnp.ones((1, 64)), jnp.cumprod(x[:-1], 0)]), rows, row, least=256
        ),
        "running maximum of what is behind": Case(
            lambda x: jnp.tanh(lax.cummax(jnp.concatenate([x[1:], jnp.full((1, 64), -jnp.inf)]), 0, reverse=True)),
            rows,
            row,
            least=256,
        ),
        "running sum of what is two before": Case(
            lambda x: jnp.pad(jnp.cumsum(x, 0), ((2, 0), (0, 0)))[:-2], rows, row, least=512
        ),
        "gradient of a running sum of what is before": Case(
            loss_of(lambda x: jnp.pad(jnp.cumsum(x[:-1], 0), ((1, 0), (0, 0)))), rows, row, least=512
        ),
        "gradient of a running sum": Case(loss_of(lambda x: jnp.cumsum(x, 0)), rows, row, least=512),
        "associative scan": Case(lambda x: lax.associative_scan(jnp.add, x), rows, row),
        "linear recurrence by associative scan": Case(recurrence, rows, row),
        "top 8 over a vocabulary": vocabulary._replace(function=lambda x: lax.top_k(x, 8)[0], least=None),
        "top 8 over a vocabulary, places": vocabulary._replace(function=lambda x: lax.top_k(x, 8)[1], least=None),
        "place of the largest": vocabulary._replace(function=lambda x: jnp.argmax(x, 1), result=(None,)),
        "sort of a cut dim": Case(lambda x: jnp.sort(x, 1), *batch, least=28672),
        "fft of a cut dim": Case(lambda x: jnp.abs(jnp.fft.fft(x, axis=1)), *batch, least=28672),
        "fft of two dims": Case(lambda x: jnp.abs(jnp.fft.fft2(x)), ((256, 256),), (("x", None),)),
        "attention in a window, by mask": Case(attention, ((1024, 64),) * 3, (("x", None),) * 3, least=2 * 63 * 256),
        "slice at a known place": Case(lambda x: lax.dynamic_slice(x, (8, 0), (1008, 64)), rows, row),
        "update at a known place": Case(
            lambda x, y: lax.dynamic_update_slice(x, y, (8, 0)), ((1024, 64), (512, 64)), (("x", None),) * 2
        ),
        "sum at known places": Case(lambda x: x.at[1:-1].add(1.0), rows, row, least=0),
        "one of two, of which one reverses": Case(
            lambda x, n: lax.switch((n[0] > 0).astype(int), [lambda x: x, lambda x: x[::-1]], x),
            ((1024, 64), (1,)),
            (("x", None), (None,)),
        ),
        "neighbours by their numbers": Case(lambda x: x[(jnp.arange(1024) + 1) % 1024], rows, row, least=256),
    }
