"""`halo`: the tile of a rank with a border of others' elements around it, by one exchange, and its gradient.

A window is filled by the plan to a sharding with windows: each rank receives the border and nothing else.
On the wire every element goes once; where a window goes round it may stand in it several times, and where it is padded
places of it are filled, which the rank does itself.
The gradient is the plan of the summed windows: every owner takes what others hold for its elements, and adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from reshard.checks import check_mode, shown
from reshard.errors import ReshardError
from reshard.planner import plan as make_plan
from reshard.sharding import Sharding
from reshard.tile import Span, Tile
from reshard.tiling import Tiling
from reshard.torch.agreement import Statement, digest_of
from reshard.torch.dtensor_specs import dtype_of, mesh_of, sharding_of
from reshard.torch.graph_operator import is_traced
from reshard.torch.local_plan import LocalPlan, local_plan
from reshard.torch.reshard_tile import ThereAndBack
from reshard.torch.world import World, current_world


def halo(
    x: DTensor, widths: Mapping[int, tuple[int, int]], edge: str = "clip", *, check: str = "first"
) -> torch.Tensor:
    """The tile of this rank and a border around it: a local tensor, differentiable.

    All ranks of the mesh must call it alike.

    Args:
        x: of no partial values.
        widths: per dim how many elements before what the rank owns, and how many after.
        edge: what is done at the ends of the tensor: `clip`, `wrap`, or `pad` with zeros.
        check: when ranks compare what they are about to do, as of `redistribute`.

    Raises:
        ReshardError: `bad-argument`, `bad-window`, `rank-mismatch`, `ranks-disagree`, `exchange-failed`.
    """
    check_tensor(x)
    return window(x, sharding_of(x).with_halo(dict(widths), edge), check=check)


def check_tensor(x: Any) -> None:
    """Refuse what has no tiles to reach from.

    Raises:
        ReshardError: `bad-argument`.
    """
    if not isinstance(x, DTensor):
        raise ReshardError("bad-argument", f"a DTensor has neighbours to reach, got: {shown(x)}")
    if is_traced(x._local_tensor):
        raise ReshardError("bad-argument", "windows are filled in eager calls, not in what is traced")
    if any(placement.is_partial() for placement in x.placements):
        raise ReshardError("bad-argument", f"partial values have no neighbours: {x.placements}; reduce them first")


def window(x: DTensor, target: Sharding, fill: float = 0, *, check: str = "first") -> torch.Tensor:
    """What this rank holds under a sharding with windows.

    Args:
        x: of no partial values.
        target: on the mesh of `x`.
        fill: what stands where a window is padded.
        check: when ranks compare what they are about to do, as of `redistribute`.

    Raises:
        ReshardError: as `halo`.
    """
    check_mode(check)
    world = current_world()
    with world.telling(lambda: mesh_of(x.device_mesh).devices, check):
        filling = world.once(("window", x._spec, target), lambda: Filling(x, target, world))
        filling.there.check_tile(x._local_tensor)
    world.check(filling.statement, check)
    held: torch.Tensor = ThereAndBack.apply(x.to_local(), filling.there, filling.back)  # type: ignore[no-untyped-call]
    return filling.stored(held, fill)


class Filling:
    """What one rank does to fill its window, and to add up the gradient; kept per kind of call."""

    def __init__(self, x: DTensor, target: Sharding, world: World) -> None:
        """For tensors like `x`.

        Raises:
            ReshardError: `rank-mismatch`, `bad-window`, `too-large`.
        """
        source, shape, dtype = sharding_of(x), tuple(x.shape), dtype_of(x.dtype)
        words = f"fill windows {target.text()} of {'x'.join(map(str, shape)) or 'a scalar'} of {dtype}"
        meshes = {source.mesh: x.device_mesh}
        summed = _summed(target)
        there, back = make_plan(source, target, shape, dtype), make_plan(summed, source, shape, dtype)
        self.there: LocalPlan = local_plan(there, world.rank, meshes, x.dtype, words)
        self.back: LocalPlan = local_plan(back, world.rank, meshes, x.dtype, f"add what overlaps to {words}")
        ranks = tuple(sorted(source.mesh.devices))
        self.statement = Statement(ranks, digest_of("window", str(source), str(target), shape, dtype.name), words)
        self.view = HeldWindow.of(Tiling.of(target, shape), world.rank)

    def stored(self, held: torch.Tensor, fill: float) -> torch.Tensor:
        """The window, of what is held of it."""
        return self.view.stored(held, fill)


class HeldWindow(NamedTuple):
    """How a window is made of what is held of it: each element once, in order, and nothing that is padded."""

    places: tuple[list[int] | None, ...]
    """Per dim and place of the window that of the element in what is held, -1 where it is padded; None where all are
    alike."""

    @classmethod
    def of(cls, tiling: Tiling, rank: int) -> HeldWindow:
        """That of a rank."""
        ends = (tiling.tile(rank), tiling.tile(rank, once=True))
        return cls(tuple(_places(stored, held) for stored, held in zip(*map(_spans, ends), strict=True)))

    def stored(self, held: torch.Tensor, fill: float) -> torch.Tensor:
        """The window, with one value where it is padded."""
        for dim, places in enumerate(self.places):
            if places is None:
                continue
            index = torch.tensor(places, device=held.device, dtype=torch.int64)
            if min(places, default=0) < 0:
                shape = [*held.shape[:dim], 1, *held.shape[dim + 1 :]]
                held = torch.cat([held, held.new_full(shape, fill)], dim)
                index = torch.where(index < 0, held.shape[dim] - 1, index)
            held = held.index_select(dim, index)
        return held


def _summed(target: Sharding) -> Sharding:
    windows = {dim: one.window.dual() for dim, one in enumerate(target.dims) if one.window is not None}
    return target.with_windows(windows)


def _spans(tile: Any) -> tuple[Span, ...]:
    if isinstance(tile, Tile):
        return tile.spans
    return tuple(Span((run,), (run,), run[1]) for run in tile)


def _places(stored: Span, held: Span) -> list[int] | None:
    """The places of a dim, as of `HeldWindow`."""
    where = {element: place for place, element in enumerate(held.indices())}
    places = [where.get(element, -1) for element in stored.indices()]
    return None if places == list(range(len(where))) else places
