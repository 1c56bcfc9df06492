"""`reshard_tiles`: tiles of several boxes, side by side in an array, from one sharding to another.

An array of JAX knows one block for each device.
What shards of a zigzag or of dealt blocks store lies in such blocks all the same: as an array of the same shape whose
rows stand in another order, which a `shard_map` sees tile by tile.

By hand, 8 rows in zigzag over 2 devices: device 0 stores rows 0, 1, 6, 7, device 1 stores 2, 3, 4, 5.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax

from reshard.checks import expect
from reshard.dim_sharding import DimSharding
from reshard.errors import ReshardError
from reshard.jax.exchange.lowering import run_on_device
from reshard.jax.jax_shardings import jax_mesh_like
from reshard.planner import plan as make_plan
from reshard.plans import Plan
from reshard.sharding import Sharding
from reshard.tiling import Tiling


def reshard_tiles(x: jax.Array, source: Sharding, target: Sharding) -> jax.Array:
    """The tiles of the target, side by side, of those of the source; every device receives what it lacks.

    In and out of `jit`, and under `grad`.

    Args:
        x: tiles side by side: of the tensor's shape, cut by the axes of `source`.
        source: whose tiles `x` has: even, on whole axes, without partial values or windows.
        target: whose tiles are wanted, likewise, on the same mesh.

    Raises:
        ReshardError: `bad-argument`, `different-meshes`, `rank-mismatch`, `not-divisible`; `cannot-express` where an
            end has sub-axes.
    """
    x = jax.numpy.asarray(x)
    for end, sharding in (("source", source), ("target", target)):
        if expect(sharding, Sharding, f"the {end}").unreduced or sharding.has_windows:
            raise ReshardError(
                "bad-argument", f"the {end} {sharding.text()} must have no partial values and no windows"
            )
        if not Tiling.of(sharding, x.shape).is_even():
            raise ReshardError("not-divisible", f"the {end} {sharding.text()} cuts shape {x.shape} into uneven tiles")
    if source.mesh != target.mesh:
        raise ReshardError("different-meshes", f"source and target must be on one mesh: {source} -> {target}")
    result: jax.Array = _moved(make_plan(source, target, x.shape, x.dtype))(x)
    return result


@lru_cache(256)
def _moved(plan: Plan) -> Any:
    """The plan as a function of tiles side by side, whose gradient goes by the plan back."""
    mesh = jax_mesh_like(plan.source.mesh)

    def moving(way: Plan) -> Any:
        names = tuple(way.source.mesh.sizes)
        ends = [_spec_of(way.source), _spec_of(way.target)]
        body = lambda tile: run_on_device(way, names, tile)  # noqa: E731  # one expression, named for what it does
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=ends[0], out_specs=ends[1], check_vma=False))

    back = make_plan(plan.target, plan.source, plan.shape, plan.dtype)
    function = jax.custom_vjp(moving(plan))
    function.defvjp(lambda x: (moving(plan)(x), None), lambda _, gradient: (moving(back)(gradient),))
    return function


def _spec_of(sharding: Sharding) -> jax.P:
    """Where the tiles lie side by side."""
    for axis in sharding.axes():
        if not axis.is_whole:
            raise ReshardError("cannot-express", f"{sharding.text()} uses a part of an axis, which JAX cannot")
    return jax.P(*(_names(dim) for dim in sharding.dims))


def _names(dim: DimSharding) -> tuple[str, ...]:
    return tuple(axis.name for axis in dim.axes)
