"""Rows of a tensor at numbers that are known, as what reads neighbours: slices, a roll, or rows in another order.

By hand, of 8 rows 6, 7, 0, 1, ... are a roll by 2, and 0, 0, 1, ..., 6 the first row before a slice of seven.

>>> _runs([0, 0, 1, 2, 3, 4, 5, 6])
[Run(first=0, length=1, step=1), Run(first=0, length=7, step=1)]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive

from reshard.jax.tracing.evaluation import in_place_of
from reshard.jax.tracing.reordering import REORDER
from reshard.operations.pattern import Shape

ROLL = Primitive("roll")
"""A tensor that goes round in some dims: `dims`, `shifts` and `sizes` as `Program.roll` has them."""
MOST_SIDES = 16
"""Of how many slices side by side a gather is made, at most."""
MOST_RUNS = 3
"""Of so many runs one after another at most."""
MOST_ROWS = 1 << 12
"""Of so many rows at most an order is known."""
MOST_PARTS = 4
"""Into so many parts rows are cut to see whether those of each lie near each other."""


def rows(equation: Any, dim: int, places: list[int], table: Shape) -> Any:
    """Rows that follow each other, or come every so many, as a slice or a roll."""
    steps = {after - before for before, after in pairwise(places)}
    if len(steps) == 1 and (step := min(steps)) != 0:
        start, stop, strides = [0] * len(table), list(table), [1] * len(table)
        start[dim], stop[dim], strides[dim] = min(places), max(places) + 1, abs(step)
        turned = (dim,) if step < 0 else ()
        return in_place_of(equation, equation.invars[:1], lambda x: lax.rev(lax.slice(x, start, stop, strides), turned))
    if {step % table[dim] for step in steps} == {1}:
        params = {"dims": (dim,), "shifts": (-places[0] % table[dim],), "sizes": (len(places),)}
        return equation.replace(primitive=ROLL, invars=equation.invars[:1], params=params)
    runs = _runs(places)
    if len(runs) > MOST_RUNS:
        if not _is_near(places, table[dim]):
            return equation
        order = {"dim": dim, "places": tuple(places)}
        return equation.replace(primitive=REORDER, invars=equation.invars[:1], params=order)

    def joined_runs(x: Any) -> Any:
        parts = []
        for first, length, step in runs:
            part = lax.slice_in_dim(x, first, first + (length if step else 1), axis=dim)
            parts.append(jax.numpy.broadcast_to(part, (*x.shape[:dim], length, *x.shape[dim + 1 :])))
        return lax.concatenate(parts, dim)

    return in_place_of(equation, equation.invars[:1], joined_runs)


def _is_near(places: Sequence[int], size: int) -> bool:
    """Whether each of some parts of many places lies in half of a dim or less.

    >>> _is_near([1, 0, 3, 2, 5, 4, 7, 6], 8), _is_near([0, 4, 1, 5, 2, 6, 3, 7], 8), _is_near([0, 5], 8)
    (True, False, False)
    """
    if 2 * len(places) < size or len(places) > MOST_ROWS:
        return False
    ends = np.linspace(0, len(places), min(MOST_PARTS, len(places)) + 1).astype(int)
    parts = [places[first:stop] for first, stop in pairwise(ends)]
    return all(2 * (max(part) + 1 - min(part)) <= size for part in parts)


class Run(NamedTuple):
    """Places that follow each other, or one that comes several times."""

    first: int
    length: int
    step: int


def _runs(places: Sequence[int]) -> list[Run]:
    """What places are one after another; a place that comes twice ends one run and begins the next.

    >>> _runs([0, 0, 0, 1, 2])
    [Run(first=0, length=3, step=0), Run(first=1, length=2, step=1)]
    >>> _runs([0, 0, 1, 2])
    [Run(first=0, length=1, step=1), Run(first=0, length=3, step=1)]
    """
    runs = [Run(int(places[0]), 1, 1)]
    for place in map(int, places[1:]):
        first, length, step = runs[-1]
        following = place - (first + (length - 1) * step)
        if following == step or (length == 1 and following == 0):
            runs[-1] = Run(first, length + 1, following)
        elif (length, step, following) == (2, 0, 1):
            runs[-1:] = [Run(first, 1, 1), Run(first, 2, 1)]
        else:
            runs.append(Run(place, 1, 1))
    return runs


def sides(equation: Any, dim: int, places: Any, table: Shape) -> Any:
    """Rows of which each number of few names a line of its own, as such lines side by side."""
    few = int(np.argmin(places.shape))
    lines = np.moveaxis(places, few, 0)
    if any(not _is_line(line, table[dim]) for line in lines):
        return equation
    return in_place_of(
        equation,
        equation.invars[:1],
        lambda x: jax.numpy.stack([jax.numpy.take(x, line, dim, mode="clip") for line in lines], dim + few),
    )


def _is_line(places: Any, size: int) -> bool:
    """Whether places are evenly apart, going round, or run on but for the ends."""
    steps = {*(np.diff(places) % size).tolist()}
    return len(steps) == 1 or len(_runs(places)) <= MOST_RUNS
