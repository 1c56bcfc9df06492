"""Kernels of Pallas run on devices by parts of their grids, where these stand alone, and give what they give whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402
from jax.experimental.pallas import tpu as pltpu  # noqa: E402
from jax_kernels import drawn_kernel  # noqa: E402

import reshard as rs  # noqa: E402

pytestmark = pytest.mark.engine

P = jax.P


def mesh_of(**axes: int) -> Any:
    """Of 8 devices."""
    kinds = (jax.sharding.AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), kinds, devices=jax.devices()[:8])


def placed_like_plain(
    function: Callable[..., Any], arrays: Sequence[Any], mesh: Any, specs: Sequence[Any], out: Any = None
) -> rs.Placement:
    """A placed function, which gives what it gives whole."""
    ends = tuple(jax.NamedSharding(mesh, spec) for spec in specs)
    asked = None if out is None else jax.tree.map(partial(jax.NamedSharding, mesh), out)
    placed = rs.jax.trace(function, *arrays, in_shardings=ends, out_shardings=asked, mesh=mesh).propagate(goal="bytes")
    found = jax.jit(rs.jax.to_jax(placed))(*map(jax.device_put, arrays, ends))
    for own, whole in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(function)(*arrays)), strict=True):
        np.testing.assert_allclose(own, whole, rtol=2e-4, atol=2e-4 * max(1, float(abs(whole).max(initial=0))))
    return placed


def arrays_of(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def called(kernel: Callable[..., None], grid: tuple[int, ...], ins: Any, out: Any, shape: Any, **how: Any) -> Any:
    """A kernel, of arrays, with blocks as pairs of sizes and an index map."""
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(shape, np.float32),
        grid=grid,
        in_specs=[pl.BlockSpec(*each) for each in ins],
        out_specs=pl.BlockSpec(*out),
        interpret=True,
        **how,
    )


def product(order: tuple[int, int, int], sums_in_scratch: bool) -> Callable[..., Any]:
    """A product of 64 x 48 and 48 x 32 by blocks; `order` says which axis of the grid is rows, columns and sums."""
    rows, columns, sums = order
    grid = tuple({rows: 8, columns: 4, sums: 3}[axis] for axis in range(3))

    def kernel(left: Any, right: Any, out: Any, *scratch: Any) -> None:
        total = scratch[0] if scratch else out

        @pl.when(pl.program_id(sums) == 0)
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += left[...] @ right[...]
        if scratch:
            out[...] = total[...]

    ins = ((8, 16), lambda *at: (at[rows], at[sums])), ((16, 8), lambda *at: (at[sums], at[columns]))
    out = (8, 8), lambda *at: (at[rows], at[columns])
    how = {"scratch_shapes": [pltpu.VMEM((8, 8), np.float32)]} if sums_in_scratch else {}
    return called(kernel, grid, ins, out, (64, 32), **how)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)])
@pytest.mark.parametrize("sums_in_scratch", [False, True])
def test_products_of_matrices(order: tuple[int, int, int], sums_in_scratch: bool) -> None:
    """What is summed along the first axis goes round in scratch through all others, and so nothing is cut."""
    is_handed_on = sums_in_scratch and order[2] == 0
    mesh, arrays = mesh_of(x=4, y=2), arrays_of((64, 48), (48, 32))
    function, specs = product(order, sums_in_scratch), (P("x", None), P(None, "y"))
    if is_handed_on:  # a product that is wrong, whole as in parts
        ends = tuple(jax.NamedSharding(mesh, spec) for spec in specs)
        placed = rs.jax.trace(function, *arrays, in_shardings=ends).propagate(goal="bytes")
        assert placed.without_rule == {"pallas_call": 1}
        return
    placed = placed_like_plain(function, arrays, mesh, specs, P("x", "y"))
    assert placed.received_bytes == 0
    assert not placed.without_rule


def heads_in_groups(q: Any, k: Any) -> Any:
    """Eight heads, of which four each go with one of two, and with their number."""

    def kernel(q: Any, k: Any, out: Any) -> None:
        out[...] = q[...] * k[...].sum(-1, keepdims=True) + pl.program_id(1) + 10 * pl.program_id(0)

    ins = ((None, None, 4, 8), lambda b, h: (b, h, 0, 0)), ((None, None, 4, 8), lambda b, h: (b, h // 4, 0, 0))
    return called(kernel, (2, 8), ins, ins[0], (2, 8, 4, 8))(q, k)


def batches_and_heads_together(q: Any, k: Any) -> Any:
    def kernel(q: Any, k: Any, out: Any) -> None:
        out[...] = q[...] * k[...] + pl.program_id(1)

    blocks = (1, 4), lambda b, h: (8 * b + h, 0)
    return called(kernel, (2, 8), (blocks, blocks), blocks, (16, 4))(q, k)


def differences(x: Any) -> Any:
    """Of neighbouring blocks, of which one operand is read at another place than the result is written."""

    def kernel(here: Any, there: Any, out: Any) -> None:
        out[...] = there[...] - here[...] + pl.program_id(0)

    own, after = ((4, 8), lambda i: (i, 0)), ((4, 8), lambda i: (jnp.minimum(i + 1, 15), 0))
    return called(kernel, (16,), (own, after), own, (64, 8))(x, x)


def from_behind(x: Any) -> Any:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...]

    return called(kernel, (16,), (((4, 8), lambda i: (i, 0)),), ((4, 8), lambda i: (15 - i, 0)), (64, 8))(x)


def in_place(x: Any, y: Any) -> Any:
    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] + y[...]

    own = (4, 8), lambda i: (i, 0)
    return called(kernel, (16,), (own, own), own, (64, 8), input_output_aliases={0: 0})(x, y)


def without_grid(x: Any) -> Any:
    return pl.pallas_call(
        lambda x, out: out.__setitem__(..., x[...] * 2),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=True,
    )(x)


def asks_in_a_branch(x: Any) -> Any:
    """A kernel that wants its place inside a branch, which an interpreter cannot tell: it is only traced."""

    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...]

        @pl.when(x[0, 0] > 0)
        def _() -> None:
            out[...] = x[...] * pl.program_id(0)

    own = (4, 8), lambda i: (i, 0)
    return called(kernel, (16,), (own,), own, (64, 8))(x)


@pytest.mark.parametrize(
    ("function", "shapes", "axes", "specs", "out", "received"),
    [
        (heads_in_groups, ((2, 8, 4, 8), (2, 2, 4, 8)), {"x": 2, "y": 4}, (P(None, "x"),) * 2, P(None, "x"), 0),
        (heads_in_groups, ((2, 8, 4, 8), (2, 2, 4, 8)), {"x": 8}, (P(None, "x"), P()), P(None, "x"), 0),
        (heads_in_groups, ((2, 8, 4, 8), (2, 2, 4, 8)), {"x": 2, "y": 4}, (P("x"), P("x")), P("x"), 0),
        (batches_and_heads_together, ((16, 4), (16, 4)), {"x": 8}, (P("x"),) * 2, P("x"), 0),
        (jax.vmap(batches_and_heads_together), ((4, 16, 4),) * 2, {"x": 4, "y": 2}, (P("x", "y"),) * 2, P("x", "y"), 0),
        (differences, ((64, 8),), {"x": 8}, (P("x"),), P("x"), 56 * 8 * 4),
        (jax.vmap(differences), ((8, 64, 8),), {"x": 8}, (P("x"),), P("x"), 0),
        (from_behind, ((64, 8),), {"x": 8}, (P("x"),), P("x"), 56 * 8 * 4),
        (in_place, ((64, 8), (64, 8)), {"x": 8}, (P("x"),) * 2, P("x"), 0),
        (without_grid, ((64, 8),), {"x": 8}, (P("x"),), P("x"), 0),
    ],
)
def test_blocks_at_places(function: Any, shapes: Any, axes: Any, specs: Any, out: Any, received: int) -> None:
    placed = placed_like_plain(function, arrays_of(*shapes), mesh_of(**axes), specs, out)
    assert placed.received_bytes == received
    assert bool(placed.without_rule) == (function is from_behind)


def test_a_kernel_that_asks_for_its_place_in_a_branch_is_whole() -> None:
    rows = jax.NamedSharding(mesh_of(x=8), P("x"))
    placed = rs.jax.trace(asks_in_a_branch, *arrays_of((64, 8)), in_shardings=rows).propagate()
    assert placed.without_rule == {"pallas_call": 1}


def test_kernels_that_are_compiled_are_cut_where_they_need_not_know_their_place() -> None:
    def compiled(x: Any) -> Any:
        return pl.pallas_call(
            lambda x, out: out.__setitem__(..., x[...] * 2 + pl.program_id(1)),
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(8, 8),
            in_specs=[pl.BlockSpec((8, 8), lambda i, j: (i, j))],
            out_specs=pl.BlockSpec((8, 8), lambda i, j: (i, j)),
        )(x)

    mesh = mesh_of(x=8)
    avals = jax.ShapeDtypeStruct((64, 64), "float32")
    for spec, received in ((P("x", None), 0), (P(None, "x"), 7 * 8 * 8 * 4)):
        end = jax.NamedSharding(mesh, spec)
        placed = rs.jax.trace(compiled, avals, in_shardings=end, out_shardings=end).propagate(goal="bytes")
        assert placed.received_bytes == 2 * received
        assert not placed.without_rule


def check_drawn(seed: int) -> bool:
    """A drawn kernel on a drawn mesh, its tensors cut anyhow; whether devices have parts of its grid."""
    random = Random(seed)
    function, operands, results = drawn_kernel(random)
    if random.random() < 0.25:
        function = jax.vmap(function)
        operands, results = ([(4, *shape) for shape in shapes] for shapes in (operands, results))
    mesh = mesh_of(**random.choice([{"x": 8}, {"x": 2, "y": 4}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2}]))

    def spec(shape: tuple[int, ...]) -> Any:
        free, dims = random.sample(list(mesh.shape), len(mesh.shape)), []
        for size in shape:
            fits = next((axis for axis in free if size % mesh.shape[axis] == 0 and random.random() < 0.7), None)
            free = [axis for axis in free if axis != fits]
            dims.append(fits)
        return P(*dims)

    ends = [spec(shape) for shape in operands]
    out = tuple(spec(shape) for shape in results) if random.random() < 0.7 else None
    placed = placed_like_plain(function, arrays_of(*operands), mesh, ends, out)
    kernels = [operation for operation in placed.operations if operation.name == "pallas_call"]
    return any(any(dim.axes for dim in placed.sharding(each.result).dims) for each in kernels)


def test_drawn_kernels() -> None:
    assert sum(check_drawn(seed) for seed in range(8)) > 2


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 400, 50))
def test_many_drawn_kernels(first: int) -> None:
    assert sum(check_drawn(seed) for seed in range(first, first + 50)) > 15


def interpreted(module: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose kernels, written without that choice, are interpreted."""

    def run(*arrays: Any) -> Any:
        with patch.object(module.pl, "pallas_call", partial(pl.pallas_call, interpret=True)):
            return function(*arrays)

    return run


def squared(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    return jax.grad(lambda *arrays: (function(*arrays) ** 2).sum(), tuple(range(count)))


@pytest.mark.slow
@pytest.mark.parametrize("is_gradient", [False, True])
def test_attention_of_jax(is_gradient: bool) -> None:
    gpu = pytest.importorskip("jax.experimental.pallas.ops.gpu.attention")
    tpu = pytest.importorskip("jax.experimental.pallas.ops.tpu.flash_attention")
    names = [name for name in gpu.BlockSizes.__dataclass_fields__ if name.startswith("block_")]
    sizes = gpu.BlockSizes(**dict.fromkeys(names, 32))
    mha = partial(gpu.mha, segment_ids=None, causal=True, block_sizes=sizes, interpret=True)
    names = [name for name in tpu.BlockSizes.__dataclass_fields__ if name != "block_b"]
    flash = partial(
        tpu.flash_attention, causal=True, block_sizes=tpu.BlockSizes(block_b=1, **dict.fromkeys(names, 128))
    )
    mesh = mesh_of(x=2, y=4)
    for function, shape, spec in (
        (mha, (4, 64, 8, 32), P("x", None, "y")),
        (flash, (2, 4, 256, 128), P("x", "y")),
    ):
        run = squared(function, 3) if is_gradient else function
        run = interpreted(tpu, run) if function is flash else run
        out = (spec,) * 3 if is_gradient else spec
        placed = placed_like_plain(run, arrays_of(*[shape] * 3), mesh, (spec,) * 3, out)
        assert placed.received_bytes == 0
        assert not placed.without_rule


@pytest.mark.slow
def test_norms_softmax_and_products_of_jax() -> None:
    softmax = pytest.importorskip("jax.experimental.pallas.ops.gpu.softmax").softmax
    layer_norm = pytest.importorskip("jax.experimental.pallas.ops.gpu.layer_norm").layer_norm
    rms_norm = pytest.importorskip("jax.experimental.pallas.ops.gpu.rms_norm").rms_norm
    decoding = pytest.importorskip("jax.experimental.pallas.ops.gpu.decode_attention")
    products = pytest.importorskip("jax.experimental.pallas.ops.tpu.matmul")
    gmm = pytest.importorskip("jax.experimental.pallas.ops.tpu.megablox").gmm
    sizes = np.array([8, 16, 0, 4, 12, 8, 10, 6], np.int32)
    rows, both = mesh_of(x=8), mesh_of(x=4, y=2)
    norms = ((64, 16, 16), (16,), (16,)), rows, (P("x"), P(), P()), P("x")
    for function, shapes, mesh, specs, out in (
        (partial(softmax, interpret=True), ((64, 128),), rows, (P("x"),), P("x")),
        (partial(layer_norm, interpret=True), *norms),
        (partial(rms_norm, interpret=True), *norms),
        (
            partial(decoding.mqa, interpret=True, block_h=16, k_splits=2),
            ((8, 16, 32), (8, 64, 32), (8, 64, 32)),
            rows,
            (P("x"),) * 3,
            P("x"),
        ),
        (
            interpreted(products, partial(products.matmul, block_shape=(128, 128), block_k=128)),
            ((1024, 256), (256, 256)),
            both,
            (P("x"), P(None, "y")),
            P("x", "y"),
        ),
        (
            lambda x, weights: gmm(x, weights, sizes, jnp.float32, (16, 16, 16), interpret=True),
            ((64, 16), (8, 16, 128)),
            rows,
            (P(), P(None, None, "x")),
            P(None, "x"),
        ),
    ):
        placed = placed_like_plain(function, arrays_of(*shapes), mesh, specs, out)
        assert placed.received_bytes == 0
        assert not placed.without_rule
