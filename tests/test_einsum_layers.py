"""Layers of Llama 3 8B at their real sizes on a preset network: prices alone lead to the layouts that people use.

Data parallel: batches are cut, gradients summed over all.
Fully sharded: weights are cut too, gathered where they are used, their gradients scattered.
Tensor parallel: columns of the first matrix, rows of the second; the sum of the second is made for all, or, where
sequences are cut between layers, gathered before and scattered after.
With as many tokens as weights are cut for, it is cheaper to move weights, with few tokens to move activations; so
the former two have a training batch, the others a small one.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import reshard as rs
from reshard.contraction import EinsumPlan
from reshard.mesh import Mesh
from reshard.sharding import Sharding
from reshard.steps import Step

LARGE, MEDIUM, SMALL = (8, 4096), (4, 2048), (2, 1024)
"""Batch and tokens."""
BATCH, TOKENS = LARGE
HEAD, HEADS = 128, 32
ATTENTION = {"q_proj": (4096, 4096), "k_proj": (1024, 4096), "v_proj": (1024, 4096), "o_proj": (4096, 4096)}
MLP = {"gate_proj": (14336, 4096), "up_proj": (14336, 4096), "down_proj": (4096, 14336)}
LINEAR = ATTENTION | MLP
"""Weights as (out, in)."""
ROWS = ("o_proj", "down_proj")
"""Weights that tensor parallelism cuts by their inputs; the others by their outputs."""
NETWORKS = ("h100-1x8", "h100-2x4", "tpu-v4p-2x2x2")

Dims = tuple[str | None, ...]


@dataclass(frozen=True)
class Style:
    """A way to spread a layer over devices, and what it is known to need: kinds of steps of input, weight, result."""

    axes: dict[str, int]
    x: Dims
    columns: Dims
    """Of weights that are cut by their outputs, as (out, in)."""
    rows: Dims
    hidden: Dims
    """Of what lies between the two matrices."""
    first: list[list[str]]
    second: list[list[str]]
    batch: tuple[int, int]
    weights: tuple[str, ...]
    """For which the layout is the cheapest; a small weight may as well be gathered whole."""


DATA, MODEL = {"data": 8}, {"data": 2, "model": 4}
NOTHING: list[list[str]] = [[], [], []]
GATHERED = [[], ["AllGather"], []]
STYLES = {
    "data": Style(
        DATA,
        ("data", None, None),
        (None, None),
        (None, None),
        ("data", None, None),
        NOTHING,
        NOTHING,
        LARGE,
        tuple(LINEAR),
    ),
    "fully sharded": Style(
        DATA,
        ("data", None, None),
        ("data", None),
        ("data", None),
        ("data", None, None),
        GATHERED,
        GATHERED,
        LARGE,
        tuple(LINEAR),
    ),
    "tensor": Style(
        MODEL,
        ("data", None, None),
        ("model", None),
        (None, "model"),
        ("data", None, "model"),
        NOTHING,
        [[], [], ["AllReduce"]],
        SMALL,
        tuple(LINEAR),
    ),
    "tensor and sequence": Style(
        MODEL,
        ("data", "model", None),
        ("model", None),
        (None, "model"),
        ("data", None, "model"),
        [["AllGather"], [], []],
        [[], [], ["ReduceScatter"]],
        SMALL,
        ("q_proj", "o_proj", *MLP),
    ),
    "fully sharded and tensor": Style(
        MODEL,
        ("data", None, None),
        ("model", "data"),
        ("data", "model"),
        ("data", None, "model"),
        GATHERED,
        [[], ["AllGather"], ["AllReduce"]],
        MEDIUM,
        tuple(MLP),
    ),
}


def linear(name: str, style: Style, network: str | None) -> EinsumPlan:
    """A weight applied to activations."""
    out, into = LINEAR[name]
    mesh = Mesh.of(style.axes)
    is_second = name in ROWS
    x = Sharding.of(mesh, *(style.hidden if is_second else style.x))
    w = Sharding.of(mesh, *(style.rows if is_second else style.columns))
    y = Sharding.of(mesh, *(style.x if is_second else style.hidden))
    shapes = [(*style.batch, into), (out, into)]
    return rs.einsum("bti,oi->bto", x, w, shapes=shapes, dtype="bf16", target=y, network=network)


def kinds(plan: EinsumPlan) -> list[list[str]]:
    """What every reshard is, slices left out, which cost nothing; in one step where it goes in parts that overlap."""
    steps = [one.steps if one.parts == 1 else (Step(one.reshard),) for one in plan.plans]
    return [[step.kind for step in chain if step.kind != "Slice"] for chain in steps]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("style", "name"), [(style, name) for style in STYLES for name in STYLES[style].weights])
def test_known_layouts_are_found(style: str, name: str, network: str) -> None:
    found = STYLES[style]
    assert kinds(linear(name, found, network)) == (found.second if name in ROWS else found.first)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("weight", "kind"), [((None, None), "AllReduce"), (("data", None), "ReduceScatter")])
def test_gradients_of_weights_are_summed_or_scattered(weight: Dims, kind: str, network: str) -> None:
    mesh = Mesh.of(DATA)
    x, w = Sharding.of(mesh, "data", None, None), Sharding.of(mesh, *weight)
    out, into = MLP["up_proj"]
    shapes = [(BATCH, TOKENS, out), (BATCH, TOKENS, into)]
    plan = rs.einsum("bto,bti->oi", x, x, shapes=shapes, dtype="bf16", target=w, network=network)
    assert kinds(plan) == [[], [], [kind]]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("axes", [DATA, MODEL], ids=str)
def test_attention_needs_nothing_where_batches_and_heads_are_cut(axes: dict[str, int], network: str) -> None:
    mesh = Mesh.of(axes)
    head = "model" if "model" in axes else None
    q, scores = Sharding.of(mesh, "data", None, head, None), Sharding.of(mesh, "data", head, None, None)
    shape = (BATCH, TOKENS, HEADS, HEAD)
    made = rs.einsum("bthd,bshd->bhts", q, q, shapes=[shape, shape], dtype="bf16", target=scores, network=network)
    shapes = [(BATCH, HEADS, TOKENS, TOKENS), shape]
    back = rs.einsum("bhts,bshd->bthd", scores, q, shapes=shapes, dtype="bf16", target=q, network=network)
    assert kinds(made) == kinds(back) == [[], [], []]
    free = rs.einsum("bthd,bshd->bhts", q, q, shapes=[shape, shape], dtype="bf16", network=network)
    assert (free.target, free.received_bytes) == (scores, 0)


def test_a_result_that_may_lie_anywhere_costs_no_more() -> None:
    style = STYLES["fully sharded"]
    mesh = Mesh.of(style.axes)
    x, w = Sharding.of(mesh, *style.x), Sharding.of(mesh, *style.columns)
    out, into = MLP["up_proj"]
    shapes = [(BATCH, TOKENS, into), (out, into)]
    free, known = (
        rs.einsum("bti,oi->bto", x, w, shapes=shapes, dtype="bf16", network="h100-1x8", target=target)
        for target in (None, x)
    )
    assert known.received_bytes == out * into * 2 * 7 // 8
    assert free.price < known.price
