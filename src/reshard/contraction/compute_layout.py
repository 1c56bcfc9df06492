"""Where a contraction is computed: which axes cut which label.

A compute layout gives axes to labels, major to minor; every operand and the result are cut as their labels are.
What is summed over a label that is cut comes out unreduced along that label's axes.
An axis along which one operand is unreduced may stay so: the operation is linear in each operand, so the result is
unreduced along it too, provided that nothing else uses the axis.

By hand, `ij,jk->ik` with i on X and j on Y: the operands lie as [I_X, J_Y] and [J_Y, K], the result as [I_X, K] {U_Y}.

>>> from reshard.axis import Axis
>>> from reshard.mesh import Mesh
>>> axes = ((Axis("X"),), (Axis("Y"),), ())
>>> layout = ComputeLayout(Mesh.of(X=2, Y=2), Pattern.of("ij,jk->ik"), axes, ((), ()))
>>> print(*[sharding.text() for sharding in layout.shardings])
[{"X"}, {"Y"}] [{"Y"}, {}] [{"X"}, {}], unreduced={"Y"}
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from reshard.axis import Axes, merged, shards, sorted_and_merged
from reshard.dim_sharding import DimSharding
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.operations.pattern import Pattern
from reshard.sharding import Sharding


@dataclass(frozen=True)
class ComputeLayout:
    """Axes of a mesh, given to the labels of a pattern."""

    mesh: Mesh
    pattern: Pattern
    axes: tuple[Axes, ...]
    """Per label of the pattern, in its order, the axes that cut it, major to minor."""
    unreduced: tuple[Axes, ...]
    """Per operand, the axes along which it stays unreduced."""
    reduction: str = "sum"
    """How what is unreduced in the result combines."""
    uneven: str = "ceil"
    """How a label is cut that its shards do not divide."""

    def axes_of(self, label: str) -> Axes:
        """The axes that cut a label, major to minor."""
        return self.axes[self.pattern.labels.index(label)]

    def shards(self, label: str) -> int:
        """The number of parts that a label is cut into."""
        return shards(self.axes_of(label), self.mesh.sizes)

    @cached_property
    def shardings(self) -> tuple[Sharding, ...]:
        """How the operands lie, and last the result as it comes out.

        Raises:
            ReshardError: the code of the rule of `Sharding` that is broken.
        """
        by_label = dict(zip(self.pattern.labels, self.axes, strict=True))
        summed = [axis for label, axes in by_label.items() if label in self.pattern.reduced for axis in axes]
        unreduced = (*self.unreduced, tuple(dict.fromkeys((*summed, *itertools.chain(*self.unreduced)))))
        return tuple(
            closed_sharding(
                self.mesh,
                tuple(
                    by_label[group[0]]
                    if len(group) == 1
                    else tuple(axis for label in group for axis in by_label[label])
                    for group in term
                ),
                axes,
                self.reduction if axes else "sum",
                self.uneven,
            )
            for term, axes in zip(self.pattern.terms, unreduced, strict=True)
        )

    def largest_parts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Per label, how many of its indices a device has at most."""
        return {label: -(-size // self.shards(label)) for label, size in sizes.items()}

    def interval(self, label: str, size: int, device: int) -> tuple[int, int]:
        """The indices of a label that a device has."""
        dims = (DimSharding(self.axes_of(label)),)
        along = Sharding.of(self.mesh, *dims, uneven=self.uneven)
        return along.box(device, (size,))[0]

    def check(self, sizes: Mapping[str, int]) -> None:
        """Refuse a layout under which some tensor's tiles are not the products of the parts of their labels.

        Raises:
            ReshardError: `not-divisible` where a group is cut otherwise than from its major end, evenly;
                `bad-argument` where a label that stands twice in an operand is cut.
        """
        for label in self.pattern.repeated:
            if self.axes_of(label):
                raise ReshardError(
                    "bad-argument", f"label {label} stands twice in one operand of {self.pattern}, so it cannot be cut"
                )
        for group in (group for term in self.pattern.terms for group in term):
            if not is_cut_evenly([(sizes[label], self.shards(label)) for label in group]):
                text = " ".join(group)
                raise ReshardError("not-divisible", f"the parts of ({text}) in {self.pattern} do not lie side by side")


@lru_cache(2**14)
def closed_sharding(
    mesh: Mesh, dims: tuple[Axes, ...], unreduced: Axes = (), reduction: str = "sum", uneven: str = "ceil"
) -> Sharding:
    """A sharding without open dims from its parts; of many layouts some tensor lies alike."""
    if mesh.is_maximal:
        return Sharding(mesh, ())
    cut = tuple(DimSharding(merged(axes, mesh.sizes)) for axes in dims)
    return Sharding(mesh, cut, (), sorted_and_merged(unreduced, mesh.sizes), reduction, uneven)


def is_cut_evenly(parts: Sequence[tuple[int, int]]) -> bool:
    """Whether a dim of several labels, each of a size cut into shards, is cut into the same blocks as a whole.

    A label alone is, however it is cut; among others a label must be cut evenly, those major to it to the end.

    >>> is_cut_evenly([(2, 2), (3, 3)]), is_cut_evenly([(4, 2), (3, 3)]), is_cut_evenly([(5, 2)])
    (True, False, True)
    """
    cut = [(size, count) for size, count in parts if (size, count) != (1, 1)]
    if len(cut) < 2:
        return True
    full = True
    for size, count in cut:
        if count > 1 and (not full or size % count):
            return False
        full = full and size == count
    return True
