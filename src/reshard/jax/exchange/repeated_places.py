"""Windows that go round and meet themselves, or each other: an element then stands at several places of an array.

An exchange brings every element once, to the first of its places (`Span.runs_of`), from where the others are filled.
The other way round, where windows are summed, what stands at the others is first added to the first.

By hand, 4 elements on 2 devices, of which each stores 6 that begin before its own: device 0 has 3 0 1 2 3 0, so that
its last two places are filled from its first two.

>>> from reshard.deal import Window
>>> from reshard.tiling import Tiling
>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> rows = Sharding.of(Mesh.of(x=2), "x").with_windows({0: Window(spans=((-1, 5), (1, 7)), edge="wrap")})
>>> first_places(Tiling.of(rows, (4,)), 0).tolist()
[[0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 0, 1]]
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from numpy.typing import NDArray

from reshard.deal import stored_runs
from reshard.jax.exchange.device import Device
from reshard.tiling import Tiling


def first_places(tiling: Tiling, dim: int) -> NDArray[np.int32] | None:
    """Per position of the mesh and place of its array in a dim, the first place that has the same element.

    None where no element comes twice.
    """
    layout, size = tiling.layout, tiling.shape[dim]
    weave = layout.weave(dim)
    if weave is None or weave.window is None or not size:
        return None
    shards, longest = layout.parts[dim], layout.local_shape(tiling.shape)[dim]
    runs, wraps = stored_runs(weave, size), weave.window.edge == "wrap"
    if not (wraps and longest > 1) and len(np.unique(runs.shard)) == len(runs.shard):
        return None
    table = np.tile(np.arange(longest, dtype=np.int32), (shards, 1))
    for shard in range(shards):
        parts = [np.arange(*run) % size if wraps else np.arange(*run) for run in runs.of(shard)]
        elements = np.concatenate([*parts, np.zeros(0, dtype=np.int64)])
        _, first, number = np.unique(elements, return_index=True, return_inverse=True)
        table[shard, : len(elements)] = first[number.reshape(-1)]
    if (table == np.arange(longest)).all():
        return None
    return table[layout.cutting[dim].index_of(tiling.mesh.positions)]


def repeated(target: Tiling, device: Device, tile: jax.Array) -> jax.Array:
    """A tile that has every element at its first place, at all its places."""
    for dim in range(tile.ndim) if target.layout.has_windows else ():
        table = first_places(target, dim)
        if table is not None:
            tile = jnp.take(tile, device.row_of(table), axis=dim)
    return tile


def added(source: Tiling, device: Device, tile: jax.Array) -> jax.Array:
    """A summed tile with all that it has of an element at the first place of that."""
    for dim in range(tile.ndim) if source.layout.is_summed else ():
        table = first_places(source, dim)
        if table is not None:
            index: tuple[Any, ...] = (*[slice(None)] * dim, device.row_of(table))
            tile = jnp.zeros_like(tile).at[index].add(tile)
    return tile
