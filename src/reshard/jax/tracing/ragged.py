"""Products in which every row of the left operand goes with one of several right ones: those of experts.

The rows of a group stand together, and the sizes of the groups say how many each has; every device knows all sizes.
So a device that has some rows, or some groups, knows which of its rows are in which of its groups, and contracts those:

    rows by groups   what is in the groups of others counts as nothing, and the results are added up
    sums per group   a device adds up what it has of the rows of its groups, and devices with other rows add theirs

By hand, four groups of 2, 1, 3 and 2 rows, of which a device has rows 2 to 6 and the last two groups: one row is before
them, three are in the first of the two, none of its rows is in the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from reshard.jax.tracing.emitter import Emitter, evaluated, product_labels
from reshard.operations.interpreter import Extents
from reshard.operations.pattern import Term
from reshard.propagation import Value

SIZES = "n"
"""The label of the sizes of groups, of which every device has all."""
GROUPS = "g"


class _Groups(NamedTuple):
    """The groups of a device, as rows of its own."""

    before: Any
    """How many of its rows are in groups before its first."""
    sizes: Any
    """Per group how many of its rows are in that."""

    @classmethod
    def of(cls, sizes: Any, first: Any, count: int, start: Any, rows: int) -> _Groups:
        """So many groups from a first, of a device that has so many rows from one on."""
        beyond = jnp.pad(sizes.astype(np.int32), (0, count))  # of a tile that is cut short, groups without rows
        stops = lax.dynamic_slice(jnp.cumsum(beyond), [first], [count])
        starts = stops - lax.dynamic_slice(beyond, [first], [count])
        inside, after = (jnp.clip(places - start, 0, rows) for places in (starts, stops))
        return cls(inside[0], after - inside)

    @property
    def with_others(self) -> Any:
        """The sizes, first of all that is before."""
        return jnp.concatenate([self.before[None], self.sizes])


def takes(equation: Any) -> bool:
    """Whether the products are of one of the two kinds, and every group has one size."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (_, _), (batch, _) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    return equation.invars[2].aval.ndim == 1 and ragged not in batch and equation.params["group_offset"] is None


def ragged_dot(emitter: Emitter, equation: Any, operands: Sequence[Value]) -> list[Value]:
    """Rows by groups where rows are free, sums per group where they are contracted."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    contracted, batch = numbers.dot_dimension_numbers
    (rows,) = numbers.lhs_ragged_dimensions
    terms = product_labels(operands[:2], numbers.dot_dimension_numbers)
    is_summed = rows in contracted[0]
    for dim in numbers.rhs_group_dimensions:
        terms[1][dim] = GROUPS
    free = [label for term in terms for label in term if label[0] in "lr"]
    result = [GROUPS] * is_summed + [f"b{number}" for number in range(len(batch[0]))] + free
    named: list[Term] = [tuple((label,) for label in term) for term in (*terms, [SIZES], result)]
    run = evaluated(equation)

    def per_group(extents: Extents, tiles: Sequence[Any]) -> Any:
        left, right, sizes = tiles
        count = extents.shapes[3][0]
        groups = _Groups.of(sizes, extents.start(3, 0), count, extents.start(0, rows), left.shape[rows])
        if count == len(sizes):
            return run(extents, (left, right, groups.sizes))
        return run(extents, (left, right, groups.with_others))[1:]

    def by_group(extents: Extents, tiles: Sequence[Any]) -> Any:
        left, right, sizes = tiles
        (dim,) = numbers.rhs_group_dimensions
        count = right.shape[dim]
        groups = _Groups.of(sizes, extents.start(1, dim), count, extents.start(0, rows), left.shape[rows])
        if count == len(sizes):
            return run(extents, (left, right, groups.sizes))
        nothing = [(0, 0, 0)] * right.ndim
        nothing[dim] = (1, 0, 0)
        row = lax.broadcasted_iota(np.int32, left.shape, rows) - groups.before
        own = jnp.where((row >= 0) & (row < groups.sizes.sum()), left, 0)  # what is no number stays with its group
        return run(extents, (own, lax.pad(right, np.zeros((), right.dtype), nothing), groups.with_others))

    return [
        emitter.emit(
            "ragged_dot",
            operands,
            named,
            equation.outvars[0].aval,
            per_group if is_summed else by_group,
            replicated=(SIZES,),
            reduction="sum",
        )
    ]
