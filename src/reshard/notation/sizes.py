"""The short text of a mesh, as a command line takes it: `x=2,y=4`.

>>> read_mesh("D=2, Y=8")
Mesh.of(D=2, Y=8)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.mesh import Mesh
from reshard.notation.grammar import Form, number, parse, rule

if TYPE_CHECKING:
    from lark import Token


class _SizesRules:
    """What each rule of the grammar stands for, by its name."""

    @rule
    def axis(self, parts: list[Token]) -> tuple[str, int]:
        size = number(parts[-1])
        return str(parts[0]), -size if len(parts) == 3 else size

    @rule
    def mesh(self, parts: list[tuple[str, int]]) -> Mesh:
        return Mesh(tuple(parts))


FORM = Form(
    name="sizes",
    starts=("mesh",),
    words={"NAME": "the name of an axis", "NUMBER": "a size", "MINUS": "a size"},
    builder=_SizesRules(),
)


def read_mesh(text: str) -> Mesh:
    """A mesh from its axes with their sizes.

    Raises:
        ReshardError: `syntax`, or the code of the rule that is broken.
    """
    mesh: Mesh = parse(FORM, "mesh", text)
    return mesh
