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
Nor does it show a function that it compiles in which order mesh dims cut a dim, where that stands in the spec alone.
Give such a tensor as `_StridedShard`, which `redistribute` itself does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import _are_we_tracing
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from reshard.errors import ReshardError
from reshard.plans import Options, Plan
from reshard.torch.agreement import digest_of
from reshard.torch.conversions import (
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


_CALLS: dict[str, GraphCall] = {}
"""By the names in graphs; beyond `CAPACITY`, the one that was traced longest ago goes."""


def is_traced(*tiles: torch.Tensor) -> bool:
    """Whether what is done with local tensors goes into a graph, or is done for its shapes alone."""
    if torch.compiler.is_compiling() or _are_we_tracing():
        return True
    return any(isinstance(tile, FakeTensor) for tile in tiles)


def refuse_traced(what: str, *tiles: torch.Tensor) -> None:
    """Refuse what would leave the messages of one rank in a graph.

    Raises:
        ReshardError: `bad-argument`.
    """
    if is_traced(*tiles):
        raise ReshardError("bad-argument", f"{what} cannot be traced: call it outside of the graph")


def redistribute_traced(x: DTensor, target: AnyPlacements, mesh: DeviceMesh | None, check: str) -> DTensor:
    """What is traced in place of an eager redistribute."""
    on = x.device_mesh if mesh is None else mesh
    source = x.placements if torch.compiler.is_dynamo_compiling() else spelled_out(x._spec)
    name = _name_of(x.device_mesh, source, on, as_key(target), x.dtype, check, x.dim())
    return _through_graph(x, source, name, on)


def _through_graph(x: DTensor, source: tuple[Placement, ...], name: str, mesh: DeviceMesh) -> DTensor:
    """What the operator of a name makes of a DTensor."""
    tile = torch.ops.reshard.exchange(x.to_local(grad_placements=gradient_placements(source)), name, x.shape)
    return DTensor.from_local(tile, mesh, _target_of(name), run_check=False, shape=x.shape, stride=x.stride())


def run_traced(plan: Plan, x: DTensor, mesh: DeviceMesh | None, check: str) -> DTensor:
    """What is traced in place of a plan that is run eagerly."""
    on = x.device_mesh if mesh is None else mesh
    source = x.placements if torch.compiler.is_dynamo_compiling() else spelled_out(x._spec)
    name = _name_of_plan(plan, x.device_mesh, source, on, x.dtype, check)
    return _through_graph(x, source, name, on)


def exchanged_in_graph(planned: StandIns, tile: torch.Tensor, check: str) -> Callable[[], torch.Tensor]:
    """What puts the operator for a tile into a graph that is traced, and what is done on either side of it.

    Raises:
        ReshardError: as `redistribute` where the target cannot be.
    """
    source, meta = planned.source, meta_of(planned.source)
    name = _name_of(source.mesh, spelled_out(source), source.mesh, planned.target, meta.dtype, check, len(meta.shape))
    _named(name).on_shape(meta.shape).local.check_tile(tile)

    def run() -> torch.Tensor:
        moving = tile if planned.before is None else planned.before(tile)
        result: torch.Tensor = torch.ops.reshard.exchange(moving, name, meta.shape)
        return result if planned.after is None else planned.after(result)

    return run


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _name_of(*asked: Any) -> str:
    """The name of a call, kept with that of its gradient."""
    source_mesh, source, mesh, target, dtype, check, ndim = asked
    call = GraphCall(source_mesh, tuple(source), mesh, target_placements(target, mesh, ndim), dtype, check)
    return _named_call(call)


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _name_of_plan(*asked: Any) -> str:
    """The name of a plan that is run."""
    plan, source_mesh, source, mesh, dtype, check = asked
    target = placements_of(plan.target, mesh, plan.shape)
    return _named_call(GraphCall(source_mesh, tuple(source), mesh, target, dtype, check, plan))


def _named_call(call: GraphCall) -> str:
    ends = str(mesh_of(call.source_mesh)), str(call.source), str(mesh_of(call.mesh)), str(call.target)
    name = digest_of(*ends, str(call.dtype), call.check, call.plan)
    for key, value in ((name, call), (f"{name}/back", call.back())):
        _CALLS.pop(key, None)
        _CALLS[key] = value
    while len(_CALLS) > CAPACITY:
        del _CALLS[next(iter(_CALLS))]
    return name


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _target_of(name: str) -> tuple[Placement, ...]:
    """The placements that a call leads to."""
    return _CALLS[name].target


def _named(name: str) -> GraphCall:
    """What a graph means by a name."""
    if name not in _CALLS:
        raise ReshardError(
            "bad-argument",
            f"this process has not traced {name}, or {CAPACITY // 2} other ways since; trace it again, after "
            "torch.compiler.reset() where it was compiled",
        )
    return _CALLS[name]


@torch.library.custom_op("reshard::exchange", mutates_args=())
def exchange(tile: torch.Tensor, name: str, sizes: Sequence[int]) -> torch.Tensor:
    """The named redistribute of a local tensor, whose whole has these sizes."""
    call = _named(name)
    redistribution = call.on_shape(sizes)
    local = redistribution.local
    local.check_tile(tile)
    current_world().check(redistribution.statement, call.check)
    result = redistribution.run(tile)
    return result if local.exchanges else result.clone()  # an operator gives no memory of its input


@exchange.register_fake
def _exchange_shape(tile: torch.Tensor, name: str, sizes: Sequence[int]) -> torch.Tensor:
    local = _named(name).on_shape(sizes).local
    local.check_tile(tile)  # the graph must depend on the local shape too, which torch guards no further
    return tile.new_empty(local.target_shape)


def _keep_name(ctx: Any, inputs: tuple[torch.Tensor, str, Sequence[int]], output: torch.Tensor) -> None:
    ctx.name, ctx.sizes = inputs[1:]


def _exchange_back(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    if ctx.name.endswith("/back"):
        raise ReshardError("bad-argument", "a traced redistribute has a first derivative and no second")
    return torch.ops.reshard.exchange(gradient, f"{ctx.name}/back", ctx.sizes), None, None


exchange.register_autograd(_exchange_back, setup_context=_keep_name)
