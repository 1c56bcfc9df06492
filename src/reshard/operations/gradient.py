"""What flows back through an einsum: to each operand an einsum too, of the cotangent and the other operands.

An einsum is linear in each operand, so what flows back to one has its dims, and whatever the others and the result
have beside is summed over.
A label that stands twice in the operand takes the diagonal of it, so what flows back is on that diagonal alone: one
of the two is named apart, and an identity matrix over both makes them meet.

By hand, `ij,jk->ik`: to the first operand flows `ik,jk->ij`; to the operand of `ii->i` flows `i,ij->ij`.

>>> print(backward_of(Pattern.of("ij,jk->ik"), 0, {"i": 2, "j": 3, "k": 4}).pattern)
ik,jk->ij
>>> backward = backward_of(Pattern.of("ii->i"), 0, {"i": 2})
>>> print(backward.pattern, backward.identity_sizes, backward.sizes)
i, i i_1 -> i i_1 (2,) {'i': 2, 'i_1': 2}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count

from reshard.operations.pattern import Group, Pattern, Term


@dataclass(frozen=True, slots=True)
class Backward:
    """The einsum of a cotangent, then the other operands in their order, then identity matrices."""

    pattern: Pattern
    sizes: dict[str, int]
    """Of its labels."""
    identity_sizes: tuple[int, ...]
    """How many rows each identity matrix has."""


def backward_of(pattern: Pattern, operand: int, sizes: Mapping[str, int]) -> Backward:
    """What flows back to one operand of an einsum whose labels have these sizes."""
    sizes = dict(sizes)
    dims: list[Group] = []
    identities: list[Term] = []
    for group in pattern.operands[operand]:
        apart = group
        if group in dims and group:
            apart = (fresh_label(group[0], sizes),)
            sizes[apart[0]] = sizes[group[0]]
            identities.append((group, apart))
        dims.append(apart)
    others = [term for number, term in enumerate(pattern.operands) if number != operand]
    backward = Pattern((pattern.output, *others, *identities), tuple(dims))
    identity_sizes = tuple(sizes[group[0]] for group, _ in identities)
    return Backward(backward, {label: sizes[label] for label in backward.labels}, identity_sizes)


def fresh_label(stem: str, taken: Collection[str]) -> str:
    """A label that is not taken yet."""
    return next(label for number in count(1) if (label := f"{stem}_{number}") not in taken)
