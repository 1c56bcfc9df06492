"""Tensors as a caller describes them: by a sharding, a text, an engine's object, or an array itself.

What one of several leaves out, the others say: a spec or placements take the mesh of whoever has one, an array brings
its shape and dtype, and one that lies nowhere in particular, as NumPy's do, is whole on every device.

>>> from reshard.mesh import Mesh
>>> rows = Sharding.of(Mesh.of(x=2, y=4), "x", None)
>>> source, target = described([rows, "P(None, 'y')"], [2, 2])
>>> print(source.sharding.text(), target.sharding.text())
[{"x"}, {}] [{}, {"y"}]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from reshard.checks import checked_shape, shown
from reshard.errors import ReshardError
from reshard.foreign import ArrayRecord, PlacedRecord, SpecRecord, array_record, sharding_record
from reshard.mesh import Mesh
from reshard.notation import as_sharding, parse_type
from reshard.notation.records import sharding_of_record
from reshard.sharding import Sharding


class Described(NamedTuple):
    """What is known of one tensor."""

    sharding: Sharding
    shape: tuple[int, ...] | None
    """None where only its sharding was said."""
    dtype: Any
    """An engine's own, or None."""


def described(tensors: Sequence[Any], ndims: Sequence[int | None]) -> list[Described]:
    """Tensors by whatever says where they lie, each on its own mesh or on the first that one of them has.

    Args:
        tensors: what `as_sharding` takes, or arrays.
        ndims: the number of dims of each, where it is known.

    Raises:
        ReshardError: as `as_sharding`; `unknown-mesh` where none of them has a mesh.
    """
    arrays = [array_said(tensor) for tensor in tensors]
    ranks = [
        ndim if array is None or array.shape is None else len(array.shape)
        for array, ndim in zip(arrays, ndims, strict=False)
    ]
    shardings = [_alone(tensor, ndim) for tensor, ndim in zip(tensors, ranks, strict=True)]
    meshes = [sharding.mesh for sharding in shardings if sharding is not None]
    for place, tensor in enumerate(tensors):
        if shardings[place] is None:
            mesh = next((mesh for mesh in meshes if mesh.axes), meshes[0] if meshes else None)
            array, ndim = arrays[place], ranks[place]
            if array is not None and array.sharding is None:
                shardings[place] = _whole(array, mesh)
            else:
                shardings[place] = as_sharding(tensor, mesh, ndim)
    return [
        Described(sharding, None if array is None else array.shape, None if array is None else array.dtype)
        for sharding, array in zip(shardings, arrays, strict=True)
        if sharding is not None
    ]


def array_said(tensor: Any) -> ArrayRecord | None:
    """The shape and dtype that a tensor's description says; None where it says a sharding alone.

    >>> array_said("f32[8@x,4]").shape, array_said("P('x')")
    ((8, 4), None)
    """
    if isinstance(tensor, str):
        return parse_type(tensor)
    return None if isinstance(tensor, Sharding) else array_record(tensor)


def _alone(tensor: Any, ndim: int | None) -> Sharding | None:
    """The sharding of what brings its own mesh; None for all else."""
    if isinstance(tensor, Sharding):
        return tensor
    if isinstance(tensor, str):
        try:
            return as_sharding(tensor, None, ndim)
        except ReshardError as error:
            if error.code != "unknown-mesh":
                raise
            return None
    array = array_record(tensor)
    record = sharding_record(tensor, ndim) if array is None else array.sharding
    if record is None and array is None:
        return as_sharding(tensor)  # which refuses it
    return sharding_of_record(record, None, ndim) if isinstance(record, PlacedRecord) else None


def _whole(array: ArrayRecord, mesh: Mesh | None) -> Sharding:
    """Where an array lies that does not say it: whole on every device, if whoever has it has all of it."""
    if not array.is_whole:
        what = f"an array of shape {array.shape} that is traced, or only a type,"
        raise ReshardError("bad-argument", f"{what} does not say where it lies; its sharding must be given")
    if mesh is None:
        raise ReshardError("unknown-mesh", "an array does not say on which mesh it is; another side must")
    return Sharding(mesh, ()) if mesh.is_maximal else Sharding.of(mesh, *[None] * len(array.shape))


def check_settled(target: Any) -> None:
    """Refuse a target that leaves dims to be chosen by a compiler.

    Raises:
        ReshardError: `bad-argument`.

    >>> check_settled("P(None, UNCONSTRAINED)")
    Traceback (most recent call last):
        ...
    reshard.errors.ReshardError: a target must say every dim, got UNCONSTRAINED in 'P(None, UNCONSTRAINED)'
    """
    if isinstance(target, Sharding):
        return
    record = None if isinstance(target, str) else sharding_record(target)
    spec = record.sharding if isinstance(record, PlacedRecord) else record
    is_open = "UNCONSTRAINED" in target if isinstance(target, str) else isinstance(spec, SpecRecord) and spec.open_dims
    if is_open:
        raise ReshardError("bad-argument", f"a target must say every dim, got UNCONSTRAINED in {shown(target)}")


def shape_said(tensors: Sequence[Described], shape: Any, what: str) -> tuple[int, ...]:
    """The shape that is given, or that of the first array.

    Raises:
        ReshardError: `bad-shape`, `too-large`; `bad-argument` where nothing says it, `rank-mismatch` where an array
            has another.
    """
    shapes = [tensor.shape for tensor in tensors if tensor.shape is not None]
    if shape is None and not shapes:
        raise ReshardError("bad-argument", f"the shape of {what} must be given; neither an array nor shape= says it")
    chosen = shapes[0] if shape is None else checked_shape(shape)
    for other in shapes:
        if other != chosen:
            raise ReshardError("rank-mismatch", f"the shape of {what} is {chosen}, but an array has {other}")
    return chosen


def dtype_said(tensors: Sequence[Described], dtype: Any) -> Any:
    """The dtype that is given, or that of the first array, or float32."""
    return next((tensor.dtype for tensor in tensors if tensor.dtype is not None), "float32") if dtype is None else dtype
