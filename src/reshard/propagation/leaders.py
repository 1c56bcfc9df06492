"""Which annotations are carried through a program before all others, where those of all at once contradict each other.

Dims over which the same index runs in some operation are of one *kind*: the batch, the features that go from layer to
layer, the heads.
What decides a layout is which kind an axis cuts where several claim it; so the annotated dims of one kind go ahead
together, first those of the kinds of which the program has most, and then the dims of single values.

By hand, of rows of x along a, and of weights whose rows are along a too: the rows of x go ahead, then what x and the
weights share, then each value alone.

>>> from reshard.mesh import Mesh
>>> from reshard.propagation.program import Program
>>> program = Program(Mesh.of(a=2))
>>> x = program.input("x", (64, 8), "float32", '[{"a"}, {}]')
>>> weights = program.input("weights", (8, 4), "float32", '[{"a"}, {}]')
>>> product = program.op("ij,jk->ik", x, weights)
>>> kinds = Kinds(program, [operation_rule(operation) for operation in program.operations], [1, 2, 3])
>>> kinds.largest
[0, 1, 3]
>>> [sorted(dims) for dims in leaders(program, kinds)]
[[(0, 0)], [(1, 0)]]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod

from reshard.operations.rules import LabelRole, Rule, operation_rule
from reshard.propagation.builder import Builder
from reshard.propagation.graph import Graph, first_alike

Ahead = frozenset[tuple[int, int]]
"""The numbers of annotated values, and dims of them, that go ahead."""


class Kinds:
    """The kinds of the dims of a program.

    Args:
        program: of the values.
        rules: per operation.
        weights: per value a number in which no name has a say, to decide between equals.
    """

    def __init__(self, program: Builder, rules: Sequence[Rule], weights: Sequence[int]) -> None:
        self.of = kinds_of_dims(program, rules)
        """Per value and dim."""
        self.weights = weights
        elements, first = Counter[int](), dict[int, tuple[int, int]]()
        for value, kinds in zip(program.values, self.of, strict=True):
            for dim, kind in enumerate(kinds):
                if kind is not None:
                    elements[kind] += prod(value.shape) if kind not in kinds[:dim] else 0
                    place = weights[value.number], dim
                    first[kind] = min(first.get(kind, place), place)
        self.largest = sorted(elements, key=lambda kind: (-elements[kind], first[kind]))
        """Those of whose values a program has most elements first."""


def leaders(program: Builder, kinds: Kinds) -> list[Ahead]:
    """What goes ahead, in turn, each once.

    Args:
        program: with its annotations.
        kinds: of its dims.
    """
    weight = kinds.weights
    annotated = sorted(program.annotations, key=lambda v: (-prod(v.shape) * v.dtype.itemsize, weight[v.number]))
    together: dict[int | None, set[tuple[int, int]]] = {kind: set() for kind in (*kinds.largest, None)}
    alone: list[Ahead] = []
    for value in annotated:
        cut = [dim for dim, own in enumerate(program.annotations[value].dims) if own.axes]
        alone.append(frozenset((value.number, dim) for dim in cut))
        for dim in cut:
            together[kinds.of[value.number][dim]].add((value.number, dim))
    del together[None]
    return [dims for dims in dict.fromkeys([*map(frozenset, together.values()), *alone]) if dims]


def kinds_of_dims(program: Graph, rules: Sequence[Rule] | None = None) -> list[tuple[int | None, ...]]:
    """Per value and dim its kind, the first of all dims that share an index; None where an operation needs it whole.

    Args:
        program: of the values.
        rules: per operation that which `operation_rule` gives, where they are known.

    By hand, of a product: two kinds of dims go in, and what both operands share does not come out.

    >>> from reshard.mesh import Mesh
    >>> from reshard.propagation.program import Program
    >>> program = Program(Mesh.of(x=2))
    >>> product = program.op("ij,jk->ik", program.input("a", (4, 4)), program.input("b", (4, 4)))
    >>> kinds_of_dims(program)
    [(0, 1), (1, 3), (0, 3)]
    """
    starts = list(accumulate((len(value.shape) for value in program.values), initial=0))
    alike: list[tuple[int, int]] = []
    whole: list[int] = []
    for operation, rule in zip(program.operations, rules or map(operation_rule, program.operations), strict=True):
        first: dict[int, int] = {}
        terms = rule.terms[: len(operation.values)] if operation.operands else ()
        for value, term in zip(operation.values, terms, strict=False):
            for dim, group in enumerate(term):
                if len(group) == 1:
                    place = starts[value.number] + dim
                    alike.append((first.setdefault(group[0], place), place))
                    whole += [place] if rule.roles[group[0]] is LabelRole.REPLICATED else []
    firsts = first_alike(starts[-1], alike)
    barred = {firsts[place] for place in whole}
    kinds = [None if first in barred else first for first in firsts]
    return [tuple(kinds[start:stop]) for start, stop in pairwise(starts)]
