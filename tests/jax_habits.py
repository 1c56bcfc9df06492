"""Functions as users of JAX write them, of which some dim is cut: what models, stencils and signals are made of."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax_shifts import Case

ROWS, CUT = (1024, 64), ("x", None)
SEQUENCE, LYING = (4, 256, 16), (None, "x", None)
IMAGE, IN_ROWS = (2, 64, 32, 4), (None, "x", None, None)
WHOLE: dict[int, Any] = {ndim: (None,) * ndim for ndim in range(5)}


def along(x: Any, w: Any, low: int, **options: Any) -> Any:
    """A convolution of a sequence."""
    return lax.conv_general_dilated(x, w, (1,), ((low, 0),), dimension_numbers=("NHC", "HIO", "NHC"), **options)


def over(x: Any, w: Any, padding: Any = "SAME", **options: Any) -> Any:
    """A convolution of images."""
    steps = options.pop("steps", (1, 1))
    return lax.conv_general_dilated(x, w, steps, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)


def wavenet(x: Any, wide: Any, gate: Any, mixed: Any) -> Any:
    for apart in (1, 2, 4):
        new, open_ = (along(x, w, apart, rhs_dilation=(apart,)) for w in (wide, gate))
        x = x + (jnp.tanh(new) * jax.nn.sigmoid(open_)) @ mixed
    return x


def padded(mode: str) -> Any:
    return lambda x, w: along(jnp.pad(x, ((0, 0), (2, 2), (0, 0)), mode=mode), w, 0)


def jacobi(u: Any, f: Any) -> Any:
    def step(_: Any, u: Any) -> Any:
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        return u.at[1:-1, 1:-1].set(0.25 * (around - f[1:-1, 1:-1]))

    return lax.fori_loop(0, 5, step, u)


def nine_points(u: Any) -> Any:
    steps = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    return sum(weight * jnp.roll(u, step, (0, 1)) for weight, step in enumerate(steps, 1))


def after(first: Any, second: Any) -> Any:
    return first[0] * second[0], second[0] * first[1] + second[1]


def selective_scan(x: Any, step: Any, a: Any, b: Any, c: Any) -> Any:
    step = jax.nn.softplus(step)
    decay, new = jnp.exp(-step[..., None] * jnp.exp(a)), (step * x)[..., None] * b[:, :, None]
    return (lax.associative_scan(after, (decay, new), axis=1)[1] * c[:, :, None]).sum(-1)


def library_attention(q: Any, k: Any, v: Any) -> Any:
    heads = (x.reshape(1, 1024, 4, 16) for x in (q, k, v))
    return jax.nn.dot_product_attention(*heads, local_window_size=(32, 0)).reshape(1024, 64)


def second(x: Any) -> Any:
    """The second difference of rows that have one more on each side."""
    return x[2:] - 2 * x[1:-1] + x[:-2]


def around(x: Any, inside: Any) -> Any:
    """The sum of each row with those beside it, by their numbers."""
    places = inside(jnp.arange(len(x))[:, None] + jnp.arange(-1, 2), 0, len(x) - 1)
    return (x[places] * jnp.arange(1.0, 4)[:, None]).sum(1)


def gathered(q: Any, k: Any, v: Any) -> Any:
    """Attention to the seven rows before and the own, by their numbers."""
    places = jnp.arange(512)[:, None] - jnp.arange(8)
    inside = jnp.maximum(places, 0)
    scores = jnp.where(places >= 0, jnp.einsum("qd,qwd->qw", q, k[inside]), -1e9)
    return jnp.einsum("qw,qwd->qd", jax.nn.softmax(scores), v[inside])


def numbers(x: Any) -> Any:
    return (jnp.abs(x) * 100).astype(int) % 1024


def fft_convolution(x: Any, k: Any) -> Any:
    both = (jnp.fft.rfft(each, 2048, axis=0) for each in (x, k))
    return jnp.fft.irfft(next(both) * next(both), 2048, axis=0)[:1024]


def frames(x: Any, every: int, size: int) -> Any:
    return x[jnp.arange(0, x.shape[0] - size + 1, every)[:, None] + jnp.arange(size)]


def moving(x: Any) -> Any:
    sums = jnp.cumsum(jnp.pad(x, ((16, 0), (0, 0))), 0)
    return sums[16:] - sums[:-16]


def heat(u: Any) -> Any:
    return u + 0.1 * (jnp.pad(u, ((1, 0), (0, 0)))[:-1] + jnp.pad(u, ((0, 1), (0, 0)))[1:] - 2 * u)


def red(x: Any) -> Any:
    return jnp.asarray(x).at[1:-1:2].set((x[:-2:2] + x[2::2]) / 2)


def black(x: Any) -> Any:
    return jnp.asarray(x).at[2:-1:2].set((x[1:-2:2] + x[3::2]) / 2)


def pooled(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def neighbours(x: Any) -> Any:
    places = jnp.arange(1024)
    return (x[jnp.clip(places + 1, 0, 1023)] + x[jnp.clip(places - 1, 0, 1023)]) / 2


def tridiagonal(x: Any, y: Any) -> Any:
    places = jnp.arange(256)
    return jnp.where(abs(places[:, None] - places) <= 1, x @ y.T, 0) @ y


def insulated(u: Any) -> Any:
    """A step of a flow that does not leave."""
    p = jnp.pad(u, 1, "edge")
    return u + 0.1 * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u)


def apart(p: Any) -> Any:
    return p[:-2] * p[2:]


def nearest(p: Any) -> Any:
    """Both neighbours of each row but the ends."""
    return p[:-2] + 3 * p[2:]


def habits() -> dict[str, Case]:
    """All of them, by name."""
    one = partial(Case, shapes=(ROWS,), specs=(CUT,))
    two = partial(Case, shapes=(ROWS,) * 2, specs=(CUT,) * 2)
    gated = ((2, 16, 16), (2, 16, 16), (16, 16))
    image = partial(Case, shapes=(IMAGE,), specs=(IN_ROWS,))
    logits = partial(Case, specs=((None, "x"),))
    table = ((1024, 64), (256,)), (("x", None), ("x",))
    at = lambda x, n: (n[0] > 0).astype(int) * 100  # noqa: E731

    def filtered(function: Any, *kernel: int, of: tuple[int, ...] = SEQUENCE) -> Case:
        lying = LYING if len(of) == 3 else IN_ROWS
        return Case(function, (of, kernel), (lying, WHOLE[len(kernel)]), lying)

    return {
        "depthwise causal convolution": filtered(partial(along, low=3, feature_group_count=16), 4, 1, 16),
        "padded by hand, then a convolution": filtered(
            lambda x, w: along(jnp.pad(x, ((0, 0), (3, 0), (0, 0))), w, 0, feature_group_count=16), 4, 1, 16
        )._replace(least=768),
        "dilated causal convolution": filtered(partial(along, low=16, rhs_dilation=(8,)), 3, 16, 16),
        "a block of WaveNet": Case(wavenet, (SEQUENCE, *gated), (LYING, *(WHOLE[len(w)] for w in gated)), LYING),
        "reflected border, then a convolution": filtered(padded("reflect"), 5, 16, 16),
        "repeated border, then a convolution": filtered(padded("edge"), 5, 16, 16),
        "border that goes round, then a convolution": filtered(
            lambda x, w: over(jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="wrap"), w, "VALID"),
            3,
            3,
            4,
            4,
            of=IMAGE,
        ),
        "nine points by rolls": Case(nine_points, ((128, 128),), (("x", "y"),), axes=(4, 2)),
        "Jacobi, 5 times, both dims": Case(jacobi, ((256, 256),) * 2, (("x", "y"),) * 2, axes=(4, 2)),
        "heat by pads that are cut": one(heat, least=512),
        "red and black rows in turns": one(lambda x: black(red(x)), least=4 * 256),
        "every second row put": one(lambda x: x.at[::2].set(x[1::2]), least=0),
        "inner places added to": one(lambda x: x.at[1:-1, 1:-1].add(x[2:, 1:-1] - x[:-2, 1:-1]), least=512),
        "heat in a box with its edges around": one(insulated, least=512),
        "gradient of heat in a box": one(jax.grad(lambda x: (insulated(x) ** 2).sum())),
        "gradient of a stencil in zeros": one(
            jax.grad(lambda x: (nearest(jnp.pad(x, ((1, 1), (0, 0)))) ** 2).sum()), least=1024
        ),
        "gradient of a product of neighbours by their edge": one(
            jax.grad(lambda x: apart(jnp.pad(x, ((1, 1), (0, 0)), "edge")).sum()), least=1024
        ),
        "stencil of rows padded by their edge": one(lambda x: second(jnp.pad(x, ((1, 1), (0, 0)), "edge")), least=512),
        "stencil of rows padded by reflection": one(
            lambda x: second(jnp.pad(x, ((1, 1), (0, 0)), "reflect")), least=512
        ),
        "gradient of a stencil of padded rows": one(
            jax.grad(lambda x: (second(jnp.pad(x, ((1, 1), (0, 0)), "edge")) ** 2).sum())
        ),
        "rows shifted, of which the last stays": one(lambda x: jnp.concatenate([x[1:], x[-1:]]), least=256),
        "differences from what is before the first": one(lambda x: jnp.diff(x, axis=0, prepend=1.0), least=256),
        "differences up to the last once more": one(lambda x: jnp.diff(x, axis=0, append=x[-1:]), least=256),
        "sums of differences": one(lambda x: jnp.cumsum(jnp.diff(x, axis=0, prepend=0.0), 0), least=512),
        "neighbours by numbers that are clipped": one(lambda x: around(x, jnp.clip), least=512),
        "neighbours by numbers that go round": one(lambda x: around(x, lambda n, *_: n % 1024), least=512),
        "attention to gathered neighbours": Case(gathered, ((512, 16),) * 3, (CUT,) * 3),
        "first row as the second": one(lambda x: jnp.tanh(x).at[0].set(jnp.tanh(x)[1]), least=256),
        "sum from behind by turning round": one(lambda x: jnp.cumsum(x[::-1], 0)[::-1], least=256),
        "scan from behind": one(lambda x: lax.associative_scan(jnp.maximum, x, reverse=True)),
        "halves of features turned round": Case(
            lambda x: x * 0.3 + jnp.concatenate([-x[:, 32:], x[:, :32]], 1) * 0.7,
            ((256, 64),),
            ((None, "x"),),
            least=8192,
        ),
        "gradient of a pooling side by side": image(jax.grad(lambda x: (pooled(x) ** 2).sum()), least=0),
        "shift by a pad that is cut": one(lambda x: jnp.pad(x, ((1, 0), (0, 0)))[:1024] + x, least=256),
        "every third row from the sixth": one(lambda x: x[5::3], result=None),
        "rows and their second next": one(lambda x: x[:-2:2] * x[2::2], result=None),
        "shift of tokens": one(lambda x: x * 0.3 + jnp.concatenate([jnp.zeros((1, 64)), x[:-1]]) * 0.7, least=256),
        "neighbours by clipped numbers": one(neighbours),
        "moving average by running sums": one(moving),
        "scan of pairs": two(lambda x, y: lax.associative_scan(after, (jnp.tanh(x), y))[1]),
        "selective scan": Case(
            selective_scan,
            ((2, 256, 8), (2, 256, 8), (8, 4), (2, 256, 4), (2, 256, 4)),
            (LYING, LYING, WHOLE[2], LYING, LYING),
        ),
        "logits below the fifth": logits(
            lambda x: jnp.where(x >= lax.top_k(x, 5)[0][:, -1:], x, -jnp.inf).max(1), ((32, 4096),), result=(None,)
        ),
        "cross entropy": Case(
            lambda x, y: -(jax.nn.log_softmax(x) * y).sum(-1), ((32, 4096),) * 2, ((None, "x"),) * 2, (None,)
        ),
        "place of the least row": one(lambda x: jnp.argmin(x, 0).astype(np.float32), result=(None,)),
        "order of rows": one(lambda x: jnp.argsort(x, 0).astype(np.float32)),
        "median of rows": one(lambda x: jnp.median(x, 0), result=(None,)),
        "half a transform": one(lambda x: abs(jnp.fft.rfft(x, axis=0)), result=None),
        "convolution by transforms": two(fft_convolution),
        "patches of an image": image(
            lambda x: lax.conv_general_dilated_patches(
                x, (3, 3), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        ),
        "twice as large by lines": image(lambda x: jax.image.resize(x, (2, 128, 32, 4), "bilinear")),
        "transposed convolution": filtered(
            lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
            *(4, 4, 4, 4),
            of=IMAGE,
        ),
        "a row put where a number says": Case(
            lambda x, y, n: lax.dynamic_update_slice(x, y, (at(x, n), 0)),
            ((1024, 64), (1, 64), (1,)),
            (CUT, (None, None), (None,)),
        ),
        "a row from where a number says": Case(
            lambda x, n: lax.dynamic_slice(x, (at(x, n), 0), (1, 64)), (ROWS, (1,)), (CUT, (None,)), (None, None)
        ),
        "between known points": Case(
            lambda y: jnp.interp(jnp.arange(1024) + 0.5, jnp.arange(1024.0), y), ((1024,),), (("x",),)
        ),
        "sums of segments": Case(
            lambda x, n: jax.ops.segment_sum(x, numbers(n) % 16, 16), (ROWS, (1024,)), (CUT, ("x",)), (None, None)
        ),
        "rows by one-hot numbers": Case(lambda t, n: jax.nn.one_hot(numbers(n), 1024) @ t, *table),
        "means of frames": one(lambda x: frames(x, 8, 16).mean(1), result=None),
        "transforms of frames": Case(lambda x: abs(jnp.fft.rfft(frames(x, 32, 64))), ((4096,),), (("x",),), None),
        "three diagonals of a product": Case(tridiagonal, ((256, 64),) * 2, (CUT,) * 2, least=1024),
        "the library's attention in a window": Case(library_attention, (ROWS,) * 3, (CUT,) * 3, least=2 * 32 * 256),
    }
