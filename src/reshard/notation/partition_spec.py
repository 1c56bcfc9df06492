"""JAX's reprs of specs, shardings, meshes and types, as pasted from code or a log.

    P('x', None)   PartitionSpec(('x', 'y'),)   P(None, UNCONSTRAINED, unreduced={'y'})
    NamedSharding(mesh=Mesh('x': 2, 'y': 4, axis_types=(Auto, Auto)), spec=P('x',), memory_kind=device)
    Mesh('x': 2, 'y': 4)   Mesh(axis_sizes=(2, 4), axis_names=('x', 'y'))   jax.make_mesh((2, 4), ('x', 'y'))
    Mesh(device_ids=array([[1, 0]]), axis_names=('x', 'y'))
    float32[8@x,8@(y,z)]   ShapedArray(float32[8@x])   ShapeDtypeStruct(shape=(8,), dtype=float32, sharding=…)

A spec has no mesh and names the dims that it cuts: those behind are whole.
`reduced=` is explicit replication, `UNCONSTRAINED` an open dim that nothing cuts.
A printed mesh does not say its devices, unless it is as old as to have `device_ids=`: it is read as devices 0, 1, 2, …
A name of a variable in place of a mesh stands for the mesh that is given.

>>> read_sharding("P('x', ('y', 'z'))")
SpecRecord(dims=(('x',), ('y', 'z')), open_dims=frozenset(), replicated=(), unreduced=())
>>> read_mesh("Mesh('x': 2, 'y': 4, axis_types=(Auto, Auto))").axes
(('x', 2), ('y', 4))
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from reshard.errors import ReshardError
from reshard.foreign import ArrayRecord, MeshRecord, PlacedRecord, SpecRecord
from reshard.mesh import Mesh
from reshard.notation.grammar import Form, Misread, number, parse, rule
from reshard.notation.literals import Nested, Skipped, nested_of, unquoted
from reshard.notation.plain import check_plain
from reshard.sharding import Sharding

if TYPE_CHECKING:
    from lark import Token

ARRAY_LOOK = re.compile(r"\s*(?:[A-Za-z]\w*(?:<\w+>)?\[\s*[0-9]|(?:jax\.)?(?:core\.)?Shape(?:dArray|DtypeStruct)\s*\()")
"""How types begin that say a shape."""
REDUCED, UNREDUCED = ("reduced", "R"), ("unreduced", "U")
"""How specs and types call explicit replication, and sums that are not made."""


class _Entry(NamedTuple):
    """One dim of a spec."""

    axes: tuple[str, ...]
    is_open: bool
    size: int = 0
    """Of the dim, where a type says it."""


class _Marked(NamedTuple):
    """Axes that are set apart from those of the dims."""

    keyword: str
    axes: tuple[str, ...]


class _Sizes(NamedTuple):
    sizes: tuple[int, ...]


class _Names(NamedTuple):
    names: tuple[str, ...]


class _DtypeName(NamedTuple):
    name: str


class _MeshAxis(NamedTuple):
    name: str
    size: int


class _SpecRules:
    """What each rule of the grammar stands for, by its name."""

    @rule
    def entry(self, parts: list[Token]) -> _Entry:
        is_open = any(part.type == "UNCONSTRAINED" for part in parts)
        return _Entry(_names(parts), is_open)

    @rule
    def reduced(self, parts: list[Token]) -> _Marked:
        return _Marked(str(parts[0]), _names(parts))

    @rule
    def spec(self, parts: list[Any]) -> SpecRecord:
        return _spec(parts)

    @rule
    def word(self, parts: list[Token]) -> Skipped:
        del parts
        return Skipped()

    @rule
    def skipped(self, parts: list[Any]) -> Skipped:
        del parts
        return Skipped()

    @rule
    def named_sharding(self, parts: list[Any]) -> SpecRecord | PlacedRecord:
        specs, meshes = _of_kind(parts, SpecRecord), _of_kind(parts, MeshRecord)
        if len(specs) != 1 or len(meshes) > 1:
            raise Misread(parts[0], "a NamedSharding stands", "; it must have one mesh and one spec")
        return PlacedRecord(meshes[0], specs[0]) if meshes else specs[0]

    @rule
    def axis(self, parts: list[Token]) -> _MeshAxis:
        return _MeshAxis(unquoted(parts[0]), number(parts[1]))

    @rule
    def sizes(self, parts: list[Token]) -> _Sizes:
        return _Sizes(tuple(map(number, parts)))

    @rule
    def names(self, parts: list[Token]) -> _Names:
        return _Names(_names(parts))

    @rule
    def device_ids(self, parts: list[Any]) -> Nested:
        inner = [part for part in parts if isinstance(part, Nested)]
        if inner and not isinstance(parts[0], Nested):  # array([...], dtype=...)
            return inner[0]
        return nested_of([part if isinstance(part, Nested) else number(part) for part in parts])

    @rule
    def mesh(self, parts: list[Any]) -> MeshRecord:
        axes, names = tuple(map(tuple, _of_kind(parts, _MeshAxis))), _of_kind(parts, _Names)
        sizes, arrays = [part.sizes for part in _of_kind(parts, _Sizes)], _of_kind(parts, Nested)
        if not axes and names:
            shape = [*sizes, *(array.shape or () for array in arrays)][:1] or [()]
            if len(shape[0]) != len(names[0].names):
                raise Misread(parts[0], "a mesh stands", "; it must have a name for each of its sizes")
            axes = tuple(zip(names[0].names, shape[0], strict=True))
        elif sizes or arrays:
            raise Misread(parts[0], "a mesh stands", "; it must have a name for each of its sizes")
        return MeshRecord(axes, arrays[0].numbers if arrays and axes else None)

    @rule
    def typed_dim(self, parts: list[Token]) -> _Entry:
        return _Entry(tuple(str(part) for part in parts if part.type == "AXIS"), is_open=False, size=number(parts[0]))

    @rule
    def mark(self, parts: list[Token]) -> _Marked:
        return _Marked(str(parts[0]), tuple(map(str, parts[1:])))

    @rule
    def typed(self, parts: list[Any]) -> ArrayRecord:
        shape = tuple(entry.size for entry in _of_kind(parts, _Entry))
        return ArrayRecord(shape, str(parts[0]).partition("<")[0], _spec(parts))

    @rule
    def shaped(self, parts: list[Any]) -> ArrayRecord:
        record: ArrayRecord = _of_kind(parts, ArrayRecord)[0]
        return record

    @rule
    def dtype(self, parts: list[Token]) -> _DtypeName:
        return _DtypeName(str(parts[0]))

    @rule
    def struct(self, parts: list[Any]) -> ArrayRecord:
        sizes, dtypes = _of_kind(parts, _Sizes), _of_kind(parts, _DtypeName)
        placed = [*_of_kind(parts, PlacedRecord), *_of_kind(parts, SpecRecord)]
        said = {str(part) for part in parts if getattr(part, "type", "") in ("SHAPE_IS", "DTYPE_IS")}
        if len(said) < 2 or len(sizes) > 1 or len(dtypes) > 1 or len(placed) > 1:
            raise Misread(parts[0], "a ShapeDtypeStruct stands", "; it must have one shape and one dtype")
        shape = sizes[0].sizes if sizes else ()
        return ArrayRecord(shape, dtypes[0].name, _filled_up(placed[0], len(shape)) if placed else None)

    @rule
    def sharding(self, parts: list[SpecRecord | PlacedRecord | ArrayRecord]) -> SpecRecord | PlacedRecord:
        record = parts[0]
        return _sharding_of(record) if isinstance(record, ArrayRecord) else record

    @rule
    def array(self, parts: list[ArrayRecord]) -> ArrayRecord:
        return parts[0]


def _names(parts: list[Token]) -> tuple[str, ...]:
    return tuple(unquoted(part) for part in parts if part.type == "QUOTED")


def _of_kind(parts: list[Any], kind: type[Any]) -> list[Any]:
    return [part for part in parts if isinstance(part, kind)]


def _filled_up(record: Any, rank: int) -> Any:
    """A spec with the dims behind it, which are whole."""
    if isinstance(record, PlacedRecord):
        return PlacedRecord(record.mesh, _filled_up(record.sharding, rank))
    return replace(record, dims=record.dims + ((),) * (rank - len(record.dims)))


def _sharding_of(record: ArrayRecord) -> Any:
    """Where an array lies; whole where it does not say it."""
    return SpecRecord(((),) * len(record.shape)) if record.sharding is None else record.sharding


def _spec(parts: list[Any]) -> SpecRecord:
    entries, marks = _of_kind(parts, _Entry), _of_kind(parts, _Marked)
    replicated, unreduced = (
        tuple(name for mark in marks if mark.keyword in keywords for name in mark.axes)
        for keywords in (REDUCED, UNREDUCED)
    )
    open_dims = frozenset(dim for dim, entry in enumerate(entries) if entry.is_open)
    return SpecRecord(tuple(entry.axes for entry in entries), open_dims, replicated, unreduced)


FORM = Form(
    name="partition_spec",
    starts=("sharding", "mesh", "array"),
    words={
        "QUOTED": "an axis in quotes",
        "SPEC": "`P(`",
        "NAMED_SHARDING": "`NamedSharding(`",
        "MESH": "`Mesh(`",
        "UNCONSTRAINED": "`UNCONSTRAINED`",
        "ARRAY": "`array(`",
        "SET": "`frozenset(`",
        "REDUCED": "`reduced=`",
        "UNREDUCED": "`unreduced=`",
        "SHAPED": "`ShapedArray(`",
        "STRUCT": "`ShapeDtypeStruct(`",
        "SHAPE_IS": "`shape=`",
        "DTYPE_IS": "`dtype=`",
        "SHARDING_IS": "`sharding=`",
        "MESH_IS": "`mesh=`",
        "SPEC_IS": "`spec=`",
        "AXIS_SIZES": "`axis_sizes=`",
        "AXIS_NAMES": "`axis_names=`",
        "DEVICE_IDS": "`device_ids=`",
        "KEY": "a keyword",
        "TYPE": "a type",
        "MARK": "`U`, `R` or `V`",
        "AXIS": "an axis",
        "NUMBER": "a number",
        "WORD": "a word",
    },
    builder=_SpecRules(),
)


def read_sharding(text: str) -> SpecRecord | PlacedRecord:
    """What a repr of JAX's says.

    Raises:
        ReshardError: `syntax`.
    """
    record: SpecRecord | PlacedRecord = parse(FORM, "sharding", text)
    return record


def read_array(text: str) -> ArrayRecord | None:
    """The shape, the dtype and the sharding that a type says, as it is printed; None where the text is no type.

    Raises:
        ReshardError: `syntax`.

    >>> read_array("bfloat16[8@x,4]"), read_array("P('x')")
    (ArrayRecord(shape=(8, 4), dtype='bfloat16', sharding=SpecRecord(dims=(('x',), ()), open_dims=frozenset(), \
replicated=(), unreduced=()), is_whole=False), None)
    """
    if not ARRAY_LOOK.match(text):
        return None
    record: ArrayRecord = parse(FORM, "array", text)
    return record


def read_mesh(text: str) -> MeshRecord:
    """The mesh that a repr of JAX's prints.

    Raises:
        ReshardError: `syntax`.
    """
    record: MeshRecord = parse(FORM, "mesh", text)
    return record


def spec_of(sharding: Sharding, form: str = "a PartitionSpec") -> SpecRecord:
    """The spec that puts every element where a sharding does.

    Open dims, priorities and explicit replication, which move no element, are dropped.

    Args:
        sharding: of whole axes, unreduced under a sum alone.
        form: what to call the spec in a sentence.

    Raises:
        ReshardError: `cannot-express`.
    """
    check_plain(sharding, form)
    if sharding.reduction != "sum":
        raise ReshardError(
            "cannot-express", f"{form} has sums alone, but {sharding.text()} is unreduced under {sharding.reduction}"
        )
    dims = tuple(tuple(axis.name for axis in dim.axes) for dim in sharding.dims)
    return SpecRecord(dims, unreduced=tuple(axis.name for axis in sharding.unreduced))


def write_sharding(sharding: Sharding) -> str:
    """The `PartitionSpec` of a sharding, as JAX prints it; the mesh is not part of it.

    Raises:
        ReshardError: `cannot-express` where the sharding has sub-axes, chunks of chunks or a maximal mesh, or is
            unreduced under another reduction than a sum.

    >>> write_sharding(Sharding.of(Mesh.of(x=2, y=2), ("x", "y"), None)), write_sharding(Sharding.of(Mesh.of(x=2), "x"))
    ("P(('x', 'y'), None)", "P('x')")
    """
    spec = spec_of(sharding)
    entries = [repr(None if not names else names[0] if len(names) == 1 else names) for names in spec.dims]
    if spec.unreduced:
        entries.append(f"unreduced={{{', '.join(map(repr, spec.unreduced))}}}")
    return f"P({', '.join(entries)})"


def write_mesh(mesh: Mesh) -> str:
    """A mesh as JAX prints it: axes and sizes, from which the order of the devices cannot be told.

    Raises:
        ReshardError: `cannot-express` where the devices are not 0, 1, 2, …

    >>> write_mesh(Mesh.of(x=2, y=4))
    "Mesh('x': 2, 'y': 4)"
    """
    if mesh.device_ids is not None:
        raise ReshardError("cannot-express", f"JAX prints no devices of a mesh, but {mesh} has an order of its own")
    return f"Mesh({', '.join(f'{name!r}: {size}' for name, size in mesh.axes)})"
