"""A network fitted to the devices at hand: what a message costs, measured by sending messages.

One level per axis of a mesh; along each, every device sends to the next, all at once, in one `ppermute`: the same
operation that a round of an exchange is.
What steps take besides is fitted to some of them, and what devices compute to products and sums
(`reshard.network.engine_fit`); devices that get no more bytes along two axes at once than along one after the other are
joined by one switch.

>>> mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
>>> calibrate(mesh)[0].levels
()
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from timeit import repeat
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec

from reshard.checks import expect
from reshard.jax.exchange.whole_plans import run
from reshard.jax.jax_shardings import jax_mesh_like, mesh_of, partition_spec_of
from reshard.mesh import Mesh
from reshard.network import Calibration, Network
from reshard.network.calibration import Pairs
from reshard.network.engine_fit import PRODUCT_SIDES, SUM_SIDES, fitted_to_engine, fitted_to_work
from reshard.plans import Plan
from reshard.steps import Chain, reshard_of_chain

SIZES = tuple(2**power for power in range(10, 25, 2))
"""Bytes that are sent to measure a level: 1 KiB to 16 MiB."""
RUNS = 5
"""Of so many runs of a compiled exchange the fastest counts: what else the machine does is not the network."""
WARM_RUNS = 3
"""Of a chain, one after another, the fastest of which counts: the first finds the memory as what ran before left it."""
TURNS = 8
"""How often a product or a sum is made in one program, which takes its time to start."""
WORKS = (("product", PRODUCT_SIDES), ("sum", SUM_SIDES))


def calibrate(mesh: JaxMesh, *, sizes: Sequence[int] = SIZES, repeats: int = 3) -> tuple[Network, Calibration]:
    """The network of a mesh's devices, one level per axis or one of all, and how well messages are predicted.

    It compiles and runs an exchange per axis and size, and some steps, seconds in all; give what it finds as
    `network=`.

    Args:
        mesh: of all devices that reshards will use; its order must be a transposition of digits of the places in
            `jax.devices()`, as that of a mesh of `jax.make_mesh` is.
        sizes: bytes to send, at least six sizes.
        repeats: how often each is measured; the median counts.

    Raises:
        ReshardError: `bad-network` where the mesh has no such order or larger messages do not take longer;
            `bad-argument`.
    """
    expect(mesh, JaxMesh, "what is calibrated")
    ours = mesh_of(mesh)
    guess = Network.of(ours, {name: ("switch", 1e9, 1e-6) for name, _ in ours.axes}, name="devices")
    programs: dict[tuple[Pairs, int], Callable[[], Any]] = {}

    def time_exchange(_: int, n_bytes: int, pairs: Pairs) -> float:
        if (pairs, n_bytes) not in programs:
            programs[pairs, n_bytes] = _exchange(mesh, n_bytes, pairs)
        call = programs[pairs, n_bytes]
        return min(repeat(call, repeat=RUNS, number=1))

    chains: dict[Chain, Callable[[], Any]] = {}

    def time_chain(steps: Chain) -> float:
        if steps not in chains:
            chains[steps] = _plan(mesh, Plan(reshard_of_chain(steps), steps))
        return min(repeat(chains[steps], repeat=WARM_RUNS, number=1))

    network, fit = fitted_to_engine(guess, ours, time_exchange, time_chain, sizes=sizes, repeats=repeats)
    works = {(name, side): _work(mesh, name, side) for name, sides in WORKS for side in sides}
    return fitted_to_work(network, lambda side: works["product", side](), lambda side: works["sum", side]()), fit


def calibrate_like(mesh: Mesh, *, repeats: int = 3) -> tuple[Network, Calibration]:
    """`calibrate` for a mesh of ours, over `jax.devices()`.

    Raises:
        ReshardError: as `calibrate`; `unknown-device` where JAX has too few devices.
    """
    return calibrate(jax_mesh_like(mesh), repeats=repeats)


def _exchange(mesh: JaxMesh, n_bytes: int, pairs: Pairs) -> Callable[[], Any]:
    """A compiled run of rounds: every sender of the pairs sends so many bytes, to one receiver a round."""
    position = mesh_of(mesh).position_of
    sent: Counter[int] = Counter()
    rounds: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for sender, receiver in pairs:
        rounds[sent[sender]].append((position(sender), position(receiver)))
        sent[sender] += 1
    spec = PartitionSpec(mesh.axis_names)

    def send(tile: jax.Array) -> Any:
        return [lax.ppermute(tile, mesh.axis_names, ends) for ends in rounds.values()]

    program = jax.jit(jax.shard_map(send, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    tiles = jax.device_put(np.zeros(n_bytes * mesh.size, np.uint8), NamedSharding(mesh, spec))
    jax.block_until_ready(program(tiles))
    return lambda: jax.block_until_ready(program(tiles))


def _work(mesh: JaxMesh, name: str, side: int) -> Callable[[], float]:
    """What times a product or a sum of squares that every device makes of its own."""
    spec = PartitionSpec(mesh.axis_names)
    combined = jnp.matmul if name == "product" else jnp.add

    def turns(x: jax.Array, y: jax.Array) -> Any:
        return lax.fori_loop(0, TURNS, lambda _, each: combined(x, each), y)

    program = jax.jit(jax.shard_map(turns, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    squares = jax.device_put(np.zeros((mesh.size * side, side), np.float32), NamedSharding(mesh, spec))
    jax.block_until_ready(program(squares, squares))
    return lambda: min(repeat(lambda: jax.block_until_ready(program(squares, squares)), repeat=RUNS, number=1)) / TURNS


def _plan(mesh: JaxMesh, plan: Plan) -> Callable[[], Any]:
    """A compiled run of a plan."""
    tiles = jax.device_put(np.zeros(plan.shape, np.float32), NamedSharding(mesh, partition_spec_of(plan.source)))
    program = jax.jit(lambda x: run(plan, x)).lower(tiles).compile()
    jax.block_until_ready(program(tiles))
    return lambda: jax.block_until_ready(program(tiles))
