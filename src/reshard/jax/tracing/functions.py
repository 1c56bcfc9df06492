"""A program from a function of JAX: its jaxpr, equation by equation.

Calls (`jit`, `checkpoint`, functions with derivatives of their own) are taken apart where they stand.
`sharding_constraint` and our own `reshard` say how a value is sharded.

Loops and choices become blocks of the program: `reshard.jax.tracing.control_flow`.
Keys of random numbers are whole on every device, which makes for itself the part of the numbers that it needs.

By hand, `scan` of h -> tanh(h @ w) over stacked w, h kept by rows: the carry is kept by rows too, for the contraction
hands its rows on and the tie brings them to where the loop begins.

>>> mesh = Mesh.of(x=2)
>>> def layer(x, w):
...     return jax.numpy.tanh(x @ w)
>>> shape = jax.ShapeDtypeStruct((4, 4), "float32")
>>> program = trace(layer, shape, shape, in_shardings=(Sharding.of(mesh, "x", None), None))
>>> print(program)
sdy.mesh @mesh = <["x"=2]>
x = input : float32[4, 4] <@mesh, [{"x"}, {}]>
w = input : float32[4, 4]
einsum_2 = einsum "l0 c0, c0 r1 -> l0 r1" (x, w) : float32[4, 4]
tanh_3 = tanh "d0 d1 -> d0 d1" (einsum_2) : float32[4, 4]
out = output (tanh_3) : float32[4, 4]
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax._src.interpreters.partial_eval import dce_jaxpr
from jax._src.state.discharge import discharge_state
from jax._src.state.types import AbstractRef
from jax.api_util import shaped_abstractify
from jax.extend.core import ClosedJaxpr, Literal
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import Mesh as JaxMesh

from reshard.checks import shown
from reshard.errors import ReshardError
from reshard.garbage import uncollected
from reshard.jax.jax_shardings import AnyMesh, for_leaves, mesh_of, sharding_of
from reshard.jax.tracing.bands import flattened, in_bands, inlined
from reshard.jax.tracing.control_flow import cond, scan, while_loop
from reshard.jax.tracing.emitter import CALLS, Emitter, Signature, is_key, labels, plain_dtype
from reshard.jax.tracing.equations import MADE_OF_OTHERS, RULES, equation_values
from reshard.jax.tracing.evaluation import literal_array
from reshard.jax.tracing.manual_dims import leaves_axes, region_over_some_axes
from reshard.jax.tracing.regions import CONSTRAINTS, asked_sharding, shard_map
from reshard.jax.tracing.shortening import shortened
from reshard.mesh import Mesh
from reshard.propagation import Program, Value
from reshard.sharding import Sharding

BLOCKS = {"scan": scan, "while": while_loop, "cond": cond, "shard_map": shard_map}
"""Primitives whose jaxprs run often, not at all, or on each device by itself."""
IDENTITIES = ("name", "same", "pvary", "device_put", "layout_constraint", "max_contiguous", "multiple_of", "tie")
"""Primitives whose results are their operands; in a `jit` JAX too leaves a value where it lies."""

logger = logging.getLogger("reshard")


@uncollected()
def trace(
    fn: Callable[..., object],
    *avals: object,
    in_shardings: object = None,
    out_shardings: object = None,
    mesh: AnyMesh | Mesh | None = None,
) -> Program:
    """The program of a function of JAX.

    Args:
        fn: a function of arrays, or of pytrees of arrays; what `jax.make_jaxpr` takes.
        avals: for each argument arrays or `jax.ShapeDtypeStruct`; a sharding that one of these has is taken, unless
            `in_shardings` says otherwise.
        in_shardings: per argument a pytree of shardings: a `PartitionSpec`, a `NamedSharding`, or a
            `reshard.Sharding`, which may have open dims and priorities; one may stand for a whole subtree. None
            leaves the dims of an argument open.
        out_shardings: the same for the results.
        mesh: what specs are on: a mesh of JAX or ours; without it the one that is set, or that of another sharding.

    Raises:
        ReshardError: `unknown-mesh` where nothing tells the mesh; `bad-argument` where it is no function of arrays, or
            a tree of shardings does not fit; `unknown-dtype`; `cannot-express` where it takes a reference; and as
            `Program.constrain`.
    """
    closed, out_shape = _jaxpr_of(fn, avals)
    if any(isinstance(var.aval, AbstractRef) for var in (*closed.jaxpr.invars, *closed.jaxpr.constvars)):
        raise ReshardError(
            "cannot-express", "a reference from outside cannot be traced; hand in and give back its value"
        )
    if closed.effects:  # references that are made inside become values
        closed = discharge_state(closed)
    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    leaves, in_tree = jax.tree.flatten(avals)
    out_tree = jax.tree.structure(out_shape)
    ins = for_leaves(in_shardings, avals, "in_shardings")
    outs = for_leaves(out_shardings, out_shape, "out_shardings")
    ins = [_sharding_of_aval(aval) if asked is None else asked for asked, aval in zip(ins, leaves, strict=True)]
    own_mesh = _mesh(mesh, [*ins, *outs])
    closed = in_bands(ClosedJaxpr(jaxpr, closed.consts), own_mesh.size)
    jaxpr = closed.jaxpr
    program = Program(own_mesh, even_ends=True)  # JAX holds no others
    program.signature = Signature(in_tree, out_tree)
    tracing = Tracing(program)
    arguments = []
    avals_in: list[Any] = [var.aval for var in jaxpr.invars]
    for text, aval, asked in zip(_input_texts(fn, avals), avals_in, ins, strict=True):
        sharding = None if asked is None else sharding_of(asked, own_mesh, aval.ndim)
        argument = program.input(free_name(text, program), aval.shape, plain_dtype(aval.dtype), sharding)
        arguments.append(tracing.argument(argument, aval.dtype))
    results = tracing.run(jaxpr, closed.consts, arguments)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(out_shape)]
    for path, value, asked in zip(paths, results, outs, strict=True):
        sharding = None if asked is None else sharding_of(asked, own_mesh, len(value.shape))
        program.output(value, sharding, free_name("out" + jax.tree_util.keystr(path), program))
    program.drop_unread()
    if program.without_rule:
        logger.warning("primitives without a rule, whole on every device: %s", ", ".join(program.without_rule))
    return program


def _jaxpr_of(fn: Callable[..., object], avals: Sequence[object]) -> tuple[ClosedJaxpr, Any]:
    """The jaxpr of a function, and the shapes of its results.

    Raises:
        ReshardError: `bad-argument` where it is no function of arrays.
    """
    if not callable(fn):
        raise ReshardError("bad-argument", f"what is traced must be a function, got: {shown(fn)}")
    try:
        closed, out_shape = jax.make_jaxpr(fn, return_shape=True)(*avals)
    except TypeError:  # of JAX where an argument is no array, else of the function
        for leaf in jax.tree.leaves(avals):
            try:
                shaped_abstractify(leaf)
            except TypeError as error:
                raise ReshardError("bad-argument", f"what is traced takes arrays alone, got: {shown(leaf)}") from error
        raise
    return closed, out_shape


class Tracing(Emitter):
    """Goes through a jaxpr."""

    def run(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Value]) -> list[Value]:
        """The results of a jaxpr, whose constants are arrays."""
        flat = flattened(jaxpr, consts)
        known: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> Value:
            if isinstance(atom, Literal):
                return self.literal(literal_array(atom))
            if atom not in known:
                known[atom] = self.literal(flat.constants[atom])
            return known[atom]

        for equation in shortened(flat.equations, flat.results, flat.constants):
            results = self.equation(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in flat.results]

    def equation(self, equation: Any, operands: list[Value]) -> list[Value]:
        """The results of an equation."""
        name = str(equation.primitive)
        if name in IDENTITIES:
            return operands
        if name == "optimization_barrier":
            return [self.barrier(value) for value in operands]
        if name in CONSTRAINTS:
            return [self.constrained(operands[0], asked_sharding(equation))]
        if name == "shard_map" and leaves_axes(equation):
            return region_over_some_axes(self, equation, operands)
        if name in BLOCKS:
            return BLOCKS[name](self, equation, operands)
        if name in MADE_OF_OTHERS:
            return self.closed(MADE_OF_OTHERS[name](equation), operands)
        if name == "platform_index":  # the choice that it is for looks for itself
            return [self.literal(np.int32(0))]
        if name == "custom_linear_solve":
            sizes, solve = equation.params["const_lengths"], equation.params["jaxprs"].solve
            first = sizes.matvec + sizes.vecmat
            return self.closed(solve, [*operands[first : first + sizes.solve], *operands[sum(sizes) :]])
        if name in CALLS:
            ins = equation.params.get("in_shardings", [None] * len(operands))
            outs = equation.params.get("out_shardings", [None] * len(equation.outvars))
            operands = [self.constrained(*pair) for pair in zip(operands, ins, strict=True)]
            if equation.params.get("differentiated"):  # what is computed anew must not be taken from the first time
                apart = equation.params["prevent_cse"]
                held = apart if isinstance(apart, tuple) else [apart] * len(operands)
                operands = [self.barrier(*pair) for pair in zip(operands, held, strict=True)]
            called = equation.params[CALLS[name]]
            results = self.seen(called, operands) if inlined(equation) is not None else self.closed(called, operands)
            return [self.constrained(*pair) for pair in zip(results, outs, strict=True)]
        return equation_values(self, equation, operands)

    def knows(self, name: str) -> bool:
        """Whether a primitive has a rule."""
        known = (RULES, MADE_OF_OTHERS, CALLS, BLOCKS, IDENTITIES, CONSTRAINTS)
        return name in ("optimization_barrier", "platform_index", "custom_linear_solve") or any(
            name in names for names in known
        )

    def mesh_like(self, mesh: AnyMesh) -> Mesh:
        """A mesh of JAX as ours; one without devices that has the axes of the program's is that."""
        ours = mesh_of(mesh)
        own = self.program.mesh
        return own if isinstance(mesh, AbstractMesh) and ours.axes == own.axes else ours

    def closed(self, called: Any, operands: Sequence[Value]) -> list[Value]:
        """The results of a jaxpr that may have constants of its own."""
        if not hasattr(called, "consts"):
            called = ClosedJaxpr(called, ())
        return self.seen(in_bands(called, self.program.mesh.size), operands)

    def seen(self, called: Any, operands: Sequence[Value]) -> list[Value]:
        """The same, where bands in it have been seen from outside."""
        inner, consts = (called.jaxpr, called.consts) if hasattr(called, "consts") else (called, ())
        return self.run(inner, consts, operands)

    def constrained(self, value: Value, sharding: Any) -> Value:
        """The value, from here on in a sharding, where it says one."""
        if not isinstance(sharding, NamedSharding) or is_key(self.aval(value).dtype):  # keys are whole all along
            return value
        said = sharding_of(sharding, None, len(value.shape))
        return self.program.constrain(self.copy(value), replace(said, mesh=self.mesh_like(sharding.mesh)))

    def barrier(self, value: Value, held: bool = True) -> Value:
        """The value again, which a compiler takes for another, and makes when all others of its barrier are there."""
        return self.copy(value, attributes=(("barrier", 1),)) if held else value

    def copy(self, value: Value, **fields: Any) -> Value:
        """The value again, under a name of its own."""
        return self.emit("copy", [value], [labels(len(value.shape))] * 2, self.aval(value), **fields)


def _sharding_of_aval(aval: Any) -> Any:
    sharding = getattr(aval, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) and not sharding.mesh.empty else None


def _mesh(mesh: Any, shardings: Sequence[Any]) -> Mesh:
    """The mesh of specs, and of values of which nothing tells."""
    if isinstance(mesh, JaxMesh | AbstractMesh):
        return mesh_of(mesh)
    if isinstance(mesh, Mesh):
        return mesh
    if mesh is not None:
        raise ReshardError("bad-argument", f"the mesh of a trace must be one of JAX or ours, got: {shown(mesh)}")
    for sharding in shardings:
        if isinstance(sharding, NamedSharding | Sharding):
            return mesh_of(sharding.mesh) if isinstance(sharding, NamedSharding) else sharding.mesh
    current = jax.sharding.get_mesh()
    if not current.empty:
        return mesh_of(current)
    raise ReshardError("unknown-mesh", "no sharding says on which mesh the function runs; pass mesh= or set a mesh")


def _input_texts(fn: Callable[..., Any], avals: Sequence[Any]) -> list[str]:
    """What the inputs are called: as the parameters are, and the way to a leaf."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    stems = [plain[n] if n < len(plain) else f"arg{n}" for n in range(len(avals))]
    return [
        stem + jax.tree_util.keystr(path)
        for stem, aval in zip(stems, avals, strict=True)
        for path, _ in jax.tree_util.tree_leaves_with_path(aval)
    ]


def free_name(text: str, program: Program) -> str:
    """A word made of the text, which no value of the program is called yet."""
    word = re.sub(r"\.+", ".", re.sub(r"[^A-Za-z0-9_]+", ".", text)).strip(".")
    word = word if re.match(r"[A-Za-z_]", word) else f"_{word}"
    while word in program._named:
        word += "_"
    return word
