"""`reshard`: the tile of a rank from one sharding to another, for what no placements of torch say.

Zigzag sequences, blocks dealt in turn, windows: a tile of several boxes is one local tensor, in each dim its runs one
after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from reshard.checks import check_mode, checked_shape, expect
from reshard.errors import ReshardError
from reshard.planner import plan as make_plan
from reshard.sharding import Sharding
from reshard.torch.agreement import Statement, digest_of
from reshard.torch.dtensor_specs import dtype_of
from reshard.torch.local_plan import LocalPlan, local_plan
from reshard.torch.world import World, current_world


def reshard(
    tile: torch.Tensor,
    source: Sharding,
    target: Sharding,
    shape: Sequence[int],
    device_mesh: DeviceMesh | None = None,
    *,
    check: str = "first",
) -> torch.Tensor:
    """The tile of this rank under another sharding; it receives what it lacks, and its gradient goes back.

    All ranks of both meshes must call it alike; devices of the meshes are global ranks.

    Args:
        tile: of this rank under the source; of any shape on a rank that the source has not.
        source: where the tensor is, without partial values or windows.
        target: where it is wanted, without partial values or windows.
        shape: of the whole tensor.
        device_mesh: the mesh of torch that tiles are on, where they are not on the CPU.
        check: when ranks compare what they are about to do, as of `redistribute`.

    Raises:
        ReshardError: `bad-argument`, `bad-tiles`, `rank-mismatch`, `bad-shape`, `ranks-disagree`, `exchange-failed`.
    """
    check_mode(check)
    expect(tile, torch.Tensor, "a tile")
    shape = checked_shape(shape)
    for end, sharding in (("source", source), ("target", target)):
        if expect(sharding, Sharding, f"the {end}").unreduced or sharding.has_windows:
            raise ReshardError(
                "bad-argument", f"the {end} {sharding.text()} must have no partial values and no windows"
            )
    world = current_world()
    ranks = tuple(sorted({*source.mesh.devices, *target.mesh.devices}))
    with world.telling(lambda: ranks, check):
        key = ("tile", source, target, shape, tile.dtype, device_mesh)
        ways = world.once(key, lambda: _ways(source, target, shape, tile.dtype, device_mesh, world))
        ways[0].check_tile(tile)
    words = f"reshard {source.text()} to {target.text()} of {shape}"
    digest = digest_of("tile", str(source), str(target), shape, dtype_of(tile.dtype).name)
    world.check(Statement(ranks, digest, words), check)
    result: torch.Tensor = ThereAndBack.apply(tile, *ways)  # type: ignore[no-untyped-call]
    return result


def _ways(
    source: Sharding,
    target: Sharding,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device_mesh: DeviceMesh | None,
    world: World,
) -> tuple[LocalPlan, LocalPlan]:
    """This rank's part in the plan, and in the plan back."""
    meshes = {} if device_mesh is None else {source.mesh: device_mesh, target.mesh: device_mesh}
    ends = ((source, target), (target, source))
    plans = [make_plan(before, after, shape, dtype_of(dtype)) for before, after in ends]
    words = [f"{plan.reshard} of {shape}" for plan in plans]
    there, back = (local_plan(plan, world.rank, meshes, dtype, text) for plan, text in zip(plans, words, strict=True))
    return there, back


class ThereAndBack(torch.autograd.Function):
    """One plan, and another for the gradient."""

    @staticmethod
    def forward(ctx: Any, tile: torch.Tensor, there: LocalPlan, back: LocalPlan) -> torch.Tensor:
        """Along the one."""
        ctx.plans = back, there
        result = there.run(tile)
        return result.clone() if result is tile else result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, None, None]:
        """Along the other."""
        return ThereAndBack.apply(gradient.contiguous(), *ctx.plans), None, None  # type: ignore[no-untyped-call]
