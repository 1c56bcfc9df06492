"""Meshes that are parts of another, seen from the whole.

What tensor parallelism leaves alone lies on `mesh["dp"]`: on every rank another set of ranks, though the model has one
tensor of that name.
To take it elsewhere, all ranks must speak of one thing: it is replicated along the mesh dims that the part leaves out.

By hand, on a mesh `dp=2, tp=2` of ranks 0 to 3, `mesh["dp"]` is ranks 0 and 2 to rank 0, and 1 and 3 to rank 1.
Lifted, both are one mesh of two axes, `dp` and one for the two groups, over ranks 0, 2, 1, 3; a dim cut by `dp` is
cut by it still, and what is held along the other axis is equal.

From a part to that same part nothing is lifted: there each group may hold values of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from torch.distributed.device_mesh import DeviceMesh

from reshard.mesh import Mesh
from reshard.torch.dtensor_specs import CACHED, mesh_of


class LiftedEnds(NamedTuple):
    """The meshes that a tensor is on and goes to, as all ranks see them."""

    source: Mesh
    target: Mesh
    replicas: tuple[int, ...] = ()
    """The ranks that hold what this one does because the source is a part of a mesh, itself included."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """All that take part, in order."""
        return tuple(sorted({*self.source.devices, *self.target.devices}))


def ends_of(source: DeviceMesh, target: DeviceMesh, rank: int) -> LiftedEnds:
    """What a tensor is on and goes to; parts of a mesh are lifted to it, unless both are over the same ranks."""
    before, after = mesh_of(source), mesh_of(target)
    if {*before.devices} == {*after.devices}:
        return LiftedEnds(before, after)
    lifted = _lifted(source), _lifted(target)
    replicas: tuple[int, ...] = ()
    if lifted[0] is not before and rank in before:
        line = len(before.devices)
        replicas = tuple(lifted[0].devices[lifted[0].position_of(rank) % line :: line])
    return LiftedEnds(*lifted, replicas)


@lru_cache(CACHED)
def _lifted(mesh: DeviceMesh) -> Mesh:
    """The mesh of all groups that are to its root what this one is; itself where it is no part of another.

    The groups are found by their places in the root: those of one are those of another, shifted.
    """
    ours, root = mesh_of(mesh), mesh_of(mesh._get_root_mesh())
    if root.size == ours.size:
        return ours
    places = [root.position_of(rank) for rank in ours.devices]
    offsets = [place - min(places) for place in places]
    ranks: list[int] = []
    free = dict.fromkeys(range(root.size))
    while free:
        group = [min(free) + offset for offset in offsets]
        if not all(free.pop(place, ...) is None for place in group):
            return ours
        ranks += [root.device_at(place) for place in group]
    across = next(name for name in ("groups", *(f"groups{n}" for n in range(ours.size))) if name not in ours.sizes)
    return Mesh(((across, root.size // ours.size), *ours.axes), tuple(ranks))


def forget_lifted() -> None:
    """Let go of the meshes that are kept."""
    _lifted.cache_clear()
