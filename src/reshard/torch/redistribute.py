"""`redistribute`: a DTensor in, a DTensor out.

Eagerly, this rank's `Transfer` runs on the local tensor, and what comes out is made a DTensor again.
The gradient of a redistribute is a redistribute back, itself planned and differentiable.
In a graph that torch traces the same legs run as one operator, see `compiled`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from reshard.checks import expect, shown
from reshard.errors import ReshardError
from reshard.sharding import Sharding
from reshard.torch.compiled import is_traced, redistribute_traced
from reshard.torch.conversions import mesh_of
from reshard.torch.transfer import Transfer, transfer_for
from reshard.torch.world import World, world

CHECKS = ("first", "always", "never")
"""When ranks compare what they are about to do: at the first call of each kind, at every call, or not at all."""

Target = Sharding | Sequence[Placement]


def redistribute(
    x: DTensor,
    target: Target,
    device_mesh: DeviceMesh | None = None,
    *,
    async_op: bool = False,
    check: str = "first",
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> DTensor:
    """The same tensor under other placements, each rank receiving the bytes that it lacks and no others.

    All ranks of the source's mesh and of the target's must call it, with a DTensor of one shape, dtype and
    placements and with one target; a rank that is in neither gets its DTensor back with an empty tile.
    Values, local shapes and the strides of the whole are those of `DTensor.redistribute`, tiles are contiguous;
    where source and target are one placement, the result shares the memory of `x`.

    What `check` sees. The ranks compare digests of source, target, shape and dtype through the store of the
    default process group, before anything moves; where they differ every rank gets the same error, and where one
    does not come, the others are told which.

    - `first`: at the first call of each kind. Later calls of that kind pay nothing and see nothing: a rank that
      then passes another target which it has used before, with messages of the same sizes, gives wrong data
      without an error; with messages of other sizes or to other ranks, an error or a wait until the timeout, and
      gloo ends a process that is sent more than it waits for.
    - `always`: at every call, some requests to the store each time. No wrong data, whatever the ranks pass.
    - `never`: nothing is compared.

    A rank that refuses its own call, because of a target, a tile or memory that cannot be, says so to the others at
    once. Those that compare in that call get `ranks-disagree` with the rank and its reason: with `always` all do,
    with `first` where the call is the first of its kind. Where it is not, they compare nothing and wait for messages
    until the timeout of the process group, and are told by what they compare next. Nobody is told with `never`, in
    a traced graph, of an `x` that is no DTensor, or of a call on other ranks than those of the rest. A rank that
    dies is an error for all that exchange data with it.

    Args:
        x: on a rank outside of its mesh, a DTensor with an empty tile.
        target: placements, one per dim of the mesh they are on, or a `Sharding`.
        device_mesh: what the result is on, where not on the mesh of `x`: any mesh over ranks of the same world.
        async_op: whether to return at once; the first use of the result waits. It, `out` and `workspace` are for
            eager calls: what is traced, by `torch.compile`, `make_fx` or for export, is refused with any of them.
        check: when ranks compare what they are about to do: `first`, `always` or `never`.
        out: contiguous memory for the tile of the result, of its shape and the dtype of `x`.
        workspace: memory for what is packed and received, flat, of the dtype of `x`, and of at least
            `workspace_size` elements.

    Raises:
        ReshardError: before anything moves, `bad-argument`, `bad-tiles`, `rank-mismatch`, `unknown-reduction`,
            `reduction-dtype`, `unknown-dtype`; `no-plan` where values cannot become partial so;
            `cannot-express` and `different-meshes` where torch has no placements for the target;
            `ranks-disagree`; and `exchange-failed` where a rank is gone or does not come in time.
    """
    if not isinstance(x, DTensor):
        raise ReshardError("bad-argument", f"a DTensor is redistributed, got: {shown(x)}")
    if check not in CHECKS:
        raise ReshardError("bad-argument", f"check must be one of {', '.join(CHECKS)}, got: {shown(check)}")
    if is_traced(x._local_tensor):
        if async_op or out is not None or workspace is not None:
            raise ReshardError("bad-argument", "async_op, out and workspace cannot be given to what is traced")
        return redistribute_traced(x, target, device_mesh, check)
    if device_mesh is not None:
        expect(device_mesh, DeviceMesh, "device_mesh")
    here = world()
    wants_gradient = torch.is_grad_enabled() and x.requires_grad
    try:
        transfer = transfer_for(here, x._spec, target, device_mesh)
        transfer.check_tile(x._local_tensor)
        if out is not None:
            _check_out(out, transfer, x._local_tensor, wants_gradient)
        if workspace is not None:
            _check_workspace(workspace, transfer, x._local_tensor)
    except ReshardError as error:
        meshes = (x.device_mesh,) if device_mesh is None else (x.device_mesh, device_mesh)
        here.refuse(sorted({rank for mesh in meshes for rank in mesh_of(mesh).devices}), check, error)
        raise
    if wants_gradient:
        result: DTensor = _Redistribute.apply(x, transfer, here, async_op, check, workspace)  # type: ignore[no-untyped-call]
        return result
    return _run(x, transfer, here, async_op, check, out, workspace)


def workspace_size(x: DTensor, target: Target, device_mesh: DeviceMesh | None = None) -> int:
    """The number of elements that `workspace` must have on this rank.

    Raises:
        ReshardError: as `redistribute`.
    """
    return transfer_for(world(), expect(x, DTensor, "x")._spec, target, device_mesh).workspace_size


class _Redistribute(torch.autograd.Function):
    """A redistribute and, as its gradient, the redistribute back."""

    @staticmethod
    def forward(
        ctx: Any,
        x: DTensor,
        transfer: Transfer,
        here: World,
        async_op: bool,
        check: str,
        workspace: torch.Tensor | None,
    ) -> DTensor:
        """Run the transfer."""
        ctx.transfer, ctx.async_op, ctx.check = transfer, async_op, check
        return _run(x, transfer, here, async_op, check, None, workspace, wants_gradient=True)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor) -> tuple[DTensor | None, ...]:
        """Take the gradient back to where `x` is; what was partial comes back replicated, as torch has it."""
        source, back = ctx.transfer.source, list(ctx.transfer.back)
        if gradient._spec.mesh == source.mesh:
            for number, (old, new) in enumerate(zip(source.placements, gradient.placements, strict=True)):
                if old.is_partial() and old == new:
                    back[number] = old
        result = redistribute(gradient, back, source.mesh, async_op=ctx.async_op, check=ctx.check)
        return (result, None, None, None, None, None)


def _run(
    x: DTensor,
    transfer: Transfer,
    here: World,
    async_op: bool,
    check: str,
    out: torch.Tensor | None,
    workspace: torch.Tensor | None,
    *,
    wants_gradient: bool = False,
) -> DTensor:
    tile = x._local_tensor
    if isinstance(tile, AsyncCollectiveTensor):
        tile = tile.trigger_wait()  # type: ignore[no-untyped-call]
    here.check(transfer, check)
    if not async_op or transfer.keeps_tile:
        result = transfer.start(tile, out, workspace)()
    else:
        if out is None:
            out = tile.new_empty((0,) if transfer.target_shape is None else transfer.target_shape)
        result = _promised(out, transfer.start(tile, out, workspace))
    # Not by `DTensor(…)`: its initialiser adds nothing, and steps out of the compiler first.
    return DTensor.__new__(DTensor, result, transfer.target, requires_grad=wants_gradient)


class _Pending(dist.Work):
    """What torch waits for before the first use of a tile that is still on its way."""

    def __init__(self, finish: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self._finish: Callable[[], torch.Tensor] | None = finish

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the messages and put them in their places."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True


def _promised(out: torch.Tensor, finish: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The tile as torch's own asynchronous collectives give it: it waits when it is first used."""
    torch._C._distributed_c10d._register_work(out, _Pending(finish))
    return AsyncCollectiveTensor(out)


def _check_out(out: torch.Tensor, transfer: Transfer, tile: torch.Tensor, wants_gradient: bool) -> None:
    if wants_gradient:
        raise ReshardError("bad-argument", "out cannot be given where a gradient is wanted")
    expect(out, torch.Tensor, "out")
    shape = (0,) if transfer.target_shape is None else transfer.target_shape
    if out.shape != shape or out.dtype != tile.dtype or out.device != tile.device or not _is_plain(out):
        raise ReshardError(
            "bad-tiles",
            f"out has shape {tuple(out.shape)} of {out.dtype} on {out.device}; it must be contiguous, no lazy conj or "
            f"negative, {shape} of {tile.dtype} on {tile.device}",
        )


def _check_workspace(workspace: torch.Tensor, transfer: Transfer, tile: torch.Tensor) -> None:
    expect(workspace, torch.Tensor, "workspace")
    size = transfer.workspace_size
    fits = workspace.dim() == 1 and workspace.numel() >= size and _is_plain(workspace)
    if not fits or workspace.dtype != tile.dtype or workspace.device != tile.device:
        raise ReshardError(
            "bad-tiles",
            f"workspace has shape {tuple(workspace.shape)} of {workspace.dtype} on {workspace.device}; it must be "
            f"flat, no lazy conj or negative, at least {size} elements of {tile.dtype} on {tile.device}",
        )


def _is_plain(memory: torch.Tensor) -> bool:
    """Whether the values of a tensor are what lies in its memory, one after the other."""
    return memory.is_contiguous() and not memory.is_conj() and not memory.is_neg()
