"""A redistribute as one rank does it, made once per source spec and target, and kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from reshard.errors import ReshardError
from reshard.planner import plan as make_plan
from reshard.plans import Options, Plan
from reshard.sharding import Sharding
from reshard.torch.agreement import Statement, digest_of
from reshard.torch.dtensor_specs import (
    AnyPlacements,
    as_key,
    dtype_of,
    mesh_of,
    meta_of,
    placements_of,
    sharding_of,
    target_placements,
    text_of,
)
from reshard.torch.exchange import Finish, Post
from reshard.torch.lifting import ends_of
from reshard.torch.local_plan import LocalPlan, local_plan
from reshard.torch.stand_ins import Map, StandIns, norms_in, stand_ins
from reshard.torch.world import World

PLAIN = Options()
"""What a plan has to keep to where nothing is asked for."""


@dataclass(frozen=True)
class Redistribution:
    """What one rank does to take a DTensor from its source to its target."""

    local: LocalPlan
    source: DTensorSpec
    target: DTensorSpec
    statement: Statement
    """What all ranks that take part must agree on."""
    replicas: tuple[int, ...] = ()
    """The ranks that must hold the tile of this one, because each of them sees a part of one mesh as its source."""
    before: Map | None = None
    """Makes what travels of the tile; None where it travels itself."""
    after: Map | None = None
    """Makes the new tile of what has come."""

    @property
    def options_back(self) -> Options:
        """What the plan of the gradient has to keep to: it may come whole, so the limit on memory is not its limit."""
        return replace(self.local.plan.options, memory_limit=None)

    def pack(self, tile: torch.Tensor, out: torch.Tensor | None = None, workspace: torch.Tensor | None = None) -> Post:
        """Make ready; what is given back begins, and what that gives back ends with the new tile.

        Raises:
            ReshardError: `exchange-failed`, here or later.
        """
        if self.before is not None:
            tile = self.before(tile)
            workspace = None if workspace is None else workspace.view(tile.dtype)
        after = self.after
        if after is None:
            return self.local.pack(tile, out, workspace)
        post = self.local.pack(tile, None, workspace)

        def begin() -> Finish:
            finish = post()
            return lambda: after(finish()) if out is None else out.copy_(after(finish()))

        return begin

    def run(self, tile: torch.Tensor) -> torch.Tensor:
        """The new tile, the tile itself where nothing changes.

        Raises:
            ReshardError: `exchange-failed`.
        """
        return self.pack(tile)()()


def redistribution_for(
    world: World,
    source: DTensorSpec,
    target: AnyPlacements,
    mesh: DeviceMesh | None,
    *,
    joint: bool = False,
    options: Options = PLAIN,
) -> Redistribution:
    """What this rank does, kept or made.

    Args:
        world: what it is kept in.
        source: where the tensor is.
        target: where it is wanted.
        mesh: what the target is on, where not on the mesh of the source.
        joint: whether what can goes by collectives that all ranks of a group join, and not by sends and receives.
        options: what the plan has to keep to.

    Raises:
        ReshardError: as `redistribute` where the target cannot be.
    """
    key = (source, as_key(target), mesh, joint, None if options is PLAIN else options)
    return world.once(key, lambda: _made(source, target, mesh, world.rank, options, joint=joint))


def redistribution_of_plan(world: World, source: DTensorSpec, plan: Plan, mesh: DeviceMesh | None) -> Redistribution:
    """What this rank does of a plan that is given.

    Raises:
        ReshardError: as `reshard.torch.run` where the plan is not for this source, or ends where no placements are.
    """
    return world.once((source, plan, mesh), lambda: _of_plan(source, plan, mesh, world.rank))


def _made(
    source: DTensorSpec,
    target: AnyPlacements,
    mesh: DeviceMesh | None,
    rank: int,
    options: Options,
    *,
    joint: bool,
) -> Redistribution:
    meta = meta_of(source)
    shape = tuple(meta.shape)
    target_mesh = source.mesh if mesh is None else mesh
    try:
        kept = (*source.placements, *norms_in(target))
        placements = target_placements(target, target_mesh, len(shape), shape, kept)
    except ReshardError as error:
        if mesh is None and isinstance(target, Sharding) and error.code in ("different-meshes", "cannot-express"):
            raise ReshardError(error.code, f"{error}; give the DeviceMesh that the result is on") from None
        raise
    planned = stand_ins(source, placements, target_mesh)
    ends = ends_of(source.mesh, target_mesh, rank)
    before = sharding_of(planned.source, on=ends.source)
    after = sharding_of(planned.target, target_mesh, len(shape), ends.target)
    plan = make_plan(
        before,
        after,
        shape,
        dtype_of(meta_of(planned.source).dtype),
        network=options.network,
        basis=options.basis,
        memory_limit=options.memory_limit,
    )
    return _prepared(plan, planned, source, DTensorSpec(target_mesh, placements, tensor_meta=meta), rank, joint=joint)


def _of_plan(source: DTensorSpec, plan: Plan, mesh: DeviceMesh | None, rank: int) -> Redistribution:
    meta = meta_of(source)
    shape, dtype = tuple(meta.shape), dtype_of(meta.dtype)
    if (plan.shape, plan.dtype) != (shape, dtype):
        raise ReshardError(
            "bad-argument", f"the plan is for {plan.shape} of {plan.dtype}; the DTensor is {shape} of {dtype}"
        )
    lies = sharding_of(source)
    if not plan.source.is_equivalent_to(lies, shape):
        raise ReshardError("bad-argument", f"the plan starts at {plan.source}; the DTensor lies as {lies}")
    target_mesh = source.mesh if mesh is None else mesh
    try:
        placements = placements_of(plan.target, target_mesh, shape)
    except ReshardError as error:
        if mesh is None and error.code == "different-meshes":
            raise ReshardError(error.code, f"{error}; give the DeviceMesh that the result is on") from None
        raise
    result = DTensorSpec(target_mesh, placements, tensor_meta=meta)
    return _prepared(plan, StandIns(source, placements), source, result, rank)


def _prepared(
    plan: Plan, planned: StandIns, source: DTensorSpec, target: DTensorSpec, rank: int, *, joint: bool = False
) -> Redistribution:
    """This rank's part of a plan, and what is done to its tiles on either side of it."""
    if target.mesh.device_type != source.mesh.device_type:
        raise ReshardError(
            "bad-argument",
            f"a tensor on {source.mesh.device_type} cannot go to a mesh of {target.mesh.device_type}; move it first",
        )
    shape, dtype = plan.shape, plan.dtype
    size = "x".join(map(str, shape)) or "a scalar"
    is_moved = target.mesh != source.mesh
    starts, ends = (f" on {mesh_of(spec.mesh)}" if is_moved else "" for spec in (source, target))
    words = (
        f"redistribute {size} of {dtype_of(meta_of(source).dtype)} from {text_of(source.placements)}{starts} to "
        f"{text_of(target.placements)}{ends}"
    )
    local = local_plan(plan, rank, {plan.source.mesh: source.mesh}, meta_of(planned.source).dtype, words, joint=joint)
    steps = [
        (step.kind, str(step.after), step.near, step.chunks, step.ring, str(step.kept), step.across, share.parts)
        for share in plan.shares
        for step in share.steps
    ]
    digest = digest_of(str(plan.source), str(plan.target), shape, dtype.name, steps, plan.options.memory_limit)
    lifted = ends_of(source.mesh, target.mesh, rank)
    ranks = tuple(sorted({*plan.source.mesh.devices, *plan.target.mesh.devices}))
    replicas = () if any(placement.is_partial() for placement in source.placements) else lifted.replicas
    return Redistribution(
        local, source, target, Statement(ranks, digest, words), replicas, planned.before, planned.after
    )
