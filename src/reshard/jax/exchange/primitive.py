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

What is asked for is one value, a `MeshReshard`, and the operation's parameter; the einsum beside it has a `MeshEinsum`.
Both are defined by `planned_primitive` and lowered by `lowered_on_devices`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from reshard.jax.exchange.lowering import run_on_device
from reshard.jax.jax_shardings import AnyMesh, HloSharding, mesh_of, names_in, sharding_of
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.planner import plan as make_plan
from reshard.plans import Plan


def planned_primitive(
    name: str, *, result_type: Callable[..., Any], run: Callable[..., Any], lower: Callable[..., Any], batch: Any
) -> core.Primitive:
    """An operation by plan: its type, what it does to arrays that are there, its lowering, its rule under `vmap`."""
    primitive = core.Primitive(name)
    primitive.def_abstract_eval(result_type)
    primitive.def_impl(run)
    mlir.register_lowering(primitive, lower)
    batching.fancy_primitive_batchers[primitive] = batch
    return primitive


def lowered_on_devices(ctx: Any, operands: Any, mesh: AnyMesh, specs: Any, target: Any, body: Any) -> Any:
    """The lowering of what every device does: `body` gets the names of the axes, all manual, and the device's tiles."""
    mesh = over_devices(mesh)
    names = tuple(name for name, _ in free_mesh(mesh).axes)
    function = jax.shard_map(
        partial(body, names), mesh=mesh, in_specs=specs, out_specs=target, axis_names=set(names), check_vma=False
    )
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


@dataclass(frozen=True)
class MeshReshard:
    """A reshard on one mesh of JAX, before shape and dtype are known."""

    mesh: AnyMesh
    source: Any
    """A spec with an entry for every dim; None where XLA alone knows where the array is."""
    target: Any
    """Likewise; None where XLA may choose it."""
    network: Network | None = None
    kept: tuple[int, ...] = ()
    """Dims that a batch has added, or that are left open, and that stay as they come; of a reshard with an open end."""
    plan: Plan | None = None
    """The plan to be run, where one was made before; a derivative and a batch have plans of their own."""

    @property
    def asked(self) -> NamedSharding | None:
        """The target, open along the kept dims; None where it is open as a whole."""
        if self.target is None:
            return None
        entries = enumerate(self.target.partitions)
        dims = tuple(PartitionSpec.UNCONSTRAINED if dim in self.kept else entry for dim, entry in entries)
        return NamedSharding(self.mesh, self.target.update(partitions=dims))

    def from_spec(self, source: PartitionSpec) -> MeshReshard:
        """The same from a known source, whose cuts the kept dims have in the target too unless it uses the axes."""
        target = self.target
        if target is None:
            return replace(self, source=source)
        used = {name for entry in target.partitions for name in names_in(entry)}
        dims = list(target.partitions)
        for dim in self.kept:
            dims[dim] = tuple(name for name in names_in(source.partitions[dim]) if name not in used)
        return replace(self, source=source, target=target.update(partitions=tuple(dims)), kept=())


def bind(x: Any, reshard: MeshReshard, devices: Any = None) -> Any:
    """The reshard of one array, traced or not; `devices` is what `devices_of` makes."""
    primitive = open_p if reshard.source is None or reshard.target is None else reshard_p
    return primitive.bind(x, reshard=reshard, devices=devices)


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


def free_mesh(mesh: AnyMesh) -> Mesh:
    """Our mesh of the axes that no `shard_map` around has taken: a reshard is among the devices that differ in them."""
    if AxisType.Manual not in mesh.axis_types:
        return mesh_of(mesh)
    kinds = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return Mesh(tuple((name, size) for name, size, kind in kinds if kind != AxisType.Manual))


@lru_cache(1024)
def plan_of(reshard: MeshReshard, shape: tuple[int, ...], dtype: Any) -> Plan:
    """The plan where both ends are known.

    Raises:
        ReshardError: as `reshard.plan`; `not-divisible`, since JAX holds no dim that its shards do not divide.
    """
    mesh = free_mesh(reshard.mesh)
    source, target = (sharding_of(spec, mesh, len(shape)) for spec in (reshard.source, reshard.target))
    source.check_divisible(shape)
    target.check_divisible(shape)
    if reshard.plan is not None:
        return reshard.plan
    return make_plan(source, target, shape, dtype, network=reshard.network)


def filled(spec: Any, ndim: int) -> Any:
    """The spec with an entry for every dim; None where there is none."""
    return None if spec is None else spec.update(partitions=(*spec.partitions, *[None] * (ndim - len(spec.partitions))))


def with_dim(spec: Any, dim: int, entry: Any) -> Any:
    """The spec with one more dim; None where there is none.

    Raises:
        ReshardError: `duplicate-axis-ref` where another dim has its axis.
    """
    if spec is None:
        return None
    taken = {name for other in spec.partitions for name in names_in(other)}
    for name in names_in(entry):
        if name in taken:
            raise ReshardError(
                "duplicate-axis-ref",
                f'vmap maps over axis "{name}", which a reshard under it gives to another dim: {spec}',
            )
    return spec.update(partitions=(*spec.partitions[:dim], entry, *spec.partitions[dim:]))


# Both ends are known


def type_of_result(aval: Any, mesh: AnyMesh, target: PartitionSpec | None) -> Any:
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
    of_type = filled(aval.sharding.spec, aval.ndim)
    return said if shown_by_type(mesh, said) == shown_by_type(mesh, of_type) else of_type


def _type(aval: Any, *, reshard: MeshReshard, **_: Any) -> Any:
    return type_of_result(aval, reshard.mesh, reshard.target)


def _on_devices(x: Any, *, reshard: MeshReshard, **_: Any) -> Any:
    """An array that is there tells its own source."""
    if reshard.target is None:
        return x
    sharding, mesh = x.sharding, reshard.mesh
    source = filled(sharding.spec, x.ndim) if isinstance(sharding, NamedSharding) else None
    if source is None or sharding.mesh.shape_tuple != mesh.shape_tuple:
        known = reshard if source is None else reshard.from_spec(source)
        return jax.device_put(x, NamedSharding(mesh, known.target))
    if isinstance(mesh, JaxMesh) and not mesh_of(sharding.mesh).same_order_as(mesh_of(mesh)):
        raise ReshardError(
            "different-meshes", "derivatives and vmap cannot lead to other devices or another order; reshard outside"
        )
    known = reshard.from_spec(source)
    if source != reshard.source:
        known = replace(known, plan=None)
    if sharding.mesh.axis_types != mesh.axis_types:  # the types of the axes are switched inside the program
        known = replace(known, mesh=JaxMesh(sharding.mesh.devices, mesh.axis_names, axis_types=mesh.axis_types))
        x = jax.device_put(x, NamedSharding(known.mesh, source))
    else:
        known = replace(known, mesh=sharding.mesh)
    return run_program([known], [x])[0]


def run_program(reshards: Sequence[MeshReshard], arrays: Sequence[Any], donated: Sequence[bool] = ()) -> list[Any]:
    """Arrays that are there, all on one mesh, moved by one program; one that stays is given back as it is.

    Args:
        reshards: per array what is to be done, its source as the array has it.
        arrays: as many.
        donated: per array whether the program may use its memory.

    Raises:
        ReshardError: as `reshard.plan`, `not-divisible`.
    """
    results, donated = list(arrays), donated or [False] * len(arrays)
    moving = [number for number, known in enumerate(reshards) if known.source != known.target]
    for number in moving:
        plan_of(reshards[number], arrays[number].shape, arrays[number].dtype)
    if moving:
        given_up = tuple(place for place, number in enumerate(moving) if donated[number])
        program = _program(tuple(reshards[number] for number in moving), given_up)
        with jax.disable_jit(False), warnings.catch_warnings():
            if given_up:
                warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            moved = program(*(arrays[number] for number in moving))
        for number, y in zip(moving, moved, strict=True):
            results[number] = y
    return results


@lru_cache(1024)
def _program(reshards: tuple[MeshReshard, ...], donated: tuple[int, ...]) -> Callable[..., Any]:
    """The compiled reshards of arrays that are there."""

    def moved(*arrays: Any) -> list[Any]:
        return [bind(x, reshard) for x, reshard in zip(arrays, reshards, strict=True)]

    goals = [NamedSharding(reshard.mesh, reshard.target) for reshard in reshards]
    return jax.jit(moved, out_shardings=goals, donate_argnums=donated)


def _lowered(ctx: Any, x: Any, *, reshard: MeshReshard, **_: Any) -> Any:
    (aval,) = ctx.avals_in
    source = lies(aval, reshard.mesh, reshard.source)
    if source != reshard.source:
        reshard = replace(reshard, plan=None)
    plan = plan_of(replace(reshard, source=source), aval.shape, aval.dtype)
    return lowered_on_devices(ctx, [x], reshard.mesh, source, reshard.target, partial(run_on_device, plan))


def over_devices(mesh: AnyMesh) -> AnyMesh:
    """The mesh over the devices of the one that is set, where it has none: JAX would take that one's axes otherwise."""
    current = get_concrete_mesh()
    if isinstance(mesh, JaxMesh) or current.size != mesh.size or current.empty:
        return mesh
    return JaxMesh(current.devices.reshape(mesh.axis_sizes), mesh.axis_names, axis_types=mesh.axis_types)


def _transposed(cotangent: Any, x: Any, *, reshard: MeshReshard, devices: Any) -> Any:
    source, target = reshard.source.to_ct_spec(), reshard.target.to_ct_spec()
    start, stop = lies(jax.typeof(cotangent), reshard.mesh, target), lies(x.aval, reshard.mesh, source)
    return [bind(cotangent, replace(reshard, source=start, target=stop, plan=None), devices)]


def _batched(axis: Any, values: Any, dims: Any, *, reshard: MeshReshard, devices: Any) -> Any:
    """One dim more: as the mapping says, or kept where nobody may say, and the source is XLA's to tell."""
    (x,), (dim,) = values, dims
    if dim is None:
        return bind(x, reshard, devices), None
    mapped = axis.explicit_mesh_axis or axis.spmd_name
    kept = tuple(earlier + (dim <= earlier) for earlier in reshard.kept)
    ends = [with_dim(end, dim, mapped) for end in (reshard.source, reshard.target)]
    batched = replace(reshard, source=ends[0], target=ends[1], kept=kept, plan=None)
    if mapped is None and AxisType.Explicit not in reshard.mesh.axis_types:
        if reshard.source is not None and isinstance(x, core.Tracer):
            x = jax.lax.with_sharding_constraint(x, replace(batched, target=batched.source, kept=(dim,)).asked)
        batched = replace(batched, source=None, kept=(*kept, dim))
    return bind(x, batched, devices), dim


reshard_p = planned_primitive("reshard_by_plan", result_type=_type, run=_on_devices, lower=_lowered, batch=_batched)
ad.deflinear2(reshard_p, _transposed)


# An end is open


def _open_lowered(ctx: Any, x: Any, *, reshard: MeshReshard, **_: Any) -> Any:
    """XLA's identity with two ends; with an open target they are alike unless something makes them differ."""
    (aval,) = ctx.avals_in
    shardy = jax.config.jax_use_shardy_partitioner  # type: ignore[attr-defined]
    if aval.ndim == 0 or (reshard.target is None and not shardy):
        return [x]
    if not shardy:
        raise ReshardError(
            "bad-argument", "only Shardy tells where a traced array is, and it is switched off; pass source="
        )
    shared = tuple(range(aval.ndim)) if reshard.target is None else reshard.kept
    identity = _identity_of_two_ends(aval.ndim, shared)
    reshard = replace(reshard, mesh=_all_auto(reshard.mesh))  # XLA knows no types of axes

    def function(x: Any) -> Any:
        y = identity(x, reshard.network)
        return y if reshard.asked is None else jax.lax.with_sharding_constraint(y, reshard.asked)

    ctx = ctx.replace(
        avals_in=[core.ShapedArray(aval.shape, aval.dtype)], avals_out=[core.ShapedArray(aval.shape, aval.dtype)]
    )
    with jax.sharding.use_abstract_mesh(reshard.mesh.abstract_mesh):
        return mlir.lower_fun(function, multiple_results=False)(ctx, x)


def _all_auto(mesh: AnyMesh) -> AnyMesh:
    """The mesh with all axes Auto."""
    types = (AxisType.Auto,) * len(mesh.axis_names)
    return (
        JaxMesh(mesh.devices, mesh.axis_names, axis_types=types)
        if isinstance(mesh, JaxMesh)
        else mesh.update(axis_types=types)
    )


@lru_cache(256)
def _identity_of_two_ends(ndim: int, shared: tuple[int, ...]) -> Any:
    """The identity whose two ends XLA shards as it likes, alike along the shared dims, and that our plan joins."""
    before = ascii_letters[:ndim]
    after = [letter if dim in shared else letter.upper() for dim, letter in enumerate(before)]
    identity = custom_partitioning(lambda x, _: x, static_argnums=(1,))
    identity.def_partition(
        partition=_partition, decode_shardings=False, sharding_rule=f"{' '.join(before)} -> {' '.join(after)}"
    )
    return identity


def _partition(network: Network | None, mesh: JaxMesh, arguments: Any, result: Any) -> Any:
    """What XLA asks for: a mesh, the program of one device, and the shardings of its two ends."""
    devices = result.sharding._device_assignment
    mesh = JaxMesh(devices, ("devices",)) if mesh.empty else mesh
    texts = [end.sharding._to_xla_hlo_sharding(result.ndim) for end in (*arguments, result)]
    texts = [HloSharding.replicate() if text.is_maximal() else text for text in texts]
    source, target = (sharding_of(text, mesh_of(mesh), result.ndim) for text in texts)
    plan = make_plan(source, target, result.shape, result.dtype, network=network)
    argument_sharding, result_sharding = (GSPMDSharding(devices, text) for text in texts)
    return mesh, partial(run_on_device, plan, mesh.axis_names), result_sharding, (argument_sharding,)


def _open_jvp(primals: Any, tangents: Any, *, reshard: MeshReshard, devices: Any) -> Any:
    """As of any linear operation, but that an array that is there tells the source, so the gradient knows it."""
    (x,), (tangent,) = primals, tangents
    if reshard.target is not None and not isinstance(x, core.Tracer) and isinstance(x.sharding, NamedSharding):
        reshard = reshard.from_spec(filled(x.sharding.spec, x.ndim))
    y = bind(x, reshard, devices)
    is_zero = type(tangent) is ad.Zero  # type: ignore[attr-defined]
    return y, ad.p2tz(y) if is_zero else bind(tangent, reshard, devices)  # type: ignore[attr-defined]


def _open_transposed(cotangent: Any, x: Any, *, reshard: MeshReshard, devices: Any) -> Any:
    if AxisType.Explicit in reshard.mesh.axis_types:  # along them a type is to be met, which XLA alone can, for the
        return [jax.sharding.reshard(cotangent, x.aval.sharding)]  # other axes are its own
    if reshard.asked is not None and isinstance(cotangent, core.Tracer):
        cotangent = jax.lax.with_sharding_constraint(cotangent, reshard.asked)
    return [bind(cotangent, replace(reshard, source=None, target=None, kept=()), devices)]


open_p = planned_primitive(
    "reshard_by_plan_when_known", result_type=_type, run=_on_devices, lower=_open_lowered, batch=_batched
)
dispatch.prim_requires_devices_during_lowering.add(open_p)
ad.deflinear2(open_p, _open_transposed)
ad.primitive_jvps[open_p] = _open_jvp
