"""An independent count of collectives: from XLA's binary form of a module, field by field, and not from its text.

The numbers of the fields are those of XLA's `hlo.proto` and `xla_data.proto`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 15: 8, 16: 2, 17: 0, 18: 16}
"""Size by the number of the element type: PRED, S8 … S64, U8 … U64, F16, F32, F64, C64, BF16, TOKEN, C128."""
TUPLE = 13
KINDS = ("all-gather", "all-to-all", "all-reduce", "reduce-scatter", "collective-permute", "collective-broadcast")


class Counted(NamedTuple):
    name: str
    kind: str
    operand_bytes: int
    result_bytes: int


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message: numbers, and bytes or integers."""
    place = 0

    def varint() -> int:
        nonlocal place
        value, shift = 0, 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while place < len(data):
        key = varint()
        number, wire = key >> 3, key & 7
        if wire == 0:
            yield number, varint()
        elif wire == 2:
            size = varint()
            yield number, data[place : place + size]
            place += size
        else:
            size = {1: 8, 5: 4}[wire]
            yield number, data[place : place + size]
            place += size


def packed(value: Any) -> list[int]:
    if isinstance(value, int):
        return [value]
    return [number for _, number in _varints(value)]


def _varints(data: bytes) -> Iterator[tuple[int, int]]:
    place = 0
    while place < len(data):
        value, shift = 0, 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield place, value


def shape_bytes(data: bytes) -> int:
    kind, dims, parts = 0, [], []
    for number, value in fields(data):
        if number == 2:
            kind = value
        elif number == 3:
            dims += packed(value)
        elif number == 4:
            parts.append(value)
    return sum(map(shape_bytes, parts)) if kind == TUPLE else BYTES[kind] * prod(dims)


def collectives(module: bytes) -> list[Counted]:
    """Every collective of a serialized HloModuleProto that is printed as one instruction."""
    found = []
    for number, computation in fields(module):
        if number != 3:
            continue
        instructions = [dict_of(value) for part, value in fields(computation) if part == 2]
        by_id = {one["id"]: one for one in instructions}
        for one in instructions:
            if one["opcode"] in KINDS:
                operands = sum(shape_bytes(by_id[operand]["shape"]) for operand in one["operands"])
                found.append(Counted(one["name"], one["opcode"], operands, shape_bytes(one["shape"])))
    return found


def dict_of(data: bytes) -> dict[str, Any]:
    one: dict[str, Any] = {"id": 0, "operands": [], "shape": b""}
    for number, value in fields(data):
        if number in (1, 2):
            one["name" if number == 1 else "opcode"] = value.decode()
        elif number == 3:
            one["shape"] = value
        elif number == 35:
            one["id"] = value
        elif number == 36:
            one["operands"] += packed(value)
    return one
