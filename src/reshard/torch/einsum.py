"""`einsum`: DTensors in, a DTensor out.

Eagerly, this rank's `LocalContraction` runs on the local tensors, and what comes out is made a DTensor again.
It is linear in each operand, so what flows back to an operand is an einsum too (`reshard.operations.gradient`), from
where the gradient and the other operands are to where the operand was; it is planned and differentiable like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from reshard.checks import check_mode, expect, shown
from reshard.errors import ReshardError
from reshard.network import Network
from reshard.operations.pattern import Pattern
from reshard.torch.agreement import digest_of
from reshard.torch.dtensor_specs import AnyPlacements, as_key, mesh_of
from reshard.torch.einsum_operator import einsum_traced, specs_in_graph
from reshard.torch.graph_operator import keep_named, named, refuse_traced
from reshard.torch.local_einsum import EinsumRequest, LocalEinsum, flowing_to, local_einsum
from reshard.torch.local_plan import tile_of
from reshard.torch.world import CAPACITY, World, current_world

PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
"""What torch replicates beside DTensors, where it is told to."""


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
    Inside `torch.compile` it is one operator of the graph; whatever else traces it is refused.

    Args:
        expression: a pattern as of `reshard.operations.pattern`, such as `ij,jk->ik` or `(a b) c -> a (b c)`; of single
            letters also as `torch.einsum` has it, with `...` and without a result.
        operands: of one dtype. A plain tensor among DTensors is whole on every rank where torch takes it so, that is
            of one element or under torch's `implicit_replication()`; elsewhere it is refused, as by torch.
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
    operands = _replicated(operands)
    if torch.compiler.is_dynamo_compiling():
        mesh = operands[0].device_mesh if device_mesh is None else device_mesh
        labels = None if sizes is None else tuple(sizes.items())
        name = _asked_as(expression, as_key(target), network, overlap, labels, leave_partial, check)
        traced: DTensor = _traced(name, mesh, *operands)
        return traced
    asked = AskedEinsum(expression, target, network, overlap, sizes, leave_partial, check)
    with current_world().telling(lambda: _ranks_of(operands), check):
        request = _request(asked, operands, device_mesh, tuple(getattr(x, "_spec", None) for x in operands))
    return _called(request, operands, check)


def _replicated(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands; plain tensors beside DTensors are made replicas where torch's own operations make them so."""
    meshes = [x.device_mesh for x in operands if isinstance(x, DTensor)]
    if len(meshes) in (0, len(operands)):
        return operands
    may_be_whole = _plain_tensors_are_whole()
    return tuple(
        DTensor.from_local(x, meshes[0], [Replicate()] * meshes[0].ndim, run_check=False)
        if type(x) in PLAIN_TENSORS and (may_be_whole or x.numel() == 1)
        else x
        for x in operands
    )


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]  # in a graph as it was when that was traced
def _plain_tensors_are_whole() -> bool:
    return bool(DTensor._op_dispatcher._allow_implicit_replication)


def _ranks_of(operands: Sequence[Any]) -> Sequence[int]:
    """All ranks of the meshes of those operands that have one."""
    meshes = [x.device_mesh for x in operands if isinstance(x, DTensor)]
    return sorted({rank for mesh in meshes for rank in mesh_of(mesh).devices})


class AskedEinsum(NamedTuple):
    """What is asked of any operands, as `einsum` takes it."""

    expression: str | Pattern
    target: Any
    network: Network | str | None
    overlap: bool | None
    sizes: Mapping[str, int] | None
    leave_partial: bool
    check: str


def _request(
    asked: AskedEinsum, operands: Sequence[Any], device_mesh: DeviceMesh | None, specs: tuple[Any, ...]
) -> EinsumRequest:
    """What is asked of operands of these specs.

    Raises:
        ReshardError: as `einsum`, of what needs no plan.
    """
    pattern = Pattern.of_operands(asked.expression, [getattr(x, "ndim", 0) for x in operands])
    pattern.check_count(len(operands))
    for number, x in enumerate(operands):
        if not isinstance(x, DTensor):
            what = "a plain tensor" if isinstance(x, torch.Tensor) else shown(x)
            how = "; DTensor.from_local(x, mesh, [Replicate()]) is one that each rank has whole"
            how = how if isinstance(x, torch.Tensor) else ""
            raise ReshardError("bad-argument", f"operand {number} of {pattern} must be a DTensor, got {what}{how}")
        if x.dtype != operands[0].dtype:
            raise ReshardError(
                "bad-argument", f"operand {number} of {pattern} is of {x.dtype}, the first of {operands[0].dtype}"
            )
    check_mode(asked.check)
    if asked.overlap not in (None, True, False):
        raise ReshardError("bad-argument", f"overlap must be True, False or None, got: {shown(asked.overlap)}")
    shapes = [tuple(spec.shape) for spec in specs]
    return EinsumRequest(
        pattern,
        specs,
        as_key(asked.target),
        operands[0].device_mesh if device_mesh is None else expect(device_mesh, DeviceMesh, "device_mesh"),
        Network.named(asked.network, "the network of an einsum"),
        tuple(pattern.solve_sizes(shapes, asked.sizes).items()) if asked.sizes is not None else (),
        bool(asked.leave_partial),
        asked.overlap,
    )


_ASKED: dict[str, AskedEinsum] = {}
"""By the names that the compiler sees."""


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _asked_as(*asked: Any) -> str:
    """The name of what is asked of any operands, kept."""
    expression, target, network, overlap, labels, leave_partial, check = asked
    sizes = None if labels is None else dict(labels)
    name = digest_of(*map(repr, asked))
    keep_named(_ASKED, {name: AskedEinsum(expression, target, network, overlap, sizes, leave_partial, check)}, CAPACITY)
    return name


@torch._dynamo.allow_in_graph  # type: ignore[untyped-decorator]  # with DTensors whose specs say all
def _traced(name: str, mesh: DeviceMesh, *operands: DTensor) -> DTensor:
    asked = named(_ASKED, name)
    return einsum_traced(_request(asked, operands, mesh, specs_in_graph(operands)), operands, asked.check)


def _called(request: EinsumRequest, operands: Sequence[DTensor], check: str) -> DTensor:
    refuse_traced("an einsum of DTensors", *(x._local_tensor for x in operands))
    world = current_world()
    meshes = (request.mesh, *(x.device_mesh for x in operands))
    with world.telling(lambda: sorted({rank for mesh in meshes for rank in mesh_of(mesh).devices}), check):
        local = local_einsum(world, request)
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
    operands = ctx.saved_tensors
    x = operands[number]
    request = flowing_to(ctx.local, number, gradient._spec)
    opposite = [factor for place, factor in enumerate(operands) if place != number]
    factors = [gradient, *(factor.conj() if factor.dtype.is_complex else factor for factor in opposite)]
    for spec in request.specs[len(factors) :]:  # identities, on every rank of the mesh
        eye = torch.eye(spec.shape[0], dtype=x.dtype, device=x._local_tensor.device)
        factors.append(DTensor.from_local(eye, x.device_mesh, spec.placements, run_check=False))
    return _called(replace(request, specs=tuple(factor._spec for factor in factors)), factors, ctx.check)


def _run(
    local: LocalEinsum, world: World, check: str, operands: Sequence[DTensor], *, wants_gradient: bool = False
) -> DTensor:
    tiles = [tile_of(x) for x in operands]
    world.check(local.statement, check)
    result = local.contraction.run(tiles)
    return DTensor(result, local.result, requires_grad=wants_gradient)  # type: ignore[no-untyped-call]
