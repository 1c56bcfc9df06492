"""What each rank does to show one feature of `rs.torch.transfer`; a list of what is wrong comes back."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from model_layouts import (
    SMALL,
    SYSTEMS,
    WITH_EXPERTS,
    fsdp,
    megatron,
    scaled_case,
    scaled_plans,
    whole_arrays,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch_ranks import counted_traffic, unless

import reshard as rs
from reshard.models import ModelPlan

PAIRS = [
    ("dense", "fsdp:8", "vllm:tp=4,dp=2,ep=off", 0),
    ("dense", "megatron:tp=2,pp=2+1", "vllm:tp=2,replicas=2", 4),
    ("qwen-moe", "megatron:tp=2,pp=2+1,ep=4", "vllm:tp=2,dp=2,ep=on", 3),
    ("mixtral", "hf", "hf:tp=4", 2),
    ("deepseek", "vllm:tp=2,dp=2,ep=on", "megatron:tp=2,pp=1,ep=2,etp=2,dp=4", 0),
]
"""A family, a source, a target, and the target's first device: on the same, some of the same, or other ranks."""


SYSTEMS_OF_FOUR: dict[str, Any] = {
    "megatron:tp=2,pp=1": lambda model, whole: megatron(model, whole, 2, [3], 1, 1),
    "fsdp:3": lambda model, whole: fsdp(model, whole, 3),
}


def small_plan(family: str, source: str, target: str, first: int, **options: Any) -> ModelPlan:
    model = SMALL[family]
    ends = rs.Rules.preset(source, model), rs.Rules.preset(target, model, first_device=first)
    return rs.plan_model(model.tensors(), *ends, **options)


def as_torch(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """An array of bits as values of the dtype that they stand for."""
    dtypes = {"uint16": torch.bfloat16, "uint8": torch.float8_e4m3fn, "uint32": torch.float32}
    return torch.from_numpy(array.view(f"i{array.itemsize}").copy()).view(dtypes[array.dtype.name])


def bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.contiguous()
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)


def models_arrive(rank: int) -> list[str]:
    """Every rank holds what slicing the whole arrays gives, and receives what the plan says, straight into `out`."""
    wrong = []
    for family, source, target, first in PAIRS:
        model, systems = SMALL[family], SYSTEMS | WITH_EXPERTS
        whole = whole_arrays(model)
        before, after = systems[source](model, whole), systems[target](model, whole)
        plan = small_plan(family, source, target, first, in_flight=1 << 17)
        state = {name: as_torch(array) for name, array in before.get(rank, {}).items()}
        wanted = {name: as_torch(array) for name, array in after.get(rank - first, {}).items()}
        out = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
        addresses = [tensor.data_ptr() for tensor in out.values()]
        for version in (1, 2):
            for tensor in out.values():
                tensor.zero_()
            with counted_traffic(all_to_all=True) as traffic:
                rs.torch.transfer(state, plan, out, version=version)
            received = plan.received_bytes_on(rank) if rank in plan.devices else 0
            wrong += [
                unless(torch.equal(bits(out[name]), bits(tensor)), f"{family} {source} -> {target}: {name} on {rank}")
                for name, tensor in wanted.items()
            ]
            wrong.append(unless(received <= traffic.received <= received * 1.02 + 64, (traffic.received, received)))
            wrong.append(unless(not out or rs.torch.version_of(out) == version, rs.torch.version_of(out)))
        wrong.append(unless(addresses == [tensor.data_ptr() for tensor in out.values()], "moved"))
    return wrong


def values_are_cast(rank: int) -> list[str]:
    """Floats of 4 bytes become 2 before they travel, those of 2 become 4 after it; both as torch casts them."""
    mesh = rs.Mesh.of(x=4)
    whole = {name: torch.randn(8, 6, generator=torch.Generator().manual_seed(1)) for name in ("down", "up")}
    whole["up"] = whole["up"].bfloat16()
    tensors = {"down": ((8, 6), "f32"), "up": ((8, 6), "bf16")}
    ends = rs.Rules.of(mesh, {}, ("x",)), rs.Rules.of(mesh, {}, "replicated")
    plan = rs.plan_model(tensors, *ends, cast={"down": "bf16", "up": "f32"})
    out = rs.torch.transfer({name: value.chunk(4)[rank] for name, value in whole.items()}, plan)
    return [
        unless(torch.equal(out["down"], whole["down"].bfloat16()), out["down"]),
        unless(torch.equal(out["up"], whole["up"].float()), out["up"]),
        unless(plan.received_bytes == 2 * 36 * 2, plan.received_bytes),
    ]


def nothing_is_allocated(rank: int) -> list[str]:
    """By a call with memory that is known; and what is held for it is no more than `in_flight`."""
    mesh, in_flight = rs.Mesh.of(x=4), 1 << 14
    tensors = {f"layers.{number}.w": ((64, 32), "f32") for number in range(12)}
    ends = rs.Rules.of(mesh, {}, ("x",)), rs.Rules.of(mesh, {}, (None, "x"))
    plan = rs.plan_model(tensors, *ends, in_flight=in_flight)
    state, out = ({name: torch.ones(shape) for name in tensors} for shape in ((16, 32), (64, 8)))
    before = live_storages()
    rs.torch.transfer(state, plan, out)
    held = {pointer: size for pointer, size in live_storages().items() if pointer not in before}
    seen = Storages()
    with seen:
        rs.torch.transfer(state, plan, out, version=1)
    return [
        unless(plan.buckets.total > 2, plan.buckets),
        unless(sum(held.values()) <= in_flight, f"{sum(held.values())} bytes are held"),
        unless(seen.calls > 4 and seen.pointers <= {*before, *held}, f"allocated in {seen.calls} calls"),
    ]


def live_storages() -> dict[int, int]:
    """The bytes of all memory that tensors are in, by address."""
    gc.collect()
    tensors = (value for value in gc.get_objects() if type(value) is torch.Tensor)
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}


class Storages(TorchDispatchMode):
    """Notes the memory of all that operations of torch give back."""

    def __init__(self) -> None:
        super().__init__()
        self.pointers: set[int] = set()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes():
                self.pointers.add(value.untyped_storage().data_ptr())
        return result


def arrival_is_verified(rank: int) -> list[str]:
    """Sums agree over fused, replicated and cast tensors; one bit that is wrong, or two that are swapped, do not."""
    wrong = []
    cases = [("megatron:tp=2,pp=1", "vllm:tp=2,dp=2,ep=off", 0, None), ("fsdp:3", "hf:tp=2", 1, {".*": "f32"})]
    for source, target, first, cast in cases:
        plan = small_plan("dense", source, target, first, in_flight=1 << 14, cast=cast)
        held = SYSTEMS_OF_FOUR[source](SMALL["dense"], whole_arrays(SMALL["dense"])).get(rank, {})
        state = {name: as_torch(array) for name, array in held.items()}
        out = rs.torch.transfer(state, plan, verify=True)
        checksums = sys.modules["reshard.torch.checksums"]
        if rank not in plan.devices:
            continue
        for change in (flipped, swapped):
            spoilt = {name: value.clone() for name, value in out.items()}
            if rank == max(plan.rules[1].mesh.devices):
                name = next(name for name, value in spoilt.items() if value.numel() > 99)
                bits = spoilt[name].view(-1).view({2: torch.int16, 4: torch.int32}[spoilt[name].element_size()])
                change(bits)
            try:
                checksums.check_arrival(plan, rank, state, spoilt)
                wrong.append(f"{change.__name__} is not seen")
            except rs.ReshardError as error:
                wrong.append(unless(error.code == "verify-failed", error))
    return wrong


def flipped(bits: torch.Tensor) -> None:
    """One element a little larger: its lowest bit but 16, which a cast keeps."""
    bits[7] ^= 1 << (16 if bits.element_size() == 4 else 0)


def swapped(bits: torch.Tensor) -> None:
    """The first two elements that differ, in each other's places."""
    other = int((bits != bits[0]).nonzero()[0])
    bits[0], bits[other] = bits[other].clone(), bits[0].clone()


def memory_may_be_shared(rank: int) -> list[str]:
    """Written over what it is read from: as if it were apart."""
    mesh = rs.Mesh.of(x=4)
    plan = rs.plan_model({"w": ((8, 8), "f32")}, rs.Rules.of(mesh, {}, ("x",)), rs.Rules.of(mesh, {}, (None, "x")))
    whole = torch.arange(64.0).reshape(8, 8)
    memory = whole.chunk(4)[rank].reshape(-1).clone()
    rs.torch.transfer({"w": memory.view(2, 8)}, plan, {"w": memory.view(8, 2)})
    return [unless(torch.equal(memory.view(8, 2), whole.chunk(4, 1)[rank]), memory)]


def _simple(in_flight: int = 1 << 20) -> tuple[ModelPlan, torch.Tensor]:
    mesh = rs.Mesh.of(x=4)
    ends = rs.Rules.of(mesh, {}, ("x",)), rs.Rules.of(mesh, {}, (None, "x"))
    return rs.plan_model({"w": ((8, 8), "f32")}, *ends, in_flight=in_flight), torch.arange(64.0).reshape(8, 8)


def another_version_is_refused(rank: int) -> list[str]:
    """Also another plan; nothing is written, the target is marked, and the next call works."""
    plan, whole = _simple()
    other, _ = _simple(1 << 16)
    state, out = {"w": whole.chunk(4)[rank]}, {"w": torch.zeros(8, 2)}
    wrong = []
    for options in ({"version": int(rank == 1)}, {"version": 5}):
        try:
            rs.torch.transfer(state, other if rank == 2 and options["version"] == 5 else plan, out, **options)
            wrong.append("not refused")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == "ranks-disagree", error))
        wrong.append(unless(rs.torch.version_of(out) is None and not out["w"].any(), out))
    rs.torch.transfer(state, plan, out, version=9)
    wrong.append(unless(torch.equal(out["w"], whole.chunk(4, 1)[rank]) and rs.torch.version_of(out) == 9, out))
    return wrong


def what_does_not_fit_is_refused(rank: int) -> list[str]:
    """On the rank itself as what it is, on the others as its refusal; the next call works."""
    plan, whole = _simple()
    state, out = {"w": whole.chunk(4)[rank]}, {"w": torch.zeros(8, 2)}
    mine = {
        "dtype": ({"w": state["w"].double()}, out),
        "absent": ({}, out),
        "sparse": ({"w": state["w"].to_sparse()}, out),
        "no memory": (state, {"w": torch.zeros(8, 2, device="meta")}),
        "expanded": (state, {"w": torch.zeros(8, 1).expand(8, 2)}),
        "conjugate": (state, {"w": torch._neg_view(torch.zeros(8, 2))}),  # type: ignore[attr-defined]
    }
    wrong = []
    for number, (what, handed) in enumerate(mine.items()):
        try:
            rs.torch.transfer(*((handed[0], plan, handed[1]) if rank == 3 else (state, plan, out)), version=number)
            wrong.append(f"{what}: not refused")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == ("bad-tiles" if rank == 3 else "ranks-disagree"), f"{what}: {error}"))
    rs.torch.transfer(state, plan, out, version=9)
    wrong.append(unless(torch.equal(out["w"], whole.chunk(4, 1)[rank]), out))
    return [*wrong, *_where_memory_may_be_shared(rank), *_dtensors_that_lie_elsewhere(rank)]


def _where_memory_may_be_shared(rank: int) -> list[str]:
    """Tied weights may, and columns of one buffer lie apart; what lies on each other is refused."""
    ends = rs.Rules.of(rs.Mesh.of(x=4), {}, ("x",)), rs.Rules.of(rs.Mesh.of(x=4), {}, "replicated")
    plan = rs.plan_model(dict.fromkeys("ab", ((4, 2), "f32")), *ends)
    row, memory = torch.arange(8.0).reshape(4, 2), torch.zeros(20)
    wrong = []
    for number, (a, b) in enumerate([(memory[:8], memory[:8]), (memory[0:16:2], memory[1:16:2])]):
        out = {"a": a.view(4, 2), "b": b.view(4, 2)}
        rs.torch.transfer(dict.fromkeys("ab", row[rank : rank + 1]), plan, out, version=number)
        wrong += [unless(torch.equal(tensor, row), tensor) for tensor in out.values()]
    try:
        rs.torch.transfer(
            dict.fromkeys("ab", row[rank : rank + 1]), plan, {"a": memory[:8].view(4, 2), "b": memory[7:15].view(4, 2)}
        )
        wrong.append("not refused")
    except rs.ReshardError as error:
        wrong.append(unless(error.code in ("bad-tiles", "ranks-disagree"), error))
    return wrong


def _dtensors_that_lie_elsewhere(rank: int) -> list[str]:
    """Of the planned local shape, but by another order of axes, or partial: refused, at either end."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    ours = rs.Mesh.of(a=2, b=2)
    swapped = rs.Rules.of(ours, {}, (("b", "a"),)), rs.Rules.of(ours, {}, "replicated")
    cut = DTensor.from_local(torch.zeros(2, 1), mesh, [Shard(0), Shard(0)], run_check=False)
    partial = DTensor.from_local(torch.zeros(8, 1), mesh, [Replicate(), Partial()], run_check=False)
    there, back = (rs.plan_model({"w": ((8, 1), "f32")}, *ends) for ends in (swapped, swapped[::-1]))
    calls = ((cut, there, None), (partial, back, None), (torch.zeros(8, 1), back, {"w": cut}))
    wrong = []
    for source, plan, out in calls:
        try:
            rs.torch.transfer({"w": source}, plan, out)
            wrong.append(f"{source} is taken on {rank}")
        except rs.ReshardError as error:
            wrong.append(unless("is a DTensor of shape (8, 1) laid as" in str(error), error))
    return wrong


def a_late_rank(rank: int) -> list[str]:
    """An error on those that waited; the next transfer works."""
    plan, whole = _simple()
    state, out = {"w": whole.chunk(4)[rank]}, {"w": torch.zeros(8, 2)}
    wrong = []
    if rank:
        try:
            rs.torch.transfer(state, plan, out, version=1)
            wrong.append("not refused")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == "exchange-failed", error))
        wrong.append(unless(rs.torch.version_of(out) is None, out))
    else:
        dist.distributed_c10d._get_default_store().wait([_done(1), _done(2), _done(3)])
        try:
            rs.torch.transfer(state, plan, out, version=1)
            wrong.append("not refused")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == "exchange-failed", error))
    dist.distributed_c10d._get_default_store().set(_done(rank), "1")
    rs.torch.transfer(state, plan, out, version=2)
    wrong.append(unless(torch.equal(out["w"], whole.chunk(4, 1)[rank]), out))
    return wrong


def _done(rank: int) -> str:
    return f"test/given-up/{rank}"


def a_killed_rank(rank: int) -> list[str]:
    """It agrees and is gone: an error on those that exchange with it, the target marked; a new group goes on."""
    plan, whole = _simple()
    out = {"w": torch.zeros(8, 2)}
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("test/folder", tempfile.mkdtemp())
    folder = store.get("test/folder").decode()
    if rank == 1:
        sys.modules["reshard.torch.under_way"].TransferUnderWay._begin = lambda *_: os._exit(1)  # type: ignore[attr-defined]
    try:
        rs.torch.transfer({"w": whole.chunk(4)[rank]}, plan, out, version=3)
        return ["not refused"]
    except rs.ReshardError as error:
        wrong = [unless(error.code == "exchange-failed" and rs.torch.version_of(out) is None, error)]
    dist.destroy_process_group()
    place = [0, 2, 3].index(rank)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 3), rank=place, world_size=3)
    mesh = rs.Mesh.of(x=3)
    ends = rs.Rules.of(mesh, {}, ("x",)), rs.Rules.of(mesh, {}, (None, "x"))
    again = rs.plan_model({"w": ((8, 8), "f32")}, *ends)
    out = rs.torch.transfer({"w": whole.chunk(3)[place]}, again, version=4)
    wrong.append(unless(torch.equal(out["w"], whole.chunk(3, 1)[place]), out))
    dist.barrier()
    return [*wrong, unless(rs.torch.version_of(out) == 4, out)]


def a_caller_need_not_wait(rank: int) -> list[str]:
    """For all: a bucket or a tensor is there once it is waited for, later ones may not be; others are refused."""
    mesh = rs.Mesh.of(x=4)
    names = [f"layers.{number}.w" for number in range(9)]
    ends = rs.Rules.of(mesh, {}, ("x",)), rs.Rules.of(mesh, {}, (None, "x"))
    plan = rs.plan_model(dict.fromkeys(names, ((8, 8), "f32")), *ends, in_flight=400)
    whole = {name: torch.arange(64.0).reshape(8, 8) + 100 * number for number, name in enumerate(names)}
    state = {name: value.chunk(4)[rank] for name, value in whole.items()}
    out = {name: torch.zeros(8, 2) for name in names}
    wanted = {name: value.chunk(4, 1)[rank] for name, value in whole.items()}
    handle = rs.torch.transfer(state, plan, out, version=7, async_op=True, verify=True)
    wrong = [unless(handle.buckets == tuple(range(plan.buckets.total)) and plan.buckets.total > 4, plan.buckets)]
    wrong.append(unless(not handle.is_done and rs.torch.version_of(out) is None, "is done at once"))
    try:
        rs.torch.transfer(state, plan, out)
        wrong.append("two at a time")
    except rs.ReshardError as error:
        wrong.append(unless(error.code in ("bad-argument", "ranks-disagree"), error))
    handle.wait(1)
    for name, first in zip(names, plan.buckets.first, strict=True):
        there = torch.equal(out[name], wanted[name])
        wrong.append(unless(there if first <= 1 else (first == 2 or not there), f"{name} of bucket {first}: {there}"))
    handle.wait_for(names[5])
    wrong.append(unless(torch.equal(out[names[5]], wanted[names[5]]), names[5]))
    for bad in (lambda: handle.wait_for("other"), lambda: handle.wait(-1)):
        try:
            bad()
            wrong.append("not refused")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == "bad-argument", error))
    result = handle.wait()
    wrong.append(unless(all(torch.equal(out[name], wanted[name]) for name in names), "not all are there"))
    wrong.append(unless(result == {name: out[name] for name in names} and handle.is_done, "another result"))
    wrong.append(unless(rs.torch.version_of(out) == 7, rs.torch.version_of(out)))
    again = rs.torch.transfer(state, plan, out, version=8, async_op=True)
    again.wait()
    return [*wrong, unless(rs.torch.version_of(out) == 8, rs.torch.version_of(out))]


def casts_in_blocks_agree(rank: int) -> list[str]:
    """To the bit with those of every block alone, twice, and as checksums say, at whichever end has whole blocks."""
    wrong = []
    for name, plan in scaled_plans(4).items():
        held, wanted = scaled_case(plan)
        state = {key: of_numpy(array) for key, array in held.get(rank, {}).items()}
        expected = {key: of_numpy(array) for key, array in wanted.get(rank, {}).items()}
        out = {key: torch.zeros_like(tensor) for key, tensor in expected.items()}
        for version in (1, 2):
            for tensor in out.values():
                tensor.view(torch.uint8).zero_()
            rs.torch.transfer(state, plan, out, version=version, verify=True)
            wrong += [unless(torch.equal(bits(out[key]), bits(tensor)), f"{name}: {key} on {rank}")
                      for key, tensor in expected.items()]  # fmt: skip
            wrong.append(unless(not out or rs.torch.version_of(out) == version, f"{name} is of another version"))
    return wrong


def of_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """An array with its values, also of a dtype that NumPy lacks."""
    return torch.from_numpy(array.view(f"i{array.itemsize}").copy()).view(getattr(torch, array.dtype.name))


def live_state_dicts_go_as_they_are(rank: int) -> list[str]:
    """Of FSDP2 and TP together, biases and norms on a slice of the mesh among them: to whole tensors, and back."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10, bias=False), torch.nn.Linear(10, 5), torch.nn.LayerNorm(5))
    whole = {name: value.detach().clone() for name, value in model.state_dict().items()}
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    state = model.state_dict()
    everywhere = rs.Rules.of(rs.Mesh.of(x=4), {}, "replicated")
    moved = rs.torch.transfer(state, rs.plan_model(state, everywhere), version=1)
    wrong = [unless(torch.equal(moved[name], value), name) for name, value in whole.items()]
    before = {name: value.to_local().clone() for name, value in state.items()}
    for value in state.values():
        value.to_local().zero_()
    back = rs.plan_model(
        {name: (tuple(value.shape), value.dtype) for name, value in whole.items()}, everywhere, rs.Rules.held_by(state)
    )
    rs.torch.transfer(whole, back, state, version=2)
    wrong += [unless(torch.equal(state[n].to_local(), value), n) for n, value in before.items()]
    return [*wrong, *_packed_shards_go_as_they_are(rank)]


def _packed_shards_go_as_they_are(rank: int) -> list[str]:
    """A rank's tile of gate and up is a part of each: as torch cuts it, to columns, and back to where it lay."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import _StridedShard

    values = torch.arange(2 * 20 * 8).reshape(2, 20, 8)
    halves = torch.cat([half.tensor_split([3, 6, 9], 1)[rank] for half in values.chunk(2, 1)], 1)
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    packed = DTensor.from_local(
        halves.clone(), mesh, [_StridedShard(1, split_factor=2)], run_check=False, shape=values.shape,
        stride=values.stride(),
    )  # fmt: skip
    rules = rs.Rules.of(rs.Mesh.of(tp=4), {"w": "packed_colwise"}), rs.Rules.of(rs.Mesh.of(x=4), {}, (None, None, "x"))
    plan = rs.plan_model({"w": packed}, rules[1])
    columns = rs.torch.transfer({"w": packed}, plan, version=1)["w"]
    back = rs.torch.transfer({"w": columns}, rs.plan_model({"w": (values.shape, "i64")}, rules[1], rules[0]), version=1)
    return [
        unless(torch.equal(columns, values.chunk(4, 2)[rank]), columns),
        unless(torch.equal(back["w"], halves), back["w"]),
        unless(plan.received_bytes == plan.lower_bound_bytes, plan.received_bytes),
    ]
