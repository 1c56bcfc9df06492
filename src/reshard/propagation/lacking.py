"""What devices lack of tiles that are not the same on all of them: windows, and tiles of dims that are cut unevenly.

What pieces cut evenly is known in closed form (`space.py`).
Else a tile is in each dim a few runs, device by device, and what a device has of another tile is the product of what
their runs share.

By hand, on x = 4, a dim of 2: two devices have an element each, two have none. Where all are to have both, the last two
lack both; from there on nobody lacks anything.

>>> from reshard.mesh import Mesh
>>> from reshard.propagation.space import Pieces
>>> mesh = Mesh.of(x=4)
>>> options = Options(Pieces(mesh, []), (2,), besides=[Option(((0,),))])
>>> [option.dims[0] for option in options.all]
[(), (0,)]
>>> lacked_unevenly(options, "ceil").tolist()
[[0.0, 0.0], [2.0, 0.0]]
"""

from __future__ import annotations

import numpy as np

from reshard.digits import spread
from reshard.propagation.space import Costs, Numbers, Option, Options
from reshard.sharding import Sharding


def lacked_of_windows(options: Options, uneven: str) -> dict[int, Costs]:
    """Per option with windows, by its number, the elements that the busiest device lacks where it has another option.

    Where values are combined, all of it comes from others.

    Args:
        options: of a value.
        uneven: the rule by which tiles are cut.
    """
    windows = {number: option.sharding for number, option in enumerate(options.all) if option.has_windows}
    if not windows:
        return {}
    tiles = _Tiles(options, uneven, np.arange(options.pieces.mesh.size))
    lacking: dict[int, Costs] = {}
    waits: dict[frozenset[int], list[int]] = {}
    for other, each in enumerate(options.all):
        waits.setdefault(frozenset(each.unreduced), []).append(other)
    for number, sharding in windows.items():
        if sharding is None:
            continue
        option = options.all[number]
        held, shared = tiles.shared(sharding)
        lacking[number] = (held - shared).max(axis=1)[tiles.of_option]
        for wait, others in waits.items():
            if wait.difference(option.unreduced):
                lacking[number][others] = held.max() if wait.issuperset(option.unreduced) else np.inf
            elif len(wait) < len(option.unreduced):
                lacking[number][others] = 0.0
    return lacking


def lacked_unevenly(options: Options, uneven: str) -> Costs:
    """Per pair of options, of which one cuts a dim unevenly, the elements that the busiest device lacks of the second.

    Of large meshes some devices are looked at; where values are combined, and where nothing is uneven, it says 0.

    Args:
        options: of a value.
        uneven: the rule by which tiles are cut.
    """
    lacking = np.zeros((len(options.all), len(options.all)))
    odd = np.flatnonzero(options.is_of_pieces & ~options.is_even).tolist()
    if not odd:
        return lacking
    tiles = _Tiles(options, uneven, spread(options.pieces.mesh.size))
    held = tiles.held()
    for number in odd:
        option = options.all[number]
        own, shared = tiles.shared(options.pieces.sharding(option._replace(unreduced=()), "sum", uneven))
        alike = np.array([option.unreduced == other.unreduced for other in options.all]) & options.is_of_pieces
        for pairs, lacks in (((slice(None), number), own - shared), ((number, slice(None)), held - shared)):
            lacking[pairs] = np.where(alike, lacks.max(axis=1)[tiles.of_option], 0.0)
    return lacking


class _Tiles:
    """The tiles of all options on some devices, without their windows; those that are alike once.

    Args:
        options: of a value.
        uneven: the rule by which tiles are cut.
        devices: the places of these devices in the mesh.
    """

    def __init__(self, options: Options, uneven: str, devices: Numbers) -> None:
        self._pieces, self._shape, self._devices = options.pieces, options.shape, devices
        self._known: dict[tuple[int, object], tuple[Costs, Costs]] = {}
        self._runs: list[Costs] = []
        """Per dim, of each way to cut it, where the run of each device begins and ends."""
        which: list[Numbers] = []
        for dim in range(len(options.shape)):
            lists: dict[tuple[int, ...], int] = {}
            which.append(np.array([lists.setdefault(option.dims[dim], len(lists)) for option in options.all]))
            dims = [((),) * dim + (axes,) + ((),) * (len(options.shape) - dim - 1) for axes in lists]
            cut = [options.pieces.sharding(Option(each), "sum", uneven) for each in dims]
            self._runs.append(np.stack([self._runs_of(sharding, dim)[:, 0] for sharding in cut]))
        self._ways, of_option = np.unique(np.stack(which), axis=1, return_inverse=True)
        self.of_option: Numbers = of_option.reshape(-1)
        """Per option its row in all tables."""

    def held(self) -> Costs:
        """Per row and device the elements of its tile."""
        held = np.ones((self._ways.shape[1], len(self._devices)))
        for runs, way in zip(self._runs, self._ways, strict=True):
            held *= (runs[:, 1] - runs[:, 0])[way]
        return held

    def shared(self, sharding: Sharding) -> tuple[Costs, Costs]:
        """Per device the elements that it has of a sharding, and per row and device those of them in its tile there."""
        held, shared = np.ones(len(self._devices)), np.ones((self._ways.shape[1], len(self._devices)))
        for dim, runs in enumerate(self._runs):
            key = dim, sharding.dims[dim]
            if key not in self._known:
                own = self._runs_of(sharding, dim)
                low, high = np.maximum(runs[:, 0, None], own[0]), np.minimum(runs[:, 1, None], own[1])
                self._known[key] = (own[1] - own[0]).sum(axis=0), np.maximum(high - low, 0.0).sum(axis=1)
            own_held, own_shared = self._known[key]
            held *= own_held
            shared *= own_shared[self._ways[dim]]
        return held, shared

    def _runs_of(self, sharding: Sharding, dim: int) -> Costs:
        """Where the runs of a sharding's dim begin and end that each device has: starts and stops, a row per run."""
        size, layout = self._shape[dim], sharding.layout
        key = sharding.dims[dim], size, sharding.uneven
        table = self._pieces.runs.get(key)
        if table is None:
            runs, shards = layout.runs(dim, size, held=True), layout.parts[dim]
            count = np.bincount(runs.shard, minlength=shards)
            table = self._pieces.runs[key] = np.zeros((2, max(int(count.max(initial=0)), 1), shards))
            place = np.arange(len(runs.shard)) - np.searchsorted(runs.shard, runs.shard)
            table[0, place, runs.shard], table[1, place, runs.shard] = runs.start, runs.stop
        return np.asarray(table[:, :, layout.cutting[dim].index_of(sharding.mesh.positions[self._devices])])
