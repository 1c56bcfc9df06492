"""Programs of the kind that people train and serve, in plain `jax.numpy`.

Each has a name for every dim of its arguments, of which `SIZES` has the size, or a number; `batch seq < vocab` are
integers below a size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SIZES = {
    "batch": 12, "seq": 12, "embed": 24, "heads": 12, "kv": 6, "width": 4, "ff": 48, "vocab": 36, "layers": 3,
    "experts": 6, "channels": 12, "image": 24, "time": 6, "hidden": 12, "classes": 12, "state": 4, "nodes": 24,
    "edges": 48, "cache": 48, "packed": 144,
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A function, and what is to be known of its arguments."""

    function: Callable[..., Any]
    arguments: dict[str, str]
    """By name the dims, and after < a limit or a dtype."""
    differentiable: bool

    @property
    def dims(self) -> list[list[str]]:
        """Per argument the names of its dims."""
        return [text.partition("<")[0].split() for text in self.arguments.values()]

    def draw(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Arguments."""
        rng = np.random.default_rng(len(self.arguments))
        return tuple(
            _drawn(rng, text.partition("<")[2].strip(), [size(dim) for dim in dims])
            for text, dims in zip(self.arguments.values(), self.dims, strict=True)
        )


def size(dim: str) -> int:
    """How many elements a dim of that name has."""
    return SIZES[dim] if dim in SIZES else int(dim)


def _drawn(rng: np.random.Generator, kind: str, shape: list[int]) -> np.ndarray[Any, Any]:
    if kind == "bool":
        return rng.random(shape) < 0.7
    if kind == "key":
        return rng.integers(0, 2**32, shape, dtype=np.uint32)
    if kind == "int8":
        return rng.integers(-127, 128, shape).astype(np.int8)
    if kind == "complex":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64)
    if kind:
        return np.asarray(rng.integers(0, size(kind), shape), np.int32)
    return np.asarray(rng.normal(size=shape) / np.sqrt(max(shape[0] if len(shape) > 1 else 1, 1)), np.float32)


MODELS: dict[str, Model] = {}


def model(name: str, *, differentiable: bool = True, **arguments: str) -> Callable[[Any], Any]:
    """Put a function among the models."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        MODELS[name] = Model(function, arguments, differentiable)
        return function

    return add


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias


def attend(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bshk,bthk->bhst", q, k) / np.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
    return jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1), v)


@model(
    "gpt2 block",
    ids="batch seq < vocab",
    table="vocab embed",
    places="seq embed",
    qkv="embed 3 heads width",
    out="heads width embed",
    up="embed ff",
    down="ff embed",
    scale="embed",
    bias="embed",
)
def gpt2(ids: Any, table: Any, places: Any, qkv: Any, out: Any, up: Any, down: Any, scale: Any, bias: Any) -> Any:
    x = table[ids] + places[: ids.shape[1]]
    h = layer_norm(x, scale, bias)
    q, k, v = (jnp.einsum("bsd,dhk->bshk", h, qkv[:, n]) for n in range(3))
    x = x + jnp.einsum("bshk,hkd->bsd", attend(q, k, v), out)
    x = x + jax.nn.gelu(layer_norm(x, scale, bias) @ up) @ down
    return x @ table.T


@model("gpt2 packed qkv", x="batch seq embed", qkv="embed packed", out="48 embed")
def packed(x: Any, qkv: Any, out: Any) -> Any:
    q, k, v = (part.reshape(*part.shape[:2], 12, 4) for part in jnp.split(x @ qkv, 3, axis=-1))
    return x + attend(q, k, v).reshape(*x.shape[:2], -1) @ out


@model("one-hot cross entropy", x="batch seq embed", table="vocab embed", labels="batch seq < vocab")
def one_hot_loss(x: Any, table: Any, labels: Any) -> Any:
    logits = jnp.einsum("bsd,vd->bsv", x, table)
    return -(jax.nn.one_hot(labels, table.shape[0]) * jax.nn.log_softmax(logits)).sum(-1).mean()


@model(
    "cross entropy by take",
    x="batch seq embed",
    table="vocab embed",
    labels="batch seq < vocab",
    weight="batch seq < bool",
)
def take_loss(x: Any, table: Any, labels: Any, weight: Any) -> Any:
    logits = x @ table.T
    logz = jax.nn.logsumexp(logits, -1)
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.where(weight, logz - picked, 0).sum() / weight.sum(), (logits.argmax(-1) == labels).mean()


@model("vit patches", images="batch image image 3", w="48 embed", token="1 1 embed", places="37 embed")
def vit(images: Any, w: Any, token: Any, places: Any) -> Any:
    b, size = images.shape[0], 4
    n = images.shape[1] // size
    x = images.reshape(b, n, size, n, size, 3).transpose(0, 1, 3, 2, 4, 5).reshape(b, n * n, -1) @ w
    x = jnp.concatenate([jnp.broadcast_to(token, (b, 1, x.shape[-1])), x], 1) + places
    return x[:, 0], x[:, 1:].mean(1)


@model(
    "mixture of experts", x="batch seq embed", router="embed experts", up="experts embed ff", down="experts ff embed"
)
def experts(x: Any, router: Any, up: Any, down: Any) -> Any:
    gates = jax.nn.softmax(x @ router)
    weights, chosen = lax.top_k(gates, 2)
    weights = weights / weights.sum(-1, keepdims=True)
    hot = jax.nn.one_hot(chosen, router.shape[1])
    place = (jnp.cumsum(hot.reshape(x.shape[0], -1, router.shape[1]), 1) - 1).reshape(hot.shape)
    slots = jax.nn.one_hot(jnp.where(hot > 0, place, -1).astype(jnp.int32), 8)
    dispatch = slots.sum(2)
    combine = (slots * weights[..., None, None]).sum(2)
    inside = jnp.einsum("bsec,bsd->becd", dispatch, x)
    h = jax.nn.silu(jnp.einsum("becd,edf->becf", inside, up))
    return jnp.einsum("becd,bsec->bsd", jnp.einsum("becf,efd->becd", h, down), combine)


@model(
    "decode step",
    x="batch embed",
    wq="embed heads width",
    wkv="2 embed heads width",
    wo="heads width embed",
    keys="batch seq heads width",
    values="batch seq heads width",
    at="< 8",
)
def decode(x: Any, wq: Any, wkv: Any, wo: Any, keys: Any, values: Any, at: Any) -> Any:
    q = jnp.einsum("bd,dhk->bhk", x, wq)
    keys = lax.dynamic_update_slice(keys, jnp.einsum("bd,dhk->bhk", x, wkv[0])[:, None], (0, at, 0, 0))
    values = lax.dynamic_update_slice_in_dim(values, jnp.einsum("bd,dhk->bhk", x, wkv[1])[:, None], at, axis=1)
    scores = jnp.einsum("bhk,bthk->bht", q, keys)
    scores = jnp.where(jnp.arange(keys.shape[1]) <= at, scores, -jnp.inf)
    out = jnp.einsum("bht,bthk->bhk", jax.nn.softmax(scores, -1), values)
    return jnp.einsum("bhk,hkd->bd", out, wo), keys, values


@model("decode window", keys="batch seq heads width", q="batch heads width", at="< 4")
def window(keys: Any, q: Any, at: Any) -> Any:
    part = lax.dynamic_slice_in_dim(keys, at, 8, axis=1)
    return jnp.einsum("bhk,bthk->bht", q, part)


def rope(x: Any) -> Any:
    angles = jnp.arange(x.shape[1])[:, None] / 100 ** (jnp.arange(x.shape[-1] // 2) / x.shape[-1])
    a, b = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


@model(
    "grouped query by scan",
    x="batch seq embed",
    wq="layers embed kv 2 width",
    wk="layers embed kv width",
    wv="layers embed kv width",
    wo="layers kv 2 width embed",
    norm="layers embed",
)
def grouped(x: Any, wq: Any, wk: Any, wv: Any, wo: Any, norm: Any) -> Any:
    @jax.checkpoint
    def layer(x: Any, weights: Any) -> Any:
        wq, wk, wv, wo, norm = weights
        h = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * norm
        q = jnp.einsum("bsd,dgrk->bsgrk", h, wq)
        q = rope(q.reshape(*q.shape[:2], -1, q.shape[-1])).reshape(q.shape)
        k, v = rope(jnp.einsum("bsd,dgk->bsgk", h, wk)), jnp.einsum("bsd,dgk->bsgk", h, wv)
        scores = jnp.einsum("bsgrk,btgk->bgrst", q, k)
        scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -1e9)
        o = jnp.einsum("bgrst,btgk->bsgrk", jax.nn.softmax(scores), v)
        return x + jnp.einsum("bsgrk,grkd->bsd", o, wo), (h.mean(), k)

    return lax.scan(layer, x, (wq, wk, wv, wo, norm))


@model(
    "adam step",
    x="batch embed",
    y="batch classes",
    up="embed ff",
    down="ff classes",
    mu="embed ff",
    nu="embed ff",
    step="< 100",
    differentiable=False,
)
def adam(x: Any, y: Any, up: Any, down: Any, mu: Any, nu: Any, step: Any) -> Any:
    def loss(weights: Any) -> Any:
        return ((jax.nn.relu(x @ weights["up"]) @ weights["down"] - y) ** 2).mean()

    value, grads = jax.value_and_grad(loss)({"up": up, "down": down})
    norm = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g * jnp.minimum(1, 1 / norm), grads)
    mu = 0.9 * mu + 0.1 * grads["up"]
    nu = 0.99 * nu + 0.01 * grads["up"] ** 2
    t = (step + 1).astype(jnp.float32)
    up = up - 0.1 * (mu / (1 - 0.9**t)) / (jnp.sqrt(nu / (1 - 0.99**t)) + 1e-8)
    return {
        "loss": value,
        "norm": norm,
        "up": up,
        "down": down - 0.1 * grads["down"],
        "mu": mu,
        "nu": nu,
        "step": step + 1,
    }


@jax.custom_vjp
def rms(x: Any, scale: Any) -> Any:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def _rms_forward(x: Any, scale: Any) -> Any:
    r = lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    return x * r * scale, (x, r, scale)


def _rms_backward(kept: Any, g: Any) -> Any:
    x, r, scale = kept
    n = x * r
    gs = g * scale
    return r * (gs - n * (gs * n).mean(-1, keepdims=True)), (g * n).sum(tuple(range(g.ndim - 1)))


rms.defvjp(_rms_forward, _rms_backward)


@model("rms norm of its own", x="batch seq embed", scale="embed", w="embed ff")
def rms_layer(x: Any, scale: Any, w: Any) -> Any:
    return jnp.tanh(rms(x, scale) @ w)


@model("lstm", x="time batch embed", w="embed 4 hidden", u="hidden 4 hidden", b="4 hidden")
def lstm(x: Any, w: Any, u: Any, b: Any) -> Any:
    def cell(carry: Any, xt: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.moveaxis(jnp.einsum("bd,dgh->bgh", xt, w) + jnp.einsum("bj,jgh->bgh", h, u) + b, 1, 0)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((x.shape[1], u.shape[0]))
    (h, _), hs = lax.scan(cell, (zero, zero), x)
    return h, hs


@model("gru packed", x="time batch embed", w="embed vocab", u="hidden vocab")
def gru(x: Any, w: Any, u: Any) -> Any:
    def cell(h: Any, xt: Any) -> Any:
        a, b = jnp.split(xt @ w, 3, -1), jnp.split(h @ u, 3, -1)
        z, r = jax.nn.sigmoid(a[0] + b[0]), jax.nn.sigmoid(a[1] + b[1])
        h = (1 - z) * h + z * jnp.tanh(a[2] + r * b[2])
        return h, h.sum(-1)

    return lax.scan(cell, jnp.zeros((x.shape[1], u.shape[0])), x)


@model("selective scan", x="batch seq embed", a="embed state", wb="embed state", wc="embed state", dt="embed")
def mamba(x: Any, a: Any, wb: Any, wc: Any, dt: Any) -> Any:
    delta = jax.nn.softplus(x * dt)
    decay = jnp.exp(-delta[..., None] * jnp.exp(a))
    drive = (delta * x)[..., None] * (x @ wb)[:, :, None]
    _, h = lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (decay, drive), axis=1)
    return jnp.einsum("bsdn,bsn->bsd", h, x @ wc)


@model("cumulative sums", x="batch seq embed")
def cumulative(x: Any) -> Any:
    decay = jnp.cumprod(jax.nn.sigmoid(x), 1)
    return jnp.cumsum(x / decay, 1) * decay, lax.cumlogsumexp(x, 1), lax.cummax(x, 2), jnp.cumsum(x, 1)[:, ::-1]


@model("vmap of a vector program", x="batch seq", w="seq hidden", ids="batch < hidden")
def mapped(x: Any, w: Any, ids: Any) -> Any:
    def one(v: Any, i: Any) -> Any:
        h = jnp.tanh(v @ w)
        return h / jnp.linalg.norm(h), h[i], lax.dynamic_slice(h, (i // 2,), (2,))

    return jax.vmap(one)(x, ids)


@model("int8 matmul", differentiable=False, x="batch embed", w="embed ff < int8", scale="ff")
def int8(x: Any, w: Any, scale: Any) -> Any:
    most = jnp.abs(x).max(-1, keepdims=True)
    q = jnp.round(x / most * 127).astype(jnp.int8)
    return lax.dot_general(q, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32) * most / 127 * scale


@model("dropout", x="batch embed", key="2 < key", w="embed ff")
def dropout(x: Any, key: Any, w: Any) -> Any:
    keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.8, x.shape)
    return jnp.where(keep, x / 0.8, 0) @ w


@model("dropout, old keys", x="batch embed", key="2 < key", w="embed ff")
def old_dropout(x: Any, key: Any, w: Any) -> Any:
    one, two = jax.random.split(key)
    h = jnp.where(jax.random.bernoulli(one, 0.8, x.shape), x / 0.8, 0) @ w
    return h + jax.random.normal(two, h.shape)


@model("batch norm", x="batch image channels", scale="channels", bias="channels", mean="channels", var="channels")
def batch_norm(x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    m, v = x.mean((0, 1)), x.var((0, 1))
    y = (x - m) * lax.rsqrt(v + 1e-5) * scale + bias
    return jax.nn.relu(y), {
        "mean": 0.9 * mean + 0.1 * lax.stop_gradient(m),
        "var": 0.9 * var + 0.1 * lax.stop_gradient(v),
    }


@model("conv by slices", x="batch seq embed", w="4 embed")
def conv_slices(x: Any, w: Any) -> Any:
    padded = jnp.pad(x, ((0, 0), (3, 0), (0, 0)))
    return sum(padded[:, n : n + x.shape[1]] * w[n] for n in range(4))


@model("conv", x="batch image image channels", w="3 3 channels ff", b="ff")
def conv(x: Any, w: Any, b: Any) -> Any:
    y = lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return lax.reduce_window(jax.nn.relu(y + b), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@model("depthwise conv", x="batch seq embed", w="4 1 embed")
def depthwise(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(
        x, w, (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=x.shape[2]
    )


@model("greedy and top k", differentiable=False, logits="batch vocab")
def decoding(logits: Any) -> Any:
    best = logits.argmax(-1)
    top, which = lax.top_k(logits, 4)
    order = jnp.sort(logits, -1)[:, ::-1]
    probs = jax.nn.softmax(order)
    cut = jnp.cumsum(probs, -1) - probs < 0.9
    return best, top, which, jnp.where(cut, order, -jnp.inf), jnp.argsort(logits, 0), jnp.median(logits, 0)


@model("generation loop", differentiable=False, x="batch embed", w="embed embed", out="embed vocab", steps="< 5")
def generation(x: Any, w: Any, out: Any, steps: Any) -> Any:
    def body(state: Any) -> Any:
        n, h, done = state
        h = jnp.tanh(h @ w)
        return n + 1, h, done | ((h @ out).argmax(-1) == 3)

    return lax.while_loop(lambda s: (s[0] < steps) & ~s[2].all(), body, (0, x, jnp.zeros(x.shape[0], bool)))


@model("fori and cond", x="batch embed", w="embed embed", n="< 3")
def branches(x: Any, w: Any, n: Any) -> Any:
    x = lax.fori_loop(0, 4, lambda _, h: jnp.tanh(h @ w), x)
    x = lax.cond(n > 1, lambda h: h @ w, lambda h: h * 2, x)
    return lax.switch(n, [jnp.sin, jnp.cos, jnp.tanh], x)


@model("segment sum", x="nodes embed", senders="edges < nodes", receivers="edges < nodes", w="embed embed")
def graph(x: Any, senders: Any, receivers: Any, w: Any) -> Any:
    messages = jnp.tanh(x[senders] @ w)
    total = jax.ops.segment_sum(messages, receivers, num_segments=x.shape[0])
    return total / jnp.maximum(jax.ops.segment_sum(jnp.ones(receivers.shape), receivers, x.shape[0]), 1)[:, None]


@model("segment max", x="nodes embed", receivers="edges < nodes", senders="edges < nodes", differentiable=False)
def graph_max(x: Any, receivers: Any, senders: Any) -> Any:
    return jax.ops.segment_max(x[senders], receivers, x.shape[0]), jnp.bincount(receivers, length=x.shape[0])


@model("einsum of four", a="batch embed", b="embed hidden", c="hidden ff", d="batch ff")
def chain(a: Any, b: Any, c: Any, d: Any) -> Any:
    return jnp.einsum("bd,dh,hf,bf->bh", a, b, c, d), jnp.einsum("bd,dh->", a, b), jnp.einsum("ii->i", b[:12])


@model("fft", x="batch seq embed", filters="7 embed")
def fft(x: Any, filters: Any) -> Any:
    y = jnp.fft.irfft(jnp.fft.rfft(x, axis=1) * filters, axis=1)
    return y, jnp.fft.fft2(x).real


@model("masks from iota", x="batch seq vocab", lengths="batch < seq")
def masks(x: Any, lengths: Any) -> Any:
    t = lax.broadcasted_iota(jnp.int32, x.shape[:2], 1)
    keep = t < lengths[:, None]
    band = jnp.abs(jnp.arange(12)[:, None] - jnp.arange(12)) < 3
    return (
        jnp.where(keep[..., None], x, 0).sum(1),
        jnp.where(band, jnp.einsum("bsv,btv->bst", x, x), -jnp.inf).max(-1),
        jnp.triu(x[0] @ x[0].T),
    )


@model("complex states", x="batch seq embed", rate="embed < complex", c="embed < complex")
def complex_states(x: Any, rate: Any, c: Any) -> Any:
    rate = rate / (1 + jnp.abs(rate))

    def step(h: Any, v: Any) -> Any:
        h = rate * h + v
        return h, (c * h).real

    h, ys = lax.scan(step, jnp.zeros(x.shape[::2], jnp.complex64), jnp.moveaxis(x, 1, 0))
    return jnp.abs(h), jnp.angle(h + 1), ys, jnp.conj(h).imag


@model("padded softmax", x="batch heads seq seq", lengths="batch < seq")
def padded(x: Any, lengths: Any) -> Any:
    keep = (jnp.arange(x.shape[-1]) < lengths[:, None])[:, None, None]
    return jax.nn.softmax(jnp.where(keep, x, -jnp.inf), axis=-1, where=keep), jax.nn.logsumexp(
        jnp.where(keep, x, -jnp.inf), axis=-1
    )


@model("roll and flip", x="batch seq embed")
def rolls(x: Any) -> Any:
    return (
        jnp.roll(x, 1, 1) + jnp.flip(x, 1),
        jnp.concatenate([x[:, :1], x[:, 1:] - x[:, :-1]], 1),
        jnp.stack([x, -x], 2),
        jnp.tile(x, (1, 2, 1)),
        jnp.repeat(x, 2, 2),
    )


@model("integers and scalars", differentiable=False, ids="batch seq < vocab", scale="")
def counts(ids: Any, scale: Any) -> Any:
    return (
        (ids > 3).sum(),
        ids.max(0),
        (ids % 7).astype(jnp.int8),
        ids.sum() * scale,
        ids.astype(jnp.float32).std(),
        jnp.unique_counts(ids, size=36).counts,
        jnp.searchsorted(jnp.arange(0, 36, 4), ids),
    )


@model("sizes of zero", x="batch 0 embed", y="0 embed", w="embed ff")
def empty(x: Any, y: Any, w: Any) -> Any:
    return x @ w, x.sum(1), (y @ w).sum(0), jnp.concatenate([y, w.T], 0), x.sum()


@model("lora", x="batch seq embed", w="embed ff", a="embed 4", b="4 ff")
def lora(x: Any, w: Any, a: Any, b: Any) -> Any:
    return x @ lax.stop_gradient(w) + (x @ a) @ b


@model("ring of moments", x="batch seq embed", buffer="layers batch embed", at="< layers")
def buffers(x: Any, buffer: Any, at: Any) -> Any:
    buffer = buffer.at[at].set(x.mean(1))
    return buffer, buffer[at], buffer.at[:, 0].multiply(2.0), x.at[:, ::2].add(1.0)


@model("scatter of a cache", keys="batch seq heads width", new="batch heads width", at="batch < seq")
def scatter_cache(keys: Any, new: Any, at: Any) -> Any:
    rows = jnp.arange(keys.shape[0])
    return keys.at[rows, at].set(new), jax.vmap(lambda k, n, i: lax.dynamic_update_index_in_dim(k, n, i, 0))(
        keys, new, at
    )


@model("contrastive loss", a="batch embed", b="batch embed", t="")
def clip(a: Any, b: Any, t: Any) -> Any:
    a, b = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in (a, b))
    logits = a @ b.T * jnp.exp(t)
    diagonal = jnp.diag(logits)
    return (jax.nn.logsumexp(logits, 0) + jax.nn.logsumexp(logits, 1) - 2 * diagonal).mean()


@model("jacobian and hessian", x="embed", w="embed hidden")
def jacobians(x: Any, w: Any) -> Any:
    def f(v: Any) -> Any:
        return jnp.tanh(v @ w)

    return jax.jacfwd(f)(x), jax.jacrev(f)(x), jax.hessian(lambda v: f(v).sum())(x)


@model("linear algebra", a="batch 4 4", b="batch 4")
def linalg(a: Any, b: Any) -> Any:
    spd = jnp.einsum("bij,bkj->bik", a, a) + 4 * jnp.eye(4)
    return jnp.linalg.cholesky(spd), jnp.linalg.solve(spd, b[..., None]), jnp.linalg.det(spd)


@model("bfloat16 with float32 sums", x="batch seq embed", w="embed ff")
def mixed(x: Any, w: Any) -> Any:
    h = jnp.einsum("bsd,df->bsf", x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
    return lax.reduce_precision(h, 8, 7).astype(jnp.bfloat16), (h.astype(jnp.float16).sum((0, 1))).astype(jnp.float32)


@model("argument twice, out unused", x="batch embed", y="batch embed")
def twice(x: Any, y: Any) -> Any:
    return x, x, x + x, jnp.zeros((12, 24)), 3.0


@model("indexing idioms", x="batch seq embed", labels="batch < vocab", logits="batch vocab", rows="batch seq < seq")
def idioms(x: Any, labels: Any, logits: Any, rows: Any) -> Any:
    b = jnp.arange(x.shape[0])
    picked = jax.nn.log_softmax(logits)[b, labels]
    return (
        picked,
        x[b[:, None], rows],
        x[:, -1],
        x[b, rows[:, 0], 3],
        jax.vmap(lambda k, i: lax.dynamic_slice(k, (i, 0), (2, 24)))(x, labels),
        x[b, b % 12],
        jnp.trace(x[:, :, :12], axis1=1, axis2=2),
    )


@model(
    "cache sharded along time",
    keys="batch cache heads width",
    new="batch heads width",
    at="< 40",
    q="batch heads width",
)
def time_cache(keys: Any, new: Any, at: Any, q: Any) -> Any:
    keys = lax.dynamic_update_slice_in_dim(keys, new[:, None], at, 1)
    weights = jax.nn.softmax(jnp.where(jnp.arange(keys.shape[1]) <= at, jnp.einsum("bhk,bthk->bht", q, keys), -jnp.inf))
    keys2 = lax.dynamic_update_slice_in_dim(keys, keys[:, 3:8] + 1, at, 1)
    return (
        jnp.einsum("bht,bthk->bhk", weights, keys),
        keys,
        lax.dynamic_index_in_dim(keys, at, 1),
        keys2,
        keys[:, 7],
        lax.dynamic_slice_in_dim(keys, at, 5, 1),
        lax.dynamic_update_slice_in_dim(keys, jnp.concatenate([keys[:, :20]] * 2, 1), at - 7, 1),
    )


@model("pipeline by vmap", x="experts batch embed", w="experts embed embed", b="experts embed")
def pipeline(x: Any, w: Any, b: Any) -> Any:
    stages = w.shape[0]

    def tick(carry: Any, turn: Any) -> Any:
        state, found = carry
        fresh = lax.dynamic_index_in_dim(x, jnp.minimum(turn, x.shape[0] - 1), 0, keepdims=False)
        state = jnp.roll(state, 1, 0).at[0].set(fresh)
        state = jax.vmap(lambda w, b, h: jnp.tanh(h @ w + b))(w, b, state)
        at = jnp.maximum(turn - stages + 1, 0)
        return (state, lax.dynamic_update_index_in_dim(found, state[-1], at, 0)), None

    start = jnp.zeros((stages, *x.shape[1:])), jnp.zeros_like(x)
    return lax.scan(tick, start, jnp.arange(x.shape[0] + stages - 1))[0][1]


@model(
    "diffusion block",
    x="batch image image channels",
    t="batch embed",
    first="3 3 channels channels",
    second="3 3 channels channels",
    time="embed channels",
    down="2 2 channels ff",
)
def diffusion(x: Any, t: Any, first: Any, second: Any, time: Any, down: Any) -> Any:
    def group_norm(h: Any) -> Any:
        g = h.reshape(*h.shape[:3], 3, -1)
        return ((g - g.mean((1, 2, 4), keepdims=True)) * lax.rsqrt(g.var((1, 2, 4), keepdims=True) + 1e-5)).reshape(
            h.shape
        )

    def convolved(h: Any, w: Any, stride: int = 1) -> Any:
        return lax.conv_general_dilated(h, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    h = convolved(jax.nn.silu(group_norm(x)), first) + (jax.nn.silu(t) @ time)[:, None, None]
    h = x + convolved(jax.nn.silu(group_norm(h)), second)
    low = convolved(h, down, 2)
    return h, jnp.repeat(jnp.repeat(low, 2, 1), 2, 2), jax.image.resize(low, (*h.shape[:3], low.shape[3]), "nearest")


@model(
    "bfloat16 with scaled loss",
    x="3 batch embed",
    y="3 batch < classes",
    up="embed ff",
    down="ff classes",
    exponent="< 8",
    differentiable=False,
)
def scaled(x: Any, y: Any, up: Any, down: Any, exponent: Any) -> Any:
    scale = jnp.exp2(exponent.astype(jnp.float32))

    def loss(weights: Any, x: Any, y: Any) -> Any:
        up, down = (w.astype(jnp.bfloat16) for w in weights)
        logits = (jax.nn.relu(x.astype(jnp.bfloat16) @ up) @ down).astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean() * scale

    def micro(total: Any, one: Any) -> Any:
        value, grads = jax.value_and_grad(loss)((up, down), *one)
        return jax.tree.map(jnp.add, total, grads), value / scale

    grads, losses = lax.scan(micro, (jnp.zeros_like(up), jnp.zeros_like(down)), (x, y))
    grads = jax.tree.map(lambda g: g / scale / x.shape[0], grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in grads]).all()
    stepped = jax.tree.map(lambda w, g: w - 0.1 * g, (up, down), grads)
    weights = lax.cond(finite, lambda: stepped, lambda: (up, down))
    return losses, weights, jnp.where(finite, scale * 2, scale / 2)


@model(
    "experts by scatter", x="batch seq embed", router="embed experts", up="experts embed ff", down="experts ff embed"
)
def scattered_experts(x: Any, router: Any, up: Any, down: Any) -> Any:
    rows = x.reshape(-1, x.shape[2])
    gates = jax.nn.softmax(rows @ router)
    best = gates.argmax(-1)
    hot = jax.nn.one_hot(best, router.shape[1], dtype=jnp.int32)
    slot = (jnp.cumsum(hot, 0) * hot).sum(-1) - 1
    inside = jnp.zeros((router.shape[1], 32, x.shape[2])).at[best, slot].add(rows, mode="drop")
    h = jnp.einsum("ecf,efd->ecd", jax.nn.gelu(jnp.einsum("ecd,edf->ecf", inside, up)), down)
    found = h.at[best, slot].get(mode="fill", fill_value=0) * gates.max(-1)[:, None]
    return found.reshape(x.shape)
