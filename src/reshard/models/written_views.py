"""Whether views of memory lie apart, so that each can be written without the others.

What lies on another would get the other's values where it was written last.
Two that are the same view of the same memory may be, as tied weights are: both get the same values.

>>> memory = np.zeros(6)
>>> views = {"a": memory[:4], "b": memory[4:], "tied": memory[:4], "odd": memory[5:3:-2]}
>>> check_apart(WrittenView.of_array(name, views[name]) for name in ("a", "b", "tied"))
>>> check_apart(WrittenView.of_array(name, views[name]) for name in ("b", "odd"))
Traceback (most recent call last):
    ...
reshard.errors.ReshardError: 'b' and 'odd' of out lie on each other in memory
>>> check_apart(WrittenView.of_array(str(start), memory[start::2]) for start in range(2))
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.errors import ReshardError

MOST_WORK = 10**4
"""That NumPy may spend on whether two views share an element; beyond it they are taken as apart."""


class WrittenView(NamedTuple):
    """Where in memory an array or a tensor with elements lies; nothing is read."""

    start: int
    """Of its lowest element."""
    stop: int
    name: str
    address: int
    """Of its first element."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes."""
    itemsize: int

    @classmethod
    def of(cls, name: str, address: int, shape: Iterable[int], strides: Iterable[int], itemsize: int) -> WrittenView:
        """The view of this shape and these strides in bytes."""
        shape, strides = tuple(shape), tuple(strides)
        steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
        ends = (address + sum(min(step, 0) for step in steps), address + sum(max(step, 0) for step in steps) + itemsize)
        return cls(*ends, name, address, shape, strides, itemsize)

    @classmethod
    def of_array(cls, name: str, array: NDArray[Any]) -> WrittenView:
        """That of an array of NumPy's."""
        return cls.of(name, array.ctypes.data, array.shape, array.strides, array.itemsize)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "data": (self.address, True),
            "shape": self.shape,
            "strides": self.strides,
            "typestr": f"|V{self.itemsize}",
        }

    def is_on(self, other: WrittenView) -> bool:
        """Whether they share an element and are not the same view."""
        if self._replace(name="") == other._replace(name=""):
            return False
        try:
            return np.shares_memory(np.asarray(self), np.asarray(other), MOST_WORK)  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return False


def check_apart(views: Iterable[WrittenView]) -> None:
    """Refuse views that lie on themselves or on each other.

    Raises:
        ReshardError: `bad-tiles`.
    """
    reaching: list[WrittenView] = []
    for view in sorted(views):
        if any(not stride and length > 1 for length, stride in zip(view.shape, view.strides, strict=True)):
            raise ReshardError("bad-tiles", f"{view.name!r} of out is expanded: its elements share memory")
        reaching = [other for other in reaching if other.stop > view.start]
        for other in reaching:
            if view.is_on(other):
                raise ReshardError("bad-tiles", f"{other.name!r} and {view.name!r} of out lie on each other in memory")
        reaching.append(view)
