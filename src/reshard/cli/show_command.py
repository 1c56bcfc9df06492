"""`reshard show`: draws what each device holds, or the cuts of two shardings over each other."""

from __future__ import annotations

import argparse
from typing import Any

from reshard.cli import output
from reshard.cli.arguments import add_meshes, add_shape, mesh_of, parse_pair, shape_of
from reshard.cli.commands import Commands, add_command
from reshard.errors import ReshardError
from reshard.sharding import Sharding, with_mesh
from reshard.view import cut_period, draw_contents, draw_cuts, draw_holders, overlaps
from reshard.view.limits import MAX_LINES

EXAMPLES = """\
examples:
  reshard show --mesh x=2,y=2 --shape 4,4 '[{"x"}, {"y"}]'
  reshard show --mesh x=2 --target-mesh y=3 --shape 12 --cuts '[{"x"}]' '[{"y"}]'
  reshard show --shape 8,8 --json '{devices=[2,4]<=[8]}'
"""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "show", run, "draw what each device holds, or how two shardings cut", EXAMPLES)
    add_meshes(parser)
    add_shape(parser, required=True)
    parser.add_argument(
        "--cuts", nargs=2, metavar=("SOURCE", "TARGET"), help="lay the cuts of two shardings over each other"
    )
    parser.add_argument(
        "--labels", choices=("devices", "coordinates"), default="devices", help="with --cuts: how devices are named"
    )
    parser.add_argument("--width", type=int, metavar="N", help="columns of the drawing")
    parser.add_argument("--lines", type=int, default=MAX_LINES, metavar="N", help="lines of the drawing")
    parser.add_argument("sharding", nargs="?", metavar="SHARDING", help="who holds what; not with --cuts")
    parser.set_defaults(misuse=parser.error)


def run(args: argparse.Namespace) -> None:
    """Draw and print."""
    if (args.cuts is None) == (args.sharding is None):
        args.misuse("either SHARDING or --cuts SOURCE TARGET must be given")
    shape = shape_of(args.shape)
    width = output.width() if args.width is None else args.width
    mesh, target_mesh = mesh_of(args.mesh), mesh_of(args.target_mesh)
    if args.cuts is None:
        if target_mesh is not None:
            raise ReshardError("bad-argument", "--target-mesh needs a target; without --cuts there is none")
        _, sharding = parse_pair(None, args.sharding, mesh, None, len(shape))
        if args.json:
            output.write_json(contents_record(sharding, shape))
        else:
            print(draw_contents(sharding, shape, max_width=width, max_lines=args.lines))
            print("\nthe tensor, and who holds its parts")
            print(draw_holders(sharding, shape, max_width=width, max_lines=args.lines))
        return
    source, target = parse_pair(args.cuts[0], args.cuts[1], mesh, target_mesh, len(shape))
    if source is None:
        raise ReshardError("bad-argument", "--cuts needs a source and a target")
    if args.json:
        output.write_json(cuts_record(source, target, shape))
    else:
        print(draw_cuts(source, target, shape, labels=args.labels, max_width=width, max_lines=args.lines))


def contents_record(sharding: Sharding, shape: tuple[int, ...]) -> dict[str, Any]:
    """Where the tile of every device lies, one box or several; with partial values, of which class it is."""
    layout = sharding.layout_for(shape)
    devices = []
    for position, device in enumerate(sharding.mesh.device_array.tolist()):
        is_woven = sharding.is_woven
        lies = {"boxes": sharding.boxes(device, shape)} if is_woven else {"box": layout.box(position, shape)}
        record: dict[str, Any] = {"device": device, **lies}
        if layout.unreduced:
            record["partial"] = layout.unreduced.index_of(position)
        devices.append(record)
    return {"sharding": str(sharding), "shape": list(shape), "devices": devices}


def cuts_record(source: Sharding, target: Sharding, shape: tuple[int, ...]) -> dict[str, Any]:
    """Per dim, where source blocks meet target blocks, and the period."""
    source, target = with_mesh(source, target.mesh), with_mesh(target, source.mesh)
    dims = [
        {
            "dim": dim,
            "size": size,
            "period": cut_period(source, target, shape, dim),
            "overlaps": [overlap._asdict() for overlap in overlaps(source, target, shape, dim)],
        }
        for dim, size in enumerate(shape)
    ]
    return {"source": str(source), "target": str(target), "shape": list(shape), "dims": dims}
