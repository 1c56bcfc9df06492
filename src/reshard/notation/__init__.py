"""The text forms of shardings and meshes: reading all of them, writing those beside Shardy's.

| form | example | reads | writes |
|---|---|---|---|
| Shardy's | `#sdy.sharding<@m, [{"x"}, {"z", ?}p1], replicated={"y"}>` | `parse_sharding` | `str` of the sharding |
| Shardy's modules | `sdy.mesh @m = <["x"=2]>` and what stands on it | `parse_module` | |
| MLIR's list | `[[0], [1, 2]]` | `parse_sharding` | `to_mlir_list` |
| XLA's | `{devices=[2,1,4]<=[8] last_tile_dim_replicate}` | `parse_sharding` | `to_xla` |
| named axes | `A[I_X, J_YZ] {U_W}` | `parse_sharding` | `to_named` |
| JAX's reprs | `P('x', None)`, `NamedSharding(…)`, `f32[8@x]` | `parse_sharding` | `to_partition_spec` |
| torch's reprs | `(Shard(dim=0), Replicate())`, `[S(0), R]`, `S(0)R` | `parse_sharding` | `to_placements` |
| a mesh | `<["x"=2, "y"=4]>`, `x=2,y=4` | `parse_mesh` | `str` of the mesh |
| JAX's mesh | `Mesh('x': 2)`, `make_mesh((2,), ('x',))` | `parse_mesh` | `to_jax_mesh` |
| torch's mesh | `DeviceMesh((dp=2), 'cpu', stride=(1,))` | `parse_mesh` | `to_device_mesh` |

A form is known by its look: what its first characters are.
Shardy's text holds every sharding, `parse_sharding(str(x)) == x`; the others lose names, open dims and priorities,
and keep where each element lies.
Engines' own objects mean what their reprs mean, and `as_sharding` and `as_mesh` take either.
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
from typing import Any

from reshard.checks import shown
from reshard.errors import ReshardError
from reshard.foreign import PlacedRecord, ShardingRecord, array_record, mesh_record, sharding_record
from reshard.mesh import Mesh
from reshard.notation import mlir_list, module, named, partition_spec, placements, shardy, sizes, xla
from reshard.notation.grammar import checked_text, found_at, mentioning, placed
from reshard.notation.mlir_list import write_sharding as to_mlir_list
from reshard.notation.named import write_sharding as to_named
from reshard.notation.partition_spec import read_array as parse_type
from reshard.notation.partition_spec import write_mesh as to_jax_mesh
from reshard.notation.partition_spec import write_sharding as to_partition_spec
from reshard.notation.placements import write_mesh as to_device_mesh
from reshard.notation.placements import write_sharding as to_placements
from reshard.notation.records import sharding_of_record
from reshard.notation.shardy import Meshes, only_mesh
from reshard.notation.xla import write_sharding as to_xla
from reshard.sharding import Sharding

__all__ = [
    "as_mesh",
    "as_sharding",
    "is_printed_mesh",
    "parse_mesh",
    "parse_module",
    "parse_sharding",
    "parse_type",
    "to_device_mesh",
    "to_jax_mesh",
    "to_mlir_list",
    "to_named",
    "to_partition_spec",
    "to_placements",
    "to_xla",
]

_BEFORE = re.compile(r"(?:[ \t\r\n]|//[^\r\n]*+)*+")
_PLACEMENT = (
    r"_?S\(|_?(?:Strided)?Shard\s*\(|Replicate\s*\(|Partial\s*\("
    r"|P\(\s*(?:sum|avg|product|max|min|band|bor|bxor)\s*\)"
)
_OF_JAX = r"(?:jax\.)?(?:sharding\.)?"
_LOOKS = {
    "torch": re.compile(
        rf"\(|\[?\s*(?:R[\s,]*)*(?:{_PLACEMENT})|R+\s*$|\[\s*R\s*(?:,\s*R\s*)*,?\s*\]\s*$|(?:DTensor)?Spec\s*\("
    ),
    "JAX": re.compile(rf"{_OF_JAX}(?:P|PartitionSpec|NamedSharding)\s*\(|{partition_spec.ARRAY_LOOK.pattern}"),
    "list": re.compile(r"shard\.sharding(?![A-Za-z0-9_])|split_axes|\[\s*(?:\[|[0-9]|\]\s*$)"),
    "named": re.compile(r"[A-Za-z][A-Za-z0-9]*'*\s*\[|\[\s*[A-Za-z]"),
    "XLA": re.compile(r"\{|(?:sharding|devices)\s*=|(?:replicated|maximal|manual|unreduced|unknown)(?![A-Za-z0-9_])"),
    "Shardy": re.compile(r"[#<\[]"),
}
"""How each form begins; the first that fits is read."""
_MESH_LOOKS = {
    "torch": re.compile(r"DeviceMesh\s*\("),
    "JAX": re.compile(rf"{_OF_JAX}(?:make_mesh|(?:Abstract)?Mesh)\s*\("),
    "Shardy": re.compile(r"[#<@]|mesh\s*<|sdy\.mesh"),
}


def parse_sharding(text: str, mesh: Any = None, ndim: int | None = None) -> Sharding:
    r"""A sharding from any of the text forms, told apart by how they begin.

    Args:
        text: Shardy's, with a mesh's name, with an inlined mesh, or bare; MLIR's list; XLA's; named axes; or a repr
            of JAX's or torch's: a PartitionSpec, a NamedSharding, a type, placements, the spec of a DTensor.
        mesh: a mesh, whatever the text calls it, ours or of JAX or torch; or meshes by name. An inlined mesh must equal
            a given one; a printed one, which does not say its devices, must have its axes.
            XLA's text needs none; given one of the same devices, the result is on it where its axes can express
            the text, and otherwise on a fresh mesh with axes a, b, c, …
        ndim: the number of dims of the tensor: what XLA's `{replicated}` does not say, what MLIR's list
            and specs are filled up to with whole dims, what placements need, and what other forms must agree with.

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
    if form == "JAX":
        return _of_repr(partition_spec.read_sharding(text), meshes, ndim, text)
    if form == "torch":
        printed = placements.read_sharding(text)
        return _of_repr(printed.record, meshes, printed.ndim if ndim is None else ndim, text)
    forms = '`#sdy.sharding<@m, [{"x"}]>`, `[{"x"}]`, `[[0]]`, `{devices=[2]<=[2]}` or `A[I_X]`'
    raise placed(text, start, f"expected a sharding, such as {forms},", f", found {found_at(text, start)}")


def parse_mesh(text: str) -> Mesh:
    """A mesh from Shardy's text in any of its spellings, from its axes with their sizes, or from a repr.

    A repr of JAX's or torch's does not say which devices stand where: it is read as devices 0, 1, 2, … in order, and
    strides of another order are refused.

    Raises:
        ReshardError: `syntax`, `cannot-express`, or the code of the rule of `Mesh` that is broken.

    >>> parse_mesh("x=2,y=4") == parse_mesh('sdy.mesh @m = <["x"=2, "y"=4]>') == Mesh.of(x=2, y=4)
    True
    >>> parse_mesh("Mesh('x': 2, 'y': 4)") == parse_mesh("DeviceMesh((x=2, y=4), 'cuda', stride=(4, 1))")
    True
    >>> print(parse_mesh('<["x"=4], device_ids=[3, 2, 1, 0]>'))
    <["x"=4], device_ids=[3, 2, 1, 0]>
    """
    form = _mesh_form(checked_text(text))
    if form == "Shardy":
        return shardy.read_mesh(text)[1]
    if form is None:
        return sizes.read_mesh(text)
    record = partition_spec.read_mesh(text) if form == "JAX" else placements.read_mesh(text)
    with mentioning(text):
        return Mesh.of_record(record)


def is_printed_mesh(text: str) -> bool:
    """Whether a text is a repr that does not say which devices stand where.

    >>> is_printed_mesh("Mesh('x': 2)"), is_printed_mesh("x=2")
    (True, False)
    """
    return _mesh_form(text) in ("JAX", "torch") and not re.search(r"device_ids|\[", text)


def _mesh_form(text: str) -> str | None:
    start = _BEFORE.match(text).end()  # type: ignore[union-attr]  # it matches the empty text
    return next((form for form, look in _MESH_LOOKS.items() if look.match(text, start)), None)


def as_mesh(value: Any) -> Mesh:
    """A mesh from whatever says one: ours, a text, JAX's `Mesh` or torch's `DeviceMesh`.

    Raises:
        ReshardError: `bad-argument` where it is nothing of these; as `parse_mesh` for a text.
    """
    if isinstance(value, Mesh):
        return value
    if isinstance(value, str):
        return parse_mesh(value)
    record = mesh_record(value)
    if record is None:
        kinds = "a Mesh, a text, or a mesh of JAX or torch"
        raise ReshardError("bad-argument", f"a mesh must be {kinds}, got: {shown(value)}")
    return Mesh.of_record(record)


def as_sharding(value: Any, mesh: Any = None, ndim: int | None = None) -> Sharding:
    """A sharding from whatever says one: ours, a text of any form, or an object of JAX or torch.

    Args:
        value: a `Sharding`, a text; a `PartitionSpec`, a `NamedSharding` or another sharding of JAX; placements, one
            or a list, by themselves or in a pair with their `DeviceMesh`; a `DTensor`, its spec, or an array of JAX.
        mesh: ours, a text or an engine's: what a value without a mesh is on.
        ndim: the number of dims of the tensor, where it is known.

    Raises:
        ReshardError: `unknown-mesh` where a mesh is needed, `rank-mismatch`, `bad-argument` where it is nothing of
            these, or as `parse_sharding`.

    >>> mesh = Mesh.of(x=2, y=4)
    >>> print(as_sharding("P('x')", "x=2,y=4", 2).text(), as_sharding("S(1)R", mesh, 2).text())
    [{"x"}, {}] [{}, {"x"}], uneven=chunk
    """
    if isinstance(value, Sharding):
        return value
    ours = None if mesh is None else mesh if isinstance(mesh, Mapping) else as_mesh(mesh)
    if isinstance(value, str):
        return parse_sharding(value, ours, ndim)
    rank = getattr(value, "ndim", None)  # of an array, of a DTensor and its spec
    ndim = rank if isinstance(rank, int) and ndim is None else ndim
    array = array_record(value)
    record = sharding_record(value, ndim) if array is None else array.sharding
    if record is None:
        kinds = "a Sharding, a text, or a sharding, a spec or placements of JAX or torch"
        raise ReshardError("bad-argument", f"a sharding must be {kinds}, got: {shown(value)}")
    return sharding_of_record(record, only_mesh(ours) if ours else None, ndim)


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


def _of_repr(record: ShardingRecord, meshes: Meshes, ndim: int | None, text: str) -> Sharding:
    """What a repr says; the devices of a mesh that it prints are those of the one that is given."""
    with mentioning(text):
        mesh = only_mesh(meshes) if meshes else None
        if isinstance(record, PlacedRecord) and mesh is not None:
            its_own = Mesh.of_record(record.mesh)
            if its_own != mesh and (record.mesh.devices is not None or its_own.axes != mesh.axes):
                raise ReshardError("different-meshes", f"the text is on mesh {its_own}, not on {mesh}")
            record = record.sharding
        return sharding_of_record(record, mesh, ndim)


def _checked_meshes(mesh: object) -> Meshes:
    if mesh is None or isinstance(mesh, Mesh):
        return mesh
    if (record := mesh_record(mesh)) is not None:
        return Mesh.of_record(record)
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
