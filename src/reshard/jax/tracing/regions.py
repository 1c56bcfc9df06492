"""Computations in which devices move data themselves: regions with the shardings that they state.

Along an axis that is manual each device is by itself, so that axis is a label: of every dim that it cuts, of the
operands and of the results alike.
By hand, over the manual axis x of size 2, `[{"x"}, {}]` of 8×4 to `[{}, {"x"}]` of 4×8 is the pattern
`(m0 a0_0) a0_1 -> r0 (m0 r1)` with m0 of size 2.
A result that an axis does not cut while it cuts an operand was brought together inside, and is the same on all: there
the label is joined.

The body of a `shard_map` runs on the tiles as it stands, within the one `shard_map` of the whole program.
The mesh there may have an axis in parts, so the collectives of the body are told the parts of theirs.
What they move is the region's own affair: it stands beside the figures of the placement, counted in `inside.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr

from reshard.errors import ReshardError
from reshard.jax.jax_shardings import sharding_of
from reshard.jax.tracing.emitter import CALLS, TileFunction
from reshard.jax.tracing.evaluation import results_of, values_of
from reshard.jax.tracing.inside import received_inside
from reshard.mesh import Mesh
from reshard.operations.interpreter import Extents
from reshard.operations.pattern import Term
from reshard.propagation import Value
from reshard.sharding import Sharding

if TYPE_CHECKING:
    from reshard.jax.tracing.functions import Tracing

SAME = ("pvary", "sharding_constraint", "reshard")
"""Primitives whose results are their operands, where all axes are manual and nothing is checked."""
CONSTRAINTS = ("sharding_constraint", "reshard_by_plan", "reshard_by_plan_when_known", "reshard")
"""Primitives that say how a value is sharded."""
BLOCKS = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}
"""Primitives whose jaxprs run often, or not at all, and the parameters that have them."""


def _gathered(x: Any, *, axis_name: Any, all_gather_dimension: int, tiled: bool, **_: Any) -> Any:
    return lax.all_gather(x, axis_name, axis=all_gather_dimension, tiled=tiled)


def _summed(x: Any, *, axes: Any) -> Any:
    return lax.psum(x, axes)


def _routed(*operands: Any, **params: Any) -> Any:
    """Rows that go where numbers say: in equal parts on a backend of CPUs, which has no such collective."""
    return lax.platform_dependent(
        *operands, cpu=partial(_in_equal_parts, **params), default=partial(lax.ragged_all_to_all, **params)
    )


def _in_equal_parts(
    operand: Any, room: Any, first: Any, _: Any, places: Any, lengths: Any, *, axis_name: Any, axis_index_groups: Any
) -> Any:
    """The same, each device sending all its rows from the first that is meant, of which the receiver keeps its own."""
    size = operand.shape[0]
    twice = jnp.concatenate([operand, jnp.zeros_like(operand)])
    sent = jax.vmap(lambda start: lax.dynamic_slice_in_dim(twice, start, size))(first)
    rows, places = (
        lax.all_to_all(each, axis_name, 0, 0, axis_index_groups=axis_index_groups, tiled=True)
        for each in (sent, places)
    )
    numbers = jnp.arange(size)
    targets = jnp.where(numbers < lengths[:, None], places[:, None] + numbers, room.shape[0])
    return room.at[targets].set(rows, mode="drop")


COLLECTIVES: dict[str, Callable[..., Any]] = {
    "axis_index": lax.axis_index,
    "psum_invariant": _summed,
    "all_gather_invariant": _gathered,
    "ragged_all_to_all": _routed,
}
"""Primitives that are done by others: those of one axis alone, and those that rest on what is checked elsewhere."""


class Terms:
    """The terms of the tensors of one region, and the sizes of their labels."""

    def __init__(self, manual: Sequence[str]) -> None:
        self.manual = manual
        self.sizes: dict[str, int] = {}

    def of(self, shape: Sequence[int], sharding: Sharding, stem: str) -> Term:
        """The term of a tensor: per dim the manual axes that cut it, and what a device has of it."""
        groups = []
        for dim, size in enumerate(shape):
            axes = [axis.name for axis in sharding.dims[dim].axes if axis.name in self.manual]
            labels = [f"m{self.manual.index(axis)}" for axis in axes]
            self.sizes.update((label, sharding.mesh.sizes[axis]) for label, axis in zip(labels, axes, strict=True))
            for label in labels:
                size //= self.sizes[label]
            self.sizes[f"{stem}{dim}"] = size
            groups.append((*labels, f"{stem}{dim}"))
        return tuple(groups)

    def sizes_in(self, terms: Sequence[Term]) -> dict[str, int]:
        """The sizes of the labels that stand in some terms."""
        used = {label for term in terms for group in term for label in group}
        return {label: size for label, size in self.sizes.items() if label in used}


def is_manual(label: str) -> bool:
    """Whether a label of a region's term is that of an axis."""
    return label.startswith("m")


def shard_map(tracing: Tracing, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The results of a region of JAX, which runs on every device by itself along the manual axes."""
    params = equation.params
    mesh = tracing.mesh_like(params["mesh"])
    manual = [name for name in mesh.sizes if name in params["newly_manual_axes"]]
    ins = [sharding_of(spec, mesh, len(value.shape)) for spec, value in zip(params["in_specs"], operands, strict=True)]
    outs = [sharding_of(spec, mesh, v.aval.ndim) for spec, v in zip(params["out_specs"], equation.outvars, strict=True)]
    held = [tracing.program.constrain(tracing.copy(value), said) for value, said in zip(operands, ins, strict=True)]
    named = Terms(manual)
    terms = [named.of(value.shape, said, f"a{n}_") for n, (value, said) in enumerate(zip(held, ins, strict=True))]
    inside = tuple(sorted(received_inside(params["jaxpr"], mesh.sizes).items()))
    results: list[Value] = []
    for number, (var, said) in enumerate(zip(equation.outvars, outs, strict=True)):
        last = named.of(var.aval.shape, said, "r")
        sizes = named.sizes_in([*terms, last])
        kept = {label for group in last for label in group}
        result = tracing.emit(
            "shard_map",
            held or [tracing.literal(np.int32(0))],
            [*(terms or [()]), last],
            var.aval,
            _on_tiles(params["jaxpr"], number, mesh, [*ins, said]),
            joined=tuple(label for label in sizes if is_manual(label) and label not in kept),
            sizes=tuple(sizes.items()),
            replicated=tuple(sorted(label for label in sizes if not is_manual(label))),
            attributes=() if results else inside,
        )
        results.append(tracing.program.constrain(result, said))
    return results


def _on_tiles(jaxpr: Any, number: int, mesh: Mesh, stated: Sequence[Sharding]) -> TileFunction:
    """One result of the body of a region, on tiles that lie as it states."""

    def run(extents: Extents, tiles: Sequence[Any]) -> Any:
        device: Any = extents.device  # type: ignore[attr-defined]  # of JAX, which alone runs it
        for sharding, said, var in zip(extents.shardings, stated, jaxpr.invars, strict=False):
            if sharding.text() != said.text():
                told = f"{var.aval} as {said.text()}, not as {sharding.text()}"
                raise ReshardError("cannot-express", f"a shard_map takes {told}")
        return Body(parts_of_axes(mesh, device.names)).run(jaxpr, tiles[: len(jaxpr.invars)])[number]

    return run


def parts_of_axes(mesh: Mesh, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Per axis of a mesh those of the mesh that runs, both over the same devices in the same order, that make it up.

    Raises:
        ReshardError: `cannot-express` where an axis is made of no whole ones.
    """
    rest = [name for name in names if lax.axis_size(name) > 1]
    parts: dict[str, tuple[str, ...]] = {}
    for axis, size in mesh.sizes.items():
        own: list[str] = []
        while size > 1 and rest and size % lax.axis_size(rest[0]) == 0:
            size //= lax.axis_size(rest[0])
            own.append(rest.pop(0))
        if size > 1:
            raise ReshardError("cannot-express", f"axis {axis} of a region does not fit into the mesh of the program")
        parts[axis] = tuple(own)
    return parts


# What a device does


class Body:
    """The body of a region on one device, where its axes go by other names."""

    def __init__(self, parts: Mapping[str, tuple[str, ...]]) -> None:
        """As parts of the axes that it speaks of, in `parts_of_axes`."""
        self.parts = parts

    def run(self, jaxpr: Any, arguments: Sequence[Any], consts: Sequence[Any] = ()) -> list[Any]:
        """What a jaxpr gives."""
        return values_of(ClosedJaxpr(jaxpr, consts), arguments, self.equation)

    def equation(self, equation: Any, operands: Sequence[Any]) -> list[Any]:
        """What an equation gives; calls are taken apart."""
        equation = placeless(equation)
        name, params = str(equation.primitive), dict(equation.params)
        if name in SAME:
            return list(operands)
        if name == "shard_map":
            raise ReshardError("cannot-express", "a shard_map within another, which leaves it axes, is not run")
        if name in CALLS:
            called = params[CALLS[name]]
            return self.run(getattr(called, "jaxpr", called), operands, getattr(called, "consts", ()))
        for key in {*params} & {"axes", "axis_name"}:
            axes = params[key] if isinstance(params[key], tuple) else (params[key],)
            if any(axis in self.parts for axis in axes):
                params[key] = tuple(part for axis in axes for part in self.parts.get(axis, (axis,)))
                if not params[key]:
                    return _alone(equation, operands)
        for key in BLOCKS.get(name, ()):
            many = isinstance(params[key], tuple)
            renamed = tuple(self.renamed(block) for block in (params[key] if many else (params[key],)))
            params[key] = renamed if many else renamed[0]
        if name in COLLECTIVES:
            results = COLLECTIVES[name](*operands, **params)
            return list(results) if equation.primitive.multiple_results else [results]
        return results_of(equation, operands, params)

    def renamed(self, closed: Any) -> Any:
        """The jaxpr of a loop or a branch, with the names of the axes here."""
        avals = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in closed.jaxpr.invars]
        return jax.make_jaxpr(lambda *arguments: self.run(closed.jaxpr, arguments, closed.consts))(*avals)


def placeless(equation: Any) -> Any:
    """An equation that says nothing of how its results lie."""
    params = {key: _placeless(value) for key, value in equation.params.items()}
    return equation.replace(params=params)


def _placeless(said: Any) -> Any:
    if type(said) is tuple:
        return tuple(map(_placeless, said))
    if isinstance(said, jax.core.ShapedArray):
        return jax.core.ShapedArray(said.shape, said.dtype)
    return None if isinstance(said, jax.NamedSharding) else said


def asked_sharding(equation: Any) -> Any:
    """The sharding that a primitive asks for."""
    params = equation.params
    if "sharding" in params:
        return params["sharding"]
    return params["reshard"].asked if "reshard" in params else params.get("dst_sharding")


def _alone(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """What a collective gives along axes of one device: what it is given, in the shape that is asked for."""
    if not operands or equation.params.get("perm") == ():  # its own number, and what nobody sends
        return [jnp.zeros(var.aval.shape, var.aval.dtype) for var in equation.outvars]
    return [lax.reshape(x, var.aval.shape) for x, var in zip(operands, equation.outvars, strict=True)]
