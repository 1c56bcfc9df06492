"""Regions over some axes of a mesh alone: what devices do each by themselves, as dims of the program.

Along a manual axis every device has a value of its own; here these values stand in a dim before the others, as `vmap`
would have it, and what devices say to each other is what `vmap` makes of a collective: a sum over that dim, a
transposition, a roll.
So the body is of known operations, and the axes that the region does not name cut what is cheapest, as outside.

By hand, `psum` over x of size 4 of a region that takes `P("x")` of 8 x 6 is the sum over the first dim of 4 x 2 x 6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax
from jax._src.interpreters import partial_eval as pe
from jax._src.pjit import sharding_constraint_p
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var
from jax.sharding import AbstractMesh, AxisType

from reshard.jax.tracing.bands.sinking import REMATERIALIZED
from reshard.jax.tracing.dims_of_devices import alike_p, among_devices, apart_p, in_groups, rows_at, sent
from reshard.jax.tracing.emitter import is_key
from reshard.jax.tracing.evaluation import literal_array, results_of
from reshard.jax.tracing.regions import CONSTRAINTS, Body, asked_sharding, placeless, shard_map
from reshard.propagation import Value
from reshard.sharding import Sharding

if TYPE_CHECKING:
    from reshard.jax.tracing.functions import Tracing


_AMONG_DEVICES = """
all_gather all_gather_invariant all_to_all axis_index pmax pmin ppermute psum psum_invariant pvary reduce_scatter
shard_map
"""
AMONG_DEVICES = frozenset(_AMONG_DEVICES.split())
"""Primitives that mean something to a dim of devices."""
BY_THEMSELVES = ("ragged_dot_general",)
"""Primitives with a rule for what one device does, and none for many at once."""
KERNELS = ("pallas_call",)
"""Primitives that run a jaxpr of their own as it was traced."""
UNKNOWN = frozenset(["ragged_all_to_all", "pbroadcast", "psend", "precv", "preduced", "unreduced_psum"])
"""Those that have no meaning there."""


COMBINED = {"psum": lax.add, "psum_invariant": lax.add, "pmax": lax.max, "pmin": lax.min}
"""What two devices of a group get of collectives to which the order of devices is nothing."""


def leaves_axes(equation: Any) -> bool:
    """Whether a region names some axes of its mesh, not all."""
    params = equation.params
    return any(size > 1 and name not in params["newly_manual_axes"] for name, size in params["mesh"].shape.items())


def unknown_in(equation: Any) -> Counter[str]:
    """How often there is in a region what dims of devices cannot do."""
    return Counter(str(each.primitive) for each in _equations_of(equation.params["jaxpr"]) if _is_unknown(each))


def _equations_of(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for called in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(called, "eqns"):
                yield from _equations_of(getattr(called, "jaxpr", called))


def _is_unknown(equation: Any) -> bool:
    is_grouped = equation.params.get("axis_index_groups") is not None
    return str(equation.primitive) in UNKNOWN or (is_grouped and len(axes_of(equation)) > 1)


def region_over_some_axes(tracing: Tracing, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """The results of a region whose axes are dims of the program; where it begins and ends it is cut as it says.

    One with something that dims cannot do runs as it stands, whole along the axes that it leaves, and is named by it.
    """
    if unknown := unknown_in(equation):
        tracing.program.without_rule.update(unknown)
        return shard_map(tracing, equation, operands)
    params, mesh = equation.params, tracing.mesh_like(equation.params["mesh"])

    def cut(value: Value, spec: Any) -> Value:
        dims = [(*axes, "?") for axes in cuts_of(spec, len(value.shape), params["newly_manual_axes"])]
        return tracing.program.constrain(value, Sharding.of(mesh, *dims))

    own = [
        value if is_key(tracing.aval(value).dtype) else cut(tracing.copy(value), spec)
        for value, spec in zip(operands, params["in_specs"], strict=True)
    ]
    rewriting = VmappedBody(tracing.knows)
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        closed = jax.make_jaxpr(lambda *arrays: rewriting.region(equation, arrays))(*map(tracing.aval, own))
    results = tracing.closed(closed, own)
    return [
        value if is_key(tracing.aval(value).dtype) else cut(tracing.copy(value), spec)
        for value, spec in zip(results, params["out_specs"], strict=True)
    ]


class VmappedBody(Body):
    """The body of a region under one `vmap` per manual axis."""

    def __init__(self, has_rule: Callable[[str], bool]) -> None:
        """As told by the names of primitives that are known."""
        super().__init__({})
        self.has_rule = has_rule
        self.order: list[str] = []
        """The axes of the region and of those around it, in the order of the mesh."""

    def region(self, equation: Any, operands: Sequence[Any]) -> list[Any]:
        """The results of a region of whole operands; of one that stands in another, of those of a device."""
        params = equation.params
        mesh = params["mesh"].shape
        sizes = {name: size for name, size in mesh.items() if name in params["newly_manual_axes"]}
        self.order = [name for name in mesh if name in {*self.order, *sizes}]
        ins = [cuts_of(spec, x.ndim, sizes) for spec, x in zip(params["in_specs"], operands, strict=True)]
        outs = [
            cuts_of(spec, var.aval.ndim, sizes) for spec, var in zip(params["out_specs"], equation.outvars, strict=True)
        ]

        def body(_: Any, arguments: Sequence[Any]) -> list[Any]:
            results = self.run(params["jaxpr"], arguments)
            return [self.alike(result, sizes, cuts) for result, cuts in zip(results, outs, strict=True)]

        for axis, size in reversed(sizes.items()):
            cut = [0 if axis in chain(*cuts) else None for cuts in ins]
            kept = [0 if axis in chain(*cuts) else None for cuts in outs]
            body = jax.vmap(body, in_axes=(0, cut), out_axes=kept, axis_name=axis, axis_size=size)
        numbers = np.zeros(tuple(sizes.values()), np.int32)  # so that there is something with the dims of all axes
        results = body(numbers, [parted(x, cuts, sizes) for x, cuts in zip(operands, ins, strict=True)])
        return [whole_again(x, cuts, sizes) for x, cuts in zip(results, outs, strict=True)]

    def alike(self, result: Any, sizes: Mapping[str, int], cuts: Sequence[Sequence[str]]) -> Any:
        """A result, which is said to be the same along the axes that do not cut it."""
        for axis in sizes:
            if axis not in chain(*cuts):
                result = alike_p.bind(result, axis=axis)
        return result

    def equation(self, equation: Any, operands: Sequence[Any]) -> list[Any]:
        """What an equation gives, for all devices at once."""
        name, params = str(equation.primitive), equation.params
        if name == "shard_map":
            return self.region(equation, operands)
        if name == "ppermute":
            axes = [axis for axis in self.order if axis in axes_of(equation)]  # as JAX counts devices there
            return [among_devices(partial(sent, perm=params["perm"]), operands[0], axes)]
        if params.get("axis_index_groups") is not None:
            return [self.in_groups(equation, x) for x in operands]
        if name in ("all_gather", "all_gather_invariant", "reduce_scatter") and len(axes_of(equation)) > 1:
            return [self.one_by_one(equation, operands[0])]
        if name in CONSTRAINTS:
            return [held(operands[0], asked_sharding(equation))]
        if name in REMATERIALIZED:
            called = self.renamed(ClosedJaxpr(params["jaxpr"], ()))
            inner = pe.convert_constvars_jaxpr(called.jaxpr)
            held_back = params["prevent_cse"]
            if isinstance(held_back, tuple):
                held_back = (*[False] * len(called.consts), *held_back)
            changed = {**params, "jaxpr": inner, "prevent_cse": held_back}
            return results_of(equation, [*called.consts, *operands], changed)
        if name in BY_THEMSELVES or (name not in AMONG_DEVICES and not self.has_rule(name)):
            alone = _on_no_mesh(equation).replace(ctx=equation.ctx)
            return list(apart_p.bind(*operands, equation=alone, axes=((),) * len(operands), sizes=()))
        return super().equation(_on_no_mesh(equation) if name in KERNELS else equation, operands)

    def in_groups(self, equation: Any, x: Any) -> Any:
        """A collective among some devices of an axis, as one among all of another; of odd pairs, as each has it."""
        (axis,), groups = axes_of(equation), equation.params["axis_index_groups"]
        combine = COMBINED.get(str(equation.primitive))
        if combine is not None:
            groups = sorted(map(sorted, groups))
            if len(groups[0]) == 2 and len({second - first for first, second in groups}) > 1:
                partners = [partner for _, partner in sorted([*groups, *(pair[::-1] for pair in groups)])]
                return among_devices(lambda rows: combine(rows, rows_at(rows, partners)), x, [axis])
        key, name = "axes" if "axes" in equation.params else "axis_name", f"{axis} in groups"
        params = {**equation.params, key: (name,), "axis_index_groups": None}

        def of_group(x: Any) -> Any:
            return results_of(equation, [x], params)[0]

        return among_devices(partial(in_groups, of_group, groups, name), x, [axis])

    def one_by_one(self, equation: Any, x: Any) -> Any:
        """A collective over several axes, which is one over each."""
        params, axes = equation.params, axes_of(equation)
        if str(equation.primitive) == "reduce_scatter":
            dim, tiled = params["scatter_dimension"], params["tiled"]
            sizes = [lax.axis_size(axis) for axis in axes]
            if not tiled:
                x = lax.reshape(x, (*x.shape[:dim], *sizes, *x.shape[dim + 1 :]))
            for axis in axes:
                x = lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=tiled)
            return x
        dim, tiled = params["all_gather_dimension"], params["tiled"]
        shape = equation.outvars[0].aval.shape
        for axis in reversed(axes):
            x = lax.all_gather(x, axis, axis=dim, tiled=tiled)
        return lax.reshape(x, shape)


def axes_of(equation: Any) -> tuple[str, ...]:
    """The axes along which a collective goes."""
    named = equation.params.get("axes", equation.params.get("axis_name"))
    return named if isinstance(named, tuple) else (named,)


class Anywhere:
    """The context of an equation that runs on whatever mesh there is, where it stood on another."""

    def __init__(self, context: Any) -> None:
        """As another context but for its mesh."""
        self.context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self.context, name)

    @property
    def manager(self) -> Any:
        """In what it runs: what is there."""
        return nullcontext()


def on_no_mesh(said: Any) -> Any:
    """The jaxpr of a kernel, or what else is a parameter, which may run on another mesh than it was traced on."""
    if type(said) is tuple:
        return tuple(map(on_no_mesh, said))
    if isinstance(said, ClosedJaxpr):
        return said.replace(jaxpr=on_no_mesh(said.jaxpr))
    if not isinstance(said, Jaxpr):
        return said
    moved: dict[Var, Var] = {}

    def anywhere(atom: Any) -> Any:
        if isinstance(atom, Literal):
            return _placeless_literal(atom)
        if type(atom) is not Var or type(atom.aval) is not jax.core.ShapedArray:
            return atom
        return moved.setdefault(atom, Var(jax.core.ShapedArray(atom.aval.shape, atom.aval.dtype)))

    ends = {key: [*map(anywhere, getattr(said, key))] for key in ("constvars", "invars", "outvars")}
    equations = [
        equation.replace(invars=[*map(anywhere, equation.invars)], outvars=[*map(anywhere, equation.outvars)])
        for equation in map(_on_no_mesh, said.eqns)
    ]
    return said.replace(**ends, eqns=equations)


def _on_no_mesh(equation: Any) -> Any:
    params = {key: on_no_mesh(value) for key, value in placeless(equation).params.items()}
    invars = [_placeless_literal(atom) if isinstance(atom, Literal) else atom for atom in equation.invars]
    return equation.replace(invars=invars, params=params, ctx=Anywhere(equation.ctx))


def _placeless_literal(literal: Any) -> Literal:
    return Literal(literal_array(literal), jax.core.ShapedArray(literal.aval.shape, literal.aval.dtype))


def held(x: Any, sharding: Any) -> Any:
    """A value as the region wants it along the axes that it leaves; the others are dims by themselves."""
    if not isinstance(sharding, jax.NamedSharding):
        return x
    mesh = sharding.mesh
    free = jax.sharding.AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.shape))
    return sharding_constraint_p.bind(
        x,
        sharding=jax.NamedSharding(free, jax.P(*sharding.spec)),
        layout=None,
        context_mesh=free,
        unconstrained_dims=frozenset(),
    )


def cuts_of(spec: Any, ndim: int, axes: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """The axes among these that a spec cuts dims by."""
    entries = [entry if isinstance(entry, tuple) else (entry,) for entry in spec]
    dims = [*entries, *[()] * (ndim - len(entries))]
    return tuple(tuple(name for name in names if name in axes) for names in dims)


def parted(x: Any, cuts: Sequence[Sequence[str]], sizes: Mapping[str, int]) -> Any:
    """A whole tensor with a dim before the others for each axis that cuts it, in the order of the axes."""
    shape: list[int] = []
    places: dict[str, int] = {}
    own: list[int] = []
    for size, axes in zip(x.shape, cuts, strict=True):
        for axis in axes:
            places[axis] = len(shape)
            shape.append(sizes[axis])
        own.append(len(shape))
        shape.append(size // prod(sizes[axis] for axis in axes))
    return lax.transpose(lax.reshape(x, shape), [*(places[axis] for axis in sizes if axis in places), *own])


def whole_again(x: Any, cuts: Sequence[Sequence[str]], sizes: Mapping[str, int]) -> Any:
    """The tensor of which that is the form."""
    leading = [axis for axis in sizes if axis in chain(*cuts)]
    order: list[int] = []
    shape: list[int] = []
    for dim, axes in enumerate(cuts):
        order += [*(leading.index(axis) for axis in axes), len(leading) + dim]
        shape.append(prod(x.shape[place] for place in order[-1 - len(axes) :]))
    return lax.reshape(lax.transpose(x, order), shape)
