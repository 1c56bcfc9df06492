"""The pattern of a reshape: the factors that two shapes share.

Dims are cut from the major end into what both sides have in common; where two dims have no common factor that stops,
and it goes on from the minor end.
What is left of a dim in between is a label of its own, of which every device needs all.

By hand, (4, 6) to (6, 4): 2 is common; then 2 against 3 stops; from the minor end 2 is common, and 3 against 2 stops.

>>> pattern, sizes, replicated = reshape_pattern((4, 6), (6, 4))
>>> print(pattern, sizes, *replicated)
(f0 f2) (f3 f1) -> (f0 f4) (f5 f1) {'f0': 2, 'f1': 2, 'f2': 2, 'f3': 3, 'f4': 3, 'f5': 2} f2 f3 f4 f5
>>> print(*reshape_pattern((8, 1, 6), (4, 12)))
(f0 f1) 1 f2 -> f0 (f1 f2) {'f0': 4, 'f1': 2, 'f2': 6} ()
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd, prod

from reshard.errors import ReshardError
from reshard.operations.pattern import Pattern, Shape


@lru_cache(1024)
def reshape_pattern(before: Shape, after: Shape) -> tuple[Pattern, dict[str, int], tuple[str, ...]]:
    """The pattern, the sizes of its labels, and the labels that are not shared.

    Raises:
        ReshardError: `bad-shape` where the shapes hold different numbers of elements.
    """
    if min(after, default=0) < 0 or prod(before) != prod(after):
        raise ReshardError("bad-shape", f"a reshape from {before} to {after} must keep the number of elements")
    sizes: dict[str, int] = {}
    unshared: list[str] = []
    heads: list[list[list[str]]] = [[[] for _ in shape] for shape in (before, after)]
    tails: list[list[list[str]]] = [[[] for _ in shape] for shape in (before, after)]
    uncut = [list(before), list(after)]

    def label(size: int) -> str:
        name = f"f{len(sizes)}"
        sizes[name] = size
        return name

    for block in _blocks(before, after):
        for ends, step in ((heads, 0), (tails, -1)):
            open_dims = [list(dims) for dims in block]
            while all(open_dims) and 0 not in before:
                pair = [dims[step] for dims in open_dims]
                rests = [uncut[side][dim] for side, dim in enumerate(pair)]
                shared = gcd(*rests)
                if shared > 1:
                    name = label(shared)
                    for side, dim in enumerate(pair):
                        ends[side][dim].append(name)
                        uncut[side][dim] //= shared
                elif min(rests) > 1:
                    break
                for side, dim in enumerate(pair):
                    if uncut[side][dim] == 1:
                        open_dims[side].remove(dim)
        for side, dims in enumerate(block):
            for dim in dims:
                if uncut[side][dim] != 1:
                    unshared.append(label(uncut[side][dim]))
                    heads[side][dim].append(unshared[-1])
    terms = [
        tuple((*head, *reversed(tail)) for head, tail in zip(heads[side], tails[side], strict=True)) for side in (0, 1)
    ]
    return Pattern((terms[0],), terms[1]), sizes, tuple(unshared)


def _blocks(before: Shape, after: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """The shortest runs of dims, by their numbers, with as many elements on both sides; those of size 1 are in none."""
    dims = [[dim for dim, size in enumerate(shape) if size != 1] for shape in (before, after)]
    if 0 in before:
        yield dims[0], dims[1]
        return
    while dims[0]:
        runs = ([dims[0].pop(0)], [dims[1].pop(0)])
        products = [before[runs[0][0]], after[runs[1][0]]]
        while products[0] != products[1]:
            side = int(products[0] > products[1])
            runs[side].append(dims[side].pop(0))
            products[side] *= (before, after)[side][runs[side][-1]]
        yield runs
