"""What devices hold of small models under each system, by slicing whole arrays; written apart from the package.

The layouts are those that the systems document; `whole` are arrays by published name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import reshard as rs
from reshard.dtypes import dtype_named, value_dtype
from reshard.models import ModelPlan, ModelShape
from reshard.models.stores import views

Array = NDArray[Any]
Held = dict[int, dict[str, Array]]

SMALL = {
    "dense": ModelShape("small-dense", "dense", 16, 3, 8, 2, 4, 24, 100),
    "qwen-moe": ModelShape("small-qwen", "qwen-moe", 16, 3, 8, 2, 4, 0, 70, 8, 8),
    "mixtral": ModelShape("small-mixtral", "mixtral", 16, 3, 4, 4, 4, 0, 64, 4, 16),
    "deepseek": ModelShape(
        "small-deepseek",
        "deepseek",
        16,
        3,
        4,
        4,
        4,
        24,
        50,
        8,
        8,
        dense_layers=1,
        q_rank=6,
        kv_rank=5,
        rope_dim=2,
    ),
}
"""Each family, small."""
STORED = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float32": np.uint32}


def whole_arrays(model: ModelShape, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(0, np.iinfo(STORED[tensor.dtype.name]).max, tensor.shape, STORED[tensor.dtype.name])
        for name, tensor in model.tensors().items()
    }


def chunk(array: Array, parts: int, number: int, dim: int) -> Array:
    """Torch's: chunks of the ceiling, the last ones short or empty."""
    size = array.shape[dim]
    length = -(-size // parts)
    low, high = min(number * length, size), min((number + 1) * length, size)
    return array[(slice(None),) * dim + (slice(low, high),)]


def padded_chunk(array: Array, parts: int, number: int, multiple: int) -> Array:
    room = -(-array.shape[0] // multiple) * multiple
    padded = np.zeros((room, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return chunk(padded, parts, number, 0)


def words_of(name: str) -> tuple[int, str]:
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
    return (int(match[1]), match[2]) if match else (-1, name)


def fsdp(model: ModelShape, whole: dict[str, Array], devices: int) -> Held:
    return {
        device: {name: chunk(array, devices, device, 0) for name, array in whole.items()} for device in range(devices)
    }


def heads_of(array: Array, heads: int, tp: int, rank: int) -> Array:
    """The rows of a rank: whole heads, of which neighbours hold the same one where there are too few."""
    rows = len(array) // heads
    if heads >= tp:
        return array[rank * rows * heads // tp : (rank + 1) * rows * heads // tp]
    head = rank // (tp // heads)
    return array[head * rows : (head + 1) * rows]


def experts_of(whole: dict[str, Array], layer: int, suffix: str) -> list[tuple[Array, Array, Array]]:
    """Gate, up and down of the experts of a layer, of weights or of their scales."""
    result = []
    while True:
        number = len(result)
        for block, words in (
            ("mlp", ("gate_proj", "up_proj", "down_proj")),
            ("block_sparse_moe", ("w1", "w3", "w2")),
        ):
            names = [f"model.layers.{layer}.{block}.experts.{number}.{word}.{suffix}" for word in words]
            if names[0] in whole:
                result.append(tuple(whole[name] for name in names))
                break
        else:
            return result  # type: ignore[return-value]


def vllm(model: ModelShape, whole: dict[str, Array], tp: int, dp: int, by_expert: bool, replicas: int = 1) -> Held:
    held: Held = {}
    for device in range(replicas * dp * tp):
        rank, place = device % tp, device % (dp * tp)
        buffers: dict[str, Array] = {}

        def rows(array: Array, rank: int = rank) -> Array:
            return chunk(array, tp, rank, 0)

        def columns(array: Array, rank: int = rank) -> Array:
            return chunk(array, tp, rank, 1)

        for name, array in whole.items():
            layer, rest = words_of(name)
            base = f"model.layers.{layer}."
            suffix = rest.rpartition(".")[2]
            if ".experts." in rest:
                continue
            if rest.startswith("self_attn.q_proj"):
                parts = [
                    heads_of(whole[base + f"self_attn.{word}_proj.weight"], count, tp, rank)
                    for word, count in (("q", model.heads), ("k", model.kv_heads), ("v", model.kv_heads))
                ]
                buffers[base + "self_attn.qkv_proj.weight"] = np.concatenate(parts)
            elif re.fullmatch(r"self_attn\.[kv]_proj\.weight", rest):
                continue
            elif rest.startswith("self_attn.q_a_proj"):
                other = whole[base + f"self_attn.kv_a_proj_with_mqa.{suffix}"]
                buffers[base + f"self_attn.fused_qkv_a_proj.{suffix}"] = np.concatenate([array, other])
            elif rest.startswith("self_attn.kv_a_proj_with_mqa"):
                continue
            elif re.match(r"self_attn\.(q|kv)_b_proj", rest):
                buffers[name] = rows(array)
            elif rest.startswith("self_attn.o_proj") or re.match(r"mlp\.(shared_experts\.)?down_proj", rest):
                buffers[name] = columns(array)
            elif re.match(r"mlp\.(shared_experts\.)?gate_proj", rest):
                up = whole[name.replace("gate_proj", "up_proj")]
                buffers[name.replace("gate_proj", "gate_up_proj")] = np.concatenate([rows(array), rows(up)])
            elif re.match(r"mlp\.(shared_experts\.)?up_proj", rest):
                continue
            elif rest in ("model.embed_tokens.weight", "lm_head.weight"):
                buffers[name] = padded_chunk(array, tp, rank, 64)
            else:
                buffers[name] = array
        for layer in range(model.layers):
            for suffix in ("weight", "weight_scale_inv"):
                experts = experts_of(whole, layer, suffix)
                if not experts:
                    continue
                ranks = tp * dp
                if by_expert:
                    each = [len(experts) // ranks + (number < len(experts) % ranks) for number in range(ranks)]
                    mine = experts[sum(each[:place]) : sum(each[: place + 1])]
                else:
                    mine = [
                        (chunk(gate, ranks, place, 0), chunk(up, ranks, place, 0), chunk(down, ranks, place, 1))
                        for gate, up, down in experts
                    ]
                base = f"model.layers.{layer}.mlp.experts."
                buffers[base + f"w13_{suffix}"] = np.stack([np.concatenate([gate, up]) for gate, up, _ in mine])
                buffers[base + f"w2_{suffix}"] = np.stack([down for _, _, down in mine])
        held[device] = buffers
    return held


def megatron(
    model: ModelShape, whole: dict[str, Array], tp: int, stages: list[int], ep: int, dp: int, etp: int = 1
) -> Held:
    held: Held = {}
    per_stage = tp * dp
    for device in range(per_stage * len(stages)):
        stage, inside = divmod(device, per_stage)
        rank, expert_rank, expert_tp = inside % tp, inside // etp % ep, inside % etp
        layers = range(sum(stages[:stage]), sum(stages[: stage + 1]))
        buffers: dict[str, Array] = {}
        for name, array in whole.items():
            layer, rest = words_of(name)
            base, local = f"model.layers.{layer}.", f"decoder.layers.{layer}."
            suffix = rest.rpartition(".")[2]
            if name == "model.embed_tokens.weight" and stage == 0:
                buffers["embedding.word_embeddings.weight"] = padded_chunk(array, tp, rank, 128 * tp)
            if name == "lm_head.weight" and stage == len(stages) - 1:
                buffers["output_layer.weight"] = padded_chunk(array, tp, rank, 128 * tp)
            if name == "model.norm.weight" and stage == len(stages) - 1:
                buffers["decoder.final_layernorm.weight"] = array
            if layer not in layers or re.match(r"self_attn\.[kv]_proj", rest) or ".up_proj." in rest or ".w3." in rest:
                continue
            expert = re.search(r"experts\.(\d+)\.(\w+)\.", rest)
            if expert and "shared" not in rest:
                number = int(expert[1])
                if number * ep // model.experts != expert_rank:
                    continue
                if expert[2] in ("gate_proj", "w1"):
                    up = whole[name.replace("gate_proj", "up_proj").replace("w1.", "w3.")]
                    parts = [chunk(array, etp, expert_tp, 0), chunk(up, etp, expert_tp, 0)]
                    buffers[local + f"mlp.experts.linear_fc1.{suffix}{number}"] = np.concatenate(parts)
                else:
                    buffers[local + f"mlp.experts.linear_fc2.{suffix}{number}"] = chunk(array, etp, expert_tp, 1)
            elif rest == "self_attn.q_proj.weight":
                others = [whole[base + f"self_attn.{word}_proj.weight"] for word in "kv"]
                groups = model.kv_heads
                rows = [len(part) // groups for part in (array, *others)]
                fused = [
                    part[group * length : (group + 1) * length]
                    for group in range(groups)
                    for part, length in zip((array, *others), rows, strict=True)
                ]
                if tp <= groups:
                    mine = fused[3 * rank * groups // tp : 3 * (rank + 1) * groups // tp]
                else:
                    mine = [
                        heads_of(part, count, tp, rank)
                        for part, count in zip((array, *others), (model.heads, groups, groups), strict=True)
                    ]
                buffers[local + "self_attention.linear_qkv.weight"] = np.concatenate(mine)
            elif match := re.match(r"self_attn\.(q|kv)_b_proj", rest):
                buffers[local + f"self_attention.linear_{match[1]}_up_proj.{suffix}"] = chunk(array, tp, rank, 0)
            elif rest.startswith("self_attn.o_proj"):
                buffers[local + f"self_attention.linear_proj.{suffix}"] = chunk(array, tp, rank, 1)
            elif match := re.match(r"mlp\.(shared_experts\.)?(gate|down)_proj", rest):
                where = local + "mlp." + (match[1] or "")
                if match[2] == "down":
                    buffers[where + f"linear_fc2.{suffix}"] = chunk(array, tp, rank, 1)
                else:
                    up = whole[name.replace("gate_proj", "up_proj")]
                    parts = [chunk(array, tp, rank, 0), chunk(up, tp, rank, 0)]
                    buffers[where + f"linear_fc1.{suffix}"] = np.concatenate(parts)
            else:
                buffers[name] = array
        held[device] = buffers
    return held


def transformers(model: ModelShape, whole: dict[str, Array], tp: int) -> Held:
    held: Held = {}
    for rank in range(tp):
        buffers: dict[str, Array] = {}
        for name, array in whole.items():
            rest = words_of(name)[1]
            if ".experts." in rest and not rest.endswith("_scale_inv"):
                continue
            if match := re.fullmatch(r"self_attn\.([qkv])_proj\.weight", rest):
                buffers[name] = heads_of(array, model.heads if match[1] == "q" else model.kv_heads, tp, rank)
            elif rest == "self_attn.o_proj.weight" and model.family != "deepseek":
                buffers[name] = chunk(array, tp, rank, 1)
            elif re.fullmatch(r"mlp\.(shared_experts\.)?(gate|up)_proj\.weight|lm_head\.weight", rest):
                buffers[name] = chunk(array, tp, rank, 0)
            elif re.fullmatch(r"mlp\.(shared_experts\.)?down_proj\.weight", rest):
                buffers[name] = chunk(array, tp, rank, 1)
            else:
                buffers[name] = array
        for layer in range(model.layers):
            experts = experts_of(whole, layer, "weight")
            if experts:
                base = f"model.layers.{layer}.mlp.experts."
                buffers[base + "gate_up_proj"] = np.stack(
                    [np.concatenate([chunk(gate, tp, rank, 0), chunk(up, tp, rank, 0)]) for gate, up, _ in experts]
                )
                buffers[base + "down_proj"] = np.stack([chunk(down, tp, rank, 1) for _, _, down in experts])
        held[rank] = buffers
    return held


SYSTEMS: dict[str, Callable[[ModelShape, dict[str, Array]], Held]] = {
    "hf": lambda model, whole: {0: dict(whole)},
    "hf:tp=4": lambda model, whole: transformers(model, whole, 4),
    "fsdp:8": lambda model, whole: fsdp(model, whole, 8),
    "fsdp:6": lambda model, whole: fsdp(model, whole, 6),
    "megatron:tp=2,pp=2+1": lambda model, whole: megatron(model, whole, 2, [2, 1], 1, 1),
    "megatron:tp=4,pp=3,dp=2": lambda model, whole: megatron(model, whole, 4, [1, 1, 1], 1, 2),
    "vllm:tp=4,dp=2,ep=off": lambda model, whole: vllm(model, whole, 4, 2, False),
    "vllm:tp=2,replicas=2": lambda model, whole: vllm(model, whole, 2, 1, False, 2),
}
"""Per system what its devices hold; those of models with experts besides."""
WITH_EXPERTS: dict[str, Callable[[ModelShape, dict[str, Array]], Held]] = {
    "megatron:tp=2,pp=2+1,ep=4": lambda model, whole: megatron(model, whole, 2, [2, 1], 4, 2),
    "megatron:tp=2,pp=1,ep=2,etp=2,dp=4": lambda model, whole: megatron(model, whole, 2, [3], 2, 4, 2),
    "vllm:tp=2,dp=2,ep=on": lambda model, whole: vllm(model, whole, 2, 2, True),
    "vllm:tp=3,ep=on": lambda model, whole: vllm(model, whole, 3, 1, True),
}


def scaled_plans(devices: int) -> dict[str, ModelPlan]:
    """Plans that cast in blocks of 2 x 4: at the source, at the target, from a stack of fused and turned matrices."""
    rows, columns, whole = ("x",), (None, "x"), (None, None)
    mesh = rs.Mesh.of(x=devices)
    half = rs.Mesh.of({"x": devices // 2}, device_ids=range(devices // 2, devices))
    tensors = {"w": ((4 * devices, 10), "bf16"), "v": ((6, 4 * devices), "f32"), "norm": ((devices,), "bf16")}
    cast = {"[wv]": "f8e4m3fn/2x4"}
    experts = {f"e.{n}.{part}": ((2 * devices, 12), "bf16") for n in range(2) for part in ("gate", "up")}
    fused = {"name": "w13", "stack": r"\1", "concat": {"key": r"\2", "order": ["gate", "up"]}, "transpose": True}
    scale = fused | {"name": "w13_scale", "transpose": False}
    served = rs.Rules.of(half, {
        r"e\.(\d+)\.(gate|up)": {"spec": '[{"x"}, {}]', "store": fused},
        r"e\.(\d+)\.(gate|up)_scale_inv": {"spec": '[{"x"}, {}]', "store": scale},
    })  # fmt: skip
    trained = rs.Rules.of(mesh, {r"e\.(\d+)\.(gate|up)": {"spec": '[{"x"}, {}]', "store": fused | {"name": "fc1"}}})
    narrow = rs.Rules.of(mesh, {"w": rows, "v": rows, "norm": rows})
    wide = rs.Rules.of(half, {"w.*": rows, "v.*": whole, "norm": "replicated"})
    return {
        "source": rs.plan_model(tensors, rs.Rules.of(mesh, {"w": rows, "v": columns, "norm": rows}), wide, cast=cast),
        "target": rs.plan_model(tensors, narrow, wide, cast={"v": "f8e4m3fn/2x4"}),
        "same": rs.plan_model({"w": tensors["w"]}, narrow, rs.Rules.of(mesh, {"w": columns, "w_s.*": "replicated"}),
                              cast={"w": "f8e4m3fn/2x4"}),
        "fused": rs.plan_model(experts, trained, served, cast={"e.*": "f8e4m3fn/2x4"}),
        "late": rs.plan_model({"w": ((devices, 8), "f32")}, narrow, rs.Rules.of(half, {"w.*": rows}),
                              cast={"w": "f8e4m3fn/2x4"}),
    }  # fmt: skip


def in_blocks(values: NDArray[Any], block: tuple[int, int]) -> tuple[NDArray[Any], NDArray[Any]]:
    """A matrix as 8 bits with a scale per block, block by block."""
    elements = np.zeros(values.shape, value_dtype(dtype_named("f8e4m3fn")))
    scales = np.zeros([-(-size // part) for size, part in zip(values.shape, block, strict=True)], np.float32)
    for row, column in np.ndindex(scales.shape):
        place = tuple(slice(n * part, (n + 1) * part) for n, part in zip((row, column), block, strict=True))
        part = values[place].astype(np.float32)
        largest = np.abs(part).max()
        scales[row, column] = largest / np.float32(448) if largest else 1
        elements[place] = np.clip(part / scales[row, column], -448, 448).astype(elements.dtype)
    return elements, scales


def scaled_case(plan: ModelPlan) -> tuple[dict[int, Any], dict[int, Any]]:
    """What devices hand in for one of `scaled_plans`, and what must come of it, by device and buffer."""
    rng = np.random.default_rng(3)
    scaled = {tensor.name: tensor for tensor in plan.scaled}
    before, after = {}, {}
    for name, tensor, dtype in zip(plan.names, plan.types, plan.dtypes, strict=True):
        if name.removesuffix("_scale_inv") in scaled and name not in scaled:
            continue
        given = scaled[name].dtype if name in scaled else tensor.dtype
        whole = (rng.standard_normal(tensor.shape) * 3).astype(value_dtype(given))
        whole[:2] = 0
        before[name] = after[name] = whole
        if name in scaled:
            after[name], after[f"{name}_scale_inv"] = in_blocks(whole, (2, 4))
        assert dtype == tensor.dtype
    ends: list[dict[int, Any]] = [{}, {}]
    for end, wholes in enumerate((before, after)):
        for device in plan.rules[end].mesh.devices:
            slots, buffers = plan.wanted_slots(device) if end else plan.handed_slots(device)
            arrays = {name: np.zeros(buffer.shape, value_dtype(buffer.dtype)) for name, buffer in buffers.items()}
            for name, parts in slots.items():
                for slot in parts:
                    for box, view in views((slot,), arrays, slot.box):
                        view[...] = wholes[name][tuple(slice(*pair) for pair in box)]
            ends[end][device] = arrays
    return ends[0], ends[1]
