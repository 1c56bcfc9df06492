"""What JAX's compiled and lowered functions say of their reshards.

A compiled function knows the shardings of its arguments and results, which its text does not tell, so every chain from
the one to the other is recognised.

>>> import jax
>>> report = inspect(jax.jit(lambda x: 2 * x).lower(1.0).compile())
>>> report.collectives
[]
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
from jax.stages import Compiled, Lowered

from reshard.checks import shown
from reshard.errors import ReshardError
from reshard.jax.conversions import AnyMesh, mesh_of, sharding_of
from reshard.mesh import Mesh
from reshard.xla.report import ProgramEnd, ProgramEnds, Report, inspect_texts


def inspect(program: Any, *, mesh: AnyMesh | Mesh | None = None) -> Report:
    """Every collective and every reshard of a program, with what the plan needs for it.

    Given the lowered function and the compiled one, what the first asks for is joined with what the second sends:
    `inspect([lowered, lowered.compile()])`.

    Args:
        program: what `lower` or `compile` gave, a text of XLA's in any form, or a sequence of these.
        mesh: names the axes where a text has none.

    Raises:
        ReshardError: `bad-argument` where it is none of these.
    """
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
    ours = mesh if isinstance(mesh, Mesh) or mesh is None else Mesh(mesh_of(mesh).axes)
    return inspect_texts(texts, mesh=ours, ends=ends)


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
