"""What a redistribute does: our plan, and beside it what torch's own two planners would do.

Nothing is communicated, so one process can ask for any mesh that it can describe.

    explain(x, [Shard(1), Shard(0)])                        of a DTensor
    explain([Shard(0), Shard(1)], [Shard(1), Shard(0)],     of placements
            mesh=mesh, shape=(4096, 4096), dtype=torch.float32)

The text shows our plan, then a table for each planner of torch's, one where they agree: per transform the bytes
that the busiest rank receives and holds, as torch plans it and, where that makes a difference, as it runs on CPU,
where an all-to-all is an all-gather; under it the sums, as multiples of the lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from reshard.checks import checked_shape, expect, listed, shown
from reshard.errors import ReshardError
from reshard.planner import plan as planned
from reshard.plans import Plan
from reshard.sharding import Sharding
from reshard.tables import Table, bytes_text, plain
from reshard.torch.dtensor_specs import dtype_of, meta_of, normalized, placements_of, sharding_of, spec_of
from reshard.torch.planners import PLANNERS, PlannerRoute, route

FIGURES = ("received", "peak", "received on CPU", "peak on CPU")
"""The columns of a route that hold figures; the last two where an all-to-all makes a difference."""


@dataclass(frozen=True)
class Comparison:
    """Our plan and the routes of torch's planners, for one redistribute; `print` shows all of it."""

    plan: Plan
    """Ours."""
    routes: tuple[PlannerRoute, ...]
    """Torch's, in the order of `PLANNERS`."""
    dim_names: tuple[str, ...]
    """What the mesh dims are called."""

    def ratio(self, route: PlannerRoute, *, on_cpu: bool = False) -> float | None:
        """What a route receives over the lower bound; None where the bound is 0."""
        bound = self.plan.lower_bound_bytes
        return route.total(on_cpu=on_cpu).received_bytes / bound if bound else None

    def __str__(self) -> str:
        alike = groupby(self.routes, key=lambda route: (route.transforms, route.refusal))
        return "\n\n".join([f"reshard\n{self.plan}", *(self._section(list(routes)) for _, routes in alike)])

    def _section(self, routes: Sequence[PlannerRoute]) -> str:
        """What one planner does, or several that do the same."""
        head, route = "torch, " + " and ".join(route.planner for route in routes), routes[0]
        if route.refusal:
            return f"{head}\nno route: {route.refusal}"
        if not route.transforms:
            return f"{head}\n{route.trace}\nnothing to do"
        sides = (False, True) if route.differs_on_cpu else (False,)
        rows = [["", "step", "mesh dim", *FIGURES[: 2 * len(sides)], "placements"]]
        for number, transform in enumerate(route.transforms, 1):
            names = ", ".join(self.dim_names[mesh_dim] for mesh_dim in transform.mesh_dims)
            costs = [transform.on_cpu if on_cpu else transform.planned for on_cpu in sides]
            figures = [bytes_text(count) for cost in costs for count in cost]
            rows.append([str(number), transform.kind, names, *figures, transform.after])
        totals = [self._total(route, on_cpu=on_cpu) for on_cpu in sides]
        return plain([head, route.trace, "", Table(rows, FIGURES), "", *totals])

    def _total(self, route: PlannerRoute, *, on_cpu: bool) -> str:
        received, peak = route.total(on_cpu=on_cpu)
        ratio = self.ratio(route, on_cpu=on_cpu)
        times = "" if ratio is None else f", {ratio:.2f} times the lower bound"
        where = "on CPU " if on_cpu else ""
        return f"received {where}{bytes_text(received)} on the busiest rank{times}; peak at least {bytes_text(peak)}"


def explain(
    x: DTensor | Sequence[Any],
    target: Sequence[Any] | Sharding,
    device_mesh: DeviceMesh | None = None,
    *,
    mesh: DeviceMesh | None = None,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    planners: Sequence[str] = PLANNERS,
) -> Comparison:
    """Our plan from x to a target, and what torch's planners would do, without communication.

    Args:
        x: a DTensor; or its placements, and then mesh, shape and dtype as well.
        target: placements, or a `Sharding` of any devices.
        device_mesh: what the target's placements are on, where not on the mesh of x.
        mesh: the mesh of x, where that is placements.
        shape: of the whole tensor.
        dtype: its element type.
        planners: of torch's, those to ask; `min-cost` takes seconds on meshes of 5 dims.

    Raises:
        ReshardError: `bad-argument`, and what `reshard.plan` and the conversion of placements refuse.
    """
    if unknown := [name for name in planners if name not in PLANNERS]:
        raise ReshardError("bad-argument", f"planner {shown(unknown[0])} must be one of {', '.join(PLANNERS)}")
    source = _spec(x, mesh, shape, dtype)
    target_mesh = source.mesh if device_mesh is None else expect(device_mesh, DeviceMesh, "device_mesh")
    before, after = sharding_of(source), sharding_of(target, target_mesh, source.ndim)
    ours = planned(before, after, tuple(source.shape), dtype_of(meta_of(source).dtype))
    names = tuple(name for name, _ in before.mesh.axes)
    try:
        goal = _goal(source, target, target_mesh)
    except ReshardError as refused:
        return Comparison(ours, tuple(PlannerRoute(name, "", 0, refusal=str(refused)) for name in planners), names)
    return Comparison(ours, tuple(route(name, source, goal) for name in planners), names)


def _goal(source: DTensorSpec, target: Any, mesh: DeviceMesh) -> DTensorSpec:
    """The target as torch has it.

    Raises:
        ReshardError: `cannot-express` where it has it not; the sentence is what `PlannerRoute.refusal` says.
    """
    if isinstance(target, Sharding):
        try:
            return DTensorSpec(source.mesh, placements_of(target, source.mesh, source.shape), source.tensor_meta)
        except ReshardError as refused:
            raise ReshardError("cannot-express", f"torch has no placements for it: {refused}") from None
    placements = normalized(tuple(target), mesh, source.ndim)
    if mesh != source.mesh and placements == source.placements:
        raise ReshardError("cannot-express", "torch compares placements alone, and leaves it on the mesh it is on")
    if mesh != source.mesh:
        raise ReshardError("cannot-express", "torch refuses another mesh: cross device mesh comm not supported yet")
    return DTensorSpec(mesh, placements, source.tensor_meta)


def _spec(x: Any, mesh: Any, shape: Any, dtype: Any) -> DTensorSpec:
    """Torch's record of what is redistributed."""
    if isinstance(x, DTensor):
        if (mesh, shape, dtype) != (None, None, None):
            raise ReshardError("bad-argument", "a DTensor has a mesh, a shape and a dtype; give none beside it")
        return x._spec
    expect(mesh, DeviceMesh, "the mesh of placements")
    sizes = checked_shape(listed(shape, "the shape of the whole tensor", "bad-shape"))
    placements = normalized(tuple(listed(x, "placements")), mesh, len(sizes))
    return spec_of(mesh, placements, sizes, expect(dtype, torch.dtype, "the dtype of the tensor"))
