"""`run`: a plan that was made before, with its basis, its steps and its chunks.

`reshard` plans by itself; here the caller has a plan in hand, from a basis, from the alternatives, from JSON, or within
a memory limit, and that one is run.
Axes of the plan that its shardings use in part are axes of their own on the mesh of the result.

>>> import numpy as np
>>> from reshard.mesh import Mesh
>>> from reshard.planner import plan
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=1)
>>> given = plan(Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x"), (2, 2))
>>> run(given, np.ones((2, 2), np.float32)).sharding.spec
P(None, 'x')
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import jax
from jax._src import core
from jax.sharding import AxisType, NamedSharding
from jax.typing import ArrayLike

from reshard.checks import expect
from reshard.errors import ReshardError
from reshard.jax.exchange.across import run_across
from reshard.jax.exchange.primitive import MeshReshard, filled, run_program
from reshard.jax.exchange.rounds import bits_of
from reshard.jax.exchange.traced import bound, is_in_program, mesh_that_is_set
from reshard.jax.jax_shardings import (
    AnyMesh,
    as_array,
    jax_mesh_like,
    mesh_of,
    named_sharding_of,
    partition_spec_of,
    refined,
    sharding_of,
)
from reshard.mesh import Mesh
from reshard.notation import parse_sharding, to_xla
from reshard.plans import Plan
from reshard.sharding import Sharding


def run(plan: Plan, x: ArrayLike) -> jax.Array:
    """The array after the plan: its steps, in its basis, in its chunks; in and out of `jit`.

    With a memory limit every move is a loop over chunks, and the compiled program keeps the peak that the plan states:
    arguments, results and temporaries of `memory_analysis` are no more than `plan.peak_bytes`.
    (A plan that only slices has no room but for its tiles, and a few dozen bytes to look up where a part begins.)
    The derivative is a reshard back, planned anew.

    Args:
        plan: from `reshard.plan`, with devices as places in `jax.devices()`.
        x: the array, as the plan's source says; one that is nowhere in particular is put there first, and in `jit`
            one on Auto axes is where XLA, asked for that, puts it.

    Raises:
        ReshardError: `bad-argument` where the array has another shape, dtype or sharding than the plan's source;
            `no-plan` where this backend does not keep the plan's memory limit;
            `not-divisible` where a dim is not divided by its shards; `cannot-express`; `different-meshes` where a plan
            inside `jit` leads to other devices or another order, or a memory limit is to be kept between two
            meshes, or pieces go along a ring there; `unknown-device`.
    """
    expect(plan, Plan, "what is run")
    array = as_array(x)
    if array.shape != plan.shape or array.dtype.name != plan.dtype.name:
        raise ReshardError(
            "bad-argument", f"the plan is for {plan.shape} {plan.dtype}, got: {array.shape} {array.dtype}"
        )
    in_program = isinstance(array, core.Tracer) or is_in_program()
    source, target = plan.source, plan.target
    for end in (source, target):
        end.check_divisible(plan.shape)
    _check_limit(plan, array.dtype)
    if not source.mesh.same_order_as(target.mesh):
        return _run_across(plan, array, in_program)
    of_array = jax.typeof(array).sharding.mesh if in_program else getattr(array.sharding, "mesh", None)
    mesh, (start, stop) = _mesh_for(plan, of_array)
    wanted = MeshReshard(mesh, start, stop, plan=plan)
    if in_program:
        return _traced(array, wanted, plan)
    goal = NamedSharding(mesh, start)
    _check_source(plan, array)
    if array.sharding != goal:
        array = jax.device_put(array, goal)
    if not array.size or start == stop:
        return jax.device_put(array, NamedSharding(mesh, stop))
    return run_program([wanted], [array])[0]


def _check_limit(plan: Plan, dtype: Any) -> None:
    """Refuse a memory limit that this backend does not keep.

    XLA on a CPU computes on small floats as larger ones and copies their tiles for that.

    Raises:
        ReshardError: `no-plan`, with the smallest limit that would do.
    """
    limit = plan.options.memory_limit
    if limit is None or bits_of(dtype) is None or jax.default_backend() != "cpu":
        return
    tile = prod(plan.target.local_shape(plan.shape)) * plan.dtype.itemsize
    least = plan.peak_bytes + tile * (3 if plan.source.unreduced else 1)
    if limit < least:
        raise ReshardError(
            "no-plan",
            f"on a CPU XLA copies tiles of {plan.dtype}: the plan takes {least} bytes; memory_limit is {limit}",
        )


def _check_source(plan: Plan, x: jax.Array) -> None:
    """Refuse an array that lies elsewhere; one that nobody has put anywhere may still be put.

    Raises:
        ReshardError: `bad-argument`.
    """
    if x.committed and not sharding_of(x.sharding, None, x.ndim).is_equivalent_to(plan.source, x.shape):
        lies = sharding_of(x.sharding, None, x.ndim)
        raise ReshardError("bad-argument", f"the plan starts at {plan.source}, but the array lies as {lies}")


def _mesh_for(plan: Plan, of_array: Any) -> tuple[AnyMesh, list[Any]]:
    """A mesh of JAX on which both ends of the plan have whole axes, and their specs on it."""
    candidates = [mesh for mesh in (of_array, jax.sharding.get_abstract_mesh(), mesh_that_is_set()) if mesh is not None]
    ours = plan.source.mesh
    mesh = next((mesh for mesh in candidates if mesh.axis_names and mesh_of(mesh).axes == ours.axes), None)
    if mesh is not None and not isinstance(mesh, jax.sharding.AbstractMesh) and not mesh_of(mesh).same_order_as(ours):
        mesh = None
    mesh = jax_mesh_like(ours) if mesh is None else mesh
    fine, renamed = refined([_on_axes_of(end, plan) for end in (plan.source, plan.target)], mesh)
    return fine, [filled(partition_spec_of(end), len(plan.shape)) for end in renamed]


def refined_ends(plan: Plan) -> tuple[Mesh, list[Sharding]]:
    """The mesh whose whole axes both ends of a plan have, and the ends on it; without any devices of JAX."""
    ours = plan.source.mesh
    abstract = jax.sharding.AbstractMesh(
        tuple(ours.sizes.values()), tuple(ours.sizes), axis_types=(AxisType.Explicit,) * len(ours.axes)
    )
    mesh, renamed = refined([_on_axes_of(end, plan) for end in (plan.source, plan.target)], abstract)
    return mesh_of(mesh), renamed


def _on_axes_of(end: Sharding, plan: Plan) -> Sharding:
    """An end on the mesh of the plan's source, whose axes may have other names.

    Raises:
        ReshardError: `cannot-express`.
    """
    ours = plan.source.mesh
    if end.mesh.axes == ours.axes:
        return replace(end, mesh=ours)
    parsed = parse_sharding(to_xla(replace(end, mesh=Mesh(end.mesh.axes))), Mesh(ours.axes), end.ndim)
    if parsed.mesh.axes != ours.axes:
        raise ReshardError("cannot-express", f"JAX holds an array on one mesh, but {end} is not by axes of {ours}")
    return replace(parsed, mesh=ours)


def _traced(x: Any, wanted: MeshReshard, plan: Plan) -> Any:
    of_type = jax.typeof(x).sharding
    if AxisType.Manual in wanted.mesh.axis_types:
        raise ReshardError("bad-argument", "inside shard_map a device sees its own tile alone; run the plan outside")
    if AxisType.Explicit in of_type.mesh.axis_types and of_type.mesh.shape_tuple == wanted.mesh.shape_tuple:
        lies = sharding_of(of_type.spec, wanted.mesh, x.ndim)
        if not lies.is_equivalent_to(sharding_of(wanted.source, wanted.mesh, x.ndim), x.shape):
            raise ReshardError("bad-argument", f"the plan starts at {plan.source}, but the type says {of_type.spec}")
    return bound(x, wanted)


def _run_across(plan: Plan, x: Any, in_program: bool) -> jax.Array:
    if in_program:
        raise ReshardError(
            "different-meshes", "inside jit all is on the same devices in one order; run the plan outside"
        )
    if plan.options.memory_limit is not None:
        raise ReshardError("different-meshes", "a memory limit is kept inside one program, and so on one mesh alone")
    if any(step.ring for share in plan.shares for step in share.steps):
        raise ReshardError("different-meshes", "pieces are handed on inside one program, and so on one mesh alone")
    _check_source(plan, x)
    if not x.committed:
        x = jax.device_put(x, named_sharding_of(plan.source, refine=True))
    return run_across(plan, x, named_sharding_of(plan.target, refine=True))
