"""`reshard` for arrays of JAX: eager and traced, single or in a pytree.

What says where an array is:

    the array itself               where it is there (eager)
    its type                       where it is traced and the axes of its mesh are Explicit
    `source=`                      where it is traced and they are Auto
    XLA, when it has propagated    the same, without `source=`

>>> import numpy as np
>>> mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
>>> x = jax.device_put(np.arange(4), jax.NamedSharding(mesh, jax.P("x")))
>>> reshard(x, jax.P(None)).sharding.spec
P(None,)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
from jax._src.mesh import get_concrete_mesh
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh

from reshard.checks import shown
from reshard.errors import ReshardError
from reshard.jax.conversions import (
    AnyMesh,
    Target,
    for_leaves,
    mesh_of,
    named_sharding_of,
    on_mesh,
    partition_spec_of,
    sharding_of,
)
from reshard.jax.exchange.across import reshard_across
from reshard.jax.exchange.primitive import MeshReshard, bind, devices_of, filled, plan_of
from reshard.network import Network
from reshard.sharding import Sharding


def reshard(
    x: Any, target: Any, source: Any = None, *, network: Network | str | None = None, refine: bool = False
) -> Any:
    """The same values, laid out as `target` says; every device receives the bytes that it lacks.

    In place of `jax.sharding.reshard` and `jax.lax.with_sharding_constraint`, in and out of `jit`, under
    `set_mesh`, `scan`, `vmap`, `jvp` and `grad`.
    Eager it also goes to another mesh: other devices, or the same in another order.

    Args:
        x: an array, or a pytree of arrays.
        target: a `PartitionSpec` on the mesh of the array or the one that is set, a `NamedSharding`, or a
            `reshard.Sharding`; or a pytree of them, of which one may stand for a whole subtree.
        source: where traced arrays on Auto axes are, in the same forms; without it XLA is asked.
        network: what the devices are connected by, or the name of a preset: then the plan with the least time
            there is chosen; without it the one with the fewest bytes.
        refine: whether a target with sub-axes comes back on a refined mesh; without it such a target is refused.

    Raises:
        ReshardError: `unknown-mesh` where no mesh is known, `different-meshes` where a traced array is wanted on
            another mesh, `not-divisible`, `rank-mismatch`, `cannot-express`, `bad-argument`, or what
            `reshard.plan` raises; all before anything moves.
    """
    network = Network.named(network, "the network of a reshard")
    leaves, tree = jax.tree.flatten(x)
    targets = for_leaves(target, x, "the target", " of a reshard", Target)
    sources = for_leaves(source, x, "the source", " of a reshard", Target | None)
    calls = zip(leaves, targets, sources, strict=True)
    return jax.tree.unflatten(tree, [_resharded(*call, network, refine) for call in calls])


def _resharded(x: Any, target: Target, source: Any, network: Network | None, refine: bool) -> Any:
    if not isinstance(x, jax.Array):
        try:
            x = jax.numpy.asarray(x)
        except (TypeError, ValueError):
            raise ReshardError("bad-argument", f"an array or a number is resharded, got: {shown(x)}") from None
    if isinstance(x, jax.core.Tracer) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):  # type: ignore[attr-defined]
        raise ReshardError("unknown-dtype", f"inside jit no {x.dtype} is resharded; reshard its jax.random.key_data")
    for size in x.shape:
        if not isinstance(size, int):
            raise ReshardError("bad-shape", f"a reshard needs a static shape, got: {x.shape}")
    return (_traced if isinstance(x, jax.core.Tracer) else _eager)(x, target, source, network, refine)


# Arrays that are there


def _eager(x: jax.Array, target: Target, source: Any, network: Network | None, refine: bool) -> jax.Array:
    sharding = x.sharding
    if source is not None:
        mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
        stated, actual = sharding_of(source, mesh, x.ndim), sharding_of(sharding, None, x.ndim)
        if not actual.is_equivalent_to(stated, x.shape):
            raise ReshardError("bad-argument", f"source is {stated.text()}, but the array lies as {actual.text()}")
    goal = _target_of_array(target, sharding, refine, x.ndim)
    sharding_of(goal, None, x.ndim).check_divisible(x.shape)
    if not x.committed or sharding.memory_kind != goal.memory_kind:
        return jax.device_put(x, goal)
    renamed = None
    if x.size and isinstance(sharding, NamedSharding) and mesh_of(sharding.mesh).same_order_as(mesh_of(goal.mesh)):
        renamed = sharding if sharding.mesh == goal.mesh else by_names_of(goal.mesh, sharding, x.ndim)
    if renamed is None:  # where there are no elements, a program of XLA would make tiles of another shape
        return reshard_across(x, goal)
    x = x if renamed == sharding else jax.device_put(x, renamed)
    return _bound(x, MeshReshard(goal.mesh, renamed.spec, goal.spec, network))


def by_names_of(mesh: AnyMesh, sharding: NamedSharding, ndim: int) -> NamedSharding | None:
    """The sharding on a mesh of the same devices in the same order; None where its axes cannot express it."""
    try:
        return named_sharding_of(sharding_of(sharding, None, ndim), mesh)
    except ReshardError:
        return None


def _target_of_array(target: Target, sharding: Any, refine: bool, ndim: int) -> NamedSharding:
    """The target on its mesh: its own, that of the array, or the one that is set."""
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else jax.sharding.get_mesh()
    if isinstance(target, NamedSharding):
        if not isinstance(target.mesh, JaxMesh):
            if mesh.abstract_mesh != target.mesh:
                raise ReshardError("unknown-mesh", f"{target} names no devices, and no mesh with its axes is set")
            return NamedSharding(mesh, _checked(target.spec, mesh, ndim))
        return NamedSharding(target.mesh, _checked(target.spec, target.mesh, ndim), memory_kind=target.memory_kind)
    if isinstance(target, PartitionSpec):
        if mesh.empty:
            raise ReshardError("unknown-mesh", f"{target} does not say on which mesh; use a NamedSharding or set_mesh")
        return NamedSharding(mesh, _checked(target, mesh, ndim))
    same_devices = not mesh.empty and target.mesh.same_order_as(mesh_of(mesh))
    return named_sharding_of(target, mesh if same_devices else None, refine=refine)


def _checked(spec: PartitionSpec, mesh: AnyMesh, ndim: int) -> PartitionSpec:
    """A spec for every dim.

    Raises:
        ReshardError: `bad-argument` for dims without a say, and what `sharding_of` raises.
    """
    if PartitionSpec.UNCONSTRAINED in spec.partitions:
        raise ReshardError("bad-argument", f"{spec} leaves a dim open; a reshard must say where every dim goes")
    sharding_of(spec, mesh, ndim)
    return filled(spec, ndim)


# Arrays that are traced


def _traced(x: Any, target: Target, source: Any, network: Network | None, refine: bool) -> Any:
    of_type = jax.typeof(x).sharding
    mesh = _mesh_of_trace(of_type.mesh, target, source)
    if AxisType.Manual in mesh.axis_types:
        raise ReshardError("bad-argument", "inside shard_map a device sees its own tile alone; reshard outside of it")
    start = source_in(mesh, of_type, source, x.ndim)
    goal = target_in(mesh, target, refine, x.ndim)
    if goal.mesh != mesh and goal.mesh.shape_tuple != mesh.shape_tuple:
        return _on_refined(x, mesh, MeshReshard(goal.mesh, start, goal.spec, network))
    current = jax.sharding.get_abstract_mesh()
    if of_type.mesh.empty and current.are_all_axes_explicit and mesh == goal.mesh:  # XLA makes it where it is wanted
        sharding_of(goal, None, x.ndim).check_divisible(x.shape)
        return jax.sharding.reshard(x, goal)
    return _bound(x, MeshReshard(goal.mesh, start, goal.spec, network))


def _mesh_of_trace(of_type: AbstractMesh, target: Target, source: Any) -> AnyMesh:
    """The one mesh of a traced reshard.

    Raises:
        ReshardError: `unknown-mesh`, `different-meshes`.
    """
    known: list[AnyMesh] = [end.mesh for end in (target, source) if isinstance(end, NamedSharding)]
    current = jax.sharding.get_abstract_mesh()
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
    set_now = get_concrete_mesh()
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
        ReshardError: `bad-argument` where type and what is said differ, or some axes are Auto and others not.
    """
    said = None
    if isinstance(source, Sharding):
        said = partition_spec_of(on_mesh(source, mesh))
    elif source is not None:
        said = partition_spec_of(sharding_of(getattr(source, "spec", source), mesh, ndim))
    kinds = set(mesh.axis_types)
    if kinds == {AxisType.Explicit}:
        if (
            said is not None
            and not of_type.mesh.empty
            and sharding_of(said, mesh, ndim).layout != sharding_of(of_type.spec, mesh, ndim).layout
        ):
            raise ReshardError("bad-argument", f"source is {said}, but the type of the array says {of_type.spec}")
        return filled(of_type.spec, ndim)
    if said is None and AxisType.Explicit in kinds:
        raise ReshardError("bad-argument", "some axes of the mesh are Explicit and others Auto; pass source=")
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
    return NamedSharding(mesh, _checked(spec, mesh, ndim))


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
        return _bound(x, replace(reshard, source=start), of_jit=mesh)


def _bound(x: Any, reshard: MeshReshard, of_jit: AnyMesh | None = None) -> Any:
    """The reshard itself, once a plan is known to exist; `of_jit` is the mesh of all else, where it is another."""
    reshard = replace(reshard, source=filled(reshard.source, x.ndim), target=filled(reshard.target, x.ndim))
    if reshard.source is None:
        sharding_of(reshard.target, reshard.mesh, x.ndim).check_divisible(x.shape)
    else:
        plan_of(reshard, x.shape, x.dtype)
    return bind(x, reshard, devices_of(of_jit or reshard.mesh))
