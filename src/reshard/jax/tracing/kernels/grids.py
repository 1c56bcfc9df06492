"""What a place of a grid reads and writes: block numbers made of digits of the place.

An index map gives, for a place of the grid, the number of the block along each dim of a tensor.
Nearly always that number is made of digits of the place: `i` itself, `i // 4` where four heads share one, `i % 4`,
`8 * i + j` where two axes of the grid are one dim.
What an index map does is asked of itself, at all places of the axes on which it depends, and read off the numbers.

By hand, i = 0 … 5: `i // 3` is 0 0 0 1 1 1, of which the first three say that the last digit, of size 3, counts
nothing, and the first one of the other three that the digit above counts 1; `2 - i` is no digit of anything.

>>> digits_of(np.array([0, 0, 0, 1, 1, 1]), (0,))
(GridDigit(axis=0, stride=3, size=2),)
>>> digits_of(np.add.outer(4 * np.arange(3), np.arange(4)), (1, 0))
(GridDigit(axis=1, stride=1, size=3), GridDigit(axis=0, stride=1, size=4))
>>> digits_of(2 - np.arange(3), (0,)) is None
True
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src.interpreters.partial_eval import dce_jaxpr
from jax._src.state.discharge import discharge_state
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from numpy.typing import NDArray

MOST_PLACES = 1 << 16
"""Of an index map, more are not asked."""


class GridDigit(NamedTuple):
    """A factor of an axis of a grid: of a place i it is `i // stride % size`."""

    axis: int
    stride: int
    size: int

    @property
    def label(self) -> str:
        """What it is called in a pattern."""
        return f"g{self.axis}_{self.stride}"


class BlockNumber(NamedTuple):
    """The number of a block along a dim of a tensor, as an index map tells it."""

    axes: frozenset[int]
    """Those of the grid on which it depends."""
    values: NDArray[Any] | None
    """It, by these axes in their order; None where more than places of the grid tells it, or of too many."""


def block_numbers(index_map: ClosedJaxpr, grid: Sequence[Any]) -> list[BlockNumber]:
    """Per dim of a tensor the numbers of its blocks.

    Args:
        index_map: from the place of the grid, and from what is read before it runs.
        grid: its sizes, of which those that are no integers are known only then.
    """
    plain = discharge_state(index_map)
    numbers = []
    for place in range(len(index_map.jaxpr.outvars)):
        wanted = [number == place for number in range(len(plain.jaxpr.outvars))]
        jaxpr, used = dce_jaxpr(plain.jaxpr, wanted)
        axes = [number for number, is_used in enumerate(used) if is_used]
        numbers.append(BlockNumber(frozenset(axes) & {*range(len(grid))}, _values(jaxpr, plain.consts, axes, grid)))
    return numbers


def _values(jaxpr: Any, consts: Sequence[Any], axes: Sequence[int], grid: Sequence[Any]) -> NDArray[Any] | None:
    """What one result of an index map is, by the axes on which it depends."""
    if any(axis >= len(grid) or not isinstance(grid[axis], int) for axis in axes):
        return None
    shape = tuple(grid[axis] for axis in axes)
    if prod(shape) > MOST_PLACES:
        return None
    places = [place.reshape(-1) for place in np.indices(shape, np.int32)]
    (result,) = jaxpr.outvars
    if isinstance(result, Literal):
        return np.full(shape, int(result.val))
    if not jaxpr.eqns:
        return places[jaxpr.invars.index(result)].reshape(shape)
    function = jaxpr_as_fun(ClosedJaxpr(jaxpr, consts))
    with jax.ensure_compile_time_eval():
        (values,) = jax.jit(jax.vmap(function))(*places) if axes else function()
    return np.asarray(values).reshape(shape)


def digits_of(values: NDArray[Any], axes: Sequence[int]) -> tuple[GridDigit, ...] | None:
    """The digits of which numbers are made, major to minor; None where they are made of anything else.

    Args:
        values: by the places of axes.
        axes: which these are.
    """
    counted: list[tuple[int, GridDigit]] = []
    made: Any = np.zeros(values.shape, np.int64)
    for place, axis in enumerate(axes):
        line = values[tuple(slice(None) if other == place else 0 for other in range(values.ndim))].astype(np.int64)
        numbers, along, stride = np.arange(len(line)), np.zeros(len(line), np.int64), 1
        while stride < len(line):
            step = int(line[stride] - line[0])
            every = line[::stride]
            differs = np.flatnonzero(every != every[0] + step * np.arange(len(every)))
            size = int(differs[0]) if len(differs) else len(every)
            if step:
                counted.append((step, GridDigit(axis, stride, size)))
            along += numbers // stride % size * step
            stride *= size
        made = made + along.reshape([-1 if other == place else 1 for other in range(values.ndim)])
    counted.sort(reverse=True)
    below = [*(step * digit.size for step, digit in counted[1:]), 1]
    if [step for step, _ in counted] != below[: len(counted)] or (made != values).any():
        return None
    return tuple(digit for _, digit in counted)


class GridCuts:
    """Where the axes of a grid are cut into digits, so that every digit that is used is one or several of these."""

    def __init__(self, grid: Sequence[Any]) -> None:
        """Of a grid, whose axes that are known only when it runs stay whole."""
        self.grid = grid
        self.strides: dict[int, list[int]] = {axis: [1] for axis in range(len(grid))}

    def take(self, digits: Sequence[GridDigit]) -> bool:
        """Cut for some digits more, if what is there and they are digits of an axis together."""
        wanted: dict[int, list[int]] = {}
        for digit in digits:
            strides = wanted.setdefault(digit.axis, self.strides[digit.axis])
            wanted[digit.axis] = sorted({*strides, digit.stride, digit.stride * digit.size} - {self.grid[digit.axis]})
        ends = [[*strides, self.grid[axis]] for axis, strides in wanted.items()]
        if any(stop % start for each in ends for start, stop in pairwise(each)):
            return False
        self.strides |= wanted
        return True

    def parts(self, digit: GridDigit) -> list[GridDigit]:
        """The digits of the axis, major to minor, that make up one."""
        return [each for each in self.of_axis(digit.axis) if digit.stride <= each.stride < digit.stride * digit.size]

    def of_axis(self, axis: int) -> list[GridDigit]:
        """All digits of an axis, major to minor."""
        if not isinstance(self.grid[axis], int):
            return []
        ends = pairwise([*self.strides[axis], self.grid[axis]])
        return [GridDigit(axis, start, stop // start) for start, stop in ends][::-1]
