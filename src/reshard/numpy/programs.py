"""A placed program, run in one process: every device computes its tiles of every value from its tiles of others.

No device reads what another holds but by the plans of the reshards, so that what comes out shows that the compute
layouts are right.

>>> from reshard.mesh import Mesh
>>> from reshard.propagation import Program
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=2)
>>> program = Program(mesh)
>>> a = program.input("a", (2, 4), "float64", Sharding.of(mesh, None, "x"))
>>> out = program.output(program.op("ij->i", a, name="sum"), Sharding.of(mesh, "x"), result="out")
>>> placed = program.propagate()
>>> run_program(placed, {"a": np.arange(8.0).reshape(2, 4)})
{'out': array([ 6., 22.])}
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reshard.checks import expect, shown
from reshard.errors import ReshardError
from reshard.numpy.tiles import Array, Tiles, gather, run, scatter
from reshard.numpy.verbs import VERBS
from reshard.operations.interpreter import BoxExtents, compute
from reshard.propagation import Placement


def run_program(
    placed: Placement,
    inputs: Mapping[str, Array],
    *,
    received_bytes: dict[str, int] | None = None,
) -> dict[str, Array]:
    """Run a placed program device by device; its outputs, whole, by name.

    Args:
        placed: what to run.
        inputs: whole arrays by the names of the inputs.
        received_bytes: filled, per reshard by the name of what it makes, with the bytes that the busiest device
            received, where given. An operation runs once here, so what has several turns counts as in one of them
            (see `Operation.turns`).

    Raises:
        ReshardError: `bad-tiles` where an input is missing or has another shape; `bad-program` where an operation
            is not known here.
    """
    expect(placed, Placement, "what is run")
    if not isinstance(inputs, Mapping):
        raise ReshardError("bad-tiles", f"inputs must be a mapping from name to array, got: {shown(inputs)}")
    tiles: dict[str, Tiles] = {}
    results: dict[str, Array] = {}
    for operation in placed.operations:
        value, sharding = operation.result, placed.sharding(operation.result)
        if operation.name == "input":
            array = np.asarray(inputs.get(value.name))
            if array.shape != value.shape:
                raise ReshardError("bad-tiles", f"input {value.name} must be given with shape {value.shape}")
            tiles[value.name] = scatter(array, sharding)
        elif operation.name == "constant":
            whole = np.full(value.shape, operation.attribute("value"), dtype=value.dtype.name)
            tiles[value.name] = scatter(whole, sharding)
        elif value in placed.plans:
            counts: dict[int, int] = {}
            tiles[value.name] = run(placed.plans[value], tiles[operation.operands[0].name], received_bytes=counts)
            if received_bytes is not None:
                received_bytes[value.name] = max(counts.values(), default=0)
        elif operation.name == "output":
            tiles[value.name] = tiles[operation.operands[0].name]
            results[value.name] = gather(tiles[value.name], sharding, value.shape)
        else:
            shardings = [placed.sharding(value) for value in operation.values]
            sources = [tiles[operand.name] for operand in operation.operands]
            with np.errstate(all="ignore"):  # infinities are numbers like others
                tiles[value.name] = {
                    device: compute(
                        VERBS, operation, BoxExtents(operation, shardings, device), [own[device] for own in sources]
                    )
                    for device in sharding.mesh.devices
                }
    return results
