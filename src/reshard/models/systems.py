"""The rules of systems that many people train and serve with, from their names and sizes.

    hf                            whole tensors on one device, as published files hold them
    hf:tp=8                       transformers' tensor parallelism, with experts stacked and gate and up packed
    fsdp:8                        dim 0 of every tensor in chunks; a scalar whole
    megatron:tp=2,pp=4,ep=16      stages, or with unequal ones pp=24+23+23+24; also etp=, dp=
    vllm:tp=8,dp=8,ep=on          experts over all of tp x dp, whole under ep=on and cut under ep=off; also replicas=
    tp_plan:config.json,tp=8      the globs and styles of a file of transformers; or tp_plan:tp=8 and, for the model,
                                  the plan itself, as model.tp_plan has it

Devices are numbered as each system numbers its ranks: tensor parallelism fastest, stages slowest.
Names of buffers are the system's, with the layer and the expert numbered through the whole model.

By hand: 4 stages of 2 ranks; layer 2 of 4 is on stage 2.

>>> rules = system_rules("megatron:tp=2,pp=4", "llama-3-8b", 0)
>>> rules.mesh.sizes
{'pp': 4, 'dp': 1, 'tp': 2}
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from math import gcd
from pathlib import Path
from typing import Any

from reshard.checks import shown
from reshard.errors import ReshardError, refusing
from reshard.mesh import Mesh
from reshard.models.catalogue import ModelShape, model_named
from reshard.models.rule import Rule, RuleList, Slice, StoreRule
from reshard.models.specs import OF_MODULES, check_style

SYSTEMS: dict[str, set[str]] = {
    "hf": {"tp"},
    "fsdp": {""},
    "megatron": {"tp", "pp", "ep", "etp", "dp"},
    "vllm": {"tp", "dp", "ep", "replicas"},
    "tp_plan": {"", "tp"},
}
"""By name, the sizes that each takes; "" is one without a name."""
LAYER = r"model\.layers\.(\d+)\."
EXPERT = LAYER + r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\."
IN_MODEL = r"(?:(?:model|language_model|text_model|transformer|backbone)\.)*"
"""The modules that hold the one that a plan of transformers names things in."""
REST = r"(weight\w*)"
"""A weight, and its scales."""


def system_rules(system: str, model: Any, first_device: int) -> RuleList:
    """The rules of a system for a model.

    Raises:
        ReshardError: `bad-argument`, `bad-file`.
    """
    name, _, text = str(system).partition(":")
    if name not in SYSTEMS:
        raise ReshardError("bad-argument", f"system {shown(system)} must be one of {', '.join(SYSTEMS)}, as vllm:tp=8")
    options = _options(system, text, SYSTEMS[name])
    if isinstance(model, str):
        model = model_named(model)
    if name == "fsdp":
        return RuleList(_mesh(first_device, dp=_size(options, "", system)), (), Rule(".*", "dim0"))
    if name == "hf" and "tp" not in options:
        return RuleList(_mesh(first_device, device=1), (), Rule(".*"))
    if name == "tp_plan":
        return _tp_plan(options, system, model, first_device)
    if not isinstance(model, ModelShape):
        raise ReshardError("bad-argument", f"the rules of {system} need a model, as qwen3-30b-a3b, got: {shown(model)}")
    return {"hf": _transformers, "megatron": _megatron, "vllm": _vllm}[name](options, system, model, first_device)


def _options(system: str, text: str, known: set[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if not equals:
            key, value = "", key
        if key not in known or key in options:
            names = ", ".join(sorted(key + "=" for key in known if key)) or "a size alone"
            raise ReshardError("bad-argument", f"{system} has {part!r}; it takes {names}")
        options[key] = value
    return options


def _size(options: Mapping[str, str], key: str, system: str, default: str = "") -> int:
    text = options.get(key, default)
    if not text.isdecimal() or not 1 <= int(text[:10]) < 2**24 or len(text) > 8:
        raise ReshardError(
            "bad-argument", f"{system} must have a size from 1 on for {key or 'its devices'}, as {key}=8"
        )
    return int(text)


def _mesh(first_device: int, **sizes: int) -> Mesh:
    mesh = Mesh.of(sizes)
    return Mesh.of(sizes, device_ids=range(first_device, first_device + mesh.size)) if first_device else mesh


def _blocks(count: int, parts: int) -> tuple[int, ...]:
    """Where each of some parts of a count begins, the first parts one longer: the first left out."""
    sizes = [count // parts + (number < count % parts) for number in range(parts)]
    return tuple(itertools.accumulate(sizes))[:-1]


def _tp_plan(options: Mapping[str, str], system: str, model: Any, first_device: int) -> RuleList:
    plan = _plan_of_file(Path(options[""])) if "" in options else model
    if not isinstance(plan, Mapping) or not all(isinstance(text, str) for pair in plan.items() for text in pair):
        raise ReshardError(
            "bad-argument", f"{system} must name a file, as tp_plan:config.json,tp=8, or be given globs and styles"
        )
    return RuleList(
        _mesh(first_device, tp=_size(options, "tp", system)), tuple(tp_plan_rules(plan)), Rule(".*", "replicated")
    )


def _plan_of_file(path: Path) -> Mapping[str, str]:
    with refusing("bad-file", f"{path} could not be read"):
        text = path.read_text(encoding="utf-8", errors="replace")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReshardError("bad-file", f"{path} is no JSON: {error}") from None
    plan = config.get("base_model_tp_plan", config) if isinstance(config, dict) else None
    if not isinstance(plan, dict) or not all(isinstance(value, str) for value in plan.values()):
        raise ReshardError("bad-file", f"{path} must hold a base_model_tp_plan of globs and styles")
    return plan


def tp_plan_rules(plan: Mapping[str, str]) -> Iterator[Rule]:
    r"""The rules of a plan of transformers: globs over names of modules and parameters to styles.

    `*` stands for a number. What a plan says of a parameter goes before what it says of its module.

    Raises:
        ReshardError: `bad-argument`, `cannot-express` where a style says nothing known.

    >>> [rule.match for rule in tp_plan_rules({"layers.*.mlp.up_proj": "colwise"})]
    ['(?:(?:model|language_model|text_model|transformer|backbone)\\.)*layers\\.\\d+\\.mlp\\.up_proj(?:\\.\\w+)?']
    """
    for glob, style in sorted(plan.items(), key=lambda entry: -entry[0].count(".")):
        check_style(style, f"plan {glob!r}")
        pattern = r"\d+".join(map(re.escape, glob.split("*")))
        if style not in OF_MODULES:
            yield Rule(rf"{IN_MODEL}{pattern}(?:\.\w+)?", style)


def _fused(name: str, key: str, order: tuple[str, ...], **more: Any) -> StoreRule:
    return StoreRule(name, key=key, order=order, **more)


def _heads(model: ModelShape) -> dict[str, int]:
    return {"q": model.heads, "k": model.kv_heads, "v": model.kv_heads}


def _transformers(options: Mapping[str, str], system: str, model: ModelShape, first_device: int) -> RuleList:
    tp = _size(options, "tp", system)
    gate_up = [
        Rule(
            EXPERT + words + r"\.weight",
            "colwise",
            store=_fused(r"model.layers.\1.mlp.experts.gate_up_proj", r"\3", order, stack=r"\2"),
        )
        for words, order in (("(gate_proj|up_proj)", ("gate_proj", "up_proj")), ("(w1|w3)", ("w1", "w3")))
    ]
    down = Rule(
        EXPERT + r"(?:down_proj|w2)\.weight",
        "rowwise",
        store=StoreRule(r"model.layers.\1.mlp.experts.down_proj", r"\2"),
    )
    attention = [
        Rule(LAYER + rf"self_attn\.{word}_proj\.weight", "colwise", heads=count)
        for word, count in _heads(model).items()
        if not model.q_rank  # the plan for latent attention leaves it whole
    ]
    rest = [
        *([] if model.q_rank else [Rule(LAYER + r"self_attn\.o_proj\.weight", "rowwise")]),
        Rule(LAYER + r"mlp\.(?:shared_experts\.)?(?:gate|up)_proj\.weight", "colwise"),
        Rule(LAYER + r"mlp\.(?:shared_experts\.)?down_proj\.weight", "rowwise"),
        Rule(r"lm_head\.weight", "colwise_gather_output"),
    ]
    return RuleList(_mesh(first_device, tp=tp), (*gate_up, down, *attention, *rest), Rule(".*"))


def _stages(options: Mapping[str, str], system: str, layers: int) -> tuple[int, tuple[int, ...]]:
    """The number of stages, and the first layer of each but the first."""
    text = options.get("pp", "1")
    if "+" not in text:
        count = _size(options, "pp", system, "1")
        if layers % count:
            raise ReshardError(
                "bad-argument", f"{system} cuts {layers} layers into {count} stages; say how many each has, as pp=24+23"
            )
        return count, _blocks(layers, count)
    sizes = [_size({"pp": part}, "pp", system) for part in text.split("+")]
    if sum(sizes) != layers:
        raise ReshardError("bad-argument", f"the stages of {system} have {sum(sizes)} layers; the model has {layers}")
    return len(sizes), tuple(itertools.accumulate(sizes))[:-1]


def _megatron(options: Mapping[str, str], system: str, model: ModelShape, first_device: int) -> RuleList:
    tp, ep, etp = (_size(options, key, system, "1") for key in ("tp", "ep", "etp"))
    stages, cuts = _stages(options, system, model.layers)
    least = tp * (ep * etp) // gcd(tp, ep * etp)
    dp = _size(options, "dp", system, str(least // tp))
    if tp * dp % (ep * etp):
        raise ReshardError("bad-argument", f"{system} has {tp * dp} devices in a stage, which {ep * etp} must divide")
    if ep > 1 and model.experts % ep:
        raise ReshardError("bad-argument", f"{system} cuts {model.experts} experts over {ep} devices")
    dense = _mesh(first_device, pp=stages, dp=dp, tp=tp)
    sparse = _mesh(first_device, pp=stages, edp=tp * dp // (ep * etp), ep=ep, etp=etp)
    stage = Slice("pp", r"\1", cuts)
    places = (stage, Slice("ep", r"\2", _blocks(model.experts, ep))) if model.experts else (stage,)
    rows, columns = ("tp",), (None, "tp")
    layer = r"decoder.layers.\1."
    rules: list[Rule] = []
    for words in (("gate_proj", "up_proj"), ("w1", "w3")):
        store = _fused(layer + r"mlp.experts.linear_fc1.\4\2", r"\3", words)
        rules.append(Rule(EXPERT + rf"({'|'.join(words)})\.{REST}", ("etp",), sparse, places, store=store))
    store = StoreRule(layer + r"mlp.experts.linear_fc2.\3\2")
    rules.append(Rule(EXPERT + rf"(?:down_proj|w2)\.{REST}", (None, "etp"), sparse, places, store=store))
    groups = model.kv_heads if tp <= model.kv_heads else 1
    for word, heads in _heads(model).items():
        store = _fused(layer + r"self_attention.linear_qkv.weight", r"\2", ("q", "k", "v"), groups=groups)
        heads = model.kv_heads if groups > 1 else heads
        rules.append(Rule(LAYER + rf"self_attn\.({word})_proj\.weight", rows, on=(stage,), heads=heads, store=store))
    kept = {"q_b_proj": "linear_q_up_proj", "kv_b_proj": "linear_kv_up_proj"}
    for word, name in kept.items():
        store = StoreRule(layer + rf"self_attention.{name}.\2")
        rules.append(Rule(LAYER + rf"self_attn\.{word}\.{REST}", rows, on=(stage,), store=store))
    store = StoreRule(layer + r"self_attention.linear_proj.\2")
    rules.append(Rule(LAYER + rf"self_attn\.o_proj\.{REST}", columns, on=(stage,), store=store))
    store = _fused(layer + r"mlp.\2linear_fc1.\4", r"\3", ("gate_proj", "up_proj"))
    rules.append(Rule(LAYER + rf"mlp\.(shared_experts\.|)(gate_proj|up_proj)\.{REST}", rows, on=(stage,), store=store))
    store = StoreRule(layer + r"mlp.\2linear_fc2.\3")
    rules.append(Rule(LAYER + rf"mlp\.(shared_experts\.|)down_proj\.{REST}", columns, on=(stage,), store=store))
    rules.append(Rule(LAYER + ".*", "replicated", on=(stage,)))
    ends = (("model.embed_tokens.weight", 0, "embedding.word_embeddings.weight"),)
    for name, number, buffer in (*ends, ("lm_head.weight", stages - 1, "output_layer.weight")):
        rules.append(
            Rule(name.replace(".", r"\."), rows, on=(Slice("pp", (number,)),), pad=128 * tp, store=StoreRule(buffer))
        )
    last = Slice("pp", (stages - 1,))
    rules.append(Rule(r"model\.norm\.weight", on=(last,), store=StoreRule("decoder.final_layernorm.weight")))
    return RuleList(dense, tuple(rules))


def _vllm(options: Mapping[str, str], system: str, model: ModelShape, first_device: int) -> RuleList:
    tp, dp, replicas = (_size(options, key, system, "1") for key in ("tp", "dp", "replicas"))
    ep = options.get("ep", "off")
    if ep not in ("on", "off"):
        raise ReshardError("bad-argument", f"{system} must have ep=on or ep=off")
    ranks = tp * dp
    sparse = _mesh(first_device, replicas=replicas, ep=ranks)
    by_expert = ep == "on"
    if by_expert and 0 < model.experts < ranks:
        raise ReshardError("bad-argument", f"{system} has {ranks} devices for {model.experts} experts")
    places = (Slice("ep", r"\2", _blocks(model.experts, ranks)),) if by_expert and model.experts else ()
    cut = None if by_expert else "ep"
    rows, columns = ("tp",), (None, "tp")
    rules: list[Rule] = []
    for words in (("gate_proj", "up_proj"), ("w1", "w3")):
        store = _fused(r"model.layers.\1.mlp.experts.w13_\4", r"\3", words, stack=r"\2")
        rules.append(Rule(EXPERT + rf"({'|'.join(words)})\.{REST}", (cut,), sparse, places, store=store))
    store = StoreRule(r"model.layers.\1.mlp.experts.w2_\3", r"\2")
    rules.append(Rule(EXPERT + rf"(?:down_proj|w2)\.{REST}", (None, cut), sparse, places, store=store))
    for word, heads in _heads(model).items():
        store = _fused(r"model.layers.\1.self_attn.qkv_proj.weight", r"\2", ("q", "k", "v"))
        rules.append(Rule(LAYER + rf"self_attn\.({word})_proj\.weight", rows, heads=heads, store=store))
    order = ("q_a_proj", "kv_a_proj_with_mqa")
    store = _fused(r"model.layers.\1.self_attn.fused_qkv_a_proj.\3", r"\2", order)
    rules += [
        Rule(LAYER + rf"self_attn\.(q_a_proj|kv_a_proj_with_mqa)\.{REST}", store=store),
        Rule(LAYER + rf"self_attn\.(?:q|kv)_b_proj\.{REST}", rows),
        Rule(LAYER + rf"self_attn\.o_proj\.{REST}", columns),
        Rule(
            LAYER + rf"mlp\.(shared_experts\.|)(gate_proj|up_proj)\.{REST}",
            rows,
            store=_fused(r"model.layers.\1.mlp.\2gate_up_proj.\4", r"\3", ("gate_proj", "up_proj")),
        ),
        Rule(LAYER + rf"mlp\.(?:shared_experts\.|)down_proj\.{REST}", columns),
        Rule(r"(?:model\.embed_tokens|lm_head)\.weight", rows, pad=64),
    ]
    return RuleList(_mesh(first_device, replicas=replicas, dp=dp, tp=tp), tuple(rules), Rule(".*"))
