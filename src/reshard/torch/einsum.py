"""`einsum`: DTensors in, a DTensor out.

Eagerly, this rank's `Contraction` runs on the local tensors, and what comes out is made a DTensor again.
It is linear in each operand, so what flows back to an operand is an einsum too, of the gradient and the other
operands, from where they are to where the operand was; it is planned and differentiable like any other.

By hand, `ij,jk->ik`: to the first operand flows `ik,jk->ij`; to the operand of `ii->i`, of which only the diagonal
counts, flows `i,ij->ij`, where the second operand is the identity matrix.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import make_contiguous_strides_for
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from reshard.checks import expect, shown
from reshard.contraction import EinsumPlan
from reshard.contraction import einsum as make_plan
from reshard.errors import ReshardError
from reshard.network import Network
from reshard.operations.pattern import Group, Pattern, Term
from reshard.sharding import Sharding
from reshard.torch.agreement import digest_of
from reshard.torch.compiled import refuse_traced
from reshard.torch.contraction import Contraction, contraction_of
from reshard.torch.conversions import (
    dtype_of,
    gradient_placements,
    mesh_of,
    placements_of,
    sharding_of,
    target_placements,
)
from reshard.torch.redistribute import CHECKS, Target
from reshard.torch.world import World, world


@dataclass(frozen=True)
class Request:
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
class Call:
    """A request as one rank answers it."""

    request: Request
    plan: EinsumPlan
    result: DTensorSpec
    contraction: Contraction
    ranks: tuple[int, ...]
    """All that take part."""
    digest: str
    words: str
    """What is done, for a sentence."""


def einsum(
    expression: str | Pattern,
    *operands: DTensor,
    target: Target | None = None,
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
        expression: a pattern as of `reshard.patterns`, such as `ij,jk->ik` or `(a b) c -> a (b c)`.
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
    if len(operands) != len(pattern.operands):
        raise ReshardError("bad-argument", f"{pattern} has {len(pattern.operands)} operands, got {len(operands)}")
    for number, x in enumerate(operands):
        if not isinstance(x, DTensor):
            raise ReshardError("bad-argument", f"operand {number} of {pattern} must be a DTensor, got: {shown(x)}")
        if x.dtype != operands[0].dtype:
            raise ReshardError(
                "bad-argument", f"operand {number} of {pattern} is of {x.dtype}, the first of {operands[0].dtype}"
            )
    if check not in CHECKS:
        raise ReshardError("bad-argument", f"check must be one of {', '.join(CHECKS)}, got: {shown(check)}")
    if overlap not in (None, True, False):
        raise ReshardError("bad-argument", f"overlap must be True, False or None, got: {shown(overlap)}")
    if sizes is not None and not isinstance(sizes, Mapping):
        raise ReshardError("bad-argument", f"sizes must be a mapping from label to size, got: {shown(sizes)}")
    network = Network.named(network, "the network of an einsum")
    request = Request(
        pattern,
        tuple(x._spec for x in operands),
        _wanted(target),
        operands[0].device_mesh if device_mesh is None else expect(device_mesh, DeviceMesh, "device_mesh"),
        network,
        tuple(pattern.solve_sizes([x.shape for x in operands], sizes).items()) if sizes else (),
        bool(leave_partial),
        overlap,
    )
    result: DTensor = _called(request, operands, check)
    return result


def _wanted(target: Any) -> Sharding | tuple[Placement, ...] | None:
    """The target as part of a key.

    Raises:
        ReshardError: `bad-argument`.
    """
    if target is None or isinstance(target, Sharding):
        return target
    try:
        found = tuple(target)
    except TypeError:
        found = (target,)
    for one in found:
        if not isinstance(one, Placement):
            raise ReshardError(
                "bad-argument", f"the target of an einsum must be placements or a Sharding, got: {shown(target)}"
            )
    return found


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _called(request: Request, operands: Sequence[DTensor], check: str) -> DTensor:
    refuse_traced("an einsum of DTensors", *(x._local_tensor for x in operands))
    here = world()
    call = here.once(request, lambda: _made(request, here.rank))
    if torch.is_grad_enabled() and any(x.requires_grad for x in operands):
        result: DTensor = _Einsum.apply(call, here, check, *operands)  # type: ignore[no-untyped-call]
        return result
    return _run(call, here, check, operands)


class _Einsum(torch.autograd.Function):
    """An einsum and, as the gradient of each operand, another."""

    @staticmethod
    def forward(ctx: Any, call: Call, here: World, check: str, *operands: DTensor) -> DTensor:
        """Run the plan."""
        ctx.call, ctx.check = call, check
        ctx.save_for_backward(*operands)
        return _run(call, here, check, operands, wants_gradient=True)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor) -> tuple[DTensor | None, ...]:
        """Take the gradient to every operand that wants it."""
        operands, wanted = ctx.saved_tensors, ctx.needs_input_grad[3:]
        return None, None, None, *_gradients(ctx.call, ctx.check, gradient, operands, wanted)


def _gradients(
    call: Call, check: str, gradient: DTensor, operands: Sequence[DTensor], wanted: Sequence[bool]
) -> Iterator[DTensor | None]:
    """Per operand what flows back to it, where it is wanted."""
    request, pattern = call.request, call.plan.expression
    for number, x in enumerate(operands):
        if not wanted[number]:
            yield None
            continue
        term, equal = _without_repeats(pattern, number)
        others = [other for place, other in enumerate(operands) if place != number]
        terms = [other for place, other in enumerate(pattern.operands) if place != number]
        given = [gradient, *map(_conjugate, others)]
        given += [_identity(x, call.plan.expression_sizes[old]) for old, _ in equal]
        back = Pattern((pattern.output, *terms, *(((old,), (new,)) for old, new in equal)), term)
        sizes = [(label, call.plan.expression_sizes[label]) for label in back.labels if label in pattern.labels]
        sizes += [(new, call.plan.expression_sizes[old]) for old, new in equal]
        yield _called(
            Request(
                back,
                tuple(one._spec for one in given),
                gradient_placements(x.placements),
                x.device_mesh,
                request.network,
                tuple(sizes),
                False,
                request.overlap,
            ),
            given,
            check,
        )


def _without_repeats(pattern: Pattern, number: int) -> tuple[Term, list[tuple[str, str]]]:
    """An operand's term with no label twice, and for those that are new, which of the old they are equal to."""
    term = pattern.operands[number]
    seen: set[str] = set()
    longer = "_" * max(map(len, pattern.labels), default=0)  # than any label, so that it is new
    dims: list[Group] = []
    equal: list[tuple[str, str]] = []
    for group in term:
        if len(group) == 1 and group[0] in seen:
            new = f"{group[0]}{longer}{len(equal)}"
            equal.append((group[0], new))
            group = (new,)
        seen.update(group)
        dims.append(group)
    return tuple(dims), equal


def _identity(x: DTensor, size: int) -> DTensor:
    """The identity matrix on every rank of the mesh of a tensor, of its dtype."""
    mesh = x.device_mesh
    eye = torch.eye(size, dtype=x.dtype, device=x._local_tensor.device)
    return DTensor.from_local(eye, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _conjugate(x: Any) -> Any:
    return x.conj() if x.dtype.is_complex else x


def _run(call: Call, here: World, check: str, operands: Sequence[DTensor], *, wants_gradient: bool = False) -> DTensor:
    tiles = []
    for x in operands:
        tile = x._local_tensor
        if isinstance(tile, AsyncCollectiveTensor):
            tile = tile.trigger_wait()  # type: ignore[no-untyped-call]
        tiles.append(tile)
    call.contraction.check_tiles(tiles)
    here.check(call, check)
    result = call.contraction.run(tiles)
    return DTensor(result, call.result, requires_grad=wants_gradient)  # type: ignore[no-untyped-call]


def _made(request: Request, rank: int) -> Call:
    """Plan a call, and make this rank's part.

    Raises:
        ReshardError: as `einsum` where it cannot be.
    """
    specs, mesh = request.specs, request.mesh
    metas = [spec.tensor_meta for spec in specs if spec.tensor_meta is not None]
    dtype = metas[0].dtype
    types = {spec.mesh.device_type for spec in specs} | {mesh.device_type}
    if len(types) > 1:
        raise ReshardError("bad-argument", f"tensors on {' and '.join(sorted(types))} cannot meet; move them first")
    plan, placements = _planned(request, [tuple(meta.shape) for meta in metas], dtype)
    shape = plan.expression.output_shape(plan.expression_sizes)
    names = ",".join(f"[{', '.join(map(str, spec.placements))}]" for spec in specs)
    words = f"einsum {plan.expression} of {dtype_of(dtype)} from {names} to [{', '.join(map(str, placements))}]"
    ours = {mesh_of(one): one for one in (mesh, *(spec.mesh for spec in reversed(specs)))}
    plans = [by for part in plan.parts() for by in part.plans]
    sides = [str(end) for by in plans for end in (by.source, by.target)]
    return Call(
        request,
        plan,
        DTensorSpec(
            mesh,
            placements,
            tensor_meta=TensorMeta(torch.Size(shape), tuple(make_contiguous_strides_for(shape)), dtype),
        ),
        contraction_of(plan, rank, ours, dtype, request.overlap, words),
        tuple(sorted({device for by in plans for device in by.devices})),
        digest_of(str(plan.expression), plan.expression_sizes, sides, dtype_of(dtype).name),
        words,
    )


def _planned(
    request: Request, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype
) -> tuple[EinsumPlan, tuple[Placement, ...]]:
    """The plan, and the placements of its result.

    What is cheapest may cut a dim by a part of a mesh dim, which no placement says, and where it is open, sums are
    scattered over dims that divide; so where either counts all placements are compared.
    """
    mesh, ndim = request.mesh, len(request.pattern.output)
    sources = [sharding_of(spec) for spec in request.specs]

    def planned(target: Sharding | None) -> EinsumPlan:
        return make_plan(
            request.pattern,
            *sources,
            shapes=shapes,
            dtype=dtype_of(dtype).name,
            target=target,
            network=request.network,
            sizes=dict(request.sizes),
            leave_partial=request.leave_partial,
        )

    if request.target is not None:
        placements = target_placements(request.target, mesh, ndim)
        plan = planned(sharding_of(placements, mesh, ndim))
        if isinstance(request.target, Sharding):
            placements_of(request.target, mesh, plan.output.shape)  # refused where the shape is cut elsewhere
        return plan, placements
    plan = planned(None)
    found: list[tuple[EinsumPlan, tuple[Placement, ...]]] = []
    try:
        found.append((plan, placements_of(plan.target, mesh, plan.output.shape)))
    except ReshardError as error:
        if error.code not in ("cannot-express", "different-meshes"):
            raise
    if not found or any(size % mesh.size() for size in plan.output.shape):
        choices: list[Placement] = [*map(Shard, range(ndim)), Replicate()]
        choices += [Partial()] if request.leave_partial else []
        every = itertools.product(choices, repeat=mesh.ndim)
        found += [(planned(sharding_of(placements, mesh, ndim)), placements) for placements in every]
    return min(found, key=lambda pair: pair[0].price)
