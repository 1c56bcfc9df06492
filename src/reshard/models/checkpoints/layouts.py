"""What is to be written: files of known sizes, and where in them which box of which tensor goes.

Without rules a file holds whole tensors, up to a size.
With rules each device has a file of the buffers that it keeps, fused, stacked and transposed as its rules say, and an
index says where in them each tensor lies, so that they can be read again.

>>> casts = casts_of(["*.weight=bf16", "f32"])
>>> [written_dtype(name, dtype_named("f64"), casts).name for name in ("a.weight", "a.bias")]
['bfloat16', 'float32']
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reshard.box import Box
from reshard.dtypes import DType, dtype_named, value_dtype
from reshard.errors import ReshardError
from reshard.models.checkpoints import safetensors
from reshard.models.checkpoints.copying import TensorCopy, TileTarget
from reshard.models.checkpoints.device_tiles import tile_at
from reshard.models.checkpoints.files import TileFile
from reshard.models.checkpoints.stored import INDEX, TILES, Checkpoint, ReadableTensor
from reshard.models.names import pattern_of
from reshard.models.stores import Buffer, HeldTensor, Store, slots_of

if TYPE_CHECKING:  # rules load where they are read
    from reshard.models.ruleset import Rules
    from reshard.models.sites import Site

SHARD_BYTES = 5 * 10**9
"""Of a file that holds tensors, about: what published checkpoints have."""
STATES = [
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "momentum_buffer",
    "square_avg",
    "grad_avg",
    "acc_delta",
    "sum",
    "master_param",
]
"""What optimizers keep for every element of a parameter."""
_STATE = re.compile(rf"(?:.*\.)?state\.(?P<parameter>.+)\.(?P<state>{'|'.join(STATES)})")


class Cast(NamedTuple):
    """What the floats of some tensors are written as; of several, the first whose pattern matches decides."""

    pattern: str
    """For their names."""
    dtype: DType


class FixedBytes(NamedTuple):
    """Bytes of a file that are known before any tensor is read."""

    path: Path
    offset: int
    data: bytes


class CreatedArray(NamedTuple):
    """An array that is made before anything is written to it."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    """The shape of its parts."""
    dtype: DType


@dataclass
class WrittenFiles:
    """What is written."""

    form: str
    sizes: dict[str, int] = field(default_factory=dict)
    """By file its bytes."""
    fixed: list[FixedBytes] = field(default_factory=list)
    targets: dict[str, list[TileTarget]] = field(default_factory=dict)
    """By tensor."""
    arrays: dict[str, CreatedArray] = field(default_factory=dict)
    """By name what is no file of ours."""
    others: list[TensorCopy] = field(default_factory=list)
    """What is copied beside tensors."""
    indexes: dict[str, bytes] = field(default_factory=dict)
    """Files that say where all is; written last."""
    grids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By tensor the shape of the blocks that are written, where it matters."""

    @property
    def nbytes(self) -> int:
        """Of all files, and of arrays before they are packed."""
        arrays = sum(prod(array.shape) * array.dtype.itemsize for array in self.arrays.values())
        return sum(self.sizes.values()) + arrays

    def copies(self, checkpoint: Checkpoint) -> list[TensorCopy]:
        """What is to be done, tensor by tensor, in the order in which they lie."""
        copies = [
            TensorCopy(name, tensor, tuple(self.targets.get(name, ())), self.grids.get(name))
            for name, tensor in checkpoint.tensors.items()
            if self.targets.get(name)
        ]
        return [*copies, *self.others]

    def add_buffers(self, file: str, buffers: Mapping[str, Buffer], metadata: Mapping[str, str]) -> dict[str, int]:
        """A file of safetensors; by buffer where its data begins.

        Raises:
            ReshardError: `cannot-express`.
        """
        header = safetensors.header_of({name: (each.dtype, each.shape) for name, each in buffers.items()}, metadata)
        self.fixed.append(FixedBytes(Path(file), 0, header))
        places, place = {}, len(header)
        for name, buffer in buffers.items():
            places[name] = place
            place += prod(buffer.shape) * buffer.dtype.itemsize
        self.sizes[file] = place
        return places


def casts_of(texts: Iterable[str]) -> tuple[Cast, ...]:
    """Casts from their texts: a dtype, or a pattern for names and a dtype, as `*.weight=bf16`.

    Raises:
        ReshardError: `unknown-dtype`, `syntax`.
    """
    casts = []
    for text in texts:
        pattern, _, dtype = text.rpartition("=")
        pattern_of(pattern or "*")
        casts.append(Cast(pattern or "*", dtype_named(dtype)))
    return tuple(casts)


def written_dtype(name: str, dtype: DType, casts: Sequence[Cast]) -> DType:
    """What a tensor is written as: floats of two bytes and more as casts say, all else as it is.

    Raises:
        ReshardError: `bad-argument`, `missing-extra`: where it cannot be.
    """
    if dtype.kind != "f" or dtype.itemsize < 2:
        return dtype
    for pattern, wanted in casts:
        if pattern_of(pattern).fullmatch(name):
            if wanted != dtype and wanted.kind != "f":
                raise ReshardError("bad-argument", f"values of {dtype} cannot be written as {wanted}")
            if wanted != dtype:
                value_dtype(dtype)
                value_dtype(wanted)
            return wanted
    return dtype


def sharded_names(tensors: Iterable[tuple[str, int]], limit: int = SHARD_BYTES) -> list[list[str]]:
    """Names in groups whose bytes stay below a limit, in their order.

    >>> sharded_names([("a", 3), ("b", 3), ("c", 9), ("d", 1)], 6)
    [['a', 'b'], ['c'], ['d']]
    """
    groups: list[list[str]] = [[]]
    size = 0
    for name, nbytes in tensors:
        if groups[-1] and size + nbytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += nbytes
    return groups


def whole_files(checkpoint: Checkpoint, casts: Sequence[Cast], shard_bytes: int = SHARD_BYTES) -> WrittenFiles:
    """Files of safetensors that hold whole tensors, each up to a size, and their index.

    Raises:
        ReshardError: `cannot-express`, and those of `written_dtype`.
    """
    written = WrittenFiles("safetensors")
    buffers = {
        name: Buffer(tensor.shape, written_dtype(name, tensor.dtype, casts))
        for name, tensor in checkpoint.tensors.items()
    }
    sizes = [(name, prod(buffer.shape) * buffer.dtype.itemsize) for name, buffer in buffers.items()]
    groups = sharded_names(sizes, shard_bytes)
    names: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        file = "model.safetensors" if len(groups) == 1 else f"model-{number:05}-of-{len(groups):05}.safetensors"
        places = written.add_buffers(file, {name: buffers[name] for name in group}, {"format": "pt"})
        for name in group:
            tile = TileFile(Path(file), places[name], Box.whole(buffers[name].shape))
            written.targets[name] = [TileTarget(tile, buffers[name].dtype)]
        names |= dict.fromkeys(group, file)
    if len(groups) > 1:
        index = {"metadata": {"total_size": sum(size for _, size in sizes)}, "weight_map": names}
        written.indexes[INDEX] = json.dumps(index, indent=1).encode()
    return written


class PlacedTensor(NamedTuple):
    """Where a tensor lies on devices, and how they keep it."""

    site: Site
    store: Store


def placed_tensors(checkpoint: Checkpoint, rules: Rules) -> dict[str, PlacedTensor]:
    """What the rules say of every tensor; what an optimizer keeps of a parameter follows the parameter.

    Raises:
        ReshardError: as `Rules.ruled`.
    """
    parameters = _parameters_of(checkpoint.tensors)
    result = {}
    for name, tensor in checkpoint.tensors.items():
        ruled = rules.ruled(parameters.get(name, name), tensor.shape)
        result[name] = PlacedTensor(ruled.site, Store(name) if name in parameters else ruled.store())
    return result


def _parameters_of(tensors: Mapping[str, ReadableTensor]) -> dict[str, str]:
    """By the name of what an optimizer keeps, that of the parameter of the same shape that it is kept of.

    A state says its parameter's name, perhaps without what it begins with.
    """
    states = {name: match["parameter"] for name in tensors if (match := _STATE.fullmatch(name)) is not None}
    ends: dict[str, list[str]] = {}
    for name in tensors if states else ():
        parts = name.split(".")
        for first in range(len(parts) if name not in states else 0):
            ends.setdefault(".".join(parts[first:]), []).append(name)
    result = {}
    for name, said in states.items():
        fitting = [other for other in ends.get(said, ()) if tensors[other].shape == tensors[name].shape]
        if fitting:
            result[name] = min(fitting, key=len)
    return result


def device_files(checkpoint: Checkpoint, rules: Rules, casts: Sequence[Cast]) -> WrittenFiles:
    """A file of safetensors for every device of the rules, with the buffers that it keeps, and the index of tensors.

    Raises:
        ReshardError: as `Rules.ruled`, `slots_of` and `written_dtype`.
    """
    placed = placed_tensors(checkpoint, rules)
    written = WrittenFiles("tiles", targets={name: [] for name in placed})
    dtypes = {name: written_dtype(name, tensor.dtype, casts) for name, tensor in checkpoint.tensors.items()}
    listing: dict[str, dict[str, Any]] = {
        name: {"dtype": dtypes[name].name, "shape": tensor.shape, "tiles": []}
        for name, tensor in checkpoint.tensors.items()
    }
    known: dict[str, set[Box]] = {name: set() for name in placed}
    devices = {}
    for device in sorted(rules.mesh.devices):
        held = {
            name: HeldTensor(store, site.tile(device), site.memory_shape(device), site.shape, dtypes[name])
            for name, (site, store) in placed.items()
            if device in site.position_of
        }
        slots, buffers = slots_of(held)
        file = devices[str(device)] = f"device-{device:05}.safetensors"
        places = written.add_buffers(file, buffers, {"format": "pt"})
        for name, each in slots.items():
            for slot in each:
                if not slot.box.is_empty:
                    tile = tile_at(Path(file), places[slot.buffer], buffers[slot.buffer], slot)
                    written.targets[name].append(TileTarget(tile, dtypes[name]))
                if slot.box not in known[name]:
                    known[name].add(slot.box)
                    listing[name]["tiles"].append([file, slot.buffer, slot.box, slot.start, slot.stack, slot.dims])
    text = json.dumps({"version": 1, "devices": devices, "tensors": listing}, separators=(",", ":"))
    written.indexes[TILES] = text.encode()
    return written
