"""Middles in which every device of a host has an equal part of what its host holds, where axes do not nest in hosts.

An axis of 16 on hosts of 72 gives a host four or five devices of each kind, so no axes of the mesh say "once in each
host"; a mesh of hosts and their devices does.
What hosts lack crosses once, by all ports alike, and is put in place inside.

By hand, 2 hosts of 6 devices, columns wanted by `model`: each host wants all of them, each device a sixth; and each has
all rows that `data` cuts.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(data=3, model=4)
>>> reshard = Reshard.of(Sharding.of(mesh, "data", None), Sharding.of(mesh, None, "model"), (12, 4))
>>> for middles in by_hosts(reshard, 6):
...     print(*(middle.text() for middle in middles), middles[0].mesh)
[{"device"}, {}] <["host"=2, "device"=6]>
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product

from reshard.digits import Digit
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.planner.held_by_hosts import held_by_hosts
from reshard.planner.tensor_digits import dim_cuts, sharding_of_cuts
from reshard.problem import Reshard
from reshard.sharding import Sharding


def by_hosts(reshard: Reshard, host: int) -> Iterator[tuple[Sharding, ...]]:
    """By way of what hosts hold at the source, of what they hold at the target, and of both.

    Args:
        reshard: on one mesh of consecutive devices, else there are none.
        host: devices per host.
    """
    mesh = reshard.source.mesh
    if mesh == reshard.target.mesh and mesh.device_ids is None and mesh.size % host == 0:
        leaving, arriving = (_cut_by_all(end, reshard.shape, host) for end in (reshard.source, reshard.target))
        yield from dict.fromkeys([*zip(leaving), *zip(arriving), *product(leaving, arriving)])


def _cut_by_all(end: Sharding, shape: Sequence[int], host: int) -> list[Sharding]:
    """What hosts hold of an end, all devices of a host cutting one of the dims besides.

    Nothing where an axis that cuts a dim lies neither inside hosts nor between them, or where the end is partial.
    """
    if end.is_woven or end.unreduced:
        return []
    mesh, held = Mesh.of(host=end.mesh.size // host, device=host), list[Sharding]()
    for cut, size in enumerate(shape):
        with suppress(ReshardError):  # dims have no such deal
            cutting = [held_by_hosts(end.mesh, dim.axes, host) for dim in end.dims]
            cutting[cut].append((host, Digit(1, host)))
            if size >= host:
                held.append(sharding_of_cuts(mesh, [dim_cuts(mesh, cuts) for cuts in cutting]))
    return held
