"""Which of the four cases of a product of two sharded matrices each axis is.

    case 1   the axis is in nobody's way: it cuts a free or a batch label of one operand, or the same label of both
    case 2   it cuts a contracted dim of one operand only
    case 3   it cuts the same contracted dim of both
    case 4   it cuts dims of both that have nothing in common, so that a device's parts do not belong together

An axis along which an operand is unreduced is `partial`.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(X=2, Y=2)
>>> cases_of(Pattern.of("ij,jk->ik"), [Sharding.of(mesh, "Y", "X"), Sharding.of(mesh, "X", "Y")])
{'X': 'case 3', 'Y': 'case 4'}
"""

from __future__ import annotations

from collections.abc import Sequence

from reshard.axis import Axis
from reshard.operations.pattern import Pattern
from reshard.sharding import Sharding

PARTIAL = ""
"""Stands for a label where an operand is unreduced along an axis."""

TEXTS = {
    "case 1": "in nobody's way",
    "case 2": "one contracted dim is cut",
    "case 3": "both contracted dims are cut alike",
    "case 4": "both operands are cut by it, in dims that do not belong together",
    "partial": "an operand is unreduced",
}
"""Every case with what it means."""


def cases_of(pattern: Pattern, sources: Sequence[Sharding]) -> dict[str, str]:
    """Per axis that cuts an operand, or along which one is unreduced, its case; of several, the worst."""
    cases: dict[str, str] = {}
    names = dict.fromkeys(axis.name for source in sources for axis in source.axes() if axis not in source.replicated)
    for name in sorted(names, key=lambda name: [*sources[0].mesh.sizes, name].index(name)):
        used = [_labels(term, source, name) for term, source in zip(pattern.operands, sources, strict=True)]
        cases[name] = _case(pattern, [labels for labels in used if labels])
    return cases


def _labels(term: tuple[tuple[str, ...], ...], source: Sharding, name: str) -> set[str]:
    """The labels of the dims that an axis cuts."""

    def has(axes: Sequence[Axis]) -> bool:
        return any(axis.name == name for axis in axes)

    labels = {group[0] for group, dim in zip(term, source.dims, strict=True) if group and has(dim.axes)}
    return labels | ({PARTIAL} if has(source.unreduced) else set())


def _case(pattern: Pattern, used: Sequence[set[str]]) -> str:
    labels = set().union(*used)
    if PARTIAL in labels:
        return "partial"
    contracted = {label for label in labels if pattern.role(label) == "contracted"}
    if len(used) > 1 and (len(labels) > 1 or any(operand != labels for operand in used)):
        return "case 4"
    if not contracted:
        return "case 1"
    holders = [number for label in contracted for number in pattern.holders(label)]
    return "case 3" if len(used) >= len(set(holders)) else "case 2"
