"""Named-axis notation: `A[I_X, J_YZ] {U_W}`.

A tensor A has the dims I and J; I is cut by the mesh axis X, J by Y and, inside, by Z; and the value is a sum over W
that has not been made.
A subscript is read against the axes of a mesh: `YZ` is the longest axis whose name begins it, then the rest, so that
names of any length may be put side by side; `J_{data,model}` parts them where that is clearer.

>>> from reshard.mesh import Mesh
>>> mesh = Mesh.of(W=2, X=2, Y=4, Z=2)
>>> print(read_sharding("A[I_X, J_YZ] {U_W}", mesh).text())
[{"X"}, {"Y", "Z"}], unreduced={"W"}
>>> write_sharding(Sharding.of(mesh, None, ("Z", "X")), name="B")
'B[I, J_ZX]'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from reshard.axis import Axis
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation.grammar import Form, mentioning, parse, rule, shown
from reshard.notation.plain import check_plain
from reshard.sharding import Sharding

if TYPE_CHECKING:
    from lark import Token

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*'*")
_AXES = re.compile(r"[^\s,\[\]{}]+")
_DIM_NAMES = "IJKLMNOPQRST"


class _Subscripts(NamedTuple):
    """A sharding as its text has it: subscripts not yet read against a mesh."""

    dims: tuple[list[str], ...]
    unreduced: list[str]


class _NamedRules:
    """What each rule of the grammar stands for, by its name."""

    @rule
    def subscript(self, parts: list[Token]) -> list[str]:
        return [str(part) for part in parts]

    @rule
    def dim(self, parts: list[Token | list[str]]) -> list[str]:
        return parts[1] if len(parts) > 1 and isinstance(parts[1], list) else []

    @rule
    def unreduced(self, parts: list[list[str]]) -> tuple[list[str]]:
        return (parts[0],)

    @rule
    def sharding(self, parts: list[Token | list[str] | tuple[list[str]]]) -> _Subscripts:
        unreduced = [part[0] for part in parts if isinstance(part, tuple)]
        return _Subscripts(tuple(part for part in parts if isinstance(part, list)), unreduced[0] if unreduced else [])


FORM = Form(
    name="named",
    starts=("sharding",),
    words={"NAME": "a name", "AXES": "mesh axes", "_UNREDUCED": "`U`"},
    builder=_NamedRules(),
)


def read_sharding(text: str, mesh: Mesh) -> Sharding:
    """A sharding from named-axis notation.

    Args:
        text: such as `A[I_X, J_YZ] {U_W}`; the name of the tensor may be left out.
        mesh: whose axes the subscripts name.

    Raises:
        ReshardError: `syntax`, `unknown-axis`, or the code of the rule that is broken.
    """
    read: _Subscripts = parse(FORM, "sharding", text)
    with mentioning(text):
        dims = [_resolved(subscript, mesh) for subscript in read.dims]
        return Sharding.of(mesh, *dims, unreduced=_resolved(read.unreduced, mesh))


def _resolved(subscript: Iterable[str], mesh: Mesh) -> list[Axis]:
    names = sorted(filter(None, mesh.sizes), key=len, reverse=True)
    return [Axis(name) for word in subscript for name in _names(word, names, mesh)]


def _names(word: str, names: Sequence[str], mesh: Mesh) -> list[str]:
    """The axes that a word puts side by side: the longest first wherever the rest can still be read."""
    first: dict[int, str] = {}
    for place in reversed(range(len(word))):
        fitting = (name for name in names if word.startswith(name, place))
        name = next((name for name in fitting if place + len(name) in first or place + len(name) == len(word)), None)
        if name is not None:
            first[place] = name
    if 0 not in first:
        raise ReshardError("unknown-axis", f"{shown(word)} is no row of axes of mesh {mesh}")
    result: list[str] = []
    place = 0
    while place < len(word):
        result.append(first[place])
        place += len(first[place])
    return result


def write_sharding(sharding: Sharding, name: str = "A", dims: Sequence[str] | None = None) -> str:
    """The named-axis notation of a sharding.

    It drops the mesh, open dims, priorities and explicit replication, which move no element.

    Args:
        sharding: of whole axes.
        name: of the tensor.
        dims: a name for every dim; I, J, K, … unless given.

    Raises:
        ReshardError: `cannot-express` where the notation cannot hold the sharding, `bad-argument` where a name
            is none in this notation, `rank-mismatch` where there are not as many names as dims.

    >>> mesh = Mesh.of(data=2, model=4)
    >>> write_sharding(Sharding.of(mesh, ("data", "model"), unreduced=()), dims=["B"])
    'A[B_{data,model}]'
    """
    check_plain(sharding, "named-axis notation")
    if sharding.reduction != "sum":
        problem = f"named-axis notation has sums alone, but {sharding.text()} is under {sharding.reduction}"
        raise ReshardError("cannot-express", problem)
    names = (
        list(dims)
        if dims is not None
        else [_DIM_NAMES[n] if n < len(_DIM_NAMES) else f"I{n}" for n in range(len(sharding.dims))]
    )
    if len(names) != len(sharding.dims):
        raise ReshardError("rank-mismatch", f"{len(names)} names are given for {len(sharding.dims)} dims")
    words: list[object] = [name, *names]
    for word in words:
        if not isinstance(word, str) or not _NAME.fullmatch(word):
            problem = f"a name in this notation must be letters, digits and primes, a letter first, got: {word!r}"
            raise ReshardError("bad-argument", problem)
    inner = ", ".join(
        dim_name + _subscript(dim.axes, sharding.mesh) for dim_name, dim in zip(names, sharding.dims, strict=True)
    )
    unreduced = f" {{U{_subscript(sharding.unreduced, sharding.mesh)}}}" if sharding.unreduced else ""
    return f"{name}[{inner}]{unreduced}"


def _subscript(axes: Sequence[Axis], mesh: Mesh) -> str:
    if not axes:
        return ""
    names = [axis.name for axis in axes]
    for name in names:
        if not _AXES.fullmatch(name):
            raise ReshardError("cannot-express", f"named-axis notation cannot write the axis {axes[names.index(name)]}")
    single = all(len(name) == 1 for name in mesh.sizes)
    return f"_{''.join(names)}" if len(names) == 1 or single else f"_{{{','.join(names)}}}"
