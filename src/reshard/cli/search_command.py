"""`reshard search`: in which layout a program is to run, and what the best few cost."""

from __future__ import annotations

import argparse
from typing import Any

from reshard.cli import output
from reshard.cli.commands import Commands, add_command
from reshard.cli.program_arguments import PROGRAM_FORM, add_placing, add_program
from reshard.cli.programs_in_files import read_program
from reshard.cli.propagate_command import record
from reshard.propagation import Placement

EXAMPLES = (
    """\
examples:
  reshard search layer.txt
  reshard search layer.txt --network h100-2x8 --memory-limit 80000000000
  reshard search model.mlir --count 1 --text

Inputs of which nothing is said, or whose dims are open, are sharded as is best; {tied=w} behind an input or an output
lets it be sharded as w is.

"""
    + PROGRAM_FORM
)


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "search", run, "find the layouts in which a program costs least", EXAMPLES)
    add_placing(parser)
    parser.add_argument("--count", type=int, default=3, metavar="N", help="how many layouts at most; 3 unless given")
    parser.add_argument("--text", action="store_true", help="print the program in the best of them, to be read again")
    add_program(parser)


def run(args: argparse.Namespace) -> None:
    """Search and print."""
    outcome = read_program(args.file).search(
        args.memory_limit, args.network, goal=args.goal, seconds=args.seconds, count=args.count
    )
    if args.json:
        output.write_json({"memory_limit": outcome.memory_limit, "layouts": list(map(summary, outcome.placements))})
    else:
        print(outcome.best.text() if args.text else outcome.table())


def summary(placed: Placement) -> dict[str, Any]:
    """A layout for programs: its figures, and how inputs and outputs are sharded."""
    ends = {
        key: {value.name: str(placed.sharding(value)) for value in values}
        for key, values in (("inputs", placed.inputs), ("outputs", placed.outputs))
    }
    return {key: value for key, value in record(placed).items() if key != "values"} | ends
