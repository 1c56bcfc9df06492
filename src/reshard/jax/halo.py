"""`halo`: every device's tile with a border of others' elements around it, by neighbour permutes of the border alone.

What a device stores lies side by side in one array, so that a `shard_map` over it, or any code that keeps tiles apart,
sees tiles with their borders.
A window so wide that it goes round and meets itself is sent as it stands, the same element as often as it comes.
A border that is wider than a tile takes several hops: hop h brings what lies h devices away.
Dims go one after the other, and each takes the borders of those before it along, so corners come by themselves.
All of it is permutes, slices and joins, so its derivative is the permutes the other way and additions.

Where a dim is cut unevenly, tiles are blocks of the ceiling, the last ones short or empty, as XLA has them.
Then neighbours differ, and borders come by the plan to the windows; all blocks are as long as the longest window, and
what lies beyond a shorter one is zero.

By hand, 8 rows on 4 devices with one row of each neighbour: device 1 stores rows 1, 2, 3 and 4.

>>> import numpy as np
>>> mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
>>> x = jax.device_put(np.arange(4), jax.NamedSharding(mesh, jax.P("x")))
>>> print(halo(x, {0: (1, 2)}, "wrap"))
[3 0 1 2 3 0 1]
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import NamedSharding
from jax.typing import ArrayLike

from reshard.checks import shown
from reshard.deal import Window
from reshard.errors import ReshardError
from reshard.jax.exchange.device import Device
from reshard.jax.exchange.lowering import run_on_device
from reshard.jax.jax_shardings import names_in, sharding_of
from reshard.planner import plan as make_plan
from reshard.sharding import Sharding
from reshard.tiling import Tiling


def halo(
    x: ArrayLike, widths: Mapping[int, tuple[int, int]], edge: str = "pad", sharding: NamedSharding | None = None
) -> jax.Array:
    """The tiles of an array with borders, side by side: of size parts * (low + tile + high) in each dim.

    In and out of `jit`, under `grad`, `vmap` and `scan`.
    Where the parts do not divide a dim, a tile is the ceiling, and a shorter window ends in zeros.

    Args:
        x: an array; one of which a dim is cut unevenly says by `sharding` where it is.
        widths: per dim how many elements before each tile, and how many after it.
        edge: at the ends of the tensor the border goes round (`wrap`) or is zero (`pad`); `clip` is filled with zeros
            too, for all tiles of an array have one size, and `Sharding.with_halo` says what is not.
        sharding: a `NamedSharding`, where a traced array on Auto axes is.

    Raises:
        ReshardError: `unknown-mesh` where it is not known where the array is, `bad-window`, `rank-mismatch`,
            `bad-argument`.
    """
    x = jnp.asarray(x)
    placed = _placed(x, sharding)
    ours = sharding_of(placed, None, x.ndim)
    windows = {dim: one.window for dim, one in enumerate(ours.with_halo(dict(widths), edge).dims) if one.window}
    if not windows:
        return x
    for dim, window in windows.items():
        if not x.shape[dim]:
            raise ReshardError("bad-window", f"dim {dim} of shape {x.shape} is empty; {window} has no elements")
    if not Tiling.of(ours, x.shape).is_even():
        return _by_plan(x, placed, ours, windows)
    cuts = [*map(names_in, placed.spec.partitions), *[()] * (x.ndim - len(placed.spec.partitions))]
    windows = dict(sorted(windows.items(), key=lambda item: not cuts[item[0]]))  # what is whole grows last, for nothing
    lines = {dim: _Line.of(placed.mesh.shape, cuts[dim]) for dim in windows}

    def bordered(tile: jax.Array) -> jax.Array:
        for dim, window in windows.items():
            low, high = (_border(tile, dim, lines[dim], window, towards) for towards in (1, -1))
            tile = jnp.concatenate([*reversed(low), tile, *high], axis=dim)
        return tile

    spec = jax.P(*placed.spec.partitions)
    result: jax.Array = jax.shard_map(bordered, mesh=placed.mesh, in_specs=spec, out_specs=spec)(x)
    return result


def _by_plan(x: jax.Array, placed: NamedSharding, ours: Sharding, windows: Mapping[int, Window]) -> jax.Array:
    """The same of an array that is cut unevenly, padded to whole blocks."""
    spec, names = jax.P(*placed.spec.partitions), tuple(placed.mesh.shape)
    views = {dim: _View.of(ours, dim, x.shape[dim], window) for dim, window in windows.items()}
    target = ours.with_windows({dim: view.window for dim, view in views.items()})
    plan = make_plan(ours, target, x.shape, x.dtype)
    whole = [ours.layout.parts[dim] * tile - x.shape[dim] for dim, tile in enumerate(ours.local_shape(x.shape))]

    def bordered(tile: jax.Array) -> jax.Array:
        device = Device.here(names)
        tile = run_on_device(plan, names, tile)
        for dim, view in views.items():
            places = device.row_of(view.places)
            shape = [-1 if each == dim else 1 for each in range(tile.ndim)]
            if view.comes_twice:
                tile = jnp.take(tile, jnp.maximum(places, 0), axis=dim)
            tile = jnp.where((places >= 0).reshape(shape), tile, jnp.zeros_like(tile))
        return tile

    blocks = jnp.pad(x, [(0, more) for more in whole])
    run = jax.shard_map(bordered, mesh=placed.mesh, in_specs=spec, out_specs=spec, check_vma=False)
    result: jax.Array = run(blocks)
    return result


class _View(NamedTuple):
    """What devices store of a dim that is cut unevenly."""

    window: Window
    """What they fetch for it: of windows that meet themselves, every element once."""
    places: np.ndarray[Any, np.dtype[np.int32]]
    """Per position, and place of what is stored, where in what is fetched that lies; -1 where nothing is."""
    comes_twice: bool
    """Whether some element stands at several places."""

    @classmethod
    def of(cls, ours: Sharding, dim: int, size: int, halo: Window) -> _View:
        """Of a dim of so many elements, with that halo."""
        layout, positions = ours.layout, ours.mesh.positions
        start, stop = layout.blocks(dim, size)
        owns = start < stop
        low, high = np.where(owns, start - halo.low, 0), np.where(owns, stop + halo.high, 0)
        if halo.edge == "clip":
            low, high = np.maximum(low, 0), np.minimum(high, size)
        goes_round = halo.edge == "wrap"
        ends = np.minimum(high, low + size) if goes_round else high
        window = Window(spans=tuple(zip(low.tolist(), ends.tolist(), strict=True)), edge=halo.edge)
        along = np.arange((high - low).max())[None, :]
        elements = low[:, None] + along
        is_there = (along < (high - low)[:, None]) & (goes_round | ((elements >= 0) & (elements < size)))
        places = np.where(is_there, along % size if goes_round else along, -1).astype(np.int32)
        return cls(window, places[layout.cutting[dim].index_of(positions)], bool((ends < high).any()))


def _placed(x: jax.Array, sharding: Any) -> NamedSharding:
    """Where an array is."""
    if sharding is None and isinstance(x, jax.core.Tracer):
        sharding = jax.typeof(x).sharding
        if sharding.mesh.empty or not sharding.mesh.are_all_axes_explicit:
            raise ReshardError("unknown-mesh", "a traced array on Auto axes does not say where it is; give `sharding`")
    sharding = x.sharding if sharding is None else sharding
    if not isinstance(sharding, NamedSharding):
        raise ReshardError("bad-argument", f"an array must lie by a NamedSharding, got: {shown(sharding)}")
    return sharding


class _Line(NamedTuple):
    """The devices that cut a dim, one after the other."""

    axes: tuple[Any, ...]
    """In the order of the mesh, as permutes number devices whatever order they are told."""
    numbers: tuple[int, ...]
    """Per shard of the dim its number among these."""

    @classmethod
    def of(cls, sizes: Mapping[Any, int], axes: tuple[Any, ...]) -> _Line:
        """Of a dim that these axes cut, major to minor, on a mesh of these sizes."""
        ordered = tuple(name for name in sizes if name in axes)
        grid = np.arange(prod(sizes[name] for name in axes)).reshape([sizes[name] for name in ordered])
        return cls(ordered, tuple(grid.transpose([ordered.index(name) for name in axes]).ravel().tolist()))


def _border(tile: jax.Array, dim: int, line: _Line, window: Window, towards: int) -> list[jax.Array]:
    """What comes from so many devices away, the nearest first: from below with `towards` 1, from above with -1."""
    rows, length = [], tile.shape[dim]
    missing, hop = window.low if towards > 0 else window.high, 1
    while missing > 0:
        count = min(length, missing)
        first = length - count if towards > 0 else 0
        sent = lax.slice_in_dim(tile, first, first + count, axis=dim)
        rows.append(_hopped(sent, line, hop * towards, wraps=window.edge == "wrap"))
        missing, hop = missing - count, hop + 1
    return rows


def _hopped(sent: jax.Array, line: _Line, hop: int, *, wraps: bool) -> jax.Array:
    """What the device so many places before sends; zero where there is none."""
    parts = len(line.numbers)
    if wraps and hop % parts == 0:
        return sent
    if not wraps and abs(hop) >= parts:
        return jnp.zeros_like(sent)
    shards = [(shard, (shard + hop) % parts) for shard in range(parts) if wraps or 0 <= shard + hop < parts]
    return lax.ppermute(sent, line.axes, [(line.numbers[before], line.numbers[after]) for before, after in shards])
