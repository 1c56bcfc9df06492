"""What engines call a mesh, a sharding or an array, as plain records.

Objects of an engine are taken as they are, and no engine is imported to know them.
The root module of a type, or of one that it derives from, says whose it is, and the attributes say the rest:

| object | record |
|---|---|
| JAX's `Mesh` and `AbstractMesh`, torch's `DeviceMesh` | `MeshRecord` |
| JAX's `PartitionSpec` | `SpecRecord` |
| torch's placements, one or a list of them | `PlacementsRecord` |
| XLA's `HloSharding` | `XlaRecord` |
| JAX's `NamedSharding` and other shardings, torch's `DTensorSpec`, placements with a `DeviceMesh` | `PlacedRecord` |
| an array or its type, a `DTensor`, or its spec with a shape and a dtype | `ArrayRecord` |

Texts that print the same objects are read into the same records, so what a record means is said once, in `notation`.
Why by attributes and not by registration: whoever holds such an object has imported its engine already, and whoever
does not must not wait for it.

A device of JAX is its place in the list of its backend's devices; a device of torch is a global rank.

>>> class DeviceMesh:
...     mesh_dim_names, shape, mesh = ("dp", "tp"), (2, 2), __import__("numpy").arange(4).reshape(2, 2)
>>> DeviceMesh.__module__ = "torch.distributed.device_mesh"
>>> mesh_record(DeviceMesh())
MeshRecord(axes=(('dp', 2), ('tp', 2)), devices=(0, 1, 2, 3))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from reshard.checks import integer, shown
from reshard.errors import ReshardError

ENGINE_MODULES = {"jax": "jax", "jaxlib": "jax", "torch": "torch"}
"""Whose a type is, by the root module that defines it."""
SHARD, REPLICATE, PARTIAL = "shard", "replicate", "partial"
"""The kinds of placement."""


@dataclass(frozen=True, slots=True)
class MeshRecord:
    """Named axes over devices."""

    axes: tuple[tuple[Any, int], ...]
    """Names and sizes, major to minor."""
    devices: tuple[int, ...] | None = None
    """The device at each position; None where the mesh has an order and no devices."""


@dataclass(frozen=True, slots=True)
class SpecRecord:
    """Per dim the axes that cut it, on a mesh that is not said."""

    dims: tuple[tuple[Any, ...], ...]
    """Names of axes, major to minor."""
    open_dims: frozenset[int] = frozenset()
    """The dims that are left to be chosen."""
    replicated: tuple[Any, ...] = ()
    unreduced: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """What one mesh dim does to a tensor."""

    kind: str
    """SHARD, REPLICATE or PARTIAL."""
    dim: int = 0
    """The dim that is cut; below 0 counted from the last."""
    split_factor: int = 1
    """Into how many parts mesh dims to the right have cut the dim before."""
    reduction: str = "sum"


@dataclass(frozen=True, slots=True)
class PlacementsRecord:
    """One placement per mesh dim, on a mesh that is not said."""

    placements: tuple[PlacementRecord, ...]
    order: tuple[tuple[int, tuple[int, ...]], ...] | None = None
    """Tensor dims with the mesh dims that cut them, major to minor; None where the split factors say it."""


@dataclass(frozen=True, slots=True)
class XlaRecord:
    """A sharding in XLA's text, by positions."""

    text: str
    is_tiled: bool


@dataclass(frozen=True, slots=True)
class PlacedRecord:
    """A sharding with its mesh."""

    mesh: MeshRecord
    sharding: SpecRecord | PlacementsRecord | XlaRecord


ShardingRecord = SpecRecord | PlacementsRecord | XlaRecord | PlacedRecord


@dataclass(frozen=True, slots=True)
class ArrayRecord:
    """An array, or what stands for one: its type."""

    shape: tuple[int, ...]
    dtype: Any
    sharding: ShardingRecord | None = None
    """None where it does not say where it lies."""
    is_whole: bool = False
    """Whether whoever has it has all of it: an array of NumPy, a tensor of torch that is no DTensor."""


def owned_names(value: object) -> frozenset[str]:
    """Whose a value is, and the names of its engine's types that it is one of; empty where it is no engine's.

    >>> owned_names(3)
    frozenset()
    """
    return _names_of(type(value).__mro__)


@lru_cache(256)
def _names_of(kinds: tuple[type, ...]) -> frozenset[str]:
    owners = {}
    for kind in kinds:
        engine = ENGINE_MODULES.get(str(kind.__module__).partition(".")[0])
        if engine:
            owners[kind.__name__] = engine
    return frozenset([*owners, *owners.values()])


def mesh_record(value: Any) -> MeshRecord | None:
    """A mesh of an engine; None where the value is none."""
    names = owned_names(value)
    if {"torch", "DeviceMesh"} <= names:
        named = value.mesh_dim_names or tuple(f"dim_{place}" for place in range(len(value.shape)))
        devices = tuple(int(rank) for rank in value.mesh.flatten().tolist())
        return MeshRecord(tuple(zip(named, map(int, value.shape), strict=True)), devices)
    if "jax" not in names or not names & {"Mesh", "AbstractMesh"}:
        return None
    axes = tuple(zip(value.axis_names, map(int, value.axis_sizes), strict=True))
    if "AbstractMesh" in names or not value.devices.size:
        return MeshRecord(axes)
    return MeshRecord(axes, device_numbers(value.devices.flat))


def whole_mesh_record(tensor: Any) -> MeshRecord | None:
    """The mesh that a DTensor's is a slice of, where it is one; every rank has its own slice, but all have that one."""
    mesh = getattr(tensor, "device_mesh", None)
    root = getattr(mesh, "_get_root_mesh", None)
    if mesh is None or not callable(root) or root() is mesh:
        return None
    return mesh_record(root())


def device_numbers(devices: Iterable[Any]) -> tuple[int, ...]:
    """The places of devices of JAX in the list of their backend."""
    listed = list(devices)
    places = {device: place for place, device in enumerate(listed[0].client.devices())} if listed else {}
    return tuple(places[device] for device in listed)


def sharding_record(value: Any, ndim: int | None = None) -> ShardingRecord | None:
    """What an engine's object says of where a tensor lies; None where it is no such object.

    Args:
        value: a spec, a sharding or placements; or a pair of placements and a `DeviceMesh`.
        ndim: the number of dims of the tensor, which some shardings of JAX do not say.

    Raises:
        ReshardError: `cannot-express` for a placement that is private to an operation, or a sharding of JAX that
            needs `ndim` where there is none.
    """
    if isinstance(value, tuple) and len(value) == 2 and (mesh := _mesh_of_torch(value[1])) is not None:
        placements = placements_record(value[0])
        return None if placements is None else PlacedRecord(mesh, placements)
    names = owned_names(value)
    if "torch" in names and hasattr(value, "placements"):
        return _placed_of_torch(value)
    if "jax" in names and names & {"PartitionSpec", "P"}:
        return _spec_record(value)
    if "NamedSharding" in names:
        mesh = mesh_record(value.mesh)
        return None if mesh is None else PlacedRecord(mesh, _spec_record(value.spec))
    if "HloSharding" in names:
        return XlaRecord(str(value), value.is_tiled())
    if "SingleDeviceSharding" in names:
        return PlacedRecord(MeshRecord((), device_numbers(value.device_set)), SpecRecord(()))
    if "jax" in names and hasattr(value, "_to_xla_hlo_sharding"):
        return _placed_of_jax(value, ndim)
    return placements_record(value)


def _mesh_of_torch(value: Any) -> MeshRecord | None:
    return mesh_record(value) if "DeviceMesh" in owned_names(value) else None


def _placed_of_jax(sharding: Any, ndim: int | None) -> PlacedRecord:
    """A sharding of JAX without names, by what XLA makes of it."""
    if ndim is None:
        raise ReshardError("cannot-express", f"{shown(sharding)} does not say for how many dims it is")
    numbers = device_numbers(sharding._device_assignment)
    of_xla = sharding._to_xla_hlo_sharding(ndim)
    return PlacedRecord(MeshRecord((("devices", len(numbers)),), numbers), XlaRecord(str(of_xla), of_xla.is_tiled()))


def _spec_record(spec: Any) -> SpecRecord:
    entries = tuple(getattr(spec, "partitions", spec))
    open_dims = frozenset(dim for dim, entry in enumerate(entries) if entry is spec.UNCONSTRAINED)
    dims = tuple(() if dim in open_dims else names_in(entry) for dim, entry in enumerate(entries))
    reduced, unreduced = (tuple(getattr(spec, name, ())) for name in ("reduced", "unreduced"))
    return SpecRecord(dims, open_dims, reduced, unreduced)


def names_in(entry: Any) -> tuple[Any, ...]:
    """The names of the axes of one entry of a spec.

    >>> names_in("x"), names_in(("x", "y")), names_in(None)
    (('x',), ('x', 'y'), ())
    """
    return () if entry is None else tuple(entry) if isinstance(entry, tuple | list) else (entry,)


def placements_record(value: Any) -> PlacementsRecord | None:
    """Placements of torch, one or a list of them; None where the value is none.

    Raises:
        ReshardError: `cannot-express` for a placement that is private to an operation.
    """
    placements = value if isinstance(value, list | tuple) else [value]
    if not placements or not all("Placement" in owned_names(placement) for placement in placements):
        return None
    return PlacementsRecord(tuple(map(_placement_record, placements)))


def _placement_record(placement: Any) -> PlacementRecord:
    kind = type(placement).__name__
    if kind == "Replicate":
        return PlacementRecord(REPLICATE)
    if kind == "Partial":
        return PlacementRecord(PARTIAL, reduction=str(placement.reduce_op))
    if kind in ("Shard", "_StridedShard", "StridedShard"):
        return PlacementRecord(SHARD, int(placement.dim), int(getattr(placement, "split_factor", 1)))
    raise ReshardError("cannot-express", f"placement {placement!r} is private to an operation and has no sharding")


def _placed_of_torch(value: Any) -> PlacedRecord | None:
    """What a DTensor or its spec says."""
    spec = getattr(value, "_spec", value)
    mesh, placements = mesh_record(spec.mesh), placements_record(tuple(spec.placements))
    if mesh is None or placements is None:
        return None
    return PlacedRecord(mesh, PlacementsRecord(placements.placements, shard_order(spec)))


def shard_order(spec: Any) -> tuple[tuple[int, tuple[int, ...]], ...] | None:
    """In which order mesh dims cut each dim, as a spec of torch says; None where split factors say it."""
    order = getattr(spec, "shard_order", None)
    if order is None or getattr(spec, "use_strided_shard_as_shard_order", False):
        return None
    return tuple((int(dim), tuple(map(int, mesh_dims))) for dim, mesh_dims in order)


def array_record(value: Any) -> ArrayRecord | None:
    """An array of any engine or of NumPy, or its type; None where the value is none.

    What is traced says where it lies only where all axes of its mesh are explicit.
    """
    meta = getattr(value, "tensor_meta", None) if "DTensorSpec" in owned_names(value) else None
    if meta is not None:
        return ArrayRecord(tuple(map(int, meta.shape)), meta.dtype, _placed_of_torch(value))
    if isinstance(value, type) or not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return None
    try:
        shape = tuple(integer(size, "a size", "bad-shape") for size in value.shape)
    except TypeError:  # a shape that is not known yet
        return None
    names = owned_names(value)
    if "torch" in names:
        sharding = _placed_of_torch(value) if hasattr(value, "placements") else None
        return ArrayRecord(shape, value.dtype, sharding, is_whole=sharding is None)
    if "jax" in names:
        return ArrayRecord(shape, value.dtype, _lies_by(value, len(shape)))
    return ArrayRecord(shape, value.dtype, is_whole=True)


def _lies_by(array: Any, ndim: int) -> ShardingRecord | None:
    """By which sharding an array of JAX lies, or is known to lie while it is traced."""
    is_traced = "Tracer" in owned_names(array)
    sharding = getattr(array.aval if is_traced else array, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    if sharding is None or (mesh is not None and (mesh.empty or _is_chosen_later(mesh))):
        return None
    return sharding_record(sharding, ndim)


def _is_chosen_later(mesh: Any) -> bool:
    """Whether the mesh is only a type, some of whose axes the compiler gives out."""
    return "AbstractMesh" in owned_names(mesh) and not all("Explicit" in str(kind) for kind in mesh.axis_types)
