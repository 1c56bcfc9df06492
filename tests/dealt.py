"""What every device stores and owns where blocks are dealt in turns or windows reach around them: element by element.

Each element of a dim walks down the stages of the cut by itself and finds its owner; no run, no box is computed, so an
error of the package shows as a difference here.
By hand, 5 elements cut by x=2 under `cycles(2)`: blocks of 2, so elements 0, 1 and 4 go to shard 0 and 2, 3 to shard 1.
"""

from __future__ import annotations

from itertools import product
from math import ceil, prod
from random import Random
from typing import Any

import numpy as np
import oracle
from numpy.typing import NDArray

from reshard.deal import Deal, Window
from reshard.dim_sharding import DimSharding
from reshard.mesh import Mesh
from reshard.sharding import Sharding

Array = NDArray[Any]
PAD = -1


def stages(dim: DimSharding, mesh: Mesh, rule: str) -> list[tuple[Deal | None, list[int]]]:
    """The stages of a dim: what deals, and the sizes of the axes that it deals to."""
    cut: list[tuple[Deal | None, list[int]]] = []
    deals = {deal.place: deal for deal in dim.deals}
    for place, axis in enumerate(dim.axes):
        deal = deals.get(place)
        if deal is not None and deal.kind == "parts":
            cut.append((deal, []))
        size = oracle.part_size(axis, mesh)
        if cut and cut[-1][1] and rule == "ceil" and deal is None:
            cut[-1][1].append(size)
        else:
            cut.append((deal if deal is not None and deal.kind != "parts" else None, [size]))
    return cut


def owner(element: int, size: int, cut: list[tuple[Deal | None, list[int]]]) -> tuple[list[int], tuple[int, ...]]:
    """Per stage with axes the number of the shard that has an element, and the block that it is in."""
    owners, block = [], []
    length = size
    for deal, sizes in cut:
        shards = prod(sizes)
        kind, numbers = (deal.kind, deal.numbers) if deal else ("", ())
        if kind == "offsets" or len(numbers) > 1:
            places = list(numbers) if kind == "offsets" else [sum(numbers[:k]) for k in range(len(numbers) + 1)]
            number = max(k for k in range(len(places) - 1) if places[k] <= element and places[k] < places[k + 1])
            element -= places[number]
            length = places[number + 1] - places[number]
        else:
            each = 2 if kind == "zigzag" else numbers[0] if numbers else 1
            pieces = each if kind == "parts" else each * shards
            run = each if kind == "blocks" else ceil(length / pieces)
            number = element // run
            element -= number * run
            length = min(run, length - number * run)
        block.append(number)
        if kind != "parts":
            folded = min(number, 2 * shards - 1 - number) if kind == "zigzag" else number % shards
            owners.append(folded)
    return owners, tuple(block)


def tile(sharding: Sharding, number: int, size: int, place: oracle.Coordinates) -> tuple[list[int], set[int]]:
    """What a device stores of a dim, in order, `PAD` for what is padded; and what it owns."""
    dim, mesh = sharding.dims[number], sharding.mesh
    cut = stages(dim, mesh, sharding.uneven)
    values = iter([oracle.part_value(axis, mesh, place) for axis in dim.axes])
    mine = []
    for _, sizes in cut:
        index = 0
        for part in sizes:
            index = index * part + next(values)
        mine += [index] if sizes else []
    blocks: dict[tuple[int, ...], list[int]] = {}
    for element in range(size):
        owners, block = owner(element, size, cut)
        if owners == mine:
            blocks.setdefault(block, []).append(element)
    owned = {element for elements in blocks.values() for element in elements}
    window = dim.window
    if window is None:
        return sorted(owned), owned
    if window.spans:
        shard = 0
        for axis in dim.axes:
            shard = shard * oracle.part_size(axis, mesh) + oracle.part_value(axis, mesh, place)
        reach = [range(*window.spans[shard])] if size else []
    else:
        reach = [range(run[0] - window.low, run[-1] + 1 + window.high) for run in blocks.values()]
    inside = {"clip": lambda e: [e] if 0 <= e < size else [], "wrap": lambda e: [e % size]}
    padded = inside.get(window.edge, lambda e: [e if 0 <= e < size else PAD])
    return [index for run in reach for element in run for index in padded(element)], owned


def tiles(sharding: Sharding, shape: tuple[int, ...]) -> dict[int, list[tuple[list[int], set[int]]]]:
    """Per device, per dim what it stores and what it owns."""
    return {
        device: [tile(sharding, dim, size, place) for dim, size in enumerate(shape)]
        for device, place in oracle.coordinates(sharding.mesh).items()
    }


def cut(array: Array, sharding: Sharding) -> dict[int, Array]:
    """The array as every device stores it, zero where it is padded."""
    arrays = {}
    for device, dims in tiles(sharding, array.shape).items():
        part = array
        for dim, (stored, _) in enumerate(dims):
            padded = np.append(part, np.zeros_like(part, shape=_with(part.shape, dim, 1)), axis=dim)
            part = padded.take(stored, axis=dim)
        arrays[device] = part
    return arrays


def _with(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


def missing(source: Sharding, target: Sharding, shape: tuple[int, ...]) -> dict[int, int]:
    """Per device of either mesh, how many elements it stores in the target that it does not own in the source."""
    before, after = tiles(source, shape), tiles(target, shape)
    lacking = dict.fromkeys(sorted({*before, *after}), 0)
    for device, dims in after.items():
        wanted = [set(stored) - {PAD} for stored, _ in dims]
        held = [w & o for w, (_, o) in zip(wanted, before[device], strict=True)] if device in before else [set()]
        lacking[device] = prod(map(len, wanted)) - prod(map(len, held))
    return lacking


def whole_sum(sharding: Sharding, shape: tuple[int, ...], held: dict[int, Array]) -> Array:
    """The tensor that summed windows stand for: all contributions added, of every device."""
    total = np.zeros(shape, next(iter(held.values())).dtype)
    for device, dims in tiles(sharding, shape).items():
        for place in product(*(range(len(stored)) for stored, _ in dims)):
            index = tuple(stored[at] for at, (stored, _) in zip(place, dims, strict=True))
            if PAD not in index:
                total[index] += held[device][place]
    return total


def drawn(random: Random, mesh: Mesh, shape: tuple[int, ...], windows: bool) -> Sharding:
    """A sharding with deals, and perhaps windows, on some axes of a mesh."""
    axes = [name for name, _ in mesh.axes]
    random.shuffle(axes)
    dims = []
    for size in shape:
        mine = [axes.pop() for _ in range(random.randint(0, min(2, len(axes))))]
        items: list[str | Deal] = []
        for place, name in enumerate(mine):
            items += [*drawn_deal(random, mesh.sizes[name], size, place, mine), name]
        dim = DimSharding.of(*items)
        dims.append(DimSharding(dim.axes, deals=dim.deals, window=drawn_window(random, dim, mesh, size, windows)))
    return Sharding.of(mesh, *dims, uneven=random.choice(["ceil", "chunk"]))


def drawn_deal(random: Random, shards: int, size: int, place: int, mine: list[str]) -> list[Deal]:
    """A deal for an axis, or none."""
    kind = random.choice(["", "", "parts", "cycles", "blocks", "zigzag", "offsets", "sizes"])
    if kind in ("offsets", "sizes") and (place or len(mine) > 1):
        return []
    if kind == "sizes":
        first = random.randint(1, max(size - 1, 1))
        return [Deal.parts(first, size - first)] if size > 1 else []
    if kind == "offsets":
        return [Deal.offsets(0, *sorted(random.randint(0, size) for _ in range(shards - 1)), size)]
    if kind == "zigzag":
        return [Deal.zigzag()]
    return [Deal(kind, (random.randint(1 if kind == "blocks" else 2, 4),))] if kind else []


def drawn_window(random: Random, dim: DimSharding, mesh: Mesh, size: int, windows: bool) -> Window | None:
    """A window for a dim, or none."""
    if not windows or random.random() < 0.4:
        return None
    edge = random.choice(["clip", "wrap", "pad"])
    if dim.deals or random.random() < 0.7:
        low, high = random.randint(0, 4), random.randint(0, 4)
        return Window(low, high, edge) if low or high else None
    ends = [
        sorted(random.randint(-3, size + 3) for _ in "ab") for _ in range(prod(mesh.sizes[a.name] for a in dim.axes))
    ]
    return Window.of(ends, edge)
