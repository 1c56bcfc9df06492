"""Torch's distributed checkpoints, written without torch.

Every box that a rank keeps is an *item* of that rank's file: a zip as `torch.save` writes it, with a pickle that says
dtype and shape, and the elements at a multiple of 64 bytes.
`.metadata`, a pickle, says where all items are; it is written last.

By hand, the members of an item of 6 floats, and where its elements begin:

>>> import io, zipfile
>>> item = item_of(Path("a"), 0, Box([(0, 2), (0, 3)]), dtype_named("f32"))
>>> data = bytearray(item.length)
>>> for piece in item.fixed:
...     data[piece.offset : piece.offset + len(piece.data)] = piece.data
>>> [entry.filename for entry in zipfile.ZipFile(io.BytesIO(data)).infolist()]
['archive/data.pkl', 'archive/byteorder', 'archive/data/0', 'archive/version']
>>> item.target.file.offset % 64
0
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reshard.box import Box
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError
from reshard.models.checkpoints.copying import TensorCopy, TileTarget
from reshard.models.checkpoints.dcp import DTYPES, METADATA, STORAGES
from reshard.models.checkpoints.files import TileFile, row_major
from reshard.models.checkpoints.layouts import (
    Cast,
    FixedBytes,
    WrittenFiles,
    placed_tensors,
    sharded_names,
    written_dtype,
)
from reshard.models.checkpoints.pickles import AnyKeys, FunctionCall, Global, Instance, Outside, dump
from reshard.models.checkpoints.stored import Checkpoint, ItemPlace, StoredTensor

if TYPE_CHECKING:  # rules load where they are read
    from reshard.models.ruleset import Rules

MAX_ITEM = 2**31
"""Bytes of an item at the most; a larger box is several items, so that the plain fields of a zip do."""
ALIGNMENT = 64
_DESCRIBING = "torch.distributed.checkpoint.metadata"
_TORCH_NAMES = {ours: theirs for theirs, ours in DTYPES.items()}
_STORAGE_NAMES = {dtype: name for name, dtype in STORAGES.items() if dtype}


class SavedItem(NamedTuple):
    """A box of a tensor, as it is saved."""

    length: int
    fixed: tuple[FixedBytes, ...]
    target: TileTarget


def dcp_files(checkpoint: Checkpoint, rules: Rules | None, casts: Sequence[Cast]) -> WrittenFiles:
    """A file for every device of the rules, or files of whole tensors up to a size; and what says where all is.

    A box that several devices have is written by that of them which has written least.
    What a checkpoint of torch's has beside tensors goes into the first file as it is.

    Raises:
        ReshardError: as `Rules.ruled` and `written_dtype`; `cannot-express` where torch has no such dtype.
    """
    written = WrittenFiles("dcp")
    dtypes = {name: written_dtype(name, tensor.dtype, casts) for name, tensor in checkpoint.tensors.items()}
    boxes = _whole_boxes(checkpoint, dtypes) if rules is None else _device_boxes(checkpoint, rules)
    places: dict[tuple[str, tuple[int, ...] | None], ItemPlace] = {}
    for name, (file, box) in ((name, placed) for name, listing in boxes.items() for placed in listing):
        if dtypes[name].name not in _TORCH_NAMES:
            raise ReshardError("cannot-express", f"torch has no dtype for {dtypes[name]}, of tensor {name!r}")
        for part in split(box, dtypes[name].itemsize):
            start = -(-written.sizes.get(file, 0) // ALIGNMENT) * ALIGNMENT
            item = item_of(Path(file), start, part, dtypes[name])
            written.fixed.extend(item.fixed)
            written.targets.setdefault(name, []).append(item.target)
            written.sizes[file] = start + item.length
            places[name, tuple(low for low, _ in part)] = ItemPlace(Path(file), start, item.length)
    first = min(written.sizes, default="__0_0.distcp")
    for name, place in checkpoint.others.items():
        if place is None:
            continue
        start = written.sizes.get(first, 0)
        raw = (TileFile(place.path, place.offset, Box([(0, place.length)])),)
        copied = TileFile(Path(first), start, Box([(0, place.length)]))
        byte = dtype_named("u8")
        written.others.append(TensorCopy(name, StoredTensor(byte, (place.length,), raw), (TileTarget(copied, byte),)))
        written.sizes[first] = start + place.length
        places[name, None] = ItemPlace(Path(first), start, place.length)
    written.indexes[METADATA] = _metadata(checkpoint, written, dtypes, places)
    return written


def _whole_boxes(checkpoint: Checkpoint, dtypes: dict[str, DType]) -> dict[str, list[tuple[str, Box]]]:
    sizes = [
        (name, Box.whole(tensor.shape).size * dtypes[name].itemsize) for name, tensor in checkpoint.tensors.items()
    ]
    return {
        name: [(f"__0_{number}.distcp", Box.whole(checkpoint.tensors[name].shape))]
        for number, group in enumerate(sharded_names(sizes))
        for name in group
    }


def _device_boxes(checkpoint: Checkpoint, rules: Rules) -> dict[str, list[tuple[str, Box]]]:
    """By tensor its distinct boxes, each with the file of the device that writes it."""
    loads = dict.fromkeys(sorted(rules.mesh.devices), 0)
    boxes: dict[str, list[tuple[str, Box]]] = {}
    for name, placed in placed_tensors(checkpoint, rules).items():
        tensor, holders = checkpoint.tensors[name], dict[Box, list[int]]()
        for device in placed.site.position_of:
            for box in placed.site.tile(device).boxes():
                holders.setdefault(box, []).append(device)
        if Box.whole(tensor.shape).size:
            holders = {box: devices for box, devices in holders.items() if not box.is_empty}
        else:
            holders = {Box.whole(tensor.shape): sorted(loads)[:1]}
        boxes[name] = []
        for box, devices in holders.items():
            device = min(devices, key=lambda device: (loads[device], device))
            loads[device] += box.size * tensor.dtype.itemsize
            boxes[name].append((f"__{device}_0.distcp", box))
    return boxes


def split(box: Box, itemsize: int, limit: int = MAX_ITEM) -> list[Box]:
    """A box in parts of at most so many bytes, or one element.

    >>> split(Box([(0, 1), (3, 7)]), 4, 8)
    [Box([(0, 1), (3, 5)]), Box([(0, 1), (5, 7)])]
    """
    if box.size * itemsize <= limit:
        return [box]
    dim = next(dim for dim, size in enumerate(box.shape) if size > 1)
    low, high = box[dim]
    middle = (low + high) // 2
    halves = (Box([*box[:dim], half, *box[dim + 1 :]]) for half in ((low, middle), (middle, high)))
    return [part for half in halves for part in split(half, itemsize, limit)]


def item_of(path: Path, start: int, box: Box, dtype: DType) -> SavedItem:
    """An item at a place of a file: what of it is known, where its elements go, and where their sum."""
    size = box.size * dtype.itemsize
    members = [
        ("archive/data.pkl", _pickled_view(box, dtype)),
        ("archive/byteorder", b"little"),
        ("archive/data/0", None),
        ("archive/version", b"3\n"),
    ]
    head, tail, directory, place, crc_at = b"", b"", b"", 0, []
    for name, data in members:
        length = size if data is None else len(data)
        plain = place + 30 + len(name) + 4  # where data would begin behind an empty filler
        extra = b"" if data is not None else struct.pack("<HH", 0x4246, -plain % ALIGNMENT) + bytes(-plain % ALIGNMENT)
        fields = struct.pack("<HHHHHIIIHH", 20, 0x800, 0, 0, 33, zlib.crc32(data or b""), length, length, len(name), 0)
        local = b"PK\3\4" + fields[:-2] + struct.pack("<H", len(extra)) + name.encode() + extra
        if data is None:
            crc_at = [place + 14, len(directory) + 16]
            head, data_start = head + local, place + len(local)
        elif crc_at:
            tail += local + data
        else:
            head += local + data
        directory += (
            b"PK\1\2" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, place) + name.encode()
        )
        place += len(local) + length
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, len(members), len(members), len(directory), place, 0)
    fixed = FixedBytes(path, start, head), FixedBytes(path, start + data_start + size, tail + directory + end)
    sums = (start + crc_at[0], start + place + crc_at[1])
    target = TileTarget(TileFile(path, start + data_start, box), dtype, sums)
    return SavedItem(place + len(directory) + len(end), fixed, target)


def _pickled_view(box: Box, dtype: DType) -> bytes:
    """What says that the elements are a tensor, row by row."""
    shape, storage = box.shape, _STORAGE_NAMES.get(dtype.name)
    kind = Global("torch", storage) if storage else Global("torch.storage", "UntypedStorage")
    count = box.size if storage else box.size * dtype.itemsize
    view = (Outside(("storage", kind, "0", "cpu", count)), 0, shape, row_major(shape), False)
    hooks = FunctionCall(Global("collections", "OrderedDict"), ())
    if storage:
        return dump(FunctionCall(Global("torch._utils", "_rebuild_tensor_v2"), (*view, hooks)))
    of_dtype = Global("torch", _TORCH_NAMES[dtype.name])
    return dump(FunctionCall(Global("torch._utils", "_rebuild_tensor_v3"), (*view, hooks, of_dtype)))


def _size(shape: tuple[int, ...]) -> FunctionCall:
    return FunctionCall(Global("torch", "Size"), (shape,))


def _metadata(checkpoint: Checkpoint, written: WrittenFiles, dtypes: dict[str, DType], places: Any) -> bytes:
    """What says where all is."""
    described: dict[str, Any] = {}
    for name, tensor in checkpoint.tensors.items():
        layout = FunctionCall(Global("torch.serialization", "_get_layout"), ("torch.strided",))
        contiguous = FunctionCall(Global(_DESCRIBING, "_MEM_FORMAT_ENCODING"), (0,))
        state = (Global("torch", _TORCH_NAMES[dtypes[name].name]), layout, False, contiguous, False)
        chunks = [
            Instance(
                Global(_DESCRIBING, "ChunkStorageMetadata"),
                {"offsets": _size(tuple(low for low, _ in target.file.box)), "sizes": _size(target.file.box.shape)},
            )
            for target in written.targets[name]
        ]
        properties = Instance(Global(_DESCRIBING, "TensorProperties"), state)
        fields = {"properties": properties, "size": _size(tensor.shape), "chunks": chunks}
        described[name] = Instance(Global(_DESCRIBING, "TensorStorageMetadata"), fields)
    for name, _ in (key for key in places if key[1] is None):
        described[name] = Instance(Global(_DESCRIBING, "BytesStorageMetadata"), {})
    storage = tuple(
        (
            Instance(
                Global(_DESCRIBING, "MetadataIndex"),
                {"fqn": name, "index": None, "offset": None if low is None else _size(low)},
            ),
            Instance(
                Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
                {"relative_path": str(place.path), "offset": place.offset, "length": place.length},
            ),
        )
        for (name, low), place in places.items()
    )
    fields = {
        "state_dict_metadata": described,
        "planner_data": {name: checkpoint.tree.get(name, (name,)) for name in described},
        "storage_data": AnyKeys(storage),
        "storage_meta": None,
        "version": "1.0.0",
    }
    return dump(Instance(Global(_DESCRIBING, "Metadata"), fields))
