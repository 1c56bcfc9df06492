"""A network fitted to the ranks at hand: what a message costs, measured by sending messages.

One level per dim of a mesh; along each, every rank sends to the next, all at once, as the messages of an exchange go.
What steps take besides is fitted to some of them (`reshard.network.engine_fit`), and ranks that get no more bytes along
two dims at once than along one after the other are joined by one switch.
All ranks time every message and take the longest of all, so that each of them fits the same network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import distribute_tensor

from reshard.checks import expect
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.network import Calibration, Network
from reshard.network.calibration import Pairs
from reshard.network.engine_fit import fitted_to_engine, fitted_to_work
from reshard.plans import Plan
from reshard.steps import Chain, reshard_of_chain
from reshard.torch.dtensor_specs import mesh_of, placements_of
from reshard.torch.planned import run
from reshard.torch.world import current_world

SIZES = tuple(2**power for power in range(10, 25, 2))
"""Bytes that are sent to measure a level: 1 KiB to 16 MiB."""
RUNS = 5
"""Of so many runs the fastest counts: what else the machine does is not the network."""
WARM_RUNS = 3
"""Of a chain, one after another, the fastest of which counts: the first finds the memory as what ran before left it."""
TURNS = 8
"""How often a product or a sum is made in one run."""


def calibrate(mesh: DeviceMesh, *, sizes: Sequence[int] = SIZES, repeats: int = 3) -> tuple[Network, Calibration]:
    """The network of a mesh's ranks, one level per mesh dim or one of all, and how well messages are predicted.

    All ranks of the default process group must call it; it takes some seconds. Give what it finds as `network=`.

    Args:
        mesh: of all ranks; their order must be a transposition of digits, as that of `init_device_mesh` is.
        sizes: bytes to send, at least six sizes.
        repeats: how often each is measured; the median counts.

    Raises:
        ReshardError: `bad-network` where the mesh has no such order or larger messages do not take longer;
            `bad-argument`; `exchange-failed` where there is no default process group.
    """
    ours = mesh_of(expect(mesh, DeviceMesh, "what is calibrated"))
    rank = current_world().rank
    guess = Network.of(ours, {name: ("switch", 1e9, 1e-6) for name, _ in ours.axes}, name="ranks")

    def time_exchange(_: int, n_bytes: int, pairs: Pairs) -> float:
        def tile() -> torch.Tensor:
            return torch.zeros(n_bytes, dtype=torch.uint8, device=mesh.device_type)

        operations = [dist.P2POp(dist.isend, tile(), receiver) for sender, receiver in pairs if sender == rank]
        operations += [dist.P2POp(dist.irecv, tile(), sender) for sender, receiver in pairs if receiver == rank]

        def exchange() -> None:
            for work in dist.batch_isend_irecv(operations) if operations else ():
                work.wait()

        return _fastest(exchange, mesh.device_type)

    def time_chain(steps: Chain) -> float:
        plan = Plan(reshard_of_chain(steps), steps)
        whole = torch.zeros(plan.shape, device=mesh.device_type)
        held = distribute_tensor(whole, mesh, placements_of(plan.source, mesh))
        return _fastest(lambda: run(plan, held), mesh.device_type, runs=WARM_RUNS)

    def time_work(combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], side: int) -> float:
        square = torch.zeros(side, side, device=mesh.device_type)

        def turns() -> None:
            for _ in range(TURNS):
                combine(square, square)

        return _fastest(turns, mesh.device_type) / TURNS

    network, fit = fitted_to_engine(guess, ours, time_exchange, time_chain, sizes=sizes, repeats=repeats)
    return fitted_to_work(network, partial(time_work, torch.matmul), partial(time_work, torch.add)), fit


def calibrate_like(mesh: Mesh, *, repeats: int = 3) -> tuple[Network, Calibration] | None:
    """`calibrate` for a mesh of ours, in a process that `torchrun` started; None on all ranks but the first.

    Raises:
        ReshardError: as `calibrate`; `exchange-failed` where `torchrun` has not started the process.
    """
    if not dist.is_torchelastic_launched():
        raise ReshardError("exchange-failed", "torchrun must start the processes: torchrun … -m reshard calibrate …")
    accelerator = torch.accelerator.current_accelerator()
    device_type = "cpu" if accelerator is None else accelerator.type
    names = tuple(mesh.sizes)
    calibrated = calibrate(
        init_device_mesh(device_type, tuple(mesh.sizes.values()), mesh_dim_names=names), repeats=repeats
    )
    rank = dist.get_rank()
    dist.destroy_process_group()
    return calibrated if rank == 0 else None


def _fastest(call: Callable[[], object], device_type: str, runs: int = RUNS + 1) -> float:
    """Seconds until all ranks, which begin together, have done it, in the fastest of some runs."""
    fastest = float("inf")
    for _ in range(runs):  # the first opens connections
        dist.barrier()
        begun = time.perf_counter()
        call()
        if device_type != "cpu":
            torch.accelerator.synchronize()
        fastest = min(fastest, time.perf_counter() - begun)
    slowest = torch.tensor(fastest, dtype=torch.float64, device=device_type)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)
