"""The text forms of shardings and meshes: reading all of them, writing those beside Shardy's.

| form | example | reads | writes |
|---|---|---|---|
| Shardy's | `#sdy.sharding<@m, [{"x"}, {"z", ?}p1], replicated={"y"}>` | `parse_sharding` | `str` of the sharding |
| Shardy's modules | `sdy.mesh @m = <["x"=2]>` and what stands on it | `parse_module` | |
| MLIR's list | `[[0], [1, 2]]` | `parse_sharding` | `to_mlir_list` |
| XLA's | `{devices=[2,1,4]<=[8] last_tile_dim_replicate}` | `parse_sharding` | `to_xla` |
| named axes | `A[I_X, J_YZ] {U_W}` | `parse_sharding` | `to_named` |
| a mesh | `<["x"=2, "y"=4]>`, `x=2,y=4` | `parse_mesh` | `str` of the mesh |

A form is known by its look: what its first characters are.
Shardy's text holds every sharding, `parse_sharding(str(x)) == x`; the others lose names, open dims and priorities,
and keep where each element lies.
The library that reads grammars loads with the first text.

>>> mesh = parse_mesh("x=2,y=4")
>>> source = parse_sharding('[{"y"}, {}]', mesh)
>>> to_mlir_list(source), to_named(source), to_xla(source)
('[[1], []]', 'A[I_y, J]', '{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}')
>>> all(parse_sharding(text, mesh) == source for text in (to_mlir_list(source), to_named(source), to_xla(source)))
True
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation import mlir_list, module, named, shardy, sizes, xla
from reshard.notation.grammar import checked_text, found_at, mentioning, placed
from reshard.notation.mlir_list import write_sharding as to_mlir_list
from reshard.notation.named import write_sharding as to_named
from reshard.notation.shardy import Meshes, only_mesh
from reshard.notation.xla import write_sharding as to_xla
from reshard.sharding import Sharding

__all__ = ["parse_mesh", "parse_module", "parse_sharding", "to_mlir_list", "to_named", "to_xla"]

_BEFORE = re.compile(r"(?:[ \t\r\n]|//[^\r\n]*+)*+")
_LOOKS = {
    "list": re.compile(r"\[\s*(?:\[|[0-9]|\]\s*$)"),
    "named": re.compile(r"[A-Za-z][A-Za-z0-9]*'*\s*\[|\[\s*[A-Za-z]"),
    "XLA": re.compile(r"\{|(?:sharding|devices)\s*=|(?:replicated|maximal|manual|unreduced|unknown)(?![A-Za-z0-9_])"),
    "Shardy": re.compile(r"[#<\[]"),
}
"""How each form begins; the first that fits is read."""
_MESH_LOOK = re.compile(r"[#<@]|mesh\s*<|sdy\.mesh")


def parse_sharding(text: str, mesh: Mesh | Mapping[str, Mesh] | None = None, ndim: int | None = None) -> Sharding:
    r"""A sharding from any of the text forms, told apart by how they begin.

    Args:
        text: Shardy's, with a mesh's name, with an inlined mesh, or bare; MLIR's list; XLA's; or named axes.
        mesh: a mesh, whatever the text calls it, or meshes by name. An inlined mesh must equal a given one.
            XLA's text needs none; given one of the same devices, the result is on it where its axes can express
            the text, and otherwise on a fresh mesh with axes a, b, c, …
        ndim: the number of dims of the tensor: what XLA's `{replicated}` does not say, what MLIR's list is filled up
            to with whole dims, and what the other forms must agree with.

    Raises:
        ReshardError: `syntax` where the text follows no form, with the place; `unknown-mesh`, `different-meshes`,
            `rank-mismatch`, `bad-argument`; or the code of the rule of `Mesh` or `Sharding` that is broken.

    >>> print(parse_sharding("{devices=[2,1,4]<=[8] last_tile_dim_replicate}"))
    #sdy.sharding<mesh<["a"=2, "b"=4]>, [{"a"}, {}]>
    >>> print(parse_sharding("A[I_X, J_YZ] {U_W}", Mesh.of(W=2, X=2, Y=2, Z=2)).text())
    [{"X"}, {"Y", "Z"}], unreduced={"W"}
    >>> parse_sharding('[{"x"} {}]', Mesh.of(x=2))
    Traceback (most recent call last):
        ...
    reshard.errors.ReshardError: expected `,`, `]` or a priority such as `p1` at column 8, found `{`
      [{"x"} {}]
             ^
    """
    checked_text(text)
    meshes = _checked_meshes(mesh)
    ndim = _checked_ndim(ndim)
    start = _BEFORE.match(text).end()  # type: ignore[union-attr]  # it matches the empty text
    form = next((form for form, look in _LOOKS.items() if look.match(text, start)), None)
    if form == "XLA":
        return xla.read_sharding(text, only_mesh(meshes) if meshes else None, ndim)
    if form == "list":
        return mlir_list.read_sharding(text, only_mesh(meshes), ndim)
    if form == "named":
        return _of_rank(named.read_sharding(text, only_mesh(meshes)), ndim, text)
    if form == "Shardy":
        return _of_rank(shardy.read_sharding(text, meshes), ndim, text)
    forms = '`#sdy.sharding<@m, [{"x"}]>`, `[{"x"}]`, `[[0]]`, `{devices=[2]<=[2]}` or `A[I_X]`'
    raise placed(text, start, f"expected a sharding, such as {forms},", f", found {found_at(text, start)}")


def parse_mesh(text: str) -> Mesh:
    """A mesh from Shardy's text in any of its spellings, or from its axes with their sizes.

    Raises:
        ReshardError: `syntax`, or the code of the rule of `Mesh` that is broken.

    >>> parse_mesh("x=2,y=4") == parse_mesh('sdy.mesh @m = <["x"=2, "y"=4]>') == Mesh.of(x=2, y=4)
    True
    >>> print(parse_mesh('<["x"=4], device_ids=[3, 2, 1, 0]>'))
    <["x"=4], device_ids=[3, 2, 1, 0]>
    """
    checked_text(text)
    start = _BEFORE.match(text).end()  # type: ignore[union-attr]  # it matches the empty text
    return shardy.read_mesh(text)[1] if _MESH_LOOK.match(text, start) else sizes.read_mesh(text)


def parse_module(text: str) -> tuple[dict[str, Mesh], list[Sharding]]:
    """The meshes that a module of MLIR text defines, by name, and all shardings in it, in order.

    Raises:
        ReshardError: `unknown-mesh` where a sharding is on a mesh that the module does not define, `syntax`, or
            the code of the rule that a mesh or a sharding breaks.

    >>> meshes, shardings = parse_module('''
    ... sdy.mesh @a = <["x"=2]>
    ... func.func @f(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@a, [{"x"}]>}) { return }''')
    >>> print(meshes["a"], shardings[0].text())
    <["x"=2]> [{"x"}]
    """
    return module.read_module(checked_text(text))


def _checked_meshes(mesh: object) -> Meshes:
    if mesh is None or isinstance(mesh, Mesh):
        return mesh
    if not isinstance(mesh, Mapping) or not all(isinstance(value, Mesh) for value in mesh.values()):
        raise ReshardError("bad-argument", f"mesh must be a Mesh, meshes by name, or None, got: {mesh!r}")
    return mesh


def _checked_ndim(ndim: object) -> int | None:
    if ndim is not None and (isinstance(ndim, bool) or not isinstance(ndim, int) or ndim < 0):
        raise ReshardError("bad-argument", f"ndim must be a number of dims or None, got: {ndim!r}")
    return ndim


def _of_rank(sharding: Sharding, ndim: int | None, text: str) -> Sharding:
    if None not in (ndim, sharding.ndim) and sharding.ndim != ndim:
        with mentioning(text):
            raise ReshardError("rank-mismatch", f"the sharding has {sharding.ndim} dims, the tensor {ndim}")
    return sharding
