"""Modules of MLIR text: the meshes that they define and the shardings that stand in them.

Only `sdy.mesh` definitions and shardings are read, wherever they stand: as attributes of arguments and results,
`#sdy.sharding<...>` and `#sdy.sharding_per_value<[<...>, ...]>`, and bare in operations, as in
`sdy.sharding_constraint %0 <@mesh, [...]>`.
All else may be of any dialect.

>>> meshes, shardings = read_module('''
... sdy.mesh @mesh = <["x"=2, "y"=4]>
... func.func @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
...   %0 = sdy.sharding_constraint %arg0 <@mesh, [{"y"}, {"x"}]> : tensor<8x8xf32>
...   return %0 : tensor<8x8xf32>
... }''')
>>> print(meshes["mesh"], *(sharding.text() for sharding in shardings), sep=" | ")
<["x"=2, "y"=4]> | [{"x"}, {}] | [{"y"}, {"x"}]
"""

from __future__ import annotations

import re

from reshard.mesh import Mesh
from reshard.notation.grammar import placed, shown
from reshard.notation.shardy import closing, read_mesh, read_sharding
from reshard.sharding import Sharding

_GAP = r"(?:[ \t\r\n]|//[^\r\n]*+)*+"
_STOP = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"?|//[^\r\n]*|(?<![A-Za-z0-9_$.#@])sdy\.mesh(?![A-Za-z0-9_$.])|<')
"""Where to look closer: strings and comments are passed over, the others may begin what is read."""
_NAMED = re.compile(rf'sdy\.mesh{_GAP}(?:@[A-Za-z_][A-Za-z0-9_$.]*|@"[^"\n]*"){_GAP}={_GAP}(?:#sdy\.mesh)?(?=<)')
_MESH_REFERENCE = re.compile(rf"<{_GAP}(?:@|mesh{_GAP}<)")
_WORD_BEFORE = re.compile(r"[A-Za-z0-9_$.#!]+\Z")
_LONGEST_WORD = 64


def read_module(text: str) -> tuple[dict[str, Mesh], list[Sharding]]:
    """The meshes of a module by name, and its shardings in the order in which they stand.

    Raises:
        ReshardError: `unknown-mesh` where a sharding is on a mesh that the module does not define, `syntax`, or
            the code of the rule that a mesh or a sharding breaks.
    """
    meshes: dict[str, Mesh] = {}
    places: list[tuple[int, int]] = []
    place = 0
    while stop := _STOP.search(text, place):
        place = stop.end()
        if stop.group() == "sdy.mesh":
            place = _add_mesh(text, stop.start(), meshes)
        elif stop.group() == "<" and _MESH_REFERENCE.match(text, stop.start()):
            word = _word_before(text, stop.start())
            if word in ("", "#sdy.sharding", "sharding"):
                place = closing(text, stop.start(), comments=not word)
                places.append((stop.start(), place))
    shardings = [read_sharding(text[start:end], meshes, whole=text, offset=start) for start, end in places]
    return meshes, shardings


def _add_mesh(text: str, start: int, meshes: dict[str, Mesh]) -> int:
    """Read the mesh that is defined at `start`; return where its text ends."""
    head = _NAMED.match(text, start)
    if not head:
        raise placed(text, start, 'expected `sdy.mesh @name = <["axis"=size, ...]>`')
    stop = closing(text, head.end(), comments=True)
    name, mesh = read_mesh(text[start:stop], whole=text, offset=start)
    if name is None or name in meshes:
        raise placed(text, start, f"the mesh {shown(f'@{name}')} is defined a second time")
    meshes[name] = mesh
    return stop


def _word_before(text: str, place: int) -> str:
    word = _WORD_BEFORE.search(text, max(0, place - _LONGEST_WORD), place)
    return word.group() if word else ""
