"""In which order several operands may be contracted, two at a time.

A path is a list of pairs of places in the list of operands: the two leave the list, their product goes to its end.
Paths with few operations or small products are opt_einsum's; of three operands all three paths are tried.

>>> paths_of(Pattern.of("ij,jk,kl->il"), {"i": 2, "j": 8, "k": 8, "l": 2})[0]
((0, 1), (0, 1))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from reshard.operations.pattern import Pattern, Term

Path = tuple[tuple[int, int], ...]
ALL_ORDERS = (((0, 1), (0, 1)), ((0, 2), (0, 1)), ((1, 2), (0, 1)))
"""Every path of three operands."""
EXACT = 5
"""Up to how many operands opt_einsum looks for the very best path."""


def paths_of(pattern: Pattern, sizes: Mapping[str, int]) -> list[Path]:
    """Paths worth comparing, that of the fewest operations first."""
    return list(_paths(pattern, tuple(sizes[label] for label in pattern.labels)))


@lru_cache(256)
def _paths(pattern: Pattern, sizes: tuple[int, ...]) -> tuple[Path, ...]:
    count = len(pattern.operands)
    if count < 3:
        return (((0, 1),) * (count - 1),)
    # loads with the first einsum of three operands, not with the package
    from opt_einsum import paths  # type: ignore[import-untyped]  # noqa: PLC0415

    *operands, output = map(frozenset, pattern.ungrouped.term_labels)
    sizes_of = {label: max(size, 1) for label, size in zip(pattern.labels, sizes, strict=True)}
    finders = (paths.optimal if count <= EXACT else paths.auto, paths.greedy)
    paths = [finder(list(operands), output, sizes_of, None) for finder in finders]
    pairs = [tuple((min(pair), max(pair)) for pair in path if len(pair) == 2) for path in paths]
    complete = [path for path in pairs if len(path) == count - 1]
    return tuple(dict.fromkeys([*complete, *(ALL_ORDERS if count == 3 else ())]))


def steps_along(pattern: Pattern, path: Path) -> list[tuple[tuple[int, int], Pattern]]:
    """Per pair of a path how the two are contracted."""
    steps, terms = [], list(pattern.operands)
    for pair in path:
        step = pair_pattern(terms, pair, pattern.output)
        steps.append((pair, step))
        terms = [*(term for place, term in enumerate(terms) if place not in pair), step.output]
    return steps


def pair_pattern(terms: Sequence[Term], pair: tuple[int, int], output: Term) -> Pattern:
    """The contraction of two of several tensors: what neither the others nor the result have is summed.

    >>> from reshard.operations.pattern import Pattern
    >>> pattern = Pattern.of("ij,jk,kl->il")
    >>> str(pair_pattern(pattern.operands, (0, 1), pattern.output))
    'ij,jk->ik'
    """
    chosen = [terms[place] for place in pair]
    if len(terms) == 2:
        return Pattern(tuple(chosen), output)
    remaining = [term for place, term in enumerate(terms) if place not in pair]
    needed = {label for term in [*remaining, output] for group in term for label in group}
    labels = dict.fromkeys(label for term in chosen for group in term for label in group if label in needed)
    return Pattern(tuple(chosen), tuple((label,) for label in labels))
