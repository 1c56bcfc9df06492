"""A network fitted to the ranks at hand: what a message costs, measured by sending messages.

One level per dim of a mesh; along each, the ranks that come first send to the next, all at once, as the messages of an
exchange go.
All ranks time every message and take the longest of all, so that each of them fits the same network.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from reshard.checks import expect
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.network import Calibration, Network
from reshard.network.calibration import Pairs
from reshard.torch.conversions import mesh_of
from reshard.torch.world import current_world

SIZES = tuple(2**power for power in range(10, 25, 2))
"""Bytes that are sent to measure a level: 1 KiB to 16 MiB."""
RUNS = 5
"""Of so many runs the fastest counts: what else the machine does is not the network."""


def calibrate(
    mesh: DeviceMesh | Mesh, *, sizes: Sequence[int] = SIZES, repeats: int = 3
) -> tuple[Network, Calibration]:
    """The network of a mesh's ranks, one level per mesh dim, and how well it predicts timings that it has not seen.

    All ranks of the default process group must call it; it takes some seconds. Give what it finds as `network=`.
    Where there is no such group it is made, as `torchrun` says.

    Args:
        mesh: of all ranks, torch's or ours; their order must be a transposition of digits, as that of
            `init_device_mesh` is.
        sizes: bytes to send, at least six sizes.
        repeats: how often each is measured; the median counts.

    Raises:
        ReshardError: `bad-network` where the mesh has no such order or larger messages do not take longer;
            `bad-argument`; `exchange-failed` where there is no default process group, nor a way to make one.
    """
    ours = mesh if isinstance(mesh, Mesh) else mesh_of(expect(mesh, DeviceMesh, "what is calibrated"))
    device_type = mesh.device_type if isinstance(mesh, DeviceMesh) else _device_type()
    _open_group(device_type)
    rank = current_world().rank
    if {*ours.devices} != {*range(dist.get_world_size())}:
        raise ReshardError("bad-argument", f"{ours} must be over all {dist.get_world_size()} ranks to be calibrated")
    guess = Network.of(ours, {name: ("switch", 1e9, 1e-6) for name, _ in ours.axes}, name="ranks")

    def time_exchange(_: int, n_bytes: int, pairs: Pairs) -> float:
        memory = torch.zeros(n_bytes, dtype=torch.uint8, device=device_type)
        operations = [dist.P2POp(dist.isend, memory, receiver) for sender, receiver in pairs if sender == rank]
        operations += [dist.P2POp(dist.irecv, memory, sender) for sender, receiver in pairs if receiver == rank]
        fastest = min(_timed(operations, device_type) for _ in range(RUNS + 1))  # the first opens connections
        slowest = torch.tensor(fastest, dtype=torch.float64, device=device_type)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return float(slowest)

    return guess.calibrate(time_exchange, sizes=sizes, repeats=repeats)


def _device_type() -> str:
    return torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"  # type: ignore[union-attr]


def _open_group(device_type: str) -> None:
    """Make the default process group where there is none.

    Raises:
        ReshardError: `exchange-failed`.
    """
    if dist.is_initialized():
        return
    if device_type != "cpu":
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        dist.init_process_group()
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ReshardError(
            "exchange-failed", f"torch.distributed has no ranks, start them by torchrun: {reason}"
        ) from None


def _timed(operations: list[dist.P2POp], device_type: str) -> float:
    """Seconds until all is sent and received, begun together."""
    dist.barrier()
    begun = time.perf_counter()
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    if device_type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - begun
