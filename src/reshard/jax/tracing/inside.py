"""The bytes that the collectives in the body of a region bring a device, by name, as rings carry them out.

A loop of known length counts its body once per turn, one of unknown length once, and of a choice the branch counts
that receives most.
What goes where numbers say, as `ragged_all_to_all`, is told by nothing before it runs: it counts 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from reshard.jax.tracing.emitter import CALLS

RINGS = {
    "psum": (2, True),
    "psum_invariant": (2, True),
    "pmax": (2, True),
    "pmin": (2, True),
    "reduce_scatter": (1, True),
    "all_to_all": (1, True),
    "all_gather": (1, False),
    "all_gather_invariant": (1, False),
}
"""Per collective how often the tiles of all other devices come by, and whether each is a part of the operand."""


def received_inside(jaxpr: Any, sizes: Mapping[str, int]) -> Counter[str]:
    """Per collective the bytes that the busiest device receives, where the axes have these sizes."""
    received: Counter[str] = Counter()
    for equation in jaxpr.eqns:
        name, params = str(equation.primitive), equation.params
        if name in RINGS or name == "ppermute":
            received[name.removesuffix("_invariant")] += _received(name, equation, sizes)
        elif name == "cond":
            branches = [received_inside(branch.jaxpr, sizes) for branch in params["branches"]]
            most = max(branches, key=Counter.total)
            received += most
        elif name == "scan":
            for each, count in received_inside(params["jaxpr"].jaxpr, sizes).items():
                received[each] += count * params["length"]
        else:
            for called in _called(name, params):
                received += received_inside(getattr(called, "jaxpr", called), sizes)
    return +received


def _called(name: str, params: Mapping[str, Any]) -> Iterator[Any]:
    """The jaxprs that an equation runs once, or nobody knows how often."""
    keys = ("cond_jaxpr", "body_jaxpr") if name == "while" else (CALLS[name],) if name in CALLS else ()
    yield from (params[key] for key in keys)


def _received(name: str, equation: Any, sizes: Mapping[str, int]) -> int:
    """The bytes that one collective brings the busiest device."""
    params = equation.params
    named = params.get("axes", params.get("axis_name"))
    groups = params.get("axis_index_groups")
    axes = named if isinstance(named, tuple) else (named,)
    members = len(groups[0]) if groups else prod(sizes.get(axis, 1) for axis in axes)
    held = [var.aval.size * var.aval.dtype.itemsize for var in equation.invars]
    if name == "ppermute":
        return sum(held) if any(source != target for source, target in params["perm"]) else 0
    times, is_part = RINGS[name]
    return sum(times * size * (members - 1) // (members if is_part else 1) for size in held)
