"""An einsum of DTensors as one rank does it: what is asked for, planned once per request, and kept by it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from reshard.contraction import EinsumPlan
from reshard.contraction import einsum as make_plan
from reshard.errors import ReshardError
from reshard.network import Network
from reshard.operations.gradient import backward_of
from reshard.operations.pattern import Pattern
from reshard.sharding import Sharding
from reshard.torch.agreement import Statement, digest_of
from reshard.torch.contraction import LocalContraction, local_contraction
from reshard.torch.dtensor_specs import (
    dtype_of,
    gradient_placements,
    mesh_of,
    meta_of,
    placements_of,
    sharding_of,
    spec_of,
    target_placements,
    text_of,
)
from reshard.torch.world import World


@dataclass(frozen=True)
class EinsumRequest:
    """Everything that a call depends on, but for the tiles: the key under which a call is kept."""

    pattern: Pattern
    specs: tuple[DTensorSpec, ...]
    target: Sharding | tuple[Placement, ...] | None
    mesh: DeviceMesh
    """That the result is on."""
    network: Network | None
    sizes: tuple[tuple[str, int], ...]
    """Of the labels that were given."""
    leave_partial: bool
    overlap: bool | None


@dataclass(frozen=True)
class LocalEinsum:
    """A request as one rank answers it."""

    request: EinsumRequest
    plan: EinsumPlan
    result: DTensorSpec
    contraction: LocalContraction
    statement: Statement
    """What all ranks that take part must agree on."""


def local_einsum(world: World, request: EinsumRequest) -> LocalEinsum:
    """What this rank does for a request, kept or made.

    Raises:
        ReshardError: as `reshard.torch.einsum` where it cannot be.
    """
    return world.once(request, lambda: _made(request, world.rank))


def flowing_to(local: LocalEinsum, number: int, gradient: DTensorSpec) -> EinsumRequest:
    """The einsum of what flows back to an operand: of the gradient, the other operands, and identities on all ranks."""
    request, plan = local.request, local.plan
    spec = request.specs[number]
    backward = backward_of(plan.expression, number, plan.expression_sizes)
    opposite = (factor for place, factor in enumerate(request.specs) if place != number)
    whole, dtype = (Replicate(),) * spec.mesh.ndim, meta_of(spec).dtype
    identities = (spec_of(spec.mesh, whole, (size, size), dtype) for size in backward.identity_sizes)
    return replace(
        request,
        pattern=backward.pattern,
        specs=(gradient, *opposite, *identities),
        target=gradient_placements(spec.placements),
        mesh=spec.mesh,
        sizes=tuple(backward.sizes.items()),
        leave_partial=False,
    )


def factors_of(
    request: EinsumRequest, tiles: Sequence[torch.Tensor], number: int, gradient: torch.Tensor
) -> list[torch.Tensor]:
    """The tiles of what flows back to an operand, for a request of `flowing_to`: its identities are made here."""
    opposite = [tile for place, tile in enumerate(tiles) if place != number]
    factors = [gradient, *(tile.conj().resolve_conj() if tile.is_complex() else tile for tile in opposite)]
    identities = request.specs[len(factors) :]
    return factors + [torch.eye(spec.shape[0], dtype=gradient.dtype, device=gradient.device) for spec in identities]


def _made(request: EinsumRequest, rank: int) -> LocalEinsum:
    """Plan a call, and make this rank's part.

    Raises:
        ReshardError: as `einsum` where it cannot be.
    """
    specs, mesh = request.specs, request.mesh
    dtype = meta_of(specs[0]).dtype
    types = {spec.mesh.device_type for spec in specs} | {mesh.device_type}
    if len(types) > 1:
        raise ReshardError("bad-argument", f"tensors on {' and '.join(sorted(types))} cannot meet; move them first")
    plan, placements = _planned(request, [tuple(spec.shape) for spec in specs], dtype_of(dtype).name)
    ends = f"from {','.join(text_of(spec.placements) for spec in specs)} to {text_of(placements)}"
    words = f"einsum {plan.expression} of {dtype_of(dtype)} {ends}"
    meshes = {mesh_of(end): end for end in (mesh, *(spec.mesh for spec in reversed(specs)))}
    plans = [reshard for part in plan.parts() for reshard in part.plans]
    ranks = tuple(sorted({device for reshard in plans for device in reshard.devices}))
    sides = [str(side) for reshard in plans for side in (reshard.source, reshard.target)]
    digest = digest_of(str(plan.expression), plan.expression_sizes, sides, dtype_of(dtype).name)
    return LocalEinsum(
        request,
        plan,
        spec_of(mesh, placements, plan.output.shape, dtype),
        local_contraction(plan, rank, meshes, dtype, request.overlap, words),
        Statement(ranks, digest, words),
    )


def _planned(
    request: EinsumRequest, shapes: Sequence[tuple[int, ...]], dtype: str
) -> tuple[EinsumPlan, tuple[Placement, ...]]:
    """The plan, and the placements of its result.

    What is cheapest may cut a dim by a part of a mesh dim, which no placement says, and where it is open, sums are
    scattered over dims that divide; so where either counts all placements are compared.
    """
    mesh, ndim, sizes = request.mesh, len(request.pattern.output), dict(request.sizes)
    shape = request.pattern.output_shape(request.pattern.solve_sizes(shapes, sizes))
    sources = [sharding_of(spec) for spec in request.specs]

    def planned(placements: tuple[Placement, ...] | None) -> EinsumPlan:
        return make_plan(
            request.pattern,
            *sources,
            shapes=shapes,
            dtype=dtype,
            target=None if placements is None else sharding_of(placements, mesh, ndim),
            network=request.network,
            sizes=sizes,
            leave_partial=request.leave_partial,
        )

    if request.target is not None:
        placements = target_placements(request.target, mesh, ndim, shape)
        return planned(placements), placements
    candidates: list[tuple[EinsumPlan, tuple[Placement, ...]]] = []
    cheapest = planned(None)
    try:
        candidates.append((cheapest, placements_of(cheapest.target, mesh, shape)))
    except ReshardError as error:
        if error.code not in ("cannot-express", "different-meshes"):
            raise
    if not candidates or any(size % mesh.size() for size in shape):
        choices = [*map(Shard, range(ndim)), Replicate(), *([Partial()] if request.leave_partial else [])]
        every = itertools.product(choices, repeat=mesh.ndim)
        candidates += [(planned(placements), placements) for placements in every]
    return min(candidates, key=lambda candidate: candidate[0].price)
