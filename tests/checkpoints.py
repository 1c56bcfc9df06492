"""Checkpoints for the tests: saved by torch on real ranks, and by the safetensors package."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import reshard as rs
from reshard.box import Box
from reshard.models.checkpoints.files import FileReader
from reshard.models.checkpoints.opening import open_checkpoint
from reshard.models.checkpoints.stored import raw_dtype


def trained_state(seed: int) -> dict[str, Any]:
    """The state of a small model under FSDP and TP on 2 x 2 ranks after a step of its optimizer, all of it sharded."""
    import torch
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10, bias=False), torch.nn.Linear(10, 5), torch.nn.LayerNorm(5))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * seed)
    loss = model(torch.ones(3, 6)).sum()
    (loss.full_tensor() if isinstance(loss, DTensor) else loss).backward()
    optimizer.step()
    state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": state, "optim": optimizer_state}


def load_into_trained(rank: int, *paths: str) -> list[str]:
    """What differs once checkpoints are loaded into another model's state, against the state that the first has."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    del rank
    wanted, _ = flatten_state_dict(trained_state(1))
    wrong = []
    for path in paths:
        state = trained_state(2)
        dcp.load(state, checkpoint_id=path)
        loaded, _ = flatten_state_dict(state)
        for name, value in wanted.items():
            got = loaded[name]
            if hasattr(value, "to_local"):
                got, value = got.to_local(), value.to_local()
            same = torch.equal(got, value) if isinstance(value, torch.Tensor) else got == value
            wrong += [] if same else [f"{name} of {path}"]
        wrong += [] if len(loaded) == len(wanted) else [path]
    return wrong


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
    dcp.save(trained_state(1), checkpoint_id=f"{path}-trained")


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


def mutated(data: bytes, draw: random.Random) -> bytes:
    """A few bytes changed, cut out, or doubled."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(changed))
        kind = draw.random()
        if kind < 0.6:
            changed[at] = draw.randrange(256)
        elif kind < 0.8:
            del changed[at : at + draw.randint(1, 9)]
        else:
            changed[at:at] = changed[at : at + draw.randint(1, 9)]
    return bytes(changed)


def check_mutations(source: Path, file: str, count: int, folder: Path) -> None:
    """Whatever is changed in a file, it is read or refused."""
    shutil.copytree(source, folder)
    data, draw = (source / file).read_bytes(), random.Random(file)
    for _ in range(count):
        (folder / file).write_bytes(mutated(data, draw))
        try:
            checkpoint = open_checkpoint(folder)
            for tensor in checkpoint.tensors.values():
                assert tensor.nbytes < 10_000
                with FileReader() as reader:
                    tensor.read_into(np.empty(tensor.shape, raw_dtype(tensor.dtype)), Box.whole(tensor.shape), reader)
        except rs.ReshardError:
            continue


def peak_mib(*arguments: object) -> float:
    """The most that a command held in a process of its own."""
    running = "try: runpy.run_module('reshard', run_name='__main__')"
    return _peak(f"import resource, runpy, sys\n{running}\nfinally: {SAYING}", *arguments)


def peak_of_loading(*modules: str) -> float:
    """The most that a process held that loads some modules and nothing else."""
    return _peak(f"import {', '.join(modules)}, resource, sys; {SAYING}")


SAYING = "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"


def _peak(program: str, *arguments: object) -> float:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(answer.stderr.split()[-1]) / 1024
