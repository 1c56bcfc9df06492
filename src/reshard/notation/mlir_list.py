"""The list form of MLIR's shard dialect: per dim, the mesh axes that cut it, by number.

`[[0], [1, 2]]` cuts dim 0 by the first axis of the mesh, dim 1 by the second and, inside, by the third.
Dims that the list does not reach are whole, so the form alone does not say how many dims there are.
The mesh is not part of the form.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(x=2, y=4, z=2)
>>> print(read_sharding("[[0], [1, 2]]", mesh, ndim=3).text())
[{"x"}, {"y", "z"}, {}]
>>> write_sharding(Sharding.of(mesh, "z", None, ("x", "y")))
'[[2], [], [0, 1]]'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.axis import Axis
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation.grammar import Form, mentioning, number, parse, rule
from reshard.notation.plain import check_plain
from reshard.sharding import DimSharding, Sharding

if TYPE_CHECKING:
    from lark import Token


class _ListRules:
    """What each rule of the grammar stands for, by its name."""

    @rule
    def dim(self, parts: list[Token]) -> list[int]:
        return [number(part) for part in parts]

    @rule
    def sharding(self, parts: list[list[int]]) -> list[list[int]]:
        return parts


FORM = Form(name="mlir_list", starts=("sharding",), words={"NUMBER": "the number of a mesh axis"}, builder=_ListRules())


def read_sharding(text: str, mesh: Mesh, ndim: int | None = None) -> Sharding:
    """A sharding from the list form.

    Args:
        text: such as `[[0], [1, 2]]`.
        mesh: whose axes are numbered.
        ndim: the number of dims; those that the list does not reach are whole.

    Raises:
        ReshardError: `syntax`, `unknown-axis`, `rank-mismatch`, or the code of the rule that is broken.
    """
    numbers: list[list[int]] = parse(FORM, "sharding", text)
    with mentioning(text):
        if ndim is not None and len(numbers) > ndim:
            raise ReshardError("rank-mismatch", f"the list has {len(numbers)} dims, the tensor {ndim}")
        dims = [DimSharding(tuple(_axis(mesh, place) for place in dim)) for dim in numbers]
        if not mesh.is_maximal:
            dims += [DimSharding()] * ((ndim or 0) - len(dims))
        return Sharding(mesh, tuple(dims))


def _axis(mesh: Mesh, place: int) -> Axis:
    if place >= len(mesh.axes):
        raise ReshardError("unknown-axis", f"mesh {mesh} has no axis {place}; its axes are numbered from 0")
    return Axis(mesh.axes[place][0])


def write_sharding(sharding: Sharding) -> str:
    """The list form of a sharding.

    It drops the mesh, open dims, priorities and explicit replication, which move no element.

    Raises:
        ReshardError: `cannot-express` where the form cannot hold the sharding: sub-axes, unreduced axes, a maximal
            mesh, chunks of chunks.

    >>> write_sharding(Sharding.of(Mesh.of(x=2, y=8), "y:(1)2"))
    Traceback (most recent call last):
        ...
    reshard.errors.ReshardError: the list form has no sub-axes, but [{"y":(1)2}] uses "y":(1)2
    """
    check_plain(sharding, "the list form")
    if sharding.unreduced:
        raise ReshardError("cannot-express", f"the list form has no unreduced axes, but {sharding.text()} has some")
    place = {name: number for number, (name, _) in enumerate(sharding.mesh.axes)}
    return str([[place[axis.name] for axis in dim.axes] for dim in sharding.dims])
