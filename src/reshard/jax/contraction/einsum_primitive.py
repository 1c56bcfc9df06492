"""The einsum as an operation of JAX: with its own lowering, derivatives and batching.

It is one operation: a `shard_map` whose body moves the operands, contracts on every device and moves the result, all
by one plan.
It is linear in each operand, so its derivative is a sum of einsums, and what flows back to an operand is an einsum
too (`reshard.operations.gradient`), from where the cotangent and the other operands are to where the operand was.
So every derivative of any order is planned, with no more bytes than its own plan says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from math import prod
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import core
from jax._src.interpreters import ad
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh

from reshard.axis import Axis
from reshard.contraction import EinsumPlan, alternatives
from reshard.contraction import einsum as make_plan
from reshard.errors import ReshardError
from reshard.jax.contraction.local import LocalProduct, contract_on_device
from reshard.jax.exchange.primitive import (
    MeshReshard,
    filled,
    lowered_on_devices,
    over_devices,
    planned_primitive,
    type_of_result,
    with_dim,
)
from reshard.jax.exchange.primitive import bind as reshard_to
from reshard.jax.exchange.resharding import by_names_of
from reshard.jax.exchange.traced import source_in, target_in
from reshard.jax.jax_shardings import AnyMesh, mesh_of, partition_spec_of, sharding_of
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.operations.gradient import backward_of, fresh_label
from reshard.operations.pattern import Pattern
from reshard.sharding import Sharding


@dataclass(frozen=True)
class MeshEinsum:
    """An einsum on one mesh of JAX, before dtypes are known."""

    pattern: Pattern
    label_sizes: tuple[int, ...]
    """In the order of the pattern's labels."""
    mesh: AnyMesh
    sources: tuple[Any, ...]
    """Per operand a spec with an entry for every dim; None where only the array tells."""
    target: Any
    """Likewise of the result; None where the plan says it, once all sources are known."""
    network: Network | None
    local: LocalProduct
    """How a device computes."""

    @property
    def sizes(self) -> dict[str, int]:
        """By label."""
        return dict(zip(self.pattern.labels, self.label_sizes, strict=True))

    def settled(self, operands: Sequence[Any], sources: Sequence[Any]) -> MeshEinsum:
        """The same from these sources, and to the target of the plan where it is open and all sources are known."""
        einsum = replace(self, sources=tuple(sources))
        if None in einsum.sources:
            return einsum
        plan = plan_of(einsum, jnp.result_type(*(x.dtype for x in operands)))
        if self.target is not None:
            return einsum
        return replace(einsum, target=filled(partition_spec_of(plan.target), len(self.pattern.output)))


# The plan


@lru_cache(1024)
def plan_of(einsum: MeshEinsum, dtype: Any) -> EinsumPlan:
    """The plan from specs to a spec; without a target to the cheapest that a spec can say.

    Raises:
        ReshardError: as `reshard.einsum`; `not-divisible`, since JAX holds no dim that its shards do not divide.
    """
    pattern, sizes, mesh = einsum.pattern, einsum.sizes, mesh_of(einsum.mesh)
    *shapes, shape = (pattern.shape_of(term, sizes) for term in pattern.terms)
    sources = [sharding_of(spec, mesh, len(tensor)) for spec, tensor in zip(einsum.sources, shapes, strict=True)]
    run = partial(make_plan, pattern, *sources, shapes=shapes, dtype=dtype, network=einsum.network, sizes=sizes)
    for source, tensor in zip(sources, shapes, strict=True):
        source.check_divisible(tensor)
    if einsum.target is not None:
        target = sharding_of(einsum.target, mesh, len(shape))
        target.check_divisible(shape)
        return run(target=target)
    best = run()
    if _is_held(best.target, shape):
        return best
    held = [plan for plan in alternatives(best, anywhere=True) if _is_held(plan.target, shape)]
    return min([*held, run(target=_coarsened(best.target, shape))], key=lambda plan: plan.price)


def _is_held(sharding: Sharding, shape: tuple[int, ...]) -> bool:
    """Whether JAX has arrays that lie so: whole axes, whose sizes divide the dims."""
    return not sharding.unreduced and sharding.is_equivalent_to(_coarsened(sharding, shape), shape)


def _coarsened(sharding: Sharding, shape: tuple[int, ...]) -> Sharding:
    """The sharding without the axes from the first on that is not whole, or that does not divide what is left."""
    dims = []
    for dim, size in zip(sharding.dims, shape, strict=True):
        axes: list[Axis] = []
        for axis in dim.axes:
            if not axis.is_whole or size % prod([sharding.mesh.sizes[cut.name] for cut in (*axes, axis)]):
                break
            axes.append(axis)
        dims.append(axes)
    return Sharding.of(sharding.mesh, *dims, uneven=sharding.uneven)


# Where operands are


def placed(x: jax.Array, mesh: AnyMesh, said: Any) -> tuple[jax.Array, PartitionSpec | None]:
    """An operand on the mesh, and where it is there; an array that is on no mesh yet is copied to every device.

    Raises:
        ReshardError: `different-meshes`, `bad-argument` where it is not where it is said to be.
    """
    if isinstance(x, core.Tracer):
        of_type = jax.typeof(x).sharding
        if of_type.mesh.empty and said is None and set(mesh.axis_types) == {AxisType.Explicit}:
            return on_every_device(x, mesh)
        return x, source_in(mesh, of_type, said, x.ndim)
    sharding, mesh = x.sharding, over_devices(mesh)
    if not isinstance(sharding, NamedSharding) and not x.committed:
        return on_every_device(x, mesh)
    if not isinstance(sharding, NamedSharding) or (
        not mesh_of(sharding.mesh).same_order_as(mesh_of(mesh))
        if isinstance(mesh, JaxMesh)
        else sharding.mesh.shape_tuple != mesh.shape_tuple
    ):
        raise ReshardError(
            "different-meshes", f"an operand lies as {sharding}, not on mesh {mesh_of(mesh)}; reshard it first"
        )
    if sharding.mesh != mesh and isinstance(mesh, JaxMesh):
        renamed = by_names_of(mesh, sharding, x.ndim)
        if renamed is None:
            raise ReshardError("cannot-express", f"the axes of mesh {mesh_of(mesh)} cannot express {sharding}")
        x = jax.device_put(x, renamed)
    spec = filled(x.sharding.spec, x.ndim)  # type: ignore[attr-defined]  # known to be named
    if said is not None:
        source = target_in(mesh, said, False, x.ndim).spec
        if sharding_of(source, mesh, x.ndim).layout != sharding_of(spec, mesh, x.ndim).layout:
            raise ReshardError("bad-argument", f"a source of the einsum is {source}, but the array lies as {spec}")
    return x, spec


def on_every_device(x: jax.Array, mesh: AnyMesh) -> tuple[jax.Array, PartitionSpec]:
    """An array that is on no mesh yet, on every device of one; a traced one so tells JAX which devices these are."""
    spec = PartitionSpec(*[None] * x.ndim)
    sharding = NamedSharding(mesh, spec)
    if not isinstance(x, core.Tracer):
        return jax.device_put(x, sharding), spec
    if AxisType.Explicit in mesh.axis_types:
        return jax.sharding.reshard(x, sharding), spec
    return jax.lax.with_sharding_constraint(x, sharding), spec


# The operation


def bind(operands: Sequence[Any], einsum: MeshEinsum) -> Any:
    """The einsum, once a plan is known to exist; without a target to that of the plan, where sources are known."""
    return einsum_p.bind(*operands, einsum=einsum.settled(operands, einsum.sources))


def _type(*operands: Any, einsum: MeshEinsum) -> Any:
    dtype = einsum.local.preferred or jnp.result_type(*(operand.dtype for operand in operands))
    aval = core.ShapedArray(einsum.pattern.output_shape(einsum.sizes), dtype)
    return type_of_result(aval, einsum.mesh, einsum.target)


def _on_devices(*operands: Any, einsum: MeshEinsum) -> Any:
    """Arrays that are there tell their own sources."""
    mesh = over_devices(einsum.mesh)
    arrays, sources = zip(*(placed(x, mesh, None) for x in operands), strict=True)
    return _program(replace(einsum, mesh=mesh).settled(arrays, sources))(*arrays)


@lru_cache(1024)
def _program(einsum: MeshEinsum) -> Callable[..., Any]:
    """The compiled einsum of arrays that are there."""
    return jax.jit(partial(einsum_p.bind, einsum=einsum), out_shardings=NamedSharding(einsum.mesh, einsum.target))


def _lowered(ctx: Any, *operands: Any, einsum: MeshEinsum) -> Any:
    if None in einsum.sources:
        raise ReshardError("bad-argument", "the type of an array does not tell where it is on Auto axes; pass sources=")
    plan = plan_of(einsum, jnp.result_type(*(aval.dtype for aval in ctx.avals_in)))

    def body(names: tuple[str, ...], *tiles: jax.Array) -> jax.Array:
        return contract_on_device(plan, names, tiles, einsum.local)

    return lowered_on_devices(ctx, operands, einsum.mesh, einsum.sources, einsum.target, body)


def as_contraction(equation: Any) -> Any:
    """What stands for the operation in a program that is traced: a jaxpr of whole arrays, the target as a constraint.

    The plan is that of one device, on which nothing moves; where operands are is for the program to say.
    """
    einsum: MeshEinsum = equation.params["einsum"]
    avals = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in equation.invars]
    *sources, target = (Sharding.of(Mesh.of(), *[None] * len(term)) for term in einsum.pattern.terms)
    shapes, dtype = [aval.shape for aval in avals], jnp.result_type(*(aval.dtype for aval in avals))
    plan = make_plan(einsum.pattern, *sources, shapes=shapes, dtype=dtype, target=target, sizes=einsum.sizes)

    def contraction(*arrays: jax.Array) -> Any:
        result = contract_on_device(plan, (), arrays, einsum.local)
        return result if einsum.target is None else reshard_to(result, MeshReshard(einsum.mesh, None, einsum.target))

    return jax.make_jaxpr(contraction)(*avals)


# Its derivatives and batches


def _jvp(primals: Any, tangents: Any, *, einsum: MeshEinsum) -> Any:
    """A sum over the operands, each in turn replaced by its tangent; arrays that are there tell their sources."""
    sources = [
        source if isinstance(x, core.Tracer) else placed(x, einsum.mesh, None)[1]
        for x, source in zip(primals, einsum.sources, strict=True)
    ]
    einsum = einsum.settled(primals, sources)
    terms = [
        bind([*primals[:number], tangent, *primals[number + 1 :]], einsum)
        for number, tangent in enumerate(tangents)
        if type(tangent) is not ad.Zero  # type: ignore[attr-defined]
    ]
    y = bind(primals, einsum)
    return y, reduce(add, terms) if terms else ad.p2tz(y)  # type: ignore[attr-defined]


def _transposed(cotangent: Any, *operands: Any, einsum: MeshEinsum) -> Any:
    """The einsum of the cotangent and the other operands, to where the operand was."""
    (term,) = (number for number, x in enumerate(operands) if ad.is_undefined_primal(x))
    pattern, mesh, aval = einsum.pattern, einsum.mesh, operands[term].aval
    result: list[Any] = [None] * len(operands)
    if type(cotangent) is ad.Zero:  # type: ignore[attr-defined]
        result[term] = ad.Zero(aval)  # type: ignore[attr-defined]
        return result
    of_type, start = jax.typeof(cotangent).sharding, einsum.target and einsum.target.to_ct_spec()
    if AxisType.Explicit in mesh.axis_types and not of_type.mesh.empty:
        start = filled(of_type.spec, len(pattern.output))
    elif start is not None and isinstance(cotangent, core.Tracer):
        cotangent = jax.lax.with_sharding_constraint(cotangent, NamedSharding(mesh, start))
    backward = backward_of(pattern, term, einsum.sizes)
    arrays = [cotangent, *(x for number, x in enumerate(operands) if number != term)]
    sources = [start, *(source for number, source in enumerate(einsum.sources) if number != term)]
    for size in backward.identity_sizes:
        identity, source = on_every_device(jnp.eye(size, dtype=cotangent.dtype), over_devices(mesh))
        arrays.append(identity)
        sources.append(source)
    back = einsum.sources[term] and einsum.sources[term].to_ct_spec()
    flowing = replace(
        einsum,
        pattern=backward.pattern,
        label_sizes=tuple(backward.sizes.values()),
        sources=tuple(sources),
        target=back,
    )
    gradient = bind(arrays, flowing)
    result[term] = gradient.astype(aval.dtype)
    return result


def _batched(axis: Any, values: Any, dims: Any, *, einsum: MeshEinsum) -> Any:
    """One label more, in every operand that has the dim and in the result."""
    label, mapped = fresh_label("batch", einsum.sizes), axis.explicit_mesh_axis or axis.spmd_name
    terms, sources = list(einsum.pattern.operands), list(einsum.sources)
    for number, dim in enumerate(dims):
        if dim is not None:
            terms[number] = (*terms[number][:dim], (label,), *terms[number][dim:])
            sources[number] = with_dim(sources[number], dim, mapped)
    pattern = Pattern(tuple(terms), ((label,), *einsum.pattern.output))
    sizes = einsum.sizes | {label: axis.size}
    label_sizes = tuple(sizes[each] for each in pattern.labels)
    target = with_dim(einsum.target, 0, mapped)
    batched = replace(einsum, pattern=pattern, label_sizes=label_sizes, sources=tuple(sources), target=target)
    return bind(values, batched), 0


einsum_p = planned_primitive("einsum_by_plan", result_type=_type, run=_on_devices, lower=_lowered, batch=_batched)
ad.primitive_jvps[einsum_p] = _jvp
ad.primitive_transposes[einsum_p] = _transposed
