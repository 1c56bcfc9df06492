"""A redistribute as one rank does it, made once per source spec and target, and kept.

Sums beside averages are one reduction, for an average is a sum divided by the number of ranks: what is reduced of the
averages is divided at the end, what stays partial is left as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from reshard.errors import ReshardError
from reshard.planner import plan as make_plan
from reshard.sharding import Sharding
from reshard.torch.agreement import Statement, digest_of
from reshard.torch.conversions import (
    AnyPlacements,
    as_key,
    dtype_of,
    mesh_of,
    meta_of,
    sharding_of,
    target_placements,
    text_of,
)
from reshard.torch.local_plan import LocalPlan, local_plan
from reshard.torch.world import World


@dataclass(frozen=True)
class Redistribution:
    """What one rank does to take a DTensor from its source to its target."""

    local: LocalPlan
    source: DTensorSpec
    target: DTensorSpec
    statement: Statement
    """What all ranks that take part must agree on."""


def redistribution_for(
    world: World, source: DTensorSpec, target: AnyPlacements, mesh: DeviceMesh | None
) -> Redistribution:
    """What this rank does, kept or made.

    Raises:
        ReshardError: as `redistribute` where the target cannot be.
    """
    return world.once((source, as_key(target), mesh), lambda: _made(source, target, mesh, world.rank))


def _made(source: DTensorSpec, target: AnyPlacements, mesh: DeviceMesh | None, rank: int) -> Redistribution:
    meta = meta_of(source)
    shape, dtype = tuple(meta.shape), dtype_of(meta.dtype)
    target_mesh = source.mesh if mesh is None else mesh
    if target_mesh.device_type != source.mesh.device_type:
        raise ReshardError(
            "bad-argument",
            f"a tensor on {source.mesh.device_type} cannot go to a mesh of {target_mesh.device_type}; move it first",
        )
    try:
        placements = target_placements(target, target_mesh, len(shape), shape)
    except ReshardError as error:
        if mesh is None and isinstance(target, Sharding) and error.code in ("different-meshes", "cannot-express"):
            raise ReshardError(error.code, f"{error}; give the DeviceMesh that the result is on") from None
        raise
    as_sums, target_as_sums, divisor = _averages_as_sums(source, placements, target_mesh)
    before, after = sharding_of(as_sums), sharding_of(target_as_sums, target_mesh, len(shape))
    words = (
        f"redistribute {'x'.join(map(str, shape)) or 'a scalar'} of {dtype} from {text_of(source.placements)} to "
        f"{text_of(placements)}" + ("" if mesh is None else f" on {mesh_of(mesh)}")
    )
    plan = make_plan(before, after, shape, dtype)
    ranks = tuple(sorted({*before.mesh.devices, *after.mesh.devices}))
    return Redistribution(
        replace(local_plan(plan, rank, {before.mesh: source.mesh}, meta.dtype, words), divisor=divisor),
        source,
        DTensorSpec(target_mesh, placements, tensor_meta=meta),
        Statement(ranks, digest_of(str(before), str(after), shape, dtype.name), words),
    )


def _averages_as_sums(
    source: DTensorSpec, target: tuple[Placement, ...], mesh: DeviceMesh
) -> tuple[DTensorSpec, tuple[Placement, ...], int]:
    """Source and target with sums in place of averages, and what to divide by, where the source has both."""
    average: Any = Partial("avg")
    if {placement.reduce_op for placement in source.placements if isinstance(placement, Partial)} != {"sum", "avg"}:
        return source, target, 1
    dtype_of(meta_of(source).dtype).check_reduction("avg")
    averaged = {mesh_dim for mesh_dim, placement in enumerate(source.placements) if placement == average}
    stays = {mesh_dim for mesh_dim in averaged if mesh == source.mesh and target[mesh_dim] == average}
    sums = replace(source, placements=_with_sums(source.placements, averaged))
    return sums, _with_sums(target, stays), prod(map(source.mesh.size, averaged - stays))


def _with_sums(placements: tuple[Placement, ...], mesh_dims: set[int]) -> tuple[Placement, ...]:
    return tuple(Partial() if mesh_dim in mesh_dims else placement for mesh_dim, placement in enumerate(placements))
