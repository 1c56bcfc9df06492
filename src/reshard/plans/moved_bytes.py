"""The bytes that a plan moves: per device, for the busiest, and in all, beside `LeastBytes` that any must move.

By hand, 8 bytes on x=2 to all: each device receives the 4 that it lacks, and sends the 4 that it holds.

>>> from reshard.mesh import Mesh
>>> from reshard.problem import Reshard
>>> from reshard.sharding import Sharding
>>> mesh = Mesh.of(x=2)
>>> step = Step(Reshard.of(Sharding.of(mesh, "x"), Sharding.of(mesh, None), (8,), "int8"))
>>> moved = MovedBytes(((step, 1),), itemsize=1)
>>> moved.on(0), moved.largest, moved.total, moved.sent
(4, 4, 8, 4)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from reshard.errors import ReshardError
from reshard.exchange import DigitExchange
from reshard.steps import Step


@dataclass(frozen=True)
class MovedBytes:
    """What devices receive from others, and send to them, over steps."""

    steps: Sequence[tuple[Step, int]]
    """The steps with how often each is taken."""
    itemsize: int
    """Bytes of an element."""

    @cached_property
    def largest(self) -> int:
        """What the busiest device receives."""
        moving = [(step, times) for step, times in self.steps if step.moves]
        if len(moving) <= 1 or self._are_alike([step for step, _ in moving]):
            return sum(step.received_bytes * times for step, times in moving)
        received = self._nothing()
        for step, times in moving:
            received[self._places(step.after.mesh.device_array)] += step.all_received_bytes() * times
        return int(received.max())

    @staticmethod
    def _are_alike(steps: Sequence[Step]) -> bool:
        """Whether all devices receive as much in all of some steps, but for one at the most."""
        devices = {step.after.mesh for step in steps}
        odd = [step for step in steps if step.received_bytes * step.after.mesh.size != step.total_received_bytes]
        return len(devices) == 1 and len(odd) <= 1

    @property
    def total(self) -> int:
        """What all devices together receive."""
        return sum(step.total_received_bytes * times for step, times in self.steps)

    @property
    def sent(self) -> int | None:
        """What the busiest device sends; None where the messages are too many to list.

        It is what the busiest device receives unless tiles differ in size, or devices hold what others send too.
        """
        exchanges = [
            (move.exchange, times) for step, times in self.steps for move in step.moves if move.exchange.total_received
        ]
        if len(exchanges) <= 1 and all(move.is_even and isinstance(move, DigitExchange) for move, _ in exchanges):
            return self.largest
        sent = self._nothing()
        try:
            for exchange, times in exchanges:
                senders, _, elements = exchange.traffic()
                np.add.at(sent, self._places(senders), elements * times)
        except ReshardError:
            return None
        return int(sent.max(initial=0)) * self.itemsize

    def on(self, device: int) -> int:
        """What one device receives."""
        return sum(
            step.received_bytes_on(device) * times
            for step, times in self.steps
            if device in step.before.mesh or device in step.after.mesh
        )

    @cached_property
    def _devices(self) -> np.ndarray:
        """The devices of all steps, in ascending order."""
        meshes = {mesh for step, _ in self.steps for mesh in (step.before.mesh, step.after.mesh)}
        devices = [mesh.device_array for mesh in meshes]
        return np.unique(np.concatenate(devices)) if len(devices) > 1 else np.sort(devices[0])

    def _nothing(self) -> np.ndarray:
        """A count per device."""
        return np.zeros(len(self._devices), dtype=np.int64)

    def _places(self, devices: np.ndarray) -> np.ndarray:
        """Where devices stand among all."""
        if self._devices[-1] == len(self._devices) - 1:  # they are all from 0
            return devices
        return np.searchsorted(self._devices, devices)
