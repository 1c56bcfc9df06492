"""Models that many people have: the names, shapes and dtypes of their tensors, from a few numbers.

The numbers are those of the models' published configurations, the names those of their published files; the totals are
the published counts of parameters (the tests hold them).

>>> model = model_named("llama-3-8b")
>>> tensors = model.tensors()
>>> len(tensors), tensors["model.layers.31.self_attn.k_proj.weight"].shape
(291, (1024, 4096))
>>> sum(tensor.size for tensor in tensors.values())
8030261248
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.models.names import nearest

SCALE_BLOCK = 128
"""Rows and columns of a weight of 8 bits that share a scale."""


class TensorType(NamedTuple):
    """What a tensor is."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Of all elements."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class ModelShape:
    """The numbers that make up a model.

    The field `family` says how it is built: dense (Llama), qwen-moe, mixtral, or deepseek (latent attention, the first
    layers dense, one shared expert, weights of 8 bits with a scale per block).
    """

    name: str
    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Of a dense layer; 0 where there are none."""
    vocab: int
    experts: int = 0
    expert_intermediate: int = 0
    dense_layers: int = 0
    """At the beginning, of a model with experts."""
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0

    def tensors(self) -> dict[str, TensorType]:
        """By name, in the order of the layers."""
        dtype = dtype_named("bf16")
        result = {"model.embed_tokens.weight": TensorType((self.vocab, self.hidden), dtype)}
        for layer in range(self.layers):
            for name, shape in self._layer(layer):
                name = f"model.layers.{layer}.{name}"
                if self.family == "deepseek" and len(shape) == 2 and "mlp.gate." not in name:
                    result[name] = TensorType(shape, dtype_named("f8e4m3fn"))
                    blocks = tuple(-(-size // SCALE_BLOCK) for size in shape)
                    result[f"{name}_scale_inv"] = TensorType(blocks, dtype_named("f32"))
                else:
                    bias = name.endswith("correction_bias")
                    result[name] = TensorType(shape, dtype_named("f32") if bias else dtype)
        result["model.norm.weight"] = TensorType((self.hidden,), dtype)
        result["lm_head.weight"] = TensorType((self.vocab, self.hidden), dtype)
        return result

    def _layer(self, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden = self.hidden
        yield "input_layernorm.weight", (hidden,)
        yield from self._attention()
        yield "post_attention_layernorm.weight", (hidden,)
        if not self.experts or layer < self.dense_layers:
            yield from _mlp("mlp", ("gate_proj", "up_proj", "down_proj"), self.intermediate, hidden)
            return
        if self.family == "mixtral":
            block, words = "block_sparse_moe", ("w1", "w3", "w2")
        else:
            block, words = "mlp", ("gate_proj", "up_proj", "down_proj")
        yield f"{block}.gate.weight", (self.experts, hidden)
        if self.family == "deepseek":
            yield f"{block}.gate.e_score_correction_bias", (self.experts,)
            yield from _mlp(f"{block}.shared_experts", words, self.expert_intermediate, hidden)
        for expert in range(self.experts):
            yield from _mlp(f"{block}.experts.{expert}", words, self.expert_intermediate, hidden)

    def _attention(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden, heads, dim = self.hidden, self.heads, self.head_dim
        if self.family == "deepseek":
            yield "self_attn.q_a_proj.weight", (self.q_rank, hidden)
            yield "self_attn.q_a_layernorm.weight", (self.q_rank,)
            yield "self_attn.q_b_proj.weight", (heads * (dim + self.rope_dim), self.q_rank)
            yield "self_attn.kv_a_proj_with_mqa.weight", (self.kv_rank + self.rope_dim, hidden)
            yield "self_attn.kv_a_layernorm.weight", (self.kv_rank,)
            yield "self_attn.kv_b_proj.weight", (heads * 2 * dim, self.kv_rank)
            yield "self_attn.o_proj.weight", (hidden, heads * dim)
            return
        yield "self_attn.q_proj.weight", (heads * dim, hidden)
        yield "self_attn.k_proj.weight", (self.kv_heads * dim, hidden)
        yield "self_attn.v_proj.weight", (self.kv_heads * dim, hidden)
        yield "self_attn.o_proj.weight", (hidden, heads * dim)
        if self.family == "qwen-moe":
            yield "self_attn.q_norm.weight", (dim,)
            yield "self_attn.k_norm.weight", (dim,)


def _mlp(block: str, words: tuple[str, str, str], width: int, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for word in words[:2]:
        yield f"{block}.{word}.weight", (width, hidden)
    yield f"{block}.{words[2]}.weight", (hidden, width)


MODELS = {
    model.name: model
    for model in (
        ModelShape("llama-3-8b", "dense", 4096, 32, 32, 8, 128, 14336, 128256),
        ModelShape("llama-3-70b", "dense", 8192, 80, 64, 8, 128, 28672, 128256),
        ModelShape("qwen3-30b-a3b", "qwen-moe", 2048, 48, 32, 4, 128, 0, 151936, 128, 768),
        ModelShape("qwen3-235b-a22b", "qwen-moe", 4096, 94, 64, 4, 128, 0, 151936, 128, 1536),
        ModelShape("mixtral-8x7b", "mixtral", 4096, 32, 32, 8, 128, 0, 32000, 8, 14336),
        ModelShape(
            *("deepseek-v3", "deepseek", 7168, 61, 128, 128, 128, 18432, 129280, 256, 2048),
            dense_layers=3,
            q_rank=1536,
            kv_rank=512,
            rope_dim=64,
        ),
    )
}
"""By name."""


def model_named(name: str) -> ModelShape:
    """A model of the catalogue.

    Raises:
        ReshardError: `bad-argument`.
    """
    if name not in MODELS:
        raise ReshardError("bad-argument", f"model {name!r} is not known; the nearest are {nearest(name, MODELS)}")
    return MODELS[name]
