"""Einsums of three operands and more as products of two at a time, in every order that is worth comparing.

A product of two is an operation like any other: it is kept where that is best, its sums wait, and what it is made of is
shared.
So a program is placed with its long einsums as they stand, which `settling` looks at by themselves, and with them
apart; the cheapest counts, and where that was every order, none costs less than the least bound of all.
Else no bound is told: another order might cost less.

By hand, a, b and c in a row: the first two first, or the outer ones, or the last two.

>>> from reshard.mesh import Mesh
>>> from reshard.propagation.program import Program
>>> program = Program(Mesh.of(x=2))
>>> a, b, c = (program.input(name, (4, 4)) for name in "abc")
>>> d = program.op("ij,jk,kl->il", a, b, c, result="d")
>>> for other in in_pairs(program).programs:
...     print([f"{each.result.name} = {each.pattern}" for each in other.operations if each.operands])
['d.1 = ij,jk->ik', 'd = kl,ik->il']
['d.1 = ij,kl->ijkl', 'd = jk,ijkl->il']
['d.1 = jk,kl->jl', 'd = ij,jl->il']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from itertools import count, product
from math import prod
from typing import NamedTuple

from reshard.contraction.paths import Path, paths_of, steps_along
from reshard.operations.operation import Operation, Value
from reshard.operations.pattern import Pattern
from reshard.propagation.builder import Builder

EVERY = 3
"""Of how many operands `paths_of` has every order."""
MOST = 9
"""In how many orders a program is placed, at most: all of two einsums of three operands."""


class Orders(NamedTuple):
    """A program with its long einsums two operands at a time."""

    programs: list[Builder]
    """In each order, that of the fewest operations first; none where there is nothing to be taken apart."""
    are_all: bool
    """Whether there are no others."""
    is_alone: bool = False
    """Whether the program does nothing else, so that it is to go as an einsum does."""


def long_einsums(program: Builder) -> list[Operation]:
    """Those of three operands and more, of which there is an order to choose."""
    return [operation for operation in program.operations if operation.name == "einsum" and len(operation.operands) > 2]


def in_pairs(program: Builder) -> Orders:
    """A program in the orders that are worth comparing: of too many, that of the fewest operations."""
    long = long_einsums(program)
    paths = {operation.result.number: _paths(operation) for operation in long if _goes_apart(operation)}
    if not paths:
        return Orders([], are_all=not long)
    are_few = prod(map(len, paths.values())) <= MOST
    chosen: Iterable[tuple[Path, ...]] = product(*paths.values()) if are_few else [tuple(p[0] for p in paths.values())]
    are_all = are_few and len(paths) == len(long) and all(len(each.operands) == EVERY for each in long)
    programs = [_apart(program, dict(zip(paths, each, strict=True))) for each in chosen]
    computed = [each for each in program.operations if each.operands and each.name not in ("reshard", "output")]
    return Orders(programs, are_all, is_alone=len(computed) == 1)


def _goes_apart(operation: Operation) -> bool:
    """Whether an einsum may be done two operands at a time."""
    with_roles = operation.replicated or operation.shifted or operation.selected
    return not with_roles and operation.pattern is not None and not operation.pattern.joined


def _paths(operation: Operation) -> list[Path]:
    return paths_of(_pattern(operation), _sizes(operation))


def _pattern(operation: Operation) -> Pattern:
    assert operation.pattern is not None
    return operation.pattern


def _sizes(operation: Operation) -> dict[str, int]:
    return _pattern(operation).solve_sizes([value.shape for value in operation.values], dict(operation.sizes))


def _apart(program: Builder, paths: Mapping[int, Path]) -> Builder:
    """A program in which some einsums, by their numbers, are products of two along a path each."""
    apart, names = copy(program), {value.name for value in program.values}
    operations: list[Operation] = []
    values: dict[Value, Value] = {}
    for operation in program.operations:
        number, result, live = operation.result.number, operation.result, [values[each] for each in operation.operands]
        for pair, each in _products(operation, paths[number]) if number in paths else [(None, operation)]:
            operands = live if pair is None else [live[place] for place in pair]
            is_last = len(operands) == len(live)
            name = result.name if is_last else _fresh(result.name, names)
            made = replace(each.result, name=name, number=len(operations))
            operations.append(replace(each, operands=tuple(operands), result=made))
            live = [*(value for place, value in enumerate(live) if place not in (pair or ())), made]
        values[result] = made
    apart.put(operations, values)
    return apart


def _products(operation: Operation, path: Path) -> Iterator[tuple[tuple[int, int], Operation]]:
    """Per pair of a path the product of the two, with the shape of its result."""
    sizes = _sizes(operation)
    for pair, pattern in steps_along(_pattern(operation), path):
        shape = pattern.shape_of(pattern.output, sizes)
        known = tuple((label, size) for label, size in operation.sizes if label in pattern.labels)
        yield pair, replace(operation, pattern=pattern, sizes=known, result=replace(operation.result, shape=shape))


def _fresh(stem: str, names: set[str]) -> str:
    name = next(name for number in count(1) if (name := f"{stem}.{number}") not in names)
    names.add(name)
    return name
