"""What every rank of the benchmark of prices runs: a network fitted to the ranks, then plans timed beside their prices.

The plans of all reshards and what else would do are run from a barrier to the last rank, in another order each time
and some times one after another; the fastest run of a turn counts, as where the network is fitted: what else the
machine does, and what ran before, is not the plan.
Three engines take the same reshards: torch over gloo, JAX on CPU devices in one process, MPI.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import reshard as rs
from reshard.network import Network
from reshard.network.engine_fit import PASSES

MESH = rs.Mesh.of(a=2, b=2)
SIDES = (64, 256, 1024, 2048)
"""Of squares of float32: 16 KiB to 16 MiB."""
WAYS, TURNS, ORDERS, RUNS = 3, 3, PASSES, 3
"""As many runs of a plan in a turn as of a chain where the network is fitted, of which the fastest counts."""
Timed = tuple[int, float, list[float]]
"""The number of the reshard, what a plan of it should take and what it took in every turn, in seconds."""


def reshards(count: int) -> list[tuple[rs.Sharding, rs.Sharding, int]]:
    """So many: ends that need traffic, and how long the sides are."""
    rng = random.Random(18)
    shardings = [
        rs.Sharding.of(MESH, *([axis for axis, home in zip("ab", homes, strict=True) if home == dim] for dim in (0, 1)))
        for homes in itertools.product((None, 0, 1), repeat=2)
    ]
    ends = itertools.permutations(shardings, 2)
    moving = [pair for pair in ends if rs.plan(*pair, (8, 8)).received_bytes]
    return [(*pair, SIDES[number % len(SIDES)]) for number, pair in enumerate(rng.sample(moving, count))]


def timed(
    count: int,
    calibrate: Callable[[], Network],
    call_of: Callable[[rs.Plan], Callable[[], object]],
    barrier: Callable[[], object],
    slowest: Callable[[float], float],
) -> list[Timed]:
    """Every reshard, by its plan and by what else would do on the network that is found first.

    The network is fitted anew before every turn, and the median of a plan's prices is held against its times: a machine
    that others use too is now faster, now slower.
    """
    network = calibrate()
    plans: list[tuple[int, rs.Plan]] = []
    for number, (source, target, side) in enumerate(reshards(count)):
        plan = rs.plan(source, target, (side, side), "float32", network=network)
        plans += [(number, way) for way in [plan, *rs.alternatives(plan)][:WAYS]]
    calls = [call_of(way) for _, way in plans]
    took: list[list[float]] = [[] for _ in calls]
    prices: list[list[float]] = [[] for _ in calls]
    for turn in range(TURNS):
        network = network if turn == 0 else calibrate()
        for (_, way), column in zip(plans, prices, strict=True):
            column.append(replace(way, options=replace(way.options, network=network)).seconds or 0.0)
        times: list[list[float]] = [[] for _ in calls]
        for order in range(ORDERS):
            for place in random.Random(order).sample(range(len(calls)), len(calls)):
                for _ in range(RUNS):
                    barrier()
                    begun = time.perf_counter()
                    calls[place]()
                    times[place].append(slowest(time.perf_counter() - begun))
        for column, runs in zip(took, times, strict=True):
            column.append(min(runs))
    return [
        (number, statistics.median(price), turns) for (number, _), price, turns in zip(plans, prices, took, strict=True)
    ]


def on_torch(count: int) -> list[Timed]:
    """By gloo, on the ranks of the default process group."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))

    def call_of(plan: rs.Plan) -> Callable[[], object]:
        placements = rs.torch.placements_of(plan.source, mesh)
        x = distribute_tensor(torch.zeros(plan.shape), mesh, placements)
        return lambda: rs.torch.run(plan, x)

    def slowest(seconds: float) -> float:
        longest = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        return float(longest)

    return timed(count, lambda: rs.torch.calibrate(mesh)[0], call_of, dist.barrier, slowest)


def on_jax(count: int) -> list[Timed]:
    """On four CPU devices of one process."""
    import jax
    from jax.sharding import NamedSharding

    mesh = jax.make_mesh((2, 2), ("a", "b"), devices=jax.devices()[:4])

    def call_of(plan: rs.Plan) -> Callable[[], object]:
        held = NamedSharding(mesh, rs.jax.partition_spec_of(plan.source))
        x = jax.device_put(np.zeros(plan.shape, np.float32), held)
        program = jax.jit(lambda x: rs.jax.run(plan, x)).lower(x).compile()
        return lambda: jax.block_until_ready(program(x))

    return timed(count, lambda: rs.jax.calibrate(mesh)[0], call_of, lambda: None, float)


def on_mpi(count: int) -> list[Timed]:
    """On the ranks that `mpiexec` started."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def call_of(plan: rs.Plan) -> Callable[[], object]:
        tile = np.zeros(plan.source.local_shape(plan.shape), np.float32)
        return lambda: rs.mpi.run(plan, tile)

    def slowest(seconds: float) -> float:
        return world.allreduce(seconds, MPI.MAX)

    return timed(count, lambda: rs.mpi.calibrate(MESH)[0], call_of, world.Barrier, slowest)


def main(told: dict[str, Any], rank: int) -> None:
    """Measure on one engine; the first rank writes what was found."""
    if told["engine"] == "torch":
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{told['store']}", rank=rank, world_size=told["ranks"])
        found = on_torch(told["count"])
        dist.barrier()
        dist.destroy_process_group()
    elif told["engine"] == "mpi":
        from mpi4py import MPI

        found, rank = on_mpi(told["count"]), MPI.COMM_WORLD.rank
    else:
        found = on_jax(told["count"])
    if rank == 0:
        Path(told["out"]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
