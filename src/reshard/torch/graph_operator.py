"""`redistribute` inside a graph that torch traces: by `torch.compile`, without a break, by `make_fx` or for export.

In a graph an exchange is one operator, `reshard::exchange`, from local tensor to local tensor: its shapes are
known while the graph is traced, its gradient is the same operator on the way back, and the messages are those of
the eager call.
Which rank runs it, the operator asks when it runs, so that all ranks of a mesh trace the same.
What it does stands in the graph as a name for meshes and placements, which are constants there, beside the sizes of
the whole tensor: a graph is for one shape, and is traced again for another local shape.
What torch 2.13 does not guard is the shape of a DTensor whose local shape stays: 5 rows after 6, both 3 on the first
of two ranks, run the graph of 6 there.
Give uneven shapes that change to functions of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import _are_we_tracing
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from reshard.errors import ReshardError
from reshard.plans import Options, Plan
from reshard.torch.agreement import digest_of
from reshard.torch.dtensor_specs import (
    AnyPlacements,
    as_key,
    gradient_placements,
    mesh_of,
    meta_of,
    placements_of,
    spec_of,
    spelled_out,
    target_placements,
)
from reshard.torch.redistribution import PLAIN, Redistribution, redistribution_for, redistribution_of_plan
from reshard.torch.stand_ins import StandIns
from reshard.torch.world import CAPACITY, current_world


class GraphCall(NamedTuple):
    """What a graph names: a redistribute of tensors of any shape."""

    source_mesh: DeviceMesh
    source: tuple[Placement, ...]
    mesh: DeviceMesh
    target: tuple[Placement, ...]
    dtype: torch.dtype
    check: str
    plan: Plan | None = None
    """What is run, where it was made before."""
    options: Options = PLAIN
    """What plans have to keep to that are made here."""

    def back(self) -> GraphCall:
        """That of the gradient."""
        ends = gradient_placements(self.target), gradient_placements(self.source)
        options = self.options if self.plan is None else replace(self.plan.options, memory_limit=None)
        return GraphCall(self.mesh, ends[0], self.source_mesh, ends[1], self.dtype, self.check, None, options)

    def on_shape(self, sizes: Sequence[int]) -> Redistribution:
        """What this rank does for one shape; sizes that are symbols become numbers, on which the graph then depends."""
        source = spec_of(self.source_mesh, self.source, [int(size) for size in sizes], self.dtype)
        if self.plan is not None:
            return redistribution_of_plan(current_world(), source, self.plan, self.mesh)
        return redistribution_for(current_world(), source, self.target, self.mesh, options=self.options)


T = TypeVar("T")
_CALLS: dict[str, GraphCall] = {}
"""By the names in graphs; beyond `CAPACITY`, the one that was traced longest ago goes."""
_REQUESTS: dict[str, Request] = {}
"""By the names that the compiler sees."""


def is_traced(*tiles: torch.Tensor) -> bool:
    """Whether what is done with local tensors goes into a graph, or is done for its shapes alone."""
    if torch.compiler.is_compiling() or _are_we_tracing():
        return True
    return FakeTensor in map(type, tiles)  # every call comes by here


def refuse_traced(what: str, *tiles: torch.Tensor) -> None:
    """Refuse what would leave the messages of one rank in a graph.

    Raises:
        ReshardError: `bad-argument`.
    """
    if is_traced(*tiles):
        raise ReshardError("bad-argument", f"{what} cannot be traced: call it outside of the graph")


class Request(NamedTuple):
    """What a call asks for, whatever the DTensor."""

    target: tuple[Placement, ...]
    check: str
    plan: Plan | None
    """What is run, where it was made before."""


def redistribute_traced(x: DTensor, target: AnyPlacements, mesh: DeviceMesh | None, check: str) -> DTensor:
    """What is traced in place of an eager redistribute."""
    on = x.device_mesh if mesh is None else mesh
    result: DTensor = _traced(x, on, _request_of(as_key(target), on, check, x.dim()))
    return result


def run_traced(plan: Plan, x: DTensor, mesh: DeviceMesh | None, check: str) -> DTensor:
    """What is traced in place of a plan that is run eagerly."""
    on = x.device_mesh if mesh is None else mesh
    result: DTensor = _traced(x, on, _request_of(None, on, check, x.dim(), plan))
    return result


@torch._dynamo.allow_in_graph  # type: ignore[untyped-decorator]  # with a DTensor whose spec says all; dynamo's does not
def _traced(x: DTensor, mesh: DeviceMesh, request: str) -> DTensor:
    target, check, plan = named(_REQUESTS, request)
    source = spelled_out(x._spec)
    name = _name_of(GraphCall(x.device_mesh, source, mesh, target, x.dtype, check, plan))
    tile = torch.ops.reshard.exchange(x.to_local(grad_placements=gradient_placements(source)), name, x.shape)
    return DTensor.from_local(tile, mesh, target, run_check=False, shape=x.shape, stride=x.stride())


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _request_of(*asked: Any) -> str:
    """The name of a request, kept."""
    target, mesh, check, ndim, *plans = asked
    plan = plans[0] if plans else None
    goal = target_placements(target, mesh, ndim) if plan is None else placements_of(plan.target, mesh, plan.shape)
    name = digest_of(str(goal), str(mesh_of(mesh)), check, plan)
    keep_named(_REQUESTS, {name: Request(goal, check, plan)}, CAPACITY // 2)
    return name


def exchanged_in_graph(planned: StandIns, tile: torch.Tensor, check: str) -> Callable[[], torch.Tensor]:
    """What puts the operator for a tile into a graph that is traced, and what is done on either side of it.

    Raises:
        ReshardError: as `redistribute` where the target cannot be.
    """
    source, meta = planned.source, meta_of(planned.source)
    target = target_placements(planned.target, source.mesh, len(meta.shape))
    name = _name_of(GraphCall(source.mesh, spelled_out(source), source.mesh, target, meta.dtype, check))
    named(_CALLS, name).on_shape(meta.shape).local.check_tile(tile)

    def run() -> torch.Tensor:
        moving = tile if planned.before is None else planned.before(tile)
        result: torch.Tensor = torch.ops.reshard.exchange(moving, name, meta.shape)
        return result if planned.after is None else planned.after(result)

    return run


def _name_of(call: GraphCall) -> str:
    """The name of a call, kept with that of its gradient."""
    ends = str(mesh_of(call.source_mesh)), str(call.source), str(mesh_of(call.mesh)), str(call.target)
    name = digest_of(*ends, str(call.dtype), call.check, call.plan)
    keep_named(_CALLS, {name: call, f"{name}/back": call.back()}, CAPACITY)
    return name


def keep_named(kept: dict[str, Any], values: dict[str, Any], capacity: int) -> None:
    """Keep what is named; beyond a capacity, what was named longest ago goes."""
    for name, value in values.items():
        kept.pop(name, None)
        kept[name] = value
    while len(kept) > capacity:
        del kept[next(iter(kept))]


def named(kept: Mapping[str, T], name: str) -> T:
    """What a graph means by a name."""
    if name not in kept:
        raise ReshardError(
            "bad-argument",
            f"this process has not traced {name}, or {CAPACITY // 2} other ways since; trace it again, after "
            "torch.compiler.reset() where it was compiled",
        )
    return kept[name]


@torch.library.custom_op("reshard::exchange", mutates_args=())
def exchange(tile: torch.Tensor, name: str, sizes: Sequence[int]) -> torch.Tensor:
    """The named redistribute of a local tensor, whose whole has these sizes."""
    call = named(_CALLS, name)
    redistribution = call.on_shape(sizes)
    local = redistribution.local
    local.check_tile(tile)
    current_world().check(redistribution.statement, call.check)
    result = redistribution.run(tile)
    return result if local.exchanges else result.clone()  # an operator gives no memory of its input


@exchange.register_fake
def _exchange_shape(tile: torch.Tensor, name: str, sizes: Sequence[int]) -> torch.Tensor:
    local = named(_CALLS, name).on_shape(sizes).local
    local.check_tile(tile)  # the graph must depend on the local shape too, which torch guards no further
    return tile.new_empty(local.target_shape)


def _keep_name(ctx: Any, inputs: tuple[torch.Tensor, str, Sequence[int]], output: torch.Tensor) -> None:
    ctx.name, ctx.sizes = inputs[1:]


def _exchange_back(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    if ctx.name.endswith("/back"):
        raise ReshardError("bad-argument", "a traced redistribute has a first derivative and no second")
    return torch.ops.reshard.exchange(gradient, f"{ctx.name}/back", ctx.sizes), None, None


exchange.register_autograd(_exchange_back, setup_context=_keep_name)
