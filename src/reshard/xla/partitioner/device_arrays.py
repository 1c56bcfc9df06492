"""The arrays of devices that XLA's partitioner compares, and what it does to them.

>>> from reshard.mesh import Mesh
>>> array = DeviceArray.of(Sharding.of(Mesh.of(x=2, y=2), "y", None))
>>> array.counts, array.copies, array.devices.tolist()
((2, 1), 2, [[[0, 2]], [[1, 3]]])
"""

from __future__ import annotations

import itertools
from math import prod
from typing import NamedTuple

import numpy as np

from reshard.digits import Digits, Positions
from reshard.sharding import Sharding


class DeviceArray(NamedTuple):
    """The array of devices of a sharding, copies in ascending order; on a replicated one nothing depends."""

    devices: Positions
    has_copies: bool
    """Whether the last axis is one of copies."""

    @classmethod
    def of(cls, sharding: Sharding) -> DeviceArray:
        """The array of a sharding."""
        layout = sharding.layout
        places = Digits([*itertools.chain(*layout.cutting), *layout.free]).offsets()
        counts = [layout.shards(dim) for dim in range(len(layout.dims))]
        return with_copies(sharding.mesh.device_array[places].reshape([*counts, layout.copies()]))

    @property
    def counts(self) -> tuple[int, ...]:
        """Per dim, the number of tiles."""
        return self.devices.shape[:-1] if self.has_copies else self.devices.shape

    @property
    def copies(self) -> int:
        """On how many devices each tile is."""
        return self.devices.shape[-1] if self.has_copies else 1

    @property
    def is_replicated(self) -> bool:
        """Whether the one tile is the whole tensor."""
        return prod(self.counts) == 1

    def equals(self, other: DeviceArray) -> bool:
        """Whether both are one sharding to XLA."""
        return (self.is_replicated and other.is_replicated) or (
            self.has_copies == other.has_copies and np.array_equal(self.devices, other.devices)
        )

    @property
    def counts_text(self) -> str:
        """The numbers of tiles as text: `2x4`."""
        return "x".join(map(str, self.counts))


def with_copies(devices: Positions, has_copies: bool = True) -> DeviceArray:
    """The array in its one spelling; the last axis is one of copies unless it has none."""
    if has_copies and devices.shape[-1] == 1:
        return DeviceArray(devices[..., 0], False)
    return DeviceArray(np.sort(devices, axis=-1) if has_copies else devices, has_copies)


def swaps(source: DeviceArray, target: DeviceArray) -> list[tuple[int, int]] | None:
    """Pairs of dims that swap their numbers of tiles, the larger first, until source has target's; None if none do."""
    goal = target.devices.shape
    if target.is_replicated or source.devices.ndim != len(goal) or prod(source.counts) != prod(target.counts):
        return None
    unmet: dict[int, list[int]] = {}
    """By number of tiles, the dims that have so many and should have others."""
    for dim, (count, wish) in enumerate(zip(source.devices.shape, goal, strict=True)):
        if count != wish:
            unmet.setdefault(count, []).append(dim)
    differing = [dim for dims in unmet.values() for dim in dims]
    if not differing or sorted(goal[dim] for dim in differing) != sorted(source.devices.shape[d] for d in differing):
        return None
    pairs = []
    while unmet:
        count = min(unmet)
        dim = unmet[count][-1]
        wish = goal[dim]
        if wish == count:
            unmet[count].pop()
        else:
            if count != 1 and wish % count:
                return None
            # A dim that has what this one should have; best one whose own wish the freed count, or the swap, fulfils.
            owners = unmet[wish]
            fitting = [owner for owner in owners if (goal[owner] != 1 if count == 1 else goal[owner] == count)]
            partner = (fitting or owners[-1:])[0]
            pairs.append((partner, dim))
            unmet[count][-1] = partner
            owners.remove(partner)
            if not owners:
                del unmet[wish]
        if not unmet[count]:
            del unmet[count]
    return pairs


def swapped(array: DeviceArray, large: int, small: int) -> DeviceArray:
    """The array after an all-to-all that cuts dim `small` by the minor part of what cut dim `large`."""
    shape = list(array.devices.shape)
    split = [*shape[:large], shape[small], shape[large] // shape[small], *shape[large + 1 :]]
    shape[large], shape[small] = shape[small], shape[large]
    moved = np.moveaxis(array.devices.reshape(split), large + 1, small + 1)
    return with_copies(moved.reshape(shape), array.has_copies)


def refined(coarse: DeviceArray, fine: DeviceArray) -> DeviceArray | None:
    """`fine`'s counts cut from the copies of `coarse` without communication: `fine` itself where that is possible."""
    if not coarse.has_copies or len(coarse.counts) != len(fine.counts):
        return None
    if any(b % a for a, b in zip(coarse.counts, fine.counts, strict=True)):
        return None
    rank = len(coarse.counts)
    ratios = [b // a for a, b in zip(coarse.counts, fine.counts, strict=True)]
    tile_of = {device: index[:rank] for index, device in np.ndenumerate(coarse.devices)}
    if all(  # every device's tile of `fine` is part of its tile of `coarse`
        tile_of[device] == tuple(i // r for i, r in zip(index, ratios, strict=False))
        for index, device in np.ndenumerate(fine.devices)
    ):
        return fine
    order = [axis for dim in range(rank) for axis in (dim, rank + dim)]
    moved = coarse.devices.reshape([*coarse.counts, *ratios, fine.copies]).transpose([*order, 2 * rank])
    return with_copies(moved.reshape([*fine.counts, fine.copies]))


def shifted(cut: DeviceArray, moved: DeviceArray) -> DeviceArray | None:
    """Where `moved` is `cut` moved on by one dim, with copies: `cut` with its last cut dim gathered."""
    if cut.has_copies or not moved.has_copies or cut.devices.ndim + 1 != moved.devices.ndim:
        return None
    shape = cut.devices.shape
    last = max(dim for dim, size in enumerate(shape) if size > 1)
    if moved.devices.shape != (1, *shape) or shape[last] != moved.copies:
        return None
    if not np.array_equal(moved.devices.reshape(shape), cut.devices):
        return None
    return with_copies(cut.devices.reshape([*shape[:last], 1, *shape[last + 1 :], moved.copies]))


def dim_to_split(source: DeviceArray, target: DeviceArray, shape: tuple[int, ...]) -> int | None:
    """The dim that is taken as two."""
    if source.copies != target.copies:
        return None
    counts = list(zip(source.counts, target.counts, strict=True))
    ones = [dim for dim, (a, b) in enumerate(counts) if a != b and min(a, b) == 1]
    many = []
    for dim, (a, b) in enumerate(counts):
        low, high = sorted((a, b))
        if low != high and low > 1 and high % low == 0 and -(-shape[dim] // low) * low % high == 0:
            many.append(dim)
    for dim in many:
        if any(counts[dim][0] * counts[other][0] == counts[dim][1] * counts[other][1] for other in ones):
            return dim
    return next((dim for dim in many if counts[dim][0] > counts[dim][1]), None)


def whole_dim(source: DeviceArray, target: DeviceArray) -> DeviceArray | None:
    """The source with the first dim gathered whose parts times copies are the target's copies."""
    if not target.has_copies:
        return None
    for dim, count in enumerate(source.counts):
        if count > 1 and count * source.copies == target.copies:
            counts = [*source.counts[:dim], 1, *source.counts[dim + 1 :]]
            return with_copies(np.moveaxis(source.devices, dim, len(counts) - 1).reshape([*counts, -1]))
    return None


def spread(source: DeviceArray, target: DeviceArray) -> DeviceArray | None:
    """The source with its copies as the parts of the first whole dim that the target cuts into a multiple of them."""
    if not source.has_copies or target.has_copies:
        return None
    for dim, (before, after) in enumerate(zip(source.counts, target.counts, strict=True)):
        if before == 1 and after != 1 and after % source.copies == 0:
            return with_copies(np.swapaxes(source.devices, dim, -1))
    return None


def grouped(array: DeviceArray, dims: list[int]) -> tuple[Positions, DeviceArray]:
    """Per group its devices, and the array of one group, whose devices are numbered in it."""
    shape = array.devices.shape
    groups = np.moveaxis(array.devices, dims, range(len(dims))).reshape(prod(shape[dim] for dim in dims), -1)
    sizes = [1 if dim in dims else size for dim, size in enumerate(shape)]
    return groups, with_copies(np.arange(groups.shape[1], dtype=np.int64).reshape(sizes), array.has_copies)


def renumbering(groups: Positions, reference: Positions) -> Positions | None:
    """Where every group has the devices of the group in its place: the numbers there of the first group's devices."""
    if not np.array_equal(np.sort(groups, axis=1), np.sort(reference, axis=1)):
        return None
    return np.array([list(reference[0]).index(device) for device in groups[0]], dtype=np.int64)


def ungrouped(groups: Positions, within: DeviceArray, like: DeviceArray, dims: list[int]) -> DeviceArray:
    """The array of all devices, each group laid out as `within`."""
    shape = like.devices.shape
    inner = within.devices.reshape([size for dim, size in enumerate(shape) if dim not in dims])
    whole = groups[:, inner].reshape([*(shape[dim] for dim in dims), *inner.shape])
    return with_copies(np.moveaxis(whole, range(len(dims)), dims), like.has_copies)


def can_permute(source: DeviceArray, target: DeviceArray) -> bool:
    """Whether whole tiles change places: one shape, two orders."""
    return (
        not source.is_replicated
        and not target.is_replicated
        and source.has_copies == target.has_copies
        and source.devices.shape == target.devices.shape
        and not source.equals(target)
    )
