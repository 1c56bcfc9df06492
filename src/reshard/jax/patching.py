"""`patched`: plans under JAX's own `reshard`, `with_sharding_constraint` and `device_put`.

Nothing is put in place of those functions: what is changed is what their operations become.

    `reshard`, in a program or not             its lowering: the plan from the type of its operand to that of its result
    `with_sharding_constraint`, in a program   its lowering: the plan that XLA asks for, before the constraint
    `with_sharding_constraint`, not in one     what it does with arrays that are there
    `device_put`                               the same; in a program, where types tell both ends, its lowering

So names that were imported before go by plans too; and that plans are wanted is part of the context that JAX keeps
its compiled programs by, so functions that were compiled before are compiled anew, and after it the earlier programs
are there again.
Types, derivatives, batches and refusals stay JAX's own.
Where no plan can stand, JAX does what it always did, and it is counted why.

>>> import numpy as np
>>> mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
>>> x = jax.device_put(np.arange(4), NamedSharding(mesh, jax.P("x")))
>>> with patched() as patches:
...     y = jax.device_put(x, NamedSharding(mesh, jax.P(None)))
>>> y.sharding.spec, patches.handed_back
(P(None,), {})
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
from jax._src import config, core, dispatch
from jax._src.interpreters import mlir
from jax._src.mesh import use_abstract_mesh
from jax._src.pjit import reshard_p, sharding_constraint_p
from jax.experimental.layout import Format
from jax.sharding import AxisType, NamedSharding
from jax.sharding import Mesh as JaxMesh

from reshard.errors import ReshardError
from reshard.jax.exchange.resharding import reshard
from reshard.jax.exchange.traced import is_in_program

IS_PATCHED = config.bool_state(
    name="reshard_by_plans",
    default=False,
    help="Whether plans stand under JAX's own calls that reshard.",
    include_in_jit_key=True,
    include_in_trace_context=True,
)
"""A part of JAX's context, so that it tells programs with plans from those without."""


@dataclass
class Patches:
    """What was done under `patched`: counted where a program is made and where an array is moved, not where it runs."""

    planned: int = 0
    """Calls that went by plans."""
    handed_back: dict[str, int] = field(default_factory=dict)
    """Calls that were left to JAX: how many, by the reason why."""

    def leave(self, reason: str) -> None:
        """Count a call that is left to JAX."""
        self.handed_back[reason] = self.handed_back.get(reason, 0) + 1


class _Counting:
    """Who counts now: the innermost `patched` that is open in any thread."""

    lock = threading.Lock()
    patches: list[Patches] = []  # noqa: RUF012  # one for the process, as JAX's rules are

    @classmethod
    def current(cls) -> Patches:
        return cls.patches[-1] if cls.patches else Patches()


@contextmanager
def patched() -> Iterator[Patches]:
    """Plans under JAX's own `reshard`, `with_sharding_constraint` and `device_put`, in this thread.

    It holds for functions that were compiled before and for names that were imported before; when it ends, JAX's own
    programs are there again.
    A value that JAX would not reshard by itself is refused by JAX, in JAX's words.

    Yields:
        What was done: `planned`, the calls that went by plans, and `handed_back`, those that were left to JAX, by
        the reason why.
    """
    patches = Patches()
    with _Counting.lock:
        _install()
        _Counting.patches.append(patches)
        dispatch.prim_requires_devices_during_lowering.add(sharding_constraint_p)
    try:
        with IS_PATCHED(True):
            yield patches
    finally:
        with _Counting.lock:
            _Counting.patches.remove(patches)
            if not _Counting.patches:
                dispatch.prim_requires_devices_during_lowering.discard(sharding_constraint_p)


_originals: dict[str, Callable[..., Any]] = {}
"""JAX's own rules, by the names of ours that ask them; filled by the first `patched`."""


def _install() -> None:
    """Put rules in place that ask whether plans are wanted; once, for JAX keeps them for the whole process."""
    if _originals:
        return
    lowerings = {reshard_p: _reshard_lowered, sharding_constraint_p: _constraint_lowered}
    for primitive, rule in lowerings.items():
        _originals[rule.__name__] = mlir._lowerings[primitive].rule
        mlir.register_lowering(primitive, rule)
    of_platforms: list[tuple[str | None, Any]] = [(None, mlir._lowerings), *mlir._platform_specific_lowerings.items()]
    for platform, rules in of_platforms:
        if dispatch.device_put_p in rules:
            rule = _put_lowering(rules[dispatch.device_put_p].rule)
            mlir.register_lowering(dispatch.device_put_p, rule, platform=platform)
    _originals["_constraint_done"] = sharding_constraint_p.impl
    sharding_constraint_p.def_impl(_constraint_done)
    _originals["_put"] = dispatch._device_put_impl
    dispatch._device_put_impl = _put


# In programs


def _by_plan(ctx: Any, x: Any, target: NamedSharding, aval: Any) -> Any:
    """The lowering of one reshard of ours; None where it refuses, which is counted."""
    with IS_PATCHED(False), ExitStack() as stack:
        if not target.mesh.empty:
            stack.enter_context(use_abstract_mesh(target.mesh.abstract_mesh))
        try:
            context = ctx.replace(avals_in=[aval], avals_out=[aval])
            lowered = mlir.lower_fun(lambda x: reshard(x, target), multiple_results=False)(context, x)
        except ReshardError as error:
            _Counting.current().leave(f"{error.code}: {error}")
            return None
    _Counting.current().planned += 1
    return lowered


def _typed_move(ctx: Any, x: Any, before: Any, after: Any) -> Any:
    """The plan between two types; None where they do not tell it all, or nothing is to be done."""
    source, target = before.sharding, after.sharding
    if source.mesh.empty or source == target or not before.ndim:
        return None
    if AxisType.Auto in (*source.mesh.axis_types, *target.mesh.axis_types):
        _Counting.current().leave("some axes are Auto, so the types do not tell where the value lies")
        return None
    if source.mesh.shape_tuple != target.mesh.shape_tuple:
        _Counting.current().leave("the types are on two meshes")
        return None
    return _by_plan(ctx, x, target, before)


def _reshard_lowered(ctx: Any, x: Any, **params: Any) -> Any:
    if IS_PATCHED.value:
        moved = _typed_move(ctx, x, ctx.avals_in[0], ctx.avals_out[0])
        x = x if moved is None else moved[0]
    return _originals["_reshard_lowered"](ctx, x, **params)


def _constraint_lowered(ctx: Any, x: Any, *, sharding: Any, **params: Any) -> Any:
    if IS_PATCHED.value and isinstance(sharding, NamedSharding) and ctx.avals_in[0].ndim:
        moved = None
        if getattr(ctx.module_context.axis_context, "manual_axes", None):
            _Counting.current().leave("inside a shard_map XLA tells nobody where a value lies")
        elif set(sharding.mesh.axis_types) != {AxisType.Auto}:
            _Counting.current().leave("only some axes are Auto")
        elif not config.use_shardy_partitioner.value:
            _Counting.current().leave("Shardy is switched off, and only it tells where a value lies")
        else:
            target = NamedSharding(sharding.mesh, sharding.spec)
            moved = _by_plan(ctx, x, target, core.ShapedArray(ctx.avals_in[0].shape, ctx.avals_in[0].dtype))
        x = x if moved is None else moved[0]
    return _originals["_constraint_lowered"](ctx, x, sharding=sharding, **params)


def _put_lowering(original: Callable[..., Any]) -> Callable[..., Any]:
    def put_lowered(ctx: Any, *operands: Any, devices: Any, **params: Any) -> Any:
        moved = list(operands)
        for place, device in enumerate(devices if IS_PATCHED.value else ()):
            if isinstance(device, NamedSharding) and AxisType.Auto not in device.mesh.axis_types:
                result = _typed_move(ctx, moved[place], ctx.avals_in[place], ctx.avals_out[place])
                moved[place] = moved[place] if result is None else result[0]
        return original(ctx, *moved, devices=devices, **params)

    return put_lowered


# Arrays that are there


def _eager(x: Any, target: Any, *, donate: bool = False, is_copy: bool = False) -> Any:
    """The array moved by plan; None where that is left to JAX."""
    where = target.sharding if isinstance(target, Format) else target
    if not isinstance(x, jax.Array) or not isinstance(where, jax.sharding.Sharding) or is_in_program():
        return None
    if not x.committed or x.is_deleted():
        return None
    if isinstance(where, NamedSharding) and not isinstance(where.mesh, JaxMesh):
        return None
    try:
        if x.sharding.is_equivalent_to(where, x.ndim) and (
            is_copy or donate or getattr(x.sharding, "mesh", None) == getattr(where, "mesh", None)
        ):
            return None
    except (AttributeError, ValueError):
        return None
    try:
        with IS_PATCHED(False):
            own = _buffers(x) if donate else set()
            moved = jax.device_put(reshard(x, target, donate=donate), target)  # told in the words of the target
            if donate and not x.is_deleted() and own.isdisjoint(_buffers(moved)):
                x.delete()
    except ReshardError as error:
        _Counting.current().leave(f"{error.code}: {error}")
        return None
    _Counting.current().planned += 1
    return moved


def _buffers(x: jax.Array) -> set[int]:
    """Where the tiles of an array are in memory."""
    return {shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards}


def _in_one_order(x: Any, sharding: NamedSharding) -> bool:
    """Whether an array lies on the devices of a sharding in their order: JAX constrains no other."""
    if not isinstance(x, jax.Array) or not isinstance(sharding.mesh, JaxMesh):
        return False
    return bool(x.sharding._device_assignment == sharding._device_assignment)


def _constraint_done(x: Any, *, sharding: Any, layout: Any, **params: Any) -> Any:
    if IS_PATCHED.value and layout is None and isinstance(sharding, NamedSharding) and _in_one_order(x, sharding):
        moved = _eager(x, NamedSharding(sharding.mesh, sharding.spec))
        if moved is not None:
            return moved
    return _originals["_constraint_done"](x, sharding=sharding, layout=layout, **params)


def _put(x: Any, *, device: Any, copy: Any, **params: Any) -> Any:
    if IS_PATCHED.value:
        semantics = dispatch.ArrayCopySemantics
        donate, is_copy = copy == semantics.DONATE_INPUT, copy == semantics.ALWAYS_COPY
        moved = _eager(x, device, donate=donate, is_copy=is_copy)
        if moved is not None:
            return moved
    return _originals["_put"](x, device=device, copy=copy, **params)
