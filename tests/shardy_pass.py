"""What Shardy's own pass from a reshard to collectives does: the copy inside jaxlib, run on many pairs at once.

The pass checks its outcome in debug builds only, so what it gives may end elsewhere than in the target; and what it
gives may be refused by the verifier, and then nothing is given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from shardy import _loaded

from reshard.notation import parse_sharding
from reshard.problem import Reshard
from reshard.sharding import Sharding
from reshard.steps import Step

PIPELINE = "builtin.module(func.func(sdy-reshard-to-collectives))"
BATCH = 400
"""How many functions are in a module."""
Pair = tuple[Sharding, Sharding]


def _run(texts: Sequence[str], mesh: str) -> list[str | None]:
    """What the pass makes of every function; None where its own verifier refuses that."""
    from jaxlib.mlir import passmanager

    ir, _, context = _loaded()
    with context:
        try:
            module = ir.Module.parse("\n".join([f"sdy.mesh @m = {mesh}", *texts]))
            passmanager.PassManager.parse(PIPELINE).run(module.operation)
        except ir.MLIRError:
            if len(texts) == 1:
                return [None]
            half = len(texts) // 2
            return [*_run(texts[:half], mesh), *_run(texts[half:], mesh)]
        return [str(op) for op in module.body.operations if op.operation.name == "func.func"]


def shardy_points(pairs: Sequence[Pair], shape: Sequence[int]) -> list[list[Sharding] | None]:
    """Per pair, all on one mesh, the shardings that Shardy's steps go through, the source first; None if refused."""
    tensor = f"tensor<{''.join(f'{size}x' for size in shape)}i8>"
    texts = [
        f"func.func @f{number}(%a: {tensor} {{sdy.sharding = #sdy.sharding<@m, {source.text()}>}}) -> {tensor} {{\n"
        f"  %0 = sdy.reshard %a <@m, {target.text()}> : {tensor}\n  return %0 : {tensor}\n}}"
        for number, (source, target) in enumerate(pairs)
    ]
    mesh = pairs[0][0].mesh
    found: list[list[Sharding] | None] = []
    for start in range(0, len(texts), BATCH):
        for function in _run(texts[start : start + BATCH], str(mesh)):
            source = pairs[len(found)][0]
            if function is None:
                found.append(None)
                continue
            after = re.findall(r"= sdy\.\w+ .*?(<@m, .*>) : ", function)
            texts_after = [text.rpartition("<@m, ")[2] for text in after]
            found.append([source, *(parse_sharding(f"#sdy.sharding<@m, {text}", {"m": mesh}) for text in texts_after)])
    return found


def received(points: Sequence[Sharding], shape: tuple[int, ...]) -> tuple[Step, ...]:
    """The steps between shardings; none where two are one placement."""
    ends = [point for number, point in enumerate(points) if number == 0 or point != points[number - 1]]
    return tuple(Step(Reshard.of(a, b, shape, "int8")) for a, b in pairwise(ends))
