"""A network fitted to the ranks at hand: what a message costs, measured by sending messages.

One level per axis of a mesh; along each, every rank sends to the next, all at once, as the messages of an exchange go.
What steps take besides is fitted to some of them (`reshard.network.engine_fit`), and ranks that get no more bytes along
two axes at once than along one after the other are joined by one switch.
All ranks take the longest of all times, so that each of them fits the same network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from mpi4py import MPI

from reshard.array_tiles import Array
from reshard.checks import expect
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.mpi.participants import participants_of
from reshard.mpi.tile_calls import run
from reshard.network import Calibration, Network
from reshard.network.calibration import Pairs
from reshard.network.engine_fit import fitted_to_engine, fitted_to_work
from reshard.plans import Plan
from reshard.sharding import Sharding
from reshard.steps import Chain, reshard_of_chain

SIZES = tuple(2**power for power in range(10, 25, 2))
"""Bytes that are sent to measure a level: 1 KiB to 16 MiB."""
RUNS = 6
"""Of so many runs the fastest counts: what else the machine does is not the network."""
WARM_RUNS = 3
"""Of a chain, one after another, the fastest of which counts: the first finds the memory as what ran before left it."""
TURNS = 8
"""How often a product or a sum is made in one run."""


def calibrate(
    mesh: Mesh, comm: MPI.Intracomm | None = None, *, sizes: Sequence[int] = SIZES, repeats: int = 3
) -> tuple[Network, Calibration]:
    """The network of a mesh's ranks, one level per axis or one of all, and how well messages are predicted.

    All ranks of the communicator must call it; it takes some seconds. Give what it finds as `network=`.

    Args:
        mesh: of all ranks.
        comm: whose ranks are the devices; the world where it is not given.
        sizes: bytes to send, at least six sizes.
        repeats: how often each is measured; the median counts.

    Raises:
        ReshardError: `bad-argument` where the mesh is not of all ranks; `bad-network` where larger messages do not
            take longer.
    """
    participants = participants_of(comm, tuple(sorted(expect(mesh, Mesh, "what is calibrated").devices)))
    size = (MPI.COMM_WORLD if comm is None else comm).size
    if participants is None or mesh.size != size:
        raise ReshardError("bad-argument", f"the mesh has {mesh.size} devices; it must have all {size} ranks")
    ranks, tiles = participants.comm, dict[tuple[int, ...], Array]()
    guess = Network.of(mesh, {name: ("switch", 1e9, 1e-6) for name, _ in mesh.axes}, name="ranks")

    def time_exchange(_: int, n_bytes: int, pairs: Pairs) -> float:
        sent, room = np.zeros((2, n_bytes), np.uint8)
        receivers = [receiver for sender, receiver in pairs if sender == ranks.rank]
        rooms = [(np.zeros_like(room), sender) for sender, receiver in pairs if receiver == ranks.rank]

        def exchange() -> None:
            requests = [ranks.Irecv(room, sender) for room, sender in rooms]
            MPI.Request.Waitall([*requests, *(ranks.Isend(sent, receiver) for receiver in receivers)])

        return _fastest(exchange, ranks)

    def tile_of(sharding: Sharding, shape: Sequence[int]) -> Array:
        """One that has been written, for that of memory never touched is found elsewhere."""
        local_shape = sharding.local_shape(shape)
        return tiles.setdefault(local_shape, np.ones(local_shape, np.float32))

    def time_chain(steps: Chain) -> float:
        plan = Plan(reshard_of_chain(steps), steps)
        tile = tile_of(plan.source, plan.shape)
        return _fastest(lambda: run(plan, tile, comm), ranks, WARM_RUNS)

    def time_work(combine: Callable[[Array, Array], Array], side: int) -> float:
        square = np.zeros((side, side), np.float32)

        def turns() -> None:
            for _ in range(TURNS):
                combine(square, square)

        return _fastest(turns, ranks) / TURNS

    network, fit = fitted_to_engine(guess, mesh, time_exchange, time_chain, sizes=sizes, repeats=repeats)
    return fitted_to_work(network, partial(time_work, np.matmul), partial(time_work, np.add)), fit


def calibrate_like(mesh: Mesh, *, repeats: int = 3) -> tuple[Network, Calibration] | None:
    """`calibrate` for a mesh of all ranks that `mpiexec` started; None on all of them but the first.

    Raises:
        ReshardError: as `calibrate`.
    """
    calibrated = calibrate(mesh, repeats=repeats)
    return calibrated if MPI.COMM_WORLD.rank == 0 else None


def _fastest(call: Callable[[], object], ranks: MPI.Intracomm, runs: int = RUNS) -> float:
    """Seconds until all ranks, which begin together, have done it, in the fastest of some runs."""
    shortest = float("inf")
    for _ in range(runs):
        ranks.Barrier()
        begun = time.perf_counter()
        call()
        shortest = min(shortest, ranks.allreduce(time.perf_counter() - begun, MPI.MAX))
    return shortest
