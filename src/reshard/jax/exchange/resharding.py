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

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, overload

import jax
import numpy as np
from jax.experimental.layout import Format, with_layout_constraint
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec

from reshard.checks import expect, shown
from reshard.dim_sharding import DimSharding
from reshard.errors import ReshardError
from reshard.jax.exchange.across import reshard_across
from reshard.jax.exchange.primitive import MeshReshard, filled, run_program
from reshard.jax.exchange.traced import checked_spec, is_in_program, left_open, mesh_that_is_set, reshard_traced
from reshard.jax.jax_shardings import (
    AnyMesh,
    AnySharding,
    Target,
    as_array,
    for_leaves,
    mesh_of,
    named_sharding_of,
    sharding_of,
)
from reshard.network import Network
from reshard.sharding import Sharding

AnyTarget = AnySharding | Format
"""What an array may be asked to be by."""
SMALL_INTEGERS = tuple(np.dtype(getattr(jax.numpy, name)) for name in ("int2", "uint2", "int4", "uint4"))
"""Parts of bytes: they travel as bytes, which is what a device of a CPU holds them in."""

ArrayTree = TypeVar("ArrayTree")
"""An array of JAX or a pytree of them: what goes in comes out."""


@overload
def reshard(
    x: np.ndarray[tuple[int, ...], np.dtype[np.generic]] | np.generic | complex,
    target: object,
    source: object = None,
    *,
    network: Network | str | None = None,
    refine: bool = False,
    donate: bool = False,
) -> jax.Array: ...
@overload
def reshard(
    x: ArrayTree,
    target: object,
    source: object = None,
    *,
    network: Network | str | None = None,
    refine: bool = False,
    donate: bool = False,
) -> ArrayTree: ...
def reshard(
    x: object,
    target: object,
    source: object = None,
    *,
    network: Network | str | None = None,
    refine: bool = False,
    donate: bool = False,
) -> object:
    """The same values, laid out as `target` says; every device receives the bytes that it lacks.

    In place of `jax.sharding.reshard` and `jax.lax.with_sharding_constraint`, in and out of `jit`, under
    `set_mesh`, `scan`, `vmap`, `jvp` and `grad`.
    Eager it also goes to another mesh: other devices, or the same in another order.
    The arrays of a pytree that are on one mesh and stay on it move in one program.

    A dim that the shards of the target do not divide is taken on Auto axes inside `jit`, as JAX takes it: whole
    tiles move, and the program cuts them.
    A *result* of `jit` cannot be uneven; JAX gives such a one back whole on every device.

    Args:
        x: an array, or a pytree of arrays; keys of `jax.random` and int4 are arrays too.
        target: a `PartitionSpec` on the mesh of the array or the one that is set, a `NamedSharding`, or a
            `reshard.Sharding`; or a pytree of them, of which one may stand for a whole subtree.
            A dim that is `UNCONSTRAINED` is left to XLA, and stays as it is where the array is there.
            A `Format` also says how tiles lie in memory; eager, any other sharding of JAX will do too.
        source: where traced arrays on Auto axes are, in the same forms; without it XLA is asked.
        network: what the devices are connected by, or the name of a preset: then the plan with the least time
            there is chosen; without it the one with the fewest bytes.
        refine: whether a target with sub-axes comes back on a refined mesh; without it such a target is refused.
        donate: whether arrays that are there are given up: what moves on one mesh may use their memory, and they
            cannot be used afterwards. Values of a program have no memory of their own yet.

    Raises:
        ReshardError: `unknown-mesh` where no mesh is known, `different-meshes` where a traced array is wanted on
            another mesh, `not-divisible`, `rank-mismatch`, `cannot-express`, `bad-argument`, or what
            `reshard.plan` raises; all before anything moves.
    """
    network = Network.named(network, "the network of a reshard")
    leaves, tree = jax.tree.flatten(x)
    targets = for_leaves(target, x, "the target", " of a reshard", AnyTarget)
    sources = for_leaves(source, x, "the source", " of a reshard", Target | None)
    calls = [_as_numbers(*call) for call in zip(leaves, targets, sources, strict=True)]
    moved = _all_moved([call[:3] for call in calls], network, refine, donate=expect(donate, bool, "donate"))
    results = [finish(y) for (*_, finish), y in zip(calls, moved, strict=True)]
    return jax.tree.unflatten(tree, results)


def _all_moved(
    calls: Sequence[tuple[Any, Any, Any]], network: Network | None, refine: bool, *, donate: bool
) -> list[Any]:
    """Each array where it is wanted; those that one program can move, by one."""
    results: list[Any] = []
    waiting: dict[JaxMesh, list[int]] = {}
    for number, (x, target, source) in enumerate(calls):
        if isinstance(x, jax.core.Tracer) or is_in_program():
            results.append(reshard_traced(x, target, source, network, refine))
            continue
        results.append(_eager(x, target, source, network, refine))
        if isinstance(results[-1], tuple):
            waiting.setdefault(results[-1][1].mesh, []).append(number)
    for numbers in waiting.values():
        arrays, reshards = zip(*(results[number] for number in numbers), strict=True)
        moved = run_program(reshards, arrays, [donate and calls[n][0] is results[n][0] for n in numbers])
        for number, y in zip(numbers, moved, strict=True):
            results[number] = y
    return results


# Arrays that are not numbers of whole bytes, and targets that say more than where


def _as_numbers(x: Any, target: Any, source: Any) -> tuple[Any, Any, Any, Callable[[Any], Any]]:
    """The array that a plan moves, its target and source, and what makes of the result what was asked for.

    Raises:
        ReshardError: `bad-argument`, `bad-shape`.
    """
    x = as_array(x)
    for size in x.shape:
        if not isinstance(size, int):
            raise ReshardError("bad-shape", f"a reshard needs a static shape, got: {x.shape}")
    if isinstance(target, Format):
        if target.sharding is None:
            raise ReshardError("bad-argument", f"the target of a reshard must say where: {shown(target)}")
        *ends, finish = _as_numbers(x, target.sharding, source)
        return *ends, lambda y: _in_format(finish(y), target)
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):  # type: ignore[attr-defined]
        bits, implementation = jax.random.key_data(x), jax.random.key_impl(x)
        ends = [_with_whole_dims(end, bits.ndim - x.ndim) for end in (target, source)]
        return bits, *ends, partial(jax.random.wrap_key_data, impl=implementation)
    if x.dtype in SMALL_INTEGERS:
        dtype = x.dtype
        return x.astype(np.int8), target, source, lambda y: y.astype(dtype)
    return x, target, source, lambda y: y


def _with_whole_dims(end: Any, count: int) -> Any:
    """A sharding of ours with so many more dims, whole on every device; JAX's leave such dims unsaid."""
    return replace(end, dims=(*end.dims, *[DimSharding()] * count)) if isinstance(end, Sharding) else end


def _in_format(y: Any, target: Format) -> Any:
    """The array in the order of memory that is asked for."""
    if isinstance(y, jax.core.Tracer) or is_in_program():
        return y if target.layout is None else with_layout_constraint(y, target.layout)
    return jax.device_put(y, target)


# Arrays that are there


def _eager(
    x: jax.Array, target: Any, source: Any, network: Network | None, refine: bool
) -> jax.Array | tuple[jax.Array, MeshReshard]:
    """The array where it is wanted, or what a program of its mesh is to do with it."""
    sharding = x.sharding
    if source is not None:
        mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
        stated, actual = sharding_of(source, mesh, x.ndim), sharding_of(sharding, None, x.ndim)
        if not actual.is_equivalent_to(stated, x.shape):
            raise ReshardError("bad-argument", f"source is {stated.text()}, but the array lies as {actual.text()}")
    if not isinstance(target, Target):
        return jax.device_put(x, target) if not x.committed else reshard_across(x, target)
    target, kept = left_open(target)
    goal = _target_of_array(target, sharding, refine, x.ndim)
    renamed = None
    if isinstance(sharding, NamedSharding) and mesh_of(sharding.mesh).same_order_as(mesh_of(goal.mesh)):
        renamed = sharding if sharding.mesh == goal.mesh else by_names_of(goal.mesh, sharding, x.ndim)
    if kept and renamed is not None:
        wanted = MeshReshard(goal.mesh, None, filled(goal.spec, x.ndim), kept=kept)
        goal = goal.update(spec=wanted.from_spec(filled(renamed.spec, x.ndim)).target)
    sharding_of(goal, None, x.ndim).check_divisible(x.shape)
    if not x.committed or sharding.memory_kind != goal.memory_kind:
        return jax.device_put(x, goal)
    if renamed is None or not x.size:  # where there are no elements, a program of XLA would make tiles of another shape
        return reshard_across(x, goal)
    x = x if renamed == sharding else jax.device_put(x, renamed)
    return x, MeshReshard(goal.mesh, filled(renamed.spec, x.ndim), filled(goal.spec, x.ndim), network)


def by_names_of(mesh: AnyMesh, sharding: NamedSharding, ndim: int) -> NamedSharding | None:
    """The sharding on a mesh of the same devices in the same order; None where its axes cannot express it."""
    try:
        return named_sharding_of(sharding_of(sharding, None, ndim), mesh)
    except ReshardError:
        return None


def _target_of_array(target: Target, sharding: Any, refine: bool, ndim: int) -> NamedSharding:
    """The target on its mesh: its own, that of the array, or the one that is set."""
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else mesh_that_is_set()
    if isinstance(target, NamedSharding):
        if not isinstance(target.mesh, JaxMesh):
            if mesh.abstract_mesh != target.mesh:
                raise ReshardError("unknown-mesh", f"{target} names no devices, and no mesh with its axes is set")
            return NamedSharding(mesh, checked_spec(target.spec, mesh, ndim))
        return NamedSharding(target.mesh, checked_spec(target.spec, target.mesh, ndim), memory_kind=target.memory_kind)
    if isinstance(target, PartitionSpec):
        if mesh.empty:
            raise ReshardError("unknown-mesh", f"{target} does not say on which mesh; use a NamedSharding or set_mesh")
        return NamedSharding(mesh, checked_spec(target, mesh, ndim))
    same_devices = not mesh.empty and target.mesh.same_order_as(mesh_of(mesh))
    return named_sharding_of(target, mesh if same_devices else None, refine=refine)
