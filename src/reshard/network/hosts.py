"""What comes into each host, and what must.

A host is a group of devices that the levels below a given one join: on `h100-2x8` level 1 joins hosts of 8.

By hand, 4 rows on 2 hosts of 2, from `x` (rows cut over hosts) to everywhere: a host holds 2 rows and lacks 2.
Both of its devices ask for them, so an exchange brings in 4, but 2 are enough, to be passed on inside.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> from reshard.network.level import Level
>>> mesh = Mesh.of(x=2, y=2)
>>> network = Network.of(mesh, x=("switch", 50e9, 0), y=("switch", 450e9, 0))
>>> reshard = Reshard.of(Sharding.of(mesh, "x"), Sharding.of(mesh, None), (4,), "int8")
>>> host_bytes(Step(reshard), network, 1)
array([4, 4])
>>> host_bound(reshard, network, 1)
array([2, 2])
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from reshard.digits import NO_DIGITS, Digits, Positions
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.exchange import Exchange, class_digits
from reshard.mesh import ENUMERABLE
from reshard.network.networks import Network
from reshard.problem import Reshard
from reshard.steps import Step
from reshard.tiling import Tiling


def host_bytes(moved: Step | Exchange, network: Network, level: int, dtype: Any = None) -> Positions:
    """Bytes that come into each host from other hosts, as the pieces of the rounds bring them.

    Args:
        moved: a step, or an exchange.
        network: must reach all its devices.
        level: the lowest that joins hosts; those below join the devices of one.
        dtype: of an exchange, which does not know it.

    Raises:
        ReshardError: `bad-argument`, `bad-network`, `too-large`.
    """
    total = np.zeros(network.hosts(level), dtype=np.int64)
    if isinstance(moved, Step):
        exchanges, itemsize = [move.exchange for move in moved.moves], moved.dtype.itemsize
    elif dtype is None:
        raise ReshardError("bad-argument", "the bytes of an exchange need its dtype")
    else:
        exchanges, itemsize = [moved], dtype_named(dtype).itemsize
    for exchange in exchanges:
        senders, receivers, elements = exchange.traffic()
        places = [_hosts(network, level, devices) for devices in (senders, receivers)]
        crosses = places[0] != places[1]
        np.add.at(total, places[1][crosses], elements[crosses] * itemsize)
    return total


def host_bound(reshard: Reshard, network: Network, level: int) -> Positions:
    """Per host, the bytes that its devices need and none of them holds, each counted once.

    No plan brings less into the host.
    Where partial values are combined, a host holds what it has all parts of; of anything else at least one value
    must come in.

    Args:
        reshard: what is to be moved; the target is unreduced at most as the source is.
        network: must reach all devices.
        level: the lowest that joins hosts.

    Raises:
        ReshardError: `bad-argument` where the target is partial along what the source is not, `bad-network`,
            `too-large` where hosts have too many tiles to compare them.
    """
    for end in (reshard.source, reshard.target):
        end.check_plain("a host's bound")
    sides = Tiling.of(reshard.source, reshard.shape), Tiling.of(reshard.target, reshard.shape)
    classes = class_digits(*sides)
    combined = sides[0].layout.unreduced.without(classes.source)
    if sides[0].classes != sides[1].classes * combined.size:
        raise ReshardError("bad-argument", "a host's bound is unknown where values become partial")
    count = network.hosts(level)
    held = _tiles(sides[0], classes.source, combined, network, level)
    needed = _tiles(sides[1], classes.target, NO_DIGITS, network, level)
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, needed.host, needed.elements)
    starts = [np.searchsorted(side.host, np.arange(count + 1)) for side in (held, needed)]
    pairs = int((np.diff(starts[0]) * np.diff(starts[1])).sum())
    if pairs > ENUMERABLE:
        raise ReshardError("too-large", f"{pairs} pairs of tiles are too many to compare one by one")
    # every tile needed, as often as its host holds tiles, beside each of these
    times = np.diff(starts[0])[needed.host]
    need = np.repeat(np.arange(len(needed.host)), times)
    hold = np.arange(len(need)) - np.repeat(np.cumsum(times) - times, times) + starts[0][:-1][needed.host][need]
    shared = (held.classes[hold] == needed.classes[need]).astype(np.int64)
    for (low, high), (start, stop) in zip(held.bounds, needed.bounds, strict=True):
        shared *= np.maximum(np.minimum(high[hold], stop[need]) - np.maximum(low[hold], start[need]), 0)
    np.subtract.at(total, needed.host[need], shared)
    return total * reshard.dtype.itemsize


class _HostTiles(NamedTuple):
    """The different tiles on every host, sorted by host: tiles of one sharding are equal or do not overlap."""

    host: Positions
    classes: Positions
    """The number of the class of unreduced values."""
    bounds: list[tuple[Positions, Positions]]
    """Per dim, where they start and stop."""
    elements: Positions


def _tiles(tiling: Tiling, classes: Digits, combined: Digits, network: Network, level: int) -> _HostTiles:
    """The tiles on every host, those of which it lacks a part left out."""
    positions = tiling.mesh.positions
    hosts = _hosts(network, level, tiling.mesh.device_array)
    class_numbers = classes.index_of(positions)
    blocks = [digits.index_of(positions) for digits in tiling.layout.cutting]
    rows = np.stack([hosts, class_numbers, *blocks], axis=1)
    _, first, label = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    held_parts = np.unique(np.stack([label.reshape(-1), combined.index_of(positions)], axis=1), axis=0)
    chosen = first[np.bincount(held_parts[:, 0]) == combined.size]
    bounds = [(start[chosen], stop[chosen]) for start, stop in tiling.all_bounds]
    return _HostTiles(hosts[chosen], class_numbers[chosen], bounds, tiling.all_elements[chosen])


def _hosts(network: Network, level: int, devices: Positions) -> Positions:
    if len(devices) and int(devices.max()) >= network.size:
        raise ReshardError("bad-network", f"device {int(devices.max())} is beyond the {network.size} devices")
    return network.hosts_of(level, devices)
