"""Context parallelism: a sequence dealt in zigzag, as causal attention wants it, turned to contiguous and to heads.

A causal mask gives the last rows of a sequence the most work, so rank r holds chunks r and 2P - 1 - r of 2P.
Layers that scan along the sequence want it contiguous, and attention by heads wants whole sequences of some heads.
All three are shardings of one tensor, so going from one to another is a plan, and each rank receives what it lacks.

    python examples/context_parallel.py              all devices in this process, by NumPy
    python examples/context_parallel.py torch        four processes with torch.distributed, and a gradient
    python examples/context_parallel.py jax          four devices of JAX, the tiles side by side in one array
"""

from __future__ import annotations

import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np

import reshard as rs

DEVICES = 4
SHAPE = (32, 8, 16)
"""Sequence, heads, channels of a head."""
MESH = rs.Mesh.of(cp=DEVICES)
ZIGZAG = rs.Sharding.of(MESH, (rs.Deal.zigzag(), "cp"), None, None)
CONTIGUOUS = rs.Sharding.of(MESH, "cp", None, None)
HEADS = rs.Sharding.of(MESH, None, "cp", None)
WAY = (ZIGZAG, CONTIGUOUS, HEADS, CONTIGUOUS, ZIGZAG)


def by_numpy() -> None:
    """Go round, and print what each turn costs."""
    sequence = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    tiles = rs.numpy.scatter(sequence, ZIGZAG)
    for source, target in pairwise(WAY):
        plan = rs.plan(source, target, SHAPE, "float32")
        tiles = rs.numpy.run(plan, tiles)
        received = [plan.received_bytes_on(device) for device in range(DEVICES)]
        bound = [plan.lower_bound_bytes_on(device) for device in range(DEVICES)]
        print(f"{source.text():>26} -> {target.text():<26} receives {received}, lower bound {bound}")
    same = all(np.array_equal(tile, rs.numpy.scatter(sequence, ZIGZAG)[device]) for device, tile in tiles.items())
    print("there and back:", "equal" if same else "different")


def on_rank(rank: int, folder: str) -> None:
    """The same on one rank of four, and the gradient of the way."""
    import torch  # noqa: PLC0415  # not needed where NumPy runs it
    import torch.distributed as dist  # noqa: PLC0415

    store = dist.FileStore(str(Path(folder) / "store"), DEVICES)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=DEVICES)
    sequence = torch.arange(np.prod(SHAPE), dtype=torch.float32).reshape(SHAPE)
    first = torch.from_numpy(rs.numpy.scatter(sequence.numpy(), ZIGZAG)[rank]).requires_grad_()
    tile = first
    for source, target in pairwise(WAY):
        tile = rs.torch.reshard(tile, source, target, SHAPE)
    tile.backward(2 * first.detach())
    same = torch.equal(tile, first) and torch.equal(first.grad, 2 * first.detach())
    print(f"rank {rank}: there and back {'equal' if same else 'different'}, the gradient too")
    dist.destroy_process_group()


def by_torch() -> None:
    """Four processes."""
    import torch.multiprocessing as mp  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=DEVICES)


def by_jax() -> None:
    """The same in one array for each sharding, whose rows or heads stand as the devices store them."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    import jax  # noqa: PLC0415

    sequence = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    first = jax.numpy.concatenate(list(rs.numpy.scatter(sequence, ZIGZAG).values()))

    def way(x: jax.Array) -> jax.Array:
        for source, target in pairwise(WAY):
            x = rs.jax.reshard_tiles(x, source, target)
        return x

    last = jax.jit(way)(first)
    gradient = jax.grad(lambda x: (way(x) ** 2).sum() / 2)(first)
    same = bool((last == first).all() and (gradient == first).all())
    print(f"there and back {'equal' if same else 'different'}, the gradient too")


if __name__ == "__main__":
    {"torch": by_torch, "jax": by_jax}.get(sys.argv[-1], by_numpy)()
