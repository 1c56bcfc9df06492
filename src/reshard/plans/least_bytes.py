"""The least that any plan of a reshard must move: per device, for the busiest, and in all.

What a device needs and does not hold is to be received, whatever the way; where nothing is partial the exchange
receives just that, so the bound is exact.
Where partial values are combined, `reshard.exchange.reduction` says why all together need at least so many transfers.

By hand, 8 rows on x=2 to all: each device lacks 4 of them.

>>> from reshard.mesh import Mesh
>>> from reshard.sharding import Sharding
>>> from reshard.steps import Step
>>> mesh = Mesh.of(x=2)
>>> reshard = Reshard.of(Sharding.of(mesh, "x"), Sharding.of(mesh, None), (8,), "int8")
>>> least = LeastBytes(reshard, (Step(reshard),))
>>> least.kind, least.on(0), least.largest, least.total
('exact', 4, 4, 8)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from reshard.errors import ReshardError
from reshard.exchange import Exchange, OverlapAdd, class_digits, find_exchange, total_bound
from reshard.problem import Reshard, becomes_unreduced
from reshard.steps import Chain


@dataclass(frozen=True)
class LeastBytes:
    """What every plan of a reshard must move, in bytes."""

    reshard: Reshard
    steps: Chain
    """Those of one such plan, which say what devices there are; none where both ends are one placement."""

    @cached_property
    def kind(self) -> str:
        """What the bound is.

        `exact`: nothing is partial, every plan must move this much and one exists that moves no more.
        `reduction`: partial values are combined; no plan moves less, and the best may move more.
        `unreduced`: the target is partial where the source is not, or over devices in another order; how partial
        values are shared out is free, and nothing needs to move where devices hold parts of their tiles.
        """
        before, after = self.reshard.tilings
        reordered = bool(after.layout.unreduced) and not before.same_order_as(after)
        if reordered or becomes_unreduced(self.reshard.source, self.reshard.target):
            return "unreduced"
        return "exact" if before.classes == after.classes and not self._is_summed else "reduction"

    @property
    def _is_nothing(self) -> bool:
        return not self.steps or self.kind == "unreduced"

    @property
    def _is_summed(self) -> bool:
        """Whether windows are summed on the way."""
        return self.reshard.source.is_summed and self.reshard.source != self.reshard.target

    def on(self, device: int) -> int:
        """Of one device: its target tile without what it holds of it, or all of it where partial values are combined.

        Where values become partial, 0.
        """
        after = self.reshard.tilings[1]
        if self._is_nothing or device not in after.mesh:
            return 0
        if self._is_summed:
            elements = self._summed_elements.get(device, 0)
        else:
            elements = after.elements(device) - (self._held_elements(device) if self.kind == "exact" else 0)
        return elements * self.reshard.dtype.itemsize

    def _held_elements(self, device: int) -> int:
        """How many elements of its target tile a device holds."""
        before, after = self.reshard.tilings
        if before.layout.weaves or after.layout.weaves:
            return int(self._direct.all_held[after.mesh.position_of(device)])
        if device not in before.mesh:
            return 0
        classes = class_digits(before, after)
        places = before.mesh.position_of(device), after.mesh.position_of(device)
        if classes.source.index_of(places[0]) != classes.target.index_of(places[1]):
            return 0
        return before.box(device).intersect(after.box(device)).size

    @cached_property
    def largest(self) -> int:
        """The largest bound of a device; with partial values also at least the even share of the total bound."""
        itemsize = self.reshard.dtype.itemsize
        if self._is_nothing:
            return 0
        if self._is_summed:
            return max(self._summed_elements.values(), default=0) * itemsize
        if self.kind == "reduction":
            return max(self.reshard.tilings[1].largest_tile * itemsize, -(-self.total // self._device_count))
        return self._direct.missing * itemsize

    @cached_property
    def total(self) -> int:
        """What all devices together must receive."""
        if self._is_nothing:
            return 0
        if self._is_summed:
            elements = sum(self._summed_elements.values())
        elif self.kind == "reduction":
            before, after = self.reshard.tilings
            elements = total_bound(before, after.owned())
        else:
            elements = self._direct.total_missing
        return elements * self.reshard.dtype.itemsize

    @property
    def _device_count(self) -> int:
        ends = [self.reshard.source, self.reshard.target, *(step.after for step in self.steps)]
        return len(np.unique(np.concatenate([end.mesh.device_array for end in ends])))

    @cached_property
    def _summed_elements(self) -> dict[int, int]:
        """Per device of the target, how many elements of its tile other windows hold contributions to."""
        before, after = self.reshard.tilings
        try:
            exchange = find_exchange(before, after.owned())
        except ReshardError:  # values are combined or become partial besides
            return {}
        if not isinstance(exchange, OverlapAdd):
            return {}
        return {device: exchange.received_elements_on(device) for device in after.mesh.device_array.tolist()}

    @cached_property
    def _direct(self) -> Exchange:
        """The exchange from source to target in one."""
        if len(self.steps) == 1 and len(self.steps[0].moves) == 1:
            return self.steps[0].moves[0].exchange
        return find_exchange(*self.reshard.tilings)
