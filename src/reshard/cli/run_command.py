"""`reshard run`: reshards a tensor that lies in a file, or in the files of an earlier run."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

from reshard.box import Box
from reshard.cli import output, progress
from reshard.cli.arguments import add_meshes, add_shape, mesh_of, parse_pair, shape_of
from reshard.cli.commands import Commands, add_command
from reshard.cli.launch import peers_of_job
from reshard.cli.storage import Input, TileEntry, agreed, check_absent, open_input, reshard_files
from reshard.cli.storage.index import tile_record
from reshard.dtypes import dtype_named
from reshard.errors import ReshardError
from reshard.mesh import Mesh
from reshard.planner import plan as make_plan
from reshard.plans import Plan, blocks
from reshard.sharding import Sharding
from reshard.tables import Table, bytes_text
from reshard.tile import Tile

MOST_BOXES = 4
"""Of a tile that are printed."""
EXAMPLES = """\
examples:
  reshard run weights.npy --mesh x=2,y=4 --target '[{"x"}, {"y"}]' --out sharded
  reshard run sharded --target '[{"y"}, {}]' --out resharded
  reshard run model.safetensors --tensor wte --mesh x=8 --source '[{"x"}, {}]' --target '[{}, {"x"}]' --out wte

INPUT is one of
  a .npy or .safetensors file, which holds the whole tensor: it is taken as lying in the sharding --source, or
    on every device of the mesh whole, unless one is given
  a folder that an earlier run wrote, which says itself what mesh, sharding, shape and dtype it has

DIR gets a .npy file per device, in the byte order and the order of dims of the input, and an index.json
with the mesh, the sharding, and every file's box and checksum. bfloat16 and 8-bit floats, which .npy does not
know, are written as unsigned integers of the same bits. All is read again and compared before DIR appears.

Under `mpiexec -n 4 reshard run ...` each process writes and compares a share of the files; reshard[mpi] is needed.
"""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "run", run, "reshard a tensor on disk and check what was written", EXAMPLES)
    parser.add_argument("input", type=Path, metavar="INPUT", help="a .npy or .safetensors file, or a folder of tiles")
    add_meshes(parser)
    parser.add_argument("--source", metavar="SHARDING", help="the sharding in which the tensor is")
    parser.add_argument("--target", required=True, metavar="SHARDING", help="the sharding in which it is wanted")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder to write, which must be new")
    parser.add_argument("--tensor", metavar="NAME", help="which tensor of a .safetensors file")
    add_shape(parser, required=False)
    parser.add_argument(
        "--dtype", metavar="NAME", help="what the input must hold; in a .npy file also what its bytes mean"
    )


def run(args: argparse.Namespace) -> None:
    """Reshard and print what was written; of several processes the first prints."""
    peers = peers_of_job()
    try:
        with agreed(peers):
            plan, tensor = _planned(args)
        phase = progress.phase if peers.rank == 0 else progress.silent
        entries, received_bytes = reshard_files(plan, tensor, args.out, phase, peers)
    except ReshardError:
        if peers.rank:
            raise SystemExit(1) from None  # the first says why
        raise
    if peers.rank == 0:
        _print(args, plan, entries, received_bytes)


def _planned(args: argparse.Namespace) -> tuple[Plan, Input]:
    """What is to be done, and with what."""
    dtype = None if args.dtype is None else dtype_named(args.dtype)
    shape = None if args.shape is None else shape_of(args.shape)
    check_absent(args.out)
    tensor = open_input(args.input, args.tensor, dtype, shape)
    source, target = _ends(args, tensor)
    plan = make_plan(source, target, tensor.shape, tensor.encoding.dtype)
    if plan.target.mesh.is_empty:
        raise ReshardError("bad-argument", "the mesh <[]> has no devices to write for; --mesh must name some")
    return plan, tensor


def _print(
    args: argparse.Namespace, plan: Plan, entries: tuple[TileEntry, ...], received_bytes: Mapping[int, int]
) -> None:
    total, total_received = sum(entry.size for entry in entries), sum(received_bytes.values())
    if args.json:
        tiles = [tile_record(entry) | {"received_bytes": received_bytes[entry.device]} for entry in entries]
        totals = {"total_bytes": total, "total_received_bytes": total_received, "verified": True}
        output.write_json({"plan": plan.as_dict(), "out": str(args.out), "tiles": tiles} | totals)
        return
    output.write_shown(plan, blocks(plan))
    print("\n" + "\n".join(tile_table(entries, received_bytes).lines()))
    files = f"{len(entries)} file{'s' if len(entries) != 1 else ''} of {bytes_text(total)} in {args.out}"
    print(f"\n{files}; received {bytes_text(total_received)} in all; verified")


def _ends(args: argparse.Namespace, tensor: Input) -> tuple[Sharding, Sharding]:
    """Source and target."""
    mesh, target_mesh, ndim = mesh_of(args.mesh), mesh_of(args.target_mesh), len(tensor.shape)
    if tensor.index is not None:
        held = tensor.index.sharding
        _check_agreement(args, tensor, mesh, held)
        _, target = parse_pair(None, args.target, held.mesh, target_mesh, ndim)
        return held, target
    source, target = parse_pair(args.source, args.target, mesh, target_mesh, ndim)
    if source is None:  # every device holds the whole tensor
        mesh = mesh or target.mesh
        source = Sharding.of(mesh, *[None] * (0 if mesh.is_maximal else ndim))
    return source, target


def _check_agreement(args: argparse.Namespace, tensor: Input, mesh: Mesh | None, held: Sharding) -> None:
    """Refuse a mesh or a source that is not that of the folder."""
    if mesh is not None and mesh != held.mesh:
        raise ReshardError(
            "different-meshes",
            f"{tensor.path} lies on mesh {held.mesh}, not on {mesh}; the target's is --target-mesh",
        )
    if args.source is not None:
        _, said = parse_pair(None, args.source, held.mesh, None, len(tensor.shape))
        if not said.is_equivalent_to(held, tensor.shape):
            raise ReshardError("bad-argument", f"{tensor.path} lies in the sharding {held}, not in {said}")


def tile_table(entries: Iterable[TileEntry], received_bytes: Mapping[int, int]) -> Table:
    """What was written, to read."""
    rows = [("device", "file", "box", "bytes", "received")]
    for entry in entries:
        sizes = bytes_text(entry.size), bytes_text(received_bytes[entry.device])
        rows.append((str(entry.device), entry.file, _where(entry.tile), *sizes))
    return Table(rows, {"device", "bytes", "received"})


def _where(tile: Box | Tile) -> str:
    """The boxes of a tile, the first ones."""
    boxes = tile.boxes()
    return ", ".join(map(str, boxes[:MOST_BOXES])) + (", ..." if len(boxes) > MOST_BOXES else "")
