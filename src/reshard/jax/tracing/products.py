"""Products of two tensors: contractions over some dims, in batches.

A device computes them by the primitive itself, of tiles in which dims that lie side by side and go the same way are
one: compilers bring what they are told dim by dim into an order, and copy for it, where they multiply matrices as they
lie.
Contracted dims are summed in the order in which they lie in the larger operand, in whatever order they are named:
`jax.numpy.einsum` goes by the alphabet, and would have weights of `n h d` copied to be summed over `h n`.

By hand, `x` of 8 x 2 x 4 and weights of 2 x 4 x 64, summed over dims 2 and 1 of the first and 1 and 0 of the second,
are matrices of 8 x 8 and 8 x 64:

>>> product = Product.of((((2, 1), (1, 0)), ((), ())), ((8, 2, 4), (2, 4, 64)))
>>> product.runs
(((0,), (1, 2)), ((0, 1), (2,)))
>>> product.numbers
(((1,), (0,)), ((), ()))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

from jax import lax

from reshard.jax.tracing.emitter import Emitter, product_labels
from reshard.jax.tracing.evaluation import results_of
from reshard.operations.interpreter import Extents
from reshard.operations.pattern import Shape
from reshard.propagation import Value

Pairs = tuple[Shape, Shape]
"""Dims of the first operand, and those of the second that each goes with."""
Runs = tuple[Shape, ...]
"""The dims of an operand, those together that are one."""


class Product(NamedTuple):
    """How tiles are multiplied."""

    runs: tuple[Runs, Runs]
    """Of both operands."""
    numbers: tuple[Pairs, Pairs]
    """What is contracted, and what are batches: numbers of runs, as `lax.dot_general` takes those of dims."""

    @classmethod
    def of(cls, numbers: tuple[Pairs, Pairs], shapes: tuple[Shape, Shape]) -> Product:
        """From what `lax.dot_general` is told, of operands of these shapes."""
        contracted, batch = (list(zip(*pairs, strict=True)) for pairs in numbers)
        larger = int(prod(shapes[1]) > prod(shapes[0]))
        contracted.sort(key=lambda pair: pair[larger])
        first: Shape = ()  # of the contracted pairs that are one
        heads: list[Shape] = []
        for number, pair in enumerate(contracted):
            follows = number > 0 and contracted[number - 1] == (pair[0] - 1, pair[1] - 1)
            first = first if follows else pair
            heads.append(first)
        pairs = [*zip(contracted, heads, strict=True), *((pair, pair) for pair in batch)]
        left, right = (_runs(len(shapes[end]), {pair[end]: head for pair, head in pairs}) for end in (0, 1))

        def of_runs(firsts: Sequence[Shape]) -> Pairs:
            return tuple(_holding(left, one) for one, _ in firsts), tuple(_holding(right, one) for _, one in firsts)

        return cls((left, right), (of_runs([*dict.fromkeys(heads)]), of_runs(batch)))

    def __call__(self, equation: Any, tiles: Sequence[Any]) -> Any:
        """What an equation with this product makes of tiles."""
        (contracted, batch), shapes = self.numbers, [tile.shape for tile in tiles]
        merged = [
            lax.reshape(tile, [prod(tile.shape[dim] for dim in run) for run in runs])
            for tile, runs in zip(tiles, self.runs, strict=True)
        ]
        sizes = [merged[0].shape[place] for place in batch[0]]
        for shape, runs, *taken in zip(shapes, self.runs, contracted, batch, strict=True):
            sizes += [
                shape[dim] for place, run in enumerate(runs) if all(place not in each for each in taken) for dim in run
            ]
        (result,) = results_of(equation, merged, {**equation.params, "dimension_numbers": self.numbers})
        return lax.reshape(result, sizes)


def _runs(ndim: int, heads: Mapping[int, Shape]) -> Runs:
    """The dims of an operand, those together that follow each other and have one head, or none."""
    return tuple(tuple(run) for _, run in groupby(range(ndim), key=heads.get))


def _holding(runs: Runs, dim: int) -> int:
    """The number of the run that has a dim."""
    return next(number for number, run in enumerate(runs) if dim in run)


def dot_general(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """A contraction: batch dims first in the result, then what is left of both operands."""
    numbers = equation.params["dimension_numbers"]
    terms = product_labels(operands, numbers)
    free = [label for term in terms for label in term if label[0] in "lr"]
    result = [f"b{number}" for number in range(len(numbers[1][0]))] + free
    named = [tuple((label,) for label in term) for term in (*terms, result)]
    left, right = operands
    product = Product.of(numbers, (left.shape, right.shape))

    def run(_: Extents, tiles: Sequence[Any]) -> Any:
        return product(equation, tiles)

    return [emitter.emit("einsum", operands, named, equation.outvars[0].aval, run)]
