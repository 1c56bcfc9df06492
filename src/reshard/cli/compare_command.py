"""`reshard compare`: what it costs to go from each of some shardings to each."""

from __future__ import annotations

import argparse

from reshard.cli import output
from reshard.cli.arguments import add_shape, mesh_of, shape_of
from reshard.cli.commands import Commands, add_command
from reshard.notation import parse_sharding
from reshard.planner.each_to_each import CostMatrix, compare

EXAMPLES = """\
examples:
  reshard compare --mesh x=2,y=4 --shape 8,8 '[{"x"}, {}]' '[{"y"}, {}]' '[{"x"}, {"y"}]'
  reshard compare --mesh host=2,gpu=8 --shape 8192,8192 --dtype bf16 --network h100-2x8 '[{"host"}, {}]' '[{}, {"gpu"}]'
"""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "compare", run, "say what it costs to go from each sharding to each", EXAMPLES)
    parser.add_argument("--mesh", metavar="MESH", help="the devices, as x=2,y=4")
    add_shape(parser, required=True)
    parser.add_argument("--dtype", default="float32", metavar="NAME", help="the element type, as f32 or float32")
    parser.add_argument("--network", metavar="NAME", help="choose by time on this network, as h100-2x8")
    parser.add_argument("shardings", nargs="+", metavar="SHARDING", help="where the tensor may be")


def subject(args: argparse.Namespace) -> CostMatrix:
    """What the command is about."""
    shape, mesh = shape_of(args.shape), mesh_of(args.mesh)
    shardings = [parse_sharding(text, mesh, len(shape)) for text in args.shardings]
    return compare(shardings, shape, args.dtype, network=args.network)


def run(args: argparse.Namespace) -> None:
    """Compare and print."""
    comparison = subject(args)
    if args.json:
        output.write_json(comparison.as_dict())
    else:
        output.write_shown(comparison, comparison.blocks())
