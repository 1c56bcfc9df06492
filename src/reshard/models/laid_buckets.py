"""Where the pieces of a device's messages lie in the memory that it packs them into: the same for all who move bytes.

A device has a few rooms, one for each bucket that may be under way at a time, and its buckets take them in turn.
In a room the messages that are sent lie one after the other by the number of the peer, then those that are received,
so that either all of a bucket's go at once or each by itself.
A message begins at a multiple of the largest element that travels, and ends at one; both its ends derive that alike.

By hand: rows become columns on two devices, 3 + 3 elements of 2 bytes: each sends 6 bytes and receives 6.

>>> from reshard.mesh import Mesh
>>> from reshard.models import Rules, plan_model
>>> mesh = Mesh.of(x=2)
>>> plan = plan_model({"w": ((2, 6), "bf16")}, Rules.of(mesh, {}, ("x",)), Rules.of(mesh, {}, (None, "x")))
>>> laid = laid_buckets(plan, plan.part_of(0), 2)
>>> laid.room_bytes, [message[:3] for message in (*laid.buckets[0].sends, *laid.buckets[0].receives)]
((12, 0), [(1, 0, 6), (1, 6, 12)])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from reshard.box import Box
from reshard.models.device_part import DevicePart, Traffic
from reshard.models.model_plan import ModelPlan

Progress = Callable[[int, int], None]
"""Told how many of how many bytes a device has sent and received."""


class LaidPiece(NamedTuple):
    """A piece in a room."""

    tensor: int
    """Its number."""
    box: Box
    start: int
    """Where it begins, in bytes."""


class LaidMessage(NamedTuple):
    """What goes to one peer in a bucket, or comes from it, in a room."""

    peer: int
    start: int
    """In bytes."""
    stop: int
    pieces: list[LaidPiece]


class LaidBucket(NamedTuple):
    """What a device does for one bucket."""

    number: int
    """In the plan."""
    room: int
    """The number of the room."""
    sends: list[LaidMessage]
    receives: list[LaidMessage]

    @property
    def nbytes(self) -> int:
        """What is sent and received."""
        return sum(message.stop - message.start for message in (*self.sends, *self.receives))


class LaidBuckets(NamedTuple):
    """All buckets of a device, in the global order."""

    buckets: list[LaidBucket]
    room_bytes: tuple[int, ...]


def laid_buckets(plan: ModelPlan, part: DevicePart, rooms: int, *, all_of_plan: bool = False) -> LaidBuckets:
    """The buckets of a device.

    Args:
        plan: what to do.
        part: the device's part of it.
        rooms: how many buckets may be under way.
        all_of_plan: whether buckets in which the device has nothing to do are listed too.
    """
    unit = max((group.wire.itemsize for group in plan.groups), default=1)
    sends, receives = (_messages(plan, traffic, unit) for traffic in (part.sends, part.receives))
    numbers = range(plan.buckets.total) if all_of_plan else sorted({*sends, *receives})
    buckets, room_bytes = [], [0] * rooms
    for place, number in enumerate(numbers):
        end, ends = 0, []
        for messages in (sends.get(number, []), receives.get(number, [])):
            moved = []
            for message in messages:
                pieces = [piece._replace(start=piece.start + end) for piece in message.pieces]
                moved.append(LaidMessage(message.peer, end, end + message.stop, pieces))
                end += message.stop
            ends.append(moved)
        room = place % rooms
        room_bytes[room] = max(room_bytes[room], end)
        buckets.append(LaidBucket(number, room, *ends))
    return LaidBuckets(buckets, tuple(room_bytes))


def _messages(plan: ModelPlan, traffic: Traffic, unit: int) -> dict[int, list[LaidMessage]]:
    """Per bucket the messages, each as if it were alone in a room."""
    result: dict[int, list[LaidMessage]] = {}
    for message in traffic.messages():
        pieces, end = [], 0
        for tensor, box in traffic.pieces(message):
            size = plan.group_of[tensor].wire.itemsize
            end = -(-end // size) * size
            pieces.append(LaidPiece(tensor, box, end))
            end += box.size * size
        if pieces:
            laid = LaidMessage(message.peer, 0, -(-end // unit) * unit, pieces)
            result.setdefault(message.bucket, []).append(laid)
    return result
