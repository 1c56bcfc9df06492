"""Checkpoints for the tests: saved by torch on real ranks, and by the safetensors package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def saved_by_torch(rank: int, path: str) -> None:
    """Dims that do not divide, replicas, two axes on one dim, nothing, a scalar, and what is no tensor."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2))
    draw = torch.Generator().manual_seed(0)
    state: dict[str, Any] = {
        "model": {
            "a.weight": distribute_tensor(torch.randn(7, 5, generator=draw), mesh, [Shard(0), Shard(1)]),
            "b.bias": distribute_tensor(torch.randn(5, generator=draw).bfloat16(), mesh, [Shard(0), Shard(0)]),
            "count": distribute_tensor(torch.arange(12).reshape(3, 4), mesh, [Replicate(), Shard(1)]),
            "scalar": torch.tensor(3.5),
            "empty": torch.zeros(0, 3),
            "half": torch.randn(3, generator=draw).to(torch.float8_e4m3fn),
        },
        "step": 7,
        "rates": [0.1, 0.2],
    }
    dcp.save(state, checkpoint_id=path)


def loaded_by_torch(path: str) -> dict[str, Any]:
    """By name the bytes of each tensor, as torch loads them."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    file = Path(path).parent / "whole.pt"
    dcp_to_torch_save(path, file)
    state = torch.load(file)["model"]
    return {
        f"model.{name}": tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        for name, tensor in state.items()
    }


def save_safetensors(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    from safetensors.numpy import save_file

    save_file(arrays, path)


def load_safetensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """By name the arrays, of every file of a folder or of one."""
    from safetensors.numpy import load_file

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return {name: array for file in files for name, array in load_file(file).items()}
