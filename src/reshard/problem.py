"""What is to be moved: a tensor, from where it is to where it is wanted; and which reductions wait on the way.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=4)
>>> print(Reshard.of(Sharding.of(mesh, "y", None), Sharding.of(mesh, "x", "y"), (8, 8)))
[{"y"}, {}] -> [{"x"}, {"y"}]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from reshard.axis import Axis, difference, sorted_and_merged
from reshard.checks import checked_shape, expect
from reshard.dtypes import DType, dtype_named
from reshard.sharding import Sharding, with_mesh
from reshard.tiling import Tiling


@dataclass(frozen=True)
class Reshard:
    """What is to be moved: a tensor, from where it is to where it is wanted.

    Rules, in the order checked:
        bad-argument: every field is of its kind
        bad-shape, too-large, rank-mismatch: both shardings fit the shape
        reduction-dtype: the reductions are defined for the dtype
    """

    source: Sharding
    target: Sharding
    shape: tuple[int, ...]
    """Of the whole tensor."""
    dtype: DType

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", checked_shape(self.shape))
        expect(self.dtype, DType, "the dtype of a reshard")
        expect(self.source, Sharding, "the source of a reshard")
        expect(self.target, Sharding, "the target of a reshard")
        for tiling, sharding in zip(self.tilings, (self.source, self.target), strict=True):
            if tiling.layout.unreduced:
                self.dtype.check_reduction(sharding.reduction)
            if sharding.is_summed:
                self.dtype.check_reduction("sum")

    @classmethod
    def of(cls, source: Sharding, target: Sharding, shape: Sequence[int], dtype: Any = "float32") -> Reshard:
        """A reshard from loose input: an end on the empty mesh is replicated on the mesh of the other.

        Raises:
            ReshardError: `bad-argument`, `unknown-dtype`, and with the code of the first rule that is broken.

        >>> from reshard.mesh import Mesh
        >>> mesh = Mesh.of(x=2, y=4)
        >>> print(Reshard.of(Sharding.of(mesh, "y", None), Sharding.of(mesh, "x", "y"), (8, 8), "f32"))
        [{"y"}, {}] -> [{"x"}, {"y"}]
        """
        for sharding in (source, target):
            expect(sharding, Sharding, "an end of a plan")
        source = with_mesh(source, target.mesh)
        return cls(source, with_mesh(target, source.mesh), checked_shape(shape), dtype_named(dtype))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @cached_property
    def _hash(self) -> int:
        return hash((self.source, self.target, self.shape, self.dtype))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def tilings(self) -> tuple[Tiling, Tiling]:
        """The tensor as it lies in the source, and in the target."""
        source, target = self.source, self.target
        return (
            Tiling(source.mesh, source.layout_for(self.shape), self.shape),
            Tiling(target.mesh, target.layout_for(self.shape), self.shape),
        )

    @property
    def is_one_placement(self) -> bool:
        """Whether both ends have the same digits on the same devices, so that nothing needs to be done."""
        before, after = self.tilings
        return before.layout == after.layout and before.mesh.device_ids == after.mesh.device_ids

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self} of {self.dtype.name}{list(self.shape)} on {self.source.mesh}>"

    def __str__(self) -> str:
        return f"{self.source.text()} -> {self.target.text()}"


def stays_unreduced(before: Sharding, after: Sharding) -> tuple[Axis, ...]:
    """The unreduced axes of `after` along which the values are unreduced already, by the same reduction.

    Where the devices stand in another order there is no telling which they are: then all, if there are as many
    classes before as after, or none.

    >>> from reshard.mesh import Mesh
    >>> mesh = Mesh.of(x=2, y=4)
    >>> before, after = Sharding.of(mesh, unreduced=("x", "y:(1)2")), Sharding.of(mesh, unreduced="y")
    >>> print(*stays_unreduced(before, after), *becomes_unreduced(before, after))
    "y":(1)2 "y":(2)2
    """
    if not before.unreduced or not after.unreduced or before.reduction != after.reduction:
        return ()
    if not before.mesh.same_order_as(after.mesh):
        return after.unreduced if before.layout.unreduced.size == after.layout.unreduced.size else ()
    mesh = after.mesh
    parts = [part for digit in before.layout.unreduced for part in mesh.parts_within(after.unreduced, digit)]
    return sorted_and_merged(parts, mesh.sizes)


def becomes_unreduced(before: Sharding, after: Sharding) -> tuple[Axis, ...]:
    """The unreduced axes of `after`, of more than one device, along which the values are not unreduced yet."""
    if not after.unreduced:
        return ()
    sizes = after.mesh.sizes
    axes = difference(after.unreduced, stays_unreduced(before, after), sizes)
    return tuple(axis for axis in axes if axis.size_in(sizes[axis.name]) > 1)
