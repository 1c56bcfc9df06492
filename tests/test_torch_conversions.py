"""Placements of torch as shardings and back, against torch's own arithmetic; plans and calls without processes."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Iterator
from math import prod
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

import reshard as rs
from reshard.torch.dtensor_specs import mesh_of, placements_of, sharding_of
from reshard.torch.redistribution import redistribution_for
from reshard.torch.world import current_world

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", autouse=True)
def one_process_for_all() -> Iterator[None]:
    """Torch's fake backend: 256 ranks of which this process is the first, and nothing is sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=256)
    yield
    dist.destroy_process_group()


def mesh_over(sizes: tuple[int, ...], names: tuple[str, ...] | None = None) -> DeviceMesh:
    return DeviceMesh("cpu", torch.arange(prod(sizes)).reshape(sizes), mesh_dim_names=names)


def spec_of(mesh: DeviceMesh, placements: Any, shape: tuple[int, ...], order: Any = None) -> DTensorSpec:
    stride = torch.empty(shape, device="meta").stride()
    meta = TensorMeta(torch.Size(shape), stride, torch.float32)
    return DTensorSpec(mesh, tuple(placements), tensor_meta=meta, shard_order=order)


def test_a_mesh_keeps_ranks_and_names() -> None:
    assert mesh_of(mesh_over((2, 4))) == rs.Mesh.of(dim_0=2, dim_1=4)
    turned = DeviceMesh("cpu", [[3, 1], [0, 2]], mesh_dim_names=("dp", "tp"))
    assert mesh_of(turned) == rs.Mesh.of(dp=2, tp=2, device_ids=(3, 1, 0, 2))
    assert mesh_of(turned["tp"]) == rs.Mesh.of(tp=2, device_ids=(0, 2))
    assert mesh_of(DeviceMesh("cpu", [5])) == rs.Mesh.of(dim_0=1, device_ids=(5,))


def test_by_hand() -> None:
    """8 rows on 2 x 2: who holds which, by either order of mesh dims."""
    mesh = mesh_over((2, 2))
    plain = sharding_of([Shard(0), Shard(-1)], mesh, 1)
    turned = sharding_of([_StridedShard(0, split_factor=2), Shard(0)], mesh, 1)
    assert [plain.box(rank, (8,))[0] for rank in range(4)] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert [turned.box(rank, (8,))[0] for rank in range(4)] == [(0, 2), (4, 6), (2, 4), (6, 8)]
    assert sharding_of([Partial("max"), Replicate()], mesh, 0).text() == '[], unreduced=max{"dim_0"}, uneven=chunk'
    uneven = sharding_of([Shard(0), Shard(0)], mesh, 1)  # chunks of chunks: 3 + 2, then 2 + 1 and 1 + 1
    assert [uneven.box(rank, (5,))[0] for rank in range(4)] == [(0, 2), (2, 3), (3, 4), (4, 5)]


@pytest.mark.parametrize("sizes", [(8,), (2, 4), (3, 2), (2, 3, 4), (2, 2, 2), (1, 4), (4, 1, 3)])
def test_tiles_lie_where_torch_has_them(sizes: tuple[int, ...]) -> None:
    rng = random.Random(prod(sizes))
    mesh = mesh_over(sizes)
    for _ in range(60):
        ndim = rng.randint(1, 3)
        shape = tuple(rng.randint(0, 25) for _ in range(ndim))
        placements = [rng.choice([Shard(rng.randrange(ndim)), Replicate(), Partial()]) for _ in sizes]
        sharding = sharding_of(spec_of(mesh, placements, shape))
        assert sharding == sharding_of(placements, mesh, ndim)
        assert list(placements_of(sharding, mesh, shape)) == placements
        for rank in range(prod(sizes)):
            where = list(sharding.mesh.coordinates(rank))
            local, offset = _compute_local_shape_and_global_offset(shape, sizes, where, placements)
            box = sharding.box(rank, shape)
            assert (box.shape, tuple(start for start, _ in box)) == (local, offset)


def test_both_spellings_of_an_order() -> None:
    sizes = (2, 3, 4)
    mesh = mesh_over(sizes)
    for order in itertools.permutations(range(3)):
        placements = (Shard(0),) * 3
        entries = (ShardOrderEntry(0, order),)
        strided = DTensorSpec._convert_shard_order_to_StridedShard(entries, placements, mesh)
        sharding = sharding_of(spec_of(mesh, placements, (48, 5), entries))
        assert sharding == sharding_of(strided, mesh, 2) == sharding_of(spec_of(mesh, strided, (48, 5)))
        assert [axis.name for axis in sharding.dims[0].axes] == [f"dim_{number}" for number in order]
        assert placements_of(sharding, mesh, (48, 5)) == strided


def test_shardings_on_other_meshes_become_placements() -> None:
    square = mesh_over((2, 4), ("x", "y"))
    flat = rs.Mesh.of(a=8)
    assert placements_of(rs.Sharding.of(flat, "a:(1)2", "a:(2)4"), square) == (Shard(0), Shard(1))
    assert placements_of(rs.Sharding.of(flat, "a", None), square, (16, 3)) == (Shard(0), Shard(0))
    turned = rs.Mesh.of(y=4, x=2, device_ids=(0, 4, 1, 5, 2, 6, 3, 7))
    assert placements_of(rs.Sharding.of(turned, "x", "y"), square) == (Shard(0), Shard(1))
    assert placements_of(rs.Sharding.of(turned, ("y", "x")), square) == (_StridedShard(0, split_factor=4), Shard(0))


@pytest.mark.parametrize(
    ("code", "sharding", "shape"),
    [
        ("cannot-express", rs.Sharding.of(rs.Mesh.of(x=2, y=4), "y:(1)2"), None),
        ("cannot-express", rs.Sharding.of(rs.Mesh.of(x=2, y=4), ("x", "y")), (12,)),
        ("cannot-express", rs.Sharding.of(rs.Mesh.of(a=8, device_ids=(1, 0, 2, 3, 4, 5, 6, 7)), "a"), None),
        ("different-meshes", rs.Sharding.of(rs.Mesh.of(a=4), "a"), None),
        ("different-meshes", rs.Sharding.of(rs.Mesh.of(a=8, device_ids=range(8, 16)), "a"), None),
    ],
)
def test_what_torch_cannot_express(code: str, sharding: rs.Sharding, shape: Any) -> None:
    with pytest.raises(rs.ReshardError) as refusal:
        placements_of(sharding, mesh_over((2, 4), ("x", "y")), shape)
    assert refusal.value.code == code


@pytest.mark.parametrize(
    ("code", "placements"),
    [
        ("bad-argument", [Shard(0)]),
        ("bad-argument", [Shard(0), "R"]),
        ("rank-mismatch", [Shard(2), Replicate()]),
        ("cannot-express", [Partial("sum"), Partial("avg")]),
        ("unknown-reduction", [Partial("median"), Replicate()]),
        ("cannot-express", [_StridedShard(0, split_factor=3), Shard(0)]),
        ("cannot-express", [_StridedShard(1, split_factor=3), Shard(1)]),
    ],
)
def test_what_has_no_sharding(code: str, placements: list[Any]) -> None:
    with pytest.raises(rs.ReshardError) as refusal:
        sharding_of(placements, mesh_over((2, 4)), 2)
    assert refusal.value.code == code


def random_placements(rng: random.Random, sizes: tuple[int, ...], ndim: int) -> tuple[Any, ...]:
    return tuple(rng.choice([Replicate(), *(Shard(dim) for dim in range(ndim))]) for _ in sizes)


def test_a_rank_receives_its_bound_on_256_ranks() -> None:
    """Each rank's own messages, made from its own coordinates, add up to the plan's figures."""
    sizes = (2, 8, 4, 4)
    mesh, rng = init_device_mesh("cpu", sizes), random.Random(1)
    for shape in ((256, 256, 256), (100, 36, 7)):
        for _ in range(20):
            source = spec_of(mesh, random_placements(rng, sizes, 3), shape)
            local = redistribution_for(current_world(), source, random_placements(rng, sizes, 3), None).local
            received = sum(message.size for exchange in local.exchanges for message in exchange.receives)
            sent = sum(message.size for exchange in local.exchanges for message in exchange.sends)
            assert received * 4 == local.plan.lower_bound_bytes_on(0)
            assert local.workspace_size <= received + sent


def test_figures_of_time() -> None:
    """Loose bounds of processor time, which a busy machine keeps: a cold transfer, and a warm call beside torch's."""
    sizes = (2, 8, 4, 4)
    mesh, rng = init_device_mesh("cpu", sizes), random.Random(2)
    cold = []
    for _ in range(60):
        source, target = spec_of(mesh, random_placements(rng, sizes, 3), (256, 256, 256)), None
        target = random_placements(rng, sizes, 3)
        start = time.process_time()
        redistribution_for(current_world(), source, target, None)
        cold.append(time.process_time() - start)
    assert statistics.median(cold) < 10e-3
    line = mesh_over((8,))
    x = distribute_tensor(torch.zeros(64, 64), line, [Shard(0)])

    def microseconds(call: Any) -> float:
        times = []
        for _ in range(200):
            start = time.process_time()
            call()
            times.append(time.process_time() - start)
        return statistics.median(times) * 1e6

    ours = microseconds(lambda: rs.torch.redistribute(x, [Replicate()]))
    theirs = microseconds(lambda: x.redistribute(placements=[Replicate()]))
    assert ours < 3 * theirs
