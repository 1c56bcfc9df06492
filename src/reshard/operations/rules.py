"""What an operation's pattern says about shardings: which labels pass through, and what becomes of the others.

    passed      in the result too: sharded on both sides alike
    reduced     in operands only: where it is sharded, the result is partial
    replicated  of which every device needs all
    shifted     of which an element of the result is another place of an operand
    selected    rows of a table that indices name: where it is sharded, rows that are elsewhere count as zeros, and
                the result is partial

A partial operand may stay so where the operation is linear in it: a product in each factor, a sum in all its terms
together, and whatever only moves elements.

>>> rule = rule_of(Pattern.of("(a b) c -> a (b c)"), ((6, 5), (2, 15)))
>>> rule.terms, rule.sizes
((((0, 1), (2,)), ((0,), (1, 2))), (2, 3, 5))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from reshard.operations.operation import Operation, level_shapes
from reshard.operations.pattern import Pattern

REDUCTIONS = {"einsum": "sum", "sum": "sum", "max": "max", "min": "min", "product": "product"}
"""Operations that may drop labels, and how they combine what they drop."""
MOVES = ("transpose", "reshape", "broadcast", "slice", "pad", "concatenate", "reshard", "output", "copy")
"""Operations that move elements and change none, so that partial values under any reduction stay what they are."""
LINEAR = ("neg", "convert", "real", "imag", "pick")
"""Operations of one operand that a sum may wait for."""
SUMS = ("add", "sub", "concatenate")
"""Operations in which a sum may wait for all operands together."""


PARTS = ("element",)
"""Operations that give every turn of a loop its own part of the operand."""
COMBINED = ("reduced", "selected")
"""Roles of labels along which the result comes out partial."""


@dataclass(frozen=True)
class Rule:
    """A pattern with numbers for labels."""

    terms: tuple[tuple[tuple[int, ...], ...], ...]
    """Per operand, and last for the result, the labels of every dim, major to minor."""
    sizes: tuple[int, ...]
    """Of the labels."""
    roles: tuple[str, ...]
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
        return any(role in ("replicated", "shifted") for role in self.roles)

    @cached_property
    def multiplications(self) -> int:
        """How often something is computed: once for every combination of labels."""
        return prod(self.sizes)

    @cached_property
    def _hash(self) -> int:
        return hash((self.terms, self.sizes, self.roles, self.shapes))

    def __hash__(self) -> int:
        return self._hash


@lru_cache(4096)
def rule_of(
    pattern: Pattern,
    shapes: tuple[tuple[int, ...], ...],
    replicated: tuple[str, ...] = (),
    shifted: tuple[str, ...] = (),
    selected: tuple[str, ...] = (),
    *,
    reduces: bool = True,
    known: tuple[tuple[str, int], ...] = (),
) -> Rule:
    """The rule of a pattern.

    Args:
        pattern: of the operation.
        shapes: of the operands and the result.
        replicated: labels of which every device needs all.
        shifted: labels whose elements change their place.
        selected: labels whose elements an operand names.
        reduces: whether labels that the result lacks may be combined from parts.
        known: the sizes of labels that the shapes do not tell.
    """
    sizes = pattern.solve_sizes(level_shapes(pattern, shapes, shifted), dict(known))
    numbers = {label: number for number, label in enumerate(pattern.labels)}
    roles = []
    for label in pattern.labels:
        if label in selected:
            roles.append("selected")
        elif label in replicated or label in pattern.repeated:
            roles.append("replicated")
        elif label in shifted:
            roles.append("shifted")
        elif pattern.role(label) in ("contracted", "summed"):
            roles.append("reduced" if reduces else "replicated")
        else:
            roles.append("passed")
    terms = tuple(tuple(tuple(numbers[label] for label in group) for group in term) for term in pattern.terms)
    return Rule(terms, tuple(sizes.values()), tuple(roles), shapes)


@lru_cache(1024)
def _identity(ndim: int, tensors: int, shape: tuple[int, ...]) -> Rule:
    term = tuple((dim,) for dim in range(ndim))
    return Rule((term,) * tensors, shape, ("passed",) * ndim, (shape,) * tensors)


def operation_rule(operation: Operation) -> Rule:
    """The rule of an operation; without a pattern, that of a copy."""
    if operation.pattern is None:
        shape = operation.result.shape
        return _identity(len(shape), len(operation.values), shape)
    return rule_of(
        operation.pattern,
        tuple(value.shape for value in operation.values),
        operation.replicated,
        operation.shifted,
        operation.selected,
        reduces=operation.reduction is not None or operation.name in REDUCTIONS,
        known=operation.sizes,
    )


def reduction_of(operation: Operation) -> str:
    """How partial results of an operation combine."""
    return operation.reduction or REDUCTIONS.get(operation.name, "sum")


def waiting_operands(operation: Operation, reduction: str) -> tuple[tuple[int, ...], ...]:
    """The sets of operands that may be partial under a reduction, and then the result is.

    >>> from reshard.propagation.graph import Builder
    >>> from reshard.mesh import Mesh
    >>> graph = Builder(Mesh.of(x=2))
    >>> a = graph.add("input", (), "a", (4, 4), "float32")
    >>> product = graph.add("einsum", (a, a), "b", pattern=Pattern.of("ij,jk->ik"))
    >>> waiting_operands(graph.operations[-1], "sum"), waiting_operands(graph.operations[-1], "max")
    (((0,), (1,)), ())
    """
    name, count = operation.name, len(operation.operands)
    if name == "pad" and operation.attribute("value", 0):
        return ()
    if name == "concatenate" or (name in SUMS and reduction == "sum"):
        return (tuple(range(count)),)
    if count == 1 and (name in MOVES or REDUCTIONS.get(name) == reduction or (name in LINEAR and reduction == "sum")):
        return ((0,),)
    if name == "einsum" and reduction == "sum":
        return tuple((operand,) for operand in range(count))
    if name == "take" and reduction == "sum":
        return ((0,),)
    return ()
