"""What torch's own two planners would do for a redistribute, asked without communication.

DTensor goes from placements to placements in transforms, each of which changes one mesh dim: an all-gather, an
all-to-all, a reduce-scatter, an all-reduce, or a slice that sends nothing.
`greedy`, which runs unless something else is asked for, replicates every mesh dim that is misaligned; `min-cost`
searches a graph of placements for the path that a model of GPUs finds cheapest.

The figures are those of the busiest rank, which stands first along every mesh dim, for torch's tiles are largest
there and all tiles of one transform are padded to that size.
With n ranks along the mesh dim and b bytes of the padded tile, a rank receives (n - 1) b in an all-gather,
(n - 1)/n b in an all-to-all and a reduce-scatter, 2 (n - 1)/n b in an all-reduce.
On CPU tensors torch runs an all-to-all as an all-gather from which every rank keeps its part, so each transform
has two costs: as planned, and on CPU.

Torch's planners are private to it; where a version of torch has them not, a route says so in `refusal`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import Shard

PLANNERS = ("greedy", "min-cost")
"""Torch's planners, the one that runs by itself first."""


class Cost(NamedTuple):
    """What a transform costs the busiest rank."""

    received_bytes: int
    """Bytes from others."""
    peak_bytes: int
    """The tiles before and after, and what is gathered or padded between them; torch's further copies come on top."""


@dataclass(frozen=True, slots=True)
class Transform:
    """One step of torch's: it changes the placement on one mesh dim, or on several that were flattened into one."""

    kind: str
    """`all_gather`, `all_to_all`, `reduce_scatter`, `all_reduce`, `slice`, `partition` (values become partial), or
    `nothing` on a mesh dim of size 1."""
    mesh_dims: tuple[int, ...]
    planned: Cost
    on_cpu: Cost
    """The same with an all-to-all run as an all-gather."""
    after: str
    """The placements that it leads to, as torch's DebugMode writes them."""


@dataclass(frozen=True, slots=True)
class Route:
    """All transforms of one planner."""

    planner: str
    """One of `PLANNERS`."""
    start: str
    """The placements of the source."""
    source_bytes: int
    """The source tile of the busiest rank."""
    transforms: tuple[Transform, ...] = ()
    refusal: str = ""
    """Why there is no route; empty where there is one."""

    @property
    def trace(self) -> str:
        """The placements passed through, as torch's DebugMode writes them: `S(0)S(1)->S(0)R->RR`."""
        text = self.start
        for transform in self.transforms:
            text += ("-->" if len(transform.mesh_dims) > 1 else "->") + transform.after
        return text

    @property
    def collectives(self) -> int:
        """The number of transforms that communicate."""
        return sum(transform.planned.received_bytes > 0 for transform in self.transforms)

    @property
    def differs_on_cpu(self) -> bool:
        """Whether an all-to-all is among the transforms, which costs more on CPU."""
        return any(transform.planned != transform.on_cpu for transform in self.transforms)

    def total(self, *, on_cpu: bool = False) -> Cost:
        """Bytes received over all transforms, and the largest peak, with the source tile kept beside it."""
        costs = [transform.on_cpu if on_cpu else transform.planned for transform in self.transforms]
        peaks = [cost.peak_bytes + (self.source_bytes if number else 0) for number, cost in enumerate(costs)]
        return Cost(sum(cost.received_bytes for cost in costs), max([self.source_bytes, *peaks]))


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor laid over a mesh of torch, as far as its planners ask."""

    placements: tuple[Any, ...]
    order: tuple[tuple[int, ...], ...]
    """Per tensor dim the mesh dims that cut it, major to minor."""
    mesh: Any
    """A `DeviceMesh`."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    dtype: torch.dtype

    def spec(self) -> Any:
        """Torch's own record of it; a strided shard says the order by itself."""
        from torch.distributed.tensor._dtensor_spec import (  # noqa: PLC0415  # private to torch
            DTensorSpec,
            ShardOrderEntry,
            TensorMeta,
        )

        strides = tuple(prod(self.shape[dim + 1 :]) for dim in range(len(self.shape)))
        meta = TensorMeta(torch.Size(self.shape), strides, self.dtype)
        if self.strided:
            return DTensorSpec(self.mesh, self.placements, meta)
        order = tuple(ShardOrderEntry(dim, mesh_dims) for dim, mesh_dims in enumerate(self.order) if mesh_dims)
        return DTensorSpec(self.mesh, self.placements, meta, shard_order=order)

    @property
    def in_order(self) -> bool:
        """Whether mesh dims cut every tensor dim from left to right."""
        return all(list(mesh_dims) == sorted(mesh_dims) for mesh_dims in self.order)

    @property
    def strided(self) -> bool:
        """Whether a shard is strided."""
        return any(hasattr(placement, "split_factor") for placement in self.placements)


def route(planner: str, source: Placed, target: Placed) -> Route:
    """What a planner of torch's does between two placements on one mesh.

    Nothing is communicated, and torch's caches of plans stay as they are.
    """
    walk = _Walk(source)
    start, source_bytes = walk.text(), walk.tile_bytes()
    refusal = _refusal(planner, source, target)
    if refusal:
        return Route(planner, start, source_bytes, refusal=refusal)
    try:
        infos = _planned(planner, source, target)
    except (ImportError, AttributeError, TypeError) as absent:
        reason = f"torch {torch.__version__} does not let its planner be asked: {absent}"
        return Route(planner, start, source_bytes, refusal=reason)
    except (AssertionError, RuntimeError, ValueError) as refused:
        return Route(planner, start, source_bytes, refusal=f"torch refuses: {refused}")
    return Route(planner, start, source_bytes, tuple(walk.through(info) for info in infos))


def _refusal(planner: str, source: Placed, target: Placed) -> str:
    """Why torch does not go from source to target, or not by this planner."""
    for before, after in zip(source.placements, target.placements, strict=True):
        if after.is_partial() and before != after:
            return f"torch refuses {before} -> {after}: values become partial inside its own operations only"
    if planner == "greedy" and any(side.strided or not side.in_order for side in (source, target)):
        return "torch plans shards in another order than that of the mesh dims by its graph alone"
    return ""


def _planned(planner: str, source: Placed, target: Placed) -> Sequence[Any]:
    """Torch's list of transforms, consecutive ones merged where the mesh has been flattened."""
    # Private to torch, so another version may lack it; asked directly, it leaves torch's cache alone, which takes
    # no notice of the planner that filled it.
    from torch.distributed.tensor import _redistribute  # noqa: PLC0415

    before, after = source.spec(), target.spec()
    asked = _redistribute.DTensorRedistributePlanner(before.mesh, before.tensor_meta)
    infos: Sequence[Any]
    if planner == "greedy":
        infos = asked.generate_greedy_transform_infos(before, after)
    else:
        infos = asked.generate_graph_based_transform_infos(before, after, before.shape)
    if not before.mesh._get_root_mesh()._flatten_mapping:
        return infos  # nothing to merge into, and asking would use up torch's one warning about that
    merged: Sequence[Any] = _redistribute._optimize_transform_infos(
        list(infos), before.mesh, before.placements, after.placements
    )
    return merged


def _cuts(placement: Any) -> bool:
    return not placement.is_replicate() and not placement.is_partial()


class _Walk:
    """Where a route stands: placements, the order in which mesh dims cut each dim, and so the largest tile."""

    def __init__(self, start: Placed) -> None:
        self.sizes, self.shape, self.itemsize = tuple(start.mesh.shape), start.shape, start.dtype.itemsize
        self.placements = [Shard(placement.dim) if _cuts(placement) else placement for placement in start.placements]
        self.order = [list(mesh_dims) for mesh_dims in start.order]

    def text(self) -> str:
        """The placements as torch's DebugMode writes them."""
        parts = []
        for mesh_dim, placement in enumerate(self.placements):
            cutters = self.order[placement.dim] if _cuts(placement) else []
            parts.append(f"{placement}[{cutters.index(mesh_dim)}]" if len(cutters) > 1 else str(placement))
        return "".join(parts)

    def tile(self) -> list[int]:
        """The local shape of the rank that stands first along every mesh dim."""
        tile = list(self.shape)
        for dim, mesh_dims in enumerate(self.order):
            for mesh_dim in mesh_dims:
                tile[dim] = -(-tile[dim] // self.sizes[mesh_dim])
        return tile

    def tile_bytes(self) -> int:
        return prod(self.tile()) * self.itemsize

    def move(self, mesh_dims: tuple[int, ...], before: Any, after: Any) -> None:
        """Give mesh dims another placement; they leave the end of one order and join the end of another."""
        if _cuts(before):
            self.order[before.dim] = [m for m in self.order[before.dim] if m not in mesh_dims]
        if _cuts(after):
            self.order[after.dim] += mesh_dims
        for mesh_dim in mesh_dims:
            self.placements[mesh_dim] = after

    def through(self, info: Any) -> Transform:
        """Take one transform of torch's."""
        before, after = info.src_dst_placements
        mesh_dims = tuple(getattr(info, "original_mesh_dims", (info.mesh_dim,)))
        count = prod(self.sizes[mesh_dim] for mesh_dim in mesh_dims)
        held, padded = self.tile_bytes(), self._padded_bytes(before, after, count)
        self.move(mesh_dims, before, after)
        kind = _kind(before, after) if count > 1 else "nothing"
        planned, on_cpu = (_cost(kind, count, held, padded, self.tile_bytes(), cpu) for cpu in (False, True))
        return Transform(kind, mesh_dims, planned, on_cpu, self.text())

    def _padded_bytes(self, before: Any, after: Any, count: int) -> int:
        """The tile that goes into the collective; torch pads the dim that is cut anew to a multiple of the count."""
        tile = self.tile()
        if _cuts(after) and not before.is_replicate():
            tile[after.dim] = -(-tile[after.dim] // count) * count
        return prod(tile) * self.itemsize


def _kind(before: Any, after: Any) -> str:
    """What torch runs for a change of placement."""
    if before.is_replicate():
        return "slice" if _cuts(after) else "partition"
    if before.is_partial():
        return "reduce_scatter" if _cuts(after) else "all_reduce"
    return "all_to_all" if _cuts(after) else "all_gather"


RECEIVED: dict[str, Callable[[int, int], int]] = {
    "all_gather": lambda n, b: (n - 1) * b,
    "all_to_all": lambda n, b: (n - 1) * b // n,
    "reduce_scatter": lambda n, b: (n - 1) * b // n,
    "all_reduce": lambda n, b: -(-2 * (n - 1) * b // n),
}
"""Bytes that a rank receives in a collective over n ranks with b bytes each; all other kinds move nothing."""


def _cost(kind: str, count: int, held: int, padded: int, after: int, on_cpu: bool) -> Cost:
    """The cost of a collective over so many ranks, with bytes of the tile before, the same padded, the tile after."""
    done_as = "all_gather" if on_cpu and kind == "all_to_all" else kind
    if done_as not in RECEIVED:
        return Cost(0, held + after)
    between = padded if padded > held else 0
    if done_as == "all_gather" and count * padded != after:
        between += count * padded
    return Cost(RECEIVED[done_as](count, padded), held + after + between)
