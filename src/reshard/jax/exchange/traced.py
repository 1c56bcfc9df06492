"""`reshard` for arrays of JAX that are traced: on which mesh, from where, to where.

What is traced has a type and no devices.
On Explicit axes the type tells where a value lies; on Auto axes nobody does before XLA has propagated, and XLA is
asked; where some axes are of one kind and some of the other, XLA is asked too.
Inside a `shard_map` over some axes the others are the mesh: a reshard is between the devices that differ in those.
There XLA tells nobody where a value lies, so on Auto axes without `source=` it does the move itself.

A value that is there and is used in a program, a table that a function closes over, is a constant of the program:
every device has it, so each keeps its part and nothing is sent.

A dim that its shards do not divide is filled up to whole tiles, moved, and cut again: no program holds tiles of
several sizes.
By hand, 4 rows on tp=8: blocks of one row, 8 rows with the filling, and devices 4 to 7 hold filling alone.

>>> import numpy as np
>>> mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
>>> table = np.arange(3.0)
>>> jax.jit(lambda: reshard_traced(jax.numpy.asarray(table), NamedSharding(mesh, PartitionSpec("x"))))().tolist()
[0.0, 1.0, 2.0]
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import Any

import jax
from jax._src import core
from jax._src.interpreters.partial_eval import DynamicJaxprTrace
from jax._src.mesh import get_concrete_mesh, thread_resources
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh

from reshard.errors import ReshardError
from reshard.jax.exchange.primitive import MeshReshard, bind, devices_of, filled, free_mesh, plan_of
from reshard.jax.jax_shardings import (
    AnyMesh,
    Target,
    mesh_of,
    named_sharding_of,
    names_in,
    on_mesh,
    partition_spec_of,
    sharding_of,
)
from reshard.network import Network
from reshard.sharding import Sharding


def is_in_program() -> bool:
    """Whether what is called now becomes part of a program: then values that are there are its constants."""
    stack = core.unsafe_get_trace_stack(core.trace_ctx.trace)
    return any(isinstance(trace, DynamicJaxprTrace) for trace in stack)


def mesh_that_is_set() -> JaxMesh:
    """The mesh of devices of `jax.set_mesh` or of `with mesh:`; an empty one where there is none."""
    current = get_concrete_mesh()
    return thread_resources.env.physical_mesh if current.empty else current


def reshard_traced(
    x: Any, target: Target, source: Any = None, network: Network | None = None, refine: bool = False
) -> Any:
    """A traced array, or one that is there and is used in a program, laid out as `target` says.

    Raises:
        ReshardError: as `reshard`.
    """
    of_type = jax.typeof(x).sharding
    mesh = _mesh_of_trace(of_type.mesh, target, source)
    if set(mesh.axis_types) == {AxisType.Manual}:
        raise ReshardError("bad-argument", "inside shard_map a device sees its own tile alone; reshard outside of it")
    target, kept = left_open(target)
    start = source_in(mesh, of_type, source, x.ndim)
    goal = target_in(mesh, target, refine, x.ndim)
    _check_axes_are_free(goal)
    if goal.mesh != mesh and goal.mesh.shape_tuple != mesh.shape_tuple:
        return _on_refined(x, mesh, MeshReshard(goal.mesh, start, goal.spec, network))
    wanted = MeshReshard(goal.mesh, start, goal.spec, network, kept)
    if kept and start is not None:
        wanted = wanted.from_spec(start)
    y = _moved(x, wanted, of_type)
    if isinstance(target, NamedSharding) and target.memory_kind not in (None, "device"):
        y = jax.device_put(y, NamedSharding(goal.mesh, wanted.target, memory_kind=target.memory_kind))
    return y


def _moved(x: Any, wanted: MeshReshard, of_type: NamedSharding) -> Any:
    """A constant is made where it is wanted; of all else what is lacking is sent."""
    kinds = set(wanted.mesh.axis_types)
    is_there, is_typed = not isinstance(x, core.Tracer), not of_type.mesh.empty
    is_fresh = not is_typed and jax.sharding.get_abstract_mesh().are_all_axes_explicit
    if kinds == {AxisType.Explicit} and (is_typed if is_there else is_fresh):
        _ends_of(wanted, x.ndim)[1].check_divisible(x.shape)
        return jax.sharding.reshard(x, NamedSharding(wanted.mesh, wanted.target))
    if (is_there and kinds == {AxisType.Auto}) or (AxisType.Manual in kinds and wanted.source is None):
        return jax.lax.with_sharding_constraint(x, wanted.asked)
    if AxisType.Explicit not in kinds:
        sizes = _sizes_of_whole_tiles(x.shape, wanted)
        if sizes != x.shape:
            return _moved_in_whole_tiles(x, sizes, wanted)
    return bound(x, wanted)


def left_open(target: Target) -> tuple[Target, tuple[int, ...]]:
    """A target without the dims that it leaves to XLA, and which those are."""
    spec = getattr(target, "spec", target)
    if not isinstance(spec, PartitionSpec):
        return target, ()
    entries = tuple(spec.partitions)
    kept = tuple(dim for dim, entry in enumerate(entries) if entry is PartitionSpec.UNCONSTRAINED)
    if not kept:
        return target, ()
    said = spec.update(partitions=tuple(None if dim in kept else entry for dim, entry in enumerate(entries)))
    return (target.update(spec=said) if isinstance(target, NamedSharding) else said), kept


def _check_axes_are_free(goal: NamedSharding) -> None:
    """Refuse an axis of a `shard_map` that is around: there a device sees its own part alone.

    Raises:
        ReshardError: `bad-argument`.
    """
    kinds = dict(zip(goal.mesh.axis_names, goal.mesh.axis_types, strict=True))
    for entry in goal.spec.partitions:
        for name in names_in(entry):
            if kinds[name] == AxisType.Manual:
                raise ReshardError(
                    "bad-argument", f'inside shard_map over axis "{name}" a device sees its own tile alone: {goal.spec}'
                )


# Dims that their shards do not divide


def _ends_of(wanted: MeshReshard, ndim: int) -> list[Sharding]:
    """Where the array comes from and goes to; the target twice where the source is not known."""
    mesh = free_mesh(wanted.mesh)
    return [sharding_of(spec, mesh, ndim) for spec in (wanted.source or wanted.target, wanted.target)]


def _sizes_of_whole_tiles(shape: tuple[int, ...], wanted: MeshReshard) -> tuple[int, ...]:
    """The shape filled up so that the shards of both ends divide every dim."""
    ends = _ends_of(wanted, len(shape))
    shards = [lcm(*(end.layout.shards(dim) for end in ends)) for dim in range(len(shape))]
    return tuple(-(-size // count) * count for size, count in zip(shape, shards, strict=True))


def _moved_in_whole_tiles(x: Any, sizes: tuple[int, ...], wanted: MeshReshard) -> Any:
    """The array filled up, moved, and cut again; the program around it may then hold tiles of several sizes."""
    filling = [(0, size - length, 0) for size, length in zip(sizes, x.shape, strict=True)]
    y = bound(jax.lax.pad(x, jax.numpy.zeros((), x.dtype), filling), wanted)
    return jax.lax.with_sharding_constraint(jax.lax.slice(y, [0] * x.ndim, x.shape), wanted.asked)


# The mesh and the ends


def _mesh_of_trace(of_type: AbstractMesh, target: Target, source: Any) -> AnyMesh:
    """The one mesh of a traced reshard.

    Raises:
        ReshardError: `unknown-mesh`, `different-meshes`.
    """
    known: list[AnyMesh] = [end.mesh for end in (target, source) if isinstance(end, NamedSharding)]
    current: AnyMesh = jax.sharding.get_abstract_mesh()
    current = mesh_that_is_set() if current.empty else current
    known += [mesh for mesh in (of_type, current) if not mesh.empty]
    if not known:
        raise ReshardError("unknown-mesh", f"{target} does not say on which mesh; use a NamedSharding or set_mesh")
    for mesh in known[1:]:
        if mesh.shape_tuple != known[0].shape_tuple:
            raise ReshardError(
                "different-meshes",
                f"the array is traced on mesh {mesh_of(mesh)}, the target is on {mesh_of(known[0])}; "
                "inside jit both must be on one mesh, so reshard outside",
            )
    set_now = mesh_that_is_set()
    for mesh in known:
        if isinstance(mesh, JaxMesh) and not set_now.empty and not mesh_of(mesh).same_order_as(mesh_of(set_now)):
            raise ReshardError(
                "different-meshes",
                f"the mesh that is set has devices {mesh_of(set_now).devices}, the target is on "
                f"{mesh_of(mesh).devices}; inside jit both must be the same in one order, so reshard outside",
            )
    types = next((mesh for mesh in (current, of_type) if not mesh.empty), known[0]).axis_types
    first = next((mesh for mesh in known if isinstance(mesh, JaxMesh)), known[0])
    return first if first.axis_types == types else first.abstract_mesh.update(axis_types=types)


def source_in(mesh: AnyMesh, of_type: NamedSharding, source: Any, ndim: int) -> PartitionSpec | None:
    """Where a traced array is: by its type, or as said; None where neither is known.

    On Explicit axes a value whose type has no mesh is whole everywhere: one of NumPy, a constant.

    Raises:
        ReshardError: `bad-argument` where type and what is said differ.
    """
    said = None
    if isinstance(source, Sharding):
        said = partition_spec_of(on_mesh(source, mesh))
    elif source is not None:
        said = partition_spec_of(sharding_of(getattr(source, "spec", source), mesh, ndim))
    kinds = set(mesh.axis_types) - {AxisType.Manual}
    if kinds == {AxisType.Explicit}:
        if (
            said is not None
            and not of_type.mesh.empty
            and sharding_of(said, mesh, ndim).layout != sharding_of(of_type.spec, mesh, ndim).layout
        ):
            raise ReshardError("bad-argument", f"source is {said}, but the type of the array says {of_type.spec}")
        return filled(of_type.spec, ndim)
    return filled(said, ndim)


def target_in(mesh: AnyMesh, target: Target, refine: bool, ndim: int) -> NamedSharding:
    """The target of a traced array, on the mesh of its trace.

    Raises:
        ReshardError: `rank-mismatch`, `different-meshes`, `cannot-express`, `bad-argument`.
    """
    if isinstance(target, Sharding):
        if target.ndim != ndim:
            raise ReshardError("rank-mismatch", f"{target} has {target.ndim} dims, the array {ndim}")
        if isinstance(mesh, AbstractMesh) or target.mesh.same_order_as(mesh_of(mesh)):
            return named_sharding_of(target, mesh, refine=refine)
        raise ReshardError(
            "different-meshes", f"{target} is on other devices than the array that is traced on {mesh_of(mesh)}"
        )
    spec = target.spec if isinstance(target, NamedSharding) else target
    return NamedSharding(mesh, checked_spec(spec, mesh, ndim))


def checked_spec(spec: PartitionSpec, mesh: AnyMesh, ndim: int) -> PartitionSpec:
    """A spec for every dim.

    Raises:
        ReshardError: `bad-argument` for dims without a say, and what `sharding_of` raises.
    """
    if PartitionSpec.UNCONSTRAINED in spec.partitions:
        raise ReshardError("bad-argument", f"{spec} leaves a dim open; a reshard must say where every dim goes")
    sharding_of(spec, mesh, ndim)
    return filled(spec, ndim)


def _on_refined(x: Any, mesh: AnyMesh, reshard: MeshReshard) -> Any:
    """The reshard over finer axes of the same devices, on which the result stays; only its source is on the mesh."""
    fine, start = reshard.mesh, reshard.source
    if start is not None:
        coarse = replace(mesh_of(mesh), device_ids=mesh_of(fine).device_ids)
        ours = replace(sharding_of(start, mesh, x.ndim), mesh=coarse)
        start = filled(partition_spec_of(on_mesh(ours, fine)), x.ndim)
    with jax.sharding.use_abstract_mesh(fine.abstract_mesh):
        if AxisType.Explicit in mesh.axis_types:
            try:
                x = jax.sharding.reshard(x, NamedSharding(fine, start))
            except KeyError as error:  # the axes of a batch are those of the mesh
                raise ReshardError(
                    "cannot-express", f"vmap maps over axis {error}, of which the target of the reshard has a part"
                ) from None
        return bound(x, replace(reshard, source=start), of_jit=mesh)


def bound(x: Any, reshard: MeshReshard, of_jit: AnyMesh | None = None) -> Any:
    """The reshard itself, once a plan is known to exist; `of_jit` is the mesh of all else, where it is another."""
    reshard = replace(reshard, source=filled(reshard.source, x.ndim), target=filled(reshard.target, x.ndim))
    if reshard.source is None:
        sharding_of(reshard.target, reshard.mesh, x.ndim).check_divisible(x.shape)
    else:
        plan_of(reshard, x.shape, x.dtype)
    return bind(x, reshard, devices_of(of_jit or reshard.mesh))
