"""`einsum` in a function that torch compiles: one operator, `reshard::einsum`, from local tensors to a local tensor.

As of `reshard::exchange`, what it does stands in the graph as a name, its shapes are known while the graph is traced,
and which rank runs it, it asks when it runs.
Its gradient is the same operator for each operand, of the gradient and the other operands.
A graph is for one shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from reshard.torch.agreement import digest_of
from reshard.torch.dtensor_specs import gradient_placements, meta_of, spec_of, spelled_out
from reshard.torch.graph_operator import keep_named, named
from reshard.torch.local_einsum import EinsumRequest, LocalEinsum, factors_of, flowing_to, local_einsum
from reshard.torch.world import CAPACITY, current_world

_REQUESTS: dict[str, tuple[EinsumRequest, str]] = {}
"""Requests, and when ranks compare them, by the names that a graph has."""


def einsum_traced(request: EinsumRequest, operands: Sequence[DTensor], check: str) -> DTensor:
    """What is traced in place of an eager einsum; of the request's specs the operands' own are taken."""
    local = local_einsum(current_world(), request)
    placements = [gradient_placements(spec.placements) for spec in request.specs]
    tiles = [x.to_local(grad_placements=places) for x, places in zip(operands, placements, strict=True)]
    tile = torch.ops.reshard.einsum(tiles, _name_of(request, check))
    result = local.result
    return DTensor.from_local(
        tile, result.mesh, result.placements, run_check=False, shape=result.shape, stride=result.stride
    )


def _name_of(request: EinsumRequest, check: str) -> str:
    statement = local_einsum(current_world(), request).statement
    name = digest_of(*statement, repr(request.overlap), repr(request.network), check)
    keep_named(_REQUESTS, {name: (request, check)}, CAPACITY)
    return name


def _local(name: str) -> tuple[LocalEinsum, str]:
    request, check = named(_REQUESTS, name)
    return local_einsum(current_world(), request), check


@torch.library.custom_op("reshard::einsum", mutates_args=())
def einsum(tiles: Sequence[torch.Tensor], name: str) -> torch.Tensor:
    """The named einsum of local tensors."""
    local, check = _local(name)
    local.contraction.check_tiles(tiles)
    current_world().check(local.statement, check)
    result = local.contraction.run(tiles)
    inputs = {tile.untyped_storage().data_ptr() for tile in tiles}
    return result.clone() if result.untyped_storage().data_ptr() in inputs else result


@einsum.register_fake
def _einsum_shape(tiles: Sequence[torch.Tensor], name: str) -> torch.Tensor:
    local, _ = _local(name)
    local.contraction.check_tiles(tiles)
    rank, result = current_world().rank, local.plan.target
    shape = result.box(rank, local.plan.output.shape).shape if rank in result.mesh else (0,)
    return tiles[0].new_empty(shape)


def _keep_tiles(ctx: Any, inputs: tuple[Sequence[torch.Tensor], str], output: torch.Tensor) -> None:
    tiles, ctx.name = inputs
    ctx.save_for_backward(*tiles)


def _einsum_back(ctx: Any, gradient: torch.Tensor) -> tuple[list[torch.Tensor | None], None]:
    local, check = _local(ctx.name)
    spec = spec_of(
        local.result.mesh, gradient_placements(local.result.placements), local.result.shape, meta_of(local.result).dtype
    )
    tiles = ctx.saved_tensors

    def flowing(number: int) -> torch.Tensor:
        request = flowing_to(local, number, spec)
        result: torch.Tensor = torch.ops.reshard.einsum(
            factors_of(request, tiles, number, gradient), _name_of(request, check)
        )
        return result

    return [flowing(number) if tile.requires_grad else None for number, tile in enumerate(tiles)], None


einsum.register_autograd(_einsum_back, setup_context=_keep_tiles)


def specs_in_graph(operands: Sequence[DTensor]) -> tuple[Any, ...]:
    """What the operands are, their sizes numbers, on which the graph then depends."""
    return tuple(
        spec_of(x.device_mesh, spelled_out(x._spec), [int(size) for size in x.shape], x.dtype) for x in operands
    )
