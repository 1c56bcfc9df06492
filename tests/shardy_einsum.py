"""What Shardy does with a matrix product whose operands and result are sharded: the passes inside jaxlib.

`sdy-insert-explicit-reshards` chooses in which layout to compute, `sdy-reshard-to-collectives` how to get there, and
the canonicalizer makes reduce-scatters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from shardy import _loaded

from reshard.axis import sorted_and_merged
from reshard.notation import parse_sharding
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Step

PIPELINE = (
    "builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}),canonicalize,"
    "func.func(sdy-reshard-to-collectives),canonicalize)"
)
BATCH = 200
"""How many functions are in a module."""
_COLLECTIVE = re.compile(r"(%\w+) = sdy\.(\w+) (.*?) ?(%\w+) out_sharding=<@m, (.*)> : tensor<([0-9x]*)xi8>$")
_PRODUCT = re.compile(r"(%\w+) = stablehlo\.dot_general .*<\[<@m, (.*)>\]>")
_AXIS = re.compile(r'"[^"]+"(?::\(\d+\)\d+)?')


class Case(NamedTuple):
    """A product of two matrices."""

    first: Sharding
    second: Sharding
    target: Sharding


def shardy_steps(cases: Sequence[Case], sizes: tuple[int, int, int]) -> list[list[Step] | None]:
    """Per product, all on one mesh, the collectives that Shardy inserts; None where one is none, by our own check."""
    mesh = cases[0].first.mesh
    i, j, k = sizes
    a, b, c = (f"tensor<{rows}x{columns}xi8>" for rows, columns in ((i, j), (j, k), (i, k)))
    texts = []
    for number, case in enumerate(cases):
        first, second, target = (f"<@m, {end.text()}>" for end in case)
        texts.append(
            f"func.func @f{number}(%a: {a} {{sdy.sharding = #sdy.sharding{first}}}, %b: {b} "
            f"{{sdy.sharding = #sdy.sharding{second}}}) -> ({c} {{sdy.sharding = #sdy.sharding{target}}}) {{\n"
            f"  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] "
            f"{{sdy.sharding = #sdy.sharding_per_value<[{target}]>}} : ({a}, {b}) -> {c}\n  return %0 : {c}\n}}"
        )
    found: list[list[Step] | None] = []
    for start in range(0, len(texts), BATCH):
        functions, batch = _run(texts[start : start + BATCH], str(mesh)), cases[start : start + BATCH]
        found += [_steps(function, case) for function, case in zip(functions, batch, strict=True)]
    return found


def _run(texts: Sequence[str], mesh: str) -> list[str]:
    from jaxlib.mlir import passmanager
    from jaxlib.mlir.dialects import stablehlo

    ir, _, context = _loaded()
    stablehlo.register_dialect(context)
    with context:
        module = ir.Module.parse("\n".join([f"sdy.mesh @m = {mesh}", *texts]))
        passmanager.PassManager.parse(PIPELINE).run(module.operation)
        return [str(op) for op in module.body.operations if op.operation.name == "func.func"]


def _steps(function: str, case: Case) -> list[Step] | None:
    """The collectives of a function, each between the shardings that it says; None where one is no such collective."""
    mesh = case.target.mesh

    def read(text: str) -> Sharding:
        return parse_sharding(f"#sdy.sharding<@m, {text}>", {"m": mesh})

    known = {"%arg0": case.first, "%arg1": case.second}
    steps: list[Step] = []
    for line in function.splitlines():
        product = _PRODUCT.search(line)
        if product:
            known[product[1]] = read(product[2])
        collective = _COLLECTIVE.search(line)
        if not collective:
            continue
        name, kind, arguments, operand, sharding, shape = collective.groups()
        before, after = known[operand], read(sharding)
        known[name] = after
        if kind in ("all_reduce", "reduce_scatter"):
            axes = [read(f"[{{{text}}}]").dims[0].axes[0] for text in _AXIS.findall(arguments)]
            before = replace(before, unreduced=sorted_and_merged([*before.unreduced, *axes], mesh.sizes))
        steps.append(Step(Reshard.of(before, after, tuple(map(int, shape.split("x"))), "int8")))
    returned = re.search(r"return (%\w+) :", function)
    assert returned, function
    return steps if known[returned[1]].text() == case.target.text() else None
