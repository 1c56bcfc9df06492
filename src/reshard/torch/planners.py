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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry

from reshard.torch.dtensor_specs import meta_of, sharding_of

PLANNERS = ("greedy", "min-cost")
"""Torch's planners, the one that runs by itself first."""


class RankCost(NamedTuple):
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
    planned: RankCost
    on_cpu: RankCost
    """The same with an all-to-all run as an all-gather."""
    after: str
    """The placements that it leads to, as torch's DebugMode writes them."""


@dataclass(frozen=True, slots=True)
class PlannerRoute:
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
        arrows = ("-->" if len(transform.mesh_dims) > 1 else "->" for transform in self.transforms)
        return self.start + "".join(arrow + step.after for arrow, step in zip(arrows, self.transforms, strict=True))

    @property
    def collectives(self) -> int:
        """The number of transforms that communicate."""
        return sum(transform.planned.received_bytes > 0 for transform in self.transforms)

    @property
    def differs_on_cpu(self) -> bool:
        """Whether an all-to-all is among the transforms, which costs more on CPU."""
        return any(transform.planned != transform.on_cpu for transform in self.transforms)

    def total(self, *, on_cpu: bool = False) -> RankCost:
        """Bytes received over all transforms, and the largest peak, with the source tile kept beside it."""
        costs = [transform.on_cpu if on_cpu else transform.planned for transform in self.transforms]
        peaks = [cost.peak_bytes + (self.source_bytes if number else 0) for number, cost in enumerate(costs)]
        return RankCost(sum(cost.received_bytes for cost in costs), max([self.source_bytes, *peaks]))


def route(planner: str, source: DTensorSpec, target: DTensorSpec) -> PlannerRoute:
    """What a planner of torch's does between two specs on one mesh.

    Nothing is communicated, and torch's caches of plans stay as they are.
    """
    sharding = sharding_of(source)
    names = list(sharding.mesh.sizes)
    order = {dim: tuple(names.index(axis.name) for axis in cut.axes) for dim, cut in enumerate(sharding.dims)}
    spec = _ordered(source, source.placements, order)
    start = PlannerRoute(planner, _text(spec), prod(_tile(spec)) * meta_of(spec).dtype.itemsize)
    try:
        if refusal := _refusal(planner, source, target):
            return replace(start, refusal=refusal)
        infos = _transform_infos(planner, source, target)
    except (ImportError, AttributeError, TypeError) as absent:
        return replace(start, refusal=f"torch {torch.__version__} does not let its planner be asked: {absent}")
    except (AssertionError, RuntimeError, ValueError) as refused:
        return replace(start, refusal=f"torch refuses: {refused}")
    transforms = []
    for info in infos:
        transform, spec = _applied(info, spec)
        transforms.append(transform)
    return replace(start, transforms=tuple(transforms))


def _refusal(planner: str, source: DTensorSpec, target: DTensorSpec) -> str:
    """Why torch does not go from source to target, or not by this planner."""
    for before, after in zip(source.placements, target.placements, strict=True):
        if after.is_partial() and before != after:
            return f"torch refuses {before} -> {after}: values become partial inside its own operations only"
    if planner == "greedy" and not all(
        map(DTensorSpec.is_default_device_order, (source.shard_order, target.shard_order))
    ):
        return "torch plans shards in another order than that of the mesh dims by its graph alone"
    return ""


def _transform_infos(planner: str, source: DTensorSpec, target: DTensorSpec) -> Sequence[Any]:
    """Torch's list of transforms, consecutive ones merged where the mesh has been flattened."""
    # Private to torch, so another version may lack it; asked directly, it leaves torch's cache alone, which takes
    # no notice of the planner that filled it.
    from torch.distributed.tensor import _redistribute  # noqa: PLC0415

    torch_planner = _redistribute.DTensorRedistributePlanner(source.mesh, meta_of(source))
    infos: Sequence[Any]
    if planner == "greedy":
        infos = torch_planner.generate_greedy_transform_infos(source, target)
    else:
        infos = torch_planner.generate_graph_based_transform_infos(source, target, source.shape)
    if not source.mesh._get_root_mesh()._flatten_mapping:
        return infos  # nothing to merge into, and asking would use up torch's one warning about that
    merged: Sequence[Any] = _redistribute._optimize_transform_infos(
        list(infos), source.mesh, source.placements, target.placements
    )
    return merged


def _applied(info: Any, spec: DTensorSpec) -> tuple[Transform, DTensorSpec]:
    """One transform of torch's from a spec, and the spec that it leads to.

    Its mesh dims leave the end of one order of shards and join the end of another.
    """
    before, after = info.src_dst_placements
    mesh_dims = tuple(getattr(info, "original_mesh_dims", (info.mesh_dim,)))
    count = prod(map(spec.mesh.size, mesh_dims))
    order = dict(spec.shard_order)
    tile = padded = list(_tile(spec))
    if _cuts(before):
        order[before.dim] = tuple(mesh_dim for mesh_dim in order[before.dim] if mesh_dim not in mesh_dims)
    if _cuts(after):
        order[after.dim] = order.get(after.dim, ()) + mesh_dims
        if not before.is_replicate():  # torch pads the dim that is cut anew to a multiple of the count
            padded = [-(-size // count) * count if dim == after.dim else size for dim, size in enumerate(tile)]
    placements = [after if number in mesh_dims else placement for number, placement in enumerate(spec.placements)]
    led_to = _ordered(spec, placements, order)
    kind = _kind(before, after) if count > 1 else "nothing"
    itemsize = meta_of(spec).dtype.itemsize
    sizes = [prod(shape) * itemsize for shape in (tile, padded, _tile(led_to))]
    planned, on_cpu = (
        _cost("all_gather" if on_cpu and kind == "all_to_all" else kind, count, *sizes) for on_cpu in (False, True)
    )
    return Transform(kind, mesh_dims, planned, on_cpu, _text(led_to)), led_to


def _ordered(spec: DTensorSpec, placements: Sequence[Any], order: Mapping[int, tuple[int, ...]]) -> DTensorSpec:
    """The tensor of a spec under other placements, its dims cut by the mesh dims in the order given."""
    plain = tuple(Shard(placement.dim) if _cuts(placement) else placement for placement in placements)
    entries = tuple(ShardOrderEntry(dim, mesh_dims) for dim, mesh_dims in sorted(order.items()) if mesh_dims)
    return DTensorSpec(spec.mesh, plain, spec.tensor_meta, shard_order=entries)


def _cuts(placement: Any) -> bool:
    return not placement.is_replicate() and not placement.is_partial()


def _text(spec: DTensorSpec) -> str:
    """The placements as torch's DebugMode writes them."""
    return DTensorSpec.format_shard_order_str(spec.placements, spec.shard_order)


def _tile(spec: DTensorSpec) -> tuple[int, ...]:
    """The local shape of the rank that stands first along every mesh dim."""
    return sharding_of(spec).local_shape(spec.shape)


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


def _cost(kind: str, count: int, held: int, padded: int, after: int) -> RankCost:
    """The cost of a collective over so many ranks, with bytes of the tile before, the same padded, the tile after."""
    if kind not in RECEIVED:
        return RankCost(0, held + after)
    between = padded if padded > held else 0
    if kind == "all_gather" and count * padded != after:
        between += count * padded
    return RankCost(RECEIVED[kind](count, padded), held + after + between)
