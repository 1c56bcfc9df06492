"""What every device holds, by index arithmetic on names and coordinates: plain, and written apart from the package.

A sharding is read field by field: the axes of its mesh, its device ids, the axes of its dims, its rule for uneven dims.
No box, layout or digit of the package is asked, so an error there shows as a difference here.

By hand, 5 elements cut by x=2 and then y=2: under `ceil` by 4, in blocks of 2, 2, 1, 0; under `chunk` by x into 3 and
2, and by y the 3 into 2 and 1, the 2 into 1 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from itertools import product
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard.axis import Axis
from reshard.mesh import Mesh
from reshard.sharding import Sharding

Array = NDArray[Any]
Coordinates = dict[str, int]

COMBINE = {
    "sum": lambda a, b: a + b,
    "avg": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "max": np.maximum,
    "min": np.minimum,
    "band": lambda a, b: a & b,
    "bor": lambda a, b: a | b,
    "bxor": lambda a, b: a ^ b,
}


def coordinates(mesh: Mesh) -> dict[int, Coordinates]:
    """Where every device of a mesh stands, by the names of the axes: the last axis runs fastest."""
    names = [name for name, _ in mesh.axes]
    places = [dict(zip(names, place, strict=True)) for place in product(*(range(size) for _, size in mesh.axes))]
    devices = range(len(places)) if mesh.device_ids is None else mesh.device_ids
    return dict(zip(devices, places, strict=True))


def part_size(axis: Axis, mesh: Mesh) -> int:
    """Into how many parts an axis or a sub-axis cuts."""
    return dict(mesh.axes)[axis.name] if axis.size is None else axis.size


def part_value(axis: Axis, mesh: Mesh, place: Coordinates) -> int:
    """Where a device stands along an axis, or along a sub-axis, which sees its axis as pre-size, size and a rest."""
    if axis.size is None or axis.pre_size is None:
        return place[axis.name]
    rest = dict(mesh.axes)[axis.name] // (axis.pre_size * axis.size)
    return place[axis.name] // rest % axis.size


def chunk(indices: range, parts: int, number: int) -> range:
    """One of the chunks of a run of indices: all as long as the first, but for the last ones."""
    length = ceil(len(indices) / parts)
    return indices[number * length : (number + 1) * length]


def indices(sharding: Sharding, dim: int, size: int, place: Coordinates) -> range:
    """The indices of one dim that a device holds."""
    if not sharding.dims:  # a mesh of one device without axes
        return range(size)
    cuts = [
        (part_size(axis, sharding.mesh), part_value(axis, sharding.mesh, place)) for axis in sharding.dims[dim].axes
    ]
    if sharding.uneven == "ceil":
        number = 0
        for parts, value in cuts:
            number = number * parts + value
        return chunk(range(size), prod(parts for parts, _ in cuts), number)
    return reduce(lambda left, cut: chunk(left, *cut), cuts, range(size))


@cache
def ranges(sharding: Sharding, shape: tuple[int, ...]) -> dict[int, tuple[range, ...]]:
    """Per device the indices that it holds, one run per dim."""
    return {
        device: tuple(indices(sharding, dim, size, place) for dim, size in enumerate(shape))
        for device, place in coordinates(sharding.mesh).items()
    }


def ranges_on(sharding: Sharding, shape: tuple[int, ...], device: int) -> tuple[range, ...]:
    """The indices that one device of a mesh without device ids holds; the mesh may be of any size."""
    place, rest = {}, device
    for name, size in reversed(sharding.mesh.axes):
        rest, place[name] = divmod(rest, size)
    return tuple(indices(sharding, dim, size, place) for dim, size in enumerate(shape))


def slices(runs: tuple[range, ...]) -> tuple[slice, ...]:
    """Runs of indices as an index of an array."""
    return tuple(slice(run.start, run.stop) for run in runs)


def tiles(array: Array, sharding: Sharding) -> dict[int, Array]:
    """The array cut for every device; partial values are not made."""
    return {device: array[(..., *slices(runs))] for device, runs in ranges(sharding, array.shape).items()}


def encoded(shape: Sequence[int]) -> NDArray[np.int64]:
    """An array in which every element is its own number, counted from 1."""
    return np.arange(1, prod(shape) + 1, dtype=np.int64).reshape(shape)


@cache
def holds(sharding: Sharding, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """A row per device, in the order of the mesh: whether it holds each element, the last dim fastest."""
    rows = np.zeros((len(ranges(sharding, shape)), *shape), dtype=np.bool_)
    for row, runs in enumerate(ranges(sharding, shape).values()):
        rows[(row, *slices(runs))] = True
    return rows.reshape(len(rows), prod(shape))


def held_elements(sharding: Sharding, shape: tuple[int, ...]) -> dict[int, set[int]]:
    """Per device the numbers of the elements that it holds, the last dim fastest."""
    return {
        device: set(np.flatnonzero(row).tolist())
        for device, row in zip(ranges(sharding, shape), holds(sharding, shape), strict=True)
    }


def class_of(sharding: Sharding, place: Coordinates) -> int:
    """The number of the class of partial values that a device holds: 0 where nothing is partial."""
    number = 0
    for axis in sharding.unreduced:
        number = number * part_size(axis, sharding.mesh) + part_value(axis, sharding.mesh, place)
    return number


@cache
def classes(sharding: Sharding) -> dict[int, int]:
    """Per device the number of its class of partial values."""
    return {device: class_of(sharding, place) for device, place in coordinates(sharding.mesh).items()}


def missing(source: Sharding, target: Sharding, shape: tuple[int, ...]) -> dict[int, int]:
    """Per device of either mesh, how many elements of its target tile it does not hold: what any move must bring.

    Where both are partial, an element of another class counts as another element.
    """
    found = dict.fromkeys(sorted({*ranges(source, shape), *ranges(target, shape)}), 0)
    rows = {device: number for number, device in enumerate(ranges(source, shape))}
    there = [rows.get(device, -1) for device in ranges(target, shape)]
    before = np.where((np.array(there) >= 0)[:, None], holds(source, shape)[there], False)
    counts = np.count_nonzero(holds(target, shape) & ~before, axis=1)
    whole = np.count_nonzero(holds(target, shape), axis=1)
    apart = bool(source.unreduced and target.unreduced)
    for device, count, size in zip(ranges(target, shape), counts.tolist(), whole.tolist(), strict=True):
        other_class = apart and device in rows and classes(source)[device] != classes(target)[device]
        found[device] = size if other_class else count
    return found


def assembled(sharding: Sharding, shape: tuple[int, ...], held: dict[int, Array]) -> list[Array]:
    """Per class of partial values the tensor that its holders hold, class 0 first.

    Raises:
        AssertionError: where devices of one class differ in an element, or nobody has one.
    """
    dtype = next(iter(held.values())).dtype
    wholes = np.zeros((class_count(sharding), *shape), dtype)
    known = np.zeros(wholes.shape, dtype=np.bool_)
    for device, runs in ranges(sharding, shape).items():
        part = (classes(sharding)[device], ..., *slices(runs))
        tile, filled = held[device], known[part]
        assert tile.shape == filled.shape, f"device {device} holds {tile.shape}, not {filled.shape}"
        same = wholes[part][filled].tobytes() == tile[filled].tobytes()
        assert same, f"device {device} differs from another of its class"
        wholes[part] = tile
        known[part] = True
    assert known.all(), "an element is held by nobody"
    return list(wholes)


def values(sharding: Sharding, shape: tuple[int, ...], held: dict[int, Array]) -> Array:
    """The tensor that tiles stand for: the reduction of the classes.

    Raises:
        AssertionError: as `assembled`.
    """
    return reduced(assembled(sharding, shape, held), sharding)


def reduced(per_class: Sequence[Array], sharding: Sharding) -> Array:
    """The tensors of all classes combined, the first first."""
    total = reduce(COMBINE[sharding.reduction], per_class).astype(per_class[0].dtype)
    return total / len(per_class) if sharding.unreduced and sharding.reduction == "avg" else total


def partial_tiles(per_class: Sequence[Array], sharding: Sharding) -> dict[int, Array]:
    """Tiles of a partial tensor: every device holds its tile of the array of its class."""
    cut = [tiles(array, sharding) for array in per_class]
    return {device: cut[number][device].copy() for device, number in classes(sharding).items()}


def class_count(sharding: Sharding) -> int:
    """The number of classes of partial values."""
    return prod(part_size(axis, sharding.mesh) for axis in sharding.unreduced)


def placement(sharding: Sharding, shape: tuple[int, ...]) -> dict[int, tuple[frozenset[int], frozenset[int]]]:
    """What is alike for two shardings of one placement: per device its elements, and who holds the same as it does.

    The same are the same elements of one class of partial values; of tiles without elements it does not matter where
    they lie.
    """
    numbers = classes(sharding)
    keys = {device: (frozenset(held), numbers[device]) for device, held in held_elements(sharding, shape).items()}
    mates: dict[tuple[frozenset[int], int], set[int]] = {}
    for device, key in keys.items():
        mates.setdefault(key, set()).add(device)
    return {device: (key[0], frozenset(mates[key])) for device, key in keys.items()}
