"""What each rank does as users' programs do: state dicts on parts of meshes, calls that fail alone, odd memory."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch_ranks import counted_traffic, unless

import reshard as rs

R, P = Replicate(), Partial()
S0, S1 = Shard(0), Shard(1)


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape).to(dtype)


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.down(nn.functional.silu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, width: int = 20, words: int = 30) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def sharded(mesh: DeviceMesh) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A transformer's state dict, and the same under FSDP2 and tensor parallelism."""
    torch.manual_seed(7)
    model = Transformer()
    whole = {name: value.detach().clone() for name, value in model.state_dict().items()}
    for block in model.blocks:
        plan = {"qkv": ColwiseParallel(), "out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh["tp"], plan)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return whole, model.state_dict()


def state_dicts_of_fsdp_and_tp(rank: int) -> list[str]:
    """As they are, norms on `mesh["dp"]` and all: to another mesh, to another split, to a part of a mesh, and back."""
    first = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    other = init_device_mesh("cpu", (4, 1), mesh_dim_names=("dp", "tp"))
    line = DeviceMesh("cpu", [3, 1, 2, 0])
    whole, state = sharded(first)
    wrong = []
    on = {str(value.device_mesh.mesh_dim_names) for value in state.values()}
    strided = any("_StridedShard" in repr(value.placements) for value in state.values())
    wrong.append(unless(on == {"('dp',)", "('dp', 'tp')"} and strided, f"{on} is no state dict of this kind"))
    ends: list[tuple[DeviceMesh, list[Placement]]] = [
        (other, [S0, R]),
        (first, [S0, S0]),
        (line, [S0]),
        (first["tp"], [S0]),
        (first["dp"], [R]),
    ]
    for mesh, placements in ends:
        for name, value in state.items():
            y = rs.torch.redistribute(value, placements, mesh)
            expected = distribute_tensor(whole[name], mesh, placements, src_data_rank=None)
            fine = torch.equal(y.to_local(), expected.to_local()) and y.device_mesh == mesh
            wrong.append(unless(fine and list(y.placements) == placements, f"{name} to {mesh} {placements}: {y}"))
            back = rs.torch.redistribute(y, value.placements, value.device_mesh, check="always")
            wrong.append(unless(torch.equal(back.to_local(), value.to_local()), f"{name} back from {mesh}"))
    return wrong


def parts_of_meshes(rank: int) -> list[str]:
    """From part to whole and back, between different parts; flattened parts too; no more bytes than are lacking."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    whole = tensor(6, 4)
    wrong = []
    for source, target in (("dp", "tp"), ("tp", "dp"), ("dp", None), (None, "tp")):
        ends = [mesh if name is None else mesh[name] for name in (source, target)]
        places = [[S0, S1] if name is None else [S0] for name in (source, target)]
        x = distribute_tensor(whole, ends[0], places[0], src_data_rank=None)
        with counted_traffic() as traffic:
            y = rs.torch.redistribute(x, places[1], ends[1], check="never")
        expected = distribute_tensor(whole, ends[1], places[1], src_data_rank=None).to_local()
        wrong.append(unless(torch.equal(y.to_local(), expected), f"{source} to {target}: {y}"))
        wrong.append(unless(traffic.received <= expected.nbytes, f"{source} to {target}: {traffic.received} bytes"))
    flat = mesh["dp", "tp"]._flatten("all")
    y = rs.torch.redistribute(distribute_tensor(whole, mesh["tp"], [S0], src_data_rank=None), [S0], flat)
    wrong.append(unless(torch.equal(y.full_tensor(), whole), f"flattened: {y}"))
    return wrong


def a_part_to_itself_stays_apart(rank: int) -> list[str]:
    """Each group has its own values, and keeps them."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    mine = tensor(4, 4) + 100 * mesh["dp"].get_local_rank()
    x = distribute_tensor(mine, mesh["tp"], [S0], src_data_rank=None)
    y = rs.torch.redistribute(x, [S1], check="always")
    z = rs.torch.redistribute(x, [R], mesh["tp"], check="always")
    return [unless(torch.equal(t.full_tensor(), mine), t) for t in (y, z)]


def replicas_are_compared(rank: int) -> list[str]:
    """Groups that hold other values are no one tensor, which is said with the ranks; on ranks of all groups."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    wrong = []
    for number, check in enumerate(("first", "always")):
        odd = tensor(4 + number, 4) + (mesh["tp"].get_local_rank() if number < 2 else 0)
        x = distribute_tensor(odd, mesh["dp"], [S0], src_data_rank=None)
        try:
            rs.torch.redistribute(x, [S0, S1], mesh, check=check)
            wrong.append(f"{check}: not seen")
        except rs.ReshardError as error:
            fine = error.code == "ranks-disagree" and "digest" in str(error)
            wrong.append(unless(fine, f"{check}: {error.code} {error}"))
        same = distribute_tensor(tensor(4, 4), mesh["dp"], [S0], src_data_rank=None)
        y = rs.torch.redistribute(same, [S0, S1], mesh, check=check)
        wrong.append(unless(torch.equal(y.full_tensor(), tensor(4, 4)), f"{check}: the next call"))
    return wrong


def disagreement_names_both_meshes(rank: int) -> list[str]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("z",))
    x = distribute_tensor(tensor(8, 4), mesh, [S0, S1])
    try:
        rs.torch.redistribute(x, [S1] if rank == 1 else [S0], line)
    except rs.ReshardError as error:
        named = all(word in str(error) for word in ('"dp"=2', '"tp"=2', '"z"=4', "rank 1"))
        return [unless(error.code == "ranks-disagree" and named, error)]
    return ["not seen"]


def targets_by_other_names(rank: int) -> list[str]:
    """One placement, `placements=`, dtypes on the way: as torch has them, or refused with a code on every rank."""
    mesh = init_device_mesh("cpu", (4,))
    square = init_device_mesh("cpu", (2, 2))
    whole = tensor(8, 4)
    wrong = []
    x = distribute_tensor(whole, mesh, [S0])
    ways: list[dict[str, Any]] = [
        {"target": S1},
        {"placements": [S1]},
        {"placements": S1},
        {"device_mesh": mesh, "placements": (S1,)},
    ]
    moved = [rs.torch.redistribute(x, **way) for way in ways]
    wrong += [unless(torch.equal(y.to_local(), whole[:, rank : rank + 1]), y) for y in moved]
    cases: list[tuple[Any, dict[str, Any]]] = [
        (None, {}),
        ([None], {}),
        (S1, {"placements": [S1]}),
        (S1, {"forward_dtype": "float16"}),
        ("S(0)", {}),
        (3, {}),
    ]
    for target, options in cases:
        try:
            rs.torch.redistribute(x, target, **options)
            wrong.append(f"{target} {options} were taken")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == "bad-argument", f"{target}: {error.code} {error}"))
    z = distribute_tensor(whole, square, [S0, S1])
    try:
        rs.torch.redistribute(z, S1)
        wrong.append("one placement was taken for a mesh of two dims")
    except rs.ReshardError as error:
        wrong.append(unless(error.code == "bad-argument", error))
    for forward, backward in ((torch.bfloat16, None), (torch.bfloat16, torch.float64), (torch.float64, torch.bfloat16)):
        results = []
        for ours in (True, False):
            x = distribute_tensor(whole / 7, square, [S0, S1]).requires_grad_()
            options = {"placements": [S1, R], "forward_dtype": forward, "backward_dtype": backward}
            y = rs.torch.redistribute(x, **options) if ours else x.redistribute(**options)
            (y.to(torch.float64) * y).sum().backward()
            results.append((y, x.grad))
        for ours_, theirs in zip(*results, strict=True):
            fine = ours_.dtype == theirs.dtype and torch.equal(ours_.to_local(), theirs.to_local())
            wrong.append(
                unless(fine and ours_.placements == theirs.placements, f"{forward} {backward}: {ours_} {theirs}")
            )
    return wrong


def a_call_that_fails_on_one_rank(rank: int) -> list[str]:
    """A target of another form on one rank: all are told at once, and the next call works on all of them."""
    mesh = init_device_mesh("cpu", (2, 2))
    wrong = []
    for number, odd in enumerate(([None, S0], None, "x", [S0])):
        x = distribute_tensor(tensor(4, 4 + number), mesh, [S0, S1])
        begun = time.monotonic()
        try:
            rs.torch.redistribute(x, odd if rank == 0 else [S1, S0])
            wrong.append(f"{odd} was taken")
        except rs.ReshardError as error:
            code = "bad-argument" if rank == 0 else "ranks-disagree"
            wrong.append(unless(error.code == code, f"{odd}: {error.code} {error}"))
        y = rs.torch.redistribute(x, [S1, S0], check="always")
        fine = torch.equal(y.full_tensor(), tensor(4, 4 + number)) and time.monotonic() - begun < 15
        wrong.append(unless(fine, f"{odd}: the next call {y}"))
    return wrong


def a_rank_that_passes_over_calls(rank: int) -> list[str]:
    """Rank 0 fails by itself where the others call, once and twice: they give up, and the next call works on all."""
    mesh = init_device_mesh("cpu", (2,))
    wrong = []
    for placements in ([S1], [R]):  # what is loaded and planned at first would count as not coming
        rs.torch.redistribute(distribute_tensor(tensor(4, 4), mesh, [S0]), placements, check="always")
    for number, missed in enumerate((1, 2, 1)):
        x = distribute_tensor(tensor(4, 4 + number), mesh, [S0])
        for _ in range(missed if rank == 1 else 0):
            try:
                rs.torch.redistribute(x, [S1] if number < 2 else [R], check="always")
                wrong.append("nothing was said")
            except rs.ReshardError as error:
                wrong.append(unless(error.code == "exchange-failed" and "rank 0 did not come" in str(error), error))
        store = dist.distributed_c10d._get_default_store()
        store.add(f"missed {number}", rank)  # a barrier of the group would be out of time
        store.wait([f"missed {number}"], timedelta(seconds=30))
        while store.add(f"missed {number}", 0) == 0:
            time.sleep(0.05)
        for check in ("always", "first", "always"):
            y = rs.torch.redistribute(x, [R], check=check)
            wrong.append(unless(torch.equal(y.to_local(), tensor(4, 4 + number)), f"{missed} {check}: {y}"))
    return wrong


def memory_of_any_strides_and_dtype(rank: int) -> list[str]:
    """Blocks of a fused weight, a transposed one, another dtype; memory in which the source lies."""
    mesh = init_device_mesh("cpu", (2, 2))
    whole = tensor(8, 12)
    wrong = []
    for before, after in (
        ([S0, S1], [S1, S0]),
        ([S0, S0], [R, R]),
        ([P, S0], [R, S0]),
        ([S0, R], [S0, R]),
        ([R, S0], [R, R]),
    ):
        tile = whole if before == [P, S0] else distribute_tensor(whole, mesh, before).to_local()
        tile = distribute_tensor(whole, mesh, [R, S0]).to_local() if before == [P, S0] else tile
        x = DTensor.from_local(tile, mesh, before, run_check=False)
        expected = x.redistribute(placements=after).to_local()
        rows, columns = expected.shape
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            fused = torch.full((rows + 3, 3 * columns), -1.0, dtype=dtype)
            rooms = [
                fused[1 : rows + 1, columns : 2 * columns],
                torch.empty(columns, rows, dtype=dtype).t(),
                torch.empty(rows, 2 * columns, dtype=dtype)[:, ::2],
                torch.empty(rows, columns, dtype=dtype),
            ]
            for room in rooms:
                y = rs.torch.redistribute(x, after, out=room)
                fine = torch.equal(room, expected.to(dtype)) and y.dtype == dtype
                fine = fine and y.to_local().data_ptr() == room.data_ptr()
                wrong.append(unless(fine, f"{before} -> {after} into {room.stride()} of {dtype}: {room}"))
            rest = torch.cat([fused[:1].flatten(), fused[:, :columns].flatten(), fused[:, 2 * columns :].flatten()])
            wrong.append(unless(bool((rest == -1).all()), f"{before} -> {after}: written elsewhere"))
    memory = torch.zeros(64)
    tile = memory[:32].view(4, 8)
    tile.copy_(distribute_tensor(tensor(8, 16), mesh, [S0, S1]).to_local())
    room = memory[16:48].view(4, 8)
    rs.torch.redistribute(DTensor.from_local(tile, mesh, [S0, S1], run_check=False), [S1, S0], out=room)
    wanted = distribute_tensor(tensor(8, 16), mesh, [S1, S0]).to_local()
    wrong.append(unless(torch.equal(room, wanted), f"memory of the source: {room}"))
    x = distribute_tensor(tensor(8, 16), mesh, [S0, S1])
    try:
        rs.torch.redistribute(x, [S1, S0], out=torch.empty(1, 8).expand(4, 8))
        wrong.append("memory whose elements share a place was taken")
    except rs.ReshardError as error:
        wrong.append(unless(error.code == "bad-tiles", error))
    return wrong


def memory_under_the_compiler(rank: int) -> list[str]:
    """Memory and promises are refused in a graph, with a sentence, or honoured where the graph breaks."""
    mesh = init_device_mesh("cpu", (2, 2))
    x = distribute_tensor(tensor(8, 8), mesh, [S0, S1])
    expected = x.redistribute(placements=[S1, S0]).to_local()
    wrong = []
    for name in ("out", "workspace", "async_op"):
        room = torch.full((4, 4) if name == "out" else (rs.torch.workspace_size(x, [S1, S0]),), -1.0)
        options: Any = {name: True if name == "async_op" else room}
        for fullgraph in (True, False):
            torch._dynamo.reset()

            def call(x: DTensor, options: Any = options) -> DTensor:
                return rs.torch.redistribute(x, [S1, S0], **options)

            try:
                y = torch.compile(call, fullgraph=fullgraph, backend="eager")(x)
                fine = torch.equal(y.full_tensor(), tensor(8, 8)) and (name != "out" or torch.equal(room, expected))
                wrong.append(unless(fine, f"{name} {fullgraph}: dropped"))
            except Exception as error:
                said = "cannot be given to what is traced" in str(error)
                wrong.append(unless(said, f"{name} {fullgraph}: {error}"))
    return wrong
