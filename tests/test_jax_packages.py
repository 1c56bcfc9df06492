"""Code that packages ship, with regions of its own inside, is traced, placed and run as it stands.

The kernels of JAX itself are run as their interpreters do, on devices of a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402

import reshard as rs  # noqa: E402

pytestmark = [pytest.mark.engine, pytest.mark.slow]

P = jax.P


def mesh_of(*names: str) -> Any:
    """Of 2 x 4 devices."""
    return jax.make_mesh((2, 4), names, (jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:8])


def compared(function: Callable[..., Any], arrays: Sequence[Any], mesh: Any, specs: Sequence[Any]) -> rs.Placement:
    """A placed function, which gives what plain `jit` gives."""
    ends = tuple(jax.NamedSharding(mesh, spec) for spec in specs)
    placed = rs.jax.trace(function, *arrays, in_shardings=ends, mesh=mesh).propagate()
    there = [jax.device_put(array, end) for array, end in zip(arrays, ends, strict=True)]
    found, wanted = jax.jit(rs.jax.to_jax(placed))(*there), jax.jit(function)(*there)
    for own, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-4)
    assert not placed.without_rule
    return placed


def splash_block(mesh: Any, size: int, heads: int, width: int) -> Callable[..., Any]:
    """A block of attention by the kernel that ships with JAX, its heads and its queries cut."""
    kernels = pytest.importorskip("jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel")
    masks = pytest.importorskip("jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask")
    blocks = [name for name in kernels.BlockSizes.__dataclass_fields__ if name.startswith("block_")]
    sizes = kernels.BlockSizes(**dict.fromkeys(blocks, 128))
    mask = masks.MultiHeadMask([masks.CausalMask((size, size)) for _ in range(heads)])
    kernel = kernels.make_splash_mha(mask=mask, head_shards=2, q_seq_shards=4, interpret=True, block_sizes=sizes)
    own = kernel.manual_sharding_spec(jax.NamedSharding(mesh, P("heads", "seq")))
    rows = P("heads", "seq")

    def attention(q: Any, k: Any, v: Any) -> Any:
        specs = own, rows, P("heads"), P("heads")
        on_tiles = jax.shard_map(
            lambda kernel, *tiles: kernel(*tiles), mesh=mesh, in_specs=specs, out_specs=rows, check_vma=False
        )
        return on_tiles(kernel, q, k, v)

    def block(x: Any, into: Any, out: Any) -> Any:
        q, k, v = jnp.einsum("sm,tmhd->thsd", x, into)
        return x + jnp.einsum("hsd,hdm->sm", attention(q * width**-0.5, k, v), out)

    return block


@pytest.mark.parametrize("is_gradient", [False, True])
def test_splash_attention(is_gradient: bool) -> None:
    mesh, rng = mesh_of("heads", "seq"), np.random.default_rng(0)
    shapes = (512, 16), (3, 16, 2, 128), (2, 128, 16)
    arrays = [rng.normal(size=shape).astype(np.float32) * 0.3 for shape in shapes]
    block = splash_block(mesh, 512, 2, 128)
    function = jax.grad(lambda *arrays: (block(*arrays) ** 2).sum(), (0, 1, 2)) if is_gradient else block
    specs = P("seq", None), P(None, None, "heads", None), P("heads", None, None)
    placed = compared(function, arrays, mesh, specs)
    assert any(operation.name == "shard_map" for operation in placed.operations)


def test_products_of_experts_by_megablox() -> None:
    gmm = pytest.importorskip("jax.experimental.pallas.ops.tpu.megablox").gmm
    mesh, rng, experts = mesh_of("x", "expert"), np.random.default_rng(0), 8

    def mixture(x: Any, weights: Any, sizes: Any) -> Any:
        def on_tiles(x: Any, weights: Any, sizes: Any) -> Any:
            first = (lax.axis_index("expert") * (experts // 4)).astype(np.int32)
            own = gmm(x, weights, sizes, jnp.float32, (16, 16, 16), first, interpret=True)
            starts = jnp.cumsum(sizes) - sizes
            rows = jnp.arange(len(x))[:, None] - starts[first]
            inside = (rows >= 0) & (rows < lax.dynamic_slice(sizes, (first,), (experts // 4,)).sum())
            return lax.psum(jnp.where(inside, own, 0), "expert")

        specs = P(), P("expert", None, "x"), P()
        on_mesh = jax.shard_map(on_tiles, mesh=mesh, in_specs=specs, out_specs=P(None, "x"), check_vma=False)
        return jnp.tanh(on_mesh(x, weights, sizes)).sum(0)

    sizes = np.array([8, 16, 0, 4, 12, 8, 10, 6], np.int32)
    arrays = [*(rng.normal(size=shape).astype(np.float32) for shape in ((64, 16), (experts, 16, 32))), sizes]
    compared(mixture, arrays, mesh, (P("x", None), P("expert", None, "x"), P()))
    groups = np.split(arrays[0], np.cumsum(sizes)[:-1])
    products = np.concatenate([rows @ weights for rows, weights in zip(groups, arrays[1], strict=True)])
    np.testing.assert_allclose(mixture(*arrays), np.tanh(products).sum(0), rtol=1e-4, atol=1e-4)
