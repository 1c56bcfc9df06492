"""What an operation says about shardings: a role for every label of its pattern, and for which reductions it waits.

>>> rule = rule_of(Pattern.of("(a b) c -> a (b c)"), ((6, 5), (2, 15)))
>>> rule.terms, rule.sizes
((((0, 1), (2,)), ((0,), (1, 2))), (2, 3, 5))
>>> [str(role) for role in rule_of(Pattern.of("ij,jk->ik"), ((4, 6), (6, 2), (4, 2))).roles]
['passed', 'reduced', 'passed']
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from math import prod

from reshard.operations.kinds import Waiting
from reshard.operations.operation import Operation
from reshard.operations.pattern import Pattern


class LabelRole(StrEnum):
    """What a label is to a sharding."""

    PASSED = "passed"
    """It is in the result too: sharded on both sides alike."""
    REDUCED = "reduced"
    """It is in operands only: where it is sharded, the result is unreduced."""
    REPLICATED = "replicated"
    """Every device needs all of it."""
    SHIFTED = "shifted"
    """An element of the result is another place of an operand, nobody knows which, so every device needs all of it."""
    SELECTED = "selected"
    """Indices name some of its elements: where it is sharded, those that are elsewhere count as zeros, and the result
    is unreduced."""


COMBINED = (LabelRole.REDUCED, LabelRole.SELECTED)
"""Roles of labels along which the result comes out unreduced."""
WHOLE = (LabelRole.REPLICATED, LabelRole.SHIFTED)
"""Roles of labels of which a device needs all."""


@dataclass(frozen=True)
class Rule:
    """A pattern with numbers for labels."""

    terms: tuple[tuple[tuple[int, ...], ...], ...]
    """Per operand, and last for the result, the labels of every dim, major to minor."""
    sizes: tuple[int, ...]
    """Of the labels."""
    roles: tuple[LabelRole, ...]
    """Of the labels."""
    shapes: tuple[tuple[int, ...], ...]
    """Of operands and result."""

    @cached_property
    def elements(self) -> tuple[int, ...]:
        """The size of every tensor."""
        return tuple(map(prod, self.shapes))

    @cached_property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """Per label, the tensors that have it."""
        has = [{label for group in term for label in group} for term in self.terms]
        return tuple(tuple(t for t, labels in enumerate(has) if n in labels) for n in range(len(self.sizes)))

    @cached_property
    def needs_whole(self) -> bool:
        """Whether a device needs all of some label."""
        return any(role in WHOLE for role in self.roles)

    @cached_property
    def _hash(self) -> int:
        return hash((self.terms, self.sizes, self.roles, self.shapes))

    def __hash__(self) -> int:
        return self._hash


@lru_cache(4096)
def rule_of(
    pattern: Pattern,
    shapes: tuple[tuple[int, ...], ...],
    roles: tuple[tuple[str, LabelRole], ...] = (),
    *,
    reduces: bool = True,
    known: tuple[tuple[str, int], ...] = (),
    reached: tuple[str, ...] = (),
) -> Rule:
    """The rule of a pattern.

    Args:
        pattern: of the operation.
        shapes: of the operands and the result.
        roles: of labels of which the pattern does not tell it; where one has two, the last counts.
        reduces: whether devices may combine parts of the labels that the result lacks.
        known: the sizes of labels that the shapes do not tell.
        reached: shifted labels of which a device may have a part.
    """
    shifted = [*reached, *(label for label, role in roles if role is LabelRole.SHIFTED)]
    sizes = pattern.solve_sizes(shapes, dict(known), shifted)
    numbers = {label: number for number, label in enumerate(pattern.labels)}
    label_roles = dict.fromkeys(pattern.labels, LabelRole.PASSED)
    for label in pattern.labels:
        if label in pattern.reduced:
            label_roles[label] = LabelRole.REDUCED if reduces else LabelRole.REPLICATED
    label_roles |= dict.fromkeys(pattern.repeated, LabelRole.REPLICATED) | dict(roles)
    terms = tuple(tuple(tuple(numbers[label] for label in group) for group in term) for term in pattern.terms)
    return Rule(terms, tuple(sizes.values()), tuple(label_roles.values()), shapes)


@lru_cache(1024)
def _identity(ndim: int, tensors: int, shape: tuple[int, ...]) -> Rule:
    term = tuple((dim,) for dim in range(ndim))
    return Rule((term,) * tensors, shape, (LabelRole.PASSED,) * ndim, (shape,) * tensors)


def operation_rule(operation: Operation) -> Rule:
    """The rule of an operation; without a pattern, that of a copy."""
    if operation.pattern is None:
        shape = operation.result.shape
        return _identity(len(shape), len(operation.values), shape)
    reached = tuple(dict.fromkeys(each.label for each in operation.reaches))
    return rule_of(
        operation.pattern,
        tuple(value.shape for value in operation.values),
        (
            *((label, LabelRole.SHIFTED) for label in operation.shifted if label not in reached),
            *((label, LabelRole.REPLICATED) for label in operation.replicated),
            *((label, LabelRole.SELECTED) for label in operation.selected),
        ),
        reduces=_reduction(operation) is not None,
        known=operation.sizes,
        reached=reached,
    )


def _reduction(operation: Operation) -> str | None:
    return operation.reduction or (None if operation.kind is None else operation.kind.reduction)


def reduction_of(operation: Operation) -> str:
    """How unreduced results of an operation combine; truth values are summed by their maximum."""
    reduction = _reduction(operation) or "sum"
    return "max" if reduction == "sum" and operation.result.dtype.kind == "b" else reduction


def waiting_operands(operation: Operation, reduction: str) -> tuple[tuple[int, ...], ...]:
    """The sets of operands that may be unreduced together, and then the result is.

    >>> from reshard.propagation.builder import Builder, NewValue
    >>> from reshard.mesh import Mesh
    >>> graph = Builder(Mesh.of(x=2))
    >>> a = graph.add("input", (), NewValue("a", (4, 4), "float32"))
    >>> product = graph.add("einsum", (a, a), NewValue(), pattern=Pattern.of("ij,jk->ik"))
    >>> waiting_operands(graph.operations[-1], "sum"), waiting_operands(graph.operations[-1], "max")
    (((0,), (1,)), ())
    """
    kind, operands = operation.kind, range(len(operation.operands))
    if kind is None or reduction not in kind.waiting_for or operation.attribute("value", 0):
        return ()
    if kind.waiting is Waiting.ALL:
        return (tuple(operands),)
    return tuple((operand,) for operand in operands) if kind.waiting is Waiting.ANY else ((0,),)
