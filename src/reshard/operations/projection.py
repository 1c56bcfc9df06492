"""From the axes of a dim to the axes of its labels, and back.

The axes of a dim go to its labels major to minor.
Each label but the last takes as much as divides it, an axis that is larger than what is left of the label is split;
the last takes all the rest, so that only there a size may be one that its shards do not divide.
Where an axis and what is left of a label have no common factor, the walk is stuck: the rest of the axes belongs to
no label, and the labels after it can take none.

By hand, 8 = (a b) with a = 2, b = 4 on x = 4: a takes "x":(1)2, b takes "x":(2)2.

>>> (a, b), rest = labels_of((0, 1), (Axis("x"),), (2, 4), {"x": 4})
>>> print(*a, *b, rest)
"x":(1)2 "x":(2)2 ()
>>> print(*axes_of((0, 1), {0: a, 1: b}, (2, 4), {"x": 4}))
"x"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import NamedTuple

from reshard.axis import Axes, Axis, common_prefix, is_prefix, merged


class Projected(NamedTuple):
    """The axes of one dim, by label."""

    lists: tuple[Axes, ...]
    """Per label of the dim."""
    rest: Axes = ()
    """Axes that are no label's; where there are some, the dim can take no more."""


def labels_of(group: Sequence[int], axes: Axes, label_sizes: Sequence[int], sizes: Mapping[str, int]) -> Projected:
    """The axes of a dim, by its labels.

    Args:
        group: the labels, major to minor.
        axes: of the dim.
        label_sizes: the size of every label.
        sizes: those of the mesh.
    """
    if len(group) == 1:
        return Projected((axes,))
    if not group:
        return Projected((), axes)
    rest = list(axes)
    lists: list[Axes] = []
    for label in group[:-1]:
        uncut = label_sizes[label]
        label_axes: list[Axis] = []
        while rest and uncut > 1:
            axis, full_size = rest[0], sizes[rest[0].name]
            size = axis.size_in(full_size)
            shared = gcd(size, uncut)
            if shared == 1:
                none: list[Axes] = [()] * (len(group) - len(lists) - 1)
                return Projected((*lists, tuple(label_axes), *none), tuple(rest))
            cut = axis.start * shared
            label_axes.append(Axis.between(axis.name, axis.start, cut, full_size))
            rest[:1] = [] if shared == size else [Axis.between(axis.name, cut, axis.stop_in(full_size), full_size)]
            uncut //= shared
        lists.append(tuple(label_axes))
    return Projected((*lists, tuple(rest)))


def axes_of(
    group: Sequence[int], lists: Mapping[int, Axes], label_sizes: Sequence[int], sizes: Mapping[str, int]
) -> Axes:
    """The axes of a dim from those of its labels: up to the first label that is not cut to single elements."""
    if len(group) == 1:
        return lists[group[0]]
    dim_axes: list[Axis] = []
    for place, label in enumerate(group):
        if place == len(group) - 1:
            dim_axes += lists[label]
            break
        uncut = label_sizes[label]
        for axis in lists[label]:
            size = axis.size_in(sizes[axis.name])
            shared = gcd(size, uncut)
            if shared > 1:
                dim_axes.append(Axis.between(axis.name, axis.start, axis.start * shared, sizes[axis.name]))
                uncut //= shared
            if shared != size:
                return merged(dim_axes, sizes)
        if uncut > 1:
            break
    return merged(dim_axes, sizes)


def longest_agreed(lists: Sequence[Axes]) -> tuple[Axes, bool]:
    """The longest of the lists as far as none of the others says otherwise, and whether one does.

    >>> x, y, z = Axis("x"), Axis("y"), Axis("z")
    >>> longest_agreed([(x,), (x, y), ()])[0] == (x, y), longest_agreed([(x, y), (x, z)])
    (True, ((Axis(name='x', pre_size=None, size=None),), True))
    """
    longest = max(lists, key=len)
    disagree = False
    for axes in lists:
        if axes is longest or not axes or axes == longest or is_prefix(axes, longest):
            continue
        if is_prefix(longest, axes):
            longest = longest if disagree else axes  # as many axes, the last a larger part
            continue
        longest, disagree = common_prefix(longest, axes), True
    return longest, disagree
