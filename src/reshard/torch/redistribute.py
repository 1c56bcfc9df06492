"""`redistribute`: a DTensor in, a DTensor out.

Eagerly, this rank's `Redistribution` runs on the local tensor, and what comes out is made a DTensor again.
The gradient of a redistribute is a redistribute back, itself planned and differentiable.
In a graph that torch traces the same exchanges run as one operator, see `graph_operator`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from reshard.checks import expect, shown
from reshard.errors import ReshardError
from reshard.torch.agreement import check_mode
from reshard.torch.conversions import AnyPlacements, gradient_placements
from reshard.torch.graph_operator import is_traced, redistribute_traced
from reshard.torch.local_plan import tile_of
from reshard.torch.redistribution import Redistribution, redistribution_for
from reshard.torch.world import World, current_world


def redistribute(
    x: DTensor,
    target: AnyPlacements,
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
    check_mode(check)
    if is_traced(x._local_tensor):
        if async_op or out is not None or workspace is not None:
            raise ReshardError("bad-argument", "async_op, out and workspace cannot be given to what is traced")
        return redistribute_traced(x, target, device_mesh, check)
    if device_mesh is not None:
        expect(device_mesh, DeviceMesh, "device_mesh")
    world = current_world()
    wants_gradient = torch.is_grad_enabled() and x.requires_grad
    with world.telling((x.device_mesh, device_mesh or x.device_mesh), check):
        redistribution = redistribution_for(world, x._spec, target, device_mesh)
        redistribution.local.check_tile(x._local_tensor)
        if out is not None:
            if wants_gradient:
                raise ReshardError("bad-argument", "out cannot be given where a gradient is wanted")
            shape = redistribution.local.target_shape
            fits = expect(out, torch.Tensor, "out").shape == shape
            _check_memory(out, "out", f"of shape {shape}", x._local_tensor, fits=fits)
        if workspace is not None:
            size = redistribution.local.workspace_size
            fits = expect(workspace, torch.Tensor, "workspace").dim() == 1 and workspace.numel() >= size
            _check_memory(workspace, "workspace", f"flat, at least {size} elements", x._local_tensor, fits=fits)
    call = _EagerCall(redistribution, world, check, async_op, out, workspace)
    if wants_gradient:
        result: DTensor = Linear.apply(x, partial(call.run, wants_gradient=True), call.back)  # type: ignore[no-untyped-call]
        return result
    return call.run(x)


def workspace_size(x: DTensor, target: AnyPlacements, device_mesh: DeviceMesh | None = None) -> int:
    """The number of elements that `workspace` must have on this rank.

    Raises:
        ReshardError: as `redistribute`.
    """
    spec = expect(x, DTensor, "x")._spec
    return redistribution_for(current_world(), spec, target, device_mesh).local.workspace_size


class _EagerCall(NamedTuple):
    """A redistribute with all that its caller asks for."""

    redistribution: Redistribution
    world: World
    check: str
    async_op: bool
    out: torch.Tensor | None
    workspace: torch.Tensor | None

    def run(self, x: DTensor, *, wants_gradient: bool = False) -> DTensor:
        """What becomes of a DTensor."""
        redistribution, tile, out = self.redistribution, tile_of(x), self.out
        local, is_later = redistribution.local, self.async_op and bool(redistribution.local.exchanges)
        if is_later and out is None:
            out = tile.new_empty(local.target_shape)
        with self.world.telling((redistribution.source.mesh, redistribution.target.mesh), self.check):
            post = local.pack(tile, out, self.workspace)
        self.world.check(redistribution.statement, self.check)
        finish = post()
        if is_later and out is not None:  # as torch's own asynchronous collectives give it, it waits when it is used
            torch._C._distributed_c10d._register_work(out, _Pending(finish))
            result: torch.Tensor = AsyncCollectiveTensor(out)
        else:
            result = finish()
        # Not by `DTensor(…)`: its initialiser adds nothing, and steps out of the compiler first.
        return DTensor.__new__(DTensor, result, redistribution.target, requires_grad=wants_gradient)

    def back(self, gradient: DTensor) -> DTensor:
        """The gradient where the DTensor is; what was partial comes back replicated, as torch has it."""
        source = self.redistribution.source
        back = gradient_placements(source.placements)
        if gradient._spec.mesh == source.mesh:  # but where the gradient too is partial so
            triples = zip(source.placements, gradient.placements, back, strict=True)
            back = tuple(before if before == now else replicated for before, now, replicated in triples)
        return redistribute(gradient, back, source.mesh, async_op=self.async_op, check=self.check)


class Linear(torch.autograd.Function):
    """What moves a tensor, and what moves its gradient back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, run: Callable[[Any], Any], back: Callable[[Any], Any]) -> Any:
        """Move it."""
        ctx.back = back
        return run(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, None, None]:
        """Move the gradient."""
        return ctx.back(gradient), None, None


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


def _check_memory(memory: torch.Tensor, name: str, wanted: str, tile: torch.Tensor, *, fits: bool) -> None:
    """Refuse memory that does not fit, or whose values are not what lies in it, one after the other.

    Raises:
        ReshardError: `bad-tiles`.
    """
    is_plain = memory.is_contiguous() and not memory.is_conj() and not memory.is_neg()
    if not fits or not is_plain or memory.dtype != tile.dtype or memory.device != tile.device:
        raise ReshardError(
            "bad-tiles",
            f"{name} has shape {tuple(memory.shape)} of {memory.dtype} on {memory.device}; it must be {wanted}, "
            f"contiguous, no lazy conj or negative, of {tile.dtype} on {tile.device}",
        )
