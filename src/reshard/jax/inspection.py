"""What JAX's compiled and lowered functions say of their reshards.

A compiled function knows the shardings of its arguments and results, which its text does not tell, so every chain from
the one to the other is recognised.
What lies between is told by the text before partitioning alone, which XLA dumps where it is asked to: a function that
is given with its arguments is lowered and compiled here, asked so, into a folder that is gone afterwards.

>>> import jax
>>> report = inspect(jax.jit(lambda x: 2 * x).lower(1.0).compile())
>>> report.collectives
[]
>>> inspect(lambda x: 2 * x, 1.0).findings
[]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.stages import Compiled, Lowered

from reshard.checks import shown
from reshard.errors import ReshardError
from reshard.jax.jax_shardings import AnyMesh, mesh_of, sharding_of
from reshard.mesh import Mesh
from reshard.xla.report import ProgramEnd, ProgramEnds, Report, inspect_dump, inspect_texts

DUMPED = {"xla_dump_hlo_pass_re": "spmd.*", "xla_dump_hlo_as_text": True}
"""What XLA is asked to dump: the module before partitioning, with all shardings, and the one after."""


def inspect(program: object, *arguments: object, mesh: AnyMesh | Mesh | None = None, **named: object) -> Report:
    """Every collective and every reshard of a program, with what the plan needs for it.

    Given a function and its arguments it is lowered and compiled for them, not run; arguments may be
    `jax.ShapeDtypeStruct`. What `propagate` would receive for the same function is told too.
    Given the lowered function and the compiled one, what the first asks for is joined with what the second sends:
    `inspect([lowered, lowered.compile()])`.

    Args:
        program: a function, under `jax.jit` or not; or what `lower` or `compile` gave, a text of XLA's in any form, or
            a sequence of these.
        arguments: of the function.
        mesh: names the axes where a text has none; the meshes of arguments do by themselves.
        named: arguments of the function by name.

    Raises:
        ReshardError: `bad-argument` where it is none of these, or arguments come without a function.
    """
    parts = (Lowered, Compiled, str, list, tuple)
    if callable(program) and not isinstance(program, parts):
        return _function_inspected(program, arguments, named, mesh)
    if arguments or named:
        raise ReshardError("bad-argument", f"arguments are for a function, and this is none: {shown(program)}")
    texts: list[tuple[str, str]] = []
    ends: dict[str, ProgramEnds] = {}
    for number, part in enumerate(program if isinstance(program, list | tuple) else [program], 1):
        kind = "lowered" if isinstance(part, Lowered) else "compiled" if isinstance(part, Compiled) else "text"
        name = kind if isinstance(program, str | Lowered | Compiled) else f"{kind} {number}"
        if isinstance(part, Lowered):
            texts.append((name, part.as_text(debug_info=True)))
        elif isinstance(part, Compiled):
            texts.append((name, part.as_text() or ""))
            ends[name] = _ends_of(part)
        elif isinstance(part, str):
            texts.append((name, part))
        else:
            raise ReshardError(
                "bad-argument", f"a compiled or lowered function or a text is wanted, got: {shown(part)}"
            )
    return inspect_texts(texts, mesh=_ours(mesh), ends=ends)


def _ours(mesh: AnyMesh | Mesh | None) -> Mesh | None:
    return mesh if isinstance(mesh, Mesh) or mesh is None else Mesh(mesh_of(mesh).axes)


def _function_inspected(
    function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any], mesh: AnyMesh | Mesh | None
) -> Report:
    """Lower, compile with a dump, and read it."""
    jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
    lowered = jitted.lower(*arguments, **named)
    with tempfile.TemporaryDirectory(prefix="reshard-") as folder:
        compiled = lowered.compile(compiler_options={"xla_dump_to": folder, **DUMPED})
        try:
            ours = _ours(mesh) or _mesh_of_arguments(compiled)
            report = inspect_dump(Path(folder), mesh=ours, ends=_ends_of(compiled))
        except ReshardError:  # this backend dumps nothing
            return inspect([lowered, compiled], mesh=mesh)
    try:
        report.placed_bytes = _placed_bytes(function, compiled, arguments, named)
    except ReshardError as error:
        report.placed_why = str(error)
    return report


def _mesh_of_arguments(compiled: Compiled) -> Mesh | None:
    """The mesh that arguments and results are on, where it is one."""
    ends = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    meshes = {mesh_of(end.mesh).axes for end in ends if isinstance(end, NamedSharding) and not end.mesh.empty}
    return Mesh(meshes.pop()) if len(meshes) == 1 else None


def _placed_bytes(function: Any, compiled: Compiled, arguments: tuple[Any, ...], named: dict[str, Any]) -> int:
    """What the busiest device would receive if the function were placed by `propagate`.

    Raises:
        ReshardError: what `trace` and `propagate` raise; `bad-argument` where arguments have names.
    """
    from reshard.jax.tracing.functions import trace  # noqa: PLC0415  # a program is read with its first use

    if named:
        raise ReshardError("bad-argument", "a program is traced from arguments without names")
    types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jax.numpy.shape(x), jax.numpy.result_type(x)), arguments)
    shardings = jax.tree.map(
        lambda end: end if isinstance(end, NamedSharding) else None, compiled.input_shardings[0], is_leaf=_is_sharding
    )
    return trace(function, *types, in_shardings=shardings).propagate().received_bytes


def _is_sharding(value: Any) -> bool:
    return value is None or isinstance(value, jax.sharding.Sharding)


def _ends_of(compiled: Compiled) -> ProgramEnds:
    """What is known of the arguments that are used, and of the results."""
    ends = []
    sides = (compiled.in_avals, compiled.input_shardings), (compiled.out_info, compiled.output_shardings)
    for values, shardings in sides:
        avals, of_avals = jax.tree.leaves(values), jax.tree.leaves(shardings, is_leaf=lambda end: end is None)
        if len(avals) != len(of_avals):
            break
        pairs = zip(avals, of_avals, strict=True)
        ends.append(tuple(_end(aval.shape, sharding) for aval, sharding in pairs if sharding is not None))
    return ProgramEnds(*ends)


def _end(shape: tuple[int, ...], jax_sharding: Any) -> ProgramEnd | None:
    try:
        sharding = sharding_of(jax_sharding, ndim=len(shape))
    except ReshardError:
        return None
    if sharding.mesh.is_maximal:
        return None
    # XLA's text counts positions, so the numbers of the devices do not matter here.
    return ProgramEnd(tuple(shape), replace(sharding, mesh=Mesh(sharding.mesh.axes)))
