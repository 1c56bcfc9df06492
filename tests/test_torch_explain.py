"""Whether `explain` says what torch's planners do: held to torch's own trace and to the collectives that it calls."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import prod
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, _redistribute, placement_types
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._debug_mode import DebugMode
from torch.utils._python_dispatch import TorchDispatchMode

import reshard as rs
from reshard.torch.comparison import Comparison, explain
from reshard.torch.dtensor_specs import mesh_of
from reshard.torch.planners import PLANNERS, PlannerRoute

pytestmark = pytest.mark.engine

R, P = Replicate(), Partial()
S0, S1, S2 = Shard(0), Shard(1), Shard(2)
Placements = Sequence[Any]


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    """Rank 0 of a world of 8 whose collectives send nothing."""
    logging.getLogger("torch").setLevel(logging.ERROR)
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()
    logging.getLogger("torch").setLevel(logging.NOTSET)


def mesh_like(*sizes: int) -> DeviceMesh:
    return DeviceMesh("cpu", torch.arange(prod(sizes)).view(sizes))


def told(source: Placements, target: Any, mesh: DeviceMesh, shape: tuple[int, ...]) -> Comparison:
    return explain(source, target, mesh=mesh, shape=shape, dtype=torch.float32)


class Sent(TorchDispatchMode):
    """Counts what rank 0 would receive in the collectives that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = Fraction(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"):
            group = dist.distributed_c10d._resolve_process_group(args[-1]) if isinstance(args[-1], str) else args[-1]
            count = group.size()
            share = {"all_gather_into_tensor": count - 1, "reduce_scatter_tensor": Fraction(count - 1, count)}
            self.bytes += args[0].nbytes * share.get(name, Fraction(2 * (count - 1), count))
        return func(*args, **(kwargs or {}))


def run_by_torch(
    planner: str, source: Placements, target: Placements, mesh: DeviceMesh, shape: tuple[int, ...]
) -> tuple[str, Fraction, Fraction]:
    """Torch's own redistribute on rank 0: its trace, empty where it does nothing; and what it receives."""
    full = torch.empty(shape, dtype=torch.float32)
    local = full
    for mesh_dim, placement in reversed(list(enumerate(source))):  # a strided shard is cut after those to its right
        if isinstance(placement, _StridedShard):
            local = local.chunk(mesh.size(mesh_dim), placement.dim)[0]
    for mesh_dim, placement in enumerate(source):
        if isinstance(placement, Shard):
            local = local.chunk(mesh.size(mesh_dim), placement.dim)[0]
    x = DTensor.from_local(local, mesh, source, run_check=False, shape=full.shape, stride=full.stride())
    saved = Fraction(0)
    by_gather = placement_types.shard_dim_alltoall

    def counted(tensor: torch.Tensor, gather_dim: int, shard_dim: int, on: DeviceMesh, mesh_dim: int) -> Any:
        nonlocal saved
        count = on.size(mesh_dim)
        saved += tensor.nbytes * (count - 1) * (1 - Fraction(1, count))
        return by_gather(tensor, gather_dim, shard_dim, on, mesh_dim)

    _redistribute._gen_transform_infos.cache_clear()
    placement_types.shard_dim_alltoall = counted
    try:
        with _redistribute.use_min_cost_redistribution_plan(planner == "min-cost"):
            with Sent() as sent:
                x.redistribute(placements=target)
            with DebugMode() as debug:
                x.redistribute(placements=target)
    finally:
        placement_types.shard_dim_alltoall = by_gather
        _redistribute._gen_transform_infos.cache_clear()
    traces = [call.transform_info_str for call in debug.operators if hasattr(call, "transform_info_str")]
    return "".join(traces), sent.bytes - saved / 2, sent.bytes  # DebugMode's run counted the same all-to-alls again


def check(
    found: PlannerRoute, source: Placements, target: Placements, mesh: DeviceMesh, shape: tuple[int, ...]
) -> None:
    trace, planned, on_cpu = run_by_torch(found.planner, source, target, mesh, shape)
    assert trace == (found.trace if found.transforms else "")
    rounding = len(found.transforms)  # a part of an all-reduce may be no whole number of bytes
    assert planned <= found.total().received_bytes < planned + rounding + 1
    assert on_cpu <= found.total(on_cpu=True).received_bytes < on_cpu + rounding + 1


HAND = [
    # mesh, source, target, shape, bound, (greedy, on CPU), (min-cost, on CPU), as multiples of the bound
    ((2, 4), [S0, S1], [S1, S0], (1024, 1024), Fraction(1, 8), (5, 7), (Fraction(5, 2), 7)),
    ((2, 3), [S0, S1], [S1, S0], (1152, 1152), Fraction(1, 6), (Fraction(7, 2), 5), (Fraction(7, 3), 5)),
    ((2, 4), [S0, S0], [S0, S1], (1024, 1024), Fraction(3, 32), (1, 4), (1, 4)),
    ((2, 4), [S0, S0], [S1, S0], (1024, 1024), Fraction(1, 8), (5, 7), (Fraction(13, 4), 10)),
    ((2, 4), [S0, S0], [R, S0], (1024, 1024), Fraction(1, 4), (Fraction(7, 2), Fraction(7, 2)), (Fraction(13, 8), 5)),
    ((2, 4), [R, S0], [S0, S0], (1024, 1024), Fraction(1, 8), (6, 6), (Fraction(9, 4), 9)),
    ((2, 2, 2), [S0, S1, S2], [S2, S0, S1], (256, 256, 256), Fraction(1, 8), (5, 7), (Fraction(5, 2), 5)),
    ((8,), [S0], [S1], (1024, 1024), Fraction(7, 64), (1, 8), (1, 8)),
]


@pytest.mark.parametrize(("sizes", "source", "target", "shape", "bound", "greedy", "min_cost"), HAND)
def test_known_cases_receive_what_arithmetic_says(
    sizes: Any, source: Any, target: Any, shape: Any, bound: Fraction, greedy: Any, min_cost: Any
) -> None:
    found = told(source, target, mesh_like(*sizes), shape)
    tensor = prod(shape) * 4
    assert found.plan.received_bytes == found.plan.lower_bound_bytes == bound * tensor
    for one, (planned, on_cpu) in zip(found.routes, (greedy, min_cost), strict=True):
        assert one.total().received_bytes == planned * bound * tensor
        assert one.total(on_cpu=True).received_bytes == on_cpu * bound * tensor
        assert found.ratio(one) == pytest.approx(float(planned))


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("seed", range(30))
def test_routes_are_those_that_torch_takes(planner: str, seed: int) -> None:
    rng = random.Random(f"{planner} {seed}")
    mesh = mesh_like(*rng.choice([(2, 4), (4, 2), (2, 2, 2), (8,), (2, 3), (3, 2), (1, 4), (5,)]))
    shape = tuple(rng.choice([8, 16, 24, 5, 7, 12]) for _ in range(rng.choice([1, 2, 3])))
    shards = [Shard(dim) for dim in range(len(shape))]
    source = [rng.choice([R, P, *shards, *shards]) for _ in range(mesh.ndim)]
    target = [rng.choice([R, *shards, *shards]) for _ in range(mesh.ndim)]
    found = explain(source, target, mesh=mesh, shape=shape, dtype=torch.float32, planners=[planner]).routes[0]
    check(found, source, target, mesh, shape)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ([_StridedShard(0, split_factor=4), S0], [R, S0]),
        ([S0, S0], [_StridedShard(0, split_factor=4), S0]),
        ([S1, R], [_StridedShard(0, split_factor=4), S0]),
    ],
)
def test_another_order_of_shards_is_planned_by_the_graph_alone(source: Placements, target: Placements) -> None:
    mesh = mesh_like(2, 4)
    greedy, min_cost = told(source, target, mesh, (16, 8)).routes
    assert greedy.refusal == "torch plans shards in another order than that of the mesh dims by its graph alone"
    check(min_cost, source, target, mesh, (16, 8))


def test_gathers_merge_where_the_mesh_was_flattened() -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 4), mesh_dim_names=("a", "b"))
    assert told([S0, S0], [R, R], mesh, (16, 8)).routes[0].trace == "S(0)[0]S(0)[1]->S(0)R->RR"
    mesh["a", "b"]._flatten()
    found = told([S0, S0], [R, R], mesh, (16, 8)).routes[0]
    assert found.trace == "S(0)[0]S(0)[1]-->RR"
    assert [transform.mesh_dims for transform in found.transforms] == [(0, 1)]
    assert found.total().received_bytes == 7 * 16 * 4
    check(found, [S0, S0], [R, R], mesh, (16, 8))


def test_of_a_dtensor_it_says_the_same_as_of_its_placements() -> None:
    mesh = mesh_like(2, 4)
    x = DTensor.from_local(torch.zeros(8, 4), mesh, [S0, S1], run_check=False)
    assert explain(x, [S1, Shard(-2)]) == told([S0, Shard(-1)], [S1, S0], mesh, (16, 16))


def test_a_target_may_be_a_sharding() -> None:
    mesh = mesh_like(2, 4)
    target = rs.Sharding.of(mesh_of(mesh), "dim_1", "dim_0", uneven="chunk")
    assert told([S0, S1], target, mesh, (16, 16)) == told([S0, S1], [S1, S0], mesh, (16, 16))
    part = rs.Sharding.of(mesh_of(mesh), "dim_1:(1)2", None)
    found = told([S0, S1], part, mesh, (16, 16))
    assert found.plan.target == part
    assert all(one.refusal.startswith("torch has no placements for it: ") for one in found.routes)
    elsewhere = rs.Sharding.of(rs.Mesh.of(x=8, device_ids=range(8, 16)), "x", None)
    found = told([S0, S1], elsewhere, mesh, (16, 16))
    assert found.plan.received_bytes == 16 * 16 * 4 // 8
    assert all("over other devices" in one.refusal for one in found.routes)


def test_torch_goes_to_no_other_mesh() -> None:
    mesh, other = mesh_like(2, 4), mesh_like(4, 2)
    x = DTensor.from_local(torch.zeros(8, 4), mesh, [S0, S1], run_check=False)
    found = explain(x, [S1, S0], other)
    assert found.plan.target.mesh == mesh_of(other)
    with pytest.raises(NotImplementedError) as theirs:
        x.redistribute(other, [S1, S0])
    assert str(theirs.value).rstrip("!").lower() in found.routes[0].refusal
    assert x.redistribute(other, [S0, S1]).device_mesh == mesh
    assert explain(x, [S0, S1], other).routes[0].refusal.endswith("leaves it on the mesh it is on")
    assert explain(x, [S1, S0], mesh) == explain(x, [S1, S0])


def test_values_that_become_partial_are_refused_by_torch_and_planned_here() -> None:
    found = told([S0, R], [S0, P], mesh_like(2, 4), (16, 16))
    assert [step.kind for step in found.plan.steps] == ["ToUnreduced"]
    assert {one.refusal for one in found.routes} == {
        "torch refuses R -> P(sum): values become partial inside its own operations only"
    }


def test_asking_leaves_torchs_plans_alone() -> None:
    mesh = mesh_like(2, 4)
    before = _redistribute._gen_transform_infos.cache_info(), len(_redistribute._planner_cache)
    with Sent() as sent:
        told([P, S0], [S1, S0], mesh, (40, 24))
    assert sent.bytes == 0
    assert (_redistribute._gen_transform_infos.cache_info(), len(_redistribute._planner_cache)) == before
    assert _redistribute._FORCE_MIN_COST_REDISTRIBUTION_PLAN is None


@pytest.mark.parametrize("missing", ["DTensorRedistributePlanner", "generate_greedy_transform_infos"])
def test_a_torch_without_these_planners_is_said_in_a_sentence(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = _redistribute if hasattr(_redistribute, missing) else _redistribute.DTensorRedistributePlanner
    monkeypatch.delattr(holder, missing)
    found = told([S0, S1], [S1, S0], mesh_like(2, 4), (16, 16))
    assert found.plan.received_bytes == 128
    sentence = found.routes[0].refusal
    assert sentence.startswith(f"torch {torch.__version__} does not let its planner be asked: ")
    assert missing in sentence
    assert sentence in str(found)


def test_an_unknown_planner_and_arguments_twice_are_refused() -> None:
    mesh = mesh_like(2, 4)
    with pytest.raises(rs.ReshardError, match="planner 'best' must be one of greedy, min-cost") as refusal:
        explain([S0, S1], [S1, S0], mesh=mesh, shape=(16, 16), dtype=torch.float32, planners=["best"])
    assert refusal.value.code == "bad-argument"
    x = DTensor.from_local(torch.zeros(8, 4), mesh, [S0, S1], run_check=False)
    with pytest.raises(rs.ReshardError, match="give none beside it"):
        explain(x, [S1, S0], shape=(16, 16))
    for lacking, code in (("mesh", "bad-argument"), ("shape", "bad-shape"), ("dtype", "bad-argument")):
        given: dict[str, Any] = {"mesh": mesh, "shape": (16, 16), "dtype": torch.float32, lacking: None}
        with pytest.raises(rs.ReshardError) as refusal:
            explain([S0, S1], [S1, S0], **given)
        assert refusal.value.code == code


SHOWN = """\
reshard
1024 x 1024 float32 on 8 devices
from  [{"dim_0"}, {"dim_1"}], uneven=chunk
to    [{"dim_1"}, {"dim_0"}], uneven=chunk

   step      axes          rounds  received      peak  sharding
1  Exchange  dim_0, dim_1       2   512 KiB  1280 KiB  [{"dim_1"}, {"dim_0"}], uneven=chunk

received 512 KiB on the busiest device, 3 MiB in all; lower bound 512 KiB: exact

torch, greedy
S(0)S(1)->S(0)R->S(1)R->S(1)S(0)

   step        mesh dim  received      peak  received on CPU  peak on CPU  placements
1  all_gather  dim_1     1536 KiB  2560 KiB         1536 KiB     2560 KiB  S(0)R
2  all_to_all  dim_0        1 MiB     4 MiB            2 MiB        8 MiB  S(1)R
3  slice       dim_1          0 B  2560 KiB              0 B     2560 KiB  S(1)S(0)

received 2560 KiB on the busiest rank, 5.00 times the lower bound; peak at least 4608 KiB
received on CPU 3584 KiB on the busiest rank, 7.00 times the lower bound; peak at least 8704 KiB

torch, min-cost
S(0)S(1)->RS(1)->RS(0)->S(1)S(0)

   step        mesh dim  received      peak  received on CPU  peak on CPU  placements
1  all_gather  dim_0      512 KiB  1536 KiB          512 KiB     1536 KiB  RS(1)
2  all_to_all  dim_1      768 KiB     2 MiB            3 MiB        6 MiB  RS(0)
3  slice       dim_0          0 B  1536 KiB              0 B     1536 KiB  S(1)S(0)

received 1280 KiB on the busiest rank, 2.50 times the lower bound; peak at least 2560 KiB
received on CPU 3584 KiB on the busiest rank, 7.00 times the lower bound; peak at least 6656 KiB"""
GATHER = """\
torch, greedy and min-cost
RS(1)->RR

   step        mesh dim  received    peak  placements
1  all_gather  dim_1        768 B  1280 B  RR

received 768 B on the busiest rank, 1.00 times the lower bound; peak at least 1280 B"""


def test_the_text_is_what_a_person_reads() -> None:
    assert str(told([S0, S1], [S1, S0], mesh_like(2, 4), (1024, 1024))) == SHOWN
    assert str(told([R, S1], [R, R], mesh_like(2, 4), (16, 16))).split("\n\n", 3)[3] == GATHER
    done = str(told([S0, R], [S0, R], mesh_like(2, 4), (16, 16)))
    assert done.endswith("torch, greedy and min-cost\nS(0)R\nnothing to do")
