"""What XLA prints of an HloSharding: `{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}`.

The tensor is cut into `devices=[...]` tiles, here 4 x 1; a further dim counts the copies of each tile.
Then come the devices in the order of the tiles, row-major: either as they are, `devices=[2,2]0,2,1,3`, or as
`<=[2,4]T(1,0)`, the devices 0 to 7 in two rows of four, transposed.
Such a transposition is a list of digits of the device's number, and tiles, iota dims and mesh axes are all factors
of the same numbers, so reading and writing are the cutting and joining of digits:

    <=[2,4]T(1,0)        digits (stride 1, size 4), (stride 4, size 2)
    [4,1 | 2]            dim 0 takes the first, dim 1 none, the copies take the second
    on x=2, y=4          x has stride 4, y has stride 1: `[{"y"}, {}]`

Where no mesh is given, or the digits are no parts of its axes, the sharding is on a fresh mesh with axes a, b, c, …:
one per digit, in the order of the devices, with the devices as they are; and where the devices follow no digits,
one per dim of tiles, with a list of device ids.

>>> from reshard.mesh import Mesh
>>> text = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"
>>> print(read_sharding(text, Mesh.of(x=2, y=4)).text())
[{"y"}, {}]
>>> print(read_sharding(text, None))
#sdy.sharding<mesh<["a"=2, "b"=4]>, [{"b"}, {}]>
>>> write_sharding(Sharding.of(Mesh.of(x=2, y=4), "y", None))
'{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}'
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reshard.axis import Axis
from reshard.digits import Digit, Positions, digit_order, joined
from reshard.errors import ReshardError
from reshard.mesh import LIMIT, Mesh
from reshard.notation.grammar import Form, Misread, mentioning, number, parse, placed, shown
from reshard.notation.plain import check_blocks
from reshard.sharding import Sharding

if TYPE_CHECKING:
    from lark import Token

_TUPLE = re.compile(r"\s*(?:sharding\s*=\s*)?\{\s*(?:\{|\})")
_MOST_LISTED = 2**24
"""The most devices that are listed one by one."""


class Tiles(NamedTuple):
    """A tile assignment as its text has it."""

    shape: tuple[int, ...]
    """How often each dim of the tensor is cut; then the sizes of the subgroups."""
    subgroups: tuple[str, ...]
    """What the devices along the last dims of `shape` hold: `replicated` or `unreduced`."""
    reshaped: tuple[int, ...]
    """The dims of the iota; empty where the devices are listed."""
    order: tuple[int, ...]
    """How the iota is transposed; or the devices."""

    def devices(self) -> Positions:
        """The devices in the order of the tiles."""
        if not self.reshaped:
            return np.array(self.order, dtype=np.int64)
        if prod(self.reshaped) > _MOST_LISTED:
            raise ReshardError("too-large", f"{prod(self.reshaped)} devices in no order of digits are too many to list")
        return _numbers(self.digits() or [])

    def digits(self) -> list[Digit] | None:
        """The devices as digits of their number, in the order of the tiles; None where they are no such list."""
        if not self.reshaped:
            return _digits(self.with_copies_sorted(self.devices()))
        strides = [prod(self.reshaped[place + 1 :]) for place in range(len(self.reshaped))]
        return [Digit(strides[place], self.reshaped[place]) for place in self.order if self.reshaped[place] > 1]

    def with_copies_sorted(self, numbers: Positions) -> Positions:
        """One number per tile, with those of each tile's copies, whose order says nothing, in ascending order."""
        kinds = [""] * (len(self.shape) - len(self.subgroups)) + list(self.subgroups)
        cut = [(size, kind == "replicated") for size, kind in zip(self.shape, kinds, strict=True) if size > 1]
        order = sorted(range(len(cut)), key=lambda place: cut[place][1])
        moved = numbers.reshape([size for size, _ in cut]).transpose(order)
        rows = np.sort(moved.reshape(-1, prod(size for size, is_copy in cut if is_copy)))
        return rows.reshape(moved.shape).transpose(np.argsort(order)).ravel()


class _Builder:
    """What each rule of the grammar stands for."""

    def tiles(self, parts: list[Token]) -> tuple[int, ...]:
        for part in parts:
            if number(part) == 0:
                raise Misread(part, "a dim must be cut into at least 1 tile; found 0")
        return tuple(map(int, parts))

    def reshaped(self, parts: list[Token]) -> tuple[int, ...]:
        return self.tiles(parts)

    def iota(self, parts: list[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if len(parts) == 1:
            return self.tiles(parts), (0,)
        reshaped, *order = parts
        numbers = tuple(number(part) for part in order)
        if sorted(numbers) != list(range(len(reshaped))):
            found = shown(",".join(order))
            problem = f"a transposition of {len(reshaped)} dims must hold each of 0 to {len(reshaped) - 1} once"
            raise Misread(order[0], f"{problem}; found {found}")
        return reshaped, numbers

    def listed(self, parts: list[Token]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (), tuple(number(part) for part in parts)

    def last_tile_dim_replicate(self, _: list[Token]) -> list[str]:
        return ["replicated"]

    def last_tile_dims(self, parts: list[Token]) -> list[str]:
        for part in parts:
            if part == "manual":
                raise Misread(part, _MANUAL)
        return [str(part) for part in parts]

    def tiled(self, parts: list[Any]) -> Tiles:
        shape, (reshaped, order) = parts[:2]
        subgroups = tuple(parts[2]) if len(parts) > 2 else ()
        if len(subgroups) > len(shape):
            raise ReshardError("syntax", f"{len(subgroups)} last tile dims are named, but there are {len(shape)} dims")
        tiles, count = _product(shape), _product(reshaped) if reshaped else len(order)
        if tiles != count:
            raise ReshardError("device-ids-count", f"{count} devices are given for {tiles} tiles")
        if not reshaped and len(set(order)) != count:
            twice = Counter(order).most_common(1)[0][0]
            raise ReshardError("duplicate-device-id", f"device {twice} is listed twice")
        return Tiles(shape, subgroups, reshaped, order)

    def maximal(self, parts: list[Token]) -> int:
        return number(parts[0])

    def sharding(self, parts: list[Any]) -> Tiles | Token | int:
        kind: Tiles | Token | int = parts[0]
        if not isinstance(kind, Tiles | int) and kind.type in _REFUSED:
            raise Misread(kind, _REFUSED[kind.type])
        return kind


def _product(sizes: Iterable[int]) -> int:
    """The product of sizes, which must be below 2**62; it is not carried further, for a text may have very many."""
    total = 1
    for size in sizes:
        total *= size
        if total >= LIMIT:
            raise ReshardError("too-large", "there are 2**62 tiles or devices, or more; there must be fewer")
    return total


_MANUAL = "a manual sharding leaves to the program what each device holds, so it cannot be read; found `manual`"
_REFUSED = {"MANUAL": _MANUAL, "UNKNOWN": "an unknown sharding says nothing; found `unknown`"}

FORM = Form(
    name="xla",
    starts=("sharding",),
    words={"NUMBER": "a number", "BLOCK": "metadata in braces"},
    builder=_Builder(),
)


def read_sharding(text: str, mesh: Mesh | None, ndim: int | None = None) -> Sharding:
    """A sharding from XLA's text.

    Args:
        text: with or without its braces, and `sharding=` before it.
        mesh: of the same devices; the sharding is on it where its axes can express the text.
        ndim: the number of dims of the tensor, which `{replicated}` and `{unreduced}` do not say.

    Raises:
        ReshardError: `syntax`, `rank-mismatch`, `different-meshes` where the mesh has other devices,
            `bad-argument` where `ndim` is needed, `unknown-mesh` where a mesh is, or the code of the rule that
            is broken.
    """
    if found := _TUPLE.match(text):
        place = text.index("{", 0, found.end())
        ending = "; it holds a sharding for every part of a tuple, so give one of those"
        raise placed(text, place, "a tuple sharding begins", ending)
    kind: Tiles | Token | int = parse(FORM, "sharding", text)
    mesh = None if mesh is None or mesh.is_empty else mesh
    with mentioning(text):
        if isinstance(kind, int):
            if mesh is not None:
                mesh.position_of(kind)
            return Sharding(Mesh((), (kind,)), ())
        if isinstance(kind, Tiles):
            return _tiled(kind, mesh, ndim)
        if ndim is None:
            raise ReshardError("bad-argument", "the text does not say the number of dims; ndim must be given")
        if kind.type == "UNREDUCED" and mesh is None:
            raise ReshardError("unknown-mesh", "the text does not say on which devices; a mesh must be given")
        if mesh is not None and mesh.is_maximal:
            return Sharding(mesh, ())
        names = [name for name, size in mesh.axes if size > 1] if mesh and kind.type == "UNREDUCED" else []
        return Sharding.of(mesh or Mesh(()), *[None] * ndim, unreduced=names)


def _tiled(tiles: Tiles, mesh: Mesh | None, ndim: int | None) -> Sharding:
    rank = len(tiles.shape) - len(tiles.subgroups)
    if ndim is not None and rank != ndim:
        raise ReshardError("rank-mismatch", f"the tiles have {rank} dims, the tensor {ndim}")
    if mesh is not None:
        digits = _digits_on(tiles, mesh)
        dealt = None if digits is None else _dealt(digits, tiles.shape)
        axes = None if dealt is None else [_axes(part, mesh) for part in dealt]
        if axes is not None and all(part is not None for part in axes):
            return _assembled(mesh, tiles, [part or [] for part in axes])
    return _on_fresh_mesh(tiles)


def _on_fresh_mesh(tiles: Tiles) -> Sharding:
    """On axes a, b, c, …: a digit each, in the order of the devices; or a dim of tiles each, with device ids."""
    digits = tiles.digits()
    dealt = None if digits is None else _dealt(digits, tiles.shape)
    if dealt is not None:
        order = sorted((digit for part in dealt for digit in part), reverse=True)
        names = {digit: _axis_name(place) for place, digit in enumerate(order)}
        mesh = Mesh(tuple((names[digit], digit.size) for digit in order) or (("a", 1),))
        return _assembled(mesh, tiles, [[Axis(names[digit]) for digit in part] for part in dealt])
    cut = [place for place, size in enumerate(tiles.shape) if size > 1]
    sizes = tuple((_axis_name(count), tiles.shape[place]) for count, place in enumerate(cut)) or (("a", 1),)
    axes: list[list[Axis]] = [[] for _ in tiles.shape]
    for count, place in enumerate(cut):
        axes[place].append(Axis(_axis_name(count)))
    return _assembled(Mesh(sizes, tuple(tiles.devices().tolist())), tiles, axes)


def _assembled(mesh: Mesh, tiles: Tiles, axes: Sequence[Sequence[Axis]]) -> Sharding:
    """The sharding, given the axes that cut each dim of the tiles."""
    rank = len(tiles.shape) - len(tiles.subgroups)
    last = zip(tiles.subgroups, axes[rank:], strict=True)
    unreduced = [axis for subgroup, part in last if subgroup == "unreduced" for axis in part]
    return Sharding.of(mesh, *axes[:rank], unreduced=unreduced)


def _digits_on(tiles: Tiles, mesh: Mesh) -> list[Digit] | None:
    """The tiles' devices as digits of their position in a mesh; None where they are no such list."""
    count = prod(tiles.shape)
    if count != mesh.size:
        raise ReshardError("different-meshes", f"the text is about {count} devices, mesh {mesh} has {mesh.size}")
    if mesh.device_ids is None and tiles.reshaped:
        return tiles.digits()
    devices = tiles.devices()
    ids = np.array(mesh.devices, dtype=np.int64)
    by_id = np.argsort(ids)
    if not np.array_equal(ids[by_id], np.sort(devices)):
        strange = min(set(devices.tolist()) - set(ids.tolist()))
        raise ReshardError("different-meshes", f"the text is about device {strange}, which is not in mesh {mesh}")
    return _digits(tiles.with_copies_sorted(by_id[np.searchsorted(ids, devices, sorter=by_id)]))


def _digits(numbers: Positions) -> list[Digit] | None:
    """A list of the numbers 0 to D - 1 as digits of the number, major to minor in the list; None where it is none.

    >>> _digits(np.array([0, 2, 1, 3]))
    [Digit(stride=1, size=2), Digit(stride=2, size=2)]
    """
    order = digit_order(numbers) if int(numbers.max()) == len(numbers) - 1 else None
    return None if order is None else [Digit(stride, digit.size) for digit, stride in sorted(order, reverse=True)]


def _numbers(digits: Iterable[Digit]) -> Positions:
    """The numbers that digits count through, the last digit fastest.

    >>> _numbers([Digit(1, 2), Digit(2, 2)])
    array([0, 2, 1, 3])
    """
    numbers: Positions = np.zeros(1, dtype=np.int64)
    for stride, size in digits:
        numbers = (numbers[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return numbers


def _dealt(digits: Sequence[Digit], sizes: Sequence[int]) -> list[list[Digit]] | None:
    """Digits in order, cut so that each of `sizes` takes some whole ones; None where they do not divide.

    >>> _dealt([Digit(1, 8)], [2, 1, 4])
    [[Digit(stride=4, size=2)], [], [Digit(stride=1, size=4)]]
    """
    left = list(reversed(digits))
    result: list[list[Digit]] = []
    for size in sizes:
        part: list[Digit] = []
        while size > 1:
            stride, most = left.pop()
            if size % most == 0:
                part.append(Digit(stride, most))
                size //= most
            elif most % size == 0:
                part.append(Digit(stride * (most // size), size))
                left.append(Digit(stride, most // size))
                size = 1
            else:
                return None
        result.append(part)
    return result


def _axes(digits: Iterable[Digit], mesh: Mesh) -> list[Axis] | None:
    """The axes and sub-axes of a mesh that are the digits, major to minor; None where there are none.

    >>> print(*_axes([Digit(2, 4)], Mesh.of(x=2, y=4)))
    "x" "y":(1)2
    """
    result: list[Axis] = []
    for stride, size in digits:
        for name, full_size in mesh.axes:
            low, step = mesh.stride_of(Axis(name))[0], stride
            high = low * full_size
            start, stop = max(low, step), min(high, step * size)
            if start < stop:
                if start % low or start % step or stop % start or high % stop or (step * size) % stop:
                    return None
                result.append(Axis.between(name, high // stop, high // start, full_size))
    return result


def _axis_name(place: int) -> str:
    letter = chr(ord("a") + place % 26)
    return letter if place < 26 else f"{letter}{place // 26}"


def write_sharding(sharding: Sharding, ndim: int | None = None) -> str:
    """XLA's text of a sharding, in the shortest form that XLA itself prints.

    It drops the names, open dims, priorities and explicit replication, which move no element.
    `{replicated}` and `{unreduced}` do not list devices: they mean all of the mesh that they are read with.

    Args:
        sharding: to be written.
        ndim: the number of dims, checked where given.

    Raises:
        ReshardError: `cannot-express` where the form cannot hold the sharding: chunks of chunks, reductions other
            than sum; `rank-mismatch`.

    >>> write_sharding(Sharding.of(Mesh.of(x=2, y=4), "x", None, unreduced="y:(1)2"))
    '{devices=[2,1,2,2]<=[8] last_tile_dims={unreduced, replicated}}'
    """
    check_blocks(sharding, "XLA's form")
    if sharding.reduction != "sum":
        raise ReshardError(
            "cannot-express", f"XLA's form has sums alone, but {sharding.text()} is under {sharding.reduction}"
        )
    if ndim is not None and sharding.ndim not in (None, ndim):
        raise ReshardError("rank-mismatch", f"sharding {sharding.text()} has {sharding.ndim} dims, not {ndim}")
    mesh, layout = sharding.mesh, sharding.layout
    if mesh.is_maximal:
        return f"{{maximal device={mesh.device_at(0)}}}"
    tiles = [layout.shards(dim) for dim in range(len(layout.dims))]
    partial, copies = prod(digit.size for digit in layout.unreduced), layout.copies()
    if prod(tiles) == 1 and 1 in (partial, copies):
        return "{replicated}" if partial == 1 else "{unreduced}"
    digits = [digit for stages in layout.dims for stage in stages for digit in stage]
    digits += [*layout.unreduced, *(Digit(*mesh.stride_of(axis)) for axis in sharding.unused_axes())]
    subgroups = [(name, size) for name, size in (("unreduced", partial), ("replicated", copies)) if size > 1]
    shape = ",".join(map(str, [*tiles, *(size for _, size in subgroups)]))
    names = [name for name, _ in subgroups]
    last = " last_tile_dim_replicate" if names == ["replicated"] else f" last_tile_dims={{{', '.join(names)}}}"
    return f"{{devices=[{shape}]{_listing(joined(digits), mesh, copies)}{last if names else ''}}}"


def _listing(digits: Sequence[Digit], mesh: Mesh, copies: int) -> str:
    """The devices in the order of digits of their position: as an iota where it is one.

    Among the `copies` of a tile, which come last, devices are in ascending order.
    """
    if mesh.device_ids is not None:
        devices = np.sort(np.array(mesh.device_ids, dtype=np.int64)[_numbers(digits)].reshape(-1, copies)).ravel()
        found = _digits(devices)
        if found is None:
            return ",".join(map(str, devices.tolist()))
        digits = joined(found)
    order = sorted(range(len(digits)), key=lambda place: -digits[place].stride)
    sizes = ",".join(str(digits[place].size) for place in order)
    ranks = {place: rank for rank, place in enumerate(order)}
    transposition = ",".join(str(ranks[place]) for place in range(len(digits)))
    return f"<=[{sizes}]" + (f"T({transposition})" if len(digits) > 1 else "")
