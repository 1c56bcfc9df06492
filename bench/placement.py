"""How programs of whole models are placed: train steps of Llama 3 with Adam, against what an expert would receive.

`python -m bench.placement [case ...]`; no devices are needed.
Nothing is annotated but what goes in and comes out.
The layer is that of `tests/llama.py`; weights are bf16, the moments of Adam f32.

By hand, of the 8B model on 64 devices: a layer has 4096 (32 + 2 · 8) 128 + 32 · 128 · 4096 + 3 · 4096 · 14336 =
218,103,808 weights, so to gather them once is 63/64 of 436 MB.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import reshard as rs
from tests.llama import Sizes, layer, normalised, shardings

SEQUENCE = 4096


@dataclass(frozen=True)
class Model:
    """The sizes of a model."""

    layers: int
    features: int
    heads: int
    groups: int
    hidden: int
    head: int = 128
    vocabulary: int = 128256

    def sizes(self, batch: int) -> Sizes:
        return Sizes(batch, SEQUENCE, self.features, self.heads, self.groups, self.head, self.hidden)

    @property
    def weights_of_a_layer(self) -> int:
        """Without those of its norms."""
        attention = self.features * (2 * self.heads + 2 * self.groups) * self.head
        return attention + 3 * self.features * self.hidden


LLAMA_8B = Model(layers=32, features=4096, heads=32, groups=8, hidden=14336)
LLAMA_70B = Model(layers=80, features=8192, heads=64, groups=8, hidden=28672)


@dataclass(frozen=True)
class Case:
    """A model on a mesh."""

    model: Model
    data: int
    tensor: int
    """Devices of an axis `model`; where there is one there is no such axis."""
    is_fully_sharded: bool
    sequences: int
    """In each of the parts along `data`."""
    is_unrolled: bool = False

    @property
    def batch(self) -> int:
        return self.data * self.sequences

    @property
    def mesh(self) -> rs.Mesh:
        return rs.Mesh.of(data=self.data, **({"model": self.tensor} if self.tensor > 1 else {}))

    def shardings(self, mesh: rs.Mesh) -> tuple[dict[str, Any], rs.Sharding]:
        """Of the weights, and of the numbers of tokens."""
        model, fully = "model" if self.tensor > 1 else None, "data" if self.is_fully_sharded else None
        each, _ = shardings(mesh, model=model, fully=fully)
        stacked = {name: rs.Sharding(mesh, (rs.DimSharding(), *one.dims)) for name, one in each.items()}
        weights = {
            "layers": [each] * self.model.layers if self.is_unrolled else stacked,
            "embedding": rs.Sharding.of(mesh, model, fully),
            "head": rs.Sharding.of(mesh, fully, model),
            "norm": rs.Sharding.of(mesh, None),
        }
        return weights, rs.Sharding.of(mesh, "data", None)

    def shapes(self, dtype: str) -> dict[str, Any]:
        """Of the weights."""
        model = self.model
        layers, each = model.layers, model.sizes(self.batch).shapes

        def shape(*sizes: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(sizes, np.dtype(dtype) if dtype != "bfloat16" else jnp.bfloat16)

        one = {name: shape(*sizes) for name, sizes in each.items()}
        stacked = {name: shape(layers, *sizes) for name, sizes in each.items()}
        return {
            "layers": [one] * layers if self.is_unrolled else stacked,
            "embedding": shape(model.vocabulary, model.features),
            "head": shape(model.features, model.vocabulary),
            "norm": shape(model.features),
        }

    def program(self, mesh: rs.Mesh) -> rs.Program:
        """The step on a mesh with these axes, of whatever sizes."""
        weights, tokens = self.shardings(mesh)
        numbers = jax.ShapeDtypeStruct((self.batch, SEQUENCE), np.int32)
        moments, count = self.shapes("float32"), jax.ShapeDtypeStruct((), np.float32)
        state = weights, (weights, weights), rs.Sharding.of(mesh)
        return rs.jax.trace(
            train,
            self.shapes("bfloat16"), (moments, moments), count, numbers, numbers,
            in_shardings=(*state, tokens, tokens),
            out_shardings=(None, *state),
            mesh=mesh,
        )  # fmt: skip

    def expert_bytes(self, passes: int) -> float:
        """What a device receives where weights are gathered, or gradients scattered, so many times in all.

        Fully sharded: a gather forward, one backward unless the weights are kept, and a scatter of the gradients; else
        one all-reduce of the gradients.
        Tensor parallel: two all-reduces of the activations per layer forward and two backward, and one each for the
        embedding and the head.
        """
        model, others = self.model, (self.data - 1) / self.data
        every = model.layers * model.weights_of_a_layer + 2 * model.features * model.vocabulary
        activations = 2 * self.sequences * SEQUENCE * model.features
        sums = (4 * model.layers + 2) * 2 * (self.tensor - 1) / self.tensor * activations
        return sums + (passes if self.is_fully_sharded else 2) * others * 2 * every / self.tensor


def loss(weights: dict[str, Any], tokens: Any, targets: Any) -> Any:
    """The mean cross entropy of the next token."""
    x = weights["embedding"][tokens]
    if isinstance(weights["layers"], dict):
        x, _ = lax.scan(lambda x, one: (layer(one, x), None), x, weights["layers"])
    else:
        for one in weights["layers"]:
            x = layer(one, x)
    logits = (normalised(x, weights["norm"]) @ weights["head"]).astype(jnp.float32)
    right = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - right).mean()


def train(weights: Any, moments: Any, count: Any, tokens: Any, targets: Any) -> Any:
    """A step of Adam: the loss, the weights, the moments, and the number of steps."""
    value, gradients = jax.value_and_grad(loss)(weights, tokens, targets)
    wide = jax.tree.map(lambda gradient: gradient.astype(jnp.float32), gradients)
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], wide)
    second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, moments[1], wide)

    def updated(weight: Any, m: Any, v: Any) -> Any:
        step = m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.95**count)) + 1e-8)
        return (weight.astype(jnp.float32) - 3e-4 * step).astype(weight.dtype)

    return value, jax.tree.map(updated, weights, first, second), (first, second), count


CASES = {
    "tp+dp-8x8": Case(LLAMA_8B, 8, 8, is_fully_sharded=False, sequences=8),
    "fsdp-64": Case(LLAMA_8B, 64, 1, is_fully_sharded=True, sequences=1),
    "fsdp+tp-8x8": Case(LLAMA_8B, 8, 8, is_fully_sharded=True, sequences=8),
    "fsdp-4096": Case(LLAMA_8B, 4096, 1, is_fully_sharded=True, sequences=1),
    "70b-tp+dp-2048x8": Case(LLAMA_70B, 2048, 8, is_fully_sharded=False, sequences=1),
    "tp+dp-8x8-unrolled": Case(LLAMA_8B, 8, 8, is_fully_sharded=False, sequences=8, is_unrolled=True),
    "fsdp-64-unrolled": Case(LLAMA_8B, 64, 1, is_fully_sharded=True, sequences=1, is_unrolled=True),
}
COLUMNS = (
    "case", "operations", "trace s", "propagate s", "received GB", "by reshard GB", "expert GB", "bound GB",
    "work / even", "peak GB",
)  # fmt: skip


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """What a function gives back, and the seconds that it took."""
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


def even_work(case: Case) -> float:
    """The work of a device where every operation is cut over all: that of one device alone, over their number."""
    alone = case.program(rs.Mesh.of(dict.fromkeys(case.mesh.sizes, 1))).propagate()
    return sum(alone.work.values()) / case.mesh.size


def figures(name: str) -> tuple[str, ...]:
    """Those of a case, in the order of `COLUMNS`."""
    case = CASES[name]
    program, tracing = timed(lambda: case.program(case.mesh))
    placed, placing = timed(program.propagate)
    by_reshard = sum(plan.received_bytes * placed.trip_count(value) for value, plan in placed.plans.items())
    low, high = case.expert_bytes(2), case.expert_bytes(3)
    bound = getattr(placed, "lower_bound_bytes", None)
    return (
        name,
        str(len(program.operations)),
        f"{tracing:.1f}",
        f"{placing:.1f}",
        f"{placed.received_bytes / 1e9:.2f}",
        f"{by_reshard / 1e9:.2f}",
        f"{low / 1e9:.1f}" + (f"-{high / 1e9:.1f}" if high > low else ""),
        "" if bound is None else f"{bound / 1e9:.2f}",
        f"{sum(placed.work.values()) / even_work(case):.3f}",
        f"{placed.peak_bytes / 1e9:.0f}",
    )


def main(names: list[str]) -> int:
    """Print the figures of the cases of these names, or of all; 2 where a name is unknown."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        print(f"no case {unknown[0]}; there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for name in names or CASES:
        print("| " + " | ".join(figures(name)) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
