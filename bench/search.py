"""Which layout to train in: train steps of Llama 3 with Adam, layers under `jax.checkpoint`, against a recipe.

`python -m bench.search [case ...]`; no devices are needed, and a case takes minutes.
Of each case the search has the shapes, the mesh, the network and the memory of a device; nothing is annotated.
The recipe is that of "How to Scale Your Model" (Austin et al. 2025): weights and moments fully sharded, and where there
is an axis for it tensor parallel; its inputs are sharded so, and the rest is placed by the same optimisation, on the
same network and in the same memory.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from unittest import mock

import jax
import numpy as np

import bench.programs
import reshard as rs
from bench.programs import LLAMA_8B, LLAMA_70B, SEQUENCE, Case, Model, layer, train
from reshard.tables import bytes_text


@dataclass(frozen=True)
class Search:
    """A model on a mesh of a network, with so much memory in a device."""

    case: Case
    network: str
    memory: int
    """Bytes."""
    is_checkpointed: bool = True
    """Whether layers are computed anew for their gradients."""

    def traced(self, *, is_annotated: bool) -> rs.Program:
        """The step, with the inputs as the recipe has them, or as they may be."""
        remade = jax.checkpoint(layer) if self.is_checkpointed else layer
        jax.clear_caches()  # which know a step by its shapes, whichever layer it had
        with mock.patch.object(bench.programs, "layer", remade):
            if is_annotated:
                return self.case.program(self.case.mesh)
            numbers = jax.ShapeDtypeStruct((self.case.batch, SEQUENCE), np.int32)
            moments, count = self.case.shapes("float32"), jax.ShapeDtypeStruct((), np.float32)
            weights = self.case.shapes("bfloat16")
            state = weights, (moments, moments), count
            return rs.jax.trace(train, *state, numbers, numbers, mesh=self.case.mesh)


def step(model: Model, data: int = 64, tensor: int = 1) -> Case:
    """One sequence per device, weights fully sharded."""
    return Case(model, data, tensor, is_fully_sharded=True, sequences=tensor)


CASES = {
    "8b-h100-8x8": Search(step(LLAMA_8B), "h100-8x8", 80 * 10**9),
    "70b-h100-8x8": Search(step(LLAMA_70B), "h100-8x8", 80 * 10**9),
    "8b-tpu-v5p-4x4x4": Search(step(LLAMA_8B), "tpu-v5p-4x4x4", 95 * 10**9),
    "70b-tpu-v5p-4x4x4": Search(step(LLAMA_70B), "tpu-v5p-4x4x4", 95 * 10**9),
    "8b-h100-8x8-not-remade": Search(step(LLAMA_8B), "h100-8x8", 80 * 10**9, is_checkpointed=False),
    "70b-h100-8x8-not-remade": Search(step(LLAMA_70B), "h100-8x8", 80 * 10**9, is_checkpointed=False),
    "8b-tpu-v5p-4x4x4-not-remade": Search(step(LLAMA_8B), "tpu-v5p-4x4x4", 95 * 10**9, is_checkpointed=False),
    "70b-tpu-v5p-4x4x4-not-remade": Search(step(LLAMA_70B), "tpu-v5p-4x4x4", 95 * 10**9, is_checkpointed=False),
    "8b-h100-8x8-two-axes": Search(step(LLAMA_8B, 8, 8), "h100-8x8", 80 * 10**9),
    "70b-h100-8x8-two-axes": Search(step(LLAMA_70B, 8, 8), "h100-8x8", 80 * 10**9),
    "8b-tpu-v5p-4x4x4-two-axes": Search(step(LLAMA_8B, 16, 4), "tpu-v5p-4x4x4", 95 * 10**9),
    "70b-tpu-v5p-4x4x4-two-axes": Search(step(LLAMA_70B, 16, 4), "tpu-v5p-4x4x4", 95 * 10**9),
}


def report(name: str) -> str:
    """The table of a case, and what the recipe costs."""
    search = CASES[name]
    sizes = " x ".join(f"{axis} {size}" for axis, size in search.case.mesh.sizes.items())
    lines = [f"{name}: {search.network} as {sizes}, {search.case.batch} sequences of {SEQUENCE}", ""]
    try:
        found = search.traced(is_annotated=False).search(search.memory, search.network, count=1)
    except rs.ReshardError as error:
        return "\n".join([*lines, f"refused: {error}"])
    lines += [str(found), ""]
    recipe = search.traced(is_annotated=True).propagate(search.network, memory_limit=search.memory)
    figures = f"{bytes_text(recipe.received_bytes)}, peak {bytes_text(recipe.peak_bytes)}, {recipe.seconds:.4g} s"
    ratio = (found.best.seconds or 0.0) / (recipe.seconds or 1.0)
    return "\n".join([*lines, f"the recipe: {figures}; the layout above takes {ratio:.5f} x as long"])


def main(names: list[str]) -> int:
    """Print the tables of the cases of these names, or of all; 2 where a name is unknown."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        print(f"no case {unknown[0]}; there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    for name in names or CASES:
        print(report(name), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
