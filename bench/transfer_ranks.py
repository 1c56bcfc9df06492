"""What every rank of the benchmark of `rs.torch.transfer` runs.

A call takes as long as its slowest rank; all ways are checked bit for bit, then timed in turn, with a barrier before
each call.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import reshard as rs

OURS = "rs.torch.transfer"
WIRE = "wire"
"""The figure that is no time."""


def timed(ways: dict[str, Callable[[], Any]], runs: int) -> dict[str, float]:
    """The median of each way in seconds, of the slowest rank."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs + 1):
        for name, call in ways.items():
            dist.barrier()
            start = time.perf_counter()
            call()
            took = torch.tensor([time.perf_counter() - start])
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if run:
                times[name].append(float(took))
    return {name: statistics.median(column) for name, column in times.items()}


def small_tensors(rank: int, ranks: int) -> dict[str, float]:
    """100 tensors of 64 x 64, rows to columns: per tensor in microseconds."""
    count, side = 100, 64
    mesh = init_device_mesh("cpu", (ranks,))
    whole = [torch.randn(side, side, generator=torch.Generator().manual_seed(n)) for n in range(count)]
    before = {f"layers.{n}.w": distribute_tensor(value, mesh, [Shard(0)]) for n, value in enumerate(whole)}
    ours = rs.Mesh.of(x=ranks)
    plan = rs.plan_model(before, rs.Rules.of(ours, {}, (None, "x")))
    out = {name: torch.empty(side, side // ranks) for name in before}
    send, receive = torch.empty(2, ranks, count, side // ranks, side // ranks)
    expected = [value.chunk(ranks, 1)[rank] for value in whole]

    def transfer() -> None:
        rs.torch.transfer(before, plan, out)

    def single() -> None:
        for name, value in before.items():
            out[name].copy_(value.redistribute(mesh, [Shard(1)]).to_local())

    def by_hand() -> None:
        for number, value in enumerate(before.values()):
            local = value._local_tensor
            send[:, number].copy_(local.view(side // ranks, ranks, side // ranks).transpose(0, 1))
        dist.all_to_all_single(receive, send)
        for number, name in enumerate(before):
            out[name].view(ranks, side // ranks, side // ranks).copy_(receive[:, number])

    ways = {"rs.torch.transfer": transfer, "one all-to-all by hand": by_hand, "redistribute, one by one": single}
    for name, call in ways.items():
        call()
        if not all(torch.equal(out[key], value) for key, value in zip(before, expected, strict=True)):
            raise RuntimeError(f"{name} gives another result")
    return {name: 1e6 * value / count for name, value in timed(ways, 9).items()}


def llama_tensors() -> dict[str, tuple[int, ...]]:
    """A Llama of 6 layers: 57 tensors of 106 MiB in float32."""
    width, middle, words = 512, 1408, 4096
    shapes: dict[str, tuple[int, ...]] = {"embed": (words, width), "norm": (width,), "head": (words, width)}
    for layer in range(6):
        base = f"layers.{layer}."
        shapes |= {base + name: (width, width) for name in ("q", "k", "v", "o")}
        shapes |= {base + "gate": (middle, width), base + "up": (middle, width), base + "down": (width, middle)}
        shapes |= {base + "norm1": (width,), base + "norm2": (width,)}
    return shapes


def llama_placement(name: str) -> Any:
    """How tensor parallelism cuts a tensor of the Llama."""
    kind = name.rpartition(".")[2]
    return Replicate() if kind.startswith("norm") else Shard(1) if kind in ("o", "down") else Shard(0)


def llama(rank: int, ranks: int) -> dict[str, float]:
    """From tensor parallelism to FSDP on the same ranks: in seconds; and bytes on the wire over the plan's."""
    mesh = init_device_mesh("cpu", (ranks,))
    generator = torch.Generator().manual_seed(0)
    before, wanted = {}, {}
    for name, shape in llama_tensors().items():
        whole = torch.randn(shape, generator=generator)
        before[name] = distribute_tensor(whole, mesh, [llama_placement(name)], src_data_rank=None)
        wanted[name] = whole.chunk(ranks)[rank]
    target = rs.Rules.of(rs.Mesh.of(x=ranks), {}, ("x",))
    plan = rs.plan_model(before, target)
    out = {name: torch.empty_like(tensor) for name, tensor in wanted.items()}

    def transfer() -> None:
        rs.torch.transfer(before, plan, out)

    def full() -> None:
        for name, value in before.items():
            again = distribute_tensor(value.full_tensor(), mesh, [Shard(0)], src_data_rank=None)
            out[name].copy_(again.to_local())

    def redistributed() -> None:
        for name, value in before.items():
            out[name].copy_(value.redistribute(mesh, [Shard(0)]).to_local())

    ways = {OURS: transfer, "full_tensor and distribute": full, "redistribute": redistributed}
    _check(ways, out, wanted)
    return {WIRE: _wire(plan, before, out, rank), **timed(ways, 5)}


def llama_across(rank: int, ranks: int) -> dict[str, float]:
    """From tensor parallelism on one half of the ranks to FSDP on the other: as `llama`."""
    half = ranks // 2
    meshes = [DeviceMesh("cpu", list(range(first, first + half))) for first in (0, half)]
    generator, is_trainer = torch.Generator().manual_seed(0), rank < half
    before, wanted, shapes = {}, {}, llama_tensors()
    for name, shape in shapes.items():
        whole = torch.randn(shape, generator=generator)
        if is_trainer:
            before[name] = distribute_tensor(whole, meshes[0], [llama_placement(name)], src_data_rank=None)
        else:
            wanted[name] = whole.chunk(half)[rank - half]
    cuts = {name: tuple("x" if llama_placement(name) == Shard(dim) else None for dim in range(len(shape)))
            for name, shape in shapes.items()}  # fmt: skip
    source = rs.Rules.of(rs.Mesh.of(x=half), cuts)
    target = rs.Rules.of(rs.Mesh.of({"x": half}, device_ids=range(half, ranks)), {}, ("x",))
    plan = rs.plan_model({name: (shape, "f32") for name, shape in shapes.items()}, source, target)
    out = {name: torch.empty_like(tensor) for name, tensor in wanted.items()}
    room = torch.empty(max(torch.Size(shape).numel() for shape in shapes.values()))

    def transfer() -> None:
        rs.torch.transfer(before, plan, out)

    def full() -> None:
        for name, shape in shapes.items():
            whole = room[: torch.Size(shape).numel()].view(shape)
            gathered = before[name].full_tensor() if is_trainer else whole
            dist.broadcast(gathered, 0)
            if not is_trainer:
                again = distribute_tensor(whole, meshes[1], [Shard(0)], src_data_rank=None)
                out[name].copy_(again.to_local())

    ways = {OURS: transfer, "full_tensor and distribute": full}
    _check(ways, out, wanted)
    return {WIRE: _wire(plan, before, out, rank), **timed(ways, 5)}


def _check(ways: dict[str, Callable[[], Any]], out: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, call in ways.items():
        for tensor in out.values():
            tensor.zero_()
        call()
        if not all(torch.equal(out[key], value) for key, value in wanted.items()):
            raise RuntimeError(f"{name} gives another result")


def _wire(plan: Any, before: Any, out: Any, rank: int) -> float:
    """What the ranks hand to the process group over what the plan says, the most of all ranks."""
    moved = [0]
    rs.torch.transfer(before, plan, out, progress=lambda done, _: moved.append(done))
    planned = plan.sent_bytes_on(rank) + plan.received_bytes_on(rank)
    ratio = torch.tensor([max(moved) / max(planned, 1)])
    dist.all_reduce(ratio, dist.ReduceOp.MAX)
    return float(ratio)


def run_rank(told: dict[str, Any], rank: int) -> None:
    """One rank: measure what is told, and let the first write it."""
    torch.set_num_threads(1)
    store = dist.FileStore(told["store"], told["ranks"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=told["ranks"])
    figures = {"small_tensors": small_tensors, "llama": llama, "llama_across": llama_across}[told["case"]](
        rank, told["ranks"]
    )
    if rank == 0:
        Path(told["out"]).write_text(json.dumps(figures), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run_rank(json.loads(sys.argv[1]), int(sys.argv[2]))
