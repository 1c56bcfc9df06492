"""A mesh: devices in row-major order of named axes.

    Mesh.of(x=2, y=4)                     positions 0 to 7 are devices 0 to 7; the device at (x, y) is 4 * x + y
    Mesh.of(x=2, device_ids=(9, 8))       position 0 is device 9
    Mesh.of(device_ids=(3,))              maximal: everything lies on device 3
    Mesh.of()                             empty: stands for whatever mesh the other side has

A device's *position* is its place in the mesh's row-major list; its number in the world is what the list
holds there.

>>> mesh = Mesh.of(x=2, y=4)
>>> mesh.size, mesh.device_at(6), mesh.position_of(6), mesh.coordinates(6)
(8, 6, 6, (1, 2))
>>> print(Mesh.of(x=2, y=2, device_ids=(0, 2, 1, 3)))
<["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from keyword import iskeyword
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard.axis import Axis, quote
from reshard.checks import LIMIT, all_of, expect, integer, listed, shown
from reshard.digits import Digit, Digits, Transposition
from reshard.drawing.held_tiles import draw_devices
from reshard.drawing.notebooks import mimebundle
from reshard.errors import ReshardError
from reshard.foreign import MeshRecord, mesh_record

ENUMERABLE = 2**24
"""Figures of every device at once are refused beyond this many devices."""


@dataclass(frozen=True)
class Mesh:
    """Ordered axes, and which device stands at each position.

    Rules, in the order checked:
        axis-name: a name is a string
        axis-size: an axis has at least size 1
        too-large: there are fewer than 2**62 devices
        negative-device-id: a device id is at least 0
        maximal-mesh: without axes there is at most one device id
        duplicate-axis: names are distinct
        device-ids-count: there are as many device ids as positions
        duplicate-device-id: device ids are distinct
    Device ids that are 0, 1, 2, … are dropped: a mesh has one spelling.
    """

    axes: tuple[tuple[str, int], ...]
    """Names and sizes, major to minor."""
    device_ids: tuple[int, ...] | None = None
    """The device at each position; None where they are 0, 1, 2, …"""

    def __post_init__(self) -> None:
        for pair in all_of(self.axes, tuple, "the axes of a mesh"):
            if len(pair) != 2:
                raise ReshardError("bad-argument", f"an axis of a mesh must be a name and a size, got: {shown(pair)}")
            name, size = expect(pair[0], str, "an axis name", "axis-name"), pair[1]
            if expect(size, int, f"the size of axis {quote(name)}") < 1:
                raise ReshardError("axis-size", f"axis {quote(name)} has size {shown(size)}; it must be at least 1")
        total = 1
        for _, size in self.axes:
            total *= size
            if total >= LIMIT:
                raise ReshardError("too-large", "a mesh of 2**62 devices or more is too large")
        if self.device_ids is not None:
            all_of(self.device_ids, int, "the device ids of a mesh")
            self._check_device_ids(self.device_ids, total)
        if len(self.sizes) != len(self.axes):
            names = [name for name, _ in self.axes]
            twice = Counter(names).most_common(1)[0][0]
            raise ReshardError("duplicate-axis", f"axis {quote(twice)} is named twice")

    def _check_device_ids(self, ids: tuple[int, ...], total: int) -> None:
        if any(device < 0 for device in ids):
            raise ReshardError("negative-device-id", f"device id {shown(min(ids))} is negative; it must be at least 0")
        if max(ids, default=0) >= LIMIT:
            raise ReshardError("too-large", f"device id {shown(max(ids))} is too large; it must be below 2**62")
        if not self.axes and len(ids) > 1:
            raise ReshardError("maximal-mesh", f"a mesh without axes has {len(ids)} device ids; it may have one")
        if len(self.sizes) == len(self.axes):
            if len(ids) != total:
                raise ReshardError("device-ids-count", f"{len(ids)} device ids are given for {total} positions")
            if len(set(ids)) != len(ids):
                twice = Counter(ids).most_common(1)[0][0]
                raise ReshardError("duplicate-device-id", f"device id {twice} is listed twice")
        if self.axes and ids == tuple(range(total)):
            object.__setattr__(self, "device_ids", None)

    def __repr__(self) -> str:
        """The call of `Mesh.of` that makes it; of many devices in an order of their own the first few."""
        words = [name.isidentifier() and not iskeyword(name) and name != "device_ids" for name, _ in self.axes]
        axes = [f"{name}={size}" for name, size in self.axes] if all(words) else [repr(dict(self.axes))]
        ids = self.device_ids
        if ids is not None:
            shown_ids = [*map(str, ids)] if len(ids) <= 16 else [*map(str, ids[:8]), "..."]
            axes.append(f"device_ids=[{', '.join(shown_ids)}]")
        return f"Mesh.of({', '.join(axes)})"

    def __str__(self) -> str:
        return f"<{self.fields()}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows."""
        return mimebundle(repr(self), draw_devices(self.axes, self.device_array.tolist(), str(self)))

    def fields(self) -> str:
        """The text between the angle brackets.

        Device ids that are no permutation of 0 to D - 1 stand under `devices=`, which Shardy does not know.
        """
        axes = ", ".join(f"{quote(name)}={size}" for name, size in self.axes)
        if self.device_ids is None:
            return f"[{axes}]"
        key = "device_ids" if not self.axes or max(self.device_ids) < self.size else "devices"
        return f"[{axes}], {key}=[{', '.join(map(str, self.device_ids))}]"

    @cached_property
    def _hash(self) -> int:
        return hash((self.axes, self.device_ids))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        return {"axes": self.axes, "device_ids": self.device_ids}

    @classmethod
    def of(
        cls,
        axes: Any = None,
        /,
        *,
        device_ids: Iterable[int] | None = None,
        **sizes: int,
    ) -> Mesh:
        """A mesh from keywords, from a mapping or pairs of names and sizes, or from an engine's mesh.

        JAX's `Mesh` and torch's `DeviceMesh` bring their devices: places in `jax.devices()`, global ranks.

        >>> Mesh.of({"data axis": 2}) == Mesh((("data axis", 2),))
        True
        """
        record = mesh_record(axes)
        if record is not None and device_ids is None and not sizes:
            return cls.of_record(record)
        pairs = listed(axes.items() if isinstance(axes, Mapping) else () if axes is None else axes, "axes")
        checked = []
        for pair in [*pairs, *sizes.items()]:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ReshardError("bad-argument", f"an axis of a mesh must be a name and a size, got: {shown(pair)}")
            name = expect(pair[0], str, "an axis name", "axis-name")
            checked.append((name, integer(pair[1], f"the size of axis {quote(name)}")))
        if isinstance(device_ids, np.ndarray):
            device_ids = device_ids.ravel()
        ids = None
        if device_ids is not None:
            ids = tuple(integer(device, "a device id") for device in listed(device_ids, "device_ids"))
        return cls(tuple(checked), ids)

    @classmethod
    def of_record(cls, record: MeshRecord) -> Mesh:
        """The mesh that an engine's object or its repr says.

        >>> print(Mesh.of_record(MeshRecord((("x", 2),), (1, 0))))
        <["x"=2], device_ids=[1, 0]>
        """
        return cls(record.axes, record.devices)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size by name, in the order of the axes."""
        return dict(self.axes)

    @cached_property
    def size(self) -> int:
        """The number of devices."""
        return prod(size for _, size in self.axes)

    @property
    def is_maximal(self) -> bool:
        """Whether it is one device without axes, on which whole tensors lie."""
        return not self.axes and self.device_ids is not None

    @property
    def is_empty(self) -> bool:
        """Whether it is the placeholder without axes and devices."""
        return not self.axes and self.device_ids is None

    @property
    def devices(self) -> Sequence[int]:
        """The device at each position."""
        return range(self.size) if self.device_ids is None else self.device_ids

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {device: position for position, device in enumerate(self.devices)}

    def device_at(self, position: int) -> int:
        """The device at a position.

        Raises:
            ReshardError: `bad-argument` where there is no such position.
        """
        if not 0 <= integer(position, "a position") < self.size:
            raise ReshardError("bad-argument", f"position {shown(position)} is not in a mesh of {self.size}")
        return self.devices[position]

    def position_of(self, device: int) -> int:
        """The position of a device.

        Raises:
            ReshardError: `unknown-device`.
        """
        if device not in self:
            raise ReshardError("unknown-device", f"device {shown(device)} is not in mesh {self}")
        return int(device) if self.device_ids is None else self._positions[device]

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ids = np.array(self.device_ids, dtype=np.int64)
        order = np.argsort(ids)
        return ids[order], order

    def positions_of(self, devices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of many devices; -1 where a device is not in the mesh."""
        if self.device_ids is None:
            return np.where(devices < self.size, devices, -1)
        ids, order = self._sorted
        place = np.minimum(np.searchsorted(ids, devices), len(ids) - 1)
        return np.where(ids[place] == devices, order[place], -1)

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Every position, as an array.

        Raises:
            ReshardError: `too-large` beyond `ENUMERABLE` devices.
        """
        if self.size > ENUMERABLE:
            raise ReshardError("too-large", f"{self.size} devices are too many to list one by one")
        return np.arange(self.size, dtype=np.int64)

    @cached_property
    def device_array(self) -> NDArray[np.int64]:
        """The device at each position, as an array.

        Raises:
            ReshardError: `too-large` beyond `ENUMERABLE` devices.
        """
        return self.positions if self.device_ids is None else np.array(self.device_ids, dtype=np.int64)

    def same_order_as(self, other: Mesh) -> bool:
        """Whether both list the same devices in the same order, whatever their axes.

        >>> Mesh.of(a=4, b=2).same_order_as(Mesh.of(x=2, y=2, z=2))
        True
        """
        return self.size == other.size and self.device_ids == other.device_ids

    def is_part_of(self, other: Mesh) -> bool:
        """Whether another mesh has all its devices."""
        ids, others = self.devices, other.devices
        if isinstance(ids, range) and isinstance(others, range):
            return len(ids) <= len(others)
        return all(device in other for device in ids)

    def __contains__(self, device: object) -> bool:
        if isinstance(device, bool) or not isinstance(device, int | np.integer):
            return False
        return bool(0 <= device < self.size) if self.device_ids is None else device in self._positions

    def coordinates(self, device: int) -> tuple[int, ...]:
        """Where a device stands along each axis."""
        position = self.position_of(device)
        result = []
        for _, size in reversed(self.axes):
            position, along = divmod(position, size)
            result.append(along)
        return tuple(reversed(result))

    @cached_property
    def _digits(self) -> dict[str, Digit]:
        return dict(zip(self.sizes, Digits.of_sizes(self.sizes.values()), strict=True))

    def digit_of(self, axis: Axis) -> Digit:
        """An axis as a digit of the position.

        >>> Mesh.of(x=2, y=4).digit_of(Axis("y", 1, 2))
        Digit(stride=2, size=2)
        """
        whole = self._digits[axis.name]
        if axis.is_whole:
            return whole
        stride, full_size = whole
        return Digit(stride * (full_size // axis.stop_in(full_size)), axis.size_in(full_size))

    def digits_of(self, axes: Iterable[Axis]) -> Digits:
        """A digit for each axis, in their order."""
        return Digits(map(self.digit_of, axes))

    @cached_property
    def digits(self) -> Digits:
        """The axes as digits of the position, those of size 1 too."""
        return Digits(self._digits.values())

    def axes_of(self, digits: Digits) -> tuple[Axis, ...] | None:
        """Digits of the position by their names: axes and sub-axes, of which a digit may be several.

        None where a digit is no product of parts of axes.

        >>> print(*Mesh.of(x=2, y=4).axes_of(Digits([Digit(2, 4)])))
        "x" "y":(1)2
        """
        return _axes_of(self, digits)

    def parts_within(self, axes: Iterable[Axis], digit: Digit) -> tuple[Axis, ...]:
        """The parts of axes that lie inside a digit of the position, where a split of both has them.

        >>> print(*Mesh.of(x=2, y=4).parts_within([Axis("x"), Axis("y")], Digit(1, 2)))
        "y":(2)2
        """
        return self.axes_of(self.digits_of(axes).within(digit)) or ()

    @classmethod
    def of_digits(cls, digits: Digits, device_ids: tuple[int, ...] | None = None, like: Mesh | None = None) -> Mesh:
        """A mesh with an axis for each digit of the position, whatever order they are given in.

        Args:
            digits: all of the position.
            device_ids: the device at each position.
            like: whose names axes keep, and parts of axes with a number behind them; all else is a, b, c, …

        >>> print(Mesh.of_digits(Digits.between({1, 2, 8, 16}), like=Mesh.of(x=2, y=8)))
        <["x"=2, "y0"=4, "y1"=2]>
        """
        result: list[tuple[str, int]] = []
        taken, counts = set(like.sizes) if like else set(), Counter[str]()
        for digit in sorted(digits, reverse=True):
            axes = like.axes_of(Digits((digit,))) if like else None
            if not axes or len(axes) > 1:
                name = next(letter for letter in map(_letter, itertools.count()) if letter not in taken)
            elif axes[0].is_whole:
                name = axes[0].name
            else:
                base, number = axes[0].name, counts[axes[0].name]
                options = (f"{base}{'_' * bars}{number}" for bars in itertools.count())
                name = next(option for option in options if option not in taken)
                counts[base] += 1
            taken.add(name)
            result.append((name, digit.size))
        return cls(tuple(result) or (("a", 1),), device_ids)

    def order_in(self, other: Mesh) -> Transposition | None:
        """How the positions of this mesh are digits of positions in another over the same devices; else None.

        >>> order = Mesh.of(x=2, y=2, device_ids=(0, 2, 1, 3)).order_in(Mesh.of(z=4))
        >>> Digits([Digit(1, 2)]).transposed(order)
        Digits([Digit(stride=2, size=2)])
        """
        return _order_in(self, other)


@lru_cache(4096)
def _axes_of(mesh: Mesh, digits: Digits) -> tuple[Axis, ...] | None:
    named = [
        (part, Axis.between(name, whole.end // part.end, whole.end // part.stride, whole.size))
        for digit in digits
        for name, whole in mesh._digits.items()
        for part in Digits((digit,)).within(whole)
    ]
    return tuple(axis for _, axis in named) if prod(part.size for part, _ in named) == digits.size else None


@lru_cache(256)
def _order_in(mesh: Mesh, other: Mesh) -> Transposition | None:
    if mesh.size != other.size:
        return None
    if mesh.device_ids == other.device_ids:
        whole = Digits([Digit(1, mesh.size)])
        return Transposition(whole, whole)
    places = other.positions_of(mesh.device_array)
    return Transposition.of(places) if (places >= 0).all() else None


def _letter(number: int) -> str:
    """The name of an axis that has none: a to z, then a1 to z1."""
    letter = chr(ord("a") + number % 26)
    return letter if number < 26 else f"{letter}{number // 26}"
