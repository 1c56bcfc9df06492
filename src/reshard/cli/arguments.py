"""What several commands take: meshes, a shape, a dtype, and the texts of shardings.

>>> shape_of("2048, 2048"), shape_of("()"), shape_of("8 x 8"), shape_of("f32[8,8]")
((2048, 2048), (), (8, 8), (8, 8))
>>> source, target = parse_pair('[{"y"}, {}]', '[{"x"}, {"y"}]', parse_mesh("x=2,y=4"), None, 2)
>>> print(source.text(), target.text())
[{"y"}, {}] [{"x"}, {"y"}]
"""

from __future__ import annotations

import argparse
import re

from reshard.checks import checked_shape
from reshard.cli import output
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.notation import is_printed_mesh, parse_mesh, parse_sharding, parse_type
from reshard.sharding import Sharding


def add_meshes(parser: argparse.ArgumentParser) -> None:
    """The options that name the devices."""
    parser.add_argument("--mesh", metavar="MESH", help='the devices, as x=2,y=4 or <["x"=2, "y"=4], device_ids=[...]>')
    parser.add_argument("--target-mesh", metavar="MESH", help="the devices of the target; those of --mesh unless given")


def add_shape(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """The option for the sizes of the tensor."""
    parser.add_argument(
        "--shape", required=required, metavar="N,N", help="the sizes of the tensor; () for a scalar, or as bf16[8,4]"
    )


def shape_of(text: str) -> tuple[int, ...]:
    """The shape that a text gives: sizes with commas or `x` between them, in brackets or not; or a type.

    Raises:
        ReshardError: `bad-shape`, `too-large`, `syntax`.
    """
    if (said := parse_type(text)) is not None:
        return checked_shape(said.shape)
    inner = text.strip()
    if inner[:1] + inner[-1:] in ("()", "[]"):
        inner = inner[1:-1].strip()
    inner = inner.removesuffix(",").rstrip()
    sizes = re.split(r"\s*[,x]\s*", inner) if inner else []
    if not all(re.fullmatch(r"-?[0-9]+", size) for size in sizes):
        raise ReshardError("bad-shape", f"a shape must be sizes joined by commas, such as 2048,512, got: {text!r}")
    if any(len(size) > 40 for size in sizes):
        raise ReshardError("too-large", "a size of the shape has more than 40 digits; it must be below 2**62")
    return checked_shape([int(size) for size in sizes])


def tensor_said(args: argparse.Namespace) -> tuple[tuple[int, ...], str]:
    """The shape and the dtype of what is moved, from `--shape` and `--dtype`, or from a type as one of the ends.

    Where nothing says the shape, the command is misused.

    Raises:
        ReshardError: `rank-mismatch` where two shapes differ; as `shape_of`.
    """
    types = [said for text in (args.shape, args.source, args.target) if text and (said := parse_type(text)) is not None]
    shapes = [checked_shape(said.shape) for said in types]
    if args.shape is not None:
        shapes.insert(0, shape_of(args.shape))
    if not shapes:
        args.misuse("the shape must be given, as --shape 2048,512 or in a type, as f32[8@x,8]")
    for other in shapes:
        if other != shapes[0]:
            raise ReshardError("rank-mismatch", f"the shape is {shapes[0]}, but a type says {other}")
    return shapes[0], args.dtype or next((str(said.dtype) for said in types), "float32")


def mesh_of(text: str | None) -> Mesh | None:
    """The mesh that an option gives, if it is given.

    Raises:
        ReshardError: `syntax`, or the code of the rule of `Mesh` that is broken.
    """
    if text is None:
        return None
    mesh = parse_mesh(text)
    if is_printed_mesh(text):
        output.note(f"a printed mesh does not say its devices; it is read as 0 to {mesh.size - 1} in order")
    return mesh


def parse_pair(
    source: str | None, target: str, mesh: Mesh | None, target_mesh: Mesh | None, ndim: int
) -> tuple[Sharding | None, Sharding]:
    """Source and target from their texts; the source is None where it has none.

    A text that names its own mesh needs no other; that of the target may differ from `mesh`.
    One that names none is on the mesh given for it, or on that of the other side.

    Raises:
        ReshardError: as `parse_sharding`.
    """
    source_sharding = None if source is None else _parsed(source, mesh, ndim)
    if target_mesh is not None:
        target_sharding: Sharding | None = parse_sharding(target, target_mesh, ndim)
    else:
        target_sharding = _parsed(target, mesh, ndim, is_default=True)
    if source is not None and source_sharding is None:
        source_sharding = parse_sharding(source, target_sharding.mesh if target_sharding else None, ndim)
    if target_sharding is None:
        target_sharding = parse_sharding(target, source_sharding.mesh if source_sharding else None, ndim)
    return source_sharding, target_sharding


def _parsed(text: str, mesh: Mesh | None, ndim: int, *, is_default: bool = False) -> Sharding | None:
    """The sharding; None where the text lacks a mesh and none is given.

    Where the mesh is only a default, a text that names another is on that.
    """
    try:
        return parse_sharding(text, mesh, ndim)
    except ReshardError as error:
        if mesh is None and error.code == "unknown-mesh":
            return None
        if is_default and error.code == "different-meshes":
            return parse_sharding(text, None, ndim)
        raise
