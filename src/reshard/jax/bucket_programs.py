"""What devices do for a bucket: pack rows of elements before it travels, and put those that came into their buffers.

Devices that cut pieces of equal shapes out of buffers of equal shapes do so in one program, which looks up where each
of them cuts: so a mesh whose tiles are alike packs in one call, and unpacks in one, however many devices it has.
Buckets that are alike share their programs.

By hand, three devices: 0 and 1 have work of one form, 2 has its own.

>>> class Work(NamedTuple):
...     form: str
>>> [sorted(group) for group in _by_form({0: Work("a"), 1: Work("a"), 2: Work("b")})]
[[0, 1], [2]]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import NamedSharding

from reshard.dtypes import dtype_named
from reshard.jax.bucket_forms import (
    BufferForm,
    DeviceBuckets,
    DevicePacking,
    DeviceUnpacking,
    Line,
    PackingForm,
    PieceForm,
    UnpackingForm,
    WholeBuffer,
)
from reshard.jax.exchange.stacked import STACKED, StackedProgram, flat_mesh, run_stacked, stacked_program
from reshard.jax.slots import NamedArrays, kind_of
from reshard.models import ModelPlan


class _Corners:
    """The corners of a device's boxes, one after the other, as a program sees them."""

    def __init__(self, table: Any) -> None:
        self.table, self.used = table, 0

    def next(self, rank: int) -> list[Any]:
        """The next one, in a buffer of so many dims."""
        row = self.table[0, self.used]
        self.used += 1
        return [row[dim] for dim in range(rank)]


def _read(piece: PieceForm, buffers: list[Any], corners: _Corners) -> Any:
    """A piece as it travels."""
    values = []
    for part in piece.parts:
        value = lax.dynamic_slice(buffers[part.buffer], corners.next(len(part.sizes)), part.sizes)
        value = value.reshape(tuple(part.within.shape[dim] for dim in part.dims))
        values.append(value.transpose(tuple(part.dims.index(dim) for dim in range(len(part.dims)))))
    whole = values[0]
    if len(values) > 1:
        whole = jnp.zeros(piece.shape, whole.dtype)
        for part, value in zip(piece.parts, values, strict=True):
            whole = whole.at[part.within.slices()].set(value)
    return whole.astype(kind_of(dtype_named(piece.wire)))


def _write(value: Any, piece: PieceForm, buffers: list[Any], corners: _Corners) -> None:
    """Put a piece that travelled in its place."""
    for part in piece.parts:
        buffer = buffers[part.buffer]
        block = value[part.within.slices()].astype(buffer.dtype).transpose(part.dims).reshape(part.sizes)
        buffers[part.buffer] = lax.dynamic_update_slice(buffer, block, corners.next(len(part.sizes)))


@lru_cache(256)
def _packer(devices: tuple[Any, ...], form: PackingForm) -> StackedProgram:
    """From the corners and the buffers to the rows."""

    def pack(table: Any, *buffers: Any) -> tuple[Any, ...]:
        corners, rows = _Corners(table), []
        for row in form.rows:
            pieces = [_read(piece, list(buffers), corners).reshape(-1) for piece in row]
            rows.append(jnp.concatenate(pieces) if len(pieces) > 1 else pieces[0])
        return tuple(rows)

    return stacked_program(pack, devices)


@lru_cache(256)
def _unpacker(devices: tuple[Any, ...], form: UnpackingForm) -> StackedProgram:
    """From the corners, what is read, what is written and the rows to what is written, and a number to wait for."""
    first = 2 + len(form.read)

    def unpack(taken: Any, put: Any, *arrays: Any) -> tuple[Any, ...]:
        corners = _Corners(taken), _Corners(put)
        held, rows = list(arrays[: len(form.read)]), arrays[len(form.read) + len(form.written) :]
        targets = list(arrays[len(form.read) : len(form.read) + len(form.written)])
        for source, target in form.kept:
            _write(_read(source, held, corners[0]), target, targets, corners[1])
        for row, values in zip(form.rows, rows, strict=True):
            end = 0
            for piece in row:
                start, end = end, end + piece.size
                _write(values[start:end].reshape(piece.shape), piece, targets, corners[1])
        return (*targets, jnp.zeros((1,), jnp.uint8))

    return stacked_program(unpack, devices, tuple(range(first, first + len(form.written))))


# Devices that are alike

_Work = TypeVar("_Work")


def _somewhere(by_device: Mapping[int, _Work | None]) -> dict[int, _Work]:
    """What there is to do, of the devices that have something."""
    return {device: work for device, work in by_device.items() if work is not None}


def _by_form(work: Mapping[int, Any]) -> Iterator[dict[int, Any]]:
    """What devices do, those together whose programs are the same."""
    groups: dict[Any, dict[int, Any]] = {}
    for device, of_device in work.items():
        groups.setdefault(of_device.form, {})[device] = of_device
    yield from groups.values()


def _table(corners: Iterable[tuple[tuple[int, ...], ...]], devices: tuple[Any, ...]) -> jax.Array:
    """The corners of all devices, a row each on its own."""
    rows = list(corners)
    rank = max((len(corner) for row in rows for corner in row), default=1)
    table = np.zeros((len(rows), max(map(len, rows)), rank), np.int32)
    for place, row in enumerate(rows):
        for number, corner in enumerate(row):
            table[place, number, : len(corner)] = corner
    return jax.device_put(table, NamedSharding(flat_mesh(devices), STACKED))


class Packing(NamedTuple):
    """What devices that are alike do before a bucket travels."""

    members: dict[int, DevicePacking]
    devices: tuple[Any, ...]
    corners: jax.Array

    @classmethod
    def of(cls, members: dict[int, DevicePacking]) -> Packing:
        """Of these devices."""
        devices = tuple(jax.devices()[number] for number in members)
        return cls(members, devices, _table((member.corners for member in members.values()), devices))

    def run(self, held: Mapping[int, NamedArrays]) -> dict[tuple[int, Line], Any]:
        """The rows, by sender and line."""
        form = next(iter(self.members.values())).form
        places = zip(self.members.items(), self.devices, strict=True)
        arrays = {at: [held[number][name] for name in member.names] for (number, member), at in places}
        packed = run_stacked(_packer(self.devices, form), arrays, self.devices, self.corners)
        return {
            (number, line): row
            for (number, member), at in zip(self.members.items(), self.devices, strict=True)
            for line, row in zip(member.lines, packed[at], strict=True)
        }


class Unpacking(NamedTuple):
    """What devices that are alike do once a bucket is there."""

    members: dict[int, DeviceUnpacking]
    devices: tuple[Any, ...]
    corners: tuple[jax.Array, jax.Array]

    @classmethod
    def of(cls, members: dict[int, DeviceUnpacking]) -> Unpacking:
        """Of these devices."""
        devices = tuple(jax.devices()[number] for number in members)
        taken, put = (
            _table((getattr(member, name) for member in members.values()), devices)
            for name in ("read_corners", "written_corners")
        )
        return cls(members, devices, (taken, put))

    def run(
        self, held: Mapping[int, NamedArrays], results: dict[int, NamedArrays], rows: Mapping[tuple[int, Line], Any]
    ) -> list[Any]:
        """Put the rows, by sender and line, into the results; numbers to wait for come back."""
        form = next(iter(self.members.values())).form
        arrays = {}
        for (number, member), at in zip(self.members.items(), self.devices, strict=True):
            read = [held[number][name] for name in member.read]
            written = [results[number][name] for name in member.written]
            arrays[at] = [*read, *written, *(rows[line.peer, Line(number, line.wire)] for line in member.lines)]
        unpacked = run_stacked(_unpacker(self.devices, form), arrays, self.devices, *self.corners)
        for (number, member), at in zip(self.members.items(), self.devices, strict=True):
            results[number].update(zip(member.written, unpacked[at][:-1], strict=True))
        return [unpacked[at][-1] for at in self.devices]


class Fresh(NamedTuple):
    """The buffers of the target of devices that are alike, before anything is in them."""

    names: dict[int, tuple[str, ...]]
    """Per device, in the order of the program."""
    devices: tuple[Any, ...]
    forms: tuple[tuple[BufferForm, bool], ...]
    """Each with whether all of it is written; what is padding is zero."""

    @classmethod
    def of(cls, by_device: Mapping[int, DeviceBuckets], coming: set[tuple[int, str]]) -> tuple[Fresh, ...]:
        """Those of all devices of the target, but for buffers that come whole, of which device and name are given."""
        groups: dict[tuple[tuple[BufferForm, bool], ...], dict[int, tuple[str, ...]]] = {}
        for number, of_device in by_device.items():
            buffers = {name: each for name, each in of_device.buffers[1].items() if (number, name) not in coming}
            written = dict.fromkeys(buffers, 0)
            for slot in (slot for slots in of_device.slots[1].values() for slot in slots):
                if slot.buffer in written:
                    written[slot.buffer] += slot.box.size
            forms = ((BufferForm.of(each), written[name] == prod(each.shape)) for name, each in buffers.items())
            groups.setdefault(tuple(forms), {})[number] = tuple(buffers)
        devices = jax.devices()
        return tuple(cls(names, tuple(devices[n] for n in names), forms) for forms, names in groups.items())

    def run(self) -> dict[int, NamedArrays]:
        """The buffers by device."""
        buffers = run_stacked(_maker(self.devices, self.forms), {device: [] for device in self.devices}, self.devices)
        places = zip(self.names.items(), self.devices, strict=True)
        return {number: dict(zip(names, buffers[at], strict=True)) for (number, names), at in places}


@lru_cache(256)
def _maker(devices: tuple[Any, ...], forms: tuple[tuple[BufferForm, bool], ...]) -> StackedProgram:
    def make() -> tuple[Any, ...]:
        made = []
        for (shape, dtype), is_written in forms:
            shape = (shape[0] * len(devices), *shape[1:])
            kind = kind_of(dtype_named(dtype))
            made.append(lax.empty(shape, kind) if is_written else jnp.zeros(shape, kind))
        return tuple(made)

    return jax.jit(make, out_shardings=NamedSharding(flat_mesh(devices), STACKED))


class PlanPrograms(NamedTuple):
    """All that devices do for a plan, by the number of the bucket."""

    packing: tuple[tuple[Packing, ...], ...]
    unpacking: tuple[tuple[Unpacking, ...], ...]
    whole: tuple[tuple[WholeBuffer, ...], ...]
    """Per bucket the buffers that go from device to device as they are."""
    last_read: tuple[dict[int, tuple[str, ...]], ...]
    """Per bucket and device, the buffers that are read for the last time to send it."""
    fresh: tuple[Fresh, ...]
    scalars: dict[int, tuple[str, ...]]
    """Per device the buffers of the target that have no dims, and here have one."""

    @classmethod
    def of(cls, plan: ModelPlan) -> PlanPrograms:
        """Those of a plan."""
        by_device = {device: DeviceBuckets(plan, device) for device in plan.devices}
        wanting = {device: by_device[device] for device in plan.rules[1].mesh.devices}
        numbers = range(max(plan.buckets.total, 1))
        whole = [
            tuple(buffer for buckets in by_device.values() for buffer in buckets.sent_whole(number, by_device))
            for number in numbers
        ]
        packing = [
            _somewhere({d: buckets.packing(number, whole[number]) for d, buckets in by_device.items()})
            for number in numbers
        ]
        unpacking = [
            _somewhere({d: buckets.unpacking(number, whole[number]) for d, buckets in by_device.items()})
            for number in numbers
        ]
        return cls(
            tuple(tuple(map(Packing.of, _by_form(work))) for work in packing),
            tuple(tuple(map(Unpacking.of, _by_form(work))) for work in unpacking),
            tuple(whole),
            _last_read(packing, whole, unpacking[0]),
            Fresh.of(wanting, {(buffer.receiver, buffer.target) for of_bucket in whole for buffer in of_bucket}),
            {d: tuple(name for name, each in of.buffers[1].items() if not each.shape) for d, of in wanting.items()},
        )


def _last_read(
    packing: list[dict[int, DevicePacking]], whole: list[tuple[WholeBuffer, ...]], first: Mapping[int, DeviceUnpacking]
) -> tuple[dict[int, tuple[str, ...]], ...]:
    """Per bucket and device, the buffers that nothing reads once it is sent."""
    seen: dict[int, set[str]] = {}
    result: list[dict[int, tuple[str, ...]]] = []
    for number in reversed(range(len(packing))):
        if number == 0:  # what devices copy themselves is read after the first bucket is packed
            for device, unpacking in first.items():
                seen.setdefault(device, set()).update(unpacking.read)
        done = {}
        reads = {device: dict.fromkeys(of_device.names) for device, of_device in packing[number].items()}
        for buffer in whole[number]:
            reads.setdefault(buffer.sender, {})[buffer.name] = None
        for device, read in reads.items():
            names = seen.setdefault(device, set())
            done[device] = tuple(name for name in read if name not in names)
            names.update(read)
        result.append(done)
    return tuple(reversed(result))
