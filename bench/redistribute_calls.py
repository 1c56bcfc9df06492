"""What a redistribute takes in Python alone: rank 0 of a world whose collectives send nothing, in a process of its own.

Prints JSON: milliseconds of cold plans, microseconds of warm calls.
"""

from __future__ import annotations

import functools
import json
import logging
import random
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, _redistribute
from torch.testing._internal.distributed.fake_pg import FakeStore

import reshard as rs
from bench.timing import medians, seconds
from reshard.planner import cache_clear
from reshard.torch.dtensor_specs import sharding_of, spec_of

SIZES = (2, 8, 4, 4)
SHAPE = (256, 256, 256)
PLANS = 30
WARM_RUNS = 300
REPEATS = 10
"""Calls per timing of a warm call."""
R = Replicate()


def cold_plans() -> dict[str, float]:
    """Milliseconds in the median to plan pairs of placements that were never planned before."""
    mesh = init_device_mesh("cpu", SIZES)
    rng = random.Random(0)
    choices = [R, *map(Shard, range(len(SHAPE)))]
    times: dict[str, list[float]] = {"reshard": [], "greedy": [], "min-cost": []}
    for _ in range(PLANS):
        ends = [tuple(rng.choices(choices, k=len(SIZES))) for _ in range(2)]
        specs = [spec_of(mesh, end, SHAPE, torch.float32) for end in ends]

        def ours(ends: list[Any] = ends) -> object:
            cache_clear()
            plan = rs.plan(*(sharding_of(end, mesh, len(SHAPE)) for end in ends), SHAPE, "float32")
            return plan.received_bytes

        def theirs(min_cost: bool, specs: list[Any] = specs) -> object:
            _redistribute.clear_redistribute_planner_cache()
            return _redistribute._gen_transform_infos_non_cached(*specs, min_cost)

        times["reshard"].append(seconds(ours))
        times["greedy"].append(seconds(functools.partial(theirs, False)))
        times["min-cost"].append(seconds(functools.partial(theirs, True)))
    return {name: 1e3 * statistics.median(found) for name, found in times.items()}


def warm_calls() -> dict[str, dict[str, float]]:
    """Microseconds in the median of a call whose plan is known, on tiles of 8 x 8."""
    mesh = init_device_mesh("cpu", (2, 4))
    cases = {
        "S0 R -> R R": ([Shard(0), R], [R, R]),
        "R S0 -> R S1": ([R, Shard(0)], [R, Shard(1)]),
        "S0 S1 -> R R": ([Shard(0), Shard(1)], [R, R]),
        "R R -> S0 S1": ([R, R], [Shard(0), Shard(1)]),
        "S0 S1 -> S0 S1": ([Shard(0), Shard(1)], [Shard(0), Shard(1)]),
    }
    found: dict[str, dict[str, float]] = {}
    for name, (source, target) in cases.items():
        x = DTensor.from_local(torch.zeros(8, 8), mesh, source, run_check=False)
        calls = {
            "torch": functools.partial(x.redistribute, placements=target),
            "reshard": functools.partial(rs.torch.redistribute, x, target),
        }
        repeated = [functools.partial(repeat, call) for call in calls.values()]
        times = medians(repeated, WARM_RUNS // REPEATS)
        found[name] = {who: 1e6 * time / REPEATS for who, time in zip(calls, times, strict=True)}
    return found


def repeat(call: Callable[[], object]) -> None:
    """Call so many times."""
    for _ in range(REPEATS):
        call()


def main() -> None:
    """Measure both and print them."""
    logging.getLogger("torch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=256, store=FakeStore())
    plans = cold_plans()
    dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    json.dump({"plans_ms": plans, "calls_us": warm_calls()}, sys.stdout)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
