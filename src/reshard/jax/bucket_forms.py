"""What one device packs for a bucket and unpacks of it: the form, that devices may share, and where its boxes begin.

A form says all that a program is compiled for: the shapes of the buffers, the pieces of every row, the dtypes.
Where pieces begin in the buffers of a device are its corners, in the order in which the program takes them.

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

from collections.abc import Iterable, Mapping
from math import prod
from typing import NamedTuple

from reshard.box import Box
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


class Line(NamedTuple):
    """What goes to a peer in one row, or comes from it: elements of one dtype, and no bytes."""

    peer: int
    wire: str
    """The dtype."""


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


class WholeBuffer(NamedTuple):
    """A buffer that goes to another device as it is, and is one there."""

    sender: int
    name: str
    """There."""
    receiver: int
    tensor: int
    """Its number."""
    target: str
    """The name at the receiver."""


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
        self.plan, self.device = plan, device
        self.slots = plan.source_slots(device)[0], plan.target_slots(device)[0]
        self.buffers = plan.source_slots(device)[1], plan.target_slots(device)[1]
        part = plan.part_of(device)
        self.buckets = laid_buckets(plan, part, 1, all_of_plan=True).buckets or [LaidBucket(0, 0, [], [])]
        self.kept = part.kept()

    def whole_buffer(self, end: int, tensor: int, box: Box) -> str | None:
        """The buffer of an end that has a box of a tensor as it travels, and nothing else; None where there is none."""
        slots = self.slots[end][self.plan.names[tensor]]
        slot, buffer = slots[0], self.buffers[end][slots[0].buffer]
        is_alike = buffer.dtype == self.plan.group_of[tensor].wire and slot.dims in ((), tuple(range(len(box))))
        return slot.buffer if is_alike and slot.stack is None and buffer.shape == box.shape != () else None

    def sent_whole(self, number: int, others: Mapping[int, DeviceBuckets]) -> tuple[WholeBuffer, ...]:
        """The buffers that it sends in a bucket as they are, to others that have them so too."""
        result = []
        for message in self.buckets[number].sends:
            for tensor, box, _ in message.pieces:
                name = self.whole_buffer(0, tensor, box)
                target = None if name is None else others[message.peer].whole_buffer(1, tensor, box)
                if name is not None and target is not None:
                    result.append(WholeBuffer(self.device, name, message.peer, tensor, target))
        return tuple(result)

    def packing(self, number: int, whole: Iterable[WholeBuffer] = ()) -> DevicePacking | None:
        """What it packs for a bucket beside buffers that go as they are; None for nothing."""
        sent = {(buffer.receiver, buffer.tensor) for buffer in whole if buffer.sender == self.device}
        messages = _without(self.buckets[number].sends, sent)
        if not messages:
            return None
        names = self._buffers_of(0, (piece.tensor for message in messages for piece in message.pieces))
        rows, corners, lines = self._rows(0, messages, names)
        return DevicePacking(PackingForm(self._forms(0, names), rows), corners, names, lines)

    def unpacking(self, number: int, whole: Iterable[WholeBuffer] = ()) -> DeviceUnpacking | None:
        """What it unpacks of a bucket beside buffers that come as they are; None for nothing."""
        received = {(buffer.sender, buffer.tensor) for buffer in whole if buffer.receiver == self.device}
        messages, kept = _without(self.buckets[number].receives, received), self.kept if number == 0 else []
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
                by_line.setdefault(Line(message.peer, piece[0].wire), []).append(piece)
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


def _without(messages: list[LaidMessage], whole: set[tuple[int, int]]) -> list[LaidMessage]:
    """Messages, without the tensors that go to their peers, or come from them, in whole buffers."""
    left = (
        message._replace(pieces=[piece for piece in message.pieces if (message.peer, piece.tensor) not in whole])
        for message in messages
    )
    return [message for message in left if message.pieces]


def _part_form(slot: Slot, part: Box, piece: Box, names: tuple[str, ...]) -> PartForm:
    dims = slot.dims or tuple(range(len(part)))
    sizes = tuple(part.shape[dim] for dim in dims)
    sizes = sizes if slot.stack is None else (1, *sizes)
    return PartForm(names.index(slot.buffer), sizes or (1,), dims, part.within(piece))
