"""`einsum`: DTensors in, a DTensor out.

Eagerly, this rank's `LocalContraction` runs on the local tensors, and what comes out is made a DTensor again.
It is linear in each operand, so what flows back to an operand is an einsum too (`reshard.operations.gradient`), from
where the gradient and the other operands are to where the operand was; it is planned and differentiable like any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from reshard.checks import expect, shown
from reshard.contraction import EinsumPlan
from reshard.contraction import einsum as make_plan
from reshard.errors import ReshardError
from reshard.network import Network
from reshard.operations.gradient import backward_of
from reshard.operations.pattern import Pattern
from reshard.sharding import Sharding
from reshard.torch.agreement import Statement, check_mode, digest_of
from reshard.torch.contraction import LocalContraction, local_contraction
from reshard.torch.conversions import (
    AnyPlacements,
    as_key,
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
from reshard.torch.graph_operator import refuse_traced
from reshard.torch.local_plan import tile_of
from reshard.torch.world import World, current_world


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


def einsum(
    expression: str | Pattern,
    *operands: DTensor,
    target: AnyPlacements | None = None,
    network: Network | str | None = None,
    overlap: bool | None = None,
    sizes: Mapping[str, int] | None = None,
    leave_partial: bool = False,
    device_mesh: DeviceMesh | None = None,
    check: str = "first",
) -> DTensor:
    """The einsum of DTensors, computed and laid out as the cheapest plan of `reshard.einsum` says.

    Operands may lie anyhow, unevenly too, and be `Partial`; each rank receives the bytes that the plan says.
    A rank contracts its tiles with `torch.einsum`, two at a time, which accumulates as torch's products of that dtype
    do; what a rank does not sum itself is summed in the dtype of the operands.
    Where it only moves elements within the rank, the result may share the memory of the operand, as `torch.einsum`'s.
    All ranks must call it with equal arguments, as `redistribute`.
    The gradient of an operand comes where the operand is, replicated where that is partial.
    Inside `torch.compile` it runs eagerly, which breaks the graph; whatever else traces it is refused.

    Args:
        expression: a pattern as of `reshard.operations.pattern`, such as `ij,jk->ik` or `(a b) c -> a (b c)`.
        operands: of one dtype.
        target: where the result is wanted, as placements or a `Sharding`; without it where it is cheapest, among
            all that placements can say.
        network: what the ranks are connected by, or the name of a preset; without it bytes decide.
        overlap: whether a gather or a reduce-scatter is cut into its messages beside parts of the product; False for
            never, True for wherever it can be, None for where the network's price says that it pays.
        sizes: of labels that the shapes do not determine.
        leave_partial: whether, without a target, sums over ranks may be left to be made later.
        device_mesh: what the result is on, where not on the mesh of the first operand.
        check: when ranks compare what they are about to do, as `redistribute` has it.

    Raises:
        ReshardError: before anything moves, `syntax`, `rank-mismatch`, `bad-shape` and all else that `reshard.einsum`
            raises; `bad-argument`, `bad-tiles`, `cannot-express`, `ranks-disagree` as `redistribute`; and
            `exchange-failed` where a rank is gone or does not come in time.
    """
    pattern = Pattern.of(expression)
    pattern.check_count(len(operands))
    for number, x in enumerate(operands):
        if not isinstance(x, DTensor):
            raise ReshardError("bad-argument", f"operand {number} of {pattern} must be a DTensor, got: {shown(x)}")
        if x.dtype != operands[0].dtype:
            raise ReshardError(
                "bad-argument", f"operand {number} of {pattern} is of {x.dtype}, the first of {operands[0].dtype}"
            )
    check_mode(check)
    if overlap not in (None, True, False):
        raise ReshardError("bad-argument", f"overlap must be True, False or None, got: {shown(overlap)}")
    network = Network.named(network, "the network of an einsum")
    request = EinsumRequest(
        pattern,
        tuple(x._spec for x in operands),
        as_key(target),
        operands[0].device_mesh if device_mesh is None else expect(device_mesh, DeviceMesh, "device_mesh"),
        network,
        tuple(pattern.solve_sizes([x.shape for x in operands], sizes).items()) if sizes is not None else (),
        bool(leave_partial),
        overlap,
    )
    result: DTensor = _called(request, operands, check)
    return result


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _called(request: EinsumRequest, operands: Sequence[DTensor], check: str) -> DTensor:
    refuse_traced("an einsum of DTensors", *(x._local_tensor for x in operands))
    world = current_world()
    meshes = (request.mesh, *(x.device_mesh for x in operands))
    with world.telling(sorted({rank for mesh in meshes for rank in mesh_of(mesh).devices}), check):
        local = world.once(request, lambda: _made(request, world.rank))
        local.contraction.check_tiles([x._local_tensor for x in operands])
    if torch.is_grad_enabled() and any(x.requires_grad for x in operands):
        result: DTensor = _Einsum.apply(local, world, check, *operands)  # type: ignore[no-untyped-call]
        return result
    return _run(local, world, check, operands)


class _Einsum(torch.autograd.Function):
    """An einsum and, as the gradient of each operand, another."""

    @staticmethod
    def forward(ctx: Any, local: LocalEinsum, world: World, check: str, *operands: DTensor) -> DTensor:
        """Run the plan."""
        ctx.local, ctx.check = local, check
        ctx.save_for_backward(*operands)
        return _run(local, world, check, operands, wants_gradient=True)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor) -> tuple[DTensor | None, ...]:
        """Take the gradient to every operand that wants it."""
        wanted = enumerate(ctx.needs_input_grad[3:])
        gradients = (_gradient(ctx, gradient, number) if is_wanted else None for number, is_wanted in wanted)
        return None, None, None, *gradients


def _gradient(ctx: Any, gradient: DTensor, number: int) -> DTensor:
    """What flows back to an operand."""
    operands, plan = ctx.saved_tensors, ctx.local.plan
    x = operands[number]
    backward = backward_of(plan.expression, number, plan.expression_sizes)
    opposite = [factor for place, factor in enumerate(operands) if place != number]
    factors = [gradient, *(factor.conj() if factor.dtype.is_complex else factor for factor in opposite)]
    for size in backward.identity_sizes:  # on every rank of the mesh
        eye = torch.eye(size, dtype=x.dtype, device=x._local_tensor.device)
        factors.append(DTensor.from_local(eye, x.device_mesh, [Replicate()] * x.device_mesh.ndim, run_check=False))
    flowing = replace(
        ctx.local.request,
        pattern=backward.pattern,
        specs=tuple(factor._spec for factor in factors),
        target=gradient_placements(x.placements),
        mesh=x.device_mesh,
        sizes=tuple(backward.sizes.items()),
        leave_partial=False,
    )
    flowed: DTensor = _called(flowing, factors, ctx.check)
    return flowed


def _run(
    local: LocalEinsum, world: World, check: str, operands: Sequence[DTensor], *, wants_gradient: bool = False
) -> DTensor:
    tiles = [tile_of(x) for x in operands]
    world.check(local.statement, check)
    result = local.contraction.run(tiles)
    return DTensor(result, local.result, requires_grad=wants_gradient)  # type: ignore[no-untyped-call]


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
