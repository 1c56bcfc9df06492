"""The einsum as an operation of JAX: with its own lowering, derivatives and batching.

It is one operation: a `shard_map` whose body moves the operands, contracts on every device and moves the result, all
by one plan.
It is linear in each operand, so its derivative is a sum of einsums, and what flows back to an operand is an einsum
too: of the cotangent and the other operands, from where they are to where the operand was.
So every derivative of any order is planned, with no more bytes than its own plan says.

By hand, `ij,jk->ik`: to the first operand flows `ik,jk->ij`; to the operand of `ii->i`, of which only the diagonal
counts, flows `i,ij->ij`, where the second operand is the identity matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial, reduce
from itertools import count
from math import prod
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import core
from jax._src.interpreters import ad, batching, mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh

from reshard.axis import Axis
from reshard.contraction import EinsumPlan
from reshard.contraction import einsum as make_plan
from reshard.errors import ReshardError
from reshard.jax.contraction.local import Local, contract_on_device
from reshard.jax.conversions import AnyMesh, mesh_of, partition_spec_of, sharding_of
from reshard.jax.exchange.primitive import bind as reshard_to
from reshard.jax.exchange.primitive import filled, over_devices, type_of_result, with_dim
from reshard.jax.exchange.resharding import by_names_of, start_of, wanted_in
from reshard.mesh import Mesh
from reshard.network import Network
from reshard.operations.pattern import Pattern, Term
from reshard.sharding import Sharding

einsum_p = core.Primitive("einsum_by_plan")
"""Parameters: the pattern, the sizes of its labels in order, the mesh, per operand its source as a spec for every dim
or None where only the array tells, the target likewise, the network or None, and how a device computes."""


# The plan


@lru_cache(1024)
def plan_of(
    pattern: Pattern,
    sizes: tuple[int, ...],
    mesh: AnyMesh,
    sources: tuple[PartitionSpec, ...],
    target: PartitionSpec | None,
    dtype: Any,
    network: Network | None,
) -> EinsumPlan:
    """The plan from specs to a spec; without a target to the cheapest that a spec can say.

    Raises:
        ReshardError: as `reshard.einsum`; `not-divisible`, since JAX holds no dim that its shards do not divide.
    """
    ours, of_labels = mesh_of(mesh), dict(zip(pattern.labels, sizes, strict=True))
    *shapes, shape = (pattern.shape_of(term, of_labels) for term in pattern.terms)
    ends = [sharding_of(spec, ours, len(one)) for spec, one in zip(sources, shapes, strict=True)]
    run = partial(make_plan, pattern, *ends, shapes=shapes, dtype=dtype, network=network, sizes=of_labels)
    for end, one in zip(ends, shapes, strict=True):
        end.check_divisible(one)
    if target is not None:
        wanted = sharding_of(target, ours, len(shape))
        wanted.check_divisible(shape)
        return run(target=wanted)
    best = run()
    if _is_held(best.target, shape):
        return best
    others = [one for one in best.alternatives if _is_held(one.target, shape)]
    return min([*others, run(target=_coarsened(best.target, shape))], key=lambda one: one.price)


def _is_held(sharding: Sharding, shape: tuple[int, ...]) -> bool:
    """Whether JAX has arrays that lie so: whole axes, whose sizes divide the dims."""
    return not sharding.unreduced and sharding.is_equivalent_to(_coarsened(sharding, shape), shape)


def _coarsened(sharding: Sharding, shape: tuple[int, ...]) -> Sharding:
    """The sharding without the axes from the first on that is not whole, or that does not divide what is left."""
    dims = []
    for dim, size in zip(sharding.dims, shape, strict=True):
        kept: list[Axis] = []
        for axis in dim.axes:
            if not axis.is_whole or size % prod([sharding.mesh.sizes[one.name] for one in (*kept, axis)]):
                break
            kept.append(axis)
        dims.append(kept)
    return Sharding.of(sharding.mesh, *dims, uneven=sharding.uneven)


# Where operands are


def placed(x: jax.Array, mesh: AnyMesh, said: Any) -> tuple[jax.Array, PartitionSpec | None]:
    """An operand on the mesh, and where it is there; an array that is on no mesh yet is copied to every device.

    Raises:
        ReshardError: `different-meshes`, `bad-argument` where it is not where it is said to be.
    """
    if isinstance(x, core.Tracer):
        here = jax.typeof(x).sharding
        if here.mesh.empty and said is None and set(mesh.axis_types) == {AxisType.Explicit}:
            return on_every_device(x, mesh)
        return x, start_of(here, mesh, said, x.ndim)
    here, mesh = x.sharding, over_devices(mesh)
    if not isinstance(here, NamedSharding) and not x.committed:
        return on_every_device(x, mesh)
    if not isinstance(here, NamedSharding) or not _same_devices(here.mesh, mesh):
        raise ReshardError(
            "different-meshes", f"an operand lies as {here}, not on mesh {mesh_of(mesh)}; reshard it first"
        )
    if here.mesh != mesh and isinstance(mesh, JaxMesh):
        there = by_names_of(mesh, here, x.ndim)
        if there is None:
            raise ReshardError("cannot-express", f"the axes of mesh {mesh_of(mesh)} cannot express {here}")
        x = jax.device_put(x, there)
    spec = filled(x.sharding.spec, x.ndim)  # type: ignore[attr-defined]  # known to be named
    if said is not None:
        wanted = wanted_in(mesh, said, False, x.ndim).spec
        if sharding_of(wanted, mesh, x.ndim).layout != sharding_of(spec, mesh, x.ndim).layout:
            raise ReshardError("bad-argument", f"a source of the einsum is {wanted}, but the array lies as {spec}")
    return x, spec


def on_every_device(x: jax.Array, mesh: AnyMesh) -> tuple[jax.Array, PartitionSpec]:
    """An array that is on no mesh yet, on every device of one; a traced one so tells JAX which devices these are."""
    spec = PartitionSpec(*[None] * x.ndim)
    there = NamedSharding(mesh, spec)
    if not isinstance(x, core.Tracer):
        return jax.device_put(x, there), spec
    if AxisType.Explicit in mesh.axis_types:
        return jax.sharding.reshard(x, there), spec
    return jax.lax.with_sharding_constraint(x, there), spec


def _same_devices(one: AnyMesh, other: AnyMesh) -> bool:
    if isinstance(one, JaxMesh) and isinstance(other, JaxMesh):
        return mesh_of(one).same_order_as(mesh_of(other))
    return one.shape_tuple == other.shape_tuple


# The operation


def bind(
    operands: Sequence[Any],
    pattern: Pattern,
    sizes: Mapping[str, int],
    mesh: AnyMesh,
    sources: Sequence[PartitionSpec | None],
    target: PartitionSpec | None,
    **how: Any,
) -> Any:
    """The einsum, once a plan is known to exist; without a target to that of the plan, where sources are known."""
    found = tuple(sizes[label] for label in pattern.labels)
    target = _settled(operands, pattern, found, mesh, sources, target, how["network"])
    return einsum_p.bind(
        *operands, pattern=pattern, sizes=found, mesh=mesh, sources=tuple(sources), target=target, **how
    )


def _settled(
    operands: Sequence[Any],
    pattern: Pattern,
    sizes: tuple[int, ...],
    mesh: AnyMesh,
    sources: Sequence[PartitionSpec | None],
    target: PartitionSpec | None,
    network: Network | None,
) -> PartitionSpec | None:
    """The target; where it is open that of the plan, or None where not all sources are known."""
    known = tuple(source for source in sources if source is not None)
    if len(known) < len(operands):
        return target
    made = plan_of(pattern, sizes, mesh, known, target, jnp.result_type(*(x.dtype for x in operands)), network)
    return target or filled(partition_spec_of(made.target), len(pattern.output))


def _type(*operands: Any, pattern: Pattern, sizes: Any, mesh: AnyMesh, target: Any, how: Local, **_: Any) -> Any:
    shape = pattern.output_shape(dict(zip(pattern.labels, sizes, strict=True)))
    made = core.ShapedArray(shape, how.preferred or jnp.result_type(*(one.dtype for one in operands)))
    return type_of_result(made, mesh=mesh, target=target)


def _on_devices(
    *operands: Any, pattern: Any, sizes: Any, mesh: Any, target: Any, network: Any, how: Any, **_: Any
) -> Any:
    """Arrays that are there tell their own sources."""
    mesh = over_devices(mesh)
    arrays, sources = zip(*(placed(x, mesh, None) for x in operands), strict=True)
    target = _settled(arrays, pattern, sizes, mesh, sources, target, network)
    return _program(pattern, sizes, mesh, sources, target, network, how)(*arrays)


@lru_cache(1024)
def _program(
    pattern: Pattern,
    sizes: tuple[int, ...],
    mesh: AnyMesh,
    sources: tuple[PartitionSpec, ...],
    target: PartitionSpec,
    network: Network | None,
    how: Local,
) -> Callable[..., Any]:
    """The compiled einsum of arrays that are there."""
    given = {"pattern": pattern, "sizes": sizes, "mesh": mesh, "sources": sources, "target": target}
    return jax.jit(partial(einsum_p.bind, **given, network=network, how=how), out_shardings=NamedSharding(mesh, target))


def _lowered(
    ctx: Any,
    *operands: Any,
    pattern: Any,
    sizes: Any,
    mesh: Any,
    sources: Any,
    target: Any,
    network: Any,
    how: Local,
) -> Any:
    if None in sources:
        raise ReshardError("bad-argument", "the type of an array does not tell where it is on Auto axes; pass sources=")
    dtype = jnp.result_type(*(aval.dtype for aval in ctx.avals_in))
    plan = plan_of(pattern, sizes, mesh, sources, target, dtype, network)
    mesh = over_devices(mesh)

    def body(*tiles: jax.Array) -> jax.Array:
        return contract_on_device(plan, mesh.axis_names, tiles, how)

    function = jax.shard_map(body, mesh=mesh, in_specs=sources, out_specs=target, check_vma=False)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


def as_contraction(equation: Any) -> Any:
    """What stands for the operation in a program that is traced: a jaxpr of whole arrays, the target as a constraint.

    The plan is that of one device, on which nothing moves; where operands are is for the program to say.
    """
    pattern, mesh, target = (equation.params[name] for name in ("pattern", "mesh", "target"))
    avals = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in equation.invars]
    ends = [Sharding.of(Mesh.of(), *[None] * len(term)) for term in pattern.terms]
    sizes = dict(zip(pattern.labels, equation.params["sizes"], strict=True))
    shapes, dtype = [aval.shape for aval in avals], jnp.result_type(*(aval.dtype for aval in avals))
    plan = make_plan(pattern, *ends[:-1], shapes=shapes, dtype=dtype, target=ends[-1], sizes=sizes)

    def contraction(*arrays: jax.Array) -> Any:
        result = contract_on_device(plan, (), arrays, equation.params["how"])
        return result if target is None else reshard_to(result, mesh, None, target)

    return jax.make_jaxpr(contraction)(*avals)


# Its derivatives and batches


def _jvp(
    primals: Any, tangents: Any, *, pattern: Any, sizes: Any, mesh: Any, sources: Any, target: Any, **how: Any
) -> Any:
    """A sum over the operands, each in turn replaced by its tangent; arrays that are there tell their sources."""
    ends = [
        source if isinstance(x, core.Tracer) else placed(x, mesh, None)[1]
        for x, source in zip(primals, sources, strict=True)
    ]
    target = _settled(primals, pattern, sizes, mesh, ends, target, how["network"])
    of_labels = dict(zip(pattern.labels, sizes, strict=True))

    def run(arrays: Sequence[Any]) -> Any:
        return bind(arrays, pattern, of_labels, mesh, ends, target, **how)

    terms = [
        run([*primals[:number], tangent, *primals[number + 1 :]])
        for number, tangent in enumerate(tangents)
        if type(tangent) is not ad.Zero  # type: ignore[attr-defined]
    ]
    y = run(primals)
    return y, reduce(add, terms) if terms else ad.p2tz(y)  # type: ignore[attr-defined]


def _transposed(
    cotangent: Any, *operands: Any, pattern: Pattern, sizes: Any, mesh: Any, sources: Any, target: Any, **how: Any
) -> Any:
    """The einsum of the cotangent and the other operands, to where the operand was."""
    (own,) = (number for number, x in enumerate(operands) if ad.is_undefined_primal(x))
    aval = operands[own].aval
    result: list[Any] = [None] * len(operands)
    if type(cotangent) is ad.Zero:  # type: ignore[attr-defined]
        result[own] = ad.Zero(aval)  # type: ignore[attr-defined]
        return result
    others = [number for number in range(len(operands)) if number != own]
    here, start = jax.typeof(cotangent).sharding, target and target.to_ct_spec()
    if AxisType.Explicit in mesh.axis_types and not here.mesh.empty:
        start = filled(here.spec, len(pattern.output))
    elif start is not None and isinstance(cotangent, core.Tracer):
        cotangent = jax.lax.with_sharding_constraint(cotangent, NamedSharding(mesh, start))
    given = [(cotangent, pattern.output, start)]
    given += [(operands[number], pattern.operands[number], sources[number]) for number in others]
    of_labels = dict(zip(pattern.labels, sizes, strict=True))
    wanted = _named_apart(pattern.operands[own], of_labels)
    for place, label in enumerate(pattern.operands[own]):
        if wanted[place] != label:
            identity, whole = on_every_device(jnp.eye(aval.shape[place], dtype=cotangent.dtype), over_devices(mesh))
            given.append((identity, (label, wanted[place]), whole))
    arrays, terms, ends = zip(*given, strict=True)
    back = sources[own] and sources[own].to_ct_spec()
    made = bind(arrays, Pattern(terms, wanted), of_labels, mesh, ends, back, **how)
    result[own] = made.astype(aval.dtype)
    return result


def _named_apart(term: Term, sizes: dict[str, int]) -> Term:
    """The term, where a label that stands again has another name; its size is added."""
    seen: list[Any] = []
    for group in term:
        if group and group in seen:
            label = _fresh(group[0], sizes)
            sizes[label] = sizes[group[0]]
            group = (label,)
        seen.append(group)
    return tuple(seen)


def _fresh(label: str, taken: Mapping[str, int]) -> str:
    """A name that no label has."""
    return next(name for number in count(1) if (name := f"{label}_{number}") not in taken)


def _batched(
    axis: Any, values: Any, dims: Any, *, pattern: Pattern, sizes: Any, mesh: Any, sources: Any, target: Any, **how: Any
) -> Any:
    """One label more, in every operand that has the dim and in the result."""
    of_labels = dict(zip(pattern.labels, sizes, strict=True))
    label, mapped = _fresh("batch", of_labels), axis.explicit_mesh_axis or axis.spmd_name
    terms, ends = list(pattern.operands), list(sources)
    for number, dim in enumerate(dims):
        if dim is not None:
            terms[number] = (*terms[number][:dim], (label,), *terms[number][dim:])
            ends[number] = ends[number] and with_dim(ends[number], dim, mapped)
    whole = Pattern(tuple(terms), ((label,), *pattern.output))
    target = target and with_dim(target, 0, mapped)
    return bind(values, whole, of_labels | {label: axis.size}, mesh, ends, target, **how), 0


einsum_p.def_abstract_eval(_type)
einsum_p.def_impl(_on_devices)
mlir.register_lowering(einsum_p, _lowered)
ad.primitive_jvps[einsum_p] = _jvp
ad.primitive_transposes[einsum_p] = _transposed
batching.fancy_primitive_batchers[einsum_p] = _batched
