"""What devices do for a bucket: pack rows of elements before it travels, and put those that came into their buffers.

Devices that cut pieces of equal shapes out of buffers of equal shapes do so in one program, which looks up where each
of them cuts: so a mesh whose tiles are alike packs in one call, and unpacks in one, however many devices it has.
Buckets that are alike share their programs.

By hand, 4 rows that two devices hold by halves go to columns: the piece that device 0 sends begins at (0, 1) of its
buffer, that of device 1 at (0, 0), and both are 2 x 1.

>>> from reshard.mesh import Mesh
>>> from reshard.models import Rules, plan_model
>>> mesh = Mesh.of(x=2)
>>> plan = plan_model({"w": ((4, 2), "u8")}, Rules.of(mesh, {}, ("x",)), Rules.of(mesh, {}, (None, "x")))
>>> packings = [DeviceBuckets(plan, device).packing(0) for device in range(2)]
>>> [packing.corners for packing in packings], packings[0].form == packings[1].form
([((0, 1),), ((0, 0),)], True)
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

from reshard.box import Box
from reshard.dtypes import dtype_named
from reshard.jax.exchange.stacked import STACKED, StackedProgram, flat_mesh, run_stacked, stacked_program
from reshard.jax.slots import NamedArrays, kind_of
from reshard.models import ModelPlan
from reshard.models.laid_buckets import LaidBucket, LaidMessage, laid_buckets
from reshard.models.stores import Buffer, Slot


class BufferForm(NamedTuple):
    """A buffer as a program sees it."""

    shape: tuple[int, ...]
    """(1,) for one of no dims, for arrays are stacked along their first."""
    dtype: str

    @classmethod
    def of(cls, buffer: Buffer) -> BufferForm:
        """That of a buffer."""
        return cls(buffer.shape or (1,), buffer.dtype.name)


class PartForm(NamedTuple):
    """What of a piece lies in one buffer."""

    buffer: int
    """Its number among those of the program."""
    sizes: tuple[int, ...]
    """Per dim of the buffer."""
    dims: tuple[int, ...]
    """The dims of the tensor in the order of the buffer."""
    within: Box
    """Where it lies in the piece."""


class PieceForm(NamedTuple):
    """A piece of a tensor in the buffers of one end."""

    shape: tuple[int, ...]
    wire: str
    """The dtype that travels."""
    parts: tuple[PartForm, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


Line = tuple[int, str]
"""A peer, and the dtype of what goes to it or comes from it in one row: so rows hold elements, and no bytes."""


class PackingForm(NamedTuple):
    """A program that packs."""

    buffers: tuple[BufferForm, ...]
    rows: tuple[tuple[PieceForm, ...], ...]


class UnpackingForm(NamedTuple):
    """A program that unpacks."""

    read: tuple[BufferForm, ...]
    written: tuple[BufferForm, ...]
    kept: tuple[tuple[PieceForm, PieceForm], ...]
    """What a device copies itself: at the source, and at the target."""
    rows: tuple[tuple[PieceForm, ...], ...]


class DevicePacking(NamedTuple):
    """What one device packs."""

    form: PackingForm
    corners: tuple[tuple[int, ...], ...]
    """Where each part of its pieces begins in its buffer."""
    names: tuple[str, ...]
    """Of the buffers that it reads."""
    lines: tuple[Line, ...]
    """Whom each row goes to."""


class DeviceUnpacking(NamedTuple):
    """What one device unpacks."""

    form: UnpackingForm
    read_corners: tuple[tuple[int, ...], ...]
    written_corners: tuple[tuple[int, ...], ...]
    read: tuple[str, ...]
    """Of the buffers that are copied on the device itself."""
    written: tuple[str, ...]
    lines: tuple[Line, ...]
    """Whom each row comes from."""


class DeviceBuckets:
    """Tells what one device does for each bucket; what it has itself comes with the first."""

    def __init__(self, plan: ModelPlan, device: int) -> None:
        self.plan = plan
        self.slots = plan.source_slots(device)[0], plan.target_slots(device)[0]
        self.buffers = plan.source_slots(device)[1], plan.target_slots(device)[1]
        part = plan.part_of(device)
        self.buckets = laid_buckets(plan, part, 1, all_of_plan=True).buckets or [LaidBucket(0, 0, [], [])]
        self.kept = part.kept()

    def packing(self, number: int) -> DevicePacking | None:
        """What it packs for a bucket; None for nothing."""
        messages = self.buckets[number].sends
        if not messages:
            return None
        names = self._buffers_of(0, (piece.tensor for message in messages for piece in message.pieces))
        rows, corners, lines = self._rows(0, messages, names)
        return DevicePacking(PackingForm(self._forms(0, names), rows), corners, names, lines)

    def unpacking(self, number: int) -> DeviceUnpacking | None:
        """What it unpacks of a bucket; None for nothing."""
        messages, kept = self.buckets[number].receives, self.kept if number == 0 else []
        if not messages and not kept:
            return None
        read = self._buffers_of(0, (tensor for tensor, _ in kept))
        arriving = (piece.tensor for message in messages for piece in message.pieces)
        written = self._buffers_of(1, (*(tensor for tensor, _ in kept), *arriving))
        own = [(self._piece(0, tensor, box, read), self._piece(1, tensor, box, written)) for tensor, box in kept]
        own.sort()
        rows, corners, lines = self._rows(1, messages, written)
        copied = tuple((taken[0], put[0]) for taken, put in own)
        return DeviceUnpacking(
            UnpackingForm(self._forms(0, read), self._forms(1, written), copied, rows),
            tuple(corner for taken, _ in own for corner in taken[1]),
            (*(corner for _, put in own for corner in put[1]), *corners),
            read,
            written,
            lines,
        )

    def _buffers_of(self, end: int, tensors: Iterable[int]) -> tuple[str, ...]:
        names = (self.plan.names[tensor] for tensor in sorted(set(tensors)))
        return tuple(dict.fromkeys(slot.buffer for name in names for slot in self.slots[end][name]))

    def _forms(self, end: int, names: tuple[str, ...]) -> tuple[BufferForm, ...]:
        return tuple(BufferForm.of(self.buffers[end][name]) for name in names)

    def _rows(
        self, end: int, messages: list[LaidMessage], names: tuple[str, ...]
    ) -> tuple[tuple[tuple[PieceForm, ...], ...], tuple[tuple[int, ...], ...], tuple[Line, ...]]:
        """The rows, those of one form together, with all corners and lines in their order."""
        by_line: dict[Line, list[tuple[PieceForm, tuple[tuple[int, ...], ...]]]] = {}
        for message in messages:
            for tensor, box, _ in message.pieces:
                piece = self._piece(end, tensor, box, names)
                by_line.setdefault((message.peer, piece[0].wire), []).append(piece)
        rows = sorted((tuple(form for form, _ in pieces), line) for line, pieces in by_line.items())
        corners = (corner for _, line in rows for _, of_piece in by_line[line] for corner in of_piece)
        return tuple(form for form, _ in rows), tuple(corners), tuple(line for _, line in rows)

    def _piece(
        self, end: int, tensor: int, box: Box, names: tuple[str, ...]
    ) -> tuple[PieceForm, tuple[tuple[int, ...], ...]]:
        """A piece in the buffers of an end, and where its parts begin in them."""
        slots = self.slots[end][self.plan.names[tensor]]
        parts, corners = [], []
        for slot in slots:
            part = box if len(slots) == 1 else slot.box.intersect(box)
            if not part.is_empty:
                parts.append(_part_form(slot, part, box, names))
                corners.append(slot.corner(part) or (0,))
        wire = self.plan.group_of[tensor].wire.name
        return PieceForm(box.shape, wire, tuple(parts)), tuple(corners)


def _part_form(slot: Slot, part: Box, piece: Box, names: tuple[str, ...]) -> PartForm:
    dims = slot.dims or tuple(range(len(part)))
    sizes = tuple(part.shape[dim] for dim in dims)
    sizes = sizes if slot.stack is None else (1, *sizes)
    return PartForm(names.index(slot.buffer), sizes or (1,), dims, part.within(piece))


# Programs


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
            whole = whole.at[_slices(part.within)].set(value)
    return whole.astype(kind_of(dtype_named(piece.wire)))


def _write(value: Any, piece: PieceForm, buffers: list[Any], corners: _Corners) -> None:
    """Put a piece that travelled in its place."""
    for part in piece.parts:
        buffer = buffers[part.buffer]
        block = value[_slices(part.within)].astype(buffer.dtype).transpose(part.dims).reshape(part.sizes)
        buffers[part.buffer] = lax.dynamic_update_slice(buffer, block, corners.next(len(part.sizes)))


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in box)


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
        made = run_stacked(_packer(self.devices, form), arrays, self.devices, self.corners)
        return {
            (number, line): row
            for (number, member), at in zip(self.members.items(), self.devices, strict=True)
            for line, row in zip(member.lines, made[at], strict=True)
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
            arrays[at] = [*read, *written, *(rows[peer, (number, wire)] for peer, wire in member.lines)]
        made = run_stacked(_unpacker(self.devices, form), arrays, self.devices, *self.corners)
        for (number, member), at in zip(self.members.items(), self.devices, strict=True):
            results[number].update(zip(member.written, made[at][:-1], strict=True))
        return [made[at][-1] for at in self.devices]


class Fresh(NamedTuple):
    """The buffers of the target of devices that are alike, before anything is in them."""

    names: dict[int, tuple[str, ...]]
    """Per device, in the order of the program."""
    devices: tuple[Any, ...]
    forms: tuple[tuple[BufferForm, bool], ...]
    """Each with whether all of it is written; what is padding is zero."""

    @classmethod
    def of(cls, by_device: Mapping[int, DeviceBuckets]) -> tuple[Fresh, ...]:
        """Those of all devices of the target."""
        groups: dict[tuple[tuple[BufferForm, bool], ...], dict[int, tuple[str, ...]]] = {}
        for number, of_device in by_device.items():
            buffers = of_device.buffers[1]
            written = dict.fromkeys(buffers, 0)
            for slot in (slot for slots in of_device.slots[1].values() for slot in slots):
                written[slot.buffer] += slot.box.size
            forms = ((BufferForm.of(each), written[name] == prod(each.shape)) for name, each in buffers.items())
            groups.setdefault(tuple(forms), {})[number] = tuple(buffers)
        devices = jax.devices()
        return tuple(cls(names, tuple(devices[n] for n in names), forms) for forms, names in groups.items())

    def run(self) -> dict[int, NamedArrays]:
        """The buffers by device."""
        made = run_stacked(_maker(self.devices, self.forms), {device: [] for device in self.devices}, self.devices)
        places = zip(self.names.items(), self.devices, strict=True)
        return {number: dict(zip(names, made[at], strict=True)) for (number, names), at in places}


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
    last_read: tuple[dict[int, tuple[str, ...]], ...]
    """Per bucket and device, the buffers that are read for the last time to pack it."""
    fresh: tuple[Fresh, ...]
    scalars: dict[int, tuple[str, ...]]
    """Per device the buffers of the target that have no dims, and here have one."""

    @classmethod
    def of(cls, plan: ModelPlan) -> PlanPrograms:
        """Those of a plan."""
        by_device = {device: DeviceBuckets(plan, device) for device in plan.devices}
        wanting = {device: by_device[device] for device in plan.rules[1].mesh.devices}
        numbers = range(max(plan.buckets.total, 1))
        packing = [_somewhere({d: buckets.packing(number) for d, buckets in by_device.items()}) for number in numbers]
        unpacking = [
            _somewhere({d: buckets.unpacking(number) for d, buckets in by_device.items()}) for number in numbers
        ]
        return cls(
            tuple(tuple(map(Packing.of, _by_form(work))) for work in packing),
            tuple(tuple(map(Unpacking.of, _by_form(work))) for work in unpacking),
            _last_read(packing, unpacking[0]),
            Fresh.of(wanting),
            {d: tuple(name for name, each in of.buffers[1].items() if not each.shape) for d, of in wanting.items()},
        )


def _last_read(
    packing: list[dict[int, DevicePacking]], first: Mapping[int, DeviceUnpacking]
) -> tuple[dict[int, tuple[str, ...]], ...]:
    """Per bucket and device, the buffers that nothing reads once it is packed."""
    seen: dict[int, set[str]] = {}
    result: list[dict[int, tuple[str, ...]]] = []
    for number in reversed(range(len(packing))):
        if number == 0:  # what devices copy themselves is read after the first bucket is packed
            for device, unpacking in first.items():
                seen.setdefault(device, set()).update(unpacking.read)
        done = {}
        for device, of_device in packing[number].items():
            names = seen.setdefault(device, set())
            done[device] = tuple(name for name in of_device.names if name not in names)
            names.update(of_device.names)
        result.append(done)
    return tuple(reversed(result))
