"""The reshard as an operation of JAX: linear, with its own lowering, transpose and batching.

A reshard changes where values lie and no value, so it is linear, and its derivative is a reshard too: forward the
same, backward from the target to the source.
As a primitive it keeps that through `jit`, `scan`, `vmap`, `jvp` and `grad` of any order; every reshard of a
derivative is planned anew and moves what its bound says.
(A `custom_vjp` around the same program has no `jvp`, and a sharded batch dim is gathered before it.)

There are two:

    reshard_p    both ends are known, and a plan with them
    open_p       on Auto axes a traced value does not tell where it is. XLA does once it has propagated all
                 shardings; the plan is made then, in `custom_partitioning`. In its gradient the target is open too

A batch dim that `vmap` adds is sharded as the mapping says; on Auto axes nobody may say, so there the dim is
`kept`: it stays as it comes, and the source is left to XLA as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from string import ascii_letters
from typing import Any

import jax
import numpy as np
from jax._src import core, dispatch
from jax._src.interpreters import ad, batching, mlir
from jax._src.mesh import get_concrete_mesh
from jax._src.pjit import sharding_constraint_p
from jax._src.sharding_impls import GSPMDSharding
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh

from reshard.errors import ReshardError
from reshard.jax.conversions import AnyMesh, HloSharding, mesh_of, names_in, sharding_of
from reshard.jax.exchange.lowering import run_on_device
from reshard.network import Network
from reshard.planner import plan as make_plan
from reshard.plans import Plan

reshard_p = core.Primitive("reshard_by_plan")
"""Parameters: the mesh of both ends, source and target as specs for every dim, the network or None, the devices."""
open_p = core.Primitive("reshard_by_plan_when_known")
"""Parameters: the mesh, the target as a spec for every dim or None, the dims that are kept, network, devices."""


def bind(
    x: Any,
    mesh: AnyMesh,
    source: PartitionSpec | None,
    target: PartitionSpec | None,
    network: Network | None = None,
    devices: Any = None,
) -> Any:
    """The reshard of one array, traced or not; ends that are None are open; `devices` is what `devices_of` makes."""
    if source is None or target is None:
        return open_p.bind(x, mesh=mesh, target=target, kept=(), network=network, devices=devices)
    return reshard_p.bind(x, mesh=mesh, source=source, target=target, network=network, devices=devices)


@lru_cache(256)
def devices_of(mesh: AnyMesh) -> Any:
    """A program that does nothing on the devices of a mesh; None where it has none.

    `jit` takes its devices from its arguments and from the shardings that it finds in its operations and in the
    programs that are their parameters. Without this one it would put an array of NumPy on one device alone.
    """
    if not isinstance(mesh, JaxMesh):
        return None
    stays = partial(
        sharding_constraint_p.bind,
        sharding=NamedSharding(mesh, PartitionSpec()),
        layout=None,
        context_mesh=mesh.abstract_mesh,
        unconstrained_dims=frozenset(),
    )
    return jax.make_jaxpr(stays)(np.float32(0)).jaxpr


@lru_cache(1024)
def plan_between(
    mesh: AnyMesh, source: PartitionSpec, target: PartitionSpec, shape: tuple[int, ...], dtype: Any, network: Any
) -> Plan:
    """The plan from one spec to another.

    Raises:
        ReshardError: as `reshard.plan`; `not-divisible`, since JAX holds no dim that its shards do not divide.
    """
    ours = mesh_of(mesh)
    ends = [sharding_of(spec, ours, len(shape)) for spec in (source, target)]
    for end in ends:
        end.check_divisible(shape)
    return make_plan(ends[0], ends[1], shape, dtype, network=network)


def filled(spec: PartitionSpec, ndim: int) -> PartitionSpec:
    """The spec with an entry for every dim."""
    return spec.update(partitions=(*spec.partitions, *[None] * (ndim - len(spec.partitions))))


# Both ends are known


def type_of_result(aval: Any, *, mesh: AnyMesh, target: PartitionSpec | None, **_: Any) -> Any:
    """A type tells the placement along Explicit axes alone."""
    if target is None:
        return aval
    return aval.update(sharding=NamedSharding(mesh.abstract_mesh, shown_by_type(mesh, target)))


def shown_by_type(mesh: AnyMesh, spec: PartitionSpec) -> PartitionSpec:
    """What a type tells of a spec."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    shown = [tuple(n for n in names_in(entry) if kinds[n] == AxisType.Explicit) for entry in spec.partitions]
    return spec.update(partitions=tuple(shown))


def lies(aval: Any, mesh: AnyMesh, said: PartitionSpec) -> PartitionSpec:
    """Where a value lies: as said, but where its type tells otherwise. A tangent may lie elsewhere than its value."""
    if AxisType.Explicit not in mesh.axis_types:
        return said
    here = filled(aval.sharding.spec, aval.ndim)
    return said if shown_by_type(mesh, said) == shown_by_type(mesh, here) else here


def _on_devices(x: Any, *, mesh: AnyMesh, target: PartitionSpec, network: Network | None, **_: Any) -> Any:
    """An array that is there tells its own source."""
    there = x.sharding
    if not isinstance(there, NamedSharding) or there.mesh.shape_tuple != mesh.shape_tuple:
        return jax.device_put(x, NamedSharding(mesh, target))
    if isinstance(mesh, JaxMesh) and not mesh_of(there.mesh).same_order_as(mesh_of(mesh)):
        raise ReshardError(
            "different-meshes", "derivatives and vmap cannot lead to other devices or another order; reshard outside"
        )
    source = filled(there.spec, x.ndim)
    return x if source == target else _program(there.mesh, source, target, network)(x)


@lru_cache(1024)
def _program(
    mesh: JaxMesh, source: PartitionSpec, target: PartitionSpec, network: Network | None
) -> Callable[..., Any]:
    """The compiled reshard of arrays that are there."""
    function = partial(bind, mesh=mesh, source=source, target=target, network=network)
    return jax.jit(function, out_shardings=NamedSharding(mesh, target))


def _lowered(ctx: Any, x: Any, *, mesh: Any, source: Any, target: Any, network: Any, **_: Any) -> Any:
    (aval,) = ctx.avals_in
    source = lies(aval, mesh, source)
    plan = plan_between(mesh, source, target, aval.shape, aval.dtype, network)
    mesh, body = over_devices(mesh), partial(run_on_device, plan, mesh.axis_names)
    function = jax.shard_map(body, mesh=mesh, in_specs=source, out_specs=target, check_vma=False)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        return mlir.lower_fun(function, multiple_results=False)(ctx, x)


def over_devices(mesh: AnyMesh) -> AnyMesh:
    """The mesh over the devices of the one that is set, where it has none: JAX would take that one's axes otherwise."""
    current = get_concrete_mesh()
    if isinstance(mesh, JaxMesh) or current.size != mesh.size or current.empty:
        return mesh
    return JaxMesh(current.devices.reshape(mesh.axis_sizes), mesh.axis_names, axis_types=mesh.axis_types)


def _transposed(cotangent: Any, x: Any, *, mesh: Any, source: Any, target: Any, network: Any, devices: Any) -> Any:
    start = lies(jax.typeof(cotangent), mesh, target.to_ct_spec())
    return [bind(cotangent, mesh, start, lies(x.aval, mesh, source.to_ct_spec()), network, devices)]


def _batched(
    axis: Any, values: Any, dims: Any, *, mesh: Any, source: Any, target: Any, network: Any, devices: Any
) -> Any:
    (x,), (dim,) = values, dims
    if dim is None:
        return bind(x, mesh, source, target, network, devices), None
    mapped = axis.explicit_mesh_axis or axis.spmd_name
    if mapped is not None or AxisType.Explicit in mesh.axis_types:
        return bind(x, mesh, with_dim(source, dim, mapped), with_dim(target, dim, mapped), network, devices), dim
    if isinstance(x, core.Tracer):
        x = _constrained(x, mesh, with_dim(source, dim, None), (dim,))
    target = with_dim(target, dim, None)
    return open_p.bind(x, mesh=mesh, target=target, kept=(dim,), network=network, devices=devices), dim


def with_dim(spec: PartitionSpec, dim: int, entry: Any) -> PartitionSpec:
    """The spec with one more dim.

    Raises:
        ReshardError: `duplicate-axis-ref` where another dim has its axis.
    """
    taken = {name for other in spec.partitions for name in names_in(other)}
    for name in names_in(entry):
        if name in taken:
            raise ReshardError(
                "duplicate-axis-ref",
                f'vmap maps over axis "{name}", which a reshard under it gives to another dim: {spec}',
            )
    return spec.update(partitions=(*spec.partitions[:dim], entry, *spec.partitions[dim:]))


def _open_at(spec: PartitionSpec, dims: tuple[int, ...]) -> PartitionSpec:
    entries = [PartitionSpec.UNCONSTRAINED if dim in dims else entry for dim, entry in enumerate(spec.partitions)]
    return spec.update(partitions=tuple(entries))


reshard_p.def_abstract_eval(type_of_result)
reshard_p.def_impl(_on_devices)
mlir.register_lowering(reshard_p, _lowered)
ad.deflinear2(reshard_p, _transposed)
batching.fancy_primitive_batchers[reshard_p] = _batched


# An end is open


def _open_on_devices(
    x: Any, *, mesh: AnyMesh, target: Any, kept: tuple[int, ...], network: Network | None, **_: Any
) -> Any:
    if target is None:
        return x
    if isinstance(x.sharding, NamedSharding):
        target = _with_kept(target, x.sharding.spec, kept)
    return _on_devices(x, mesh=mesh, target=target, network=network)


def _with_kept(target: PartitionSpec, source: PartitionSpec, kept: tuple[int, ...]) -> PartitionSpec:
    """The target with the kept dims cut as in the source, but for axes that it uses itself."""
    used = {name for entry in target.partitions for name in names_in(entry)}
    dims, given = list(target.partitions), filled(source, len(target.partitions)).partitions
    for dim in kept:
        dims[dim] = tuple(name for name in names_in(given[dim]) if name not in used)
    return target.update(partitions=tuple(dims))


def _open_lowered(ctx: Any, x: Any, *, mesh: Any, target: Any, kept: tuple[int, ...], network: Any, **_: Any) -> Any:
    """XLA's identity with two ends; with an open target they are alike unless something makes them differ."""
    (aval,) = ctx.avals_in
    shardy = jax.config.jax_use_shardy_partitioner  # type: ignore[attr-defined]
    if aval.ndim == 0 or (target is None and not shardy):
        return [x]
    if not shardy:
        raise ReshardError(
            "bad-argument", "only Shardy tells where a traced array is, and it is switched off; pass source="
        )
    identity = _identity_of_two_ends(aval.ndim, tuple(range(aval.ndim)) if target is None else kept)

    def function(x: Any) -> Any:
        y = identity(x, network)
        return y if target is None else _constrained(y, mesh, target, kept)

    return mlir.lower_fun(function, multiple_results=False)(ctx, x)


def _constrained(x: Any, mesh: AnyMesh, spec: PartitionSpec, kept: tuple[int, ...]) -> Any:
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, _open_at(spec, kept)))


@lru_cache(256)
def _identity_of_two_ends(ndim: int, shared: tuple[int, ...]) -> Any:
    """The identity whose two ends XLA shards as it likes, alike along the shared dims, and that our plan joins."""
    given = ascii_letters[:ndim]
    made = [letter if dim in shared else letter.upper() for dim, letter in enumerate(given)]
    identity = custom_partitioning(_identity, static_argnums=(1,))
    identity.def_partition(
        partition=_partition, decode_shardings=False, sharding_rule=f"{' '.join(given)} -> {' '.join(made)}"
    )
    return identity


def _identity(x: Any, _: Network | None) -> Any:
    return x


def _partition(network: Network | None, mesh: JaxMesh, arguments: Any, result: Any) -> Any:
    """What XLA asks for: a mesh, the program of one device, and the shardings of its two ends."""
    devices = result.sharding._device_assignment
    mesh = JaxMesh(devices, ("devices",)) if mesh.empty else mesh
    ends = [end.sharding._to_xla_hlo_sharding(result.ndim) for end in (*arguments, result)]
    ends = [HloSharding.replicate() if end.is_maximal() else end for end in ends]
    source, wanted = (sharding_of(end, mesh_of(mesh), result.ndim) for end in ends)
    plan = make_plan(source, wanted, result.shape, result.dtype, network=network)
    start, target = (GSPMDSharding(devices, end) for end in ends)
    return mesh, partial(run_on_device, plan, mesh.axis_names), target, (start,)


def _open_jvp(
    primals: Any, tangents: Any, *, mesh: Any, target: Any, kept: tuple[int, ...], network: Any, devices: Any
) -> Any:
    """As of any linear operation, but that an array that is there tells the source, so the gradient knows it."""
    (x,), (tangent,) = primals, tangents
    run = partial(open_p.bind, mesh=mesh, target=target, kept=kept, network=network, devices=devices)
    if target is not None and not isinstance(x, core.Tracer) and isinstance(x.sharding, NamedSharding):
        source = filled(x.sharding.spec, x.ndim)
        target = _with_kept(target, source, kept)
        run = partial(bind, mesh=mesh, source=source, target=target, network=network, devices=devices)
    y = run(x)
    zero = type(tangent) is ad.Zero  # type: ignore[attr-defined]
    return y, ad.p2tz(y) if zero else run(tangent)  # type: ignore[attr-defined]


def _open_transposed(
    cotangent: Any, _: Any, *, mesh: Any, target: Any, kept: tuple[int, ...], network: Any, devices: Any
) -> Any:
    if target is not None and isinstance(cotangent, core.Tracer):
        cotangent = _constrained(cotangent, mesh, target, kept)
    return [bind(cotangent, mesh, None, None, network, devices)]


def _open_batched(
    axis: Any, values: Any, dims: Any, *, mesh: Any, target: Any, kept: Any, network: Any, devices: Any
) -> Any:
    (x,), (dim,) = values, dims
    if dim is not None:
        kept = (*(other + (dim <= other) for other in kept), dim)
    if dim is not None and target is not None:
        target = with_dim(target, dim, axis.spmd_name)
        kept = kept if axis.spmd_name is None else kept[:-1]
    return open_p.bind(x, mesh=mesh, target=target, kept=kept, network=network, devices=devices), dim


open_p.def_abstract_eval(type_of_result)
open_p.def_impl(_open_on_devices)
mlir.register_lowering(open_p, _open_lowered)
dispatch.prim_requires_devices_during_lowering.add(open_p)
ad.deflinear2(open_p, _open_transposed)
ad.primitive_jvps[open_p] = _open_jvp
batching.fancy_primitive_batchers[open_p] = _open_batched
