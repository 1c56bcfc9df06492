"""The list form of MLIR's shard dialect: per dim, the mesh axes that cut it, by number.

`[[0], [1, 2]]` cuts dim 0 by the first axis of the mesh, dim 1 by the second and, inside, by the third.
Dims that the list does not reach are whole, so the form alone does not say how many dims there are.
The mesh is not part of the form.

What the dialect's operation says besides is read and written behind the list: `halo_sizes`, two widths for each dim
that is cut, and `sharded_dims_offsets`, the places between which the shards of each such dim lie, its size the last of
them.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=4, z=2)
>>> print(read_sharding("[[0], [1, 2]]", mesh, ndim=3).text())
[{"x"}, {"y", "z"}, {}]
>>> write_sharding(Sharding.of(mesh, "z", None, ("x", "y")))
'[[2], [], [0, 1]]'
>>> print(read_sharding("shard.sharding @m split_axes = [[0], [1]] halo_sizes = [1, 2, 0, 0]", mesh).text())
[{"x", halo(1, 2)}, {"y"}]
>>> write_sharding(Sharding.of(mesh, (Deal.offsets(0, 24, 32), "x"), None))
'[[0], []] sharded_dims_offsets = [0, 24, 32]'
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from reshard.axis import Axis, shards
from reshard.deal import Deal, Window
from reshard.dim_sharding import DimSharding
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation.grammar import Form, mentioning, number, parse, rule
from reshard.notation.plain import check_plain
from reshard.sharding import Sharding

if TYPE_CHECKING:
    from lark import Token


class _ListRules:
    """What each rule of the grammar stands for, by its name."""

    @rule
    def dim(self, parts: list[Token]) -> list[int]:
        return [number(part) for part in parts]

    @rule
    def sharding(self, parts: list[list[int]]) -> _Operation:
        return _Operation(parts)

    @rule
    def dims(self, parts: list[list[int]]) -> list[list[int]]:
        return parts

    @rule
    def halos(self, parts: list[list[int]]) -> _Numbers:
        return _Numbers(parts[0], are_widths=True)

    @rule
    def offsets(self, parts: list[list[int]]) -> _Numbers:
        return _Numbers(parts[0], are_widths=False)

    @rule
    def operation(self, parts: list[Any]) -> _Operation:
        numbers = [part for part in parts if isinstance(part, _Numbers)]
        dims = next(part for part in parts if isinstance(part, list))
        return _Operation(dims, numbers[0] if numbers else None)


class _Numbers(NamedTuple):
    """What stands behind the list."""

    numbers: list[int]
    are_widths: bool
    """Whether they are the widths of halos, else offsets."""


class _Operation(NamedTuple):
    """The list, and what stands behind it."""

    dims: list[list[int]]
    numbers: _Numbers | None = None


FORM = Form(
    name="mlir_list",
    starts=("sharding", "operation"),
    words={"NUMBER": "the number of a mesh axis", "SYMBOL": "a mesh's name after `@`"},
    builder=_ListRules(),
)
_IS_OPERATION = re.compile(r"split_axes|halo_sizes|sharded_dims_offsets")


def read_sharding(text: str, mesh: Mesh, ndim: int | None = None) -> Sharding:
    """A sharding from the list form.

    Args:
        text: such as `[[0], [1, 2]]`.
        mesh: whose axes are numbered.
        ndim: the number of dims; those that the list does not reach are whole.

    Raises:
        ReshardError: `syntax`, `unknown-axis`, `rank-mismatch`, or the code of the rule that is broken.
    """
    read: _Operation = parse(FORM, "operation" if _IS_OPERATION.search(text) else "sharding", text)
    numbers = read.dims
    with mentioning(text):
        if ndim is not None and len(numbers) > ndim:
            raise ReshardError("rank-mismatch", f"the list has {len(numbers)} dims, the tensor {ndim}")
        dims = [DimSharding(tuple(_axis(mesh, place) for place in dim)) for dim in numbers]
        if not mesh.is_maximal:
            dims += [DimSharding()] * ((ndim or 0) - len(dims))
        if read.numbers is not None:
            dims = _with_numbers(dims, read.numbers, mesh)
        return Sharding(mesh, tuple(dims))


def _with_numbers(dims: list[DimSharding], behind: _Numbers, mesh: Mesh) -> list[DimSharding]:
    """The dims with their halos, or with the places of their shards.

    Raises:
        ReshardError: `syntax` where there are not as many numbers as cut dims want; `bad-deal`.
    """
    counts = [shards(dim.axes, mesh.sizes) + 1 for dim in dims if dim.axes]
    counts = [2] * len(counts) if behind.are_widths else counts
    if sum(counts) != len(behind.numbers):
        raise ReshardError("syntax", f"{len(counts)} cut dims want {sum(counts)} numbers, got: {len(behind.numbers)}")
    rest, changed = iter(behind.numbers), []
    for dim in dims:
        if not dim.axes:
            changed.append(dim)
            continue
        numbers = tuple(itertools.islice(rest, counts[sum(1 for one in changed if one.axes)]))
        if not behind.are_widths:
            changed.append(replace(dim, deals=(Deal.offsets(*numbers),)))
        else:
            changed.append(replace(dim, window=Window(numbers[0], numbers[1]) if any(numbers) else None))
    return changed


def _axis(mesh: Mesh, place: int) -> Axis:
    if place >= len(mesh.axes):
        raise ReshardError("unknown-axis", f"mesh {mesh} has no axis {place}; its axes are numbered from 0")
    return Axis(mesh.axes[place][0])


def write_sharding(sharding: Sharding) -> str:
    """The list form of a sharding.

    It drops the mesh, open dims, priorities and explicit replication, which move no element.

    Raises:
        ReshardError: `cannot-express` where the form cannot hold the sharding: sub-axes, unreduced axes, a maximal
            mesh, chunks of chunks, deals but offsets, and windows but halos that end where the tensor does, on dims
            that are cut.

    >>> write_sharding(Sharding.of(Mesh.of(x=2, y=8), "y:(1)2"))
    Traceback (most recent call last):
        ...
    reshard.errors.ReshardError: the list form has no sub-axes, but [{"y":(1)2}] uses "y":(1)2
    """
    behind = _numbers_of(sharding)
    check_plain(_bare(sharding) if behind else sharding, "the list form")
    if sharding.unreduced:
        raise ReshardError("cannot-express", f"the list form has no unreduced axes, but {sharding.text()} has some")
    place = {name: number for number, (name, _) in enumerate(sharding.mesh.axes)}
    return str([[place[axis.name] for axis in dim.axes] for dim in sharding.dims]) + behind


def _bare(sharding: Sharding) -> Sharding:
    return replace(sharding, dims=tuple(replace(dim, deals=(), window=None) for dim in sharding.dims))


def _numbers_of(sharding: Sharding) -> str:
    """What stands behind the list; nothing where that cannot say it."""
    cut = [dim for dim in sharding.dims if dim.axes]
    windows = [dim.window for dim in sharding.dims if dim.window]
    if not sharding.is_woven or any(dim.window for dim in sharding.dims if not dim.axes):
        return ""
    if not any(dim.deals for dim in cut):
        if any(window.edge != "clip" or window.spans or window.summed for window in windows):
            return ""
        widths = [(dim.window.low, dim.window.high) if dim.window else (0, 0) for dim in cut]
        return f" halo_sizes = {list(itertools.chain(*widths))}"
    deals = [dim.deals for dim in cut]
    if windows or any([(deal.kind, deal.place) for deal in dealt] != [("offsets", 0)] for dealt in deals):
        return ""
    return f" sharded_dims_offsets = {list(itertools.chain(*(dealt[0].numbers for dealt in deals)))}"
