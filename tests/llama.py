"""A layer of Llama 3 in plain `jax.numpy`: normalised, grouped-query attention with rotary positions, gated MLP."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import reshard as rs


class Sizes(NamedTuple):
    batch: int
    sequence: int
    features: int
    heads: int
    groups: int
    head: int
    hidden: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the weights."""
        d, h, k, n, f = self.features, self.heads, self.groups, self.head, self.hidden
        return {
            "wq": (d, h, n),
            "wk": (d, k, n),
            "wv": (d, k, n),
            "wo": (h, n, d),
            "gate": (d, f),
            "up": (d, f),
            "down": (f, d),
            "norm1": (d,),
            "norm2": (d,),
        }

    @property
    def x(self) -> tuple[int, ...]:
        return (self.batch, self.sequence, self.features)


REAL = Sizes(batch=16, sequence=8192, features=4096, heads=32, groups=8, head=128, hidden=14336)
SMALL = Sizes(batch=4, sequence=64, features=256, heads=8, groups=4, head=32, hidden=896)


def normalised(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def rotated(x: Any) -> Any:
    """x: batch, sequence, heads, head."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] / 500000.0 ** (jnp.arange(half) / half)
    cos, sin = (turn(angles)[None, :, None].astype(x.dtype) for turn in (jnp.cos, jnp.sin))
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def layer(weights: dict[str, Any], x: Any) -> Any:
    y = normalised(x, weights["norm1"])
    q, k, v = (jnp.einsum("bsd,dhn->bshn", y, weights[name]) for name in ("wq", "wk", "wv"))
    q, k = rotated(q), rotated(k)
    batch, sequence, heads, head = q.shape
    groups = k.shape[2]
    q = q.reshape(batch, sequence, groups, heads // groups, head)
    scores = jnp.einsum("bsgrn,btgn->bgrst", q, k).astype(jnp.float32) / np.float32(np.sqrt(head))
    places = jnp.arange(sequence)
    scores = jnp.where(places[:, None] >= places, scores, -1e30)
    weighted = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    y = jnp.einsum("bgrst,btgn->bsgrn", weighted, v).reshape(batch, sequence, heads, head)
    x = x + jnp.einsum("bshn,hnd->bsd", y, weights["wo"])
    y = normalised(x, weights["norm2"])
    return x + (jax.nn.silu(y @ weights["gate"]) * (y @ weights["up"])) @ weights["down"]


def step(weights: dict[str, Any], x: Any) -> tuple[Any, Any]:
    """A loss and its gradients in the weights and the input."""

    def loss(weights: dict[str, Any], x: Any) -> Any:
        return (layer(weights, x).astype(jnp.float32) ** 2).mean()

    return jax.value_and_grad(loss, (0, 1))(weights, x)


def shardings(
    mesh: rs.Mesh,
    data: str = "data",
    model: str = "model",
    sequence: str | None = None,
    fully: str | None = None,
    priorities: bool = False,
) -> tuple[dict[str, rs.Sharding], rs.Sharding]:
    """Of the weights and of the input: data and tensor parallel, and if wanted along the sequence and fully sharded.

    With priorities the batch goes first, then what is tensor parallel, then the weights that are fully sharded.
    """
    levels = {model: 1, fully: 2} if priorities else {}

    def on(*axes: str | None) -> rs.Sharding:
        dims = [
            rs.DimSharding.of(*([axis] if axis else []), priority=levels.get(axis) if axis else None) for axis in axes
        ]
        return rs.Sharding.of(mesh, *dims)

    heads, out = on(fully, model, None), on(fully, model)
    weights = dict.fromkeys(("wq", "wk", "wv"), heads) | {"gate": out, "up": out}
    weights |= {"wo": on(model, None, fully), "down": on(model, fully), "norm1": on(None), "norm2": on(None)}
    return weights, on(data, sequence, None)
