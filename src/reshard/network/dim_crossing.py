"""How many bytes must cross, dim by dim: whatever the sizes of tiles, and however many devices and cells there are.

What `crossing.py` counts is a sum over cells, and a cell is an interval of each dim.
The digits of the devices that hold it follow from the source shards of its intervals, and of those that need it from
the target shards.
So each interval puts its length in a table by the values of the digits that cut its dim, at the source and at the
target; tables of dims and of levels are multiplied, and summed up.
Of a level mostly few devices are told apart by the parts that are asked for, so values of a digit that no part tells
apart are one, and tables are small.

By hand, 3 elements on a line of 2 x 2, cut in 2 and 1 by the major digit, that are wanted in 2 and 1 by the minor one:
device 0 holds what it needs, device 1 lacks one element and device 2 two, the outer two lack one together.

>>> from reshard.mesh import Mesh
>>> from reshard.network.level import Level
>>> from reshard.sharding import Sharding
>>> mesh, network = Mesh.of(x=2, y=2), Network((Level(1, 4, "line", 1, 0),))
>>> ends = [Tiling.of(Sharding.of(mesh, axis), (3,)) for axis in "xy"]
>>> parts = [np.array([[True, False, False, False], [False, True, False, False], [False, False, True, False]])]
>>> crossing_by_dims(ends, ClassDigits(), np.int64, network, parts).tolist()
[[0, 1, 2], [0, 0, 0]]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard.digits import NO_DIGITS, Digits, Positions
from reshard.exchange.pieces import ClassDigits, Overlaps, block_overlaps
from reshard.network.lettered_tables import LetteredTable, contracted
from reshard.network.networks import Network
from reshard.network.numbers import device_digits
from reshard.tiling import Tiling

Members = Sequence[NDArray[np.bool_]]
"""Per level, a row for each part of it: which values of its digit are in it."""
MOST_VALUES = 2**18
"""Tables of dims have no more values; of more the parts are counted in halves, which tell fewer apart."""


_COMBINED, _FREE = -1, -2
"""In place of a dim, of digits along which values are combined, or the same."""


class _Part(NamedTuple):
    """A digit of the devices of an end that lies within a level."""

    level: int
    stride: int
    """Of the level's values."""
    size: int
    dim: int
    """That it cuts; the classes that stay partial count as the first."""


class _Told(NamedTuple):
    """Which values of a level's digits are in its parts, where those that no part tells apart are one."""

    table: NDArray[np.bool_]
    """A row for each part, then a dim for each digit."""
    digits: list[int]
    """Their numbers among the digits of the end."""
    kinds: list[Positions]
    """Per digit what each of its values is one with."""


class _EndDigits(NamedTuple):
    """The digits of an end, and what the parts of each level tell of them."""

    parts: list[_Part]
    told: list[_Told]

    @classmethod
    def of(
        cls, tiling: Tiling, roles: Sequence[Digits], combined: Digits, network: Network, members: Members
    ) -> _EndDigits | None:
        """Those of an end; None where its digits do not lie within levels.

        Args:
            tiling: the end.
            roles: of the position, those of classes that stay partial, then those that cut each dim.
            combined: those along which values are combined.
            network: whose levels `members` divides.
            members: per level its parts.
        """
        parts = list[_Part]()
        for dim, digits in [*enumerate(roles), (_COMBINED, combined), (_FREE, tiling.layout.free)]:
            within = _within_levels(tiling, digits, network)
            if within is None:
                return None
            parts += [_Part(*place, dim) for place in within]
        first = tiling.mesh.devices[0]
        return cls(
            parts,
            [
                _told(
                    rows, level.digit.value(first), [(n, part) for n, part in enumerate(parts) if part.level == number]
                )
                for number, (level, rows) in enumerate(zip(network.levels, members, strict=True))
            ],
        )

    def has(self, *, comes_in: bool) -> list[LetteredTable]:
        """Per level whether a device of each part has a value, of all that are combined; or only these do."""
        first, second = (np.any, np.all) if comes_in else (np.all, np.any)
        tables = []
        for number, (table, digits, _) in enumerate(self.told):
            axes = [
                tuple([axis for axis, digit in enumerate(digits, 1) if self.parts[digit].dim == role])
                for role in (_FREE, _COMBINED)
            ]
            held = first(table, axis=axes[0], keepdims=True) if axes[0] else table
            held = second(held, axis=axes[1], keepdims=True) if axes[1] else held
            left = [digit for digit in digits if self.parts[digit].dim >= 0]
            shape = [size for digit, size in zip(digits, table.shape[1:], strict=True) if digit in left]
            tables.append(LetteredTable(held.reshape(len(table), *shape).astype(np.int64), [number, *left]))
        return tables

    def kinds_of(self, dim: int, shards: Positions) -> Iterator[tuple[int, Positions]]:
        """The digits that cut a dim, from the last, and the kind of the value that each has of some shards."""
        kinds = {digit: kind for told in self.told for digit, kind in zip(told.digits, told.kinds, strict=True)}
        for number in reversed([number for number, part in enumerate(self.parts) if part.dim == dim]):
            shards, value = np.divmod(shards, self.parts[number].size)
            yield number, kinds[number][value]


def crossing_by_dims(
    ends: Sequence[Tiling], classes: ClassDigits, integers: type, network: Network, members: Members
) -> NDArray[Any] | None:
    """The elements that must cross, dim by dim; None where digits do not lie within levels, or tiles have windows.

    Args:
        ends: the source and the target.
        classes: the digits along which values stay partial.
        integers: a type for the elements of the tensor.
        network: whose levels `members` divides.
        members: per level its parts.
    """
    source, target = ends
    if source.layout.has_windows or target.layout.has_windows:
        return None
    combined = source.layout.unreduced.without(classes.source)
    before = _EndDigits.of(source, [classes.source, *source.layout.cutting], combined, network, members)
    after = _EndDigits.of(target, [classes.target, *target.layout.cutting], NO_DIGITS, network, members)
    if before is None or after is None:
        return None
    kept = np.arange(classes.source.size)
    overlaps = [Overlaps(kept, kept, kept, kept + 1)]
    overlaps += [block_overlaps(source.layout, target.layout, dim, size) for dim, size in enumerate(source.shape)]
    levels = len(members)
    tables = [_lengths(before, after, dim, overlap, levels, integers) for dim, overlap in enumerate(overlaps)]
    lengths = [table for table in tables if table is not None]
    if len(lengths) < len(tables):
        return _in_halves(ends, classes, integers, network, members)
    crossing = []
    for comes_in in (True, False):
        has = [_lettered(table, levels, levels) for table in before.has(comes_in=comes_in)]
        wants = [_lettered(table, levels, levels + len(before.parts)) for table in after.has(comes_in=comes_in)]
        asked = wants if comes_in else has
        crossing.append(contracted([*asked, *lengths], levels) - contracted([*has, *wants, *lengths], levels))
    return np.array(crossing)


def _in_halves(
    ends: Sequence[Tiling], classes: ClassDigits, integers: type, network: Network, members: Members
) -> NDArray[Any] | None:
    """The same in two: half of the parts tell fewer values apart. None where a level has but one."""
    level = max(range(len(members)), key=lambda number: len(members[number]))
    if len(members[level]) < 2:
        return None
    halves = [
        crossing_by_dims(ends, classes, integers, network, [*members[:level], rows, *members[level + 1 :]])
        for rows in np.array_split(members[level], 2)
    ]
    known = [half for half in halves if half is not None]
    return np.concatenate(known, axis=1 + level) if len(known) == len(halves) else None


def is_by_dims(ends: Sequence[Tiling], network: Network) -> bool:
    """Whether digits lie within levels, and no tiles have windows, as `crossing_by_dims` asks."""
    return not any(end.layout.has_windows for end in ends) and all(
        _within_levels(end, digits, network) is not None
        for end in ends
        for digits in (end.layout.unreduced, end.layout.free, *end.layout.cutting)
    )


def _within_levels(tiling: Tiling, digits: Digits, network: Network) -> list[tuple[int, int, int]] | None:
    """Digits of the position, major to minor, as levels and strides and sizes within them; None where they are not."""
    numbered = device_digits(tiling.mesh, digits)
    if numbered is None:
        return None
    places = []
    for digit in numbered:
        inside = [
            (part.stride, number, part.stride // level.stride, part.size)
            for number, level in enumerate(network.levels)
            for part in Digits((digit,)).within(level.digit)
        ]
        if prod([size for *_, size in inside]) != digit.size:
            return None
        places += [place for _, *place in sorted(inside, reverse=True)]
    return [(level, stride, size) for level, stride, size in places]


def _told(rows: NDArray[np.bool_], first: int, parts: Sequence[tuple[int, _Part]]) -> _Told:
    """What the parts of a level tell of the digits that lie within it, from the value of the first device."""
    values = np.full(1, first)
    for _, part in parts:
        values = (values[:, None] + np.arange(part.size) * part.stride).ravel()
    table = rows[:, values].reshape(len(rows), *[part.size for _, part in parts])
    kinds = []
    for axis in range(1, table.ndim):
        seen: dict[bytes, int] = {}
        rest = np.ascontiguousarray(np.moveaxis(table, axis, 0))
        kinds.append(np.array([seen.setdefault(value.tobytes(), len(seen)) for value in rest]))
        firsts = np.unique(kinds[-1], return_index=True)[1]
        table = table.take(firsts, axis)
    return _Told(table, [number for number, _ in parts], kinds)


def _lengths(
    before: _EndDigits, after: _EndDigits, dim: int, overlaps: Overlaps, levels: int, integers: type
) -> LetteredTable | None:
    """How long all intervals of a dim are together, by the kinds of the values of the digits that cut it."""
    row, sizes, letters = np.zeros(len(overlaps.start), dtype=np.int64), list[int](), list[int]()
    for end, shards, letter in (
        (before, overlaps.source, levels),
        (after, overlaps.target, levels + len(before.parts)),
    ):
        counts = {
            digit: size for told in end.told for digit, size in zip(told.digits, told.table.shape[1:], strict=True)
        }
        for number, kinds in end.kinds_of(dim, shards):
            row = row + kinds * prod(sizes)
            sizes.insert(0, counts[number])
            letters.insert(0, letter + number)
    if prod(sizes) > MOST_VALUES:
        return None
    lengths = np.bincount(row, overlaps.stop - overlaps.start, prod(sizes))  # less than 2**53, so they are whole
    return LetteredTable(lengths.astype(np.int64).astype(integers).reshape(sizes), letters)


def _lettered(table: LetteredTable, levels: int, first: int) -> LetteredTable:
    """The table of a level with the letters of its digits counted from one on."""
    level, *digits = table.letters
    return LetteredTable(table.values, [level, *(first + digit for digit in digits)])
