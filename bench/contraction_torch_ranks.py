"""What every rank of the benchmark of products of DTensors runs.

All variants of a case are checked against the product of the whole matrices, then timed in turn, with a barrier before
each call; a call takes as long as its slowest rank.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

import reshard as rs
from bench.redistribute_ranks import Variant, placements_in, run_rank, times_of

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from torch_einsums import Received
from torch_ranks import counted_traffic


def by_torch(x: DTensor, y: DTensor, target: Any) -> torch.Tensor:
    """DTensor's own product, brought to the target."""
    z = torch.matmul(x, y)
    return (z if z.placements == target else z.redistribute(placements=target)).to_local()


def by_plan(x: DTensor, y: DTensor, target: Any, *, overlap: bool) -> torch.Tensor:
    """Ours."""
    z: torch.Tensor = rs.torch.einsum("ij,jk->ik", x, y, target=target, overlap=overlap).to_local()
    return z


def variants_of(case: str, mesh: DeviceMesh, side: int) -> tuple[dict[str, Variant], dict[str, int]]:
    """All ways to do a case, each tried once, and the bytes that this rank receives in ours and in torch's."""
    sources, target = case.split(" -> ")
    ends = [placements_in(text) for text in sources.split(" @ ")]
    torch.manual_seed(0)
    a, b = (torch.randint(-3, 4, (side, side)).float() for _ in ends)
    x, y = (distribute_tensor(whole, mesh, end) for whole, end in zip((a, b), ends, strict=True))
    wanted = placements_in(target)
    calls = {
        "reshard": partial(by_plan, x, y, wanted, overlap=False),
        "reshard, overlapped": partial(by_plan, x, y, wanted, overlap=True),
        "torch": partial(by_torch, x, y, wanted),
    }
    right = distribute_tensor(a @ b, mesh, wanted).to_local()
    for name, call in calls.items():
        assert torch.equal(call(), right), f"{name} is wrong in {case}"
    with counted_traffic() as ours:
        calls["reshard"]()
    with Received() as theirs:
        calls["torch"]()
    return {name: Variant(call) for name, call in calls.items()}, {"reshard": ours.received, "torch": theirs.bytes}


def measured(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Per case the times of each variant, and the bytes that the busiest rank receives."""
    found = []
    for sizes, case, side in told["cases"]:
        variants, received = variants_of(case, init_device_mesh("cpu", tuple(sizes)), side)
        counts = torch.tensor([received["reshard"], received["torch"]])
        dist.all_reduce(counts, dist.ReduceOp.MAX)
        times = times_of(variants, told["budget_s"])
        found.append({"case": case, "side": side, "times": times, "received": counts.tolist()})
    return found


if __name__ == "__main__":
    run_rank(measured)
