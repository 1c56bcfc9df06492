"""How long the messages of reshards between options wait for each other, as far as is known before any is planned.

By hand, through one switch with 1 us a message: a gather along 4 devices takes two, and what they exchange three, of
which the first is what every reshard takes that sends.

>>> from reshard.mesh import Mesh
>>> from reshard.network.level import Level
>>> from reshard.propagation.space import Option, Pieces
>>> mesh, network = Mesh.of(x=4), Network((Level(1, 4, "switch", 1e9, 1e-6),))
>>> options = Options(Pieces(mesh, []), (4096, 4096))
>>> rows, columns, whole = (options.numbers[Option(dims)] for dims in (((0,), ()), ((), (0,)), ((), ())))
>>> waited = waits(options, network, 4)
>>> [round(1e6 * float(waited[rows, number]), 6) for number in (rows, whole, columns)]
[0.0, 1.0, 2.0]
"""

from __future__ import annotations

from math import inf, log2

import numpy as np

from reshard.digits import Digit
from reshard.network import Network
from reshard.propagation.space import Costs, Numbers, Options


def waits(options: Options, network: Network, itemsize: int) -> Costs:
    """Per pair the seconds in which the messages of a reshard through switches wait for each other.

    What is gathered along p devices takes log2 p messages, and so does what is combined; what p devices exchange
    takes p - 1, or is gathered and cut where that is sooner; what is only brought elsewhere takes one.
    Both at once is a gather of p tiles that every device combines, where that takes less than twice the messages.
    """
    taken = np.zeros((len(options.all), len(options.all)))
    first, brought, exchanges = taken, taken, taken
    if options.pieces.mesh.device_ids is not None:  # any device may be at any place
        return taken
    tiles = options.tiles[None, :] * itemsize
    smaller = np.minimum(tiles.T, tiles)
    for number, piece in enumerate(options.pieces.all):
        digit = options.pieces.mesh.digit_of(piece)
        shared = [(level, _shared(digit, level.digit)) for level in network.levels if level.is_switch]
        one = max((level.latency_s for level, size in shared if size > 1), default=0.0)
        place, waiting = _places_of(options, number), options.doing[:, number] == options.roles - 1
        is_combined = waiting[:, None] & ~waiting[None, :]
        is_moved = (place[:, None] > 0) & (place[:, None] != place[None, :]) & ~waiting[None, :]
        is_gathered = (is_combined | is_moved) & (place[None, :] == 0)
        is_elsewhere = is_moved & ~is_gathered
        each = sum(level.latency_s * log2(size) for level, size in shared)
        speed = min((level.bandwidth for level, size in shared if size > 1), default=inf)
        count = digit.size
        more = (count - 1) * (1 - 2 / count) / speed * tiles
        parts = np.where(is_moved, _uncut(options, number), 1.0)
        gathered = np.log2(parts) * (each / log2(count))
        direct = (parts - 1) * (sum(level.latency_s * (size - 1) for level, size in shared) / (count - 1))
        whole = gathered + (parts - 1) * (1 - 1 / parts) / speed * smaller
        taken = taken + np.where(is_combined, each, gathered * is_gathered)
        taken = taken + np.minimum(each, more) * (is_combined & is_gathered)
        exchanges = exchanges + np.minimum(direct, whole) * is_elsewhere
        first = np.maximum(first, one * (is_combined | is_moved))
        brought = np.maximum(brought, one * is_elsewhere)
    return np.maximum(taken + np.maximum(exchanges, brought) - first, 0.0)


def _uncut(options: Options, piece: int) -> Costs:
    """Per pair of options, of the parts into which a piece cuts a dim in one how many are one in the other."""
    size = int(options.pieces.sizes[piece])
    parts = np.ones((len(options.all), len(options.all)))
    for dim, (lists, which) in enumerate(options.cuts):
        until = np.array([options.pieces.count(c[: c.index(piece) + 1]) if piece in c else 0 for c in lists])[which]
        uncut = np.clip(until[:, None] / options.parts[:, dim], 1.0, size)
        parts = np.where(until[:, None] > 0, uncut, parts)
    return parts


def _places_of(options: Options, piece: int) -> Numbers:
    """Per option a number for where a piece cuts: the dim, and what cuts it before; 0 where it cuts none."""
    known: dict[object, int] = {}
    places = np.zeros(len(options.all), dtype=np.int64)
    for number, option in enumerate(options.all):
        for dim, cut_by in enumerate(option.dims):
            if piece in cut_by:
                before = dim, cut_by[: cut_by.index(piece)]
                places[number] = known.setdefault(before, 1 + len(known))
    return places


def _shared(one: Digit, other: Digit) -> float:
    """How many devices differ in two digits at once."""
    end = min(one.stride * one.size, other.stride * other.size)
    return max(end / max(one.stride, other.stride), 1.0)
