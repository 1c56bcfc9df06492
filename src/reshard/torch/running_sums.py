"""Running sums: each rank adds up its own, then what comes before it arrives, one element a line.

What comes before its tile each rank but the first must receive, and it needs no more: where each hands on what it got
and its own, one after another, it receives no more either (`reshard.propagation.handing_on`).
From `MOST_MOVES` on that takes too long, and all ranks get the sums of all.
A rank without elements of the dim takes no part.

The gradient of what comes before a tile goes the other way: to each rank what those behind it ask for.

By hand, the sums 3, 7, 11, 15 of four tiles: 3 goes to the second rank, 10 to the third, 21 to the last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate

from reshard.propagation.handing_on import MOST_MOVES
from reshard.torch.agreement import Statement, digest_of
from reshard.torch.carriers import Carrier, Parcel
from reshard.torch.dtensor_specs import sharding_of
from reshard.torch.halo import check_tensor
from reshard.torch.rank_messages import as_carried
from reshard.torch.redistribute import redistribute
from reshard.torch.sliding import dim_of, tensor_of
from reshard.torch.world import current_world


def cumsum(x: DTensor, dim: int) -> DTensor:
    """`torch.cumsum`: each rank adds up its own, then what comes before it arrives, one element a line.

    Raises:
        ReshardError: `bad-argument`, `rank-mismatch`, and as `redistribute`.
    """
    check_tensor(x)
    dim = dim_of(x, dim)
    world = current_world()
    line = world.once(("running", x._spec, dim), lambda: RankLine.of(x, dim, world.rank))
    local = x.to_local()
    own = local.cumsum(dim)
    if len(line.ranks) > 1 + MOST_MOVES:
        own = own + _gathered(local.sum(dim, keepdim=True), x, dim)
    elif len(line.ranks) > 1:
        world.check(line.statement, "first")
        if world.rank in line.ranks:
            before: torch.Tensor = HandedOn.apply(local.sum(dim, keepdim=True), line.ranks)  # type: ignore[no-untyped-call]
            own = own + before
    return tensor_of(own, x, list(x.shape))


class RankLine(NamedTuple):
    """The ranks whose tiles follow each other in a dim."""

    ranks: tuple[int, ...]
    """Those that have elements."""
    statement: Statement
    """What all ranks of the mesh are about to do."""

    @classmethod
    def of(cls, x: DTensor, dim: int, rank: int) -> RankLine:
        """That of a rank.

        Raises:
            ReshardError: `bad-argument` where the tiles of the dim are not one block each.
        """
        sharding, shape = sharding_of(x), tuple(x.shape)
        mesh = sharding.mesh
        layout, own = sharding.layout_for(shape), mesh.position_of(rank)
        starts, stops = layout.intervals(dim, shape[dim], mesh.positions)
        groups = layout.cutting[dim].groups(mesh.size)
        (group,) = groups[(groups == own).any(axis=1)]
        ranks = tuple(mesh.devices[position] for position in group if starts[position] < stops[position])
        words = f"add up dim {dim} of {'x'.join(map(str, shape))} of {x.dtype} from {sharding.text()}"
        digest = digest_of("running", str(sharding), shape, str(x.dtype), dim)
        return cls(ranks, Statement(tuple(sorted(mesh.devices)), digest, words))


class HandedOn(torch.autograd.Function):
    """The sum of what the ranks before this one of a line have."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:
        """From each to the next, with its own."""
        ctx.ranks = ranks
        place = ranks.index(dist.get_rank())
        carrier, before = Carrier(dist.group.WORLD, batches=False), torch.zeros_like(own).contiguous()
        if place:
            _, arriving = carrier.post([Parcel(as_carried(before), ranks[place - 1])], [])
            for work in arriving:
                work.wait()
        if place + 1 < len(ranks):
            leaving, _ = carrier.post([], [Parcel(as_carried((before + own).contiguous()), ranks[place + 1])])
            for work in leaving:
                work.wait()
        return before

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, None]:
        """From each to the one before."""
        return HandedOn.apply(gradient, ctx.ranks[::-1]), None  # type: ignore[no-untyped-call]


def _gathered(own: torch.Tensor, x: DTensor, dim: int) -> torch.Tensor:
    """The same, of the sums of all ranks."""
    sharding = sharding_of(x)
    digits = sharding.layout.cutting[dim]
    shape = [digits.size if place == dim else size for place, size in enumerate(x.shape)]
    cutting = {number for number, placement in enumerate(x.placements) if placement.is_shard(dim)}
    ends, gradients = (
        [kind() if number in cutting else placement for number, placement in enumerate(x.placements)]
        for kind in (Replicate, Partial)
    )
    totals = redistribute(tensor_of(own, x, shape), ends).to_local(grad_placements=gradients)
    before = digits.index_of(sharding.mesh.position_of(dist.get_rank()))
    return totals.narrow(dim, 0, before).sum(dim, keepdim=True)
