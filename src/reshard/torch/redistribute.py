"""`redistribute`: a DTensor in, a DTensor out.

Eagerly, this rank's `Redistribution` runs on the local tensor, and what comes out is made a DTensor again.
The gradient of a redistribute is a redistribute back, itself planned and differentiable.
In a graph that torch traces the same exchanges run as one operator, see `graph_operator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from reshard.checks import check_mode, expect, shown
from reshard.errors import ReshardError
from reshard.plans import Options
from reshard.torch.dtensor_specs import AnyPlacements, gradient_placements, meta_of, of_dtype
from reshard.torch.graph_operator import is_traced, redistribute_traced
from reshard.torch.lifting import ends_of
from reshard.torch.local_plan import tile_of
from reshard.torch.redistribution import PLAIN, Redistribution, redistribution_for
from reshard.torch.world import World, current_world

NEVER_TRACED = "async_op, out and workspace, as backward_dtype, cannot be given to what is traced"


def redistribute(
    x: DTensor,
    target: AnyPlacements | None = None,
    device_mesh: DeviceMesh | None = None,
    *,
    placements: AnyPlacements | None = None,
    forward_dtype: torch.dtype | None = None,
    backward_dtype: torch.dtype | None = None,
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
    A part of a mesh, such as `mesh["dp"]`, is on every rank another set of ranks.
    From it to other ranks, or the other way, all groups of that kind take part, and each must hold the same tensor;
    that is compared where `check` compares.
    From a part to that very part each group is by itself, and may hold a tensor of its own.

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
        target: placements, one per dim of the mesh they are on, or a `Sharding`; of a mesh of one dim also a single
            placement.
        device_mesh: what the result is on, where not on the mesh of `x`: any mesh over ranks of the same world.
        placements: the target by the name that `DTensor.redistribute` has for it.
        forward_dtype: what values become before they move; the result has it.
        backward_dtype: what a gradient becomes before it moves back; without it the dtype of `x`, to which it is
            brought in the end. It breaks graphs as `async_op` does; in a graph, gradients
            move as `forward_dtype`.
        async_op: whether to return at once; the first use of the result waits. It, `out` and `workspace` are for
            eager calls: under `torch.compile` they break the graph, which `fullgraph` refuses, and what is traced by
            `make_fx` or for export is refused.
        check: when ranks compare what they are about to do: `first`, `always` or `never`.
        out: memory for the tile of the result, of its shape, any strides and any dtype that torch casts to; the
            result has the dtype of `out`. Where values are combined and `out` is of another dtype or not contiguous,
            or where it lies in the storage of `x`, the tile is made apart and copied there.
        workspace: memory for what is packed and received, flat, of the dtype that moves, and of at least
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
    asks_more = async_op or out is not None or workspace is not None or backward_dtype is not None
    if is_traced(x._local_tensor) and not asks_more:
        moving: Any = x if forward_dtype is None else x.to(forward_dtype)
        return redistribute_traced(moving, _one_of(target, placements), device_mesh, check)
    move = _moved if not asks_more else _moved_outside
    memory = Memory(async_op, out, workspace)
    return move(x, (target, placements), device_mesh, (forward_dtype, backward_dtype), check, memory)


@torch.compiler.disable(reason=NEVER_TRACED)  # type: ignore[no-untyped-call, untyped-decorator]
def _moved_outside(x: DTensor, *asked: Any) -> DTensor:
    """What no graph can do: where the compiler asks, between two graphs.

    Raises:
        ReshardError: `bad-argument` where something else traces.
    """
    if is_traced(x._local_tensor):
        raise ReshardError("bad-argument", NEVER_TRACED)
    return _moved(x, *asked)


def _moved(
    x: DTensor,
    targets: tuple[AnyPlacements | None, AnyPlacements | None],
    device_mesh: DeviceMesh | None,
    dtypes: tuple[torch.dtype | None, torch.dtype | None],
    check: str,
    memory: Memory,
    options: Options = PLAIN,
) -> DTensor:
    """An eager redistribute; what is refused is told to the other ranks."""
    world, spec, dtype = current_world(), x._spec, x.dtype

    def ranks() -> Sequence[int]:
        goal = device_mesh if isinstance(device_mesh, DeviceMesh) else spec.mesh
        return ends_of(spec.mesh, goal, world.rank).ranks

    with world.telling(ranks, check):
        if device_mesh is not None:
            expect(device_mesh, DeviceMesh, "device_mesh")
        forward, backward = dtypes
        if forward is not None and expect(forward, torch.dtype, "a dtype to move in") != dtype:
            spec = of_dtype(spec, forward)
        if backward is not None:
            expect(backward, torch.dtype, "a dtype to move in")
        redistribution = redistribution_for(world, spec, _one_of(*targets), device_mesh, options=options)
        call = EagerCall(redistribution, world, check, memory, dtype, backward or dtype)
        call.check_memory(x)
    return call.differentiable(x)


def wants_gradient(x: torch.Tensor) -> bool:
    """Whether what becomes of a tensor has a gradient."""
    return torch.is_grad_enabled() and x.requires_grad


def _one_of(target: AnyPlacements | None, placements: AnyPlacements | None) -> AnyPlacements:
    """The target, by whichever name it is given.

    Raises:
        ReshardError: `bad-argument` where it is given by both or by none.
    """
    if (target is None) == (placements is None):
        given = "neither is" if target is None else "both are"
        raise ReshardError("bad-argument", f"a target must be given, or placements, but {given} there")
    return placements if target is None else target  # type: ignore[return-value]  # one of them is there


def workspace_size(x: DTensor, target: AnyPlacements, device_mesh: DeviceMesh | None = None) -> int:
    """The number of elements that `workspace` must have on this rank.

    Raises:
        ReshardError: as `redistribute`.
    """
    spec = expect(x, DTensor, "x")._spec
    return redistribution_for(current_world(), spec, target, device_mesh).local.workspace_size


class Memory(NamedTuple):
    """Whether a caller waits, and what memory it hands in."""

    async_op: bool = False
    out: torch.Tensor | None = None
    workspace: torch.Tensor | None = None


class EagerCall(NamedTuple):
    """A redistribute with all that its caller asks for."""

    redistribution: Redistribution
    world: World
    check: str
    memory: Memory
    dtype: torch.dtype
    """Of the DTensor."""
    backward_dtype: torch.dtype
    """In which a gradient moves."""

    def differentiable(self, x: DTensor) -> DTensor:
        """What becomes of a DTensor, with its gradient where one is wanted."""
        if not wants_gradient(x):
            return self.run(x)
        result: DTensor = Linear.apply(x, partial(self.run, wants_gradient=True), self.back)  # type: ignore[no-untyped-call]
        return result

    def check_memory(self, x: DTensor) -> None:
        """Refuse a tile or memory that cannot be.

        Raises:
            ReshardError: `bad-tiles`; `bad-argument` for memory where a gradient is wanted.
        """
        local, tile = self.redistribution.local, x._local_tensor
        _, given, workspace = self.memory
        local.check_tile(tile)
        if given is not None:
            if wants_gradient(x):
                raise ReshardError("bad-argument", "out cannot be given where a gradient is wanted")
            out = expect(given, torch.Tensor, "out")
            overlaps = torch._debug_has_internal_overlap(out) == 1  # 0 is no, 2 is not plain to see
            if out.shape != local.target_shape or out.device != tile.device or overlaps or _is_lazy(out):
                wanted = f"of shape {tuple(local.target_shape)} on {tile.device}, each element in a place of its own"
                raise _unfit("out", out, f"{wanted}, no lazy conj or negative")
        if workspace is not None:
            room, size = expect(workspace, torch.Tensor, "workspace"), local.workspace_size
            moving = meta_of(self.redistribution.source).dtype
            fits = room.dim() == 1 and room.numel() >= size and room.dtype == moving and room.device == tile.device
            if not fits or not room.is_contiguous() or _is_lazy(room):
                wanted = f"flat, at least {size} elements, contiguous, no lazy conj or negative, of {moving}"
                raise _unfit("workspace", room, f"{wanted} on {tile.device}")

    def run(self, x: DTensor, *, wants_gradient: bool = False) -> DTensor:
        """What becomes of a DTensor."""
        target, out = self.redistribution.target, self.memory.out
        result = self.tile(tile_of(x))
        if out is not None and out.dtype != meta_of(target).dtype:
            target = of_dtype(target, out.dtype)
        # Not by `DTensor(…)`: its initialiser adds nothing, and steps out of the compiler first.
        y: DTensor = DTensor.__new__(DTensor, result, target, requires_grad=wants_gradient)
        return y

    def tile(self, tile: torch.Tensor) -> torch.Tensor:
        """What becomes of the tile of this rank; with `async_op` one that waits when it is used."""
        redistribution, (async_op, out, workspace) = self.redistribution, self.memory
        local, is_later = redistribution.local, async_op and bool(redistribution.local.exchanges)
        dtype = meta_of(redistribution.source).dtype
        tile = tile if tile.dtype == dtype else tile.to(dtype)
        if is_later and out is None:
            out = tile.new_empty(local.target_shape)
        with self.world.telling(lambda: redistribution.statement.ranks, self.check):
            self.world.check_replicas(redistribution.statement, redistribution.replicas, tile, self.check)
            post = redistribution.pack(tile, out, workspace)
        self.world.check(redistribution.statement, self.check)
        finish = post()
        if is_later and out is not None:  # as torch's own asynchronous collectives give it, it waits when it is used
            torch._C._distributed_c10d._register_work(out, _Pending(finish))
            later: torch.Tensor = AsyncCollectiveTensor(out)
            return later
        return finish()

    def back(self, gradient: DTensor) -> Any:
        """The gradient where the DTensor is; what was partial comes back replicated, as torch has it."""
        source = self.redistribution.source
        back = gradient_placements(source.placements)
        if gradient._spec.mesh == source.mesh:  # but where the gradient too is partial so
            triples = zip(source.placements, gradient.placements, back, strict=True)
            back = tuple(before if before == now else replicated for before, now, replicated in triples)
        moved = _moved(
            gradient,
            (back, None),
            source.mesh,
            (self.backward_dtype, None),
            self.check,
            Memory(self.memory.async_op),
            self.redistribution.options_back,
        )
        result: Any = moved if moved.dtype == self.dtype else moved.to(self.dtype)
        return result


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


def _is_lazy(memory: torch.Tensor) -> bool:
    """Whether its values are not what lies in it."""
    return memory.is_conj() or memory.is_neg()


def _unfit(name: str, memory: torch.Tensor, wanted: str) -> ReshardError:
    return ReshardError(
        "bad-tiles",
        f"{name} has shape {tuple(memory.shape)} of {memory.dtype} on {memory.device}; it must be {wanted}",
    )
