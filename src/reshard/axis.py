"""References to a mesh axis, whole or in part, and their algebra.

An axis of size n is a factor of the mesh; a sub-axis is a factor of an axis.
The sub-axis `"y":(m)k` sees y as [m, k, n/(m*k)] and is the middle part, so it is the interval
[m, m*k) on the divisors of n, and a whole axis is [1, n).
Everything here is arithmetic on such intervals; only what must know n asks for it.

On an axis y of size 24, with its sub-axes as intervals:

    "y":(1)2  [1, 2)     "y":(2)4  [2, 8)     "y":(1)8  [1, 8)     "y":(8)3  [8, 24)

>>> whole, head, middle = Axis("y"), Axis("y", 1, 2), Axis("y", 2, 4)
>>> whole.contains(middle), head.overlaps(middle), head.can_merge(middle)
(True, False, True)
>>> print(head.merge(middle, 24), head.merge(middle, 8))
"y":(1)8 "y"
>>> Axis("y", 1, 2).can_coexist(Axis("y", 1, 3))    # no split of y has both
False
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

from reshard.checks import expect, shown
from reshard.digits import nest
from reshard.errors import ReshardError


@dataclass(frozen=True, slots=True)
class Axis:
    """A whole mesh axis, or the sub-axis of own size `size` below `pre_size`.

    Whether it fits its mesh is checked where it is used, in a sharding.
    """

    name: str
    """The axis of the mesh."""
    pre_size: int | None = None
    """The product of the sizes major to this part; None for the whole axis."""
    size: int | None = None
    """The size of this part; None for the whole axis."""

    def __post_init__(self) -> None:
        expect(self.name, str, "an axis name", "axis-name")
        if (self.pre_size is None) != (self.size is None):
            raise ReshardError("bad-argument", f"axis {quote(self.name)} has a pre-size without a size or the reverse")
        for number in (self.pre_size, self.size):
            if number is not None:
                expect(number, int, f"a size of a sub-axis of {quote(self.name)}")
        if self.pre_size is not None and self.pre_size < 1:
            raise ReshardError("sub-axis-pre-size", f"sub-axis {self} has a pre-size below 1")
        if self.size is not None and self.size < 1:
            raise ReshardError("sub-axis-size", f"sub-axis {self} has a size below 2")

    def __hash__(self) -> int:
        return hash(self.name)  # nearly all axes are whole, and hashed often

    def __str__(self) -> str:
        return quote(self.name) if self.size is None else f"{quote(self.name)}:({self.pre_size}){self.size}"

    @classmethod
    def of(cls, text: str | Axis) -> Axis:
        """An axis from its loose text: `y`, or `y:(2)4` for a sub-axis.

        >>> Axis.of("y:(2)4")
        Axis(name='y', pre_size=2, size=4)
        """
        if isinstance(text, Axis):
            return text
        if not isinstance(text, str):
            raise ReshardError("axis-name", f"an axis must be a name or an Axis, got: {shown(text)}")
        name, colon, part = text.rpartition(":")
        pre_size, bracket, size = part.removeprefix("(").partition(")")
        if colon and bracket and part.startswith("(") and is_number(pre_size) and is_number(size):
            return cls(name, int(pre_size), int(size))
        return cls(text)

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole axis."""
        return self.size is None

    @property
    def start(self) -> int:
        """The major end of the interval."""
        return 1 if self.pre_size is None else self.pre_size

    @property
    def stop(self) -> float:
        """The minor end of the interval; infinite for a whole axis, whose size only the mesh knows."""
        return inf if self.pre_size is None or self.size is None else self.pre_size * self.size

    def size_in(self, full_size: int) -> int:
        """The number of parts that this cuts into, on an axis of `full_size`."""
        return full_size if self.size is None else self.size

    def stop_in(self, full_size: int) -> int:
        """The minor end of the interval, on an axis of `full_size`."""
        return self.start * self.size_in(full_size)

    @classmethod
    def between(cls, name: str, start: int, stop: int, full_size: int) -> Axis:
        """The part [start, stop) of an axis of `full_size`, in its one spelling.

        >>> Axis.between("y", 1, 8, 8), Axis.between("y", 2, 8, 8)
        (Axis(name='y', pre_size=None, size=None), Axis(name='y', pre_size=2, size=4))
        """
        return cls(name) if (start, stop) == (1, full_size) else cls(name, start, stop // start)

    def contains(self, other: Axis) -> bool:
        """Whether `other` is a part of this, or this itself."""
        return self.name == other.name and self.start <= other.start and other.stop <= self.stop

    def is_prefix_of(self, other: Axis) -> bool:
        """Whether this is a major part of `other`, or `other` itself."""
        return other.contains(self) and self.start == other.start

    def overlaps(self, other: Axis) -> bool:
        """Whether the two share a factor of the axis."""
        return self.name == other.name and self.start < other.stop and other.start < self.stop

    def can_coexist(self, other: Axis) -> bool:
        """Whether one split of the axis has both as products of its parts."""
        if self.name != other.name or self.is_whole or other.is_whole:
            return True
        low, high = sorted((self.start, other.start))
        near, far = sorted((int(self.stop), int(other.stop)))
        return nest([low, high, near, far]) if near > high else high % near == 0

    def overlap(self, other: Axis, full_size: int) -> Axis | None:
        """The part that the two share; None where they share none or cannot coexist."""
        if not self.overlaps(other) or not self.can_coexist(other):
            return None
        start = max(self.start, other.start)
        return Axis.between(self.name, start, min(self.stop_in(full_size), other.stop_in(full_size)), full_size)

    def prefix_without_overlap(self, other: Axis, full_size: int) -> Axis | None:
        """The major part of this that `other` does not touch; None where there is none."""
        if not self.can_coexist(other):
            return None
        if not self.overlaps(other):
            return self
        return None if self.start >= other.start else Axis.between(self.name, self.start, other.start, full_size)

    def suffix_without_overlap(self, other: Axis, full_size: int) -> Axis | None:
        """The minor part of this that `other` does not touch; None where there is none."""
        if not self.can_coexist(other):
            return None
        if not self.overlaps(other):
            return self
        start, stop = other.stop_in(full_size), self.stop_in(full_size)
        return None if start >= stop else Axis.between(self.name, start, stop, full_size)

    def common_prefix(self, other: Axis) -> Axis | None:
        """Whichever of the two is a prefix of the other; None where neither is."""
        return self if self.is_prefix_of(other) else other if other.is_prefix_of(self) else None

    def can_merge(self, minor: Axis) -> bool:
        """Whether `minor` continues this sub-axis."""
        return self.name == minor.name and self.size is not None and minor.size is not None and self.stop == minor.start

    def merge(self, minor: Axis, full_size: int) -> Axis:
        """This and the sub-axis that continues it, as one.

        Raises:
            ReshardError: `bad-argument` where `minor` does not continue this.
        """
        if not self.can_merge(minor):
            raise ReshardError("bad-argument", f"{minor} does not continue {self}")
        return Axis.between(self.name, self.start, minor.stop_in(full_size), full_size)


Axes = tuple[Axis, ...]
"""A list of axes, major to minor."""


def is_number(text: str) -> bool:
    """Whether a text is a plain decimal number, of a length that stands for a size."""
    return text.isascii() and text.isdigit() and len(text) <= 40


def quote(name: str) -> str:
    r"""A name in double quotes, with MLIR's escapes: two hexadecimal digits for what does not print.

    >>> print(quote('a"b'))
    "a\22b"
    """
    bytes_ = name.encode("utf-8", "surrogatepass")
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else "\\\\" if b == 92 else f"\\{b:02X}" for b in bytes_)
    return f'"{"".join(plain)}"'


# Lists of axes, major to minor. `sizes` maps the names of a mesh, in its order, to their sizes.


def mesh_order(axes: Iterable[Axis], sizes: Mapping[str, int]) -> list[Axis]:
    """The axes sorted as a mesh lists them: by name in mesh order, then by pre-size, then the smaller first."""
    rank = {name: i for i, name in enumerate(sizes)}
    return sorted(axes, key=lambda axis: (rank[axis.name], axis.start, axis.stop))


def shards(axes: Iterable[Axis], sizes: Mapping[str, int]) -> int:
    """Into how many parts the axes cut."""
    return prod(axis.size_in(sizes[axis.name]) for axis in axes)


def merged(axes: Iterable[Axis], sizes: Mapping[str, int]) -> tuple[Axis, ...]:
    """The list with every run of sub-axes that continue one another merged: its one spelling.

    >>> print(*merged([Axis("y", 1, 2), Axis("y", 2, 2), Axis("x")], {"x": 2, "y": 8}))
    "y":(1)4 "x"
    """
    result: list[Axis] = []
    for axis in axes:
        if result and result[-1].can_merge(axis):
            axis = result.pop().merge(axis, sizes[axis.name])
        elif axis.size is not None and (axis.pre_size, axis.size) == (1, sizes.get(axis.name)):
            axis = Axis(axis.name)
        result.append(axis)
    return tuple(result)


def sorted_and_merged(axes: Iterable[Axis], sizes: Mapping[str, int]) -> tuple[Axis, ...]:
    """A set of axes in its one spelling."""
    return merged(mesh_order(axes, sizes), sizes)


def pieces(axis: Axis, cuts: Iterable[int], sizes: Mapping[str, int]) -> list[Axis]:
    """The axis split at those of `cuts` that lie inside it, major to minor.

    >>> print(*pieces(Axis("y"), {2, 8}, {"y": 24}))
    "y":(1)2 "y":(2)4 "y":(8)3
    """
    full_size = sizes[axis.name]
    stop = axis.stop_in(full_size)
    inner = sorted(cut for cut in set(cuts) if axis.start < cut < stop)
    ends = [axis.start, *inner, stop]
    return [Axis.between(axis.name, a, b, full_size) for a, b in itertools.pairwise(ends)]


def split_points(axes: Iterable[Axis], sizes: Mapping[str, int]) -> dict[str, set[int]]:
    """Per axis name, where the parts in `axes` begin and end."""
    points: dict[str, set[int]] = {}
    for axis in axes:
        points.setdefault(axis.name, set()).update((axis.start, axis.stop_in(sizes[axis.name])))
    return points


def refined_mesh(axes: Iterable[Axis], sizes: Mapping[str, int]) -> tuple[Axis, ...]:
    """The axes of the mesh, each cut wherever a part in `axes` begins or ends.

    >>> print(*refined_mesh([Axis("y", 2, 2)], {"x": 2, "y": 8}))
    "x" "y":(1)2 "y":(2)2 "y":(4)2

    Raises:
        ReshardError: `sub-axes-cannot-coexist` where no split holds them all.
    """
    points = split_points(axes, sizes)
    return tuple(
        piece
        for name in sizes
        for piece in pieces(Axis(name), _chain(name, points.get(name, set()), sizes[name]), sizes)
    )


def _chain(name: str, cuts: set[int], full_size: int) -> list[int]:
    chain = sorted(cuts | {1, full_size})
    if not nest(chain):
        raise ReshardError("sub-axes-cannot-coexist", f"no split of axis {quote(name)} has parts that end at {chain}")
    return chain


def aligned(
    axes: Sequence[Axis], others: Sequence[Axis], sizes: Mapping[str, int]
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Both lists split until any two axes that overlap are equal; pairs that cannot coexist stay as they are.

    >>> ours, theirs = aligned([Axis("y")], [Axis("y", 2, 2)], {"y": 8})
    >>> print(*ours, "|", *theirs)
    "y":(1)2 "y":(2)2 "y":(4)2 | "y":(2)2
    """

    def split(axis: Axis, against: Sequence[Axis]) -> list[Axis]:
        near = [other for other in against if axis.overlaps(other) and axis.can_coexist(other)]
        cuts = {point for other in near for point in (other.start, other.stop_in(sizes[axis.name]))}
        inside = [cut for cut in cuts if axis.start < cut < axis.stop_in(sizes[axis.name])]
        return pieces(axis, cuts, sizes) if nest([axis.start, *inside, axis.stop_in(sizes[axis.name])]) else [axis]

    before: tuple[tuple[Axis, ...], tuple[Axis, ...]] = ((), ())
    after = (tuple(axes), tuple(others))
    if all(axis.is_whole for axis in (*after[0], *after[1])):
        return after
    while after != before:
        before = after
        ours = tuple(piece for axis in after[0] for piece in split(axis, after[1]))
        after = (ours, tuple(piece for axis in after[1] for piece in split(axis, ours)))
    return after


def difference(axes: Iterable[Axis], removed: Sequence[Axis], sizes: Mapping[str, int]) -> tuple[Axis, ...]:
    """What is left of `axes`, in their order, when every part in `removed` is taken out.

    >>> print(*difference([Axis("y")], [Axis("y", 2, 2)], {"y": 8}))
    "y":(1)2 "y":(4)2
    """
    remaining = list(axes)
    for other in removed:
        if other.is_whole:
            remaining = [axis for axis in remaining if axis.name != other.name]
            continue
        clear: list[Axis | None] = []
        for axis in remaining:
            clear.append(axis.prefix_without_overlap(other, sizes[axis.name]))
            if axis.overlaps(other):
                clear.append(axis.suffix_without_overlap(other, sizes[axis.name]))
        remaining = [part for part in clear if part is not None]
    return tuple(remaining)


def is_prefix(axes: Sequence[Axis], others: Sequence[Axis]) -> bool:
    """Whether the list `axes` begins the list `others`; its last may be a prefix of an axis there.

    >>> is_prefix([Axis("x"), Axis("y", 1, 2)], [Axis("x"), Axis("y")])
    True
    """
    count = len(axes)
    if not count or axes is others:
        return True
    return (
        count <= len(others)
        and (count == 1 or all(a == b for a, b in zip(axes[:-1], others, strict=False)))
        and axes[-1].is_prefix_of(others[count - 1])
    )


def common_prefix(axes: Sequence[Axis], others: Sequence[Axis]) -> tuple[Axis, ...]:
    """The longest list that begins both; its last may be a part of an axis there.

    >>> print(*common_prefix([Axis("x"), Axis("y")], [Axis("x"), Axis("y", 1, 2), Axis("z")]))
    "x" "y":(1)2
    """
    shared: list[Axis] = []
    for a, b in zip(axes, others, strict=False):
        both = a.common_prefix(b)
        if both is not None:
            shared.append(both)
        if a != b:
            break
    return tuple(shared)


def truncated(axes: Iterable[Axis], others: Sequence[Axis], sizes: Mapping[str, int]) -> tuple[Axis, ...]:
    """The list cut at its first axis that overlaps one of `others`; that axis's clean prefix stays.

    >>> print(*truncated([Axis("x"), Axis("y")], [Axis("y", 4, 2)], {"x": 2, "y": 8}))
    "x" "y":(1)4
    """
    clear: list[Axis] = []
    for axis in axes:
        clean: Axis | None = axis
        for other in others:
            clean = None if clean is None else clean.prefix_without_overlap(other, sizes[axis.name])
        if clean is not None:
            clear.append(clean)
        if clean != axis:
            break
    return tuple(clear)
