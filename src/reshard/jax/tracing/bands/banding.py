"""Attention in a window, by its mask: of scores of which a band alone counts, that band alone is computed.

A mask that is made of places, and true near the diagonal only, makes all scores beyond it one number.
What becomes of them (a softmax, a product with values, the gradients of both) is known without computing it, and what
is inside is computed in blocks of rows (`band_blocks`), so that a device receives the borders of keys and values.

Only what ends in sums, largest or products over rows or columns is taken so, and only where nothing else reads the
scores; where something does, all stays as it is.

By hand, a row of 8 sees itself and the one before: with 4 devices a block is 2 rows, which see 3 columns.

>>> import jax, jax.numpy as jnp
>>> def attention(q, k, v):
...     away = jnp.arange(8)[:, None] - jnp.arange(8)
...     scores = jnp.where((away >= 0) & (away < 2), q @ k.T, -jnp.inf)
...     return jax.nn.softmax(scores) @ v
>>> closed = jax.make_jaxpr(attention)(*[jnp.zeros((8, 5))] * 3)
>>> products = [e for e in in_bands(closed, devices=4).jaxpr.eqns if str(e.primitive) == "dot_general"]
>>> [product.outvars[0].aval.shape for product in products]
[(4, 2, 3), (4, 2, 5), (4, 2, 5)]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax._src.interpreters.partial_eval import dce_jaxpr
from jax.extend.core import ClosedJaxpr, Literal

from reshard.jax.tracing.bands.band_ends import BandEnd, BandEnds
from reshard.jax.tracing.bands.band_values import UnseenError
from reshard.jax.tracing.bands.planes import Flat, flattened
from reshard.jax.tracing.bands.sinking import REMATERIALIZED, Sinking
from reshard.jax.tracing.evaluation import literal_array, results_of


def in_bands(closed: Any, devices: int) -> Any:
    """A closed jaxpr, or one that makes the same and computes bands of scores instead of all.

    Args:
        closed: of any function.
        devices: of the mesh on which it runs.
    """
    jaxpr = closed.jaxpr
    if devices < 2 or jaxpr.effects or any(_has_spec(var.aval) for var in jaxpr.invars):
        return closed
    flat = flattened(jaxpr, closed.consts)
    names = {str(equation.primitive) for equation in flat.equations}
    if not names & {"scan", *REMATERIALIZED} and not {"select_n", "dot_general"} <= names:
        return closed
    sinking = Sinking(flat)
    equations = [_with_masks_within(sinking, equation, devices) for equation in flat.equations]
    has_sunk, flat = equations != flat.equations, flat._replace(equations=equations)
    values = BandEnds(flat, devices)
    ends = {number: end for number, equation in enumerate(flat.equations) if (end := values.end_of(equation))}
    avals = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in jaxpr.invars]
    while ends or has_sunk:
        traced = jax.make_jaxpr(lambda *arrays, ends=ends: _run(jaxpr, flat, values, ends, arrays))(*avals)
        kept = _kept(flat, values, ends)
        if not ends and not has_sunk:
            break
        if len(kept) == len(ends):
            shorter, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars), instantiate=True)
            return ClosedJaxpr(shorter, traced.consts)
        ends = kept
    return closed


def _has_spec(aval: Any) -> bool:
    """Whether the type of an array says how it lies."""
    sharding = getattr(aval, "sharding", None)
    return isinstance(sharding, jax.NamedSharding) and not sharding.mesh.empty and any(sharding.spec)


def _with_masks_within(sinking: Sinking, equation: Any, devices: int) -> Any:
    """An equation, or the same with masks made in what it calls, where that makes bands of it."""
    sunk = sinking.of(equation)
    if sunk is equation:
        return equation
    body = sunk.params["jaxpr"]
    body = body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())
    return equation if in_bands(body, devices) is body else sunk


def _run(jaxpr: Any, flat: Flat, values: BandEnds, ends: dict[int, BandEnd], arrays: Sequence[Any]) -> list[Any]:
    """The results of a jaxpr of some arrays, some of its equations in blocks."""
    known: dict[Any, Any] = dict(flat.constants) | dict(zip(jaxpr.invars, arrays, strict=True))

    def read(atom: Any) -> Any:
        return literal_array(atom) if isinstance(atom, Literal) else known[atom]

    values.begin(read)
    for number, equation in enumerate(flat.equations):
        results = None
        if number in ends:
            try:
                results = [values.end(equation, ends[number])]
            except UnseenError:
                del ends[number]
        if results is None:
            with equation.ctx.manager:
                results = results_of(equation, [*map(read, equation.invars)])
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in flat.results]


def _kept(flat: Flat, values: BandEnds, ends: dict[int, BandEnd]) -> dict[int, BandEnd]:
    """The ends without those of which the scores are read by something else too."""
    live = {atom for atom in flat.results if not isinstance(atom, Literal)}
    for number in reversed(range(len(flat.equations))):
        equation = flat.equations[number]
        if number in ends and live & {*equation.outvars}:
            live |= values.reads[equation.outvars[0]].whole
        elif equation.effects or live & {*equation.outvars}:
            live.update(atom for atom in equation.invars if not isinstance(atom, Literal))
    return {n: end for n, end in ends.items() if not values.reads[flat.equations[n].outvars[0]].scores & live}
