"""Products of tables that are summed up over all that few of them have.

A table has a dim for each of its *letters*; where two have a letter, their values there go together.
The first letters stay, all others are summed up: always the two tables are joined that become smallest.

By hand, of rows (0) and columns (1) that agree in a value of 5, how much they have together:

>>> rows, columns = np.array([[1, 0], [1, 1]]), np.array([[2, 3]])
>>> contracted([LetteredTable(rows, [0, 5]), LetteredTable(columns, [1, 5])], 2).tolist()
[[2], [5]]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.mix import Floats


class LetteredTable(NamedTuple):
    """A table whose dims have letters."""

    values: NDArray[Any]
    letters: list[int]
    """Of its dims."""


def contracted(factors: Sequence[LetteredTable], kept: int) -> NDArray[Any]:
    """The product of all tables, by the first so many letters, summed up over all others."""
    tables = [values for values, _ in factors]
    lengths = tuple(
        sorted({letter: n for values, dims in factors for letter, n in zip(dims, values.shape, strict=True)}.items())
    )
    for pair, alone, dims, left in _pairs_to_join(tuple([tuple(dims) for _, dims in factors]), lengths, kept):
        joined = [
            tables[number].sum(axis=axes) if axes else tables[number] for number, axes in zip(pair, alone, strict=True)
        ]
        tables = [table for number, table in enumerate(tables) if number not in pair]
        operands: list[Any] = [item for operand in zip(joined, dims, strict=True) for item in operand]
        tables.append(np.einsum(*operands, left))
    return tables[0]


def summed_by(
    tables: Sequence[LetteredTable],
    names: Mapping[int, int],
    kept: Sequence[int],
    others: Iterable[int],
    sizes: Mapping[int, int],
) -> Floats:
    """The product of tables by some variables, a dim each, summed up over others.

    Args:
        tables: by variables.
        names: per variable the one that it must agree with.
        kept: variables, each its own name.
        others: names.
        sizes: of the values of a variable.

    By hand, rows of 1 and 2 by columns that must agree with them: 1 and 4 of each, in 3 values of a third variable.

    >>> rows, columns = LetteredTable(np.array([1.0, 2.0]), [0]), LetteredTable(np.array([1.0, 2.0]), [1])
    >>> summed_by([rows, columns], {0: 0, 1: 0, 2: 2}, [0], [2], {0: 2, 1: 2, 2: 3})
    array([ 3., 12.])
    """
    own = [_diagonal(values, [names[letter] for letter in letters]) for values, letters in tables]
    used = {letter for _, letters in own for letter in letters}
    by_place = [variable for variable in kept if variable in used]
    number = {variable: place for place, variable in enumerate([*by_place, *sorted(used.difference(by_place))])}
    total = contracted([LetteredTable(t, [number[v] for v in letters]) for t, letters in own], len(by_place))
    times = prod([sizes[variable] for variable in others if variable not in used])
    return np.asarray(total).reshape([sizes[v] if v in used else 1 for v in kept]) * float(times)


def _diagonal(values: Floats, letters: Sequence[int]) -> LetteredTable:
    """A table by each of its letters once: where two are one, both have its value."""
    distinct = list(dict.fromkeys(letters))
    if len(distinct) == len(letters):
        return LetteredTable(values, list(letters))
    numbers = [distinct.index(letter) for letter in letters]
    operands: list[Any] = [values, numbers, list(range(len(distinct)))]
    return LetteredTable(np.einsum(*operands), distinct)


class JoinedPair(NamedTuple):
    """Two tables of a list, or the one that is left, and what they become, which comes last in the list then."""

    numbers: tuple[int, ...]
    alone: list[tuple[int, ...]]
    """Per table the dims to sum up before, which nothing else has."""
    dims: list[list[int]]
    """Per table the letters of its other dims."""
    kept: list[int]
    """Those of the table that they become."""


@lru_cache(1024)
def _pairs_to_join(
    factors: tuple[tuple[int, ...], ...], lengths: tuple[tuple[int, int], ...], levels: int
) -> list[JoinedPair]:
    """The order in which tables are multiplied and summed up to one by level: always the two that become smallest.

    Args:
        factors: per table the letters of its dims.
        lengths: per letter.
        levels: the number of letters that stay, the first.

    By hand, tables by (0, 5) and by (1, 5) of what two levels have become one by (0, 1).

    >>> [(pair.numbers, pair.kept) for pair in _pairs_to_join(((0, 5), (1, 5)), ((0, 3), (1, 4), (5, 2)), 2)]
    [((0, 1), [0, 1])]
    """
    sizes, left, order = dict(lengths), list(factors), list[JoinedPair]()
    while len(left) > 1 or left[0] != tuple(range(levels)):
        joins = []
        for numbers in combinations(range(len(left)), min(2, len(left))):
            others = {letter for number, dims in enumerate(left) if number not in numbers for letter in dims}
            own = {letter for number in numbers for letter in left[number]}
            kept = sorted(letter for letter in own if letter < levels or letter in others)
            joins.append((prod(sizes[letter] for letter in kept), prod(sizes[letter] for letter in own), numbers, kept))
        *_, numbers, kept = min(joins)
        pair = [left[number] for number in numbers]
        shared = {*kept, *(letter for letter in pair[0] if letter in pair[-1] and len(pair) > 1)}
        alone = [tuple([n for n, letter in enumerate(dims) if letter not in shared]) for dims in pair]
        order.append(JoinedPair(numbers, alone, [[i for i in dims if i in shared] for dims in pair], kept))
        left = [*(dims for number, dims in enumerate(left) if number not in numbers), tuple(kept)]
    return order
