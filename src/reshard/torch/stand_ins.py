"""What torch's operations leave partial beyond its plain reductions: a map before and after one of those.

| partial value | before | reduced as | after |
|---|---|---|---|
| averages beside sums, `[Partial(), Partial("avg")]` | | sum | divided by the number of averaged ranks |
| a p-norm, `_NormPartial(p)` | to the power of p | sum | to the power of 1/p |
| rows of an embedding, `_MaskPartial` | rows of other ranks set to 0 | sum | |
| any of bools, `Partial("sum")` | as bytes | max | as bools |
| all of bools, `Partial("product")` | as bytes | min | as bools |

What is reduced is planned under the stand-in; what stays partial stays what it was.
What is whole becomes partial in these ways too, but for a mask, which only an embedding makes.

By hand, a 2-norm over two ranks that hold 3 and 4: both are squared, the sum of 9 and 16 is 25, its root 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from reshard.errors import ReshardError
from reshard.torch.dtensor_specs import dtype_of, meta_of, spec_of, text_of

Map = Callable[[torch.Tensor], torch.Tensor]
OF_BOOLS = {"sum": "max", "product": "min"}
"""What a reduction of bools is on bytes."""


@dataclass(frozen=True)
class StandIns:
    """What is planned in place of a source and a target, and what is done to a tile on either side of that."""

    source: DTensorSpec
    target: tuple[Placement, ...]
    before: Map | None = None
    """Makes what travels of the source's tile; its memory may be that of the tile."""
    after: Map | None = None
    """Makes the target's tile of what has come, in its memory."""


def stand_ins(source: DTensorSpec, target: tuple[Placement, ...], mesh: DeviceMesh) -> StandIns:
    """What is planned for a source and a target on a mesh; they themselves where nothing stands in for them.

    Raises:
        ReshardError: `cannot-express` where a mask or a norm stays while something else moves, or values are partial
            in two ways that have no common one; `reduction-dtype` where there are no averages of the dtype.
    """
    if mesh == source.mesh and target == source.placements:
        placements = tuple(map(_plain, target))
        return StandIns(_with(source, placements), placements)
    partials: list[Any] = [placement for placement in source.placements if isinstance(placement, Partial)]
    kinds = {kind_of(placement) for placement in partials}
    if kinds == {"sum", "avg"}:
        return _averages(source, target, mesh)
    wanted = {kind_of(placement) for placement in target} - {""}
    if meta_of(source).dtype == torch.bool and len(kinds | wanted) == 1 and kinds | wanted <= set(OF_BOOLS):
        return _bools(source, target)
    if "norm" in wanted and not kinds:  # one rank holds the value, the others 0: parts of which it is the norm
        return StandIns(source, tuple(map(_plain, target)))
    if not kinds & {"mask", "norm"}:
        return StandIns(source, target)
    if len({*partials} if kinds == {"norm"} else kinds - {"mask", "sum"}) > ("norm" in kinds):
        raise ReshardError(
            "cannot-express", f"partial values as in {text_of(source.placements)} have no common reduction"
        )
    pairs = list(zip(source.placements, target, strict=False)) if mesh == source.mesh else []
    if any(before == after and kind_of(before) in ("mask", "norm") for before, after in pairs):
        raise ReshardError(
            "cannot-express", f"{text_of(source.placements)} -> {text_of(target)} moves what stays masked or a norm"
        )
    sums = tuple(Partial() if isinstance(placement, Partial) else placement for placement in source.placements)
    if "norm" in kinds:
        power = float(partials[0].norm_type)
        return StandIns(_with(source, sums), target, partial(torch.pow, exponent=power), lambda x: x.pow_(1 / power))
    return StandIns(_with(source, sums), target, partial(_masked, [p for p in partials if kind_of(p) == "mask"]))


def norms_in(target: Any) -> tuple[Placement, ...]:
    """The placements of a target that are norms, which have no sharding and yet may be asked for."""
    placements = target if isinstance(target, Sequence) else (target,)
    return tuple(each for each in placements if isinstance(each, Placement) and kind_of(each) == "norm")


def kind_of(placement: Placement) -> str:
    """The reduction of a partial placement; `norm` or `mask` where torch has a class of its own for it, else empty."""
    if not isinstance(placement, Partial):
        return ""
    if type(placement) is Partial:
        return placement.reduce_op
    # Private to torch's operations, told apart by what they have.
    return "norm" if hasattr(placement, "norm_type") else "mask" if hasattr(placement, "mask_buffer") else "unknown"


def _plain(placement: Placement) -> Placement:
    """The placement, or a sum where it is private to an operation: nothing is done to it."""
    return Partial() if kind_of(placement) in ("mask", "norm", "unknown") else placement


def _masked(placements: list[Any], tile: torch.Tensor) -> torch.Tensor:
    """The tile with the rows of other ranks set to 0, in its memory, and the masks let go, as torch does it."""
    for placement in placements:
        if placement.mask_buffer.data is None:
            raise ReshardError("bad-tiles", "the mask of a row-cut embedding is gone: it can be reduced only once")
        placement.mask_buffer.apply_mask(tile)
        placement.mask_buffer.release_mask()
    return tile


def _bools(source: DTensorSpec, target: tuple[Placement, ...]) -> StandIns:
    def on_bytes(placement: Placement) -> Placement:
        kind = kind_of(placement)
        return Partial(OF_BOOLS[kind]) if kind in OF_BOOLS else placement

    meta = meta_of(source)
    placements = tuple(map(on_bytes, source.placements))
    return StandIns(
        spec_of(source.mesh, placements, meta.shape, torch.uint8),
        tuple(map(on_bytes, target)),
        lambda tile: tile.view(torch.uint8),
        lambda tile: tile.view(torch.bool),
    )


def _averages(source: DTensorSpec, target: tuple[Placement, ...], mesh: DeviceMesh) -> StandIns:
    """Sums in place of averages, for an average is a sum divided by the number of ranks; what stays so is left."""
    dtype_of(meta_of(source).dtype).check_reduction("avg")
    averaged = {mesh_dim for mesh_dim, placement in enumerate(source.placements) if kind_of(placement) == "avg"}
    stays = {mesh_dim for mesh_dim in averaged if mesh == source.mesh and kind_of(target[mesh_dim]) == "avg"}
    divisor = prod(map(source.mesh.size, averaged - stays))
    sums = _with(source, _with_sums(source.placements, averaged))
    return StandIns(sums, _with_sums(target, stays), None, None if divisor == 1 else lambda tile: tile.div_(divisor))


def _with(spec: DTensorSpec, placements: tuple[Placement, ...]) -> DTensorSpec:
    return replace(spec, placements=placements)


def _with_sums(placements: tuple[Placement, ...], mesh_dims: set[int]) -> tuple[Placement, ...]:
    return tuple(Partial() if mesh_dim in mesh_dims else placement for mesh_dim, placement in enumerate(placements))
