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

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reshard.array_tiles import Array
from reshard.checks import expect, shown
from reshard.errors import ReshardError
from reshard.numpy.tiles import Tiles, gather, scatter
from reshard.numpy.tiles import run as run_plan
from reshard.numpy.verbs import VERBS
from reshard.operations.interpreter import BoxExtents, compute
from reshard.operations.operation import Operation
from reshard.propagation import Placement
from reshard.propagation.running import Engine, run


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
            received, where given, in all turns of the loops around it.

    Raises:
        ReshardError: `bad-tiles` where an input is missing or has another shape; `bad-program` where an operation
            is not known here.
    """
    expect(placed, Placement, "what is run")
    if not isinstance(inputs, Mapping):
        raise ReshardError("bad-tiles", f"inputs must be a mapping from name to array, got: {shown(inputs)}")
    tiles = []
    for value in placed.inputs:
        array = np.asarray(inputs.get(value.name))
        if array.shape != value.shape:
            raise ReshardError("bad-tiles", f"input {value.name} must be given with shape {value.shape}")
        tiles.append(scatter(array, placed.shardings[value]))
    return run(placed, _AllDevices(placed, {} if received_bytes is None else received_bytes), tiles)


class _AllDevices(Engine):
    """All devices; a tile is a dictionary with one of each."""

    def __init__(self, placed: Placement, received_bytes: dict[str, int]) -> None:
        self.placed, self.received_bytes = placed, received_bytes

    def compute(self, operation: Operation, tiles: Sequence[Tiles]) -> Any:
        """The tiles of a result; of an output, the whole array."""
        value, sharding = operation.result, self.placed.shardings[operation.result]
        if operation.name == "constant":
            return scatter(np.full(value.shape, operation.attribute("value"), dtype=value.dtype.name), sharding)
        if value in self.placed.plans:
            counts: dict[int, int] = {}
            moved = run_plan(self.placed.plans[value], tiles[0], received_bytes=counts)
            before = self.received_bytes.get(value.name, 0)
            self.received_bytes[value.name] = before + max(counts.values(), default=0)
            return moved
        if operation.name == "output":
            return gather(tiles[0], sharding, value.shape)
        shardings = [self.placed.shardings[value] for value in operation.values]
        results = {}
        with np.errstate(all="ignore"):  # infinities are numbers like others
            for device in sharding.mesh.devices:
                extents = BoxExtents(operation, shardings, device)
                results[device] = compute(VERBS, operation, extents, [by_device[device] for by_device in tiles])
        return results

    def number(self, tile: Tiles) -> int:
        """The one number that all devices have."""
        return int(next(iter(tile.values())))

    def part(self, tile: Tiles, turn: int) -> Tiles:
        """A part of dim 0, of which every device has all."""
        return {device: array[turn] for device, array in tile.items()}

    def stacked(self, stack: Operation, tiles: list[Tiles]) -> Tiles:
        """Tiles one after another in a new dim 0."""
        value, sharding = stack.result, self.placed.shardings[stack.result]
        boxes = {device: sharding.box(device, value.shape) for device in sharding.mesh.devices}
        if not tiles:
            return {device: np.empty(box.shape, value.dtype.name) for device, box in boxes.items()}
        return {device: np.stack([tile[device] for tile in tiles]) for device in boxes}
