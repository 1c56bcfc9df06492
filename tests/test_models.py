"""A whole model arrives where its rules want it, bit for bit, with no byte that a device does not lack."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from model_layouts import SMALL, SYSTEMS, WITH_EXPERTS, whole_arrays

import reshard as rs
from reshard.models import MODELS, ModelPlan

PUBLISHED = {  # parameters, tensors without scales, bytes
    "llama-3-8b": (8_030_261_248, 291, 16_060_522_496),
    "llama-3-70b": (70_553_706_496, 723, 141_107_412_992),
    "qwen3-30b-a3b": (30_532_122_624, 18_867, 61_064_245_248),
    "qwen3-235b-a22b": (235_093_634_560, 36_945, 470_187_269_120),
    "mixtral-8x7b": (46_702_792_704, 995, 93_405_585_408),
    "deepseek-v3": (671_026_419_200, 45_395, 673_150_611_808),
}


def plan_between(family: str, source: str, target: str, first: int, **options: Any) -> ModelPlan:
    model = SMALL[family]
    ends = rs.Rules.preset(source, model), rs.Rules.preset(target, model, first_device=first)
    return rs.plan_model(model.tensors(), *ends, **options)


def check_moved(plan: ModelPlan, held: dict[int, Any], wanted: dict[int, Any], first: int) -> None:
    counts: dict[int, int] = {}
    result = rs.numpy.transfer(held, plan, received_bytes=counts)
    assert sorted(result) == [first + device for device in sorted(wanted)]
    for device, buffers in wanted.items():
        got = result[first + device]
        assert sorted(got) == sorted(buffers), device
        for name, array in buffers.items():
            assert got[name].dtype == array.dtype
            assert np.array_equal(got[name], array), (device, name)
    for device in plan.devices:
        received = counts.get(device, 0)
        assert received == plan.received_bytes_on(device) == plan.lower_bound_bytes_on(device), device


def systems_of(family: str) -> dict[str, Any]:
    """Those that take the small model: three ranks do not share eight heads."""
    model = SMALL[family]
    systems = SYSTEMS | (WITH_EXPERTS if model.experts else {})
    return {system: cut for system, cut in systems.items() if "tp=3" not in system or model.heads % 3 == 0}


def check_pairs(family: str, pairs: list[tuple[str, str]]) -> None:
    """On other devices, on the same and on some of the same; in buckets that cut tensors too."""
    model, systems = SMALL[family], systems_of(family)
    whole = whole_arrays(model)
    held = {system: cut(model, whole) for system, cut in systems.items()}
    for number, (source, target) in enumerate(pairs):
        first = (0, 100, 3)[number % 3]
        in_flight = (256 << 20, 1 << 15, 3000)[number // 3 % 3]
        plan = plan_between(family, source, target, first, in_flight=in_flight)
        check_moved(plan, held[source], held[target], first)


@pytest.mark.parametrize("family", SMALL)
def test_every_system_to_another(family: str) -> None:
    systems = list(systems_of(family))
    check_pairs(family, [(system, systems[(place * 3 + 2) % len(systems)]) for place, system in enumerate(systems)])


@pytest.mark.slow
@pytest.mark.parametrize("family", SMALL)
def test_every_system_to_every_other(family: str) -> None:
    check_pairs(family, list(itertools.product(systems_of(family), repeat=2)))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_published_parameters(name: str) -> None:
    tensors = MODELS[name].tensors()
    plain = [tensor for key, tensor in tensors.items() if not key.endswith("_scale_inv")]
    figures = sum(tensor.size for tensor in plain), len(plain), sum(tensor.nbytes for tensor in tensors.values())
    assert figures == PUBLISHED[name]


REAL = ["fsdp:64", "megatron:tp=2,pp=PP,ep=EP", "vllm:tp=8,dp=4", "vllm:tp=8,dp=8,ep=on", "hf:tp=4", "fsdp:48"]
"""Systems at their real sizes; PP stages and EP ranks as the model has them."""
STAGES = {"qwen3-235b-a22b": ("24+23+23+24", 16), "deepseek-v3": ("16+15+15+15", 16), "mixtral-8x7b": ("4", 8)}


def real_plan(name: str, source: str, target: str, first: int) -> ModelPlan:
    stages, experts = STAGES.get(name, ("4", 16 if MODELS[name].experts else 1))
    texts = [text.replace("PP", stages).replace("EP", str(experts)) for text in (source, target)]
    if not MODELS[name].experts or MODELS[name].experts < 64:
        texts = [text.replace("dp=8,ep=on", "dp=8,ep=off") for text in texts]
    ends = rs.Rules.preset(texts[0], name), rs.Rules.preset(texts[1], name, first_device=first)
    return rs.plan_model(MODELS[name].tensors(), *ends)


def check_bound(plan: ModelPlan) -> None:
    assert (plan.all_received_bytes == plan.all_lower_bound_bytes).all()
    assert plan.all_sent_bytes.sum() == plan.all_received_bytes.sum()


@pytest.mark.parametrize("name", MODELS)
def test_models_at_their_size_receive_what_they_lack(name: str) -> None:
    """On every device: from system to system, to fewer devices and to others."""
    pairs = list(zip(REAL, [*REAL[1:], REAL[0]], strict=True))
    for number, (source, target) in enumerate(pairs if "8b" in name or "30b" in name else pairs[number_of(name) :: 6]):
        check_bound(real_plan(name, source, target, (0, 100)[number % 2]))


def number_of(name: str) -> int:
    return list(MODELS).index(name) % 3


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_model_between_all_systems_at_its_size(name: str) -> None:
    for source, target in itertools.product(REAL, REAL):
        for first in (0, 10, 100):
            check_bound(real_plan(name, source, target, first))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (rs.Mesh.of(x=64), rs.Mesh.of(x=48)),
        (rs.Mesh.of(x=8), rs.Mesh.of(x=4)),
        (rs.Mesh.of(x=4, y=2), rs.Mesh.of(x=2, y=4)),
    ],
)
def test_clusters_grow_and_shrink(source: rs.Mesh, target: rs.Mesh) -> None:
    axes = list(source.sizes)
    for first, second in itertools.permutations((source, target)):
        ends = [
            rs.Rules.of(mesh, {"*norm*": (tuple(axes),), "*": (axes[0], axes[-1] if len(axes) > 1 else None)})
            for mesh in (first, second)
        ]
        check_bound(rs.plan_model(MODELS["llama-3-8b"].tensors(), *ends))


@pytest.mark.parametrize(
    ("model", "source", "target", "gigabytes"),
    [
        ("qwen3-235b-a22b", "fsdp:8", "vllm:tp=8", 58.96),
        ("qwen3-235b-a22b", "fsdp:8", "vllm:dp=8,ep=on", 72.77),
        ("qwen3-235b-a22b", "megatron:tp=2,pp=24+23+23+24,ep=16", "vllm:tp=8,replicas=8", 58.96),
        ("llama-3-70b", "fsdp:8", "vllm:tp=8", 17.64),
        ("llama-3-70b", "fsdp:8", "vllm:tp=4,replicas=2", 35.28),
    ],
)
def test_bounds_are_those_of_arithmetic(model: str, source: str, target: str, gigabytes: float) -> None:
    """A generator has its share of the experts, of query and output, of keys and values; norms and router whole."""
    plan = real_plan(model, source, target, 64)
    assert round(plan.received_bytes / 1e9, 2) == round(plan.lower_bound_bytes / 1e9, 2) == gigabytes


def test_half_a_thousand_generators_from_a_thousand_trainers() -> None:
    """Few groups stand for all tensors, replicas share the sending, and a device's messages match its figures."""
    name = "qwen3-235b-a22b"
    source = "megatron:tp=2,pp=24+23+23+24,ep=16,dp=128"
    plan = real_plan(name, source, "vllm:tp=8,replicas=64", 1024)
    check_bound(plan)
    assert len(plan.groups) < 200
    assert len({id(group.moves) for group in plan.groups}) < 16
    sent = plan.all_sent_bytes[:1024].reshape(4, 256)
    busiest, fair = sent.max(axis=1), sent.mean(axis=1)
    assert (busiest < 1.06 * fair + 2 * 151936 * 4096).all()  # a stage's replicas are level within one tensor
    again = real_plan(name, source, "vllm:tp=8,replicas=64", 1024)
    assert plan.digest == again.digest != real_plan(name, source, "vllm:tp=8,replicas=64", 1025).digest
    for device in (777, 1024):
        part = plan.part_of(device)
        for traffic, total in (
            (part.sends, plan.sent_bytes_on(device)),
            (part.receives, plan.received_bytes_on(device)),
        ):
            count = 0
            by_bucket: dict[int, int] = {}
            for message in traffic.messages():
                size = sum(box.size * plan.group_of[tensor].wire.itemsize for tensor, box in traffic.pieces(message))
                by_bucket[message.bucket] = by_bucket.get(message.bucket, 0) + size
                count += size
            assert count == total
            assert max(by_bucket.values(), default=0) <= plan.in_flight // 2


def test_the_plan_of_a_network_says_what_it_takes() -> None:
    """On hosts of 8 with 50 GB/s a device: what the busiest port brings in, and what a host lacks once."""
    ends = (
        rs.Rules.preset("fsdp:8", "llama-3-8b"),
        rs.Rules.preset("vllm:tp=4,replicas=2", "llama-3-8b", first_device=8),
    )
    plan = rs.plan_model(MODELS["llama-3-8b"].tensors(), *ends, network="h100-2x8")
    assert plan.seconds is not None
    assert plan.seconds == pytest.approx(plan.received_bytes / 50e9, rel=0.01)
    assert plan.host_bytes is not None
    assert plan.host_bytes[1] == sum(tensor.nbytes for tensor in MODELS["llama-3-8b"].tensors().values())
    assert plan.host_bytes[0] == plan.all_received_bytes.sum()
    assert "into the busiest host" in str(plan)
    assert '"seconds"' in plan.to_json()


def test_a_cast_happens_where_it_saves_bytes() -> None:
    import ml_dtypes

    mesh, whole = rs.Mesh.of(x=4), np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    ends = rs.Rules.of(mesh, {}, ("x",)), rs.Rules.of(mesh, {}, "replicated")
    half = whole.astype(ml_dtypes.bfloat16)
    for array, cast, wanted in ((whole, "bf16", half), (half, "f32", half.astype(np.float32))):
        plan = rs.plan_model({"w": ((8, 6), array.dtype)}, *ends, cast={"w": cast})
        result = rs.numpy.transfer({device: {"w": array[2 * device : 2 * device + 2]} for device in range(4)}, plan)
        assert plan.received_bytes == plan.lower_bound_bytes == 36 * 2
        assert all(np.array_equal(tiles["w"], wanted) for tiles in result.values())


def test_views_are_transposed() -> None:
    mesh, whole = rs.Mesh.of(x=2), np.arange(24).reshape(4, 6)
    target = rs.Rules.of(mesh, {"w": {"spec": "colwise", "store": {"name": "w.T", "transpose": True}}})
    plan = rs.plan_model({"w": ((4, 6), "i64")}, rs.Rules.of(mesh, {}, (None, "x")), target)
    result = rs.numpy.transfer({device: {"w": whole[:, 3 * device : 3 * device + 3]} for device in range(2)}, plan)
    assert all(np.array_equal(result[device]["w.T"], whole[2 * device : 2 * device + 2].T) for device in range(2))
