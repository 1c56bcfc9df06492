"""A whole model arrives where its rules want it, bit for bit, with no byte that a device does not lack."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest
import time_bounds
from model_layouts import SMALL, SYSTEMS, WITH_EXPERTS, scaled_case, scaled_plans, whole_arrays

import reshard as rs
from reshard import cli
from reshard.models import MODELS, ModelPlan, Rule
from reshard.models.published import published_for
from reshard.models.rule import Slice, StoreRule
from reshard.network import Level

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
    "name", ["llama-3-8b", *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name != "llama-3-8b")]
)
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (rs.Mesh.of(x=64), rs.Mesh.of(x=48)),
        (rs.Mesh.of(x=8), rs.Mesh.of(x=4)),
        (rs.Mesh.of(x=4, y=2), rs.Mesh.of(x=2, y=4)),
    ],
)
def test_clusters_grow_and_shrink(source: rs.Mesh, target: rs.Mesh, name: str) -> None:
    axes = list(source.sizes)
    for first, second in itertools.permutations((source, target)):
        ends = [
            rs.Rules.of(mesh, {r".*(norm|bias).*": (tuple(axes),), "*": (axes[0], axes[-1] if len(axes) > 1 else None)})
            for mesh in (first, second)
        ]
        check_bound(rs.plan_model(MODELS[name].tensors(), *ends))


@pytest.mark.parametrize(
    ("model", "source", "target", "gigabytes", "seconds", "seconds_once_per_host"),
    [
        ("qwen3-235b-a22b", "fsdp:8", "vllm:tp=8", 58.96, 1.18, 1.18),
        ("qwen3-235b-a22b", "fsdp:8", "vllm:dp=8,ep=on", 72.77, 1.46, 1.18),
        ("llama-3-70b", "fsdp:8", "vllm:tp=8", 17.64, 0.353, 0.353),
        ("llama-3-70b", "fsdp:8", "vllm:tp=4,replicas=2", 35.28, 0.706, 0.353),
    ],
)
def test_bounds_are_those_of_arithmetic(
    model: str, source: str, target: str, gigabytes: float, seconds: float, seconds_once_per_host: float
) -> None:
    """From one host of 8 to another with 50 GB/s a device: at each device's port, and if each byte comes in once."""
    plan = dataclasses.replace(real_plan(model, source, target, 8), network=rs.Network.preset("h100-2x8"))
    assert round(plan.received_bytes / 1e9, 2) == round(plan.lower_bound_bytes / 1e9, 2) == gigabytes
    digits = 3 if seconds < 1 else 2
    assert round(plan.lower_bound_bytes / 50e9, digits) == seconds
    assert plan.seconds == pytest.approx(plan.lower_bound_bytes / 50e9, rel=0.01)
    assert plan.lower_bound_seconds is not None
    assert round(plan.lower_bound_seconds, digits) == seconds_once_per_host


def test_sixty_four_generators_from_sixty_four_trainers() -> None:
    """15 templates; on half as many cuts each generator has twice as much."""
    source = "megatron:tp=2,pp=24+23+23+24,ep=16"
    for target, gigabytes in (("vllm:tp=8,replicas=8", 58.96), ("vllm:tp=16,replicas=4", 29.6)):
        plan = real_plan("qwen3-235b-a22b", source, target, 64)
        assert len({template.name for template in plan.templates}) == 15
        assert plan.received_bytes == plan.lower_bound_bytes
        assert plan.received_bytes / 1e9 == pytest.approx(gigabytes, abs=0.06 if "16" in target else 0.005)


@pytest.mark.parametrize("tp", [4, 8])
@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3-70b", "qwen3-30b-a3b", "qwen3-235b-a22b"])
def test_a_generator_has_its_share(name: str, tp: int) -> None:
    """Experts, query and output by tp, keys and values by no more than the heads, norms and router whole."""
    model, total = MODELS[name], 0.0
    for key, tensor in model.tensors().items():
        parts = min(tp, model.kv_heads) if ".k_proj" in key or ".v_proj" in key else tp
        total += tensor.nbytes / (1 if "norm" in key or ".gate.weight" in key else parts)
    assert real_plan(name, "fsdp:8", f"vllm:tp={tp}", 64).lower_bound_bytes == total


@pytest.mark.parametrize(
    ("target", "figures"),
    [
        ("vllm:tp=8", {"TP8": "5.2", "NeMo": "2.0 to 2.3", "DynaTrain": ""}),
        ("vllm:tp=16", {"NeMo": "3.9 to 4.6", "DynaTrain": ""}),
        ("vllm:dp=8,ep=on", {"DP8+EP8": "2.3", "NeMo": "1.6 to 1.9", "DynaTrain": ""}),
    ],
)
def test_published_figures_stand_beside_what_they_fit(
    target: str, figures: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = real_plan("qwen3-235b-a22b", "fsdp:8", target, 8)
    fitting = {figure.system: figure for figure in published_for("qwen3-235b-a22b", plan)}
    assert len(fitting) == len(figures)
    for word, times in figures.items():
        assert [figure.times_least(plan.lower_bound_bytes) for key, figure in fitting.items() if word in key] == [times]
    assert published_for("llama-3-8b", plan) == []
    if target == "vllm:tp=8":
        words = ["model", "qwen3-235b-a22b", "--from", "fsdp:8", "--to", target]
        assert cli.main(words) == 0
        assert "vllm-project/vllm#43375" in capsys.readouterr().out
        assert cli.main([*words, "--json"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert [figure["seconds"] for figure in record["published"]] == [[6.1, 6.1], [2.31, 2.73], [4.36, 4.36]]
        assert ModelPlan.from_json(json.dumps(record)) == plan


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


def described_plan() -> ModelPlan:
    """Of rules of every kind: with cuts, heads, padding, stores, another mesh, shardings; with casts and a network."""
    mesh = rs.Mesh.of({"pp": 2, "tp": 2}, device_ids=(5, 1, 2, 4))
    flat = rs.Mesh.of({"x": 4}, device_ids=(4, 2, 1, 5))
    source = rs.Rules(
        mesh,
        (
            Rule(r"(l)\.(\d+)\.(a|b)", "colwise", on=(Slice("pp", r"\2", (1,)),), heads=2,
                 store=StoreRule(r"\1.\2.ab", key=r"\3", order=("a", "b"))),
            Rule("v", ("x",), flat, pad=8),
            Rule("s", rs.Sharding.of(flat, None, "x"), flat),
        ),
        Rule(".*", (None, ("pp", "tp"))),
        (("w.*", 2),),
    )  # fmt: skip
    target = rs.Rules.preset("fsdp:8")
    shapes = {f"l.{layer}.{part}": (4, 6) for layer in range(3) for part in "ab"}
    shapes |= {"v": (9,), "s": (2, 5), "w1": (3, 8), "w2": (3, 8)}
    tensors = {name: (shape, "f32") for name, shape in shapes.items()}
    return rs.plan_model(tensors, source, target, network="h100-2x8", in_flight=100, cast={"w1": "bf16"})


@pytest.mark.parametrize("way", ["json", "pickle", "copy"])
def test_a_plan_is_a_value(way: str) -> None:
    """Read back it is equal, shows the same, sends the same messages and moves the same."""
    ways = {
        "json": lambda plan: ModelPlan.from_json(plan.to_json()),
        "pickle": lambda plan: pickle.loads(pickle.dumps(plan)),
        "copy": copy.deepcopy,
    }
    for plan in (described_plan(), plan_between("qwen-moe", "megatron:tp=2,pp=2+1,ep=2", "vllm:tp=2,ep=on", 3)):
        again = ways[way](plan)
        assert again is not plan
        assert again == plan
        assert hash(again) == hash(plan)
        assert (str(again), again.digest, again.to_json()) == (str(plan), plan.digest, plan.to_json())
        tiles: dict[int, Any] = {}
        for device in plan.devices:
            first, second = (value.part_of(device) for value in (plan, again))
            assert all(np.array_equal(*columns) for columns in zip(first.sends[:5], second.sends[:5], strict=True))
            assert all(
                np.array_equal(*columns) for columns in zip(first.receives[:5], second.receives[:5], strict=True)
            )
            if device in plan.rules[0].mesh:
                buffers = plan.source_slots(device)[1].items()
                tiles[device] = {name: np.full(buffer.shape, device, buffer.dtype.name) for name, buffer in buffers}
        moved, expected = (rs.numpy.transfer(tiles, value) for value in (again, plan))
        assert moved.keys() == expected.keys()
        assert all(np.array_equal(moved[device][name], expected[device][name])
                   for device in expected for name in expected[device])  # fmt: skip


def test_plans_that_differ_are_not_equal() -> None:
    plan = described_plan()
    assert plan != dataclasses.replace(plan, in_flight=101)
    assert plan != dataclasses.replace(plan, network=None)
    assert plan != dataclasses.replace(plan, rules=(plan.rules[0], rs.Rules.preset("fsdp:7")))


def test_a_text_that_is_no_plan_is_refused() -> None:
    text = described_plan().to_json()
    record = json.loads(text)
    texts = {
        "{": "must be JSON text",
        "{}": "schema",
        json.dumps({**record, "digest": "0"}): "digest in the text is not what the plan gives",
        json.dumps({**record, "kinds": []}): "lacks a field or has one of another type",
        json.dumps({**record, "source": None}): "lacks a field or has one of another type",
    }
    for wrong, sentence in texts.items():
        with pytest.raises(rs.ReshardError, match=sentence) as error:
            ModelPlan.from_json(wrong)
        assert error.value.code == "bad-plan-text"


@pytest.mark.parametrize(
    ("family", "source", "target", "first"),
    [
        ("dense", "fsdp:8", "vllm:tp=4,dp=2,ep=off", 0),
        ("dense", "megatron:tp=2,pp=2+1", "vllm:tp=2,replicas=2", 4),
        ("qwen-moe", "megatron:tp=2,pp=2+1,ep=4", "vllm:tp=2,dp=2,ep=on", 3),
        ("deepseek", "hf", "fsdp:7", 1),
    ],
)
@pytest.mark.parametrize("levels", [(("switch", 4, 9.0), ("switch", 4, 1.0)), (("line", 4, 2.0), ("ring", 4, 1.0))])
def test_no_plan_of_a_model_goes_below_its_least_time(
    family: str, source: str, target: str, first: int, levels: Any
) -> None:
    """The cut is counted anew from the boxes, tensor by tensor; and no device brings in what it lacks any sooner."""
    made, stride = [], 1
    for link, size, bandwidth in levels:
        made.append(Level(stride, size, link, bandwidth, 0.0))
        stride *= size
    plan = plan_between(family, source, target, first, network=rs.Network(tuple(made)))
    cut = plan.time_cut
    assert cut is not None
    assert plan.network is not None
    chosen = set(cut.devices(plan.network).tolist())
    inside = chosen if cut.comes_in else set(range(16)) - chosen
    total = 0
    for name, tensor in zip(plan.names, plan.types, strict=True):
        boxes = []
        for rules in plan.rules:
            site = rules.ruled(name, tensor.shape).site
            boxes.append({device: list(site.box(device)) for device in site.devices.tolist()})
        total += time_bounds.crossing(dict.fromkeys(boxes[0], 0), *boxes, inside, tensor.dtype.itemsize)
    assert total == cut.crossing_bytes
    assert cut.bandwidth == time_bounds.capacity(plan.network.levels, chosen)
    assert plan.seconds is not None
    assert plan.lower_bound_seconds == cut.seconds <= plan.seconds
    alone = [plan.lower_bound_bytes_on(d) / time_bounds.capacity(plan.network.levels, {d}) for d in plan.devices]
    assert cut.seconds >= max(alone)
    assert f"times the least: {cut}" in str(plan)
    assert json.loads(plan.to_json())["lower_bound_seconds"] == cut.seconds


@pytest.mark.parametrize("name", ["source", "target", "same", "fused", "late"])
def test_casts_in_blocks_are_those_of_every_block_alone(name: str) -> None:
    """By the end that has whole blocks, fewer bytes where that is the source; scales arrive with their blocks."""
    plan = scaled_plans(8)[name]
    held, wanted = scaled_case(plan)
    counts: dict[int, int] = {}
    result = rs.numpy.transfer(held, plan, received_bytes=counts)
    for device, buffers in wanted.items():
        assert result[device].keys() == buffers.keys()
        for key, array in buffers.items():
            assert result[device][key].tobytes() == array.tobytes(), (device, key)
        assert counts[device] == plan.received_bytes_on(device) == plan.lower_bound_bytes_on(device)
    assert {scaled.at for scaled in plan.scaled} == {"target" if name in ("target", "late") else "source"}
    assert f"in blocks of 2 x 4 at the {plan.scaled[0].at}" in str(plan)
    assert ModelPlan.from_json(plan.to_json()) == plan


def test_blocks_that_nobody_has_whole_are_refused() -> None:
    mesh = rs.Mesh.of(x=4)
    rows, whole = rs.Rules.of(mesh, {}, ("x",)), rs.Rules.of(mesh, {}, "replicated")
    apart = rs.Rules.of(mesh, {"w": ("x",)}, "replicated")
    for ends, cast, sentence in [
        ((rows, rows), "f8e4m3fn/8x8", "cut inside blocks of .* at both ends"),
        ((rows, apart), "f8e4m3fn/8x8", "at both ends"),
        ((rows, whole), "f8e4m3fn/8x", "must be as f8e4m3fn/128x128"),
        ((rows, whole), "f16/8x8", "floats without infinities"),
    ]:
        with pytest.raises(rs.ReshardError, match=sentence) as error:
            rs.plan_model({"w": ((16, 16), "bf16")}, *ends, cast={"w": cast})
        assert error.value.code == "bad-argument"
    assert not rs.plan_model({"w": ((16, 16), "bf16")}, rows, whole, cast={"w": "f8e4m3fn/8"}).scaled  # of one dim
    with pytest.raises(rs.ReshardError, match="must be where its blocks are: device 0"):
        rs.plan_model({"w": ((64, 16), "bf16")}, whole, rs.Rules.of(mesh, {"w": "replicated"}, ("x",)),
                      cast={"w": "f8e4m3fn/8x8"})  # fmt: skip
