"""`code_of`: a plan as a function of JAX to paste, which needs nothing of this library.

What a device does is traced as it is run, and every operation of the trace becomes a line; so what is printed is what
is done, and one writer does for collectives, rounds and loops of chunks.
Numbers of a table that devices look up stand in the text.

By hand, on y=2: a device gathers both tiles of 2 x 4 as 2 x 2 x 4, which is the 4 x 4 as it stands.

>>> from reshard.mesh import Mesh
>>> from reshard.planner import plan
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(y=2)
>>> print(code_of(plan(Sharding.of(mesh, "y", None), Sharding.of(mesh, None, None), (4, 4), "f32")))
import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
<BLANKLINE>
<BLANKLINE>
def reshard(x, mesh):
    \"\"\"float32[4, 4], from [{"y"}, {}] to [{}, {}], on a jax.sharding.Mesh with the axes y=2.
<BLANKLINE>
    AllGather: a device receives at most 32 bytes, of 32 that it lacks.
    \"\"\"
<BLANKLINE>
    def on_device(a):
        b = lax.all_gather(a, ('y',), axis=0, axis_index_groups=None, tiled=False)
        c = lax.reshape(b, (4, 4))
        return c
<BLANKLINE>
    return jax.shard_map(on_device, mesh=mesh, in_specs=P('y', None), out_specs=P(None, None), check_vma=False)(x)
<BLANKLINE>
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, Literal
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from reshard.checks import expect
from reshard.errors import ReshardError
from reshard.jax.exchange.lowering import run_on_device
from reshard.jax.exchange.whole_plans import refined_ends
from reshard.jax.jax_shardings import partition_spec_of
from reshard.mesh import Mesh
from reshard.plans import Plan

INDENT = "    "
SAME_NAME = frozenset(
    [
        "abs",
        "add",
        "and",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "clamp",
        "div",
        "eq",
        "exp",
        "ge",
        "gt",
        "le",
        "lt",
        "max",
        "min",
        "mul",
        "ne",
        "neg",
        "not",
        "or",
        "rem",
        "sub",
        "xor",
    ]
)
"""Operations that `jax.lax` has by this name, of operands alone."""
ARITHMETIC = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"}


def code_of(plan: Plan) -> str:
    """The source of a function `reshard(x, mesh)` of JAX that does what `reshard.jax.run` does with the plan.

    Args:
        plan: of two meshes in one order of devices.

    Returns:
        A module's text. Where the plan has axes in part, its mesh has those parts as axes; the docstring names them.

    Raises:
        ReshardError: `different-meshes`, `not-divisible`, `cannot-express`.
    """
    expect(plan, Plan, "what code is written of")
    if not plan.source.mesh.same_order_as(plan.target.mesh):
        raise ReshardError("different-meshes", "code is written of a plan among the same devices in one order")
    for end in (plan.source, plan.target):
        end.check_divisible(plan.shape)
    ours, ends = refined_ends(plan)
    specs = [partition_spec_of(end) for end in ends]
    body, tables = _traced(plan, ours, specs)
    ways = [", ".join(step.kind for step in share.steps) for share in plan.shares]
    kinds = " beside ".join(ways) or "nothing is sent"
    unreduced = any(end.unreduced for end in ends)
    explicit = ", all of them Explicit" if unreduced else ""
    what = f"{plan.dtype}{list(plan.shape)}, from {plan.source.text()} to {plan.target.text()}"
    figures = f"a device receives at most {plan.received_bytes} bytes, of {plan.lower_bound_bytes} that it lacks"
    ins, outs = map(_spec, specs)
    axes = ", ".join(f"{name}={size}" for name, size in ours.axes)
    lines = [
        "import jax",
        "import numpy as np",
        "from jax import lax",
        "from jax.sharding import PartitionSpec as P",
        "",
        "",
        "def reshard(x, mesh):",
        f'{INDENT}"""{what}, on a jax.sharding.Mesh with the axes {axes}{explicit}.',
        "",
        f"{INDENT}{kinds}: {figures}.",
        f'{INDENT}"""',
        "",
        *Writer(tables).function("on_device", body, INDENT),
        "",
        f"{INDENT}return jax.shard_map(on_device, mesh=mesh, in_specs={ins}, out_specs={outs}, check_vma=False)(x)",
        "",
    ]
    return "\n".join(lines)


def _spec(spec: PartitionSpec) -> str:
    entries = [repr(entry) for entry in spec.partitions]
    if spec.unreduced:
        entries.append(f"unreduced={{{', '.join(sorted(map(repr, spec.unreduced)))}}}")
    return f"P({', '.join(entries)})"


def _traced(plan: Plan, ours: Mesh, specs: Sequence[PartitionSpec]) -> tuple[Jaxpr, dict[Any, str]]:
    """What a device does, and the tables that it has from outside, as text."""
    names, sizes = tuple(ours.sizes), tuple(ours.sizes.values())
    mesh = jax.sharding.AbstractMesh(sizes, names, axis_types=(AxisType.Explicit,) * len(names))
    function = jax.shard_map(
        partial(run_on_device, plan, names), mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False
    )
    with jax.sharding.use_abstract_mesh(mesh):
        x = jax.ShapeDtypeStruct(plan.shape, jax.numpy.dtype(plan.dtype.name), sharding=NamedSharding(mesh, specs[0]))
        closed = jax.make_jaxpr(function)(x)
    (mapped,) = (eqn for eqn in closed.jaxpr.eqns if eqn.primitive.name == "shard_map")
    tables = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    body = mapped.params["jaxpr"]
    pairs = zip(body.invars, mapped.invars, strict=True)
    return body, {inner: _constant(tables[outer]) for inner, outer in pairs if outer in tables}


class Writer:
    """Lines of Python for the operations of a trace."""

    def __init__(self, known: dict[Any, str]) -> None:
        """Take what has a text already: variables from outside."""
        self.known = dict(known)
        self.fresh = count()

    def function(self, name: str, body: Jaxpr, indent: str) -> list[str]:
        """A function of the variables that are not known yet."""
        parameters = [self.name_of(var) for var in body.invars if var not in self.known]
        lines = [f"{indent}def {name}({', '.join(parameters)}):", *self.lines(body, indent + INDENT)]
        results = ", ".join(map(self.text, body.outvars))
        return [*lines, f"{indent}{INDENT}return {results}"]

    def lines(self, body: Jaxpr, indent: str) -> list[str]:
        """Those of all operations that something depends on."""
        needed = {var for var in body.outvars if not isinstance(var, Literal)}
        kept = []
        for eqn in reversed(body.eqns):
            if not needed.isdisjoint(eqn.outvars):
                kept.append(eqn)
                needed.update(var for var in eqn.invars if not isinstance(var, Literal))
        return [line for eqn in reversed(kept) for line in self.operation(eqn, indent)]

    def name_of(self, var: Any) -> str:
        """The name of a variable, a new one if it has none."""
        if var not in self.known:
            number, letters = next(self.fresh), "abcdefghijklmnopqrstuvwyz"  # x is the tensor
            self.known[var] = letters[number % 25] + (str(number // 25) if number >= 25 else "")
        return self.known[var]

    def text(self, operand: Any) -> str:
        """A variable or a number."""
        if isinstance(operand, Literal):
            return _constant(np.asarray(operand.val, getattr(operand.aval, "dtype", None)))
        return self.name_of(operand)

    def operation(self, eqn: Any, indent: str) -> list[str]:
        """The lines of one operation.

        Raises:
            ReshardError: `cannot-express` for one that no plan becomes.
        """
        name, params = eqn.primitive.name, eqn.params
        operands = [self.text(operand) for operand in eqn.invars]
        if name == "jit":
            inner = params["jaxpr"].jaxpr
            self.known.update(zip(inner.invars, operands, strict=True))
            lines = self.lines(inner, indent)
            self.known.update(zip(eqn.outvars, map(self.text, inner.outvars), strict=True))
            for var in (var for one in inner.eqns for var in one.outvars):
                self.known.pop(var, None)  # the same trace may stand here once more, with other operands
            return lines
        if name == "scan":
            return self._loop(eqn, operands, indent)
        if name == "cond":
            return self._choice(eqn, operands, indent)
        if name not in CALLS and name not in SAME_NAME:
            raise ReshardError("cannot-express", f"no line of code is known for the operation {name}")
        one_line = CALLS.get(name, lambda operands, _: f"lax.{ARITHMETIC.get(name, name)}({', '.join(operands)})")
        results = ", ".join(map(self.name_of, eqn.outvars))
        return [f"{indent}{results} = {one_line(operands, params)}"]

    def _loop(self, eqn: Any, operands: list[str], indent: str) -> list[str]:
        """A loop of a known number of turns, in which nothing is stacked."""
        body, fixed = eqn.params["jaxpr"].jaxpr, eqn.params["num_consts"]
        self.known.update(zip(body.invars[:fixed], operands[:fixed], strict=True))
        turn, starts = f"turn{next(self.fresh)}", ", ".join(operands[fixed:])
        carried = ", ".join(self.name_of(var) for var in body.invars[fixed:])
        inside = self.lines(body, indent + INDENT)
        results = ", ".join(map(self.text, body.outvars))
        outs = ", ".join(map(self.name_of, eqn.outvars))
        return [
            "",
            f"{indent}def {turn}(carry, _):",
            f"{indent}{INDENT}{carried}{',' if len(body.invars) == fixed + 1 else ''} = carry",
            *inside,
            f"{indent}{INDENT}return ({results},), None",
            "",
            f"{indent}({outs},), _ = lax.scan({turn}, ({starts},), None, length={eqn.params['length']})",
        ]

    def _choice(self, eqn: Any, operands: list[str], indent: str) -> list[str]:
        """One of several functions, by a number."""
        lines, names = [], []
        for branch in eqn.params["branches"]:
            names.append(f"choice{next(self.fresh)}")
            for var in branch.jaxpr.invars:
                self.known.pop(var, None)
            lines += [*self.function(names[-1], branch.jaxpr, indent), ""]
        outs = ", ".join(map(self.name_of, eqn.outvars))
        return [*lines, f"{indent}{outs} = lax.switch({operands[0]}, [{', '.join(names)}], {', '.join(operands[1:])})"]


def _constant(value: Any) -> str:
    """A number, or a table of them, with its dtype."""
    array = np.asarray(value)
    if array.ndim:
        return f"np.array({array.tolist()}, {array.dtype.name!r})"
    name = "bool_" if array.dtype.kind == "b" else array.dtype.name
    return f"{'np' if hasattr(np, name) else 'jax.numpy'}.{name}({array.item()!r})"


Call = Callable[[list[str], dict[str, Any]], str]


def _dtype(dtype: Any) -> str:
    return repr(np.dtype(dtype).name)


CALLS: dict[str, Call] = {
    "all_gather": lambda x, p: (
        f"lax.all_gather({x[0]}, {p['axis_name']!r}, axis={p['all_gather_dimension']}, "
        f"axis_index_groups={_groups(p)}, tiled={p['tiled']})"
    ),
    "all_to_all": lambda x, p: (
        f"lax.all_to_all({x[0]}, {p['axis_name']!r}, {p['split_axis']}, {p['concat_axis']}, "
        f"axis_index_groups={_groups(p)}, tiled={p['tiled']})"
    ),
    "axis_index": lambda _, p: f"lax.axis_index({p['axis_name']!r})",
    "bitcast_convert_type": lambda x, p: f"lax.bitcast_convert_type({x[0]}, {_dtype(p['new_dtype'])})",
    "broadcast_in_dim": lambda x, p: f"lax.broadcast_in_dim({x[0]}, {p['shape']}, {p['broadcast_dimensions']})",
    "concatenate": lambda x, p: f"lax.concatenate([{', '.join(x)}], {p['dimension']})",
    "convert_element_type": lambda x, p: f"lax.convert_element_type({x[0]}, {_dtype(p['new_dtype'])})",
    "dynamic_slice": lambda x, p: f"lax.dynamic_slice({x[0]}, ({', '.join(x[1:])},), {p['slice_sizes']})",
    "dynamic_update_slice": lambda x, _: f"lax.dynamic_update_slice({x[0]}, {x[1]}, ({', '.join(x[2:])},))",
    "iota": lambda _, p: f"lax.broadcasted_iota({_dtype(p['dtype'])}, {p['shape']}, {p['dimension']})",
    "optimization_barrier": lambda x, _: (
        f"lax.optimization_barrier({x[0] if len(x) == 1 else '(' + ', '.join(x) + ')'})"
    ),
    "pmax": lambda x, p: f"lax.pmax({x[0]}, {p['axes']!r}, axis_index_groups={_groups(p)})",
    "pmin": lambda x, p: f"lax.pmin({x[0]}, {p['axes']!r}, axis_index_groups={_groups(p)})",
    "ppermute": lambda x, p: f"lax.ppermute({x[0]}, {p['axis_name']!r}, {list(p['perm'])})",
    "psum": lambda x, p: f"lax.psum({x[0]}, {p['axes']!r}, axis_index_groups={_groups(p)})",
    "reduce_scatter": lambda x, p: (
        f"lax.psum_scatter({x[0]}, {p['axis_name']!r}, scatter_dimension={p['scatter_dimension']}, "
        f"axis_index_groups={_groups(p)}, tiled={p['tiled']})"
    ),
    "reshape": lambda x, p: f"lax.reshape({x[0]}, {p['new_sizes']})",
    "select_n": lambda x, _: f"lax.select_n({', '.join(x)})",
    "slice": lambda x, p: f"lax.slice({x[0]}, {p['start_indices']}, {p['limit_indices']})",
    "squeeze": lambda x, p: f"lax.squeeze({x[0]}, {p['dimensions']})",
    "transpose": lambda x, p: f"lax.transpose({x[0]}, {p['permutation']})",
}
"""How `jax.lax` calls what a plan becomes, where it has another name there or is told more than operands."""


def _groups(params: dict[str, Any]) -> str:
    groups = params["axis_index_groups"]
    return repr(None if groups is None else [list(group) for group in groups])
