"""Shardy's own parser and verifier, the copy inside jaxlib, asked whether a text is good and how it prints it.

One MLIR context answers all questions; a new one for each would cost more than all answers.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

SHARDING = "#sdy.sharding<"
MESH = "#sdy.mesh<"
UNDEFINED = "unknown axis name in a list that is sorted first, on which the verifier is undefined"


class Answer(NamedTuple):
    """What Shardy says to a text."""

    printed: str | None
    """How it prints what it read; None where it refuses."""
    problem: str
    """Its first message; empty where it has none."""


@cache
def _loaded() -> tuple[Any, Any, Any]:
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import sdy

    context = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    sdy.register_dialect(context)
    return ir, sdy, context


def _attribute(text: str, kind: str) -> tuple[Any, str]:
    ir, _, context = _loaded()
    assert text.startswith("#"), "an empty text would end the process"
    with context:
        try:
            attribute = ir.Attribute.parse(text)
        except ir.MLIRError as error:
            return None, error.error_diagnostics[0].message if error.error_diagnostics else str(error)
    return (attribute, "") if str(attribute).startswith(kind) else (None, "another attribute")


def ask_mesh(text: str) -> Answer:
    """What Shardy says to `#sdy.mesh<...>`."""
    mesh, problem = _attribute(text, MESH)
    return Answer(None if mesh is None else str(mesh), problem)


def ask_sharding(text: str, mesh: str, ndim: int | None = None) -> Answer:
    """What Shardy says to `#sdy.sharding<...>` on a tensor.

    Args:
        text: the sharding.
        mesh: what `@m` is, such as `<["x"=2]>`.
        ndim: the dims of the tensor; as many as the sharding has unless given.
    """
    ir, sdy, context = _loaded()
    sharding, problem = _attribute(text, SHARDING)
    if sharding is None:
        return Answer(None, problem)
    with context:
        read = sdy.TensorShardingAttr(sharding)
        inlined = str(sharding).startswith(f"{SHARDING}mesh<")
        on = sdy.MeshAttr(read.mesh_or_ref if inlined else ir.Attribute.parse(f"#sdy.mesh{mesh}"))
        known = {sdy.MeshAxisAttr(axis).name for axis in on.axes}
        is_maximal = not known and len(on.device_ids) > 0
        for refs in (read.replicated_axes, read.unreduced_axes):
            if len(refs) > 1 and not is_maximal and not known.issuperset(sdy.AxisRefAttr(ref).name for ref in refs):
                return Answer(None, UNDEFINED)
        ndim = len(read.dimension_shardings) if ndim is None else ndim
    tensor = f"tensor<{'8x' * ndim}f32>"
    problem = ask_module(f"sdy.mesh @m = {mesh}\nfunc.func private @f({tensor} {{sdy.sharding = {sharding}}})")
    return Answer(None if problem else str(sharding), problem)


def ask_module(text: str) -> str:
    """Shardy's first message about a module; empty where it is good."""
    ir, _, context = _loaded()
    with context:
        try:
            ir.Module.parse(text)
        except ir.MLIRError as error:
            return error.error_diagnostics[0].message if error.error_diagnostics else str(error)
    return ""
