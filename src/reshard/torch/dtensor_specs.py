"""Torch's meshes and placements as ours, and ours as torch's.

| torch | here |
|---|---|
| `DeviceMesh` | `mesh_of`: a device is a global rank; mesh dims without names are `dim_0`, `dim_1`, … |
| `DTensor`, its spec, a list of placements | `sharding_of` |
| a list of placements | `placements_of` |

Torch cuts a dim in chunks of chunks, one mesh dim after the other, so what it has is `uneven="chunk"`.
By itself it takes the mesh dims from left to right.
Another order it spells in two ways, and both are read: in the spec's own `shard_order`, or as a `_StridedShard`,
whose split factor is the number of parts into which mesh dims to its right have cut the dim before it.
Only the second can be written in a list of placements, and is what `placements_of` gives.
A `_StridedShard` to whose right nothing cuts its dim interleaves rows: it is `Deal.parts` of that number, each of
which the mesh dim cuts by itself; any other whose split factor is no such product is refused.

By hand, 8 rows on a mesh of 2 x 2: `[Shard(0), Shard(0)]` gives the ranks rows 0-1, 2-3, 4-5, 6-7, and
`[_StridedShard(0, split_factor=2), Shard(0)]` rows 0-1, 4-5, 2-3, 6-7: the second mesh dim is the major one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch._prims_common import make_contiguous_strides_for
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrder, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils._python_dispatch import _disable_current_modes

from reshard.checks import checked_shape, expect, listed, shown
from reshard.digits import Digits
from reshard.dtypes import REDUCTIONS, DType, dtype_named
from reshard.errors import ReshardError
from reshard.foreign import PlacementsRecord, placements_record
from reshard.mesh import Mesh
from reshard.notation.placements import MeshDimCut, cuts_of, shards_of
from reshard.notation.placements import sharding_of as sharding_of_placements
from reshard.sharding import Sharding

AnyPlacements = Sharding | Placement | Sequence[Placement]
"""What a caller may say where a tensor lies by."""
CACHED = 1024
"""Conversions that are kept."""


def mesh_of(mesh: DeviceMesh) -> Mesh:
    """A mesh of torch as ours; a device is a global rank.

    Raises:
        ReshardError: `bad-argument` where it is no `DeviceMesh`, `duplicate-axis` where two mesh dims share a name.
    """
    return _mesh_of(expect(mesh, DeviceMesh, "a mesh of torch"))


@lru_cache(CACHED)
def _mesh_of(mesh: DeviceMesh) -> Mesh:
    with _disable_current_modes():  # of a trace, for which the ranks would be values that are not there yet
        return Mesh.of(mesh)


def dtype_of(dtype: torch.dtype) -> DType:
    """An element type of torch as ours.

    Raises:
        ReshardError: `unknown-dtype`.
    """
    return dtype_named(dtype)


def spec_of(
    mesh: DeviceMesh, placements: tuple[Placement, ...], shape: Sequence[int], dtype: torch.dtype
) -> DTensorSpec:
    """Torch's record of a tensor, contiguous as a whole, under placements on a mesh."""
    stride = tuple(make_contiguous_strides_for(tuple(shape)))
    return DTensorSpec(mesh, placements, tensor_meta=TensorMeta(torch.Size(shape), stride, dtype))


def meta_of(spec: DTensorSpec) -> TensorMeta:
    """Shape, stride and dtype of a DTensor.

    Raises:
        ReshardError: `bad-argument` where its spec has none.
    """
    if spec.tensor_meta is None:
        raise ReshardError("bad-argument", "a DTensor without shape and dtype cannot be redistributed")
    return spec.tensor_meta


def of_dtype(spec: DTensorSpec, dtype: torch.dtype) -> DTensorSpec:
    """The same of another element type."""
    return replace(spec, tensor_meta=meta_of(spec)._replace(dtype=dtype))


def sharding_of(
    value: object, mesh: DeviceMesh | None = None, ndim: int | None = None, on: Mesh | None = None
) -> Sharding:
    """What a DTensor, its spec, or a list of placements says, as a sharding.

    Args:
        value: a `DTensor`, a `DTensorSpec`, or placements, one per mesh dim; a `Sharding` is given back.
        mesh: what placements are on; a DTensor and a spec bring their own.
        ndim: the number of dims of the tensor, for placements.
        on: the mesh of the sharding, where it is to have further axes, along which all is replicated.

    Raises:
        ReshardError: `unknown-mesh` where placements come without a mesh, `bad-argument` where they are not one
            per mesh dim or no placements, `rank-mismatch` where one names a dim that is not there,
            `cannot-express` where reductions are mixed, or a shard is strided as no order of axes is.
    """
    if isinstance(value, Sharding):
        return value
    if isinstance(value, DTensor):
        value = value._spec
    if isinstance(value, DTensorSpec):
        rank = ndim if value.tensor_meta is None else len(value.tensor_meta.shape)
        return _sharding_of(
            tuple(value.placements), value.mesh, expect(rank, int, "the number of dims"), _order_of(value), on
        )
    if mesh is None:
        raise ReshardError("unknown-mesh", f"placements {shown(value)} do not say on which mesh; give a DeviceMesh")
    placements = tuple(listed(value, "placements"))
    expect(mesh, DeviceMesh, "a mesh")
    return _sharding_of(placements, mesh, expect(ndim, int, "the number of dims"), None, on)


@lru_cache(CACHED)
def _sharding_of(
    placements: tuple[Placement, ...], mesh: DeviceMesh, ndim: int, order: ShardOrder | None, on: Mesh | None = None
) -> Sharding:
    record = _record(normalized(placements, mesh, ndim), order)
    return sharding_of_placements(record, _mesh_of(mesh), ndim, on)


def normalized(
    placements: Sequence[Placement], mesh: DeviceMesh, ndim: int, kept: Sequence[Placement] = ()
) -> tuple[Placement, ...]:
    """The placements with dims counted from the left, each checked but for those that are kept.

    Raises:
        ReshardError: `bad-argument`, `rank-mismatch`, `cannot-express`, `unknown-reduction`.
    """
    if len(placements) != mesh.ndim:
        raise ReshardError(
            "bad-argument",
            f"{len(placements)} placements {text_of(placements)} are given for a mesh of {mesh.ndim} dims",
        )
    return tuple(placement if placement in kept else _normal(placement, ndim) for placement in placements)


def _normal(placement: Placement, ndim: int) -> Placement:
    if isinstance(placement, Replicate):
        return placement
    if type(placement) is Partial:
        if placement.reduce_op not in REDUCTIONS:
            raise ReshardError(
                "unknown-reduction", f"reduction {placement.reduce_op} must be one of {', '.join(REDUCTIONS)}"
            )
        return placement
    if isinstance(placement, Shard | _StridedShard):
        if not -ndim <= placement.dim < ndim:
            raise ReshardError("rank-mismatch", f"placement {placement} names a dim that a tensor of {ndim} has not")
        return placement if placement.dim >= 0 else _shard(placement.dim + ndim, _split_factor(placement))
    if isinstance(placement, Placement):
        raise ReshardError("cannot-express", f"placement {placement!r} is private to an operation and has no sharding")
    raise ReshardError("bad-argument", f"a placement must be Shard, Replicate or Partial, got: {shown(placement)}")


def _split_factor(shard: Shard | _StridedShard) -> int:
    return int(shard.split_factor) if isinstance(shard, _StridedShard) else 1


def _shard(dim: int, split_factor: int) -> Placement:
    return Shard(dim) if split_factor == 1 else _StridedShard(dim, split_factor=split_factor)


def gradient_placements(placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Where a gradient goes: to the placements themselves, but replicated where they are partial."""
    return tuple(Replicate() if isinstance(placement, Partial) else placement for placement in placements)


def text_of(placements: Sequence[Any]) -> str:
    """Placements as they stand in a sentence."""
    return f"[{', '.join(map(str, placements))}]"


def _order_of(spec: DTensorSpec) -> ShardOrder | None:
    """In which order mesh dims cut each dim; None where split factors say it."""
    return None if spec.use_strided_shard_as_shard_order else spec.shard_order


def _record(placements: Sequence[Placement], order: ShardOrder | None = None) -> PlacementsRecord:
    """Placements as plain records, with the order in which mesh dims cut each dim where it is said."""
    record = placements_record(tuple(placements))
    cuts = None if order is None else tuple((entry.tensor_dim, tuple(entry.mesh_dims)) for entry in order)
    return PlacementsRecord(() if record is None else record.placements, cuts)


def placements_of(sharding: Sharding, mesh: DeviceMesh, shape: Sequence[int] | None = None) -> tuple[Placement, ...]:
    """The placements on a mesh of torch that are the sharding.

    The sharding may be on any mesh over the same ranks; what it says must come out as whole mesh dims.
    Mesh dims that cut one tensor dim in another order than from left to right come as `_StridedShard`.

    Args:
        sharding: what the placements must mean.
        mesh: the mesh that they are for.
        shape: of the tensor; where given, dims that do not divide are checked to be cut at the same places.

    Raises:
        ReshardError: `cannot-express` where torch has no placements for it, or cuts the shape at other places;
            `different-meshes` where the sharding is over other ranks; `rank-mismatch`.
    """
    expect(sharding, Sharding, "what placements are made of")
    expect(mesh, DeviceMesh, "a mesh of torch")
    return _placements_of(sharding, mesh, None if shape is None else checked_shape(shape))


def target_placements(
    target: AnyPlacements,
    mesh: DeviceMesh,
    ndim: int,
    shape: Sequence[int] | None = None,
    kept: Sequence[Placement] = (),
) -> tuple[Placement, ...]:
    """The placements on a mesh of torch that a target is.

    Args:
        target: one placement for a mesh of one dim, several, or a sharding.
        mesh: what they are on.
        ndim: the number of dims of the tensor.
        shape: its sizes, as of `placements_of`.
        kept: placements that may be given whatever they are, for the source has them.

    Raises:
        ReshardError: as `placements_of` where it is a sharding, else as `normalized`; `bad-argument`.
    """
    if isinstance(target, Sharding):
        return placements_of(target, mesh, shape)
    if target is None:
        raise ReshardError("bad-argument", "no target is given; it must be placements or a Sharding")
    return normalized(as_key(target), mesh, ndim, kept)


def as_key(target: Any) -> Any:
    """A target that may be part of a key: a sharding, or a tuple of placements.

    Raises:
        ReshardError: `bad-argument`.
    """
    if target is None or isinstance(target, Sharding):
        return target
    is_several = isinstance(target, (tuple, list, Iterable))  # what is usual first, that is told in no time
    placements = tuple(target) if is_several else (target,)
    for placement in placements:
        if not issubclass(type(placement), Placement):  # whose `isinstance` torch does in Python
            raise ReshardError("bad-argument", f"the target must be placements or a Sharding, got: {shown(target)}")
    return placements


@lru_cache(CACHED)
def _placements_of(sharding: Sharding, mesh: DeviceMesh, shape: tuple[int, ...] | None) -> tuple[Placement, ...]:
    ours = _mesh_of(mesh)
    if sharding.mesh.is_maximal:
        if ours.size != 1 or ours.devices[0] != sharding.mesh.devices[0]:
            raise ReshardError("different-meshes", f"{sharding} is on another device than {ours}")
        return (Replicate(),) * mesh.ndim
    order = sharding.mesh.order_in(ours)
    if order is None and set(sharding.mesh.devices) != set(ours.devices):
        raise ReshardError("different-meshes", f"{sharding} is over other devices than {ours}")
    layout = None if order is None else sharding.layout.transposed(order)
    if layout is None:
        raise ReshardError(
            "cannot-express", f"{sharding} takes the ranks in an order that is none of the mesh dims of {ours}"
        )

    def mesh_dims(digits: Digits) -> list[int]:
        axes = ours.axes_of(digits)
        if axes is None or not all(axis.is_whole for axis in axes):
            raise ReshardError(
                "cannot-express", f"{sharding.text()} uses a part of a mesh dim of {ours}, which torch cannot"
            )
        return [list(ours.sizes).index(axis.name) for axis in axes]

    cuts = []
    for dim, digits in enumerate(layout.cutting):
        weave = layout.weave(dim)
        cut = [] if weave else list(map(MeshDimCut, mesh_dims(digits)))
        parts, devices = 1, iter(layout.dims[dim])
        for shards, deal in weave.stages if weave else ():
            parts *= deal.numbers[0] if deal and deal.kind == "parts" else 1
            if shards > 1:
                first, *others = mesh_dims(next(devices))
                cut += [MeshDimCut(first, parts), *map(MeshDimCut, others)]
                parts = 1
        cuts.append(cut)
    partial = mesh_dims(layout.unreduced)
    _add_trivial(cuts, partial, sharding, ours)
    by_mesh_dim: dict[int, Placement] = {mesh_dim: Partial(sharding.reduction) for mesh_dim in partial}
    by_mesh_dim |= _shards(cuts, mesh)
    placements = tuple(by_mesh_dim.get(mesh_dim, Replicate()) for mesh_dim in range(mesh.ndim))
    if layout.weaves:
        read = replace(_sharding_of(placements, mesh, len(layout.dims), None), uneven=sharding.uneven)
        if read.layout.weaves != layout.weaves or read.layout.dims != layout.dims:
            sharding.check_plain("placements, but for parts of one mesh dim each,")
    if shape is not None and not _sharding_of(placements, mesh, len(shape), None).is_equivalent_to(sharding, shape):
        raise ReshardError(
            "cannot-express",
            f"{sharding.text()} cuts shape {shape} elsewhere than the chunks of chunks of {text_of(placements)}",
        )
    return placements


def _shards(cuts: Sequence[Sequence[MeshDimCut]], mesh: DeviceMesh) -> dict[int, Placement]:
    """By mesh dim the shard, strided where mesh dims to its right cut its dim before it."""
    return {
        mesh_dim: _shard(shard.dim, shard.split_factor)
        for mesh_dim, shard in shards_of(cuts, tuple(mesh.shape)).items()
    }


def spelled_out(spec: DTensorSpec) -> tuple[Placement, ...]:
    """The placements of a spec that say by themselves in which order mesh dims cut a dim.

    Raises:
        ReshardError: `cannot-express` where a shard is strided as no order of axes is.
    """
    record = _record(spec.placements, _order_of(spec))
    shards = _shards(cuts_of(record, tuple(spec.mesh.shape), spec.ndim), spec.mesh)
    return tuple(shards.get(mesh_dim, placement) for mesh_dim, placement in enumerate(spec.placements))


def _add_trivial(cuts: list[list[MeshDimCut]], partial: list[int], sharding: Sharding, mesh: Mesh) -> None:
    """Put back the axes of size 1, which have no digit, where the sharding names those of this very mesh."""
    if sharding.mesh.axes != mesh.axes:
        return
    trivial = {name: mesh_dim for mesh_dim, (name, size) in enumerate(mesh.axes) if size == 1}
    for dim, cut in zip(sharding.dims, cuts, strict=True):
        for mesh_dim in (trivial[axis.name] for axis in dim.axes if axis.name in trivial):
            place = next((place for place, after in enumerate(cut) if after.mesh_dim > mesh_dim), len(cut))
            cut.insert(place, MeshDimCut(mesh_dim))
    partial += [trivial[axis.name] for axis in sharding.unreduced if axis.name in trivial]


def forget_meshes() -> None:
    """Let go of the meshes that conversions are kept for, and so of their process groups."""
    for conversion in (_mesh_of, _sharding_of, _placements_of):
        conversion.cache_clear()
