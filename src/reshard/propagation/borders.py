"""Windows among the options of a value: what operations that reach over the edges of tiles want, and what that lacks.

An operation of which a label is cut wants its operand not as the label is cut but as it reads it: with the border
that its tile of the result is made of (`reshard.operations.reaching`).
Such a window is an option of the operand in which no value is kept; a reshard from wherever the value is brings just
what is lacking, so the border has its price beside all other reshards.

By hand, on x = 4, a roll by 1 of 16 elements: a device has its 4, and lacks the one before them.

>>> from reshard.contraction.tasks import calculation_of
>>> from reshard.mesh import Mesh
>>> from reshard.operations.rules import operation_rule
>>> from reshard.propagation.program import Program
>>> from reshard.propagation.space import Pieces
>>> from reshard.propagation.ways import Along, layouts_of
>>> program = Program(Mesh.of(x=4))
>>> rolled = program.roll(program.input("a", (16,), "float32"), (1,), (0,))
>>> calculation = calculation_of(program.operations[-1], operation_rule(program.operations[-1]))
>>> pieces = Pieces(program.mesh, [])
>>> options, nothing = Options(pieces, (16,)), Along(frozenset(), "sum")
>>> layouts = layouts_of(calculation, pieces, [options, options], [nothing, nothing])
>>> wanted = with_windows(layouts, calculation, [options, options], "ceil").used[0]
>>> [options.all[number].sharding and options.all[number].sharding.text() for number in wanted.tolist()]
[None, '[{"x", window(-1:3, 3:7, 7:11, 11:15, wrap)}]']
>>> lacking = lacked(options, "ceil")[int(wanted[1])]
>>> lacking.tolist()
[0.0, 1.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from reshard.contraction.tasks import Calculation
from reshard.deal import Window
from reshard.dim_sharding import DimSharding
from reshard.operations.reaching import windowed
from reshard.propagation.space import Costs, Numbers, Option, Options, Pieces
from reshard.propagation.ways import Layouts
from reshard.sharding import Sharding


def with_windows(layouts: Layouts, calculation: Calculation, tensors: Sequence[Options], uneven: str) -> Layouts:
    """Layouts with the windows that they want of the operands, which are added to the options of these.

    Args:
        layouts: of the calculation.
        calculation: what is computed.
        tensors: the options of the operands, and last of the result.
        uneven: the rule by which tiles are cut.
    """
    rows, which = np.unique(np.stack([*layouts.used, layouts.made], axis=1), axis=0, return_inverse=True)
    wanted, known = rows[:, :-1].copy(), dict[object, Window | None]()
    for number, row in enumerate(rows.tolist()):
        shardings = [
            options.pieces.sharding(options.all[option], calculation.reduction, uneven)
            for options, option in zip(tensors, row, strict=True)
        ]
        ends = windowed(calculation.pattern, calculation.reaches, shardings, calculation.shapes, known)
        for operand, (end, owned) in enumerate(zip(ends[:-1], shardings, strict=False)):
            if end is not owned:
                options = tensors[operand]
                wanted[number, operand] = options.add(options.all[row[operand]]._replace(sharding=end))
    return replace(layouts, used=tuple(wanted[which.reshape(-1)].T))


def lacked(options: Options, uneven: str) -> dict[int, Costs]:
    """Per option with windows, by its number, the elements that the busiest device lacks where it has another option.

    A window is in each dim a few runs, and a tile one; what a device has of the window is the product of what they
    share.
    Where values are combined, all of it comes from others.
    """
    windows = {number: option.sharding for number, option in enumerate(options.all) if option.has_windows}
    if not windows:
        return {}
    plain = [option._replace(sharding=None) if option.has_windows else option for option in options.all]
    tiles: list[Costs] = []
    which: list[Numbers] = []
    for dim, size in enumerate(options.shape):
        lists: dict[tuple[int, ...], int] = {}
        which.append(np.array([lists.setdefault(option.dims[dim], len(lists)) for option in plain]))
        cut = [options.pieces.sharding(Option((axes,)), "sum", uneven) for axes in lists]
        tiles.append(np.stack([_runs(options.pieces, sharding, 0, size) for sharding in cut]))
    ways, of_option = np.unique(np.stack(which), axis=1, return_inverse=True)
    shares: dict[tuple[int, DimSharding], tuple[Costs, Costs]] = {}
    lacking: dict[int, Costs] = {}
    waits: dict[frozenset[int], list[int]] = {}
    for other, each in enumerate(plain):
        waits.setdefault(frozenset(each.unreduced), []).append(other)
    for number, sharding in windows.items():
        if sharding is None:
            continue
        option = options.all[number]
        shared = np.ones((ways.shape[1], options.pieces.mesh.size))
        held = np.ones(options.pieces.mesh.size)
        for place in enumerate(sharding.dims):
            if place not in shares:
                runs = _runs(options.pieces, sharding, place[0], options.shape[place[0]])
                shares[place] = _shared(tiles[place[0]], runs), (runs[1] - runs[0]).sum(axis=0)
            of_tiles, of_window = shares[place]
            shared *= of_tiles[ways[place[0]]]
            held *= of_window
        lacking[number] = (held - shared).max(axis=1)[of_option.reshape(-1)]
        for wait, others in waits.items():
            if wait.difference(option.unreduced):
                lacking[number][others] = held.max() if wait.issuperset(option.unreduced) else np.inf
            elif len(wait) < len(option.unreduced):
                lacking[number][others] = 0.0
    return lacking


def _runs(pieces: Pieces, sharding: Sharding, dim: int, size: int) -> Costs:
    """Where the runs of a dim begin and end that each device has: starts and stops, a row per run."""
    layout, key = sharding.layout, (sharding.dims[dim], size, sharding.uneven)
    table = pieces.runs.get(key)
    if table is None:
        runs, shards = layout.runs(dim, size, held=True), layout.parts[dim]
        count = np.bincount(runs.shard, minlength=shards)
        table = pieces.runs[key] = np.zeros((2, max(int(count.max(initial=0)), 1), shards))
        place = np.arange(len(runs.shard)) - np.searchsorted(runs.shard, runs.shard)
        table[0, place, runs.shard], table[1, place, runs.shard] = runs.start, runs.stop
    return np.asarray(table[:, :, layout.cutting[dim].index_of(sharding.mesh.positions)])


def _shared(tiles: Costs, runs: Costs) -> Costs:
    """Per way to cut a dim, each in tiles of one run, and device the elements of its tile in the runs of a window."""
    low, high = np.maximum(tiles[:, 0], runs[0]), np.minimum(tiles[:, 1], runs[1])
    return np.asarray(np.maximum(high - low, 0.0).sum(axis=1))
