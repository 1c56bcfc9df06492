"""The arrays of devices that XLA's partitioner compares, and what it does to them.

>>> from reshard.mesh import Mesh
>>> tiles = tiles_of(Sharding.of(Mesh.of(x=2, y=2), "y", None))
>>> tiles.counts, tiles.copies, tiles.devices.tolist()
((2, 1), 2, [[[0, 2]], [[1, 3]]])
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from reshard.digits import Positions, offsets
from reshard.sharding import Sharding


class Tiles(NamedTuple):
    """The array of devices of a sharding, copies in ascending order; on a replicated one nothing depends."""

    devices: Positions
    has_copies: bool
    """Whether the last axis is one of copies."""

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

    def equals(self, other: Tiles) -> bool:
        """Whether both are one sharding to XLA."""
        return (self.is_replicated and other.is_replicated) or (
            self.has_copies == other.has_copies and np.array_equal(self.devices, other.devices)
        )


def array(devices: Positions, has_copies: bool) -> Tiles:
    """The array in its one spelling."""
    if has_copies and devices.shape[-1] == 1:
        return Tiles(devices[..., 0], False)
    return Tiles(np.sort(devices, axis=-1), True) if has_copies else Tiles(devices, False)


def tiles_of(sharding: Sharding) -> Tiles:
    """The array of a sharding."""
    layout = sharding.layout
    digits = [digit for dim in range(len(layout.dims)) for digit in layout.digits_of(dim)]
    places = offsets((*digits, *layout.free_digits()))
    counts = [layout.shards(dim) for dim in range(len(layout.dims))]
    return array(sharding.mesh.device_array[places].reshape([*counts, layout.copies()]), has_copies=True)


def by(counts: tuple[int, ...]) -> str:
    """Numbers of tiles as text: `2x4`."""
    return "x".join(map(str, counts))


def swaps(source: Tiles, target: Tiles) -> list[tuple[int, int]] | None:
    """Pairs of dims that swap their numbers of tiles, the larger first, until source has target's; None if none do."""
    if target.is_replicated or source.devices.ndim != target.devices.ndim:
        return None
    if prod(source.counts) != prod(target.counts):
        return None
    wanted = target.devices.shape
    left: dict[int, list[int]] = {}
    for dim, (a, b) in enumerate(zip(source.devices.shape, wanted, strict=True)):
        if a != b:
            left.setdefault(a, []).append(dim)
    differing = [dim for dims in left.values() for dim in dims]
    if not differing or sorted(wanted[dim] for dim in differing) != sorted(source.devices.shape[d] for d in differing):
        return None
    pairs = []
    while left:
        size = min(left)
        dim = left[size][-1]
        want = wanted[dim]
        if want == size:
            left[size].pop()
        else:
            if size != 1 and want % size:
                return None
            # A dim that has what this one wants; best one whose own wish the freed size, or the swap, fulfils.
            having = left[want]
            fits = [d for d in having if (wanted[d] != 1 if size == 1 else wanted[d] == size)]
            other = fits[0] if fits else having[-1]
            pairs.append((other, dim))
            left[size][-1] = other
            having.remove(other)
            if not having:
                del left[want]
        if not left[size]:
            del left[size]
    return pairs


def swapped(tiles: Tiles, large: int, small: int) -> Tiles:
    """The array after an all-to-all that cuts dim `small` by the minor part of what cut dim `large`."""
    shape = tiles.devices.shape
    before, after = [], list(shape)
    after[large], after[small] = shape[small], shape[large]
    places = {}
    for dim, size in enumerate(shape):
        parts = [shape[small], size // shape[small]] if dim == large else [size, 1] if dim == small else [size]
        before += parts
        places[dim] = len(before) - 1
    order = list(range(len(before)))
    order[places[large]], order[places[small]] = order[places[small]], order[places[large]]
    return array(tiles.devices.reshape(before).transpose(order).reshape(after), tiles.has_copies)


def refined(coarse: Tiles, fine: Tiles) -> Tiles | None:
    """`fine`'s counts cut from the copies of `coarse` without communication: `fine` itself where that is possible."""
    if not coarse.has_copies or len(coarse.counts) != len(fine.counts):
        return None
    if any(b % a for a, b in zip(coarse.counts, fine.counts, strict=True)):
        return None
    if lies_within(fine, coarse):
        return fine
    grown = [(dim, b // a) for dim, (a, b) in enumerate(zip(coarse.counts, fine.counts, strict=True)) if b > a]
    rank = len(coarse.counts)
    order: list[int] = []
    place = {dim: rank + number for number, (dim, _) in enumerate(grown)}
    for dim in range(rank):
        order += [dim, place[dim]] if dim in place else [dim]
    sizes = [*coarse.counts, *(size for _, size in grown), fine.copies]
    moved = coarse.devices.reshape(sizes).transpose([*order, rank + len(grown)])
    return array(moved.reshape([*fine.counts, fine.copies]), has_copies=True)


def lies_within(fine: Tiles, coarse: Tiles) -> bool:
    """Whether every device's tile of `fine` is part of its tile of `coarse`."""
    ratios = [b // a for a, b in zip(coarse.counts, fine.counts, strict=True)]
    tile_of: dict[int, tuple[int, ...]] = {}
    for index, device in np.ndenumerate(coarse.devices):
        tile_of[int(device)] = index[: len(ratios)]
    return all(
        tile_of[int(device)] == tuple(i // r for i, r in zip(index, ratios, strict=False))
        for index, device in np.ndenumerate(fine.devices)
    )


def shifted(tile: Tiles, partial: Tiles) -> Tiles | None:
    """Where `partial` is `tile` moved on by one dim: `tile` with its last cut dim gathered."""
    if tile.has_copies or not partial.has_copies or tile.devices.ndim + 1 != partial.devices.ndim:
        return None
    shape = tile.devices.shape
    cut = [dim for dim, size in enumerate(shape) if size > 1]
    if partial.devices.shape != (1, *shape) or shape[cut[-1]] != partial.copies:
        return None
    if not np.array_equal(partial.devices.reshape(shape), tile.devices):
        return None
    whole = list(shape)
    whole[cut[-1]] = 1
    return array(tile.devices.reshape([*whole, partial.copies]), has_copies=True)


def dim_to_split(source: Tiles, target: Tiles, shape: tuple[int, ...]) -> int | None:
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
        if any(counts[dim][0] * counts[one][0] == counts[dim][1] * counts[one][1] for one in ones):
            return dim
    return next((dim for dim in many if counts[dim][0] > counts[dim][1]), None)


def whole_dim(source: Tiles, target: Tiles) -> Tiles | None:
    """The source with the first dim gathered whose parts times copies are the target's copies."""
    if not target.has_copies:
        return None
    for dim, size in enumerate(source.counts):
        if size > 1 and size * source.copies == target.copies:
            sizes = list(source.counts)
            sizes[dim] = 1
            rank = len(sizes)
            order = [other for other in range(rank) if other != dim] + [dim]
            moved = source.devices.transpose([*order, rank] if source.has_copies else order)
            return array(moved.reshape([*sizes, -1]), has_copies=True)
    return None


def spread(source: Tiles, target: Tiles) -> Tiles | None:
    """The source with its copies as the parts of the first whole dim that the target cuts into a multiple of them."""
    if not source.has_copies or target.has_copies:
        return None
    for dim, (here, there) in enumerate(zip(source.counts, target.counts, strict=True)):
        if here == 1 and there != 1 and there % source.copies == 0:
            return array(np.swapaxes(source.devices, dim, -1), has_copies=True)
    return None


def grouped(tiles: Tiles, dims: list[int]) -> tuple[Positions, Tiles]:
    """Per group its devices, and the array of one group, whose devices are numbered in it."""
    others = [dim for dim in range(tiles.devices.ndim) if dim not in dims]
    count = prod(tiles.counts[dim] for dim in dims)
    groups = tiles.devices.transpose([*dims, *others]).reshape(count, -1)
    sizes = [1 if dim in dims else size for dim, size in enumerate(tiles.devices.shape)]
    return groups, array(np.arange(groups.shape[1], dtype=np.int64).reshape(sizes), tiles.has_copies)


def renumbering(groups: Positions, reference: Positions) -> Positions | None:
    """Where every group has the devices of the group in its place: the numbers there of the first group's devices."""
    if not np.array_equal(np.sort(groups, axis=1), np.sort(reference, axis=1)):
        return None
    return np.array([list(reference[0]).index(device) for device in groups[0]], dtype=np.int64)


def ungrouped(groups: Positions, within: Tiles, like: Tiles, dims: list[int]) -> Tiles:
    """The array of all devices, each group laid out as `within`."""
    others = [dim for dim in range(like.devices.ndim) if dim not in dims]
    shape = like.devices.shape
    inner = within.devices.reshape([shape[dim] for dim in others])
    whole = groups[:, inner].reshape([*(shape[dim] for dim in dims), *inner.shape])
    order = np.argsort([*dims, *others])
    return array(whole.transpose(order.tolist()), like.has_copies)


def can_permute(source: Tiles, target: Tiles) -> bool:
    """Whether whole tiles change places: one shape, two orders."""
    return (
        not source.is_replicated
        and not target.is_replicated
        and source.has_copies == target.has_copies
        and source.devices.shape == target.devices.shape
        and not source.equals(target)
    )
