"""`halo`: every tile with a border of others' elements around what its device owns.

>>> from reshard.mesh import Mesh
>>> from reshard.numpy.tiles import scatter
>>> rows = Sharding.of(Mesh.of(x=2), "x")
>>> {device: tile.tolist() for device, tile in halo(scatter(np.arange(6), rows), rows, {0: (1, 1)}, "wrap").items()}
{0: [5, 0, 1, 2, 3], 1: [2, 3, 4, 5, 0]}
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reshard.array_tiles import Array
from reshard.checks import expect
from reshard.errors import ReshardError
from reshard.notation import as_sharding
from reshard.numpy.tiles import Tiles, run
from reshard.planner import plan
from reshard.sharding import Sharding


def halo(
    tiles: Mapping[int, Array], sharding: Sharding, widths: Mapping[int, tuple[int, int]], edge: str = "clip"
) -> Tiles:
    """The tiles of a sharding, grown by a border; each device receives the border and nothing else.

    Args:
        tiles: per device its tile.
        sharding: where they lie.
        widths: per dim how many elements before what a device owns, and how many after.
        edge: what is done at the ends of the tensor: `clip`, `wrap`, or `pad` with zeros.

    Raises:
        ReshardError: `bad-window`, `rank-mismatch`, `bad-tiles`.
    """
    sharding = as_sharding(sharding)
    target = sharding.owned().with_halo(widths, edge)
    first = next(iter(expect(tiles, dict, "tiles", "bad-tiles").values()), None)
    if first is None:
        raise ReshardError("bad-tiles", "tiles must be a mapping from device to array, of one device at the least")
    shape = _shape_of(tiles, sharding)
    return run(plan(sharding, target, shape, np.asarray(first).dtype), tiles)


def _shape_of(tiles: Mapping[int, Array], sharding: Sharding) -> tuple[int, ...]:
    """The shape of the whole tensor: in each dim the tiles of its shards one after the other."""
    if sharding.has_windows:
        raise ReshardError("bad-tiles", "the tiles of windows do not say how large the tensor is; give what is owned")
    layout, devices = sharding.layout, sharding.mesh.device_array
    shape = []
    for dim in range(len(sharding.dims)):
        lengths: dict[int, int] = {}
        for shard, device in zip(
            layout.cutting[dim].index_of(sharding.mesh.positions).tolist(), devices.tolist(), strict=True
        ):
            shapes = np.shape(tiles[device]) if device in tiles else ()
            if len(shapes) != len(sharding.dims):
                raise ReshardError("bad-tiles", f"the tile of device {device} has {len(shapes)} dims, or is missing")
            lengths[shard] = shapes[dim]
        shape.append(sum(lengths.values()))
    return tuple(shape)
