"""Torch's distributed checkpoints, read without torch.

`.metadata` is a pickle that says of every tensor its shape, its dtype and the boxes that it is cut into, and where each
box lies: a file, and the bytes of an *item* in it.
An item is a zip as `torch.save` writes it, its members stored as they are: `…/data.pkl`, which says the dtype and the
strides, and `…/data/0` with the elements.
So an item's directory, at its end, gives the place of the elements; data need not be aligned in the file.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

from reshard.box import Box
from reshard.checks import checked_shape
from reshard.dtypes import DType, dtype_named
from reshard.errors import ReshardError, refusing
from reshard.models.checkpoints.files import FileReader, TileFile
from reshard.models.checkpoints.pickles import Names, Record, load
from reshard.models.checkpoints.stored import Checkpoint, ItemPlace, StoredTensor, is_inside

METADATA = ".metadata"
MAX_METADATA = 2**30
MAX_DIRECTORY = 2**20
MAX_PICKLE = 2**20
"""Bytes that are read at the most, of each."""
DTYPES = {
    **{
        name: name for name in ("float32", "float64", "float16", "bfloat16", "uint8", "int8", "int16", "int32", "int64")
    },
    **{name: name for name in ("bool", "complex64", "complex128", "uint16", "uint32", "uint64")},
    **{f"float8_{form}": f"float8_{form}" for form in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")},
}
"""Torch's names, and ours."""
STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "",
}
"""The types of a storage, and of their elements."""
_RECORDS = {
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "MetadataIndex", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata"),
        *("BytesStorageMetadata", "StorageMeta"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
}


class ItemReader(FileReader):
    """Reads items, and knows which of their descriptions were found to be whole boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.views: set[tuple[bytes, tuple[int, ...], DType]] = set()


def read(folder: Path) -> Checkpoint:
    """What a folder holds.

    Raises:
        ReshardError: `bad-file`.
    """
    path = folder / METADATA
    with refusing("bad-file", f"{path} could not be read"), path.open("rb") as file:
        data = file.read(MAX_METADATA + 1)
    if len(data) > MAX_METADATA:
        raise ReshardError("bad-file", f"{path} has more than the {MAX_METADATA} bytes that are read")
    names = _names()
    metadata = load(data, names, str(path))
    kinds = {name: names[module, name] for module, listing in _RECORDS.items() for name in listing}
    described = _fields(metadata, "state_dict_metadata", path)
    places = _places(_fields(metadata, "storage_data", path), folder)
    tensors, others = {}, {}
    with ItemReader() as reader:
        for name, said in described.items():
            if isinstance(said, kinds["BytesStorageMetadata"]):
                others[name] = _bytes_place(name, places, path)
                continue
            if not isinstance(said, kinds["TensorStorageMetadata"]):
                raise ReshardError("bad-file", f"{path} says of {name!r} neither a tensor nor bytes")
            tensors[name] = _tensor(name, said, places, reader, path)
    files = sorted({place.path for place in places.values()})
    return Checkpoint(folder, "dcp", tensors, (path, *files), others, _tree(metadata.get("planner_data")))


def _bytes_place(name: str, places: dict[Any, ItemPlace], path: Path) -> ItemPlace:
    """Where an item that is no tensor lies, inside its file."""
    place = places.get((name, None))
    with refusing("bad-file", f"{path} does not say where {name!r} lies"):
        if place is None or place.offset + place.length > place.path.stat().st_size:
            raise ReshardError("bad-file", f"{path} does not say where {name!r} lies")
    return place


def _tree(planned: Any) -> dict[str, tuple[str | int, ...]]:
    """By name the keys that lead to it in the state that was saved."""
    listing = planned.items() if isinstance(planned, dict) else ()
    return {
        name: keys
        for name, keys in listing
        if isinstance(name, str) and isinstance(keys, tuple) and all(type(key) in (str, int) for key in keys)
    }


def _names() -> Names:
    """What the pickles may ask for; classes made anew, so that no file can change them."""
    names: dict[tuple[str, str], Any] = {
        (module, name): type(name, (Record,), {}) for module, listing in _RECORDS.items() for name in listing
    }
    names["torch", "Size"] = tuple
    names["torch.serialization", "_get_layout"] = _nothing
    names["torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"] = _nothing
    names["collections", "OrderedDict"] = type("OrderedDict", (dict,), {})
    names |= {("pathlib", name): _path for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")}
    names |= {("torch", name): TorchDType(ours) for name, ours in DTYPES.items()}
    names |= {("torch", name): StorageType(dtype) for name, dtype in STORAGES.items()}
    names["torch.storage", "UntypedStorage"] = StorageType("")
    names |= {("torch._utils", f"_rebuild_tensor_v{version}"): Rebuilt for version in (2, 3)}
    names["torch._tensor", "_rebuild_from_type_v2"] = _nothing
    return names


class TorchDType(NamedTuple):
    """Stands for a dtype of torch."""

    name: str


class StorageType(NamedTuple):
    """Stands for a type of storage."""

    dtype: str


class Rebuilt:
    """Stands for a tensor over a storage."""

    def __init__(self, *args: Any) -> None:
        self.args = args


def _nothing(*_: Any) -> None:
    return None


def _path(*parts: Any) -> str:
    return "/".join(map(str, parts))


def _fields(record: Any, name: str, path: Path) -> dict[Any, Any]:
    value = record.get(name) if isinstance(record, Record) else None
    if not isinstance(value, dict):
        raise ReshardError("bad-file", f"{path} has no {name}")
    return value


def _places(storage: dict[Any, Any], folder: Path) -> dict[tuple[str, tuple[int, ...] | None], ItemPlace]:
    """By name and offset of a box, where its item lies."""
    places = {}
    for index, info in storage.items():
        if not isinstance(index, Record) or not isinstance(info, Record):
            raise ReshardError("bad-file", f"{folder / METADATA} has no place for an item")
        fqn, offset = index.get("fqn"), index.get("offset")
        relative, start, length = info.get("relative_path"), info.get("offset"), info.get("length")
        if info.get("transform_descriptors"):
            raise ReshardError("bad-file", f"{fqn!r} in {folder} is compressed or encrypted, which is not read")
        if not is_inside(relative):
            raise ReshardError("bad-file", f"{fqn!r} in {folder} lies in {relative!r}, which is no file of the folder")
        if type(start) is not int or type(length) is not int or start < 0 or length < 0 or not isinstance(fqn, str):
            raise ReshardError("bad-file", f"{folder / METADATA} has no place for {fqn!r}")
        key = fqn, None if offset is None else _sizes(offset, folder)
        places[key] = ItemPlace(folder / relative, start, length)
    return places


def _sizes(value: Any, path: Path) -> tuple[int, ...]:
    if isinstance(value, tuple) and len(value) == 1 and isinstance(value[0], tuple | list):
        value = value[0]  # torch.Size is given its sizes as a list
    if not isinstance(value, tuple | list) or not all(type(size) is int and size >= 0 for size in value):
        raise ReshardError("bad-file", f"{path} has sizes that are no numbers")
    return checked_shape(tuple(value))


def _tensor(name: str, said: Record, places: dict[Any, ItemPlace], reader: ItemReader, path: Path) -> StoredTensor:
    shape = _sizes(said.get("size"), path)
    properties = said.get("properties")
    dtype = properties.args[0] if isinstance(properties, Record) and isinstance(properties.args, tuple) else None
    if not isinstance(dtype, TorchDType):
        raise ReshardError("bad-file", f"{path} does not say the dtype of {name!r}")
    ours = dtype_named(dtype.name)
    chunks = []
    for chunk in said.get("chunks") or ():
        if not isinstance(chunk, Record):
            raise ReshardError("bad-file", f"{path} says of {name!r} a chunk that is none")
        low, sizes = _sizes(chunk.get("offsets"), path), _sizes(chunk.get("sizes"), path)
        place = places.get((name, low)) or places.get((name, None))
        if place is None or len(low) != len(shape) or len(sizes) != len(shape):
            raise ReshardError("bad-file", f"{path} does not say where the chunk of {name!r} at {low} lies")
        box = Box((start, start + size) for start, size in zip(low, sizes, strict=True))
        chunks.append(TileFile(place.path, _data_start(name, place, box, ours, reader), box))
    try:
        return StoredTensor(ours, shape, tuple(chunks))
    except ReshardError as error:
        raise ReshardError(error.code, f"{error}, {name!r} in {path}") from None


def _data_start(name: str, place: ItemPlace, box: Box, dtype: DType, reader: ItemReader) -> int:
    """Where the elements of an item begin in its file, all that it says of them being checked."""
    what = f"the item of {name!r} in {place.path}"
    members = _members(place, reader, what)
    pickles = [member for member in members if member.endswith("/data.pkl")]
    data = [member for member in members if member.endswith("/data/0")]
    if len(pickles) != 1 or len(data) != 1:
        raise ReshardError("bad-file", f"{what} does not hold one tensor")
    start, length = _member(place, members[pickles[0]], reader, what)
    if length > MAX_PICKLE:
        raise ReshardError("bad-file", f"{what} has a pickle of {length} bytes")
    text = _bytes(place, start, length, reader)
    if (text, box.shape, dtype) not in reader.views:  # boxes of one shape are described by the same bytes
        _check_view(load(text, _names(), what, lambda key: key), box, dtype, what)
        reader.views.add((text, box.shape, dtype))
    start, length = _member(place, members[data[0]], reader, what)
    if length != box.size * dtype.itemsize:
        raise ReshardError("bad-file", f"{what} has {length} bytes; its box {box} needs {box.size * dtype.itemsize}")
    return place.offset + start


def _check_view(tensor: Any, box: Box, dtype: DType, what: str) -> None:
    """Refuse a tensor that is not all of its storage, row by row."""
    args = tensor.args if isinstance(tensor, Rebuilt) else ()
    if len(args) < 4 or not isinstance(args[0], tuple) or len(args[0]) < 2:
        raise ReshardError("bad-file", f"{what} is no plain tensor")
    kind, offset, shape, strides = args[0][1], args[1], args[2], args[3]
    said = kind.dtype if isinstance(kind, StorageType) else None
    if said == "" and len(args) > 6 and isinstance(args[6], TorchDType):  # types without a storage of their own
        said = args[6].name
    if said not in ("", dtype.name):
        raise ReshardError("bad-file", f"{what} holds values of {said or 'another type'}, not {dtype}")
    if offset != 0 or shape != box.shape or not isinstance(strides, tuple) or len(strides) != len(box):
        raise ReshardError("bad-file", f"{what} is a view of shape {shape}, not a whole box of {box.shape}")
    stride = 1
    for size, said_stride in zip(reversed(box.shape), reversed(strides), strict=True):
        if size > 1 and said_stride != stride and box.size:
            raise ReshardError("bad-file", f"{what} does not lie row by row; its strides are {strides}")
        stride *= size


def _bytes(place: ItemPlace, start: int, length: int, reader: ItemReader) -> bytes:
    data = bytearray(length)
    reader.read_into(place.path, place.offset + start, memoryview(data))
    return bytes(data)


class Member(NamedTuple):
    """A member of a zip."""

    header: int
    """Where its local header begins, from the item's start."""
    size: int


def _members(place: ItemPlace, reader: ItemReader, what: str) -> dict[str, Member]:
    """The members of an item by name, from the directory at its end; only those that are stored as they are."""
    length = min(place.length, 22 + 2**16)
    tail = _bytes(place, place.length - length, length, reader)
    directory_end = tail.rfind(b"PK\5\6")
    if directory_end < 0 or directory_end + 22 > len(tail):
        raise ReshardError("bad-file", f"{what} is no zip")
    count, size, start = struct.unpack_from("<HII", tail, directory_end + 10)
    if count == 0xFFFF or 0xFFFFFFFF in (size, start):
        locator = tail.rfind(b"PK\6\7", 0, directory_end)
        if locator < 0 or locator + 20 > len(tail):
            raise ReshardError("bad-file", f"{what} is no zip")
        (place64,) = struct.unpack_from("<Q", tail, locator + 8)
        if place64 + 56 > place.length:
            raise ReshardError("bad-file", f"{what} is no zip")
        record = _bytes(place, place64, 56, reader)
        count, size, start = struct.unpack_from("<QQQ", record, 32)
    if size > MAX_DIRECTORY or start + size > place.length:
        raise ReshardError("bad-file", f"{what} has a directory that does not fit it")
    directory, members, at = _bytes(place, start, size, reader), {}, 0
    for _ in range(count):
        if directory[at : at + 4] != b"PK\1\2" or at + 46 > len(directory):
            raise ReshardError("bad-file", f"{what} has a directory that is cut short")
        (method,) = struct.unpack_from("<H", directory, at + 10)
        packed, full = struct.unpack_from("<II", directory, at + 20)
        lengths = struct.unpack_from("<HHH", directory, at + 28)
        (header,) = struct.unpack_from("<I", directory, at + 42)
        name = directory[at + 46 : at + 46 + lengths[0]].decode("utf-8", "replace")
        extra = directory[at + 46 + lengths[0] : at + 46 + lengths[0] + lengths[1]]
        packed, full, header = _long(extra, packed, full, header)
        if method != 0 or packed != full:
            raise ReshardError("bad-file", f"{what} is compressed, which torch does not do")
        members[name] = Member(header, full)
        at += 46 + sum(lengths)
    return members


def _long(extra: bytes, packed: int, full: int, header: int) -> tuple[int, int, int]:
    """The sizes and the place of a member that is too large for the plain fields."""
    at = 0
    while at + 4 <= len(extra):
        tag, size = struct.unpack_from("<HH", extra, at)
        if tag == 1:
            numbers = [int.from_bytes(extra[at + 4 + n : at + 12 + n], "little") for n in range(0, size - 7, 8)]
            taken = iter(numbers)
            full = next(taken, full) if full == 0xFFFFFFFF else full
            packed = next(taken, packed) if packed == 0xFFFFFFFF else packed
            header = next(taken, header) if header == 0xFFFFFFFF else header
        at += 4 + size
    return packed, full, header


def _member(place: ItemPlace, member: Member, reader: ItemReader, what: str) -> tuple[int, int]:
    """Where a member's bytes begin, from the item's start, and how many there are."""
    if member.header + 30 > place.length:
        raise ReshardError("bad-file", f"{what} has a member outside of it")
    header = _bytes(place, member.header, 30, reader)
    if header[:4] != b"PK\3\4":
        raise ReshardError("bad-file", f"{what} has a member that is none")
    start = member.header + 30 + sum(struct.unpack_from("<HH", header, 26))
    if start + member.size > place.length:
        raise ReshardError("bad-file", f"{what} has a member outside of it")
    return start, member.size
