"""Training steps as people write them, with constraints and AdamW, for what `inspect` says of them.

Each takes `move(x, source, target)`, which brings a value from one spec to another: by JAX's constraints, or as is
advised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard as rs

MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])
BATCH, LENGTH, WIDTH, HEADS, EACH, INNER, WORDS, EXPERTS = 8, 32, 32, 8, 4, 64, 48, 8
SEQUENCE, BY_HEADS = (None, ("data", "model"), None, None), (None, None, ("model", "data"), None)
TOKENS, BY_EXPERTS = (None, ("data", "model"), None), (("model", "data"), None, None)
Move = Callable[[Any, Any, Any], Any]


class Step(NamedTuple):
    """A loss and where its arguments lie."""

    loss: Callable[[Move], Callable[..., Any]]
    shapes: dict[str, tuple[int, ...]]
    """Of the weights."""
    specs: dict[str, Any]
    """Of those that are cut."""
    ids: Any
    """The spec of tokens and labels."""


def on(*spec: Any) -> NamedSharding:
    return NamedSharding(MESH, P(*spec))


def held(x: Any, *spec: Any) -> Any:
    return with_sharding_constraint(x, on(*spec))


def by_constraints(x: Any, source: Any, target: Any) -> Any:
    """As users of JAX say it."""
    return held(held(x, *source), *target)


def as_advised(x: Any, source: Any, target: Any) -> Any:
    return rs.jax.reshard(x, on(*target), source=on(*source))


def norm(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def attention(q: Any, k: Any, v: Any) -> Any:
    weights = jnp.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
    weights = jnp.where(jnp.tril(jnp.ones((q.shape[1],) * 2, bool)), weights, -1e9)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(weights), v)


def cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()


def tensor_parallel(move: Move) -> Callable[..., Any]:
    """A layer under tensor and sequence parallelism: what a constraint costs there is what it must."""

    def loss(w: Any, ids: Any, labels: Any) -> Any:
        h = held(w["table"][ids], "data", None, None)
        n = norm(h, w["first"])
        q, k, v = (held(jnp.einsum("bte,ehd->bthd", n, w[c]), "data", None, "model", None) for c in "qkv")
        h = held(h + jnp.einsum("bthd,hde->bte", attention(q, k, v), w["o"]), "data", "model", None)
        n = move(norm(h, w["second"]), ("data", "model", None), ("data", None, None))
        inner = held(jax.nn.silu(n @ w["gate"]) * (n @ w["up"]), "data", None, "model")
        h = held(h + inner @ w["down"], "data", "model", None)
        return cross_entropy(held(norm(h, w["last"]) @ w["head"], "data", None, "model"), labels)

    return loss


def sequence_to_heads(move: Move) -> Callable[..., Any]:
    """A sequence that is cut by both axes becomes heads that are cut by them in the other order, and back."""

    def loss(w: Any, ids: Any, labels: Any) -> Any:
        h = held(w["table"][ids], *SEQUENCE[:3])
        n = norm(h, w["first"])
        q, k, v = (jnp.einsum("bte,ehd->bthd", n, w[c]) for c in "qkv")
        q, k, v = move(q, SEQUENCE, BY_HEADS), move(k, SEQUENCE, BY_HEADS), move(v, SEQUENCE, BY_HEADS)
        mixed = move(attention(q, k, v), BY_HEADS, SEQUENCE)
        h = held(h + jnp.einsum("bthd,hde->bte", mixed, w["o"]), *SEQUENCE[:3])
        n = norm(h, w["second"])
        h = held(h + (jax.nn.silu(n @ w["gate"]) * (n @ w["up"])) @ w["down"], *SEQUENCE[:3])
        return cross_entropy(norm(h, w["last"]) @ w["head"], labels)

    return loss


def experts(move: Move) -> Callable[..., Any]:
    """Tokens go to experts, and back."""

    def loss(w: Any, ids: Any, labels: Any) -> Any:
        h = held(w["table"][ids].reshape(-1, WIDTH), ("data", "model"), None)
        gate, choice = jax.lax.top_k(jax.nn.softmax(h @ w["router"]), 1)
        mask = jax.nn.one_hot(choice[:, 0], EXPERTS)
        sent = move(jnp.einsum("nx,ne->xne", mask, h), TOKENS, BY_EXPERTS)
        inner = jax.nn.silu(jnp.einsum("xne,xef->xnf", sent, w["up"]))
        back = move(jnp.einsum("xnf,xfe->xne", inner, w["down"]), BY_EXPERTS, TOKENS)
        h = h + jnp.einsum("xne,nx->ne", back, mask) * gate
        return cross_entropy(norm(h, w["last"]) @ w["head"], labels.reshape(-1))

    return loss


ENDS = {"table": (WORDS, WIDTH), "last": (WIDTH,), "head": (WIDTH, WORDS)}
LAYER = {
    **ENDS, "first": (WIDTH,), "second": (WIDTH,), **dict.fromkeys("qkv", (WIDTH, HEADS, EACH)),
    "o": (HEADS, EACH, WIDTH), "gate": (WIDTH, INNER), "up": (WIDTH, INNER), "down": (INNER, WIDTH),
}  # fmt: skip
CUT = {
    "table": ("model", "data"), "head": ("data", "model"), **dict.fromkeys("qkv", ("data", "model")),
    "o": ("model", None, "data"), "gate": ("data", "model"), "up": ("data", "model"), "down": ("model", "data"),
}  # fmt: skip
ROUTED = {
    **ENDS, "router": (WIDTH, EXPERTS), "up": (EXPERTS, WIDTH, INNER), "down": (EXPERTS, INNER, WIDTH)
}  # fmt: skip
STEPS = {
    "tensor parallel": Step(tensor_parallel, LAYER, CUT, ("data",)),
    "sequence to heads": Step(sequence_to_heads, LAYER, {}, (None, ("data", "model"))),
    "experts": Step(experts, ROUTED, dict.fromkeys(("up", "down"), (("model", "data"),)), ("data", "model")),
}


def report_of(name: str, move: Move) -> Any:
    """What `inspect` says of a step with AdamW."""
    step = STEPS[name]
    loss = step.loss(move)

    def update(w: Any, mu: Any, nu: Any, ids: Any, labels: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(w, ids, labels)
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, slopes)
        nu = jax.tree.map(lambda n, g: 0.95 * n + 0.05 * g * g, nu, slopes)
        w = jax.tree.map(lambda w, m, n: w - 1e-3 * (m / (jnp.sqrt(n) + 1e-8) + 0.1 * w), w, mu, nu)
        return value, w, mu, nu

    weights = {key: jax.ShapeDtypeStruct(shape, jnp.float32) for key, shape in step.shapes.items()}
    lie = {key: on(*step.specs.get(key, ())) for key in weights}
    ids = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    jitted = jax.jit(
        update, in_shardings=(lie, lie, lie, on(*step.ids), on(*step.ids)), out_shardings=(on(), lie, lie, lie)
    )
    return rs.jax.inspect(jitted, weights, weights, weights, ids, ids)
