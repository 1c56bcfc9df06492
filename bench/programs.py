"""How programs are placed, against what an expert would receive, against a solver, and how long that takes.

`python -m bench.programs [row ...]`; without a row all of them, which takes minutes; no devices are needed.
Of train steps of Llama 3 with Adam nothing is annotated but what goes in and comes out; the layer is that of
`tests/llama.py`, weights are bf16, the moments of Adam f32.
The mixture of experts has the sizes of DeepSeek-V3, its experts lie on one axis, its tokens on the same.

By hand, of the 8B model on 64 devices: a layer has 4096 (32 + 2 · 8) 128 + 32 · 128 · 4096 + 3 · 4096 · 14336 =
218,103,808 weights, so to gather them once is 63/64 of 436 MB.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import reshard as rs
from bench.timing import Row, seconds, within

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the layer, and the solver, lie with the tests

from drawn_programs import CLOSE, GOALS, compare
from llama import Sizes, layer, normalised, shardings

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


STEPS = {
    "tp+dp-8x8": Case(LLAMA_8B, 8, 8, is_fully_sharded=False, sequences=8),
    "fsdp-64": Case(LLAMA_8B, 64, 1, is_fully_sharded=True, sequences=1),
    "fsdp+tp-8x8": Case(LLAMA_8B, 8, 8, is_fully_sharded=True, sequences=8),
    "fsdp-4096": Case(LLAMA_8B, 4096, 1, is_fully_sharded=True, sequences=1),
    "70b-tp+dp-2048x8": Case(LLAMA_70B, 2048, 8, is_fully_sharded=False, sequences=1),
    "tp+dp-8x8-unrolled": Case(LLAMA_8B, 8, 8, is_fully_sharded=False, sequences=8, is_unrolled=True),
    "fsdp-64-unrolled": Case(LLAMA_8B, 64, 1, is_fully_sharded=True, sequences=1, is_unrolled=True),
    "fsdp+tp-8x8-unrolled": Case(LLAMA_8B, 8, 8, is_fully_sharded=True, sequences=8, is_unrolled=True),
    "fsdp-4096-unrolled": Case(LLAMA_8B, 4096, 1, is_fully_sharded=True, sequences=1, is_unrolled=True),
}
SLACK = 1.1
"""How many times the expert's bytes, and the even share of the work, a train step may have."""
EXPERTS, TOP, TOKENS, FEATURES, HIDDEN = 256, 8, 4096, 7168, 2048
"""Of DeepSeek-V3: experts, of which a token goes to some; tokens of a device."""
CAPACITY = 2 * TOP * TOKENS // EXPERTS
"""Tokens of a device that an expert takes: twice an even part."""
MORE = 1.2
"""How many times two all-to-alls a mixture of experts may receive."""
DRAWN = 70
"""How many programs are drawn; `tests/test_placement.py` has a slow test of five hundred."""


# Train steps


@cache
def even_work(case: Case) -> float:
    """The work of a device where every operation is cut over all: that of one device alone, over their number."""
    alone = case.program(rs.Mesh.of(dict.fromkeys(case.mesh.sizes, 1))).propagate()
    return alone.flops / case.mesh.size


def gap(placed: rs.Placement) -> str:
    """How far from its bound it is, in words."""
    return "proved" if placed.is_proved else f"at most {placed.cost / placed.bound - 1:.1%} above the least"


def step(name: str) -> Iterator[Row]:
    """A train step: what is received, and the work of a device."""
    case = STEPS[name]
    programs: list[rs.Program] = []
    placements: list[rs.Placement] = []
    tracing = seconds(lambda: programs.append(case.program(case.mesh)))
    placing = seconds(lambda: placements.append(programs[0].propagate()))
    placed, limit = placements[0], 10 if case.model is LLAMA_8B else 15
    received, expert = placed.received_bytes / 1e9, case.expert_bytes(2) / 1e9
    bound = (placed.lower_bound_bytes or 0) / 1e9
    yield Row(
        f"{name}: received, {len(programs[0].operations)} operations",
        f"{received:.2f} GB; bound {bound:.2f} GB, {gap(placed)}; peak {placed.peak_bytes / 1e9:.0f} GB",
        f"at most {SLACK} x {expert:.1f} GB",
        received <= SLACK * expert,
    )
    work = placed.flops / even_work(case)
    yield Row(f"{name}: work over its even share", f"{work:.3f}", f"at most {SLACK}", work <= SLACK)
    yield within(f"{name}: placing", 1e3 * placing, 1e3 * limit, f", after {tracing:.1f} s of tracing")


# Mixture of experts


def routed(x: Any, router: Any) -> tuple[Any, Any, Any]:
    """Per token and choice its weight and its expert, and per token, choice and expert whether it goes there."""
    weights, chosen = lax.top_k(jax.nn.softmax((x @ router).astype(jnp.float32)), TOP)
    return weights.astype(x.dtype), chosen, jax.nn.one_hot(chosen, EXPERTS, dtype=jnp.int32)


def places(hot: Any) -> Any:
    """Which of the tokens of its expert each choice of a token is."""
    flat = hot.reshape(-1, EXPERTS)
    return ((jnp.cumsum(flat, axis=0) - 1) * flat).sum(-1).reshape(hot.shape[:-1])


def hidden(sent: Any, up: Any, down: Any) -> Any:
    """What the experts make of their tokens, group by group of devices' tokens."""
    inner = jax.nn.silu(jnp.einsum("gecd,edf->gecf", sent, up))
    return jnp.einsum("gecf,efd->gecd", inner, down)


def one_hot(x: Any, router: Any, up: Any, down: Any) -> Any:
    """Tokens `[group, token, feature]` sent by a product with a mask, and brought back by another."""
    weights, _, hot = routed(x, router)
    slots = jax.nn.one_hot(jax.vmap(places)(hot), CAPACITY, dtype=x.dtype)
    mask = jnp.einsum("gtke,gtkc->gtec", hot.astype(x.dtype), slots)
    weighed = jnp.einsum("gtke,gtkc,gtk->gtec", hot.astype(x.dtype), slots, weights)
    sent = jnp.einsum("gtd,gtec->gecd", x, mask)
    return jnp.einsum("gecd,gtec->gtd", hidden(sent, up, down), weighed)


def indexed(x: Any, router: Any, up: Any, down: Any) -> Any:
    """Tokens `[group, token, feature]` sent to numbered places, and fetched from there."""
    weights, chosen, hot = routed(x, router)
    slots = jax.vmap(places)(hot)

    def send(own: Any, to: Any, slot: Any) -> Any:
        empty = jnp.zeros((EXPERTS, CAPACITY, FEATURES), x.dtype)
        return empty.at[to.ravel(), slot.ravel()].set(jnp.repeat(own, TOP, axis=0), mode="drop")

    made = hidden(jax.vmap(send)(x, chosen, slots), up, down)
    back = jax.vmap(lambda own, to, slot: own[to, slot])(made, chosen, slots)
    return jnp.einsum("gtkd,gtk->gtd", back, weights)


def mixture(function: Callable[..., Any], devices: int) -> Iterator[Row]:
    """A forward pass over so many devices, each with its tokens and its part of the experts."""
    mesh = rs.Mesh.of(ep=devices)
    given = [(devices, TOKENS, FEATURES), (FEATURES, EXPERTS), (EXPERTS, FEATURES, HIDDEN), (EXPERTS, HIDDEN, FEATURES)]
    cut, whole = rs.Sharding.of(mesh, "ep", None, None), rs.Sharding.of(mesh, None, None)
    avals = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in given]
    program = rs.jax.trace(function, *avals, in_shardings=(cut, whole, cut, cut), out_shardings=cut)
    placed = program.propagate()
    received, two = placed.received_bytes / 1e9, 2 * 2 * 2 * TOP * TOKENS * FEATURES * (devices - 1) / devices / 1e9
    yield Row(
        f"experts {function.__name__} on {devices} devices: received",
        f"{received:.2f} GB, {gap(placed)}",
        f"at most {MORE} x {two:.2f} GB",
        received <= MORE * two,
    )


# Drawn programs, against a solver


def drawn(goal: str) -> Iterator[Row]:
    """Small programs of every kind, under one goal."""
    cases = [compare(seed, goal) for seed in range(DRAWN)]
    solved = [case for case in cases if case.is_optimal]
    total = sum(case.costs[0] for case in solved) / sum(case.costs[1] for case in solved)
    at_optimum = sum(case.ratio <= CLOSE for case in solved) / len(solved)
    worst = max(case.ratio for case in solved)
    most, least, highest = (1.02, 0.9, 1.3) if goal == "balanced" else (1.05, 0.0, np.inf)
    about = f"{goal}, {len(solved)} of {DRAWN} drawn programs solved"
    yield Row(f"{about}: cost over the least, in sum", f"{total:.4f}", f"at most {most}", total <= most)
    yield Row(f"{about}: at the optimum", f"{at_optimum:.0%}", f"at least {least:.0%}", at_optimum >= least)
    yield Row(f"{about}: the worst", f"{worst:.3f}", f"at most {highest}", worst <= highest)
    wrong = sum(case.is_wrong for case in solved)
    yield Row(f"{about}: bounds above the least, or wrongly proved", str(wrong), "none", not wrong)


# Chains of products


MESH = rs.Mesh.of(data=8, model=8)


def chain(layers: int, *, contradicts: bool) -> rs.Program:
    """Two products and an activation per layer, with weights cut as a tensor-parallel layer has them, or not all."""
    program = rs.Program(MESH)
    value = program.input("x", (8192, 4096), "bf16", rs.Sharding.of(MESH, "data", None))
    for number in range(layers):
        cut = (None, "model") if not contradicts or number % 3 else ("model", None)
        up = program.input(f"up{number}", (4096, 16384), "bf16", rs.Sharding.of(MESH, *cut))
        down = program.input(f"down{number}", (16384, 4096), "bf16", rs.Sharding.of(MESH, "model", None))
        hidden = program.op("bf->bf", program.op("bd,df->bf", value, up), name="relu")
        value = program.op("bf,fd->bd", hidden, down)
    program.output(value)
    return program


def chains() -> Iterator[Row]:
    """How long shardings take to be carried through many layers."""
    for layers, limit in ((48, 2.0), (2000, 10.0)):
        for contradicts in (False, True):
            program = chain(layers, contradicts=contradicts)
            what = f"propagate and place {len(program.operations)} operations, 64 devices"
            if contradicts:
                what += ", a third of the layers against the others"
            time = seconds(lambda program=program: program.propagate())
            yield within(what, 1e3 * time, 1e3 * limit)


ROWS: dict[str, Callable[[], Iterator[Row]]] = {
    **{name: partial(step, name) for name in STEPS},
    **{f"{form.__name__}-{n}": partial(mixture, form, n) for form in (one_hot, indexed) for n in (8, 64, 256)},
    **{f"drawn-{goal}": partial(drawn, goal) for goal in GOALS},
    "chains": chains,
}


def rows() -> Iterator[Row]:
    """Every figure of programs."""
    for each in ROWS.values():
        yield from each()


def main(names: list[str]) -> int:
    """Print the rows of these names, or of all; 2 where a name is unknown."""
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        print(f"no row {unknown[0]}; there are {', '.join(ROWS)}", file=sys.stderr)
        return 2
    for name in names or ROWS:
        for row in ROWS[name]():
            mark = {True: "holds", False: "MISSED", None: ""}[row.holds]
            print(f"{row.what}: {row.measured}  {row.wanted}  {mark}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
