"""What each rank does to show one feature of `redistribute`; a list of what is wrong comes back."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch_problems import coordinate, cut, same, spans
from torch_ranks import counted_traffic, unless

import reshard as rs
from reshard.torch.world import current_world

R = Replicate()
S0, S1 = Shard(0), Shard(1)
P = Partial()


def tensor(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.int64).reshape(shape).to(dtype)


def values_become_partial(rank: int) -> list[str]:
    """Torch's own all-reduce of what we made partial gives the value back; nothing is sent where nothing moves."""
    wrong = []
    mesh = init_device_mesh("cpu", (2, 2))
    whole = tensor((6, 5)) + 1
    pairs: list[tuple[list[Placement], list[Placement]]] = [
        ([R, R], [P, R]),
        ([R, R], [P, P]),
        ([S0, R], [P, R]),
        ([S0, R], [S0, P]),
        ([R, S1], [R, P]),
        ([S0, S1], [P, S1]),
        ([S0, S0], [P, P]),
        ([R, R], [Partial("max"), R]),
        ([R, R], [Partial("avg"), R]),
        ([S1, R], [S1, Partial("min")]),
        ([R, R], [Partial("product"), R]),
    ]
    for before, after in pairs:
        x = distribute_tensor(whole, mesh, before)
        with counted_traffic() as traffic:
            y = rs.torch.redistribute(x, after)
        back = y.redistribute(placements=[R, R]).to_local()
        wrong.append(unless(torch.equal(back, whole) and list(y.placements) == after, f"{before} -> {after}: {back}"))
        wrong.append(unless(traffic.received == 0, f"{before} -> {after} received {traffic.received}"))
        again = rs.torch.redistribute(y, before)
        wrong.append(unless(same(again.to_local(), x.to_local()), f"{before} -> {after} and back"))
    return wrong


def replicas_are_bit_equal(rank: int) -> list[str]:
    """Sums of floats, in an order of their own, but the same on every replica."""
    wrong = []
    mesh = init_device_mesh("cpu", (2, 2))
    torch.manual_seed(rank)
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex64):
        for shape in ((64, 33), (5,), ()):
            tile = torch.randn(shape, dtype=dtype) * 1000
            x = DTensor.from_local(tile, mesh, [P, P], run_check=False)
            y = rs.torch.redistribute(x, [R, R]).to_local()
            tiles = [torch.empty_like(torch.view_as_real(y) if dtype.is_complex else y) for _ in range(4)]
            dist.all_gather(tiles, torch.view_as_real(y).contiguous() if dtype.is_complex else y)
            wrong.append(unless(all(same(other, tiles[0]) for other in tiles), f"{dtype} {shape}: replicas differ"))
            theirs = x.redistribute(placements=[R, R]).to_local()
            close = torch.allclose(
                y, theirs, rtol=0.05 if dtype == torch.bfloat16 else 1e-4, atol=1e-2 if dtype != torch.bfloat16 else 32
            )
            wrong.append(unless(close, f"{dtype} {shape}: {y} against {theirs}"))
    return wrong


def sums_beside_averages(rank: int) -> list[str]:
    """Torch takes these two reductions together, and so do we."""
    mesh = init_device_mesh("cpu", (2, 2))
    wrong = []
    average = Partial("avg")
    for before in ([P, average], [average, P]):
        afters: list[list[Placement]] = [[R, R], [S0, R], [S1, S0], [before[0], R], [R, before[1]], [S0, before[1]]]
        for after in afters:
            x = DTensor.from_local(tensor((5, 4)) + 8 * rank, mesh, before, run_check=False)
            mine, theirs = rs.torch.redistribute(x, after), x.redistribute(placements=after)
            same_value = same(mine.to_local(), theirs.to_local()) and mine.placements == theirs.placements
            if any(p.is_partial() for p in after):  # how what stays partial is shared out is free
                same_value = same(mine.full_tensor(), theirs.full_tensor())
            wrong.append(unless(same_value, f"{before} -> {after}: {mine} against {theirs}"))
    return wrong


def a_flattened_submesh_does_no_harm(rank: int) -> list[str]:
    """Torch 2.13 gathers wrong rows once somebody has flattened the mesh; we do not."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    mesh["a", "b"]._flatten()
    wrong = []
    for size in range(1, 17):
        whole = tensor((size, 3))
        tile = cut(whole, spans((size, 3), (2, 2), [S0, S0], coordinate(rank, (2, 2))))
        x = DTensor.from_local(tile, mesh, [S0, S0], run_check=False, shape=whole.shape, stride=whole.stride())
        wrong.append(unless(same(rs.torch.redistribute(x, [R, R]).to_local(), whole), f"{size} rows"))
    return wrong


def gradients_are_those_of_torch(rank: int) -> list[str]:
    """Value, placements and dtype of the gradient, and of the gradient of the gradient."""
    mesh = init_device_mesh("cpu", (2, 2))
    wrong = []
    pairs: list[tuple[list[Placement], list[Placement]]] = [
        ([S0, S1], [S1, S0]),
        ([S0, S0], [R, R]),
        ([R, R], [S1, S0]),
        ([S0, R], [R, S1]),
        ([P, S0], [R, S0]),
        ([P, R], [S0, R]),
        ([S0, S1], [S0, S1]),
    ]
    for before, after in pairs:
        whole = tensor((5, 6), torch.float64) / 7
        weights = distribute_tensor(tensor((5, 6), torch.float64).sin(), mesh, after)
        found = []
        for ours in (True, False):
            tile = cut(whole, spans((5, 6), (2, 2), before, coordinate(rank, (2, 2))))
            x = DTensor.from_local(
                tile, mesh, before, run_check=False, shape=whole.shape, stride=whole.stride()
            ).requires_grad_()
            y = rs.torch.redistribute(x, after) if ours else x.redistribute(placements=after)
            (first,) = torch.autograd.grad((y * y * weights).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad((first * first).sum(), x)
            found.append((first, second))
        for mine, theirs in zip(*found, strict=True):
            equal = (
                torch.allclose(mine.to_local(), theirs.to_local()) and mine.to_local().shape == theirs.to_local().shape
            )
            wrong.append(unless(equal, f"{before} -> {after}: gradient {mine} against {theirs}"))
            wrong.append(
                unless(mine.placements == theirs.placements, f"{before} -> {after}: {mine._spec}, {theirs._spec}")
            )
        with torch.no_grad():
            wrong.append(unless(not rs.torch.redistribute(x, after).requires_grad, "a gradient under no_grad"))
    weights = tensor((5, 6), torch.float64).cos()
    for before, after in (([S0, S1], [P, S1]), ([R, S0], [P, S0]), ([S0, S0], [P, P])):
        x = distribute_tensor(tensor((5, 6), torch.float64), mesh, before).requires_grad_()
        (rs.torch.redistribute(x, after).full_tensor() * weights).sum().backward()
        wanted = distribute_tensor(weights, mesh, before).to_local()
        equal = x.grad is not None and torch.equal(x.grad.to_local(), wanted)
        wrong.append(unless(equal, f"{before} -> {after}: gradient {x.grad}"))
    return wrong


def the_result_may_come_later(rank: int) -> list[str]:
    """With async_op the tile is one of torch's that wait when first used; several may be under way."""
    mesh = init_device_mesh("cpu", (2, 2))
    wrong = []
    whole = tensor((8, 12))
    xs = [distribute_tensor(whole + number, mesh, [S0, S1]) for number in range(4)]
    ys = [rs.torch.redistribute(x, [S1, S0], async_op=True) for x in xs]
    for number, (x, y) in enumerate(zip(xs, ys, strict=True)):
        wrong.append(unless(isinstance(y._local_tensor, AsyncCollectiveTensor), "a tile that does not wait"))
        theirs = x.redistribute(placements=[S1, S0])
        wrong.append(unless(torch.equal((y + 1).to_local(), (theirs + 1).to_local()), f"number {number}"))
    z = rs.torch.redistribute(rs.torch.redistribute(xs[0], [S1, S0], async_op=True), [S0, S1])
    wrong.append(unless(same(z.to_local(), xs[0].to_local()), "there and back"))
    x = DTensor.from_local(whole, mesh, [P, P], run_check=False)
    y = rs.torch.redistribute(x, [R, R], async_op=True)
    wrong.append(unless(torch.equal((y * 1).to_local(), whole * 4), "reduced"))
    return wrong


def memory_may_be_handed_in(rank: int) -> list[str]:
    """The tile and the buffers; what does not fit is refused."""
    mesh = init_device_mesh("cpu", (2, 2))
    wrong = []
    for before, after in (([S0, S1], [S1, S0]), ([S0, S0], [R, R]), ([P, R], [S0, R]), ([S0, R], [S0, R])):
        whole = tensor((8, 12))
        x = DTensor.from_local(
            cut(whole, spans((8, 12), (2, 2), before, coordinate(rank, (2, 2)))),
            mesh, before, run_check=False, shape=whole.shape, stride=whole.stride(),
        )  # fmt: skip
        theirs = x.redistribute(placements=after).to_local()
        out = torch.full(theirs.shape, -1.0)
        workspace = torch.full((rs.torch.workspace_size(x, after),), -1.0)
        y = rs.torch.redistribute(x, after, out=out, workspace=workspace)
        wrong.append(unless(y.to_local().data_ptr() == out.data_ptr() and same(out, theirs), f"{before} -> {after}"))
    for arguments in ({"out": torch.empty(3)}, {"workspace": torch.empty(0, dtype=torch.int8)}):
        try:
            rs.torch.redistribute(x, after, **arguments)
            wrong.append(f"{arguments} were taken")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == "bad-tiles", error))
    return wrong


def tiles_need_not_be_contiguous(rank: int) -> list[str]:
    mesh = init_device_mesh("cpu", (2, 2))
    wrong = []
    for before, after in (([S0, S1], [S1, S0]), ([S0, S0], [R, R]), ([P, R], [S0, R]), ([R, R], [S0, S1])):
        whole = tensor((6, 10))
        tile = cut(whole, spans((6, 10), (2, 2), before, coordinate(rank, (2, 2))))
        turned = tile.t().contiguous().t()
        for part in (turned, torch.stack([tile, tile], -1)[..., 0]):
            x = DTensor.from_local(part, mesh, before, run_check=False, shape=whole.shape, stride=whole.stride())
            theirs = x.redistribute(placements=after)
            mine = rs.torch.redistribute(x, after)
            wrong.append(unless(same(mine.to_local(), theirs.to_local()), f"{before} -> {after}"))
            wrong.append(unless(mine.stride() == theirs.stride(), f"{before} -> {after}: strides"))
    turned_whole = distribute_tensor(tensor((6, 10)), mesh, [S0, S1]).t()
    mine, theirs = rs.torch.redistribute(turned_whole, [S0, R]), turned_whole.redistribute(placements=[S0, R])
    wrong.append(unless(mine.stride() == theirs.stride() and same(mine.to_local(), theirs.to_local()), "transposed"))
    return wrong


def tiles_may_be_conjugated_or_negated(rank: int) -> list[str]:
    """What torch does only when a tile is read is done before it travels; memory handed in must hold its values."""
    mesh = init_device_mesh("cpu", (2, 2))
    wrong = []
    whole = torch.complex(tensor((8, 12)), tensor((8, 12)) + 1)
    pairs = (([S0, S1], [S1, S0]), ([S0, R], [R, R]), ([S0, S1], [S0, S1]), ([P, R], [S0, R]), ([R, R], [P, R]))
    for before, after in pairs:
        tile = cut(whole, spans((8, 12), (2, 2), before, coordinate(rank, (2, 2))))
        real = tile.real.contiguous()
        for lazy in (tile.conj(), tile.t().contiguous().t().conj(), torch._neg_view(real), tile.conj().imag):
            plain = lazy.resolve_conj().resolve_neg()
            x, y = (
                DTensor.from_local(one, mesh, before, run_check=False, shape=whole.shape, stride=whole.stride())
                for one in (lazy, plain)
            )
            wanted = rs.torch.redistribute(y, after).to_local()
            for later in (False, True):
                mine = rs.torch.redistribute(x, after, async_op=later).to_local()
                text = f"{before} -> {after}, {'conjugated' if lazy.is_conj() else 'negated'}"
                wrong.append(unless(same(mine * 1, wanted), f"{text}: {mine} for {wanted}"))
    x = distribute_tensor(whole, mesh, [S0, S1])
    for arguments in (
        {"out": torch.empty(4, 6, dtype=whole.dtype).conj()},
        {"workspace": torch.empty(1000, dtype=whole.dtype).conj()},
        {"workspace": torch._neg_view(torch.empty(1000, dtype=whole.dtype))},
    ):
        try:
            rs.torch.redistribute(x, [S1, S0], **arguments)
            wrong.append(f"{arguments} were taken")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == "bad-tiles" and "lazy" in str(error), error))
    return wrong


def what_is_packed_last_may_fail(rank: int) -> list[str]:
    """Where a rank has no room for its last message nothing is on its way yet, and the next call works."""
    mesh = init_device_mesh("cpu", (2, 2))
    x = distribute_tensor(tensor((8, 12)), mesh, [S0, S0])
    wrong = failing_at_the_last_message(lambda: rs.torch.redistribute(x, [S1, S1], check="never"))
    mine, theirs = rs.torch.redistribute(x, [S1, S1]), x.redistribute(placements=[S1, S1])
    return [*wrong, unless(same(mine.to_local(), theirs.to_local()), "the next call")]


def failing_at_the_last_message(call: Callable[[], Any]) -> list[str]:
    """What is wrong with a call in which the last message cannot be packed."""
    from reshard.torch.rank_messages import Message

    pack, packed, last = Message.pack, 0, 0

    def packing(*args: Any) -> torch.Tensor:
        nonlocal packed
        packed += 1
        if packed == last:
            raise RuntimeError("no room")
        return pack(*args)

    Message.pack = packing
    try:
        call()
        packed, last = 0, packed
        with counted_traffic() as traffic:
            call()
    except rs.ReshardError as error:
        told = error.code == "exchange-failed" and "no room" in str(error)
        return [unless(told, f"{error.code} {error}"), unless(traffic.calls == 0, f"{traffic.calls} messages")]
    finally:
        Message.pack = pack
    return ["it did not fail"]


def a_single_element_has_any_stride(rank: int) -> list[str]:
    """Torch calls one element contiguous whatever its stride; types that travel as bytes must not care."""
    mesh = init_device_mesh("cpu", (4,))
    wrong = []
    for dtype in (torch.int16, torch.complex64, torch.bool, torch.float32):
        whole = tensor((4,), dtype)
        tile = torch.stack([whole, whole], -1)[rank : rank + 1, 0]  # strides 2
        x = DTensor.from_local(tile, mesh, [S0], run_check=False, shape=whole.shape, stride=whole.stride())
        wrong.append(unless(same(rs.torch.redistribute(x, [R]).to_local(), whole), f"{dtype}"))
    return wrong


def messages_may_go_in_batches(rank: int) -> list[str]:
    """As NCCL has them: all at once, and over the group of the one mesh dim that they stay within."""
    from reshard.torch import carriers
    from reshard.torch.redistribution import redistribution_for

    mesh = init_device_mesh("cpu", (2, 2))
    batches, carriers._batches = carriers._batches, lambda group, device_type: True
    wrong = []
    pairs: list[tuple[list[Placement], list[Placement], Any]] = [
        ([S0, S0], [R, R], dist.group.WORLD),
        ([S0, R], [S1, R], mesh.get_group(0)),
        ([R, S0], [R, R], mesh.get_group(1)),
        ([S1, P], [S1, R], mesh.get_group(1)),
    ]
    try:
        for before, after, group in pairs:
            whole = tensor((7, 9))
            tile = cut(whole, spans((7, 9), (2, 2), before, coordinate(rank, (2, 2))))
            x = DTensor.from_local(tile, mesh, before, run_check=False, shape=whole.shape, stride=whole.stride())
            y = rs.torch.redistribute(x, after)
            theirs = x.redistribute(placements=after)
            wrong.append(unless(same(y.to_local(), theirs.to_local()), f"{before} -> {after}"))
            exchanges = redistribution_for(current_world(), x._spec, after, None).local.exchanges
            used = [exchange.carrier for exchange in exchanges]
            fits = all(carrier is not None and carrier.group is group and carrier.batches for carrier in used)
            wrong.append(unless(bool(used) and fits, f"{before} -> {after}: {used}"))
    finally:
        carriers._batches = batches
    return wrong


def orders_of_mesh_dims(rank: int) -> list[str]:
    """`_StridedShard` on either side, against torch, whose planner takes it for an order of shards."""
    mesh = init_device_mesh("cpu", (2, 2))
    wrong = []
    turned: list[Placement] = [_StridedShard(0, split_factor=2), S0]
    for size in (8, 9, 5, 3, 1):
        whole = tensor((size, 4))
        x = distribute_tensor(whole, mesh, [S0, S0])
        y = rs.torch.redistribute(x, turned)
        theirs = x.redistribute(placements=turned)
        wrong.append(
            unless(same(y.to_local(), theirs.to_local()), f"{size}: {y.to_local()} against {theirs.to_local()}")
        )
        for after in ([R, R], [S1, S0], [S0, S0]):
            mine = rs.torch.redistribute(y, after).to_local()
            wrong.append(unless(same(mine, distribute_tensor(whole, mesh, after).to_local()), f"{size} -> {after}"))
        sharding = rs.Sharding.of(rs.torch.mesh_of(mesh), ("dim_1", "dim_0"), None, uneven="chunk")
        z = rs.torch.redistribute(x, sharding)
        wrong.append(unless(list(z.placements) == turned and same(z.to_local(), y.to_local()), f"{size}: a Sharding"))
    return wrong


def another_mesh(rank: int) -> list[str]:
    """Another shape, another order of ranks, other ranks: overlapping, disjoint, fewer, more."""
    wrong = []
    square, line = init_device_mesh("cpu", (2, 2)), init_device_mesh("cpu", (4,))
    turned = DeviceMesh("cpu", [[3, 1], [0, 2]])
    halves = [DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])]
    odd = [DeviceMesh("cpu", [0, 1, 2]), DeviceMesh("cpu", [3, 2, 1])]
    one = DeviceMesh("cpu", [2])
    pairs = [(square, line), (line, square), (square, turned), (turned, line), (halves[0], halves[1]), (odd[0], odd[1])]
    pairs += [(halves[1], square), (square, halves[0]), (one, odd[1]), (line, one)]
    for shape in ((8, 12), (7, 5), (1, 3)):
        whole = tensor(shape)
        for source, target in pairs:
            for before in ([S0] * source.ndim, [R] * source.ndim, [S1] + [S0] * (source.ndim - 1)):
                for after in ([S1] * target.ndim, [R] * target.ndim, [S0] + [R] * (target.ndim - 1)):
                    x = _on(source, whole, before, rank)
                    with counted_traffic() as traffic:
                        y = rs.torch.redistribute(x, after, target, check="never")
                    text = f"rank {rank} {shape} {source} {before} -> {target} {after}"
                    wrong.append(unless(y.device_mesh == target and list(y.placements) == after, text))
                    where = (
                        spans(shape, tuple(target.shape), after, _coordinate(target, rank))
                        if rank in target.mesh
                        else None
                    )
                    if where is None:
                        wrong.append(unless(y.to_local().numel() == 0 and not traffic.received, text))
                        continue
                    wrong.append(unless(same(y.to_local(), cut(whole, where)), f"{text}: {y.to_local()}"))
                    held = _held(source, shape, before, rank, where)
                    missing = (cut(whole, where).numel() - held) * 4
                    wrong.append(unless(traffic.received == missing, f"{text}: {traffic.received} for {missing}"))
    x = _on(square, tensor((4, 4)), [P, R], rank)
    y = rs.torch.redistribute(x, [S0], line)
    wrong.append(
        unless(torch.equal(y.to_local(), tensor((4, 4))[rank : rank + 1] * 2), "partial values to another mesh")
    )
    x = _on(square, tensor((4, 4), torch.float64), [S0, S1], rank).requires_grad_()
    rs.torch.redistribute(x, [S0], line).square().sum().backward()
    wrong.append(unless(x.grad is not None and x.grad.device_mesh == square, "a gradient comes back to its mesh"))
    wrong.append(unless(x.grad is not None and torch.equal(x.grad.to_local(), 2 * x.to_local()), "its value"))
    y = rs.torch.redistribute(_on(halves[0], tensor((4, 4)), [S0], rank), [S1])
    wrong.append(unless(y.to_local().numel() == (8 if rank < 2 else 0), "a rank outside of the mesh"))
    sharding = rs.Sharding.of(rs.torch.mesh_of(turned), "dim_0", "dim_1")
    y = rs.torch.redistribute(_on(square, tensor((4, 4)), [S0, S1], rank), sharding, turned)
    wrong.append(unless(list(y.placements) == [S0, S1] and y.device_mesh == turned, "a Sharding on another mesh"))
    try:
        rs.torch.redistribute(_on(square, tensor((4, 4)), [S0, S1], rank), rs.Sharding.of(rs.Mesh.of(a=8), "a", None))
        wrong.append("a Sharding over other ranks was taken without a DeviceMesh")
    except rs.ReshardError as error:
        wrong.append(unless(error.code == "different-meshes" and "DeviceMesh" in str(error), error))
    return wrong


def _coordinate(mesh: DeviceMesh, rank: int) -> tuple[int, ...]:
    (place,) = (mesh.mesh == rank).nonzero().tolist()
    return tuple(place)


def _on(mesh: DeviceMesh, whole: torch.Tensor, placements: list[Placement], rank: int) -> DTensor:
    if rank in mesh.mesh:
        tile = cut(whole, spans(tuple(whole.shape), tuple(mesh.shape), placements, _coordinate(mesh, rank)))
    else:
        tile = whole.new_empty(0)
    return DTensor.from_local(tile, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def _held(mesh: DeviceMesh, shape: tuple[int, ...], placements: list[Placement], rank: int, where: Any) -> int:
    from torch_problems import held_elements

    if rank not in mesh.mesh:
        return 0
    return held_elements(spans(shape, tuple(mesh.shape), placements, _coordinate(mesh, rank)), where)


def a_compiled_graph_has_no_break(rank: int) -> list[str]:
    """Forward and backward under fullgraph, equal to the eager call; to another mesh too."""
    mesh, line = init_device_mesh("cpu", (2, 2)), init_device_mesh("cpu", (4,))
    wrong = []
    cases: list[tuple[list[Placement], list[Placement], DeviceMesh | None]] = [
        ([S0, S1], [S1, S0], None),
        ([S0, S0], [R, Shard(-1)], None),
        ([S0, R], [S0, R], None),
        ([S0, S1], [S0], line),
    ]
    for before, after, other in cases:

        def call(x: DTensor, after: Any = after, other: Any = other) -> DTensor:
            return (rs.torch.redistribute(x * 2, after, other) * 3).sin()

        found = []
        for compiled in (False, True):
            x = distribute_tensor(tensor((6, 5)), mesh, before).requires_grad_()
            torch._dynamo.reset()
            y = (torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call)(x)
            y.sum().backward()
            found.append((y, x.grad))
        for eager, traced in zip(*found, strict=True):
            equal = same(eager.to_local(), traced.to_local()) and eager.placements == traced.placements
            wrong.append(unless(equal and eager.device_mesh == traced.device_mesh, f"{before} -> {after}"))
            wrong.append(unless(eager.stride() == traced.stride(), f"{before} -> {after}: strides"))
    return wrong


def a_compiled_call_takes_other_shapes(rank: int) -> list[str]:
    """The graph is traced again for another shape, uneven ones and partial values included."""
    mesh = init_device_mesh("cpu", (2, 2))
    torch._dynamo.reset()
    call = torch.compile(
        lambda x: rs.torch.redistribute(x, [S1, R], check="always") + 1, fullgraph=True, backend="aot_eager"
    )
    wrong = []
    for shape in ((6, 4), (5, 7), (1, 3)):
        for before in ([S0, S1], [P, S0]):
            whole = tensor(shape)
            tile = cut(whole, spans(shape, (2, 2), before, coordinate(rank, (2, 2))))
            x = DTensor.from_local(tile, mesh, before, run_check=False, shape=whole.shape, stride=whole.stride())
            theirs = x.redistribute(placements=[S1, R]) + 1
            wrong.append(unless(same(call(x).to_local(), theirs.to_local()), f"{shape} {before}"))
    return wrong


def orders_on_eight(rank: int) -> list[str]:
    """Every order of three mesh dims over one dim, even and uneven: chunks of chunks in that order, as torch has it."""
    sizes = (2, 2, 2)
    mesh = init_device_mesh("cpu", sizes)
    wrong = []
    where = coordinate(rank, sizes)
    names = [name for name, _ in rs.torch.mesh_of(mesh).axes]
    for size in (16, 13, 5):
        whole = tensor((size, 3))
        x = distribute_tensor(whole, mesh, [S0, S0, S0])
        for order in itertools.permutations(range(3)):
            low, high = 0, size
            for mesh_dim in order:
                length = -(-(high - low) // 2)
                low, high = min(low + where[mesh_dim] * length, high), min(low + (where[mesh_dim] + 1) * length, high)
            sharding = rs.Sharding.of(rs.torch.mesh_of(mesh), [names[d] for d in order], None, uneven="chunk")
            y = rs.torch.redistribute(x, sharding)
            theirs = x.redistribute(placements=y.placements)
            text = f"{size} rows, order {order}"
            wrong.append(unless(same(y.to_local(), whole[low:high]), f"{text}: {y.to_local()}"))
            wrong.append(unless(same(y.to_local(), theirs.to_local()), f"{text}: torch has {theirs.to_local()}"))
            wrong.append(
                unless(
                    same(
                        rs.torch.redistribute(y, [R, S1, R]).to_local(),
                        cut(whole, spans((size, 3), sizes, [R, S1, R], where)),
                    ),
                    f"{text} and on",
                )
            )
    return wrong


def what_cannot_be_is_refused(rank: int) -> list[str]:
    """Each on every rank, before anything moves."""
    mesh = init_device_mesh("cpu", (2, 2))
    x = distribute_tensor(tensor((4, 4)), mesh, [S0, S1])
    ints = distribute_tensor(tensor((4, 4), torch.int64), mesh, [S0, S1])
    fives = distribute_tensor(tensor((5, 4)), mesh, [S0, S1])  # four blocks of 2 are no chunks of chunks
    odd = DTensor.from_local(
        torch.zeros(3, 3), mesh, [S0, S1], run_check=False, shape=torch.Size((4, 4)), stride=(4, 1)
    )
    cases: list[tuple[str, Any, Any]] = [
        ("bad-argument", x, [S0]),
        ("bad-argument", x, [S0, 3]),
        ("rank-mismatch", x, [S0, Shard(2)]),
        ("rank-mismatch", x, [Shard(-3), R]),
        ("bad-argument", tensor((4, 4)), [S0, S1]),
        ("cannot-express", x, [Partial("sum"), Partial("max")]),
        ("cannot-express", x, [_StridedShard(0, split_factor=3), S0]),
        ("no-plan", x, [Partial("avg"), S1]),
        ("reduction-dtype", ints, [Partial("avg"), Partial("avg")]),
        ("cannot-express", fives, rs.Sharding.of(rs.torch.mesh_of(mesh), ("dim_0", "dim_1"), None)),
        ("bad-tiles", odd, [R, R]),
    ]  # fmt: skip
    wrong = []
    with counted_traffic() as traffic:
        for code, value, target in cases:
            try:
                rs.torch.redistribute(value, target)
                wrong.append(f"{target} was taken")
            except rs.ReshardError as error:
                wrong.append(unless(error.code == code, f"{target}: {error.code} {error}"))
    wrong.append(unless(traffic.calls == 0, "something was sent"))
    return wrong


def disagreements(rank: int) -> list[str]:
    """Rank 2 asks for something else than the others; all get the error that says so, and can go on."""
    mesh = init_device_mesh("cpu", (2, 2))
    mine: Any
    wrong = []
    odd = rank == 2
    for check in ("first", "always"):
        shape = (4, 6) if check == "first" else (4, 8)
        x = distribute_tensor(tensor(shape), mesh, [S0, R])
        for what in ("target", "dtype", "shape"):
            mine, target = x, [R, R]
            if odd and what == "target":
                target = [S1, R]
            if what == "dtype":
                mine = distribute_tensor(tensor(shape, torch.float64), mesh, [S0, S1])
                if odd:
                    mine = DTensor.from_local(mine.to_local().to(torch.int64), mesh, [S0, S1], run_check=False)
            if odd and what == "shape":
                mine = DTensor.from_local(torch.zeros(3, 5), mesh, [S0, R], run_check=False)
            target = [S1, S1] if what == "shape" else target
            begun = time.monotonic()
            try:
                rs.torch.redistribute(mine, target, check=check)
                wrong.append(f"{check}: another {what} was not seen")
            except rs.ReshardError as error:
                named = error.code == "ranks-disagree" and "rank 2" in str(error)
                wrong.append(unless(named, f"{check}, another {what}: {error.code} {error}"))
            wrong.append(unless(time.monotonic() - begun < 10, f"{check}, another {what}: it took too long"))
        y = rs.torch.redistribute(x, [R, R], check=check)
        wrong.append(unless(torch.equal(y.to_local(), tensor(shape)), f"{check}: what is agreed on is done"))
    # both kinds known to all: only `always` sees that rank 2 then takes the other
    for target in ([R, S1], [R, S0]):
        rs.torch.redistribute(x, target)
    try:
        rs.torch.redistribute(x, [R, S0] if odd else [R, S1], check="always")
        wrong.append("always: a known kind was not seen")
    except rs.ReshardError as error:
        wrong.append(unless(error.code == "ranks-disagree", error))
    return wrong


def a_rank_that_refuses_its_call(rank: int) -> list[str]:
    """Rank 3 has a tile, a target or memory that cannot be: it says why, and those that compare are told at once."""
    mesh = init_device_mesh("cpu", (2, 2))
    x = distribute_tensor(tensor((4, 6)), mesh, [S0, S1])
    odd = DTensor.from_local(
        torch.zeros(3, 3), mesh, [S0, S1], run_check=False, shape=torch.Size((4, 6)), stride=(6, 1)
    )
    moved, product = partial(rs.torch.redistribute, target=[S1, S0]), partial(rs.torch.einsum, "ij,kj->ik", x)
    calls: list[tuple[str, Callable[..., DTensor], DTensor, dict[str, Any]]] = [
        ("bad-tiles", moved, odd, {}),
        ("rank-mismatch", moved, x, {"target": [Shard(2), S0]}),
        ("bad-tiles", moved, x, {"out": torch.empty(1)}),
        ("bad-tiles", product, odd, {}),
        ("rank-mismatch", product, x, {"target": [Shard(2), S0]}),
    ]
    wrong = []
    for check, (code, call, mine, options) in itertools.product(("first", "always"), calls):
        begun = time.monotonic()
        with counted_traffic() as traffic:
            try:
                if rank == 3:
                    call(mine, check=check, **options)
                else:
                    call(x, check=check)
                wrong.append(f"{check}: {code} was not seen")
            except rs.ReshardError as error:
                told = error.code == "ranks-disagree" and f"rank 3 refuses its own call: {code}: " in str(error)
                wrong.append(unless(error.code == code if rank == 3 else told, f"{check}: {error.code} {error}"))
        wrong.append(unless(traffic.calls == 0 and time.monotonic() - begun < 10, f"{check}: {code} came late"))
    y = rs.torch.redistribute(x, [S1, S0])
    theirs = x.redistribute(placements=[S1, S0])
    wrong.append(unless(same(y.to_local(), theirs.to_local()), "what is agreed on then is done"))
    return wrong


def what_is_kept_is_bounded(rank: int) -> list[str]:
    """Of the kinds of call that are agreed on, per set of ranks and the same on all, and of what graphs name."""
    from reshard.torch import graph_operator
    from reshard.torch import world as worlds
    from reshard.torch.redistribution import redistribution_for

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    world, capacity = current_world(), worlds.CAPACITY
    worlds.CAPACITY = graph_operator.CAPACITY = 4
    wrong = []
    try:
        for lines in (mesh["a"], mesh["b"]):
            xs = [distribute_tensor(tensor((rows, 4)), lines, [S0]) for rows in range(8, 16)]
            for x in xs:
                rs.torch.redistribute(x, [S1])
            redistributions = [redistribution_for(world, x._spec, [S1], None) for x in xs]
            known = [one.statement.digest in world.agreed for one in redistributions]
            wrong.append(unless(known == 4 * [False] + 4 * [True], f"only the newest are known: {known}"))
            again = rs.torch.redistribute(xs[0], [S1])  # on which they agree once more
            wrong.append(unless(same(again.to_local(), xs[0].redistribute(placements=[S1]).to_local()), "again"))
        sizes = [len(order) for order in world._agreed_in_order.values()]
        wrong.append(unless(len(world.agreed) == sum(sizes), f"{len(world.agreed)} {sizes}"))
        torch._dynamo.reset()
        targets = [[S1], [R], [Shard(2)]]
        calls = [
            torch.compile(partial(rs.torch.redistribute, target=to), fullgraph=True, backend="eager") for to in targets
        ]
        z = distribute_tensor(tensor((4, 4, 4)), mesh["a"], [S0])
        for call, to in zip(calls, targets, strict=True):
            wrong.append(unless(same(call(z).to_local(), z.redistribute(placements=to).to_local()), f"compiled {to}"))
        wrong.append(unless(len(graph_operator._CALLS) == 4, f"{len(graph_operator._CALLS)} names"))
        try:
            calls[0](z)
            wrong.append("a graph found what was dropped")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == "bad-argument" and "torch.compiler.reset()" in str(error), error))
    finally:
        worlds.CAPACITY = graph_operator.CAPACITY = capacity
    return wrong


def a_rank_that_does_not_come(rank: int) -> list[str]:
    """Rank 1 calls nothing: the others say so when the time of the group is over."""
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(tensor((4, 4)), mesh, [S0])
    if rank == 1:
        time.sleep(6)
        return []
    try:
        rs.torch.redistribute(x, [S1])
    except rs.ReshardError as error:
        return [unless(error.code == "exchange-failed" and "rank 1 did not come" in str(error), error)]
    return ["nothing was said"]


def a_rank_that_comes_late(rank: int) -> list[str]:
    """Rank 1 comes when the others wait no longer: it gets their error, begins nothing, and what follows works."""
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(tensor((4, 4)), mesh, [S0])
    if rank == 1:
        time.sleep(5)
    wrong = []
    with counted_traffic() as traffic:
        try:
            rs.torch.redistribute(x, [S1])
            wrong.append("nothing was said")
        except rs.ReshardError as error:
            wrong.append(unless(error.code == "exchange-failed" and "rank 1 did not come" in str(error), error))
    wrong.append(unless(traffic.calls == 0, "something was sent"))
    for check in ("first", "always"):
        y = rs.torch.redistribute(x, [R], check=check)
        wrong.append(unless(same(y.to_local(), tensor((4, 4))), f"the next call, {check}"))
    return wrong


def a_rank_that_dies(rank: int) -> list[str]:
    """Rank 1 is gone after the first call: those that exchange with it get an error."""
    mesh = init_device_mesh("cpu", (4,))
    x = distribute_tensor(tensor((8, 8)), mesh, [S0])
    rs.torch.redistribute(x, [S1])
    if rank == 1:
        os._exit(3)
    begun = time.monotonic()
    try:
        rs.torch.redistribute(x, [S1])
    except rs.ReshardError as error:
        named = error.code == "exchange-failed" and "redistribute 8x8 of float32" in str(error)
        return [unless(named and time.monotonic() - begun < 15, f"{error.code} {error} {time.monotonic() - begun}")]
    return ["nothing was said"]


def memory_stays_within_the_plan(rank: int) -> list[str]:
    """What is allocated during a call: the target tile and the buffers, and little more."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Allocations(TorchDispatchMode):
        total = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if "empty" in str(function):
                self.total += result.numel() * result.element_size()
            elif isinstance(result, torch.Tensor):
                inputs = [a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)]
                inputs += [
                    a.untyped_storage().data_ptr() for a in (kwargs or {}).values() if isinstance(a, torch.Tensor)
                ]
                if result.untyped_storage().data_ptr() not in inputs:
                    self.total += result.numel() * result.element_size()
            return result

    mesh = init_device_mesh("cpu", (2, 2))
    wrong = []
    for before, after in (([S0, S1], [S1, S0]), ([S0, S0], [R, R]), ([S0, R], [S1, S0]), ([P, S0], [R, S0])):
        whole = tensor((512, 512))
        tile = cut(whole, spans((512, 512), (2, 2), before, coordinate(rank, (2, 2))))
        x = DTensor.from_local(tile, mesh, before, run_check=False, shape=whole.shape, stride=whole.stride())
        rs.torch.redistribute(x, after)  # plans and checks
        with Allocations() as allocations, counted_traffic() as traffic:
            y = rs.torch.redistribute(x, after)
        allowed = y.to_local().nbytes + traffic.sent + traffic.received
        text = f"{before} -> {after}: {allocations.total} bytes allocated, {allowed} allowed"
        wrong.append(unless(0 < allocations.total <= allowed, text))
    return wrong
