"""Rules say of every name what they say in words, and refuse whatever could be read in two ways."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard as rs
from reshard.box import Box
from reshard.models import MODELS

TRANSFORMERS = json.loads((Path(__file__).parent / "data" / "tp_plans.json").read_text())
PLANS = TRANSFORMERS["plans"]
MESH = rs.Mesh.of(pp=3, data=2, model=4)


def load(text: str, folder: Path) -> rs.Rules:
    path = folder / "rules.yaml"
    path.write_text(text)
    return rs.Rules.load(path)


RULES = r"""
mesh: {pp: 3, data: 2, model: 4}
meshes: {flat: {pp: 3, both: 8}}
rules:
  - {match: 'embed', spec: colwise, on: {pp: [0, 2]}, pad: 16}
  - {match: 'layers\.(\d+)\.experts\.(\d+)\..*', mesh: flat,
     on: {pp: '\1', both: '\2', cuts: {pp: [1, 4], both: [2, 4, 6, 8, 10, 12, 14]}}}
  - {match: 'layers\.(\d+)\.(q|k|v)\.weight', spec: '[{"model"}, {}]', on: {pp: '\1', cuts: [1, 4]},
     store: {name: 'layers.\1.qkv', concat: {key: '\2', order: [q, k, v]}}}
  - {match: '*.down.weight', spec: "P(None, ('data', 'model'))"}
  - {match: 'glob:norm.*', spec: rowwise}
default: replicated
"""


@pytest.mark.parametrize(
    ("name", "shape", "spec", "devices"),
    [
        ("embed", (20, 4), '[{"model"}, {}]', [*range(8), *range(16, 24)]),
        ("layers.0.q.weight", (8, 4), '[{"model"}, {}]', range(8)),
        ("layers.1.v.weight", (8, 4), '[{"model"}, {}]', range(8, 16)),
        ("layers.9.k.weight", (8, 4), '[{"model"}, {}]', range(16, 24)),
        ("layers.3.experts.0.up", (8, 4), "[{}, {}]", [8]),
        ("layers.4.experts.15.up", (8, 4), "[{}, {}]", [23]),
        ("layers.7.down.weight", (8, 16), '[{}, {"data", "model"}]', range(24)),
        ("norm.weight", (8,), "[{}]", range(24)),
        ("norm.b.c", (8, 4), '[{}, {"model"}]', range(24)),
        ("whatever", (3, 3, 3), "[{}, {}, {}]", range(24)),
    ],
)
def test_the_first_rule_that_matches_decides(
    name: str, shape: tuple[int, ...], spec: str, devices: Any, tmp_path: Path
) -> None:
    sharding = load(RULES, tmp_path).sharding(name, shape)
    assert sharding.text() == spec
    assert list(sharding.mesh.devices) == list(devices)


def test_yaml_and_python_say_the_same(tmp_path: Path) -> None:
    written = {r".*\.up": {"spec": "colwise", "heads": 4}, "*.down": (None, "model"), "norm": '[{"data"}]'}
    ours = rs.Rules.of(rs.Mesh.of(data=2, model=4), written, default="replicated", pads={"norm": 8})
    theirs = load(
        """
mesh: {data: 2, model: 4}
rules:
  - {match: '.*\\.up', spec: colwise, heads: 4}
  - {match: '*.down', spec: '[{}, {"model"}]'}
  - {match: norm, spec: '[{"data"}]'}
default: replicated
pad: {norm: 8}
""",
        tmp_path,
    )
    for name, shape in (("a.up", (8, 3)), ("a.down", (3, 8)), ("norm", (5,)), ("else", (2, 2))):
        first, second = ours.ruled(name, shape).site, theirs.ruled(name, shape).site
        assert first.sharding == second.sharding
        assert first.padded == second.padded


@pytest.mark.parametrize(
    ("heads", "devices", "rows"),
    [  # per device, the rows that it holds of 24
        (8, 4, [(0, 6), (6, 12), (12, 18), (18, 24)]),
        (4, 8, [(0, 6), (0, 6), (6, 12), (6, 12), (12, 18), (12, 18), (18, 24), (18, 24)]),
        (3, 2, [(0, 16), (16, 24)]),
        (1, 3, [(0, 24), (0, 24), (0, 24)]),
    ],
)
def test_heads_stay_whole(heads: int, devices: int, rows: list[tuple[int, int]]) -> None:
    rules = rs.Rules.of(rs.Mesh.of(tp=devices), {"k": {"spec": "colwise", "heads": heads}})
    site = rules.ruled("k", (24, 2)).site
    assert [site.box(device)[0] for device in range(devices)] == rows


@pytest.mark.parametrize("mesh", ["x=2,y=4", "Mesh('x': 2, 'y': 4)", "DeviceMesh((x=2, y=4), 'cpu', stride=(4, 1))"])
def test_a_mesh_in_any_of_its_text_forms(mesh: str, tmp_path: Path) -> None:
    rules = load(f"mesh: \"{mesh}\"\nrules: [{{match: '.*', spec: \"P(None, 'y')\"}}]\n", tmp_path)
    assert rules.sharding("a", (4, 8)) == rs.Sharding.of(rs.Mesh.of(x=2, y=4), None, "y")


REFUSED = {
    "mesh: {x: 2}\nmesh: {x: 3}": ("syntax", "has the key 'mesh' twice"),
    "mesh: &m {x: 2}\nmeshes: {b: *m}": ("syntax", "has an alias"),
    "mesh: {1: 2}": ("syntax", "has the key 1, which is no text"),
    "mesh: {x: 2}\nrules: [{match: a, spec: [{x}]}]": ("syntax", "quote it"),
    "mesh: {x: 2}\nrules: [{match: '(', spec: rep}]": ("syntax", "is no regular expression"),
    "mesh: {x: 2}\nrules: [{match: a, spec: diagonal}]\n": ("bad-argument", "style 'diagonal' of rule 'a' is none of"),
    "mesh: {x: 2}\nrules: [{match: a, spec: moe_tp_experts}]\n": ("bad-argument", "is of modules and cuts no weights"),
    "mesh: {x: 2}\nrules: [{match: a, spec: keep_full_weight}]\n": ("cannot-express", "is of a plan for FSDP"),
    "mesh: {x: 2}\nrules: [{match: a, spec: packed_colwise, heads: 2}]\n": ("cannot-express", "in a dim of heads"),
    "mesh: {x: 2}\nrules: [{match: a, spec: packed_colwise, pad: 8}]\n": ("cannot-express", "a tensor that is padded"),
    "mesh: {x: 2}\nrules: [{match: a, colour: red}]": ("syntax", "has a field 'colour'"),
    "mesh: {x: 2}\nrules: [{match: a, on: {y: 0}}]": ("unknown-axis", "on axis 'y'"),
    "mesh: {x: 2}\nrules: [{match: a, on: {x: 2}}]": ("bad-argument", "number 2 of axis x, which has 2"),
    "mesh: {x: 2}\nrules: [{match: a, on: {x: 0}, spec: \"P('x')\"}]": ("bad-argument", "both is on a slice of x"),
    "mesh: {x: 2}\nrules: [{match: a, on: {x: '\\1'}}]": ("bad-argument", "does not capture"),
    "mesh: {x: 2}\nrules: [{match: a, mesh: b}]": ("unknown-mesh", "on mesh 'b'"),
    "mesh: {x: 2}\nmeshes: {b: {y: 3}}\nrules: [{match: a, mesh: b}]": ("different-meshes", "not on the devices"),
    "mesh: {x: 2}\nrules: [{match: a, heads: 3, spec: \"P('x')\"}]": ("bad-argument", "3 heads in a dim of 4"),
    "mesh: {x: 2}\nrules: [{match: b, spec: rep}]": ("bad-argument", "no rule matches 'a'"),
    "!!python/object/apply:os.system ['true']": ("syntax", "is no YAML"),
    "rules: []": ("syntax", "must give its mesh"),
    "[1, 2": ("syntax", "is no YAML in line 1"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_could_be_read_in_two_ways_is_refused(text: str, tmp_path: Path) -> None:
    code, sentence = REFUSED[text]
    with pytest.raises(rs.ReshardError, match=re.escape(sentence)) as refused:
        load(text, tmp_path).sharding("a", (4, 2))
    assert refused.value.code == code


PRESETS = {
    "pytorch:8": "must be one of hf, fsdp, megatron, vllm, tp_plan",
    "vllm:tp=0": "must have a size from 1 on for tp",
    "vllm:ep=maybe": "must have ep=on or ep=off",
    "vllm:tp=2,tp=2": "has 'tp=2'",
    "megatron:pp=5": "cuts 94 layers into 5 stages; say how many each has",
    "megatron:pp=24+24": "have 48 layers; the model has 94",
    "megatron:ep=3": "cuts 128 experts over 3 devices",
    "vllm:tp=16,dp=16,ep=on": "has 256 devices for 128 experts",
    "tp_plan:/nowhere.json,tp=2": "could not be read",
}


@pytest.mark.parametrize("system", PRESETS)
def test_a_system_that_cannot_be_is_refused(system: str) -> None:
    with pytest.raises(rs.ReshardError, match=re.escape(PRESETS[system])):
        rs.Rules.preset(system, "qwen3-235b-a22b")


@pytest.mark.parametrize(
    ("plan", "model"),
    [
        ("llama", "llama-3-8b"),
        ("qwen3_moe", "qwen3-30b-a3b"),
        ("mixtral", "mixtral-8x7b"),
        ("deepseek_v3", "deepseek-v3"),
    ],
)
def test_tensor_parallelism_is_that_of_transformers(plan: str, model: str) -> None:
    """By its own plan: what a module's style cuts, the parts of a packed tensor each by itself, and nothing else."""
    cuts = {"colwise": 0, "packed_colwise": 0, "rowwise": 1}
    rules = rs.Rules.preset("hf:tp=4", model)
    for name, tensor in MODELS[model].tensors().items():
        if re.search(r"\.([3-9]|\d\d+)\.", name) or name == "lm_head.weight":
            continue
        module = name.removeprefix("model.").removesuffix(".weight").replace("block_sparse_moe", "mlp")
        module = re.sub(r"experts\.\d+\.(gate_proj|up_proj|w1|w3)$", "experts.gate_up_proj", module)
        module = re.sub(r"experts\.\d+\.(down_proj|w2)$", "experts.down_proj", module)
        style = PLANS[plan].get(re.sub(r"\d+", "*", module, count=1))
        wanted = cuts.get(style)
        sharding = rules.sharding(name, tensor.shape)
        assert [bool(dim.axes) for dim in sharding.dims] == [dim == wanted for dim in range(len(tensor.shape))], name


def test_a_plan_of_transformers_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"base_model_tp_plan": PLANS["llama"]}))
    rules = rs.Rules.preset(f"tp_plan:{path},tp=4")
    assert rules.sharding("model.layers.3.self_attn.o_proj.weight", (8, 8)).text() == '[{}, {"tp"}]'
    assert rules.sharding("model.layers.3.self_attn.q_proj.bias", (8,)).text() == '[{"tp"}]'
    assert rules.sharding("model.norm.weight", (8,)).text() == "[{}]"


def rows_of(placement: str, shape: list[int], rank: int, ranks: int) -> list[list[int]]:
    """Per dim the places that a rank has, as torch cuts: in chunks of the ceiling, a strided shard part by part."""
    rows = [list(range(size)) for size in shape]
    found = re.search(r"dim=(-?\d+)", placement)
    if found is not None:
        dim, parts = int(found[1]) % len(shape), re.search(r"(?:split_factor|sf)=(\d+)", placement)
        length = shape[dim] // (int(parts[1]) if parts else 1)
        runs = [rows[dim][start : start + length] for start in range(0, shape[dim], length)]
        chunk = -(-length // ranks)
        rows[dim] = [place for run in runs for place in run[rank * chunk : (rank + 1) * chunk]]
    return rows


@pytest.mark.parametrize("name", TRANSFORMERS["applied"])
def test_a_plan_cuts_what_transformers_cuts(name: str) -> None:
    """Of every parameter of a model on 4 ranks, by the placements that transformers gives it."""
    applied = TRANSFORMERS["applied"][name]
    rules = rs.Rules.preset("tp_plan:tp=4", applied["plan"])
    for parameter, (shape, placement) in applied["parameters"].items():
        site = rules.ruled(parameter, tuple(shape)).site
        for rank in range(4):
            tile = site.tile(rank)
            boxes = [tile] if isinstance(tile, Box) else tile.boxes()
            held = [sorted({place for run in runs for place in range(*run)}) for runs in zip(*boxes, strict=True)]
            assert held == rows_of(placement, shape, rank, 4), (parameter, rank)
            assert sum(box.size for box in boxes) == math.prod(map(len, held)), (parameter, rank)


def test_every_style_of_a_plan_is_known() -> None:
    """Each that some configuration of transformers says; what is of modules alone cuts nothing."""
    plan = {f"layers.*.m{number}.w": style for number, style in enumerate(TRANSFORMERS["styles"])}
    rules = rs.Rules.preset("tp_plan:tp=2", plan)
    for number, style in enumerate(plan.values()):
        sharding = rules.sharding(f"model.layers.0.m{number}.w", (4, 4))
        is_cut = any(dim.axes for dim in sharding.dims)
        assert is_cut == ("row" in style or "col" in style or style == "grouped_gemm"), style
    for style, code in (("diagonal", "bad-argument"), ("keep_full_weight", "cannot-express")):
        with pytest.raises(rs.ReshardError, match=f"style '{style}' of plan 'layers") as refused:
            rs.Rules.preset("tp_plan:tp=2", {"layers.*.w": style})
        assert refused.value.code == code
    with pytest.raises(rs.ReshardError, match="must name a file"):
        rs.Rules.preset("tp_plan:tp=2")


def test_a_parameter_goes_before_its_module() -> None:
    rules = rs.Rules.preset("tp_plan:tp=2", {"layers.*.experts": "grouped_gemm", "layers.*.experts.bias": "replicate"})
    assert rules.sharding("layers.0.experts.bias", (4,)).text() == "[{}]"
    assert rules.sharding("layers.0.experts.up", (4, 2)).text() == '[{"tp"}, {}]'


@pytest.mark.parametrize(
    ("stores", "sentence"),
    [
        ({"a": {"name": "w"}, "b": {"name": "w"}}, "would overlap in buffer 'w'"),
        ({"a": {"name": "w", "stack": "0"}, "b": {"name": "w"}}, "are kept in different ways"),
        ({"a": {"name": "w", "concat": {"key": "a", "order": ["a", "b"]}}}, "lacks its part 'b'"),
        ({"a": {"name": "w", "concat": {"key": "a", "order": ["a"], "dim": 5}}}, "has no dim 5"),
        ({"a": {"name": "w", "transpose": [0]}}, "does not fit a tensor of 2 dims"),
    ],
)
def test_stores_that_do_not_fit_together_are_refused(stores: dict[str, Any], sentence: str) -> None:
    mesh = rs.Mesh.of(x=2)
    rules = rs.Rules.of(mesh, {name: {"store": store} for name, store in stores.items()})
    tensors = dict.fromkeys(stores, ((2, 4), "f32"))
    plan = rs.plan_model(tensors, rs.Rules.of(mesh, {}, "replicated"), rules)
    with pytest.raises(rs.ReshardError, match=re.escape(sentence)):
        plan.target_slots(0)


def test_what_is_handed_in_wrongly_is_refused() -> None:
    mesh = rs.Mesh.of(x=2)
    rules = rs.Rules.of(mesh, {}, ("x",))
    plan = rs.plan_model({"w": ((4,), "f32")}, rules, rules)
    tile = np.zeros(2, np.float32)
    cases: list[tuple[Any, str]] = [
        ({0: {"w": tile}}, "the buffers of device 1 are missing"),
        ({0: {"w": tile}, 1: {}}, "buffer 'w' of device 1 is missing"),
        ({0: {"w": tile}, 1: {"w": np.zeros(3, np.float32)}}, "it must be float32 of shape (2,)"),
    ]
    for tiles, sentence in cases:
        with pytest.raises(rs.ReshardError, match=re.escape(sentence)):
            rs.numpy.transfer(tiles, plan)
    with pytest.raises(rs.ReshardError, match="cast names 'v', no tensor; the nearest are 'w'"):
        rs.plan_model({"w": ((4,), "f32")}, rules, rules, cast={"v": "bf16"})
    small = rs.plan_model({"w": ((4,), "f32")}, rules, rs.Rules.of(mesh, {}, "replicated"), in_flight=8)
    with pytest.raises(rs.ReshardError, match=r"in_flight is too small .*; 16 bytes would do"):
        small.part_of(0)


def test_fsdp_keeps_scalars_whole_and_a_rule_that_does_not_fit_names_its_tensor() -> None:
    rules = rs.Rules.preset("fsdp:3")
    texts = [rules.sharding("step", shape).text() for shape in [(), (5,), (7, 3, 2)]]
    assert texts == ["[]", '[{"dp"}]', '[{"dp"}, {}, {}]']
    with pytest.raises(rs.ReshardError, match=r"optimizer\.step"):
        rs.Rules.of(rs.Mesh.of(dp=3), {".*": ("dp",)}).sharding("optimizer.step", ())
