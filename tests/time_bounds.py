"""What bounds the time of a reshard, by arithmetic written apart from the package.

`crossing`, `transferred` and `capacity` check a bound from boxes alone; the same lines stand in docs/time.md.
`fewest_transfers` tries all ways to combine one element.
`least_seconds` is the linear program that routes everything at once as well as can be: no latency, bytes that divide
without end, any holder as sender, relays, and copies where ways part.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, product
from math import prod
from random import Random

import numpy as np
import oracle
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from reshard import Mesh, Network, Sharding
from reshard.network import Level

Boxes = Mapping[int, Sequence[tuple[int, int]]]

NETWORKS = {
    "torus 4x4": (Mesh.of(x=4, y=4), Network((Level(1, 4, "ring", 1, 0), Level(4, 4, "ring", 1, 0)))),
    "lines 4x4": (Mesh.of(x=4, y=4), Network((Level(1, 4, "line", 1, 0), Level(4, 4, "line", 1, 0)))),
    "hosts 2x4": (Mesh.of(h=2, g=4), Network((Level(1, 4, "switch", 9, 0), Level(4, 2, "switch", 1, 0)))),
    "hosts 4x2": (Mesh.of(h=4, g=2), Network((Level(1, 2, "switch", 9, 0), Level(2, 4, "switch", 1, 0)))),
    "torus 2x2x4": (
        Mesh.of(x=2, y=2, z=4),
        Network((Level(1, 4, "ring", 1, 0), Level(4, 2, "ring", 1, 0), Level(8, 2, "ring", 1, 0))),
    ),
}
"""Networks whose linear programs a solver settles in seconds, of 16 x 16 bytes."""


SHAPE = (16, 16)


def crossing(parts: Mapping[int, int], source: Boxes, target: Boxes, chosen: Collection[int], itemsize: int) -> int:
    """Bytes that some chosen device needs and the chosen hold not all parts of."""
    boxes = [*source.values(), *target.values()]
    cuts = [sorted({edge for box in boxes for edge in box[dim]}) for dim in range(len(boxes[0]))]
    total = 0
    for cell in product(*(list(pairwise(edges)) for edges in cuts)):

        def has(box: Sequence[tuple[int, int]], cell: Sequence[tuple[int, int]] = cell) -> bool:
            return all(low <= start < stop <= high for (low, high), (start, stop) in zip(box, cell, strict=True))

        held = {parts[device] for device, box in source.items() if device in chosen and has(box)}
        if held != set(parts.values()) and any(has(box) for device, box in target.items() if device in chosen):
            total += itemsize * prod(stop - start for start, stop in cell)
    return total


def transferred(parts: Mapping[int, int], source: Boxes, target: Boxes, block: Mapping[int, int], itemsize: int) -> int:
    """Bytes that go from block to block at the least, where a value is first combined and then spread."""
    boxes = [*source.values(), *target.values()]
    cuts = [sorted({edge for box in boxes for edge in box[dim]}) for dim in range(len(boxes[0]))]
    total = 0
    for cell in product(*(list(pairwise(edges)) for edges in cuts)):

        def has(box: Sequence[tuple[int, int]], cell: Sequence[tuple[int, int]] = cell) -> bool:
            return all(low <= start < stop <= high for (low, high), (start, stop) in zip(box, cell, strict=True))

        held: dict[int, set[int]] = defaultdict(set)
        for device, box in source.items():
            if has(box):
                held[block[device]].add(parts[device])
        needing = {block[device] for device, box in target.items() if has(box)}
        count = transfers_of_one(held, needing, len(set(parts.values())))
        total += count * itemsize * prod(stop - start for start, stop in cell)
    return total


def transfers_of_one(held: Mapping[int, set[int]], needing: set[int], values: int) -> int:
    """Those of one element of which blocks hold some of its values, and some blocks need all."""
    whole = {block for block, own in held.items() if len(own) == values}
    if whole or not needing:
        return len(needing - whole)
    senders = -(-values // max(map(len, held.values())))
    return senders - 1 + len(needing) - bool(needing & set(held))


def fewest_transfers(held: Mapping[int, set[int]], needing: set[int], values: int, blocks: int) -> int:
    """The fewest by trying all: a block sends any sum or difference of what it knows."""
    full = 2**values - 1

    def closed(known: set[int]) -> frozenset[int]:
        while True:
            added = {a | b for a in known for b in known if not a & b} | {
                a ^ b for a in known for b in known if a & b == b
            }
            if added <= known:
                return frozenset(known)
            known = known | added

    start = tuple(closed({0, *(1 << value for value in held.get(block, ()))}) for block in range(blocks))
    states, count = {start}, 0
    while not any(all(full in state[block] for block in needing) for state in states):
        states = {
            (*state[:receiver], closed({*state[receiver], known}), *state[receiver + 1 :])
            for state in states
            for receiver in range(blocks)
            for sender in range(blocks)
            for known in state[sender] - state[receiver]
        }
        count += 1
    return count


def capacity(levels: Sequence[Level], chosen: Collection[int]) -> float:
    """Bytes/s into the chosen devices: links that enter, or ports of whichever side has fewer."""
    total = 0.0
    for place, level in enumerate(levels):
        if level.link == "switch":
            outer = [tuple(device // other.stride % other.size for other in levels[place + 1 :]) for device in chosen]
            joined = prod(other.size for other in levels[: place + 1])
            total += level.bandwidth * sum(min(count, joined - count) for count in Counter(outer).values())
        for device in chosen if level.link != "switch" else ():
            value = device // level.stride % level.size
            for before in (value - 1, value + 1) if level.link != "one-way-ring" else (value - 1,):
                joins = level.link != "line" or 0 <= before < level.size
                neighbour = device + (before % level.size - value) * level.stride
                total += level.bandwidth * (joins and neighbour not in chosen)
    return total


def pairs(mesh: Mesh, count: int) -> list[tuple[Sharding, Sharding]]:
    """Pairs of shardings on two dims by whole axes that need traffic; so many, if there are more."""
    shardings = []
    names = list(mesh.sizes)
    for homes in product((None, 0, 1), repeat=len(names)):
        for order in _orders(names):
            dims = [tuple(name for name in order if homes[names.index(name)] == dim) for dim in (0, 1)]
            shardings.append(Sharding.of(mesh, *dims))
    shardings = list(dict.fromkeys(shardings))
    found = [
        (source, target)
        for source, target in product(shardings, repeat=2)
        if any(oracle.missing(source, target, (16, 16)).values())
    ]
    return found if len(found) <= count else Random(18).sample(found, count)


def _orders(names: Sequence[str]) -> list[tuple[str, ...]]:
    return [(name, *rest) for name in names for rest in _orders([n for n in names if n != name])] or [()]


def _edges(network: Network) -> tuple[list[tuple[int, int]], list[tuple[list[int], float]]]:
    """Ways from device to device, and which of them share a link or a port of how many bytes/s."""
    edges: list[tuple[int, int]] = []
    shared: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    limits: dict[tuple[str, int, int], float] = {}
    levels = network.levels

    def add(start: int, stop: int, number: int) -> None:
        ends = [("out", number, start), ("in", number, stop)]
        level = levels[number]
        if not level.is_switch:
            ends = [("link", start * network.size + stop, number)]
            limits[ends[0]] = level.bandwidth * (2 if level.link == "ring" and level.size == 2 else 1)
        for end in ends:
            limits.setdefault(end, level.bandwidth)
            shared[end].append(len(edges))
        edges.append((start, stop))

    for start, stop in product(range(network.size), repeat=2):
        differing = [n for n, level in enumerate(levels) if level.digit.value(start) != level.digit.value(stop)]
        if not differing:
            continue
        outermost = differing[-1]
        level = levels[outermost]
        if level.is_switch:
            add(start, stop, outermost)
        elif len(differing) == 1:
            step = level.digit.value(stop) - level.digit.value(start)
            near = step in (1, -1) if level.link != "one-way-ring" else step == 1
            around = level.link != "line" and step % level.size in (1, level.size - 1)
            if near or (around and (level.link == "ring" or step % level.size == 1)):
                add(start, stop, outermost)
    return edges, [(members, limits[end]) for end, members in shared.items()]


def least_seconds(source: Sharding, target: Sharding, network: Network, shape: tuple[int, ...] = (16, 16)) -> float:
    """The value of the linear program, in bytes of one byte per element."""
    edges, shared = _edges(network)
    placed = zip(*(oracle.holds(end, shape).reshape(network.size, -1).T for end in (source, target)), strict=True)
    classes: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for held, wanted in placed:
        lacking = tuple(np.flatnonzero(wanted & ~held).tolist())
        if lacking:
            classes[tuple(np.flatnonzero(held).tolist()), lacking] += 1
    rows: list[tuple[int, int, float]] = []  # of equations
    values: list[float] = []
    limits: list[tuple[int, int, float]] = []  # of inequalities, whose right sides are 0
    count, columns, carried = 0, 1, []
    for (holders, receivers), amount in classes.items():
        carries, columns = columns, columns + len(edges)
        carried.append(carries)
        for receiver in receivers:
            for device in set(range(network.size)) - set(holders):
                for number, (start, stop) in enumerate(edges):
                    if device in (start, stop):
                        rows.append((len(values), columns + number, 1.0 if stop == device else -1.0))
                values.append(float(amount) if device == receiver else 0.0)
            for number in range(len(edges)):
                limits += [(count, columns + number, 1.0), (count, carries + number, -1.0)]
                count += 1
            columns += len(edges)
    for members, bandwidth in shared:
        limits += [(count, carries + number, 1.0) for carries in carried for number in members]
        limits.append((count, 0, -bandwidth))
        count += 1

    def matrix(entries: list[tuple[int, int, float]], height: int) -> coo_matrix:
        row, column, value = zip(*entries, strict=True)
        return coo_matrix((value, (row, column)), shape=(height, columns))

    cost = np.zeros(columns)
    cost[0] = 1.0
    solved = linprog(
        cost,
        A_ub=matrix(limits, count),
        b_ub=np.zeros(count),
        A_eq=matrix(rows, len(values)),
        b_eq=values,
        method="highs",
    )
    assert solved.status == 0, solved.message
    return float(solved.x[0])
